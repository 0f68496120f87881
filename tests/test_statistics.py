"""Statistics against scipy's own tests and closed forms."""

import math

import numpy as np
import pytest
from scipy import stats

from bench.reproduce.chances import power, seeds_needed
from bench.reproduce.statistics import (
    FEWEST_SIGNS,
    LEVEL,
    RATE,
    Reference,
    discoveries,
    estimate,
    freedom,
    judge_values,
    loglog_slope,
    median_interval,
    middle,
    sign_test,
    student_interval,
    student_reach,
    welch_interval,
)

INF, NAN = math.inf, math.nan
A = [0.91, 0.93, 0.92, 0.95]
B = [0.90, 0.91, 0.92, 0.92]


def t_of_one(level: float) -> float:
    """Student's two-sided quantile with one degree of freedom, which is Cauchy's."""
    return math.tan(math.pi * level / 2)


def t_of_two(level: float) -> float:
    """Student's two-sided quantile with two degrees of freedom: P(|t| < q) = q / sqrt(2 + q^2)."""
    return math.sqrt(2) * level / math.sqrt(1 - level**2)


def test_mean_and_standard_error_are_the_papers() -> None:
    e = estimate(A)
    assert e.mean == pytest.approx(0.9275)
    assert e.se == pytest.approx(np.std(A, ddof=1) / 2)
    assert e.n == 4
    theirs = stats.ttest_1samp(A, 0.0).confidence_interval(0.95)
    assert e[3:] == pytest.approx((theirs.low, theirs.high))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.5], (1.5, None, 1, None, None)),
        ([2.0, 2.0, 2.0], (2.0, 0.0, 3, 2.0, 2.0)),
        ([0.1, 0.1, 0.1], (0.1, 0.0, 3, 0.1, 0.1)),  # their mean in floats is not .1
        ([1.0, INF, 3.0], (INF, None, 3, None, None)),
        ([INF, INF], (INF, None, 2, None, None)),
    ],
)
def test_one_value_and_one_that_is_not_finite_have_no_interval(
    values: list[float], expected: tuple[float | None, ...]
) -> None:
    assert tuple(estimate(values)) == expected


@pytest.mark.parametrize("n", [2, 3, 5])
def test_an_interval_of_a_table_has_the_mean_in_95_of_100(n: int) -> None:
    """4,000 draws have an error of .0035. Three values lie around their mean in 75 of 100, and so
    does the bootstrap's interval, which is from the least of three to the largest."""
    draws = np.random.default_rng(3).normal(7.0, 2.0, (4_000, n))
    intervals = [estimate(values)[3:] for values in draws.tolist()]
    inside = [low is not None and high is not None and low < 7 < high for low, high in intervals]
    assert np.mean(inside) == pytest.approx(0.95, abs=0.012)


def test_students_interval_is_the_quantile_times_the_error() -> None:
    """The errors of 1, 3 and of 1, 2, 3 are 1 and 1 / sqrt 3; errors add as squares."""
    for level in (0.5, 0.95, 0.99):
        one, two = t_of_one(level), t_of_two(level) / math.sqrt(3)
        assert student_interval([1.0, 3.0], level) == pytest.approx((2 - one, 2 + one))
        assert student_interval([1.0, 2.0, 3.0], level) == pytest.approx((2 - two, 2 + two))
        wider = one * math.sqrt(1 + 0.75**2)
        found = student_interval([1.0, 3.0], level, Reference(0.75))
        assert found == pytest.approx((2 - wider, 2 + wider))
    assert student_interval([2.0, 2.0], 0.95) == (2.0, 2.0)
    alone = t_of_one(0.95) * 0.75
    found = student_interval([2.0, 2.0], 0.95, Reference(0.75))
    assert found == pytest.approx((2 - alone, 2 + alone))


def test_the_side_with_fewer_runs_has_the_degrees_of_freedom() -> None:
    """An exact reference, or one with an unknown number of runs, does not count as a side."""
    found = [freedom(5, Reference(*of)) for of in ((0.5, 3), (0.5, 9), (0.5, 1), (0.5,), (0.0, 3))]
    assert found == [2, 4, 1, 4, 4]
    values = [2 + math.sqrt(2) * d for d in (-1.0, 1.0, -1.0, 1.0)]  # their error is sqrt(2 / 3)
    reach = t_of_two(0.95) * math.hypot(math.sqrt(2 / 3), 0.75)
    found_interval = student_interval(values, 0.95, Reference(0.75, 3))
    assert found_interval == pytest.approx((2 - reach, 2 + reach))


def test_a_comparison_is_the_paired_t_test() -> None:
    differences = [a - b for a, b in zip(A, B)]
    theirs = stats.ttest_rel(A, B)
    found = judge_values(differences, 0.0, INF)
    assert found.p == pytest.approx(theirs.pvalue)
    assert found.p_inside == pytest.approx(stats.ttest_rel(A, B, alternative="greater").pvalue)
    assert found.p_outside == pytest.approx(stats.ttest_rel(A, B, alternative="less").pvalue)
    assert found.interval == pytest.approx(tuple(theirs.confidence_interval(0.95)))
    assert (found.centre, found.n) == (pytest.approx(0.015), 4)


# values, low, high, and the answer
ANSWERS: list[tuple[list[float], float, float, str]] = [
    ([1.0, 1.1, 1.2], 0.0, INF, "holds"),
    ([-1.0, -1.1, -1.2], 0.0, INF, "fails"),
    ([-1.0, 1.1, 0.3], 0.0, INF, "open"),
    ([1.0, 1.1, 1.2], -INF, 0.0, "fails"),
    ([-1.0, -1.1, -1.2], -INF, 0.0, "holds"),
    ([0.01, 0.02, 0.03], -0.1, 0.1, "holds"),
    ([0.11, 0.12, 0.13], -0.1, 0.1, "open"),  # from .095 to .145
    ([0.11, 0.112, 0.114], -0.1, 0.1, "fails"),
    ([-0.11, -0.112, -0.114], -0.1, 0.1, "fails"),
    ([0.01, 0.3, -0.4], -0.1, 0.1, "open"),
    ([5.0], 0.0, INF, "open"),  # one run is never enough
    ([-5.0], 0.0, INF, "open"),
    ([], 0.0, INF, "open"),
    ([1.0, 1.05], 0.0, INF, "holds"),  # two are, if they are clear: t = 41
    ([0.0, 1.0], 1.0, INF, "open"),
    ([1.0, 1.1, 1.2], -INF, INF, "open"),  # nothing is asked
    # equal values have no deviation: the sign test takes six of them
    ([3.0] * 5, 0.0, INF, "open"),
    ([3.0] * 6, 0.0, INF, "holds"),
    ([-3.0] * 6, 0.0, INF, "fails"),
    ([-3.0] * 6, -INF, 0.0, "holds"),
    ([3.0] * 6, 3.0, INF, "open"),  # a value on the bound speaks for no side
    ([3.0] * 6, -INF, 3.0, "open"),
    ([3.0] * 6, 2.0, 4.0, "holds"),
    ([5.0] * 6, 2.0, 4.0, "open"),  # two bounds are two ways to be outside: 2 / 64 > .025
    ([5.0] * 7, 2.0, 4.0, "fails"),
    # so it does where a value is not finite
    ([INF, INF, INF], 1.0, INF, "open"),
    ([INF, 2.0, 3.0, 4.0, 5.0], 1.0, INF, "open"),
    ([INF, 2.0, 3.0, 4.0, 5.0, 6.0], 1.0, INF, "holds"),
    ([INF, 2.0, 3.0, 4.0, 5.0, 0.5], 1.0, INF, "open"),
    ([INF, 2.0, 3.0, 4.0, 5.0, 6.0], -INF, 1.0, "fails"),
    ([-INF] * 6, -INF, 1.0, "holds"),
    ([INF, *[2.0] * 7], 1.0, INF, "holds"),
    ([-INF, *[2.0] * 7], 1.0, INF, "open"),  # 7 of 8: 9 / 256 > .025
    ([-INF, *[2.0] * 8], 1.0, INF, "holds"),  # 8 of 9: 10 / 512
    # what is unknown speaks for no side
    ([NAN], 0.0, INF, "open"),
    ([NAN] * 9, 0.0, INF, "open"),
    ([NAN, *[2.0] * 5], 1.0, INF, "open"),
    ([NAN, *[2.0] * 7], 1.0, INF, "open"),
    ([NAN, *[2.0] * 8], 1.0, INF, "holds"),
    ([NAN, *[0.5] * 8], 1.0, INF, "fails"),
]  # fmt: skip


@pytest.mark.parametrize(("values", "low", "high", "answer"), ANSWERS)
def test_answers(values: list[float], low: float, high: float, answer: str) -> None:
    assert judge_values(values, low, high).answer == answer


def test_counts_that_the_settings_fix_are_exact() -> None:
    """Two runs show that a count does not depend on the seed; one does not."""
    assert judge_values([3.0, 3.0], 0.0, INF, counts=True).answer == "holds"
    assert judge_values([3.0, 3.0], 3.0, INF, counts=True).answer == "holds"  # bounds are inside
    assert judge_values([3.0, 3.0], -INF, 3.0, counts=True).answer == "holds"
    assert judge_values([3.0, 3.0], 4.0, INF, counts=True).answer == "fails"
    assert judge_values([3.0, 3.0], 4.0, INF, counts=True) == ("fails", 3.0, (3.0, 3.0), 1, 0, 2)
    assert judge_values([3.0, 3.0], 2.0, INF, counts=True).p == 0.0
    assert judge_values([3.0], 2.0, INF, counts=True).answer == "open"
    assert judge_values([3.0, 4.0], 2.0, INF, counts=True).answer == "open"


def test_the_median_is_judged_by_signs() -> None:
    """Student's test of the mean says nothing of these values, the sign test that they are
    positive."""
    values = [1.0, 2.0, 3.0, 4.0, 5.0, 900.0]
    assert judge_values(values, 0.0, INF).answer == "open"
    found = judge_values(values, 0.0, INF, median=True)
    assert found == ("holds", 3.5, (1.0, 900.0), pytest.approx(1 / 64), 1.0, 6)
    assert found.p == pytest.approx(1 / 32)
    assert judge_values(values[:5], 0.0, INF, median=True).answer == "open"


def test_values_that_differ_by_rounding_are_the_same() -> None:
    """A record keeps nine digits: what a run folder says must not be judged otherwise."""
    values = [0.25, 0.25, 0.25 + 2**-54]
    assert judge_values(values, 0.0, INF) == judge_values([0.25] * 3, 0.0, INF)
    assert judge_values(values, 0.0, INF).answer == "open"
    assert judge_values([0.25, 0.25, 0.2501], 0.0, INF).answer == "holds"


def test_values_that_a_bounds_rounding_hides_are_the_same() -> None:
    """Slopes of a constant are 1e-17 instead of 0: to be below .5 they need the sign test."""
    noise = [1e-17, -2e-17, 0.5e-17]
    assert judge_values(noise, -INF, 0.5).answer == "open"
    assert judge_values(noise * 2, -INF, 0.5).p_inside == pytest.approx(1 / 2**6)
    assert judge_values(noise, -1e-16, INF).answer == "holds"  # there the bound is as small


@pytest.mark.parametrize("n", [None, 3])
def test_the_sign_test_allows_for_the_error_of_what_is_compared(n: int | None) -> None:
    """Eight of eight lie .012 beyond a bound whose own standard error is .02."""
    values = [0.022] * 7 + [INF]
    assert judge_values(values, -0.01, 0.01).answer == "fails"
    reference = Reference(0.02, n)
    assert judge_values(values, -0.01, 0.01, reference=reference).answer == "open"
    far = [0.5] * 8 + [INF]
    assert judge_values(far, -0.01, 0.01, reference=reference).answer == "fails"


def test_the_sign_tests_level_is_shared_with_the_error_of_what_is_compared() -> None:
    """Half of it is the chance that the bound lies beyond z(.9875) = 2.2414 standard errors."""
    reference = Reference(0.1)
    assert sign_test([0.2242] * 8, 0.0, 1, reference) == pytest.approx(2 / 2**8)
    assert sign_test([0.2241] * 8, 0.0, 1, reference) == 1.0
    assert sign_test([-0.2242] * 8, 0.0, -1, reference) == pytest.approx(2 / 2**8)
    # one of three statements: z(1 - .025 / 6) = 2.6383
    assert sign_test([0.2639] * 8, 0.0, 1, reference, 3) == pytest.approx(2 / 2**8)
    assert sign_test([0.2638] * 8, 0.0, 1, reference, 3) == 1.0
    wide = Reference(0.1, 3)  # t(.9875) of two degrees of freedom = 6.2053
    assert sign_test([0.6206] * 8, 0.0, 1, wide) == pytest.approx(2 / 2**8)
    assert sign_test([0.6205] * 8, 0.0, 1, wide) == 1.0


def test_what_is_said_beside_the_answer() -> None:
    """A judgement has a centre, an interval, p-values and n, as far as there are any."""
    assert judge_values([5.0], 0.0, INF) == ("open", 5.0, None, None, None, 1)
    assert judge_values([3.0, 3.0], 0.0, INF) == ("open", 3.0, None, 0.25, 1.0, 2)
    assert judge_values([2.0, INF], 0.0, INF) == ("open", INF, None, 0.25, 1.0, 2)
    for values in ([], [NAN, 1.0], [NAN, NAN]):
        found = judge_values(values, 0.0, INF)
        assert math.isnan(found.centre)
        assert (found.interval, found.n) == (None, len(values))
    both = judge_values([INF, -INF], 0.0, INF)
    assert math.isnan(both.centre)
    assert both.p == 1.0


@pytest.mark.parametrize(
    ("low", "high", "times"),
    [(0.0, INF, 1), (-INF, 5.0, 1), (1.0, 9.0, 1), (-4.0, 1.0, 2), (3.0, 9.0, 2)],
)
def test_p_is_of_what_the_values_say_more_clearly(low: float, high: float, times: int) -> None:
    """The mean of 1, 3 is 2 and its error 1, and a t of one degree of freedom is Cauchy's.

    Against being outside of two bounds, each of the two tests counts.
    """
    nearer = min(abs(2 - low), abs(2 - high))
    by_hand = times * (1 - 2 / math.pi * math.atan(nearer))
    assert judge_values([1.0, 3.0], low, high).p == pytest.approx(min(1.0, by_hand))


def test_inside_of_two_bounds_the_nearer_one_decides() -> None:
    """The distances of the mean from the bounds are 1 and 7 standard errors."""
    found = judge_values([1.0, 3.0], 1.0, 9.0)
    cauchy = [0.5 - math.atan(t) / math.pi for t in (1.0, 7.0)]
    assert found.p_inside == pytest.approx(cauchy[0])
    assert found.p_outside == pytest.approx(1.0)
    beyond = judge_values([1.0, 3.0], 3.0, 9.0)
    assert beyond.p_inside == pytest.approx(0.5 + math.atan(1.0) / math.pi)
    assert beyond.p_outside == pytest.approx(2 * cauchy[0])


def test_there_is_no_p_without_a_bound() -> None:
    assert judge_values([1.0, 3.0], -INF, INF).p is None


def test_the_interval_shown_is_at_95_percent() -> None:
    half = t_of_two(LEVEL) / math.sqrt(3)
    assert LEVEL == 0.95
    assert pytest.approx(0.025) == RATE
    for of in (1, 7):
        found = judge_values([1.0, 2.0, 3.0], 0.0, INF, of=of)
        assert found.interval == pytest.approx((2 - half, 2 + half))


@pytest.mark.parametrize("of", [1, 2, 5])
def test_one_of_many_parts_fails_only_at_the_corrected_level(of: int) -> None:
    """With k statements the level is 1 - .05 / k: 0 lies just outside or inside that interval."""
    edge = t_of_two(1 - 0.05 / of) / math.sqrt(3)
    for below, answer in {edge + 1e-6: "fails", edge - 1e-6: "open"}.items():
        values = [d - below for d in (-1.0, 0.0, 1.0)]
        assert judge_values(values, 0.0, INF, of=of).answer == answer
        assert judge_values([-v for v in values], -INF, 0.0, of=of).answer == answer
        if of == 1:
            assert judge_values(values, 0.0, INF).answer == answer


def test_that_a_statement_holds_needs_no_correction() -> None:
    just = t_of_two(0.95) / math.sqrt(3) + 1e-6
    values = [d + just for d in (-1.0, 0.0, 1.0)]
    assert judge_values(values, 0.0, INF, of=50).answer == "holds"
    assert judge_values([v - 2e-6 for v in values], 0.0, INF).answer == "open"


def test_uncertainty_of_a_published_value_widens_both_intervals() -> None:
    """The uncertainty keeps claims from holding, and it keeps claims from failing."""
    vague = Reference(0.05)
    assert judge_values([0.01, 0.02, 0.03], -0.1, 0.1, reference=vague).answer == "open"
    assert judge_values([0.2, 0.201, 0.202], -0.1, 0.1).answer == "fails"
    assert judge_values([0.2, 0.201, 0.202], -0.1, 0.1, reference=vague).answer == "open"
    clear = Reference(0.01)  # equal values are then no matter of signs
    assert judge_values([0.0, 0.0, 0.0], -0.1, 0.1, reference=clear).answer == "holds"


def test_the_sign_test_is_scipys() -> None:
    values = [1.0, 2.0, 3.0, -1.0, 0.0, NAN, INF]
    for bound, side, beyond in ((0.0, 1, 4), (0.0, -1, 1), (2.0, 1, 2), (9.0, 1, 1), (9.0, -1, 5)):
        theirs = stats.binomtest(beyond, 7, alternative="greater").pvalue
        assert sign_test(values, bound, side) == pytest.approx(theirs)
    assert sign_test([NAN, 0.0], 0.0, 1) == 1.0


def test_the_middle_of_values_some_of_which_are_unknown() -> None:
    assert middle([3.0, 1.0, 2.0]) == 2.0
    assert middle([4.0, 1.0, 2.0, 3.0]) == 2.5
    assert middle([INF, INF, 1.0]) == INF
    assert middle([1.0, 2.0, NAN]) == 1.5
    for values in ([], [NAN], [1.0, NAN], [1.0, NAN, NAN]):
        assert math.isnan(middle(values))


def test_the_interval_of_a_median_leaves_out_few_values_at_each_end() -> None:
    """Of 9 values at most one may be left out: P(B <= 1) = 10 / 512 <= .025 < 46 / 512; of 8 none
    may: 9 / 256 > .025; of 12 two: 79 / 4096."""
    assert median_interval([float(v) for v in range(5)]) is None
    assert median_interval([5.0, 3.0, 1.0, 0.0, 2.0, 4.0]) == (0.0, 5.0)
    assert median_interval([float(v) for v in range(8)]) == (0.0, 7.0)
    assert median_interval([float(v) for v in range(9)]) == (1.0, 7.0)
    assert median_interval([float(v) for v in range(12)]) == (2.0, 9.0)
    assert median_interval([*[1.0] * 5, INF]) == (1.0, INF)
    assert median_interval([*[1.0] * 8, NAN]) is None
    for n in range(FEWEST_SIGNS, 40):  # the claim "holds" where the bound lies below the interval
        values = [float(v) for v in range(n)]
        interval = median_interval(values)
        assert interval is not None
        assert sign_test(values, interval[0] - 0.5, 1) <= RATE < sign_test(values, interval[0], 1)


@pytest.mark.parametrize(
    ("deviation", "n", "within", "reference"),
    [
        (1.0, 5, 2.0, Reference()),
        (1.0, 5, 1.2, Reference()),
        (1.0, 12, 1.0, Reference()),
        (1.0, 2, 9.0, Reference()),
        (1.0, 8, 1.5, Reference(0.4)),
        (1.0, 8, 1.9, Reference(0.4, 4)),
    ],
)
def test_power_is_how_often_a_simulated_claim_holds(
    deviation: float, n: int, within: float, reference: Reference
) -> None:
    """The published value is the same in all draws: the test allows for its error, and new seeds
    do not print it anew."""
    rng, draws = np.random.default_rng(2), 4000
    values = deviation * rng.normal(size=(draws, n))
    judged = [judge_values(list(v), -within, within, reference=reference) for v in values]
    often = sum(found.answer == "holds" for found in judged) / draws
    assert 0.1 < often < 0.999
    assert power(deviation, n, within, reference) == pytest.approx(often, abs=0.03)


def test_power_at_its_ends() -> None:
    assert power(1.0, 1, 99.0) == 0.0
    assert power(0.0, 3, 1.0) == 1.0
    assert power(0.0, 3, 1.0, Reference(5.0)) == 0.0
    assert power(1e-9, 3, 1.0) == pytest.approx(1.0)


def test_how_many_seeds_a_power_takes() -> None:
    """The number is the least, and there may be none."""
    for deviation, within in ((1.0, 1.0), (1.0, 0.3), (0.1, 1.0)):
        n = seeds_needed(deviation, within)
        assert n is not None
        assert power(deviation, n, within) >= 0.8 > power(deviation, n - 1, within)
    assert seeds_needed(1.0, 0.01) is None
    assert seeds_needed(1.0, 1.0, Reference(1.0)) is None


def test_how_many_verdicts_stand_together() -> None:
    """By hand, of m = 5 at 5%: p_k <= .01 k. The third is too large, the fourth is not: four."""
    assert discoveries([0.04, 0.001, 0.031, 0.02, 0.9]) == 4
    assert discoveries([0.041, 0.001, 0.031, 0.02, 0.9]) == 2
    assert discoveries([0.5, 0.9]) == 0
    assert discoveries([]) == 0
    assert discoveries([0.0] * 3) == 3
    assert discoveries([0.05]) == 1
    assert discoveries([0.1, 0.1], rate=0.1) == 2


def test_welch_is_scipys() -> None:
    theirs = stats.ttest_ind(A, B, equal_var=False).confidence_interval(0.95)
    assert welch_interval(A, B) == pytest.approx((theirs.low, theirs.high))
    pooled = stats.ttest_ind(A, B).confidence_interval(0.95)
    assert welch_interval(A, B) != pytest.approx((pooled.low, pooled.high))


def test_welch_by_hand() -> None:
    """If one side has no spread, the interval is the other side's own. The errors of 1, 3 and of
    5, 11 are 1 and 3, and the degrees of freedom (1 + 9)^2 / (1 + 81)."""
    half = t_of_two(0.95) / math.sqrt(12)
    assert welch_interval([1.0, 1.5, 2.0], [7.0, 7.0]) == pytest.approx((-5.5 - half, -5.5 + half))
    assert welch_interval([7.0, 7.0], [1.0, 1.5, 2.0]) == pytest.approx((5.5 - half, 5.5 + half))
    wide = float(stats.t.ppf(0.975, 100 / 82)) * math.sqrt(10)
    assert welch_interval([1.0, 3.0], [5.0, 11.0]) == pytest.approx((-6 - wide, -6 + wide))
    assert welch_interval([2.0, 2.0], [1.0, 1.0]) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("a", "b"), [([1.0], B), (B, [1.0]), ([INF, 1.0], B), (B, [NAN, 1.0]), ([], [])]
)
def test_welch_takes_two_finite_runs_of_each(a: list[float], b: list[float]) -> None:
    assert welch_interval(a, b) is None


def test_the_slope_of_a_power_law_is_its_exponent() -> None:
    x = [1.0, 10.0, 100.0, 1000.0]
    assert loglog_slope(x, [3 * v**-0.5 for v in x]) == pytest.approx(-0.5, abs=1e-12)


def test_the_slope_is_of_least_squares() -> None:
    """The slope through (0, 0), (1, 2), (2, 1) in logarithms is 1 / 2."""
    e = math.e
    assert loglog_slope([1.0, e, e**2], [1.0, e**2, e]) == pytest.approx(0.5)


@pytest.mark.parametrize("bad", [0.0, -1.0, INF, NAN])
def test_points_without_a_logarithm_are_left_out(bad: float) -> None:
    x = [1.0, 10.0, 100.0]
    assert loglog_slope([bad, *x], [9.0, *x]) == pytest.approx(1.0)
    assert loglog_slope([9.0, *x], [bad, *x]) == pytest.approx(1.0)
    assert math.isnan(loglog_slope([bad, 1.0, 10.0], [1.0, 2.0, 3.0]))


def test_a_slope_takes_three_places() -> None:
    assert math.isnan(loglog_slope([], []))
    assert math.isnan(loglog_slope([1.0, 2.0], [1.0, 2.0]))
    assert math.isnan(loglog_slope([1.0, 2.0, 2.0], [1.0, 2.0, 3.0]))
    assert loglog_slope([0.25, 0.5, 0.75], [0.25, 0.5, 0.75]) == pytest.approx(1.0)


def test_the_reach_of_columns_is_that_of_their_intervals() -> None:
    rows = np.array([[1.0, 2.0, 5.0], [2.0, 2.0, -1.0], [4.0, 2.0, 0.5]])
    found = student_reach(rows, LEVEL)
    for values, reach in zip(rows.T, found):
        low, high = student_interval(values.tolist(), LEVEL)
        assert reach == pytest.approx((high - low) / 2)
