"""The README's table of findings, written from the records alone."""

import re
from collections import Counter
from pathlib import Path

from bench.reproduce import records, tables
from bench.reproduce.specs import VARIANTS, Artifact, Book
from bench.settings import BadSetting

BEGIN, END = "<!-- findings: written by `reproduce findings` -->", "<!-- end of findings -->"


def updated(readme: Path, book: Book, results: Path) -> str:
    """The file's text with the table as the records have it; raises BadSetting."""
    text = readme.read_text()
    found = re.search(f"{re.escape(BEGIN)}.*?{re.escape(END)}", text, re.DOTALL)
    if found is None:
        raise BadSetting(f"{readme}: there is no line {BEGIN}, and after it {END}")
    return text[: found.start()] + f"{BEGIN}\n{block(book, results)}{END}" + text[found.end() :]


def block(book: Book, results: Path) -> str:
    """One table of verdicts per paper and one line per claim that fails."""
    rows: list[list[str]] = []
    lines: list[str] = []
    counts: Counter[str] = Counter()
    for artifact in book.artifacts.values():
        for budget in artifact.spec.budgets:
            record = records.read(artifact.id, budget, results)
            if record is None:
                continue
            verdicts = records.again(record, artifact.spec)
            rows += claim_rows(artifact, record, verdicts)
            counts.update(e.verdict.word for group in verdicts.values() for e in group.values())
            lines += [
                f"- `{artifact.id}`, {variant}: *{entry.claim['text']}* fails: "
                f"{' '.join(filter(None, [because(entry, variant), entry.verdict.statistic]))}."
                for variant, group in verdicts.items()
                for entry in group.values()
                if entry.verdict.word == "fails"
            ]
    if not rows:
        return "\nNothing is recorded yet.\n\n"
    head = ["artifact", "budget, n", "claim", "paper", "code"]
    total = ", ".join(
        f"{counts[word]} {word}"
        for word in ("holds", "fails", "not enough runs", "not run")
        if counts[word]
    )
    body = tables.markdown(tables.Table("", head, rows)).partition("\n\n")[2]
    failing = "What fails, and what it means:\n\n" + "\n".join(lines) + "\n\n" if lines else ""
    return f"\n{total}.\n\n{body}\n{failing}"


def because(entry: records.ClaimRecord, variant: str) -> str:
    """What the spec says that the failure means."""
    return str(entry.claim["failing"].get(variant, ""))


def claim_rows(
    artifact: Artifact,
    record: records.Record,
    verdicts: dict[str, dict[str, records.ClaimRecord]],
) -> list[list[str]]:
    keys = dict.fromkeys(key for group in verdicts.values() for key in group)
    grown = {
        key
        for key in keys
        if all(
            group[key].claim["kind"] == "slope" and group[key].verdict.word == "holds"
            for group in verdicts.values()
            if key in group
        )
    }
    found = []
    for key in keys:
        if key in grown:
            continue
        entries = {v: group[key] for v, group in verdicts.items() if key in group}
        n = max(len(part.values) for entry in entries.values() for part in entry.parts)
        cells = [
            (f"**{e.verdict.text}**" if e.verdict.word == "fails" else e.verdict.text)
            if (e := entries.get(variant))
            else "·"
            for variant in ("paper", "code")
        ]
        text = str(next(iter(entries.values())).claim["text"])
        found.append([f"`{artifact.id}`", f"{record.budget}, {n}", text, *cells])
    if grown:  # a table of complexities has dozens: those that hold are counted
        held = [sum(key in group for key in grown) for group in verdicts.values()]
        cells = [
            f"{held[list(verdicts).index(v)]} hold" if v in verdicts else "·" for v in VARIANTS
        ]
        n = max(
            len(p.values) for g in verdicts.values() for k in grown & g.keys() for p in g[k].parts
        )
        text = "How costs grow: slopes as stated"
        found.append([f"`{artifact.id}`", f"{record.budget}, {n}", text, *cells])
    return found
