"""Runs that a claim cannot compare, as machines have a part in them: to be made again on one."""

from bench.reproduce.claim_kinds import AnyClaim
from bench.reproduce.claims_at import claims_at
from bench.reproduce.plan import Plan, Run, seeds
from bench.reproduce.points import ends_by_clock
from bench.reproduce.timing import (
    by_seed,
    compares_ends,
    may_be_cut,
    reads_times,
    runs_of_other_speed,
    runs_to_repeat,
    slowed_runs,
)


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

    The list is empty for a claim that neither reads times nor compares the ends of runs that a
    clock ends.
    """
    rows = [row for row in plan.rows if row.variant == variant and row.name in claim.needed_rows]
    judged = seeds(plan.artifact, plan.budget, claim.needed_rows)
    runs = [run for row in rows for run in row.runs if run.planned.seed in judged]
    if reads_times(claim):
        return [run for some in by_seed(runs).values() for run in runs_to_repeat(some)]
    if compares_ends(claim) and any(ends_by_clock(run.planned.point) for run in runs):
        cut = [some for some in by_seed(runs).values() if any(map(may_be_cut, some))]
        slowed = [run for row in rows for run in slowed_runs(row.runs) if run in runs]
        return slowed or [run for some in cut for run in runs_of_other_speed(some)]
    return []
