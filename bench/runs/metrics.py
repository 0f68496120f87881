"""Which values of a metric are good, by conf/paper/metrics.yaml."""

from functools import cache
from importlib.resources import files
from typing import Any, Literal

import yaml

Better = Literal["higher", "lower", "neither"]


def better(task: str, metric: str) -> Better:
    """Whether higher or lower values of a task's metric are better.

    task: the name of the task's function. "neither" is also the answer for a metric that the file
    does not list.
    """
    listed = _listed()
    about = listed.get(task, {}).get(metric) or listed["any"].get(metric, {})
    found: Better = about.get("better", "neither")
    return found


@cache
def _listed() -> dict[str, dict[str, Any]]:
    """The file: task -> metric -> what is said of it."""
    found: dict[str, dict[str, Any]] = yaml.safe_load(
        files("conf").joinpath("paper", "metrics.yaml").read_text()
    )
    return found
