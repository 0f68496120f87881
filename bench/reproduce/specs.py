"""What an artifact is, as data: conf/paper/<paper>/<artifact>.yaml, held against this schema.

One artifact is one table or figure of a paper: the runs that it takes, the values that the paper
prints, and the claims that a program can judge. `bench.reproduce.book` reads the files, and refuses
a wrong one in one line that names file and field.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator

from bench.core.settings import Count, Finite, NonNegative, Positive
from bench.reproduce.claim_kinds import AnyClaim
from bench.reproduce.schema import BUDGETS, VARIANTS, Budget, StrictModel, Variant

Value = str | int | float | bool | list[int | float | str] | None
Settings = dict[str, Value]  # Hydra path or group -> value
Grid = dict[str, Annotated[list[Value], Field(min_length=1)]]

TOTALS = ("calls", "samples")  # of all kinds of calls of the oracle together
# Metrics that a spec may name for every task, as every row of a history has them.
IN_EVERY_ROW = {"step", "seconds", "cpu_seconds", *TOTALS}
PEAK_MEMORY = "peak_memory_mb"  # only the summary of a run has this
ScaleName = Literal["paper", "smaller"]
SCALES: tuple[ScaleName, ...] = ("paper", "smaller")
GridEnd = Literal["low", "high", "both"]
COUNT_METRIC = re.compile(r"(calls|samples|info)/\w+")


class Published(StrictModel):
    """A value as the paper prints it: mean, standard error (se), number of runs (n).

    one_draw: all of its runs had one draw of something that each of our seeds draws anew, such as
    the split of the data, so that its error lacks what that draw adds.
    """

    mean: Finite
    se: NonNegative | None = None
    n: Count | None = None
    one_draw: bool = False


class VariantPart(StrictModel):
    """What one variant adds to the settings of a spec or of a row; budgets: what a budget adds."""

    set: Settings = {}
    budgets: dict[Budget, Settings] = {}
    grid: Grid | None = None
    note: str = ""


class Select(StrictModel):
    """The best in a metric: which grid point a row shows, or which iterate of a run.

    Of grid points the metric is averaged over the budget's `choosing_seeds`.
    """

    metric: str
    best: Literal["highest", "lowest"]


class SpecRow(StrictModel):
    """One line of the table: a method with its settings.

    method: a key of methods.yaml, which gives label, colour and algorithm. set, grid: the row's
    settings and grid in both variants. paper, code: what only that variant adds. budgets: the
    settings that a budget adds. grids: the part of the row's grid at a budget, where it is not the
    part that the budget names for all rows. only: the variants that have this row. at: the budgets
    that have it. line: the row is a reference line, which is not tuned. pending: why the row cannot
    run yet; claims about such a row are "not run". keep: the row shows where a run's measurements
    were best in a metric, as a code does that keeps the best iterate; what a run measured later is
    left out. By default it shows the end. published: metric -> what the paper prints.
    """

    method: str
    set: Settings = {}
    grid: Grid | None = None
    paper: VariantPart = VariantPart()
    code: VariantPart = VariantPart()
    budgets: dict[Budget, Settings] = {}
    grids: dict[Budget, Grid] = {}
    only: list[Variant] = Field(default=list(VARIANTS), min_length=1)
    at: list[Budget] = Field(default=list(BUDGETS), min_length=1)
    line: bool = False
    pending: str | None = None
    keep: Select | None = None
    published: dict[str, Published] = {}


class Scale(StrictModel):
    """What a budget is: its settings, the number of seeds, and a part of the grid.

    scale: whether the runs are of the paper's scale (the same problem and as many steps; there may
    be fewer seeds) or smaller; by default full is the paper's scale and short is smaller. minutes:
    the estimated cost on 2 CPU cores, both variants together. choosing_seeds: how many seeds every
    point of a grid is tried at; those seeds are not among `seeds`. more_seeds: row -> its number of
    seeds, where a claim about the row takes more of them than the others do. grid: null is all of
    it. drawn: the settings of grids of which not every combination is tried (see `points`). lanes:
    seeds may go side by side though columns show times, which such runs do not have.
    """

    scale: ScaleName | None = None
    minutes: Positive
    seeds: Count = 1
    choosing_seeds: Count = 1
    more_seeds: dict[str, Count] = {}
    set: Settings = {}
    grid: Grid | None = None
    drawn: list[str] = []
    lanes: bool = False
    note: str = ""

    def seeds_of(self, rows: Iterable[str]) -> int:
        """How many seeds all of some rows have; what every row has if there are none."""
        return min((self.more_seeds.get(row, self.seeds) for row in rows), default=self.seeds)


class Trajectory(StrictModel):
    """A figure of paths in a plane of two metrics, over the contours of the upper loss.

    upper_in: what the two metrics are to the upper loss: both entries of y, or one entry of x and
    one of y; with "none" no contours are drawn. goal: a point that is marked.
    """

    x: str
    y: str
    x_range: tuple[Finite, Finite]
    y_range: tuple[Finite, Finite]
    upper_in: Literal["y", "xy", "none"] = "y"
    goal: tuple[Finite, Finite] | None = None


class Figure(StrictModel):
    """What the page draws: metrics against axes, the first of which is drawn at first.

    log: the metrics on a logarithmic scale.
    """

    metrics: Annotated[list[str], Field(min_length=1)]
    axes: Annotated[list[str], Field(min_length=1)] = ["step", "seconds", "calls"]
    log: list[str] = []
    trajectory: Trajectory | None = None


class Spec(StrictModel):
    """The content of conf/paper/<paper>/<artifact>.yaml.

    `extends: <file>` in a file lays its content over that of the other file; a file whose name
    begins with an underscore is only there to be extended.

    threads: the number for each run, because another number gives other last bits. set: settings
    of all rows. grid: the grid of all rows but reference lines. ends: setting -> the end at which
    its values in grids cannot go on, because smaller or larger ones make no sense; a chosen point
    that lies there is not flagged. columns: the metrics of the table. waits_for: the data or the
    machine that its runs take and that was not at hand yet; shown while there is no record. shows:
    whether the paper's claims are those of experiments, or bounds that theorems state, which
    measurements can hardly contradict: the README counts the two apart.
    """

    title: str
    source: str
    task: str
    shows: Literal["experiments", "theorems"] = "experiments"
    note: str = ""
    waits_for: str = ""
    threads: Count = 1
    set: Settings = {}
    grid: Grid | None = None
    ends: dict[str, GridEnd] = {}
    variants: Annotated[dict[Variant, VariantPart], Field(min_length=1)]
    budgets: Annotated[dict[Budget, Scale], Field(min_length=1)]
    select: Select | None = None
    columns: Annotated[list[str], Field(min_length=1)]
    figure: Figure
    rows: Annotated[dict[str, SpecRow], Field(min_length=1)]
    claims: dict[str, AnyClaim]

    @field_validator("budgets")
    @classmethod
    def sort_budgets(cls, found: dict[Budget, Scale]) -> dict[Budget, Scale]:
        """From the smallest to the largest, in whatever order a file and what it extends say."""
        return {budget: found[budget] for budget in BUDGETS if budget in found}

    def scale(self, budget: Budget) -> ScaleName:
        """Whether the runs of one of the spec's budgets are of the paper's scale or smaller."""
        return self.budgets[budget].scale or ("paper" if budget == "full" else "smaller")


class Metric(StrictModel):
    """A metric as pages name it. percent: it is a fraction, shown in per cent."""

    label: str
    better: Literal["higher", "lower", "neither"] = "neither"
    percent: bool = False


class Method(StrictModel):
    """A method as pages show it, with the same label, colour and dash in every figure.

    algorithm: the choice in conf/algorithm/; None: it has the method's own name.
    """

    label: str
    colour: Annotated[str, Field(pattern=r"#[0-9a-f]{6}")]
    dash: Literal["solid", "dash", "dot", "dashdot"] = "solid"
    algorithm: str | None = None


@dataclass(frozen=True)
class Artifact:
    """A spec, its id (paper/artifact) and the file that it was read from."""

    id: str
    spec: Spec
    file: Path


@dataclass(frozen=True)
class Book:
    """All specs of a folder, with the names that they use."""

    artifacts: dict[str, Artifact]
    metrics: dict[str, dict[str, Metric]]  # task -> name -> metric
    methods: dict[str, Method]

    def metric(self, task: str, name: str) -> Metric:
        """How a task's metric is shown."""
        return find_metric(self.metrics, task, name)


def find_metric(metrics: Mapping[str, Mapping[str, Metric]], task: str, name: str) -> Metric:
    """How a task's metric is shown; a count, which no file lists, has its name as label.

    metrics: task -> name -> metric.
    """
    plain = Metric(label=name.replace("/", " ").replace("_", " "))
    return metrics.get(task, {}).get(name) or metrics["any"].get(name, plain)


def grid_paths(spec: Spec) -> list[str]:
    """Every setting that some row has a grid of, in some variant, each once."""
    grids = [spec.grid, *(part.grid for part in spec.variants.values())]
    grids += [grid for r in spec.rows.values() for grid in (r.grid, r.paper.grid, r.code.grid)]
    return list(dict.fromkeys(path for grid in grids for path in grid or {}))


def final_metrics(spec: Spec) -> list[str]:
    """The metrics whose last values an artifact needs, each once.

    Its table, figure, choice of a grid point, published values and claims need them.
    """
    named = [*spec.columns, *spec.figure.metrics]
    named += [spec.select.metric] if spec.select else []
    named += [name for row in spec.rows.values() for name in row.published]
    named += [name for claim in spec.claims.values() for name in claim.metrics]
    return list(dict.fromkeys(named))


def format_number(value: float) -> str:
    """The number with four significant digits, a true minus sign and ∞, as the tables show it."""
    if not math.isfinite(value):
        return {math.inf: "∞", -math.inf: "−∞"}.get(value, "nan")
    return f"{value + 0.0:.4g}".replace("-", "−")  # + 0.0: no negative zero
