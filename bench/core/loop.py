"""One run: owns the clock and the order of things; knows no task, no algorithm, no file."""

import math
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from bench.core.algorithm import Algorithm, State
from bench.core.deferred import Deferred
from bench.core.draw import Draw, generator
from bench.core.oracle import Oracle
from bench.core.settings import BadSetting
from bench.core.task import Best, Task


class Standing(NamedTuple):
    """How far a run is: all it takes to go on exactly."""

    step: int
    state: State
    calls: Counter[str]
    samples: Counter[str]
    seconds: float  # of the wall clock, in steps
    cpu_seconds: float  # of this process, all its threads, in steps
    info: Mapping[str, Tensor]  # what the last step saw; for the row, not for going on
    totals: Mapping[str, float] = MappingProxyType({})  # of the task's tally so far
    best: Best | None = None  # so far, where the task selects
    table: Tensor | None = None  # of the task's ledger so far


class Diverged(Exception):
    """x, y, a loss or the task's metric is no longer finite."""


def first(task: Task, algorithm: Algorithm, seed: int) -> Standing:
    """The standing before the first step; raises BadSetting."""
    given: tuple[Any, ...] = task.init(generator(seed, "init"))
    if algorithm.on_stream:
        if task.stream is None:
            raise BadSetting(
                "algorithm: this method learns a stream of tasks; write task=permuted_mnist or "
                "task=split_cifar"
            )
        given = (*given, task.stream)
    state = algorithm.init(*given)
    totals = dict.fromkeys(task.tally.names, 0.0) if task.tally else {}
    table = task.ledger.empty if task.ledger else None
    return Standing(0, state, Counter(), Counter(), 0.0, 0.0, {}, totals, table=table)


def advance(task: Task, algorithm: Algorithm, seed: int, s: Standing) -> Standing:
    """One step. The randomness of step k is named by (seed, k), so nothing else need be kept."""
    oracle = Oracle(task, algorithm.first_order)
    state, info = algorithm.step(oracle, s.state, Draw(task, seed, s.step))
    state = tree_map_only(Deferred, Deferred.value, state)  # a state is plain tensors
    calls, samples = s.calls + oracle.calls, s.samples + oracle.samples
    return s._replace(step=s.step + 1, state=state, calls=calls, samples=samples, info=info)


def tallied(task: Task, s: Standing) -> Standing:
    """With what the round that is to come adds to the task's sums."""
    if task.tally is None:
        return s
    adds = task.tally.adds(s.state.x, s.state.y, s.step)
    return s._replace(totals={key: s.totals[key] + float(adds[key]) for key in task.tally.names})


def entered(task: Task, s: Standing) -> Standing:
    """With what the task's ledger measures after this step."""
    if task.ledger is None or s.table is None or s.step % task.ledger.every:
        return s
    return s._replace(table=task.ledger.enter(s.table, s.state.x, s.state.y, s.step))


class Taken(NamedTuple):
    """Steps taken, and how much of the time since they were asked for is none of theirs."""

    standing: Standing
    seconds: float = 0.0
    cpu_seconds: float = 0.0


class TakenTogether(NamedTuple):
    """As `Taken`, by several runs: its times are those of all of them."""

    standings: dict[int, Standing]
    seconds: float = 0.0
    cpu_seconds: float = 0.0


Take = Callable[[Standing, int], Taken]  # from here, so many steps
TakeTogether = Callable[[dict[int, Standing], int], TakenTogether]
Rounds = Generator[tuple[Standing, int], Taken, Standing]


def one_by_one(task: Task, algorithm: Algorithm, seed: int) -> Take:
    """The steps as the algorithm has them."""

    def take(s: Standing, many: int) -> Taken:
        for _ in range(many):
            s = advance(task, algorithm, seed, s)
        return Taken(s)

    return take


def alone(take: Take) -> TakeTogether:
    """The steps of a single run, for `together`."""

    def take_together(standings: dict[int, Standing], many: int) -> TakenTogether:
        ((k, s),) = standings.items()
        standing, seconds, cpu_seconds = take(s, many)
        return TakenTogether({k: standing}, seconds, cpu_seconds)

    return take_together


def run(
    task: Task,
    algorithm: Algorithm,
    *,
    seed: int,
    steps: int,
    every: int,
    seconds: float | None = None,
    cpu_seconds: float | None = None,
    until: tuple[str, float] | None = None,
    start: Standing | None = None,
    measured: Callable[[dict[str, Any]], None] = lambda row: None,
    paused: Callable[[Standing], None] = lambda standing: None,
    now: Callable[[], float] = time.perf_counter,
    take: Take | None = None,
) -> Standing:
    """Take steps until there are `steps` of them, or `seconds`, or `cpu_seconds`.

    until: (metric, value): end at the first row where the metric is at most the value.

    measured gets each row: before the first step, at multiples of `every`, and at the end.
    paused is called between chunks of steps, off the clock, with a standing from which `start`
    goes on to the same bits. now must wait for the device. Of a task with a tally every step is
    timed on its own. take: another way of taking steps. Raises Diverged.
    """
    take = take or one_by_one(task, algorithm, seed)
    begun = start or first(task, algorithm, seed)
    going = rounds(
        task, begun, start is None, steps, every, seconds, cpu_seconds, until, measured, paused
    )
    ends: list[Standing] = []

    def ended(k: int, end: Standing | Diverged) -> None:
        if isinstance(end, Diverged):
            raise end
        ends.append(end)

    together({0: going}, alone(take), now, ended)
    return ends[0]


def together(
    runs: dict[int, Rounds],
    take: TakeTogether,
    now: Callable[[], float],
    ended: Callable[[int, Standing | Diverged], None],
    between: Callable[[], None] | None = None,
) -> None:
    """Let some runs, which are at the same step, take their steps together to their ends.

    take is given the runs that still go on. The time that it takes is shared equally among them.
    ended gets each run's last standing, or how it diverged. between is called after each chunk of
    steps while a run goes on.
    """
    asked: dict[int, tuple[Standing, int]] = {}

    def send(k: int, taken: Taken | None) -> None:
        try:
            asked[k] = next(runs[k]) if taken is None else runs[k].send(taken)
            return
        except StopIteration as end:
            over: Standing | Diverged = end.value
        except Diverged as error:
            over = error
        asked.pop(k, None)
        ended(k, over)

    with torch.no_grad():
        for k in runs:
            send(k, None)
        while asked:
            many = min(steps for _, steps in asked.values())
            begin, cpu = now(), time.process_time()
            taken = take({k: s for k, (s, _) in asked.items()}, many)
            spent = (now() - begin - taken.seconds) / len(asked)
            cpu = (time.process_time() - cpu - taken.cpu_seconds) / len(asked)
            for k, s in taken.standings.items():
                send(k, Taken(s, spent, cpu))
            if asked and between is not None:
                between()


def rounds(
    task: Task,
    s: Standing,
    fresh: bool,
    steps: int,
    every: int,
    seconds: float | None,
    cpu_seconds: float | None,
    until: tuple[str, float] | None,
    measured: Callable[[dict[str, Any]], None],
    paused: Callable[[Standing], None],
) -> Rounds:
    """A run without its steps: asks for up to so many from a standing, and is sent the standing
    after them with the time that they took. Arguments as those of `run`; fresh: no step is taken
    yet."""

    def spent_up() -> bool:
        return (seconds is not None and s.seconds >= seconds) or (
            cpu_seconds is not None and s.cpu_seconds >= cpu_seconds
        )

    def reached(values: dict[str, Any]) -> bool:
        return until is not None and values[until[0]] <= until[1]

    def ended(values: dict[str, Any]) -> bool:
        return s.step >= steps or spent_up() or reached(values)

    if fresh:
        values = row(task, s)
        s = s._replace(best=better(task, s, values))
        measured(values | (selected(task, s.best, values) if ended(values) else {}))
        if reached(values):
            return s
    elif until is not None and s.step % every == 0 and reached(row(task, s)):
        return s  # it had ended, but for the closing files
    chunk = 1
    while s.step < steps and not spent_up():
        target = min(s.step - s.step % every + every, steps)
        if task.ledger is not None:
            often = task.ledger.every
            target = min(target, s.step - s.step % often + often)
        many = min(chunk, target - s.step) if task.tally is None else 1
        before = tallied(task, s)
        s, spent, cpu = yield before, many
        s = s._replace(seconds=before.seconds + spent, cpu_seconds=before.cpu_seconds + cpu)
        chunk = 2 * chunk if spent < 0.1 else max(1, chunk // 2)
        s = entered(task, s)
        if s.step % every == 0 or s.step == steps or spent_up():
            values = row(task, s)
            s = s._replace(best=better(task, s, values))
            wrong = lost(task, s, values)
            closing = selected(task, s.best, values) if ended(values) and not wrong else {}
            measured(values | closing)
            if wrong:
                raise Diverged(wrong)
            if reached(values):
                return s
        paused(s)
    return s


def lost(task: Task, s: Standing, values: Mapping[str, Any]) -> str | None:
    """What is not finite and since which measurement, in words; None: nothing."""
    parts = [key for key in "xy" if not getattr(s.state, key).isfinite().all()]
    if parts:
        return f"x or y is not finite at step {s.step} ({' and '.join(parts)})"
    watched = task.metric if task.ledger is None else None  # which has none before its first entry
    losses = [k for k in values if k == watched or k.endswith(("loss", "objective"))]
    for key in losses:
        if not math.isfinite(values[key]):
            return f"{key} is not finite at step {s.step}"
    return None


def better(task: Task, s: Standing, values: Mapping[str, Any]) -> Best | None:
    """The best iterate so far, this one included."""
    if task.select is None:
        return None
    value = values[task.select.metric]
    if math.isnan(value) or (s.best is not None and value <= s.best.value):
        return s.best
    return Best(value, s.step, s.state.x, s.state.y)


def selected(task: Task, best: Best | None, values: Mapping[str, Any]) -> dict[str, Any]:
    """What the task measures of the best iterate at the end of a run."""
    if task.select is None or best is None:
        return {}
    found = task.select.measure(best, values)
    return {key: float(value) for key, value in found.items()}


def row(task: Task, s: Standing) -> dict[str, Any]:
    """step, wall and CPU seconds, metrics, totals, calls/*, samples/*; info/* of the last step."""
    metrics = task.evaluate(s.state.x, s.state.y, s.step)
    if task.ledger is not None and s.table is not None:
        metrics = metrics | task.ledger.read(s.table)
    return {
        "step": s.step,
        "seconds": s.seconds,
        "cpu_seconds": s.cpu_seconds,
        **{key: float(value) for key, value in metrics.items()},
        **s.totals,
        **{f"calls/{key}": count for key, count in sorted(s.calls.items())},
        **{f"samples/{key}": count for key, count in sorted(s.samples.items())},
        **{f"info/{key}": float(value) for key, value in s.info.items()},
    }
