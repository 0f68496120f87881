"""Weighted logistic regression with a chosen condition number: a small problem whose lower level is
convex, but not quadratic.

    f(x, y) = (1/m) sum_j l(b'_j a'_j . y) + curvature |x|^2 / 2,
    g(x, y) = (1/n) sum_i sigmoid(x_i) l(b_i a_i . y) + mu |y|^2 / 2,      l(z) = log(1 + e^-z),

with x in R^n one weight per training sample (a fraction `flipped` of their labels is wrong) and
y in R^q. The features are scaled so that g(x, .) is 1-smooth for every x, and mu = 1 / condition.
The hypergradient is exact up to rounding: y*(x) by Newton's method, then one linear solve.
"""

from typing import Any

import torch
from torch import Generator, Tensor
from torch.nn.functional import softplus

from bench.core.draw import generator
from bench.core.settings import BadSetting, Count, Fraction, NonNegative, Positive
from bench.core.task import Batch, Context, Derivatives, Partials, Task, Wrt
from tasks.common.newton import newton
from tasks.common.rows import row_batches, row_data


def logistic(
    context: Context,
    n: Count = 40,
    m: Count = 40,
    q: Count = 10,
    condition: Positive = 10.0,
    curvature: NonNegative = 0.0,
    flipped: Fraction = 0.3,
    instance: int = 0,
) -> Task:
    """n, m: training and validation samples. q: features. flipped: the fraction of wrong training
    labels. instance: names the data, which the run's seed does not change. Raises BadSetting."""
    if condition <= 1:
        raise BadSetting(f"task.condition={condition}: write a number above 1")
    rng = generator("logistic", n, m, q, instance)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    truth = randn(q)
    below, above = randn(n, q), randn(m, q)
    wrong = torch.rand(n, generator=rng) < flipped
    a = below * torch.where(wrong, -1.0, 1.0)[:, None] * (below @ truth).sign()[:, None]
    c = above * (above @ truth).sign()[:, None]
    mu = 1 / condition
    # l'' <= 1/4 and sigmoid < 1: the largest eigenvalue of g_yy is below scale^2 |a^T a / 4n| + mu
    scale = ((1 - mu) / torch.linalg.matrix_norm(a.T @ a / (4 * n), 2)).sqrt()
    a, c = ((scale * t).to(context.device, context.dtype) for t in (a, c))
    (_, draw_g), (_, draw_f) = (row_batches(k, context.device) for k in (n, m))

    def upper(x: Tensor, y: Tensor, j: Batch) -> Tensor:
        return softplus(-c[j] @ y).mean() + 0.5 * curvature * x.square().sum()

    def lower(x: Tensor, y: Tensor, i: Batch) -> Tensor:
        weighted = (torch.sigmoid(x[i]) * softplus(-a[i] @ y)).mean()
        return weighted + 0.5 * mu * y.square().sum()

    def upper_grad(x: Tensor, y: Tensor, j: Batch, wrt: Wrt) -> Partials:
        C = c[j]
        f_y = -C.T @ torch.sigmoid(-C @ y) / len(j) if "y" in wrt else None
        return (curvature * x if "x" in wrt else None), f_y

    def spread(x: Tensor, i: Tensor, values: Tensor) -> Tensor:
        """A vector shaped as x: at x_i, the sum of sigmoid'(x_i) values_i / |i| over the batch's
        rows with the number i."""
        s = torch.sigmoid(x[i])
        return torch.zeros_like(x).index_add(0, i, s * (1 - s) * values / len(i))

    def lower_grad(x: Tensor, y: Tensor, i: Batch, wrt: Wrt) -> Partials:
        A = a[i]
        z = A @ y
        g_x = spread(x, i, softplus(-z)) if "x" in wrt else None
        if "y" not in wrt:
            return g_x, None
        return g_x, mu * y - A.T @ (torch.sigmoid(x[i]) * torch.sigmoid(-z)) / len(i)

    def linearise(x: Tensor, y: Tensor, i: Batch) -> Any:
        A, w = a[i], torch.sigmoid(x[i])
        s = torch.sigmoid(-A @ y)

        def gradient() -> Tensor:
            return mu * y - A.T @ (w * s) / len(i)

        def product(v: Tensor, wrt: Wrt) -> Partials:
            Av = A @ v
            mixed = spread(x, i, -s * Av) if "x" in wrt else None
            if "y" not in wrt:
                return mixed, None
            return mixed, mu * v + A.T @ (w * s * (1 - s) * Av) / len(i)

        return gradient, product

    # What a run is measured by is float64, whatever the run is.
    exact_a, exact_c = a.double(), c.double()

    def hessian(x: Tensor, y: Tensor) -> Tensor:
        s = torch.sigmoid(-exact_a @ y)
        weights = torch.sigmoid(x) * s * (1 - s) / n
        return mu * torch.eye(q).to(exact_a) + exact_a.T @ (weights[:, None] * exact_a)

    def solution(x: Tensor) -> Tensor:
        """Give y*(x) up to rounding."""
        w = torch.sigmoid(x)
        return newton(
            lambda y: (w * softplus(-exact_a @ y)).mean() + 0.5 * mu * y.square().sum(),
            lambda y: mu * y - exact_a.T @ (w * torch.sigmoid(-exact_a @ y)) / n,
            lambda y: hessian(x, y),
            exact_a.new_zeros(q),
        )

    def hypergradient(x: Tensor, y: Tensor) -> Tensor:
        """Give the hypergradient where y is y*(x), shaped as x."""
        f_y = -exact_c.T @ torch.sigmoid(-exact_c @ y) / m
        v = torch.linalg.solve(hessian(x, y), f_y)
        s = torch.sigmoid(x)
        return curvature * x + s * (1 - s) * torch.sigmoid(-exact_a @ y) * (exact_a @ v) / n

    def evaluate(x: Tensor, y: Tensor, step: int) -> dict[str, Tensor]:
        x, y = x.double(), y.double()
        best = solution(x)
        exact = hypergradient(x, best)
        return {
            "objective": softplus(-exact_c @ best).mean() + 0.5 * curvature * x.square().sum(),
            "hypergradient_norm": exact.norm(),
            "hypergradient_sq": exact.square().sum(),
            "lower_error": (y - best).norm(),
        }

    def init(rng: Generator) -> tuple[Tensor, Tensor]:
        return a.new_zeros(n), a.new_zeros(q)

    return Task(
        upper=upper,
        lower=lower,
        init=init,
        evaluate=evaluate,
        metric="hypergradient_norm",
        data=row_data(draw_f, draw_g),
        upper_derivatives=Derivatives(upper_grad),
        lower_derivatives=Derivatives(lower_grad, linearise),
    )
