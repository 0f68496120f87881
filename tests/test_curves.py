"""What a report draws and prints, from runs whose numbers are known."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bench.reproduce import curves, drawings
from bench.reproduce.plan import Job, Plan, Row, Run
from bench.reproduce.specs import Artifact, Metric, Point, Spec, load_book

BOOK = load_book()
ACCURACY = Metric(label="test accuracy", better="higher", percent=True)
LOSS = Metric(label="test loss", better="lower")


def plan(histories: dict[str, Sequence[Sequence[float | None]]], lines: Sequence[str] = ()) -> Plan:
    """An artifact whose rows have these test accuracies at steps 0, 10, ..., one list per seed."""
    spec = Spec.model_validate(
        {
            "title": "t", "source": "s", "task": "hyper_cleaning", "variants": {"paper": {}},
            "budgets": {"short": {"minutes": 1.0, "seeds": 2}}, "columns": ["test_accuracy"],
            "figure": {"metrics": ["test_accuracy"]}, "claims": {},
            "rows": {n: {"method": "bome", "line": n in lines} for n in histories},
        }
    )  # fmt: skip
    rows = []
    for name, seeds in histories.items():
        point, runs = Point("paper", name, (), ()), []
        for seed, values in enumerate(seeds):
            history: list[dict[str, Any]] = [
                {"step": 10 * i, "seconds": (1.0 + seed) * i, "test_accuracy": v,
                 "calls/grad_g": 20 * i}
                for i, v in enumerate(values)
            ]  # fmt: skip
            status = "done" if None not in values else "diverged"
            summary = {"status": status, "reason": "x is not finite", "last": history[-1]}
            run = Run(Job(point, seed, f"t/a/{name}{seed}"), Path(), summary)
            run.__dict__["history"] = history
            runs.append(run)
        rows.append(Row("paper", name, (runs[0],), point, tuple(runs)))
    return Plan(Artifact("p/a", spec, Path()), "short", tuple(rows), 0)


def test_a_curve_is_the_mean_over_seeds_with_its_standard_error() -> None:
    (line,) = curves.curves(plan({"A": [[0.1, 0.5], [0.3, 0.7]]}), BOOK)["paper"]
    assert line["y"]["test_accuracy"] == [
        (pytest.approx(0.2), pytest.approx(0.1)), (pytest.approx(0.6), pytest.approx(0.1)),
    ]  # fmt: skip
    assert line["x"]["step"] == [0, 10]
    assert line["x"]["seconds"] == [0, 1.5]
    assert line["x"]["calls"] == line["x"]["calls/grad_g"] == [0, 20]  # every count is an axis


def test_a_seed_that_diverged_shortens_the_mean_and_leaves_a_gap() -> None:
    (line,) = curves.curves(plan({"A": [[0.1, 0.5, 0.6], [0.3, None]]}), BOOK)["paper"]
    assert line["y"]["test_accuracy"] == [(pytest.approx(0.2), pytest.approx(0.1)), (None, None)]


def test_a_reference_line_is_level_at_its_end_as_far_as_the_others_go() -> None:
    found = curves.curves(plan({"A": [[0.1, 0.5, 0.6]], "L": [[0.0, 0.4]]}, ["L"]), BOOK)["paper"]
    assert found[1]["x"]["step"] == [0.0, 20]
    assert found[1]["y"]["test_accuracy"] == [(pytest.approx(0.4), 0.0)] * 2


def test_thinning_keeps_both_ends() -> None:
    rows = [{"step": i} for i in range(1001)]
    kept = curves.thinned(rows, 11)
    assert [row["step"] for row in kept] == list(range(0, 1001, 100))
    assert curves.thinned(rows[:5], 11) == rows[:5]


def test_costs_are_drawn_against_what_they_grow_with(tmp_path: Path) -> None:
    """A panel per cost, the method in the legend, its points and the stated order's line."""
    artifact, method = BOOK.artifacts["stocbio/table1"], BOOK.methods["aid_bio"]
    (tmp_path / "stocbio").mkdir()
    lines = [
        {
            "metric": "gradients of g", "against": "κ", "order": 4.0,
            "points": [(10, 3e3), (100, 5e5)], "method": method,
        }
    ]  # fmt: skip
    ((words, name),) = drawings.scalings(artifact, {"paper": lines}, tmp_path)
    picture = (tmp_path / "stocbio" / name).read_text()
    for part in ("gradients of g", "κ", "AID-BiO"):
        assert part in picture
    assert picture.count(f"stroke: {method.colour}") >= 3
    assert "stated order" in words
