"""Stops runs by signals: SIGTERM, and SIGUSR2, which SLURM sends by way of submitit before a limit.

While a run takes steps, a signal is only noted: the run finishes its step, saves, and then stops.
At other times a signal stops it at once. A handler that was there before, such as submitit's, which
requeues the job, is called when all is saved.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGUSR2)

_asked: list[int] = []  # the signals that have come
_postponed: list[bool] = [False]  # whether a signal is only noted now
_watches: list[Callable[[], str | None]] = []  # of the run that goes on


class Preempted(BaseException):
    """A signal has come. As for KeyboardInterrupt, `except Exception` does not catch this."""

    def __init__(self, number: int):
        super().__init__(number)
        self.name = signal.Signals(number).name


class Unwanted(Preempted):
    """Whoever watches the run wants it to stop; the reason is in place of a signal's name."""

    def __init__(self, name: str):
        BaseException.__init__(self, name)
        self.name = name


def raise_if_asked() -> None:
    """Raise Preempted if a signal has come, and Unwanted if the run is watched and to stop."""
    if _asked:
        raise Preempted(_asked[0])
    for watch in _watches:
        why = watch()
        if why is not None:
            raise Unwanted(why)


@contextmanager
def watched(watch: Callable[[], str | None]) -> Iterator[None]:
    """A context in which `watch` is called between chunks of steps, off the clock of the run.

    watch: says why the run is to stop, or None.
    """
    _watches.append(watch)
    try:
        yield
    finally:
        _watches.remove(watch)


@contextmanager
def no_exit() -> Iterator[None]:
    """A context in which code that would end the process, as sys.exit does, raises RuntimeError.

    Otherwise a run that has not ended would leave no word, and its process the exit code 0.
    """
    try:
        yield
    except SystemExit as end:
        raise RuntimeError(f"code of the run raised SystemExit: {end.code}") from end


@contextmanager
def postpone() -> Iterator[None]:
    """A context in which a signal is only noted, and `raise_if_asked` raises."""
    before, _postponed[0] = _postponed[0], True
    try:
        yield
    finally:
        _postponed[0] = before


@contextmanager
def heed() -> Iterator[None]:
    """A context in which both signals raise Preempted.

    At its end the earlier handlers are back, and get the signals that came. Within another such
    context, and outside the main thread, which alone may handle signals, this one does nothing.
    """
    if any(signal.getsignal(number) is _hear for number in SIGNALS):
        yield
        return
    _asked.clear()
    try:
        before: dict[int, Any] = {number: signal.signal(number, _hear) for number in SIGNALS}
    except ValueError:  # this is not the main thread
        yield
        return
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in _asked:
            earlier: Callable[[int, Any], Any] | Any = before[number]
            if callable(earlier):
                earlier(number, None)


def _hear(number: int, frame: Any) -> None:
    _asked.append(number)
    if not _postponed[0]:
        raise Preempted(number)
