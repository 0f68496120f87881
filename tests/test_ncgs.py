"""Projection-free methods: condg's promise, exact prox steps, random outputs, feasibility."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from algorithms.projection_free.frank_wolfe import fw, sagafw, sfw, svfw
from algorithms.projection_free.ncgs import condg, ncgs, ncgs_vr
from algorithms.projection_free.projected import projected_gradient, svrg
from bench import checkpoint
from bench.algorithm import Algorithm
from bench.oracle import Oracle
from bench.rng import Draw, generator
from bench.run import advance, first, run
from bench.sets import box, l2_ball
from bench.settings import BadSetting
from bench.task import Context, Set, Task
from tasks.completion import completion
from tasks.multitask import multitask
from tasks.trees import trees
from tests.test_sets import PROJECTED, SETS, randn


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
        upper=upper, init=init, evaluate=lambda x, y, k: {}, metric="", draw_upper=draw,
        count=len, rows=lambda batch, a, b: batch[a:b], feasible=feasible,
    )  # fmt: skip


@pytest.mark.parametrize("eta", [1e-1, 1e-3])
@pytest.mark.parametrize("name", SETS)
def test_condg_ends_with_the_gap_that_was_asked_for(name: str, eta: float) -> None:
    """By the exact oracle; and within 2 gamma eta of the exact prox where that can be had."""
    feasible, shape = SETS[name]
    task = on(feasible, shape)
    o = Oracle(task)
    assert feasible.lmo is not None
    for k in range(5):
        u, _ = task.init(generator())
        slope, gamma = 3 * randn(shape, "slope", k), 0.3
        found, calls = condg(o, slope, u, gamma, eta, 1_000_000)
        direction = slope + (found - u) / gamma
        gap = float((direction * (found - feasible.lmo(direction, 0.0))).sum())
        assert -1e-9 <= gap <= eta
        assert calls > 0
        if name in PROJECTED:
            assert feasible.project is not None
            exact = feasible.project(u - gamma * slope)
            assert float((found - exact).square().sum()) <= 2 * gamma * eta


def test_condg_counts_and_stops_at_its_cap() -> None:
    feasible, shape = SETS["nuclear_ball"]
    task = on(feasible, shape)
    o = Oracle(task)
    u, _ = task.init(generator())
    _, calls = condg(o, randn(shape, "slope"), u, 0.3, 1e-9, 25)
    assert calls == 25
    assert o.calls == {"lmo": 25}


@pytest.mark.parametrize(("feasible", "shape"), [(l2_ball(1.0), (3, 4)), (box(-1.0, 0.5), (5,))])
@pytest.mark.parametrize("option", ["I", "II"])
def test_with_exact_prox_steps_ncgs_is_the_accelerated_projected_method(
    feasible: Set, shape: tuple[int, ...], option: Any
) -> None:
    """Ghadimi and Lan (2016), written here from their equations (2.2) to (2.4)."""
    task, L = on(feasible, shape), 3.0
    assert feasible.project is not None
    algorithm = ncgs(L, 10, option=option, prox="exact")
    state = algorithm.init(*task.init(generator()))
    x = x_ag = state.x
    for k in range(1, 31):
        state, _ = algorithm.step(Oracle(task), state, Draw(task, 0, k - 1))
        alpha, beta = 2 / (k + 1), 1 / (2 * L)
        lam = beta if option == "I" else k * beta / 2
        md = ((1 - alpha) * x_ag + alpha * x).requires_grad_()
        (slope,) = torch.autograd.grad(task.upper(md, state.y, torch.arange(32)), md)
        md = md.detach()
        new = feasible.project(x - lam * slope)
        x_ag = md - (x - new) if option == "I" else feasible.project(md - beta * slope)
        x = new
        shown = x if option == "I" else x_ag
        torch.testing.assert_close(state.x, shown, rtol=0, atol=1e-10)


def test_ncgs_vr_with_all_the_data_is_its_batch_form() -> None:
    """All the data each time: v is the gradient, and with exact steps projected descent."""
    task = on(*SETS["l2_ball"])
    algorithms = [
        ncgs_vr(3.0, 10, epoch=4, prox="exact"),
        projected_gradient(1 / 9),
        svrg(1 / 9, epoch=4),
    ]
    ends = []
    for algorithm in algorithms:
        state = algorithm.init(*task.init(generator()))
        for k in range(12):
            state, _ = algorithm.step(Oracle(task), state, Draw(task, 0, k))
        ends.append(state.x)
    torch.testing.assert_close(ends[0], ends[1], rtol=0, atol=1e-12)
    torch.testing.assert_close(ends[2], ends[1], rtol=0, atol=1e-12)


def test_stochastic_ncgs_draws_k_batches_at_step_k() -> None:
    task = on(*SETS["l2_ball"])
    algorithm = ncgs(3.0, 10, prox="exact", batch=2, growing=True)
    state = algorithm.init(*task.init(generator()))
    for k in range(5):
        o = Oracle(task)
        state, _ = algorithm.step(o, state, Draw(task, 0, k))
        assert o.samples == {"grad_f": 2 * (k + 1)}


@pytest.mark.parametrize(
    ("algorithm", "weights"),
    [
        (ncgs(3.0, 4, prox="exact", output="random"), [2, 6, 12, 20]),  # k (k + 1)
        (ncgs_vr(3.0, 4, prox="exact", output="random"), [1, 1, 1, 1]),
    ],
)
def test_the_random_output_has_the_papers_law(algorithm: Algorithm, weights: list[int]) -> None:
    """4 steps, 2,000 seeds: each frequency within 4 standard deviations."""
    task = on(*SETS["box"])
    counts: Counter[int] = Counter()
    for seed in range(2000):
        state = algorithm.init(*task.init(generator()))
        shown, last = [], state.x
        for k in range(4):
            state, _ = algorithm.step(Oracle(task), state, Draw(task, seed, k))
            if not torch.equal(state.x, last) or k == 0:
                shown.append(k)
            last = state.x
        counts[shown[-1]] += 1
    for k, weight in enumerate(weights):
        p = weight / sum(weights)
        assert abs(counts[k] / 2000 - p) < 4 * (p * (1 - p) / 2000) ** 0.5


METHODS: dict[str, Algorithm] = {
    "ncgs I": ncgs(2.0, 20, option="I"),
    "ncgs II": ncgs(2.0, 20),
    "ncgs stochastic": ncgs(2.0, 20, batch=20, growing=True, output="random"),
    "ncgs_vr": ncgs_vr(2.0, 20, epoch=4, batch=30),
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
def test_every_iterate_is_feasible_and_the_loss_falls(name: str, context: Context) -> None:
    """1e-9 of the radius is rounding: iterates are convex combinations or projections."""
    task = completion(context, 20, 25, rank=2, radius=2.0, observed=0.5)
    algorithm, values = METHODS[name], []
    standing = first(task, algorithm, 0)
    with torch.no_grad():
        for _ in range(20):
            values.append(float(task.evaluate(standing.state.x, standing.state.y, 0)["objective"]))
            standing = advance(task, algorithm, 0, standing)
            assert float(torch.linalg.svdvals(standing.state.x).sum()) <= 2.0 * (1 + 1e-9)
    assert min(values[1:]) < values[0]


@pytest.mark.parametrize("name", METHODS)
def test_measured_iterates_stay_feasible_after_resuming(
    name: str, context: Context, tmp_path: Path
) -> None:
    """From a checkpoint on disk, at every measured step; 1e-9 as above."""
    task = completion(context, 20, 25, rank=2, radius=2.0, observed=0.5)
    algorithm = METHODS[name]
    half = run(task, algorithm, seed=0, steps=7, every=2)
    checkpoint.save(tmp_path / "checkpoint.pt", "it", half)
    start = checkpoint.load(tmp_path / "checkpoint.pt", "it", first(task, algorithm, 0))
    rows: list[dict[str, Any]] = []
    run(task, algorithm, seed=0, steps=15, every=2, start=start, measured=rows.append)
    assert [row["step"] for row in rows] == [8, 10, 12, 14, 15]
    assert all(row["nuclear_norm"] <= 2.0 * (1 + 1e-9) for row in rows)


def partials(task: Task, size: int | None) -> tuple[Tensor, Tensor]:
    x, y = task.init(generator())
    x = x + 0.1 * randn(tuple(x.shape), "x")
    batch = Draw(task, 0, 0).f(size)
    leaf = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(task.upper(leaf, y, batch), leaf)
    return Oracle(task).f_x(x, y, batch), slope


SMALL: dict[str, Any] = {
    "completion": lambda c: completion(c, 12, 9, rank=2, observed=0.5),
    "multitask": lambda c: multitask(c, groups=2, similar=2, samples=20, features=6),
    "multitask digits": lambda c: multitask(c, source="digits", versions=2, most=20),
    "trees": lambda c: trees(c, nodes=8),
}


@pytest.mark.parametrize("size", [None, 7, 300])
@pytest.mark.parametrize("name", SMALL)
def test_gradients_are_autograds(name: str, size: int | None, context: Context) -> None:
    """All rows and batches with repeated rows."""
    found, expected = partials(SMALL[name](context), size)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", SMALL)
def test_the_mean_over_batches_is_the_whole(name: str, context: Context) -> None:
    """Every single sample once, averaged: unbiased with the task's own scaling."""
    task = SMALL[name](context)
    assert task.rows is not None
    x, y = task.init(generator())
    x = x + 0.1 * randn(tuple(x.shape), "x")
    everything = Draw(task, 0, 0).f(None)
    n, o = task.count(everything), Oracle(task)
    total = sum(o.f_x(x, y, task.rows(everything, k, k + 1)) for k in range(n)) / n
    torch.testing.assert_close(total, o.f_x(x, y, everything), rtol=1e-10, atol=1e-12)


def test_the_multitask_recipe(context: Context) -> None:
    """Its classes are fit to learn from, its tasks are as many and as large as it says."""
    task = multitask(context, groups=3, similar=2, samples=50, features=8, held_out=0.2)
    x, _ = task.init(generator())
    assert x.shape == (9, 6)
    n = task.count(Draw(task, 0, 0).f(None))
    assert 300 * 0.7 < n < 300 * 0.9
    digits = multitask(context, source="digits", versions=3)
    assert digits.init(generator())[0].shape == (65, 30)


BAD_FILES = {
    "two columns": ("1 2\n3 4\n", "three numbers"),
    "a word": ("1 2 x\n", "could not convert"),
    "half a row": ("0.5 1 2\n", "whole numbers"),
    "a negative row": ("-1 1 2\n", "three numbers"),
    "the same entry twice": ("0 1 2\n0 1 3\n", "twice"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_bad_file_of_entries_is_refused(case: str, tmp_path: Path) -> None:
    content, words = BAD_FILES[case]
    (tmp_path / "entries.txt").write_text(content)
    with pytest.raises(BadSetting, match=rf"task\.file=entries\.txt.*{words}"):
        completion(Context(data_root=tmp_path), file="entries.txt")


def test_ones_own_entries_are_read_from_a_file(tmp_path: Path, context: Context) -> None:
    from dataclasses import replace

    here = replace(context, data_root=tmp_path)
    with pytest.raises(BadSetting, match=r"task\.file=entries\.csv.*No such file"):
        completion(here, file="entries.csv")
    lines = [f"{i},{j},{i - j}" for i in range(6) for j in range(5)]
    (tmp_path / "entries.csv").write_text("\n".join(lines))
    task = completion(here, file="entries.csv", held_out=0.2, radius=30.0)
    assert task.init(generator())[0].shape == (6, 5)
    assert task.count(Draw(task, 0, 0).f(None)) == 24
    assert list(task.sources) == ["entries.csv"]


@pytest.mark.parametrize("source", ["aloi", "sensorless", "covertype"])
def test_an_absent_data_set_is_named(source: Any, tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match=rf"task\.source={source}.*task\.source=digits"):
        multitask(Context(data_root=tmp_path), source=source)


def test_a_libsvm_file_makes_tasks(tmp_path: Path) -> None:
    (tmp_path / "libsvm").mkdir()
    lines = [f"{k % 3 + 1} 1:{k / 10} 2:{(k * 7) % 5}" for k in range(30)]
    (tmp_path / "libsvm" / "Sensorless.scale").write_text("\n".join(lines) + "\n")
    task = multitask(Context(data_root=tmp_path), source="sensorless", versions=2)
    assert task.init(generator())[0].shape == (3, 6)
    (tmp_path / "libsvm" / "Sensorless.scale").write_text("not a file of that kind\n")
    with pytest.raises(BadSetting, match=r"task\.source=sensorless"):
        multitask(Context(data_root=tmp_path), source="sensorless")
