"""What a report draws and prints, from runs whose numbers are known."""

import copy
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bench.core.draw import generator
from bench.core.task import Context, Report
from bench.reproduce import curves, histories, pictures
from bench.reproduce.book import load_book
from bench.reproduce.plan import Plan, PlannedRow, PlannedRun, Run
from bench.reproduce.points import Point
from bench.reproduce.specs import Artifact, Metric, Spec
from bench.runs.folder import RunFolder

BOOK = load_book()
ACCURACY = Metric(label="test accuracy", better="higher", percent=True)
LOSS = Metric(label="test loss", better="lower")


def plan(
    histories: dict[str, Sequence[Sequence[float | None]]],
    lines: Sequence[str] = (),
    claims: Any = None,
    trajectory: Any = None,
) -> Plan:
    """An artifact whose rows have these test accuracies at steps 0, 10, ..., one list per seed."""
    spec = Spec.model_validate(
        {
            "title": "t", "source": "s", "task": "hyper_cleaning", "variants": {"paper": {}},
            "budgets": {"short": {"minutes": 1.0, "seeds": 2}}, "columns": ["test_accuracy"],
            "figure": {"metrics": ["test_accuracy"], "trajectory": trajectory},
            "claims": claims or {},
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
            run = Run(
                PlannedRun(point, seed, f"t/a/{name}{seed}"),
                RunFolder(Path(), f"t/a/{name}{seed}"),
                summary,
            )
            run.__dict__["history"] = history
            runs.append(run)
        rows.append(PlannedRow("paper", name, tuple(runs[:1]), point, tuple(runs)))
    return Plan(Artifact("p/a", spec, Path()), "short", tuple(rows), 0)


def test_a_curve_is_the_mean_over_seeds_with_its_standard_error() -> None:
    (line,) = curves.curves(plan({"A": [[0.1, 0.5], [0.3, 0.7]]}), BOOK)["paper"]
    assert line["y"]["test_accuracy"] == [
        (pytest.approx(0.2), pytest.approx(0.1)), (pytest.approx(0.6), pytest.approx(0.1)),
    ]  # fmt: skip
    assert line["x"]["step"] == [0, 10]
    assert line["x"]["seconds"] == [0, 1.5]
    assert line["x"]["calls"] == line["x"]["calls/grad_g"] == [0, 20]  # every count is an axis


def test_a_seed_that_diverged_is_left_out_as_the_table_does() -> None:
    """It would cut the curve of all; and below the figure stands how many runs a curve is of."""
    some = plan({"A": [[0.1, 0.5], [0.3, None], [0.3, 0.7]], "B": [[0.1]], "C": [[0.2]]})
    some.rows[2].runs[0].history.clear()  # the record has none
    first, second = curves.curves(some, BOOK)["paper"]
    assert (first["n"], second["n"]) == (2, 1)
    assert first["y"]["test_accuracy"] == [
        (pytest.approx(0.2), pytest.approx(0.1)), (pytest.approx(0.6), pytest.approx(0.1)),
    ]  # fmt: skip
    assert curves.shares_drawn(some) == ["A (paper) 2 of 3", "C (paper) none of 1"]


def test_where_all_seeds_diverged_they_are_drawn_as_far_as_they_come() -> None:
    some = plan({"A": [[0.1, 0.5, None], [0.3, None]]})
    (line,) = curves.curves(some, BOOK)["paper"]
    assert line["y"]["test_accuracy"] == [(pytest.approx(0.2), pytest.approx(0.1)), (None, None)]
    assert curves.shares_drawn(some) == []


def seeds_of_steps(*seeds: Mapping[int, float | None]) -> Plan:
    """One row whose seeds have these accuracies at these steps; seed k takes k + 1 s a step."""
    some = plan({"A": [[0.0]] * len(seeds)})
    for k, (run, values) in enumerate(zip(some.rows[0].runs, seeds)):
        run.history[:] = [
            {"step": step, "seconds": (k + 1.0) * step, "test_accuracy": v, "calls/f": 2 * step}
            for step, v in values.items()
        ]
    return some


def test_seeds_are_averaged_at_the_same_steps_however_their_histories_are_thinned() -> None:
    """The seeds measure s^2 and 3 s^2 at step s, and a record keeps 1001 rows of the first run and
    200 of the others: the mean is 2 s^2 with the error s^2, in whatever order they come."""
    steps = range(0, 10_001, 10)
    whole = {s: float(s**2) for s in steps}
    thin = {s: 3.0 * s**2 for s in histories.thin_rows(steps, 200)}
    for seeds in ((whole, thin), (thin, whole)):
        (line,) = curves.curves(seeds_of_steps(*seeds), BOOK)["paper"]
        drawn = line["x"]["step"]
        assert (len(drawn), drawn[0], drawn[-1]) == (200, 0, 10_000)
        assert line["x"]["seconds"] == pytest.approx([1.5 * s for s in drawn])
        assert line["x"]["calls"] == pytest.approx([2 * s for s in drawn])
        means, errors = zip(*line["y"]["test_accuracy"])
        assert means == pytest.approx([2 * s**2 for s in drawn], rel=1e-5)  # six digits
        assert errors == pytest.approx([s**2 for s in drawn], rel=1e-5)


def test_a_curve_of_many_steps_is_thinned_once_for_all_seeds() -> None:
    """A thousand rows and eight hundred would have other steps if each were thinned for itself."""
    square = [{s: float(k * s**2) for s in range(last)} for k, last in ((1, 1000), (3, 800))]
    (line,) = curves.curves(seeds_of_steps(*square), BOOK)["paper"]
    drawn = line["x"]["step"]
    assert (len(drawn), drawn[0], drawn[-1]) == (curves.POINTS, 0, 799)
    means = [mean for mean, _ in line["y"]["test_accuracy"]]
    assert means == pytest.approx([2 * s**2 for s in drawn], rel=1e-5)


def test_a_curve_ends_with_its_first_run_and_the_others_are_between_their_rows() -> None:
    """A clock ends the second seed at step 25, when the first is midway between .4 and .8."""
    first: dict[int, float | None] = {0: 0.0, 10: 0.2, 20: 0.4, 30: 0.8, 40: 0.9}
    some = seeds_of_steps(first, {0: 0.2, 10: 0.2, 20: 0.2, 25: 0.2})
    (line,) = curves.curves(some, BOOK)["paper"]
    assert line["x"]["step"] == [0, 10, 20, 25]
    assert line["x"]["seconds"] == [0, 15, 30, 37.5]
    assert line["x"]["calls"] == [0, 20, 40, 50]
    means = [mean for mean, _ in line["y"]["test_accuracy"]]
    assert means == pytest.approx([0.1, 0.2, 0.3, 0.4])
    (line,) = curves.curves(seeds_of_steps(first, dict.fromkeys(range(26), 0.2)), BOOK)["paper"]
    assert line["x"]["step"] == list(range(26))  # though the first has fewer rows
    first[30] = None  # between a value and none there is none
    (line,) = curves.curves(seeds_of_steps(first, {0: 0.2, 25: 0.2}), BOOK)["paper"]
    assert line["y"]["test_accuracy"] == [(pytest.approx(0.1), pytest.approx(0.1)), (None, None)]


def test_a_reference_line_is_level_at_its_end_as_far_as_the_others_go() -> None:
    found = curves.curves(plan({"A": [[0.1, 0.5, 0.6]], "L": [[0.0, 0.4]]}, ["L"]), BOOK)["paper"]
    assert found[1]["x"]["step"] == [0.0, 20]
    assert found[1]["y"]["test_accuracy"] == [(pytest.approx(0.4), 0.0)] * 2


def test_thinning_keeps_both_ends() -> None:
    rows = [{"step": i} for i in range(1001)]
    kept = histories.thin_rows(rows, 11)
    assert [row["step"] for row in kept] == list(range(0, 1001, 100))
    assert histories.thin_rows(rows[:11], 11) == rows[:11]
    assert [row["step"] for row in histories.thin_rows(rows[:12], 11)] == [
        0,
        1,
        2,
        3,
        4,
        6,
        7,
        8,
        9,
        10,
        11,
    ]
    many = histories.thin_rows(rows, curves.POINTS)
    assert (len(many), many[0], many[-1]) == (300, rows[0], rows[1000])


def test_rounding_leaves_a_gap_where_a_value_is_not_finite() -> None:
    values = (0.12345678, -1234567.0, math.inf, -math.inf, math.nan)
    expected = [0.123457, -1234570.0, None, None, None]
    assert [curves.round_coordinate(x) for x in values] == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, 3.0], (2.0, 1.0)),
        ([1.0, 2.0, 6.0], (3.0, 1.52753)),  # sqrt((4 + 1 + 9) / 2 / 3)
        ([4.0], (4.0, 0.0)),
        ([1.0, None], (None, None)),  # one was not finite
        ([], (None, None)),
    ],
)
def test_mean_and_error_at_one_place(values: list[float | None], expected: Any) -> None:
    places = [curves.Place({"m": v}, {"m": v}, 0.0) for v in values]
    assert curves._mean(places, "m") == expected
    other = curves.Place({"other": 1.0}, {"other": 1.0}, 0.0)
    assert curves._mean([*places, other], "m") == (None, None)


def test_a_line_of_a_figure() -> None:
    """A curve says what it is, how it looks, and how many runs it is the mean of."""
    some = plan({"A": [[0.1, 0.5], [0.3, 0.7]], "B": [[0.25]], "none": []})
    first, second = curves.curves(some, BOOK)["paper"]
    assert (first["row"], first["n"], first["line"]) == ("A", 2, False)
    assert (first["colour"], first["dash"]) == (BOOK.methods["bome"].colour, "solid")
    assert (second["row"], second["n"]) == ("B", 1)
    assert second["y"]["test_accuracy"] == [(0.25, 0.0)]


def test_a_reference_line_is_no_longer_than_the_curves_and_its_own_without_them() -> None:
    line = {"x": {"step": [0.0, 5.0, 7.0]}, "y": {"m": [(0.1, 0.0), (0.2, 0.0), (0.4, 0.1)]}}
    other = {"x": {"step": [0.0, 30.0, None]}}
    longer = {"x": {"step": [0.0, 50.0]}}
    with_two, alone = copy.deepcopy(line), copy.deepcopy(line)
    curves.flatten(with_two, [longer, other])
    assert with_two == {"x": {"step": [0.0, 50.0]}, "y": {"m": [(0.4, 0.1)] * 2}}
    curves.flatten(alone, [])
    assert alone["x"] == {"step": [0.0, 7.0]}


def test_times_are_of_the_runs_that_have_them() -> None:
    """The second run was a lane and has no seconds; any other axis takes all runs."""
    some = plan({"A": [[0.1, 0.5], [0.3, 0.7]]})
    for row in some.rows[0].runs[1].history:
        del row["seconds"]
    (line,) = curves.curves(some, BOOK)["paper"]
    assert line["x"]["seconds"] == [0.0, 1.0]
    some.rows[0].runs[1].history[1]["calls/grad_g"] = 40
    (line,) = curves.curves(some, BOOK)["paper"]
    assert line["x"]["calls"] == [0.0, 30.0]
    some.rows[0].runs[1].history[1]["calls/grad_g"] = None
    (line,) = curves.curves(some, BOOK)["paper"]
    assert line["x"]["calls"] == [0.0, None]


def test_every_count_of_any_run_is_an_axis_after_the_specs_own() -> None:
    some = plan({"A": [[0.1], [0.3]]})
    summary = some.rows[0].runs[1].summary
    assert summary is not None
    summary["last"] |= {"calls/grad_a": 1, "samples/grad_g": 2}
    expected = ["step", "seconds", "calls", "calls/grad_a", "calls/grad_g"]
    assert curves.axes(some) == expected


SCALING = {
    "kind": "slope", "by": "paper", "text": "c", "rows": ["A"], "metric": "step",
    "against": "kappa",
    "points": {"A": 2.0, "B": 4.0}, "until": "test_accuracy", "target": 0.5, "at_most": 4.0,
}  # fmt: skip


def scaled(**changes: Any) -> Any:
    """A's runs are at or below .5 after 10 and 20 steps, B's after 20 steps and never."""
    histories = {
        "A": [[0.9, 0.5, 0.1], [0.9, 0.6, 0.4]], "B": [[0.9, 0.6, 0.3], [0.9, 0.8, 0.7]],
    }  # fmt: skip
    some = plan(histories, claims={"c": {**SCALING, **changes}})
    return curves.scalings(some, BOOK)


def test_the_costs_that_a_claim_on_scaling_is_about() -> None:
    """The costs are means over the runs that reached the target."""
    assert scaled() == {
        "paper": [
            {
                "metric": "outer steps", "against": "kappa", "points": [(2.0, 15.0), (4.0, 20.0)],
                "order": 4.0, "method": BOOK.methods["bome"],
            }
        ]
    }  # fmt: skip
    own = scaled(targets={"B": 0.75})["paper"][0]["points"]
    assert own == [(2.0, 15.0), (4.0, 15.0)]
    assert scaled(targets={"B": 0.85})["paper"][0]["points"] == [(2.0, 15.0), (4.0, 10.0)]
    assert scaled(target=0.35)["paper"][0]["points"] == [(2.0, 20.0), (4.0, 20.0)]
    assert scaled(target=0.2)["paper"][0]["points"] == [(2.0, 20.0)]
    assert scaled(target=0.01) == {}
    assert scaled(points={"A": 2.0, "Z": 4.0})["paper"][0]["points"] == [(2.0, 15.0)]


def test_no_other_claim_is_drawn() -> None:
    assert scaled(until=None, target=None) == {}
    assert scaled(over={"A": "B", "B": "A"}) == {}
    assert scaled(variants=["code"]) == {}
    other = {
        "kind": "converges",
        "by": "paper",
        "text": "c",
        "rows": ["A"],
        "metric": "step",
        "within": 1.0,
    }
    assert curves.scalings(plan({"A": [[0.9]]}, claims={"c": other}), BOOK) == {}


VIEW = {"x": "task", "y": "after", "low": 0.0, "high": 1.0, "matrix": [[0.5, None]]}


def test_views_are_of_the_first_run_of_every_method(tmp_path: Path) -> None:
    some = plan({"A": [[0.1], [0.2]], "L": [[0.1]], "B": [[0.1]], "none": []}, ["L"])
    rows = [
        replace(
            row,
            runs=tuple(replace(r, folder=RunFolder(tmp_path, r.planned.name)) for r in row.runs),
        )
        for row in some.rows
    ]
    for name in ("A0", "A1", "L0"):
        folder = tmp_path / "t" / "a" / name
        folder.mkdir(parents=True)
        (folder / "view.json").write_text(json.dumps(VIEW | {"title": name}))
    found = curves.views(replace(some, rows=tuple(rows)))
    assert found == {"paper": [("A", VIEW | {"title": "A0"})]}


PLANE = {"x": "theta_1", "y": "theta_2", "x_range": (-4.0, 4.0), "y_range": (-3.0, 4.0)}


def pathed(
    folder: Path, task: str, plane: Any, values: dict[str, Sequence[Any]], seed: int = 0
) -> Any:
    """The paths of rows whose one run had these values of theta."""
    run = RunFolder(folder, "t/a/k")
    run.path.mkdir(parents=True, exist_ok=True)
    (run.path / "config.yaml").write_text(f"seed: {seed}\ntask: {{_target_: tasks.toy.{task}}}\n")
    some = plan({name: [[0.0] * len(found)] for name, found in values.items()}, trajectory=plane)
    rows = []
    for row in some.rows:
        (old,) = row.runs
        new = replace(old, folder=run)
        pairs = values[row.name]
        new.__dict__["history"] = [dict(zip(("theta_1", "theta_2"), pair)) for pair in pairs]
        rows.append(replace(row, runs=(new,)))
    return curves.paths(replace(some, rows=tuple(rows)), BOOK)


def test_paths_in_the_plane_over_the_contours_of_f(tmp_path: Path) -> None:
    """The coreset's f is |theta - (3, -2)|^2 and its optimum (3, 1). Points far away are gaps."""
    values = {
        "A": [(0.0, 1.0), (2e6, 3.0), (-2.0, None), (4.0, -2e6)],
        "B": [(1.0, 2.0), (1e6, 1e6), (-1e6, 1.5e6)],
    }
    found = pathed(tmp_path, "toy_coreset", PLANE, values)["paper"]
    first, second = found["lines"]
    assert first == {
        "row": "A", "colour": BOOK.methods["bome"].colour, "dash": "solid",
        "x": [0.0, None, -2.0, 4.0], "y": [1.0, 3.0, None, None],
    }  # fmt: skip
    assert (second["x"], second["y"]) == ([1.0, None, None], [2.0, None, None])
    grid_x, grid_y = found["grid"]
    assert (len(grid_x), grid_x[0], grid_x[-1]) == (61, -4.0, 4.0)
    assert (len(grid_y), grid_y[0], grid_y[-1]) == (61, -3.0, 4.0)
    for i, j in ((0, 0), (60, 0), (0, 60), (17, 42)):
        by_hand = (grid_x[i] - 3) ** 2 + (grid_y[j] + 2) ** 2
        assert found["z"][j][i] == pytest.approx(by_hand, rel=1e-5)
    assert (len(found["z"]), len(found["z"][0])) == (61, 61)
    assert found["optimum"] == [3.0, 1.0]
    assert found["goal"] is None
    assert found["labels"] == ["theta 1", "theta 2"]
    assert found["ranges"] == [(-4.0, 4.0), (-3.0, 4.0)]


def test_a_plane_of_both_levels_and_one_without_f(tmp_path: Path) -> None:
    """In the minimax game f is v theta, and (0, 0) its saddle point."""
    values = {"A": [(0.0, 1.0)]}
    both = pathed(tmp_path, "toy_minimax", {**PLANE, "upper_in": "xy"}, values)["paper"]
    grid_x, grid_y = both["grid"]
    assert both["z"][11][23] == pytest.approx(grid_x[23] * grid_y[11], rel=1e-5)
    assert both["optimum"] == [0.0, 0.0]
    goal = {**PLANE, "upper_in": "none", "goal": (1.0, 2.0)}
    bare = pathed(tmp_path, "toy_minimax", goal, values)["paper"]
    assert (bare["z"], bare["goal"]) == (None, (1.0, 2.0))


def test_the_contours_are_of_the_runs_own_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task is built with the run's seed, in double precision, and x is where that seed
    begins."""
    contexts: list[Context] = []

    def built(config: Any, context: Context) -> Any:
        contexts.append(context)
        return SimpleNamespace(
            init=lambda rng: (torch.rand(1, generator=rng, dtype=torch.float64), None),
            upper=lambda x, y, batch: x.sum() + y[0] - 2 * y[1],
            report=Report(),
        )

    monkeypatch.setattr("bench.core.settings.build", built)
    found = pathed(tmp_path, "toy_coreset", PLANE, {"A": [(0.0, 1.0)]}, seed=7)["paper"]
    x0 = float(torch.rand(1, generator=generator(7, "init"), dtype=torch.float64))
    assert found["z"][0][0] == pytest.approx(x0 - 4 + 6, rel=1e-5)
    assert found["z"][60][0] == pytest.approx(x0 - 4 - 8, rel=1e-5)
    assert found["optimum"] is None
    assert [(context.seed, context.dtype) for context in contexts] == [(7, torch.float64)]


def test_no_plane_no_paths() -> None:
    assert curves.paths(plan({"A": [[0.1]]}), BOOK) == {}
    assert curves.paths(plan({"A": []}, trajectory=PLANE), BOOK) == {}


def test_costs_are_drawn_against_what_they_grow_with(tmp_path: Path) -> None:
    """Each cost has a panel, with a method's points and the line of the stated order; the legend
    has the method."""
    artifact, method = BOOK.artifacts["stocbio/table1"], BOOK.methods["aid_bio"]
    (tmp_path / "stocbio").mkdir()
    lines = [
        {
            "metric": "gradients of g", "against": "κ", "order": 4.0,
            "points": [(10, 3e3), (100, 5e5)], "method": method,
        }
    ]  # fmt: skip
    ((words, name),) = pictures.draw_scalings(artifact, {"paper": lines}, tmp_path)
    picture = (tmp_path / "stocbio" / name).read_text()
    for part in ("gradients of g", "κ", "AID-BiO"):
        assert part in picture
    assert picture.count(f"stroke: {method.colour}") >= 3
    assert "stated order" in words
