"""Reads run folders that may be damaged: each one that is has a line, and is left out."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bench.core.settings import BadSetting
from bench.reproduce.terminal import say_left_out
from bench.runs.folder import RunFolder

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
