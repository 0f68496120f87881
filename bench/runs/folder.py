"""The folder of a run and its files, whose names no other module knows.

    config.yaml       every setting, defaults included
    environment.json  packages, processor, threads, data and code, which may change the last bits
    history.jsonl     a row for each measurement
    checkpoint.pt     the state from which the run goes on
    status.json       why a run stopped before its end
    view.json         a picture of the end, where the task has one
    summary.json      how the run ended; it is written last
    lock              which process writes the folder now

The folder alone tells what became of a run, whichever process made it. Every file but the lock ends
with a digest, by which a change is noticed; older folders have none.
"""

import os
import shutil
import socket
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

from bench.core.settings import BadSetting
from bench.runs import lock, shapes
from bench.runs.better import Best, Better, best_of
from bench.runs.files import (
    NEW,
    damaged,
    read_json,
    read_yaml,
    write_sealed_json,
    write_sealed_yaml,
    write_whole,
)
from bench.runs.history import (
    EachRow,
    History,
    checked_rows,
    count_rows,
    read_rows,
    rows_at,
    rows_to_keep,
)

SUMMARY, STATUS, CHECKPOINT, VIEW = "summary.json", "status.json", "checkpoint.pt", "view.json"
HISTORY, ENVIRONMENT, CONFIG = "history.jsonl", "environment.json", "config.yaml"
# A run that starts again removes the files in this order. The summary is the first, so that a
# process that is killed meanwhile does not leave the folder of a run that seems to have ended.
FILES = (SUMMARY, STATUS, CHECKPOINT, VIEW, HISTORY, ENVIRONMENT, CONFIG)
HALF = tuple(f"{file}{NEW}" for file in FILES)  # what a kill leaves half written
WANDB = ("wandb", ".wandb")  # where W&B writes: into the second if it is there
DEPTH = 12  # of a run folder below the place where it is looked for
SWEEPS = ".sweeps"  # the folder of sweeps' own folders, beside the folders of runs
SWEEP_SUMMARY = "sweep.summary.json"  # how each run of a sweep ended, in the sweep's own folder


class RunState(NamedTuple):
    """What became of a run.

    status: "done" or "diverged" if the run has ended; "failed", "preempted" or "interrupted" if it
    stopped before its end; "busy" while a process writes the folder; "missing" if the run was never
    begun; "lost" if it was begun and its process died without writing why.
    reason: a few words about the status, where there is more to say.
    """

    status: str
    reason: str | None = None

    @property
    def has_ended(self) -> bool:
        """Whether the run took its last step, or diverged."""
        return self.status in ("done", "diverged")


LOST = RunState("lost", "its process ended without a word")


@dataclass(frozen=True)
class RunFolder:
    """The folder of the run `name` (task/algorithm/hash) below the folder `root`."""

    root: Path
    name: str

    @cached_property
    def path(self) -> Path:
        """The folder itself, which need not exist."""
        return self.root / self.name

    @property
    def checkpoint(self) -> Path:
        """The checkpoint's file, which need not exist."""
        return self.path / CHECKPOINT

    @property
    def history_file(self) -> Path:
        """The history's file, which need not exist."""
        return self.path / HISTORY

    @property
    def summary_file(self) -> Path:
        """The summary's file, which need not exist."""
        return self.path / SUMMARY

    def state(self) -> RunState:
        """What became of the run; raises BadSetting if its summary is damaged."""
        summary = self.summary()
        if summary is not None:
            return RunState(summary["status"], summary["reason"])
        left = self.status_note()
        if left:
            return RunState(left["status"], left["reason"])
        owner = self.owner()
        if owner is not None:
            return RunState("busy", f"being written by {owner}")
        if not (self.path / ENVIRONMENT).is_file():
            return RunState("missing")
        return LOST

    def summary(self) -> dict[str, Any] | None:
        """How the run ended; None if it has not. Raises BadSetting if the file is damaged."""
        file = self.summary_file
        if not os.path.lexists(file):
            return None
        check = partial(shapes.check_fields, fields=shapes.SUMMARY)
        found: dict[str, Any] = read_json(file, {"status", "reason", "last"}, check)
        return found

    def shown_summary(self) -> dict[str, Any] | None:
        """The summary with all that is shown of a run; None if the run has not ended.

        Raises BadSetting if the file is damaged or lacks something.
        """
        found = self.summary()
        if found is not None:
            try:
                shapes.check_shown(found)
            except ValueError as error:
                raise damaged(self.path / SUMMARY, error) from None
        return found

    def status_note(self) -> dict[str, Any]:
        """Why the run stopped before its end, with `status` and `reason` at least.

        The note is empty if the run never stopped so, or if the file is damaged.
        """
        try:
            check = partial(shapes.check_fields, fields=shapes.STATUS)
            found = read_json(self.path / STATUS, {"status", "reason"}, check)
        except (BadSetting, OSError):
            return {}
        return dict(found)

    def history(self) -> list[dict[str, Any]]:
        """The rows, without a last one that was cut short when the process was killed.

        Raises BadSetting, which names the row, if one was changed, doubled or taken out, or if the
        last one is cut short though the run has ended.
        """
        return read_rows(self.path / HISTORY, ended=os.path.lexists(self.path / SUMMARY))

    def each_row(self) -> Iterable[dict[str, Any]]:
        """The rows, each of which is read when its turn comes, as often as one goes through them.

        Raises BadSetting then if the file cannot be read.
        """
        return EachRow(self.path / HISTORY)

    def last_row(self) -> dict[str, Any]:
        """The last row, of which there has to be one; others are not looked at.

        Raises BadSetting.
        """
        return self.history_at({self.history_length() - 1})[0]

    def history_length(self) -> int:
        """The number of rows, without a last one that was cut short; raises BadSetting."""
        return count_rows(self.path / HISTORY)

    def history_at(self, wanted: Set[int]) -> list[dict[str, Any]]:
        """The rows with these numbers, from 0; others are not looked at. Raises BadSetting."""
        return rows_at(self.path / HISTORY, wanted)

    def best(self, better: Mapping[str, Better]) -> dict[str, Best]:
        """The best value so far of each of these metrics; raises BadSetting as `history` does."""
        ended = os.path.lexists(self.summary_file)
        return best_of(checked_rows(self.path / HISTORY, ended), better)

    def config(self, keys: Set[str] = frozenset()) -> dict[str, Any]:
        """Every setting of the run, as config.yaml has it.

        Raises BadSetting if the file is damaged or lacks one of these keys.
        """
        file = self.path / CONFIG
        found: dict[str, Any] = read_yaml(file)
        try:
            shapes.check_config(found, keys)
        except ValueError as error:
            raise damaged(file, error) from None
        return found

    def environment(self, keys: Set[str] = frozenset()) -> dict[str, Any]:
        """What the run's last bits may depend on besides its settings (bench.runs.environment).

        Raises BadSetting if the file is damaged or lacks one of these keys.
        """
        check = partial(shapes.check_fields, fields=shapes.ENVIRONMENT)
        found: dict[str, Any] = read_json(self.path / ENVIRONMENT, keys, check)
        return found

    def view(self) -> dict[str, Any] | None:
        """The picture of the run's end; None if there is none. Raises BadSetting."""
        file = self.path / VIEW
        return read_json(file, check=shapes.check_view) if os.path.lexists(file) else None

    def owner(self) -> str | None:
        """The process that writes the folder now, in words; None if there is none."""
        return lock.holder(self.path)

    def lock(self) -> AbstractContextManager[None]:
        """A context in which only this process writes the folder, made if it is not there.

        Raises lock.Busy if another process writes it.
        """
        return lock.hold(self.path)

    def was_begun_since(self, time_ns: int) -> bool:
        """Whether the run was begun, or begun again, at or after a time.

        time_ns: nanoseconds, on the clock of the file system. The environment file has the time: a
        run writes it when the folder is empty, before everything else but its settings.
        """
        made = self.path / ENVIRONMENT
        return made.is_file() and made.stat().st_mtime_ns >= time_ns

    def was_left_before(self, time_ns: int) -> bool:
        """Whether what says how the run ended, or why it stopped, is older than a time.

        time_ns: nanoseconds, on the clock of the file system.
        """
        there = [file for file in (self.summary_file, self.path / STATUS) if file.is_file()]
        return bool(there) and there[0].stat().st_mtime_ns < time_ns

    def has_checkpoint(self) -> bool:
        """Whether there is a checkpoint from which the run can go on."""
        return self.checkpoint.is_file()

    def prepare(self, config: Mapping[str, Any], upto: int) -> None:
        """Make the folder ready for a run that goes on after step `upto`, or starts (-1).

        Rows of later steps are removed. Raises BadSetting, before anything is changed, if an
        earlier row is missing.
        """
        kept = None
        if config["run"]["force"]:
            self.clear()
        else:
            kept = rows_to_keep(self.path / HISTORY, upto, config["run"]["every"])
        for file in (SUMMARY, STATUS, *HALF):
            (self.path / file).unlink(missing_ok=True)
        if kept is not None:  # after the summary is gone: it would speak of the rows that go
            write_whole(self.path / HISTORY, kept)
        write_sealed_yaml(self.path / CONFIG, dict(config))

    def clear(self) -> None:
        """Remove what the run has written, so that it starts again."""
        for file in (*FILES, *HALF):
            (self.path / file).unlink(missing_ok=True)
        shutil.rmtree(self.path / WANDB[0], ignore_errors=True)

    def describe(self, environment: Mapping[str, Any]) -> None:
        """Write the run's environment."""
        write_sealed_json(self.path / ENVIRONMENT, environment)

    def rows(self) -> History:
        """The history, open to add rows."""
        return History(self.path / HISTORY)

    def leave(self, status: str, reason: str, **more: Any) -> None:
        """Note why the run stops before its end.

        An error of the disk is ignored: the caller reports the cause, of which this is a copy.
        """
        about = {"status": status, "reason": reason, "host": socket.gethostname(), **more}
        with suppress(OSError):
            write_sealed_json(self.path / STATUS, about)

    def move_to(self, other: "RunFolder", config: Mapping[str, Any]) -> None:
        """Give the folder the name of another run, which is not there yet; this one is locked.

        config: the run's configuration, in which settings may be spelled otherwise than before.
        """
        summary = self.summary()  # a damaged one is refused before anything is written
        write_sealed_yaml(self.path / CONFIG, dict(config))
        if summary is not None:
            write_sealed_json(self.path / SUMMARY, {**summary, "name": other.name})
        other.path.parent.mkdir(parents=True, exist_ok=True)
        (self.path / lock.NAME).unlink(missing_ok=True)
        self.path.rename(other.path)

    def end(self, summary: Mapping[str, Any], view: Mapping[str, Any] | None) -> None:
        """Write the files with which a run ends."""
        if view is not None:
            write_sealed_json(self.path / VIEW, view)
        write_sealed_json(self.path / SUMMARY, summary)


def folder_of(root: str, name: str) -> RunFolder:
    """The folder of the run `name`, which is to be written below run.root, here `root`.

    Raises BadSetting if there can be no such path, or if a part of it is a link, by which files
    would be written elsewhere.
    """
    try:
        folder = RunFolder(Path(root).expanduser(), name)
        path = folder.path
        files = (path / file for file in (*FILES, *HALF, lock.NAME, *WANDB))
        links = [p for p in (*path.parents[:2], path, *files) if p.is_symlink()]
    except (RuntimeError, ValueError, OSError) as error:  # unknown home, null byte, too long
        why = getattr(error, "strerror", None) or error
        raise BadSetting(
            f"run.root={root!r}: {why}; write run.root=... for another place"
        ) from None
    if links:
        raise BadSetting(
            f"run.root: {links[0]} is a link, and runs are written below run.root only: remove it, "
            "or write run.root=... for another place"
        )
    return folder


def folder_at(path: Path) -> RunFolder:
    """The run folder at a path, whose last three parts are the run's name."""
    return RunFolder(path.parents[2], "/".join(path.parts[-3:]))


def folders_below(place: Path) -> Iterator[RunFolder]:
    """Every run folder with settings and rows, at or below the folder `place`, sorted by path.

    Links to folders are not followed, and folders deeper than `DEPTH` are left out.
    """
    if ".." in place.parts:  # which would become part of a run's name
        place = Path(os.path.abspath(place))
    for folder in sorted(_holding(HISTORY, place)):
        if os.path.lexists(folder / CONFIG):
            yield folder_at(folder.absolute() if len(folder.parts) < 3 else folder)


def runs_of_sweep(place: Path) -> Iterator[RunFolder] | None:
    """The run folders of a sweep, given its own folder, as far as they have settings and rows.

    None if the folder is not that of a sweep. Raises BadSetting if the sweep has not ended, so that
    it does not say yet which its runs are, or if its summary is damaged.
    """
    whole = Path(os.path.abspath(place))
    file, root = whole / SWEEP_SUMMARY, whole.parents[1]
    if not os.path.lexists(file):
        if whole.parent.name != SWEEPS:
            return None
        raise BadSetting(f"{place}: this sweep has not ended: write {root} for all runs there")
    try:
        names = [run["name"] for run in read_json(file, {"runs"})["runs"]]
        for name in names:
            if name is not None and (len(Path(name).parts) != 3 or ".." in Path(name).parts):
                raise ValueError(f"{name!r:.40} is no name of a run")
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise BadSetting(f"{file} is damaged ({error}): write {root} for all runs there") from None
    found = [RunFolder(root, str(Path(name))) for name in names if name is not None]
    return (f for f in found if (f.path / CONFIG).is_file() and (f.path / HISTORY).is_file())


def _holding(file: str, place: Path) -> Iterator[Path]:
    """The folders at or below `place` that have a file of this name, in any order."""
    waiting = [(place, 0)]
    while waiting:
        folder, depth = waiting.pop()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.name == file:
                        yield folder
                    elif depth < DEPTH and entry.is_dir(follow_symlinks=False):
                        waiting.append((folder / entry.name, depth + 1))
        except (PermissionError, FileNotFoundError):  # not ours to read, or gone since
            continue


def has_ended_run(root: Path) -> bool:
    """Whether some run below `root` has ended."""
    return next(_holding(SUMMARY, root), None) is not None
