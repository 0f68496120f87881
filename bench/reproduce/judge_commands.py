"""The commands of `reproduce` that are about the judge: how often it errs, and judging again."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from bench.reproduce.book import find_artifacts, load_book
from bench.reproduce.options import FAILED, OK, RUNS, Ids, KnownResults, Runs, Specs
from bench.reproduce.places import RESULTS
from bench.reproduce.run_names import Names
from bench.reproduce.terminal import out
from bench.runs.files import write_whole


def coverage(
    draws: Annotated[int, typer.Option(min=1, help="simulated claims of each kind")] = 1000,
    file: Annotated[Path | None, typer.Option("--json", help="write the rates there too")] = None,
) -> None:
    """Judge simulated claims whose truth is known: exit code 1 if verdicts err too often."""
    from bench.reproduce import coverage as simulation

    table = Table(box=None, pad_edge=False)
    for column in ("kind", "law", "n", "holds", "fails", ""):
        table.add_column(column)
    found = simulation.measure_coverage(draws)
    for rates in found:
        remark = "" if rates.stands else "too often"
        if not rates.case.promised:
            remark = "not promised"
        case, words = rates.case, (f"{rates.holds:.4f}", f"{rates.fails:.4f}")
        table.add_row(case.kind, case.about, str(rates.n), *words, remark)
    out.print(table)
    content = simulation.summarise_coverage(found)
    out.print(simulation.coverage_sentence(content))
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, json.dumps(content, indent=1) + "\n")
    broken = any(rates.case.promised and not rates.stands for rates in found)
    raise typer.Exit(FAILED if broken else OK)


def rejudge(
    ids: Ids = None, runs: Runs = RUNS, results: KnownResults = RESULTS, specs: Specs = None
) -> None:
    """Judge the claims of records again, by the specs and rules of today; values stay as they are.

    A claim that needs histories keeps its recorded values if it is still the same claim. A row
    whose runs are not those of today is marked as outdated, and so are the claims about it.
    """
    from bench.reproduce import records, rejudging
    from bench.reproduce.outdated import mark_outdated
    from bench.reproduce.replacing import replaced

    book = load_book(specs)
    names = Names(runs.expanduser())
    for artifact in find_artifacts(book, ids or []):
        for budget in artifact.spec.budgets:
            with replaced(artifact.id, budget, results) as old:
                if old is None:
                    continue
                marked = mark_outdated(old, artifact, book, names)
                judged = rejudging.rejudge(marked, artifact, book)
                file = records.write_record(marked.model_copy(update={"claims": judged}), results)
            changes = list(rejudging.verdict_changes(old.claims, judged))
            out.print(f"{file}: {len(changes)} verdicts changed")
            for line in changes:
                out.print(f"    {line}", soft_wrap=True)
