"""Answers an oracle's questions on a GPU by CUDA graphs, with the same last bits.

A gradient of a small batch is some hundred kernels, each of which takes a GPU less time than the
host takes to launch it. A method goes on asking questions of few forms: for the same derivative, at
points and on batches of the same shapes. A form that is asked for often is captured once, from the
very code that answers it otherwise, and from then on an answer is one launch. The capture is used
only where its first answer is, bit for bit, that of the code.
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

OFTEN = 6  # a form is captured when it has been asked for so many times
MOST = 1000  # captures of a run
HELD = 40  # gradients of one form whose products a method may ask for at the same time
KEPT = 8  # forms of them, which keep the memory that products go through
SIMPLE = (bool, int, float, str, type(None))


class Question(NamedTuple):
    """What is asked, apart into the tensors that a capture is given and all that it holds for."""

    form: Hashable
    tensors: list[Tensor]
    again: Callable[[Sequence[Tensor]], Any]  # what is asked, of other tensors

    @classmethod
    def of(cls, kind: Hashable, asked: Any) -> "Question | None":
        """None for a question that holds more than tensors and plain values, or that is part of a
        derivative of its own."""
        leaves, spec = tree_flatten(asked)
        places = [k for k, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        others = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        if torch.is_grad_enabled() or not all(isinstance(leaf, SIMPLE) for leaf in others):
            return None
        tensors = [leaves[k] for k in places]
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

    def __init__(
        self,
        question: Question,
        linearise: Callable[[Any], Joint],
        make: Callable[[Callable[[], Any]], Any],
    ):
        """make: see `Replays.make`."""
        self.inputs, self.make = Inputs(question.tensors), make
        places = question.again(self.inputs.own)
        self.graph, joint = capture(lambda: linearise(places))
        self.joint: Joint = joint
        self.products: dict[tuple[Wrt, ...], Captured | None] = {}

    def take(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The gradients at these tensors of a question."""
        self.inputs.fill(tensors)
        self.graph.replay()
        return [gradient.clone() for gradient in self.joint.gradients]

    def multiply(self, vs: Sequence[Tensor], wrts: Sequence[Wrt]) -> list[Partials]:
        """The products, which are captured when these are asked for first."""
        key = tuple(wrts)
        if key not in self.products:
            self.products[key] = self.make(lambda: self._capture_products(vs, key))
        found = self.products[key]
        return self.joint.multiply(vs, wrts) if found is None else paired(found(*vs), wrts)

    def _capture_products(self, vs: Sequence[Tensor], wrts: tuple[Wrt, ...]) -> Captured | None:
        def work(*vs: Tensor) -> list[Tensor]:
            return flat(self.joint.multiply(vs, wrts))

        found = Captured(work, vs, self.graph.pool())
        return found if alike(found(*vs), work(*vs)) else None


class Loan:
    """A linearisation that somebody may still ask for products; other places may take it when
    nobody has its loan any more."""

    def __init__(self, made: Linearised):
        self.made = made

    def multiply(self, vs: Sequence[Tensor], wrts: Sequence[Wrt]) -> list[Partials]:
        """The products."""
        return self.made.multiply(vs, wrts)


class Replays:
    """The captures of a run, by the form of what they answer.

    Gradients and values share their memory, as nothing of them is needed after an answer. Those
    gradients whose products are asked for later have each their own. `wall` and `cpu` are the
    seconds that captures took.
    """

    def __init__(self) -> None:
        self.pool = torch.cuda.graph_pool_handle()
        self.asked: Counter[Hashable] = Counter()
        self.captured: dict[Hashable, Captured] = {}
        # those that nobody has, of each form; forms used last come last
        self.free: dict[Hashable, list[Linearised]] = {}
        self.held: Counter[Hashable] = Counter()  # with those that somebody has
        self.refused: set[Hashable] = set()
        self.made, self.wall, self.cpu = 0, 0.0, 0.0

    def answer(
        self, kind: Hashable, asked: Any, work: Callable[[Any], list[Tensor]]
    ) -> list[Tensor]:
        """work(asked), which depends on nothing else but `kind`."""
        question = Question.of(kind, asked)
        if question is None:
            return work(asked)
        form = question.form
        if form not in self.captured and self._is_due(form):
            made = self.make(lambda: captured_answer(question, work, self.pool))
            if made is None:
                self.refused.add(form)
            else:
                self.captured[form] = made
        found = self.captured.get(form)
        return work(asked) if found is None else found(*question.tensors)

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
        if not free and self.held[form] < HELD and self._is_due(form):
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
        loan = Loan(free.pop())
        weakref.finalize(loan, free.append, loan.made)
        if len(self.free) > KEPT:
            oldest = next(iter(self.free))
            del self.free[oldest], self.held[oldest]
        return loan.made.take(question.tensors), loan

    def _is_due(self, form: Hashable) -> bool:
        """Whether a form that has no capture is to have one now."""
        if len(self.asked) > MOST:  # forms that do not come again
            self.asked.clear()
        self.asked[form] += 1
        due = self.asked[form] > OFTEN and self.made < MOST
        return due and form not in self.refused

    def make(self, work: Callable[[], Any]) -> Any:
        """What `work` gives, or None where CUDA takes no such capture; its time is not a step's."""
        outer, begin = self.wall, time.perf_counter()
        outer_cpu, begin_cpu = self.cpu, time.process_time()
        self.made += 1
        try:
            return work()
        except torch.AcceleratorError:
            raise
        except (CannotCompile, RuntimeError):
            return None
        finally:  # one within another is part of its time
            self.wall = outer + time.perf_counter() - begin
            self.cpu = outer_cpu + time.process_time() - begin_cpu


def captured_answer(
    question: Question, work: Callable[[Any], list[Tensor]], pool: Any
) -> Captured | None:
    """A capture of the answer; None if it is not that of the code to the last bit. pool: see
    `capture`."""

    def answer(*tensors: Tensor) -> list[Tensor]:
        return work(question.again(tensors))

    expected = answer(*question.tensors)
    found = Captured(answer, question.tensors, pool)
    return found if alike(found(*question.tensors), expected) else None


def linearised_answer(
    question: Question,
    work: Callable[[Any], Joint],
    make: Callable[[Callable[[], Any]], Any],
) -> Linearised | None:
    """A capture of the gradients; None if they or their Hessian products are not those of the code
    to the last bit. make: see `Replays.make`."""
    joint = work(question.again(question.tensors))
    wrts: list[Wrt] = ["y"] * len(joint.gradients)
    expected = flat(joint.multiply(joint.gradients, wrts))
    found = Linearised(question, work, make)
    same = alike(found.take(question.tensors), joint.gradients)
    multiplied = flat(found.multiply(joint.gradients, wrts))
    return found if same and alike(multiplied, expected) else None


def flat(pairs: Sequence[Partials]) -> list[Tensor]:
    """All that was asked for, in order."""
    return [part for pair in pairs for part in pair if part is not None]


def paired(parts: Sequence[Tensor], wrts: Sequence[Wrt]) -> list[Partials]:
    """The same as pairs again."""
    rest = iter(parts)
    return [
        (next(rest) if "x" in wrt else None, next(rest) if "y" in wrt else None) for wrt in wrts
    ]


def alike(found: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    """Whether these are the same numbers, to the last bit."""
    return all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


class ReplayingOracle(Oracle):
    """The oracle of a step, which has its answers from captures where there are any."""

    def __init__(self, task: Task, first_order: bool, replays: Replays):
        super().__init__(task, first_order)
        self.replays = replays

    def _value(self, place: Place) -> Tensor:
        return self.replays.answer("value", place, lambda p: [loss_at(self.task, p)])[0]

    def _differentiate(self, places: Sequence[Place], wrts: Sequence[Wrt]) -> list[Partials]:
        def work(places: Sequence[Place]) -> list[Tensor]:
            return flat(differentiate(self.task, places, wrts))

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


class Replayed:
    """Takes a run's steps by the algorithm's own code, with such an oracle.

    `seconds` is the time that captures took, which the run's clock does not count.
    """

    def __init__(self, task: Task, algorithm: Algorithm, seed: int):
        self.task, self.algorithm, self.seed = task, algorithm, seed
        self.replays = Replays()

    @property
    def seconds(self) -> float:
        return self.replays.wall

    def __call__(self, s: Standing, many: int) -> Taken:
        before = self.replays.wall, self.replays.cpu
        for _ in range(many):
            s = advance(self.task, self.algorithm, self.seed, s, self._oracle)
        return Taken(s, self.replays.wall - before[0], self.replays.cpu - before[1])

    def _oracle(self, task: Task, first_order: bool) -> Oracle:
        return ReplayingOracle(task, first_order, self.replays)
