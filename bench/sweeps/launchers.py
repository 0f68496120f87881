"""The places where jobs are made: conf/hydra/launcher has their settings, and `reproduce run` an
option --launcher.

A launcher starts jobs, waits for them, and reports each job that is over, whatever came of it.
"""

import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.core.settings import Count, Natural, Positive
from bench.runs import exit_codes, stop
from bench.runs.environment import cores
from bench.sweeps.jobs import Job, is_lost, is_preempted, make_job
from bench.sweeps.slurm import (
    Submitted,
    check_options,
    ends_of,
    most_of_array,
    slurm_executor,
    submit,
)
from bench.sweeps.workers import make_with_workers

ReportEnd = Callable[[Job], None]


class Launcher(NamedTuple):
    """launch makes jobs and reports each that is over; the path is a folder for its own files."""

    launch: Callable[[Sequence[Job], Path, ReportEnd], None]
    workers: int = 1  # how many processes at once share the threads of the cores
    one_machine: bool = True  # whether its processes share this machine's cores


def here() -> Launcher:
    """Make one run after the other, in this process."""

    def launch(jobs: Sequence[Job], folder: Path, report_end: ReportEnd) -> None:
        for job in jobs:
            make_job(job)
            report_end(job)
            stop.raise_if_asked()

    return Launcher(launch)


def local(workers: Count | None = None) -> Launcher:
    """Make runs in worker processes of this machine (bench.sweeps.workers).

    workers: by default as many as the cores allow when each takes run.threads of them.
    """

    def launch(jobs: Sequence[Job], folder: Path, report_end: ReportEnd) -> None:
        threads = max(job.config["run"]["threads"] for job in jobs)
        count = workers or max(1, cores() // threads)
        make_with_workers(jobs, min(count, len(jobs)), report_end)

    return Launcher(launch, workers or 1)


def joblib(workers: Count | None = None) -> Launcher:
    """Make runs in the processes of joblib.

    If one process is killed, joblib ends the others too. The runs that they had begun then go on in
    the end, one at a time, and at most twice.

    workers: by default one for each core.
    """
    count = workers or cores()

    def make_jobs(jobs: Sequence[Job], workers: int) -> bool:
        """Make jobs in new processes; False if one of the processes was killed."""
        from joblib import Parallel, delayed
        from joblib.externals.loky.process_executor import BrokenProcessPool

        try:
            Parallel(workers, backend="loky", batch_size=1)(delayed(make_job)(job) for job in jobs)
        except BrokenProcessPool:
            return False
        return True

    def launch(jobs: Sequence[Job], folder: Path, report_end: ReportEnd) -> None:
        left, vain = list(jobs), 0  # vain: attempts in a row that began no further job
        while vain < 3 and not make_jobs(left, count):
            rest = [job for job in left if not job.has_begun]
            vain = vain + 1 if len(rest) == len(left) else 0
            left = rest
        for job in filter(is_lost, jobs):
            for _ in range(2):  # once more where the process was killed again
                if make_jobs([job], 2):  # with one worker joblib would make it in this process
                    break
        for job in jobs:
            report_end(job)

    return Launcher(launch, count)


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
    """Make runs in an array of SLURM jobs, by way of submitit, and wait for all of them.

    minutes: the time limit of a SLURM job. signal: seconds before the limit at which its runs are
    told to save. requeues: how often a job may be submitted again. at_once: SLURM jobs that may run
    at the same time. options: further options of sbatch (bench.sweeps.slurm.OPTIONS).
    Raises BadSetting.

    hydra-submitit-launcher is not used: it composes each configuration again in its job, cannot
    pack several runs into one job, and stops waiting when the first job dies.
    """
    check_options({"partition": partition}, "hydra.launcher.")
    check_options(options or {})
    given = {
        "partition": partition,
        "gpus_per_node": gpus or None,
        "mem": f"{int(1024 * memory_gb)}M" if memory_gb else None,
    }

    def launch(jobs: Sequence[Job], folder: Path, report_end: ReportEnd) -> None:
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
        left, failures, most = list(jobs), Counter[Path](), most_of_array()
        for _ in range(1 + requeues):
            packs = [left[k : k + runs_per_job] for k in range(0, len(left), runs_per_job)]
            left = []
            for k in range(0, len(packs), most):
                left += make_array(executor, packs[k : k + most], failures, report_end)
            if not left:
                return
        for job in left:
            report_end(job)

    return Launcher(launch, one_machine=False)


def make_array(
    executor: Any,
    packs: Sequence[Sequence[Job]],
    failures: Counter[Path],
    report_end: ReportEnd,
) -> list[Job]:
    """Make packs of jobs, each in a SLURM job of one array; gives those that are to go on.

    failures: counts by a job's note how often its SLURM job has failed. Raises BadSetting.
    """
    array = submit(executor, Pack(), packs)
    wait_for(array)
    cut = [k for k, pack in enumerate(packs) if any(map(was_cut, pack))]
    ends = dict(zip(cut, ends_of([array[k] for k in cut]), strict=True))
    left = []
    for k, pack in enumerate(packs):
        # A SLURM job that was cancelled, or had too little memory, is not submitted again.
        end = ends.get(k)
        unlucky = end in ("FAILED", "NODE_FAIL", "PREEMPTED", "TIMEOUT")
        for job in pack:
            failures[job.note] += end == "FAILED"
            again = unlucky and failures[job.note] < 3 and was_cut(job)
            if is_lost(job):
                job.write_note("lost", f"its SLURM job {array[k].job.job_id} ended as {end}")
            if again:
                left.append(job)
            else:
                report_end(job)
    return left


def was_cut(job: Job) -> bool:
    """Whether the process of a job, which is no more, has left something of it to be made."""
    return is_lost(job) or not job.has_begun or is_preempted(job)


def wait_for(arrays: Sequence[Submitted]) -> None:
    """Wait until all SLURM jobs have ended; if this is interrupted, cancel them all."""
    waiting = arrays
    try:
        while waiting := [submitted for submitted in waiting if not submitted.has_ended()]:
            time.sleep(1)
    except BaseException:
        for submitted in arrays:
            submitted.job.cancel()
        raise


class Pack:
    """What a SLURM job does: it makes some runs.

    A job that is requeued does so again; runs that have ended are then skipped.
    """

    def __call__(self, jobs: Sequence[Job]) -> None:
        try:
            for job in jobs:
                make_job(job)
        except stop.Preempted:  # by SIGTERM: on its own signal submitit has requeued the job
            sys.exit(exit_codes.PUT_OFF)

    def checkpoint(self, *arguments: Any) -> Any:
        """What submitit is to run when it requeues the job, whose runs are saved by then.

        submitit requires the name of this method.
        """
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, *arguments)
