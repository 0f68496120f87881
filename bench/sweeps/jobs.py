"""Runs as jobs, which any process can make; files tell afterwards what became of each run.

`bench -m` and `reproduce run` hand their jobs to the same launchers (bench.sweeps.launchers). A
launcher returns nothing: what became of a run is in its folder. If the run did not get as far as
that, for example because it was refused, the job's note has it.
"""

import gc
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from bench.core.settings import BadSetting, reason_of
from bench.runs import stop
from bench.runs.files import append_to
from bench.runs.folder import LOST, RunFolder, RunState
from bench.runs.importing import import_torch
from bench.runs.lock import Busy

# how the reason begins where a GPU has no memory left, for torch or for a library of CUDA's
LACKING = re.compile(r"OutOfMemoryError|RuntimeError: CUDA error: \w+_STATUS_ALLOC_FAILED")


class Job(NamedTuple):
    """A run that is to be made, in some process, perhaps with others as lanes."""

    config: dict[str, Any]
    folder: RunFolder
    note: Path  # exists since the job began; has the status if the run folder does not
    apart: tuple[str, ...] = ()  # its choices on the command line that lanes must have in common
    others: tuple["Job", ...] = ()  # the jobs of the other lanes, if it is made with others
    if_faster: bool = False  # lanes that single runs would outrun are refused
    since: int = 0  # when the jobs were started, in ns on the clock of the file system
    log: Path | None = None  # gets the output of the process meanwhile; None: it is not redirected
    own_process: bool = False  # its process must have made no other run: memory is measured
    # asked between chunks of steps why the run is to stop; None: it goes on (bench.sweeps.pruning)
    watch: Callable[[RunFolder], str | None] | None = None

    @property
    def has_begun(self) -> bool:
        """Whether some process has begun the job."""
        return self.note.exists()

    @property
    def all(self) -> tuple["Job", ...]:
        """The job and those of the other lanes."""
        return (self, *self.others)

    def with_start(self, since: int) -> "Job":
        """The job, and those of the other lanes, with the time at which the jobs were started."""
        others = tuple(other._replace(since=since) for other in self.others)
        return self._replace(since=since, others=others)

    def write_note(self, status: str, reason: str) -> None:
        """Note what became of the run, where its folder does not tell."""
        with suppress(OSError):
            self.note.write_text(json.dumps({"status": status, "reason": reason}))

    def read_note(self) -> RunState | None:
        """What the note says; None if it is empty, and the folder tells."""
        try:
            found = json.loads(self.note.read_text() or "{}")
            return RunState(found["status"], found["reason"]) if found else None
        except (OSError, ValueError, KeyError, TypeError):  # it is half written, or another's
            return None

    @property
    def is_pruned(self) -> bool:
        """Whether the run was stopped because a search wants it no more."""
        said = self.read_note()
        return said is not None and said.status == "pruned"

    @property
    def lacks_memory(self) -> bool:
        """Whether a run of it found no memory on the GPU."""
        notes = [each.read_note() for each in self.all]
        return any(said and LACKING.match(said.reason or "") for said in notes)

    def state(self) -> RunState:
        """What became of the run, by the note or else by the folder."""
        said = self.read_note()
        if said is not None:
            return said
        state = state_of(self.folder)
        if state.status not in ("lost", "missing") and not self.has_old_news(state):
            return state
        if self.has_begun:
            return LOST
        return RunState("interrupted", "not begun")

    def has_old_news(self, state: RunState) -> bool:
        """Whether a state is what an earlier attempt left: this one was to start the run again, or
        has begun to go on with it, and has not taken away what the one before had left."""
        run = self.config["run"]
        again = state.status in ("failed", "diverged") and run.get("retry_failed", False)
        goes_on = self.has_begun and state.status in ("preempted", "interrupted")
        old = run["force"] or again or goes_on
        return old and self.folder.was_left_before(self.since)


def make_job(job: Job) -> None:
    """Make the job's run, or those of all its lanes, in this process.

    A failure is noted and printed instead of raised, so that other jobs can be made. Raises
    stop.Preempted or KeyboardInterrupt when the run is saved.
    """
    try:
        with redirect_output(job.log):
            if job.others:
                make_lanes(job.all)
            else:
                make_one(job)
    except (OSError, BadSetting) as error:  # the log or a note cannot be written, as on a full disk
        print(f"bench: {reason_of(error)}", file=sys.stderr)
        for each in job.all:
            each.write_note("failed", reason_of(error))
    finally:
        # The functions of some tasks know their task, which knows them: their data would stay until
        # the collector comes by, which may be many runs later.
        gc.collect()


def make_one(job: Job) -> None:
    """Make the job's own run; its note stays empty if the folder tells how the run ended."""
    import_torch()
    from bench.runs.launch import perform  # slow to import, and a launcher does not need it

    if job.is_pruned:
        return  # it was begun again, as by SLURM: what is pruned stays so
    config = config_to_start(job)
    job.note.write_text("")
    try:
        with ExitStack() as watching:
            if job.watch is not None:
                watching.enter_context(stop.watched(partial(job.watch, job.folder)))
            perform(config, quiet=True)
    except stop.Unwanted as why:
        job.write_note("pruned", f"stopped by {why.name}")
    except Busy as error:
        job.write_note("busy", str(error))
    except BadSetting as error:
        print(f"bench: {error}", file=sys.stderr)
        job.write_note("refused", str(error))
    except OSError as error:
        print(f"bench: {reason_of(error)}", file=sys.stderr)
        job.write_note("failed", reason_of(error))
    except Exception as error:
        traceback.print_exc()
        job.write_note("failed", reason_of(error))


def make_lanes(jobs: Sequence[Job]) -> None:
    """Make the runs of several jobs side by side, as lanes."""
    import_torch()
    from bench.runs import lanes

    configs = [config_to_start(job) for job in jobs]
    for job in jobs:
        job.note.write_text("")

    def say(k: int, status: str, reason: str) -> None:
        if status == "refused" and not jobs[0].if_faster:
            print(f"bench: {reason}", file=sys.stderr)
        if status:
            jobs[k].write_note(status, reason)

    try:
        lanes.perform_lanes(configs, say, jobs[0].if_faster)
    except OSError as error:
        print(f"bench: {reason_of(error)}", file=sys.stderr)
        note_failure(jobs, error)
    except Exception as error:
        traceback.print_exc()
        note_failure(jobs, error)


def note_failure(jobs: Sequence[Job], error: Exception) -> None:
    """Note that these lanes have failed, for the jobs of which neither folder nor note tells.

    Where nobody asked for lanes they count as refused, so that each run is then made by itself.
    Lanes whose process has lost its GPU stay lost, so that another process makes them.
    """
    from bench.runs import machine  # slow to import, and a launcher does not need it

    if machine.has_lost_device():
        return
    status = "refused" if jobs[0].if_faster else "failed"
    for job in jobs:
        if job.state() == LOST:
            job.write_note(status, reason_of(error))


def config_to_start(job: Job) -> dict[str, Any]:
    """The job's configuration, in which run.force starts the run again only once.

    A job may begin several times: its SLURM job may be requeued, or its process killed. A run that
    was begun since the jobs were started goes on.
    """
    again = job.config["run"]["force"] and not job.folder.was_begun_since(job.since)
    return {**job.config, "run": {**job.config["run"], "force": again}}


def is_lost(job: Job) -> bool:
    """Whether the process of the job died: a run of the job, or of its other lanes, was begun, and
    nothing says how it ended or why it stopped."""
    return any(each.has_begun and each.state().status == "lost" for each in job.all)


def is_preempted(job: Job) -> bool:
    """Whether a signal has stopped a run of the job, or of its other lanes, and it was saved."""
    return any(
        state_of(each.folder).status == "preempted" and not each.is_pruned for each in job.all
    )


def state_of(folder: RunFolder) -> RunState:
    """What a folder says of its run: "failed", with the reason, if its files cannot be read."""
    try:
        return folder.state()
    except (BadSetting, OSError) as error:
        return RunState("failed", reason_of(error))


@contextmanager
def redirect_output(log: Path | None) -> Iterator[None]:
    """A context in which the output and errors of this process and its children go to a file.

    log: None redirects nothing.
    """
    if log is None:
        yield
        return
    with append_to(log) as file, restore_descriptor(1), restore_descriptor(2):
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        yield


@contextmanager
def restore_descriptor(number: int) -> Iterator[None]:
    """A context after which a file descriptor is open on the same file as before."""
    flush()
    before = os.dup(number)
    try:
        yield
    finally:
        flush()
        os.dup2(before, number)
        os.close(before)


def flush() -> None:
    """Write out what Python has buffered of standard output and error."""
    sys.stdout.flush()
    sys.stderr.flush()
