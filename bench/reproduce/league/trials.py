"""The runs of a method on one task of a track: the trials, the choice among them, the scored runs.

Each run that ends adds a line to a file, so that a process which is killed loses one run at most.
"""

import json
import math
import resource
import sys
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from statistics import fmean
from typing import Literal, NamedTuple

from bench.core.settings import BadSetting, build, reason_of
from bench.core.work import Ended, Goal, Limit, work_to_goal
from bench.reproduce.league.digests import describe_method, describe_task, method_digest
from bench.reproduce.league.rules import (
    Entrant,
    Track,
    configured,
    entrant,
    read_track,
    trial_settings,
)
from bench.reproduce.league.space import Scalar
from bench.reproduce.league.targets import TaskTargets, task_of
from bench.reproduce.schema import StrictModel
from bench.runs import machine
from bench.runs.files import append_to
from bench.runs.name import hash_of

Status = Literal["reached", "limit", "diverged", "failed", "killed"]


class Row(StrictModel):
    """How a run ended.

    key: names all that decides the run. status: "reached" the target, came to the "limit",
    "diverged", "failed" with an exception, or its process was "killed". value: of the task's metric
    at the end; None where it is not finite. calls: by the oracle's keys.
    """

    key: str
    seed: int
    settings: Mapping[str, Scalar]
    status: Status
    reason: str | None = None
    value: float | None = None
    steps: int = 0
    calls: Mapping[str, int] = {}
    samples: int = 0
    cpu_seconds: float = 0.0

    @property
    def total_calls(self) -> int:
        """All calls of the oracle together."""
        return sum(self.calls.values())

    def work(self, unit: str) -> float:
        """What it took to reach the target, in this unit; infinite if it was not reached.

        unit: "calls", "samples", "cpu_seconds" or "rounds"; with "value" it is the value of a run
        that came to its limit of rounds.
        """
        if unit == "value":
            whole = self.status == "limit" and self.reason is None and self.value is not None
            return math.inf if not whole or self.value is None else self.value
        if self.status != "reached":
            return math.inf
        taken = {
            "calls": self.total_calls,
            "samples": self.samples,
            "cpu_seconds": self.cpu_seconds,
            "rounds": self.steps,
        }
        return float(taken[unit])


class Case(NamedTuple):
    """A run that is asked for. key: names all that decides it."""

    key: str
    seed: int
    settings: dict[str, Scalar]


class Trial(NamedTuple):
    """Settings that are tried on one seed after the other, as long as the target is reached.

    rows: of the seeds so far. waiting: the run that is asked for next; None: the trial has ended.
    """

    settings: dict[str, Scalar]
    rows: list[Row]
    waiting: Case | None

    @property
    def last(self) -> Row:
        """The row that ended the trial."""
        return self.rows[-1]

    def work(self, track: Track) -> float:
        """What a trial that has ended took: the geometric mean over the tuning seeds of the work to
        the target, or the mean of the values where these are compared; infinite if one is missing.
        """
        took = [row.work(track.scored) for row in self.rows]
        if math.inf in took:
            return math.inf
        if track.by == "value":
            return fmean(took)
        # statistics.geometric_mean takes logarithms, which tell equal products apart, and refuses 0
        return math.prod(took) ** (1 / len(took))


class Progress(NamedTuple):
    """The rows of a method on a task, as far as they are there.

    memory_mb: the most memory that the runs took beyond that of an idle process; None if it was
    not measured.
    """

    rows: Mapping[str, Row]
    memory_mb: float | None


class Work(NamedTuple):
    """What a process needs to know to make a method's runs on a task.

    digest: of the method as the command has it (digests.method_digest). file: where rows go.
    """

    track: str
    folder: Path
    task: str
    method: str
    digest: str
    targets: TaskTargets
    data: Path
    file: Path


def case_of(entered: Entrant, targets: TaskTargets, seed: int, settings: dict[str, Scalar]) -> Case:
    """The run of a method at a seed with these settings; raises BadSetting for wrong ones."""
    config = configured(entered, seed, settings)
    meaning = {
        "rules": targets.rules,
        "target": targets.seeds[str(seed)].model_dump(),
        **describe_task(config["task"]),
        **describe_method(entered, config["algorithm"]),
        "seed": seed,
    }
    return Case(hash_of(meaning), seed, settings)


def trials_of(entered: Entrant, targets: TaskTargets, rows: Mapping[str, Row]) -> list[Trial]:
    """The trials of a method on a task, as far as these rows go.

    Raises BadSetting if a setting of its space is refused.
    """
    numbers = range(entered.track.trials)
    return [trial_of(entered, targets, trial_settings(entered, k), rows) for k in numbers]


def trial_of(
    entered: Entrant, targets: TaskTargets, settings: dict[str, Scalar], rows: Mapping[str, Row]
) -> Trial:
    """The trial of these settings, as far as these rows go."""
    ended = list[Row]()
    for seed in entered.track.tried:
        case = case_of(entered, targets, seed, settings)
        if case.key not in rows:
            return Trial(settings, ended, case)
        ended.append(rows[case.key])
        if math.isinf(ended[-1].work(entered.track.scored)):
            break
    return Trial(settings, ended, None)


def cases(
    entered: Entrant, targets: TaskTargets, rows: Mapping[str, Row]
) -> tuple[list[Trial], list[Case]]:
    """The trials and, once these have ended, the scored runs with the settings of the best one."""
    trials = trials_of(entered, targets, rows)
    if any(trial.waiting for trial in trials):
        return trials, []
    chosen = best_trial(trials, entered.track).settings
    seeds = range(entered.track.seeds)
    return trials, [case_of(entered, targets, seed, chosen) for seed in seeds]


def best_trial(trials: Sequence[Trial], track: Track) -> Trial:
    """The trial that took the least work to the target; if none reached it on all seeds, the one
    that did on most of them before it missed, and then came closest without failing."""

    def order(trial: Trial) -> tuple[float, int, bool, float]:
        last = trial.last
        value = math.inf if last.value is None else last.value
        failed = last.status not in ("reached", "limit")
        return trial.work(track), -len(trial.rows), failed, value

    return min(trials, key=order)


def read_progress(file: Path) -> Progress:
    """The rows that are there. A last line that was cut short by a kill is left out.

    Raises BadSetting if another line is damaged.
    """
    rows: dict[str, Row] = {}
    memory: float | None = None
    lines = file.read_bytes().split(b"\n")[:-1] if file.is_file() else []
    for number, line in enumerate(lines, 1):
        try:
            found = json.loads(line.decode())
            if "memory_mb" in found:
                memory = max(memory or 0.0, found["memory_mb"])
            else:
                row = Row.model_validate_json(line)
                rows[row.key] = row
        except (ValueError, TypeError):
            raise BadSetting(
                f"{file}: line {number} is damaged: remove that line, and its run is made again"
            ) from None
    return Progress(rows, memory)


def add_line(file: Path, line: str) -> None:
    """Add a line to a file of rows, after one that was cut short if there is such a one."""
    with append_to(file) as out:
        if out.tell():
            out.seek(-1, 2)
            if out.read(1) != b"\n":
                drop_cut_line(file)
        out.write(line.encode() + b"\n")


def drop_cut_line(file: Path) -> None:
    """Remove what stands behind the last whole line."""
    content = file.read_bytes()
    with file.open("r+b") as out:
        out.truncate(content.rfind(b"\n") + 1)


def make_run(entered: Entrant, targets: TaskTargets, case: Case, data: Path) -> Row:
    """Make a run; what the method raises is in the row's reason.

    Raises BadSetting or OSError if the task cannot be built, as where its data are not there.
    """
    track, about = entered.track, entered.track.tasks[entered.task]
    config = configured(entered, case.seed, case.settings)
    task = task_of(about, config["task"], case.seed, data)
    try:
        limit = Limit(track.unit, track.limit_of(entered.task), track.cpu_seconds)
        goal = Goal(about.metric, targets.seeds[str(case.seed)].target, about.higher)
        end = work_to_goal(
            task, build(config["algorithm"]), case.seed, goal, limit, dear=about.solved is not None
        )
    except (Exception, SystemExit) as error:
        return Row(**case._asdict(), status="failed", reason=reason_of(error))
    return row_of(case, end)


def row_of(case: Case, end: Ended) -> Row:
    """The row of a run that has ended."""
    return Row(
        **case._asdict(),
        status=end.status,
        reason=end.reason,
        value=float(f"{end.value:.6g}") if math.isfinite(end.value) else None,
        steps=end.steps,
        calls=dict(sorted(end.calls.items())),
        samples=end.samples,
        cpu_seconds=round(end.cpu_seconds, 6),
    )


def missing(entered: Entrant, targets: TaskTargets, file: Path) -> Iterator[Case]:
    """The runs that are still to be made, each as long as no row of it is there."""
    while True:
        rows = read_progress(file).rows
        trials, scored = cases(entered, targets, rows)
        tried = [trial.waiting for trial in trials if trial.waiting]
        tried.sort(key=attrgetter("seed"))  # as passes make them: the first is the one going on
        waiting = [*tried, *(case for case in scored if case.key not in rows)]
        if not waiting:
            return
        yield from waiting


def make_missing(work: Work, idle_kb: float | None = None) -> None:
    """Make the runs of a method on a task that are not there yet, one after the other.

    idle_kb: the memory of this process before, beyond which that of the runs is noted; None: it is
    not measured. Raises BadSetting if the method is no longer the one of the command.
    """
    entered = entrant(read_track(work.track, work.folder), work.track, work.task, work.method)
    if method_digest(entered) != work.digest:
        raise BadSetting("the method has changed since the command began: give the command again")
    for case in missing(entered, work.targets, work.file):
        row = make_run(entered, work.targets, case, work.data)
        if idle_kb is not None:  # before the row: a kill leaves no row whose memory is not known
            note_memory(work.file, machine.peak_of_process_kb() - idle_kb)
        add_line(work.file, row.model_dump_json())


def note_memory(file: Path, kb: float) -> None:
    """Add a line with the memory that runs took, if it is the most so far."""
    known, mb = read_progress(file).memory_mb, round(kb / 1024, 1)
    if known is None or mb > known:
        add_line(file, json.dumps({"memory_mb": mb}))


def make_apart(work: Work) -> None:
    """As `make_missing`, in a process of its own, whose memory is limited and measured."""
    import torch

    machine.settle(torch.device("cpu"), threads=1)
    idle = machine.peak_of_process_kb()
    limit_memory(read_track(work.track, work.folder).memory_gb)
    make_missing(work, idle)


def limit_memory(gb: float) -> None:
    """Let this process take so much more memory and no more: then it has a MemoryError.

    Only Linux keeps to it.
    """
    if sys.platform != "linux":
        return
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + int(gb * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))


def reason_killed(code: int) -> str:
    """What is known of a run that has ended its process, by the exit code of the process: a signal
    is one below 0."""
    if code >= 0:
        return f"it ended its process with exit code {code}"
    return f"its process was killed by signal {-code}; 9 is often for lack of memory"


def refuse(entered: Entrant, targets: TaskTargets) -> None:
    """Raise BadSetting if the method's space has a setting that its function refuses."""
    try:
        trials_of(entered, targets, {})
    except BadSetting as error:
        raise BadSetting(f"--method {entered.method}, tuning: {error}") from None
