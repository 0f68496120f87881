"""How an artifact stands now: which of its runs there are, its verdicts, its records."""

from pathlib import Path
from typing import TYPE_CHECKING

from bench.core.settings import BadSetting
from bench.reproduce import plan as plans
from bench.reproduce.plan import Plan
from bench.reproduce.reading import summary_if_drawn, summary_if_whole, summary_or_none
from bench.reproduce.run_names import Names
from bench.reproduce.schema import Budget
from bench.reproduce.specs import Artifact, Book
from bench.runs.folder import has_ended_run

if TYPE_CHECKING:
    from bench.reproduce.claim_records import Verdicts
    from bench.reproduce.records import Record


def read_records(
    book: Book, results: Path, with_histories: bool = True
) -> "dict[tuple[str, str], Record]":
    """Every record that is there, by the artifact's id and the budget.

    with_histories: whether to read those of the runs too. Raises BadSetting if a record is damaged.
    """
    from bench.reproduce import records

    return {
        (artifact.id, budget): found
        for artifact in book.artifacts.values()
        for budget in artifact.spec.budgets
        if (found := records.read_record(artifact.id, budget, results, with_histories)) is not None
    }


def current_verdicts(
    artifact: Artifact, book: Book, budget: Budget, root: Path, old: "Record | None", whole: bool
) -> "tuple[Verdicts, str, Plan | None]":
    """The claims' verdicts, a remark if they are the record's, and the plan.

    Verdicts come from the runs if there are any, or else from the values in the record `old`. If
    `whole`, the runs count only when all of them are there. The plan is None if no run has ended
    under `root` and there is a record. Raises BadSetting if there is no such budget.
    """
    from bench.reproduce import records
    from bench.reproduce.rejudging import rejudge

    again = rejudge(old, artifact, book) if old is not None else None
    if again is not None and not has_ended_run(root):
        return again, " (recorded)", None
    plan = current_plan(artifact, book, budget, root)
    complete = not plan.missing and plan.later == 0
    if again is None or complete or (not whole and any(run.summary for run in plan.runs)):
        return records.judge_claims(plan, book), "", plan
    return again, " (recorded)", plan


VERDICT_STYLES = {
    "holds": "green",
    "fails": "red",
    "not enough runs": "yellow",
    "outdated": "magenta",
    "not run": "dim",
}


def check_budget(artifact: Artifact, budget: Budget) -> None:
    """Raises BadSetting if the artifact has no such budget."""
    if budget not in artifact.spec.budgets:
        raise BadSetting(f"--budget {budget}: {artifact.id} has {', '.join(artifact.spec.budgets)}")


def current_plan(
    artifact: Artifact,
    book: Book,
    budget: Budget,
    root: Path,
    old: "Record | None" = None,
    drawn: bool = False,
) -> Plan:
    """The plan with the runs that are there now, or else in the record `old`.

    A run with a damaged file is left out, with a line on standard error. drawn: the plan is to be
    drawn, for which paths need the settings of their runs. Raises BadSetting if the artifact has no
    such budget, or if a row's settings are refused.
    """
    from bench.reproduce.recorded import reusable_runs

    check_budget(artifact, budget)
    names = Names(root)
    recorded = reusable_runs(old, artifact, book, names)
    with_path = drawn and artifact.spec.figure.trajectory is not None
    read = summary_if_drawn if with_path else summary_if_whole
    return plans.make_plan(artifact, book, budget, root, names, recorded=recorded, read=read)


def largest_budget(artifact: Artifact, book: Book, root: Path, results: Path) -> Budget:
    """The largest budget that has a finished run, a record with a verdict or a damaged one; or else
    one with a record, or else the artifact's largest.

    Raises BadSetting if a row's settings are refused.
    """
    from bench.reproduce import records

    budgets = list(artifact.spec.budgets)
    empty = []
    for budget in reversed(budgets):
        try:
            record = records.read_record(artifact.id, budget, results, with_histories=False)
        except BadSetting:  # whoever reads the record says so, or replaces it
            return budget
        if record is not None and (record.has_verdicts or not artifact.spec.claims):
            return budget
        if record is not None:
            empty.append(budget)
        plan = plans.make_plan(artifact, book, budget, root, Names(root), read=summary_or_none)
        if any(run.summary for run in plan.runs):
            return budget
    return [*empty, budgets[-1]][0]
