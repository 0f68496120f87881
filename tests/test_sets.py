"""Feasible sets: projections by their certificate, linear oracles by brute force."""

import itertools
from collections.abc import Callable

import networkx
import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from bench.rng import generator
from bench.sets import box, l1_ball, l2_ball, nuclear_ball, simplex, spanning_trees
from bench.settings import BadSetting
from bench.solve import top_singular
from bench.task import Set

GRAPH = networkx.gnp_random_graph(12, 0.5, seed=3)
EDGES = torch.tensor(list(GRAPH.edges))
SETS: dict[str, tuple[Set, tuple[int, ...]]] = {
    "box": (box(-0.5, 2.0), (6,)),
    "l2_ball": (l2_ball(1.5), (3, 4)),
    "simplex": (simplex(2.0), (7,)),
    "l1_ball": (l1_ball(1.5), (3, 4)),
    "nuclear_ball": (nuclear_ball(2.0), (6, 9)),
    "spanning_trees": (spanning_trees(12, EDGES), (len(EDGES),)),
}
PROJECTED = [name for name in SETS if name != "spanning_trees"]


def randn(shape: tuple[int, ...], *name: int | str) -> Tensor:
    return torch.randn(*shape, generator=generator(*name), dtype=torch.float64)


def least(name: str, slope: Tensor) -> float:
    """min <slope, s> over the set, by other means."""
    flat = slope.flatten()
    if name == "box":
        corners = itertools.product((-0.5, 2.0), repeat=6)
        return min(float(flat @ torch.tensor(c).double()) for c in corners)
    if name == "l2_ball":
        return -1.5 * float(flat.norm())
    if name == "simplex":
        return 2.0 * float(flat.min())
    if name == "l1_ball":
        return -1.5 * float(flat.abs().max())
    if name == "nuclear_ball":
        return -2.0 * float(torch.linalg.svdvals(slope)[0])
    weighted = networkx.Graph()
    weighted.add_weighted_edges_from((a, b, w) for (a, b), w in zip(GRAPH.edges, slope.tolist()))
    return float(networkx.minimum_spanning_tree(weighted).size(weight="weight"))


def size(name: str, point: Tensor) -> float:
    """At most 0 exactly where the point is in the set."""
    if name == "box":
        return float(torch.maximum(-0.5 - point, point - 2.0).max())
    if name == "l2_ball":
        return float(point.norm()) - 1.5
    if name == "simplex":
        return max(float(-point.min()), abs(float(point.sum()) - 2.0))
    if name == "l1_ball":
        return float(point.abs().sum()) - 1.5
    return float(torch.linalg.svdvals(point).sum()) - 2.0


@pytest.mark.parametrize("name", SETS)
def test_the_linear_oracle_finds_the_least_and_a_point_of_the_set(name: str) -> None:
    feasible, shape = SETS[name]
    assert feasible.lmo is not None
    for k in range(20):
        slope = randn(shape, name, k) if k else torch.ones(shape).double()
        vertex = feasible.lmo(slope, 0.0)
        assert float((slope * vertex).sum()) == pytest.approx(least(name, slope), abs=1e-8)
        if name != "spanning_trees":
            assert size(name, vertex) <= 1e-12
            continue
        tree = networkx.Graph([e for e, w in zip(GRAPH.edges, vertex.tolist()) if w == 1.0])
        assert networkx.is_tree(tree)
        assert len(tree) == 12
        assert set(vertex.tolist()) == {0.0, 1.0}


@pytest.mark.parametrize("name", PROJECTED)
@pytest.mark.parametrize("scale", [0.05, 1.0, 30.0])
def test_the_projection_is_in_the_set_idempotent_and_closest(name: str, scale: float) -> None:
    """Closest: <u - p, s - p> <= 0 for every s of the set, so for the oracle's of -(u - p)."""
    feasible, shape = SETS[name]
    assert feasible.project is not None
    assert feasible.lmo is not None
    for k in range(10):
        u = scale * randn(shape, name, "u", k)
        p = feasible.project(u)
        assert size(name, p) <= 1e-12
        torch.testing.assert_close(feasible.project(p), p, rtol=0, atol=1e-12)
        worst = feasible.lmo(p - u, 0.0)
        assert float(((u - p) * (worst - p)).sum()) <= 1e-8 * max(1.0, scale**2)


@pytest.mark.parametrize("name", ["simplex", "l1_ball"])
def test_projections_agree_with_a_general_solver(name: str) -> None:
    """SLSQP from the projection of zero; the l1 ball as a difference of two positive parts."""
    feasible, shape = SETS[name]
    assert feasible.project is not None
    u = randn(shape, "solver", name)
    flat = u.flatten().numpy()
    n = len(flat)
    if name == "simplex":
        found = minimize(
            lambda z: ((z - flat) ** 2).sum(), np.full(n, 2 / n), bounds=[(0, None)] * n,
            constraints={"type": "eq", "fun": lambda z: z.sum() - 2}, options={"ftol": 1e-14},
        ).x  # fmt: skip
    else:
        split = minimize(
            lambda z: ((z[:n] - z[n:] - flat) ** 2).sum(), np.zeros(2 * n),
            bounds=[(0, None)] * (2 * n),
            constraints={"type": "ineq", "fun": lambda z: 1.5 - z.sum()},
            options={"ftol": 1e-14, "maxiter": 500},
        ).x  # fmt: skip
        found = split[:n] - split[n:]
    np.testing.assert_allclose(feasible.project(u).flatten().numpy(), found, atol=1e-5)


def test_a_point_of_the_set_is_its_own_projection() -> None:
    inside = 0.01 * randn((6, 9), "inside")
    for feasible in (nuclear_ball(2.0), l1_ball(5.0), l2_ball(5.0), box(-1.0, 1.0)):
        assert feasible.project is not None
        assert torch.equal(feasible.project(inside), inside)


CLUSTERED = torch.cat([torch.ones(5), torch.linspace(0.9, 0.1, 15)])
SPECTRA: dict[str, Callable[[], Tensor]] = {
    "random": lambda: randn((40, 60), "random"),
    "tall": lambda: randn((80, 7), "tall"),
    "one column": lambda: randn((9, 1), "column"),
    "rank one": lambda: randn((30, 1), "a") @ randn((1, 20), "b"),
    "five equal largest": lambda: (
        torch.linalg.qr(randn((20, 20), "q")).Q @ torch.diag(CLUSTERED.double())
    ),
    "diagonal": lambda: torch.diag(torch.arange(1.0, 31.0)).double(),
    "tiny": lambda: 1e-200 * randn((10, 12), "tiny"),
}


@pytest.mark.parametrize("name", SPECTRA)
@pytest.mark.parametrize("accuracy", [0.0, 1e-6, 1e-2])
def test_the_largest_singular_value_is_found_to_the_accuracy(name: str, accuracy: float) -> None:
    matrix = SPECTRA[name]()
    exact = float(torch.linalg.svdvals(matrix)[0])
    u, sigma, v = top_singular(matrix, accuracy * exact)
    assert float(u.norm()) == pytest.approx(1, abs=1e-12)
    assert float(v.norm()) == pytest.approx(1, abs=1e-12)
    found = float(u @ matrix @ v)
    assert exact * (1 - max(accuracy, 1e-9)) <= found <= exact * (1 + 1e-12)
    assert float(sigma) == pytest.approx(found, rel=1e-9)


def test_the_largest_singular_value_of_zero_is_zero() -> None:
    u, sigma, v = top_singular(torch.zeros(4, 6).double())
    assert (float(u.norm()), float(sigma), float(v.norm())) == pytest.approx((1, 0, 1))


def test_graphs_without_spanning_trees_are_refused() -> None:
    with pytest.raises(BadSetting, match="not connected"):
        spanning_trees(4, torch.tensor([[0, 1], [2, 3]]))
    with pytest.raises(BadSetting, match="twice"):
        spanning_trees(2, torch.tensor([[0, 1], [1, 0]]))
    with pytest.raises(BadSetting, match="loop"):
        spanning_trees(2, torch.tensor([[0, 1], [1, 1]]))
