"""Where a run ends before its last step."""

from typing import NamedTuple


class Limits(NamedTuple):
    """What a run may spend: it ends at the first step behind which it has spent so much of one.

    seconds, cpu_seconds: wall time, and CPU time, of its steps. calls, samples: what its steps have
    cost, all calls of the oracle together, and all samples of these calls. None: no limit.
    """

    seconds: float | None = None
    cpu_seconds: float | None = None
    calls: int | None = None
    samples: int | None = None

    def reached(self, spent: "Limits") -> bool:
        """Whether a run that has spent this is at one of the limits."""
        pairs = zip(spent, self, strict=True)
        return any(most is not None and now is not None and now >= most for now, most in pairs)

    @property
    def counted(self) -> bool:
        """Whether one of them is a count. It has to be asked for after every step, so that the end
        does not depend on how many steps are taken at a time."""
        return self.calls is not None or self.samples is not None


NO_LIMITS = Limits()
