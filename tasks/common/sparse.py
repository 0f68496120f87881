"""Matrices of features times dense ones.

A sparse matrix goes by rows: a row is a bag of columns with weights. On a CPU torch's embedding
bags take half the time of its CSR products (MKL) for twenty dense columns, and sum in a fixed
order. A matrix keeps its transpose too, so that products with both go by rows and nothing is ever
scattered.
"""

from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor


class Csr(NamedTuple):
    """Row i has values[k] in column columns[k] for offsets[i] <= k < offsets[i + 1].

    offsets [n + 1] and columns [nnz] are int32.
    """

    offsets: Tensor
    columns: Tensor
    values: Tensor


class Sparse(NamedTuple):
    """An n x p matrix and its transpose."""

    rows: Csr
    columns: Csr

    def times(self, dense: Tensor) -> Tensor:
        """self @ dense, [n, c], for dense [p, c]; differentiable in `dense` any number of times."""
        if dense.requires_grad:
            return _Times.apply(*self.rows, *self.columns, dense)
        return product(self.rows, dense)

    def transposed_times(self, dense: Tensor) -> Tensor:
        """self^T @ dense, [p, c], for dense [n, c]."""
        return product(self.columns, dense)

    def transpose(self) -> "Sparse":
        """The p x n matrix; nothing is copied."""
        return Sparse(self.columns, self.rows)

    def picked(self, numbers: Tensor) -> "Sparse":
        """The matrix of the rows of these numbers, with its transpose, on the CPU.

        scipy makes both faster than `pick_rows` and `sparse`, which run on every device.
        """
        from scipy.sparse import csr_array

        def by_rows(found: Any) -> Csr:
            return Csr(*map(torch.from_numpy, (found.indptr, found.indices, found.data)))

        size = len(self.rows.offsets) - 1, len(self.columns.offsets) - 1
        whole: Any = csr_array(
            (self.rows.values.numpy(), self.rows.columns.numpy(), self.rows.offsets.numpy()),
            shape=size,
        )
        rows = whole[numbers.numpy()]
        return Sparse(by_rows(rows), by_rows(rows.tocsc()))

    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that tell this matrix from others; the last one has its entries."""
        return self.rows


class Dense(NamedTuple):
    """An n x p matrix with few zeros, with the products of `Sparse`.

    Each product is computed as the transpose of another one: where `dense` has few columns, MKL
    then takes a fraction of the time, and so does the softmax of a result that lies so.
    """

    matrix: Tensor

    def times(self, dense: Tensor) -> Tensor:
        """self @ dense, [n, c], for dense [p, c]; it lies in memory column after column."""
        return (dense.T @ self.matrix.T).T

    def transposed_times(self, dense: Tensor) -> Tensor:
        """self^T @ dense, [p, c], for dense [n, c]."""
        return (dense.T @ self.matrix).T.contiguous()

    def picked(self, numbers: Tensor) -> "Dense":
        """The matrix of the rows of these numbers."""
        return Dense(self.matrix.index_select(0, numbers))

    def tensors(self) -> tuple[Tensor, ...]:
        """The tensor that tells this matrix from others, with its entries."""
        return (self.matrix,)


def sparse(rows: Csr, width: int) -> Sparse:
    """The matrix of these rows, with `width` columns, and its transpose."""
    row_of = torch.repeat_interleave(
        torch.arange(len(rows.offsets) - 1, dtype=torch.int32, device=rows.offsets.device),
        rows.offsets.diff(),
    )
    order = rows.columns.argsort(stable=True)
    offsets = torch.zeros(width + 1, dtype=torch.int32, device=row_of.device)
    offsets[1:] = torch.bincount(rows.columns, minlength=width).cumsum(0)
    return Sparse(rows, Csr(offsets, row_of[order], rows.values[order]))


def product(a: Csr, dense: Tensor) -> Tensor:
    """a @ dense, [n, c], for dense [p, c]."""
    return cast(Tensor, _product(*a, dense, dense.is_cuda))


@torch.library.custom_op("bench::sparse_product", mutates_args=())
def _product(
    offsets: Tensor, columns: Tensor, values: Tensor, dense: Tensor, by_csr: bool
) -> Tensor:
    """On a GPU, `by_csr`: an embedding bag would leave each row to one warp, and a common word, as
    a row of the transpose, is in thousands of documents."""
    if by_csr:
        size = (len(offsets) - 1, len(dense))
        return (
            torch.sparse_csr_tensor(offsets, columns, values, size, check_invariants=False) @ dense
        )
    return F.embedding_bag(
        columns, dense, offsets, mode="sum", per_sample_weights=values, include_last_offset=True
    )


@_product.register_fake
def _(offsets: Tensor, columns: Tensor, values: Tensor, dense: Tensor, by_csr: bool) -> Tensor:
    return dense.new_empty(len(offsets) - 1, dense.shape[1])


@_product.register_vmap
def _(info: Any, dims: tuple[int | None, ...], *inputs: Any) -> tuple[Tensor, int]:
    """The lanes' columns side by side, so that a matrix that all lanes share is read once."""
    lanes = info.batch_size
    moved = [t if d is None else t.movedim(d, 0) for t, d in zip(inputs, dims, strict=True)]
    *matrix, dense, by_csr = moved
    if dims[:3] == (None, None, None):
        beside = _product(*matrix, dense.movedim(0, 1).flatten(1), by_csr)
        return beside.unflatten(1, (lanes, -1)), 1
    own = [
        [t if d is None else t[k] for t, d in zip(moved, dims, strict=True)] for k in range(lanes)
    ]
    return torch.stack([_product(*each) for each in own]), 0


def pick_rows(a: Csr, numbers: Tensor) -> Csr:
    """The rows of these numbers, in the order of the numbers; a number may be there twice."""
    starts = a.offsets[numbers]
    lengths = a.offsets[numbers + 1] - starts
    offsets = torch.zeros(len(numbers) + 1, dtype=torch.int32, device=starts.device)
    offsets[1:] = lengths.cumsum(0)
    shift = torch.repeat_interleave(starts - offsets[:-1], lengths)
    at = torch.arange(len(shift), dtype=torch.int32, device=shift.device) + shift
    return Csr(offsets, a.columns[at], a.values[at])


class _Times(torch.autograd.Function):
    """Sparse.times as an operation of autograd, whose derivative is itself with the transpose.

    The arguments are the fields of both matrices one by one, because a Function takes no tuples.
    """

    @staticmethod
    def forward(ctx: Any, *parts: Tensor) -> Tensor:
        ctx.save_for_backward(*parts[:6])
        return product(Csr(*parts[:3]), parts[6])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        parts = ctx.saved_tensors
        a = Sparse(Csr(*parts[3:]), Csr(*parts[:3]))
        return *[None] * 6, a.times(gradients[0].contiguous())
