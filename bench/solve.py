"""Solvers of H v = b that see H only through products with it."""

from collections.abc import Callable

import torch
from torch import Tensor


def cg(
    product: Callable[[Tensor], Tensor],
    b: Tensor,
    steps: int,
    start: Tensor | None = None,
    residual: float | None = None,
) -> Tensor:
    """At most `steps` iterations of conjugate gradients, one product each.

    start: from there instead of 0, at the cost of one more product. residual: stop once
    |b - H v| is at most this. Once the residual is exactly zero the iterate stays: no division by
    zero.
    """
    v, r = (torch.zeros_like(b), b) if start is None else (start, b - product(start))
    p, rr = r, r.square().sum()
    for _ in range(steps):
        if residual is not None and rr.sqrt() <= residual:
            break
        Hp = product(p)
        curvature = (p * Hp).sum()
        a = torch.where(curvature != 0, rr / curvature, 0.0)
        v, r = v + a * p, r - a * Hp
        rr, last = r.square().sum(), rr
        p = r + torch.where(last != 0, rr / last, 0.0) * p
    return v


def neumann(product: Callable[[Tensor], Tensor], b: Tensor, eta: float, terms: int) -> Tensor:
    """eta sum_{i=0}^{terms} (I - eta H)^i b, one product a term after the first."""
    r = total = b
    for _ in range(terms):
        r = r - eta * product(r)
        total = total + r
    return eta * total
