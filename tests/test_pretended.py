"""Every task and method on a device that is not the host's, without a GPU (tests.pretended).

A tensor that was left on the host is found on a GPU alone, and there it would cost minutes of one.
"""

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from bench.compiled import joined
from bench.compiled.batched import Lane
from bench.core.loop import advance, first
from bench.core.settings import BadSetting, build
from bench.core.task import Context
from bench.runs import launch, machine
from bench.runs.files import read_json
from bench.runs.history import read_rows
from scripts.gpu import counting
from scripts.gpu.work import pairs
from tests.composed import composed
from tests.pretended import DEVICE, blocking, pretended

STEPS = 2
LANES = 2
OWN = {"seconds", "cpu_seconds", "memory", "digest"}  # of a row, what differs from run to run


def without_files(overrides: list[str]) -> list[str]:
    """The settings on data that are made up, where the task's own are files."""
    task = next(o for o in overrides if o.startswith("task="))
    small = counting.SMALL.get(task.partition("=")[2], [])
    names = {o.partition("=")[0] for o in small}
    return [*(o for o in overrides if o.partition("=")[0] not in names), *small]


TASKS, ALGORITHMS = (
    {name: without_files(settings) for name, settings in pairs(check).items()}
    for check in ("tasks", "algorithms")
)
JOINED = {
    f"{artifact} {label}": settings
    for artifact in ("bome/table2", "f2obo/fig1")
    for label, settings in counting.rows(artifact)
    if label.startswith("paper ") and "," not in label  # each method once
}


def made(overrides: list[str], device: torch.device, seed: int = 0) -> Lane:
    """Task and algorithm in double precision on the device."""
    config = launch.resolve(composed(*overrides))
    context = Context(device=device, dtype=torch.float64, seed=seed)
    return Lane(build(config["task"], context), build(config["algorithm"]), seed, {})


@pytest.mark.parametrize("method", ALGORITHMS)
def test_a_method_leaves_nothing_on_the_host(method: str) -> None:
    with pretended() as device, torch.no_grad():
        try:
            task, algorithm, seed, _ = made(ALGORITHMS[method], device)
        except BadSetting as reason:
            pytest.skip(str(reason))  # of another project, which is not installed
        s = first(task, algorithm, seed)
        for _ in range(STEPS):
            s = advance(task, algorithm, seed, s)
        assert s.state.x.device == s.state.y.device == DEVICE


@contextmanager
def machine_with_it() -> Iterator[None]:
    """This machine, as if it had the device."""
    with ExitStack() as within:
        for name, value in {
            "is_available": True, "synchronize": None, "max_memory_allocated": 0,
            "get_device_name": "none",
        }.items():  # fmt: skip
            within.enter_context(mock.patch.object(torch.cuda, name, return_value=value))
        within.enter_context(mock.patch.object(machine, "settle_cuda"))
        within.enter_context(pretended())
        yield


@pytest.mark.filterwarnings("ignore:Sparse")  # as settle_cuda has it
@pytest.mark.parametrize("task", TASKS)
def test_a_run_there_is_the_run_on_the_cpu(task: str, tmp_path: Path) -> None:
    """Its history, and its end after it has gone on from its checkpoint."""
    fixed = [*TASKS[task], "run.dtype=float64", "run.every=1", "run.threads=1", "run.compile=false"]

    def performed(name: str, steps: int) -> list[dict[str, Any]]:
        placed = [f"run.root={tmp_path / name}", f"run.device={name}", f"run.steps={steps}"]
        config = launch.resolve(composed(*fixed, *placed))
        assert launch.perform(config, quiet=True) == 0
        folder = launch.place(config)
        assert read_json(folder.path / "environment.json")["device"] == name
        return read_rows(folder.path / "history.jsonl")

    here = performed("cpu", 2 * STEPS)
    with machine_with_it():
        performed("cuda", STEPS)
        there = performed("cuda", 2 * STEPS)
    assert len(here) == len(there)
    for one, other in zip(here, there, strict=True):
        assert comparable(one) == pytest.approx(comparable(other), rel=1e-9, abs=1e-12, nan_ok=True)


def comparable(found: dict[str, Any]) -> dict[str, Any]:
    """The row without what differs from run to run; NaN, which a file has as null, is NaN again."""
    kept = {key: value for key, value in found.items() if key not in OWN}
    return {key: math.nan if value is None else value for key, value in kept.items()}


@pytest.mark.parametrize("case", JOINED)
def test_lanes_that_share_their_passes_are_there_too(case: str) -> None:
    with mock.patch.object(joined, "in_a_lane", pretended), pretended() as device:
        lanes = [made(JOINED[case], device, seed) for seed in range(LANES)]
        assert joined.can_join(lanes[0].task)
        with torch.no_grad():
            starts = [first(lane.task, lane.algorithm, lane.seed) for lane in lanes]
            for s in joined.Joined(lanes)(starts, 1):
                assert s.state.x.device == s.state.y.device == DEVICE


COPYING = {
    label: settings
    for label, settings in counting.rows("stocbio/fig2_fc100")
    if label in ("code FO-ITD-BiO", "paper MAML")
}


@pytest.mark.parametrize("case", COPYING)
def test_a_step_of_drawn_numbers_makes_no_copy_that_waits(case: str) -> None:
    """tests/test_waits.py, on the CPU, cannot tell a copy `to` another tensor's device."""
    with pretended() as device, torch.no_grad():
        lane = made(COPYING[case], device)
        at = first(lane.task, lane.algorithm, lane.seed)
        blocking.clear()
        for _ in range(STEPS):
            at = advance(lane.task, lane.algorithm, lane.seed, at)
    assert blocking == []


REFUSED = {
    "a sum": lambda there, here: there + here,
    "a product": lambda there, here: there @ here,
    "a number among tensors": lambda there, here: torch.stack([there.sum(), here.sum()]),
    "numbers of the host": lambda there, here: here[there.argsort()],
    "numpy": lambda there, here: there.numpy(),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_gpu_refuses_is_refused(case: str) -> None:
    with pretended() as device:
        there = torch.ones(3, device=device)
        with pytest.raises((RuntimeError, TypeError), match=r"of the (host|device)"):
            REFUSED[case](there, torch.ones(3))


def test_what_a_gpu_takes_is_taken() -> None:
    with pretended() as device:
        there = torch.tensor([3.0, 1.0, 2.0], device=device)
        assert there.is_cuda
        assert not torch.ones(3).is_cuda
        assert (there * torch.tensor(2.0)).tolist() == [6.0, 2.0, 4.0]
        assert there[torch.tensor([1])].cpu().numpy().tolist() == [1.0]
        there[[0, 1]] = 5.0
        assert there.sum().item() == 12.0
        blocking.clear()
        assert torch.ones(3).to(device, non_blocking=True).device == there.device == DEVICE
        assert blocking == []
        assert torch.ones(3).to(there).device == torch.ones(3).to(device).device == DEVICE
        assert blocking == ["_to_copy to the device"] * 2
        leaf = there.clone().requires_grad_()
        (slope,) = torch.autograd.grad(leaf.square().sum(), leaf)
        assert slope.tolist() == [10.0, 10.0, 4.0]
        assert torch.func.vmap(lambda row: row.sum())(there.view(3, 1)).device == DEVICE
