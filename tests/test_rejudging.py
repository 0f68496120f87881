"""Records judged again by today's specs and rules, and the command that writes what comes out."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.reproduce import cli, judge_commands, records, rejudging
from bench.reproduce.claim_records import Verdicts
from bench.reproduce.records import Record
from bench.reproduce.specs import Book
from tests.planned import BOOK, Known, artifact, made
from tests.test_records import ended

LESS = {
    "kind": "below",
    "by": "us",
    "text": "A has less",
    "rows": ["A"],
    "than": ["L"],
    "metric": "loss",
}
GROWS = {
    "kind": "diverges",
    "by": "us",
    "text": "A grows",
    "rows": ["A"],
    "metric": "loss",
    "growth": 10.0,
}
FAST = {
    "kind": "below",
    "by": "us",
    "text": "A is fast",
    "rows": ["A"],
    "than": ["L"],
    "metric": "cpu_seconds",
}
CLAIMS: dict[str, Any] = {
    "less": LESS, "grows": GROWS, "fast": FAST,
    "smoke only": {**LESS, "budgets": ["smoke"]},
    "code only": {**LESS, "variants": ["code"]},
}  # fmt: skip
PLAIN: dict[str, Any] = {"select": None, "grid": None, "claims": CLAIMS}


def judged(found: Record, **changes: Any) -> Verdicts:
    return rejudging.rejudge(found, artifact(**{**PLAIN, **changes}), BOOK)


@pytest.fixture
def measured(tmp_path: Path) -> Record:
    """Of seeds 0 to 2, in the paper variant; A has losses about .25 and L about .75."""
    for seed in range(3):
        ended(tmp_path, f"paper/A/-{seed}", 0.25 + 0.001 * seed, process={"others_cores": 0.0})
        ended(tmp_path, f"paper/L/-{seed}", 0.75, process={"others_cores": 0.0})
    return records.make_record(made(tmp_path, **PLAIN), BOOK)


class NoNames(Known):
    """Names that need no folder."""

    def __init__(self, root: Path):
        super().__init__()


def older(found: Record, expected: int, *values: float) -> Record:
    """The record with these values of the claim that takes histories."""
    content = found.model_dump()
    part = content["claims"]["paper"]["grows"]["parts"][0]
    part |= {"values": list(values), "expected": expected}
    return Record.model_validate(content)


def test_last_values_come_from_the_rows_whatever_the_verdict_was(measured: Record) -> None:
    content = measured.model_dump()
    entry = content["claims"]["paper"]["less"]
    entry["verdict"] = {"word": "fails", "n": 9, "statistic": "s", "details": []}
    entry["parts"][0]["values"] = [9.0]
    found = judged(Record.model_validate(content))
    assert {variant: list(group) for variant, group in found.items()} == {
        "paper": ["less", "grows", "fast"], "code": ["less", "grows", "fast", "code only"],
    }  # fmt: skip
    assert found["paper"]["less"].verdict.word == "holds"
    assert found["paper"]["less"].parts[0].values == pytest.approx([-0.5, -0.499, -0.498])
    assert found["code"]["less"].verdict.word == "not run"


@pytest.mark.parametrize("on", ["calls/grad_g", "val_loss"])
def test_a_claim_on_a_metric_that_histories_lack_is_not_run(on: str, measured: Record) -> None:
    """A count that was not kept is not 0, and who was first in it is not known."""
    first = {
        "kind": "first", "by": "us", "text": "A is first", "rows": ["A"], "than": ["L"],
        "metric": "loss", "on": on, "value": 0.5,
    }  # fmt: skip
    names = [name for row in measured.rows["paper"].values() for name in row.runs]
    histories: dict[str, Any] = {name: {"step": [0, 1], "loss": [1.0, 0.25]} for name in names}
    found = measured.model_copy(update={"histories": histories})
    assert judged(found, claims={"first": first})["paper"]["first"].verdict.word == "not run"
    known = judged(found, claims={"first": {**first, "on": "step"}})["paper"]["first"]
    assert known.verdict.word != "not run"


def test_a_claim_that_has_changed_is_judged_as_it_is_now(measured: Record) -> None:
    """So is one that the record does not have; one that the spec has no longer is gone."""
    more = {
        "kind": "above",
        "by": "us",
        "text": "more",
        "rows": ["A"],
        "than": ["L"],
        "metric": "loss",
    }
    reworded = {**LESS, "text": "less by .25", "margin": 0.25, "by": "paper"}
    found = judged(measured, claims={"less": reworded, "more": more})["paper"]
    assert list(found) == ["less", "more"]
    assert found["less"].claim["text"] == "less by .25"
    assert found["less"].claim["by"] == "paper"
    assert found["less"].parts[0].high == -0.25
    assert [entry.verdict.word for entry in found.values()] == ["holds", "fails"]
    assert (
        judged(measured, claims={"less": {**LESS, "margin": 0.6}})["paper"]["less"].verdict.word
        == "fails"
    )


def test_the_tuning_seed_of_an_older_record_is_not_judged(measured: Record) -> None:
    """With a choice among grid points in the spec, the values of seed 0 are left out."""
    select = {"metric": "loss", "best": "lowest"}
    found = judged(older(measured, 3, 2.0, 3.0, 4.0), select=select)["paper"]
    assert found["less"].parts[0].values == pytest.approx([-0.499, -0.498])
    assert found["grows"].parts[0].values == [3.0, 4.0]
    assert [entry.parts[0].expected for entry in found.values()] == [2, 2, 2]
    again = measured.model_copy(update={"claims": {"paper": found, "code": {}}})
    assert judged(again, select=select)["paper"] == found


def test_a_record_is_judged_with_the_seeds_that_it_has(measured: Record) -> None:
    """The spec may ask for more today, or for fewer."""
    more = judged(measured, budgets={"short": {"minutes": 1.0, "seeds": 9}})["paper"]["less"]
    assert (more.verdict.word, more.verdict.n, more.parts[0].expected) == ("holds", 3, 3)
    fewer = judged(measured, budgets={"short": {"minutes": 1.0, "seeds": 2}})["paper"]["less"]
    assert (fewer.verdict.n, fewer.parts[0].expected) == (2, 2)
    assert (more.judged, fewer.judged) == ([3], [3, 2])  # the record's own judgement counts too


@pytest.mark.parametrize(("change", "numbers"), [(1e-8, [3]), (1e-3, [3, 3])])
def test_as_many_values_of_runs_made_again_are_another_judgement(
    change: float, numbers: list[int], measured: Record
) -> None:
    """Other machines round differently, and that is none."""
    content = measured.model_dump()
    content["claims"]["paper"]["less"]["judged"] = [3]
    content["rows"]["paper"]["A"]["finals"]["loss"][1] += change
    assert judged(Record.model_validate(content))["paper"]["less"].judged == numbers


def test_a_run_that_is_missing_in_the_record_leaves_a_claim_not_run(measured: Record) -> None:
    content = measured.model_dump()
    content["rows"]["paper"]["A"]["status"][1] = "missing"
    found = judged(Record.model_validate(content))["paper"]["less"]
    assert (found.verdict.word, found.verdict.n) == ("not run", 2)


def test_recorded_parts_stand_for_histories_if_they_mean_the_same(measured: Record) -> None:
    """They do for the same claim, judged by the same rule, at the same seeds."""
    known = older(measured, 3, 2.0, 2.1, 2.2)
    assert judged(known)["paper"]["grows"].verdict.word == "holds"
    reworded = {**GROWS, "text": "it grows", "median": True, "variants": ["paper"]}
    assert judged(known, claims={"grows": reworded})["paper"]["grows"].parts[0].values == [
        2.0, 2.1, 2.2,
    ]  # fmt: skip
    changed = {**GROWS, "growth": 20.0}
    gone = [judged(known, claims={"grows": changed})["paper"]["grows"]]
    content = known.model_dump()
    content["claims"]["paper"]["grows"]["parts"][0]["what"] = "by another rule"
    gone.append(judged(Record.model_validate(content))["paper"]["grows"])
    gone.append(judged(older(measured, 5, 2.0, 2.1, 2.2))["paper"]["grows"])
    gone.append(judged(older(measured, 4, 2.0, 2.1, 2.2))["paper"]["grows"])
    for entry in gone:
        assert (entry.parts[0].values, entry.verdict.word) == ([], "not run")
    del content["claims"]["paper"]["grows"]["claim"]["median"]  # a field that is younger
    content["claims"]["paper"]["grows"]["parts"][0]["what"] = (
        known.claims["paper"]["grows"].parts[0].what
    )
    assert judged(Record.model_validate(content))["paper"]["grows"].verdict.word == "holds"


def test_times_of_runs_that_do_not_say_are_not_judged(measured: Record) -> None:
    values = judged(measured)["paper"]["fast"].parts[0].values
    assert values == [0.0, 0.0, 0.0]
    content = measured.model_dump()
    content["rows"]["paper"]["A"]["undisturbed"] = [True, False, True]
    (part,) = judged(Record.model_validate(content))["paper"]["fast"].parts
    assert (part.values, part.expected) == ([0.0, 0.0], 2)
    content["rows"]["paper"]["A"]["undisturbed"] = []
    found = judged(Record.model_validate(content))["paper"]["fast"]
    assert (found.parts[0].values, found.parts[0].expected) == ([], 0)
    assert found.verdict.word == "not enough runs"


def test_times_of_machines_of_different_speed_are_not_judged(measured: Record) -> None:
    content = measured.model_dump()
    for row, paces in {"A": [1.0, 1.0, 1.6], "L": [1.5, None, 1.0]}.items():
        content["rows"]["paper"][row]["paces"] = paces
    (part,) = judged(Record.model_validate(content))["paper"]["fast"].parts
    assert (part.values, part.expected) == ([0.0], 1)
    content["rows"]["paper"]["A"]["devices"][0] = "Another CPU"
    (part,) = judged(Record.model_validate(content))["paper"]["fast"].parts
    assert (part.values, part.expected) == ([], 0)
    assert judged(Record.model_validate(content))["paper"]["less"].verdict.word == "holds"


def test_changes_of_verdicts_in_lines(measured: Record) -> None:
    before, after = judged(measured), judged(measured)
    assert list(rejudging.verdict_changes(before, after)) == []
    after["paper"]["less"] = after["code"]["less"]
    del after["paper"]["grows"]
    after["paper"]["new"] = before["paper"]["less"]
    assert list(rejudging.verdict_changes(before, after)) == [
        "paper less: holds -> not run",
        "paper grows: not enough runs (n=3) -> -",
        "paper new: - -> holds",
    ]
    assert list(rejudging.verdict_changes({}, {"paper": {}})) == []


def test_the_command_writes_verdicts_and_leaves_values(
    measured: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    content = measured.model_dump(mode="json")
    content["claims"]["paper"]["less"]["verdict"]["word"] = "fails"
    old = Record.model_validate(content)
    file = records.write_record(old, tmp_path)
    book = Book({"p/a": artifact(**PLAIN)}, BOOK.metrics, BOOK.methods)

    def load(folder: Path | None) -> Book:
        return book

    monkeypatch.setattr(judge_commands, "load_book", load)
    monkeypatch.setattr(judge_commands, "Names", NoNames)
    monkeypatch.setattr(sys, "argv", ["reproduce", "rejudge", "p/a", "--results", str(tmp_path)])
    with pytest.raises(SystemExit) as ended_with:
        cli.main()
    assert ended_with.value.code == 0
    said = "".join(capsys.readouterr().out.splitlines(keepends=True))
    assert "1 verdicts changed" in " ".join(said.split())
    assert "paper less: fails -> holds" in said
    found = records.read_record("p/a", "short", tmp_path)
    assert found is not None
    assert found.claims["paper"]["less"].verdict.word == "holds"
    assert found.model_dump(exclude={"claims"}) == old.model_dump(exclude={"claims"})
    assert json.loads(file.read_text())["artifact"] == "p/a"
