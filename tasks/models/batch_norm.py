"""Batch normalisation whose second derivative is made of two first derivatives.

Torch's own second derivative is a chain of some hundred operations. Here it takes fifteen, of which
two are the fused first derivative and two the fused value.

In each channel of h [n, C, ...], of N values, let xh = (h - mean) r with r = 1 / sqrt(var + eps),
and A u = u - mean(u) - xh mean(u xh), which is symmetric. For g = dL/dout,

    out = s xh + b,   h' = s r A g,   s' = sum(g xh),   b' = sum(g)

are the value and the first derivatives of L in h, in the scale s and in the shift b. For u, v and w
shaped as h', s' and b', the derivatives of <u, h'> + <v, s'> + <w, b'> are

    by g:  s r A u + v xh + w
    by s:  q = <u, r A g>
    by h:  (v - s r <u, xh> / N) r A g - (r <g, xh> / N) s r A u - (s r q / N) xh.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from tasks.models.wanted import wanted

EPS = 1e-5  # torch's default


def batch_norm(h: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """scale (h - mean) / sqrt(var + eps) + shift, with mean and variance of each of h's channels.

    h: [n, C, height, width]; scale, shift: [C]. The result can be differentiated twice. A third
    `backward` raises RuntimeError; a third torch.autograd.grad returns without a word.
    """
    return _Norm.apply(h, scale, shift)


class _Norm(torch.autograd.Function):
    """The value."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        out, mean, r = torch.native_batch_norm(h, scale, shift, None, None, True, 0.0, EPS)
        ctx.save_for_backward(h, scale, mean, r)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        h, s, mean, r = ctx.saved_tensors
        # a derivative that nobody will differentiate needs no node of its own
        first = _Gradient.apply if torch.is_grad_enabled() else _gradients
        return first(g, h, s, mean, r)


class _Gradient(torch.autograd.Function):
    """The first derivative."""

    @staticmethod
    def forward(ctx: Any, g: Tensor, h: Tensor, s: Tensor, mean: Tensor, r: Tensor) -> Any:
        found = _gradients(g, h, s, mean, r)
        ctx.save_for_backward(g, h, s, mean, r, found[1])
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, u: Tensor, v: Tensor, w: Tensor) -> Any:
        g, h, s, mean, r, g_xh = ctx.saved_tensors
        if not (wanted(ctx, 1) or wanted(ctx, 2)):
            sr_Au, _, _ = _gradients(u, h, s, mean, r)
            return _values(h, v, w).add_(sr_Au), None, None, None, None
        N = h.numel() / len(s)
        one = torch.ones_like(s)  # on CUDA torch needs a weight, with channels last
        r_Au, u_xh, _ = _gradients(u, h, one, mean, r)
        by_g = _values(h, v, w).addcmul_(r_Au, _wide(s))
        q = (r_Au * g).sum((0, 2, 3))  # A is symmetric
        sr, zero = s * r, torch.zeros_like(s)
        by_h, _, _ = _gradients(g, h, torch.addcmul(v, sr, u_xh, value=-1 / N), mean, r)
        by_h.addcmul_(r_Au, _wide(sr * g_xh), value=-1 / N)
        by_h.add_(_values(h, torch.addcmul(zero, sr, q, value=-1 / N), zero))
        return by_g, by_h, q, None, None


def _wide(weights: Tensor) -> Tensor:
    """The channels' weights [C] as factors of images."""
    return weights[:, None, None]


def _values(h: Tensor, s: Tensor, b: Tensor) -> Tensor:
    """s xh + b."""
    value: Tensor = torch.native_batch_norm(h, s, b, None, None, True, 0.0, EPS)[0]
    return value


def _gradients(
    g: Tensor, h: Tensor, s: Tensor, mean: Tensor, r: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The first derivatives: s r A g, sum(g xh), sum(g)."""
    mask = [True, True, True]
    return torch.ops.aten.native_batch_norm_backward(g, h, s, None, None, mean, r, True, EPS, mask)
