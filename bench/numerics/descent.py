"""How a direction becomes a step, for the papers that say "and use Adam here"."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from bench.core.settings import NonNegative, Positive, Rate

RuleName = Literal["gd", "momentum", "adam"]


class Descent(NamedTuple):
    """A rule of descent with a memory, such as a momentum.

    init(point) returns the first memory; step(point, direction, lr, memory) returns the next point
    and the next memory. direction is what gradient descent with lr = 1 would subtract. Points and
    directions have one shape, which is any.
    """

    init: Callable[[Tensor], Any]
    step: Callable[[Tensor, Tensor, float | Tensor, Any], tuple[Tensor, Any]]


def descent(
    rule: RuleName = "gd",
    momentum: Rate = 0.9,
    b1: Rate = 0.9,
    b2: Rate = 0.999,
    eps: NonNegative = 1e-8,
) -> Descent:
    """The rule of this name, for configurations. Settings of the other rules are not used."""
    if rule == "adam":
        return adam(b1, b2, eps)
    return gd() if rule == "gd" else heavy_ball_descent(momentum)


def gd() -> Descent:
    """Gradient descent."""
    return Descent(no_memory, lambda p, d, lr, m: (down(p, d, lr), m))


def clamped(at: Positive = 1.0) -> Descent:
    """Gradient descent whose direction is cut to [-at, at] in every coordinate."""
    return Descent(no_memory, lambda p, d, lr, m: (down(p, d.clamp(-at, at), lr), m))


def decaying(
    rule: RuleName = "gd",
    decay: NonNegative = 0.5,
    momentum: Rate = 0.9,
    b1: Rate = 0.9,
    b2: Rate = 0.999,
    eps: NonNegative = 1e-8,
) -> Descent:
    """The rule of this name, with lr / (1 + k)^decay in place of lr at step k = 0, 1, 2, ...

    With decay in (1/2, 1] the steps are those of Robbins and Monro (1951, equation 6): their sum
    diverges, and that of their squares does not.
    """
    constant = descent(rule, momentum, b1, b2, eps)

    def init(p: Tensor) -> Any:
        return p.new_zeros(()), constant.init(p)

    def step(p: Tensor, d: Tensor, lr: float | Tensor, m: Any) -> tuple[Tensor, Any]:
        k, memory = m
        p, memory = constant.step(p, d, lr * (1 + k) ** -decay, memory)
        return p, (k + 1, memory)

    return Descent(init, step)


def no_memory(point: Tensor) -> Any:
    """The memory, for a point of any shape, of a rule that has none."""
    return ()


def heavy_ball_descent(momentum: Rate = 0.9) -> Descent:
    """Heavy ball as torch.optim.SGD does it: m = momentum m + d, p = p - lr m."""

    def step(p: Tensor, d: Tensor, lr: float | Tensor, m: Any) -> tuple[Tensor, Any]:
        p, velocity = heavy_ball(p, d, m[0], lr, momentum)
        return p, (velocity,)

    return Descent(lambda p: (torch.zeros_like(p),), step)


def adam(b1: Rate = 0.9, b2: Rate = 0.999, eps: NonNegative = 1e-8) -> Descent:
    """Adam (Kingma and Ba, ICLR 2015), with bias correction."""

    def init(p: Tensor) -> Any:
        return torch.zeros_like(p), torch.zeros_like(p), p.new_zeros(())

    def step(p: Tensor, d: Tensor, lr: float | Tensor, m: Any) -> tuple[Tensor, Any]:
        first, second, k = m
        first, second, k = b1 * first + (1 - b1) * d, b2 * second + (1 - b2) * d * d, k + 1
        direction = first / (1 - b1**k) / ((second / (1 - b2**k)).sqrt() + eps)
        return down(p, direction, lr), (first, second, k)

    return Descent(init, step)


def heavy_ball(
    p: Tensor, gradient: Tensor, velocity: Tensor, lr: float | Tensor, momentum: float
) -> tuple[Tensor, Tensor]:
    """One inner step: (p - lr m, m) with m = momentum velocity + gradient, all shaped as p."""
    velocity = gradient if momentum == 0 else momentum * velocity + gradient
    return down(p, velocity, lr), velocity


def down(p: Tensor, direction: Tensor, lr: float | Tensor) -> Tensor:
    """p - lr direction, shaped as p, which is one operation where lr is a number."""
    if isinstance(lr, Tensor):
        return p - lr * direction
    return torch.sub(p, direction, alpha=lr)
