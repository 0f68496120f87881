"""Whether a claim of closeness can be decided with the seeds of a budget.

How much the values of a claim deviate over seeds is taken from a record.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from bench.reproduce import chances
from bench.reproduce.book import format_path
from bench.reproduce.claim_records import ClaimRecord, Verdicts
from bench.reproduce.claims import ClaimPart
from bench.reproduce.plan import seeds
from bench.reproduce.schema import Budget
from bench.reproduce.specs import Artifact
from bench.reproduce.statistics import FEWEST_SIGNS, are_same

KINDS = ("close", "within_published")  # of claims with two bounds, between which the truth may lie
FEWEST_VALUES = 3  # from which a deviation is taken
LEAST = 0.5  # a claim with less power is refused
ASKED = 0.8


class Power(NamedTuple):
    """How probable "holds" is of a claim whose values are as asked, right between the bounds.

    chance: the probability with n seeds. needed: the number of seeds for a chance of `ASKED`; None
    if it is beyond `chances.MOST_SEEDS`.
    """

    chance: float
    n: int
    needed: int | None

    @property
    def text(self) -> str:
        """The power in words. The mean is taken to be right between the bounds."""
        seeds_text = f"more than {chances.MOST_SEEDS:,}" if self.needed is None else self.needed
        found = f"power {self.chance:.0%} at n = {self.n}, were the mean midway"
        return f"{found}; {ASKED:.0%} takes {seeds_text} seeds"


def claim_power(entry: ClaimRecord, n: int) -> Power | None:
    """The power of a claim with n seeds; that of its part with the least.

    None for a claim of another kind, or where no part has enough values for a deviation.
    """
    if entry.claim["kind"] not in KINDS or entry.claim.get("median"):
        return None
    parts = [p for p in entry.parts if len(p.values) >= FEWEST_VALUES]
    found = [part_power(p, n) for p in parts if np.isfinite(p.values).all()]
    return min(found, key=lambda power: power.chance, default=None)


def part_power(part: ClaimPart, n: int) -> Power:
    """The power of one part, whose values are finite, with n seeds."""
    same = are_same(part.values, beside=(part.low, part.high))
    deviation = 0.0 if same else float(np.std(part.values, ddof=1))
    if deviation == 0 and part.extra_se == 0:  # equal values are left to the sign test
        return Power(float(n >= FEWEST_SIGNS), n, FEWEST_SIGNS)
    within = (part.high - part.low) / 2
    return Power(
        chances.power(deviation, n, within, part.reference),
        n,
        chances.seeds_needed(deviation, within, part.reference, ASKED),
    )


def describe_statistic(entry: ClaimRecord, n: int) -> str:
    """The statistic that decided a claim, and the claim's power with n seeds if it has one."""
    found = claim_power(entry, n)
    return entry.verdict.statistic + (f"; {found.text}" if found else "")


def claim_seeds(artifact: Artifact, budget: Budget, key: str) -> int:
    """With how many seeds a claim is judged: those that all of its rows have.

    A claim that the spec has no longer has those of every row.
    """
    claim = artifact.spec.claims.get(key)
    return len(seeds(artifact, budget, claim.needed_rows if claim else ()))


def refuse_claims(artifact: Artifact, budget: Budget, found: Verdicts) -> Iterator[str]:
    """A line for each claim that the seeds of a budget can hardly decide.

    found: the verdicts in the budget's record. A claim that is decided there, or that the spec has
    no longer, is not refused.
    """
    for key in artifact.spec.claims:
        n = claim_seeds(artifact, budget, key)
        powers = [least_power(group, key, n) for group in found.values()]
        weak = [power for power in powers if power is not None and power.chance < LEAST]
        if weak:
            yield (
                f"{format_path(artifact.file)}: claims.{key}: {budget}: "
                f"{min(weak, key=lambda power: power.chance).text}: leave {budget} out of its "
                "budgets, or raise its seeds"
            )


def least_power(group: Mapping[str, ClaimRecord], key: str, n: int) -> Power | None:
    """The power of a claim of one variant; None if it is not known or the claim is decided."""
    entry = group.get(key)
    if entry is None or entry.verdict.word in ("holds", "fails"):
        return None
    return claim_power(entry, n)
