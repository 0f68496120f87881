"""Makes the runs of an artifact for `reproduce run`, and prints what became of them."""

import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from operator import attrgetter
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from rich.table import Table

from bench.core.settings import BadSetting
from bench.reproduce import plan as plans
from bench.reproduce.disturbance import disturbed_names
from bench.reproduce.plan import Plan, PlannedRow, Run
from bench.reproduce.run_names import Names
from bench.reproduce.schema import Budget
from bench.reproduce.specs import Artifact, Book
from bench.reproduce.terminal import err, out
from bench.runs.folder import RunState
from bench.runs.importing import import_torch
from bench.runs.loggers import tell_offline, tell_unknown

if TYPE_CHECKING:
    from bench.reproduce.records import Record
    from bench.sweeps.launchers import Launcher


@dataclass(frozen=True)
class Choice:
    """Which of an artifact's runs are to be made.

    rows: patterns of names, such as CTN*; all rows if there is none. variant: None is both. seeds:
    so many of each row, the first ones that are judged; None is all.
    """

    rows: tuple[str, ...] = ()
    variant: str | None = None
    seeds: int | None = None

    def check(self, artifact: Artifact) -> None:
        """Raises BadSetting if a pattern is not the name of any row, or the variant not there."""
        for pattern in self.rows:
            if not any(fnmatchcase(name, pattern) for name in artifact.spec.rows):
                named = ", ".join(artifact.spec.rows)
                raise BadSetting(f"--rows {pattern}: {artifact.id} has {named}")
        if self.variant is not None and self.variant not in artifact.spec.variants:
            has = ", ".join(artifact.spec.variants)
            raise BadSetting(f"--variant {self.variant}: {artifact.id} has {has}")

    def has_row(self, row: PlannedRow) -> bool:
        """Whether runs of this row are to be made."""
        named = not self.rows or any(fnmatchcase(row.name, pattern) for pattern in self.rows)
        return named and self.variant in (None, row.variant)

    def runs(self, plan: Plan) -> list[Run]:
        """The chosen runs that are known, once, whatever the number of rows that have them."""
        rows = [row for row in plan.rows if self.has_row(row)]
        some = (run for row in rows for run in (*row.tried, *row.runs[: self.seeds]))
        return list({run.planned.name: run for run in some}.values())

    def count(self, plan: Plan) -> int:
        """How many runs are chosen, those of grid points still to be found among them."""
        unknown = [row.name for row in plan.rows if self.has_row(row) and not row.runs]
        judged = [plans.seeds(plan.artifact, plan.budget, [name]) for name in unknown]
        return len(self.runs(plan)) + sum(len(own[: self.seeds]) for own in judged)


EVERY_RUN = Choice()


@contextmanager
def time_limit(hours: float | None) -> Iterator[None]:
    """A block that ends with KeyboardInterrupt, which stops its runs, after so many hours."""

    def stop(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    old = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 3600 * (hours or 0.0))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, old)


def make_runs(
    artifact: Artifact,
    book: Book,
    budget: Budget,
    root: Path,
    extra: list[str],
    launcher: "Launcher",
    anew: bool = False,
    choice: Choice = EVERY_RUN,
    old: "Record | None" = None,
    disturbed: bool = False,
) -> Plan:
    """Make the runs that are missing, and give the plan with all of them.

    The points of every grid are made first, at the first seed; when they show which point is the
    best, it is made at the other seeds. Where times matter, all rows are made at one seed before
    any is made at the next, so that what is compared is made within a short time.

    extra: overrides for all runs. anew: finished runs whose code has changed are made again.
    choice: which runs are made at all. old: a record whose runs are not made again. disturbed: runs
    that a claim cannot compare, because of the machines that made them, are made again, once; a
    record's are among them. Raises BadSetting if a row's settings are refused.
    """
    import_torch()
    from bench.reproduce import runner  # slow to import
    from bench.reproduce.recorded import reusable_runs
    from bench.sweeps.sweep import progress_bar
    from bench.sweeps.workers import keep_workers

    names = Names(root, [*wandb_overrides(extra, artifact, budget), *extra])
    tried, apart, told = set[str](), set[str](), set[str]()
    since = runner.file_time(root)  # before the plan: what another process begins later counts
    recorded = reusable_runs(old, artifact, book, names)
    plan = plans.make_plan(artifact, book, budget, root, names, recorded=recorded)
    retry = any(word.lower() == "run.retry_failed=true" for word in extra)  # Hydra reads True too
    timing = plans.needs_times(artifact.spec, budget)
    # lanes have no time of their own
    side_by_side = len(plans.seeds(artifact, budget)) > 1 and not timing
    memory = plans.measures_memory(artifact.spec)
    chosen = choice.runs(plan)
    done = sum(run.summary is not None for run in chosen)
    bar_of_runs = progress_bar(f"{artifact.id} {budget}", choice.count(plan), done)
    with bar_of_runs as bar, keep_workers():
        (task,) = bar.task_ids

        def print_end(planned: plans.PlannedRun, state: RunState, log: Path) -> None:
            tried.add(planned.name)
            bar.advance(task)
            point, words = planned.point, state.reason or state.status
            which = f"{planned.name} ({point.variant}, {point.row}, seed {planned.seed})"
            if words in told:  # such as a data set that is not there, for each run that reads it
                err.print(f"{which}: as above")
                return
            err.print(f"{which}: {words}")
            if not state.has_ended:
                told.add(words)
                err.print(f"  {' '.join([planned.line, *map(quote, extra)])}\n  its output: {log}")

        def run_to_make(run: Run, timed: set[str]) -> plans.PlannedRun | None:
            """What is to be made now of a run; None if nothing is. timed: runs to make again."""
            if run.planned.name in tried:
                return None
            if run.planned.name in timed:
                return replace(run.planned, again=True)
            if run.recorded is not None:
                return None
            if run.summary is None or (retry and run.failed):
                return run.planned
            return replace(run.planned, again=True) if anew and code_changes(run) else None

        def runs_to_make() -> list[plans.PlannedRun]:
            timed = disturbed_names(plan) if disturbed else set()
            found = [run_to_make(run, timed) for run in chosen]
            wanted = [planned for planned in found if planned is not None]
            return in_blocks(wanted, plan) if timing else wanted

        while wanted := runs_to_make():
            lanes = side_by_side and not retry and not memory
            whole = runner.group_bundles(wanted) if lanes else [(planned,) for planned in wanted]
            bundles = [
                part
                for bundle in whole
                for part in ([(one,) for one in bundle] if bundle[0].name in apart else [bundle])
            ]
            for bundle in runner.make_bundles(
                bundles, launcher, names, root, print_end, since, memory
            ):
                apart |= {planned.name for planned in bundle}
                err.print(f"{len(bundle)} runs of {bundle[0].point.row} one by one")
            since = runner.file_time(root)
            plan = plans.make_plan(artifact, book, budget, root, names, recorded=recorded)
            chosen = choice.runs(plan)
            bar.update(task, total=choice.count(plan))
    if "logger=wandb" in extra:
        tell_offline([run.folder.path for run in chosen])
        tell_unknown([run.folder.path for run in chosen if run.planned.name not in tried])
    return plan


def in_blocks(wanted: Sequence[plans.PlannedRun], plan: Plan) -> list[plans.PlannedRun]:
    """The runs to make next: the points of grids if any are wanted, or else seed by seed.

    What is compared are the runs of one seed, and a machine may be faster an hour later.
    """
    tried = {run.planned.name for row in plan.rows for run in row.tried}
    tries = [planned for planned in wanted if planned.name in tried]
    return tries or sorted(wanted, key=attrgetter("seed"))


def wandb_overrides(extra: list[str], artifact: Artifact, budget: Budget) -> list[str]:
    """Overrides by which W&B shows an artifact's runs as one group; none without that logger.

    They come before those of the user, which win.
    """
    if "logger=wandb" not in extra:
        return []
    paper, name = artifact.id.split("/")
    return [f"logger.group={paper}-{name}-{budget}", f"logger.tags=[{paper},{name},{budget}]"]


def print_outcome(plan: Plan, choice: Choice = EVERY_RUN) -> bool:
    """Print what became of a plan's chosen runs, and say whether something failed or is missing."""
    table = Table(box=None, pad_edge=False, title=f"{plan.artifact.id} {plan.budget}")
    for column in ("variant", "row", "runs", *plan.artifact.spec.columns, "remarks"):
        table.add_column(column)
    failed = False
    for row in plan.rows:
        if not choice.has_row(row):
            continue
        own = row.runs[: choice.seeds]
        counts = Counter(plans.run_status(run) for run in own)
        wrong = [r for r in own if r.failed]
        diverged = sum(r.failed for r in row.tried if r not in row.runs)
        unfinished = any(r.summary is None for r in (*row.tried, *own)) or not own
        failed |= bool(wrong) or unfinished
        remarks = [f"failed: {(r.summary or {}).get('reason')}" for r in wrong[:1]]
        remarks += (
            [f"{diverged} of {len(row.tried)} runs of grid points failed"] if diverged else []
        )
        remarks += ["not finished"] if unfinished else []
        table.add_row(
            row.variant,
            row.name,
            ", ".join(f"{n} {word}" for word, n in counts.items()) or "none",
            *(value_cell(own, name) for name in plan.artifact.spec.columns),
            "; ".join(remarks),
        )
    out.print(table)
    here = [run for run in choice.runs(plan) if run.summary and run.recorded is None]
    older = [files for run in here if (files := code_changes(run))]
    if older:
        names = ", ".join(sorted(set().union(*older)))
        out.print(
            f"{len(older)} finished runs were made before their code changed: {names}; "
            "reproduce run with --anew makes them again"
        )
    beside = disturbed_names(plan).intersection(run.planned.name for run in choice.runs(plan))
    if beside:
        out.print(
            f"{len(beside)} finished runs had other work beside them, or were made on a machine of "
            "another speed, so that a claim leaves their seeds out; reproduce run with --disturbed "
            "makes them again, one at a time"
        )
    judged = plan.budget != "smoke"
    check = f"reproduce check {plan.artifact.id} --budget {plan.budget}; " if judged else ""
    out.print(f"next: {check}reproduce report {plan.artifact.id} --budget {plan.budget}")
    return failed


def code_changes(run: Run) -> list[str]:
    """The files of the run's code that have changed since it was made."""
    from bench.runs.launch import changed_files

    return changed_files(run.folder.config(), run.folder)


def value_cell(runs: tuple[Run, ...], metric: str) -> str:
    """The mean and the standard error of a metric over the runs that are done; "-" if none is."""
    from bench.reproduce.specs import format_number
    from bench.reproduce.statistics import estimate

    values = [v for run in runs if run.done and (v := run.last(metric)) is not None]
    if not values:
        return "-"
    e = estimate(values)
    return format_number(e.mean) + (f" ± {format_number(e.se)}" if e.se is not None else "")
