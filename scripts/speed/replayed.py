"""Steps on a GPU whose oracle's answers are replayed as CUDA graphs, against the plain ones.

    uv run python -m scripts.speed replayed

Small problems that need no data, in float32: digits to clean and to learn online, and a stream of
patterns. A turn is some steps from where both stand after the forms of their questions have been
captured, which is not timed. Both must come to the same x and y, to the last bit.
"""

from argparse import ArgumentParser, Namespace

import torch
from hydra import compose, initialize_config_module

from bench.compiled.replayed import Replayed
from bench.core.loop import Take, first, take_plainly
from bench.core.settings import BadSetting, build
from bench.core.task import Context
from bench.runs.launch import resolve
from scripts.speed.harness import (
    Comparison,
    Contender,
    Timing,
    check_against_first,
    device_for_timing,
    in_process,
    positive,
    take_turns,
)

FIRST = 14  # steps, in which each form is asked for often enough to be captured
CASES = {
    "BOME, hyper-cleaning": ["task=hyper_cleaning", "algorithm=bome", "task.references=false"],
    "AID-CG, hyper-cleaning": ["task=hyper_cleaning", "algorithm=aid_cg", "task.references=false"],
    "F2OBO, imbalanced images": ["task=online_imbalance", "algorithm=f2obo"],
    "FSOBO, imbalanced images": ["task=online_imbalance", "algorithm=fsobo"],
    "AOBO, imbalanced images": ["task=online_imbalance", "algorithm=aobo"],
    "ER, ResNet": ["task=split_cifar", "algorithm=er", "task.tasks=2", "task.batch=5"],
    "CTN+BOME, ResNet": ["task=split_cifar", "algorithm=ctn_bome", "task.tasks=2", "task.batch=5"],
    "CTN+Penalty, ResNet": [
        "task=split_cifar", "algorithm=ctn_penalty", "task.tasks=2", "task.batch=5",
    ],
}  # fmt: skip


def contenders(overrides: list[str], steps: int, device: torch.device) -> list[Contender]:
    """`steps` steps after the first ones, "replayed" and "plain"."""
    with initialize_config_module("conf", version_base="1.3"):
        config = resolve(compose("config", overrides))
    task = build(config["task"], Context(device=device))
    algorithm = build(config["algorithm"])

    def taking(name: str, take: Take) -> Contender:
        with torch.no_grad():
            start = take(first(task, algorithm, 0), FIRST).standing

        @torch.no_grad()
        def work() -> torch.Tensor:
            s = take(start, steps).standing
            return torch.cat([s.state.x.flatten(), s.state.y.flatten()])

        return in_process(name, work, device=device)

    return [
        taking("replayed", Replayed(task, algorithm, 0)),
        taking("plain", take_plainly(task, algorithm, 0)),
    ]


def compare(options: Namespace) -> Timing:
    """Every case; raises BadSetting where there is no GPU."""
    if not torch.cuda.is_available():
        raise BadSetting("replayed: only CUDA has such graphs, and torch finds no GPU here")
    device, lines = device_for_timing(options.device), []
    for name, overrides in list(CASES.items())[: options.cases]:
        checked = check_against_first(contenders(overrides, options.steps, device), 0.0)
        lines += take_turns(name, checked, options.repeats)
    title = f"{options.steps} steps with replayed answers, float32"
    return Timing(title, lines, device.type)


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--steps", type=positive, default=5, help="in a turn (%(default)s)")
    parser.add_argument(
        "--cases", type=positive, default=len(CASES), help="the first so many (%(default)s)"
    )
    parser.add_argument("--device", choices=["cuda"], default="cuda", help="only CUDA has graphs")


COMPARISON = Comparison(compare, add_options, smoke={"steps": 1, "cases": 1}, repeats=7)
