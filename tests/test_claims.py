"""Every kind of claim: what makes it hold, fail, stay open, or be not run."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from bench.reproduce import claims
from bench.reproduce.claims import Verdict
from bench.reproduce.plan import Job, Run
from bench.reproduce.specs import AnyClaim, Metric, Point, Published

METRICS = {"accuracy": Metric(label="accuracy", better="higher"), "loss": Metric(label="loss")}


def run(seed: int, curve: Sequence[float | None], status: str = "done", **more: float) -> Run:
    """A run whose accuracy and loss are `curve` at steps 0, 10, ...; a step takes 2 seconds."""
    rows: list[dict[str, Any]] = [
        {"step": 10 * i, "seconds": 20.0 * i, "accuracy": v, "loss": v, "calls/grad_g": 30 * i,
         "calls/grad_f": 10 * i, **more}
        for i, v in enumerate(curve)
    ]  # fmt: skip
    job = Job(Point("paper", "", (), ()), seed, f"t/a/{seed}")
    found = Run(job, Path(), {"status": status, "reason": None, "last": rows[-1]})
    found.__dict__["history"] = rows  # as if read from its file
    return found


def ends(*values: float) -> list[Run]:
    return [run(seed, [0.1, v]) for seed, v in enumerate(values)]


def judged(
    claim: dict[str, Any],
    runs: Mapping[str, Sequence[Run]],
    expected: int = 3,
    exact: bool = False,
    published: Mapping[str, Mapping[str, Published]] | None = None,
) -> Verdict:
    full = {"text": "t", "rows": ["A"], "metric": "accuracy", **claim}
    if claim["kind"] == "close":
        full.pop("metric")
    spec: AnyClaim = TypeAdapter[Any](AnyClaim).validate_python(full, strict=True)
    parts = claims.measured(
        spec, runs, expected, lambda n: METRICS.get(n, Metric(label=n)), published or {}
    )
    return claims.judged(parts, exact)


def test_peak_memory_is_where_the_tensors_were() -> None:
    one = run(0, [0.1])
    assert one.summary is not None
    one.summary["peak_memory_mb"] = {"process": 900.0}
    assert one.last("peak_memory_mb") == 900
    one.summary["peak_memory_mb"]["gpu"] = 70.0
    assert one.last("peak_memory_mb") == 70


BETTER, WORSE = ends(0.91, 0.92, 0.93), ends(0.81, 0.83, 0.82)


@pytest.mark.parametrize(
    ("claim", "runs", "word"),
    [
        ({"kind": "above", "than": ["B"]}, {"A": BETTER, "B": WORSE}, "holds"),
        ({"kind": "above", "than": ["B"]}, {"A": WORSE, "B": BETTER}, "fails"),
        ({"kind": "above", "than": ["B"], "margin": -0.2}, {"A": WORSE, "B": BETTER}, "holds"),
        ({"kind": "above", "than": ["B"]}, {"A": BETTER, "B": ends(0.95, 0.8, 0.92)},
         "not enough runs"),
        ({"kind": "above", "than": ["B"]}, {"A": BETTER, "B": []}, "not run"),
        ({"kind": "above", "than": ["B"]}, {"A": BETTER, "B": WORSE[:2]}, "not run"),
        ({"kind": "below", "than": ["B"]}, {"A": WORSE, "B": BETTER}, "holds"),
        ({"kind": "below", "than": ["B"]}, {"A": BETTER, "B": WORSE}, "fails"),
        ({"kind": "below", "than": ["B"], "factor": 1.3}, {"A": BETTER, "B": WORSE}, "holds"),
        ({"kind": "order", "rows": ["A", "B", "C"]},
         {"A": BETTER, "B": WORSE, "C": ends(0.7, 0.71, 0.72)}, "holds"),
        ({"kind": "order", "rows": ["A", "C", "B"]},
         {"A": BETTER, "B": WORSE, "C": ends(0.7, 0.71, 0.72)}, "fails"),
        ({"kind": "between", "at_least": 0.9}, {"A": BETTER}, "not enough runs"),
        ({"kind": "between", "at_least": 0.85, "at_most": 0.99}, {"A": BETTER}, "holds"),
        ({"kind": "between", "at_most": 0.5}, {"A": BETTER}, "fails"),
        ({"kind": "close", "rows": ["A", "B"], "every": ["accuracy"], "within": 0.05},
         {"A": BETTER, "B": ends(0.911, 0.921, 0.93)}, "holds"),
        ({"kind": "close", "rows": ["A", "B"], "every": ["accuracy"], "within": 0.01},
         {"A": BETTER, "B": WORSE}, "fails"),
        ({"kind": "converges", "within": 0.2, "to": 1.0}, {"A": BETTER}, "holds"),
        ({"kind": "converges", "within": 0.01}, {"A": BETTER}, "fails"),
        ({"kind": "does_not_converge", "beyond": 0.01}, {"A": BETTER}, "holds"),
        ({"kind": "does_not_converge", "beyond": 2.0}, {"A": BETTER}, "fails"),
        ({"kind": "diverges", "growth": 5.0}, {"A": BETTER}, "holds"),
        ({"kind": "diverges", "growth": 100.0}, {"A": BETTER}, "fails"),
    ],
)  # fmt: skip
def test_verdicts(claim: dict[str, Any], runs: dict[str, list[Run]], word: str) -> None:
    assert judged(claim, runs).word == word


def test_one_run_decides_only_where_there_is_no_randomness() -> None:
    claim = {"kind": "above", "than": ["B"]}
    runs = {"A": ends(0.9), "B": ends(0.8)}
    assert judged(claim, runs, expected=1).text == "not enough runs (n=1)"
    assert judged(claim, runs, expected=1, exact=True).word == "holds"


def test_pairs_are_of_the_same_seed() -> None:
    """Seed 7 of B has no partner; the differences of the others are constant."""
    a = [run(0, [0, 0.9]), run(1, [0, 0.5]), run(2, [0, 0.7])]
    b = [run(7, [0, 0.1]), run(2, [0, 0.6]), run(1, [0, 0.4]), run(0, [0, 0.8])]
    verdict = judged({"kind": "above", "than": ["B"]}, {"A": a, "B": b})
    assert (verdict.word, verdict.n) == ("holds", 3)
    assert "= 0.1" in verdict.statistic


def test_a_failed_run_counts_as_the_worst() -> None:
    failed = [run(seed, [0.1, 0.99], status="diverged") for seed in range(3)]
    assert judged({"kind": "above", "than": ["B"]}, {"A": failed, "B": WORSE}).word == "fails"
    assert judged({"kind": "above", "than": ["B"]}, {"A": WORSE, "B": failed}).word == "holds"
    assert judged({"kind": "converges", "within": 2.0}, {"A": failed}).word == "fails"
    assert judged({"kind": "does_not_converge", "beyond": 2.0}, {"A": failed}).word == "holds"
    assert judged({"kind": "diverges", "growth": 1e9}, {"A": failed}).word == "holds"


def test_a_published_value_has_its_own_uncertainty() -> None:
    claim = {"kind": "within_published", "tolerance": 0.05}
    exact = {"A": {"accuracy": Published(mean=0.92)}}
    vague = {"A": {"accuracy": Published(mean=0.92, se=0.03, n=5)}}
    far = {"A": {"accuracy": Published(mean=0.5)}}
    assert judged(claim, {"A": BETTER}, published=exact).word == "holds"
    assert judged(claim, {"A": BETTER}, published=vague).word == "not enough runs"
    assert judged(claim, {"A": BETTER}, published=far).word == "fails"


def test_first_to_a_value_in_time_and_in_calls() -> None:
    quick = [run(s, [0.1, 0.9, 0.9, 0.9]) for s in range(3)]
    slow = [run(s, [0.1, 0.2, 0.5, 0.9]) for s in range(3)]
    never = [run(s, [0.1, 0.2, 0.2, 0.2]) for s in range(3)]
    for on in ("seconds", "calls", "calls/grad_g"):
        claim = {"kind": "first", "than": ["B"], "on": on, "value": 0.8}
        assert judged(claim, {"A": quick, "B": slow}).word == "holds"
        assert judged(claim, {"A": slow, "B": quick}).word == "fails"
        assert judged(claim, {"A": quick, "B": never}).word == "holds"
        assert judged(claim, {"A": never, "B": quick}).word == "fails"
        assert judged(claim, {"A": never, "B": never}).word == "fails"
        cheap = [run(s, [0.1, 0.2]) for s in range(3)]  # stopped long before, without the target
        assert judged(claim, {"A": slow, "B": cheap}).word == "holds"
    verdict = judged({"kind": "first", "than": ["B"], "on": "seconds", "value": 0.8},
                     {"A": quick, "B": slow})  # fmt: skip
    assert f"= {math.log(3):.4g}" in verdict.statistic  # 60 seconds against 20
    claim = {"kind": "first", "than": ["B"], "on": "seconds", "value": 0.8}
    assert judged({**claim, "factor": 2.9}, {"A": quick, "B": slow}).word == "holds"
    assert judged({**claim, "factor": 3.1}, {"A": quick, "B": slow}).word == "fails"


def test_first_to_a_share_of_ones_own_gain() -> None:
    low = [run(s, [0.1, 0.3, 0.3, 0.3]) for s in range(3)]  # gains little, at once
    high = [run(s, [0.1, 0.5, 0.7, 0.9]) for s in range(3)]
    claim = {"kind": "first", "than": ["B"], "on": "seconds", "gain": 0.95}
    assert judged(claim, {"A": low, "B": high}).word == "holds"


def test_slope_over_a_run_and_over_rows() -> None:
    power = [run(s, [1.0] + [5.0 * (10 * i) ** -0.5 for i in range(1, 40)]) for s in range(3)]
    claim = {"kind": "slope", "against": "step", "at_least": -0.51, "at_most": -0.49}
    assert judged(claim, {"A": power}).word == "holds"
    assert judged({**claim, "at_least": -0.3, "at_most": 0.0}, {"A": power}).word == "fails"
    rows = {f"k{k}": [run(s, [0.0], cost=float(k) ** 1.5) for s in range(3)] for k in (1, 10, 100)}
    over = {"kind": "slope", "metric": "cost", "against": "kappa", "rows": list(rows),
            "points": {"k1": 1.0, "k10": 10.0, "k100": 100.0}}  # fmt: skip
    assert judged({**over, "at_most": 1.6}, rows).word == "holds"
    assert judged({**over, "at_most": 1.0}, rows).word == "fails"


def test_slope_of_what_it_costs_to_reach_a_target() -> None:
    """Row k is below .5 after k rows: 30 gradients each. Over another: the ratio's slope."""
    rows = {f"k{k}": [run(s, [0.9] * k + [0.4, 0.1]) for s in range(3)] for k in (4, 8, 16)}
    points = {"k4": 4.0, "k8": 8.0, "k16": 16.0}
    claim = {"kind": "slope", "metric": "calls/grad_g", "against": "kappa", "rows": ["k4"],
             "points": points, "until": "loss", "target": 0.5}  # fmt: skip
    assert "= 1," in judged({**claim, "at_most": 1.01}, rows).statistic
    assert judged({**claim, "at_most": 1.01}, rows).word == "holds"
    assert judged({**claim, "at_most": 0.9}, rows).word == "fails"
    own = {**claim, "target": None, "targets": dict.fromkeys(points, 0.95), "at_most": 9.0}
    assert judged(own, rows).word == "not enough runs"  # reached at once, at no cost: no slope
    never = rows | {"k16": [run(s, [0.9, 0.8]) for s in range(3)]}
    assert judged({**claim, "at_most": 1.01}, never).word == "not enough runs"
    constant = {f"c{k}": [run(s, [0.9] * 2 + [0.1]) for s in range(3)] for k in (4, 8, 16)}
    over = {**claim, "over": {f"k{k}": f"c{k}" for k in (4, 8, 16)}, "at_least": 0.99}
    assert judged({**over, "at_most": 1.01}, rows | constant).word == "holds"
    assert judged({**over, "at_most": 1.01}, rows | constant | {"c4": []}).word == "not run"


def test_the_statistic_shown_is_the_deciding_one() -> None:
    runs = {"A": BETTER, "B": WORSE, "C": ends(0.95, 0.96, 0.97)}
    verdict = judged({"kind": "above", "than": ["B", "C"]}, runs)
    assert verdict.word == "fails"
    assert "A − C" in verdict.statistic
    assert len(verdict.details) == 2
