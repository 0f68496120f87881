"""Who reaches a target first: a target common to a claim's rows, and what each run spends on it."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from bench.reproduce import statistics
from bench.reproduce.claim_kinds import First
from bench.reproduce.plan import Run, kept_value, metric_value
from bench.reproduce.specs import format_number

Better = Literal["higher", "lower", "neither"]  # which values of a metric are good


class Spent(NamedTuple):
    """What a run had spent when it came to a target: more than `after`, and at most `by`.

    These are its spendings at the last measurement before the target, and at the first there. A run
    that ended before the target had spent more than `after`, its last spending; by is infinite.
    """

    after: float
    by: float


NEVER, UNKNOWN = Spent(math.inf, math.inf), Spent(math.nan, math.nan)


def costs_to_target(
    claim: First, runs: Mapping[str, Sequence[Run]], better: Better
) -> Callable[[Run], Spent]:
    """What a run has spent of `claim.on` when it first reaches the target of its seed.

    runs: row -> its runs, one for each seed. A run that ended before the target may have reached it
    later: all that is known is that it takes more than was spent. The cost is infinite for a run
    that failed before the target, and nan where it is not known: for a run without both metrics.
    """
    rows = [*claim.rows, *claim.than]
    compared = [run for row in rows for run in runs.get(row, ()) if run.summary is not None]
    upward = goes_up(claim, compared, better)
    targets = {
        seed: target_of([run for run in compared if run.planned.seed == seed], claim, upward)
        for seed in {run.planned.seed for run in compared}
    }

    def cost(run: Run) -> Spent:
        pairs = measured_pairs(run, claim)
        if not pairs:
            return NEVER if run.failed else UNKNOWN
        target, before = targets[run.planned.seed], pairs[0][1]
        for m, spent in pairs:
            if m >= target if upward else m <= target:
                return Spent(before, spent)
            before = spent
        return NEVER if run.failed else Spent(before, math.inf)

    return cost


def lead(a: Spent, b: Spent, factor: float) -> float:
    """log(b / a) of what two runs had spent when they were first seen at the target.

    nan if it is not known whether b has spent `factor` times as much as a: each run came to the
    target somewhere between two measurements, or may have come there after its end. A run is behind
    another that reached the target only if it went on for as long without reaching it.
    """
    if log_ratio(b.after, a.by) < math.log(factor) < log_ratio(b.by, a.after):
        return math.nan
    return log_ratio(b.by, a.by)


def goes_up(claim: First, runs: Sequence[Run], better: Better) -> bool:
    """Whether the target lies above the start.

    For a metric of which nothing says what is better, a number lies where it is from the start.
    """
    if better != "neither" or claim.value is None:
        return better == "higher"
    starts = [pairs[0][0] for run in runs if (pairs := measured_pairs(run, claim))]
    return bool(starts) and claim.value > min(starts)


def target_of(runs: Sequence[Run], claim: First, upward: bool) -> float:
    """The target of one seed, common to all rows of the claim; nan if none is known.

    With `gain` it is that fraction of the way from the worst start to the best end among the runs
    compared (the convergence test of More and Wild, SIAM J. Optim. 20, 2009). No method sets a
    target of its own, a run that failed sets none, and whoever gains less never reaches it.
    """
    if claim.gain is None:
        return math.nan if claim.value is None else claim.value
    paths = [(run, pairs) for run in runs if (pairs := measured_pairs(run, claim))]
    starts = [pairs[0][0] for _, pairs in paths]
    ends = [pairs[-1][0] for run, pairs in paths if not run.failed]
    if not ends:
        return math.nan
    start, end = (min(starts), max(ends)) if upward else (max(starts), min(ends))
    return kept_value(start + claim.gain * (end - start))


def measured_pairs(run: Run, claim: First) -> list[tuple[float, float]]:
    """The claim's metric and what had been spent, at every measurement that has both.

    A value of the metric that is not finite is left out, because it is no progress. The others have
    the digits that a record keeps.
    """
    rows = [(metric_value(row, claim.metric), metric_value(row, claim.on)) for row in run.history]
    pairs = [(m, spent) for m, spent in rows if m is not None and spent is not None]
    return [(kept_value(m), kept_value(spent)) for m, spent in pairs if math.isfinite(m)]


def difference_of_logs(a: float, b: float) -> float:
    """log a - log b for the last values of two runs; 0 where they differ by no more than rounding.

    A value that is infinite, as of a run that failed, is as far from the other as without log.
    """
    if not (math.isfinite(a) and math.isfinite(b)):
        return a - b
    found = log_ratio(a, b)
    return 0.0 if math.isfinite(found) and statistics.are_same([a, b]) else found


def log_ratio(a: float, b: float) -> float:
    """log(a / b) of two numbers that are not negative.

    nan if both are infinite or one is nan: there is no order between two runs that never reach a
    target. Two zeros are equal.
    """
    if math.isnan(a) or math.isnan(b) or a == b == math.inf or min(a, b) < 0:
        return math.nan
    if a == b:
        return 0.0
    if a == 0 or b == math.inf:
        return -math.inf
    return math.inf if b == 0 or a == math.inf else math.log(a / b)


def target_phrase(claim: First) -> str:
    """The target in words."""
    if claim.gain is None:
        return f"{claim.metric} = {format_number(claim.value or 0.0)}"
    return f"{format_number(100 * claim.gain)}% of the best gain"
