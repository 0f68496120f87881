"""The power of recorded claims, and the claims that a budget's seeds can hardly decide."""

import math
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.reproduce import chances, cli, power, records, statistics
from bench.reproduce.claim_records import ClaimRecord
from bench.reproduce.claims import ClaimPart, Verdict
from bench.reproduce.specs import Book
from tests.planned import BOOK, artifact, made
from tests.test_records import ended

NEAR = {"kind": "close", "by": "us", "text": "c", "rows": ["A", "L"], "every": ["loss"],
        "within": 1.0}  # fmt: skip
VALUES = [-1.0, 0.0, 1.0]  # their deviation is 1


def part(*values: float, within: float = 2.0, **more: Any) -> ClaimPart:
    return ClaimPart(
        what="w", values=list(values), low=-within, high=within, expected=len(values), **more
    )


def entry(*parts: ClaimPart, word: Any = "not enough runs", **claim: Any) -> ClaimRecord:
    verdict = Verdict(word=word, n=3, statistic="w = 0", details=[])
    return ClaimRecord(claim={"kind": "close", **claim}, parts=list(parts), verdict=verdict)


def test_power_is_of_the_deviation_and_half_the_width() -> None:
    found = power.claim_power(entry(part(*VALUES)), 5)
    assert found is not None
    assert found.chance == pytest.approx(chances.power(1.0, 5, 2.0))
    assert (found.n, found.needed) == (5, chances.seeds_needed(1.0, 2.0))
    near = power.claim_power(entry(part(9.0, 10.0, 11.0)), 5)  # wherever the values lie
    assert near == found
    vague = power.claim_power(entry(part(*VALUES, extra_se=0.5, extra_n=4)), 5)
    assert vague is not None
    assert vague.chance == pytest.approx(chances.power(1.0, 5, 2.0, statistics.Reference(0.5, 4)))


def test_the_least_of_several_parts_counts() -> None:
    """Parts with too few values, or with one that is not finite, do not count."""
    tight = part(*VALUES, within=1.0)
    found = power.claim_power(entry(part(*VALUES), tight, part(0.0, 9.0)), 6)
    assert found == power.claim_power(entry(tight), 6) != power.claim_power(entry(part(*VALUES)), 6)
    for none in (
        entry(part(0.0, 9.0)), entry(part(0.0, 9.0, math.inf)), entry(),
        entry(part(*VALUES), kind="above"), entry(part(*VALUES), median=True),
    ):  # fmt: skip
        assert power.claim_power(none, 6) is None
        assert power.describe_statistic(none, 6) == "w = 0"
    assert power.claim_power(entry(part(*VALUES), kind="within_published"), 6) is not None


def test_equal_values_take_as_many_seeds_as_signs_do() -> None:
    equal = entry(part(1.0, 1.0, 1.0))
    assert power.claim_power(equal, 5) == (0.0, 5, 6)
    assert power.claim_power(equal, 6) == (1.0, 6, 6)
    known = power.claim_power(entry(part(1.0, 1.0, 1.0, extra_se=0.1)), 3)
    assert known is not None
    assert known.chance > 0.99


def test_power_in_words() -> None:
    begin = "at n = 3, were the mean midway; 80% takes"
    assert power.Power(0.124, 3, 14).text == f"power 12% {begin} 14 seeds"
    assert power.Power(0.0, 3, None).text == f"power 0% {begin} more than 1,000 seeds"
    said = power.describe_statistic(entry(part(*VALUES)), 3)
    assert said.startswith("w = 0; power ")
    assert said.endswith(" seeds")


def test_claims_that_are_hardly_decided_are_named() -> None:
    """Those that the record decides, or of which it says nothing, are not."""
    keys = ("weak", "strong", "holds", "few")
    spec = artifact(select=None, claims=dict.fromkeys(keys, NEAR))
    tight = part(*VALUES, within=1.0)
    group = {"weak": entry(tight), "strong": entry(part(*VALUES, within=9.0)),
             "holds": entry(tight, word="holds"), "few": entry(part(0.0, 1.0))}  # fmt: skip
    other = {"weak": entry(part(*VALUES, within=0.5)), "holds": entry(tight)}
    lines = list(power.refuse_claims(spec, "short", {"paper": group}))
    found = power.claim_power(group["weak"], 3)
    assert found is not None
    assert lines == [
        f"p/a.yaml: claims.weak: short: {found.text}: leave short out of its budgets, "
        "or raise its seeds"
    ]
    both = list(power.refuse_claims(spec, "short", {"paper": group, "code": other}))
    assert [line.split(": ")[1] for line in both] == ["claims.weak", "claims.holds"]
    weaker = power.claim_power(other["weak"], 3)
    assert weaker is not None
    assert weaker.text in both[0]
    more = artifact(budgets={"short": {"minutes": 1.0, "seeds": 30}}, claims={"weak": NEAR})
    gone = artifact(select=None, claims={"strong": NEAR})
    assert list(power.refuse_claims(gone, "short", {"paper": group})) == []
    assert list(power.refuse_claims(more, "short", {"paper": group})) == []
    budgets = {"short": {"minutes": 1.0, "seeds": 3, "more_seeds": {"A": 30, "L": 30}}}
    rows = artifact(budgets=budgets, claims={"weak": NEAR})  # those that it is about have more
    assert list(power.refuse_claims(rows, "short", {"paper": group})) == []


def test_a_claim_with_an_even_chance_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = artifact(select=None, claims={"weak": NEAR})
    for chance, lines in ((0.5, 0), (0.499, 1)):
        found = power.Power(chance, 3, 9)
        monkeypatch.setattr(power, "part_power", lambda part, n, found=found: found)
        group = {"paper": {"weak": entry(part(*VALUES))}}
        assert len(list(power.refuse_claims(spec, "short", group))) == lines


def test_list_names_them_and_lists_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code is 1, and every artifact has its rows all the same."""
    plain: dict[str, Any] = {"select": None, "grid": None, "variants": {"paper": {}}}
    for seed, loss in enumerate((0.0, 1.0, 2.0)):
        ended(tmp_path / "runs", f"paper/A/-{seed}", loss)
        ended(tmp_path / "runs", f"paper/L/-{seed}", 1.0)
    for within, code in ((1.0, 1), (99.0, 0)):
        some = {**plain, "claims": {"near": {**NEAR, "within": within}}}
        found = records.make_record(made(tmp_path / "runs", **some), BOOK)
        records.write_record(found, tmp_path / "results")
        book = Book({"p/a": artifact(**some)}, BOOK.metrics, BOOK.methods)

        def load(folder: Path | None, book: Book = book) -> Book:
            return book

        monkeypatch.setattr(cli, "load_book", load)
        where = ["--results", str(tmp_path / "results"), "--runs", str(tmp_path / "none")]
        monkeypatch.setattr(sys, "argv", ["reproduce", "list", *where])
        with pytest.raises(SystemExit) as ended_with:
            cli.main()
        assert ended_with.value.code == code
        said = capsys.readouterr()
        assert "p/a" in said.out
        assert ("claims.near: short: power" in " ".join(said.err.split())) == (code == 1)
