"""What a round is measured by (tasks/common/online.py), against whole matrices and a plain loop."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Generator, Tensor

from bench.core.oracle import Oracle
from bench.core.task import Sampler, Set, Task
from bench.numerics import inner
from bench.numerics.sets import box
from tasks.common import online
from tasks.common.online import NAMES, Solved, measure_round, solve_lower
from tests.steps import drifting as on
from tests.steps import problem as at


def f_of(step: int) -> on.Seen:
    """What the upper level has of this round: the first rows."""
    return on.Seen(torch.arange(20), step)


def g_of(step: int) -> on.Seen:
    """What the lower level has."""
    return on.Seen(torch.arange(20, at.ROWS), step)


def problem(x_in: Set | None = None, y_in: Set | None = None) -> Task:
    """The two levels have different data, and all of it is asked for."""

    def draw(data: Callable[[int], on.Seen]) -> Sampler:
        def all_of(rng: Generator, step: int, size: int | None) -> on.Seen:
            assert size is None
            return data(step)

        return all_of

    return replace(
        on.problem(x_in, y_in),
        data=replace(on.problem(x_in, y_in).data, draw_upper=draw(f_of), draw_lower=draw(g_of)),
    )


def descended(task: Task, x: Tensor, y: Tensor, step: int, how: Solved) -> Tensor:
    """At most `steps` projected steps on g of this round, until |g_y| <= tolerance."""
    taken = 0
    while taken < how.steps and float(on.g_y(x, y, g_of(step)).norm()) > how.tolerance:
        y = at.in_y(task, y - how.lr * on.g_y(x, y, g_of(step)))
        taken += 1
    return y


HOWS = {
    "solved": Solved(every=1, tolerance=1e-7, steps=400, lr=0.6, system=4),
    "by tolerance": Solved(every=3, tolerance=0.1, steps=50, lr=0.3, system=2, damping=0.7),
    "by steps": Solved(every=1, tolerance=1e-9, steps=3, lr=0.2, system=1),
}


@pytest.mark.parametrize("case", ["free", "held"])
@pytest.mark.parametrize("name", HOWS)
def test_a_round_adds_its_mapping_and_its_distance_to_the_next(name: str, case: str) -> None:
    """F2OBO's equations (2) to (4) at x_t, on all the data of rounds t and t + 1, times `every`;
    the next round's lower level is solved from this one's solution."""
    how, gamma, step = HOWS[name], 0.2, 6
    task = problem() if case == "free" else problem(box(-0.3, 0.4), box(-0.5, 0.6))
    x, y = torch.tensor([-0.25, 0.35, 0.1], dtype=torch.float64), at.Y0
    now = descended(task, x, y, step, how)
    after = descended(task, x, now, step + 1, how)
    curvature = on.g_yy(x, now, g_of(step)) + how.damping * torch.eye(at.Q).double()
    f_y = on.f_y(x, now, f_of(step))
    v = on.conjugate_gradients(curvature, f_y, how.system, torch.zeros_like(y))
    slope = on.f_x(x, now, f_of(step)) - on.g_xy(x, now, g_of(step)) @ v
    mapping = slope
    if case == "held":
        mapping = (x - (x - gamma * slope).clamp(-0.3, 0.4)) / gamma
        assert not torch.allclose(mapping, slope)
    difference = on.upper(x, after, f_of(step + 1)) - on.upper(x, now, f_of(step))
    expected = {
        "regret": how.every * mapping @ mapping,
        "V_T": how.every * difference.abs(),
        "H_2T": how.every * (after - now) @ (after - now),
    }
    found = measure_round(task, x, y, step, gamma, how)
    assert tuple(found) == NAMES == tuple(expected)
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=1e-8, atol=1e-10)


def test_v_of_either_sign_is_counted() -> None:
    """f falls from round 0 to 1 and rises from 4 to 5, or the other way round."""
    signs = set()
    for step in range(6):
        how = HOWS["by steps"]
        now = descended(problem(), at.X0, at.Y0, step, how)
        after = descended(problem(), at.X0, now, step + 1, how)
        jump = on.upper(at.X0, after, f_of(step + 1)) - on.upper(at.X0, now, f_of(step))
        signs.add(bool(jump > 0))
        found = measure_round(problem(), at.X0, at.Y0, step, 0.2, how)
        torch.testing.assert_close(found["V_T"], jump.abs(), rtol=1e-8, atol=1e-10)
    assert signs == {True, False}


@pytest.mark.parametrize(("every", "step"), [(0, 0), (0, 4), (3, 4), (3, 7)])
def test_rounds_between_are_not_measured(every: int, step: int) -> None:
    found = measure_round(problem(), at.X0, at.Y0, step, 0.1, Solved(every=every))
    assert {key: float(value) for key, value in found.items()} == dict.fromkeys(NAMES, 0.0)


@pytest.mark.parametrize(
    ("tolerance", "steps", "expected"), [(0.25, 9, 0.25), (0.25, 1, 0.5), (1.0, 9, 1.0)]
)
def test_a_lower_level_is_solved_to_its_tolerance(
    tolerance: float, steps: int, expected: float
) -> None:
    """y / 2 a step from 1, whose slope is y: both exact in binary; met exactly is met."""
    o, point = Oracle(on.line()), torch.ones(1).double()
    how = Solved(tolerance=tolerance, steps=steps, lr=0.5)
    assert float(solve_lower(o, point, point, None, how)) == expected


@pytest.mark.parametrize(
    ("tolerance", "steps"), [(0.25, 9), (0.25, 1), (1.0, 9), (2**-6, 500), (0.1, 3)]
)
def test_a_gpu_is_not_waited_for_at_each_gradient(
    tolerance: float, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host looks after 4, 8, 16 gradients there, and steps past the end move nothing."""
    point, how = torch.ones(1).double(), Solved(tolerance=tolerance, steps=steps, lr=0.5)
    at_each = solve_lower(Oracle(on.line()), point, point, None, how)
    for module in (online, inner):
        monkeypatch.setattr(module, "waits_for", lambda t: True)
    assert torch.equal(solve_lower(Oracle(on.line()), point, point, None, how), at_each)


def test_by_default_no_round_is_measured() -> None:
    expected: dict[str, Any] = {
        "every": 0, "tolerance": 0.01, "steps": 500, "lr": 0.1, "system": 20, "damping": 0.0,
    }  # fmt: skip
    assert vars(Solved()) == expected
