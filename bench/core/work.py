"""How much work a run needs to reach a target: calls of the oracle, samples, CPU seconds."""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import torch

from bench.core.algorithm import Algorithm
from bench.core.loop import (
    Standing,
    add_to_tally,
    advance,
    divergence_of,
    enter_in_ledger,
    first,
    row,
)
from bench.core.settings import BadSetting, unknown_setting
from bench.core.task import Task

Unit = Literal["calls", "samples", "rounds"]
GROWTH = 1.05  # from one measurement to the next, so that work to a target is known to 5%
DOUBLED = 2.0  # the same where there is no target, and the last measurement alone counts


class Goal(NamedTuple):
    """A metric of the task's rows, and the value that it is to reach: to be at most.

    value: None: there is nothing to reach, and the run goes on to its limit. share: the metric is a
    share that is to become large, such as an accuracy, and one minus it is looked at.
    """

    metric: str
    value: float | None
    share: bool = False

    def of(self, values: Mapping[str, Any]) -> float:
        """What is to become small, in a row of the task; raises BadSetting if the row lacks it."""
        if self.metric not in values:
            raise unknown_setting("metric", self.metric, values, self.metric)
        found = float(values[self.metric])
        return 1 - found if self.share else found


class Limit(NamedTuple):
    """Where a run that does not reach its goal ends: `most` of a unit of work, or so many CPU
    seconds. A round is a step."""

    unit: Unit
    most: int
    cpu_seconds: float


class Ended(NamedTuple):
    """How a run ended.

    status: "reached" its goal, came to its "limit", or "diverged" and why. value: of the goal's
    metric at the last measurement. calls, by the oracle's keys, samples and cpu_seconds are what
    all steps up to there took.
    """

    status: Literal["reached", "limit", "diverged"]
    reason: str | None
    value: float
    steps: int
    calls: Counter[str]
    samples: int
    cpu_seconds: float


def work_of(s: Standing, unit: Unit) -> int:
    """The work that a run has done: all calls of the oracle, all samples, or all rounds."""
    if unit == "rounds":
        return s.step
    return (s.calls if unit == "calls" else s.samples).total()


def work_to_goal(
    task: Task,
    algorithm: Algorithm,
    seed: int,
    goal: Goal,
    limit: Limit,
    cpu: Callable[[], float] = time.process_time,
) -> Ended:
    """Take steps until the goal is reached, or to the limit.

    The run is measured before its first step, and whenever its work has grown by a twentieth
    since, or has doubled where the goal has no value, at least after each step that does more. The
    clock runs in steps only. A run whose x, y or loss is not finite has diverged. Raises BadSetting
    for a metric that the task does not have, and whatever the method raises.

    cpu: the clock of CPU seconds.
    """
    growth = DOUBLED if goal.value is None else GROWTH
    with torch.no_grad():
        s = first(task, algorithm, seed)
        values = row(task, s)
        while True:
            value = goal.of(values)
            if goal.value is not None and value <= goal.value:
                return ended(s, "reached", None, value)
            done = work_of(s, limit.unit)
            if done >= limit.most:
                return ended(s, "limit", None, value)
            if s.cpu_seconds >= limit.cpu_seconds:
                reason = f"{limit.cpu_seconds:g} CPU seconds"
                return ended(s, "limit", reason, value)
            look = min(max(growth * done, done + 1), limit.most)
            before = s.step
            while work_of(s, limit.unit) < look and s.cpu_seconds < limit.cpu_seconds:
                s = take_step(task, algorithm, seed, s, cpu)
                if not work_of(s, limit.unit) and s.step - before > limit.most:
                    raise BadSetting(f"algorithm: its steps make no {limit.unit}")
            values = row(task, s)
            wrong = divergence_of(task, s, values)
            if wrong:
                return ended(s, "diverged", wrong, goal.of(values))


def take_step(
    task: Task, algorithm: Algorithm, seed: int, s: Standing, cpu: Callable[[], float]
) -> Standing:
    """The standing after one more step, whose CPU seconds are counted."""
    s = add_to_tally(task, s)
    began = cpu()
    after = advance(task, algorithm, seed, s)
    spent = s.cpu_seconds + cpu() - began
    return enter_in_ledger(task, after._replace(cpu_seconds=spent))


def ended(
    s: Standing, status: Literal["reached", "limit", "diverged"], reason: str | None, value: float
) -> Ended:
    """How a run ended at this standing."""
    return Ended(status, reason, value, s.step, s.calls, s.samples.total(), s.cpu_seconds)
