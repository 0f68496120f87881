"""Image sets whose classes are divided for meta-learning. They are read from `data.root`, except
patterns, which is made here.

Which image is the i-th of its class depends on the images alone, not on the order of a file.
"""

import hashlib
import json
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bench.core.draw import generator
from bench.core.settings import BadSetting
from bench.core.task import Context
from tasks.data.catalogue import CATALOGUE
from tasks.data.checksums import DERIVED
from tasks.data.fetching import one_at_a_time
from tasks.data.kept import made_or_kept
from tasks.data.pickles import load_plain
from tasks.data.splits import CIFAR_FS, FC100

Name = Literal["patterns", "omniglot", "fc100", "cifar_fs", "mini_imagenet"]
PARTS = ("train", "val", "test")
MINI = {"train": "train", "val": "validation", "test": "test"}  # as learn2learn's files are named


class Classes(NamedTuple):
    """Images by class: the parts "train", "val" and "test", each
    [classes, images of each, channels, side, side] uint8. sources: data -> SHA-256."""

    parts: dict[str, Tensor]
    sources: dict[str, str]


def load(name: Name, context: Context) -> Classes:
    """The three parts, on the CPU; raises BadSetting."""
    if name == "patterns":
        return patterns()
    if name == "omniglot":
        return omniglot(context)
    if name == "mini_imagenet":
        return mini_imagenet(context.data_root)
    return cifar(name, context)


def patterns(side: int = 16, images: int = 20) -> Classes:
    """Images that are made up, for first steps and tests. A class is a smooth random pattern, and
    an image shows it shifted by up to 3 pixels each way, with noise."""
    rng, parts = generator("patterns"), {}
    for part, classes in zip(PARTS, (40, 15, 15)):
        coarse = torch.randn(classes, 1, 5, 5, generator=rng)
        smooth = F.interpolate(coarse, (side, side), mode="bilinear", align_corners=True)
        shifts = torch.randint(-3, 4, (classes, images, 2), generator=rng).tolist()
        shifted = [
            torch.stack([z.roll(s, (-2, -1)) for s in own]) for z, own in zip(smooth, shifts)
        ]
        noisy = torch.stack(shifted)
        noisy = noisy + 0.7 * torch.randn(noisy.shape, generator=rng)
        parts[part] = (64 * noisy + 128).clamp(0, 255).byte()
    return Classes(parts, {"patterns": digest(parts)})


def cifar(name: Literal["fc100", "cifar_fs"], context: Context) -> Classes:
    """All 600 images of each class of CIFAR-100, which are its training and test images together.
    Raises BadSetting."""
    folder = present("CIFAR100", f"task.data={name}", context)
    both = [load_plain(folder / part) for part in ("train", "test")]
    names = load_plain(folder / "meta")
    every = by_class(both)
    if name == "fc100":
        pairs = [zip(part["fine_labels"], part["coarse_labels"]) for part in both]
        coarse = {fine: group for part in pairs for fine, group in part}
        groups = [names["coarse_label_names"][coarse[k]] for k in range(100)]
        lists = FC100
    else:
        groups, lists = names["fine_label_names"], CIFAR_FS
    held = {group for part in lists.values() for group in part}
    rows = {
        "train": [k for k, group in enumerate(groups) if group not in held],
        **{part: [k for k, g in enumerate(groups) if g in lists[part]] for part in lists},
    }
    parts = {part: every[rows[part]] for part in PARTS}
    return Classes(parts, {f"CIFAR-100 as {name}": digest(parts)})


def halves(
    name: Literal["patterns", "cifar100"], context: Context
) -> tuple[Tensor, Tensor, dict[str, str]]:
    """(training images, test images, sources); images are [classes, images of each, channels, side,
    side] uint8. CIFAR-100 has a division of its own; patterns has 12 training and 8 test images of
    each class. Raises BadSetting."""
    if name == "patterns":
        made = patterns()
        every = torch.cat([made.parts[part] for part in PARTS])
        return every[:, :12], every[:, 12:], made.sources
    folder = present("CIFAR100", "task.data=cifar100", context)
    train, test = (by_class([load_plain(folder / part)]) for part in ("train", "test"))
    return train, test, {"CIFAR-100": digest({"train": train, "val": test[:0], "test": test})}


def by_class(parts: list[Any]) -> Tensor:
    """The images in these pickles of CIFAR-100, [100, images of each, 3, 32, 32]; those of a class
    are sorted by content."""
    images = np.concatenate([part["data"] for part in parts])
    fine = np.concatenate([part["fine_labels"] for part in parts])
    keys = [hashlib.blake2b(image.data, digest_size=16).digest() for image in images]
    order = np.lexsort((np.array(keys, dtype="S16"), fine))  # the last key is the first to sort by
    return torch.from_numpy(images[order]).view(100, -1, 3, 32, 32)


def omniglot(context: Context) -> Classes:
    """Characters as classes in the division of Vinyals et al. (NeurIPS 2016). Images are 28x28, and
    ink is 255.

    Reading 32,460 small files takes a while, so the result is kept under data.root/derived. Raises
    BadSetting.
    """
    sources = {key: DERIVED[key] for key in ("omniglot background", "omniglot evaluation")}
    short = "-".join(value[:8] for value in sources.values())
    parts = made_or_kept(f"omniglot-28-{short}", context, partial(omniglot_parts, context))
    return Classes(parts, sources)


def omniglot_parts(context: Context) -> dict[str, Tensor]:
    """The images of each part, [classes, images, 1, 28, 28], uint8; raises BadSetting."""
    folder = present("Omniglot", "task.data=omniglot", context)
    parts = {}
    division = json.loads((folder / "splits_vinyals.json").read_text())
    for part in PARTS:
        characters = [
            folder / f"images_{half}" / alphabet / character
            for half in ("background", "evaluation")
            for alphabet in sorted(division[part][half])
            for character in sorted(division[part][half][alphabet])
        ]
        drawings = [[drawing(file) for file in sorted(c.glob("*.png"))] for c in characters]
        parts[part] = torch.from_numpy(np.array(drawings))[:, :, None]
    return parts


def drawing(file: Path) -> Any:
    """A drawing as [28, 28] uint8, resized as learn2learn does it."""
    from PIL import Image

    with Image.open(file) as image:
        small = image.convert("L").resize((28, 28), Image.Resampling.LANCZOS)
    return 255 - np.asarray(small)


def mini_imagenet(root: Path) -> Classes:
    """miniImageNet from the files of learn2learn's loader,
    mini-imagenet-cache-{train,validation,test}.pkl. Each is a pickle of an array of 84x84 images
    and of the row numbers of each class. Raises BadSetting."""
    parts, sources = {}, {}
    for part, word in MINI.items():
        file = root / f"mini-imagenet-cache-{word}.pkl"
        try:
            content = load_plain(file)
            images, classes = torch.from_numpy(content["image_data"]).byte(), content["class_dict"]
            rows = torch.tensor([list(classes[name]) for name in sorted(classes)])
            parts[part] = images[rows].permute(0, 1, 4, 2, 3).contiguous()
        except OSError as error:
            raise BadSetting(
                f"task.data=mini_imagenet: {file}: {error.strerror}; put learn2learn's files into "
                "data.root, or write another task.data"
            ) from None
        except Exception as error:  # a damaged pickle may raise anything
            raise BadSetting(f"task.data=mini_imagenet: {file}: not as expected: {error}") from None
        sources[file.name] = hashlib.sha256(file.read_bytes()).hexdigest()
    return Classes(parts, sources)


def present(kept: str, setting: str, context: Context) -> Path:
    """The folder of a data set below data.root, after a check that it is whole. It is fetched where
    it is absent and `context` allows that. Raises BadSetting."""
    folder, entry = context.data_root / CATALOGUE[kept].target, CATALOGUE[kept]
    with one_at_a_time(context.data_root, context.download):
        if not folder.is_dir() and context.download and entry.fetch is not None:
            try:
                entry.fetch(context.data_root)
            except (RuntimeError, OSError) as error:
                raise BadSetting(f"data.download=true: {kept} did not come: {error}") from None
    ways = ["data.download=true", "data.root=..."][0 if entry.fetch else 1 :]
    advice = (
        f"write {' or '.join(ways)} (scripts/import_data.py fills one from a local folder), or "
        "task.data=patterns"
    )
    if not folder.is_dir():
        raise BadSetting(f"{setting}: {folder} is not there; {advice}")
    try:
        entry.check(folder)
    except (BadSetting, OSError, ValueError) as error:
        raise BadSetting(f"{setting}: {error}; delete {folder}, and {advice}") from None
    return folder


def digest(parts: dict[str, Tensor]) -> str:
    """SHA-256 of the images of all parts."""
    found = hashlib.sha256()
    for part in PARTS:
        found.update(parts[part].numpy().data)
    return found.hexdigest()
