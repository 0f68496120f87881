"""The oracle: what each question answers, what it counts, and what it weighs.

The two batches differ in size and both sets, values and sums in closed form are marked, so that
an answer from the wrong level, or a count of the wrong batch, shows.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from algorithms.meta.learn2learn import episode, lend_f, lend_g
from bench.core.oracle import Asked, Oracle
from bench.core.stream import Samples, Stream
from bench.core.task import Batch, Data, Derivatives, InnerLoop, Partials, Place, Set, Task, Wrt
from tests.steps import problem as at

XI, ZETA = torch.tensor([3, 1, 4]), torch.tensor([1, 5, 9, 2, 6])  # rows; f's are 3, g's are 5
SIZES = {"f": 3, "g": 5}
X, Y = at.X0 + 0.1, at.Y0 - 0.2
V = torch.tensor([0.3, -1.0, 2.0, 0.7], dtype=torch.float64)


def closed(names: tuple[Callable[..., Tensor], Callable[..., Tensor]], factor: float) -> Any:
    """A gradient in closed form, marked by a factor."""

    def grad(x: Tensor, y: Tensor, batch: Batch, wrt: Wrt) -> Partials:
        return (
            factor * names[0](x, y, batch) if "x" in wrt else None,
            factor * names[1](x, y, batch) if "y" in wrt else None,
        )

    return grad


def linearise(x: Tensor, y: Tensor, zeta: Batch) -> Any:
    """g's products in closed form, marked by the factor 3."""

    def product(v: Tensor, wrt: Wrt) -> Partials:
        return (
            3 * at.g_xy(x, y, zeta) @ v if "x" in wrt else None,
            3 * at.g_yy(x, y, zeta) @ v if "y" in wrt else None,
        )

    return lambda: 3 * at.g_y(x, y, zeta), product


def with_closed_forms(descend: bool) -> Task:
    """f's closed forms are twice, and g's three times what they are of."""

    def fall(slope: Callable[..., Tensor], factor: float) -> Any:
        def descended(x: Tensor, y: Tensor, batch: Batch, lr: float, onto: Tensor | None) -> Tensor:
            start = y if onto is None else onto
            return start - lr * factor * slope(x, y, batch) + 1000  # marked once more

        return descended if descend else None

    return replace(
        at.problem(),
        upper_derivatives=Derivatives(closed((at.f_x, at.f_y), 2.0), None, fall(at.f_y, 2.0)),
        lower_derivatives=Derivatives(closed((at.g_x, at.g_y), 3.0), linearise, fall(at.g_y, 3.0)),
    )


def losses_at(places: Sequence[Place]) -> Tensor:
    """The losses at these places."""
    return torch.stack([(at.upper if p.upper else at.lower)(p.x, p.y, p.batch) for p in places])


# a kind of task -> factors of f and g, and what each descent adds
KINDS: dict[str, tuple[Task, float, float, float]] = {
    "autograd": (at.problem(), 1.0, 1.0, 0.0),
    "together": (replace(at.problem(), together=losses_at), 1.0, 1.0, 0.0),
    "closed": (with_closed_forms(False), 2.0, 3.0, 0.0),
    "closed descent": (with_closed_forms(True), 2.0, 3.0, 1000.0),
}


def equal(found: Any, expected: Any) -> None:
    """Up to the order of sums, and plain tensors."""
    if isinstance(expected, tuple):
        assert isinstance(found, tuple)
        for one, other in zip(found, expected, strict=True):
            equal(one, other)
        return
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)
    assert not found.requires_grad


def counted(oracle: Oracle, calls: Mapping[str, int]) -> None:
    """These calls and no others; each weighs the batch of its own level."""
    assert dict(oracle.calls) == dict(calls)
    weighed = {key: n * SIZES[key[-1]] for key, n in calls.items() if key not in ("lmo", "project")}
    assert dict(oracle.samples) == weighed


Case = tuple[
    Callable[[Oracle], Any], Callable[[float, float, float], Any], Mapping[str, int]
]  # question, answer by the factors of f and g and the mark of a descent, counts
QUESTIONS: dict[str, Case] = {
    "f": (lambda o: o.f(X, Y, XI), lambda f, g, m: at.upper(X, Y, XI), {"value_f": 1}),
    "g": (lambda o: o.g(X, Y, ZETA), lambda f, g, m: at.lower(X, Y, ZETA), {"value_g": 1}),
    "grad_f": (
        lambda o: o.grad_f(X, Y, XI),
        lambda f, g, m: (f * at.f_x(X, Y, XI), f * at.f_y(X, Y, XI)),
        {"grad_f": 1},
    ),
    "f_x": (lambda o: o.f_x(X, Y, XI), lambda f, g, m: f * at.f_x(X, Y, XI), {"grad_f": 1}),
    "f_y": (lambda o: o.f_y(X, Y, XI), lambda f, g, m: f * at.f_y(X, Y, XI), {"grad_f": 1}),
    "grad_g": (
        lambda o: o.grad_g(X, Y, ZETA),
        lambda f, g, m: (g * at.g_x(X, Y, ZETA), g * at.g_y(X, Y, ZETA)),
        {"grad_g": 1},
    ),
    "g_x": (lambda o: o.g_x(X, Y, ZETA), lambda f, g, m: g * at.g_x(X, Y, ZETA), {"grad_g": 1}),
    "g_y": (lambda o: o.g_y(X, Y, ZETA), lambda f, g, m: g * at.g_y(X, Y, ZETA), {"grad_g": 1}),
    "descend_g": (
        lambda o: o.descend_g(X, Y, ZETA, 0.3),
        lambda f, g, m: Y - 0.3 * g * at.g_y(X, Y, ZETA) + m,
        {"grad_g": 1},
    ),
    "descend_penalised": (
        lambda o: o.descend_penalised(X, Y, XI, ZETA, 0.3, 7.0),
        lambda f, g, m: Y - 0.3 * (f * at.f_y(X, Y, XI) + 7.0 * g * at.g_y(X, Y, ZETA)) + 2 * m,
        {"grad_f": 1, "grad_g": 1},
    ),
    "descend_both": (
        lambda o: o.descend_both(X, Y, V, XI, ZETA, 0.3, 0.2, 7.0),
        lambda f, g, m: (
            Y - 0.3 * (f * at.f_y(X, Y, XI) + 7.0 * g * at.g_y(X, Y, ZETA)) + 2 * m,
            V - 0.2 * g * at.g_y(X, V, ZETA) + m,
        ),
        {"grad_f": 1, "grad_g": 2},
    ),
    "together": (
        lambda o: tuple(
            o.together(
                Asked("f_x", X, Y, XI),
                Asked("g_y", X, V, ZETA),
                Asked("f_y", X, V, XI),
                Asked("g_x", X, Y, ZETA),
                Asked("g_y", X, Y, ZETA),
            )
        ),
        lambda f, g, m: (
            f * at.f_x(X, Y, XI),
            g * at.g_y(X, V, ZETA),
            f * at.f_y(X, V, XI),
            g * at.g_x(X, Y, ZETA),
            g * at.g_y(X, Y, ZETA),
        ),
        {"grad_f": 2, "grad_g": 3},
    ),
    "g_yy, twice": (
        lambda o: [p := o.g_yy(X, Y, ZETA), p(Y), p(V)][-1],
        lambda f, g, m: g * at.g_yy(X, Y, ZETA) @ V,
        {"hvp_g": 2},
    ),
    "g_xy, twice": (
        lambda o: [p := o.g_xy(X, Y, ZETA), p(Y), p(V)][-1],
        lambda f, g, m: g * at.g_xy(X, Y, ZETA) @ V,
        {"jvp_g": 2},
    ),
    "products, unused": (lambda o: o.products(X, Y, ZETA) and None, lambda f, g, m: None, {}),
    "products.xy": (
        lambda o: o.products(X, Y, ZETA).xy(V),
        lambda f, g, m: g * at.g_xy(X, Y, ZETA) @ V,
        {"jvp_g": 1},
    ),
    "products.yy": (
        lambda o: o.products(X, Y, ZETA).yy(V),
        lambda f, g, m: g * at.g_yy(X, Y, ZETA) @ V,
        {"hvp_g": 1},
    ),
    "products.both": (
        lambda o: o.products(X, Y, ZETA).both(V),
        lambda f, g, m: (g * at.g_xy(X, Y, ZETA) @ V, g * at.g_yy(X, Y, ZETA) @ V),
        {"jvp_g": 1, "hvp_g": 1},
    ),
    "linearise_g_y": (
        lambda o: o.linearise_g_y(X, Y, ZETA)[0],
        lambda f, g, m: g * at.g_y(X, Y, ZETA),
        {"grad_g": 1},
    ),
    "linearise_g_y's products": (
        lambda o: o.linearise_g_y(X, Y, ZETA)[1].both(V),
        lambda f, g, m: (g * at.g_xy(X, Y, ZETA) @ V, g * at.g_yy(X, Y, ZETA) @ V),
        {"grad_g": 1, "jvp_g": 1, "hvp_g": 1},
    ),
    "lend_f": (lambda o: lend_f(o, X, Y, XI), lambda f, g, m: at.upper(X, Y, XI), {"grad_f": 1}),
    "lend_g": (
        lambda o: lend_g(o, X, Y, ZETA),
        lambda f, g, m: at.lower(X, Y, ZETA),
        {"grad_g": 1, "jvp_g": 1, "hvp_g": 1},
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("grad", [True, False])
def test_each_question(question: str, kind: str, grad: bool) -> None:
    """The answer, the counts and the samples; inside a run no graph is kept, and none is needed."""
    task, f, g, mark = KINDS[kind]
    ask, answer, calls = QUESTIONS[question]
    oracle = Oracle(task)
    with torch.set_grad_enabled(grad):
        found = ask(oracle)
    expected = answer(f, g, mark)
    assert found is None if expected is None else True
    if expected is not None:
        equal(found, expected)
    counted(oracle, calls)
    assert not X.requires_grad
    assert not Y.requires_grad


def test_counts_add_up_and_start_at_nothing() -> None:
    oracle = Oracle(at.problem())
    counted(oracle, {})
    for _ in range(3):
        oracle.f_x(X, Y, XI)
        oracle.grad_f(X, Y, XI)
    oracle.g(X, Y, ZETA)
    counted(oracle, {"grad_f": 6, "value_g": 1})
    counted(Oracle(at.problem()), {})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("question", QUESTIONS)
def test_a_promise_of_first_order_is_held(question: str, kind: str) -> None:
    """Whatever linearises the lower loss is refused, before anything is counted."""
    oracle = Oracle(KINDS[kind][0], first_order=True)
    ask, _, calls = QUESTIONS[question]
    if not any(word in question for word in ("g_yy", "g_xy", "products", "linearise")):
        ask(oracle)
        counted(oracle, calls)
        return
    with pytest.raises(TypeError, match="this method promises first order"):
        ask(oracle)
    counted(oracle, {})


def test_a_loss_that_does_not_see_a_variable_has_slope_zero_there() -> None:
    """The zero has the shape of the variable: x has 3 coordinates, y has 4."""
    task = replace(
        at.problem(),
        upper=lambda x, y, i: y.square().sum(),
        lower=lambda x, y, i: x.square().sum() + y.sum(),
    )
    oracle, zero = Oracle(task), torch.zeros
    equal(oracle.grad_f(X, Y, XI), (zero(3).double(), 2 * Y))
    equal(oracle.g_yy(X, Y, ZETA)(V), zero(4).double())  # the slope is constant
    equal(oracle.products(X, Y, ZETA).both(V), (zero(3).double(), zero(4).double()))
    fixed = replace(task, upper=lambda x, y, i: torch.tensor(1.0).double())
    equal(Oracle(fixed).grad_f(X, Y, XI), (zero(3).double(), zero(4).double()))


def marked(name: str, said: list[Any]) -> Set:
    """A set whose answers tell which it is."""

    def lmo(slope: Tensor, accuracy: float) -> Tensor:
        said.append((name, "lmo", accuracy))
        return -slope

    def project(u: Tensor) -> Tensor:
        said.append((name, "project"))
        return u.clamp(max=0.0)

    return Set(project, lmo)


def test_each_level_is_projected_onto_its_own_set() -> None:
    said: list[Any] = []
    u, v = torch.tensor([1.0, -1.0]), torch.tensor([2.0, -3.0, 4.0])
    both = replace(at.problem(), feasible=marked("x", said), lower_feasible=marked("y", said))
    oracle = Oracle(both)
    assert oracle.project(u).tolist() == [0, -1]
    assert oracle.project_y(v).tolist() == [0, -3, 0]
    assert oracle.project_y(v).tolist() == [0, -3, 0]
    assert said == [("x", "project"), ("y", "project"), ("y", "project")]
    counted(oracle, {"project": 3})


@pytest.mark.parametrize("level", ["x", "y", "neither"])
def test_what_needs_no_projection_is_neither_changed_nor_counted(level: str) -> None:
    said: list[Any] = []
    field = {"x": "feasible", "y": "lower_feasible"}
    sets: Any = {field[level]: marked(level, said)} if level in field else {}
    oracle = Oracle(replace(at.problem(), **sets))
    u, v = torch.tensor([1.0]), torch.tensor([2.0])
    assert (oracle.project(u) is u) == (level != "x")
    assert (oracle.project_y(v) is v) == (level != "y")
    counted(oracle, {"project": 1} if level in field else {})


def test_a_linear_minimisation_is_of_x_and_as_exact_as_asked() -> None:
    said: list[Any] = []
    both = replace(at.problem(), feasible=marked("x", said), lower_feasible=marked("y", said))
    oracle, slope = Oracle(both), torch.tensor([1.0, 2.0])
    assert oracle.lmo(slope, 0.25).tolist() == [-1, -2]
    oracle.lmo(slope)
    assert said == [("x", "lmo", 0.25), ("x", "lmo", 0.0)]
    counted(oracle, {"lmo": 2})
    lacking = Oracle(replace(both, feasible=Set(project=torch.relu)))
    with pytest.raises(TypeError, match="no linear minimisation oracle"):
        lacking.lmo(slope)
    counted(lacking, {})


def test_where_an_inner_loop_begins() -> None:
    """By default the method goes on from y, and y_0 does not depend on x."""
    plain = Oracle(at.problem())
    assert plain.start(Y, ZETA) is Y
    begin, pull = plain.origin(X, Y, ZETA)
    assert begin is Y
    assert torch.equal(pull(V), torch.zeros(3).double())
    own = Oracle(replace(at.problem(), inner=InnerLoop(start=lambda y, batch: y + batch.sum())))
    equal(own.start(Y, ZETA), Y + 23)
    assert torch.equal(own.origin(X, Y, ZETA)[0], Y + 23)


def test_a_learned_origin_and_its_derivative() -> None:
    """y_0(x) = sin(M x) y, so that d/dx <y_0, v> = M^T (cos(M x) y v)."""
    m = torch.arange(12, dtype=torch.float64).reshape(4, 3) / 7
    task = replace(
        at.problem(),
        inner=InnerLoop(origin=lambda x, y: torch.sin(m @ x) * y, start=lambda y, batch: y + 1),
    )
    oracle = Oracle(task)
    begin, pull = oracle.origin(X, Y, ZETA)
    equal(begin, torch.sin(m @ X) * Y)
    for v in (V, 2 * V):
        equal(pull(v), m.T @ (torch.cos(m @ X) * Y * v))
    counted(oracle, {})


def test_a_networks_answers_count_as_a_value_of_g() -> None:
    def logits(x: Tensor, y: Tensor, samples: Samples) -> Tensor:
        return x.sum() + y.sum() + samples.numbers

    def recall(numbers: Tensor) -> Samples:
        raise AssertionError

    numbers = torch.arange(5)
    samples = Samples(numbers, numbers, numbers, numbers, numbers)
    task = replace(at.problem(), data=Data(count=lambda batch: len(batch.numbers)))
    with pytest.raises(TypeError, match="no stream"):
        Oracle(task).logits(X, Y, samples)
    oracle = Oracle(replace(task, stream=Stream(1, 1, 1, 1, recall, logits)))
    assert torch.equal(oracle.logits(X, Y, samples), X.sum() + Y.sum() + numbers)
    counted(oracle, {"value_g": 1})


def test_an_episode_is_a_row_of_the_batch() -> None:
    task = at.problem()
    oracle = Oracle(task)
    assert [episode(oracle, ZETA, i).tolist() for i in (0, 2, 4)] == [[1], [9], [6]]
    with pytest.raises(TypeError, match="no rows"):
        episode(Oracle(replace(task, data=replace(task.data, rows=None))), ZETA, 0)
    counted(oracle, {})


def test_what_is_carried_on() -> None:
    assert Oracle(at.problem()).carry(V) is V
    alone = Oracle(replace(at.problem(), inner=InnerLoop(carries=False))).carry(V)
    assert torch.equal(alone, torch.zeros(4).double())


def test_a_single_level_has_no_lower_loss() -> None:
    oracle = Oracle(at.single_level())
    oracle.f_x(X, Y, XI)
    questions: list[Callable[[], Any]] = [
        lambda: oracle.g(X, Y, ZETA),
        lambda: oracle.g_x(X, Y, ZETA),
        lambda: lend_g(oracle, X, Y, ZETA),
        lambda: oracle.products(X, Y, ZETA),
    ]
    for ask in questions:
        with pytest.raises(TypeError, match="single level"):
            ask()


@pytest.mark.parametrize("what", ["f", "g"])
def test_a_value_has_no_derivative(what: str) -> None:
    """It would be one that nobody counts."""
    o = Oracle(at.problem())

    def value(y: Tensor) -> Tensor:
        return getattr(o, what)(X, y, XI)  # type: ignore[no-any-return]

    assert not torch.func.grad(value)(Y).any()
    with pytest.raises(RuntimeError, match="does not require grad"):
        torch.autograd.grad(value(Y.clone().requires_grad_()), Y)
