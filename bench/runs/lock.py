"""Keeps two processes from writing the same run folder.

A process that writes a folder has the kernel's lock (flock) on the file `lock` in it. The kernel
frees the lock when the process ends, however it ends, so a file that nobody has locked is left over
and may be taken. The host, process and time in the file are only for people.

A network file system must have flock. NFS 4, Lustre mounted with flock, and Ceph lock between
machines; a mount with local_lock does so only within one machine.
"""

import errno
import fcntl
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from bench.core.settings import BadSetting

NAME = "lock"
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


class Busy(BadSetting):
    """Another process writes this folder now."""


@contextmanager
def hold(folder: Path, option: str = "run.root=") -> Iterator[None]:
    """A context in which only this process writes the folder, which is made if it is not there.

    option: by which the user says where the folder is, for the refusal. Folders that were made here
    and are empty at the end, because the run was refused, are removed. Raises Busy if another
    process writes the folder, and BadSetting if it cannot be made.
    """
    new = [place for place in (folder, *folder.parents) if not place.exists()]
    path = folder / NAME
    try:
        file = _take(folder, path)
    except OSError as error:
        raise BadSetting(
            f"{option.strip('= ')}: cannot write {error.filename or path}: {error.strerror}; "
            f"write {option}... for another place"
        ) from None
    try:
        with suppress(OSError):  # on a full disk the run's own files will raise
            os.ftruncate(file, 0)
            owner = {"host": socket.gethostname(), "process": os.getpid(), "since": _now()}
            os.write(file, json.dumps(owner).encode())
        yield
    finally:
        with suppress(OSError):  # the folder may have vanished
            path.unlink()
        os.close(file)
        with suppress(OSError):  # most are not empty
            for place in new:
                place.rmdir()


def holder(folder: Path) -> str | None:
    """The process that writes the folder now, in words; None if there is none."""
    try:
        file = os.open(folder / NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _owner(file)
    except OSError:
        return None
    finally:
        os.close(file)
    return None


def _take(folder: Path, path: Path) -> int:
    """Open and lock the file `path`; gives its descriptor. Raises Busy, or OSError."""
    tries = 5  # `holder` of another process locks the file for a moment
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = _owner(file)
            os.close(file)
            tries -= 1
            if tries:
                time.sleep(0.04)
                continue
            raise Busy(
                f"{folder} is being written by {owner}: wait for it, or stop it first"
            ) from None
        except OSError as error:
            if error.errno not in NO_LOCKS:
                os.close(file)
                raise
            print(
                f"bench: the file system of {folder} has no locks: nothing keeps two launches "
                "of this run apart",
                file=sys.stderr,
            )
            return file
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file), os.stat(path)):
                return file
        os.close(file)  # the process before has just removed this file


def _owner(file: int) -> str:
    """What the file says of the process that has locked it, in words."""
    try:
        owner = json.loads(os.pread(file, 1000, 0))
        text = f"process {owner['process']} on {owner['host']} since {owner['since']}"
        return text if text.isprintable() else "another process"
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return "another process"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
