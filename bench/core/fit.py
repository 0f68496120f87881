"""Whether a task has what a method needs."""

from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from bench.core.algorithm import LOWER, UPPER, Algorithm, Cost, Moment, State
from bench.core.draw import Draw
from bench.core.settings import BadSetting
from bench.core.task import Place, Task
from bench.core.together import loss_at


def check_fit(task: Task, algorithm: Algorithm) -> None:
    """Raise BadSetting if the method needs what the task does not have.

    What a method calls is known by its declared cost; a method that declares none passes.
    """
    if algorithm.on_stream and task.stream is None:
        raise BadSetting(
            "algorithm: this method learns a stream of tasks; write task=permuted_mnist or "
            "task=split_cifar"
        )
    costs = [algorithm.cost_at(Moment(step)) for step in (0, 1)]  # some begin with all the data
    # each part once, as its batches are drawn below
    parts = dict.fromkeys(part for cost in costs if cost is not None for part in cost.parts)
    if task.lower is None and any(part.calls[key] for part in parts for key in LOWER):
        raise BadSetting(
            "algorithm: this method has a lower level, and this task has none; write algorithm=fw "
            "or another single-level method, or another task"
        )
    if task.feasible.lmo is None and any(part.lmo for part in parts):
        raise BadSetting(
            "algorithm: this method minimises over vertices, and the set of this task has no "
            "linear minimisation oracle; write task=completion, task=multitask or task=trees"
        )
    by_vertices_alone = task.feasible.project is None and task.feasible.lmo is not None
    if by_vertices_alone and parts and not any(part.lmo for part in parts):
        raise BadSetting(
            "algorithm: this method projects, and the set of this task has no projection; write "
            "algorithm=fw, algorithm.prox=condg for NCGS, task=completion or task=multitask"
        )
    if algorithm.on_stream:  # its batches are of what it remembers
        return
    at = Draw(task, 0, 0)
    for part in parts:
        if any(part.calls[key] for key in UPPER):
            draw_in_parts(at, "upper", part)
        if any(part.calls[key] for key in LOWER):
            draw_in_parts(at, "lower", part)


def draw_in_parts(at: Draw, side: Literal["upper", "lower"], cost: Cost) -> None:
    """Draw the blocks or the batch of so many samples that a cost says; nothing where it says all
    the data. Raises BadSetting if the task has no such batches."""
    if cost.blocks > 1:
        at.blocks(side, cost.blocks)
    elif cost.batch is not None and side == "upper":
        at.f(cost.batch)
    elif cost.batch is not None:
        at.g(cost.batch)


def check_kind(task: Task, algorithm: Algorithm, x: Tensor, y: Tensor) -> None:
    """Raise BadSetting if the method is for other problems than the task, which starts at (x, y).

    x, y: of any shape. Methods for bilevel problems take any with a lower level, a game too.
    """
    if algorithm.kind == "single-level" and task.lower is not None:
        raise BadSetting(
            "algorithm: this method moves x alone, and this task has a lower level; write "
            "algorithm=bome or another bilevel method, or task=completion"
        )
    if algorithm.kind == "minimax" and not is_minimax(task, x, y):
        raise BadSetting(
            "algorithm: this method is for games where g = -f, which this task is not; write "
            "algorithm=bome or another bilevel method, or task=toy_minimax"
        )
    if algorithm.kind == "episodes" and task.inner.origin is None:
        raise BadSetting(
            "algorithm: this method is for tasks of episodes, which this task is not; write "
            "algorithm=bome or another bilevel method, or task=few_shot"
        )


def is_minimax(task: Task, x: Tensor, y: Tensor) -> bool:
    """Whether the task's g is -f at (x, y), of any shape, on the same data."""
    if task.lower is None:
        return False
    batch = Draw(task, 0, 0).f()
    with torch.no_grad():
        f = loss_at(task, Place(True, x, y, batch))
        try:
            g = loss_at(task, Place(False, x, y, batch))
        except BadSetting:
            raise
        except Exception:  # g is of other data, of whatever form
            return False
    return torch.allclose(g, -f, equal_nan=True)


def checked_state(given: Any, by: str) -> State:
    """What a method's init or step gives; raises BadSetting if it is no NamedTuple of tensors, or
    trees of them, with x and y among them."""
    if not all(isinstance(getattr(given, name, None), Tensor) for name in "xy"):
        raise BadSetting(f"algorithm: {by} has to give a NamedTuple with the tensors x and y")
    for leaf in tree_leaves(given):
        if not isinstance(leaf, Tensor):
            raise BadSetting(
                f"algorithm: {by} gives a state with {leaf!r:.40}, which a checkpoint does not "
                "keep; write a tensor"
            )
    return given


def check_inside(task: Task, x: Tensor, y: Tensor) -> None:
    """Raise BadSetting if x or y, of any shape, starts outside of the task's set for it."""
    for name, start, within in zip("xy", (x, y), (task.feasible, task.lower_feasible)):
        if within.project is not None and (apart := distance(within.project(start), start)):
            raise BadSetting(
                f"task: {name} starts outside of its set, at a distance of {apart:.3g}; "
                "project it in the task's init"
            )


def distance(a: Tensor, b: Tensor) -> float:
    """How far a lies from b, of the same shape; 0 where that is rounding of b in float32."""
    apart = float((a - b).norm())
    return apart if apart > 1e-4 * (1 + float(b.norm())) else 0.0
