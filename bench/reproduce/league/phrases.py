"""What the league's pages say of a number, of a place and of a method on a task, as phrases."""

from collections.abc import Sequence

import numpy as np

from bench.reproduce.league import scores
from bench.reproduce.league.scores import Array, Interval, Place

WORDS = {
    "calls": "calls", "samples": "samples", "cpu_seconds": "CPU seconds",
    "value": "the final value",
}  # fmt: skip


def shown(found: Interval) -> str:
    """A number with its interval, if that has a width: a bootstrap of equal values has none."""
    value, low, high = (f"{number:.2f}" for number in found)
    return value if value == low == high else f"{value} [{low}, {high}]"


def rank_text(found: Interval) -> str:
    """A rank with its interval, in halves, which those have that share a place."""
    value, low, high = (round(2 * rank) / 2 for rank in found)
    return f"{value:g}" if value == low == high else f"{value:g} [{low:g}, {high:g}]"


def range_text(low: float, high: float) -> str:
    """From which rank to which, in halves."""
    return f"{round(2 * low) / 2:g} to {round(2 * high) / 2:g}"


def group_text(place: Place) -> str:
    """The group, with a mark if it is a later one, whose first is told apart from the track's
    first, and this method is not."""
    return f"{place.group} ~" if place.group > 1 and not place.behind else str(place.group)


def in_order(said: Sequence[str], credit: Array) -> str:
    """What is said of methods, the best first, as one phrase: those that the seeds do not tell
    apart from the first are joined to it by "or". credit: [methods, seeds]."""
    good = scores.as_good(credit)
    first = " or ".join(text for text, is_good in zip(said, good) if is_good)
    return "; then ".join([first, *(text for text, is_good in zip(said, good) if not is_good)])


def advice(said: Sequence[str], credit: Array) -> str:
    """What is advised of methods, the best first; with few seeds, by which none can be told from
    another, only their order is said. credit: [methods, seeds]."""
    seeds = credit.shape[1]
    if seeds < scores.FEWEST:
        return f"{seeds} seeds decide nothing; in their order: {', then '.join(said)}"
    return f"take {in_order(said, credit)}"


def number(value: float) -> str:
    """A number to three digits, or a large one to its last."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def task_phrase(method: str, work: Array, unit: str, calls: float | None = None) -> str:
    """What a method took on a task, over its seeds: the median with the least and the most.

    calls: the median of its oracle's calls, which is told where values are compared.
    """
    hits = np.sort(work[np.isfinite(work)])
    if not len(hits):
        return f"`{method}` never"
    measure = "" if unit == WORDS["value"] else f" {unit}"
    middle, least, most = map(number, (float(np.median(hits)), hits[0], hits[-1]))
    spread = f"{middle}{measure} [{least}, {most}]"
    if calls is not None and not measure:
        spread += f", {number(calls)} calls"
    return f"`{method}` ({spread}, {len(hits)} of {len(work)} seeds)"
