"""The quadratic and the logistic problem, rows and stationarity, against slow plain versions."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from bench.core.draw import Draw, generator
from bench.core.oracle import Oracle
from bench.core.settings import BadSetting
from bench.core.task import Context, Set, Task, Wrt
from bench.numerics.sets import box, l1_ball
from tasks.common.rows import row_batches
from tasks.common.stationarity import gradient_mapping, spectrum, stationarity
from tasks.logistic import logistic
from tasks.quadratic import quadratic

DOUBLE = Context(dtype=torch.float64)


def randn(rng: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def numbers(task: Task, x: Tensor, y: Tensor) -> dict[str, float]:
    return {key: float(value) for key, value in task.evaluate(x, y, 0).items()}


def quotients(value: Callable[[Tensor], Tensor | float], at: Tensor, h: float = 1e-5) -> Tensor:
    """Central differences: an error of about h^2 and 1e-16 / h."""
    ends = [
        (float(value(at + h * e)), float(value(at - h * e))) for e in torch.eye(len(at)).double()
    ]
    return torch.tensor([(up - down) / (2 * h) for up, down in ends], dtype=torch.float64)


class Drawn:
    """The quadratic's tables as its docstring has them: drawn in this order from this name."""

    def __init__(
        self, p: int, q: int, instance: int, condition: float, samples: int,
        noise: float, curving: float, coupling: float | None,
    ):  # fmt: skip
        rng = generator("quadratic", p, q, instance)
        basis = torch.linalg.qr(randn(rng, q, q)).Q
        values = [condition ** (-i / (q - 1)) for i in range(q)]
        self.A = sum(v * torch.outer(b, b) for v, b in zip(values, basis.T, strict=True))
        self.B, self.c = randn(rng, q, p) / math.sqrt(q), randn(rng, q)
        if coupling is not None:
            self.B = self.B * coupling / torch.linalg.svdvals(self.B)[0]
        shift, bend = noise * randn(rng, samples, q), curving * randn(rng, samples, q)
        self.shift = shift - shift.sum(0) / samples
        self.bend = bend - bend.sum(0) / samples


SHAPES: list[dict[str, Any]] = [
    {},
    {"p": 2, "q": 4, "condition": 50.0, "curvature": 0.7, "noise": 0.4, "instance": 3},
    {"samples": 10, "noise": 0.2, "curving": 0.1, "coupling": 2.5},
    {"curving": 0.2, "curvature": 0.0, "samples": 7},
]


@pytest.mark.parametrize("settings", SHAPES)
def test_the_quadratic(settings: dict[str, Any]) -> None:
    """Losses row by row, and the metrics at a point from plain solves.

    f = |y - c - shift_i|^2 / 2 of the mean shift, g = y (A + bend_i) y / 2 - y (B x + shift_i) +
    x B' A^-1 B x / 2. 1e-6: the eigenvalues are spaced in float32.
    """
    known = {
        "p": 3, "q": 5, "condition": 4.0, "curvature": 0.1, "samples": 64, "noise": 0.0,
        "curving": 0.0, "coupling": None, "instance": 0,
    } | settings  # fmt: skip
    curvature = known.pop("curvature")
    made = Drawn(**known)
    task = quadratic(DOUBLE, **settings)
    assert task.lower is not None
    assert task.report.optimum is not None
    torch.testing.assert_close(task.report.optimum["A"], made.A, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(task.report.optimum["B"], made.B, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(task.report.optimum["c"], made.c, rtol=0, atol=0)
    assert float(task.report.optimum["curvature"]) == curvature
    A, B, c = (task.report.optimum[name] for name in "ABc")
    values = torch.linalg.eigvalsh(A)
    assert float(values[-1] / values[0]) == pytest.approx(known["condition"], rel=1e-6)
    assert float(values[-1]) == pytest.approx(1, rel=1e-6)

    rng = generator("point")
    x, y = randn(rng, known["p"]), randn(rng, known["q"])
    inverse = torch.linalg.inv(A)

    def phi(x: Tensor) -> float:
        return float(0.5 * (inverse @ B @ x - c).square().sum() + curvature / 2 * x @ x)

    for size in (None, 1, 5):
        for batch in (Draw(task, 0, 0).f(size), Draw(task, 0, 0).g(size)):
            rows = batch.tolist()
            assert rows == list(range(known["samples"])) or len(rows) == size
            assert task.data.count(batch) == len(rows)
            shift = sum(made.shift[i] for i in rows) / len(rows)
            f = 0.5 * (y - c - shift).square().sum() + curvature / 2 * (x @ x)
            g = sum(
                0.5 * y @ (A + torch.diag(made.bend[i])) @ y - y @ (B @ x + made.shift[i])
                for i in rows
            ) / len(rows)
            least = 0.5 * x @ B.T @ inverse @ B @ x
            assert float(task.upper(x, y, batch)) == pytest.approx(float(f), rel=1e-12)
            assert float(task.lower(x, y, batch)) == pytest.approx(float(g + least), rel=1e-9)

    found, best = numbers(task, x, y), task.report.optimum["x"]
    slope = quotients(phi, x)
    assert found == pytest.approx(
        {
            "objective": phi(x),
            "hypergradient_norm": float(slope.norm()),
            "hypergradient_sq": float(slope @ slope),
            "lower_error": float((y - inverse @ B @ x).norm()),
            "distance": float((x - best).norm()),
        },
        rel=1e-8,
    )
    torch.testing.assert_close(task.report.optimum["y"], inverse @ B @ best, rtol=1e-9, atol=1e-9)
    if curvature or known["p"] <= known["q"]:
        assert float(quotients(phi, best).norm()) < 1e-8
    assert [t.tolist() for t in task.init(generator())] == [[0.0] * len(x), [0.0] * len(y)]
    assert task.data.rows is not None
    assert task.data.rows(torch.arange(9), 2, 5).tolist() == [2, 3, 4]


@pytest.mark.parametrize(("p", "q"), [(8, 3), (6, 5), (2, 1)])
def test_of_many_minimisers_the_optimum_is_where_descent_ends(p: int, q: int) -> None:
    """Gradient descent on Phi from the task's start, until it stands still; with p <= q there is
    one minimiser alone."""
    task = quadratic(DOUBLE, p, q, condition=2.0, curvature=0.0, coupling=1.0)
    assert task.report.optimum is not None
    (x, _), (A, B, c, best) = (
        task.init(generator()),
        (task.report.optimum[k] for k in ("A", "B", "c", "x")),
    )
    sensitivity = torch.linalg.inv(A) @ B
    lr = 1 / float(torch.linalg.matrix_norm(sensitivity, 2)) ** 2
    for _ in range(20_000):
        x = x - lr * sensitivity.T @ (sensitivity @ x - c)
    torch.testing.assert_close(best, x, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(task.report.optimum["y"], c, rtol=1e-8, atol=1e-8)
    assert numbers(task, x, c)["distance"] < 1e-7


@pytest.mark.parametrize("condition", [0.1, 0.999])
def test_a_condition_number_below_one_is_refused(condition: float) -> None:
    words = rf"task\.condition={condition}: write a number of at least 1"
    with pytest.raises(BadSetting, match=words):
        quadratic(DOUBLE, condition=condition)
    quadratic(DOUBLE, condition=1.0)


def test_one_lower_coordinate_has_curvature_one() -> None:
    """q = 1 leaves A = 1 whatever the condition number."""
    task = quadratic(DOUBLE, q=1, condition=9.0)
    assert task.report.optimum is not None
    assert task.report.optimum["A"].tolist() == [[pytest.approx(1.0)]]


class Data:
    """The logistic problem's data as its docstring has them."""

    def __init__(self, n: int, m: int, q: int, condition: float, flipped: float, instance: int):
        rng = generator("logistic", n, m, q, instance)
        truth, below, above = randn(rng, q), randn(rng, n, q), randn(rng, m, q)
        wrong = torch.rand(n, generator=rng) < flipped
        self.mu = 1 / condition
        signed = [
            (-1 if bad else 1) * math.copysign(1, float(row @ truth)) * row
            for row, bad in zip(below, wrong.tolist(), strict=True)
        ]
        largest = torch.linalg.eigvalsh(sum(torch.outer(r, r) for r in signed) / (4 * n))[-1]
        scale = math.sqrt((1 - self.mu) / float(largest))
        self.a = torch.stack([scale * r for r in signed])
        self.c = torch.stack([scale * math.copysign(1, float(r @ truth)) * r for r in above])


def loss(margin: float) -> float:
    return math.log(1 + math.exp(-margin))


def sigmoid(z: float) -> float:
    return 1 / (1 + math.exp(-z))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {
            "n": 9, "m": 13, "q": 3, "condition": 30.0, "curvature": 0.4, "flipped": 0.5,
            "instance": 2,
        },
    ],
)  # fmt: skip
def test_the_logistic_problem(settings: dict[str, Any]) -> None:
    """Losses row by row; y*(x) by plain Newton steps; Phi's slope by differences."""
    known = {
        "n": 40, "m": 40, "q": 10, "condition": 10.0, "curvature": 0.0, "flipped": 0.3,
        "instance": 0,
    } | settings  # fmt: skip
    curvature = known.pop("curvature")
    data, task = Data(**known), logistic(DOUBLE, **settings)
    assert task.lower is not None
    rng, n, m, q = generator("point"), known["n"], known["m"], known["q"]
    x, y = randn(rng, n), randn(rng, q)

    def f(x: Tensor, y: Tensor, rows: list[int]) -> float:
        mean = sum(loss(float(data.c[j] @ y)) for j in rows) / len(rows)
        return mean + curvature / 2 * float(x @ x)

    def g(x: Tensor, y: Tensor, rows: list[int]) -> float:
        each = [sigmoid(float(x[i])) * loss(float(data.a[i] @ y)) for i in rows]
        return sum(each) / len(rows) + data.mu / 2 * float(y @ y)

    for size in (None, 1, 6):
        draw = Draw(task, 0, 0)
        xi, zeta = draw.f(size), draw.g(size)
        assert (len(xi), len(zeta)) == ((m, n) if size is None else (size, size))
        assert (task.data.count(xi), task.data.count(zeta)) == (len(xi), len(zeta))
        assert float(task.upper(x, y, xi)) == pytest.approx(f(x, y, xi.tolist()), rel=1e-12)
        assert float(task.lower(x, y, zeta)) == pytest.approx(g(x, y, zeta.tolist()), rel=1e-12)

    def solved(x: Tensor) -> Tensor:
        y = torch.zeros(q).double()
        for _ in range(12):
            z = torch.sigmoid(-data.a @ y)
            w = torch.sigmoid(x) / n
            slope = data.mu * y - data.a.T @ (w * z)
            H = data.mu * torch.eye(q).double() + data.a.T @ torch.diag(w * z * (1 - z)) @ data.a
            y = y - torch.linalg.solve(H, slope)
        return y

    def phi(x: Tensor) -> float:
        return f(x, solved(x), list(range(m)))

    slope = quotients(phi, x)
    assert numbers(task, x, y) == pytest.approx(
        {
            "objective": phi(x),
            "hypergradient_norm": float(slope.norm()),
            "hypergradient_sq": float(slope @ slope),
            "lower_error": float((y - solved(x)).norm()),
        },
        rel=1e-6,
    )
    assert [t.tolist() for t in task.init(generator())] == [[0.0] * n, [0.0] * q]
    assert task.data.rows is not None
    assert task.data.rows(torch.arange(9), 2, 5).tolist() == [2, 3, 4]


@pytest.mark.parametrize("size", [None, 1, 256, 257])
@pytest.mark.parametrize(
    "make",
    [
        lambda: logistic(DOUBLE, n=12, m=9, curvature=0.3),
        *(
            lambda n=n, c=c: quadratic(DOUBLE, noise=n, curving=c)
            for n, c in ((0.0, 0.0), (0.3, 0.0), (0.0, 0.2), (0.3, 0.2))
        ),
    ],
)
def test_closed_forms_in_each_variable_alone(make: Callable[[], Task], size: int | None) -> None:
    """Against autograd, where x, y or both are asked for; 256 rows are 4 times the samples."""
    task = make()
    plain = replace(task, upper_derivatives=None, lower_derivatives=None)
    rng = generator("somewhere")
    x, y, v = (randn(rng, len(t)) for t in (*task.init(rng), task.init(rng)[1]))

    def every(task: Task) -> list[Tensor]:
        o, draw = Oracle(task), Draw(task, 0, 0)
        xi, zeta = draw.f(size), draw.g(size)
        slope, products = o.linearise_g_y(x, y, zeta)
        return [
            o.f_x(x, y, xi), o.f_y(x, y, xi), *o.grad_f(x, y, xi), slope, products.xy(v),
            o.g_x(x, y, zeta), o.g_y(x, y, zeta), *o.grad_g(x, y, zeta), products.yy(v),
            *products.both(v),
        ]  # fmt: skip

    for a, b in zip(every(task), every(plain), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_a_large_batch_of_the_first_rows_alone() -> None:
    """A large batch is counted row by row, and rows that it lacks count as none."""
    task = quadratic(DOUBLE, noise=0.3, curving=0.2)
    assert task.lower is not None
    assert task.lower_derivatives is not None
    rng = generator("few rows")
    x, y, rows = randn(rng, 3), randn(rng, 5), torch.arange(400) % 3
    exact = torch.func.jacrev(task.lower, argnums=1)(x, y, rows)
    found = task.lower_derivatives.grad(x, y, rows, "y")[1]
    torch.testing.assert_close(found, exact, rtol=1e-12, atol=1e-12)


WANTED: dict[Wrt, list[bool]] = {"x": [False, True], "y": [True, False], "xy": [False, False]}


def test_what_is_not_asked_for_is_not_computed() -> None:
    """A partial derivative that `wrt` does not name is None."""
    for task in (logistic(DOUBLE), quadratic(DOUBLE)):
        rng = generator()
        x, y = task.init(rng)
        rows = Draw(task, 0, 0).g(4)
        assert task.upper_derivatives is not None
        assert task.lower_derivatives is not None
        assert task.lower_derivatives.linearise is not None
        product = task.lower_derivatives.linearise(x, y, rows)[1]
        for wrt, missing in WANTED.items():
            for found in (
                task.upper_derivatives.grad(x, y, rows, wrt),
                task.lower_derivatives.grad(x, y, rows, wrt),
                product(y, wrt),
            ):
                assert [t is None for t in found] == missing


def test_numbered_rows() -> None:
    """All rows are one tensor; a batch is drawn with replacement from all of them."""
    everything, draw = row_batches(5, torch.device("cpu"))
    assert everything.tolist() == [0, 1, 2, 3, 4]
    assert draw(generator(), 3, None) is everything
    many = draw(generator("rows"), 0, 400)
    assert len(many) == 400
    assert set(many.tolist()) == {0, 1, 2, 3, 4}
    same = torch.randint(5, (400,), generator=generator("rows"))
    assert torch.equal(many, same)


def test_the_gradient_mapping() -> None:
    """(x - P(x - gamma slope)) / gamma, coordinate by coordinate in a box; the slope where free."""
    x = torch.tensor([0.9, -0.2, -1.0, 1.0], dtype=torch.float64)
    slope = torch.tensor([-0.5, 0.3, 2.0, -1.0], dtype=torch.float64)
    found = gradient_mapping(box(-1.0, 1.0), x, slope, 0.4)
    plain = [
        (a - min(max(a - 0.4 * b, -1.0), 1.0)) / 0.4
        for a, b in zip(x.tolist(), slope.tolist(), strict=True)
    ]
    assert found.tolist() == pytest.approx(plain, rel=1e-15)
    assert found.tolist() == pytest.approx([-0.25, 0.3, 0, 0], abs=1e-12)
    assert gradient_mapping(Set(), x, slope, 0.4) is slope


def test_stationarity() -> None:
    """The squared mapping and the gap max <slope, x - s> over the l1 ball's six corners."""
    x = torch.tensor([0.5, -0.3, 0.1]).double()
    slope = torch.tensor([1.0, -2.0, 0.5]).double()
    held = l1_ball(1.5)
    found = stationarity(held, x, slope, 0.2)
    assert held.project is not None
    mapping = (x - held.project(x - 0.2 * slope)) / 0.2
    corners = [sign * 1.5 * e for e in torch.eye(3).double() for sign in (1, -1)]
    assert float(found["mapping_sq"]) == pytest.approx(float(mapping @ mapping), rel=1e-14)
    gap = max(float(slope @ (x - s)) for s in corners)
    assert float(found["fw_gap"]) == pytest.approx(gap, rel=1e-14)
    assert set(stationarity(Set(project=held.project), x, slope, 0.2)) == {"mapping_sq"}
    asked = []

    def lmo(slope: Tensor, accuracy: float) -> Tensor:
        asked.append(accuracy)
        return torch.zeros_like(slope)

    only = stationarity(Set(lmo=lmo), x, slope, 0.2)
    assert set(only) == {"fw_gap"}
    assert float(only["fw_gap"]) == pytest.approx(float(slope @ x), rel=1e-14)
    assert asked == [0.0]  # the exact oracle


def test_the_spectrum() -> None:
    """The sum of singular values, and how many are above 1e-6 of the largest."""
    left, right = (torch.linalg.qr(randn(generator(side), 4, 4)).Q for side in ("left", "right"))
    for values, rank in (
        ([3.0, 1.0, 4e-6, 2e-6], 3),
        ([0.5, 0.4, 0.3, 0.0], 3),
        ([2.0, 0, 0, 0], 1),
    ):
        x = left @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ right
        found = spectrum(x)
        assert float(found["nuclear_norm"]) == pytest.approx(sum(values), rel=1e-12)
        assert float(found["rank"]) == rank
    for values, rank in (([2.0, 0.0, 0.0], 1), ([1.0, 1e-6], 1), ([0.25, 1e-3], 2)):
        exact = torch.diag(torch.tensor(values, dtype=torch.float64))  # has no rounding
        assert float(spectrum(exact)["rank"]) == rank
    zero = spectrum(torch.zeros(3, 2).double())
    assert (float(zero["nuclear_norm"]), float(zero["rank"])) == (0.0, 0.0)
    assert zero["rank"].dtype == torch.float64


def test_any_condition_number_above_one_is_taken() -> None:
    """The smallest eigenvalue is 1 / condition: mu = 2 / 3 shows in g along y alone."""
    task = logistic(DOUBLE, n=4, m=3, q=2, condition=1.5)
    assert task.lower is not None
    x, y = torch.full((4,), -40.0).double(), torch.ones(2).double()  # no sample has a weight
    value = task.lower(x, y, torch.arange(4))
    assert float(value) == pytest.approx(0.5 * (1 / 1.5) * 2, rel=1e-12)
