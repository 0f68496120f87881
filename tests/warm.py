"""Worker processes that are forked from one which has imported torch, not begun from nothing.

A worker takes two seconds of a core to import what it needs (bench.sweeps.workers). Where a test
is about what workers make, and not about how one begins, the fixture `warm_workers` spares that:
they are still processes of their own, with a signal's end and an exit code. tests/test_workers.py
has those that begin as a user's do.
"""

import os
from multiprocessing import Pipe, forkserver, get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from bench.sweeps import workers

IMPORTED = [
    __name__, "bench.runs.lanes", "bench.runs.launch", "bench.sweeps.jobs",
    "torch._dynamo", "torch._functorch.aot_autograd",  # what lanes import when they are traced
]  # fmt: skip
ROOT = Path(__file__).parent.parent


def context() -> ForkServerContext:
    """One process, which begins at the first call, forks all; it finds what it is to import."""
    found = get_context("forkserver")
    found.set_forkserver_preload(IMPORTED)
    with mock.patch.dict(os.environ, {"PYTHONPATH": str(ROOT)}):
        forkserver.ensure_running()
    return found


def work(line: Connection, variables: dict[str, str], folder: Path) -> None:
    """What a worker does, with the variables and in the folder of who began it.

    Its parent is the process that forked it, which ends with the test's own.
    """
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(folder)
    workers.work(line, os.getppid())


def process(target: Any, args: tuple[Connection, int]) -> ForkServerProcess:
    """In place of a context's `Process`, for a worker."""
    assert target is workers.work
    line, parent = args
    assert parent == os.getpid()
    return context().Process(target=work, args=(line, dict(os.environ), Path.cwd()))


@pytest.fixture
def warm_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers of this process are forked, unless coverage is to follow each."""
    if "COVERAGE_PROCESS_START" not in os.environ:
        warm = SimpleNamespace(Pipe=Pipe, Process=process)
        monkeypatch.setattr(workers, "get_context", lambda kind: warm)
