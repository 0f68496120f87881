"""A sweep's parts, each by itself: what is planned, what became of a run, what is told of all."""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

import bench.sweep as sweep
from bench import codes, lanes, launchers, lock, record
from bench.settings import BadSetting
from bench.sweep import Job, Outcome, Task

Config = dict[str, Any]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The run folder of every configuration."""
    monkeypatch.setattr(sweep, "place", lambda config: ("t/a/k", tmp_path / "run"))
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def config(**run: Any) -> Config:
    return {"seed": 0, "vectorize": [], "run": {"force": False, "threads": 8, **run}}


def task(tmp_path: Path, name: str = "note", **run: Any) -> Task:
    return Task(config(**run), tmp_path / f"{name}.json")


def summary(folder: Path, status: str, reason: str | None = None) -> None:
    record.write_json(folder / "summary.json", {"status": status, "reason": reason, "last": {}})


def status(folder: Path, word: str, reason: str = "why") -> None:
    record.write_json(folder / "status.json", {"status": word, "reason": reason})


def test_what_is_found_in_a_folder(folder: Path) -> None:
    """summary.json says more than status.json, and that more than a lock."""
    assert sweep.found(folder) == ("lost", "its process ended without a word")
    with lock.held(folder):
        what, why = sweep.found(folder)
        assert what == "busy"
        assert str(why).startswith(f"being written by process {os.getpid()} on ")
        status(folder, "preempted", "stopped by SIGTERM")
        assert sweep.found(folder) == ("preempted", "stopped by SIGTERM")
    summary(folder, "done")
    assert sweep.found(folder) == ("done", None)
    summary(folder, "diverged", "x")
    assert sweep.found(folder) == ("diverged", "x")


def test_who_is_lost_has_begun_and_said_nothing(folder: Path, tmp_path: Path) -> None:
    one = task(tmp_path)
    assert (one.begun, sweep.lost(one)) == (False, False)
    one.note.touch()
    assert (one.begun, sweep.lost(one)) == (True, True)
    status(folder, "preempted")
    assert not sweep.lost(one)
    (folder / "status.json").unlink()
    one.say("busy", "x")
    assert not sweep.lost(one)
    beside = task(tmp_path, "other")._replace(others=(one,))
    assert not sweep.lost(beside)
    one.note.write_text("")
    assert sweep.lost(beside)  # of runs in lanes, any


def test_who_was_stopped_says_so_in_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "place", lambda config: ("", tmp_path / config["name"]))
    for name, word in (("a", "preempted"), ("b", "interrupted")):
        (tmp_path / name).mkdir()
        status(tmp_path / name, word)
    a, b = (Task({"name": name}, tmp_path / f"{name}.json") for name in "ab")
    assert [sweep.stopped(t) for t in (a, b)] == [True, False]
    assert sweep.stopped(b._replace(others=(a,)))
    assert not sweep.stopped(b._replace(others=(b,)))


JOB = Job(3, "seed=3", config(), "t/a/k", Path("run"))


def test_what_became_of_a_run(folder: Path, tmp_path: Path) -> None:
    """Its note first, where it came to no folder; then its folder; else it was not begun."""
    job, one = JOB._replace(folder=folder), task(tmp_path)
    about = (3, "seed=3", "t/a/k")
    assert sweep.after(job, one) == Outcome(*about, "interrupted", "not begun")
    one.note.write_text("")
    assert sweep.after(job, one) == Outcome(*about, "lost", "its process ended without a word")
    one.note.write_text("{}")
    summary(folder, "diverged", "x is not finite")
    assert sweep.after(job, one) == Outcome(*about, "diverged", "x is not finite")
    one.note.unlink()  # its folder tells, begun or not
    assert sweep.after(job, one) == Outcome(*about, "diverged", "x is not finite")
    one.say("refused", "no such setting")
    assert json.loads(one.note.read_text()) == {"status": "refused", "reason": "no such setting"}
    assert sweep.after(job, one) == Outcome(*about, "refused", "no such setting")
    one.note.write_text("{")
    assert sweep.after(job, one).status == "diverged"


def test_a_note_that_does_not_fit_is_no_error(tmp_path: Path) -> None:
    Task(config(), tmp_path / "no" / "note.json").say("failed", "x")


def test_what_is_known_before(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about = (3, "seed=3", "t/a/k")
    job = JOB._replace(folder=folder)
    ended: Any = None
    monkeypatch.setattr(sweep, "ended_before", lambda config, folder: ended)
    assert sweep.before(job) is None
    ended = print
    summary(folder, "done")
    assert sweep.before(job) == Outcome(*about, "skipped", None)
    summary(folder, "diverged", "x")
    assert sweep.before(job) == Outcome(*about, "diverged", "x")
    refused = Job(4, "seed=x", refused="seed=x: no number")
    assert sweep.before(refused) == Outcome(4, "seed=x", None, "refused", "seed=x: no number")

    def damaged(config: Config, folder: Path) -> None:
        raise BadSetting("summary.json is damaged")

    monkeypatch.setattr(sweep, "ended_before", damaged)
    assert sweep.before(job) == Outcome(*about, "refused", "summary.json is damaged")


def test_a_run_that_is_there_twice_is_made_once() -> None:
    """The first is made; one that is known already has no twin."""
    jobs = [Job(k, f"w{k}", {}, name, Path()) for k, name in enumerate("abacab")]
    jobs.append(Job(6, "w6", refused="bad"))
    known = Outcome(1, "w1", "b", "skipped", None)
    refused = Outcome(6, "w6", None, "refused", "bad")
    told: dict[int, Outcome | None] = dict.fromkeys(range(7)) | {1: known, 6: refused}
    sweep.repeated(jobs, told)
    assert told[0] is told[3] is told[5] is None
    assert told[1] == known
    assert told[2] == Outcome(2, "w2", "a", "skipped", "the same run as #0")
    assert told[4] == Outcome(4, "w4", "a", "skipped", "the same run as #0")


def test_a_run_is_named_by_what_varies(monkeypatch: pytest.MonkeyPatch) -> None:
    """By all its words where nothing does; a setting that is refused is its run's affair."""

    def resolved(own: Sequence[str]) -> Config:
        if "seed=x" in own:
            raise BadSetting("seed=x: no number")
        return {"own": list(own)}

    monkeypatch.setattr(sweep, "resolved", resolved)
    monkeypatch.setattr(sweep, "place", lambda config: (config["own"][-1], Path("f")))

    def planned(*overrides: Sequence[str]) -> list[Job]:
        return sweep.planned(lambda own: own, overrides)  # type: ignore[arg-type, return-value]

    grid = [("task=t", f"seed={s}", f"algorithm.lr={lr}") for s in ("1", "x") for lr in ("2", "3")]
    jobs = planned(*grid)
    assert [job.words for job in jobs] == [
        "seed=1 algorithm.lr=2", "seed=1 algorithm.lr=3", "seed=x algorithm.lr=2",
        "seed=x algorithm.lr=3",
    ]  # fmt: skip
    assert [job.number for job in jobs] == [0, 1, 2, 3]
    assert jobs[1] == Job(1, jobs[1].words, {"own": list(grid[1])}, "algorithm.lr=3", Path("f"))
    assert jobs[2] == Job(2, jobs[2].words, refused="seed=x: no number")
    assert [job.words for job in planned(("task=t", "seed=1"))] == ["task=t seed=1"]
    assert planned() == []


@pytest.mark.parametrize(
    ("workers", "cores", "threads", "expected"),
    [(1, 8, 64, 64), (2, 8, 64, 4), (3, 8, 64, 2), (9, 8, 64, 1), (2, 8, 3, 3), (4, 8, 2, 2)],
)
def test_workers_share_the_cores(
    workers: int, cores: int, threads: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(cores)))
    job = Job(0, "", config(threads=threads))
    sweep.share([Job(1, "", refused="x"), job], ["seed=1"], workers)
    assert job.config is not None
    assert job.config["run"]["threads"] == expected
    asked = Job(0, "", config(threads=threads))
    sweep.share([asked], ["seed=1", f"run.threads={threads}"], workers)
    assert asked.config is not None
    assert asked.config["run"]["threads"] == threads


def test_runs_side_by_side_are_one_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = [
        Task({"vectorize": ["seed"] if k else [], "k": k}, tmp_path / str(k), (f"a={k}",))
        for k in range(4)
    ]
    seen: list[Any] = []

    def together(configs: Sequence[Config], apart: Sequence[Any]) -> list[list[int]]:
        seen.append(([config["k"] for config in configs], list(apart)))
        return [[0], [1, 3], [2]]

    monkeypatch.setattr(lanes, "together", together)
    found = sweep.bundled(tasks)
    assert seen == [([0, 1, 2, 3], [(f"a={k}",) for k in range(4)])]
    assert found == [tasks[0], tasks[1]._replace(others=(tasks[3],)), tasks[2]]
    assert sweep.bundled(tasks[:1]) == tasks[:1]
    assert len(seen) == 1  # without a setting to vectorise nobody is asked
    stamped = found[1].stamped(7)
    assert (stamped.since, [other.since for other in stamped.others]) == (7, [7])
    assert stamped.others[0].note == tasks[3].note


def test_a_run_has_begun_since_its_sweep_did(folder: Path, tmp_path: Path) -> None:
    one = task(tmp_path)
    assert not sweep.begun_since(one._replace(since=0))
    made = folder / "environment.json"
    made.touch()
    at = made.stat().st_mtime_ns
    assert [sweep.begun_since(one._replace(since=at + k)) for k in (-1, 0, 1)] == [
        True, True, False,
    ]  # fmt: skip


Failure = tuple[Exception, str, str]
FAILURES: list[Failure] = [
    (lock.Busy("run is being written by x"), "busy", ""),
    (BadSetting("no such setting"), "refused", "bench: no such setting\n"),
    (OSError(28, "No space left"), "failed", "bench: OSError: [Errno 28] No space left\n"),
    (ArithmeticError("bad\nluck"), "failed", "Traceback"),
]


@pytest.mark.parametrize(("error", "word", "said"), FAILURES, ids=str)
def test_a_run_of_a_sweep_that_fails_is_noted(
    error: Exception,
    word: str,
    said: str,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fails(config: Config, brief: bool) -> int:
        raise error

    monkeypatch.setattr(sweep, "perform", fails)
    one = task(tmp_path)
    sweep.one(one)
    noted = json.loads(one.note.read_text())
    assert noted["status"] == word
    assert noted["reason"] in (
        str(error),
        f"{type(error).__name__}: {' '.join(str(error).split())}",
    )
    err = capsys.readouterr().err
    assert err == said or (said == "Traceback" and said in err)


@pytest.mark.parametrize(
    ("force", "begun", "again"),
    [(True, False, True), (True, True, False), (False, False, False), (False, True, False)],
)
def test_what_is_to_start_again_does_so_unless_it_has_begun(
    force: bool,
    begun: bool,
    again: bool,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """So for a run by itself and for lanes; the note is empty while they are made."""
    made: list[Any] = []

    def perform(config: Config, brief: bool) -> int:
        made.append((config["run"]["force"], brief, one.note.read_text(), config["seed"]))
        return 0

    def beside(configs: Sequence[Config], say: Callable[[int, str, str], None]) -> None:
        made.append([config["run"]["force"] for config in configs])
        assert [t.note.read_text() for t in (one, other)] == ["", ""]
        say(0, "", "")
        say(1, "refused", "no graph")

    monkeypatch.setattr(sweep, "perform", perform)
    monkeypatch.setattr(lanes, "perform", beside)
    if begun:
        (folder / "environment.json").touch()
    one, other = task(tmp_path, force=force), task(tmp_path, "other", force=force)
    sweep.one(one)
    assert made == [(again, True, "", 0)]
    assert one.note.read_text() == "{}"
    assert one.config["run"]["force"] is force
    sweep.one(one._replace(others=(other,)))
    assert made[1:] == [[again, again]]
    assert one.note.read_text() == "{}"
    assert json.loads(other.note.read_text()) == {"status": "refused", "reason": "no graph"}
    assert capsys.readouterr().err == "bench: no graph\n"


@pytest.mark.parametrize("error", [OSError(28, "No space left"), ArithmeticError("bad luck")])
def test_lanes_that_fail_are_told(
    error: Exception,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fails(configs: Sequence[Config], say: Any) -> None:
        raise error

    monkeypatch.setattr(lanes, "perform", fails)
    sweep.side_by_side([task(tmp_path), task(tmp_path, "other")])
    said = capsys.readouterr().err
    assert ("Traceback" in said) == isinstance(error, ArithmeticError)
    assert str(error) in said


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ([], 0),
        (["done"], 0),
        (["skipped", "done"], 0),
        (["refused"], 2),
        (["refused", "skipped"], 1),
        (["failed", "done"], 1),
        (["diverged", "preempted"], 1),
        (["lost", "skipped"], 1),
        (["preempted"], 75),
        (["done", "interrupted"], 75),
        (["busy", "skipped"], 75),
    ],
)
def test_the_exit_code_of_a_sweep(ends: list[str], expected: int) -> None:
    assert sweep.code([Outcome(k, "", None, end, None) for k, end in enumerate(ends)]) == expected


def shown(ends: list[Outcome], folder: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    folder.mkdir(exist_ok=True)
    sweep.table(ends, folder, most=3)
    return capsys.readouterr().out.splitlines()


def test_a_table_of_few_shows_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ends = [
        Outcome(0, "seed=0", "n0", "done", None),
        Outcome(1, "seed=1", "n1", "diverged", "x is [gone]"),
        Outcome(2, "seed=2", None, "refused", "no number"),
    ]
    title, heads, *rows, counted, hint = shown(ends, tmp_path / "s", capsys)
    assert title.strip() == str(tmp_path / "s")
    assert heads.split() == ["#", "run", "status", "reason"]
    assert [row.split(maxsplit=3) for row in rows] == [
        ["0", "seed=0", "done"], ["1", "seed=1", "diverged", rows[1].split(maxsplit=3)[3]],
        ["2", "seed=2", "refused", rows[2].split(maxsplit=3)[3]],
    ]  # fmt: skip
    assert "x is [gone]" in rows[1]
    assert counted == "3 runs: 1 done, 1 diverged, 1 refused"
    assert hint == "run.retry_failed=true tries failed and diverged ones again"
    assert record.read_json(tmp_path / "s" / "sweep.summary.json") == {
        "counts": {"done": 1, "diverged": 1, "refused": 1},
        "code": 1,
        "runs": [end._asdict() for end in ends],
    }


def test_words_below_a_table_are_plain_on_a_terminal_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    *_, counted = shown([Outcome(0, "seed=0", "n0", "done", None)], tmp_path / "s", capsys)
    assert counted == "1 runs: 1 done"


def test_a_table_of_many_shows_what_is_not_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["done", "skipped", "busy", "lost", "preempted", "interrupted", "done"]
    ends = [Outcome(k, f"seed={k}", "n", word, word) for k, word in enumerate(words)]
    lines = shown(ends, tmp_path / "s", capsys)
    assert [line.split()[0] for line in lines[2:5]] == ["2", "3", "4"]
    assert lines[5] == f"... and 1 more in {tmp_path / 's' / 'sweep.summary.json'}"
    assert lines[6:] == [
        "7 runs: 2 done, 1 skipped, 1 busy, 1 lost, 1 preempted, 1 interrupted",
    ]  # and nothing to try again
    failed = [Outcome(0, "", "n", "failed", "x")]
    assert shown(failed, tmp_path / "s", capsys)[-1].startswith("run.retry_failed=true")
    well = [Outcome(k, f"seed={k}", "n", "done", None) for k in range(4)]
    assert shown(well, tmp_path / "s", capsys) == ["4 runs: 4 done"]


class Sweep:
    """`carry_out` without Hydra: five runs of seeds, of which 1 is refused, 2 has ended and 4 is 0
    once more."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int = 1):
        self.tmp_path, self.folder = tmp_path, tmp_path / "sweep"
        self.started: list[Task] = []
        self.happens: Callable[[Task], None] = self.well
        names = ["n0", None, "n2", "n3", "n0"]
        self.jobs = [
            Job(k, f"seed={k}", config(), name, tmp_path / str(name))
            if name
            else Job(k, f"seed={k}", refused="seed=1: bad")
            for k, name in enumerate(names)
        ]
        for job in self.jobs:
            if job.config is not None:
                job.config["seed"], job.config["vectorize"] = job.number % 4, ["algorithm.lr"]
        (tmp_path / "n2").mkdir()
        summary(tmp_path / "n2", "done")
        monkeypatch.setattr(
            sweep, "planned", lambda compose, overrides: self.jobs[: len(overrides)]
        )
        monkeypatch.setattr(sweep, "place", lambda config: ("", tmp_path / f"n{config['seed']}"))
        monkeypatch.setattr(
            sweep, "ended_before", lambda config, folder: print if folder.exists() else None
        )
        monkeypatch.setattr(lanes, "together", self.together)
        monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(4)))
        launcher = launchers.Launcher(self.carried, workers)
        monkeypatch.setattr(sweep, "build", lambda node: launcher)

    def together(self, configs: Sequence[Config], apart: Sequence[Any]) -> list[list[int]]:
        self.apart = list(apart)
        return [[k] for k in range(len(configs))]

    def carried(self, tasks: Sequence[Task], folder: Path) -> None:
        assert folder == self.folder
        assert OmegaConf.load(folder / "multirun.yaml").hydra.sweep.dir == str(self.folder)
        for each in tasks:
            self.started.append(each)
            self.happens(each)

    def well(self, each: Task) -> None:
        each.note.write_text("{}")
        made = sweep.place(each.config)[1]
        made.mkdir()
        summary(made, "done")

    def __call__(self, runs: int = 5) -> int:
        folder = self.tmp_path / "sweep"
        master = OmegaConf.create(
            {
                "hydra": {
                    "launcher": {"_target_": "bench.launchers.here"},
                    "sweep": {"dir": str(folder)},
                    "overrides": {"task": ["seed=range(5)"]},
                }
            }
        )
        assert isinstance(master, DictConfig)
        overrides = [(f"seed={k}", "algorithm.lr=0.1") for k in range(runs)]
        return sweep.carry_out(lambda own: own, overrides, master)  # type: ignore[arg-type]

    @property
    def ends(self) -> list[str]:
        told = record.read_json(self.folder / "sweep.summary.json")
        return [run["status"] for run in told["runs"]]


def test_a_sweep_makes_what_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = Sweep(tmp_path, monkeypatch)
    assert made() == codes.FAILED  # for the one that is refused
    assert made.ends == ["done", "refused", "skipped", "done", "skipped"]
    assert [each.config["seed"] for each in made.started] == [0, 3]
    notes = made.folder / "notes"
    assert [each.note for each in made.started] == [notes / "0.json", notes / "3.json"]
    assert made.apart == [("seed=0",), ("seed=3",)]  # not what is to vectorise
    since = (made.folder / "multirun.yaml").stat().st_mtime_ns
    assert {each.since for each in made.started} == {since}
    assert {each.config["run"]["threads"] for each in made.started} == {8}  # one worker
    assert not notes.exists()
    assert capsys.readouterr().err == "bench: seed=1: seed=1: bad\n"


def test_workers_of_a_sweep_share_the_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Sweep(tmp_path, monkeypatch, workers=2)
    made()
    assert {each.config["run"]["threads"] for each in made.started} == {2}


def test_a_sweep_that_is_stopped_tells_what_became_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Sweep(tmp_path, monkeypatch)

    def interrupted(each: Task) -> None:
        each.note.write_text("")
        raise KeyboardInterrupt

    made.happens = interrupted
    with pytest.raises(KeyboardInterrupt):
        made()
    assert made.ends == ["lost", "refused", "skipped", "interrupted", "skipped"]
    assert not (made.folder / "notes").exists()


def test_a_sweep_with_nothing_to_do_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Sweep(tmp_path, monkeypatch)
    made.jobs = [made.jobs[2]._replace(number=0)]
    assert made(1) == codes.DONE
    assert (made.started, made.ends) == ([], ["skipped"])


def test_a_sweep_whose_every_run_is_refused_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Sweep(tmp_path, monkeypatch)
    made.jobs = [made.jobs[1]._replace(number=0)]
    assert made(1) == codes.REFUSED
    assert not made.folder.exists()


def test_a_sweep_of_no_run_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadSetting, match=r"the sweep is empty: seed=range\(5\) names no run"):
        Sweep(tmp_path, monkeypatch)(0)


def test_two_sweeps_of_one_second_have_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Sweep(tmp_path, monkeypatch)
    made.folder.mkdir()
    made.folder = tmp_path / f"sweep-{os.getpid()}"
    monkeypatch.setattr(sweep.OmegaConf, "save", lambda master, path: path.write_text(""))
    made.carried = lambda tasks, folder: None  # type: ignore[method-assign]
    monkeypatch.setattr(sweep, "build", lambda node: launchers.Launcher(made.carried))
    made()
    assert made.ends == ["interrupted", "refused", "skipped", "interrupted", "skipped"]


def test_a_sweep_that_cannot_be_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Sweep(tmp_path, monkeypatch)
    made.tmp_path = tmp_path / "file"
    made.tmp_path.touch()
    with pytest.raises(BadSetting, match=r"run\.root: cannot write .*file.* for another place"):
        made()
    assert made.started == []
