"""What an online task without a closed form measures of a round: hypergradient and variations at a
solved lower level, outside the clock and the counts."""

from dataclasses import dataclass

from torch import Generator, Tensor

from bench.core.oracle import Oracle
from bench.core.settings import Count, Natural, NonNegative, Positive
from bench.core.task import Batch, Task
from bench.numerics.solve import cg
from tasks.common.stationarity import gradient_mapping

NAMES = ("regret", "V_T", "H_2T")


@dataclass(frozen=True)
class Solved:
    """How a round is measured, and which: every `every`-th one, standing for as many (0: none, and
    the sums stay 0).

    The lower level is solved from y_t by gradient descent of step size lr until |g_y| is at most
    `tolerance`, in at most `steps` steps, and (g_yy + damping I) v = f_y by `system` iterations of
    conjugate gradients.
    """

    every: Natural = 0
    tolerance: Positive = 0.01
    steps: Count = 500
    lr: Positive = 0.1
    system: Count = 20
    damping: NonNegative = 0.0


def measured(
    task: Task, x: Tensor, y: Tensor, step: int, gamma: float, how: Solved
) -> dict[str, Tensor]:
    """What the round adds to BLReg(T), F2OBO's eq. (2), and to V_T and H_{2,T}, eq. (4), with x_t
    in place of the supremum over x: a lower bound of both. Pairs are of this round and the next."""
    if how.every == 0 or step % how.every:
        return dict.fromkeys(NAMES, x.new_zeros(()))
    o = Oracle(task)

    def data(step: int) -> tuple[Batch, Batch]:
        everything = Generator()  # asked for all, the samplers draw nothing
        return task.draw_upper(everything, step, None), task.draw_lower(everything, step, None)

    (xi, zeta), (xi_next, zeta_next) = data(step), data(step + 1)
    y_now = solved(o, x, y, zeta, how)
    y_next = solved(o, x, y_now, zeta_next, how)

    f_x, f_y = o.grad_f(x, y_now, xi)
    products = o.products(x, y_now, zeta)
    v = cg(lambda u: products.yy(u) + how.damping * u, f_y, how.system)
    slope = f_x - products.xy(v)
    mapping = gradient_mapping(task.feasible, x, slope, gamma)
    return {
        "regret": how.every * mapping.square().sum(),
        "V_T": how.every * (o.f(x, y_next, xi_next) - o.f(x, y_now, xi)).abs(),
        "H_2T": how.every * (y_next - y_now).square().sum(),
    }


def solved(o: Oracle, x: Tensor, y: Tensor, zeta: Batch, how: Solved) -> Tensor:
    """argmin g(x, .; zeta), as near as `how` says."""
    for _ in range(how.steps):
        slope = o.g_y(x, y, zeta)
        if slope.norm() <= how.tolerance:
            break
        y = o.project_y(y - how.lr * slope)
    return y
