"""Multitask classification: its recipes and its loss, written from NCGS (Qu, Li, Xu, 2018),
sections 6.1.2 and 6.2.
"""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor

from bench.core.draw import Draw, generator
from bench.core.oracle import Oracle
from bench.core.settings import BadSetting
from bench.core.task import Context
from tasks import multitask as module
from tasks.multitask import TaskSamples, multitask, noisy_versions, synthetic
from tests.conftest import ROOT


def test_the_synthetic_recipe() -> None:
    """Group i: U with N(0, 1) entries, D with entries of U(1, 2), theta and b of random signs; task
    (i, k): Sigma_ik = U (D + Delta) U^T, Delta of U(0, .1), so a = U (D + Delta)^(1/2) z with z
    normal; y = 1 with probability 1 / (1 + exp(<theta, a> + b)). The last feature 1 carries b.

    float32, three features: 1e-5.
    """
    groups, similar, samples, d = 2, 3, 40, 3
    found = synthetic(generator("recipe"), groups, similar, samples, d)
    rng, row = generator("recipe"), 0
    for i in range(groups):
        U = torch.randn(d, d, generator=rng)
        D = 1 + torch.rand(d, generator=rng)
        signs = torch.randint(2, (d + 1,), generator=rng) * 2 - 1
        for k in range(similar):
            delta = 0.1 * torch.rand(d, generator=rng)
            root = U @ torch.diag((D + delta) ** 0.5)
            z = torch.randn(samples, d, generator=rng)
            coins = torch.rand(samples, generator=rng)
            for j in range(samples):
                a = [*(root @ z[j]).tolist(), 1.0]
                assert found.features[row].tolist() == pytest.approx(a, abs=1e-5)
                chance = 1 / (1 + math.exp(sum(s * v for s, v in zip(signs.tolist(), a))))
                assert float(found.labels[row]) == (float(coins[j]) < chance)
                assert int(found.tasks[row]) == i * similar + k
                row += 1
    assert row == len(found.features) == len(found.labels) == len(found.tasks)


@pytest.mark.parametrize("most", [None, 3, 50])
def test_the_recipe_of_real_data(most: int | None) -> None:
    """Features scaled to [-1, 1], a constant one to -1; each class's samples, at most `most`, have
    label 1, as many of the others label 0; each version adds noise of its own to all of them."""
    classes = torch.tensor([2, 7, 7, 2, 7, 2, 2, 5, 7, 5, 7])
    pixels = torch.rand(len(classes), 3, generator=generator("pixels")) * 9 - 4
    pixels[:, 1] = 6.0
    found, originals = noisy_versions(generator("versions"), pixels, classes, 2, 0.2, most)
    rng, row = generator("versions"), 0
    low, high = pixels.amin(0), pixels.amax(0)
    scaled = torch.full_like(pixels, -1.0)
    for c in (0, 2):
        scaled[:, c] = -1 + 2 * (pixels[:, c] - low[c]) / (high[c] - low[c])
    for number, kind in enumerate((2, 5, 7)):
        own = [i for i, c in enumerate(classes.tolist()) if c == kind]
        own = [own[p] for p in torch.randperm(len(own), generator=rng).tolist()]
        own = own if most is None else own[:most]
        others = [i for i, c in enumerate(classes.tolist()) if c != kind]
        others = [others[p] for p in torch.randperm(len(others), generator=rng).tolist()]
        rows = own + others[: len(own)]
        for version in range(2):
            noise = torch.randn(len(rows), 3, generator=rng)
            for j, i in enumerate(rows):
                expected = [*(scaled[i] + 0.2 * noise[j]).tolist(), 1.0]
                assert found.features[row].tolist() == pytest.approx(expected, abs=1e-5)
                assert float(found.labels[row]) == (j < len(own))
                assert int(found.tasks[row]) == 2 * number + version
                assert int(originals[row]) == i
                row += 1
    assert row == len(found.features) == len(originals)


def split(
    data: TaskSamples, held_out: float, rng: torch.Generator, originals: list[int] | None = None
) -> tuple[list[Any], list[Any]]:
    """(train, test) rows (a, y, t), an original being held out with that probability, and with it
    all samples that are copies of it; None: each sample is one."""
    originals = list(range(len(data.tasks))) if originals is None else originals
    tossed = torch.rand(max(originals) + 1, generator=rng).tolist()
    coins = [tossed[i] for i in originals]
    features, labels = data.features.double(), data.labels.tolist()
    rows = list(zip(features, labels, data.tasks.tolist(), coins))
    return [r for r in rows if r[3] >= held_out], [r for r in rows if r[3] < held_out]


def answer(x: Tensor, a: Tensor, t: int) -> float:
    """1 / (1 + exp(<x_t, a>)), the bias among them."""
    return 1 / (1 + math.exp(float(a @ x[:, t])))


SMALL: dict[str, Any] = {"groups": 2, "similar": 3, "samples": 8, "features": 4}


@pytest.mark.parametrize("held_out", [0.0, 0.3])
def test_the_loss_and_what_is_measured(held_out: float, context: Context) -> None:
    """The mean of (y - 1 / (1 + exp(<x_t, a>)))^2 and its derivative, -2 (y - s) ds/dx with
    ds/dx_t = -s (1 - s) a; the accuracy of s > 1/2 on what is held out."""
    rng = generator("multitask", 6)
    train, test = split(synthetic(rng, 2, 3, 8, 4), held_out, rng)
    task = multitask(context, **SMALL, held_out=held_out, radius=1.5, gamma=0.4, instance=6)
    start, y = task.init(generator())
    assert start.shape == (5, 6)
    assert not start.any()
    x = torch.randn(5, 6, generator=generator("x"), dtype=torch.float64)
    everything = Draw(task, 0, 0).f(None)
    assert everything.tolist() == list(range(len(train)))
    for rows in (everything, torch.arange(len(train)), torch.tensor([5, 0, 21, 5])):
        value, slope = 0.0, torch.zeros_like(x)
        for r in rows.tolist():
            a, label, t, _ = train[r]
            s = answer(x, a, t)
            value += (label - s) ** 2 / len(rows)
            slope[:, t] += 2 * (label - s) * s * (1 - s) * a / len(rows)
        assert float(task.upper(x, y, rows)) == pytest.approx(value, rel=1e-10)
        found = Oracle(task).f_x(x, y, rows)
        torch.testing.assert_close(found, slope, rtol=1e-10, atol=1e-12)
        assert found.is_contiguous()
    told = {name: float(v) for name, v in task.evaluate(x, y, 0).items()}
    slope = Oracle(task).f_x(x, y, everything)
    assert task.feasible.project is not None
    moved = task.feasible.project(x - 0.4 * slope)
    hits = [(answer(x, a, t) > 0.5) == (label == 1) for a, label, t, _ in test]
    values = torch.linalg.svdvals(x)
    assert told == pytest.approx(
        {
            "objective": float(task.upper(x, y, everything)),
            "mapping_sq": float(((x - moved) / 0.4).square().sum()),
            "fw_gap": float((slope * x).sum() + 1.5 * torch.linalg.svdvals(slope)[0]),
            "nuclear_norm": float(values.sum()),
            "rank": 5.0,
            **({"test_accuracy": sum(hits) / len(hits)} if hits else {}),  # of nothing: none
        },
        rel=1e-8,
    )
    assert float(torch.linalg.svdvals(moved).sum()) == pytest.approx(1.5)
    assert task.metric == "objective"


def test_real_data_make_tasks(context: Context) -> None:
    """Digits by the recipe with the settings named, which `sources` holds the checksum of."""
    from sklearn.datasets import load_digits

    task = multitask(
        context, source="digits", versions=2, most=6, noise=0.1, held_out=0.2, instance=1
    )
    rng, digits = generator("multitask", 1), load_digits()
    pixels, classes = torch.from_numpy(digits.data).float(), torch.from_numpy(digits.target)
    data, originals = noisy_versions(rng, pixels, classes, 2, 0.1, 6)
    train, test = split(data, 0.2, rng, originals.tolist())
    x = 0.1 * torch.randn(65, 20, generator=generator("x"), dtype=torch.float64)
    errors = [(label - answer(x, a, t)) ** 2 for a, label, t, _ in train]
    everything = Draw(task, 0, 0).f(None)
    value = float(task.upper(x, x.new_zeros(0), everything))
    assert value == pytest.approx(sum(errors) / len(errors), rel=1e-10)
    hits = [(answer(x, a, t) > 0.5) == (label == 1) for a, label, t, _ in test]
    told = float(task.evaluate(x, x.new_zeros(0), 0)["test_accuracy"])
    assert told == pytest.approx(sum(hits) / len(hits))
    assert list(task.report.sources) == ["sklearn.datasets.load_digits"]


def test_a_sample_that_is_held_out_has_no_copy_in_training(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without noise a copy is known by its features: the numbers of its row, in their order."""
    seen: list[TaskSamples] = []

    def watched(*parts: Tensor) -> TaskSamples:
        seen.append(TaskSamples(*parts))
        return seen[-1]

    pixels, classes = torch.arange(60.0)[:, None], torch.arange(60) % 3
    monkeypatch.setattr(module, "table", lambda source, context: (pixels, classes, {}))
    monkeypatch.setattr(module, "TaskSamples", watched)
    multitask(context, source="digits", versions=4, noise=0.0, held_out=0.3, instance=1)
    whole, train, test = ({round(v, 6) for v in s.features[:, 0].tolist()} for s in seen[:3])
    assert train | test == whole
    assert train
    assert test
    assert train.isdisjoint(test)


def test_a_task_without_samples_is_refused(context: Context) -> None:
    """Whichever task it is: the last one at .8, each at 1."""
    for held_out in (0.8, 1.0):
        words = rf"task\.held_out={held_out}: a task has no sample left; write less"
        with pytest.raises(BadSetting, match=words):
            multitask(context, **SMALL | {"samples": 6}, held_out=held_out, instance=2)


def test_the_instance_names_the_data(context: Context) -> None:
    """None: the seed does."""
    values = []
    for seed, instance in ((3, None), (0, 3), (1, 3), (0, 4)):
        task = multitask(replace(context, seed=seed), **SMALL, instance=instance)
        x = torch.ones(5, 6, dtype=torch.float64)
        values.append(float(task.upper(x, x.new_zeros(0), Draw(task, 0, 0).f(None))))
    assert values[0] == values[1] == values[2] != values[3]


def test_a_libsvm_file_makes_tasks(tmp_path: Path) -> None:
    """Three classes of ten samples with two features, two versions of each."""
    (tmp_path / "libsvm").mkdir()
    lines = [f"{k % 3 + 1} 1:{k / 10} 2:{(k * 7) % 5}" for k in range(30)]
    (tmp_path / "libsvm" / "Sensorless.scale").write_text("\n".join(lines) + "\n")
    task = multitask(Context(data_root=tmp_path), source="sensorless", versions=2, held_out=0.0)
    assert task.init(generator())[0].shape == (3, 6)
    assert task.data.count(Draw(task, 0, 0).f(None)) == 120
    assert list(task.report.sources) == ["libsvm/Sensorless.scale"]


CLASSES = {"aloi": 108_000, "covertype": 581_012, "sensorless": 58_509, "digits": 1_797}


@pytest.mark.parametrize("figure", ["fig2", "fig3"])
def test_batches_and_epochs_are_those_of_the_papers_powers(figure: str) -> None:
    """b = n^(2/3) and m = n^(1/3) of the nine tenths that are not held out (section 6.1.2).

    A class of a real data set makes five tasks, of its samples and as many others.
    """
    rows = OmegaConf.load(ROOT / "conf" / "paper" / "ncgs" / f"{figure}.yaml").rows
    seen = 0
    for row in rows.values():
        s = row.set
        if "algorithm.batch" not in s:
            continue
        if figure == "fig2":
            total = s["task.groups"] * s["task.similar"] * s["task.samples"]
        else:
            total = 5 * 2 * CLASSES[s["task.source"]]
        n = 0.9 * total
        assert s["algorithm.batch"] == pytest.approx(n ** (2 / 3), rel=0.005)
        assert s["algorithm.epoch"] == round(n ** (1 / 3))
        seen += 1
    assert seen == 12
