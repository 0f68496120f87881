"""Ridge regression: the weight of the penalty is chosen by the loss on other data."""

import torch
from torch import Generator, Tensor

from bench.core.draw import generator
from bench.core.settings import Count, Positive
from bench.core.task import Batch, Context, Task


def ridge(context: Context, n: Count = 40, p: Count = 5, noise: Positive = 0.5) -> Task:
    """f = |A' y - b'|^2 / 2n, g = |A y - b|^2 / 2n + exp(x) |y|^2 / 2; x in R, y in R^p, all 0 at
    the start.

    n: the rows of A and of A'. noise: the standard deviation of the noise in b and b'.
    """
    rng = generator("ridge", context.seed)
    truth = torch.randn(p, generator=rng, dtype=torch.float64)
    blocks = torch.randn(2, n, p, generator=rng, dtype=torch.float64)
    targets = blocks @ truth + noise * torch.randn(2, n, generator=rng, dtype=torch.float64)
    (a, other_a), (b, other_b) = (v.to(context.device, context.dtype) for v in (blocks, targets))

    def upper(x: Tensor, y: Tensor, _: Batch) -> Tensor:
        return (other_a @ y - other_b).square().mean() / 2

    def lower(x: Tensor, y: Tensor, _: Batch) -> Tensor:
        return (a @ y - b).square().mean() / 2 + x.exp().sum() * y.square().sum() / 2

    def evaluate(x: Tensor, y: Tensor, step: int) -> dict[str, Tensor]:
        gram = a.T @ a / n + x.exp() * torch.eye(p, dtype=a.dtype, device=a.device)
        best = torch.linalg.solve(gram, a.T @ b / n)
        return {"objective": upper(x, best, None), "gap": lower(x, y, None) - lower(x, best, None)}

    def init(rng: Generator) -> tuple[Tensor, Tensor]:
        return a.new_zeros(1), a.new_zeros(p)

    return Task(upper=upper, lower=lower, init=init, evaluate=evaluate, metric="objective")
