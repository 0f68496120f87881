"""The exact objective of a task with a convex lower level, F(x) = f(x, y*(x)), for yardsticks.

y*(x) is found by SciPy's L-BFGS on all the data, neither counted nor timed. A metric of a run's own
y does not say how good its x is: training on the upper loss alone makes it small, wherever x is.

Where the curvatures of the lower loss differ by orders of magnitude, as where x is a regularisation
weight for each feature, the search is in y / scale (`scale_of`): without that L-BFGS gives up at an
x whose weights lie far apart, and with it needs more gradients at one where they do not.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench.core.draw import generator
from bench.core.oracle import Oracle
from bench.core.settings import BadSetting
from bench.core.task import Batch, Place, Task
from bench.core.together import differentiate, loss_at

TOLERANCE = 1e-3  # of the largest entry of the gradient at y = 0
PROBES = 20  # products with the Hessian from which its diagonal is estimated
MOST = 3000  # gradients, after which the lower level counts as one that cannot be solved
PAIRS = 10  # of a step and the change of the gradient along it, from which L-BFGS estimates

Flat = np.ndarray[Any, np.dtype[np.float64]]


def measured_exactly(
    task: Task, tolerance: float = TOLERANCE, scaled: bool = False, pairs: int = PAIRS
) -> Task:
    """The same task, whose one metric is "objective", F(x), at any y.

    tolerance, scaled, pairs: how the lower level is solved (`solve_lower_level`), which has to be
    convex. Raises BadSetting for a task with a single level, one whose lower problem is new at each
    step, such as online ones, and one whose y stays in a set.
    """
    bounded = task.lower_feasible.project is not None or task.lower_feasible.lmo is not None
    changing = any(part is not None for part in (task.tally, task.ledger, task.stream))
    if task.lower is None or changing or bounded or not task.inner.carries:
        raise BadSetting(
            "the objective is known where there is one lower problem for all steps, whose y is free"
        )

    def evaluate(x: Tensor, y: Tensor, step: int) -> dict[str, Tensor]:
        rng = generator("exact")
        xi, zeta = task.data.draw_upper(rng, step, None), task.data.draw_lower(rng, step, None)
        best = solve_lower_level(task, x, torch.zeros_like(y), zeta, tolerance, scaled, pairs)
        return {"objective": loss_at(task, Place(True, x, best, xi))}

    return replace(task, evaluate=evaluate, metric="objective", selection=None)


def solve_lower_level(
    task: Task,
    x: Tensor,
    start: Tensor,
    zeta: Batch,
    tolerance: float,
    scaled: bool,
    pairs: int = PAIRS,
) -> Tensor:
    """argmin over y of the lower loss at x, shaped as `start`, from which the search goes on.

    zeta: the lower batch, of all data. scaled: the search is in y / scale (`scale_of`). pairs: the
    memory of L-BFGS; where curvatures differ much, more pairs save gradients. At the minimiser no
    entry of the gradient in what is searched is larger than `tolerance` of the largest one at the
    start. The result is nan where the search ends before: where the loss overflows, after `MOST`
    gradients, or in float32 where rounding forbids it.
    """
    from scipy.optimize import minimize  # takes a third of a second to import

    scale = scale_of(task, x, start, zeta) if scaled else torch.ones_like(start)

    def loss_and_slope(flat: Flat) -> tuple[float, Flat]:
        place = Place(False, x, torch.from_numpy(flat).to(start).view_as(start) * scale, zeta)
        slope = differentiate(task, [place], ["y"])[0][1]
        assert slope is not None
        return float(loss_at(task, place)), (slope * scale).cpu().double().numpy().ravel()

    at = (start / scale).cpu().double().numpy().ravel()
    small = tolerance * float(np.abs(loss_and_slope(at)[1]).max())
    found = minimize(
        loss_and_slope,
        at,
        jac=True,
        method="L-BFGS-B",
        options={"maxcor": pairs, "gtol": small, "ftol": 0.0, "maxfun": MOST, "maxiter": MOST},
    )
    if not np.abs(found.jac).max() <= small:
        return torch.full_like(start, torch.nan)
    return torch.from_numpy(found.x).to(start).view_as(start) * scale


def scale_of(task: Task, x: Tensor, y: Tensor, zeta: Batch) -> Tensor:
    """1 / sqrt(d), shaped as y, for d the diagonal of the lower loss's Hessian in y, and at least
    the median of its absolute values.

    d is the mean of v * (Hessian v) over `PROBES` vectors v of random signs (Bekas, Kokiopoulou and
    Saad, 2007), the same ones at each call. It is exact where the Hessian is diagonal, and what
    lies beside the diagonal makes small entries wrong: hence the median.
    """
    rng = generator("probes")
    product = Oracle(task).g_yy(x, y, zeta)
    found = torch.zeros_like(y)
    for _ in range(PROBES):
        v = torch.randint(0, 2, y.shape, generator=rng).to(y) * 2 - 1
        found += v * product(v) / PROBES
    return found.clamp(min=found.abs().median()).rsqrt()
