"""Takes the steps of several lanes whose task works out losses together (`Task.together`).

Each lane takes its steps by the algorithm's own code, in a thread of its own. Where all lanes wait
for an answer of their oracles, the answers are worked out in one pass, so that a GPU is given
little more work for several runs than for one.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from bench.compiled.batched import Lane, Slower
from bench.compiled.symbols import NoGraph
from bench.compiled.traced import largest_gap
from bench.core.loop import Standing, advance
from bench.core.oracle import Oracle
from bench.core.task import Batch, Partials, Place, Task, Wrt
from bench.core.together import differentiate, losses_at, partials_together

LOOKS = 6  # steps of lanes of which one must be a single run's
T = TypeVar("T")
in_a_lane: Callable[[], AbstractContextManager[Any]] = nullcontext  # is entered by each thread


class Linear(NamedTuple):
    """A gradient in y with its graph, and the leaves at which it is taken."""

    gradient: Tensor
    leaves: Place


Places = tuple[Sequence[Place], Sequence[Wrt]]  # the wrt of each place
Product = tuple[Linear, Tensor, Wrt]  # asks for the derivatives of <gradient, v>


def can_join(task: Task) -> bool:
    """Whether lanes of this task, or of such that differ in their seeds alone, may be joined."""
    closed = task.upper_derivatives or task.lower_derivatives
    return task.together is not None and closed is None


def values(task: Task, asked: Sequence[Place]) -> list[Tensor]:
    """The loss at each place."""
    return losses_at(task, asked)


def gradients(task: Task, asked: Sequence[Places]) -> list[list[Partials]]:
    """The partial gradients at each one's places."""
    places = [place for own, _ in asked for place in own]
    found = iter(differentiate(task, places, [wrt for _, wrts in asked for wrt in wrts]))
    return [[next(found) for _ in own] for own, _ in asked]


def linearise(task: Task, asked: Sequence[Place]) -> list[Linear]:
    """The gradient of g in y at each place."""
    with torch.enable_grad():
        leaves = [place.leaves() for place in asked]
        losses = losses_at(task, leaves)
        found = torch.autograd.grad(losses, [place.y for place in leaves], create_graph=True)
    return [Linear(gradient, place) for gradient, place in zip(found, leaves)]


def products(task: Task, asked: Sequence[Product]) -> list[Partials]:
    """The product of each."""
    linears, vs, wrts = zip(*asked)
    return partials_together(
        [linear.gradient for linear in linears],
        vs,
        [linear.leaves for linear in linears],
        wrts,
        retain_graph=True,
    )


Work = Callable[[Task, Any], Sequence[Any]]  # answers what several lanes have asked


class Answering(Protocol):
    """Answers what lanes have asked, with their task."""

    @property
    def off(self) -> tuple[float, float]:
        """Seconds, and those of the CPU, that are none of the steps'."""

    def begin_step(self, lane: int) -> None:
        """This lane begins a step."""

    def told(self) -> dict[str, Any] | None:
        """What `replayed.Replays.told` says; None where no answer is replayed."""

    def __call__(self, work: Work, asked: Sequence[Any]) -> Sequence[Any]: ...


class ByCode(NamedTuple):
    """Answers by the task's own code. task: any of the lanes', as their losses are the same."""

    task: Task
    off: tuple[float, float] = (0.0, 0.0)

    def begin_step(self, lane: int) -> None:
        """Nothing is kept from step to step."""

    def told(self) -> None:
        """No answer is replayed."""

    def __call__(self, work: Work, asked: Sequence[Any]) -> Sequence[Any]:
        return work(self.task, asked)


class Meeting:
    """Where lanes wait until each of them has asked for something, or has left."""

    def __init__(self, lanes: int, answer: Answering):
        self.answer, self.inside = answer, lanes
        self.all_here = threading.Condition()
        self.asked: dict[int, tuple[Work, Any]] = {}
        self.answers: dict[int, Any] = {}

    def ask(self, lane: int, work: Work, question: Any) -> Any:
        """The answer of `work` to the question; raises what `work` has raised for any lane."""
        with self.all_here:
            self.asked[lane] = (work, question)
            self._answer()
            self.all_here.wait_for(lambda: lane in self.answers)
            answer = self.answers.pop(lane)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def leave(self) -> None:
        """A lane asks for nothing more."""
        with self.all_here:
            self.inside -= 1
            self._answer()

    def _answer(self) -> None:
        """Answer all questions, those for the same work at once, if nobody is still to ask."""
        if not self.asked or len(self.asked) < self.inside:
            return
        for work in (values, gradients, linearise, products):
            lanes = sorted(lane for lane, (own, _) in self.asked.items() if own is work)
            if lanes:
                found: Sequence[Any]
                try:
                    found = self.answer(work, [self.asked[lane][1] for lane in lanes])
                except BaseException as error:  # else the other lanes would wait for ever
                    found = [error] * len(lanes)
                self.answers |= dict(zip(lanes, found, strict=True))
        self.asked.clear()
        self.all_here.notify_all()


class LaneOracle(Oracle):
    """The oracle of a lane, which has its questions answered together with those of the others."""

    def __init__(self, task: Task, first_order: bool, ask: Callable[[Work, Any], Any]):
        super().__init__(task, first_order)
        self.ask = ask

    def _value(self, place: Place) -> Tensor:
        value: Tensor = self.ask(values, place)
        return value

    def _differentiate(self, places: Sequence[Place], wrts: Sequence[Wrt]) -> list[Partials]:
        found: list[Partials] = self.ask(gradients, (places, wrts))
        return found

    def _linear(
        self, x: Tensor, y: Tensor, zeta: Batch
    ) -> tuple[Callable[[], Tensor], Callable[[Tensor, Wrt], Partials]]:
        linear: Linear = self.ask(linearise, Place(False, x, y, zeta))
        return linear.gradient.detach, lambda v, wrt: self.ask(products, (linear, v, wrt))


class Seconds(NamedTuple):
    """How long something took, and how much of a CPU."""

    wall: float
    cpu: float


def timed(step: Callable[[], T], on_gpu: bool) -> tuple[T, Seconds]:
    """What a step gives, and its seconds, to the end of what it asks of a GPU."""
    if on_gpu:
        torch.cuda.synchronize()
    begin = time.perf_counter(), time.process_time()
    found = step()
    if on_gpu:
        torch.cuda.synchronize()
    return found, Seconds(time.perf_counter() - begin[0], time.process_time() - begin[1])


def are_slower(
    together: Seconds, singles: Sequence[Seconds], many: int, processes: int, on_gpu: bool
) -> bool:
    """Whether a step of `many` lanes takes longer than steps of single runs, as these were, by so
    many processes, which work side by side on the host's cores, and in turns on a GPU."""
    on_host = processes * together.cpu > many * max(took.cpu for took in singles)
    return on_host or (on_gpu and together.wall > many * max(took.wall for took in singles))


class Joined:
    """Takes the steps of several lanes, side by side."""

    def __init__(
        self,
        lanes: Sequence[Lane],
        against: int = 0,
        answer: Answering | None = None,
        end: int | None = None,
    ):
        """against: so many processes could take the lanes' steps one by one, side by side; lanes
        that are slower raise Slower when they are prepared. 0: nothing is compared. answer: who
        answers what they ask; None: the code. end: after so many steps the lanes end; None: they
        have no end."""
        self.lanes, self.against, self.end = list(lanes), against, end
        self.answer = answer or ByCode(self.lanes[0].task)
        # they stay, because cuDNN keeps its plans of convolutions for each thread
        self.threads = ThreadPoolExecutor(len(self.lanes))

    @property
    def off(self) -> tuple[float, float]:
        """Seconds, and those of the CPU, that are none of the steps'."""
        return self.answer.off

    def prepare(self, standings: Sequence[Standing]) -> None:
        """Compare steps of the first and the last lane with those of single runs; raises NoGraph.

        One step that comes to the same, with the same counts, is enough: where a network has a kink
        within rounding of its point, as in a first step from a symmetric start, a right step of the
        lanes differs too.
        """
        on_gpu = standings[0].state.x.is_cuda
        if on_gpu:  # builds what every later step has: plans of convolutions
            self(standings, 1)
            self._alone(0, standings)
        off = self.off
        after, took = timed(lambda: self(standings, 1), on_gpu)
        together = Seconds(
            *(all_of - (now - then) for all_of, now, then in zip(took, self.off, off))
        )
        singles: list[Seconds] = []
        before, differing = list(standings), {0, len(self.lanes) - 1}
        for look in range(LOOKS):
            for k in sorted(differing):
                alone, took = timed(partial(self._alone, k, before), on_gpu)
                singles.append(took)
                if (alone.calls, alone.samples) != (after[k].calls, after[k].samples):
                    raise NoGraph(f"step {before[k].step} of a lane counts other calls")
                if largest_gap(before[k].state, alone.state, after[k].state) <= 1:
                    differing.remove(k)
            if not differing or look == LOOKS - 1 or after[0].step == self.end:
                break
            before, after = after, self(after, 1)
        if differing:
            first, last = standings[0].step, before[0].step
            raise NoGraph(f"steps {first} to {last} of a lane differ from those of a single run")
        many = len(self.lanes)
        if self.against and are_slower(together, singles, many, self.against, on_gpu):
            raise Slower("its lanes are no faster than single runs")

    def _alone(self, k: int, standings: Sequence[Standing]) -> Standing:
        """The step of a lane by itself."""
        lane = self.lanes[k]
        return advance(lane.task, lane.algorithm, lane.seed, standings[k])

    def __call__(self, standings: Sequence[Standing], many: int) -> list[Standing]:
        """The standings `many` steps after these."""
        meeting = Meeting(len(self.lanes), self.answer)

        def go(k: int) -> Standing:
            lane, s = self.lanes[k], standings[k]

            def oracle(task: Task, first_order: bool) -> Oracle:
                self.answer.begin_step(k)
                return LaneOracle(task, first_order, lambda *asked: meeting.ask(k, *asked))

            try:
                with torch.no_grad(), in_a_lane():
                    for _ in range(many):
                        s = advance(lane.task, lane.algorithm, lane.seed, s, oracle)
            finally:
                meeting.leave()
            return s

        return list(self.threads.map(go, range(len(self.lanes))))
