"""Runs whose times a claim reads, and cannot compare: to be made again alone, on one machine."""

from bench.reproduce.claim_kinds import AnyClaim
from bench.reproduce.plan import TIMES, Plan, Run, seeds
from bench.reproduce.records import claims_at
from bench.reproduce.timing import by_seed, runs_to_repeat


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
    """Those finished runs of a claim and a variant that `run --disturbed` makes again.

    The list is empty for a claim that reads no times.
    """
    if not any(metric in TIMES for metric in claim.metrics):
        return []
    rows = [row for row in plan.rows if row.variant == variant and row.name in claim.needed_rows]
    judged = seeds(plan.artifact, plan.budget, claim.needed_rows)
    runs = [run for row in rows for run in row.runs if run.planned.seed in judged]
    return [run for some in by_seed(runs).values() for run in runs_to_repeat(some)]
