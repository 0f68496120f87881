"""Softmax regression in closed form: what its derivatives cost is two products with the data.

For weights y in R^{c x d}, features X in R^{n x d} and sample weights w in R^n,
    l(y) = (1/n) sum_i w_i CE(X_i y^T, label_i),   grad l = R^T X,  R = w (P - onehot) / n,
    (d2l/dy2) v = S^T X,  S = w (P U - P <P, U>) / n,  U = X v^T,
where P = softmax(X y^T) rowwise. The tests hold all of it against autograd.
"""

from typing import NamedTuple

import torch
from torch import Tensor

BLOCKS = 50  # rows are summed in so many blocks: fixed, so that no bit depends on the machine


class Rows(NamedTuple):
    """Rows of a data set: features [n, d], labels [n] int64, their numbers [n] or None: all."""

    features: Tensor
    labels: Tensor
    numbers: Tensor | None


def logits(y: Tensor, features: Tensor) -> Tensor:
    """[n, c]."""
    return features @ y.T


def transposed_product(r: Tensor, features: Tensor) -> Tensor:
    """r^T features, [c, d]; in blocks of rows, which BLAS does faster for few columns in r."""
    n, c = r.shape
    if features.is_cuda or n < 100 * BLOCKS:
        return r.T @ features
    whole = n // BLOCKS * BLOCKS
    blocks = torch.bmm(
        r[:whole].view(BLOCKS, -1, c).transpose(1, 2),
        features[:whole].view(BLOCKS, whole // BLOCKS, -1),
    ).sum(0)
    return blocks if whole == n else torch.addmm(blocks, r[whole:].T, features[whole:])


def sample_losses(z: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of each row, [n]."""
    return z.logsumexp(1) - z.gather(1, labels[:, None])[:, 0]


def residual(z: Tensor, labels: Tensor) -> Tensor:
    """softmax(z) - onehot(labels), [n, c]: d CE_i / d z_i."""
    p = torch.softmax(z, 1)
    return p.scatter_add_(1, labels[:, None], -torch.ones_like(p[:, :1]))


def curved(p: Tensor, u: Tensor) -> Tensor:
    """(diag(p_i) - p_i p_i^T) u_i for every row i, [n, c]: d residual in the direction u."""
    pu = p * u
    return pu - p * pu.sum(1, keepdim=True)
