"""What groups of runs measured: means over seeds with their 95% intervals, and who is best."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from bench.reproduce import statistics
from bench.reproduce.chosen_runs import FoundRun
from bench.reproduce.grouping import Group
from bench.reproduce.plan import LARGEST, metric_value
from bench.reproduce.reading import leave_out_damaged
from bench.reproduce.specs import Book, find_metric
from bench.reproduce.statistics import LEVEL, Array
from bench.runs.history import spread

NOT_FINISHED = "not finished"
HIDDEN = "info/"  # metrics that the comparison does not show
TOTALS = ("calls", "samples")  # of all kinds of calls of the oracle together


@dataclass(frozen=True)
class MeasuredRun:
    """A run with what it measured.

    metric: the one that its task is judged by. last: the values at its end, None where one is not
    finite. columns: metric -> its values at the rows that were read, nan where one is not finite.
    """

    run: FoundRun
    state: str
    metric: str
    last: Mapping[str, float | None]
    references: Mapping[str, float]
    columns: Mapping[str, Array]


@dataclass(frozen=True)
class Band:
    """A group's curves, over the runs that `counted` gives.

    mean: metric -> mean over seeds, axes among them. reach: metric -> half the width of the 95%
    interval of the mean; there is none for a single run.
    """

    mean: Mapping[str, Array]
    reach: Mapping[str, Array]


class End(NamedTuple):
    """The last values of a group in a metric: mean, standard deviation, interval and number."""

    mean: float
    sd: float | None
    low: float | None
    high: float | None
    n: int


class Difference(NamedTuple):
    """A group's mean less the best group's, with its 95% interval.

    pairs: over how many seeds the two are paired; 0: they have not two seeds in common, and the
    interval is Welch's. low, high: None if there are too few runs.
    """

    mean: float
    low: float | None
    high: float | None
    pairs: int


def measure_group(group: Group, points: int) -> list[MeasuredRun]:
    """The group's runs that have measured something, at most `points` rows of each.

    The rows are the same of all runs, and the last one of each is among them. A run with a damaged
    file has a line on standard error, and is left out.
    """
    lengths: dict[int, int] = {}
    for i, run in enumerate(group.runs):
        with leave_out_damaged():
            lengths[i] = run.folder.history_length()
    wanted = spread(max(lengths.values(), default=0), points)
    found = []
    for i, length in lengths.items():
        with leave_out_damaged():
            one = measure_run(group.runs[i], wanted | {length - 1})
            found += [one] if one else []
    return found


def measure_run(run: FoundRun, wanted: set[int]) -> MeasuredRun | None:
    """A run with the rows of these numbers; None if it has no row yet.

    Raises BadSetting or OSError if a file is damaged.
    """
    rows = run.folder.history_at(wanted)
    if not rows:
        return None
    summary = run.folder.summary() or {}
    last = {**rows[-1], **summary.get("last", {})}
    names = [name for name in last if name != "digest" and not name.startswith(HIDDEN)]
    own = [name for name in names if "/" not in name and not name.endswith("seconds")]
    names += [t for t in TOTALS if t not in last and any(n.startswith(f"{t}/") for n in names)]
    return MeasuredRun(
        run,
        summary.get("status", NOT_FINISHED),
        summary.get("metric", own[1] if len(own) > 1 else "step"),
        {name: finite_or_none(metric_value(last, name)) for name in names},
        summary.get("references", {}),
        columns_of(rows, names),
    )


def columns_of(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, Array]:
    """The values of metrics in rows; nan where one is not finite or not there."""
    found = {}
    for name in names:
        absent = 0.0 if is_count(name) else None
        values = np.array([row.get(name, absent) for row in rows], dtype=np.float64)
        values[np.abs(values) > LARGEST] = np.nan
        found[name] = values
    for total in TOTALS:
        counts = [values for name, values in found.items() if name.startswith(f"{total}/")]
        if counts and not any(total in row for row in rows):
            found[total] = np.sum(counts, axis=0)
    return found


def is_count(name: str) -> bool:
    """Whether a metric counts calls of one kind, or their samples: those not made are 0."""
    return name.startswith(("calls/", "samples/"))


def finite_or_none(value: float | None) -> float | None:
    """The value, or None if it is not finite."""
    return value if value is not None and math.isfinite(value) else None


def last_value(run: MeasuredRun, metric: str) -> float | None:
    """A metric at the end of a run; None if it is not finite or not there. Calls not made are 0."""
    return run.last.get(metric, 0.0 if is_count(metric) else None)


def counted(runs: Sequence[MeasuredRun]) -> list[MeasuredRun]:
    """The runs of a group that its mean is over: those that are done, if some are.

    If none is, they are those that diverged, or else those that are not finished.
    """
    done = [run for run in runs if run.state == "done"]
    return done or [run for run in runs if run.state != NOT_FINISHED] or list(runs)


def count_states(runs: Iterable[MeasuredRun]) -> Counter[str]:
    """How many of the runs ended in which way."""
    return Counter(run.state for run in runs)


def make_band(runs: Sequence[MeasuredRun]) -> Band:
    """The curves of a group, as far as all of these runs go."""
    if len(runs) == 1:
        return Band(runs[0].columns, {})
    steps = [run.columns["step"] for run in runs]
    common = reduce(np.intersect1d, steps)
    at = [np.searchsorted(own, common) for own in steps]
    mean, reach = {}, {}
    for name in runs[0].columns:
        if all(name in run.columns for run in runs):
            values = np.stack([run.columns[name][i] for run, i in zip(runs, at)])
            with np.errstate(over="ignore", invalid="ignore"):
                mean[name] = values.mean(axis=0)
                reach[name] = statistics.student_reach(values, LEVEL)
    return Band(mean, reach)


def find_end(runs: Sequence[MeasuredRun], metric: str) -> End | None:
    """The last values of these runs in a metric; None if no run has a finite one."""
    values = [value for run in runs if (value := last_value(run, metric)) is not None]
    if not values:
        return None
    if len(values) == 1:
        return End(values[0], None, None, None, 1)
    with np.errstate(over="ignore", invalid="ignore"):
        mean = float(np.mean(values))
        low, high = statistics.student_interval(values, LEVEL)
        # NumPy's deviation of equal values need not be 0
        spread = 0.0 if min(values) == max(values) else float(np.std(values, ddof=1))
        return End(mean, spread, low, high, len(values))


def difference(
    runs: Sequence[MeasuredRun], best: Sequence[MeasuredRun], metric: str
) -> Difference | None:
    """How far the mean of a group lies from that of the best; None if there is no finite value."""
    mine, theirs = by_seed(runs, metric), by_seed(best, metric)
    if not mine or not theirs:
        return None
    both = [mine[seed] - theirs[seed] for seed in mine if seed in theirs]
    with np.errstate(over="ignore", invalid="ignore"):
        if len(both) > 1:
            interval = statistics.student_interval(both, LEVEL)
            return Difference(float(np.mean(both)), *interval, len(both))
        a, b = list(mine.values()), list(theirs.values())
        if min(len(a), len(b)) == 1:
            return Difference(sum(a) / len(a) - sum(b) / len(b), None, None, 0)
        low, high = statistics.welch_interval(a, b) or (None, None)
        return Difference(float(np.mean(a) - np.mean(b)), low, high, 0)


def by_seed(runs: Iterable[MeasuredRun], metric: str) -> dict[int, float]:
    """The finite last values of runs in a metric, by their seeds."""
    values = ((run.run.seed, last_value(run, metric)) for run in runs)
    return {seed: value for seed, value in values if value is not None}


def rank(ends: Sequence[End | None], whole: Sequence[bool], better: str) -> list[int]:
    """The numbers of the groups that have a value, best first.

    whole: whether no run of the group diverged; those of which some did come last.
    """
    sign = -1 if better == "higher" else 1
    known = [(not whole[i], sign * end.mean, i) for i, end in enumerate(ends) if end]
    return [i for _, _, i in sorted(known)]


def shared_places(
    order: Sequence[int], ends: Sequence[End | None], whole: Sequence[bool]
) -> Iterator[int]:
    """The places of the groups in this order (`rank`), from 1: those with the same mean, of whose
    runs some or none diverged, share the first of theirs."""
    before, place = None, 0
    for k, i in enumerate(order, 1):
        end = ends[i]
        now = whole[i], None if end is None else end.mean
        before, place = now, place if now == before else k
        yield place


def direction(name: str, tasks: Iterable[str], book: Book) -> str:
    """Whether "higher" or "lower" values of a metric are better; "neither" if the tasks differ, or
    where the book does not know the metric."""
    known = [task for task in tasks if knows(book, task, name)]
    said = {find_metric(book.metrics, task, name).better for task in known}
    return said.pop() if len(said) == 1 else "neither"


def knows(book: Book, task: str, name: str) -> bool:
    """Whether the book has a task's metric."""
    return name in book.metrics.get(task, {}) or name in book.metrics["any"]
