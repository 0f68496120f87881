"""Linear minimisation over a nuclear-norm ball: its top singular pair against all of them.

    uv run python -m scripts.speed oracle [--size 2000] [--accuracy 1e-6]

The gradient is a dense square matrix in float64, of two kinds: independent normal entries, whose
largest singular values lie close together (the hard case), and the same plus five of rank one. The
error of a contender is what it loses of the optimal value, relative to it; a contender that loses
more than --accuracy is not timed. Ours means its iterations here: --size 20, 40 and 60 show up
to which size `top_singular` does better to decompose a matrix whole (its `dense_up_to`).
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from scipy.sparse.linalg import svds
from torch import Tensor

from bench.core.draw import generator
from bench.numerics.singular import top_singular
from scripts.speed.harness import (
    Comparison,
    Contender,
    Timing,
    exclude,
    in_process,
    positive,
    take_turns,
)  # fmt: skip

Pair = tuple[Tensor, Tensor]  # the left and right singular vector of the largest singular value
Solver = Callable[[Tensor], Pair]


def lanczos(accuracy: float, a: Tensor) -> Pair:
    """Ours by iterations, to this accuracy of the value."""
    # an upper bound on sigma is |a|_F: accuracy is asked of sigma, at least |a|_F / sqrt(rank)
    least = float(a.norm()) / min(a.shape) ** 0.5
    u, _, v = top_singular(a, accuracy * least, dense_up_to=0)
    return u, v


def full_torch(a: Tensor) -> Pair:
    """A full decomposition by torch."""
    u, _, vh = torch.linalg.svd(a, full_matrices=False)
    return u[:, 0], vh[0]


def full_numpy(a: Tensor) -> Pair:
    """A full decomposition by numpy."""
    u, _, vh = np.linalg.svd(a.numpy(), full_matrices=False)
    return torch.from_numpy(u[:, 0]), torch.from_numpy(vh[0])


def arpack(accuracy: float, a: Tensor) -> Pair:
    """One pair by ARPACK, to this accuracy of the value."""
    u, _, vh = svds(a.numpy(), k=1, tol=accuracy, rng=np.random.default_rng(0))
    return torch.from_numpy(u[:, 0].copy()), torch.from_numpy(vh[0].copy())


def contender_of(name: str, solver: Solver, a: Tensor, accuracy: float) -> Contender:
    """The solver on this matrix, excluded if it loses more of the optimal value than it may."""
    best = float(torch.linalg.matrix_norm(a, 2))
    u, v = solver(a)
    error = (best - float((u @ a @ v).abs())) / best
    contender = replace(in_process(name, partial(solver, a)), facts={"error": error})
    if error <= accuracy:
        return contender
    return exclude(contender, "misses the accuracy, not timed")


def gradients(n: int) -> dict[str, Tensor]:
    """A matrix of each kind, [n, n]."""

    def normal(rows: int, columns: int, name: str) -> Tensor:
        return torch.randn(rows, columns, generator=generator("speed", name), dtype=torch.float64)

    noise = normal(n, n, "noise")
    low = normal(n, 5, "left") @ normal(5, n, "right")
    return {"normal": noise, "normal + rank 5": noise + low / n**0.5}


def compare(options: Namespace) -> Timing:
    """Both kinds of gradients."""
    n, accuracy = options.size, options.accuracy
    solvers: dict[str, Solver] = {
        "ours (Lanczos)": partial(lanczos, accuracy),
        "full SVD (torch)": full_torch,
        "full SVD (numpy)": full_numpy,
        "ARPACK (scipy svds)": partial(arpack, accuracy),
    }
    lines = []
    for kind, a in gradients(n).items():
        contenders = [contender_of(name, find, a, accuracy) for name, find in solvers.items()]
        lines += take_turns(kind, contenders, options.repeats)
    title = f"Linear minimisation over a nuclear-norm ball, {n} x {n}, float64"
    return Timing(title, lines)


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--size", type=positive, default=2000, help="rows (%(default)s)")
    parser.add_argument("--accuracy", type=float, default=1e-6, help="relative, of the value")


COMPARISON = Comparison(compare, add_options, smoke={"size": 60}, repeats=3)
