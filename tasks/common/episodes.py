"""Few-shot episodes: classifications of a few classes, drawn by name."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from bench.core.draw import generator

Rows = tuple[int, int]  # from and to which of an episode's images


class Episodes(NamedTuple):
    """images [m, n, channels, side, side]: of each episode first the support, then the query ones,
    class by class. numbers: the episodes' names. rows: which images the loss is of. features:
    [m, n, d], the embedded images where they are known."""

    images: Tensor
    numbers: Sequence[int]
    rows: Rows
    features: Tensor | None = None

    def part(self, a: int, b: int) -> "Episodes":
        """Episodes a to b."""
        features = None if self.features is None else self.features[a:b]
        return Episodes(self.images[a:b], self.numbers[a:b], self.rows, features)


@dataclass(frozen=True)
class Deck:
    """What episodes are drawn from: of `ways` classes, `shots` support and `queries` query images
    each. Episode i of a part depends on the seed, the part and i, and on nothing else.

    turned: each class of an episode is turned by 0, 90, 180 or 270 degrees.
    """

    parts: dict[str, Tensor]  # [classes, images of each, channels, side, side] uint8
    ways: int
    shots: int
    queries: int
    seed: int
    dtype: torch.dtype
    turned: bool = False

    @property
    def support(self) -> Rows:
        return 0, self.ways * self.shots

    @property
    def query(self) -> Rows:
        return self.support[1], self.ways * (self.shots + self.queries)

    def labels(self, rows: Rows) -> Tensor:
        """Of these images, the same in every episode."""
        kinds = torch.arange(self.ways, device=self.parts["train"].device)
        both = [kinds.repeat_interleave(n) for n in (self.shots, self.queries)]
        return torch.cat(both)[slice(*rows)]

    def draw(self, part: str, numbers: Sequence[int]) -> Episodes:
        """These episodes, seen from the support side; pixels in [0, 1]."""
        pixels = torch.cat([self._one(part, number) for number in numbers]).to(self.dtype) / 255
        pixels = pixels.contiguous(memory_format=torch.channels_last)
        shape = (len(numbers), self.query[1], *pixels.shape[1:])
        return Episodes(pixels.view(shape), numbers, self.support)

    def _one(self, part: str, number: int) -> Tensor:
        images, rng = self.parts[part], generator("episode", part, self.seed, number)
        kinds = torch.randperm(len(images), generator=rng)[: self.ways]
        which = [torch.randperm(images.shape[1], generator=rng) for _ in range(self.ways)]
        rows = torch.stack(which)[:, : self.shots + self.queries]
        z = images[kinds[:, None].to(images.device), rows.to(images.device)]
        if self.turned:
            turns = torch.randint(4, (self.ways,), generator=rng).tolist()
            z = torch.stack([torch.rot90(k, t, (-2, -1)) for k, t in zip(z, turns)])
        return torch.cat([z[:, : self.shots].flatten(0, 1), z[:, self.shots :].flatten(0, 1)])
