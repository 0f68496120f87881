"""Stochastic steps at batch 64: ours, eager and compiled, alone and as lanes, against JAX's scan.

    uv run python -m scripts.speed stochastic

Hyper-cleaning by softmax regression on made-up images of MNIST's shape, with ink everywhere, in
float32. JAX has an environment of its own, and steps as JAX's users write them (jax_server.py),
whose batches it draws itself. Before a method is timed, both sides take three steps with the same
batches, and must end at the same point to 1e-4; of the lanes it is the first that is held against
JAX. The seconds are of --steps steps, with everything compiled before; a note tells how long that
took.
"""

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench.compiled.batched import Lane, Side
from bench.compiled.traced import Compiled
from bench.core.algorithm import Algorithm
from bench.core.draw import Draw
from bench.core.loop import Standing, first, take_plainly
from bench.core.oracle import Oracle
from bench.core.settings import BadSetting, build
from bench.core.task import Batch, Task
from bench.reproduce.speed import SpeedLine
from scripts.speed.harness import (
    Comparison,
    Contender,
    Result,
    Timing,
    check_against_first,
    in_process,
    positive,
    take_turns,
)  # fmt: skip
from scripts.speed.images import image_problem, our_task
from scripts.speed.jax_peer import jax_process
from scripts.speed.peers import Ask, Unavailable
from scripts.speed.softmax import CLASSES, PIXELS, TOLERANCE, SoftmaxProblem
from scripts.speed.workload import BATCH, BLOCK, INNER_LR, LAM, OUTER_LR, RATIO, SYSTEM_LR, Q, T

SAME = 3  # steps by which both sides are compared
LANES = 5
GD = {"_target_": "bench.numerics.descent.descent"}
SOBA_LRS = {"outer_lr": OUTER_LR, "inner_lr": INNER_LR, "system_lr": SYSTEM_LR}
CONFIGS: dict[str, dict[str, Any]] = {
    "SOBA": {"_target_": "algorithms.bilevel.soba.soba", "outer": GD, **SOBA_LRS},
    "AmIGO": {"_target_": "algorithms.bilevel.soba.amigo", "outer": GD, **SOBA_LRS, "T": T, "Q": Q},
    "stocBiO": {
        "_target_": "algorithms.bilevel.stocbio.stocbio", "outer": GD, "outer_lr": OUTER_LR,
        "inner_lr": INNER_LR, "eta": SYSTEM_LR, "T": T, "Q": Q,
    },
    "F2SA": {
        "_target_": "algorithms.bilevel.f2sa.f2sa", "outer_lr": INNER_LR, "inner_lr": INNER_LR,
        "ratio": RATIO, "T": T, "lam": LAM, "growth": 1 / 3,
    },
    "SABA": {
        "_target_": "algorithms.bilevel.saba.saba", "outer_lr": OUTER_LR, "inner_lr": INNER_LR,
    },
}  # fmt: skip


class Noting(Draw):
    """Draws as in any run, and notes the numbers of the rows, or of the blocks of rows."""

    def __init__(self, task: Task, step: int):
        super().__init__(task, 0, step)
        self.rows: dict[str, list[Tensor]] = {"upper": [], "lower": []}
        self.sides = iter(self.rows.values())

    def _draw(self, side: Any, size: int | None) -> Batch:
        batch = super()._draw(side, size)
        self.rows[side].append(batch.numbers)
        return batch

    def integer(self, below: int) -> int:
        """The number of one of SABA's blocks, of f first."""
        number = super().integer(below)
        next(self.sides).append(torch.tensor([number]))
        return number


def noted_steps(task: Task, algorithm: Algorithm, start: Standing) -> tuple[Tensor, dict[str, Any]]:
    """Where x and y are after SAME steps, flat, from their starts, and the rows of all batches."""
    state, rows = start.state, []
    for k in range(SAME):
        draw = Noting(task, k)
        state, _ = algorithm.step(Oracle(task), state, draw)
        rows.append(draw.rows)
    moved = [state.x - start.state.x, (state.y - start.state.y).flatten()]
    return torch.cat(moved), {
        name: torch.stack([torch.stack(step[side]) for step in rows]).numpy()
        for name, side in (("f", "upper"), ("g", "lower"))
    }


def start_at(task: Task, algorithm: Algorithm, p: SoftmaxProblem) -> Standing:
    """The standing at the problem's point."""
    return first(task, algorithm, 0)._replace(state=algorithm.init(p.x, p.y))


def time_method(
    method: str, task: Task, p: SoftmaxProblem, options: Namespace, jax: tuple[Ask, Path]
) -> Iterator[SpeedLine]:
    """Lines of one method: eager, compiled, and LANES seeds as lanes, each against JAX."""
    (ask, folder), config = jax, CONFIGS[method] | {"batch": BATCH}
    if method == "SABA":
        many, above = (len(part.labels) // BLOCK for part in (p.train, p.val))
        config = CONFIGS[method] | {"blocks": many, "upper_blocks": above}
    algorithm: Algorithm = build(config)
    start = start_at(task, algorithm, p)
    moved, rows = noted_steps(task, algorithm, start)
    np.savez(folder / f"{method}.npz", **rows)
    request = {"ask": "time", "method": method, "steps": options.steps}
    compiling = ask(request)["compiling"]

    def jax_turn() -> float:
        return float(ask(request)["seconds"])

    def jax_result() -> Result:
        ends = [torch.tensor(t) for t in ask({"ask": "ends", "method": method})["state"]]
        return Result(torch.cat([ends[0] - p.x, ends[1] - p.y.flatten()]), {})

    name = f"JAX {ask({'ask': 'version'})['version']}"
    peer = Contender(name, jax_turn, jax_result, f"a scan, {compiling:.1f} s to compile")

    def our_result() -> Result:
        return Result(moved, {})

    plain = take_plainly(task, algorithm, 0)
    begun = plain(start, 1).standing  # SABA's first step fills its tables
    note = f"blocks of {BLOCK} rows" if method == "SABA" else ""
    work = partial(plain, begun, options.steps)
    eager = in_process("eager", work, compute=our_result, note=note)
    checked = check_against_first([eager, peer], TOLERANCE)
    yield from take_turns(f"{method}, eager", checked, options.repeats)
    if method == "SABA":
        return  # how much it computes is drawn at random, so that it has no graph

    compiled = Compiled(task, algorithm, 0)
    begin = time.perf_counter()
    compiled(start, SAME)
    note = f"{time.perf_counter() - begin:.1f} s to compile"
    after = compiled(start, SAME).standing.state

    def compiled_result() -> Result:
        x, y = after.x - start.state.x, after.y - start.state.y
        return Result(torch.cat([x, y.flatten()]), {})

    graph = in_process(
        "run.compile", partial(compiled, start, options.steps), compute=compiled_result, note=note
    )
    checked = check_against_first([graph, peer], TOLERANCE)
    yield from take_turns(f"{method}, compiled", checked, options.repeats)

    for compiles in (False, True):
        lanes = lanes_of(task, algorithm, config, p, options.steps, compiles)
        checked = check_against_first([lanes, replace(peer, note="one run, a scan")], TOLERANCE)
        title = f"{method}, {LANES} seeds{', compiled' if compiles else ''}"
        yield from take_turns(title, checked, options.repeats)


def lanes_of(
    task: Task,
    algorithm: Algorithm,
    config: dict[str, Any],
    p: SoftmaxProblem,
    steps: int,
    compiles: bool,
) -> Contender:
    """The steps of LANES seeds side by side; what is held against JAX is the first lane."""
    side = Side([Lane(task, algorithm, seed, {}) for seed in range(LANES)], config, compiles)
    starts = [start_at(task, algorithm, p)] * LANES
    side.prepare(starts)

    def result() -> Result:
        state = side(starts, SAME)[0].state
        return Result(torch.cat([state.x - p.x, (state.y - p.y).flatten()]), {})

    return in_process(f"{LANES} lanes", partial(side, starts, steps), compute=result)


def compare(options: Namespace) -> Timing:
    """Every method; raises BadSetting where JAX cannot be had."""
    p = image_problem("made-up", options.rows, Path(), "cpu")
    task = our_task(p)
    lines: list[SpeedLine] = []
    try:
        with torch.no_grad(), jax_process(p) as jax:
            for method in options.methods:
                lines += time_method(method, task, p, options, jax)
    except Unavailable as reason:
        raise BadSetting(str(reason)) from None
    size = f"{options.rows} x {PIXELS} x {CLASSES}, batch {BATCH}, float32"
    return Timing(f"{options.steps} stochastic steps on hyper-cleaning, {size}", lines)


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--rows", type=positive, default=20_000, help="training rows (%(default)s)")
    parser.add_argument("--steps", type=positive, default=512, help="steps (%(default)s)")
    parser.add_argument("--methods", nargs="+", choices=list(CONFIGS), default=list(CONFIGS))


COMPARISON = Comparison(compare, add_options, smoke={"rows": 2000, "steps": 4})
