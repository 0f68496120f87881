"""Robust regression on the spanning-tree polytope, where projecting is intractable and the linear
oracle is a minimum spanning tree:

    F(x) = sum over edges e of 1 - exp(-(x_e - Y_e)^2 / sigma),   x in conv{spanning trees}.

Y is the mean of `mixed` random spanning trees, a point of the polytope, with sparse noise on it.
"""

import torch
from torch import Generator, Tensor

from bench.core.draw import generator
from bench.core.settings import (
    BadSetting,
    Count,
    Fraction,
    Natural,
    NonNegative,
    Positive,
    version,
)
from bench.core.task import Batch, Context, Derivatives, Partials, Task, Wrt
from bench.numerics.sets import spanning_trees
from tasks.common.rows import row_batches, row_data
from tasks.common.stationarity import stationarity


@version(2)
def trees(
    context: Context,
    nodes: Count = 30,
    density: Fraction = 0.5,
    mixed: Count = 5,
    sigma: Positive = 1.0,
    noisy: Fraction = 0.1,
    magnitude: NonNegative = 2.0,
    instance: Natural | None = None,
) -> Task:
    """A random graph has each edge with probability `density`, and a path through all nodes.

    Each Y_e is shifted with probability `noisy`, by noise uniform in +-magnitude. instance: names
    the data; None: the run's seed names them. Raises BadSetting.
    """
    if nodes < 3:
        raise BadSetting(f"task.nodes={nodes}: write at least 3")
    rng = generator("trees", context.seed if instance is None else instance)
    a, b = torch.triu_indices(nodes, nodes, 1)
    kept = (torch.rand(len(a), generator=rng) < density) | (b == a + 1)
    edges = torch.stack([a[kept], b[kept]], 1)
    m = len(edges)
    feasible = spanning_trees(nodes, edges)
    assert feasible.lmo is not None
    truth = torch.zeros(m, dtype=torch.float64)
    for _ in range(mixed):
        truth += feasible.lmo(torch.rand(m, generator=rng, dtype=torch.float64), 0.0) / mixed
    hit = torch.rand(m, generator=rng) < noisy
    noise = magnitude * (2 * torch.rand(m, generator=rng, dtype=torch.float64) - 1)
    values = (truth + torch.where(hit, noise, 0.0)).to(context.device, context.dtype)
    everything, draw = row_batches(m, context.device)

    def upper(x: Tensor, y: Tensor, batch: Batch) -> Tensor:
        off = x[batch] - values[batch]
        return (1 - torch.exp(-off.square() / sigma)).sum() * (m / len(batch))

    def grad(x: Tensor, y: Tensor, batch: Batch, wrt: Wrt) -> Partials:
        off = x[batch] - values[batch]
        gradient = 2 / sigma * off * torch.exp(-off.square() / sigma) * (m / len(batch))
        f_x = torch.zeros_like(x).index_add(0, batch, gradient) if "x" in wrt else None
        return f_x, (torch.zeros_like(y) if "y" in wrt else None)

    def evaluate(x: Tensor, y: Tensor, step: int) -> dict[str, Tensor]:
        gradient = grad(x, y, everything, "x")[0]
        assert gradient is not None
        return {
            "objective": upper(x, y, everything),
            **stationarity(feasible, x, gradient, 1.0),
            "error": (x - truth.to(x)).square().mean().sqrt(),
        }

    def init(rng: Generator) -> tuple[Tensor, Tensor]:
        assert feasible.lmo is not None
        return feasible.lmo(torch.zeros_like(values), 0.0), values.new_zeros(0)

    return Task(
        upper=upper,
        init=init,
        evaluate=evaluate,
        metric="fw_gap",
        data=row_data(draw),
        feasible=feasible,
        upper_derivatives=Derivatives(grad),
    )
