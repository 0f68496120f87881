"""The timer of every comparison: contenders are checked, then take turns at the same work."""

import gc
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bench.reproduce.speed import SpeedLine, speed_ratio
from bench.runs.machine import choose_device, settle_cuda
from scripts.speed.clock import time_work

CPU = torch.device("cpu")


def device_for_timing(wanted: str) -> torch.device:
    """The device of an option --device, with the settings of CUDA that runs have.

    Raises BadSetting where the device is not there.
    """
    device = choose_device(wanted)
    if device.type == "cuda":
        settle_cuda()
    return device


class Disagreement(Exception):
    """Contenders do not compute the same, so their times mean nothing; one line says which."""


class Result(NamedTuple):
    """What a contender computes, and what is known of the way there."""

    value: Tensor  # of any shape, but of as many numbers for all contenders of a method
    facts: Mapping[str, Any]  # further columns of the contender's line


@dataclass(frozen=True)
class Contender:
    """One implementation of a method.

    take_turn() does the work once and returns its seconds. compute() does it once, untimed and
    perhaps slower, and returns the result that contenders are compared by. An excluded contender
    is not timed: its note says why.
    """

    name: str
    take_turn: Callable[[], float]
    compute: Callable[[], Result]
    note: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    excluded: bool = False


@dataclass(frozen=True)
class Timing:
    """What a comparison returns: a table's title and lines, and facts that belong to no line."""

    title: str
    lines: list[SpeedLine]
    device: str = "cpu"
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Comparison:
    """What the file of a comparison offers to the command line.

    repeats: how many timed turns there are by default. smoke: the values of its options with which
    it ends soonest. packages: options of `uv run` that install what it compares with.
    """

    compare: Callable[[Namespace], Timing]
    add_options: Callable[[ArgumentParser], None]
    smoke: Mapping[str, Any]
    repeats: int = 7
    packages: str = ""


def in_process(
    name: str,
    work: Callable[[], Any],
    *,
    compute: Callable[[], Result] | None = None,
    note: str = "",
    device: torch.device = CPU,
) -> Contender:
    """A contender whose work is a call in this process.

    Without `compute`, the tensor that the work returns is its result.
    """

    def take_turn() -> float:
        return time_work(work, device)[0]

    def compute_by_work() -> Result:
        return Result(work(), {})

    return Contender(name, take_turn, compute or compute_by_work, note)


def check_against_first(contenders: Sequence[Contender], tolerance: float) -> list[Contender]:
    """The same contenders, each with its error: |result - the first one's| / |the first one's|.

    A contender that raises, or whose error is above the tolerance, is excluded. What the first
    contender raises is raised: without it there is nothing to compare with.
    """
    first = contenders[0].compute()
    reference = first.value.detach().cpu().double().flatten()
    checked = []
    for contender in contenders:
        try:
            result = first if contender is contenders[0] else contender.compute()
        except Exception as error:
            checked.append(exclude(contender, describe_failure(error)))
            continue
        apart = result.value.detach().cpu().double().flatten() - reference
        distance = float(apart.norm() / reference.norm())
        facts = {**contender.facts, "error": distance, **result.facts}
        contender = replace(contender, facts=facts)
        if not distance <= tolerance:  # an error that is no number is too large as well
            contender = exclude(contender, f"disagrees, not timed; {contender.note}")
        checked.append(contender)
    return checked


def exclude(contender: Contender, why: str) -> Contender:
    """The contender as one that is not timed."""
    return replace(contender, note=why, excluded=True)


def describe_failure(error: Exception) -> str:
    """A note for a contender that has raised this."""
    reason = " ".join(str(error).split())[:200]
    return f"failed, {type(error).__name__}: {reason}"


def take_turns(
    method: str, contenders: Sequence[Contender], repeats: int, *, warm_up: bool = True
) -> list[SpeedLine]:
    """A line for each contender, with its seconds turn by turn.

    In each of `repeats` turns every contender does its work once, in order; a turn before them
    warms up. The first contender is ours. Where another one raises, its line has no seconds and
    says so; what ours raises is raised.
    """
    seconds: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    failures: dict[str, str] = {}
    for turn in range(repeats + warm_up):
        for contender in contenders:
            if contender.excluded or contender.name in failures:
                continue
            gc.collect()  # nobody pays for another's garbage
            try:
                spent = contender.take_turn()
            except Exception as error:
                if contender is contenders[0]:
                    raise
                failures[contender.name] = describe_failure(error)
                seconds[contender.name] = []
                continue
            if turn >= warm_up:
                seconds[contender.name].append(spent)
    ours, lines = seconds[contenders[0].name], []
    for contender in contenders:
        taken = seconds[contender.name]
        note = failures.get(contender.name, contender.note)
        more: dict[str, Any] = {"ratio": speed_ratio(ours, taken).value if taken else None}
        more |= contender.facts
        lines.append(
            SpeedLine(method=method, name=contender.name, seconds=taken, note=note, **more)
        )
    return lines


def add_facts(line: SpeedLine, **facts: Any) -> SpeedLine:
    """The line with these columns as well, or with another note."""
    return line.model_copy(update=facts)


def positive(text: str) -> int:
    """A number of things on the command line, at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text}: write a whole number, at least 1")
    return int(text)
