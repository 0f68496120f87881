"""How long pages over many run folders take, and how much memory: made-up folders, real pages.

    uv run python -m scripts.speed report [--runs 1000] [--rows 100]

What is timed is `reproduce list`, `reproduce compare` over all the folders, and `reproduce report`
over an artifact whose runs they are, each in a process of its own, whose peak memory is told. There
is nothing to compare with: each has its seconds alone.
"""

import os
import random
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from bench.reproduce import plan as plans
from bench.reproduce.book import load_book
from bench.reproduce.plan import Plan
from bench.reproduce.run_names import Names
from bench.reproduce.speed import SpeedLine
from bench.runs.folder import RunFolder
from scripts.speed.harness import Comparison, Timing, add_facts, in_process, positive, take_turns

# the child tells its own peak: what the parent sees of it starts at the parent's size
MAIN = """
import atexit, sys
def peak():
    with open("/proc/self/status") as file:
        sys.stderr.write(next(line for line in file if line.startswith("VmHWM")))
atexit.register(peak)
from bench.reproduce.cli import main
main()
"""


def artifact_spec(runs: int) -> dict[str, Any]:
    """An artifact of that many runs: 10 rows in two variants, seeds for the rest."""
    return {
        "title": "Synthetic", "source": "scripts/speed/report.py", "task": "hyper_cleaning",
        "set": {"task.references": False},
        "variants": {"paper": {}, "code": {"set": {"task.variant": "code", "task.resplit": True}}},
        "budgets": {"full": {"minutes": 1.0, "seeds": max(2, runs // 20)}},
        "columns": ["test_accuracy", "test_loss", "seconds"],
        "figure": {"metrics": ["test_accuracy", "test_loss", "val_loss"]},
        "rows": {f"T={t}": {"method": "bome", "set": {"algorithm.T": t}} for t in range(1, 11)},
        "claims": {
            "better": {"kind": "above", "by": "us", "text": "More steps are better",
                       "rows": ["T=10"], "than": ["T=1"], "metric": "test_accuracy"},
        },
    }  # fmt: skip


def plan_runs(specs: Path, root: Path, runs: int) -> Plan:
    """Writes the artifact's spec, and plans its runs below the root."""
    (specs / "speed").mkdir(parents=True)
    file = specs / "speed" / "synthetic.yaml"
    file.write_text(yaml.safe_dump(artifact_spec(runs), sort_keys=False))
    book = load_book(specs)
    return plans.make_plan(book.artifacts["speed/synthetic"], book, "full", root, Names(root))


def write_run(run: RunFolder, config: dict[str, Any], rows: int, rng: random.Random) -> None:
    """A run folder with the files and sizes of a real one."""
    run.path.mkdir(parents=True)
    history = [history_row(10 * k, rng) for k in range(rows)]
    run.prepare(config, -1)
    rows_of = run.rows()
    for row in history:
        rows_of.add(row)
    rows_of.close()
    environment: dict[str, Any] = {
        "python": "3", "packages": {}, "git": None, "cpu": "synthetic", "gpu": None, "threads": 1,
    }  # fmt: skip
    run.describe(environment)
    summary = {
        "status": "done", "reason": None, "metric": "test_accuracy", "last": history[-1],
        "name": run.name, "seed": config["seed"], "references": {},
    }  # fmt: skip
    run.end(summary, None)


def history_row(step: int, rng: random.Random) -> dict[str, float]:
    """What a real run would have measured at this step, made up."""
    level = 1 - 0.5 * 0.9 ** (step / 10) + rng.gauss(0, 0.01)
    values = dict.fromkeys(
        ("test_accuracy", "test_loss", "val2_accuracy", "val2_loss", "val_loss", "cleaning_f1"),
        level,
    )
    calls = {f"calls/{k}": step * 11 for k in ("grad_f", "grad_g", "hvp_g", "jvp_g")}
    samples = {f"samples/{k}": step * 11000 for k in ("grad_f", "grad_g", "hvp_g", "jvp_g")}
    return {"step": step, "seconds": step * 0.1, **values, **calls, **samples}


def time_command(command: Sequence[str], variables: Mapping[str, str], repeats: int) -> SpeedLine:
    """The line of `reproduce` with these arguments, with its peak memory in MB."""
    peaks: list[int] = []

    def work() -> None:
        done = subprocess.run(
            [sys.executable, "-c", MAIN, *command],
            env=os.environ | variables,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            sys.exit(f"reproduce {command[0]} has exit code {done.returncode}: {done.stderr}")
        peaks.append(int(done.stderr.rpartition("VmHWM:")[2].split()[0]) // 1024)

    contender = in_process(f"reproduce {command[0]}", work)
    (line,) = take_turns(command[0], [contender], repeats, warm_up=False)
    return add_facts(line, peak_MB=max(peaks))


def compare(options: Namespace) -> Timing:
    """The three commands, on folders written for them."""
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        root, specs = folder / "runs", folder / "specs"
        plan = plan_runs(specs, root, options.runs)
        for run in plan.runs:
            point = dict(run.planned.point.settings)
            config = {
                "seed": run.planned.seed,
                "run": {"steps": 1000, "every": 10, "threads": 1, "force": False},
                "task": {"_target_": "tasks.hyper_cleaning.hyper_cleaning", "c": 0.001},
                "algorithm": {
                    "_target_": "algorithms.bilevel.bome.bome", "T": point["algorithm.T"],
                },
            }  # fmt: skip
            write_run(run.folder, config, options.rows, rng)
        variables = {"BENCH_RUNS": str(root), "BENCH_SPECS": str(specs)}
        commands = (
            ["list"],
            ["compare", str(root), "--out", str(folder / "comparison")],
            ["report", "--out", str(folder / "report")],
        )
        lines = [time_command(command, variables, options.repeats) for command in commands]
    return Timing(f"Pages over {len(plan.runs)} run folders of {options.rows} rows", lines)


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--runs", type=positive, default=1000, help="run folders (%(default)s)")
    parser.add_argument(
        "--rows", type=positive, default=100, help="measurements of each run (%(default)s)"
    )


COMPARISON = Comparison(compare, add_options, smoke={"runs": 20, "rows": 3}, repeats=1)
