"""Softmax regression in closed form: each derivative costs two products with the data.

For weights y in R^{c x d}, features X in R^{n x d} and sample weights w in R^n,
    l(y) = (1/n) sum_i w_i CE(X_i y^T, label_i),   grad l = R^T X,  R = w (P - onehot) / n,
    (d2l/dy2) v = S^T X,  S = w (P U - P <P, U>) / n,  U = X v^T,
where P = softmax(X y^T) rowwise. The tests hold all of this against autograd.

z = X y^T lies in memory class after class, as the second product needs R: it is computed as y X^T,
which takes BLAS half the time. BLAS is slowest where few columns are multiplied with many rows:
from MANY rows on, both products go in blocks of rows. They are operators of their own there,
`bench::scores` and `bench::combine_rows`, each of which is the other's derivative. torch.func.vmap
over weights stacks the lanes' columns, so that X is read once for all lanes, and torch.compile
takes the operators as they are. The gradient alone is one operator, `bench::loss_gradients`, which
keeps everything between the two products in blocks, and writes over it.

Half of the blocks go into one batched product. A loop over blocks that stay in the cache would read
X once, but on two threads each of its small operations waits for both threads: at 50,000 x 784 x 10
the loop takes 58 ms, and the batched product 38. X stays in the run's dtype, because pixels as
bytes would have to be converted and standardised block by block, with the same waiting.

A digit does not fill its image: some 200 of MNIST's 784 pixels have ink in only 3% of the images.
In all other images these pixels together are one constant feature for both products, which then do
three quarters of the work (`Trimmed`). The 3% are multiplied separately, with all pixels.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

MANY = 5000  # rows from which products go in blocks
WORTH = 0.9  # columns are taken out if at most this fraction of the products' work is left


class Trimmed(NamedTuple):
    """Features [n, d] of which most rows, the even ones, have the same values in all but k columns.

    features [n, k + 1]: the k columns that are kept, and a column of ones that stands for the
    others. even [n]: 1 for an even row, 0 for one of the m odd rows. odd [m] int64: the numbers of
    the odd rows. whole [m, d]: their features. kept [k], left [d - k] int64: which columns are kept
    and which are left out. ground [d - k]: the values that even rows have in the latter. places [d]
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
    """Rows of a data set: features [n, d] and labels [n] int64.

    numbers [n] int64: which rows these are; None: all. trimmed: the same features trimmed, if that
    is worth it.
    """

    features: Tensor
    labels: Tensor
    numbers: Tensor | None
    trimmed: Trimmed | None = None


def trim(features: Tensor) -> Trimmed | None:
    """The features without the columns whose absence leaves the least work.

    The value that stands for a column in even rows is the column's least one. None where taking
    columns out is not WORTH it, for less than MANY rows, and on a GPU.
    """
    n, d = features.shape
    if n < MANY or features.is_cuda:
        return None
    ground = features.amin(0)
    away = features != ground
    rarest = away.sum(0).argsort(stable=True)
    rank = rarest.argsort().to(features)
    # a row is odd once the first of its columns with another value than the ground is taken out
    first = torch.where(away, rank, d).amin(1).long()
    odd = torch.cat([first.new_zeros(1), first.bincount(minlength=d + 1).cumsum(0)[:d]])
    taken = torch.arange(d + 1)
    work = n * (d - taken + 1) + 2 * d * odd  # an odd row takes about twice its share of time
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


def lower_weights(y: Tensor, t: Trimmed) -> Tensor:
    """The weights [c, k + 1] with which a row of t.features has the scores that y [c, d] gives to
    the whole even row."""
    return torch.cat([y[:, t.kept], (y[:, t.left] @ t.ground)[:, None]], 1)


def lift_gradient(g: Tensor, t: Trimmed) -> Tensor:
    """The gradient [c, d] in y from the gradient g [c, k + 1] in `lower_weights` of y: the
    transpose of that map."""
    return torch.cat([g[:, :-1], g[:, -1:] * t.ground], 1)[:, t.places]


def logits(y: Tensor, features: Tensor, trimmed: Trimmed | None = None) -> Tensor:
    """features y^T, [n, c], which lies in memory class after class. trimmed: the same features
    trimmed, if they are."""
    if features.shape[0] < MANY:
        return (y @ features.T).T
    if trimmed is None:
        return scores(y, features).T
    z = scores(lower_weights(y, trimmed), trimmed.features)
    return z.index_copy(1, trimmed.odd, y @ trimmed.whole.T).T


def transposed_product(r: Tensor, features: Tensor, trimmed: Trimmed | None = None) -> Tensor:
    """r^T features, [c, d], for r [n, c]. trimmed: the same features trimmed, if they are."""
    if features.shape[0] < MANY:
        return r.T @ features
    if trimmed is None:
        return combine_rows(r.T, features)
    even = combine_rows(r.T * trimmed.even, trimmed.features)
    return lift_gradient(even, trimmed) + r[trimmed.odd].T @ trimmed.whole


def blocks_of(n: int, columns: int) -> int:
    """The number of blocks, which is even. It depends on the problem alone, so that no bit of a
    result depends on the machine.

    With the few columns of a single model, BLAS is faster on blocks of some 50 rows, which it does
    not pack; more than 1000 blocks would leave too many sums to add up.
    """
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


@torch.library.custom_op("bench::combine_rows", mutates_args=())
def combine_rows(r: Tensor, features: Tensor) -> Tensor:
    """r features, [c, d], for r [c, n]."""
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


def loss_gradient(
    y: Tensor, features: Tensor, labels: Tensor, weights: Tensor, trimmed: Trimmed | None = None
) -> Tensor:
    """sum_i weights_i dCE_i/dy, [c, d]; labels [n] int64, weights [n]; trimmed as in `logits`.

    From MANY rows on the result cannot be differentiated again.
    """
    if features.shape[0] < MANY or features.is_cuda:
        r = residual(logits(y, features), labels) * weights[:, None]
        return transposed_product(r, features)

    def over(y: Tensor, features: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        return loss_gradients(y[None], features, labels[None], weights[None])[0]

    if trimmed is None:
        return over(y, features, labels, weights)
    t, odd = trimmed, trimmed.odd
    even = over(lower_weights(y, t), t.features, labels, weights * t.even)
    return lift_gradient(even, t).add_(over(y, t.whole, labels[odd], weights[odd]))


@torch.library.custom_op("bench::loss_gradients", mutates_args=())
def loss_gradients(y: Tensor, features: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """`loss_gradient` for y [lanes, c, d], with labels and weights [lanes, n], or [1, n] for all
    lanes."""
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
        r = add_at_labels_(p, which, -1, 2).mul_(w)
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


@combine_rows.register_fake
def _(r: Tensor, features: Tensor) -> Tensor:
    return r.new_empty(len(r), features.shape[1])


@loss_gradients.register_fake
def _(y: Tensor, features: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    return torch.empty_like(y)


@scores.register_vmap
def _(info: Any, dims: tuple[int | None, int | None], y: Tensor, features: Tensor) -> Any:
    y, features = _put_lanes_first(y, dims[0]), _put_lanes_first(features, dims[1])
    if dims[1] is not None:
        return y @ features.mT, 0
    return scores(y.flatten(0, 1), features).unflatten(0, y.shape[:2]), 0


@combine_rows.register_vmap
def _(info: Any, dims: tuple[int | None, int | None], r: Tensor, features: Tensor) -> Any:
    r, features = _put_lanes_first(r, dims[0]), _put_lanes_first(features, dims[1])
    if dims[1] is not None:
        return r @ features, 0
    return combine_rows(r.flatten(0, 1), features).unflatten(0, r.shape[:2]), 0


@loss_gradients.register_vmap
def _(
    info: Any,
    dims: tuple[int | None, ...],
    y: Tensor,
    features: Tensor,
    labels: Tensor,
    weights: Tensor,
) -> Any:
    many = info.batch_size
    inputs = [_put_lanes_first(t, d) for t, d in zip((y, features, labels, weights), dims)]
    if dims[1] is not None:
        own = [t if d is not None else t.expand(many, *t.shape) for t, d in zip(inputs, dims)]
        return torch.stack([loss_gradients(*each) for each in zip(*own)]), 0
    y, features, labels, weights = inputs
    lanes = y.shape[-3]
    if dims[0] is None:
        y = y.expand(many, *y.shape)
    labels, weights = (
        t if d is None and len(t) == 1 else t.expand(many, lanes, -1).flatten(0, 1)
        for t, d in ((labels, dims[2]), (weights, dims[3]))
    )
    return loss_gradients(y.flatten(0, 1), features, labels, weights).view_as(y), 0


def _put_lanes_first(t: Tensor, dim: int | None) -> Tensor:
    return t if dim is None else t.movedim(dim, 0)


def _save(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _scores_back(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
    y, features = ctx.saved_tensors
    wanted = ctx.needs_input_grad
    return combine_rows(gradient, features) if wanted[0] else None, gradient.T @ y if wanted[
        1
    ] else None


def _combine_rows_back(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
    r, features = ctx.saved_tensors
    wanted = ctx.needs_input_grad
    return scores(gradient, features) if wanted[0] else None, r.T @ gradient if wanted[1] else None


scores.register_autograd(_scores_back, setup_context=_save)
combine_rows.register_autograd(_combine_rows_back, setup_context=_save)


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
