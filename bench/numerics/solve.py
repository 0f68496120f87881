"""Solvers of H v = b that see H only through products with it."""

from collections.abc import Callable

import torch
from torch import Tensor


def cg(
    product: Callable[[Tensor], Tensor],
    b: Tensor,
    steps: int,
    start: Tensor | None = None,
    residual: float | Tensor | None = None,
    truncated: bool = False,
) -> Tensor:
    """The v of H v = b, shaped as b, by at most `steps` iterations of conjugate gradients.

    Each takes one product. start: the first v; None: 0. A start costs one more product. residual:
    the iterations end once |b - H v| is at most this. Once it is exactly zero, further iterations
    leave v as it is, and nothing is divided by zero. truncated: v also stays as it is from the
    first direction p with p^T H p <= 0 on, as in Newton-CG (Nocedal and Wright, Numerical
    Optimization, section 7.1); the remaining products are still made.
    """
    v, r = (torch.zeros_like(b), b) if start is None else (start, b - product(start))
    p, rr = r, r.square().sum()
    convex = torch.ones_like(rr, dtype=torch.bool)
    for _ in range(steps):
        if residual is not None and rr.sqrt() <= residual:
            break
        Hp = product(p)
        curvature = (p * Hp).sum()
        convex = convex & (curvature > 0)
        a = torch.where(convex if truncated else curvature != 0, rr / curvature, 0.0)
        v, r = v + a * p, r - a * Hp
        rr, last = r.square().sum(), rr
        p = r + torch.where(last != 0, rr / last, 0.0) * p
    return v


def neumann(product: Callable[[Tensor], Tensor], b: Tensor, eta: float, terms: int) -> Tensor:
    """eta sum_{i=0}^{terms} (I - eta H)^i b, shaped as b.

    Each term after the first costs one product.
    """
    r = total = b
    for _ in range(terms):
        r = r - eta * product(r)
        total = total + r
    return eta * total
