"""Makes jobs in worker processes of this machine, each of which makes one run after the other.

A worker imports torch only once. If it is killed, for example by the system for lack of memory,
only its own run is lost, which goes on in the end, when no other run needs memory. So does a run
that finds no memory on the GPU, which the others share with it.
"""

import ctypes
import os
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import connection, get_context
from multiprocessing.connection import Connection
from pathlib import Path

from bench.runs.stop import Preempted
from bench.runs.waiting import settle_waiting
from bench.sweeps.jobs import Job, is_lost, make_job

PATIENCE = 20.0  # seconds that runs have to save when they are told to stop
TRIES = 3  # how often a run may be begun if its process is killed
# What a worker says of a job: it is over; it is over, and this process is to make no other one; it
# found no memory on the GPU.
OVER, LAST, LACKED = "over", "last", "lacked"


class Worker:
    """A worker process and the job that it is making."""

    def __init__(self) -> None:
        making = get_context("spawn")  # a forked process would lack torch's threads
        self.line, theirs = making.Pipe()
        self.process = making.Process(target=work, args=(theirs, os.getpid()))
        with without_interrupts():
            self.process.start()
        theirs.close()
        self.job: Job | None = None
        self.used = False

    def give(self, job: Job) -> None:
        """Hand the worker, which is idle, a job; raises OSError if its process has ended."""
        self.job, self.used = job, True
        self.line.send(job)

    def dismiss(self) -> None:
        """End the worker, which is idle."""
        self.line.close()
        self.process.join()


@contextmanager
def without_interrupts() -> Iterator[None]:
    """A context in which Ctrl-C waits, in this process until the end of the context.

    In a process that is started meanwhile Ctrl-C waits until the process unblocks it. Otherwise a
    process that is still importing modules would end with a traceback.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def work(line: Connection, parent: int) -> None:
    """The main function of a worker: makes the jobs that come on its line until that is closed.

    parent: the process number of the parent, with which this process ends.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl-C the parent sends SIGTERM
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    die_with(parent)
    while True:
        try:
            job: Job = line.recv()
        except EOFError:
            return
        try:
            make_job(job)
        except Preempted:  # the run is saved, and its folder says why it stopped
            return
        from bench.runs import machine  # imports torch, as the job has done

        if machine.has_lost_device():
            os._exit(1)  # every later run would fail here; another worker takes its place
        word = last_word(job)
        line.send(word)
        if word != OVER:
            return


def last_word(job: Job) -> str:
    """What a worker says of a job that it has made."""
    if job.lacks_memory:
        return LACKED
    return LAST if is_worn() else OVER


def is_worn() -> bool:
    """Whether this process can capture no CUDA graph any more: another's runs would be faster."""
    calls = sys.modules.get("bench.compiled.calls")
    return calls is not None and calls.Captured.failed


def die_with(parent: int) -> None:
    """Have this process killed when its parent ends, however the parent ends.

    Otherwise a run could still be written when the same command is given again.
    """
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


_kept: list[list[Worker]] = []  # the workers that stay between calls of make_with_workers


@contextmanager
def keep_workers() -> Iterator[None]:
    """A context in which the workers of one `make_with_workers` make the jobs of the next one too.

    It is for jobs that come a few at a time: a worker takes seconds to start.
    """
    workers: list[Worker] = []
    _kept.append(workers)
    try:
        yield
    finally:
        _kept.pop()
        for worker in workers:
            worker.dismiss()


def make_with_workers(jobs: Sequence[Job], count: int, report_end: Callable[[Job], None]) -> None:
    """Make all jobs, `count` at a time; `report_end` gets each that is over, whatever came of it.

    A job whose process is killed goes on in the end, when no other job is being made, until it has
    been begun TRIES times. If this function is interrupted, the workers save and end.
    """
    settle_waiting()
    waiting, failures = deque(jobs), Counter[Path]()
    alone = deque[Job]()  # jobs whose process was killed
    workers = _kept[-1] if _kept else []
    well = False
    try:
        while waiting or alone or any(worker.job for worker in workers):
            going = sum(worker.job is not None for worker in workers)
            while waiting and going < count:
                hand_out(waiting.popleft(), workers)
                going += 1
            if alone and not waiting and not going:
                hand_out(alone.popleft(), workers)
            busy = {worker.line: worker for worker in workers if worker.job is not None}
            for line in connection.wait(list(busy), timeout=1.0):
                worker = busy[line]  # type: ignore[index]
                job, worker.job = worker.job, None
                assert job is not None
                word = receive_answer(worker)
                if word != OVER:
                    worker.process.join()
                    workers.remove(worker)
                    failures[job.note] += 1
                if word != OVER and is_to_go_on(job, word, failures[job.note]):
                    alone.append(job)
                else:
                    report_end(job)
        well = True
    finally:
        if not well:
            stop_workers(workers)
        elif not _kept:
            for worker in workers:
                worker.dismiss()


def hand_out(job: Job, workers: list[Worker]) -> None:
    """Give the job to an idle worker, or to a new one if there is none.

    A job that needs its own process ends the idle workers that have made other jobs.
    """
    idle = [worker for worker in workers if worker.job is None]
    for worker in idle:
        if job.own_process and worker.used:
            workers.remove(worker)
            worker.dismiss()
    idle = [worker for worker in workers if worker.job is None]
    if not idle:
        idle = [Worker()]
        workers += idle
    with suppress(OSError):  # a worker that died while it was idle gives no answer
        idle[0].give(job)


def receive_answer(worker: Worker) -> str | None:
    """Receive a worker's word on its job; None if the worker has ended instead."""
    try:
        word: str = worker.line.recv()
    except (EOFError, OSError):
        return None
    return word


def is_to_go_on(job: Job, word: str | None, failures: int) -> bool:
    """Whether a job that failed so often is to be made again, when no other needs memory.

    word: its worker's last one. What finds no memory on the GPU has it to itself then, or never.
    """
    if word == LACKED:
        return failures < 2
    return failures < TRIES and (is_lost(job) or not job.has_begun)


def stop_workers(workers: Sequence[Worker]) -> None:
    """Tell the workers to save and end; kill those that take longer than PATIENCE."""
    left = [worker.process for worker in workers if worker.process.is_alive()]
    for process in left:
        process.terminate()
    until = time.monotonic() + PATIENCE
    for process in left:
        process.join(max(0.0, until - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()
