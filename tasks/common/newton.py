"""Newton's method, for the exact solutions that a yardstick is made of."""

from collections.abc import Callable

import torch
from torch import Tensor


def newton(
    value: Callable[[Tensor], Tensor],
    gradient: Callable[[Tensor], Tensor],
    hessian: Callable[[Tensor], Tensor],
    start: Tensor,
) -> Tensor:
    """The minimiser of a strongly convex function of a vector up to rounding, from `start` on.

    A step that does not descend enough is halved. The values of a gradient are vectors, those of a
    Hessian are matrices.
    """
    y = start
    for _ in range(100):
        slope = gradient(y)
        step = torch.linalg.solve(hessian(y), slope)
        decrement, t = float(slope @ step), 1.0
        if decrement <= 1e-30:
            break
        now = float(value(y))
        while float(value(y - t * step)) > now - 0.1 * t * decrement and t > 1e-3:
            t /= 2
        y = y - t * step
    return y
