"""The commands of `reproduce` that are about runs: which an artifact takes, and making them."""

from collections import Counter
from collections.abc import Iterable
from typing import Annotated

import typer

from bench.core.settings import BadSetting
from bench.reproduce import plan as plans
from bench.reproduce.book import find_artifacts, load_book
from bench.reproduce.making import Choice, make_runs, print_outcome, time_limit
from bench.reproduce.options import (
    FAILED,
    OK,
    RUNS,
    AtBudget,
    LauncherName,
    MaybeVariant,
    Results,
    Runs,
    Specs,
)
from bench.reproduce.places import RESULTS
from bench.reproduce.standing import check_budget, current_plan, read_records
from bench.reproduce.terminal import out


def plan(
    id: Annotated[str, typer.Argument(metavar="ID")],
    budget: AtBudget,
    runs: Runs = RUNS,
    results: Results = RESULTS,
    specs: Specs = None,
) -> None:
    """Show the command lines that `run` would start, which are done, and what all of them cost."""
    from bench.reproduce import durations

    book, root = load_book(specs), runs.expanduser()
    for artifact in find_artifacts(book, [id]):
        plan = current_plan(artifact, book, budget.value, root)
        for run in plan.runs:
            out.print(f"{plans.run_status(run):9}{run.planned.line}", soft_wrap=True)
        counts = Counter(plans.run_status(run) for run in plan.runs)
        later = f", {plan.later} more once grid points are chosen" if plan.later else ""
        recorded = read_records(book, results, with_histories=False)
        startup = durations.mean_startup(recorded.values())
        record = recorded.get((artifact.id, budget.value))
        cost = durations.describe_cost(artifact, budget.value, record, startup)
        out.print(
            f"{artifact.id} {budget.value}: {len(plan.runs)} runs"
            f" ({', '.join(f'{n} {word}' for word, n in counts.items())}){later}; cost {cost}"
        )
        scale = artifact.spec.budgets[budget.value]
        if scale.note:
            out.print(scale.note)


def run(
    ids: Annotated[
        list[str], typer.Argument(metavar="ID... [SETTING=VALUE]...", help="settings for all runs")
    ],
    budget: AtBudget,
    launcher: Annotated[LauncherName, typer.Option(help="processes here, or SLURM jobs")] = (
        LauncherName.local
    ),
    jobs: Annotated[
        int | None, typer.Option(min=1, help="runs at a time; default: as the cores allow")
    ] = None,
    minutes: Annotated[
        int | None, typer.Option(min=1, help="time limit of a SLURM job; default: 240")
    ] = None,
    partition: Annotated[str | None, typer.Option(help="SLURM's partition")] = None,
    gpus: Annotated[int, typer.Option(min=0, help="GPUs of a SLURM job")] = 0,
    sbatch: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OPTION=VALUE",
            help="another option of a SLURM job, such as account=ABC; may be given again",
        ),
    ] = None,
    anew: Annotated[
        bool, typer.Option("--anew", help="also make runs again whose code has changed")
    ] = False,
    disturbed: Annotated[
        bool,
        typer.Option(
            "--disturbed",
            help="also make runs again that a claim cannot compare: others worked beside runs "
            "whose times it reads, or runs are of machines of different speed",
        ),
    ] = False,
    rows: Annotated[
        list[str] | None, typer.Option(help="only these rows; may be given again; * and ? match")
    ] = None,
    variant: MaybeVariant = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="only the first ones that are judged")
    ] = None,
    unrecorded: Annotated[
        bool, typer.Option("--unrecorded", help="only runs that the record does not have")
    ] = False,
    hours: Annotated[
        float | None,
        typer.Option(
            min=0.001, help="stop after so long, with exit code 130; the same command goes on"
        ),
    ] = None,
    runs: Runs = RUNS,
    results: Results = RESULTS,
    specs: Specs = None,
) -> None:
    """Make the runs that are missing. After an interrupt or a kill the same command goes on.

    With --unrecorded the runs that a record has, and that are still those of the spec, are not made
    again; reproduce report --record then adds the new ones to it. With --disturbed one run is made
    at a time; nothing else should work on the machine meanwhile.
    """
    from bench.reproduce import runner
    from bench.reproduce.records import read_record
    from bench.sweeps.launchers import local, slurm  # slow to import

    book, root = load_book(specs), runs.expanduser()
    extra = runner.check_extra([i for i in ids if "=" in i])
    if disturbed and jobs not in (None, 1):
        raise BadSetting(f"--jobs {jobs}: runs disturb each other: write --jobs 1 with --disturbed")
    at_once = 1 if disturbed else jobs
    options = sbatch_options(sbatch or [])
    if launcher == LauncherName.slurm:
        start = slurm(
            partition=partition,
            minutes=minutes or 240,
            at_once=at_once or 64,
            gpus=gpus,
            options=options,
        )
    elif partition or gpus or options or minutes:
        raise BadSetting(
            "--partition, --gpus, --sbatch, --minutes: write --launcher slurm with them; "
            "--hours stops runs here"
        )
    else:
        start = local(workers=at_once)
    wanted = [i for i in ids if "=" not in i]
    if not wanted:
        raise BadSetting("run: write which artifact, such as bome/fig1_coreset")
    choice = Choice(tuple(rows or ()), variant.value if variant else None, seeds)
    failed = False
    with time_limit(hours):
        for artifact in find_artifacts(book, wanted):
            check_budget(artifact, budget.value)
            choice.check(artifact)
            old = read_record(artifact.id, budget.value, results) if unrecorded else None
            plan = make_runs(
                artifact, book, budget.value, root, extra, start, anew, choice, old, disturbed
            )
            failed |= print_outcome(plan, choice)
    raise typer.Exit(FAILED if failed else OK)


def sbatch_options(given: Iterable[str]) -> dict[str, str]:
    """What --sbatch says, by option; raises BadSetting unless each is OPTION=VALUE, given once."""
    from bench.sweeps.slurm import check_options  # slow to import

    found: dict[str, str] = {}
    for word in given:
        option, _, value = word.partition("=")
        if not (option and value):
            raise BadSetting(f"--sbatch {word}: write OPTION=VALUE, such as account=ABC")
        if option in found:
            raise BadSetting(
                f"--sbatch {word}: {option} has {found[option]} already: write it once"
            )
        found[option] = value
    check_options(found, "--sbatch ")
    return found
