"""Writes the files of a run while it takes steps, and those with which it ends."""

import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from bench.core.loop import Diverged, Standing
from bench.core.settings import BadSetting, build
from bench.core.task import Task
from bench.core.view import Heatmap, Histogram
from bench.runs import checkpoint, machine, stop
from bench.runs.better import better_values
from bench.runs.environment import shares_time
from bench.runs.exit_codes import DONE, FAILED
from bench.runs.history import replace_nonfinite
from bench.runs.logger import About, Logger
from bench.runs.loggers import close_all
from bench.runs.opening import OpenRun
from bench.runs.screen import Screen


class Turns:
    """Says when runs that go side by side are saved: all of them at one step, so that they can go
    on together."""

    def __init__(self, wait: float):
        """wait: seconds between checkpoints; 0: each measurement has one."""
        self.wait, self.saved = wait, time.monotonic()
        self.step, self.due = -1, False  # what was said last, and of which step

    def is_due(self, step: int) -> bool:
        """Whether the runs, which have come to this step, are to be saved."""
        if step != self.step:
            self.step = step
            self.due = 0 < self.wait <= time.monotonic() - self.saved
        return self.due


class Recording:
    """Writes the files of a run while the run takes steps, and tells its logger and its bar.

    `close` comes last, for all runs that are driven together: loggers may wait for a host.
    """

    def __init__(self, run: OpenRun, shown: bool, turns: Turns | None = None):
        """shown: whether there is a progress bar, on a terminal. turns: of the runs beside it."""
        self.run, self.settings = run, run.config["run"]
        self.turns = turns or Turns(self.settings["checkpoint"])
        done = 0 if run.fresh else run.start.step
        steps, metric = self.settings["steps"], run.task.metric
        self.screen = None
        if shown:
            better = better_values(run.folder.name.split("/")[0]).get(metric)
            best = run.folder.best({metric: better}) if better else {}
            self.screen = Screen(
                run.folder.name, steps, done, metric, better=better, best=best.get(metric)
            )
        self.last: dict[str, Any] = {}
        self.standing = None if run.fresh else run.start
        self.code = FAILED  # with which the logger is closed, unless the run ends or stops
        rows = () if run.fresh else run.folder.each_row()
        environment: dict[str, Any] = {}
        with suppress(BadSetting):  # a logger then has less to tell
            environment = run.folder.environment()
        about = About(
            run.folder.name,
            run.config,
            run.folder.path,
            metric,
            rows,
            environment,
            alone=shown,
            anew=run.fresh and self.settings["force"],
        )
        self.history = run.folder.rows()
        try:
            self.logger: Logger = build(run.config["logger"], about)
        except BaseException:  # nobody else closes the file of a run that cannot begin
            self.history.close()
            raise
        # None: the run's times tell nothing, as part of it was made before, or as one of many lanes
        alone = run.fresh and not shares_time(environment)
        self.pace = machine.pace() if alone else None
        self.began = machine.usage() if run.fresh else None

    def add_row(self, values: dict[str, Any]) -> None:
        """Keep a new row."""
        self.last = values
        self.history.add(values)
        self.logger.row(values)
        if self.screen:
            self.screen.show_row(values)

    def save(self, s: Standing | None) -> None:
        """Write a checkpoint, unless x or y is not finite: then the last good one stays."""
        if s is not None and bool(s.state.x.isfinite().all() and s.state.y.isfinite().all()):
            self.history.sync()  # the checkpoint needs the rows of its steps, so they go first
            checkpoint.save(self.run.folder.checkpoint, self.run.folder.name, s)
        self.turns.saved = time.monotonic()

    def note_standing(self, s: Standing) -> None:
        """Take note of the standing between chunks of steps; save it if it is time to."""
        self.standing = s
        if self.screen:
            self.screen.show_step(s.step)
        at_row = s.step % self.settings["every"] == 0 or s.step == self.settings["steps"]
        if self.turns.is_due(s.step) or (self.turns.wait == 0 and at_row):
            self.save(s)

    def leave(self, status: str, reason: str, code: int, tell: bool = True) -> None:
        """Save a run that stops before its end, so that it can go on later.

        code: with which its logger is to be closed. tell: print a line that says so.
        """
        self.save(self.standing)
        where = self.standing.step if self.standing else 0
        self.run.folder.leave(status, reason, step=where)
        self.code = code
        self.logger.end({"status": status, "reason": reason})
        if tell:
            same = "the same command"
            if self.settings["force"]:  # which would start again
                same += " without run.force=true"
            print(f"bench: {reason} at step {where}; {same} goes on", file=sys.stderr)

    def others_cores(self) -> float | None:
        """How many cores were busy beside the run; None for a run that was made in parts."""
        return machine.others_cores(self.began, machine.usage()) if self.began else None

    def pace_ms(self) -> float | None:
        """The least that a fixed piece of work took, before the run and now; None if not timed."""
        return None if self.pace is None else min(self.pace, machine.pace())

    def end(
        self,
        end: Standing | Diverged,
        compile_seconds: float,
        replayed: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Write the files with which the run ends; gives its summary.

        compile_seconds, replayed: see `driver.Steps`.
        """
        run, task = self.run, self.run.task
        diverged = isinstance(end, Diverged)
        if not isinstance(end, Diverged):
            self.standing = end
            self.save(end)
        else:
            self.history.sync()  # whoever finds a summary counts on all rows
        self.history.close()
        environment = run.folder.environment()
        references = task.report.references
        summary = {
            "status": "diverged" if diverged else "done",
            "reason": str(end) if diverged else None,
            "name": run.folder.name,
            "seed": run.config["seed"],
            "metric": task.metric,
            "last": replace_nonfinite(self.last) if self.last else run.folder.last_row(),
            "references": {} if references is None or diverged else references(),
            "peak_memory_mb": machine.peak_memory_mb(run.device),
            "process": {
                **machine.process_of_run(),
                "others_cores": self.others_cores(),
                "pace_ms": self.pace_ms(),
            },
        }
        if environment.get("compile"):
            summary["compile_seconds"] = compile_seconds
        if replayed is not None:
            summary["replayed"] = replayed
        if shares_time(environment):
            summary["amortised"] = True
        seen = None if isinstance(end, Diverged) else view(task, end)
        with stop.postpone():
            # a process that is killed before the summary is there comes back here, so that the
            # logger gets all
            self.logger.end(summary)
            run.folder.end(summary, None if seen is None else asdict(seen))
            self.code = exit_code(summary)
        return summary


def close(recordings: Sequence[Recording]) -> None:
    """Close the files and the loggers of runs that are over, of which all else is written."""
    for recording in recordings:
        recording.history.close()
    close_all([(recording.logger, recording.code) for recording in recordings])


def view(task: Task, s: Standing) -> Histogram | Heatmap | None:
    """The picture of a run's end; None if the task has none."""
    if task.ledger is not None and s.table is not None:
        return task.ledger.view(s.table)
    picture = task.report.view
    return picture(s.state.x, s.state.y, s.step) if picture else None


def exit_code(summary: dict[str, Any]) -> int:
    """The exit code of a run that has ended."""
    return DONE if summary["status"] == "done" else FAILED
