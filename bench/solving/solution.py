"""What `solve` returns."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bench.core.loop import Standing

COUNTS = ("calls/", "samples/")


class Row(dict[str, float]):
    """A row of the history, in which what was never called has the count 0."""

    def __missing__(self, key: str) -> float:
        if key.startswith(COUNTS):
            return 0
        raise KeyError(key)


@dataclass(frozen=True)
class Solution:
    """The end of a run of a method on a problem of the caller's.

    x, y: as x0 and y0 were given: a tensor, a module of its own, or a tree of these; y is None
    where there is no lower level. They share no memory with x0 and y0.

    history: a dict for each measurement, the first before the first step. `step`; `seconds` and
    `cpu_seconds` of steps, measuring not included; `upper_loss` and `lower_loss` on all the data;
    what `evaluate` measured; `calls/...` and `samples/...` of the oracle so far; `info/...` of the
    last step, which the method's docstring explains.

    calls, samples: how often the method asked for values, gradients and products, and over how many
    samples. seconds: wall time of the steps.

    hypergradient_norm: the norm of the method's last estimate of the gradient of f(x, y*(x)), from
    before its last step; None where a method has no such estimate.

    method, settings, seed: with these and the same problem `solve` returns the same bits on the
    same kind of machine. stopped: whether `stop` ended the run. end: the method's own state and
    counts, from which `solve(..., after=)` goes on.
    """

    x: Any
    y: Any
    history: list[dict[str, float]] = field(repr=False)
    calls: Mapping[str, int]
    samples: Mapping[str, int] = field(repr=False)
    seconds: float
    hypergradient_norm: float | None
    method: str
    settings: Mapping[str, Any] = field(repr=False)
    seed: int
    stopped: bool
    end: Standing = field(repr=False)

    def table(self) -> dict[str, list[float]]:
        """The history as columns, all of one length: `pandas.DataFrame(solution.table())`.

        A number that a row lacks is 0 for a count, and NaN for anything else.
        """
        keys = dict.fromkeys(key for row in self.history for key in row)
        return {key: [row.get(key, missing(key)) for row in self.history] for key in keys}


class Interrupted(KeyboardInterrupt):
    """Ctrl-C came during `solve`. solution: the one of the steps that had been taken."""

    def __init__(self, solution: Solution) -> None:
        super().__init__(
            f"after {solution.end.step} steps; the exception's `solution` has them, and "
            "solve(..., after=solution) goes on"
        )
        self.solution = solution


def missing(key: str) -> float:
    """What stands in a table where a row has no such number."""
    return 0 if key.startswith(COUNTS) else math.nan
