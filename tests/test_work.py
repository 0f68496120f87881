"""Work towards a goal: counted exactly, measured often enough, ended where it is said."""

import math
from itertools import pairwise
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from bench.core.algorithm import Algorithm
from bench.core.draw import Draw
from bench.core.oracle import Oracle
from bench.core.settings import BadSetting
from bench.core.task import Task
from bench.core.work import Ended, Goal, Limit, work_to_goal

FAR = Limit("calls", 1000, 60.0)


class State(NamedTuple):
    x: Tensor
    y: Tensor


def method(calls: int = 1, factor: float = 1.0) -> Algorithm:
    """So many gradients of f at each step, and x times a factor."""

    def step(o: Oracle, s: State, draw: Draw) -> tuple[State, dict[str, Tensor]]:
        for _ in range(calls):
            o.f_y(s.x, s.y, draw.f(8))
        return State((s.x + 1) * factor, s.y), {}

    return Algorithm(State, step)


def made(task: Task, value: float | None, limit: Limit = FAR, **settings: float) -> Ended:
    algorithm = method(**settings)  # type: ignore[arg-type]
    return work_to_goal(task, algorithm, 0, Goal("x_0", value), limit)


@pytest.fixture
def counting(task: Task, monkeypatch: pytest.MonkeyPatch) -> tuple[Task, list[int]]:
    """A task whose metric is minus the number of steps, and the steps at which it is measured."""
    looks: list[int] = []

    def evaluate(x: Tensor, y: Tensor, step: int) -> dict[str, Tensor]:
        looks.append(step)
        return {"x_0": -x[0]}

    object.__setattr__(task, "evaluate", evaluate)
    return task, looks


def test_the_goal_is_found_at_the_first_measurement_behind_it(
    counting: tuple[Task, list[int]],
) -> None:
    task, looks = counting
    end = made(task, -100.0)
    assert end.status == "reached"
    assert 100 <= end.steps <= 106
    assert end.calls == {"grad_f": end.steps}
    assert end.samples == 8 * end.steps
    assert looks[0] == 0
    assert looks[-1] == end.steps
    assert all(b <= 1.05 * a + 1 for a, b in pairwise(looks))
    assert len(looks) < 60


def test_without_a_goal_the_work_doubles_between_measurements(
    counting: tuple[Task, list[int]],
) -> None:
    task, looks = counting
    assert made(task, None, Limit("calls", 100, 60.0)).steps == 100
    assert looks == [0, 1, 2, 4, 8, 16, 32, 64, 100]


def test_a_share_is_compared_as_one_minus_it(counting: tuple[Task, list[int]]) -> None:
    """The metric falls by one a step, so that one minus it rises."""
    task = counting[0]
    plain = work_to_goal(task, method(), 0, Goal("x_0", -3.0), FAR)
    share = work_to_goal(task, method(), 0, Goal("x_0", 1.0, share=True), FAR)
    never = work_to_goal(task, method(), 0, Goal("x_0", 0.5, share=True), Limit("calls", 9, 60.0))
    assert (plain.status, plain.steps, plain.value) == ("reached", 3, -3.0)
    assert (share.status, share.steps, share.value) == ("reached", 0, 1.0)
    assert (never.status, never.value) == ("limit", 10.0)


def test_a_start_at_the_goal_takes_no_work(counting: tuple[Task, list[int]]) -> None:
    end = made(counting[0], 0.0)
    assert (end.status, end.steps, end.calls, end.samples) == ("reached", 0, {}, 0)


@pytest.mark.parametrize(
    ("limit", "calls", "steps"),
    [
        (Limit("calls", 30, 60.0), 1, 30),
        (Limit("calls", 31, 60.0), 4, 8),  # the step that comes to the limit is taken whole
        (Limit("samples", 80, 60.0), 1, 10),
        (Limit("rounds", 7, 60.0), 5, 7),
    ],
)
def test_a_run_ends_at_its_limit(
    counting: tuple[Task, list[int]], limit: Limit, calls: int, steps: int
) -> None:
    end = made(counting[0], None, limit, calls=calls)
    assert (end.status, end.reason, end.steps, end.value) == ("limit", None, steps, -steps)


def test_steps_alone_are_timed_and_bounded(counting: tuple[Task, list[int]]) -> None:
    ticks = iter(range(10**6))
    limit = Limit("calls", 10**6, 20.0)
    end = work_to_goal(
        counting[0], method(), 0, Goal("x_0", None), limit, cpu=lambda: float(next(ticks))
    )
    assert (end.status, end.reason) == ("limit", "20 CPU seconds")
    assert end.cpu_seconds == end.steps == 20  # a second for each step, none for a measurement


def test_what_is_not_finite_has_diverged(counting: tuple[Task, list[int]]) -> None:
    end = made(counting[0], None, factor=1e200)
    assert end.status == "diverged"
    assert str(end.reason).startswith("x or y is not finite at step")
    assert not math.isfinite(end.value)


def test_wrong_goals_and_steps_without_work_are_refused(counting: tuple[Task, list[int]]) -> None:
    with pytest.raises(BadSetting, match=r"metric=gone: no such setting; there is .*x_0"):
        work_to_goal(counting[0], method(), 0, Goal("gone", 0.0), FAR)
    with pytest.raises(BadSetting, match="its steps make no calls"):
        made(counting[0], None, calls=0)


def test_gradients_are_off_outside_of_the_oracle(counting: tuple[Task, list[int]]) -> None:
    made(counting[0], -3.0)
    assert torch.is_grad_enabled()
