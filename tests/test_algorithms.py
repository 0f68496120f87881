"""What every algorithm promises, whoever wrote it; a new yaml is tested by being there."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from bench.contract import on_a_ball, zero_sum
from bench.contract.algorithms import (
    check_descent,
    check_form,
    check_going_on,
    check_purity,
    check_repeats,
    stepped,
)
from bench.core.algorithm import Algorithm
from bench.core.loop import advance
from bench.core.settings import build, check_settings
from bench.core.task import Context, Task
from tasks.quadratic import quadratic
from tests.composed import composed

ROOT = Path(__file__).parent.parent
EPISODIC = {"learn2learn"}  # only for tasks of episodes: test_few_shot.py, test_costs.py
STREAMING = {  # only for streams of tasks: test_continual.py, test_costs.py
    path.stem
    for path in (ROOT / "conf" / "algorithm").glob("*.yaml")
    if "continual" in path.read_text()
}
NAMES = sorted(
    {path.stem for path in (ROOT / "conf" / "algorithm").glob("*.yaml")} - EPISODIC - STREAMING
)
GAMES = {"gda", "optimistic_gd"}  # for g = -f
ON_A_SET = {
    path.stem
    for path in (ROOT / "conf" / "algorithm").glob("*.yaml")
    if "projection_free" in path.read_text()
}
# the barrier's slope is log / eps where both its values are 0, as at our start: keep steps stable
SUITED: dict[str, dict[str, Any]] = {
    "bvfsm": {"l2": 0.01, "eps": 0.1},
    "hoag": {"T": 50, "Q": 20},  # else most of the time goes to tolerances below rounding
    "random_search": {"T": 10},
    "ncgs": {"L": 1.0, "N": 300},
    "ncgs_vr": {"L": 1.0, "N": 300, "eta": 1e-6},  # with 1 / N it is there after a step
    "fw": {"L": 1.0, "diameter": 1.0},
    "projected_gradient": {"outer_lr": 0.5},
    "svrg": {"outer_lr": 0.5},
    "sobbo": {"window": 4},  # a mean over 50 steps looks too far back for steps of this length
    "optuna_tpe": {"T": 10, "trials": 30},  # telling a study its past takes the time
}


def made(name: str, **settings: Any) -> Algorithm:
    """The algorithm of conf/algorithm/<name>.yaml with step sizes that suit the quadratic."""
    if name in ("saba", "sagafw", "sffba", "mseba") and "batch" in settings:
        settings["blocks"] = 64 // (settings["batch"] or 64)  # 64 rows: blocks of as many
        if name != "mseba":
            del settings["batch"]
    cfg = composed(f"algorithm={name}", "task=quadratic", "logger=local")
    node: Any = OmegaConf.to_container(cfg.algorithm, resolve=True)
    for key in node:
        if key == "inner_lr":
            node[key] = 0.5
    return build(check_settings(node | SUITED.get(name, {}) | settings, "algorithm", Algorithm))


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def problem(name: str, context: Context) -> Task:
    return problem_for(name, context)


def problem_for(name: str, context: Context) -> Task:
    """A small problem of the kind that this method is for; 64 rows in each level."""
    if name in ON_A_SET:
        return on_a_ball()
    if name in GAMES:
        return zero_sum()
    return replace(quadratic(context, noise=0.3), metric="objective")


def test_state_is_tensors_and_keeps_its_form(problem: Task, name: str) -> None:
    check_form(made(name), problem)


def test_step_is_pure(problem: Task, name: str) -> None:
    check_purity(made(name), problem)


def test_same_seed_same_run_other_seed_other_run(problem: Task, name: str) -> None:
    check_repeats(made(name, batch=8), problem, noisy=True)


def test_going_on_changes_nothing(problem: Task, name: str) -> None:
    check_going_on(made(name, batch=8), problem)


def test_it_descends(problem: Task, name: str) -> None:
    """The true objective f(x, y*(x)) falls (for a game: the distance to the saddle)."""
    if name == "upper_only":  # it ignores the lower level: y goes to the minimiser of f(x, .)
        end, optimum = stepped(problem, made(name), 600), problem.report.optimum
        assert optimum is not None
        torch.testing.assert_close(end.state.y, optimum["c"], rtol=1e-9, atol=1e-9)
        return
    if name == "fo_itd":  # it takes y for given, and f sees x through y alone: x stays, y -> y*(x)
        algorithm, start = made(name), stepped(problem, made(name), 0)
        away = start._replace(state=start.state._replace(y=start.state.y + 1))
        for _ in range(300):
            away = advance(problem, algorithm, 0, away)
        assert torch.equal(away.state.x, start.state.x)
        assert float(problem.evaluate(away.state.x, away.state.y, 0)["lower_error"]) < 1e-9
        return
    check_descent(made(name), problem, steps=300)
