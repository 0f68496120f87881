"""A quadratic bilevel problem with a closed-form hypergradient: the suite's measuring stick."""

from typing import Any

import torch
from torch import Generator, Tensor

from bench.core.draw import generator
from bench.core.settings import BadSetting, Count, NonNegative, Positive
from bench.core.task import Batch, Context, Derivatives, Partials, Report, Task, Wrt
from tasks.common.rows import row_batches, row_data


def quadratic(
    context: Context,
    p: Count = 3,
    q: Count = 5,
    condition: Positive = 4.0,
    curvature: NonNegative = 0.1,
    samples: Count = 64,
    noise: NonNegative = 0.0,
    curving: NonNegative = 0.0,
    coupling: Positive | None = None,
    instance: int = 0,
) -> Task:
    """f = |y - c|^2 / 2 + curvature |x|^2 / 2, g = (y - y*) A (y - y*) / 2 with y* = A^{-1} B x.

    x in R^p, y in R^q; the least value of g(x, .) is 0 for every x.

    A has eigenvalues spaced evenly in logarithm from 1 / condition to 1, so g is 1-smooth and
    strongly convex with condition number `condition`, which is at least 1; for q = 1 it is 1.

    noise: the standard deviation by which each of the `samples` shifts c and B x; curving: that by
    which each shifts A's diagonal. The shifts have mean zero, so that all samples together give
    the noiseless losses.

    coupling: the spectral norm of B; None: B as it is drawn. instance: names A, B and c, which the
    run's seed does not change.

    With curvature 0 and p > q there are many minimisers. The optimum, from which `distance` is
    measured, is then the one of least norm: a hypergradient lies in the range of B^T, so that
    gradient descent from the start, which is 0, ends there. Raises BadSetting.
    """
    if condition < 1:
        raise BadSetting(f"task.condition={condition}: write a number of at least 1")
    rng = generator("quadratic", p, q, instance)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    basis = torch.linalg.qr(randn(q, q)).Q
    spectrum = torch.logspace(0, -torch.log10(torch.tensor(condition)).item(), q).double()
    A = basis @ torch.diag(spectrum) @ basis.T
    B, c = randn(q, p) / q**0.5, randn(q)
    if coupling is not None:
        B = coupling * B / torch.linalg.matrix_norm(B, 2)
    shift = noise * randn(samples, q)
    shift = shift - shift.mean(0)
    bend = curving * randn(samples, q)
    bend = bend - bend.mean(0)
    A, B, c, shift, bend = (t.to(context.device, context.dtype) for t in (A, B, c, shift, bend))
    BAB = B.T @ torch.linalg.solve(A, B)
    none = torch.zeros_like(c)
    everything, draw = row_batches(samples, context.device)

    def upper(x: Tensor, y: Tensor, i: Batch) -> Tensor:
        return 0.5 * (y - c - shift[i].mean(0)).square().sum() + 0.5 * curvature * x.square().sum()

    def lower(x: Tensor, y: Tensor, i: Batch) -> Tensor:
        curved = 0.5 * y @ A @ y + 0.5 * (bend[i].mean(0) * y.square()).sum()
        return curved - y @ (B @ x + shift[i].mean(0)) + 0.5 * x @ BAB @ x

    def mean(table: Tensor, i: Tensor) -> Tensor:
        """The mean of the table's rows i. Where i is long, the mean is a weighted sum of all rows
        by how often i has each."""
        if len(i) <= 4 * samples:
            return table[i].mean(0)
        return torch.bincount(i, minlength=samples).to(table) @ table / len(i)

    def mean_shift(i: Batch) -> Tensor:
        return mean(shift, i) if noise else none

    def mean_bend(i: Batch) -> Tensor:
        return mean(bend, i) if curving else none

    def upper_grad(x: Tensor, y: Tensor, i: Batch, wrt: Wrt) -> Partials:
        f_x = curvature * x if "x" in wrt else None
        return f_x, (y - c - mean_shift(i) if "y" in wrt else None)

    def lower_grad(x: Tensor, y: Tensor, i: Batch, wrt: Wrt) -> Partials:
        g_x = BAB @ x - B.T @ y if "x" in wrt else None
        if "y" not in wrt:
            return g_x, None
        return g_x, A @ y + mean_bend(i) * y - B @ x - mean_shift(i)

    def linearise(x: Tensor, y: Tensor, i: Batch) -> Any:
        extra = mean_bend(i)

        def gradient() -> Tensor:
            return A @ y + extra * y - B @ x - mean_shift(i)

        def product(v: Tensor, wrt: Wrt) -> Partials:
            curved = A @ v + extra * v if "y" in wrt else None
            return (-(B.T @ v) if "x" in wrt else None), curved

        return gradient, product

    def solution(x: Tensor) -> Tensor:
        return torch.linalg.solve(A, B @ x)

    def hypergradient(x: Tensor) -> Tensor:
        return curvature * x + B.T @ torch.linalg.solve(A, solution(x) - c)

    sensitivity = torch.linalg.solve(A, B)  # of y* to x
    if curvature == 0 and p > q:
        best = torch.linalg.pinv(sensitivity) @ c
    else:
        hessian = curvature * torch.eye(p).to(A) + B.T @ torch.linalg.solve(A, sensitivity)
        best = torch.linalg.solve(hessian, B.T @ torch.linalg.solve(A, c))

    def evaluate(x: Tensor, y: Tensor, step: int) -> dict[str, Tensor]:
        return {
            "objective": upper(x, solution(x), everything),  # Phi(x) = f(x, y*(x))
            "hypergradient_norm": hypergradient(x).norm(),
            "hypergradient_sq": hypergradient(x).square().sum(),
            "lower_error": (y - solution(x)).norm(),
            "distance": (x - best).norm(),
        }

    def init(rng: Generator) -> tuple[Tensor, Tensor]:
        return A.new_zeros(p), A.new_zeros(q)

    return Task(
        upper=upper,
        lower=lower,
        init=init,
        evaluate=evaluate,
        metric="hypergradient_norm",
        data=row_data(draw, draw),
        upper_derivatives=Derivatives(upper_grad),
        lower_derivatives=Derivatives(lower_grad, linearise),
        report=Report(
            optimum={
                "x": best,
                "y": solution(best),
                "A": A,
                "B": B,
                "c": c,
                "curvature": A.new_tensor(curvature),
            }
        ),
    )
