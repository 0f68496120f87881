"""Means with their uncertainty, and whether a mean lies where a claim says.

scipy is imported only inside the functions that need it, so that commands that only read verdicts
start quickly.
"""

import math
import warnings
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

LEVEL = 0.95
RATE = (1 - LEVEL) / 2  # the probability of a wrong verdict, at most
FEWEST_SIGNS = 6  # with fewer values the sign test decides nothing: 1 / 2^5 is more than RATE
FEWEST_POINTS = 3  # with fewer different points there is no slope
ROUNDING = 1e-9  # values this close, in their own size, are the same: a record keeps nine digits
Array = np.ndarray[Any, np.dtype[np.float64]]
Answer = Literal["holds", "fails", "open"]


class Estimate(NamedTuple):
    """A mean over seeds with its uncertainty.

    se: the standard error of the mean; None for one run, or if a value is not finite. n: the
    number of values. low, high: Student's interval at 95%; None where there is no standard error.
    """

    mean: float
    se: float | None
    n: int
    low: float | None
    high: float | None


class Reference(NamedTuple):
    """How certain the number is that values are compared with.

    se: its standard error; 0 if it is exact. n: the number of runs that its standard error comes
    from; None if this is not known, and the error is then taken as exact.
    """

    se: float = 0.0
    n: int | None = None


EXACT = Reference()


class Judgement(NamedTuple):
    """The answer to the statement that the centre of the values lies between two bounds.

    centre: the mean, or the median where the sign test judged. interval: of the centre at 95%; None
    if there is none. p_inside, p_outside: the one-sided p-values of the tests that say that the
    centre lies inside of the bounds, or outside; None if nothing could be tested. n: the number of
    values.
    """

    answer: Answer
    centre: float
    interval: tuple[float, float] | None
    p_inside: float | None
    p_outside: float | None
    n: int

    @property
    def p(self) -> float | None:
        """The two-sided p-value of what the values say more clearly."""
        if self.p_inside is None or self.p_outside is None:
            return None
        return min(1.0, 2 * min(self.p_inside, self.p_outside))


def estimate(values: Sequence[float]) -> Estimate:
    """The mean of at least one value, its standard error (as papers print it) and its interval."""
    n, mean = len(values), float(np.mean(values))
    if n < 2 or not np.isfinite(values).all():
        return Estimate(mean, None, n, None, None)
    if are_same(values):  # the mean may be rounded, and the values then seem to have a spread
        return Estimate(values[0], 0.0, n, values[0], values[0])
    return Estimate(mean, standard_error(values)[0], n, *student_interval(values, LEVEL))


def student_interval(
    values: Sequence[float], level: float, reference: Reference = EXACT
) -> tuple[float, float]:
    """Student's interval (low, high) of the mean of at least two values at this level.

    It allows for the uncertainty of the number that the values are compared with.
    """
    from scipy.special import stdtrit

    mean, (se, degrees) = float(np.mean(values)), standard_error(values, reference)
    reach = float(stdtrit(degrees, (1 + level) / 2)) * se
    return mean - reach, mean + reach


def student_reach(values: Array, level: float) -> Array:
    """Half the width of `student_interval` of each column; a row is a seed, and there are two."""
    from scipy.special import stdtrit

    n = len(values)
    error: Array = np.std(values, axis=0, ddof=1) / math.sqrt(n)
    return float(stdtrit(n - 1, (1 + level) / 2)) * error


def standard_error(values: Sequence[float], reference: Reference = EXACT) -> tuple[float, int]:
    """The standard error of the mean of at least two values, and its degrees of freedom.

    It is the error of the difference to the reference. The freedom is that of the side with fewer
    runs, with which Student's test is never too sure of two unequal variances (Hsu, 1938).
    """
    n = len(values)
    own = float(np.std(values, ddof=1)) / math.sqrt(n)
    return math.hypot(own, reference.se), freedom(n, reference)


def freedom(n: int, reference: Reference) -> int:
    """The degrees of freedom of the mean of n values less a reference."""
    if reference.se == 0 or reference.n is None:
        return n - 1
    return max(1, min(n, reference.n) - 1)


def judge_values(
    values: Sequence[float],
    low: float,
    high: float,
    *,
    of: int = 1,
    reference: Reference = EXACT,
    counts: bool = False,
    median: bool = False,
    strict: bool = False,
) -> Judgement:
    """Whether the mean of `values`, one for each seed, lies in [low, high].

    The answer is "holds" only if a one-sided test at `RATE` says of each finite bound that the mean
    is inside of it, and "fails" only if one says that the mean is outside. A claim that is true is
    so found to fail, and a claim that is false found to hold, with probability `RATE` at most.

    The test is Student's. The sign test takes its place where Student's would be wrong: if a value
    is not finite, which is a run that diverged or a cost that was never reached; if all values are
    the same but for rounding, that of the bounds included; and with `median`. It judges the median,
    and decides nothing with fewer than `FEWEST_SIGNS` values. A value that is nan, such as the
    order of two runs that both missed the target, speaks for no answer. Fewer than two values
    decide nothing.

    of: the number of statements that the claim is made of. One of many statements fails only at
    the level divided by their number (Bonferroni); for all of them to hold no correction is needed.
    reference: how certain the number is that the values are compared with. counts: the values are
    counts that the settings fix; where all are the same there is nothing to test. strict: such a
    count on a bound is outside, as an equal number is neither more nor less.
    """
    n = len(values)
    finite = n > 0 and bool(np.isfinite(values).all())
    same = finite and are_same(values, beside=(low, high))
    signs = median or not finite or (same and reference.se == 0)
    centre = middle(values) if signs else float(np.mean(values))
    if n < 2 or not (math.isfinite(low) or math.isfinite(high)):
        return Judgement("open", centre, None, None, None, n)
    if same and counts:
        on_bound = strict and values[0] in (low, high)
        inside = low <= values[0] <= high and not on_bound
        certain = (0.0, 1.0) if inside else (1.0, 0.0)
        return Judgement("holds" if inside else "fails", centre, (centre, centre), *certain, n)
    bounds = [(b, side) for b, side in ((low, 1), (high, -1)) if math.isfinite(b)]
    many = len(bounds) * of

    def test(bound: float, side: int, statements: int) -> float:
        if signs:
            return sign_test(values, bound, side, reference, statements)
        return student_test(values, bound, side, reference)

    p_inside = max(test(bound, side, 1) for bound, side in bounds)
    p_outside = min(1.0, min(test(bound, -side, many) for bound, side in bounds) * many)
    interval = median_interval(values) if signs else student_interval(values, LEVEL, reference)
    answer: Answer = "open"
    if p_inside <= RATE:
        answer = "holds"
    elif p_outside <= RATE:
        answer = "fails"
    return Judgement(answer, centre, interval, p_inside, p_outside, n)


def student_test(
    values: Sequence[float], bound: float, side: int, reference: Reference = EXACT
) -> float:
    """The p-value of Student's one-sided test that the mean is above the bound, or below.

    side: 1 for above, -1 for below. reference: how certain the bound is. There are at least two
    values, not all the same if the bound is exact.
    """
    from scipy.special import stdtr  # of Student's distribution; its object in scipy.stats is slow

    se, degrees = standard_error(values, reference)
    return float(stdtr(degrees, -side * (float(np.mean(values)) - bound) / se))


def sign_test(
    values: Sequence[float],
    bound: float,
    side: int,
    reference: Reference = EXACT,
    statements: int = 1,
) -> float:
    """The p-value of the one-sided sign test that the median is above the bound (side 1) or below.

    A value on the bound, or one that is nan, counts as being on the other side. reference: how
    certain the bound is. If it is not exact, half of the level goes to the chance that the bound
    lies farther than its error reaches, and the test has the other half. statements: among how many
    the level `RATE` is divided.
    """
    from scipy.special import bdtrc  # of the binomial distribution; scipy.stats is slow

    farthest = bound + side * reference_reach(reference, RATE / statements)
    beyond = sum(1 for value in values if side * (value - farthest) > 0)
    p = float(bdtrc(beyond - 1, len(values), 0.5)) if beyond else 1.0
    return min(1.0, 2 * p) if reference.se else p


def reference_reach(reference: Reference, rate: float) -> float:
    """How far the error of a reference reaches on one side, but for half of this probability."""
    from scipy.special import stdtrit

    if reference.se == 0:
        return 0.0
    degrees = math.inf if reference.n is None else max(1, reference.n - 1)
    return float(stdtrit(degrees, 1 - rate / 2)) * reference.se


def are_same(values: Sequence[float], beside: Sequence[float] = ()) -> bool:
    """Whether finite values differ by no more than rounding.

    beside: numbers that they are compared with, whose rounding, where they are finite, counts too.
    """
    sizes = [abs(number) for number in (*values, *beside) if math.isfinite(number)]
    return float(np.ptp(values)) <= ROUNDING * max(sizes)


def difference(a: float, b: float) -> float:
    """a - b, or 0 where they differ by no more than rounding."""
    if math.isfinite(a) and math.isfinite(b) and are_same([a, b]):
        return 0.0
    return a - b


def as_recorded(value: float) -> float:
    """A finite number to the nine significant digits that a record keeps."""
    return float(f"{value:.9g}")


def if_finite(value: float | None) -> float | None:
    """The number, or None in place of one that is not finite, which no record can hold."""
    return value if value is not None and math.isfinite(value) else None


def middle(values: Sequence[float]) -> float:
    """The median; nan if there is no value, or if half of them or more are nan."""
    ordered = sorted(value for value in values if not math.isnan(value))
    if 2 * len(ordered) <= len(values):
        return math.nan
    upper, lower = ordered[len(ordered) // 2], ordered[(len(ordered) - 1) // 2]
    return upper if upper == lower else (upper + lower) / 2


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The interval of the median at 95% or more, by order statistics.

    None with fewer than `FEWEST_SIGNS` values, or if one of them is nan.
    """
    from scipy.special import bdtr

    n, ordered = len(values), sorted(values)
    if n < FEWEST_SIGNS or any(map(math.isnan, values)):
        return None
    beyond = range((n - 1) // 2)  # numbers of values that may be left out at each end
    outside = max(k for k in beyond if bdtr(k, n, 0.5) <= RATE)
    return ordered[outside], ordered[n - 1 - outside]


def discoveries(p_values: Sequence[float], rate: float = 0.05) -> int:
    """How many verdicts stand when all are taken together (Benjamini and Hochberg, 1995).

    Of these verdicts a fraction `rate` is expected to be wrong at most, in the statement or in its
    direction (Benjamini and Yekutieli, 2005). p_values: two-sided, of every claim that was tested.
    """
    ordered = sorted(p_values)
    standing = [k for k, p in enumerate(ordered, 1) if p <= rate * k / len(ordered)]
    return max(standing, default=0)


def welch_interval(a: Sequence[float], b: Sequence[float]) -> tuple[float, float] | None:
    """Welch's 95% interval of mean(a) - mean(b).

    None if either has fewer than two values, or if a value is not finite.
    """
    from scipy import stats

    if min(len(a), len(b)) < 2 or not np.isfinite([*a, *b]).all():
        return None
    if np.ptp(a) == 0 and np.ptp(b) == 0:
        difference = float(np.mean(a) - np.mean(b))
        return difference, difference
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # scipy warns if one has no spread
        interval = stats.ttest_ind(a, b, equal_var=False).confidence_interval(LEVEL)
    return float(interval.low), float(interval.high)


def loglog_slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The slope of the least-squares line through the points (log x, log y).

    Points that are not positive and finite are left out; nan if fewer than `FEWEST_POINTS`
    different x stay.
    """
    from scipy import stats

    pairs = [(a, b) for a, b in zip(x, y) if 0 < a < math.inf and 0 < b < math.inf]
    if len({a for a, _ in pairs}) < FEWEST_POINTS:
        return math.nan
    return float(stats.linregress(*np.log(np.array(pairs)).T).slope)
