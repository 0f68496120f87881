"""The runs that chose a row's grid point, as the row's record keeps them.

A clock that ends runs gives the machine a part in which point is chosen, so that a record says
where each point was tried.
"""

from collections.abc import Mapping
from typing import Any

from bench.reproduce.circumstances import circumstances, join_known
from bench.reproduce.plan import Circumstances, Run, run_status
from bench.reproduce.points import ends_by_clock
from bench.reproduce.statistics import if_finite
from bench.reproduce.timing import may_be_cut, pace


def keep_try(run: Run, metric: str) -> dict[str, Any]:
    """What a record keeps of a run that tried a grid point.

    metric: the one that chooses. cut: whether a clock may have ended the run before its last step.
    The fields from `step` on are missing in older records, and None where they are not known.
    """
    made = circumstances(run)
    return {
        "name": run.planned.name,
        "settings": dict(run.planned.point.chosen),
        "status": run_status(run),
        "metric": metric,
        "value": if_finite(run.last(metric)),
        "step": run.last("step"),
        "cut": ends_by_clock(run.planned.point) and may_be_cut(run),
        "commit": join_known(c.commit for c in made),
        "source": join_known(c.source for c in made),
        "threads": join_known(c.threads for c in made),
        "instructions": join_known(c.instructions for c in made),
        "device": join_known(c.device for c in made),
        "pace": pace(run),
        "undisturbed": run.undisturbed,
    }


def try_circumstances(kept: Mapping[str, Any]) -> Circumstances:
    """The conditions in which a point was tried; unknown in older records."""
    names = ("commit", "source", "threads", "instructions", "device")
    return Circumstances(*(kept.get(name) for name in names))
