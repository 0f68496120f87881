"""GEM: gradient episodic memory (Lopez-Paz, Ranzato, NeurIPS 2017), Algorithm 1.

Paper -> here: theta -> y, M_k -> the rows of memory, g -> gradient, g_k -> the rows of G, gamma ->
margin, alpha -> lr.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import nnls
from torch import Tensor

from bench.core.algorithm import Algorithm, Cost, Moment
from bench.core.draw import Draw, bring
from bench.core.oracle import Asked, Oracle
from bench.core.settings import Count, NonNegative, Positive
from bench.core.stream import Stream, ring


class State(NamedTuple):
    x: Tensor
    y: Tensor
    memory: Tensor  # [tasks, samples of each]: numbers of samples


def gem(
    lr: Positive = 0.03, memory: Count = 50, margin: NonNegative = 0.5, steps: Count = 1
) -> Algorithm:
    """GEM.

    lr: the step size of y. memory: how many samples of each task are remembered. margin: the least
    value of every dual variable where any constraint is violated, as in the released code; the
    paper adds it to the variables instead, for less forgetting. That code also adds .001 to the
    diagonal of the dual problem's matrix, which the paper does not have. steps: how many steps are
    taken on one batch.
    """

    def init(x: Tensor, y: Tensor, stream: Stream) -> State:
        numbers = torch.zeros(stream.tasks, memory, dtype=torch.int64, device=y.device)
        return State(x, y, numbers)

    def step(o: Oracle, s: State, draw: Draw) -> tuple[State, dict[str, Tensor]]:
        new, y = draw.g(), s.y
        t = draw.stream.task(draw.step)
        before = (draw.step - t * draw.stream.steps) * draw.stream.batch
        kept = ring(s.memory, t, new.numbers, before)  # M_t <- M_t and (x, y)
        old = [draw.stream.recall(kept[k]) for k in range(t)]

        violated = y.new_zeros(())
        for _ in range(steps):
            gradient = o.g_y(s.x, y, new).flatten()
            if old:
                remembered = o.together(*[Asked("g_y", s.x, y, samples) for samples in old])
                G = torch.stack([each.flatten() for each in remembered])
                gradient, constraints = project_gradient(gradient, G, margin)
                violated = y.new_full((), constraints)
            y = o.project_y(y - lr * gradient.view_as(y))
        return State(s.x, y, kept), {"violated": violated}

    def cost(at: Moment) -> Cost:
        """The gradient of the stream's batch, and one of each earlier task's memory."""
        return (Cost(grad_g=1, batch=at.samples) + Cost(grad_g=at.task, batch=memory)) * steps

    return Algorithm(init, step, first_order=True, on_stream=True, cost=cost)


def project_gradient(gradient: Tensor, G: Tensor, margin: float = 0.0) -> tuple[Tensor, int]:
    """The closest z to the gradient with G z >= 0 (equation (8)), by the dual problem (11), and how
    many of the constraints the gradient violates; if none, z is the gradient.

    z = G^T v + gradient with v = argmin over v >= margin of v^T G G^T v / 2 + <G gradient, v>.
    gradient, z: [n]. G: [tasks, n].
    """
    # the test for violations keeps the gradients' precision; the programme is solved in double
    wide, along = G.double(), (G @ gradient).double()
    products = torch.column_stack([wide @ wide.T, wide @ gradient.double(), along])
    found = np.array(products.tolist())  # the host waits once, for all that it needs
    violated = int((found[:, -1] < 0).sum())
    if not violated or not np.isfinite(found).all():  # a run that diverges ends by itself
        return gradient, 0
    v = torch.from_numpy(dual(found[:, :-2], found[:, -2], margin))
    return gradient + (bring(v, wide.device) @ wide).to(gradient), violated


def dual(P: NDArray[np.float64], q: NDArray[np.float64], margin: float) -> NDArray[np.float64]:
    """argmin over v >= margin of v^T P v / 2 + <q, v>, for P = G G^T and q = G gradient.

    With v = margin + u this is the least-squares problem |A u - b|^2 over u >= 0, where A^T A = P
    and A^T b = -(q + margin P 1). A has a row for each positive eigenvalue of P = V diag(d) V^T;
    the others can be left out, because q lies in the range of G.
    """
    d, V = np.linalg.eigh(P)
    positive = d > 1e-12 * max(d[-1], 1e-300)
    root = np.sqrt(d[positive])
    A = root[:, None] * V[:, positive].T
    b = -(V[:, positive].T @ (q + margin * P.sum(1))) / root
    return margin + nnls(A, b)[0]
