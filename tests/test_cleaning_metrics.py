"""Hyper-cleaning's metrics, picture, reference line and start: by hand, on the data each may see.

In float64; the slow version sums in another order.
"""

from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bench.core.draw import Draw, generator
from bench.core.task import Context
from bench.core.view import Histogram
from tasks import hyper_cleaning as module
from tasks.hyper_cleaning import Pretraining, hyper_cleaning
from tests import cleaning as at
from tests.cleaning import made_up

pytestmark = pytest.mark.usefixtures(made_up.__name__)
N = at.SIZES["train"]


def accuracy(y: Tensor, part: str) -> float:
    """The share of images whose true class has the highest score."""
    scores = at.plain(part).numpy() @ y.numpy().T
    hits = [int(np.argmax(row)) == int(k) for row, k in zip(scores, at.truth(part), strict=True)]
    return sum(hits) / len(hits)


def some_model() -> Tensor:
    return torch.randn(10, at.WIDTH, generator=generator("a model"), dtype=torch.float64)


@pytest.mark.parametrize("upper", ["validation", "noisy", "second"])
def test_losses_and_accuracies_are_of_the_part_that_names_them(upper: str) -> None:
    """All with true labels, whatever f is the loss of; of training images none is measured."""
    task, y = at.made(upper_data=upper), some_model()
    found = {k: float(v) for k, v in task.evaluate(task.init(generator())[0], y, 0).items()}
    for part in ("test", "val2", "val"):
        loss = float(at.mean_loss(y, at.plain(part), at.truth(part)))
        assert found[f"{part}_loss"] == pytest.approx(loss, rel=1e-12)
    for part in ("test", "val2"):
        assert found[f"{part}_accuracy"] == pytest.approx(accuracy(y, part), rel=1e-12)
    assert 0 < found["test_accuracy"] < 1
    assert found["test_accuracy"] != found["val2_accuracy"]
    assert set(found) == {
        "test_accuracy", "test_loss", "val2_accuracy", "val2_loss", "val_loss",
        "cleaning_f1", "cleaning_precision", "cleaning_recall",
    }  # fmt: skip


def cleaned(x: Tensor, kind: str, right: Tensor) -> dict[str, float]:
    """Of the images whose weight is above one half, kept; of those with their true label, right."""
    weights = [float(at.weight(v, kind)) for v in x]
    keeps = [w > 0.5 for w in weights]
    both = sum(k and bool(r) for k, r in zip(keeps, right))
    precision = both / sum(keeps) if sum(keeps) else 0.0
    recall = both / int(right.sum()) if int(right.sum()) else 0.0
    f1 = 2 * precision * recall / (precision + recall) if both else 0.0
    return {"cleaning_precision": precision, "cleaning_recall": recall, "cleaning_f1": f1}


@pytest.mark.parametrize("kind", ["clip", "sigmoid"])
def test_cleaning_is_measured_against_the_truth(kind: str) -> None:
    """F1 is the harmonic mean of precision and recall; a weight of exactly one half is not kept."""
    task = at.made(weighting=kind, redraw="other", corruption=0.4)
    right = at.noisy(task) == at.truth("train")
    assert int(right.sum()) == 14
    x = torch.randn(N, generator=generator("some x"), dtype=torch.float64)
    half = 0.5 if kind == "clip" else 0.0
    cases = [x, x + 0.7, torch.full_like(x, half), torch.full_like(x, 9), torch.full_like(x, -9)]
    x[right.nonzero()[0]] = half
    for point in cases:
        found = task.evaluate(point, some_model(), 0)
        for name, expected in cleaned(point, kind, right).items():
            assert float(found[name]) == pytest.approx(expected, rel=1e-12), name
    lost = at.made(redraw="other", corruption=1.0)
    for point in (torch.ones(N).double(), torch.zeros(N).double()):
        measured = lost.evaluate(point, some_model(), 0)
        assert {float(v) for k, v in measured.items() if "cleaning" in k} == {0.0}


def test_the_picture_is_of_the_weights_of_right_and_of_wrong_labels() -> None:
    task = at.made(redraw="other", corruption=0.4, weighting="sigmoid")
    right = at.noisy(task) == at.truth("train")
    x = torch.randn(N, generator=generator("some x"), dtype=torch.float64)
    assert task.report.view is not None
    shares: dict[str, list[float]] = {"right label": [0.0] * 40, "wrong label": [0.0] * 40}
    for v, r in zip(x, right.tolist()):
        bin_of = int(float(at.weight(v, "sigmoid")) * 40)
        shares["right label" if r else "wrong label"][bin_of] += 1 / (14 if r else 9)
    found = task.report.view(x, some_model(), 0)
    assert found.sizes == {"right label": 14, "wrong label": 9}
    for name, expected in shares.items():
        assert found.shares[name] == pytest.approx(expected)
    title = "weights of the training samples"
    assert found == Histogram(title, "weight", 0.0, 1.0, found.shares, found.sizes)


# Where theta starts


def descended(y: Tensor, rows: Tensor, labels: Tensor, how: Pretraining) -> list[Tensor]:
    """Heavy-ball iterates on the plain mean loss plus l2 |y|^2, by autograd."""
    velocity, iterates = torch.zeros_like(y), []
    for _ in range(how.steps):
        leaf = y.clone().requires_grad_()
        loss = F.cross_entropy(rows @ leaf.T, labels) + how.l2 * (leaf * leaf).sum()
        velocity = how.momentum * velocity + torch.autograd.grad(loss, leaf)[0]
        y = y - how.lr * velocity
        iterates.append(y)
    return iterates


def start(kind: str, seed: int, width: int = at.WIDTH) -> Tensor:
    """torch's linear layers are uniform within 1 / sqrt(d); stocBiO's are normal, deviation
    sqrt(2 / 10)."""
    rng = generator("model", seed)
    if kind == "uniform":
        u = torch.rand(10, width, generator=rng, dtype=torch.float64)
        return (u - 0.5) * 2 / width**0.5
    if kind == "normal":
        return torch.randn(10, width, generator=rng, dtype=torch.float64) * 0.2**0.5
    return torch.zeros(10, width, dtype=torch.float64)


HOW = [
    Pretraining(steps=4, lr=0.5),
    Pretraining(steps=4, lr=0.5, momentum=0.0, l2=0.3, start="zero"),
    Pretraining(steps=5, lr=0.7, momentum=0.5, l2=0.1, start="normal", with_validation=True),
    Pretraining("normal", steps=60, lr=0.3, momentum=0.8, l2=0.0, with_validation=True, best=True),
    Pretraining("normal", steps=60, lr=0.3, momentum=0.8, l2=0.0, best=True),
]


@pytest.mark.parametrize("seed", [0, 2])
@pytest.mark.parametrize("how", HOW, ids=str)
def test_theta_is_pretrained_on_the_corrupted_labels(how: Pretraining, seed: int) -> None:
    """Unweighted heavy-ball descent on the training set as it is given, with the clean validation
    set if asked for; the last iterate, or that of least loss on val2."""
    task = at.made(seed, how, corruption=0.6)
    rows, labels = at.plain("train", seed), at.noisy(task)
    if how.with_validation:
        rows = torch.cat([rows, at.plain("val", seed)])
        labels = torch.cat([labels, at.truth("val", seed)])
    iterates = descended(start(how.start, seed), rows, labels, how)
    val2 = [
        float(F.cross_entropy(at.plain("val2", seed) @ y.T, at.truth("val2", seed)))
        for y in iterates
    ]
    which = int(np.argmin(val2)) if how.best else how.steps - 1
    assert not how.best or 0 < which < how.steps - 1
    found = task.init(generator("anything"))[1]
    torch.testing.assert_close(found, iterates[which], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", ["uniform", "normal", "zero"])
def test_theta_without_pretraining_is_its_start(kind: Any) -> None:
    task = at.made(5, Pretraining(start=kind, steps=0), bias="column")
    torch.testing.assert_close(
        task.init(generator())[1], start(kind, 5, at.WIDTH + 1), rtol=1e-14, atol=0
    )


def test_pretrainings_defaults() -> None:
    """No steps; A.4's step .01 and c = .001; heavy-ball .9; the last iterate of training data."""
    assert asdict(Pretraining()) == {
        "start": "uniform", "steps": 0, "lr": 0.01, "momentum": 0.9, "l2": 0.001,
        "with_validation": False, "best": False,
    }  # fmt: skip


@pytest.mark.parametrize("best", [True, False])
def test_long_pretrainings_are_kept_with_all_they_depend_on(
    best: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From 1e9 features read on; on the name goes the start, the data trained on and val2."""
    asked: list[Any] = []

    def spy(name: str, context: Context, settings: Any, data: Any, train: Any) -> Tensor:
        asked.append((name, settings, list(data)))
        found: Tensor = train()
        return found

    monkeypatch.setattr(module, "train_or_load", spy)
    monkeypatch.setattr(module, "descend", lambda y, *_: y + 1)
    steps = -(-(10**9) // (N * at.WIDTH))
    for count in (steps - 1, steps):
        how = Pretraining(steps=count, best=best)
        task = at.made(1, how)
        theta = task.init(generator())[1]
        torch.testing.assert_close(theta, start("uniform", 1) + 1)
    ((name, settings, data),) = asked
    assert (name, settings) == ("hyper_cleaning", asdict(how))
    expected = [
        theta - 1, at.plain("train", 1), at.noisy(task), at.plain("val2", 1), at.truth("val2", 1),
    ]  # fmt: skip
    for found, wanted in zip(data, expected, strict=True):
        torch.testing.assert_close(found, wanted)


# The line that a cleaning is held against


@pytest.mark.parametrize("seed", [4, 7])
def test_the_validation_only_line(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """2,000 heavy-ball steps of .01 on the clean validation set alone, without regularisation, the
    best of them on val2; its test accuracy."""
    context = Context(seed=seed, dtype=torch.float64)
    task = hyper_cleaning(context, at.IMAGES, at.NONE, bias="none", standardise="none")
    seen: list[Tensor] = []
    accuracy_of = module._accuracy
    monkeypatch.setattr(module, "_accuracy", lambda y, p: seen.append(y) or accuracy_of(y, p))
    assert task.report.references is not None
    line = task.report.references()
    how = Pretraining(steps=2000, l2=0.0)
    val = at.plain("val", seed), at.truth("val", seed)
    iterates = descended(start("uniform", seed), *val, how)
    val2 = torch.stack(iterates) @ at.plain("val2", seed).T  # [steps, 10, n]
    labels = at.truth("val2", seed).expand(len(val2), -1)
    losses = F.cross_entropy(val2, labels, reduction="none").mean(1)
    best = int(losses.argmin())
    assert best == {4: 0, 7: 15}[seed]
    theirs = iterates[best]
    torch.testing.assert_close(seen[0], theirs, rtol=1e-9, atol=1e-12)
    scores = at.plain("test", seed) @ theirs.T
    hits = (scores.argmax(1) == at.truth("test", seed)).double().mean()
    assert line == {"test_accuracy of validation only": pytest.approx(float(hits), rel=1e-12)}
    assert at.made().report.references is None


def test_sums_of_lanes_see_nothing_of_the_run() -> None:
    """The start does not depend on the run's own randomness, only on the seed of the task."""
    task = at.made(1, Pretraining(start="normal", steps=2))
    first, second = task.init(generator("a")), task.init(generator("b"))
    assert torch.equal(first[1], second[1])
    assert torch.equal(Draw(task, 0, 0).g().features, at.plain("train", 1))
