"""A stream of tasks, and what a method that sees it once remembers of it: numbers of its samples.

A memory is a tensor of sample numbers in the algorithm's state. `Stream.recall` turns numbers into
samples, and a method asks for no other samples than those in its memory. Sample number i belongs to
task i // (samples of one task).
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Samples(NamedTuple):
    """Samples of a stream and their weights in a loss, which is the weighted sum of theirs.

    images [n, ...]; labels [n] int64, counted within each sample's task; tasks [n] int64; numbers
    [n] int64; weights [n]. teacher [n, classes]: the probabilities that an earlier network
    answered, to which the present one is to be held. A row of zeros holds its sample to nothing,
    and None holds no sample to anything.
    """

    images: Tensor
    labels: Tensor
    tasks: Tensor
    numbers: Tensor
    weights: Tensor
    teacher: Tensor | None = None


class Stream(NamedTuple):
    """Tasks that are learned one after the other, each of `steps` steps of `batch` samples.

    tasks: the number of tasks. classes: the answers to choose from within a task. recall(numbers)
    returns the samples of these numbers, each with weight 1 / n. logits(x, y, samples) returns
    [n, classes].
    """

    tasks: int
    steps: int
    batch: int
    classes: int
    recall: Callable[[Tensor], Samples]
    logits: Callable[[Tensor, Tensor, Samples], Tensor]

    def task(self, step: int) -> int:
        """The number of the task that is learned in this step."""
        return min(step // self.steps, self.tasks - 1)


def join(*parts: Samples) -> Samples:
    """All these samples, with the weights that they have: their losses add up."""
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
    """`memory` [tasks, size] with these numbers written into the task's row, over the oldest ones.

    before: how many numbers were written there earlier. The first number ever fills the whole row,
    so that no place holds a sample that was not seen.
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

    before: how many numbers there were earlier. uniform [n]: random numbers on [0, 1), one for each
    of `numbers`.
    """
    ages = torch.arange(before, before + len(numbers), device=memory.device)
    drawn = (uniform * (ages + 1)).long()
    places = torch.where(ages < len(memory), ages, drawn)  # one past the end is none
    # nobody looks into the places, for which a GPU would have to be waited for
    all_places = torch.arange(len(memory), device=memory.device)
    turns = torch.arange(1, len(numbers) + 1, device=memory.device)
    taker = torch.where(places == all_places[:, None], turns, 0).amax(1)  # a later one takes over
    return torch.where(taker > 0, numbers[taker - 1], memory)
