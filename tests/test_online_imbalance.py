"""Imbalanced images online, on made-up images that carry a mark, held against plain loops."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from algorithms.online.implicit import fsobo
from bench.core.draw import Draw, generator
from bench.core.loop import run
from bench.core.settings import BadSetting, check_settings
from bench.core.task import Context, Place, Task
from tasks import online_imbalance as module
from tasks.common.online import Solved, measure_round
from tasks.data.images import Images, ImageSplit, LabelledImages
from tasks.online_imbalance import ConvNetwork, ImageRound, online_imbalance, some, thinned_rows

CONTEXT = Context(dtype=torch.float64, seed=4)
DATA = Images("digits", train=150, val=90, val2=1, test=40)
SIDE = 4
SHARES = (0.5, 0.8, 0.9)


def images(name: str, labels: list[int], first_mark: float) -> LabelledImages:
    """Image i has first_mark + i in its first pixel, and noise elsewhere."""
    n = len(labels)
    pixels = torch.randn(n, SIDE**2, generator=generator(name), dtype=torch.float64)
    pixels[:, 0] = first_mark + torch.arange(n)
    return LabelledImages(pixels, torch.tensor(labels))


def labelled(name: str, counts: list[int]) -> list[int]:
    """counts[i] labels i, in disorder."""
    labels = [i for i, n in enumerate(counts) for _ in range(n)]
    order = torch.randperm(len(labels), generator=generator(name)).tolist()
    return [labels[i] for i in order]


SPLIT = ImageSplit(
    images("train", labelled("a", [16, 15, 14, 17, 12, 15, 16, 13, 18, 14]), 0.0),
    images("val", labelled("b", [9, 8, 10, 9, 7, 11, 9, 8, 10, 9]), 1000.0),
    images("val2", [0], 2000.0),
    images("test", labelled("c", [4, 5, 6, 3, 4, 5, 6, 6, 1, 0]), 3000.0),
    {"a file": "its sum"},
)


@pytest.fixture(autouse=True)
def _marked(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(images: Images, context: Context, *name: int | str) -> ImageSplit:
        assert (images, context, name) == (DATA, context, ("online_imbalance", context.seed))
        return SPLIT

    monkeypatch.setattr(module, "load", load)


def made(context: Context = CONTEXT, solved: Solved | None = None, **settings: Any) -> Task:
    given: dict[str, Any] = {"shares": SHARES, "phase": 3, "channels": 2, "round": None}
    return online_imbalance(context, DATA, solved or Solved(), **(given | settings))


MEAN, STD = (float(getattr(SPLIT.train.features, name)()) for name in ("mean", "std"))


def marks(d: ImageRound) -> list[int]:
    """Which images these are, from their first pixels as they were before standardising."""
    return [round(v) for v in (d.images[:, 0, 0, 0] * STD + MEAN).tolist()]


def kept(part: LabelledImages, first_mark: int, mu: float) -> list[int]:
    """The first ceil(mu^i n_i) images of each class i, in the order of the set, by a plain loop."""
    labels, seen, found = part.labels.tolist(), [0] * 10, []
    for number, i in enumerate(labels):
        if seen[i] < math.ceil(mu**i * labels.count(i)):
            found.append(first_mark + number)
        seen[i] += 1
    return found


def mu_of(step: int) -> float:
    """Phases of 3 rounds; the last one goes on."""
    return SHARES[min(step // 3, 2)]


@pytest.mark.parametrize("step", [0, 2, 3, 6, 8, 9, 50])
def test_each_phase_has_its_own_images(step: int) -> None:
    task = made()
    for d, part, first_mark in (
        (Draw(task, 0, step).g(), SPLIT.train, 0),
        (Draw(task, 0, step).f(), SPLIT.val, 1000),
    ):
        expected = kept(part, first_mark, mu_of(step))
        assert marks(d) == expected
        assert d.labels.tolist() == [int(part.labels[i - first_mark]) for i in expected]
        counts = [d.labels.tolist().count(j) for j in range(10)]
        inverse_shares = [len(expected) / n for n in counts]
        assert d.weights.tolist() == pytest.approx(inverse_shares, rel=1e-6)  # float32
        assert task.data.count(d) == len(expected)


def test_a_balanced_validation_set_is_whole() -> None:
    task = made(validation="balanced")
    for step in (0, 4):
        d = Draw(task, 0, step).f()
        assert marks(d) == list(range(1000, 1090))
        share = torch.tensor([9, 8, 10, 9, 7, 11, 9, 8, 10, 9]) / 90
        torch.testing.assert_close(d.weights, 1 / share.double(), rtol=1e-6, atol=0)
        assert marks(Draw(task, 0, step).g()) == kept(SPLIT.train, 0, mu_of(step))


def test_all_images_are_standardised_as_the_training_set_is() -> None:
    d = Draw(made(shares=(1.0,), validation="balanced"), 0, 0)
    for part, seen in ((SPLIT.train, d.g()), (SPLIT.val, d.f())):
        expected = (part.features - MEAN) / STD
        torch.testing.assert_close(seen.images.flatten(1), expected, rtol=1e-12, atol=1e-12)
        assert seen.images.shape[1:] == (1, SIDE, SIDE)


@pytest.mark.parametrize("step", [1, 7])
def test_a_round_is_the_same_for_all_that_ask_and_another_the_next_time(step: int) -> None:
    task = made(round=12)
    for side, part, first_mark in (("g", SPLIT.train, 0), ("f", SPLIT.val, 1000)):
        whole: ImageRound = getattr(Draw(task, 0, step), side)()
        again: ImageRound = getattr(
            Draw(task, 9, step), side
        )()  # the seed of the run is the task's
        assert len(marks(whole)) == task.data.count(whole) == 12
        assert marks(whole) == marks(again)
        assert set(marks(whole)) <= set(kept(part, first_mark, mu_of(step)))
        labels = [int(part.labels[i - first_mark]) for i in marks(whole)]
        assert whole.labels.tolist() == labels
        torch.testing.assert_close(whole.weights, getattr(Draw(made(), 0, step), side)().weights)
        other: ImageRound = getattr(Draw(task, 0, step + 1), side)()
        assert marks(other) != marks(whole)
        reseeded = made(Context(dtype=torch.float64, seed=5), round=12)
        assert marks(getattr(Draw(reseeded, 0, step), side)()) != marks(whole)
        few: ImageRound = getattr(Draw(task, 0, step), side)(200)
        assert len(marks(few)) == 200
        assert set(marks(few)) == set(marks(whole))
        assert marks(getattr(Draw(task, 1, step), side)(200)) != marks(few)


def test_rows_are_drawn_from_all_with_replacement() -> None:
    part = ImageRound(torch.arange(5.0), torch.arange(5) + 10, torch.ones(10))
    drawn = some(part, generator("rows"), 300)
    assert torch.equal(drawn.labels, drawn.images.long() + 10)
    counts = torch.bincount(drawn.images.long(), minlength=5)
    assert (counts > 35).all()  # 60 expected each, deviation 7
    assert drawn.weights is part.weights


def test_of_a_class_the_first_images_stay() -> None:
    labels = torch.tensor([1, 0, 2, 1, 0, 2, 1, 2, 1, 9])
    assert thinned_rows(labels, 1.0).tolist() == list(range(10))
    assert thinned_rows(labels, 0.5).tolist() == [0, 1, 2, 3, 4, 9]


def somewhere(task: Task) -> tuple[Tensor, Tensor]:
    x = torch.stack([torch.linspace(0.5, 1.5, 10), torch.linspace(-1, 1, 10)]).double()
    _, y = task.init(generator("start"))
    return x, y + 0.3 * torch.randn(y.shape, generator=generator("y"), dtype=torch.float64)


def losses(
    net: ConvNetwork, x: Tensor, y: Tensor, d: ImageRound, u: ImageRound
) -> tuple[float, float]:
    """g on d and f on u, image by image."""
    z, g = net.logits(y, d.images).numpy(), 0.0
    for row, label in zip(z, d.labels.tolist(), strict=True):
        adjusted = x[0].numpy() * row + x[1].numpy()
        g += np.log(np.exp(adjusted).sum()) - adjusted[label]
    z, f = net.logits(y, u.images).numpy(), 0.0
    for row, label in zip(z, u.labels.tolist(), strict=True):
        f += float(u.weights[label]) * (np.log(np.exp(row).sum()) - row[label])
    return g / len(d.labels), f / len(u.labels)


def test_the_losses_are_the_printed_ones() -> None:
    task = made(round=12)
    x, y = somewhere(task)
    d, u = Draw(task, 0, 4).g(), Draw(task, 0, 4).f()
    g, f = losses(ConvNetwork(2, SIDE), x, y, d, u)
    assert task.lower is not None
    assert float(task.lower(x, y, d)) == pytest.approx(g, rel=1e-12)
    assert float(task.upper(x, y, u)) == pytest.approx(f, rel=1e-12)


def told(y: Tensor, step: int, statistics: int) -> float:
    """Balanced accuracy, class by class, with the batch statistics of the first training images of
    the phase; a class without test images has none told."""
    numbers = kept(SPLIT.train, 0, mu_of(step))[:statistics]
    shape = (-1, 1, SIDE, SIDE)
    reference = ((SPLIT.train.features[numbers] - MEAN) / STD).view(shape)
    tested = ((SPLIT.test.features - MEAN) / STD).view(shape)
    answers = ConvNetwork(2, SIDE).logits(y, tested, reference).argmax(1).tolist()
    shares = []
    for i in range(10):
        right = [a == i for a, b in zip(answers, SPLIT.test.labels.tolist(), strict=True) if b == i]
        shares.append(sum(right) / len(right) if right else 0.0)
    return sum(shares) / 10


@pytest.mark.parametrize(("statistics", "block"), [(30, 2000), (512, 7)])
def test_what_is_measured_is_of_the_round_and_the_test_set(
    statistics: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many images are tested at a time."""
    monkeypatch.setattr(module, "BLOCK", block)
    task = made(round=12, statistics=statistics)
    assert task.metric == "balanced_accuracy"
    x, y = somewhere(task)
    for step, favour in ((0, 0.0), (5, 0.5), (5, 8.0), (20, 1.0)):
        y[-2] += favour  # the bias of class 8, which has one test image
        draw = Draw(task, 0, step)
        g, f = losses(ConvNetwork(2, SIDE), x, y, draw.g(), draw.f())
        found = {name: float(value) for name, value in task.evaluate(x, y, step).items()}
        assert found == pytest.approx({
            "balanced_accuracy": told(y, step, statistics),
            "training_loss": g,
            "validation_loss": f,
        }, rel=1e-10)  # fmt: skip
        assert found["balanced_accuracy"] > 0
    y[-2] = 1e3
    assert float(task.evaluate(x, y, 0)["balanced_accuracy"]) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("step", "mu"), list(zip((0, 2, 3, 5, 6, 20), (0.5, 0.5, 0.8, 0.8, 0.9, 0.9)))
)
def test_the_network_is_normalised_by_training_images_of_the_present_phase(
    step: int, mu: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[int]] = []
    logits = ConvNetwork.logits

    def noted(self: ConvNetwork, y: Tensor, images: Tensor, reference: Any = None) -> Tensor:
        if reference is not None:
            seen.append([round(v) for v in (reference[:, 0, 0, 0] * STD + MEAN).tolist()])
        return logits(self, y, images, reference)

    monkeypatch.setattr(ConvNetwork, "logits", noted)
    task = made(round=12, statistics=70)
    task.evaluate(*somewhere(task), step)
    assert seen == [kept(SPLIT.train, 0, mu)[:70]]


def test_rounds_are_summed_and_phases_end_with_their_accuracy() -> None:
    how = Solved(every=4, tolerance=1e-2, steps=2, system=2)
    task = made(round=12, solved=how, gamma=0.02)
    x, y = somewhere(task)
    assert task.tally is not None
    ends = [f"accuracy_phase_{i}" for i in (1, 2, 3)]
    assert task.tally.names == ("regret", "V_T", "H_2T", "cumulative_loss", *ends)
    for step in (0, 1, 2, 4, 5, 8, 11):
        adds = task.tally.adds(x, y, step)
        draw = Draw(task, 0, step)
        _, f = losses(ConvNetwork(2, SIDE), x, y, draw.g(), draw.f())
        assert float(adds["cumulative_loss"]) == pytest.approx(f, rel=1e-12)
        for name, value in measure_round(task, x, y, step, 0.02, how).items():
            assert torch.equal(adds[name], value)
        accuracies = [float(adds[name]) for name in ends]
        expected = [told(y, step, 512) if step == last else 0.0 for last in (2, 5, 8)]
        assert accuracies == pytest.approx(expected, rel=1e-12)


def test_a_run_tells_each_phase_before_its_last_step() -> None:
    rows: list[dict[str, Any]] = []
    task = made(round=12, phase=1)
    run(task, fsobo(0.1, 0.001, 0.1), seed=0, steps=4, every=1, on_row=rows.append)
    for i in range(3):
        name = f"accuracy_phase_{i + 1}"
        assert rows[i][name] == 0
        assert rows[-1][name] == rows[i + 1][name] == rows[i]["balanced_accuracy"]
    assert rows[-1]["cumulative_loss"] == pytest.approx(
        sum(row["validation_loss"] for row in rows[:-1]), rel=1e-12
    )


def test_a_run_starts_with_the_plain_loss_and_a_network_that_tells_nothing() -> None:
    task = made(channels=30)
    x, y = task.init(generator("a"))
    assert x.tolist() == [[1.0] * 10, [0.0] * 10]
    assert torch.equal(y, ConvNetwork(30, SIDE).start(generator("a")))
    assert not torch.equal(y, task.init(generator("b"))[1])
    assert task.report.sources == {"a file": "its sum"}
    z = ConvNetwork(30, SIDE).logits(y, torch.randn(3, 1, SIDE, SIDE).double())
    assert not z.any()  # the linear layer is zero


def test_the_network_starts_as_the_related_code_has_it() -> None:
    """He's normal convolutions with the fan out, 9 c; biases 0, scales 1, shifts 0."""
    c, parts = 30, []
    y, rng = ConvNetwork(c, 8).start(generator("start")), generator("start")
    assert y.dtype == torch.float64
    for before in (1, c, c, c):
        sizes = [c * before * 9, c, c, c]
        *block, y = y.split([*sizes, len(y) - sum(sizes)])
        parts.append(block)
    for kernel, bias, scale, shift in parts:
        deviation = (2 / (9 * c)) ** 0.5
        drawn = torch.randn(len(kernel), generator=rng, dtype=torch.float64)
        torch.testing.assert_close(kernel, deviation * drawn, rtol=1e-14, atol=0)
        assert float(kernel.std()) == pytest.approx(deviation, rel=4 / (2 * len(kernel)) ** 0.5)
        assert abs(float(kernel.mean())) < 4 * deviation / len(kernel) ** 0.5
        assert not bias.any()
        assert (scale == 1).all()
        assert not shift.any()
    assert len(y) == 10 * c + 10
    assert not y.any()


@pytest.mark.parametrize("side", [16, 36, 8, 3])
def test_the_network_is_torchs_in_training_and_normalised_by_others_in_testing(side: int) -> None:
    """Four blocks, with pooling only while there is more than one pixel."""
    net, left = ConvNetwork(3, side), side
    layers: list[nn.Module] = []
    for before in (1, 3, 3, 3):
        pool = nn.MaxPool2d(2) if left > 1 else nn.Identity()
        left = max(1, left // 2)
        layers += [nn.Conv2d(before, 3, 3, padding=1), nn.ReLU(), pool, nn.BatchNorm2d(3)]
    module = nn.Sequential(*layers, nn.Flatten(), nn.Linear(3 * left**2, 10)).double()
    y = torch.cat([p.detach().flatten() for p in module.parameters()])
    y = y + 0.1 * torch.randn(y.shape, generator=generator("y"), dtype=torch.float64)
    nn.utils.vector_to_parameters(y, module.parameters())
    shown = torch.randn(6, 1, side, side, generator=generator("images"), dtype=torch.float64)
    assert len(net.start(generator())) == len(y)
    expected = module(shown).detach()
    torch.testing.assert_close(net.logits(y, shown), expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(net.logits(y, shown, shown), expected, rtol=1e-9, atol=1e-9)
    one = net.logits(y, shown[:1], shown)  # an image alone is told as among the others
    torch.testing.assert_close(one, expected[:1], rtol=1e-9, atol=1e-9)


def test_losses_together_are_those_one_by_one() -> None:
    """Of both levels, each at its own x, network and images; batches of other sizes cannot."""
    task, (x, y) = made(round=9), made(round=9).init(generator("init"))
    assert task.lower is not None
    rng, draws = generator("places"), [Draw(task, 0, step) for step in (0, 3)]
    batches = [draws[0].f(), draws[0].g(), draws[1].g(), draws[1].f()]
    places = [
        Place(upper, *(t + torch.rand(t.shape, generator=rng).double() for t in (x, y)), d)
        for upper, d in zip((True, False, False, True), batches)
    ]
    assert task.together is not None
    found = task.together(places)
    assert found is not None
    own = [(task.upper if p.upper else task.lower)(*p[1:]) for p in places]
    torch.testing.assert_close(found, torch.stack(own), rtol=1e-12, atol=1e-12)
    whole = made()  # all images of a phase, of which the levels have different numbers
    assert whole.together is not None
    assert whole.together([Place(True, x, y, Draw(whole, 0, 0).f()), places[1]]) is None


@pytest.mark.parametrize("share", [0.0, -0.5, 1.5])
def test_a_share_is_of_a_class(share: float) -> None:
    node = {"_target_": "tasks.online_imbalance.online_imbalance", "shares": [1.0, 0.3]}
    check_settings(node, "task", given=("context", "data", "solved"))
    with pytest.raises(BadSetting, match=r"task\.shares\.1"):
        check_settings(node | {"shares": [1.0, share]}, "task", given=("context", "data", "solved"))


def test_real_images_are_thinned_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Digits, as the runs load them."""
    monkeypatch.undo()
    data = Images("digits", train=600, val=300, val2=1, test=200)
    task = online_imbalance(CONTEXT, data, Solved(), channels=2, round=None, shares=(0.6,))
    full = online_imbalance(CONTEXT, data, Solved(), channels=2, round=None, shares=(1.0,))
    for side in ("f", "g"):
        counts, total = (
            torch.bincount(getattr(Draw(t, 0, 0), side)().labels) for t in (task, full)
        )
        assert counts.tolist() == [math.ceil(0.6**i * int(n)) for i, n in enumerate(total)]


def test_no_phase_is_refused() -> None:
    with pytest.raises(BadSetting, match=r"task\.shares=\[\]: there is no phase; write a share"):
        made(shares=())
