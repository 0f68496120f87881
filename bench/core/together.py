"""Losses and their derivatives at one place or at several, in one pass where the task can."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bench.core.settings import BadSetting
from bench.core.task import Loss, Partials, Place, Task, Wrt


def loss_at(task: Task, place: Place) -> Tensor:
    """The loss, a scalar. Raises TypeError where the task has no such level, and BadSetting where
    its loss is no tensor of one number."""
    return one_number(level(task, place.upper)(place.x, place.y, place.batch), place.upper)


def one_number(loss: Any, upper: bool) -> Tensor:
    """What the loss of a level has returned, of shape [] or [1]; raises BadSetting otherwise."""
    side = "upper" if upper else "lower"
    if not isinstance(loss, Tensor):
        raise BadSetting(
            f"task: {side} returns {type(loss).__name__}, of which there is no gradient; return a "
            "tensor of one number"
        )
    if loss.numel() != 1:
        raise BadSetting(
            f"task: {side} returns a tensor of shape {tuple(loss.shape)}, and a loss is one "
            "number; return its .sum() or .mean()"
        )
    return loss


def level(task: Task, upper: bool) -> Loss:
    """The loss of this level; raises TypeError where the task has none."""
    loss = task.upper if upper else task.lower
    if loss is None:
        raise TypeError("this task has a single level: it has no lower loss")
    return loss


def losses_at(task: Task, places: Sequence[Place]) -> list[Tensor]:
    """The losses at these places, each a scalar."""
    together = task.together(places) if task.together is not None and len(places) > 1 else None
    return [loss_at(task, p) for p in places] if together is None else list(together.unbind())


def differentiate(task: Task, places: Sequence[Place], wrts: Sequence[Wrt]) -> list[Partials]:
    """The partial gradients at these places, of each place those that its `wrt` names."""
    if task.together is not None and len(places) > 1:
        with torch.enable_grad():
            leaves = [place.leaves() for place in places]
            losses = task.together(leaves)
        if losses is not None:
            return partials_together([losses], [torch.ones_like(losses)], leaves, wrts)
    return [_alone(task, place, wrt) for place, wrt in zip(places, wrts)]


def _alone(task: Task, place: Place, wrt: Wrt) -> Partials:
    loss = level(task, place.upper)
    closed = task.upper_derivatives if place.upper else task.lower_derivatives
    if closed is not None:
        return closed.grad(place.x, place.y, place.batch, wrt)
    with torch.enable_grad():
        place = place.leaves()
        value = one_number(loss(place.x, place.y, place.batch), place.upper)
        return partials_of(value, place, wrt)


def partials_together(
    values: Sequence[Tensor],
    vs: Sequence[Tensor],
    places: Sequence[Place],
    wrts: Sequence[Wrt],
    **graph: bool,
) -> list[Partials]:
    """The partial gradients of sum <value, v> at each place, which are leaves; zero where no value
    depends on it."""
    inputs = [t for place, wrt in zip(places, wrts) for t in _named(place, wrt)]
    found = iter(
        torch.autograd.grad(values, inputs, vs, allow_unused=True, materialize_grads=True, **graph)
    )
    return [
        (next(found) if "x" in wrt else None, next(found) if "y" in wrt else None) for wrt in wrts
    ]


def partials_of(
    value: Tensor, place: Place, wrt: Wrt, v: Tensor | None = None, **graph: bool
) -> Partials:
    """The gradient of <value, v> at a place, which is a leaf, in what wrt names, shaped as that;
    zero where value does not depend on it. v is shaped as value; None: 1, for a scalar."""
    inputs = _named(place, wrt)
    if value.requires_grad:
        found = torch.autograd.grad(
            value, inputs, v, allow_unused=True, materialize_grads=True, **graph
        )
    else:
        found = tuple(torch.zeros_like(t) for t in inputs)
    return (found[0] if "x" in wrt else None, found[-1] if "y" in wrt else None)


def _named(place: Place, wrt: Wrt) -> list[Tensor]:
    """What wrt names, of a place."""
    return [t for name, t in (("x", place.x), ("y", place.y)) if name in wrt]


def warm_up(task: Task) -> None:
    """Take a derivative along a vector before a clock runs, if the task leaves its own to autograd.

    At the first one of a process torch imports what takes most of a second.
    """
    own = task.lower_derivatives is not None or task.lower is None
    if own and task.upper_derivatives is not None:
        return
    with torch.enable_grad():
        x = torch.ones(1, requires_grad=True)
        torch.autograd.grad(2 * x, x, torch.ones(1))
