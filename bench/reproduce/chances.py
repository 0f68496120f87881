"""How probable it is that a number of seeds decides a claim, and how many it takes.

scipy is imported only inside the functions that need it, as in `bench.reproduce.statistics`.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from bench.reproduce.statistics import (
    EXACT,
    RATE,
    Array,
    Reference,
    are_same,
    freedom,
    reference_reach,
)

MOST_SEEDS = 1000  # as many are considered in a search for the number that a claim needs
# No fewer seeds give the sign test so much more power than `MOST_SEEDS` do. A sign test that draws
# lots where it just misses its level gains with every seed, and the lots give it at most the
# largest probability that a number of signs can have, which is .0253.
ONE_SIGN = 0.03


def power(deviation: float, n: int, within: float, reference: Reference = EXACT) -> float:
    """How probable "holds" is of the claim that a mean is within `within` of zero, if it is zero.

    deviation: the standard deviation over seeds; the values are normal. n: the number of seeds.
    reference: how certain the number is that the values are compared with.
    """
    return answer_chances(0.0, deviation, n, -within, within, reference)[0]


def answer_chances(
    mean: float,
    deviation: float,
    n: int,
    low: float,
    high: float,
    reference: Reference = EXACT,
    of: int = 1,
) -> tuple[float, float]:
    """How probable it is that n seeds answer "holds", and "fails", as `judge_values` does.

    mean, deviation: of normal values, one for each seed. low, high: the claim's bounds. reference:
    how certain the number is that the values are compared with. The test allows for its error, but
    it is printed, and other seeds are compared with the same number: what varies is their own mean.
    of: the number of statements that the claim is made of.
    """
    from scipy.special import ndtr, stdtrit

    if n < 2:
        return 0.0, 0.0
    own = deviation / math.sqrt(n)
    se: Array = np.hypot(own * sampled_deviations(n), reference.se)
    degrees = freedom(n, reference)
    bounds = sum(math.isfinite(bound) for bound in (low, high))
    inner = float(stdtrit(degrees, 1 - RATE)) * se
    outer = float(stdtrit(degrees, 1 - RATE / (max(1, bounds) * of))) * se  # Bonferroni's

    def below(value: Array) -> Array:
        """How probable it is that the sample's mean is below a value."""
        if own == 0:
            return (mean < value).astype(float)
        found: Array = ndtr((value - mean) / own)
        return found

    inside = np.maximum(below(high - inner) - below(low + inner), 0.0)
    outside = below(low - outer) + 1 - below(high + outer)
    return float(inside.mean()), float(outside.mean())


@cache
def sampled_deviations(n: int) -> Array:
    """Standard deviations of n normal values over their own, each as probable as the others."""
    from scipy.special import chdtri

    tails = (np.arange(2000) + 0.5) / 2000
    found: Array = np.sqrt(chdtri(n - 1, tails) / (n - 1))
    return found


def seeds_needed(
    deviation: float, within: float, reference: Reference = EXACT, asked: float = 0.8
) -> int | None:
    """The least number of seeds with which `power` is as asked; None beyond `MOST_SEEDS`."""

    def chance(n: int) -> float:
        return power(deviation, n, within, reference)

    return least_seeds(chance, asked)


def least_seeds(chance: Callable[[int], float], asked: float, rises: bool = True) -> int | None:
    """The least number of seeds with which a chance is as asked; None beyond `MOST_SEEDS`.

    rises: the chance grows with the number of seeds, which is true of Student's test. That of the
    sign test does not always, and every number is tried in turn.
    """
    if chance(MOST_SEEDS) < (asked if rises else asked - ONE_SIGN):
        return None
    if not rises:
        return next((n for n in range(2, MOST_SEEDS + 1) if chance(n) >= asked), None)
    few, enough = 1, MOST_SEEDS
    while enough - few > 1:
        middle_n = (few + enough) // 2
        if chance(middle_n) >= asked:
            enough = middle_n
        else:
            few = middle_n
    return enough


def part_chances(
    values: Sequence[float],
    low: float,
    high: float,
    n: int,
    *,
    of: int = 1,
    reference: Reference = EXACT,
    median: bool = False,
) -> tuple[float, float] | None:
    """How probable it is that n seeds answer "holds", and "fails", where values are as measured.

    Mean and deviation over seeds are taken to be those of the values, and where the sign test
    judges, the shares of values beyond the bounds. The arguments are those of `judge_values`. None
    where the values do not say: fewer than two, one that is nan, or no bound.
    """
    bounded = math.isfinite(low) or math.isfinite(high)
    if not bounded or len(values) < 2 or any(map(math.isnan, values)):
        return None
    if takes_signs(values, low, high, reference, median):
        return sign_chances(values, low, high, n, of, reference)
    deviation = 0.0 if are_same(values) else float(np.std(values, ddof=1))
    return answer_chances(float(np.mean(values)), deviation, n, low, high, reference, of)


def takes_signs(
    values: Sequence[float], low: float, high: float, reference: Reference, median: bool
) -> bool:
    """Whether the sign test judges such values, as `judge_values` says."""
    if median or not np.isfinite(values).all():
        return True
    return reference.se == 0 and len(values) > 0 and are_same(values, beside=(low, high))


def sign_chances(
    values: Sequence[float],
    low: float,
    high: float,
    n: int,
    of: int = 1,
    reference: Reference = EXACT,
) -> tuple[float, float]:
    """How probable it is that the sign test answers "holds", and "fails", with n seeds."""
    bounds = [(bound, side) for bound, side in ((low, 1), (high, -1)) if math.isfinite(bound)]

    def chance(bound: float, side: int, rate: float) -> float:
        """The power of the test at this rate that the median is beyond a bound, on its side."""
        farthest = bound + side * reference_reach(reference, rate)
        share = sum(1 for value in values if side * (value - farthest) > 0) / len(values)
        return sign_power(share, n, rate / 2 if reference.se else rate)

    holds = min(chance(bound, side, RATE) for bound, side in bounds)
    many = len(bounds) * of
    fails = max(chance(bound, -side, RATE / many) for bound, side in bounds)
    return holds, fails


def sign_power(share: float, n: int, rate: float) -> float:
    """How probable it is that a one-sided sign test of n values finds its answer at this rate.

    share: how probable it is that a value speaks for the answer.
    """
    from scipy.special import bdtrc

    enough = enough_signs(n, rate)
    return 0.0 if enough is None else float(bdtrc(enough - 1, n, share))


@cache
def enough_signs(n: int, rate: float) -> int | None:
    """The least of n values that have to speak for the sign test's answer; None: not even all."""
    from scipy.special import bdtrc

    found = np.flatnonzero(bdtrc(np.arange(n), n, 0.5) <= rate)
    return int(found[0]) + 1 if len(found) else None
