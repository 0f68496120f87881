"""Hyper-cleaning as its peers differentiate it: softmax regression with a weight for each example.

This file needs torch only, so that BOAT's environment, which has no bench, can import it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from scripts.speed.workload import ETA as ETA
from scripts.speed.workload import INNER_LR as INNER_LR
from scripts.speed.workload import C as C
from scripts.speed.workload import K as K
from scripts.speed.workload import T as T

CLASSES, PIXELS = 10, 784
OUTER_LR = 100.0
LOWER_LR = 0.01  # BOME's on y
TOLERANCE = 1e-4  # of |a - b| / |b|

Loss = Callable[[Tensor, Tensor], Tensor]  # (x, y) -> scalar, with the data inside

# the operations that read the training features, with how often they do; bench::... are ours
PRODUCTS = dict.fromkeys(("mm", "bmm", "addmm", "baddbmm", "linear", "scores", "combine_rows"), 1)
PRODUCTS |= dict.fromkeys(("loss_gradients", "curvatures"), 1)  # there and back in one


@dataclass(frozen=True)
class Examples:
    """features [n, 784] float32, labels [n] int64."""

    features: Tensor
    labels: Tensor


@dataclass(frozen=True)
class SoftmaxProblem:
    """The data and the point (x [n], y [10, 784]) that every outer step starts from."""

    train: Examples
    val: Examples
    x: Tensor
    y: Tensor


def lower_loss(x: Tensor, y: Tensor, train: Examples) -> Tensor:
    """g(x, y), a scalar, as tasks/hyper_cleaning.py has it."""
    losses = F.cross_entropy(train.features @ y.T, train.labels, reduction="none")
    return (torch.sigmoid(x) * losses).mean() + C * y.square().sum()


def upper_loss(y: Tensor, val: Examples) -> Tensor:
    """f(x, y), a scalar; it does not depend on x."""
    return F.cross_entropy(val.features @ y.T, val.labels)


class TensorModule(nn.Module):
    """A tensor as a module's one parameter: some peers take their variables only as modules."""

    def __init__(self, y: Tensor):
        super().__init__()
        self.y = nn.Parameter(y.clone())


class Passes(TorchDispatchMode):
    """Counts the matrix products one factor of which is as large as the training features."""

    def __init__(self, problem: SoftmaxProblem):
        super().__init__()
        self.count = 0
        self.least = problem.train.features.numel()

    def __torch_dispatch__(
        self, op: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(isinstance(t, Tensor) and t.numel() >= self.least for t in args):
            self.count += PRODUCTS.get(op.overloadpacket.__name__, 0)
        return op(*args, **(kwargs or {}))


def count_passes(problem: SoftmaxProblem, step: Callable[[], Tensor]) -> tuple[Tensor, int]:
    """What the step returns, and how often it reads the training features; slow."""
    with Passes(problem) as passes:
        value = step()
    return value, passes.count
