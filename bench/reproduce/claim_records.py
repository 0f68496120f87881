"""A claim as a record keeps it, and how often it was judged."""

import math
from collections.abc import Mapping, Sequence
from operator import not_
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from bench.reproduce.claims import ClaimPart, Verdict

SAME = 1e-6  # values that differ by less of their size are of the same runs


class ClaimRecord(BaseModel):
    """A claim with its parts and its verdict.

    claim: as the spec has it. judged: the number of values of each of its judgements so far, this
    one included; there are several if seeds were added or left out, or if runs were made again.
    Older records lack it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    claim: dict[str, Any]
    parts: list[ClaimPart]
    verdict: Verdict
    judged: list[int] = Field(default=[], exclude_if=not_)


Verdicts = dict[str, dict[str, ClaimRecord]]  # variant -> key of the claim -> its record


def judged_with(verdict: Verdict) -> list[int]:
    """The number of values that a verdict rests on; none if it is withheld, or rests on one."""
    withheld = verdict.n <= 1 or verdict.word in ("not run", "outdated")
    return [] if withheld else [verdict.n]


def with_numbers(found: Verdicts, before: Mapping[str, Mapping[str, ClaimRecord]]) -> Verdicts:
    """These claims, each with the numbers of values of its judgements, those of `before` included.

    A judgement of other values is another one, even if they are as many. One value decides nothing,
    and a claim whose verdict is withheld is not judged.
    """

    def numbers(variant: str, key: str, claim: ClaimRecord) -> list[int]:
        now = judged_with(claim.verdict)
        old = before.get(variant, {}).get(key)
        if old is None:
            return now
        earlier = old.judged or judged_with(old.verdict)
        known = earlier and have_same_values(old.parts, claim.parts)
        return earlier if known else [*earlier, *now]

    return {
        variant: {
            key: claim.model_copy(update={"judged": numbers(variant, key, claim)})
            for key, claim in group.items()
        }
        for variant, group in found.items()
    }


def have_same_values(a: Sequence[ClaimPart], b: Sequence[ClaimPart]) -> bool:
    """Whether two judgements rest on the same values, but for the rounding of other machines."""
    if [len(part.values) for part in a] != [len(part.values) for part in b]:
        return False
    ours, theirs = ([value for part in parts for value in part.values] for parts in (a, b))
    finite = [abs(value) for value in theirs if math.isfinite(value)]
    rounding = max(1e-12, SAME * max(finite, default=0.0))  # a difference is as rough as its terms
    return np.allclose(ours, theirs, rtol=SAME, atol=rounding, equal_nan=True)
