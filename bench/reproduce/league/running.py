"""Enters methods in a track: makes the runs that are missing, and writes the records.

A method's runs on a task are made by a process of their own, so that their memory is known and a
method that the system kills takes nothing else with it.
"""

import math
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing import connection, get_context, parent_process
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Thread

from bench.core.algorithm import Algorithm
from bench.core.settings import BadSetting, build, reason_of
from bench.reproduce.league.digests import method_digest, rules_of
from bench.reproduce.league.entries import (
    Entry,
    RunCount,
    TaskEntry,
    count_runs,
    failures_of,
    is_complete,
    make_entry,
    outdated_methods,
    read_entries,
    task_entry,
    todays,
    write_entry,
)
from bench.reproduce.league.rules import (
    TRIED,
    Entrant,
    Track,
    configured,
    entrant,
)
from bench.reproduce.league.targets import Targets, command_of
from bench.reproduce.league.trials import (
    Progress,
    Row,
    Work,
    add_line,
    make_apart,
    make_missing,
    missing,
    read_progress,
    reason_killed,
    refuse,
)
from bench.runs import lock
from bench.runs.opening import of_kind

ROWS = ".league"  # below the folder of runs
GAVE_UP = 1  # the exit code of a process that raised, beside its runs, and has said what


@dataclass(frozen=True)
class League:
    """A track with its targets, and where its files are.

    folder: of the tracks' yamls. root: of runs. results: of records. data: of data sets. apart:
    each task's runs have a process of their own; False: they are made here, for tests.
    """

    name: str
    track: Track
    folder: Path
    targets: Targets
    root: Path
    results: Path
    data: Path
    apart: bool = True
    tell: Callable[[str], None] = field(default=print)

    def file(self, task: str, method: str) -> Path:
        """Give the file with the rows of a method on a task."""
        return self.root / ROWS / self.name / method / f"{task}.jsonl"

    def work(self, task: str, method: str) -> Work:
        """What a process needs to know to make a method's runs on a task."""
        file, targets = self.file(task, method), self.targets.tasks[task]
        digest = method_digest(self.entrant(task, method))
        return Work(self.name, self.folder, task, method, digest, targets, self.data, file)

    def entrant(self, task: str, method: str) -> Entrant:
        """A method on a task of the track; raises BadSetting."""
        return entrant(self.track, self.name, task, method)

    def progress(self, task: str, method: str) -> Progress:
        """What is there of a method on a task."""
        return read_progress(self.file(task, method))


def check_targets(league: League) -> None:
    """Raise BadSetting if the targets are not those of today's rules."""
    for task in league.track.tasks:
        kept = league.targets.tasks.get(task)
        today = rules_of(league.entrant(task, league.track.methods[0]))
        if kept is None or kept.rules != today:
            raise BadSetting(
                f"{league.name}: the targets of {task} are not those of today's rules: write "
                f"{command_of(league.name, league.folder, league.results)}"
            )


def recorded(league: League) -> set[str]:
    """The methods, as they are today, whose records are complete by today's rules."""
    complete = [
        entry
        for entry in read_entries(league.name, league.results)
        if is_complete(entry, league.track, league.targets)
    ]
    outdated = outdated_methods(complete, league.name, league.track)
    return {entry.method for entry in complete} - outdated


def standing(league: League, method: str) -> RunCount:
    """How many runs of a method's entry are there, and how many are asked for."""
    counts = [
        count_runs(
            league.entrant(task, method), league.targets.tasks[task], league.progress(task, method)
        )
        for task in league.track.tasks
    ]
    return RunCount(sum(c.done for c in counts), sum(c.asked for c in counts))


def enter(league: League, method: str, jobs: int = 1) -> Path:
    """Make the runs of a method that are missing, and write its record; gives the record's file.

    A record that lacks a task, such as one that the track was given later, is completed; one that
    is complete is made again, from the runs that are there and those that are not.

    jobs: tasks at a time. Raises BadSetting if the method is not there, its space is refused or
    its function gives no algorithm, and lock.Busy if another process is making its entry.
    """
    entrants = {task: league.entrant(task, method) for task in league.track.tasks}
    for task, entered in entrants.items():
        refuse(entered, league.targets.tasks[task])
    algorithm = built(next(iter(entrants.values())))
    with lock.hold(league.root / ROWS / league.name / method, "--runs "):
        old = lacking(league, method)
        kept = {} if old is None else todays(old, league.track, league.targets)
        asked = [task for task in entrants if task not in kept]
        waiting = [task for task in asked if has_missing(league, entrants[task], method)]
        for task in [task for task in asked if task not in waiting]:
            tell_end(league, task, method)
        if league.apart:
            make_together(league, waiting, method, jobs)
        else:
            for task in waiting:
                make_missing(league.work(task, method))
        found = entry_of(league, entrants, method, kept, algorithm.first_order)
        if old is not None and kept:
            both = dict.fromkeys([*old.processor.split(", "), found.processor])
            found = found.model_copy(update={"processor": ", ".join(both)})
        return write_entry(found, league.results)


def lacking(league: League, method: str) -> Entry | None:
    """A method's record that lacks tasks by today's rules; None if there is none, or if it is of
    another version of the method."""
    for entry in read_entries(league.name, league.results):
        if entry.method == method and not is_complete(entry, league.track, league.targets):
            outdated = outdated_methods([entry], league.name, league.track)
            return None if outdated else entry
    return None


def has_missing(league: League, entered: Entrant, method: str) -> bool:
    """Whether a run of a method on a task is still to be made."""
    targets = league.targets.tasks[entered.task]
    return next(missing(entered, targets, league.file(entered.task, method)), None) is not None


def make_together(league: League, tasks: list[str], method: str, jobs: int) -> None:
    """Make the runs of a method on these tasks, each task's in a process of its own."""
    waiting, going = list(tasks), dict[str, BaseProcess]()
    making = get_context("forkserver")  # a forked process of this one might lack torch's threads
    making.set_forkserver_preload(["bench.reproduce.cli", "bench.reproduce.league.trials"])
    try:
        while waiting or going:
            while waiting and len(going) < jobs:
                task = waiting.pop(0)
                going[task] = making.Process(target=work, args=(league.work(task, method),))
                going[task].start()
            connection.wait([process.sentinel for process in going.values()])
            for task, process in list(going.items()):
                if process.is_alive():
                    continue
                process.join()
                del going[task]
                if note_end(league, task, method, process.exitcode or 0):
                    waiting.append(task)
                else:
                    tell_end(league, task, method)
    finally:
        for process in going.values():
            process.terminate()
            process.join()


def work(task: Work) -> None:
    """The main function of a process that makes a method's runs on a task.

    It ends when the process of the command ends, however that ends: otherwise rows could still be
    written when the same command is given again.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl-C the command ends this process
    Thread(target=end_with_command, daemon=True).start()
    try:
        make_apart(task)
    except (BadSetting, OSError) as error:
        sys.exit(f"reproduce: {task.method} on {task.task}: {error}")


def end_with_command() -> None:
    """Wait until the process of the command has ended, and end this one."""
    command = parent_process()
    assert command is not None
    connection.wait([command.sentinel])
    os._exit(1)


def note_end(league: League, task: str, method: str, code: int) -> bool:
    """Write the row of the run with which its process was killed, or which ended the process.

    Gives False, and writes nothing, if all runs had ended. Raises BadSetting if the process gave
    up: then not the method is wrong, but what it was given.
    """
    if code == GAVE_UP:
        raise BadSetting(f"{method} on {task}: its process gave up, and said why above")
    entered, targets = league.entrant(task, method), league.targets.tasks[task]
    file = league.file(task, method)
    case = next(missing(entered, targets, file), None)
    if case is not None:
        row = Row(**case._asdict(), status="killed", reason=reason_killed(code))
        add_line(file, row.model_dump_json())
    return case is not None


def tell_end(league: League, task: str, method: str) -> None:
    """Tell what became of a method on a task, all of whose runs are there."""
    entered, targets = league.entrant(task, method), league.targets.tasks[task]
    found = task_entry(entered, targets, league.progress(task, method))
    tried = sum(work is not None for work in found.trials.work)
    scored = sum(math.isfinite(row.work(league.track.scored)) for row in found.runs)
    failures = failures_of(found)
    line = (
        f"{league.name} {method} {task}: {tried} of {len(found.trials.status)} trials and "
        f"{scored} of {len(found.runs)} scored runs came there"
    )
    if failures.number:
        were = "was" if failures.number == 1 else "were"
        line += f"; {failures.number} raised or {were} killed: {failures.reasons}"
    league.tell(line)


def entry_of(
    league: League,
    entrants: Mapping[str, Entrant],
    method: str,
    kept: Mapping[str, TaskEntry],
    first_order: bool,
) -> Entry:
    """The record of a method whose runs are all there, but for those of the tasks that are kept."""
    tasks = {
        task: kept[task]
        if task in kept
        else task_entry(entered, league.targets.tasks[task], league.progress(task, method))
        for task, entered in entrants.items()
    }
    return make_entry(next(iter(entrants.values())), first_order, tasks, league.folder)


def built(entered: Entrant) -> Algorithm:
    """A method with its own settings; raises BadSetting if its function raises or gives something
    else."""
    where = f"--method {entered.method}"
    try:
        made = build(configured(entered, TRIED, {})["algorithm"])
    except BadSetting as error:
        raise BadSetting(f"{where}: {error}") from None
    except (Exception, SystemExit) as error:
        raise BadSetting(f"{where}: its function raises {reason_of(error)}: repair it") from None
    return of_kind(Algorithm, made, where)


def enter_all(
    league: League, methods: list[str] | None = None, jobs: int = 1
) -> Iterator[Path | None]:
    """Enter these methods, one after the other, and give the file of each record as it is written.

    A method whose entry another process is making is left to that one, and None is given. methods:
    None enters those of the track whose record is not complete when their turn comes.
    """
    for method in methods or league.track.methods:
        if methods is None and method in recorded(league):
            continue
        try:
            yield enter(league, method, jobs)
        except lock.Busy as error:
            league.tell(str(error))
            yield None
