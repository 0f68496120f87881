"""How far each hot kernel is from what this machine allows.

    uv run python scripts/roofline.py [--device cuda] [--json FILE]

First this measures the machine: its bandwidth, by the bytes a second of a large copy (read and
written), and its rates, by the operations a second of a large matrix product in float32 and in
float64. Then each kernel has a line: the bytes that it must move (every input read once, every
result written once), the operations that it must do, its median time, and floor / time, where the
floor is the larger of bytes / bandwidth and operations / rate. Data are made up in the real
problems' shapes; --scale .01 makes them smaller, for a trial. A linear minimisation reads its
matrix twice in each iteration, and nobody knows before how many iterations it takes: its floor is
that of a single one.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from unittest import mock

os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # as bench.main sets it where nobody else wants the cores
os.environ["GOMP_SPINCOUNT"] = "20000"

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from bench.core.draw import Draw, generator
from bench.core.oracle import Oracle
from bench.core.settings import BadSetting
from bench.core.task import Context
from bench.numerics.singular import top_singular
from bench.runs.environment import environment_of
from bench.runs.files import write_whole
from bench.runs.machine import choose_device, settle
from tasks.common.sparse import Csr, sparse
from tasks.data.images import Images, ImageSplit, LabelledImages
from tasks.hyper_cleaning import Pretraining, hyper_cleaning
from tasks.models.conv4 import Conv4
from tasks.newsgroups import DocumentBatch, Documents, lower_derivatives
from tasks.online_newsgroups import lower_descend, take_documents

LANES = 6
PER_DOCUMENT = 158  # different words in a message of 20 Newsgroups, in the mean


class Kernel(NamedTuple):
    """A computation to time, with the bytes that it must move and the operations it must do."""

    name: str
    dtype: torch.dtype
    bytes: float
    operations: float
    work: Callable[[], Any]


class Machine(NamedTuple):
    """What the machine allows."""

    bandwidth: float  # bytes a second, read and written
    rates: dict[torch.dtype, float]  # operations a second


def seconds(work: Callable[[], Any], device: torch.device, repeats: int) -> list[float]:
    """The seconds of each repeat of the work, after one that warms up."""
    taken = []
    for _ in range(1 + repeats):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        begin = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        taken.append(time.perf_counter() - begin)
    return taken[1:]


def measure_machine(device: torch.device, scale: float, repeats: int) -> Machine:
    """The best of so many repeats, as it is to be a ceiling."""
    cuda = device.type == "cuda"
    a = torch.ones(max(1, int(scale * (1 << (30 if cuda else 26)))), device=device)
    b = torch.empty_like(a)
    copy = min(seconds(lambda: b.copy_(a), device, repeats))
    rates = {}
    for dtype in (torch.float32, torch.float64):
        n = max(64, int(scale**0.5 * (8192 if cuda else 2048)))
        m = torch.randn(n, n, generator=generator("roofline"), dtype=dtype).to(device)
        rates[dtype] = 2 * n**3 / min(seconds(partial(torch.matmul, m, m), device, repeats))
    return Machine(2 * a.numel() * a.element_size() / copy, rates)


def softmax_kernels(device: torch.device, scale: float) -> list[Kernel]:
    """Gradients and a Hessian product of hyper-cleaning's own task, 50,000 x 784 x 10."""
    n, d, c = max(100, int(50_000 * scale)), 784, 10
    rng = generator("roofline", "softmax")
    part = LabelledImages(torch.rand(n, d, generator=rng), torch.randint(c, (n,), generator=rng))
    few = LabelledImages(part.features[:20], part.labels[:20])
    with mock.patch("tasks.hyper_cleaning.load", return_value=ImageSplit(part, few, few, few, {})):
        images = Images("mnist", n, 20, 20, 20)
        context = Context(device=device)
        task = hyper_cleaning(context, images, Pretraining(), corruption=0.0, bias="none")
    zeta = Draw(task, 0, 0).g()
    xs = torch.rand(LANES, n, generator=rng).to(device)
    ys = (torch.randn(LANES, c, d, generator=rng) / d**0.5).to(device)

    def gradient(x: Tensor, y: Tensor) -> Tensor:
        return Oracle(task).g_y(x, y, zeta)

    products = Oracle(task).products(xs[0], ys[0], zeta)
    data, own, work = 4.0 * n * d, 4.0 * n + 8.0 * c * d, 4.0 * n * d * c
    name, kind = "hyper-cleaning gradient", torch.float32
    together = torch.func.vmap(gradient)
    return [
        Kernel(name, kind, data + 8 * n + own, work, lambda: gradient(xs[0], ys[0])),
        Kernel(
            f"{name}, {LANES} lanes", kind, data + 8 * n + LANES * own, LANES * work,
            lambda: together(xs, ys),
        ),
        Kernel(
            "hyper-cleaning Hessian product", kind, data + own + 4 * n * c, work,
            lambda: products.yy(ys[1]),
        ),
    ]  # fmt: skip


def newsgroups_kernels(device: torch.device, scale: float) -> list[Kernel]:
    """A gradient on 5,657 x 130,107 x 20, and F2OBO's inner step on 256 of the documents.

    Words are as frequent as Zipf's law has them.
    """
    n, p, c = max(300, int(5_657 * scale)), max(1000, int(130_107 * scale)), 20
    rng = generator("roofline", "newsgroups")
    share = 1 / torch.arange(1, p + 1, dtype=torch.float64)
    words = torch.multinomial(share, n * PER_DOCUMENT, replacement=True, generator=rng)
    rows = Csr(
        torch.arange(0, n * PER_DOCUMENT + 1, PER_DOCUMENT, dtype=torch.int32).to(device),
        words.view(n, -1).sort(1)[0].flatten().int().to(device),
        torch.full((n * PER_DOCUMENT,), PER_DOCUMENT**-0.5, device=device),
    )
    part = Documents(sparse(rows, p), torch.randint(c, (n,), generator=rng).to(device))
    x, y = torch.full((p,), 0.1, device=device), torch.randn(p, c, generator=rng).to(device)
    gradient = lower_derivatives(1.0, 1.0).grad
    some = take_documents(part, torch.arange(256, device=device), part.labels)
    nonzeros, dense = float(n * PER_DOCUMENT), 4.0 * p * c
    kind = torch.float32
    return [
        Kernel(
            "newsgroups gradient", kind, 8 * nonzeros + 2 * dense + 4 * p, 4 * nonzeros * c,
            lambda: gradient(x, y, DocumentBatch(part, None), "y"),
        ),
        Kernel(
            "F2OBO: inner step over theta", kind, 2 * dense + 4 * p, 2.0 * p * c,
            lambda: lower_descend(x, y, some, 0.1, None),
        ),
    ]  # fmt: skip


def conv4_kernel(device: torch.device, scale: float) -> Kernel:
    """A gradient over 800 images of FC100's form, 32 episodes of 5 x 5, with 32 filters."""
    n, net = max(2, int(800 * scale)), Conv4(3, 32, 32)
    rng = generator("roofline", "conv4")
    theta = net.init(rng).to(device, torch.float32)
    images = torch.rand(n, 3, 32, 32, generator=rng).to(device)
    pixels = [(net.side >> block) ** 2 for block in range(4)]
    inputs = [3, *[net.filters] * 3]
    forward = [2.0 * 9 * a * net.filters * area * n for a, area in zip(inputs, pixels)]

    def step() -> Tensor:
        with torch.enable_grad():
            leaf = theta.detach().requires_grad_()
            loss = net.features(leaf, images).square().mean()
        return torch.autograd.grad(loss, leaf)[0]

    # the way back is twice the way forward, without a derivative in the images
    operations = 3 * sum(forward) - forward[0]
    # the output of each block's convolution is written once, and read once on the way back
    between = sum(2 * 4.0 * net.filters * area * n for area in pixels)
    return Kernel(
        "conv4 forward and back", torch.float32, 4.0 * images.numel() + between, operations, step
    )


def ball_kernel(device: torch.device, scale: float) -> Kernel:
    """A linear minimisation over a nuclear-norm ball, 2,000 x 2,000 in float64."""
    n = max(50, int(2000 * scale**0.5))
    a = torch.randn(n, n, generator=generator("roofline", "ball"), dtype=torch.float64).to(device)
    accuracy = 1e-6 * float(a.norm()) / n**0.5
    return Kernel(
        "linear oracle, nuclear ball", torch.float64, 8.0 * n * n, 4.0 * n * n,
        lambda: top_singular(a, accuracy),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--scale", type=float, default=1.0, help="factor of every size")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers here as well")
    arguments = parser.parse_args()
    if arguments.repeats < 1 or arguments.threads < 1 or not 0 < arguments.scale <= 1:
        parser.error("--repeats and --threads: at least 1; --scale: above 0, at most 1")
    try:
        device = choose_device(arguments.device)
    except BadSetting as reason:
        parser.exit(2, f"roofline: {reason}\n")
    settle(device, arguments.threads)
    load, scale = os.getloadavg()[0], arguments.scale
    machine = measure_machine(device, scale, arguments.repeats)
    kernels = [
        *softmax_kernels(device, scale), *newsgroups_kernels(device, scale),
        conv4_kernel(device, scale), ball_kernel(device, scale),
    ]  # fmt: skip
    about = environment_of(device, arguments.threads, {})
    table = Table(
        title=f"{about['gpu'] or about['cpu']}: copy {machine.bandwidth / 1e9:,.1f} GB/s, "
        + ", ".join(f"{str(k)[6:]} {r / 1e9:,.0f} GFLOP/s" for k, r in machine.rates.items())
        + f"; {arguments.threads} threads, load {load:.1f}"
    )
    for column in ("kernel", "MB", "GFLOP", "floor ms", "bound by", "ms", "floor / time"):
        table.add_column(column, justify="left" if column in ("kernel", "bound by") else "right")
    found = []
    for kernel in kernels:
        with torch.no_grad():
            taken = seconds(kernel.work, device, arguments.repeats)
        moving = kernel.bytes / machine.bandwidth
        computing = kernel.operations / machine.rates[kernel.dtype]
        floor, spent = max(moving, computing), median(taken)
        bound = "bandwidth" if moving > computing else "matrix rate"
        table.add_row(
            kernel.name, f"{kernel.bytes / 1e6:,.1f}", f"{kernel.operations / 1e9:,.2f}",
            f"{1e3 * floor:,.2f}", bound, f"{1e3 * spent:,.2f}", f"{floor / spent:.2f}",
        )  # fmt: skip
        found.append(
            {
                "kernel": kernel.name,
                "dtype": str(kernel.dtype)[6:],
                "bytes": kernel.bytes,
                "operations": kernel.operations,
                "floor_seconds": floor,
                "bound": bound,
                "seconds": taken,
                "fraction": floor / spent,
            }
        )
    Console(width=130).print(table)
    if arguments.json:
        content = {
            "title": "Fractions of the floor",
            "date": datetime.now(UTC).date().isoformat(),
            "environment": about,
            "load": load,
            "scale": scale,
            "bandwidth": machine.bandwidth,
            "rates": {str(kind)[6:]: rate for kind, rate in machine.rates.items()},
            "kernels": found,
        }
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        write_whole(arguments.json, json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
