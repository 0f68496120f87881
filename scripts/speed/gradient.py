"""The gradient of hyper-cleaning's g in y: ours against plain autograd and JAX.

    uv run python -m scripts.speed gradient [--jax] [--images mnist]

One lane computes one gradient. Six lanes compute six, each at weights x and y of its own: ours
under torch.func.vmap, plain autograd one after the other. The model is softmax regression, full
batch, float32; the images are made up in MNIST's shape, with ink everywhere, or with --images
MNIST's or Fashion-MNIST's own. With --jax JAX takes part, in an
environment of its own, whose six are of jax.vmap. Before they are timed, all must compute the same
gradients to 1e-4; `passes` counts the products with the training features.
"""

from argparse import ArgumentParser, Namespace
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bench.core.draw import Draw
from bench.core.oracle import Oracle
from bench.core.settings import BadSetting
from bench.reproduce.speed import SpeedLine
from scripts.speed.harness import Comparison, Timing, check_against_first, take_turns
from scripts.speed.images import add_image_options, contender_on, image_problem, our_task
from scripts.speed.jax_peer import add_jax_option, jax_contender, jax_process
from scripts.speed.peers import Unavailable
from scripts.speed.softmax import CLASSES, PIXELS, TOLERANCE, lower_loss

LANES = 6


def compare(options: Namespace) -> Timing:
    """One lane's gradient, and LANES of them; raises BadSetting where there are no such images."""
    if options.jax and options.device != "cpu":
        raise BadSetting("--jax: JAX's gradients are taken on the CPU only; write --device cpu")
    root = Path(options.data).expanduser()
    p = image_problem(options.images, options.rows, root, options.device)
    task = our_task(p)
    zeta = Draw(task, 0, 0).g()
    rng = torch.Generator().manual_seed(1)
    xs = torch.randn(LANES, len(p.x), generator=rng).to(p.x)
    ys = (torch.randn(LANES, *p.y.shape, generator=rng) / PIXELS**0.5).to(p.y)

    def ours(x: Tensor, y: Tensor) -> Tensor:
        return Oracle(task).g_y(x, y, zeta)

    def plain(x: Tensor, y: Tensor) -> Tensor:
        y = y.clone().requires_grad_()
        return torch.autograd.grad(lower_loss(x, y, p.train), y)[0]

    def ours_once() -> Tensor:
        return ours(xs[0], ys[0])

    def plain_once() -> Tensor:
        return plain(xs[0], ys[0])

    def ours_together() -> Tensor:
        return torch.func.vmap(ours)(xs, ys)

    def plain_in_a_loop() -> Tensor:
        return torch.stack([plain(x, y) for x, y in zip(xs, ys)])

    each = f"{LANES} grad_g"
    groups = {
        "1 lane": [
            contender_on(p, "ours", ours_once, "1 grad_g"),
            contender_on(p, "autograd", plain_once, "1 grad_g"),
        ],
        f"{LANES} lanes": [
            contender_on(p, "ours", ours_together, f"{each} at once"),
            contender_on(p, "autograd", plain_in_a_loop, f"{each}, one after the other"),
        ],
    }
    lines: list[SpeedLine] = []
    with ExitStack() as stack:
        if options.jax:
            try:
                ask, folder = stack.enter_context(jax_process(p))
                np.savez(folder / "lanes.npz", x=xs.numpy(), y=ys.numpy())
                for lanes, contenders in zip((1, LANES), groups.values(), strict=True):
                    work = {"work": "gradients", "lanes": lanes}
                    contenders.append(jax_contender(ask, folder, work))
            except Unavailable as reason:
                print(f"without JAX: {reason}")
        for method, contenders in groups.items():
            checked = check_against_first(contenders, TOLERANCE)
            lines += take_turns(method, checked, options.repeats)
    what = f"{options.images}, {options.rows} x {PIXELS} x {CLASSES}"
    title = f"The gradient of hyper-cleaning's lower loss, {what}, float32"
    return Timing(title, lines, options.device)


def add_options(parser: ArgumentParser) -> None:
    add_image_options(parser)
    add_jax_option(parser)


COMPARISON = Comparison(compare, add_options, smoke={"rows": 6000})
