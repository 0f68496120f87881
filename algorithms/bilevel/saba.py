"""SABA (Dagreou, Ablin, Vaiter, Moreau, NeurIPS 2022, Algorithm 1 with the directions of section
3.2): SAGA on SOBA's three directions.

Paper -> here: rho -> inner_lr (for y and for v), gamma -> outer_lr; v has the other sign.

The paper's tables hold an entry for each row of the data. Here the rows of each level are cut into
`blocks` blocks of consecutive rows, and a table holds an entry for each block. There is a table of
each of g_y, g_yy v and g_xy v, and of f_y and f_x; the first step fills them all.

A direction is (n_b B / n) (new - old entry of a random block b) plus the mean of the table over the
rows, which is kept beside the table: an unbiased estimate for blocks of unequal length too.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from bench.core.algorithm import Algorithm, Cost, Moment
from bench.core.draw import Draw
from bench.core.oracle import Oracle
from bench.core.settings import Count, Positive
from bench.core.task import Batch
from bench.numerics.directions import Point, lower_parts, upper_parts
from bench.numerics.tables import Parts, Tables, empty, fill, saga


class State(NamedTuple):
    x: Tensor
    y: Tensor
    v: Tensor
    lower: Tables  # g_y, g_yy v and g_xy v, shaped as y, y and x, for each block
    upper: Tables  # f_y and f_x, shaped as y and x, for each upper block


def saba(
    outer_lr: Positive,
    inner_lr: Positive,
    blocks: Count = 64,
    upper_blocks: Count | None = None,
) -> Algorithm:
    """SABA. With one block its steps are SOBA's with all the data.

    outer_lr: the step size of x. inner_lr: that of y and v. blocks: into how many blocks the rows
    of each level are cut. upper_blocks: the same of the upper level alone, whose blocks are else
    smaller or larger than those of the lower one; None: as blocks. Raises BadSetting in its first
    step if there are fewer rows.
    """
    above = upper_blocks or blocks

    def step(o: Oracle, s: State, draw: Draw) -> tuple[State, dict[str, Tensor]]:
        at = Point(s.x, s.y, s.v)
        upper, lower = draw.blocks("upper", above), draw.blocks("lower", blocks)

        def entries_f(block: Batch) -> Parts:
            return upper_parts(o, at, block)

        def entries_g(block: Batch) -> Parts:
            return lower_parts(o, at, block)

        table_f, table_g = s.upper, s.lower
        if draw.step == 0:
            table_f, table_g = fill(entries_f, upper), fill(entries_g, lower)
        i, j = draw.integer(above), draw.integer(blocks)
        (f_y, f_x), table_f = saga(entries_f(upper[i]), upper, i, table_f)
        (D_y, curved, mixed), table_g = saga(entries_g(lower[j]), lower, j, table_g)
        D_v, D_x = curved - f_y, f_x - mixed

        y, v = o.project_y(at.y - inner_lr * D_y), at.v - inner_lr * D_v
        x = o.project(at.x - outer_lr * D_x)
        return State(x, y, v, table_g, table_f), {"hypergrad_sq": D_x.square().sum()}

    def init(x: Tensor, y: Tensor) -> State:
        return State(x, y, torch.zeros_like(y), empty(blocks, y, y, x), empty(above, y, x))

    def cost(at: Moment) -> Cost:
        f, g = Cost(grad_f=1, blocks=above), Cost(grad_g=1, jvp_g=1, hvp_g=1, blocks=blocks)
        if at.step == 0:  # The first step fills the tables.
            return f * (above + 1) + g * (blocks + 1)
        return f + g

    return Algorithm(init, step, cost=cost)
