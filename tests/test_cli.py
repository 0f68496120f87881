"""The command line as a user meets it: refusals, runs, resuming, and what a folder holds.

Most of it is called in this process; what hangs on the process itself, as a kill does, starts one.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from bench.runs.loggers import answers
from tests.conftest import ROOT, Cli
from tests.test_hostile import Main, Said, main  # noqa: F401  (a fixture)

pytestmark = pytest.mark.usefixtures("warm_workers")
QUICK = ("task=toy_minimax", "run.steps=4", "run.every=2", "run.threads=1")


def refused(done: Said, *words: str) -> None:
    """Exit code 2, nothing on standard output, one line that says all of `words`."""
    assert done.code == 2, done.err
    assert done.out == ""
    (line,) = done.err.splitlines()
    for word in words:
        assert word in line


BAD: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "a task that is not": (("task=toy_corset",), ("task=toy_corset", "toy_coreset")),
    "a setting that is not": (("algorithm.etaa=3",), ("algorithm.etaa=3", "did you mean eta?")),
    "an added setting": (("+algorithm.foo=3",), ("algorithm.foo=3", "inner_lr")),
    "an added group": (("+extra.foo=3",), ("extra=", "algorithm")),
    "a word for a number": (("algorithm.eta=abc",), ("algorithm.eta=abc", "number")),
    "half a step": (("run.steps=1.5",), ("run.steps=1.5", "integer")),
    "negative steps": (("run.steps=-5",), ("run.steps=-5", "greater")),
    "a value left out": (("algorithm.T=???",), ("algorithm.T",)),
    "missing data": (("task/data=mnist", "data.root=nowhere"), ("data.root=nowhere", "MNIST")),
    "cuda without a GPU": (("run.device=cuda",), ("run.device=cuda", "cpu")),
    "a NaN step size": (("algorithm.outer_lr=nan",), ("algorithm.outer_lr=NaN", "finite")),
    "an unknown variant": (("task.variant=papr",), ("task.variant=papr", "'paper' or 'code'")),
    "a foreign target": (("algorithm._target_=os.system",), ("os.system", "only functions")),
    "a target of another kind": (
        ("algorithm._target_=bench.numerics.descent.clamped",),
        ("algorithm._target_=bench.numerics.descent.clamped", "Algorithm"),
    ),
    "a task without its group": (("toy_coreset",), ("toy_coreset: no setting", "task=toy_coreset")),
    "a method without its group": (("bome", "task=quadratic"), ("bome: ", "algorithm=bome")),
    "a word that is nothing": (("task=quadratic", "../quick"), ("../quick: ", "bench --help")),
    "the other command": (("reproduce", "run", "--budget", "short"), ("its own", "reproduce list")),
    "an interpolation to nothing": (("algorithm.inner_lr=${nope}",), ("nope",)),
    "a target of nothing": (("run.target=0.1",), ("run.until=None", "both")),
    "a target of a metric that is not": (
        ("task=quadratic", "run.until=los", "run.target=0.1"),
        ("run.until=los", "objective"),
    ),
    "a target of a metric that is to be high": (
        ("task/data=digits", "run.until=test_accuracy", "run.target=.9"),
        ("run.until=test_accuracy", "higher values are better", "test_loss"),
    ),
    "a space that the league searches": (
        ("algorithm.tuning.T=[1]",),
        ("algorithm.tuning.T=[1]", "write algorithm.T=VALUE"),
    ),
    "a part of a space that the league searches": (
        ("algorithm.tuning.inner_lr.log=[1]",),
        ("algorithm.tuning.inner_lr.log=[1]", "write algorithm.inner_lr=VALUE"),
    ),
    "the whole space": (
        ("+algorithm.tuning=3",),
        ("algorithm.tuning=3", "algorithm.SETTING=VALUE"),
    ),
    "a game's method on another problem": (
        ("task=quadratic", "algorithm=gda"),
        ("algorithm:", "games where g = -f", "task=toy_minimax"),
    ),
    "the same where g is of other data": (
        ("task=hyper_cleaning", "algorithm=gda"),
        ("algorithm:", "games where g = -f", "task=toy_minimax"),
    ),
    "a method of x alone on a bilevel problem": (
        ("task=quadratic", "algorithm=projected_gradient"),
        ("algorithm:", "moves x alone", "algorithm=bome"),
    ),
    "dashes before a setting": (("--run.steps=3",), ("--run.steps=3: ", ": run.steps=3 ")),
    "dashes before a group": (("--algorithm", "bome"), ("--algorithm: ", "algorithm=VALUE")),
    "a short option that is not": (("-y",), ("-y: no such option", "bench --help")),
    "two modes": (("-m", "--cfg", "job"), ("--multirun and --cfg", "give one of them")),
    "a value that an option does not know": (("--cfg", "foo"), ("--cfg", "invalid choice")),
    "a shortened option that could be several": (("--conf=a",), ("ambiguous option", "--conf")),
    "a value where none goes": (("--run=3",), ("--run", "ignored explicit argument")),
    "an option after settings": (
        ("task=quadratic", "-m", "seed=0,1"),
        ("seed=0,1: options come first", "bench -m task=... seed=0,1"),
    ),
    "nothing to resolve": (("--resolve",), ("--resolve: goes with --cfg",)),
    "an empty sweep": (("-m", "experiment=glob(nothing*)"), ("sweep is empty", "nothing*")),
    "an empty value in a sweep": (("-m", "seed="), ("seed=",)),
    "a range that goes nowhere": (
        ("-m", "seed=range(0,3,0)"),
        ("seed=range(0,3,0): a step of 0 comes nowhere",),
    ),
    "two settings that are not": (
        ("task=quadratic", "algorithm.etaa=1", "run.bar=2"),
        ("algorithm.etaa=1: no such setting; did you mean eta?",),
    ),
    "values of a sweep without -m": (
        ("algorithm=bome,itd",),
        ("algorithm=bome,itd: put -m before it for a run of each",),
    ),
    "a run without a task": (("~task",), ("~task: a run has one task; write task=NAME",)),
    "a list of algorithms": (
        ("algorithm=[bome,itd]",),
        (
            "algorithm=[bome,itd]: a run has one algorithm; write algorithm=NAME, or -m "
            "algorithm=bome,itd for a run of each",
        ),
    ),
    "a list of tasks of which one is not": (
        ("task=[quadratic,nope]",),
        ("write task=NAME, or -m ",),
    ),
    "an equals sign in a value": (("run.root=a=b",), ("run.root=a=b: ", "in quotes")),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_in_one_line_and_leaves_nothing(
    case: str,
    main: Main,  # noqa: F811
    tmp_path: Path,
) -> None:
    arguments, words = BAD[case]
    if case == "cuda without a GPU" and torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    refused(main(*arguments, "run.threads=1"), *words)
    assert list((tmp_path / "runs").rglob("*.*")) == []


def test_a_list_is_advised_only_where_one_can_stand(main: Main) -> None:  # noqa: F811
    refused(main("run.steps=3,4"), "run of each, or write run.steps=[3,4] for a list")
    assert main("task=quadratic,toy_minimax").err.endswith("-m before it for a run of each\n")


def test_bad_input_is_refused_by_the_process(cli: Cli, tmp_path: Path) -> None:
    """The process is started as a user starts it, and prints nothing but the line."""
    done = cli("algorithm.etaa=3")
    refused(Said(done.returncode, done.stdout, done.stderr), "did you mean eta?")
    assert "tuning" not in done.stderr
    assert "_target_" not in done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_bad_run_of_a_sweep_does_not_stop_the_others(main: Main, tmp_path: Path) -> None:  # noqa: F811
    done = main("-m", *QUICK, "seed=0,x,1")
    assert done.code == 1
    assert "seed=x" in done.err
    assert "3 runs: 2 done, 1 refused" in done.out
    assert len(list((tmp_path / "runs").rglob("summary.json"))) == 2


def test_a_root_that_is_a_file_or_cannot_be_written_is_refused(main: Main, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "file").write_text("mine")
    refused(main(*QUICK, f"run.root={tmp_path}/file"), "run.root", str(tmp_path / "file"))
    assert (tmp_path / "file").read_text() == "mine"
    if os.geteuid() == 0:  # root may write anywhere but in the kernel's own file system
        closed = Path("/sys")
    else:
        closed = tmp_path / "closed"
        closed.mkdir(mode=0o500)
    refused(main(*QUICK, f"run.root={closed}/runs"), "run.root", "cannot write")


@pytest.mark.data
def test_a_corrupt_data_file_is_refused(main: Main, tmp_path: Path, data_root: Path) -> None:  # noqa: F811
    copy = tmp_path / "data"
    shutil.copytree(data_root, copy)
    labels = copy / "MNIST/raw/train-labels-idx1-ubyte"
    content = bytearray(labels.read_bytes())
    content[1000] ^= 1
    labels.write_bytes(content)
    done = main("task/data=mnist", f"data.root={copy}", "run.threads=1")
    refused(done, f"data.root={copy}", "train-labels", "not the published file")
    assert not (tmp_path / "runs").exists()


def folder(tmp_path: Path, root: str = "runs") -> Path:
    (found,) = (tmp_path / root).rglob("config.yaml")
    return found.parent


def history(run: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    for row in rows:
        del row["seconds"], row["cpu_seconds"], row["digest"]
    return rows


def state(run: Path) -> list[torch.Tensor]:
    return tree_leaves(torch.load(run / "checkpoint.pt", weights_only=True)["leaves"])


def test_a_run_folder_holds_what_its_page_says(cli: Cli, tmp_path: Path) -> None:
    done = cli(*QUICK)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # no progress bar where there is no terminal
    run = folder(tmp_path)
    files = {file.name for file in run.iterdir()}
    expected = {"config.yaml", "environment.json", "history.jsonl", "checkpoint.pt", "summary.json"}
    assert files == expected
    assert all(f"`{file}`" in (ROOT / "docs/run_folder.md").read_text() for file in files)
    assert [row["step"] for row in history(run)] == [0, 2, 4]
    summary = json.loads((run / "summary.json").read_text())
    assert summary["status"] == "done"
    assert summary["last"]["calls/grad_g"] == 4 * 11
    environment = json.loads((run / "environment.json").read_text())
    assert environment["threads"] == 1
    assert {"torch", "hydra-core"} <= set(environment["packages"])


def test_again_is_nothing_to_do_and_force_is_anew(main: Main, tmp_path: Path) -> None:  # noqa: F811
    main(*QUICK)
    run = folder(tmp_path)
    before = {f.name: f.stat().st_mtime_ns for f in run.iterdir()}
    again = main(*QUICK, "run.checkpoint=3", "run.threads=2")  # how, not what: the same run
    assert "nothing to do" in again.out
    assert {f.name: f.stat().st_mtime_ns for f in run.iterdir()} == before
    rows = history(run)
    assert main(*QUICK, "run.force=true").code == 0
    assert (run / "summary.json").stat().st_mtime_ns > before["summary.json"]
    assert history(run) == rows


def test_equal_settings_written_otherwise_are_the_same_run(main: Main, tmp_path: Path) -> None:  # noqa: F811
    main(*QUICK, "algorithm.eta=1", "algorithm.T=2")
    done = main(*QUICK, "algorithm.eta=1.0", "algorithm.T=2", "algorithm.inner_lr=.05")
    assert "nothing to do" in done.out


def test_a_killed_run_goes_on_to_the_same_bits(main: Main, tmp_path: Path) -> None:  # noqa: F811
    """A real process and a real kill, once: that each method goes on exactly is held by
    tests/test_algorithms.py. Batches, and a memory in the state."""
    arguments = (
        "algorithm=aid_cg", "algorithm.batch=32", "algorithm.outer.rule=adam",
        "algorithm.outer_lr=.01", "run.steps=120", "run.every=7", "run.checkpoint=0",
        "run.threads=1", "task.references=false", "task.pretraining.steps=10",
    )  # fmt: skip
    assert main(*arguments, f"run.root={tmp_path}/whole").code == 0
    whole = folder(tmp_path, "whole")

    slow = f"import time, bench.core.loop as r; f = r.advance\n{SLOWED}"
    command = [sys.executable, "-c", slow, *arguments, f"run.root={tmp_path}/killed"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not list((tmp_path / "killed").rglob("checkpoint.pt")):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.01)
    time.sleep(0.3)
    process.send_signal(signal.SIGKILL)
    process.wait()
    killed = folder(tmp_path, "killed")
    assert not (killed / "summary.json").exists()
    done = len(history(killed))
    assert 1 < done < len(history(whole))

    assert main(*arguments, f"run.root={tmp_path}/killed").code == 0
    assert history(killed) == history(whole)
    assert all(torch.equal(a, b) for a, b in zip(state(killed), state(whole), strict=True))


# a step that takes 10 ms longer: there is time to kill it; its result is the same
SLOWED = """
def slowed(*a):
    time.sleep(.01)
    return f(*a)
r.advance = slowed
from bench.main import main
main()
"""


def interrupted(main: Main, tmp_path: Path) -> Path:  # noqa: F811
    """A run folder as a kill leaves it: some rows, a checkpoint, no summary."""
    main(*QUICK)
    run = folder(tmp_path)
    (run / "summary.json").unlink()
    return run


def test_a_damaged_checkpoint_is_refused_and_kept(main: Main, tmp_path: Path) -> None:  # noqa: F811
    run = interrupted(main, tmp_path)
    whole = (run / "checkpoint.pt").read_bytes()
    (run / "checkpoint.pt").write_bytes(whole[: len(whole) // 2])
    before = {f.name: f.read_bytes() for f in run.iterdir()}
    refused(main(*QUICK), "checkpoint.pt cannot be read", "run.force=true")
    assert {f.name: f.read_bytes() for f in run.iterdir()} == before
    assert main(*QUICK, "run.force=true").code == 0


def test_a_checkpoint_of_another_run_is_refused(main: Main, tmp_path: Path) -> None:  # noqa: F811
    run = interrupted(main, tmp_path)
    content = torch.load(run / "checkpoint.pt", weights_only=True)
    torch.save(content | {"name": "another"}, run / "checkpoint.pt")
    refused(main(*QUICK), "not of this run")


def test_a_history_cut_short_is_mended(main: Main, tmp_path: Path) -> None:  # noqa: F811
    """The checkpoint is of the last step: rows are whole again or were never lost."""
    run = interrupted(main, tmp_path)
    content = torch.load(run / "checkpoint.pt", weights_only=True)
    rows = history(run)
    with (run / "history.jsonl").open("a") as file:
        file.write('{"step": 6, "sec')
    assert content["step"] == 4
    assert main(*QUICK).code == 0
    assert history(run) == rows


def test_other_packages_or_threads_are_noted_on_going_on(main: Main, tmp_path: Path) -> None:  # noqa: F811
    run = interrupted(main, tmp_path)
    environment = json.loads((run / "environment.json").read_text())
    environment["packages"]["torch"] = "1.0"
    environment["c_compiler"] = False
    (run / "environment.json").write_text(json.dumps(environment))
    done = main(*QUICK, "run.threads=2")
    assert "goes on under another c_compiler, packages; noted" in done.err
    (note,) = json.loads((run / "environment.json").read_text())["continued"]
    assert note["changed"]["packages"][0]["torch"] == "1.0"
    assert note["changed"]["c_compiler"] == [False, True]
    assert "threads" not in note["changed"]  # it went on with the recorded number


def test_what_an_older_run_did_not_note_has_not_changed(main: Main, tmp_path: Path) -> None:  # noqa: F811
    run = interrupted(main, tmp_path)
    environment = json.loads((run / "environment.json").read_text())
    del environment["c_compiler"]
    (run / "environment.json").write_text(json.dumps(environment))
    assert "goes on under another" not in main(*QUICK).err


def test_a_run_from_when_fewer_packages_were_noted_goes_on_without_a_word(
    main: Main,  # noqa: F811
    tmp_path: Path,
) -> None:
    run = interrupted(main, tmp_path)
    environment = json.loads((run / "environment.json").read_text())
    for package in ("scipy", "optuna", "learn2learn"):
        environment["packages"].pop(package, None)
    (run / "environment.json").write_text(json.dumps(environment))
    done = main(*QUICK)
    assert (done.code, done.err) == (0, "")
    (note,) = json.loads((run / "environment.json").read_text())["continued"]
    assert note["changed"] == {}


def test_a_diverging_run_says_so(main: Main, tmp_path: Path) -> None:  # noqa: F811
    arguments = (
        "task=quadratic",
        "algorithm=itd",
        "algorithm.outer_lr=1e30",
        "run.steps=40",
        "run.threads=1",
    )
    done = main(*arguments)
    assert done.code == 1
    summary = json.loads((folder(tmp_path) / "summary.json").read_text())
    assert summary["status"] == "diverged"
    assert re.search(r"not finite at step \d+", done.out)
    assert main(*arguments).code == 1  # told again, not tried again


@pytest.mark.parametrize("clock", ["seconds", "cpu_seconds"])
def test_a_time_budget_ends_a_run(main: Main, tmp_path: Path, clock: str) -> None:  # noqa: F811
    main(
        "task=toy_coreset",
        "run.steps=1000000",
        "run.every=100",
        "run.threads=1",
        f"run.{clock}=0.3",
    )
    last = json.loads((folder(tmp_path) / "summary.json").read_text())["last"]
    assert 0.3 <= last[clock] < 5
    assert last["step"] < 1_000_000


def test_a_run_ends_where_its_target_is_reached(main: Main, tmp_path: Path) -> None:  # noqa: F811
    """The run ends at the first measurement at or below its target; killed after that row, it
    does not go on."""
    command = (
        "task=quadratic", "algorithm=itd", "algorithm.inner_lr=0.5", "run.steps=100000",
        "run.every=2", "run.until=hypergradient_norm", "run.target=0.5", "run.checkpoint=0",
        "run.threads=1",
    )  # fmt: skip
    done = main(*command)
    assert done.code == 0, done.err
    (found,) = (tmp_path / "runs").rglob("summary.json")
    rows = [json.loads(line) for line in (found.parent / "history.jsonl").read_text().splitlines()]
    assert rows[-1]["hypergradient_norm"] <= 0.5 < rows[-2]["hypergradient_norm"]
    found.unlink()
    again = main(*command)
    assert again.code == 0, again.err
    assert json.loads(found.read_text())["last"]["step"] == rows[-1]["step"]
    other = main(*command, "run.target=0.25")
    assert other.code == 0
    assert len(list((tmp_path / "runs").rglob("summary.json"))) == 2


def test_help_imports_nothing_heavy() -> None:
    """What makes --help quick; the time itself is not asserted."""
    code = (
        "import sys; sys.argv = ['bench', '--help']\n"
        "import bench.main\n"
        "try: bench.main.main()\n"
        "except SystemExit as e: assert not e.code\n"
        "assert not {'torch', 'wandb', 'sklearn', 'rich', 'pydantic'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "hyper_cleaning" in done.stdout
    assert "bome" in done.stdout


NO_CHOICES = ("descent:", "league", "paper", "tuned")


def test_help_has_settings_first_and_what_people_choose(main: Main) -> None:  # noqa: F811
    """Specs of `reproduce`, rules of the league and the settings of pairs are nobody's choice, and
    the space that the league searches is no setting."""
    shown = main("--help").out
    assert "tuning:" not in shown
    assert "  batch: null\nlogger:" in shown
    assert shown.index("run:\n  steps: 500") < shown.index("Choices, written as group=choice")
    assert "\nalgorithm: af2obo, aid_bio," in shown
    assert "\nlogger: local, wandb\n" in shown
    assert "hydra/sweeper: bench, optuna" in shown
    assert not [line for line in shown.splitlines() if line.startswith(NO_CHOICES)]
    _, choices = shown.split("Choices, written")
    assert max(map(len, choices.splitlines())) <= 80


def records_as_sent(run: Path, tmp_path: Path) -> list[dict[str, Any]]:
    """What W&B has written of a run: the records of all its parts, in order, read by wandb's own
    reader."""
    found = []
    for file in sorted((run / "wandb").glob("*run-*/*.wandb")):
        reader = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(file)]
        printed = subprocess.run(reader, capture_output=True, text=True, check=True, cwd=tmp_path)
        found += [json.loads(line) for line in printed.stdout.splitlines()]
    return found


def check_mirror(run: Path, records: list[dict[str, Any]]) -> None:
    """Hold the rows that would be sent against the run's own."""
    rows = [record["history"] for record in records if record["type"] == "history"]
    for mine, theirs in zip(history(run), rows, strict=True):
        assert int(theirs["step"]["num"]) == mine["step"]
        for key, value in mine.items():
            found: Any = theirs["item"]
            for part in key.split("/") if key not in found else [key]:
                found = found[part]
            assert found == value


def test_wandb_offline_mirrors_the_history(cli: Cli, tmp_path: Path) -> None:
    done = cli(*QUICK, "logger=wandb", WANDB_API_KEY="")
    assert done.returncode == 0, done.stderr
    run = folder(tmp_path)
    assert f"its files are in {run}/wandb; WANDB_API_KEY=" in done.stderr
    records = records_as_sent(run, tmp_path)
    (about,) = (record["run"] for record in records if record["type"] == "run")
    assert (about["run_id"], about["run_group"], about["job_type"]) == (
        run.name, "toy_minimax", "bome",
    )  # fmt: skip
    check_mirror(run, records)


def test_a_killed_run_goes_on_and_wandb_has_every_row(cli: Cli, tmp_path: Path) -> None:
    """W&B's own process loses the last rows of one that is killed; ours has them."""
    command = (
        *QUICK, "logger=wandb", "run.steps=6000", "run.every=30", "run.checkpoint=0",
    )  # fmt: skip
    environment = os.environ | {"BENCH_RUNS": str(tmp_path / "runs"), "WANDB_API_KEY": ""}
    process = subprocess.Popen(
        [sys.executable, "-m", "bench", *command], env=environment, cwd=ROOT,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    until = time.monotonic() + 120
    while time.monotonic() < until and process.poll() is None:
        files = list((tmp_path / "runs").rglob("history.jsonl"))
        if files and files[0].read_bytes().count(b"\n") > 20:
            break
        time.sleep(0.01)
    process.kill()
    process.wait()
    run = folder(tmp_path)
    assert not (run / "summary.json").exists()
    done = cli(*command, WANDB_API_KEY="")
    assert done.returncode == 0, done.stderr
    records = records_as_sent(run, tmp_path)
    assert len(history(run)) == 201
    check_mirror(run, records)
    ends = [r["summary"]["update"] for r in records if r["type"] == "summary"]
    (end,) = (update for update in ends if "status" in update)
    assert end["status"] == "done"
    assert end["best/distance"] == min(row["distance"] for row in history(run))


def test_lanes_have_each_their_own_wandb_run(cli: Cli, tmp_path: Path) -> None:
    """Their loggers are open at the same time, and W&B gives the open run again if it may."""
    done = cli(
        "-m", *QUICK, "algorithm=optimistic_gd", "algorithm.outer_lr=.1,.2,.3",
        "vectorize=[algorithm.outer_lr]", "hydra/launcher=here", "logger=wandb", WANDB_API_KEY="",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "W&B: " not in done.stderr  # no row was refused
    runs = [file.parent for file in (tmp_path / "runs").rglob("summary.json")]
    assert len(runs) == 3
    for run in runs:
        about = json.loads((run / "environment.json").read_text())
        assert len(about["lanes"]) == 3
        records = records_as_sent(run, tmp_path)
        assert {r["run"]["run_id"] for r in records if r["type"] == "run"} == {run.name}
        check_mirror(run, records)


def test_a_host_that_does_not_answer_is_not_waited_for() -> None:
    begin = time.monotonic()
    assert not answers("https://192.0.2.1", within=0.5)  # TEST-NET: answers never
    assert not answers("http://127.0.0.1:9", within=0.5)  # nothing listens there
    assert time.monotonic() - begin < 5
