"""What an algorithm is: two pure functions on an explicit state."""

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from bench.core.draw import Draw
from bench.core.oracle import Oracle

State = Any  # a NamedTuple of tensors (nested allowed) with at least the fields x and y


class Algorithm(NamedTuple):
    """`init(x0, y0)` makes the first state; `step` makes the next one and says what it saw.

    first_order: it promises to take no second derivative, and its oracle refuses them. on_stream:
    only for tasks that are streams, which `init` gets as a third argument.
    """

    init: Callable[..., State]
    step: Callable[[Oracle, State, Draw], tuple[State, dict[str, Tensor]]]
    first_order: bool = False
    on_stream: bool = False
