"""Takes a composed configuration, checks every setting, and brings the run to its end."""

import hashlib
import sys
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import Field

from bench.compiled.symbols import CannotCompile, NoGraph
from bench.core.algorithm import Algorithm
from bench.core.resolvers import refusal
from bench.core.settings import (
    BadSetting,
    Count,
    Finite,
    Natural,
    NonNegative,
    Positive,
    check_settings,
    expand,
    reason_of,
    validate,
)
from bench.core.task import Task
from bench.runs import stop
from bench.runs.better import better_values
from bench.runs.driver import OneByOne, drive, record_first_step
from bench.runs.exit_codes import FAILED
from bench.runs.folder import RunFolder, folder_of
from bench.runs.logger import Logger
from bench.runs.loggers import is_wandb, tell_unknown
from bench.runs.machine import is_of_device
from bench.runs.name import name
from bench.runs.opening import open_run
from bench.runs.recording import exit_code
from bench.runs.screen import show_summary
from bench.runs.source import COMPILED_MODULES, differing_files, source

TOP_SETTINGS: dict[str, Any] = {
    "algorithm": (Any, ...),
    "data": (Any, ...),
    "logger": (Any, ...),
    "run": (Any, ...),
    "seed": (Natural, ...),
    "task": (Any, ...),
    "vectorize": (tuple[str, ...] | None, None),
}
RUN_SETTINGS: dict[str, Any] = {
    "steps": (Count, ...),
    "every": (Count, ...),
    "seconds": (Positive | None, None),
    "cpu_seconds": (Positive | None, None),
    "calls": (Count | None, None),
    "samples": (Count | None, None),
    "until": (str | None, None),
    "target": (Finite | None, None),
    "device": (Literal["auto", "cpu", "cuda"], "auto"),
    "dtype": (Literal["float32", "float64"], "float32"),
    "threads": (Annotated[Count, Field(le=1024)], 2),
    "compile": (Literal["auto"] | bool, "auto"),
    "lanes_gb": (Positive, 4.0),
    "checkpoint": (NonNegative, 10.0),
    "force": (bool, False),
    "retry_failed": (bool, False),
    "root": (Annotated[str, Field(min_length=1)], "runs"),
}
DATA_SETTINGS: dict[str, Any] = {
    "root": (Annotated[str, Field(min_length=1)], ...),
    "download": (bool, False),
}


def launch(cfg: DictConfig) -> int:
    """Make, continue or show the run that a composed configuration describes.

    Gives the exit code. Raises BadSetting before any work, and whatever `perform` raises.
    """
    config = resolve(cfg)
    if config["vectorize"]:
        raise BadSetting(f"vectorize={config['vectorize']}: for sweeps: write bench -m ...")
    return perform(config)


def resolve(cfg: DictConfig) -> dict[str, Any]:
    """The complete configuration that `perform` takes, from one that Hydra composed.

    Raises BadSetting.
    """
    try:
        wrong = refusal(OmegaConf.to_container(cfg, resolve=False))
        if wrong is not None:
            raise BadSetting(wrong)
        return complete(OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True))
    except (OmegaConfBaseException, RecursionError) as error:
        raise BadSetting(" ".join(str(error).split())) from None


def complete(config: Any) -> dict[str, Any]:
    """A configuration with every setting checked, and defaults filled in; raises BadSetting."""
    given = validate(TOP_SETTINGS, config, "")
    return {
        "seed": given["seed"],
        "vectorize": None if given["vectorize"] is None else list(given["vectorize"]),
        "run": validate(RUN_SETTINGS, config["run"], "run"),
        "data": validate(DATA_SETTINGS, config["data"], "data"),
        "task": check_settings(config["task"], "task", Task, given=("context",)),
        "algorithm": check_settings(config["algorithm"], "algorithm", Algorithm),
        "logger": check_settings(config["logger"], "logger", Logger, given=("about",)),
    }


def place(config: dict[str, Any]) -> RunFolder:
    """The folder of the run that a complete configuration describes; it need not exist.

    Raises BadSetting if a part of its path is a link.
    """
    return folder_of(config["run"]["root"], name(config))


def perform(config: dict[str, Any], quiet: bool = False) -> int:
    """Make, continue or show the run that a complete configuration describes.

    quiet: print neither progress nor the end. Gives the exit code. Raises BadSetting before any
    work, and stop.Preempted or KeyboardInterrupt when the run is saved. For any other error of the
    run the folder has the reason and the traceback.
    """
    folder = place(config)
    before = earlier_end(config, folder)
    if before is not None:
        return before(quiet)
    with stop.heed(), folder.lock():
        before = earlier_end(config, folder)  # another process may just have made it
        if before is not None:
            return before(quiet)
        try:
            with stop.no_exit():
                return begin(config, folder, quiet)
        except (BadSetting, OSError):
            raise  # a setting or the machine is wrong, and the run itself did not fail
        except Exception as error:
            if not is_of_device(error):
                folder.leave("failed", reason_of(error), traceback=traceback.format_exc())
            raise


def earlier_end(config: dict[str, Any], folder: RunFolder) -> Callable[[bool], int] | None:
    """How to report a run that has ended before; None if the run is to begin or to go on.

    What is returned takes `quiet`, prints the report, and gives the exit code.
    """
    if config["run"]["force"]:
        return None
    summary = folder.summary()
    if summary is not None:
        if summary["status"] != "done" and config["run"]["retry_failed"]:
            return None

        def report_end(quiet: bool) -> int:
            if not quiet:
                remark = "this run is finished (run.force=true does it again)"
                if summary["status"] != "done":
                    remark = "this run diverged (run.retry_failed=true tries it again)"
                said = describe_change(config, folder) or f"nothing to do: {remark}"
                show_end(folder.shown_summary() or summary, folder, said)
                if is_wandb(config.get("logger", {})):
                    tell_unknown([folder.path])
            return exit_code(summary)

        return report_end
    left = folder.status_note()
    if left.get("status") != "failed" or config["run"]["retry_failed"]:
        return None

    def report_failure(quiet: bool) -> int:
        changed = changed_files(config, folder)
        since = f"; its code has changed since: {', '.join(changed)}" if changed else ""
        again = "run.retry_failed=true tries it again"
        print(f"bench: {folder.path} failed: {left['reason']}{since}; {again}", file=sys.stderr)
        return FAILED

    return report_failure


def describe_change(config: dict[str, Any], folder: RunFolder) -> str | None:
    """A line that names the files of a finished run's code or data that have changed since.

    None if no file has changed, or if the folder does not say which files the run used.
    """
    parts = (("code", changed_files(config, folder)), ("data", changed_data(config, folder)))
    for what, files in parts:
        if files:
            return (
                f"this run is finished, but its {what} has changed since: {', '.join(files)}; "
                "run.force=true makes it anew"
            )
    return None


def changed_files(config: dict[str, Any], folder: RunFolder) -> list[str]:
    """The source files of a run that have changed since it was made, by path.

    The list is empty too if the folder does not say which files the run used.
    """
    try:
        old = folder.environment().get("source")
    except BadSetting:
        return []
    if not old or "files" not in old:
        return []
    used = old["files"]
    more = [module for module in COMPILED_MODULES if f"{module.replace('.', '/')}.py" in used]
    return differing_files(used, source(config, *more)["files"])


def changed_data(config: dict[str, Any], folder: RunFolder) -> list[str]:
    """The files below data.root that a run read and that have changed since it was made.

    Data that are gone, or that are no single file, are not looked at.
    """
    try:
        known = folder.environment().get("data") or {}
        files = {name: expand(config["data"]["root"], "data.root") / name for name in known}
    except BadSetting:
        return []
    there = {name: file for name, file in files.items() if file.is_file()}
    return [name for name, file in there.items() if digest_of_file(file) != known[name]]


def digest_of_file(file: Path) -> str:
    """The SHA-256 of a file, which is read once in a process unless it changes."""
    about = file.stat()
    return digest_of_content(file, about.st_size, about.st_mtime_ns)


@cache
def digest_of_content(file: Path, size: int, time_ns: int) -> str:
    """The SHA-256 of a file of this size and time."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def begin(
    config: dict[str, Any], folder: RunFolder, quiet: bool, compiles: bool | None = None
) -> int:
    """Make or continue the run, in a folder that this process has locked; gives the exit code.

    compiles: see `open_run`.
    """
    run = open_run(config, folder, compiles=compiles)
    by_itself = config["run"]["compile"] == "auto"
    if run.compile and run.fresh:
        try:
            record_first_step(
                run.task, run.algorithm, config["seed"], run.start, "run.compile=true", "false"
            )
        except BadSetting:
            if not by_itself:
                raise
            run = run._replace(compile=False)
            if run.device.type == "cuda":  # so that the task's own questions are replayed too
                run = open_run(config, folder, compiles=False)
    if run.compile and by_itself and not quiet:
        many = config["run"]["steps"]
        print(f"bench: {many:,} steps are worth compiling; run.compile=false takes them as written")
    summaries: list[dict[str, Any]] = []
    try:
        drive([run], OneByOne(run), shown=not quiet, report_end=summaries.append)
    except NoGraph as error:
        if isinstance(error, CannotCompile) and not run.fresh:  # its steps so far are good ones
            raise BadSetting(
                f"run.compile: {folder.path} was begun compiled, and here {error}: the same "
                "command goes on where torch can, or run.force=true starts it again"
            ) from None
        if by_itself:  # from the start, as the run must be the same whenever it is interrupted
            folder.clear()
            return begin(config, folder, quiet, compiles=False)
        reason = f"run.compile=true: this algorithm's steps are no graph: {error}"
        folder.leave("failed", reason)
        raise BadSetting(f"{reason}; write run.compile=false run.force=true") from None
    if not quiet:
        show_end(summaries[0], folder)
    return exit_code(summaries[0])


def show_end(summary: dict[str, Any], folder: RunFolder, remark: str = "") -> None:
    """Print the end of a run, with the best that it measured; remark: a line below."""
    better = better_values(folder.name.split("/")[0])
    show_summary(summary, folder.path, remark, better, folder.best(better))
