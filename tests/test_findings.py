"""What the README and results/README.md say of records that are written by hand."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench.core.settings import BadSetting
from bench.reproduce import readme, records, report, written
from bench.reproduce.claim_kinds import describe_cause
from bench.reproduce.claim_records import ClaimRecord
from bench.reproduce.claims import Verdict
from bench.reproduce.readme import Finding
from bench.reproduce.records import Record
from bench.reproduce.specs import Book
from tests import planned
from tests.test_report_tables import recorded, row

CLAIM = {
    "kind": "between", "metric": "loss", "rows": ["A"], "budgets": ["smoke", "short"], "by": "us",
}  # fmt: skip
STATED = {**CLAIM, "by": "paper", "source": "table 1"}
IT_IS_NOT = {"paper": {"text": "It is not.", "tested": True, "by": "p/a"}}
NOR_HIGH = {"code": {"text": "Nor high.", "tested": False}}
CLAIMS = {
    "low": {**STATED, "text": "it is low", "at_most": 1.0, "why": IT_IS_NOT},
    "high": {**CLAIM, "text": "it is high", "at_least": 2.0, "why": NOR_HIGH},
    "one": {**CLAIM, "text": "in one", "at_most": 9.0, "variants": ["code"]},
}
ARTIFACT = planned.artifact(title="Toy", claims=CLAIMS)
BOOK = Book({"p/a": ARTIFACT}, planned.BOOK.metrics, planned.BOOK.methods)


def entry(key: str, word: Any, values: list[float]) -> ClaimRecord:
    """The record of a claim with this verdict; the values are those of its one part."""
    claim = ARTIFACT.spec.claims[key].model_dump(mode="json")
    limits = {"low": claim["at_least"], "high": claim["at_most"]}
    bounds = {"low": -9.0, "high": 9.0} | {k: v for k, v in limits.items() if v is not None}
    part = {"what": key, "values": values, "expected": 3, **bounds}
    p = {"holds": 0.01, "fails": 0.04, "not enough runs": 0.5}.get(word)
    verdict = Verdict(word=word, n=len(values), p=p, statistic=f"{key} = 1", details=[])
    return ClaimRecord.model_validate({"claim": claim, "parts": [part], "verdict": verdict})


GROUPS = {
    "paper": {"low": entry("low", "fails", [2.0, 2.1, 2.2]), "high": entry("high", "holds", [3.0])},
    "code": {
        "low": entry("low", "not enough runs", [1.0, 1.1]),
        "high": entry("high", "fails", [1.0]),
        "one": entry("one", "not run", []),
    },
}
RECORD = recorded({"paper": {}, "code": {}}, GROUPS)
FOUND = Finding(ARTIFACT, "short", RECORD, GROUPS)
SOME = Finding(
    planned.artifact(title="Other"),
    "smoke",
    recorded({}),
    {"paper": {"low": GROUPS["paper"]["high"]}},
)


# of the p-values .01, .01, .04, .04 and .5 the fourth is at most 5% of 4 / 5
ERRORS = (
    "Of 5 tested claims 4 have a verdict, of which at most 0 are expected to be wrong. At a false "
    "discovery rate of 5% (Benjamini and Hochberg) 4 verdicts stand together."
)


def with_seeds(claim: ClaimRecord, n: int) -> ClaimRecord:
    """The same claim, of whose seeds n can be judged."""
    parts = [part.model_copy(update={"expected": n}) for part in claim.parts]
    return claim.model_copy(update={"parts": parts})


def test_how_many_verdicts_may_be_wrong() -> None:
    """RATE times the number of claims that were tested; those that were not run are none."""
    assert readme.errors_sentence([FOUND, SOME]) == ERRORS
    assert readme.errors_sentence([FOUND] * 30).startswith(
        "Of 120 tested claims 90 have a verdict, of which at most 3 are expected to be wrong."
    )
    # the claims, with three seeds, were judged twice; those with five are of other rows
    added = FOUND._replace(record=RECORD.model_copy(update={"looks": [2, 3, 5]}))
    said = readme.errors_sentence([added] * 30)  # with .025 for each only the .01 of one stands
    assert said == (
        "Of 120 tested claims 90 have a verdict, of which at most 6 are expected to be wrong. "
        "To 30 of the records seeds were added, or runs were made again, after claims had been "
        "judged, and each judgement may err; with the level divided among a record's judgements "
        "(Bonferroni) 30 "
        "verdicts stand, and the others are marked with †. At a false discovery rate of 5% "
        "(Benjamini and Hochberg) 30 verdicts stand together."
    )
    # seeds whose times cannot be compared were judged too, before they were left out
    fewer = {
        variant: {key: with_seeds(claim, 1) for key, claim in group.items()}
        for variant, group in GROUPS.items()
    }
    assert readme.errors_sentence([added._replace(verdicts=fewer)] * 30) == said
    # the p of a claim whose runs are not all there tells of a part of them
    waiting = GROUPS["code"]["one"].verdict.model_copy(update={"p": 1e-9})
    partly = {"one": GROUPS["code"]["one"].model_copy(update={"verdict": waiting})}
    unfinished = FOUND._replace(verdicts={"code": partly})
    assert readme.errors_sentence([FOUND, SOME, unfinished]) == ERRORS
    for without in ([], [FOUND._replace(verdicts={"code": {"one": GROUPS["code"]["one"]}})]):
        assert readme.errors_sentence(without) == ""


def test_totals_tell_scales_and_authors_apart() -> None:
    assert readme.total_text([FOUND, SOME]) == (
        "At a smaller scale, of the papers' claims **1 fail**, 1 open; "
        "of our own checks 2 hold, **1 fail**, 1 not run."
    )
    whole = planned.artifact(budgets={"smoke": {"minutes": 1.0, "scale": "paper"}})
    assert readme.total_text([FOUND, SOME._replace(artifact=whole)]) == (
        "At the papers' scale, of our own checks 1 hold. "
        "At a smaller scale, of the papers' claims **1 fail**, 1 open; "
        "of our own checks 1 hold, **1 fail**, 1 not run."
    )
    assert readme.total_text([]) == ""


def test_bounds_that_hold_are_told_apart() -> None:
    """Of the papers' own claims only."""
    entry = FOUND._replace(artifact=planned.artifact(shows="theorems"))
    held = GROUPS["paper"]["low"].verdict.model_copy(update={"word": "holds"})
    low = GROUPS["paper"]["low"].model_copy(update={"verdict": held})
    assert "bounds" not in readme.total_text([entry])
    entry = entry._replace(verdicts={"paper": {"low": low, "high": GROUPS["paper"]["high"]}})
    assert readme.total_text([entry]).endswith(
        "Of the papers' claims that hold, 1 are bounds of theorems, which measurements can hardly "
        "contradict."
    )


def test_how_many_runs_the_claims_rest_on() -> None:
    """From the claim with the fewest to that with the most; claims that were not run have none."""
    assert readme.describe_runs(FOUND) == "1 to 3"
    assert readme.describe_runs(SOME) == "1"
    rows = {"paper": {"A": row("done"), "B": row("done missing")}, "code": {}}
    assert (
        readme.describe_runs(Finding(ARTIFACT, "short", recorded(rows), {"paper": {}})) == "1 to 2"
    )
    assert readme.describe_runs(Finding(ARTIFACT, "short", recorded({}), {})) == "0"


def test_the_summary_has_a_row_for_every_artifact() -> None:
    assert readme.summary_table([FOUND, SOME], "results/README.md") == (
        "\nAt a smaller scale, of the papers' claims **1 fail**, 1 open; "
        f"of our own checks 2 hold, **1 fail**, 1 not run. {ERRORS} "
        "[Every claim, and what its failing means](results/README.md).\n\n"
        "| artifact |  | budget, n | scale | paper | code |\n|---|---|---|---|---|---|\n"
        "| `p/a` | Toy | short, 1 to 3 | smaller | **1 fail**; ours: 1 hold "
        "| 1 open; ours: **1 fail**, 1 not run |\n"
        "| `p/a` | Other | smoke, 1 | smaller | ours: 1 hold | · |\n\n"
    )
    assert readme.summary_table([], "x") == "\nNothing is recorded yet.\n\n"


def test_a_row_for_every_claim() -> None:
    assert list(readme.finding_rows(FOUND)) == [
        ["`p/a`", "short, 3", "smaller", "it is low", "paper: table 1", "**fails**",
         "not enough runs (n=2)"],
        ["`p/a`", "short, 1", "smaller", "it is high", "us", "holds", "**fails**"],
        ["`p/a`", "short, 0", "smaller", "in one", "us", "·", "not run"],
    ]  # fmt: skip


def test_a_verdict_of_one_judgement_among_several_is_marked() -> None:
    """Each of two judgements may err with half the level: of p = .01 and .04 the first stands. A
    claim that is open has no mark."""
    added = FOUND._replace(record=RECORD.model_copy(update={"looks": [2, 3, 5]}))
    said = [row[-2:] for row in readme.finding_rows(added)]
    plain = [row[-2:] for row in readme.finding_rows(FOUND)]
    assert said != plain
    for new, old in zip(said, plain, strict=True):
        assert [cell.replace(" †", "") for cell in new] == old
    for verdict in (claim.verdict for group in GROUPS.values() for claim in group.values()):
        decided = verdict.word in ("holds", "fails")
        assert readme.is_weak(verdict, 2) == (decided and (verdict.p or 0) > 0.025)
        assert not readme.is_weak(verdict, 1)


def test_judgements_of_a_claim_with_fewer_values_count_too() -> None:
    """As when times at some seeds could not be compared at first. Other claims are as before."""
    low = GROUPS["paper"]["low"]
    twice = {"paper": GROUPS["paper"] | {"low": low.model_copy(update={"judged": [2, 3]})}}
    found = FOUND._replace(verdicts=GROUPS | twice)
    assert readme.looks_at(FOUND, "low", [low]) == 1
    assert readme.looks_at(found, "low", [found.verdicts["paper"]["low"]]) == 2
    assert readme.looks_at(found, "high", [found.verdicts["paper"]["high"]]) == 1


def test_why_a_claim_fails_is_said_in_its_own_variant() -> None:
    """A cause that nobody tested is a conjecture."""
    low, high = GROUPS["paper"]["low"], GROUPS["code"]["high"]
    assert describe_cause(low.claim, "paper") == "It is not. (Tested: p/a.)"
    assert describe_cause(low.claim, "code") == ""
    assert describe_cause(high.claim, "code") == "conjecture: Nor high."
    assert readme.failure_line("p/a", "paper", low) == (
        "- `p/a`, paper: *it is low* fails: It is not. (Tested: p/a.) low = 1."
    )
    assert readme.failure_line("p/a", "paper", high) == (
        "- `p/a`, paper, ours: *it is high* fails: high = 1."
    )


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A record at the budget short. Judged from its rows without the tuning seed, `low` fails in
    the paper variant and `high` in the other one, where `one` holds."""
    folder = tmp_path / "results"
    losses = {"paper": [9.0, 2.0, 2.1, 2.2], "code": [9.0, 1.0, 1.1, 1.2]}
    rows = {
        variant: {"A": row("done done done done", finals={"loss": values})}
        for variant, values in losses.items()
    }
    records.write_record(recorded(rows, GROUPS), folder)
    return folder


def test_every_record_of_the_book_is_found(results: Path) -> None:
    (found,) = readme.read_findings(BOOK, results)
    assert (found.artifact, found.budget) == (ARTIFACT, "short")
    assert isinstance(found.record, Record)
    assert found.verdicts["paper"]["low"].verdict.word == "fails"


def test_all_findings(results: Path) -> None:
    text = readme.findings_page([*readme.read_findings(BOOK, results)])
    assert text.startswith(
        "# Findings\n\nWritten by `reproduce findings` from the records beside this file. "
        "At a smaller scale, of the papers' claims **1 fail**, 1 open; of our own checks 1 hold, "
        "**1 fail**, 1 open. Of 5 tested claims 3 have a verdict, of which "
        "at most 0 are expected to be wrong. To 1 of the records seeds were added, or runs were "
        "made again, after claims had been judged, and each judgement may err; with the level "
        "divided among a record's judgements (Bonferroni) 3 verdicts stand, and the others are "
        "marked with †. At a false discovery rate of 5% (Benjamini and Hochberg) 3 verdicts stand "
        f"together.\n\n{readme.LEGEND}\n\n"
        "| artifact | budget, n | scale | claim | by | paper | code |\n"
        "|---|---|---|---|---|---|---|\n"
        "| `p/a` | short, 3 | smaller | it is low | paper: table 1 "
        "| **fails** | not enough runs (n=3) |\n"
    )
    first, second = text.partition("## What fails, and what it means\n\n")[2].splitlines()
    why = "It is not. (Tested: p/a.)"
    assert first.startswith(f"- `p/a`, paper: *it is low* fails: {why} loss of A = 2.1 [")
    why = "conjecture: Nor high."
    assert second.startswith(f"- `p/a`, code, ours: *it is high* fails: {why} loss of A = 1.1 [")
    assert second.endswith(", n = 3.")


def test_without_records_there_is_nothing(tmp_path: Path) -> None:
    page = readme.findings_page([*readme.read_findings(BOOK, tmp_path)])
    assert page.endswith("file.\n\nNothing is recorded yet.\n")


def marked(*whats: str) -> str:
    parts = [
        f"<!-- {w}: written by `reproduce findings` -->\nold\n<!-- end of {w} -->" for w in whats
    ]
    return "\n".join(["above", *parts, "below"]) + "\n"


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """A folder with the pages that are written, and specs that the README shows nothing of."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "specs").mkdir()
    (tmp_path / "docs" / "findings.md").write_text(marked("findings"))
    (tmp_path / "docs" / "speed.md").write_text(marked("speed"))
    (tmp_path / "README.md").write_text("mine")
    return tmp_path


def test_only_what_stands_between_the_marks_is_written(results: Path, top: Path) -> None:
    files = written.written_files(top, BOOK, results, top / "specs")
    assert set(files) == {results / "README.md", top / "docs" / "findings.md"}
    page = top / "docs" / "findings.md"
    text = files[page]
    assert text.startswith("above\n<!-- findings: written by `reproduce findings` -->\n\nAt ")
    assert text.endswith("|\n\n<!-- end of findings -->\nbelow\n")
    assert "\nold\n" not in text
    assert "](../results/README.md)" in text
    cells = "**1 fail**; ours: 1 open | 1 open; ours: 1 hold, **1 fail**"
    assert f"| `p/a` | Toy | short, 3 | smaller | {cells} |" in text
    page.write_text(text)
    assert written.written_files(top, BOOK, results, top / "specs")[page] == text
    (results / "speed").mkdir()
    speed = written.written_files(top, BOOK, results, top / "specs")[top / "docs" / "speed.md"]
    assert "\n\nNo speed is recorded yet" in speed


def test_how_often_the_judge_was_wrong_stands_below_the_table(results: Path, top: Path) -> None:
    rates = {"kind": "between", "law": "normal", "n": 3, "draws": 2000, "promised": True}
    cases = [{**rates, "holds": 0.01, "fails": 0.026}, {**rates, "holds": 0.5, "fails": 0.5,
             "promised": False}]  # fmt: skip
    (results / "coverage.json").write_text(json.dumps({"rate": 0.025, "cases": cases}))
    text = written.written_files(top, BOOK, results, top / "specs")[top / "docs" / "findings.md"]
    assert (
        "at most 2.6% of 2,000 verdicts were wrong (kind between; normal; 3 seeds).\n\n"
        "<!-- end of findings -->" in text
    )


def test_a_page_without_the_marks_is_refused(results: Path, top: Path) -> None:
    page = top / "docs" / "findings.md"
    page.write_text("nothing")
    with pytest.raises(BadSetting, match="there is no line <!-- findings: written"):
        written.written_files(top, BOOK, results, top / "specs")
    page.unlink()
    with pytest.raises(BadSetting, match="there is no such file"):
        written.written_files(top, BOOK, results, top / "specs")


def test_a_pages_claims_have_all_variants_verdicts() -> None:
    found = report.claim_entries(RECORD, ARTIFACT)
    assert [r["text"] for r in found] == ["it is low", "it is high", "in one"]
    assert [list(r["verdicts"]) for r in found] == [["paper", "code"], ["paper", "code"], ["code"]]
    assert found[1]["verdicts"]["code"].word == "fails"
    assert [r["author"] for r in found] == ["paper: table 1", "us", "us"]
    assert [r["why"] for r in found] == [
        {"paper": "It is not. (Tested: p/a.)", "code": ""},
        {"paper": "", "code": "conjecture: Nor high."},
        {"code": ""},
    ]


def test_data_in_a_page_cannot_end_its_script() -> None:
    data = {"a": "</script>", "π": [1, 2.5]}
    text = report.embed(data)
    assert "<" not in text
    assert " " not in text
    assert "π" in text
    assert json.loads(text) == data
    with pytest.raises(ValueError, match="not JSON compliant"):
        report.embed(float("nan"))


def test_powers_are_raised() -> None:
    assert report.raise_powers("as T^(2/3)") == "as T<sup>2/3</sup>"
    assert report.raise_powers("ε^−2.5, κ^3.") == "ε<sup>−2.5</sup>, κ<sup>3</sup>."
    assert report.raise_powers("a^b < 1") == "a^b &lt; 1"


def test_the_pages_words_for_verdicts() -> None:
    filters = report.load_templates().filters
    words = ["holds", "fails", "not enough runs (n=3)", "not run", "else"]
    assert [filters["mark"](word) for word in words] == ["✓", "✗", "?", "–", ""]
    kinds = [filters["kind"](word) for word in words[:4]]
    assert kinds == ["holds", "fails", "not-enough-runs", "not-run"]
