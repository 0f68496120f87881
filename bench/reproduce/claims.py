"""From a claim and its runs to numbers, and from these numbers to a verdict.

Every claim becomes one or more parts, each of which says that the mean of some values, one for
each seed, lies in [low, high]. The claim holds if all its parts hold, and fails if one fails.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from operator import not_
from statistics import stdev
from types import MappingProxyType
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from bench.reproduce import statistics
from bench.reproduce.claim_kinds import Above, AnyClaim, Below, First, Order
from bench.reproduce.plan import Run
from bench.reproduce.slopes import RunsOfRows
from bench.reproduce.specs import Metric, Published, format_number
from bench.reproduce.statements import Ends, is_count, statements
from bench.reproduce.timing import unlike_seeds

VerdictWord = Literal["holds", "fails", "not enough runs", "outdated", "not run"]


class ClaimPart(BaseModel):
    """The statement that the mean of `values`, one for each seed, lies in [low, high].

    what: the values in words. expected: how many values there are once all runs have ended.
    extra_se, extra_n: the standard error of the published number that the values are compared with,
    and the number of runs behind that. counts: the values are counts that the settings fix.
    median: the claim is about the median. strict: a count on a bound lies outside.
    """

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")

    what: str
    values: list[float]
    low: float
    high: float
    expected: int
    extra_se: float = 0.0
    extra_n: int | None = None
    counts: bool = False
    median: bool = False
    strict: bool = Field(default=False, exclude_if=not_)

    @property
    def reference(self) -> statistics.Reference:
        """How certain the number is that the values are compared with."""
        return statistics.Reference(self.extra_se, self.extra_n)


class Verdict(BaseModel):
    """The verdict on a claim, with the numbers that it rests on, in words.

    The word "outdated" stands in place of a verdict that rests on other runs than those which the
    spec asks for today.
    """

    model_config = ConfigDict(frozen=True)

    word: VerdictWord
    n: int  # the number of values of the part with the fewest
    p: float | None = None  # two-sided, of the whole claim; None if a part could not be tested
    statistic: str  # the line of the part that decided
    details: list[str]  # the line of every part

    @property
    def text(self) -> str:
        """The verdict in words; if there are not enough runs, with their number."""
        return f"{self.word} (n={self.n})" if self.word == "not enough runs" else self.word


def published_error(paper: Published, values: Sequence[float]) -> float:
    """The standard error of a published value, with which our values, one for each seed, are
    compared.

    If the published runs had one draw, such as a split, of which our seeds have one each, their
    mean is off by as much as a single seed of ours may be: the runs that did not fail say how
    much that is.
    """
    finite = [value for value in values if math.isfinite(value)]
    drawn = paper.one_draw and len(finite) > 1
    return math.hypot(paper.se or 0.0, stdev(finite) if drawn else 0.0)


def claim_parts(
    claim: AnyClaim,
    runs: RunsOfRows,
    expected: int,
    metrics: Callable[[str], Metric],
    published: Mapping[str, Mapping[str, Published]],
    by_clock: bool = False,
    goals: Mapping[str, tuple[str, float]] = MappingProxyType({}),
) -> list[ClaimPart]:
    """The claim's parts, with the values of the runs that have ended.

    expected: the number of seeds. metrics: the metric of a name. published: row -> metric -> the
    paper's value. by_clock: a clock ends runs of the claim's rows. A value is nan where a run does
    not have what the claim asks for. A claim that reads times has no values of the seeds at which
    others worked beside one of its runs, or whose runs were made on machines of different speed:
    such times tell nothing of the methods, and the other seeds are judged. The same holds for
    machines of different speed where the claim compares the ends of runs that a clock ends.
    goals: row -> the metric and the value at which its runs end. A run that has not come there has
    no cost, because what it took is not what coming there takes.
    """
    unlike = unlike_seeds(claim, runs, by_clock)
    runs = {
        row: [run for run in some if run.planned.seed not in unlike] for row, some in runs.items()
    }
    if isinstance(claim, First) and claim.gain is not None:
        runs = at_whole_seeds(claim, runs)
    ends = Ends(runs, metrics, goals)
    return [
        ClaimPart(
            what=what, values=values, low=low, high=high, expected=expected - len(unlike),
            extra_se=published_error(paper, values) if paper else 0.0,
            extra_n=None if paper is None or paper.one_draw else paper.n,
            counts=asks_for_counts(claim), median=claim.median,
            strict=isinstance(claim, Above | Below | Order),
        )
        for what, values, low, high, paper in statements(claim, ends, published)
    ]  # fmt: skip


def at_whole_seeds(claim: First, runs: RunsOfRows) -> dict[str, list[Run]]:
    """The runs at those seeds at which all rows of the claim have ended.

    Before that, the target that they have in common may still move.
    """
    ended = [
        {run.planned.seed for run in runs.get(row, ()) if run.summary is not None}
        for row in claim.needed_rows
    ]
    whole = set.intersection(*ended)
    return {row: [run for run in some if run.planned.seed in whole] for row, some in runs.items()}


def asks_for_counts(claim: AnyClaim) -> bool:
    """Whether the claim is about calls or samples of whole runs, which their settings fix."""
    at_the_end = getattr(claim, "until", None) is None and not isinstance(claim, First)
    return at_the_end and all(map(is_count, claim.metrics))


def judge_parts(parts: Sequence[ClaimPart]) -> Verdict:
    """The verdict on a claim with these parts, of which there is at least one.

    A part decides nothing before all of its runs have ended: to look again after each run, until
    one look finds something, would find more than there is.
    """
    results = [
        statistics.judge_values(
            p.values, p.low, p.high, of=len(parts), reference=p.reference,
            counts=p.counts, median=p.median, strict=p.strict,
        )
        for p in parts
    ]  # fmt: skip
    pairs = list(zip(parts, results))
    details = [statistic_line(p, r, r.p) for p, r in pairs]
    waiting = [(p, r) for p, r in pairs if len(p.values) < p.expected]
    failing = [(p, r) for p, r in pairs if r.answer == "fails" and len(p.values) >= p.expected]
    open_ones = [(p, r) for p, r in pairs if r.answer == "open"]
    word: VerdictWord = "holds"
    deciding = pairs
    if failing:
        word, deciding = "fails", failing
    elif waiting:
        word, deciding = "not run", waiting
    elif open_ones:
        word, deciding = "not enough runs", open_ones
    part, result = min(deciding, key=sureness)
    n, p = min(r.n for _, r in pairs), claim_p(results)
    line = statistic_line(part, result, p if word in ("holds", "fails") else result.p)
    return Verdict(word=word, n=n, p=p, statistic=line, details=details)


def claim_p(results: Sequence[statistics.Judgement]) -> float | None:
    """The two-sided p-value of a claim; None if a part of it could not be tested.

    All parts together hold as surely as the least sure one; one is enough to fail.
    """
    inside = [r.p_inside for r in results if r.p_inside is not None]
    outside = [r.p_outside for r in results if r.p_outside is not None]
    if len(inside) < len(results):
        return None
    return min(1.0, 2 * min(max(inside), min(outside)))


def sureness(pair: tuple[ClaimPart, statistics.Judgement]) -> tuple[float, float]:
    """How surely a part holds: by its interval, and among equal ones by its p-value."""
    part, result = pair
    p = 1.0 if result.p_inside is None else result.p_inside
    return margin_inside(part, result), -p


def margin_inside(part: ClaimPart, result: statistics.Judgement) -> float:
    """By how much a part's interval lies inside its bounds; negative if it lies outside.

    Minus infinity if there is no interval.
    """
    if result.interval is None:
        return -math.inf
    gaps = [result.interval[0] - part.low, part.high - result.interval[1]]
    return min((g for g in gaps if not math.isnan(g)), default=math.inf)


def statistic_line(part: ClaimPart, result: statistics.Judgement, p: float | None) -> str:
    """A part and its judgement in one line: mean, interval, bounds, p-value, n.

    p: that of the part, or of the whole claim where the part decides it.
    """
    if not part.values:
        return f"{part.what}: no runs"
    bounds = []
    if math.isfinite(part.low):
        bounds.append(f"> {format_number(part.low)}")
    if math.isfinite(part.high):
        bounds.append(f"< {format_number(part.high)}")
    interval = ""
    if result.interval is not None and result.interval[0] != result.interval[1]:
        interval = f" [{format_number(result.interval[0])}, {format_number(result.interval[1])}]"
    tested = f", p = {p:.2g}" if p is not None else ""
    asked = " and ".join(bounds)
    centre = format_number(result.centre)
    return f"{part.what} = {centre}{interval}, asked {asked}{tested}, n = {result.n}"
