"""Makes a sweep, `bench -m`: many runs, each of which may be made, be skipped or fail by itself."""

import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from bench.core.settings import BadSetting, build, check_settings, expand
from bench.runs import exit_codes, stop
from bench.runs.environment import cores
from bench.runs.files import refuse_links, write_json, write_whole
from bench.runs.folder import SWEEP_SUMMARY, RunFolder
from bench.runs.launch import describe_change, earlier_end, place, resolve
from bench.runs.loggers import is_wandb, set_labels, tell_offline, tell_unknown
from bench.runs.screen import summary_line
from bench.sweeps.bundling import bundle_lanes, choose_lanes, take_apart
from bench.sweeps.closing import Made, labels_of, print_closing, varied_settings
from bench.sweeps.composing import Composer
from bench.sweeps.jobs import Job

GOOD = ("done", "skipped")
LATER = ("preempted", "interrupted", "busy")  # the run did not fail: the same command goes on


class SweepRun(NamedTuple):
    """A run of the sweep, before it is made. Only one that is refused has no configuration."""

    number: int
    words: str  # the overrides in which it differs from other runs of the sweep
    config: dict[str, Any] | None = None
    folder: RunFolder | None = None
    refused: str = ""  # why it is refused

    @property
    def name(self) -> str | None:
        """The run's name; None if it is refused."""
        return self.folder.name if self.folder else None


class Outcome(NamedTuple):
    """What became of a run of the sweep."""

    number: int
    words: str
    name: str | None
    status: str  # done, skipped; failed, diverged, refused, lost; preempted, interrupted, busy
    reason: str | None


def run_sweep(compose: Composer, overrides: Sequence[Sequence[str]], master: DictConfig) -> int:
    """Make the runs that have not ended, report all, and give the exit code; raises BadSetting.

    overrides: those of each run. master: the configuration of the sweep itself.
    """
    from bench.sweeps.launchers import Launcher

    settings = OmegaConf.to_container(master.hydra.launcher, resolve=True)
    launcher: Launcher = build(check_settings(settings, "hydra.launcher", Launcher))
    folder = expand(str(master.hydra.sweep.dir), "run.root")
    runs = plan_runs(compose, overrides)
    if not runs:
        raise BadSetting(
            f"the sweep is empty: {' '.join(master.hydra.overrides.task)} names no run"
        )
    ends = dict(enumerate(map(earlier_outcome, runs)))
    changed = {n for n, end in ends.items() if end and end.status == "skipped" and end.reason}
    skip_repeated(runs, ends)
    for number, outcome in ends.items():
        if outcome is not None and outcome.status == "refused":
            words, reason = runs[number].words, outcome.reason or ""
            told = reason if reason.startswith(words) else f"{words}: {reason}"
            print(f"bench: {told}", file=sys.stderr)
    if all(outcome is not None and outcome.status == "refused" for outcome in ends.values()):
        return exit_codes.REFUSED

    refuse_links(folder.parent)
    if folder.exists():  # another sweep was started in the same second
        folder = folder.with_name(f"{folder.name}-{os.getpid()}")
    notes = folder / "notes"
    wanted = [run.config for run in runs if ends[run.number] is None and run.config is not None]
    ended = [run.config for run in runs if ends[run.number] and run.config is not None]
    unasked = choose_lanes(wanted, launcher.one_machine, ended)
    jobs = {
        run.number: Job(
            run.config,
            run.folder,
            notes / f"{run.number}.json",
            tuple(
                o
                for o in overrides[run.number]
                if o.partition("=")[0] not in run.config["vectorize"]
            ),
            if_faster=unasked,
        )
        for run in runs
        if ends[run.number] is None and run.config is not None and run.folder is not None
    }
    bundles = bundle_lanes(list(jobs.values()))
    try:
        notes.mkdir(parents=True)
    except OSError as error:
        raise BadSetting(
            f"run.root: cannot write {error.filename}: {error.strerror}; write run.root=... "
            "for another place"
        ) from None
    write_whole(folder / "multirun.yaml", OmegaConf.to_yaml(master))
    begun = (folder / "multirun.yaml").stat().st_mtime_ns
    share_threads(runs, overrides[0], launcher.workers)
    settings = varied_settings(overrides)
    for run in runs:
        if run.config is not None:
            set_labels(run.config, labels_of(settings[run.number]), f"sweep {folder.name}")
    progress = Overall(len(runs), len(runs) - len(jobs))
    slow: list[Job] = []  # that are no faster as lanes, or cannot go as lanes, or were killed
    if unasked:
        print(
            "where it is faster, runs go side by side and share their seconds; vectorize=[] makes "
            "each by itself"
        )
    try:
        with stop.heed(), progress.bar as bar:

            def report_end(job: Job) -> None:
                apart = take_apart(job) if job.others and job.if_faster else []
                slow.extend(apart)
                again = {each.folder.name for each in apart}
                over = [each for each in job.all if each.folder.name not in again]
                for line in progress.lines([outcome_line(each) for each in over]):
                    print(line, flush=True)
                    bar.advance(bar.task_ids[0])

            if jobs:
                launcher.launch([job.with_start(begun) for job in bundles], folder, report_end)
            if slow:
                launcher.launch(list(slow), folder, report_end)
    finally:
        outcomes = [
            ends[run.number] or outcome_of(run, jobs[run.number].with_start(begun)) for run in runs
        ]
        print_table(outcomes, folder)
        made = [
            Made(settings[run.number], run.folder, run.number in changed)
            for run, outcome in zip(runs, outcomes, strict=True)
            if run.folder is not None and outcome.status != "lost"  # it may have older values
        ]
        print_closing(made, folder)
        tell_offline([run.folder.path for run in runs if run.folder is not None])
        tell_unknown(skipped_under_wandb(runs, outcomes))
        shutil.rmtree(notes, ignore_errors=True)
    return exit_code_of_sweep(outcomes)


def skipped_under_wandb(runs: Sequence[SweepRun], outcomes: Sequence[Outcome]) -> list[Path]:
    """The folders of runs that had ended before, where W&B is the logger."""
    return [
        run.folder.path
        for run, outcome in zip(runs, outcomes, strict=True)
        if outcome.status == "skipped" and run.folder and run.config
        if is_wandb(run.config["logger"])
    ]


class Overall:
    """How far a sweep is: a bar on a terminal, and a number before each run's line."""

    def __init__(self, runs: int, over: int, what: str = "run"):
        """runs: of the whole sweep. over: how many of them have ended before. what: each is."""
        self.runs, self.over, self.before, self.what = runs, over, over, what
        self.begin = time.monotonic()
        self.bar = progress_bar(f"{what}s", runs, over)

    def lines(self, texts: Sequence[str]) -> list[str]:
        """The lines of runs that are over together, as lanes are: each with its place among all,
        and the time left by the mean of those that were made."""
        first = self.over + 1
        self.over += len(texts)
        left, made = self.runs - self.over, max(1, self.over - self.before)
        each = (time.monotonic() - self.begin) / made
        rest = f", {rough_time(left * each)} left" if left else ""
        return [
            f"{self.what} {number} of {self.runs}{rest}: {text}"
            for number, text in enumerate(texts, first)
        ]


def rough_time(seconds: float) -> str:
    """A time in one unit, for people."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def progress_bar(what: str, total: int, done: int = 0) -> Progress:
    """A bar of the runs that are over and the time left, on standard error if that is a terminal.

    total: how many runs there are. done: how many of them are over already.
    """
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("left"),
        TimeRemainingColumn(compact=True),
        console=Console(stderr=True, soft_wrap=True),
        disable=not sys.stderr.isatty(),
        redirect_stdout=sys.stdout.isatty(),  # printed lines then go above the bar
    )
    bar.add_task(what, total=total, completed=done)
    return bar


def outcome_line(job: Job) -> str:
    """What became of a job's run, in one line."""
    state = job.state()
    with suppress(BadSetting, OSError):  # it was damaged just now: the state says that it ended
        summary = job.folder.summary() if state.has_ended else None
        if summary is not None:
            return summary_line({"name": job.folder.name, **summary})
    return f"{job.folder.name}: {state.status}" + (f": {state.reason}" if state.reason else "")


def plan_runs(compose: Composer, overrides: Sequence[Sequence[str]]) -> list[SweepRun]:
    """Every run with its configuration and folder, or with the reason why it is refused."""
    first = overrides[0] if overrides else []
    varied = [k for k in range(len(first)) if len({own[k] for own in overrides}) > 1]
    runs = []
    with progress_bar("planning", len(overrides)) as bar:
        for number, own in enumerate(overrides):
            words = " ".join(own[k] for k in varied) or " ".join(own)
            try:
                config = resolve(compose(own))
                runs.append(SweepRun(number, words, config, place(config)))
            except BadSetting as error:
                runs.append(SweepRun(number, words, refused=str(error)))
            bar.advance(bar.task_ids[0])
    return runs


def earlier_outcome(run: SweepRun) -> Outcome | None:
    """What became of a run that is not to be made; None if the run is to be made."""
    about = (run.number, run.words, run.name)
    if run.config is None or run.folder is None:
        return Outcome(*about, "refused", run.refused)
    try:
        if earlier_end(run.config, run.folder) is None:
            return None
        status, reason = run.folder.state()
        if status == "done":
            return Outcome(*about, "skipped", describe_change(run.config, run.folder))
    except BadSetting as error:
        return Outcome(*about, "refused", str(error))
    except OSError as error:
        return Outcome(*about, "refused", f"cannot read {error.filename}: {error.strerror}")
    return Outcome(*about, status, reason)


def skip_repeated(runs: Sequence[SweepRun], ends: dict[int, Outcome | None]) -> None:
    """Mark in `ends`, as skipped, each run that the sweep also has under a lower number."""
    first: dict[str, int] = {}
    for run in runs:
        if run.name is not None and ends[run.number] is None:
            if run.name in first:
                same = f"the same run as #{first[run.name]}"
                ends[run.number] = Outcome(run.number, run.words, run.name, "skipped", same)
            first.setdefault(run.name, run.number)


def share_threads(runs: Sequence[SweepRun], overrides: Sequence[str], workers: int) -> None:
    """Lower run.threads so that all workers fit on the cores, unless the command line sets it."""
    for run in runs:
        if run.config is not None:
            share_threads_of(run.config, overrides, workers)


def share_threads_of(config: dict[str, Any], overrides: Sequence[str], workers: int) -> None:
    """Lower run.threads of one run likewise."""
    if workers > 1 and not any(o.startswith("run.threads=") for o in overrides):
        most = max(1, cores() // workers)
        config["run"]["threads"] = min(config["run"]["threads"], most)


def outcome_of(run: SweepRun, job: Job) -> Outcome:
    """What became of a run that was to be made, by its job."""
    return Outcome(run.number, run.words, run.name, *job.state())


def exit_code_of_sweep(ends: Sequence[Outcome]) -> int:
    """The exit code of a sweep with these outcomes: that of the worst of them."""
    there = {end.status for end in ends}
    if there == {"refused"}:
        return exit_codes.REFUSED
    if there - {*GOOD, *LATER}:
        return exit_codes.FAILED
    return exit_codes.PUT_OFF if there & set(LATER) else exit_codes.DONE


def print_table(ends: Sequence[Outcome], folder: Path, most: int = 30) -> None:
    """Print the outcomes of a sweep, and write them into its folder for other programs.

    Runs that are done, or were before, are in the closing table. most: so many others are listed,
    and of those that were skipped for a reason, if the sweep has no more runs than that.
    """
    counts = Counter(end.status for end in ends)
    summary = {
        "counts": dict(counts),
        "code": exit_code_of_sweep(ends),
        "runs": [end._asdict() for end in ends],
    }
    with suppress(OSError):
        write_json(folder / SWEEP_SUMMARY, summary)
    few = len(ends) <= most
    shown = [end for end in ends if end.status not in GOOD or (few and end.reason)]
    rows = Table(title=str(folder), title_justify="left", box=None)
    for column in ("#", "run", "status", "reason"):
        rows.add_column(column, overflow="fold")
    for end in shown[:most]:
        rows.add_row(str(end.number), end.words, end.status, end.reason or "")
    console = Console(soft_wrap=True, markup=False, highlight=False)
    if shown:
        console.print(rows)
    if len(shown) > most:
        console.print(f"... and {len(shown) - most} more in {folder / SWEEP_SUMMARY}")
    if not few:
        older = Counter(end.reason for end in ends if end.status == "skipped" and end.reason)
        for reason, count in older.items():
            console.print(f"{count} skipped: {reason}")
    words = ", ".join(f"{count} {status}" for status, count in counts.most_common())
    console.print(f"{len(ends)} runs: {words}")
    if counts["failed"] or counts["diverged"]:
        console.print("run.retry_failed=true tries failed and diverged ones again")
