"""What an artifact is, as data: conf/paper/<paper>/<artifact>.yaml, held against this schema.

One artifact is one table or figure of a paper: the runs it takes, the values that the paper
prints, and the claims that a program can judge. A wrong spec is refused in one line that names
file and field.
"""

import difflib
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bench.core.settings import BadSetting, Count, Finite, NonNegative, Positive

Variant = Literal["paper", "code"]
Budget = Literal["smoke", "short", "full"]
VARIANTS: tuple[Variant, ...] = ("paper", "code")
BUDGETS: tuple[Budget, ...] = ("smoke", "short", "full")
Value = str | int | float | bool | list[int | float | str] | None
Settings = dict[str, Value]  # Hydra path or group -> value
Grid = dict[str, Annotated[list[Value], Field(min_length=1)]]

# what every run has; calls: all oracle calls together
ALWAYS = {"step", "seconds", "cpu_seconds", "calls"}  # in every row of a history
AT_THE_END = "peak_memory_mb"  # in every summary
COUNTED = re.compile(r"(calls|samples|info)/\w+")


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Published(Strict):
    """A value as the paper prints it: mean, standard error, number of runs."""

    mean: Finite
    se: NonNegative | None = None
    n: Count | None = None


class Part(Strict):
    """What one variant adds."""

    set: Settings = {}
    grid: Grid | None = None
    note: str = ""


class Row(Strict):
    """One line of the table: a method with its settings.

    method: a key of methods.yaml, which gives label, colour and algorithm. set, grid, and under
    `paper` and `code` what only that variant has. budgets: what only that budget has. only: the
    variants that have this row. at: the budgets that do. line: a reference line, not tuned.
    pending: why the row cannot run yet; claims about it are "not run".
    """

    method: str
    set: Settings = {}
    grid: Grid | None = None
    paper: Part = Part()
    code: Part = Part()
    budgets: dict[Budget, Settings] = {}
    only: list[Variant] = Field(default=list(VARIANTS), min_length=1)
    at: list[Budget] = Field(default=list(BUDGETS), min_length=1)
    line: bool = False
    pending: str | None = None
    published: dict[str, Published] = {}


class Scale(Strict):
    """A budget: its settings, how many seeds, which part of the grid (null: all of it).

    minutes: estimated cost on 2 CPU cores, both variants together.
    """

    minutes: Positive
    seeds: Count = 1
    set: Settings = {}
    grid: Grid | None = None
    note: str = ""


class Select(Strict):
    """Which grid point a row shows: the best of this metric's last values at the first seed."""

    metric: str
    best: Literal["highest", "lowest"]


class Trajectory(Strict):
    """Paths in a plane of two metrics over the contours of the upper loss."""

    x: str
    y: str
    x_range: tuple[Finite, Finite]
    y_range: tuple[Finite, Finite]
    upper_in: Literal["y", "xy", "none"] = "y"  # the plane is that of y, or of x and y; or no f
    goal: tuple[Finite, Finite] | None = None


class Figure(Strict):
    metrics: Annotated[list[str], Field(min_length=1)]
    axes: Annotated[list[str], Field(min_length=1)] = ["step", "seconds", "calls"]
    log: list[str] = []
    trajectory: Trajectory | None = None


class Claim(Strict):
    """text: the claim in the paper's sense. failing: what it means if it fails, in plain words,
    shown only then. variants, budgets: where it is judged (smoke only shows that everything runs).
    """

    text: str
    failing: dict[Variant, str] = {}
    variants: list[Variant] = Field(default=list(VARIANTS), min_length=1)
    budgets: list[Budget] = Field(default=["short", "full"], min_length=1)
    rows: Annotated[list[str], Field(min_length=1)]

    @property
    def mentioned(self) -> list[str]:
        """Every row that the claim needs."""
        return [*self.rows, *getattr(self, "than", [])]

    @property
    def metrics(self) -> list[str]:
        metric = getattr(self, "metric", None)
        return [metric] if metric else []


class Above(Claim):
    """metric(row) > metric(other) + margin, for every row and other; paired over seeds."""

    kind: Literal["above"]
    metric: str
    than: Annotated[list[str], Field(min_length=1)]
    margin: Finite = 0.0


class Below(Claim):
    """metric(row) < factor metric(other) - margin, for every row and other; paired over seeds."""

    kind: Literal["below"]
    metric: str
    than: Annotated[list[str], Field(min_length=1)]
    factor: Positive = 1.0
    margin: Finite = 0.0


class Order(Claim):
    """metric falls from each row to the next; paired over seeds."""

    kind: Literal["order"]
    metric: str
    rows: Annotated[list[str], Field(min_length=2)]
    margin: Finite = 0.0


class Between(Claim):
    """metric(row) lies in [at_least, at_most]."""

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
    """Every two of the rows differ by less than `within` in every one of `every`."""

    kind: Literal["close"]
    every: Annotated[list[str], Field(min_length=1)]
    within: Positive
    rows: Annotated[list[str], Field(min_length=2)]

    @property
    def metrics(self) -> list[str]:
        return self.every


class Converges(Claim):
    """The last |metric - to| is at most `within`; a run that diverged is not."""

    kind: Literal["converges"]
    metric: str
    within: Positive
    to: Finite = 0.0


class DoesNotConverge(Claim):
    """The last |metric - to| is more than `beyond`; a run that diverged is."""

    kind: Literal["does_not_converge"]
    metric: str
    beyond: Positive
    to: Finite = 0.0


class Diverges(Claim):
    """metric ends more than `growth` times as large as it began, or is no longer finite."""

    kind: Literal["diverges"]
    metric: str
    growth: Positive


class First(Claim):
    """Each row reaches the target at less than 1 / factor of every other's `on`; paired over seeds.

    The target is `value` of the metric, or the fraction `gain` of what the run itself gains from
    its first to its best value. A run that never reaches it is before none and behind every one
    that does.
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

    Over a run's rows after the fraction `after` of them, or over `points` (row -> the number
    that it stands for). A row's value is its last one or, with `until`, the one at the first row of
    the history where the metric `until` is at most `target` (or the row's own of `targets`); a run
    that never is has none. over: row -> another, by whose value its own is divided.
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
    def mentioned(self) -> list[str]:
        return list(dict.fromkeys([*self.rows, *self.points, *self.over.values()]))

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


class Spec(Strict):
    """conf/paper/<paper>/<artifact>.yaml; `extends: <file>` lays it over another one's content, and
    a file whose name begins with an underscore is only there for that.

    deterministic: no randomness in the runs, so that one run is the whole population. threads: of
    each run; another number gives other last bits. set, grid: what all rows share (the grid not
    with reference lines). columns: metrics of the table.
    """

    title: str
    source: str
    task: str
    note: str = ""
    deterministic: bool = False
    threads: Count = 1
    set: Settings = {}
    grid: Grid | None = None
    variants: Annotated[dict[Variant, Part], Field(min_length=1)]
    budgets: Annotated[dict[Budget, Scale], Field(min_length=1)]
    select: Select | None = None
    columns: Annotated[list[str], Field(min_length=1)]
    figure: Figure
    rows: Annotated[dict[str, Row], Field(min_length=1)]
    claims: dict[str, AnyClaim]


class Metric(Strict):
    label: str
    better: Literal["higher", "lower", "neither"] = "neither"
    percent: bool = False


class Method(Strict):
    """label, colour and dash are the same in every figure; algorithm: a config, default the key."""

    label: str
    colour: Annotated[str, Field(pattern=r"#[0-9a-f]{6}")]
    dash: Literal["solid", "dash", "dot", "dashdot"] = "solid"
    algorithm: str | None = None


@dataclass(frozen=True)
class Artifact:
    """A spec and its id, paper/artifact."""

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
        """A metric's label and direction; counted ones are named by what they count."""
        return self.metrics.get(task, {}).get(name) or self.metrics["any"].get(
            name, Metric(label=name.replace("/", " ").replace("_", " "))
        )


@dataclass(frozen=True)
class Point:
    """One grid point of one row: what its runs share."""

    variant: Variant
    row: str
    settings: tuple[tuple[str, Value], ...]  # without the grid's
    chosen: tuple[tuple[str, Value], ...]  # the grid's


def points(spec: Spec, book: Book, budget: Budget) -> Iterator[Point]:
    """Every grid point of every row that can run, in the order of the spec."""
    scale = spec.budgets[budget]
    for variant, part in spec.variants.items():
        for name, row in spec.rows.items():
            if variant not in row.only or budget not in row.at or row.pending:
                continue
            own: Part = getattr(row, variant)
            method = book.methods[row.method]
            settings: Settings = {
                "task": spec.task,
                "algorithm": method.algorithm or row.method,
                "run.threads": spec.threads,
                **spec.set,
                **part.set,
                **row.set,
                **own.set,
                **scale.set,
                **row.budgets.get(budget, {}),
            }
            given = [own.grid, row.grid, *([] if row.line else [part.grid, spec.grid])]
            grid = next((g for g in given if g is not None), {})
            if scale.grid is not None:
                grid = {path: scale.grid[path] for path in grid if path in scale.grid}
            for values in product(*grid.values()):
                yield Point(variant, name, tuple(settings.items()), tuple(zip(grid, values)))


def asked(spec: Spec) -> list[str]:
    """The metrics of a run that the spec reads at its end: for its table, its choice of a grid
    point, what is published, its figure and its claims."""
    named = [*spec.columns, *spec.figure.metrics]
    named += [spec.select.metric] if spec.select else []
    named += [name for row in spec.rows.values() for name in row.published]
    named += [name for claim in spec.claims.values() for name in claim.metrics]
    return list(dict.fromkeys(named))


def override(path: str, value: Value) -> str:
    """In Hydra's grammar."""
    if value is None:
        text = "null"
    elif isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, list):
        text = "[" + ",".join(map(str, value)) + "]"
    else:
        text = str(value)
    return f"{path}={text}"


class UniqueKeys(yaml.SafeLoader):
    """YAML that refuses a key given twice, which YAML's own loader takes in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen:
                line = key.start_mark.line + 1
                raise yaml.YAMLError(f"line {line}: {key.value} is there twice")
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def own_specs() -> Path:
    """The folder of this project's specs."""
    return Path(str(files("conf"))) / "paper"


def load_book(folder: Path | None = None) -> Book:
    """Every spec under `folder`, checked; raises BadSetting with file and field.

    metrics.yaml and methods.yaml come from the folder too, or else from this project's.
    """
    folder = folder or own_specs()
    if not folder.is_dir():
        raise BadSetting(f"--specs {folder}: there is no such folder")
    named: dict[str, Any] = {}
    for file in ("metrics.yaml", "methods.yaml"):
        path = folder / file if (folder / file).is_file() else own_specs() / file
        named[file] = (path, _read(path))
    path, content = named["metrics.yaml"]
    metrics = {
        task: {name: _model(Metric, value, path, f"{task}.{name}") for name, value in group.items()}
        for task, group in content.items()
    }
    path, content = named["methods.yaml"]
    methods = {name: _model(Method, value, path, name) for name, value in content.items()}
    artifacts = {}
    for path in sorted(folder.glob("*/[!_]*.yaml")):
        spec = _model(Spec, _extended(path), path, "")
        check(spec, metrics, methods, path)
        key = f"{path.parent.name}/{path.stem}"
        artifacts[key] = Artifact(key, spec, path)
    if not artifacts:
        raise BadSetting(f"--specs {folder}: there is no <paper>/<artifact>.yaml in it")
    return Book(artifacts, metrics, methods)


def find(book: Book, wanted: Iterable[str]) -> list[Artifact]:
    """The artifacts of these ids (all, if there are none); a paper's name is all of its own."""
    found = []
    for name in wanted:
        some = [a for key, a in book.artifacts.items() if key == name or key.startswith(f"{name}/")]
        if not some:
            close = difflib.get_close_matches(name, book.artifacts, n=1)
            hint = f"did you mean {close[0]}? " if close else ""
            raise BadSetting(
                f"{name}: no such artifact; {hint}there is {', '.join(book.artifacts)}"
            )
        found += some
    return found or list(book.artifacts.values())


def check(
    spec: Spec,
    metrics: Mapping[str, Mapping[str, Metric]],
    methods: Mapping[str, Method],
    file: Path,
) -> None:
    """What a schema cannot say; raises BadSetting."""

    def refuse(field: str, message: str) -> BadSetting:
        return BadSetting(f"{shown(file)}: {field}: {message}")

    def known(name: str, names: Iterable[str], field: str, what: str) -> None:
        names = sorted(names)
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {close[0]}? " if close else ""
            raise refuse(field, f"{name}: no such {what}; {hint}there is {', '.join(names)}")

    known(spec.task, set(metrics) - {"any"}, "task", "task in metrics.yaml")

    def metric(name: str, field: str) -> None:
        at_end = name == AT_THE_END and not field.startswith("figure.")
        if name not in ALWAYS and not at_end and not COUNTED.fullmatch(name):
            known(name, metrics[spec.task], field, f"metric of {spec.task}")

    for i, name in enumerate(spec.columns):
        metric(name, f"columns.{i}")
    for i, name in enumerate(spec.figure.metrics):
        metric(name, f"figure.metrics.{i}")
    for i, name in enumerate(spec.figure.axes):
        metric(name, f"figure.axes.{i}")
    if spec.select:
        metric(spec.select.metric, "select.metric")
    for label, row in spec.rows.items():
        known(row.method, methods, f"rows.{label}.method", "method in methods.yaml")
        for name in row.published:
            metric(name, f"rows.{label}.published")
        if not spec.select and any(g for g in (spec.grid, row.grid, row.paper.grid, row.code.grid)):
            raise refuse("select", f"rows.{label} has a grid: say which metric picks its point")
    for key, claim in spec.claims.items():
        field = f"claims.{key}"
        for i, name in enumerate(claim.metrics):
            metric(name, f"{field}.metric" if i == 0 else f"{field}.on")
        for name in claim.mentioned:
            known(name, spec.rows, f"{field}.rows", "row")
        for variant in claim.variants:
            missing = [r for r in claim.mentioned if variant not in spec.rows[r].only]
            if variant in spec.variants and missing:
                raise refuse(
                    f"{field}.variants",
                    f"{missing[0]} is not in the variant {variant}; write variants: for the claim",
                )
        if isinstance(claim, WithinPublished):
            for name in claim.rows:
                if claim.metric not in spec.rows[name].published:
                    raise refuse(
                        f"{field}.rows", f"{name} has no published value of {claim.metric}"
                    )
        if isinstance(claim, Slope):
            lacking = [r for r in claim.points if r not in claim.targets]
            if claim.until and claim.target is None and (lacking or not claim.points):
                raise refuse(f"{field}.target", f"when is {claim.until} reached? {lacking or ''}")
            if claim.over and set(claim.over) != set(claim.points):
                raise refuse(f"{field}.over", "write one row for each of points:, and no other")
        if isinstance(claim, First) and (claim.value is None) == (claim.gain is None):
            raise refuse(field, "write either value: or gain:")
        if isinstance(claim, Between | Slope) and claim.at_least is None and claim.at_most is None:
            raise refuse(field, "write at_least:, at_most: or both")


def _read(file: Path) -> Any:
    try:
        return yaml.load(file.read_text(), UniqueKeys)
    except yaml.YAMLError as error:
        raise BadSetting(f"{shown(file)}: {' '.join(str(error).split())}") from None
    except OSError as error:
        raise BadSetting(f"{shown(file)}: {error.strerror}") from None


def _extended(file: Path, above: tuple[Path, ...] = ()) -> Any:
    """The file's content over that of the file that its `extends` names, if it has one."""
    content = _read(file)
    if not isinstance(content, dict) or "extends" not in content:
        return content
    base = file.with_name(f"{content.pop('extends')}.yaml")
    if base in (file, *above):
        raise BadSetting(f"{shown(file)}: extends: {base.stem} extends this file")
    if not base.is_file():
        raise BadSetting(f"{shown(file)}: extends: {base.stem}: there is no {shown(base)}")
    return _merged(_extended(base, (file, *above)), content)


def _merged(base: Any, own: Any) -> Any:
    """Mappings are joined, key by key; anything else is replaced."""
    if not isinstance(base, dict) or not isinstance(own, dict):
        return own
    joined = {key: _merged(base[key], own[key]) if key in own else base[key] for key in base}
    return joined | {key: value for key, value in own.items() if key not in base}


def _model(kind: Any, content: Any, file: Path, where: str) -> Any:
    try:
        return kind.model_validate(_tuples(content))
    except ValidationError as error:
        first = error.errors()[0]
        names = [str(part) for part in first["loc"] if part not in KINDS]
        field = ".".join([where, *names]).strip(".")
        message = first["msg"][0].lower() + first["msg"][1:]
        if first["type"] == "missing":
            message = "is missing"
        value = first["input"]
        plain = isinstance(value, str | int | float | bool) and first["type"] != "missing"
        raise BadSetting(
            f"{shown(file)}: {field}{f'={value}' if plain else ''}: {message}"
        ) from None


KINDS = {
    "above", "below", "order", "between", "within_published", "close", "converges",
    "does_not_converge", "diverges", "first", "slope",
}  # fmt: skip


def _tuples(content: Any) -> Any:
    """YAML has no tuples, and strict models take no lists for them."""
    if isinstance(content, dict):
        return {
            key: tuple(value) if key in ("x_range", "y_range", "goal") and value else _tuples(value)
            for key, value in content.items()
        }
    return [_tuples(value) for value in content] if isinstance(content, list) else content


def shown(file: Path) -> str:
    """The path, from the working folder if it lies below."""
    try:
        return str(file.relative_to(Path.cwd()))
    except ValueError:
        return str(file)


def number(value: float) -> str:
    """Four significant digits, as the tables show them."""
    if not math.isfinite(value):
        return "∞" if value > 0 else "−∞" if value < 0 else "nan"
    return f"{value + 0.0:.4g}".replace("-", "−")  # + 0.0: no negative zero
