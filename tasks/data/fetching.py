"""Lets one process at a time fetch data, so that none reads what another has half written."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

NAME = ".fetching"


@contextmanager
def one_at_a_time(root: Path, download: bool) -> Iterator[None]:
    """A block that looks below `root` for data, and may fetch what is absent there.

    Other processes that come to such a block wait until this one has left it, on file systems that
    have flock. download: False if nothing may be fetched; then nobody waits.
    """
    try:
        if download:
            root.mkdir(parents=True, exist_ok=True)
        place = os.open(root / NAME, os.O_CREAT | os.O_RDWR, 0o666) if download else None
    except OSError:  # nothing can be written there, so that nothing will be fetched
        place = None
    if place is None:
        yield
        return
    try:
        with suppress(OSError):  # the file system has no locks
            fcntl.flock(place, fcntl.LOCK_EX)
        yield
    finally:
        os.close(place)  # which frees the lock
