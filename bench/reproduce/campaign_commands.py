"""The commands of `reproduce` that say what is not decided yet, and that work through it."""

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from bench.core.settings import BadSetting
from bench.reproduce import todo as undecided
from bench.reproduce.book import find_artifacts, load_book
from bench.reproduce.making import make_runs, time_limit
from bench.reproduce.options import FAILED, OK, RUNS, Ids, Results, Runs, Specs
from bench.reproduce.places import RESULTS
from bench.reproduce.run_names import Names
from bench.reproduce.specs import Book
from bench.reproduce.standing import read_records
from bench.reproduce.terminal import err, out

LEGEND = (
    "needed: seeds with which the claim is decided with a probability of 80%, if mean and\n"
    "deviation stay as measured; power: that probability with the seeds that there are; ?: the\n"
    "values do not say, as where no run reached the target. Raise seeds in the spec,\n"
    "or only the claim's rows in more_seeds.\n"
    "waits for: the budget gpu, which has no record yet, judges the claim at the paper's size.\n"
    "disturbed: runs beside which others worked, or of machines of different speed, whose seeds\n"
    "the claim leaves out; reproduce run ID --budget B --disturbed makes them again."
)


def todo(
    ids: Ids = None, runs: Runs = RUNS, results: Results = RESULTS, specs: Specs = None
) -> None:
    """List what is not decided, with the runs or seeds that would decide it; the cheapest first."""
    lacking, open_ones = what_is_left(ids or [], load_book(specs), runs.expanduser(), results)
    out.print(undecided.table_of_runs(lacking))
    waiting = sum(item.waits_for_gpu for item in open_ones)
    out.print(
        Text(
            f"\n{len(open_ones)} claims whose runs are all there and decide nothing;"
            f" {waiting} of them wait for the budget gpu:"
        )
    )
    if open_ones:
        out.print(undecided.table_of_claims(open_ones))
        out.print(LEGEND)


def what_is_left(
    ids: list[str], book: Book, root: Path, results: Path
) -> tuple[list[undecided.MissingRuns], list[undecided.OpenClaim]]:
    """The runs that artifacts lack, and the claims that stay open with all of theirs."""
    names, recorded = Names(root), read_records(book, results)
    lacking: list[undecided.MissingRuns] = []
    open_ones: list[undecided.OpenClaim] = []
    for artifact in find_artifacts(book, ids):
        for budget in undecided.budgets_to_do(artifact, recorded):
            old = recorded.get((artifact.id, budget))
            plan, missing = undecided.missing_runs(artifact, book, budget, old, root, names)
            if missing is not None:
                lacking.append(missing)
            if old is not None:
                open_ones += undecided.open_claims(artifact, book, budget, recorded, plan)
    return lacking, open_ones


def campaign(
    hours: Annotated[
        float,
        typer.Option(
            min=0.001, help="how long to work; if work is left then, the exit code is 130"
        ),
    ],
    ids: Ids = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="runs at a time; default: as the cores allow")
    ] = None,
    runs: Runs = RUNS,
    results: Results = RESULTS,
    specs: Specs = None,
) -> None:
    """Make the runs that `todo` lists, the cheapest for each claim first, and record them.

    Each artifact is recorded when its runs are made. One that cannot be recorded, as where a run
    failed that a complete record would lack, is told in one line, and the others are made: the exit
    code is then 1. When the time is over the runs are saved, and the same command goes on.
    """
    from bench.reproduce import records, replacing  # slow to import
    from bench.sweeps.launchers import local

    book, root = load_book(specs), runs.expanduser()
    lacking, _ = what_is_left(ids or [], book, root, results)
    start, failed = time.monotonic(), False
    with time_limit(hours):
        for item in sorted(lacking, key=undecided.cost_of_a_claim):
            artifact, budget = item.artifact, item.budget
            left = hours - (time.monotonic() - start) / 3600
            err.print(f"{artifact.id} {budget}: {item.count} runs; {60 * left:.0f} minutes left")
            try:
                old = records.read_record(artifact.id, budget, results)
                make_runs(artifact, book, budget, root, [], local(workers=jobs), old=old)
                file = replacing.record_runs(artifact, book, budget, root, results)
            except BadSetting as error:
                err.print(Text(f"reproduce: {artifact.id} {budget} is left out: {error}"))
                failed = True
            else:
                out.print(f"{file}")
    raise typer.Exit(FAILED if failed else OK)
