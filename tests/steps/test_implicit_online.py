"""OAGD, SOBOW, FSOBO, AOBO and SOGD, by hand, with whole matrices in place of products."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from algorithms.online.f2obo import af2obo
from algorithms.online.implicit import aobo, fsobo, oagd, sobow, sogd
from bench.core.algorithm import Algorithm
from bench.core.draw import Draw
from bench.core.oracle import Oracle
from bench.core.task import Task
from tests.steps import drifting as on
from tests.steps import problem as at

PLACES = pytest.mark.parametrize(("case", "batch"), on.PLACES)


def hypergradient(x: Tensor, y: Tensor, v: Tensor, xi: Any, zeta: Any) -> Tensor:
    """f_x - g_xy v."""
    return on.f_x(x, y, xi) - on.g_xy(x, y, zeta) @ v


def zero(n: int) -> Tensor:
    return torch.zeros(n, dtype=torch.float64)


@PLACES
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"window": 2, "decay": 0.3, "K": 2, "Q": 3, "eta": 0.2},
        {"window": 1, "K": 1, "Q": 0},
        {"window": 3, "decay": 1.0, "Q": 1},
    ],
)
def test_oagd(settings: dict[str, Any], case: str, batch: int | None) -> None:
    """K steps on g_t, then along the mean of the hypergradients of the last w rounds' losses with
    weights decay^i / W, all at the new y; W has all w weights, as losses before round 1 are zero
    (Tarzanagh et al., 2024). Each v is eta sum_{j = 0}^Q (I - eta g_yy)^j f_y."""
    task = on.CASES[case]()
    had = {"K": 5, "Q": 5, "eta": 0.5, "window": 5, "decay": 0.9} | settings
    w, eta, decay = had["window"], had["eta"], had["decay"]

    def by_hand(draws: on.Draws) -> on.Rounds:
        x, y = at.X0, at.Y0
        for k in range(4):
            zeta = draws(k).g(batch)
            for _ in range(had["K"]):
                y = at.in_y(task, y - 0.3 * on.g_y(x, y, zeta))
            total = zero(at.P)
            for i in range(w):
                if i > k:
                    break
                xi, zeta = draws(k - i).f(batch), draws(k - i).g(batch)
                shrink = torch.eye(at.Q).double() - eta * on.g_yy(x, y, zeta)
                series = sum(torch.linalg.matrix_power(shrink, j) for j in range(had["Q"] + 1))
                v = eta * series @ on.f_y(x, y, xi)
                total = total + decay**i * hypergradient(x, y, v, xi, zeta)
            average = total / sum(decay**i for i in range(w))
            x = at.in_x(task, x - 0.05 * average)
            yield {"x": x, "y": y, "hypergrad_sq": average @ average}

    end = on.assert_same_rounds(task, oagd(0.3, 0.05, **settings, batch=batch), by_hand, steps=4)
    rounds = sum(min(w, k + 1) for k in range(4))
    counts = {"grad_g": 4 * had["K"], "grad_f": rounds, "jvp_g": rounds}
    assert {name: end.calls[name] for name in counts} == counts
    assert end.calls["hvp_g"] == had["Q"] * rounds


@PLACES
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"Q": 1, "growth": 0.5, "window": 2, "decay": 0.4},
        {"Q": 2, "growth": 0.3, "window": 3},
        {"Q": 1, "growth": 1.0, "window": 9, "decay": 1.0},
    ],
)
def test_sobow(settings: dict[str, Any], case: str, batch: int | None) -> None:
    """One step on g_t, Q_t iterations of conjugate gradients from the last v at the new y, and a
    step along (1 / W) sum_i eta^i h_{t - i} of what the last rounds found at their own points (Lin
    et al., 2023, Algorithm 1)."""
    task = on.CASES[case]()
    had = {"Q": 5, "growth": 0.0, "window": 1, "decay": 0.9} | settings

    def by_hand(draws: on.Draws) -> on.Rounds:
        x, y, v, found = at.X0, at.Y0, zero(at.Q), []
        for k in range(4):
            xi, zeta = draws(k).f(batch), draws(k).g(batch)
            y = at.in_y(task, y - 0.3 * on.g_y(x, y, zeta))
            steps = math.ceil(had["Q"] * (k + 1) ** had["growth"])
            steps = min(steps, at.Q)  # solved
            v = on.conjugate_gradients(on.g_yy(x, y, zeta), on.f_y(x, y, xi), steps, v)
            found.insert(0, hypergradient(x, y, v, xi, zeta))
            weights = [had["decay"] ** i for i in range(had["window"])]
            average = sum((w * h for w, h in zip(weights, found, strict=False)), zero(at.P))
            x = at.in_x(task, x - 0.05 * average / sum(weights))
            yield {"x": x, "y": y, "v": v, "hypergrad_sq": found[0] @ found[0]}

    method = sobow(0.3, 0.05, **settings, batch=batch)
    end = on.assert_same_rounds(task, method, by_hand, steps=4, rtol=1e-8)
    all_steps = sum(math.ceil(had["Q"] * (k + 1) ** had["growth"]) for k in range(4))
    assert {name: end.calls[name] for name in ("grad_f", "grad_g", "jvp_g")} == {
        "grad_f": 4, "grad_g": 4, "jvp_g": 4,
    }  # fmt: skip
    assert end.calls["hvp_g"] == all_steps + 4


@PLACES
def test_fsobo(case: str, batch: int | None) -> None:
    """One step each in y, in v at the new y, and in x with the new v."""
    task = on.CASES[case]()

    def by_hand(draws: on.Draws) -> on.Rounds:
        x, y, v = at.X0, at.Y0, zero(at.Q)
        for k in range(3):
            xi, zeta = draws(k).f(batch), draws(k).g(batch)
            y = at.in_y(task, y - 0.3 * on.g_y(x, y, zeta))
            v = v - 0.4 * (on.g_yy(x, y, zeta) @ v - on.f_y(x, y, xi))
            slope = hypergradient(x, y, v, xi, zeta)
            x = at.in_x(task, x - 0.05 * slope)
            yield {"x": x, "y": y, "v": v, "hypergrad_sq": slope @ slope}

    end = on.assert_same_rounds(task, fsobo(0.3, 0.05, 0.4, batch=batch), by_hand)
    counts = {"grad_f": 3, "grad_g": 3, "hvp_g": 3, "jvp_g": 3}
    assert {name: end.calls[name] for name in counts} == counts


@PLACES
@pytest.mark.parametrize(
    "settings", [{}, {"delta": 0.01, "Q": 2}, {"delta": 0.02, "cap": 2}, {"delta": 0.2, "cap": 0}]
)
def test_aobo(settings: dict[str, Any], case: str, batch: int | None) -> None:
    """Steps on g_t while |g_y| > delta, at most `cap`; a loop that ends above delta is counted. Q
    steps in v from the last one, then one in x."""
    if case == "held":  # a box keeps the slope from falling: the loop ends at its cap
        settings = {"cap": 4} | settings
    task = on.CASES[case]()
    had = {"delta": 0.1, "Q": 5, "cap": 1000} | settings

    def by_hand(draws: on.Draws) -> on.Rounds:
        x, y, v, capped = at.X0, at.Y0, zero(at.Q), 0
        for k in range(3):
            xi, zeta = draws(k).f(batch), draws(k).g(batch)
            taken = 0
            while float(on.g_y(x, y, zeta).norm()) > had["delta"]:
                if taken == had["cap"]:
                    capped += 1
                    break
                y = at.in_y(task, y - 0.5 * on.g_y(x, y, zeta))
                taken += 1
            for _ in range(had["Q"]):
                v = v - 0.4 * (on.g_yy(x, y, zeta) @ v - on.f_y(x, y, xi))
            slope = hypergradient(x, y, v, xi, zeta)
            x = at.in_x(task, x - 0.05 * slope)
            seen = {"hypergrad_sq": slope @ slope, "capped": capped, "inner_y": taken}
            yield {"x": x, "y": y, "v": v, **seen}

    method = aobo(0.5, 0.05, 0.4, **settings, batch=batch)
    end = on.assert_same_rounds(task, method, by_hand)
    counts = {"grad_f": 3, "hvp_g": 3 * had["Q"], "jvp_g": 3}
    assert {name: end.calls[name] for name in counts} == counts


@pytest.mark.parametrize(
    ("delta", "cap", "y", "steps", "capped"),
    [(1.0, 9, 1.0, 0, 0), (0.25, 9, 0.25, 2, 0), (0.25, 2, 0.25, 2, 0), (0.25, 1, 0.5, 1, 1)],
)
def test_the_loop_of_aobo_goes_on_while_the_slope_is_above_delta(
    delta: float, cap: int, y: float, steps: int, capped: int
) -> None:
    """y / 2 a step from 1, whose slope is y: both exact in binary. k steps take k + 1 gradients."""
    method = aobo(0.5, 0.1, 0.1, delta=delta, cap=cap)

    def by_hand(draws: on.Draws) -> on.Rounds:
        yield {"y": torch.tensor([y]), "inner_y": steps, "capped": capped}

    end = on.assert_same_rounds(on.line(), method, by_hand, steps=1, rtol=0)
    assert end.calls["grad_g"] == steps + 1


@PLACES
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"eta": 0.3},
        {"eta": 0.6, "decay": 1 / 3},  # theorem 2.6
        {"eta": 1.0, "decay": 0.2, "radius": 0.3},
        {"eta": 0.0, "radius": 0.1},
    ],
)
def test_sogd(settings: dict[str, Any], case: str, batch: int | None) -> None:
    """Algorithm 1 of Nazari et al. (2025) with v for the negative of theirs: d_1 = D_1 and
    d_t = D_t(z_t) + (1 - eta_t) (d_{t-1} - D_t(z_{t-1})), both D_t of round t's samples, for
    D = (g_y, g_yy v - f_y, f_x - g_xy v) and z = (x, y, v); then all three move at once, with
    steps that fall as t^-decay and eta_t = eta t^{-2 decay}, and v is kept in a ball."""
    task = on.CASES[case]()
    had = {"eta": 0.9, "decay": 0.0, "radius": None} | settings

    def by_hand(draws: on.Draws) -> on.Rounds:
        x, y, v = at.X0, at.Y0, zero(at.Q)
        d: Any = None
        before: Any = None
        for t in (1, 2, 3, 4):
            xi, zeta = draws(t - 1).f(batch), draws(t - 1).g(batch)

            def D(x: Tensor, y: Tensor, v: Tensor, xi: Any = xi, zeta: Any = zeta) -> list[Tensor]:
                d_v = on.g_yy(x, y, zeta) @ v - on.f_y(x, y, xi)
                return [on.g_y(x, y, zeta), d_v, hypergradient(x, y, v, xi, zeta)]

            now = D(x, y, v)
            if t == 1:
                d = now
            else:
                eta_t = had["eta"] / t ** (2 * had["decay"])
                then = D(*before)
                d = [now[i] + (1 - eta_t) * (d[i] - then[i]) for i in range(3)]
            before = (x, y, v)
            fall = 1 / t ** had["decay"]
            y = at.in_y(task, y - 0.3 * fall * d[0])
            v = v - 0.4 * fall * d[1]
            if had["radius"] is not None and v.norm() > had["radius"]:
                v = v / v.norm() * had["radius"]
            x = at.in_x(task, x - 0.05 * fall * d[2])
            yield {"x": x, "y": y, "v": v, "hypergrad_sq": d[2] @ d[2]}

    method = sogd(0.3, 0.05, 0.4, **settings, batch=batch)
    end = on.assert_same_rounds(task, method, by_hand, steps=4)
    counts = {"grad_f": 8, "grad_g": 8, "hvp_g": 8, "jvp_g": 8}
    assert {name: end.calls[name] for name in counts} == counts
    if case == "free" and had["radius"] == 0.3:  # the ball was active
        assert float(end.state.v.norm()) == pytest.approx(0.3, rel=1e-12)


def test_the_first_round_of_sogd_is_of_no_memory() -> None:
    """Even where the directions of the first state are not those of its point."""
    task, method = on.problem(), sogd(0.3, 0.05, 0.4, eta=0.1)

    def spoilt(x: Tensor, y: Tensor) -> Any:
        state = method.init(x, y)
        return state._replace(directions=tuple(d + 1 for d in state.directions))

    plain, other = (
        on.assert_same_rounds(task, m, on.unheld, steps=1).state
        for m in (method, method._replace(init=spoilt))
    )
    assert torch.equal(plain.x, other.x)


def test_by_default_all_methods_ask_for_all_the_data() -> None:
    task = on.problem()
    for made in (
        oagd(0.3, 0.05),
        sobow(0.3, 0.05),
        fsobo(0.3, 0.05, 0.4),
        aobo(0.3, 0.05, 0.4),
        sogd(0.3, 0.05, 0.4),
    ):
        end = on.assert_same_rounds(task, made, on.unheld, steps=1)
        assert end.samples["grad_f"] == at.ROWS * end.calls["grad_f"]
        assert end.samples["grad_g"] == at.ROWS * end.calls["grad_g"]


def saddle(bend: float) -> Task:
    """g = (y_1^2 + bend y_2^2) / 2 - x (y_1 + y_2) and f = 2 y_1 + y_2 + x^2 / 2, in R and R^2."""
    curvature = torch.tensor([1.0, bend], dtype=torch.float64)

    def upper(x: Tensor, y: Tensor, d: Any) -> Tensor:
        return 2 * y[0] + y[1] + 0.5 * x.square().sum()

    def lower(x: Tensor, y: Tensor, d: Any) -> Tensor:
        return 0.5 * (curvature * y.square()).sum() - x[0] * y.sum()

    return Task(
        upper=upper,
        lower=lower,
        init=lambda rng: (torch.ones(1).double(), torch.zeros(2).double()),
        evaluate=lambda x, y, step: {"loss": upper(x, y, None)},
        metric="loss",
    )


@pytest.mark.parametrize(
    ("bend", "truncated", "v", "rounds"),
    [
        (0.5, False, [2.0, 2.0], 0),  # solved in two iterations: [1, 1 / bend] * f_y
        (0.5, True, [2.0, 2.0], 0),
        (-0.5, False, [2.0, -2.0], 1),  # a solution still, which no minimum has
        (-0.5, True, [2 * 10 / 7, 10 / 7], 1),  # after one iteration: 5 / (4 + bend) f_y
        (-9.0, True, [0.0, 0.0], 1),  # the first direction already has negative curvature
    ],
)
def test_sobow_tells_of_negative_curvature_and_may_stop_there(
    bend: float, truncated: bool, v: list[float], rounds: int
) -> None:
    method = sobow(0.1, 0.1, Q=2, truncated=truncated)
    end = on.assert_same_rounds(saddle(bend), method, on.unheld, steps=1)
    torch.testing.assert_close(end.state.v, torch.tensor(v).double())
    assert float(end.info["indefinite"]) == rounds
    assert end.calls["hvp_g"] == 3


@pytest.mark.parametrize("method", [aobo(0.1, 0.1, 0.1, cap=50), af2obo(0.1, 0.1, cap=50)])
def test_a_loop_ends_where_its_gradient_is_no_number(method: Algorithm) -> None:
    """No further step would mend it: at most two gradients of each of two loops, and not 50."""
    task = replace(at.problem(), lower=lambda x, y, i: torch.nan * y.sum() + 0 * x.sum())
    o = Oracle(task)
    method.step(o, method.init(at.X0, at.Y0), Draw(task, 0, 0))
    assert o.calls["grad_g"] <= 6


def test_rounds_of_negative_curvature_are_counted() -> None:
    """g = -|y|^2 / 2 bends down in every round."""
    task = replace(at.problem(), lower=lambda x, y, i: -0.5 * y.square().sum() + x.sum() * y.sum())
    method = sobow(0.01, 0.01)
    state, told = method.init(at.X0, at.Y0), []
    for k in range(3):
        state, info = method.step(Oracle(task), state, Draw(task, 0, k))
        told.append(float(info["indefinite"]))
    assert told == [1.0, 2.0, 3.0]
