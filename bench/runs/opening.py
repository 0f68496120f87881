"""Opens runs: builds a task and an algorithm, at the run's start or at its checkpoint."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from bench.core.algorithm import Algorithm
from bench.core.draw import Draw
from bench.core.fit import check_inside, check_kind
from bench.core.limits import Limits
from bench.core.loop import Standing, first, row
from bench.core.settings import BadSetting, build, expand, unknown_setting
from bench.core.task import Context, Task
from bench.runs import checkpoint, machine
from bench.runs.better import better, better_values
from bench.runs.folder import RunFolder

T = TypeVar("T")
LONG = 50_000  # steps: a compiled one takes .1 ms less or better, and compiling takes 3 to 10 s
BuildTask = Callable[[dict[str, Any], Context], Task]  # from a task's settings and its context


class OpenRun(NamedTuple):
    """A run that is built, before its first step or at its checkpoint."""

    config: dict[str, Any]
    folder: RunFolder
    task: Task
    algorithm: Algorithm
    start: Standing
    old: dict[str, Any]  # the environment in which the run was begun; empty if it starts now
    until: tuple[str, float] | None  # the metric and value at which the run ends early
    device: torch.device
    compile: bool

    @property
    def threads(self) -> int:
        """The threads with which the run was begun: others would give other last bits."""
        return threads_of(self.config, self.old)

    @property
    def fresh(self) -> bool:
        """Whether no step has been taken."""
        return not self.old


def open_run(
    config: dict[str, Any],
    folder: RunFolder,
    build_task: BuildTask = build,
    compiles: bool | None = None,
) -> OpenRun:
    """Build the run, in this process, whose threads and device are set up for it.

    A run that goes on keeps the threads, device and compilation with which it was begun.
    build_task: gives the run's task. compiles: whether a run that starts is compiled; None: as its
    settings say. Nothing is written. Raises BadSetting.
    """
    old = earlier_environment(config, folder)
    device = settle_process(config, folder, old)
    return build_run(config, folder, device, old, build_task, compiles)


def earlier_environment(config: dict[str, Any], folder: RunFolder) -> dict[str, Any]:
    """The environment of a run that goes on; empty if the run starts."""
    if config["run"]["force"] or not folder.has_checkpoint():
        return {}
    return folder.environment({"device", "threads", "data"})


def settle_process(config: dict[str, Any], folder: RunFolder, old: dict[str, Any]) -> torch.device:
    """Set this process up for the run; gives the run's device. Raises BadSetting.

    old: the environment of a run that goes on; empty if the run starts.
    """
    device = machine.choose_device(config["run"]["device"])
    if old and old["device"] != device.type:
        raise BadSetting(
            f"run.device={config['run']['device']}: {folder.path} was begun on {old['device']}: "
            f"write run.device={old['device']}, or run.force=true to start again"
        )
    machine.settle(device, threads_of(config, old))
    return device


def threads_of(config: dict[str, Any], old: dict[str, Any]) -> int:
    """The threads of a run: those of its configuration, or those with which it was begun.

    old: the environment of a run that goes on; empty if the run starts.
    """
    return int(old["threads"]) if old else int(config["run"]["threads"])


def context_of(config: dict[str, Any], device: torch.device, compiles: bool = False) -> Context:
    """What the task is told of the run. compiles: whether its steps are compiled graphs."""
    return Context(
        seed=config["seed"],
        device=device,
        dtype=getattr(torch, config["run"]["dtype"]),
        data_root=expand(config["data"]["root"], "data.root"),
        download=config["data"]["download"],
        oracle=None if compiles else oracles_for(config["run"], device),
    )


def oracles_for(run: dict[str, Any], device: torch.device) -> Callable[[Task], Any] | None:
    """What a task's own questions are answered by, as `Context.oracle` has it: by captures on a
    GPU, unless run.compile=false. run: the run's settings."""
    if device.type != "cuda" or run["compile"] is False:
        return None
    from bench.compiled.replayed import oracles  # slow to import

    return oracles()


def build_run(
    config: dict[str, Any],
    folder: RunFolder,
    device: torch.device,
    old: dict[str, Any],
    build_task: BuildTask = build,
    compiles: bool | None = None,
) -> OpenRun:
    """Build the run at its start or checkpoint; nothing is written. Raises BadSetting.

    old: the environment of a run that goes on; empty if the run starts. build_task: gives the
    run's task. compiles: see `open_run`.
    """
    if old:
        compiles = bool(old.get("compile", False))  # a change would change the last bits
    elif compiles is None:
        compiles = is_compiled(config["run"])
    try:
        context = context_of(config, device, compiles)
        algorithm: Algorithm = of_kind(Algorithm, build(config["algorithm"]), "algorithm")
        task = of_kind(Task, build_task(config["task"], context), "task")
        start = first(task, algorithm, config["seed"])
        check_dtype(context, start.state.x, start.state.y)
        check_inside(task, start.state.x, start.state.y)
        check_kind(task, algorithm, start.state.x, start.state.y)
        if task.stream is not None:  # which refuses a step beyond its end
            Draw(task, config["seed"], config["run"]["steps"] - 1).g(None)
    except torch.AcceleratorError:  # "an illegal memory access" is no want of memory
        raise
    except (MemoryError, OverflowError, RuntimeError) as error:
        if device.type == "cuda" and machine.is_of_device(error):
            raise  # others may have the GPU's memory now
        if not isinstance(error, RuntimeError) or re.search("memory|overflow", str(error)):
            raise BadSetting(f"task, algorithm: too large for this machine: {error}") from None
        raise
    until = goal(config["run"], task, start, folder.name.partition("/")[0])
    if old:
        check_data(folder, old, task)
        start = checkpoint.load(folder.checkpoint, folder.name, start)
    return OpenRun(config, folder, task, algorithm, start, old, until, device, compiles)


def check_dtype(context: Context, x: Tensor, y: Tensor) -> None:
    """Raise BadSetting if x or y, of any shape, has another dtype than the run."""
    for name, start in zip("xy", (x, y)):
        if start.dtype != context.dtype:
            raise BadSetting(
                f"task: init gives {name} as {start.dtype}, and run.dtype is {context.dtype}: make "
                "it of context.dtype"
            )


def of_kind(kind: type[T], made: Any, name: str) -> T:
    """What a function of a task or a method has made; raises BadSetting if that is something else,
    as where its `return` is missing."""
    if not isinstance(made, kind):
        found = type(made).__name__
        raise BadSetting(f"{name}: its function returns {found}, not {kind.__name__}: end it so")
    return made


def is_compiled(run: dict[str, Any]) -> bool:
    """Whether a run that starts takes its steps as compiled graphs; run: its settings.

    auto: if it is sure to take LONG steps, so that the time to compile comes back.
    """
    if run["compile"] != "auto":
        return bool(run["compile"])
    ends_early = any(run[key] is not None for key in (*Limits._fields, "until"))
    return run["steps"] >= LONG and not ends_early


def check_data(folder: RunFolder, old: dict[str, Any], task: Task) -> None:
    """Raise BadSetting if a data file has changed since the run was begun.

    Older environments have the last part of a file's path alone.
    """
    sources = task.report.sources
    last_parts = {Path(file).name: checksum for file, checksum in sources.items()}
    for file, checksum in old["data"].items():
        now = sources.get(file, last_parts.get(file))
        if now != checksum:
            raise BadSetting(
                f"data.root: {file} has changed since {folder.path} was begun (SHA-256 "
                f"{str(checksum)[:12]}..., now {str(now)[:12]}...): restore it, or write "
                "run.force=true to start again"
            )


def goal(
    settings: dict[str, Any], task: Task, start: Standing, name: str
) -> tuple[str, float] | None:
    """The metric and value at which the run ends early; None if it has none.

    name: of the task's function. Raises BadSetting, also for a metric that is to be high: a run
    ends where its metric is at most the value.
    """
    until, target = settings["until"], settings["target"]
    if (until is None) != (target is None):
        raise BadSetting(f"run.until={until} run.target={target}: write both, or neither")
    if until is None:
        return None
    with torch.no_grad():
        there = row(task, start)
    if until not in there:
        raise unknown_setting("run.until", until, there, until)
    if better(name, until) == "higher":
        ways = better_values(name)
        losses = [metric for metric in there if ways.get(metric) == "lower"]
        raise BadSetting(
            f"run.until={until}: higher values are better, and a run ends where its metric is at "
            f"most run.target; write {' or '.join(losses) or 'a loss'}"
        )
    return until, target
