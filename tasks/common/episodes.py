"""Few-shot episodes: small classification problems of a few classes, each drawn by its name."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from bench.core.draw import bring, generator

RowRange = tuple[int, int]  # the first of an episode's images, and the one after the last


class Episodes(NamedTuple):
    """m episodes of n images each, as a batch.

    images [m, n, channels, side, side]: those of an episode are first the support images, then the
    query images, each class by class. numbers: the episodes' names. rows: which images the loss is
    of. features [m, n, d]: the embedded images, where they are known.
    """

    images: Tensor
    numbers: Sequence[int]
    rows: RowRange
    features: Tensor | None = None

    def part(self, a: int, b: int) -> "Episodes":
        """The episodes a to b of these."""
        features = None if self.features is None else self.features[a:b]
        return Episodes(self.images[a:b], self.numbers[a:b], self.rows, features)


@dataclass(frozen=True)
class Deck:
    """What episodes are drawn from. Each episode has `ways` classes with `shots` support images and
    `queries` query images each.

    Episode number i of a part depends on the seed, the part and i, and on nothing else.

    parts: uint8 images by part, [classes, images of each, channels, side, side]. turned: each class
    of an episode is turned by 0, 90, 180 or 270 degrees.
    """

    parts: dict[str, Tensor]
    ways: int
    shots: int
    queries: int
    seed: int
    dtype: torch.dtype
    turned: bool = False

    @property
    def support(self) -> RowRange:
        """The support images of an episode."""
        return 0, self.ways * self.shots

    @property
    def query(self) -> RowRange:
        """The query images of an episode."""
        return self.support[1], self.ways * (self.shots + self.queries)

    def labels(self, rows: RowRange) -> Tensor:
        """The labels of these images, which are the same in every episode; int64."""
        kinds = torch.arange(self.ways, device=self.parts["train"].device)
        both = [kinds.repeat_interleave(n) for n in (self.shots, self.queries)]
        return torch.cat(both)[slice(*rows)]

    def draw(self, part: str, numbers: Sequence[int]) -> Episodes:
        """The episodes of these numbers, with `rows` at the support images and pixels in [0, 1]."""
        images = self.parts[part]
        names = torch.stack([self._names(part, number) for number in numbers])
        kinds, turns, rows = bring(names, images.device).split([1, 1, names.shape[2] - 2], 2)
        z = images[kinds, rows]  # [m, ways, images of a class, channels, side, side]
        if self.turned:
            turns, straight = turns[..., None, None, None], z
            for t in (1, 2, 3):
                z = torch.where(turns == t, torch.rot90(straight, t, (-2, -1)), z)
        z = torch.cat([z[:, :, : self.shots].flatten(1, 2), z[:, :, self.shots :].flatten(1, 2)], 1)
        pixels = z.flatten(0, 1).to(self.dtype) / 255
        pixels = pixels.contiguous(memory_format=torch.channels_last)
        shape = (len(numbers), self.query[1], *pixels.shape[1:])
        return Episodes(pixels.view(shape), numbers, self.support)

    def _names(self, part: str, number: int) -> Tensor:
        """Which images an episode has, [ways, 2 + images of a class]: for each of its classes the
        number of the class, the quarter turns, and the numbers of its images."""
        images, rng = self.parts[part], generator("episode", part, self.seed, number)
        kinds = torch.randperm(len(images), generator=rng)[: self.ways]
        which = [torch.randperm(images.shape[1], generator=rng) for _ in range(self.ways)]
        rows = torch.stack(which)[:, : self.shots + self.queries]
        turns = torch.zeros_like(kinds)
        if self.turned:
            turns = torch.randint(4, (self.ways,), generator=rng)
        return torch.cat([kinds[:, None], turns[:, None], rows], 1)
