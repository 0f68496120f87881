"""How probable it is that a number of seeds decides a claim, and how many it takes.

scipy is imported only inside the functions that need it, as in `bench.reproduce.statistics`.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from bench.reproduce.statistics import EXACT, FEWEST_SIGNS, RATE, Array, Reference, freedom

MOST_SEEDS = 1000  # as many are considered in a search for the number that a claim needs


def power(deviation: float, n: int, within: float, reference: Reference = EXACT) -> float:
    """How probable "holds" is of the claim that a mean is within `within` of zero, if it is zero.

    deviation: the standard deviation over seeds; the values are normal. n: the number of seeds.
    reference: how certain the number is that the values are compared with.
    """
    return answer_chances(0.0, deviation, n, -within, within, reference)[0]


def answer_chances(
    mean: float, deviation: float, n: int, low: float, high: float, reference: Reference = EXACT
) -> tuple[float, float]:
    """How probable it is that n seeds answer "holds", and "fails", as `judge_values` does.

    mean, deviation: of normal values, one for each seed. low, high: the claim's bounds. reference:
    how certain the number is that the values are compared with.
    """
    from scipy.special import ndtr, stdtrit

    if n < 2:
        return 0.0, 0.0
    own = deviation / math.sqrt(n)
    se: Array = np.hypot(own * sampled_deviations(n), reference.se)
    degrees = freedom(n, reference)
    bounds = sum(math.isfinite(bound) for bound in (low, high))
    inner = float(stdtrit(degrees, 1 - RATE)) * se
    outer = float(stdtrit(degrees, 1 - RATE / max(1, bounds))) * se  # Bonferroni's, for each bound
    true_se = math.hypot(own, reference.se)

    def below(value: Array) -> Array:
        """How probable it is that the sample's mean is below a value."""
        if true_se == 0:
            return (mean < value).astype(float)
        found: Array = ndtr((value - mean) / true_se)
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


def least_seeds(chance: Callable[[int], float], asked: float) -> int | None:
    """The least number of seeds with which a chance that grows with it is as asked.

    None beyond `MOST_SEEDS`.
    """
    if chance(MOST_SEEDS) < asked:
        return None
    few, enough = 1, MOST_SEEDS
    while enough - few > 1:
        middle_n = (few + enough) // 2
        if chance(middle_n) >= asked:
            enough = middle_n
        else:
            few = middle_n
    return enough


def decision_power(
    values: Sequence[float], low: float, high: float, n: int, reference: Reference = EXACT
) -> float | None:
    """How probable it is that n seeds decide whether a mean lies in [low, high].

    The mean and the deviation over seeds are taken to be those of the values. reference: how
    certain the number is that the values are compared with. None where the values do not say: fewer
    than two, one that is not finite, or no error.
    """
    if len(values) < 2 or not np.isfinite(values).all():
        return None
    deviation = float(np.std(values, ddof=1)) if np.ptp(values) else 0.0
    bounded = math.isfinite(low) or math.isfinite(high)
    if not bounded or math.hypot(deviation, reference.se) == 0:
        return None
    return sum(answer_chances(float(np.mean(values)), deviation, n, low, high, reference))


def seeds_to_decide(
    values: Sequence[float],
    low: float,
    high: float,
    reference: Reference = EXACT,
    asked: float = 0.8,
) -> int | None:
    """The least number of seeds with which `decision_power` is as asked.

    None beyond `MOST_SEEDS`, or where the values do not say. Values that do not differ, or of which
    one is infinite, are left to the sign test, which takes `FEWEST_SIGNS` that agree; values that
    are nan speak for no answer, however many they are.
    """
    if any(map(math.isnan, values)):
        return None

    def chance(n: int) -> float:
        return decision_power(values, low, high, n, reference) or 0.0

    if decision_power(values, low, high, MOST_SEEDS, reference) is None:
        sides = {low <= value <= high for value in values}
        return FEWEST_SIGNS if len(sides) == 1 else None
    return least_seeds(chance, asked)
