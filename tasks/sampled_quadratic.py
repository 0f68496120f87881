"""A quadratic bilevel problem that is a finite sum on both levels, as benchopt/benchmark_bilevel
simulates it, with a lower level of chosen condition number and a known solution:

    g(x, y) = mean of (a . y)^2 / 2 + (e . x)^2 / 2 + (u . x)(w . y) + c . y + d . x over n rows,

and f is of the same form, with m rows of its own. The means H, E and C of a a^T, e e^T and u w^T
have known spectra: H has eigenvalues spaced evenly in logarithm from mu to 1, E has 0 and then the
same from mu to 1, and C has singular values so spaced from mu to `cross`. All of c and d are
normal.

benchmark_bilevel draws the rows so that these spectra are met on average; here the rows are
whitened, so that they are met exactly. Its w span all of y's directions, while those here span as
many as the smaller of x and y has, so that the mixed part varies less from row to row. x starts at
-2 and y at 0, as there.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from bench.core.draw import generator
from bench.core.settings import BadSetting, Count, Fraction, Positive
from bench.core.task import Batch, Context, Derivatives, Partials, Report, Task, Wrt
from tasks.common.rows import row_batches, row_data

TRIES = 20  # draws until the problem has a solution; benchmark_bilevel has as many


@dataclass(frozen=True)
class Whole:
    """The mean of all rows: (y H y + x E x) / 2 + x C y + c . y + d . x, with H [q, q], E [p, p],
    C [p, q], c [q] and d [p]."""

    H: Tensor
    E: Tensor
    C: Tensor
    c: Tensor
    d: Tensor

    def value(self, x: Tensor, y: Tensor) -> Tensor:
        """Give the loss at (x, y), a scalar."""
        squares = 0.5 * (y @ (self.H @ y) + x @ (self.E @ x))
        return squares + x @ (self.C @ y) + self.c @ y + self.d @ x

    def grad_x(self, x: Tensor, y: Tensor) -> Tensor:
        """Give the gradient in x, shaped as x."""
        return self.E @ x + self.C @ y + self.d

    def grad_y(self, x: Tensor, y: Tensor) -> Tensor:
        """Give the gradient in y, shaped as y."""
        return self.H @ y + self.C.T @ x + self.c

    def mixed(self, v: Tensor) -> Tensor:
        """d/dx <grad_y, v>, shaped as x."""
        return self.C @ v

    def curved(self, v: Tensor) -> Tensor:
        """d/dy <grad_y, v>, shaped as y."""
        return self.H @ v


@dataclass(frozen=True)
class Sampled:
    """Rows: a [n, q], e [n, p], u [n, p], w [n, q], c [n, q] and d [n, p]."""

    a: Tensor
    e: Tensor
    u: Tensor
    w: Tensor
    c: Tensor
    d: Tensor

    def __len__(self) -> int:
        return len(self.a)

    def whole(self) -> Whole:
        """The mean of all rows."""
        n = len(self)
        H, E, C = self.a.T @ self.a / n, self.e.T @ self.e / n, self.u.T @ self.w / n
        return Whole(H, E, C, self.c.mean(0), self.d.mean(0))

    def some(self, i: Tensor) -> "Sampled":
        """The rows of these numbers."""
        return Sampled(*(t[i] for t in vars(self).values()))

    def to(self, context: Context) -> "Sampled":
        """The same rows where the context has its tensors."""
        return Sampled(*(t.to(context.device, context.dtype) for t in vars(self).values()))

    def value(self, x: Tensor, y: Tensor) -> Tensor:
        """The mean of these rows, a scalar."""
        squares = 0.5 * ((self.a @ y).square() + (self.e @ x).square())
        return (squares + (self.u @ x) * (self.w @ y) + self.c @ y + self.d @ x).mean()

    def grad_x(self, x: Tensor, y: Tensor) -> Tensor:
        """Give the gradient in x, shaped as x."""
        sums = self.e.T @ (self.e @ x) + self.u.T @ (self.w @ y)
        return sums / len(self) + self.d.mean(0)

    def grad_y(self, x: Tensor, y: Tensor) -> Tensor:
        """Give the gradient in y, shaped as y."""
        sums = self.a.T @ (self.a @ y) + self.w.T @ (self.u @ x)
        return sums / len(self) + self.c.mean(0)

    def mixed(self, v: Tensor) -> Tensor:
        """d/dx <grad_y, v>, shaped as x."""
        return self.u.T @ (self.w @ v) / len(self)

    def curved(self, v: Tensor) -> Tensor:
        """d/dy <grad_y, v>, shaped as y."""
        return self.a.T @ (self.a @ v) / len(self)


def sampled_quadratic(
    context: Context,
    p: Count = 10,
    q: Count = 100,
    n: Count = 1024,
    m: Count = 1024,
    mu: Fraction = 0.1,
    cross: Positive = 0.1,
    instance: int = 0,
) -> Task:
    """x in R^p, y in R^q; n rows of g and m of f.

    mu: the least eigenvalue of the lower level, whose largest is 1, so that its condition number is
    1 / mu. cross: the singular values of both mixed parts lie between mu and cross. instance: names
    the data, which the run's seed does not change.

    Raises BadSetting for mu = 0, for fewer rows than variables, and where none of 20 draws gives a
    problem whose value function is strictly convex.
    """
    if mu == 0:
        raise BadSetting("task.mu=0: write a number above 0")
    if min(n, m) < max(p, q):
        raise BadSetting(f"task.n={n}, task.m={m}: write at least {max(p, q)}, p and q")
    below, above, curvature = _solvable(p, q, n, m, mu, cross, instance)
    g_exact, f_exact = (
        Whole(*(t.to(context.device) for t in vars(rows.whole()).values()))
        for rows in (below, above)
    )
    below, above = below.to(context), above.to(context)
    g_whole, f_whole = below.whole(), above.whole()
    (rows_g, draw_g), (rows_f, draw_f) = (row_batches(k, context.device) for k in (n, m))

    def lower_of(i: Batch) -> Whole | Sampled:
        return g_whole if i is rows_g else below.some(i)

    def upper_of(j: Batch) -> Whole | Sampled:
        return f_whole if j is rows_f else above.some(j)

    def upper(x: Tensor, y: Tensor, j: Batch) -> Tensor:
        return upper_of(j).value(x, y)

    def lower(x: Tensor, y: Tensor, i: Batch) -> Tensor:
        return lower_of(i).value(x, y)

    def upper_grad(x: Tensor, y: Tensor, j: Batch, wrt: Wrt) -> Partials:
        return _partials(upper_of(j), x, y, wrt)

    def lower_grad(x: Tensor, y: Tensor, i: Batch, wrt: Wrt) -> Partials:
        return _partials(lower_of(i), x, y, wrt)

    def linearise(x: Tensor, y: Tensor, i: Batch) -> Any:
        rows = lower_of(i)

        def gradient() -> Tensor:
            return rows.grad_y(x, y)

        def product(v: Tensor, wrt: Wrt) -> Partials:
            return (
                rows.mixed(v) if "x" in wrt else None,
                rows.curved(v) if "y" in wrt else None,
            )

        return gradient, product

    def solution(x: Tensor) -> Tensor:
        return -torch.linalg.solve(g_exact.H, g_exact.C.T @ x + g_exact.c)

    def hypergradient(x: Tensor) -> Tensor:
        y = solution(x)
        v = torch.linalg.solve(g_exact.H, f_exact.grad_y(x, y))
        return f_exact.grad_x(x, y) - g_exact.C @ v

    # the hypergradient is affine: its value at 0 and its slope give the point where it is 0
    best = -torch.linalg.solve(curvature.to(context.device), hypergradient(f_exact.d * 0))

    def evaluate(x: Tensor, y: Tensor, step: int) -> dict[str, Tensor]:
        x, y = x.double(), y.double()
        gradient = hypergradient(x)
        return {
            "objective": f_exact.value(x, solution(x)),
            "hypergradient_norm": gradient.norm(),
            "hypergradient_sq": gradient.square().sum(),
            "lower_error": (y - solution(x)).norm(),
            "distance": (x - best).norm(),
        }

    def init(rng: Generator) -> tuple[Tensor, Tensor]:
        return below.e.new_full((p,), -2.0), below.a.new_zeros(q)

    return Task(
        upper=upper,
        lower=lower,
        init=init,
        evaluate=evaluate,
        metric="hypergradient_sq",
        data=row_data(draw_f, draw_g),
        upper_derivatives=Derivatives(upper_grad),
        lower_derivatives=Derivatives(lower_grad, linearise),
        report=Report(optimum={"x": best, "y": solution(best), "curvature": curvature}),
    )


def _partials(rows: Whole | Sampled, x: Tensor, y: Tensor, wrt: Wrt) -> Partials:
    return (
        rows.grad_x(x, y) if "x" in wrt else None,
        rows.grad_y(x, y) if "y" in wrt else None,
    )


def _solvable(
    p: int, q: int, n: int, m: int, mu: float, cross: float, instance: int
) -> tuple[Sampled, Sampled, Tensor]:
    """Rows of g and of f, and the Hessian [p, p] of the value function, which is positive."""
    for k in range(TRIES):
        rng = generator("sampled_quadratic", p, q, n, m, instance, k)
        below, above = (_rows(rng, rows, p, q, mu, cross) for rows in (n, m))
        g, f = below.whole(), above.whole()
        J = -torch.linalg.solve(g.H, g.C.T)  # dy*/dx
        turned = f.C @ J
        curvature = J.T @ f.H @ J + f.E + turned + turned.T
        if float(torch.linalg.eigvalsh(curvature)[0]) > 1e-12:
            return below, above, curvature
    raise BadSetting(f"task.cross={cross}: no draw has a solution; write a smaller number")


def _rows(rng: Generator, n: int, p: int, q: int, mu: float, cross: float) -> Sampled:
    """Rows whose means H, E and C have the spectra that the problem says, in random bases."""
    half = _spaced(mu, 1.0, q).sqrt()
    half_E = torch.cat([torch.zeros(1).double(), _spaced(mu, 1.0, p - 1).sqrt()])
    a = (_white(rng, n, q) * half) @ _basis(rng, q).T
    e = (_white(rng, n, p) * half_E) @ _basis(rng, p).T
    r = min(p, q)
    shared = _white(rng, n, r)
    u = (shared * _spaced(mu, cross, r)) @ _basis(rng, p)[:, :r].T
    w = shared @ _basis(rng, q)[:, :r].T
    return Sampled(a, e, u, w, _normal(rng, n, q), _normal(rng, n, p))


def _spaced(low: float, high: float, count: int) -> Tensor:
    """Numbers [count] spaced evenly in logarithm."""
    return torch.linspace(math.log(low), math.log(high), count, dtype=torch.float64).exp()


def _normal(rng: Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def _white(rng: Generator, n: int, k: int) -> Tensor:
    """Rows [n, k] whose mean of r r^T is the identity exactly."""
    return torch.linalg.qr(_normal(rng, n, k)).Q * n**0.5


def _basis(rng: Generator, k: int) -> Tensor:
    """A random orthogonal matrix [k, k]."""
    return torch.linalg.qr(_normal(rng, k, k)).Q
