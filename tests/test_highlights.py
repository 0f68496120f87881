"""The findings that matter most: words from a file, numbers from records."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.core.settings import BadSetting
from bench.reproduce import highlights, records
from bench.reproduce.readme import read_findings
from bench.reproduce.specs import Book
from tests.planned import BOOK, artifact, made
from tests.test_records import ended

LESS = {"kind": "below", "by": "us", "text": "A has less", "rows": ["A"], "than": ["L"],
        "metric": "loss"}  # fmt: skip
PLAIN: dict[str, Any] = {
    "select": None, "grid": None, "claims": {"less": LESS}, "variants": {"paper": {}},
    "rows": {"A": {"method": "bome"}, "L": {"method": "bome", "line": True}},
}  # fmt: skip
ONE: dict[str, Any] = {
    "title": "A is better", "published": "It is not.", "finding": "It is.",
    "why": {"text": "It has less.", "tested": True, "by": "p/a"},
    "claims": [{"artifact": "p/a", "budget": "short", "claim": "less"}],
}  # fmt: skip


def written(folder: Path, *entries: Any) -> Path:
    (folder / "highlights.yaml").write_text(yaml.safe_dump(list(entries)))
    return folder


def test_numbers_come_from_the_records(tmp_path: Path) -> None:
    for seed in range(3):
        ended(tmp_path, f"paper/A/-{seed}", 0.25 + 0.01 * seed)
        ended(tmp_path, f"paper/L/-{seed}", 0.75)
    record = records.make_record(made(tmp_path, **PLAIN), BOOK)
    records.write_record(record, tmp_path / "results")
    book = Book({"p/a": artifact(**PLAIN)}, BOOK.metrics, BOOK.methods)
    guessed = {**ONE, "why": {"text": "Perhaps.", "tested": False}}
    unsaid = {key: value for key, value in ONE.items() if key != "why"}
    found = highlights.read_highlights(written(tmp_path, ONE, guessed, unsaid))
    all_ = list(read_findings(book, tmp_path / "results"))
    text = highlights.highlights_text(found, all_)
    statistic = record.claims["paper"]["less"].verdict.statistic
    assert text.startswith("## 1. A is better\n\n*Published.* It is not.\n\n*Found.* It is.\n\n")
    assert f"- `p/a`, short, paper: A has less: **holds**; {statistic}.\n" in text
    assert "*Why.* It has less. (Tested: p/a.)\n" in text
    assert "\n## 2. A is better\n" in text
    assert "*Why.* conjecture: Perhaps.\n" in text
    assert text.count("*Why.*") == 2
    assert f"{statistic}.\n\n*Repeat it.* " in text
    commands = "`reproduce run p/a --budget short`, `reproduce report p/a --budget short`."
    assert text.endswith(f"*Repeat it.* {commands}\n")
    for change in ({"claim": "more"}, {"budget": "full"}, {"variant": "code"}, {"artifact": "p/b"}):
        lost = {**ONE, "claims": [{**ONE["claims"][0], **change}]}
        found = highlights.read_highlights(written(tmp_path, lost))
        with pytest.raises(BadSetting, match=r"highlights\.yaml: no record has p/[ab] "):
            highlights.highlights_text(found, all_)


def test_a_folder_without_the_file_has_none(tmp_path: Path) -> None:
    assert highlights.read_highlights(tmp_path) == []


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([{**ONE, "claims": []}], "1.claims: list should have at least 1 item"),
        ([ONE, {**ONE, "titel": "x"}], "2.titel=x: extra inputs are not permitted"),
        ([{k: v for k, v in ONE.items() if k != "published"}], "1.published: is missing"),
    ],
)
def test_a_wrong_entry_is_named(entries: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match=message):
        highlights.read_highlights(written(tmp_path, *entries))


def test_a_file_that_is_no_list_is_refused(tmp_path: Path) -> None:
    (tmp_path / "highlights.yaml").write_text("a: 1\n")
    with pytest.raises(BadSetting, match="it is not a list of findings"):
        highlights.read_highlights(tmp_path)
