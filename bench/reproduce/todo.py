"""What is not decided yet, what would decide it, and what that costs: for `reproduce todo`."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import mul
from pathlib import Path
from statistics import fmean

from rich.table import Table

from bench.reproduce import chances, records
from bench.reproduce.claim_records import ClaimRecord
from bench.reproduce.claims import VerdictWord
from bench.reproduce.claims_at import claims_at
from bench.reproduce.disturbance import disturbed_runs
from bench.reproduce.durations import format_duration
from bench.reproduce.plan import Plan, PlannedRow, make_plan
from bench.reproduce.power import ASKED, claim_seeds
from bench.reproduce.recorded import reusable_runs
from bench.reproduce.records import Record, recorded_run_count
from bench.reproduce.rejudging import rejudge
from bench.reproduce.run_names import Names
from bench.reproduce.schema import Budget
from bench.reproduce.specs import Artifact, Book

Records = Mapping[tuple[str, str], Record]  # by artifact and budget
UNDECIDED: tuple[VerdictWord, ...] = ("not enough runs", "outdated", "not run")


@dataclass(frozen=True)
class MissingRuns:
    """Runs of an artifact at a budget that neither its record nor a folder has.

    claims: how many claims wait for them, by what is said of them now. count: the number of runs.
    seconds: CPU time of all of them, by what the record's runs took or else by the spec's estimate.
    waits_for: data or a machine that they take and that the artifact's first record waits for.
    """

    artifact: Artifact
    budget: Budget
    claims: Counter[VerdictWord]
    count: int
    seconds: float
    waits_for: str = ""


@dataclass(frozen=True)
class OpenClaim:
    """A claim whose runs are all there, and do not decide it.

    have, needed: the number of seeds, and with how many the claim is decided with a probability of
    `ASKED`, if mean and deviation stay as measured; None: not with any that is considered. chance:
    that probability with the seeds that there are; None: not known. seconds: CPU time of the seeds
    that its rows lack, in both variants; None if their number is not known. disturbed: how
    many of its runs tell nothing, because it reads their times and other work was done beside them.
    waits_for_gpu: whether the artifact's budget gpu judges the claim too, and has no record yet.
    """

    artifact: Artifact
    budget: Budget
    variant: str
    key: str
    have: int
    needed: int | None
    chance: float | None
    seconds: float | None
    disturbed: int
    waits_for_gpu: bool


def budgets_to_do(artifact: Artifact, recorded: Records) -> list[Budget]:
    """The budgets that have a record; without any the smallest at which claims are judged."""
    own: list[Budget] = [budget for budget in artifact.spec.budgets if budget != "smoke"]
    return [budget for budget in own if (artifact.id, budget) in recorded] or own[:1]


def missing_runs(
    artifact: Artifact, book: Book, budget: Budget, old: Record | None, root: Path, names: Names
) -> tuple[Plan, MissingRuns | None]:
    """The plan with the record's runs, and those that are missing; None if none is.

    Raises BadSetting if a row's settings are refused.
    """
    recorded = reusable_runs(old, artifact, book, names)
    plan = make_plan(artifact, book, budget, root, names, recorded=recorded)
    count = len(plan.missing) + plan.later
    if not count:
        return plan, None
    verdicts = records.judge_claims(plan, book)
    words = Counter(e.verdict.word for group in verdicts.values() for e in group.values())
    waiting = Counter({word: words[word] for word in UNDECIDED if words[word]})
    seconds = count * run_cost(artifact, budget, old, plan)
    waits_for = artifact.spec.waits_for if old is None else ""
    return plan, MissingRuns(artifact, budget, waiting, count, seconds, waits_for)


def run_cost(artifact: Artifact, budget: Budget, old: Record | None, plan: Plan) -> float:
    """The CPU seconds of a run, on average: the record's, or else the spec's estimate."""
    runs = recorded_run_count(old) if old is not None else 0
    if old is not None and runs:
        return (old.process_seconds or old.run_seconds) / runs
    return 60 * artifact.spec.budgets[budget].minutes / max(1, plan.count)


def seed_cost(
    row: PlannedRow, old: Record, artifact: Artifact, budget: Budget, plan: Plan
) -> float:
    """The CPU seconds of one more seed of a row: those of its steps, as recorded, and a start-up.
    Where the record does not have them, a seed costs the mean of all runs."""
    known = old.rows.get(row.variant, {}).get(row.name)
    spent = [] if known is None else known.finals.get("cpu_seconds", [])
    steps = [seconds for seconds in spent if seconds is not None]
    if not steps or old.startup_seconds is None:
        return run_cost(artifact, budget, old, plan)
    return fmean(steps) + old.startup_seconds / recorded_run_count(old)


def open_claims(
    artifact: Artifact, book: Book, budget: Budget, recorded: Records, plan: Plan
) -> Iterator[OpenClaim]:
    """The claims whose seeds are all there and decide nothing, with what would decide them."""
    old = recorded[artifact.id, budget]
    no_gpu = "gpu" in artifact.spec.budgets and (artifact.id, "gpu") not in recorded
    for variant, group in rejudge(old, artifact, book).items():
        at_gpu = claims_at(artifact.spec, variant, "gpu")
        for key, entry in group.items():
            if entry.verdict.word != "not enough runs":
                continue
            claim, asked = artifact.spec.claims[key], claim_seeds(artifact, budget, key)
            n = max(part.expected for part in entry.parts)  # those whose times can be compared
            needed, chance = seeds_of_claim(entry, n)
            rows = [row for row in plan.rows if row.name in claim.needed_rows]  # of both variants
            lacking = [max(0, needed - n + asked - len(row.runs)) for row in rows] if needed else []
            costs = [seed_cost(row, old, artifact, budget, plan) for row in rows]
            cost = sum(map(mul, lacking, costs)) if needed else None
            disturbed = disturbed_runs(claim, plan, variant)
            yield OpenClaim(
                artifact,
                budget,
                variant,
                key,
                have=n,
                needed=needed,
                chance=chance,
                seconds=cost,
                disturbed=len(disturbed),
                waits_for_gpu=no_gpu and key in at_gpu,
            )


def seeds_of_claim(entry: ClaimRecord, n: int) -> tuple[int | None, float | None]:
    """How many seeds a claim takes, and how probable it is that n of them decide it.

    The number is None beyond `chances.MOST_SEEDS`; the probability, and then the number too, where
    the values do not say.
    """
    known = claim_chance(entry, n)
    if known is None:
        return None, None

    def chance(seeds: int) -> float:
        return claim_chance(entry, seeds) or 0.0

    signs = any(
        chances.takes_signs(p.values, p.low, p.high, p.reference, p.median) for p in entry.parts
    )
    return chances.least_seeds(chance, ASKED, rises=not signs), known


def claim_chance(entry: ClaimRecord, n: int) -> float | None:
    """How probable it is that n seeds decide a claim; None where no part's values say.

    One part that fails is enough; for the claim to hold all parts have to. How the parts depend on
    each other is not known: what is said is what holds if they go together.
    """
    of = len(entry.parts)
    found = [
        chances.part_chances(
            p.values, p.low, p.high, n, of=of, reference=p.reference, median=p.median
        )
        for p in entry.parts
    ]
    known = [pair for pair in found if pair is not None]
    if not known:
        return None
    fails = max(fails for _, fails in known)
    holds = min(holds for holds, _ in known) if len(known) == of else 0.0
    return min(1.0, holds + fails)


def table_of_runs(found: Iterable[MissingRuns]) -> Table:
    """A row for each artifact that lacks runs, in the order in which `campaign` makes them."""
    table = Table(box=None, pad_edge=False)
    for column in ("artifact", "budget", "claims that wait", "runs", "CPU time", "waits for"):
        table.add_column(column, justify="right" if column in ("runs", "CPU time") else "left")
    for item in sorted(found, key=cost_of_a_claim):
        words = ", ".join(f"{count} {word}" for word, count in item.claims.items())
        table.add_row(
            item.artifact.id,
            item.budget,
            words or "none",
            str(item.count),
            f"~ {format_duration(item.seconds)}",
            item.waits_for,
        )
    return table


def cost_of_a_claim(item: MissingRuns) -> tuple[bool, bool, float]:
    """The key by which runs are made: the CPU seconds for each claim that waits.

    Artifacts without such a claim come behind, and then those that wait for data or a machine.
    """
    waiting = item.claims.total()
    return bool(item.waits_for), not waiting, item.seconds / max(1, waiting)


def table_of_claims(found: Iterable[OpenClaim]) -> Table:
    """A row for each claim that the seeds of its budget do not decide, the cheapest first."""
    table = Table(box=None, pad_edge=False)
    left_columns = ("artifact", "budget", "claim", "waits for")
    for column in (*left_columns, "seeds", "disturbed", "power", "needed", "CPU time"):
        left = column in left_columns
        table.add_column(column, justify="left" if left else "right")
    for item in sorted(found, key=lambda item: (item.seconds is None, item.seconds)):
        table.add_row(
            item.artifact.id,
            item.budget,
            f"{item.variant} {item.key}",
            "gpu" if item.waits_for_gpu else "",
            str(item.have),
            str(item.disturbed or ""),
            "?" if item.chance is None else f"{item.chance:.0%}",
            describe_needed(item),
            "?" if item.seconds is None else f"~ {format_duration(item.seconds)}",
        )
    return table


def describe_needed(item: OpenClaim) -> str:
    """The number of seeds that a claim takes, in words."""
    if item.chance is None:
        return "?"
    return f"> {chances.MOST_SEEDS:,}" if item.needed is None else str(item.needed)
