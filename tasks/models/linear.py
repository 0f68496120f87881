"""Softmax regression in closed form.

For weights y in R^{c x d}, features X in R^{n x d} and sample weights w in R^n,
    l(y) = sum_i w_i CE(X_i y^T, label_i),   grad l = R^T X,  R = w (P - onehot),
    (d2l/dy2) v = S^T X,  S = w (P U - P <P, U>),  U = X v^T,
where P = softmax(X y^T) rowwise. The tests hold all of this against autograd.

On a CPU softmax_rows.c computes each of these lines reading a row once, and needs no copy of the
rows of a batch; elsewhere, and without a C compiler, it is two products by torch. z = X y^T lies in
memory class after class, as the second product needs R.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from tasks.models.softmax_rows import (
    combine_rows,
    curvatures,
    loss_gradients,
    reads_rows_once,
    scores,
)


class Rows(NamedTuple):
    """Rows of a data set: features and labels [n] int64.

    numbers [n] int64: which rows these are; None: all. picked [n] int64: where features has them;
    None: features [n, d] has these rows alone.
    """

    features: Tensor
    labels: Tensor
    numbers: Tensor | None
    picked: Tensor | None = None


class LossGradient(NamedTuple):
    """What one pass over the rows gives: the gradient [c, d] of the weighted losses' sum, the
    softmax p [n, c], and the cross-entropies [n]."""

    gradient: Tensor
    p: Tensor
    losses: Tensor


def pick(features: Tensor, labels: Tensor, numbers: Tensor) -> Rows:
    """The rows of these numbers, [n] int64; copied only where they must be."""
    chosen = labels.index_select(0, numbers)
    if reads_rows_once(features):
        return Rows(features, chosen, numbers, numbers)
    # on a CPU index_select copies rows in half the time that an index in brackets takes
    return Rows(features.index_select(0, numbers), chosen, numbers)


def logits(y: Tensor, features: Tensor, picked: Tensor | None = None) -> Tensor:
    """features y^T, [n, c], which lies in memory class after class. picked: as in `Rows`."""
    if picked is not None:
        return (y @ features.index_select(0, picked).T).T
    return scores(y, features).T if reads_rows_once(features) else (y @ features.T).T


def transposed_product(r: Tensor, features: Tensor) -> Tensor:
    """r^T features, [c, d], for r [n, c]."""
    return combine_rows(r.T, features) if reads_rows_once(features) else r.T @ features


def loss_gradient(y: Tensor, rows: Rows, weights: Tensor | None) -> LossGradient:
    """sum_i weights_i dCE_i/dy and what comes with it; weights [n], or None: the gradient is not
    wanted, and empty. On a CPU it cannot be differentiated again: `curvature` is its derivative."""
    features, labels, _, picked = rows
    if reads_rows_once(features):
        gradient, p, losses = loss_gradients(y[None], features, *_as_lane(rows, weights))
        return LossGradient(gradient.flatten(0, 1), p[0].T, losses[0])
    z = logits(y, features, picked)
    p = softmax(z)
    if weights is None:
        return LossGradient(y[:0], p, sample_losses(z, labels))
    r = add_at_labels(p, labels[:, None], -1) * weights[:, None]
    return LossGradient(transposed_product(r, features), p, sample_losses(z, labels))


def curvature(v: Tensor, p: Tensor, rows: Rows, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """The derivatives along v [c, d] of the gradient, [c, d], and of the cross-entropies, [n].

    p: the softmax at y, from `loss_gradient`. Without weights the first is empty.
    """
    features, labels, _, picked = rows
    if reads_rows_once(features):
        change, along = curvatures(v[None], p.T[None], features, *_as_lane(rows, weights))
        return change.flatten(0, 1), along[0]
    u = logits(v, features, picked)
    along = (p * u).sum(1) - u.gather(1, labels[:, None])[:, 0]
    if weights is None:
        return v[:0], along
    return transposed_product(residual_change(p, u) * weights[:, None], features), along


def _as_lane(rows: Rows, weights: Tensor | None) -> tuple[Tensor | None, Tensor, Tensor | None]:
    """picked, labels and weights of one lane."""
    picked = None if rows.picked is None else rows.picked[None]
    return picked, rows.labels[None], None if weights is None else weights[None]


def softmax(z: Tensor) -> Tensor:
    """The softmax of each row of z [n, c]. If z lies class after class, so does the result, and
    takes for 10 classes a twentieth of the time, as torch works on several rows at once.
    """
    return torch.softmax(z, 1) if z.is_contiguous() else torch.softmax(z.T, 0).T


def sample_losses(z: Tensor, labels: Tensor) -> Tensor:
    """The cross-entropy of each row of scores z [n, c], [n]."""
    return z.logsumexp(1) - z.gather(1, labels[:, None])[:, 0]


def mean_loss(z: Tensor, labels: Tensor) -> Tensor:
    """The mean cross-entropy of scores z [n, c], a scalar.

    torch's own takes ten times as long for 10 classes, whose rows it goes through one by one.
    """
    return sample_losses(z, labels).mean()


def residual(z: Tensor, labels: Tensor) -> Tensor:
    """softmax(z) - onehot(labels), [n, c]: the gradient of CE_i in z_i for every row i."""
    return add_at_labels_(softmax(z), labels[:, None], -1)


def add_at_labels(r: Tensor, labels: Tensor, value: int, dim: int = 1) -> Tensor:
    """r plus value times onehot(labels) along `dim`, where labels has the length 1.

    The numbers are the same with and without CUDA. There scatter_add, made deterministic, would
    sort, in some twenty kernels; on a CPU it touches the fewest numbers.
    """
    if r.is_cuda:
        return torch.add(r, one_hot(labels, r.shape[dim], dim), alpha=value)
    return r.scatter_add(dim, labels, r.new_full((1,), value).expand(labels.shape))


def add_at_labels_(r: Tensor, labels: Tensor, value: int, dim: int = 1) -> Tensor:
    """`add_at_labels` that writes over r."""
    if r.is_cuda:
        return r.add_(one_hot(labels, r.shape[dim], dim), alpha=value)
    return r.scatter_add_(dim, labels, r.new_full((1,), value).expand(labels.shape))


def one_hot(labels: Tensor, classes: int, dim: int = 1) -> Tensor:
    """Whether each class is a row's label: labels [n, 1] gives [n, classes]. dim: the classes'.

    torch's function of this name looks into the labels, for which the host waits.
    """
    shape = [1] * labels.ndim
    shape[dim] = classes
    return labels == torch.arange(classes, device=labels.device).view(shape)


def residual_change(p: Tensor, u: Tensor) -> Tensor:
    """(diag(p_i) - p_i p_i^T) u_i for every row i, [n, c]: the derivative of `residual` along u,
    where p [n, c] is the softmax."""
    pu = p * u
    return pu - p * pu.sum(1, keepdim=True)
