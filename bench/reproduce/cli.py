"""The command line `reproduce`: list, plan, run, report, check, compare, data."""

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench.reproduce import plan as plans
from bench.reproduce import runner
from bench.reproduce.specs import Book, Budget, find, load_book, override
from bench.settings import BadSetting

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help=(
        "Every table and figure of the papers: published number, measured number, n, verdict. "
        "Start with: reproduce list"
    ),
)
out = Console(soft_wrap=True, highlight=False)
err = Console(stderr=True, soft_wrap=True, highlight=False)


class BudgetName(StrEnum):
    smoke = "smoke"
    short = "short"
    full = "full"


class LauncherName(StrEnum):
    local = "local"
    slurm = "slurm"


Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="as `list` shows them")]
OneId = Annotated[str, typer.Argument(metavar="ID", help="as `list` shows it")]
Runs = Annotated[
    Path, typer.Option(help="where run folders are", envvar="BENCH_RUNS", file_okay=False)
]
Specs = Annotated[Path | None, typer.Option(help="another folder of specs", envvar="BENCH_SPECS")]
Scale = Annotated[
    BudgetName | None, typer.Option(help="default: the largest that has runs or a record")
]
RUNS = Path("runs")


def expanded(root: Path) -> Path:
    return root.expanduser()


@app.command("list")
def list_(runs: Runs = RUNS, specs: Specs = None) -> None:
    """All artifacts: budgets, cost, what is done, what is recorded."""
    from bench.reproduce import records

    book = load_book(specs)
    names = plans.Names(expanded(runs))
    table = Table(box=None, pad_edge=False)
    for column in ("artifact", "variants", "budget", "runs", "done", "cost", "recorded claims"):
        table.add_column(column, justify="right" if column in ("runs", "done", "cost") else "left")
    for artifact in book.artifacts.values():
        for budget in artifact.spec.budgets:
            plan = plans.make(artifact, book, budget, expanded(runs), names, compose=False)
            every = list(plans.points(artifact.spec, book, budget))
            total = plans.total(artifact, book, budget)
            done = "?" if plan is None else str(len(plan.runs) - len(plan.missing))
            record = records.read(artifact.id, budget)
            table.add_row(
                artifact.id if budget == next(iter(artifact.spec.budgets)) else "",
                ", ".join(artifact.spec.variants),
                budget,
                str(total if every else 0),
                done,
                records.cost(artifact, budget, record),
                records.tally(record),
            )
    out.print(table)
    out.print(
        "\nreproduce plan ID --budget B shows the runs, reproduce run ID --budget B makes them. "
        "Done: ? until one of them has looked."
    )
