"""The defaults of the methods with second derivatives: what their papers or released codes have."""

import importlib
import inspect
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.core.settings import TUNING

CONF = Path(__file__).parent.parent / "conf"

# stocBiO's code for newsgroups (T, hessian_q, inner_mu) and the deterministic methods of its figure
# 4 have 10 steps of each kind, no momentum and all the data
LOOPS = {"T": 10, "batch": None}
UNROLLED = LOOPS | {"inner_momentum": 0.0}
# SUSTAIN, Theorem 1, and MRBO, Theorem 1: alpha_k = (w + k)^{-1/3}; benchmark_bilevel has
# eta = .5 for both momentum coefficients
DOUBLE_MOMENTUM = {"Q": 10, "a_upper": 0.5, "a_lower": 0.5, "decay": 0.3333, "batch": None}

# ZeroSARAH, corollary 1: lambda = b / (2 n), and no bound on v
ZEROSARAH = {"estimator": "paper", "weight": None, "clip": None, "blocks": 64}

# yaml -> (its function, whether x moves by a rule of conf/descent, its settings with a default)
SETTINGS: dict[str, tuple[str, bool, dict[str, Any]]] = {
    # SOBA is MA-SOBA with an average of one term; the rates stand still unless told otherwise
    "soba": ("soba.soba", True, {"average": 1.0, "decay": 0.0, "batch": None}),
    # FSLA in benchmark_bilevel: all rates fall as k^{-1/2}
    "fsla": ("soba.fsla", False, {"eta": 0.5, "decay": 0.5, "batch": None}),
    # AmIGO in benchmark_bilevel: 10 warm-started steps of each
    "amigo": ("soba.amigo", True, LOOPS | {"Q": 10}),
    "aid_cg": ("aid.aid_cg", True, UNROLLED | {"K": 10}),
    "aid_fp": ("aid.aid_fp", True, UNROLLED | {"K": 10}),
    "aid_neumann": ("aid.aid_neumann", True, UNROLLED | {"K": 10}),
    "aid_bio": ("aid_bio.aid_bio", True, LOOPS | {"N": 10, "c": None}),
    "itd": ("itd.itd", True, UNROLLED),
    "fo_itd": ("itd.fo_itd", True, UNROLLED),
    "reverse": ("itd.reverse", True, UNROLLED | {"K": 10}),
    # Algorithms 2 and 3 as printed, batches of one size as in the experiments
    "stocbio": (
        "stocbio.stocbio",
        True,
        LOOPS
        | {"Q": 10, "variant": "paper", "shrink": 0.0, "batches": "drawn", "inner_batch": None}
        | {"inner_momentum": 0.0},
    ),
    # single samples (Ghadimi and Wang, 2018; stocBiO, appendix A)
    "bsa": ("bsa.bsa", True, LOOPS | {"Q": 10, "decay": 0.0, "batch": 1}),
    # Theorem 1: alpha_k of order k^{-3/5} and beta_k of order k^{-2/5}; single samples
    "ttsa": (
        "bsa.ttsa",
        False,
        {"Q": 10, "outer_decay": 0.6, "inner_decay": 0.4, "batch": 1, "outer_rule": "gd"},
    ),
    "sustain": ("storm.sustain", False, DOUBLE_MOMENTUM),
    "mrbo": ("storm.mrbo", False, DOUBLE_MOMENTUM),
    # VRBO's code for hyper-cleaning (mnist_exp.py): spider_epoch 3, hessian_q 3
    "vrbo": (
        "spider.vrbo",
        False,
        {"T": 3, "Q": 3, "period": 3, "batch": None, "variant": "paper"}
        | {"outer_momentum": 0.0, "upper_batch": None},
    ),
    "srba": ("spider.srba", False, {"period": 100, "batch": None}),
    "saba": ("saba.saba", False, {"blocks": 64, "upper_blocks": None}),
    # the solvers offered to benchmark_bilevel (pull request 47): chances of .1 and .05
    "spaba": ("spider.spaba", False, {"chance": 0.1, "clip": None, "batch": None}),
    "sffba": ("zerosarah.sffba", False, ZEROSARAH | {"upper_blocks": None}),
    "mseba": ("zerosarah.mseba", False, ZEROSARAH | {"chance": 0.05, "batch": None}),
}
# a step size of its own for the linear system or its series: benchmark_bilevel's is the inner one
SECOND_RATE = {
    "system_lr": {"soba", "fsla", "amigo", "spaba", "sffba", "mseba"},
    "eta": {"aid_neumann", "stocbio", "bsa", "ttsa", "sustain", "mrbo", "vrbo"},
}


def written(group: str, name: str) -> dict[str, Any]:
    """A yaml as it stands, but for a method's search space."""
    values: dict[str, Any] = yaml.safe_load((CONF / group / f"{name}.yaml").read_text())
    return {key: value for key, value in values.items() if key != TUNING}


def assert_defaults(target: str, expected: dict[str, Any]) -> None:
    """Who calls the function without a yaml gets the same; to 1e-3 where a yaml rounds a third."""
    module, _, function = target.rpartition(".")
    called = getattr(importlib.import_module(module), function)
    parameters = inspect.signature(called).parameters.values()
    given = {p.name: p.default for p in parameters if p.default is not p.empty}
    assert given.keys() == expected.keys()
    for name, value in given.items():
        stated = expected[name]
        assert value == (pytest.approx(stated, rel=1e-3) if stated == 0.3333 else stated), name


@pytest.mark.parametrize("name", SETTINGS)
def test_yaml_and_function_have_the_sources_defaults(name: str) -> None:
    """Every rate is .05 where no source has one for all problems."""
    function, by_rule, expected = SETTINGS[name]
    target = f"algorithms.bilevel.{function}"
    rates: dict[str, Any] = {"outer_lr": 0.05, "inner_lr": 0.05}
    for setting, names in SECOND_RATE.items():
        if name in names:
            rates[setting] = "${.inner_lr}"
    values = written("algorithm", name)
    rule = values.pop("defaults", [])
    assert rule == ([{"/descent@outer": "default"}, "_self_"] if by_rule else [])
    assert values == {"_target_": target} | rates | expected
    assert_defaults(target, expected)


def test_t_rhg_goes_back_a_few_of_the_steps() -> None:
    """The same function as `reverse`, which goes back them all."""
    assert written("algorithm", "trhg") == written("algorithm", "reverse") | {"K": 3}


def test_rules_of_the_outer_step_have_their_papers_defaults() -> None:
    """Adam: b1 = .9, b2 = .999, eps = 1e-8 (Kingma and Ba, Algorithm 1)."""
    rules = {"rule": "gd", "momentum": 0.9, "b1": 0.9, "b2": 0.999, "eps": 1e-8}
    values = written("descent", "default")
    assert {k: float(v) if k == "eps" else v for k, v in values.items()} == {
        "_target_": "bench.numerics.descent.descent",
        **rules,
    }
    assert_defaults("bench.numerics.descent.descent", rules)
    assert_defaults("bench.numerics.descent.adam", {k: rules[k] for k in ("b1", "b2", "eps")})
    assert_defaults("bench.numerics.descent.heavy_ball_descent", {"momentum": 0.9})
    assert written("descent", "clamped") == {
        "_target_": "bench.numerics.descent.clamped", "at": 1.0,
    }  # fmt: skip
    assert_defaults("bench.numerics.descent.clamped", {"at": 1.0})
    falling = written("descent", "decaying")
    assert {k: float(v) if k == "eps" else v for k, v in falling.items()} == {
        "_target_": "bench.numerics.descent.decaying", "decay": 0.5, **rules,
    }  # fmt: skip
    assert_defaults("bench.numerics.descent.decaying", {"decay": 0.5, **rules})
