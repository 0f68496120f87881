"""How much work a run needs to reach a target: calls of the oracle, samples, CPU seconds."""

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

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
from bench.core.together import warm_up

Unit = Literal["calls", "samples", "rounds"]
GROWTH = 1.05  # from one measurement to the next, so that work to a target is known to 5%
DOUBLED = 2.0  # the same where there is no target, and the last measurement alone counts
FOURFOLD = 4.0  # the same where a measurement takes as long as many steps
# Steps that are too large touch a goal early and explode later: so a goal has to last
HELD = 2.0  # until the work is so many times as much,
LEAST = 0.1  # and up to this share of the limit at least


class Goal(NamedTuple):
    """A metric of the task's rows, and the value that it is to reach: to be at most.

    value: the value to reach. Where it is None, the run goes on to its limit. share: whether the
    metric is a share that is to become large, such as an accuracy; then one minus it is looked at.
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
    most: float
    cpu_seconds: float


class Ended(NamedTuple):
    """How a run ended.

    status: "reached" its goal and stayed there, came to its "limit", or "diverged" and why. value:
    of the goal's metric where it was reached, or at the last measurement. steps, calls, by the
    oracle's keys, samples and cpu_seconds are what all steps up to there took.
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


def lasts_until(reached: Ended, limit: Limit) -> float:
    """Up to which work a goal has to last that was reached there (`HELD`, `LEAST`)."""
    of = {"rounds": reached.steps, "calls": reached.calls.total(), "samples": reached.samples}
    done = of[limit.unit]
    return max(HELD * done, LEAST * limit.most) if done else 0.0


def work_to_goal(
    task: Task,
    algorithm: Algorithm,
    seed: int,
    goal: Goal,
    limit: Limit,
    cpu: Callable[[], float] = time.process_time,
    dear: bool = False,
) -> Ended:
    """Take steps until the goal is reached and has lasted, or to the limit.

    The run is looked at before its first step, and then after each step with which its work has
    grown by a twentieth since the last look. Where the goal has no value, it is looked at after
    each step with which its work has doubled. The clock runs in steps only. A run whose x, y or
    loss is not finite has diverged. Raises BadSetting for a metric that the task does not have, and
    whatever the method raises.

    The goal is reached at the first look of those that are all at it, up to twice its work and a
    tenth of the limit (`lasts_until`). A run that comes to its goal before the limit may go on
    behind it for as long as that takes, or for as many CPU seconds again.

    cpu: the clock of CPU seconds. dear: a measurement takes as long as many steps. Then a look only
    keeps where the run is. The run is measured when its work is four times as much, at the end of
    what the goal has to last, and where the run ends; once the goal is reached, `first_reached`
    finds out at which look it was. A goal that does not last for four times its work may be missed
    between two measurements. A measurement that is not a number says nothing: its solver did not
    succeed, and the run goes on.
    """
    growth = DOUBLED if goal.value is None else GROWTH
    with torch.no_grad():
        s = first(task, algorithm, seed)
        warm_up(task)
        since, look = list[Look](), 0.0  # since the last measurement; the work at the next one
        there: Ended | None = None  # where the run came to its goal, and has been since
        end, value = limit, math.nan
        while True:
            done = work_of(s, limit.unit)
            if dear and s.step and (wrong := divergence_of(task, s, {})):
                return ended(s, "diverged", wrong, math.nan)
            since.append(Look(s.state.x, s.state.y, ended(s, "reached", None, math.nan)))
            if done >= look or is_over(s, end):
                values = row(task, s)
                found = goal.of(values)
                unknown = dear and math.isnan(found)
                value = value if unknown else found
                wrong = divergence_of(task, s, values) if s.step and not dear else None
                if wrong:
                    return ended(s, "diverged", wrong, value)
                if is_reached(goal, found):
                    there = there or first_reached(task, goal, since, found)
                    if done >= lasts_until(there, limit):
                        return there
                elif not unknown:
                    there = None
                end = limit if there is None else lengthened(limit, there)
                if is_over(s, end):
                    short = done < end.most
                    reason = f"{end.cpu_seconds:g} CPU seconds" if short else None
                    return ended(s, "limit", reason, value)
                since, look = since if unknown else [], FOURFOLD * done if dear else 0.0
                if there:
                    look = min(look, lasts_until(there, limit))
            s = go_on(task, algorithm, seed, s, end, growth, cpu)


def is_over(s: Standing, limit: Limit) -> bool:
    """Whether a run has come to its limit."""
    return work_of(s, limit.unit) >= limit.most or s.cpu_seconds >= limit.cpu_seconds


def lengthened(limit: Limit, reached: Ended) -> Limit:
    """Where a run ends that has come to its goal, if it does not last."""
    most = max(limit.most, lasts_until(reached, limit))
    return limit._replace(most=most, cpu_seconds=HELD * limit.cpu_seconds)


class Look(NamedTuple):
    """Where a run was at a look, and what it had taken; its value is not measured."""

    x: Tensor
    y: Tensor
    taken: Ended


def is_reached(goal: Goal, value: float) -> bool:
    """Whether this value is at the goal or below it; no value is where the goal has none."""
    return goal.value is not None and value <= goal.value


def first_reached(task: Task, goal: Goal, since: Sequence[Look], value: float) -> Ended:
    """How a run ended whose goal is reached, by `value`, at the last of these looks: at the first
    look where it is reached, which is found by halving. At all later ones it has to be, too."""
    before, reached = -1, len(since) - 1
    while reached - before > 1:
        middle = (before + reached) // 2
        look = since[middle]
        there = goal.of(task.evaluate(look.x, look.y, look.taken.steps))
        if is_reached(goal, there):
            reached, value = middle, there
        else:
            before = middle
    return since[reached].taken._replace(value=value)


def go_on(
    task: Task,
    algorithm: Algorithm,
    seed: int,
    s: Standing,
    limit: Limit,
    growth: float,
    cpu: Callable[[], float],
) -> Standing:
    """The standing at the next look: when the work has grown by this factor, or at the limit.
    Raises BadSetting where steps make no work."""
    done, before = work_of(s, limit.unit), s.step
    look = min(max(growth * done, done + 1), limit.most)
    while work_of(s, limit.unit) < look and s.cpu_seconds < limit.cpu_seconds:
        s = take_step(task, algorithm, seed, s, cpu)
        if not work_of(s, limit.unit) and s.step - before > limit.most:
            raise BadSetting(f"algorithm: its steps make no {limit.unit}")
    return s


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
