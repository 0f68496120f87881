"""Trees of tensors and modules as one tensor, which is what an algorithm moves, and back."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_flatten, tree_unflatten

from bench.core.settings import BadSetting
from bench.core.task import Set

RANDOM = (nn.RReLU, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d)  # beside dropout


class Functional:
    """A module whose parameters are given: what a loss receives in place of an nn.Module.

    It is called as the module is, and its `parameters()` are tensors that derivatives go through.
    The module's buffers, such as the running means of a batch norm, stay what they were when it
    was handed over. It stays in the mode, train() or eval(), that it had then.
    """

    def __init__(self, module: nn.Module, values: dict[str, Tensor]):
        self.module, self.values = module, values

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        # a layer may write into its buffers, which are not to change from step to step
        buffers = {name: buffer.clone() for name, buffer in self.module.named_buffers()}
        return functional_call(self.module, {**self.values, **buffers}, arguments, named)

    def __getattr__(self, name: str) -> Any:
        module = self.__dict__.get("module")
        if module is None or not hasattr(module, name):
            raise AttributeError(f"{type(module).__name__} has no attribute {name!r}")
        raise AttributeError(
            f"a loss is given no {name!r} of a module: take a parameter by "
            "dict(y.named_parameters())['name'], and hand over parts that are called by themselves "
            "as a dict of modules"
        )

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """The parameters by their names, as nn.Module has them; frozen ones are among them."""
        for name, parameter in self.module.named_parameters():
            yield name, self.values.get(name, parameter)

    def parameters(self) -> Iterator[Tensor]:
        """The parameters in the module's order."""
        return (value for _, value in self.named_parameters())


class Leaf(NamedTuple):
    """A tensor or a module within a tree, as so many entries of the packed tensor.

    view(entries) is what a loss receives; keep(entries) is what is handed back at the end, which
    shares no memory with what was given.
    """

    start: Tensor  # the entries at the start, flat
    view: Callable[[Tensor], Any]
    keep: Callable[[Tensor], Any]


class Packing(NamedTuple):
    """How a tensor, a module, or a tree of these is packed into one tensor.

    start: the packed start; a single tensor keeps its shape, anything else is flat. view and keep:
    as for `Leaf`, of the whole. shapes: the shape of each leaf as a part of `start`, in order.
    form: of the tree, as `tree_flatten` has it; None: a single tensor or module.
    """

    start: Tensor
    view: Callable[[Tensor], Any]
    keep: Callable[[Tensor], Any]
    shapes: tuple[tuple[int, ...], ...]
    form: Any


def packing(given: Any, name: str) -> Packing:
    """How `given` is packed: a tensor, an nn.Module, or a dict, list or other tree of them.

    A module's trainable parameters are its entries; frozen ones (requires_grad=False) stay.
    name: of the argument, for messages. Raises BadSetting if there is no tensor, or if they have no
    floating dtype, or several dtypes or devices.
    """
    if isinstance(given, Tensor):
        check_tensors([given], name)
        return Packing(given.detach().clone(), same, clone, (tuple(given.shape),), None)
    parts, form = tree_flatten(given)
    leaves = [leaf_of(part, name) for part in parts]
    check_tensors([leaf.start for leaf in leaves], name)
    sizes = [leaf.start.numel() for leaf in leaves]

    def view(packed: Tensor) -> Any:
        pieces = zip(leaves, packed.split(sizes))
        return tree_unflatten([leaf.view(piece) for leaf, piece in pieces], form)

    def keep(packed: Tensor) -> Any:
        pieces = zip(leaves, packed.split(sizes))
        return tree_unflatten([leaf.keep(piece) for leaf, piece in pieces], form)

    start = torch.cat([leaf.start for leaf in leaves])
    shapes = tuple(
        tuple(part.shape) if isinstance(part, Tensor) else (size,)
        for part, size in zip(parts, sizes)
    )
    return Packing(start, view, keep, shapes, None if isinstance(given, nn.Module) else form)


def leaf_of(part: Any, name: str) -> Leaf:
    """A tensor or a module as a leaf; raises BadSetting for anything else."""
    if isinstance(part, nn.Module):
        return leaf_of_module(part, name)
    if not isinstance(part, Tensor):
        raise BadSetting(f"{name}: has a {type(part).__name__}; write tensors or an nn.Module")
    shape = part.shape
    return Leaf(
        part.detach().flatten().clone(),
        lambda entries: entries.view(shape),
        lambda entries: entries.detach().clone().view(shape),
    )


def leaf_of_module(given: nn.Module, name: str) -> Leaf:
    """A module's trainable parameters as a leaf.

    Raises BadSetting if there are none, or if the module draws random numbers, which would have no
    name.
    """
    for child_name, child in given.named_modules():
        if child.training and draws_random_numbers(child):
            where = ".".join(filter(None, [name, child_name]))
            raise BadSetting(
                f"{where}: {type(child).__name__} draws random numbers that no seed names; "
                f"write {name}.eval()"
            )
    module = deepcopy(given)
    trained = {n: p.detach().clone() for n, p in module.named_parameters() if p.requires_grad}
    if not trained:
        raise BadSetting(f"{name}: this module has no parameter that requires a gradient")
    module.requires_grad_(False)
    sizes = [p.numel() for p in trained.values()]

    def values(entries: Tensor) -> dict[str, Tensor]:
        pieces = zip(trained, entries.split(sizes))
        return {n: piece.view(trained[n].shape) for n, piece in pieces}

    def keep(entries: Tensor) -> nn.Module:
        new = deepcopy(given)
        new.load_state_dict(values(entries.detach().clone()), strict=False)
        return new

    check_tensors(list(trained.values()), name)
    start = torch.cat([p.flatten() for p in trained.values()])
    return Leaf(start, lambda entries: Functional(module, values(entries)), keep)


def of_running_statistics(given: Any) -> list[str]:
    """The kinds of the layers in a tree that would learn running statistics, which here stay."""
    modules = [part for part in tree_flatten(given)[0] if isinstance(part, nn.Module)]
    layers = [layer for module in modules for layer in module.modules() if layer.training]
    learning = [layer for layer in layers if getattr(layer, "running_mean", None) is not None]
    return sorted({type(layer).__name__ for layer in learning})


def draws_random_numbers(module: nn.Module) -> bool:
    """Whether a module of torch draws random numbers where it is trained, its own children's aside.

    Recurrent layers and attention have a share of `dropout` in place of a module for it.
    """
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return module.p > 0
    share = getattr(module, "dropout", 0.0)
    return isinstance(module, RANDOM) or (isinstance(share, int | float) and share > 0)


def check_tensors(tensors: list[Tensor], name: str) -> None:
    """Raise BadSetting unless there are tensors, all of one floating dtype on one device."""
    if not tensors:
        raise BadSetting(f"{name}: there is no tensor in it")
    kinds = sorted({str(t.dtype).removeprefix("torch.") for t in tensors})
    if not all(t.is_floating_point() for t in tensors):
        raise BadSetting(f"{name}: has numbers of type {', '.join(kinds)}; write {name}.double()")
    devices = sorted({str(t.device) for t in tensors})
    if len(kinds) > 1 or len(devices) > 1:
        both = ", ".join(kinds if len(kinds) > 1 else devices)
        raise BadSetting(f"{name}: has tensors of {both}; write all of them as one")


def packed_set(given: Any, packed: Packing, name: str) -> Set:
    """The set of packed tensors that `given` stands for: None is the whole space, a Set is one of
    the packed tensor, and a tree of the same form as what is packed has a Set or None for each
    leaf. Raises BadSetting for another form, and for parts of which one cannot be projected on and
    another one is the whole space."""
    if given is None or isinstance(given, Set):
        return given or Set()
    parts, form = tree_flatten(given)
    if form != packed.form or not all(part is None or isinstance(part, Set) for part in parts):
        raise BadSetting(
            f"{name}: write one set, or a set or None for each tensor, in the same form"
        )
    sets = [part or Set() for part in parts]
    sizes = [prod(shape) for shape in packed.shapes]

    def each(functions: list[Callable[..., Tensor]], u: Tensor, *more: float) -> Tensor:
        pieces = zip(functions, u.split(sizes), packed.shapes)
        return torch.cat([f(piece.view(shape), *more).flatten() for f, piece, shape in pieces])

    def lmo(u: Tensor, accuracy: float) -> Tensor:
        return each(oracles, u, accuracy / len(sets))  # the errors of the parts add up

    projections = [part.project or same for part in sets]
    oracles = [part.lmo for part in sets if part.lmo is not None]
    unprojected = any(part.project is None and part.lmo is not None for part in sets)
    if unprojected and len(oracles) < len(sets):
        raise BadSetting(
            f"{name}: a set without a projection, such as spanning_trees, goes with sets of all "
            "other tensors: write one for each"
        )
    whole = all(s.project is None for s in sets)
    return Set(
        project=None if whole or unprojected else lambda u: each(projections, u),
        lmo=None if len(oracles) < len(sets) else lmo,
    )


def same(packed: Tensor) -> Tensor:
    """The tensor itself, of any shape."""
    return packed


def clone(packed: Tensor) -> Tensor:
    """A copy of the tensor, of any shape."""
    return packed.detach().clone()
