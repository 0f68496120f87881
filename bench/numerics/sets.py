"""Feasible sets: each is known by its projection, its linear minimisation oracle, or both.

lmo(gradient, accuracy) is a point s of the set with <gradient, s> within `accuracy` of the minimum.
Only the nuclear-norm ball uses the accuracy, because an exact answer is dear there; the answers of
the others are exact. Where a coordinate of the gradient is not a number there is no minimum, and no
coordinate of s is a number either, so that the run is seen to have diverged.
"""

import math
from numbers import Real

import numpy as np
import torch
from torch import Tensor

from bench.core.settings import BadSetting
from bench.core.task import Set

LOST = 1e-3  # of a simplex's total: the most that rounding of its coordinates' sums may take


def box(low: float, high: float) -> Set:
    """Points whose every coordinate lies in [low, high]; without a linear minimisation oracle where
    an end is infinite. Raises BadSetting if there are no such points."""
    check_number("box: low", low)
    check_number("box: high", high)
    if not low <= high:
        raise BadSetting(f"box: low={low} and high={high}: write low <= high")

    def lmo(gradient: Tensor, accuracy: float = 0.0) -> Tensor:
        vertex = torch.full_like(gradient, high).masked_fill(gradient > 0, low)
        return unless_nan(vertex, gradient)

    bounded = math.isfinite(low) and math.isfinite(high)
    return Set(lambda u: u.clamp(low, high), lmo if bounded else None)


def l2_ball(radius: float) -> Set:
    """Points with |u|_2 <= radius, of any shape. Raises BadSetting if there is no such radius."""
    check_size("l2_ball: radius", radius)

    def project(u: Tensor) -> Tensor:
        return u * (radius / u.norm().clamp(min=max(radius, torch.finfo(u.dtype).tiny)))

    def lmo(gradient: Tensor, accuracy: float = 0.0) -> Tensor:
        tiny = torch.finfo(gradient.dtype).tiny
        direction = gradient / gradient.abs().max().clamp(min=tiny)  # whose square is no underflow
        return -radius * direction / direction.norm().clamp(min=tiny)

    return Set(project, lmo)


def simplex(total: float = 1.0) -> Set:
    """Points with non-negative coordinates whose sum is `total`, of any shape. Raises BadSetting
    if there is no such total."""
    check_size("simplex: total", total)

    def lmo(gradient: Tensor, accuracy: float = 0.0) -> Tensor:
        vertex = torch.zeros_like(gradient).flatten()
        vertex[gradient.argmin()] = total
        return unless_nan(vertex.view_as(gradient), gradient)

    return Set(lambda u: onto_simplex(u.flatten(), total).view_as(u), lmo)


def l1_ball(radius: float) -> Set:
    """Points with |u|_1 <= radius, of any shape. Raises BadSetting if there is no such radius."""
    check_size("l1_ball: radius", radius)

    def project(u: Tensor) -> Tensor:
        if u.abs().sum() <= radius:
            return u
        return u.sign() * onto_simplex(u.abs().flatten(), radius).view_as(u)

    def lmo(gradient: Tensor, accuracy: float = 0.0) -> Tensor:
        vertex, flat = torch.zeros_like(gradient).flatten(), gradient.flatten()
        best = flat.abs().argmax()
        vertex[best] = -radius if flat[best] > 0 else radius
        return unless_nan(vertex.view_as(gradient), gradient)

    return Set(project, lmo)


def nuclear_ball(radius: float) -> Set:
    """Matrices whose singular values sum to at most `radius`.

    The oracle needs only the largest singular pair; the projection needs all of them. Raises
    BadSetting if there is no such radius.
    """
    check_size("nuclear_ball: radius", radius)
    from bench.numerics.singular import top_singular  # slow to import, which is not for a step

    def project(u: Tensor) -> Tensor:
        check_matrix(u)
        if not u.isfinite().all():  # it has no singular values
            return torch.full_like(u, math.nan)
        left, values, right = torch.linalg.svd(u, full_matrices=False)
        if values.sum() <= radius:
            return u
        return left @ (onto_simplex(values, radius)[:, None] * right)

    def lmo(gradient: Tensor, accuracy: float = 0.0) -> Tensor:
        check_matrix(gradient)
        if not gradient.isfinite().all():  # it has no singular vectors
            return torch.full_like(gradient, math.nan)
        if radius == 0:
            return torch.zeros_like(gradient)
        left, _, right = top_singular(gradient, accuracy / radius)
        return -radius * left[:, None] * right

    return Set(project, lmo)


def spanning_trees(nodes: int, edges: Tensor) -> Set:
    """The convex hull of the spanning trees of a connected graph, as points of R^edges.

    edges: [m, 2] int64, the two ends of each edge. A vertex of the hull is a tree: 1 for its edges,
    0 for the others. Projecting is intractable; the oracle is a minimum spanning tree. Raises
    BadSetting if the graph has no spanning tree, a loop, or an edge that is there twice or ends at
    no node.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import minimum_spanning_tree

    ends = torch.as_tensor(edges).cpu().numpy()
    if ends.ndim != 2 or ends.shape[1] != 2 or ends.dtype.kind not in "iu":
        raise BadSetting("spanning_trees: edges: write two whole numbers for each edge")
    if not ends.size or ends.min() < 0 or ends.max() >= nodes:
        raise BadSetting(f"spanning_trees: edges: write two numbers below nodes={nodes} for each")
    a, b = ends.min(1), ends.max(1)
    number = {pair: k for k, pair in enumerate(zip(a.tolist(), b.tolist()))}
    if len(number) != len(ends) or (a == b).any():
        raise BadSetting("spanning_trees: edges: there is a loop or an edge that is there twice")

    def lmo(gradient: Tensor, accuracy: float = 0.0) -> Tensor:
        weights = gradient.detach().double().cpu().numpy()
        if np.isnan(weights).any():  # there is no lightest tree
            return torch.full_like(gradient, math.nan)
        # A tree depends on the order of the weights alone. The last bits of a gradient differ
        # between processors, as MKL's exp does, so that edges which weigh the same but for these
        # are taken in the order of their numbers. A rank is never 0, which is no edge to scipy.
        size = np.abs(weights).max() or 1.0
        order = np.round(weights / size, 12).argsort(kind="stable")
        ranks = np.empty_like(weights)
        ranks[order] = np.arange(1.0, len(weights) + 1)
        tree = minimum_spanning_tree(coo_array((ranks, (a, b)), shape=(nodes, nodes)))
        rows, columns = tree.nonzero()
        lo, hi = np.minimum(rows, columns), np.maximum(rows, columns)
        vertex = torch.zeros_like(gradient)
        vertex[[number[pair] for pair in zip(lo.tolist(), hi.tolist())]] = 1.0
        return vertex

    if int(lmo(torch.zeros(len(ends))).sum()) != nodes - 1:
        raise BadSetting(
            "spanning_trees: edges: the graph is not connected: it has no spanning tree"
        )
    return Set(lmo=lmo)


def unless_nan(vertex: Tensor, gradient: Tensor) -> Tensor:
    """The vertex; not a number in each coordinate where one of the gradient is none."""
    return torch.where(gradient.isnan().any(), math.nan, vertex)


def check_number(what: str, value: object) -> None:
    """Raise BadSetting unless a value is a single number."""
    if not isinstance(value, Real) or isinstance(value, bool):
        raise BadSetting(f"{what}={value!r:.40}: write a number, which is for all coordinates")


def check_matrix(u: Tensor) -> None:
    """Raise BadSetting unless u is a matrix."""
    if u.ndim != 2:
        raise BadSetting(f"nuclear_ball: is a set of matrices, and there is a {u.ndim}-d tensor")


def check_size(what: str, size: float) -> None:
    """Raise BadSetting unless a set's size is a finite number that is not negative."""
    check_number(what, size)
    if not (size >= 0 and math.isfinite(size)):
        raise BadSetting(f"{what}={size}: write a finite number, 0 or more")


def onto_simplex(u: Tensor, total: float) -> Tensor:
    """The closest point with non-negative coordinates that sum to `total` (Duchi et al., 2008).

    Where u is so far away that its sums would lose the total, u is first moved along (1, ..., 1)
    until its largest coordinate is 0, which moves no closest point.
    """
    sorted_u = u.sort(descending=True).values
    if len(u) * torch.finfo(u.dtype).eps * sorted_u[0].abs() > LOST * total:
        u, sorted_u = u - sorted_u[0], sorted_u - sorted_u[0]
    shift = (sorted_u.cumsum(0) - total) / torch.arange(1, len(u) + 1).to(u)
    last = max(int((sorted_u > shift).sum()) - 1, 0)  # a total of 0 leaves no coordinate above
    return (u - shift[last]).clamp(min=0)
