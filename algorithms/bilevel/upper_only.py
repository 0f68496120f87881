"""Descent on the upper loss in y alone, which ignores the lower level: reference lines.

With hyper-cleaning's `upper_data` this is the model trained on the validation set only, on all
noisy data, or on validation and correctly labelled training data (BOME, the lines of figure 2).
A run ends at its last iterate. BOME's released code reports the one of least loss on its second
validation set, and so do the rows of the artifacts, which `keep` it.
"""

from typing import Any, NamedTuple

from torch import Tensor

from bench.core.algorithm import Algorithm, Cost
from bench.core.draw import Draw
from bench.core.oracle import Oracle
from bench.core.settings import Count, NonNegative, Positive
from bench.numerics.descent import Descent


class State(NamedTuple):
    x: Tensor
    y: Tensor
    lower: Any


def upper_only(
    lower: Descent, lower_lr: Positive, l2: NonNegative = 0.0, batch: Count | None = None
) -> Algorithm:
    """Descent on f(x, .) + l2 |y|^2.

    lower, lower_lr: the rule and the size of the step on y. l2: the weight of |y|^2, which BOME's
    released code adds for the noisy line alone. batch: the samples of a batch; None: all the data.

    Caveat: it ignores the lower level, and x does not move.
    """

    def step(o: Oracle, s: State, draw: Draw) -> tuple[State, dict[str, Tensor]]:
        gradient = o.f_y(s.x, s.y, draw.f(batch)) + 2 * l2 * s.y
        y, memory = lower.step(s.y, gradient, lower_lr, s.lower)
        return State(s.x, o.project_y(y), memory), {"gradient_sq": gradient.square().sum()}

    cost = Cost(grad_f=1, batch=batch)
    return Algorithm(lambda x, y: State(x, y, lower.init(y)), step, first_order=True, cost=cost)
