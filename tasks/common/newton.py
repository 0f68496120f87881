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

    A step that does not descend enough is halved; what rounding adds to a value is no ascent. The
    values of a gradient are vectors, those of a Hessian are matrices. Where the gradient is no
    number, as after a run that has diverged, so is what this gives. Raises ArithmeticError if 100
    steps do not end there.
    """
    y, eps = start, torch.finfo(start.dtype).eps
    for _ in range(100):
        slope = gradient(y)
        step = torch.linalg.solve(hessian(y), slope)
        decrement, now = float(slope @ step), float(value(y))
        rounding = eps * (1 + abs(now))
        if not decrement > eps**0.5 * rounding:  # the next step would change y by rounding alone
            return y - step
        t = 1.0
        while float(value(y - t * step)) > now + rounding - 0.1 * t * decrement and t > 1e-3:
            t /= 2
        y = y - t * step
    raise ArithmeticError("Newton's method has not come to a minimiser in 100 steps")
