"""Which point of a row's grid is chosen: the one that does best at the seeds that choose."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from bench.reproduce.schema import Budget
from bench.reproduce.specs import Select, Settings, Spec

Try = tuple[Settings, str, float | None]  # a point, its run's status, and the value that chooses


@dataclass(frozen=True)
class TriedPoint:
    """A grid point with what became of the runs that tried it, one for each seed that chooses.

    status: that of the first run that is not done; done if there is none. value: the mean over the
    seeds of the metric that chooses; None if a run is not done or its value is not finite.
    """

    settings: Settings
    status: str
    value: float | None


def choosing_seeds(spec: Spec, budget: Budget) -> range:
    """The seeds at which the points of grids are tried; none where a spec chooses nothing."""
    return range(spec.budgets[budget].choosing_seeds if spec.select else 0)


def tried_points(tries: Iterable[Try]) -> list[TriedPoint]:
    """The points of a grid, in the order of their first runs."""
    groups: dict[str, list[Try]] = {}
    for one in tries:
        groups.setdefault(json.dumps(one[0], sort_keys=True), []).append(one)
    return [join_tries(own) for own in groups.values()]


def recorded_points(entries: Iterable[Mapping[str, Any]]) -> list[TriedPoint]:
    """The points of a grid from the field `tries` of a recorded row."""
    return tried_points((t["settings"], t["status"], t.get("value")) for t in entries)


def join_tries(own: Sequence[Try]) -> TriedPoint:
    """A point from the runs that tried it, of which there is at least one."""
    settings = own[0][0]
    status = next((status for _, status, _ in own if status != "done"), "done")
    values = [value for _, _, value in own if value is not None and math.isfinite(value)]
    usable = status == "done" and len(values) == len(own)
    return TriedPoint(settings, status, fmean(values) if usable else None)


def best_point(found: Sequence[TriedPoint], select: Select) -> TriedPoint:
    """The point with the best value, the first of equal ones; the first of all if none has one."""
    values = [(point.value, point) for point in found if point.value is not None]
    sign = -1 if select.best == "highest" else 1
    return min(values, key=lambda pair: sign * pair[0])[1] if values else found[0]


def equal_points(found: Sequence[TriedPoint], chosen: Settings) -> list[Settings]:
    """The other points that are exactly as good as the chosen one, which comes before them."""
    values = [point.value for point in found if point.settings == chosen]
    if not values or values[0] is None:
        return []
    others = (point for point in found if point.settings != chosen)
    return [point.settings for point in others if point.value == values[0]]
