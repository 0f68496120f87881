"""The toys' optima, and the end points of BOME's released code (float32, as it runs)."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.rng import generator
from bench.task import Context, Task
from tasks.toy import toy_coreset, toy_degenerate, toy_minimax
from tests.conftest import Cli

# experiment -> (end point, tolerance): dossier of the released code, printed to so many digits
ENDS: dict[str, tuple[dict[str, float], float]] = {
    "toy_coreset_code_bome": ({"theta_1": 1.8167, "theta_2": 0.3851}, 5e-3),
    "toy_coreset_code_bsg1": ({"theta_1": 2.976, "theta_2": 1.004}, 5e-3),
    "toy_coreset_code_bvfsm": ({"theta_1": 1.951, "theta_2": -0.178}, 5e-3),
    "toy_coreset_code_penalty": ({"theta_1": 2.292, "theta_2": -0.568}, 5e-3),
    "toy_minimax_code_bome": ({"theta": -0.016, "v": 0.049}, 1e-3),
    "toy_minimax_code_bsg1": ({"theta": 10.0, "v": 4.0}, 1e-3),
    "toy_minimax_code_bvfsm": ({"theta": -10.0, "v": 10.0}, 1e-3),
    "toy_minimax_code_penalty": ({"theta": 4.0, "v": -10.0}, 1e-3),
    "toy_minimax_code_optimistic_gd": ({"theta": 0.0, "v": 0.0}, 1e-3),
    "toy_degenerate_code_bome": ({"theta_1": 1.0, "theta_2": 1.0, "v": 1.0}, 1e-3),
    "toy_degenerate_code_bsg1": ({"theta_1": 0.0, "theta_2": 0.0, "v": 0.0}, 1e-6),
    "toy_degenerate_code_bvfsm": ({"theta_1": 0.98, "theta_2": -0.23, "v": -0.23}, 5e-3),
    "toy_degenerate_code_penalty": ({"theta_1": 0.999, "theta_2": 0.999, "v": 0.999}, 1e-3),
}


@pytest.mark.parametrize("variant", ["paper", "code"])
@pytest.mark.parametrize("toy", [toy_coreset, toy_minimax, toy_degenerate])
def test_closed_forms_are_the_gradients_of_the_losses(
    context: Context, toy: Callable[..., Task], variant: str
) -> None:
    task = toy(context, variant=variant)
    x, y = task.init(generator(0, "init"))
    rng = torch.Generator().manual_seed(0)
    point = [torch.randn(t.shape, dtype=t.dtype, generator=rng).requires_grad_() for t in (x, y)]
    for loss, closed in (
        (task.upper, task.upper_derivatives),
        (task.lower, task.lower_derivatives),
    ):
        assert loss is not None
        assert closed is not None
        exact = torch.autograd.grad(loss(*point, None), point, materialize_grads=True)
        for got, want in zip(closed.grad(*point, None, "xy"), exact):
            torch.testing.assert_close(got, want, rtol=0, atol=1e-14)
        torch.testing.assert_close(closed.grad(*point, None, "y")[1], exact[1], rtol=0, atol=1e-14)

    assert task.lower is not None
    assert task.lower_derivatives is not None
    assert task.lower_derivatives.linearise is not None
    slope, product = task.lower_derivatives.linearise(*point, None)
    (g_y,) = torch.autograd.grad(task.lower(*point, None), point[1:], create_graph=True)
    torch.testing.assert_close(slope(), g_y, rtol=0, atol=1e-14)
    v = torch.randn(y.shape, dtype=y.dtype, generator=rng)
    for got, want in zip(
        product(v, "xy"), torch.autograd.grad(g_y, point, v, materialize_grads=True)
    ):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-14)


def last_row(cli: Cli, tmp_path: Path, *arguments: str) -> dict[str, Any]:
    done = cli(*arguments, "run.threads=1")
    assert done.returncode == 0, done.stderr
    (summary,) = (tmp_path / "runs").rglob("summary.json")
    last: dict[str, Any] = json.loads(summary.read_text())["last"]
    return last


@pytest.mark.parametrize("experiment", ENDS)
def test_released_settings_end_where_the_released_code_ends(
    experiment: str, cli: Cli, tmp_path: Path
) -> None:
    expected, tolerance = ENDS[experiment]
    last = last_row(cli, tmp_path, f"experiment={experiment}", "run.every=1000")
    assert {key: last[key] for key in expected} == pytest.approx(expected, abs=tolerance)


def test_bome_with_its_own_defaults_on_the_released_coreset(cli: Cli, tmp_path: Path) -> None:
    arguments = ["task=toy_coreset", "task.variant=code", "algorithm=bome", "run.steps=5000"]
    last = last_row(cli, tmp_path, *arguments, "run.every=1000")
    assert last["theta_1"] == pytest.approx(1.8167, abs=5e-3)
    assert last["theta_2"] == pytest.approx(0.3851, abs=5e-3)


def test_minimax_bome_reaches_the_saddle_after_500_steps(cli: Cli, tmp_path: Path) -> None:
    last = last_row(cli, tmp_path, "experiment=toy_minimax_code_bome", "run.steps=500")
    assert (last["theta"], last["v"]) == pytest.approx((0, 1e-4), abs=2e-4)


def test_gradient_descent_ascent_moves_away(cli: Cli, tmp_path: Path) -> None:
    """Each step multiplies the distance by sqrt(1 + lr^2): after 2,000, by 12.2."""
    last = last_row(cli, tmp_path, "task=toy_minimax", "algorithm=gda", "run.steps=2000")
    assert last["distance"] == pytest.approx(32**0.5 * (1 + 0.05**2) ** 1000, rel=1e-3)


@pytest.mark.parametrize(("variant", "best"), [("paper", (3.0, 1.0)), ("code", (1.8, 0.4))])
def test_the_coreset_optimum_is_the_closest_point_of_the_hull(variant, best, context) -> None:  # type: ignore[no-untyped-def]
    task = toy_coreset(context, variant)
    assert task.optimum is not None
    y, goal = task.optimum["y"], torch.tensor([3.0, -2.0]).double()
    assert y.tolist() == pytest.approx(best)
    points = torch.tensor([[1, 3], [3, 1], [-2, 2], [-3, 2 if variant == "paper" else -2]])
    weights = torch.rand(2000, 4, generator=generator("hull"), dtype=torch.float64)
    hull = (weights / weights.sum(1, keepdim=True)) @ points.double()
    assert ((hull - y) @ (goal - y) <= 1e-9).all()  # what makes it the projection of the goal
    scale = {"paper": 1.0, "code": 0.1}[variant]
    found = task.upper(y, y, None)
    assert float(found) == pytest.approx(scale * {"paper": 9.0, "code": 7.2}[variant])


def test_toy_settings_override_the_variant(context: Context) -> None:
    task = toy_coreset(context, "paper", scale=0.1, corner=(-3.0, -2.0), start=3)
    code = toy_coreset(context, "code", start=3)
    assert task.optimum is not None
    assert code.optimum is not None
    assert torch.equal(task.optimum["y"], code.optimum["y"])
    assert task.init(generator())[1].tolist() == [3.5, 1.0]
    assert code.init(generator())[1].tolist() == [3.5, -1.0]
    assert toy_minimax(context, "code").feasible.project is not None
    assert toy_minimax(context, "code", clamp="none").feasible.project is None


def test_the_printed_degenerate_problem_has_many_optima_and_the_codes_one(
    context: Context,
) -> None:
    """f and the lower gap vanish at theta = (v, 1) for every v as printed, at v = 1 in the code."""
    for variant, optimal in [("paper", {0.0, 1.0, 3.0}), ("code", {1.0})]:
        task = toy_degenerate(context, variant)  # type: ignore[arg-type]
        zero = set()
        for v in (0.0, 1.0, 3.0):
            x, y = torch.tensor([v]).double(), torch.tensor([v, 1.0]).double()
            metrics = task.evaluate(x, y, 0)
            if float(metrics["upper"]) == 0 and abs(float(metrics["gap"])) < 1e-12:
                zero.add(v)
        assert zero == optimal
