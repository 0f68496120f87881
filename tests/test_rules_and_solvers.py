"""Step rules and linear solvers at the edges that test_pieces.py leaves out: defaults, clamping,
warm starts, stopping, indefinite and singular matrices."""

from typing import Any

import pytest
import torch
from torch import Tensor

from bench.core.draw import generator
from bench.core.oracle import Oracle
from bench.numerics.descent import (
    Descent,
    adam,
    clamped,
    decaying,
    descent,
    heavy_ball,
    heavy_ball_descent,
)
from bench.numerics.inner import cg_until
from bench.numerics.solve import cg, neumann
from tests.steps.drifting import line
from tests.steps.problem import Adam

START = torch.tensor([1.0, -2.0, 0.5]).double()


def walked(rule: Descent, many: int = 20) -> Tensor:
    """Steps along p^3 + .3, whose memory is that of the rule."""
    p, memory = START, rule.init(START)
    for _ in range(many):
        p, memory = rule.step(p, p**3 + 0.3, 0.1, memory)
    return p


def with_adam(rule: Adam) -> Tensor:
    """The same by hand."""
    p = START
    for _ in range(20):
        p = rule(p, p**3 + 0.3)
    return p


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (adam(), Adam(0.1)),  # the defaults of Adam's paper: .9, .999, 1e-8
        (adam(eps=0.3), Adam(0.1, eps=0.3)),
        (descent("adam"), Adam(0.1)),
        (descent("adam", 0.5, 0.8, 0.95, 0.3), Adam(0.1, 0.8, 0.95, 0.3)),
    ],
)
def test_adam_is_the_papers(rule: Descent, expected: Adam) -> None:
    torch.testing.assert_close(walked(rule), with_adam(expected), rtol=1e-13, atol=0)


@pytest.mark.parametrize(
    ("rule", "twin"),
    [
        (descent(), descent("gd")),
        (descent("momentum"), heavy_ball_descent(0.9)),
        (heavy_ball_descent(), heavy_ball_descent(0.9)),
        (descent("momentum", 0.3), heavy_ball_descent(0.3)),
        (descent("gd", 0.3), heavy_ball_descent(0.0)),
        (clamped(), clamped(1.0)),
        (clamped(1e9), descent()),
        (decaying(), decaying("gd", 0.5)),
    ],
)
def test_rules_by_name_and_by_default(rule: Descent, twin: Descent) -> None:
    assert torch.equal(walked(rule), walked(twin))


OTHERS = (0.5, 0.8, 0.95, 0.3)  # momentum, b1, b2, eps


def test_a_clamped_step_cuts_each_coordinate() -> None:
    rule = clamped(0.5)
    direction = torch.tensor([3.0, -0.25, -7.0]).double()
    point, memory = rule.step(START, direction, 0.1, rule.init(START))
    assert point.tolist() == pytest.approx([1.0 - 0.05, -2.0 + 0.025, 0.5 + 0.05], rel=1e-15)
    assert memory == ()


@pytest.mark.parametrize("rule", ["gd", "momentum", "adam"])
def test_a_decaying_step_is_one_of_a_smaller_size(rule: Any) -> None:
    """Step k is that of the constant rule with lr / (1 + k)^decay, whose memory goes on."""
    falling, constant = decaying(rule, 0.75, *OTHERS), descent(rule, *OTHERS)
    point, memory = START, falling.init(START)
    twin, own = START, constant.init(START)
    for k, direction in enumerate((START, 2 * START - 1, -START)):
        point, memory = falling.step(point, direction, 0.1, memory)
        twin, own = constant.step(twin, direction, 0.1 / (1 + k) ** 0.75, own)
    torch.testing.assert_close(point, twin, rtol=1e-14, atol=0)


def test_heavy_ball_goes_on_with_the_velocity() -> None:
    """m_1 = mu m_0 + s, p_1 = p_0 - lr m_1; without momentum the velocity is the slope itself."""
    slope, velocity = torch.tensor([1.0, 2.0]).double(), torch.tensor([10.0, -20.0]).double()
    p, m = heavy_ball(torch.zeros(2).double(), slope, velocity, 0.5, 0.1)
    assert m.tolist() == [2.0, 0.0]
    assert p.tolist() == [-1.0, 0.0]
    p, m = heavy_ball(torch.zeros(2).double(), slope, velocity * torch.inf, 0.5, 0.0)
    assert m.tolist() == [1.0, 2.0]
    assert p.tolist() == [-0.5, -1.0]


def symmetric(*values: float) -> Tensor:
    """A dense matrix with these eigenvalues."""
    n = len(values)
    q, _ = torch.linalg.qr(torch.randn(n, n, generator=generator("q"), dtype=torch.float64))
    return q @ torch.diag(torch.tensor(values).double()) @ q.T


class Counted:
    """v -> H v, and how often it was asked for."""

    def __init__(self, matrix: Tensor):
        self.matrix, self.calls = matrix, 0

    def __call__(self, v: Tensor) -> Tensor:
        """H v."""
        self.calls += 1
        return self.matrix @ v


RIGHT = torch.tensor([3.0, -1.0, 2.0, 0.5]).double()
NEAR = torch.tensor([0.4, 0.1, -0.3, 0.2]).double()


@pytest.mark.parametrize("start", [None, NEAR])
@pytest.mark.parametrize("values", [(1.0, 2.0, 5.0, 0.5), (1.0, -2.0, 3.0, -0.5)])
def test_cg_ends_at_the_solution(values: tuple[float, ...], start: Tensor | None) -> None:
    """After as many steps as dimensions, for an indefinite matrix too if no curvature met is 0."""
    product = Counted(symmetric(*values))
    found = cg(product, RIGHT, 4, start)
    expected = torch.linalg.solve(product.matrix, RIGHT)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    assert product.calls == 4 + (start is not None)


@pytest.mark.parametrize("start", [None, NEAR])
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_cgs_iterates_minimise_the_error_over_the_krylov_space(
    steps: int, start: Tensor | None
) -> None:
    """Hestenes and Stiefel, 1952, Theorem 4.3: v - v* is H-orthogonal to the space, v in it."""
    matrix = symmetric(1.0, 2.0, 5.0, 0.5)
    found = cg(Counted(matrix), RIGHT, steps, start)
    begin = torch.zeros(4).double() if start is None else start
    residual = RIGHT - matrix @ begin
    powers = [torch.linalg.matrix_power(matrix, i) @ residual for i in range(steps)]
    basis, _ = torch.linalg.qr(torch.stack(powers, 1))
    moved = found - begin
    torch.testing.assert_close(basis @ (basis.T @ moved), moved, rtol=1e-10, atol=1e-12)
    left = basis.T @ (RIGHT - matrix @ found)
    torch.testing.assert_close(left, torch.zeros_like(left), rtol=0, atol=1e-12)


def test_cg_stays_where_a_direction_has_no_curvature() -> None:
    """H = diag(1, -1) and b = (1, 1): p^T H p = 0 at the first step, which is left out."""
    found = cg(Counted(torch.diag(torch.tensor([1.0, -1.0]))), torch.ones(2), 3)
    assert torch.equal(found, torch.zeros(2))


@pytest.mark.parametrize("start", [None, NEAR])
def test_cg_stops_at_the_residual_asked_for(start: Tensor | None) -> None:
    """At the first iterate with |b - H v| at most `residual`; equal is enough."""
    matrix = symmetric(1.0, 2.0, 5.0, 0.5)
    iterates = [cg(Counted(matrix), RIGHT, k, start) for k in range(5)]
    norms = [float((RIGHT - matrix @ v).norm()) for v in iterates]
    assert norms == sorted(norms, reverse=True)  # of this matrix; they need not fall
    for k in range(4):
        product = Counted(matrix)
        goal = torch.tensor(1.001 * norms[k]).double()
        found = cg_until(Oracle(line()), product, RIGHT, goal, 9, start)
        torch.testing.assert_close(found, iterates[k], rtol=1e-12, atol=1e-12)
        assert product.calls == k + (start is not None)
    right, five = torch.tensor([3.0, 4.0]), torch.tensor(5.0)
    assert cg_until(Oracle(line()), Counted(matrix), right, five, 9).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("terms", [0, 1, 5])
def test_neumann_takes_a_product_a_term_after_the_first(terms: int) -> None:
    product = Counted(symmetric(1.0, 2.0, 1.5, 0.5))
    found = neumann(product, RIGHT, 0.4, terms)
    shrink = torch.eye(4).double() - 0.4 * product.matrix
    powers = [torch.linalg.matrix_power(shrink, i) for i in range(terms + 1)]
    expected = 0.4 * torch.stack(powers).sum(0) @ RIGHT
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    assert product.calls == terms


def test_truncated_conjugate_gradients_stay_from_the_first_direction_that_bends_down_on() -> None:
    """H = diag(-1, 1, 4) and b = (1, 1, 1): along b the curvature is 4, so that v = 3/4 b. The
    second direction bends down and so does the third; the fourth would not, and is not taken."""
    H, b = torch.tensor([-1.0, 1.0, 4.0]).double(), torch.ones(3).double()
    for steps in (1, 2, 3, 4, 6):
        v = cg(lambda p: H * p, b, steps, truncated=True)
        assert v.tolist() == [0.75, 0.75, 0.75], steps
    assert cg(lambda p: H * p, b, 4).tolist() != [0.75, 0.75, 0.75]
