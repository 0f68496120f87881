"""What a claim is, as data: who makes it, what is asked of which rows, and why it may fail.

A spec has its claims under `claims:`, each of which has one of the kinds below. `bench.reproduce
.claims` judges them.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from bench.core.settings import Finite, Positive
from bench.reproduce.schema import VARIANTS, Budget, StrictModel, Variant

Author = Literal["paper", "us"]
AUTHORS: tuple[Author, ...] = ("paper", "us")


class Cause(StrictModel):
    """Why a claim fails in one variant, in plain words.

    tested: runs of this project show what the text says; a text that is not tested is a conjecture.
    by: the artifact (by its id) or the command whose runs show it, which a tested cause needs.
    """

    text: str
    tested: bool
    by: str | None = None


class Claim(StrictModel):
    """What every kind of claim has.

    text: the claim in the paper's sense. by: who makes the claim. It is the paper if a sentence, a
    table, a figure or a theorem there states it, and `source` says which; a word of it, such as
    "converges", may need a number of ours to be tested. It is us, without a source, if the paper
    does not state it, or only in words that leave open what would contradict them. why: for each
    variant why the claim fails, which is shown only then. variants, budgets: where the claim is
    judged (the budget smoke only shows that everything runs). rows: the rows that the claim is
    about. median: the claim is about the median over seeds, not the mean, for values with heavy
    tails.
    """

    text: str
    by: Author
    source: str | None = None
    why: dict[Variant, Cause] = {}
    variants: list[Variant] = Field(default=list(VARIANTS), min_length=1)
    budgets: list[Budget] = Field(default=["short", "medium", "gpu", "full"], min_length=1)
    rows: Annotated[list[str], Field(min_length=1)]
    median: bool = False

    @property
    def needed_rows(self) -> list[str]:
        """Every row that the claim needs; one may be there twice."""
        return [*self.rows, *getattr(self, "than", [])]

    @property
    def metrics(self) -> list[str]:
        """The metrics that the claim reads."""
        metric = getattr(self, "metric", None)
        return [metric] if metric else []


class Above(Claim):
    """metric(row) > metric(other) + margin, paired over seeds, for every row and other (`than`)."""

    kind: Literal["above"]
    metric: str
    log: bool = False  # compare logarithms, for a metric whose values spread over decades
    than: Annotated[list[str], Field(min_length=1)]
    margin: Finite = 0.0


class Below(Claim):
    """metric(row) < factor * metric(other) - margin, paired over seeds, for every row and other."""

    kind: Literal["below"]
    metric: str
    log: bool = False  # compare logarithms, for a metric whose values spread over decades
    than: Annotated[list[str], Field(min_length=1)]
    factor: Positive = 1.0
    margin: Finite = 0.0


class Order(Claim):
    """The metric falls by more than `margin` from each row to the next, paired over seeds."""

    kind: Literal["order"]
    metric: str
    log: bool = False  # compare logarithms, for a metric whose values spread over decades
    rows: Annotated[list[str], Field(min_length=2)]
    margin: Finite = 0.0


class Between(Claim):
    """metric(row) lies in [at_least, at_most]; one of the two bounds may be absent."""

    kind: Literal["between"]
    metric: str
    at_least: Finite | None = None
    at_most: Finite | None = None


class WithinPublished(Claim):
    """|metric(row) - published value| < tolerance."""

    kind: Literal["within_published"]
    metric: str
    tolerance: Positive


class Close(Claim):
    """Every two of the rows differ by less than `within` in each of the metrics `every`."""

    kind: Literal["close"]
    every: Annotated[list[str], Field(min_length=1)]
    within: Positive
    rows: Annotated[list[str], Field(min_length=2)]

    @property
    def metrics(self) -> list[str]:
        return self.every


class Converges(Claim):
    """At the end |metric - to| is at most `within`, which is false of a run that diverged."""

    kind: Literal["converges"]
    metric: str
    within: Positive
    to: Finite = 0.0


class DoesNotConverge(Claim):
    """At the end |metric - to| is more than `beyond`, which is true of a run that diverged."""

    kind: Literal["does_not_converge"]
    metric: str
    beyond: Positive
    to: Finite = 0.0


class Diverges(Claim):
    """The metric ends more than `growth` times as large as it began, or is no longer finite."""

    kind: Literal["diverges"]
    metric: str
    growth: Positive


class First(Claim):
    """Each row reaches a target before every other of `than`, paired over seeds.

    What is compared is the metric `on`, such as seconds or calls, when the target is first
    reached: the row's is less than 1 / factor of the other's. The target is the number `value` of
    the metric, or the fraction `gain` of the best gain that any of the compared rows has at that
    seed (bench.reproduce.targets). A run that never reaches the target is before no other, and
    behind every run that does. Where two runs came to the target between measurements that leave
    open which was first, their seed speaks for no answer.
    """

    kind: Literal["first"]
    metric: str
    on: str
    than: Annotated[list[str], Field(min_length=1)]
    value: Finite | None = None
    gain: Positive | None = None
    factor: Positive = 1.0

    @property
    def metrics(self) -> list[str]:
        return [self.metric, self.on]


class Slope(Claim):
    """The slope of log metric against log `against` lies in [at_least, at_most].

    Without `points` the slope is that of one run's history, and `after` is the fraction of the
    history that is left out at its beginning.

    points: row -> the number that it stands for; each seed has then a slope over these rows, and
    `against` only names the numbers. A row's value is its last one. With `until` the value is
    taken where the metric `until` is first at most `target`, or the row's own number in `targets`;
    a run that does not come so far has no value. over: row -> the row by whose value its own is
    divided.
    """

    kind: Literal["slope"]
    metric: str
    against: str
    after: Annotated[float, Field(ge=0, lt=1)] = 0.5
    points: dict[str, Positive] = {}
    until: str | None = None
    target: Positive | None = None
    targets: dict[str, Positive] = {}
    over: dict[str, str] = {}
    at_least: Finite | None = None
    at_most: Finite | None = None

    @property
    def needed_rows(self) -> list[str]:
        return list(dict.fromkeys([*self.rows, *self.rows_of_points]))

    @property
    def rows_of_points(self) -> list[str]:
        """The rows that a slope over rows is computed from."""
        return list(dict.fromkeys([*self.points, *self.over.values()]))

    @property
    def metrics(self) -> list[str]:
        named = [self.metric] if self.points else [self.metric, self.against]
        return [*named, self.until] if self.until else named


AnyClaim = Annotated[
    Above
    | Below
    | Order
    | Between
    | WithinPublished
    | Close
    | Converges
    | DoesNotConverge
    | Diverges
    | First
    | Slope,
    Field(discriminator="kind"),
]


def describe_author(claim: Mapping[str, Any]) -> str:
    """Who makes a claim, which is given as a record keeps it: "us", or "paper" and its source."""
    return f"paper: {claim['source']}" if claim["by"] == "paper" else "us"


def describe_cause(claim: Mapping[str, Any], variant: str) -> str:
    """Why a claim, which is given as a record keeps it, fails in a variant; empty if not known."""
    cause = claim["why"].get(variant)
    return describe_text(**cause) if cause else ""


def describe_text(text: str, tested: bool, by: str | None) -> str:
    """A cause in words: followed by what tested it, or marked as a conjecture."""
    return f"{text} (Tested: {by}.)" if tested else f"conjecture: {text}"
