"""One writer for each folder, and signals that a run heeds, in this process alone."""

import errno
import fcntl
import json
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from bench.core.settings import BadSetting
from bench.runs import lock, stop


@pytest.fixture
def naps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long was slept, which takes no time here."""
    found: list[float] = []
    monkeypatch.setattr(lock.time, "sleep", found.append)
    return found


def test_a_lock_says_whose_it_is_and_goes_when_it_is_given_back(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("x" * 1000)  # left by a process that is gone
    with lock.hold(tmp_path):
        said = json.loads((tmp_path / "lock").read_text())
        assert set(said) == {"host", "process", "since"}
        assert (said["host"], said["process"]) == (socket.gethostname(), os.getpid())
        since = datetime.fromisoformat(said["since"])
        assert since.microsecond == 0
        assert abs((datetime.now(UTC) - since).total_seconds()) < 60
        words = f"process {os.getpid()} on {socket.gethostname()} since {said['since']}"
        assert lock.holder(tmp_path) == words
    assert lock.holder(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_a_lock_can_be_read_by_all_and_written_by_its_owner(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with lock.hold(tmp_path):
            assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o644
    finally:
        os.umask(before)


def test_a_second_one_is_refused_after_five_tries(tmp_path: Path, naps: list[float]) -> None:
    with lock.hold(tmp_path):
        with pytest.raises(
            lock.Busy, match=f"{tmp_path} is being written by process {os.getpid()}"
        ):
            lock.hold(tmp_path).__enter__()
        assert naps == [0.04] * 4
        assert (tmp_path / "lock").exists()  # the first one's, still
        assert lock.holder(tmp_path) is not None
    assert issubclass(lock.Busy, BadSetting)


def test_one_who_only_looks_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`holder` takes the lock for a moment, which must not be taken for a writer."""
    (tmp_path / "lock").touch()
    file = os.open(tmp_path / "lock", os.O_RDONLY)
    fcntl.flock(file, fcntl.LOCK_SH)
    assert lock.holder(tmp_path) is None  # nor by another who looks
    monkeypatch.setattr(lock.time, "sleep", lambda seconds: fcntl.flock(file, fcntl.LOCK_UN))
    with lock.hold(tmp_path):
        assert lock.holder(tmp_path) is not None
    os.close(file)


def at_first_lock(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], None]) -> None:
    """Something happens between a file's opening and its locking, once."""
    plain, left = fcntl.flock, [happens]

    def flock(file: int, how: int) -> None:
        if left:
            left.pop()()
        plain(file, how)

    monkeypatch.setattr(lock.fcntl, "flock", flock)


def test_a_file_that_its_last_owner_has_just_removed_is_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is locked then has no name: a next one would not meet it."""
    (tmp_path / "lock").touch()
    at_first_lock(monkeypatch, (tmp_path / "lock").unlink)
    with lock.hold(tmp_path):
        assert (tmp_path / "lock").is_file()
        assert open_in(tmp_path) == 1
        assert lock.holder(tmp_path) is not None
        with pytest.raises(lock.Busy):
            lock.hold(tmp_path).__enter__()


def test_a_file_that_another_one_has_put_there_meanwhile_is_anothers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, naps: list[float]
) -> None:
    """Removed, and there again with a new owner."""
    path, files = tmp_path / "lock", list[int]()
    path.touch()

    def taken_over() -> None:
        path.unlink()
        files.append(os.open(path, os.O_RDWR | os.O_CREAT))
        fcntl.flock(files[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(files[0], b'{"host": "there", "process": 7, "since": "noon"}')

    at_first_lock(monkeypatch, taken_over)
    with pytest.raises(lock.Busy, match="process 7 on there since noon"):
        lock.hold(tmp_path).__enter__()
    os.close(files[0])
    assert path.exists()


@pytest.mark.parametrize("note", ["", "{", "[]", '"x"', "3", '{"host": "a", "process": 1}'])
def test_a_holder_whose_note_cannot_be_read_is_another_process(note: str, tmp_path: Path) -> None:
    assert lock.holder(tmp_path) is None  # no file
    with lock.hold(tmp_path):
        (tmp_path / "lock").write_text(note)
        assert lock.holder(tmp_path) == "another process"


def open_in(folder: Path) -> int:
    """How many files of this folder this process has open, removed ones included."""
    found = 0
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the list itself was open
            found += os.readlink(f"/proc/self/fd/{number}").startswith(str(folder))
    return found


@pytest.mark.parametrize("number", lock.NO_LOCKS)
def test_where_there_are_no_locks_that_is_said(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lock.NO_LOCKS == (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)

    def none(file: int, how: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(lock.fcntl, "flock", none)
    with lock.hold(tmp_path):
        assert json.loads((tmp_path / "lock").read_text())["process"] == os.getpid()
        assert lock.holder(tmp_path) is None
    assert f"the file system of {tmp_path} has no locks" in capsys.readouterr().err
    assert open_in(tmp_path) == 0


def test_a_lock_that_fails_otherwise_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(file: int, how: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(lock.fcntl, "flock", broken)
    with pytest.raises(BadSetting, match=rf"cannot write {tmp_path}/lock: .*run\.root=\.\.\."):
        lock.hold(tmp_path).__enter__()
    assert open_in(tmp_path) == 0


def test_no_file_stays_open(tmp_path: Path, naps: list[float]) -> None:
    with lock.hold(tmp_path):
        with pytest.raises(lock.Busy):
            lock.hold(tmp_path).__enter__()
        assert open_in(tmp_path) == 1
    lock.holder(tmp_path)
    assert open_in(tmp_path) == 0


def test_a_link_in_the_locks_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "lock").symlink_to(tmp_path / "mine")
    with pytest.raises(BadSetting, match="cannot write"):
        lock.hold(tmp_path).__enter__()
    assert lock.holder(tmp_path) is None
    assert (tmp_path / "mine").read_text() == "mine"


def test_a_folder_made_for_nothing_goes_again(tmp_path: Path) -> None:
    """The parents that were made for it go too, and no other folder does."""
    (tmp_path / "runs").mkdir()
    folder = tmp_path / "runs" / "task" / "algorithm" / "run"

    def refused() -> None:
        with lock.hold(folder):
            assert folder.is_dir()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        refused()
    assert list(tmp_path.iterdir()) == [tmp_path / "runs"]
    assert list((tmp_path / "runs").iterdir()) == []
    with lock.hold(folder):
        (folder / "summary.json").touch()
    assert [p.name for p in folder.iterdir()] == ["summary.json"]
    with lock.hold(folder.with_name("other")):
        pass
    assert [p.name for p in folder.parent.iterdir()] == ["run"]


def test_a_folder_that_was_empty_before_stays(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    with lock.hold(folder):
        pass
    assert folder.is_dir()


def test_a_folder_that_vanishes_while_it_is_held_is_no_error(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with lock.hold(folder):
        (folder / "lock").unlink()
        folder.rmdir()
    assert not folder.exists()


Handlers = dict[int, Any]


@pytest.fixture
def earlier() -> Iterator[list[tuple[int, Any]]]:
    """What who listened to the signals before hears of them."""
    heard: list[tuple[int, Any]] = []
    before: Handlers = {}
    for number in (signal.SIGTERM, signal.SIGUSR2):
        before[number] = signal.signal(number, lambda n, frame: heard.append((n, frame)))
    yield heard
    for number, handler in before.items():
        signal.signal(number, handler)


NAMES = {signal.SIGTERM: "SIGTERM", signal.SIGUSR2: "SIGUSR2"}


@pytest.mark.parametrize("number", NAMES)
def test_a_signal_ends_what_is_not_patient_at_once(number: int, earlier: list[Any]) -> None:

    def busy() -> None:
        with stop.heed():
            os.kill(os.getpid(), number)
            raise AssertionError("it went on")

    with pytest.raises(stop.Preempted) as told:
        busy()
    assert told.value.name == NAMES[signal.Signals(number)]
    assert earlier == [(number, None)]
    os.kill(os.getpid(), number)  # is the earlier one's again
    assert len(earlier) == 2
    assert not isinstance(told.value, Exception)


def test_a_patient_one_is_told_when_it_asks(earlier: list[Any]) -> None:
    said: list[str] = []

    def patient() -> None:
        with stop.heed():
            with stop.postpone():
                stop.raise_if_asked()
                with stop.postpone():
                    os.kill(os.getpid(), signal.SIGUSR2)
                    os.kill(os.getpid(), signal.SIGTERM)
                    said.append("went on")
                said.append("still patient")
                assert earlier == []
                with pytest.raises(stop.Preempted):
                    stop.raise_if_asked()
            said.append("patient no more")
            stop.raise_if_asked()

    with pytest.raises(stop.Preempted, match=str(int(signal.SIGUSR2))):
        patient()
    assert said == ["went on", "still patient", "patient no more"]
    assert earlier == [(signal.SIGUSR2, None), (signal.SIGTERM, None)]


def test_after_patience_a_signal_ends_at_once_again(earlier: list[Any]) -> None:

    def busy() -> None:
        with stop.heed():
            with pytest.raises(ZeroDivisionError), stop.postpone():
                raise ZeroDivisionError
            os.kill(os.getpid(), signal.SIGTERM)
            raise AssertionError("it went on")

    with pytest.raises(stop.Preempted):
        busy()


def test_only_the_outermost_hands_a_signal_on(earlier: list[Any]) -> None:
    with stop.heed():
        with pytest.raises(stop.Preempted), stop.heed():
            os.kill(os.getpid(), signal.SIGTERM)
        assert earlier == []
        assert signal.getsignal(signal.SIGTERM) is signal.getsignal(signal.SIGUSR2)
        with pytest.raises(stop.Preempted):
            stop.raise_if_asked()
    assert earlier == [(signal.SIGTERM, None)]


def test_what_was_asked_of_an_earlier_one_is_forgotten(earlier: list[Any]) -> None:
    with pytest.raises(stop.Preempted), stop.heed():
        os.kill(os.getpid(), signal.SIGTERM)
    with stop.heed():
        stop.raise_if_asked()
    assert earlier == [(signal.SIGTERM, None)]


def test_a_signal_that_nobody_heeded_before_is_handed_to_nobody() -> None:
    before = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    try:
        with pytest.raises(stop.Preempted), stop.heed():
            os.kill(os.getpid(), signal.SIGUSR2)
        assert signal.getsignal(signal.SIGUSR2) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_outside_the_main_thread_signals_are_not_listened_to(earlier: list[Any]) -> None:
    done: list[Any] = []

    def elsewhere() -> None:
        with stop.heed(), stop.postpone():
            done.append(signal.getsignal(signal.SIGTERM))
            stop.raise_if_asked()

    mine = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert done == [mine]
    assert signal.getsignal(signal.SIGTERM) is mine


def test_a_signal_after_an_inner_patience_is_still_only_noted(earlier: list[Any]) -> None:
    """A run that ends beside others writes its last files with patience of its own."""
    with stop.heed(), stop.postpone():
        with stop.postpone():
            pass
        os.kill(os.getpid(), signal.SIGTERM)  # raises nothing
        with pytest.raises(stop.Preempted):
            stop.raise_if_asked()
    assert earlier == [(signal.SIGTERM, None)]


def test_the_file_is_gone_before_its_lock_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would be the next owner's file that is removed, and a third one had its own."""
    close = os.close
    there: list[bool] = []

    def noted(file: int) -> None:
        there.append((tmp_path / "lock").exists())
        close(file)

    with lock.hold(tmp_path):
        monkeypatch.setattr(lock.os, "close", noted)
    monkeypatch.undo()
    assert there == [False]
