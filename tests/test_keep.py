"""Rows that show the best of a run's iterates, as codes do that keep the best on held-out data."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.core.settings import BadSetting
from bench.reproduce import plan as plans
from bench.reproduce import recorded, records, rejudging, tables
from bench.reproduce.book import read_artifacts, read_names
from bench.reproduce.outdated import mark_outdated
from bench.reproduce.points import Point
from bench.reproduce.specs import SpecRow
from bench.runs.files import write_json
from tests.planned import BOOK, SPEC, Known, artifact, finish, made
from tests.test_records import ended

LEAST = {"metric": "val", "best": "lowest"}
ROWS = {**SPEC["rows"], "L": {"method": "bome", "line": True, "keep": LEAST}}
SMALL = {"kind": "between", "by": "us", "text": "L is small", "rows": ["L"], "metric": "loss",
         "at_most": 1.0}  # fmt: skip
SLOW = {"kind": "diverges", "by": "us", "text": "L grows", "rows": ["L"], "metric": "loss",
        "growth": 10.0}  # fmt: skip


def moved(root: Path, where: str, values: Any, **more: Any) -> None:
    """A run that has ended, whose k-th row has the k-th of `values` as val and 10 + k as loss."""
    ended(root, where, 10.0 + len(values) - 1, **more)
    rows = [
        {"step": 5 * k, "val": val, "loss": 10.0 + k, "calls/f": 2 * k, "seconds": 1.0 * k}
        for k, val in enumerate(values)
    ]
    (root / where / "history.jsonl").write_text("".join(f"{json.dumps(r)}\n" for r in rows))


def line(root: Path, **changes: Any) -> plans.Run:
    """The first run of the row L of the paper variant."""
    plan = made(root, **{"rows": ROWS, **changes})
    return next(row.runs[0] for row in plan.rows if (row.variant, row.name) == ("paper", "L"))


def keeping(best: str = "lowest") -> dict[str, Any]:
    return {**ROWS, "L": {**ROWS["L"], "keep": {"metric": "val", "best": best}}}


@pytest.mark.parametrize(
    ("values", "best", "step"),
    [
        ([4, 2, 3], "lowest", 5),
        ([4, 2, 3], "highest", 0),
        ([4, 2, 2, 3], "lowest", 10),  # the last of equals, as BOME's released code
        ([2, 4, 4, 3], "highest", 10),
        ([None, 1, None], "lowest", 5),
        ([None, 1, None], "highest", 5),
        ([None, 0, 1e200], "highest", 5),
        ([None, None], "lowest", 10),  # nothing is finite: the end, of which the summary tells
    ],
)
def test_a_run_counts_up_to_its_best_measurement(
    values: Any, best: str, step: int, tmp_path: Path
) -> None:
    moved(tmp_path, "paper/L/-1", values)
    if None in values and not any(isinstance(v, int) for v in values):
        last = {"step": 10, "loss": 12.0}
        write_json(tmp_path / "paper/L/-1/summary.json",
                   {"status": "done", "reason": None, "last": last})  # fmt: skip
    found = line(tmp_path, rows=keeping(best))
    assert found.last("step") == step
    assert found.last("loss") == 10 + step / 5
    assert found.last("calls") == (0 if found.kept is None else 2 * step / 5)
    kept = [row["step"] for row in found.history]
    assert kept == (list(range(0, step + 1, 5)) if found.kept else [0, 5])
    assert line(tmp_path, rows=SPEC["rows"]).kept is None


def test_a_run_that_has_not_ended_has_no_iterate(tmp_path: Path) -> None:
    found = line(tmp_path)
    assert (found.summary, found.kept, found.last("loss"), found.end) == (None, None, None, {})


def test_lanes_keep_no_times(tmp_path: Path) -> None:
    moved(tmp_path, "paper/L/-1", [4, 2, 3], amortised=True)
    found = line(tmp_path)
    assert found.end == {"step": 5, "val": 2, "loss": 11.0, "calls/f": 2}
    assert found.last("seconds") is None


def test_a_metric_that_was_not_measured_is_told(tmp_path: Path) -> None:
    moved(tmp_path, "paper/L/-1", [4, 2, 3])
    rows = {**ROWS, "L": {**ROWS["L"], "keep": {"metric": "other", "best": "lowest"}}}
    with pytest.raises(BadSetting, match="-1: it did not measure other, by which the row L keeps"):
        line(tmp_path, rows=rows)


def test_the_best_iterate_chooses_the_grid_point(tmp_path: Path) -> None:
    """Row A's point .2 ends worst and has the best iterate."""
    rows = {**SPEC["rows"], "A": {"method": "bome", "keep": LEAST}}
    select = {"metric": "val", "best": "lowest"}
    for rate, values in {0.1: [4, 3], 0.2: [1, 9], 0.3: [2, 5]}.items():
        moved(tmp_path, f"paper/A/{rate}-0", values)
        last = {"step": 5, "val": values[-1], "loss": 11.0}
        write_json(tmp_path / f"paper/A/{rate}-0/summary.json",
                   {"status": "done", "reason": None, "last": last})  # fmt: skip
    plan = made(tmp_path, rows=rows, select=select)
    assert plan.rows[0].chosen is not None
    assert dict(plan.rows[0].chosen.chosen) == {"algorithm.lr": 0.2}


@pytest.fixture
def measured(tmp_path: Path) -> records.Record:
    """The line L of the paper variant, whose best iterate is its second of four."""
    for seed in (1, 2, 3):
        moved(tmp_path, f"paper/L/-{seed}", [4, 2, 3, 5])
    return records.make_record(
        made(tmp_path, rows=ROWS, claims={"small": SMALL, "slow": SLOW}), BOOK
    )


def test_a_record_has_the_best_iterates(measured: records.Record, tmp_path: Path) -> None:
    row = measured.rows["paper"]["L"]
    assert row.keep is not None
    assert row.keep.model_dump() == LEAST
    assert (row.finals["loss"], row.finals["step"], row.finals["val"]) == ([11.0] * 3, [5] * 3,
                                                                           [2] * 3)  # fmt: skip
    assert measured.histories["paper/L/-1"]["step"] == [0, 5]
    assert measured.rows["code"]["A"].keep is None
    assert measured.run_seconds == 24.0  # of all steps that were made
    part = measured.claims["paper"]["small"].parts[0]
    assert part.values == [11.0] * 3
    file = records.write_record(measured, tmp_path / "results")
    assert records.read_record("p/a", "short", tmp_path / "results") == measured
    assert file.read_text().count('"keep"') == 2  # of L in both variants alone


def test_recorded_iterates_are_reused_and_judged(measured: records.Record, tmp_path: Path) -> None:
    spec = artifact(rows=ROWS, claims={"small": SMALL, "slow": SLOW})
    known: Any = Known()
    kept = recorded.reusable_runs(measured, spec, BOOK, known)
    assert sorted(kept) == [f"paper/L/-{seed}" for seed in (1, 2, 3)]
    plan = plans.make_plan(spec, BOOK, "short", tmp_path / "none", known, recorded=kept)
    again = records.make_record(plan, BOOK, measured)
    assert again.rows["paper"]["L"] == measured.rows["paper"]["L"]
    assert again.histories == measured.histories
    assert rejudging.rejudge(measured, spec, BOOK)["paper"]["small"].verdict.n == 3


@pytest.mark.parametrize("keep", [None, {"metric": "val", "best": "highest"},
                                  {"metric": "loss", "best": "lowest"}])  # fmt: skip
def test_records_of_another_iterate_are_outdated(keep: Any, measured: records.Record) -> None:
    known: Any = Known()
    spec = artifact(rows={**ROWS, "L": {**ROWS["L"], "keep": keep}}, claims={"small": SMALL})
    assert recorded.reusable_runs(measured, spec, BOOK, known) == {}
    marked = mark_outdated(measured, spec, BOOK, known)
    assert marked.rows["paper"]["L"].outdated
    assert rejudging.rejudge(marked, spec, BOOK)["paper"]["small"].verdict.word == "outdated"
    same = mark_outdated(measured, artifact(rows=ROWS), BOOK, known)
    assert not same.rows["paper"]["L"].outdated


def test_a_table_says_which_iterate_is_shown(measured: records.Record) -> None:
    row = measured.rows["paper"]["L"]
    assert tables.remark(row, artifact(rows=ROWS).spec) == "at the lowest val of each run"


class Shared(Known):
    """Names by which the rows L and M have the same runs."""

    def get(self, point: Point, seed: int) -> str | None:
        return super().get(replace(point, row="L") if point.row == "M" else point, seed)


def test_rows_with_the_same_runs_show_the_same_iterate(tmp_path: Path) -> None:
    names: Any = Shared()
    finish(tmp_path, "paper/L/-1", 1.0)
    for keep, fits in ((LEAST, True), (None, False)):
        spec = artifact(rows={**ROWS, "M": {**ROWS["L"], "keep": keep}})
        if fits:
            moved(tmp_path / "own", "paper/L/-1", [4, 2])
            plan = plans.make_plan(spec, BOOK, "short", tmp_path / "own", names)
            assert [run.kept for run in plan.runs if run.planned.name == "paper/L/-1"] == [2]
            continue
        why = "p/a.yaml: rows.M.keep: L has the same runs and shows another iterate of them"
        with pytest.raises(BadSetting, match=why):
            plans.make_plan(spec, BOOK, "short", tmp_path / "own", names)


@pytest.mark.parametrize(
    ("metric", "why"),
    [
        ("los", "rows.L.keep: los: no such metric of toy; did you mean loss"),
        ("peak_memory_mb", "rows.L.keep: peak_memory_mb: no such metric of toy"),
    ],
)
def test_a_metric_that_is_not_there_is_refused(metric: str, why: str, tmp_path: Path) -> None:
    folder = tmp_path / "p"
    folder.mkdir()
    write_json(tmp_path / "metrics.yaml", {"any": {}, "toy": {"loss": {"label": "loss"}}})
    write_json(tmp_path / "methods.yaml", {m: {"label": m, "colour": "#000000"}
                                           for m in ("bome", "itd")})  # fmt: skip
    for keep in ("loss", metric):
        rows = {**ROWS, "L": {**ROWS["L"], "keep": {"metric": keep, "best": "lowest"}}}
        write_json(folder / "a.yaml", {**SPEC, "rows": rows})
        if keep == "loss":
            found = read_artifacts(tmp_path, read_names(tmp_path))
            assert found["p/a"].spec.rows["L"].keep is not None
            continue
        with pytest.raises(BadSetting, match=why):
            read_artifacts(tmp_path, read_names(tmp_path))


def test_rows_show_the_end_by_default() -> None:
    assert SpecRow(method="m").keep is None
