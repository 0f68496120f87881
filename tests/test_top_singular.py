"""The largest singular value by Lanczos bidiagonalisation, against its definition.

After k iterations from v_1 it is the largest of the matrix on the Krylov space of v_1, A^T A v_1,
..., (A^T A)^(k-1) v_1 (Golub and Van Loan, section 10.4): here by a QR factorisation of that basis,
step by step, and a dense decomposition.
"""

from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

from bench.core.draw import generator
from bench.numerics.singular import top_singular


def matrix(values: list[float], rows: int, columns: int) -> Tensor:
    """A matrix with these singular values."""
    rng, n = generator("spectrum", rows, columns), len(values)
    left, right = (
        torch.linalg.qr(torch.randn(m, n, generator=rng, dtype=torch.float64)).Q
        for m in (rows, columns)
    )
    return left @ torch.diag(torch.tensor(values).double()) @ right.T


def ritz(A: np.ndarray, most: int) -> list[tuple[float, float]]:
    """(the largest value, the norm of its residual) after 1, 2, ... iterations from numpy's first
    normal vector of seed 0; A is not wide."""
    v = np.random.default_rng(0).standard_normal(A.shape[1])
    basis = (v / np.linalg.norm(v))[:, None]
    found = []
    for _ in range(most):
        u, s, q = np.linalg.svd(A @ basis, full_matrices=False)
        right = basis @ q[0]
        residual = np.linalg.norm(A.T @ u[:, 0] - s[0] * right)
        found.append((float(s[0]), float(residual)))
        new = A.T @ (A @ basis[:, -1])
        for _ in range(2):
            new = new - basis @ (basis.T @ new)
        basis = np.c_[basis, new / np.linalg.norm(new)]
    return found


SLOW = [1 - 0.004 * k for k in range(45)]
SHAPES = [(60, 45), (45, 60), (45, 45)]


@cache
def history(shape: tuple[int, int]) -> list[tuple[float, float]]:
    """Of the matrix with the values SLOW, or its transpose where that is tall."""
    A = matrix(SLOW, *shape)
    return ritz((A if shape[0] >= shape[1] else A.T).numpy(), 44)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("accuracy", [0.3, 0.1, 0.05, 0.03, 0.02, 1e-2, 3e-3, 1e-3, 1e-4, 1e-6])
@pytest.mark.parametrize("scale", [1.0, 1e-5, 1e6])
def test_it_ends_at_the_first_look_that_is_accurate_enough(
    scale: float, accuracy: float, shape: tuple[int, int]
) -> None:
    """It looks after 7, 10, 13, 16, ... iterations (a fifth of those done in between, at least 3)
    and ends where the residual is at most `accuracy`."""
    A = scale * matrix(SLOW, *shape)
    u, sigma, v = top_singular(A, accuracy * scale, dense_up_to=0)
    k = 6
    while history(shape)[k][1] > accuracy:
        k += max(3, k // 5)
    value = scale * history(shape)[k][0]
    assert float(sigma) == pytest.approx(value, rel=1e-10)
    assert float(u @ A @ v) == pytest.approx(value, rel=1e-10)
    assert float(u.norm()) == pytest.approx(1, rel=1e-12)
    assert float(v.norm()) == pytest.approx(1, rel=1e-12)
    assert (u.shape, v.shape) == (shape[:1], shape[1:])


@pytest.mark.parametrize("steps", [1, 2, 5, 6, 7, 8, 12])
def test_it_ends_after_its_steps(steps: int) -> None:
    A = matrix(SLOW, *SHAPES[0])
    u, sigma, v = top_singular(A, 0.0, steps, dense_up_to=0)
    assert float(sigma) == pytest.approx(history(SHAPES[0])[steps - 1][0], rel=1e-10)
    assert float(u @ A @ v) == pytest.approx(float(sigma), rel=1e-9)


def test_without_an_accuracy_it_takes_300_steps_at_most() -> None:
    """The largest values are so close that these do not do: the value is theirs."""
    n, steps = 330, 300
    values = 1 - (np.arange(n) / n) ** 3
    _, sigma, _ = top_singular(torch.from_numpy(np.diag(values)))
    basis = np.zeros((steps, n))
    new = np.random.default_rng(0).standard_normal(n)
    for k in range(steps):
        basis[k] = new / np.linalg.norm(new)
        new = values**2 * basis[k]
        for _ in range(2):
            new = new - (basis[: k + 1] @ new) @ basis[: k + 1]
    found = [np.linalg.svd(values * basis[:k], compute_uv=False)[0] for k in (steps - 1, steps)]
    assert found[1] > found[0] * (1 + 1e-12)
    assert float(sigma) == pytest.approx(found[1], rel=1e-13)


WAYS = pytest.mark.parametrize("dense_up_to", [0, 40], ids=["by iterations", "whole"])


@WAYS
@pytest.mark.parametrize("rank", [1, 2, 5, 6, 7, 8, 15])
@pytest.mark.parametrize("shape", [(20, 30), (30, 20)])
def test_a_low_rank_is_exhausted(rank: int, shape: tuple[int, int], dense_up_to: int) -> None:
    """The space is used up after `rank` iterations, before or at a look: the value is exact."""
    A = matrix([float(3 + k) for k in range(rank)], *shape)
    u, sigma, v = top_singular(A, dense_up_to=dense_up_to)
    assert float(sigma) == pytest.approx(2 + rank, rel=1e-12)
    torch.testing.assert_close(A @ v, sigma * u, rtol=0, atol=1e-10)
    torch.testing.assert_close(A.T @ u, sigma * v, rtol=0, atol=1e-10)


@WAYS
@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (7, 1), (2, 2)])
def test_small_shapes(shape: tuple[int, int], dense_up_to: int) -> None:
    A = torch.randn(*shape, generator=generator("small", *shape), dtype=torch.float64)
    u, sigma, v = top_singular(A, dense_up_to=dense_up_to)
    assert float(sigma) == pytest.approx(float(torch.linalg.svdvals(A)[0]), rel=1e-12)
    torch.testing.assert_close(A @ v, sigma * u, rtol=0, atol=1e-12)


@WAYS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("exponent", [-30, 0, 30])
def test_neither_small_nor_large_numbers_are_lost(
    dtype: torch.dtype, exponent: int, dense_up_to: int
) -> None:
    """Their squares would be, in float32; the answer has the matrix's dtype."""
    A = (matrix([3.0, 2.0, 1.0], 8, 6) * 10.0**exponent).to(dtype)
    u, sigma, v = top_singular(A, dense_up_to=dense_up_to)
    assert u.dtype == sigma.dtype == v.dtype == dtype
    assert float(sigma) == pytest.approx(3 * 10.0**exponent, rel=1e-6)
    assert float(v.norm()) == pytest.approx(1, rel=1e-6)


def test_a_matrix_that_is_differentiated_elsewhere_is_taken_as_numbers() -> None:
    A = matrix([3.0, 2.0], 8, 6).requires_grad_()
    assert float(top_singular(A)[1]) == pytest.approx(3, rel=1e-12)


@pytest.mark.parametrize("shape", [(4, 6), (6, 4)])
def test_zero_has_the_value_zero_and_unit_vectors(shape: tuple[int, int]) -> None:
    u, sigma, v = top_singular(torch.zeros(shape).double())
    assert sigma.dtype == torch.float64
    assert float(sigma) == 0
    torch.testing.assert_close(u, torch.full((shape[0],), shape[0] ** -0.5).double())
    torch.testing.assert_close(v, torch.full((shape[1],), shape[1] ** -0.5).double())


@pytest.mark.parametrize("shape", [(40, 60), (60, 40), (41, 60), (60, 41)])
def test_a_small_matrix_is_decomposed_whole(shape: tuple[int, int]) -> None:
    """With at most 40 rows or columns the value is exact whatever accuracy is asked for and however
    few iterations are allowed. A larger matrix gets what one iteration finds."""
    A = matrix(SLOW[:40], *shape)
    u, sigma, v = top_singular(A, 0.5, 1)
    assert float(u @ A @ v) == pytest.approx(float(sigma), rel=1e-10)
    assert (float(sigma) == pytest.approx(1, rel=1e-12)) == (min(shape) <= 40)


@pytest.mark.parametrize("apart", [1e-2, 1e-3, 1e-4, 1e-5, 1e-7])
@pytest.mark.parametrize("accuracy", [1e-3, 1e-5, 1e-7, 1e-9])
def test_where_the_largest_singular_values_are_nearly_equal(accuracy: float, apart: float) -> None:
    """The largest values of a gradient after many steps of condg agree to many digits. What is
    found is as accurate as was asked all the same."""
    values = [1.0, 1 - apart, 1 - apart, 1 - 2 * apart, *np.linspace(0.9, 0.1, 60).tolist()]
    u, sigma, v = top_singular(matrix(values, 80, 70), accuracy)
    assert 1 - accuracy <= float(sigma) <= 1 + 1e-12
    assert float(u @ matrix(values, 80, 70) @ v) == pytest.approx(float(sigma), rel=1e-10)
