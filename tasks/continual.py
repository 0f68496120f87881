"""Continual learning: tasks one after the other, each seen once, batch by batch (BOME, table 1).

    f(x, y) = sum_i w_i CE_i,   g(x, y) = sum_i w_i (CE_i + (strength / C) KL(p_i || q_i)),

where the sums are over the samples that a method hands in: the stream's batch of this step, and
what the method remembers. CE_i is the cross-entropy among the C classes of a sample's own task. The
second term is there only where an earlier network's answer p_i is remembered. It holds q_i, the
answer of the present network, to p_i, both at a temperature. C divides because the released code
takes the mean over a batch and its classes. x is the controller of a contextual transformation
network, or empty, and y the backbone (tasks/models/film.py).

At the end of each task every task so far is tested. The run's ledger keeps the matrix a, where
a[s, tau] is the accuracy on task tau after training on task s; ACC, NBT, FT and FM are its
measures.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from bench.core.draw import bring, generator
from bench.core.settings import BadSetting, Count, Natural, NonNegative, Positive, version
from bench.core.stream import Samples, Stream
from bench.core.task import Batch, Context, Data, Ledger, Place, Report, Task
from bench.core.view import heatmap
from tasks.data import classes
from tasks.data.images import Images, load
from tasks.models.film import Mlp, Network, Resnet

BLOCK = 2000  # images that are tested at a time
Order = Literal["stream", "shuffled"]


@dataclass(frozen=True)
class Size:
    """The size of an MLP: units of a hidden layer, and the number of such layers."""

    hidden: Count = 256
    layers: Count = 2


CTN = Size()  # the size of contextual transformation networks in the released code


class StreamData(NamedTuple):
    """The data of a stream.

    images [n, ...] and labels [n] for training, in the order of the stream; labels are counted
    within each image's task. test(task): the test images and labels of a task, in an order whose
    first images, however many are looked at, have about as many of each class. sources: data ->
    SHA-256.
    """

    images: Tensor
    labels: Tensor
    test: Callable[[int], tuple[Tensor, Tensor]]
    sources: dict[str, str]


def permuted_mnist(
    context: Context,
    data: Images,
    tasks: Count = 20,
    images: Count = 1000,
    batch: Count = 10,
    order: Order = "stream",
    hidden: Count = 256,
    layers: Count = 2,
    capacity: Literal["matched", "released"] = "matched",
    released: Size = CTN,
    embedding: Natural = 0,
    temperature: Positive = 5.0,
    strength: NonNegative = 100.0,
    watched: Count = 1000,
    instance: Natural = 0,
) -> Task:
    """Each task is to classify the same ten digits, with the pixels in an order of the task's own.

    images: of each task, drawn and ordered by the seed from data.train. batch: images of a step.
    order: "shuffled" mixes the images of all tasks, in a new random order for each pass over them,
    for a method that is not continual.

    hidden, layers: the size of the backbone, which is the same for all methods. capacity:
    "released" puts the size `released` in its place, which differs between methods in the released
    code (conf/tuned). embedding: length of a task's embedding in the controller; 0: no controller.

    temperature, strength: of the distillation. watched: how many test images, of the task that is
    being learned, a measurement between the ends of tasks uses. instance: names the tasks'
    permutations, which are fixed in the released code too. Raises BadSetting.
    """
    split = load(data, context, "permuted_mnist")
    pixels = split.train.features.shape[1]
    if images > len(split.train.labels):
        raise BadSetting(f"task.images={images}: write at most task.data.train={data.train}")
    permutations = [
        torch.randperm(pixels, generator=generator("permutation", instance, t)).to(context.device)
        for t in range(tasks)
    ]
    rows = [
        torch.randperm(len(split.train.labels), generator=generator("stream", context.seed, t))
        for t in range(tasks)
    ]
    test, answers = split.test.features.to(context.device, context.dtype), split.test.labels
    found = StreamData(
        torch.cat(
            [split.train.features[r[:images]][:, p.cpu()] for r, p in zip(rows, permutations)]
        ),
        torch.cat([split.train.labels[r[:images]] for r in rows]),
        lambda t: (test[:, permutations[t]], answers),
        split.sources,
    )
    size = released if capacity == "released" else Size(hidden, layers)
    net = Mlp(pixels, size.hidden, size.layers, 10, tasks, embedding)
    return stream(
        context, found, net, tasks, 10, batch, order, temperature, strength, watched, None
    )


@version(2)
def split_cifar(
    context: Context,
    data: Literal["patterns", "cifar100"] = "patterns",
    part: Literal["tuning", "reported"] = "reported",
    tasks: Count = 17,
    batch: Count = 10,
    order: Order = "stream",
    filters: Count = 20,
    embedding: Natural = 0,
    temperature: Positive = 5.0,
    strength: NonNegative = 100.0,
    watched: Count = 100,
    statistics: Count = 256,
    instance: Natural = 0,
) -> Task:
    """CIFAR-100 in tasks of 5 classes. The task of an image is known, and the answer to it is one
    of that task's classes.

    data: "patterns" is a small stand-in, which is made up. part: the first three tasks, which are
    for tuning, or those after them. filters: of the ResNet's first layer. statistics: how many
    training images of the tasks so far give the mean and variance by which a network is normalised
    in tests; this is what running averages estimate. instance: names the division into tasks. The
    other settings are as for permuted_mnist. Raises BadSetting.
    """
    each = 5
    train, test, sources = classes.halves(data, context)
    first = 0 if part == "tuning" else 3
    most = 3 if part == "tuning" else len(train) // each - 3
    if tasks > most:
        raise BadSetting(
            f"task.tasks={tasks}: there are {most} of {each} classes; write task.tasks={most}"
        )
    order_of = torch.randperm(len(train), generator=generator("division", instance))
    own = order_of[first * each : (first + tasks) * each].view(tasks, each)

    def scale(pixels: Tensor) -> Tensor:
        return pixels.flatten(0, 1).to(context.device, context.dtype) / 255

    shuffled = [
        torch.randperm(each * train.shape[1], generator=generator("stream", context.seed, t))
        for t in range(tasks)
    ]
    labels = torch.arange(each).repeat_interleave(train.shape[1])
    answers = torch.arange(each).repeat(test.shape[1])  # the classes take turns
    found = StreamData(
        torch.cat([train[own[t]].flatten(0, 1)[s] for t, s in enumerate(shuffled)]),
        torch.cat([labels[s] for s in shuffled]),
        lambda t: (scale(test[own[t]].transpose(0, 1)), answers),
        sources,
    )
    net = Resnet(train.shape[2], filters, each, tasks, embedding)
    return stream(
        context, found, net, tasks, each, batch, order, temperature, strength, watched, statistics
    )


def stream(
    context: Context,
    data: StreamData,
    net: Network,
    tasks: int,
    choices: int,
    batch: int,
    order: Order,
    temperature: float,
    strength: float,
    watched: int,
    statistics: int | None,
) -> Task:
    """The `Task` that is a stream of `tasks` equally long tasks with `choices` classes each.

    statistics: as for split_cifar; None: the network has no normalisation. The other arguments are
    as for permuted_mnist. Raises BadSetting.
    """
    n, device = len(data.labels), context.device
    if (n // tasks) % batch:
        raise BadSetting(f"task.batch={batch}: write a divisor of a task's {n // tasks} images")
    kept, labels = data.images.to(device), data.labels.to(device)
    steps = n // tasks // batch

    def recall(numbers: Tensor) -> Samples:
        images = kept[numbers].to(context.dtype)
        images = images if kept.is_floating_point() else images / 255
        weights = torch.full((len(numbers),), 1 / len(numbers), dtype=context.dtype, device=device)
        of = numbers // (n // tasks)
        return Samples(images, labels[numbers], of, numbers, weights)

    def draw(rng: Generator, step: int, size: int | None) -> Batch:
        """The images of the step, whoever asks and for whichever loss."""
        if size not in (None, batch):
            raise BadSetting(
                f"algorithm.batch={size}: a step has task.batch={batch} images; write "
                "algorithm.batch=null"
            )
        if order == "stream" and step >= n // batch:
            raise BadSetting(f"run.steps: the stream ends; write run.steps={n // batch}")
        k = step % (n // batch)
        if order == "stream":
            return recall(torch.arange(k * batch, (k + 1) * batch, device=device))
        epoch = generator("shuffled", context.seed, step // (n // batch))
        numbers = torch.randperm(n, generator=epoch)[k * batch : (k + 1) * batch]
        return recall(bring(numbers, device))

    def logits(x: Tensor, y: Tensor, s: Samples) -> Tensor:
        return net.logits(x, y, s.images, s.tasks)

    def losses(z: Tensor, labels: Tensor, teacher: Tensor | None = None) -> Tensor:
        """What each sample adds to a loss, shaped as its labels, for the answers z [..., classes].

        teacher: as for `Samples`; None also for the upper loss.
        """
        found = F.cross_entropy(z.flatten(0, -2), labels.flatten(), reduction="none")
        found = found.view(labels.shape)
        if teacher is not None and strength > 0:
            answers = F.log_softmax(z / temperature, -1)
            apart = (torch.xlogy(teacher, teacher) - teacher * answers).sum(-1)
            found = found + strength / choices * apart
        return found

    def upper(x: Tensor, y: Tensor, s: Samples) -> Tensor:
        return (s.weights * losses(logits(x, y, s), s.labels)).sum()

    def lower(x: Tensor, y: Tensor, s: Samples) -> Tensor:
        return (s.weights * losses(logits(x, y, s), s.labels, s.teacher)).sum()

    def together(places: Sequence[Place]) -> Tensor | None:
        """The losses of networks with normalisation, if their samples are as many and all alike."""
        every = [p.batch if not p.upper else p.batch._replace(teacher=None) for p in places]
        if len({(s.images.shape, s.teacher is None) for s in every}) > 1:
            return None
        assert isinstance(net, Resnet)
        labels, tasks, weights = (
            torch.stack(parts) for parts in zip(*((s.labels, s.tasks, s.weights) for s in every))
        )
        taught = [s.teacher for s in every if s.teacher is not None]
        teacher = torch.stack(taught) if taught else None
        xs, ys = torch.stack([p.x for p in places]), torch.stack([p.y for p in places])
        z = net.own_logits(xs, ys, torch.cat([s.images for s in every], 1), tasks)
        return (weights * losses(z, labels, teacher)).sum(1)

    def accuracy(x: Tensor, y: Tensor, task: int, step: int, most: int | None = None) -> Tensor:
        images, answers = (part[:most] for part in data.test(task))
        known = None
        if statistics is not None:
            seen = max(1, min(step, n // batch)) * batch if order == "stream" else n
            spread = torch.linspace(0, seen - 1, min(statistics, seen)).long().to(device)
            known = net.moments(y, recall(spread).images)
        right = [
            net.logits(x, y, part, torch.full((len(part),), task, device=device), known).argmax(1)
            for part in images.split(BLOCK)
        ]
        return (torch.cat(right) == answers.to(device)).to(y).mean()

    def now(step: int) -> int:
        """The task that is learned in the last of the first `step` steps."""
        return tasks - 1 if order == "shuffled" else min(max(step - 1, 0) // steps, tasks - 1)

    def evaluate(x: Tensor, y: Tensor, step: int) -> dict[str, Tensor]:
        return {"task_accuracy": accuracy(x, y, now(step), step, watched)}

    def enter(table: Tensor, x: Tensor, y: Tensor, step: int) -> Tensor:
        s, table = now(step), table.clone()
        for task in range(s + 1):
            table[s, task] = accuracy(x, y, task, step)
        return table

    def init(rng: Generator) -> tuple[Tensor, Tensor]:
        x, y = net.init(rng)
        return x.to(device, context.dtype), y.to(device, context.dtype)

    return Task(
        upper=upper,
        lower=lower,
        init=init,
        evaluate=evaluate,
        metric="ACC",
        data=Data(draw, draw, count=lambda s: len(s.labels)),
        together=together if isinstance(net, Resnet) else None,
        report=Report(sources=data.sources),
        stream=Stream(tasks, steps, batch, choices, recall, logits),
        ledger=Ledger(
            torch.full((tasks, tasks), math.nan, dtype=torch.float64),
            steps if order == "stream" else n // batch,
            enter,
            read,
            lambda table: heatmap("Accuracy", "test on task", "after task", table, 0.0, 1.0),
        ),
    )


def read(a: Tensor) -> dict[str, Tensor]:
    """The measures of an accuracy matrix a[s, tau] whose first t rows are filled.

    ACC = (1/t) sum_tau a[t, tau], NBT = (1/t) sum_tau (a[tau, tau] - a[t, tau]) and
    FT = (1/t) sum_tau a[tau, tau] (BOME, section 6.1; its text prints the formula of ACC for FT,
    but its table has FT = ACC + NBT). CTN's forgetting is
    FM = 1/(t - 1) sum_{tau < t} (max_{s < t} a[s, tau] - a[t, tau]) (Chaudhry et al., 2018). What
    its code calls learning accuracy is FT; "learning_accuracy" here is a[t, t], of the last task.
    """
    none = a.new_tensor(math.nan)
    names = ("ACC", "NBT", "FT", "FM", "learning_accuracy")
    filled = [s for s in range(len(a)) if not a[s, s].isnan()]
    if not filled:
        return dict.fromkeys(names, none)
    t = filled[-1]
    last, diagonal = a[t, : t + 1], a.diagonal()[: t + 1]
    acc, nbt, ft = last.mean(), (diagonal - last).mean(), diagonal.mean()
    if len(filled) <= t:  # all tasks were learned at once, and no earlier row is filled
        return {"ACC": acc}
    assert torch.isclose(ft, acc + nbt)
    earlier = a[:t, :t].nan_to_num(-1.0).amax(0) if t else last.new_zeros(0)
    fm = (earlier - last[:t]).mean() if t else none
    return dict(zip(names, (acc, nbt, ft, fm, diagonal[-1])))
