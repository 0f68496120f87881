"""Black-box baselines: what they keep, what they refuse, that a model of the past helps."""

import builtins
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from algorithms.bilevel.black_box import optuna_tpe, random_search
from bench.core.algorithm import Algorithm
from bench.core.loop import Standing, advance, first
from bench.core.settings import BadSetting
from bench.core.task import Context, Task
from tasks.quadratic import quadratic


def steps(
    algorithm: Algorithm, count: int, seed: int = 0, task: Task | None = None
) -> list[Standing]:
    task = task or quadratic(Context(dtype=torch.float64), p=2)
    found = [first(task, algorithm, seed)]
    with torch.no_grad():
        for _ in range(count):
            found.append(advance(task, algorithm, seed, found[-1]))
    return found


@pytest.mark.parametrize("make", [random_search, optuna_tpe])
def test_the_state_is_the_best_that_was_tried(make: Any) -> None:
    found = steps(make(0.5, low=-2.0, high=2.0, T=30), 15)
    values = [float(s.info["value"]) for s in found[1:]]
    for k, standing in enumerate(found[1:], 1):
        assert float(standing.state.f) == min(values[:k])
        assert standing.state.x.abs().max() <= 2


def test_tpe_remembers_and_forgets() -> None:
    """With room for 5 trials the 7th overwrites the 2nd."""
    found = steps(optuna_tpe(0.5, low=-2.0, high=2.0, T=5, trials=5), 7)
    values = [float(s.info["value"]) for s in found[1:]]
    assert found[-1].state.values.tolist() == [values[5], values[6], *values[2:5]]


def test_tpe_is_better_than_chance() -> None:
    """After 60 trials, over 5 seeds: the mean of the best values found."""
    ends = [
        sum(float(steps(make, 60, seed)[-1].state.f) for seed in range(5))
        for make in (
            optuna_tpe(0.5, low=-5.0, high=5.0, T=30),
            random_search(0.5, low=-5.0, high=5.0, T=30),
        )
    ]
    assert ends[0] < ends[1]


def is_inside(x: Tensor) -> bool:
    """Where the losses below are numbers."""
    return bool((x < 0).all())


@pytest.mark.parametrize("make", [random_search, optuna_tpe])
def test_values_that_are_no_numbers_end_no_run(make: Any) -> None:
    """f is nan but in a quarter of the box: the search goes on, and keeps the best number."""
    task = quadratic(Context(dtype=torch.float64), p=2)

    def upper(x: Tensor, y: Tensor, xi: Any) -> Tensor:
        return torch.where((x < 0).all(), task.upper(x, y, xi), torch.nan)

    found = steps(make(0.5, low=-2.0, high=2.0, T=30), 30, task=replace(task, upper=upper))
    values = [float(s.info["value"]) for s in found[1:]]
    assert any(math.isnan(v) for v in values[:10])
    assert float(found[-1].state.f) == min(v for v in values if not math.isnan(v))
    assert is_inside(found[-1].state.x)


def test_tpe_learns_where_values_are_no_numbers() -> None:
    """Once it models its past it proposes less of the three quarters of the box in which f is nan.

    A search that learns nothing of them makes 150 of 200 proposals there in the mean, with a
    standard deviation of 6.
    """
    task, wrong = quadratic(Context(dtype=torch.float64), p=2), 0

    def upper(x: Tensor, y: Tensor, xi: Any) -> Tensor:
        return torch.where((x < 0).all(), task.upper(x, y, xi) * 0, torch.nan)

    for seed in range(5):
        method = optuna_tpe(0.5, low=-2.0, high=2.0, T=1)
        found = steps(method, 60, seed, task=replace(task, upper=upper))
        wrong += sum(math.isnan(float(s.info["value"])) for s in found[21:])
    assert wrong < 100


def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadSetting, match=r"algorithm\.low=1\.0: write a number below"):
        random_search(0.5, low=1.0, high=1.0)
    with pytest.raises(BadSetting, match="x has 101 coordinates, at most 100"):
        optuna_tpe(0.5).init(torch.zeros(101), torch.zeros(2))
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "optuna":
            raise ImportError
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(BadSetting, match=r"pip install bilevel-bench\[optuna\]"):
        optuna_tpe(0.5)


@pytest.mark.parametrize("make", [random_search, optuna_tpe])
def test_another_seed_tries_other_points(make: Any, context: Context) -> None:
    task, method = quadratic(context, p=2), make(0.5, T=1)

    def values(seed: int) -> set[float]:
        s, found = first(task, method, seed), set()
        with torch.no_grad():
            for _ in range(3):
                s = advance(task, method, seed, s)
                found.add(float(s.info["value"]))
        return found

    assert values(0).isdisjoint(values(1))
