"""Digits (bundled with scikit-learn), MNIST and Fashion-MNIST, split as hyper-cleaning needs.

MNIST and Fashion-MNIST are read from torchvision's layout under `data.root`. Every file is held
against the SHA-256 of the published one before it is read.
"""

import hashlib
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from bench.core.draw import generator
from bench.core.settings import BadSetting, Count
from bench.core.task import Context
from tasks.data.checksums import CHECKSUMS, verify
from tasks.data.fetching import one_at_a_time


@dataclass(frozen=True)
class Images:
    """A data set and how many of its images go where.

    val is the clean set of the upper loss, val2 the set for choosing hyperparameters and for
    stopping. digits has 1,797 images in all. The other two have 60,000 training images, from which
    train, val and val2 are drawn, and 10,000 test images.
    """

    name: Literal["digits", "mnist", "fashion_mnist"]
    train: Count
    val: Count
    val2: Count
    test: Count


class LabelledImages(NamedTuple):
    """Images as features [n, d] in [0, 1], and their labels [n] int64."""

    features: Tensor
    labels: Tensor


class ImageSplit(NamedTuple):
    """A data set in parts that share no image. sources: file -> SHA-256."""

    train: LabelledImages
    val: LabelledImages
    val2: LabelledImages
    test: LabelledImages
    sources: dict[str, str]


def load(images: Images, context: Context, *name: int | str) -> ImageSplit:
    """The split that is drawn under `name`, in float32 on the CPU; raises BadSetting."""
    pool, test, sources = _digits() if images.name == "digits" else _torchvision(images, context)
    order = torch.randperm(len(pool.labels), generator=generator("split", *name))
    sizes = [images.train, images.val, images.val2]
    if test is None:
        sizes.append(images.test)
    if sum(sizes) > len(pool.labels) or (test and images.test > len(test.labels)):
        there = f"{len(pool.labels):,}" + (f" and {len(test.labels):,} for test" if test else "")
        raise BadSetting(
            f"task.data: {images} asks for more images than {images.name} has: {there}"
        )
    parts = [
        LabelledImages(pool.features[i], pool.labels[i]) for i in order[: sum(sizes)].split(sizes)
    ]
    if test is not None:
        parts.append(LabelledImages(test.features[: images.test], test.labels[: images.test]))
    train, val, val2, test_part = parts
    return ImageSplit(train, val, val2, test_part, sources)


def _digits() -> tuple[LabelledImages, None, dict[str, str]]:
    from sklearn.datasets import load_digits

    digits = load_digits()
    features = torch.from_numpy(digits.data).float() / 16
    labels = torch.from_numpy(digits.target).long()
    checksum = hashlib.sha256(digits.data.tobytes() + digits.target.tobytes()).hexdigest()
    return LabelledImages(features, labels), None, {"sklearn.datasets.load_digits": checksum}


def _torchvision(
    images: Images, context: Context
) -> tuple[LabelledImages, LabelledImages, dict[str, str]]:
    from torchvision.datasets import MNIST, FashionMNIST

    kind = {"mnist": MNIST, "fashion_mnist": FashionMNIST}[images.name]
    files = [name for name in CHECKSUMS if name.startswith(f"{kind.__name__}/")]
    with one_at_a_time(context.data_root, context.download):
        absent = [name for name in files if not (context.data_root / name).is_file()]
        if absent and context.download:
            try:
                kind(str(context.data_root), download=True)
            except (RuntimeError, OSError) as error:
                raise BadSetting(
                    f"data.download=true: {kind.__name__} did not come: {error}"
                ) from None
    if absent and not context.download:
        raise BadSetting(
            f"data.root={context.data_root}: {absent[0]} is not there; write data.download=true,"
            " or data.root=... (scripts/import_data.py fills one from a local folder)"
        )
    sources = {name: verify(context.data_root, name) for name in files}
    both = [kind(str(context.data_root), train=train) for train in (True, False)]
    pool, test = (LabelledImages(d.data.flatten(1).float() / 255, d.targets.long()) for d in both)
    return pool, test, sources
