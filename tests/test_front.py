"""The README's first screen: every number comes from a record."""

import math
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.core.settings import BadSetting
from bench.reproduce import front, front_picture, places, records
from bench.reproduce.front import Front, measured_number, papers_table
from bench.reproduce.front_picture import Line, Picture, draw
from bench.reproduce.papers import Paper
from bench.reproduce.readme import read_findings
from bench.reproduce.specs import Artifact, Book
from tests.planned import BOOK, artifact, made
from tests.test_highlights import LESS, ONE
from tests.test_records import ended

PUBLISHED = {"published": {"loss": {"mean": 0.5}}}
PLAIN: dict[str, Any] = {
    "select": None, "grid": None, "variants": {"paper": {}},
    "claims": {"less": {**LESS, "by": "paper", "source": "table 1"}},
    "rows": {"A": {"method": "bome", **PUBLISHED}, "L": {"method": "bome", "line": True}},
}  # fmt: skip
PICTURE = Picture(
    artifact="p/a", budget="short", metric="loss", title="A & B", rows={"A": "A <the best>"}
)
PAPERS = {
    i: Paper(title=f"On {i}", authors=["A. First", "Second"], venue="X", year=2020)
    for i in ("p", "q")
}
NAMES = {"p": "P", "q": "Q"}


@pytest.fixture
def book(tmp_path: Path) -> Book:
    """A book of one artifact, whose record is in tmp_path/results."""
    for seed in range(3):
        ended(tmp_path, f"paper/A/-{seed}", 0.25 + 0.01 * seed)
        ended(tmp_path, f"paper/L/-{seed}", 0.75)
    records.write_record(records.make_record(made(tmp_path, **PLAIN), BOOK), tmp_path / "results")
    return Book({"p/a": artifact(**PLAIN)}, BOOK.metrics, BOOK.methods)


def parts(book: Book, results: Path, picture: Picture = PICTURE, **change: Any) -> front.FrontParts:
    shown = {**ONE, "readme": {"claim": "less", "said": "The difference is"}, **change}
    highlights = [front.Highlight.model_validate(one) for one in (ONE, shown)]
    found = list(read_findings(book, results))
    return front.front_parts(Front(papers=NAMES, picture=picture), PAPERS, highlights, book, found)


def test_the_numbers_are_those_of_the_record(book: Book, tmp_path: Path) -> None:
    found = parts(book, tmp_path / "results")
    record = records.read_record("p/a", "short", tmp_path / "results")
    assert record is not None
    statistic = record.claims["paper"]["less"].verdict.statistic
    number = statistic.partition(" = ")[2].partition(", asked")[0]
    assert found.surprises == (
        f"\n1. **A is better.** The difference is **{number}** (`p/a`, short, n = 3).\n\n"
    )
    assert "| **P**: On p (First, Second, 2020) | 1 of 1 | 1 hold | · | · |" in found.papers
    assert "| **Q**: On q (First, Second, 2020) | 0 of 0 | · | · | · |" in found.papers


def test_theorems_are_told_apart_and_what_no_record_judges_is_not_run(
    book: Book, tmp_path: Path
) -> None:
    """The second artifact has no record."""
    less = {**LESS, "by": "paper", "source": "table 1"}
    ours = {**LESS, "text": "ours", "by": "us", "source": None}
    both = {"less": less, "later": less, "ours": ours}
    one = artifact(**PLAIN | {"claims": both, "shows": "theorems"})
    other = artifact(**PLAIN | {"claims": {"a": less, "b": {**less, "variants": ["code"]}}})
    second = Artifact("p/b", other.spec, other.file)
    whole = Book({"p/a": one, "p/b": second}, BOOK.metrics, BOOK.methods)
    found = list(read_findings(whole, tmp_path / "results"))
    table = papers_table({"p": "P"}, PAPERS, whole, found)
    assert "| 1 of 2 | 1 not run | 2 hold | 1 hold |" in table
    assert table.endswith("\n\nNo claim of its paper is decided yet of `p/b`.\n\n")
    assert "No claim" not in papers_table({"p": "P"}, PAPERS, Book({"p/a": one}, {}, {}), found)


def test_claims_of_ours_decide_nothing_of_the_papers(book: Book, tmp_path: Path) -> None:
    """Nor is an artifact undecided of which the paper claims nothing."""
    less = {**LESS, "by": "paper", "source": "table 1"}
    ours = {**LESS, "by": "us", "source": None}
    found = list(read_findings(book, tmp_path / "results"))
    (only,) = found[0].verdicts["paper"].values()
    mine = only.model_copy(update={"claim": {**only.claim, "by": "us"}})
    judged = [found[0]._replace(verdicts={"paper": {"less": mine}})]
    both = artifact(**PLAIN | {"claims": {"less": ours, "later": less}})
    assert front.is_undecided(both, judged)
    assert not front.is_undecided(artifact(**PLAIN | {"claims": {"less": ours}}), judged)


def test_a_finding_of_a_claim_that_was_judged_often_is_marked(book: Book, tmp_path: Path) -> None:
    results = tmp_path / "results"
    record = records.read_record("p/a", "short", results)
    assert record is not None
    assert "†" not in parts(book, results).surprises
    p = record.claims["paper"]["less"].verdict.p
    assert p is not None
    looks = record.model_copy(update={"looks": [3] * math.ceil(0.06 / p)})
    records.write_record(looks, results)
    said = parts(book, results).surprises
    assert "(`p/a`, short, n = 3, †).\n\n†: the verdict stands at the level" in said


def test_the_picture_shows_what_is_published_and_what_is_measured(
    book: Book, tmp_path: Path
) -> None:
    svg = parts(book, tmp_path / "results").picture
    assert svg == parts(book, tmp_path / "results").picture  # the same bytes each time
    assert "A &amp; B" in svg
    assert "A &lt;the best&gt;" in svg
    circles = [line for line in svg.splitlines() if line.startswith("<circle")]
    assert len(circles) == 4  # two of the legend
    positions = [float(line.split('"')[1]) for line in circles[2:]]
    assert positions[0] > positions[1]  # published .5, measured .26


def test_what_is_outdated_is_said(book: Book, tmp_path: Path) -> None:
    results = tmp_path / "results"
    record = records.read_record("p/a", "short", results)
    assert record is not None
    rows = record.rows["paper"]
    old = {"paper": {**rows, "A": rows["A"].model_copy(update={"outdated": True})}}
    records.write_record(record.model_copy(update={"rows": old}), results)
    found = parts(book, results)
    assert found.surprises.endswith("(`p/a`, short, n = 3, outdated).\n\n")
    assert "A &lt;the best&gt; (outdated)" in found.picture


def test_positions_follow_the_values() -> None:
    lines = [Line(f"r{v}", v, [v, v]) for v in (1.0, 2.0, 3.0)]
    svg = draw(PICTURE, BOOK.metric("t", "loss"), lines)
    dots = [one for one in svg.splitlines() if one.startswith("<circle") and "r=" in one][2:]
    xs = [float(one.split('"')[1]) for one in dots][::2]
    assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1], abs=0.11)
    assert xs[0] < xs[1]


def test_intervals_and_ticks_are_inside_of_the_picture() -> None:
    """The interval of two runs is far wider than they are; there is a tick at 0, and one number
    alone has a picture too."""
    svg = draw(PICTURE, BOOK.metric("t", "loss"), [Line("r", 0.1, [-0.1, 0.2])])
    ends = [float(x) for x in re.findall(r'x[12]="([\d.-]+)"', svg)]
    assert front_picture.LEFT < min(ends) < max(ends) < front_picture.RIGHT
    assert re.findall(r'middle">(.*)</text>', svg) == [f"{k / 2:g}" for k in range(-4, 5)]
    assert ">1</text>" in draw(PICTURE, BOOK.metric("t", "loss"), [Line("r", 1.0, [1.0, 1.0])])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"artifact": "p/b"}, "no record has p/b short"),
        ({"rows": {"B": "B"}}, "B of p/a has nothing published"),
        ({"rows": {"L": "L"}}, "L of p/a has nothing published"),
        ({"variant": "code"}, "A of p/a has fewer than 2 runs"),
    ],
)
def test_what_no_record_has_is_refused(
    change: dict[str, Any], said: str, book: Book, tmp_path: Path
) -> None:
    with pytest.raises(BadSetting, match=said):
        parts(book, tmp_path / "results", PICTURE.model_copy(update=change))


def test_a_claim_that_is_none_of_the_findings_is_refused(book: Book, tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match=r"readme: A is better has no more"):
        parts(book, tmp_path / "results", readme={"claim": "more", "said": "x"})
    with pytest.raises(BadSetting, match="there is no number in 'nothing'"):
        measured_number("nothing")
    with pytest.raises(BadSetting, match=r"papers\.z: papers.yaml has no such paper"):
        papers_table({"z": "Z"}, PAPERS, BOOK, [])


def test_the_readmes_yaml_is_optional_and_checked(tmp_path: Path) -> None:
    assert front.read_front(tmp_path) is None
    (tmp_path / "readme.yaml").write_text("[]")
    with pytest.raises(BadSetting, match="it is no mapping"):
        front.read_front(tmp_path)
    (tmp_path / "readme.yaml").write_text(yaml.safe_dump({"papers": {}}))
    with pytest.raises(BadSetting, match="picture: is missing"):
        front.read_front(tmp_path)
    own = front.read_front(None)
    assert own is not None
    assert list(own.papers) == ["bome", "stocbio", "ncgs", "f2obo"]


@pytest.mark.parametrize("own", ["PACKAGED", "CLONED"])
def test_the_projects_records_are_read_where_there_are_none(
    own: str, book: Book, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`results` of the current folder comes first, and another folder is never left."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").rename(tmp_path / "packaged")
    assert records.read_record("p/a", "short") is None
    monkeypatch.setattr(places, own, tmp_path / "packaged")
    assert records.read_record("p/a", "short") is not None
    assert records.read_record("p/a", "short", tmp_path / "other") is None
    assert records.record_path("p/a", "short") == Path("results/p/a/short.json")  # is written
    (tmp_path / "results/p/a").mkdir(parents=True)
    (tmp_path / "results/p/a/short.json").write_text("{}")
    with pytest.raises(BadSetting):
        records.read_record("p/a", "short")
