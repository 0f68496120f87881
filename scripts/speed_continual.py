"""Continual learning: images a second of experience replay on a stream of permuted images.

    uv run python scripts/speed.py --continual

Random images of MNIST's form, 20 tasks in batches of 10 with 50 replayed of 50 remembered of each
task, an MLP of two layers of 256, float32. Ours is algorithms/continual/er.py as `bench` runs it,
the counted oracle and the draws by name included, tests at task ends not; the other one is a loop
as it is usually written: torch's modules, SGD and DataLoader, and a memory of images. Before they
are timed both must end at the same parameters, with the same replays, on one thread: with more,
sums are rounded in other orders, which ReLUs amplify.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

TASKS, IMAGES, BATCH, MEMORY, HIDDEN, LR = 20, 200, 10, 50, 256, 0.03
TOLERANCE = 1e-3  # of |usual - ours| / |ours|: rounding in float32, over 400 steps
THREADS = (1, 2)


def stream() -> Any:
    """The task itself, on made-up images of ten classes in place of MNIST."""
    from bench.task import Context
    from tasks.continual import permuted_mnist
    from tasks.data.images import Images, Part, Split

    rng = torch.Generator().manual_seed(0)
    labels = torch.randint(10, (2 * IMAGES,), generator=rng)
    means = torch.rand(10, 784, generator=rng)
    features = (means[labels] + 0.5 * torch.randn(len(labels), 784, generator=rng)).clamp(0, 1)
    part = Part(features, labels)
    with mock.patch("tasks.continual.load", return_value=Split(part, part, part, part, {})):
        sizes = Images("mnist", len(labels), 1, 1, len(labels))
        task = permuted_mnist(Context(), sizes, TASKS, IMAGES, BATCH, hidden=HIDDEN)
    return replace(task, ledger=None, evaluate=lambda x, y, step: {"ACC": torch.zeros(())})


def ours(task: Any) -> Callable[[], Tensor]:
    from algorithms.continual.er import er
    from bench.run import run

    def work() -> Tensor:
        steps = TASKS * IMAGES // BATCH
        end = run(task, er(LR, MEMORY, MEMORY), seed=0, steps=steps, every=steps)
        y: Tensor = end.state.y
        return y

    return work


def usual(task: Any, places: Callable[[int, int], Tensor]) -> Callable[[], Tensor]:
    """places(n, step): which of the n remembered images are replayed."""
    from bench.rng import generator

    every = task.stream.recalled(torch.arange(TASKS * IMAGES))

    def work() -> Tensor:
        layers = [nn.Linear(784, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU()]
        net = nn.Sequential(*layers, nn.Linear(HIDDEN, 10))
        start = task.init(generator(0, "init"))[1]
        nn.utils.vector_to_parameters(start, net.parameters())
        optimizer = torch.optim.SGD(net.parameters(), LR)
        memory = torch.zeros(TASKS, MEMORY, 784)
        answers = torch.zeros(TASKS, MEMORY, dtype=torch.int64)
        for t in range(TASKS):
            rows = slice(t * IMAGES, (t + 1) * IMAGES)
            loader = DataLoader(TensorDataset(every.images[rows], every.labels[rows]), BATCH)
            for k, (images, labels) in enumerate(loader):
                round_ = torch.arange(k * BATCH, (k + 1) * BATCH) % MEMORY
                memory[t, round_], answers[t, round_] = images, labels
                loss = F.cross_entropy(net(images), labels)
                if t > 0:
                    drawn = places(t * MEMORY, t * (IMAGES // BATCH) + k)
                    old = net(memory[:t].flatten(0, 1)[drawn])
                    loss = loss + F.cross_entropy(old, answers[:t].flatten()[drawn])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        return nn.utils.parameters_to_vector(net.parameters()).detach()

    return work


def as_ours(task: Any) -> Callable[[int, int], Tensor]:
    """The places that algorithms/continual/er.py draws."""
    from bench.rng import Draw

    return lambda n, step: Draw(task, 0, step).some(torch.arange(n), MEMORY)


def report(repeats: int) -> None:
    """Prints a line for each number of threads."""
    task = stream()
    ways = {"ours": ours(task), "usual": usual(task, lambda n, step: torch.randperm(n)[:MEMORY])}
    torch.set_num_threads(1)
    end, other = ways["ours"](), usual(task, as_ours(task))()
    error = float((end - other).norm() / end.norm())
    assert error <= TOLERANCE, f"they disagree: {error:.1e}"
    images = TASKS * IMAGES
    print(f"ER-Ring, {TASKS} tasks of {IMAGES} images, MLP {HIDDEN} x 2; torch {torch.__version__}")
    print(f"both end at the same parameters to {error:.1e}")
    print(f"{'threads':>7} {'ours images/s':>14} {'usual images/s':>15} {'ratio':>6}")
    for threads in THREADS:
        torch.set_num_threads(threads)
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(repeats):
            for name, work in ways.items():
                start = time.perf_counter()
                work()
                times[name].append(time.perf_counter() - start)
        rates = {name: images / median(spent) for name, spent in times.items()}
        print(
            f"{threads:>7} {rates['ours']:>14.0f} {rates['usual']:>15.0f} "
            f"{rates['ours'] / rates['usual']:>6.2f}"
        )
