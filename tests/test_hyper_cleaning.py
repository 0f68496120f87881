"""Hyper-cleaning: who gets which image, which labels are wrong, what the lines are."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from algorithms.bilevel.stocbio import stocbio
from bench.descent import gd
from bench.oracle import Oracle
from bench.rng import Draw, generator
from bench.settings import BadSetting
from bench.task import Context
from tasks.data.images import Images, load
from tasks.hyper_cleaning import Pretraining, Recorrupted, corrupted, hyper_cleaning
from tests.conftest import Cli

DIGITS = Images("digits", train=1000, val=100, val2=200, test=497)


def test_parts_are_disjoint_and_follow_their_name(context: Context) -> None:
    split = load(DIGITS, context, "a")
    parts = [split.train, split.val, split.val2, split.test]
    assert [len(p.labels) for p in parts] == [1000, 100, 200, 497]
    from sklearn.datasets import load_digits

    pooled = torch.cat([p.features for p in parts])
    whole = torch.from_numpy(load_digits().data).float() / 16
    assert sorted(map(tuple, pooled.tolist())) == sorted(map(tuple, whole.tolist()))
    assert torch.equal(load(DIGITS, context, "a").val.labels, split.val.labels)
    assert not torch.equal(load(DIGITS, context, "b").val.labels, split.val.labels)


def test_more_images_than_there_are_is_refused(context: Context) -> None:
    with pytest.raises(BadSetting, match="more images than digits has: 1,797"):
        load(Images("digits", 1000, 500, 200, 100), context, "a")


@pytest.mark.parametrize(("redraw", "wrong"), [("any", 0.45), ("other", 0.5)])
def test_corruption_rate(redraw: str, wrong: float) -> None:
    """Half redrawn: 45% end up wrong if a redraw may hit the right class, else 50%.

    The first is binomial over 10,000 redraws: standard deviation .15 points of 20,000 labels.
    """
    truth = torch.randint(10, (20_000,), generator=generator("truth"))
    labels = corrupted(truth, 0.5, redraw, generator("noise"))
    rate = float((labels != truth).double().mean())
    assert rate == pytest.approx(wrong, abs=0.006 if redraw == "any" else 0)
    assert set(labels.tolist()) == set(range(10))


def test_upper_data_name_what_f_is_the_loss_of(context: Context) -> None:
    def rows(which: str) -> int:
        task = hyper_cleaning(context, DIGITS, Pretraining(), upper_data=which)  # type: ignore[arg-type]
        return task.count(Draw(task, 0, 0).f())

    assert rows("validation") == 100
    assert rows("noisy") == rows("restored") == 1100
    assert 100 + 500 < rows("clean") < 100 + 600  # 500 untouched, a tenth of 500 redrawn right


def test_fixed_split_of_the_released_code_ignores_the_seed() -> None:
    def theta(variant: str, seed: int) -> torch.Tensor:
        context = Context(seed=seed)
        task = hyper_cleaning(context, DIGITS, Pretraining(steps=3), variant=variant)  # type: ignore[arg-type]
        return task.init(generator())[1]

    assert torch.equal(theta("code", 0), theta("code", 1))
    assert not torch.equal(theta("paper", 0), theta("paper", 1))


def test_labels_and_start_alone_follow_the_seed() -> None:
    def parts(seed: int, **settings: Any) -> tuple[torch.Tensor, ...]:
        task = hyper_cleaning(Context(seed=seed), DIGITS, Pretraining(steps=3), **settings)
        batch = Draw(task, seed, 0).g()
        return batch.features, batch.labels, task.init(generator())[1]

    first, second = parts(0, resplit="labels"), parts(1, resplit="labels")
    assert torch.equal(first[0], second[0])
    assert not torch.equal(first[1], second[1])
    assert not torch.equal(first[2], second[2])
    for a, b in zip(first, parts(0), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("visits", [0.1, 1.0, 2.5])
def test_labels_redrawn_at_every_visit_end_up_wrong(visits: float) -> None:
    """After v visits .9 (1 - (1 - p / .9)^v) are wrong: a redraw may put a label right again.

    Of 20,000 labels: standard deviation at most .0036; five of them. An answer does not depend on
    what was asked before.
    """
    truth = torch.randint(10, (20_000,), generator=generator("truth"))
    walk = Recorrupted(truth, 0.1, "other", visits, 0)
    for step in (0, 9, 49, 9):
        whole = int(visits * (step + 1))
        part = visits * (step + 1) - whole
        wrong = [0.9 * (1 - (1 - 0.1 / 0.9) ** v) for v in (whole, whole + 1)]
        labels = walk.at(step)
        expected = (1 - part) * wrong[0] + part * wrong[1]
        assert float((labels != truth).double().mean()) == pytest.approx(expected, abs=0.018)
        assert torch.equal(labels, Recorrupted(truth, 0.1, "other", visits, 0).at(step))


def test_the_released_stocbio_redraws_labels_and_never_moves_x(context: Context) -> None:
    """200 batches of 50 from 20,000: half a visit a step. 5%, 39%, 85% wrong at steps 1, 10, 50."""
    images = Images("digits", 1000, 100, 100, 200)
    task = hyper_cleaning(
        context, images, Pretraining(), "stocbio", "code", corruption=0.1, redraw="other",
        recorrupt=0.5, frozen=True,
    )  # fmt: skip
    clean = hyper_cleaning(context, images, Pretraining(), "stocbio", "code", corruption=0.0)
    truth = Draw(clean, 0, 0).g().labels
    for step, wrong in [(0, 0.05), (9, 0.40), (49, 0.853)]:  # deviation at most .016
        labels = Draw(task, 0, step).g().labels
        assert float((labels != truth).double().mean()) == pytest.approx(wrong, abs=0.06)
    x, y = task.init(generator())
    algorithm = stocbio(gd(1.0), 0.1, 0.5, T=1, Q=1, batch=10)
    state, info = algorithm.step(Oracle(task), algorithm.init(x, y), Draw(task, 0, 0))
    assert info["hypergrad_sq"] > 0
    assert torch.equal(state.x, x)
    assert not torch.equal(state.y, y)


def test_pixels_are_standardised_one_by_one(context: Context) -> None:
    images = Images("digits", 1000, 100, 100, 200)
    task = hyper_cleaning(context, images, Pretraining(), standardise="pixels", bias="none")
    pixels = Draw(task, 0, 0).g().features
    deviation = pixels.std(0, unbiased=False)
    assert float(pixels.mean(0).abs().max()) < 1e-5  # pixels are read in single precision
    varying = deviation > 0
    torch.testing.assert_close(
        deviation[varying], torch.ones_like(deviation[varying]), atol=1e-4, rtol=0
    )
    assert 0 < int((~varying).sum()) < 10  # corners that are always empty


def test_weights_are_counted_by_the_truth_of_their_labels(context: Context) -> None:
    task = hyper_cleaning(context, DIGITS, Pretraining(), corruption=0.5, redraw="other")
    clean = hyper_cleaning(context, DIGITS, Pretraining(), corruption=0.0)
    right = Draw(task, 0, 0).g().labels == Draw(clean, 0, 0).g().labels
    x, y = task.init(generator())
    x = torch.where(right, 0.99, 0.01).to(x)  # a perfect cleaning but for 100 of each kind
    x[right.nonzero()[:100]], x[(~right).nonzero()[:100]] = 0.01, 0.99
    assert task.view is not None
    view = task.view(x, y, 0)
    assert view.sizes == {"right label": 500, "wrong label": 500}
    assert view.shares["right label"][-1] == pytest.approx(0.8)
    assert view.shares["right label"][0] == pytest.approx(0.2)
    assert view.shares["wrong label"][-1] == pytest.approx(0.2)
    found = task.evaluate(x, y, 0)
    assert float(found["cleaning_precision"]) == pytest.approx(400 / 500)
    assert float(found["cleaning_recall"]) == pytest.approx(400 / 500)
    assert float(found["cleaning_f1"]) == pytest.approx(0.8)


def test_pretraining_is_kept_and_found_again(tmp_path: Path, context: Context) -> None:
    """Long enough to be cached; the second start reads what the first wrote, to the bit."""
    from dataclasses import replace

    here = replace(context, data_root=tmp_path)
    how = Pretraining(steps=16_000, lr=0.1)
    thetas = [hyper_cleaning(here, DIGITS, how).init(generator())[1] for _ in range(2)]
    (kept,) = (tmp_path / "derived").iterdir()
    assert torch.equal(thetas[0], thetas[1])
    assert torch.equal(thetas[0], torch.load(kept, weights_only=True))


def test_bome_beats_the_validation_only_line_on_digits(cli: Cli, tmp_path: Path) -> None:
    """The README's first command, as it stands; and the line is what it says it is."""
    done = cli()
    assert done.returncode == 0, done.stderr
    (found,) = (tmp_path / "runs").rglob("summary.json")
    summary = json.loads(found.read_text())
    (line,) = summary["references"].values()
    assert summary["last"]["test_accuracy"] > line
    assert "test accuracy of validation only" in done.stdout
    assert summary["last"]["calls/grad_g"] == 500 * 11


@pytest.mark.data
def test_mnist_split_and_a_few_steps(cli: Cli, tmp_path: Path, data_root: Path) -> None:
    """The published setting on the real images; the full 500 steps are in results, not here."""
    done = cli(
        "task/data=mnist", f"data.root={data_root}", "run.steps=20", "run.every=20",
        "task.pretraining.steps=0", "task.references=false",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (found,) = (tmp_path / "runs").rglob("summary.json")
    summary = json.loads(found.read_text())
    assert summary["last"]["samples/grad_g"] == 20 * 11 * 50_000
    assert summary["last"]["samples/grad_f"] == 20 * 5_000
    assert summary["last"]["test_accuracy"] > 0.8
    assert summary["peak_memory_mb"]["process"] < 2500
    environment = json.loads((found.parent / "environment.json").read_text())
    assert len(environment["data"]) == 4
