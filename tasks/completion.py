"""Robust matrix completion on a nuclear-norm ball (Qu, Li, Xu, ICML 2018, section 6.1.1):

    F(x) = sum over observed (i, j) of 1 - exp(-(x_ij - Y_ij)^2 / sigma),   |x|_* <= radius.

F is a sum, as in equation (9), and 2 / sigma-smooth. If it were a mean, the tolerance 1 / N of the
prox steps would be met at once. The loss of a batch b of the n entries stands for the whole: it is
n / |b| times the sum over b.
"""

import hashlib
import os
from pathlib import Path

import numpy as np
import torch
from torch import Generator, Tensor

from bench.core.draw import generator
from bench.core.settings import BadSetting, Count, Fraction, Natural, NonNegative, Positive, version
from bench.core.task import Batch, Context, Derivatives, Partials, Report, Task, Wrt
from bench.numerics.sets import nuclear_ball
from tasks.common.rows import row_batches, row_data
from tasks.common.stationarity import spectrum, stationarity

MOST = 1e30  # of an entry, so that float32 still has it
# the most bytes that the matrix may have, as a step holds its gradient and other matrices beside it
MATRIX = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 4


@version(3)
def completion(
    context: Context,
    rows: Count = 200,
    columns: Count = 200,
    rank: Count = 5,
    radius: Positive = 5.0,
    sigma: Positive = 1.0,
    observed: Fraction = 0.1,
    noisy: Fraction = 0.05,
    magnitude: NonNegative = 3.0,
    norm: Positive | None = None,
    held_out: Fraction = 0.1,
    gamma: Positive = 0.25,
    file: str | None = None,
    instance: Natural | None = None,
) -> Task:
    """The recipe of figure 1, or the user's own entries.

    The true matrix has `rank` equal singular values that sum to norm; None: to radius. (The paper
    has radius = rank = 5 and 8, as if each were 1.) It has no more than it has rows or columns.
    Each entry is seen with probability `observed`, and an entry that is seen is shifted with
    probability `noisy`, by noise uniform in +-magnitude.

    file: a text file below data.root with lines "row column value", numbered from 0 and separated
    by commas or blanks. A fraction held_out of the lines is kept for testing. The file says how
    many rows and columns there are, and rank, observed, noisy, magnitude and norm are not used.

    gamma: step size of the gradient mapping. The paper does not give it; the default is its beta,
    1 / (2 L) = sigma / 4. instance: names the data; None: the run's seed names them. Raises
    BadSetting.
    """
    rng = generator("completion", context.seed if instance is None else instance)
    sources: dict[str, str] = {}
    if file is not None:
        i, j, values, sources = _entries(context.data_root / file, file)
        rows, columns = int(i.max()) + 1, int(j.max()) + 1
        if rows * columns * torch.finfo(context.dtype).bits / 8 > MATRIX:
            raise BadSetting(
                f"task.file={file}: a matrix of {rows} rows and {columns} columns does not fit "
                "into this machine's memory; number both from 0 without gaps"
            )
        order = torch.randperm(len(i), generator=rng)
        cut = round(held_out * len(i))
        test, train = order[:cut], order[cut:]
        expected = (i[test], j[test], values[test])
        i, j, values = i[train], j[train], values[train]
    else:
        if rank > min(rows, columns):
            raise BadSetting(
                f"task.rank={rank}: there are {rows} rows and {columns} columns; "
                f"write at most {min(rows, columns)}"
            )
        left = torch.linalg.qr(_normal(rng, rows, rank)).Q
        right = torch.linalg.qr(_normal(rng, columns, rank)).Q
        truth = (norm or radius) / rank * left @ right.T
        i, j = (torch.rand(rows, columns, generator=rng) < observed).nonzero().T
        hit = torch.rand(len(i), generator=rng) < noisy
        noise = magnitude * (2 * torch.rand(len(i), generator=rng, dtype=torch.float64) - 1)
        values = truth[i, j] + torch.where(hit, noise, 0.0)
        expected = None
    n = len(values)
    if n == 0 and file is not None:
        raise BadSetting(f"task.held_out={held_out}: no entry of the file is left; write less")
    if n == 0:
        raise BadSetting(f"task.observed={observed}: nothing is observed; write a larger number")
    device, dtype = context.device, context.dtype
    i, j, values = i.to(device), j.to(device), values.to(device, dtype)
    everything, draw = row_batches(n, device)
    feasible = nuclear_ball(radius)

    def upper(x: Tensor, y: Tensor, batch: Batch) -> Tensor:
        off = x[i[batch], j[batch]] - values[batch]
        return (1 - torch.exp(-off.square() / sigma)).sum() * (n / len(batch))

    def grad(x: Tensor, y: Tensor, batch: Batch, wrt: Wrt) -> Partials:
        a, b = i[batch], j[batch]
        off = x[a, b] - values[batch]
        gradient = 2 / sigma * off * torch.exp(-off.square() / sigma) * (n / len(batch))
        f_x = (
            torch.zeros_like(x).index_put((a, b), gradient, accumulate=True) if "x" in wrt else None
        )
        return f_x, (torch.zeros_like(y) if "y" in wrt else None)

    def evaluate(x: Tensor, y: Tensor, step: int) -> dict[str, Tensor]:
        gradient = grad(x, y, everything, "x")[0]
        assert gradient is not None
        told = {
            "objective": upper(x, y, everything),
            **stationarity(feasible, x, gradient, gamma),
            **spectrum(x),
        }
        if expected is None:
            told["error"] = (x - truth.to(x)).square().mean().sqrt()
        elif len(expected[0]):
            a, b, v = (t.to(device) for t in expected)
            told["error"] = (x[a, b] - v.to(x)).square().mean().sqrt()
        return told

    def init(rng: Generator) -> tuple[Tensor, Tensor]:
        return torch.zeros(rows, columns, dtype=dtype, device=device), values.new_zeros(0)

    return Task(
        upper=upper,
        init=init,
        evaluate=evaluate,
        metric="mapping_sq",
        data=row_data(draw),
        feasible=feasible,
        upper_derivatives=Derivatives(grad),
        report=Report(sources=sources),
    )


def _normal(rng: Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def _entries(path: Path, name: str) -> tuple[Tensor, Tensor, Tensor, dict[str, str]]:
    """(rows, columns, values, name -> SHA-256) of a coordinate file; raises BadSetting."""
    try:
        raw = path.read_bytes()
        content = raw.decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not text"
        raise BadSetting(f"task.file={path.name}: {path}: {reason}") from None
    try:
        table = np.loadtxt(content.replace(",", " ").splitlines(), ndmin=2)
    except ValueError as error:
        raise BadSetting(f"task.file={path.name}: {error}") from None
    if table.shape[1] != 3 or len(table) == 0 or (table[:, :2] < 0).any():
        raise BadSetting(
            f"task.file={path.name}: write lines of three numbers: row column value, from 0"
        )
    if not (abs(table) < MOST).all() or (table[:, :2] > 2**31).any():
        raise BadSetting(f"task.file={path.name}: a number is not finite, or too large")
    places = torch.from_numpy(table[:, :2]).long()
    if not np.array_equal(places.numpy(), table[:, :2]):
        raise BadSetting(f"task.file={path.name}: rows and columns must be whole numbers")
    if len(places.unique(dim=0)) != len(places):
        raise BadSetting(f"task.file={path.name}: an entry is there twice")
    checksum = hashlib.sha256(raw).hexdigest()
    return places[:, 0], places[:, 1], torch.from_numpy(table[:, 2].copy()), {name: checksum}
