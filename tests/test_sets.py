"""Feasible sets: projections by their certificate, linear oracles by brute force."""

import itertools
import math
from collections.abc import Callable

import networkx
import numpy as np
import pytest
import torch
from torch import Tensor

from bench.core.draw import generator
from bench.core.settings import BadSetting
from bench.core.task import Set
from bench.numerics.packing import packed_set, packing
from bench.numerics.sets import box, l1_ball, l2_ball, nuclear_ball, simplex, spanning_trees
from bench.numerics.singular import top_singular

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


@pytest.mark.parametrize("name", SETS)
def test_a_slope_that_is_not_a_number_has_no_least(name: str) -> None:
    """A vertex would hide that the run has diverged."""
    feasible, shape = SETS[name]
    assert feasible.lmo is not None
    slope = randn(shape, name)
    slope.view(-1)[3] = math.nan
    vertex = feasible.lmo(slope, 0.0)
    assert (vertex.shape, vertex.dtype) == (slope.shape, slope.dtype)
    assert vertex.isnan().all()


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


def lowered(values: Tensor, total: float) -> Tensor:
    """max(values - t, 0) with the t at which they sum to `total`, by bisection."""
    low, high = float(values.min()) - total, float(values.max())
    for _ in range(200):
        t = (low + high) / 2
        low, high = (t, high) if float((values - t).clamp(min=0).sum()) > total else (low, t)
    return (values - low).clamp(min=0)


def nearest(name: str, u: Tensor) -> Tensor:
    """The projection, from its closed form."""
    if name == "box":
        return torch.tensor([min(max(v, -0.5), 2.0) for v in u.tolist()], dtype=u.dtype)
    if name == "l2_ball":
        return u if float(u.norm()) <= 1.5 else 1.5 * u / u.norm()
    if name == "simplex":
        return lowered(u, 2.0)
    if name == "l1_ball":
        outside = float(u.abs().sum()) > 1.5
        return u.sign() * lowered(u.abs().flatten(), 1.5).view_as(u) if outside else u
    left, values, right = torch.linalg.svd(u, full_matrices=False)
    outside = float(values.sum()) > 2.0
    return left @ torch.diag(lowered(values, 2.0)) @ right if outside else u


@pytest.mark.parametrize("name", PROJECTED)
@pytest.mark.parametrize("scale", [0.01, 0.3, 1.0, 30.0])
def test_the_projection_has_its_closed_form(name: str, scale: float) -> None:
    """The point is inside of the set, or its projection is on a face with some zeros, or it is
    far away."""
    feasible, shape = SETS[name]
    assert feasible.project is not None
    for k in range(5):
        u = scale * randn(shape, name, "closed", k)
        torch.testing.assert_close(feasible.project(u), nearest(name, u), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", SETS)
def test_the_oracle_needs_no_accuracy_and_keeps_the_shape_and_the_dtype(name: str) -> None:
    feasible, shape = SETS[name]
    assert feasible.lmo is not None
    slope = randn(shape, name, "float32").float()
    vertex = feasible.lmo(slope)  # type: ignore[call-arg]
    assert (vertex.shape, vertex.dtype) == (slope.shape, slope.dtype)
    assert float((slope * vertex).sum()) == pytest.approx(least(name, slope.double()), rel=1e-5)
    torch.testing.assert_close(vertex, feasible.lmo(slope, 0.0))


@pytest.mark.parametrize("accuracy", [3.0, 0.5, 0.1, 1e-3])
def test_the_nuclear_balls_oracle_is_as_accurate_as_it_must_be(accuracy: float) -> None:
    """sigma to accuracy / radius is <slope, .> to accuracy; its vertex is -radius u v^T."""
    slope = torch.diag(torch.linspace(1.0, 0.5, 60)).double()
    for radius in (0.3, 4.0):
        lmo = nuclear_ball(radius).lmo
        assert lmo is not None
        u, _, v = top_singular(slope, accuracy / radius)
        torch.testing.assert_close(lmo(slope, accuracy), -radius * torch.outer(u, v))
        assert float((slope * lmo(slope, accuracy)).sum()) <= -radius + accuracy
        assert torch.equal(lmo(slope), lmo(slope, 0.0))  # type: ignore[call-arg]


def test_the_errors_of_a_products_parts_add_up() -> None:
    """Each part's oracle is as accurate as leaves the sum within what is asked."""
    asked: list[float] = []

    def lmo(slope: Tensor, accuracy: float = 0.0) -> Tensor:
        asked.append(accuracy)
        return slope

    packed = packing([torch.zeros(2, 2), torch.zeros(3, 3)], "x0")
    both = packed_set([Set(lmo=lmo), Set(lmo=lmo)], packed, "x_in")
    assert both.lmo is not None
    assert both.lmo(torch.ones(13), 0.5).tolist() == [1.0] * 13
    assert asked == [0.25, 0.25]


def test_the_boxs_corners_are_its_own_to_the_last_bit() -> None:
    """In the slope's dtype, whatever the default one: -.2 of float32 lies outside."""
    lmo = box(-0.2, 0.1).lmo
    assert lmo is not None
    assert lmo(torch.tensor([1.0, -1.0]).double(), 0.0).tolist() == [-0.2, 0.1]


def test_a_flat_slope_is_answered_by_a_point_of_the_set() -> None:
    """All points are as good: no division by zero."""
    for name in PROJECTED:
        feasible, shape = SETS[name]
        assert feasible.lmo is not None
        assert size(name, feasible.lmo(torch.zeros(shape).double(), 0.0)) <= 1e-12


def test_the_simplex_sums_to_one_unless_told() -> None:
    feasible = simplex()
    assert feasible.project is not None
    assert feasible.lmo is not None
    u = torch.tensor([[0.9, 0.5], [-1.0, 0.0]]).double()
    expected = torch.tensor([[0.7, 0.3], [0.0, 0.0]]).double()
    torch.testing.assert_close(feasible.project(u), expected)
    assert feasible.lmo(u, 0.0).tolist() == [[0.0, 0.0], [1.0, 0.0]]


@pytest.mark.parametrize("turned", [False, True])
def test_the_cheapest_tree_by_hand(turned: bool) -> None:
    """A square with a diagonal, its edges named from either end, some cheaper than nothing."""
    edges = torch.tensor([[0, 1], [1, 2], [2, 3], [0, 3], [0, 2]])
    lmo = spanning_trees(4, edges.flip(1) if turned else edges).lmo
    assert lmo is not None
    for slope, tree in (
        ([1.0, 2.0, 3.0, 4.0, 5.0], [1, 1, 1, 0, 0]),
        ([-1.0, -2.0, -3.0, -4.0, -5.0], [0, 1, 0, 1, 1]),
        ([0.0, 0.0, 0.0, 0.1, 0.1], [1, 1, 1, 0, 0]),
        ([5.0, 4.0, -7.0, 0.0, 4.5], [0, 1, 1, 1, 0]),
        ([-1.0, 0.0, 0.0, 5.0, 5.0], [1, 1, 1, 0, 0]),
        ([3e-9, 1e-9, 1e-9, 2e-9, 3e-9], [0, 1, 1, 1, 0]),
        ([1.0, 1.0, 1.0, 1.0, 1.0], [1, 1, 1, 0, 0]),
        ([0.3, 0.3, 0.1 + 0.2, 0.3 - 5e-17, 0.3], [1, 1, 1, 0, 0]),  # equal but for the last bit
    ):
        weights = torch.tensor(slope, dtype=torch.float64, requires_grad=True)
        assert lmo(weights, 0.0).tolist() == tree


FAR = [
    [1e9, 0.0, 0.0],
    [1e9, 1e9, -1e9, 1e9],
    [-1e9, -1e9, -3e9],
    [3e7 + 4.0, 3e7 + 2.0, 3e7 - 40.0, 1.0],
    [1e30, 1.0, -1e30],
    [1e6 + 0.75, 1e6 + 0.5, 0.0],
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("total", [1.0, 3.0])
@pytest.mark.parametrize("point", FAR)
def test_the_simplex_is_reached_from_far_away(
    point: list[float], total: float, dtype: torch.dtype
) -> None:
    """A point and its projection p have p = max(u - t, 0): t is found after the largest of u, which
    changes p not, is taken from all, so that no sum is rounded."""
    feasible, u = simplex(total), torch.tensor(point, dtype=dtype)
    assert feasible.project is not None
    found = feasible.project(u)
    assert found.dtype == dtype
    assert float(found.sum()) == pytest.approx(total, rel=1e-6)
    assert float(found.min()) >= 0
    near = (u.double() - u.double().max()).clamp(min=-10 * total)  # what is lower still is 0
    torch.testing.assert_close(found.double(), lowered(near, total), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("many", [3, 20_000])
def test_many_equal_coordinates_share_the_total(many: int) -> None:
    """In float32, from where the rounding of their sum is more than the total."""
    feasible = simplex(1.0)
    assert feasible.project is not None
    found = feasible.project(torch.full((many,), 900.0))
    torch.testing.assert_close(found, torch.full((many,), 1 / many), rtol=1e-3, atol=0)


def test_balls_are_reached_from_far_away_in_single_precision() -> None:
    for feasible in (l1_ball(2.0), nuclear_ball(2.0)):
        assert feasible.project is not None
        found = feasible.project(torch.diag(torch.tensor([-3e9, 1e9, 7.0])))
        torch.testing.assert_close(found, torch.diag(torch.tensor([-2.0, 0.0, 0.0])))


def test_a_ball_of_radius_0_is_a_point() -> None:
    feasible = l1_ball(0.0)
    assert feasible.project is not None
    assert not feasible.project(torch.tensor([0.5, -0.25, 0.1])).any()


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


def test_a_part_without_a_projection_makes_a_product_without_one() -> None:
    """It would be no constraint otherwise; where another part has no oracle either, nothing is
    left of the two."""
    packed = packing([torch.zeros(2), torch.zeros(len(EDGES))], "x0")
    trees = spanning_trees(12, EDGES)
    found = packed_set([box(0.0, 1.0), trees], packed, "x_in")
    assert found.project is None
    assert found.lmo is not None
    for parts in ([None, trees], [trees, None]):
        with pytest.raises(BadSetting, match="x_in: a set without a projection"):
            packed_set(parts, packed, "x_in")
    assert packed_set([box(0.0, 1.0), None], packed, "x_in").project is not None


@pytest.mark.parametrize("size", [-1.0, math.inf, math.nan])
def test_sets_of_no_size_are_refused(size: float) -> None:
    for name, made in {
        "l2_ball: radius": l2_ball, "simplex: total": simplex, "l1_ball: radius": l1_ball,
        "nuclear_ball: radius": nuclear_ball,
    }.items():  # fmt: skip
        with pytest.raises(BadSetting, match=f"{name}={size}: write a finite number, 0 or more"):
            made(size)


def test_a_box_without_points_is_refused() -> None:
    for low, high in ((1.0, -1.0), (math.nan, 1.0), (0.0, math.nan)):
        with pytest.raises(BadSetting, match="write low <= high"):
            box(low, high)
    assert box(0.0, math.inf).project is not None  # what is not negative


def test_what_is_no_number_is_refused() -> None:
    for given in ("1", None, True, torch.ones(2)):
        with pytest.raises(BadSetting, match=r"^box: high=.*: write a number"):
            box(0, given)  # type: ignore[arg-type]
        with pytest.raises(BadSetting, match=r"^l2_ball: radius=.*: write a number"):
            l2_ball(given)  # type: ignore[arg-type]
    box(np.float64(0), np.int64(1))


def test_edges_are_pairs_of_numbers() -> None:
    """A list will do as well as a tensor."""
    pairs = [[0, 1], [1, 2], [0, 2]]
    gradient = torch.tensor([3.0, 1.0, 2.0])
    found = [spanning_trees(3, e).lmo(gradient, 0.0) for e in (pairs, torch.tensor(pairs))]  # type: ignore[misc,arg-type]
    assert found[0].tolist() == found[1].tolist() == [0, 1, 1]
    for wrong in ([0, 1, 2], [[0, 1, 2]], [[0.0, 1.0], [1.0, 2.0]]):
        with pytest.raises(BadSetting, match="edges: write two whole numbers for each edge"):
            spanning_trees(3, torch.tensor(wrong))


def test_graphs_without_spanning_trees_are_refused() -> None:
    with pytest.raises(BadSetting, match="not connected"):
        spanning_trees(4, torch.tensor([[0, 1], [2, 3]]))
    with pytest.raises(BadSetting, match="twice"):
        spanning_trees(2, torch.tensor([[0, 1], [1, 0]]))
    with pytest.raises(BadSetting, match="loop"):
        spanning_trees(2, torch.tensor([[0, 1], [1, 1]]))


def test_sets_of_one_point_have_it_for_an_answer() -> None:
    for feasible in (l2_ball(0.0), nuclear_ball(0.0), l1_ball(0.0)):
        assert feasible.project is not None
        assert feasible.lmo is not None
        for u in (torch.zeros(3, 2), torch.ones(3, 2)):
            assert feasible.project(u).tolist() == [[0.0, 0.0]] * 3
            assert float(feasible.lmo(u, 0.0).abs().max()) == 0.0


def test_a_tiny_slope_is_answered_on_the_sphere() -> None:
    """The squares of its coordinates are 0 in single precision."""
    lmo = l2_ball(2.0).lmo
    assert lmo is not None
    torch.testing.assert_close(lmo(torch.tensor([3e-30, -4e-30]), 0.0), torch.tensor([-1.2, 1.6]))


def test_a_box_without_an_end_has_no_least() -> None:
    assert box(0.0, math.inf).lmo is None
    assert box(-math.inf, 0.0).lmo is None


def test_a_matrix_that_is_not_finite_has_no_closest() -> None:
    project = nuclear_ball(1.0).project
    assert project is not None
    assert project(torch.tensor([[1.0, math.nan], [0.0, 1.0]])).isnan().all()


@pytest.mark.parametrize("edges", [[[0, 3]], [[-1, 0]]])
def test_edges_end_at_nodes(edges: list[list[int]]) -> None:
    with pytest.raises(BadSetting, match=r"spanning_trees: edges: .*below nodes=3"):
        spanning_trees(3, torch.tensor(edges))
    with pytest.raises(BadSetting, match=r"spanning_trees: edges: .*below nodes=3"):
        spanning_trees(3, torch.zeros(0, 2, dtype=torch.int64))
