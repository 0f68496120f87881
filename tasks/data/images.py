"""Digits (bundled with scikit-learn), MNIST and Fashion-MNIST, split as hyper-cleaning needs.

MNIST and Fashion-MNIST are read from torchvision's layout under `data.root`; every file is
checked against the SHA-256 of the published one before it is read.
"""

import hashlib
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from bench.core.draw import generator
from bench.core.settings import BadSetting, Count
from bench.core.task import Context
from tasks.data.checksums import CHECKSUMS, verified


@dataclass(frozen=True)
class Images:
    """A data set and how many of its images go where.

    val is the clean set of the upper loss, val2 the one for choosing hyperparameters and stopping.
    digits has 1,797 images in all; the other two give train, val, val2 from their 60,000 training
    images and test from their 10,000.
    """

    name: Literal["digits", "mnist", "fashion_mnist"]
    train: Count
    val: Count
    val2: Count
    test: Count


class Part(NamedTuple):
    """features [n, d] in [0, 1], labels [n] int64."""

    features: Tensor
    labels: Tensor


class Split(NamedTuple):
    train: Part
    val: Part
    val2: Part
    test: Part
    sources: dict[str, str]  # file -> SHA-256


def load(images: Images, context: Context, *name: int | str) -> Split:
    """The split named by `name`, in float32 on the CPU; raises BadSetting.

    Parts are drawn without replacement, so they never share an image.
    """
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
    parts = [Part(pool.features[i], pool.labels[i]) for i in order[: sum(sizes)].split(sizes)]
    if test is not None:
        parts.append(Part(test.features[: images.test], test.labels[: images.test]))
    train, val, val2, test_part = parts
    return Split(train, val, val2, test_part, sources)


def _digits() -> tuple[Part, None, dict[str, str]]:
    from sklearn.datasets import load_digits

    digits = load_digits()
    features = torch.from_numpy(digits.data).float() / 16
    labels = torch.from_numpy(digits.target).long()
    checksum = hashlib.sha256(digits.data.tobytes() + digits.target.tobytes()).hexdigest()
    return Part(features, labels), None, {"sklearn.datasets.load_digits": checksum}


def _torchvision(images: Images, context: Context) -> tuple[Part, Part, dict[str, str]]:
    from torchvision.datasets import MNIST, FashionMNIST

    kind = {"mnist": MNIST, "fashion_mnist": FashionMNIST}[images.name]
    files = [name for name in CHECKSUMS if name.startswith(f"{kind.__name__}/")]
    absent = [name for name in files if not (context.data_root / name).is_file()]
    if absent and context.download:
        try:
            kind(str(context.data_root), download=True)
        except (RuntimeError, OSError) as error:
            raise BadSetting(f"data.download=true: {kind.__name__} did not come: {error}") from None
    elif absent:
        raise BadSetting(
            f"data.root={context.data_root}: {absent[0]} is not there; write data.download=true,"
            " or data.root=... (scripts/import_data.py fills one from a local folder)"
        )
    sources = {name: verified(context.data_root, name) for name in files}
    both = [kind(str(context.data_root), train=train) for train in (True, False)]
    pool, test = (Part(d.data.flatten(1).float() / 255, d.targets.long()) for d in both)
    return pool, test, sources
