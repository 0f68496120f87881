"""Work towards a goal: counted exactly, measured often enough, ended where it is said."""

import math
from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from bench.core.algorithm import Algorithm
from bench.core.draw import Draw
from bench.core.oracle import Oracle
from bench.core.settings import BadSetting
from bench.core.task import Task
from bench.core.work import Ended, Goal, Limit, Unit, work_to_goal

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
    assert end.steps in looks
    assert 2 * end.steps <= looks[-1] <= 2.1 * end.steps  # it has lasted
    assert all(b <= 1.05 * a + 1 for a, b in pairwise(looks))
    assert len(looks) < 75


Values = Callable[[int], float]


def falls(step: int) -> float:
    """At a goal of -10 from the tenth step on."""
    return -float(step)


def touches(step: int) -> float:
    """At the goal for four steps, and again from the sixtieth on."""
    return -float(step) if 10 <= step < 14 or step >= 60 else 0.0


def returns_late(step: int) -> float:
    """At the goal for as long as it has to last, and never again."""
    return -float(step) if 10 <= step <= 21 else 0.0


def leaves_early(step: int) -> float:
    """At the goal not quite as long as it has to last."""
    return -float(step) if 10 <= step <= 19 else 0.0


@pytest.mark.parametrize(
    ("values", "most", "steps"),
    [
        (falls, 100, 10),
        (touches, 100, 60),  # lasts to step 120, behind the limit
        (touches, 59, None),
        (returns_late, 100, 10),
        (leaves_early, 100, None),
        (returns_late, 400, None),  # a tenth of the limit is more than twice its work
        (falls, 10, 10),
        (falls, 9, None),
    ],
)
@pytest.mark.parametrize("dear", [False, True])
@pytest.mark.parametrize(("unit", "each"), [("calls", 3), ("samples", 24), ("rounds", 1)])
def test_a_goal_has_to_last(
    task: Task, values: Values, most: int, steps: int | None, dear: bool, unit: Unit, each: int
) -> None:
    """Until the work has doubled, and up to a tenth of the limit at least. each: the work of a step
    that has three calls."""
    measure(task, values)
    limit = Limit(unit, each * most, 60.0)
    end = work_to_goal(task, method(3), 0, Goal("x_0", -10.0), limit, dear=dear)
    assert (end.calls, end.samples) == ({"grad_f": 3 * end.steps}, 24 * end.steps)
    if steps is None:
        assert end.status == "limit"
        assert most <= end.steps <= 1.05 * most + 1
    else:
        assert end.status == "reached"
        assert steps <= end.steps <= 1.05 * steps + 1
        assert end.value == values(end.steps)


def measure(task: Task, values: Values) -> list[int]:
    """Let these be the values of the task's metric; gives the steps at which it is measured."""
    looks: list[int] = []

    def evaluate(x: Tensor, y: Tensor, step: int) -> dict[str, Tensor]:
        looks.append(step)
        return {"x_0": torch.tensor(values(step))}

    object.__setattr__(task, "evaluate", evaluate)
    return looks


def unknown(step: int) -> float:
    """At the goal from the tenth step on, as far as it is known: not from the 25th to the 45th."""
    return math.nan if 25 <= step <= 45 else -float(step)


def test_what_is_not_known_neither_ends_nor_proves_a_dear_goal(task: Task) -> None:
    """The goal has to last to step 30, and is known to have been kept at step 46."""
    looks = measure(task, unknown)
    limit = Limit("calls", 300, 60.0)
    dear, plain = (
        work_to_goal(task, method(), 0, Goal("x_0", -10.0), limit, dear=dear)
        for dear in (True, False)
    )
    assert (dear.status, dear.steps) == ("reached", 10)
    assert 46 <= looks[: looks.index(0, 1)][-1] <= 49
    assert plain.status == "reached"
    assert 46 <= plain.steps <= 49


def test_a_goal_that_is_lost_lengthens_nothing(task: Task) -> None:
    measure(task, touches)
    ticks = iter(range(10**6))
    limit = Limit("calls", 1000, 20.0)
    end = work_to_goal(task, method(), 0, Goal("x_0", -10.0), limit, cpu=lambda: float(next(ticks)))
    assert (end.status, end.reason, end.steps) == ("limit", "20 CPU seconds", 20)


def test_seconds_may_end_a_run_that_holds_its_goal_behind_the_limit(task: Task) -> None:
    """Steps take a second each, and ten from the fiftieth on."""
    measure(task, lambda step: -10.0 if step >= 45 else 0.0)
    times = [second for step in range(60) for second in (0, 1 if step < 50 else 10)]
    ticks = iter(accumulate(times))
    limit = Limit("calls", 50, 60.0)
    end = work_to_goal(task, method(), 0, Goal("x_0", -10.0), limit, cpu=lambda: float(next(ticks)))
    assert (end.status, end.reason, end.steps) == ("limit", "120 CPU seconds", 57)


def test_a_goal_that_lasts_until_the_run_diverges_was_not_reached(task: Task) -> None:
    def step(o: Oracle, s: State, draw: Draw) -> tuple[State, dict[str, Tensor]]:
        o.f_y(s.x, s.y, draw.f(8))
        return State(s.x * torch.nan if s.x[0] > 22.5 else s.x + 1, s.y), {}

    object.__setattr__(task, "evaluate", lambda x, y, step: {"x_0": -x[0]})
    for dear in (False, True):
        goal, limit = Goal("x_0", -12.0), Limit("calls", 100, 60.0)
        end = work_to_goal(task, Algorithm(State, step), 0, goal, limit, dear=dear)
        assert (end.status, end.steps) == ("diverged", 25)  # the look behind step 24
        assert str(end.reason).startswith("x or y is not finite at step 25")


def test_what_a_goal_has_to_last_takes_no_more_than_the_seconds_again(
    counting: tuple[Task, list[int]],
) -> None:
    ticks = iter(range(10**6))
    end = work_to_goal(
        counting[0],
        method(),
        0,
        Goal("x_0", -19.0),
        Limit("calls", 1000, 20.0),
        cpu=lambda: float(next(ticks)),
    )
    assert (end.status, end.reason, end.steps) == ("limit", "40 CPU seconds", 40)


def test_a_dear_measurement_is_made_when_work_is_fourfold_and_then_by_halving(
    counting: tuple[Task, list[int]],
) -> None:
    """The end is the one of a run that is measured at each look, its counts and CPU seconds too,
    although steps were taken past it."""
    task, looks = counting
    ticks = [iter(range(10**6)), iter(range(10**6))]
    plain, dear = (
        work_to_goal(
            task,
            method(3),
            0,
            Goal("x_0", -100.0),
            Limit("calls", 1000, 1000.0),
            cpu=lambda mine=mine: float(next(mine)),  # type: ignore[misc]
            dear=dear,
        )
        for mine, dear in zip(ticks, (False, True))
    )
    assert dear == plain
    assert dear.steps == dear.cpu_seconds
    after = looks[looks.index(0, 1) :]  # what the dear run measured
    assert after[:4] == [0, 1, 4, 16]
    behind = next(k for k, step in enumerate(after) if step >= 100)
    assert all(4 * a <= b <= 4.2 * a for a, b in pairwise(after[1 : behind + 1]))
    assert after[behind] > 2 * dear.steps  # so that it is known to have lasted
    assert len(after) <= behind + 1 + 5  # by halving thirty looks


@pytest.mark.parametrize("steps", range(45))
def test_halving_finds_each_look(counting: tuple[Task, list[int]], steps: int) -> None:
    goal = Goal("x_0", -float(steps))
    ends = [work_to_goal(counting[0], method(), 0, goal, FAR, dear=dear) for dear in (True, False)]
    first, second = (end._replace(cpu_seconds=0.0) for end in ends)
    assert first == second


def test_a_dear_run_is_measured_at_its_limit_and_ends_where_it_diverges(
    counting: tuple[Task, list[int]],
) -> None:
    task, looks = counting
    end = work_to_goal(
        task, method(), 0, Goal("x_0", -1000.0), Limit("calls", 100, 60.0), dear=True
    )
    assert (end.status, end.steps, end.value) == ("limit", 100, -100.0)
    assert looks == [0, 1, 4, 16, 66, 100]  # the first look that is four times as far
    end = work_to_goal(task, method(factor=-1e200), 0, Goal("x_0", -1e300), FAR, dear=True)
    assert end.status == "diverged"


def test_a_dear_run_keeps_its_last_number(task: Task) -> None:
    def evaluate(x: Tensor, y: Tensor, step: int) -> dict[str, Tensor]:
        return {"x_0": -x[0] * (torch.nan if step > 40 else 1)}

    object.__setattr__(task, "evaluate", evaluate)
    limit = Limit("calls", 50, 60.0)
    end = work_to_goal(task, method(), 0, Goal("x_0", -100.0), limit, dear=True)
    assert (end.status, end.reason, end.steps, end.value) == ("limit", None, 50, -16.0)


def test_a_dear_measurement_that_is_not_a_number_ends_nothing(task: Task) -> None:
    """At steps 6 to 20 nobody knows the value, which otherwise is minus the number of steps."""

    def evaluate(x: Tensor, y: Tensor, step: int) -> dict[str, Tensor]:
        return {"objective": -x[0] * torch.nan if 6 <= step <= 20 else -x[0]}

    object.__setattr__(task, "evaluate", evaluate)
    ends = [
        work_to_goal(task, method(), 0, Goal("objective", -19.0), FAR, dear=dear)
        for dear in (True, False)
    ]
    assert [(end.status, end.steps) for end in ends] == [("reached", 21), ("diverged", 6)]


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
