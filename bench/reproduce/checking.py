"""What `reproduce check` prints of an artifact: verdicts, causes, edges of grids, differences."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.text import Text

from bench.reproduce import comparison, edges
from bench.reproduce.claim_kinds import describe_author, describe_cause
from bench.reproduce.claim_records import ClaimRecord, Verdicts
from bench.reproduce.plan import Plan
from bench.reproduce.power import describe_statistic
from bench.reproduce.records import Record
from bench.reproduce.specs import Artifact, Book
from bench.reproduce.standing import VERDICT_STYLES
from bench.reproduce.terminal import err, out
from bench.reproduce.totals import count_verdicts, phrase_authors


@dataclass
class CheckTotals:
    """What a check has found until now.

    entries: every claim that was judged. changed: how many verdicts are not the recorded ones.
    outcomes: how many values have each outcome of a comparison. partly: the artifacts of which
    only some runs are there.
    """

    entries: list[ClaimRecord] = field(default_factory=list)
    changed: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    partly: list[str] = field(default_factory=list)

    @property
    def words(self) -> Counter[str]:
        """How many claims have each verdict, whoever makes them."""
        return Counter(entry.verdict.word for entry in self.entries)

    @property
    def phrase(self) -> str:
        """How many claims have each verdict, in words: the papers' claims and ours apart."""
        return phrase_authors(count_verdicts(self.entries)) or "no claims"


def print_verdicts(
    found: Verdicts,
    groups: Iterable[str],
    where: str,
    remark: str,
    old: Record | None,
    n: Callable[[str], int],
) -> tuple[list[ClaimRecord], int]:
    """Print a line for each claim; gives the claims, and how many verdicts are not the old ones.

    groups: the variants to print. where: the artifact's id and the budget. remark: where the
    verdicts come from. old: the record to compare with, if any. n: gives the number of seeds with
    which the claim of a key is judged, and for which its power is said.
    """
    entries, changed = [], 0
    for group in groups:
        for key, entry in found[group].items():
            entries.append(entry)
            word = entry.verdict.word
            line = Text(f"{entry.verdict.text:<22}", style=VERDICT_STYLES[word])
            ours = " [ours]" if entry.claim["by"] == "us" else ""
            said = f"{where} {group}{remark} {key}{ours}: {entry.claim['text']}"
            statistic = describe_statistic(entry, n(key))
            out.print(line.append(f"{said}  ({statistic})", style="default"))
            if word == "fails":
                cause = describe_cause(entry.claim, group) or "no cause is known"
                out.print(Text(f"    {cause}"))
                out.print(Text(f"    claimed by {describe_author(entry.claim)}"))
            kept = old.claims.get(group, {}).get(key) if old else entry
            if kept is None or kept.verdict.text != entry.verdict.text:
                changed += 1
                before = f"{kept.verdict.text} ({kept.verdict.statistic})" if kept else "not there"
                out.print(Text(f"    recorded: {before}"))
    return entries, changed


def tell_partial(plan: Plan, where: str, root: Path) -> None:
    """Say that only some runs are judged, though a record may have all, if that is so.

    where: the artifact's id and the budget. root: where the runs are.
    """
    there = sum(run.summary is not None for run in plan.runs)
    if there and (plan.missing or plan.later):
        identity, budget = where.split()
        err.print(
            f"{where}: judged by the runs in {root}, {there} of {plan.count}, not by the record; "
            f"reproduce report {identity} --budget {budget} takes the others from the record, and "
            "--runs with an empty folder judges the record alone",
            soft_wrap=True,
        )


def print_edges(
    artifact: Artifact, groups: Iterable[str], where: str, plan: Plan | None, old: Record | None
) -> None:
    """Print a line for each row whose chosen grid point lies at an edge of its grid.

    The rows are the plan's, or the record's if there is no plan. groups: the variants to print.
    where: the artifact's id and the budget.
    """
    for group in groups:
        if plan is not None:
            rows = edges.plan_edges(plan.rows, artifact.spec, group)
        elif old is not None:
            rows = edges.record_edges(old, artifact.spec, group)
        else:
            continue
        for name, found in rows:
            out.print(Text(f"{'grid edge':<22}{where} {group} {name}: {'; '.join(found)}"))


def compare_with_record(
    old: Record, artifact: Artifact, book: Book, plan: Plan | None, groups: Sequence[str]
) -> tuple[Counter[str], list[str]]:
    """Print the values that differ from the record; gives all outcomes, and partly made artifacts.

    groups: the variants to compare.
    """
    values = list(comparison.compare_claims(old, artifact, book, groups))
    partly: list[str] = []
    if plan is not None:
        values += comparison.compare_runs(old, plan, groups)
        values += comparison.compare_ways(old, plan, book, groups)
        partly = comparison.describe_partial_runs(plan)
    for text in comparison.difference_lines(values):
        out.print(Text(f"    {text}"))
    return Counter(value.outcome for value in values), partly
