"""What the records say: a summary for docs/findings.md, and every claim for results/README.md."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from bench.core.settings import BadSetting
from bench.reproduce import records, statistics, tables
from bench.reproduce.claim_kinds import describe_author, describe_cause
from bench.reproduce.claim_records import ClaimRecord, Verdicts
from bench.reproduce.claims import Verdict
from bench.reproduce.coverage import coverage_sentence
from bench.reproduce.places import readable
from bench.reproduce.power import claim_seeds
from bench.reproduce.rejudging import rejudge
from bench.reproduce.schema import VARIANTS, Budget
from bench.reproduce.specs import Artifact, Book, ScaleName
from bench.reproduce.totals import MARKDOWN, count_verdicts, phrase_authors, total_sentences

DECIDED = ("holds", "fails")
WEAK = "†"  # marks a verdict that a stricter level would leave open
LEGEND = (
    "A row is a claim at one budget. *by*: the paper, with its sentence or table, or us. *paper*, "
    "*code*: the verdict on the method as the text states it, and as the released code runs it; a "
    "dot means that the claim is not asked there. n: the largest number of seeds of a part of the "
    f"claim. {WEAK}: the verdict stands at the level of a single judgement only. "
    "[What a verdict means](../docs/findings.md#how-every-record-stands). "
    "`uv run reproduce check ARTIFACT --budget BUDGET` prints the value, the interval and p of "
    "each claim, and [CONTRIBUTING](../CONTRIBUTING.md#to-question-a-verdict) says how to question "
    "one."
)


class Finding(NamedTuple):
    """A record with its claims judged again."""

    artifact: Artifact
    budget: Budget
    record: records.Record
    verdicts: Verdicts

    @property
    def scale(self) -> ScaleName:
        """Whether the runs are of the paper's scale or smaller."""
        return self.artifact.spec.scale(self.budget)


def replace_parts(file: Path, fresh: Mapping[str, str]) -> str:
    """The file's text with new contents of its marked parts, which stand between comment lines.

    fresh: the name of a part -> its content. Raises BadSetting if the file or the lines are not
    there.
    """
    if not file.is_file():
        raise BadSetting(f"{file}: there is no such file")
    text = file.read_text()
    for what, content in fresh.items():
        begin, end = f"<!-- {what}: written by `reproduce findings` -->", f"<!-- end of {what} -->"
        found = re.search(f"{re.escape(begin)}.*?{re.escape(end)}", text, re.DOTALL)
        if found is None:
            raise BadSetting(f"{file}: there is no line {begin}, and after it {end}")
        text = text[: found.start()] + f"{begin}\n{content}{end}" + text[found.end() :]
    return text


def read_findings(book: Book, results: Path) -> Iterator[Finding]:
    """Every record of the book's artifacts, in their order; raises BadSetting."""
    for artifact in book.artifacts.values():
        for budget in artifact.spec.budgets:
            record = records.read_record(artifact.id, budget, results)
            if record is not None:
                yield Finding(artifact, budget, record, rejudge(record, artifact, book))


def summary_table(found: list[Finding], link: str | None) -> str:
    """A row for each record: how many claims hold, fail or are open, ours apart.

    link: to all findings; None: there is nothing to link to.
    """
    if not found:
        return "\nNothing is recorded yet.\n\n"
    rows = [
        [
            f"`{entry.artifact.id}`",
            entry.artifact.spec.title,
            f"{entry.budget}, {describe_runs(entry)}",
            entry.scale,
            *(
                phrase_authors(count_verdicts(entry.verdicts.get(variant, {}).values()), MARKDOWN)
                or "·"
                for variant in VARIANTS
            ),
        ]
        for entry in found
    ]
    head = ["artifact", "", "budget, n", "scale", "paper", "code"]
    link_text = link and f"[Every claim, and what its failing means]({link})."
    said = filter(None, [total_text(found), errors_sentence(found), link_text])
    return f"\n{' '.join(said)}\n\n" + markdown_table(head, rows)


def findings_page(found: list[Finding]) -> str:
    """The page of all findings: a table of all claims, and a line for each one that fails."""
    rows = [row for entry in found for row in finding_rows(entry)]
    lines = [
        failure_line(entry.artifact.id, variant, claim)
        for entry in found
        for variant, group in entry.verdicts.items()
        for claim in group.values()
        if claim.verdict.word == "fails"
    ]
    head = ["artifact", "budget, n", "scale", "claim", "by", "paper", "code"]
    body = markdown_table(head, rows) if rows else "Nothing is recorded yet.\n"
    failing = "## What fails, and what it means\n\n" + "\n".join(lines) + "\n" if lines else ""
    said = [
        "Written by `reproduce findings` from the records beside this file.",
        total_text(found),
        errors_sentence(found),
    ]
    legend = f"{LEGEND}\n\n" if rows else ""
    return f"# Findings\n\n{' '.join(filter(None, said))}\n\n{legend}{body}{failing}"


def total_text(found: Iterable[Finding]) -> str:
    """How many claims have each verdict, by scale and author; empty if there are no findings."""
    listed = list(found)
    counts = [(entry.scale, count_verdicts(list_claims([entry]))) for entry in listed]
    bounds = [
        claim
        for claim in list_claims([e for e in listed if e.artifact.spec.shows == "theorems"])
        if claim.claim["by"] == "paper" and claim.verdict.word == "holds"
        if not claim.claim.get("over")  # the ratio of two methods is no bound
    ]
    said = (
        f"Of the papers' claims that hold, {len(bounds)} are bounds of theorems, which "
        "measurements can hardly contradict."
    )
    return " ".join([*total_sentences(counts, MARKDOWN), *([said] if bounds else [])])


def coverage_text(results: Path) -> str:
    """How often the judge was wrong in simulations; empty if that is not recorded."""
    file = readable("coverage.json", results)
    if not file.is_file():
        return ""
    return f"{coverage_sentence(json.loads(file.read_text()))}\n\n"


def errors_sentence(found: Iterable[Finding]) -> str:
    """How many verdicts may be wrong, in two or three sentences; empty if no claim was tested."""
    listed = list(found)
    tested = [
        (claim.verdict, claim.verdict.p, looks_at(entry, key, [claim]))
        for entry in listed
        for group in entry.verdicts.values()
        for key, claim in group.items()
        if claim.verdict.p is not None and claim.verdict.word != "not run"
    ]
    if not tested:
        return ""
    standing = statistics.discoveries([p for _, p, _ in tested])
    wrong = statistics.RATE * sum(looks for _, _, looks in tested)
    again = sum(judged_again(entry) for entry in listed)
    decided = [(verdict, looks) for verdict, _, looks in tested if verdict.word in DECIDED]
    shared = sum(not is_weak(verdict, looks) for verdict, looks in decided)
    verdicts = len(decided)
    added = (
        f" To {again} of the records seeds were added, or runs were made again, after claims had "
        "been judged, and each judgement may err; with the level divided among a record's "
        "judgements (Bonferroni) "
        f"{shared} verdicts stand, and the others are marked with {WEAK}."
    )
    return (
        f"Of {len(tested)} tested claims {verdicts} have a verdict, of which at most {wrong:.0f} "
        f"are expected to be wrong.{added if again else ''} At a false discovery rate of 5% "
        f"(Benjamini and Hochberg) {standing} verdicts stand together."
    )


def judged_again(entry: Finding) -> bool:
    """Whether a claim of the record has been judged more than once."""
    claims = ((key, claim) for group in entry.verdicts.values() for key, claim in group.items())
    return any(looks_at(entry, key, [claim]) > 1 for key, claim in claims)


def is_weak(verdict: Verdict, looks: int) -> bool:
    """Whether a claim that holds or fails would be open with the level divided among so many
    judgements."""
    level = 2 * statistics.RATE / looks  # two-sided
    return verdict.word in DECIDED and verdict.p is not None and verdict.p > level


def marked(verdict: Verdict, looks: int) -> str:
    """The verdict in words, with a mark if it is weak."""
    return f"{verdict.text} {WEAK}" if is_weak(verdict, looks) else verdict.text


def looks_at(entry: Finding, claim: str, judged: Iterable[ClaimRecord]) -> int:
    """How often a claim has been judged, as far as the record knows: with the seeds that its rows
    have, or fewer; or with how many numbers of values, where that is more.

    Seeds whose times cannot be compared count too: the claim was judged before they were left out.
    judged: the claim in the variants that are looked at.
    """
    seeds = claim_seeds(entry.artifact, entry.record.budget, claim)
    looks = sum(n <= seeds for n in entry.record.looks)
    return max(1, looks, *(len(one.judged) for one in judged))


def list_claims(found: Iterable[Finding]) -> list[ClaimRecord]:
    """The claims of all findings and variants."""
    return [
        claim for entry in found for group in entry.verdicts.values() for claim in group.values()
    ]


def describe_runs(entry: Finding) -> str:
    """The number of runs that claims rest on: "6", or "6 to 200" where they rest on different ones.

    Where there are no claims it is the number of runs that rows have.
    """
    found = {max(len(part.values) for part in claim.parts) for claim in list_claims([entry])} - {0}
    rows = {len(row.seeds) for group in entry.record.rows.values() for row in group.values()}
    known = found or rows or {0}
    return " to ".join(str(n) for n in sorted({min(known), max(known)}))


def markdown_table(head: list[str], rows: list[list[str]]) -> str:
    """The table in Markdown, without a title, and an empty line after it."""
    return tables.to_markdown(tables.CellTable("", head, rows)).partition("\n\n")[2] + "\n"


def failure_line(artifact: str, variant: str, entry: ClaimRecord) -> str:
    """A claim that fails, who makes it, why it fails as far as that is known, and the statistic."""
    ours = ", ours" if entry.claim["by"] == "us" else ""
    said = [describe_cause(entry.claim, variant), f"{entry.verdict.statistic}."]
    return (
        f"- `{artifact}`, {variant}{ours}: *{entry.claim['text']}* fails: "
        f"{' '.join(filter(None, said))}"
    )


def verdict_cell(entry: ClaimRecord | None, looks: int) -> str:
    """The verdict, bold if the claim fails; a dot where the variant does not have the claim."""
    if entry is None:
        return "·"
    text = marked(entry.verdict, looks)
    return f"**{text}**" if entry.verdict.word == "fails" else text


def finding_rows(entry: Finding) -> Iterator[list[str]]:
    """The cells of each claim: artifact, budget and n, scale, claim, author, verdicts."""
    for key in dict.fromkeys(key for group in entry.verdicts.values() for key in group):
        claims = {v: group[key] for v, group in entry.verdicts.items() if key in group}
        looks = looks_at(entry, key, claims.values())
        cells = [verdict_cell(claims.get(variant), looks) for variant in VARIANTS]
        n = max(len(part.values) for claim in claims.values() for part in claim.parts)
        claim = next(iter(claims.values())).claim
        where = [f"`{entry.artifact.id}`", f"{entry.budget}, {n}", entry.scale]
        yield [*where, str(claim["text"]), describe_author(claim), *cells]
