"""What the league keeps of a method: results/league/<track>/<method>.json, its record there."""

import math
import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import torch
from pydantic import ValidationError

from bench import about
from bench.core.settings import BadSetting
from bench.reproduce.league.digests import method_digest, method_digests
from bench.reproduce.league.rules import Entrant, Track, own_tracks
from bench.reproduce.league.space import first_line
from bench.reproduce.league.targets import FILE, FOLDER, Targets, TaskTargets
from bench.reproduce.league.trials import Progress, Row, Status, cases
from bench.reproduce.places import CLONED, PACKAGED, RESULTS
from bench.reproduce.schema import StrictModel
from bench.runs.environment import processor
from bench.runs.files import read_small, write_whole
from bench.runs.name import hash_of

MOST_BYTES = 20_000_000


class Trials(StrictModel):
    """The trials of a method on a task, in their order: what became of each, and what it took.

    status: of the run on the last seed that was tried. work: what is compared in the track, of
    those that reached the target on all tuning seeds (trials.Trial.work). reasons: of those that
    have one, each once.
    """

    status: Sequence[Status]
    work: Sequence[float | None]
    reasons: Sequence[str]


class TaskEntry(StrictModel):
    """A method on a task. rules: the digest of the rules and targets that its runs are for.

    chosen: the number of the best trial. runs: the scored ones, by seed. memory_mb: the most that
    its runs took beyond an idle process; None: not measured.
    """

    rules: str
    trials: Trials
    chosen: int
    runs: Sequence[Row]
    memory_mb: float | None


class Entry(StrictModel):
    """A method's entry in a track.

    digest: of the method as it was entered, as in `digests`. package: the one that it is from;
    None: this suite. first_order: it promises to take no second derivative. command: makes the
    entry again. made, commit, torch: when and with what the record was written. processor: of its
    runs, now or earlier: several where tasks were entered later.
    """

    track: str
    method: str
    digest: str
    package: str | None
    first_order: bool
    command: str
    made: str
    commit: str | None
    torch: str
    processor: str
    tasks: Mapping[str, TaskEntry]


class RunCount(NamedTuple):
    """How many runs of an entry are there, and how many are asked for."""

    done: int
    asked: int


class Failures(NamedTuple):
    """How many runs raised or were killed, and why.

    reasons: that of the first scored run which did. An entry has the reasons of all trials
    together, so that all of them are given where only trials failed.
    """

    number: int
    reasons: str


def count_runs(entered: Entrant, targets: TaskTargets, progress: Progress) -> RunCount:
    """How many runs of a method on a task are there, and how many are asked for at most: those of
    a trial that has missed the target count as made."""
    trials, scored = cases(entered, targets, progress.rows)
    track = entered.track
    tried = sum(len(trial.rows) if trial.waiting else track.tuning_seeds for trial in trials)
    done = sum(case.key in progress.rows for case in scored)
    return RunCount(tried + done, track.trials * track.tuning_seeds + track.seeds)


def task_entry(entered: Entrant, targets: TaskTargets, progress: Progress) -> TaskEntry:
    """A method on a task, all of whose runs are there."""
    trials, scored = cases(entered, targets, progress.rows)
    rows = [trial.last for trial in trials]
    chosen = next(k for k, row in enumerate(rows) if dict(row.settings) == scored[0].settings)
    took = [trial.work(entered.track) for trial in trials]
    return TaskEntry(
        rules=digest_of(targets),
        trials=Trials(
            status=[row.status for row in rows],
            work=[work if math.isfinite(work) else None for work in took],
            reasons=list(dict.fromkeys(row.reason for row in rows if row.reason)),
        ),
        chosen=chosen,
        runs=[progress.rows[case.key] for case in scored],
        memory_mb=progress.memory_mb,
    )


def digest_of(targets: TaskTargets) -> str:
    """A digest of a task's rules and targets: entries with the same one can be compared."""
    return hash_of(targets.model_dump())


def failures_of(found: TaskEntry) -> Failures:
    """The runs of a method on a task that raised or were killed, trials included."""
    bad = ("failed", "killed")
    own = [row.reason for row in found.runs if row.status in bad]
    number = len(own) + sum(status in bad for status in found.trials.status)
    return Failures(number, "; ".join(map(str, own[:1] or found.trials.reasons)))


def make_entry(
    entered: Entrant, first_order: bool, tasks: Mapping[str, TaskEntry], folder: Path
) -> Entry:
    """The record of an entry, with what it was made by.

    entered: the method on any of the tasks. folder: that of the track's yaml.
    """
    commit = about.commit()
    where = "" if folder == own_tracks() else f" --tracks {shlex.quote(str(folder))}"
    return Entry(
        track=entered.name,
        method=entered.method,
        digest=method_digest(entered),
        package=entered.package,
        first_order=first_order,
        command=f"reproduce league run --track {entered.name} --method {entered.method}{where}",
        made=datetime.now(UTC).date().isoformat(),
        commit=None if commit is None else commit["commit"],
        torch=torch.__version__,
        processor=processor(),
        tasks=tasks,
    )


def write_entry(found: Entry, results: Path) -> Path:
    """Write the record of an entry; gives the file's path."""
    file = results / FOLDER / found.track / f"{found.method}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, found.model_dump_json(indent=1, exclude_defaults=True) + "\n")
    return file


def read_entries(track: str, results: Path) -> list[Entry]:
    """The records of all entries in a track, by name; raises BadSetting for a damaged one.

    Where `results` is the default these are the project's own, and those in `results`, which count
    where both have a method.
    """
    folders = [results / FOLDER / track]
    if results == RESULTS:
        own = (place / FOLDER / track for place in (PACKAGED, CLONED))
        folders = [*[place for place in own if place.is_dir()][:1], *folders]
    files = {file.name: file for folder in folders for file in folder.glob("*.json")}
    found = []
    for name, file in sorted(files.items()):
        if name == FILE:
            continue
        try:
            found.append(Entry.model_validate_json(read_small(file, MOST_BYTES)))
        except (ValidationError, ValueError) as error:
            raise BadSetting(f"{file} is damaged ({first_line(error)}): remove it") from None
    return found


def is_complete(entry: Entry, track: Track, targets: Targets) -> bool:
    """Whether an entry has every task of the track, by today's rules and targets."""
    return len(todays(entry, track, targets)) == len(track.tasks)


def todays(entry: Entry, track: Track, targets: Targets) -> dict[str, TaskEntry]:
    """The tasks of an entry whose rules and targets are those of today."""
    return {
        name: found
        for name, found in entry.tasks.items()
        if name in track.tasks and name in targets.tasks
        if found.rules == digest_of(targets.tasks[name]) and is_whole(found, track)
    }


def is_whole(found: TaskEntry, track: Track) -> bool:
    """Whether a method on a task has as many trials and scored runs as the track asks for."""
    trials = found.trials
    return len(found.runs) == track.seeds and (
        len(trials.work) == len(trials.status) == track.trials > found.chosen >= 0
    )


def outdated_methods(entries: Sequence[Entry], name: str, track: Track) -> set[str]:
    """The methods whose records are of another version of them than that of today.

    A method's code, its settings or what is searched has changed, or it is gone. The record of a
    method of a package that is not installed is taken as it is.
    """
    today = method_digests(track, name, {entry.method for entry in entries})
    unknown = {entry.method for entry in entries if entry.package is not None} - set(today)
    return {
        entry.method
        for entry in entries
        if entry.method not in unknown and entry.digest != today.get(entry.method)
    }
