"""F2OBO, AF2OBO and SF2OBO, by hand (Jia and Chen, 2026, Algorithms 1 to 3, theorem 5.1)."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from algorithms.online.f2obo import af2obo, f2obo, sf2obo
from bench.core.draw import Draw
from bench.core.loop import advance
from bench.core.oracle import Asked, Oracle
from bench.core.settings import BadSetting
from bench.numerics.inner import Loop, cg_until, descend_until, is_small
from bench.numerics.sets import box
from bench.numerics.solve import cg
from tests.steps import drifting as on
from tests.steps import problem as at

PLACES = pytest.mark.parametrize(("case", "batch"), on.PLACES)


def slope_of(x: Tensor, y: Tensor, z: Tensor, xi: Any, zeta: Any, lam: float) -> Tensor:
    """Line 9 of Algorithm 1."""
    return on.f_x(x, y, xi) + lam * (on.g_x(x, y, zeta) - on.g_x(x, z, zeta))


F2OBO: list[dict[str, Any]] = [
    {},
    {"K": 1, "tau": 1 / 3, "outer_decay": 1 / 3},  # theorem 3.2
    {"K": 2, "tau": 0.7, "beta": 0.5, "lam": 3.0},
    {"K": 3, "tau": 0.0, "outer_decay": 1.5},
    {"K": 2, "tau": 0.5, "beta": 0.03, "beta_rule": "plain"},
]


@PLACES
@pytest.mark.parametrize("settings", F2OBO)
def test_f2obo(settings: dict[str, Any], case: str, batch: int | None) -> None:
    """Algorithm 1: both inner steps K times on one sample of the round; beta_t = beta / lambda_t,
    beta = alpha unless it is given; line 11 as printed, lambda_{t+1} = (1 + 1/t)^tau lambda_t."""
    task = on.CASES[case]()
    had = {"beta": None, "lam": 5.0, "tau": 1.0, "K": 5, "outer_decay": 0.0} | settings
    plain = "beta_rule" in settings
    alpha, gamma, K = 0.3, 0.05, had["K"]

    def by_hand(draws: on.Draws) -> on.Rounds:
        x, y, z, lam = at.X0, at.Y0, at.Y0, had["lam"]
        for t in (1, 2, 3):
            beta_t = had["beta"] if plain else (had["beta"] or alpha) / lam
            gamma_t = gamma / t ** had["outer_decay"]
            xi, zeta = draws(t - 1).f(batch), draws(t - 1).g(batch)
            for _ in range(K):
                z = at.in_y(task, z - alpha * on.g_y(x, z, zeta))
                y = at.in_y(task, y - beta_t * (on.f_y(x, y, xi) + lam * on.g_y(x, y, zeta)))
            slope = slope_of(x, y, z, xi, zeta, lam)
            x = at.in_x(task, x - gamma_t * slope)
            yield {"x": x, "y": y, "z": z, "hypergrad_sq": slope @ slope, "lam": lam}
            lam = (1 + 1 / t) ** had["tau"] * lam

    method = f2obo(alpha, gamma, **settings, batch=batch)
    end = on.assert_same_rounds(task, method, by_hand)
    assert end.calls["grad_g"] == 3 * (2 * K + 2)
    assert end.calls["grad_f"] == 3 * (K + 1)


AF2OBO: list[dict[str, Any]] = [
    {},
    {"delta_y": 0.3, "delta_z": 0.02, "tau": 1.0, "lam": 3.0, "beta": 0.5},
    {"delta_y": 0.05, "delta_z": 0.3, "tau": 0.0},
    {"delta_y": 0.1, "delta_z": 0.05, "cap": 3},
    {"delta_y": 5.0, "delta_z": 0.2, "cap": 0},
    {"delta_y": 0.3, "delta_z": 0.2, "beta": 0.04, "beta_rule": "plain"},
]


@PLACES
@pytest.mark.parametrize("settings", AF2OBO)
def test_af2obo(settings: dict[str, Any], case: str, batch: int | None) -> None:
    """Algorithm 2, lines 3 to 12; a loop that has taken `cap` steps ends, and is counted if its
    slope is still above its tolerance."""
    if case == "held":  # a box keeps slopes from falling: the loops end at their cap
        settings = {"cap": 5} | settings
    task = on.CASES[case]()
    had = {
        "beta": None, "lam": 5.0, "tau": 0.5, "delta_y": 0.01, "delta_z": 0.0001, "cap": 1000
    } | settings  # fmt: skip
    alpha, gamma, taken = 0.6, 0.05, 0

    def by_hand(draws: on.Draws) -> on.Rounds:
        nonlocal taken
        x, y, z, lam, capped = at.X0, at.Y0, at.Y0, had["lam"], 0
        for t in (1, 2, 3):
            beta = had["beta"] if "beta_rule" in settings else (had["beta"] or alpha) / lam
            xi, zeta = draws(t - 1).f(batch), draws(t - 1).g(batch)
            k_z = k_y = 0
            while float(on.g_y(x, z, zeta).norm()) > had["delta_z"]:
                if k_z == had["cap"]:
                    capped += 1
                    break
                z = at.in_y(task, z - alpha * on.g_y(x, z, zeta))
                k_z += 1
            while True:
                slope = on.f_y(x, y, xi) + lam * on.g_y(x, y, zeta)
                if float(slope.norm()) <= had["delta_y"]:
                    break
                if k_y == had["cap"]:
                    capped += 1
                    break
                y = at.in_y(task, y - beta * slope)
                k_y += 1
            taken += k_z + k_y
            slope = slope_of(x, y, z, xi, zeta, lam)
            x = at.in_x(task, x - gamma * slope)
            inner = {"inner_z": k_z, "inner_y": k_y, "capped": capped}
            yield {"x": x, "y": y, "z": z, "hypergrad_sq": slope @ slope, "lam": lam, **inner}
            lam = (1 + 1 / t) ** had["tau"] * lam

    method = af2obo(alpha, gamma, **settings, batch=batch)
    assert method.first_order
    end = on.assert_same_rounds(task, method, by_hand)
    assert end.calls["grad_g"] == taken + 3 * 4


def test_af2obo_counts_its_inner_steps() -> None:
    """k_z and k_y inner steps take k_z + k_y + 4 gradients of g and k_y + 2 of f."""
    task = on.problem()

    end = on.assert_same_rounds(task, af2obo(0.3, 0.05, delta_z=0.1), on.unheld, steps=1)
    k_z, k_y = (int(end.info[name]) for name in ("inner_z", "inner_y"))
    assert k_y > k_z > 1
    assert end.calls == {"grad_g": k_z + k_y + 4, "grad_f": k_y + 2}


@pytest.mark.parametrize(
    ("tolerance", "cap", "expected"),
    [
        (1.0, 9, (1.0, 0, False)),  # met at the start: no step
        (0.25, 9, (0.25, 2, False)),  # met exactly is met, as line 4 goes on while it is above
        (0.25, 2, (0.25, 2, False)),  # met by the last step that there may be
        (0.25, 1, (0.5, 1, True)),
        (0.25, 0, (1.0, 0, True)),
        (1.0, 0, (1.0, 0, False)),
    ],
)
@pytest.mark.parametrize("looked", [None, 1, 2, 3, 4, 50])
def test_an_inner_loop_ends_at_its_tolerance_or_its_cap(
    tolerance: float, cap: int, expected: tuple[float, int, bool], looked: int | None
) -> None:
    """y / 2 a step, whose slope is y: both exact in binary. Whenever the host looks, a gradient is
    counted at the start and after each step, and no other."""
    o = Oracle(on.line())
    ((found, gradient, k, ended),) = descend_until(o, [down_line(1.0, tolerance)], cap, looked)
    assert (float(found), k, not ended) == expected
    assert torch.equal(gradient, found)
    assert o.calls == {"grad_g": k + 1}
    assert o.samples == {"grad_g": k + 1}


def down_line(start: float, tolerance: float, looks: list[int] | None = None) -> Loop:
    """The loop of `on.line`. looks: gets a number for each gradient that is looked into."""

    def is_met(gradient: Tensor) -> Tensor:
        if looks is not None:
            looks.append(1)
        return is_small(gradient, tolerance)

    x, y = torch.zeros(1).double(), torch.full((1,), start).double()
    return Loop(y, lambda y: [Asked("g_y", x, y, None)], 0.5, is_met)


@pytest.mark.parametrize("looked", [None, 1, 2, 3, 50])
@pytest.mark.parametrize("tolerances", [(0.25, 0.125), (0.125, 1.0), (0.25, 0.0)])
def test_loops_side_by_side_are_those_one_by_one(
    tolerances: tuple[float, float], looked: int | None
) -> None:
    """Each ends at its own step and is counted as if it were alone, whenever the host looks; also
    where a loop ends at the cap."""
    o = Oracle(on.line())
    both = descend_until(o, [down_line(1.0, tolerance) for tolerance in tolerances], 5, looked)
    alone = [Oracle(on.line()), Oracle(on.line())]
    for found, own, tolerance in zip(both, alone, tolerances):
        assert (found,) == tuple(descend_until(own, [down_line(1.0, tolerance)], 5))
    assert both[0].steps != both[1].steps
    assert o.calls == alone[0].calls + alone[1].calls
    assert o.samples == alone[0].samples + alone[1].samples


def test_looks_grow_rare() -> None:
    """After 4 gradients, then 8 more, then as many as the cap leaves; on a CPU after each one."""
    for looked, gradients in ((4, 12), (1, 5)):
        looks: list[int] = []
        (end,) = descend_until(Oracle(on.line()), [down_line(1.0, 1 / 16, looks)], 20, looked)
        assert end.steps == 4
        assert len(looks) == gradients


def test_a_loop_that_has_ended_does_not_go_on() -> None:
    """Though a GPU may find another gradient in the same place."""
    o, told = Oracle(on.line()), iter([False, True, False, False])
    loop = down_line(1.0, 0.0)._replace(is_met=lambda gradient: torch.tensor(next(told)))
    ((y, _, steps, met),) = descend_until(o, [loop], 9, 4)
    assert (float(y), steps, met) == (0.5, 1, True)
    assert o.calls == {"grad_g": 2}


@pytest.mark.parametrize(
    ("residual", "cap", "made"), [(9.0, 5, 0), (1e-3, 5, 3), (0.0, 2, 2), (0.0, 4, 4)]
)
@pytest.mark.parametrize("start", [False, True])
@pytest.mark.parametrize("looked", [None, 1, 2, 3, 50])
def test_conjugate_gradients_end_at_their_residual_or_their_cap(
    residual: float, cap: int, made: int, start: bool, looked: int | None
) -> None:
    """Three curvatures take three iterations, and the result is that of so many. Whenever the host
    looks, a product is counted for each iteration, one for a start, and no other."""
    o, H = Oracle(on.line()), torch.tensor([1.0, 3.0, 7.0]).double()
    b, v = torch.tensor([1.0, 2.0, -2.0]).double(), torch.tensor([0.5, -1.0, 0.25]).double()

    def product(u: Tensor) -> Tensor:
        o.count("hvp_g", None)
        return H * u

    goal, first = torch.tensor(residual).double(), v if start else None
    found = cg_until(o, product, b, goal, cap, first, looked)
    assert torch.equal(found, cg(lambda u: H * u, b, made, first))
    assert o.calls["hvp_g"] == o.samples["hvp_g"] == made + start


def test_looks_of_conjugate_gradients_grow_rare() -> None:
    """After 2 iterates, then 4 more: the third is enough, and three products are made past it."""
    b, H, taken = torch.ones(3).double(), torch.tensor([1.0, 3.0, 7.0]).double(), []

    def product(u: Tensor) -> Tensor:
        taken.append(u)
        return H * u

    goal = 1.001 * (b - H * cg(lambda u: H * u, b, 2)).norm()
    cg_until(Oracle(on.line()), product, b, goal, 20, steps_a_look=2)
    assert len(taken) == 5


def test_an_inner_loop_is_projected() -> None:
    """Down a slope of 1 from 0 in [-.7, 1] by steps of .5."""
    o = Oracle(on.problem(None, box(-0.7, 1.0)))
    loop = Loop(
        torch.zeros(1),
        lambda y: [Asked("g_y", at.X0, at.Y0, Draw(o.task, 0, 0).g())],
        0.5,
        partial(is_small, to=0.1),
        lambda g_y: torch.ones(1),
    )
    ((found, _, k, met),) = descend_until(o, [loop], 3)
    assert (float(found), k, met) == (pytest.approx(-0.7), 3, False)
    assert o.calls["project"] == 3


SF2OBO: list[dict[str, Any]] = [
    {},
    {"tau": 1 / 6, "B1": 2 / 3, "B2": 2 / 3, "growing": True, "K": 3},  # corollary 5.2
    {"tau": 0.2, "a": 0.1, "b": 0.7, "growing": True, "K": 3, "B1": 0.9, "B2": 0.4},
    {"tau": 0.4, "a": 0.6, "b": 0.3, "growing": True, "K": 2, "B1": 0.1, "B2": 1.2, "beta": 0.5},
    {"tau": 0.3, "a": 0.5, "b": 0.0, "K": 2, "lam": 3.0},
    {"tau": 0.3, "K": 2, "beta": 0.03, "beta_rule": "plain"},
    {"tau": 0.3, "K": 3, "B1": 0.5, "B2": 0.5, "samples": "shared"},
]


@PLACES
@pytest.mark.parametrize("settings", SF2OBO)
def test_sf2obo(settings: dict[str, Any], case: str, batch: int | None) -> None:
    """Algorithm 3: lines 5 and 9 draw anew, line 5 once for both inner steps. Theorem 5.1:
    alpha_t = alpha t^-a, beta_t = beta / (lambda_1 t^b), K_t = 4 kappa max(t^(b - tau), t^a) log t
    with K for 4 kappa, batches of batch t^B1 on line 9 and of batch t^B2 on line 5, rounded up."""
    task = on.CASES[case]()
    had: dict[str, Any] = {
        "beta": None, "lam": 5.0, "tau": 1.0, "K": 5, "growing": False,
        "a": 0.0, "b": None, "B1": 0.0, "B2": 0.0,
    } | settings  # fmt: skip
    alpha, gamma, tau, a = 0.3, 0.05, had["tau"], had["a"]
    b = tau if had["b"] is None else had["b"]
    inner = []
    for t in (1, 2, 3, 4):
        growth = had["K"] * max(t ** (b - tau), t**a) * math.log(t)
        inner.append(max(1, math.ceil(growth)) if had["growing"] else had["K"])

    def by_hand(draws: on.Draws) -> on.Rounds:
        x, y, z, lam = at.X0, at.Y0, at.Y0, had["lam"]
        for t in (1, 2, 3, 4):
            draw = draws(t - 1)
            alpha_t, beta_t = alpha / t**a, (had["beta"] or alpha) / (had["lam"] * t**b)
            if "beta_rule" in settings:
                beta_t = had["beta"]
            size = None if batch is None else math.ceil(batch * t ** had["B2"])
            for k in range(inner[t - 1]):
                if k == 0 or "samples" not in settings:
                    xi, zeta = draw.f(size), draw.g(size)
                z = at.in_y(task, z - alpha_t * on.g_y(x, z, zeta))
                y = at.in_y(task, y - beta_t * (on.f_y(x, y, xi) + lam * on.g_y(x, y, zeta)))
            size = None if batch is None else math.ceil(batch * t ** had["B1"])
            if "samples" not in settings:
                xi, zeta = draw.f(size), draw.g(size)
            slope = slope_of(x, y, z, xi, zeta, lam)
            x = at.in_x(task, x - gamma * slope)
            yield {"x": x, "y": y, "z": z, "hypergrad_sq": slope @ slope, "lam": lam}
            lam = (1 + 1 / t) ** tau * lam

    method = sf2obo(alpha, gamma, **settings, batch=batch)
    end = on.assert_same_rounds(task, method, by_hand, steps=4)
    assert end.calls["grad_g"] == sum(2 * K + 2 for K in inner)
    assert end.calls["grad_f"] == sum(K + 1 for K in inner)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"samples": "shared", "B1": 0.5}, "algorithm.samples=shared: a round has one batch"),
        ({"beta_rule": "plain", "b": 0.5}, "algorithm.b=0.5: beta_rule=plain has no power of t"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(BadSetting, match=said):
        sf2obo(0.3, 0.05, **settings)


def test_by_default_all_methods_ask_for_all_the_data() -> None:
    for made in (f2obo(0.3, 0.05), af2obo(0.3, 0.05), sf2obo(0.3, 0.05)):
        assert made.first_order
        end = on.assert_same_rounds(on.problem(), made, on.unheld, steps=1)
        assert end.samples["grad_f"] == at.ROWS * end.calls["grad_f"]
        assert end.samples["grad_g"] == at.ROWS * end.calls["grad_g"]


def test_a_plain_beta_diverges_once_lambda_is_large() -> None:
    """L_t has lambda_t times the curvature of g_t, which is above .4 here: with lambda_t = 5 t a
    step of .1 on y diverges from some round on, and one of .1 / lambda_t never does."""
    ends = {}
    for rule in ("plain", "over_lambda"):
        method = f2obo(0.1, 1e-9, beta_rule=rule)  # type: ignore[arg-type]
        standing = on.assert_same_rounds(on.problem(), method, on.unheld, steps=1)
        with torch.no_grad():
            for _ in range(40):
                standing = advance(on.problem(), method, 0, standing)
        ends[rule] = float(standing.state.y.norm())
    assert ends["over_lambda"] < 10
    assert not ends["plain"] < 1e6
