"""Which rows of a record were made by runs that are not those which its spec asks for today.

A function's version may have been raised since, or a setting or a grid may have changed. What such
a row shows was measured, but it says nothing of the code and the protocol of today.
"""

from collections.abc import Sequence

from bench.reproduce.choosing import best_point, choosing_seeds, recorded_points
from bench.reproduce.points import Point, points
from bench.reproduce.records import Record, RowRecord
from bench.reproduce.run_names import Names
from bench.reproduce.schema import Budget
from bench.reproduce.specs import Artifact, Book, SpecRow


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
                    "outdated": is_outdated(
                        row, today.get((variant, name), []), artifact, found.budget, names
                    )
                    or shows_another_iterate(row, artifact.spec.rows.get(name))
                }
            )
            for name, row in group.items()
        }
        for variant, group in found.rows.items()
    }
    return found.model_copy(update={"rows": rows})


def shows_another_iterate(row: RowRecord, today: SpecRow | None) -> bool:
    """Whether the row's runs were read at another iterate than the spec's row asks for today."""
    return today is not None and bool(row.runs) and row.keep != today.keep


def is_outdated(
    row: RowRecord, today: Sequence[Point], artifact: Artifact, budget: Budget, names: Names
) -> bool:
    """Whether a recorded row is of other runs than a spec's row of the same name is today.

    today: the grid points of the spec's row. The first seed's name stands for those of all seeds,
    because a seed is the only setting in which they differ.
    """
    if not row.runs:
        return False
    grid = [dict(point.chosen) for point in today]
    tries = recorded_points(row.tries)
    tried = [point.settings for point in tries] or [row.chosen]
    if len(grid) != len(tried) or any(point not in grid for point in [*tried, row.chosen]):
        return True
    if row.tries and len(row.tries) != len(grid) * len(choosing_seeds(artifact.spec, budget)):
        return True
    select = artifact.spec.select
    if select and any(t.get("metric", select.metric) != select.metric for t in row.tries):
        return True
    tries.sort(key=lambda point: grid.index(point.settings))
    if select and tries and best_point(tries, select).settings != row.chosen:
        return True
    point = today[grid.index(row.chosen)]
    names.ensure([(point, row.seeds[0])], artifact.file)
    return names.get(point, row.seeds[0]) != row.runs[0]
