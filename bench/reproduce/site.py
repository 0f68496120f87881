"""The pages of everything that is recorded, from the records alone: no run is looked at."""

from collections.abc import Iterable
from pathlib import Path

from bench.reproduce.papers import load_papers
from bench.reproduce.recorded import recorded_plan
from bench.reproduce.records import Record, read_record
from bench.reproduce.rejudging import rejudge
from bench.reproduce.report import ReportEntry, Waiting, write_report
from bench.reproduce.specs import Artifact, Book


def recorded_entry(artifact: Artifact, book: Book, found: Record) -> ReportEntry:
    """An artifact's page from its record, whose claims are judged by the rules of today.

    Curves are drawn if the record keeps histories.
    """
    judged = found.model_copy(update={"claims": rejudge(found, artifact, book)})
    plan = recorded_plan(found, artifact, book) if found.histories else None
    return ReportEntry(artifact, judged, plan)


def largest_record(artifact: Artifact, results: Path) -> Record | None:
    """The artifact's record at the largest budget that has one; raises BadSetting if damaged."""
    for budget in reversed(artifact.spec.budgets):
        found = read_record(artifact.id, budget, results)
        if found is not None:
            return found
    return None


def write_site(
    artifacts: Iterable[Artifact], book: Book, results: Path, out: Path, specs: Path | None
) -> Path:
    """Write the pages of these artifacts' records into `out`; gives the path of index.html.

    An artifact without a record has only a line in the index. Raises BadSetting if a record is
    damaged.
    """
    entries, waiting = [], []
    for artifact in artifacts:
        found = largest_record(artifact, results)
        if found is not None:
            entries.append(recorded_entry(artifact, book, found))
            continue
        budgets = list(artifact.spec.budgets)
        judged = next((b for b in budgets if b != "smoke"), budgets[-1])
        waiting.append(Waiting(artifact, judged))
    return write_report(entries, book, out, load_papers(specs), waiting)
