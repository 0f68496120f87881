"""What a logger is, and what it knows of its run."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple


class About(NamedTuple):
    """What a logger knows of its run.

    rows: those that are there already, of a run that goes on; they are read from the disk one by
    one. alone: whether the run is made by itself, and its logger may print; a sweep tells of all
    its runs together. anew: whether the run starts again, by run.force=true.
    """

    name: str  # task/algorithm/hash
    config: dict[str, Any]
    folder: Path
    metric: str = ""  # the one that the task watches
    rows: Iterable[Mapping[str, Any]] = ()
    environment: Mapping[str, Any] = MappingProxyType({})
    alone: bool = True
    anew: bool = False


def forget(summary: Mapping[str, Any]) -> None:
    """What a logger that keeps no summary does with it."""


class Logger(NamedTuple):
    """row gets each row of the run; end gets the summary, or at least the status and the reason,
    when the run ends or stops; close, which comes last, gets the exit code."""

    row: Callable[[dict[str, Any]], None]
    close: Callable[[int], None]
    end: Callable[[Mapping[str, Any]], None] = forget
