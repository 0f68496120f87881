"""Rows of records whose runs are not those of today, and the verdicts that rest on them."""

from pathlib import Path
from typing import Any

import pytest

from bench.reproduce import records, rejudging
from bench.reproduce.claim_records import Verdicts
from bench.reproduce.outdated import mark_outdated
from bench.reproduce.points import Point
from bench.reproduce.records import Record
from tests.planned import BOOK, Known, artifact, made, name
from tests.test_records import ended

LESS = {"kind": "below", "by": "us", "text": "A has less", "rows": ["A"], "than": ["L"],
        "metric": "loss"}  # fmt: skip
LONE = {"kind": "between", "by": "us", "text": "L is small", "rows": ["L"], "metric": "loss",
        "at_most": 2.0}  # fmt: skip
CLAIMS = {"less": LESS, "lone": LONE}
RATES = [0.1, 0.2, 0.3]


class Renamed(Known):
    """Names of which those of row A are others than they were, as after a function's change."""

    def get(self, point: Point, seed: int) -> str | None:
        old = name(point, seed)
        return old.replace("-", "+") if point.row == "A" else old


@pytest.fixture
def measured(tmp_path: Path) -> Record:
    """Of seeds 1 to 3, in the paper variant: A, whose rate .1 did best, and L without a grid."""
    for rate in RATES:
        ended(tmp_path, f"paper/A/{rate}-0", rate)
    for seed in (1, 2, 3):
        ended(tmp_path, f"paper/A/0.1-{seed}", 0.1 + 0.001 * seed)
        ended(tmp_path, f"paper/L/-{seed}", 0.75 + 0.002 * seed)
    return records.make_record(made(tmp_path, claims=CLAIMS), BOOK)


def marked(found: Record, names: Known, **changes: Any) -> tuple[list[str], Verdicts]:
    """The paper variant's rows that are outdated by a spec with these changes, and all verdicts."""
    spec, known = artifact(**{"claims": CLAIMS, **changes}), names
    now = mark_outdated(found, spec, BOOK, known)  # type: ignore[arg-type]
    rows = [name for name, row in now.rows["paper"].items() if row.outdated]
    return rows, rejudging.rejudge(now, spec, BOOK)


def word(found: Verdicts, key: str) -> str:
    return found["paper"][key].verdict.word


def test_todays_runs_are_not_outdated(measured: Record) -> None:
    rows, found = marked(measured, Known())
    assert rows == []
    assert word(found, "less") == "holds"


def test_a_point_that_another_metric_chose_is_outdated(measured: Record) -> None:
    content = measured.model_dump()
    for tried in content["rows"]["paper"]["A"]["tries"]:
        tried["metric"] = "val_loss"
    rows, _ = marked(Record.model_validate(content), Known())
    assert rows == ["A"]
    for tried in content["rows"]["paper"]["A"]["tries"]:
        del tried["metric"]  # an older record
    assert marked(Record.model_validate(content), Known())[0] == []


def test_a_point_that_another_rule_chooses_is_outdated(measured: Record) -> None:
    """The rate with the lowest loss was chosen; by the highest it is another one."""
    select = {"metric": "loss", "best": "highest"}
    assert marked(measured, Known(), select=select)[0] == ["A"]
    content = measured.model_dump()
    for tried in content["rows"]["paper"]["A"]["tries"]:
        tried["status"], tried["value"] = "diverged", None  # then the first one is shown
    assert marked(Record.model_validate(content), Known(), select=select)[0] == []


def test_a_run_with_another_name_is_outdated_and_so_is_each_claim_about_its_row(
    measured: Record,
) -> None:
    rows, found = marked(measured, Renamed())
    assert rows == ["A"]
    verdict = found["paper"]["less"].verdict
    assert verdict.word == verdict.text == "outdated"
    assert verdict.p is None
    assert verdict.statistic.startswith("A: of older code or settings, which gave holds: loss: A")
    assert word(found, "lone") == "holds"


@pytest.mark.parametrize(
    "grid",
    [
        {"algorithm.lr": RATES[:2]},  # what was tried is tried no longer
        {"algorithm.lr": [*RATES, 0.4]},  # another point may be better
        {"algorithm.lr": [0.2, 0.3, 0.4]},  # the chosen point is there no longer
        {"algorithm.mu": RATES},
        {},
    ],
)
def test_another_grid_makes_a_row_outdated(measured: Record, grid: Any) -> None:
    assert marked(measured, Known(), grid=grid)[0] == ["A"]


def test_a_chosen_point_that_was_never_tried_makes_a_row_outdated(measured: Record) -> None:
    content = measured.model_dump()
    content["rows"]["paper"]["A"]["chosen"] = {"algorithm.lr": 0.9}
    assert marked(Record.model_validate(content), Known())[0] == ["A"]


TWICE = {"short": {"minutes": 1.0, "seeds": 3, "choosing_seeds": 2}}


def test_more_seeds_that_choose_make_a_row_outdated_that_chose(measured: Record) -> None:
    """Row A was chosen by one seed, and its seed 1 would now be among those that choose."""
    assert marked(measured, Known(), budgets=TWICE)[0] == ["A"]


def test_points_that_were_tried_at_two_seeds_are_not_outdated(tmp_path: Path) -> None:
    """At seed 0 the point .3 is best, and on average .1 is."""
    ends = {"0.1": (3.0, 1.0), "0.2": (4.0, 4.0), "0.3": (2.0, 9.0)}
    for rate, losses in ends.items():
        for seed, loss in enumerate(losses):
            ended(tmp_path, f"paper/A/{rate}-{seed}", loss)
    for seed in (2, 3, 4):
        ended(tmp_path, f"paper/A/0.1-{seed}", 0.1 + 0.001 * seed)
        ended(tmp_path, f"paper/L/-{seed}", 0.75 + 0.002 * seed)
    found = records.make_record(made(tmp_path, budgets=TWICE, claims=CLAIMS), BOOK)
    row = found.rows["paper"]["A"]
    assert (row.tried, len(row.tries), row.chosen) == (3, 6, {"algorithm.lr": 0.1})
    assert row.seeds == [2, 3, 4]
    assert marked(found, Known(), budgets=TWICE)[0] == []
    assert marked(found, Known())[0] == ["A"]


def test_the_order_of_a_grid_changes_nothing(measured: Record) -> None:
    assert marked(measured, Known(), grid={"algorithm.lr": RATES[::-1]})[0] == []


def test_a_row_that_the_spec_no_longer_has_is_outdated_and_one_without_runs_is_not(
    measured: Record,
) -> None:
    rows = {"L": {"method": "bome", "line": True}, "P": {"method": "itd", "pending": "not built"}}
    assert marked(measured, Known(), rows=rows, claims={"lone": LONE})[0] == ["A"]


def test_a_claim_without_values_stays_not_run(measured: Record) -> None:
    found = marked(measured, Renamed())[1]
    assert found["code"]["less"].verdict.word == "not run"


def test_an_old_mark_does_not_stay(measured: Record) -> None:
    content = measured.model_dump()
    content["rows"]["paper"]["A"]["outdated"] = True
    old = Record.model_validate(content)
    assert rejudging.rejudge(old, artifact(claims=CLAIMS), BOOK)["paper"]["less"].verdict.word == (
        "outdated"
    )
    assert marked(old, Known())[0] == []


def test_of_equal_points_the_first_of_todays_grid_counts(measured: Record) -> None:
    content = measured.model_dump()
    content["rows"]["paper"]["A"]["tries"][1]["value"] = 0.1  # as good as the first
    equal = Record.model_validate(content)
    assert marked(equal, Known())[0] == []
    assert marked(equal, Known(), grid={"algorithm.lr": RATES[::-1]})[0] == ["A"]


def test_a_point_whose_run_diverged_is_not_chosen_for_its_last_value(measured: Record) -> None:
    content = measured.model_dump()
    content["rows"]["paper"]["A"]["tries"][1] |= {"status": "diverged", "value": 0.05}
    assert marked(Record.model_validate(content), Known())[0] == []
