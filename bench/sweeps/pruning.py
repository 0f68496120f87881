"""Stops a trial of a search whose measurements are worse than those of the trials before.

The run's own process does so: it reads the rows of the run, tells optuna's journal, and asks its
pruner. So it makes no difference where the run is made, and a search whose trials are made one
after the other gives the same trials each time.
"""

import fcntl
import json
import logging
import math
import os
import warnings
from collections.abc import Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bench.core.settings import BadSetting
from bench.runs.folder import RunFolder
from bench.runs.history import parse_line

if TYPE_CHECKING:
    from optuna import Study
    from optuna.pruners import BasePruner
    from optuna.storages import JournalStorage
    from optuna.trial import FrozenTrial

Pruner = Literal["halving", "hyperband", "median", "none"]
Direction = Literal["minimize", "maximize"]
STUDY = "bench"  # the only one of a journal
FACTOR = 3  # one of so many trials goes on after each rung


@dataclass(frozen=True)
class Pruning:
    """Which pruner, and the steps of its rungs: first, FACTOR first, ... up to the last step."""

    kind: Pruner
    first: int
    last: int

    def pruner(self) -> "BasePruner":
        """The pruner as optuna has it."""
        from optuna import pruners

        if self.kind == "halving":
            return pruners.SuccessiveHalvingPruner(self.first, FACTOR)
        if self.kind == "hyperband":
            return pruners.HyperbandPruner(self.first, self.last, FACTOR)
        if self.kind == "median":
            return pruners.MedianPruner(n_warmup_steps=self.first)
        return pruners.NopPruner()


@dataclass
class Watch:
    """Asks, for the process of a trial's run, whether the run is to stop.

    It goes to that process as a value, and opens the journal there when it is first asked.
    """

    journal: Path
    trial: int  # optuna's id of it
    metric: str
    pruning: Pruning
    offset: int = 0  # bytes of the history that were read
    open: "tuple[JournalStorage, Study] | None" = field(default=None, repr=False)

    def __call__(self, folder: RunFolder) -> str | None:
        """Why the run is to stop; None if it goes on."""
        rows = self.new_rows(folder)
        if not rows:
            return None
        if self.open is None:
            storage = storage_of(self.journal)
            self.open = storage, open_study(storage, self.pruning)
        storage, study = self.open
        known = storage.get_trial(self.trial).last_step
        for row in rows:  # the last one is left out: there is nothing to stop after it
            if (known or 0) < row["step"] < self.pruning.last:
                value = row.get(self.metric)
                shown = math.nan if value is None else float(value)
                storage.set_trial_intermediate_value(self.trial, row["step"], shown)
                if study.pruner.prune(study, storage.get_trial(self.trial)):
                    return "the pruner"
        return None

    def new_rows(self, folder: RunFolder) -> list[dict[str, Any]]:
        """The rows that were added since the last look."""
        try:
            with folder.history_file.open("rb") as file:
                file.seek(self.offset)
                text = file.read()
        except OSError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self.offset += len(whole)
        lines = (parse_line(line + b"\n").row for line in whole.splitlines())
        return [row for row in lines if row is not None]


class FileLock:
    """The kernel's lock on a file: unlike optuna's own locks, it is free when its owner dies."""

    def __init__(self, path: Path):
        self.path = path
        self.file = -1

    def acquire(self) -> bool:
        """Wait for the lock, and take it."""
        self.file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        fcntl.flock(self.file, fcntl.LOCK_EX)
        return True

    def release(self) -> None:
        """Free the lock."""
        os.close(self.file)


def refuse_link(journal: Path) -> None:
    """Raise BadSetting if the journal is a link: what is written would go to another's file."""
    if journal.is_symlink():
        raise BadSetting(f"{journal} is a link, which is not followed: move it away to start again")


def mend(journal: Path) -> None:
    """Take a last line off a journal that a kill cut short; nobody else may have it open.

    Raises BadSetting if the journal is a link.
    """
    refuse_link(journal)
    if journal.exists():
        text = journal.read_bytes()
        whole = text.rfind(b"\n") + 1
        if whole < len(text):
            os.truncate(journal, whole)


def is_left(trial: "FrozenTrial", retry_failed: bool) -> bool:
    """Whether a trial is to be made: it has no end, or has failed and is to be tried again."""
    return not trial.state.is_finished() or (retry_failed and trial.state.name == "FAIL")


def forget_unfinished(
    journal: Path, pruning: Pruning, direction: Direction, wanted: Set[str], retry_failed: bool
) -> None:
    """Write the journal anew: as if each trial that `is_left` had not been begun.

    Such a trial keeps its values alone, so that the rows of its run are told once more and the
    pruner decides as if they were new. One that was killed before it had all its values is left
    out, so that the next one has its number. Nobody else may have the journal open.

    wanted: the settings of which a trial has values.
    """
    from optuna.trial import TrialState, create_trial

    kept = []
    for trial in open_study(storage_of(journal), pruning).get_trials():
        if trial.params.keys() != wanted:
            continue
        if is_left(trial, retry_failed):
            trial = create_trial(
                state=TrialState.RUNNING, params=trial.params, distributions=trial.distributions
            )
        kept.append(trial)
    new = journal.with_suffix(".new")
    new.unlink(missing_ok=True)
    open_study(storage_of(new), pruning, direction).add_trials(kept)
    new.replace(journal)


def storage_of(journal: Path) -> "JournalStorage":
    """The journal as optuna has it, which is made if it is not there.

    Raises BadSetting if the journal is damaged or a link.
    """
    import optuna
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(logging.WARNING)
    refuse_link(journal)
    lock: Any = FileLock(journal.with_suffix(".lock"))
    try:
        backend = JournalFileBackend(str(journal), lock_obj=lock)
        # optuna passes over a last line that is damaged, and raises when another one follows
        for line in journal.read_bytes().split(b"\n")[-2:-1]:
            json.loads(line)
        return optuna.storages.JournalStorage(backend)
    except (ValueError, KeyError, TypeError, AssertionError) as error:
        raise BadSetting(f"{journal} is damaged ({error}): move it away to start again") from None


def open_study(
    storage: "JournalStorage", pruning: Pruning, direction: Direction | None = None
) -> "Study":
    """The study of a journal; direction: of one that is made if it is not there."""
    import optuna

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # hyperband was experimental in older versions
        if direction is None:
            return optuna.load_study(study_name=STUDY, storage=storage, pruner=pruning.pruner())
        return optuna.create_study(
            study_name=STUDY,
            storage=storage,
            pruner=pruning.pruner(),
            direction=direction,
            load_if_exists=True,
        )
