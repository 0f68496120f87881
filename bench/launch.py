"""From a composed configuration to a finished run folder."""

import ctypes
import resource
import shutil
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import Field
from threadpoolctl import threadpool_limits

from bench import checkpoint, record
from bench.algorithm import Algorithm
from bench.loggers import About, Logger
from bench.run import Diverged, Standing, first, row, run
from bench.screen import Screen, show
from bench.settings import (
    BadSetting,
    Count,
    Finite,
    NonNegative,
    Positive,
    build,
    checked,
    unknown,
    validated,
)
from bench.task import Context, Task
from bench.view import Heatmap, Histogram

RUN: dict[str, Any] = {
    "steps": (Count, ...),
    "every": (Count, ...),
    "seconds": (Positive | None, None),
    "cpu_seconds": (Positive | None, None),
    "until": (str | None, None),
    "target": (Finite | None, None),
    "device": (Literal["auto", "cpu", "cuda"], "auto"),
    "dtype": (Literal["float32", "float64"], "float32"),
    "threads": (Count, 2),
    "checkpoint": (NonNegative, 10.0),
    "force": (bool, False),
    "root": (Annotated[str, Field(min_length=1)], "runs"),
}
DATA: dict[str, Any] = {
    "root": (Annotated[str, Field(min_length=1)], ...),
    "download": (bool, False),
}
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
MOST_KEPT = 2**28  # bytes
FILES = (
    "config.yaml",
    "environment.json",
    "history.jsonl",
    "checkpoint.pt",
    "summary.json",
    "view.json",
)


def launch(cfg: DictConfig) -> int:
    """Run, continue or show what `cfg` names; the exit code. Raises BadSetting before any work."""
    try:
        config = complete(OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True))
    except OmegaConfBaseException as error:
        raise BadSetting(" ".join(str(error).split())) from None
    name = record.name(config)
    folder = Path(config["run"]["root"]).expanduser() / name
    device = chosen_device(config["run"]["device"])
    fresh = config["run"]["force"]

    if not fresh and (folder / "summary.json").is_file():
        summary = record.read_json(folder / "summary.json")
        show(summary, folder, "nothing to do: this run is finished (run.force=true does it again)")
        return exit_code(summary)

    going_on = not fresh and (folder / "checkpoint.pt").is_file()
    threads = config["run"]["threads"]
    if going_on:
        old = record.read_json(folder / "environment.json")
        if old["device"] != device.type:
            raise BadSetting(
                f"run.device={config['run']['device']}: {folder} was begun on {old['device']}: "
                f"write run.device={old['device']}, or run.force=true to start again"
            )
        threads = old["threads"]  # another number would change the last bits
    settle(device, threads)

    context = Context(
        seed=config["seed"],
        device=device,
        dtype=getattr(torch, config["run"]["dtype"]),
        data_root=Path(config["data"]["root"]).expanduser(),
        download=config["data"]["download"],
    )
    task: Task = build(config["task"], context)
    algorithm: Algorithm = build(config["algorithm"])
    start = first(task, algorithm, config["seed"])
    until = goal(config["run"], task, start)
    if going_on:
        start = checkpoint.load(folder / "checkpoint.pt", name, start)

    open_folder(folder, fresh)
    environment = record.environment(device, threads, task.sources)
    record.write_yaml(folder / "config.yaml", config)
    if going_on:
        environment = continued(folder, environment, start.step)
    record.write_json(folder / "environment.json", environment)
    record.keep_rows(folder / "history.jsonl", start.step if going_on else -1)
    begin = start if going_on else None
    return carry_out(config, name, folder, task, algorithm, begin, until, device)


def goal(settings: dict[str, Any], task: Task, start: Standing) -> tuple[str, float] | None:
    """The metric and value at which the run ends early; raises BadSetting."""
    until, target = settings["until"], settings["target"]
    if (until is None) != (target is None):
        raise BadSetting(f"run.until={until} run.target={target}: write both, or neither")
    if until is None:
        return None
    with torch.no_grad():
        there = row(task, start)
    if until not in there:
        raise unknown("run.until", until, there, until)
    return until, target


def complete(config: Any) -> dict[str, Any]:
    """Every setting there is, typed and with its default; raises BadSetting."""
    parts = {"seed", "run", "data", "task", "algorithm", "logger"}
    top = dict.fromkeys(sorted(parts), (Any, ...))
    validated({**top, "seed": (int, ...)}, config, "")
    return {
        "seed": config["seed"],
        "run": validated(RUN, config["run"], "run"),
        "data": validated(DATA, config["data"], "data"),
        "task": checked(config["task"], "task", Task, given=("context",)),
        "algorithm": checked(config["algorithm"], "algorithm", Algorithm),
        "logger": checked(config["logger"], "logger", Logger, given=("about",)),
    }


def chosen_device(wanted: str) -> torch.device:
    """cpu, or cuda where there is one; raises BadSetting."""
    there = torch.cuda.is_available()
    if wanted == "cuda" and not there:
        raise BadSetting("run.device=cuda: torch finds no CUDA device here; write auto or cpu")
    return torch.device("cuda" if there and wanted != "cpu" else "cpu")


def settle(device: torch.device, threads: int) -> None:
    """What makes two runs of the same configuration the same to the last bit; and fast ones."""
    torch.set_num_threads(threads)
    threadpool_limits(threads)  # numpy has threads of its own
    keep_freed_memory()
    if device.type == "cuda":
        torch.use_deterministic_algorithms(True, warn_only=True)


def keep_freed_memory() -> None:
    """Let glibc, where it is the allocator, keep what is freed for the next allocation: handed back
    to the system, each new tensor of some MB is faulted in anew, which cost SF2OBO on
    20 Newsgroups a quarter of its time (mallopt(3))."""
    if sys.platform == "linux" and (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)):
        for parameter in (M_TRIM_THRESHOLD, M_MMAP_THRESHOLD):
            mallopt(parameter, MOST_KEPT)


def open_folder(folder: Path, fresh: bool) -> None:
    """Make the folder, emptied of an earlier result if that is to go; raises BadSetting."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if fresh:
            for file in FILES:
                (folder / file).unlink(missing_ok=True)
            shutil.rmtree(folder / "wandb", ignore_errors=True)
        (folder / "history.jsonl").touch()
    except OSError as error:
        raise BadSetting(
            f"run.root: cannot write {error.filename}: {error.strerror}; write run.root=... "
            "for another place"
        ) from None


def continued(folder: Path, environment: dict[str, Any], step: int) -> dict[str, Any]:
    """The first environment, with what has changed since then added to its list."""
    old = record.read_json(folder / "environment.json")
    earlier = old.pop("continued", [])
    changed = record.differences(old, environment)
    if changed:
        names = ", ".join(changed)
        print(f"bench: {folder} goes on under another {names}; noted there", file=sys.stderr)
    return {**old, "continued": [*earlier, {"step": step, "changed": changed}]}


def carry_out(
    config: dict[str, Any],
    name: str,
    folder: Path,
    task: Task,
    algorithm: Algorithm,
    start: Standing | None,
    until: tuple[str, float] | None,
    device: torch.device,
) -> int:
    """Run to the end, recording; the exit code."""
    settings, saved = config["run"], time.monotonic()
    history = (folder / "history.jsonl").open("a")
    logger: Logger = build(config["logger"], About(name, config, folder))
    screen = Screen(name, settings["steps"], start.step if start else 0, task.metric)
    last: dict[str, Any] = {}
    standing = start

    def measured(values: dict[str, Any]) -> None:
        nonlocal last
        last = values
        history.write(record.line(values))
        history.flush()
        logger.row(values)
        screen.measured(values)

    def paused(s: Standing) -> None:
        nonlocal saved, standing
        standing = s
        screen.at(s.step)
        at_row = s.step % settings["every"] == 0 or s.step == settings["steps"]
        wait = settings["checkpoint"]
        if (wait == 0 and at_row) or (wait > 0 and time.monotonic() - saved >= wait):
            checkpoint.save(folder / "checkpoint.pt", name, s)
            saved = time.monotonic()

    def now() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    status, reason = "done", None
    try:
        with screen:
            standing = run(
                task,
                algorithm,
                seed=config["seed"],
                steps=settings["steps"],
                every=settings["every"],
                seconds=settings["seconds"],
                cpu_seconds=settings["cpu_seconds"],
                until=until,
                start=start,
                measured=measured,
                paused=paused,
                now=now,
            )
        checkpoint.save(folder / "checkpoint.pt", name, standing)
    except Diverged as error:
        status, reason = "diverged", str(error)
    except KeyboardInterrupt:
        if standing is not None:
            checkpoint.save(folder / "checkpoint.pt", name, standing)
        logger.close(130)
        where = standing.step if standing else 0
        print(f"bench: stopped at step {where}; the same command goes on", file=sys.stderr)
        raise
    finally:
        history.close()

    summary = {
        "status": status,
        "reason": reason,
        "name": name,
        "seed": config["seed"],
        "metric": task.metric,
        "last": record.finite(last) if last else record.read_history(folder / "history.jsonl")[-1],
        "references": task.references() if task.references and status == "done" else {},
        "peak_memory_mb": peak_memory_mb(device),
    }
    if status == "done" and standing is not None and (seen := view(task, standing)) is not None:
        record.write_json(folder / "view.json", asdict(seen))
    record.write_json(folder / "summary.json", summary)
    code = exit_code(summary)
    logger.close(code)
    show(summary, folder)
    return code


def view(task: Task, s: Standing) -> Histogram | Heatmap | None:
    """The picture of a run's end, where the task has one."""
    if task.ledger is not None and s.table is not None:
        return task.ledger.view(s.table)
    return task.view(s.state.x, s.state.y, s.step) if task.view else None


def exit_code(summary: dict[str, Any]) -> int:
    return 0 if summary["status"] == "done" else 1


def peak_memory_mb(device: torch.device) -> dict[str, float]:
    """Of this process so far, and of the GPU where one is used."""
    peak = {"process": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}
    if device.type == "cuda":
        peak["gpu"] = torch.cuda.max_memory_allocated(device) / 2**20
    return peak
