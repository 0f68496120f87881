"""The README's first screen, from the records: the papers' table, five findings, and the picture.

conf/paper/readme.yaml has the papers and the picture; the findings are those of highlights.yaml
which name the claim that the README shows of them.
"""

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from bench.core.settings import BadSetting
from bench.reproduce.book import format_path, own_specs, read_yaml, validate
from bench.reproduce.claim_kinds import AUTHORS, Author
from bench.reproduce.claims import VerdictWord
from bench.reproduce.front_picture import Picture, draw, picture_lines
from bench.reproduce.highlights import Highlight, find_claim
from bench.reproduce.papers import Paper
from bench.reproduce.readme import (
    DECIDED,
    WEAK,
    Finding,
    is_weak,
    list_claims,
    looks_at,
    markdown_table,
)
from bench.reproduce.schema import Budget, StrictModel
from bench.reproduce.specs import Artifact, Book
from bench.reproduce.tables import done_values
from bench.reproduce.totals import MARKDOWN, Counts, add_counts, count_verdicts, phrase_counts

FILE = "readme.yaml"


class Front(StrictModel):
    """What readme.yaml says. papers: a paper's folder -> what its method is called."""

    papers: dict[str, str]
    picture: Picture


class FrontParts(NamedTuple):
    """The README's two parts in Markdown, and the picture as SVG."""

    papers: str
    surprises: str
    picture: str


def read_front(folder: Path | None) -> Front | None:
    """What the folder's readme.yaml says, by default this project's; None if there is no such file.

    Raises BadSetting, which names file and field.
    """
    file = (folder or own_specs()) / FILE
    if not file.is_file():
        return None
    content = read_yaml(file)
    if not isinstance(content, dict):
        raise BadSetting(f"{format_path(file)}: it is no mapping")
    return validate(Front, content, file, "")


def front_parts(
    front: Front,
    papers: Mapping[str, Paper],
    highlights: list[Highlight],
    book: Book,
    found: list[Finding],
) -> FrontParts:
    """All that the README shows of the records. found: every record of the book.

    Raises BadSetting for a paper that papers.yaml lacks, a claim or a row that no record has.
    """
    entries = {(one.artifact.id, one.budget): one for one in found}
    return FrontParts(
        papers_table(front.papers, papers, book, found),
        surprises_text(highlights, entries),
        picture_text(front.picture, book, entries),
    )


def papers_table(
    names: Mapping[str, str], papers: Mapping[str, Paper], book: Book, found: list[Finding]
) -> str:
    """A row for each paper: how its own claims stand, and ours about it, in both variants.

    Its claims on experiments and its theorems are told apart. Claims that no record judges are not
    run. names: a paper's folder -> what its method is called. Raises BadSetting for an unknown
    paper.
    """
    rows, undecided = [], []
    for folder, name in names.items():
        if folder not in papers:
            raise BadSetting(f"{FILE}: papers.{folder}: papers.yaml has no such paper")
        paper = papers[folder]
        own = [one for key, one in book.artifacts.items() if key.partition("/")[0] == folder]
        counts = [(one.spec.shows, artifact_counts(one, found)) for one in own]
        experiments = add_counts(each for shows, each in counts if shows == "experiments")
        theorems = add_counts(each for shows, each in counts if shows == "theorems")
        ours = experiments["us"] + theorems["us"]
        cells = [
            phrase_counts(each, MARKDOWN) or "·"
            for each in (experiments["paper"], theorems["paper"], ours)
        ]
        undecided += [f"`{one.id}`" for one in own if is_undecided(one, found)]
        recorded = len({one.artifact.id for one in found} & {one.id for one in own})
        surnames = ", ".join(author.split()[-1] for author in paper.authors)
        cited = f"**{name}**: {paper.title} ({surnames}, {paper.year})"
        rows.append([cited, f"{recorded} of {len(own)}", *cells])
    head = ["paper", "recorded", "its experiments", "its theorems", "our checks"]
    said = f"No claim of its paper is decided yet of {', '.join(undecided)}.\n\n"
    return "\n" + markdown_table(head, rows) + (said if undecided else "")


def is_undecided(artifact: Artifact, found: list[Finding]) -> bool:
    """Whether the paper claims something of the artifact, and no record of it holds or fails."""
    own = list_claims(one for one in found if one.artifact.id == artifact.id)
    words = {one.verdict.word for one in own if one.claim["by"] == "paper"}
    claimed = any(claim.by == "paper" for claim in artifact.spec.claims.values())
    return claimed and words.isdisjoint(DECIDED)


def artifact_counts(artifact: Artifact, found: list[Finding]) -> Counts:
    """How an artifact's claims stand in its records; those that no record judges are not run."""
    own = [one for one in found if one.artifact.id == artifact.id]
    judged = {(v, key) for one in own for v, group in one.verdicts.items() for key in group}
    waiting: dict[Author, Counter[VerdictWord]] = {author: Counter() for author in AUTHORS}
    for variant in artifact.spec.variants:
        for key, claim in artifact.spec.claims.items():
            if variant in claim.variants and (variant, key) not in judged:
                waiting[claim.by]["not run"] += 1
    return add_counts([count_verdicts(list_claims(own)), waiting])


def surprises_text(highlights: list[Highlight], entries: dict[tuple[str, Budget], Finding]) -> str:
    """A numbered line for each finding that the README shows: what is found, and the measurement.

    Raises BadSetting for a claim that no record has.
    """
    lines: list[str] = []
    for one in highlights:
        if one.readme is None:
            continue
        evidence = next((e for e in one.claims if e.claim == one.readme.claim), None)
        if evidence is None:
            raise BadSetting(f"highlights.yaml: readme: {one.title} has no {one.readme.claim}")
        judged = find_claim(evidence, entries)
        verdict = judged.verdict
        looks = looks_at(entries[evidence.artifact, evidence.budget], evidence.claim, [judged])
        where = f"`{evidence.artifact}`, {evidence.budget}, n = {verdict.n}"
        where += ", outdated" if verdict.word == "outdated" else ""
        where += f", {WEAK}" if is_weak(verdict, looks) else ""
        measured = measured_number(verdict.statistic)
        lines.append(
            f"{len(lines) + 1}. **{one.title}.** {one.readme.said} **{measured}** ({where})."
        )
    if any(f", {WEAK})" in line for line in lines):
        lines.append(f"\n{WEAK}: the verdict stands at the level of a single judgement only.")
    return "\n" + "\n".join(lines) + "\n\n"


def measured_number(statistic: str) -> str:
    """The number and its interval out of a claim's line, such as "A − B = 1.5 [1, 2], asked > 0".

    Raises BadSetting if there is none.
    """
    found = re.search(r" = ([^=]+), asked ", statistic)
    if found is None:
        raise BadSetting(f"highlights.yaml: readme: there is no number in {statistic!r}")
    return found[1]


def picture_text(picture: Picture, book: Book, entries: dict[tuple[str, Budget], Finding]) -> str:
    """The picture as SVG; raises BadSetting if the record, a row or its values are not there."""
    found = entries.get((picture.artifact, picture.budget))
    if found is None:
        raise BadSetting(f"{FILE}: no record has {picture.artifact} {picture.budget}")
    rows = found.record.rows.get(picture.variant, {})
    finals = {name: done_values(row, picture.metric) for name, row in rows.items()}
    metric = book.metric(found.artifact.spec.task, picture.metric)
    lines = [
        line._replace(label=f"{line.label} (outdated)") if rows[name].outdated else line
        for name, line in zip(picture.rows, picture_lines(picture, found.artifact, finals))
    ]
    return draw(picture, metric, lines)
