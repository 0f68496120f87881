"""Small problems whose solutions are known, one for each kind of method; 64 samples in each."""

import torch
from torch import Generator, Tensor

from bench.core.draw import generator
from bench.core.task import Batch, Data, Report, Sampler, Task, no_data
from bench.numerics.sets import l2_ball

ROWS = 64


def rows(rng: Generator, step: int, size: int | None) -> Batch:
    """Row numbers, drawn with replacement; all of them where no size is asked for."""
    return torch.arange(ROWS) if size is None else torch.randint(ROWS, (size,), generator=rng)


def of_rows(upper: Sampler, lower: Sampler = no_data) -> Data:
    """The data of a task whose batches are row numbers."""
    return Data(upper, lower, count=len, rows=lambda batch, a, b: batch[a:b])


def quadratic(p: int = 3, q: int = 5, noise: float = 0.3) -> Task:
    """f = |y - c|^2 / 2 + |x|^2 / 20 and g = y A y / 2 - y B x, so that y* = A^-1 B x; x in R^p and
    y in R^q, in double precision.

    A has eigenvalues from 1/4 to 1. noise: the standard deviation by which each of the samples
    shifts c and B x; all samples together shift neither.
    """
    rng = generator("contract", p, q)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    basis = torch.linalg.qr(randn(q, q)).Q
    A = basis @ torch.diag(torch.linspace(0.25, 1.0, q).double()) @ basis.T
    B, shifts = randn(q, p) / q**0.5, noise * randn(ROWS, q)
    shifts = shifts - shifts.mean(0)
    response = torch.linalg.solve(A, B)  # y* = response x
    c = response @ randn(p) + 0.1 * randn(q)  # nearly in reach, so that f has far to fall

    def upper(x: Tensor, y: Tensor, i: Batch) -> Tensor:
        return 0.5 * (y - c - shifts[i].mean(0)).square().sum() + 0.05 * x.square().sum()

    def lower(x: Tensor, y: Tensor, i: Batch) -> Tensor:
        return 0.5 * y @ A @ y - y @ (B @ x + shifts[i].mean(0))

    everything = torch.arange(ROWS)
    hessian = response.T @ response + 0.1 * torch.eye(p).double()
    best = torch.linalg.solve(hessian, response.T @ c)

    def evaluate(x: Tensor, y: Tensor, step: int) -> dict[str, Tensor]:
        return {
            "objective": upper(x, response @ x, everything),
            "lower_error": (y - response @ x).norm(),
        }

    return Task(
        upper=upper,
        lower=lower,
        init=lambda rng: (torch.zeros(p).double(), torch.zeros(q).double()),
        evaluate=evaluate,
        metric="objective",
        data=of_rows(rows, rows),
        report=Report(optimum={"x": best, "y": response @ best}),
    )


def zero_sum() -> Task:
    """f = |x - 1|^2 / 4 + x y - |y|^2 / 4 + shift, g = -f: its saddle point is (.2, .4)."""

    def upper(x: Tensor, y: Tensor, i: Batch) -> Tensor:
        noise = (i.double().mean() - 31.5) / 64
        return (x - 1).square().sum() / 4 + (x * y).sum() - y.square().sum() / 4 + noise * x.sum()

    saddle = torch.full((4,), 0.2, dtype=torch.float64), torch.full((4,), 0.4, dtype=torch.float64)

    def evaluate(x: Tensor, y: Tensor, step: int) -> dict[str, Tensor]:
        return {"objective": (x - saddle[0]).square().sum() + (y - saddle[1]).square().sum()}

    return Task(
        upper=upper,
        lower=lambda x, y, i: -upper(x, y, i),
        init=lambda rng: (torch.zeros(4).double(), torch.zeros(4).double()),
        evaluate=evaluate,
        metric="objective",
        data=of_rows(rows, rows),
        report=Report(optimum={"x": saddle[0], "y": saddle[1]}),
    )


def on_a_ball() -> Task:
    """f = sum_j w_j (x_j - 1)^2 / 2 on the ball of radius 1/2, whose best point is on its boundary;
    the weights w of a sample are noisy, 1 in the mean."""
    noise = torch.tensor([0.5, -0.4, 0.2]).double()

    def upper(x: Tensor, y: Tensor, i: Batch) -> Tensor:
        weights = 1 + noise * (i.double().mean() - 31.5) / 31.5
        return 0.5 * (weights * (x - 1).square()).sum()

    best, none = torch.full((3,), 0.5 / 3**0.5, dtype=torch.float64), torch.zeros(0).double()

    def evaluate(x: Tensor, y: Tensor, step: int) -> dict[str, Tensor]:
        return {"objective": 0.5 * (x - 1).square().sum()}

    return Task(
        upper=upper,
        init=lambda rng: (torch.zeros(3).double(), none),
        evaluate=evaluate,
        metric="objective",
        data=of_rows(rows, rows),
        feasible=l2_ball(0.5),
        report=Report(optimum={"x": best, "y": none}),
    )
