"""Where the time of a compiled minibatch step goes: SOBA on hyper-cleaning, one run and five lanes.

    uv run python -m scripts.speed parts

The work of a step's parts is done by itself, on the rows that the step draws: drawing their numbers
by name, and its three calls of softmax regression's operator (a gradient of f, a gradient of g, a
product with g's Hessian). What the step takes beyond them is its other operations on x, y and v,
and torch's calls of their kernels. The ratios are parts of the step.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from bench.compiled.batched import Lane, Side
from bench.compiled.symbols import At
from bench.compiled.traced import Compiled, Form, record
from bench.core.settings import build
from bench.core.task import Task
from bench.reproduce.speed import SpeedLine
from scripts.speed.harness import Comparison, Timing, in_process, positive, take_turns
from scripts.speed.images import image_problem, our_task
from scripts.speed.softmax import CLASSES, PIXELS, SoftmaxProblem
from scripts.speed.stochastic import CONFIGS, LANES, start_at
from scripts.speed.workload import BATCH
from tasks.models.softmax_rows import curvatures, loss_gradients

METHOD = "SOBA"


def draw_all(form: Form, task: Task, seeds: Sequence[int], steps: int) -> None:
    """Draw the batches of so many steps of these seeds."""
    for k in range(steps):
        for seed in seeds:
            form.inputs(task, seed, At(k))


def call_operator(p: SoftmaxProblem, rows: Sequence[tuple[Tensor, Tensor]], y: Tensor) -> None:
    """The operator's calls of steps with these rows of validation and of training data.

    rows: for each step two of [lanes, BATCH] int64. y [lanes, CLASSES, PIXELS].
    """
    weights = y.new_full((1, BATCH), 1 / BATCH)
    for above, below in rows:
        loss_gradients(y, p.val.features, above, p.val.labels[above], weights)
        labels = p.train.labels[below]
        _, softmax, _ = loss_gradients(y, p.train.features, below, labels, weights)
        curvatures(y, softmax, p.train.features, below, labels, weights)


def time_parts(
    task: Task, p: SoftmaxProblem, seeds: Sequence[int], options: Namespace
) -> list[SpeedLine]:
    """The lines of compiled steps of these seeds, one run or lanes, and of their parts."""
    config = CONFIGS[METHOD] | {"batch": BATCH}
    algorithm = build(config)
    start, many = start_at(task, algorithm, p), len(seeds)
    if many == 1:
        compiled = Compiled(task, algorithm, seeds[0])
        compiled(start, 1)
        step = in_process("step", partial(compiled, start, options.steps))
    else:
        side = Side([Lane(task, algorithm, seed, {}) for seed in seeds], config, compile=True)
        side.prepare([start] * many)
        step = in_process("step", partial(side, [start] * many, options.steps))
    form = record(task, algorithm, seeds[0], start.state, At(0))
    drawn = torch.Generator().manual_seed(0)
    rows = [
        (
            torch.randint(len(p.val.labels), (many, BATCH), generator=drawn),
            torch.randint(len(p.train.labels), (many, BATCH), generator=drawn),
        )
        for _ in range(options.steps)
    ]
    y = p.y.expand(many, CLASSES, PIXELS).contiguous()
    parts = [
        step,
        in_process("batches drawn", partial(draw_all, form, task, seeds, options.steps)),
        in_process("operator", partial(call_operator, p, rows, y)),
    ]
    title = "one run" if many == 1 else f"{many} seeds as lanes"
    return take_turns(f"{METHOD}, compiled, {title}", parts, options.repeats)


def compare(options: Namespace) -> Timing:
    """One run, and LANES seeds as lanes."""
    p = image_problem("made-up", options.rows, Path(), "cpu")
    task = our_task(p)
    with torch.no_grad():
        lines = time_parts(task, p, [0], options)
        lines += time_parts(task, p, range(LANES), options)
    size = f"{options.rows} x {PIXELS} x {CLASSES}, batch {BATCH}, float32"
    return Timing(f"Parts of {options.steps} compiled stochastic steps, {size}", lines)


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--rows", type=positive, default=20_000, help="training rows (%(default)s)")
    parser.add_argument("--steps", type=positive, default=512, help="steps (%(default)s)")


COMPARISON = Comparison(compare, add_options, smoke={"rows": 2000, "steps": 4})
