"""The table of `reproduce list`: every artifact with its budgets and how far it is."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal

from rich.table import Table

from bench.reproduce import plan as plans
from bench.reproduce import power, records, totals
from bench.reproduce.plan import Names
from bench.reproduce.reading import summary_or_none
from bench.reproduce.records import Record
from bench.reproduce.specs import Artifact, Book

Recorded = Mapping[tuple[str, str], Record]  # (artifact's id, budget) -> its record
LEGEND = (
    "\nreproduce plan ID --budget B shows an artifact's runs, reproduce run makes them, "
    "reproduce report draws them.\ndone: ? until one of these has looked. "
    "cost: CPU time of all runs, start-up included; ~: an estimate."
)


def list_artifacts(
    artifacts: Iterable[Artifact], book: Book, root: Path, recorded: Recorded
) -> Table:
    """A row for each budget of each artifact: its runs, what they cost, and its recorded claims.

    root: where run folders are. recorded: every record.
    """
    names = Names(root)
    table = Table(box=None, pad_edge=False)
    columns = ("artifact", "variants", "budget", "scale", "runs", "done", "cost", "recorded claims")
    for column in columns:
        side: Literal["right", "left"] = "right" if column in ("runs", "done", "cost") else "left"
        table.add_column(column, justify=side, no_wrap=True)
    startup = records.mean_startup(recorded.values())
    for artifact in artifacts:
        for i, budget in enumerate(artifact.spec.budgets):
            plan = plans.make_plan(
                artifact, book, budget, root, names, compose=False, read=summary_or_none
            )
            record = recorded.get((artifact.id, budget))
            table.add_row(
                artifact.id if i == 0 else "",
                ", ".join(artifact.spec.variants) if i == 0 else "",
                budget,
                artifact.spec.scale(budget),
                str(plans.count_runs(artifact, book, budget)),
                "?" if plan is None else str(len(plan.runs) - len(plan.missing)),
                records.describe_cost(artifact, budget, record, startup),
                totals.describe_verdicts(record, artifact.spec),
            )
    return table


def list_totals(artifacts: Iterable[Artifact], recorded: Recorded) -> list[str]:
    """How many recorded claims have each verdict: a sentence for each scale, authors apart."""
    counts = []
    for artifact in artifacts:
        for budget in artifact.spec.budgets:
            record = recorded.get((artifact.id, budget))
            if record is not None:
                found = totals.recorded_counts(record, artifact.spec)
                counts.append((artifact.spec.scale(budget), found))
    return totals.total_sentences(counts)


def refuse_claims(artifacts: Iterable[Artifact], recorded: Recorded) -> Iterator[str]:
    """A line for each claim that a budget's seeds can hardly decide, by the record there."""
    for artifact in artifacts:
        for budget in artifact.spec.budgets:
            record = recorded.get((artifact.id, budget))
            if record is not None:
                yield from power.refuse_claims(artifact, budget, record.claims)
