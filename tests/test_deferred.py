"""Deferred gradients: worked out once, plain tensors to everybody but each other."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from bench.core.algorithm import Algorithm
from bench.core.deferred import Deferred
from bench.core.draw import Draw
from bench.core.loop import advance, first
from bench.core.oracle import Oracle
from bench.core.task import Derivatives, Partials, Task, Wrt

J = torch.tensor([[1.0, 2.0, 0.0], [0.0, 1.0, -1.0]], dtype=torch.float64)
LIKE = torch.zeros(3, dtype=torch.float64)


@pytest.fixture
def pulls() -> list[Tensor]:
    return []


def made(pulls: list[Tensor]) -> tuple[Deferred, Deferred]:
    def pull(u: Tensor) -> Tensor:
        pulls.append(u)
        return u @ J

    a, b = torch.tensor([1.0, 2.0]).double(), torch.tensor([-1.0, 0.5]).double()
    return Deferred(pull, a, LIKE), Deferred(pull, b, LIKE)


def test_sums_and_differences_are_worked_out_once(pulls: list[Tensor]) -> None:
    a, b = made(pulls)
    total = a + b - a - b + a
    assert isinstance(total, Deferred)
    assert not pulls
    assert torch.equal(2 * total, 2 * torch.tensor([1.0, 4.0, -2.0]).double())
    assert torch.equal(total.square(), torch.tensor([1.0, 16.0, 4.0]).double())
    assert len(pulls) == 1


def test_everything_else_gives_plain_tensors(pulls: list[Tensor]) -> None:
    a, _ = made(pulls)
    other, _ = made(pulls)  # another pull
    plain = torch.ones(3, dtype=torch.float64)
    for result in (a + plain, plain - a, a + other, -a, a * a, a.clone(), a.sum(), a.view(1, 3)):
        assert type(result) is Tensor
    assert torch.equal(plain - a, torch.tensor([0.0, -3.0, 3.0]).double())
    assert torch.equal(a + other, 2 * torch.tensor([1.0, 4.0, -2.0]).double())
    assert (a.shape, a.dtype) == (plain.shape, plain.dtype)
    assert "4." in repr(a)


@pytest.mark.parametrize("signs", [(1, 1), (1, -1), (-1, 1), (-1, -1)])
def test_a_sum_is_the_gradient_of_the_sum(signs: tuple[int, int], pulls: list[Tensor]) -> None:
    """J^T (u + v) and J^T (u - v), either way round, for one pull."""
    a, b = made(pulls)
    first = a if signs[0] > 0 else b - a - b
    found = first + b if signs[1] > 0 else first - b
    assert isinstance(found, Deferred)
    u, v = torch.tensor([1.0, 2.0]).double(), torch.tensor([-1.0, 0.5]).double()
    assert torch.equal(found.value(), (signs[0] * u + signs[1] * v) @ J)
    assert torch.equal(pulls[0], signs[0] * u + signs[1] * v)


def test_a_value_is_worked_out_once_and_kept(pulls: list[Tensor]) -> None:
    a, _ = made(pulls)
    assert a.value() is a.value()
    assert torch.equal(a * 1, a.value())
    assert len(pulls) == 1


def test_a_multiple_of_a_sum_is_none(pulls: list[Tensor]) -> None:
    """torch.add(a, b, alpha=2) is a + 2 b, which no sum of the u is."""
    a, b = made(pulls)
    found = torch.add(a, b, alpha=2)
    assert type(found) is Tensor
    assert torch.equal(found, a.value() + 2 * b.value())
    assert torch.equal(torch.sub(a, b, alpha=2), a.value() - 2 * b.value())


def test_in_lists_and_by_name_they_are_plain(pulls: list[Tensor]) -> None:
    a, b = made(pulls)
    both = torch.stack([a, b])
    assert type(both) is Tensor
    assert torch.equal(both, torch.stack([a.value(), b.value()]))
    assert torch.equal(torch.where(LIKE == 0, input=a, other=b), a.value())


def test_a_gradient_looks_like_the_variable_it_is_of(pulls: list[Tensor]) -> None:
    like = torch.zeros(2, 3, dtype=torch.float32)
    found = Deferred(lambda u: u.float(), like.double(), like)
    assert (found.shape, found.dtype, found.device) == (like.shape, like.dtype, like.device)
    assert ((found + found).shape, (found + found).dtype) == (like.shape, like.dtype)


class State(NamedTuple):
    x: Tensor
    y: Tensor
    slope: Tensor


def test_a_state_that_keeps_one_keeps_its_value(pulls: list[Tensor]) -> None:
    def grad(x: Tensor, y: Tensor, batch: object, wrt: Wrt) -> Partials:
        return made(pulls)[0], None

    task = Task(
        upper=lambda x, y, batch: x.sum(),
        init=lambda rng: (LIKE, LIKE),
        evaluate=lambda x, y, step: {},
        metric="none",
        upper_derivatives=Derivatives(grad),
    )

    def step(o: Oracle, s: State, draw: Draw) -> tuple[State, dict[str, Tensor]]:
        return State(s.x, s.y, o.f_x(s.x, s.y, draw.f())), {}

    algorithm = Algorithm(lambda x, y: State(x, y, x), step)
    state = advance(task, algorithm, 0, first(task, algorithm, 0)).state
    assert type(state.slope) is Tensor
    assert torch.equal(state.slope, torch.tensor([1.0, 4.0, -2.0]).double())
