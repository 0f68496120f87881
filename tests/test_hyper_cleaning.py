"""Hyper-cleaning: who gets which image, which labels are wrong, what the lines are."""

import json
from pathlib import Path

import pytest
import torch

from bench.rng import Draw, generator
from bench.settings import BadSetting
from bench.task import Context
from tasks.data.images import Images, load
from tasks.hyper_cleaning import Pretraining, corrupted, hyper_cleaning
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
