"""Records a run's steps as graphs of tensor operations, from the algorithm's own code.

`record` takes one step and keeps all that the oracle and autograd do in it, as torch's basic
operations. The inputs of the graph are the state, the batches and the numbers that vary; its output
is the next state. A graph holds for every step of the same form: one with batches of the same
shapes, at which Python comes to the same decisions. A method whose decisions depend on what its
tensors hold has no graph (`NoGraph`).
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

from bench.compiled.calls import Call, compile_graph, trace
from bench.compiled.symbols import MOST_NUMBERS, At, Decision, NoGraph, Notes, Number, Of, Watching
from bench.core.algorithm import Algorithm, State
from bench.core.deferred import worked_out
from bench.core.draw import Draw, Request, RowSampler, generator, row_sampler, sampler_of, serve
from bench.core.loop import Standing, Taken, advance
from bench.core.oracle import Oracle
from bench.core.settings import BadSetting
from bench.core.task import Batch, Task, no_data

FORMS = 16  # a method whose steps have more forms than this is not worth compiling


class PlainOracle(Oracle):
    """An oracle whose operations neither write into tensors nor need the step size as a float."""

    def _descend(
        self, what: str, x: Tensor, y: Tensor, batch: Batch, lr: float, onto: Tensor | None = None
    ) -> Tensor:
        gradient = self._grad(what, x, y, batch, "y")[1]
        assert gradient is not None
        return (y if onto is None else onto) - lr * gradient


class Asking(Draw):
    """Named draws of a step that is being recorded: the function `hand` answers each request.

    The number of the step may be a Number, which stands for any step in the graph.
    """

    def __init__(
        self, task: Task, seed: int, step: Any, hand: Callable[[Request], Any], before: int = 0
    ):
        super().__init__(task, seed, step)
        self.hand, self.before = hand, before

    def ago(self, steps: int) -> Draw:
        return Asking(self.task, self.seed, self.step - steps, self.hand, self.before + steps)

    def integer(self, below: int) -> int:
        raise NoGraph("how much it computes is drawn at random")

    def with_batches(self, xi: Batch, zeta: Batch) -> Draw:
        raise NoGraph("it is made of two methods")

    def _hand(self, asked: Request) -> Any:
        return self.hand(asked._replace(ago=self.before))


@dataclass(frozen=True)
class Form:
    """A recorded step, which holds for all steps of the same form."""

    graph: GraphModule  # (*state, numbers [len(self.numbers)], *batches) -> (*state, *info)
    shape: TreeSpec  # of (state, info)
    asked: tuple[Request, ...]  # what the step draws; empty if the task has no data
    rows: tuple[RowSampler | None, ...]  # of each request: whose rows the graph itself picks
    fixed: Mapping[int, Any]  # the leaves of the batches that the graph has as constants
    looks: tuple[Any, ...]  # shape and type of each other leaf of the batches
    numbers: tuple[Of, ...]  # how those in the input of numbers are computed
    decisions: tuple[Decision, ...]
    calls: Counter[str]  # of the oracle, in one step
    samples: Counter[str]
    example: tuple[Tensor, ...]  # the inputs with which the step was recorded

    def batches(self, task: Task, seed: int, at: At) -> list[Any] | None:
        """The leaves of the batches that a step draws; None if the step has another form."""
        if not all(d.holds(at) for d in self.decisions if not d.drawn):
            return None
        found: list[Any] = []
        for asked, rows in zip(self.asked, self.rows):
            add_leaves(draw_for_graph(task, seed, at.step, asked, rows), found)
        return found

    def split_batches(self, leaves: list[Any], at: At) -> tuple[list[Tensor], At] | None:
        """Split the leaves of the batches into tensors, for the graph, and numbers, for `at`.

        Gives the tensors and the new `at`; None if the step has another form.
        """
        tensors: list[Tensor] = []
        given: list[float] = []
        looks: list[Any] = []
        for k, leaf in enumerate(leaves):
            if k in self.fixed:
                if leaf is not self.fixed[k]:
                    return None
                continue
            looks.append(shape_and_type(leaf))
            (tensors if isinstance(leaf, Tensor) else given).append(leaf)
        at = at._replace(given=given)
        if tuple(looks) != self.looks or not all(d.holds(at) for d in self.decisions):
            return None
        return tensors, at

    def inputs(self, task: Task, seed: int, at: At) -> tuple[list[Tensor], At] | None:
        """The tensors that a step draws, and `at` with the numbers; None: it has another form."""
        found = self.batches(task, seed, at)
        return None if found is None else self.split_batches(found, at)

    def row(self, at: At) -> list[float]:
        """The input of numbers at a step."""
        return [float(of(at)) for of in self.numbers]


def draw_for_graph(
    task: Task, seed: int, step: int, asked: Request, rows: RowSampler | None
) -> Any:
    """What a graph takes for what a step draws: the rows' numbers, if it picks them itself."""
    if rows is None:
        return serve(task, seed, step, asked)
    assert asked.size is not None
    rng = generator(seed, asked.kind, step - asked.ago, asked.turn)
    return rows.numbers(rng, asked.size)


def add_leaves(tree: Any, leaves: list[Any]) -> None:
    """Add the leaves of a batch to a list, in the order that torch's pytrees have.

    Most batches are a tensor, or a tuple of a few, for which torch's function takes three times as
    long; every minibatch goes through here.
    """
    if isinstance(tree, tuple):
        for part in tree:
            add_leaves(part, leaves)
    elif tree is None or isinstance(tree, Tensor):
        leaves.append(tree)
    else:
        leaves.extend(tree_leaves(tree))


def shape_and_type(leaf: Any) -> Any:
    """What a leaf must have in common with the recorded one: shape and type, or type of number."""
    return (leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else type(leaf)


def record(
    task: Task,
    algorithm: Algorithm,
    seed: int,
    state: State,
    at: At,
    notes: Notes | None = None,
    varying: Algorithm | None = None,
) -> Form:
    """Record step number `at.step`, from `state`; raises NoGraph.

    varying: for lanes, the algorithm with Numbers in place of the settings in which they differ.
    notes: the notes of these Numbers.
    """
    notes, varying = notes or Notes(), varying or algorithm
    asked: list[Request] = []
    samplers: list[RowSampler | None] = []
    batches: list[Any] = []

    def hand(what: Request) -> Any:
        rows = row_sampler(task, what)
        drawn = draw_for_graph(task, seed, at.step, what, rows)
        asked.append(what)
        samplers.append(rows)
        batches.append(drawn)
        return drawn if rows is None else rows.pick(drawn)

    oracle = PlainOracle(task, algorithm.first_order)
    algorithm.step(oracle, state, Asking(task, seed, at.step, hand))

    leaves, shape = tree_flatten(batches)
    others = draw_beside(task, seed, at.step, asked, samplers)
    fixed = {
        k: leaf
        for k, leaf in enumerate(leaves)
        if leaf is None or (isinstance(leaf, Tensor) and others and leaf is others[k])
    }
    free = [leaf for k, leaf in enumerate(leaves) if k not in fixed]
    given = [leaf for leaf in free if not isinstance(leaf, Tensor)]
    if not all(type(leaf) in (int, float) for leaf in given):
        raise NoGraph("its batches hold more than tensors and numbers")
    at = at._replace(given=given)
    states, state_shape = tree_flatten(state)
    shapes: list[TreeSpec] = []

    def step(*inputs: Tensor) -> list[Tensor]:
        notes.begin(at, inputs[len(states)])
        tensors = iter(inputs[len(states) + 1 :])
        places = iter(range(len(given)))

        def stand_in(k: int, leaf: Any) -> Any:
            """What the step gets for a leaf: the leaf, an input of the graph, or a Number."""
            if k in fixed:
                return leaf
            return next(tensors) if isinstance(leaf, Tensor) else _given_number(notes, next(places))

        handed = [stand_in(k, leaf) for k, leaf in enumerate(leaves)]
        answers = iter(zip(asked, samplers, tree_unflatten(handed, shape), strict=True))

        def hand(what: Request) -> Any:
            expected, rows, answer = next(answers, (None, None, None))
            if expected != what:
                raise NoGraph("what it draws depends on numbers that vary")
            return answer if rows is None else rows.pick(answer)

        with torch.no_grad(), Watching():
            now = tree_unflatten(list(inputs[: len(states)]), state_shape)
            k: Any = Number(notes, "step", lambda at: at.step)
            found = varying.step(
                PlainOracle(task, algorithm.first_order), now, Asking(task, seed, k, hand)
            )
            after, spec = tree_flatten(worked_out(found))
            shapes.append(spec)
            return [v.tensor(inputs[0]) if isinstance(v, Number) else v for v in after]

    inputs = [
        *states,
        torch.zeros(MOST_NUMBERS, dtype=torch.float64, device=states[0].device),
        *(leaf for leaf in free if isinstance(leaf, Tensor)),
    ]
    graph = trace(step, inputs)
    return Form(
        graph,
        shapes[-1],
        () if all(sampler_of(task, what) is no_data for what in asked) else tuple(asked),
        tuple(samplers),
        fixed,
        tuple(shape_and_type(leaf) for leaf in free),
        tuple(notes.numbers),
        tuple(notes.decisions),
        oracle.calls,
        oracle.samples,
        (*states, inputs[len(states)][: len(notes.numbers)], *inputs[len(states) + 1 :]),
    )


def draw_beside(
    task: Task, seed: int, step: int, asked: list[Request], samplers: list[RowSampler | None]
) -> list[Any]:
    """The leaves of what the next step draws or, where a stream ends before it, an earlier one."""
    for other in (step + 1, max([step - 1, *(what.ago for what in asked)])):
        with suppress(BadSetting):
            drawn = zip(asked, samplers, strict=True)
            return tree_leaves([draw_for_graph(task, seed, other, *each) for each in drawn])
    return []


def _given_number(notes: Notes, place: int) -> Any:
    """A Number for one of the numbers in the batches, by its place among them."""
    return Number(notes, f"given {place}", lambda at: at.given[place], drawn=True)


class Compiled:
    """Takes a run's steps by graphs.

    A form that is met for the first time is recorded, compiled and compared with the plain steps.
    `seconds` is the time that all this took, which the run's clock does not count.
    """

    def __init__(
        self,
        task: Task,
        algorithm: Algorithm,
        seed: int,
        make: Callable[[GraphModule, int, Sequence[Tensor]], Call] | None = None,
    ):
        self.task, self.algorithm, self.seed = task, algorithm, seed
        self.make = make or compile_graph
        self.forms: list[tuple[Form, Call]] = []
        self.seconds = 0.0

    def __call__(self, s: Standing, many: int) -> Taken:
        wall, cpu, end = 0.0, 0.0, s.step + many
        while s.step < end:
            at = At(s.step)
            ready = self._find_form(at)
            if ready is None:
                begin = time.perf_counter(), time.process_time()
                self._meet(s)
                wall += time.perf_counter() - begin[0]
                cpu += time.process_time() - begin[1]
            else:
                s = self._take(s, end, at, *ready)
        self.seconds += wall
        return Taken(s, wall, cpu)

    def _find_form(self, at: At) -> tuple[Form, Call, list[Tensor], At] | None:
        """A form that holds for a step, its call, and its inputs; None if there is none yet."""
        for k, (form, call) in enumerate(self.forms):
            found = form.inputs(self.task, self.seed, at)
            if found is not None:
                self.forms.insert(0, self.forms.pop(k))  # the next step is likely to be alike
                return form, call, *found
        return None

    def _take(
        self, s: Standing, end: int, at: At, form: Form, call: Call, batches: list[Tensor], now: At
    ) -> Standing:
        """Take steps by their graph, up to `end` or to the first that has another form.

        The state stays a list of tensors meanwhile.
        """
        states, _ = tree_flatten(s.state)
        numbers = torch.tensor([form.row(now)], dtype=torch.float64, device=states[0].device)
        while True:
            n = self._steps_at_once(form, at, end)
            if form.numbers:
                rows = [form.row(now._replace(step=at.step + k)) for k in range(n)]
                numbers = torch.tensor(rows, dtype=torch.float64, device=states[0].device)
            leaves = call([*states, *batches], numbers, n)
            at = At(at.step + n)
            found = form.inputs(self.task, self.seed, at) if at.step < end else None
            if found is None:
                return standing_after(s, at.step - s.step, form, leaves)
            states, (batches, now) = leaves[: len(states)], found

    def _steps_at_once(self, form: Form, at: At, end: int) -> int:
        """How many steps, up to `end`, one call takes: several if they draw nothing."""
        n = 1
        while not form.asked and at.step + n < end:
            if not all(d.holds(at._replace(step=at.step + n)) for d in form.decisions):
                break
            n += 1
        return n

    def _meet(self, s: Standing) -> None:
        """Add the form of the next step; raises NoGraph.

        The compiled graph is compared with that step and the two after it.
        """
        if len(self.forms) == FORMS:
            raise NoGraph(f"its steps have more than {FORMS} forms")
        form = record(self.task, self.algorithm, self.seed, s.state, At(s.step))
        states, _ = tree_flatten(s.state)
        found = form.inputs(self.task, self.seed, At(s.step))
        if found is None:
            raise NoGraph("its batches are other ones whenever they are drawn")
        numbers = torch.tensor(form.row(found[1]), dtype=torch.float64, device=states[0].device)
        call = self.make(form.graph, len(states), [*states, numbers, *found[0]])
        for _ in range(3):
            at, found = At(s.step), None
            with suppress(BadSetting):  # the stream ends before
                found = form.inputs(self.task, self.seed, at)
            if found is None:
                break
            plain = advance(self.task, self.algorithm, self.seed, s)
            other = self._take(s, s.step + 1, at, form, call, *found)
            apart = largest_gap(s.state, plain.state, other.state)
            if apart > 1 or plain.calls != other.calls or plain.samples != other.samples:
                raise NoGraph(
                    f"its compiled step {s.step} differs from the plain one, {apart:.1g} times as "
                    "much as rounding would"
                )
            s = plain
        self.forms.insert(0, (form, call))


def standing_after(s: Standing, n: int, form: Form, leaves: Sequence[Tensor]) -> Standing:
    """The standing n steps after `s`; leaves: of the state and info then."""
    state, info = tree_unflatten(list(leaves), form.shape)
    calls = s.calls + Counter({key: n * count for key, count in form.calls.items()})
    samples = s.samples + Counter({key: n * count for key, count in form.samples.items()})
    return s._replace(step=s.step + n, state=state, calls=calls, samples=samples, info=info)


def largest_gap(before: State, plain: State, other: State) -> float:
    """The largest gap between two states after the same step, as a multiple of rounding errors.

    before: the state before the step. inf: one is finite where the other is not.
    """
    worst = 0.0
    for a, b, c in zip(*(tree_flatten(state)[0] for state in (before, plain, other)), strict=True):
        if not b.is_floating_point() or b.numel() == 0:
            worst = max(worst, 0.0 if torch.equal(b, c) else math.inf)
            continue
        eps = torch.finfo(b.dtype).eps
        moved, size = (t.abs().nan_to_num(0, 0, 0).max() for t in (b - a, b))
        # the last term is for sums whose terms cancel
        allowed = eps**0.4 * moved + 1000 * eps * size + 10 * eps
        gap = torch.where(b.isfinite() & c.isfinite(), (b - c).abs(), 0.0)
        strange = bool((b.isfinite() != c.isfinite()).any())
        worst = max(worst, math.inf if strange else float((gap / allowed).max()))
    return worst
