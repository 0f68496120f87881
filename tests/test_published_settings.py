"""The numbers of the configurations that a paper or its released code states, written out again.

A number changed by mistake in a yaml changes what a record means, and no run fails for it.
"""

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from bench.core.settings import TUNING

CONF = Path(__file__).parent.parent / "conf"

# BOME, section 6: eta .5, T 10, phi = eta |grad q|^2, alpha = xi, plain descent; A.1, A.2: step .05
# for all; the rest of BVFSM's and Penalty's is toy_convergence.py's, lambda the one it calls with.
ALGORITHMS: dict[str, dict[str, Any]] = {
    "bome": {
        "outer_lr": 0.05, "lower_lr": 0.05, "inner_lr": "${.lower_lr}", "T": 10, "eta": 0.5,
        "barrier": "norm", "inner_momentum": 0.0, "keep_velocity": False, "eps": 0.0,
    },
    "bsg1": {
        "outer_lr": 0.05, "inner_lr": 0.05, "T": 10, "inner_momentum": 0.0,
        "keep_velocity": False, "eps": 0.0,
    },
    "bvfsm": {
        "outer_lr": 0.05, "lower_lr": 0.05, "inner_lr": "${.lower_lr}", "T": 10,
        "l2": 0.1, "log": 0.1, "variant": "paper", "decay": "log", "rate": 1.1,
        "horizon": 5000, "inner_momentum": 0.0, "eps": 1e-4,
    },
    "penalty": {
        "outer_lr": 0.05, "inner_lr": 0.05, "T": 10, "gamma": 0.01, "eps": 0.01, "lam": 0.1,
        "nu": 1e-4, "grow": 1.1, "shrink": 0.9, "multiplier": "sum", "inner_momentum": 0.0,
    },
    "upper_only": {"lower_lr": 0.05, "l2": 0.0},
    "gda": {"outer_lr": 0.05},
    "optimistic_gd": {"outer_lr": 0.05, "variant": "paper", "stale": 10},
    # ours, where the methods' papers leave them open; .1 and .9 are HOAG's experiments'
    "f2sa": {  # lambda grows as k^(1/3), the paper's schedule for exact gradients
        "outer_lr": 0.05, "inner_lr": 0.05, "ratio": 1.0, "T": 10, "lam": 1.0, "delta": 0.0,
        "growth": 0.3333, "decay": 0.0,
    },
    "vpbgd": {"outer_lr": 0.5, "ratio": 1.0, "inner_lr": 0.05, "gamma": 10.0, "T": 10},
    "gpbgd": {"outer_lr": 0.2, "ratio": 1.0, "gamma": 10.0},
    "hoag": {
        "inner_lr": 0.05, "outer_lr": "adaptive", "schedule": "exponential", "tolerance": 0.1,
        "T": 1000, "Q": 100, "outer_rule": "gd",
    },
    "pzobo": {"outer_lr": 0.05, "inner_lr": 0.05, "T": 10, "directions": 10, "smoothing": 0.01},
    "random_search": {"inner_lr": 0.05, "low": -1.0, "high": 1.0, "T": 100},
    "optuna_tpe": {"inner_lr": 0.05, "low": -1.0, "high": 1.0, "T": 100, "trials": 200},
}  # fmt: skip
STEPS = {  # whose step is a descent rule of conf/descent: of x, of y, or of both
    "bome": ["outer", "lower"],
    "bsg1": ["outer"],
    "bvfsm": ["outer"],
    "penalty": ["outer"],
    "pzobo": ["outer"],
    "upper_only": ["lower"],
}

TASKS: dict[str, dict[str, Any]] = {
    "toy_coreset": {
        "variant": "paper", "start": 1, "scale": None, "corner": None, "third_start": None,
        "spread": 0.0,
    },
    "toy_degenerate": {"variant": "paper", "losses": None, "clamp": None, "spread": 0.0},
    "toy_minimax": {"variant": "paper", "start": [4.0, 4.0], "clamp": None, "spread": 0.0},
    "quadratic": {
        "p": 3, "q": 5, "condition": 4.0, "curvature": 0.1, "samples": 64, "noise": 0.0,
        "curving": 0.0, "coupling": None, "instance": 0,
    },
    "logistic": {
        "n": 40, "m": 40, "q": 10, "condition": 10.0, "curvature": 0.0, "flipped": 0.3,
        "instance": 0,
    },
    # benchmark_bilevel's datasets/simulated.py, but for dim_outer, which its config has as 10
    "sampled_quadratic": {
        "p": 10, "q": 100, "n": 1024, "m": 1024, "mu": 0.1, "cross": 0.1, "instance": 0,
    },
    "regularised_logistic": {"source": "breast_cancer", "instance": 0},
}  # fmt: skip

MOMENTUM_100 = {"outer_lr": 100.0, "outer": {"rule": "momentum"}}
TUNED: dict[str, dict[str, Any]] = {
    # A.3: both step sizes .5
    "toy_degenerate_bome": {"outer_lr": 0.5, "lower_lr": 0.5},
    "toy_degenerate_bsg1": {"outer_lr": 0.5, "inner_lr": 0.5},
    "toy_degenerate_bvfsm": {"outer_lr": 0.5, "lower_lr": 0.5},
    "toy_degenerate_penalty": {"outer_lr": 0.5, "inner_lr": 0.5},
    # section 6.1 and A.4: .01 on theta, momentum .9; data_cleaning.py: l2 .01, ln 1
    "hyper_cleaning_bome": {**MOMENTUM_100, "lower_lr": 0.01, "lower": {"rule": "momentum"}},
    "hyper_cleaning_bsg1": {**MOMENTUM_100, "inner_lr": 0.01, "inner_momentum": 0.9},
    "hyper_cleaning_bvfsm": {
        **MOMENTUM_100, "lower_lr": 0.01, "inner_momentum": 0.9, "l2": 0.01, "log": 1.0,
    },
    "hyper_cleaning_penalty": {
        **MOMENTUM_100, "inner_lr": 0.01, "inner_momentum": 0.9, "lam": 0.01,
    },
    "hyper_cleaning_upper_only": {"lower_lr": 0.01, "lower": {"rule": "momentum"}},
    # A.5: the best steps are 100; l2reg.py: BVFSM's l2 1e-6 and ln .01
    "newsgroups_bome": {"outer_lr": 100.0, "lower_lr": 100.0},
    "newsgroups_bsg1": {"outer_lr": 100.0, "inner_lr": 100.0},
    "newsgroups_bvfsm": {"outer_lr": 100.0, "lower_lr": 100.0, "l2": 1e-6, "log": 0.01},
    "newsgroups_penalty": {"outer_lr": 100.0, "inner_lr": 100.0, "lam": 0.01},
    "newsgroups_hoag": {"outer_lr": 100.0, "inner_lr": 100.0, "T": 10, "Q": 10},
    "newsgroups_upper_only": {"lower_lr": 100.0, "lower": {"rule": "momentum"}},
}  # fmt: skip
TUNED_RUNS = {
    "hyper_cleaning_upper_only": {"steps": 5000, "every": 50},
    "newsgroups_upper_only": {"steps": 300, "every": 10},
}

BARRIER_BY_VALUE = {
    "barrier": "value", "inner_momentum": 0.9, "keep_velocity": True, "eps": 1e-8,
}  # fmt: skip
# experiment -> (settings of the method, steps); toy_convergence.py, toy_adv.py, toy_lls.py
EXPERIMENTS: dict[str, tuple[dict[str, Any], int]] = {
    "toy_coreset_code_bome": ({"eps": 1e-4}, 5000),
    "toy_coreset_code_bsg1": ({"eps": 1e-50}, 5000),
    "toy_coreset_code_bvfsm": (
        {"variant": "code", "decay": "constant", "horizon": 5000, "l2": 0.1, "log": 0.1}, 5000,
    ),
    "toy_coreset_code_penalty": (
        {"multiplier": "mean", "lam": 0.1, "eps": 0.01, "gamma": 0.01}, 5000,
    ),
    "toy_minimax_code_bome": ({"eps": 1e-8}, 200),
    "toy_minimax_code_bsg1": ({"eps": 1e-50}, 200),
    "toy_minimax_code_bvfsm": (
        {"variant": "code", "decay": "constant", "horizon": 200, "l2": 0.1, "log": 1.0}, 200,
    ),
    "toy_minimax_code_optimistic_gd": ({"variant": "code"}, 2000),
    "toy_minimax_code_penalty": (
        {"multiplier": "mean", "lam": 1.0, "eps": 0.1, "gamma": 0.01}, 200,
    ),
    "toy_degenerate_code_bome": ({"T": 1, "eps": 1e-8}, 2000),
    "toy_degenerate_code_bsg1": ({"T": 1, "eps": 1e-8}, 2000),
    "toy_degenerate_code_bvfsm": (
        {
            "T": 1, "variant": "code", "decay": "constant", "horizon": 2000, "l2": 0.1,
            "log": 0.001,
        },
        2000,
    ),
    "toy_degenerate_code_penalty": (
        {"T": 1, "multiplier": "mean", "lam": 0.1, "eps": 0.1, "gamma": 0.01}, 2000,
    ),
    # data_cleaning.py (the middle of its grid) and l2reg.py with grid.py
    "hyper_cleaning_code_bome": (
        {**MOMENTUM_100, "lower_lr": 0.01, "lower": {"rule": "momentum"}, "barrier": "value",
         "eps": 1e-8},
        5000,
    ),
    "newsgroups_code_bome": (
        {**MOMENTUM_100, "lower_lr": 100.0, "lower": {"rule": "momentum"}, "eta": 1e-4,
         **BARRIER_BY_VALUE}, 1000,
    ),
}  # fmt: skip


def written(group: str, name: str) -> dict[str, Any]:
    """What a yaml says, before it is composed, but for a method's search space."""
    found: Any = OmegaConf.to_container(OmegaConf.load(CONF / group / f"{name}.yaml"))
    return {key: value for key, value in found.items() if key != TUNING}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_methods_settings(name: str) -> None:
    found = written("algorithm", name)
    assert found.pop("_target_").rpartition(".")[2] == name
    rules = [{f"/descent@{which}": "default"} for which in STEPS.get(name, [])]
    assert found.pop("defaults", []) == ([*rules, "_self_"] if rules else [])
    assert found == ALGORITHMS[name] | {"batch": None}


@pytest.mark.parametrize("name", TASKS)
def test_a_tasks_settings(name: str) -> None:
    found = written("task", name)
    assert found.pop("_target_").rpartition(".")[2] == name
    assert found == TASKS[name]


def test_the_default_step() -> None:
    """Plain descent with .05; momentum .9; Adam's b1, b2 and eps as its paper has them."""
    found = written("descent", "default")
    del found["_target_"]
    assert found == {
        "rule": "gd", "momentum": 0.9, "b1": 0.9, "b2": 0.999, "eps": 1e-8,
    }  # fmt: skip


@pytest.mark.parametrize("pair", TUNED)
def test_tuned_settings(pair: str) -> None:
    found = written("tuned", pair)
    assert found["algorithm"] == TUNED[pair]
    assert found.get("run") == TUNED_RUNS.get(pair)
    assert set(found) <= {"algorithm", "run"}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_released_settings(name: str) -> None:
    """Each names its task and method; the toys are measured 50 times, and all are "code"."""
    found, (settings, steps) = written("experiment", name), EXPERIMENTS[name]
    task, _, method = name.partition("_code_")
    overridden = {key: value for entry in found["defaults"] for key, value in entry.items()}
    assert overridden.pop("override /task/data", "mnist") == "mnist"
    assert overridden == {"override /task": task, "override /algorithm": method}
    assert found["algorithm"] == settings
    assert found["run"]["steps"] == steps
    assert found["run"]["every"] == (steps // 100 if "toy" not in name else steps // 50)
    own = found["task"]
    assert own.pop("variant") == "code"
    if task == "hyper_cleaning":
        assert own.pop("pretraining") == {"steps": 5000, "with_validation": True, "best": True}
    assert own == {}


@pytest.mark.parametrize(("data", "l2"), [("clean", None), ("noisy", 0.001), ("validation", None)])
def test_reference_lines(data: str, l2: float | None) -> None:
    """data_cleaning.py, simple_train: .001 |theta|^2 is added on the noisy line alone."""
    found = written("experiment", f"hyper_cleaning_line_{data}")
    assert found["task"] == {"upper_data": data, "references": False, "pretraining": {"steps": 0}}
    assert found.get("algorithm") == ({"l2": l2} if l2 else None)
    assert found["defaults"] == [
        {"override /task": "hyper_cleaning"}, {"override /algorithm": "upper_only"},
    ]  # fmt: skip
