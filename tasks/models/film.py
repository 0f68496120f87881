"""Backbones and controllers of contextual transformation networks (Pham, Liu, Sahoo, Hoi, ICLR
2021). A backbone is a function of one vector y; a controller x transforms its features by task:

    h  ->  relu(h) + relu(gamma h + beta),   (gamma, beta) = W e_task + b, each to length one,

which is FiLM with an embedding e of every task. Without a controller x is empty, and h -> relu(h).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from tasks.models.batch_norm import EPS, batch_norm
from tasks.models.convolution import convolution
from tasks.models.groups import split_each

Moments = list[tuple[Tensor, Tensor]]  # mean and variance of each normalisation, in order


class Network(Protocol):
    """A network with one answer for each class of a sample's own task.

    init(rng): the first (x, y), in double precision. logits: [n, classes], where tasks [n] int64
    are the samples' tasks; the network is normalised by the moments `known`, or for None by the
    images' own. moments: the moments of these images; None: the network has no normalisation.
    """

    def init(self, rng: Generator) -> tuple[Tensor, Tensor]: ...

    def logits(
        self, x: Tensor, y: Tensor, images: Tensor, tasks: Tensor, known: Moments | None = None
    ) -> Tensor: ...

    def moments(self, y: Tensor, images: Tensor) -> Moments | None: ...


@dataclass(frozen=True)
class Mlp:
    """Linear layers of `hidden` units each, with FiLM after every one; all tasks share the answers.

    embedding: length of a task's embedding; 0: no controller. The first parameters are drawn as in
    the released code: Glorot's uniform weights, biases 0, and embeddings standard normal.
    """

    pixels: int
    hidden: int
    layers: int
    classes: int
    tasks: int
    embedding: int

    @property
    def widths(self) -> list[int]:
        """The number of units before, between and after the layers."""
        return [self.pixels, *[self.hidden] * self.layers, self.classes]

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of y's parts: weights and biases of each layer."""
        pairs = zip(self.widths, self.widths[1:])
        return [shape for a, b in pairs for shape in ((b, a), (b,))]

    @property
    def controller(self) -> list[tuple[int, ...]]:
        """The shapes of x's parts: the embeddings, and W and b of each layer."""
        if not self.embedding:
            return []
        film = [(2 * self.hidden, self.embedding), (2 * self.hidden,)]
        return [(self.tasks, self.embedding), *film * self.layers]

    def init(self, rng: Generator) -> tuple[Tensor, Tensor]:
        embeddings = normal(rng, self.controller[:1])
        film = [glorot(rng, shape) for shape in self.controller[1:]]
        return pack([*embeddings, *film]), pack([glorot(rng, s) for s in self.shapes])

    def moments(self, y: Tensor, images: Tensor) -> Moments | None:
        return None

    def logits(
        self, x: Tensor, y: Tensor, images: Tensor, tasks: Tensor, known: Moments | None = None
    ) -> Tensor:
        parts, film = unpack(y, self.shapes), unpack(x, self.controller)
        embeddings = next(film) if self.embedding else None
        h = images
        for _ in range(self.layers):
            h = F.linear(h, next(parts), next(parts))
            if embeddings is None:
                h = F.relu(h)
                continue
            gamma, beta = F.linear(embeddings, next(film), next(film)).chunk(2, 1)
            gamma, beta = (F.normalize(each, dim=1)[tasks] for each in (gamma, beta))
            h = F.relu(h) + F.relu(gamma * h + beta)
        return F.linear(h, next(parts), next(parts))


@dataclass(frozen=True)
class Resnet:
    """ResNet-18 with few filters (Lopez-Paz and Ranzato, 2017): a 3 x 3 convolution of `filters`
    filters and pooling, then two blocks each of 1, 2, 4 and 8 times as many filters. Each task has
    answers of its own.

    A controller works as in the released code: FiLM is on the last block's features, gamma and beta
    are divided by lengths that derivatives take as constants, and no block ends in a ReLU. The
    first parameters are drawn as torch draws them.
    """

    channels: int
    filters: int
    classes: int
    tasks: int
    embedding: int

    @property
    def blocks(self) -> list[tuple[int, int, int]]:
        """(filters in, filters out, stride) of each block."""
        f = self.filters
        widths = [(f, f, 1), (f, 2 * f, 2), (2 * f, 4 * f, 2), (4 * f, 8 * f, 2)]
        return [block for a, b, stride in widths for block in ((a, b, stride), (b, b, 1))]

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of y's parts, in the order in which the network uses them."""

        def layer(before: int, after: int, side: int) -> list[tuple[int, ...]]:
            """The kernel, and the scale and shift of the normalisation after it."""
            return [(after, before, side, side), (after,), (after,)]

        shapes = layer(self.channels, self.filters, 3)
        for before, after, stride in self.blocks:
            shapes += layer(before, after, 3) + layer(after, after, 3)
            if stride != 1:
                shapes += layer(before, after, 1)
        outputs = self.tasks * self.classes
        return [*shapes, (outputs, 8 * self.filters), (outputs,)]

    @property
    def controller(self) -> list[tuple[int, ...]]:
        """The shapes of x's parts: the embeddings, W and b."""
        if not self.embedding:
            return []
        both = 16 * self.filters  # gamma and beta
        return [(self.tasks, self.embedding), (both, self.embedding), (both,)]

    def init(self, rng: Generator) -> tuple[Tensor, Tensor]:
        embeddings = normal(rng, self.controller[:1])
        film = [torch_uniform(rng, shape, self.embedding) for shape in self.controller[1:]]
        parts = []
        for i, shape in enumerate(self.shapes[:-2]):  # kernel, scale, shift, and so on
            if i % 3 == 0:
                parts.append(torch_uniform(rng, shape, math.prod(shape[1:])))
            else:
                parts.append(torch.full(shape, 2.0 - i % 3, dtype=torch.float64))
        parts += [torch_uniform(rng, shape, 8 * self.filters) for shape in self.shapes[-2:]]
        return pack([*embeddings, *film]), pack(parts)

    def moments(self, y: Tensor, images: Tensor) -> Moments | None:
        found: Moments = []
        self._features(unpack(y, self.shapes), images, None, found)
        return found

    def logits(
        self, x: Tensor, y: Tensor, images: Tensor, tasks: Tensor, known: Moments | None = None
    ) -> Tensor:
        parts, film = unpack(y, self.shapes), unpack(x, self.controller)
        h = self._features(parts, images, iter(known) if known is not None else None)
        if self.embedding:
            both = F.linear(next(film), next(film), next(film)).view(self.tasks, 2, -1)
            both = (both / both.detach().norm(dim=2, keepdim=True))[tasks]
            gamma, beta = both[..., None, None].unbind(1)
            h = F.relu(h) + F.relu(torch.addcmul(beta, gamma, h))
        every = F.linear(h.mean((2, 3)), next(parts), next(parts))
        own = every.view(len(images), self.tasks, self.classes)
        return own[torch.arange(len(images), device=images.device), tasks]

    def own_logits(self, xs: Tensor, ys: Tensor, images: Tensor, tasks: Tensor) -> Tensor:
        """The logits [m, n, classes] of m networks of parameters xs and ys, [m, ...], each of
        images of its own, which are its channels of images [n, m channels, h, w], and of tasks
        [m, n] int64. They go through each layer together, as groups of channels, and are normalised
        by these images."""
        m, n = tasks.shape
        parts = iter(
            part.view(m * shape[0], *shape[1:])
            for part, shape in zip(split_each(ys, sizes(self.shapes)), self.shapes)
        )
        h = self._features(parts, images, None, groups=m)
        if self.embedding:
            embeddings, W, b = (
                part.view(m, *shape)
                for part, shape in zip(split_each(xs, sizes(self.controller)), self.controller)
            )
            both = torch.baddbmm(b[:, None], embeddings, W.mT).view(m * self.tasks, 2, -1)
            both = both / both.detach().norm(dim=2, keepdim=True)
            rows = tasks + self.tasks * torch.arange(m, device=tasks.device)[:, None]
            film = both[rows.mT.flatten()].view(n, m, 2, -1)
            gamma, beta = film.transpose(1, 2).reshape(n, 2, -1, 1, 1).unbind(1)
            h = F.relu(h) + F.relu(torch.addcmul(beta, gamma, h))
        features = h.mean((2, 3)).view(n, m, -1).transpose(0, 1)
        outputs, b = next(parts), next(parts)
        every = torch.baddbmm(b.view(m, 1, -1), features, outputs.view(m, len(b) // m, -1).mT)
        every = every.view(m * n, self.tasks, self.classes)
        own = every[torch.arange(m * n, device=tasks.device), tasks.flatten()]
        return own.view(m, n, self.classes)

    def _features(
        self,
        parts: Iterator[Tensor],
        images: Tensor,
        known: Iterator[tuple[Tensor, Tensor]] | None,
        found: Moments | None = None,
        groups: int = 1,
    ) -> Tensor:
        """The last block's features [n, 8 filters, h, w], of each of so many groups of channels.
        The moments of the normalisations on the way are appended to `found`."""

        def convolve(h: Tensor, stride: int) -> Tensor:
            kernel, scale, shift = next(parts), next(parts), next(parts)
            h = convolution(h, kernel, stride=stride, groups=groups)
            if known is not None:
                mean, variance = next(known)
                return F.batch_norm(h, mean, variance, scale, shift, eps=EPS)
            if found is not None:
                variance, mean = torch.var_mean(h, (0, 2, 3), correction=0)
                found.append((mean, variance))
            return batch_norm(h, scale, shift)

        # with channels last a gradient with 20 filters and 50 images takes .8 of the time on a CPU
        images = images.contiguous(memory_format=torch.channels_last)
        h = F.max_pool2d(F.relu(convolve(images, 1)), 3, 2, 1)
        for _, _, stride in self.blocks:
            z = convolve(F.relu(convolve(h, stride)), 1)
            h = z + (convolve(h, stride) if stride != 1 else h)
            if not self.embedding:
                h = F.relu(h)
        return h


def normal(rng: Generator, shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    """Standard normal tensors of these shapes."""
    return [torch.randn(shape, generator=rng, dtype=torch.float64) for shape in shapes]


def uniform(rng: Generator, shape: tuple[int, ...], bound: float) -> Tensor:
    """A tensor that is uniform on [-bound, bound)."""
    return bound * (2 * torch.rand(shape, generator=rng, dtype=torch.float64) - 1)


def glorot(rng: Generator, shape: tuple[int, ...]) -> Tensor:
    """Glorot's uniform weights, or biases of 0."""
    if len(shape) == 1:
        return torch.zeros(shape, dtype=torch.float64)
    return uniform(rng, shape, math.sqrt(6 / sum(shape)))


def torch_uniform(rng: Generator, shape: tuple[int, ...], inputs: int) -> Tensor:
    """Weights or biases as torch draws those of convolutions and linear layers. inputs: how many
    numbers an output is a sum over."""
    return uniform(rng, shape, 1 / math.sqrt(inputs))


def pack(parts: Sequence[Tensor]) -> Tensor:
    """All parts one after the other as one vector, in double precision."""
    return torch.cat([torch.zeros(0).double(), *(part.flatten() for part in parts)])


def sizes(shapes: Sequence[tuple[int, ...]]) -> list[int]:
    """How many numbers tensors of these shapes have."""
    return [math.prod(shape) for shape in shapes]


def unpack(vector: Tensor, shapes: Sequence[tuple[int, ...]]) -> Iterator[Tensor]:
    """The parts of a vector that `pack` made of tensors of these shapes."""
    pieces = vector.split(sizes(shapes))
    return iter([piece.view(shape) for piece, shape in zip(pieces, shapes)])
