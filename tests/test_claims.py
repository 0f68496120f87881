"""Every kind of claim against its parts computed by hand, and every verdict on parts by hand.

`claim_parts` is compared with whole parts: words, values, bounds and error. `judge_parts` is
compared with verdicts.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from bench.reproduce import claims, slopes, statistics
from bench.reproduce.claim_kinds import AnyClaim
from bench.reproduce.claims import ClaimPart, Verdict
from bench.reproduce.plan import PlannedRun, RecordedPart, Run
from bench.reproduce.points import Point
from bench.reproduce.recorded import UNKNOWN
from bench.reproduce.slopes import RunsOfRows, log_growth
from bench.reproduce.specs import Metric, Published
from bench.reproduce.statements import part_sources
from bench.runs.folder import RunFolder

INF, NAN = math.inf, math.nan
METRICS = {
    "accuracy": Metric(label="test accuracy", better="higher"),
    "loss": Metric(label="test loss", better="lower"),
    "size": Metric(label="size"),  # neither direction is better
    "cpu_seconds": Metric(label="CPU seconds", better="lower"),
    "calls": Metric(label="calls", better="lower"),
}
NOWHERE = RunFolder(Path(), "")


CLOCK = (("run.cpu_seconds", 9.0),)


def run(
    seed: int,
    status: str = "done",
    others: float | None = 0.0,
    pace: float | None = 1.0,
    **curves: Sequence[float | None],
) -> Run:
    """A run with these curves; row i is of step 10 i, after 20 i seconds, 30 i + 10 i calls.

    others: how many cores were busy beside the run. pace: that of its machine.
    """
    rows: list[dict[str, Any]] = [
        {"step": 10 * i, "cpu_seconds": 20.0 * i, "calls/grad_g": 30 * i, "calls/grad_f": 10 * i}
        | dict(zip(curves, values))
        for i, values in enumerate(zip(*curves.values()))
    ]
    job = PlannedRun(Point("paper", "", CLOCK, ()), seed, f"t/a/{seed}")
    process = {"others_cores": others, "pace_ms": pace}
    summary = {"status": status, "last": rows[-1] if rows else {}, "process": process}
    return Run(job, NOWHERE, summary, RecordedPart(rows, UNKNOWN))


def ends(**last: Sequence[float]) -> list[Run]:
    """A run for each seed, from 0 on, whose last values are these."""
    return [
        run(seed, **{name: [0.5, v] for name, v in zip(last, values)})
        for seed, values in enumerate(zip(*last.values()))
    ]


def unfinished(seed: int) -> Run:
    return Run(PlannedRun(Point("paper", "", (), ()), seed, f"t/a/{seed}"), NOWHERE, None)


def claimed(claim: Mapping[str, Any]) -> Any:
    """The claim that a spec states in these words."""
    return TypeAdapter[Any](AnyClaim).validate_python(
        {"by": "us", "text": "t", **claim}, strict=True
    )


def measured(
    claim: Mapping[str, Any],
    runs: RunsOfRows,
    published: Mapping[str, Mapping[str, Published]] | None = None,
    by_clock: bool = False,
) -> list[ClaimPart]:
    return claims.claim_parts(
        claimed(claim),
        runs,
        3,
        lambda n: METRICS.get(n, Metric(label=n)),
        published or {},
        by_clock,
    )


def check(parts: Sequence[ClaimPart], expected: Sequence[tuple[Any, ...]]) -> None:
    """The parts are these: what, values, low, high, and the published error with its n if any."""
    assert [p.what for p in parts] == [e[0] for e in expected]
    for found, (_, values, low, high, *se) in zip(parts, expected):
        assert found.values == pytest.approx(values, rel=1e-12, nan_ok=True)
        assert (found.low, found.high) == pytest.approx((low, high), rel=1e-12)
        assert (found.extra_se, found.extra_n) == (tuple(se) if se else (0.0, None))
        assert found.expected == 3


ROWS: dict[str, list[Run]] = {
    "A": ends(accuracy=[0.9, 0.92, 0.97], loss=[3.0, 2.0, -4.0]),
    "B": ends(accuracy=[0.5, 0.7, 0.6], loss=[1.0, 1.5, 2.5]),
    "C": ends(accuracy=[0.2, 0.1, 0.3], loss=[0.25, 0.5, 5.0]),
    "D": ends(accuracy=[0.8, 0.85, 0.75], loss=[7.0, 8.0, 9.0]),
}
PAPER = {
    "A": {"accuracy": Published(mean=0.8, se=0.03, n=5), "loss": Published(mean=9.0, se=9.0)},
    "B": {"accuracy": Published(mean=0.55)},
}

# claim -> its parts; the differences are of the numbers above, seed by seed
PARTS: dict[str, tuple[dict[str, Any], list[tuple[Any, ...]]]] = {
    "above, two rows and two others": (
        {"kind": "above", "metric": "accuracy", "rows": ["A", "D"], "than": ["B", "C"]},
        [
            ("test accuracy: A − B", [0.4, 0.22, 0.37], 0.0, INF),
            ("test accuracy: A − C", [0.7, 0.82, 0.67], 0.0, INF),
            ("test accuracy: D − B", [0.3, 0.15, 0.15], 0.0, INF),
            ("test accuracy: D − C", [0.6, 0.75, 0.45], 0.0, INF),
        ],
    ),
    "above by a margin": (
        {"kind": "above", "metric": "loss", "rows": ["A"], "than": ["B"], "margin": 0.25},
        [("test loss: A − B", [2.0, 0.5, -6.5], 0.25, INF)],
    ),
    "above but for a margin": (
        {"kind": "above", "metric": "loss", "rows": ["A"], "than": ["B"], "margin": -0.25},
        [("test loss: A − B", [2.0, 0.5, -6.5], -0.25, INF)],
    ),
    "below, two rows and two others": (
        {"kind": "below", "metric": "loss", "rows": ["B", "C"], "than": ["A", "D"]},
        [
            ("test loss: B − A", [-2.0, -0.5, 6.5], -INF, 0.0),
            ("test loss: B − D", [-6.0, -6.5, -6.5], -INF, 0.0),
            ("test loss: C − A", [-2.75, -1.5, 9.0], -INF, 0.0),
            ("test loss: C − D", [-6.75, -7.5, -4.0], -INF, 0.0),
        ],
    ),
    "below by a margin": (
        {"kind": "below", "metric": "loss", "rows": ["B"], "than": ["A"], "margin": 0.25},
        [("test loss: B − A", [-2.0, -0.5, 6.5], -INF, -0.25)],
    ),
    "below but for a margin": (
        {"kind": "below", "metric": "loss", "rows": ["B"], "than": ["A"], "margin": -0.25},
        [("test loss: B − A", [-2.0, -0.5, 6.5], -INF, 0.25)],
    ),
    "below a multiple": (
        {"kind": "below", "metric": "loss", "rows": ["B"], "than": ["A"], "factor": 3.0},
        [("test loss: B − 3 × A", [-8.0, -4.5, 14.5], -INF, 0.0)],
    ),
    "below a part, by a margin": (
        {"kind": "below", "metric": "loss", "rows": ["B"], "than": ["A"], "factor": 0.5,
         "margin": 1.0},
        [("test loss: B − 0.5 × A", [-0.5, 0.5, 4.5], -INF, -1.0)],
    ),
    "order": (
        {"kind": "order", "metric": "accuracy", "rows": ["A", "B", "C"], "margin": 0.125},
        [
            ("test accuracy: A − B", [0.4, 0.22, 0.37], 0.125, INF),
            ("test accuracy: B − C", [0.3, 0.6, 0.3], 0.125, INF),
        ],
    ),
    "order without a margin": (
        {"kind": "order", "metric": "loss", "rows": ["C", "D"]},
        [("test loss: C − D", [-6.75, -7.5, -4.0], 0.0, INF)],
    ),
    "between two bounds": (
        {"kind": "between", "metric": "loss", "rows": ["A", "C"], "at_least": -1.0, "at_most": 4.0},
        [
            ("test loss of A", [3.0, 2.0, -4.0], -1.0, 4.0),
            ("test loss of C", [0.25, 0.5, 5.0], -1.0, 4.0),
        ],
    ),
    "between, at least nought": (
        {"kind": "between", "metric": "loss", "rows": ["A"], "at_least": 0.0},
        [("test loss of A", [3.0, 2.0, -4.0], 0.0, INF)],
    ),
    "between, at most nought": (
        {"kind": "between", "metric": "loss", "rows": ["A"], "at_most": 0.0},
        [("test loss of A", [3.0, 2.0, -4.0], -INF, 0.0)],
    ),
    "within what is published": (
        {"kind": "within_published", "metric": "accuracy", "rows": ["A", "B"], "tolerance": 0.04},
        [
            ("test accuracy of A − published 0.8", [0.1, 0.12, 0.17], -0.04, 0.04, 0.03, 5),
            ("test accuracy of B − published 0.55", [-0.05, 0.15, 0.05], -0.04, 0.04),
        ],
    ),
    "close, every pair in every metric": (
        {"kind": "close", "rows": ["A", "B", "C"], "every": ["accuracy", "loss"], "within": 0.06},
        [
            ("test accuracy: A − B", [0.4, 0.22, 0.37], -0.06, 0.06),
            ("test loss: A − B", [2.0, 0.5, -6.5], -0.06, 0.06),
            ("test accuracy: A − C", [0.7, 0.82, 0.67], -0.06, 0.06),
            ("test loss: A − C", [2.75, 1.5, -9.0], -0.06, 0.06),
            ("test accuracy: B − C", [0.3, 0.6, 0.3], -0.06, 0.06),
            ("test loss: B − C", [0.75, 1.0, -2.5], -0.06, 0.06),
        ],
    ),
    "converges to nought": (
        {"kind": "converges", "metric": "loss", "rows": ["A", "B"], "within": 0.07},
        [
            ("test loss of A", [3.0, 2.0, 4.0], -INF, 0.07),
            ("test loss of B", [1.0, 1.5, 2.5], -INF, 0.07),
        ],
    ),
    "converges to a number": (
        {"kind": "converges", "metric": "loss", "rows": ["A"], "within": 0.07, "to": 2.5},
        [("|test loss − 2.5| of A", [0.5, 0.5, 6.5], -INF, 0.07)],
    ),
    "does not converge to nought": (
        {"kind": "does_not_converge", "metric": "loss", "rows": ["A", "C"], "beyond": 0.08},
        [
            ("test loss of A", [3.0, 2.0, 4.0], 0.08, INF),
            ("test loss of C", [0.25, 0.5, 5.0], 0.08, INF),
        ],
    ),
    "does not converge to a number": (
        {"kind": "does_not_converge", "metric": "loss", "rows": ["A"], "beyond": 0.08, "to": -1.0},
        [("|test loss − −1| of A", [4.0, 3.0, 3.0], 0.08, INF)],
    ),
    "diverges: from .5 to 1, 5 and 50 times as much": (
        {"kind": "diverges", "metric": "loss", "rows": ["up"], "growth": 1000.0},
        [("log₁₀ growth of test loss of up", [math.log10(2), 1.0, 2.0], 3.0, INF)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", PARTS)
def test_a_claims_parts(case: str) -> None:
    claim, expected = PARTS[case]
    check(measured(claim, {**ROWS, "up": ends(loss=[1.0, 5.0, -50.0])}, PAPER), expected)


@pytest.mark.parametrize("case", PARTS)
def test_a_part_says_which_metric_and_rows_it_is_made_of(case: str) -> None:
    """The sources are in the order of the parts; a claim that needs histories has none."""
    claim, expected = PARTS[case]
    found = part_sources(claimed(claim))
    if claim["kind"] == "diverges":
        assert found == []
        return
    assert len(found) == len(expected)
    for (metric, rows), (what, *_) in zip(found, expected):
        assert METRICS[metric].label in what
        assert re.findall(r"\b[A-Z]\b", what) == list(rows)


ABOVE = {"kind": "above", "metric": "accuracy", "rows": ["A"], "than": ["B"]}
BETWEEN = {"kind": "between", "metric": "accuracy", "rows": ["A"], "at_least": 0.0}


def test_pairs_are_of_the_same_seed() -> None:
    """Seeds 7 and 1 are finished in one row only, and the order of the runs means nothing."""
    a = [run(2, accuracy=[0.7]), run(0, accuracy=[0.9]), run(1, accuracy=[0.5]), unfinished(3)]
    b = [run(7, accuracy=[0.0]), run(0, accuracy=[0.6]), unfinished(1), run(2, accuracy=[0.6]),
         run(3, accuracy=[0.0])]  # fmt: skip
    check(measured(ABOVE, {"A": a, "B": b}), [("test accuracy: A − B", [0.1, 0.3], 0.0, INF)])


def test_runs_that_are_not_there_have_no_values() -> None:
    some = {"A": [run(0, accuracy=[0.9]), unfinished(1)], "B": list[Run]()}
    check(measured(BETWEEN, some), [("test accuracy of A", [0.9], 0.0, INF)])
    check(measured(ABOVE, some), [("test accuracy: A − B", [], 0.0, INF)])
    check(measured({**ABOVE, "rows": ["Z"]}, some), [("test accuracy: Z − B", [], 0.0, INF)])
    check(measured({**BETWEEN, "rows": ["Z"]}, some), [("test accuracy of Z", [], 0.0, INF)])


@pytest.mark.parametrize(("metric", "worst"), [("accuracy", -INF), ("loss", INF), ("size", NAN)])
def test_a_failed_run_has_the_worst_value_there_is(metric: str, worst: float) -> None:
    """The last value of a failed run does not count, however good it looks; where neither
    direction is better, nothing is known."""
    failed = [run(0, "diverged", **{metric: [0.1, 0.5]}), run(1, **{metric: [0.1, 0.5]})]
    (alone,) = measured({**BETWEEN, "metric": metric}, {"A": failed})
    assert alone.values == pytest.approx([worst, 0.5], nan_ok=True)
    fine = [run(seed, **{metric: [0.1, 0.25]}) for seed in (0, 1)]
    (ahead,) = measured({**ABOVE, "metric": metric}, {"A": failed, "B": fine})
    assert ahead.values == pytest.approx([worst, 0.25], nan_ok=True)
    (behind,) = measured({**ABOVE, "metric": metric}, {"A": fine, "B": failed})
    assert behind.values == pytest.approx([-worst, -0.25], nan_ok=True)


@pytest.mark.parametrize("metric", ["accuracy", "loss", "size"])
def test_a_failed_run_does_not_converge(metric: str) -> None:
    """This is so for every metric."""
    runs = {"A": [run(0, "diverged", **{metric: [0.1, 0.5]}), run(1, **{metric: [0.1, 0.5]})]}
    for kind in (
        {"kind": "converges", "within": 1.0},
        {"kind": "does_not_converge", "beyond": 1.0},
    ):
        (part,) = measured({**kind, "metric": metric, "rows": ["A"]}, runs)
        assert part.values == [INF, 0.5]


@pytest.mark.parametrize(
    "metric", ["calls", "samples", "calls/grad_g", "cpu_seconds", "peak_memory_mb"]
)
def test_what_a_failed_run_cost_is_not_known(metric: str) -> None:
    """A run is neither cheap nor dear by failing."""
    failed, fine = [run(0, "diverged", loss=[0.5])], [run(0, loss=[0.5])]
    for runs in (failed, fine):
        assert runs[0].summary is not None
        runs[0].summary["peak_memory_mb"] = {"process": 9.0}
    for a, b in ((failed, fine), (fine, failed)):
        (part,) = measured({**ABOVE, "metric": metric}, {"A": a, "B": b})
        assert part.values == pytest.approx([NAN], nan_ok=True)


def test_what_differs_by_rounding_is_no_difference() -> None:
    """A record keeps nine digits: from there the difference would be 0."""
    a, b = run(0, accuracy=[0.25 + 2**-54]), run(0, accuracy=[0.25])
    (found,) = measured(ABOVE, {"A": [a], "B": [b]})
    assert found.values == [0.0]


def test_both_failed_is_no_order() -> None:
    failed = [run(0, "diverged", accuracy=[0.5])]
    (part,) = measured(ABOVE, {"A": failed, "B": failed})
    assert part.values == pytest.approx([NAN], nan_ok=True)


def test_a_value_that_was_not_measured_is_no_number() -> None:
    """A null is another matter: it was measured, and was not finite, which is the worst value."""
    (part,) = measured({**BETWEEN, "metric": "loss"}, {"A": [run(0, accuracy=[0.1])]})
    assert part.values == pytest.approx([NAN], nan_ok=True)
    (part,) = measured(BETWEEN, {"A": [run(0, accuracy=[0.1, None])]})
    assert part.values == [-INF]
    (part,) = measured({**BETWEEN, "metric": "loss"}, {"A": [run(0, loss=[0.1, None])]})
    assert part.values == [INF]


TIMED: list[dict[str, Any]] = [
    {"kind": "below", "metric": "cpu_seconds", "rows": ["A"], "than": ["B"]},
    {"kind": "between", "metric": "cpu_seconds", "rows": ["A"], "at_most": 99.0},
    {"kind": "first", "metric": "loss", "rows": ["A"], "than": ["B"], "on": "cpu_seconds",
     "value": 0.2},
    {"kind": "slope", "metric": "loss", "against": "cpu_seconds", "rows": ["A"], "after": 0.0,
     "at_most": 9.0},
    {"kind": "slope", "metric": "cpu_seconds", "against": "k", "rows": ["A"], "at_most": 9.0,
     "points": {"A": 1.0, "B": 2.0, "C": 3.0}},
    {"kind": "slope", "metric": "cpu_seconds", "against": "k", "rows": ["A"], "at_most": 9.0,
     "points": {"A": 1.0, "B": 2.0, "C": 3.0}, "until": "loss", "target": 0.2},
]  # fmt: skip


@pytest.mark.parametrize("claim", TIMED)
def test_times_of_disturbed_runs_are_no_values(claim: dict[str, Any]) -> None:
    """Neither are times of runs that do not say whether other work was done beside them."""
    curve = [0.9, 0.5, 0.3, 0.2, 0.1]
    for others, known in {0.0: True, 0.25: True, 0.26: False, 2.0: False, None: False}.items():
        runs = {
            row: [run(seed, others=others, loss=curve[skip:]) for seed in range(8)]
            for row, skip in {"A": 1, "B": 0, "C": 0}.items()
        }
        (part,) = measured(claim, runs)
        assert [math.isfinite(value) for value in part.values] == [True] * (8 if known else 0)
        assert part.expected == (3 if known else 3 - 8)
        counted = {"kind": "below", "metric": "calls", "rows": ["A"], "than": ["B"]}
        assert measured(counted, runs)[0].values == [-40.0] * 8  # counts are what they are
        if not known:
            assert claims.judge_parts([part]).word == "not enough runs"


@pytest.mark.parametrize("claim", TIMED)
def test_the_seeds_without_a_disturbed_run_are_judged(claim: dict[str, Any]) -> None:
    """A seed is left out where one of the runs that are compared was disturbed, whichever it is."""
    curve = [0.9, 0.5, 0.3, 0.2, 0.1]
    rows = {"A": 1, "B": 0, "C": 0}

    def runs(busy: dict[str, int]) -> dict[str, list[Run]]:
        return {
            row: [
                run(seed, others=9.0 * (busy.get(row) == seed), loss=curve[skip:])
                for seed in range(8)
            ]
            for row, skip in rows.items()
        }

    needed = claimed(claim).needed_rows
    (whole,), (part,) = measured(claim, runs({})), measured(claim, runs({needed[-1]: 3, "D": 5}))
    assert part.values == pytest.approx(whole.values[:-1])
    assert part.expected == whole.expected - 1


@pytest.mark.parametrize("claim", TIMED)
def test_the_seeds_of_which_all_runs_are_of_one_speed_are_judged(claim: dict[str, Any]) -> None:
    """Seeds may be of different machines, and a claim about one row compares no two runs."""
    curve = [0.9, 0.5, 0.3, 0.2, 0.1]
    needed = claimed(claim).needed_rows

    def runs(slow: dict[str, int]) -> dict[str, list[Run]]:
        return {
            row: [
                run(seed, pace=seed + 1.0 + 9.0 * (slow.get(row) == seed), loss=curve[skip:])
                for seed in range(8)
            ]
            for row, skip in {"A": 1, "B": 0, "C": 0}.items()
        }

    (whole,), (part,) = measured(claim, runs({})), measured(claim, runs({needed[-1]: 3}))
    left_out = int(len(set(needed)) > 1)
    assert len(whole.values) == 8
    assert part.values == pytest.approx(whole.values[: 8 - left_out])
    assert part.expected == whole.expected - left_out


AT_THE_END: list[dict[str, Any]] = [  # what compares the last values of one row with another's
    {"kind": "above", "metric": "loss", "rows": ["A"], "than": ["B"]},
    {"kind": "below", "metric": "loss", "rows": ["A"], "than": ["B"]},
    {"kind": "order", "metric": "loss", "rows": ["A", "B"]},
    {"kind": "close", "every": ["loss"], "rows": ["A", "B"], "within": 0.1},
    {"kind": "slope", "metric": "loss", "against": "k", "rows": ["A"], "at_most": 9.0,
     "points": {"A": 1.0, "B": 2.0, "C": 3.0}},
]  # fmt: skip
ALONE: list[dict[str, Any]] = [  # what compares no last values, or those of no two rows
    {"kind": "between", "metric": "loss", "rows": ["A", "B"], "at_most": 9.0},
    {"kind": "converges", "metric": "loss", "rows": ["A"], "within": 0.1},
    {"kind": "diverges", "metric": "loss", "rows": ["A"], "growth": 2.0},
    {"kind": "first", "metric": "loss", "on": "calls", "rows": ["A"], "than": ["B"],
     "value": 0.2},
    {"kind": "slope", "metric": "loss", "against": "step", "rows": ["A", "B"], "after": 0.0,
     "at_most": 9.0},
    {"kind": "slope", "metric": "calls", "against": "k", "rows": ["A"], "at_most": 9.0,
     "points": {"A": 1.0, "B": 2.0, "C": 3.0}, "until": "loss", "target": 0.2},
]  # fmt: skip


@pytest.mark.parametrize("claim", [*AT_THE_END, *ALONE])
def test_ends_that_a_clock_sets_are_compared_only_of_machines_of_one_speed(
    claim: dict[str, Any],
) -> None:
    """At the seed 3 a run of one row was made on a slower machine, so that it ended sooner."""
    curve = [0.9, 0.5, 0.3, 0.2, 0.1]
    runs = {
        row: [
            run(seed, pace=9.0 if (row, seed) == ("A", 3) else 1.0, loss=curve[skip:])
            for seed in range(8)
        ]
        for row, skip in {"A": 1, "B": 0, "C": 0}.items()
    }
    left_out = int(claim in AT_THE_END)
    for whole, part in zip(measured(claim, runs), measured(claim, runs, by_clock=True)):
        assert len(whole.values) == 8
        assert len(part.values) == 8 - left_out
        assert part.expected == whole.expected - left_out


def test_runs_that_took_all_their_steps_were_ended_by_no_clock() -> None:
    """Though a clock was set for them: machines of whatever speed end at the same step."""
    curve = [0.9, 0.5, 0.3]
    cut = {"A": curve[1:], "B": curve}

    def judged(curves: Mapping[str, list[float]], unclocked: str = "") -> int:
        of_row = {
            row: Point("paper", row, (("run.steps", 20), *(CLOCK if row != unclocked else ())), ())
            for row in curves
        }
        runs = {
            row: [
                replace(found, planned=replace(found.planned, point=of_row[row]))
                for seed in range(3)
                for found in [run(seed, pace=9.0 if row == "A" else 1.0, loss=curves[row])]
            ]
            for row in curves
        }
        claim = {"kind": "above", "metric": "loss", "rows": ["A"], "than": ["B"]}
        return len(measured(claim, runs, by_clock=True)[0].values)

    assert judged({"A": curve, "B": curve}) == 3
    assert judged(cut) == 0  # one ended at step 10 of 20
    assert judged(cut, unclocked="B") == 3  # of a row without a clock the machine is of no account


@pytest.mark.parametrize(
    ("curve", "status", "expected"),
    [
        ([0.1, 0.5, 10.0], "done", 2.0),
        ([10.0, 0.5, 0.1], "done", -2.0),
        ([-2.0, 20.0], "done", 1.0),
        ([2.0, None], "done", INF),
        ([2.0, 0.0], "done", -INF),
        ([0.0, 5.0], "done", NAN),
        ([None, 5.0], "done", NAN),
        ([None, None], "done", NAN),
        ([1.0, 1.0], "diverged", INF),
        ([], "done", INF),
    ],
)
def test_growth(curve: list[float | None], status: str, expected: float) -> None:
    """The growth is log10 of the last value over the first; a run that failed grew without a
    bound."""
    found = log_growth(run(0, status, loss=curve), "loss")
    assert found == pytest.approx(expected, nan_ok=True)


def test_growth_from_a_value_that_is_not_finite_is_open() -> None:
    """The claim is then open, like any claim whose values are not there."""
    claim = {"kind": "diverges", "metric": "loss", "rows": ["A"], "growth": 10.0}
    rows = {"A": [run(seed, loss=[None, 5.0]) for seed in range(3)]}
    verdict = claims.judge_parts(measured(claim, rows))
    assert verdict.text == "not enough runs (n=3)"
    assert verdict.statistic.startswith("log₁₀ growth of test loss of A = nan")


def test_growth_of_what_was_not_measured_is_unknown() -> None:
    one = run(0, loss=[1.0, 2.0])
    assert math.isnan(log_growth(one, "accuracy"))
    one.history[0]["accuracy"] = 1.0
    assert math.isnan(log_growth(one, "accuracy"))


SLOPE = {"kind": "slope", "metric": "loss", "rows": ["A", "B"], "against": "step"}


def test_slope_over_a_run() -> None:
    """Row i is step 10 i. The values are i^-2 for the first half of the rows, then i^-.5 / 32."""
    curve = [9.9, *(i**-2.0 for i in range(1, 10)), *(i**-0.5 / 32 for i in range(10, 20))]
    runs = {"A": [run(0, loss=curve), run(1, loss=curve)],
            "B": [run(0, loss=[2 * v for v in curve]), unfinished(1)]}  # fmt: skip
    what = "slope of log loss against log step, {}"
    check(
        measured({**SLOPE, "at_most": 0.0}, runs),
        [(what.format("A"), [-0.5] * 2, -INF, 0.0), (what.format("B"), [-0.5], -INF, 0.0)],
    )
    check(
        measured({**SLOPE, "rows": ["A"], "at_least": -1.0, "at_most": 2.0}, runs),
        [(what.format("A"), [-0.5] * 2, -1.0, 2.0)],
    )
    rows = range(1, 20)
    whole = statistics.loglog_slope([10.0 * i for i in rows], [curve[i] for i in rows])
    (part,) = measured({**SLOPE, "rows": ["A"], "at_least": 0.0, "after": 0.0}, runs)
    assert part.values == pytest.approx([whole] * 2)
    assert (part.low, part.high) == (0.0, INF)
    late = statistics.loglog_slope([10.0 * i for i in rows[4:]], [curve[i] for i in rows[4:]])
    (part,) = measured({**SLOPE, "rows": ["A"], "at_least": 0.0, "after": 0.25}, runs)
    assert part.values == pytest.approx([late] * 2)


def test_a_slope_is_of_what_was_measured() -> None:
    """A row without a value is passed over; a run without rows has no slope."""
    curve = [1.0, 1.0, 0.5, 77.0, 0.25]
    one = run(0, loss=curve)
    del one.history[3]["loss"]
    (part,) = measured({**SLOPE, "rows": ["A"], "at_least": 0.0, "after": 0.0}, {"A": [one]})
    assert part.values == pytest.approx([-1.0])  # through (10, 1), (20, .5), (40, .25)
    failed = run(0, "diverged", loss=curve)
    (part,) = measured({**SLOPE, "rows": ["A"], "at_least": 0.0, "after": 0.0}, {"A": [failed]})
    assert part.values == pytest.approx([NAN], nan_ok=True)
    del one.history[1]["step"]
    one.history.append({"step": 80, "loss": 0.125})
    (part,) = measured({**SLOPE, "rows": ["A"], "at_least": 0.0, "after": 0.0}, {"A": [one]})
    assert part.values == pytest.approx([-1.0])
    (part,) = measured({**SLOPE, "rows": ["A"], "at_least": 0.0}, {"A": [run(0, loss=[])]})
    assert part.values == pytest.approx([NAN], nan_ok=True)


OVER_ROWS = {
    "kind": "slope", "metric": "calls/grad_g", "against": "kappa", "rows": ["k2"],
    "points": {"k2": 2.0, "k4": 4.0, "k8": 8.0}, "at_most": 5.0,
}  # fmt: skip


def test_slope_over_rows() -> None:
    """A row's value is its last one. A seed counts only if every row has it, and has no slope if
    one of its runs failed."""
    runs = {
        f"k{k}": [run(seed, loss=[3.0 * k ** (1 + seed)]) for seed in (2, 0, 1)] for k in (2, 4, 8)
    }
    claim = {**OVER_ROWS, "metric": "loss"}
    what = "slope of log loss against log kappa"
    check(measured(claim, runs), [(what, [1.0, 2.0, 3.0], -INF, 5.0)])
    check(
        measured({**claim, "at_least": 0.5}, {**runs, "k4": runs["k4"][:2]}),
        [(what, [1.0, 3.0], 0.5, 5.0)],
    )
    failed = {**runs, "k8": [run(0, "diverged", loss=[1.0]), *runs["k8"][2:], unfinished(2)]}
    check(measured(claim, failed), [(what, [NAN, 2.0], -INF, 5.0)])
    check(measured(claim, {**runs, "k8": []}), [(what, [], -INF, 5.0)])
    without = {row: some for row, some in runs.items() if row != "k8"}
    check(measured(claim, without), [(what, [], -INF, 5.0)])


UNTIL = {**OVER_ROWS, "until": "loss", "target": 0.5}
# the loss is .9 for k rows, then .5, then .1: after 30 k and 30 (k + 1) gradients
LATER = {f"k{k}": [run(s, loss=[0.9] * k + [0.5, 0.1]) for s in (0, 1)] for k in (2, 4, 8)}


def test_a_slope_takes_every_row() -> None:
    """Three of the four rows would be enough for a line, but the claim is about four."""
    points = {**OVER_ROWS["points"], "k16": 16.0}
    claim = {**OVER_ROWS, "metric": "loss", "points": points}
    runs = {f"k{k}": [run(0, loss=[3.0 * k]), run(1, loss=[3.0 * k])] for k in (2, 4, 8, 16)}
    runs["k4"][1] = run(1, "diverged", loss=[1.0])
    (part,) = measured(claim, runs)
    assert part.values == pytest.approx([1.0, NAN], nan_ok=True)


def test_slope_of_what_it_costs_to_reach_a_target() -> None:
    what = "slope of log calls/grad_g until loss ≤ {} against log kappa"
    check(measured(UNTIL, LATER), [(what.format("0.5"), [1.0, 1.0], -INF, 5.0)])
    each = statistics.loglog_slope([2, 4, 8], [3, 5, 9])
    check(
        measured({**UNTIL, "target": 0.25}, LATER),
        [(what.format("0.25"), [each] * 2, -INF, 5.0)],
    )
    own = {**UNTIL, "targets": {"k4": 0.25, "k8": 0.125}}
    mixed = statistics.loglog_slope([2, 4, 8], [2, 5, 9])
    check(measured(own, LATER), [(what.format("0.125 … 0.5"), [mixed] * 2, -INF, 5.0)])
    three = {**UNTIL, "targets": {"k2": 0.75, "k4": 0.25, "k8": 0.125}}
    (part,) = measured(three, LATER)
    assert part.what == what.format("0.125 … 0.75")
    at_once = {**UNTIL, "targets": {"k2": 0.95, "k4": 0.95}}  # no cost has no logarithm
    check(measured(at_once, LATER), [(what.format("0.5 … 0.95"), [NAN] * 2, -INF, 5.0)])
    never = {**LATER, "k8": [run(0, loss=[0.9, 0.8]), run(1, loss=[0.9] * 8 + [0.5])]}
    check(measured(UNTIL, never), [(what.format("0.5"), [NAN, 1.0], -INF, 5.0)])


def test_slope_of_a_ratio_of_rows() -> None:
    """The other rows need 2, 2 and 4 rows of their histories, so that the ratios are 1, 2 and 2."""
    others = {f"o{k}": [run(s, loss=[0.9] * n + [0.1]) for s in (0, 1)]
              for k, n in {2: 2, 4: 2, 8: 4}.items()}  # fmt: skip
    claim = {**UNTIL, "over": {"k2": "o2", "k4": "o4", "k8": "o8"}}
    (part,) = measured(claim, LATER | others)
    assert part.what == (
        "slope of log calls/grad_g until loss ≤ 0.5 against log kappa, "
        "of k2 and so on over o2 and so on"
    )
    expected = statistics.loglog_slope([2, 4, 8], [1, 2, 2])
    assert part.values == pytest.approx([expected] * 2)
    (part,) = measured(claim, LATER | others | {"o4": others["o4"][1:]})
    assert part.values == pytest.approx([expected])
    (part,) = measured(claim, LATER | others | {"o4": []})
    assert part.values == []
    (part,) = measured({**claim, "targets": {"o2": 0.95}}, LATER | others)
    assert part.values == pytest.approx([NAN] * 2, nan_ok=True)  # there at once, at no cost


def test_at_target_takes_the_first_row_that_is_there() -> None:
    one = run(0, loss=[0.9, 0.6, 0.5, 0.4])
    assert slopes.value_at_target(one, "step", "loss", 0.5) == 20
    assert slopes.value_at_target(one, "step", "loss", 0.45) == 30
    assert slopes.value_at_target(one, "step", "loss", 0.9) == 0
    in_float32 = run(0, loss=[0.9, 0.10000000149])  # .1 in float32
    assert slopes.value_at_target(in_float32, "step", "loss", 0.1) == 10
    assert math.isnan(slopes.value_at_target(one, "step", "loss", 0.1))
    assert math.isnan(slopes.value_at_target(one, "accuracy", "loss", 0.5))
    assert math.isnan(slopes.value_at_target(one, "step", "accuracy", 0.5))
    del one.history[2]["loss"]
    assert slopes.value_at_target(one, "step", "loss", 0.5) == 30


# verdicts on parts


def part(
    values: Sequence[float],
    low: float = 0.0,
    high: float = INF,
    what: str = "A",
    expected: int = 3,
    extra_se: float = 0.0,
) -> ClaimPart:
    return ClaimPart(
        what=what, values=list(values), low=low, high=high, expected=expected, extra_se=extra_se
    )


HOLDS, FAILS = part([1.0, 1.1, 1.2]), part([-1.0, -1.1, -1.2], what="below")
OPEN, WAITING = part([-1.0, 1.1, 0.3], what="around"), part([5.0, 5.1], what="two")


@pytest.mark.parametrize(
    ("parts", "word", "n", "deciding"),
    [
        ([HOLDS], "holds", 3, "A"),
        ([FAILS], "fails", 3, "below"),
        ([OPEN], "not enough runs", 3, "around"),
        ([WAITING], "not run", 2, "two"),
        ([part([])], "not run", 0, "A: no runs"),
        ([HOLDS, OPEN], "not enough runs", 3, "around"),
        ([OPEN, WAITING], "not run", 2, "two"),
        ([HOLDS, WAITING], "not run", 2, "two"),
        ([HOLDS, WAITING, OPEN, FAILS], "fails", 2, "below"),  # one that fails is enough
        ([part([-1.0, -1.01], what="two")], "not run", 2, "two"),  # a first look decides nothing
        ([part([-1.0, -1.01], what="two", expected=2)], "fails", 2, "two"),
        ([HOLDS, part([1.0, 1.1, 1.2, 1.3], what="four", expected=4)], "holds", 3, "A"),
        ([part([5.0], expected=1)], "not enough runs", 1, "A"),  # one run is a sample
    ],
)
def test_the_verdict_over_all_parts(
    parts: list[ClaimPart], word: str, n: int, deciding: str
) -> None:
    found = claims.judge_parts(parts)
    assert (found.word, found.n) == (word, n)
    assert found.statistic.startswith(deciding)
    assert [line.split(" ")[0].rstrip(":") for line in found.details] == [p.what for p in parts]


def test_counts_that_are_all_the_same_need_no_test() -> None:
    """Only counts at the end of whole runs are fixed by the settings."""

    def counts(claim: dict[str, Any]) -> bool:
        return claims.asks_for_counts(claimed(claim))

    assert counts({**ABOVE, "metric": "calls/grad_g"})
    assert counts({**ABOVE, "metric": "calls"})
    assert counts({**ABOVE, "metric": "samples/grad_g"})
    assert counts({**ABOVE, "metric": "samples"})
    assert counts({**OVER_ROWS, "metric": "calls/grad_g"})
    assert not counts(ABOVE)
    assert not counts({**ABOVE, "metric": "cpu_seconds"})
    assert not counts(UNTIL)
    assert not counts({"kind": "first", "metric": "calls", "rows": ["A"], "than": ["B"],
                       "on": "calls", "value": 1.0})  # fmt: skip
    runs = {row: [run(seed, loss=curve) for seed in (0, 1, 2)]
            for row, curve in {"A": [1.0] * 3, "B": [1.0] * 2}.items()}  # fmt: skip
    assert claims.judge_parts(measured({**ABOVE, "metric": "calls"}, runs)).word == "holds"
    less = {**ABOVE, "metric": "calls", "margin": 41.0}
    assert claims.judge_parts(measured(less, runs)).word == "fails"
    equal = {**ABOVE, "metric": "loss", "margin": -1.0}
    assert claims.judge_parts(measured(equal, runs)).word == "not enough runs"


@pytest.mark.parametrize("kind", ["above", "below", "order"])
def test_equal_counts_are_neither_more_nor_less(kind: str) -> None:
    runs = {row: [run(seed, loss=[1.0] * 3) for seed in (0, 1, 2)] for row in "AB"}
    rows = {"rows": ["A", "B"]} if kind == "order" else {"rows": ["A"], "than": ["B"]}
    claim = {"kind": kind, "metric": "calls", **rows}
    assert claims.judge_parts(measured(claim, runs)).word == "fails"
    most = runs["A"][0].last("calls")
    bound = {"kind": "between", "metric": "calls", "rows": ["A"], "at_most": most}
    assert claims.judge_parts(measured(bound, runs)).word == "holds"  # at most so many


def test_a_run_that_misses_its_target_has_no_cost() -> None:
    """It ended by its steps: what it took is not what the target takes."""
    runs = {
        row: [
            replace(found, planned=replace(found.planned, point=Point("paper", row, (), ())))
            for found in (run(seed, loss=curve) for seed in (0, 1, 2))
        ]
        for row, curve in {"A": [9.0, 5.0], "B": [9.0, 3.0, 0.1, 0.1]}.items()
    }
    claim = claimed({"kind": "below", "metric": "calls", "rows": ["A"], "than": ["B"]})

    def values(**goals: tuple[str, float]) -> list[float]:
        found = claims.claim_parts(claim, runs, 3, lambda n: Metric(label=n), {}, goals=goals)
        return found[0].values

    assert all(value < 0 for value in values())
    assert all(map(math.isnan, values(A=("loss", 0.1), B=("loss", 0.1))))
    assert all(value < 0 for value in values(A=("loss", 5.0), B=("loss", 0.1 * (1 - 1e-9))))
    runs = {
        row: [replace(found, planned=replace(found.planned, point=Point("paper", row, (), ())))
              for found in (run(seed, loss=curve) for seed in (0, 1, 2))]
        for row, curve in {"A": [9.0, -5.0], "B": [9.0, 3.0, 1.0, -1.0]}.items()
    }  # fmt: skip
    below_zero = {"A": ("loss", -5.0), "B": ("loss", -1.0 - 1e-9)}
    assert all(value < 0 for value in values(**below_zero))
    assert all(map(math.isnan, values(A=("loss", -5.1), B=("loss", -1.0))))


@pytest.mark.parametrize(
    ("parts", "deciding"),
    [
        ([part([2.0] * 6), part([1.0] * 6, what="B"), part([3.0] * 6)], "B"),
        ([part([-2.0] * 9), part([-5.0] * 9, what="B"), part([-3.0] * 9)], "B"),
        ([part([2.0] * 6, -INF, 9.0), part([2.0] * 6, -INF, 3.0, "B")], "B"),
        ([part([2.0] * 6, 1.5, 9.0, "B"), part([2.0] * 6, -5.0, 3.5)], "B"),
        ([part([2.0] * 9), part([2.0] * 9, -INF, -4.0, "B")], "B"),
        ([part([2.0] * 9), part([2.0, 2.0], -INF, 4.0, "B", 2)], "B"),  # without an interval
        # neither has an interval, and of the second one more values are outside
        ([part([2.0, 2.0, 2.0, NAN]), part([2.0, -2.0, -2.0, NAN], what="B")], "B"),
    ],
)
def test_the_statistic_shown_is_of_the_part_with_the_least_room(
    parts: list[ClaimPart], deciding: str
) -> None:
    assert claims.judge_parts(parts).statistic.startswith(f"{deciding} =")


@pytest.mark.parametrize(
    ("interval", "low", "high", "expected"),
    [
        ((2.0, 5.0), 1.0, 9.0, 1.0),
        ((2.0, 5.0), 0.0, 5.5, 0.5),
        ((2.0, 5.0), 3.0, INF, -1.0),
        ((2.0, 5.0), -INF, 4.0, -1.0),
        ((INF, INF), 0.0, INF, INF),
        ((-INF, 5.0), -INF, 7.0, 2.0),
        ((-INF, INF), -INF, INF, INF),
        (None, 0.0, INF, -INF),
    ],
)
def test_room(
    interval: tuple[float, float] | None, low: float, high: float, expected: float
) -> None:
    """The margin is the distance of the interval from its bounds, and negative outside of them."""
    found = statistics.Judgement("open", 3.0, interval, None, None, 3)
    assert claims.margin_inside(part([1.0], low, high), found) == expected


def test_one_of_many_parts_fails_at_bonferronis_level() -> None:
    """Two degrees of freedom: t is 4.303 at 95%, 6.205 at 97.5% and 7.649 at 98.33%, two-sided.

    The mean is -t / sqrt 3 with a standard error of 1 / sqrt 3.
    """
    for t, most in {4.2: 0, 4.4: 1, 6.1: 1, 6.3: 2, 7.5: 2, 7.8: 3}.items():
        low = part([-t / math.sqrt(3) + d for d in (-1.0, 0.0, 1.0)])
        fine = part([9.0, 9.1, 9.2])
        words = [claims.judge_parts([low, *[fine] * more]).word for more in range(4)]
        assert words == ["fails"] * most + ["not enough runs"] * (4 - most)


def test_that_all_of_many_parts_hold_takes_no_correction() -> None:
    just = part([4.4 / math.sqrt(3) + d for d in (-1.0, 0.0, 1.0)])
    assert claims.judge_parts([just] * 4).word == "holds"


def test_the_error_of_a_published_value_widens_the_interval() -> None:
    values = [0.01, 0.02, 0.03]
    assert claims.judge_parts([part(values, -0.1, 0.1)]).word == "holds"
    vague = part(values, -0.1, 0.1, extra_se=0.05)
    assert claims.judge_parts([vague]).word == "not enough runs"


def test_infinite_values_decide_by_their_signs() -> None:
    """Infinite values stand for runs that diverged and for targets that were never reached."""
    for values, word in {
        (INF, INF, INF): "not enough runs",
        (INF, 0.5, 0.7, 0.6, 0.8, 0.9): "holds",
        (-INF, -0.5, -0.7, -0.6, -0.8, -0.9): "fails",
        (INF, -0.5, 0.7, 0.6, 0.8, 0.9): "not enough runs",
        (INF, -INF, 0.7): "not enough runs",
        (NAN, 0.5, 0.7, 0.6, 0.8, 0.9): "not enough runs",
    }.items():
        assert claims.judge_parts([part(values)]).word == word


def test_a_tolerance_is_whole_on_both_sides() -> None:
    """.03 from the paper with a tolerance of .04 holds; .05 fails."""
    claim = {"kind": "within_published", "metric": "accuracy", "rows": ["A"], "tolerance": 0.04}
    paper = {"A": {"accuracy": Published(mean=0.5)}}
    for value, word in {0.53: "holds", 0.47: "holds", 0.55: "fails", 0.45: "fails"}.items():
        parts = measured(claim, {"A": ends(accuracy=[value - 1e-4, value, value + 1e-4])}, paper)
        assert claims.judge_parts(parts).word == word


def test_a_published_value_of_one_draw_is_off_as_a_seed_of_ours_may_be() -> None:
    """Six seeds whose deviation is .01: a mean that is .02 inside of the bound then says nothing,
    as it would be one of seven seeds that is compared with the other six."""
    claim = {"kind": "within_published", "metric": "accuracy", "rows": ["A"], "tolerance": 0.04}
    gaps = [-0.01, 0.01, -0.01, 0.01, -0.01, 0.01]
    runs = {"A": ends(accuracy=[0.52 + gap for gap in gaps])}
    deviation = 0.01 * math.sqrt(6 / 5)

    def judged(paper: Published) -> tuple[float, int | None, str]:
        (found,) = measured(claim, runs, {"A": {"accuracy": paper}})
        return found.extra_se, found.extra_n, claims.judge_parts([found]).word

    assert judged(Published(mean=0.5)) == (0.0, None, "holds")
    of_one = judged(Published(mean=0.5, n=10, one_draw=True))
    assert of_one == (pytest.approx(deviation), None, "not enough runs")
    of_one = judged(Published(mean=0.5, se=0.03, n=10, one_draw=True))
    assert of_one[0] == pytest.approx(math.hypot(0.03, deviation))
    runs["A"][5] = run(5, "diverged", accuracy=[0.5])  # its value is infinite
    rest = 0.01 * math.sqrt(24 / 25 * 5 / 4)  # of five values at -.01, .01, -.01, .01, -.01
    assert judged(Published(mean=0.5, n=10, one_draw=True))[0] == pytest.approx(rest)
    runs["A"] = runs["A"][:1]
    assert judged(Published(mean=0.5, se=0.03, n=10, one_draw=True))[0] == 0.03


@pytest.mark.parametrize("log", [True, False])
def test_a_difference_of_rounding_is_none(log: bool) -> None:
    """Values that are the same to the nine digits of a record are the same while the runs are there
    too, and a difference of two logarithms is no larger than that of the values."""
    claim = {"kind": "above", "metric": "loss", "rows": ["A"], "than": ["B"], "log": log}
    for a, b in {1.000000044: 1.000000041, 0.3 + 3e-16: 0.3}.items():
        runs = {"A": ends(loss=[a] * 3), "B": ends(loss=[b] * 3)}
        assert measured(claim, runs)[0].values == [0.0] * 3
    runs = {"A": ends(loss=[1.00000002] * 3), "B": ends(loss=[1.0] * 3)}
    assert measured(claim, runs)[0].values == pytest.approx([2e-8] * 3, rel=1e-6)


@pytest.mark.parametrize("log", [True, False])
def test_a_run_that_failed_has_the_worst_value_by_logarithms_too(log: bool) -> None:
    better = [run(seed, accuracy=[0.5]) for seed in (0, 1)]
    failed = [run(seed, "diverged", accuracy=[0.5]) for seed in (0, 1)]
    claim = {"kind": "above", "metric": "accuracy", "rows": ["A"], "than": ["B"], "log": log}
    assert measured(claim, {"A": better, "B": failed})[0].values == [INF] * 2
    assert measured(claim, {"A": failed, "B": better})[0].values == [-INF] * 2
    both = measured(claim, {"A": failed, "B": failed})[0].values
    assert all(map(math.isnan, both))


def test_the_p_value_of_a_claim_is_that_of_all_parts_or_of_the_clearest_failure() -> None:
    """The signs of six, seven and eight values have p-values 1/64, 1/128 and 1/256 on one side."""
    six, seven, eight = (part([1.0] * n) for n in (6, 7, 8))
    assert claims.judge_parts([seven]).p == pytest.approx(1 / 64)
    assert claims.judge_parts([eight, six, seven]).p == pytest.approx(1 / 32)  # the least sure
    below = part([-1.0] * 8)
    assert claims.judge_parts([six, below]).p == pytest.approx(2 * 2 / 256)  # Bonferroni for two
    assert claims.judge_parts([six, part([1.0])]).p is None
    found = claims.judge_parts([part([2.0] * 6), part([1.0] * 8, what="B")])
    assert (found.word, found.statistic[-16:]) == ("holds", "p = 0.031, n = 8")  # not B's .0078
    assert [line.split(", p")[1] for line in found.details] == [
        " = 0.031, n = 6",
        " = 0.0078, n = 8",
    ]


# what a claim of each kind says of values that hold, fail and leave it open
KINDS: dict[str, tuple[dict[str, Any], list[Any], list[Any], list[Any]]] = {
    "above": ({"rows": ["A"], "than": ["B"]}, [3, 4, 5], [0, 0.1, -0.5], [-9, 0, 9]),
    "above, log": ({"kind": "above", "rows": ["A"], "than": ["B"], "log": True, "margin": 0.5},
                   [4, 5, 6], [0.1, 0.2, 0.3], [0.1, 1, 9]),
    "below": ({"rows": ["A"], "than": ["B"]}, [0, 0.1, -0.5], [3, 4, 5], [-9, 0, 9]),
    "below, log": ({"kind": "below", "rows": ["A"], "than": ["B"], "log": True, "factor": 2.0},
                   [0.1, 0.2, 0.3], [4, 5, 6], [0.1, 1, 9]),
    "order": ({"rows": ["A", "B"]}, [3, 4, 5], [0, 0.1, -0.5], [-9, 0, 9]),
    "between": ({"rows": ["A"], "at_least": 1.0, "at_most": 3.0}, [2, 2.1, 1.9], [4, 4.1, 3.9],
                [0, 2, 4]),
    "within_published": ({"rows": ["A"], "tolerance": 0.5}, [2, 2.1, 1.9], [4, 4.1, 3.9],
                         [0, 2, 4]),
    "close": ({"rows": ["A", "B"], "every": ["loss"], "within": 0.5}, [1, 1.1, 0.9],
              [4, 4.1, 3.9], [0, 2, 4]),
    "converges": ({"rows": ["A"], "within": 0.5}, [0.1, 0.2, 0.3], [4, 4.1, 3.9], [0, 2, 4]),
    "does_not_converge": ({"rows": ["A"], "beyond": 0.5}, [4, 4.1, 3.9], [0.1, 0.2, 0.3],
                          [0, 2, 4]),
    "diverges": ({"rows": ["A"], "growth": 10.0}, [99, 98, 97], [0.1, 0.2, 0.3], [0.1, 9, 900]),
    "slope": ({"rows": ["A"], "against": "k", "points": {"A": 1.0, "B": 2.0, "C": 4.0},
               "at_most": 0.0}, [4, 5, 6], [0.1, 0.2, 0.3], [0.1, 1, 9]),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_holds_fails_and_is_open(kind: str) -> None:
    """B is 1 at every seed, and C too; the values of A say what is so."""
    claim, *cases = KINDS[kind]
    claim = {"kind": kind, **({} if kind == "close" else {"metric": "loss"}), **claim}
    paper = {"A": {"loss": Published(mean=2.0)}}
    for values, word in zip(cases, ("holds", "fails", "not enough runs")):
        runs = {"A": [run(seed, loss=[0.5, v]) for seed, v in enumerate(values)],
                **{row: ends(loss=[1.0, 1.0, 1.0]) for row in "BC"}}  # fmt: skip
        assert claims.judge_parts(measured(claim, runs, paper)).word == word, values


def test_the_logarithm_of_a_ratio_is_compared() -> None:
    runs = {"A": ends(loss=[6.0, 0.0, -1.0]), "B": ends(loss=[3.0, 3.0, 3.0])}
    claim = {"kind": "above", "metric": "loss", "rows": ["A"], "than": ["B"], "log": True}
    what = "log(test loss): {} − {}"
    check(measured(claim, runs), [(what.format("A", "B"), [math.log(2), -INF, NAN], 0.0, INF)])
    below = {**claim, "kind": "below", "factor": 4.0, "margin": 0.5}
    values = [math.log(0.5), -INF, NAN]
    check(measured(below, runs), [(what.format("A", "4 × B"), values, -INF, -0.5)])
    order = {"kind": "order", "metric": "loss", "rows": ["B", "A"], "log": True}
    check(measured(order, runs), [(what.format("B", "A"), [-math.log(2), INF, NAN], 0.0, INF)])


def test_a_claim_about_medians_says_so() -> None:
    (part_,) = measured({**ABOVE, "median": True}, ROWS)
    assert part_.median
    assert not measured(ABOVE, ROWS)[0].median


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (part([]), "A: no runs"),
        (part([2.0], expected=1), "A = 2, asked > 0, n = 1"),
        (part([2.0, 2.0], 0.5), "A = 2, asked > 0.5, p = 0.5, n = 2"),
        (part([2.0, 2.0], -INF, -0.5), "A = 2, asked < −0.5, p = 0.5, n = 2"),
        (part([2.0] * 6, 1.0, 3.0), "A = 2, asked > 1 and < 3, p = 0.031, n = 6"),
        (part([INF, *[1.0] * 5]), "A = 1 [1, ∞], asked > 0, p = 0.031, n = 6"),
        # mean 2, standard error 1 / sqrt 3, t(.975; 2) = 4.3027; p of t = 2 sqrt 3: .0742
        (part([1.0, 2.0, 3.0]), "A = 2 [−0.4841, 4.484], asked > 0, p = 0.074, n = 3"),
    ],
)
def test_the_statistic_in_one_line(one: ClaimPart, expected: str) -> None:
    found = claims.judge_parts([one])
    assert found.statistic == expected
    assert found.details == [expected]


def test_a_verdict_in_words() -> None:
    def said(word: Any) -> str:
        return Verdict(word=word, n=2, statistic="s", details=[]).text

    assert said("not enough runs") == "not enough runs (n=2)"
    assert [said(w) for w in ("holds", "fails", "not run")] == ["holds", "fails", "not run"]


def test_parts_go_through_json_and_do_not_change() -> None:
    one = ClaimPart(what="A", values=[-INF, NAN], low=-INF, high=INF, expected=2)
    assert one.reference == statistics.EXACT
    assert part([1.0], extra_se=0.5).reference == statistics.Reference(0.5)
    back = ClaimPart.model_validate_json(one.model_dump_json())
    assert (back.low, back.high, back.values[0]) == (-INF, INF, -INF)
    assert math.isnan(back.values[1])
    with pytest.raises(ValidationError):
        one.low = 0.0
    verdict = claims.judge_parts([HOLDS])
    with pytest.raises(ValidationError):
        verdict.word = "fails"


@pytest.mark.parametrize(
    ("target", "missed"),
    [(0.5, False), (0.5 * (1 - 0.9e-8), False), (0.5 * (1 - 1.1e-8), True), (0.4999, True)],
)
def test_only_what_nine_digits_hide_is_not_above_a_target(target: float, missed: bool) -> None:
    """The run ends at .5."""
    (one,) = ends(loss=[0.5])
    own = replace(one, planned=replace(one.planned, point=Point("paper", "A", (), ())))
    claim = claimed({"kind": "between", "metric": "calls", "rows": ["A"], "at_most": 99.0})
    (found,) = claims.claim_parts(
        claim, {"A": [own]}, 1, lambda n: Metric(label=n), {}, goals={"A": ("loss", target)}
    )
    assert math.isnan(found.values[0]) == missed
