"""The lines of `reproduce list`: every artifact with its budgets and how far it is."""

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from bench.reproduce import durations, power, totals
from bench.reproduce import plan as plans
from bench.reproduce.points import Point
from bench.reproduce.reading import summary_or_none
from bench.reproduce.records import Record
from bench.reproduce.run_names import Names
from bench.reproduce.specs import Artifact, Book

Recorded = Mapping[tuple[str, str], Record]  # (artifact's id, budget) -> its record
HEADING = ("budget", "scale", "runs", "done", "cost", "recorded claims")
WIDTHS = (8, 9, 5, 6, 12)  # of all columns but the last
LEGEND = (
    "done: how many of the runs are there; ?: nobody has looked yet, which takes "
    "reproduce plan ID --budget B.",
    "cost: CPU time of all runs, start-up included; ~: an estimate.",
    "claims: the papers', and ours; open: their runs are too few to say.",
    "reproduce plan ID --budget B shows an artifact's runs, reproduce run makes them, "
    "reproduce report draws them.",
)


class NotComposed(Exception):
    """The name of a run is not known, because nobody has composed the run yet."""


class KnownNames(Names):
    """The names that are known; none is composed, which takes long."""

    def ensure(self, wanted: Iterable[tuple[Point, int]], file: Path) -> None:
        """Raise NotComposed if a name is not known."""
        if any(self.get(*pair) is None for pair in wanted):
            raise NotComposed


def list_artifacts(
    artifacts: Iterable[Artifact], book: Book, root: Path, recorded: Recorded, width: int
) -> Iterator[str]:
    """A line for each artifact, and for each of its budgets: runs, cost, and recorded claims.

    root: where run folders are. recorded: every record. width: of the lines, which go on below
    their last column where they are longer.
    """
    names = KnownNames(root)
    startup = durations.mean_startup(recorded.values())
    yield "artifact (variants)"
    yield list_line(HEADING, width)
    for artifact in artifacts:
        yield f"{artifact.id} ({', '.join(artifact.spec.variants)})"
        if waiting := waits_for(artifact, recorded):
            yield textwrap.fill(
                f"waits for {waiting}", width, initial_indent="  ", subsequent_indent="    "
            )
        for budget in artifact.spec.budgets:
            done = "?"  # as long as nobody has composed the runs, which gives them their names
            with suppress(NotComposed):
                plan = plans.make_plan(artifact, book, budget, root, names, read=summary_or_none)
                done = str(len(plan.runs) - len(plan.missing))
            record = recorded.get((artifact.id, budget))
            cells = (
                budget,
                artifact.spec.scale(budget),
                str(plans.count_runs(artifact, book, budget)),
                done,
                durations.describe_cost(artifact, budget, record, startup),
                totals.describe_verdicts(record, artifact.spec),
            )
            yield list_line(cells, width)


def waits_for(artifact: Artifact, recorded: Recorded) -> str:
    """What the artifact's first record waits for; empty if it has one, or waits for nothing."""
    has_record = any((artifact.id, budget) in recorded for budget in artifact.spec.budgets)
    return "" if has_record else artifact.spec.waits_for


def list_line(cells: Sequence[str], width: int) -> str:
    """The cells of a budget under each other: words to the left, numbers to the right."""
    budget, scale, runs, done, cost, claims = cells
    plain = cost.removesuffix(" (measured)")  # what is no estimate is measured
    a, b, c, d, e = WIDTHS
    head = f"  {budget:<{a}}{scale:<{b}}{runs:>{c}}{done:>{d}}{plain:>{e}}  "
    whole = re.sub(r"(\d) ", "\\1\xa0", claims)  # a number and its word stay in one line
    below = " " * len(head)
    filled = textwrap.fill(whole, width, initial_indent=head, subsequent_indent=below)
    return filled.replace("\xa0", " ")


def list_remarks(artifacts: Iterable[Artifact], recorded: Recorded, width: int) -> Iterator[str]:
    """What stands below the list: totals of claims, and what the columns mean."""
    for text in ("", *list_totals(artifacts, recorded), "", *LEGEND):
        yield textwrap.fill(text, width, break_on_hyphens=False)


def list_totals(artifacts: Iterable[Artifact], recorded: Recorded) -> list[str]:
    """How many recorded claims have each verdict: a sentence for each scale, authors apart."""
    counts = []
    for artifact in artifacts:
        for budget in artifact.spec.budgets:
            record = recorded.get((artifact.id, budget))
            if record is not None:
                found = totals.recorded_counts(record, artifact.spec)
                counts.append((artifact.spec.scale(budget), found))
    return totals.total_sentences(counts, totals.SHORT)


def refuse_claims(artifacts: Iterable[Artifact], recorded: Recorded) -> Iterator[str]:
    """A line for each claim that a budget's seeds can hardly decide, by the record there."""
    for artifact in artifacts:
        for budget in artifact.spec.budgets:
            record = recorded.get((artifact.id, budget))
            if record is not None:
                yield from power.refuse_claims(artifact, budget, record.claims)
