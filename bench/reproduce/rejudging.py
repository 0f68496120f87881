"""Judges the claims of a record again, by the spec and the rules of today."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench.reproduce import claims
from bench.reproduce.claim_kinds import AnyClaim
from bench.reproduce.claim_records import ClaimRecord, Verdicts, with_numbers
from bench.reproduce.claims import ClaimPart, Verdict
from bench.reproduce.claims_at import claim_at_budget, claims_at
from bench.reproduce.plan import Run, seeds
from bench.reproduce.recorded import have_histories, recorded_runs
from bench.reproduce.records import WORDING, Record, parts_at_budget
from bench.reproduce.slopes import RunsOfRows
from bench.reproduce.specs import Artifact, Book
from bench.reproduce.statements import part_sources


def rejudge(old: Record, artifact: Artifact, book: Book) -> Verdicts:
    """The verdicts on the spec's claims from the values that a record keeps.

    A claim on last values is judged from the rows of the record, and one that needs histories from
    those that the record keeps. If it is too old to have them, the claim is judged from its
    recorded parts if they are of the same claim and were measured by the same rule; otherwise it is
    not run. The record may have fewer seeds than the spec asks for today: the claim is judged with
    those that it has. A claim about a row that is outdated has no verdict but that.
    """
    spec, found = artifact.spec, Verdicts()
    for variant in spec.variants:
        runs = judged_runs(old, artifact, variant)
        found[variant] = {}
        for key, claim in claims_at(spec, variant, old.budget).items():
            kept = old.claims.get(variant, {}).get(key)
            asked = len(seeds(artifact, old.budget, claim.needed_rows))
            n = min(asked, max(len(runs.get(name, ())) for name in claim.needed_rows))
            known = can_measure(claim_at_budget(claim, spec, old.budget), runs)
            of_runs = runs if known else {}
            parts = parts_at_budget(claim, artifact, old.budget, book, variant, of_runs)
            if kept is not None and len(kept.parts) != len(parts):
                kept = None
            if not known and kept is not None and is_same_claim(claim, kept.claim):
                parts = [
                    new.model_copy(update={"values": kept_values(new, recorded, n)})
                    for new, recorded in zip(parts, kept.parts)
                ]
            if n:
                fewer = asked - n
                parts = [p.model_copy(update={"expected": p.expected - fewer}) for p in parts]
            rows = old.rows.get(variant, {})
            needed = dict.fromkeys(claim.needed_rows)
            outdated = [name for name in needed if name in rows and rows[name].outdated]
            found[variant][key] = ClaimRecord(
                claim=claim.model_dump(mode="json"),
                parts=parts,
                verdict=withhold(claims.judge_parts(parts), outdated),
            )
    return with_numbers(found, old.claims)


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


def can_measure(claim: AnyClaim, runs: RunsOfRows) -> bool:
    """Whether what a record keeps of its runs gives the values of a claim."""
    if part_sources(claim):
        return True
    needed = [run for name in dict.fromkeys(claim.needed_rows) for run in runs.get(name, ())]
    done = [run for run in needed if run.summary is not None and not run.failed]
    return have_histories(needed) and all(
        any(metric in row for row in run.history) for run in done for metric in claim.metrics
    )


def judged_runs(old: Record, artifact: Artifact, variant: str) -> dict[str, list[Run]]:
    """The recorded runs of one variant at the seeds that are judged today."""
    found = {}
    for name, row in old.rows.get(variant, {}).items():
        judged = seeds(artifact, old.budget, [name])
        found[name] = [run for run in recorded_runs(old, row) if run.planned.seed in judged]
    return found


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
