"""The slopes that a claim asks for: of a run's history, or over rows that stand for numbers."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from bench.reproduce import statistics
from bench.reproduce.claim_kinds import Slope
from bench.reproduce.plan import Run, metric_value
from bench.reproduce.specs import format_number

RunsOfRows = Mapping[str, Sequence[Run]]  # row -> its runs, one for each seed; may be empty


def slope_parts(
    claim: Slope,
    runs: RunsOfRows,
    last: Callable[[Run, str], float],
    row_values: Callable[[str, Callable[[Run], float]], list[float]],
) -> Iterator[tuple[str, list[float]]]:
    """(what, values) of each part of a slope: one for each row, or one over all `points`.

    The history of a run that failed has no slope.
    """
    if not claim.points:
        for a in claim.rows:

            def slope(run: Run) -> float:
                if run.failed:
                    return math.nan
                rows = run.history[int(claim.after * len(run.history)) :]
                pairs = [
                    (metric_value(r, claim.against), metric_value(r, claim.metric)) for r in rows
                ]
                xs, ys = zip(*[(x or 0.0, y or 0.0) for x, y in pairs]) if pairs else ((), ())
                return statistics.loglog_slope(xs, ys)

            yield (
                f"slope of log {claim.metric} against log {claim.against}, {a}",
                row_values(a, slope),
            )
        return

    def measure(row: str, run: Run) -> float:
        if claim.until is None:
            return last(run, claim.metric)
        target = claim.targets.get(row, claim.target)
        assert target is not None
        return value_at_target(run, claim.metric, claim.until, target)

    needed = [*claim.points, *claim.over.values()]
    of = {row: {r.planned.seed: r for r in runs.get(row, ()) if r.summary} for row in needed}
    values = []
    for seed in sorted(set.intersection(*(set(some) for some in of.values()))):
        each = {row: measure(row, of[row][seed]) for row in needed}
        ys = [each[a] / (each[claim.over[a]] or math.nan) if claim.over else each[a]
              for a in claim.points]  # fmt: skip
        complete = all(map(math.isfinite, ys))
        xs = list(claim.points.values())
        values.append(statistics.loglog_slope(xs, ys) if complete else math.nan)
    ratio = f", {ratio_phrase(claim)}" if claim.over else ""
    until = f" until {claim.until} ≤ " if claim.until else ""
    if until:
        goals = sorted({claim.targets.get(row, claim.target or 0.0) for row in needed})
        until += format_number(goals[0]) + (
            f" … {format_number(goals[-1])}" if len(goals) > 1 else ""
        )
    yield f"slope of log {claim.metric}{until} against log {claim.against}{ratio}", values


def ratio_phrase(claim: Slope) -> str:
    """Which rows are divided by which, in words."""
    a, b = next(iter(claim.over.items()))
    return f"of {a} and so on over {b} and so on"


def value_at_target(run: Run, metric: str, until: str, target: float) -> float:
    """The metric's value where the metric `until` is first at most `target`; nan if it never is."""
    for row in run.history:
        reached = metric_value(row, until)
        if reached is not None and reached <= target:
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
