"""An artifact in memory whose runs are files by hand: plans and records of it take no composing."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.reproduce import plan as plans
from bench.reproduce.plan import Plan
from bench.reproduce.points import Point
from bench.reproduce.specs import Artifact, Book, Method, Metric, Spec
from bench.runs.files import write_json

SPEC: dict[str, Any] = {
    "title": "t", "source": "s", "task": "toy",
    "grid": {"algorithm.lr": [0.1, 0.2, 0.3]},
    "select": {"metric": "loss", "best": "lowest"},
    "variants": {"paper": {}, "code": {"set": {"task.variant": "code"}}},
    "budgets": {"smoke": {"minutes": 1.0}, "short": {"minutes": 1.0, "seeds": 3}},
    "columns": ["loss"],
    "figure": {"metrics": ["loss"]},
    "rows": {
        "A": {"method": "bome"},
        "L": {"method": "bome", "line": True},
        "B": {"method": "itd", "only": ["paper"], "at": ["short"]},
        "P": {"method": "itd", "pending": "not built"},
    },
    "claims": {},
}  # fmt: skip
BOOK = Book(
    {},
    {"any": {}, "toy": {"loss": Metric(label="loss", better="lower")}},
    {"bome": Method(label="BOME", colour="#000000"), "itd": Method(label="ITD", colour="#ffffff")},
)


def artifact(**changes: Any) -> Artifact:
    return Artifact("p/a", Spec.model_validate({**SPEC, **changes}), Path("p/a.yaml"))


def name(point: Point, seed: int) -> str:
    values = "-".join(str(value) for _, value in point.chosen)
    return f"{point.variant}/{point.row}/{values}-{seed}"


class Known:
    """Names of runs that are known without composing. asked: the names that were asked to be
    composed."""

    def __init__(self, known: bool = True):
        self.known = known
        self.asked: list[str] = []
        self.file: Path | None = None

    def get(self, point: Point, seed: int) -> str | None:
        return name(point, seed) if self.known else None

    def ensure(self, wanted: Iterable[tuple[Point, int]], file: Path) -> None:
        self.asked += [name(*pair) for pair in wanted]
        self.file = file
        self.known = True


def made(root: Path, budget: Any = "short", **changes: Any) -> Plan:
    names: Any = Known()
    return plans.make_plan(artifact(**changes), BOOK, budget, root, names)


def finish(root: Path, where: str, loss: float | None, status: str = "done", **more: Any) -> None:
    """Write the summary of a run that has ended with this loss and status."""
    (root / where).mkdir(parents=True)
    last = {"step": 5, "loss": loss, "seconds": 8.0, "cpu_seconds": 9.0}
    summary = {"status": status, "reason": None, "last": last, **more}
    write_json(root / where / "summary.json", summary)
