"""Documents online, of a made-up corpus each of which has a word of its own, held against dense
matrices and plain loops."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bench.core.draw import Draw, generator
from bench.core.oracle import Oracle
from bench.core.settings import BadSetting
from bench.core.task import Context, Task
from tasks import online_newsgroups as module
from tasks.common.online import Solved, measure_round
from tasks.data.newsgroups import Corpus
from tasks.data.newsgroups import WordCounts as Counts
from tasks.online_newsgroups import RoundDocuments, mislabel, online_newsgroups

CONTEXT = Context(dtype=torch.float64, seed=3)
TRAIN, TEST, CLASSES, COMMON = 40, 12, 4, 8
WORDS = TRAIN + TEST + COMMON


def table() -> Any:
    """[52, 60] counts: document i has its own word i twice, and some of the common words."""
    counts = np.zeros((TRAIN + TEST, WORDS), dtype=np.int16)
    rng = np.random.default_rng(0)
    for i in range(TRAIN + TEST):
        counts[i, COMMON + i] = 2
        for j in rng.choice(COMMON, 3, replace=False):
            counts[i, j] = rng.integers(1, 9)
    return counts


COUNTS = table()
LABELS = np.array([i % CLASSES for i in range(TRAIN + TEST)])


def documents(numbers: range) -> Counts:
    rows = [np.flatnonzero(COUNTS[i]) for i in numbers]
    return Counts(
        np.cumsum([0, *map(len, rows)]).astype(np.int32),
        np.concatenate(rows).astype(np.int32),
        np.concatenate([COUNTS[i, r] for i, r in zip(numbers, rows, strict=True)]),
        LABELS[list(numbers)],
    )


@pytest.fixture(autouse=True)
def _made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def corpus(source: str, headers: str, context: Context) -> Corpus:
        assert (source, headers, context.dtype) == ("newsgroups", "keep", torch.float64)
        train, test = documents(range(TRAIN)), documents(range(TRAIN, TRAIN + TEST))
        return Corpus(train, test, WORDS, {"a file": "its sum"})

    monkeypatch.setattr(module, "corpus", corpus)


def made(context: Context = CONTEXT, solved: Solved | None = None, **settings: Any) -> Task:
    return online_newsgroups(context, solved or Solved(), **({"round": None} | settings))


def dense(d: RoundDocuments) -> Any:
    """[m, 60], cell by cell."""
    found = np.zeros((len(d.labels), WORDS))
    for i in range(len(d.labels)):
        for k in range(int(d.rows.offsets[i]), int(d.rows.offsets[i + 1])):
            found[i, int(d.rows.columns[k])] += float(d.rows.values[k])
    return found


def which(d: RoundDocuments) -> list[int]:
    """The documents' numbers, by the words of their own."""
    return [int(np.flatnonzero(row[COMMON:])[0]) for row in dense(d)]


def unit(rows: Any) -> Any:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def weighted() -> Any:
    """TfidfVectorizer's default: (ln((1 + n) / (1 + df)) + 1) times the count, to unit length,
    with df of the n published training documents."""
    df = (COUNTS[:TRAIN] > 0).sum(0)
    return unit(COUNTS * (np.log((1 + TRAIN) / (1 + df)) + 1))


@pytest.mark.parametrize("features", ["tfidf", "counts"])
def test_each_half_has_its_documents_in_their_features(features: str) -> None:
    """The training set is divided by halves of every class; the words are the corpus'."""
    task = made(features=features)
    expected = weighted() if features == "tfidf" else unit(COUNTS.astype(float))
    halves = Draw(task, 0, 0).g(), Draw(task, 0, 0).f()
    for d in halves:
        np.testing.assert_allclose(dense(d), expected[which(d)], rtol=1e-12, atol=1e-14)
        assert Counter(d.labels.tolist()) == dict.fromkeys(range(CLASSES), TRAIN // CLASSES // 2)
        assert d.labels.tolist() == LABELS[which(d)].tolist()
        assert task.data.count(d) == TRAIN // 2
    assert sorted(which(halves[0]) + which(halves[1])) == list(range(TRAIN))
    other = made(Context(dtype=torch.float64, seed=4))  # the split is of the task's seed
    assert which(Draw(other, 0, 0).g()) != which(halves[0])


@pytest.mark.parametrize("size", [None, 9])
def test_documents_are_kept_by_rows_and_by_words(size: int | None) -> None:
    """The words of its rows ascend and are there once; by_word is the transpose of their columns,
    also where a document is there twice."""
    d = Draw(made(round=15), 0, 2).g(size)
    matrix = dense(d)
    assert d.words.tolist() == np.flatnonzero(matrix.any(0)).tolist()
    by_word = np.zeros((len(d.words), len(d.labels)))
    for j in range(len(d.words)):
        for k in range(int(d.by_word.offsets[j]), int(d.by_word.offsets[j + 1])):
            by_word[j, int(d.by_word.columns[k])] += float(d.by_word.values[k])
    np.testing.assert_array_equal(by_word, matrix.T[d.words])
    assert len(set(which(d))) < len(d.labels)
    for csr in (d.rows, d.by_word):  # as tasks/common/sparse.py has them
        assert csr.offsets.dtype == csr.columns.dtype == torch.int32


def test_a_round_is_the_same_for_all_that_ask_and_another_the_next_time() -> None:
    task, whole = made(round=12), made()
    halves = {side: set(which(getattr(Draw(whole, 0, 0), side)())) for side in "fg"}
    for side in "fg":
        a, b = (getattr(Draw(task, seed, 3), side)() for seed in (0, 9))
        assert which(a) == which(b)
        assert len(which(a)) == task.data.count(a) == 12
        assert set(which(a)) <= halves[side]
        assert a.labels.tolist() == LABELS[which(a)].tolist()
        other = getattr(Draw(task, 0, 4), side)()
        assert which(other) != which(a)
        assert which(getattr(Draw(task, 0, 3), side)()) == which(a)  # after another was asked for
        few = getattr(Draw(task, 0, 3), side)(150)
        assert len(which(few)) == 150
        assert set(which(few)) == set(which(a))
        assert which(getattr(Draw(task, 1, 3), side)(150)) != which(few)
        reseeded = made(Context(dtype=torch.float64, seed=4), round=12)
        assert which(getattr(Draw(reseeded, 0, 3), side)()) != which(a)
    seen = {i for step in range(40) for i in which(Draw(task, 0, step).g())}
    assert seen == halves["g"]
    batch = Draw(whole, 0, 0).g(150)  # without rounds a batch is of all documents
    assert set(which(batch)) == halves["g"]
    assert Draw(task, 0, 7).g() is Draw(task, 0, 7).g()  # kept, as the inner steps ask again


def test_labels_turn_wrong_at_their_steps_and_stay_so() -> None:
    """From at[i] on the share noise[i] is wrong, or a larger one from before; a wrong label is one
    of the others, and the same one whatever the share."""
    task = made(noise=(0.4, 0.2, 0.8), at=(5, 7, 9))
    for side in "fg":
        truth = LABELS[which(getattr(Draw(task, 0, 0), side)())]

        def labels(step: int, side: str = side) -> Any:
            return getattr(Draw(task, 0, step), side)().labels.numpy()

        assert (labels(0) == truth).all()
        assert (labels(4) == truth).all()
        wrong, all_wrong = labels(5) != truth, labels(9) != truth
        assert 0 < wrong.sum() < all_wrong.sum() < len(truth)
        assert (labels(6) == labels(5)).all()
        assert (labels(7) == labels(5)).all()
        assert (labels(8) == labels(5)).all()
        assert (labels(9)[wrong] == labels(5)[wrong]).all()
        assert (labels(100) == labels(9)).all()
        batch = getattr(Draw(task, 0, 9), side)(300)
        by_number = dict(zip(which(getattr(Draw(task, 0, 9), side)()), labels(9), strict=True))
        assert batch.labels.tolist() == [by_number[i] for i in which(batch)]


def test_only_the_training_set_may_be_noisy() -> None:
    task = made(noise=(0.9,), at=(2,), noisy="training")
    d, u = Draw(task, 0, 2).g(), Draw(task, 0, 2).f()
    assert (d.labels.numpy() != LABELS[which(d)]).any()
    assert (u.labels.numpy() == LABELS[which(u)]).all()


def test_wrong_labels_are_a_share_of_all_and_evenly_the_others() -> None:
    """The counts are within four standard deviations of binomial counts of 4,000."""
    truth = torch.arange(4000) % 5
    labels = mislabel(truth, 5, "train", 0)
    assert torch.equal(labels(0.0), truth)
    for share in (0.05, 0.3, 1.0):
        wrong = labels(share) != truth
        deviation = (share * (1 - share) / 4000) ** 0.5
        assert float(wrong.double().mean()) == pytest.approx(share, abs=4 * deviation)
    shifts = torch.bincount((labels(1.0) - truth) % 5, minlength=5)
    assert shifts[0] == 0
    assert ((shifts[1:] - 1000).abs() < 4 * (4000 * 0.25 * 0.75) ** 0.5).all()
    assert not torch.equal(labels(0.5), mislabel(truth, 5, "val", 0)(0.5))
    assert not torch.equal(labels(0.5), mislabel(truth, 5, "train", 1)(0.5))


def test_recorded_rounds_and_labels_come_again() -> None:
    """Their random numbers are named by the set, the task's seed and the step."""
    d, whole = Draw(made(round=12), 0, 5).g(), which(Draw(made(), 0, 5).g())
    numbers = torch.randint(TRAIN // 2, (12,), generator=generator("round", "train", 3, 5))
    assert which(d) == [whole[i] for i in numbers.tolist()]
    truth, rng = torch.arange(50) % 5, generator("label noise", "val", 7)
    rank, shift = torch.rand(50, generator=rng), torch.randint(1, 5, (50,), generator=rng)
    expected = [
        (label + by) % 5 if draw < 0.4 else label
        for label, by, draw in zip(truth.tolist(), shift.tolist(), rank.tolist())
    ]
    assert mislabel(truth, 5, "val", 7)(0.4).tolist() == expected


def somewhere() -> tuple[Tensor, Tensor, Tensor]:
    """x, y and a direction in y."""
    rng = generator("somewhere")
    x = 0.1 * torch.rand(WORDS, generator=rng, dtype=torch.float64)
    y, v = (torch.randn(WORDS, CLASSES, generator=rng, dtype=torch.float64) for _ in "yv")
    return x, y, v


def cross_entropy(rows: Any, labels: Any, y: Tensor) -> float:
    """The mean cross-entropy, document by document."""
    total = 0.0
    for row, label in zip(rows, labels, strict=True):
        z = row @ y.numpy()
        total += np.log(np.exp(z).sum()) - z[int(label)]
    return total / len(rows)


@pytest.mark.parametrize("size", [None, 7])
def test_losses_are_the_printed_ones(size: int | None) -> None:
    task = made(round=15, noise=(0.5,), at=(1,))
    x, y, _ = somewhere()
    xi, zeta = Draw(task, 0, 3).f(size), Draw(task, 0, 3).g(size)
    f = cross_entropy(dense(xi), xi.labels, y)
    g = cross_entropy(dense(zeta), zeta.labels, y)
    g += sum(0.5 * float(x[j]) * float((y[j] ** 2).sum()) for j in range(WORDS))
    assert task.lower is not None
    assert float(task.upper(x, y, xi)) == pytest.approx(f, rel=1e-12)
    assert float(task.lower(x, y, zeta)) == pytest.approx(g, rel=1e-12)


@pytest.mark.parametrize("size", [None, 7])
def test_closed_forms_are_autograds(size: int | None) -> None:
    """Both sides, all products, both fused steps; documents may be there twice; 1e-12: rounding."""
    task = made(round=15)
    bare = replace(task, upper_derivatives=None, lower_derivatives=None)
    x, y, v = somewhere()

    def every(t: Task) -> list[Tensor]:
        o, draw = Oracle(t), Draw(t, 0, 3)
        xi, zeta = draw.f(size), draw.g(size)
        slope, products = o.linearise_g_y(x, y, zeta)
        fused = [
            o.descend_g(x, y, zeta, 0.3),
            o.descend_penalised(x, y, xi, zeta, 0.3, 7.0),
            y - 0.3 * (o.f_y(x, y, xi) + 7.0 * o.g_y(x, y, zeta)),
        ]
        found = [*o.grad_f(x, y, xi), *o.grad_g(x, y, zeta), slope, *products.both(v)]
        assert o.calls == {"grad_f": 3, "grad_g": 5, "hvp_g": 1, "jvp_g": 1}
        alone = [o.f_x(x, y, xi), o.g_x(x, y, zeta), products.xy(v), products.yy(v)]
        return [*found, *alone, *fused]

    closed, derived = every(task), every(bare)
    for a, b in zip(closed, derived, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(closed[-2], closed[-1], rtol=1e-12, atol=1e-12)


def test_what_is_not_asked_for_is_not_computed() -> None:
    task = made(round=15)
    x, y, v = somewhere()
    d = Draw(task, 0, 0).g()
    upper, lower = task.upper_derivatives, task.lower_derivatives
    assert upper is not None
    assert lower is not None
    assert lower.linearise is not None
    for grad in (upper.grad, lower.grad):
        assert grad(x, y, d, "x")[1] is None
        assert grad(x, y, d, "y")[0] is None
    _, product = lower.linearise(x, y, d)
    assert product(v, "x")[1] is None
    assert product(v, "y")[0] is None


def test_a_fused_step_leaves_its_point_alone() -> None:
    """And goes on from where it is told to, f's in place."""
    task = made(round=15)
    x, y, onto = somewhere()
    o, draw, copy = Oracle(task), Draw(task, 0, 0), y.clone()
    xi, zeta = draw.f(), draw.g()
    o.descend_g(x, y, zeta, 0.3)
    o.descend_penalised(x, y, xi, zeta, 0.3, 7.0)
    for derivatives, batch, slope in (
        (task.upper_derivatives, xi, o.f_y(x, y, xi)),
        (task.lower_derivatives, zeta, o.g_y(x, y, zeta)),
    ):
        assert derivatives is not None
        assert derivatives.descend is not None
        for start in (None, onto):
            mine = None if start is None else start.clone()
            expected = (y if start is None else start) - 0.3 * slope
            found = derivatives.descend(x, y, batch, 0.3, mine)
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert torch.equal(y, copy)


def test_what_is_measured_is_of_the_test_set_and_of_all_that_was_trained_on() -> None:
    task = made(round=12, noise=(0.5,), at=(4,))
    assert task.metric == "test_accuracy"
    assert task.report.sources == {"a file": "its sum"}
    x, y, _ = somewhere()
    tested, truth = weighted()[TRAIN:], LABELS[TRAIN:]
    right = [int(np.argmax(row @ y.numpy())) == label for row, label in zip(tested, truth)]
    whole = made(noise=(0.5,), at=(4,))
    for step in (0, 4):
        d = Draw(whole, 0, step).g()
        found = {name: float(value) for name, value in task.evaluate(x, y, step).items()}
        assert found == pytest.approx({
            "test_accuracy": sum(right) / len(right),
            "test_loss": cross_entropy(tested, truth, y),
            "training_loss": cross_entropy(dense(d), d.labels, y),
            "regularisation": float(x.mean()),
        }, rel=1e-12)  # fmt: skip
    assert 0 < sum(right) < len(right)


def test_rounds_are_summed() -> None:
    how = Solved(every=2, tolerance=1e-3, steps=5, lr=1.0, system=4)
    task = made(round=12, solved=how, gamma=0.5, noise=(0.5,), at=(2,))
    x, y, _ = somewhere()
    assert task.tally is not None
    assert task.tally.names == ("regret", "V_T", "H_2T", "cumulative_loss")
    for step in (1, 2):
        u = Draw(task, 0, step).f()
        adds = task.tally.adds(x, y, step)
        loss = cross_entropy(dense(u), u.labels, y)
        assert float(adds["cumulative_loss"]) == pytest.approx(loss, rel=1e-12)
        for name, value in measure_round(task, x, y, step, 0.5, how).items():
            assert torch.equal(adds[name], value)
    assert float(adds["regret"]) > 0


def test_x_is_in_its_box_and_both_start_where_they_are_told() -> None:
    task = made(radius=0.3, start=0.3)
    assert task.feasible.project is not None
    far = torch.tensor([-1.0, 0.2, 1.0]).double()
    assert task.feasible.project(far).tolist() == pytest.approx([0.0, 0.2, 0.3])
    x, y = task.init(generator())
    assert x.dtype == y.dtype == torch.float64
    assert x.tolist() == [0.3] * WORDS
    assert y.tolist() == [[0.0] * CLASSES] * WORDS
    with pytest.raises(BadSetting, match=r"task\.start=0\.5"):
        made(radius=0.4, start=0.5)


@pytest.mark.parametrize(("noise", "at"), [((0.1, 0.2), (5,)), ((0.1, 0.2), (5, 3))])
def test_noise_has_a_step_for_each_share_in_order(noise: Any, at: Any) -> None:
    with pytest.raises(BadSetting, match=r"task\.at=\[5"):
        made(noise=noise, at=at)
    made(noise=(0.1, 0.2), at=(5, 5))


def test_digits_stand_in_for_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their pixels are the words; 7 in 10 are halved into training and validation set."""
    monkeypatch.undo()
    task = online_newsgroups(CONTEXT, Solved(), source="digits")
    x, y = task.init(generator())
    assert (x.shape, y.shape) == ((64,), (64, 10))
    d = Draw(task, 0, 0).g()
    assert len(d.labels) == 256
    norms = [float(d.rows.values[a:b].norm()) for a, b in zip(d.rows.offsets, d.rows.offsets[1:])]
    assert norms == pytest.approx([1.0] * 256)


def test_each_set_has_wrong_labels_of_its_own() -> None:
    """A set's name draws its wrong labels, so that those of one set say nothing of the other's."""
    task = made(noise=(0.8,), at=(1,))
    for side, name in (("g", "train"), ("f", "val")):
        before, now = (getattr(Draw(task, 0, k), side)() for k in (0, 1))
        expected = mislabel(before.labels, CLASSES, name, CONTEXT.seed)(0.8)
        assert torch.equal(now.labels, expected)
