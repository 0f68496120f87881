"""Turns losses, starts, data and sets, as a caller of `solve` has them, into a task."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

from bench.core.draw import generator
from bench.core.fit import distance
from bench.core.loop import number
from bench.core.settings import BadSetting
from bench.core.task import Batch, Data, Loss, Sampler, Task, no_data
from bench.numerics.packing import Packing, packed_set, packing

Losses = Callable[..., Tensor]  # f(x, y), or f(x, y, batch) where there is data
Measures = Callable[[Any, Any], dict[str, Any]]


class Problem(NamedTuple):
    """A task, and how its x and y are packed; y is None where there is no lower level."""

    task: Task
    x: Packing
    y: Packing | None


def problem(
    upper: Losses,
    lower: Losses | None,
    x0: Any,
    y0: Any,
    upper_data: Any,
    lower_data: Any,
    x_in: Any,
    y_in: Any,
    evaluate: Measures | None,
    minimax: bool,
    seed: int,
) -> Problem:
    """The task that `solve` hands to a method; its arguments are those of `solve`.

    minimax: the lower loss is minus the upper one, and sees the same data. Raises BadSetting.
    """
    if evaluate is not None:
        check_takes(evaluate, ["x", "y"], "evaluate", "as y is None where there is none")
    x = packing(x0, "x0")
    y = None if y0 is None else packing(y0, "y0")
    if lower_data is not None and lower is None:
        raise BadSetting("lower_data: there is no lower loss; leave it out")
    f = loss(upper, "upper", upper_data is not None, x, y)
    g: Loss | None = None
    if minimax:
        g, lower_data = negative(f), upper_data
    elif lower is not None:
        g = loss(lower, "lower", lower_data is not None, x, y)
    device = x.start.device
    data = Data(
        sampler(upper_data, "upper_data", device),
        sampler(lower_data, "lower_data", device),
        count=count,
        rows=rows,
    )

    def measure(x_now: Tensor, y_now: Tensor, step: int) -> dict[str, Tensor]:
        def everything(draw: Sampler, side: str) -> Batch:
            return draw(generator(seed, "evaluate", side, step), step, None)

        found = {"upper_loss": f(x_now, y_now, everything(data.draw_upper, "upper"))}
        if g is not None and not minimax:
            found["lower_loss"] = g(x_now, y_now, everything(data.draw_lower, "lower"))
        if evaluate is not None:
            # copies, because it may write into what it gets
            at_x, at_y = x.view(x_now.clone()), None if y is None else y.view(y_now.clone())
            more = evaluate(at_x, at_y)
            found |= measures(more, {"step", "seconds", "cpu_seconds", *found})
        return found

    def init(rng: Generator) -> tuple[Tensor, Tensor]:
        return x.start.clone(), x.start.new_zeros(0) if y is None else y.start.clone()

    task = Task(
        upper=f,
        lower=g,
        init=init,
        evaluate=measure,
        metric="upper_loss",
        data=data,
        feasible=packed_set(x_in, x, "x_in"),
    )
    if y is not None:
        task = with_lower_set(task, y_in, y)
    elif y_in is not None:
        raise BadSetting("y_in: there is no y; leave it out")
    check_start(task.feasible.project, x.start, "x")
    if y is not None:
        check_start(task.lower_feasible.project, y.start, "y")
    return Problem(task, x, y)


def measures(given: Any, taken: set[str]) -> dict[str, Tensor]:
    """What `evaluate` gives, as tensors; raises BadSetting if these are no numbers by their names,
    or names that a row has already."""
    if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
        raise BadSetting(f"evaluate: gives {given!r:.40}; write a dict of numbers by their names")
    rows_own = ("calls/", "samples/", "info/")
    if both := sorted(key for key in given if key in taken or key.startswith(rows_own)):
        raise BadSetting(f"evaluate: gives {both[0]}, which is a row's own; rename it")
    return {
        key: torch.tensor(number("evaluate:", key, value), dtype=torch.float64)
        for key, value in given.items()
    }


def check_takes(given: Callable[..., Any], words: Sequence[str], name: str, why: str) -> None:
    """Raise BadSetting if a caller's function does not take these arguments."""
    try:
        inspect.signature(given).bind(*words)
    except TypeError:
        raise BadSetting(f"{name}: write it as {name}({', '.join(words)}), {why}") from None
    except ValueError:
        pass  # a function of C has no signature to look at


def negative(f: Loss) -> Loss:
    """Minus a loss."""

    def g(x: Tensor, y: Tensor, batch: Batch) -> Tensor:
        return -f(x, y, batch)

    return g


def with_lower_set(task: Task, y_in: Any, y: Packing) -> Task:
    """The task with the set of y; raises BadSetting."""
    found = packed_set(y_in, y, "y_in")
    if found.project is None and found.lmo is not None:
        raise BadSetting("y_in: this set has no projection, which every method needs for y")
    return replace(task, lower_feasible=found)


def check_start(project: Callable[[Tensor], Tensor] | None, start: Tensor, name: str) -> None:
    """Raise BadSetting if a start lies outside its set."""
    if project is not None and (apart := distance(project(start), start)):
        raise BadSetting(
            f"{name}0: lies outside of {name}_in, at a distance of {apart:.3g}; "
            f"write {name}_in.project({name}0) where it is a tensor"
        )


def loss(given: Losses, name: str, with_data: bool, x: Packing, y: Packing | None) -> Loss:
    """A caller's loss as a function of the packed x and y, and of a batch.

    Raises BadSetting if it does not take these arguments; the loss itself does so at its first call
    if it does not return one number.
    """
    words = ["x"] + ["y"] * (y is not None) + ["batch"] * with_data
    data = f"{name}_data is given" if with_data else f"there is no {name}_data"
    check_takes(given, words, name, f"as {data}")

    def packed(x_now: Tensor, y_now: Tensor, batch: Batch) -> Tensor:
        arguments = [x.view(x_now)]
        if y is not None:
            arguments.append(y.view(y_now))
        if with_data:
            arguments.append(batch)
        try:
            value = given(*arguments)
        except RuntimeError as error:
            if "does not require grad" not in str(error):
                raise
            said = "takes a derivative by torch.autograd, which is off where a value is asked for"
            raise BadSetting(f"{name}: {said}; take it by torch.func.grad") from error
        if not isinstance(value, Tensor) or value.numel() != 1:
            kind = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise BadSetting(f"{name}: gives {kind}, not one number: end it with .mean() or .sum()")
        if value.is_complex():
            raise BadSetting(f"{name}: gives {value.dtype}; write a real number, such as its .real")
        return value.reshape(())

    return packed


def sampler(given: Any, name: str, device: torch.device) -> Sampler:
    """What draws batches from a caller's data.

    None: no data. Tensors, or a tuple, dict or list of them: batches of rows with replacement; all
    rows where no size is asked for. A torch Dataset: the same of its items, collated as a
    DataLoader does. A function: what it draws.
    Raises BadSetting for anything else.
    """
    if given is None:
        return no_data
    if isinstance(given, DataLoader):
        raise BadSetting(f"{name}: write the loader's dataset, and batch={given.batch_size or 1}")
    if isinstance(given, TensorDataset):
        given = given.tensors
    if isinstance(given, Dataset):
        return dataset_sampler(given, name, device)
    if callable(given):
        return function_sampler(given, name)
    leaves = tree_leaves(given)
    if not leaves or not all(isinstance(leaf, Tensor) and leaf.ndim for leaf in leaves):
        raise BadSetting(f"{name}: write tensors, a Dataset, or a function that draws batches")
    if len({len(leaf) for leaf in leaves}) > 1:
        lengths = ", ".join(str(len(leaf)) for leaf in leaves)
        raise BadSetting(f"{name}: has tensors of {lengths} rows; each row is one sample")
    everything = tree_map_only(Tensor, lambda leaf: leaf.to(device), given)
    n = len(leaves[0])
    if n == 0:
        raise BadSetting(f"{name}: has no rows; write at least one sample")

    def draw(rng: Generator, step: int, size: int | None) -> Batch:
        if size is None:
            return everything
        chosen = torch.randint(n, (size,), generator=rng).to(device)
        return tree_map_only(Tensor, lambda leaf: leaf[chosen], everything)

    return draw


def dataset_sampler(given: Any, name: str, device: torch.device) -> Sampler:
    """What draws items of a Dataset; raises BadSetting for one without a length."""
    if isinstance(given, IterableDataset) or not hasattr(given, "__len__"):
        raise BadSetting(f"{name}: this Dataset has no length; write a function that draws batches")
    n = len(given)
    if n == 0:
        raise BadSetting(f"{name}: has no items; write at least one sample")
    whole: list[Batch] = []  # all items, once they have been asked for

    def collate(numbers: list[int]) -> Batch:
        batch = default_collate([given[i] for i in numbers])
        return tree_map_only(Tensor, lambda leaf: leaf.to(device), batch)

    def draw(rng: Generator, step: int, size: int | None) -> Batch:
        if size is not None:
            return collate(torch.randint(n, (size,), generator=rng).tolist())
        if not whole:
            whole.append(collate(list(range(n))))
        return whole[0]

    return draw


def function_sampler(given: Callable[..., Batch], name: str) -> Sampler:
    """What draws by a caller's function draw(rng), draw(rng, size) or draw(rng, size, step)."""
    many = next((many for many in (3, 2, 1) if takes(given, many)), None)
    if many is None:
        raise BadSetting(f"{name}: write it as draw(rng, size) or draw(rng, size, step)")

    def draw(rng: Generator, step: int, size: int | None) -> Batch:
        try:
            return given(*(rng, size, step)[:many])
        except TypeError as error:
            if size is not None or many == 1:
                raise
            said = f"{name}: size=None asks for all the data, as each row of the history does"
            raise BadSetting(f"{said}, and there it raised TypeError: {error}") from error

    return draw


def takes(given: Callable[..., Any], many: int) -> bool:
    """Whether a function takes rng, size and step, or the first so many of them, by their places.

    In draw(rng, size, noise=0.1) the third is not the step. A function of C has no signature to
    look at.
    """
    try:
        signature = inspect.signature(given)
        places = [*signature.bind(*("rng", "size", "step")[:many]).arguments]
    except (TypeError, ValueError):
        return False
    third = signature.parameters[places[2]] if len(places) > 2 else None
    return third is None or third.default is third.empty or third.name == "step"


def count(batch: Batch) -> int:
    """The rows of a batch's first tensor; 1 where it has none."""
    first = next((leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor)), None)
    return len(first) if first is not None and first.ndim else 1


def rows(batch: Batch, a: int, b: int) -> Batch:
    """The rows a to b of each tensor in a batch."""
    return tree_map_only(Tensor, lambda leaf: leaf[a:b], batch)
