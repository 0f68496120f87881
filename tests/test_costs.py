"""What a method says that its steps cost, held against what the oracle counts, for every yaml.

Every method takes its first twelve steps, so that restarts, epochs, growing loops and the borders
of a stream's tasks are among them.
"""

import sys
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from bench.core.algorithm import KEYS, Algorithm, Cost, Moment
from bench.core.draw import Draw
from bench.core.loop import first
from bench.core.oracle import Oracle
from bench.core.task import Batch, Context, Derivatives, Partials, Task, Wrt
from tests import test_algorithms, test_continual
from tests.conftest import ROOT
from tests.steps import streams, test_meta

STEPS = 12
NAMES = sorted(path.stem for path in (ROOT / "conf" / "algorithm").glob("*.yaml"))
NEVER = 1e-30  # a tolerance that is never met
INNER = [{"T": 1}, {"T": 4}]
TWO_LOOPS = [{"T": 1, "Q": 1}, {"T": 4, "Q": 3}]

# the settings to try; a yaml that is not here is tried as it is
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "af2obo": [{"cap": cap, "delta_y": NEVER, "delta_z": NEVER} for cap in (0, 1, 3)] + [{}],
    "aid_bio": [{"T": 1, "N": 1}, {"T": 4, "N": 3}, {"c": 2.5, "N": 1}],
    "aid_cg": [{"T": 4, "K": 1}, {"T": 4, "K": 3}],
    "aid_fp": [{"T": 4, "K": 1}, {"T": 4, "K": 3}],
    "aid_neumann": [{"T": 4, "K": 0}, {"T": 4, "K": 3}],
    "amigo": TWO_LOOPS,
    "anil": [{"T": 2}],
    "aobo": [{"Q": q, "cap": cap, "delta": NEVER} for q, cap in ((1, 1), (4, 3))] + [{}],
    "bome": [{"T": 1}, *({"T": 4, "barrier": b} for b in ("norm", "unsquared", "value"))],
    "bsa": [{"T": 1, "Q": 1}, {"T": 4, "Q": 3}],
    "bsg1": INNER,
    "bvfsm": [{"T": 1, "variant": "code"}, {"T": 4, "variant": "code"}, {"T": 4}],
    "ctn_bome": [{}, {"outer_steps": 1, "past": "all"}],
    "er": [{}, {"steps": 3, "memory": 2, "replay": 5}],
    "f2obo": [{"K": 1}, {"K": 4}],
    "f2sa": INNER,
    "fo_itd": INNER,
    "fw": [{"rule": "gap"}, {"rule": "decreasing"}, {"rule": "line"}],
    "gem": [{}, {"steps": 3, "memory": 2}],
    "hoag": [{"T": t, "Q": q, "tolerance": NEVER} for t, q in ((1, 1), (4, 3))] + [{}],
    "itd": INNER,
    "learn2learn": INNER,
    "maml": INNER,
    "mer": [
        {},
        {"batches": 2, "length": 3, "group": 2},
        {"length": 1, "group": 3},
        {"batches": 2, "length": 2, "group": 3},
        {"batches": 2, "length": 2, "group": 16},
    ],
    "mrbo": [{"Q": 1}, {"Q": 3}],
    "mseba": [{}, {"chance": 0.5, "estimator": "released"}],
    "ncgs": [
        {"prox": "exact", "option": "I"},
        {"prox": "exact", "option": "II"},
        {"prox": "exact", "growing": True, "batch": 4},
        {},
        {"cap": 2, "eta": 1e-12, "option": "I"},
        {"cap": 2, "eta": 1e-12, "option": "II"},
    ],
    "ncgs_vr": [{"prox": "exact"}, {}, {"cap": 2, "eta": 1e-12, "epoch": 4}],
    "oagd": [{"K": 1, "Q": 1}, {"K": 4, "Q": 3}, {"K": 4, "Q": 0, "window": 1}],
    "obbo": [{"K": 1}, {"K": 4}],
    "optimistic_gd": [{"variant": "paper"}, {"variant": "code"}],
    "optuna_tpe": INNER,
    "penalty": INNER,
    "pzobo": [{"T": 1, "directions": 1}, {"T": 4, "directions": 3}],
    "random_search": INNER,
    "reverse": [{"T": 4, "K": 1}, {"T": 4, "K": 3}],
    "sf2obo": [
        {"K": 1},
        {"K": 4},
        {"K": 4, "growing": True, "a": 0.2, "B1": 1.0, "B2": 0.5, "batch": 4},
    ],
    "saba": [{}, {"upper_blocks": 4}],
    "sffba": [{}, {"estimator": "released", "upper_blocks": 4}],
    "soba": [{"average": 1.0}, {"average": 0.5}],
    "sobbo": [{"K": 1}, {"K": 4}],
    "sobow": [{"Q": 1, "window": 1}, {"Q": 5, "window": 3}, {"Q": 2, "growth": 0.5}],
    "spaba": [{}, {"chance": 0.5, "clip": 1.0}, {"chance": 0.0}, {"chance": 1.0}],
    "srba": [{}, {"period": 5}],
    "stocbio": [
        {"T": 1, "Q": 1},
        {"T": 4, "Q": 3},
        {"T": 4, "Q": 3, "variant": "code"},
        {"T": 4, "Q": 3, "batch": 4, "shrink": 0.5},
        {"T": 4, "Q": 3, "batch": 4, "inner_batch": 3},
        {"T": 4, "Q": 3, "batches": "fixed"},
        {"T": 4, "Q": 3, "batches": "shuffled"},
        {"T": 4, "Q": 3, "inner_momentum": 0.9},
    ],
    "sustain": [{"Q": 1}, {"Q": 3}],
    "svfw": [{}, {"epoch": 1}],
    "svrg": [{}, {"epoch": 5}],
    "trhg": [{"T": 4, "K": 2}],
    "ttsa": [{"Q": 1}, {"Q": 3}],
    "vpbgd": INNER,
    "vrbo": [
        *TWO_LOOPS,
        {"period": 1},
        {"variant": "code", "batch": 4},
        {"batch": 4, "upper_batch": 3},
    ],
}


class Case(NamedTuple):
    """A method with some settings, on a task that it can work on."""

    task: Task
    algorithm: Algorithm
    settings: dict[str, Any]
    steps: int = STEPS
    episodes: int = 1


class Step(NamedTuple):
    """A step's cost as the method says it, and the oracle that counted."""

    cost: Cost
    oracle: Oracle
    data: int  # the samples of each level


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    """learn2learn by its documentation, whether it is installed or not."""
    for name in ("learn2learn", "learn2learn.algorithms"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["learn2learn.algorithms"].MAML = test_meta.Copies  # type: ignore[attr-defined]


def cases(name: str) -> Iterator[Case]:
    """Every setting to try, with all the data and with batches of 8 where it names no batch."""
    for settings in SETTINGS.get(name, [{}]):
        if name in test_algorithms.STREAMING:
            algorithm = test_continual.made(name, **settings)
            yield Case(streams.stream(), algorithm, settings)
            if "group" in settings:  # 3 and 16 divide no batch of 10
                yield Case(test_continual.streamed(batch=10), algorithm, settings, steps=4)
        elif name in test_algorithms.EPISODIC:
            algorithm = test_algorithms.made(name, **settings)
            yield Case(
                test_meta.episodes(), algorithm, settings, test_meta.STEPS, episodes=test_meta.M
            )
        else:
            task = test_algorithms.problem_for(name, Context(dtype=torch.float64))
            for batch in (None, 8) if "batch" not in settings else (settings["batch"],):
                whole = settings | {"batch": batch}
                yield Case(task, test_algorithms.made(name, **whole), whole)


def moment(case: Case, step: int) -> Moment:
    """Where the case stands before this step."""
    stream = case.task.stream
    if stream is None:
        return Moment(step, case.episodes)
    task = stream.task(step)
    return Moment(step, 1, stream.batch, task, step - task * stream.steps)


def steps_of(case: Case) -> Iterator[Step]:
    """The case's first steps."""
    state = first(case.task, case.algorithm, 0).state
    for k in range(case.steps):
        oracle, draw = Oracle(case.task, case.algorithm.first_order), Draw(case.task, 0, k)
        with torch.no_grad():
            state, _ = case.algorithm.step(oracle, state, draw)
        cost = case.algorithm.cost_at(moment(case, k))
        assert cost is not None
        yield Step(cost, oracle, case.task.data.count(Draw(case.task, 0, k).g()))


def samples(cost: Cost, data: int) -> dict[str, float]:
    """The samples of all its calls together, by key."""
    total = dict.fromkeys(KEYS, 0.0)
    for part in cost.parts:
        size = data if part.batch is None else part.batch
        for key in KEYS:
            total[key] += part.calls[key] * size / part.blocks
    return {key: n for key, n in total.items() if key not in ("lmo", "project")}


def certain_part(cost: Cost) -> Cost:
    """The parts of a cost that are called in any case."""
    return sum((part for part in cost.parts if not part.at_most), Cost())


@pytest.mark.parametrize("name", NAMES)
def test_a_step_costs_what_its_method_says(name: str) -> None:
    """Counts and samples: the exact ones are equal, the others at most what they may be."""
    for case in cases(name):
        for k, (cost, oracle, data) in enumerate(steps_of(case)):
            where = f"{case.settings}, step {k}"
            least, most = certain_part(cost).calls, cost.calls
            for key in KEYS:
                assert least[key] <= oracle.calls[key] <= most[key], f"{key}: {where}"
            fewest, largest = samples(certain_part(cost), data), samples(cost, data)
            if case.settings.get("batches") in ("fixed", "shuffled") and case.settings["batch"]:
                fewest = dict.fromkeys(fewest, 0.0)  # their parts are of at most `batch` samples
            for key, n in largest.items():
                assert fewest[key] <= oracle.samples[key] <= n, f"samples of {key}: {where}"
            assert not set(oracle.calls) - set(KEYS)


def uncertain_calls(cost: Cost) -> dict[str, int]:
    """The keys of which a step may call fewer, with the most that it calls."""
    sure = certain_part(cost).calls
    return {key: n for key, n in cost.calls.items() if n > sure[key]}


@pytest.mark.parametrize("name", NAMES)
def test_what_a_step_calls_at_most_it_calls_in_some_case(name: str) -> None:
    reached: dict[str, bool] = {}
    found = list(cases(name))
    if name == "fw":
        found.append(uphill())
    for case in found:
        for step in steps_of(case):
            for key, most in uncertain_calls(step.cost).items():
                reached[key] = reached.get(key, False) or step.oracle.calls[key] == most
    assert all(reached.values()), reached


def uphill() -> Case:
    """Frank-Wolfe with a gradient of the wrong sign: its line search fails to the last trial."""
    task = test_algorithms.problem_for("fw", Context(dtype=torch.float64))

    def grad(x: Tensor, y: Tensor, batch: Batch, wrt: Wrt) -> Partials:
        leaf = x.detach().requires_grad_()
        with torch.enable_grad():
            (f_x,) = torch.autograd.grad(task.upper(leaf, y, batch), leaf)
        return -f_x, torch.zeros_like(y)

    wrong = replace(task, upper_derivatives=Derivatives(grad))
    return Case(wrong, test_algorithms.made("fw", rule="line"), {}, steps=2)


@pytest.mark.parametrize("name", NAMES)
def test_every_method_says_what_its_steps_cost(name: str) -> None:
    case = next(cases(name))
    cost = case.algorithm.cost_at(moment(case, 0))
    assert cost is not None
    assert sum(cost.calls.values()) > 0


@pytest.mark.parametrize(("group", "calls"), [(1, 10), (3, 4), (5, 2), (10, 1), (16, 1)])
def test_mer_sees_each_sample_of_the_stream_once(group: int, calls: int) -> None:
    """Without replay: 10 samples in groups, of which the last may be smaller."""
    cost = test_continual.made("mer", length=1, group=group).cost_at(Moment(samples=10))
    assert cost is not None
    assert cost.calls["grad_g"] == calls
    assert samples(cost, 0)["grad_g"] == 10


def test_costs_add_up_part_by_part() -> None:
    inner = Cost(grad_g=2, grad_f=1, lmo=1, batch=8, blocks=2)
    cost = inner * 3 + Cost(grad_g=5, at_most=True)
    assert cost.parts == (
        Cost(grad_g=6, grad_f=3, lmo=3, batch=8, blocks=2),
        Cost(grad_g=5, at_most=True),
    )
    assert cost.calls == dict.fromkeys(KEYS, 0) | {"grad_g": 11, "grad_f": 3, "lmo": 3}
    assert samples(cost, 64) == samples(Cost(), 64) | {"grad_g": 6 * 4 + 5 * 64, "grad_f": 12.0}
    assert (cost * 2).calls["grad_g"] == 22


def test_on_handed_batches_a_cost_has_their_sizes_and_the_same_calls() -> None:
    cost = Cost(grad_g=2, grad_f=1, project=1, batch=8) + Cost(hvp_g=3, blocks=4, at_most=True)
    handed = cost.on(upper=5, lower=7)
    assert handed.calls == cost.calls
    found = samples(handed, 64)
    assert (found["grad_f"], found["grad_g"], found["hvp_g"]) == (5, 14, 21)
    assert uncertain_calls(handed) == {"hvp_g": 3}


def test_a_method_that_says_nothing_has_no_cost() -> None:
    assert Algorithm(print, print).cost_at(Moment()) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NAMES)
def test_a_method_that_takes_no_second_derivative_promises_so(name: str) -> None:
    """Its oracle refuses them then, and the league compares such methods with each other."""
    for case in cases(name):
        if case.task.lower is not None:
            moments = (moment(case, k) for k in range(case.steps))
            costs = [cost for m in moments if (cost := case.algorithm.cost_at(m)) is not None]
            takes = any(cost.calls["hvp_g"] or cost.calls["jvp_g"] for cost in costs)
            assert case.algorithm.first_order == (not takes), case.settings
