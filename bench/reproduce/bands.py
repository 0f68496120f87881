"""What groups of runs measured: means over seeds with their 95% intervals, and who is best."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from bench.reproduce import statistics
from bench.reproduce.chosen_runs import FoundRun
from bench.reproduce.grouping import Group
from bench.reproduce.plan import LARGEST, TIMES, drop_times, metric_value
from bench.reproduce.reading import leave_out_damaged
from bench.reproduce.specs import TOTALS, Book, find_metric
from bench.reproduce.statistics import LEVEL, Array
from bench.runs.environment import shares_time
from bench.runs.folder import ENVIRONMENT, RunFolder
from bench.runs.history import spread

NOT_FINISHED = "not finished"
HIDDEN = "info/"  # metrics that the comparison does not show
NONE_DONE = 2  # the tier of a group without a run that is done


@dataclass(frozen=True)
class MeasuredRun:
    """A run with what it measured.

    metric: the one that its task is judged by, None where no summary says it yet. last: the values
    at its end, None where one is not finite. columns: metric -> its values at the rows that were
    read, nan where one is not finite. shared: whether its seconds are shares of what lanes took
    together.
    """

    run: FoundRun
    state: str
    metric: str | None
    last: Mapping[str, float | None]
    references: Mapping[str, float]
    columns: Mapping[str, Array]
    shared: bool


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
    """How far a group lies from the best, with its 95% interval.

    pairs: how many seeds the two have in common; `mean` is the mean difference at these. 0: they
    have not two in common, `mean` is the difference of the means, and the interval is Welch's.
    low, high: None if there are too few runs.
    """

    mean: float
    low: float | None
    high: float | None
    pairs: int


def measure_group(group: Group, points: int) -> tuple[list[MeasuredRun], int]:
    """The group's runs that have measured something, at most `points` rows of each, and how many
    have begun and have no row yet.

    The rows are the same of all runs, and the last one of each is among them. A run with a damaged
    file has a line on standard error, and is left out.
    """
    lengths: dict[int, int] = {}
    for i, run in enumerate(group.runs):
        with leave_out_damaged():
            lengths[i] = run.folder.history_length()
    wanted = spread(max(lengths.values(), default=0), points)
    found, rowless = [], 0
    for i, length in lengths.items():
        with leave_out_damaged():
            one = measure_run(group.runs[i], wanted | {length - 1})
            found += [one] if one else []
            rowless += one is None
    return found, rowless


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
    names += [t for t in TOTALS if t not in last and any(n.startswith(f"{t}/") for n in names)]
    return MeasuredRun(
        run,
        summary.get("status", NOT_FINISHED),
        summary.get("metric"),
        {name: finite_or_none(metric_value(last, name)) for name in names},
        summary.get("references", {}),
        columns_of(rows, names),
        shares_seconds(run.folder, summary),
    )


def shares_seconds(folder: RunFolder, summary: Mapping[str, Any]) -> bool:
    """Whether the seconds of a run are shares of what lanes took together.

    summary: empty if the run has not ended. Raises BadSetting or OSError if a file is damaged.
    """
    if summary:
        return bool(summary.get("amortised"))
    return (folder.path / ENVIRONMENT).is_file() and shares_time(folder.environment())


def without_times(run: MeasuredRun) -> MeasuredRun:
    """A run without its seconds: shares of them cannot stand beside seconds of a run alone."""
    columns = {name: values for name, values in run.columns.items() if name not in TIMES}
    return replace(run, last=drop_times(run.last), columns=columns)


def own_metric(runs: Sequence[MeasuredRun]) -> str:
    """The metric that the problem of these runs is judged by.

    Only a run that has ended says it. If none has, it is the first that is measured, beside what
    grows with every step.
    """
    for run in runs:
        if run.metric is not None:
            return run.metric
    other = ("step", *TOTALS)
    names = [name for name in runs[0].last if "/" not in name and not name.endswith("seconds")]
    return next((name for name in names if name not in other), "step")


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
    """How far a group lies from the best at the seeds that both have, or, if these are not two, by
    the means of all; None if there is no finite value."""
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


def tier(states: Mapping[str, int]) -> int:
    """What groups are ranked by before their means: 0 if some run is done and none diverged, 1 if
    some is done, NONE_DONE if none is; states: how many ended in which way."""
    if not states.get("done"):
        return NONE_DONE
    return 1 if states.get("diverged") else 0


def rank(ends: Sequence[End | None], tiers: Sequence[int], better: str) -> list[int]:
    """The numbers of the groups that have a value, those of the first tier first, and of these the
    best."""
    sign = -1 if better == "higher" else 1
    known = [(tiers[i], sign * end.mean, i) for i, end in enumerate(ends) if end]
    return [i for _, _, i in sorted(known)]


def find_places(
    order: Sequence[int],
    ends: Sequence[End | None],
    tiers: Sequence[int],
    measured: Sequence[bool],
) -> list[int | None]:
    """The place of each group, from 1; None for one that has not measured what is compared.

    order: as `rank` gives it. Those of one tier with the same mean share the first of theirs. Those
    without a run that is done, or without a finite value, all have the last place: to diverge must
    not be better than to end.
    """
    last = sum(measured)
    places = [last if there else None for there in measured]
    before, place = None, 0
    for k, i in enumerate(order, 1):
        end = ends[i]
        if end is not None and tiers[i] != NONE_DONE:
            now = tiers[i], end.mean
            before, place = now, place if now == before else k
            places[i] = place
    return places


def direction(name: str, tasks: Iterable[str], book: Book) -> str:
    """Whether "higher" or "lower" values of a metric are better; "neither" if the tasks differ, or
    where the book does not know the metric."""
    known = [task for task in tasks if knows(book, task, name)]
    said = {find_metric(book.metrics, task, name).better for task in known}
    return said.pop() if len(said) == 1 else "neither"


def knows(book: Book, task: str, name: str) -> bool:
    """Whether the book has a task's metric."""
    return name in book.metrics.get(task, {}) or name in book.metrics["any"]
