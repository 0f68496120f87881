"""The networks of continual and few-shot learning, against torch's modules and plain formulas."""

import itertools
import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from bench.core.draw import generator
from tasks.models.batch_norm import batch_norm
from tasks.models.conv4 import Conv4, normalise
from tasks.models.convolution import convolution
from tasks.models.film import Mlp, Resnet
from tasks.models.groups import split_each


def vector(n: int, *name: Any) -> Tensor:
    """Random numbers."""
    return torch.randn(n, generator=generator("networks", *name), dtype=torch.float64)


def cut(vector: Tensor, shapes: list[tuple[int, ...]]) -> Iterator[Tensor]:
    """A vector's parts, one after the other, all of it used."""
    at = 0
    for shape in shapes:
        yield vector[at : at + math.prod(shape)].view(shape)
        at += math.prod(shape)
    assert at == len(vector)


def same_gradients(ours: Tensor, theirs: Tensor, *inputs: Tensor) -> None:
    """Equal values, and equal first and second derivatives of a curved sum of them."""
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    weights, seconds = torch.cos(torch.arange(ours.numel()).double()).view(ours.shape), []
    for value in (ours, theirs):
        loss = (weights * value + value.square()).sum()
        first = torch.autograd.grad(loss, inputs, create_graph=True)
        squares = sum(((1 + i) * g * g.detach().cos() + g * g).sum() for i, g in enumerate(first))
        seconds.append([*first, *torch.autograd.grad(squares, inputs, allow_unused=True)])  # type: ignore[arg-type]
    for a, b in zip(*seconds, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


# batch normalisation


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_batch_normalisation_is_its_formula_differentiated_twice(
    layout: torch.memory_format,
) -> None:
    """(h - mean) / sqrt(var + 1e-5) of each channel, the variance over n and not n - 1."""
    h = vector(3 * 4 * 2 * 5, "h").view(3, 4, 2, 5).contiguous(memory_format=layout)
    h = (0.02 * h).requires_grad_()  # so small that the 1e-5 counts
    scale, shift = vector(4, "scale").requires_grad_(), vector(4, "shift").requires_grad_()
    mean = h.sum((0, 2, 3), keepdim=True) / 30
    variance = ((h - mean) ** 2).sum((0, 2, 3), keepdim=True) / 30
    plain = (h - mean) / torch.sqrt(variance + 1e-5)
    plain = plain * scale[:, None, None] + shift[:, None, None]
    same_gradients(batch_norm(h, scale, shift), plain, h, scale, shift)


@pytest.mark.parametrize("asked", list(itertools.product([0, 1, 2], repeat=2)))
def test_each_second_derivative_of_batch_normalisation_by_itself(asked: tuple[int, int]) -> None:
    """A second derivative is that of the first derivative by one argument, by another argument
    or by what comes in."""
    h, u = vector(40, "h").view(2, 4, 5, 1).requires_grad_(), vector(40, "u").view(2, 4, 5, 1)
    inputs = [h, vector(4, "scale").requires_grad_(), vector(4, "shift").requires_grad_()]
    found = []
    for norm in (batch_norm, lambda h, s, b: F.batch_norm(h, None, None, s, b, training=True)):
        incoming = u.clone().requires_grad_()
        first = torch.autograd.grad(norm(*inputs), inputs, incoming, create_graph=True)[asked[0]]
        wanted = [inputs[asked[1]], incoming]
        v = vector(first.numel(), "v").view_as(first)
        found.append(torch.autograd.grad(first, wanted, v, allow_unused=True))
    for ours, torchs in zip(*found, strict=True):
        for one, other in ((ours, torchs), (torchs, ours)):
            if one is not None:
                expected = torch.zeros_like(one) if other is None else other
                torch.testing.assert_close(one, expected, rtol=1e-9, atol=1e-11)


def test_a_third_derivative_of_batch_normalisation_is_refused() -> None:
    h, one = vector(40, "h").view(2, 4, 5, 1).requires_grad_(), torch.ones(4).double()
    (first,) = torch.autograd.grad(batch_norm(h, one, one).pow(3).sum(), h, create_graph=True)
    (second,) = torch.autograd.grad(first.pow(2).sum(), h, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        second.sum().backward()


# convolution


@pytest.mark.parametrize(("side", "stride", "groups"), [(3, 1, 1), (3, 2, 1), (1, 2, 1), (3, 1, 2)])
def test_convolution_is_torchs_differentiated_twice(side: int, stride: int, groups: int) -> None:
    h = vector(3 * 4 * 5 * 5, "h").view(3, 4, 5, 5).requires_grad_()
    kernel = vector(6 * 4 // groups * side**2, "kernel").view(6, -1, side, side).requires_grad_()
    bias = vector(6, "bias").requires_grad_()
    for b in (None, bias):
        torchs = F.conv2d(h, kernel, b, stride, side // 2, 1, groups)
        ours = convolution(h, kernel, b, stride, groups)
        same_gradients(ours, torchs, h, kernel, *([] if b is None else [b]))


@pytest.mark.parametrize("asked", list(itertools.product([0, 1, 2], repeat=2)))
def test_each_second_derivative_of_a_convolution_by_itself(asked: tuple[int, int]) -> None:
    """Of a first derivative by one argument, by the other argument or by what comes in."""
    h = vector(2 * 3 * 4 * 4, "h").view(2, 3, 4, 4).requires_grad_()
    kernel, bias = vector(2 * 3 * 9, "kernel").view(2, 3, 3, 3), vector(2, "bias")
    inputs = [h, kernel.requires_grad_(), bias.requires_grad_()]
    found = []
    for convolve in (convolution, lambda h, kernel, b: F.conv2d(h, kernel, b, padding=1)):
        incoming = vector(2 * 2 * 4 * 4, "u").view(2, 2, 4, 4).requires_grad_()
        first = torch.autograd.grad(convolve(*inputs), inputs, incoming, create_graph=True)
        wanted = [inputs[asked[1]], incoming]
        v = vector(first[asked[0]].numel(), "v").view_as(first[asked[0]])
        found.append(torch.autograd.grad(first[asked[0]], wanted, v, allow_unused=True))
    for ours, torchs in zip(*found, strict=True):
        expected = torch.zeros_like(inputs[asked[1]]) if torchs is None else torchs
        ours = torch.zeros_like(expected) if ours is None else ours
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-11)


class Named(TorchDispatchMode):
    """Counts operations by their names while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names[func._schema.name.partition("::")[2]] += 1
        return func(*args, **(kwargs or {}))


def test_only_what_is_asked_for_is_worked_out() -> None:
    """Of two layers the derivative in the upper kernel needs no pass back through the lower layer,
    and the second derivative in what comes in none through the images."""
    h, one = vector(2 * 3 * 4 * 4, "h").view(2, 3, 4, 4), torch.ones(3).double()
    # views, as the networks' kernels are: of a leaf nobody can tell whether it is asked for
    first, second = (
        vector(3 * 3 * 9, name).requires_grad_().view(3, 3, 3, 3) for name in ("one", "two")
    )
    out = convolution(batch_norm(convolution(h, first), one, one), second)
    incoming = torch.ones_like(out).requires_grad_()
    with Named() as named:
        torch.autograd.grad(out, second, incoming, retain_graph=True)
    assert named.names["convolution_backward"] == 1
    assert named.names["native_batch_norm_backward"] == 0
    (gradient,) = torch.autograd.grad(out, first, incoming, create_graph=True)
    with Named() as named:
        torch.autograd.grad(gradient.square().sum(), incoming)
    assert named.names["convolution_backward"] == 0
    assert named.names["native_batch_norm_backward"] == 1


# the MLP of contextual transformation networks


class ReleasedMlp(nn.Module):
    """The network of the released code, by torch's modules; of our x and y."""

    def __init__(self, x: Tensor, y: Tensor, net: Mlp):
        super().__init__()
        self.emb = nn.Embedding(net.tasks, net.embedding).double()
        self.film = nn.ModuleList(
            [nn.Linear(net.embedding, 2 * net.hidden) for _ in range(net.layers)]
        )
        pairs = itertools.pairwise([net.pixels, *[net.hidden] * net.layers, net.classes])
        self.layers = nn.ModuleList([nn.Linear(a, b) for a, b in pairs])
        self.double()
        nn.utils.vector_to_parameters(x, [*self.emb.parameters(), *self.film.parameters()])
        nn.utils.vector_to_parameters(y, self.layers.parameters())

    def context(self) -> list[nn.Parameter]:
        return [*self.emb.parameters(), *self.film.parameters()]

    def forward(self, images: Tensor, tasks: Tensor) -> Tensor:
        e, h = self.emb(tasks), images
        for layer, film in zip(self.layers, self.film):
            h = layer(h)
            gamma, beta = film(e).chunk(2, 1)
            gamma = gamma / gamma.norm(dim=1, keepdim=True)
            beta = beta / beta.norm(dim=1, keepdim=True)
            h = F.relu(h) + F.relu(gamma * h + beta)
        return self.layers[-1](h)


@pytest.mark.parametrize("layers", [1, 3])
def test_the_mlp_is_that_of_torchs_modules(layers: int) -> None:
    net = Mlp(7, 5, layers, 4, 3, 2)
    x, y = net.init(generator("mlp"))
    x, y = x + 0.1 * vector(len(x), "x"), y + 0.1 * vector(len(y), "y")  # biases are not zero
    images, tasks = vector(42, "images").view(6, 7), torch.tensor([0, 1, 2, 2, 1, 0])
    module = ReleasedMlp(x, y, net)
    x, y = x.requires_grad_(), y.requires_grad_()
    found = net.logits(x, y, images, tasks)
    expected = module(images, tasks)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    ours = torch.autograd.grad(found.pow(2).sum(), (x, y))
    theirs = torch.autograd.grad(expected.pow(2).sum(), list(module.parameters()))
    names = [name for name, _ in module.named_parameters()]
    context = [g for name, g in zip(names, theirs) if not name.startswith("layers")]
    layers_ = [g for name, g in zip(names, theirs) if name.startswith("layers")]
    for one, parts in zip(ours, (context, layers_), strict=True):
        together = torch.cat([g.flatten() for g in parts])
        torch.testing.assert_close(one, together, rtol=1e-9, atol=1e-12)
    assert net.moments(y, images) is None
    assert torch.equal(net.logits(x, y, images, tasks, []), found)


def test_the_mlp_without_a_controller_is_plain() -> None:
    net = Mlp(7, 5, 2, 4, 3, 0)
    x, y = net.init(generator("mlp"))
    assert x.shape == (0,)
    y = y + 0.1 * vector(len(y), "y")
    images, tasks = vector(42, "images").view(6, 7), torch.tensor([0, 1, 2, 2, 1, 0])
    w1, b1, w2, b2, w3, b3 = cut(y, [(5, 7), (5,), (5, 5), (5,), (4, 5), (4,)])
    h = ((images @ w1.T + b1).clamp(min=0) @ w2.T + b2).clamp(min=0) @ w3.T + b3
    torch.testing.assert_close(net.logits(x, y, images, tasks), h, rtol=1e-10, atol=1e-12)


def uniform(rng: torch.Generator, shape: tuple[int, ...], bound: float) -> Tensor:
    """Uniform numbers of [-bound, bound]."""
    return bound * (2 * torch.rand(shape, generator=rng, dtype=torch.float64) - 1)


def test_the_mlp_starts_as_released() -> None:
    """Embeddings are normal, weights Glorot's: sqrt(6 / (inputs + outputs)); biases are zero."""
    net, rng = Mlp(7, 5, 2, 4, 3, 2), generator("start")
    x, y = net.init(generator("start"))
    parts = [torch.randn(3, 2, generator=rng, dtype=torch.float64)]
    for _ in range(2):
        parts += [uniform(rng, (10, 2), math.sqrt(6 / 12)), torch.zeros(10)]
    torch.testing.assert_close(x, torch.cat([p.flatten() for p in parts]), rtol=1e-14, atol=0)
    parts = []
    for a, b in ((7, 5), (5, 5), (5, 4)):
        parts += [uniform(rng, (b, a), math.sqrt(6 / (a + b))), torch.zeros(b)]
    torch.testing.assert_close(y, torch.cat([p.flatten() for p in parts]), rtol=1e-14, atol=0)


# ResNet-18


class Shapes:
    """ResNet-18 of f filters by hand: (shape, kind) of its parts in order."""

    def __init__(self, channels: int, f: int, outputs: int):
        self.parts: list[tuple[tuple[int, ...], str]] = []
        self.convolution(channels, f, 3)
        for before, after in ((f, f), (f, 2 * f), (2 * f, 4 * f), (4 * f, 8 * f)):
            self.convolution(before, after, 3)
            self.convolution(after, after, 3)
            if before != after:
                self.convolution(before, after, 1)
            self.convolution(after, after, 3)
            self.convolution(after, after, 3)
        self.parts += [((outputs, 8 * f), "weight"), ((outputs,), "bias")]

    def convolution(self, before: int, after: int, side: int) -> None:
        """The kernel of a convolution, and the scales and shifts of its normalisation."""
        self.parts += [((after, before, side, side), "kernel")]
        self.parts += [((after,), "scale"), ((after,), "shift")]


def resnet(net: Resnet, x: Tensor, y: Tensor, images: Tensor, tasks: Tensor) -> Tensor:
    """The logits of the network by torch's functions, in the order of its parts."""
    parts = cut(y, [shape for shape, _ in Shapes(net.channels, net.filters, 10).parts])

    def layer(h: Tensor, stride: int) -> Tensor:
        kernel, scale, shift = next(parts), next(parts), next(parts)
        h = F.conv2d(h, kernel, None, stride, kernel.shape[2] // 2)
        return F.batch_norm(h, None, None, scale, shift, training=True)

    h = F.max_pool2d(F.relu(layer(images, 1)), kernel_size=3, stride=2, padding=1)
    for stride in (1, 1, 2, 1, 2, 1, 2, 1):
        z = layer(F.relu(layer(h, stride)), 1)
        h = z + (layer(h, 2) if stride == 2 else h)
        h = h if net.embedding else F.relu(h)
    if net.embedding:
        both = 8 * net.filters
        shapes = [(2, net.embedding), (2 * both, net.embedding), (2 * both,)]
        table, W, b = cut(x, shapes)
        turned = table @ W.T + b
        gamma, beta = turned[:, :both], turned[:, both:]
        gamma = (gamma / gamma.detach().square().sum(1).sqrt()[:, None])[tasks]
        beta = (beta / beta.detach().square().sum(1).sqrt()[:, None])[tasks]
        h = F.relu(h) + F.relu(gamma[:, :, None, None] * h + beta[:, :, None, None])
    every = F.linear(h.mean((2, 3)), next(parts), next(parts))
    own = [row[5 * t : 5 * t + 5] for row, t in zip(every, tasks.tolist(), strict=True)]
    assert next(parts, None) is None
    return torch.stack(own)


@pytest.mark.parametrize("embedding", [0, 3])
def test_the_resnet_is_that_of_torchs_functions(embedding: int) -> None:
    """The lengths of gamma and beta are constants in a derivative, as released."""
    net = Resnet(3, 2, 5, 2, embedding)
    x, y = net.init(generator("resnet"))
    y = y + 0.1 * vector(len(y), "y")
    images, tasks = vector(4 * 3 * 1024, "i").view(4, 3, 32, 32), torch.tensor([0, 1, 1, 0])
    x, y = x.requires_grad_(), y.requires_grad_()
    ours = net.logits(x, y, images, tasks)
    theirs = resnet(net, x, y, images, tasks)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)
    wanted = (x, y) if embedding else (y,)
    for a, b in zip(
        torch.autograd.grad(ours.pow(2).sum(), wanted),
        torch.autograd.grad(theirs.pow(2).sum(), wanted),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9)


def test_a_tested_resnet_is_normalised_by_moments_that_are_given() -> None:
    """The moments are those of other images: an image's answer does not depend on the images
    that are tested beside it. An image among those that were measured is answered as it was
    there."""
    net = Resnet(3, 2, 5, 2, 3)
    x, y = net.init(generator("resnet"))
    images, tasks = vector(4 * 3 * 1024, "i").view(4, 3, 32, 32), torch.tensor([0, 1, 1, 0])
    known = net.moments(y, images)
    assert known is not None
    assert len(known) == 1 + 8 * 2 + 3
    mean, variance = known[0]
    h = F.conv2d(images, next(cut(y[:54], [(2, 3, 3, 3)])), padding=1)
    torch.testing.assert_close(mean, h.mean((0, 2, 3)))
    torch.testing.assert_close(variance, (h - mean[:, None, None]).square().mean((0, 2, 3)))
    own = net.logits(x, y, images, tasks)
    torch.testing.assert_close(net.logits(x, y, images, tasks, known), own, rtol=1e-9, atol=1e-9)
    alone = net.logits(x, y, images[1:2], tasks[1:2], known)
    torch.testing.assert_close(alone[0], own[1], rtol=1e-9, atol=1e-9)
    assert not torch.allclose(net.logits(x, y, images[:2], tasks[:2])[1], own[1], atol=1e-3)


@pytest.mark.parametrize("embedding", [0, 3])
def test_the_resnet_starts_as_torch_starts_its_layers(embedding: int) -> None:
    """Weights, biases and FiLM uniform to 1 / sqrt(inputs), scales 1, shifts 0."""
    net, rng = Resnet(3, 2, 5, 2, embedding), generator("start")
    x, y = net.init(generator("start"))
    parts: list[Tensor] = [torch.zeros(0)]
    if embedding:
        parts += [torch.randn(2, 3, generator=rng, dtype=torch.float64)]
        parts += [uniform(rng, shape, 1 / math.sqrt(3)) for shape in ((32, 3), (32,))]
    torch.testing.assert_close(x, torch.cat([p.flatten().double() for p in parts]))
    parts = []
    for shape, kind in Shapes(3, 2, 10).parts:
        if kind in ("scale", "shift"):
            parts.append(torch.full(shape, float(kind == "scale")))
            continue
        inputs = math.prod(shape[1:]) if kind == "kernel" else 16
        parts.append(uniform(rng, shape, 1 / math.sqrt(inputs)))
    torch.testing.assert_close(y, torch.cat([p.flatten().double() for p in parts]))


# the four blocks of few-shot learning


@pytest.mark.parametrize("pooled", [True, False])
def test_conv4_is_that_of_torchs_functions(pooled: bool) -> None:
    net = Conv4(2, 20, 3, pooled)
    theta = net.init(generator("conv4"))
    theta = theta + 0.1 * vector(len(theta), "theta")
    images = vector(5 * 2 * 400, "i").view(5, 2, 20, 20)
    shapes: list[tuple[int, ...]] = [(3, 2, 3, 3), (3,), (3,), *[(3, 3, 3, 3), (3,), (3,)] * 3]
    assert net.sizes == [math.prod(shape) for shape in shapes]
    theta.requires_grad_()
    parts, h = cut(theta, shapes), images
    for _ in range(4):
        h = F.conv2d(h, next(parts), None, 1 if pooled else 2, 1)
        h = F.relu(F.batch_norm(h, None, None, next(parts), next(parts), training=True))
        h = F.max_pool2d(h, 2, 2) if pooled else h
    expected = h.reshape(5, -1) if pooled else h.mean(3).mean(2)
    found = net.features(theta, images)
    assert found.shape == (5, net.width)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    (ours,) = torch.autograd.grad(found.pow(2).sum(), theta)
    (theirs,) = torch.autograd.grad(expected.pow(2).sum(), theta)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_conv4_has_these_features() -> None:
    """learn2learn's networks of the same name have as many for these images."""
    sides = {(84, 32): 32 * 5 * 5, (32, 64): 64 * 2 * 2, (16, 8): 8}
    assert all(Conv4(3, *size).width == width for size, width in sides.items())
    assert Conv4(1, 28, 64, pooled=False).width == 64


def test_conv4_starts_as_learn2learns() -> None:
    """Glorot's uniform weights, scales uniform on [0, 1], shifts 0."""
    net, rng, parts = Conv4(2, 16, 3), generator("start"), []
    for inputs in (2, 3, 3, 3):
        parts.append(uniform(rng, (27 * inputs,), math.sqrt(6 / (9 * inputs + 27))))
        parts.append(torch.rand(3, generator=rng, dtype=torch.float64))
        parts.append(torch.zeros(3, dtype=torch.float64))
    torch.testing.assert_close(net.init(generator("start")), torch.cat(parts), rtol=1e-14, atol=0)


def test_statistics_of_the_support_do_not_see_the_queries() -> None:
    """Mean and variance are those of the first 6 of 10 images, for all of them."""
    z, scale, shift = 0.02 * vector(480, "z").view(10, 3, 4, 4), vector(3, "s"), vector(3, "b")
    mean = z[:6].mean((0, 2, 3))[:, None, None]
    variance = (z[:6] - mean).square().mean((0, 2, 3))[:, None, None]
    expected = (z - mean) / torch.sqrt(variance + 1e-5)
    expected = expected * scale[:, None, None] + shift[:, None, None]
    torch.testing.assert_close(normalise(z, scale, shift, 6), expected, rtol=1e-9, atol=1e-10)
    own = normalise(z[:6], scale, shift, None)
    torch.testing.assert_close(own, expected[:6], rtol=1e-9, atol=1e-10)


def test_the_features_of_the_support_do_not_see_the_queries() -> None:
    net = Conv4(1, 16, 3)
    theta, images = net.init(generator("conv4")), vector(10 * 256, "i").view(10, 1, 16, 16)
    moved = torch.cat([images[:6], images[6:] + vector(4 * 256, "m").view(4, 1, 16, 16)])
    found, other = (net.features(theta, z, known=6) for z in (images, moved))
    assert torch.equal(found[:6], other[:6])
    assert not torch.allclose(found[6:], other[6:], atol=1e-2)
    torch.testing.assert_close(found[:6], net.features(theta, images[:6]), rtol=1e-9, atol=1e-9)


def test_parts_of_several_networks_are_those_of_each() -> None:
    """In one piece each, and differentiated twice."""
    thetas = torch.randn(3, 7, generator=generator("thetas"), dtype=torch.float64)
    parts = split_each(thetas, [4, 1, 2])
    for part, own in zip(parts, thetas.split([4, 1, 2], 1), strict=True):
        assert torch.equal(part, own)
        assert part.is_contiguous()

    def product(t: Tensor) -> Tensor:
        a, b, c = split_each(t, [4, 1, 2])
        return (a.prod(1) * b[:, 0] * c.sin().sum(1)).sum()

    thetas.requires_grad_()
    assert torch.autograd.gradcheck(product, thetas)
    assert torch.autograd.gradgradcheck(product, thetas)


@pytest.mark.parametrize("embedding", [0, 3])
def test_several_resnets_together_are_those_one_by_one(embedding: int) -> None:
    net, rng = Resnet(3, 2, 4, 5, embedding), generator("resnets")
    first = [net.init(rng) for _ in range(3)]
    xs, ys = (torch.stack(each) for each in zip(*first, strict=True))
    images = torch.randn(3, 6, 3, 16, 16, generator=rng, dtype=torch.float64)
    tasks = torch.randint(5, (3, 6), generator=rng)
    found = net.own_logits(xs, ys, torch.cat(list(images), 1), tasks)
    for z, *own in zip(found, xs, ys, images, tasks, strict=True):
        torch.testing.assert_close(z, net.logits(*own), rtol=1e-9, atol=1e-10)
