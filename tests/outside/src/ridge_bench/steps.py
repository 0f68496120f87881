"""The step that methods of this package share."""

from torch import Tensor


def descend(point: Tensor, gradient: Tensor, lr: float) -> Tensor:
    """A step of gradient descent."""
    return point - lr * gradient
