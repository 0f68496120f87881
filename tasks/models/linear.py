"""Softmax regression in closed form: what its derivatives cost is two products with the data.

For weights y in R^{c x d}, features X in R^{n x d} and sample weights w in R^n,
    l(y) = (1/n) sum_i w_i CE(X_i y^T, label_i),   grad l = R^T X,  R = w (P - onehot) / n,
    (d2l/dy2) v = S^T X,  S = w (P U - P <P, U>) / n,  U = X v^T,
where P = softmax(X y^T) rowwise. The tests hold all of it against autograd.

Few columns times many rows is what BLAS does worst: from MANY rows on both products go in blocks of
rows, and z = X y^T lies in memory class after class, which is how the second product wants R. They
are operators of their own, `bench::scores` and `bench::gathered`, each the other's derivative:
torch.func.vmap over weights stacks the lanes' columns, so that X is read once for all of them, and
torch.compile takes them as they are. The gradient alone is one operator, `bench::slopes`, in which
what lies between the products keeps the form of the blocks and is written over.

Half of the blocks go into one batched product. A loop over blocks that stay in cache reads X once,
but on two threads each of its small operations waits for both: 58 ms against 38 at 50,000 x 784 x
10. For the same reason X stays in the run's dtype: bytes of pixels would be converted block by
block, and are only what pixels were before they were standardised.

A digit does not fill its image: of MNIST's 784 pixels some 200 have ink in 3% of the images only.
In the others they are one constant feature for both products, which then do three quarters of the
work (`Trimmed`); those 3% go by themselves, whole.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

MANY = 5000  # rows
WORTH = 0.9  # of the products' work, at most, is left where columns are taken out


class Trimmed(NamedTuple):
    """[n, d] features most rows of which are even: constant in all columns but k.

    features [n, k + 1] has those k and then ones: an even row of the whole is `lifted` from its row
    here. even [n]: 1, or 0 for the m odd rows, whose numbers are odd [m] int64, features whole
    [m, d]. kept [k], left [d - k] int64: which columns; ground [d - k]: the constants; places [d]
    int64: where in (kept, left) each column is.
    """

    features: Tensor
    even: Tensor
    odd: Tensor
    whole: Tensor
    kept: Tensor
    left: Tensor
    ground: Tensor
    places: Tensor


class Rows(NamedTuple):
    """Rows of a data set: features [n, d], labels [n] int64, their numbers [n] or None: all.

    trimmed: of the same features, or None."""

    features: Tensor
    labels: Tensor
    numbers: Tensor | None
    trimmed: Trimmed | None = None


def trimmed(features: Tensor) -> Trimmed | None:
    """The columns taken out that leave the least work, a column's constant being its least value;
    None where that is not WORTH it, for less than MANY rows, on a GPU."""
    n, d = features.shape
    if n < MANY or features.is_cuda:
        return None
    ground = features.amin(0)
    away = features != ground
    rarest = away.sum(0).argsort(stable=True)
    rank = rarest.argsort().to(features)
    first = torch.where(away, rank, d).amin(1).long()  # of a row's columns: it is odd without it
    odd = torch.cat([first.new_zeros(1), first.bincount(minlength=d + 1).cumsum(0)[:d]])
    taken = torch.arange(d + 1)
    work = n * (d - taken + 1) + 2 * d * odd  # rows by themselves are few: slow ones
    most = int(work.argmin())
    if work[most] > WORTH * n * d:
        return None
    left, kept = rarest[:most].sort().values, rarest[most:].sort().values
    numbers = (first < most).nonzero()[:, 0]
    return Trimmed(
        torch.cat([features[:, kept], features.new_ones(n, 1)], 1),
        (first >= most).to(features),
        numbers,
        features[numbers],
        kept,
        left,
        ground[left],
        torch.cat([kept, left]).argsort(),
    )


def lowered(y: Tensor, t: Trimmed) -> Tensor:
    """[c, d] -> [c, k + 1]: with these weights a trimmed row has the scores of its even row."""
    return torch.cat([y[:, t.kept], (y[:, t.left] @ t.ground)[:, None]], 1)


def lifted(g: Tensor, t: Trimmed) -> Tensor:
    """[c, k + 1] -> [c, d], the transpose of `lowered`."""
    return torch.cat([g[:, :-1], g[:, -1:] * t.ground], 1)[:, t.places]


def logits(y: Tensor, features: Tensor, trimmed: Trimmed | None = None) -> Tensor:
    """features y^T, [n, c]; trimmed: of the same features."""
    if len(features) < MANY:
        return features @ y.T
    if trimmed is None:
        return scores(y, features).T
    z = scores(lowered(y, trimmed), trimmed.features)
    return z.index_copy(1, trimmed.odd, y @ trimmed.whole.T).T


def transposed_product(r: Tensor, features: Tensor, trimmed: Trimmed | None = None) -> Tensor:
    """r^T features, [c, d]; trimmed: of the same features."""
    if len(features) < MANY:
        return r.T @ features
    if trimmed is None:
        return gathered(r.T, features)
    even = gathered(r.T * trimmed.even, trimmed.features)
    return lifted(even, trimmed) + r[trimmed.odd].T @ trimmed.whole


def blocks_of(n: int, columns: int) -> int:
    """How many, even: by the problem alone, so that no bit depends on the machine. Of a single
    model's few columns 50 rows are not packed, which is faster; more would make too many sums."""
    return 1000 if columns <= 16 and n >= 50_000 else 100


@torch.library.custom_op("bench::scores", mutates_args=())
def scores(y: Tensor, features: Tensor) -> Tensor:
    """y features^T, [c, n]."""
    n, c = len(features), len(y)
    many = blocks_of(n, c)
    if features.is_cuda or n < many:
        return y @ features.T
    whole = n // many * many
    blocks = features[:whole].reshape(many, whole // many, -1).transpose(1, 2)
    z = torch.bmm(y.expand(many, *y.shape), blocks).transpose(0, 1).reshape(c, whole)
    return z if whole == n else torch.cat([z, y @ features[whole:].T], 1)


@torch.library.custom_op("bench::gathered", mutates_args=())
def gathered(r: Tensor, features: Tensor) -> Tensor:
    """r features, [c, d]."""
    c, n = r.shape
    many = blocks_of(n, c)
    if features.is_cuda or n < many:
        return r @ features
    whole = n // many * many
    blocks = torch.bmm(
        r[:, :whole].reshape(c, many, -1).transpose(0, 1),
        features[:whole].reshape(many, whole // many, -1),
    ).sum(0)
    return blocks if whole == n else torch.addmm(blocks, r[:, whole:], features[whole:])


def slope(
    y: Tensor, features: Tensor, labels: Tensor, weights: Tensor, trimmed: Trimmed | None = None
) -> Tensor:
    """sum_i weights_i dCE_i/dy, [c, d]; labels [n] int64, weights [n]; trimmed as in `logits`.

    From MANY rows on it has no derivative: it is one."""
    if len(features) < MANY or features.is_cuda:
        r = residual(logits(y, features), labels) * weights[:, None]
        return transposed_product(r, features)

    def over(y: Tensor, features: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        return slopes(y[None], features, labels[None], weights[None])[0]

    if trimmed is None:
        return over(y, features, labels, weights)
    t, odd = trimmed, trimmed.odd
    even = over(lowered(y, t), t.features, labels, weights * t.even)
    return lifted(even, t).add_(over(y, t.whole, labels[odd], weights[odd]))


@torch.library.custom_op("bench::slopes", mutates_args=())
def slopes(y: Tensor, features: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """`slope` for y [lanes, c, d]; labels and weights [lanes, n], or [1, n] for all lanes."""
    lanes, c, d = y.shape
    n, stacked = len(features), y.flatten(0, 1)

    def over(begin: int, end: int, blocks: int) -> Tensor:
        X = features[begin:end].reshape(blocks, -1, d)
        z = torch.bmm(stacked.expand(blocks, *stacked.shape), X.mT)
        p = torch.softmax(z.unflatten(1, (lanes, c)), 2)  # [blocks, lanes, c, rows]
        which, w = (
            t[:, begin:end].unflatten(1, (blocks, -1)).transpose(0, 1).unsqueeze(2)
            for t in (labels, weights)
        )
        which = which.expand(-1, lanes, -1, -1)
        r = p.scatter_add_(2, which, p.new_full((1,), -1).expand(which.shape)).mul_(w)
        return torch.bmm(r.flatten(1, 2), X).sum(0)

    if n < MANY:
        return over(0, n, 1).view_as(y)
    blocks = blocks_of(n, lanes * c) // 2
    half = n // (2 * blocks) * blocks
    found = over(0, half, blocks) + over(half, 2 * half, blocks)
    if 2 * half < n:
        found += over(2 * half, n, 1)
    return found.view_as(y)


@scores.register_fake
def _(y: Tensor, features: Tensor) -> Tensor:
    return y.new_empty(len(y), len(features))


@gathered.register_fake
def _(r: Tensor, features: Tensor) -> Tensor:
    return r.new_empty(len(r), features.shape[1])


@slopes.register_fake
def _(y: Tensor, features: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    return torch.empty_like(y)


@scores.register_vmap
def _(info: Any, dims: tuple[int | None, int | None], y: Tensor, features: Tensor) -> Any:
    y, features = _lanes_first(y, dims[0]), _lanes_first(features, dims[1])
    if dims[1] is not None:
        return y @ features.mT, 0
    return scores(y.flatten(0, 1), features).unflatten(0, y.shape[:2]), 0


@gathered.register_vmap
def _(info: Any, dims: tuple[int | None, int | None], r: Tensor, features: Tensor) -> Any:
    r, features = _lanes_first(r, dims[0]), _lanes_first(features, dims[1])
    if dims[1] is not None:
        return r @ features, 0
    return gathered(r.flatten(0, 1), features).unflatten(0, r.shape[:2]), 0


@slopes.register_vmap
def _(
    info: Any,
    dims: tuple[int | None, ...],
    y: Tensor,
    features: Tensor,
    labels: Tensor,
    weights: Tensor,
) -> Any:
    many = info.batch_size
    inputs = [_lanes_first(t, d) for t, d in zip((y, features, labels, weights), dims)]
    if dims[1] is not None:
        own = [t if d is not None else t.expand(many, *t.shape) for t, d in zip(inputs, dims)]
        return torch.stack([slopes(*each) for each in zip(*own)]), 0
    y, features, labels, weights = inputs
    lanes = y.shape[-3]
    if dims[0] is None:
        y = y.expand(many, *y.shape)
    labels, weights = (
        t if d is None and len(t) == 1 else t.expand(many, lanes, -1).flatten(0, 1)
        for t, d in ((labels, dims[2]), (weights, dims[3]))
    )
    return slopes(y.flatten(0, 1), features, labels, weights).view_as(y), 0


def _lanes_first(t: Tensor, dim: int | None) -> Tensor:
    return t if dim is None else t.movedim(dim, 0)


def _kept(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _scores_back(ctx: Any, slope: Tensor) -> tuple[Tensor | None, Tensor | None]:
    y, features = ctx.saved_tensors
    wanted = ctx.needs_input_grad
    return gathered(slope, features) if wanted[0] else None, slope.T @ y if wanted[1] else None


def _gathered_back(ctx: Any, slope: Tensor) -> tuple[Tensor | None, Tensor | None]:
    r, features = ctx.saved_tensors
    wanted = ctx.needs_input_grad
    return scores(slope, features) if wanted[0] else None, r.T @ slope if wanted[1] else None


scores.register_autograd(_scores_back, setup_context=_kept)
gathered.register_autograd(_gathered_back, setup_context=_kept)


def softmax(z: Tensor) -> Tensor:
    """Of each row; the memory of z and of the result goes by rows or, from MANY on, by classes."""
    by_rows = len(z) < MANY or z.is_contiguous()
    return torch.softmax(z, 1) if by_rows else torch.softmax(z.T, 0).T


def sample_losses(z: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of each row, [n]."""
    return z.logsumexp(1) - z.gather(1, labels[:, None])[:, 0]


def residual(z: Tensor, labels: Tensor) -> Tensor:
    """softmax(z) - onehot(labels), [n, c]: d CE_i / d z_i."""
    p = softmax(z)
    return p.scatter_add_(1, labels[:, None], -torch.ones_like(p[:, :1]))


def curved(p: Tensor, u: Tensor) -> Tensor:
    """(diag(p_i) - p_i p_i^T) u_i for every row i, [n, c]: d residual in the direction u."""
    pu = p * u
    return pu - p * pu.sum(1, keepdim=True)
