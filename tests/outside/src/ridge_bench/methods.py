"""One-step differentiation: the hypergradient through the last of T inner steps alone."""

from typing import NamedTuple

from torch import Tensor

from bench.core.algorithm import Algorithm, Cost
from bench.core.draw import Draw
from bench.core.oracle import Oracle
from bench.core.settings import Count, Positive

from .steps import descend


class State(NamedTuple):
    x: Tensor
    y: Tensor


def one_step(outer_lr: Positive = 0.1, inner_lr: Positive = 0.1, T: Count = 5) -> Algorithm:
    """One-step differentiation. T, inner_lr: number and size of the inner steps."""

    def step(o: Oracle, s: State, draw: Draw) -> tuple[State, dict[str, Tensor]]:
        x, y = s.x, s.y
        for _ in range(T):
            y = o.project_y(descend(y, o.g_y(x, y, draw.g(None)), inner_lr))
        f_x, f_y = o.grad_f(x, y, draw.f(None))
        hypergrad = f_x - inner_lr * o.g_xy(x, y, draw.g(None))(f_y)
        return State(o.project(descend(x, hypergrad, outer_lr)), y), {}

    return Algorithm(State, step, cost=Cost(grad_g=T, grad_f=1, jvp_g=1))
