"""Histories beside records, and recorded runs that stand for runs that are not there."""

import errno
import gzip
import json
import math
import os
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from bench.core.settings import BadSetting
from bench.reproduce import histories, recorded, records, rejudging, standing
from bench.reproduce import plan as plans
from bench.reproduce.claim_records import have_same_values
from bench.reproduce.claims import ClaimPart
from bench.reproduce.histories import next_path
from bench.reproduce.making import Choice
from bench.reproduce.plan import Plan
from bench.reproduce.points import Point
from bench.reproduce.records import Record
from bench.reproduce.specs import Artifact
from tests.planned import BOOK, Known, artifact, made, name
from tests.test_records import ended

GROWS = {"kind": "diverges", "by": "us", "text": "A grows", "rows": ["A"], "metric": "loss",
         "growth": 10.0}  # fmt: skip
FIRST = {"kind": "first", "by": "us", "text": "A is first", "rows": ["A"], "than": ["L"],
         "metric": "loss", "on": "calls", "gain": 0.95}  # fmt: skip
LESS = {"kind": "below", "by": "us", "text": "A has less", "rows": ["A"], "than": ["L"],
        "metric": "loss"}  # fmt: skip
CLAIMS = {"grows": GROWS, "first": FIRST, "less": LESS}
RATES = (0.1, 0.2, 0.3)
ROWS = [
    {"step": 0, "loss": 8.0, "calls/f": 0, "calls/g": 0, "seconds": 0.0},
    {"step": 4, "loss": None, "calls/f": 3, "calls/g": 4},
    {"step": 5, "loss": 1 / 3, "calls/f": 5, "calls/g": 6, "seconds": 2.5},
]


def moved(root: Path, where: str, loss: float, status: str = "done") -> None:
    """A run that has ended, with a history from 8 to this loss in five steps."""
    ended(root, where, loss, status)
    rows = [{"step": i, "loss": 8.0 + (loss - 8.0) * i / 5, "calls/f": 2 * i, "seconds": 1.0 * i}
            for i in range(6)]  # fmt: skip
    (root / where / "history.jsonl").write_text("".join(f"{json.dumps(r)}\n" for r in rows))


def make_row(root: Path, row: str, seeds: Any = (1, 2, 3)) -> None:
    """Row A of the paper variant with its grid, whose point .1 is best, or row L."""
    if row == "A":
        for rate in RATES:
            moved(root, f"paper/A/{rate}-0", rate)
    for seed in seeds:
        where, loss = (f"paper/A/0.1-{seed}", 0.1) if row == "A" else (f"paper/L/-{seed}", 0.75)
        moved(root, where, loss + 0.001 * seed**2 * (1 if row == "A" else 2))


@pytest.fixture
def record(tmp_path: Path) -> Record:
    """Rows A and L of the paper variant, at seeds 1 to 3."""
    make_row(tmp_path / "old", "A")
    make_row(tmp_path / "old", "L")
    return records.make_record(made(tmp_path / "old", claims=CLAIMS), BOOK)


def planned(root: Path, old: Record | None, names: Known | None = None, **changes: Any) -> Plan:
    spec, known = artifact(**{"claims": CLAIMS, **changes}), names or Known()
    runs = recorded.reusable_runs(old, spec, BOOK, known) if old else {}  # type: ignore[arg-type]
    return plans.make_plan(spec, BOOK, "short", root, known, recorded=runs)  # type: ignore[arg-type]


# histories


def test_columns_are_the_drawn_and_the_judged_metrics(tmp_path: Path) -> None:
    ended(tmp_path, "paper/L/-1", 0.75)
    (tmp_path / "paper/L/-1/history.jsonl").write_text("".join(f"{json.dumps(r)}\n" for r in ROWS))
    plan = made(tmp_path, claims=CLAIMS)
    run = next(run for row in plan.rows if row.name == "L" for run in row.runs if run.summary)
    kept = histories.keep_history(run, plan.artifact.spec)
    assert kept == {
        "step": [0, 4, 5],
        "loss": [8, None, 0.3333333],
        "seconds": [0.0, "-", 2.5],
        "calls": [0, 7, 11],
    }
    rows = histories.history_rows(kept)
    assert rows[1] == {"step": 4, "loss": None, "calls": 7}
    for there, row in zip(run.history, rows):
        for metric in ("step", "loss", "seconds", "calls"):
            a, b = plans.metric_value(there, metric), plans.metric_value(row, metric)
            assert a == (b if b is None else pytest.approx(b, rel=1e-6))


def test_rows_are_thinned_only_where_no_claim_is_about_histories(tmp_path: Path) -> None:
    ended(tmp_path, "paper/L/-1", 0.75)
    lines = "".join(f'{{"step": {i}, "loss": {i}}}\n' for i in range(1001))
    (tmp_path / "paper/L/-1/history.jsonl").write_text(lines)

    def kept(claims: Any, drawn: bool = False, **spec: Any) -> list[Any]:
        plan = made(tmp_path, claims=claims, **spec)
        run = next(run for row in plan.rows if row.name == "L" for run in row.runs if run.summary)
        return histories.keep_history(run, plan.artifact.spec, drawn)["step"]

    assert kept(CLAIMS) == list(range(1001))
    assert len(kept({"grows": {**GROWS, "rows": ["A"]}})) == 200  # it is about other rows
    thin = kept({"less": LESS})
    assert (len(thin), thin[0], thin[-1]) == (200, 0, 1000)
    plane = {"x": "loss", "y": "loss", "x_range": (0, 1), "y_range": (0, 1)}
    figure = {"metrics": ["loss"], "trajectory": plane}
    assert kept({"less": LESS}, figure=figure) == thin  # another run's path is drawn
    assert kept({"less": LESS}, drawn=True) == thin
    assert kept({"less": LESS}, drawn=True, figure=figure) == list(range(1001))


def test_histories_are_written_beside_the_record_and_read_with_it(
    record: Record, tmp_path: Path
) -> None:
    assert len(record.histories) == 6
    file = records.write_record(record, tmp_path)
    assert "histories" not in json.loads(file.read_text())
    assert not next_path(tmp_path / "p/a/short.histories.jsonl.gz").exists()
    beside = tmp_path / "p/a/short.histories.jsonl.gz"
    assert len(gzip.decompress(beside.read_bytes()).splitlines()) == 6
    before = beside.read_bytes()
    records.write_record(record, tmp_path)
    assert beside.read_bytes() == before  # no time of writing in it
    assert records.read_record("p/a", "short", tmp_path) == record
    bare = records.read_record("p/a", "short", tmp_path, with_histories=False)
    assert bare == record.model_copy(update={"histories": {}})
    beside.unlink()
    alone = records.read_record("p/a", "short", tmp_path)
    assert alone == record.model_copy(update={"histories": {}})


def without_digest(file: Path) -> None:
    """Make a record one that is older than the digest of its histories."""
    found = json.loads(file.read_text())
    del found["histories_digest"]
    file.write_text(json.dumps(found))


def test_a_record_has_its_own_histories_whenever_its_writing_is_killed(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no moment at which the old record has the new histories, or the other way round."""
    columns = {name: {"step": [1.0]} for name in record.histories}
    new = record.model_copy(update={"title": "new", "histories": columns})
    seen: list[Record | None] = []
    replace = os.replace

    def watched(source: Any, target: Any) -> None:
        seen.append(records.read_record("p/a", "short", tmp_path))
        replace(source, target)
        seen.append(records.read_record("p/a", "short", tmp_path))

    records.write_record(record, tmp_path)
    monkeypatch.setattr(os, "replace", watched)
    records.write_record(new, tmp_path)
    assert seen == [record, record, record, new, new, new]
    assert sorted(f.name for f in (tmp_path / "p/a").iterdir()) == [
        "short.histories.jsonl.gz", "short.json",
    ]  # fmt: skip


def test_histories_of_another_record_are_refused(record: Record, tmp_path: Path) -> None:
    records.write_record(record, tmp_path)
    beside = tmp_path / "p/a/short.histories.jsonl.gz"
    content = bytearray(beside.read_bytes())
    content[4] ^= 1  # the time of packing, of which gzip has no checksum
    beside.write_bytes(content)
    with pytest.raises(BadSetting, match=r"jsonl\.gz: it was changed, or is of another record"):
        records.read_record("p/a", "short", tmp_path)


@pytest.mark.parametrize("limit", ["MOST_BYTES", "MOST_PACKED"])
def test_histories_that_could_not_be_read_are_not_written(
    limit: str, record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(histories, limit, 100)
    with pytest.raises(BadSetting, match=r"write a larger run\.every"):
        records.write_record(record, tmp_path / "results")
    assert not [*tmp_path.glob("results/**/*.json*")]


def test_a_record_that_cannot_be_written_leaves_nothing(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = records.write_record(record, tmp_path)
    before = {each: each.read_bytes() for each in file.parent.iterdir()}

    def full(path: Path, content: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(records, "write_whole", full)
    with pytest.raises(OSError, match="No space left"):
        records.write_record(record.model_copy(update={"title": "new"}), tmp_path)
    assert {each: each.read_bytes() for each in file.parent.iterdir()} == before


@pytest.mark.parametrize(
    "line",
    [
        "not json", "[]", "1", "null", '{"run": "a"}', '{"run": "a", "columns": [1]}',
        '{"run": "a", "columns": {"step": 3}}', '{"run": "a", "columns": {"step": ["x"]}}',
        '{"run": "a", "columns": {"step": [1], "loss": [1, 2]}}',
        '{"run": "a", "columns": {"step": [true]}}', '{"run": ["a"], "columns": {}}',
    ],
)  # fmt: skip
def test_a_damaged_line_is_named(record: Record, tmp_path: Path, line: str) -> None:
    without_digest(records.write_record(record, tmp_path))
    beside = tmp_path / "p/a/short.histories.jsonl.gz"
    first = gzip.decompress(beside.read_bytes()).splitlines(keepends=True)[0]
    beside.write_bytes(gzip.compress(first + f"{line}\n".encode()))
    with pytest.raises(
        BadSetting, match=r"short\.histories\.jsonl\.gz: line 2 is not a run's history"
    ):
        records.read_record("p/a", "short", tmp_path)


def test_a_file_that_is_cut_or_no_archive_or_too_large_is_refused(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_digest(records.write_record(record, tmp_path))
    beside = tmp_path / "p/a/short.histories.jsonl.gz"
    whole = beside.read_bytes()
    for content in (whole[:-20], b"{}", whole[:30] + bytes([whole[30] ^ 64]) + whole[31:]):
        beside.write_bytes(content)
        with pytest.raises(BadSetting, match=r"jsonl\.gz: .*: get the file again, or remove it"):
            records.read_record("p/a", "short", tmp_path)
    beside.write_bytes(whole)
    monkeypatch.setattr(histories, "MOST_BYTES", 100)
    with pytest.raises(BadSetting, match="it has more than 100 bytes"):
        records.read_record("p/a", "short", tmp_path)


def test_claims_on_histories_are_judged_from_those_of_the_record(record: Record) -> None:
    live = record.claims["paper"]
    assert live["first"].parts[0].values == [math.inf] * 3  # L never comes so far
    assert live["grows"].verdict.word == "fails"
    again = rejudging.rejudge(record, artifact(claims=CLAIMS), BOOK)["paper"]
    for key, entry in live.items():
        assert again[key].verdict.word == entry.verdict.word
        assert again[key].parts[0].values == pytest.approx(entry.parts[0].values, rel=1e-6)
    # by another rule, which kept values could not tell
    harder = {**FIRST, "gain": 0.5}
    found = rejudging.rejudge(record, artifact(claims={"first": harder}), BOOK)["paper"]["first"]
    assert found.verdict.word == "not enough runs"  # both are there at the same measurement
    assert found.parts[0].values == pytest.approx([math.nan] * 3, nan_ok=True)
    # without histories the values are not there
    bare = record.model_copy(update={"histories": {}})
    lost = rejudging.rejudge(bare, artifact(claims={"first": harder}), BOOK)["paper"]["first"]
    assert lost.verdict.word == "not run"


# recorded runs that stand for runs that are not there


def test_a_plan_has_the_recorded_runs_and_needs_none(record: Record, tmp_path: Path) -> None:
    plan = planned(tmp_path / "new", record)
    (row,) = (r for r in plan.rows if (r.variant, r.name) == ("paper", "A"))
    assert row.chosen is not None
    assert dict(row.chosen.chosen) == {"algorithm.lr": 0.1}
    assert all(run.recorded is not None for run in (*row.tried, *row.runs))
    missing = {run.planned.point.variant + run.planned.point.row for run in plan.missing}
    assert missing == {"codeA", "codeL", "paperB"}


def test_a_record_is_extended_by_the_runs_that_are_there(record: Record, tmp_path: Path) -> None:
    new = tmp_path / "new"
    for rate in RATES:
        moved(new, f"paper/B/{rate}-0", rate)
    for seed in (1, 2, 3):
        moved(new, f"paper/B/0.1-{seed}", 0.1)
    found = records.make_record(planned(new, record), BOOK, record)
    assert found.rows["paper"]["A"] == record.rows["paper"]["A"]
    assert found.rows["paper"]["L"] == record.rows["paper"]["L"]
    assert found.rows["paper"]["B"].status == ["done"] * 3
    assert found.claims["paper"]["first"] == record.claims["paper"]["first"]
    assert found.histories == record.histories | {
        run: found.histories[run] for run in found.rows["paper"]["B"].runs
    }
    assert found.hardware == record.hardware
    assert found.run_seconds == record.run_seconds + 6 * 8.0
    assert found.commits == record.commits
    again = records.make_record(planned(new, found), BOOK, found)  # nothing is new
    assert again.run_seconds == pytest.approx(found.run_seconds)


def test_a_seed_is_added_without_making_the_others(record: Record, tmp_path: Path) -> None:
    budgets = {"short": {"minutes": 1.0, "seeds": 4}}
    before = planned(tmp_path / "new", record, budgets=budgets)
    (row,) = (r for r in before.rows if (r.variant, r.name) == ("paper", "A"))
    assert [run.planned.seed for run in row.runs if run.summary is None] == [4]
    make_row(tmp_path / "new", "A", [4])
    for rate in RATES:  # the tried points are the record's
        assert (tmp_path / f"new/paper/A/{rate}-0").is_dir()
    found = records.make_record(planned(tmp_path / "new", record, budgets=budgets), BOOK, record)
    assert found.rows["paper"]["A"].finals["loss"] == [0.101, 0.104, 0.109, 0.116]


def test_runs_without_histories_are_reused_only_where_no_claim_needs_them(
    record: Record, tmp_path: Path
) -> None:
    older = record.model_copy(update={"histories": {}})
    without = planned(tmp_path / "new", older)
    assert all(run.summary is None for run in without.runs if run.planned.seed > 0)
    last_values = planned(tmp_path / "new", older, claims={"less": LESS})
    assert last_values.missing == planned(tmp_path / "new", record).missing
    (row,) = (r for r in last_values.rows if (r.variant, r.name) == ("paper", "A"))
    assert all(run.summary is not None for run in row.runs)


def test_runs_of_thinned_histories_are_reused_only_where_no_claim_needs_them(
    record: Record, tmp_path: Path
) -> None:
    """A claim that is added later would be judged from a part of the rows."""

    def reused(rows: int) -> bool:
        some = {name: {k: (v * rows)[:rows] for k, v in h.items()}
                for name, h in record.histories.items()}  # fmt: skip
        plan = planned(tmp_path / "new", record.model_copy(update={"histories": some}))
        (row,) = (r for r in plan.rows if (r.variant, r.name) == ("paper", "A"))
        return all(run.summary is not None for run in row.runs)

    assert [reused(rows) for rows in (199, 200, 201)] == [True, False, True]


def test_of_a_run_of_two_rows_the_fuller_history_is_kept(record: Record, tmp_path: Path) -> None:
    plan = planned(tmp_path, record, claims={"grows": {**GROWS, "rows": ["A"]}})
    (row,) = (r for r in plan.rows if (r.variant, r.name) == ("paper", "A"))
    run = row.runs[0]
    long = [{**run.history[-1], "step": k} for k in range(1000)]
    one = replace(run, recorded=replace(run.recorded, history=tuple(long)))  # type: ignore[type-var]
    twin = replace(one, planned=replace(one.planned, point=replace(one.planned.point, row="L")))
    first, second = replace(row, runs=(one,)), replace(row, name="L", runs=(twin,))
    spec = plan.artifact.spec  # whose claim is about row A alone
    assert len(histories.keep_history(twin, spec)["step"]) == 200
    for rows in ((first, second), (second, first)):
        (kept,) = histories.keep_histories(rows, spec).values()
        assert len(kept["step"]) == 1000


def test_recorded_runs_that_took_all_their_steps_were_ended_by_no_clock(record: Record) -> None:
    """A recorded run does not name its settings: those of its row today say how many steps."""
    content = record.model_dump()
    for row, pace in (("A", 1.0), ("L", 9.0)):
        content["rows"]["paper"][row]["paces"] = [pace] * 3
    mixed = Record.model_validate(content)

    def judged(steps: int) -> int:
        spec = artifact(claims={"less": LESS}, set={"run.cpu_seconds": 9.0, "run.steps": steps})
        return len(rejudging.rejudge(mixed, spec, BOOK)["paper"]["less"].parts[0].values)

    assert judged(5) == 3
    assert judged(6) == 0  # all ended at step 5


def test_a_count_that_a_record_lacks_is_not_made_up(record: Record) -> None:
    """A loss may be null in a record because it is not finite; a count is null only where the run
    does not have it."""
    content = record.model_dump()
    content["rows"]["paper"]["A"]["finals"] |= {"loss": [None] * 3, "calls/g": [None, 4, None]}
    found = Record.model_validate(content)
    runs = recorded.recorded_runs(found, found.rows["paper"]["A"])
    lasts = [run.summary["last"] for run in runs if run.summary]
    assert [last["loss"] for last in lasts] == [None] * 3
    assert [last.get("calls/g", "none") for last in lasts] == ["none", 4, "none"]


class Renamed(Known):
    """Names that are others than the recorded ones, as after a function's change."""

    def get(self, point: Point, seed: int) -> str | None:
        return name(point, seed).replace("-", "+")


def test_runs_of_other_code_are_not_reused(record: Record, tmp_path: Path) -> None:
    plan = planned(tmp_path / "new", record, Renamed())
    assert all(run.summary is None for run in plan.runs)


def test_of_another_grid_only_the_same_points_are_reused(record: Record, tmp_path: Path) -> None:
    plan = planned(tmp_path / "new", record, grid={"algorithm.lr": [0.1, 0.2, 0.4]})
    (row,) = (r for r in plan.rows if (r.variant, r.name) == ("paper", "A"))
    assert [run.summary is not None for run in row.tried] == [True, True, False]
    assert row.chosen is None


def test_tries_of_a_grid_that_is_not_finished_are_reused(record: Record, tmp_path: Path) -> None:
    """No point is chosen yet, so that the row has no runs."""
    content = record.model_dump()
    row = content["rows"]["paper"]["A"]
    row["tries"][-1]["status"] = "missing"
    of_runs = {key for key, value in row.items() if isinstance(value, list)} - {"tries"}
    row |= {key: [] for key in of_runs} | {"finals": {}}
    unfinished = Record.model_validate(content)
    (found,) = (
        r for r in planned(tmp_path, unfinished).rows if (r.variant, r.name) == ("paper", "A")
    )
    assert [run.summary is not None for run in found.tried] == [True, True, False]


def test_a_try_keeps_where_it_was_made_when_it_is_reused(record: Record, tmp_path: Path) -> None:
    content = record.model_dump()
    content["rows"]["paper"]["A"]["tries"][1] |= {
        "step": 7.0, "instructions": "AVX512", "device": "another", "pace": 3.5,
        "undisturbed": True,
    }  # fmt: skip
    plan = planned(tmp_path / "new", Record.model_validate(content))
    again = records.make_record(plan, BOOK, record).rows["paper"]["A"].tries
    assert again == content["rows"]["paper"]["A"]["tries"]
    assert again[0]["device"] == "A CPU"


def test_of_an_older_try_nobody_knows_where_it_was_made(record: Record, tmp_path: Path) -> None:
    """A clock may then have ended it."""
    content = record.model_dump()
    tried = content["rows"]["paper"]["A"]["tries"]
    tried[:] = [{k: kept[k] for k in ("name", "settings", "status", "value")} for kept in tried]
    clock = {"set": {"run.cpu_seconds": 3.0}}
    plan = planned(tmp_path / "new", Record.model_validate(content), **clock)
    again = records.make_record(plan, BOOK, record).rows["paper"]["A"].tries
    assert [(kept["cut"], kept["step"], kept["device"], kept["pace"]) for kept in again] == [
        (True, None, None, None)
    ] * 3


TWICE = {"short": {"minutes": 1.0, "seeds": 3, "choosing_seeds": 2}}


def test_tries_are_reused_where_more_seeds_choose(record: Record, tmp_path: Path) -> None:
    """The recorded run of the chosen point at seed 1, which was judged, now helps to choose."""
    plan = planned(tmp_path / "new", record, budgets=TWICE)
    (row,) = (r for r in plan.rows if (r.variant, r.name) == ("paper", "A"))
    old = record.rows["paper"]["A"]
    there = {run.planned.name for run in row.tried if run.summary is not None}
    assert there == {*(entry["name"] for entry in old.tries), old.runs[0]}
    assert (len(row.tried), len(there), row.chosen) == (6, 4, None)


def test_tries_at_several_seeds_are_reused(tmp_path: Path) -> None:
    for rate, seed in product(RATES, (0, 1)):
        moved(tmp_path / "old", f"paper/A/{rate}-{seed}", rate * (1 + seed))
    for seed in (2, 3, 4):
        moved(tmp_path / "old", f"paper/A/0.1-{seed}", 0.1)
    old = records.make_record(planned(tmp_path / "old", None, budgets=TWICE), BOOK)
    (row,) = (
        r
        for r in planned(tmp_path / "new", old, budgets=TWICE).rows
        if (r.variant, r.name) == ("paper", "A")
    )
    assert [run.summary is not None for run in (*row.tried, *row.runs)] == [True] * 9
    assert [run.planned.seed for run in row.tried] == [0, 1] * 3


class Short(Known):
    """Names in which a point's first setting stands for all of them."""

    def get(self, point: Point, seed: int) -> str | None:
        return name(replace(point, chosen=point.chosen[:1]), seed)


def test_tries_are_reused_after_their_grid_got_a_setting(record: Record, tmp_path: Path) -> None:
    """A run's name does not say whether a setting is the grid's or the row's, and so its seeds are
    reused too."""
    grid = {"algorithm.lr": list(RATES), "algorithm.T": [10]}
    plan = planned(tmp_path / "new", record, Short(), grid=grid)
    (row,) = (r for r in plan.rows if (r.variant, r.name) == ("paper", "A"))
    assert [run.summary is not None for run in row.tried] == [True] * 3
    assert row.chosen is not None
    assert dict(row.chosen.chosen).keys() == grid.keys()
    assert [run.summary is not None for run in row.runs] == [True] * 3


def test_tries_that_another_metric_chose_by_are_not_reused(record: Record, tmp_path: Path) -> None:
    content = record.model_dump()
    for tried in content["rows"]["paper"]["A"]["tries"]:
        assert tried["metric"] == "loss"
        tried["metric"] = "val_loss"
    other = Record.model_validate(content)
    (found,) = (r for r in planned(tmp_path, other).rows if (r.variant, r.name) == ("paper", "A"))
    assert [run.summary for run in found.tried] == [None] * 3


@pytest.mark.parametrize("metric", ["calls", "peak_memory_mb"])
def test_what_every_run_measures_may_choose_a_point(metric: str, tmp_path: Path) -> None:
    """Neither is a value of the task. The dearer point comes first in the grid."""
    grid = {"algorithm.lr": [0.2, 0.1]}
    cheapest: dict[str, Any] = {"select": {"metric": metric, "best": "lowest"}, "grid": grid}
    for where, cost in {"0.1-0": 100, "0.2-0": 200, "0.1-1": 1, "0.1-2": 1, "0.1-3": 1}.items():
        moved(tmp_path / "old", f"paper/A/{where}", 1.0)
        file = tmp_path / "old" / f"paper/A/{where}" / "summary.json"
        summary = json.loads(file.read_text())
        summary["last"] |= {"calls/f": cost}
        file.write_text(json.dumps(summary | {"peak_memory_mb": {"process": cost}}))
    found = records.make_record(made(tmp_path / "old", **cheapest), BOOK)
    row = found.rows["paper"]["A"]
    assert row.chosen == {"algorithm.lr": 0.1}
    assert [tried["value"] for tried in row.tries] == [200.0, 100.0]
    (again,) = (
        r
        for r in planned(tmp_path / "new", found, claims={}, **cheapest).rows
        if (r.variant, r.name) == ("paper", "A")
    )
    assert again.chosen is not None
    assert dict(again.chosen.chosen) == {"algorithm.lr": 0.1}


def test_curves_can_be_drawn_of_a_record(record: Record) -> None:
    plan = recorded.recorded_plan(record, artifact(claims=CLAIMS), BOOK)
    rows = {(row.variant, row.name): row for row in plan.rows}
    assert set(rows) == {
        ("paper", "A"),
        ("paper", "L"),
        ("paper", "B"),
        ("code", "A"),
        ("code", "L"),
    }
    assert [row["step"] for row in rows["paper", "A"].runs[0].history] == [0, 1, 2, 3, 4, 5]
    assert not rows["paper", "B"].runs


# which runs are made


def test_a_choice_of_rows_variant_and_seeds(record: Record, tmp_path: Path) -> None:
    plan = planned(tmp_path / "new", record)

    def some(choice: Choice) -> list[str]:
        choice.check(plan.artifact)
        return [run.planned.name for run in choice.runs(plan)]

    assert len(some(Choice())) == len(plan.runs)
    assert some(Choice(rows=("L",), variant="paper")) == [f"paper/L/-{seed}" for seed in (1, 2, 3)]
    assert some(Choice(rows=("[LX]",), variant="paper", seeds=2)) == ["paper/L/-1", "paper/L/-2"]
    tried = [f"paper/A/{rate}-0" for rate in RATES]
    assert some(Choice(rows=("A",), variant="paper", seeds=1)) == [*tried, "paper/A/0.1-1"]
    assert Choice(rows=("A",), seeds=2).count(plan) == 3 + 2 + 3 + 2  # code's point is not known
    assert Choice(rows=("A",)).count(plan) == 3 + 3 + 3 + 3
    budgets = {"short": {"minutes": 1.0, "seeds": 3, "more_seeds": {"A": 5}}}
    more = made(tmp_path / "none", budgets=budgets)
    assert Choice(rows=("A",), variant="code").count(more) == 3 + 5
    with pytest.raises(BadSetting, match=r"--rows Z\*: p/a has A, L, B, P"):
        some(Choice(rows=("Z*",)))
    only = replace(
        plan.artifact, spec=artifact(variants={"paper": {}}, rows={"A": {"method": "bome"}}).spec
    )
    with pytest.raises(BadSetting, match="--variant code: p/a has paper"):
        Choice(variant="code").check(only)


def test_the_largest_budget_is_the_largest_that_judges_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record of the full size of which no claim is judged does not hide a smaller one's verdicts;
    where no record has a verdict the largest record is shown."""
    less = {
        "kind": "below",
        "by": "us",
        "text": "t",
        "rows": ["A"],
        "than": ["L"],
        "metric": "loss",
    }
    budgets = {budget: {"minutes": 1.0, "seeds": 3} for budget in ("short", "full")}
    plain = {"select": None, "grid": None, "variants": {"paper": {}}, "budgets": budgets,
             "claims": {"less": less}}  # fmt: skip
    one, results = artifact(**plain), tmp_path / "results"
    names: Any = Known()
    monkeypatch.setattr(standing, "Names", lambda _: names)

    def found(of: Artifact = one) -> str:
        return standing.largest_budget(of, BOOK, tmp_path, results)

    def record(budget: str) -> None:
        plan = made(tmp_path, budget, **plain)
        records.write_record(records.make_record(plan, BOOK), results)

    assert found() == "full"
    record("short")
    record("full")
    assert found() == "full"
    for row, seed in product("AL", range(3)):
        ended(tmp_path, f"paper/{row}/-{seed}", 0.25)
    record("short")
    assert found() == "full"  # of which runs are there
    (tmp_path / "paper").rename(tmp_path / "elsewhere")
    assert found() == "short"
    assert found(artifact(**plain | {"claims": {}})) == "full"
    (tmp_path / "elsewhere").rename(tmp_path / "paper")
    record("full")
    (tmp_path / "paper").rename(tmp_path / "elsewhere")
    assert found() == "full"


@pytest.mark.parametrize(
    ("now", "alike"),
    [([3e-9, 1e-9], True), ([3e-9 * (1 + 1e-8), 1e-9], True), ([2e-9, 1e-9], False),
     ([3e-9, math.nan], False), ([3e-9, math.inf], False)],
)  # fmt: skip
def test_small_values_differ_too(now: list[float], alike: bool) -> None:
    """A gap of 1e-9 is measured as well as one of 1e-3."""
    first, second = (
        [ClaimPart(what="a", values=values, low=0.0, high=1.0, expected=2)]
        for values in ([3e-9, 1e-9], now)
    )
    assert have_same_values(first, second) == alike


@pytest.mark.parametrize(("change", "alike"), [(1e-6, True), (1e-5, False), (-1e-5, False)])
def test_values_of_runs_made_again_differ_by_more_than_rounding(change: float, alike: bool) -> None:
    """Of 1 and 2 up to 3e-6 may be rounding: a millionth of the value, and one of the largest."""
    first, second = (
        [ClaimPart(what="a", values=values, low=0.0, high=3.0, expected=2)]
        for values in ([1.0, 2.0], [1.0 + change, 2.0])
    )
    assert have_same_values(first, second) == alike
