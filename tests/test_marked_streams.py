"""Which data each number of a stream may see, on images that say their own numbers."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import tasks.continual
from bench.core.draw import generator
from bench.core.settings import BadSetting
from bench.core.task import Context, Task
from tasks.continual import Size, StreamData, permuted_mnist, read, split_cifar, stream
from tasks.data.images import Images, ImageSplit, LabelledImages

TASKS, EACH, BATCH, CHOICES = 3, 8, 2, 5
N, STEPS = TASKS * EACH, EACH // BATCH
CONTEXT = Context(dtype=torch.float64)
TESTED = 7  # test images of each task


class Marked:
    """A network that writes down what it is asked, and answers y[task] of the test images right.

    Training images are their numbers; test image i of a task is 1000 (task + 1) + i, label i % 5.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[list[int], list[int], Any]] = []
        self.measured: list[list[int]] = []

    def init(self, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Two of x, three of y, which follow the generator."""
        return torch.rand(2, generator=rng), torch.rand(3, generator=rng)

    def logits(self, x: Tensor, y: Tensor, images: Tensor, of: Tensor, known: Any = None) -> Tensor:
        """The right answer for the first y[task] images of a task, else the next one."""
        self.asked.append((images.flatten().long().tolist(), of.tolist(), known))
        i = images.flatten().long() % 1000
        return F.one_hot((i + (i >= y[of]).long()) % CHOICES, CHOICES).to(y)

    def moments(self, y: Tensor, images: Tensor) -> Any:
        """What it was shown, in place of moments."""
        self.measured.append(images.flatten().long().tolist())
        return ("moments", len(self.measured))


def marked(net: Any, **settings: Any) -> Task:
    images = torch.arange(N, dtype=torch.float64)[:, None]
    tested = torch.arange(TESTED)

    def test(task: int) -> tuple[Tensor, Tensor]:
        return 1000.0 * (task + 1) + tested.double()[:, None], tested % CHOICES

    data = StreamData(
        settings.pop("images", images), torch.arange(N) % CHOICES, test, {"made": "up"}
    )
    given: dict[str, Any] = {
        "context": CONTEXT, "data": data, "net": net, "tasks": TASKS, "choices": CHOICES,
        "batch": BATCH, "order": "stream", "temperature": 3.0, "strength": 7.0, "watched": 4,
        "statistics": 5,
    }  # fmt: skip
    return stream(**given | settings)


def test_a_task_names_its_parts() -> None:
    task, net = marked(Marked()), Marked()
    assert (task.metric, task.report.sources) == ("ACC", {"made": "up"})
    assert task.stream is not None
    assert task.stream[:4] == (TASKS, STEPS, BATCH, CHOICES)
    assert task.data.count(task.stream.recall(torch.tensor([1, 5, 7]))) == 3
    x, y = marked(net).init(generator("i"))
    rng = generator("i")
    assert torch.equal(x, torch.rand(2, generator=rng).double())
    assert torch.equal(y, torch.rand(3, generator=rng).double())
    assert x.dtype == y.dtype == torch.float64


def test_samples_come_by_their_numbers() -> None:
    task = marked(Marked())
    assert task.stream is not None
    s = task.stream.recall(torch.tensor([17, 0, 8, 7]))
    assert s.images.flatten().tolist() == [17, 0, 8, 7]
    assert s.labels.tolist() == [2, 0, 3, 2]
    assert s.tasks.tolist() == [2, 0, 1, 0]
    assert s.numbers.tolist() == [17, 0, 8, 7]
    assert s.weights.tolist() == [0.25] * 4
    assert s.weights.dtype == torch.float64
    assert s.teacher is None
    bytes_ = marked(Marked(), images=torch.arange(N, dtype=torch.uint8)[:, None])
    assert bytes_.stream is not None
    found = bytes_.stream.recall(torch.tensor([17, 3])).images
    torch.testing.assert_close(found, torch.tensor([[17 / 255], [3 / 255]], dtype=torch.float64))


def test_a_stream_is_one_pass_in_order() -> None:
    task = marked(Marked())
    for draw in (task.data.draw_lower, task.data.draw_upper):
        seen = [draw(generator("x", k), k, None).numbers.tolist() for k in range(N // BATCH)]
        assert seen == [[2 * k, 2 * k + 1] for k in range(N // BATCH)]
        assert draw(generator("x"), 3, BATCH).numbers.tolist() == [6, 7]
        with pytest.raises(BadSetting, match=r"the stream ends; write run\.steps=12"):
            draw(generator("x"), N // BATCH, None)
        with pytest.raises(BadSetting, match=r"algorithm\.batch=3: a step has task\.batch=2"):
            draw(generator("x"), 0, 3)
    with pytest.raises(BadSetting, match=r"task\.batch=3: write a divisor of a task's 8 images"):
        marked(Marked(), batch=3)


def test_a_shuffled_stream_is_epochs_named_by_the_seed() -> None:
    task = marked(Marked(), order="shuffled", context=Context(seed=4, dtype=torch.float64))
    for epoch in (0, 1):
        steps = range(12 * epoch, 12 * (epoch + 1))
        seen = [task.data.draw_lower(generator("any"), k, None).numbers for k in steps]
        order = torch.randperm(N, generator=generator("shuffled", 4, epoch))
        assert torch.equal(torch.cat(seen), order)
    assert task.ledger is not None
    assert task.ledger.every == 12  # an epoch


def test_the_losses_are_weighted_cross_entropy_and_divergence_from_the_teacher() -> None:
    """One sample after the other; the divergence is divided by the number of answers."""

    class Linear(Marked):
        def logits(
            self, x: Tensor, y: Tensor, images: Tensor, of: Tensor, known: Any = None
        ) -> Any:
            return images * y[:CHOICES] + of[:, None] * x[0] + torch.arange(CHOICES) * x[1]

    task = marked(Linear(), strength=7.0, temperature=3.0)
    x, y = (
        torch.tensor([0.3, -0.7], dtype=torch.float64),
        0.1 * torch.tensor([1.0, -2, 3, 0.5, -1]).double(),
    )
    assert task.stream is not None
    assert task.lower is not None
    s = task.stream.recall(torch.tensor([17, 2, 8]))
    s = s._replace(weights=torch.tensor([0.2, 0.5, 0.9], dtype=torch.float64))
    teacher = torch.tensor([[0.0] * 5, [0.1, 0.2, 0.3, 0.4, 0.0], [0.2] * 5], dtype=torch.float64)
    plain, taught = 0.0, 0.0
    for i, number in enumerate([17, 2, 8]):
        z = [number * float(y[c]) + (number // 8) * 0.3 - 0.7 * c for c in range(5)]
        plain += float(s.weights[i]) * (math.log(sum(map(math.exp, z))) - z[number % 5])
        below = math.log(sum(math.exp(v / 3) for v in z))
        for p, v in zip(teacher[i].tolist(), z, strict=True):
            taught += float(s.weights[i]) * p * (math.log(p) - v / 3 + below) if p else 0.0
    assert float(task.upper(x, y, s)) == pytest.approx(plain, rel=1e-12)
    assert float(task.lower(x, y, s)) == pytest.approx(plain, rel=1e-12)
    known = s._replace(teacher=teacher)
    assert float(task.upper(x, y, known)) == pytest.approx(plain, rel=1e-12)
    assert float(task.lower(x, y, known)) == pytest.approx(plain + 7.0 / 5 * taught, rel=1e-12)
    none = marked(Linear(), strength=0.0)
    assert none.lower is not None
    assert float(none.lower(x, y, known)) == pytest.approx(plain, rel=1e-12)
    half = marked(Linear(), strength=0.5, temperature=3.0)
    assert half.lower is not None
    assert float(half.lower(x, y, known)) == pytest.approx(plain + 0.1 * taught, rel=1e-12)
    torch.testing.assert_close(
        task.stream.logits(x, y, s),
        s.images * y + s.tasks[:, None] * x[0] + torch.arange(5) * x[1],
    )


X, RIGHT = torch.zeros(2).double(), torch.tensor([2.0, 5.0, 6.0]).double()  # of each task
AT = {0: 0, 1: 0, 3: 0, 4: 0, 5: 1, 8: 1, 9: 2, 12: 2, 30: 2}  # step -> the task that it ends in


@pytest.mark.parametrize("step", AT)
def test_a_measurement_is_of_the_present_tasks_first_test_images(step: int) -> None:
    net = Marked()
    found = marked(net).evaluate(X, RIGHT, step)
    task = AT[step]
    assert float(found["task_accuracy"]) == min(float(RIGHT[task]), 4) / 4
    (asked,) = net.asked
    assert asked[0] == [1000 * (task + 1) + i for i in range(4)]
    assert asked[1] == [task] * 4
    assert asked[2] == ("moments", 1)


@pytest.mark.parametrize("step", [*AT, 2])
def test_a_network_is_normalised_by_images_that_it_has_seen(step: int) -> None:
    """By 5 that are spread evenly over the samples of the steps so far, or by all, if fewer."""
    net = Marked()
    marked(net).evaluate(X, RIGHT, step)
    seen = BATCH * min(max(step, 1), N // BATCH)
    count = min(5, seen)
    (measured,) = net.measured
    assert measured == [int(i * (seen - 1) / (count - 1)) for i in range(count)]
    assert max(measured) < max(step, 1) * BATCH
    assert max(measured) // EACH == AT.get(step, 0)


def test_all_images_normalise_a_network_that_has_learned_them_shuffled() -> None:
    net = Marked()
    task = marked(net, order="shuffled")
    assert float(task.evaluate(X, RIGHT, 1)["task_accuracy"]) == 1.0  # of the last task, 4 images
    assert net.measured == [[0, 5, 11, 17, 23]]
    assert net.asked[0][1] == [TASKS - 1] * 4


def test_a_network_without_statistics_is_asked_for_none() -> None:
    net = Marked()
    marked(net, statistics=None).evaluate(X, RIGHT, 5)
    assert net.measured == []
    assert net.asked[0][2] is None


def test_the_ledger_tests_every_task_so_far_on_all_its_test_images(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tasks.continual, "BLOCK", 3)
    net = Marked()
    task = marked(net)
    assert task.ledger is not None
    assert task.ledger.every == STEPS
    empty = task.ledger.empty
    assert empty.shape == (3, 3)
    assert empty.isnan().all()
    assert empty.dtype == torch.float64
    one = task.ledger.enter(empty, X, RIGHT, STEPS)
    assert empty.isnan().all()  # a table is not written over
    assert one[0, 0] == 2 / 7
    assert int(one.isnan().sum()) == 8
    net.asked.clear()
    net.measured.clear()
    two = task.ledger.enter(one, X, RIGHT + 1, 2 * STEPS)
    assert two[0, 0] == one[0, 0]
    assert two[1, :2].tolist() == [3 / 7, 6 / 7]
    assert int(two.isnan().sum()) == 6
    assert [a[0] for a in net.asked] == [
        [1000, 1001, 1002], [1003, 1004, 1005], [1006], [2000, 2001, 2002], [2003, 2004, 2005],
        [2006],
    ]  # fmt: skip
    assert [a[1] for a in net.asked] == [[0] * 3, [0] * 3, [0], [1] * 3, [1] * 3, [1]]
    assert [a[2] for a in net.asked] == [("moments", 1)] * 3 + [("moments", 2)] * 3
    assert all(max(numbers) < 2 * EACH for numbers in net.measured)  # of no later task
    offline = marked(Marked(), order="shuffled")
    assert offline.ledger is not None
    all_at_once = offline.ledger.enter(empty, X, RIGHT, 12)
    assert all_at_once[2].tolist() == [2 / 7, 5 / 7, 6 / 7]
    assert int(all_at_once.isnan().sum()) == 6
    view = task.ledger.view(two)
    assert (view.title, view.x, view.y) == ("Accuracy", "test on task", "after task")
    assert (view.low, view.high) == (0.0, 1.0)


# the measures of an accuracy matrix


def rows(*values: list[float]) -> Tensor:
    """A matrix, what is not given being nan."""
    a = torch.full((3, 3), math.nan).double()
    for s, row in enumerate(values):
        a[s, : len(row)] = torch.tensor(row, dtype=torch.float64)
    return a


MEASURES = {  # the matrix, ACC, NBT, FT, FM, learning_accuracy, in thirds and halves by hand
    "forgets": (
        rows([0.9], [0.7, 0.8], [0.75, 0.5, 0.6]), 1.85 / 3, 0.45 / 3, 2.3 / 3, 0.45 / 2, 0.6,
    ),
    "best in between": (  # FM counts from .8, NBT from .5
        rows([0.5], [0.8, 0.7], [0.6, 0.7, 0.9]), 2.2 / 3, -0.1 / 3, 2.1 / 3, 0.2 / 2, 0.9,
    ),
    "best at last": (  # the last row is none of FM's maxima, so that FM can be negative
        rows([0.5], [0.4, 0.3], [0.9, 0.6, 0.2]), 1.7 / 3, -0.7 / 3, 1.0 / 3, -0.7 / 2, 0.2,
    ),
    "two rows": (rows([0.9], [0.6, 0.5]), 1.1 / 2, 0.3 / 2, 1.4 / 2, 0.3, 0.5),
    "zeros": (rows([0.0], [0.0, 0.5]), 0.5 / 2, 0.0, 0.5 / 2, 0.0, 0.5),
}  # fmt: skip


@pytest.mark.parametrize("name", MEASURES)
def test_the_measures_by_hand(name: str) -> None:
    """ACC, NBT, FT of BOME's section 6.1 (FT as FT = ACC + NBT has it); FM of Chaudhry et al.
    (2018), equation (3): f_j = max over l < k of a_lj, less a_kj, the mean over j < k."""
    a, *expected = MEASURES[name]
    before = a.clone()
    found = {key: float(value) for key, value in read(a).items()}
    assert list(found) == ["ACC", "NBT", "FT", "FM", "learning_accuracy"]
    assert list(found.values()) == pytest.approx(expected, rel=1e-12, abs=1e-15)
    assert torch.equal(a.nan_to_num(-1), before.nan_to_num(-1))


def test_measures_where_there_is_little_to_measure() -> None:
    nothing = read(rows())
    assert list(nothing) == ["ACC", "NBT", "FT", "FM", "learning_accuracy"]
    assert all(value.isnan() for value in nothing.values())
    one = read(rows([0.4]))
    assert [float(one[key]) for key in ("ACC", "NBT", "FT", "learning_accuracy")] == [
        0.4, 0.0, 0.4, 0.4,
    ]  # fmt: skip
    assert one["FM"].isnan()  # there is nothing to forget
    offline = rows([], [], [0.1, 0.2, 0.6])
    assert list(read(offline)) == ["ACC"]  # nothing was there before
    assert float(read(offline)["ACC"]) == pytest.approx(0.3)


# permuted digits and split classes, from data that say where they are from


class Kept(Exception):
    """Ends a task's making once its data are there."""


def streamed(monkeypatch: pytest.MonkeyPatch, make: Any, *given: Any, **settings: Any) -> Any:
    """(the arguments of `stream`, by name) of a task that is being made."""

    def keeping(*arguments: Any) -> Any:
        found.update(zip(names, arguments, strict=True))
        raise Kept

    found: dict[str, Any] = {}
    names = [
        "context", "data", "net", "tasks", "choices", "batch", "order", "temperature", "strength",
        "watched", "statistics",
    ]  # fmt: skip
    with monkeypatch.context() as patch:
        patch.setattr(tasks.continual, "stream", keeping)
        with pytest.raises(Kept):
            make(*given, **settings)
    return found


PIXELS = 6
TRAIN = torch.arange(40)[:, None] * 10 + torch.arange(PIXELS)  # image 10 i, pixel p: 10 i + p


def loaded(images: Images, context: Context, *name: Any) -> ImageSplit:
    """Images whose pixels say their part, number and place."""
    assert name == ("permuted_mnist",)
    parts = [
        LabelledImages((k * 1000 + TRAIN).float(), k * 100 + torch.arange(40)) for k in range(4)
    ]
    return ImageSplit(*parts, {"file": "sum"})


@pytest.mark.parametrize(("seed", "instance"), [(0, 0), (3, 0), (0, 2)])
def test_permuted_digits_are_training_images_in_the_tasks_orders_of_pixels(
    seed: int, instance: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The seed draws the images, the instance the permutations; a test image is permuted as its
    task's training images are."""
    monkeypatch.setattr(tasks.continual, "load", loaded)
    context = Context(seed=seed, dtype=torch.float64)
    asked = Images("digits", 40, 40, 40, 40)
    found = streamed(
        monkeypatch, permuted_mnist, context, asked, 2, 12, 4, "stream", 9, 3, embedding=5,
        temperature=1.5, strength=2.5, watched=6, instance=instance,
    )  # fmt: skip
    data = found["data"]
    assert data.images.shape == (24, PIXELS)
    for t in range(2):
        p = torch.randperm(PIXELS, generator=generator("permutation", instance, t)).tolist()
        rows = torch.randperm(40, generator=generator("stream", seed, t)).tolist()[:12]
        for row, image, label in zip(
            rows, data.images[12 * t : 12 * t + 12], data.labels[12 * t : 12 * t + 12], strict=True
        ):
            assert image.tolist() == [10 * row + place for place in p]
            assert int(label) == row
        tested, answers = data.test(t)
        assert tested.dtype == torch.float64
        assert tested.tolist() == [[3000 + 10 * i + place for place in p] for i in range(40)]
        assert answers.tolist() == list(range(300, 340))
    assert data.sources == {"file": "sum"}
    net = found["net"]
    assert (net.pixels, net.hidden, net.layers, net.classes) == (PIXELS, 9, 3, 10)
    assert (net.tasks, net.embedding) == (2, 5)
    del found["data"], found["net"]
    assert list(found.values()) == [context, 2, 10, 4, "stream", 1.5, 2.5, 6, None]


def test_the_released_size_is_another_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks.continual, "load", loaded)
    asked = Images("digits", 40, 40, 40, 40)
    for capacity, sizes in (("matched", (9, 3)), ("released", (17, 4))):
        found = streamed(
            monkeypatch, permuted_mnist, CONTEXT, asked, 2, 12, 4, hidden=9, layers=3,
            capacity=capacity, released=Size(17, 4),
        )  # fmt: skip
        assert (found["net"].hidden, found["net"].layers) == sizes
    permuted_mnist(CONTEXT, asked, 2, 40, 4)  # as many as there are
    with pytest.raises(BadSetting, match=r"task\.images=41: write at most task\.data\.train=40"):
        permuted_mnist(CONTEXT, asked, 2, 41, 4)


CLASSES, TRAINED = 25, 4  # made-up classes, 4 training and 3 test images of each


def halves(name: str, context: Context) -> Any:
    """Images [1, 2, 2] of bytes that say class, whether they test, and number."""
    value = 10 * torch.arange(CLASSES)[:, None]
    train, test = value + torch.arange(TRAINED), value + 5 + torch.arange(3)
    shape = (1, 1, 1, 2, 2)
    made = (h[:, :, None, None, None].byte().repeat(shape) for h in (train, test))
    return (*made, {name: "sum"})


@pytest.mark.parametrize(("part", "first", "tasks_"), [("tuning", 0, 3), ("reported", 3, 2)])
@pytest.mark.parametrize(("seed", "instance"), [(0, 0), (3, 0), (0, 2)])
def test_split_classes_are_of_one_task_each(
    part: str, first: int, tasks_: int, seed: int, instance: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The instance divides the classes, the seed orders the images; the test images are those of
    the other half, of the same classes, and no class is both for tuning and reported."""
    monkeypatch.setattr(tasks.continual.classes, "halves", halves)
    context = Context(seed=seed, dtype=torch.float64)
    found = streamed(
        monkeypatch, split_cifar, context, "cifar100", part, tasks_, 4, "shuffled", 3, 7, 1.5, 2.5,
        6, 11, instance,
    )  # fmt: skip
    data, order = found["data"], torch.randperm(CLASSES, generator=generator("division", instance))
    order = order.tolist()
    assert data.images.dtype == torch.uint8
    for t in range(tasks_):
        own = order[5 * (first + t) : 5 * (first + t + 1)]
        shuffled = torch.randperm(20, generator=generator("stream", seed, t)).tolist()
        marks = data.images[20 * t : 20 * t + 20, 0, 0, 0].tolist()
        assert marks == [10 * own[i // 4] + i % 4 for i in shuffled]
        assert data.labels[20 * t : 20 * t + 20].tolist() == [i // 4 for i in shuffled]
        tested, answers = data.test(t)
        assert tested.dtype == torch.float64
        marks = (255 * tested[:, 0, 1, 1]).round().long().tolist()
        assert marks == [10 * own[i % 5] + 5 + i // 5 for i in range(15)]
        assert answers.tolist() == [i % 5 for i in range(15)]
    assert data.sources == {"cifar100": "sum"}
    net = found["net"]
    assert (net.channels, net.filters, net.classes) == (1, 3, 5)
    assert (net.tasks, net.embedding) == (tasks_, 7)
    del found["data"], found["net"]
    assert list(found.values()) == [context, tasks_, 5, 4, "shuffled", 1.5, 2.5, 6, 11]


class Stubborn(Marked):
    """A network that gives one answer to every image, the class y[0]."""

    def logits(self, x: Tensor, y: Tensor, images: Tensor, of: Tensor, known: Any = None) -> Tensor:
        return F.one_hot(y[:1].long(), CHOICES).to(y).expand(len(images), CHOICES)


@pytest.mark.parametrize("watched", [5, 10, 15, 100])
def test_what_is_watched_is_of_all_classes_alike(
    watched: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One answer is right for one image in five, whichever it is. CIFAR's test images come class by
    class, so that the first ones are of one class."""
    monkeypatch.setattr(tasks.continual.classes, "halves", halves)
    found = streamed(monkeypatch, split_cifar, CONTEXT, tasks=2, batch=4, watched=watched)
    task = stream(**found | {"net": Stubborn()})
    for answer in range(CHOICES):
        y = torch.full((3,), answer).double()
        assert float(task.evaluate(X, y, 1)["task_accuracy"]) == pytest.approx(1 / 5)


def test_there_are_three_tasks_for_tuning_and_the_others_are_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tasks.continual.classes, "halves", halves)
    for part, most in (("tuning", 3), ("reported", 2)):  # of 25 classes
        split_cifar(CONTEXT, part=part, tasks=most, filters=1)  # type: ignore[arg-type]
        with pytest.raises(BadSetting, match=f"there are {most} of 5 .*; write task.tasks={most}"):
            split_cifar(CONTEXT, part=part, tasks=most + 1)  # type: ignore[arg-type]
