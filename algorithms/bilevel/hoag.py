"""HOAG (Pedregosa, ICML 2016, Algorithm 1): hyperparameter optimisation with approximate gradient.

Paper -> here: x -> y, lambda -> x, g -> f, h -> g; L -> 1 / the step size; epsilon_k -> tolerance
times the schedule's value at k.

The lower level and the linear system are both solved to the tolerance epsilon_k, relative to their
sizes at the first step; where such a size is 0, as at a start that solves the lower level, it is
taken for 1. The lower level is solved by gradient descent from the last y, the system by conjugate
gradients from the last solution. The step size of x adapts as in section 3 and in the author's code
(fabianp/hoag): it grows by 1 / .95 after a sufficient decrease of f, and halves after an increase.
After an increase by a fifth or more x also stays where it is. The test of a sufficient decrease is
that of the earlier versions of that code. It has epsilon_k in the units of f, so that f may rise by
about epsilon_k. The last version asks for more, halves the step size after an increase by a fifth
only, so that f may grow for ever by less, and moves twice along each direction that it accepts;
none of these is done here.

The method is deterministic and made for all the data.

Where `batch` is set, one batch of each level serves a whole outer step.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from bench.core.algorithm import Algorithm, Cost
from bench.core.draw import Draw
from bench.core.oracle import Asked, Oracle
from bench.core.settings import BadSetting, Count, Positive, version
from bench.numerics.descent import descent
from bench.numerics.inner import Loop, cg_until, descend_until, is_small


class State(NamedTuple):
    x: Tensor
    y: Tensor
    v: Tensor
    L: Tensor  # 1 / the step size; 0 before the first step
    f: Tensor  # the value of f at the last step
    sizes: Tensor  # |g_y| and |f_y| at the first step
    outer: Any  # the memory of Adam


@version(2)
def hoag(
    inner_lr: Positive,
    outer_lr: Positive | Literal["adaptive"] = "adaptive",
    schedule: Literal["quadratic", "cubic", "exponential"] = "exponential",
    tolerance: Positive = 0.1,
    T: Count = 1000,
    Q: Count = 100,
    batch: Count | None = None,
    outer_rule: Literal["gd", "adam"] = "gd",
) -> Algorithm:
    """HOAG.

    inner_lr: the step size of y. outer_lr: a fixed step size of x, or "adaptive", where the first
    one is sqrt(p) / |hypergradient| for x with p entries, or 1 where the hypergradient's norm is at
    most 1e-3. schedule, tolerance: epsilon_k is the tolerance times 1 / k^2 ("quadratic"), 1 / k^3
    ("cubic") or .9^k ("exponential"), as in the paper's experiments. Once it is below rounding, as
    after some hundred steps in float32, each step takes all T inner steps. T, Q: the most inner
    steps, and the most iterations of conjugate gradients. batch: the samples of a batch; None: all
    the data. outer_rule: the rule of the step on x, "gd" in the paper; stocBiO's appendix B has
    "adam". Raises BadSetting for Adam with a step size that adapts.
    """
    if outer_rule == "adam" and outer_lr == "adaptive":
        raise BadSetting("algorithm.outer_lr=adaptive: Adam takes a number; write outer_lr=0.01")
    outer = descent(outer_rule)

    def fall(k: int) -> float:
        return {"quadratic": k**-2.0, "cubic": k**-3.0, "exponential": 0.9**k}[schedule]

    def step(o: Oracle, s: State, draw: Draw) -> tuple[State, dict[str, Tensor]]:
        xi, zeta, k = draw.f(batch), draw.g(batch), draw.step + 1
        before, now = (tolerance * fall(max(j, 1)) for j in (k - 1, k))

        lower_sizes = [s.sizes[0]] if draw.step else []

        def lower_gradient(y: Tensor) -> Sequence[Asked]:
            return [Asked("g_y", s.x, y, zeta)]

        def is_met(gradient: Tensor) -> Tensor:
            if not lower_sizes:  # the very first gradient
                lower_sizes.append(or_one(gradient.norm()))
            return is_small(gradient, now * lower_sizes[0])

        # line 2: |y - y*(x)| to the tolerance
        ((y, *_),) = descend_until(o, [Loop(s.y, lower_gradient, inner_lr, is_met)], T)

        f, (f_x, f_y) = o.f(s.x, y, xi), o.grad_f(s.x, y, xi)
        size = s.sizes[1] if draw.step else or_one(f_y.norm())
        products = o.products(s.x, y, zeta)
        goal = (now * size.double()).to(size)
        v = cg_until(o, products.yy, f_y, goal, Q, start=s.v)  # line 3
        p = f_x - products.xy(v)  # line 4

        if outer_lr == "adaptive":
            first = torch.where(p.norm() > 1e-3, p.norm() / p.numel() ** 0.5, 1.0)
            L = torch.where(s.L == 0, first, s.L)
        else:
            L = 1 / p.new_full((), outer_lr)
        x, memory = s.x - p / L, s.outer  # line 5
        if outer_rule == "adam" and outer_lr != "adaptive":  # stocBiO's comparison, not the paper
            x, memory = outer.step(s.x, p, outer_lr, s.outer)
        x = o.project(x)
        if outer_lr == "adaptive":
            moved = (x - s.x).norm()
            enough = f - now <= s.f + before * (1 + moved) - L / 2 * moved.square()
            L = torch.where(enough, 0.95 * L, torch.where(f <= s.f, L, 2 * L))
            rejected = ~enough & (f - s.f >= 0.2 * s.f.abs())
            x = torch.where(rejected, s.x, x)
        sizes = torch.stack([lower_sizes[0], size])
        return State(x, y, v, L, f, sizes, memory), {"hypergrad_sq": p.square().sum()}

    def init(x: Tensor, y: Tensor) -> State:
        zero = x.new_zeros(())
        f = x.new_full((), torch.finfo(x.dtype).max)
        return State(x, y, torch.zeros_like(y), zero, f, x.new_zeros(2), outer.init(x))

    # There is no further inner step, or iteration, once its tolerance is met. The warm start costs
    # a product, which gives the residual of the last solution.
    cost = Cost(grad_g=1, value_f=1, grad_f=1, hvp_g=1, jvp_g=1, batch=batch)
    cost += Cost(grad_g=T, hvp_g=Q, batch=batch, at_most=True)
    return Algorithm(init, step, cost=cost)


def or_one(size: Tensor) -> Tensor:
    """The size that a tolerance is relative to: 1 in place of 0."""
    return torch.where(size > 0, size, 1.0)
