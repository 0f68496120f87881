"""What compiled steps and lanes save: uv run python scripts/speed_compile.py [--data mnist]

A toy run by `run.compile=true` against the plain one, recording and compiling apart and together;
seeds and step sizes of BOME (T = 10) on hyper-cleaning as lanes of one computation against a single
run. All are seconds of steps, measuring not included, each contender's runs interleaved, the
fastest of them. Results are compared before any time is printed.
"""

import argparse
import copy
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from hydra import compose, initialize_config_module
from rich.console import Console
from rich.table import Table

from bench.lanes import Side, lanes_of
from bench.launch import Opened, beginnings, built, place, resolved, settled
from bench.run import Standing, advance
from bench.settings import build
from bench.traced import Compiled, furthest

STEP_SIZES = [0.01 * 1.3**k for k in range(20)]


def opened(*settings: str) -> Opened:
    with initialize_config_module("conf", version_base="1.3"):
        config = resolved(compose("config", list(settings)))
    name, folder = place(config)
    old = beginnings(config, folder)
    return built(config, name, folder, settled(config, folder, old), old)


def sized(run: Opened, lr: float) -> Opened:
    """The same with another step size of the weights, on the same task."""
    config = copy.deepcopy(run.config)
    config["algorithm"]["outer"]["lr"] = lr
    return run._replace(config=config, algorithm=build(config["algorithm"]))


def single(run: Opened, steps: int) -> Standing:
    s = run.start
    for _ in range(steps):
        s = advance(run.task, run.algorithm, run.config["seed"], s)
    return s


def seconds(*contenders: Callable[[], Any], repeats: int) -> list[float]:
    found: list[list[float]] = [[] for _ in contenders]
    for _ in range(repeats):
        for times, contender in zip(found, contenders, strict=True):
            begin = time.perf_counter()
            contender()
            times.append(time.perf_counter() - begin)
    return [min(times) for times in found]


def toy(table: Table, repeats: int, threads: int) -> None:
    run = opened(
        "task=toy_coreset", "algorithm=bome", "task.variant=code", f"run.threads={threads}",
        "run.root=/nonexistent",
    )  # fmt: skip
    begin = time.perf_counter()
    compiled = Compiled(run.task, run.algorithm, 0)
    after = compiled(run.start, 1).standing
    making = time.perf_counter() - begin
    assert furthest(run.start.state, single(run, 1).state, after.state) <= 1
    plain, fast = seconds(
        lambda: single(run, 5000), lambda: compiled(run.start, 5000), repeats=repeats
    )
    both = 4 * plain / (making + 4 * fast)
    table.add_row("toy, 5,000 steps", f"{plain:.3g} s", f"{fast:.3g} s", f"{plain / fast:.3g}")
    table.add_row(
        f"toy, 20,000 steps, compiling ({making:.2g} s) too",
        f"{4 * plain:.3g} s",
        f"{making + 4 * fast:.3g} s",
        f"{both:.3g}",
    )


def lanes(
    table: Table, words: str, runs: Sequence[Opened], steps: int, repeats: int, compile: bool
) -> None:
    side = Side(lanes_of(runs), runs[0].config["algorithm"], compile)
    starts = [run.start for run in runs]
    side.ready(starts)
    after = side(starts, 1)
    for run, s in ((runs[0], after[0]), (runs[-1], after[-1])):
        assert furthest(run.start.state, single(run, 1).state, s.state) <= 1
    alone, together = seconds(
        lambda: single(runs[0], steps), lambda: side(starts, steps), repeats=repeats
    )
    table.add_row(words, f"{alone:.3g} s", f"{together:.3g} s", f"{together / alone:.3g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", default="digits", choices=["digits", "mnist"])
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--compile", action="store_true", help="lanes compiled too")
    parser.add_argument("--only", choices=["toy", "lanes"])
    options = parser.parse_args()
    table = Table(
        "", "single or plain", "lanes or compiled", "ratio", box=None,
        caption=f"{options.threads} threads of {os.cpu_count()}; ratio: of a toy how many times "
        "faster, of lanes how many single runs they cost",
    )  # fmt: skip

    def cleaning(seed: int, lr: float) -> Opened:
        return opened(
            "task=hyper_cleaning", f"task/data={options.data}", "algorithm=bome",
            "task.references=false", "task.pretraining.steps=0", "task.resplit=labels",
            f"seed={seed}", f"algorithm.outer.lr={lr}", f"run.threads={options.threads}",
            "run.root=/nonexistent",
        )  # fmt: skip

    with torch.no_grad():
        if options.only != "lanes":
            toy(table, options.repeats, options.threads)
        if options.only != "toy":
            rest = options.steps, options.repeats, options.compile
            first = cleaning(0, STEP_SIZES[0])
            lanes(table, "20 step sizes", [sized(first, lr) for lr in STEP_SIZES], *rest)
            lanes(table, "5 seeds of one split", [cleaning(seed, 0.01) for seed in range(5)], *rest)
    Console().print(table)


if __name__ == "__main__":
    main()
