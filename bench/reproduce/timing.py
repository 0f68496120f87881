"""Whether the times of runs may be compared: made alone, and on machines of the same speed."""

from collections.abc import Sequence

from bench.reproduce.circumstances import circumstances
from bench.reproduce.claim_kinds import AnyClaim
from bench.reproduce.plan import TIMES, Run
from bench.reproduce.slopes import RunsOfRows

FASTER = 1.5  # the ratio of two paces from which on machines do not have the same speed


def pace(run: Run) -> float | None:
    """The milliseconds that a fixed piece of work took where the run was made.

    None where this is not known, as for runs that were made before it was measured.
    """
    found: float | None = (run.summary or {}).get("process", {}).get("pace_ms")
    return found


def untimed_seeds(claim: AnyClaim, runs: RunsOfRows) -> set[int]:
    """The seeds at which the times that a claim reads cannot be compared; none if it reads none."""
    if not any(name in TIMES for name in claim.metrics):
        return set()
    of_rows = [run for row in claim.needed_rows for run in runs.get(row, ())]
    return {seed for seed, some in by_seed(of_rows).items() if not can_compare(some)}


def by_seed(runs: Sequence[Run]) -> dict[int, list[Run]]:
    """The runs that have ended, by their seeds.

    Runs that failed are left out: they never reach a target, whatever time they took.
    """
    found: dict[int, list[Run]] = {}
    for run in runs:
        if run.summary is not None and not run.failed:
            found.setdefault(run.planned.seed, []).append(run)
    return found


def can_compare(some: Sequence[Run]) -> bool:
    """Whether the times of these runs that have ended may be compared with each other."""
    return all(run.undisturbed for run in some) and have_one_speed(some)


def have_one_speed(some: Sequence[Run]) -> bool:
    """Whether runs were made on devices of one name, and on machines of about the same pace.

    Runs of which no pace is known, such as those of older records, count as alike; a known pace and
    an unknown one do not.
    """
    if len({stage.device for run in some for stage in circumstances(run)}) > 1:
        return False
    paces = [pace(run) for run in some]
    known = [p for p in paces if p is not None]
    if len(known) < len(paces):
        return not known
    return max(known) <= FASTER * min(known)


def runs_to_repeat(some: Sequence[Run]) -> list[Run]:
    """Those of one seed's ended runs that have to be made again before their times can be compared.

    Disturbed runs come first. Where machines differ, the newest run that has a folder stands for
    the machine in use, and the runs that are not like it are made again. A command that goes on
    after an interrupt therefore keeps what it has made. Where no run has a folder, all are made.
    """
    disturbed = [run for run in some if not run.undisturbed]
    if disturbed or have_one_speed(some):
        return disturbed
    here = [run for run in some if run.recorded is None]
    newest = max(here, key=end_time, default=None)
    return [run for run in some if newest is None or not have_one_speed([newest, run])]


def end_time(run: Run) -> int:
    """When the run ended, in ns, by the clock of its folder."""
    return run.folder.summary_file.stat().st_mtime_ns
