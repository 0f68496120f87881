"""Where the runs of a sweep are made: conf/hydra/launcher.

A launcher starts them and waits. It brings nothing back: what became of a run is in its folder,
or in its note if it did not come to one.
"""

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench import codes, stop
from bench.settings import Count, Natural, Positive
from bench.slurm import Queue, Submitted, slurm_executor
from bench.sweep import Task, lost, one, stopped


class Launcher(NamedTuple):
    carry_out: Callable[[Sequence[Task], Path], None]  # with the sweep's folder
    workers: int = 1  # processes that share this machine's cores


def here() -> Launcher:
    """One run after the other, in this process."""

    def carry_out(tasks: Sequence[Task], folder: Path) -> None:
        for task in tasks:
            one(task)
            stop.check()

    return Launcher(carry_out)


def joblib(workers: Count | None = None) -> Launcher:
    """Processes of this machine, which import once. One that is killed takes the others with it:
    what they had begun is begun again in the end, each run alone, twice at most."""
    count = workers or len(os.sched_getaffinity(0))

    def made(tasks: Sequence[Task], workers: int) -> bool:
        from joblib import Parallel, delayed
        from joblib.externals.loky.process_executor import BrokenProcessPool

        try:
            Parallel(workers, backend="loky", batch_size=1)(delayed(one)(task) for task in tasks)
        except BrokenProcessPool:
            return False
        return True

    def carry_out(tasks: Sequence[Task], folder: Path) -> None:
        left, vain = list(tasks), 0
        while vain < 3 and not made(left, count):
            rest = [task for task in left if not task.begun]
            vain = vain + 1 if len(rest) == len(left) else 0
            left = rest
        for task in filter(lost, tasks):
            made([task], 2) or made([task], 2)  # two workers: with one joblib would stay here

    return Launcher(carry_out, count)


def slurm(
    partition: str | None = None,
    minutes: Count = 240,
    signal: Count = 120,
    requeues: Natural = 100,
    at_once: Count = 64,
    runs_per_job: Count = 1,
    cpus: Count = 2,
    gpus: Natural = 0,
    memory_gb: Positive | None = None,
    options: dict[str, Any] | None = None,
) -> Launcher:
    """An array of SLURM jobs through submitit, and a wait for all of them.

    Not by hydra-submitit-launcher: it composes each configuration anew in its job, cannot pack
    runs into one, and gives up waiting when the first job dies.
    """
    given = {
        "partition": partition,
        "gpus_per_node": gpus or None,
        "mem": f"{int(1024 * memory_gb)}M" if memory_gb else None,
    }

    def carry_out(tasks: Sequence[Task], folder: Path) -> None:
        executor = slurm_executor(folder / "slurm", requeues)
        executor.update_parameters(
            job_name="bench",
            time=minutes,
            signal_delay_s=signal,
            array_parallelism=at_once,
            cpus_per_task=cpus,
            additional_parameters=options or {},
            **{key: value for key, value in given.items() if value is not None},
        )
        left, failures = list(tasks), Counter[Path]()
        for _ in range(1 + requeues):
            packs = [left[k : k + runs_per_job] for k in range(0, len(left), runs_per_job)]
            jobs, queue = executor.map_array(Pack(), packs), Queue()
            waiting = [Submitted(job, queue) for job in jobs]
            try:
                while waiting := [each for each in waiting if not each.ended()]:
                    time.sleep(1)
            except BaseException:
                for job in jobs:
                    job.cancel()
                raise
            left = []
            for job, pack in zip(jobs, packs):
                # not scancel's doing, nor too little memory's
                ended = job.state in ("FAILED", "NODE_FAIL", "PREEMPTED", "TIMEOUT")
                for task in pack:
                    failures[task.note] += job.state == "FAILED"
                    again = ended and failures[task.note] < 3
                    if lost(task):
                        task.say("lost", f"its SLURM job {job.job_id} ended as {job.state}")
                        left += [task] * again
                    elif again and (not task.begun or stopped(task)):
                        left.append(task)
            if not left:
                return

    return Launcher(carry_out)


class Pack:
    """What a SLURM job does: some runs. Requeued, it does them again, and those that have ended
    are skipped."""

    def __call__(self, tasks: Sequence[Task]) -> None:
        try:
            for task in tasks:
                one(task)
        except stop.Preempted:  # by SIGTERM: submitit has requeued on its own signal by now
            sys.exit(codes.PUT_OFF)

    def checkpoint(self, *arguments: Any) -> Any:
        """submitit asks for it before it requeues: the runs have saved by then (bench.stop)."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, *arguments)
