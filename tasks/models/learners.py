"""What an episode adapts: a linear head on a shared embedding, or a whole network of its own.

x is one vector: the network's parameters, then those of one head with its bias, [ways, width + 1].
A meta-batch is embedded once for each pair of x and images, and gradients in x are `Deferred`: a
step costs one pass through the network and one back, however many products an algorithm asks for.
Everything else is `torch.func.vmap` of a function of one episode.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, vmap

from bench.core.deferred import Deferred
from bench.core.task import Derivatives, Partials, Wrt
from tasks.common.episodes import Deck, Episodes, RowRange
from tasks.models.conv4 import Conv4
from tasks.models.linear import add_at_labels, residual, residual_change


class Learner(NamedTuple):
    """What a few-shot task is made of: functions of x, of the stack y [m, size] of what the
    episodes adapt, and of m episodes, whose `rows` say which images are meant.

    losses: the loss of each episode, [m]. lower_gradient: g_y. logits [m, images, ways].
    origin(x, y): y_0, which x contains, shaped as y. size: the length of y_i. embed(x, episodes):
    the episodes with their features, if x decides these.
    """

    losses: Callable[[Tensor, Tensor, Episodes], Tensor]
    lower_gradient: Callable[[Tensor, Tensor, Episodes], Tensor]
    logits: Callable[[Tensor, Tensor, Episodes], Tensor]
    origin: Callable[[Tensor, Tensor], Tensor]
    size: int
    embed: Callable[[Tensor, Episodes], Episodes] = lambda x, episodes: episodes
    upper_derivatives: Derivatives | None = None
    lower_derivatives: Derivatives | None = None


class Embedded(NamedTuple):
    """Images embedded by x. pull: from a gradient in the features to the gradient in x."""

    x: Tensor
    images: Tensor
    features: Tensor
    pull: Callable[[Tensor], Tensor]


def heads(net: Conv4, deck: Deck, l2: float, known: int | None, at_once: int | None) -> Learner:
    """The learner whose y_i is a head, with l2 |y_i|^2 in g.

    known: how many images the statistics are of, as in Conv4.features. at_once: how many episodes
    go through the network together; None: all.
    """
    body, shape = sum(net.sizes), (deck.ways, net.width + 1)

    def embed(x: Tensor, images: Tensor) -> Tensor:
        """The features [m, n, width + 1], of which the last is a 1 for the bias."""

        def one(images: Tensor) -> Tensor:
            return F.pad(net.features(x[:body], images, known), (0, 1), value=1.0)

        return vmap(one, chunk_size=at_once)(images)

    def features_of(x: Tensor, episodes: Episodes) -> Tensor:
        """The features of the images that the loss is of."""
        z = embed(x, episodes.images) if episodes.features is None else episodes.features
        return z[:, slice(*episodes.rows)]

    def logits(x: Tensor, y: Tensor, episodes: Episodes) -> Tensor:
        return vmap(lambda w, Z: Z @ w.view(shape).T)(y, features_of(x, episodes))

    def losses(x: Tensor, y: Tensor, episodes: Episodes) -> Tensor:
        labels = deck.labels(episodes.rows)
        return vmap(lambda z: F.cross_entropy(z, labels))(logits(x, y, episodes))

    last: list[Embedded] = []

    def embed_once(x: Tensor, images: Tensor) -> Embedded:
        """The images' features with their graph, computed anew when x or the images change."""
        if not last or last[0].x is not x or last[0].images is not images:
            last.clear()  # so that memory holds one graph at a time
            with torch.enable_grad():
                leaf = x.detach().requires_grad_()
                features = embed(leaf, images)

            def pull(u: Tensor) -> Tensor:
                return torch.autograd.grad(features, leaf, u, retain_graph=True)[0]

            last.append(Embedded(x, images, features.detach(), pull))
        return last[0]

    def in_x(e: Embedded, u: Tensor, rows: RowRange) -> Tensor:
        """The gradient in x, from the gradient u in the features of these rows."""
        return Deferred(e.pull, F.pad(u, (0, 0, rows[0], e.features.shape[1] - rows[1])), e.x)

    def gradients(y: Tensor, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients of each episode's loss in its features Z and weights W: R W and R^T Z with
        R = (softmax(Z W^T) - onehot) / n."""

        def one(w: Tensor, Z: Tensor) -> tuple[Tensor, Tensor]:
            W = w.view(shape)
            R = residual(Z @ W.T, labels) / len(labels)
            return R @ W, (R.T @ Z).flatten()

        return vmap(one)(y, features)

    def upper_grad(x: Tensor, y: Tensor, xi: Episodes, wrt: Wrt) -> Partials:
        e = embed_once(x, xi.images)
        u, w = gradients(y, e.features[:, slice(*xi.rows)], deck.labels(xi.rows))
        m = len(y)
        return in_x(e, u / m, xi.rows) if "x" in wrt else None, w / m if "y" in wrt else None

    def lower_grad(x: Tensor, y: Tensor, zeta: Episodes, wrt: Wrt) -> Partials:
        e = embed_once(x, zeta.images)
        u, w = gradients(y, e.features[:, slice(*zeta.rows)], deck.labels(zeta.rows))
        gradient = w + 2 * l2 * y if "y" in wrt else None
        return in_x(e, u, zeta.rows) if "x" in wrt else None, gradient

    def lower_gradient(x: Tensor, y: Tensor, zeta: Episodes) -> Tensor:
        return gradients(y, features_of(x, zeta), deck.labels(zeta.rows))[1] + 2 * l2 * y

    def linearise(x: Tensor, y: Tensor, zeta: Episodes) -> Any:
        """The pair that `Derivatives.linearise` returns.

        With Z, W and R as in `gradients`, V the matrix of v, and S the derivative of R along Z V^T:
        (d2g/dy2) v = S^T Z + 2 l2 v, and the gradient of <g_y, v> in Z is R V + S W.
        """
        e, labels = embed_once(x, zeta.images), deck.labels(zeta.rows)
        features = e.features[:, slice(*zeta.rows)]

        def one(w: Tensor, v: Tensor, Z: Tensor) -> tuple[Tensor, Tensor]:
            W, V, n = w.view(shape), v.view(shape), len(labels)
            P = torch.softmax(Z @ W.T, 1)
            R = add_at_labels(P, labels[:, None], -1) / n
            S = residual_change(P, Z @ V.T) / n
            return R @ V + S @ W, (S.T @ Z).flatten() + 2 * l2 * v

        def product(v: Tensor, wrt: Wrt) -> Partials:
            u, curvature = vmap(one)(y, v, features)
            mixed = in_x(e, u, zeta.rows) if "x" in wrt else None
            return mixed, curvature if "y" in wrt else None

        gradient = lower_gradient(x, y, zeta._replace(features=e.features))
        return lambda: gradient, product

    return Learner(
        losses,
        lower_gradient,
        logits,
        lambda x, y: x[body:].expand(y.shape),
        shape[0] * shape[1],
        lambda x, episodes: episodes._replace(features=embed(x, episodes.images)),
        Derivatives(upper_grad),
        Derivatives(lower_grad, linearise),
    )


def networks(
    net: Conv4, deck: Deck, l2: float, known: int | None, at_once: int | None, divide: bool
) -> Learner:
    """The learner whose y_i is a network with its head, packed as x is. No loss depends on x.

    known, at_once: as for `heads`. divide: losses are divided once more by the number of images.
    """
    body, shape = sum(net.sizes), (deck.ways, net.width + 1)

    def own_logits(y: Tensor, images: Tensor, rows: RowRange) -> Tensor:
        """The logits of one episode's images in these rows."""
        first = 0 if known else rows[0]  # the support goes along where its statistics are used
        z = net.features(y[:body], images[first : rows[1]], known)[rows[0] - first :]
        return F.pad(z, (0, 1), value=1.0) @ y[body:].view(shape).T

    def logits(x: Tensor, y: Tensor, episodes: Episodes) -> Tensor:
        own = partial(own_logits, rows=episodes.rows)
        return vmap(own, chunk_size=at_once)(y, episodes.images)

    def losses(x: Tensor, y: Tensor, episodes: Episodes) -> Tensor:
        labels = deck.labels(episodes.rows)
        found = vmap(lambda z: F.cross_entropy(z, labels))(logits(x, y, episodes))
        return found / len(labels) if divide else found

    def lower_gradient(x: Tensor, y: Tensor, zeta: Episodes) -> Tensor:
        return grad(lambda y: losses(x, y, zeta).sum())(y) + 2 * l2 * y

    size = body + shape[0] * shape[1]
    return Learner(losses, lower_gradient, logits, lambda x, y: x.expand(y.shape), size)
