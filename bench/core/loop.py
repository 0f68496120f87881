"""One run: owns the clock and the order of things; knows no task, no algorithm, no file."""

import math
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bench.core.algorithm import Algorithm, State
from bench.core.deferred import worked_out
from bench.core.draw import Draw, generator
from bench.core.fit import check_fit, checked_state
from bench.core.limits import NO_LIMITS, Limits
from bench.core.oracle import Oracle
from bench.core.settings import BadSetting, unknown_setting
from bench.core.task import Best, Task
from bench.core.together import warm_up

LOOK = 0.2  # seconds of steps, about, between two looks for signals and at the checkpoint's age


class Standing(NamedTuple):
    """How far a run is: all that the run needs to go on exactly.

    seconds, cpu_seconds: wall time, and CPU time of all threads of this process, spent in steps.
    info: what the last step saw; rows show it, and no step reads it. totals: the sums of the task's
    tally so far. best: the best iterate so far, where the task selects one. table: the task's
    ledger so far.
    """

    step: int
    state: State
    calls: Counter[str]
    samples: Counter[str]
    seconds: float
    cpu_seconds: float
    info: Mapping[str, Tensor]
    totals: Mapping[str, float | Tensor] = MappingProxyType({})
    best: Best | None = None
    table: Tensor | None = None


class Diverged(Exception):
    """x, y, a loss or the task's metric is no longer finite. history: the rows so far, where
    `solve` raises it."""

    history: Sequence[Mapping[str, float]] = ()


def first(task: Task, algorithm: Algorithm, seed: int) -> Standing:
    """The standing before the first step. Raises BadSetting where `check_fit` and `start_of` do,
    and where the method's own start does."""
    check_fit(task, algorithm)
    given: tuple[Any, ...] = start_of(task, seed)
    if algorithm.on_stream:
        given = (*given, task.stream)
    state = checked_state(algorithm.init(*given), "init")
    totals = dict.fromkeys(task.tally.names, 0.0) if task.tally else {}
    table = task.ledger.empty if task.ledger else None
    return Standing(0, state, Counter(), Counter(), 0.0, 0.0, {}, totals, table=table)


def start_of(task: Task, seed: int) -> tuple[Tensor, Tensor]:
    """The first x and y, of any shape; raises BadSetting where init gives anything else."""
    given = task.init(generator(seed, "init"))
    if not isinstance(given, tuple) or len(given) != 2:
        raise BadSetting("task: init has to return two tensors, (x, y)")
    for name, start in zip("xy", given):
        if not isinstance(start, Tensor) or not start.is_floating_point():
            kind = start.dtype if isinstance(start, Tensor) else type(start).__name__
            raise BadSetting(f"task: init gives {kind} for {name}, and not a floating-point tensor")
        if not start.isfinite().all():
            raise BadSetting(f"task: {name} starts at what is not finite; look at the task's init")
    return given


def advance(
    task: Task,
    algorithm: Algorithm,
    seed: int,
    s: Standing,
    make: Callable[[Task, bool], Oracle] = Oracle,
) -> Standing:
    """One step. The randomness of step k is named by (seed, k), so nothing else need be kept.

    make: gives the step's oracle. Raises BadSetting for a step that gives no state and info.
    """
    oracle = make(task, algorithm.first_order)
    found = algorithm.step(oracle, s.state, Draw(task, seed, s.step))
    if not isinstance(found, tuple) or len(found) != 2 or not isinstance(found[1], Mapping):
        raise BadSetting("algorithm: step has to return (state, info); info may be {}")
    state, info = found
    if type(state) is not type(s.state):
        state = checked_state(state, "step")
    state = worked_out(state)  # a state is plain tensors
    calls, samples = s.calls + oracle.calls, s.samples + oracle.samples
    return s._replace(step=s.step + 1, state=state, calls=calls, samples=samples, info=info)


def add_to_tally(task: Task, s: Standing) -> Standing:
    """The standing with what the coming round adds to the task's sums."""
    if task.tally is None:
        return s
    adds = task.tally.adds(s.state.x, s.state.y, s.step)
    # the sums stay where the task is, as tensors in double precision, until a row asks for them
    totals = {key: s.totals[key] + adds[key].to(torch.float64) for key in task.tally.names}
    return s._replace(totals=totals)


def enter_in_ledger(task: Task, s: Standing) -> Standing:
    """The standing with what the task's ledger measures after this step."""
    if task.ledger is None or s.table is None or s.step % task.ledger.every:
        return s
    return s._replace(table=task.ledger.enter(s.table, s.state.x, s.state.y, s.step))


class Taken(NamedTuple):
    """The standing after some steps, and the time that went by meanwhile but is not theirs, such as
    that of compiling them."""

    standing: Standing
    seconds: float = 0.0
    cpu_seconds: float = 0.0


class TakenTogether(NamedTuple):
    """What `Taken` is for one run, for several: the times are those of all runs together."""

    standings: dict[int, Standing]
    seconds: float = 0.0
    cpu_seconds: float = 0.0


Take = Callable[[Standing, int], Taken]  # takes so many steps from a standing
TakeTogether = Callable[[dict[int, Standing], int], TakenTogether]
Rounds = Generator[tuple[Standing, int], Taken, Standing]
Until = tuple[str, float] | Callable[[Mapping[str, Any]], bool]  # where a run ends: see `run`


def take_plainly(task: Task, algorithm: Algorithm, seed: int) -> Take:
    """Steps as the algorithm has them, one after the other."""

    def take(s: Standing, many: int) -> Taken:
        for _ in range(many):
            s = advance(task, algorithm, seed, s)
        return Taken(s)

    return take


def take_for_one(take: Take) -> TakeTogether:
    """The steps of a single run in the form that `run_together` asks for."""

    def take_together(standings: dict[int, Standing], many: int) -> TakenTogether:
        ((k, s),) = standings.items()
        standing, seconds, cpu_seconds = take(s, many)
        return TakenTogether({k: standing}, seconds, cpu_seconds)

    return take_together


def ignore(value: Any) -> None:
    """A callback that does nothing."""


def run(
    task: Task,
    algorithm: Algorithm,
    *,
    seed: int,
    steps: int,
    every: int,
    limits: Limits = NO_LIMITS,
    until: Until | None = None,
    start: Standing | None = None,
    on_row: Callable[[dict[str, Any]], None] = ignore,
    on_pause: Callable[[Standing], None] = ignore,
    now: Callable[[], float] = time.perf_counter,
    take: Take | None = None,
) -> Standing:
    """Take steps until there are `steps` of them, or until they reach one of the limits. Raises
    Diverged.

    until: (metric, value); the run ends at the first row whose metric is at most the value. Or a
    function of a row; the run ends at the first for which it returns True. It is asked of each row
    once, and so not of that of `start`.

    on_row gets each row: before the first step, at multiples of `every`, and at the end. on_pause
    is called between chunks of steps, off the clock, with a standing from which a run with that
    `start` goes on to the same bits.

    now: the clock, in seconds; on a GPU it must wait for the device. Each step of a task with a
    tally is timed on its own. take: another way of taking steps than one after the other.
    """
    take = take or take_plainly(task, algorithm, seed)
    begun = start or first(task, algorithm, seed)
    going = rounds(task, begun, start is None, steps, every, limits, until, on_row, on_pause)
    ends: list[Standing] = []

    def keep_end(k: int, end: Standing | Diverged) -> None:
        if isinstance(end, Diverged):
            raise end
        ends.append(end)

    run_together({0: going}, take_for_one(take), now, keep_end)
    return ends[0]


def run_together(
    runs: dict[int, Rounds],
    take: TakeTogether,
    now: Callable[[], float],
    on_end: Callable[[int, Standing | Diverged], None],
    between: Callable[[], None] | None = None,
) -> None:
    """Let some runs, which are at the same step, take their steps together to their ends.

    take is given the runs that still go on, and the time that it takes is shared equally among
    them. on_end gets each run's last standing, or how the run diverged. between is called after
    each chunk of steps while a run goes on.
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
        on_end(k, over)

    with torch.no_grad():
        for k in runs:
            send(k, None)
        step = 0.0  # the seconds of a step of all runs together
        while asked:
            many = min(steps for _, steps in asked.values())
            if len(asked) > 1 and step > 0:  # a run looks at its own share of the time alone
                many = min(many, max(1, int(LOOK / step)))
            begin, cpu = now(), time.process_time()
            taken = take({k: s for k, (s, _) in asked.items()}, many)
            spent = (now() - begin - taken.seconds) / len(asked)
            step = spent * len(asked) / many
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
    limits: Limits,
    until: Until | None,
    on_row: Callable[[dict[str, Any]], None],
    on_pause: Callable[[Standing], None],
) -> Rounds:
    """A run that leaves its steps to somebody else: it yields a standing and a number of steps, and
    is sent the standing after at most so many steps with the time that they took.

    fresh: no step is taken yet.
    The other arguments are those of `run`. Raises Diverged as `run` does.
    """

    def at_goal(values: dict[str, Any]) -> bool:
        if until is None:
            return False
        return bool(until(values) if callable(until) else values[until[0]] <= until[1])

    def at_end() -> bool:
        spent = Limits(s.seconds, s.cpu_seconds, s.calls.total(), s.samples.total())
        return s.step >= steps or limits.reached(spent)

    if fresh:
        values = watched_row(task, s)
        s, there = s._replace(best=best_so_far(task, s, values)), at_goal(values)
        on_row(values | (measure_selection(task, s.best, values) if there or at_end() else {}))
        if there:
            return s
    elif isinstance(until, tuple) and s.step % every == 0 and at_goal(row(task, s)):
        return s  # the run had reached its goal, and was stopped before its closing files
    warm_up(task)
    chunk = 1
    while not at_end():
        target = min(s.step - s.step % every + every, steps)
        if task.ledger is not None:
            often = task.ledger.every
            target = min(target, s.step - s.step % often + often)
        one_by_one = task.tally is not None or limits.counted
        many = 1 if one_by_one else min(chunk, target - s.step)
        before = add_to_tally(task, s)
        s, spent, cpu = yield before, many
        s = s._replace(seconds=before.seconds + spent, cpu_seconds=before.cpu_seconds + cpu)
        chunk = min(2 * chunk, every) if spent < LOOK / 2 else max(1, chunk // 2)
        s = enter_in_ledger(task, s)
        if s.step % every == 0 or at_end():
            values = watched_row(task, s)
            s = s._replace(best=best_so_far(task, s, values))
            wrong = divergence_of(task, s, values)
            there = not wrong and at_goal(values)
            last = (there or at_end()) and not wrong
            on_row(values | (measure_selection(task, s.best, values) if last else {}))
            if wrong:
                raise Diverged(wrong)
            if there:
                return s
        on_pause(s)
    return s


def divergence_of(task: Task, s: Standing, values: Mapping[str, Any]) -> str | None:
    """What is not finite and at which step, in words; None: everything is finite."""
    parts = [key for key in "xy" if not getattr(s.state, key).isfinite().all()]
    if parts:
        return f"x or y is not finite at step {s.step} ({' and '.join(parts)})"
    # before its first entry a ledger has no finite metric
    watched = task.metric if task.ledger is None else None
    losses = [k for k in values if k == watched or k.endswith(("loss", "objective"))]
    for key in losses:
        if not math.isfinite(values[key]):
            return f"{key} is not finite at step {s.step}"
    return None


def best_so_far(task: Task, s: Standing, values: Mapping[str, Any]) -> Best | None:
    """The best iterate so far, this one included; None where the task selects none."""
    if task.selection is None:
        return None
    value = values[task.selection.metric]
    if math.isnan(value) or (s.best is not None and value <= s.best.value):
        return s.best
    return Best(value, s.step, s.state.x, s.state.y)


def measure_selection(task: Task, best: Best | None, values: Mapping[str, Any]) -> dict[str, Any]:
    """What the task measures of the best iterate at the end of a run."""
    if task.selection is None or best is None:
        return {}
    found = task.selection.measure(best, values)
    return {key: float(value) for key, value in found.items()}


def number(by: str, name: str, value: Any) -> float:
    """A value of a row; raises BadSetting, naming whose it is, where it is no number."""
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):  # the last one is torch's
        raise BadSetting(f"{by} {name} is no number: {value!r:.60}") from None


def watched_row(task: Task, s: Standing) -> dict[str, Any]:
    """A row that has the task's metric; raises BadSetting otherwise, and where `row` does."""
    found = row(task, s)
    if task.metric not in found:
        measured = [name for name in found if "/" not in name]
        raise unknown_setting("task: metric", task.metric, measured, task.metric)
    return found


def row(task: Task, s: Standing) -> dict[str, Any]:
    """One measurement: step, wall and CPU seconds, metrics, totals of the tally, calls/* and
    samples/* since the start, info/* of the last step. Raises BadSetting where the task's metrics
    are no numbers or have these names."""
    metrics = task.evaluate(s.state.x, s.state.y, s.step)
    if not isinstance(metrics, Mapping):
        raise BadSetting("task: evaluate has to return a dictionary of numbers by their names")
    if taken := sorted(metrics.keys() & {"step", "seconds", "cpu_seconds"}):
        raise BadSetting(f"task: evaluate gives {taken[0]}, which is a row's own; rename it")
    if task.ledger is not None and s.table is not None:
        metrics = metrics | task.ledger.read(s.table)
    return {
        "step": s.step,
        "seconds": s.seconds,
        "cpu_seconds": s.cpu_seconds,
        **{key: number("task: evaluate's", key, value) for key, value in metrics.items()},
        **{key: float(value) for key, value in s.totals.items()},
        **{f"calls/{key}": count for key, count in sorted(s.calls.items())},
        **{f"samples/{key}": count for key, count in sorted(s.samples.items())},
        **{f"info/{key}": number("algorithm: info's", key, v) for key, v in s.info.items()},
    }
