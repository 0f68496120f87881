"""Counts of verdicts: the papers' claims and our own checks apart, and each scale apart."""

from pathlib import Path
from typing import Any

from bench.reproduce import records, totals
from bench.reproduce.claim_kinds import Author
from bench.reproduce.claim_records import ClaimRecord
from bench.reproduce.claims import Verdict
from tests.planned import BOOK, artifact, made

WORDS = ["not run", "holds", "fails", "holds", "not enough runs", "holds", "fails", "not run"]
CLAIM = {"kind": "between", "text": "c", "rows": ["A"], "metric": "loss", "at_most": 1.0}


def entry(word: Any, by: Author | None) -> ClaimRecord:
    """A recorded claim with this verdict; an old record says nothing of who makes it."""
    verdict = Verdict(word=word, n=1, statistic="s", details=[])
    return ClaimRecord(claim={"by": by} if by else {}, parts=[], verdict=verdict)


def test_each_authors_verdicts_are_counted() -> None:
    some = [entry(word, "paper") for word in WORDS] + [entry("fails", "us")]
    found = totals.count_verdicts(some)
    assert dict(found["paper"]) == {"holds": 3, "fails": 2, "not enough runs": 1, "not run": 2}
    assert dict(found["us"]) == {"fails": 1}
    said = "3 holds, 2 fails, 1 not enough runs, 2 not run; ours: 1 fails"
    assert totals.phrase_authors(found) == said
    marked = "3 hold, **2 fail**, 1 open, 2 not run; ours: **1 fail**"
    assert totals.phrase_authors(found, totals.MARKDOWN) == marked
    assert totals.phrase_authors(totals.count_verdicts(some[:1])) == "1 not run"
    assert totals.phrase_authors(totals.count_verdicts(some[-1:])) == "ours: 1 fails"
    assert totals.phrase_authors(totals.count_verdicts([])) == ""


def test_a_sentence_for_each_scale_that_has_claims() -> None:
    paper, ours = (totals.count_verdicts([entry("holds", by)]) for by in totals.AUTHORS)
    assert totals.total_sentences([("smaller", ours), ("paper", paper), ("smaller", ours)]) == [
        "At the papers' scale, of the papers' claims 1 holds.",
        "At a smaller scale, of our own checks 2 holds.",
    ]
    assert totals.total_sentences([("paper", totals.count_verdicts([]))]) == []


def test_who_makes_a_recorded_claim_is_what_the_spec_says(tmp_path: Path) -> None:
    """A record may be older than that field; a claim that the spec dropped is not counted."""
    spec = artifact(claims={"a": {**CLAIM, "by": "paper"}, "b": {**CLAIM, "by": "us"}}).spec
    empty = records.make_record(made(tmp_path), BOOK)
    groups = {
        "paper": {"a": entry("holds", None), "b": entry("fails", None)},
        "code": {"a": entry("fails", "us"), "gone": entry("fails", "us")},
    }
    found = empty.model_copy(update={"claims": groups})
    assert totals.describe_verdicts(found, spec) == "1 hold, 1 fail; ours: 1 fail"
    assert totals.describe_verdicts(empty, spec) == "none judged"
    assert totals.describe_verdicts(None, spec) == "-"
