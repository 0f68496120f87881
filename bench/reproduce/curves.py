"""What a report draws, as numbers: curves over seeds, costs, and paths in the plane."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.reproduce.claim_kinds import Slope
from bench.reproduce.histories import first_ended, thin_rows
from bench.reproduce.plan import TIMES, Plan, PlannedRow, Run, metric_value
from bench.reproduce.reading import own_task
from bench.reproduce.run_names import Names
from bench.reproduce.schema import Variant
from bench.reproduce.slopes import value_at_target
from bench.reproduce.specs import Artifact, Book

POINTS = 300  # a curve has at most so many
PATH_POINTS = 2000  # a path, whose turns are to be seen


def round_coordinate(x: float) -> float | None:
    """A number to six significant digits; None, which is a gap in a curve, if it is not finite."""
    return float(f"{x:.6g}") if math.isfinite(x) else None


class Place(NamedTuple):
    """Where a run is at a step: `share` of the way from one row of its history to another."""

    row: dict[str, Any]
    later: dict[str, Any]
    share: float

    def value(self, name: str) -> float | None:
        """The value of a metric, on the line between the two rows; None if one does not have it."""
        value, end = metric_value(self.row, name), metric_value(self.later, name)
        if value is None or end is None:
            return None
        return value + self.share * (end - value) if self.share else value

    def has(self, name: str) -> bool:
        """Whether both rows have a metric."""
        return name in self.row and name in self.later


def curves(plan: Plan, book: Book) -> dict[Variant, list[dict[str, Any]]]:
    """For each variant the curve of each row that has runs, in the order of the spec.

    A curve is a dictionary that the page takes as it is. Its "x" has for every axis the mean over
    the seeds at each point, and its "y" for every metric pairs (mean, standard error); None is a
    gap. A point is the same step of every seed, and the curve ends where the first of its runs
    does; `drawn_runs` says which these are. "row", "colour", "dash", "n" (seeds) and "line" (a
    reference line) say what it is; "published" has the means that the paper prints, by metric.
    """
    spec = plan.artifact.spec
    found: dict[Variant, list[dict[str, Any]]] = {variant: [] for variant in spec.variants}
    for row in plan.rows:
        runs = drawn_runs(row)
        if not runs:
            continue
        method = book.methods[spec.rows[row.name].method]
        points = common_points([run.history for run in runs])
        found[row.variant].append(
            {
                "row": row.name,
                "colour": method.colour,
                "dash": method.dash,
                "n": len(runs),
                "line": spec.rows[row.name].line,
                "published": {m: v.mean for m, v in spec.rows[row.name].published.items()},
                "x": {a: [_mean(_having_axis(p, a), a)[0] for p in points] for a in axes(plan)},
                "y": {m: [_mean(p, m) for p in points] for m in spec.figure.metrics},
            }
        )
    for lines in found.values():
        for line in (entry for entry in lines if entry["line"]):
            flatten(line, [entry for entry in lines if not entry["line"]])
    return found


def drawn_runs(row: PlannedRow) -> list[Run]:
    """The runs with histories that are done, as a table has them.

    Where none is done, they are those that ended otherwise. Beside runs that are done, such a run
    would cut the curve of all.
    """
    ended = [run for run in row.runs if run.summary is not None and run.history]
    return [run for run in ended if run.done] or ended


def shares_drawn(plan: Plan) -> list[str]:
    """The rows whose curves are of fewer runs than have ended, each with both numbers."""
    said = []
    for row in plan.rows:
        ended, n = sum(run.summary is not None for run in row.runs), len(drawn_runs(row))
        if n < ended:
            said.append(f"{row.name} ({row.variant}) {n or 'none'} of {ended}")
    return said


def common_points(histories: Sequence[Sequence[dict[str, Any]]]) -> list[list[Place]]:
    """The places of all runs at each of at most `POINTS` steps, as far as all of them go.

    The steps are those of the run that ends first. Where another one has no row of a step, because
    its record keeps others or because a clock ended the first between two rows, it is between its
    own two.
    """
    steps = [[metric_value(row, "step") or 0.0 for row in history] for history in histories]
    first = min(steps, key=lambda own: (own[-1], len(own)))
    pairs = list(zip(histories, steps))
    return [
        [find_place(history, own, step) for history, own in pairs]
        for step in thin_rows(first, POINTS)
    ]


def find_place(history: Sequence[dict[str, Any]], steps: Sequence[float], step: float) -> Place:
    """Where a run is at a step that is not after its last. steps: those of its rows."""
    after = min(bisect_left(steps, step), len(steps) - 1)
    if after == 0 or steps[after] <= step:
        return Place(history[after], history[after], 0.0)
    before = after - 1
    share = (step - steps[before]) / (steps[after] - steps[before])
    return Place(history[before], history[after], share)


def axes(plan: Plan) -> list[str]:
    """The metrics that curves can be drawn against: the spec's axes, then every oracle count."""
    counted = {
        key
        for row in plan.rows
        for run in drawn_runs(row)
        for key in run.history[-1]
        if key.startswith("calls/")
    }
    return list(dict.fromkeys([*plan.artifact.spec.figure.axes, *sorted(counted)]))


def flatten(line: dict[str, Any], others: list[dict[str, Any]]) -> None:
    """Make a reference line level at its end value, from 0 to where the other curves end."""
    for axis, own in line["x"].items():
        ends = [x for other in others for x in other["x"][axis] if x is not None]
        line["x"][axis] = [0.0, max(ends, default=own[-1])]
    line["y"] = {metric: [values[-1]] * 2 for metric, values in line["y"].items()}


def _having_axis(places: Sequence[Place], axis: str) -> Sequence[Place]:
    """The places that have the axis: lanes have no time of their own, and other axes are in all."""
    return [place for place in places if place.has(axis)] if axis in TIMES else places


def _mean(places: Sequence[Place], name: str) -> tuple[float | None, float | None]:
    """Mean and standard error of a metric over a place of each seed; None if a value is missing."""
    values = [v for place in places if (v := place.value(name)) is not None]
    if not values or len(values) < len(places):
        return None, None
    n, mean = len(values), sum(values) / len(values)
    if not math.isfinite(mean):
        return None, None
    spread = sum((v - mean) ** 2 for v in values)
    error = round_coordinate(math.sqrt(spread / (n - 1) / n)) if n > 1 else 0.0
    return round_coordinate(mean), error


def scalings(plan: Plan, book: Book) -> dict[Variant, list[dict[str, Any]]]:
    """For each variant the costs of reaching a target, for every claim about their slope.

    An entry has "points", pairs (number that the row stands for, mean cost over the seeds), what
    is on the axes ("against" and "metric"), the "method" and the claimed "order" of growth.
    """
    spec = plan.artifact.spec
    found: dict[Variant, list[dict[str, Any]]] = {}
    for variant in spec.variants:
        rows = {row.name: row for row in plan.rows if row.variant == variant}
        for claim in spec.claims.values():
            if not isinstance(claim, Slope) or claim.until is None or claim.over:
                continue
            if variant not in claim.variants:
                continue
            points = []
            for name, x in claim.points.items():
                target = claim.targets.get(name, claim.target)
                runs = [r for r in rows[name].runs if r.summary] if name in rows else []
                assert target is not None
                costs = [value_at_target(r, claim.metric, claim.until, target) for r in runs]
                reached = [c for c in costs if math.isfinite(c)]
                if reached:
                    points.append((x, sum(reached) / len(reached)))
            if points:
                method = book.methods[spec.rows[next(iter(claim.points))].method]
                found.setdefault(variant, []).append(
                    {
                        "metric": book.metric(spec.task, claim.metric).label,
                        "against": claim.against,
                        "points": points,
                        "order": claim.at_most,
                        "method": method,
                    }
                )
    return found


def views(plan: Plan) -> dict[Variant, list[tuple[str, dict[str, Any]]]]:
    """For each variant pairs (row, view of its first run's end), if the task has views."""
    found: dict[Variant, list[tuple[str, dict[str, Any]]]] = {}
    for row in plan.rows:
        run = first_ended(row)
        if plan.artifact.spec.rows[row.name].line or run is None:
            continue
        seen = run.folder.view()
        if seen is not None:
            found.setdefault(row.variant, []).append((row.name, seen))
    return found


def paths(plan: Plan, book: Book) -> dict[Variant, dict[str, Any]]:
    """For each variant the path of each row's first ended run, and the plane that it lies in.

    The paths are under "lines"; what `landscape` gives is beside them. Points farther than 1e6
    from the origin are gaps.
    """
    spec = plan.artifact.spec
    plane = spec.figure.trajectory
    if plane is None:
        return {}
    found: dict[Variant, dict[str, Any]] = {}
    for variant in spec.variants:
        lines: list[dict[str, Any]] = []
        drawn: list[Run] = []
        for row in (r for r in plan.rows if r.variant == variant):
            run = first_ended(row)
            if run is None:
                continue
            drawn.append(run)
            history = run.history
            points = [
                (metric_value(h, plane.x), metric_value(h, plane.y))
                for h in thin_rows(history, PATH_POINTS)
            ]
            method = book.methods[spec.rows[row.name].method]
            lines.append(
                {
                    "row": row.name,
                    "colour": method.colour,
                    "dash": method.dash,
                    "x": [p[0] if p[0] is not None and abs(p[0]) < 1e6 else None for p in points],
                    "y": [p[1] if p[1] is not None and abs(p[1]) < 1e6 else None for p in points],
                }
            )
        if drawn:
            found[variant] = {"lines": lines, **landscape(drawn[0], plan.artifact, book)}
    return found


def landscape(run: Run, artifact: Artifact, book: Book) -> dict[str, Any]:
    """The plane that paths are drawn in, from a run's own task.

    "grid" has the 61 x and 61 y, "z" the upper loss at each (rows are y; None: no contours),
    "optimum" the problem's own if it is known, "goal" the spec's point, then labels and ranges.
    """
    import torch

    from bench.core.draw import generator
    from bench.core.settings import build
    from bench.core.task import Context, Task

    plane = artifact.spec.figure.trajectory
    assert plane is not None
    if run.recorded is None:
        config = own_task(run.folder)
    else:
        config = Names(Path()).config(run.planned.point, run.planned.seed)
    task: Task = build(config["task"], Context(seed=config["seed"], dtype=torch.float64))
    grid_x = torch.linspace(*plane.x_range, 61, dtype=torch.float64)
    grid_y = torch.linspace(*plane.y_range, 61, dtype=torch.float64)
    z = None
    if plane.upper_in != "none":
        x0, _ = task.init(generator(config["seed"], "init"))

        def upper(a: torch.Tensor, b: torch.Tensor) -> float:
            if plane.upper_in == "xy":
                return float(task.upper(a[None], b[None], None))
            return float(task.upper(x0, torch.stack([a, b]), None))

        z = [[round_coordinate(upper(a, b)) for a in grid_x] for b in grid_y]
    best = None
    optimum = task.report.optimum
    if optimum is not None:
        both = [optimum[k].flatten() for k in ("x", "y") if k in optimum]
        values = optimum["y"] if plane.upper_in == "y" else torch.cat(both)
        best = [round_coordinate(float(v)) for v in values[:2]]
    return {
        "grid": [grid_x.tolist(), grid_y.tolist()],
        "z": z,
        "optimum": best,
        "goal": plane.goal,
        "labels": [book.metric(artifact.spec.task, name).label for name in (plane.x, plane.y)],
        "ranges": [plane.x_range, plane.y_range],
    }
