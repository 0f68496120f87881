"""Makes runs that differ only in seeds and numbers side by side, as lanes of one computation.

Each run has its own folder, counts and history, as if it had run alone.
"""

import copy
import json
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import fields
from typing import Any

import torch

from bench.compiled.batched import Apart, Lane, Side, TooLarge
from bench.compiled.joined import Answering, Joined, can_join
from bench.compiled.symbols import NoGraph
from bench.core.loop import Standing, TakenTogether
from bench.core.settings import BadSetting, build, current_spelling
from bench.core.task import Context, Task
from bench.runs import driver, environment, launch, lock, machine, opening, stop
from bench.runs.folder import RunFolder
from bench.runs.history import rows_to_keep
from bench.runs.opening import OpenRun


class Shrinking:
    """Takes the steps of several runs by a `Side`.

    When half of its lanes have ended, a new Side of the others takes its place, so that no time is
    spent on lanes that nobody needs.
    """

    def __init__(self, runs: Sequence[OpenRun], against: int = 0):
        """Record the first step; raises NoGraph. against: see `Side`."""
        self.runs, self.lanes = runs, lanes_of(runs)
        self.last = {k: run.start for k, run in enumerate(runs)}
        self.before = 0.0  # seconds that recording and compiling took for earlier Sides
        with torch.no_grad():
            self._begin(list(self.last), against)
            begin = time.perf_counter()
            if not is_at_end(runs[0]):
                self.side.prepare([run.start for run in runs])
            self.before = time.perf_counter() - begin - self.side.off[0]

    @property
    def compile_seconds(self) -> float:
        """Seconds spent on recording and compiling so far."""
        return self.before + self.side.off[0]

    @property
    def replayed(self) -> dict[str, Any] | None:
        """What the answers of the lanes that still go on say; see `driver.Steps`."""
        return self.side.answer.told() if isinstance(self.side, Joined) else None

    def __call__(self, standings: dict[int, Standing], many: int) -> TakenTogether:
        if len(standings) <= len(self.inside) // 2:
            self.before += self.side.off[0]
            self._begin(list(standings))
        self.last |= standings
        step, off = next(iter(standings.values())).step, self.side.off
        found = self.side([self.last[k]._replace(step=step) for k in self.inside], many)
        after = {k: s for k, s in zip(self.inside, found, strict=True) if k in standings}
        return TakenTogether(after, self.side.off[0] - off[0], self.side.off[1] - off[1])

    def _begin(self, inside: list[int], against: int = 0) -> None:
        """Go on with a Side of the runs with these numbers."""
        config, most = self.runs[0].config, self.runs[0].config["run"]["lanes_gb"] * 2**30
        lanes = [self.lanes[k] for k in inside]
        self.inside = inside
        self.side: Side | Joined
        if are_joined(self.runs):
            end = self.runs[0].config["run"]["steps"]
            self.side = Joined(lanes, against, self._answering(), end)
        else:
            self.side = Side(lanes, config["algorithm"], self.runs[0].compile, most, against)

    def _answering(self) -> Answering | None:
        """Who answers what lanes ask together; on a GPU from captures, unless run.compile=false."""
        run = self.runs[0]
        if not driver.is_replayed(run):
            return None
        from bench.compiled.replayed_lanes import LaneReplays

        return LaneReplays(run.task)


def rivals(run: OpenRun, cores: int) -> int:
    """How many processes could take the steps of lanes one by one, side by side: as many as there
    are cores for them, but one on a GPU, which they would share."""
    return cores if run.device.type == "cpu" else min(cores, 1)


def is_at_end(run: OpenRun) -> bool:
    """Whether the run has taken all its steps, and only has to be told that it has ended."""
    return bool(run.start.step >= run.config["run"]["steps"])


def are_joined(runs: Sequence[OpenRun]) -> bool:
    """Whether what the runs' oracles are asked for is worked out together, which takes no graph."""
    alike = all(run.config["task"] == runs[0].config["task"] for run in runs)
    return alike and not runs[0].compile and can_join(runs[0].task)


def group_lanes(
    configs: Sequence[dict[str, Any]], apart: Sequence[tuple[str, ...]]
) -> list[list[int]]:
    """The runs of a sweep in groups that can go side by side, each as a list of their numbers.

    The runs of a group differ only in the settings that `vectorize` names. If such a setting is
    the algorithm's, they may differ in all of the algorithm's floats, and in no other value of it.
    apart: the choices on the command line of each run that `vectorize` does not name; the runs of a
    group have the same. Raises BadSetting if a setting cannot be vectorised.
    """
    groups: dict[str, list[int]] = {}
    for k, config in enumerate(configs):
        alike = copy.deepcopy({key: config[key] for key in ("seed", "task", "algorithm", "run")})
        for key in config["vectorize"]:
            node, last = node_of(alike, key)
            if key.startswith("algorithm."):  # others may take its value: inner_lr: ${.lower.lr}
                alike["algorithm"] = without_numbers(alike["algorithm"])
            else:
                node[last] = None
        mark = [alike, apart[k], None if config["vectorize"] else k]
        groups.setdefault(json.dumps(mark, sort_keys=True), []).append(k)
    return list(groups.values())


def without_numbers(node: dict[str, Any]) -> dict[str, Any]:
    """A group of settings with the same word in place of every float."""
    plain = {k: without_numbers(v) if isinstance(v, dict) else v for k, v in node.items()}
    return {k: "a number" if isinstance(v, float) else v for k, v in plain.items()}


def numbers_of(node: dict[str, Any], before: str = "") -> dict[str, float]:
    """The floats among a group's settings, by path such as outer.lr.

    before: what each path begins with.
    """
    found: dict[str, float] = {}
    for key, value in node.items():
        if isinstance(value, dict):
            found |= numbers_of(value, f"{before}{key}.")
        elif isinstance(value, float):
            found[before + key] = value
    return found


def lanes_of(runs: Sequence[OpenRun]) -> list[Lane]:
    """The runs as lanes, each with those of the algorithm's floats in which the runs differ."""
    every = [numbers_of(run.config["algorithm"]) for run in runs]
    differ = [path for path in every[0] if len({numbers[path] for numbers in every}) > 1]
    return [
        Lane(run.task, run.algorithm, run.config["seed"], {path: own[path] for path in differ})
        for run, own in zip(runs, every, strict=True)
    ]


def node_of(config: dict[str, Any], key: str) -> tuple[dict[str, Any], str]:
    """The group that has the setting `key` to vectorise, and its name there; raises BadSetting."""
    *parents, last = key.split(".")
    node: Any = config
    for parent in parents:
        node = node.get(parent) if isinstance(node, dict) else None
    if not isinstance(node, dict) or last not in node:
        today = current_spelling(key, node if isinstance(node, dict) else ())
        hint = f"; write {today}" if today else ""
        raise BadSetting(f"vectorize={key}: there is no such setting here{hint}")
    if (parents[:1] not in (["algorithm"], ["task"]) and key != "seed") or last == "_target_":
        raise BadSetting(
            f"vectorize={key}: write seed, or settings of the algorithm or task; the others are "
            "the same in all lanes"
        )
    return node, last


def perform_lanes(
    configs: Sequence[dict[str, Any]],
    say: Callable[[int, str, str], None],
    if_faster: bool = False,
) -> None:
    """Make the runs of a group that `group_lanes` has formed.

    say(k, status, reason) is called once for each run: with "refused", with "busy" if another
    process writes the run's folder, or with "" if the folder tells how the run ended. if_faster:
    the runs are refused if as many processes as the cores allow would make them sooner. Raises
    stop.Preempted or KeyboardInterrupt when all is saved.
    """
    machine.allow_open_files()
    cores = environment.cores() // configs[0]["run"]["threads"] if if_faster else 0
    with stop.heed(), stop.no_exit(), ExitStack() as locks:
        runs: dict[int, OpenRun] = {}
        tasks = SharedTasks()
        for k, config in enumerate(configs):
            try:
                folder = launch.place(config)
                locks.enter_context(folder.lock())
                if launch.earlier_end(config, folder) is None:
                    runs[k] = open_lane(config, folder, tasks)
                    if if_faster and len(runs) == 2:
                        try_two(list(runs.values()))
                else:
                    say(k, "", "")
            except NoGraph as error:  # the tasks of the other runs need not be built
                for left in dict.fromkeys([*runs, *range(k, len(configs))]):
                    say(left, "refused", str(error))
                return
            except lock.Busy as error:
                say(k, "busy", str(error))
            except BadSetting as error:
                say(k, "refused", str(error))
        alike: dict[Any, list[int]] = {}
        for k, run in runs.items():
            alike.setdefault((run.start.step, run.compile, run.threads), []).append(k)
        waiting = [
            group
            for group in alike.values()
            if is_at_end(runs[group[0]])
            or are_joined([runs[k] for k in group])
            or has_graph(group, runs[group[0]], say)
        ]
        while waiting:
            going = {k: runs[k] for k in waiting.pop(0)}
            one = next(iter(going.values()))
            machine.settle(one.device, one.threads)  # those of the run opened last are set now
            try:
                drive_lanes(going, say, cores, blame=not if_faster)
            except (Apart, TooLarge) as error:
                runs |= {k: open_lane(run.config, run.folder, tasks) for k, run in going.items()}
                waiting[:0] = parts({k: runs[k] for k in going}, isinstance(error, Apart))
            except NoGraph as error:
                for k, run in going.items():
                    say(k, "refused", f"{vectorize_setting(run)}: {error}; write vectorize=[]")


def parts(going: dict[int, OpenRun], by_task: bool) -> list[list[int]]:
    """Smaller groups of runs that could not go on side by side; each is of runs at the same step.

    by_task: the runs of a group also have the same task. Where these rules leave all runs in one
    group, it is halved, because fewer lanes take less memory.
    """
    found: dict[Any, list[int]] = {}
    for k, run in going.items():
        found.setdefault((run.start.step, id(run.task) if by_task else None), []).append(k)
    if len(found) > 1:
        return list(found.values())
    rest, half = list(going), (len(going) + 1) // 2
    return [rest[:half], rest[half:]]


def drive_lanes(
    going: dict[int, OpenRun], say: Callable[[int, str, str], None], cores: int, blame: bool
) -> None:
    """Make the runs in `going` side by side; each that ends is told, and taken out of `going`.

    cores: see `rivals`. blame: see `driver.drive`. Raises NoGraph.
    """
    runs = list(going.values())
    numbers = {run.folder.name: k for k, run in going.items()}

    def report_end(summary: dict[str, Any]) -> None:
        k = numbers[summary["name"]]
        del going[k]
        say(k, "", "")

    # one that is left over is a single run, and its record says so
    alone = len(runs) == 1
    steps = driver.OneByOne(runs[0]) if alone else Shrinking(runs, rivals(runs[0], cores))
    driver.drive(runs, steps, report_end=report_end, blame=blame)


class SeedWatch(Context):
    """A context that notes whether the seed is asked for, until it is closed.

    From then on its seed raises NoGraph: lanes of other seeds share the task that was built with
    this context.
    """

    asked = closed = False

    def __getattribute__(self, name: str) -> Any:
        if name == "seed":
            if super().__getattribute__("closed"):
                raise NoGraph("its task asks for context.seed only after it is built")
            object.__setattr__(self, "asked", True)  # a context is frozen
        return super().__getattribute__(name)

    def close(self) -> None:
        """Have the seed raise NoGraph from now on."""
        object.__setattr__(self, "closed", True)


class SharedTasks:
    """Builds the tasks of lanes: one for all runs that have the same settings, and the same seed
    unless the task does not ask for the seed."""

    def __init__(self) -> None:
        self.built: dict[tuple[str, int | None], Task] = {}

    def __call__(self, settings: dict[str, Any], context: Context) -> Task:
        """The task with these settings; raises BadSetting."""
        words, seed = json.dumps(settings, sort_keys=True), context.seed
        for key in ((words, None), (words, seed)):
            if key in self.built:
                return self.built[key]
        watch = SeedWatch(**{each.name: getattr(context, each.name) for each in fields(context)})
        task: Task = build(settings, watch)
        if not watch.asked:
            watch.close()
        self.built[words, seed if watch.asked else None] = task
        return task


def open_lane(config: dict[str, Any], folder: RunFolder, tasks: SharedTasks) -> OpenRun:
    """Build the run; raises BadSetting, also for a history with which it cannot go on."""
    for key in ("seconds", "cpu_seconds"):
        if config["run"][key] is not None:
            raise BadSetting(
                f"run.{key}={config['run'][key]}: lanes share their time, so that none has a limit "
                "of its own; leave out vectorize"
            )
    run = opening.open_run(config, folder, tasks)
    if not run.fresh:
        rows_to_keep(folder.history_file, run.start.step, config["run"]["every"], tell=False)
    return run


def try_two(runs: Sequence[OpenRun]) -> None:
    """Raise NoGraph if two runs cannot go side by side, as data of their own are large."""
    one, other = runs
    own_data = one.task is not other.task and one.start.step == other.start.step
    if own_data and not are_joined(runs):  # joined lanes stack no data
        Shrinking(runs)


def vectorize_setting(run: OpenRun) -> str:
    """The setting `vectorize` as it is written on a command line."""
    return f"vectorize=[{','.join(run.config['vectorize'])}]"


def has_graph(group: list[int], run: OpenRun, say: Callable[[int, str, str], None]) -> bool:
    """Whether the step of `run`, the first one of a group, is a graph; if not, all are refused."""
    try:
        driver.record_first_step(
            run.task, run.algorithm, run.config["seed"], run.start, vectorize_setting(run), "[]"
        )
    except BadSetting as error:
        for k in group:
            say(k, "refused", str(error))
        return False
    return True
