"""Answers what lanes on a GPU ask together by CUDA graphs, as `replayed` does for one run."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from bench.compiled import joined
from bench.compiled.replayed import OFTEN, Joint, Loan, Replays, flat, paired
from bench.core.task import Partials, Place, Task, Wrt


class Lent(NamedTuple):
    """A gradient of one of several lanes, which asks for its products with the others'."""

    gradient: Tensor
    loan: Loan
    lane: int


class LaneReplays:
    """Answers what lanes have asked together, as `joined` has it done, from captures."""

    def __init__(self, task: Task, often: int = OFTEN):
        """often: see `Replays`."""
        self.task, self.replays = task, Replays(often)

    @property
    def off(self) -> tuple[float, float]:
        """Seconds, and those of the CPU, that captures took."""
        return self.replays.wall, self.replays.cpu

    def told(self) -> dict[str, Any]:
        """See `Replays.told`."""
        return self.replays.told()

    def begin_step(self, lane: int) -> None:
        """This lane begins a step; the first one's steps are counted."""
        self.replays.step += lane == 0

    def __call__(self, work: joined.Work, asked: Sequence[Any]) -> Sequence[Any]:
        """Give what work(task, asked) gives, by a replay where there is one."""
        if work is joined.values:
            return self.replays.answer("values", asked, lambda a: joined.values(self.task, a))
        if work is joined.gradients:
            return self._gradients(asked)
        return self._linearise(asked) if work is joined.linearise else self._products(asked)

    def _gradients(self, asked: Sequence[joined.Places]) -> list[list[Partials]]:
        def work(asked: Sequence[joined.Places]) -> list[Tensor]:
            found = joined.gradients(self.task, asked)
            return [part for own, (_, wrts) in zip(found, asked) for part in flat(own, wrts)]

        wrts = [wrt for _, own in asked for wrt in own]
        found = iter(paired(self.replays.answer("gradients", asked, work), wrts))
        return [[next(found) for _ in own] for _, own in asked]

    def _linearise(self, asked: Sequence[Place]) -> Sequence[joined.Linear | Lent]:
        def work(places: Sequence[Place]) -> Joint:
            linears = joined.linearise(self.task, places)

            def multiply(vs: Sequence[Tensor], wrts: Sequence[Wrt]) -> list[Partials]:
                return joined.products(self.task, list(zip(linears, vs, wrts)))

            return Joint([linear.gradient.detach() for linear in linears], multiply, linears)

        found = self.replays.linearise(asked, work)
        if found is None:
            return joined.linearise(self.task, asked)
        return [Lent(gradient, found[1], k) for k, gradient in enumerate(found[0])]

    def _products(self, asked: Sequence[tuple[Any, Tensor, Wrt]]) -> list[Partials]:
        """Give the products, by one launch if all lanes of a linearisation ask."""
        lents, vs, wrts = zip(*asked)
        loans = [lent.loan if isinstance(lent, Lent) else None for lent in lents]
        loan = loans[0]
        if loan is not None and loans == [loan] * len(loan.made.joint.gradients):
            return loan.multiply(vs, wrts)
        own = [
            lent.loan.made.joint.linears[lent.lane] if isinstance(lent, Lent) else lent
            for lent in lents
        ]
        return joined.products(self.task, list(zip(own, vs, wrts)))
