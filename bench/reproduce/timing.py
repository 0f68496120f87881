"""Whether runs may be compared in what the machine has a part in.

Times may be compared if runs were made alone, and on machines of the same speed. The ends of runs
that a clock ends need machines of the same speed, and runs that other work has not slowed much: on
cores that are two threads of one it takes from what a CPU second gets done, of which the pace, as
it is measured once, does not tell.
"""

from collections.abc import Sequence

from bench.reproduce.circumstances import circumstances
from bench.reproduce.claim_kinds import Above, AnyClaim, Below, Close, Order, Slope
from bench.reproduce.plan import TIMES, Circumstances, Run
from bench.reproduce.points import ends_by_clock
from bench.reproduce.slopes import RunsOfRows

FASTER = 1.5  # the ratio of two paces from which on machines do not have the same speed


def pace(run: Run) -> float | None:
    """The milliseconds that a fixed piece of work took where the run was made.

    None where this is not known, as for runs that were made before it was measured.
    """
    found: float | None = (run.summary or {}).get("process", {}).get("pace_ms")
    return found


def reads_times(claim: AnyClaim) -> bool:
    """Whether one of the claim's metrics is a time."""
    return any(name in TIMES for name in claim.metrics)


def compares_ends(claim: AnyClaim) -> bool:
    """Whether a claim compares the last values of one row with those of another."""
    if isinstance(claim, Slope):
        return bool(claim.points) and claim.until is None
    return isinstance(claim, Above | Below | Order | Close)


def unlike_seeds(claim: AnyClaim, runs: RunsOfRows, by_clock: bool) -> set[int]:
    """The seeds at which the machines have a part in what a claim compares.

    There the times that it reads cannot be compared, or, if a clock ends the runs (`by_clock`),
    their ends. Runs that all took the steps that they were to take at most were ended by no clock,
    and of a row that no clock ends the machine is of no account.
    """
    of_rows = by_seed([run for row in claim.needed_rows for run in runs.get(row, ())])
    if reads_times(claim):
        return {seed for seed, some in of_rows.items() if not can_compare(some)}
    if by_clock and compares_ends(claim):
        cut = {seed: some for seed, some in of_rows.items() if any(map(may_be_cut, some))}
        timed = {row: list(filter(has_clock, runs.get(row, ()))) for row in claim.needed_rows}
        slowed = {run.planned.seed for row in timed.values() for run in slowed_runs(row)}
        speeds = {seed: have_one_speed(list(filter(has_clock, some))) for seed, some in cut.items()}
        return {seed for seed, alike in speeds.items() if seed in slowed or not alike}
    return set()


def has_clock(run: Run) -> bool:
    """Whether a clock may end the run, by the settings of its row."""
    return ends_by_clock(run.planned.point)


def slowed_runs(row: Sequence[Run]) -> list[Run]:
    """The disturbed runs of a row that got much less done in a CPU second than its fastest run did,
    the speeds of their machines set aside."""
    rates = [(run, work_rate(run)) for some in by_seed(row).values() for run in some]
    fastest = max((rate for _, rate in rates if rate is not None), default=0.0)
    return [
        run
        for run, rate in rates
        if rate is not None and not run.undisturbed and FASTER * rate < fastest
    ]


def work_rate(run: Run) -> float | None:
    """The steps that a run took in the CPU time of a fixed piece of work; None if not known."""
    steps, seconds, milliseconds = run.last("step"), run.last("cpu_seconds"), pace(run)
    if not steps or not seconds or milliseconds is None:
        return None
    return steps / seconds * milliseconds


def may_be_cut(run: Run) -> bool:
    """Whether a clock may have ended a run before its last step."""
    steps, end = dict(run.planned.point.settings).get("run.steps"), run.last("step")
    return not isinstance(steps, int) or end is None or end < steps


def by_seed(runs: Sequence[Run]) -> dict[int, list[Run]]:
    """The runs that have ended, by their seeds.

    Runs that failed are left out: hardly any of them reaches a target, whatever time it took.
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
    """Whether runs were made on devices of one name, with as many threads and one instruction set,
    and on machines of about the same pace.

    The pace does not tell instruction sets apart: runs of stocBiO on MNIST with AVX512 took more
    than twice as many steps in a CPU second as with AVX2, at about the same pace. Runs of which no
    pace is known, such as those of older records, count as alike if one commit made them; a known
    pace and an unknown one do not.
    """
    return are_of_one_speed(
        [stage for run in some for stage in circumstances(run)], [pace(run) for run in some]
    )


def are_of_one_speed(stages: Sequence[Circumstances], paces: Sequence[float | None]) -> bool:
    """What `have_one_speed` says of runs that were made in these conditions, at these paces."""
    if len({(stage.device, stage.threads, stage.instructions) for stage in stages}) > 1:
        return False
    known = [p for p in paces if p is not None]
    if not known:
        return len({stage.commit for stage in stages}) <= 1
    return len(known) == len(paces) and max(known) <= FASTER * min(known)


def runs_to_repeat(some: Sequence[Run]) -> list[Run]:
    """Those of one seed's ended runs that have to be made again before their times can be compared.

    Disturbed runs come first, and then those of machines of another speed.
    """
    return [run for run in some if not run.undisturbed] or runs_of_other_speed(some)


def runs_of_other_speed(some: Sequence[Run]) -> list[Run]:
    """Those of one seed's ended runs that have to be made again for all to be of one speed.

    The newest run that has a folder stands for the machine in use. From it to the oldest, and to
    those without a folder, runs that are of one speed with all before them stay, and the others are
    made again. A command that goes on after an interrupt therefore keeps what it has made. Where no
    run has a folder, all are made.
    """
    if have_one_speed(some):
        return []
    here = sorted((run for run in some if run.recorded is None), key=end_time, reverse=True)
    stay: list[Run] = []
    for run in [*here, *(run for run in some if run.recorded is not None)]:
        if here and have_one_speed([*stay, run]):
            stay.append(run)
    return [run for run in some if run not in stay]


def end_time(run: Run) -> int:
    """When the run ended, in ns, by the clock of its folder."""
    return run.folder.summary_file.stat().st_mtime_ns
