"""Which claims of a spec are judged at a budget, and through which of its points a slope goes."""

from bench.reproduce.claim_kinds import AnyClaim, Slope
from bench.reproduce.schema import Budget
from bench.reproduce.specs import Spec


def claims_at(spec: Spec, variant: str, budget: Budget) -> dict[str, AnyClaim]:
    """The claims that a spec has for a variant at a budget, by their keys.

    A claim about a row that the budget does not have is not judged there.
    """
    return {
        key: claim
        for key, claim in spec.claims.items()
        if variant in claim.variants
        and budget in claim.budgets
        and (has_points(claim) or all(budget in spec.rows[r].at for r in claim.needed_rows))
    }


def has_points(claim: AnyClaim) -> bool:
    """Whether a claim is a slope through rows, of which a budget need not have all."""
    return isinstance(claim, Slope) and bool(claim.points)


def claim_at_budget(claim: AnyClaim, spec: Spec, budget: Budget) -> AnyClaim:
    """The claim without those points of a slope whose rows this budget does not have."""
    if not isinstance(claim, Slope):
        return claim
    points = points_at_budget(claim, spec, budget)
    over = {row: other for row, other in claim.over.items() if row in points}
    return claim.model_copy(update={"points": points, "over": over})


def points_at_budget(claim: Slope, spec: Spec, budget: Budget) -> dict[str, float]:
    """The points of a slope whose rows the budget has, those which they are held against too."""

    def is_there(row: str) -> bool:
        return budget in spec.rows[row].at

    return {
        row: at
        for row, at in claim.points.items()
        if is_there(row) and is_there(claim.over.get(row, row))
    }
