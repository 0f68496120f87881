"""Inner loops that end where a tensor says so, without waiting for a GPU at each of their steps."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from bench.core.oracle import Asked, Oracle
from bench.numerics.solve import cg_iterates, dot

# On a GPU the host looks after so many steps, then after twice as many, and so on: a look waits
# until all work is done, and a step past the end is as dear as any other. On a CPU a look is free.
STEPS_A_LOOK = 4


def waits_for(t: Tensor) -> bool:
    """Whether the host, when it looks into a tensor of any shape, waits for the tensor's device."""
    return t.is_cuda


class Loop(NamedTuple):
    """Gradient steps from a start, until is_met(gradient), which gives a truth value as a scalar.

    asked(y): the gradients of which the one at y is made. gradient(*answers): that one; the usual
    loop has just one of them.
    """

    start: Tensor
    asked: Callable[[Tensor], Sequence[Asked]]
    lr: float
    is_met: Callable[[Tensor], Tensor]
    gradient: Callable[..., Tensor] = lambda answer: answer


def is_small(gradient: Tensor, to: float | Tensor) -> Tensor:
    """Whether the norm of a gradient, of any shape, is at most `to`, or no number, which no step
    would mend: a truth value as a scalar."""
    return ~(gradient.norm() > to)


class Ended(NamedTuple):
    """Where a loop ended: the point, the gradient there, the number of steps, and whether is_met
    ended them."""

    y: Tensor
    gradient: Tensor
    steps: int
    met: bool


def descend_until(
    o: Oracle, loops: Sequence[Loop], cap: int, steps_a_look: int | None = None
) -> list[Ended]:
    """The ends of some loops, of at most `cap` steps each. They go side by side, so that their
    gradients may be taken in one pass.

    On a GPU some steps are taken past the end before anybody looks: these move nothing, and are not
    counted, so that the result and the counts are those of a CPU. steps_a_look: the host looks
    after so many steps at first; None: as the device asks for.
    """
    looked = steps_a_look or (STEPS_A_LOOK if waits_for(loops[0].start) else 1)
    every = [_Going(o, loop) for loop in loops]
    going, taken = every, 0  # how many gradients each of them has taken
    while going:
        many = min(looked, cap + 1 - taken)
        for _ in range(many):
            asked = [one.ask() for one in going]
            answers = iter(o.uncounted([a for own in asked for a in own]))
            for one, own in zip(going, asked):
                one.take([next(answers) for _ in own])
        met = torch.stack([m for one in going for m in one.met]).view(-1, many).tolist()
        for one, seen in zip(going, met):
            one.look(seen, taken)
        taken += many
        looked *= 2 if looked > 1 else 1
        going = [one for one in going if not one.ended and taken <= cap]
    return [each.end(o) for each in every]


class _Going:
    """A loop on its way, with a meter of its own."""

    def __init__(self, o: Oracle, loop: Loop):
        self.loop, self.y, self.o = loop, loop.start, Oracle(o.task, o.first_order)
        self.gradient: Tensor | None = None
        self.met: list[Tensor] = []  # since the last look
        self.counts: list[tuple[Counter[str], Counter[str]]] = []  # at each of these
        self.steps, self.ended = 0, False

    def ask(self) -> Sequence[Asked]:
        """Take a step, but for the first time, and say what the gradient there is made of."""
        if self.gradient is not None:
            y = self.o.project_y(torch.sub(self.y, self.gradient, alpha=self.loop.lr))
            self.y = torch.where(self.met[-1], self.y, y) if self.met else y
        asked = self.loop.asked(self.y)
        for a in asked:
            self.o.count(a.key, a.batch)
        return asked

    def take(self, answers: Sequence[Tensor]) -> None:
        """Go on with the answers to what was asked."""
        self.gradient = self.loop.gradient(*answers)
        met = self.loop.is_met(self.gradient)
        self.met.append(self.met[-1] | met if self.met else met)
        self.counts.append(self.o.counts)

    def look(self, met: list[bool], before: int) -> None:
        """Learn at which of the gradients since the last look the loop was at its end."""
        used = met.index(True) if True in met else len(met) - 1
        self.steps, self.ended = before + used, met[used]
        self.o.counts = self.counts[used]
        self.met, self.counts = [], []

    def end(self, o: Oracle) -> Ended:
        """The loop's end, whose counts are added to the oracle's."""
        o.calls += self.o.calls
        o.samples += self.o.samples
        assert self.gradient is not None
        return Ended(self.y, self.gradient, self.steps, self.ended)


def cg_until(
    o: Oracle,
    product: Callable[[Tensor], Tensor],
    b: Tensor,
    residual: Tensor,
    cap: int,
    start: Tensor | None = None,
    steps_a_look: int | None = None,
) -> Tensor:
    """The v of H v = b, shaped as b, by conjugate gradients until |b - H v| <= residual, a scalar.

    There are at most `cap` iterations. product, start: as for `cg`. On a GPU some iterations are
    made past the end before anybody looks: these are not counted, so that the result and the counts
    are those of a CPU. steps_a_look: as for `descend_until`.
    """
    looked = steps_a_look or (STEPS_A_LOOK if waits_for(b) else 1)
    iterates = cg_iterates(product, b, start)
    v, r = next(iterates)
    made = 0
    while made < cap:
        found, met, counts = [v], [dot(r, r).sqrt() <= residual], [o.counts]
        for _ in range(min(looked, cap - made) - 1):
            v, r = next(iterates)
            found.append(v)
            met.append(dot(r, r).sqrt() <= residual)
            counts.append(o.counts)
        ended = torch.stack(met).tolist() if len(met) > 1 else [bool(met[0])]
        if True in ended:
            o.counts = counts[ended.index(True)]
            return found[ended.index(True)]
        v, r = next(iterates)
        made += len(met)
        looked *= 2 if looked > 1 else 1
    return v
