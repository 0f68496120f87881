"""Takes the steps of a run that is open, or of several together, and writes their folders."""

import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Protocol

import torch

from bench.compiled.symbols import At, NoGraph
from bench.core.algorithm import Algorithm
from bench.core.limits import Limits
from bench.core.loop import (
    Diverged,
    Standing,
    TakenTogether,
    rounds,
    run_together,
    take_for_one,
    take_plainly,
)
from bench.core.settings import BadSetting, reason_of
from bench.core.task import Task
from bench.runs import machine, stop
from bench.runs.environment import differences, environment_of
from bench.runs.exit_codes import FAILED, INTERRUPTED, PUT_OFF
from bench.runs.folder import RunFolder
from bench.runs.loggers import check_ready
from bench.runs.machine import is_of_device
from bench.runs.name import meaning_of
from bench.runs.opening import OpenRun
from bench.runs.recording import Recording, Turns, close
from bench.runs.source import differing_files, outside_versions, source

if TYPE_CHECKING:
    from bench.compiled.replayed import Replayed
    from bench.compiled.traced import Compiled, Form


class Steps(Protocol):
    """How runs that are driven together take their steps."""

    @property
    def compile_seconds(self) -> float:
        """Seconds spent on recording and compiling so far; a run's clock does not count them."""

    @property
    def replayed(self) -> dict[str, Any] | None:
        """What `Replays.told` says; None where no answers are replayed."""

    def __call__(self, standings: dict[int, Standing], many: int) -> TakenTogether:
        """Take `many` steps of each run that still goes on, given by its number and standing."""


class OneByOne:
    """The steps of a single run, taken by the algorithm's own code or by compiled graphs; on a GPU
    the code has answers of its oracle replayed, unless run.compile=false."""

    def __init__(self, run: OpenRun):
        self.compiled = compiled_steps(run)
        plainly = take_plainly(run.task, run.algorithm, run.config["seed"])
        self.take = take_for_one(self.compiled or plainly)

    @property
    def compile_seconds(self) -> float:
        return self.compiled.seconds if self.compiled else 0.0

    @property
    def replayed(self) -> dict[str, Any] | None:
        return getattr(self.compiled, "replayed", None)  # only `Replayed` has such answers

    def __call__(self, standings: dict[int, Standing], many: int) -> TakenTogether:
        return self.take(standings, many)


def is_replayed(run: OpenRun) -> bool:
    """Whether the run's oracle may answer from captures."""
    asked = run.config["run"]["compile"] is not False
    return run.device.type == "cuda" and not run.compile and asked


def compiled_steps(run: OpenRun) -> "Compiled | Replayed | None":
    """What takes the run's steps by graphs; None where its code takes them."""
    seed = run.config["seed"]
    if run.compile:
        from bench.compiled.traced import Compiled  # slow to import

        return Compiled(run.task, run.algorithm, seed)
    if is_replayed(run):
        from bench.compiled.replayed import Replayed

        return Replayed(run.task, run.algorithm, seed)
    return None


def record_first_step(
    task: Task, algorithm: Algorithm, seed: int, start: Standing, setting: str, instead: str
) -> "Form":
    """The first step as a graph.

    Raises BadSetting if the step has none; its line says to write `instead` for `setting`.
    """
    from bench.compiled.traced import record  # slow to import

    with torch.no_grad():
        try:
            return record(task, algorithm, seed, start.state, At(start.step))
        except NoGraph as error:
            key = setting.partition("=")[0]
            raise BadSetting(
                f"{setting}: this algorithm's steps are no graph: {error}; write {key}={instead}"
            ) from None


def prepare_folder(run: OpenRun, lanes: Sequence[str] = ()) -> None:
    """Make the run's folder ready for rows, and write its settings and environment.

    lanes: the names of all runs that go side by side, this one included; empty for a run alone.
    """
    run.folder.prepare(run.config, -1 if run.fresh else run.start.step)
    more = ["bench.compiled.traced"] if run.compile or lanes else []
    more += ["bench.compiled.batched", "bench.compiled.joined"] if lanes else []
    if is_replayed(run):
        more += ["bench.compiled.replayed_lanes" if lanes else "bench.compiled.replayed"]
    environment = environment_of(
        run.device,
        torch.get_num_threads(),
        run.task.report.sources,
        outside_versions(run.config),
    )
    environment |= {
        "compile": run.compile,
        "lanes": list(lanes),
        "metric": run.task.metric,  # which the summary has only at the end
        "named_by": meaning_of(run.config),
        "source": source(run.config, *more),
    }
    if run.old:
        # which older files lack
        before = {
            "compile": False,
            "lanes": [],
            "metric": run.task.metric,
            "c_compiler": environment["c_compiler"],
            **run.old,
        }
        environment = continue_environment(run.folder, before, environment, run.start.step)
    run.folder.describe(environment)


def continue_environment(
    folder: RunFolder, old: dict[str, Any], environment: dict[str, Any], step: int
) -> dict[str, Any]:
    """The environment in which a run was begun, with one more entry in its list `continued`.

    The entry says at which step the run went on, and what differed then.
    """
    first = {key: value for key, value in old.items() if key != "continued"}
    changed = differences(first, environment)
    if changed:
        names = ", ".join(changed)
        print(f"bench: {folder.path} goes on under another {names}; noted there", file=sys.stderr)
    files = source_files(first), source_files(environment)
    if all(files) and (edited := differing_files(*files)):
        print(
            f"bench: {folder.path}: its steps up to {step} are of other code, as these have "
            f"changed since: {', '.join(edited)}; run.force=true makes them anew",
            file=sys.stderr,
        )
    return {**first, "continued": [*old.get("continued", []), {"step": step, "changed": changed}]}


def source_files(environment: dict[str, Any]) -> dict[str, str]:
    """The digests of the files that a run used, by path; empty if its environment has none."""
    return (environment.get("source") or {}).get("files") or {}


def open_recordings(runs: Sequence[OpenRun], shown: bool) -> list[Recording]:
    """A recording of each run. Where one cannot begin, those before it are closed, and no run has
    failed by that; where a setting is why, nothing is left of those that were to start."""
    found: list[Recording] = []
    turns = Turns(runs[0].config["run"]["checkpoint"])
    try:
        for run in runs:
            found.append(Recording(run, shown, turns))
    except BaseException as error:
        for recording in found:
            recording.logger.end({"status": "failed", "reason": "another lane could not begin"})
        close(found)
        for run in runs:
            if run.fresh and isinstance(error, BadSetting):
                run.folder.clear()
        raise
    return found


def drive(
    runs: Sequence[OpenRun],
    steps: Steps,
    shown: bool = False,
    report_end: Callable[[dict[str, Any]], None] | None = None,
    blame: bool = True,
) -> None:
    """Take runs, which are all at the same step, to their ends, and write their folders.

    steps: takes the steps of all of them. shown: whether each has a progress bar. report_end: gets
    the summary of each run that ends. Raises stop.Preempted or KeyboardInterrupt when all is saved.
    Any other error is raised; the folders of the runs that had not ended have it as their failure,
    unless it is of a setting, the machine or the way in which the steps are taken. One that comes
    while a run's last files are written is that run's alone, and is raised when the others have
    ended. blame: False if it may always be of that way, as of lanes that nobody asked for.
    """
    settings, names = runs[0].config["run"], [run.folder.name for run in runs]
    check_ready(runs[0].config["logger"])  # before a folder is touched
    for run in runs:
        prepare_folder(run, names if len(runs) > 1 else ())
    recordings = open_recordings(runs, shown)
    going = dict(enumerate(recordings))

    failures: list[Exception] = []

    def fail(recording: Recording, error: Exception) -> bool:
        excused = isinstance(error, (BadSetting, NoGraph, OSError)) or is_of_device(error)
        of_run = blame and not excused
        if of_run:
            folder = recording.run.folder
            folder.leave("failed", reason_of(error), traceback=traceback.format_exc())
        recording.code = FAILED
        recording.logger.end({"status": "failed", "reason": reason_of(error)})
        return of_run

    def end_run(k: int, end: Standing | Diverged) -> None:
        recording = going.pop(k)
        try:
            summary = recording.end(end, steps.compile_seconds, steps.replayed)
        except Exception as error:
            if not fail(recording, error):
                raise
            failures.append(error)
            return
        if report_end is not None:
            report_end(summary)

    def leave(status: str, reason: str, code: int, tell: bool = True) -> None:
        with stop.postpone():  # a second signal must not keep the others from being saved
            for recording in going.values():
                recording.leave(status, reason, code, tell)

    try:
        with ExitStack() as bars, stop.postpone(), stop.no_exit():
            for recording in recordings:
                if recording.screen:
                    bars.enter_context(recording.screen)
            stop.raise_if_asked()
            limits = Limits(*(settings[key] for key in Limits._fields))
            asking = {
                k: rounds(
                    run.task,
                    run.start,
                    run.fresh,
                    settings["steps"],
                    settings["every"],
                    limits,
                    run.until,
                    recordings[k].add_row,
                    recordings[k].note_standing,
                )
                for k, run in enumerate(runs)
            }
            run_together(asking, steps, machine.clock(runs[0].device), end_run, stop.raise_if_asked)
        if failures:
            raise failures[0]
    except KeyboardInterrupt:
        leave("interrupted", "stopped", INTERRUPTED)
        raise
    except stop.Preempted as signal:
        # who wants a run to stop says so itself
        tell = not isinstance(signal, stop.Unwanted)
        leave("preempted", f"stopped by {signal.name}", PUT_OFF, tell)
        raise
    except Exception as error:
        for recording in going.values():
            fail(recording, error)
        raise
    finally:
        close(recordings)
