"""The rules of a track, and the runs that they ask of a method: conf/league/*.yaml, docs/league.md.

A track names its tasks, the unit in which work is limited and compared, and its tuning budget. A
method's yaml says under `tuning` what is searched. Nothing else decides a run of the league.
"""

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import yaml
from hydra import compose, initialize_config_module
from hydra.errors import HydraException, MissingConfigException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import Field, ValidationError

from bench.core import exact
from bench.core.algorithm import Algorithm
from bench.core.packages import package_of
from bench.core.resolvers import refusal
from bench.core.settings import BadSetting, check_settings
from bench.core.task import Task
from bench.core.work import Unit
from bench.reproduce.league.space import (
    Chosen,
    Logarithmic,
    Scalar,
    Space,
    Steps,
    bounded,
    first_line,
    read_space,
    value_at,
)
from bench.reproduce.schema import StrictModel
from bench.solving.methods import UNREADABLE

TRIED = 1000  # the first seed of the trials; those that are scored are 0, 1, ...
# of a task in a track, and of its file of rows
TaskName = Annotated[str, Field(pattern=r"\A[A-Za-z0-9_][A-Za-z0-9_.-]*\z")]
MEMORY_GB = 4.0  # a run's limit, unless its track has another one
Precision = Literal["float32", "float64"]


class Reference(StrictModel):
    """What sets a task's target outside the competition.

    value: the least value of the metric, which is known. optimum: it is the metric at the task's
    own solution in closed form. method, set, rounds: it is the least value in a run of this method,
    which sees all data, over so many steps.
    """

    value: float | None = None
    optimum: bool = False
    method: str | None = None
    set: Mapping[str, Scalar] = {}
    rounds: int = 0


class Solved(StrictModel):
    """How a lower level is solved for the yardstick: the arguments of `exact.measured_exactly`."""

    tolerance: Annotated[float, Field(gt=0, lt=1)] = exact.TOLERANCE
    scaled: bool = False
    pairs: Annotated[int, Field(ge=1)] = exact.PAIRS


class TrackTask(StrictModel):
    """A task of a track.

    about: which problems it stands for, as the end of "If your problem has".

    task, set, data: the choice of conf/task, its settings and, where it has such, its data set.
    metric: what is to become small. solved: it is "objective", F(x) = f(x, y*(x)), with a lower
    level that is solved anew for the x of the run, on a task with a convex lower level that has no
    such metric itself. within: a run has reached the target when no more than this share of the
    way from the start to the reference is left. steps: the units of step sizes. most: the limit of
    work, if it is not the track's. higher: the metric is a share that is to become large, and one
    minus it is compared. dtype: of all numbers. batches: the sizes of minibatches that are searched
    here, if they are not the track's; none: those of the task.
    """

    about: str
    task: str
    set: Mapping[str, Any] = {}
    data: str | None = None
    metric: str
    solved: Solved | None = None
    within: Annotated[float, Field(gt=0, lt=1)] = 0.01
    reference: Reference = Reference()
    steps: Steps = Steps()
    most: int | None = None
    higher: bool = False
    dtype: Precision = "float64"
    batches: tuple[int, ...] | None = None


class Track(StrictModel):
    """A track: its tasks by name, its limits and its tuning budget.

    unit: of the work that is limited. by: what is compared, and chooses the best trial: the "work"
    to the target, in this unit, or the "value" of the metric when the limit is reached. batches:
    the sizes of minibatches that are searched; none: all the data. whole: every call has to see all
    the data, so that a method whose own yaml asks for minibatches is refused; this decides no run,
    and no digest has it. most, cpu_seconds, memory_gb: where a run ends. trials: the settings that
    are tried, on so many tuning_seeds; those that are chosen are scored on so many seeds. methods:
    those that are entered without being named.
    """

    title: str
    about: str
    unit: Unit
    by: Literal["work", "value"] = "work"
    batches: tuple[int, ...] = ()
    whole: bool = False
    most: Annotated[int, Field(ge=1)]
    cpu_seconds: Annotated[float, Field(gt=0)] = 60.0
    memory_gb: Annotated[float, Field(gt=0)] = MEMORY_GB
    trials: Annotated[int, Field(ge=1)] = 32
    tuning_seeds: Annotated[int, Field(ge=1, le=TRIED)] = 1
    seeds: Annotated[int, Field(ge=1)] = 10
    methods: tuple[str, ...]
    tasks: Mapping[TaskName, TrackTask]

    @property
    def scored(self) -> str:
        """What is compared: the unit of work, or "value"."""
        return self.unit if self.by == "work" else "value"

    @property
    def tried(self) -> range:
        """The seeds on which settings are tried."""
        return range(TRIED, TRIED + self.tuning_seeds)

    def batches_of(self, task: str) -> tuple[int, ...]:
        """The sizes of minibatches that are searched on this task; none: those of the task."""
        own = self.tasks[task].batches
        return self.batches if own is None else own

    def limit_of(self, task: str) -> int:
        """The work after which a run on this task ends."""
        return self.tasks[task].most or self.most


class Entrant(NamedTuple):
    """A method on a task of a track: both configurations as they were composed, and the space."""

    track: Track
    name: str  # of the track
    task: str
    method: str
    configuration: Any
    space: Space
    package: str | None


def own_tracks() -> Path:
    """The folder with this project's tracks."""
    return Path(str(files("conf"))) / "league"


def track_names(folder: Path) -> list[str]:
    """The tracks that a folder has; raises BadSetting if there is none."""
    if found := sorted(path.stem for path in folder.glob("*.yaml")):
        return found
    raise BadSetting(f"--tracks {folder}: it has no tracks: write a folder with a yaml for each")


@cache
def read_track(name: str, folder: Path) -> Track:
    """The track of this name; raises BadSetting for one that is not there or not right."""
    file = folder / f"{name}.yaml"
    if not file.is_file():
        known = ", ".join(track_names(folder))
        raise BadSetting(f"--track {name}: no such track; there is {known}")
    try:
        content = yaml.safe_load(file.read_text())
        wrong = refusal(content) if isinstance(content, dict) else None
        found = Track.model_validate_json(json.dumps(content))
    # TypeError: such as a date; ValueError: one that is none, or a node within itself
    except (ValidationError, TypeError, ValueError, RecursionError, *UNREADABLE) as error:
        raise BadSetting(f"conf/league/{file.name}: {first_line(error)}") from None
    if wrong:
        raise BadSetting(f"conf/league/{file.name}: {wrong}")
    return found


def entrant(track: Track, name: str, task: str, method: str, tuned: bool = True) -> Entrant:
    """A method on a task of a track; raises BadSetting if there is no such method.

    tuned: False for a reference, whose settings are given and which sees all data.
    """
    return entrant_of(compose_on(track, task, method), track, name, task, method, tuned)


def compose_on(track: Track, task: str, method: str | None) -> Any:
    """The configurations of a task of a track and of a method; None: of the task alone.

    Raises BadSetting.
    """
    about, most = track.tasks[task], track.limit_of(task)
    chosen = [f"+task={about.task}"]
    chosen += [f"+algorithm={method}"] if method else []
    chosen += [f"task/data={about.data}"] if about.data else []
    try:
        with initialize_config_module("conf", version_base="1.3"):
            found: Any = compose(overrides=[*chosen, "+seed=0", f"+run={{steps: {most}}}"])
    except (HydraException, *UNREADABLE) as error:
        own = f"algorithm/{method}"
        if isinstance(error, MissingConfigException) and error.missing_cfg_file == own:
            there = ", ".join(error.options or [])
            raise BadSetting(f"--method {method}: no such method; there is {there}") from None
        line = " ".join(str(error).split())
        whose = f"--method {method}, " if method else ""
        raise BadSetting(f"{whose}task {about.task}: {line}") from None
    OmegaConf.set_struct(found, False)
    for key, value in about.set.items():
        OmegaConf.update(found, f"task.{key}", value)
    return found


def entrant_of(
    found: Any, track: Track, name: str, task: str, method: str, tuned: bool = True
) -> Entrant:
    """A method on a task of a track, whose configurations were composed (`found`).

    Raises BadSetting if the method's yaml names no function, or if its search space is wrong.
    """
    plain: Any = OmegaConf.to_container(found.algorithm, resolve=False)
    if not isinstance(plain, dict) or not isinstance(plain.get("_target_"), str):
        raise BadSetting(
            f"conf/algorithm/{method}.yaml: it names no function: write "
            "_target_: package.module.function in it"
        )
    space: dict[str, Logarithmic | Chosen] = {}
    if tuned:
        space |= read_space(method, plain)
    if "batch" in plain:
        found.algorithm.batch = None
        batches = track.batches_of(task)
        if batches and tuned:
            space["batch"] = Chosen(choice=batches)
    package = package_of(plain["_target_"])
    return Entrant(
        track, name, task, method, found, space, None if package is None else package.name
    )


def configured(entered: Entrant, seed: int, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The task's and the method's configuration for a run, every setting checked.

    Raises BadSetting.
    """
    found = entered.configuration.copy()
    found.seed = seed
    for key, value in settings.items():
        OmegaConf.update(found, f"algorithm.{key}", value)
    try:
        plain: Any = OmegaConf.to_container(found, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise BadSetting(" ".join(str(error).split())) from None
    task = check_settings(plain["task"], "task", Task, given=("context",))
    algorithm = check_settings(plain["algorithm"], "algorithm", Algorithm)
    if entered.track.whole and algorithm.get("batch") is not None:
        raise BadSetting(
            f"algorithm.batch={algorithm['batch']}: every call of this track sees all the data: "
            "leave batch out of tuning, and write batch: null in the method's yaml"
        )
    return {"task": task, "algorithm": algorithm}


def trial_settings(entered: Entrant, number: int) -> dict[str, Scalar]:
    """The settings of trial `number` (from 0): a point of an additive sequence in the space.

    The sequence is that of Roberts (2018): multiples of the powers of 1 / phi, where phi is the
    root above 1 of phi^(d + 1) = phi + 1, in d dimensions. It fills the whole space evenly at any
    length, and a single setting less so: with three or four settings 32 trials leave out up to half
    of the sixteenths of one's range.
    """
    names = sorted(entered.space)
    phi = 2.0
    for _ in range(60):
        phi = (1 + phi) ** (1 / (len(names) + 1))
    units = entered.track.tasks[entered.task].steps
    shares = {name: (0.5 + (number + 1) * phi ** -(k + 1)) % 1 for k, name in enumerate(names)}
    found = {name: value_at(entered.space[name], shares[name], units) for name in names}
    for name, part in entered.space.items():
        if isinstance(part, Chosen) and part.at_most is not None:
            found[name] = value_at(bounded(part, found[part.at_most]), shares[name], units)
    return found
