"""Online bilevel methods and tasks: hypergradients, schedules, windows, regret, variations."""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from algorithms.online.f2obo import af2obo, f2obo, hypergradient, sf2obo
from algorithms.online.implicit import aobo, fsobo, oagd, sobow, sogd
from algorithms.online.obbo import obbo, sobbo
from bench import checkpoint
from bench.algorithm import Algorithm
from bench.oracle import Oracle
from bench.rng import Draw, generator
from bench.run import Standing, advance, first, run, tallied
from bench.settings import BadSetting
from bench.task import Context, Task
from tasks.data.images import Images
from tasks.online import Solved, measured
from tasks.online_imbalance import Network, Round, online_imbalance
from tasks.online_newsgroups import online_newsgroups
from tasks.online_oscillation import online_oscillation
from tasks.online_quadratic import online_quadratic
from tasks.quadratic import quadratic

CONTEXT = Context(dtype=torch.float64)
DIGITS = Images("digits", train=600, val=300, val2=1, test=200)


def some_x(size: int = 3, name: str = "x") -> Tensor:
    return torch.randn(size, generator=generator(name), dtype=torch.float64)


def steps(task: Task, algorithm: Algorithm, count: int, seed: int = 0) -> Standing:
    standing = first(task, algorithm, seed)
    with torch.no_grad():
        for _ in range(count):
            standing = advance(task, algorithm, seed, tallied(task, standing))
    return standing


def constants(task: Task) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A, B, c and the curvature of f."""
    assert task.optimum is not None
    return task.optimum["A"], task.optimum["B"], task.optimum["c"], task.optimum["curvature"]


def exact(task: Task, x: Tensor, step: int) -> Tensor:
    """The hypergradient of round step + 1, by autograd through the solved lower level."""
    d = Draw(task, 0, step).f()
    A, B, c, curvature = constants(task)
    x = x.clone().requires_grad_()
    y = torch.linalg.solve(A, B @ x) + d.lower
    value = 0.5 * (y - d.upper - c).square().sum() + 0.5 * curvature * x.square().sum()
    return torch.autograd.grad(value, x)[0]


# first order


@pytest.mark.parametrize("name", ["f2obo", "af2obo", "sf2obo"])
def test_the_f2obo_family_takes_no_second_derivative(name: str) -> None:
    made = {"f2obo": f2obo, "af2obo": af2obo, "sf2obo": sf2obo}[name](0.5, 0.01)
    done = steps(online_quadratic(CONTEXT), made, 3)
    assert made.first_order
    assert not {"hvp_g", "jvp_g"} & set(done.calls)


def test_the_oracle_of_a_first_order_method_refuses_products() -> None:
    task = online_quadratic(CONTEXT)
    liar = obbo(0.5, 0.01)._replace(first_order=True)
    with pytest.raises(TypeError, match="promises first order"):
        steps(task, liar, 1)
    x, y = task.init(generator())
    for ask in ("products", "g_yy", "g_xy", "linearised_g_y"):
        with pytest.raises(TypeError, match="promises first order"):
            getattr(Oracle(task, first_order=True), ask)(x, y, Draw(task, 0, 0).g())


def test_the_error_of_equation_6_falls_as_one_over_lambda() -> None:
    """Lemma B.2, (13), at the exact argmin of f + lambda g; rounding, lambda 1e-16, is at most
    1e-10 here, and the error 1e-6 at least, so the slope is -1 to the next order, 1 / lambda."""
    task = online_quadratic(CONTEXT, drift="rotation")
    A, B, c, _ = constants(task)
    x, o, d = some_x(), Oracle(task), Draw(task, 0, 6).f()
    z = torch.linalg.solve(A, B @ x) + d.lower
    lams, errors = [10.0**k for k in range(2, 7)], []
    for lam in lams:
        left = torch.eye(len(A)).double() + lam * A
        y = torch.linalg.solve(left, d.upper + c + lam * (A @ d.lower + B @ x))
        found = hypergradient(o, x, y, z, d, d, lam)
        errors.append(float((found - exact(task, x, 6)).norm()))
    slopes = [(math.log(b) - math.log(a)) / math.log(10) for a, b in pairwise(errors)]
    assert slopes == pytest.approx([-1.0] * 4, abs=0.05)
    assert slopes[1:] == pytest.approx([-1.0] * 3, abs=0.005)


# hypergradients of all methods

TINY = 1e-12  # an outer step that does not move x
SETTLED: dict[str, Algorithm] = {
    "f2obo": f2obo(0.9, TINY, lam=1e6, tau=0.0, K=5),
    "f2obo_sl": f2obo(0.9, TINY, lam=1e6, tau=0.0, K=1),
    "af2obo": af2obo(0.9, TINY, lam=1e6, tau=0.0, delta_y=1e-6, delta_z=1e-12),
    "sf2obo": sf2obo(0.9, TINY, lam=1e6, tau=0.0, K=5),
    "oagd": oagd(0.9, TINY, K=2, Q=80, eta=0.9, window=2),
    "sobow": sobow(0.9, TINY, Q=5, window=3),
    "fsobo": fsobo(0.9, TINY, 0.9),
    "aobo": aobo(0.9, TINY, 0.9, delta=1e-10, Q=5),
    "sogd": sogd(0.9, TINY, 0.9),
    "obbo": obbo(0.9, TINY, K=60),
    "sobbo": sobbo(0.9, TINY, K=60, window=3),
}


@pytest.mark.parametrize("name", SETTLED)
def test_where_nothing_moves_all_estimates_become_the_hypergradient(name: str) -> None:
    """f - lambda methods to 1 / lambda; 120 rounds at rate 1 - .9 / 4 leave 1e-13."""
    task = online_quadratic(CONTEXT, drift="none")
    begin = first(task, SETTLED[name], 0)
    begin = begin._replace(state=begin.state._replace(x=some_x()))
    with torch.no_grad():
        for _ in range(120):
            begin = advance(task, SETTLED[name], 0, begin)
    truth = exact(task, some_x(), 0).square().sum()
    torch.testing.assert_close(begin.info["hypergrad_sq"], truth, rtol=1e-5, atol=0)


# schedules, windows, tolerances


def test_the_constant_schedule_of_sf2obo_is_f2obo() -> None:
    task = online_quadratic(CONTEXT)
    a, b = (steps(task, method(0.5, 0.01, K=3), 7).state for method in (f2obo, sf2obo))
    for one, other in zip(a, b, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("step", [0, 9, 99])
def test_the_schedule_of_theorem_5_1(step: int) -> None:
    """K_t, the batches and lambda_t at round t, from what the oracle counts and the step says."""
    task = online_quadratic(CONTEXT, noise=0.3)
    algorithm = sf2obo(0.5, 0.01, lam=3.0, tau=1 / 6, K=16, batch=2, growing=True, B1=2 / 3, B2=0.5)
    t, o = step + 1, Oracle(task)
    _, info = algorithm.step(o, first(task, algorithm, 0).state, Draw(task, 0, step))
    inner = max(1, math.ceil(16 * math.log(t)))
    small, large = math.ceil(2 * t**0.5), math.ceil(2 * t ** (2 / 3))
    assert o.calls == {"grad_g": 2 * inner + 2, "grad_f": inner + 1, "project": 1}
    assert o.samples == {
        "grad_g": 2 * inner * small + 2 * large,
        "grad_f": inner * small + large,
    }
    assert float(info["lam"]) == pytest.approx(3 * t ** (1 / 6), rel=1e-15)


def test_the_step_of_y_is_beta_over_lambda() -> None:
    """One inner step from y_1 = 0 at round t = 4 is the printed one."""
    task = online_quadratic(CONTEXT)
    algorithm = f2obo(0.5, 1.0, beta=0.2, lam=3.0, tau=0.5, K=1, outer_decay=0.5)
    state, o, draw = first(task, algorithm, 0).state, Oracle(task), Draw(task, 0, 3)
    d, x, y = draw.f(), some_x(), torch.ones(5).double()
    new, _ = algorithm.step(o, state._replace(x=x, y=y, z=2 * y), draw)
    lam = 3.0 * 2
    expected_z = 2 * y - 0.5 * o.g_y(x, 2 * y, d)
    expected_y = y - 0.2 / lam * (o.f_y(x, y, d) + lam * o.g_y(x, y, d))
    torch.testing.assert_close(new.z, expected_z, rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(new.y, expected_y, rtol=1e-14, atol=1e-14)
    slope = hypergradient(o, x, expected_y, expected_z, d, d, lam)
    torch.testing.assert_close(new.x, o.project(x - 0.5 * slope), rtol=1e-12, atol=1e-12)


def test_adaptive_loops_end_at_their_tolerance_or_are_reported() -> None:
    task, draw = online_quadratic(CONTEXT), Draw(online_quadratic(CONTEXT), 0, 0)
    d, o = draw.f(), Oracle(task)
    made = af2obo(0.5, 0.01, delta_y=1e-3, delta_z=1e-5)
    start = first(task, made, 0).state
    new, info = made.step(Oracle(task), start, draw)
    assert float(o.g_y(start.x, new.z, d).norm()) <= 1e-5
    penalised = o.f_y(start.x, new.y, d) + 5.0 * o.g_y(start.x, new.y, d)
    assert float(penalised.norm()) <= 1e-3
    assert float(info["capped"]) == 0
    assert float(info["inner_z"]) > 1
    cut = af2obo(0.5, 0.01, delta_y=1e-3, delta_z=1e-5, cap=2)
    assert float(steps(task, cut, 3).info["capped"]) == 6  # both loops of all three rounds
    assert float(steps(task, aobo(0.5, 0.01, 0.5, delta=1e-9, cap=2), 3).info["capped"]) == 3


def test_a_window_of_one_is_no_window() -> None:
    """SOBBO without noise is then OBBO; SOBOW's weights do not matter."""
    task = online_quadratic(CONTEXT)
    a, b = steps(task, obbo(0.5, 0.01), 5).state, steps(task, sobbo(0.5, 0.01, window=1), 5).state
    assert torch.equal(a.x, b.x)
    c, d = (steps(task, sobow(0.5, 0.01, decay=w), 5).state for w in (0.1, 0.9))
    assert torch.equal(c.x, d.x)


def moves(task: Task, algorithm: Algorithm, count: int) -> list[Tensor]:
    """What each round subtracts from x."""
    path = [steps(task, algorithm, n).state.x for n in range(count + 1)]
    return [a - b for a, b in pairwise(path)]


def test_windows_average_the_hypergradients_of_their_own_rounds() -> None:
    """With a tiny step x stays, so that the windowless method's moves are the hypergradients."""
    task = online_quadratic(CONTEXT, period=7.0)
    plain = moves(task, obbo(0.5, 1e-9), 6)
    averaged = moves(task, sobbo(0.5, 1e-9, window=3), 6)
    for t in range(6):
        expected = sum(plain[max(0, t - 2) : t + 1], torch.zeros(3).double()) / 3
        torch.testing.assert_close(averaged[t], expected, rtol=1e-4, atol=1e-14)
    plain = moves(task, sobow(0.5, 1e-9), 6)
    averaged = moves(task, sobow(0.5, 1e-9, window=3, decay=0.5), 6)
    for t in range(6):
        kept = [(0.5**i) * plain[t - i] for i in range(3) if t >= i]
        expected = sum(kept, torch.zeros(3).double()) / 1.75
        torch.testing.assert_close(averaged[t], expected, rtol=1e-4, atol=1e-14)


def test_oagd_evaluates_past_losses_at_the_present_point() -> None:
    task = online_quadratic(CONTEXT, period=7.0, noise=0.5)
    algorithm = oagd(0.9, 1.0, K=60, Q=400, eta=0.9, window=2, decay=0.5, batch=4)
    o, draw, x = Oracle(task), Draw(task, 3, 5), some_x()
    state = first(task, algorithm, 3).state._replace(x=x)
    new, _ = algorithm.step(o, state, draw)
    total = torch.zeros(3).double()
    for i in range(2):
        past = Draw(task, 3, 5 - i)
        f_x, f_y = o.grad_f(x, new.y, past.f(4))
        A, B, *_ = constants(task)
        total += 0.5**i * (f_x + B.T @ torch.linalg.solve(A, f_y))
    torch.testing.assert_close(new.x, o.project(x - total / 1.5), rtol=1e-9, atol=1e-9)


def test_the_momentum_of_sogd_corrects_for_the_moved_point() -> None:
    """d_t = D_t(now) + (1 - eta)(d_{t-1} - D_t(before)): where losses stay and there is no noise,
    that is D(now) whatever eta; with losses that move it is not."""
    still, moving = (online_quadratic(CONTEXT, drift=d) for d in ("none", "rotation"))
    a, b = (steps(still, sogd(0.5, 0.01, 0.5, eta=e), 6).state.x for e in (0.1, 1.0))
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    a, b = (steps(moving, sogd(0.5, 0.01, 0.5, eta=e), 6).state.x for e in (0.1, 1.0))
    assert not torch.allclose(a, b)
    short = steps(still, sogd(0.5, 0.01, 0.5, radius=1e-3), 6).state
    assert float(short.v.norm()) <= 1e-3 * (1 + 1e-12)


# tallies


def test_the_runner_sums_every_round_before_its_step(tmp_path: Path) -> None:
    task, algorithm = online_quadratic(CONTEXT), f2obo(0.5, 0.05)
    rows: list[dict[str, Any]] = []
    kept: list[Standing] = []
    budget: dict[str, Any] = {"seed": 0, "steps": 9}
    run(task, algorithm, **budget, every=1, measured=rows.append)
    regret = [sum(r["mapping_sq"] for r in rows[:t]) for t in range(10)]
    assert [r["regret"] for r in rows] == pytest.approx(regret, rel=1e-12)
    seldom: list[dict[str, Any]] = []
    run(task, algorithm, **budget, every=4, measured=seldom.append, paused=kept.append)
    assert [r["regret"] for r in seldom] == [rows[t]["regret"] for t in (0, 4, 8, 9)]
    checkpoint.save(tmp_path / "c.pt", "n", kept[4])
    going_on = checkpoint.load(tmp_path / "c.pt", "n", first(task, algorithm, 0))
    again: list[dict[str, Any]] = []
    run(task, algorithm, **budget, every=4, start=going_on, measured=again.append)
    assert [r["regret"] for r in again] == [r["regret"] for r in seldom[2:]]


@pytest.mark.parametrize("drift", ["none", "oscillation", "rotation"])
def test_regret_and_variations_of_the_quadratic_are_those_of_their_definitions(drift: Any) -> None:
    """The supremum of an affine function's modulus over a box is at a corner."""
    task = online_quadratic(CONTEXT, drift=drift, radius=2.0, gamma=0.3, fading=0.5, period=9.0)
    assert task.tally is not None
    A, B, *_ = constants(task)
    M, x, y = torch.linalg.solve(A, B), 1.5 * some_x(), some_x(5, "y")

    def F(at: Tensor, step: int) -> Tensor:
        d = Draw(task, 0, step).f()
        solved = M @ at + d.lower
        torch.testing.assert_close(
            Oracle(task).g_y(at, solved, d), torch.zeros(5).double(), rtol=0, atol=1e-13
        )
        return task.upper(at, solved, d)

    for step in (0, 1, 6):
        adds = task.tally.adds(x, y, step)
        slope = exact(task, x, step)
        mapping = (x - (x - 0.3 * slope).clamp(-2, 2)) / 0.3
        torch.testing.assert_close(adds["regret"], mapping.square().sum(), rtol=1e-12, atol=0)
        d = Draw(task, 0, step).f()
        torch.testing.assert_close(adds["cumulative_loss"], task.upper(x, y, d))
        if step == 0:
            assert float(adds["V_T"]) == float(adds["H_2T"]) == 0
            continue
        last = Draw(task, 0, step - 1).f()
        torch.testing.assert_close(adds["H_2T"], (d.lower - last.lower).square().sum())
        corners = [torch.tensor(v).double() for v in product((-2.0, 2.0), repeat=3)]
        jumps = torch.stack([(F(v, step) - F(v, step - 1)).abs() for v in corners])
        torch.testing.assert_close(adds["V_T"], jumps.max(), rtol=1e-10, atol=1e-12)
    assert float(task.evaluate(x, y, 6)["objective"]) == pytest.approx(float(F(x, 6)), rel=1e-12)


def test_fading_rotations_move_as_a_power_of_the_round() -> None:
    """|w_t - w_{t-1}| = 2 sin(angle / 2) r with angles near 2 pi / period t^-fading."""
    task = online_quadratic(CONTEXT, period=50.0, fading=0.75, lower_drift=0.5)
    for t in (50, 400):
        a, b = (Draw(task, 0, t - 1 - i).f().lower for i in (0, 1))
        assert float((a - b).norm()) == pytest.approx(0.5 * 2 * math.pi / 50 * t**-0.75, rel=1 / t)
    with pytest.raises(BadSetting, match=r"task\.q=1"):
        online_quadratic(CONTEXT, q=1)


def test_the_online_quadratic_without_drift_is_the_quadratic() -> None:
    still, base = online_quadratic(CONTEXT, drift="none", noise=0.3), quadratic(CONTEXT, noise=0.3)
    x, y, d = some_x(), some_x(5, "y"), Draw(still, 0, 4).g(8)
    a, b = Oracle(still), Oracle(base)
    for one, other in zip(a.grad_g(x, y, d), b.grad_g(x, y, d.rows), strict=True):
        assert torch.equal(one, other)
    for one, other in zip(a.grad_f(x, y, d), b.grad_f(x, y, d.rows), strict=True):
        assert torch.equal(one, other)


def test_a_round_measured_by_solving_it_is_the_closed_form() -> None:
    """Gradient descent to 1e-12 and 5 conjugate gradients in R^5; V_T at x_t is a lower bound."""
    task = online_quadratic(CONTEXT, period=20.0, gamma=0.3, radius=2.0)
    assert task.tally is not None
    x, y = 1.5 * some_x(), some_x(5, "y")
    how = Solved(every=3, tolerance=1e-12, steps=1000, lr=0.9, system=6)
    found = measured(task, x, y, 6, 0.3, how)
    now, after = task.tally.adds(x, y, 6), task.tally.adds(x, y, 7)
    torch.testing.assert_close(found["regret"], 3 * now["regret"], rtol=1e-9, atol=0)
    torch.testing.assert_close(found["H_2T"], 3 * after["H_2T"], rtol=1e-9, atol=0)
    assert 0 < float(found["V_T"]) <= 3 * float(after["V_T"])
    skipped = measured(task, x, y, 7, 0.3, how)
    assert set(skipped) == set(found)
    assert all(float(value) == 0 for value in skipped.values())


# the oscillation


def test_the_oscillation_is_that_of_section_4_2() -> None:
    """V_T = 0, H_{2,T} = 4 T - 4, the hypergradient by central differences of F."""
    task = online_oscillation(CONTEXT, c=0.7, mu=2.0, gamma=0.2)
    done = steps(task, obbo(0.3, 1e-12), 12)
    assert done.totals["V_T"] == 0
    assert done.totals["H_2T"] == 4 * 12 - 4
    h, x = 1e-5, torch.tensor([0.5]).double()

    def F(at: Tensor) -> Tensor:
        return task.evaluate(at, at, 0)["objective"]

    slope = (F(x + h) - F(x - h)) / (2 * h)
    assert done.totals["regret"] == pytest.approx(12 * float(slope) ** 2, rel=1e-8)
    for step in (0, 1, 5):
        s = (-1.0) ** (step + 1)
        zero = Oracle(task).g_y(x, s * x, Draw(task, 0, step).g())
        assert float(zero) == 0
        assert float(F(x)) == pytest.approx(float(task.upper(x, s * x, s)), rel=1e-15)
    ends = torch.tensor([1.0]).double()
    assert float(task.evaluate(ends, ends, 0)["mapping_sq"]) == 0


@pytest.mark.parametrize(("inner_lr", "K"), [(0.5, 1), (0.5, 5), (0.1, 5), (0.1, 20)])
def test_where_warm_starts_lag_the_hypergradients_are_those_of_the_note(
    inner_lr: float, K: int
) -> None:
    """conf/paper/f2obo/example42.yaml: near x = 0, OBBO's is the true one times q (1 - r), F2OBO's
    with beta = alpha and lambda -> infinity the true one times
    q - 2 alpha K (1 - alpha)^(K-1) / (1 + r)^2. x = 1e-3: cubic terms are 1e-6 of the linear."""
    x = 1e-3
    task = online_oscillation(CONTEXT, start=x)
    r = (1 - inner_lr) ** K
    q, truth = (1 - r) / (1 + r), -2 * x
    done = steps(task, obbo(inner_lr, 1e-300, K), 400)
    assert float(done.info["hypergrad_sq"]) ** 0.5 == pytest.approx(-truth * q * (1 - r), rel=1e-5)
    factor = q - 2 * inner_lr * K * (1 - inner_lr) ** (K - 1) / (1 + r) ** 2
    assert (factor > 0) == ((1 - r**2) / 2 > inner_lr * K * (1 - inner_lr) ** (K - 1))
    algorithm = f2obo(inner_lr, 1e-300, lam=1e7, tau=0.0, K=K)
    done = steps(task, algorithm, 400)
    assert float(done.info["hypergrad_sq"]) ** 0.5 == pytest.approx(abs(truth * factor), rel=1e-4)
    moved = steps(task, f2obo(inner_lr, 1e-3, lam=1e7, tau=0.0, K=K), 800).state.x
    assert (float(moved) > x) == (factor > 0)


# imbalanced images


@pytest.fixture(scope="module")
def imbalance() -> Task:
    return online_imbalance(
        CONTEXT, DIGITS, Solved(every=2, tolerance=1e-2, steps=5), phase=2, channels=4, round=16
    )


def whole(**settings: Any) -> Task:
    return online_imbalance(CONTEXT, DIGITS, Solved(), channels=2, round=None, **settings)


def test_classes_keep_their_fractions_phase_by_phase() -> None:
    task, full = whole(phase=3), whole(shares=(1.0,))
    everything = torch.bincount(Draw(full, 0, 0).g().labels)
    for step, mu in [(0, 0.6), (2, 0.6), (3, 0.7), (8, 0.8), (9, 0.9), (100, 0.9)]:
        for side, total in (("g", everything), ("f", torch.bincount(Draw(full, 0, 0).f().labels))):
            d: Round = getattr(Draw(task, 0, step), side)()
            counts = torch.bincount(d.labels)
            assert counts.tolist() == [math.ceil(mu**i * int(n)) for i, n in enumerate(total)]
            torch.testing.assert_close(d.weights, counts.sum() / counts.double())


def test_a_round_is_drawn_once_and_is_another_the_next_time(imbalance: Task) -> None:
    draw = Draw(imbalance, 0, 1)
    a, b, part = draw.g(), draw.g(), draw.g(4)
    assert torch.equal(a.images, b.images)
    assert len(a.labels) == 16
    assert all(any(torch.equal(image, other) for other in a.images) for image in part.images)
    assert not torch.equal(a.images, Draw(imbalance, 0, 2).g().images)
    assert not torch.equal(a.labels, draw.f().labels)


def test_the_losses_are_the_printed_ones(imbalance: Task) -> None:
    """A linear network by hand: convolutions that do nothing are not needed, only its logits."""
    x = torch.stack([torch.linspace(0.5, 1.5, 10), torch.linspace(-1, 1, 10)]).double()
    _, y = imbalance.init(generator("start"))
    y = y + 0.1 * torch.randn(y.shape, generator=generator("y"), dtype=torch.float64)
    d = Draw(imbalance, 0, 0).g()
    z = Network(4, 8).logits(y, d.images)
    rows = torch.arange(16)
    adjusted = x[0] * z + x[1]
    own = adjusted[rows, d.labels].exp() / adjusted.exp().sum(1)
    assert imbalance.lower is not None
    torch.testing.assert_close(imbalance.lower(x, y, d), -own.log().mean())
    plain = z[rows, d.labels].exp() / z.exp().sum(1)
    expected = (-d.weights[d.labels] * plain.log()).mean()
    torch.testing.assert_close(imbalance.upper(x, y, d), expected)


def test_the_network_is_torchs_in_training_and_normalised_by_others_in_testing() -> None:
    from torch import nn

    net = Network(3, 16)
    layers: list[nn.Module] = []
    for before in (1, 3, 3, 3):
        layers += [
            nn.Conv2d(before, 3, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.BatchNorm2d(3),
        ]
    module = nn.Sequential(*layers, nn.Flatten(), nn.Linear(3, 10)).double()
    y = torch.cat([p.detach().flatten() for p in module.parameters()])
    y = y + 0.1 * torch.randn(y.shape, generator=generator("y"), dtype=torch.float64)
    nn.utils.vector_to_parameters(y, module.parameters())
    images = torch.randn(6, 1, 16, 16, generator=generator("images"), dtype=torch.float64)
    torch.testing.assert_close(net.logits(y, images), module(images), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(
        net.logits(y, images, images), module(images), rtol=1e-10, atol=1e-10
    )
    one = net.logits(y, images[:1], images)  # an image alone is told as among the others
    torch.testing.assert_close(one, module(images)[:1], rtol=1e-10, atol=1e-10)
    assert len(net.start(generator())) == len(y)


def test_imbalance_is_tallied_by_phase_and_on_the_measured_rounds(imbalance: Task) -> None:
    algorithm = fsobo(0.1, 0.001, 0.1)
    rows: list[dict[str, Any]] = []
    run(imbalance, algorithm, seed=0, steps=8, every=1, measured=rows.append)
    for i in range(4):  # the accuracy before the last round of the phase
        name = f"accuracy_phase_{i + 1}"
        assert rows[2 * i + 1][name] == 0
        assert rows[-1][name] == rows[2 * i + 2][name] == rows[2 * i + 1]["balanced_accuracy"]
    regret = [row["regret"] for row in rows]
    assert regret[0] == 0 < regret[1] == regret[2] < regret[3]
    assert rows[-1]["cumulative_loss"] == pytest.approx(
        sum(row["validation_loss"] for row in rows[:-1]), rel=1e-12
    )


ALL: dict[str, Callable[[], Algorithm]] = {
    "f2obo": lambda: f2obo(0.1, 0.001, K=2),
    "af2obo": lambda: af2obo(0.1, 0.001, delta_y=0.5, delta_z=0.1, cap=2),
    "sobow": lambda: sobow(0.1, 0.001, Q=2, window=2),
    "obbo": lambda: obbo(0.1, 0.001, K=2),
    "aobo": lambda: aobo(0.1, 0.001, 0.1, cap=2, Q=2),
    "oagd": lambda: oagd(0.1, 0.001, K=2, Q=2, window=2),
    "sogd": lambda: sogd(0.1, 0.001, 0.1),
}


@pytest.mark.parametrize("name", ALL)
def test_every_method_steps_on_images(name: str, imbalance: Task) -> None:
    done = steps(replace(imbalance, tally=None), ALL[name](), 2)
    assert done.state.x.isfinite().all()
    assert done.state.y.isfinite().all()
    assert not torch.equal(done.state.x, imbalance.init(generator())[0])


# documents


def of_digits(**settings: Any) -> Task:
    return online_newsgroups(CONTEXT, Solved(), source="digits", **{"round": 30} | settings)


def at_documents(task: Task) -> tuple[Tensor, Tensor, Tensor]:
    """x, y and a direction in y."""
    shape = task.init(generator())[1].shape
    rng = generator("somewhere")
    x = 0.1 * torch.rand(shape[0], generator=rng, dtype=torch.float64)
    y, v = (torch.randn(shape, generator=rng, dtype=torch.float64) for _ in "yv")
    return x, y, v


@pytest.mark.parametrize("size", [None, 7])
def test_closed_forms_of_the_documents_are_autograds(size: int | None) -> None:
    """Both sides, all products, both fused steps; documents may be there twice; 1e-12: rounding."""
    task = of_digits()
    plain = replace(task, upper_derivatives=None, lower_derivatives=None)
    x, y, v = at_documents(task)

    def every(t: Task) -> list[Tensor]:
        o, draw = Oracle(t), Draw(t, 0, 3)
        xi, zeta = draw.f(size), draw.g(size)
        slope, products = o.linearised_g_y(x, y, zeta)
        fused = [
            o.descend_g(x, y, zeta, 0.3),
            o.descend_penalised(x, y, xi, zeta, 0.3, 7.0),
            y - 0.3 * (o.f_y(x, y, xi) + 7.0 * o.g_y(x, y, zeta)),
        ]
        found = [*o.grad_f(x, y, xi), *o.grad_g(x, y, zeta), slope, *products.both(v)]
        assert o.calls == {"grad_f": 3, "grad_g": 5, "hvp_g": 1, "jvp_g": 1}
        return [*found, *fused]

    closed, derived = every(task), every(plain)
    for a, b in zip(closed, derived, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(closed[-2], closed[-1], rtol=1e-12, atol=1e-12)


def test_a_fused_step_leaves_its_point_alone() -> None:
    task = of_digits()
    x, y, _ = at_documents(task)
    o, draw, copy = Oracle(task), Draw(task, 0, 0), y.clone()
    o.descend_g(x, y, draw.g(), 0.3)
    o.descend_penalised(x, y, draw.f(), draw.g(), 0.3, 7.0)
    alone = task.upper_derivatives
    assert alone is not None
    assert alone.descend is not None
    alone.descend(x, y, draw.f(), 0.3, None)
    assert torch.equal(y, copy)


def test_a_documents_words_are_those_of_its_rows() -> None:
    d = Draw(of_digits(), 0, 2).g()
    assert torch.equal(d.words, d.rows.columns.long().unique())
    dense = torch.zeros(30, 64).double()
    for i in range(30):
        a, b = d.rows.offsets[i], d.rows.offsets[i + 1]
        dense[i, d.rows.columns[a:b].long()] = d.rows.values[a:b]
    transposed = torch.zeros(len(d.words), 30).double()
    for j in range(len(d.words)):
        a, b = d.by_word.offsets[j], d.by_word.offsets[j + 1]
        transposed[j, d.by_word.columns[a:b].long()] = d.by_word.values[a:b]
    assert torch.equal(transposed, dense.T[d.words])


def test_words_are_weighted_as_scikit_learn_does() -> None:
    """TfidfVectorizer's default on the training set: ln((1 + n) / (1 + df)) + 1, unit length."""
    plain, weighted = (of_digits(round=None, features=f) for f in ("counts", "tfidf"))
    from sklearn.datasets import load_digits

    counts = torch.from_numpy(load_digits().data[: 1797 * 7 // 10])
    idf = ((1 + len(counts)) / (1 + (counts > 0).double().sum(0))).log() + 1
    a, b = (Draw(task, 0, 0).g() for task in (plain, weighted))
    dense = torch.zeros(2, len(a.labels), 64).double()
    for k, d in enumerate((a, b)):
        of = torch.repeat_interleave(torch.arange(len(d.labels)), d.rows.offsets.diff())
        dense[k][of, d.rows.columns.long()] = d.rows.values
    expected = torch.nn.functional.normalize(dense[0] * idf, dim=1)
    torch.testing.assert_close(dense[1], expected, rtol=1e-12, atol=1e-12)


def test_labels_turn_wrong_at_their_steps_and_stay_so() -> None:
    """Shares within four standard deviations of binomial counts of 628 labels."""
    task = of_digits(round=None, noise=(0.1, 0.3), at=(5, 9))
    truth = Draw(task, 0, 0).g().labels
    seen = {step: Draw(task, 0, step).g().labels != truth for step in (4, 5, 8, 9, 100)}
    assert not seen[4].any()
    assert torch.equal(seen[5], seen[8])
    assert torch.equal(seen[9], seen[100])
    assert (seen[9] | ~seen[5]).all()
    for step, share in ((5, 0.1), (9, 0.3)):
        deviation = (share * (1 - share) / len(truth)) ** 0.5
        assert float(seen[step].double().mean()) == pytest.approx(share, abs=4 * deviation)
    assert (Draw(task, 0, 9).f().labels != Draw(task, 0, 0).f().labels).any()
    clean = of_digits(round=None, noise=(0.1,), at=(5,), noisy="training")
    assert torch.equal(Draw(clean, 0, 9).f().labels, Draw(clean, 0, 0).f().labels)
    with pytest.raises(BadSetting, match=r"task\.at=\[5\]"):
        of_digits(at=(5,))
    with pytest.raises(BadSetting, match=r"task\.start=0\.5"):
        of_digits(start=0.5)


def test_a_round_of_documents_is_the_same_for_all_that_ask() -> None:
    task = of_digits()
    a, b = Draw(task, 0, 3), Draw(task, 0, 3)
    first_time = a.g()
    assert a.g() is first_time  # kept, as the inner steps ask again
    Draw(task, 0, 4).g()
    assert torch.equal(b.g().labels, first_time.labels)
    assert torch.equal(b.g().rows.values, first_time.rows.values)
    assert len(a.g(9).labels) == 9
    assert task.count(first_time) == 30


@pytest.mark.parametrize("name", ["sf2obo", "sobbo", "sogd"])
def test_methods_of_table_3_lower_the_loss_of_documents(name: str) -> None:
    made = {
        "sf2obo": lambda: sf2obo(0.5, 0.001),
        "sobbo": lambda: sobbo(0.5, 0.001, window=5),
        "sogd": lambda: sogd(2.0, 0.001, 0.1),
    }[name]()
    task = of_digits()
    begin, end = (steps(task, made, n) for n in (0, 40))
    losses = [task.evaluate(s.state.x, s.state.y, 0)["training_loss"] for s in (begin, end)]
    assert losses[1] < 0.8 * losses[0]
    assert ((end.state.x >= 0) & (end.state.x <= 0.1)).all()
