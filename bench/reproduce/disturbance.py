"""Runs whose times a claim reads, and that other work was done beside."""

from bench.reproduce.claim_kinds import AnyClaim
from bench.reproduce.plan import TIMES, Plan, Run, seeds
from bench.reproduce.records import claims_at


def disturbed_names(plan: Plan) -> set[str]:
    """The names of the disturbed runs of all claims of a plan."""
    spec = plan.artifact.spec
    return {
        run.planned.name
        for variant in spec.variants
        for claim in claims_at(spec, variant, plan.budget).values()
        for run in disturbed_runs(claim, plan, variant)
    }


def disturbed_runs(claim: AnyClaim, plan: Plan, variant: str) -> list[Run]:
    """A claim's finished runs of one variant that were disturbed; none if it reads no times."""
    if not any(metric in TIMES for metric in claim.metrics):
        return []
    rows = [row for row in plan.rows if row.variant == variant and row.name in claim.needed_rows]
    judged = seeds(plan.artifact, plan.budget, claim.needed_rows)
    runs = [run for row in rows for run in row.runs if run.planned.seed in judged]
    return [run for run in runs if run.summary is not None and not run.undisturbed]
