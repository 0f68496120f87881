"""Takes a step of several lanes, which differ only in seeds and numbers, as one computation.

The step of one lane is recorded as a graph (bench.compiled.traced) and mapped over all lanes by
torch.func.vmap. States are stacked, and numbers that differ are inputs of the graph. Batches and
data that are the same in all lanes are passed once.
"""

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.utils._pytree import tree_flatten

from bench.compiled.calls import Call, compile_graph, loop_steps, trace
from bench.compiled.symbols import At, NoGraph, Notes, Number, Of
from bench.compiled.traced import FORMS, Form, largest_gap, record, standing_after
from bench.core.algorithm import Algorithm
from bench.core.loop import Standing, advance
from bench.core.settings import BadSetting, build
from bench.core.task import Task

LARGE = 2**20  # tensors of data with more elements are not stacked


class Lane(NamedTuple):
    """A run that goes side by side with others."""

    task: Task
    algorithm: Algorithm
    seed: int
    chosen: Mapping[str, float]  # the algorithm's settings that differ between the lanes


class Apart(NoGraph):
    """The lanes' data differ and are large or of different shapes, so that stacking is no gain."""


class TooLarge(NoGraph):
    """A step of all lanes takes more memory than allowed."""


class Slower(NoGraph):
    """A step of all lanes takes longer than one step of each run by itself."""


class LaneStep(NamedTuple):
    """A recorded step of all lanes, for every step of the same forms."""

    forms: tuple[Form, ...]  # one for each lane; lanes of the same task share theirs
    call: Call
    shared: tuple[bool, ...]  # for each tensor of the batches, whether all lanes have the same
    constants: tuple[Tensor, ...]  # the data that the graph reads, as further inputs


class Side:
    """Takes the steps of several lanes, all of them at once."""

    def __init__(
        self,
        lanes: Sequence[Lane],
        algorithm: dict[str, Any],
        compile: bool = False,
        most: float = math.inf,
        against: int = 0,
    ):
        """algorithm: its configuration in the first lane. most: bytes that a step may take.
        against: so many processes could take the lanes' steps one by one, side by side; lanes that
        are slower raise Slower at their first step. 0: nothing is compared.
        """
        self.lanes, self.compile, self.lane_steps = list(lanes), compile, list[LaneStep]()
        self.most, self.against = most, against
        self.notes = Notes()
        self.notes.at = At(0, lanes[0].chosen)
        paths = list(lanes[0].chosen)
        self.varying: Algorithm = build(with_numbers(algorithm, paths, self.notes))
        self.notes.keep_decisions()
        self.off = (0.0, 0.0)  # wall and CPU seconds of recording and compiling

    def prepare(self, standings: Sequence[Standing]) -> None:
        """Record the next step, unless there is a graph for it; raises NoGraph."""
        if not any(self._inputs(lane_step, standings[0].step) for lane_step in self.lane_steps):
            self.lane_steps.insert(0, self._meet(list(standings)))

    def __call__(self, standings: Sequence[Standing], many: int) -> list[Standing]:
        """The standings `many` steps after these, which are all at one step; raises NoGraph."""
        end = standings[0].step + many
        found = list(standings)
        while found[0].step < end:
            found = self._step(found, end)
        return found

    def _step(self, standings: list[Standing], end: int) -> list[Standing]:
        """Take one step or more, up to step `end`; or none, but record the next step."""
        step = standings[0].step
        for lane_step in self.lane_steps:
            inputs = self._inputs(lane_step, step)
            if inputs is not None:
                return self._take(standings, lane_step, inputs, end)
        begin = time.perf_counter(), time.process_time()
        if len(self.lane_steps) == FORMS:
            raise NoGraph(f"its steps have more than {FORMS} forms")
        self.prepare(standings)
        wall, cpu = time.perf_counter() - begin[0], time.process_time() - begin[1]
        self.off = (self.off[0] + wall, self.off[1] + cpu)
        return standings

    def _inputs(self, lane_step: LaneStep, step: int) -> list[tuple[list[Tensor], At]] | None:
        """The tensors and numbers that this step takes, for each lane.

        None if the step draws or decides otherwise than those that the graph was recorded from.
        """
        known: dict[tuple[int, int], Any] = {}
        found = []
        for lane, form in zip(self.lanes, lane_step.forms, strict=True):
            at = At(step, lane.chosen)
            key = (id(lane.task), lane.seed)
            if key not in known:
                known[key] = form.batches(lane.task, lane.seed, at)
            inputs = None if known[key] is None else form.split_batches(known[key], at)
            if inputs is None:
                return None
            found.append(inputs)
        return found

    def _take(
        self,
        standings: list[Standing],
        lane_step: LaneStep,
        inputs: list[tuple[list[Tensor], At]],
        end: int,
    ) -> list[Standing]:
        """Take steps by their graph, up to `end` or to the first that has another form.

        The states stay stacked meanwhile.
        """
        form, begin = lane_step.forms[0], standings[0].step
        states = [tree_flatten(s.state)[0] for s in standings]
        stacked, step = [torch.stack(leaves) for leaves in zip(*states, strict=True)], begin
        numbers: Tensor | None = None
        while True:
            n = end - step if not form.asked and not form.decisions else 1
            tensors = zip(*(own for own, _ in inputs), strict=True)
            batches = [
                each[0] if same else torch.stack(each)
                for each, same in zip(tensors, lane_step.shared, strict=True)
            ]
            if numbers is None or form.numbers:
                steps = range(step, step + n if form.numbers else step + 1)
                rows = [rows_of(form, [at._replace(step=k) for _, at in inputs]) for k in steps]
                numbers = torch.tensor(rows, dtype=torch.float64, device=stacked[0].device)
            out = lane_step.call([*stacked, *batches, *lane_step.constants], numbers, n)
            step += n
            found = self._inputs(lane_step, step) if step < end else None
            if found is None:
                break
            stacked, inputs = out[: len(stacked)], found
        lanes = zip(*(leaf.unbind() for leaf in out), strict=True)
        return [
            # without a copy each standing would keep the tensors of all lanes
            standing_after(s, step - begin, own, [leaf.clone() for leaf in leaves])
            for s, own, leaves in zip(standings, lane_step.forms, lanes, strict=True)
        ]

    def _meet(self, standings: list[Standing]) -> LaneStep:
        """Record the next step of all lanes; raises NoGraph.

        The first and the last lane are compared with a run alone for two steps. The faster of the
        two counts where times are compared: their CPU time, as other processes may be at work.
        """
        step, forms = standings[0].step, dict[int, Form]()
        for lane, s in zip(self.lanes, standings, strict=True):
            if id(lane.task) not in forms:
                forms[id(lane.task)] = record(
                    lane.task,
                    lane.algorithm,
                    lane.seed,
                    s.state,
                    At(step, lane.chosen),
                    self.notes,
                    self.varying,
                )
        every = tuple(forms[id(lane.task)] for lane in self.lanes)
        self._check_agreement(every, step)
        if len({tuple((t.shape, t.dtype) for t in form.example) for form in every}) > 1:
            raise NoGraph("its lanes have states or batches of different shapes")
        names = {(id(lane.task), lane.seed) for lane in self.lanes}
        lane_step = self._batch_lanes(every, len(names) == 1, standings)
        inputs = self._inputs(lane_step, step)
        if inputs is None:
            raise NoGraph("its lanes draw other kinds of batches")
        alone = {k: standings[k] for k in (0, len(standings) - 1)}
        together = single = math.inf
        for _ in range(2):
            begin = time.process_time()
            after = self._take(standings, lane_step, inputs, step + 1)
            together = min(together, time.process_time() - begin)
            for k, s in alone.items():
                lane, other = self.lanes[k], after[k]
                begin = time.process_time()
                alone[k] = one = advance(lane.task, lane.algorithm, lane.seed, s)
                single = min(single, time.process_time() - begin)
                apart = largest_gap(s.state, one.state, other.state)
                if apart > 1 or one.calls != other.calls or one.samples != other.samples:
                    raise NoGraph(f"step {step} of a lane differs from that of a single run")
            standings, step, inputs = after, step + 1, None
            with suppress(BadSetting):  # the stream ends before
                inputs = self._inputs(lane_step, step)
            if inputs is None:
                break
        if not self.lane_steps and self.against * together > len(self.lanes) * single:
            raise Slower("its lanes are no faster than single runs")
        return lane_step

    def _check_agreement(self, forms: Sequence[Form], step: int) -> None:
        """Raise NoGraph unless all lanes come to the same decisions at this step."""
        for d in (d for form in forms for d in form.decisions if not d.drawn):
            if len({d.of(At(step, lane.chosen)) for lane in self.lanes}) > 1:
                raise NoGraph(f"its lanes do not agree on what to do, by {d.key}")

    def _batch_lanes(
        self, forms: Sequence[Form], alone: bool, standings: list[Standing]
    ) -> LaneStep:
        """The recorded step of each lane as one computation of all; raises NoGraph.

        alone: all lanes have one task and seed, and so draw the same batches.
        """
        n = len(tree_flatten(standings[0].state)[0])
        graphs = {id(form): lift_constants(form.graph) for form in forms}
        first, constants = graphs[id(forms[0])]
        for graph, _ in graphs.values():
            if not compute_alike(first, graph):
                raise NoGraph("its lanes do not compute alike")
        apart = []
        for each in zip(*(graphs[id(form)][1] for form in forms), strict=True):
            same = all(t is each[0] or torch.equal(t, each[0]) for t in distinct(each))
            if not same and (each[0].numel() > LARGE or len({t.shape for t in each}) > 1):
                raise Apart("its lanes have data of their own, large or of different shapes")
            apart.append((each[0], None) if same else (torch.stack(each), 0))
        example = forms[0].example
        flat = [*example, *constants]
        graph = trace(torch.func.functionalize(first), flat)
        drawn = len(example) - n - 1
        dims = (*[0] * (n + 1), *[None if alone else 0] * drawn, *(d for _, d in apart))
        lanes = len(forms)
        inputs = [
            t if d is None else t.expand(lanes, *t.shape).contiguous()
            for t, d in zip([*example], dims[: n + 1 + drawn], strict=True)
        ] + [t for t, _ in apart]
        batched = trace(torch.func.vmap(graph, in_dims=dims), inputs)
        if lanes > 1 and peak_bytes(batched) > self.most:
            raise TooLarge("its lanes take more memory than run.lanes_gb")
        call = compile_graph(batched, n, inputs) if self.compile else loop_steps(batched, n)
        return LaneStep(tuple(forms), call, (alone,) * drawn, tuple(t for t, _ in apart))


def rows_of(form: Form, ats: Sequence[At]) -> list[list[float]]:
    """The input of numbers of each lane, worked out once if the lanes differ only in seeds."""
    if all(at == ats[0] for at in ats):
        return [form.row(ats[0])] * len(ats)
    return [form.row(at) for at in ats]


def peak_bytes(graph: GraphModule) -> int:
    """The most bytes of memory that a step takes at once, apart from the task's data."""
    ends: dict[Any, list[Any]] = {}
    for node in reversed(graph.graph.nodes):
        for used in node.all_input_nodes:
            if not any(used in gone for gone in ends.values()):
                ends.setdefault(node, []).append(used)
    live = most = 0
    for node in graph.graph.nodes:
        live += bytes_of(node)
        most = max(most, live)
        live -= sum(bytes_of(gone) for gone in ends.get(node, ()))
    return most


def bytes_of(node: Any) -> int:
    """The bytes of the tensor that a node of a graph gives."""
    value = node.meta.get("val")
    return value.numel() * value.element_size() if isinstance(value, Tensor) else 0


def distinct(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Each of these tensors once."""
    return list({id(t): t for t in tensors}.values())


def with_numbers(node: dict[str, Any], paths: Sequence[str], notes: Notes) -> dict[str, Any]:
    """The algorithm's configuration with a Number at each of these paths, such as outer.lr."""
    found = {k: with_numbers(v, [], notes) if isinstance(v, dict) else v for k, v in node.items()}
    for path in paths:
        place: Any = found
        *parents, last = path.split(".")
        for parent in parents:
            place = place[parent]
        place[last] = Number(notes, path, setting_at(path))
    return found


def setting_at(path: str) -> Of:
    """A function that reads the setting at a path, as a lane has chosen it."""
    return lambda at: at.chosen[path]


def lift_constants(graph: GraphModule) -> tuple[GraphModule, list[Tensor]]:
    """The graph with its constant tensors turned into further inputs, and these tensors."""
    own = copy_graph(graph)
    last = [node for node in own.graph.nodes if node.op == "placeholder"][-1]
    places: dict[str, Any] = {}
    for node in list(own.graph.nodes):
        if node.op != "get_attr":
            continue
        if node.target not in places:
            with own.graph.inserting_after(last):
                last = places[node.target] = own.graph.placeholder(f"constant_{len(places)}")
        node.replace_all_uses_with(places[node.target])
        own.graph.erase_node(node)
    own.recompile()
    return own, [getattr(graph, name).detach() for name in places]


def copy_graph(graph: GraphModule) -> GraphModule:
    """A graph with nodes of its own, which may be changed, and the same constant tensors."""
    new = torch.fx.Graph()
    values: dict[Any, Any] = {}
    new.output(new.graph_copy(graph.graph, values))
    return GraphModule(graph, new)


def compute_alike(a: GraphModule, b: GraphModule) -> bool:
    """Whether two graphs consist of the same operations in the same order."""
    if len(a.graph.nodes) != len(b.graph.nodes):
        return False
    twin = dict(zip(b.graph.nodes, a.graph.nodes))
    for one, other in zip(a.graph.nodes, b.graph.nodes):
        args, kwargs = torch.fx.map_arg((other.args, other.kwargs), lambda node: twin[node])
        same = one.op == "placeholder" or one.target == other.target
        if one.op != other.op or not same or (one.args, one.kwargs) != (args, kwargs):
            return False
    return True
