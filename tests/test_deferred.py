"""Deferred gradients: worked out once, plain tensors to everybody but each other."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from bench.algorithm import Algorithm
from bench.deferred import Deferred
from bench.oracle import Oracle
from bench.rng import Draw
from bench.run import advance, first
from bench.task import Derivatives, Partials, Task, Wrt

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
