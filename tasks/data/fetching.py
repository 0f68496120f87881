"""Lets one process at a time fetch data, so that none reads what another has half written."""

import fcntl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

NAME = ".fetching"


@contextmanager
def one_at_a_time(root: Path, download: bool) -> Iterator[None]:
    """A block that looks below `root` for data, and may fetch what is absent there.

    Other processes that come to such a block wait until this one has left it, on file systems that
    have flock. download: False if nothing may be fetched; then nobody waits.
    """
    with ExitStack() as held:
        if download:
            with suppress(OSError):  # nothing can be written there, or the file system has no locks
                root.mkdir(parents=True, exist_ok=True)
                fcntl.flock(held.enter_context((root / NAME).open("a")), fcntl.LOCK_EX)
        yield
