"""Starts the runs that a plan lacks: one `bench` process each, here or through SLURM."""

import ctypes
import json
import math
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from bench import lock, record
from bench.codes import DONE, FAILED
from bench.reproduce.plan import Job
from bench.settings import BadSetting
from bench.slurm import Queue, Submitted, slurm_executor

OUTSIDE = (
    "run.device",
    "run.threads",
    "run.checkpoint",
    "run.retry_failed",
    "data.root",
    "data.download",
    "logger",
)
PATIENCE = 20.0  # seconds for runs that are told to stop, to save


@dataclass(frozen=True)
class Ended:
    """How a run's process ended."""

    job: Job
    code: int
    log: Path

    def reason(self, root: Path) -> str:
        """Why: as the run's summary has it, or else the last line that the process wrote."""
        summary = root / self.job.name / "summary.json"
        if summary.is_file():
            return str(record.read_json(summary)["reason"] or "done")
        if self.code < 0:
            return f"killed by signal {-self.code}"
        try:
            lines = [line for line in self.log.read_text().splitlines() if line.strip()]
        except OSError:
            lines = []
        return lines[-1].removeprefix("bench: ") if lines else f"exit code {self.code}"


class Going(Protocol):
    """A started run."""

    def poll(self) -> int | None: ...
    def terminate(self) -> None: ...


Start = Callable[[Job, list[str], Path], Going]


def checked_extra(extra: Sequence[str]) -> list[str]:
    """Overrides for all runs: only of what a run's name does not depend on; raises BadSetting."""
    for setting in extra:
        key, equals, _ = setting.partition("=")
        if not equals or not any(key == k or key.startswith(f"{k}.") for k in OUTSIDE):
            raise BadSetting(
                f"{setting}: an artifact's settings are its spec's; what may be added is "
                f"{', '.join(OUTSIDE)}; --runs FOLDER says where runs go"
            )
    return list(extra)


def here(job: Job, command: list[str], log: Path) -> subprocess.Popen[bytes]:
    """A process of this machine, which dies with this one: a second `reproduce run` must not
    find it still writing."""
    with log.open("wb") as file:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,
        )


def _deaf() -> None:
    """SLURM signals the whole job: until the run listens, that would end it."""
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)


def _die_with_parent() -> None:
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


@dataclass
class SlurmJob:
    """A SLURM job as a started run."""

    submitted: Submitted

    def poll(self) -> int | None:
        if not self.submitted.ended():
            return None
        job = self.submitted.job
        if not job.done() or job.exception() is not None:
            return 1
        return int(job.result())

    def terminate(self) -> None:
        self.submitted.job.cancel()


def slurm(folder: Path, minutes: int, partition: str | None) -> Start:
    """Submits each run as a SLURM job of its own, which is requeued at its limit; raises
    BadSetting without submitit or SLURM."""
    executor = slurm_executor(folder / "slurm", requeues=100)
    options = {"partition": partition} if partition else {}
    executor.update_parameters(time=minutes, cpus_per_task=2, job_name="bench", **options)
    queue = Queue()

    def start(job: Job, command: list[str], log: Path) -> SlurmJob:
        return SlurmJob(Submitted(executor.submit(Call(), command, str(log)), queue))

    return start


class Call:
    """What a SLURM job does."""

    process: subprocess.Popen[bytes] | None = None

    def __call__(self, command: list[str], log: str) -> int:
        with open(log, "ab") as file:
            self.process = subprocess.Popen(
                command, stdout=file, stderr=subprocess.STDOUT, preexec_fn=_deaf
            )
        return self.process.wait()

    def checkpoint(self, *arguments: Any) -> Any:
        """submitit asks for it on its signal, before it requeues: here the run saves."""
        from submitit.helpers import DelayedSubmission

        if self.process is not None:
            self.process.terminate()
            self.process.wait()
        return DelayedSubmission(Call(), *arguments)


Bundle = tuple[Job, ...]  # of one process: one run, or a grid's points side by side


def bundles(jobs: Sequence[Job]) -> list[Bundle]:
    """Grid points that differ in step sizes and the like only, together."""
    alike: dict[str, list[Job]] = {}
    for job in jobs:
        chosen = dict(job.point.chosen)
        lanes = all(
            k.startswith("algorithm.") and type(v) in (int, float) for k, v in chosen.items()
        )
        mark = [job.point.settings, job.seed, list(chosen)] if lanes and chosen else job.name
        alike.setdefault(json.dumps(mark), []).append(job)
    found: list[Bundle] = []
    for group in alike.values():
        columns = list(zip(*(dict(job.point.chosen).values() for job in group)))
        numbers = all(float in map(type, values) for values in columns)  # others may be counts
        full = math.prod(len(set(values)) for values in columns)
        whole = numbers and len(group) == full
        found += [tuple(group)] if whole else [(job,) for job in group]
    return found


def command(bundle: Bundle, root: Path, extra: Sequence[str]) -> list[str]:
    bench, first = [sys.executable, "-m", "bench"], bundle[0]
    if len(bundle) == 1:
        again = ["run.force=true"] if first.again else []
        return [*bench, *first.overrides, f"run.root={root}", *extra, *again]
    keys = [path for path, _ in first.point.chosen]
    values = {key: {dict(job.point.chosen)[key]: None for job in bundle} for key in keys}
    grid = [f"{key}={','.join(map(str, values[key]))}" for key in keys]
    own = [o for o in first.overrides if o.partition("=")[0] not in keys]
    lanes = f"vectorize=[{','.join(keys)}]"
    return [*bench, "-m", *own, *grid, lanes, f"run.root={root}", *extra]


def carry_out(
    jobs: Sequence[Job],
    start: Start,
    root: Path,
    extra: Sequence[str],
    at_once: int,
    started: Callable[[Job], None] = lambda job: None,
    side_by_side: bool = False,
    parted: Callable[[int, Ended], None] = lambda count, ended: None,
) -> Iterator[Ended]:
    """Run them all, `at_once` at a time; gives each as it ends, whatever its exit code.

    side_by_side: grid points as lanes of one process where their method can be; times are then
    shares. parted: told how many of them are run one by one instead, and how the process of all
    ended."""
    logs = root / ".reproduce" / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    waiting = list(reversed(bundles(jobs) if side_by_side else [(job,) for job in jobs]))
    going: list[tuple[Bundle, Path, Going]] = []
    with _stopped_by_terminate():
        try:
            while waiting or going:
                while len(going) < at_once and (bundle := _free(waiting, root)):
                    log = logs / f"{bundle[0].name.replace('/', '_')}.log"
                    started(bundle[0])
                    process = start(bundle[0], command(bundle, root, extra), log)
                    going.append((bundle, log, process))
                for entry in list(going):
                    bundle, log, process = entry
                    code = process.poll()
                    if code is None:
                        continue
                    going.remove(entry)
                    left = [
                        job for job in bundle if not (root / job.name / "summary.json").exists()
                    ]
                    if len(bundle) > 1 and left:  # what is no lane is a run of its own
                        waiting += [(job,) for job in reversed(left)]
                        parted(len(left), Ended(left[0], code, log))
                    for job in bundle:
                        if len(bundle) == 1 or job not in left:
                            yield Ended(job, code if len(bundle) == 1 else _code(job, root), log)
                time.sleep(0.05)
        finally:
            for _, _, process in going:
                process.terminate()
            until = time.monotonic() + PATIENCE
            while any(p.poll() is None for _, _, p in going) and time.monotonic() < until:
                time.sleep(0.05)


def _free(waiting: list[Bundle], root: Path) -> Bundle | None:
    """The next one that no other process is at, such as a second `reproduce run`; None: none."""
    for k in reversed(range(len(waiting))):
        if all(lock.holder(root / job.name) is None for job in waiting[k]):
            return waiting.pop(k)
    return None


def _code(job: Job, root: Path) -> int:
    """As its process would have it, had it been alone."""
    status = record.read_json(root / job.name / "summary.json", {"status"})["status"]
    return DONE if status == "done" else FAILED


@contextmanager
def _stopped_by_terminate() -> Iterator[None]:
    """SIGTERM ends the runs too: it becomes a KeyboardInterrupt here."""

    def stop(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    old = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, old)
