"""Answers an oracle's questions on a GPU by CUDA graphs, with the same last bits.

A gradient of a small batch is some hundred kernels, each of which takes a GPU less time than the
host takes to launch it. A method goes on asking questions of few forms: for the same derivative, at
points and on batches of the same shapes. A form that is asked for often is captured once, from the
very code that answers it otherwise, and from then on an answer is one launch. A capture is used
only where its answers are, bit for bit, those of the code: for the tensors it was made with, and
for others.
"""

import time
import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from bench.compiled.calls import Captured, Inputs, capture
from bench.compiled.symbols import CannotCompile
from bench.core.algorithm import Algorithm
from bench.core.loop import Standing, Taken, advance
from bench.core.oracle import Oracle
from bench.core.task import Batch, Partials, Place, Task, Wrt
from bench.core.together import differentiate, loss_at

OFTEN = 6  # times that a form is asked for before it is captured
MOST = 1000  # captures of a run
ANSWERS = 200  # forms of values and gradients that are kept
KEPT = 8  # forms of linearisations, which keep the memory that their products go through
HELD = 40  # linearisations of one form whose products a method may ask for at the same time
HELD_BYTES = 2**31  # of what these have copies of, such as all the data
OTHER_BITS = "other bits than the code's"  # why a capture is not used
REASON = 120  # characters that are kept of what CUDA or torch says
SIMPLE = (bool, int, float, str, type(None))

Make = Callable[[Callable[[], Any]], Any]  # see `Replays.make`


class Question(NamedTuple):
    """What is asked, apart into the tensors that a capture is given and all that it holds for."""

    form: Hashable
    tensors: list[Tensor]
    again: Callable[[Sequence[Tensor]], Any]  # what is asked, of other tensors

    @classmethod
    def of(cls, kind: Hashable, asked: Any) -> "Question | None":
        """None for a question that holds more than tensors and plain values, or that is part of a
        derivative, or of another transformation, of its own."""
        if torch._C._functorch.maybe_current_level() is not None:  # such as torch.func.vmap
            return None
        leaves, spec = tree_flatten(asked)
        places = [k for k, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        others = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        if torch.is_grad_enabled() or not all(isinstance(leaf, SIMPLE) for leaf in others):
            return None
        tensors = [leaves[k] for k in places]
        if len({t.device for t in tensors}) > 1:  # a number of the host would be part of a kernel
            return None
        shapes = tuple((t.shape, t.stride(), t.dtype, t.device) for t in tensors)

        def again(new: Sequence[Tensor]) -> Any:
            filled = list(others)
            for k, tensor in zip(places, new, strict=True):
                filled[k] = tensor
            return tree_unflatten(filled, spec)

        return cls((kind, spec, tuple(map(repr, others)), shapes), tensors, again)


class Joint(NamedTuple):
    """Gradients in y at some places, with what their products go through.

    multiply(vs, wrts): the product of each gradient with its v, in what its wrt names. linears:
    what lanes know each gradient by.
    """

    gradients: list[Tensor]
    multiply: Callable[[Sequence[Tensor], Sequence[Wrt]], list[Partials]]
    linears: Sequence[Any] = ()


class Linearised:
    """Gradients in y at some places, captured with what their products go through.

    `take` moves the places; products are of the places where it was last, and the memory in which
    they find it is that of the capture.
    """

    def __init__(self, question: Question, linearise: Callable[[Any], Joint]):
        self.inputs = Inputs(question.tensors)
        places = question.again(self.inputs.own)
        self.graph, joint = capture(lambda: linearise(places))
        self.joint: Joint = joint
        self.products: dict[tuple[Wrt, ...], Captured | None] = {}

    def take(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The gradients at these tensors of a question."""
        self.inputs.fill(tensors)
        self.graph.replay()
        return [gradient.clone() for gradient in self.joint.gradients]

    def multiply(self, vs: Sequence[Tensor], wrts: Sequence[Wrt], make: Make) -> list[Partials]:
        """The products, which are captured when these are asked for first."""
        key = tuple(wrts)
        if key not in self.products:
            self.products[key] = make(lambda: self._capture_products(vs, key))
        found = self.products[key]
        return self.joint.multiply(vs, wrts) if found is None else paired(found(*vs), wrts)

    def _capture_products(self, vs: Sequence[Tensor], wrts: tuple[Wrt, ...]) -> Captured | None:
        def work(*vs: Tensor) -> list[Tensor]:
            return flat(self.joint.multiply(vs, wrts), wrts)

        found = Captured(work, vs, self.graph.pool())
        same = all(alike(found(*each), work(*each)) for each in (vs, moved(vs)))
        return found if same else None


class Loan:
    """A linearisation that somebody may still ask for products; other places may take it when
    nobody has its loan any more."""

    def __init__(self, made: Linearised, make: Make):
        """make: see `Replays.make`."""
        self.made, self.make = made, make

    def multiply(self, vs: Sequence[Tensor], wrts: Sequence[Wrt]) -> list[Partials]:
        """The products."""
        return self.made.multiply(vs, wrts, self.make)


class Replays:
    """The captures of a run, by the form of what they answer.

    Values and gradients share their memory, as nothing of them is needed after an answer. A
    linearisation has memory of its own, because its products are asked for later. `wall` and `cpu`
    are the seconds that captures took.
    """

    def __init__(self, often: int = OFTEN) -> None:
        """often: a form is captured when it has been asked for more often, in more than one step.
        `step` is counted by who takes the steps."""
        self.pool = torch.cuda.graph_pool_handle()
        self.often, self.step = often, 0
        self.asked: Counter[Hashable] = Counter()
        self.first: dict[Hashable, int] = {}  # the step in which a form was asked for first
        self.captured: dict[Hashable, Captured] = {}
        # linearisations that nobody has, of each form; the form used last comes last
        self.free: dict[Hashable, list[Linearised]] = {}
        self.held: Counter[Hashable] = Counter()  # all linearisations of a form, lent or free
        self.refused: set[Hashable] = set()
        self.reasons: Counter[str] = Counter()  # why tries gave no capture
        self.tries, self.wall, self.cpu = 0, 0.0, 0.0

    def told(self) -> dict[str, Any]:
        """How many captures were made, and how many tries gave none, by the reason."""
        return {"captured": self.tries - self.reasons.total(), "refused": dict(self.reasons)}

    def answer(
        self, kind: Hashable, asked: Any, work: Callable[[Any], list[Tensor]]
    ) -> list[Tensor]:
        """Give work(asked), by a replay where there is one; work may depend on `kind` alone."""
        question = Question.of(kind, asked)
        if question is None:
            return work(asked)
        form = question.form
        found = self.captured.pop(form, None)
        if found is None and self._is_due(form):
            found = self.make(lambda: captured_answer(question, work, self.pool))
            if found is None:
                self.refused.add(form)
        if found is None:
            return work(asked)
        self.captured[form] = found  # as the one that was used last
        if len(self.captured) > ANSWERS:
            del self.captured[next(iter(self.captured))]
        return found(*question.tensors)

    def linearise(
        self, places: Any, work: Callable[[Any], Joint]
    ) -> tuple[list[Tensor], Loan] | None:
        """The gradients of work(places), and who gives their products; None where the code has to
        answer."""
        question = Question.of("linearise", places)
        if question is None:
            return None
        form = question.form
        free = self.free.pop(form, [])
        if not free and self.held[form] < most_held(question) and self._is_due(form):
            made = self.make(lambda: linearised_answer(question, work, self.make))
            if made is None:
                self.refused.add(form)
            else:
                free.append(made)
                self.held[form] += 1
        if self.held[form]:
            self.free[form] = free
        if not free:
            return None
        loan = Loan(free.pop(), self.make)
        weakref.finalize(loan, free.append, loan.made)
        if len(self.free) > KEPT:
            oldest = next(iter(self.free))
            del self.free[oldest], self.held[oldest]
        return loan.made.take(question.tensors), loan

    def _is_due(self, form: Hashable) -> bool:
        """Whether a form that has no capture is to have one now."""
        if len(self.asked) > MOST:  # forms that do not come again
            self.asked.clear()
            self.first.clear()
        self.asked[form] += 1
        again = self.step > self.first.setdefault(form, self.step)
        due = again and self.asked[form] > self.often and self.tries < MOST
        return due and form not in self.refused

    def make(self, work: Callable[[], Any]) -> Any:
        """What `work` gives, or None where CUDA takes no such capture; its time is not a step's."""
        torch.cuda.synchronize()  # what the steps have asked for is their time
        outer, begin = self.wall, time.perf_counter()
        outer_cpu, begin_cpu = self.cpu, time.process_time()
        self.tries += 1
        reason = OTHER_BITS
        try:
            found = work()
        except (CannotCompile, RuntimeError) as error:
            torch.cuda.synchronize()  # raises if the device is lost: CUDA's refusals look the same
            found, reason = None, " ".join(str(error).split())[:REASON]
        finally:  # one within another is part of its time
            self.wall = outer + time.perf_counter() - begin
            self.cpu = outer_cpu + time.process_time() - begin_cpu
        if found is None:
            self.reasons[reason] += 1
        return found


def most_held(question: Question) -> int:
    """How many linearisations of a question's form there may be at the same time."""
    size = sum(t.numel() * t.element_size() for t in question.tensors)
    return min(HELD, max(1, HELD_BYTES // max(1, size)))


def captured_answer(
    question: Question, work: Callable[[Any], list[Tensor]], pool: Any
) -> Captured | None:
    """A capture of the answer; None if it is not that of the code to the last bit, here and for
    other tensors. pool: see `capture`."""

    def answer(*tensors: Tensor) -> list[Tensor]:
        return work(question.again(tensors))

    found = Captured(answer, question.tensors, pool)
    tries = (question.tensors, moved(question.tensors))
    return found if all(alike(found(*each), answer(*each)) for each in tries) else None


def linearised_answer(
    question: Question, work: Callable[[Any], Joint], make: Make
) -> Linearised | None:
    """A capture of the gradients; None if they or their products are not those of the code to the
    last bit, here and for other tensors. make: see `Replays.make`."""
    found = Linearised(question, work)
    for tensors in (question.tensors, moved(question.tensors)):
        joint = work(question.again(tensors))
        if not alike(found.take(tensors), joint.gradients):
            return None
        every: tuple[Wrt, Wrt] = ("y", "x")
        for wrts in ([wrt] * len(joint.gradients) for wrt in every):
            expected = flat(joint.multiply(joint.gradients, wrts), wrts)
            if not alike(flat(found.multiply(joint.gradients, wrts, make), wrts), expected):
                return None
    return found


def moved(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Other tensors of the same kinds, at which a capture shows whether it holds what it was made
    with: numbers a little larger, and copies of integers."""
    return [t * 1.01 if t.is_floating_point() else t.clone() for t in tensors]


def flat(pairs: Sequence[Partials], wrts: Sequence[Wrt]) -> list[Tensor]:
    """What was asked for, in order; a closed form may give more."""
    return [
        part
        for pair, wrt in zip(pairs, wrts, strict=True)
        for name, part in zip("xy", pair)
        if name in wrt and part is not None
    ]


def paired(parts: Sequence[Tensor], wrts: Sequence[Wrt]) -> list[Partials]:
    """The same as pairs again."""
    rest = iter(parts)
    return [
        (next(rest) if "x" in wrt else None, next(rest) if "y" in wrt else None) for wrt in wrts
    ]


def alike(found: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    """Whether these are the same numbers, to the last bit, or none at the same places."""
    pairs = zip(found, expected, strict=True)
    return all(bool(((a == b) | (a.isnan() & b.isnan())).all()) for a, b in pairs)


class ReplayingOracle(Oracle):
    """The oracle of a step, which has its answers from captures where there are any."""

    def __init__(self, task: Task, first_order: bool, replays: Replays):
        super().__init__(task, first_order)
        self.replays = replays
        replays.step += 1

    def _value(self, place: Place) -> Tensor:
        return self.replays.answer("value", place, lambda p: [loss_at(self.task, p)])[0]

    def _differentiate(self, places: Sequence[Place], wrts: Sequence[Wrt]) -> list[Partials]:
        def work(places: Sequence[Place]) -> list[Tensor]:
            return flat(differentiate(self.task, places, wrts), wrts)

        return paired(self.replays.answer(("gradients", *wrts), list(places), work), wrts)

    def _linear(
        self, x: Tensor, y: Tensor, zeta: Batch
    ) -> tuple[Callable[[], Tensor], Callable[[Tensor, Wrt], Partials]]:
        code = super()._linear

        def work(place: Place) -> Joint:
            gradient, product = code(place.x, place.y, place.batch)
            return Joint([gradient()], lambda vs, wrts: [product(vs[0], wrts[0])])

        found = self.replays.linearise(Place(False, x, y, zeta), work)
        if found is None:
            return code(x, y, zeta)
        (gradient,), loan = found
        return (lambda: gradient), lambda v, wrt: loan.multiply([v], [wrt])[0]


def oracles(often: int = OFTEN) -> Callable[[Task], Oracle]:
    """Gives oracles that have their answers from captures which all of them share.

    often: see `Replays`. Each oracle counts as a step.
    """
    replays = Replays(often)

    def make(task: Task) -> Oracle:
        return ReplayingOracle(task, False, replays)

    return make


class Replayed:
    """Takes a run's steps by the algorithm's own code, with such an oracle.

    `seconds` is the time that captures took, which the run's clock does not count.
    """

    def __init__(self, task: Task, algorithm: Algorithm, seed: int, often: int = OFTEN):
        """often: see `Replays`."""
        self.task, self.algorithm, self.seed = task, algorithm, seed
        self.replays = Replays(often)

    @property
    def seconds(self) -> float:
        return self.replays.wall

    @property
    def replayed(self) -> dict[str, Any]:
        """See `Replays.told`."""
        return self.replays.told()

    def __call__(self, s: Standing, many: int) -> Taken:
        before = self.replays.wall, self.replays.cpu
        for _ in range(many):
            s = advance(self.task, self.algorithm, self.seed, s, self._oracle)
        return Taken(s, self.replays.wall - before[0], self.replays.cpu - before[1])

    def _oracle(self, task: Task, first_order: bool) -> Oracle:
        return ReplayingOracle(task, first_order, self.replays)
