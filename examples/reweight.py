"""Reweighting noisy labels of an nn.Module: a network learns which of its training labels to trust.

    python examples/reweight.py [--seeds 5]

Half of the training labels of scikit-learn's digits are redrawn at random. x has a weight for each
training image, and y is a network; the lower loss is the weighted training loss, the upper one is
the loss on 50 clean validation images. Printed for each seed: the test accuracy of the network
trained with the weights that are found, beside that of the same network trained on the validation
images alone, and the mean difference with Student's 95% interval.
"""

import argparse
from collections.abc import Sequence
from typing import NamedTuple

import torch
from scipy import stats
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from bench import Functional, solve

TRAIN, VALIDATION = 600, 50
L2 = 0.001


class Split(NamedTuple):
    """Images [n, 64] and labels [n]; those of the training set are partly wrong."""

    train: tuple[Tensor, Tensor]
    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    wrong: Tensor  # [n]: which training labels are


def split(seed: int) -> Split:
    """scikit-learn's digits, cut at random; half of the training labels are redrawn."""
    images, labels = load_digits(return_X_y=True)
    rng = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(labels), generator=rng)
    z, t = torch.tensor(images).float()[order] / 16, torch.tensor(labels).long()[order]
    a, b = TRAIN, TRAIN + VALIDATION
    noisy = t[:a].clone()
    redrawn = torch.rand(a, generator=rng) < 0.5
    noisy[redrawn] = torch.randint(10, (int(redrawn.sum()),), generator=rng)
    return Split((z[:a], noisy), (z[a:b], t[a:b]), (z[b:], t[b:]), noisy != t[:a])


def network(seed: int) -> nn.Module:
    """64 inputs, 32 hidden units, 10 classes."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))


def penalty(net: nn.Module | Functional) -> Tensor:
    """The sum of the squares of all parameters."""
    return torch.stack([p.square().sum() for p in net.parameters()]).sum()


def accuracy(net: nn.Module, images: Tensor, labels: Tensor) -> float:
    """The fraction of right answers."""
    with torch.no_grad():
        return float((net(images).argmax(1) == labels).float().mean())


def train_on(net: nn.Module, images: Tensor, labels: Tensor, steps: int = 300) -> nn.Module:
    """The network trained on some images alone, by Adam."""
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        (cross_entropy(net(images), labels) + L2 * penalty(net)).backward()
        optimizer.step()
    return net


def reweighted(data: Split, seed: int, steps: int) -> tuple[nn.Module, Tensor]:
    """The network and the weights [n] that BOME finds."""

    def upper(x: Tensor, y: Functional, batch: tuple[Tensor, Tensor]) -> Tensor:
        images, labels = batch
        return cross_entropy(y(images), labels)

    def lower(x: Tensor, y: Functional, batch: tuple[Tensor, Tensor]) -> Tensor:
        images, labels = batch
        losses = cross_entropy(y(images), labels, reduction="none")
        return (x.sigmoid() * losses).mean() + L2 * penalty(y)

    found = solve(
        upper,
        lower,
        x0=torch.zeros(TRAIN),
        y0=network(seed),
        method="bome",
        steps=steps,
        every=steps,
        seed=seed,
        upper_data=data.validation,
        lower_data=data.train,
        outer_rule="adam",
        lower_rule="adam",
        progress=False,
    )
    return found.y, found.x.sigmoid()


def main(arguments: Sequence[str] | None = None) -> list[float]:
    """Print the accuracies, and give the gain of each seed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=5, help="at least 2")
    parser.add_argument("--steps", type=int, default=150, help="of the upper variable")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # the tensors are small: more threads would wait for each other
    gains = []
    for seed in range(options.seeds):
        data = split(seed)
        net, weights = reweighted(data, seed, options.steps)
        alone = accuracy(train_on(network(seed), *data.validation), *data.test)
        ours = accuracy(net, *data.test)
        right, wrong = weights[~data.wrong].mean(), weights[data.wrong].mean()
        gains.append(ours - alone)
        print(
            f"seed {seed}: reweighted {ours:.3f}, validation only {alone:.3f}; "
            f"mean weight of right labels {right:.2f}, of wrong ones {wrong:.2f}"
        )
    mean = sum(gains) / len(gains)
    low, high = stats.t.interval(0.95, len(gains) - 1, mean, stats.sem(gains))
    print(f"gain {mean:.3f}, 95% interval [{low:.3f}, {high:.3f}] over {len(gains)} seeds")
    return gains


if __name__ == "__main__":
    main()
