"""A run without its steps: when it measures, pauses and ends, what a row holds, what is lost.

Time is made up here: what a chunk of steps is said to have taken is sent to `rounds`, or told by a
clock that the steps set.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import bench.core.loop
from bench.core.algorithm import Algorithm, Cost
from bench.core.draw import Draw, generator
from bench.core.fit import check_inside, is_minimax
from bench.core.limits import Limits
from bench.core.loop import (
    Diverged,
    Standing,
    Taken,
    TakenTogether,
    add_to_tally,
    advance,
    best_so_far,
    divergence_of,
    enter_in_ledger,
    first,
    measure_selection,
    rounds,
    row,
    run,
    run_together,
)
from bench.core.oracle import Oracle
from bench.core.settings import BadSetting
from bench.core.stream import Stream
from bench.core.task import Best, Data, Ledger, Selection, Tally, Task
from bench.core.view import Heatmap
from bench.numerics.sets import box

Row = dict[str, Any]


class State(NamedTuple):
    x: Tensor
    y: Tensor


def pair(a: float, b: float) -> State:
    """A state of one number each."""
    return State(torch.tensor([a]).double(), torch.tensor([b]).double())


def counting() -> Task:
    """x counts the steps and y falls by two a step; the metric is y's value."""
    return Task(
        upper=lambda x, y, batch: x.sum(),
        lower=lambda x, y, batch: y.sum(),
        init=lambda rng: tuple(pair(0.0, 100.0)),
        evaluate=lambda x, y, step: {"height": y.sum(), "other": x.sum() + 0.5},
        metric="height",
        data=Data(
            draw_upper=lambda rng, step, size: 10 + step,
            draw_lower=lambda rng, step, size: 20 + step,
            count=lambda batch: batch,
        ),
    )


def step(o: Oracle, s: State, draw: Draw) -> tuple[State, dict[str, Tensor]]:
    """Sees f once and g twice a step; batches weigh 10 and 20 and the step's number."""
    o.f(s.x, s.y, draw.f())
    o.g(s.x, s.y, draw.g())
    o.g(s.x, s.y, draw.g())
    return State(s.x + 1, s.y - 2), {"seen": 3 * s.x.sum()}


COUNTS = Algorithm(lambda x, y: State(x, y), step)


class Driven:
    """What `rounds` asked for and said, with each chunk taking what `spends` says."""

    def __init__(
        self,
        task: Task,
        steps: int,
        every: int,
        spends: Callable[[int], tuple[float, float]] | None = None,
        start: Standing | None = None,
        until: tuple[str, float] | None = None,
        **limits: Any,
    ):
        self.asked: list[tuple[int, int]] = []  # from which step, how many
        self.said: list[tuple[str, Any]] = []  # rows and pauses, in order
        self.rows: list[Row] = []
        self.pauses: list[int] = []
        going = rounds(
            task,
            start or first(task, COUNTS, 0),
            start is None,
            steps,
            every,
            Limits(**limits),
            until,
            self.measured,
            self.paused,
        )
        try:
            s, many = next(going)
            while True:
                self.asked.append((s.step, many))
                for _ in range(many):
                    s = advance(task, COUNTS, 0, s)
                s, many = going.send(Taken(s, *(spends or free)(s.step)))
        except StopIteration as end:
            self.end: Standing = end.value

    def measured(self, values: Row) -> None:
        self.rows.append(values)
        self.said.append(("row", values["step"]))

    def paused(self, s: Standing) -> None:
        self.pauses.append(s.step)
        self.said.append(("pause", s.step))

    @property
    def at(self) -> list[int]:
        """The steps of the rows."""
        return [row["step"] for row in self.rows]

    @property
    def chunks(self) -> list[int]:
        return [many for _, many in self.asked]


def free(step: int) -> tuple[float, float]:
    return 0.0, 0.0


def even(wall: float, cpu: float) -> Callable[[int], tuple[float, float]]:
    """Each chunk takes as long."""
    return lambda step: (wall, cpu)


def test_rows_come_at_the_start_at_multiples_and_at_the_end() -> None:
    assert Driven(counting(), 10, 5).at == [0, 5, 10]
    assert Driven(counting(), 11, 4).at == [0, 4, 8, 11]
    assert Driven(counting(), 3, 5).at == [0, 3]
    assert Driven(counting(), 0, 5).at == [0]


def test_pauses_come_after_each_chunk_and_after_its_row() -> None:
    driven = Driven(counting(), 5, 3)
    assert driven.asked == [(0, 1), (1, 2), (3, 2)]
    assert driven.said == [
        ("row", 0), ("pause", 1), ("row", 3), ("pause", 3), ("row", 5), ("pause", 5),
    ]  # fmt: skip
    assert driven.end.step == 5


def test_chunks_double_while_they_are_short() -> None:
    assert Driven(counting(), 100, 100).chunks == [1, 2, 4, 8, 16, 32, 37]
    assert Driven(counting(), 30, 10).chunks == [1, 2, 4, 3, 10, 10]
    assert Driven(counting(), 20, 100, even(0.099, 0)).chunks == [1, 2, 4, 8, 5]


def test_chunks_halve_while_they_are_long() -> None:
    assert Driven(counting(), 4, 100, even(0.1, 0)).chunks == [1, 1, 1, 1]

    def later_slow(step: int) -> tuple[float, float]:
        return (0.0 if step < 15 else 0.1), 0.0

    assert Driven(counting(), 40, 100, later_slow).chunks == [1, 2, 4, 8, 4, 2] + [1] * 19


def test_times_add_up_and_stand_in_the_rows() -> None:
    driven = Driven(counting(), 4, 2, even(0.25, 0.5))
    assert driven.asked == [(0, 1), (1, 1), (2, 1), (3, 1)]
    assert [(r["seconds"], r["cpu_seconds"]) for r in driven.rows] == [(0, 0), (0.5, 1), (1, 2)]
    assert (driven.end.seconds, driven.end.cpu_seconds) == (1.0, 2.0)


@pytest.mark.parametrize(
    ("limits", "end"),
    [
        ({"seconds": 0.75}, 3),  # reached exactly
        ({"seconds": 0.76}, 4),
        ({"cpu_seconds": 1.5}, 3),
        ({"cpu_seconds": 1.6}, 4),
        ({"seconds": 9.0, "cpu_seconds": 1.0}, 2),
        ({"seconds": 0.25, "cpu_seconds": 9.0}, 1),
        ({"seconds": 9.0, "cpu_seconds": 9.0}, 8),
    ],
)
def test_a_budget_of_time_ends_a_run_with_a_row(limits: dict[str, float], end: int) -> None:
    driven = Driven(counting(), 8, 5, even(0.25, 0.5), **limits)
    assert driven.end.step == end
    assert driven.at == [0, *([5] if end > 5 else []), end]
    assert driven.pauses[-1] == end


@pytest.mark.parametrize(
    ("limits", "end"),
    [
        ({"calls": 9}, 3),  # 3 a step
        ({"calls": 10}, 4),
        ({"samples": 103}, 2),  # 50 in the first step, and 3 more in each that follows
        ({"samples": 104}, 3),
        ({"calls": 9, "samples": 50}, 1),
        ({"calls": 99, "samples": 999}, 8),
    ],
)
def test_a_budget_of_counts_ends_a_run_at_the_first_step_that_has_used_it(
    limits: dict[str, int], end: int
) -> None:
    """However fast steps are, as it is asked for after each."""
    for spends in (None, even(0.25, 0.5)):
        driven = Driven(counting(), 8, 5, spends, **limits)
        assert driven.end.step == end
        assert driven.at == [0, *([5] if end > 5 else []), end]
        assert {many for _, many in driven.asked} == {1}
    assert {many for _, many in Driven(counting(), 8, 5).asked} > {1}


def test_a_run_that_has_spent_its_time_or_steps_takes_none() -> None:
    s = first(counting(), COUNTS, 0)._replace(step=3, seconds=1.0, cpu_seconds=2.0)
    s = s._replace(calls=Counter(value_f=3), samples=Counter(value_f=2, value_g=5))
    for limits in ({"seconds": 1.0}, {"cpu_seconds": 2.0}, {"calls": 3}, {"samples": 7}):
        driven = Driven(counting(), 8, 5, start=s, **limits)
        assert (driven.asked, driven.said, driven.end) == ([], [], s)
    assert Driven(counting(), 3, 5, start=s).said == []
    on = Driven(counting(), 8, 5, even(0.25, 0.5), start=s, seconds=1.1)
    assert (on.at, on.end.seconds, on.end.cpu_seconds) == ([4], 1.25, 2.5)


def test_going_on_measures_nothing_twice() -> None:
    """From step 4 on, rows come where they would have come."""
    kept: list[Standing] = []
    task = counting()
    whole = Driven(task, 10, 3, even(0.2, 0.0))
    run(task, COUNTS, seed=0, steps=4, every=3, on_pause=kept.append)
    on = Driven(task, 10, 3, even(0.2, 0.0), start=kept[-1]._replace(seconds=0.8))
    assert (whole.at, on.at) == ([0, 3, 6, 9, 10], [6, 9, 10])
    for one, other in zip(whole.rows[2:], on.rows, strict=True):
        both = (one, other)
        assert both[0] | {"seconds": 0, "cpu_seconds": 0} == both[1] | {
            "seconds": 0, "cpu_seconds": 0,
        }  # fmt: skip
        assert one["seconds"] == pytest.approx(other["seconds"])


@pytest.mark.parametrize(("bar", "end"), [(100.0, 0), (95.0, 3), (94.0, 3), (93.9, 6), (-1e9, 10)])
def test_a_target_ends_a_run_at_the_first_row_at_or_below_it(bar: float, end: int) -> None:
    """y is 100, 94, 88, 82, 80 in the rows of steps 0, 3, 6, 9 and 10."""
    driven = Driven(counting(), 10, 3, until=("height", bar))
    assert driven.end.step == end
    assert driven.at == [k for k in (0, 3, 6, 9, 10) if k <= end]
    reached = end < 10
    assert (end in driven.pauses) == (not reached)  # it is saved where it ends, by who runs it


def test_a_run_killed_after_its_last_row_does_not_go_on() -> None:
    s = first(counting(), COUNTS, 0)._replace(step=3, state=pair(3, 94))
    done = Driven(counting(), 10, 3, start=s, until=("height", 94))
    assert (done.asked, done.said, done.end) == ([], [], s)
    on = Driven(counting(), 10, 3, start=s, until=("height", 93))
    assert on.at == [6]
    between = s._replace(step=4)  # where there was no row, there was no end
    assert Driven(counting(), 10, 3, start=between, until=("height", 94)).at == [6]


def test_a_row() -> None:
    """Counts are sorted by name, and info is of the last step only."""
    task = replace(counting(), tally=Tally(("regret",), lambda x, y, k: {"regret": x.sum() + 1}))
    driven = Driven(task, 2, 2, even(0.25, 0.5))
    start, end = driven.rows
    assert start == {
        "step": 0, "seconds": 0.0, "cpu_seconds": 0.0, "height": 100.0, "other": 0.5,
        "regret": 0.0,
    }  # fmt: skip
    assert end == {
        "step": 2, "seconds": 0.5, "cpu_seconds": 1.0, "height": 96.0, "other": 2.5,
        "regret": 3.0, "calls/value_f": 2, "calls/value_g": 4, "samples/value_f": 10 + 11,
        "samples/value_g": 2 * (20 + 21), "info/seen": 3.0,
    }  # fmt: skip
    assert list(end)[-5:] == [
        "calls/value_f", "calls/value_g", "samples/value_f", "samples/value_g", "info/seen",
    ]  # fmt: skip
    assert {type(end[key]) for key in ("height", "regret", "info/seen")} == {float}


@pytest.mark.parametrize("name", ["step", "seconds", "cpu_seconds"])
def test_what_a_task_measures_has_no_name_of_a_rows_own(name: str) -> None:
    task = replace(counting(), evaluate=lambda x, y, step: {"height": y.sum(), name: x.sum()})
    with pytest.raises(BadSetting, match=f"^task: evaluate gives {name}, which is a row's own"):
        row(task, first(task, COUNTS, 0))


@pytest.mark.parametrize("start", [(math.nan, 1.0), (1.0, math.inf)])
def test_a_start_that_is_not_finite_is_refused(start: tuple[float, float]) -> None:
    task = replace(counting(), init=lambda rng: tuple(pair(*start)))
    with pytest.raises(BadSetting, match=r"^task: [xy] starts at what is not finite"):
        first(task, COUNTS, 0)


ONE = torch.zeros(1, dtype=torch.float64)


@pytest.mark.parametrize(
    ("start", "line"),
    [
        (ONE, "init has to return two tensors, (x, y)"),
        ([ONE, ONE], "init has to return two tensors, (x, y)"),
        ((ONE, 0.0), "init gives float for y, and not a floating-point tensor"),
        ((ONE.long(), ONE), "init gives torch.int64 for x, and not"),
    ],
)
def test_a_start_that_is_no_pair_of_tensors_is_refused(start: Any, line: str) -> None:
    task = replace(counting(), init=lambda rng: start)
    with pytest.raises(BadSetting, match=f"^task: {re.escape(line)}"):
        first(task, COUNTS, 0)


@pytest.mark.parametrize(("side", "name"), [("feasible", "x"), ("lower_feasible", "y")])
def test_a_start_outside_of_its_set_is_refused(side: str, name: str) -> None:
    check_inside(replace(counting(), **{side: box(0.0, 3.0)}), *pair(3.0, 3.0))
    said = f"^task: {name} starts outside of its set, at a distance of 2; project it in the task's"
    with pytest.raises(BadSetting, match=said):
        check_inside(replace(counting(), **{side: box(0.0, 1.0)}), *pair(3.0, 3.0))


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"init": lambda x, y: (x, y)}, "init has to give a NamedTuple with the tensors x and y"),
        ({"init": lambda x, y: Counted(x, y, 3)}, "init gives a state with 3, which a checkpoint"),
        ({"step": lambda o, s, draw: s}, "step has to return (state, info); info may be {}"),
        ({"step": lambda o, s, draw: (s, None)}, "step has to return (state, info); info may be"),
        ({"step": lambda o, s, draw: ((s.x, s.y), {})}, "step has to give a NamedTuple with the"),
        (
            {"step": lambda o, s, draw: (s, {"own": torch.ones(2)})},
            "info's own is no number: tensor([1., 1.])",
        ),
    ],
    ids=["a tuple", "a number", "no pair", "no info", "another tuple", "a vector"],
)
def test_what_a_method_gives_is_refused_in_one_line(changes: dict[str, Any], line: str) -> None:
    with pytest.raises(BadSetting, match=f"^{re.escape('algorithm: ' + line)}"):
        run(counting(), COUNTS._replace(**changes), seed=0, steps=1, every=1)


class Counted(NamedTuple):
    x: Tensor
    y: Tensor
    k: int


def test_a_metric_to_watch_that_goes_missing_is_refused() -> None:
    def evaluate(x: Tensor, y: Tensor, step: int) -> dict[str, Tensor]:
        return {"other" if step else "height": y.sum()}

    with pytest.raises(
        BadSetting, match=r"^task: metric=height: no such setting; there is .*other"
    ):
        run(replace(counting(), evaluate=evaluate), COUNTS, seed=0, steps=2, every=1)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (None, "task: evaluate has to return a dictionary of numbers by their names"),
        ({"height": torch.ones(2)}, "task: evaluate's height is no number: tensor([1., 1.])"),
        ({"height": "high"}, "task: evaluate's height is no number: 'high'"),
    ],
)
def test_metrics_that_are_no_numbers_are_refused(given: Any, line: str) -> None:
    task = replace(counting(), evaluate=lambda x, y, step: given)
    with pytest.raises(BadSetting, match=f"^{re.escape(line)}"):
        row(task, first(task, COUNTS, 0))


def test_a_metric_to_watch_that_is_not_measured_is_refused() -> None:
    task = replace(counting(), evaluate=lambda x, y, step: {"heigth": y.sum()})
    said = "^task: metric=height: no such setting; did you mean heigth?"
    with pytest.raises(BadSetting, match=re.escape(said[1:])):
        Driven(task, 5, 2)


def test_a_tally_sees_each_round_before_its_step() -> None:
    """x_t and y_t are then those chosen before f_t and g_t were seen; there are two sums."""
    seen: list[tuple[float, float, int]] = []

    def adds(x: Tensor, y: Tensor, k: int) -> dict[str, Tensor]:
        seen.append((float(x), float(y), k))
        return {"a": x.sum() + 1, "b": -y.sum(), "not asked for": x.sum()}

    task = replace(counting(), tally=Tally(("a", "b"), adds))
    driven = Driven(task, 5, 2)
    assert driven.chunks == [1] * 5  # one at a time
    assert seen == [(k, 100 - 2 * k, k) for k in range(5)]
    assert driven.end.totals == {"a": 1 + 2 + 3 + 4 + 5, "b": -(100 + 98 + 96 + 94 + 92)}
    assert driven.rows[0]["a"] == driven.rows[0]["b"] == 0
    assert (driven.rows[1]["a"], driven.rows[1]["b"]) == (3, -198)
    assert add_to_tally(counting(), driven.end) is driven.end


def ledger(every: int) -> Task:
    """A table whose first row is written into: at step k, what y is."""

    def enter(table: Tensor, x: Tensor, y: Tensor, k: int) -> Tensor:
        assert k % every == 0
        fresh = table.clone()
        fresh[k // every - 1] = y.sum()
        return fresh

    return replace(
        counting(),
        metric="entries",
        ledger=Ledger(
            torch.full((4,), math.nan, dtype=torch.float64),
            every,
            enter,
            lambda table: {"entries": table.nanmean(), "full": (~table.isnan()).sum()},
            lambda table: Heatmap("", "", "", 0, 1, []),
        ),
    )


def test_a_ledger_is_entered_at_its_own_steps_and_read_in_each_row() -> None:
    task = ledger(3)
    driven = Driven(task, 10, 5)
    assert driven.end.table is not None
    assert driven.end.table[:3].tolist() == [94, 88, 82]
    assert [r["full"] for r in driven.rows] == [0, 1, 3]
    assert math.isnan(driven.rows[0]["entries"])  # which is no loss: there is no entry yet
    assert [r["entries"] for r in driven.rows[1:]] == [94, 88]
    assert [k + many for k, many in driven.asked] == [1, 3, 5, 6, 9, 10]  # stops at both
    assert driven.at == [0, 5, 10]
    assert enter_in_ledger(counting(), driven.end) is driven.end
    assert enter_in_ledger(task, driven.end) is driven.end  # step 10 is none of its steps
    without = driven.end._replace(step=9, table=None)  # from a checkpoint of before there was one
    assert enter_in_ledger(task, without) is without
    assert "entries" not in row(task, without)


@pytest.mark.parametrize(
    ("state", "values", "said"),
    [
        (pair(1, 1), {"height": 1.0}, None),
        (pair(math.nan, 1), {"height": 1.0}, "x or y is not finite at step 7 (x)"),
        (pair(1, math.inf), {"height": 1.0}, "x or y is not finite at step 7 (y)"),
        (pair(-math.inf, math.nan), {"height": 1}, "x or y is not finite at step 7 (x and y)"),
        (pair(1, 1), {"height": math.nan}, "height is not finite at step 7"),
        (pair(1, 1), {"height": -math.inf}, "height is not finite at step 7"),
        (pair(1, 1), {"test_loss": math.inf, "height": 1}, "test_loss is not finite at step 7"),
        (pair(1, 1), {"height": 1, "loss": math.nan}, "loss is not finite at step 7"),
        (pair(1, 1), {"objective": math.nan, "height": 1}, "objective is not finite at step 7"),
        (pair(1, 1), {"height": 1, "loss_gap": math.nan, "accuracy": math.inf}, None),
    ],
)
def test_what_is_lost(state: State, values: dict[str, float], said: str | None) -> None:
    s = first(counting(), COUNTS, 0)._replace(step=7, state=state)
    assert divergence_of(counting(), s, values) == said


def test_of_x_with_one_number_lost_all_is_lost() -> None:
    s = first(counting(), COUNTS, 0)
    x = torch.tensor([1.0, math.nan, 2.0])
    assert divergence_of(counting(), s._replace(state=State(x, x[:1])), {"height": 1.0})


def test_the_metric_of_a_ledger_is_not_watched() -> None:
    s = first(ledger(3), COUNTS, 0)
    assert divergence_of(ledger(3), s, {"entries": math.nan}) is None
    assert divergence_of(ledger(3), s, {"entries": math.nan, "train_loss": math.nan}) is not None


@pytest.mark.parametrize("metric", ["loss", "height"])
def test_a_run_whose_loss_is_lost_ends_with_that_row(metric: str) -> None:
    """x and y are finite all the while; nothing is selected, and no checkpoint is asked for."""
    measured: list[Row] = []
    pauses: list[int] = []
    task = counting()
    task = replace(
        task,
        evaluate=lambda x, y, k: {
            "height": y.sum(),
            metric: torch.tensor(1 if k < 4 else math.nan),
        },
        selection=Selection("height", lambda best, last: {"kept": best.x.sum()}),
    )
    with pytest.raises(Diverged, match=f"{metric} is not finite at step 4"):
        run(
            task, COUNTS, seed=0, steps=4, every=2, on_row=measured.append,
            on_pause=lambda s: pauses.append(s.step),
        )  # fmt: skip
    assert [r["step"] for r in measured] == [0, 2, 4]
    assert "kept" not in measured[-1]
    assert 4 not in pauses


@pytest.mark.parametrize(
    ("scores", "kept"),
    [
        ([1.0, 3.0, 2.0], 1),
        ([3.0, 3.0, 3.0], 0),  # the first of equals
        ([1.0, math.nan, 0.5], 0),
        ([math.nan, -5.0, math.nan], 1),
        ([-3.0, -2.0, -1.0], 2),
        ([math.nan, math.nan], None),
    ],
)
def test_the_best_of_several(scores: list[float], kept: int | None) -> None:
    task = replace(counting(), selection=Selection("score", lambda best, last: {}))
    best: Best | None = None
    for k, score in enumerate(scores):
        s = first(task, COUNTS, 0)._replace(step=10 * k, state=pair(k, -k), best=best)
        best = best_so_far(task, s, {"score": score, "height": -score})
    if kept is None:
        assert best is None
    else:
        assert best is not None
        assert best == (scores[kept], 10 * kept, *pair(kept, -kept))
    assert best_so_far(counting(), s, {"height": 1.0}) is None


def test_what_is_selected_is_measured_of_the_best_and_the_last_row() -> None:
    def close(best: Best, last: Any) -> dict[str, Tensor]:
        return {"kept": best.x.sum(), "fall": torch.tensor(best.value - last["height"])}

    task = replace(counting(), selection=Selection("height", close))
    best = Best(9.0, 4, *pair(5, 6))
    assert measure_selection(task, best, {"height": 2.0}) == {"kept": 5.0, "fall": 7.0}
    assert type(measure_selection(task, best, {"height": 2.0})["kept"]) is float
    assert measure_selection(task, None, {"height": 2.0}) == {}
    assert measure_selection(counting(), best, {"height": 2.0}) == {}


@pytest.mark.parametrize(
    "limits",
    [{}, {"seconds": 0.5}, {"cpu_seconds": 1.0}, {"calls": 5}, {"until": ("height", 95.0)}],
)
def test_the_selected_is_told_once_whatever_ends_the_run(limits: dict[str, Any]) -> None:
    task = replace(
        counting(),
        selection=Selection("other", lambda best, last: {"kept": torch.tensor(best.step)}),
    )
    driven = Driven(task, 6, 2, even(0.25, 0.5), **limits)
    assert ["kept" in r for r in driven.rows] == [False] * (len(driven.rows) - 1) + [True]
    assert driven.rows[-1]["kept"] == driven.end.step
    assert driven.end.best is not None
    assert driven.end.best.step == driven.end.step


def test_a_run_that_ends_at_its_start_selects_its_start() -> None:
    task = replace(
        counting(),
        selection=Selection("other", lambda best, last: {"kept": torch.tensor(best.value)}),
    )
    for driven in (Driven(task, 0, 2), Driven(task, 5, 2, until=("height", 100.0))):
        assert [r["step"] for r in driven.rows] == [0]
        assert driven.rows[0]["kept"] == 0.5


def test_the_first_standing() -> None:
    seeds: list[int] = []

    def init(rng: Any) -> tuple[Tensor, Tensor]:
        seeds.append(rng.initial_seed())
        return tuple(pair(1, 2))  # type: ignore[return-value]

    task = replace(counting(), init=init, tally=Tally(("a", "b"), lambda x, y, k: {}))
    s = first(task, COUNTS, 7)
    assert seeds == [generator(7, "init").initial_seed()]
    assert s == Standing(
        0, pair(1, 2), Counter(), Counter(), 0.0, 0.0, {}, {"a": 0.0, "b": 0.0}, None, None
    )
    assert first(counting(), COUNTS, 0).totals == {}
    table = first(ledger(3), COUNTS, 0).table
    assert table is not None
    assert table.isnan().all()


@pytest.mark.parametrize(("side", "call"), [("draw_upper", "grad_f"), ("draw_lower", "hvp_g")])
@pytest.mark.parametrize("when", [0, 1])
def test_a_batch_that_a_level_lacks_is_refused_before_the_first_step(
    side: str, call: str, when: int
) -> None:
    """Be it asked for in the first step, or in the second; what the other level has is no help."""

    def lacks(rng: Any, step: int, size: int | None) -> int:
        if size == 3:
            raise BadSetting("three")
        return 10

    task = counting()
    task = replace(task, data=replace(task.data, **{side: lacks}))
    asked = Cost(**{call: 1}, batch=3)  # type: ignore[arg-type]
    method = Algorithm(State, step, cost=lambda at: asked if at.step == when else Cost())
    with pytest.raises(BadSetting, match=r"^three$"):
        first(task, method, 0)
    first(counting(), method, 0)
    first(task, method._replace(cost=Cost(grad_f=1, hvp_g=1, batch=4)), 0)


def test_a_method_for_streams_is_given_the_stream() -> None:
    given: list[Any] = []

    def init(x: Tensor, y: Tensor, stream: Stream) -> State:
        given.append(stream)
        return State(x, y)

    method = Algorithm(init, step, on_stream=True)
    with pytest.raises(BadSetting, match=r"learns a stream of tasks; write task="):
        first(counting(), method, 0)
    stream = Stream(1, 1, 1, 1, lambda numbers: None, lambda x, y, s: x)  # type: ignore
    first(replace(counting(), stream=stream), method, 0)
    assert given == [stream]
    first(replace(counting(), stream=stream), COUNTS, 0)  # which asks for none


def test_a_step_has_its_number_its_seed_and_its_promise() -> None:
    seen: list[Any] = []

    def looking(o: Oracle, s: State, draw: Draw) -> tuple[State, dict[str, Tensor]]:
        seen.append((draw.seed, draw.step, o.first_order, draw.task, o.task, dict(o.calls)))
        return step(o, s, draw)

    task = counting()
    s = first(task, COUNTS, 0)._replace(
        step=4, calls=Counter(lmo=7, value_f=1), samples=Counter(value_f=3), seconds=2.0
    )
    after = advance(task, Algorithm(State, looking, first_order=True), 6, s)
    assert seen == [(6, 4, True, task, task, {})]
    assert after.step == 5
    assert after.state == pair(1, 98)
    assert after.calls == {"lmo": 7, "value_f": 2, "value_g": 2}
    assert after.samples == {"value_f": 3 + 14, "value_g": 48}
    assert after.seconds == 2.0
    assert after.info == {"seen": 0}
    assert s.calls == {"lmo": 7, "value_f": 1}  # as they were


class Clock:
    """Wall and CPU time that stand still but for what is added."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.wall, self.cpu = 50.0, 20.0
        monkeypatch.setattr(bench.core.loop.time, "process_time", lambda: self.cpu)

    def __call__(self) -> float:
        return self.wall


def test_only_steps_are_timed_and_without_what_is_none_of_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A chunk takes 1 s and 2 CPU s a step; compiling, 8 and 16, is told and left out, and so are
    measuring and saving."""
    clock = Clock(monkeypatch)
    rows: list[Row] = []

    def lose(time: float) -> None:
        clock.wall, clock.cpu = clock.wall + time, clock.cpu + time

    def take(s: Standing, many: int) -> Taken:
        assert not torch.is_grad_enabled()
        for _ in range(many):
            s = advance(task, COUNTS, 0, s)
        clock.wall, clock.cpu = clock.wall + many + 8, clock.cpu + 2 * many + 16
        return Taken(s, 8.0, 16.0)

    def measured(values: Row) -> None:
        rows.append(values)
        lose(100)

    task = counting()
    end = run(
        task, COUNTS, seed=0, steps=5, every=2, on_row=measured, on_pause=lambda s: lose(1000),
        now=clock, take=take,
    )  # fmt: skip
    assert (end.seconds, end.cpu_seconds) == (5, 10)
    assert [(r["step"], r["seconds"], r["cpu_seconds"]) for r in rows] == [
        (0, 0, 0), (2, 2, 4), (4, 4, 8), (5, 5, 10),
    ]  # fmt: skip


@pytest.mark.parametrize(("limit", "end"), [({"seconds": 3.0}, 3), ({"cpu_seconds": 4.0}, 2)])
def test_a_runs_own_budgets(
    limit: dict[str, Any], end: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)

    def ticking(o: Oracle, s: State, draw: Draw) -> tuple[State, dict[str, Tensor]]:
        clock.wall, clock.cpu = clock.wall + 1, clock.cpu + 2
        return step(o, s, draw)

    method = Algorithm(State, ticking)
    rows: list[Row] = []
    found = run(
        counting(), method, seed=0, steps=100, every=100, limits=Limits(**limit),
        on_row=rows.append, now=clock,
    )  # fmt: skip
    assert found.step == rows[-1]["step"] == end


def test_a_run_goes_on_from_its_start_and_to_its_target() -> None:
    kept: list[Standing] = []
    rows: list[Row] = []
    run(counting(), COUNTS, seed=0, steps=4, every=2, on_pause=kept.append)
    end = run(
        counting(), COUNTS, seed=0, steps=20, every=2, start=kept[-1], until=("height", 85.0),
        on_row=rows.append,
    )  # fmt: skip
    assert [r["step"] for r in rows] == [6, 8]
    assert end.state == pair(8, 84)
    assert end.calls == {"value_f": 8, "value_g": 16}


def test_a_seed_is_that_of_the_run() -> None:
    """The run's seed decides its start and its steps."""
    seeds: list[Sequence[int]] = []

    def looking(o: Oracle, s: State, draw: Draw) -> tuple[State, dict[str, Tensor]]:
        seeds.append((draw.seed, draw.step))
        return step(o, s, draw)

    run(counting(), Algorithm(State, looking), seed=9, steps=3, every=9)
    assert seeds == [(9, 0), (9, 1), (9, 2)]


def test_rows_of_a_standing_without_info() -> None:
    """A standing from a checkpoint has none."""
    s = first(counting(), COUNTS, 0)._replace(calls=Counter(lmo=2, grad_f=1))
    assert list(row(counting(), s)) == [
        "step", "seconds", "cpu_seconds", "height", "other", "calls/grad_f", "calls/lmo",
    ]  # fmt: skip


@pytest.mark.parametrize("batch", [None, 3, (1, 2)])
def test_a_game_is_asked_of_a_task_whose_g_has_other_data(batch: Any) -> None:
    """Whatever its g makes of f's batch is no error of the method's."""

    def g(x: Tensor, y: Tensor, batch: Any) -> Tensor:
        a, b, c = batch
        return y.sum() * (a + b + c)

    task = replace(counting(), lower=g, data=replace(counting().data, draw_upper=lambda *_: batch))
    assert not is_minimax(task, *pair(0.0, 1.0))


def test_runs_together_look_up_as_often_as_one_run_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of twenty runs takes 1/32 s: by its own share of the time a run would look up after
    64 steps, which take 2 s for all."""
    clock, task, asked = Clock(monkeypatch), counting(), list[int]()

    def take(standings: dict[int, Standing], many: int) -> TakenTogether:
        asked.append(many)
        for _ in range(many):
            standings = {k: advance(task, COUNTS, 0, s) for k, s in standings.items()}
            clock.wall += 1 / 32
        return TakenTogether(standings)

    def ignore(*_: object) -> None:
        pass

    going = {
        k: rounds(task, first(task, COUNTS, 0), True, 400, 400, Limits(), None, ignore, ignore)
        for k in range(20)
    }
    run_together(going, take, clock, ignore)
    assert sum(asked) == 400
    assert max(asked) == 6  # of 1/32 s in .2 s
