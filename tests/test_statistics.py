"""Statistics against scipy's own tests, closed forms and simulation."""

import math

import numpy as np
import pytest
from scipy import stats

from bench.reproduce.statistics import bootstrap, estimate, judge, loglog_slope, student, welch

A = [0.91, 0.93, 0.92, 0.95]
B = [0.90, 0.91, 0.92, 0.92]


def test_mean_and_standard_error_are_the_papers() -> None:
    e = estimate(A)
    assert e.mean == pytest.approx(0.9275)
    assert e.se == pytest.approx(np.std(A, ddof=1) / 2)
    assert (e.n, estimate([1.0]).se) == (4, None)
    assert e.low is not None
    assert e.high is not None
    assert min(A) <= e.low < e.mean < e.high <= max(A)


def test_bootstrap_does_not_change_and_a_constant_has_no_spread() -> None:
    assert bootstrap(A) == bootstrap(A)
    assert bootstrap([2.0, 2.0, 2.0]) == (2.0, 2.0)


def test_a_comparison_is_the_paired_t_test() -> None:
    differences = [a - b for a, b in zip(A, B)]
    theirs = stats.ttest_rel(A, B)
    found = judge(differences, 0.0, math.inf, exact=False)
    assert found.p == pytest.approx(theirs.pvalue)
    assert found.interval == pytest.approx(tuple(theirs.confidence_interval(0.95)))


@pytest.mark.parametrize(
    ("values", "low", "high", "answer"),
    [
        ([1.0, 1.1, 1.2], 0.0, math.inf, "holds"),
        ([-1.0, -1.1, -1.2], 0.0, math.inf, "fails"),
        ([-1.0, 1.1, 0.3], 0.0, math.inf, "open"),
        ([0.01, 0.02, 0.03], -0.1, 0.1, "holds"),
        ([0.01, 0.3, -0.4], -0.1, 0.1, "open"),
        ([5.0], 0.0, math.inf, "open"),  # one run is never enough
        ([], 0.0, math.inf, "open"),
        ([3.0, 3.0], 0.0, math.inf, "holds"),
        ([math.inf, math.inf], 1.0, math.inf, "holds"),  # every run diverged
        ([math.inf, 0.1, 0.1], -math.inf, 1.0, "open"),  # one of three did
        ([math.inf, -math.inf, 0.1], 0.0, math.inf, "open"),
        ([math.nan, 1.0], 0.0, math.inf, "open"),
    ],
)
def test_answers(values: list[float], low: float, high: float, answer: str) -> None:
    assert judge(values, low, high, exact=False).answer == answer


def test_a_whole_population_needs_no_interval() -> None:
    found = judge([5.0], 0.0, math.inf, exact=True)
    assert (found.answer, found.interval, found.p) == ("holds", (5.0, 5.0), None)


def test_one_of_many_parts_fails_only_at_the_corrected_level() -> None:
    values = [-1.0, -2.0, -3.5]  # t interval at 95%: below 0 only just not; find one that is
    shift = student(values, 0.95)[1] + 1e-6
    values = [v - shift for v in values]
    assert judge(values, 0.0, math.inf, exact=False).answer == "fails"
    assert judge(values, 0.0, math.inf, exact=False, of=5).answer == "open"


def test_uncertainty_of_a_published_value_widens_the_interval() -> None:
    assert judge([0.01, 0.02, 0.03], -0.1, 0.1, exact=False, extra_se=0.05).answer == "open"


def test_a_true_tie_is_rarely_called_a_difference() -> None:
    """Of 400 experiments with n = 3 and no difference about 5% have an interval without 0."""
    rng = np.random.default_rng(0)
    wrong = sum(
        judge(list(rng.normal(size=3)), 0.0, math.inf, exact=False).answer != "open"
        for _ in range(400)
    )
    assert 8 <= wrong <= 34  # mean 20, four standard deviations of a binomial are 17


def test_welch_is_scipys() -> None:
    theirs = stats.ttest_ind(A, B, equal_var=False).confidence_interval(0.95)
    assert welch(A, B) == pytest.approx((theirs.low, theirs.high))
    assert welch([1.0], B) is None
    assert welch([2.0, 2.0], [1.0, 1.0]) == (1.0, 1.0)


def test_the_slope_of_a_power_law_is_its_exponent() -> None:
    x = [1.0, 10.0, 100.0, 1000.0]
    assert loglog_slope(x, [3 * v**-0.5 for v in x]) == pytest.approx(-0.5, abs=1e-12)
    assert math.isnan(loglog_slope([1.0, 2.0], [1.0, 2.0]))
    assert loglog_slope([0.0, *x], [9.0, *x]) == pytest.approx(1.0)  # zeros have no logarithm
