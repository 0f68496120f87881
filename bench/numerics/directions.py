"""The directions of methods that move y, x and the solution v of the linear system together
(Dagreou, Ablin, Vaiter, Moreau, NeurIPS 2022): g_y, f_x - g_xy v and g_yy v - f_y.

Here v approximates g_yy^{-1} f_y; the paper has its negative. v is shaped as y.
"""

from typing import NamedTuple

from torch import Tensor

from bench.core.draw import Draw
from bench.core.oracle import Oracle
from bench.core.task import Batch

STEPS_OF_CHANCE = 2**24  # a chance is rounded to a multiple of one in so many


class Point(NamedTuple):
    """The three variables, or a direction of each, which is shaped as its variable."""

    x: Tensor
    y: Tensor
    v: Tensor


def upper_parts(o: Oracle, at: Point, xi: Batch) -> tuple[Tensor, Tensor]:
    """(f_y, f_x) of a batch, shaped as y and x."""
    f_x, f_y = o.grad_f(at.x, at.y, xi)
    return f_y, f_x


def lower_parts(o: Oracle, at: Point, zeta: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """(g_y, g_yy v, g_xy v) of a batch, shaped as y, y and x."""
    g_y, products = o.linearise_g_y(at.x, at.y, zeta)
    mixed, curved = products.both(at.v)
    return g_y, curved, mixed


def directions(o: Oracle, at: Point, xi: Batch, zeta: Batch) -> Point:
    """The three directions, each shaped as its variable, of one batch each of f and g."""
    f_y, f_x = upper_parts(o, at, xi)
    g_y, curved, mixed = lower_parts(o, at, zeta)
    return Point(f_x - mixed, g_y, curved - f_y)


def cut(v: Tensor, at: float | None) -> Tensor:
    """v, of any shape, cut to [-at, at] in every coordinate; None: v as it is."""
    return v if at is None else v.clamp(-at, at)


def happens(draw: Draw, chance: float) -> bool:
    """Whether something happens that has this chance, by the step's named randomness."""
    return draw.integer(STEPS_OF_CHANCE) < chance * STEPS_OF_CHANCE
