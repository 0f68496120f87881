"""Hyper-cleaning: which images and labels each number may see, on images that name themselves."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bench.core.draw import Draw, generator
from bench.core.settings import BadSetting
from bench.core.task import Context, Task
from tasks import hyper_cleaning as cleaning_task
from tasks.data.images import Images
from tasks.hyper_cleaning import Pretraining, Recorruption, corrupt, hyper_cleaning
from tests import cleaning as at
from tests.cleaning import made_up

pytestmark = pytest.mark.usefixtures(made_up.__name__)
N = at.SIZES["train"]
PROTOCOLS = [(p, v) for p in ("bome", "stocbio") for v in ("paper", "code")]


# Who gets which image


def named(features: Tensor) -> list[int]:
    """The numbers that these images bear in their first pixel."""
    return [round(v * at.POOL) for v in features[:, 0].tolist()]


def split_of(task: Task) -> tuple[list[int], list[int]]:
    """The images of training and of validation."""
    draw = Draw(task, 0, 0)
    return named(draw.g().features), named(draw.f().features)


@pytest.mark.parametrize("seed", [0, 3])
def test_each_part_has_its_own_images_and_the_right_labels(seed: int) -> None:
    """A random order of all images: the first train, the next validate, then val2, then test."""
    task, where = at.made(seed, corruption=0.0), at.numbers(seed)
    draw = Draw(task, 0, 0)
    assert named(draw.g().features) == where["train"].tolist()
    assert named(draw.f().features) == where["val"].tolist()
    assert torch.equal(draw.g().labels, at.truth("train", seed))
    assert torch.equal(draw.f().labels, at.truth("val", seed))
    second = Draw(at.made(seed, upper_data="second"), 0, 0).f()
    assert named(second.features) == where["val2"].tolist()
    assert torch.equal(second.labels, at.truth("val2", seed))
    everyone = [i for part in where.values() for i in part.tolist()]
    assert len(set(everyone)) == len(everyone) == sum(at.SIZES.values())
    assert task.report.sources == {"made up": "0"}
    assert task.metric == "test_accuracy"


@pytest.mark.parametrize(
    ("protocol", "variant", "resplit", "images", "labels"),
    [
        ("bome", "paper", None, 3, 3),
        ("bome", "code", None, 0, 0),
        ("stocbio", "paper", None, 3, 3),
        ("stocbio", "code", None, 3, 3),
        ("bome", "paper", False, 0, 0),
        ("bome", "code", True, 3, 3),
        ("stocbio", "code", False, 0, 0),
        ("bome", "paper", "labels", 0, 3),
        ("bome", "code", "labels", 0, 3),
    ],
)
def test_what_follows_the_seed(
    protocol: str, variant: str, resplit: Any, images: int, labels: int
) -> None:
    """The run's seed is 3. Released BOME has one split, one corruption and one theta_0; "labels":
    one split, with labels and theta_0 of each seed."""
    how = Pretraining(start="normal")
    task = at.made(3, how, protocol=protocol, variant=variant, resplit=resplit)
    where = at.numbers(images)
    assert split_of(task) == (where["train"].tolist(), where["val"].tolist())
    rng = generator("corruption", labels)
    assert torch.equal(at.noisy(task), corrupt(at.truth("train", images), 0.5, "any", rng))
    drawn = torch.randn(10, at.WIDTH, generator=generator("model", labels), dtype=torch.float64)
    torch.testing.assert_close(task.init(generator())[1], 0.2**0.5 * drawn, rtol=1e-14, atol=0)


def test_what_f_is_the_loss_of() -> None:
    """Corrupted labels enter f in `noisy` alone; `clean` leaves the wrongly labelled images out,
    `restored` puts their labels right."""

    def seen(which: str) -> list[tuple[int, int]]:
        batch = Draw(at.made(upper_data=which), 0, 0).f()
        return list(zip(named(batch.features), batch.labels.tolist(), strict=True))

    train, val = at.numbers(0)["train"].tolist(), at.numbers(0)["val"].tolist()
    right, wrong = at.truth("train").tolist(), at.noisy(at.made()).tolist()
    assert sum(a != b for a, b in zip(right, wrong)) > 5
    clean = list(zip(val, at.truth("val").tolist(), strict=True))
    assert seen("validation") == clean
    assert seen("noisy") == [*zip(train, wrong), *clean]
    assert seen("restored") == [*zip(train, right), *clean]
    correct = [(i, a) for i, a, b in zip(train, right, wrong) if a == b]
    assert seen("clean") == [*correct, *clean]
    assert seen("second") == [
        *zip(at.numbers(0)["val2"].tolist(), at.truth("val2").tolist(), strict=True)
    ]


def own(batch: Any) -> Tensor:
    """The features of a batch, which may lie among all others."""
    features: Tensor = batch.features
    return features if batch.picked is None else features[batch.picked]


def test_batches_are_drawn_with_replacement_and_know_their_rows() -> None:
    """Every image can be drawn, and the numbers, features and labels of a batch are of the same
    images; a batch depends on its seed, step and turn alone."""
    task = at.made()
    draw, where = Draw(task, 5, 2), at.numbers(0)
    first, second = draw.g(600), draw.g(600)
    for batch, turn in ((first, 0), (second, 1)):
        rng = generator(5, "lower", 2, turn)
        assert torch.equal(batch.numbers, torch.randint(N, (600,), generator=rng))
        assert named(own(batch)) == where["train"][batch.numbers].tolist()
        assert torch.equal(batch.labels, at.noisy(task)[batch.numbers])
        assert task.data.count(batch) == 600
    assert set(first.numbers.tolist()) == set(range(N))
    xi = draw.f(3)
    assert named(own(xi)) == where["val"][xi.numbers].tolist()
    assert torch.equal(xi.labels, at.truth("val")[xi.numbers])
    assert task.data.rows is not None
    block = task.data.rows(draw.g(), 4, 11)
    assert block.numbers.tolist() == list(range(4, 11))
    assert named(block.features) == where["train"][4:11].tolist()
    assert torch.equal(block.labels, at.noisy(task)[4:11])
    assert (task.data.count(draw.g()), task.data.count(draw.f()), task.data.count(block)) == (
        N,
        7,
        7,
    )


# What an image becomes


def standardised(part: str, how: str) -> np.ndarray[Any, Any]:
    """The features after standardising by the statistics of the training images alone."""
    train, pixels = at.plain("train").numpy(), at.plain(part).numpy()
    if how == "scalar":
        return (pixels - train.mean()) / (train.std(ddof=1) + 1e-4)  # type: ignore[no-any-return]
    if how == "pixels":
        deviation = train.std(0)
        return (pixels - train.mean(0)) / np.where(deviation == 0, 1, deviation)  # type: ignore[no-any-return]
    return pixels


@pytest.mark.parametrize("bias", ["none", "column", "aliased"])
@pytest.mark.parametrize("how", ["none", "scalar", "pixels"])
def test_features(how: str, bias: str) -> None:
    """Statistics are taken in single precision: 1e-5. Pixel 3 never changes and stays 0."""
    for upper, part in (("validation", "val"), ("second", "val2")):
        task = at.made(standardise=how, bias=bias, upper_data=upper)
        for batch, name in ((Draw(task, 0, 0).g(), "train"), (Draw(task, 0, 0).f(), part)):
            expected = standardised(name, how)
            if bias == "column":
                expected = np.concatenate([expected, np.ones((len(expected), 1))], 1)
            elif bias == "aliased":
                expected[:, -1] += 1
            np.testing.assert_allclose(batch.features.numpy(), expected, rtol=1e-5, atol=1e-5)
            assert batch.features.dtype == torch.float64


DEFAULTS = {  # weights at x = .8 (clip: .8), start, box, bias, standardise
    ("bome", "paper"): ("clip", "weighted", 0.5, None, "column", "scalar"),
    ("bome", "code"): ("clip", "weighted", 0.5, (0.0, 1.0), "aliased", "scalar"),
    ("stocbio", "paper"): ("sigmoid", "weighted", 0.0, None, "none", "none"),
    ("stocbio", "code"): ("sigmoid", "means", 0.0, None, "column", "scalar"),
}
OTHERS: dict[str, Any] = {  # each setting, what it is set to, and its place above
    "weighting": [("clip", 0), ("sigmoid", 0)],
    "coupling": [("weighted", 1), ("means", 1)],
    "start": [(0.0, 2), (-1.5, 2), (0.25, 2)],
    "clamp": [(True, 3), (False, 3)],
    "bias": [("none", 4), ("column", 4), ("aliased", 4)],
    "standardise": [("none", 5), ("scalar", 5), ("pixels", 5)],
}


def observed(task: Task) -> tuple[Any, ...]:
    """What the settings are, from the outside: the weights' kind, the coupling, ..."""
    x_0, _ = task.init(generator())
    zeta, zero = Draw(task, 0, 0).g(), torch.zeros(10, Draw(task, 0, 0).g().features.shape[1])
    ones = torch.ones(N).double()
    assert task.lower is not None
    # at y = 0 every image loses log 10, so that g / log 10 is the mean weight
    kind = float(task.lower(0.8 * ones, zero.double(), zeta)) / np.log(10)
    sigma = {0.8: "clip", round(1 / (1 + np.exp(-0.8)), 6): "sigmoid"}[round(kind, 6)]
    y = zero.double().clone()
    y[0, 0] = 1.0
    lone = torch.zeros(N).double()
    lone[4] = 1.0
    lone = lone if sigma == "clip" else 60 * (2 * lone - 1)
    alone = float(task.lower(lone, y, zeta)) - 0.001
    one = at.sample_loss(y, zeta.features[4], int(zeta.labels[4])) / N
    coupling = "weighted" if alone == pytest.approx(float(one), rel=1e-9) else "means"
    project = task.feasible.project
    ends = project(torch.tensor([-9.0, 9.0])).tolist() if project else None
    return sigma, coupling, float(x_0.unique()), tuple(ends) if ends else None, zeta.features


def features(bias: str, how: str) -> np.ndarray[Any, Any]:
    expected = standardised("train", how)
    if bias == "column":
        return np.concatenate([expected, np.ones((N, 1))], 1)
    if bias == "aliased":
        expected[:, -1] += 1
    return expected


@pytest.mark.parametrize(("protocol", "variant"), PROTOCOLS)
def test_settings_left_open_are_those_of_the_protocol(protocol: str, variant: str) -> None:
    """BOME: section 6.1 and A.4, its code keeps x in the box; stocBiO: appendix B, its code has the
    product of means, a bias and scaled pixels. Each setting that is given changes itself alone,
    but for the start, which goes with the weighting."""
    opened = {"bias": None, "standardise": None, "protocol": protocol, "variant": variant}
    for name, choices in {"none": [(None, 0)], **OTHERS}.items():
        for value, place in choices:
            expected = list(DEFAULTS[protocol, variant])
            if name != "none":
                expected[place] = value
            if name == "weighting":
                expected[2] = 0.5 if value == "clip" else 0.0
            if name == "clamp":
                expected[3] = (0.0, 1.0) if value else None
            given = {} if name == "none" else {name: value}
            *found, seen = observed(at.made(**(opened | given)))
            assert found == expected[:4], (name, value)
            np.testing.assert_allclose(seen.numpy(), features(*expected[4:]), rtol=1e-5, atol=1e-5)


def test_closed_forms_are_those_of_weighted_losses_alone() -> None:
    assert at.made(coupling="weighted").lower_derivatives is not None
    assert at.made(coupling="means").lower_derivatives is None
    assert at.made(coupling="means").upper_derivatives is not None


@pytest.mark.parametrize("start", [None, 0.2])
@pytest.mark.parametrize("clamp", [True, False])
def test_frozen_weights_stay_at_their_start(start: float | None, clamp: bool) -> None:
    task = at.made(frozen=True, start=start, clamp=clamp)
    assert task.feasible.project is not None
    moved = task.feasible.project(torch.randn(N).double())
    assert moved.tolist() == [0.5 if start is None else start] * N
    assert torch.equal(moved, task.init(generator())[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_all_numbers_are_of_the_runs_type(dtype: torch.dtype) -> None:
    for kind in ("zero", "uniform", "normal"):
        task = hyper_cleaning(Context(dtype=dtype), at.IMAGES, Pretraining(start=kind))  # type: ignore[arg-type]
        x, y = task.init(generator())
        assert {x.dtype, y.dtype, Draw(task, 0, 0).f().features.dtype} == {dtype}
        assert (x.shape, y.shape) == ((N,), (10, at.WIDTH + 1))  # A.4: W and b


def test_too_many_images_are_refused() -> None:
    all_of_them = Images("digits", at.POOL - 30, 10, 10, 10)
    hyper_cleaning(Context(), all_of_them, at.NONE, references=False)
    with pytest.raises(BadSetting, match=r"more images than digits has: 450$"):
        hyper_cleaning(Context(), replace(all_of_them, test=11), at.NONE)


# Which labels are wrong


@pytest.mark.parametrize(("n", "rate", "count"), [(20, 0.35, 7), (23, 0.5, 12), (9, 0.0, 0)])
def test_round_rate_n_labels_are_made_wrong(n: int, rate: float, count: int) -> None:
    """The others stay as they are; which they are is random."""
    labels_of = torch.randint(10, (n,), generator=generator("some labels"))
    before = labels_of.clone()
    hit = []
    for trial in range(40):
        labels = corrupt(labels_of, rate, "other", generator("trial", trial))
        hit.append((labels != labels_of).nonzero()[:, 0].tolist())
        assert set(labels.tolist()) <= set(range(10))
        assert len(hit[-1]) == count
    assert torch.equal(labels_of, before)
    if count:
        assert {i for chosen in hit for i in chosen} == set(range(n))


@pytest.mark.parametrize("true_class", [0, 4, 9])
@pytest.mark.parametrize("redraw", ["any", "other"])
def test_redrawn_labels_are_equally_often_of_each_class(redraw: str, true_class: int) -> None:
    """All 9,000 images are of one class; those redrawn are spread over all ten classes (`any`), so
    that a tenth of them comes out right, or over the nine others. Six deviations are 190."""
    n = 9000
    labels = torch.full((n,), true_class)
    rng = generator("classes", redraw, true_class)
    counts = torch.bincount(corrupt(labels, 1.0, redraw, rng), minlength=10).tolist()
    assert len(counts) == 10
    expected = [n / 10] * 10 if redraw == "any" else [n / 9] * 10
    if redraw == "other":
        expected[true_class] = 0
    for found, wanted in zip(counts, expected):
        assert abs(found - wanted) < (190 if wanted else 1)


@pytest.mark.parametrize("redraw", ["any", "other"])
def test_the_labels_of_a_seed_stay_what_they_are(redraw: str) -> None:
    """Records depend on them: the first of a random order are chosen, then one number is drawn for
    each, its class or how far it moves on."""
    truth = torch.randint(10, (50,), generator=generator("truth"))
    rng = generator("corruption", 3)
    chosen = torch.randperm(50, generator=rng)[:20].tolist()
    drawn = torch.randint(0 if redraw == "any" else 1, 10, (20,), generator=rng).tolist()
    expected = truth.tolist()
    for i, k in zip(chosen, drawn, strict=True):
        expected[i] = k if redraw == "any" else (expected[i] + k) % 10
    assert corrupt(truth, 0.4, redraw, generator("corruption", 3)).tolist() == expected


def test_half_a_class_is_redrawn_of_any_class() -> None:
    """At rate .5 some 45% of the labels are wrong, as the redraw may hit the truth (binomial: six
    deviations of .15%)."""
    truth = torch.randint(10, (20_000,), generator=generator("truth"))
    labels = corrupt(truth, 0.5, "any", generator("noise"))
    assert float((labels != truth).double().mean()) == pytest.approx(0.45, abs=0.009)


def test_the_task_corrupts_as_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training labels alone are touched, at the given rate and in the given way."""
    for rate, redraw in ((0.5, "any"), (0.2, "other"), (1.0, "other"), (0.0, "any")):
        task = at.made(corruption=rate, redraw=redraw)
        expected = corrupt(at.truth("train"), rate, redraw, generator("corruption", 0))
        assert torch.equal(at.noisy(task), expected)
        assert torch.equal(at.noisy(task, 17), expected)
    assert torch.equal(Draw(at.made(corruption=1.0), 0, 0).f().labels, at.truth("val"))


def walked(truth: Tensor, rate: float, redraw: str, visits: float, seed: int, step: int) -> Tensor:
    """Label after label: the visits of the steps before, where one whose phase is below the part
    that has begun has one more, and those of this step, at least one; at each visit it is redrawn
    with this probability, as mnist_exp.py does before it trains on a batch."""
    n, done = len(truth), visits * step + max(visits, 1.0)
    phase = torch.rand(n, generator=generator("recorruption", seed)).tolist()
    labels = truth.tolist()
    had = [int(done) + (phase[i] < done - int(done)) for i in range(n)]
    for visit in range(1, max(had) + 1):
        rng = generator("recorruption", seed, visit)
        luck = torch.rand(n, generator=rng).tolist()
        low = 0 if redraw == "any" else 1
        drawn = torch.randint(low, 10, (n,), generator=rng).tolist()
        for i in range(n):
            if visit <= had[i] and luck[i] < rate:
                labels[i] = drawn[i] if redraw == "any" else (labels[i] + drawn[i]) % 10
    return torch.tensor(labels)


@pytest.mark.parametrize("redraw", ["any", "other"])
@pytest.mark.parametrize("visits", [0.1, 0.7, 1.0, 2.5])
def test_labels_redrawn_at_each_visit(redraw: str, visits: float) -> None:
    """The walk answers alike in whatever order it is asked."""
    truth = torch.randint(10, (60,), generator=generator("truth"))
    walk = Recorruption(truth, 0.4, redraw, visits, 7)
    for step in (0, 1, 6, 3, 4, 4, 20, 0):
        assert torch.equal(walk.at(step), walked(truth, 0.4, redraw, visits, 7, step)), step
    assert torch.equal(truth, torch.randint(10, (60,), generator=generator("truth")))


def test_a_walk_of_labels_in_the_task() -> None:
    """Each label has had one visit when it is first trained on; each step's batches and
    metrics have that step's labels; validation is never touched."""
    settings = {"corruption": 0.3, "redraw": "other", "recorrupt": 0.5}
    task, right = at.made(2, **settings), at.truth("train", 2)
    x, y = task.init(generator())
    for step in (0, 1, 5, 2):
        now = walked(right, 0.3, "other", 0.5, 2, step)
        draw = Draw(task, 0, step)
        some = draw.g(30)
        assert torch.equal(draw.g().labels, now)
        assert torch.equal(some.labels, now[some.numbers])
        assert torch.equal(draw.f().labels, at.truth("val", 2))
        assert task.report.view is not None
        assert task.report.view(x, y, step).sizes["right label"] == int((now == right).sum())
        kept = torch.ones(N).double()
        recall = task.evaluate(kept, y, step)["cleaning_precision"]
        assert float(recall) == pytest.approx(float((now == right).double().mean()))
    first = walked(right, 0.3, "other", 0.5, 2, 0)
    seen = Draw(at.made(2, upper_data="noisy", **settings), 0, 9).f()
    assert torch.equal(seen.labels, torch.cat([first, at.truth("val", 2)]))


def test_a_start_that_is_kept_is_of_the_images_that_chose_it(
    made_up: None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """pretraining.best picks the iterate by the second validation set."""
    how = Pretraining(start="zero", steps=10**8, best=True)
    monkeypatch.setattr(cleaning_task, "descend", lambda start, *rest: start)
    context = Context(dtype=torch.float64, data_root=tmp_path)
    plain: dict[str, Any] = {"standardise": "none", "bias": "none", "references": False}
    for val2 in (9, 8):
        sizes = replace(at.IMAGES, val2=val2)
        hyper_cleaning(context, sizes, how, **plain).init(generator())
    assert len(list((tmp_path / "derived").iterdir())) == 2
