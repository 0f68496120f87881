"""The findings that matter most: docs/findings.md, with every number taken from the records.

conf/paper/highlights.yaml says in words what each finding is, and names the claims that show it.
"""

from collections.abc import Iterable
from pathlib import Path

from pydantic import Field

from bench.core.settings import BadSetting
from bench.reproduce.book import format_path, own_specs, read_yaml, validate
from bench.reproduce.claim_kinds import Cause, describe_text
from bench.reproduce.claim_records import ClaimRecord
from bench.reproduce.readme import Finding, is_weak, looks_at
from bench.reproduce.schema import Budget, StrictModel, Variant

FILE = "highlights.yaml"


class Evidence(StrictModel):
    """A claim of an artifact at a budget, in one variant."""

    artifact: str
    budget: Budget
    variant: Variant = "paper"
    claim: str


class Shown(StrictModel):
    """What the README has of a finding: one of its claims, and words before its measured number."""

    claim: str
    said: str


class Highlight(StrictModel):
    """One finding.

    published: what the paper says. finding: what the claims show, in words without numbers.
    why: what causes it; None: nothing is said. readme: what the README shows of it; None: nothing.
    """

    title: str
    published: str
    finding: str
    why: Cause | None = None
    readme: Shown | None = None
    claims: list[Evidence] = Field(min_length=1)


def read_highlights(folder: Path | None) -> list[Highlight]:
    """The findings of a folder of specs, by default this project's; none if it has no such file.

    Raises BadSetting, which names file and field.
    """
    file = (folder or own_specs()) / FILE
    if not file.is_file():
        return []
    content = read_yaml(file)
    if not isinstance(content, list):
        raise BadSetting(f"{format_path(file)}: it is not a list of findings")
    return [validate(Highlight, one, file, str(i)) for i, one in enumerate(content, 1)]


def highlights_text(chosen: Iterable[Highlight], found: Iterable[Finding]) -> str:
    """The chosen findings in Markdown, numbered, from what all records say.

    Raises BadSetting for a claim that no record has.
    """
    entries = {(f.artifact.id, f.budget): f for f in found}
    parts = [highlight_text(i, one, entries) for i, one in enumerate(chosen, 1)]
    return "\n".join(parts)


def highlight_text(number: int, one: Highlight, entries: dict[tuple[str, Budget], Finding]) -> str:
    """One finding: what was published, what the claims show, why, and the commands to repeat it."""
    lines = [f"## {number}. {one.title}", "", f"*Published.* {one.published.strip()}", ""]
    lines += [f"*Found.* {one.finding.strip()}", ""]
    for evidence in one.claims:
        entry = find_claim(evidence, entries)
        finding = entries[evidence.artifact, evidence.budget]
        looks = looks_at(finding, evidence.claim, [entry])
        weak = " with the level of a single judgement" if is_weak(entry.verdict, looks) else ""
        lines.append(
            f"- `{evidence.artifact}`, {evidence.budget}, {evidence.variant}: "
            f"{entry.claim['text']}: **{entry.verdict.text}**{weak}; {entry.verdict.statistic}."
        )
    lines += ["", f"*Why.* {describe_text(**one.why.model_dump())}"] if one.why else []
    where = dict.fromkeys((evidence.artifact, evidence.budget) for evidence in one.claims)
    commands = [
        f"`reproduce {command} {artifact} --budget {budget}`"
        for artifact, budget in where
        for command in ("run", "report")
    ]
    lines += ["", f"*Repeat it.* {', '.join(commands)}."]
    return "\n".join(lines) + "\n"


def find_claim(evidence: Evidence, entries: dict[tuple[str, Budget], Finding]) -> ClaimRecord:
    """The judged claim; raises BadSetting if no record has it."""
    found = entries.get((evidence.artifact, evidence.budget))
    group = found.verdicts.get(evidence.variant, {}) if found else {}
    if evidence.claim not in group:
        raise BadSetting(
            f"{FILE}: no record has {evidence.artifact} {evidence.budget} {evidence.variant} "
            f"{evidence.claim}"
        )
    return group[evidence.claim]
