"""What there is of an artifact on the list of work, here and on a lent machine."""

from pathlib import Path

from bench.reproduce.plan import Plan, make_plan
from bench.reproduce.recorded import reusable_runs
from bench.reproduce.records import read_record
from bench.reproduce.run_names import Names
from bench.reproduce.schema import Budget
from bench.reproduce.specs import Artifact, Book


def plan_with_record(
    artifact: Artifact, book: Book, budget: Budget, root: Path, results: Path
) -> Plan:
    """The artifact's runs, of which those below the root and those of its record are there."""
    names = Names(root)
    recorded = reusable_runs(read_record(artifact.id, budget, results), artifact, book, names)
    return make_plan(artifact, book, budget, root, names, recorded=recorded)
