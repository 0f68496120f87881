"""What a task is: two losses, a start, a yardstick, and records of what only some tasks have."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Generator, Tensor

from bench.core.stream import Stream
from bench.core.view import Heatmap, Histogram

Batch = Any  # whatever the losses take as data: a tuple of tensors, a time index, ...
Loss = Callable[[Tensor, Tensor, Batch], Tensor]  # (x, y, batch) -> scalar
Sampler = Callable[[Generator, int, int | None], Batch]  # (randomness, step, size) -> batch
Wrt = Literal["x", "y", "xy"]  # which partial derivatives are wanted
Partials = tuple[Tensor | None, Tensor | None]  # (in x, in y); None where not wanted


@dataclass(frozen=True)
class Context:
    """What a task is built for. The runner gives it; it is no part of the task's settings.

    oracle: gives the oracle of a task that asks for derivatives of its own losses, as to measure a
    round; None: `Oracle(task)`.
    """

    seed: int = 0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    dtype: torch.dtype = torch.float32
    data_root: Path = Path()
    download: bool = False
    oracle: Callable[["Task"], Any] | None = None


class Place(NamedTuple):
    """Where a loss is asked for together with others: f if `upper`, else g, at (x, y; batch)."""

    upper: bool
    x: Tensor
    y: Tensor
    batch: Batch

    def leaves(self) -> "Place":
        """The same place, with variables in which a loss can be differentiated."""
        x, y = (t.detach().requires_grad_() for t in (self.x, self.y))
        return self._replace(x=x, y=y)


class Derivatives(NamedTuple):
    """A loss's derivatives in closed form, which the oracle uses in place of autograd.

    grad(x, y, batch, wrt) returns the pair (partial in x, partial in y).

    linearise(x, y, batch) returns the pair (gradient, product): gradient() is the partial gradient
    in y, and product(v, wrt) is (d/dx <gradient, v>, d/dy <gradient, v>), the mixed and the Hessian
    product.

    descend(x, y, batch, lr, onto) returns y - lr gradient, or onto - lr gradient where `onto` is
    given: a tensor that nobody else holds and that may be written over. It pays where y is large
    and its gradient is dense and cheap.
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
    """A feasible set, known by its projection, its linear minimisation oracle, or both.

    The set without either is the whole space. lmo(gradient, accuracy) returns a point s of the set
    whose <gradient, s> is within `accuracy` of the minimum.
    """

    project: Callable[[Tensor], Tensor] | None = None
    lmo: Callable[[Tensor, float], Tensor] | None = None


def no_data(rng: Generator, step: int, size: int | None) -> Batch:
    """The sampler of a problem that has no data."""
    return None


def count_one(batch: Batch) -> int:
    """The number of samples in a batch where a batch is a single thing."""
    return 1


@dataclass(frozen=True)
class Data:
    """The samples that a task's losses are over.

    draw_upper, draw_lower: draw(rng, step, size) returns a batch for the upper or the lower loss:
    `size` samples, or for None all that there are at this step. An online task is one whose
    samplers use the step.

    count(batch) is the number of samples in a batch. rows(batch, a, b), for a batch of all the
    data, is the batch of its samples a to b; None: the task's batches cannot be cut.
    """

    draw_upper: Sampler = no_data
    draw_lower: Sampler = no_data
    count: Callable[[Batch], int] = count_one
    rows: Callable[[Batch, int, int], Batch] | None = None


def start_warm(y: Tensor, zeta: Batch) -> Tensor:
    """The inner loop's usual start: the y, of any shape, with which the step before ended."""
    return y


def add_nothing(x: Tensor, xi: Batch, zeta: Batch) -> tuple[Batch, Batch]:
    """Both batches as they are, for x of any shape."""
    return xi, zeta


@dataclass(frozen=True)
class InnerLoop:
    """How a step's lower problem begins, for tasks that pose a new one at each step.

    start(y, zeta) is the first point of the inner loop on the lower batch zeta, shaped as y.

    origin(x, y) is that point as a function of x, for a method that learns it; None: the task has
    no such function. y is there for its shape.

    carries says whether the lower problem is the same from step to step, so that what one step
    found out about it is of use to the next.

    prepare(x, xi, zeta) returns an upper and a lower batch with everything added that x alone
    decides about them, such as the features of their images.
    """

    start: Callable[[Tensor, Batch], Tensor] = start_warm
    origin: Callable[[Tensor, Tensor], Tensor] | None = None
    carries: bool = True
    prepare: Callable[[Tensor, Batch, Batch], tuple[Batch, Batch]] = add_nothing


@dataclass(frozen=True)
class Report:
    """What a report says about a task and the end of its runs. No algorithm sees any of this.

    sources: the data files that the task read, each with its SHA-256.

    references() returns the values of lines to hold the end result against, by their labels.

    view(x, y, step) is a picture of the end of a run.

    optimum: known solutions and constants of the problem, by their names.
    """

    sources: Mapping[str, str] = field(default_factory=dict)
    references: Callable[[], dict[str, float]] | None = None
    view: Callable[[Tensor, Tensor, int], Histogram] | None = None
    optimum: Mapping[str, Tensor] | None = None


class Best(NamedTuple):
    """The iterate of a run that counts: the first with the highest value of `Selection.metric`."""

    value: float
    step: int
    x: Tensor
    y: Tensor


class Selection(NamedTuple):
    """Which iterate of a run counts, where that is not the last one.

    metric: one of the metrics of `evaluate`; the iterate with the highest measured value is kept.
    measure(best, last row) is called once, when the run ends; what it returns about the kept
    iterate is added to the last row.
    """

    metric: str
    measure: Callable[[Best, Mapping[str, Any]], dict[str, Tensor]]


class Tally(NamedTuple):
    """What an online task sums over its rounds, such as a regret. It is neither timed nor counted.

    adds(x, y, step) returns what this round adds to each of the sums `names`; x and y are the
    points from which step number `step` starts, x_t and y_t, which were chosen before f_t and g_t
    were seen.
    """

    names: tuple[str, ...]
    adds: Callable[[Tensor, Tensor, int], dict[str, Tensor]]


class Ledger(NamedTuple):
    """A table that a run fills as it goes, such as each task's accuracy after each task.

    The table is on the host, neither timed nor counted, and the checkpoint keeps it. `empty` is the
    table before the first step, `every` the number of steps between entries. enter(table, x, y,
    step) returns the table with what there is to measure after `step` steps. read(table) returns
    the metrics of a table, the empty one included, and view(table) its picture at the end of a run.
    """

    empty: Tensor
    every: int
    enter: Callable[[Tensor, Tensor, Tensor, int], Tensor]
    read: Callable[[Tensor], dict[str, Tensor]]
    view: Callable[[Tensor], Heatmap]


@dataclass(frozen=True)
class Task:
    """min_x upper(x, y*(x)) over `feasible`, where y*(x) = argmin_y lower(x, y).

    x and y are single tensors of any shape; a task with structured parameters packs them. The
    simplest task gives upper, lower, init, evaluate and metric; everything else has a default.

    upper, lower: the losses f and g as functions of (x, y, batch). A single-level task has no
    `lower` and an empty y; a minimax task has lower = -upper; an online task has
    f_t(x, y) = upper(x, y, data.draw_upper(rng, t, None)).

    init(rng) returns the first (x, y). evaluate(x, y, step) returns the metrics of a row, each a
    scalar; it is neither timed nor counted. metric: the name of the one to watch, among those of
    `evaluate`, `tally` and `ledger`.

    data: where batches come from. feasible, lower_feasible: the sets in which x and y stay.
    upper_derivatives, lower_derivatives: closed forms; None: autograd.

    together(places): the losses at several places, [m], by one pass, which is much sooner over on a
    GPU; None: one by one is as good. It returns None for places that cannot go together. It depends
    on its places alone: those of tasks that differ in nothing but their seed go together too.

    The others are records of what one family of tasks needs: inner (lower problems that are new at
    each step), report (data sources, reference lines, pictures, known optima), selection (runs
    whose best iterate counts), tally (online tasks), ledger and stream (tasks that are learned one
    after the other).
    """

    upper: Loss
    init: Callable[[Generator], tuple[Tensor, Tensor]]
    evaluate: Callable[[Tensor, Tensor, int], dict[str, Tensor]]
    metric: str
    lower: Loss | None = None
    data: Data = Data()
    feasible: Set = Set()
    lower_feasible: Set = Set()
    upper_derivatives: Derivatives | None = None
    lower_derivatives: Derivatives | None = None
    together: Callable[[Sequence[Place]], Tensor | None] | None = None
    inner: InnerLoop = InnerLoop()
    report: Report = Report()
    selection: Selection | None = None
    tally: Tally | None = None
    ledger: Ledger | None = None
    stream: Stream | None = None
