"""What a task is: two losses, two samplers, a start, a yardstick."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Generator, Tensor

from bench.core.stream import Stream
from bench.core.view import Heatmap, Histogram

Batch = Any  # whatever the losses take as data: a tuple of tensors, a time index, ...
Loss = Callable[[Tensor, Tensor, Batch], Tensor]  # (x, y, batch) -> scalar
Sampler = Callable[[Generator, int, int | None], Batch]  # (randomness, step, size); None: all
Prepare = Callable[[Tensor, Batch, Batch], tuple[Batch, Batch]]  # (x, upper, lower)
Wrt = Literal["x", "y", "xy"]  # which partial derivatives are wanted
Partials = tuple[Tensor | None, Tensor | None]  # (in x, in y); None where not wanted


@dataclass(frozen=True)
class Context:
    """What a task is built for, given by the runner and no part of the task's settings."""

    seed: int = 0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    dtype: torch.dtype = torch.float32
    data_root: Path = Path()
    download: bool = False


class Derivatives(NamedTuple):
    """A loss's derivatives in closed form, for the oracle to use in place of autograd.

    grad(x, y, batch, wrt) -> (partial in x, partial in y).
    linearise(x, y, batch) -> (slope, product): slope() is the partial gradient in y, and
    product(v, wrt) -> (d/dx <slope, v>, d/dy <slope, v>), the mixed and the Hessian product.
    descend(x, y, batch, lr, onto) -> y - lr slope, or onto - lr slope where `onto` is given: a
    tensor that nobody else has, to be written into. For a large y whose slope is dense and cheap.
    """

    grad: Callable[[Tensor, Tensor, Batch, Wrt], Partials]
    linearise: (
        Callable[
            [Tensor, Tensor, Batch],
            tuple[Callable[[], Tensor], Callable[[Tensor, Wrt], Partials]],
        ]
        | None
    ) = None
    descend: Callable[[Tensor, Tensor, Batch, float, Tensor | None], Tensor] | None = None


@dataclass(frozen=True)
class Set:
    """A feasible set, known by its projection, its linear minimisation oracle, or both."""

    project: Callable[[Tensor], Tensor] | None = None
    lmo: Callable[[Tensor, float], Tensor] | None = None  # slope, accuracy -> argmin <slope, .>


class Tally(NamedTuple):
    """What an online task sums over its rounds, such as a regret: neither timed nor counted.

    adds(x, y, step) has a value for each of `names`; x and y are those that step number `step`
    starts from, x_t and y_t, which were chosen before f_t and g_t were seen.
    """

    names: tuple[str, ...]
    adds: Callable[[Tensor, Tensor, int], dict[str, Tensor]]


class Ledger(NamedTuple):
    """A table that a run fills as it goes, such as each task's accuracy after each task: neither
    timed nor counted, and kept in the checkpoint.

    every: steps between entries. enter(table, x, y, step) -> the table with what there is to
    measure after `step` steps. read: the metrics of a table, from the empty one on.
    """

    empty: Tensor
    every: int
    enter: Callable[[Tensor, Tensor, Tensor, int], Tensor]
    read: Callable[[Tensor], dict[str, Tensor]]
    view: Callable[[Tensor], Heatmap]  # at the end


class Best(NamedTuple):
    """The iterate of a run that counts: the first with the highest value of `Select.metric`."""

    value: float
    step: int
    x: Tensor
    y: Tensor


class Select(NamedTuple):
    """For runs whose last iterate is not the one that counts.

    metric: one of `evaluate`, at whose highest measured value an iterate is kept. measure: of the
    kept one, once, when the run ends: (best, last row) -> what is added to that row.
    """

    metric: str
    measure: Callable[[Best, Mapping[str, Any]], dict[str, Tensor]]


def no_data(rng: Generator, step: int, size: int | None) -> Batch:
    """The sampler of a problem that has no data."""
    return None


@dataclass(frozen=True)
class Task:
    """min_x upper(x, y*(x)) over `feasible`, where y*(x) = argmin_y lower(x, y).

    x and y are single tensors of any shape; a task with structured parameters packs them.
    A single-level task has no `lower` and an empty y. An online task is one whose samplers
    use the step: f_t(x, y) is upper(x, y, draw_upper(rng, t, None)). A minimax task has
    lower = -upper.
    """

    upper: Loss
    init: Callable[[Generator], tuple[Tensor, Tensor]]
    evaluate: Callable[[Tensor, Tensor, int], dict[str, Tensor]]  # neither timed nor counted
    metric: str  # the one of `evaluate`, `tally` or `ledger` to watch
    lower: Loss | None = None
    draw_upper: Sampler = no_data
    draw_lower: Sampler = no_data
    count: Callable[[Batch], int] = lambda batch: 1  # samples in a batch
    rows: Callable[[Batch, int, int], Batch] | None = None  # of all the data, rows a to b
    start: Callable[[Tensor, Batch], Tensor] = lambda y, batch: y  # y_k^0; default: warm start
    origin: Callable[[Tensor, Tensor], Tensor] | None = None  # (x, y) -> y_k^0, for who learns it
    carries: bool = True  # no: each step has a lower problem of its own, as new episodes do
    prepare: Prepare = lambda x, xi, zeta: (xi, zeta)  # with what x alone decides about them
    feasible: Set = Set()  # of x
    lower_feasible: Set = Set()  # of y
    upper_derivatives: Derivatives | None = None
    lower_derivatives: Derivatives | None = None
    optimum: Mapping[str, Tensor] | None = None  # for tests and `evaluate`; algorithms never see it
    sources: Mapping[str, str] = field(default_factory=dict)  # data file -> SHA-256
    references: Callable[[], dict[str, float]] | None = None  # lines to hold the end result against
    view: Callable[[Tensor, Tensor, int], Histogram] | None = None  # (x, y, step) at the end
    select: Select | None = None
    tally: Tally | None = None
    ledger: Ledger | None = None
    stream: Stream | None = None  # of tasks that are learned one after the other
