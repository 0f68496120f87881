"""Starts functions as processes that can be killed with all that they have started."""

import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from bench.main import report_error

CRASHED = 70  # the exit code of a process that raised what `bench` does not refuse
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h

started: set[int] = set()  # the processes that nobody has waited for


def adopt_orphans() -> None:
    """Make this process the parent of those whose own parent is killed, so as to wait for them."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def start(make: Callable[[], int], log: Path) -> int:
    """Start a function, which returns an exit code or exits, as a process in a group of its own.

    The process is forked, so that it need not import anything again. Its output goes to the log.
    Gives its number.
    """
    process = os.fork()
    if process:
        started.add(process)
        with suppress(OSError):  # it has done so itself, or has ended
            os.setpgid(process, process)
        return process
    code = CRASHED
    try:
        os.setpgid(0, 0)
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1)
        os.dup2(out, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w", 1), os.fdopen(2, "w", 1)
        try:
            code = make()
        except SystemExit as end:
            code = int(end.code or 0)
        except Exception as error:
            code = report_error(error)
    except Exception:
        traceback.print_exc()
    finally:
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def kill(process: int) -> int:
    """Kill a process and all that it has started; gives what `wait_for_exit` gives."""
    with suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)
    return wait_for_exit(process)


def wait_for_exit(process: int) -> int:
    """Wait for a process; gives its exit code, or minus the signal that ended it.

    What it has started and left behind is killed, and waited for.
    """
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    started.discard(process)
    with suppress(OSError):
        os.killpg(process, signal.SIGKILL)
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-process, 0)
    return code


def end_all() -> None:
    """Kill what was started and not waited for, when this process is told to stop."""
    for process in tuple(started):
        kill(process)


def has_ended(process: int) -> bool:
    """Whether a process has ended and can be waited for."""
    return os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
