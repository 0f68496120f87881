"""Seconds of a linear minimisation over a nuclear-norm ball: its top singular pair against all.

    uv run python scripts/speed_oracle.py [--size 2000] [--accuracy 1e-6]

The gradient is a dense square matrix in float64, of two kinds: independent normal entries, whose
largest singular values lie close together (the hard case), and the same plus five of rank one. Each
contender's error is what it lost of the optimal value, relative to it. Repeats are interleaved and
the median is printed; 2 threads.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from scipy.sparse.linalg import svds
from torch import Tensor

from bench.core.draw import generator
from bench.numerics.solve import top_singular

Pair = tuple[Tensor, Tensor]


def ours(accuracy: float) -> Callable[[Tensor], Pair]:
    def find(a: Tensor) -> Pair:
        # an upper bound on sigma is |a|_F: accuracy is asked of sigma, at least |a|_F / sqrt(rank)
        least = float(a.norm()) / min(a.shape) ** 0.5
        u, _, v = top_singular(a, accuracy * least)
        return u, v

    return find


def full_torch(a: Tensor) -> Pair:
    u, _, vh = torch.linalg.svd(a, full_matrices=False)
    return u[:, 0], vh[0]


def full_numpy(a: Tensor) -> Pair:
    u, _, vh = np.linalg.svd(a.numpy(), full_matrices=False)
    return torch.from_numpy(u[:, 0]), torch.from_numpy(vh[0])


def arpack(accuracy: float) -> Callable[[Tensor], Pair]:
    def find(a: Tensor) -> Pair:
        u, _, vh = svds(a.numpy(), k=1, tol=accuracy, rng=np.random.default_rng(0))
        return torch.from_numpy(u[:, 0].copy()), torch.from_numpy(vh[0].copy())

    return find


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--size", type=int, default=2000)
    parser.add_argument("--accuracy", type=float, default=1e-6, help="relative, of the value")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the times here as well")
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    n = arguments.size

    def normal(rows: int, columns: int, name: str) -> Tensor:
        return torch.randn(rows, columns, generator=generator("speed", name), dtype=torch.float64)

    noise = normal(n, n, "noise")
    low = normal(n, 5, "left") @ normal(5, n, "right")
    matrices = {"normal": noise, "normal + rank 5": noise + low / n**0.5}
    contenders = {
        "full SVD (torch)": full_torch,
        "full SVD (numpy)": full_numpy,
        "ARPACK (scipy svds)": arpack(arguments.accuracy),
        "ours (Lanczos)": ours(arguments.accuracy),
    }
    table = Table(title=f"{n} x {n}, float64, 2 threads, median of {arguments.repeats}")
    for column in ("gradient", "linear minimisation by", "ms", "full SVD / this", "relative error"):
        table.add_column(column, justify="left" if column[0] in "gl" else "right")
    lines: list[dict[str, Any]] = []
    for kind, a in matrices.items():
        best = float(torch.linalg.matrix_norm(a, 2))
        times: dict[str, list[float]] = {name: [] for name in contenders}
        errors = {}
        for _ in range(arguments.repeats):
            for name, find in contenders.items():
                begin = time.perf_counter()
                u, v = find(a)
                times[name].append(time.perf_counter() - begin)
                errors[name] = (best - float((u @ a @ v).abs())) / best
        first = sorted(times, key=lambda name: not name.startswith("ours"))
        lines += [{"method": kind, "name": name, "seconds": times[name]} for name in first]
        full = median(times["full SVD (torch)"])
        for name in contenders:
            spent = median(times[name])
            table.add_row(
                kind, name, f"{1e3 * spent:,.1f}", f"{full / spent:.1f}", f"{errors[name]:.1e}"
            )
    Console(width=110).print(table)
    if arguments.json:
        import speed_record

        title = f"Linear minimisation over a nuclear-norm ball, {n} x {n}, float64"
        speed_record.write(arguments.json, title, lines)


if __name__ == "__main__":
    main()
