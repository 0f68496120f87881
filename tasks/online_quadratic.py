"""The quadratic bilevel problem with a drift, whose regret and variations are known exactly.

With f and g of tasks/quadratic.py and points u_t, w_t that move,

    f_t(x, y) = f(x, y - u_t),   g_t(x, y) = g(x, y - w_t),   x in [-radius, radius]^p,

so y*_t(x) = M x + w_t with M = A^{-1} B, and F_t(x) = |M x + d_t|^2 / 2 + curvature |x|^2 / 2 with
d_t = w_t - u_t - c. F_t - F_{t-1} is affine in x, which gives its largest value on the box (F2OBO,
eq. (4)):

    H_{2,T} = sum |w_t - w_{t-1}|^2,
    V_T = sum radius |M^T (d_t - d_{t-1})|_1 + | |d_t|^2 - |d_{t-1}|^2 | / 2.

The points move in planes that are the same for all instances; A, B and c are drawn for each.
"""

import math
from typing import Any, Literal, NamedTuple

import torch
from torch import Generator, Tensor

from bench.core.draw import generator
from bench.core.settings import BadSetting, Count, NonNegative, Positive
from bench.core.task import (
    Batch,
    Context,
    Data,
    Derivatives,
    Partials,
    Report,
    Sampler,
    Tally,
    Task,
    Wrt,
)
from bench.numerics.sets import box
from tasks.common.stationarity import gradient_mapping
from tasks.quadratic import quadratic


class DriftRound(NamedTuple):
    """The batch of a round: row numbers of the noise, and where this round's losses have moved."""

    rows: Tensor
    upper: Tensor  # u_t
    lower: Tensor  # w_t


def online_quadratic(
    context: Context,
    p: Count = 3,
    q: Count = 5,
    condition: Positive = 4.0,
    curvature: NonNegative = 0.1,
    samples: Count = 64,
    noise: NonNegative = 0.0,
    coupling: Positive | None = None,
    instance: int = 0,
    radius: Positive = 5.0,
    drift: Literal["none", "oscillation", "rotation"] = "rotation",
    upper_drift: NonNegative = 0.5,
    lower_drift: NonNegative = 0.5,
    period: Positive = 100.0,
    fading: NonNegative = 0.0,
    gamma: Positive = 0.1,
) -> Task:
    """The settings up to `instance` are those of quadratic. u_t and w_t each move in a plane of
    their own, at the distances upper_drift and lower_drift from 0. They jump from side to side
    ("oscillation", (-1)^t), or turn round 0 by an angle of 2 pi / period t^-fading in round t
    ("rotation"). gamma: step size of the gradient mapping. Step number k is round t = k + 1. Raises
    BadSetting.
    """
    if q < 2:
        raise BadSetting("task.q=1: the drift turns in a plane; write task.q=2 or more")
    still = quadratic(
        context,
        p=p,
        q=q,
        condition=condition,
        curvature=curvature,
        samples=samples,
        noise=noise,
        coupling=coupling,
        instance=instance,
    )
    f, g, still_lower = still.upper_derivatives, still.lower_derivatives, still.lower
    optimum = still.report.optimum
    assert f is not None
    assert g is not None
    assert g.linearise is not None
    assert still_lower is not None
    assert optimum is not None
    linearised = g.linearise
    A, B, c = (optimum[name] for name in "ABc")
    M = torch.linalg.solve(A, B)
    planes = [
        torch.linalg.qr(
            torch.randn(q, 2, generator=generator("drift", q, side), dtype=torch.float64)
        ).Q.to(A)
        for side in ("upper", "lower")
    ]
    feasible = box(-radius, radius)

    def direction(t: int) -> Tensor:
        """The unit vector, or 0, by which u_t and w_t are displaced in their planes."""
        if drift == "none":
            return A.new_zeros(2)
        if drift == "oscillation":
            return A.new_tensor([(-1.0) ** t, 0.0])
        # the sum of k^-fading up to t is taken as its integral, which starts at another angle
        rest = 1 - fading
        angle = 2 * math.pi / period * (t**rest / rest if rest else math.log(t))
        return A.new_tensor([math.cos(angle), math.sin(angle)])

    def positions(t: int) -> tuple[Tensor, Tensor]:
        """u_t and w_t."""
        at = direction(t)
        return upper_drift * planes[0] @ at, lower_drift * planes[1] @ at

    def sampler(draw: Sampler) -> Sampler:
        return lambda rng, step, size: DriftRound(draw(rng, step, size), *positions(step + 1))

    def upper(x: Tensor, y: Tensor, d: Batch) -> Tensor:
        return still.upper(x, y - d.upper, d.rows)

    def lower(x: Tensor, y: Tensor, d: Batch) -> Tensor:
        return still_lower(x, y - d.lower, d.rows)

    def upper_grad(x: Tensor, y: Tensor, d: Batch, wrt: Wrt) -> Partials:
        return f.grad(x, y - d.upper, d.rows, wrt)

    def lower_grad(x: Tensor, y: Tensor, d: Batch, wrt: Wrt) -> Partials:
        return g.grad(x, y - d.lower, d.rows, wrt)

    def linearise(x: Tensor, y: Tensor, d: Batch) -> Any:
        return linearised(x, y - d.lower, d.rows)

    def offset(t: int) -> Tensor:
        u, w = positions(t)
        return w - u - c

    def mapping_sq(x: Tensor, t: int) -> Tensor:
        gradient = M.T @ (M @ x + offset(t)) + curvature * x
        return gradient_mapping(feasible, x, gradient, gamma).square().sum()

    def objective(x: Tensor, t: int) -> Tensor:
        return 0.5 * (M @ x + offset(t)).square().sum() + 0.5 * curvature * x.square().sum()

    def evaluate(x: Tensor, y: Tensor, step: int) -> dict[str, Tensor]:
        return {
            "objective": objective(x, step + 1),
            "mapping_sq": mapping_sq(x, step + 1),
            "lower_error": (y - M @ x - positions(step + 1)[1]).norm(),
        }

    def adds(x: Tensor, y: Tensor, step: int) -> dict[str, Tensor]:
        t = step + 1
        before = max(step, 1)  # the sums over pairs begin at t = 2
        now, last = offset(t), offset(before)
        jump = 0.5 * (now.square().sum() - last.square().sum()).abs()
        return {
            "regret": mapping_sq(x, t),
            "cumulative_loss": 0.5 * (y - positions(t)[0] - c).square().sum()
            + 0.5 * curvature * x.square().sum(),
            "V_T": radius * (M.T @ (now - last)).abs().sum() + jump,
            "H_2T": (positions(t)[1] - positions(before)[1]).square().sum(),
        }

    def init(rng: Generator) -> tuple[Tensor, Tensor]:
        return A.new_zeros(p), A.new_zeros(q)

    return Task(
        upper=upper,
        lower=lower,
        data=Data(
            sampler(still.data.draw_upper),
            sampler(still.data.draw_lower),
            count=lambda d: len(d.rows),
        ),
        init=init,
        evaluate=evaluate,
        metric="regret",
        feasible=feasible,
        upper_derivatives=Derivatives(upper_grad),
        lower_derivatives=Derivatives(lower_grad, linearise),
        report=Report(optimum=optimum),
        tally=Tally(("regret", "cumulative_loss", "V_T", "H_2T"), adds),
    )
