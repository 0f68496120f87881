"""stocBiO (Ji, Yang, Liang, ICML 2021, Algorithms 2 and 3).

Paper -> here: alpha -> inner_lr, D -> T, beta -> outer_lr, S -> inner_batch, D_f, D_g and B ->
batch, eta and Q -> eta and Q; |D_H| -> one batch of g for each Neumann factor.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from bench.core.algorithm import Algorithm, Cost
from bench.core.draw import Draw
from bench.core.oracle import Oracle
from bench.core.settings import BadSetting, Count, NonNegative, Positive, Rate
from bench.core.task import Batch
from bench.numerics.descent import Descent


class State(NamedTuple):
    x: Tensor
    y: Tensor
    outer: Any
    velocity: Any  # of y; () without a momentum


def stocbio(
    outer: Descent,
    outer_lr: Positive,
    inner_lr: Positive,
    eta: Positive,
    T: Count = 10,
    Q: Count = 10,
    variant: Literal["paper", "code", "first"] = "paper",
    shrink: NonNegative = 0.0,
    batches: Literal["drawn", "fixed", "shuffled"] = "drawn",
    batch: Count | None = None,
    inner_batch: Count | None = None,
    inner_momentum: Rate = 0.0,
) -> Algorithm:
    """stocBiO, the stochastic bilevel optimiser.

    outer, outer_lr: the rule and the size of the step on x. inner_lr, T: the size and the number of
    the inner steps. inner_momentum: their momentum, whose velocity is kept from one outer step to
    the next, as in BOME's release. eta, Q: the step size and the factors of the Neumann series.
    variant: "first" is the estimator of the first release (JunjieYang97/stocBiO, commit d6dbc45),
    eta r_0 + r_1 + ... + r_Q, which forgets to scale all terms but the first. "code" is that of the
    releases since commit 08e9a44 (stocBiO.py, line 25), which has r_Q in place of r_0 besides.

    batch, inner_batch: the samples of a batch, and of an inner step's batch. None: all the data,
    which leaves no noise; for inner_batch: as batch. shrink: mu of Proposition 3, by which the
    batches of the factors have |B_{Q+1-j}| = B Q (1 - eta mu)^{j-1} samples, where B is batch; 0:
    they have `batch` samples, as in the paper's experiments.

    batches: "drawn" takes a new batch for each inner step, for F, for G and for each of the Q
    factors. "fixed" takes the same ones in every step, as l2reg_on_twentynews.py has done since
    commit 08e9a44: the data are cut into parts of about `batch` samples, the inner steps take g's
    first T parts in turn, and F, all Q factors and G take f's first three (lines 236 to 246, where
    H and J of g are of validation samples). "shuffled" does so too, but each outer step draws a new
    order of g's parts and one of f's, as in the commits before. Both are for tasks whose batches
    carry their samples.

    Raises BadSetting for shrink without a batch or with eta shrink >= 1, and for fixed or shuffled
    batches with shrink or an inner_batch.

    Caveat: the series is cut, which biases the hypergradient, the more the worse the lower level
    is conditioned; a larger Q mends this.
    """
    sizes = [batch] * Q
    if shrink:
        if batch is None or eta * shrink >= 1:
            raise BadSetting(
                f"algorithm.shrink={shrink}: Proposition 3 needs algorithm.batch, and "
                f"algorithm.eta below 1 / shrink; write algorithm.shrink=0 for fixed batches"
            )
        growth = [(1 - eta * shrink) ** (j - 1) for j in range(1, Q + 1)]
        sizes = [max(1, math.ceil(batch * Q * g)) for g in growth]

    if batches != "drawn" and (shrink or inner_batch):
        raise BadSetting(
            f"algorithm.batches={batches}: its parts are of algorithm.batch samples; write "
            "algorithm.shrink=0 algorithm.inner_batch=null"
        )

    def init(x: Tensor, y: Tensor) -> State:
        return State(x, y, outer.init(x), torch.zeros_like(y) if inner_momentum else ())

    def draw_anew(draw: Draw) -> tuple[list[Batch], Batch, list[Batch], Batch]:
        """The batches of the inner steps, of F, of the factors and of G."""
        S = [draw.g(inner_batch or batch) for _ in range(T)]
        D_F, D_G = draw.f(batch), draw.g(batch)
        return S, D_F, [draw.g(size) for size in sizes], D_G

    def take_parts(draw: Draw) -> tuple[list[Batch], Batch, list[Batch], Batch]:
        """The same four, which are parts of the data."""
        S, D = _parts(draw, "lower", batch, batches), _parts(draw, "upper", batch, batches)
        return [S(t) for t in range(T)], D(0), [D(1)] * Q, D(2)

    def step(o: Oracle, s: State, draw: Draw) -> tuple[State, dict[str, Tensor]]:
        S, D_F, D_H, D_G = draw_anew(draw) if batches == "drawn" else take_parts(draw)
        x, y, velocity = s.x, o.start(s.y, S[0]), s.velocity

        for S_t in S:  # Algorithm 2, lines 4-7
            direction = o.g_y(x, y, S_t)
            if inner_momentum:  # not in the paper
                direction = velocity = inner_momentum * velocity + direction
            y = o.project_y(y - inner_lr * direction)

        f_x, v_0 = o.grad_f(x, y, D_F)  # lines 8-9

        r, total, kept = v_0, v_0, []  # line 10, Algorithm 3: r_Q = v_0, then B_Q, ..., B_1
        for B_j in D_H:
            r = r - eta * o.g_yy(x, y, B_j)(r)
            if variant == "paper":
                total = total + r
            else:
                kept.append(r)
        begin = v_0 if variant == "first" else r  # the later releases' sum begins with the last r
        v_Q = eta * total if variant == "paper" else sum(kept, eta * begin)

        hypergrad = f_x - o.g_xy(x, y, D_G)(v_Q)  # line 12, equation (6)
        x, memory = outer.step(x, hypergrad, outer_lr, s.outer)  # line 13
        return State(o.project(x), y, memory, velocity), {"hypergrad_sq": hypergrad.square().sum()}

    cost = Cost(grad_g=T, batch=inner_batch or batch) + Cost(grad_f=1, jvp_g=1, batch=batch)
    for size, factors in Counter(sizes).items():
        cost += Cost(hvp_g=factors, batch=size)  # a part has at most so many samples
    return Algorithm(init, step, cost=cost)


def _parts(
    draw: Draw, side: Literal["upper", "lower"], size: int | None, batches: str
) -> Callable[[int], Batch]:
    """All the data of this side in parts of at most `size` samples; size None: in one part.

    Gives the function that takes the i-th of them, from the first on again after the last: in the
    order of the data, or in one that is drawn at each step for batches "shuffled".
    """
    n = draw.blocks(side, 1).n
    found = draw.blocks(side, min(n, n // size + 1) if size else 1)
    order: Sequence[int] = range(len(found))
    if batches == "shuffled":
        order = draw.some(torch.arange(len(found)), len(found)).tolist()
    return lambda i: found[order[i % len(order)]]
