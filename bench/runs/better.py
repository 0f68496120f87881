"""Which values of a task's metrics are better, as conf/paper/metrics.yaml says, here or in a
package."""

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml

from bench.core.packages import listed

Better = Literal["higher", "lower"]
Way = Literal["higher", "lower", "neither"]


class Best(NamedTuple):
    """The best value of a metric so far, and the step at which it was measured first."""

    value: float
    step: int


def better_values(task: str) -> Mapping[str, Better]:
    """For each metric of a task whether higher or lower values are better, where this is known.

    task: the name of the task's function.
    """
    return {name: m["better"] for name, m in metrics(task).items() if "better" in m}


def better(task: str, metric: str) -> Way:
    """Whether higher or lower values of a metric are better; every task has some, such as seconds.

    task: the name of the task's function. "neither" is also the answer for a metric that the file
    does not list.
    """
    about = metrics(task).get(metric) or metrics("any").get(metric, {})
    found: Way = about.get("better", "neither")
    return found


def metrics(task: str) -> dict[str, Any]:
    """metric -> what is said of it, of a task that this project or a listed package has.

    A package's file that cannot be read says nothing; `reproduce` says what is wrong with it.
    """
    for conf in (Path(str(files("conf"))), *(package.conf for package in listed().packages)):
        with suppress(OSError, ValueError, yaml.YAMLError):
            found = read(conf / "paper" / "metrics.yaml").get(task, {})
            if found:
                return dict(found)
    return {}


@cache
def read(file: Path) -> dict[str, dict[str, Any]]:
    """The file's content, task -> metric -> what is said of it. Raises what reading it raises, and
    ValueError where it has another form."""
    content = yaml.load(file.read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    groups = content.values() if isinstance(content, dict) else [content]
    if not all(isinstance(group, dict) for group in groups):
        raise ValueError(file)
    if not all(isinstance(about, dict) for group in groups for about in group.values()):
        raise ValueError(file)
    return dict(content)


def improves(value: Any, best: Best | None, better: Better) -> bool:
    """Whether a value is finite and better than the best so far."""
    if not isinstance(value, int | float) or not -math.inf < value < math.inf:
        return False
    return best is None or (value > best.value if better == "higher" else value < best.value)


def keep_best(best: dict[str, Best], row: Mapping[str, Any], better: Mapping[str, Better]) -> None:
    """Take note, in best, of the metrics of a row that are better than before."""
    for name, way in better.items():
        if improves(row.get(name), best.get(name), way):
            best[name] = Best(row[name], row["step"])


def best_of(rows: Iterable[Mapping[str, Any]], better: Mapping[str, Better]) -> dict[str, Best]:
    """The best value of each metric in rows."""
    best: dict[str, Best] = {}
    for row in rows:
        keep_best(best, row, better)
    return best
