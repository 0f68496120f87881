"""Judges the claims of a record again, by the spec and the rules of today."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.reproduce import claims
from bench.reproduce.claim_kinds import AnyClaim
from bench.reproduce.claims import ClaimPart, Verdict
from bench.reproduce.plan import PlannedRun, Run, seeds
from bench.reproduce.points import Point
from bench.reproduce.records import (
    WORDING,
    ClaimRecord,
    Record,
    RowRecord,
    Verdicts,
    claim_at_budget,
    claims_at,
    parts_at_budget,
)
from bench.reproduce.specs import PEAK_MEMORY, Artifact, Book
from bench.runs.folder import RunFolder

RecordedRuns = dict[str, list[Run]]  # row -> its recorded runs, without folders


def rejudge(old: Record, artifact: Artifact, book: Book) -> Verdicts:
    """The verdicts on the spec's claims from the values that a record keeps.

    A claim on last values is judged from the rows of the record. One that needs histories, which a
    record does not keep, is judged from its recorded parts if they are of the same claim and were
    measured by the same rule; otherwise it is not run. The record may have fewer seeds than the
    spec asks for today: the claim is judged with those that it has. A claim about a row that is
    outdated has no verdict but that.
    """
    spec, found = artifact.spec, Verdicts()
    for variant in spec.variants:
        runs = judged_runs(old, artifact, variant)
        found[variant] = {}
        for key, claim in claims_at(spec, variant, old.budget).items():
            kept = old.claims.get(variant, {}).get(key)
            n = max(len(runs.get(name, ())) for name in claim.needed_rows)
            from_finals = bool(claims.part_sources(claim_at_budget(claim, spec, old.budget)))
            parts = parts_at_budget(claim, artifact, old.budget, book, runs if from_finals else {})
            if not from_finals and kept is not None and is_same_claim(claim, kept.claim):
                parts = [
                    new.model_copy(update={"values": kept_values(new, recorded, n)})
                    for new, recorded in zip(parts, kept.parts)
                ]
            parts = [part.model_copy(update={"expected": n or part.expected}) for part in parts]
            rows = old.rows.get(variant, {})
            needed = dict.fromkeys(claim.needed_rows)
            outdated = [name for name in needed if name in rows and rows[name].outdated]
            found[variant][key] = ClaimRecord(
                claim=claim.model_dump(mode="json"),
                parts=parts,
                verdict=withhold(claims.judge_parts(parts), outdated),
            )
    return found


def withhold(found: Verdict, outdated: Sequence[str]) -> Verdict:
    """The verdict; in its place "outdated" if it rests on rows that are, and on which it rests.

    outdated: the outdated ones of the rows that the claim is about. The verdict that they gave
    stays in the statistic.
    """
    if not outdated or found.word == "not run":
        return found
    said = f"{', '.join(outdated)}: of older code or settings, which gave {found.text}"
    return found.model_copy(
        update={"word": "outdated", "p": None, "statistic": f"{said}: {found.statistic}"}
    )


def verdict_changes(before: Verdicts, after: Verdicts) -> Iterator[str]:
    """A line for each claim whose verdict is not what it was, or that is new or gone."""
    for variant in {**before, **after}:
        old, new = before.get(variant, {}), after.get(variant, {})
        for key in {**old, **new}:
            words = [group[key].verdict.text if key in group else "-" for group in (old, new)]
            if words[0] != words[1]:
                yield f"{variant} {key}: {words[0]} -> {words[1]}"


def judged_runs(old: Record, artifact: Artifact, variant: str) -> RecordedRuns:
    """The recorded runs of one variant at the seeds that are judged today."""
    judged = set(seeds(artifact, old.budget))
    return {
        name: [run for run in recorded_runs(row) if run.planned.seed in judged]
        for name, row in old.rows.get(variant, {}).items()
    }


def kept_values(today: ClaimPart, recorded: ClaimPart, n: int) -> list[float]:
    """The recorded values of a part that can be judged today; none if they mean something else.

    n: the number of recorded seeds that are judged today. A record from before the tuning seed was
    kept out has its value as the first one.
    """
    values = recorded.values
    if today.what != recorded.what:
        return []
    if recorded.expected == len(values) == n + 1:
        return values[1:]
    return values if recorded.expected == n else []


def is_same_claim(claim: AnyClaim, recorded: Mapping[str, Any]) -> bool:
    """Whether a recorded claim is the spec's in all that its values depend on."""
    today = claim.model_dump(mode="json")
    return drop_wording({**default_fields(claim), **recorded}) == drop_wording(today)


def drop_wording(claim: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a claim that its values depend on: all but its wording and where it counts."""
    others = (*WORDING, "median", "variants", "budgets")
    return {key: value for key, value in claim.items() if key not in others}


def default_fields(claim: AnyClaim) -> dict[str, Any]:
    """The default of every field that has one: a record may be older than the field."""
    fields = type(claim).model_fields.items()
    return {
        name: field.get_default(call_default_factory=True)
        for name, field in fields
        if not field.is_required()
    }


def recorded_runs(row: RowRecord) -> list[Run]:
    """The runs of a recorded row, without folders, with the last values that the row keeps."""
    return [recorded_run(row, i) for i in range(len(row.seeds))]


def recorded_run(row: RowRecord, i: int) -> Run:
    """The i-th run of a recorded row, without a folder."""
    job = PlannedRun(Point("paper", "", (), ()), row.seeds[i], row.runs[i])
    nowhere = RunFolder(Path(), job.name)
    if row.status[i] == "missing":
        return Run(job, nowhere, None)
    last = {name: some[i] for name, some in row.finals.items()}
    # a count is never infinite: where the record has null, the run does not have it
    last = {name: v for name, v in last.items() if v is not None or not claims.is_count(name)}
    peak = {"process": last.pop(PEAK_MEMORY, None) or math.nan}
    alone = bool(row.undisturbed) and row.undisturbed[i]
    process = {"others_cores": 0.0 if alone else None}
    summary = {"status": row.status[i], "last": last, PEAK_MEMORY: peak, "process": process}
    return Run(job, nowhere, summary)
