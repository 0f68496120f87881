"""Talks to SLURM: submits jobs by submitit, and asks squeue whether they have ended."""

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.core.settings import BadSetting

# A job starts Python by this command, with SIGUSR2 ignored: until submitit is imported and handles
# it, the signal would end the process, and so the job.
IGNORE_SIGNAL = """sh -c 'trap "" USR2; exec "$0" "$@"'"""


# What a configuration may ask sbatch for: which machines, when, on whose account. Other options
# would have SLURM write files (output, chdir), set variables (export) or run programs (prolog).
OPTIONS = (
    "account", "begin", "constraint", "contiguous", "deadline", "exclude", "exclusive",
    "gres", "hint", "licenses", "mail-type", "mail-user", "mem-per-cpu", "mem-per-gpu", "nice",
    "nodelist", "partition", "priority", "qos", "reservation", "switches", "threads-per-core",
    "time-min", "tmp", "wckey",
)  # fmt: skip
MOST_OF_ARRAY = 1001  # jobs, where SLURM has its default
UNSETTLED = {"PENDING", "RUNNING", "COMPLETING", "REQUEUED"}  # which no job is that has ended
WAITS = (0.0, 2.0, 4.0, 8.0)  # seconds before sacct is asked each time
WORD = re.compile(r"[A-Za-z0-9_.,:/@=+%&|*\[\]()-]+")  # no blank, quote, $ or control character


def check_options(options: Mapping[str, Any], before: str = "hydra.launcher.options.") -> None:
    """Raise BadSetting unless these are options of sbatch that we know, each with a plain value.

    before: what stands before an option where the user has written it.

    Each becomes a line `#SBATCH --option=value` of the script that SLURM runs, where a line break
    would begin a command.
    """
    for option, value in options.items():
        where = f"{before}{option}"
        if option == "clusters":  # squeue would list none of its jobs, which then count as ended
            raise BadSetting(f"{where}: start the sweep on a machine of that cluster instead")
        if str(option).replace("_", "-") not in OPTIONS:
            raise BadSetting(f"{where}: no such option; there is {', '.join(OPTIONS)}")
        word = isinstance(value, str) and WORD.fullmatch(value)
        if not (word or value is None or isinstance(value, int | float)):
            raise BadSetting(f"{where}={value}: write one word, without blanks and quotes")


def slurm_executor(folder: Path, requeues: int) -> Any:
    """submitit's executor; raises BadSetting if there is no submitit or no SLURM.

    folder: for submitit's files. requeues: how often submitit may requeue a job at its time limit.
    """
    if not str(folder).isprintable():
        raise BadSetting(f"run.root={folder}: a script of SLURM cannot name this folder")
    try:
        import submitit
    except ImportError:
        raise BadSetting(
            "SLURM needs submitit: write pip install 'bilevel-bench[slurm]', or uv sync in a clone"
        ) from None
    try:
        # -P: a job looks for no module in its current folder, whatever SLURM does with variables
        python = f"{IGNORE_SIGNAL} {shlex.quote(sys.executable)} -P"
        return submitit.SlurmExecutor(folder=folder, max_num_timeout=requeues, python=python)
    except RuntimeError:
        raise BadSetting("SLURM: there is no sbatch on this machine") from None


def most_of_array() -> int:
    """How many jobs an array may have here; SLURM's default if it does not say."""
    try:
        command = ["scontrol", "show", "config"]
        shown = subprocess.run(command, capture_output=True, text=True).stdout
    except OSError:  # there is no scontrol
        shown = ""
    found = re.search(r"^MaxArraySize\s*=\s*(\d+)", shown, re.MULTILINE)
    return max(1, int(found[1])) if found else MOST_OF_ARRAY


def submit(executor: Any, call: Callable[..., Any], packs: Sequence[Any]) -> list["Submitted"]:
    """Submit an array of jobs, each of which calls `call` with one of the packs.

    Raises BadSetting if sbatch refuses them.
    """
    from submitit.core.utils import FailedJobError

    queue = Queue()
    try:
        return [Submitted(job, queue) for job in executor.map_array(call, packs)]
    except FailedJobError as error:
        why = " ".join(str(error).split())
        raise BadSetting(
            f"hydra/launcher=slurm: sbatch refuses {len(packs)} jobs ({why}): change "
            "hydra.launcher, where runs_per_job=... makes them fewer"
        ) from None


class Queue:
    """What squeue lists of this user's jobs.

    squeue is asked every 2 s for a new job, and less often for an older one: at least every 60 s.
    """

    def __init__(self) -> None:
        self.looks: list[tuple[float, frozenset[str]]] = []  # (time, jobs) of the last two answers

    def misses(self, job_id: str, since: float) -> bool:
        """Whether both of the last two answers lack a job that was submitted before them.

        since: when it was submitted (time.monotonic).
        """
        now = time.monotonic()
        waited = now - max([since, *(when for when, _ in self.looks)])
        if waited > min(60, max(2, (now - since) / 2)):
            listed = subprocess.run(
                ["squeue", "-h", "-a", "-r", "-u", str(os.getuid()), "-o", "%i"],
                capture_output=True, text=True,
            )  # fmt: skip
            if listed.returncode == 0:  # otherwise SLURM has not answered
                self.looks = [*self.looks[-1:], (now, frozenset(listed.stdout.split()))]
        after = [jobs for when, jobs in self.looks if when > since]
        return len(after) == 2 and not any(job_id in jobs for jobs in after)


@dataclass
class Submitted:
    """A submitit job, which can tell whether it has ended.

    submitit itself asks sacct, which is not enough. Some clusters do not have it, and of the jobs
    of an array that were cancelled before they began it may list none by itself (SLURM 22.05).
    """

    job: Any
    queue: Queue
    since: float = field(default_factory=time.monotonic)

    def has_ended(self) -> bool:
        """Whether the job has ended, by submitit or by squeue."""
        return self.job.done() or self.queue.misses(self.job.job_id, self.since)

    def state(self, anew: bool) -> str:
        """SLURM's word for how the job stands; anew: ask sacct, and not what it last said."""
        mode = "force" if anew else "cache"
        return str(self.job.watcher.get_state(self.job.job_id, mode=mode))


def ends_of(jobs: Sequence[Submitted]) -> list[str]:
    """SLURM's words for how these jobs, which have ended, did so, such as FAILED.

    sacct is asked anew: submitit's own answer may be ten minutes old, and say that a job is running
    which has died since. While sacct is behind too, it is asked again, for some seconds.
    """
    states: list[str] = []
    for wait in WAITS:
        time.sleep(wait)
        # one answer is for all jobs
        states = [job.state(anew=k == 0) for k, job in enumerate(jobs)]
        if not set(states) & UNSETTLED:
            break
    return states
