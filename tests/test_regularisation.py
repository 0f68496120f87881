"""benchmark_bilevel's two problems without images, against plain versions: losses row by row,
derivatives, spectra, exact solutions."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from bench.core.draw import Draw, generator
from bench.core.oracle import Oracle
from bench.core.settings import BadSetting
from bench.core.task import Context, Task
from tasks.data.binary import binary
from tasks.regularised_logistic import regularised_logistic
from tasks.sampled_quadratic import sampled_quadratic
from tests.test_measuring_tasks import DOUBLE, numbers, quotients, randn

SHAPE: dict[str, Any] = {"p": 4, "q": 6, "n": 40, "m": 24, "mu": 0.02, "cross": 0.2}
TASKS: dict[str, Callable[[], Task]] = {
    "regularised_logistic": lambda: regularised_logistic(DOUBLE),
    "sampled_quadratic": lambda: sampled_quadratic(DOUBLE, **SHAPE),
    "one upper variable": lambda: sampled_quadratic(DOUBLE, **SHAPE | {"p": 1}),
    "more upper variables": lambda: sampled_quadratic(DOUBLE, **SHAPE | {"p": 9, "mu": 0.1}),
}


def somewhere(task: Task) -> tuple[Tensor, Tensor]:
    rng = generator("somewhere")
    x, y = task.init(generator())
    return randn(rng, len(x)), randn(rng, len(y))


@pytest.mark.parametrize("size", [None, 7, 100])
@pytest.mark.parametrize("name", TASKS)
def test_closed_form_derivatives_are_autograds(name: str, size: int | None) -> None:
    """Both sides, all products, all rows and batches with repeated rows; 1e-12 is rounding."""
    task = TASKS[name]()
    plain = replace(task, upper_derivatives=None, lower_derivatives=None)
    x, y = somewhere(task)
    v = randn(generator("v"), len(y))

    def every(t: Task) -> list[Tensor]:
        o, draw = Oracle(t), Draw(t, 0, 0)
        xi, zeta = draw.f(size), draw.g(size)
        slope, products = o.linearise_g_y(x, y, zeta)
        parts = [o.f_x(x, y, xi), o.f_y(x, y, xi), o.g_x(x, y, zeta), o.g_y(x, y, zeta)]
        singly = [products.xy(v), products.yy(v)]
        return [
            *o.grad_f(x, y, xi),
            *o.grad_g(x, y, zeta),
            slope,
            *products.both(v),
            *singly,
            *parts,
        ]

    for a, b in zip(every(task), every(plain), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", TASKS)
def test_gradients_are_difference_quotients(name: str) -> None:
    """Of the losses of a batch, in x and in y; central differences are off by about 1e-9."""
    task = TASKS[name]()
    assert task.lower is not None
    x, y = somewhere(task)
    o, draw = Oracle(task), Draw(task, 0, 0)
    for loss, gradients, batch in (
        (task.upper, o.grad_f, draw.f(5)),
        (task.lower, o.grad_g, draw.g(5)),
    ):
        in_x, in_y = gradients(x, y, batch)
        by_x = quotients(lambda z, loss=loss, batch=batch: loss(z, y, batch), x)
        by_y = quotients(lambda z, loss=loss, batch=batch: loss(x, z, batch), y)
        torch.testing.assert_close(in_x, by_x, rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(in_y, by_y, rtol=1e-6, atol=1e-7)


def test_the_losses_of_the_regularised_logistic_problem() -> None:
    """Row by row: l(z) = log(1 + e^-z) of b a.y, and half of sum exp(x_k) y_k^2 on the lower level
    alone."""
    task, data = regularised_logistic(DOUBLE, instance=2), binary("breast_cancer", 2, DOUBLE)
    assert task.lower is not None
    x, y = somewhere(task)
    for size in (None, 3):
        for draw, loss, rows, extra in (
            (Draw(task, 0, 0).f, task.upper, data.val, 0.0),
            (Draw(task, 0, 0).g, task.lower, data.train, 0.5 * (x.exp() * y * y).sum()),
        ):
            batch = draw(size)
            losses = [
                torch.log1p(torch.exp(-rows.labels[i] * (rows.features[i] @ y)))
                for i in batch.tolist()
            ]
            expected = torch.stack(losses).mean() + extra
            torch.testing.assert_close(loss(x, y, batch), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", TASKS)
def test_the_yardstick_is_exact(name: str) -> None:
    """y*(x) has no slope; the hypergradient is the difference quotient of Phi."""
    task = TASKS[name]()
    x, y = somewhere(task)
    measured = numbers(task, x, y)
    # Newton steps on the oracle's own derivatives from another start lead to y*(x)
    o, best = Oracle(task), 0.1 * y
    for _ in range(30):
        slope, products = o.linearise_g_y(x, best, Draw(task, 0, 0).g())
        H = torch.stack([products.yy(e) for e in torch.eye(len(y)).double()])
        best = best - torch.linalg.solve(H, slope)
    assert numbers(task, x, best)["lower_error"] < 1e-9
    assert measured["lower_error"] == pytest.approx(float((y - best).norm()), rel=1e-9)
    phi = float(task.upper(x, best, Draw(task, 0, 0).f()))
    assert measured["objective"] == pytest.approx(phi, rel=1e-10)
    slope = quotients(lambda z: numbers(task, z, y)["objective"], x)
    assert measured["hypergradient_norm"] == pytest.approx(float(slope.norm()), rel=1e-5)
    assert measured["hypergradient_sq"] == pytest.approx(float(slope @ slope), rel=2e-5)


def test_validation_accuracy_counts_right_signs() -> None:
    task, data = regularised_logistic(DOUBLE), binary("breast_cancer", 0, DOUBLE)
    x, y = somewhere(task)
    right = [(row @ y > 0) == (b > 0) for row, b in zip(data.val.features, data.val.labels)]
    assert numbers(task, x, y)["val_accuracy"] == pytest.approx(sum(map(bool, right)) / len(right))


def test_the_starts_are_benchmark_bilevels() -> None:
    """y normal and exp(x) uniform, or y = 0 and x = -2; the seed changes nothing, the instance the
    start of the first."""
    starts = [
        regularised_logistic(Context(seed=s, dtype=torch.float64), instance=k).init(generator(s))
        for s, k in ((0, 0), (1, 0), (0, 1))
    ]
    for same, other in zip(starts[0], starts[1]):
        assert torch.equal(same, other)
    assert not torch.equal(starts[0][0], starts[2][0])
    many = [regularised_logistic(DOUBLE, instance=k).init(generator()) for k in range(20)]
    weights, y = torch.cat([x for x, _ in many]).exp(), torch.cat([y for _, y in many])
    assert 0 < float(weights.min()) < float(weights.max()) <= 1
    assert float(weights.mean()) == pytest.approx(0.5, abs=0.05)  # 600 numbers
    assert float(weights.std()) == pytest.approx(12**-0.5, abs=0.03)
    assert float(y.mean()) == pytest.approx(0, abs=0.15)
    assert float(y.std()) == pytest.approx(1, abs=0.1)
    x, y = sampled_quadratic(DOUBLE, **SHAPE).init(generator())
    assert x.tolist() == [-2.0] * 4
    assert y.tolist() == [0.0] * 6


def parts(task: Task, upper: bool) -> tuple[Tensor, Tensor, Tensor]:
    """H, E and C of all rows, from gradients, which are affine."""
    o, draw = Oracle(task), Draw(task, 0, 0)
    p, q = (len(z) for z in task.init(generator()))
    batch, grad = (draw.f(), o.grad_f) if upper else (draw.g(), o.grad_g)
    zero_x, zero_y = torch.zeros(p).double(), torch.zeros(q).double()
    d, c = grad(zero_x, zero_y, batch)
    H = torch.stack([grad(zero_x, e, batch)[1] - c for e in torch.eye(q).double()])
    E = torch.stack([grad(e, zero_y, batch)[0] - d for e in torch.eye(p).double()])
    C = torch.stack([grad(e, zero_y, batch)[1] - c for e in torch.eye(p).double()])
    return H, E, C


def spaced(low: float, high: float, count: int) -> Tensor:
    return torch.tensor(
        [low * (high / low) ** (k / (count - 1)) for k in range(count)], dtype=torch.float64
    )


@pytest.mark.parametrize("upper", [False, True])
def test_the_spectra_are_as_asked(upper: bool) -> None:
    """The lower level is 1-smooth with condition number 1 / mu; all rows together."""
    H, E, C = parts(sampled_quadratic(DOUBLE, **SHAPE), upper)
    torch.testing.assert_close(torch.linalg.eigvalsh(H), spaced(0.02, 1, 6), rtol=1e-10, atol=0)
    others = torch.cat([torch.zeros(1).double(), spaced(0.02, 1, 3)])
    torch.testing.assert_close(torch.linalg.eigvalsh(E), others, rtol=1e-10, atol=1e-12)
    values = torch.linalg.svdvals(C).flip(0)
    torch.testing.assert_close(values, spaced(0.02, 0.2, 4), rtol=1e-10, atol=0)


def test_rows_differ_and_average_to_the_whole() -> None:
    """A batch is the mean of its rows, and all rows by number are all the data."""
    task = sampled_quadratic(DOUBLE, **SHAPE)
    x, y = somewhere(task)
    o = Oracle(task)
    single = [o.grad_g(x, y, torch.tensor([i])) for i in range(40)]
    for k, whole in enumerate(o.grad_g(x, y, Draw(task, 0, 0).g())):
        rows = torch.stack([gradients[k] for gradients in single])
        torch.testing.assert_close(rows.mean(0), whole, rtol=1e-10, atol=1e-12)
        assert float(rows.std(0).min()) > 0.1
    some = o.grad_g(x, y, torch.tensor([3, 5, 5]))
    for k, found in enumerate(some):
        expected = (single[3][k] + 2 * single[5][k]) / 3
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("shape", [SHAPE, SHAPE | {"p": 1}, SHAPE | {"instance": 4}])
def test_the_optimum_is_the_solution_in_closed_form(shape: dict[str, Any]) -> None:
    """With y = J x + k, J = -H^-1 C', k = -H^-1 c: Phi is quadratic, and its Hessian and slope at 0
    come from f's parts."""
    task = sampled_quadratic(DOUBLE, **shape)
    assert task.report.optimum is not None
    (H, _, C), (Hf, Ef, Cf) = parts(task, False), parts(task, True)
    zero_x, zero_y = (torch.zeros(k).double() for k in (shape["p"], shape["q"]))
    o, draw = Oracle(task), Draw(task, 0, 0)
    c = o.g_y(zero_x, zero_y, draw.g())
    d_f, c_f = o.grad_f(zero_x, zero_y, draw.f())
    inverse = torch.linalg.inv(H)
    J, k = -inverse @ C.T, -inverse @ c
    hessian = Ef + J.T @ Hf @ J + Cf @ J + (Cf @ J).T
    slope = d_f + Cf @ k + J.T @ (Hf @ k + c_f)
    best = -torch.linalg.inv(hessian) @ slope
    torch.testing.assert_close(task.report.optimum["curvature"], hessian, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(task.report.optimum["x"], best, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(task.report.optimum["y"], J @ best + k, rtol=1e-8, atol=1e-10)
    there = numbers(task, best, J @ best + k)
    assert there["hypergradient_norm"] < 1e-9
    assert there["distance"] < 1e-8
    assert there["lower_error"] < 1e-8
    away = numbers(task, best + 1, zero_y)
    assert away["distance"] == pytest.approx(shape["p"] ** 0.5, rel=1e-8)


def test_the_seed_changes_no_row_and_the_instance_all() -> None:
    a, b, c = (
        parts(sampled_quadratic(Context(seed=s, dtype=torch.float64), **SHAPE, instance=k), False)[
            0
        ]
        for s, k in ((0, 0), (1, 0), (0, 1))
    )
    assert torch.equal(a, b)
    assert not torch.allclose(a, c)


@pytest.mark.parametrize("make", [regularised_logistic, sampled_quadratic])
def test_metrics_are_exact_in_single_precision(make: Callable[[Context], Task]) -> None:
    """Of the point that float32 has."""
    single, double = make(Context()), make(DOUBLE)
    x, y = single.init(generator())
    assert x.dtype == y.dtype == torch.float32
    found, exact = numbers(single, x, y), numbers(double, x.double(), y.double())
    for name, value in found.items():
        assert value == pytest.approx(exact[name], rel=1e-12), name


def test_wrong_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match=r"task\.mu=0: write a number above 0"):
        sampled_quadratic(DOUBLE, mu=0.0)
    with pytest.raises(BadSetting, match=r"task\.n=1024, task\.m=99: write at least 100, p and q"):
        sampled_quadratic(DOUBLE, m=99)
    with pytest.raises(BadSetting, match=r"task\.cross=50\.0: no draw has a solution; write a"):
        sampled_quadratic(DOUBLE, **SHAPE | {"p": 6, "mu": 1.0, "cross": 50.0})
    with pytest.raises(BadSetting, match=r"task\.source=ijcnn1: .*ijcnn1: No such file"):
        regularised_logistic(Context(data_root=tmp_path), source="ijcnn1")
