"""A stream of tasks, and what a method that sees it once remembers of it: numbers of its samples.

A memory is a tensor of numbers in the algorithm's state; `recalled` turns numbers into samples, and
nothing but what a memory holds is asked for. Sample number i is in the task i // (samples of one).
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Samples(NamedTuple):
    """images [n, ...], labels [n] int64 counted within each one's task, tasks [n] int64, numbers
    [n] int64, weights [n]: a loss is the weighted sum of theirs. teacher [n, classes]: what an
    earlier network answered, as probabilities; a row of zeros, or None: nothing to hold on to."""

    images: Tensor
    labels: Tensor
    tasks: Tensor
    numbers: Tensor
    weights: Tensor
    teacher: Tensor | None = None


class Stream(NamedTuple):
    """batch: samples of a step. steps: of each task. classes: answers to choose from in a task.
    recalled: numbers -> samples, their weights 1 / n. logits(x, y, samples): [n, classes]."""

    tasks: int
    steps: int
    batch: int
    classes: int
    recalled: Callable[[Tensor], Samples]
    logits: Callable[[Tensor, Tensor, Samples], Tensor]

    def task(self, step: int) -> int:
        """Which is learned in this step."""
        return min(step // self.steps, self.tasks - 1)


def joined(*parts: Samples) -> Samples:
    """Their losses add up: the weights of each part stay as they are."""
    taught = [part.teacher for part in parts if part.teacher is not None]
    teacher = None
    if taught:
        blank = [p.weights.new_zeros(len(p.weights), taught[0].shape[1]) for p in parts]
        teacher = torch.cat([b if p.teacher is None else p.teacher for p, b in zip(parts, blank)])
    return Samples(
        torch.cat([part.images for part in parts]),
        torch.cat([part.labels for part in parts]),
        torch.cat([part.tasks for part in parts]),
        torch.cat([part.numbers for part in parts]),
        torch.cat([part.weights for part in parts]),
        teacher,
    )


def ring(memory: Tensor, task: int, numbers: Tensor, before: int) -> Tensor:
    """`memory` [tasks, size] with these numbers written round and round in the task's row.

    before: how many were written there earlier. The first ever fills the row, so that a place never
    holds what was not seen.
    """
    size, fresh = memory.shape[1], memory.clone()
    if before == 0:
        fresh[task] = numbers[0]
    kept = numbers[-size:]
    places = torch.arange(len(kept), device=memory.device) + before + len(numbers) - len(kept)
    fresh[task, places % size] = kept
    return fresh


def reservoir(memory: Tensor, numbers: Tensor, before: int, uniform: Tensor) -> Tensor:
    """`memory` [size] as a uniform sample without replacement of all numbers so far (Vitter, 1985).

    before: how many there were earlier. uniform: on [0, 1), one for each number.
    """
    fresh = memory.clone()
    ages = torch.arange(before, before + len(numbers), device=memory.device)
    drawn = (uniform * (ages + 1)).long()
    places = torch.where(ages < len(memory), ages, drawn).tolist()
    for place, number in zip(places, numbers):  # in order: a later one may take an earlier's place
        if place < len(memory):
            fresh[place] = number
    return fresh
