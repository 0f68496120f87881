"""What each kind of claim states of its runs: values, one for each seed, and bounds of their mean.

`claims` judges whether the mean lies within the bounds.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, pairwise, product
from typing import NamedTuple

from bench.reproduce import statistics
from bench.reproduce.claim_kinds import (
    Above,
    AnyClaim,
    Below,
    Between,
    Close,
    Converges,
    Diverges,
    DoesNotConverge,
    First,
    Order,
    Slope,
    WithinPublished,
)
from bench.reproduce.plan import TIMES, Run
from bench.reproduce.slopes import (
    RunsOfRows,
    log_growth,
    slope_of_history,
    slope_phrase,
    slopes_over_rows,
)
from bench.reproduce.specs import PEAK_MEMORY, TOTALS, Metric, Published, format_number
from bench.reproduce.targets import costs_to_target, difference_of_logs, lead, target_phrase

DIGITS_LOST = 1e-8  # of a value of which a record keeps nine digits


class Statement(NamedTuple):
    """The statement that the mean of `values`, one for each seed, lies in [low, high].

    what: the values in words. paper: the published value that was taken from each of them.
    """

    what: str
    values: list[float]
    low: float
    high: float
    paper: Published | None = None


@dataclass(frozen=True)
class Ends:
    """The rows of a claim, which it compares by the last values of their runs.

    metrics: the metric of a name. goals: row -> the metric and the value at which its runs end.
    """

    runs: RunsOfRows
    metrics: Callable[[str], Metric]
    goals: Mapping[str, tuple[str, float]]

    def label(self, name: str) -> str:
        """The metric's name in words."""
        return self.metrics(name).label

    def last(self, run: Run, name: str) -> float:
        """The run's last value, to the digits that a record keeps; nan if there is none.

        A run that failed, or whose value is not finite, has the worst value that there is; nan for
        a cost, because a run is not cheap or dear by failing, and for a metric of which no value is
        better than another.
        """
        found = math.inf if run.failed else run.last(name)
        if found is None or (is_cost(name) and self.misses(run)):
            return math.nan
        if math.isfinite(found):
            return statistics.as_recorded(found)
        better = "neither" if is_cost(name) else self.metrics(name).better
        return {"higher": -math.inf, "lower": math.inf}.get(better, math.nan)

    def misses(self, run: Run) -> bool:
        """Whether the run was to end at a value, and ended above it."""
        goal = self.goals.get(run.planned.point.row)
        end = None if goal is None else run.last(goal[0])
        return goal is not None and end is not None and end > goal[1] + DIGITS_LOST * abs(goal[1])

    def of_row(self, row: str, measure: Callable[[Run], float]) -> list[float]:
        """What a row's runs that have ended measure."""
        return [measure(run) for run in self.runs.get(row, ()) if run.summary is not None]

    def of_pair(self, a: str, b: str, measure: Callable[[Run, Run], float]) -> list[float]:
        """What two runs measure, one of each row, at the seeds at which both have ended."""
        others = {run.planned.seed: run for run in self.runs.get(b, ()) if run.summary is not None}
        return [
            measure(run, others[run.planned.seed])
            for run in self.runs.get(a, ())
            if run.summary is not None and run.planned.seed in others
        ]

    def lasts(self, row: str, name: str) -> list[float]:
        """The last values of a row's runs."""
        return self.of_row(row, lambda run: self.last(run, name))

    def differences(
        self, a: str, b: str, name: str, factor: float = 1.0, log: bool = False
    ) -> list[float]:
        """a - factor b for the last values of two rows' runs, or log a - log(factor b)."""
        minus = difference_of_logs if log else statistics.difference
        return self.of_pair(
            a, b, lambda one, other: minus(self.last(one, name), factor * self.last(other, name))
        )


def statements(
    claim: AnyClaim, ends: Ends, published: Mapping[str, Mapping[str, Published]]
) -> Iterator[Statement]:
    """What the claim states, in the order of `part_sources`.

    published: row -> metric -> the paper's value.
    """
    match claim:
        case Above():
            return above(claim, ends, product(claim.rows, claim.than))
        case Below():
            return below(claim, ends)
        case Order():
            return above(claim, ends, pairwise(claim.rows))
        case Between():
            return between(claim, ends)
        case WithinPublished():
            return within_published(claim, ends, published)
        case Close():
            return close(claim, ends)
        case Converges():
            return distances(claim, ends, -math.inf, claim.within)
        case DoesNotConverge():
            return distances(claim, ends, claim.beyond, math.inf)
        case Diverges():
            return diverges(claim, ends)
        case First():
            return first(claim, ends)
        case Slope():
            return slopes(claim, ends)


def above(
    claim: Above | Order, ends: Ends, pairs: Iterable[tuple[str, str]]
) -> Iterator[Statement]:
    """The first row of each pair ends above the second, by a margin."""
    for a, b in pairs:
        what = difference_phrase(ends.label(claim.metric), a, b, claim.log)
        values = ends.differences(a, b, claim.metric, log=claim.log)
        yield Statement(what, values, claim.margin, math.inf)


def below(claim: Below, ends: Ends) -> Iterator[Statement]:
    """Each row of the claim ends below `factor` times each row of `than`, by a margin."""
    times = "" if claim.factor == 1 else f"{format_number(claim.factor)} × "
    for a, b in product(claim.rows, claim.than):
        what = difference_phrase(ends.label(claim.metric), a, f"{times}{b}", claim.log)
        values = ends.differences(a, b, claim.metric, claim.factor, claim.log)
        yield Statement(what, values, -math.inf, -claim.margin)


def between(claim: Between, ends: Ends) -> Iterator[Statement]:
    """Each row of the claim ends between two numbers."""
    low, high = bounds(claim)
    for row in claim.rows:
        what = f"{ends.label(claim.metric)} of {row}"
        yield Statement(what, ends.lasts(row, claim.metric), low, high)


def within_published(
    claim: WithinPublished, ends: Ends, published: Mapping[str, Mapping[str, Published]]
) -> Iterator[Statement]:
    """Each row of the claim ends near the value that the paper prints for the row."""
    for row in claim.rows:
        paper = published[row][claim.metric]
        what = f"{ends.label(claim.metric)} of {row} − published {format_number(paper.mean)}"
        values = [value - paper.mean for value in ends.lasts(row, claim.metric)]
        yield Statement(what, values, -claim.tolerance, claim.tolerance, paper)


def close(claim: Close, ends: Ends) -> Iterator[Statement]:
    """Any two rows of the claim end near each other."""
    for (a, b), name in product(combinations(claim.rows, 2), claim.every):
        what = difference_phrase(ends.label(name), a, b, log=False)
        yield Statement(what, ends.differences(a, b, name), -claim.within, claim.within)


def distances(
    claim: Converges | DoesNotConverge, ends: Ends, low: float, high: float
) -> Iterator[Statement]:
    """How far each row of the claim ends from a number; a run that failed is infinitely far."""

    def distance(run: Run) -> float:
        return math.inf if run.failed else abs(ends.last(run, claim.metric) - claim.to)

    label = ends.label(claim.metric)
    name = f"|{label} − {format_number(claim.to)}|" if claim.to else label
    for row in claim.rows:
        yield Statement(f"{name} of {row}", ends.of_row(row, distance), low, high)


def diverges(claim: Diverges, ends: Ends) -> Iterator[Statement]:
    """The metric grows in each run of the claim's rows."""
    for row in claim.rows:
        what = f"log₁₀ growth of {ends.label(claim.metric)} of {row}"
        values = ends.of_row(row, lambda run: log_growth(run, claim.metric))
        yield Statement(what, values, math.log10(claim.growth), math.inf)


def first(claim: First, ends: Ends) -> Iterator[Statement]:
    """Each row of the claim comes to a common target at less cost than each row of `than`."""
    cost = costs_to_target(claim, ends.runs, ends.metrics(claim.metric).better)
    for a, b in product(claim.rows, claim.than):
        what = f"log({ends.label(claim.on)} of {b} / {a}) to {target_phrase(claim)}"
        values = ends.of_pair(a, b, lambda x, y: lead(cost(x), cost(y), claim.factor))
        yield Statement(what, values, math.log(claim.factor), math.inf)


def slopes(claim: Slope, ends: Ends) -> Iterator[Statement]:
    """A metric grows by an order between two bounds: over rows, or in the history of each row."""
    low, high = bounds(claim)
    if claim.points:
        values = slopes_over_rows(claim, ends.runs, ends.last)
        yield Statement(slope_phrase(claim), values, low, high)
        return
    for row in claim.rows:
        what = f"slope of log {claim.metric} against log {claim.against}, {row}"
        values = ends.of_row(row, lambda run: slope_of_history(claim, run))
        yield Statement(what, values, low, high)


def bounds(claim: Between | Slope) -> tuple[float, float]:
    """The least and the largest value that the claim allows."""
    low = -math.inf if claim.at_least is None else claim.at_least
    high = math.inf if claim.at_most is None else claim.at_most
    return low, high


def part_sources(claim: AnyClaim) -> list[tuple[str, tuple[str, ...]]]:
    """The metric and the rows that each statement is about, in the order of `statements`.

    The list is empty for a claim that needs histories, because last values do not give its parts.
    """
    match claim:
        case Above() | Below():
            return [(claim.metric, pair) for pair in product(claim.rows, claim.than)]
        case Order():
            return [(claim.metric, pair) for pair in pairwise(claim.rows)]
        case Close():
            return [
                (name, pair) for pair, name in product(combinations(claim.rows, 2), claim.every)
            ]
        case Slope():
            whole = claim.points and claim.until is None
            return [(claim.metric, (*claim.points, *claim.over.values()))] if whole else []
        case Diverges() | First():
            return []
    return [(claim.metric, (row,)) for row in claim.rows]


def is_cost(name: str) -> bool:
    """Whether a metric is what a run spends: a count, a time, or memory."""
    return is_count(name) or name in (*TIMES, PEAK_MEMORY)


def is_count(name: str) -> bool:
    """Whether a metric is a number of steps, calls or samples."""
    return name in ("step", *TOTALS) or name.startswith(("calls/", "samples/"))


def difference_phrase(metric: str, a: str, b: str, log: bool) -> str:
    """What is compared of two rows, in words."""
    return f"log({metric}): {a} − {b}" if log else f"{metric}: {a} − {b}"
