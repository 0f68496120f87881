"""The largest singular value of a matrix with its vectors, by iterations."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.linalg import eigh_tridiagonal  # slow to import: so is this module
from torch import Tensor

Array = npt.NDArray[Any]


def top_singular(
    matrix: Tensor, accuracy: float = 0.0, steps: int = 300, dense_up_to: int = 40
) -> tuple[Tensor, Tensor, Tensor]:
    """(u, sigma, v): the largest singular value, at most `accuracy` too small, and unit vectors
    with u^T matrix v = sigma.

    The method is Golub-Kahan-Lanczos bidiagonalisation with full reorthogonalisation (Golub and Van
    Loan, Matrix Computations, section 10.4) from a fixed random vector. Each iteration takes two
    products with the matrix. The iterations end once the residual of the best Ritz triplet is at
    most `accuracy`, or after `steps`: a singular value lies no further from sigma than the
    residual. The sharper bound, the residual's square over the gap to the second value, is not
    taken, since that value is known no better than the first: where the largest values form a
    cluster, as those of condg's gradients do, sigma was off by up to 723 times the accuracy. An
    accuracy below 1e-10 sigma is taken for 1e-10 sigma.

    A matrix with at most `dense_up_to` rows or columns is decomposed whole instead: for 40 x 40
    that took .25 ms where iterations took .5 to .6, for 20 x 20 .1 ms against .35 (medians over
    matrices of normal entries, one or two threads, two cores). For 50 x 50 it took .36 ms against
    .56 with one thread, but 48 ms against .55 with two on a busy machine, as LAPACK uses both from
    that size on and each waits for the other. scripts/speed/oracle.py compares the two.

    Everything runs in numpy on the host, wherever the matrix is: a chain of short vector operations
    takes a third of the time there that it takes in torch.
    """
    a = matrix.detach().cpu().numpy()
    scale = float(np.abs(a).max())
    if scale == 0:
        one = matrix.new_ones(())
        return (
            one.expand(len(a)) / len(a) ** 0.5,
            0 * one,
            one.expand(a.shape[1]) / a.shape[1] ** 0.5,
        )
    a, accuracy = a / scale, accuracy / scale  # so that squares neither vanish nor overflow
    to = torch.as_tensor
    if min(a.shape) <= dense_up_to:
        lefts, values, rights = np.linalg.svd(a, full_matrices=False)
        return (
            to(lefts[:, 0]).to(matrix),
            matrix.new_tensor(scale * float(values[0])),
            to(rights[0]).to(matrix),
        )
    wide = a.shape[1] > a.shape[0]
    left, sigma, right = _lanczos(a.T if wide else a, accuracy, steps)
    if wide:
        left, right = right, left
    return to(left).to(matrix), matrix.new_tensor(scale * sigma), to(right).to(matrix)


def _lanczos(a: Array, accuracy: float, steps: int) -> tuple[Array, float, Array]:
    """`top_singular` of a matrix with at least as many rows as columns, none of them larger than 1
    in absolute value."""
    rows, columns = a.shape
    most = min(steps, columns)
    lefts, rights = np.zeros((most, rows), a.dtype), np.zeros((most + 1, columns), a.dtype)
    v = np.random.default_rng(0).standard_normal(columns)
    rights[0] = v / np.linalg.norm(v)
    alphas: list[float] = []
    betas: list[float] = []
    check = 6  # in earlier iterations a smaller value may look like the largest
    for k in range(most):
        u = a @ rights[k]
        for _ in range(2):  # subtracting the projections twice makes u orthogonal to rounding
            u -= (lefts[:k] @ u) @ lefts[:k]
        alpha = float(np.sqrt(u @ u))
        if alpha <= 1e-13 * max(alphas + betas, default=0.0):
            small = np.diag([*alphas, 0.0]) + np.diag(betas, 1)  # a rights = lefts small
            ps, values, qs = np.linalg.svd(small[:-1] if k else small)
            p, sigma, q = ps[:, 0], float(values[0]), qs[0]
            break
        lefts[k] = u / alpha
        w = lefts[k] @ a
        for _ in range(2):
            w -= (rights[: k + 1] @ w) @ rights[: k + 1]
        beta = float(np.sqrt(w @ w))
        alphas.append(alpha)
        betas.append(beta)
        found = k + 1 == most or beta <= 1e-13 * max(alphas)
        if found or k == check:
            check += max(3, k // 5)
            p, sigma, q = _top_of_bidiagonal(np.array(alphas), np.array(betas[:-1]))
            residual = beta * abs(p[-1])
            if found or residual <= max(accuracy, 1e-10 * sigma):
                break
        rights[k + 1] = w / beta
    left, right = p @ lefts[: len(p)], q @ rights[: len(q)]
    return left / np.linalg.norm(left), sigma, right / np.linalg.norm(right)


def _top_of_bidiagonal(diagonal: Array, above: Array) -> tuple[Array, float, Array]:
    """(p, sigma, q) of an upper bidiagonal B: p^T B q = sigma is its largest singular value.

    They come from the largest eigenvalue of the tridiagonal B^T B, whose square loses nothing at
    that end. A dense decomposition of B would cost as much as the iterations, and several times
    that where other work keeps the threads of its BLAS waiting.
    """
    last = len(diagonal) - 1
    squares = diagonal**2
    squares[1:] += above**2
    _, vectors = eigh_tridiagonal(
        squares, diagonal[:-1] * above, select="i", select_range=(last, last), check_finite=False
    )
    q = vectors[:, 0]
    p = diagonal * q
    p[:-1] += above * q[1:]
    sigma = float(np.linalg.norm(p))
    return p / sigma, sigma, q
