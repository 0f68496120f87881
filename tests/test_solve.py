"""`bench.solve`: losses, data, starts and sets in a caller's own form."""

import math
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hydra import initialize_config_module
from hydra import version as hydra_version
from hydra.core.global_hydra import GlobalHydra
from torch import Generator, Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

import bench
from bench import (
    Algorithm,
    BadSetting,
    Cost,
    Diverged,
    Draw,
    Functional,
    Interrupted,
    Oracle,
    Positive,
    Solution,
    box,
    l2_ball,
    methods,
    nuclear_ball,
    solve,
    spanning_trees,
)
from bench.core.draw import generator
from bench.numerics.descent import Descent, gd
from bench.runs.screen import Screen, can_show_bar
from bench.solving import call as calling
from bench.solving import methods as listed
from tests.conftest import ROOT

A = torch.randn(20, 3, generator=generator("solve", "A"), dtype=torch.float64)
a = A @ torch.tensor([1.0, -1.0, 2.0]).double()


def upper(x, y):  # type: ignore[no-untyped-def]
    """|y - 1|^2 + |x|^2 / 10 on any two tensors."""
    return (y - 1).square().sum() + x.square().sum() / 10


def lower(x, y):  # type: ignore[no-untyped-def]
    """y follows x."""
    return (y - x).square().sum()


def zeros(*shape: int) -> Tensor:
    return torch.zeros(*shape, dtype=torch.float64)


CONF = ROOT / "conf"
QUICK: dict[str, Any] = {"method": "aid_cg", "steps": 40, "outer_lr": 0.2, "inner_lr": 0.2}
BEST = 10 / 11  # of x, where y = x


def test_a_tensor_keeps_its_shape() -> None:
    x0, y0 = zeros(2, 3), zeros(2, 3)
    found = solve(upper, lower, x0, y0, **QUICK)
    torch.testing.assert_close(found.x, torch.full((2, 3), BEST).double(), rtol=0, atol=1e-5)
    torch.testing.assert_close(found.y, found.x, rtol=0, atol=1e-4)
    assert not x0.any()
    assert not y0.any()
    assert not found.x.requires_grad
    assert found.hypergradient_norm is not None
    assert found.hypergradient_norm < 1e-4


def test_trees_come_as_they_went() -> None:
    seen: list[Any] = []

    def f(x, y):  # type: ignore[no-untyped-def]
        seen.append(x)
        return sum(upper(x["a"], part) for part in y) + x["b"][0].square()

    def g(x, y):  # type: ignore[no-untyped-def]
        return sum(lower(x["a"], part) for part in y)

    x0 = {"a": zeros(2), "b": [zeros(()) + 1]}
    found = solve(f, g, x0, (zeros(2), zeros(2)), **QUICK | {"steps": 60})
    assert seen[0]["a"].shape == (2,)
    assert seen[0]["b"][0].shape == ()
    assert list(found.x) == ["a", "b"]
    assert isinstance(found.y, tuple)
    best = 20 / 22  # of 2 (x - 1)^2 + 2 x^2 / 10
    torch.testing.assert_close(found.x["a"], torch.full((2,), best).double(), rtol=0, atol=1e-5)
    torch.testing.assert_close(found.y[1], found.x["a"], rtol=0, atol=1e-4)
    assert abs(float(found.x["b"][0])) < 1e-3


def test_a_module_is_called_as_it_is_and_left_alone() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    net[0].bias.requires_grad_(False)
    before = {key: value.clone() for key, value in net.state_dict().items()}

    def f(x: Tensor, y: Functional) -> Tensor:
        return (y(A)[:, 0] - a).square().mean() + 0 * x

    def g(x: Tensor, y: Functional) -> Tensor:
        penalty = torch.stack([p.square().sum() for p in y.parameters()]).sum()
        assert [key for key, _ in y.named_parameters()] == list(before)
        return (y(A)[:, 0] - a).square().mean() + 0.01 * x.exp() * penalty

    found = solve(f, g, zeros(()), net, method="itd", steps=30, inner_lr=0.1)
    assert all(torch.equal(before[key], value) for key, value in net.state_dict().items())
    assert isinstance(found.y, nn.Sequential)
    assert found.y is not net
    assert torch.equal(found.y[0].bias, net[0].bias)  # a frozen parameter stays
    assert not found.y[0].bias.requires_grad
    assert found.y[2].bias.requires_grad
    losses = [float((each(A)[:, 0] - a).square().mean().detach()) for each in (net, found.y)]
    assert losses[1] < losses[0] / 2
    assert found.history[-1]["upper_loss"] == pytest.approx(losses[1], rel=1e-9)


def test_a_module_may_be_a_leaf_and_its_buffers_stay() -> None:
    net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).double()

    def g(x, y):  # type: ignore[no-untyped-def]
        return (y["net"](A).sum(1) - a).square().mean() + (y["shift"] - x).square()

    y0 = {"net": net, "shift": zeros(())}
    with pytest.warns(UserWarning, match="the running statistics of BatchNorm1d stay as they were"):
        found = solve(lambda x, y: g(x, y), g, zeros(()), y0, method="soba", steps=5)
    assert torch.equal(found.y["net"][1].running_mean, zeros(2))
    assert int(found.y["net"][1].num_batches_tracked) == 0
    assert not torch.equal(found.y["net"][0].weight, net[0].weight)


def data_loss(x, y, batch):  # type: ignore[no-untyped-def]
    rows, answers = batch
    return (rows @ y - answers).square().mean() + 0 * x.sum()


def ridge_loss(x, y, batch):  # type: ignore[no-untyped-def]
    return data_loss(x, y, batch) + x.exp() * y.square().sum()


class Rows(Dataset):  # type: ignore[type-arg]
    """The rows as a Dataset that is no TensorDataset."""

    def __len__(self) -> int:
        return len(A)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return A[i], a[i]


def by_hand(rng: Generator, size: int | None) -> tuple[Tensor, Tensor]:
    chosen = torch.arange(20) if size is None else torch.randint(20, (size,), generator=rng)
    return A[chosen], a[chosen]


def test_data_of_every_kind_gives_the_same_batches() -> None:
    ends = []
    for data in ((A, a), TensorDataset(A, a), Rows(), by_hand):
        for batch in (None, 4):
            found = solve(
                data_loss, ridge_loss, zeros(()), zeros(3), "soba", steps=6, every=3, batch=batch,
                upper_data=data, lower_data=data,
            )  # fmt: skip
            ends.append((batch, found))
    for batch in (None, 4):
        first, *others = [found for size, found in ends if size == batch]
        assert first.samples["grad_g"] == 6 * (batch or 20)
        for other in others:
            assert torch.equal(first.y, other.y)
            assert first.samples == other.samples
            assert first.history[-1]["lower_loss"] == other.history[-1]["lower_loss"]
    assert not torch.equal(ends[0][1].y, ends[1][1].y)


def test_the_seed_names_the_batches() -> None:
    def end(seed: int) -> Tensor:
        found = solve(
            data_loss, ridge_loss, zeros(()), zeros(3), "stocbio", steps=3, seed=seed, batch=2,
            upper_data=(A, a), lower_data=(A, a),
        )  # fmt: skip
        assert found.seed == seed
        return found.y  # type: ignore[no-any-return]

    assert torch.equal(end(0), end(0))
    assert not torch.equal(end(0), end(1))


def test_a_drawing_function_may_use_the_step() -> None:
    steps = set()

    def drift(rng: Generator, size: int | None, step: int) -> Tensor:
        steps.add(step)
        return torch.tensor(float(step)).double()

    def f(x, y, t):  # type: ignore[no-untyped-def]
        return (y - t).square().sum() + 0 * x.sum()

    solve(f, lower, zeros(1), zeros(1), "f2obo", steps=5, upper_data=drift)
    assert steps == set(range(6))


def test_a_step_is_not_put_in_another_arguments_place() -> None:
    seen = []

    def draw(rng: Generator, size: int | None, noise: float = 0.1) -> Tensor:
        seen.append(noise)
        return torch.ones(1).double()

    def f(x, y, t):  # type: ignore[no-untyped-def]
        return (y - t).square().sum() + 0 * x.sum()

    solve(f, lower, zeros(1), zeros(1), "f2obo", steps=3, upper_data=draw)
    assert set(seen) == {0.1}
    solve(f, lower, zeros(1), zeros(1), "f2obo", steps=3, upper_data=lambda *_: torch.ones(1))


def test_blocks_are_cut_of_rows() -> None:
    found = solve(
        data_loss, ridge_loss, zeros(()), zeros(3), "saba", steps=4, blocks=5,
        upper_data=(A, a), lower_data=(A, a),
    )  # fmt: skip
    assert found.samples["grad_g"] == 20 + 4 * 4
    with pytest.raises(
        BadSetting, match=r"^blocks=64 \(or upper_blocks, .*\): the upper level has 20 rows"
    ):
        solve(data_loss, ridge_loss, zeros(()), zeros(3), "saba",
              upper_data=(A, a), lower_data=(A, a))  # fmt: skip


def test_history_and_table() -> None:
    times = [0]

    def measure(x, y):  # type: ignore[no-untyped-def]
        times[0] += 1
        return {"off": (x - BEST).norm(), "times": times[0]}

    found = solve(upper, lower, zeros(1), zeros(1), **QUICK, every=20, evaluate=measure)
    assert [row["step"] for row in found.history] == [0, 20, 40]
    assert found.history[0]["upper_loss"] == 1.0
    assert found.history[-1]["off"] < 1e-4
    assert found.history[-1]["times"] == 3.0
    assert found.calls == {"grad_g": 400, "grad_f": 40, "hvp_g": 400, "jvp_g": 40}
    table = found.table()
    assert {len(column) for column in table.values()} == {3}
    assert table["calls/grad_g"] == [0, 200, 400]
    assert math.isnan(table["info/hypergrad_sq"][0])
    assert table["step"] == [0, 20, 40]
    assert found.settings["outer"]["rule"] == "gd"
    assert found.method == "aid_cg"
    assert "history" not in repr(found)


def test_settings_reach_the_method_and_interpolations_follow() -> None:
    found = solve(upper, lower, zeros(1), zeros(1), "bome", steps=2, lower_lr=0.3,
                  outer_rule="adam", lower_rule={"rule": "momentum", "momentum": 0.5})  # fmt: skip
    settings = found.settings
    assert settings["inner_lr"] == 0.3
    assert settings["outer"]["rule"] == "adam"
    assert settings["lower"] | {"eps": 0} == {
        "rule": "momentum", "momentum": 0.5, "b1": 0.9, "b2": 0.999, "eps": 0
    }  # fmt: skip
    of_steps = solve(lambda x: (x - 2).square().sum(), x0=zeros(3), method="ncgs", steps=7,
                     x_in=l2_ball(1.0))  # fmt: skip
    assert of_steps.settings["N"] == 7


def test_a_rule_is_found_by_its_settings() -> None:
    """Two steps of size .5 and .5 / sqrt(2) along the sign of the slope: Adam with b1 = b2 = 0."""
    rule = {"rule": "adam", "decay": 0.5, "b1": 0.0, "b2": 0.0, "eps": 0.0}
    start = zeros(1) + 10
    found = solve(upper, lower, start, start, "itd", steps=2, outer_lr=0.5, outer_rule=rule)
    assert abs(found.x - start).item() == pytest.approx(0.5 + 0.5 / 2**0.5, rel=1e-6)
    cut = solve(upper, lower, start, start, "itd", steps=1, outer_lr=0.5, outer_rule={"at": 0.1})
    assert abs(cut.x - start).item() == pytest.approx(0.5 * 0.1, rel=1e-6)


def test_a_rule_keeps_the_methods_own_settings() -> None:
    own = {"_target_": "a", "rule": "momentum", "momentum": 0.3}
    rule = listed.rule_with({"decay"}, own)
    assert rule["_target_"].endswith("decaying")
    assert (rule["rule"], rule["momentum"]) == ("momentum", 0.3)
    assert listed.rule_with({"momentum"}, own) == own
    assert listed.rule_with({"decay", "unknown"}, own) == own


def test_variants_are_settings() -> None:
    ends = [
        solve(upper, lower, zeros(1), zeros(1), "stocbio", steps=3, variant=variant).x
        for variant in ("paper", "code")
    ]
    assert not torch.equal(*ends)


def test_minimax_and_a_single_level() -> None:
    def f(x, y):  # type: ignore[no-untyped-def]
        return (x - 1).square().sum() / 4 + (x * y).sum() - y.square().sum() / 4

    found = solve(f, None, zeros(2), zeros(2), "gda", steps=300)
    torch.testing.assert_close(found.x, torch.full((2,), 0.2).double(), rtol=0, atol=1e-3)
    torch.testing.assert_close(found.y, torch.full((2,), 0.4).double(), rtol=0, atol=1e-3)

    for method in ("fw", "projected_gradient"):
        single = solve(lambda x: (x - 2).square().sum(), x0=zeros(4), method=method, steps=300,
                       x_in=l2_ball(1.0), **{"fw": {"diameter": 2.0}}.get(method, {}))  # fmt: skip
        torch.testing.assert_close(single.x, torch.full((4,), 0.5).double(), rtol=0, atol=1e-3)
        assert single.y is None


def test_a_single_level_with_data() -> None:
    def f(x, batch):  # type: ignore[no-untyped-def]
        return (A[batch] @ x - a[batch]).square().mean()

    found = solve(f, x0=zeros(3), method="sfw", steps=50, batch=5, upper_data=torch.arange(20),
                  x_in=l2_ball(1.0), diameter=2.0)  # fmt: skip
    assert found.samples == {"grad_f": 250}
    assert float(found.x.norm()) <= 1 + 1e-9


def test_sets_hold_x_and_y() -> None:
    sets = {"x_in": box(-0.5, 0.5), "y_in": box(0, 0.3)}
    with pytest.warns(UserWarning, match="y ends where y_in holds it back"):
        found = solve(upper, lower, zeros(2), zeros(2), **QUICK, **sets)
    assert found.x.tolist() == [0.5, 0.5]
    assert found.y.tolist() == [0.3, 0.3]
    assert found.calls["project"] == 40 + 40 * 10


def test_sets_of_trees() -> None:
    def f(x, y):  # type: ignore[no-untyped-def]
        return upper(x["a"], y) + (x["b"] - 3).square().sum()

    x0 = {"a": zeros(2), "b": zeros(2, 2)}
    found = solve(f, lambda x, y: lower(x["a"], y), x0, zeros(2), **QUICK,
                  x_in={"a": box(0, 0.5), "b": l2_ball(1.0)})  # fmt: skip
    assert found.x["a"].tolist() == [0.5, 0.5]
    torch.testing.assert_close(found.x["b"], torch.full((2, 2), 0.5).double())
    one = solve(f, lambda x, y: lower(x["a"], y), x0, zeros(2), **QUICK,
                x_in={"a": None, "b": l2_ball(1.0)})  # fmt: skip
    torch.testing.assert_close(one.x["a"], torch.full((2,), BEST).double(), rtol=0, atol=1e-5)
    both = solve(lambda x: (x["a"] - 2).square().sum() + (x["b"] - 2).square().sum(), x0=x0,
                 method="fw", steps=100, diameter=3.0,
                 x_in={"a": l2_ball(1.0), "b": box(-1, 1)})  # fmt: skip
    torch.testing.assert_close(both.x["b"], torch.ones(2, 2).double(), rtol=0, atol=0.05)
    assert float(both.x["a"].norm()) <= 1 + 1e-9


class Two(NamedTuple):
    x: Tensor
    y: Tensor


def alternating(size: Positive = 0.1, rule: Descent | None = None) -> Algorithm:
    """A method of the caller's own: descent in y, and in x as if y were x."""
    how = rule or gd()

    def step(o: Oracle, s: Two, draw: Draw) -> tuple[Two, dict[str, Tensor]]:
        y = s.y - size * o.g_y(s.x, s.y, draw.g())
        f_x, f_y = o.grad_f(s.x, y, draw.f())
        return Two(how.step(s.x, f_x + f_y, size, ())[0], y), {}

    return Algorithm(Two, step, cost=Cost(grad_g=1, grad_f=1))


def test_a_method_of_ones_own() -> None:
    found = solve(upper, lower, zeros(1), zeros(1), alternating, steps=200, size=0.2, rule=gd())
    assert float(found.x) == pytest.approx(BEST, abs=1e-4)
    assert found.method == "alternating"

    def diametral(diameter: Positive = 2.0, low: Positive = 0.5) -> Algorithm:
        return alternating(diameter * low)

    kept = solve(upper, lower, zeros(1), zeros(1), diametral, steps=2, x_in=box(-9, 9))
    assert kept.settings == {"diameter": 2.0, "low": 0.5}  # its defaults are its own affair
    assert found.settings == {"size": 0.2}
    assert found.hypergradient_norm is None
    with pytest.raises(BadSetting, match=r"^size=-1: input should be greater than 0"):
        solve(upper, lower, zeros(1), zeros(1), alternating, size=-1)
    with pytest.raises(BadSetting, match=r"^sise=1: no such setting; did you mean size\?"):
        solve(upper, lower, zeros(1), zeros(1), alternating, sise=1)


def call(**changes: Any) -> Callable[[], Solution]:
    given: dict[str, Any] = {"upper": upper, "lower": lower, "x0": zeros(2), "y0": zeros(2)}
    return lambda: solve(**given | {"steps": 2} | changes)


class Endless(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Iterator[Tensor]:
        return iter(A)


TREE = spanning_trees(3, torch.tensor([[0, 1], [1, 2], [0, 2]]))
REFUSED: dict[str, tuple[Callable[[], Solution], str]] = {
    "method": (call(method="bme"), r"method=bme: no such method; did you mean bome\? there is .*"),
    "setting": (call(outr_lr=1), r"outr_lr=1: no such setting; did you mean outer_lr\? there is "),
    "value": (call(outer_lr=-1), "outer_lr=-1: input should be greater than 0"),
    "nested": (
        call(outer_rule="sgd"),
        "outer.rule=sgd: input should be 'gd', 'momentum' or 'adam'",
    ),
    "object": (call(outer_lr=zeros(1)), "outer_lr: Tensor is no setting; write a number or a text"),
    "a rule twice": (
        call(outer_rule="adam", outer={"rule": "gd"}),
        "outer: outer_rule gives the same rule; write one of the two",
    ),
    "settings of two rules": (
        call(outer_rule={"decay": 0.5, "at": 1.0}),
        "at, decay: no rule of descent has them all: clamped has at; decaying has .*",
    ),
    "no rule": (call(outer_rule={"decays": 1}), "outer.decays=1: no such setting; .*"),
    "together": (call(method="reverse", K=20), "K=20: write at most T=10, the steps there are"),
    "steps": (call(steps=0), "steps=0: write an integer of at least 1"),
    "seconds": (call(seconds=True), "seconds=True: write a number above 0"),
    "progress": (call(progress="yes"), "progress=yes: write True, False or None"),
    "counts": (
        call(evaluate=lambda x, y: {"calls/grad_f": 1.0}),
        "evaluate: gives calls/grad_f, which is a row's own; rename it",
    ),
    "a derivative inside": (
        call(lower=lambda x, y: lower(x, y) + torch.autograd.grad(lower(x, y), y)[0].sum()),
        r"lower: takes a derivative by torch.autograd, .*; take it by torch\.func\.grad",
    ),
    "a set of matrices": (
        call(y_in=nuclear_ball(1.0)),
        "nuclear_ball: is a set of matrices, and there is a 1-d tensor",
    ),
    "every": (call(every=0.5), "every=0.5: write an integer of at least 1"),
    "stream": (call(method="er"), "method=er: is for streams of tasks only, .* there is .*bome"),
    "episodes": (
        call(method="learn2learn"),
        "method=learn2learn: (is for tasks of episodes only|.* is not installed).*",
    ),
    "box": (
        call(method="random_search", inner_lr=0.1, x_in=box(0, 1), low=0.0),
        r"low, high: write the box from which random_search proposes x, such as low=0, high=1",
    ),
    "diameter": (
        lambda: solve(lambda x: x.sum(), None, zeros(1), None, "fw", x_in=l2_ball(1.0)),
        r"diameter: write the largest distance between two points of x_in, such as 2\.0 for .*",
    ),
    "game": (
        call(method="gda"),
        "method=gda: is for minimax problems.* has a lower loss; .*bome.*",
    ),
    "no lower": (call(lower=None), "method=bome: is for bilevel problems.*no lower loss; .*gda.*"),
    "no y": (call(lower=None, y0=None), "method=bome: .* has x alone; for that there is fw, .*"),
    "y missing": (call(y0=None), "y0: write where y starts, as there is a lower loss"),
    "x missing": (call(x0=None), "x0: write where x starts"),
    "integers": (call(x0=torch.arange(2)), r"x0: has numbers of type int64; write x0.double\(\)"),
    "a number": (call(x0={"a": 1.0}), "x0: has a float; write tensors or an nn.Module"),
    "dtypes": (call(x0=[zeros(1), torch.zeros(1)]), "x0: has tensors of float32, float64; .*"),
    "nothing": (call(x0=[]), "x0: there is no tensor in it"),
    "frozen": (
        call(y0=nn.Linear(2, 2).requires_grad_(False)),
        "y0: this module has no parameter that requires a gradient",
    ),
    "dropout": (
        call(y0=nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))),
        r"y0.1: Dropout draws random numbers that no seed names; write y0.eval\(\)",
    ),
    "dropout of an LSTM": (
        call(y0=nn.LSTM(2, 2, num_layers=2, dropout=0.1)),
        r"y0: LSTM draws random numbers that no seed names; write y0.eval\(\)",
    ),
    "dropout of attention": (
        call(y0=nn.Sequential(nn.MultiheadAttention(2, 1, dropout=0.1))),
        r"y0.0: MultiheadAttention draws random numbers that no seed names; .*",
    ),
    "a random slope": (
        call(y0=nn.Sequential(nn.Linear(2, 2), nn.RReLU())),
        r"y0.1: RReLU draws random numbers that no seed names; .*",
    ),
    "signature": (
        call(upper=lambda x: x.sum()),
        r"upper: write it as upper\(x, y\), as there is no upper_data",
    ),
    "batch": (
        call(upper_data=A),
        r"upper: write it as upper\(x, y, batch\), as upper_data is given",
    ),
    "vector": (call(upper=lambda x, y: y), r"upper: gives \(2,\), not one number: end it with .*"),
    "complex": (
        call(upper=lambda x, y: (y * 1j).sum()),
        "upper: gives torch.complex128; write a .*",
    ),
    "not finite": (
        call(lower=lambda x, y: (x + y).sum() * math.nan),
        r"lower: is nan at the start; are all data finite\?",
    ),
    "x behind detach": (
        call(
            upper=lambda x, y: y.square().sum(), lower=lambda x, y: (x.detach() - y).square().sum()
        ),
        r"x0: neither loss depends on x; is there a .detach\(\) in them\?",
    ),
    "no rows": (
        call(upper=data_loss, upper_data=(A[:0], a[:0])),
        "upper_data: has no rows; write at .*",
    ),
    "no items": (
        call(upper=data_loss, upper_data=Subset(Rows(), [])),
        "upper_data: has no items; write .*",
    ),
    "all of a function": (
        call(
            upper=data_loss, upper_data=lambda rng, size: torch.randint(9, (size,), generator=rng)
        ),
        "upper_data: size=None asks for all the data, as each row of the history does, and .*",
    ),
    "evaluate": (
        call(evaluate=lambda x: {}),
        r"evaluate: write it as evaluate\(x, y\), as y is None where .*",
    ),
    "no dict": (call(evaluate=lambda x, y: 1.0), "evaluate: gives 1.0; write a dict of numbers .*"),
    "no name": (call(evaluate=lambda x, y: {1: 1.0}), "evaluate: gives {1: 1.0}; write a dict .*"),
    "no number": (call(evaluate=lambda x, y: {"a": "b"}), "evaluate: a is no number: 'b'"),
    "float": (call(lower=lambda x, y: 1.0), "lower: gives float, not one number: end it with .*"),
    "lengths": (
        call(upper=data_loss, upper_data=(A, a[:5])),
        "upper_data: has tensors of 20, 5 rows; each row is one sample",
    ),
    "loader": (
        call(upper=data_loss, upper_data=DataLoader(TensorDataset(A, a), batch_size=4)),
        "upper_data: write the loader's dataset, and batch=4",
    ),
    "endless": (call(upper=data_loss, upper_data=Endless()), "upper_data: this Dataset has no .*"),
    "text": (call(upper=data_loss, upper_data="digits"), "upper_data: write tensors, a Dataset.*"),
    "draw": (
        call(upper=data_loss, upper_data=lambda: A),
        r"upper_data: write it as draw\(rng, size\) or draw\(rng, size, step\)",
    ),
    "outside": (call(x_in=box(1, 2)), "x0: lies outside of x_in, at a distance of 1.41; .*"),
    "y outside": (call(y_in=box(1, 2)), "y0: lies outside of y_in.*"),
    "form": (
        call(x_in={"a": box(0, 1)}),
        "x_in: write one set, or a set or None for each tensor.*",
    ),
    "lmo only": (
        call(x0=zeros(3), y0=zeros(3), x_in=TREE),
        "x_in: this set has no projection, which bome needs, as all for such a problem do",
    ),
    "y lmo only": (call(y0=zeros(3), y_in=TREE), "y_in: this set has no projection.*"),
    "no set": (
        call(lower=None, y0=None, upper=lambda x: x.square().sum(), method="fw"),
        r"method=fw: write x_in=..., a set with a linear minimisation oracle, such as bench.l2.*",
    ),
    "no y set": (
        call(lower=None, y0=None, upper=lambda x: x.sum(), method="svrg", y_in=box(0, 1)),
        "y_in: there is no y; leave it out",
    ),
    "own": (call(method=lambda: print), "method: gives builtin.*, not an Algorithm"),
    "made": (call(method=alternating()), "method: write a name, or a function that returns an .*"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_wrong_is_refused_in_one_line(case: str) -> None:
    wrong, said = REFUSED[case]
    with pytest.raises(BadSetting, match=f"^{said}") as raised:
        wrong()
    assert "\n" not in str(raised.value)


def test_divergence_says_what_to_try() -> None:
    with pytest.raises(Diverged, match=r"not finite at step .*; try smaller step sizes than outer"):
        solve(upper, lower, zeros(1), zeros(1), "aid_fp", steps=200, inner_lr=50.0)


def test_a_run_that_ends_far_above_its_start_is_warned_of() -> None:
    """f = (x + y)^2 is 4 at first, and a step of 2 down it multiplies it by 9."""

    def f(x, y):  # type: ignore[no-untyped-def]
        return ((x + y) ** 2).sum()

    start = zeros(1) + 2
    with pytest.warns(UserWarning, match=r"^upper_loss went from 4 to .*; try smaller step sizes"):
        solve(f, lower, start, zeros(1), "upper_only", steps=10, every=10, lower_lr=2.0)


def test_seconds_end_a_run() -> None:
    found = solve(upper, lower, zeros(1), zeros(1), steps=10**6, seconds=1e-6, every=10**6)
    assert found.history[-1]["step"] < 10


def test_a_run_ends_where_it_is_told_to() -> None:
    """And goes on behind that place when it is told nothing."""
    whole = solve(upper, lower, zeros(1), zeros(1), steps=40, every=5)
    losses = whole.table()["upper_loss"]
    bar = losses[4]
    assert losses[3] > bar
    seen: list[float] = []

    def stop(row: Mapping[str, float]) -> bool:
        seen.append(row["step"])
        return row["upper_loss"] <= bar

    found = solve(upper, lower, zeros(1), zeros(1), steps=40, every=5, stop=stop)
    assert seen == found.table()["step"] == [0, 5, 10, 15, 20]
    assert found.table()["upper_loss"] == losses[:5]
    rest = solve(upper, lower, zeros(1), zeros(1), steps=40, every=5, after=found)
    assert rest.table()["upper_loss"] == losses
    for every in (5, 7):  # the last row need not be at a multiple of it
        again = solve(
            upper, lower, zeros(1), zeros(1), steps=40, every=every, after=found, stop=stop
        )
        assert again.end.step == 20
        assert again.stopped
    assert found.stopped
    assert not rest.stopped


def test_what_stops_a_run_is_asked_of_each_row_once() -> None:
    """So that one which waits for three rows without progress ends a run that was cut, and went on
    after that, where it ends one that was not."""
    seen: list[float] = []

    def stop(row: Mapping[str, float]) -> bool:
        seen.append(row["step"])
        return len(seen) == 5

    cut = solve(upper, lower, zeros(1), zeros(1), steps=4, every=2, stop=stop)
    assert not cut.stopped
    rest = solve(upper, lower, zeros(1), zeros(1), steps=20, every=2, stop=stop, after=cut)
    assert seen == [0, 2, 4, 6, 8]
    assert rest.end.step == 8
    assert rest.stopped
    on = solve(upper, lower, zeros(1), zeros(1), steps=20, every=2, stop=stop, after=rest)
    assert seen == [0, 2, 4, 6, 8, *range(8, 21, 2)]  # the last row did not end this one
    assert on.end.step == 20


def test_a_bar_is_shown_where_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    solve(upper, lower, zeros(1), zeros(1), steps=3)
    assert capsys.readouterr().err == ""  # it is no terminal
    solve(upper, lower, zeros(1), zeros(1), steps=3, progress=True)
    shown = capsys.readouterr().err
    assert "bome" in shown
    assert "3/3" in shown


def test_a_notebook_has_a_bar_if_it_has_widgets(monkeypatch: pytest.MonkeyPatch) -> None:
    class Notebook:
        is_jupyter = True

    for there in (True, False):
        found = object() if there else None
        monkeypatch.setattr("bench.runs.screen.find_spec", lambda name, found=found: found)
        assert can_show_bar(Notebook()) is there  # type: ignore[arg-type]


def test_a_program_that_is_a_hydra_app_keeps_its_own_hydra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Several threads of it may ask for methods at the same time, too."""
    base = hydra_version.VersionBase.instance()
    monkeypatch.setattr(base, "version_base", base.version_base)  # is as before after the test

    def ask(name: str) -> list[str]:
        return [*listed.composed([name])]

    names = ["bome", "soba", "aid_cg", "stocbio"] * 3
    with initialize_config_module("conf", version_base="1.2"):
        before = GlobalHydra.instance().hydra, hydra_version.getbase()
        with ThreadPoolExecutor(4) as pool:
            assert [*pool.map(ask, names)] == [[name] for name in names]
        assert (GlobalHydra.instance().hydra, hydra_version.getbase()) == before
        with pytest.raises(BadSetting, match="method=bomes: no such method"):
            ask("bomes")
        assert (GlobalHydra.instance().hydra, hydra_version.getbase()) == before


def test_methods_are_listed_with_paper_cost_and_settings() -> None:
    every = bench.methods()
    assert set(every) == {path.stem for path in (CONF / "algorithm").glob("*.yaml")}
    bome = every["bome"]
    assert bome.paper.startswith("BOME (Ye, Liu, Wright, Stone, Liu, NeurIPS 2022)")
    assert bome.cost == Cost(grad_g=11, grad_f=1)
    assert bome.settings["T"] == 10
    assert "_target_" not in str(bome.settings)
    for part in ("eta: the\nweight of the barrier", "bilevel problems", "grad_f 1, grad_g 11"):
        assert part in bome.help
    assert every["er"].on_stream
    assert every["upper_only"].caveat == "it ignores the lower level, and x does not move."
    assert every["aid_cg"].caveat == ""
    assert every["fw"].kind == "single-level"
    for name, method in every.items():
        assert method.paper, name
        assert method.summary, name
        assert method.caveat in " ".join(method.help.split())


def test_a_method_whose_package_is_missing_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(node: Any) -> Algorithm:
        raise BadSetting("algorithm: this needs a package")

    monkeypatch.setattr(listed, "made", refuse)
    found = listed.described("learn2learn", listed.composed(["learn2learn"])["learn2learn"])
    assert found.kind is None
    assert "Not here: algorithm: this needs a package" in found.help


def test_data_without_a_loss_are_refused() -> None:
    def game(x: Tensor, y: Tensor) -> Tensor:
        return (x * y).sum()

    with pytest.raises(BadSetting, match=r"^lower_data: there is no lower loss; leave it out"):
        solve(game, None, zeros(1), zeros(1), method="gda", steps=2, outer_lr=0.1, lower_data=A)


@pytest.mark.parametrize("name", ["step", "seconds", "upper_loss"])
def test_numbers_of_a_row_keep_their_names(name: str) -> None:
    with pytest.raises(BadSetting, match=f"^evaluate: gives {name}, which is a row's own"):
        solve(upper, lower, zeros(1), zeros(1), **QUICK, evaluate=lambda x, y: {name: 0.0})


def test_a_method_without_step_sizes_is_told_of_none() -> None:
    def loss(x: Tensor) -> Tensor:
        return (x - 1).abs().sqrt().sum() / x.lt(0.1)  # inf after the first step

    with pytest.raises(Diverged) as raised:
        solve(loss, None, zeros(1), method="fw", steps=2, L=1.0, diameter=2.0, x_in=box(0, 1))
    assert "than" not in str(raised.value)


def test_evaluate_may_write_into_what_it_gets() -> None:
    def measured(x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return {"own": x.clamp_(5, 6).sum() + y.zero_().sum()}

    every = QUICK | {"every": 1}
    found = solve(upper, lower, zeros(2) + 1, zeros(2), **every, evaluate=measured)
    plain = solve(upper, lower, zeros(2) + 1, zeros(2), **every)
    assert torch.equal(found.x, plain.x)
    assert torch.equal(found.y, plain.y)


@pytest.mark.parametrize("method", ["bome", "soba", "stocbio"])
def test_a_run_goes_on_after_its_solution(method: str) -> None:
    """With minibatches and a rule with memory: to the bits, counts and rows of one run."""
    data = {"upper_data": (A, a), "lower_data": (A, a), "batch": 4, "every": 3, "seed": 3}
    size = "lower_lr" if method == "bome" else "inner_lr"
    settings = {"method": method, "outer_lr": 0.01, size: 0.01, "outer_rule": "adam"}

    def until(steps: int, **more: Any) -> Solution:
        starts = zeros(()), zeros(3)
        return solve(data_loss, ridge_loss, *starts, steps=steps, **data, **settings, **more)

    whole, half = until(12), until(6)
    rest = until(12, after=half)
    assert torch.equal(rest.x, whole.x)
    assert torch.equal(rest.y, whole.y)
    assert (rest.calls, rest.samples) == (whole.calls, whole.samples)
    assert not torch.equal(half.x, whole.x)
    assert len(half.history) == 3
    for mine, theirs in zip(rest.history, whole.history, strict=True):
        ours = {k: v for k, v in mine.items() if "seconds" not in k}
        assert ours == {k: v for k, v in theirs.items() if "seconds" not in k}
    assert rest.seconds > half.seconds


def test_nothing_is_imported_while_the_clock_runs() -> None:
    """The first derivative along a vector would import a part of torch, in a new process."""
    program = """
import sys
from typing import NamedTuple
import torch
from bench import Algorithm, solve

class State(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor

def method(outer_lr: float = 0.1) -> Algorithm:
    def step(o, s, draw):
        before = set(sys.modules)
        v = o.g_yy(s.x, s.y, draw.g())(torch.ones_like(s.y))
        assert set(sys.modules) == before, set(sys.modules) - before
        return State(s.x, s.y - 0 * v), {}
    return Algorithm(State, step)

def g(x, y):
    return ((y - x) ** 2).sum()

print(solve(g, g, torch.zeros(1), torch.zeros(1), method, steps=1).calls["hvp_g"])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("1\n", 0), done.stderr


def test_a_row_has_no_calls_of_what_was_never_called() -> None:
    """So that what stops a run can count them from the first row on, of any method."""
    found = solve(
        upper, lower, zeros(1), zeros(1), "bome", steps=40, every=1,
        stop=lambda row: row["calls/grad_g"] + row["calls/hvp_g"] >= 50,
    )  # fmt: skip
    assert found.stopped
    assert found.calls["grad_g"] >= 50
    assert found.history[0]["calls/grad_g"] == found.history[-1]["samples/hvp_g"] == 0
    with pytest.raises(KeyError):
        found.history[0]["loss"]


def test_a_module_says_what_a_loss_is_not_given_of_it() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 1))

    def g(x, y):  # type: ignore[no-untyped-def]
        return y.get_submodule("0").weight.sum() + x.sum()

    with pytest.raises(AttributeError, match=r"no 'get_submodule' of a module: .*parameters\(\)"):
        solve(g, g, zeros(1), model)
    with pytest.raises(AttributeError, match="Sequential has no attribute 'weights'"):
        solve(g, lambda x, y: y.weights.sum(), zeros(1), model)


def test_an_interrupt_keeps_the_steps_that_were_taken() -> None:
    """Here at the measurement of step 6, which the row of the solution is before: the run goes on
    to the bits and rows of one that was not interrupted. Before the first step nothing is kept."""
    given = {"every": 3, "steps": 12, "outer_lr": 0.01, "method": "soba"}

    def interrupted_at(step: int) -> Any:
        rows = iter(range(0, 13, 3))

        def evaluate(x: Any, y: Any) -> dict[str, float]:
            if next(rows) == step:
                raise KeyboardInterrupt
            return {}

        return evaluate

    whole = solve(upper, lower, zeros(1), zeros(1), **given)
    with pytest.raises(Interrupted, match="solution") as cut:
        solve(upper, lower, zeros(1), zeros(1), **given, evaluate=interrupted_at(6))
    part = cut.value.solution
    assert 3 <= part.end.step < 6
    assert [row["step"] for row in part.history] == [0, 3]
    assert f"after {part.end.step} steps" in str(cut.value)
    rest = solve(upper, lower, zeros(1), zeros(1), **given, after=part)
    assert torch.equal(rest.x, whole.x)
    assert rest.calls == whole.calls
    assert rest.table()["upper_loss"] == whole.table()["upper_loss"]
    with pytest.raises(Interrupted) as again:
        solve(upper, lower, zeros(1), zeros(1), **given, after=part, evaluate=interrupted_at(0))
    assert part.end.step <= again.value.solution.end.step < 6
    with pytest.raises(KeyboardInterrupt) as early:
        solve(upper, lower, zeros(1), zeros(1), **given, evaluate=interrupted_at(0))
    assert not isinstance(early.value, Interrupted)


def test_the_bar_of_a_run_that_goes_on_begins_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []

    class Seen(Screen):
        def __init__(self, name: str, steps: int, begun: int, metric: str, shown: bool | None):
            done.append(begun)
            super().__init__(name, steps, begun, metric, shown)

    monkeypatch.setattr(calling, "Screen", Seen)
    half = solve(upper, lower, zeros(2), zeros(2), **QUICK)
    solve(upper, lower, zeros(2), zeros(2), **QUICK | {"steps": 41}, after=half)
    assert done == [0, 40]


def test_a_layer_whose_statistics_stay_anyway_is_no_warning() -> None:
    net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).double().eval()

    def g(x, y):  # type: ignore[no-untyped-def]
        return (y(A).sum(1) - a).square().mean() * (1 + x.square())

    solve(g, g, zeros(()), net, method="soba", steps=2)


def test_what_nothing_can_go_on_from_is_refused() -> None:
    given = {**QUICK, "steps": 4}
    done = solve(upper, lower, zeros(2), zeros(2), **given)
    for changes, said in (
        ({}, "steps=4: after has 4; write those of both"),
        ({"steps": 5, "seed": 1}, "after: was made with seed=0; write the same"),
        ({"steps": 5, "outer_lr": 3.0}, r"after: was made with outer_lr=.*; write the same"),
        ({"steps": 5, "x0": zeros(3)}, "after: its x has another shape or type than x0"),
        ({"steps": 5, "after": done.x}, "after: is a Tensor; write what solve has returned"),
    ):
        call = {"x0": zeros(2), "y0": zeros(2), "after": done, **given, **changes}
        with pytest.raises(BadSetting, match=f"^{said}"):
            solve(lambda x, y: (y - 1).square().sum() + x.sum(), lower, **call)


def test_what_diverges_tells_its_rows() -> None:
    with pytest.raises(Diverged) as raised:
        solve(upper, lower, zeros(2) + 1, zeros(2), method="aid_cg", outer_lr=1e9, every=1)
    assert [row["step"] for row in raised.value.history][:2] == [0, 1]


def test_a_sampler_that_is_told_no_size_keeps_its_own_error() -> None:
    def draw(rng: Generator) -> Tensor:
        raise TypeError("of its own")

    with pytest.raises(TypeError, match=r"^of its own$"):
        solve(data_loss, lower, zeros(2), zeros(2), **QUICK, upper_data=draw)


def test_numbers_of_numpy_are_numbers() -> None:
    plain = solve(upper, lower, zeros(2) + 1, zeros(2), method="aid_cg", steps=3, outer_lr=0.5)
    numpy = {"steps": np.int64(3), "outer_lr": np.float64(0.5), "seed": np.int32(0)}
    found = solve(upper, lower, zeros(2) + 1, zeros(2), method="aid_cg", **numpy)
    assert torch.equal(found.x, plain.x)
    assert found.settings == plain.settings


def test_a_y_inside_of_its_set_is_no_warning() -> None:
    solve(upper, lower, zeros(2), zeros(2), **QUICK, y_in=box(-5, 5))
    first_order = {"method": "f2sa", "steps": 5, "outer_lr": 0.01, "inner_lr": 0.01}
    solve(upper, lower, zeros(2) + 1, zeros(2), **first_order, y_in=box(0, 0.001))


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        ((upper, lambda x, y: lower(x, y.detach())), "lower: does not depend on y"),
        ((upper, lambda x, y: x.square().sum()), "lower: does not depend on y"),
        ((lambda x, y: upper(x, y).detach(), lower), "upper: depends on neither x nor y"),
    ],
)
def test_a_loss_without_a_derivative_is_refused(losses: Any, said: str) -> None:
    """x would stay at its start without a word."""
    with pytest.raises(BadSetting, match=said):
        solve(*losses, zeros(2), zeros(2), **QUICK)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"seed": "a"}, "seed=a: write an integer of at least 0"),
        ({"seed": -1}, "seed=-1: write an integer of at least 0"),
        ({"steps": True}, "steps=True: write an integer of at least 1"),
        ({"seconds": -1}, "seconds=-1: write a number above 0"),
        ({"seconds": "a"}, "seconds=a: write a number above 0"),
        ({"stop": 0.1}, "stop=0.1: write a function that is given a row of the history"),
        ({"batch": 5, "method": "stocbio", "eta": 0.1}, "batch=5: there are no data"),
        ({"lr": 0.1}, "lr=0.1: no such setting; write outer_lr;"),
    ],
)
def test_what_solve_is_told_beside_losses_is_looked_at(given: dict[str, Any], said: str) -> None:
    with pytest.raises(BadSetting, match=re.escape(said)):
        solve(upper, lower, zeros(2), zeros(2), **QUICK | given)


@pytest.mark.parametrize("name", ["x0", "y0"])
def test_a_start_that_is_no_number_is_told(name: str) -> None:
    starts = {"x0": zeros(2), "y0": zeros(2)} | {name: torch.full((2,), math.nan).double()}
    with pytest.raises(BadSetting, match=f"{name}: is not finite everywhere"):
        solve(upper, lower, **starts, **QUICK)


def test_a_sampler_without_a_signature_is_refused_by_its_name() -> None:
    """`min` is a function of C that takes anything, and that says of nothing what it takes."""
    with pytest.raises(BadSetting, match=r"^upper_data: write it as draw\(rng, size\) or"):
        solve(data_loss, lower, zeros(2), zeros(2), **QUICK, upper_data=min)


def test_inference_mode_is_refused_and_no_grad_is_not() -> None:
    with torch.no_grad():
        solve(upper, lower, zeros(2), zeros(2), **QUICK)
    with torch.inference_mode(), pytest.raises(BadSetting, match=r"^solve: torch\.inference_mode"):
        solve(upper, lower, zeros(2), zeros(2), **QUICK)


def test_a_first_step_that_calls_less_than_others_is_said_to_be_one() -> None:
    """SPABA's first step fills no table; AID-CG's steps are all alike."""
    assert "The first step, from which others differ, calls: " in methods()["spaba"].help
    assert "A step calls: " in methods()["aid_cg"].help


def test_a_solution_may_be_written_into() -> None:
    """What a run goes on from by `after` is a copy."""

    def f(x, y):  # type: ignore[no-untyped-def]
        return (y["a"] - 1).square().sum() + x["a"].square().sum()

    def g(x, y):  # type: ignore[no-untyped-def]
        return (y["a"] - x["a"]).square().sum()

    start, given = {"a": zeros(2)}, {"method": "soba", "outer_lr": 0.1}
    whole = solve(f, g, start, start, steps=8, **given)
    part = solve(f, g, start, start, steps=4, **given)
    part.x["a"].fill_(7.0)
    part.y["a"].fill_(7.0)
    assert torch.equal(solve(f, g, start, start, steps=8, after=part, **given).x["a"], whole.x["a"])


def test_an_interrupt_while_a_row_is_shown_leaves_the_rows_of_the_solution(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = Screen.show_row

    def show(self: Screen, row: Any) -> None:
        if row["step"] == 6:
            raise KeyboardInterrupt
        plain(self, row)

    monkeypatch.setattr(calling.Screen, "show_row", show)
    with pytest.raises(calling.Interrupted) as cut:
        solve(upper, lower, zeros(2), zeros(2), method="soba", every=3, steps=12, outer_lr=0.01)
    assert [row["step"] for row in cut.value.solution.history] == [0, 3]


def test_minimax_with_data_has_the_same_ones_on_both_levels() -> None:
    """The mean of the data is 2: x - 2 + y = 0 and x - y = 0, and so x = y = 1."""

    def f(x, y, batch):  # type: ignore[no-untyped-def]
        return ((x - batch).square() / 2 + x * y - y.square() / 2).mean()

    data = torch.tensor([1.0, 2.0, 3.0]).double()
    found = solve(f, None, zeros(1), zeros(1), "gda", steps=300, upper_data=data)
    torch.testing.assert_close(found.x, torch.ones(1).double(), rtol=0, atol=1e-3)
    torch.testing.assert_close(found.y, torch.ones(1).double(), rtol=0, atol=1e-3)
