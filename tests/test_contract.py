"""The checks for other people's tests: each notices a method or a task that is broken."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor

from bench import Algorithm, BadSetting, Cost, Derivatives, Draw, Oracle, Set, Task, l2_ball
from bench.contract import Broken, check_algorithm, check_task, on_a_ball, quadratic, zero_sum
from bench.contract import algorithms as of_algorithms
from bench.core.algorithm import Moment
from bench.core.settings import build, check_settings
from bench.core.task import Context, Place, count_one
from tasks.quadratic import quadratic as closed_quadratic
from tasks.toy import toy_coreset
from tests.composed import composed


class State(NamedTuple):
    x: Tensor
    y: Tensor


def mine(
    inner_lr: float = 0.5,
    outer_lr: float = 0.1,
    cost: Cost | None = Cost(grad_g=10, grad_f=1, jvp_g=1, batch=8),  # noqa: B008
    change: Callable[[Oracle, State, State, Draw], Any] | None = None,
) -> Algorithm:
    """One-step differentiation; `change` puts what is wrong into the new state."""

    def step(o: Oracle, s: State, draw: Draw) -> tuple[Any, dict[str, Tensor]]:
        x, y = s.x, s.y
        for _ in range(10):
            y = y - inner_lr * o.g_y(x, y, draw.g(8))
        f_x, f_y = o.grad_f(x, y, draw.f(8))
        mixed = o.g_xy(x, y, draw.g(8))(f_y)
        new = State(x - outer_lr * (f_x - inner_lr * mixed), y)
        return (new if change is None else change(o, s, new, draw)), {}

    return Algorithm(State, step, cost=cost)


def test_a_method_that_keeps_its_promises_passes() -> None:
    check_algorithm(mine, inner_lr=0.4)
    check_algorithm(mine())
    check_algorithm("aid_cg", inner_lr=0.5, T=3, K=3, batch=8)
    check_algorithm("gda")
    check_algorithm("projected_gradient", outer_lr=0.5)


class Wide(NamedTuple):
    x: Tensor
    y: Tensor
    seen: Any


def count_outside() -> Callable[..., State]:
    times = [0]

    def change(o: Oracle, s: State, new: State, draw: Draw) -> State:
        times[0] += 1
        return State(new.x + 1e-9 * times[0], new.y)

    return change


def remember_outside() -> Callable[..., State]:
    """The last x is kept beside the state: within one run that goes unnoticed, but not when the run
    is taken up at its middle."""
    last: dict[int, Tensor] = {}

    def change(o: Oracle, s: State, new: State, draw: Draw) -> State:
        known = last.get(draw.step - 1, torch.zeros_like(new.x))
        last.clear()
        last[draw.step] = new.x
        return State(new.x + 1e-6 * known, new.y)

    return change


def write_into(o: Oracle, s: State, new: State, draw: Draw) -> State:
    s.x.add_(1.0)
    return new


def roll_dice(o: Oracle, s: State, new: State, draw: Draw) -> State:
    return State(new.x + 1e-6 * torch.rand(1).double(), new.y)


def carry_graph(o: Oracle, s: State, new: State, draw: Draw) -> State:
    return State(new.x.requires_grad_(), new.y)


def call_once_more(o: Oracle, s: State, new: State, draw: Draw) -> State:
    o.g_x(new.x, new.y, draw.g(8))
    return new


def call_more_later(o: Oracle, s: State, new: State, draw: Draw) -> State:
    return call_once_more(o, s, new, draw) if draw.step == 7 else new


def other_form(o: Oracle, s: State, new: State, draw: Draw) -> Any:
    return Wide(*new, seen=torch.zeros(()))


def other_dtype(o: Oracle, s: State, new: State, draw: Draw) -> State:
    return State(new.x, new.y.float()) if draw.step == 1 else new


def uphill(o: Oracle, s: State, new: State, draw: Draw) -> State:
    return State(2 * s.x - new.x, new.y)


def blow_up(o: Oracle, s: State, new: State, draw: Draw) -> State:
    return State(new.x * torch.inf, new.y) if draw.step == 200 else new


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "writes into its state": (lambda: write_into, "writes into the state"),
    "draws without a name": (lambda: roll_dice, "the same step gives two results"),
    "counts outside": (count_outside, "the same step gives two results"),
    "remembers outside": (remember_outside, "the same (seed|step) gives two"),
    "carries a graph": (lambda: carry_graph, "carries a graph"),
    "calls more than it says": (lambda: call_once_more, "grad_g 11 times.* says 10"),
    "calls more at step 7": (lambda: call_more_later, "step 7 calls grad_g 11 times"),
    "changes its form": (lambda: other_form, "changes the form"),
    "changes a dtype": (lambda: other_dtype, "float32"),
    "climbs": (lambda: uphill, "objective above the optimum's goes from"),
    "blows up": (lambda: blow_up, "not finite after 300"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_broken_method_is_noticed(wrong: str) -> None:
    change, said = WRONG[wrong]
    with pytest.raises(Broken, match=said) as raised:
        check_algorithm(mine, change=change())
    assert "\n  look: " in str(raised.value)


def test_a_method_without_a_cost_or_with_a_wrong_order_is_noticed() -> None:
    with pytest.raises(Broken, match="does not say what its steps cost"):
        check_algorithm(mine, cost=None)
    liar = mine()._replace(first_order=True)
    with pytest.raises(Broken, match="takes second derivatives") as raised:
        of_algorithms.check_cost(liar, quadratic())
    assert "first_order" in str(raised.value)


def test_a_method_that_remembers_outside_does_not_go_on() -> None:
    with pytest.raises(Broken, match="a run that goes on has another end"):
        of_algorithms.check_going_on(mine(change=remember_outside()), quadratic())


def test_a_method_whose_batches_the_seed_does_not_name_is_noticed() -> None:
    of_algorithms.check_repeats(mine(), quadratic(), noisy=True)
    with pytest.raises(Broken, match="another seed gives the same run"):
        of_algorithms.check_repeats(mine(), quadratic(noise=0.0), noisy=True)
    with pytest.raises(Broken, match="the same seed gives two runs"):
        of_algorithms.check_repeats(mine(change=roll_dice), quadratic())


def test_what_cannot_be_checked_is_said() -> None:
    with pytest.raises(TypeError, match=r"streams of tasks only.*give task"):
        check_algorithm("er")
    with pytest.raises(BadSetting, match="gives builtin_function_or_method, not an Algorithm"):
        check_algorithm(lambda: print)  # type: ignore[arg-type,return-value]
    with pytest.raises(TypeError, match="not a Task"):
        check_task(lambda context: print)  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize("make", [quadratic, zero_sum, on_a_ball])
def test_the_small_problems_keep_their_promises(make: Callable[[], Task]) -> None:
    check_task(make())


def test_tasks_that_keep_their_promises_pass() -> None:
    check_task(closed_quadratic, noise=0.3, curving=0.1)
    check_task(toy_coreset, variant="code")


# the data sets that come with scikit-learn, or none
OURS: dict[str, list[str]] = {
    "completion": [],
    "few_shot": ["task.episodes=4", "task.filters=8", "task.watched=4", "task.final=4"],
    "hyper_cleaning": ["task.pretraining.steps=20"],
    "logistic": [],
    "multitask": ["task.groups=3", "task.similar=2", "task.samples=40", "task.features=12"],
    "newsgroups": ["task.source=digits", "task.pretraining.steps=20"],
    "online_imbalance": [],
    "online_newsgroups": ["task.source=digits"],
    "online_oscillation": [],
    "online_quadratic": [],
    "quadratic": ["task.noise=0.1", "task.curving=0.1"],
    "regularised_logistic": [],
    "sampled_quadratic": ["task.q=20", "task.n=64", "task.m=64"],
    "toy_coreset": [],
    "toy_degenerate": [],
    "toy_minimax": [],
    "trees": [],
}


@pytest.mark.parametrize("name", OURS)
def test_our_tasks_keep_their_promises(name: str) -> None:
    cfg = composed(f"task={name}", "algorithm=bome", *OURS[name])
    node: Any = OmegaConf.to_container(cfg.task, resolve=True)
    node = check_settings(node, "task", Task, given=("context",))
    size = None if name == "few_shot" else 4  # whose steps see all their episodes
    check_task(build(node, Context(dtype=torch.float64)), size=size)


def bad_gradient(task: Task, x: bool) -> Task:
    assert task.lower_derivatives is not None
    right = task.lower_derivatives.grad

    def grad(x_now, y, batch, wrt):  # type: ignore[no-untyped-def]
        in_x, in_y = right(x_now, y, batch, wrt)
        turned = (in_x, in_y)[not x]
        wrong = None if turned is None else -turned
        return (wrong, in_y) if x else (in_x, wrong)

    return replace(task, lower_derivatives=task.lower_derivatives._replace(grad=grad))


def bad_product(task: Task) -> Task:
    assert task.lower_derivatives is not None
    right = task.lower_derivatives.linearise
    assert right is not None

    def linearise(x, y, batch):  # type: ignore[no-untyped-def]
        gradient, product = right(x, y, batch)
        return gradient, lambda v, wrt: (product(v, wrt)[0], 1.001 * product(v, wrt)[1])

    return replace(task, lower_derivatives=Derivatives(task.lower_derivatives.grad, linearise))


def bad_descent(task: Task) -> Task:
    assert task.lower_derivatives is not None
    gradient = task.lower_derivatives.grad

    def descend(x, y, batch, lr, onto):  # type: ignore[no-untyped-def]
        return y - lr * gradient(x, y, batch, "y")[1]  # forgets `onto`

    return replace(task, lower_derivatives=task.lower_derivatives._replace(descend=descend))


def with_data(task: Task, **changes: Any) -> Task:
    return replace(task, data=replace(task.data, **changes))


def sees_no_name(rng, step, size):  # type: ignore[no-untyped-def]
    return torch.randint(64, (size or 64,))


def writes(x, y, i):  # type: ignore[no-untyped-def]
    return y.mul_(2).sum()


def shaky(x, y, i):  # type: ignore[no-untyped-def]
    return y.sum() + torch.rand(()).double()


def measure_anew(x, y, step):  # type: ignore[no-untyped-def]
    return {"objective": torch.rand(())}


def in_another_order(places: Sequence[Place]) -> Tensor:
    """The losses of `quadratic`, the last one first."""
    task = quadratic()
    lower = task.lower
    assert lower is not None
    found = [(task.upper if p.upper else lower)(p.x, p.y, p.batch) for p in places]
    return torch.stack(found[::-1])


def with_other_slopes(places: Sequence[Place]) -> Tensor:
    """The losses of `quadratic`, with a derivative twice as large as theirs."""
    found = in_another_order(places).flip(0)
    return 2 * found - found.detach()


half = Set(project=lambda u: u / 2)
ball = l2_ball(0.5)


def turned(u: Tensor) -> Tensor:
    """Points of the ball stay; others go to the point that is closest to another one."""
    return u if u.norm() <= 0.5001 else l2_ball(0.5).project(u.flip(0))  # type: ignore[misc]


too_far = Set(ball.project, lambda g, accuracy: -5 * g / g.norm())
wrong_way = Set(l2_ball(0.5).project, lambda g, accuracy: 0.5 * g / g.norm())
BAD: dict[str, tuple[Callable[[], Task], str]] = {
    "a sign in g_x": (
        lambda: bad_gradient(closed_quadratic(Context(dtype=torch.float64)), x=True),
        "partial gradient of lower in x is .* from autograd's",
    ),
    "a sign in g_y": (
        lambda: bad_gradient(closed_quadratic(Context(dtype=torch.float64)), x=False),
        "partial gradient of lower in y",
    ),
    "a factor in the product": (
        lambda: bad_product(closed_quadratic(Context(dtype=torch.float64))),
        "Hessian product of lower",
    ),
    "descent that forgets": (
        lambda: bad_descent(closed_quadratic(Context(dtype=torch.float64))),
        "a step of descent on lower onto",
    ),
    "losses together in another order": (
        lambda: replace(quadratic(), together=in_another_order),
        "the losses together",
    ),
    "losses together with other slopes": (
        lambda: replace(quadratic(), together=with_other_slopes),
        "a gradient of losses together",
    ),
    "batches without a name": (
        lambda: with_data(quadratic(), draw_lower=sees_no_name),
        "the lower batch of one name differs",
    ),
    "rows that are cut wrongly": (
        lambda: with_data(quadratic(), rows=lambda batch, a, b: batch[a:]),
        "rows.* has 3 samples",
    ),
    "samples that nothing counts": (
        lambda: with_data(quadratic(), count=count_one),
        "nothing counts the samples",
    ),
    "a count of nothing": (lambda: with_data(quadratic(), count=lambda batch: 0), "count says 0"),
    "a loss of many numbers": (
        lambda: replace(quadratic(), upper=lambda x, y, i: y.square()),
        r"upper gives \(5,\)",
    ),
    "a loss that is random": (lambda: replace(quadratic(), lower=shaky), "two values at one point"),
    "a loss that writes": (lambda: replace(quadratic(), lower=writes), "lower (writes|gives)"),
    "a loss that is infinite": (
        lambda: replace(quadratic(), upper=lambda x, y, i: (0 * y).log().sum()),
        "near the start",
    ),
    "a metric that is not there": (lambda: replace(quadratic(), metric="loss"), "gives no loss"),
    "a metric that is random": (
        lambda: replace(quadratic(), evaluate=measure_anew),
        "objective has two values",
    ),
    "a metric of many numbers": (
        lambda: replace(quadratic(), evaluate=lambda x, y, k: {"objective": y}),
        "objective is no scalar",
    ),
    "a start without a name": (
        lambda: replace(quadratic(), init=lambda rng: (torch.rand(3), torch.zeros(5))),
        "init: x differs",
    ),
    "a start of integers": (
        lambda: replace(quadratic(), init=lambda rng: (torch.zeros(3).long(), torch.zeros(5))),
        "init: x is of torch.int64",
    ),
    "no projection": (lambda: replace(quadratic(), feasible=half), "projecting twice"),
    "a start outside": (
        lambda: replace(
            on_a_ball(), init=lambda rng: (torch.ones(3).double(), torch.zeros(0).double())
        ),
        "the start is .* outside",
    ),
    "a wrong linear oracle": (
        lambda: replace(on_a_ball(), feasible=wrong_way),
        "feasible: lmo misses a point",
    ),
    "a linear oracle that leaves the set": (
        lambda: replace(on_a_ball(), feasible=too_far),
        "feasible: lmo is 4.5 outside",
    ),
    "a projection that is not closest": (
        lambda: replace(on_a_ball(), feasible=Set(turned, ball.lmo)),
        "feasible: a projection is not closest",
    ),
}


@pytest.mark.parametrize("wrong", BAD)
def test_a_broken_task_is_noticed(wrong: str) -> None:
    make, said = BAD[wrong]
    with pytest.raises(Broken, match=said) as raised:
        check_task(make())
    assert "\n  look: " in str(raised.value)


def test_counts_may_be_fewer_where_the_method_says_at_most() -> None:
    cost = Cost(grad_g=9, grad_f=1, jvp_g=1) + Cost(grad_g=3, at_most=True)
    of_algorithms.check_cost(mine(cost=cost), quadratic())
    with pytest.raises(Broken, match="says 11 to 14"):
        of_algorithms.check_cost(mine(cost=cost + Cost(grad_g=2)), quadratic())


def test_a_cost_is_held_against_the_step_that_it_is_of() -> None:
    right, late = Cost(grad_g=10, grad_f=1, jvp_g=1), Cost(grad_g=11, grad_f=1, jvp_g=1)

    def cost(moment: Moment) -> Cost:
        return right if moment.step < 2 else late

    with pytest.raises(Broken, match="step 2 calls grad_g 10 times, and the method says 11"):
        of_algorithms.check_cost(mine()._replace(cost=cost), quadratic())


def test_a_metric_has_to_fall_to_seven_tenths() -> None:
    """x^2 falls to .81 in one step of x = .9 x, and to .6561 in two."""
    task = Task(
        upper=lambda x, y, i: x.square().sum(),
        init=lambda rng: (torch.ones(1).double(), torch.zeros(0).double()),
        evaluate=lambda x, y, step: {"loss": x.square().sum()},
        metric="loss",
    )

    def step(o: Oracle, s: State, draw: Draw) -> tuple[State, dict[str, Tensor]]:
        return State(0.9 * s.x, s.y), {}

    method = Algorithm(State, step, cost=Cost(), kind="single-level")
    of_algorithms.check_descent(method, task, 2)
    with pytest.raises(Broken, match=r"goes from 1 to 0\.81"):
        of_algorithms.check_descent(method, task, 1)


def test_the_small_problems_have_their_optima_where_they_say() -> None:
    """Where g_y and the hypergradient, both players' gradients, or the gradient mapping are 0."""
    rows = torch.arange(64)

    def optimum(task: Task) -> tuple[Tensor, Tensor]:
        assert task.report.optimum is not None
        return task.report.optimum["x"], task.report.optimum["y"]

    o, (x, y) = Oracle(quadratic()), optimum(quadratic())
    (f_x, f_y), products = o.grad_f(x, y, rows), o.products(x, y, rows)
    H = torch.stack([products.yy(e) for e in torch.eye(len(y)).double()])
    hypergradient = f_x - products.xy(torch.linalg.solve(H, f_y))
    saddle = Oracle(zero_sum()).grad_f(*optimum(zero_sum()), rows)
    for zero in (o.g_y(x, y, rows), hypergradient, *saddle):
        torch.testing.assert_close(zero, torch.zeros_like(zero), rtol=0, atol=1e-12)

    x, y = optimum(on_a_ball())
    project = on_a_ball().feasible.project
    assert project is not None
    moved = project(x - Oracle(on_a_ball()).f_x(x, y, rows))
    torch.testing.assert_close(moved, x, rtol=0, atol=1e-12)
