"""MAML (Finn, Abbeel, Levine, ICML 2017, Algorithm 1) and ANIL (Raghu, Raghu, Bengio, Vinyals,
ICLR 2020), which are one method: a task's inner loop begins where the upper variable says.

Paper -> here: theta -> x, theta_i' -> the i-th part of y, alpha -> inner_lr, beta -> outer_lr,
number of inner steps -> T. On few_shot y is the stack of the episodes' networks (adapt=network,
MAML) or of their heads (adapt=head, ANIL, which does not adapt the rest of theta).

The gradient is that of f(x, y_T(x)) through the inner steps and through y_0(x), with terms of
second order, and is evaluated from the last step to the first. ITD-BiO (algorithms/bilevel/itd.py)
takes y_0 as given: it differs in the last line of the backward pass.
"""

from typing import Any, NamedTuple

from torch import Tensor

from bench.core.algorithm import Algorithm, Cost
from bench.core.draw import Draw
from bench.core.oracle import Oracle
from bench.core.settings import Count, Positive
from bench.numerics.descent import Descent


class State(NamedTuple):
    x: Tensor
    y: Tensor
    outer: Any


def maml(
    outer: Descent, outer_lr: Positive, inner_lr: Positive, T: Count = 5, batch: Count | None = None
) -> Algorithm:
    """MAML and ANIL. On a task that has no y_0(x) this is ITD-BiO.

    outer, outer_lr: the rule and the size of the step on x. inner_lr, T: the size and the number of
    the inner steps. batch: the samples of a batch; None: all the data.

    Caveat: the hypergradient is that of f(x, y_T), not of f(x, y*(x)), and is the further off, the
    worse the lower level is conditioned; a larger T mends this.
    """

    def step(o: Oracle, s: State, draw: Draw) -> tuple[State, dict[str, Tensor]]:
        xi, zeta = draw.f(batch), draw.g(batch)  # line 3: D_i' and D_i of a batch of tasks
        x = s.x
        y, back = o.origin(x, s.y, zeta)

        steps = []
        for _ in range(T):  # lines 4-7
            gradient, products = o.linearise_g_y(x, y, zeta)
            steps.append(products)
            y = o.project_y(y - inner_lr * gradient)

        hypergrad, a = o.grad_f(x, y, xi)  # line 8
        for products in reversed(steps):
            mixed, curved = products.both(-inner_lr * a)
            hypergrad, a = hypergrad + mixed, a + curved
        hypergrad = hypergrad + back(a)

        x, memory = outer.step(x, hypergrad, outer_lr, s.outer)
        return State(o.project(x), y, memory), {"hypergrad_sq": hypergrad.square().sum()}

    cost = Cost(grad_g=T, grad_f=1, jvp_g=T, hvp_g=T, batch=batch)
    return Algorithm(lambda x, y: State(x, y, outer.init(x)), step, cost=cost)
