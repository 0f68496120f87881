"""Sparse products against dense ones, rows with no entry and entries twice in one place among them.

Sums of a few terms in another order: 1e-12 in float64.
"""

import pytest
import torch
from torch import Tensor

from bench.core.draw import generator
from tasks.common.sparse import Csr, Dense, Sparse, pick_rows, product, sparse

N, P = 7, 5
ROWS: list[list[tuple[int, float]]] = [
    [(4, 1.5), (0, -2.0)],
    [],
    [(1, 0.5)],
    [(2, 3.0), (2, -1.0), (0, 7.0)],
    [(4, 0.25), (3, -0.5), (2, 0.125), (1, 8.0)],
    [(0, 1.0)],
    [],
]


def csr(rows: list[list[tuple[int, float]]]) -> Csr:
    """The matrix of these rows, as `Csr` says."""
    offsets = [0]
    for row in rows:
        offsets.append(offsets[-1] + len(row))
    columns = torch.tensor([c for row in rows for c, _ in row], dtype=torch.int32)
    values = torch.tensor([v for row in rows for _, v in row], dtype=torch.float64)
    return Csr(torch.tensor(offsets, dtype=torch.int32), columns, values)


def dense(rows: list[list[tuple[int, float]]], width: int = P) -> Tensor:
    """The same, written out."""
    found = torch.zeros(len(rows), width, dtype=torch.float64)
    for i, row in enumerate(rows):
        for c, v in row:
            found[i, c] += v
    return found


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=generator("sparse", *shape), dtype=torch.float64)


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("columns", [1, 3])
def test_products_are_the_dense_ones(columns: int) -> None:
    A, B, C = sparse(csr(ROWS), P), drawn(P, columns), drawn(N, columns)
    close(product(A.rows, B), dense(ROWS) @ B)
    close(A.times(B), dense(ROWS) @ B)
    close(A.transposed_times(C), dense(ROWS).T @ C)
    close(A.transpose().times(C), dense(ROWS).T @ C)
    close(Dense(dense(ROWS)).times(B), dense(ROWS) @ B)
    close(Dense(dense(ROWS)).transposed_times(C), dense(ROWS).T @ C)
    close(A.transpose().transpose().times(B), dense(ROWS) @ B)
    close(torch.ops.bench.sparse_product(*A.rows, B, True), dense(ROWS) @ B)  # what a GPU takes
    close(torch.ops.bench.sparse_product(*A.columns, C, True), dense(ROWS).T @ C)


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("by_csr", [False, True])
@pytest.mark.parametrize("own", ["dense", "values", "both"])
def test_products_of_lanes_are_those_of_each(own: str, by_csr: bool) -> None:
    """Lanes with dense matrices of their own, with values of their own, and with both."""
    A, B = csr(ROWS), drawn(2, P, 3)
    scales = torch.tensor([1.0, -3.0], dtype=torch.float64)
    v_dim, b_dim = (None if own == "dense" else 0), (None if own == "values" else 2)
    values = A.values if v_dim is None else scales[:, None] * A.values
    columns = B[0] if b_dim is None else B.movedim(0, 2)

    def times(v: Tensor, b: Tensor) -> Tensor:
        return torch.ops.bench.sparse_product(A.offsets, A.columns, v, b, by_csr)

    found = torch.func.vmap(times, (v_dim, b_dim))(values, columns)
    for k in range(2):
        matrix = dense(ROWS) * (1.0 if own == "dense" else scales[k])
        close(found[k], matrix @ B[0 if own == "values" else k])


def test_the_transpose_is_by_rows_too() -> None:
    """Each column's entries in the order of the rows: sums go in a fixed order."""
    columns = sparse(csr(ROWS), P + 2).columns
    assert columns.offsets.tolist() == [0, 3, 5, 8, 9, 11, 11, 11]
    assert columns.columns.tolist() == [0, 3, 5, 2, 4, 3, 3, 4, 4, 0, 4]
    assert columns.values.tolist() == [-2, 7, 1, 0.5, 8, 3, -1, 0.125, -0.5, 1.5, 0.25]
    assert columns.offsets.dtype == columns.columns.dtype == torch.int32


@pytest.mark.parametrize("numbers", [[3], [4, 0, 4], [1], [6, 5, 3, 1], [], [0, 1, 2, 3, 4, 5, 6]])
def test_picked_rows(numbers: list[int]) -> None:
    """In the order of their numbers, one twice, empty ones among them."""
    found = pick_rows(csr(ROWS), torch.tensor(numbers, dtype=torch.long))
    expected = csr([ROWS[i] for i in numbers])
    for name in Csr._fields:
        assert getattr(found, name).tolist() == getattr(expected, name).tolist(), name
    assert found.offsets.dtype == found.columns.dtype == torch.int32


@pytest.mark.parametrize("numbers", [[3], [4, 0, 4], [1], [6, 5, 3, 1], [], [0, 1, 2, 3, 4, 5, 6]])
def test_a_matrix_of_picked_rows(numbers: list[int]) -> None:
    """The same rows, and the transpose that `sparse` makes of them, bit for bit."""
    these = torch.tensor(numbers, dtype=torch.long)
    found = sparse(csr(ROWS), P).picked(these)
    expected = sparse(csr([ROWS[i] for i in numbers]), P)
    for name in Sparse._fields:
        for part in Csr._fields:
            one, other = (getattr(getattr(each, name), part) for each in (found, expected))
            assert one.tolist() == other.tolist(), (name, part)
            assert one.dtype == other.dtype
    assert torch.equal(Dense(dense(ROWS)).picked(these).matrix, dense(ROWS)[these])


def test_products_are_differentiable_twice() -> None:
    """d/dB <C, A B> = A^T C, for the transpose too, and through a nonlinear loss twice."""
    A = sparse(csr(ROWS), P)
    B = drawn(P, 3).requires_grad_()
    assert torch.autograd.gradcheck(A.times, B)
    assert torch.autograd.gradgradcheck(A.times, B)
    assert torch.autograd.gradcheck(A.transpose().times, drawn(N, 2).requires_grad_())
    (found,) = torch.autograd.grad((drawn(N, 3) * A.times(B)).sum(), B)
    close(found, dense(ROWS).T @ drawn(N, 3))
