"""Convolution whose second derivative is made of two convolutions and one first derivative.

Torch's own second derivative copies what it transposes, and goes through groups one by one. With
g = dL/dout, h', k' and b' are the first derivatives of L in the images h, the kernel k and the bias
b:

    out = k * h + b,   h' = k^T * g,   k' = g (*) h,   b' = sum(g),

each of which is linear in both of its arguments. So for u, v and w shaped as h', k' and b' the
derivatives of <u, h'> + <v, k'> + <w, b'> are

    by g:  k * u + v * h + w,   by h:  v^T * g,   by k:  g (*) u,

of which the last two are the first derivatives of a convolution of u with v.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from tasks.models.wanted import wanted


def convolution(
    h: Tensor, kernel: Tensor, bias: Tensor | None = None, stride: int = 1, groups: int = 1
) -> Tensor:
    """The images h [n, C, height, width] convolved with kernel [D, C / groups, side, side], padded
    by side // 2, and bias [D] added; None: no bias.

    The result can be differentiated twice. A third `backward` raises RuntimeError; a third
    torch.autograd.grad returns without a word.
    """
    return _Convolution.apply(h, kernel, bias, stride, groups)


class _Convolution(torch.autograd.Function):
    """The value."""

    @staticmethod
    def forward(
        ctx: Any, h: Tensor, kernel: Tensor, bias: Tensor | None, stride: int, groups: int
    ) -> Tensor:
        ctx.save_for_backward(h, kernel)
        ctx.form = (stride, groups)
        return _convolved(h, kernel, bias, ctx.form)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        asked = tuple(wanted(ctx, i) for i in range(3))
        # a derivative that nobody will differentiate needs no node of its own
        first: Any = _Gradient.apply if torch.is_grad_enabled() else _gradients
        return *first(g, *ctx.saved_tensors, ctx.form, asked), None, None


class _Gradient(torch.autograd.Function):
    """The first derivatives that are asked for; None in place of the others."""

    @staticmethod
    def forward(
        ctx: Any,
        g: Tensor,
        h: Tensor,
        kernel: Tensor,
        form: tuple[int, int],
        asked: tuple[bool, bool, bool],
    ) -> Any:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(g, h, kernel)
        ctx.form = form
        return _gradients(g, h, kernel, form, asked)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, u: Tensor | None, v: Tensor | None, w: Tensor | None) -> Any:
        g, h, kernel = ctx.saved_tensors
        if v is None and w is not None:
            v = torch.zeros_like(kernel)
        by_g = None
        if wanted(ctx, 0):
            parts = [] if u is None else [_convolved(u, kernel, None, ctx.form)]
            parts += [] if v is None else [_convolved(h, v, w, ctx.form)]
            by_g = sum(parts[1:], parts[0])
        asked = (v is not None and wanted(ctx, 1), u is not None and wanted(ctx, 2), False)
        images = h if u is None else u  # whose values count only where the kernel's derivative does
        other = kernel if v is None else v
        by_h, by_kernel, _ = _gradients(g, images, other, ctx.form, asked)
        return by_g, by_h, by_kernel, None, None


def _convolved(h: Tensor, kernel: Tensor, bias: Tensor | None, form: tuple[int, int]) -> Tensor:
    stride, groups = form
    return torch.conv2d(h, kernel, bias, stride, kernel.shape[-1] // 2, 1, groups)


def _gradients(
    g: Tensor, h: Tensor, kernel: Tensor, form: tuple[int, int], asked: tuple[bool, bool, bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The first derivatives in h, in the kernel and in the bias, each None where it is not asked
    for."""
    if not any(asked):
        return None, None, None
    stride, groups = form
    side = kernel.shape[-1] // 2
    found: tuple[Tensor | None, Tensor | None, Tensor | None]
    found = torch.ops.aten.convolution_backward(
        g, h, kernel, [len(kernel)], [stride] * 2, [side] * 2, [1, 1], False, [0, 0], groups, asked
    )
    return found
