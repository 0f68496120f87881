"""From a configuration to a run: what is chosen, refused, shown again, saved and in which order."""

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from hydra import compose, initialize_config_module

import bench.core.loop
from bench import main
from bench.compiled.symbols import NoGraph
from bench.core.algorithm import Algorithm
from bench.core.loop import Standing, first
from bench.core.settings import BadSetting, reason_of
from bench.core.task import Context, Ledger, Report, Task
from bench.core.view import Heatmap, Histogram
from bench.numerics.sets import box
from bench.runs import (
    driver,
    exit_codes,
    history,
    lanes,
    launch,
    machine,
    opening,
    recording,
    stop,
)
from bench.runs.files import read_json, write_json
from bench.runs.folder import FILES, RunFolder
from bench.runs.history import History, read_rows
from bench.runs.launch import perform, place
from bench.runs.loggers import Logger
from bench.runs.name import name
from bench.runs.opening import OpenRun
from bench.runs.recording import Recording, Turns
from bench.sweeps import launchers, slurm
from bench.sweeps.jobs import Job
from tests.steps import problem as at

Config = dict[str, Any]


@pytest.fixture(scope="module")
def composed() -> Config:
    settings = ("task=toy_minimax", "run.steps=7", "run.every=3", "run.threads=1")
    with initialize_config_module("conf", version_base="1.3"):
        return launch.resolve(compose("config", list(settings)))


@pytest.fixture
def config(composed: Config, tmp_path: Path) -> Config:
    run = {**composed["run"], "root": str(tmp_path / "runs"), "checkpoint": 0.0}
    return {**composed, "run": run}


def test_a_negative_seed_is_refused() -> None:
    """A run's files with such a seed would be damaged ones."""
    with initialize_config_module("conf", version_base="1.3"):
        cfg = compose("config", ["task=toy_minimax", "seed=-1"])
    with pytest.raises(BadSetting, match=r"^seed=-1: input should be greater than or equal to 0$"):
        launch.resolve(cfg)


def folder(config: Config) -> RunFolder:
    made = place(config)
    made.path.mkdir(parents=True, exist_ok=True)
    return made


LAST = {"step": 1, "seconds": 1.0, "distance": 2.0}


def ended(config: Config, status: str) -> None:
    write_json(
        folder(config).path / "summary.json",
        {
            "status": status, "reason": "x", "last": LAST, "name": "a/b/c", "references": {},
            "metric": "distance", "peak_memory_mb": {"process": 1.0},
        },
    )  # fmt: skip


@pytest.mark.parametrize(
    ("status", "settings", "code"),
    [
        ("done", {}, 0),
        ("done", {"retry_failed": True}, 0),
        ("diverged", {}, 1),
        ("diverged", {"retry_failed": True}, None),
        ("done", {"force": True}, None),
        ("diverged", {"force": True}, None),
    ],
)
def test_a_run_that_has_ended_is_shown_again(
    status: str, settings: Config, code: int | None, config: Config, capsys: Any
) -> None:
    ended(config, status)
    config["run"] |= settings
    again = launch.earlier_end(config, folder(config))
    if code is None:
        assert again is None
        return
    assert again is not None
    assert again(True) == code
    assert capsys.readouterr().out == ""
    assert again(False) == code
    words = "is finished (run.force=true" if status == "done" else "diverged (run.retry_failed=true"
    assert f"nothing to do: this run {words}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("status", "settings", "goes_on"),
    [
        ("failed", {}, False),
        ("failed", {"retry_failed": True}, True),
        ("failed", {"force": True}, True),
        ("preempted", {}, True),
        (None, {}, True),
    ],
)
def test_a_run_that_failed_is_told_again(
    status: str | None, settings: Config, goes_on: bool, config: Config, capsys: Any
) -> None:
    if status:
        folder(config).leave(status, "bad luck", step=3)
        noted = read_json(folder(config).path / "status.json")
        assert (noted["status"], noted["reason"], noted["step"]) == (status, "bad luck", 3)
    config["run"] |= settings
    again = launch.earlier_end(config, folder(config))
    assert (again is None) == goes_on
    if again is not None:
        assert again(True) == again(False) == exit_codes.FAILED
        assert "failed: bad luck; run.retry_failed=true tries it again" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["", "{", "[]", '{"status": "failed"}', '{"reason": "x"}'])
def test_a_status_that_cannot_be_read_is_none(content: str, tmp_path: Path) -> None:
    run = RunFolder(tmp_path, "t/a/k")
    run.path.mkdir(parents=True)
    assert run.status_note() == {}
    (run.path / "status.json").write_text(content)
    assert run.status_note() == {}
    (run.path / "status.json").write_text('{"status": "a", "reason": "b"}')
    assert run.status_note() == {"status": "a", "reason": "b"}


def test_reasons_are_lines() -> None:
    assert reason_of(ValueError("two\n lines")) == "ValueError: two lines"
    assert reason_of(ValueError()) == "ValueError"
    assert recording.exit_code({"status": "done"}) == 0
    assert recording.exit_code({"status": "diverged"}) == 1


@pytest.mark.parametrize(
    "linked",
    [
        "", ".", "..", "checkpoint.pt", "lock", "history.jsonl.new", "config.yaml.new",
        "status.json.new", "checkpoint.pt.new", "wandb", ".wandb",
    ],
)  # fmt: skip
def test_nothing_is_written_through_a_link(linked: str, config: Config, tmp_path: Path) -> None:
    where = place(config).path
    folders = {"": where, ".": where.parent, "..": where.parent.parent}
    link = folders.get(linked, where / linked)
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path)
    with pytest.raises(BadSetting, match=rf"run\.root: {link} is a link"):
        place(config)


def test_a_root_may_be_a_link_but_not_nonsense(config: Config, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "real")
    found = place(config)
    assert (found.name, found.path) == (name(config), tmp_path / "runs" / name(config))
    config["run"]["root"] = "~nobody-of-this-name/runs"
    with pytest.raises(BadSetting, match=r"run\.root='~nobody-of-this-name/runs': .*another place"):
        place(config)


@pytest.mark.parametrize(
    ("wanted", "there", "expected"),
    [
        ("cpu", True, "cpu"), ("cpu", False, "cpu"), ("auto", True, "cuda"),
        ("auto", False, "cpu"), ("cuda", True, "cuda"), ("cuda", False, None),
    ],
)  # fmt: skip
def test_the_device(
    wanted: str, there: bool, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    if expected is None:
        with pytest.raises(BadSetting, match=r"run\.device=cuda: torch \(.*\) finds no CUDA"):
            machine.choose_device(wanted)
    else:
        assert machine.choose_device(wanted).type == expected


def test_a_run_goes_on_as_it_was_begun(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on with its number of threads, on its device, with its way of taking steps, and
    with its data."""
    settled: list[Any] = []
    monkeypatch.setattr(machine, "settle", lambda device, threads: settled.append(threads))
    config["run"]["device"] = "cpu"
    run = folder(config)
    opening.settle_process(config, run, {})
    opening.settle_process(config, run, {"device": "cpu", "threads": 5})
    assert settled == [1, 5]
    with pytest.raises(BadSetting, match=r"run\.device=cpu: .* was begun on cuda: write"):
        opening.settle_process(config, run, {"device": "cuda", "threads": 5})
    assert opening.earlier_environment(config, run) == {}
    old = {"device": "cpu", "threads": 5, "data": {}}
    write_json(run.path / "environment.json", old)
    assert opening.earlier_environment(config, run) == {}  # without a checkpoint it starts
    run.checkpoint.touch()
    assert opening.earlier_environment(config, run) == old
    config["run"]["force"] = True
    assert opening.earlier_environment(config, run) == {}


F = RunFolder(Path("r"), "t/a/f")


def test_other_data_are_refused() -> None:
    task = replace(at.problem(), report=Report(sources={"a": "1" * 64, "b": "2" * 64}))
    opening.check_data(F, {"data": {}}, task)
    opening.check_data(F, {"data": {"a": "1" * 64}}, task)
    with pytest.raises(BadSetting, match=r"b has changed since r/t/a/f .* 3{12}\.\.\., now 2222"):
        opening.check_data(F, {"data": {"a": "1" * 64, "b": "3" * 64}}, task)
    with pytest.raises(BadSetting, match=r"c has changed .*now None"):
        opening.check_data(F, {"data": {"c": "3" * 64}}, task)


class Pair(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


def test_a_goal_is_a_metric_and_a_value() -> None:
    task = at.problem()
    algorithm = driver.Algorithm(Pair, print)  # type: ignore[arg-type]
    start = first(task, algorithm, 0)
    goal = partial(opening.goal, name="own")
    assert goal({"until": None, "target": None}, task, start) is None
    assert goal({"until": "loss", "target": 0.5}, task, start) == ("loss", 0.5)
    for half in ({"until": "loss", "target": None}, {"until": None, "target": 0.5}):
        with pytest.raises(BadSetting, match="write both, or neither"):
            goal(half, task, start)
    with pytest.raises(BadSetting, match=r"run\.until=los: no such setting; did you mean loss"):
        goal({"until": "los", "target": 0.5}, task, start)


def test_a_start_outside_of_its_set_is_refused(config: Config, tmp_path: Path) -> None:
    def moved(node: Any, context: Context) -> Task:
        return replace(opening.build(node, context), feasible=box(5.0, 6.0))

    folder = RunFolder(tmp_path, "t/a/0123456789")
    opening.open_run(config, folder)
    with pytest.raises(BadSetting, match=r"^task: x starts outside of its set"):
        opening.open_run(config, folder, moved)


def test_a_context_is_of_the_run(config: Config) -> None:
    config["run"]["dtype"], config["seed"] = "float64", 4
    config["data"] = {"root": "~/x", "download": True}
    expected = Context(4, torch.device("cpu"), torch.float64, Path("~/x").expanduser(), True)
    assert opening.context_of(config, torch.device("cpu")) == expected


def test_what_is_too_large_is_refused(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    for error, refused in (
        (MemoryError("much"), True),
        (RuntimeError("out of memory"), True),
        (RuntimeError("an overflow"), True),
        (RuntimeError("something else"), False),
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (torch.AcceleratorError("an illegal memory access"), False),
    ):

        def build(*arguments: Any, error: Exception = error) -> Any:
            raise error

        monkeypatch.setattr(opening, "build", build)
        with pytest.raises(BadSetting if refused else RuntimeError, match=str(error)):
            opening.build_run(config, F, torch.device("cpu"), {})


def test_a_gpu_that_others_fill_is_no_setting(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its memory may be there when the run is made again."""

    def build(*arguments: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    config["run"]["compile"] = False
    monkeypatch.setattr(opening, "build", build)
    with pytest.raises(torch.OutOfMemoryError):
        opening.build_run(config, F, torch.device("cuda"), {})


def test_making_a_folder_ready(config: Config) -> None:
    """What says that a run ended goes, and what a kill left half written; the rest if it starts
    again."""
    half = {f"{file}.new" for file in FILES}
    run = folder(config)
    for file in {*FILES, *half, "mine"}:
        (run.path / file).touch()
    (run.path / "wandb").mkdir()
    run.prepare(config, -1)
    assert {p.name for p in run.path.iterdir()} == {*FILES[2:], "mine", "wandb"}
    assert run.config()["run"] == config["run"]
    config["run"]["force"] = True
    run.prepare(config, -1)
    assert {p.name for p in run.path.iterdir()} == {"config.yaml", "mine"}


def test_the_summary_goes_before_the_rows_that_it_speaks_of(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a run that is tried again: a kill between the two leaves no summary of fewer rows."""
    run = folder(config)
    with closing(run.rows()) as rows:
        for step in (0, 2, 4):
            rows.add({"step": step})
    run.end({"status": "diverged", "reason": "x", "last": {"step": 4}}, None)
    config["run"]["every"] = 2
    before = (run.path / "history.jsonl").read_bytes()

    def killed(path: Path, missing_ok: bool) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", killed)
        with pytest.raises(KeyboardInterrupt):
            run.prepare(config, 2)
    assert (run.path / "history.jsonl").read_bytes() == before
    run.prepare(config, 2)
    assert run.summary() is None
    assert [row["step"] for row in run.history()] == [0, 2]


@pytest.mark.parametrize("force", [False, True])
def test_links_in_a_strangers_folder_are_not_followed(
    force: bool, config: Config, tmp_path: Path
) -> None:
    """Who has the folder otherwise than by `place`, which refuses them, leaves their ends whole."""
    run = folder(config)
    mine = {tmp_path / f"my {file}" for file in FILES}
    for file in mine:
        file.write_text("mine")
        (run.path / f"{file.name.removeprefix('my ')}.new").symlink_to(file)
    (tmp_path / "sent").mkdir()
    (tmp_path / "sent" / "a").touch()
    (run.path / "wandb").symlink_to(tmp_path / "sent")
    config["run"]["force"] = force
    run.prepare(config, -1)
    run.describe({"threads": 1})
    run.leave("failed", "x")
    run.end({"status": "done", "reason": None, "last": {}}, {"kind": "heatmap"})
    run.move_to(RunFolder(run.root, "t/a/other"), config)
    assert {file.read_text() for file in mine} == {"mine"}
    assert (tmp_path / "sent" / "a").exists()


def test_what_changed_is_added_to_the_first_environment(capsys: Any) -> None:
    old = {"a": 1, "b": 2, "continued": [{"step": 3, "changed": {}}]}
    found = driver.continue_environment(F, old, {"a": 1, "b": 5, "c": 6}, 9)
    assert found == {
        "a": 1, "b": 2,
        "continued": [
            {"step": 3, "changed": {}}, {"step": 9, "changed": {"b": [2, 5], "c": [None, 6]}},
        ],
    }  # fmt: skip
    assert "r/t/a/f goes on under another b, c; noted there" in capsys.readouterr().err
    assert driver.continue_environment(F, {"a": 1}, {"a": 1}, 2) == {
        "a": 1, "continued": [{"step": 2, "changed": {}}],
    }  # fmt: skip
    assert capsys.readouterr().err == ""


def test_a_run_that_goes_on_with_other_code_names_the_files(capsys: Any) -> None:
    before = {"source": {"files": {"a/mine.py": "1", "a/b.py": "2"}}}
    after = {"source": {"files": {"a/mine.py": "3", "a/b.py": "2"}}}
    driver.continue_environment(F, before, after, 9)
    said = capsys.readouterr().err.splitlines()[1]
    assert said == (
        "bench: r/t/a/f: its steps up to 9 are of other code, as these have changed since: "
        "a/mine.py; run.force=true makes them anew"
    )
    driver.continue_environment(F, {"source": None}, after, 9)
    assert "other code" not in capsys.readouterr().err


def opened(config: Config, **changed: Any) -> OpenRun:
    run = folder(config)
    return opening.build_run(config, run, torch.device("cpu"), {})._replace(**changed)


@pytest.mark.parametrize(
    ("wait", "saved_after", "step", "saves"),
    [
        (0.0, 0.0, 3, True),  # at a measurement
        (0.0, 0.0, 7, True),  # at the end
        (0.0, 99.0, 4, False),
        (10.0, 9.9, 3, False),
        (10.0, 10.0, 4, True),
        (10.0, 9.9, 7, False),
    ],
)
def test_when_a_checkpoint_is_made(
    wait: float, saved_after: float, step: int, saves: bool, config: Config, monkeypatch: Any
) -> None:
    config["run"]["checkpoint"] = wait
    run = opened(config)
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    recording = Recording(run, shown=False)
    recording.history.add({"step": 0})
    now[0] += saved_after
    recording.note_standing(run.start._replace(step=step))
    assert run.folder.has_checkpoint() == saves
    assert recording.standing is not None
    assert recording.standing.step == step
    assert recording.turns.saved == (now[0] if saves else 1000.0)
    recording.history.close()


def test_runs_side_by_side_are_saved_at_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it takes to save each of them."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    turns, due = Turns(10.0), []
    for step in (1, 2, 3):
        now[0] += 9.9 if step == 1 else 0.05
        for _ in range(3):
            due.append(turns.is_due(step))
            if due[-1]:
                now[0] += 4.0
                turns.saved = now[0]
            else:
                now[0] += 0.04
    assert due == [False] * 3 + [True] * 3 + [False] * 3


@pytest.mark.parametrize("force", [False, True])
def test_a_run_that_stops_says_how_it_goes_on(
    force: bool, config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    config["run"]["force"] = force  # the same command would start again
    recording = Recording(opened(config), shown=False)
    recording.leave("preempted", "stopped by SIGTERM", 75)
    how = " without run.force=true" if force else ""
    said = f"bench: stopped by SIGTERM at step 0; the same command{how} goes on\n"
    assert capsys.readouterr().err == said
    recording.history.close()


def test_what_is_lost_is_not_saved(config: Config) -> None:
    run = opened(config)
    recording = Recording(run, shown=False)
    for x, y in ((float("nan"), 1.0), (1.0, float("inf"))):
        s = run.start._replace(state=SimpleNamespace(x=torch.tensor([x]), y=torch.tensor([y])))
        recording.save(s)
        assert not run.folder.has_checkpoint()
    recording.save(None)
    assert not run.folder.has_checkpoint()
    recording.save(run.start)
    assert run.folder.has_checkpoint()
    recording.history.close()


def test_rows_last_before_the_checkpoint_that_counts_on_them(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut at any moment leaves rows for every checkpoint; and what says that the run has
    ended comes last."""
    said: list[Any] = []
    sync, rename = os.fsync, os.replace

    def synced(number: int) -> None:
        said.append(Path(os.readlink(f"/proc/self/fd/{number}")).name)
        sync(number)

    def renamed(source: Any, target: Any) -> None:
        name, rows = Path(target).name, None
        if name == "checkpoint.pt":
            rows = len(place(config).history())
        said.append((name, rows))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    assert perform(config, quiet=True) == 0
    saving, run = ["history.jsonl", "checkpoint.pt.new"], place(config).path.name
    expected: list[Any] = []
    for file in ("history.jsonl", "config.yaml", "environment.json"):
        expected += [f"{file}.new", (file, None), run]
    for rows in (2, 3, 4, 4):  # at steps 3, 6 and 7, and once more at the end
        expected += [*saving, ("checkpoint.pt", rows), run]
    expected += ["summary.json.new", ("summary.json", None), run]
    assert said == expected


def test_a_history_writes_whole_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the system takes a part at a time."""
    history = History(tmp_path / "h")
    real = history.file
    history.file = SimpleNamespace(  # type: ignore[assignment]
        write=lambda part: real.write(bytes(part[:3])), close=real.close, fileno=real.fileno
    )
    history.add({"step": 1, "loss": 0.25})
    history.add({"step": 2})
    history.close()
    assert read_rows(tmp_path / "h") == [{"step": 1, "loss": 0.25}, {"step": 2}]
    again = History(tmp_path / "h")
    again.add({"step": 3})
    again.close()
    assert [row["step"] for row in read_rows(tmp_path / "h")] == [1, 2, 3]


def test_the_picture_of_an_end() -> None:
    bars = Histogram("t", "l", 0, 1, {}, {})
    s: Any = SimpleNamespace(state=SimpleNamespace(x=1, y=2), step=3, table=None)
    task = replace(at.problem(), report=Report(view=lambda x, y, step: (bars, x, y, step)))  # type: ignore
    assert recording.view(at.problem(), s) is None
    assert recording.view(task, s) == (bars, 1, 2, 3)
    table = torch.eye(2)
    heat = Heatmap("t", "x", "y", 0, 1, [])
    ledger = Ledger(table, 1, lambda *a: table, lambda t: {}, lambda t: heat)
    s.table = table
    assert recording.view(replace(task, ledger=ledger), s) is heat
    assert recording.view(task, s) == (bars, 1, 2, 3)


def test_a_run_is_signalled_to_stop_but_not_after_its_last_step(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal that comes in the last step finds the run done."""
    original = bench.core.loop.advance

    def advance(task: Task, algorithm: Any, seed: int, s: Standing) -> Standing:
        s = original(task, algorithm, seed, s)
        if s.step == 7:
            stop._asked.append(15)
        return s

    monkeypatch.setattr(bench.core.loop, "advance", advance)
    assert perform(config, quiet=True) == 0


def test_loggers_hear_of_rows_and_of_the_end(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[Any] = []
    plain = recording.build

    def build(node: Config, *given: Any) -> Any:
        if "loggers" in node["_target_"]:
            heard.append(given[0])
            return Logger(lambda row: heard.append(row["step"]), lambda code: heard.append(-code))
        return plain(node, *given)

    monkeypatch.setattr(recording, "build", build)
    assert perform(config, quiet=True) == 0
    run = place(config)
    about, *rest = heard
    assert about[:3] == (run.name, config, run.path)
    assert (about.metric, about.rows, about.alone) == ("distance", (), False)
    assert about.environment["threads"] == 1
    assert rest == [0, 3, 6, 7, 0]


def test_a_run_of_any_number_of_rows_goes_on(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped between rows, and before its summary: its rows are never there all at once."""
    original, plain, heard = bench.core.loop.advance, recording.build, list[list[int]]()

    def advance(task: Task, algorithm: Any, seed: int, s: Standing) -> Standing:
        if s.step == 5:
            raise KeyboardInterrupt
        return original(task, algorithm, seed, s)

    def build(node: Config, *given: Any) -> Any:
        if "loggers" in node["_target_"]:
            heard.append([row["step"] for row in given[0].rows])
        return plain(node, *given)

    monkeypatch.setattr(recording, "build", build)
    monkeypatch.setattr(bench.core.loop, "advance", advance)
    with pytest.raises(KeyboardInterrupt):
        perform(config, quiet=True)
    monkeypatch.setattr(bench.core.loop, "advance", original)
    monkeypatch.setattr(history, "MOST_ROWS", 1)
    assert perform(config, quiet=True) == 0
    last = read_json(place(config).path / "summary.json")["last"]
    (place(config).path / "summary.json").unlink()
    assert perform(config, quiet=True) == 0
    assert read_json(place(config).path / "summary.json")["last"] == last
    assert last["step"] == 7
    assert heard == [[], [0, 3], [0, 3, 6, 7]]


# launchers, with jobs that only say what was done with them


@pytest.fixture
def three(tmp_path: Path) -> list[Job]:
    return [Job({"k": k}, RunFolder(tmp_path, f"t/a/{k}"), tmp_path / f"{k}.json")
            for k in range(3)]  # fmt: skip


def test_here_runs_go_one_after_the_other(
    three: list[Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[int] = []

    def one(job: Job) -> None:
        done.append(job.config["k"])
        if job.config["k"] == 1:
            monkeypatch.setattr(stop, "_asked", [15])

    monkeypatch.setattr(launchers, "make_job", one)
    launcher = launchers.here()
    assert launcher.workers == 1
    over: list[Job] = []
    with pytest.raises(stop.Preempted):
        launcher.launch(three, tmp_path, over.append)
    assert done == [job.config["k"] for job in over] == [0, 1]


class Watcher:
    """A stand-in for submitit's watcher: until it is told to ask, every job is a running one."""

    def __init__(self) -> None:
        self.states: dict[str, str] = {}
        self.told: dict[str, str] = {}
        self.asked = 0

    def get_state(self, job_id: str, mode: str = "standard") -> str:
        if mode == "force":
            self.told, self.asked = dict(self.states), self.asked + 1
        return self.told.get(job_id, "RUNNING")


class Executor:
    """A stand-in for submitit's executor: each job ends at once in the state that is planned for
    its task."""

    def __init__(self, states: dict[int, list[str]], says: Callable[[Job, str], None]):
        self.states, self.says = states, says
        self.settings: Config = {}
        self.packs: list[list[list[int]]] = []
        self.watcher = Watcher()

    def update_parameters(self, **settings: Any) -> None:
        self.settings = settings

    def map_array(self, call: Any, packs: Any) -> list[Any]:
        self.packs.append([[job.config["k"] for job in pack] for pack in packs])
        found = []
        for number, pack in enumerate(packs):
            state = self.states[pack[0].config["k"]].pop(0)
            for job in pack:
                self.says(job, state)
            self.watcher.states[f"7_{number}"] = state
            found.append(
                SimpleNamespace(watcher=self.watcher, job_id=f"7_{number}", done=lambda: True)
            )
        return found


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    """slurm(...) with jobs that end in these states; a job that is COMPLETED has said so."""

    def made(states: dict[int, list[str]], **settings: Any) -> tuple[launchers.Launcher, Executor]:
        def says(job: Job, state: str) -> None:
            job.note.write_text("{}" if state == "COMPLETED" else "")

        executor = Executor(states, says)

        def given(folder: Path, requeues: int) -> Executor:
            assert folder == tmp_path / "slurm"
            assert requeues == settings.get("requeues", 100)
            return executor

        monkeypatch.setattr(launchers, "slurm_executor", given)
        monkeypatch.setattr(slurm.Submitted, "has_ended", lambda self: self.job.done())
        monkeypatch.setattr(slurm, "WAITS", (0.0,))
        monkeypatch.setattr(
            launchers, "is_lost", lambda job: job.has_begun and job.note.stat().st_size == 0
        )
        monkeypatch.setattr(launchers, "is_preempted", lambda job: False)
        return launchers.slurm(**settings), executor

    return made


def test_slurm_is_asked_for_what_is_set(
    cluster: Callable[..., Any], three: list[Job], tmp_path: Path
) -> None:
    done = {k: ["COMPLETED"] for k in range(3)}
    launcher, executor = cluster(
        done, partition="p", minutes=5, signal=6, at_once=7, runs_per_job=2, cpus=8, gpus=1,
        memory_gb=1.5, options={"qos": "q"},
    )  # fmt: skip
    over: list[Job] = []
    launcher.launch(three, tmp_path, over.append)
    assert over == three
    assert launcher.workers == 1
    assert executor.packs == [[[0, 1], [2]]]
    assert executor.settings == {
        "job_name": "bench", "time": 5, "signal_delay_s": 6, "array_parallelism": 7,
        "cpus_per_task": 8, "additional_parameters": {"qos": "q"}, "partition": "p",
        "gpus_per_node": 1, "mem": "1536M",
    }  # fmt: skip
    launcher, executor = cluster({k: ["COMPLETED"] for k in range(3)})
    launcher.launch(three, tmp_path, over.append)
    assert executor.packs == [[[0], [1], [2]]]
    assert executor.settings == {
        "job_name": "bench", "time": 240, "signal_delay_s": 120, "array_parallelism": 64,
        "cpus_per_task": 2, "additional_parameters": {},
    }  # fmt: skip


def test_what_slurm_loses_is_begun_again_but_not_for_ever(
    cluster: Callable[..., Any], three: list[Job], tmp_path: Path
) -> None:
    """A job that fails three times is left; one that the machine or the clock ended is not; one
    that was cancelled or had too little memory is not begun again."""
    states = {
        0: ["FAILED"] * 3,
        1: ["NODE_FAIL", "TIMEOUT", "PREEMPTED", "NODE_FAIL", "COMPLETED"],
        2: ["OUT_OF_MEMORY"],
    }
    launcher, executor = cluster(states)
    over: list[Job] = []
    launcher.launch(three, tmp_path, over.append)
    assert [job.config["k"] for job in over] == [2, 0, 1]  # each once, when nothing more is to come
    assert executor.packs == [[[0], [1], [2]], [[0], [1]], [[0], [1]], [[1]], [[1]]]
    said = [job.note.read_text() for job in three]
    assert '"its SLURM job 7_0 ended as FAILED"' in said[0]
    assert said[1] == "{}"
    assert '"its SLURM job 7_2 ended as OUT_OF_MEMORY"' in said[2]
    launcher, executor = cluster({k: ["NODE_FAIL"] * 9 for k in range(3)}, requeues=1)
    launcher.launch(three, tmp_path, over.append)
    assert executor.packs == [[[0], [1], [2]]] * 2
    assert over[3:] == three


def test_a_sweep_whose_jobs_leave_nothing_to_make_asks_for_no_states(
    cluster: Callable[..., Any], three: list[Job], tmp_path: Path
) -> None:
    launcher, executor = cluster({0: ["COMPLETED"], 1: ["COMPLETED"], 2: ["COMPLETED"]})
    launcher.launch(three, tmp_path, lambda job: None)
    assert executor.watcher.asked == 0
    launcher, executor = cluster({k: ["CANCELLED by 7"] for k in range(3)})
    launcher.launch(three, tmp_path, lambda job: None)
    assert executor.watcher.asked == 1  # for all of them


def test_more_jobs_than_an_array_may_have_are_arrays_of_their_own(
    cluster: Callable[..., Any],
    three: list[Job],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One after the other, so that no more run together than are allowed to."""
    monkeypatch.setattr(launchers, "most_of_array", lambda: 2)
    states = {0: ["NODE_FAIL", "COMPLETED"], 1: ["COMPLETED"], 2: ["NODE_FAIL", "COMPLETED"]}
    launcher, executor = cluster(states)
    over: list[Job] = []
    launcher.launch(three, tmp_path, over.append)
    assert executor.packs == [[[0], [1]], [[2]], [[0], [2]]]
    assert [job.config["k"] for job in over] == [1, 0, 2]
    launcher, executor = cluster({k: ["COMPLETED"] for k in range(3)}, runs_per_job=2)
    launcher.launch(three, tmp_path, over.append)
    assert executor.packs == [[[0, 1], [2]]]


Commands = Callable[..., Path]


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    """Puts scripts in the place of SLURM's commands."""

    def made(**scripts: str) -> Path:
        place = tmp_path / "bin"
        place.mkdir(exist_ok=True)
        for command, script in scripts.items():
            (place / command).write_text(f"#!/bin/sh\n{script}\n")
            (place / command).chmod(0o755)
        monkeypatch.setenv("PATH", f"{place}{os.pathsep}/usr/bin{os.pathsep}/bin")
        return place

    return made


ACCOUNTED = """echo "JobID|State|NodeList"
count=$(cat {file} 2>/dev/null || echo 0)
echo $((count + 1)) > {file}
case $count in {cases} esac"""


@pytest.mark.parametrize(
    ("cases", "expected", "asked"),
    [
        ("0) echo '7_0|RUNNING|a'; echo '7_1|RUNNING|a';; "
         "*) echo '7_0|NODE_FAIL|a'; echo '7_1|FAILED|a';;", ["NODE_FAIL", "FAILED"], 2),
        ("[01]) echo '7_0|RUNNING|a'; echo '7_1|COMPLETING|a';; "  # sacct is behind
         "*) echo '7_0|TIMEOUT|a'; echo '7_1|FAILED|a';;", ["TIMEOUT", "FAILED"], 3),
        ("0) echo '7_0|RUNNING|a';;", ["RUNNING", "UNKNOWN"], 4),
    ],
)  # fmt: skip
def test_how_a_job_has_ended_is_asked_anew(
    cases: str,
    expected: list[str],
    asked: int,
    commands: Commands,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """submitit's own watcher asks sacct now and then, at last every ten minutes."""
    submitit = pytest.importorskip("submitit")
    count = tmp_path / "count"
    commands(sacct=ACCOUNTED.format(file=count, cases=cases))
    watcher = type(submitit.SlurmJob.watcher)(delay_s=600)
    monkeypatch.setattr(submitit.SlurmJob, "watcher", watcher)
    monkeypatch.setattr(slurm, "WAITS", (0.01, 0.01, 0.01))
    queue = slurm.Queue()
    jobs = [slurm.Submitted(submitit.SlurmJob(tmp_path, f"7_{k}"), queue) for k in range(2)]
    assert jobs[0].job.state == "RUNNING"
    assert slurm.ends_of(jobs) == expected
    assert int(count.read_text()) == asked
    assert slurm.ends_of([]) == []


def test_how_many_jobs_an_array_may_have(commands: Commands) -> None:
    commands()
    assert slurm.most_of_array() == 1001  # SLURM's default, where there is no scontrol
    shown = "Configuration data\nMaxArraySize            = 51\nMaxArrayTasks           = 9"
    for lines, most in ((shown, 51), ("MaxArraySize = 0", 1), ("no answer", 1001)):
        commands(scontrol=f"echo '{lines}'")
        assert slurm.most_of_array() == most


def test_what_sbatch_refuses_is_one_line(
    commands: Commands, three: list[Job], tmp_path: Path
) -> None:
    pytest.importorskip("submitit")
    why = "sbatch: error: Batch job submission failed: Invalid job array specification"
    commands(sbatch=f"echo '{why}' >&2; exit 1", srun="")
    with pytest.raises(BadSetting, match="sbatch refuses 3 jobs") as told:
        launchers.slurm().launch(three, tmp_path, lambda job: None)
    (line,) = str(told.value).splitlines()
    assert why in line
    assert "runs_per_job" in line


def test_a_pack_of_runs_ends_with_the_code_of_put_off(
    three: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[int] = []

    def one(job: Job) -> None:
        done.append(job.config["k"])
        if job.config["k"] == 1:
            raise stop.Preempted(15)

    monkeypatch.setattr(launchers, "make_job", one)
    pack = launchers.Pack()
    pack(three[:1])
    with pytest.raises(SystemExit) as end:
        pack(three)
    assert (end.value.code, done) == (exit_codes.PUT_OFF, [0, 0, 1])
    submission = pack.checkpoint(three)
    assert (submission.function, submission.args) == (pack, (three,))


def test_as_many_workers_as_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("joblib.cpu_count", lambda: 5)
    assert launchers.joblib().workers == 5
    assert launchers.joblib(3).workers == 3


def test_a_clock_waits_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[Any] = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    machine.clock(torch.device("cpu"))()
    assert waited == []
    begin = time.perf_counter()
    assert begin <= machine.clock(torch.device("cuda"))() <= begin + 60
    assert waited == [torch.device("cuda")]


def test_peak_memory_is_in_megabytes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of this program alone: getrusage also has the peak of the process that started it."""
    usage = SimpleNamespace(ru_maxrss=2048)
    monkeypatch.setattr(machine.resource, "getrusage", lambda who: usage)
    monkeypatch.setattr(machine, "STATUS", tmp_path / "status")
    (tmp_path / "status").write_text("VmPeak:\t 9 kB\nVmHWM:\t    1024 kB\n")
    assert machine.peak_memory_mb(torch.device("cpu")) == {"process": 1.0}
    (tmp_path / "status").unlink()  # as where there is no Linux
    assert machine.peak_memory_mb(torch.device("cpu")) == {"process": 2.0}
    monkeypatch.setattr(machine.sys, "platform", "darwin")  # there getrusage tells bytes
    usage.ru_maxrss = 2 * 2**20
    assert machine.peak_memory_mb(torch.device("cpu")) == {"process": 2.0}
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 3 * 2**20)
    assert machine.peak_memory_mb(torch.device("cuda")) == {"process": 2.0, "gpu": 3.0}


def test_settling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads of torch and numpy, glibc's memory, and determinism on a GPU."""
    said: list[Any] = []
    monkeypatch.setattr(torch, "set_num_threads", lambda n: said.append(("torch", n)))
    monkeypatch.setattr(machine, "threadpool_limits", lambda n: said.append(("numpy", n)))
    monkeypatch.setattr(machine, "keep_freed_memory", lambda: said.append("memory"))
    monkeypatch.setattr(
        torch,
        "use_deterministic_algorithms",
        lambda on, warn_only: said.append(("deterministic", on, warn_only)),
    )
    machine.settle(torch.device("cpu"), 3)
    assert said == [("torch", 3), ("numpy", 3), "memory"]
    machine.settle(torch.device("cuda"), 2)
    assert said[3:] == [("torch", 2), ("numpy", 2), "memory", ("deterministic", True, True)]


def test_cuda_is_deterministic_and_precise_whoever_starts_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What else torch asks of deterministic runs is set too, and what would cost precision is not
    used; a workspace that the user has chosen stays."""
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setattr(torch, "use_deterministic_algorithms", lambda on, warn_only: None)
    flags = [
        (torch.utils.deterministic, "fill_uninitialized_memory"),  # type: ignore[attr-defined]
        (torch.backends.cudnn, "allow_tf32"),
        (torch.backends.cuda.matmul, "allow_tf32"),
    ]
    before = [getattr(owner, name) for owner, name in flags]
    try:
        for owner, name in flags:
            setattr(owner, name, True)
        machine.settle_cuda()
        assert [getattr(owner, name) for owner, name in flags] == [False] * 3
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
        machine.settle_cuda()
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"
    finally:
        for (owner, name), value in zip(flags, before, strict=True):
            setattr(owner, name, value)


def test_freed_memory_is_kept_by_glibc(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Any] = []
    library = SimpleNamespace(mallopt=lambda parameter, size: said.append((parameter, size)))
    monkeypatch.setattr(machine.ctypes, "CDLL", lambda name: library)
    monkeypatch.setattr(sys, "platform", "linux")
    machine.keep_freed_memory()
    assert said == [(-1, 2**28), (-3, 2**25)]  # malloc.h: in all, and of a tensor
    monkeypatch.setattr(sys, "platform", "darwin")
    machine.keep_freed_memory()
    assert len(said) == 2


@pytest.mark.parametrize(
    ("error", "note"),
    [
        (ArithmeticError("bad luck"), "failed"),
        (torch.OutOfMemoryError("CUDA out of memory"), None),
        (torch.AcceleratorError("an illegal memory access"), None),
        (RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"), None),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"), None),
        (RuntimeError("no CUDA error"), "failed"),
        (OSError(28, "No space left"), None),
    ],
    ids=str,
)
def test_what_the_machine_does_is_no_failure_of_the_run(
    error: Exception, note: str | None, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next command makes the run, which one that failed needs run.retry_failed for."""

    def fails(*given: Any) -> None:
        raise error

    monkeypatch.setattr(driver, "run_together", fails)
    with pytest.raises(type(error)):
        perform(config, quiet=True)
    assert place(config).status_note().get("status") == note


def test_a_run_that_turns_out_to_be_no_graph_is_not_one_whose_user_wants_none(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU its answers are replayed, which run.compile=false would switch off."""
    driven: list[OpenRun] = []

    def drive(runs: Any, steps: Any, shown: bool, report_end: Any) -> None:
        driven.extend(runs)
        if len(driven) == 1:
            raise NoGraph("it looks into a tensor")
        report_end({"status": "done"})

    config["run"] |= {"compile": "auto", "steps": opening.LONG}
    monkeypatch.setattr(launch, "drive", drive)
    monkeypatch.setattr(launch, "record_first_step", lambda *given: None)
    assert perform(config, quiet=True) == 0
    assert [run.compile for run in driven] == [True, False]
    again = driven[1]._replace(device=torch.device("cuda"))
    assert driver.is_replayed(again)


def exits(*given: Any, **named: Any) -> None:
    sys.exit(0)


@pytest.mark.parametrize(
    ("module", "function"), [(launch, "open_run"), (driver, "run_together")], ids=str
)
def test_code_that_ends_the_process_is_a_failure_of_the_run(
    module: Any, function: str, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, function, exits)
    with pytest.raises(RuntimeError, match=r"^code of the run raised SystemExit: 0$"):
        perform(config, quiet=True)
    note = place(config).status_note()
    assert note["status"] == "failed"
    assert note["reason"] == "RuntimeError: code of the run raised SystemExit: 0"
    assert "in exits" in note["traceback"]


def test_the_logger_is_told_of_code_that_ends_the_process(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[int] = []
    plain = recording.build

    def build(node: Config, *given: Any) -> Any:
        if "loggers" in node["_target_"]:
            return Logger(lambda row: None, closed.append)
        return plain(node, *given)

    monkeypatch.setattr(recording, "build", build)
    monkeypatch.setattr(driver, "run_together", exits)
    with pytest.raises(RuntimeError, match="SystemExit"):
        perform(config, quiet=True)
    assert closed == [exit_codes.FAILED]


def test_lanes_whose_code_ends_the_process_fail(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "open_lane", exits)
    with pytest.raises(RuntimeError, match=r"^code of the run raised SystemExit: 0$"):
        lanes.perform_lanes([config], lambda *_: None)


@pytest.mark.parametrize(
    ("make", "module", "function"),
    [
        (perform, driver, "run_together"),
        (lambda config: lanes.perform_lanes([config], lambda *_: None), lanes, "open_lane"),
    ],
    ids=["alone", "lanes"],
)
def test_a_handler_may_end_the_process_when_all_is_saved(
    make: Callable[[Config], Any],
    module: Any,
    function: str,
    config: Config,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That of submitit does, which has the job queued again: the run has not failed."""

    def signalled(*given: Any) -> None:
        signal.raise_signal(signal.SIGUSR2)
        stop.raise_if_asked()

    def handle(number: int, frame: Any) -> None:
        sys.exit(7)

    monkeypatch.setattr(module, function, signalled)
    before = signal.signal(signal.SIGUSR2, handle)
    try:
        with pytest.raises(SystemExit) as end:
            make(config)
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert end.value.code == 7
    assert place(config).status_note().get("status") in (None, "preempted")


@pytest.mark.parametrize("kind", [Task, Algorithm])
def test_a_function_that_makes_something_else_is_told(kind: type) -> None:
    with pytest.raises(BadSetting, match=rf"^task: .* returns NoneType, not {kind.__name__}"):
        opening.of_kind(kind, None, "task")


def test_the_logger_has_the_end_before_the_summary_is_there(
    config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is killed between the two makes the end again, and tells the logger again.
    The logger is closed last, since it may wait for a host."""
    there: list[bool] = []
    plain = recording.build

    def look(*_: object) -> None:
        there.append((place(config).path / "summary.json").exists())

    def build(node: Any, *given: Any) -> Any:
        if "loggers" not in node["_target_"]:
            return plain(node, *given)
        return Logger(lambda row: None, look, look)

    monkeypatch.setattr(recording, "build", build)
    assert perform(config, quiet=True) == 0
    assert there == [False, True]
    assert (place(config).path / "summary.json").exists()


def test_a_run_that_another_process_has_just_made_is_not_made_again(
    config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended while this process waited for the folder."""
    assert perform(config, quiet=True) == 0
    plain, asked = launch.earlier_end, []

    def earlier_end(*given: Any) -> Any:
        asked.append(given)
        return None if len(asked) == 1 else plain(*given)

    def begin(*given: Any) -> int:
        raise AssertionError("it is made again")

    monkeypatch.setattr(launch, "earlier_end", earlier_end)
    monkeypatch.setattr(launch, "begin", begin)
    assert perform(config, quiet=True) == 0
    assert len(asked) == 2


def test_one_answer_without_a_job_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """squeue may answer before it knows of a job that was just submitted."""
    now = [103.0]
    answer = SimpleNamespace(returncode=0, stdout="7_2\n")
    monkeypatch.setattr(slurm.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(slurm.subprocess, "run", lambda *given, **named: answer)
    queue = slurm.Queue()
    assert not queue.misses("7_1", 100.0)
    now[0] = 107.0
    assert queue.misses("7_1", 100.0)
    assert not queue.misses("7_2", 100.0)


def test_answers_from_before_a_job_was_submitted_do_not_say_that_it_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [103.0]
    answer = SimpleNamespace(returncode=0, stdout="7_2\n")
    monkeypatch.setattr(slurm.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(slurm.subprocess, "run", lambda *given, **named: answer)
    queue = slurm.Queue()
    for now[0] in (103.0, 107.0):
        queue.misses("7_1", 100.0)
    now[0] = 109.0
    assert not queue.misses("8_1", 108.0)
    now[0] = 111.0
    assert not queue.misses("8_1", 108.0)  # one answer since then
    now[0] = 115.0
    assert queue.misses("8_1", 108.0)


def test_a_gpu_without_memory_is_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    error = torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1 GiB"
    )
    assert main.report_error(error) == exit_codes.FAILED
    assert capsys.readouterr().err == (
        "bench: the GPU has too little memory left: CUDA out of memory; the same command goes on, "
        "or write run.device=cpu\n"
    )
