"""Hyper-cleaning's losses and derivatives against a slow version, image by image, in float64.

Both sum the same terms in another order: 1e-10 relative.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from bench.core.draw import Draw, generator
from bench.core.oracle import Oracle
from tests import cleaning as at
from tests.cleaning import made_up

pytestmark = pytest.mark.usefixtures(made_up.__name__)
N = at.SIZES["train"]


def same(found: Tensor, expected: Tensor, name: str = "") -> None:
    torch.testing.assert_close(
        found.detach(), expected.detach(), rtol=1e-10, atol=1e-14, msg=lambda m: f"{name}: {m}"
    )


def weights_at_the_borders() -> Tensor:
    """A number for each image: both borders of the clip, outside, and inside."""
    x = torch.rand(N, generator=generator("weights"), dtype=torch.float64)
    x[:8] = torch.tensor([0.0, 1.0, -0.3, 1.4, -1e-9, 1 + 1e-9, 1e-9, 1 - 1e-9])
    return x[torch.randperm(N, generator=generator("order of the weights"))]


def points(width: int = at.WIDTH) -> tuple[Tensor, Tensor, Tensor]:
    """x, y, and a direction in y."""
    rng = generator("points", width)
    y, v = torch.randn(2, 10, width, generator=rng, dtype=torch.float64)
    return weights_at_the_borders(), y, v


SIZE = {"all": None, "one": 1, "some": 40}  # of 23: some images come twice


@pytest.mark.parametrize("size", SIZE)
@pytest.mark.parametrize("coupling", ["weighted", "means"])
@pytest.mark.parametrize("kind", ["clip", "sigmoid"])
def test_lower_loss_and_its_derivatives(kind: str, coupling: str, size: str) -> None:
    """(1/n) sum_i sigma(x_i) CE_i(y) + c |y|^2 (stocBiO, appendix B), with BOME's clip or
    stocBiO's sigmoid: the value, both gradients, Hessian and mixed products. The derivative of the
    clip is 1 on its borders too, as x could not come back from there otherwise, and 0 outside."""
    c = 0.3
    task = at.made(weighting=kind, coupling=coupling, c=c)
    zeta = Draw(task, 0, 0).g(SIZE[size])
    which = torch.arange(N) if zeta.numbers is None else zeta.numbers
    x, y, v = points()
    leaf_x, leaf_y = x.clone().requires_grad_(), y.clone().requires_grad_()
    g = at.lower(
        leaf_x[which], leaf_y, at.plain("train")[which], zeta.labels, kind, c, coupling == "means"
    )
    g_x, g_y = torch.autograd.grad(g, (leaf_x, leaf_y), create_graph=True)
    mixed, hessian = torch.autograd.grad((g_y * v).sum(), (leaf_x, leaf_y))
    for o in (Oracle(task), Oracle(at.without_closed_forms(task))):
        products, (slope, again) = o.products(x, y, zeta), o.linearise_g_y(x, y, zeta)
        same(o.g(x, y, zeta), g, "g")
        same(o.g_x(x, y, zeta), g_x, "g_x alone")
        same(o.g_y(x, y, zeta), g_y, "g_y alone")
        same(o.grad_g(x, y, zeta)[0], g_x, "g_x")
        same(o.grad_g(x, y, zeta)[1], g_y, "g_y")
        same(slope, g_y, "linearised g_y")
        same(products.xy(v), mixed, "mixed product")
        same(products.yy(v), hessian, "Hessian product")
        same(again.both(v)[0], mixed, "mixed product of both")
        same(again.both(v)[1], hessian, "Hessian product of both")


@pytest.mark.parametrize("kind", ["clip", "sigmoid"])
def test_the_weights_derivative_is_what_it_is_said_to_be(kind: str) -> None:
    """With the clip it is CE_i / n inside and on the borders, and 0 outside; with the sigmoid it
    is sigma (1 - sigma) CE_i / n."""
    task = at.made(weighting=kind)
    x, y, _ = points()
    zeta = Draw(task, 0, 0).g()
    rows, s = at.plain("train"), 1 / (1 + torch.exp(-x))
    inside = torch.tensor([0.0 if v < 0 or v > 1 else 1.0 for v in x.tolist()]).double()
    factor = s * (1 - s) if kind == "sigmoid" else inside
    losses = torch.stack([at.sample_loss(y, r, int(k)) for r, k in zip(rows, zeta.labels)])
    same(Oracle(task).g_x(x, y, zeta), factor * losses / N)
    same(Oracle(at.without_closed_forms(task)).g_x(x, y, zeta), factor * losses / N)


@pytest.mark.parametrize("size", SIZE)
def test_upper_loss_is_the_mean_over_validation_and_does_not_see_the_weights(size: str) -> None:
    task = at.made()
    xi = Draw(task, 0, 0).f(SIZE[size])
    which = torch.arange(at.SIZES["val"]) if xi.numbers is None else xi.numbers
    x, y, _ = points()
    leaf = y.clone().requires_grad_()
    f = at.mean_loss(leaf, at.plain("val")[which], at.truth("val")[which])
    (f_y,) = torch.autograd.grad(f, leaf)
    for o in (Oracle(task), Oracle(at.without_closed_forms(task))):
        same(o.f(x, y, xi), f, "f")
        same(o.f_y(x, y, xi), f_y, "f_y alone")
        same(o.f_x(x, y, xi), torch.zeros(N).double(), "f_x alone")
        same(o.grad_f(x, y, xi)[0], torch.zeros(N).double(), "f_x")
        same(o.grad_f(x, y, xi)[1], f_y, "f_y")


@pytest.mark.parametrize(("protocol", "variant"), [("bome", "code"), ("stocbio", "code")])
def test_losses_of_a_model_with_a_bias(protocol: Any, variant: Any) -> None:
    """stocBiO's code has a column of ones; BOME's adds the last pixel's weight to every score. The
    bias is regularised as the other weights are."""
    task = at.made(protocol=protocol, variant=variant, bias=None, coupling="weighted")
    zeta, xi = Draw(task, 0, 0).g(), Draw(task, 0, 0).f()
    aliased = protocol == "bome"
    x, y, _ = points(at.WIDTH + (not aliased))

    def rows(part: str) -> Tensor:
        pixels = at.plain(part)
        if aliased:
            return torch.cat([pixels[:, :-1], pixels[:, -1:] + 1], 1)
        return torch.cat([pixels, torch.ones(len(pixels), 1)], 1)

    kind = "clip" if aliased else "sigmoid"
    o = Oracle(task)
    same(o.g(x, y, zeta), at.lower(x, y, rows("train"), zeta.labels, kind, 0.001))
    same(o.f(x, y, xi), at.mean_loss(y, rows("val"), at.truth("val")))


def test_a_block_of_rows_has_the_weights_of_its_rows() -> None:
    task = at.made()
    x, y, _ = points()
    assert task.data.rows is not None
    block = task.data.rows(Draw(task, 0, 0).g(), 4, 11)
    expected = at.lower(x[4:11], y, at.plain("train")[4:11], at.noisy(task)[4:11], "clip", 0.001)
    same(Oracle(task).g(x, y, block), expected)
    g_x = Oracle(task).g_x(x, y, block)
    assert not g_x[:4].any()
    assert not g_x[11:].any()
    assert int((g_x != 0).sum()) == int(((x[4:11] >= 0) & (x[4:11] <= 1)).sum())
