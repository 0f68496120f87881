"""The command line `reproduce`.

Modules that are slow to import are imported by the commands that need them: `list` is quick.
"""

import sys
from collections import Counter
from errno import ENOSPC
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.markdown import Markdown
from rich.table import Table
from rich.text import Text

from bench import about
from bench.core.packages import listed
from bench.core.settings import BadSetting
from bench.reproduce import campaign_commands, judge_commands, league_commands, run_commands
from bench.reproduce.book import find_artifacts, load_book, load_names
from bench.reproduce.options import (
    FAILED,
    INTERRUPTED,
    OK,
    REFUSED,
    RUNS,
    UNJUDGED,
    Ids,
    MaybeBudget,
    MaybeVariant,
    Results,
    Runs,
    Specs,
)
from bench.reproduce.places import RESULTS
from bench.reproduce.run_names import Names
from bench.reproduce.schema import Budget
from bench.reproduce.standing import (
    current_plan,
    current_verdicts,
    largest_budget,
    read_records,
)
from bench.reproduce.terminal import err, out
from bench.runs.files import write_whole
from bench.search_path import find_clash, keep_children_out

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help=(
        "Every table and figure of the papers as a command: published number, measured number, n, "
        "verdict. Start with: reproduce list"
    ),
)


def tell_version(wanted: bool) -> None:
    """Print version and commit, and exit, if this is wanted."""
    if wanted:
        out.print(about.version_line())
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option("--version", callback=tell_version, help="show version and commit, and exit"),
]


@app.callback()
def common(version: Version = False) -> None:
    """Options that stand before a command."""


@app.command("list")
def list_(
    ids: Ids = None,
    costs: Annotated[
        bool, typer.Option("--costs", help="instead: what a step of each row's method calls")
    ] = False,
    runs: Runs = RUNS,
    results: Results = RESULTS,
    specs: Specs = None,
) -> None:
    """List all artifacts: budgets, cost, what is done, how their recorded claims stand.

    Exit code 1 if the records show that a budget has too few seeds for a claim to be decided.
    """
    book, root = load_book(specs), runs.expanduser()
    artifacts = find_artifacts(book, ids or [])
    if costs:
        from bench.reproduce import step_costs

        out.print(step_costs.list_costs(artifacts, book, Names(root)))
        out.print(step_costs.LEGEND)
        return
    from bench.reproduce import listing

    recorded = read_records(book, results, with_histories=False)
    for line in listing.list_artifacts(artifacts, book, root, recorded, out.width):
        out.print(Text(line))
    for line in listing.list_remarks(artifacts, recorded, out.width):
        out.print(Text(line))
    refused = list(listing.refuse_claims(artifacts, recorded))
    for line in refused:
        err.print(Text(f"reproduce: {line}"))
    raise typer.Exit(FAILED if refused else OK)


@app.command()
def check(
    ids: Ids = None,
    budget: MaybeBudget = None,
    variant: MaybeVariant = None,
    against_record: Annotated[
        bool,
        typer.Option("--against-record", help="whether verdicts and values are the recorded ones"),
    ] = False,
    runs: Runs = RUNS,
    results: Results = RESULTS,
    specs: Specs = None,
) -> None:
    """Judge the claims: exit code 0 if all that can be judged hold, 1 if one fails, 3 if none can.

    The runs that are there are judged, or else the values in the record. A claim that the paper
    does not make is marked as ours, and counted apart. A row whose chosen grid point lies at an
    edge of its grid has a line.

    With --against-record the exit code says whether the record still holds: 1 if a verdict or a
    value differs, or if rows are outdated that are not marked as such. Verdicts then come from the
    runs only if all are there. The values of claims are computed again from the last values that
    the record has of its runs, and these are compared with the runs that are there.
    """
    from bench.reproduce import checking, comparison, outdated, power, records

    book, root = load_book(specs), runs.expanduser()
    totals, any_record = checking.CheckTotals(), False
    for artifact in find_artifacts(book, ids or []):
        wanted: list[Budget] = [budget.value] if budget else list(artifact.spec.budgets)
        if not (against_record or budget):
            wanted = [largest_budget(artifact, book, root, results)]
        for name in wanted:
            old = records.read_record(artifact.id, name, results)
            if against_record and old is None:
                continue
            any_record, today = any_record or old is not None, None
            if old is not None:
                today = outdated.mark_outdated(old, artifact, book, Names(root))
            found, remark, plan = current_verdicts(
                artifact, book, name, root, today, against_record
            )
            groups = [v for v in found if variant is None or v == variant.value]
            where, n = f"{artifact.id} {name}", partial(power.claim_seeds, artifact, name)
            before = old if against_record else None
            entries, changed = checking.print_verdicts(found, groups, where, remark, before, n)
            totals.entries += entries
            totals.changed += changed
            checking.print_edges(artifact, groups, where, None if remark else plan, old)
            if plan is not None and old is not None and not remark:
                checking.tell_partial(plan, where, root)
            if against_record and old is not None:
                outcomes, partly = checking.compare_with_record(old, artifact, book, plan, groups)
                totals.outcomes += outcomes
                totals.partly += partly
    if against_record and not any_record and (ids or budget):
        raise BadSetting(f"{' '.join(ids or [])}: there is no such record in {results}")
    if against_record:
        out.print(
            f"{totals.phrase}; {comparison.summarise(totals.outcomes, totals.partly)}",
        )
        different = totals.changed or totals.outcomes[comparison.DIFFERS]
        raise typer.Exit(FAILED if different else OK)
    smoke = budget is not None and budget.value == "smoke" and not totals.entries
    out.print("no claims: the budget smoke is not judged" if smoke else totals.phrase)
    if not totals.words["holds"] + totals.words["fails"]:
        raise typer.Exit(UNJUDGED)
    raise typer.Exit(FAILED if totals.words["fails"] else OK)


@app.command()
def report(
    ids: Ids = None,
    out_: Annotated[Path, typer.Option("--out", help="folder of the pages")] = Path("report"),
    site: Annotated[
        Path | None,
        typer.Option("--site", help="pages of all records, made without runs, into this folder"),
    ] = None,
    budget: MaybeBudget = None,
    record: Annotated[
        bool, typer.Option("--record", help="write results/<paper>/<artifact>/<budget>.json too")
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="with --record: replace a complete record by an incomplete one too"
        ),
    ] = False,
    runs: Runs = RUNS,
    results: Results = RESULTS,
    specs: Specs = None,
) -> None:
    """Write pages that open from disk, tables in Markdown and LaTeX, and figures in SVG and PDF.

    With --site they are made from the records alone, each at its largest budget.

    Runs that are not there come from the record, if it has them as the spec asks for today. With
    --record, rows and seeds are so added to a record without making the others again. A record is
    written once its pages are, with what was recorded meanwhile; one that is complete or damaged is
    replaced by an incomplete one only with --force.
    """
    from bench.reproduce import records
    from bench.reproduce import report as pages
    from bench.reproduce import site as sites
    from bench.reproduce.papers import load_papers
    from bench.reproduce.recorded import read_replaced, refuse_loss
    from bench.reproduce.replacing import record_runs
    from bench.runs.folder import has_ended_run

    book, root = load_book(specs), runs.expanduser()
    artifacts = find_artifacts(book, ids or [])
    if site is not None:
        if record or budget:
            raise BadSetting(
                "--site: its pages are of the records there are: leave out "
                + ("--record" if record else "--budget")
            )
        out.print(f"{sites.write_site(artifacts, book, results, site.expanduser(), specs)}")
        return
    entries, any_run = [], has_ended_run(root)
    for artifact in artifacts:
        name = budget.value if budget else largest_budget(artifact, book, root, results)
        old = read_replaced(artifact.id, name, results, record and force)
        plan = (
            None
            if old and not any_run
            else current_plan(artifact, book, name, root, old, drawn=True)
        )
        there = plan is not None and any(r.summary and r.recorded is None for r in plan.runs)
        if record and not there:
            raise BadSetting(f"--record: {artifact.id} {name} has no finished run in {root}")
        if old is not None and (plan is None or not there):
            entries.append(sites.recorded_entry(artifact, book, old))
            continue
        assert plan is not None
        measured = records.make_record(plan, book, old)
        if record and not force:
            refuse_loss(old, measured)
        drawn = any(run.summary and run.history for row in plan.rows for run in row.runs)
        entries.append(pages.ReportEntry(artifact, measured, plan if drawn else None))
    index = pages.write_report(entries, book, out_.expanduser(), load_papers(specs))
    for entry in entries if record else []:
        out.print(f"{record_runs(entry.artifact, book, entry.record.budget, root, results, force)}")
    out.print(f"{index}")


@app.command()
def findings(
    top: Annotated[
        Path, typer.Option(help="the folder with README.md and docs/", file_okay=False)
    ] = Path(),
    check: Annotated[
        bool, typer.Option("--check", help="only say whether the files are up to date")
    ] = False,
    results: Results = RESULTS,
    specs: Specs = None,
) -> None:
    """Write what the records say into README.md, docs/ and results/README.md.

    Where there is no docs/findings.md, the findings are shown and nothing is written. What packages
    of your own bring is in none of these files.
    """
    from bench.reproduce import readme, written

    book = load_book(specs, outside=False)
    if not (top / written.FINDINGS).is_file():
        if check:
            raise BadSetting(f"--check: there is no {top / written.FINDINGS}; start in a checkout")
        found = list(readme.read_findings(book, results))
        out.print(Markdown("\n".join(written.findings_parts(found, results, specs, None).values())))
        return
    for file, text in written.written_files(top, book, results, specs).items():
        if not check:
            write_whole(file, text)
            out.print(f"{file}")
        elif not file.is_file() or file.read_text() != text:
            raise BadSetting(f"{file}: it is not what the records say: write reproduce findings")


@app.command()
def compare(
    places: Annotated[
        list[str], typer.Argument(metavar="PLACE...", help="runs, folders of runs, sweeps, globs")
    ],
    metric: Annotated[str | None, typer.Option(help="shown at first; default: the task's")] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(metavar="SETTING=VALUE", help="only runs of which this is true; repeatable"),
    ] = None,
    out_: Annotated[Path, typer.Option("--out", help="folder of the page")] = Path("comparison"),
    csv: Annotated[
        Path | None, typer.Option("--csv", help="write the table of all metrics there too")
    ] = None,
    specs: Specs = None,
) -> None:
    """Write a page that compares any runs: means, bands over seeds, ranks, costs to a target.

    Runs that differ in their seeds only are a group. A place is a run folder, a folder of runs, a
    sweep's folder (runs/.sweeps/...) or a glob. --where takes =, !=, <, <=, > and >=, and several
    values: --where algorithm.T=1,10 --where 'run.steps>=500'.
    """
    from bench.reproduce import dashboard

    page, found = dashboard.write_comparison(
        places, load_names(specs), out_.expanduser(), metric, where or []
    )
    if csv is not None:
        dashboard.write_csv(found, csv.expanduser())
        out.print(f"{csv}")
    out.print(f"{page} ({found.title})")
    if found.about:
        out.print(found.about)


@app.command()
def rename(runs: Runs = RUNS) -> None:
    """Give run folders that are older than 2026-11-22 the names that their runs have today."""
    from bench.runs import renaming

    counts = Counter[str]()
    for entry in renaming.rename(runs.expanduser()):
        counts["left" if entry.left else "renamed"] += 1
        out.print(f"{entry.old} -> {entry.new}{f': {entry.left}' if entry.left else ''}")
    out.print(f"{counts['renamed']} renamed, {counts['left']} left")
    raise typer.Exit(FAILED if counts["left"] else OK)


@app.command()
def data(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...")] = None,
    download: Annotated[bool, typer.Option("--download", help="fetch what is not there")] = False,
    root: Annotated[Path, typer.Option(help="where data sets are", envvar="BENCH_DATA")] = Path(
        "~/.cache/bilevel-bench"
    ),
) -> None:
    """Say which data sets are there and whole; exit code 1 if one is damaged or did not come."""
    from bench.reproduce.data_sets import data_set_states

    table = Table(box=None, pad_edge=False)
    for column in ("data set", "state", "how to get it"):
        table.add_column(column)
    bad = False
    for state in data_set_states(names or [], root.expanduser(), download):
        table.add_row(state.name, state.word, state.advice)
        bad |= state.damaged
    out.print(table)
    raise typer.Exit(FAILED if bad else OK)


app.command()(run_commands.plan)
app.command(context_settings={"allow_interspersed_args": True})(run_commands.run)
app.command()(campaign_commands.todo)
app.command()(campaign_commands.campaign)
app.command()(judge_commands.coverage)
app.command()(judge_commands.rejudge)
app.add_typer(league_commands.app, name="league")


def main() -> None:
    """Run the command `reproduce`: a refusal is one line and exit code 2."""
    keep_children_out()
    for line in listed().left_out:
        err.print(Text(f"reproduce: {line}"))
    try:
        if clash := find_clash():
            raise BadSetting(clash)
        code = app(standalone_mode=False) or OK  # not standalone: it returns typer.Exit's code
        if code == INTERRUPTED:  # typer's word for KeyboardInterrupt
            err.print("reproduce: stopped; the same command goes on")
        sys.exit(code)
    except BadSetting as error:
        err.print(Text(f"reproduce: {error}"))
        sys.exit(REFUSED)
    except OSError as error:
        if error.filename is None and error.errno != ENOSPC:
            raise
        file = error.filename or "a file"  # which an error of a file that is open does not name
        err.print(Text(f"reproduce: cannot write or read {file}: {error.strerror}"))
        sys.exit(REFUSED)
    except Exception as error:
        told = getattr(error, "format_message", None)  # typer's refusals: a wrong option or value
        if told is None:
            raise
        if line := " ".join(told().split()):  # without arguments the help has been printed
            err.print(Text(f"reproduce: {line}"))
        sys.exit(REFUSED)
