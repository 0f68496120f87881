"""ER-Ring: experience replay from a ring of each task's last samples (Chaudhry et al., "On tiny
episodic memories in continual learning", 2019), Algorithm 1 with a ring buffer; and `single`, which
replays nothing: a lower bound on a stream, and an upper one on all tasks shuffled.

Paper -> here: theta -> y, M -> memory, B_n -> new, B_M -> old, eta -> lr.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from bench.core.algorithm import Algorithm, Cost, Moment
from bench.core.draw import Draw
from bench.core.oracle import Oracle
from bench.core.settings import Count, Positive
from bench.core.stream import Stream, join, ring


class State(NamedTuple):
    x: Tensor
    y: Tensor
    memory: Tensor  # [tasks, samples of each]: numbers of samples


class Single(NamedTuple):
    x: Tensor
    y: Tensor


def er(lr: Positive = 0.03, memory: Count = 50, replay: Count = 50, steps: Count = 1) -> Algorithm:
    """ER-Ring.

    lr: the step size of y. memory: how many samples of each task are remembered. replay: how many
    remembered samples of the tasks before this one join a batch; the released code takes at most as
    many as one task's memory holds, 50 of the 64 that it asks for. As there, the mean loss of the
    new and the mean loss of the remembered samples add up, where Algorithm 1 has one mean over all.
    steps: how many steps are taken on one batch, each with its own replay.
    """

    def init(x: Tensor, y: Tensor, stream: Stream) -> State:
        numbers = torch.zeros(stream.tasks, memory, dtype=torch.int64, device=y.device)
        return State(x, y, numbers)

    def step(o: Oracle, s: State, draw: Draw) -> tuple[State, dict[str, Tensor]]:
        new, y = draw.g(), s.y
        t = draw.stream.task(draw.step)
        before = (draw.step - t * draw.stream.steps) * draw.stream.batch
        kept = ring(s.memory, t, new.numbers, before)

        for _ in range(steps):
            batch = new
            if t > 0:
                old = draw.stream.recall(draw.some(kept[:t], replay))
                batch = join(new, old)
            gradient = o.g_y(s.x, y, batch)
            y = o.project_y(torch.sub(y, gradient, alpha=lr))
        return State(s.x, y, kept), {"gradient_sq": gradient.square().sum()}

    def cost(at: Moment) -> Cost:
        return Cost(grad_g=steps, batch=at.samples + min(replay, at.task * memory))

    return Algorithm(init, step, first_order=True, on_stream=True, cost=cost)


def single(lr: Positive = 0.03, steps: Count = 1) -> Algorithm:
    """Gradient descent on each batch as it comes.

    lr: the step size of y. steps: how many steps are taken on one batch.
    """

    def step(o: Oracle, s: Single, draw: Draw) -> tuple[Single, dict[str, Tensor]]:
        new, y = draw.g(), s.y
        for _ in range(steps):
            gradient = o.g_y(s.x, y, new)
            y = o.project_y(torch.sub(y, gradient, alpha=lr))
        return Single(s.x, y), {"gradient_sq": gradient.square().sum()}

    def cost(at: Moment) -> Cost:
        return Cost(grad_g=steps, batch=at.samples)

    def init(x: Tensor, y: Tensor, stream: Stream) -> Single:
        return Single(x, y)

    return Algorithm(init, step, first_order=True, on_stream=True, cost=cost)
