"""Checks of a spec that its schema cannot say: that names exist and that fields fit together."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from bench.core.settings import BadSetting, closest
from bench.reproduce.claim_kinds import AnyClaim, Between, First, Slope, WithinPublished
from bench.reproduce.claim_rules import find_fault
from bench.reproduce.specs import (
    COUNT_METRIC,
    IN_EVERY_ROW,
    PEAK_MEMORY,
    Method,
    Metric,
    Scale,
    Spec,
    find_metric,
    grid_paths,
)

COMMANDS = ("bench ", "reproduce ", "python ", "uv run ")  # the beginnings of commands


@dataclass(frozen=True)
class Checked:
    """A spec that is checked, and the names that there are.

    metrics: task -> name -> metric. file: the spec's file, as messages name it.
    """

    spec: Spec
    metrics: Mapping[str, Mapping[str, Metric]]
    methods: Mapping[str, Method]
    file: str

    def refusal(self, field: str, message: str) -> BadSetting:
        return BadSetting(f"{self.file}: {field}: {message}")

    def check_name(self, name: str, names: Iterable[str], field: str, what: str) -> None:
        """Raise BadSetting if a name is none of these."""
        names = sorted(names)
        if name not in names:
            there = f"{closest(name, names)}there is {', '.join(names)}"
            raise self.refusal(field, f"{name}: no such {what}; {there}")

    def check_metric(self, name: str, field: str) -> None:
        """Raise BadSetting if neither the task nor a run itself measures this."""
        along_the_way = field.startswith("figure.") or field.endswith(".keep")
        at_end = name == PEAK_MEMORY and not along_the_way
        if name not in IN_EVERY_ROW and not at_end and not COUNT_METRIC.fullmatch(name):
            task = self.spec.task
            self.check_name(name, self.metrics[task], field, f"metric of {task}")


def check_spec(
    spec: Spec,
    metrics: Mapping[str, Mapping[str, Metric]],
    methods: Mapping[str, Method],
    file: str,
) -> None:
    """Raise BadSetting, with file and field, where a name is not there or fields do not fit.

    metrics: task -> name -> metric. file: the spec's, as messages name it.
    """
    checked = Checked(spec, metrics, methods, file)
    checked.check_name(spec.task, set(metrics) - {"any"}, "task", "task in metrics.yaml")
    check_metrics(checked)
    check_rows(checked)
    for budget, scale in spec.budgets.items():
        check_budget(checked, f"budgets.{budget}", scale)
    for path in spec.ends:
        checked.check_name(path, grid_paths(spec), "ends", "setting in a grid of the spec")
    for key, claim in spec.claims.items():
        check_claim(checked, f"claims.{key}", claim)


def check_metrics(checked: Checked) -> None:
    """Check the metrics of the table, of the figure, and of the choice of a grid's point."""
    spec = checked.spec
    for i, name in enumerate(spec.columns):
        checked.check_metric(name, f"columns.{i}")
    for i, name in enumerate(spec.figure.metrics):
        checked.check_metric(name, f"figure.metrics.{i}")
    for i, name in enumerate(spec.figure.axes):
        checked.check_metric(name, f"figure.axes.{i}")
    if spec.select:
        checked.check_metric(spec.select.metric, "select.metric")


def check_rows(checked: Checked) -> None:
    """Check the method, the published values and the grid of each row."""
    spec = checked.spec
    for label, row in spec.rows.items():
        checked.check_name(
            row.method, checked.methods, f"rows.{label}.method", "method in methods.yaml"
        )
        for name in row.published:
            checked.check_metric(name, f"rows.{label}.published")
        if row.keep:
            checked.check_metric(row.keep.metric, f"rows.{label}.keep")
        if not spec.select and any((spec.grid, row.grid, row.paper.grid, row.code.grid)):
            why = f"rows.{label} has a grid: say which metric picks its point"
            raise checked.refusal("select", why)


def check_budget(checked: Checked, field: str, scale: Scale) -> None:
    """Check the seeds that choose, the rows with more seeds, and the settings that are drawn."""
    for name, n in scale.more_seeds.items():
        checked.check_name(name, checked.spec.rows, f"{field}.more_seeds", "row")
        if n <= scale.seeds:
            why = f"every row has {scale.seeds} seeds: write more"
            raise checked.refusal(f"{field}.more_seeds.{name}", why)
    if scale.choosing_seeds > 1 and not checked.spec.select:
        why = "nothing is chosen: write select:, or leave this out"
        raise checked.refusal(f"{field}.choosing_seeds", why)
    for path in scale.drawn:
        names = grid_paths(checked.spec)
        checked.check_name(path, names, f"{field}.drawn", "setting in a grid of the spec")


def check_claim(checked: Checked, field: str, claim: AnyClaim) -> None:
    """Check a claim: its source, causes, metrics and rows, and what its kind asks for."""
    spec = checked.spec
    if claim.by == "paper" and not claim.source:
        why = "write where the paper says it: a sentence, a table, a figure"
        raise checked.refusal(f"{field}.source", why)
    if claim.by == "us" and claim.source:
        why = "a claim by us has none; if it is the paper's: by: paper"
        raise checked.refusal(f"{field}.source", why)
    for variant, cause in claim.why.items():
        if cause.tested and not cause.by:
            why = "write the artifact or the command that tested it"
            raise checked.refusal(f"{field}.why.{variant}.by", why)
        if cause.by and not cause.tested:
            why = "a cause that is not tested has none"
            raise checked.refusal(f"{field}.why.{variant}.by", why)
    for i, name in enumerate(claim.metrics):
        checked.check_metric(name, f"{field}.metric" if i == 0 else f"{field}.on")
    for name in claim.needed_rows:
        checked.check_name(name, spec.rows, f"{field}.rows", "row")
    for variant in claim.variants:
        missing = [r for r in claim.needed_rows if variant not in spec.rows[r].only]
        if variant in spec.variants and missing:
            why = f"{missing[0]} is not in the variant {variant}; write variants: for the claim"
            raise checked.refusal(f"{field}.variants", why)
    check_kind(checked, field, claim)
    fault = find_fault(claim, spec, partial(find_metric, checked.metrics, spec.task))
    if fault is not None:
        raise checked.refusal(".".join(filter(None, [field, fault.field])), fault.message)


def check_kind(checked: Checked, field: str, claim: AnyClaim) -> None:
    """Check what a claim of this kind needs besides."""
    if isinstance(claim, WithinPublished):
        for name in claim.rows:
            if claim.metric not in checked.spec.rows[name].published:
                why = f"{name} has no published value of {claim.metric}"
                raise checked.refusal(f"{field}.rows", why)
    if isinstance(claim, Slope):
        lacking = [r for r in claim.rows_of_points if r not in claim.targets]
        if claim.until and claim.target is None and (lacking or not claim.points):
            why = f"when is {claim.until} reached? {lacking or ''}"
            raise checked.refusal(f"{field}.target", why)
        if claim.over and set(claim.over) != set(claim.points):
            why = "write one row for each of points:, and no other"
            raise checked.refusal(f"{field}.over", why)
    if isinstance(claim, First) and (claim.value is None) == (claim.gain is None):
        raise checked.refusal(field, "write either value: or gain:")
    if isinstance(claim, Between | Slope) and claim.at_least is None and claim.at_most is None:
        raise checked.refusal(field, "write at_least:, at_most: or both")


def check_causes(spec: Spec, ids: Iterable[str], file: str) -> None:
    """Check that what tested the causes of a spec's claims is an artifact or a command.

    ids: of all artifacts. A command is one that begins as this project's do. Raises BadSetting.
    """
    for key, claim in spec.claims.items():
        for variant, cause in claim.why.items():
            if not cause.by or cause.by in ids or cause.by.startswith(COMMANDS):
                continue
            begin = ", ".join(map(str.strip, COMMANDS))
            raise BadSetting(
                f"{file}: claims.{key}.why.{variant}.by: {cause.by}: no such artifact; "
                f"{closest(cause.by, ids)}a command begins with {begin}"
            )
