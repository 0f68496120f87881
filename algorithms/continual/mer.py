"""MER: meta-experience replay (Riemer et al., ICLR 2019), Algorithm 1: Reptile within batches and
across them, over a reservoir.

Paper -> here: theta -> y, M -> memory, s -> batches, k -> length, alpha -> lr, beta -> within,
gamma -> across; theta^A_0 -> begun, theta^W_{i,0} -> entered.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from bench.core.algorithm import Algorithm, Cost, Moment
from bench.core.draw import Draw
from bench.core.oracle import Oracle
from bench.core.settings import Count, Positive
from bench.core.stream import Stream, reservoir


class State(NamedTuple):
    x: Tensor
    y: Tensor
    memory: Tensor  # the reservoir: numbers of samples


def mer(
    lr: Positive = 0.03,
    memory: Count = 50,
    batches: Count = 1,
    length: Count = 10,
    within: Positive = 0.3,
    across: Positive = 1.0,
    group: Count = 1,
    order: Literal["last", "first"] = "last",
) -> Algorithm:
    """MER.

    lr: the size of the steps of descent. memory: how many samples the one reservoir holds for each
    task that there will be. batches, length: how many batches are made for what is new, and the
    steps of descent in each. within, across: the part of its way that y goes after a batch, and
    after all of them. group: how many samples of the stream go through Algorithm 1 together, and so
    how many a step of descent has: the paper takes one at a time. order: whether what is new comes
    last or first in a batch. The released code (model/meralg1.py) has it first, and draws
    remembered samples with replacement; here they are drawn without.
    """

    def init(x: Tensor, y: Tensor, stream: Stream) -> State:
        numbers = torch.zeros(stream.tasks * memory, dtype=torch.int64, device=y.device)
        return State(x, y, numbers)

    def step(o: Oracle, s: State, draw: Draw) -> tuple[State, dict[str, Tensor]]:
        new, y, kept = draw.g(), s.y, s.memory
        seen = draw.step * draw.stream.batch
        for now in new.numbers.split(group):
            held = kept[: min(seen, len(kept))]
            begun = y
            for _ in range(batches):
                entered = y
                drawn = draw.some(held, (length - 1) * group)  # B_i is drawn from M and has `now`
                old = drawn.split(group) if len(drawn) else ()
                for numbers in [*old, now] if order == "last" else [now, *old]:
                    y = o.project_y(y - lr * o.g_y(s.x, y, draw.stream.recall(numbers)))
                y = o.project_y(entered + within * (y - entered))
            y = o.project_y(begun + across * (y - begun))
            kept = reservoir(kept, now, seen, draw.uniform(now.to(y.dtype)))
            seen += len(now)
        return State(s.x, y, kept), {"moved_sq": (y - s.y).square().sum()}

    def cost(at: Moment) -> Cost:
        """The stream's last group may be smaller than the others, and at first the reservoir may
        hold too few samples for batches of that length."""
        full, rest = divmod(at.samples, group)
        present = Cost(grad_g=batches * full, batch=group)
        if rest:
            present += Cost(grad_g=batches, batch=rest)
        past = batches * (full + (rest > 0)) * (length - 1)
        return present + Cost(grad_g=past, batch=group, at_most=True)

    return Algorithm(init, step, first_order=True, on_stream=True, cost=cost)
