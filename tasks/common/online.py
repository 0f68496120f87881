"""What an online task without a closed form measures of a round, outside the clock and the counts:
the hypergradient and the variations, at a lower level that is solved for the purpose."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Generator, Tensor

from bench.core.oracle import Asked, Oracle
from bench.core.settings import Count, Natural, NonNegative, Positive
from bench.core.task import Batch, Task
from bench.numerics.inner import Loop, descend_until, is_small, waits_for
from bench.numerics.solve import cg
from tasks.common.stationarity import gradient_mapping

NAMES = ("regret", "V_T", "H_2T")


@dataclass(frozen=True)
class Solved:
    """Which rounds are measured, and how.

    Every `every`-th round is measured, and stands for as many; 0: no round is, and the sums stay 0.

    The lower level is solved from y_t by gradient descent with step size lr until |g_y| is at most
    `tolerance`, in at most `steps` steps. The system (g_yy + damping I) v = f_y is solved by
    `system` iterations of conjugate gradients.
    """

    every: Natural = 0
    tolerance: Positive = 0.01
    steps: Count = 500
    lr: Positive = 0.1
    system: Count = 20
    damping: NonNegative = 0.0

    def is_met(self, gradient: Tensor) -> Tensor:
        """Whether a gradient, of any shape, is small enough: a truth value as a scalar."""
        return is_small(gradient, self.tolerance)


def measure_round(
    task: Task,
    x: Tensor,
    y: Tensor,
    step: int,
    gamma: float,
    how: Solved,
    make: Callable[[Task], Oracle] | None = None,
) -> dict[str, Tensor]:
    """What the round adds to the sums NAMES: to the regret BLReg(T), F2OBO's eq. (2), and to the
    variations V_T and H_{2,T}, eq. (4).

    The variations compare this round with the next. They have x_t in place of the supremum over x.
    Where every round is measured and the lower level is solved exactly, their sums are thus lower
    bounds, but for the last pair, (T, T + 1), which eq. (4) does not have; else they are estimates.
    gamma: step size of the gradient mapping. make: see `Context.oracle`.
    """
    if how.every == 0 or step % how.every:
        return dict.fromkeys(NAMES, x.new_zeros(()))
    o = (make or Oracle)(task)

    def data(step: int) -> tuple[Batch, Batch]:
        unused = Generator()  # samplers that are asked for all the data draw nothing at random
        return task.data.draw_upper(unused, step, None), task.data.draw_lower(unused, step, None)

    (xi, zeta), (xi_next, zeta_next) = data(step), data(step + 1)
    y_now = solve_lower(o, x, y, zeta, how)
    y_next = solve_lower(o, x, y_now, zeta_next, how)

    f_x, f_y = o.grad_f(x, y_now, xi)
    products = o.products(x, y_now, zeta)
    v = cg(lambda u: products.yy(u) + how.damping * u, f_y, how.system)
    gradient = f_x - products.xy(v)
    mapping = gradient_mapping(task.feasible, x, gradient, gamma)
    return {
        "regret": how.every * mapping.square().sum(),
        "V_T": how.every * (o.f(x, y_next, xi_next) - o.f(x, y_now, xi)).abs(),
        "H_2T": how.every * (y_next - y_now).square().sum(),
    }


def solve_lower(o: Oracle, x: Tensor, y: Tensor, zeta: Batch, how: Solved) -> Tensor:
    """argmin g(x, .; zeta), as closely as `how` says, from y."""
    if waits_for(y):  # elsewhere a look costs nothing, and the plain loop keeps records' last bits
        loop = Loop(y, lambda y: [Asked("g_y", x, y, zeta)], how.lr, how.is_met)
        return descend_until(o, [loop], how.steps)[0].y
    for _ in range(how.steps):
        gradient = o.g_y(x, y, zeta)
        if how.is_met(gradient):
            break
        y = o.project_y(y - how.lr * gradient)
    return y
