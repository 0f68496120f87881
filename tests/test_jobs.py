"""A run as a job: what its folder and its note say became of it, and how a process makes it."""

import gc
import json
import os
import pickle
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.core.settings import BadSetting, reason_of
from bench.runs import lanes, launch, lock, machine, stop
from bench.runs.folder import RunFolder, RunState
from bench.sweeps import jobs
from bench.sweeps.jobs import Job

Config = dict[str, Any]


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run folder that nobody has begun; its path is there."""
    found = RunFolder(tmp_path / "runs", "t/a/k")
    found.path.mkdir(parents=True)
    return found


def config(**run: Any) -> Config:
    return {"seed": 0, "vectorize": [], "run": {"force": False, "threads": 8, **run}}


def job(folder: RunFolder, note: str = "note", **run: Any) -> Job:
    return Job(config(**run), folder, folder.root.parent / f"{note}.json")


def begin(folder: RunFolder) -> None:
    """What a run writes first."""
    folder.describe({"device": "cpu", "threads": 1, "data": {}})


def end(folder: RunFolder, status: str = "done", reason: str | None = None) -> None:
    folder.end({"status": status, "reason": reason, "last": {}}, None)


LOST = RunState("lost", "its process ended without a word")


def test_what_a_folder_says(folder: RunFolder) -> None:
    """summary.json says more than status.json, that more than a lock, and a run that has begun is
    lost where none of them is there."""
    assert folder.state() == RunFolder(folder.root, "t/a/none").state() == RunState("missing")
    with folder.lock():
        assert folder.state().status == "busy"
    begin(folder)
    assert folder.state() == LOST
    with folder.lock():
        what, why = folder.state()
        assert what == "busy"
        assert str(why).startswith(f"being written by process {os.getpid()} on ")
        folder.leave("preempted", "stopped by SIGTERM")
        assert folder.state() == ("preempted", "stopped by SIGTERM")
    end(folder)
    assert folder.state() == ("done", None)
    end(folder, "diverged", "x")
    assert folder.state() == ("diverged", "x")
    (folder.path / "summary.json").write_text("{")
    with pytest.raises(BadSetting, match=r"summary\.json is damaged"):
        folder.state()


def test_a_job_leaves_no_data_of_its_run(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even what only the collector frees: a process may make hundreds of runs."""

    class Data:
        """What knows itself, as the functions of a task may know it."""

        def __init__(self) -> None:
            self.itself = self

    def make(job: Job) -> None:
        left.append(weakref.ref(Data()))

    left: list[weakref.ref[Data]] = []
    monkeypatch.setattr(jobs, "make_one", make)
    gc.disable()
    try:
        jobs.make_job(job(folder))
    finally:
        gc.enable()
    assert left[0]() is None


def test_a_run_has_ended_when_its_summary_says_how() -> None:
    ended = {
        word: RunState(word).has_ended for word in ("done", "diverged", "failed", "busy", "lost")
    }
    assert ended == {"done": True, "diverged": True, "failed": False, "busy": False, "lost": False}


def test_a_note_tells_before_the_folder_does(folder: RunFolder) -> None:
    """An empty one, {}, one that was cut short and one of another shape leave it to the folder."""
    one = job(folder)
    assert one.read_note() is None
    for content in ("", "{}", "{", '{"status": "refu', '{"x": 1}', "[1]", '{"status": "refused"}'):
        one.note.write_text(content)
        assert one.read_note() is None
    one.write_note("refused", "no such setting")
    assert json.loads(one.note.read_text()) == {"status": "refused", "reason": "no such setting"}
    assert one.read_note() == RunState("refused", "no such setting")


def test_what_became_of_a_run(folder: RunFolder) -> None:
    """The note counts first, if the run came to no folder; then its folder; else the job was not
    begun."""
    one = job(folder)
    assert one.state() == RunState("interrupted", "not begun")
    one.note.write_text("")
    assert one.state() == LOST  # killed before it came to its folder
    begin(folder)
    assert one.state() == LOST
    one.note.unlink()  # what is lost there is of another day
    assert one.state() == RunState("interrupted", "not begun")
    with folder.lock():
        assert one.state().status == "busy"
    one.note.write_text("{}")
    end(folder, "diverged", "x is not finite")
    assert one.state() == RunState("diverged", "x is not finite")
    one.note.unlink()  # its folder tells, begun or not
    assert one.state() == RunState("diverged", "x is not finite")
    one.write_note("refused", "no such setting")
    assert one.state() == RunState("refused", "no such setting")
    one.note.write_text("{")
    assert one.state().status == "diverged"


def test_a_note_that_does_not_fit_is_no_error(folder: RunFolder) -> None:
    Job(config(), folder, folder.root / "no" / "note.json").write_note("failed", "x")


def test_who_is_lost_has_begun_and_said_nothing(folder: RunFolder) -> None:
    one = job(folder)
    assert (one.has_begun, jobs.is_lost(one)) == (False, False)
    one.note.touch()
    assert (one.has_begun, jobs.is_lost(one)) == (True, True)
    begin(folder)
    assert jobs.is_lost(one)
    folder.leave("preempted", "why")
    assert not jobs.is_lost(one)
    (folder.path / "status.json").unlink()
    one.write_note("busy", "x")
    assert not jobs.is_lost(one)
    beside = job(folder, "other")._replace(others=(one,))
    assert not jobs.is_lost(beside)
    one.note.write_text("")
    assert jobs.is_lost(beside)  # of runs in lanes, any


def test_who_was_stopped_says_so_in_its_folder(tmp_path: Path) -> None:
    pair = []
    for name, word in (("a", "preempted"), ("b", "interrupted")):
        folder = RunFolder(tmp_path, f"t/a/{name}")
        folder.path.mkdir(parents=True)
        folder.leave(word, "why")
        pair.append(Job(config(), folder, tmp_path / f"{name}.json"))
    a, b = pair
    assert [jobs.is_preempted(each) for each in pair] == [True, False]
    assert jobs.is_preempted(b._replace(others=(a,)))
    assert not jobs.is_preempted(b._replace(others=(b,)))


def test_jobs_in_lanes_are_stamped_together(folder: RunFolder) -> None:
    one, other = job(folder), job(folder, "other")
    stamped = one._replace(others=(other,)).with_start(7)
    assert (stamped.since, [each.since for each in stamped.others]) == (7, [7])
    assert [each.note for each in stamped.all] == [one.note, other.note]
    assert one.all == (one,)


def test_a_run_has_begun_since_its_job_was_started(folder: RunFolder) -> None:
    assert not folder.was_begun_since(0)
    begin(folder)
    at = (folder.path / "environment.json").stat().st_mtime_ns
    assert [folder.was_begun_since(at + k) for k in (-1, 0, 1)] == [True, True, False]


FAILURES: list[tuple[Exception, str, str]] = [
    (lock.Busy("run is being written by x"), "busy", ""),
    (BadSetting("no such setting"), "refused", "bench: no such setting\n"),
    (OSError(28, "No space left"), "failed", "bench: OSError: [Errno 28] No space left\n"),
    (ArithmeticError("bad\nluck"), "failed", "Traceback"),
]


@pytest.mark.parametrize(("error", "word", "said"), FAILURES, ids=str)
def test_a_run_that_fails_is_noted_and_stops_nothing(
    error: Exception,
    word: str,
    said: str,
    folder: RunFolder,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fails(config: Config, quiet: bool) -> int:
        raise error

    monkeypatch.setattr(launch, "perform", fails)
    one = job(folder)
    jobs.make_job(one)
    noted = json.loads(one.note.read_text())
    assert noted["status"] == word
    assert noted["reason"] in (str(error), reason_of(error))
    assert "\n" not in noted["reason"]
    err = capsys.readouterr().err
    assert err == said or (said == "Traceback" and said in err)


def test_reasons_are_lines() -> None:
    assert reason_of(ValueError("two\n lines")) == "ValueError: two lines"
    assert reason_of(ValueError()) == "ValueError"


@pytest.mark.parametrize(
    ("force", "begun", "again"),
    [(True, False, True), (True, True, False), (False, False, False), (False, True, False)],
)
def test_what_is_to_start_again_does_so_unless_it_has_begun(
    force: bool,
    begun: bool,
    again: bool,
    folder: RunFolder,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """This holds for a run by itself and for lanes; the note is empty while they are made."""
    made: list[Any] = []

    def perform(config: Config, quiet: bool) -> int:
        made.append((config["run"]["force"], quiet, one.note.read_text(), config["seed"]))
        return 0

    def beside(
        configs: Sequence[Config], say: Callable[[int, str, str], None], if_faster: bool
    ) -> None:
        assert not if_faster
        made.append([config["run"]["force"] for config in configs])
        assert [each.note.read_text() for each in (one, other)] == ["", ""]
        say(0, "", "")
        say(1, "refused", "no graph")

    monkeypatch.setattr(launch, "perform", perform)
    monkeypatch.setattr(lanes, "perform_lanes", beside)
    if begun:
        begin(folder)
    one, other = job(folder, force=force), job(folder, "other", force=force)
    jobs.make_job(one)
    assert made == [(again, True, "", 0)]
    assert one.note.read_text() == ""
    assert one.config["run"]["force"] is force
    jobs.make_job(one._replace(others=(other,)))
    assert made[1:] == [[again, again]]
    assert one.note.read_text() == ""
    assert json.loads(other.note.read_text()) == {"status": "refused", "reason": "no graph"}
    assert capsys.readouterr().err == "bench: no graph\n"


@pytest.mark.parametrize("lost", ["log", "note"])
def test_a_log_or_note_that_cannot_be_written_is_told_and_ends_no_worker(
    lost: str, folder: RunFolder, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """As on a full disk: whoever makes jobs goes on to the next one."""
    one = job(folder)._replace(log=tmp_path / "log")
    (tmp_path / "log" if lost == "log" else one.note).mkdir()  # no file can be there
    jobs.make_job(one)
    said = capfd.readouterr().err + ("" if lost == "log" else (tmp_path / "log").read_text())
    (line,) = said.splitlines()
    assert line.startswith("bench: IsADirectoryError")
    if lost == "log":
        assert one.state().status == "failed"


def test_a_run_that_was_begun_by_an_earlier_command_starts_again(folder: RunFolder) -> None:
    begin(folder)
    at = (folder.path / "environment.json").stat().st_mtime_ns
    one = job(folder, force=True)
    assert jobs.config_to_start(one.with_start(at + 1))["run"]["force"] is True
    assert jobs.config_to_start(one.with_start(at))["run"] == {**one.config["run"], "force": False}


@pytest.mark.parametrize("error", [OSError(28, "No space left"), ArithmeticError("bad luck")])
@pytest.mark.parametrize(("if_faster", "status"), [(False, "failed"), (True, "refused")])
def test_lanes_that_fail_are_told(
    error: Exception,
    if_faster: bool,
    status: str,
    folder: RunFolder,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Their folders have the reason, or else their notes. A run that nobody asked to be a lane is
    refused as one, which has it made by itself."""

    def fails(configs: Sequence[Config], say: Any, if_faster: bool) -> None:
        raise error

    monkeypatch.setattr(lanes, "perform_lanes", fails)
    ended = RunFolder(folder.root, "t/a/ended")
    ended.path.mkdir()
    begin(ended)
    ended.leave("failed", "before")
    one, other, third = job(folder), job(folder, "other"), job(ended, "third")
    jobs.make_job(one._replace(others=(other, third), if_faster=if_faster))
    said = capsys.readouterr().err
    assert ("Traceback" in said) == isinstance(error, ArithmeticError)
    assert str(error) in said
    assert [each.state() for each in (one, other)] == [RunState(status, reason_of(error))] * 2
    assert third.state() == RunState("failed", "before")


def test_lanes_whose_process_has_lost_its_gpu_are_made_by_another(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As lanes again: the error may be another process's."""

    def fails(*given: Any) -> None:
        raise torch.AcceleratorError("an illegal memory access")

    monkeypatch.setattr(lanes, "perform_lanes", fails)
    monkeypatch.setattr(machine, "has_lost_device", lambda: True)
    one, other = job(folder), job(folder, "other")
    together = one._replace(others=(other,), if_faster=True)
    jobs.make_job(together)
    assert jobs.is_lost(together)


@contextmanager
def streams() -> Iterator[None]:
    """sys.stdout and sys.stderr as a process has them: buffered, on descriptors 1 and 2."""
    with (
        open(1, "w", closefd=False, buffering=4096) as out,
        open(2, "w", closefd=False, buffering=4096) as err,
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        yield


def say(word: str) -> None:
    """Print from this process and from one that it starts, on both streams."""
    print(f"{word} out")
    print(f"{word} err", file=sys.stderr)
    jobs.flush()
    subprocess.run(["sh", "-c", f"echo {word} child out; echo {word} child err >&2"], check=True)
    print(f"{word} last")  # it stays in the buffer


def test_a_job_with_a_log_writes_there(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """What this process and its children write meanwhile, also when the run fails; nothing of
    before and after. A second job adds to the log of the first."""
    log = folder.root / "logs" / "a.log"

    def perform(config: Config, quiet: bool) -> int:
        say("in")
        if config["seed"]:
            raise ArithmeticError("bad luck")
        return 0

    monkeypatch.setattr(launch, "perform", perform)
    one = job(folder)._replace(log=log)
    numbers = sorted(os.listdir("/proc/self/fd"))
    with streams():
        say("before")
        jobs.make_job(one)
        say("after")
        first = log.read_text()
        jobs.make_job(one._replace(config=one.config | {"seed": 1}))
        say("then")
        jobs.flush()
    out, err = capfd.readouterr()
    words = ["before", "after", "then"]
    ours = [f"{word} {rest}" for word in words for rest in ("out", "child out", "last")]
    assert out.splitlines() == ours
    theirs = [f"{word} {rest}" for word in words for rest in ("err", "child err")]
    assert err.splitlines() == theirs
    within = ["in out", "in err", "in child out", "in child err", "in last"]
    assert first.splitlines() == within
    second = log.read_text().removeprefix(first).splitlines()
    assert [line for line in second if line.startswith("in ")] == [*within[:4], "in last"]
    assert "Traceback (most recent call last):" in second
    assert "ArithmeticError: bad luck" in second
    assert sorted(os.listdir("/proc/self/fd")) == numbers  # none stays open


def test_a_log_goes_through_no_link(folder: RunFolder, tmp_path: Path) -> None:
    """Its name is known to all, and its text may be a stranger's."""
    mine = tmp_path / "mine"
    mine.write_text("mine")
    log = tmp_path / "logs" / "a.log"
    log.parent.mkdir()
    log.symlink_to(mine)
    with pytest.raises(BadSetting, match=r"a\.log is a link"), jobs.redirect_output(log):
        os.write(1, b"a stranger's")
    made = job(folder)._replace(log=log)
    jobs.make_job(made)
    assert "is a link" in str(made.state().reason)
    assert mine.read_text() == "mine"
    log.unlink()
    with jobs.redirect_output(log):
        os.write(1, b"ours")
    assert log.read_text() == "ours"


def test_a_job_without_a_log_writes_where_its_process_does(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def perform(config: Config, quiet: bool) -> int:
        print("here")
        return 0

    monkeypatch.setattr(launch, "perform", perform)
    jobs.make_job(job(folder))
    assert capsys.readouterr().out == "here\n"


@pytest.mark.parametrize("signal", [KeyboardInterrupt(), stop.Preempted(15)], ids=repr)
def test_a_stop_passes_through_a_job(
    signal: BaseException,
    folder: RunFolder,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """No error is noted, because the folder tells of the stop; the process writes where it wrote
    before."""

    def perform(config: Config, quiet: bool) -> int:
        os.write(1, b"in\n")
        folder.leave("preempted", "why")
        raise signal

    monkeypatch.setattr(launch, "perform", perform)
    one = job(folder)._replace(log=folder.root / "log")
    assert one.log is not None
    with pytest.raises(type(signal)):
        jobs.make_job(one)
    os.write(1, b"out\n")
    assert (one.log.read_text(), capfd.readouterr().out) == ("in\n", "out\n")
    assert one.state() == RunState("preempted", "why")


def test_what_a_search_has_stopped_is_not_begun_again(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SLURM may queue a job again whose first runs were pruned: its folder says preempted."""
    monkeypatch.setattr(launch, "perform", lambda config, quiet: pytest.fail("it was begun again"))
    one = job(folder)
    begin(folder)
    folder.leave("preempted", "stopped by halving")
    assert jobs.is_preempted(one)
    one.write_note("pruned", "stopped by halving")
    assert not jobs.is_preempted(one)
    jobs.make_job(one)
    assert one.state() == RunState("pruned", "stopped by halving")


def test_a_job_goes_to_another_process(folder: RunFolder) -> None:
    """A job is the same in another process, with its folder and its lanes."""
    one = job(folder)._replace(others=(job(folder, "other"),), log=folder.root / "log")
    assert pickle.loads(pickle.dumps(one)) == one


@pytest.mark.parametrize(
    ("status", "run", "lost"),
    [
        ("preempted", {}, True),
        ("interrupted", {}, True),
        ("failed", {"retry_failed": True}, True),
        ("failed", {"retry_failed": False}, False),  # it is not tried again
        ("diverged", {"retry_failed": True}, True),
        ("diverged", {"retry_failed": False}, False),
        ("done", {"force": True}, True),
        ("done", {"retry_failed": True}, False),
    ],
)
def test_what_an_earlier_attempt_left_is_not_what_became_of_this_one(
    status: str, run: Config, lost: bool, folder: RunFolder
) -> None:
    """A process that is killed while it imports leaves what the attempt before has left."""
    begin(folder)
    if status in ("done", "diverged"):
        end(folder, status, "why")
    else:
        folder.leave(status, "why")
    name = "summary.json" if status in ("done", "diverged") else "status.json"
    left = (folder.path / name).stat().st_mtime_ns
    expected = LOST if lost else RunState(status, "why")
    now = job(folder, **run)._replace(since=left + 1)
    begins_anew = lost and run != {}
    before = RunState("interrupted", "not begun") if begins_anew else RunState(status, "why")
    assert now.state() == before  # the job has not begun yet
    now.note.write_text("")
    assert now.state() == expected
    assert now._replace(since=left).state() == RunState(status, "why")  # of this attempt


def test_of_a_run_that_stopped_and_then_ended_its_end_says_when_it_was_left(
    folder: RunFolder,
) -> None:
    folder.leave("preempted", "stopped")
    folder.end({"status": "done", "reason": None, "last": {}}, None)
    os.utime(folder.path / "status.json", ns=(5, 5))
    os.utime(folder.summary_file, ns=(9, 9))
    assert [folder.was_left_before(at) for at in (7, 9, 10)] == [False, False, True]
