"""Logistic regression with a weight of regularisation of its own for every feature, so that the
model trained with them is best on a validation set:

    f(x, y) = mean over validation of l(b'_j a'_j . y),
    g(x, y) = mean over training of l(b_i a_i . y) + (1/2) sum_k exp(x_k) y_k^2,

with l(z) = log(1 + e^-z), and x and y in R^p. On IJCNN1 (49,990 training and 91,701 validation rows
of 22 features) this is the problem on which benchopt/benchmark_bilevel, and the papers of SOBA and
SRBA, compare stochastic methods. The start is theirs in distribution: y normal, and exp(x) uniform
on [0, 1].

The hypergradient is exact up to rounding, in float64: y*(x) by Newton's method, then one linear
solve.
"""

from typing import Any

import torch
from torch import Generator, Tensor
from torch.nn.functional import softplus

from bench.core.draw import generator
from bench.core.task import Batch, Context, Derivatives, Partials, Report, Task, Wrt
from tasks.common.newton import newton
from tasks.common.rows import row_batches, row_data
from tasks.data.binary import BinaryName, binary


def regularised_logistic(
    context: Context, source: BinaryName = "breast_cancer", instance: int = 0
) -> Task:
    """source: "ijcnn1" is read from data.root; "breast_cancer" comes with scikit-learn, and is a
    real stand-in of 284 and 285 rows of 30 features. instance: names the start, and the division of
    breast_cancer; the run's seed changes neither. Raises BadSetting."""
    found = binary(source, instance, context)
    # each row times its label, in float64 for the yardstick
    exact_g, exact_f = (rows.labels[:, None] * rows.features for rows in (found.train, found.val))
    exact_g, exact_f = exact_g.to(context.device), exact_f.to(context.device)
    a, c = exact_g.to(context.dtype), exact_f.to(context.dtype)
    p = a.shape[1]
    (_, draw_g), (_, draw_f) = (row_batches(len(rows), context.device) for rows in (a, c))

    def upper(x: Tensor, y: Tensor, j: Batch) -> Tensor:
        return softplus(-c[j] @ y).mean()

    def lower(x: Tensor, y: Tensor, i: Batch) -> Tensor:
        return softplus(-a[i] @ y).mean() + 0.5 * (x.exp() * y.square()).sum()

    def upper_grad(x: Tensor, y: Tensor, j: Batch, wrt: Wrt) -> Partials:
        f_x = torch.zeros_like(x) if "x" in wrt else None  # f does not see the regularisation
        return f_x, (loss_slope(c[j], y) if "y" in wrt else None)

    def lower_grad(x: Tensor, y: Tensor, i: Batch, wrt: Wrt) -> Partials:
        weights = x.exp()
        g_x = 0.5 * weights * y.square() if "x" in wrt else None
        return g_x, (loss_slope(a[i], y) + weights * y if "y" in wrt else None)

    def linearise(x: Tensor, y: Tensor, i: Batch) -> Any:
        A, weights = a[i], x.exp()
        s = torch.sigmoid(-A @ y)

        def gradient() -> Tensor:
            return weights * y - A.T @ s / len(i)

        def product(v: Tensor, wrt: Wrt) -> Partials:
            mixed = weights * y * v if "x" in wrt else None
            if "y" not in wrt:
                return mixed, None
            return mixed, weights * v + A.T @ (s * (1 - s) * (A @ v)) / len(i)

        return gradient, product

    def hessian(x: Tensor, y: Tensor) -> Tensor:
        s = torch.sigmoid(-exact_g @ y)
        return torch.diag(x.exp()) + exact_g.T @ ((s * (1 - s))[:, None] * exact_g) / len(exact_g)

    def solution(x: Tensor) -> Tensor:
        """y*(x) up to rounding."""
        weights = x.exp()
        return newton(
            lambda y: softplus(-exact_g @ y).mean() + 0.5 * (weights * y.square()).sum(),
            lambda y: loss_slope(exact_g, y) + weights * y,
            lambda y: hessian(x, y),
            torch.zeros_like(x),
        )

    def evaluate(x: Tensor, y: Tensor, step: int) -> dict[str, Tensor]:
        x, y = x.double(), y.double()
        best = solution(x)
        v = torch.linalg.solve(hessian(x, best), loss_slope(exact_f, best))
        hypergradient = -x.exp() * best * v
        margins = exact_f @ y
        return {
            "objective": softplus(-exact_f @ best).mean(),
            "hypergradient_norm": hypergradient.norm(),
            "hypergradient_sq": hypergradient.square().sum(),
            "lower_error": (y - best).norm(),
            "val_accuracy": (margins > 0).to(y).mean(),
        }

    def init(rng: Generator) -> tuple[Tensor, Tensor]:
        rng = generator("regularised_logistic", p, instance)
        y = torch.randn(p, generator=rng, dtype=torch.float64)
        weights = 1 - torch.rand(p, generator=rng, dtype=torch.float64)  # none of them is 0
        return weights.log().to(a), y.to(a)

    return Task(
        upper=upper,
        lower=lower,
        init=init,
        evaluate=evaluate,
        metric="hypergradient_sq",
        data=row_data(draw_f, draw_g),
        upper_derivatives=Derivatives(upper_grad),
        lower_derivatives=Derivatives(lower_grad, linearise),
        report=Report(found.sources),
    )


def loss_slope(rows: Tensor, y: Tensor) -> Tensor:
    """The gradient [p] of the mean logistic loss in y [p]; rows [n, p] carry their labels."""
    return -rows.T @ torch.sigmoid(-rows @ y) / len(rows)
