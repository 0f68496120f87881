"""Single-loop methods with ZeroSARAH's estimator (Li, Hanzely, Richtarik, 2021, Algorithm 2): SFFBA
and MSEBA (Chu, Xu, Yao, Yu, Zhang, "A Provably Convergent Plug-and-Play Framework for Stochastic
Bilevel Optimization", arXiv 2505.01258, 2025).

Paper -> here: the step sizes of y, of the linear system and of x -> inner_lr, system_lr and
outer_lr; ZeroSARAH's lambda -> weight, and its samples of a batch -> those of one of `blocks`
blocks of consecutive rows, as in SABA; PAGE's probability p -> chance. Here v approximates
g_yy^{-1} f_y.

SFFBA estimates each of SOBA's three directions by ZeroSARAH and never sees all the data at once.
MSEBA mixes: ZeroSARAH for y, and PAGE for v and x.

Of the paper only the abstract could be read here. Which variable has which estimator is as in the
solvers that the authors offered to benchmark_bilevel (pull request 47), of which MSEBA's could be
read as a whole and SFFBA's in the lines that its review quotes. ZeroSARAH is that of its own paper:
lambda is 1 at the first step and then b / (2 n). The released solvers have another estimator
(`estimator: released`; bench/numerics/tables.py says what it is) and one lambda at every step;
MSEBA's has a chance of .05, in which its revisions differ, and cuts v at 1.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from bench.core.algorithm import Algorithm, Cost, Moment
from bench.core.draw import Draw
from bench.core.oracle import Oracle
from bench.core.settings import Count, Fraction, Positive
from bench.core.task import Batch
from bench.numerics.directions import Point, cut, happens, lower_parts, upper_parts
from bench.numerics.tables import Parts, Tables, empty, zerosarah

Estimator = Literal["paper", "released"]


class SffbaState(NamedTuple):
    x: Tensor
    y: Tensor
    v: Tensor
    last: Point  # the point of the step before
    lower: Tables  # g_y, g_yy v and g_xy v, shaped as y, y and x, for each block
    upper: Tables  # f_y and f_x, shaped as y and x, for each upper block
    parts: tuple[Parts, Parts]  # the estimates of the upper and of the lower parts


def sffba(
    outer_lr: Positive,
    inner_lr: Positive,
    system_lr: Positive,
    estimator: Estimator = "paper",
    weight: Fraction | None = None,
    clip: Positive | None = None,
    blocks: Count = 64,
    upper_blocks: Count | None = None,
) -> Algorithm:
    """SFFBA, which never sees all the data at once.

    outer_lr, inner_lr, system_lr: the step sizes of x, y and v. estimator: "paper" is ZeroSARAH,
    "released" that of the authors' solver. weight: lambda; None: half of a block's share of the
    rows. It is 1 at the first step of "paper". clip: v is cut to [-clip, clip] in every coordinate;
    None: it is not. blocks, upper_blocks: into how many blocks the rows of each level, and those of
    the upper one, are cut; None: as blocks. Raises BadSetting in its first step if there are fewer
    rows.

    Caveat: where g_yy^{-1} f_y has a coordinate beyond clip, the method goes to a point that is no
    solution.
    """
    above, released = upper_blocks or blocks, estimator == "released"

    def step(o: Oracle, s: SffbaState, draw: Draw) -> tuple[SffbaState, dict[str, Tensor]]:
        at, first = Point(s.x, s.y, s.v), draw.step == 0
        upper, lower = draw.blocks("upper", above), draw.blocks("lower", blocks)
        i, j = draw.integer(above), draw.integer(blocks)
        pair_f = upper_parts(o, at, upper[i]), upper_parts(o, s.last, upper[i])
        pair_g = lower_parts(o, at, lower[j]), lower_parts(o, s.last, lower[j])
        last_f, last_g = s.parts
        share_f, share_g = (_weight(weight, b, first and not released) for b in (above, blocks))
        f, table_f = zerosarah(pair_f, last_f, share_f, upper, i, s.upper, released)
        g, table_g = zerosarah(pair_g, last_g, share_g, lower, j, s.lower, released)
        (f_y, f_x), (D_y, curved, mixed) = f, g
        D_v, D_x = curved - f_y, f_x - mixed

        x, y = o.project(at.x - outer_lr * D_x), o.project_y(at.y - inner_lr * D_y)
        v = cut(at.v - system_lr * D_v, clip)
        new = SffbaState(x, y, v, at, table_g, table_f, (tuple(f), tuple(g)))
        return new, {"hypergrad_sq": D_x.square().sum()}

    def init(x: Tensor, y: Tensor) -> SffbaState:
        v, none = torch.zeros_like(y), torch.zeros_like(x)
        tables = empty(blocks, y, y, x), empty(above, y, x)
        return SffbaState(x, y, v, Point(x, y, v), *tables, ((v, none), (v, v, none)))

    f, g = Cost(grad_f=2, blocks=above), Cost(grad_g=2, jvp_g=2, hvp_g=2, blocks=blocks)
    return Algorithm(init, step, cost=f + g)


class MsebaState(NamedTuple):
    x: Tensor
    y: Tensor
    v: Tensor
    last: Point  # the point of the step before
    lower: Tables  # g_y, shaped as y, for each block
    directions: Point


def mseba(
    outer_lr: Positive,
    inner_lr: Positive,
    system_lr: Positive,
    estimator: Estimator = "paper",
    weight: Fraction | None = None,
    chance: Fraction = 0.05,
    clip: Positive | None = None,
    blocks: Count = 64,
    batch: Count | None = None,
) -> Algorithm:
    """MSEBA, of two estimators: ZeroSARAH for y, PAGE for v and x.

    outer_lr, inner_lr, system_lr: the step sizes of x, y and v. estimator: that of y; "paper" is
    ZeroSARAH, "released" that of the authors' solver. weight: lambda; None: half of a block's share
    of the rows. It is 1 at the first step of "paper". chance: that of a restart of v's and x's
    directions with all the data at each step; the first step is one. clip: v is cut to [-clip,
    clip] in every coordinate; None: it is not. blocks: into how many blocks the rows of the lower
    level are cut, for y. batch: the samples of a batch, for v and x; None: all the data. Raises
    BadSetting in its first step if there are fewer rows than blocks.

    Caveat: where g_yy^{-1} f_y has a coordinate beyond clip, the method goes to a point that is no
    solution.
    """
    released = estimator == "released"

    def step(o: Oracle, s: MsebaState, draw: Draw) -> tuple[MsebaState, dict[str, Tensor]]:
        at, first = Point(s.x, s.y, s.v), draw.step == 0
        lower, j = draw.blocks("lower", blocks), draw.integer(blocks)
        block, share = lower[j], _weight(weight, blocks, first and not released)
        now, before = (o.g_y(p.x, p.y, block) for p in (at, s.last))
        pair, last = ((now,), (before,)), (s.directions.y,)
        (D_y,), table = zerosarah(pair, last, share, lower, j, s.lower, released)
        if happens(draw, chance) or first:
            D_x, D_v = _both(o, at, draw.f(None), draw.g(None))
        else:
            xi, zeta = draw.f(batch), draw.g(batch)
            (x_1, v_1), (x_0, v_0) = (_both(o, p, xi, zeta) for p in (at, s.last))
            D_x, D_v = s.directions.x + x_1 - x_0, s.directions.v + v_1 - v_0

        x, y = o.project(at.x - outer_lr * D_x), o.project_y(at.y - inner_lr * D_y)
        v = cut(at.v - system_lr * D_v, clip)
        new = MsebaState(x, y, v, at, table, Point(D_x, D_y, D_v))
        return new, {"hypergrad_sq": D_x.square().sum()}

    def init(x: Tensor, y: Tensor) -> MsebaState:
        v = torch.zeros_like(y)
        return MsebaState(
            x, y, v, Point(x, y, v), empty(blocks, y), Point(torch.zeros_like(x), v, v)
        )

    def cost(at: Moment) -> Cost:
        of_y, whole = Cost(grad_g=2, blocks=blocks), Cost(grad_f=1, jvp_g=1, hvp_g=1)
        if at.step == 0:
            return of_y + whole
        other = Cost(grad_f=1, jvp_g=1, hvp_g=1, batch=batch, at_most=True)
        return of_y + Cost(grad_f=1, jvp_g=1, hvp_g=1, at_most=True) + other

    return Algorithm(init, step, cost=cost)


def _weight(weight: float | None, blocks: int, whole: bool) -> float:
    """ZeroSARAH's lambda; `whole`: it is the first step's."""
    if whole:
        return 1.0
    return 1 / (2 * blocks) if weight is None else weight


def _both(o: Oracle, at: Point, xi: Batch, zeta: Batch) -> tuple[Tensor, Tensor]:
    """The directions of x and v of one batch each of f and g, without that of y."""
    f_y, f_x = upper_parts(o, at, xi)
    mixed, curved = o.products(at.x, at.y, zeta).both(at.v)
    return f_x - mixed, curved - f_y
