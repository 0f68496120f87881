"""PZOBO (Sow, Ji, Liang, 2022, Algorithm 1) and the black-box baselines, by hand."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from algorithms.bilevel.black_box import optuna_tpe, random_search
from algorithms.bilevel.pzobo import pzobo
from bench.core.algorithm import Algorithm
from bench.core.draw import Draw
from bench.core.loop import advance, first
from bench.core.task import Batch, InnerLoop, Task
from bench.numerics.descent import adam
from tests.steps import problem as at
from tests.steps.following import ByHand, Values, assert_follows, partials


def begun(y: Tensor, batch: Batch) -> Tensor:
    """Where the inner loop begins if the task itself says so."""
    return 0.5 * y + batch.double().mean() / 640


def pzobo_by_hand(
    task: Task, batch: int | None, T: int, directions: int, smoothing: float
) -> ByHand:
    """d_x = f_x + (1/Q) sum_j <(y_N(x + mu u_j) - y_N(x)) / mu, f_y> u_j, u_j standard normal; all
    inner loops begin where the task says for the first one's batch."""

    def steps(draws: Callable[[int], Draw]) -> Iterator[Values]:
        x, y, outer = at.X0, at.Y0, at.Adam(0.1)
        for k in range(3):
            draw = draws(k)
            xi, batches = draw.f(batch), [draw.g(batch) for _ in range(T)]
            begin = task.inner.start(y, batches[0])

            def ended(p: Tensor, y: Tensor = begin, batches: list[Batch] = batches) -> Tensor:
                for zeta in batches:
                    y = at.in_y(task, y - 0.3 * partials(at.lower, p, y, zeta)[1])
                return y

            y = ended(x)
            f_x, f_y = partials(at.upper, x, y, xi)
            us = [draw.normal(x) for _ in range(directions)]
            estimates = [((ended(x + smoothing * u) - y) / smoothing) @ f_y * u for u in us]
            d = f_x + torch.stack(estimates).mean(0)
            x = at.in_x(task, outer(x, d))
            yield {"x": x, "y": y, "info/hypergrad_sq": d @ d}

    return steps


@pytest.mark.parametrize("batch", [8, None])
@pytest.mark.parametrize("case", at.CASES)
def test_pzobo(case: str, batch: int | None) -> None:
    method = pzobo(adam(), 0.1, 0.3, T=2, directions=3, smoothing=0.1, batch=batch)
    task = at.CASES[case]()
    assert_follows(task, method, pzobo_by_hand(task, batch, 2, 3, 0.1), rtol=1e-9)


def test_pzobo_unless_told_otherwise() -> None:
    """N = 10, Q = 10, mu = .01, all the data; rtol: differences are divided by mu."""
    hand = pzobo_by_hand(at.problem(), None, 10, 10, 0.01)
    assert_follows(at.problem(), pzobo(adam(), 0.1, 0.3), hand, rtol=1e-8)


@pytest.mark.parametrize("batch", [8, None])
def test_pzobo_begins_where_the_task_says(batch: int | None) -> None:
    task = replace(at.problem(), inner=InnerLoop(start=begun))
    method = pzobo(adam(), 0.1, 0.3, T=2, directions=3, smoothing=0.1, batch=batch)
    assert_follows(task, method, pzobo_by_hand(task, batch, 2, 3, 0.1), rtol=1e-9)


def trained(task: Task, x: Tensor, draw: Draw, T: int, batch: int | None) -> tuple[Tensor, float]:
    """T steps of descent from where y started, and f there."""
    zeta = draw.g(batch)
    y = task.inner.start(at.Y0, zeta)
    for _ in range(T):
        y = at.in_y(task, y - 0.3 * partials(at.lower, x, y, zeta)[1])
    return y, float(at.upper(x, y, draw.f(batch)))


def random_search_by_hand(
    task: Task, low: float, high: float, T: int, batch: int | None, better: list[bool]
) -> ByHand:
    """Uniform proposals; the first of the best so far is kept."""

    def steps(draws: Callable[[int], Draw]) -> Iterator[Values]:
        best: tuple[float, Tensor, Tensor] = (float("inf"), at.X0, at.Y0)
        for k in range(6):
            draw = draws(k)
            x = at.in_x(task, low + (high - low) * draw.uniform(at.X0))
            y, f = trained(task, x, draw, T, batch)
            better.append(f < best[0])
            if better[-1]:
                best = f, x, y
            yield {"f": best[0], "x": best[1], "y": best[2], "y_0": at.Y0, "info/value": f}

    return steps


@pytest.mark.parametrize("batch", [8, None])
@pytest.mark.parametrize("case", at.CASES)
def test_random_search(case: str, batch: int | None) -> None:
    task, better = replace(at.CASES[case](), inner=InnerLoop(start=begun)), []  # type: ignore[var-annotated]
    hand = random_search_by_hand(task, -0.5, 2.0, 3, batch, better)
    assert_follows(task, random_search(0.3, -0.5, 2.0, 3, batch), hand, steps=6)
    assert set(better) == {True, False}


def test_random_search_unless_told_otherwise() -> None:
    """The box [-1, 1], T = 100, all the data."""
    task = at.problem()
    hand = random_search_by_hand(task, -1.0, 1.0, 100, None, [])
    assert_follows(task, random_search(0.3), hand, steps=2)


def test_a_value_that_is_no_better_or_no_number_changes_nothing() -> None:
    """f is 1, 1 and then nan: x and y stay those of the first."""
    task = at.problem()
    for values in ([1.0, 1.0], [1.0, float("nan")]):
        calls = iter(values)
        method = random_search(0.3, T=1)
        changed = replace(task, upper=lambda x, y, i, c=calls: x.new_tensor(next(c)))
        standing = first(changed, method, 0)
        with torch.no_grad():
            one = advance(changed, method, 0, standing)
            two = advance(changed, method, 0, one)
        assert torch.equal(one.state.x, two.state.x)
        assert torch.equal(one.state.y, two.state.y)
        assert float(two.state.f) == 1
        assert not torch.equal(one.state.x, at.X0)


def tpe_by_hand(
    task: Task, low: float, high: float, T: int, trials: int, batch: int | None, steps: int
) -> ByHand:
    """Each step asks a new study, seeded by the step, that is told the last `trials` trials.

    They stand in a ring: trial number k is in place k mod `trials`.
    """
    import optuna

    def going(draws: Callable[[int], Draw]) -> Iterator[Values]:
        ring: list[tuple[list[float], float]] = []
        best: tuple[float, Tensor, Tensor] = (float("inf"), at.X0, at.Y0)
        for k in range(steps):
            draw = draws(k)
            sampler = optuna.samplers.TPESampler(seed=draw.integer(2**31))
            study = optuna.create_study(sampler=sampler, direction="minimize")
            space = {f"x{i}": optuna.distributions.FloatDistribution(low, high) for i in range(3)}
            for point, value in ring:
                told = {f"x{i}": p for i, p in enumerate(point)}
                study.add_trial(
                    optuna.trial.create_trial(params=told, distributions=space, value=value)  # type: ignore[arg-type]
                )
            trial = study.ask()
            point = [trial.suggest_float(f"x{i}", low, high) for i in range(3)]
            x = at.in_x(task, torch.tensor(point, dtype=torch.float64))
            y, f = trained(task, x, draw, T, batch)
            if f < best[0]:
                best = f, x, y
            if len(ring) < trials:
                ring.append((point, f))
            else:
                ring[k % trials] = point, f
            filled = [v for _, v in ring] + [0.0] * (trials - len(ring))
            yield {
                "f": best[0], "x": best[1], "y": best[2],
                "values": torch.tensor(filled, dtype=torch.float64), "info/value": f,
            }  # fmt: skip

    return going


@pytest.mark.parametrize("case", at.CASES)
def test_optuna_tpe(case: str) -> None:
    """15 trials: the sampler begins to model its past after ten, of which it remembers 12."""
    task = replace(at.CASES[case](), inner=InnerLoop(start=begun))
    method = optuna_tpe(0.3, -0.5, 2.0, 1, 12, 8)
    assert_follows(task, method, tpe_by_hand(task, -0.5, 2.0, 1, 12, 8, 15), steps=15)


def test_optuna_tpe_unless_told_otherwise() -> None:
    """The box [-1, 1], T = 100, 200 trials, all the data; Optuna tells only what goes wrong."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.INFO)
    task = at.problem()
    method: Algorithm = optuna_tpe(0.3)
    assert optuna.logging.get_verbosity() == optuna.logging.WARNING
    assert_follows(task, method, tpe_by_hand(task, -1.0, 1.0, 100, 200, None, 2), steps=2)


def test_what_is_refused_and_what_is_not() -> None:
    """Bounds in the wrong order are refused for both, 100 coordinates are few enough."""
    from bench.core.settings import BadSetting

    for make in (random_search, optuna_tpe):
        made: Any = make
        with pytest.raises(BadSetting, match=r"low=2\.0: write a number below algorithm\.high=1"):
            made(0.3, low=2.0, high=1.0)
    assert optuna_tpe(0.3).init(torch.zeros(100), torch.zeros(2)).tried.shape == (200, 100)
    assert random_search(0.3).init(at.X0, at.Y0).tried.shape == (0, at.P)  # it keeps none


def test_a_proposal_has_the_shape_of_x() -> None:
    """An x that is a table is proposed as one, and remembered as one row."""
    task = replace(
        at.problem(),
        upper=lambda x, y, i: at.upper(x.flatten(), y, i),
        lower=lambda x, y, i: at.lower(x.flatten(), y, i),
        init=lambda rng: (at.X0.reshape(at.P, 1), at.Y0),
    )
    for method in (random_search(0.3, T=1), optuna_tpe(0.3, T=1, trials=4)):
        with torch.no_grad():
            standing = advance(task, method, 0, first(task, method, 0))
        assert standing.state.x.shape == (at.P, 1)
    assert torch.equal(standing.state.tried[0], standing.state.x.flatten())
