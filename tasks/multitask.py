"""Nonconvex multitask classification on a nuclear-norm ball (Qu, Li, Xu, ICML 2018, sections 6.1.2
and 6.2):

    F(x) = (1/N) sum over tasks t and samples j of (y_tj - 1 / (1 + exp(<x_t, a_tj> + b_t)))^2,

x in R^{(d+1) x tasks}, |x|_* <= radius. The paper's equation (2) has a sum and free biases b. Here
F is a mean, as in its equation (8), and the biases are x's last row and so inside the ball, because
the linear minimisation would be unbounded otherwise.
"""

from itertools import pairwise
from typing import Literal, NamedTuple

import torch
from torch import Generator, Tensor

from bench.core.draw import generator
from bench.core.settings import BadSetting, Count, Fraction, Natural, NonNegative, Positive, version
from bench.core.task import Batch, Context, Derivatives, Partials, Report, Task, Wrt
from bench.numerics.sets import nuclear_ball
from tasks.common.rows import row_batches, row_data
from tasks.common.stationarity import spectrum, stationarity
from tasks.data.tables import table

Source = Literal["synthetic", "digits", "covertype", "aloi", "sensorless"]


class TaskSamples(NamedTuple):
    """features [N, d + 1], the last 1; labels [N] in {0, 1}; tasks [N], in ascending order."""

    features: Tensor
    labels: Tensor
    tasks: Tensor


@version(4)
def multitask(
    context: Context,
    source: Source = "synthetic",
    groups: Count = 50,
    similar: Count = 5,
    samples: Count = 1000,
    features: Count = 300,
    radius: Positive = 10.0,
    versions: Count = 5,
    noise: NonNegative = 0.05,
    most: Count | None = None,
    held_out: Fraction = 0.1,
    gamma: Positive = 1.0,
    instance: Natural | None = None,
) -> Task:
    """source "synthetic": `groups` of `similar` tasks each, and each task has `samples` samples of
    `features` features.

    Another source is a real data set, each class of which makes `versions` tasks: its samples, at
    most `most` of them, against as many samples of the other classes, the same ones in all its
    tasks. Features are scaled to [-1, 1] and shifted by normal noise of deviation `noise`, which
    the paper calls small.

    held_out: the fraction of the samples that is for testing. A sample of a real data set is held
    out with all its noisy copies, in whichever tasks they are. gamma: step size of the gradient
    mapping. instance: names the data; None: the run's seed names them. Raises BadSetting.
    """
    rng = generator("multitask", context.seed if instance is None else instance)
    sources: dict[str, str] = {}
    if source == "synthetic":
        data = synthetic(rng, groups, similar, samples, features)
        originals = torch.arange(len(data.tasks))
    else:
        pixels, classes, sources = table(source, context)
        data, originals = noisy_versions(rng, pixels, classes, versions, noise, most)
    # a coin for each original: the copies of one are too alike to be on both sides
    coins = torch.rand(int(originals.max()) + 1, generator=rng)
    keep = coins[originals] >= held_out
    train, test = (TaskSamples(*(part[mask] for part in data)) for mask in (keep, ~keep))
    counts = torch.bincount(train.tasks, minlength=int(data.tasks[-1]) + 1)
    if (counts == 0).any():
        raise BadSetting(f"task.held_out={held_out}: a task has no sample left; write less")
    ends = [0, *counts.cumsum(0).tolist()]
    device, dtype = context.device, context.dtype
    train, test = (
        TaskSamples(s.features.to(device, dtype), s.labels.to(device, dtype), s.tasks.to(device))
        for s in (train, test)
    )
    n, width = train.features.shape
    everything, draw = row_batches(n, device)
    feasible = nuclear_ball(radius)

    def answers(x: Tensor, of: TaskSamples) -> Tensor:
        """1 / (1 + exp(<x_t, a>)) for each sample a of a task t, [N]."""
        return torch.sigmoid(-(of.features * x.T[of.tasks]).sum(1))

    def blocks() -> list[tuple[int, int, int]]:
        return [(t, a, b) for t, (a, b) in enumerate(pairwise(ends))]

    def all_answers(x: Tensor) -> Tensor:
        return torch.cat([torch.sigmoid(-train.features[a:b] @ x[:, t]) for t, a, b in blocks()])

    def some(batch: Batch) -> TaskSamples:
        return TaskSamples(*(part[batch] for part in train))

    def upper(x: Tensor, y: Tensor, batch: Batch) -> Tensor:
        if batch is everything:
            return (train.labels - all_answers(x)).square().mean()
        part = some(batch)
        return (part.labels - answers(x, part)).square().mean()

    def grad(x: Tensor, y: Tensor, batch: Batch, wrt: Wrt) -> Partials:
        f_y = torch.zeros_like(y) if "y" in wrt else None
        if "x" not in wrt:
            return None, f_y
        part = train if batch is everything else some(batch)
        s = all_answers(x) if batch is everything else answers(x, part)
        gradient = 2 * (part.labels - s) * s * (1 - s) / len(s)
        if batch is everything:
            columns = [part.features[a:b].T @ gradient[a:b] for _, a, b in blocks()]
            return torch.stack(columns, 1), f_y
        sums = x.new_zeros(x.T.shape).index_add(0, part.tasks, gradient[:, None] * part.features)
        return sums.T.contiguous(), f_y

    def evaluate(x: Tensor, y: Tensor, step: int) -> dict[str, Tensor]:
        gradient = grad(x, y, everything, "x")[0]
        assert gradient is not None
        told = {
            "objective": upper(x, y, everything),
            **stationarity(feasible, x, gradient, gamma),
            **spectrum(x),
        }
        if len(test.labels):
            right = (answers(x, test) > 0.5) == (test.labels > 0.5)
            told["test_accuracy"] = right.to(x).mean()
        return told

    def init(rng: Generator) -> tuple[Tensor, Tensor]:
        return train.features.new_zeros(width, len(counts)), train.features.new_zeros(0)

    return Task(
        upper=upper,
        init=init,
        evaluate=evaluate,
        metric="objective",
        data=row_data(draw),
        feasible=feasible,
        upper_derivatives=Derivatives(grad),
        report=Report(sources=sources),
    )


def synthetic(
    rng: Generator, groups: int, similar: int, samples: int, features: int
) -> TaskSamples:
    """The recipe of section 6.1.2.

    Group i has a matrix U_i of standard normal entries, a diagonal matrix D_i uniform on (1, 2),
    and a true (theta, b) whose entries are 1 or -1. The features a of its task k have covariance
    U_i (D_i + Delta_ik) U_i^T with Delta_ik uniform on (0, .1), and the labels have
    P(y = 1) = 1 / (1 + exp(<theta, a> + b)).
    """
    parts, labels = [], []
    for _ in range(groups):
        U = torch.randn(features, features, generator=rng)
        D = 1 + torch.rand(features, generator=rng)
        theta = (2 * torch.randint(2, (features + 1,), generator=rng) - 1).float()
        for _ in range(similar):
            spread = (D + 0.1 * torch.rand(features, generator=rng)).sqrt()
            a = torch.randn(samples, features, generator=rng) * spread @ U.T
            a = torch.cat([a, torch.ones(samples, 1)], 1)
            chance = torch.sigmoid(-(a @ theta))
            parts.append(a)
            labels.append((torch.rand(samples, generator=rng) < chance).float())
    tasks = torch.arange(groups * similar).repeat_interleave(samples)
    return TaskSamples(torch.cat(parts), torch.cat(labels), tasks)


def noisy_versions(
    rng: Generator, pixels: Tensor, classes: Tensor, versions: int, noise: float, most: int | None
) -> tuple[TaskSamples, Tensor]:
    """The recipe of section 6.2, and the row of `pixels` of which each sample is a copy, [N].

    Classes are numbered in ascending order; the tasks of a class have consecutive numbers.
    """
    low, high = pixels.min(0).values, pixels.max(0).values
    scaled = 2 * (pixels - low) / torch.where(high > low, high - low, 1.0) - 1
    parts, labels, tasks, originals = [], [], [], []
    for number, kind in enumerate(classes.unique().tolist()):
        own, others = (classes == kind).nonzero()[:, 0], (classes != kind).nonzero()[:, 0]
        own = own[torch.randperm(len(own), generator=rng)[:most]]
        others = others[torch.randperm(len(others), generator=rng)[: len(own)]]
        both = torch.cat([own, others])
        truth = torch.cat([torch.ones(len(own)), torch.zeros(len(others))])
        for copy in range(versions):
            a = scaled[both] + noise * torch.randn(len(both), pixels.shape[1], generator=rng)
            parts.append(torch.cat([a, torch.ones(len(both), 1)], 1))
            labels.append(truth)
            tasks.append(torch.full((len(both),), number * versions + copy))
            originals.append(both)
    data = TaskSamples(torch.cat(parts), torch.cat(labels), torch.cat(tasks))
    return data, torch.cat(originals)
