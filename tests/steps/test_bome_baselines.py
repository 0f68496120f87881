"""The first-order baselines of BOME's experiments by hand: BSG-1, BVFSM, descent in y alone."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from algorithms.bilevel.bsg1 import bsg1
from algorithms.bilevel.bvfsm import bvfsm
from algorithms.bilevel.upper_only import upper_only
from bench.core.draw import Draw
from bench.core.loop import advance, first
from bench.core.oracle import Oracle
from bench.core.settings import BadSetting
from bench.core.task import Batch, Context, InnerLoop, Task
from bench.numerics.descent import adam, gd
from tasks.toy import toy_coreset, toy_degenerate, toy_minimax
from tests.steps import problem as at
from tests.steps.following import ByHand, Values, assert_follows, partials


def begun(y: Tensor, batch: Batch) -> Tensor:
    """Where the inner loop begins if the task itself says so: the point depends on y and on the
    batch."""
    return 0.5 * y + batch.double().mean() / 640


def bsg1_by_hand(
    task: Task, batch: int | None, T: int, momentum: float, keep: bool, eps: float
) -> ByHand:
    """BOME's appendix and its released code: y by T steps, then d_x = f_x - (f_y.g_y)/|g_y|^2 g_x.

    The released code adds eps to |g_y|^2.
    """

    def steps(draws: Callable[[int], Draw]) -> Iterator[Values]:
        x, y, m, outer = at.X0, at.Y0, torch.zeros(at.Q).double(), at.Adam(0.1)
        for k in range(3):
            xi, zeta = draws(k).f(batch), draws(k).g(batch)
            y, m = task.inner.start(y, zeta), m if keep else 0 * m
            for _ in range(T):
                m = momentum * m + partials(at.lower, x, y, zeta)[1]
                y = at.in_y(task, y - 0.2 * m)
            (f_x, f_y), (g_x, g_y) = partials(at.upper, x, y, xi), partials(at.lower, x, y, zeta)
            d = f_x - (f_y @ g_y) / (g_y @ g_y + eps) * g_x
            x = at.in_x(task, outer(x, d))
            yield {"x": x, "y": y, "velocity": m, "info/hypergrad_sq": d @ d}

    return steps


@pytest.mark.parametrize("batch", [8, None])
@pytest.mark.parametrize("case", at.CASES)
@pytest.mark.parametrize(
    ("T", "momentum", "keep", "eps"),
    [(3, 0.0, False, 0.0), (2, 0.6, False, 0.05), (2, 0.6, True, 0.05)],
)
def test_bsg1(
    T: int, momentum: float, keep: bool, eps: float, case: str, batch: int | None
) -> None:
    """The inner velocity begins at zero in each step unless it is asked to be kept."""
    task = replace(at.CASES[case](), inner=InnerLoop(start=begun))
    kept: dict[str, Any] = {"keep_velocity": True} if keep else {}
    method = bsg1(adam(), 0.1, 0.2, T, momentum, eps=eps, batch=batch, **kept)
    assert_follows(task, method, bsg1_by_hand(task, batch, T, momentum, keep, eps))


def test_bsg1_unless_told_otherwise() -> None:
    """T = 10 plain inner steps on all the data, and nothing added to |g_y|^2."""
    task = at.problem()
    hand = bsg1_by_hand(task, None, 10, 0.0, False, 0.0)
    assert_follows(task, bsg1(adam(), 0.1, 0.2), hand)


def test_bsg1_takes_f_x_alone_where_g_y_is_zero() -> None:
    """At v = theta_1 = 1 the released degenerate problem has g_y = 0, g_v = -1, f_v = -2."""
    task, method = toy_degenerate(Context(dtype=torch.float64), "code"), bsg1(gd(), 0.1, 0.5)
    state = method.init(torch.tensor([1.0]).double(), torch.tensor([1.0, 3.0]).double())
    new, info = method.step(Oracle(task), state, Draw(task, 0, 0))
    assert new.x.tolist() == pytest.approx([1.2], rel=1e-15)
    assert float(info["hypergrad_sq"]) == 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"rate": 1.0},
            r"algorithm\.rate=1\.0: .*; write a rate above 1 or algorithm\.decay=power$",
        ),
        ({"rate": 0.5}, r"algorithm\.rate=0\.5: 1 / log\(rate \(k \+ 1\)\) must be positive"),
        (
            {"decay": "constant", "rate": 0.01, "horizon": 99},
            r"algorithm\.rate=0\.01: .*; write a rate above 0\.01$",
        ),
        ({"l2": 0.0, "eps": 0.0}, r"algorithm\.eps=0: .*; write eps or l2 above 0$"),
        ({"l2": 0.0, "eps": 0.0, "variant": "code"}, r"algorithm\.eps=0: "),
    ],
)
def test_bvfsm_refuses_what_divides_by_zero_or_turns_a_sign(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadSetting, match=message):
        bvfsm(gd(), 0.1, 0.1, 0.1, **settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"rate": 1.01},
        {"decay": "constant", "rate": 0.011, "horizon": 99},
        {"decay": "power", "rate": 0.5},
        {"eps": 0.0},
        {"l2": 0.0},
    ],
)
def test_bvfsm_takes_steps_with_what_it_accepts(settings: dict[str, Any]) -> None:
    """r_k is positive, and the barrier finite, from the first step on."""
    task = at.problem()
    method = bvfsm(gd(), 1e-3, 1e-3, 1e-3, T=2, **settings)
    with torch.no_grad():
        standing = advance(task, method, 0, first(task, method, 0))
    assert 0 < float(standing.info["decay"]) < math.inf
    assert standing.state.x.isfinite().all()
    assert standing.state.y.isfinite().all()


def regularised(decay: str, rate: float, horizon: int, k: int) -> float:
    """r_k of the released toys ("constant") and of its hyper-cleaning's "log" and "power2"."""
    if decay == "power":
        return 1 / (k + 1) ** rate
    return 1 / math.log(rate * ((horizon if decay == "constant" else k) + 1))


def bvfsm_by_hand(
    task: Task,
    batch: int | None,
    T: int,
    l2: float,
    log: float,
    variant: str,
    decay: str,
    rate: float,
    horizon: int,
    momentum: float,
    eps: float,
) -> ByHand:
    """The three problems of Liu et al. (2021, Algorithm 1), each differentiated as it is printed.

    z descends g(x, z) + l2 r |z|^2. y descends f(x, y) + barrier + l2 r |y|^2, and x takes a step
    on the same, where barrier = -log r ln(g(x, z) + l2 r |z|^2 - g(x, y) + eps). The released code
    adds the detached g(x, y) inside the logarithm.
    """

    def steps(draws: Callable[[int], Draw]) -> Iterator[Values]:
        x, y, z, outer = at.X0, at.Y0, at.Y0, at.Adam(0.1)
        for k in range(3):
            xi, zeta = draws(k).f(batch), draws(k).g(batch)
            r = regularised(decay, rate, horizon, k)

            def bound(x: Tensor, z: Tensor, _: Batch, r: float = r, rows: Batch = zeta) -> Tensor:
                return at.lower(x, z, rows) + l2 * r * (z @ z)

            m = torch.zeros(at.Q).double()
            for _ in range(T):
                m = momentum * m + partials(bound, x, z, None)[1]
                z = at.in_y(task, z - 0.1 * m)

            def whole(
                x: Tensor, y: Tensor, _: Batch, r: float = r, z: Tensor = z,
                xi: Batch = xi, zeta: Batch = zeta, bound: Any = bound,
            ) -> Tensor:  # fmt: skip
                g = at.lower(x, y, zeta)
                inside = bound(x, z, None) - g + (g.detach() if variant == "code" else 0.0) + eps
                assert inside > 0, "the logarithm is taken inside its domain"
                return at.upper(x, y, xi) - log * r * torch.log(inside) + l2 * r * (y @ y)

            m = torch.zeros(at.Q).double()
            for _ in range(T):
                m = momentum * m + partials(whole, x, y, None)[1]
                y = at.in_y(task, y - 0.05 * m)
            x = at.in_x(task, outer(x, partials(whole, x, y, None)[0]))
            yield {"x": x, "y": y, "z": z, "k": float(k + 1), "info/decay": r}

    return steps


BARRIERS: dict[str, dict[str, Any]] = {  # eps is large enough for the barrier's domain
    "paper": {"variant": "paper", "decay": "power", "l2": 0.6, "log": 0.2, "rate": 0.4},
    "heavy": {"variant": "paper", "decay": "log", "l2": 0.3, "log": 0.05, "rate": 2.5},
    "code": {"variant": "code", "decay": "constant", "l2": 0.2, "log": 0.3, "rate": 1.3},
    "code, log": {"variant": "code", "decay": "log", "l2": 0.1, "log": 0.2, "rate": 2.0},
}


@pytest.mark.parametrize("batch", [8, None])
@pytest.mark.parametrize("case", at.CASES)
@pytest.mark.parametrize("barrier", BARRIERS)
def test_bvfsm(barrier: str, case: str, batch: int | None) -> None:
    task = at.CASES[case]()
    settings = BARRIERS[barrier] | {"T": 2, "horizon": 7, "eps": 0.7}
    momentum = 0.5 if barrier == "heavy" else 0.0
    method = bvfsm(adam(), 0.1, 0.05, 0.1, inner_momentum=momentum, batch=batch, **settings)
    assert_follows(task, method, bvfsm_by_hand(task, batch, momentum=momentum, **settings))


def test_bvfsm_unless_told_otherwise() -> None:
    """The released toys' and hyper-cleaning's settings, but for the barrier as it is printed."""
    task = at.problem()
    known: dict[str, Any] = {"T": 10, "l2": 0.1, "log": 0.1, "rate": 1.1, "eps": 1e-4}
    for decay in ("log", "constant"):
        hand = bvfsm_by_hand(
            task, None, variant="code", decay=decay, horizon=5000, momentum=0.0, **known
        )
        ours = {} if decay == "log" else {"decay": decay}
        assert_follows(task, bvfsm(adam(), 0.1, 0.05, 0.1, variant="code", **ours), hand)  # type: ignore[arg-type]


def test_bvfsm_takes_the_printed_barrier_unless_told_otherwise() -> None:
    task = at.problem()
    known: dict[str, Any] = {"T": 2, "l2": 0.1, "log": 0.02, "eps": 0.7}
    hand = bvfsm_by_hand(
        task, None, variant="paper", decay="log", rate=1.1, horizon=1, momentum=0.0, **known
    )
    assert_follows(task, bvfsm(adam(), 0.1, 0.05, 0.1, **known), hand, steps=1)


TOYS = {"coreset": (toy_coreset, 0.05), "minimax": (toy_minimax, 0.05)}
TOYS["degenerate"] = (toy_degenerate, 0.5)


@pytest.mark.parametrize("l2", [0.001, 0.1])
@pytest.mark.parametrize("name", TOYS)
def test_bvfsms_logarithm_is_never_taken_outside_its_domain(name: str, l2: float) -> None:
    """At each step's end y lies where g(x, z) + l2 r |z|^2 - g(x, y) + eps is positive, for the x
    at which the step began; and the run stays bounded (A.1 to A.3, their steps, log = .1)."""
    make, lr = TOYS[name]
    task = make(Context(dtype=torch.float64))
    assert task.lower is not None
    method = bvfsm(gd(), lr, lr, lr, l2=l2)
    standing = first(task, method, 0)
    with torch.no_grad():
        for k in range(200):
            x = standing.state.x
            standing = advance(task, method, 0, standing)
            y, z, r = standing.state.y, standing.state.z, float(standing.info["decay"])
            bound = task.lower(x, z, None) + l2 * r * z.square().sum()
            assert float(bound - task.lower(x, y, None)) + 1e-4 > 0, k
            assert float(torch.cat([x, y, z]).abs().max()) < 50, k


def test_bvfsm_takes_half_a_step_where_a_whole_one_leaves_the_domain() -> None:
    """z stays at 0, so that g(y) = y^2 < eps = .01 is asked for. f pulls y up by .15, which is
    refused, then by .075. A y that starts outside, at 3, goes to z first."""
    task = Task(
        upper=lambda x, y, d: -y.sum(),
        lower=lambda x, y, d: y.square().sum(),
        init=lambda rng: (torch.zeros(1).double(), torch.zeros(1).double()),
        evaluate=lambda x, y, step: {"loss": y.sum()},
        metric="loss",
    )
    method = bvfsm(gd(), 0.1, 0.15, 0.1, T=2, log=0.0, eps=0.01, l2=0.0)
    for start in (0.0, 3.0):
        state = method.init(torch.zeros(1).double(), torch.zeros(1).double())
        state = state._replace(y=torch.full((1,), start).double())
        new, _ = method.step(Oracle(task), state, Draw(task, 0, 0))
        assert new.y.tolist() == pytest.approx([0.075], rel=1e-12)


@pytest.mark.parametrize("batch", [8, None])
@pytest.mark.parametrize("case", at.CASES)
@pytest.mark.parametrize("l2", [0.0, 0.3])
def test_upper_only(l2: float, case: str, batch: int | None) -> None:
    """y descends f(x, y) + l2 |y|^2 by the given rule, and x stays."""
    task = at.CASES[case]()

    def by_hand(draws: Callable[[int], Draw]) -> Iterator[Values]:
        y, lower = at.Y0, at.Adam(0.1)
        for k in range(3):
            slope = partials(at.upper, at.X0, y, draws(k).f(batch))[1] + 2 * l2 * y
            y = at.in_y(task, lower(y, slope))
            yield {"x": at.X0, "y": y, "info/gradient_sq": slope @ slope}

    method = upper_only(adam(), 0.1, l2, batch) if l2 else upper_only(adam(), 0.1, batch=batch)
    assert_follows(task, method, by_hand)


def test_a_step_of_bvfsm_that_is_refused_leaves_no_momentum() -> None:
    """g = y^2 / 2 and eps = .5 ask for |y| < 1, and z stays at 0. From 0 the first step along
    y - 5 ends at .5; the second would end at 1.2, and the third is half as long, from rest."""
    task = Task(
        upper=lambda x, y, d: 0.5 * (y - 5).square().sum(),
        lower=lambda x, y, d: 0.5 * y.square().sum(),
        init=lambda rng: (torch.zeros(1).double(), torch.zeros(1).double()),
        evaluate=lambda x, y, step: {"loss": y.sum()},
        metric="loss",
    )
    method = bvfsm(gd(), 0.1, 0.1, 0.1, T=3, log=0.0, eps=0.5, l2=0.0, inner_momentum=0.5)
    start = torch.zeros(1).double()
    new, _ = method.step(Oracle(task), method.init(start, start), Draw(task, 0, 0))
    assert new.y.tolist() == pytest.approx([0.5 + 0.05 * 4.5], rel=1e-12)
