"""What an algorithm is: two pure functions on an explicit state, and what a step of it costs."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from torch import Tensor

from bench.core.draw import Draw
from bench.core.oracle import Oracle

Kind = Literal["bilevel", "minimax", "single-level", "episodes"]
State = Any  # a NamedTuple of tensors (nested allowed) with at least the fields x and y

UPPER, LOWER = ("value_f", "grad_f"), ("value_g", "grad_g", "jvp_g", "hvp_g")
KEYS = (*UPPER, *LOWER, "lmo", "project")  # what the oracle counts


@dataclass(frozen=True)
class Cost:
    """How often one step calls the oracle, and with how many samples.

    The fields value_f to project are numbers of calls, named by the oracle's keys. `project` is
    said of projection-free methods and their rivals only: every other method projects each new x
    and y on tasks with constraints, and a task without constraints counts no projection.

    batch: the samples that each call sees; None: all the data there is, as for `Draw.f`. blocks:
    each call sees one of so many equal parts of that. at_most: the numbers are the most that a
    step can call, because how many it calls is random or depends on a tolerance.

    Costs add up. A sum keeps its parts, because each has a batch of its own.
    """

    value_f: int = 0
    value_g: int = 0
    grad_f: int = 0
    grad_g: int = 0
    jvp_g: int = 0
    hvp_g: int = 0
    lmo: int = 0
    project: int = 0
    batch: int | None = None
    blocks: int = 1
    at_most: bool = False
    rest: tuple["Cost", ...] = ()  # the other parts of a sum

    @property
    def parts(self) -> tuple["Cost", ...]:
        """The costs whose sum this is; none of them is a sum itself."""
        return (replace(self, rest=()), *self.rest)

    def __add__(self, other: "Cost") -> "Cost":
        return replace(self, rest=(*self.rest, *other.parts))

    def __mul__(self, times: int) -> "Cost":
        """The cost of so many such steps."""
        first, *others = (
            part._with({key: times * n for key, n in part.calls.items()}) for part in self.parts
        )
        return replace(first, rest=tuple(others))

    @property
    def calls(self) -> dict[str, int]:
        """The calls of all parts together, by key, those that are at most so many included."""
        return {key: sum(getattr(part, key) for part in self.parts) for key in KEYS}

    def on(self, upper: int, lower: int) -> "Cost":
        """The same calls with `upper` samples in every batch of f and `lower` in every one of g.

        For a method that is a part of another, which hands it these batches (`Draw.with_batches`).
        """
        total = Cost()
        for part in self.parts:
            f = part._with(dict.fromkeys(LOWER, 0))
            g = part._with(dict.fromkeys((*UPPER, "lmo", "project"), 0))
            total += replace(f, batch=upper, blocks=1) + replace(g, batch=lower, blocks=1)
        return total

    def _with(self, calls: dict[str, int]) -> "Cost":
        return replace(self, **calls)  # type: ignore[arg-type]  # mypy takes them for any field


class Moment(NamedTuple):
    """Where a run stands before a step, as far as the step's cost depends on it."""

    step: int = 0  # how many steps came before
    episodes: int = 1  # how many a step sees, on tasks of episodes
    samples: int = 0  # how many of the stream a step sees, on streams
    task: int = 0  # how many tasks of the stream are over
    task_step: int = 0  # how many steps of the present task came before


class Algorithm(NamedTuple):
    """init(x0, y0) makes the first state; step(oracle, state, draw) makes the next one and returns
    it with what it saw: scalars for the row, by their names.

    first_order: the algorithm promises to take no second derivative, and its oracle refuses them.
    on_stream: the algorithm is for tasks that are streams only, and `init` gets the task's stream
    as a third argument.
    cost: what each step calls, or a function that says what the step at a moment calls; tests hold
    it against the oracle's counts. None: nobody has said.
    kind: which problems the algorithm is for: "bilevel"; "minimax", where the lower loss is minus
    the upper one; "single-level", which has no lower loss; "episodes", whose lower problem is a new
    one at each step.
    """

    init: Callable[..., State]
    step: Callable[[Oracle, State, Draw], tuple[State, dict[str, Tensor]]]
    first_order: bool = False
    on_stream: bool = False
    cost: Cost | Callable[[Moment], Cost] | None = None
    kind: Kind = "bilevel"

    def cost_at(self, moment: Moment) -> Cost | None:
        """What the step at this moment calls; None: nobody has said."""
        return self.cost(moment) if callable(self.cost) else self.cost
