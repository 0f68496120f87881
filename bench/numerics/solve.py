"""Solvers of H v = b that see H only through products with it."""

from collections.abc import Callable, Iterator
from itertools import islice

import torch
from torch import Tensor


def cg(
    product: Callable[[Tensor], Tensor],
    b: Tensor,
    steps: int,
    start: Tensor | None = None,
    truncated: bool = False,
) -> Tensor:
    """The v of H v = b, shaped as b, by `steps` iterations of conjugate gradients.

    Each takes one product. start: the first v; None: 0. A start costs one more product. Once
    b - H v is exactly zero, further iterations leave v as it is, and nothing is divided by zero.
    truncated: v also stays as it is from the first direction p with p^T H p <= 0 on, as in
    Newton-CG (Nocedal and Wright, Numerical Optimization, section 7.1); the remaining products are
    still made.
    """
    *_, (v, _) = islice(cg_iterates(product, b, start, truncated), steps + 1)
    return v


def cg_iterates(
    product: Callable[[Tensor], Tensor],
    b: Tensor,
    start: Tensor | None = None,
    truncated: bool = False,
) -> Iterator[tuple[Tensor, Tensor]]:
    """(v, b - H v), both shaped as b, at the start and after each iteration of `cg`, without end.

    An iteration is made when it is asked for. product, start, truncated: as for `cg`.
    """
    v, r = (torch.zeros_like(b), b) if start is None else (start, b - product(start))
    yield v, r
    p, rr = r, dot(r, r)
    zero = torch.zeros_like(rr)
    convex = torch.ones_like(rr, dtype=torch.bool)
    while True:
        Hp = product(p)
        curvature = dot(p, Hp)
        if truncated:
            convex = convex & (curvature > 0)
        a = torch.where(convex if truncated else curvature != 0, rr / curvature, zero)
        v, r = torch.addcmul(v, a, p), torch.addcmul(r, a, Hp, value=-1)
        yield v, r
        rr, last = dot(r, r), rr
        p = torch.addcmul(r, torch.where(last != 0, rr / last, zero), p)


def dot(u: Tensor, v: Tensor) -> Tensor:
    """The inner product of two tensors of one shape."""
    return u.flatten().dot(v.flatten())


def neumann(product: Callable[[Tensor], Tensor], b: Tensor, eta: float, terms: int) -> Tensor:
    """eta sum_{i=0}^{terms} (I - eta H)^i b, shaped as b.

    Each term after the first costs one product.
    """
    r = total = b
    for _ in range(terms):
        r = r - eta * product(r)
        total = total + r
    return eta * total
