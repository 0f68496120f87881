"""What artifacts cost in CPU time, and times in words."""

from collections.abc import Iterable

from bench.reproduce.records import Record, recorded_run_count
from bench.reproduce.schema import Budget
from bench.reproduce.specs import Artifact


def describe_cost(artifact: Artifact, budget: Budget, found: Record | None, startup: float) -> str:
    """The CPU time that an artifact takes at a budget, start-up included, in words.

    It is the measured time of a complete record. If that has only the time of steps, a start-up
    for each run is added. Without a complete record it is the spec's estimate.

    startup: CPU seconds that a run costs beside its steps, from `mean_startup`.
    """
    if found is None or not found.complete:
        return f"~ {format_duration(60 * artifact.spec.budgets[budget].minutes)}"
    if found.process_seconds is not None:
        return f"{format_duration(found.process_seconds)} (measured)"
    return f"~ {format_duration(found.run_seconds + startup * recorded_run_count(found))}"


def mean_startup(found: Iterable[Record]) -> float:
    """The CPU seconds that a run costs beside its steps: the mean over the records that know."""
    known = [r for r in found if r.startup_seconds is not None]
    spent = sum(r.startup_seconds or 0.0 for r in known)
    return spent / max(1, sum(map(recorded_run_count, known)))


def format_duration(seconds: float) -> str:
    """The time with three digits, in the largest unit of which there is one and a half."""
    for unit, size in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"
