"""A claim as a record keeps it, and how often it was judged."""

from collections.abc import Mapping
from operator import not_
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from bench.reproduce.claims import ClaimPart, Verdict


class ClaimRecord(BaseModel):
    """A claim with its parts and its verdict.

    claim: as the spec has it. judged: the numbers of values with which it has been judged so far,
    this time included; several if seeds were added, or were compared again that had been left out.
    Older records lack it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    claim: dict[str, Any]
    parts: list[ClaimPart]
    verdict: Verdict
    judged: list[int] = Field(default=[], exclude_if=not_)


Verdicts = dict[str, dict[str, ClaimRecord]]  # variant -> key of the claim -> its record


def judged_with(verdict: Verdict) -> set[int]:
    """The number of values that a verdict rests on; none if it is withheld, or rests on one."""
    withheld = verdict.n <= 1 or verdict.word in ("not run", "outdated")
    return set() if withheld else {verdict.n}


def with_numbers(found: Verdicts, before: Mapping[str, Mapping[str, ClaimRecord]]) -> Verdicts:
    """These claims, each with the numbers of values of its judgements, those of `before` included.

    One value decides nothing, and a claim whose verdict is withheld is not judged.
    """

    def numbers(variant: str, key: str, claim: ClaimRecord) -> list[int]:
        old = before.get(variant, {}).get(key)
        earlier = {*old.judged, *judged_with(old.verdict)} if old else set()
        return sorted(earlier | judged_with(claim.verdict))

    return {
        variant: {
            key: claim.model_copy(update={"judged": numbers(variant, key, claim)})
            for key, claim in group.items()
        }
        for variant, group in found.items()
    }
