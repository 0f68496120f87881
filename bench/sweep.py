"""`bench -m`: many runs, of which each is made, skipped or failed on its own.

What became of a run is read from its folder, never from who started it; a run that did not come
to a folder leaves a note in the sweep's.
"""

import copy
import json
import os
import shutil
import sys
import traceback
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.table import Table

from bench import codes, lock, record, stop
from bench.launch import ended_before, perform, place, reason_of, resolved, status_of
from bench.settings import BadSetting, build, checked

GOOD = ("done", "skipped")
LATER = ("preempted", "interrupted", "busy")  # no fault of theirs: the same command goes on


class Task(NamedTuple):
    """A run to be made, and where a word about it goes that has no run folder."""

    config: dict[str, Any]
    note: Path
    apart: tuple[str, ...] = ()  # its choices that keep it from being a lane beside others
    others: tuple["Task", ...] = ()  # that are made along with it, in lanes
    since: int = 0  # when its sweep began, as file times have it

    @property
    def begun(self) -> bool:
        return self.note.exists()

    def stamped(self, since: int) -> "Task":
        others = tuple(other._replace(since=since) for other in self.others)
        return self._replace(since=since, others=others)

    def say(self, status: str, reason: str) -> None:
        with suppress(OSError):
            self.note.write_text(json.dumps({"status": status, "reason": reason}))


class Job(NamedTuple):
    """A run of the sweep as planned; without a configuration it is refused."""

    number: int
    words: str  # its own overrides
    config: dict[str, Any] | None = None
    name: str | None = None
    folder: Path | None = None
    refused: str = ""


class Outcome(NamedTuple):
    number: int
    words: str
    name: str | None
    status: str  # done, skipped; failed, diverged, refused, lost; preempted, interrupted, busy
    reason: str | None


class Composer:
    """Configurations of a sweep. Hydra takes a tenth of a second for one: it composes each choice
    of groups once, and single values are put in after, by its own function."""

    def __init__(self, loader: Any, master: DictConfig):
        self.loader = loader
        self.name = master.hydra.job.config_name
        self.hydra = list(master.hydra.overrides.hydra)
        self.parser = OverridesParser.create(config_loader=loader)
        self.parsed: dict[str, Override] = {}
        self.bases: dict[tuple[str, ...], DictConfig] = {}

    def __call__(self, overrides: Sequence[str]) -> DictConfig:
        groups = tuple(o for o in overrides if self._is_group(o))
        if groups not in self.bases:
            base = self.loader.load_configuration(
                self.name, [*self.hydra, *groups], run_mode=RunMode.RUN
            )
            OmegaConf.set_struct(base, False)
            del base["hydra"]
            OmegaConf.set_struct(base, True)
            self.bases[groups] = base
        cfg = copy.deepcopy(self.bases[groups])
        values = [self._parse(o) for o in overrides if o not in groups]
        ConfigLoaderImpl._apply_overrides_to_config(values, cfg)
        return cfg

    def _is_group(self, override: str) -> bool:
        return bool(self.loader.repository.group_exists(self._parse(override).key_or_group))

    def _parse(self, override: str) -> Override:
        if override not in self.parsed:
            (self.parsed[override],) = self.parser.parse_overrides([override])
        return self.parsed[override]


def carry_out(compose: Composer, overrides: Sequence[Sequence[str]], master: DictConfig) -> int:
    """Make what is not there, tell what became of each; the exit code. Raises BadSetting."""
    from bench.launchers import Launcher

    settings = OmegaConf.to_container(master.hydra.launcher, resolve=True)
    launcher: Launcher = build(checked(settings, "hydra.launcher", Launcher))
    folder = Path(str(master.hydra.sweep.dir)).expanduser()
    jobs = planned(compose, overrides)
    if not jobs:
        raise BadSetting(
            f"the sweep is empty: {' '.join(master.hydra.overrides.task)} names no run"
        )
    told = dict(enumerate(map(before, jobs)))
    repeated(jobs, told)
    for number, outcome in told.items():
        if outcome is not None and outcome.status == "refused":
            print(f"bench: {jobs[number].words}: {outcome.reason}", file=sys.stderr)
    if all(outcome is not None and outcome.status == "refused" for outcome in told.values()):
        return codes.REFUSED

    if folder.exists():  # another sweep of this very second
        folder = folder.with_name(f"{folder.name}-{os.getpid()}")
    notes = folder / "notes"
    tasks = {
        job.number: Task(
            job.config,
            notes / f"{job.number}.json",
            tuple(
                o
                for o in overrides[job.number]
                if o.partition("=")[0] not in job.config["vectorize"]
            ),
        )
        for job in jobs
        if told[job.number] is None and job.config is not None
    }
    bundles = bundled(list(tasks.values()))
    try:
        notes.mkdir(parents=True)
    except OSError as error:
        raise BadSetting(
            f"run.root: cannot write {error.filename}: {error.strerror}; write run.root=... "
            "for another place"
        ) from None
    OmegaConf.save(master, folder / "multirun.yaml")
    since = (folder / "multirun.yaml").stat().st_mtime_ns
    share(jobs, overrides[0], launcher.workers)
    try:
        with stop.heeded():
            if tasks:
                launcher.carry_out([task.stamped(since) for task in bundles], folder)
    finally:
        ends = [told[job.number] or after(job, tasks[job.number]) for job in jobs]
        table(ends, folder)
        shutil.rmtree(notes, ignore_errors=True)
    return code(ends)


def planned(compose: Composer, overrides: Sequence[Sequence[str]]) -> list[Job]:
    """Every run with its name. A setting that is refused is its run's own affair."""
    first = overrides[0] if overrides else []
    varied = [k for k in range(len(first)) if len({own[k] for own in overrides}) > 1]
    jobs = []
    for number, own in enumerate(overrides):
        words = " ".join(own[k] for k in varied) or " ".join(own)
        cfg = compose(own)
        try:
            config = resolved(cfg)
            jobs.append(Job(number, words, config, *place(config)))
        except BadSetting as error:
            jobs.append(Job(number, words, refused=str(error)))
    return jobs


def before(job: Job) -> Outcome | None:
    """What is known of a run that is not to be started; None: it is."""
    about = (job.number, job.words, job.name)
    if job.config is None or job.folder is None:
        return Outcome(*about, "refused", job.refused)
    try:
        if ended_before(job.config, job.folder) is None:
            return None
    except BadSetting as error:
        return Outcome(*about, "refused", str(error))
    status, reason = found(job.folder)
    return Outcome(*about, "skipped" if status == "done" else status, reason)


def repeated(jobs: Sequence[Job], told: dict[int, Outcome | None]) -> None:
    """Two of a sweep may be the same run."""
    first: dict[str, int] = {}
    for job in jobs:
        if job.name is not None and told[job.number] is None:
            if job.name in first:
                same = f"the same run as #{first[job.name]}"
                told[job.number] = Outcome(job.number, job.words, job.name, "skipped", same)
            first.setdefault(job.name, job.number)


def share(jobs: Sequence[Job], overrides: Sequence[str], workers: int) -> None:
    """Divide the cores' threads among workers, unless the command line says run.threads."""
    if workers > 1 and not any(o.startswith("run.threads=") for o in overrides):
        most = max(1, len(os.sched_getaffinity(0)) // workers)
        for job in jobs:
            if job.config is not None:
                job.config["run"]["threads"] = min(job.config["run"]["threads"], most)


def bundled(tasks: Sequence[Task]) -> list[Task]:
    """Runs that go side by side as one; raises BadSetting."""
    if not any(task.config["vectorize"] for task in tasks):
        return list(tasks)
    from bench.lanes import together  # slow to import

    groups = together([task.config for task in tasks], [task.apart for task in tasks])
    return [
        tasks[first]._replace(others=tuple(tasks[k] for k in others)) for first, *others in groups
    ]


def side_by_side(tasks: Sequence[Task]) -> None:
    """As `one`, for runs in lanes."""
    from bench import lanes

    configs = []
    for task in tasks:
        again = task.config["run"]["force"] and not begun_since(task)
        configs.append({**task.config, "run": {**task.config["run"], "force": again}})
        task.note.write_text("")

    def say(k: int, status: str, reason: str) -> None:
        if status == "refused":
            print(f"bench: {reason}", file=sys.stderr)
        if status:
            tasks[k].say(status, reason)
        else:
            tasks[k].note.write_text("{}")  # its folder has the rest

    try:
        lanes.perform(configs, say)
    except OSError as error:
        print(f"bench: {reason_of(error)}", file=sys.stderr)
    except Exception:
        traceback.print_exc()


def one(task: Task) -> None:
    """One run of a sweep, in whatever process; its failure is told and stops no other.

    What is to start again does so once: begun since, in a job that was requeued or a process that
    was killed, it goes on."""
    if task.others:
        side_by_side([task._replace(others=()), *task.others])
        return
    again = task.config["run"]["force"] and not begun_since(task)
    task.note.write_text("")
    try:
        perform({**task.config, "run": {**task.config["run"], "force": again}}, brief=True)
    except lock.Busy as error:
        task.say("busy", str(error))
    except BadSetting as error:
        print(f"bench: {error}", file=sys.stderr)
        task.say("refused", str(error))
    except OSError as error:
        print(f"bench: {reason_of(error)}", file=sys.stderr)
        task.say("failed", reason_of(error))
    except Exception as error:
        traceback.print_exc()
        task.say("failed", reason_of(error))
    else:
        task.note.write_text("{}")  # its folder has the rest


def begun_since(task: Task) -> bool:
    """Whether what is in its folder is of this sweep: a run writes environment.json after it has
    emptied the folder and before anything else."""
    made = place(task.config)[1] / "environment.json"
    return made.is_file() and made.stat().st_mtime_ns >= task.since


def found(folder: Path) -> tuple[str, str | None]:
    """The status of a run and the reason for it, from its folder."""
    if (folder / "summary.json").is_file():
        summary = record.read_json(folder / "summary.json")
        return summary["status"], summary["reason"]
    status = status_of(folder)
    if status:
        return status["status"], status["reason"]
    if owner := lock.holder(folder):
        return "busy", f"being written by {owner}"
    return "lost", "its process ended without a word"


def lost(task: Task) -> bool:
    """Begun and not ended, nor stopped in good order; of runs in lanes, any of them."""
    if any(map(lost, task.others)):
        return True
    said = task.begun and task.note.stat().st_size > 0
    return task.begun and not said and found(place(task.config)[1])[0] == "lost"


def stopped(task: Task) -> bool:
    """By a signal, in good order; of runs in lanes, any of them."""
    return any(found(place(t.config)[1])[0] == "preempted" for t in (task, *task.others))


def after(job: Job, task: Task) -> Outcome:
    """What became of a run that was to be made."""
    assert job.folder is not None
    about = (job.number, job.words, job.name)
    try:
        said = json.loads(task.note.read_text() or "{}")
    except (OSError, ValueError):
        said = {}
    if said:
        return Outcome(*about, said["status"], said["reason"])
    status, reason = found(job.folder)
    if status == "lost" and not task.begun:
        return Outcome(*about, "interrupted", "not begun")
    return Outcome(*about, status, reason)


def code(ends: Sequence[Outcome]) -> int:
    there = {end.status for end in ends}
    if there == {"refused"}:
        return codes.REFUSED
    if there - {*GOOD, *LATER}:
        return codes.FAILED
    return codes.PUT_OFF if there & set(LATER) else codes.DONE


def table(ends: Sequence[Outcome], folder: Path, most: int = 30) -> None:
    """The end of a sweep on standard output, and sweep.summary.json for machines."""
    counts = Counter(end.status for end in ends)
    summary = {"counts": dict(counts), "code": code(ends), "runs": [end._asdict() for end in ends]}
    with suppress(OSError):
        record.write_json(folder / "sweep.summary.json", summary)
    shown = [end for end in ends if len(ends) <= most or end.status not in GOOD]
    rows = Table(title=str(folder), title_justify="left", box=None)
    for column in ("#", "run", "status", "reason"):
        rows.add_column(column, overflow="fold")
    for end in shown[:most]:
        rows.add_row(str(end.number), end.words, end.status, end.reason or "")
    console = Console(soft_wrap=True, markup=False, highlight=False)
    if shown:
        console.print(rows)
    if len(shown) > most:
        console.print(f"... and {len(shown) - most} more in {folder / 'sweep.summary.json'}")
    words = ", ".join(f"{count} {status}" for status, count in counts.most_common())
    console.print(f"{len(ends)} runs: {words}")
    if counts["failed"] or counts["diverged"]:
        console.print("run.retry_failed=true tries failed and diverged ones again")
