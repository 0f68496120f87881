"""Which values of a task's metrics are better, as conf/paper/metrics.yaml says."""

from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml

Better = Literal["higher", "lower"]


class Best(NamedTuple):
    """The best value of a metric so far, and the step at which it was measured first."""

    value: float
    step: int


@cache
def better_values(task: str) -> Mapping[str, Better]:
    """For each metric of a task whether higher or lower values are better, where this is known."""
    text = (Path(str(files("conf"))) / "paper" / "metrics.yaml").read_text()
    known: dict[str, Any] = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return {name: m["better"] for name, m in known.get(task, {}).items() if "better" in m}


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
