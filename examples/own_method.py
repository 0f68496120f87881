"""A method of your own, held against three of the suite over five seeds, with a plot.

    python examples/own_method.py [--plot own_method.png]

The method is one-step differentiation with a moving average: the hypergradient through the last of
T inner steps alone, averaged over the steps. The problem is a least-squares fit in which half of
the groups of training rows are noise, and x weighs the groups. Without --plot the plot is shown on
the screen.
"""

import argparse
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from bench import Algorithm, Cost, Count, Draw, Oracle, Positive, Rate, Solution, solve
from bench.contract import check_algorithm

RIVALS = ("itd", "stocbio", "bome")


class State(NamedTuple):
    x: Tensor
    y: Tensor
    mean: Tensor  # of the hypergradients so far


def one_step(
    outer_lr: Positive = 0.05,
    inner_lr: Positive = 0.05,
    T: Count = 10,
    keep: Rate = 0.9,
    batch: Count | None = None,
) -> Algorithm:
    """One-step differentiation. keep: what stays of the mean of hypergradients in a step.

    Caveat: only the last inner step is differentiated.
    """

    def init(x: Tensor, y: Tensor) -> State:
        return State(x, y, torch.zeros_like(x))

    def step(o: Oracle, s: State, draw: Draw) -> tuple[State, dict[str, Tensor]]:
        x, y = s.x, s.y
        for _ in range(T):
            y = o.project_y(y - inner_lr * o.g_y(x, y, draw.g(batch)))
        f_x, f_y = o.grad_f(x, y, draw.f(batch))
        hypergrad = f_x - inner_lr * o.g_xy(x, y, draw.g(batch))(f_y)
        mean = keep * s.mean + (1 - keep) * hypergrad
        new = State(o.project(x - outer_lr * mean), y, mean)
        return new, {"hypergrad_sq": hypergrad.square().sum()}

    cost = Cost(grad_g=T, grad_f=1, jvp_g=1, batch=batch)
    return Algorithm(init, step, cost=cost)


def groups(seed: int) -> tuple[tuple[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Training rows with answers and the number of their group, and validation rows with answers.

    There are ten groups of 40 rows; the answers of half of the groups are noise alone.
    """
    rng = torch.Generator().manual_seed(seed)
    A, B = torch.randn(400, 10, generator=rng), torch.randn(100, 10, generator=rng)
    weights, group = torch.randn(10, generator=rng), torch.arange(400) % 10
    noise = torch.randn(400, generator=rng)
    a = torch.where(group < 5, A @ weights + 0.1 * noise, 3 * noise)
    return (A, a, group), (B, B @ weights + 0.1 * torch.randn(100, generator=rng))


def upper(x: Tensor, y: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
    """The error on validation rows."""
    rows, answers = batch
    return (rows @ y - answers).square().mean()


def lower(x: Tensor, y: Tensor, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """The training error, each row weighted by the sigmoid of its group's x."""
    rows, answers, group = batch
    return (x.sigmoid()[group] * (rows @ y - answers).square()).mean()


def run(method: str | Callable[..., Algorithm], seed: int, steps: int) -> Solution:
    """One run of a method on the problem of a seed, with batches of 64 rows."""
    train, validation = groups(seed)
    return solve(
        upper,
        lower,
        x0=torch.zeros(10),
        y0=torch.zeros(10),
        method=method,
        steps=steps,
        seed=seed,
        upper_data=validation,
        lower_data=train,
        T=5,
        batch=64,
        progress=False,
    )


def plot(curves: dict[str, Tensor], steps: list[float], file: str | None) -> None:
    """Draw the mean over seeds of each method's losses, [seeds, rows], with their range."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for name, values in curves.items():
        axes.plot(steps, values.mean(0), label=name)
        axes.fill_between(steps, values.amin(0), values.amax(0), alpha=0.2)
    axes.set(xlabel="steps of x", ylabel="validation loss", yscale="log")
    axes.legend()
    if file is None:
        plt.show()
    else:
        figure.savefig(file, dpi=150)
    plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Check the method, print where each method ends, and plot; gives the mean ends by method."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--plot", help="the file of the plot, such as own_method.png")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=100, help="of the upper variable")
    options = parser.parse_args(arguments)

    torch.set_num_threads(1)  # the tensors are small: more threads would wait for each other
    check_algorithm(one_step, inner_lr=0.5)  # pure, exact in its counts and when it goes on, ...
    curves: dict[str, Tensor] = {}
    steps: list[float] = []
    for method in (one_step, *RIVALS):
        tables = [run(method, seed, options.steps).table() for seed in range(options.seeds)]
        name = method if isinstance(method, str) else "one_step"
        curves[name] = torch.tensor([table["upper_loss"] for table in tables])
        steps = tables[0]["step"]
        ends = curves[name][:, -1]
        grads = tables[0]["calls/grad_g"][-1]
        print(f"{name:9s} validation loss {ends.mean():.4f} +- {ends.std():.4f}, grad_g {grads:,}")
    plot(curves, steps, options.plot)
    return {name: float(values[:, -1].mean()) for name, values in curves.items()}


if __name__ == "__main__":
    main()
