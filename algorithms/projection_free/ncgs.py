"""Nonconvex conditional gradient sliding (Qu, Li, Xu, ICML 2018): NCGS (Algorithm 2, options I and
II), its stochastic form (Algorithm 3) and NCGS-VR (Algorithm 4), all with the procedure condg
(Algorithm 1) for their prox steps.

Paper -> here: F -> f, Omega -> the task's feasible set, N -> N, L -> L; alpha_k = 2 / (k + 1),
beta_k = 1 / (2 L), eta_k = chi_k = eta (by default 1 / N), lambda_k = beta_k (option I) or
k beta_k / 2 (option II), m_k = k batch; for NCGS-VR lambda = 1 / (3 L), m -> epoch, b -> batch.

The state's x is the point that the method gives: theta_k for option I, theta_k^ag for option II
and theta_t for NCGS-VR. (As lambda_k = beta_k in option I, theta_k^md is theta_{k-1} and theta_k^ag
is theta_k there, and alpha_k has no effect.) With output "random" it is the iterate that Algorithms
3 and 4 draw: theta^md with probabilities proportional to k (k + 1), or theta_t uniformly. Each step
draws again between the last choice and its own iterate, so that x has the right law whenever the
run ends.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from bench.core.algorithm import Algorithm, Cost, Moment
from bench.core.draw import Draw
from bench.core.oracle import Oracle
from bench.core.settings import BadSetting, Count, Positive


class State(NamedTuple):
    x: Tensor  # the point that the method gives
    y: Tensor
    theta: Tensor
    ag: Tensor  # theta^ag


def condg(
    o: Oracle, gradient: Tensor, u: Tensor, gamma: float, eta: float, cap: int
) -> tuple[Tensor, int, Tensor]:
    """Algorithm 1: argmin over the set of <gradient, .> + |. - u|^2 / (2 gamma) to a gap of eta.

    Returns the point, the number of linear minimisations, and the last measured gap over eta. Each
    minimisation is accurate to eta / 10, so the gap is known to that, and is held below .9 eta.
    After `cap` of them the gap may be larger; what is returned then is that of the point before the
    last move.
    """
    u_t = u
    for t in range(1, cap + 1):
        l_t = gradient + (u_t - u) / gamma
        d = o.lmo(l_t, 0.1 * eta) - u_t
        gap = -(l_t * d).sum()
        if not gap > 0.9 * eta:  # a gap that is not a number ends it as well
            return u_t, t, gap / eta
        u_t = u_t + (gamma * gap / d.square().sum()).clamp(max=1.0) * d
    return u_t, cap, gap / eta


def ncgs(
    L: Positive,
    N: Count,
    option: Literal["I", "II"] = "II",
    prox: Literal["condg", "exact"] = "condg",
    eta: Positive | None = None,
    cap: Count = 10_000,
    batch: Count | None = None,
    growing: bool = False,
    output: Literal["last", "random"] = "last",
) -> Algorithm:
    """NCGS, Algorithm 2; with growing = true Algorithm 3, whose batch is k times `batch`.

    L: the smoothness of f. N: the steps that there will be. option: I or II. prox: the prox steps
    are condg's, or "exact" by projection, which makes this the accelerated method of Ghadimi and
    Lan (2016). eta: the gap that condg may leave; None: 1 / N. cap: the most linear minimisations
    of one prox step. batch: the samples of a batch; None: all the data. output: see above. Raises
    BadSetting for a batch that grows where there is none.

    info/condg_gap is the larger gap of the step's prox steps over eta, as condg measured it last:
    above 1 the cap has ended condg before its tolerance was met.
    """
    if growing and batch is None:
        raise BadSetting(
            "algorithm.growing=true: it is the batch that grows; write algorithm.batch=1"
        )
    beta, tolerance = 1 / (2 * L), eta or 1 / N

    def size(k: int) -> int | None:  # m_k
        return batch * k if batch and growing else batch

    def step(o: Oracle, s: State, draw: Draw) -> tuple[State, dict[str, Tensor]]:
        k = draw.step + 1
        alpha, lam = 2 / (k + 1), beta if option == "I" else k * beta / 2
        used, widest = 0, s.x.new_zeros(())

        def prox_step(gradient: Tensor, u: Tensor, gamma: float) -> Tensor:
            nonlocal used, widest
            if prox == "exact":
                return o.project(u - gamma * gradient)
            point, calls, gap = condg(o, gradient, u, gamma, tolerance, cap)
            used, widest = max(used, calls), torch.maximum(widest, gap)
            return point

        md = (1 - alpha) * s.ag + alpha * s.theta
        gradient = o.f_x(md, s.y, draw.f(size(k)))
        theta = prox_step(gradient, s.theta, lam)
        ag = md - beta / lam * (s.theta - theta) if option == "I" else prox_step(gradient, md, beta)

        x = theta if option == "I" else ag
        if output == "random":  # p_k / (p_1 + ... + p_k) = 3 / (k + 2)
            x = torch.where(draw.uniform(gradient.new_zeros(())) < 3 / (k + 2), md, s.x)
        info = {
            "gradient_sq": gradient.square().sum(),
            "condg": gradient.new_tensor(float(used)),
            "condg_gap": widest,
        }
        return State(x, s.y, theta, ag), info

    def cost(at: Moment) -> Cost:
        prox_steps = 1 if option == "I" else 2
        return Cost(grad_f=1, batch=size(at.step + 1)) + _prox_cost(prox, cap) * prox_steps

    return Algorithm(lambda x, y: State(x, y, x, x), step, cost=cost, kind="single-level")


def _prox_cost(prox: str, cap: int) -> Cost:
    """What one prox step calls: condg ends as soon as its gap is small enough."""
    return Cost(project=1) if prox == "exact" else Cost(lmo=cap, at_most=True)


class VrState(NamedTuple):
    x: Tensor
    y: Tensor
    theta: Tensor
    snapshot: Tensor  # theta at the start of the epoch
    full: Tensor  # the gradient there, of all the data


def ncgs_vr(
    L: Positive,
    N: Count,
    epoch: Count = 10,
    prox: Literal["condg", "exact"] = "condg",
    eta: Positive | None = None,
    cap: Count = 10_000,
    batch: Count | None = None,
    output: Literal["last", "random"] = "last",
) -> Algorithm:
    """NCGS-VR, Algorithm 4.

    epoch: steps between gradients of all the data. Its theory has epoch = n^(1/3) and batch =
    n^(2/3) for n samples. The other settings and info/condg_gap are those of `ncgs`.
    """
    lam, tolerance = 1 / (3 * L), eta or 1 / N

    def step(o: Oracle, s: VrState, draw: Draw) -> tuple[VrState, dict[str, Tensor]]:
        theta, snapshot, full = s.theta, s.snapshot, s.full
        used, gap = 0, theta.new_zeros(())
        if draw.step % epoch == 0:
            snapshot, full = theta, o.f_x(theta, s.y, draw.f(None))
        sample = draw.f(batch)
        v = o.f_x(theta, s.y, sample) - o.f_x(snapshot, s.y, sample) + full
        if prox == "exact":
            new = o.project(theta - lam * v)
        else:
            new, used, gap = condg(o, v, theta, lam, tolerance, cap)
        x = new
        if output == "random":  # theta_t with t uniform on 0, ..., this step's number
            turn = draw.uniform(v.new_zeros(()))
            x = torch.where(turn < 1 / (draw.step + 1), theta, s.x)
        info = {
            "gradient_sq": v.square().sum(),
            "condg": v.new_tensor(float(used)),
            "condg_gap": gap,
        }
        return VrState(x, s.y, new, snapshot, full), info

    def cost(at: Moment) -> Cost:
        later = Cost(grad_f=2, batch=batch) + _prox_cost(prox, cap)
        return later + Cost(grad_f=1) if at.step % epoch == 0 else later

    return Algorithm(
        lambda x, y: VrState(x, y, x, x, torch.zeros_like(x)), step, cost=cost, kind="single-level"
    )
