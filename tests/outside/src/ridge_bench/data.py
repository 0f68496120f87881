"""The data sets of this package, as `reproduce data` asks for them."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bench.core.settings import BadSetting


class State(NamedTuple):
    """Whether a data set is there."""

    name: str
    word: str
    damaged: bool
    advice: str


def states(names: list[str], root: Path, download: bool) -> Iterator[State]:
    """The state of the one data set; raises BadSetting for another name."""
    if names not in ([], ["ridge_rows"]):
        raise BadSetting(f"{names[0]}: no such data set; there is ridge_rows")
    there = (root / "ridge_rows.csv").is_file()
    return iter([State("ridge_rows", "whole" if there else "absent", False, "")])
