"""Nonconvex conditional gradient sliding, by hand (Qu, Li, Xu, ICML 2018, Algorithms 1 to 4)."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from algorithms.projection_free.ncgs import condg, ncgs, ncgs_vr
from bench.core.draw import Draw
from bench.core.oracle import Oracle
from bench.core.task import Task
from tests.steps import one_level as at
from tests.steps.problem import ROWS, X0, Y0

L, N = 0.8, 25
# the point, its lmo and project calls, and the last gap over eta
Prox = Callable[[Tensor, Tensor, float], tuple[Tensor, int, int, float]]


def procedure(
    task: Task, l: Tensor, u: Tensor, gamma: float, eta: float, cap: int
) -> tuple[Tensor, int, float]:
    """u+ = condg(l, u, gamma, eta), Algorithm 1, lines 1 to 4, its linear minimisations, and the V
    of the last of them over eta.

    An oracle to eta / 10 finds V(u_t) to that; with V <= .9 eta the true one is at most eta.
    """
    assert task.feasible.lmo is not None
    u_t = u
    for t in range(1, cap + 1):
        v_t = task.feasible.lmo(l + (u_t - u) / gamma, eta / 10)
        V = (l + (u_t - u) / gamma) @ (u_t - v_t)
        if 0.9 * eta >= V:
            return u_t, t, float(V) / eta
        xi = ((u - u_t) / gamma - l) @ (v_t - u_t) / (((v_t - u_t) ** 2).sum() / gamma)
        u_t = (1 - min(1, xi)) * u_t + min(1, xi) * v_t
    return u_t, cap, float(V) / eta


@pytest.mark.parametrize("case", at.SETS)
@pytest.mark.parametrize("cap", [1, 7, 10_000])
@pytest.mark.parametrize("eta", [0.4, 0.02])
@pytest.mark.parametrize("gamma", [0.1, 3.0])
def test_condg(gamma: float, eta: float, cap: int, case: str) -> None:
    """Algorithm 1 from a point outside and from one inside of the set, up and down hill, and so
    steep that a whole step to the vertex is not enough."""
    task, everything = at.problem(at.SETS[case]), torch.arange(ROWS)
    for u in (X0, 0.3 * X0):
        for l in (at.slope(u, everything) * scale for scale in (1, -2, 50)):
            o = Oracle(task)
            found, calls, gap = condg(o, l, u, gamma, eta, cap)
            expected, count, last = procedure(task, l, u, gamma, eta, cap)
            torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
            assert calls == count == o.calls["lmo"]
            assert float(gap) == pytest.approx(last, rel=1e-9, abs=1e-10)
            assert float(gap) <= 0.9 or calls == cap


def stepper(task: Task, prox: str, eta: float, cap: int) -> Prox:
    """psi(u, l, gamma) of section 2.2: by projection, or by condg."""

    def exact(l: Tensor, u: Tensor, gamma: float) -> tuple[Tensor, int, int, float]:
        assert task.feasible.project is not None
        return task.feasible.project(u - gamma * l), 0, 1, 0.0

    def by_condg(l: Tensor, u: Tensor, gamma: float) -> tuple[Tensor, int, int, float]:
        point, lmos, gap = procedure(task, l, u, gamma, eta, cap)
        return point, lmos, 0, gap

    return exact if prox == "exact" else by_condg


def counted(gradients: int, *calls: tuple[int, int]) -> dict[str, int]:
    """(lmo, project) of each prox step, summed."""
    sums = {"lmo": sum(c[0] for c in calls), "project": sum(c[1] for c in calls)}
    return {"grad_f": gradients} | {name: n for name, n in sums.items() if n}


CONDG: list[tuple[Any, float | None, int]] = [
    ("exact", None, 10),
    ("condg", None, 10_000),
    ("condg", 0.2, 10_000),
    ("condg", None, 2),
]
BATCHES = [(None, False), (8, False), (4, True), (1, True)]
TOGETHER = [*zip(CONDG, BATCHES), (CONDG[0], BATCHES[2]), (CONDG[1], BATCHES[2])]


@pytest.mark.parametrize("case", at.SETS)
@pytest.mark.parametrize(
    ("prox", "eta", "cap", "batch", "growing"), [(*prox, *batch) for prox, batch in TOGETHER]
)
@pytest.mark.parametrize("option", ["I", "II"])
def test_ncgs(
    option: Any,
    prox: Any,
    eta: float | None,
    cap: int,
    batch: int | None,
    growing: bool,
    case: str,
) -> None:
    """Algorithms 2 and 3 with the parameters of theorems 1 and 2: alpha_k = 2 / (k + 1), beta_k =
    1 / (2 L), lambda_k = beta_k (I) or k beta_k / 2 (II), eta_k = chi_k = 1 / N, m_k = k."""
    task = at.problem(at.SETS[case])
    psi = stepper(task, prox, 1 / N if eta is None else eta, cap)

    def by_hand(draws: at.Draws) -> Iterator[dict[str, Any]]:
        theta = ag = X0
        for k in range(1, 6):
            alpha, beta = 2 / (k + 1), 1 / (2 * L)
            md = (1 - alpha) * ag + alpha * theta
            m = k * batch if batch and growing else batch
            G = at.slope(md, draws(k - 1).f(m))
            if option == "I":
                new, lmos, projections, gap = psi(G, theta, beta)
                ag, spent = md - beta * (theta - new) / beta, counted(1, (lmos, projections))
            else:
                new, lmos, projections, gap = psi(G, theta, k * beta / 2)
                ag, more, again, other = psi(G, md, beta)
                spent = counted(1, (lmos, projections), (more, again))
                lmos, gap = max(lmos, more), max(gap, other)
            theta = new
            told = {"gradient_sq": (G**2).sum(), "condg": lmos, "calls": spent}
            told["condg_gap"] = max(gap, 0.0)
            yield {"x": theta if option == "I" else ag, "theta": theta, "ag": ag, **told}

    at.assert_same(task, ncgs(L, N, option, prox, eta, cap, batch, growing), by_hand)


class Told(Draw):
    """A draw whose uniform number is known."""

    number = 0.0

    def uniform(self, like: Tensor) -> Tensor:
        return torch.full_like(like, self.number)


@pytest.mark.parametrize("option", ["I", "II"])
def test_the_random_output_of_ncgs(option: Any) -> None:
    """Algorithm 3 ends at theta_R^md, P(R = k) = p_k ~ 1 / Gamma_k = k (k + 1) / 2 (theorem 2):
    drawn at every step with the weights so far, so it has that law whenever the run ends."""
    task = at.problem(at.SETS["box"])
    random = ncgs(L, N, option, "exact", batch=8, output="random")
    state = random.init(X0, Y0)
    for k in range(1, 8):
        md = (1 - 2 / (k + 1)) * state.ag + 2 / (k + 1) * state.theta
        p = [j * (j + 1) / 2 for j in range(1, k + 1)]
        before, draw = state._replace(x=torch.full_like(X0, -9.0)), Told(task, 0, k - 1)
        for aside, shown in ((1 - 1e-9, md), (1 + 1e-9, before.x)):
            draw.number = aside * p[-1] / sum(p)
            state, _ = random.step(Oracle(task), before, draw)
            torch.testing.assert_close(state.x, shown, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("batch", [8, None])
@pytest.mark.parametrize("case", at.SETS)
@pytest.mark.parametrize(("prox", "eta", "cap"), CONDG)
def test_ncgs_vr(prox: Any, eta: float | None, cap: int, case: str, batch: int | None) -> None:
    """Algorithm 4 with lambda = 1 / (3 L) and eta = 1 / T (theorem 3)."""
    task = at.problem(at.SETS[case])
    psi, epoch = stepper(task, prox, 1 / N if eta is None else eta, cap), 3

    def by_hand(draws: at.Draws) -> Iterator[dict[str, Any]]:
        theta, everything = X0, torch.arange(ROWS)
        for s in range(3):
            snapshot, g = theta, at.slope(theta, everything)
            for t in range(epoch):
                draw = draws(s * epoch + t)
                if t == 0:
                    draw.f(None)
                rows = draw.f(batch)
                v = at.slope(theta, rows) - at.slope(snapshot, rows) + g
                theta, *spent = psi(v, theta, 1 / (3 * L))
                told = {"gradient_sq": (v**2).sum(), "condg": spent[0], "condg_gap": spent[2]}
                told["calls"] = counted(3 if t == 0 else 2, (spent[0], spent[1]))
                yield {"x": theta, "theta": theta, "snapshot": snapshot, "full": g, **told}

    algorithm = ncgs_vr(L, N, epoch, prox, eta, cap, batch)
    at.assert_same(task, algorithm, by_hand, steps=3 * epoch)


def test_the_random_output_of_ncgs_vr() -> None:
    """Algorithm 4 ends at one of theta_0, ..., theta_{T-1}, each as likely: at step t the one that
    it starts from is taken with probability 1 / (t + 1)."""
    task = at.problem(at.SETS["box"])
    random = ncgs_vr(L, N, 4, "exact", batch=8, output="random")
    state = random.init(X0, Y0)
    for t in range(8):
        before, draw = state._replace(x=torch.full_like(X0, -9.0)), Told(task, 0, t)
        for aside, shown in ((1 - 1e-9, before.theta), (1 + 1e-9, before.x)):
            draw.number = aside / (t + 1)
            state, _ = random.step(Oracle(task), before, draw)
            torch.testing.assert_close(state.x, shown, rtol=0, atol=0)
