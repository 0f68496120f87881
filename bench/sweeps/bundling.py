"""Which runs of a sweep go side by side, as lanes of one computation."""

from collections.abc import Sequence
from typing import Any

from bench.runs.folder import RunState
from bench.sweeps.jobs import Job

WORTH = 5000  # steps of all runs together from which lanes are tried unasked: recording takes 2 s


def choose_lanes(
    configs: Sequence[dict[str, Any]], one_machine: bool, ended: Sequence[dict[str, Any]] = ()
) -> bool:
    """Settle the setting `vectorize` of each configuration that leaves it open.

    Lanes vary the seeds and step sizes of a sweep over a single method. A sweep over several
    methods compares their times, which lanes do not have. Whether lanes are faster is measured when
    they begin. one_machine: the runs would share the cores of this machine. ended: configurations
    of the sweep's runs that need not be made, with whose times the others are compared too. Gives
    whether lanes are to be tried.
    """
    still_open = [config for config in configs if config["vectorize"] is None]
    if not still_open:
        return False
    every = [*configs, *ended]
    methods = {config["algorithm"]["_target_"] for config in every}
    timed = any(config["run"][key] for config in every for key in ("seconds", "cpu_seconds"))
    steps = sum(config["run"]["steps"] for config in still_open)
    tried = one_machine and len(methods) == 1 and not timed and steps >= WORTH
    keys = varied_settings(still_open) if tried else []
    for config in still_open:
        config["vectorize"] = keys
    return bool(keys)


def varied_settings(configs: Sequence[dict[str, Any]]) -> list[str]:
    """Those of the seed and the algorithm's floats in which configurations of a method differ."""
    from bench.runs.lanes import numbers_of  # slow to import

    every = [
        {"seed": config["seed"], **numbers_of(config["algorithm"], "algorithm.")}
        for config in configs
    ]
    shared = set(every[0]).intersection(*every)
    return [key for key in every[0] if key in shared and len({own[key] for own in every}) > 1]


def bundle_lanes(jobs: Sequence[Job]) -> list[Job]:
    """The jobs, with those that go side by side as one job; raises BadSetting."""
    if not any(job.config["vectorize"] for job in jobs):
        return list(jobs)
    from bench.runs.lanes import group_lanes  # slow to import

    groups = group_lanes([job.config for job in jobs], [job.apart for job in jobs])
    return [
        jobs[first]._replace(others=tuple(jobs[k] for k in others)) for first, *others in groups
    ]


def take_apart(job: Job) -> list[Job]:
    """The runs that a job of lanes has not brought to their ends, each as a job of its own.

    Lanes that nobody asked for may be refused, or their process may be killed for the memory that
    they take together. The notes that say so are removed, because as runs of their own the jobs
    have not begun. A run that another process makes is left to that one.
    """
    left = [each for each in job.all if not is_over(each.state())]
    for each in left:
        each.note.unlink(missing_ok=True)
    return [
        each._replace(others=(), if_faster=False, config={**each.config, "vectorize": []})
        for each in left
    ]


def is_over(state: RunState) -> bool:
    """Whether nothing of a run is to be made: it has ended, or another process makes it."""
    return state.has_ended or state.status == "busy"
