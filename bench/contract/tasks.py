"""What every task promises: each promise is a check of its own."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bench.contract.broken import require
from bench.core.draw import Draw, generator
from bench.core.oracle import Oracle, Products
from bench.core.task import (
    Batch,
    Context,
    Derivatives,
    Loss,
    Place,
    Set,
    Task,
    Wrt,
    count_one,
)

SIZE = 4  # samples of the batches that are tried
RTOL = 1e-6  # of a closed form in double precision


def check_task(
    task: Task | Callable[..., Task],
    *,
    context: Context | None = None,
    size: int | None = SIZE,
    **settings: Any,
) -> None:
    """Hold a task against all that a task promises; raises Broken.

    task: what the function of the task returns, or that function, which is called with a context
    in double precision and these settings. Closed forms are compared with autograd to six digits,
    which single precision would not give. context: another one. size: the samples of the batches
    that are tried; None: all that there are.
    """
    if not isinstance(task, Task):
        task = task(context or Context(dtype=torch.float64), **settings)
    if not isinstance(task, Task):
        raise TypeError(f"this gives {type(task).__name__}, not a Task")
    with torch.no_grad():
        check_start(task)
        check_data(task, size)
        check_losses(task, size)
        check_evaluation(task)
        check_set(task.feasible, task.init(generator(0, "init"))[0], "feasible")
        check_set(task.lower_feasible, task.init(generator(0, "init"))[1], "lower_feasible")
        check_derivatives(task, size)
        check_together(task, size)


def points(task: Task) -> tuple[Tensor, Tensor]:
    """The start moved a little at random, and into the feasible sets: a point like any other."""
    x, y = task.init(generator(0, "init"))
    rng = generator("contract", "point")

    def moved(t: Tensor, within: Set) -> Tensor:
        noise = torch.randn(t.shape, generator=rng, dtype=torch.float64).to(t)
        t = t + 0.1 * noise
        return within.project(t) if within.project is not None else t

    if task.feasible.project is None and task.feasible.lmo is not None:
        return x, moved(y, task.lower_feasible)  # a point that is not the start may be infeasible
    return moved(x, task.feasible), moved(y, task.lower_feasible)


def check_start(task: Task) -> None:
    """`init` depends on its generator alone. Raises Broken."""
    pairs = [task.init(generator(0, "init")) for _ in range(2)]
    for name, one, other in zip("xy", *pairs, strict=True):
        require(isinstance(one, Tensor), f"init: {name} is no tensor", "pack what is structured")
        require(one.is_floating_point(), f"init: {name} is of {one.dtype}", "context.dtype")
        require(not one.requires_grad, f"init: {name} requires a gradient", "detach it")
        require(torch.equal(one, other), f"init: {name} differs from call to call", "use `rng`")


def batches(task: Task, size: int | None) -> dict[str, Batch]:
    """A batch of each level, by the name of the level."""
    draw = Draw(task, 0, 0)
    found = {"upper": draw.f(size)}
    return found if task.lower is None else found | {"lower": draw.g(size)}


def check_data(task: Task, size: int | None) -> None:
    """The same name gives the same batch, and batches can be counted and cut. Raises Broken."""
    data, samplers = task.data, {"upper": task.data.draw_upper}
    if task.lower is not None:
        samplers["lower"] = data.draw_lower
    for side, sampler in samplers.items():
        look = f"data.draw_{side}: its randomness may come from `rng` alone"
        one, other = (sampler(generator("contract", side), 0, size) for _ in range(2))
        require(equal(one, other), f"the {side} batch of one name differs", look)
        number = data.count(one)
        require(
            number >= 1, f"data.count says {number} of a batch of the {side} level", "data.count"
        )
        if size is not None and size > 1 and data.count is count_one:
            single = sampler(generator("contract", side), 0, 1)
            look = f"data.count: without it a batch of {size} samples counts as one"
            require(equal(one, single), f"nothing counts the samples of the {side} level", look)
        if one is not None and number == size == SIZE and data.rows is not None:
            part = data.count(data.rows(one, 1, 3))
            require(part == 2, f"data.rows(batch, 1, 3) has {part} samples", "data.rows")


def equal(a: Any, b: Any) -> bool:
    """Whether two batches are the same, tensors in them bit by bit."""
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and torch.equal(a, b)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(equal(one, other) for one, other in zip(a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    return isinstance(b, type(a))


def losses(task: Task) -> dict[str, Loss]:
    """The losses of a task, by the names of their levels."""
    found = {"upper": task.upper}
    return found if task.lower is None else found | {"lower": task.lower}


def check_losses(task: Task, size: int | None) -> None:
    """A loss is one finite number, and the same whenever it is asked for. Raises Broken."""
    (x, y), drawn = points(task), batches(task, size)
    copies = x.clone(), y.clone()
    for side, loss in losses(task).items():
        value, again = loss(x, y, drawn[side]), loss(x, y, drawn[side])
        require(
            isinstance(value, Tensor) and value.shape == (),
            f"{side} gives {tuple(value.shape)}, not a scalar",
            "end it with .mean() or .sum()",
        )
        require(bool(value.isfinite()), f"{side} is {float(value)} near the start", f"{side}, init")
        look = "whether it draws at random, or remembers"
        require(torch.equal(value, again), f"{side} gives two values at one point", look)
        kept = torch.equal(x, copies[0]) and torch.equal(y, copies[1])
        require(kept, f"{side} writes into x or y", f"operations in place in {side}")


def check_evaluation(task: Task) -> None:
    """`evaluate` has the metric, gives scalars, and is the same whenever asked. Raises Broken."""
    x, y = points(task)
    copies = x.clone(), y.clone()
    found, again = task.evaluate(x, y, 0), task.evaluate(x, y, 0)
    elsewhere = task.tally is not None or task.ledger is not None
    require(elsewhere or task.metric in found, f"evaluate gives no {task.metric}", "Task.metric")
    for key, value in found.items():
        require(torch.as_tensor(value).numel() == 1, f"evaluate: {key} is no scalar", "evaluate")
        same = torch.equal(torch.as_tensor(value), torch.as_tensor(again[key]))
        nan = bool(torch.as_tensor(value).isnan())
        require(same or nan, f"evaluate: {key} has two values at one point", "evaluate draws anew")
    kept = torch.equal(x, copies[0]) and torch.equal(y, copies[1])
    require(kept, "evaluate writes into x or y", "operations in place in evaluate")


def check_set(within: Set, start: Tensor, name: str) -> None:
    """Projections are the closest points and stay where they are; linear minimisation finds a point
    of the set, and no more than projections do.

    Raises Broken.
    """
    rng = generator("contract", "set", name)
    for _ in range(5):
        far = start + 3 * torch.randn(start.shape, generator=rng, dtype=torch.float64).to(start)
        gradient = torch.randn(start.shape, generator=rng, dtype=torch.float64).to(start)
        if within.project is not None:
            once = within.project(far)
            apart = float((within.project(once) - once).norm())
            small = 1e-5 * (1 + float(once.norm()))
            require(apart <= small, f"{name}: projecting twice moves by {apart:.2g}", "its project")
            moved = float((within.project(start) - start).norm())
            small = 1e-5 * (1 + float(start.norm()))
            require(moved <= small, f"{name}: the start is {moved:.2g} outside", "init")
        if within.lmo is not None:
            vertex = within.lmo(gradient, 1e-9)
            others = [start] if within.project is None else [start, within.project(far)]
            for point in others:
                gap = float((gradient * (vertex - point)).sum())
                small = 1e-5 * (1 + float(gradient.norm()) * float(vertex.norm()))
                require(gap <= small, f"{name}: lmo misses a point by {gap:.2g}", "its lmo")
            if within.project is not None:
                apart = float((within.project(vertex) - vertex).norm())
                small = 1e-5 * (1 + float(vertex.norm()))
                require(apart <= small, f"{name}: lmo is {apart:.2g} outside", "its lmo")
                beyond = float(((far - once) * (vertex - once)).sum())
                small = 1e-5 * (1 + float(far.norm()) * float((vertex - once).norm()))
                require(beyond <= small, f"{name}: a projection is not closest", "its project")


def check_derivatives(task: Task, size: int | None) -> None:
    """Closed forms are what autograd finds. Raises Broken."""
    (x, y), drawn = points(task), batches(task, size)
    closed = {"upper": task.upper_derivatives, "lower": task.lower_derivatives}
    for side, loss in losses(task).items():
        given = closed[side]
        if given is not None:
            check_gradient(side, given, loss, x, y, drawn[side])
            check_products(side, given, loss, x, y, drawn[side])


def check_together(task: Task, size: int | None) -> None:
    """Losses at several places together are those of each place, and so are their gradients.

    Raises Broken.
    """
    if task.together is None or task.lower is None:
        return
    (x, y), drawn = points(task), batches(task, size)
    moved = 0.9 * x, 0.9 * y
    places = [
        Place(side == "upper", p.clone().requires_grad_(), q.clone().requires_grad_(), drawn[side])
        for side in ("upper", "lower")
        for p, q in ((x, y), moved)
    ]
    with torch.enable_grad():
        found = task.together(places)
        if found is None:
            return
        own = torch.stack([(task.upper if p.upper else task.lower)(*p[1:]) for p in places])
    compare(found.detach(), own.detach(), "the losses together", "together")
    inputs = [t for p in places for t in (p.x, p.y)]
    slopes, right = (
        torch.autograd.grad(
            each, inputs, torch.ones_like(each), allow_unused=True, materialize_grads=True
        )
        for each in (found, own)
    )
    for one, other in zip(slopes, right, strict=True):
        compare(one, other, "a gradient of losses together", "together")


def by_autograd(loss: Loss, x: Tensor, y: Tensor, batch: Batch) -> tuple[Oracle, Tensor, Tensor]:
    """An oracle of a loss without closed forms, as the lower one, and its two partial gradients."""
    plain = Task(
        upper=loss,
        lower=loss,
        init=lambda rng: (x, y),
        evaluate=lambda x, y, step: {},
        metric="",
    )
    oracle = Oracle(plain)
    return oracle, *oracle.grad_g(x, y, batch)


def compare(found: Tensor | None, right: Tensor, what: str, look: str) -> None:
    """Raise Broken unless a closed form is what autograd finds."""
    require(found is not None, f"{what} is missing", look)
    assert found is not None
    require(found.shape == right.shape, f"{what} has the shape {tuple(found.shape)}", look)
    apart = float((found - right).norm())
    size = 1 + float(right.norm())
    limit = RTOL if right.dtype == torch.float64 else 1e-3
    require(apart <= limit * size, f"{what} is {apart:.2g} from autograd's {size - 1:.3g}", look)


def check_gradient(
    side: str, given: Derivatives, loss: Loss, x: Tensor, y: Tensor, batch: Batch
) -> None:
    """`grad` and `descend` of a level's closed forms. Raises Broken."""
    _, in_x, in_y = by_autograd(loss, x, y, batch)
    look = f"{side}_derivatives.grad"
    asked: tuple[Wrt, ...] = ("x", "y", "xy")
    for wrt in asked:
        found = given.grad(x, y, batch, wrt)
        if "x" in wrt:
            compare(found[0], in_x, f"the partial gradient of {side} in x", f'{look}, wrt="{wrt}"')
        if "y" in wrt:
            compare(found[1], in_y, f"the partial gradient of {side} in y", f'{look}, wrt="{wrt}"')
    if given.descend is not None:
        look, what = f"{side}_derivatives.descend", f"a step of descent on {side}"
        compare(given.descend(x, y, batch, 0.1, None), y - 0.1 * in_y, what, look)
        onto = 2 * y
        compare(given.descend(x, y, batch, 0.1, onto), 2 * y - 0.1 * in_y, what + " onto", look)


def check_products(
    side: str, given: Derivatives, loss: Loss, x: Tensor, y: Tensor, batch: Batch
) -> None:
    """`linearise` of a level's closed forms. Raises Broken."""
    if given.linearise is None:
        return
    oracle, _, in_y = by_autograd(loss, x, y, batch)
    right: Products = oracle.products(x, y, batch)
    gradient, product = given.linearise(x, y, batch)
    look = f"{side}_derivatives.linearise"
    compare(gradient(), in_y, f"the gradient of {side} in y", look)
    rng = generator("contract", "vector")
    v = torch.randn(y.shape, generator=rng, dtype=torch.float64).to(y)
    mixed, curved = product(v, "xy")
    compare(mixed, right.xy(v), f"the mixed product of {side}", look)
    compare(curved, right.yy(v), f"the Hessian product of {side}", look)
