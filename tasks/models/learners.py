"""What an episode adapts: a linear head on a shared embedding, or a whole network of its own.

x is one vector: the network's parameters, then those of one head with its bias, [ways, width + 1].
A meta-batch is embedded once for each pair of x and images, and gradients in x are `Deferred`: a
step costs one pass through the network and one back, however many products an algorithm asks for.
All episodes' heads go through one matrix product each, and networks of their own through each layer
as groups of channels; the shared embedding is `torch.func.vmap` of a function of one episode.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap

from bench.core.deferred import Deferred
from bench.core.settings import BadSetting
from bench.core.task import Derivatives, Partials, Wrt
from tasks.common.episodes import Deck, Episodes, RowRange
from tasks.models.conv4 import Conv4
from tasks.models.linear import one_hot


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


def check_pairs(y: Tensor, episodes: Episodes) -> None:
    """Raise BadSetting unless y has a part for each of these episodes.

    A method that cuts its data into blocks has all of y beside some of the episodes, and its blocks
    are counted in images.
    """
    if len(y) != len(episodes.images):
        raise BadSetting(
            f"algorithm.blocks (or upper_blocks, or batches): a step's {len(y)} episodes "
            "cannot be cut, as each has a part of y; write algorithm.blocks=1 "
            "(algorithm.upper_blocks=null, algorithm.batches=drawn), or another method"
        )


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

    def features_of(x: Tensor, y: Tensor, episodes: Episodes) -> Tensor:
        """The features of the images that the loss is of. Raises BadSetting (`check_pairs`)."""
        check_pairs(y, episodes)
        z = embed(x, episodes.images) if episodes.features is None else episodes.features
        return z[:, slice(*episodes.rows)]

    def logits(x: Tensor, y: Tensor, episodes: Episodes) -> Tensor:
        return vmap(lambda w, Z: Z @ w.view(shape).T)(y, features_of(x, y, episodes))

    def losses(x: Tensor, y: Tensor, episodes: Episodes) -> Tensor:
        labels = deck.labels(episodes.rows)
        return vmap(lambda z: F.cross_entropy(z, labels))(logits(x, y, episodes))

    last: list[Embedded] = []

    def embed_once(x: Tensor, y: Tensor, episodes: Episodes) -> Embedded:
        """The episodes' features with their graph, computed anew when x or the images change.

        Raises BadSetting (`check_pairs`).
        """
        check_pairs(y, episodes)
        images = episodes.images
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

    # onehot(labels) of an episode's images, [n, ways], by their rows
    targets = {
        rows: one_hot(deck.labels(rows)[:, None], deck.ways).to(deck.dtype)
        for rows in (deck.support, deck.query)
    }

    def residuals(y: Tensor, features: Tensor, rows: RowRange) -> tuple[Tensor, Tensor, Tensor]:
        """(W, P, R), with W the heads [m, ways, width + 1] and of each image the probabilities P
        and what they are too large by, R = P - onehot, [m, n, ways]."""
        W = y.view(-1, *shape)
        P = torch.softmax(torch.bmm(features, W.mT), 2)
        return W, P, P - targets[rows]

    def upper_grad(x: Tensor, y: Tensor, xi: Episodes, wrt: Wrt) -> Partials:
        """R^T Z / n in the heads, and R W / n in the features Z, for the mean over the episodes."""
        e = embed_once(x, y, xi)
        Z = e.features[:, slice(*xi.rows)]
        W, _, R = residuals(y, Z, xi.rows)
        R = R / R.shape[:2].numel()
        in_y = torch.bmm(R.mT, Z).view(y.shape) if "y" in wrt else None
        return in_x(e, torch.bmm(R, W), xi.rows) if "x" in wrt else None, in_y

    def lower_grad(x: Tensor, y: Tensor, zeta: Episodes, wrt: Wrt) -> Partials:
        e = embed_once(x, y, zeta)
        Z = e.features[:, slice(*zeta.rows)]
        W, _, R = residuals(y, Z, zeta.rows)
        gradient = with_l2(W, R, Z).view(y.shape) if "y" in wrt else None
        in_Z = torch.bmm(R / R.shape[1], W) if "x" in wrt else None
        return None if in_Z is None else in_x(e, in_Z, zeta.rows), gradient

    def with_l2(W: Tensor, R: Tensor, Z: Tensor) -> Tensor:
        """2 l2 W + R^T Z / n of each episode, shaped as W."""
        return torch.baddbmm(W, R.mT, Z, beta=2 * l2, alpha=1 / R.shape[1])

    def lower_gradient(x: Tensor, y: Tensor, zeta: Episodes) -> Tensor:
        Z = features_of(x, y, zeta)
        W, _, R = residuals(y, Z, zeta.rows)
        return with_l2(W, R, Z).view(y.shape)

    def linearise(x: Tensor, y: Tensor, zeta: Episodes) -> Any:
        """The pair that `Derivatives.linearise` returns.

        With Z, W, P and R as in `residuals`, V the matrix of v, and S the derivative of R along
        Z V^T: (d2g/dy2) v = S^T Z / n + 2 l2 v, and the gradient of <g_y, v> in Z is
        (R V + S W) / n.
        """
        e = embed_once(x, y, zeta)
        Z = e.features[:, slice(*zeta.rows)]
        W, P, R = residuals(y, Z, zeta.rows)
        share = 1 / R.shape[1]

        def product(v: Tensor, wrt: Wrt) -> Partials:
            V = v.view(W.shape)
            PU = P * torch.bmm(Z, V.mT)
            S = torch.addcmul(PU, P, PU.sum(2, keepdim=True), value=-1)
            curvature = with_l2(V, S, Z).view(y.shape) if "y" in wrt else None
            if "x" not in wrt:
                return None, curvature
            in_Z = torch.baddbmm(torch.bmm(S, W), R, V, beta=share, alpha=share)
            return in_x(e, in_Z, zeta.rows), curvature

        return lambda: with_l2(W, R, Z).view(y.shape), product

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

    def together(y: Tensor, images: Tensor, rows: RowRange) -> Tensor:
        """The logits of episodes that go through the network together."""
        first = 0 if known else rows[0]  # the support goes along where its statistics are used
        z = net.own_features(y[:, :body], images[:, first : rows[1]], known)[:, rows[0] - first :]
        return torch.bmm(F.pad(z, (0, 1), value=1.0), y[:, body:].view(-1, *shape).mT)

    def logits(x: Tensor, y: Tensor, episodes: Episodes) -> Tensor:
        check_pairs(y, episodes)
        size = at_once or len(y)
        parts = zip(y.split(size), episodes.images.split(size))
        return torch.cat([together(own, images, episodes.rows) for own, images in parts])

    def losses(x: Tensor, y: Tensor, episodes: Episodes) -> Tensor:
        z, labels = logits(x, y, episodes), deck.labels(episodes.rows)
        each = F.cross_entropy(z.flatten(0, 1), labels.repeat(len(z)), reduction="none")
        means = each.view(len(z), -1).mean(1)
        return means / len(labels) if divide else means

    def lower_gradient(x: Tensor, y: Tensor, zeta: Episodes) -> Tensor:
        with torch.enable_grad():
            leaf = y.detach().requires_grad_()
            return torch.autograd.grad(losses(x, leaf, zeta).sum(), leaf)[0] + 2 * l2 * y

    size = body + shape[0] * shape[1]
    return Learner(losses, lower_gradient, logits, lambda x, y: x.expand(y.shape), size)
