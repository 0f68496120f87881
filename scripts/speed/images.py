"""The images of the comparisons on hyper-cleaning, and the suite's own task on them."""

import os
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path
from typing import Literal
from unittest import mock

import torch
from torch import Tensor

from bench.core.task import Context, Task
from scripts.speed.harness import Contender, Result, device_for_timing, in_process, positive
from scripts.speed.softmax import CLASSES, PIXELS, C, Examples, SoftmaxProblem, count_passes
from tasks.data.images import Images, ImageSplit, LabelledImages, load
from tasks.hyper_cleaning import Pretraining, hyper_cleaning

Name = Literal["made-up", "mnist", "fashion_mnist"]


def add_image_options(parser: ArgumentParser) -> None:
    """--rows, --images, --data and --device."""
    parser.add_argument("--rows", type=positive, default=50_000, help="training rows (%(default)s)")
    parser.add_argument(
        "--images",
        choices=("made-up", "mnist", "fashion_mnist"),
        default="made-up",
        help="the data set (%(default)s)",
    )
    add_data_option(parser)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")


def add_data_option(parser: ArgumentParser) -> None:
    """--data."""
    default = os.environ.get("BENCH_DATA", "~/.cache/bilevel-bench")
    parser.add_argument("--data", default=default, help="data root (%(default)s)")


def image_problem(name: Name, rows: int, root: Path, device_name: str) -> SoftmaxProblem:
    """So many training images and a tenth as many for f, half of the training labels redrawn.

    Made-up images have sparse pixels in [0, 1], anywhere, and labels of a random linear model; the
    others are those of the data set below `root`. Raises BadSetting where the data set or the
    device is not there.
    """
    device = device_for_timing(device_name)
    rng = torch.Generator().manual_seed(0)
    sizes = rows, max(rows // 10, CLASSES)
    if name == "made-up":
        train, val = made_up_images(sizes, rng)
    else:
        split = load(Images(name, *sizes, 1, 1), Context(data_root=root), "hyper_cleaning", 0)
        train, val = (Examples(part.features, part.labels) for part in split[:2])
    noisy = torch.rand(rows, generator=rng) < 0.5
    redrawn = torch.randint(CLASSES, (rows,), generator=rng)
    labels = torch.where(noisy, redrawn, train.labels)
    return SoftmaxProblem(
        Examples(train.features.to(device), labels.to(device)),
        Examples(val.features.to(device), val.labels.to(device)),
        torch.randn(rows, generator=rng).to(device),
        (torch.randn(CLASSES, PIXELS, generator=rng) / PIXELS**0.5).to(device),
    )


def made_up_images(sizes: tuple[int, int], rng: torch.Generator) -> tuple[Examples, Examples]:
    """Two parts of these sizes, labelled by one linear model."""
    teacher = torch.randn(CLASSES, PIXELS, generator=rng)

    def part(n: int) -> Examples:
        pixels = torch.rand(n, PIXELS, generator=rng)
        pixels = (pixels - 0.8).clamp(min=0) * 5  # a fifth is not black, as in MNIST
        return Examples(pixels, ((pixels - pixels.mean()) @ teacher.T).argmax(1))

    return part(sizes[0]), part(sizes[1])


def our_task(p: SoftmaxProblem) -> Task:
    """tasks/hyper_cleaning.py on these examples in place of a data set's."""
    train, val = (LabelledImages(e.features.cpu(), e.labels.cpu()) for e in (p.train, p.val))
    images = Images("mnist", len(train.labels), len(val.labels), len(val.labels), len(val.labels))
    with mock.patch("tasks.hyper_cleaning.load", return_value=ImageSplit(train, val, val, val, {})):
        context = Context(device=p.x.device)
        return hyper_cleaning(context, images, Pretraining(), "stocbio", corruption=0.0, c=C)


def contender_on(p: SoftmaxProblem, name: str, step: Callable[[], Tensor], note: str) -> Contender:
    """A contender in this process, whose line tells its passes over the training features."""

    def compute() -> Result:
        value, passes = count_passes(p, step)
        return Result(value, {"passes": passes})

    return in_process(name, step, compute=compute, note=note, device=p.x.device)
