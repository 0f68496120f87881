"""Online tuning of a parametric loss on imbalanced data (F2OBO, section 6.1 and figure 1).

x = (gamma, Delta) in R^{2 x 10} scales and shifts the logits h(y; a) of a small network in the
training loss, and is chosen by a validation loss that weighs each class by its inverse frequency:

    g_t(x, y) = mean over D_t^tr of CE(gamma * h(y; a) + Delta, b),
    f_t(x, y) = mean over D_t^val of u_b CE(h(y; a), b),   u_j = 1 / (share of class j).

A fraction mu^i of the images of class i is there; mu grows in phases.

The paper says neither what a round's D_t is, nor how wide the network is, nor what is done about
batch normalisation in tests. As in the related released code of OAGD, D_t is one batch of each set
here, and the widths are 64. Unlike that code, the validation set is imbalanced like the training
set, because the paper's weights u, if they are of the validation set as in that code, would
otherwise all be the same; gamma goes through no sigmoid, because the paper prints none; there is no
momentum and no weight decay.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from bench.core.draw import bring, generator
from bench.core.settings import BadSetting, Count, Positive, Share
from bench.core.task import Batch, Context, Data, Place, Report, Sampler, Tally, Task
from tasks.common.online import NAMES, Solved, measure_round
from tasks.data.images import Images, LabelledImages, load
from tasks.models.batch_norm import batch_norm
from tasks.models.convolution import convolution
from tasks.models.groups import split_each

CLASSES = 10
BLOCK = 2000  # images that are tested at a time


class ImageRound(NamedTuple):
    """The images of a round [n, 1, side, side], their labels [n] int64, and the classes' weights u
    [10]."""

    images: Tensor
    labels: Tensor
    weights: Tensor


def online_imbalance(
    context: Context,
    data: Images,
    solved: Solved,
    shares: tuple[Share, ...] = (0.6, 0.7, 0.8, 0.9),
    phase: Count = 100,
    round: Count | None = 64,
    validation: Literal["imbalanced", "balanced"] = "imbalanced",
    channels: Count = 64,
    statistics: Count = 512,
    gamma: Positive = 0.001,
) -> Task:
    """shares: mu of each phase. phase: rounds of a phase. round: how many images of each set a
    round's losses are over, drawn by the round's number; None: all images of the phase.

    validation: whether the validation set's classes are thinned too. channels: output channels of
    each of the four convolutions. gamma: step size of the gradient mapping, which is the gradient
    itself here, as there is no constraint. solved: how a round is measured.

    In training the network is normalised by the statistics of its batch. In tests it is normalised
    by those of `statistics` training images of the phase, which is what running averages estimate.

    accuracy_phase_i is the balanced accuracy before the last step of phase i, and 0 until then.
    Raises BadSetting.
    """
    if not shares:
        raise BadSetting("task.shares=[]: there is no phase; write a share for each, such as [0.6]")
    split = load(data, context, "online_imbalance", context.seed)
    device, dtype = context.device, context.dtype
    side = math.isqrt(split.train.features.shape[1])

    def standardise(part: LabelledImages) -> tuple[Tensor, Tensor]:
        pixels = (part.features - split.train.features.mean()) / split.train.features.std()
        return pixels.view(-1, 1, side, side).to(device, dtype), part.labels.to(device)

    def phases(part: LabelledImages, thinned: bool) -> list[ImageRound]:
        images, labels = standardise(part)
        kept = [thinned_rows(labels, mu if thinned else 1.0) for mu in shares]
        counts = [torch.bincount(labels[rows], minlength=CLASSES) for rows in kept]
        return [
            ImageRound(images[rows], labels[rows], (n.sum() / n).to(images))
            for rows, n in zip(kept, counts)
        ]

    train = phases(split.train, True)
    val = phases(split.val, validation == "imbalanced")
    test_images, test_labels = standardise(split.test)
    net = ConvNetwork(channels, side)

    def phase_of(step: int) -> int:
        return min(step // phase, len(shares) - 1)

    def sampler(parts: list[ImageRound], name: str) -> Sampler:
        def draw(rng: Generator, step: int, size: int | None) -> Batch:
            part = parts[phase_of(step)]
            own = generator("round", name, context.seed, step)
            if round is not None:
                part = some(part, own, round)
            return part if size is None else some(part, rng, size)

        return draw

    def upper(x: Tensor, y: Tensor, d: ImageRound) -> Tensor:
        losses = F.cross_entropy(net.logits(y, d.images), d.labels, reduction="none")
        return (d.weights[d.labels] * losses).mean()

    def lower(x: Tensor, y: Tensor, d: ImageRound) -> Tensor:
        return F.cross_entropy(x[0] * net.logits(y, d.images) + x[1], d.labels)

    plain = torch.stack([torch.ones(CLASSES), torch.zeros(CLASSES)]).to(device, dtype)
    alike = torch.ones(CLASSES).to(device, dtype)

    def together(places: Sequence[Place]) -> Tensor | None:
        """The losses of all networks as groups of channels, if their batches are of one size."""
        batches = [p.batch for p in places]
        if len({d.images.shape for d in batches}) > 1:
            return None
        scores = net.own_logits(
            torch.stack([p.y for p in places]), torch.cat([d.images for d in batches], 1)
        )
        scale, shift = torch.stack([plain if p.upper else p.x for p in places])[..., None].unbind(1)
        labels = torch.stack([d.labels for d in batches])
        losses = F.cross_entropy(scale * scores + shift, labels, reduction="none")
        weights = torch.stack([p.batch.weights if p.upper else alike for p in places])
        return (weights.gather(1, labels) * losses).mean(1)

    draw_train, draw_val = sampler(train, "train"), sampler(val, "val")

    def balanced_accuracy(y: Tensor, step: int) -> Tensor:
        """The mean over the classes of the share of their test images that are classified right."""
        reference = train[phase_of(step)].images[:statistics]
        scores = [net.logits(y, part, reference) for part in test_images.split(BLOCK)]
        right = torch.cat(scores).argmax(1) == test_labels
        told = torch.zeros(CLASSES).to(y).index_add(0, test_labels, right.to(y))
        return (told / torch.bincount(test_labels, minlength=CLASSES).clamp(min=1)).mean()

    def evaluate(x: Tensor, y: Tensor, step: int) -> dict[str, Tensor]:
        none = Generator()
        return {
            "balanced_accuracy": balanced_accuracy(y, step),
            "training_loss": lower(x, y, draw_train(none, step, None)),
            "validation_loss": upper(x, y, draw_val(none, step, None)),
        }

    ends = [f"accuracy_phase_{i + 1}" for i in range(len(shares))]

    def adds(x: Tensor, y: Tensor, step: int) -> dict[str, Tensor]:
        last = (step + 1) % phase == 0 and step < phase * len(shares)
        now = balanced_accuracy(y, step) if last else y.new_zeros(())
        return {
            **measure_round(task, x, y, step, gamma, solved, context.oracle),
            "cumulative_loss": upper(x, y, draw_val(Generator(), step, None)),
            **{name: now if i == phase_of(step) else 0 * now for i, name in enumerate(ends)},
        }

    def init(rng: Generator) -> tuple[Tensor, Tensor]:
        start = torch.stack([torch.ones(CLASSES), torch.zeros(CLASSES)])
        return start.to(device, dtype), net.start(rng).to(device, dtype)

    task = Task(
        upper=upper,
        lower=lower,
        init=init,
        evaluate=evaluate,
        metric="balanced_accuracy",
        together=together,
        data=Data(draw_val, draw_train, count=lambda d: len(d.labels)),
        report=Report(sources=split.sources),
        tally=Tally((*NAMES, "cumulative_loss", *ends), adds),
    )
    return task


def thinned_rows(labels: Tensor, mu: float) -> Tensor:
    """The numbers of the first ceil(mu^i n_i) rows of each class i, in ascending order."""
    kept = torch.zeros_like(labels, dtype=torch.bool)
    for i in range(CLASSES):
        rows = (labels == i).nonzero()[:, 0]
        kept[rows[: math.ceil(mu**i * len(rows))]] = True
    return kept.nonzero()[:, 0]


def some(part: ImageRound, rng: Generator, size: int) -> ImageRound:
    """`size` rows of the part, drawn with replacement."""
    rows = bring(torch.randint(len(part.labels), (size,), generator=rng), part.labels.device)
    return ImageRound(part.images[rows], part.labels[rows], part.weights)


class ConvNetwork:
    """Four blocks of 3 x 3 convolution, ReLU, 2 x 2 max-pooling and batch normalisation, and a
    linear layer, with all parameters in one vector. An image of one pixel is not pooled further."""

    def __init__(self, channels: int, side: int):
        for _ in range(4):
            side = max(1, side // 2)
        blocks = [
            [(channels, before, 3, 3), (channels,), (channels,), (channels,)]
            for before in (1, channels, channels, channels)
        ]
        self.shapes = [*(s for block in blocks for s in block), (CLASSES, channels * side**2)]
        self.shapes.append((CLASSES,))
        self.sizes = [math.prod(shape) for shape in self.shapes]

    def start(self, rng: Generator) -> Tensor:
        """The first parameters, in double precision: He's normal convolutions, as in the related
        code, scales 1, and biases, shifts and the linear layer zero."""
        parts = []
        for shape, kind in zip(self.shapes, [*("conv", "zero", "one", "zero") * 4, "zero", "zero"]):
            if kind == "conv":
                deviation = math.sqrt(2 / (9 * shape[0]))
                parts.append(deviation * torch.randn(shape, generator=rng, dtype=torch.float64))
            else:
                parts.append(torch.full(shape, 1.0 if kind == "one" else 0.0).double())
        return torch.cat([part.flatten() for part in parts])

    def logits(self, y: Tensor, images: Tensor, reference: Tensor | None = None) -> Tensor:
        """[n, 10]. The network is normalised by the statistics of the images `reference`; None: by
        those of `images`."""
        parts = [p.view(s) for p, s in zip(y.split(self.sizes), self.shapes)]
        h, r = images, reference
        for a, b in pairwise(range(0, 17, 4)):
            kernel, bias, scale, shift = parts[a:b]
            h = convolve(h, kernel, bias)
            if r is None:
                h = batch_norm(h, scale, shift)
                continue
            r = convolve(r, kernel, bias)
            variance, mean = torch.var_mean(r, (0, 2, 3), correction=0)
            h, r = (F.batch_norm(u, mean, variance, scale, shift) for u in (h, r))
        return F.linear(h.flatten(1), parts[16], parts[17])

    def own_logits(self, ys: Tensor, images: Tensor) -> Tensor:
        """The logits [m, 10, n] of m networks ys [m, parameters], each for images of its own, which
        are its channel of images [n, m, side, side]. They are normalised by these."""
        m = len(ys)
        parts = [
            part.view(m * shape[0], *shape[1:])
            for part, shape in zip(split_each(ys, self.sizes), self.shapes)
        ]
        h = images
        for a, b in pairwise(range(0, 17, 4)):
            kernel, bias, scale, shift = parts[a:b]
            h = batch_norm(convolve(h, kernel, bias, m), scale, shift)
        features = h.view(len(h), m, -1).permute(1, 2, 0)
        weights, shifts = parts[16].view(m, CLASSES, -1), parts[17].view(m, CLASSES, 1)
        return torch.baddbmm(shifts, weights, features)


def convolve(images: Tensor, kernel: Tensor, bias: Tensor, groups: int = 1) -> Tensor:
    """A block's convolution, ReLU and pooling."""
    h = F.relu(convolution(images, kernel, bias, groups=groups))
    return F.max_pool2d(h, 2) if h.shape[-1] > 1 else h
