"""What compiled steps save: a toy run by `run.compile=true` against plain steps.

    uv run python -m scripts.speed compile [--jax]

BOME on the toy coreset. First both take --steps steps, with the graph compiled before the clock
starts; then four times as many, with recording and compiling inside of the time. All are seconds of
steps, measuring not included. Before they are timed, the first step of both must agree. With --jax
JAX takes the first --steps steps as well, in one jitted scan. After ten steps all must be at the
same point to 1e-4; later the way is so sensitive for a while that last bits grow beyond that.
"""

from argparse import ArgumentParser, Namespace
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bench.compiled.traced import Compiled
from bench.core.loop import Standing
from bench.runs.opening import OpenRun
from scripts.speed.harness import (
    Comparison,
    Result,
    Timing,
    check_against_first,
    in_process,
    positive,
    take_turns,
)  # fmt: skip
from scripts.speed.jax_peer import add_jax_option, jax_contender, jax_process
from scripts.speed.peers import Unavailable
from scripts.speed.plain_runs import check_first_step, configured_run, take_steps
from scripts.speed.softmax import TOLERANCE

# the coreset toy as BOME's released code has it (tasks/toy.py)
POINTS = [[1.0, 3.0], [3.0, 1.0], [-2.0, 2.0], [-3.0, -2.0]]
GOAL, SCALE = [3.0, -2.0], 0.1
SAME = 10  # steps by which contenders are compared


def end_of(standing: Standing) -> Tensor:
    """x and y, flat."""
    return torch.cat([standing.state.x.flatten(), standing.state.y.flatten()])


def toy_settings(run: OpenRun) -> dict[str, Any]:
    """What JAX's toy has to know of the run: its start, its numbers, and the coreset problem."""
    method, x, y = run.config["algorithm"], run.start.state.x, run.start.state.y
    names = ("outer_lr", "lower_lr", "inner_lr", "T", "eta")
    return {
        **{name: method[name] for name in names},
        "x": x.tolist(), "y": y.tolist(), "points": POINTS, "goal": GOAL, "scale": SCALE,
    }  # fmt: skip


def compare(options: Namespace) -> Timing:
    """Steps with the graph compiled before, and with compiling; may raise Disagreement."""
    run = configured_run(
        "task=toy_coreset", "algorithm=bome", "task.variant=code", f"run.threads={options.threads}"
    )
    few, many = options.steps, 4 * options.steps

    def compile_steps() -> Compiled:
        compiled = Compiled(run.task, run.algorithm, 0)
        check_first_step(run, compiled(run.start, 1).standing)
        return compiled

    def compile_and_take() -> None:
        compile_steps()(run.start, many)

    with torch.no_grad():
        before = compile_steps()

        def compiled_end() -> Result:
            return Result(end_of(before(run.start, SAME).standing), {})

        def eager_end() -> Result:
            return Result(end_of(take_steps(run, SAME)), {})

        contenders = [
            in_process(
                "run.compile",
                partial(before, run.start, few),
                compute=compiled_end,
                note="compiled before",
            ),
            in_process("eager", partial(take_steps, run, few), compute=eager_end),
        ]
        with ExitStack() as stack:
            if options.jax:
                try:
                    ask, folder = stack.enter_context(jax_process())
                    work = {"work": "toy", "settings": toy_settings(run), "steps": few}
                    contenders.append(jax_contender(ask, folder, work, work | {"steps": SAME}))
                except Unavailable as reason:
                    print(f"without JAX: {reason}")
            checked = check_against_first(contenders, TOLERANCE)
            lines = take_turns(f"toy, {few:,} steps", checked, options.repeats)
        contenders = [
            in_process("run.compile", compile_and_take, note="with compiling"),
            in_process("eager", partial(take_steps, run, many)),
        ]
        lines += take_turns(f"toy, {many:,} steps", contenders, options.repeats)
    return Timing("Compiled steps, float32", lines)


def add_options(parser: ArgumentParser) -> None:
    add_jax_option(parser)
    parser.add_argument(
        "--steps", type=positive, default=5000, help="four times as many after it (%(default)s)"
    )


COMPARISON = Comparison(compare, add_options, smoke={"steps": 50}, repeats=5)
