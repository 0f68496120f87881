"""Which values of a task's metrics are better, as conf/paper/metrics.yaml says."""

from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml

Better = Literal["higher", "lower"]
Way = Literal["higher", "lower", "neither"]


class Best(NamedTuple):
    """The best value of a metric so far, and the step at which it was measured first."""

    value: float
    step: int


@cache
def better_values(task: str) -> Mapping[str, Better]:
    """For each metric of a task whether higher or lower values are better, where this is known."""
    return {name: m["better"] for name, m in _listed().get(task, {}).items() if "better" in m}


def better(task: str, metric: str) -> Way:
    """Whether higher or lower values of a metric are better, one that every task has included.

    task: the name of the task's function. "neither" is also the answer for a metric that the file
    does not list.
    """
    about = _listed().get(task, {}).get(metric) or _listed()["any"].get(metric, {})
    found: Way = about.get("better", "neither")
    return found


@cache
def _listed() -> dict[str, dict[str, Any]]:
    """The file: task -> metric -> what is said of it."""
    text = (Path(str(files("conf"))) / "paper" / "metrics.yaml").read_text()
    found: dict[str, dict[str, Any]] = yaml.load(
        text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    )
    return found


def improves(value: Any, best: Best | None, better: Better) -> bool:
    """Whether a value, which may be none that is finite, is better than the best so far."""
    if not isinstance(value, int | float) or value != value:
        return False
    return best is None or (value > best.value if better == "higher" else value < best.value)


def best_of(rows: Iterable[Mapping[str, Any]], better: Mapping[str, Better]) -> dict[str, Best]:
    """The best value of each metric in rows."""
    best: dict[str, Best] = {}
    for row in rows:
        for name, way in better.items():
            if improves(row.get(name), best.get(name), way):
                best[name] = Best(row[name], row["step"])
    return best
