"""Batches that are row numbers of a data set."""

import torch
from torch import Generator, Tensor

from bench.core.draw import bring
from bench.core.task import Batch, Data, Sampler, no_data


def row_batches(n: int, device: torch.device) -> tuple[Tensor, Sampler]:
    """(all row numbers 0, ..., n - 1, a sampler of row numbers with replacement).

    Asked for all, the sampler returns that very tensor, so that `batch is everything` tells.
    """
    everything = torch.arange(n, device=device)

    def draw(rng: Generator, step: int, size: int | None) -> Batch:
        if size is None:
            return everything
        return bring(torch.randint(n, (size,), generator=rng), device)

    return everything, draw


def cut_rows(batch: Tensor, a: int, b: int) -> Tensor:
    """The row numbers a to b of a batch."""
    return batch[a:b]


def row_data(draw_upper: Sampler, draw_lower: Sampler = no_data) -> Data:
    """The data of a task whose samplers are those of `row_batches`."""
    return Data(draw_upper, draw_lower, count=len, rows=cut_rows)
