"""Several networks that go through each layer together, as groups of channels."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor


def split_each(thetas: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """The parts [m, size] of m networks' parameters thetas [m, P], each of them contiguous, so that
    views of a part are the kernels of all groups."""
    order, inverse = _orders(len(thetas), tuple(sizes), thetas.device)
    flat = _Reordered.apply(thetas.flatten(), order, inverse)
    parts = flat.split([len(thetas) * size for size in sizes])
    return [part.view(len(thetas), -1) for part in parts]


class _Reordered(torch.autograd.Function):
    """A vector in another order. Torch's own derivative of this adds up, in no fixed order."""

    @staticmethod
    def forward(ctx: Any, vector: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(order, inverse)
        return vector[order]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        order, inverse = ctx.saved_tensors
        return _Reordered.apply(g, inverse, order), None, None


@cache
def _orders(m: int, sizes: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """The order in which parts of these sizes follow each other, each of all m vectors, and the
    order that undoes it."""
    places = torch.arange(m * sum(sizes), device=device)
    parts = places.view(m, -1).split(sizes, 1)
    order = torch.cat([part.flatten() for part in parts])
    return order, order.argsort()
