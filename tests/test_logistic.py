"""The logistic problem: its derivatives, its smoothness, its exact hypergradient."""

from typing import Any

import pytest
import torch
from torch import Tensor

from bench.core.draw import Draw, generator
from bench.core.oracle import Oracle
from bench.core.settings import BadSetting
from bench.core.task import Context, Task
from tasks.common.newton import newton
from tasks.logistic import logistic
from tasks.quadratic import quadratic


def somewhere(task: Task) -> tuple[Tensor, Tensor]:
    x, y = task.init(generator())
    rng = generator("somewhere")
    return (torch.randn(t.shape, generator=rng, dtype=torch.float64) for t in (x, y))  # type: ignore[return-value]


@pytest.mark.parametrize("size", [None, 7, 1000])
@pytest.mark.parametrize("which", ["logistic", "quadratic"])
def test_closed_form_derivatives_are_autograds(
    which: str, size: int | None, context: Context
) -> None:
    """Both sides, all products, all rows and batches with repeated rows; 1e-12 is rounding."""
    from dataclasses import replace

    task = (
        logistic(context, curvature=0.1)
        if which == "logistic"
        else quadratic(context, noise=0.3, curving=0.1)
    )
    plain = replace(task, upper_derivatives=None, lower_derivatives=None)
    x, y = somewhere(task)
    v = torch.randn(y.shape, generator=generator("v"), dtype=torch.float64)

    def every(t: Task) -> list[Tensor]:
        o, draw = Oracle(t), Draw(t, 0, 0)
        xi, zeta = draw.f(size), draw.g(size)
        slope, products = o.linearise_g_y(x, y, zeta)
        return [*o.grad_f(x, y, xi), *o.grad_g(x, y, zeta), slope, *products.both(v)]

    for a, b in zip(every(task), every(plain), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def measured_hypergradient(task: Task, x: Tensor) -> float:
    return float(task.evaluate(x, task.init(generator())[1], 0)["hypergradient_sq"])


def objective(task: Task, x: Tensor) -> float:
    return float(task.evaluate(x, task.init(generator())[1], 0)["objective"])


def test_the_exact_hypergradient_is_the_difference_quotient_of_phi(context: Context) -> None:
    """Central differences with h = 1e-5: error about h^2 + 1e-16 / h = 1e-10."""
    task = logistic(context, n=12, m=12, q=4, condition=20.0, curvature=0.1)
    x, _ = somewhere(task)
    h, total = 1e-5, 0.0
    for e in torch.eye(len(x)).double():
        total += ((objective(task, x + h * e) - objective(task, x - h * e)) / (2 * h)) ** 2
    assert measured_hypergradient(task, x) == pytest.approx(total, rel=1e-7)


@pytest.mark.parametrize("condition", [10.0, 100.0])
def test_the_lower_level_is_as_smooth_and_convex_as_it_says(
    condition: float, context: Context
) -> None:
    task = logistic(context, condition=condition)
    x, y = task.init(generator())
    for factor in (0.0, 1.0, 30.0):  # large weights, small margins: the steepest that there is
        H = Oracle(task).g_yy(x + factor, y, Draw(task, 0, 0).g())
        spectrum = torch.linalg.eigvalsh(torch.stack([H(e) for e in torch.eye(10).double()]))
        assert spectrum[0] >= 1 / condition - 1e-12
        assert spectrum[-1] <= 1 + 1e-12
    assert float(spectrum[-1]) == pytest.approx(1, abs=1e-9)  # reached


def test_a_condition_number_of_one_is_refused(context: Context) -> None:
    with pytest.raises(BadSetting, match=r"task\.condition=1\.0: write a number above 1"):
        logistic(context, condition=1.0)


def test_the_step_sizes_of_the_complexity_tables_are_the_theorems(context: Context) -> None:
    """conf/paper/stocbio/table1*.yaml hold numbers; here is where they come from."""
    import math

    from bench.reproduce.book import load_book

    book = load_book()
    for name in ("table1", "table1_logistic"):
        for row in book.artifacts[f"stocbio/{name}"].spec.rows.values():
            s: dict[str, Any] = dict(row.set)
            kappa = s["task.condition"]
            smooth = (1 + kappa) ** 2 if name == "table1" else 6.5e-4 * kappa
            times = 4 if row.method == "itd" else 8
            assert s["algorithm.outer_lr"] == pytest.approx(1 / (times * smooth), rel=1e-3)
            if row.method == "itd":
                log = (
                    math.log(10 * kappa / math.sqrt(10))
                    if name == "table1"
                    else math.log(kappa / (10 * math.sqrt(1e-4)))
                )
                assert s["algorithm.T"] == math.ceil(kappa * log)
                continue
            assert s["algorithm.N"] == math.ceil(3 * math.sqrt(kappa))
            if row.method == "aid_bio":
                assert s["algorithm.T"] == 3 * kappa
            else:
                assert s["algorithm.c"] == kappa / 2
    for row in book.artifacts["stocbio/table2"].spec.rows.values():
        if row.method != "stocbio":
            continue
        s = dict(row.set)
        kappa, batch = s["task.condition"], s["algorithm.batch"]
        assert s["algorithm.outer_lr"] == pytest.approx(1 / (4 * (1 + kappa) ** 2), rel=1e-3)
        assert s["algorithm.T"] == 3 * kappa
        assert s["algorithm.shrink"] == 1 / kappa
        assert s["algorithm.inner_batch"] == pytest.approx(kappa**3 * batch / 20, abs=2 * kappa**3)


@pytest.mark.parametrize("condition", [10.0, 100.0])
def test_the_measured_smoothness_is_not_exceeded(condition: float, context: Context) -> None:
    """The spectral norm of Phi's Hessian at random points is at most 6.5e-4 kappa."""
    for instance in (0, 1):
        task = logistic(context, condition=condition, instance=instance)
        x, _ = task.init(generator())
        names = task.evaluate.__code__.co_freevars
        cells = dict(zip(names, task.evaluate.__closure__ or ()))
        hypergradient, solution = (
            cells[name].cell_contents for name in ("hypergradient", "solution")
        )
        rng = generator("points", instance)
        for size in (0.0, 1.0, 2.0):
            at = size * torch.randn(x.shape, generator=rng, dtype=torch.float64)
            h = 1e-5
            columns = []
            for e in torch.eye(len(x)).double():
                ends = [hypergradient(p, solution(p)) for p in (at + h * e, at - h * e)]
                columns.append((ends[0] - ends[1]) / (2 * h))
            assert torch.linalg.matrix_norm(torch.stack(columns), 2) <= 6.6e-4 * condition


def test_newton_ends_at_a_minimiser_of_any_scale_and_dtype() -> None:
    """A logistic loss whose minimiser is known: the labels' log odds, from far off, where a full
    step ascends. A dozen evaluations of the Hessian suffice, also in float32, whose gradient never
    comes to 0: the tolerance is a few roundings."""
    for dtype in (torch.float32, torch.float64):
        share = torch.tensor([0.001, 0.3, 0.9999], dtype=dtype)
        hessians = 0

        def hessian(y: Tensor) -> Tensor:
            nonlocal hessians
            hessians += 1
            s = torch.sigmoid(y)
            return torch.diag(s * (1 - s))

        def value(y: Tensor, share: Tensor = share) -> Tensor:
            return (torch.nn.functional.softplus(y) - share * y).sum()

        def gradient(y: Tensor, share: Tensor = share) -> Tensor:
            return torch.sigmoid(y) - share

        found = newton(value, gradient, hessian, torch.tensor([3.0, -4.0, 2.0], dtype=dtype))
        tolerance = 10 * torch.finfo(dtype).eps / float((share * (1 - share)).min())
        torch.testing.assert_close(found, share.logit(), rtol=tolerance, atol=0)
        assert hessians < 30


def test_newton_hands_back_what_is_no_number_and_says_where_it_does_not_end() -> None:
    one = torch.ones(1).double()
    assert newton(torch.sum, lambda y: y * torch.nan, lambda y: one[:, None], one).isnan().all()
    with pytest.raises(ArithmeticError, match="has not come to a minimiser"):
        newton(torch.sum, lambda y: torch.ones_like(y), lambda y: one[:, None], one)


def test_runs_of_either_precision_are_measured_in_float64() -> None:
    """The data of a float32 run are rounded, so that 1e-5 leaves room for what they make of it."""
    x = torch.randn(50, generator=generator("x"), dtype=torch.float64)
    found = []
    for dtype in (torch.float32, torch.float64):
        task = logistic(Context(dtype=dtype), n=50)
        found.append(task.evaluate(x.to(dtype), torch.zeros(10).to(dtype), 0))
        assert {t.dtype for t in found[-1].values()} == {torch.float64}
    for name, truth in found[1].items():
        torch.testing.assert_close(found[0][name], truth, rtol=1e-5, atol=0)
