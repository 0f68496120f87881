"""Which chosen grid points lie at an edge of their grid, beyond which a better one may be."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeGuard

from bench.reproduce.choosing import TriedPoint, recorded_points, tried_points
from bench.reproduce.plan import PlannedRow, run_status
from bench.reproduce.records import Record, RowRecord
from bench.reproduce.specs import GridEnd, Settings, Spec


def describe_edges(
    tried: Sequence[TriedPoint], chosen: Settings, ends: Mapping[str, GridEnd]
) -> list[str]:
    """For each setting whose chosen value is the lowest or highest of its grid, both in words.

    A setting whose values are not all numbers has no edge, nor has one with a single value, nor one
    that cannot go on there by `ends`, the spec's field. A point that was chosen because all runs
    failed is at no edge.
    """
    done = [point.settings for point in tried if point.status == "done"]
    if chosen not in done:
        return []
    found = []
    for path, value in chosen.items():
        values = list({str(v): v for v in (point.settings[path] for point in tried)}.values())
        numbers = [v for v in values if is_number(v)]
        if len(values) < 2 or len(numbers) < len(values):
            continue
        ordered = sorted(numbers)
        for word, edge, end in (("lowest", ordered[0], "low"), ("highest", ordered[-1], "high")):
            if value == edge and ends.get(path) not in (end, "both"):
                listed = ", ".join(map(str, ordered))
                found.append(f"{path.split('.', 1)[-1]} {value} is the {word} of {listed}")
    return found


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value of a grid has an order: true and false have none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def row_edges(row: RowRecord, spec: Spec) -> list[str]:
    """The edges at which a recorded row's chosen point lies, in words."""
    return describe_edges(recorded_points(row.tries), row.chosen, spec.ends)


def record_edges(found: Record, spec: Spec, variant: str) -> Iterator[tuple[str, list[str]]]:
    """Each recorded row of a variant whose chosen point lies at an edge, and the edges in words."""
    for name, row in found.rows.get(variant, {}).items():
        if edges := row_edges(row, spec):
            yield name, edges


def plan_edges(
    rows: Sequence[PlannedRow], spec: Spec, variant: str
) -> Iterator[tuple[str, list[str]]]:
    """Each planned row of a variant whose chosen point lies at an edge, and the edges in words."""
    for row in rows:
        if row.variant != variant or row.chosen is None:
            continue
        tries = [(dict(run.planned.point.chosen), run_status(run), None) for run in row.tried]
        if edges := describe_edges(tried_points(tries), dict(row.chosen.chosen), spec.ends):
            yield row.name, edges
