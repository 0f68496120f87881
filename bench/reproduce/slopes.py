"""The slopes that a claim asks for: of a run's history, or over rows that stand for numbers."""

import math
from collections.abc import Callable, Mapping, Sequence

from bench.reproduce import statistics
from bench.reproduce.claim_kinds import Slope
from bench.reproduce.plan import Run, kept_value, metric_value
from bench.reproduce.specs import format_number

RunsOfRows = Mapping[str, Sequence[Run]]  # row -> its runs, one for each seed; may be empty


def slope_of_history(claim: Slope, run: Run) -> float:
    """The slope of the metric in a run's history, both in logs; nan for a run that failed."""
    if run.failed:
        return math.nan
    rows = run.history[int(claim.after * len(run.history)) :]
    xs = [metric_value(row, claim.against) or 0.0 for row in rows]
    ys = [metric_value(row, claim.metric) or 0.0 for row in rows]
    return statistics.loglog_slope(xs, ys)


def slopes_over_rows(
    claim: Slope, runs: RunsOfRows, last: Callable[[Run, str], float]
) -> list[float]:
    """The slopes over the numbers that the rows stand for, at the seeds at which all have ended.

    last: a run's last value of a metric. nan if a value is not there or not finite.
    """

    def measure(row: str, run: Run) -> float:
        if claim.until is None:
            return last(run, claim.metric)
        return value_at_target(run, claim.metric, claim.until, goal_of(claim, row))

    of = {
        row: {r.planned.seed: r for r in runs.get(row, ()) if r.summary}
        for row in claim.rows_of_points
    }
    xs = list(claim.points.values())
    slopes = []
    for seed in sorted(set.intersection(*(set(some) for some in of.values()))):
        each = {row: measure(row, some[seed]) for row, some in of.items()}
        ys = [each[row] for row in claim.points]
        if claim.over:
            ys = [y / (each[claim.over[row]] or math.nan) for row, y in zip(claim.points, ys)]
        complete = all(map(math.isfinite, ys))
        slopes.append(statistics.loglog_slope(xs, ys) if complete else math.nan)
    return slopes


def goal_of(claim: Slope, row: str) -> float:
    """The value of `until` at which a row's runs are read."""
    goal = claim.targets.get(row, claim.target)
    assert goal is not None  # a spec where a row has none is refused
    return goal


def slope_phrase(claim: Slope) -> str:
    """What has the slope over rows, in words."""
    until = ""
    if claim.until is not None:
        goals = sorted({goal_of(claim, row) for row in claim.rows_of_points})
        ends = [goals[0], goals[-1]] if len(goals) > 1 else goals
        until = f" until {claim.until} ≤ {' … '.join(map(format_number, ends))}"
    ratio = f", {ratio_phrase(claim)}" if claim.over else ""
    return f"slope of log {claim.metric}{until} against log {claim.against}{ratio}"


def ratio_phrase(claim: Slope) -> str:
    """Which rows are divided by which, in words."""
    a, b = next(iter(claim.over.items()))
    return f"of {a} and so on over {b} and so on"


def value_at_target(run: Run, metric: str, until: str, target: float) -> float:
    """The metric's value where the metric `until` is first at most `target`; nan if it never is."""
    for row in run.history:
        reached = metric_value(row, until)
        if reached is not None and kept_value(reached) <= target:
            found = metric_value(row, metric)
            return math.nan if found is None else found
    return math.nan


def log_growth(run: Run, metric: str) -> float:
    """log10 of |last / first| of a metric; infinite for a run that failed.

    It is infinite too for a run without a history. nan if either value is not there, or if the
    first one is zero or not finite: no ratio to it says how much the metric has grown.
    """
    if run.failed or not run.history:
        return math.inf
    first, end = (metric_value(run.history[i], metric) for i in (0, -1))
    if not first or math.isinf(first) or end is None:
        return math.nan
    return math.log10(abs(end / first)) if end else -math.inf
