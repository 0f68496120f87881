"""OBBO and SOBBO with the Euclidean distance, by hand (Bohne et al., 2024): the hypergradient is
autograd's, through all inner steps."""

from typing import Any

import pytest
import torch
from torch import Tensor

from algorithms.online.obbo import obbo, sobbo
from bench.core.task import Task
from tests.steps import drifting as on
from tests.steps import problem as at

PLACES = pytest.mark.parametrize(("case", "batch"), on.PLACES)


def through(
    task: Task, x: Tensor, y: Tensor, xi: Any, zetas: list[Any], lr: float
) -> tuple[Tensor, Tensor]:
    """(d/dx f(x, y_K(x); xi), y_K) where y_{k+1} = P(y_k - lr g_y(x, y_k; zeta_k)) from y_0 = y;
    what P takes away is held fixed, which makes its derivative the identity."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        for zeta in zetas:
            leaf = y if y.requires_grad else y.detach().requires_grad_()
            slope = torch.autograd.grad(on.lower(x, leaf, zeta), leaf, create_graph=True)[0]
            free = leaf - lr * slope
            y = free + (at.in_y(task, free) - free).detach()
        slope = torch.autograd.grad(on.upper(x, y, xi), x)[0]
    return slope, y.detach()


@PLACES
@pytest.mark.parametrize("settings", [{}, {"K": 1}, {"K": 2}])
def test_obbo(settings: dict[str, Any], case: str, batch: int | None) -> None:
    """K steps on one sample of g_t, and one in x."""
    task, K = on.CASES[case](), ({"K": 5} | settings)["K"]

    def by_hand(draws: on.Draws) -> on.Rounds:
        x, y = at.X0, at.Y0
        for k in range(3):
            xi, zeta = draws(k).f(batch), draws(k).g(batch)
            slope, y = through(task, x, y, xi, [zeta] * K, 0.3)
            x = at.in_x(task, x - 0.05 * slope)
            yield {"x": x, "y": y, "hypergrad_sq": slope @ slope}

    end = on.assert_same_rounds(task, obbo(0.3, 0.05, **settings, batch=batch), by_hand)
    counts = {"grad_g": 3 * K, "grad_f": 3, "jvp_g": 3 * K, "hvp_g": 3 * (K - 1)}
    assert {name: end.calls[name] for name in counts} == counts


@PLACES
@pytest.mark.parametrize("settings", [{}, {"K": 1, "window": 1}, {"K": 3, "window": 2}])
def test_sobbo(settings: dict[str, Any], case: str, batch: int | None) -> None:
    """A sample of its own for every inner step, one for f; a step along the mean of the last w
    hypergradients of their own rounds and points, zero before round 1."""
    task, had = on.CASES[case](), {"K": 5, "window": 50} | settings
    w = had["window"]

    def by_hand(draws: on.Draws) -> on.Rounds:
        x, y, found = at.X0, at.Y0, []
        for k in range(4):
            draw = draws(k)
            xi, zetas = draw.f(batch), [draw.g(batch) for _ in range(had["K"])]
            slope, y = through(task, x, y, xi, zetas, 0.3)
            found.append(slope)
            average = torch.stack(found[-w:]).sum(0) / w
            x = at.in_x(task, x - 0.2 * average)
            yield {"x": x, "y": y, "hypergrad_sq": average @ average}

    end = on.assert_same_rounds(task, sobbo(0.3, 0.2, **settings, batch=batch), by_hand, steps=4)
    K = had["K"]
    counts = {"grad_g": 4 * K, "grad_f": 4, "jvp_g": 4 * K, "hvp_g": 4 * (K - 1)}
    assert {name: end.calls[name] for name in counts} == counts


def test_by_default_both_ask_for_all_the_data() -> None:
    for made in (obbo(0.3, 0.05), sobbo(0.3, 0.05)):
        end = on.assert_same_rounds(on.problem(), made, on.unheld, steps=1)
        assert end.samples["grad_f"] == at.ROWS * end.calls["grad_f"]
        assert end.samples["grad_g"] == at.ROWS * end.calls["grad_g"]
