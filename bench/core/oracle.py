"""The only door from an algorithm to a task's derivatives, and the meter on that door."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from bench.core.task import Batch, Partials, Place, Set, Task, Wrt
from bench.core.together import differentiate, level, loss_at, one_number, partials_of

Product = Callable[[Tensor], Tensor]


class Asked(NamedTuple):
    """A gradient that is asked for together with others: what of (x, y; batch)."""

    what: Literal["f_x", "f_y", "g_x", "g_y"]
    x: Tensor
    y: Tensor
    batch: Batch

    @property
    def key(self) -> str:
        """The key under which it is counted."""
        return "grad_" + self.what[0]

    @property
    def wrt(self) -> Wrt:
        """Say in which variable the derivative is."""
        return "x" if self.what[2] == "x" else "y"


class Oracle:
    """Counted derivatives of one task.

    Names follow the papers: g_y is the partial gradient of the lower loss in y, g_yy its Hessian,
    g_xy its mixed derivative. `calls` counts evaluations, and `samples` weighs each by its batch
    size. A joint gradient at one point counts once, and so does a question under torch.func.vmap,
    whatever it stands for. The keys are value_f, value_g, grad_f, grad_g, hvp_g, jvp_g, lmo and
    project; the last two have no samples.

    A derivative in x has the shape of x, and one in y that of y, whatever these are. v has that
    of y.

    first_order: products with second derivatives are refused by a TypeError. What a task does not
    have (a lower loss, a linear minimisation oracle, a projection, a stream) is a TypeError too.
    """

    def __init__(self, task: Task, first_order: bool = False):
        self.task, self.first_order = task, first_order
        self.calls: Counter[str] = Counter()
        self.samples: Counter[str] = Counter()

    def f(self, x: Tensor, y: Tensor, xi: Batch) -> Tensor:
        """f(x, y; xi), a scalar, of which nothing can be differentiated."""
        self.count("value_f", xi)
        return self._value(Place(True, x, y, xi)).detach()

    def g(self, x: Tensor, y: Tensor, zeta: Batch) -> Tensor:
        """g(x, y; zeta), a scalar, of which nothing can be differentiated."""
        self.count("value_g", zeta)
        return self._value(Place(False, x, y, zeta)).detach()

    def grad_f(self, x: Tensor, y: Tensor, xi: Batch) -> tuple[Tensor, Tensor]:
        """(df/dx, df/dy), counted once."""
        return _both(self._grad("grad_f", x, y, xi, "xy"))

    def f_x(self, x: Tensor, y: Tensor, xi: Batch) -> Tensor:
        """df/dx, shaped as x."""
        return _first(self._grad("grad_f", x, y, xi, "x"))

    def f_y(self, x: Tensor, y: Tensor, xi: Batch) -> Tensor:
        """df/dy, shaped as y."""
        return _second(self._grad("grad_f", x, y, xi, "y"))

    def grad_g(self, x: Tensor, y: Tensor, zeta: Batch) -> tuple[Tensor, Tensor]:
        """(dg/dx, dg/dy), counted once."""
        return _both(self._grad("grad_g", x, y, zeta, "xy"))

    def g_x(self, x: Tensor, y: Tensor, zeta: Batch) -> Tensor:
        """dg/dx, shaped as x."""
        return _first(self._grad("grad_g", x, y, zeta, "x"))

    def g_y(self, x: Tensor, y: Tensor, zeta: Batch) -> Tensor:
        """dg/dy, shaped as y."""
        return _second(self._grad("grad_g", x, y, zeta, "y"))

    def together(self, *asked: Asked) -> list[Tensor]:
        """The gradients that are asked for, each counted by itself; in one pass where the task
        can."""
        for a in asked:
            self.count(a.key, a.batch)
        return self.uncounted(asked)

    def descend_g(self, x: Tensor, y: Tensor, zeta: Batch, lr: float) -> Tensor:
        """y - lr g_y(x, y; zeta), counted as g_y; in one pass over y where the task can."""
        return self._descend("grad_g", x, y, zeta, lr)

    def descend_penalised(
        self, x: Tensor, y: Tensor, xi: Batch, zeta: Batch, lr: float, lam: float
    ) -> Tensor:
        """y - lr (f_y(x, y; xi) + lam g_y(x, y; zeta)), counted as f_y and g_y; in one pass over y
        for each of the two where the task can."""
        moved = self._descend("grad_g", x, y, zeta, lr * lam)
        return self._descend("grad_f", x, y, xi, lr, moved)

    def descend_both(
        self,
        x: Tensor,
        y: Tensor,
        z: Tensor,
        xi: Batch,
        zeta: Batch,
        lr_y: float,
        lr_z: float,
        lam: float,
    ) -> tuple[Tensor, Tensor]:
        """(`descend_penalised` from y with lr_y, `descend_g` from z with lr_z), their three
        gradients in one pass where the task can."""
        if self.task.together is None:
            y = self.descend_penalised(x, y, xi, zeta, lr_y, lam)
            return y, self.descend_g(x, z, zeta, lr_z)
        f_y, g_y, g_z = self.together(
            Asked("f_y", x, y, xi), Asked("g_y", x, y, zeta), Asked("g_y", x, z, zeta)
        )
        y = y.sub(g_y, alpha=lr_y * lam).sub_(f_y, alpha=lr_y)
        return y, z.sub(g_z, alpha=lr_z)

    def products(self, x: Tensor, y: Tensor, zeta: Batch) -> "Products":
        """Jacobian- and Hessian-vector products at (x, y). g is linearised once; every product
        counts."""
        return Products(self, zeta, self._linearise(x, y, zeta)[1])

    def g_yy(self, x: Tensor, y: Tensor, zeta: Batch) -> Product:
        """v -> (d2g/dy2) v. g is linearised once; every product counts."""
        return Products(self, zeta, self._linearise(x, y, zeta)[1]).yy

    def g_xy(self, x: Tensor, y: Tensor, zeta: Batch) -> Product:
        """v -> d/dx <g_y(x, y), v>. g is linearised once; every product counts."""
        return Products(self, zeta, self._linearise(x, y, zeta)[1]).xy

    def linearise_g_y(self, x: Tensor, y: Tensor, zeta: Batch) -> "tuple[Tensor, Products]":
        """(g_y, its products) at (x, y): what an unrolled method keeps of an inner step."""
        gradient, product = self._linearise(x, y, zeta)
        self.count("grad_g", zeta)
        return gradient(), Products(self, zeta, product)

    def lmo(self, gradient: Tensor, accuracy: float = 0.0) -> Tensor:
        """A feasible point s with <gradient, s> within `accuracy` of the minimum.

        Raises TypeError if the task's set has no such oracle.
        """
        if self.task.feasible.lmo is None:
            raise TypeError("this task's feasible set has no linear minimisation oracle")
        self.calls["lmo"] += 1
        return self.task.feasible.lmo(gradient, accuracy)

    def project(self, x: Tensor) -> Tensor:
        """The closest point of the feasible set; x itself, uncounted, where all is feasible.

        Raises TypeError if the set is known by its linear minimisation oracle alone.
        """
        return self._closest(self.task.feasible, x)

    def project_y(self, y: Tensor) -> Tensor:
        """The closest point of the lower variable's set; y itself, uncounted, where all is
        feasible. Raises TypeError as `project` does."""
        return self._closest(self.task.lower_feasible, y)

    def start(self, y: Tensor, zeta: Batch = None) -> Tensor:
        """Where the inner loop begins: y itself (warm start) unless the task says otherwise.

        Most methods that solve the lower problem before each step on x ask here (AID, BSA, BSG-1,
        ITD, PZOBO, stocBiO and the black-box searches). All others, such as AmIGO, BOME, HOAG, SOBA
        and the penalty methods, go on from their last y and v on every task, even where each step
        has a lower problem of its own.

        zeta: the lower batch of the first inner step, on which a task may make the start depend.
        """
        return self.task.inner.start(y, zeta)

    def origin(self, x: Tensor, y: Tensor, zeta: Batch = None) -> tuple[Tensor, Product]:
        """(y_0, v -> d/dx <y_0(x), v>) for a method that learns where the inner loop begins.

        On a task without such a y_0(x) the loop begins where `start` says, and the derivative is
        zero.
        """
        origin = self.task.inner.origin
        if origin is None:
            return self.start(y, zeta), lambda v: torch.zeros_like(x)
        found = torch.func.vjp(lambda p: origin(p, y), x)
        return found[0], lambda v: found[1](v)[0]

    def carry(self, v: Tensor) -> Tensor:
        """What the last step found out about its lower problem: v, or zero where each step has a
        lower problem of its own."""
        return v if self.task.inner.carries else torch.zeros_like(v)

    def logits(self, x: Tensor, y: Tensor, samples: Batch) -> Tensor:
        """What the network of a stream answers for these samples. This counts as a value of g.

        Raises TypeError if the task is no stream.
        """
        if self.task.stream is None:
            raise TypeError("this task is no stream")
        self.count("value_g", samples)
        return self.task.stream.logits(x, y, samples).detach()

    def count(self, what: str, batch: Batch) -> None:
        """Count one evaluation of `what`, one of the keys above, on a batch.

        Every method of the oracle counts by itself. Only a wrapper of a library that differentiates
        the task's losses on its own has to call this, once for each derivative that the library
        takes.
        """
        self.calls[what] += 1
        self.samples[what] += self.task.data.count(batch)

    def uncounted(self, asked: Sequence[Asked]) -> list[Tensor]:
        """What `together` returns. Only a loop that goes past its end has to call this; it counts
        afterwards what it has used."""
        places = [Place(a.what[0] == "f", a.x, a.y, a.batch) for a in asked]
        found = self._differentiate(places, [a.wrt for a in asked])
        return [_first(each) if a.wrt == "x" else _second(each) for a, each in zip(asked, found)]

    @property
    def counts(self) -> tuple[Counter[str], Counter[str]]:
        """A copy of (calls, samples), which can be set: for loops that go past their end."""
        return self.calls.copy(), self.samples.copy()

    @counts.setter
    def counts(self, counted: tuple[Counter[str], Counter[str]]) -> None:
        self.calls, self.samples = (count.copy() for count in counted)

    def _closest(self, within: Set, point: Tensor) -> Tensor:
        if within.project is None:
            if within.lmo is not None:
                raise TypeError("this task's feasible set has no projection")
            return point
        self.calls["project"] += 1
        return within.project(point)

    def _value(self, place: Place) -> Tensor:
        return loss_at(self.task, place)

    def _grad(self, what: str, x: Tensor, y: Tensor, batch: Batch, wrt: Wrt) -> Partials:
        self.count(what, batch)
        return self._differentiate([Place(what == "grad_f", x, y, batch)], [wrt])[0]

    def _differentiate(self, places: Sequence[Place], wrts: Sequence[Wrt]) -> list[Partials]:
        return differentiate(self.task, places, wrts)

    def _descend(
        self, what: str, x: Tensor, y: Tensor, batch: Batch, lr: float, onto: Tensor | None = None
    ) -> Tensor:
        upper = what == "grad_f"
        closed = self.task.upper_derivatives if upper else self.task.lower_derivatives
        if closed is not None and closed.descend is not None:
            self.count(what, batch)
            return closed.descend(x, y, batch, lr, onto)
        gradient = _second(self._grad(what, x, y, batch, "y"))
        return torch.sub(y if onto is None else onto, gradient, alpha=lr)

    def _linearise(
        self, x: Tensor, y: Tensor, zeta: Batch
    ) -> tuple[Callable[[], Tensor], Callable[[Tensor, Wrt], Partials]]:
        """(gradient, product) at (x, y), as `Derivatives.linearise` returns them."""
        if self.first_order:
            raise TypeError("this method promises first order: it may take no second derivative")
        return self._linear(x, y, zeta)

    def _linear(
        self, x: Tensor, y: Tensor, zeta: Batch
    ) -> tuple[Callable[[], Tensor], Callable[[Tensor, Wrt], Partials]]:
        lower, closed = level(self.task, upper=False), self.task.lower_derivatives
        if closed is not None and closed.linearise is not None:
            return closed.linearise(x, y, zeta)
        with torch.enable_grad():
            place = Place(False, x, y, zeta).leaves()
            loss = one_number(lower(place.x, place.y, zeta), upper=False)
            gradient = _second(partials_of(loss, place, "y", create_graph=True))

        def product(v: Tensor, wrt: Wrt) -> Partials:
            return partials_of(gradient, place, wrt, v, retain_graph=True)

        return gradient.detach, product


class Products:
    """Counted products of the lower loss's second derivatives with v, which is shaped as y."""

    def __init__(self, oracle: Oracle, zeta: Batch, product: Callable[[Tensor, Wrt], Partials]):
        self.oracle, self.zeta, self.product = oracle, zeta, product

    def xy(self, v: Tensor) -> Tensor:
        """d/dx <g_y, v>, shaped as x."""
        self.oracle.count("jvp_g", self.zeta)
        return _first(self.product(v, "x"))

    def yy(self, v: Tensor) -> Tensor:
        """(d2g/dy2) v, shaped as y."""
        self.oracle.count("hvp_g", self.zeta)
        return _second(self.product(v, "y"))

    def both(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """(xy(v), yy(v)): counted as one of each, though they share their work."""
        self.oracle.count("jvp_g", self.zeta)
        self.oracle.count("hvp_g", self.zeta)
        return _both(self.product(v, "xy"))


def _first(partials: Partials) -> Tensor:
    assert partials[0] is not None
    return partials[0]


def _second(partials: Partials) -> Tensor:
    assert partials[1] is not None
    return partials[1]


def _both(partials: Partials) -> tuple[Tensor, Tensor]:
    return _first(partials), _second(partials)
