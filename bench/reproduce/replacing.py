"""Replaces records, one process at a time, by ones that also have what was recorded meanwhile."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from bench.core.packages import results_of
from bench.reproduce.locking import locked
from bench.reproduce.places import RESULTS
from bench.reproduce.recorded import read_replaced, refuse_loss
from bench.reproduce.records import Record, make_record, write_record
from bench.reproduce.schema import Budget
from bench.reproduce.specs import Artifact, Book
from bench.reproduce.standing import current_plan


def record_runs(
    artifact: Artifact, book: Book, budget: Budget, root: Path, results: Path, force: bool = False
) -> Path:
    """Write the record of an artifact with all runs that are there, and give its path.

    The record that is replaced is read right before, so that runs which another command has
    recorded meanwhile stay in the new one. force: a record that is complete or damaged may be
    replaced by an incomplete one; otherwise this raises BadSetting.
    """
    results_of(artifact.id, results, RESULTS).mkdir(parents=True, exist_ok=True)
    with replaced(artifact.id, budget, results, force) as old:
        plan = current_plan(artifact, book, budget, root, old, drawn=True)
        found = make_record(plan, book, old)
        if not force:
            refuse_loss(old, found)
        return write_record(found, results)


@contextmanager
def replaced(
    artifact: str, budget: str, results: Path, force: bool = False
) -> Iterator[Record | None]:
    """A context with the record that is to be replaced, or None, in which nobody else replaces it.

    Where the folder of records is not there, nobody else has one to lose, and nothing is locked.
    force: a damaged record counts as none; otherwise this raises BadSetting.
    """
    folder = results_of(artifact, results, RESULTS)
    with locked(folder) if folder.is_dir() else nullcontext():
        yield read_replaced(artifact, budget, results, force)
