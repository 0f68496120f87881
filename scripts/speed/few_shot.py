"""Few-shot learning: episodes together against one after the other, and memory by inner steps.

    uv run python -m scripts.speed few_shot

Random images of FC100's form, 5-way 5-shot, 32 episodes, float32, on a GPU where there is one. What
is timed is the adaptation of y by inner steps: of all episodes by torch.func.vmap, and in a loop
over them with the very same functions. Before they are timed, both must end at the same y to 1e-10
in double precision. MB is the most memory that they have in use. Below the table is the most memory
that one outer step has in use, its inputs aside, by the number T of its inner steps.
"""

import gc
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from algorithms.bilevel.aid_bio import aid_bio
from algorithms.bilevel.itd import itd
from algorithms.meta.maml import maml
from bench.core.draw import Draw, generator
from bench.core.oracle import Oracle
from bench.core.task import Context
from bench.numerics.descent import gd
from scripts.speed.harness import (
    Comparison,
    Contender,
    Result,
    Timing,
    check_against_first,
    device_for_timing,
    in_process,
    positive,
    take_turns,
)
from tasks.data.classes import Classes
from tasks.few_shot import few_shot

FILTERS = 32
T = {"head": 10, "network": 3}  # inner steps: ANIL's and MAML's
# of |together - loop| / |loop| in double precision, as tests/test_few_shot.py has it: in single
# precision rounding decides which way a ReLU at its kink goes, which is worth some 1e-3
TOLERANCE = 1e-10


def episodes_task(
    adapt: str,
    episodes: int,
    chunk: int | None,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
) -> Any:
    """The task itself, on random images in place of a data set's.

    adapt: what the inner steps change, "head" or "network". chunk: how many episodes are taken
    together; None: all.
    """
    rng = torch.Generator().manual_seed(0)
    parts = {
        part: torch.randint(0, 256, (10, 20, 3, 32, 32), generator=rng, dtype=torch.uint8)
        for part in ("train", "val", "test")
    }
    with mock.patch("tasks.data.classes.load", return_value=Classes(parts, {})):
        settings: Any = {"adapt": adapt, "chunk": chunk, "filters": FILTERS, "episodes": episodes}
        return few_shot(Context(device=device, dtype=dtype), heads="drawn", **settings)


def adaptations(adapt: str, episodes: int, device: torch.device) -> list[Contender]:
    """T inner steps of all episodes: together, and in a loop; their results are those of the same
    work in double precision."""
    timed, exact = (
        adapting(adapt, episodes, device, dtype) for dtype in (torch.float32, torch.float64)
    )
    return [
        replace(
            in_process(name, work, compute=partial(result_of, exact[name]), device=device),
            facts={"MB": peak_mb(work, device)},
        )
        for name, work in timed.items()
    ]


def result_of(work: Callable[[], Tensor]) -> Result:
    """The tensor that a work returns, as its result."""
    return Result(work(), {})


def adapting(
    adapt: str, episodes: int, device: torch.device, dtype: torch.dtype
) -> dict[str, Callable[[], Tensor]]:
    """T inner steps of all episodes, as work: "together", and in a "loop"."""
    task = episodes_task(adapt, episodes, episodes, device, dtype)
    x, y_0 = task.init(generator())
    batch = Draw(task, 0, 0).g()
    each = [batch.part(i, i + 1) for i in range(episodes)]
    if adapt == "head":  # what is compared is the adaptation: every image is embedded before
        with torch.no_grad():
            features = task.inner.prepare(x, batch, batch)[1].features
        each = [e._replace(features=features[i : i + 1]) for i, e in enumerate(each)]
        batch = batch._replace(features=features)

    def adapt_to(y: Tensor, batch: Any) -> Tensor:
        for _ in range(T[adapt]):
            leaf = y.detach().requires_grad_()
            with torch.enable_grad():
                loss = task.lower(x, leaf, batch)
            y = y - 0.1 * torch.autograd.grad(loss, leaf)[0]
        return y

    def together() -> Tensor:
        return adapt_to(y_0, batch)

    def loop() -> Tensor:
        return torch.cat([adapt_to(y_0[i : i + 1], each[i]) for i in range(episodes)])

    return {"together": together, "loop": loop}


def peak_mb(work: Callable[[], Any], device: torch.device) -> float:
    """The most memory in use during the work beyond what was before it, in MB."""
    work()  # a first time allocates what later ones find
    gc.collect()
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        work()
        return (torch.cuda.max_memory_allocated(device) - before) / 2**20
    cpu = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=cpu, profile_memory=True, acc_events=True) as profile:
        work()
    results: Any = profile.profiler
    events = results.kineto_results.events()
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    return max(accumulate(size for _, size in changes)) / 2**20


def peaks_by_inner_steps(
    inner_steps: list[int], episodes: int, device: torch.device
) -> dict[str, float]:
    """The peak MB of an outer step, for each method and number of inner steps."""
    task = episodes_task("head", episodes, None, device)
    methods: dict[str, Callable[[int], Any]] = {
        "AID-BiO": partial(aid_bio, gd(), 1e-3, 0.1, N=5),
        "ITD-BiO": partial(itd, gd(), 1e-3, 0.1),
        "ANIL": partial(maml, gd(), 1e-3, 0.1),
    }
    found = {}
    for name, make in methods.items():
        for steps in inner_steps:
            step = outer_step(task, make(steps), steps)
            found[f"peak MB of an outer step, {name}, T={steps}"] = peak_mb(step, device)
    return found


def outer_step(task: Any, algorithm: Any, number: int) -> Callable[[], None]:
    """A step of the algorithm from its start, on the episodes that the step of this number has."""
    state = algorithm.init(*task.init(generator()))
    draw = Draw(task, 0, number)

    def step() -> None:
        algorithm.step(Oracle(task), state, draw)

    return step


def compare(options: Namespace) -> Timing:
    """Adapting the head and the whole network; then the peaks of outer steps.

    Raises BadSetting where the device is not there.
    """
    device, episodes = device_for_timing(options.device), options.episodes
    lines = []
    with torch.no_grad():
        for adapt in ("head", "network"):
            checked = check_against_first(adaptations(adapt, episodes, device), TOLERANCE)
            lines += take_turns(f"adapting the {adapt}, T={T[adapt]}", checked, options.repeats)
        peaks = peaks_by_inner_steps(options.inner_steps, episodes, device)
    title = f"Few-shot learning, {episodes} episodes of FC100's form, float32"
    return Timing(title, lines, device.type, peaks)


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--episodes", type=positive, default=32, help="in a batch (%(default)s)")
    parser.add_argument(
        "--inner-steps",
        type=positive,
        nargs="+",
        default=[1, 5, 10, 20, 50],
        metavar="T",
        help="of the outer steps whose memory is measured (%(default)s)",
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")


COMPARISON = Comparison(compare, add_options, smoke={"episodes": 2, "inner_steps": [1, 5]})
