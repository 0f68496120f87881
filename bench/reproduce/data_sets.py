"""Asks which data sets are there, without importing the tasks that read them.

The catalogue of data sets belongs to the tasks. As a choice in conf/ names the function that builds
a task, conf/paper/data_sets.yaml names the function that answers here. A package of your own may
have such a file too.
"""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import yaml

from bench.core.packages import listed
from bench.core.settings import BadSetting, build
from bench.reproduce.book import own_specs

FILE = "data_sets.yaml"


class DataSetState(Protocol):
    """What the catalogue says of a data set."""

    @property
    def name(self) -> str:
        """The name by which tasks ask for the data set."""

    @property
    def word(self) -> str:
        """Whether the data set is whole, absent or damaged, and why."""

    @property
    def damaged(self) -> bool:
        """Whether the data set is damaged, or did not come when it was fetched."""

    @property
    def advice(self) -> str:
        """How to get the data set; empty if it is whole."""


def data_set_states(names: list[str], root: Path, download: bool) -> Iterator[DataSetState]:
    """The state of each data set below `root`; of all data sets if no names are given.

    Those of listed packages come after this project's. download: fetch what is absent, if its
    authors offer it in the form that the tasks read. Raises BadSetting for a name that no data set
    has.
    """
    if not names:
        return chain.from_iterable(ask(node, [], root, download) for node in catalogues())
    return chain.from_iterable([ask_for(name, root, download) for name in names])


def catalogues() -> list[dict[str, Any]]:
    """What names the function that answers: this project's, then that of each package with one."""
    files = [
        folder / FILE for folder in (own_specs(), *(p.conf / "paper" for p in listed().packages))
    ]
    return [yaml.safe_load(file.read_text()) for file in files if file.is_file()]


def ask(
    node: dict[str, Any], names: list[str], root: Path, download: bool
) -> Iterator[DataSetState]:
    """What the function that a node names answers; raises BadSetting."""
    states: Iterator[DataSetState] = build(node, names, root, download)
    return states


def ask_for(name: str, root: Path, download: bool) -> Iterator[DataSetState]:
    """The state of the data set `name`, from the first that knows it; raises BadSetting."""
    refused = []
    for node in catalogues():
        try:
            return ask(node, [name], root, download)
        except BadSetting as error:
            refused.append(error)
    raise refused[0]
