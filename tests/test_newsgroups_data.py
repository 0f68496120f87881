"""Learnable regularisation: which documents each number may see, on documents that name themselves.

Document i of the training half has word i, document i of the test half has word 40 + i, and all
share a few more words; products are dense here and sparse in the task: 1e-10 relative in float64.
"""

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.model_selection import train_test_split
from torch import Tensor

from bench.core.draw import Draw, generator
from bench.core.oracle import Oracle
from bench.core.settings import BadSetting
from bench.core.task import Context, Task
from tasks import newsgroups as module
from tasks.data.newsgroups import Corpus, WordCounts
from tasks.newsgroups import Documents, Pretraining, newsgroups

TRAIN, TEST, SHARED, CLASSES = 40, 28, 6, 4
WORDS = TRAIN + TEST + SHARED
NONE = Pretraining("zero", steps=0)


def counts(n: int, first: int) -> np.ndarray[Any, Any]:
    """[n, WORDS]: a word of its own, twice, and up to three times each of those that all share; a
    document that has a word of its own alone, and one that has none."""
    rng = np.random.default_rng(first)
    found = np.zeros((n, WORDS), dtype=np.int64)
    found[:, -SHARED:] = rng.integers(0, 4, (n, SHARED))
    found[np.arange(n), first + np.arange(n)] = 2
    found[5, -SHARED:] = 0
    found[6] = 0
    return found


def classes(n: int) -> np.ndarray[Any, Any]:
    """Each class as often as the others, in no order."""
    return np.random.default_rng(n).permutation(np.arange(n) % CLASSES)


def documents(n: int, first: int) -> WordCounts:
    rows = [np.flatnonzero(row) for row in counts(n, first)]
    offsets = np.cumsum([0, *map(len, rows)]).astype(np.int32)
    values = [row[at] for row, at in zip(counts(n, first), rows)]
    return WordCounts(
        offsets,
        np.concatenate(rows).astype(np.int32),
        np.concatenate(values).astype(np.int16),
        classes(n),
    )


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The corpus is the one above; what was asked for: (source, headers)."""
    found: list[tuple[str, str]] = []
    made = Corpus(documents(TRAIN, 0), documents(TEST, TRAIN), WORDS, {"made up": "0"})

    def corpus(source: str, headers: str, context: Context) -> Corpus:
        found.append((source, headers))
        return made

    monkeypatch.setattr(module, "corpus", corpus)
    return found


def unit(n: int, first: int, which: Any) -> Tensor:
    """Documents by their numbers, each of length one, the empty one 0; [m, WORDS]."""
    rows = counts(n, first)[which].astype(float)
    length = np.sqrt((rows**2).sum(1, keepdims=True))
    return torch.from_numpy(rows / np.where(length == 0, 1, length))


def divided(seed: int) -> dict[str, tuple[Tensor, Tensor]]:
    """(features, labels) of each part as BOME's l2reg.py divides both halves: numpy's seed + 1,
    then scikit-learn's train_test_split, stratified, by halves."""
    state = np.random.get_state()
    np.random.seed(seed + 1)
    parts = {}
    for names, n, first in ((("train", "val"), TRAIN, 0), (("test", "val2"), TEST, TRAIN)):
        halves = train_test_split(np.arange(n), stratify=classes(n), test_size=0.5)
        for name, which in zip(names, halves):
            labels = torch.from_numpy(classes(n)[which])
            parts[name] = unit(n, first, which), labels
    np.random.set_state(state)
    parts["all of test"] = unit(TEST, TRAIN, slice(None)), torch.from_numpy(classes(TEST))
    return parts


def made(seed: int = 0, pretraining: Pretraining = NONE, **settings: Any) -> Task:
    context = Context(seed=seed, dtype=torch.float64)
    return newsgroups(context, pretraining, **({"references": False} | settings))


def dense(part: Documents) -> Tensor:
    """[n, WORDS], from products with unit vectors."""
    return part.features.times(torch.eye(WORDS, dtype=torch.float64))


def same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def mean_loss(y: Tensor, part: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(part[0] @ y, part[1])


def some_y() -> Tensor:
    return torch.randn(WORDS, CLASSES, generator=generator("y"), dtype=torch.float64)


# Which documents


@pytest.mark.parametrize(("seed", "resplit", "split"), [(0, None, 0), (3, True, 3), (3, False, 0)])
@pytest.mark.parametrize("protocol", ["bome", "stocbio"])
def test_each_part_has_its_own_documents(
    protocol: str, seed: int, resplit: bool | None, split: int
) -> None:
    task, parts = made(seed, protocol=protocol, resplit=resplit), divided(split)
    draw = Draw(task, 0, 0)
    for batch, name in ((draw.g(), "train"), (draw.f(), "val")):
        same(dense(batch.part), parts[name][0])
        assert torch.equal(batch.part.labels, parts[name][1])
        assert (batch.numbers, task.data.count(batch)) == (None, TRAIN // 2)
    assert task.report.sources == {"made up": "0"}
    assert task.metric == "test_accuracy"


@pytest.mark.parametrize("protocol", ["bome", "stocbio"])
def test_metrics_are_of_the_part_that_names_them(protocol: str) -> None:
    """BOME's test set is half of the published one, whose other half is val2; stocBiO's all."""
    task, parts, y = made(protocol=protocol), divided(0), some_y()
    found = {k: float(v) for k, v in task.evaluate(torch.zeros(WORDS), y, 0).items()}
    test = parts["test" if protocol == "bome" else "all of test"]
    expected = {
        "val_loss": mean_loss(y, parts["val"]), "train_loss": mean_loss(y, parts["train"]),
        "test_loss": mean_loss(y, test),
        "test_accuracy": ((test[0] @ y).argmax(1) == test[1]).double().mean(),
    }  # fmt: skip
    if protocol == "bome":
        hits = ((parts["val2"][0] @ y).argmax(1) == parts["val2"][1]).double()
        expected |= {"val2_loss": mean_loss(y, parts["val2"]), "val2_accuracy": hits.mean()}
    assert found == {k: pytest.approx(float(v), rel=1e-10) for k, v in expected.items()}


def test_what_f_is_the_loss_of() -> None:
    parts, y, x = divided(0), some_y(), torch.zeros(WORDS).double()
    for which, name in (("validation", "val"), ("training", "train")):
        task = made(upper_data=which)
        xi = Draw(task, 0, 0).f()
        same(dense(xi.part), parts[name][0])
        same(Oracle(task).f(x, y, xi), mean_loss(y, parts[name]))


@pytest.mark.parametrize("size", [1, 3, 9, 10, 90])
def test_batches_are_drawn_with_replacement(size: int) -> None:
    """Batches of fewer than half of the documents pick their rows, others do not; f and g see the
    documents whose numbers they have, one that comes twice counting twice."""
    task, parts = made(regulariser="code"), divided(0)
    draw, y, x = Draw(task, 5, 2), some_y(), torch.zeros(WORDS).double()
    for batch, side, name in ((draw.g(size), "lower", "train"), (draw.f(size), "upper", "val")):
        drawn = torch.randint(TRAIN // 2, (size,), generator=generator(5, side, 2, 0))
        assert torch.equal(batch.numbers, drawn)
        assert task.data.count(batch) == size
        o = Oracle(task)
        loss = mean_loss(y, (parts[name][0][drawn], parts[name][1][drawn]))
        shrunk = 0.5 * y.square().mean()
        found = o.f(x, y, batch) if side == "upper" else o.g(x, y, batch) - shrunk
        same(found, loss)


def test_a_block_of_rows() -> None:
    task, parts, y = made(), divided(0), some_y()
    assert task.data.rows is not None
    block = task.data.rows(Draw(task, 0, 0).f(), 3, 9)
    assert block.numbers.tolist() == [3, 4, 5, 6, 7, 8]
    assert task.data.count(block) == 6
    expected = mean_loss(y, (parts["val"][0][3:9], parts["val"][1][3:9]))
    same(Oracle(task).f(torch.zeros(WORDS).double(), y, block), expected)


# The settings


def strength(task: Task) -> tuple[float, float]:
    """(k, s) of s sum_j exp(k x_j) |y_j|^2, from g at y = e_(7, 1) / 2."""
    zeta, y = Draw(task, 0, 0).g(), torch.zeros(WORDS, CLASSES).double()
    y[7, 1] = 0.5
    x = torch.zeros(WORDS).double()
    loss = mean_loss(y, divided(0)["train"])
    at_zero = float(Oracle(task).g(x, y, zeta) - loss)
    x[7] = 1.0
    at_one = float(Oracle(task).g(x, y, zeta) - loss)
    return round(float(np.log(at_one / at_zero)), 6), 4 * at_zero


CP = CLASSES * WORDS
REGULARISERS = {"paper": (2, 1.0), "code": (1, 0.5 / CP), "stocbio": (1, 1 / CP)}
DEFAULTS = {  # regulariser, headers, what follows the seed, val2
    ("bome", "paper"): ("paper", "keep", True, True),
    ("bome", "code"): ("code", "keep", False, True),
    ("stocbio", "paper"): ("stocbio", "remove", True, False),
    ("stocbio", "code"): ("code", "keep", False, False),
}


@pytest.mark.parametrize("pair", DEFAULTS, ids="-".join)
def test_settings_left_open_are_those_of_the_protocol(
    pair: tuple[str, str], asked: list[tuple[str, str]]
) -> None:
    """BOME, A.5, prints |W theta|^2 with W = exp v; both codes take half a mean; stocBiO prints
    1 / (c p). Where x starts at BOME's text, the strength is that of the codes."""
    regulariser, headers, follows, val2 = DEFAULTS[pair]
    given = {"protocol": pair[0], "variant": pair[1]}
    task = made(**given)
    assert asked == [("newsgroups", headers)]
    found = strength(task)
    assert found == (REGULARISERS[regulariser][0], pytest.approx(REGULARISERS[regulariser][1]))
    x, y = task.init(generator())
    x_0 = -0.5 * np.log(2 * CP) if regulariser == "paper" else 0.0
    assert x.tolist() == pytest.approx([x_0] * WORDS, rel=1e-14)
    assert y.shape == (WORDS, CLASSES)
    assert ("val2_loss" in task.evaluate(x, y, 0)) == val2
    other = Draw(made(3, **given), 0, 0).g()
    same(dense(other.part), divided(3 if follows else 0)["train"][0])


@pytest.mark.parametrize("pair", DEFAULTS, ids="-".join)
def test_a_setting_that_is_given_changes_itself_alone(
    pair: tuple[str, str], asked: list[tuple[str, str]]
) -> None:
    given = {"protocol": pair[0], "variant": pair[1]}
    for regulariser, (k, s) in REGULARISERS.items():
        task = made(**given, regulariser=regulariser)
        assert strength(task) == (k, pytest.approx(s))
        x = task.init(generator())[0]
        assert float(x[0]) == pytest.approx(-0.5 * np.log(2 * CP) if k == 2 else 0.0)
        for start in (0.0, -1.5):
            started = made(**given, regulariser=regulariser, start=start).init(generator())[0]
            assert set(started.tolist()) == {start}
    for headers in ("keep", "remove"):
        made(**given, source="digits", headers=headers)
        assert asked[-1] == ("digits", headers)


def test_the_regulariser_weighs_each_word() -> None:
    """g - loss = s sum_j exp(k x_j) sum_c y_jc^2, at x of all signs."""
    x = torch.randn(WORDS, generator=generator("x"), dtype=torch.float64)
    y, loss = some_y(), mean_loss(some_y(), divided(0)["train"])
    for name, (k, s) in REGULARISERS.items():
        task = made(regulariser=name)
        squares = [float((y[j] * y[j]).sum() * torch.exp(k * x[j])) for j in range(WORDS)]
        found = float(Oracle(task).g(x, y, Draw(task, 0, 0).g()) - loss)
        assert found == pytest.approx(s * sum(squares), rel=1e-9)


def test_both_losses_have_closed_forms() -> None:
    for protocol in ("bome", "stocbio"):
        task = made(protocol=protocol)
        assert task.upper_derivatives is not None
        assert task.lower_derivatives is not None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_all_numbers_are_of_the_runs_type(dtype: torch.dtype) -> None:
    for kind in ("zero", "normal"):
        task = newsgroups(Context(dtype=dtype), Pretraining(kind, steps=2, lr=0.1))  # type: ignore[arg-type]
        x, y = task.init(generator())
        values = Draw(task, 0, 0).f().part.features.rows.values
        assert {x.dtype, y.dtype, values.dtype} == {dtype}


# Where theta starts


def start(kind: str, seed: int) -> Tensor:
    """Normal with deviation sqrt(2 / classes), as both codes have it, or zero."""
    y = torch.zeros(WORDS, CLASSES, dtype=torch.float64)
    if kind == "normal":
        rng = generator("model", seed)
        y = torch.randn(WORDS, CLASSES, generator=rng, dtype=torch.float64) * (2 / CLASSES) ** 0.5
    return y


def descended(y: Tensor, how: Pretraining, seed: int) -> list[Tensor]:
    """Heavy-ball iterates on the unregularised training loss, by autograd."""
    train, velocity, iterates = divided(seed)["train"], torch.zeros_like(y), []
    for _ in range(how.steps):
        leaf = y.clone().requires_grad_()
        velocity = how.momentum * velocity + torch.autograd.grad(mean_loss(leaf, train), leaf)[0]
        y = y - how.lr * velocity
        iterates.append(y)
    return iterates


HOW = [
    Pretraining("zero", steps=4, lr=2.0, momentum=0.9, best=False),
    Pretraining("normal", steps=4, lr=2.0, momentum=0.0, best=False),
    Pretraining("normal", steps=60, lr=4.0, momentum=0.8, best=True),
]


@pytest.mark.parametrize("how", HOW, ids=str)
def test_theta_is_pretrained_without_regularisation(how: Pretraining) -> None:
    seed = 3
    iterates = descended(start(how.start, seed), how, seed)
    losses = [float(mean_loss(y, divided(seed)["val2"])) for y in iterates]
    which = int(np.argmin(losses)) if how.best else how.steps - 1
    assert not how.best or 0 < which < how.steps - 1
    same(made(seed, how).init(generator("anything"))[1], iterates[which])


@pytest.mark.parametrize("kind", ["normal", "zero"])
def test_theta_without_pretraining_is_its_start(kind: Any) -> None:
    found = made(5, Pretraining(kind, steps=0)).init(generator())[1]
    torch.testing.assert_close(found, start(kind, 5), rtol=1e-14, atol=0)


def test_pretrainings_defaults() -> None:
    """l2reg.py: 500 steps of 100 with momentum .9, the best on val2."""
    assert asdict(Pretraining()) == {
        "start": "normal", "steps": 500, "lr": 100.0, "momentum": 0.9, "best": True,
    }  # fmt: skip


def test_the_best_on_val2_needs_a_val2() -> None:
    for how in (Pretraining(steps=3), replace(NONE, steps=1, best=True)):
        with pytest.raises(BadSetting, match=r"^task\.pretraining\.best=true: .*best=false$"):
            made(0, how, protocol="stocbio")
        made(0, replace(how, best=False), protocol="stocbio")
        made(0, how, protocol="bome")
    made(0, NONE, protocol="stocbio")
    last = Pretraining("zero", steps=4, lr=2.0, best=False)
    found = made(0, last, protocol="stocbio").init(generator())[1]
    same(found, descended(start("zero", 0), last, 0)[-1])


def test_the_line_without_regularisation() -> None:
    """500 steps of 100, momentum .9, from the seed's normal start, the best on val2; BOME's test
    set alone has it, as stocBiO's protocol has no val2."""
    iterates = descended(start("normal", 2), Pretraining(), 2)
    parts = divided(2)
    y = min(iterates, key=lambda y: float(mean_loss(y, parts["val2"])))
    hits = ((parts["test"][0] @ y).argmax(1) == parts["test"][1]).double().mean()
    task = made(2, references=True)
    assert task.report.references is not None
    assert task.report.references() == {
        "test_accuracy of no regularisation": pytest.approx(float(hits))
    }
    assert made().report.references is None
    assert made(protocol="stocbio", references=True).report.references is None


@pytest.mark.parametrize("best", [True, False])
def test_long_pretrainings_are_kept_with_all_they_depend_on(
    best: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From 1e8 nonzeros read on; the name has the start, the training set, and val2 if it
    chooses."""
    kept: list[Any] = []

    def spy(name: str, context: Context, settings: Any, data: Any, train: Any) -> Tensor:
        kept.append((name, settings, list(data)))
        found: Tensor = train()
        return found

    monkeypatch.setattr(module, "train_or_load", spy)
    monkeypatch.setattr(module, "descend", lambda y, *_: y + 1)
    parts = divided(1)
    steps = -(-(10**8) // int((parts["train"][0] != 0).sum()))
    for count in (steps - 1, steps):
        how = Pretraining(steps=count, best=best)
        task = made(1, how)
        same(task.init(generator())[1], start("normal", 1) + 1)
    ((name, settings, data),) = kept
    assert (name, settings) == ("newsgroups", asdict(how))
    same(data[0], start("normal", 1))
    train = Draw(task, 0, 0).g().part
    expected: list[Any] = [*train.features.rows, train.labels]
    for found, wanted in zip(data[1:5], expected, strict=True):
        assert torch.equal(found, wanted)
    assert len(data) == (9 if best else 5)
    if best:
        assert torch.equal(data[8], parts["val2"][1])
        assert data[7].square().sum() == pytest.approx(float((parts["val2"][0] ** 2).sum()))


def test_a_seed_beyond_numpys_has_a_split_too() -> None:
    """numpy's generator takes seeds below 2^32, a run takes more."""
    wide = newsgroups(Context(seed=2**40), NONE, source="digits", resplit=True, references=False)
    first = newsgroups(Context(seed=0), NONE, source="digits", resplit=True, references=False)
    one, other = (Draw(task, 0, 0).g(None).part for task in (wide, first))
    assert torch.equal(one.labels, other.labels)  # 2^40 + 1 is 1 to numpy, and so is 0 + 1
