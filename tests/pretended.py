"""A device that is not there: its tensors say they are on a GPU, and are worked out on the CPU.

What a GPU refuses is refused here too: an operation on tensors of the host and of the device, and
numpy's look into one of the device's. Code that does something else for a GPU does so here. Values
are those of the CPU, and what only CUDA has (graphs, streams, its own kernels) is not there.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

DEVICE = torch.device("cuda", 0)
# torch itself has to believe in a device that works without a driver, and is told of this one
STAND_IN = torch.device("meta")
COPIES = {"_to_copy", "copy_"}  # between the host and the device
INDEXED = {"index", "index_put", "index_put_", "_unsafe_index"}  # by numbers that the host may have
# where a number of the host, as a tensor of shape [], is none of the operands that a GPU takes
STRICT = {"cat", "stack", "mm", "addmm", "bmm", "mv", "dot"}
Arguments = tuple[Any, ...]
blocking: list[str] = []  # the copies so far between the host and the device that a GPU waits for


class There(Tensor):
    """A tensor of the device, which the host holds for it."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "There":
        dense = held.layout == torch.strided
        new = torch.Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride() if dense else None,
            storage_offset=held.storage_offset() if dense else None,
            dtype=held.dtype,
            device=STAND_IN,
        )
        new.held = held
        return new

    def __init__(self, held: Tensor):
        """`held` is known since __new__."""

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"There({self.held})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Iterable[type], args: Arguments = (), kwargs: Any = None
    ) -> Any:
        return on_the_device(func, types, args, kwargs or {})


def on_the_device(
    func: Any, types: Iterable[type], args: Arguments, kwargs: Mapping[str, Any]
) -> Any:
    """The operation on what the host holds, as the device's; raises RuntimeError as a GPU does."""
    if any(t not in (There, Tensor, torch.nn.Parameter) for t in types):
        return NotImplemented  # tensors of a kind of their own come first
    name = func._schema.name.partition("::")[2]
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    device, there = kwargs.get("device"), any(isinstance(t, There) for t in tensors)
    if not there and device != STAND_IN:
        return func(*args, **kwargs)
    by_the_host = name in INDEXED and isinstance(args[0], There)
    if there and name not in COPIES and not by_the_host:
        for t in tensors:
            if not isinstance(t, There) and (t.dim() or name in STRICT):
                raise RuntimeError(f"{name}: a tensor of the host beside the device's")
    held_args, held = tree_map_only(There, _held, (args, dict(kwargs)))
    if device is not None:
        held["device"] = torch.device("cpu")
        if name == "_to_copy" and (device == STAND_IN) != there and not kwargs.get("non_blocking"):
            blocking.append(f"{name} to {'the device' if device == STAND_IN else 'the host'}")
    found = func(*held_args, **held)
    if (device is not None and device != STAND_IN) or (name == "copy_" and found is args[0]):
        return found  # the host's
    found = tree_map_only(Tensor, There, found)
    return return_and_correct_aliasing(func, args, dict(kwargs), found) if there else found


def _held(t: There) -> Tensor:
    return t.held


class Working(TorchDispatchMode):
    """Has tensors made on the device, and the device's worked out."""

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: Arguments = (), kwargs: Any = None
    ) -> Any:
        return on_the_device(func, types, args, kwargs or {})


def _stand_in(argument: Any) -> Any:
    """The device that torch is told, for the one that is not there."""
    named = isinstance(argument, str) and argument.partition(":")[0] == DEVICE.type
    is_device = isinstance(argument, torch.device) and argument.type == DEVICE.type
    return STAND_IN if named or is_device else argument


class Telling(TorchFunctionMode):
    """Has tensors tell the device, and stands in for what torch does below its operations."""

    def __torch_function__(
        self, func: Any, types: Iterable[type], args: Arguments = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.device:
            return func(*args, **kwargs)
        if func == torch.Tensor.device.__get__:  # type: ignore[attr-defined]
            told = func(*args)
            return DEVICE if told == STAND_IN else told
        first = args[0] if args and isinstance(args[0], Tensor) else None
        there = first is not None and first.is_meta
        if func == torch.Tensor.is_cuda.__get__:  # type: ignore[attr-defined]
            return there
        if func is torch.Tensor.numpy and there:
            raise TypeError("can't convert a tensor of the device to numpy")
        if func is torch.Tensor.tolist and first is not None and there:
            return first.to(torch.device("cpu")).tolist()
        args, kwargs = tree_map(_stand_in, (args, kwargs))
        if func is torch.Tensor.new_tensor and first is not None and there:
            return torch.tensor(*args[1:], **{"dtype": first.dtype, **kwargs}).to(STAND_IN)
        if func in (torch.tensor, torch.as_tensor) and STAND_IN in (*args[1:], *kwargs.values()):
            return func(*args[:1], **{**kwargs, "device": None}).to(STAND_IN)
        by_list = func in (torch.Tensor.__getitem__, torch.Tensor.__setitem__)
        if by_list and isinstance(args[1], list):
            args = (args[0], torch.tensor(args[1]), *args[2:])
        return func(*args, **kwargs)


@contextmanager
def pretended() -> Iterator[torch.device]:
    """The device, in this thread."""
    with Telling(), Working():
        yield DEVICE
