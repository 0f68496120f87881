"""stocBiO, by hand (Ji et al., 2021, Algorithms 2 and 3), as in the paper and as released."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from algorithms.bilevel.stocbio import stocbio
from bench.compiled.symbols import At, NoGraph
from bench.compiled.traced import record
from bench.core.draw import Draw
from bench.core.oracle import Oracle
from bench.core.settings import BadSetting
from bench.core.task import Batch
from bench.numerics.descent import gd
from tests.steps import bilevel
from tests.steps import problem as at

LR, ETA, T, Q = 0.3, 0.4, 2, 3
EYE = torch.eye(at.Q).double()
Batches = tuple[list[Batch], Batch, list[Batch], Batch]  # S_0 ..., D_F, [B_Q, ..., B_1], D_G


def factor(x: Tensor, y: Tensor, rows: Batch) -> Tensor:
    """I - eta g_yy of one batch."""
    return EYE - ETA * at.g_yy(x, y, rows)


def estimated(x: Tensor, y: Tensor, v_0: Tensor, D_H: list[Batch], variant: str) -> Tensor:
    """v_Q of equation (5), eta sum_{q=-1}^{Q-1} prod_{j=Q-q}^{Q} (I - eta g_yy(B_j)) v_0, each
    product anew, B_Q nearest to v_0. As released only the first term is scaled by eta, and in all
    releases but the first the last term stands in for it."""
    terms = []
    for many in range(Q + 1):
        term = v_0
        for rows in D_H[:many]:
            term = factor(x, y, rows) @ term
        terms.append(term)
    if variant == "paper":
        return ETA * sum(terms, torch.zeros_like(v_0))
    begin = {"code": terms[-1], "first": terms[0]}[variant]
    return ETA * begin + sum(terms[1:], torch.zeros_like(v_0))


def path(
    case: str, rule: str, variant: str, batches: Callable[[Draw], Batches], momentum: float = 0.0
) -> Callable[[Callable[[int], Draw]], Iterator[tuple[Tensor, ...]]]:
    """Algorithm 2 with these batches, and with this momentum of y, which is never reset."""
    task, (_, moves) = bilevel.CASES[case](), bilevel.OUTER[rule]

    def by_hand(draws: Callable[[int], Draw]) -> Iterator[tuple[Tensor, ...]]:
        x, y, move = at.X0, at.Y0, moves()
        descend = bilevel.HeavyBall(LR, momentum)
        for k in range(3):
            S, D_F, D_H, D_G = batches(draws(k))
            y = task.inner.start(y, S[0])
            for rows in S:
                y = at.in_y(task, descend(y, at.g_y(x, y, rows)))
            v = estimated(x, y, at.f_y(x, y, D_F), D_H, variant)
            found = at.f_x(x, y, D_F) - at.g_xy(x, y, D_G) @ v
            x = at.in_x(task, move(x, found))
            yield x, y, found

    return by_hand


@pytest.mark.parametrize(("case", "batch"), bilevel.EVERYWHERE)
@pytest.mark.parametrize("rule", bilevel.OUTER)
@pytest.mark.parametrize("inner_batch", [None, 5])
@pytest.mark.parametrize("variant", ["paper", "code", "first"])
def test_every_batch_is_drawn_anew(
    variant: str, inner_batch: int | None, rule: str, case: str, batch: int | None
) -> None:
    """Batches of g for the T inner steps, for G and for the Q factors, and one of f for F."""

    def batches(draw: Draw) -> Batches:
        S = [draw.g(batch if inner_batch is None else inner_batch) for _ in range(T)]
        D_F, D_G = draw.f(batch), draw.g(batch)
        return S, D_F, [draw.g(batch) for _ in range(Q)], D_G

    method = stocbio(
        *bilevel.OUTER[rule][0], LR, ETA, T, Q, variant, batch=batch, inner_batch=inner_batch
    )
    by_hand = path(case, rule, variant, batches)
    bilevel.assert_same_path(bilevel.CASES[case](), method, by_hand)


@pytest.mark.parametrize(("case", "batch"), bilevel.GOING_ON)
def test_the_inner_momentum_goes_on_from_step_to_step(case: str, batch: int | None) -> None:
    """BOME's release has one SGD optimiser of y for all steps (hpo/data_cleaning.py, line 729)."""

    def batches(draw: Draw) -> Batches:
        S = [draw.g(batch) for _ in range(T)]
        D_F, D_G = draw.f(batch), draw.g(batch)
        return S, D_F, [draw.g(batch) for _ in range(Q)], D_G

    outer = bilevel.OUTER["momentum"][0]
    method = stocbio(*outer, LR, ETA, T, Q, "code", batch=batch, inner_momentum=0.6)
    by_hand = path(case, "momentum", "code", batches, 0.6)
    bilevel.assert_same_path(bilevel.CASES[case](), method, by_hand)


@pytest.mark.parametrize("mu", [0.9, 2.4])
def test_batches_of_proposition_3(mu: float) -> None:
    """|B_{Q+1-j}| = B Q (1 - eta mu)^{j-1}, rounded up: B_Q, which meets v_0 first, is largest."""
    sizes = [math.ceil(4 * Q * (1 - ETA * mu) ** (j - 1)) for j in range(1, Q + 1)]
    assert sizes == {0.9: [12, 8, 5], 2.4: [12, 1, 1]}[mu]

    def batches(draw: Draw) -> Batches:
        S = [draw.g(4) for _ in range(T)]
        D_F, D_G = draw.f(4), draw.g(4)
        return S, D_F, [draw.g(size) for size in sizes], D_G

    method = stocbio(*bilevel.OUTER["gd"][0], LR, ETA, T, Q, shrink=mu, batch=4)
    bilevel.assert_same_path(at.problem(), method, path("free", "gd", "paper", batches))


def test_a_batch_of_proposition_3_is_never_empty() -> None:
    """(1 - eta mu)^{j-1} underflows for the last of these; one sample is taken then."""
    task = at.problem()
    method = stocbio(gd(), 0.1, LR, 0.5, 1, 30, shrink=2 - 4e-16, batch=1)
    oracle = Oracle(task)
    state, _ = method.step(oracle, method.init(at.X0, at.Y0), Draw(task, 0, 0))
    assert state.x.isfinite().all()
    assert oracle.samples["hvp_g"] == 30 + 29  # B Q, then ones


def parts(rows: Tensor, size: int | None) -> list[Tensor]:
    """Parts of "about" so many rows: n // size + 1 of them, as equal as can be, none empty."""
    n, many = len(rows), 1 if size is None else min(len(rows), len(rows) // size + 1)
    return [rows[n * b // many : n * (b + 1) // many] for b in range(many)]


@pytest.mark.parametrize("size", [1, 10, 20, 23, None])
def test_the_released_batches_are_parts_of_the_data(size: int | None) -> None:
    """Every step sees the same ones: the T = 5 inner steps g's first five in turn, and F, all
    factors and G f's first three, from the first on again where there are fewer
    (l2reg_on_twentynews.py, lines 170 to 246)."""
    below, above = parts(torch.arange(64), size), parts(22 - torch.arange(23), size)

    def batches(draw: Draw) -> Batches:
        S = [below[t % len(below)] for t in range(5)]
        D_F, D_H, D_G = above[0], above[1 % len(above)], above[2 % len(above)]
        return S, D_F, [D_H] * Q, D_G

    outer = bilevel.OUTER["gd"][0]
    method = stocbio(*outer, LR, ETA, 5, Q, "code", batches="fixed", batch=size)
    by_hand = path("fewer above", "gd", "code", batches)
    bilevel.assert_same_path(bilevel.fewer_above(), method, by_hand)


@pytest.mark.parametrize("size", [1, 10, 23, None])
def test_the_first_release_shuffles_the_parts_at_every_step(size: int | None) -> None:
    """An order of g's parts and one of f's are drawn at each outer step, as in commit d6dbc45; with
    them everything is as with the parts' own order."""
    below, above = parts(torch.arange(64), size), parts(22 - torch.arange(23), size)

    def batches(draw: Draw) -> Batches:
        S_order, D_order = (draw.uniform(torch.empty(len(p))).argsort() for p in (below, above))
        S = [below[S_order[t % len(below)]] for t in range(5)]
        D_F, D_H, D_G = (above[D_order[i % len(above)]] for i in range(3))
        return S, D_F, [D_H] * Q, D_G

    outer = bilevel.OUTER["gd"][0]
    method = stocbio(*outer, LR, ETA, 5, Q, "first", batches="shuffled", batch=size)
    by_hand = path("fewer above", "gd", "first", batches)
    bilevel.assert_same_path(bilevel.fewer_above(), method, by_hand)


@pytest.mark.parametrize("batches", ["fixed", "shuffled"])
def test_shuffled_parts_are_all_met_where_fixed_ones_are_the_same_for_ever(batches: str) -> None:
    """64 rows below are cut into 13 parts of which a step takes 3, and 23 above into 5, of which it
    takes 3 too."""
    task, cuts = bilevel.fewer_above(), list[tuple[int, int]]()

    def cut(batch: Batch, a: int, b: int) -> Batch:
        cuts.append((len(batch), a))
        return batch[a:b]

    task = replace(task, data=replace(task.data, rows=cut))
    method = stocbio(gd(), 0.1, LR, ETA, 3, Q, batches=batches, batch=5)  # type: ignore[arg-type]
    state, seen = method.init(at.X0, at.Y0), dict[int, list[tuple[int, ...]]]({64: [], 23: []})
    for k in range(120):
        cuts.clear()
        method.step(Oracle(task), state, Draw(task, 0, k))
        for rows, steps in seen.items():
            steps.append(tuple(a for n, a in cuts if n == rows))
    for rows, many in ((64, 13), (23, 5)):
        starts = [rows * b // many for b in range(many)]
        assert all(len(set(step)) == 3 for step in seen[rows])  # no part twice in a step
        met = {a for step in seen[rows] for a in step}
        firsts = {step[0] for step in seen[rows]}
        assert met == set(starts[:3] if batches == "fixed" else starts)
        assert firsts == set(starts[:1] if batches == "fixed" else starts)


def test_shuffled_parts_are_not_compiled() -> None:
    """A graph would keep the order of the step that it was recorded from."""
    task = at.problem()
    method = stocbio(gd(), 0.1, LR, ETA, 3, Q, batches="shuffled", batch=10)
    state = method.init(at.X0, at.Y0)
    with pytest.raises(NoGraph, match="depends on what its tensors hold"):
        record(task, method, 0, state, At(0))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"shrink": 0.5}, r"algorithm\.shrink=0\.5: Proposition 3 needs algorithm\.batch"),
        ({"shrink": 2.0, "batch": 4}, r"algorithm\.shrink=2\.0: .* below 1 / shrink"),
        ({"shrink": 0.5, "batch": 4, "batches": "fixed"}, r"algorithm\.batches=fixed"),
        ({"inner_batch": 3, "batches": "fixed"}, r"algorithm\.batches=fixed"),
        ({"inner_batch": 3, "batches": "shuffled"}, r"algorithm\.batches=shuffled"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    settings: dict[str, float | int | str], message: str
) -> None:
    with pytest.raises(BadSetting, match=message):
        stocbio(gd(), 0.1, LR, 0.5, T, Q, **settings)  # type: ignore[arg-type]
