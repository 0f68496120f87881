"""Who reaches a target first: common targets, costs and their ratios, by hand."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from bench.reproduce import claims, targets
from bench.reproduce.plan import Run
from tests.test_claims import INF, NAN, check, claimed, measured, run, unfinished

FIRST = {"kind": "first", "metric": "accuracy", "rows": ["A"], "than": ["B"], "on": "cpu_seconds"}


def costs(
    claim: Mapping[str, Any], better: targets.Better, *runs: Run, row: str = "B"
) -> list[float]:
    """What each run has spent when it is first seen at the target.

    The first run is of row A, the others are of `row`.
    """
    rows = {"A": runs[:1], row: runs[1:]}
    cost = targets.costs_to_target(claimed(claim), rows, better)
    return [cost(one).by for one in runs]


@pytest.mark.parametrize(
    ("value", "better", "curve", "seconds"),
    [
        (0.8, "higher", [0.1, 0.7, 0.9, 0.7, 0.9], 40),  # the first time above
        (0.8, "higher", [0.1, 0.8, 0.9], 20),  # the target itself is enough
        (0.8, "higher", [0.1, 0.7, 0.79], INF),
        (0.8, "higher", [0.9, 0.1], 0),  # there from the start
        (0.2, "lower", [0.9, 0.3, 0.1, 0.3], 40),
        (0.2, "lower", [0.9, 0.2, 0.1], 20),
        (0.2, "lower", [0.9, 0.3, 0.21], INF),
        (0.5, "lower", [0.5, 0.1, 0.9], 0),
        (0.0, "neither", [-3.0, -1.0, 2.0], 40),  # upwards, as it lies above the start
        (0.0, "neither", [3.0, 1.0, -2.0], 40),
        (0.8, "higher", [0.1, None, 0.1], INF),  # what is not finite is no progress
        (0.8, "lower", [None, 0.9, 0.7], 40),
    ],
)
def test_when_a_number_is_reached(
    value: float, better: targets.Better, curve: list[float | None], seconds: float
) -> None:
    claim, one = {**FIRST, "value": value}, run(0, accuracy=curve)
    assert costs(claim, better, one) == [seconds]
    assert costs({**claim, "on": "calls/grad_g"}, better, one) == [1.5 * seconds]
    assert costs({**claim, "on": "calls"}, better, one) == [2 * seconds]


@pytest.mark.parametrize(
    ("gain", "better", "curves", "seconds"),
    [
        # from 1 to 5: half of the way is 3
        (0.5, "higher", [[1.0, 2.0, 3.0, 5.0], [1.0, 2.0, 2.5]], [40, INF]),
        # the worst start, .5, and the best end, 4.5, of any run: 2.5
        (0.5, "higher", [[1.0, 2.0, 3.0, 4.5], [0.5, 2.6, 2.5]], [40, 20]),
        (0.5, "lower", [[5.0, 4.0, 3.0, 1.0], [5.0, 2.0, 4.0]], [40, 20]),
        # it is the end that counts, not what a run had on the way
        (1.0, "higher", [[1.0, 9.0, 5.0], [1.0, 2.0, 3.0]], [20, INF]),
        # a method that gains nothing sets no target of its own, and never reaches another's
        (0.95, "higher", [[1.0, 1.0, 1.0], [1.0, 2.0, 9.0]], [INF, 40]),
        (0.95, "higher", [[1.0, 0.5, 0.25], [1.0, 2.0, 9.0]], [INF, 40]),
        # two starts: whoever starts beyond the target is there at once
        (0.5, "higher", [[0.0, 1.0, 2.0], [1.5, 1.6, 1.7]], [20, 0]),
    ],
)
def test_when_the_fraction_of_the_best_gain_is_reached(
    gain: float, better: targets.Better, curves: Sequence[Sequence[float]], seconds: list[float]
) -> None:
    runs = [run(0, accuracy=curve) for curve in curves]
    assert costs({**FIRST, "gain": gain}, better, *runs) == seconds


def test_targets_are_of_a_seed_and_of_the_rows_compared() -> None:
    """Seed 1 has a target of its own, and a row that the claim does not name sets none."""
    claim = {**FIRST, "gain": 0.5}
    low, high = [0.0, 1.0, 2.0], [0.0, 10.0, 20.0]
    runs = [run(0, accuracy=low), run(0, accuracy=low), run(1, accuracy=high)]
    assert costs(claim, "higher", *runs) == [20, 20, 20]
    assert costs(claim, "higher", runs[0], run(0, accuracy=high)) == [INF, 20]
    assert costs(claim, "higher", runs[0], run(0, accuracy=high), row="C")[0] == 20


def test_a_run_that_failed_sets_no_target_and_reaches_one_if_it_was_there() -> None:
    claim = {**FIRST, "gain": 0.5}
    fine, failed = run(0, accuracy=[0.0, 1.0, 2.0]), run(0, "diverged", accuracy=[0.0, 1.5, 90.0])
    assert costs(claim, "higher", fine, failed) == [20, 20]
    gone = run(0, "diverged", accuracy=[0.0, None])
    assert costs(claim, "higher", fine, gone) == [20, INF]
    assert costs(claim, "higher", fine, run(0, "diverged", accuracy=[])) == [20, INF]
    assert costs(claim, "higher", failed, gone) == pytest.approx([INF, INF])


def test_what_was_not_measured_is_not_known() -> None:
    """A row without the metric or the axis is passed over."""
    claim, one = {**FIRST, "value": 0.8}, run(0, accuracy=[0.1, 0.9, 0.9, 0.9])
    del one.history[1]["accuracy"]
    assert costs(claim, "higher", one) == [40]
    del one.history[2]["cpu_seconds"]
    assert costs(claim, "higher", one) == [60]
    for other in (run(0, loss=[0.9]), run(0, accuracy=[])):
        assert costs(claim, "higher", other) == pytest.approx([NAN], nan_ok=True)
        found = costs({**FIRST, "gain": 0.5}, "higher", other)
        assert found == pytest.approx([NAN], nan_ok=True)


@pytest.mark.parametrize("kind", [float, np.float32])
def test_a_value_on_the_target_has_reached_it(kind: Any) -> None:
    """From .5 to .892 the target is .8724, to which neither the sum in float64 nor that accuracy in
    float32 comes exactly; of both the digits count that a record keeps."""
    one = run(0, accuracy=[float(kind(value)) for value in (0.5, 0.8724, 0.892)])
    assert costs({**FIRST, "gain": 0.95}, "higher", one) == [20]


def test_a_count_has_all_its_digits() -> None:
    one = run(0, accuracy=[0.1, 0.9])
    one.history[1]["cpu_seconds"] = 12_345_678
    assert costs({**FIRST, "value": 0.8}, "higher", one) == [12_345_678]
    one.history[1]["cpu_seconds"] = 1.23456789
    assert costs({**FIRST, "value": 0.8}, "higher", one) == [1.234568]


def test_a_run_that_has_not_ended_sets_no_target() -> None:
    fine = run(0, accuracy=[0.0, 1.0, 2.0])
    going = Run(fine.planned, fine.folder, None)
    going.__dict__["history"] = run(0, accuracy=[0.0, 90.0]).history
    rows = {"A": [fine], "B": [going]}
    assert targets.costs_to_target(claimed({**FIRST, "gain": 0.5}), rows, "higher")(fine).by == 20


def test_a_seed_is_judged_when_all_runs_that_set_its_target_have_ended() -> None:
    """C, which has not ended at seed 1, may set a target there that B never reaches."""
    curve = [0.0, 1.0, 2.0]
    runs = {row: [run(seed, accuracy=curve) for seed in (0, 1)] for row in "AB"}
    claim = {**FIRST, "than": ["B", "C"]}
    for last in ([run(0, accuracy=curve), unfinished(1)], [run(0, accuracy=curve)]):
        parts = measured({**claim, "gain": 0.5}, {**runs, "C": last})
        assert [len(part.values) for part in parts] == [1, 1]
        fixed = measured({**claim, "value": 1.5}, {**runs, "C": last})
        assert [len(part.values) for part in fixed] == [2, 1]  # this target is everybody's


@pytest.mark.parametrize(
    ("curve", "spent"),
    [
        ([0.1, 0.2, 0.9, 0.1, 0.9], (20, 40)),
        ([0.1, 0.9], (0, 20)),
        ([0.9, 0.1, 0.9], (0, 0)),
        ([0.1, None, 0.9], (0, 40)),  # what is not finite is no measurement
        ([0.1, 0.2], (20, INF)),  # or after its end
    ],
)
def test_a_run_came_to_the_target_between_two_measurements(
    curve: list[float | None], spent: tuple[float, float]
) -> None:
    one = run(0, accuracy=curve)
    cost = targets.costs_to_target(claimed({**FIRST, "value": 0.8}), {"A": [one]}, "higher")
    assert cost(one) == spent


def test_a_run_that_failed_would_not_have_come_later() -> None:
    """One that ended at its limit might have."""
    ends = [run(0, status, accuracy=[0.1, 0.2]) for status in ("done", "diverged")]
    cost = targets.costs_to_target(claimed({**FIRST, "value": 0.8}), {"A": ends}, "higher")
    assert [cost(one) for one in ends] == [(20, INF), (INF, INF)]


@pytest.mark.parametrize(
    ("a", "b", "factor", "expected"),
    [
        ((0, 10), (10, 20), 1, math.log(2)),  # one after the other
        ((10, 20), (0, 10), 1, -math.log(2)),
        ((0, 10), (9, 20), 1, NAN),  # b at 9.5, and a before it or after
        ((9, 20), (0, 10), 1, NAN),
        ((0, 10), (0, 10), 1, NAN),
        ((0, 0), (0, 10), 1, INF),
        ((0, 10), (0, 0), 1, -INF),
        ((5, 10), (30, 40), 3, math.log(4)),  # at least 3 times as much
        ((5, 10), (29, 40), 3, NAN),
        ((10, 20), (20, 30), 3, math.log(1.5)),  # at most 3 times as much
        ((9, 20), (20, 30), 3, NAN),
        ((0, 10), (10, INF), 1, INF),  # b had not come when a had
        ((0, 10), (9, INF), 1, NAN),  # b ended before: it might have come
        ((0, 10), (30, INF), 3, INF),
        ((0, 10), (29, INF), 3, NAN),
        ((10, INF), (0, 10), 1, -INF),
        ((9, INF), (0, 10), 1, NAN),
        ((9, INF), (20, 27), 3, -INF),  # a had not come when b had, with 3 times as much
        ((9, INF), (20, 28), 3, NAN),
        ((9, INF), (90, INF), 1, NAN),  # neither came
        ((90, INF), (9, INF), 1, NAN),
        ((9, INF), (INF, INF), 1, NAN),
        ((INF, INF), (9, INF), 1, NAN),
        ((0, 10), (INF, INF), 1, INF),
        ((INF, INF), (0, 10), 1, -INF),
        ((INF, INF), (INF, INF), 1, NAN),
        ((NAN, NAN), (0, 10), 1, NAN),
        ((0, 10), (NAN, NAN), 1, NAN),
    ],
)
def test_who_was_first_is_known_if_the_measurements_tell(
    a: tuple[float, float], b: tuple[float, float], factor: float, expected: float
) -> None:
    found = targets.lead(targets.Spent(*a), targets.Spent(*b), factor)
    assert found == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (6.0, 3.0, math.log(2)),
        (3.0, 6.0, -math.log(2)),
        (INF, 3.0, INF),
        (3.0, INF, -INF),
        (INF, INF, NAN),  # neither came: no order
        (0.0, 0.0, 0.0),
        (3.0, 0.0, INF),
        (0.0, 3.0, -INF),
        (0.0, INF, -INF),
        (INF, 0.0, INF),
        (NAN, 1.0, NAN),
        (1.0, NAN, NAN),
        (-1.0, 1.0, NAN),
        (1.0, -1.0, NAN),
    ],
)
def test_the_logarithm_of_a_ratio(a: float, b: float, expected: float) -> None:
    assert targets.log_ratio(a, b) == pytest.approx(expected, nan_ok=True)


def test_first_to_a_target_is_a_ratio_for_every_pair() -> None:
    """A reaches the target after one row, B after two, C after three, and D not in its four.

    B may have been there after a row and a bit, and C is then twice as late. D is for all that is
    known later than B, and more than twice as late as A.
    """
    curves = {
        "A": [0.1, 0.9], "B": [0.1, 0.2, 0.9], "C": [0.1, 0.2, 0.3, 0.9],
        "D": [0.1, 0.2, 0.2, 0.2],
    }  # fmt: skip
    runs = {row: [run(seed, accuracy=c) for seed in (0, 1)] for row, c in curves.items()}
    claim = {**FIRST, "rows": ["A", "B"], "than": ["C", "D"], "value": 0.8, "factor": 2.0}
    expected = [
        ("A", "C", math.log(3)), ("A", "D", INF), ("B", "C", NAN), ("B", "D", NAN),
    ]  # fmt: skip
    for on, label in {"cpu_seconds": "CPU seconds", "calls": "calls"}.items():
        check(
            measured({**claim, "on": on}, runs),
            [
                (f"log({label} of {b} / {a}) to accuracy = 0.8", [ratio] * 2, math.log(2), INF)
                for a, b, ratio in expected
            ],
        )
    (part,) = measured({**FIRST, "gain": 0.95}, runs)
    assert part.low == 0.0
    assert part.what == "log(CPU seconds of B / A) to 95% of the best gain"


@pytest.mark.parametrize(
    ("a", "b", "word"),
    [
        ([1, 1, 1, 1, 1, 1], [2, 3, 4, 5, 6, 7], "holds"),
        ([2, 3, 4, 5, 6, 7], [1, 1, 1, 1, 1, 1], "fails"),
        ([1, 1, 9, 1, 9, 1], [2, 3, 4, 5, 6, 7], "not enough runs"),
        # one side never comes: the sign test decides, with six seeds
        ([1, 1, 1, 1, 1, 1], [2, 3, 4, 5, 6, None], "holds"),
        ([1, 1, 1, 1, 1, 1], [None] * 6, "holds"),
        ([None] * 6, [1, 1, 1, 1, 1, 1], "fails"),
        ([1, 1, 1, 1, 1], [None] * 5, "not enough runs"),
        # nobody comes: no order
        ([None] * 9, [None] * 9, "not enough runs"),
        ([1, 1, 1, 1, 1, None], [2, 2, 2, 2, 2, None], "not enough runs"),
        # ties: both take the same
        ([2] * 9, [2] * 9, "not enough runs"),
        ([2, 2, 2, 2, 2, 1], [2, 2, 2, 2, 2, 3], "not enough runs"),
    ],
)
def test_verdicts_on_who_is_first(
    a: Sequence[int | None], b: Sequence[int | None], word: str
) -> None:
    """For each seed the row of the history at which A and B reach the target; None for never."""

    def runs(rows: Sequence[int | None]) -> list[Run]:
        curves = [[0.1] * 9 if row is None else [0.1] * row + [0.9] for row in rows]
        return [run(seed, accuracy=curve) for seed, curve in enumerate(curves)]

    parts = measured({**FIRST, "value": 0.8, "on": "calls"}, {"A": runs(a), "B": runs(b)})
    parts = [part.model_copy(update={"expected": len(a)}) for part in parts]
    assert claims.judge_parts(parts).word == word


def test_first_in_time_is_not_first_in_steps() -> None:
    """A needs three rows of one second, B two of five."""
    a, b = run(0, accuracy=[0.1, 0.2, 0.3, 0.9]), run(0, accuracy=[0.1, 0.1, 0.9])
    for i, row in enumerate(a.history):
        row["cpu_seconds"] = 1.0 * i
    for i, row in enumerate(b.history):
        row["cpu_seconds"] = 5.0 * i
    for on, ratio in {"cpu_seconds": 10 / 3, "step": 2 / 3, "calls/grad_f": 2 / 3}.items():
        (part,) = measured({**FIRST, "value": 0.8, "on": on}, {"A": [a], "B": [b]})
        assert part.values == pytest.approx([math.log(ratio)])


def test_the_target_in_words() -> None:
    assert targets.target_phrase(claimed({**FIRST, "value": 0.0})) == "accuracy = 0"
    assert targets.target_phrase(claimed({**FIRST, "gain": 0.5})) == "50% of the best gain"
