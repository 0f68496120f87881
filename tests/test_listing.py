"""The lines of `reproduce list`, and the shell's completion of what they name."""

from pathlib import Path
from typing import Any

import pytest

from bench.reproduce import listing, records
from bench.reproduce.book import load_book
from bench.reproduce.options import complete_id
from bench.reproduce.records import Record
from bench.reproduce.standing import read_records
from tests import planned
from tests.conftest import ROOT

LONG = "1 hold, 2 fail, 13 open, 1 outdated, 12 not run; ours: 4 hold, 3 fail, 5 outdated"


def test_a_line_fits_a_terminal_of_80_columns() -> None:
    cells = ("medium", "smaller", "12345", "12345", "~ 8.33 days", LONG)
    text = listing.list_line(cells, 80)
    lines = text.splitlines()
    assert len(lines) > 1
    assert max(map(len, lines)) <= 80
    column = lines[0].index("1 hold")
    for line in lines[1:]:
        assert line[:column].isspace()
        assert line[column].isalnum()  # a number or "ours", never a word without its number
        assert not line[column:].startswith(("hold", "fail", "open", "outdated", "not", "run"))
    assert " ".join(text.split()).endswith(LONG)
    assert listing.list_line(cells, 400).count("\n") == 0


def test_a_measured_cost_is_one_without_a_sign() -> None:
    line = listing.list_line(("full", "paper", "9", "?", "14.4 min (measured)", "-"), 80)
    assert line.split() == ["full", "paper", "9", "?", "14.4", "min", "-"]
    assert len(line) < 60


def test_the_remarks_fit_and_say_what_a_question_mark_means() -> None:
    recorded: dict[tuple[str, str], Record] = {}
    remarks = list(listing.list_remarks([], recorded, 80))
    assert all(len(line) <= 80 for text in remarks for line in text.splitlines())
    assert "?: nobody has looked yet" in " ".join(" ".join(remarks).split())


def test_every_artifacts_own_line_fits() -> None:
    ids = complete_id("")
    assert "bome" in ids
    assert "bome/fig1_coreset" in ids
    assert max(len(f"{name} (paper, code)") for name in ids) <= 80


def test_an_artifact_without_a_record_says_what_that_waits_for(tmp_path: Path) -> None:
    spec = planned.artifact(waits_for="the data set of " + 20 * "long names ")
    record: Any = records.make_record(planned.made(tmp_path), planned.BOOK)
    for recorded, shown in (({}, True), ({("p/a", "short"): record}, False)):
        lines = list(listing.list_artifacts([spec], planned.BOOK, tmp_path, recorded, 80))
        assert ("waits for the data set" in " ".join(lines)) == shown
        assert max(len(line) for text in lines for line in text.splitlines()) <= 80


def test_every_claim_of_a_record_can_be_decided_by_its_seeds() -> None:
    """A claim on three seeds of table 2 was refused, and `reproduce list` ended with 1."""
    book = load_book(None)
    recorded = read_records(book, ROOT / "results", with_histories=False)
    assert len(recorded) > 20
    assert list(listing.refuse_claims(book.artifacts.values(), recorded)) == []


def test_names_are_completed() -> None:
    assert complete_id("stocbio/table1") == ["stocbio/table1", "stocbio/table1_logistic"]
    assert complete_id("nothing") == []


@pytest.mark.parametrize(("known", "done"), [(True, {"1", "3"}), (False, {"?"})])
def test_runs_are_counted_only_where_their_names_are_known(
    known: bool, done: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that nobody has composed stays unknown, because composing takes long. Seed 0 chooses
    grid points, so that a line has no run there."""
    monkeypatch.setattr(listing.KnownNames, "get", planned.Known(known).get)
    for seed in (0, 1, 2, 3):
        planned.finish(tmp_path, f"paper/L/-{seed}", 0.5)
    lines = list(listing.list_artifacts([planned.artifact()], planned.BOOK, tmp_path, {}, 80))
    cells = [line.split() for line in lines if line.startswith(("  smoke", "  short"))]
    assert {cell[3] for cell in cells} == done
