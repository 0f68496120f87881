"""Reads run folders that may be damaged: each one that is has a line, and is left out."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bench.core.settings import BadSetting
from bench.reproduce.terminal import say_left_out
from bench.runs.folder import RunFolder
from bench.runs.importing import import_torch

# what a record keeps of the environment of a run
KEYS = {"python", "packages", "git", "cpu", "gpu", "threads"}


@contextmanager
def leave_out_damaged() -> Iterator[None]:
    """A block that ends, with a line on standard error, at a file that is damaged."""
    try:
        yield
    except BadSetting as error:
        say_left_out(f"{error}")
    except OSError as error:
        say_left_out(f"{error.filename}: {error.strerror}")


def summary_or_none(folder: RunFolder) -> dict[str, Any] | None:
    """The summary of a run that has ended; None, with a line, if it is damaged."""
    with leave_out_damaged():
        return folder.summary()
    return None


def summary_if_whole(folder: RunFolder) -> dict[str, Any] | None:
    """The summary of a run that has ended; None, with a line, if a file of a report is damaged."""
    with leave_out_damaged():
        summary = folder.summary()
        if summary is None:
            return None
        folder.history()
        folder.view()
        folder.environment(KEYS)
        if summary.get("amortised") and "seconds" not in summary["last"]:
            raise BadSetting(f"{folder.path}: its summary lacks the seconds that lanes took")
        return summary
    return None


def summary_if_drawn(folder: RunFolder) -> dict[str, Any] | None:
    """As `summary_if_whole`, of a run whose path is drawn over the losses of its own task."""
    summary = summary_if_whole(folder)
    if summary is not None:
        with leave_out_damaged():
            own_task(folder)
            return summary
    return None


def own_task(folder: RunFolder) -> dict[str, Any]:
    """The `task` and `seed` that a run's folder names, both checked, as somebody else may have
    written the folder; raises BadSetting, which names its file."""
    import_torch()
    from bench.core.settings import Seed, check_settings, validate
    from bench.core.task import Task  # slow to import

    found = folder.config()
    try:
        task = check_settings(found["task"], "task", Task, given=("context",))
        return {"task": task, **validate({"seed": (Seed, ...)}, {"seed": found["seed"]}, "")}
    except (BadSetting, LookupError, TypeError) as error:
        raise BadSetting(f"{folder.path}/config.yaml: {error}") from None
