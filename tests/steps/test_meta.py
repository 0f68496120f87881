"""MAML, ANIL and ITD-BiO on episodes, against autograd through the inner loops, one by one.

Finn, Abbeel and Levine (ICML 2017), Algorithm 1: theta_i' = theta - alpha grad L_i(theta), T times,
theta <- theta - beta grad sum_i L_i(theta_i'), here the mean over the episodes, as the code of both
papers has it. ANIL adapts a part of theta only; ITD-BiO takes the loop's beginning as given.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from algorithms.bilevel.itd import itd
from algorithms.meta.learn2learn import learn2learn
from algorithms.meta.maml import maml
from bench.core.algorithm import Algorithm
from bench.core.draw import Draw, generator
from bench.core.loop import advance, first
from bench.core.settings import BadSetting
from bench.core.task import Data, InnerLoop, Set, Task
from bench.numerics.descent import adam, gd
from bench.numerics.sets import box, l2_ball
from tests.steps import problem as at

M, D, N, STEPS, INNER = 3, 4, 5, 3, 0.3  # episodes, features, examples of each side, steps
_rng = generator("meta by hand")
INPUTS = torch.randn(STEPS, M, 2 * N, D, generator=_rng, dtype=torch.float64)
WANTED = torch.randn(STEPS, M, 2 * N, generator=_rng, dtype=torch.float64)
BODY = D * D  # x: an embedding, and the beginning of a head, which an episode adapts
X0 = 0.5 * torch.randn(BODY + D, generator=_rng, dtype=torch.float64)


def loss(x: Tensor, head: Tensor, batch: Any, i: int) -> Tensor:
    """The loss of one episode, which is not quadratic in the head and whose mixed derivative
    depends on the data. A batch is (the step, which side's examples, which episodes)."""
    step, side, _ = batch
    z = torch.tanh(INPUTS[step, i, side] @ x[:BODY].view(D, D))
    return torch.log(torch.cosh(z @ head - WANTED[step, i, side])).mean() + 0.05 * head.pow(4).sum()


def mean_of(x: Tensor, y: Tensor, batch: Any) -> Tensor:
    """f, the mean over the episodes."""
    return torch.stack([loss(x, y[k], batch, i) for k, i in enumerate(batch[2])]).mean()


def sum_of(x: Tensor, y: Tensor, batch: Any) -> Tensor:
    """g, the sum over the episodes, so that each one's inner step is its own."""
    return torch.stack([loss(x, y[k], batch, i) for k, i in enumerate(batch[2])]).sum()


def origin(x: Tensor, y: Tensor) -> Tensor:
    """Where the heads begin; a curved map, so that its derivative is not a copy."""
    return torch.sin(x[BODY:]).expand(y.shape)


def episodes(x_in: Set | None = None) -> Task:
    """The task: support examples are the first N, query examples the others."""
    return Task(
        upper=mean_of,
        lower=sum_of,
        init=lambda rng: (X0.clone(), origin(X0, torch.zeros(M, D)).clone()),
        evaluate=lambda x, y, step: {"loss": x.sum()},
        metric="loss",
        data=Data(
            draw_upper=lambda rng, step, size: (step, slice(N, None), list(range(M))),
            draw_lower=lambda rng, step, size: (step, slice(N), list(range(M))),
            count=lambda batch: N * len(batch[2]),
            rows=lambda batch, a, b: (batch[0], batch[1], batch[2][a:b]),
        ),
        inner=InnerLoop(start=lambda y, batch: origin(X0, y), origin=origin, carries=False),
        feasible=x_in or Set(),
    )


def adapted(x: Tensor, head: Tensor, batch: Any, i: int, T: int) -> Tensor:
    """T inner steps of one episode, differentiable; lines 5 and 6."""
    for _ in range(T):
        head = head if head.requires_grad else head.clone().requires_grad_()
        (slope,) = torch.autograd.grad(loss(x, head, batch, i), head, create_graph=True)
        head = head - INNER * slope
    return head


def through(x: Tensor, step: int, T: int, begin: Callable[[Tensor], Tensor]) -> Any:
    """(the mean over the episodes of the query loss's whole gradient, the adapted heads)."""
    support, query = (step, slice(N), []), (step, slice(N, None), [])
    total, ends = torch.zeros_like(x), []
    for i in range(M):
        leaf = x.detach().clone().requires_grad_()
        with torch.enable_grad():
            head = adapted(leaf, begin(leaf), support, i, T)
            (g,) = torch.autograd.grad(loss(leaf, head, query, i), leaf)
        total, ends = total + g / M, [*ends, head.detach()]
    return total, torch.stack(ends)


def learned(x: Tensor) -> Tensor:
    """The beginning as x has it."""
    return torch.sin(x[BODY:])


def given(x: Tensor) -> Tensor:
    """The beginning as the task has it, whatever x is."""
    return torch.sin(X0[BODY:])


class Copies(nn.Module):
    """Stands for learn2learn's MAML (its documentation): a clone's parameters are clones within the
    graph, and `adapt` takes a gradient step on them, differentiable unless told otherwise."""

    def __init__(self, module: nn.Module, lr: float, first_order: bool = False):
        super().__init__()
        self.module, self.lr, self.first_order = module, lr, first_order

    def forward(self, *arguments: Any) -> Any:
        return self.module(*arguments)

    def clone(self) -> "Copies":
        """A copy whose parameters are what this one's are, times one."""
        module = type(self.module)(next(iter(self.module.parameters())).detach())
        for name, parameter in self.module.named_parameters():
            del module._parameters[name]
            object.__setattr__(module, name, 1 * parameter)
        return Copies(module, self.lr, self.first_order)

    def adapt(self, loss: Tensor) -> None:
        """One step."""
        (now,) = (v for v in vars(self.module).values() if isinstance(v, Tensor))
        (slope,) = torch.autograd.grad(loss, now, create_graph=not self.first_order)
        (name,) = (k for k, v in vars(self.module).items() if isinstance(v, Tensor))
        object.__setattr__(self.module, name, now - self.lr * slope)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    """learn2learn by its documentation, whether it is installed or not."""
    for name in ("learn2learn", "learn2learn.algorithms"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["learn2learn.algorithms"].MAML = Copies  # type: ignore[attr-defined]


# the method, where its heads begin, what a step of T inner ones counts
FORMS: dict[str, tuple[Any, Callable[[Tensor], Tensor], Callable[[int], dict[str, int]]]] = {
    "maml": (maml, learned, lambda T: {"grad_g": T, "grad_f": 1, "jvp_g": T, "hvp_g": T}),
    "learn2learn": (
        learn2learn,
        learned,
        lambda T: {"grad_g": M * T, "grad_f": M, "jvp_g": M * T, "hvp_g": M * T},
    ),
    "itd": (itd, given, lambda T: {"grad_g": T, "grad_f": 1, "jvp_g": T, "hvp_g": T - 1}),
}


@pytest.mark.parametrize("T", [1, 4])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", ["gd, held", "adam"])
def test_each_episode_by_itself_and_their_mean(case: str, form: str, T: int, library: None) -> None:
    """x, the adapted heads and the hypergradient's square, over three meta-batches."""
    method, begin, counts = FORMS[form]
    held = l2_ball(0.98 * float(X0.norm())) if case == "gd, held" else Set()
    task = episodes(held)
    outer = (gd(), 0.4) if case == "gd, held" else (adam(), 0.1)
    algorithm: Algorithm = method(*outer, INNER, T)
    x, rule = X0, at.Adam(0.1)
    for k, standing in zip(range(STEPS), at_standings(task, algorithm), strict=True):
        whole, heads = through(x, k, T, begin)
        x = x - 0.4 * whole if case == "gd, held" else rule(x, whole)
        x = at.in_x(task, x)
        torch.testing.assert_close(standing.state.x, x, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(standing.state.y, heads, rtol=1e-9, atol=1e-12)
        squared = standing.info["hypergrad_sq"]
        torch.testing.assert_close(squared, whole @ whole, rtol=1e-9, atol=1e-12)
        assert standing.calls == {key: (k + 1) * n for key, n in total(counts(T), held).items()}


def total(counts: dict[str, int], held: Set) -> dict[str, int]:
    """The counts of a step, with those of the projection where there is one, and without what is
    never called."""
    return {key: n for key, n in {**counts, "project": int(held.project is not None)}.items() if n}


def at_standings(task: Task, algorithm: Algorithm) -> Iterator[Any]:
    """Our standings after each step."""
    standing = first(task, algorithm, 0)
    with torch.no_grad():
        for _ in range(STEPS):
            standing = advance(task, algorithm, 0, standing)
            yield standing


def test_learn2learn_has_each_episode_prepared_once(library: None) -> None:
    """What x alone decides about an episode is worked out once, not again in each inner step."""
    asked = []

    def prepare(x: Tensor, xi: Any, zeta: Any) -> tuple[Any, Any]:
        assert x.requires_grad
        asked.append((xi, zeta))
        return xi, zeta

    task = episodes()
    task = replace(task, inner=replace(task.inner, prepare=prepare))
    next(at_standings(task, learn2learn(gd(), 0.4, INNER, 3)))
    assert asked == [((0, slice(N, None), [i]), (0, slice(N), [i])) for i in range(M)]


def test_learn2learn_where_the_lower_loss_does_not_see_x(library: None) -> None:
    """A whole network is adapted: x is where it begins, and nothing else."""
    table = torch.randn(2, D, generator=generator("wanted"), dtype=torch.float64)

    def apart(x: Tensor, y: Tensor, batch: Any) -> Tensor:
        return torch.log(torch.cosh(y - table[batch[0]])).sum() / len(y)

    task = Task(
        upper=apart,
        lower=lambda x, y, batch: len(y) * apart(x, y, batch) + y.pow(4).sum(),
        init=lambda rng: (X0[:D].clone(), X0[:D].expand(2, D).clone()),
        evaluate=lambda x, y, step: {"loss": x.sum()},
        metric="loss",
        data=Data(
            draw_upper=lambda rng, step, size: (slice(0, 2),),
            draw_lower=lambda rng, step, size: (slice(0, 2),),
            rows=lambda batch, a, b: (slice(a, b),),
        ),
        inner=InnerLoop(origin=lambda x, y: x.expand(y.shape)),
    )
    ends = [
        next(at_standings(task, method(gd(), 0.5, 0.2, 3))).state for method in (maml, learn2learn)
    ]
    torch.testing.assert_close(ends[0].x, ends[1].x, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(ends[0].y, ends[1].y, rtol=1e-10, atol=1e-12)
    assert (ends[0].x - X0[:D]).abs().min() > 1e-3


def test_without_learn2learn_it_says_so_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "learn2learn.algorithms", None)
    with pytest.raises(BadSetting, match="not installed; write uv sync --extra meta, or algorithm"):
        learn2learn(gd(), 0.1, 0.1)


@pytest.mark.parametrize("batch", [8, None])
@pytest.mark.parametrize("case", ["free", "held"])
def test_on_a_task_without_a_learned_beginning_it_is_itd(case: str, batch: int | None) -> None:
    """Autograd through the loop, from the last y; a projection's derivative is the identity."""
    y_in = box(-0.2, 0.25) if case == "held" else Set()
    x_in = l2_ball(0.9 * float(at.X0.norm())) if case == "held" else Set()
    task = at.problem(x_in, y_in)

    def by_hand(draws: Callable[[int], Draw]) -> Iterator[tuple[Tensor, ...]]:
        x, y, rule = at.X0, at.Y0, at.Adam(0.1)
        for k in range(3):
            xi, zeta = draws(k).f(batch), draws(k).g(batch)
            leaf = x.clone().requires_grad_()
            with torch.enable_grad():
                end = y.clone().requires_grad_()
                for _ in range(4):
                    g = at.lower(leaf, end, zeta)
                    (slope,) = torch.autograd.grad(g, end, create_graph=True)
                    moved = end - 0.3 * slope
                    end = moved + (at.in_y(task, moved) - moved).detach()
                (whole,) = torch.autograd.grad(at.upper(leaf, end, xi), leaf)
            x, y = at.in_x(task, rule(x, whole)), end.detach()
            yield x, y

    at.assert_same_path(task, maml(adam(), 0.1, 0.3, 4, batch), by_hand)


@pytest.mark.parametrize("method", [maml, learn2learn])
def test_five_inner_steps_on_as_many_episodes_as_asked_for(method: Any, library: None) -> None:
    named, plain = method(gd(), 0.1, INNER, T=5), method(gd(), 0.1, INNER)
    ends = [next(at_standings(episodes(), algorithm)).state for algorithm in (named, plain)]
    assert torch.equal(ends[0].x, ends[1].x)
    asked: list[int | None] = []

    def side(part: slice) -> Any:
        def draw(rng: Any, step: int, size: int | None) -> Any:
            asked.append(size)
            return step, part, list(range(M))

        return draw

    task = replace(
        episodes(),
        data=replace(episodes().data, draw_upper=side(slice(N, None)), draw_lower=side(slice(N))),
    )
    for algorithm, size in ((method(gd(), 0.1, INNER, 1, 2), 2), (plain, None)):
        next(at_standings(task, algorithm))
        assert asked[-2:] == [size, size]  # by the step, after what is tried before it
