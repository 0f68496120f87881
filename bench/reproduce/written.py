"""Every file that `reproduce findings` writes, from the records: README, docs/ and results/."""

import os
from collections.abc import Mapping
from pathlib import Path

from bench.reproduce import speed
from bench.reproduce.front import front_parts, read_front
from bench.reproduce.highlights import highlights_text, read_highlights
from bench.reproduce.league.page import findings_text
from bench.reproduce.league.written import league_files, own_boards
from bench.reproduce.papers import load_papers
from bench.reproduce.readme import (
    Finding,
    coverage_text,
    findings_page,
    read_findings,
    replace_parts,
    summary_table,
)
from bench.reproduce.scaling_picture import draw_scaling
from bench.reproduce.specs import Book

FINDINGS = Path("docs/findings.md")
LEAGUE = Path("docs/league.md")
PICTURE = Path("docs/published.svg")
SCALING = Path("docs/scaling.svg")


def findings_parts(
    found: list[Finding], results: Path, specs: Path | None, claims: str | None
) -> Mapping[str, str]:
    """The marked parts of docs/findings.md: the findings that matter most, if the folder of specs
    names any, and how all records stand.

    found: what the records say. claims: a link to every claim; None: there is no such page. Raises
    BadSetting.
    """
    parts = {}
    if chosen := read_highlights(specs):
        parts["highlights"] = highlights_text(chosen, found)
    parts["findings"] = summary_table(found, claims) + coverage_text(results)
    return parts


def written_files(top: Path, book: Book, results: Path, specs: Path | None) -> dict[Path, str]:
    """The new contents of every file, by its path.

    top: the folder with README.md and docs/. README.md and the picture are written only for a
    folder of specs that has a readme.yaml, docs/speed.md only if there are records of speed, and
    its picture only if one of these is by size, what the league found only if there is a
    docs/league.md.

    Raises BadSetting for a file that lacks the comment lines around a part, for a record that is
    refused, and for what a yaml names and no record has.
    """
    claims = results / "README.md"
    page = top / FINDINGS
    link = os.path.relpath(claims, page.parent)
    found = list(read_findings(book, results))
    parts, league = findings_parts(found, results, specs, link), {}
    if (top / LEAGUE).is_file():
        boards = own_boards(results)
        parts = {**parts, "league": findings_text(boards)}
        league = league_files(top / LEAGUE, boards)
    fresh = {claims: findings_page(found), page: replace_parts(page, parts), **league}
    if (results / "speed").is_dir():
        file = top / "docs" / "speed.md"
        fresh[file] = replace_parts(file, {"speed": speed.speed_tables(results)})
        drawn = [text for record in speed.read_speed(results) if (text := draw_scaling(record))]
        if drawn:
            fresh[top / SCALING] = drawn[-1]
    if front := read_front(specs):
        first = front_parts(front, load_papers(specs), read_highlights(specs), book, found)
        file = top / "README.md"
        fresh[file] = replace_parts(file, {"papers": first.papers, "surprises": first.surprises})
        fresh[top / PICTURE] = first.picture
    return fresh
