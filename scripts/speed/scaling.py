"""How seconds grow with the problem: ours, JAX's, and a pass over the features, which is the floor.

    uv run python -m scripts.speed scaling

The work is T steps of gradient descent on softmax regression with a weight for each example, as
the lower level of hyper-cleaning is. One of rows, features, classes, T, lanes and threads changes
at a time; the others stay in the middle, where T is 1. JAX has an environment of its own. Before
they are timed, both must compute the same to 1e-4. The floor is T sums of all features, each of
which reads them once and does next to nothing else.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bench.core.settings import BadSetting
from bench.reproduce.speed import SpeedLine
from scripts.speed.harness import (
    Comparison,
    Contender,
    Timing,
    add_facts,
    check_against_first,
    in_process,
    positive,
    take_turns,
)  # fmt: skip
from scripts.speed.jax_peer import jax_contender, jax_process
from scripts.speed.peers import Unavailable
from scripts.speed.softmax import TOLERANCE, Examples, SoftmaxProblem
from scripts.speed.workload import INNER_LR, C
from tasks.models.linear import Rows, loss_gradient


class Size(NamedTuple):
    """The sizes of one piece of work."""

    rows: int
    features: int
    classes: int
    T: int
    lanes: int
    threads: int


def sizes(middle: Size) -> Iterator[tuple[str, Size]]:
    """(what changes, a size) for every size that is timed."""
    changes: dict[str, list[int]] = {
        "rows": [middle.rows // 25, middle.rows // 5, middle.rows, 2 * middle.rows],
        "features": [49, 196, 784, 3136],
        "classes": [2, 5, 10, 20, 100],
        "T": [1, 3, 10, 30],
        "lanes": [1, 2, 6, 20],
        "threads": list(range(1, middle.threads + 1)),
    }
    for what, values in changes.items():
        for value in values:
            yield what, middle._replace(**{what: value})


def made_up(size: Size) -> SoftmaxProblem:
    """Features in [0, 1], labels at random, and a point of the weights."""
    rng = torch.Generator().manual_seed(0)
    n, d, c = size.rows, size.features, size.classes
    train = Examples(torch.rand(n, d, generator=rng), torch.randint(c, (n,), generator=rng))
    val = Examples(train.features[:10].clone(), train.labels[:10].clone())
    y = torch.randn(c, d, generator=rng) / d**0.5
    return SoftmaxProblem(train, val, torch.randn(n, generator=rng), y)


def our_descent(p: SoftmaxProblem, T: int) -> Callable[[Tensor, Tensor], Tensor]:
    """The function (x, y) -> how far T steps with tasks/hyper_cleaning.py's gradient move y."""
    rows, n = Rows(p.train.features, p.train.labels, None), len(p.train.labels)

    def descend(x: Tensor, y: Tensor) -> Tensor:
        start = y
        for _ in range(T):
            g_y = loss_gradient(y, rows, torch.sigmoid(x) / n).gradient.add(y, alpha=2 * C)
            y = y - INNER_LR * g_y
        return y - start

    return descend


def time_size(what: str, size: Size, repeats: int) -> list[SpeedLine]:
    """The lines of one size; raises Unavailable without JAX."""
    p = made_up(size)
    descend = our_descent(p, size.T)
    rng = torch.Generator().manual_seed(1)
    xs = torch.randn(size.lanes, size.rows, generator=rng)
    ys = torch.randn(size.lanes, *p.y.shape, generator=rng) / size.features**0.5

    def ours() -> Tensor:
        if size.lanes == 1:
            return descend(xs[0], ys[0])
        return torch.func.vmap(descend)(xs, ys)

    def floor() -> None:
        for _ in range(size.T):
            p.train.features.sum()

    torch.set_num_threads(size.threads)
    with jax_process(p) as (ask, folder):
        np.savez(folder / "lanes.npz", x=xs.numpy(), y=ys.numpy())
        work = {"work": "descents", "lanes": size.lanes, "steps": size.T}
        contenders: list[Contender] = [in_process("ours", ours), jax_contender(ask, folder, work)]
        checked = check_against_first(contenders, TOLERANCE)
        method = f"{what} = {getattr(size, what):,}"
        lines = take_turns(method, [*checked, in_process("floor", floor)], repeats)
    return [add_facts(line, axis=what, value=getattr(size, what)) for line in lines]


def compare(options: Namespace) -> Timing:
    """Every size; raises BadSetting where JAX cannot be had."""
    middle = Size(options.rows, options.features, 10, 1, 1, options.threads)
    lines: list[SpeedLine] = []
    try:
        for what, size in sizes(middle):
            lines += time_size(what, size, options.repeats)
    except Unavailable as reason:
        raise BadSetting(str(reason)) from None
    finally:
        torch.set_num_threads(options.threads)
    shape = f"{middle.rows:,} x {middle.features} x {middle.classes}"
    return Timing(f"Gradient descent on softmax regression, around {shape}, float32", lines)


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--rows", type=positive, default=50_000, help="rows (%(default)s)")
    parser.add_argument("--features", type=positive, default=784, help="features (%(default)s)")


COMPARISON = Comparison(compare, add_options, smoke={"rows": 500, "features": 16})
