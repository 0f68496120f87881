"""What the runs of a record took together."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from bench.reproduce.plan import Run


class Seconds(NamedTuple):
    """Sums over runs; None where one of them did not keep its own. As in a record."""

    run_seconds: float
    process_seconds: float | None
    startup_seconds: float | None


def spent_seconds(fresh: Sequence[Run], before: Seconds | None, share: float) -> Seconds:
    """What the runs of a new record took.

    fresh: those that have folders. before: the times of the record from which the others come,
    which are of all of its runs together. share: how large a part of those runs these others are.
    """
    steps = sum(map(step_seconds, fresh))
    whole, startup = map(process_seconds, fresh), map(startup_seconds, fresh)
    if before is None:
        return Seconds(round(steps, 2), sum_known(whole), sum_known(startup))
    return Seconds(
        round(steps + share * before.run_seconds, 2),
        sum_known([*whole, scaled(before.process_seconds, share)]),
        sum_known([*startup, scaled(before.startup_seconds, share)]),
    )


def step_seconds(run: Run) -> float:
    """The seconds of the run's steps; for one of several lanes its share of theirs."""
    last = run.summary["last"] if run.summary else {}
    return float(last.get("seconds", last.get("amortised_seconds", 0.0)))


def process_seconds(run: Run) -> float | None:
    """The CPU seconds of the run's process.

    None if the run did not keep them, or went on in a second process, which kept its own alone.
    """
    found: float | None = (run.summary or {}).get("process", {}).get("cpu_seconds")
    if found is None or run.folder.environment().get("continued"):
        return None
    return found


def startup_seconds(run: Run) -> float | None:
    """The CPU seconds that the run's process did not spend on steps.

    They go to imports, building the task, measuring and files. None if the run did not keep them,
    or shared the time of its steps with other runs.
    """
    whole, steps = process_seconds(run), (run.summary or {}).get("last", {}).get("cpu_seconds")
    return None if whole is None or steps is None else whole - steps


def scaled(seconds: float | None, share: float) -> float | None:
    """A share of the seconds; None if they are not known."""
    return None if seconds is None else share * seconds


def sum_known(values: Iterable[float | None]) -> float | None:
    """The sum, rounded to two digits after the point; None if one of the values is None."""
    found = list(values)
    return None if None in found else round(sum(filter(None, found)), 2)
