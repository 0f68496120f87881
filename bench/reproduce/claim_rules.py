"""Refuses claims that no runs can decide: because of what they state, or with too few seeds."""

import math
from collections.abc import Callable
from typing import NamedTuple

from bench.reproduce.claim_kinds import (
    Above,
    AnyClaim,
    Below,
    Between,
    Close,
    Converges,
    DoesNotConverge,
    Order,
    Slope,
    WithinPublished,
)
from bench.reproduce.claims_at import points_at_budget
from bench.reproduce.specs import COUNT_METRIC, IN_EVERY_ROW, PEAK_MEMORY, Metric, Spec
from bench.reproduce.statistics import FEWEST_POINTS, FEWEST_SIGNS


class Fault(NamedTuple):
    """What is wrong with a claim. field: the claim's field, or empty for the claim as a whole."""

    field: str
    message: str


def find_fault(claim: AnyClaim, spec: Spec, metric: Callable[[str], Metric]) -> Fault | None:
    """Why a claim could never be decided as its spec has it; None if it could.

    metric: how the metric of a name is shown.
    """
    if "seconds" in claim.metrics:
        field = "on" if getattr(claim, "on", None) == "seconds" else "metric"
        return Fault(field, "seconds tell of other work as well: write cpu_seconds or calls")
    if admits_everything(claim, spec, metric):
        return Fault("", "it cannot fail, as no value lies outside its bounds: write closer ones")
    fewest = FEWEST_SIGNS if claim.median else 2
    for budget in claim.budgets:
        if isinstance(claim, Slope) and claim.points and budget in spec.budgets:
            different = set(points_at_budget(claim, spec, budget).values())
            if len(different) < FEWEST_POINTS:
                return Fault(
                    "points",
                    f"{budget} has {len(different)} of the {FEWEST_POINTS} different points that "
                    f"a slope takes: leave {budget} out of budgets:, or add points",
                )
        scale = spec.budgets.get(budget)
        n = scale.seeds_of(claim.needed_rows) if scale else fewest
        if n < fewest:
            return Fault(
                "budgets",
                f"{budget} has {n} of the {fewest} seeds that a verdict takes at least: "
                f"leave {budget} out, or raise its seeds",
            )
    return None


def value_range(name: str, metric: Metric) -> tuple[float, float]:
    """The least and the largest value that a metric can have."""
    if metric.percent:
        return 0.0, 1.0
    counted = COUNT_METRIC.fullmatch(name) and not name.startswith("info/")
    return 0.0 if counted or name in {*IN_EVERY_ROW, PEAK_MEMORY} else -math.inf, math.inf


def admits_everything(claim: AnyClaim, spec: Spec, metric: Callable[[str], Metric]) -> bool:
    """Whether every value that the claim's metrics can have lies inside its bounds."""
    ranges = [value_range(name, metric(name)) for name in claim.metrics]
    low, high = min(r[0] for r in ranges), max(r[1] for r in ranges)
    match claim:
        case Above() | Order():
            return not claim.log and low - high >= claim.margin
        case Below():
            return not claim.log and high - claim.factor * low <= -claim.margin
        case Between():
            at_least = -math.inf if claim.at_least is None else claim.at_least
            at_most = math.inf if claim.at_most is None else claim.at_most
            return at_least <= low and high <= at_most
        case WithinPublished():
            means = [spec.rows[name].published[claim.metric].mean for name in claim.rows]
            return all(max(high - mean, mean - low) <= claim.tolerance for mean in means)
        case Close():
            return high - low <= claim.within
        case Converges():
            return max(high - claim.to, claim.to - low) <= claim.within
        case DoesNotConverge():
            return max(low - claim.to, claim.to - high) >= claim.beyond
    return False
