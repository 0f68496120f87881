"""Our method beside a method by hand, with what each step reports as well as its state."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from bench.core.algorithm import Algorithm
from bench.core.draw import Draw
from bench.core.loop import advance, first
from bench.core.task import Batch, Loss, Task

Values = dict[str, Any]  # a field of the state, or "info/" and a key of the report -> its value
ByHand = Callable[[Callable[[int], Draw]], Iterator[Values]]


def assert_follows(
    task: Task,
    algorithm: Algorithm,
    by_hand: ByHand,
    steps: int = 3,
    seed: int = 0,
    rtol: float = 1e-10,
) -> None:
    """Our method and the paper's box go the same way and report the same.

    by_hand(draws) yields the values after each step; draws(k) is a fresh Draw of step k.
    rtol: both sum the same terms in another order, in float64.
    """
    theirs = by_hand(lambda k: Draw(task, seed, k))
    standing = first(task, algorithm, seed)
    for k in range(steps):
        with torch.no_grad():
            standing = advance(task, algorithm, seed, standing)
        for name, expected in next(theirs).items():
            key = name.removeprefix("info/")
            found = getattr(standing.state, name) if key == name else standing.info[key]
            expected = torch.as_tensor(expected, dtype=found.dtype)
            torch.testing.assert_close(
                found,
                expected,
                rtol=rtol,
                atol=1e-12,
                msg=lambda m, at=f"{name} after step {k}": f"{at}: {m}",
            )


def partials(loss: Loss, x: Tensor, y: Tensor, rows: Batch) -> tuple[Tensor, Tensor]:
    """(d loss / dx, d loss / dy), in one pass, which is quicker than problem.py's."""
    x, y = x.detach().requires_grad_(), y.detach().requires_grad_()
    with torch.enable_grad():
        found = torch.autograd.grad(loss(x, y, rows), (x, y), materialize_grads=True)
    return found[0], found[1]


class HeavyBall:
    """m = momentum m + direction, point = point - lr m, in its own words."""

    def __init__(self, lr: float, momentum: float = 0.0):
        self.lr, self.momentum = lr, momentum
        self.m: Any = 0.0

    def __call__(self, point: Tensor, direction: Tensor) -> Tensor:
        """The next point."""
        self.m = self.momentum * self.m + direction
        return point - self.lr * self.m
