"""How often the judge is wrong: every kind of claim judged many times on data with a known truth.

Each case draws the values of a claim whose truth lies exactly on its bound, where it is hardest to
tell. A claim that is just true must be found to fail at `statistics.RATE` at most, and one that is
just false must be found to hold at that rate at most, so both answers are counted as wrong.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from itertools import product
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator, default_rng

from bench.reproduce import claims
from bench.reproduce.claim_kinds import First
from bench.reproduce.claims import ClaimPart
from bench.reproduce.plan import PlannedRun, Run
from bench.reproduce.points import Point
from bench.reproduce.specs import Metric
from bench.reproduce.statistics import RATE, loglog_slope
from bench.reproduce.targets import Spent, lead, log_ratio
from bench.runs.folder import RunFolder

Values = np.ndarray[Any, np.dtype[np.float64]]
Law = Callable[[Generator, int], Values]  # (randomness, n) -> the values of one part at n seeds


class Case(NamedTuple):
    """A claim and the law of its values.

    kind: the kinds of claims that give such values. about: the law in words. law: gives the values
    of a part, whose mean (or median) is 0. low, high: the bounds; 0 is one of them. parts: how many
    statements the claim is made of. published: the number of runs of a published value, with which
    the values are compared; None if there is none. promised: the stated rate is promised for this
    law; otherwise the case shows why a spec has to say `log` or `median` of such values.
    """

    kind: str
    about: str
    law: Law
    low: float = 0.0
    high: float = math.inf
    parts: int = 1
    median: bool = False
    published: int | None = None
    promised: bool = True


class Rates(NamedTuple):
    """How often a case was found to hold and to fail, of `draws`."""

    case: Case
    n: int
    draws: int
    holds: float
    fails: float

    @property
    def stands(self) -> bool:
        """Whether both rates are the stated one at most, up to 3 standard errors of the draws."""
        return max(self.holds, self.fails) <= RATE + 3 * math.sqrt(RATE * (1 - RATE) / self.draws)


def normal(rng: Generator, n: int) -> Values:
    """A value with normal noise."""
    return rng.normal(size=n)


def coarse(rng: Generator, n: int) -> Values:
    """A value measured in steps as large as three standard deviations, so that ties occur."""
    return 3.0 * np.round(rng.normal(size=n) / 3.0)


def heavy(rng: Generator, n: int) -> Values:
    """A value with tails as heavy as Student's with three degrees of freedom."""
    return rng.standard_t(3, size=n)


def skewed(rng: Generator, n: int) -> Values:
    """A log-normal value over two decades, from which its mean is taken."""
    return np.exp(1.2 * rng.normal(size=n)) - math.exp(0.72)


def skewed_about_median(rng: Generator, n: int) -> Values:
    """The same, from which its median is taken."""
    return np.exp(1.2 * rng.normal(size=n)) - 1.0


def log_of_skewed(rng: Generator, n: int) -> Values:
    """The logarithm of the ratio of two such values, as `log: true` compares them."""
    a, b = np.exp(1.2 * rng.normal(size=(2, n)))
    return np.array([log_ratio(x, y) for x, y in zip(a, b)])


def collapsing(rng: Generator, n: int) -> Values:
    """A difference with small noise that is far off in a fifth of the runs, which collapse; its
    mean is taken from it."""
    return 0.1 * rng.normal(size=n) + (rng.random(n) < 0.2) - 0.2


def collapsing_about_median(rng: Generator, n: int) -> Values:
    """The same, from which its median is taken: the point below which 5/8 of the others lie."""
    return 0.1 * (rng.normal(size=n) - NormalDist().inv_cdf(0.625)) + (rng.random(n) < 0.2)


def diverging(rng: Generator, n: int) -> Values:
    """The difference of two methods that both diverge in a fifth of the runs."""
    a, b = rng.normal(size=(2, n))
    a[rng.random(n) < 0.2], b[rng.random(n) < 0.2] = -math.inf, -math.inf
    with np.errstate(invalid="ignore"):
        return a - b


def costs(rng: Generator, n: int, limit: float = math.inf, every: float = 0.0) -> Values:
    """The logarithms of the ratios of the costs of two methods that are equally quick.

    limit: what a run may spend; dearer ones never reach the target. every: the steps in which costs
    are measured; 0 for exact costs.
    """
    pairs = np.exp(0.7 * rng.normal(size=(n, 2)))
    if every:
        pairs = every * np.ceil(pairs / every)
    pairs[pairs > limit] = math.inf
    return np.array([log_ratio(b, a) for a, b in pairs])


def censored(rng: Generator, n: int) -> Values:
    """Costs of two equal methods, a third of which end before the target."""
    return costs(rng, n, limit=1.35)


def mostly_censored(rng: Generator, n: int) -> Values:
    """Costs of two equal methods, two thirds of which end before the target."""
    return costs(rng, n, limit=0.75)


def stopped_earlier(rng: Generator, n: int) -> Values:
    """Costs of two equal methods, of which the second may spend less than half of the first's."""

    def spent(cost: float, limit: float) -> Spent:
        return Spent(cost, cost) if cost <= limit else Spent(limit, math.inf)

    pairs = np.exp(0.7 * rng.normal(size=(n, 2)))
    return np.array([lead(spent(a, 2.0), spent(b, 0.75), 1.0) for a, b in pairs])


def tied(rng: Generator, n: int) -> Values:
    """Costs of two equal methods that are measured so seldom that half of the pairs are ties."""
    return costs(rng, n, every=1.0)


def tied_and_censored(rng: Generator, n: int) -> Values:
    """Costs with ties, of which few are beyond what a run may spend."""
    return costs(rng, n, limit=2.0, every=1.0)


def slopes(rng: Generator, n: int) -> Values:
    """Fitted slopes of five points with log-normal noise, from which the true one is taken."""
    x = np.array([10.0, 18.0, 32.0, 56.0, 100.0])
    noise = np.exp(0.2 * rng.normal(size=(n, 5)))
    return np.array([loglog_slope(list(x), list(x**3 * some)) - 3.0 for some in noise])


def distances(rng: Generator, n: int) -> Values:
    """The distance |v| from a point to which a method comes, less its mean."""
    return np.abs(rng.normal(3.0, 1.0, size=n)) - 3.0


def common_targets(rng: Generator, n: int) -> Values:
    """Costs of two equal methods to 95% of the better one's gain, from their histories.

    Gains and speeds of runs vary by a third, measurements are noisy, and a run that ends lower than
    the target never reaches it.
    """
    runs = {row: [saturating_run(rng, seed) for seed in range(n)] for row in "ab"}
    (part,) = claims.claim_parts(FIRST, runs, n, higher_is_better, {})
    return np.array(part.values)


FIRST = First(
    kind="first", by="us", text="", rows=["a"], than=["b"], metric="v", on="calls/grad_f", gain=0.95
)


def higher_is_better(name: str) -> Metric:
    """A metric of this name, of which more is better."""
    return Metric(label=name, better="higher")


def saturating_run(rng: Generator, seed: int) -> Run:
    """A run whose metric v grows fast at first and then ever more slowly."""
    spent = np.arange(0.0, 61.0, 2.0)
    gain, speed = np.exp(0.1 * rng.normal()), 8.0 * np.exp(0.35 * rng.normal())
    curve = gain * (1 - np.exp(-spent / speed)) + 0.01 * rng.normal(size=len(spent))
    job = PlannedRun(Point("paper", "", (), ()), seed, "")
    found = Run(job, RunFolder(Path(), ""), {"status": "done"})
    rows = [{"v": v, "calls/grad_f": t} for v, t in zip(curve.tolist(), spent.tolist())]
    found.__dict__["history"] = rows  # in place of the file that the property would read
    return found


SEEDS = (2, 3, 5, 6, 10)  # the numbers of seeds that are tried
WIDE = 6.0  # the width of two-sided bounds in standard deviations, one of which is the truth
CASES = (
    Case("above, below, order", "normal", normal),
    Case("above, below, order", "normal, five comparisons of which one is on its bound", normal,
         parts=5),
    Case("above, below, order", "coarse, with ties", coarse),
    Case("above, below, order", "a fifth of the runs diverge", diverging),
    Case("above, below, order", "heavy tails (Student's, 3)", heavy),
    Case("above, below, order", "log-normal, with log", log_of_skewed),
    Case("above, below, order", "log-normal, with median", skewed_about_median, median=True),
    Case("above, below, order", "log-normal, with neither", skewed, promised=False),
    Case("above, below, order", "a fifth of the runs collapse, with median",
         collapsing_about_median, median=True),
    Case("above, below, order", "a fifth of the runs collapse, without", collapsing,
         promised=False),
    Case("between", "normal", normal, high=WIDE),
    Case("close, within_published", "normal", normal, high=WIDE),
    Case("close, within_published", "coarse, with ties", coarse, high=WIDE),
    Case("within_published", "normal, published with the error of 3 runs", normal, high=WIDE,
         published=3),
    Case("within_published", "normal, published with the error of 5 runs", normal, high=WIDE,
         published=5),
    Case("converges, does_not_converge", "a distance", distances, low=-math.inf, high=0.0),
    Case("diverges", "normal growth", normal),
    Case("first", "equal costs", costs),
    Case("first", "a third is censored", censored),
    Case("first", "two thirds are censored", mostly_censored),
    Case("first", "one method stops earlier than the other", stopped_earlier),
    Case("first", "half of the pairs are ties", tied),
    Case("first", "ties and censoring", tied_and_censored),
    Case("first", "95% of the best gain, from histories", common_targets),
    Case("slope", "fits with log-normal noise", slopes, high=WIDE),
)  # fmt: skip


def simulate(case: Case, n: int, draws: int, seed: int = 0) -> Rates:
    """Judge a case `draws` times at n seeds each; the same arguments give the same rates."""
    rng = default_rng([seed, n, *map(ord, case.kind + case.about)])
    words = []
    for _ in range(draws):
        parts = [draw_part(case, rng, n)]
        # the other statements of a claim are clearly true
        parts += [draw_part(case, rng, n, 100.0) for _ in range(case.parts - 1)]
        words.append(claims.judge_parts(parts).word)
    return Rates(case, n, draws, words.count("holds") / draws, words.count("fails") / draws)


def draw_part(case: Case, rng: Generator, n: int, above: float = 0.0) -> ClaimPart:
    """A part with values of the case's law, and of a paper's runs if it is compared with any.

    above: how far the truth lies above the bound.
    """
    values, se = case.law(rng, n) + above, 0.0
    if case.published is not None:
        theirs = rng.normal(size=case.published)
        values = values - theirs.mean()
        se = float(theirs.std(ddof=1)) / math.sqrt(case.published)
    return ClaimPart(
        what="", values=values.tolist(), low=case.low, high=case.high, expected=n,
        extra_se=se, extra_n=case.published, median=case.median,
    )  # fmt: skip


def measure_coverage(draws: int, each: Callable[[Rates], None] | None = None) -> list[Rates]:
    """The rates of every case at every number of seeds. each: is called with every result."""
    found = []
    for case, n in product(CASES, SEEDS):
        found.append(simulate(case, n, draws))
        if each is not None:
            each(found[-1])
    return found


def summarise_coverage(found: Iterable[Rates]) -> dict[str, Any]:
    """The rates as data for a file."""
    rows = [
        {
            "kind": rates.case.kind,
            "law": rates.case.about,
            "n": rates.n,
            "holds": rates.holds,
            "fails": rates.fails,
            "promised": rates.case.promised,
            "draws": rates.draws,
        }
        for rates in found
    ]
    return {"rate": RATE, "cases": rows}


def coverage_sentence(content: Mapping[str, Any]) -> str:
    """What a file of rates says, in a sentence."""
    promised = [row for row in content["cases"] if row["promised"]]
    worst = max(promised, key=lambda row: max(row["holds"], row["fails"]))
    return (
        "In simulations whose truth lies on a claim's bound, where it is hardest to judge, at most "
        f"{max(worst['holds'], worst['fails']):.1%} of {worst['draws']:,} verdicts were wrong "
        f"(kind {worst['kind']}; {worst['law']}; {worst['n']} seeds)."
    )
