"""Gradients through an inner map that are worked out at their first use.

Many gradients of one map are only ever added up. Their sum is worked out in one backward pass.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

aten = torch.ops.aten


class Deferred(Tensor):
    """The tensor J^T u for the Jacobian J of an inner map, which is pull(u) at the first use.

    Sums and differences of such tensors with the same `pull` only add their u. So an algorithm that
    adds up T products, each of which would be a backward pass through a network, costs one pass, as
    where a framework differentiates the whole loop at once.
    """

    pull: Callable[[Tensor], Tensor]
    u: Tensor
    known: Tensor | None

    # operations on such a tensor give plain tensors
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, pull: Callable[[Tensor], Tensor], u: Tensor, like: Tensor) -> "Deferred":
        """like: a tensor of the gradient's shape, dtype and device."""
        new = torch.Tensor._make_wrapper_subclass(
            cls, like.shape, dtype=like.dtype, device=like.device
        )
        new.pull, new.u, new.known = pull, u, None
        return new

    def value(self) -> Tensor:
        """The gradient as a plain tensor."""
        if self.known is None:
            self.known = self.pull(self.u)
        return self.known

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return repr(self.value())

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func in (aten.add.Tensor, aten.sub.Tensor) and not kwargs:
            a, b = args
            if isinstance(a, Deferred) and isinstance(b, Deferred) and a.pull is b.pull:
                return Deferred(a.pull, func(a.u, b.u), a)
        plain_args, plain = tree_map_only(Deferred, Deferred.value, (args, dict(kwargs or {})))
        return func(*plain_args, **plain)


def worked_out(tree: Any) -> Any:
    """The tree with plain tensors in place of deferred gradients; itself if it has none of them."""
    if not any(isinstance(leaf, Deferred) for leaf in tree_leaves(tree)):
        return tree
    return tree_map_only(Deferred, Deferred.value, tree)
