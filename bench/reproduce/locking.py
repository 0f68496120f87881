"""Keeps processes apart that write into one folder."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.text import Text

from bench.reproduce.terminal import err
from bench.runs.lock import NO_LOCKS


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """A context in which no other process is in this context with the same folder; it is waited
    for, with a line on standard error.

    The kernel's lock (flock) is on the folder itself: there is no file that git would show or a
    killed process would leave. On a network file system it holds for one machine.
    """
    place = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            err.print(Text(f"reproduce: another process writes in {folder}: waiting for it"))
            fcntl.flock(place, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            advice = "write there with one process at a time"
            err.print(Text(f"reproduce: the file system of {folder} has no locks: {advice}"))
        yield
    finally:
        os.close(place)
