"""Estimates from tables of what each block of rows gave when it was last seen: SAGA (Defazio, Bach,
Lacoste-Julien, NeurIPS 2014) and ZeroSARAH (Li, Hanzely, Richtarik, 2021, Algorithm 2).

A set of n rows is cut into B blocks, and block b has n_b of them. n_b B / n times what a random
block gives is an unbiased estimate of the mean over the rows, for blocks of unequal length too.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from bench.core.draw import Blocks
from bench.core.task import Batch

Parts = tuple[Tensor, ...]  # what one block gives, such as its gradients


class Tables(NamedTuple):
    """A table for each part of what a block gives: entries[part][block], and the part's mean over
    the rows, all of the part's shape.

    Each entry is a tensor of its own, so that new tables with one new entry share all the others.
    """

    entries: tuple[Parts, ...]
    means: Parts


def empty(blocks: int, *like: Tensor) -> Tables:
    """Tables of zeros for parts that are shaped as `like`."""
    means = tuple(torch.zeros_like(t) for t in like)
    return Tables(tuple((mean,) * blocks for mean in means), means)


def fill(measure: Callable[[Batch], Parts], data: Blocks) -> Tables:
    """The tables whose entries are what `measure` gives for each block, of any shape."""
    entries = tuple(zip(*(measure(data[b]) for b in range(len(data)))))
    means = []
    for parts in entries:
        mean = torch.zeros_like(parts[0])
        for b, part in enumerate(parts):
            mean = mean + data.share(b) * part
        means.append(mean)
    return Tables(entries, tuple(means))


def saga(new: Parts, data: Blocks, b: int, tables: Tables) -> tuple[list[Tensor], Tables]:
    """SAGA's estimate of each part, shaped as it, from what block b gives now: n_b B / n (new - old
    entry) + mean of the table. With it come the tables with the new entries of block b."""
    share, estimates, entries, means = data.share(b), [], [], []
    for old, mean, now in zip(tables.entries, tables.means, new):
        change = now - old[b]
        estimates.append(share * len(data) * change + mean)
        entries.append((*old[:b], now, *old[b + 1 :]))
        means.append(mean + share * change)
    return estimates, Tables(tuple(entries), tuple(means))


def zerosarah(
    pair: tuple[Parts, Parts],
    last: Sequence[Tensor],
    weight: float,
    data: Blocks,
    b: int,
    tables: Tables,
    released: bool = False,
) -> tuple[list[Tensor], Tables]:
    """ZeroSARAH's estimate of each part, shaped as it, from what block b gives now and gave at the
    point before, which are the two of `pair`:

        s (now - before) + (1 - weight) last + weight (s (before - old entry) + mean of the table),

    with s = n_b B / n, and the estimate of the step before as `last`. With it come the tables with
    the new entries of block b.

    released: 2 weight s now is added, as in the solvers SFFBA and MSEBA that their authors offered
    to benchmark_bilevel. These have (1 - weight) (last - s before) + (1 + weight) s now + weight
    times SAGA's estimate, which would be ZeroSARAH's with 1 - weight in place of 1 + weight. Where
    nothing moves it tends to three times the mean.
    """
    now, before = pair
    estimates, renewed = saga(now, data, b, tables)
    scale, found = data.share(b) * len(data), []
    for new, stale, d, estimate in zip(now, before, last, estimates):
        change = scale * (new - stale)
        d = change + (1 - weight) * d + weight * (estimate - change)
        found.append(d + 2 * weight * scale * new if released else d)
    return found, renewed
