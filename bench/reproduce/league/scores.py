"""Scores of a track's entries: performance profiles, their areas, ranks with bootstrap intervals.

The performance profile of a method (Dolan and More, 2002) says for each factor r on how many
problems the method took at most r times the work of the best one. A problem is a task at a seed.
The area below it, over log r from 1 to `WIDEST`, is 1 for a method that is always the best, and 0
for one that is always `WIDEST` times as costly or never reaches the target.

Intervals are those of a bootstrap that draws tasks and, within each, seeds. Whether two methods can
be told apart is not read from them, but tested.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from bench.reproduce.league.entries import TaskEntry

DRAWS, LEVEL = 2000, 0.95
FEWEST = 6  # units, with fewer of which a bootstrap's intervals are too narrow
SAME = 1e-12  # areas that differ by less are the same number
WIDEST = 32.0  # times the work of the best
CLOSE = 1.1  # a trial within 10% of the best one
UNITS = ("calls", "samples", "cpu_seconds")

Array = np.ndarray[Any, np.dtype[np.float64]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]


class Interval(NamedTuple):
    """A number with its bootstrap interval at `LEVEL`."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Place:
    """A method's place in a track, in one unit of work.

    area: below its profile. rank: 1 is the best. group: of methods that cannot be told apart from
    the first of the group, numbered from 1. behind: whether it can be told apart from the first of
    all. reached: the share of problems whose target it reached.
    """

    method: str
    area: Interval
    rank: Interval
    group: int
    behind: bool
    reached: Interval


def work_table(entries: Mapping[str, Mapping[str, TaskEntry]], unit: str) -> Array:
    """The work that each method took [methods, tasks, seeds]; infinite if it missed the target.

    entries: method -> task -> what was measured, all with the same tasks and seeds. unit: "value"
    in a track that compares values, which then take the place of work.
    """
    return np.array(
        [
            [[run.work(unit) for run in found.runs] for found in tasks.values()]
            for tasks in entries.values()
        ]
    )


def ratios(work: Array) -> Array:
    """The work of each method over that of the best on each problem, shaped as `work`.

    It is infinite where the method missed the target, or where the best took nothing and the method
    took something.
    """
    best = work.min(axis=0)
    comparable = np.isfinite(best) & (best > 0)
    least = np.where(np.isfinite(work) & (work == best), 1.0, np.inf)
    return np.where(comparable, work / np.where(comparable, best, 1.0), least)


def credits(work: Array) -> Array:
    """What each problem adds to the area below a method's profile, shaped as `work`: 1 for the
    best, 0 beyond `WIDEST`."""
    found = np.clip(ratios(work), 1.0, WIDEST)
    return np.asarray(1 - np.log(found) / np.log(WIDEST))


def profile(work: Array, factors: Sequence[float]) -> Array:
    """The share of problems on which each method took at most these times the least work
    [methods, factors]."""
    flat = ratios(work).reshape(len(work), -1)
    return np.stack([(flat <= factor).mean(axis=1) for factor in factors], axis=1)


def trial_table(entries: Mapping[str, Mapping[str, TaskEntry]]) -> Array:
    """The work of each method's trials [methods, tasks, trials]: infinite for a trial that missed
    the target on a tuning seed. entries: as in `work_table`."""
    return np.array(
        [
            [
                [np.inf if work is None else work for work in found.trials.work]
                for found in tasks.values()
            ]
            for tasks in entries.values()
        ]
    )


def draw_areas(credit: Array, draws: int = DRAWS, seed: int = 0) -> Array:
    """The mean of each method's values [methods, tasks, seeds] in bootstrap samples of the tasks
    and, within each, of seeds: [draws, methods]."""
    methods, tasks, seeds = credit.shape
    rng = np.random.default_rng(seed)
    chosen = rng.integers(tasks, size=(draws, tasks, 1))
    within = rng.integers(seeds, size=(draws, tasks, seeds))
    return np.stack([credit[m][chosen, within].mean(axis=(1, 2)) for m in range(methods)], axis=1)


def ranks(areas: Array) -> Array:
    """The rank of each method by its area [..., methods]; equal areas share the mean rank."""
    from scipy.stats import rankdata  # slow to import

    return np.asarray(rankdata(-areas, axis=-1))


def trial_ranks(tried: Array, draws: int = DRAWS, seed: int = 0) -> list[tuple[float, float]]:
    """The interval of each method's rank if its trials had been others: a bootstrap draws them, the
    same for all tasks, and ranks the methods by the tuning work of the best that are drawn.

    tried: [methods, tasks, trials], infinite where a trial missed the target.
    """
    methods, _, trials = tried.shape
    drawn = np.random.default_rng(seed).integers(trials, size=(methods, draws, trials))
    best = np.stack([tried[m][:, drawn[m]].min(axis=-1) for m in range(methods)])
    found = ranks(credits(best).mean(axis=1).T)
    low, high = np.quantile(found, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return list(zip(low.tolist(), high.tolist(), strict=True))


def interval(value: float, draws: Array) -> Interval:
    """A number with the interval that its draws have."""
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(value), float(low), float(high))


def places(names: Sequence[str], work: Array) -> list[Place]:
    """The place of each method, the best first. work: [methods, tasks, seeds]."""
    credit = credits(work)
    areas, drawn = credit.mean(axis=(1, 2)), draw_areas(credit)
    order = np.argsort(-areas, kind="stable").tolist()
    rank, drawn_ranks = ranks(areas), ranks(drawn)
    apart = told_apart(unit_areas(credit))
    group = groups(order, apart)
    hits = np.isfinite(work).astype(float)
    shares, drawn_shares = hits.mean(axis=(1, 2)), draw_areas(hits)
    return [
        Place(
            names[m],
            interval(areas[m], drawn[:, m]),
            interval(rank[m], drawn_ranks[:, m]),
            group[k],
            bool(apart[order[0], m]),
            interval(shares[m], drawn_shares[:, m]),
        )
        for k, m in enumerate(order)
    ]


def unit_areas(credit: Array) -> Array:
    """The area of each method in each unit [methods, units] by which methods are compared: the
    tasks, or the seeds where there is one task. credit: [methods, tasks, seeds]."""
    several = credit.shape[1] > 1
    return np.asarray(credit.mean(axis=2) if several else credit[:, 0])


def told_apart(values: Array) -> Flags:
    """Which methods can be told apart from which [methods, methods]. values: [methods, units].

    Student's paired test says so of a pair at the level of Holm (1979) for all pairs: the
    probability that any two equal methods are told apart is 1 - `LEVEL` at most. It is not enough
    to count the pairs of a best method, because which one is the best is seen in the same values.
    """
    methods = len(values)
    one, other = np.triu_indices(methods, 1)
    found = np.zeros((methods, methods), dtype=bool)
    found[one, other] = holm(paired_p(values[one] - values[other]))
    return found | found.T


def paired_p(differences: Array) -> Array:
    """The two-sided p-value of each row of differences [rows, units]: whether their mean is 0.

    Of equal differences, which have no deviation for Student's test, it is that of the sign test.
    """
    from scipy.special import stdtr  # of Student's distribution; its object in scipy.stats is slow

    n, mean = differences.shape[1], differences.mean(axis=1)
    squares = ((differences - mean[:, None]) ** 2).sum(axis=1)
    error = np.sqrt(squares / (max(1, n - 1) * n))
    equal = np.ptp(differences, axis=1) < SAME
    student = 2 * stdtr(n - 1, -np.abs(mean) / np.where(equal, 1.0, error))
    signs = np.where(np.abs(mean) < SAME, 1.0, 2.0 ** (1 - n))
    return np.where(equal, signs, student)


def holm(p: Array) -> Flags:
    """Which hypotheses are rejected when all p-values are taken together (Holm, 1979)."""
    order = np.argsort(p, kind="stable")
    small = p[order] <= (1 - LEVEL) / np.arange(len(p), 0, -1)
    rejected = np.zeros(len(p), dtype=bool)
    rejected[order] = np.logical_and.accumulate(small)
    return rejected


def groups(order: Sequence[int], apart: Flags) -> list[int]:
    """The group of each method in this order: a method begins a new one if it can be told apart
    from the group's first. apart: [methods, methods]."""
    found: list[int] = []
    first, number = order[0], 1
    for m in order:
        if apart[first, m]:
            first, number = m, number + 1
        found.append(number)
    return found


def as_good(values: Array) -> Flags:
    """Which methods cannot be told apart from the first, itself among them [methods].

    values: [methods, units]. The level is that of Holm (1979) for the pairs with the first.
    """
    return np.append(True, ~holm(paired_p(values[1:] - values[0])))


def count_good(entry: TaskEntry) -> int:
    """How many of a method's trials on a task took at most a tenth more work than the best one."""
    reached = [work for work in entry.trials.work if work is not None]
    best = min(reached, default=0.0)
    return sum(work <= CLOSE * best for work in reached)


def sensitivity(entry: TaskEntry) -> float:
    """The share of a method's trials on a task that are good; 0 if none reached the target."""
    return count_good(entry) / len(entry.trials.work)


def mean_interval(values: Sequence[float]) -> Interval:
    """The mean of at least one value, one for each task, with its bootstrap interval."""
    numbers = np.array(values)
    rng = np.random.default_rng(0)
    drawn = numbers[rng.integers(len(numbers), size=(DRAWS, len(numbers)))].mean(axis=1)
    return interval(float(numbers.mean()), drawn)
