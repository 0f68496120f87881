"""How much to regularise ridge regression: the weight that is best on validation data.

    python examples/ridge.py

x is the logarithm of the weight, and y are the coefficients. Given x the coefficients have a closed
form, so the best x is found by a minimisation over one number, to hold the methods against.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from bench import solve

METHODS = ("aid_cg", "amigo", "hoag", "fsobo", "itd", "stocbio")


class Ridge(NamedTuple):
    """Training rows A [n, d] with answers a [n], validation rows B with answers b."""

    A: Tensor
    a: Tensor
    B: Tensor
    b: Tensor

    def upper(self, x: Tensor, y: Tensor) -> Tensor:
        """The validation error."""
        return (self.B @ y - self.b).square().mean()

    def lower(self, x: Tensor, y: Tensor) -> Tensor:
        """The training error with the penalty exp(x) |y|^2."""
        return (self.A @ y - self.a).square().mean() + x.exp() * y.square().sum()

    def solution(self, x: float) -> Tensor:
        """The closed form of the coefficients y*(x)."""
        n, d = self.A.shape
        gram = self.A.T @ self.A / n + math.exp(x) * torch.eye(d, dtype=self.A.dtype)
        return torch.linalg.solve(gram, self.A.T @ self.a / n)

    def best(self) -> float:
        """argmin of the validation error at y*(x), by a search over x alone."""

        def value(x: float) -> float:
            return float((self.B @ self.solution(x) - self.b).square().mean())

        found = minimize_scalar(value, bounds=(-5, 5), method="bounded", options={"xatol": 1e-10})
        return float(found.x)


def ridge(n: int = 50, d: int = 10, noise: float = 4.0, seed: int = 0) -> Ridge:
    """Made-up rows and linear answers with noise."""
    rng = torch.Generator().manual_seed(seed)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    weights, A, B = randn(d), randn(n, d), randn(100, d)
    return Ridge(A, A @ weights + noise * randn(n), B, B @ weights + noise * randn(100))


def main(methods: Sequence[str] = METHODS, steps: int = 200) -> dict[str, float]:
    """Print where each method ends, and give the distance from the closed form, by method."""
    torch.set_num_threads(1)  # the tensors are small: more threads would wait for each other
    problem = ridge()
    best, distances = problem.best(), {}
    print(f"closed form: x* = {best:.6f}, a weight of {math.exp(best):.4f}")
    x0, y0 = torch.zeros((), dtype=torch.float64), torch.zeros(10, dtype=torch.float64)
    for method in methods:
        found = solve(problem.upper, problem.lower, x0, y0, method, steps=steps, progress=False)
        distances[method] = abs(float(found.x) - best)
        calls = ", ".join(f"{key} {count:,}" for key, count in sorted(found.calls.items()))
        print(f"{method:8s} x = {float(found.x):.6f}, off by {distances[method]:.1e} ({calls})")
    return distances


if __name__ == "__main__":
    main()
