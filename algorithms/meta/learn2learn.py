"""MAML and ANIL by learn2learn (Arnold, Mahajan, Datta, Bunner, Zarkias, 2020): its `MAML` wrapper
in the recipe of its examples (maml_miniimagenet.py, anil_fc100.py), the published baselines.

The episodes of the meta-batch come one after the other: each has a clone of what is adapted, T
calls of `adapt`, and the backward pass of its query loss. Then there is one step along the mean
gradient. Symbols and result are those of algorithms/meta/maml.py, where the episodes go together.

learn2learn differentiates the task's losses by itself: `lend_f` and `lend_g` count what it takes.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bench.core.algorithm import Algorithm, Cost, Moment
from bench.core.draw import Draw
from bench.core.oracle import Oracle
from bench.core.settings import BadSetting, Count, Positive
from bench.core.task import Batch
from bench.numerics.descent import Descent


class State(NamedTuple):
    x: Tensor
    y: Tensor
    outer: Any


class Adapted(nn.Module):
    """A tensor as a module's parameter, which is what learn2learn adapts."""

    def __init__(self, value: Tensor):
        super().__init__()
        self.value = nn.Parameter(value.clone())

    def forward(self) -> Tensor:
        return self.value


def lend_f(o: Oracle, x: Tensor, y: Tensor, xi: Batch) -> Tensor:
    """f(x, y; xi) for a library that differentiates it: counts as its gradient."""
    o.count("grad_f", xi)
    return o.task.upper(x, y, xi)


def lend_g(o: Oracle, x: Tensor, y: Tensor, zeta: Batch) -> Tensor:
    """g(x, y; zeta) for a library that differentiates it and, on its way back, its gradient: counts
    as that gradient and both products. Raises TypeError on a task with a single level."""
    if o.task.lower is None:
        raise TypeError("this task has a single level: it has no lower loss")
    for what in ("grad_g", "jvp_g", "hvp_g"):
        o.count(what, zeta)
    return o.task.lower(x, y, zeta)


def episode(o: Oracle, batch: Batch, i: int) -> Batch:
    """The batch of the i-th episode alone. Raises TypeError if the batches cannot be cut."""
    if o.task.data.rows is None:
        raise TypeError("this task's batches have no rows")
    return o.task.data.rows(batch, i, i + 1)


def learn2learn(
    outer: Descent, outer_lr: Positive, inner_lr: Positive, T: Count = 5, batch: Count | None = None
) -> Algorithm:
    """MAML and ANIL by learn2learn, for tasks of episodes only. Settings: as for `maml`.

    Raises BadSetting without learn2learn.
    """
    try:
        from learn2learn.algorithms import MAML
    except ImportError:
        raise BadSetting(
            "algorithm=learn2learn: learn2learn is not installed; write uv sync "
            "--extra meta, or algorithm=maml for the same steps"
        ) from None

    def step(o: Oracle, s: State, draw: Draw) -> tuple[State, dict[str, Tensor]]:
        queries, supports = draw.f(batch), draw.g(batch)
        begun, back = o.origin(s.x, s.y[:1], supports)
        x, maml = s.x.detach().requires_grad_(), MAML(Adapted(begun), lr=inner_lr)
        ends = []
        with torch.enable_grad():
            for i in range(len(s.y)):
                query, support = (episode(o, batch, i) for batch in (queries, supports))
                query, support = o.task.inner.prepare(x, query, support)
                learner = maml.clone()
                for _ in range(T):
                    learner.adapt(lend_g(o, x, learner(), support))
                lend_f(o, x, learner(), query).backward()
                ends.append(learner().detach())

        mean = maml.module.value.grad / len(ends)
        hypergrad = back(mean) if x.grad is None else x.grad / len(ends) + back(mean)
        x, memory = outer.step(s.x, hypergrad, outer_lr, s.outer)
        y = torch.cat(ends)
        return State(o.project(x), y, memory), {"hypergrad_sq": hypergrad.square().sum()}

    def cost(at: Moment) -> Cost:
        episode = Cost(grad_g=T, grad_f=1, jvp_g=T, hvp_g=T, batch=batch, blocks=at.episodes)
        return episode * at.episodes

    return Algorithm(lambda x, y: State(x, y, outer.init(x)), step, cost=cost, kind="episodes")
