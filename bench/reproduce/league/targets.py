"""The targets of a track: set by a closed form or a reference run, before any method is entered."""

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from bench.core.draw import generator
from bench.core.exact import measured_exactly
from bench.core.loop import Diverged, ignore, run
from bench.core.settings import BadSetting, build, unknown_setting
from bench.core.task import Context, Task
from bench.core.work import Goal
from bench.reproduce.league.digests import rules_of
from bench.reproduce.league.rules import (
    Entrant,
    Reference,
    Track,
    TrackTask,
    configured,
    entrant,
    own_tracks,
)
from bench.reproduce.league.space import first_line
from bench.reproduce.places import RESULTS, readable
from bench.reproduce.schema import StrictModel
from bench.runs import machine
from bench.runs.files import read_small, write_whole

FOLDER, FILE = "league", "targets.json"
LOOKS, SOLVED_LOOKS = 200, 20  # at a reference run; a look that solves a lower level is dear


class Target(StrictModel):
    """The metric at the start of a run, the least value that the reference found, and the value
    that is to be reached; all None in a track that compares values."""

    start: float | None = None
    best: float | None = None
    target: float | None = None


class TaskTargets(StrictModel):
    """The targets of a task. rules: the digest of the rules they are for. seeds: seed -> target;
    those of the trials begin with `rules.TRIED`."""

    rules: str
    seeds: Mapping[str, Target]


class Targets(StrictModel):
    """The targets of a track, by task."""

    track: str
    tasks: Mapping[str, TaskTargets]


def seeds_of(track: Track) -> list[int]:
    """The seeds of the trials, and those that are scored."""
    return [*track.tried, *range(track.seeds)]


def context_of(about: TrackTask, seed: int, data: Path) -> Context:
    """What a task of a track is built for."""
    return Context(seed=seed, dtype=getattr(torch, about.dtype), data_root=data)


def task_of(about: TrackTask, config: dict[str, Any], seed: int, data: Path) -> Task:
    """The task of a track by its checked configuration, as it is measured there. Raises BadSetting
    or OSError if it cannot be built, as where its data are not there."""
    task: Task = build(config, context_of(about, seed, data))
    if about.solved is None:
        return task
    try:
        return measured_exactly(task, **about.solved.model_dump())
    except BadSetting as error:
        raise BadSetting(f"conf/league: {about.task}: {error}; leave `solved` out") from None


def make_target(entered: Entrant, seed: int, data: Path) -> Target:
    """The target of a task at a seed; entered: the reference on this task. Raises BadSetting."""
    about = entered.track.tasks[entered.task]
    if entered.track.by == "value":
        return Target()
    config = configured(entered, seed, about.reference.set)
    task = task_of(about, config["task"], seed, data)
    with torch.no_grad():
        x, y = task.init(generator(seed, "init"))
        there = task.evaluate(x, y, 0)
        if about.metric not in there:
            where = f"conf/league: tasks.{entered.task}.metric"
            raise unknown_setting(where, about.metric, there, about.metric)
        goal = Goal(about.metric, None, about.higher)
        start = goal.of(there)
        looks = LOOKS if about.solved is None else SOLVED_LOOKS
        best = least(task, config, about.reference, goal, seed, looks)
    if not best < start:
        raise BadSetting(f"conf/league: tasks.{entered.task}: the reference ends at {best:g}")
    target = best + about.within * (start - best)
    return Target(start=start, best=best, target=target)


def least(
    task: Task, config: Mapping[str, Any], reference: Reference, goal: Goal, seed: int, looks: int
) -> float:
    """The least value of what is to become small that the reference knows, or finds in so many
    looks at its run."""
    if reference.value is not None:
        return reference.value
    if reference.optimum:
        assert task.report.optimum is not None
        x, y = (task.report.optimum[key] for key in "xy")
        return goal.of(task.evaluate(x, y, 0))
    found: list[float] = []
    every = max(1, reference.rounds // looks)
    try:
        run(
            task,
            build(config["algorithm"]),
            seed=seed,
            steps=reference.rounds,
            every=every,
            on_row=lambda row: found.append(goal.of(row)),
        )
    except Diverged as error:
        raise BadSetting(f"conf/league: the reference {reference.method}: {error}") from None
    return min(found)


def reference_of(track: Track, name: str, task: str) -> Entrant:
    """The reference of a task; any method that stands in for none is not run."""
    method = track.tasks[task].reference.method or track.methods[0]
    return entrant(track, name, task, method, tuned=False)


def make_targets(
    track: Track,
    name: str,
    data: Path,
    old: Targets | None = None,
    keep: Callable[[Targets], object] = ignore,
) -> Targets:
    """The targets of all tasks; those that are for today's rules are kept. Raises BadSetting.

    keep: is given the targets that are there after each task that is made.
    """
    machine.settle(torch.device("cpu"), threads=1)
    tasks = {} if old is None else dict(old.tasks)
    for task in track.tasks:
        entered = reference_of(track, name, task)
        rules = rules_of(entered)
        if task not in tasks or tasks[task].rules != rules:
            seeds = {str(seed): make_target(entered, seed, data) for seed in seeds_of(track)}
            tasks[task] = TaskTargets(rules=rules, seeds=seeds)
            keep(in_order(track, name, tasks))
    return in_order(track, name, tasks)


def in_order(track: Track, name: str, tasks: Mapping[str, TaskTargets]) -> Targets:
    """The targets of a track's tasks that are there, in its order."""
    return Targets(track=name, tasks={task: tasks[task] for task in track.tasks if task in tasks})


def command_of(track: str, folder: Path, results: Path) -> str:
    """The command that sets the targets of a track in these folders of tracks and of records."""
    places = {"--results": (results, RESULTS), "--tracks": (folder, own_tracks())}
    other = [
        f"{name} {shlex.quote(str(place))}" for name, (place, own) in places.items() if place != own
    ]
    return " ".join([f"reproduce league targets --track {track}", *other])


def targets_file(track: str, results: Path) -> Path:
    """The file of a track's targets, to be written."""
    return results / FOLDER / track / FILE


def read_targets(track: str, results: Path) -> Targets | None:
    """The targets of a track; None if there are none. Raises BadSetting if they are damaged."""
    file = readable(f"{FOLDER}/{track}/{FILE}", results)
    if not file.is_file():
        return None
    try:
        return Targets.model_validate_json(read_small(file))
    except (ValidationError, ValueError) as error:
        raise BadSetting(f"{file} is damaged ({first_line(error)}): remove it") from None


def write_targets(found: Targets, results: Path) -> Path:
    """Write the targets of a track; gives the file's path."""
    file = targets_file(found.track, results)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, found.model_dump_json(indent=1) + "\n")
    return file
