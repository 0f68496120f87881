"""Batches that are row numbers."""

import torch
from torch import Generator, Tensor

from bench.core.task import Batch, Sampler


def numbered(n: int, device: torch.device) -> tuple[Tensor, Sampler]:
    """(all row numbers 0, ..., n - 1, a sampler of `size` of them with replacement).

    Asked for all, the sampler gives that very tensor, so that `batch is everything` tells.
    """
    everything = torch.arange(n, device=device)

    def draw(rng: Generator, step: int, size: int | None) -> Batch:
        if size is None:
            return everything
        return torch.randint(n, (size,), generator=rng).to(device)

    return everything, draw
