"""Projection-free methods on their sets: condg's promise, feasibility, what their yamls say.

Their steps are written out in steps/test_ncgs.py, test_frank_wolfe.py and test_projected.py.
"""

import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor

from algorithms.projection_free.frank_wolfe import fw, sagafw, sfw, svfw
from algorithms.projection_free.ncgs import condg, ncgs, ncgs_vr
from algorithms.projection_free.projected import projected_gradient, svrg
from bench.core.algorithm import Algorithm
from bench.core.draw import Draw, generator
from bench.core.loop import first, run
from bench.core.oracle import Oracle
from bench.core.settings import BadSetting, locate
from bench.core.task import Context, Data, Set, Task
from bench.numerics.sets import box
from bench.runs import checkpoint
from tasks.completion import completion
from tasks.multitask import multitask
from tasks.trees import trees
from tests.test_sets import PROJECTED, SETS, randn

CONF = Path(__file__).parent.parent / "conf"
YAMLS = [
    *(f"algorithm/{name}" for name in ("ncgs", "ncgs_vr", "fw", "sfw", "svfw", "sagafw")),
    *("algorithm/svrg", "algorithm/projected_gradient"),
    *("task/completion", "task/multitask", "task/trees"),
]


@pytest.mark.parametrize("name", YAMLS)
def test_a_yaml_says_what_its_functions_defaults_are(name: str) -> None:
    said = yaml.safe_load((CONF / f"{name}.yaml").read_text())
    function = locate(said["_target_"], name)
    for key, parameter in inspect.signature(function).parameters.items():
        if parameter.default is not inspect.Parameter.empty:
            value = said[key]
            number = isinstance(value, str) and isinstance(parameter.default, float)
            assert (float(value) if number else value) == parameter.default, key  # 1e-6 is a str


def on(feasible: Set, shape: tuple[int, ...], L: float = 3.0) -> Task:
    """A nonconvex, L-smooth loss: sum of L (1 - cos(x - a)) over coordinates, noisy a."""
    centre = 2 * randn(shape, "centre")
    shift = 0.3 * randn((32, *shape), "shift")
    shift = shift - shift.mean(0)

    def upper(x: Tensor, y: Tensor, i: Any) -> Tensor:
        return (L * (1 - torch.cos(x - centre - shift[i]))).mean(0).sum()

    def draw(rng: torch.Generator, step: int, size: int | None) -> Tensor:
        return torch.arange(32) if size is None else torch.randint(32, (size,), generator=rng)

    def init(rng: torch.Generator) -> tuple[Tensor, Tensor]:
        assert feasible.lmo is not None
        return feasible.lmo(torch.ones(shape).double(), 0.0), torch.zeros(0).double()

    return Task(
        upper=upper,
        init=init,
        evaluate=lambda x, y, k: {},
        metric="",
        data=Data(draw, count=len, rows=lambda batch, a, b: batch[a:b]),
        feasible=feasible,
    )


SMALL: dict[str, Callable[[Context], Task]] = {
    "completion": lambda c: completion(c, 12, 9, rank=2, observed=0.5),
    "multitask": lambda c: multitask(c, groups=2, similar=2, samples=20, features=6),
    "trees": lambda c: trees(c, nodes=8),
}


@pytest.mark.parametrize("name", SMALL)
def test_a_task_of_one_level_is_whole(name: str, context: Context) -> None:
    """y is empty, and so is its gradient; batches are cut and counted; there is a linear oracle, a
    closed form, and a start in the set."""
    task = SMALL[name](context)
    x, y = task.init(generator())
    batch = Draw(task, 0, 0).f(5)
    f_x, f_y = Oracle(task).grad_f(x, y, batch)
    assert (y.shape, f_y.shape, f_x.shape) == ((0,), (0,), x.shape)
    assert {t.dtype for t in (x, y, f_x, f_y)} == {torch.float64}
    assert Oracle(task).f_y(x, y, batch).shape == (0,)
    assert task.data.count(batch) == 5
    assert task.data.rows is not None
    assert task.data.rows(batch, 1, 3).tolist() == batch.tolist()[1:3]
    assert task.upper_derivatives is not None
    assert task.feasible.lmo is not None
    slope = randn(tuple(x.shape), "slope")
    assert float((slope * (x - task.feasible.lmo(slope, 0.0))).sum()) >= 0
    assert task.upper_derivatives.grad(x, y, batch, "y")[0] is None
    assert task.upper_derivatives.grad(x, y, batch, "x")[1] is None


@pytest.mark.parametrize("name", SETS)
def test_condg_ends_with_the_gap_that_was_asked_for(name: str) -> None:
    """By the exact oracle; and within 2 gamma eta of the exact prox where that can be had."""
    feasible, shape = SETS[name]
    eta = 0.05
    task = on(feasible, shape)
    o = Oracle(task)
    assert feasible.lmo is not None
    for k in range(3):
        u, _ = task.init(generator())
        slope, gamma = 3 * randn(shape, "slope", k), 0.3
        found, calls, ratio = condg(o, slope, u, gamma, eta, 1_000_000)
        assert float(ratio) <= 0.9
        direction = slope + (found - u) / gamma
        gap = float((direction * (found - feasible.lmo(direction, 0.0))).sum())
        assert -1e-9 <= gap <= eta
        assert calls > 0
        if name in PROJECTED:
            assert feasible.project is not None
            exact = feasible.project(u - gamma * slope)
            assert float((found - exact).square().sum()) <= 2 * gamma * eta


METHODS: dict[str, Algorithm] = {
    "ncgs I": ncgs(2.0, 10, option="I", cap=50),
    "ncgs II": ncgs(2.0, 10, cap=50),
    "ncgs stochastic": ncgs(2.0, 10, cap=50, batch=8, growing=True, output="random"),
    "ncgs_vr": ncgs_vr(2.0, 10, epoch=4, cap=50, batch=30),
    "fw gap": fw(2.0, 4.0),
    "fw line": fw(2.0, 4.0, rule="line"),
    "fw decreasing": fw(2.0, 4.0, rule="decreasing"),
    "sfw": sfw(4.0, batch=30),
    "svfw": svfw(4.0, batch=30),
    "sagafw": sagafw(4.0, blocks=5),
    "projected": projected_gradient(0.2),
    "svrg": svrg(0.2, epoch=4, batch=30),
}


@pytest.mark.parametrize("name", METHODS)
def test_measured_iterates_stay_feasible_after_resuming(
    name: str, context: Context, tmp_path: Path
) -> None:
    """From a checkpoint on disk, at every measured step, and the loss falls; 1e-9 of the radius is
    rounding, as iterates are convex combinations or projections."""
    task = completion(context, 12, 15, rank=2, radius=2.0, observed=0.5)
    algorithm = METHODS[name]
    rows: list[dict[str, Any]] = []
    half = run(task, algorithm, seed=0, steps=7, every=2, on_row=rows.append)
    checkpoint.save(tmp_path / "checkpoint.pt", "it", half)
    start = checkpoint.load(tmp_path / "checkpoint.pt", "it", first(task, algorithm, 0))
    run(task, algorithm, seed=0, steps=15, every=2, start=start, on_row=rows.append)
    assert [row["step"] for row in rows] == [0, 2, 4, 6, 7, 8, 10, 12, 14, 15]
    assert all(row["nuclear_norm"] <= 2.0 * (1 + 1e-9) for row in rows)
    assert min(row["objective"] for row in rows[1:]) < rows[0]["objective"]


def test_a_slope_that_is_not_a_number_ends_condg_at_once() -> None:
    feasible, shape = SETS["box"]
    o = Oracle(on(feasible, shape))
    slope = torch.full(shape, float("nan"), dtype=torch.float64)
    _, used, gap = condg(o, slope, torch.zeros(shape).double(), 0.1, 1e-3, 10_000)
    assert used == 1
    assert gap.isnan()


@torch.no_grad()
def test_a_line_search_takes_no_step_to_where_f_is_not_a_number() -> None:
    """f = -log(1.5 - x) - 3 x on [0, 3], whose vertex from 1 on is 3: only a quarter of the way
    leads to a number."""
    task = replace(
        on(box(0.0, 3.0), (1,)), upper=lambda x, y, i: (-torch.log(1.5 - x) - 3 * x).sum()
    )
    algorithm = fw(L=4.0, diameter=3.0, rule="line")
    x = torch.ones(1).double()
    state, info = algorithm.step(Oracle(task), algorithm.init(x, x[:0]), Draw(task, 0, 0))
    assert float(info["gamma"]) == 0.0625
    assert float(state.x) == 1.125


def test_a_batch_that_grows_is_asked_for() -> None:
    with pytest.raises(BadSetting, match=r"^algorithm\.growing=true: .* write algorithm\.batch=1$"):
        ncgs(2.0, 10, growing=True)
