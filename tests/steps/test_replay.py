"""ER-Ring, single, GEM and MER by hand, across two task borders of a tiny stream."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from algorithms.continual.er import er, single
from algorithms.continual.gem import dual, gem, project_gradient
from algorithms.continual.mer import mer
from bench.core.algorithm import Algorithm
from bench.core.draw import Draw, generator
from bench.core.loop import advance, first
from bench.numerics.sets import box
from tests.steps import streams as at

Draws = Callable[[int], Draw]


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize(("memory", "replay"), [(5, 4), (20, 7), (2, 50)])
def test_er(memory: int, replay: int, steps: int) -> None:
    """Chaudhry et al. (2019), Algorithm 1: theta <- SGD(B_n u B_M, theta, eta), B_M from the tasks
    before; the mean losses of both add up. Memory of 5 goes round, of 20 is never full."""

    def by_hand(draws: Draws) -> Iterator[at.Step]:
        y, rings = at.Y0, at.Rings(memory)
        for k in itertools.count():
            task, _, numbers = at.now(k)
            draw = draws(k)
            rings.put(task, numbers)
            for _ in range(steps):
                slope = at.slope(at.X0, y, at.samples(numbers))
                if task > 0:
                    old = at.chosen(draw, rings.flat(task), replay)
                    slope = slope + at.slope(at.X0, y, at.samples(old))
                y = y - 0.2 * slope
            found = {"x": at.X0, "y": y, "memory": rings.rows, "gradient_sq": (slope**2).sum()}
            yield at.Step(found, {"grad_g": steps})

    at.assert_same_stream(er(0.2, memory, replay, steps), by_hand)


@pytest.mark.parametrize("steps", [1, 3])
def test_single(steps: int) -> None:
    """Gradient descent on each batch as it comes."""

    def by_hand(draws: Draws) -> Iterator[at.Step]:
        y = at.Y0
        for k in itertools.count():
            for _ in range(steps):
                slope = at.slope(at.X0, y, at.samples(at.now(k)[2]))
                y = y - 0.2 * slope
            found = {"x": at.X0, "y": y, "gradient_sq": (slope**2).sum()}
            yield at.Step(found, {"grad_g": steps})

    at.assert_same_stream(single(0.2, steps), by_hand)


# GEM


def smallest(P: Tensor, q: Tensor, margin: float) -> Tensor:
    """argmin over v >= margin of v^T P v / 2 + q^T v: of all choices of which v_i lie at the margin
    the one whose conditions of optimality hold."""
    n = len(q)
    for at_margin in itertools.product([True, False], repeat=n):
        free = [i for i in range(n) if not at_margin[i]]
        v = torch.full((n,), margin, dtype=torch.float64)
        if free:
            v[free] = 0.0
            v[free] = torch.linalg.solve(P[free][:, free], -(q + P @ v)[free])
        slope = P @ v + q
        if (v >= margin - 1e-12).all() and (slope[list(at_margin)] >= -1e-12).all():
            return v
    raise AssertionError("no choice is optimal")


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize(("memory", "margin"), [(5, 0.0), (5, 0.5), (20, 0.3)])
def test_gem(memory: int, margin: float, steps: int) -> None:
    """Lopez-Paz and Ranzato (2017), Algorithm 1: M_t <- M_t u (x, y), g on the batch, g_k on M_k of
    every k < t, g~ by the dual (11) where <g, g_k> < 0 for some k, theta <- theta - alpha g~."""
    seen = []

    def by_hand(draws: Draws) -> Iterator[at.Step]:
        y, rings = at.Y0, at.Rings(memory)
        for k in itertools.count():
            task, _, numbers = at.now(k)
            rings.put(task, numbers)
            violated = 0
            for _ in range(steps):
                g = at.slope(at.X0, y, at.samples(numbers))
                G = [at.slope(at.X0, y, at.samples(row)) for row in rings.rows[:task]]
                violated = sum(int(g @ old < 0) for old in G)
                if violated:
                    stacked = torch.stack(G)
                    v = smallest(stacked @ stacked.T, stacked @ g, margin)
                    g = g + v @ stacked
                y = y - 0.2 * g
                seen.append((task, violated))
            found = {"x": at.X0, "y": y, "memory": rings.rows, "violated": violated}
            yield at.Step(found, {"grad_g": steps * (1 + task)})

    at.assert_same_stream(gem(0.2, memory, margin, steps), by_hand, steps=12)
    assert {violated for task, violated in seen if task > 0} >= {0, 1}


@pytest.mark.parametrize("margin", [0.0, 0.5])
@pytest.mark.parametrize("seed", range(8))
def test_gems_dual_is_the_smallest_of_all_choices(seed: int, margin: float) -> None:
    rng = generator("gem by hand", seed)
    G = torch.randn(4, 9, generator=rng, dtype=torch.float64)
    slope = torch.randn(9, generator=rng, dtype=torch.float64) - 0.5 * G.sum(0)
    v = smallest(G @ G.T, G @ slope, margin)
    found = dual((G @ G.T).numpy(), (G @ slope).numpy(), margin)
    torch.testing.assert_close(torch.from_numpy(found), v, rtol=1e-9, atol=1e-9)
    z, violated = project_gradient(slope, G, margin)
    assert violated == int((G @ slope < 0).sum())
    torch.testing.assert_close(z, slope + v @ G, rtol=1e-9, atol=1e-9)
    single_precision, _ = project_gradient(slope.float(), G.float(), margin)
    assert single_precision.dtype == torch.float32
    torch.testing.assert_close(single_precision, z.float(), rtol=1e-4, atol=1e-4)


def test_gems_projection_has_no_margin_unless_asked() -> None:
    G, slope = torch.tensor([[1.0, 0.0]]).double(), torch.tensor([-0.5, 1.0]).double()
    torch.testing.assert_close(project_gradient(slope, G)[0], torch.tensor([0.0, 1.0]).double())
    torch.testing.assert_close(
        project_gradient(slope, G, 3.0)[0], torch.tensor([2.5, 1.0]).double()
    )


def test_gems_dual_leaves_out_what_only_rounding_says() -> None:
    """P of two equal rows has an eigenvalue that is zero but for rounding; tiny scales stay."""
    for scale in (1.0, 1e-9):
        G = scale * np.array([[1.0, 2.0], [1.0, 2.0], [0.0, 1.0]])
        slope = scale * np.array([-3.0, 1.0])
        v = dual(G @ G.T, G @ slope, 0.0)
        z = (slope + v @ G) / scale
        np.testing.assert_allclose(z, [-2.8, 1.4], rtol=1e-8)  # the part of (-3, 1) across (1, 2)
    np.testing.assert_array_equal(dual(np.zeros((2, 2)), np.zeros(2), 0.5), [0.5, 0.5])


# MER


@pytest.mark.parametrize("order", ["last", "first"])
@pytest.mark.parametrize("group", [1, 2, 3])
@pytest.mark.parametrize(("batches", "length", "memory"), [(1, 3, 2), (2, 3, 4), (2, 1, 1)])
def test_mer(
    batches: int, length: int, memory: int, group: int, order: Literal["last", "first"]
) -> None:
    """Riemer et al. (2019), Algorithm 1: for every sample (group: samples) s batches of k, the
    present one last or first, by SGD; theta <- theta^W_0 + beta (theta^W_k - theta^W_0) within a
    batch, theta <- theta^A_0 + gamma (theta^A_s - theta^A_0) across them; M by a reservoir
    afterwards."""
    size = at.TASKS * memory

    def by_hand(draws: Draws) -> Iterator[at.Step]:
        y, M, age = at.Y0, [0] * size, 0
        for k in itertools.count():
            draw, _, numbers = draws(k), *at.now(k)[1:]
            first, slopes = y, 0
            while numbers:
                now, numbers = numbers[:group], numbers[group:]
                theta_A = y
                for _ in range(batches):
                    theta_W = y
                    held = M[: min(age, size)]
                    old = at.chosen(draw, held, (length - 1) * group)
                    cut = [old[i : i + group] for i in range(0, len(old), group)]
                    cut.insert(len(cut) if order == "last" else 0, now)
                    for some in cut:
                        y = y - 0.2 * at.slope(at.X0, y, at.samples(some))
                        slopes += 1
                    y = theta_W + 0.4 * (y - theta_W)
                y = theta_A + 0.7 * (y - theta_A)
                uniform = draw.uniform(torch.zeros(len(now)).double())
                for u, number in zip(uniform.tolist(), now, strict=True):
                    place = age if age < size else int(u * (age + 1))  # Vitter's algorithm R
                    if place < size:
                        M[place] = number
                    age += 1
            found = {"x": at.X0, "y": y, "memory": M, "moved_sq": ((y - first) ** 2).sum()}
            yield at.Step(found, {"grad_g": slopes})

    at.assert_same_stream(mer(0.2, memory, batches, length, 0.4, 0.7, group, order), by_hand)


METHODS: dict[str, Callable[[], Algorithm]] = {
    "er": lambda: er(0.2, 5, 4),
    "single": lambda: single(0.2),
    "gem": lambda: gem(0.2, 5),
    "mer": lambda: mer(0.2, 5, length=3, across=4.0),
}


@pytest.mark.parametrize("name", METHODS)
def test_y_keeps_its_shape_and_its_set(name: str) -> None:
    """The steps of a matrix are those of its entries in a row; both stay in a box."""
    task = replace(at.stream(), lower_feasible=box(-0.4, 0.4))
    wide = replace(
        task,
        init=lambda rng: (at.X0.clone(), at.Y0.view(at.CLASSES, at.FEATURES).clone()),
        lower=lambda x, y, s: at.lower(x, y.flatten(), s),
    )
    ends = []
    for each in (task, wide, at.stream()):
        s = first(each, METHODS[name](), 0)
        with torch.no_grad():
            for _ in range(7):
                s = advance(each, METHODS[name](), 0, s)
        ends.append(s.state.y)
    assert float(ends[0].abs().max()) <= 0.4 < float(ends[2].abs().max())
    assert ends[1].shape == (at.CLASSES, at.FEATURES)
    torch.testing.assert_close(ends[1].flatten(), ends[0], rtol=1e-12, atol=1e-14)
