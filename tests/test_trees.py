"""Regression on the spanning-tree polytope: its graph, its truth and its loss, in plain loops."""

import math
from typing import Any

import networkx
import pytest
import torch
from torch import Tensor

from bench.core.draw import Draw, generator
from bench.core.oracle import Oracle
from bench.core.settings import BadSetting
from bench.core.task import Context
from tasks.trees import trees


def recipe(
    name: int, nodes: int, density: float, mixed: int, noisy: float, magnitude: float
) -> tuple[list[tuple[int, int]], Tensor, Tensor]:
    """(edges, the truth, what is seen): the mean of `mixed` minimum spanning trees of uniform
    weights, shifted by U[-magnitude, magnitude] on a fraction `noisy` of the edges."""
    rng = generator("trees", name)
    pairs = [(a, b) for a in range(nodes) for b in range(a + 1, nodes)]
    coins = torch.rand(len(pairs), generator=rng)
    edges = [(a, b) for k, (a, b) in enumerate(pairs) if coins[k] < density or b == a + 1]
    truth = torch.zeros(len(edges), dtype=torch.float64)
    for _ in range(mixed):
        weights = torch.rand(len(edges), generator=rng, dtype=torch.float64).tolist()
        graph = networkx.Graph()
        graph.add_weighted_edges_from((a, b, w) for (a, b), w in zip(edges, weights))
        for a, b in networkx.minimum_spanning_edges(graph, data=False):
            truth[edges.index((min(a, b), max(a, b)))] += 1 / mixed
    hits = torch.rand(len(edges), generator=rng).tolist()
    shifts = torch.rand(len(edges), generator=rng, dtype=torch.float64).tolist()
    seen = truth.clone()
    for e in range(len(edges)):
        if hits[e] < noisy:
            seen[e] += -magnitude + 2 * magnitude * shifts[e]
    return edges, truth, seen


CASES: dict[str, dict[str, Any]] = {
    "half the edges": {"nodes": 7, "density": 0.5, "mixed": 5, "noisy": 0.3, "magnitude": 2.0},
    "a path": {"nodes": 6, "density": 0.0, "mixed": 1, "noisy": 0.3, "magnitude": 1.0},
    "all edges": {"nodes": 3, "density": 1.0, "mixed": 3, "noisy": 1.0, "magnitude": 0.5},
}


@pytest.mark.parametrize("sigma", [1.0, 0.4])
@pytest.mark.parametrize("case", CASES)
def test_the_loss_is_of_the_recipes_edges(case: str, sigma: float, context: Context) -> None:
    """F = sum of 1 - exp(-(x_e - Y_e)^2 / sigma), a batch's sum times m / |batch|, and F'."""
    edges, truth, seen = recipe(3, **CASES[case])
    task, m = trees(context, **CASES[case], sigma=sigma, instance=3), len(edges)
    start, y = task.init(generator())
    assert set(start.tolist()) <= {0.0, 1.0}
    assert networkx.is_tree(networkx.Graph([e for e, w in zip(edges, start.tolist()) if w]))
    x = 0.5 * torch.randn(m, generator=generator("x"), dtype=torch.float64)
    everything = Draw(task, 0, 0).f(None)
    assert everything.tolist() == list(range(m))
    for rows in (everything, torch.tensor([1, 0, 1]), torch.tensor([2 % m])):
        value, slope = 0.0, torch.zeros(m).double()
        for e in rows.tolist():
            off = float(x[e] - seen[e])
            value += (1 - math.exp(-(off**2) / sigma)) * m / len(rows)
            slope[e] += 2 * off / sigma * math.exp(-(off**2) / sigma) * m / len(rows)
        assert float(task.upper(x, y, rows)) == pytest.approx(value, rel=1e-10)
        found = Oracle(task).f_x(x, y, rows)
        torch.testing.assert_close(found, slope, rtol=1e-10, atol=1e-12)
    told = task.evaluate(x, y, 0)
    assert set(told) == {"objective", "fw_gap", "error"}
    assert float(told["objective"]) == pytest.approx(float(task.upper(x, y, everything)))
    assert float(told["error"]) == pytest.approx(float((x - truth).square().mean()) ** 0.5)
    slope, graph = Oracle(task).f_x(x, y, everything), networkx.Graph()
    graph.add_weighted_edges_from((a, b, w) for (a, b), w in zip(edges, slope.tolist()))
    least = networkx.minimum_spanning_tree(graph).size(weight="weight")
    assert float(told["fw_gap"]) == pytest.approx(float(slope @ x) - least)
    assert task.metric == "fw_gap"


def test_two_nodes_are_too_few(context: Context) -> None:
    with pytest.raises(BadSetting, match=r"task\.nodes=2: write at least 3"):
        trees(context, nodes=2)


def test_the_instance_names_the_graph(context: Context) -> None:
    """None: the seed does."""
    from dataclasses import replace

    values = []
    for seed, instance in ((3, None), (0, 3), (1, 3), (0, 4)):
        task = trees(replace(context, seed=seed), nodes=8, instance=instance)
        values.append(float(task.evaluate(*task.init(generator()), 0)["objective"]))
    assert values[0] == values[1] == values[2] != values[3]
