"""BVFSM (Liu, Liu, Zeng, Zhang, Zhang, 2021, arXiv 2110.04974): value-function-based sequential
minimisation.

Paper -> here: x, y, z -> x, y, z; mu and theta -> l2 r_k, sigma -> log r_k, where r_k is the common
decay of the regularisers; T_z = T_y -> T.

The barrier is a number only where the argument of its logarithm is positive. The solution of the
paper's subproblem lies there, but the paper leaves open how gradient steps stay there. Variant
"paper" starts the inner loop of y from z, which lies in that domain, where the last y does not. A
step that would leave the domain is not taken, and the loop's later steps are half as long.

Where `batch` is set, one batch of each level serves a whole outer step.
"""

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from bench.core.algorithm import Algorithm, Cost
from bench.core.draw import Draw
from bench.core.oracle import Oracle
from bench.core.settings import BadSetting, Count, NonNegative, Positive, Rate, version
from bench.numerics.descent import Descent, heavy_ball


class State(NamedTuple):
    x: Tensor
    y: Tensor
    z: Tensor
    outer: Any
    k: Tensor


@version(2)
def bvfsm(
    outer: Descent,
    outer_lr: Positive,
    lower_lr: Positive,
    inner_lr: Positive,
    T: Count = 10,
    l2: NonNegative = 0.1,
    log: NonNegative = 0.1,
    variant: Literal["paper", "code"] = "paper",
    decay: Literal["constant", "log", "power"] = "log",
    rate: Positive = 1.1,
    horizon: Count = 5000,
    inner_momentum: Rate = 0.0,
    eps: NonNegative = 1e-4,
    batch: Count | None = None,
) -> Algorithm:
    """BVFSM.

    outer, outer_lr: the rule and the size of the step on x. lower_lr, inner_lr: the step sizes of y
    and z. T, inner_momentum: the number and the momentum of the steps on each of them; a step that
    would leave the domain of the logarithm is not taken, and leaves no momentum. l2, log: the
    weights of the regularisers and of the barrier, which is
    -log r_k log(g(z) + l2 r_k |z|^2 - g(y) + eps). variant: "code" adds the detached value of g(y)
    inside the logarithm, so that the barrier's weight does not see g(y). decay, rate, horizon: r_k
    is 1 / log(rate (horizon + 1)) ("constant", as in BOME's released code for its toys),
    1 / log(rate (k + 1)) ("log") or (k + 1)^-rate ("power", both as in BOME's released code for its
    hyperparameter problems). batch: the samples of a batch; None: all the data.

    Raises BadSetting where a logarithm in r_k would be at most 0, and for l2 and eps that are both
    0, with which the barrier begins at its pole. With eps = 0 the barrier also has a pole at z = 0,
    and a run whose z gets there ends with nan.

    Caveat: the regularisers and the barrier fall as slowly as r_k does, and shift the end
    meanwhile.
    """
    check_rate(decay, rate, horizon)
    if l2 == eps == 0:
        raise BadSetting(
            "algorithm.eps=0: with algorithm.l2=0 it divides by zero; write eps or l2 above 0"
        )

    def init(x: Tensor, y: Tensor) -> State:
        return State(x, y, y, outer.init(x), x.new_zeros(()))

    def regularisation(k: Tensor) -> Tensor:
        """r_k."""
        if decay == "power":
            return (k + 1) ** -rate
        return 1 / torch.log(rate * ((k if decay == "log" else k * 0 + horizon) + 1))

    def step(o: Oracle, s: State, draw: Draw) -> tuple[State, dict[str, Tensor]]:
        x, y, z = s.x, s.y, s.z
        xi, zeta = draw.f(batch), draw.g(batch)
        r = regularisation(s.k)

        velocity = torch.zeros_like(z)
        for _ in range(T):  # z follows argmin_z g(x, z) + l2 r |z|^2
            gradient = o.g_y(x, z, zeta) + 2 * l2 * r * z
            z, velocity = heavy_ball(z, gradient, velocity, inner_lr, inner_momentum)
            z = o.project_y(z)
        bound = o.g(x, z, zeta) + l2 * r * z.square().sum()

        def argument(y: Tensor) -> Tensor:
            """What the barrier takes the logarithm of."""
            return (bound if variant == "code" else bound - o.g(x, y, zeta)) + eps

        inside = argument(y)
        if variant == "paper":
            at_z = l2 * r * z.square().sum() + eps
            y, inside = torch.where(inside > 0, y, z), torch.where(inside > 0, inside, at_z)
        velocity, lr = torch.zeros_like(y), torch.full_like(r, lower_lr)
        for _ in range(T):  # y follows argmin_y f(x, y) + barrier + l2 r |y|^2
            weight = log * r / inside  # of grad g(y) - grad bound in the barrier's gradient
            gradient = o.f_y(x, y, xi) + weight * o.g_y(x, y, zeta) + 2 * l2 * r * y
            new, new_velocity = heavy_ball(y, gradient, velocity, lr, inner_momentum)
            new = o.project_y(new)
            new_inside = argument(new)
            if variant == "paper":
                stays = new_inside > 0
                new, new_inside = torch.where(stays, new, y), torch.where(stays, new_inside, inside)
                new_velocity = torch.where(stays, new_velocity, 0.0)
                lr = torch.where(stays, lr, lr / 2)
            y, inside, velocity = new, new_inside, new_velocity

        weight = log * r / inside
        direction = o.f_x(x, y, xi) + weight * (o.g_x(x, y, zeta) - o.g_x(x, z, zeta))
        x, memory = outer.step(x, direction, outer_lr, s.outer)
        return State(o.project(x), y, z, memory, s.k + 1), {"decay": r}

    # The weight of the barrier, which is taken T + 1 times, sees g(y) in the paper only.
    values = T + 1 if variant == "paper" else 0
    cost = Cost(grad_g=2 * T + 2, grad_f=T + 1, value_g=1 + values, batch=batch)
    return Algorithm(init, step, first_order=True, cost=cost)


def check_rate(decay: str, rate: float, horizon: int) -> None:
    """Raise BadSetting unless every r_k is positive and finite."""
    if decay == "log" and rate <= 1:
        raise BadSetting(
            f"algorithm.rate={rate}: 1 / log(rate (k + 1)) must be positive from k = 0 on; write a "
            "rate above 1 or algorithm.decay=power"
        )
    if decay == "constant" and rate * (horizon + 1) <= 1:
        raise BadSetting(
            f"algorithm.rate={rate}: 1 / log(rate (horizon + 1)) must be positive; write a rate "
            f"above {1 / (horizon + 1):.3g}"
        )
