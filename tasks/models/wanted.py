"""Which derivatives a custom backward is asked for, so that it works out no others."""

from typing import Any

import torch


def wanted(ctx: Any, argument: int) -> bool:
    """Whether the backward that is running needs the derivative in this argument of its function,
    counted among those that are tensors; there is none in one that is past their end.

    ctx.needs_input_grad says only whether the argument can be differentiated at all, and so is true
    for what `torch.autograd.grad` was not asked for. Of an argument that is a leaf, torch does not
    say; its derivative counts as needed.
    """
    nodes = [node for node, _ in ctx.next_functions[argument : argument + 1] if node is not None]
    if not nodes:
        return False
    (node,) = nodes
    if node.name().endswith("AccumulateGrad"):
        return True
    return bool(torch._C._will_engine_execute_node(node))
