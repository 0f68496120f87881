"""Where the time of compiled minibatch steps goes, of one run and of five lanes, on hyper-cleaning.

    uv run python -m scripts.speed parts

The work of a step's parts is done by itself, on as many rows as the step draws: drawing their
numbers by name, and its calls of softmax regression's operator (gradients of f and g, products with
g's Hessian), which are read off its graph. What the step takes beyond them is its other operations
on x and y, and torch's calls of their kernels. The ratios are parts of the step.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

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
from scripts.speed.softmax import CLASSES, PIXELS, Examples, SoftmaxProblem
from scripts.speed.stochastic import CONFIGS, LANES, start_at
from scripts.speed.workload import BATCH
from tasks.models.softmax_rows import curvatures, loss_gradients

METHODS = ("SOBA", "AmIGO", "stocBiO", "F2SA")


class OperatorCall(NamedTuple):
    """A call of the operator in a step."""

    operator: Any  # loss_gradients or curvatures
    part: Examples  # which data it reads
    weighted: bool  # whether the gradient, or the product, is wanted, and not the softmax alone


def operator_calls(form: Form, p: SoftmaxProblem) -> list[OperatorCall]:
    """The calls of a step's graph, in its order."""
    found = []
    for node in form.graph.graph.nodes:
        if node.target not in (loss_gradients, curvatures):
            continue
        features, _, _, weights = node.args[-4:]
        read = getattr(form.graph, features.target)
        part = p.val if read.data_ptr() == p.val.features.data_ptr() else p.train
        found.append(OperatorCall(node.target, part, weights is not None))
    return found


def draw_all(form: Form, task: Task, seeds: Sequence[int], steps: int) -> None:
    """Draw the batches of so many steps of these seeds."""
    for k in range(steps):
        for seed in seeds:
            form.inputs(task, seed, At(k))


def call_operator(
    calls: Sequence[OperatorCall], steps: Sequence[Sequence[tuple[Tensor, Tensor]]], y: Tensor
) -> None:
    """The operator's calls of some steps.

    steps: for each step and each gradient in it, the numbers and the labels of rows, both
    [lanes, BATCH] int64. A product with the Hessian has the rows of the gradient before it.
    y [lanes, CLASSES, PIXELS].
    """
    equal = y.new_full((1, BATCH), 1 / BATCH)
    for batches in steps:
        following = iter(batches)
        for operator, part, weighted in calls:
            weights = equal if weighted else None
            if operator is loss_gradients:
                rows, labels = next(following)
                _, softmax, _ = loss_gradients(y, part.features, rows, labels, weights)
            else:
                curvatures(y, softmax, part.features, rows, labels, weights)


def draw_rows(
    calls: Sequence[OperatorCall], lanes: int, steps: int
) -> list[list[tuple[Tensor, Tensor]]]:
    """What `call_operator` takes as its steps."""
    rng = torch.Generator().manual_seed(0)
    parts = [call.part for call in calls if call.operator is loss_gradients]
    found = []
    for _ in range(steps):
        rows = [torch.randint(len(p.labels), (lanes, BATCH), generator=rng) for p in parts]
        found.append([(r, p.labels[r]) for r, p in zip(rows, parts, strict=True)])
    return found


def time_parts(
    method: str, task: Task, p: SoftmaxProblem, seeds: Sequence[int], options: Namespace
) -> list[SpeedLine]:
    """The lines of compiled steps of these seeds, one run or lanes, and of their parts."""
    config = CONFIGS[method] | {"batch": BATCH}
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
    calls = operator_calls(form, p)
    rows = draw_rows(calls, many, options.steps)
    y = p.y.expand(many, CLASSES, PIXELS).contiguous()
    parts = [
        step,
        in_process("batches drawn", partial(draw_all, form, task, seeds, options.steps)),
        in_process("operator", partial(call_operator, calls, rows, y)),
    ]
    title = "one run" if many == 1 else f"{many} seeds as lanes"
    return take_turns(f"{method}, compiled, {title}", parts, options.repeats)


def compare(options: Namespace) -> Timing:
    """One run of each method, and LANES seeds as lanes."""
    p = image_problem("made-up", options.rows, Path(), "cpu")
    task = our_task(p)
    lines = []
    with torch.no_grad():
        for method in METHODS:
            lines += time_parts(method, task, p, [0], options)
            lines += time_parts(method, task, p, range(LANES), options)
    size = f"{options.rows} x {PIXELS} x {CLASSES}, batch {BATCH}, float32"
    return Timing(f"Parts of {options.steps} compiled stochastic steps, {size}", lines)


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--rows", type=positive, default=20_000, help="training rows (%(default)s)")
    parser.add_argument("--steps", type=positive, default=512, help="steps (%(default)s)")


COMPARISON = Comparison(compare, add_options, smoke={"rows": 2000, "steps": 4})
