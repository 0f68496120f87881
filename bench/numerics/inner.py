"""Inner loops that end where a tensor says so, without waiting for a GPU at each of their steps."""

from collections.abc import Callable

import torch
from torch import Tensor

from bench.core.oracle import Oracle
from bench.numerics.solve import cg_iterates, dot

# On a GPU the host looks so seldom: a look waits until all work is done, and a step past the end is
# as dear as any other. On a CPU a look is free.
STEPS_A_LOOK = 4


def waits_for(t: Tensor) -> bool:
    """Whether the host, when it looks into a tensor of any shape, waits for the tensor's device."""
    return t.is_cuda


def descend_until(
    o: Oracle,
    y: Tensor,
    gradient_at: Callable[[Tensor], Tensor],
    lr: float,
    is_met: Callable[[Tensor], Tensor],
    cap: int,
    steps_a_look: int | None = None,
) -> tuple[Tensor, Tensor, int, bool]:
    """Gradient steps from y until is_met(gradient), which gives a truth value as a scalar.

    Returns the point, the gradient there, the number of steps, which is at most `cap`, and whether
    is_met ended them. On a GPU some steps are taken past the end before anybody looks: these move
    nothing, and are not counted, so that the result and the counts are those of a CPU.

    steps_a_look: the host looks after so many steps; None: as the device asks for.
    """
    looked = steps_a_look or (STEPS_A_LOOK if waits_for(y) else 1)
    k, gradient = 0, gradient_at(y)
    while True:
        met, counts = [is_met(gradient)], [o.counts]
        for _ in range(min(looked - 1, cap - k)):
            y = torch.where(met[-1], y, o.project_y(y - lr * gradient))
            gradient = gradient_at(y)
            met.append(met[-1] | is_met(gradient))
            counts.append(o.counts)
        ended = torch.stack(met).tolist() if len(met) > 1 else [bool(met[0])]
        if ended[-1]:
            used = ended.index(True)
            o.counts = counts[used]
            return y, gradient, k + used, True
        k += len(met) - 1
        if k == cap:
            return y, gradient, k, False
        y = o.project_y(y - lr * gradient)
        gradient, k = gradient_at(y), k + 1


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
    for k in range(0, cap, looked):
        found, met, counts = [v], [dot(r, r).sqrt() <= residual], [o.counts]
        for _ in range(min(looked, cap - k) - 1):
            v, r = next(iterates)
            found.append(v)
            met.append(dot(r, r).sqrt() <= residual)
            counts.append(o.counts)
        ended = torch.stack(met).tolist() if len(met) > 1 else [bool(met[0])]
        if True in ended:
            o.counts = counts[ended.index(True)]
            return found[ended.index(True)]
        v, r = next(iterates)
    return v
