"""Which rows of a record were made by runs that are not those which its spec asks for today.

A function's version may have been raised since, or a setting or a grid may have changed. What such
a row shows was measured, but it says nothing of the code and the protocol of today.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from bench.reproduce.plan import LARGEST, Names
from bench.reproduce.points import Point, points
from bench.reproduce.records import Record, RowRecord
from bench.reproduce.specs import Artifact, Book, Select


def mark_outdated(found: Record, artifact: Artifact, book: Book, names: Names) -> Record:
    """The record with the field `outdated` of every row as it is today.

    Raises BadSetting if a row's settings are refused.
    """
    today: dict[tuple[str, str], list[Point]] = {}
    for point in points(artifact.spec, book, found.budget):
        today.setdefault((point.variant, point.row), []).append(point)
    rows = {
        variant: {
            name: row.model_copy(
                update={
                    "outdated": is_outdated(row, today.get((variant, name), []), artifact, names)
                }
            )
            for name, row in group.items()
        }
        for variant, group in found.rows.items()
    }
    return found.model_copy(update={"rows": rows})


def is_outdated(row: RowRecord, today: Sequence[Point], artifact: Artifact, names: Names) -> bool:
    """Whether a recorded row is of other runs than a spec's row of the same name is today.

    today: the grid points of the spec's row. The first seed's name stands for those of all seeds,
    because a seed is the only setting in which they differ.
    """
    if not row.runs:
        return False
    grid = [dict(point.chosen) for point in today]
    tried = [point["settings"] for point in row.tries] or [row.chosen]
    if len(grid) != len(tried) or any(point not in grid for point in [*tried, row.chosen]):
        return True
    select = artifact.spec.select
    if select and any(t.get("metric", select.metric) != select.metric for t in row.tries):
        return True
    if select and row.tries and best_try(row.tries, grid, select) != row.chosen:
        return True
    point = today[grid.index(row.chosen)]
    names.ensure([(point, row.seeds[0])], artifact.file)
    return names.get(point, row.seeds[0]) != row.runs[0]


def best_try(
    tries: Sequence[Mapping[str, Any]], grid: Sequence[dict[str, Any]], select: Select
) -> dict[str, Any]:
    """The settings of the recorded grid point that a spec chooses today, as `choose_point` does.

    grid: the points in their order, of which the first counts where several are equal.
    """
    ordered = sorted(tries, key=lambda tried: grid.index(tried["settings"]))
    values = [(t.get("value"), t) for t in ordered if t["status"] == "done"]
    usable = [(v, t) for v, t in values if v is not None and abs(v) <= LARGEST]
    sign = -1 if select.best == "highest" else 1
    best = min(usable, key=lambda pair: sign * pair[0])[1] if usable else ordered[0]
    return dict(best["settings"])
