"""Which runs an artifact takes, what their names are, and which of them are there."""

import json
import math
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bench.core.settings import BadSetting
from bench.reproduce.choosing import best_point, choosing_seeds, tried_points
from bench.reproduce.points import Point, format_override, points
from bench.reproduce.run_names import Names
from bench.reproduce.schema import Budget, Variant
from bench.reproduce.specs import PEAK_MEMORY, TOTALS, Artifact, Book, Select, Spec, Value
from bench.runs.folder import RunFolder

DIGITS = 7  # of a number of a history that a record keeps
OTHERS = 0.25  # cores that other work may keep busy, on average, beside an undisturbed run
LARGEST = 1e150  # a value that is larger has no variance in floats, and counts as not finite
TIMES = ("seconds", "cpu_seconds")  # metrics that every row of a history has


@dataclass(frozen=True)
class PlannedRun:
    """One run that an artifact takes."""

    point: Point
    seed: int
    name: str  # the run's name: task/algorithm/hash
    again: bool = False  # it is there but has to be made again

    @property
    def overrides(self) -> tuple[str, ...]:
        """The run's settings as arguments of `bench`."""
        pairs = [*self.point.settings, *self.point.chosen, ("seed", self.seed)]
        merged: dict[str, Value] = dict(pairs)
        return tuple(format_override(path, value) for path, value in merged.items())

    @property
    def line(self) -> str:
        """The command line that makes the run."""
        return shlex.join(["bench", *self.overrides])


@dataclass(frozen=True)
class Circumstances:
    """Under which conditions a run, or a part of it between two kills, was made.

    commit: the code's, and whether files differed from it. source: a digest of the code itself.
    instructions: the CPU's instruction set. device: the GPU, or else the CPU. None: not known.
    """

    commit: str | None
    source: str | None
    threads: str | None
    instructions: str | None
    device: str | None


@dataclass(frozen=True)
class RecordedPart:
    """What a record keeps of a run beside its last values, where there is no folder."""

    history: Sequence[dict[str, Any]]
    circumstances: Circumstances


@dataclass(frozen=True)
class Run:
    """What is there of a planned run: its folder and, once it has ended, its summary.

    recorded: set for a run that comes from a record, and has no folder. kept: how many rows of its
    history count, where its row keeps the best iterate; None: all.
    """

    planned: PlannedRun
    folder: RunFolder
    summary: dict[str, Any] | None  # None: the run has not ended, or has to be made again
    recorded: RecordedPart | None = None
    kept: int | None = None

    @property
    def done(self) -> bool:
        return self.summary is not None and self.summary["status"] == "done"

    @property
    def failed(self) -> bool:
        return self.summary is not None and not self.done

    @cached_property
    def history(self) -> list[dict[str, Any]]:
        """The rows that the run measured, without times if it shared them with other runs."""
        if self.recorded is not None:
            return list(self.recorded.history)
        rows = self.folder.history()[: self.kept]
        amortised = self.summary is not None and self.summary.get("amortised")
        return [drop_times(row) for row in rows] if amortised else rows

    @property
    def end(self) -> dict[str, Any]:
        """The values that the run ends with, or those of the iterate that is kept."""
        if self.summary is None:
            return {}
        return dict(self.summary["last"] if self.kept is None else self.history[-1])

    @property
    def undisturbed(self) -> bool:
        """Whether hardly any other work was done beside the run, so that its times tell something.

        False where this is not known, as for runs that were made before it was measured.
        """
        others = (self.summary or {}).get("process", {}).get("others_cores")
        return others is not None and others <= OTHERS

    def last(self, metric: str) -> float | None:
        """The last value of a metric; infinite if it was not finite, None if there is none.

        The peak memory, in MB, is that of the GPU for a run on one, or else the process's.
        """
        if self.summary is None:
            return None
        if metric == PEAK_MEMORY:
            peak = self.summary[metric]
            return float(peak.get("gpu", peak["process"]))
        return metric_value(self.end, metric)


def keep_best(run: Run, how: Select | None) -> Run:
    """The run as if it had ended at the best of the iterates that it measured, the last of equals.

    how: None: at its end. A run that is recorded is so already. Where no measurement is finite, it
    is the run's own end. Raises BadSetting if the run did not measure the metric.
    """
    if how is None or run.summary is None or run.recorded is not None:
        return run
    values = [metric_value(row, how.metric) for row in run.history]
    if None in values:
        raise BadSetting(
            f"{run.folder.path}: it did not measure {how.metric}, by which the row "
            f"{run.planned.point.row} keeps an iterate (keep.metric)"
        )
    sign = 1 if how.best == "highest" else -1
    ranked = [(sign * v, i) for i, v in enumerate(values) if v is not None and math.isfinite(v)]
    return replace(run, kept=max(ranked)[1] + 1) if ranked else run


def drop_times(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of a history without its times, which say nothing of a run that shared them."""
    return {key: found for key, found in row.items() if key not in TIMES}


def needs_times(spec: Spec, budget: Budget) -> bool:
    """Whether an artifact reads the times of its runs.

    An axis that its page only can be switched to does not count, nor do columns where the budget
    says so.
    """
    unread: dict[str, Any] = {"columns": True} if spec.budgets[budget].lanes else {}
    asked = json.dumps(spec.model_dump(mode="json", exclude={"figure": {"axes"}, **unread}))
    words = (*TIMES, *(f"run.{name}" for name in TIMES))
    return spec.figure.axes[0] in TIMES or any(f'"{word}"' in asked for word in words)


def measures_memory(spec: Spec) -> bool:
    """Whether an artifact reads the memory of its runs, each of which then needs a process."""
    return f'"{PEAK_MEMORY}"' in json.dumps(spec.model_dump(mode="json"))


def metric_value(row: Mapping[str, Any], metric: str) -> float | None:
    """The value of a metric in a row of a history or in a summary's last values.

    Infinite if the value was not finite (the file then has null) or has no square, None if the row
    does not have the metric. A count that the row does not have is 0; "calls" and "samples" are
    the sums of all kinds of calls.
    """
    if metric in TOTALS and metric not in row:  # histories of records keep the sum
        counts = [v for key, v in row.items() if key.startswith(f"{metric}/")]
        return float("inf") if None in counts else float(sum(counts))
    if metric not in row:
        return 0.0 if metric.startswith(("calls/", "samples/")) else None
    value = row[metric]
    return float(value) if value is not None and abs(value) <= LARGEST else float("inf")


def kept_value(value: float) -> float:
    """A value of a history with the digits that a record keeps of it: all of a count.

    Who judges histories takes these values: a value that lies on a target, such as an accuracy in
    float32, would otherwise be above it in the run's folder and below it in the record.
    """
    return value if is_count(value) else float(f"{value:.{DIGITS}g}")


def is_count(value: float) -> bool:
    """Whether a value is a whole number that a float holds exactly, which a record keeps whole."""
    return value.is_integer() and abs(value) < 2**53


@dataclass(frozen=True)
class PlannedRow:
    """A row of one variant: its grid points and, once these have ended, the chosen one's runs."""

    variant: Variant
    name: str
    tried: tuple[Run, ...]  # every grid point at the seeds that choose; none if there is one point
    chosen: Point | None  # None: not known yet
    runs: tuple[Run, ...]  # the chosen point at every seed; empty if it is not known yet


@dataclass(frozen=True)
class Plan:
    """An artifact's runs at a budget, as far as they can be known now."""

    artifact: Artifact
    budget: Budget
    rows: tuple[PlannedRow, ...]
    later: int  # how many runs are added once grid points are chosen

    @property
    def runs(self) -> list[Run]:
        """Every run that is known, once, whatever the number of rows that have it."""
        unique = {run.planned.name: run for row in self.rows for run in (*row.tried, *row.runs)}
        return list(unique.values())

    @property
    def missing(self) -> list[Run]:
        """The runs that have not ended."""
        return [run for run in self.runs if run.summary is None]

    @property
    def count(self) -> int:
        """How many runs there are in all, those of points still to be chosen among them."""
        return len(self.runs) + self.later


def seeds(artifact: Artifact, budget: Budget, rows: Iterable[str] = ()) -> range:
    """The seeds that all of some rows are judged at; by default those of every row.

    Where a spec chooses grid points, the seeds that choose are not among them, because the best of
    several values at some seeds flatters the point that had it.
    """
    first = len(choosing_seeds(artifact.spec, budget))
    return range(first, first + artifact.spec.budgets[budget].seeds_of(rows))


def count_runs(artifact: Artifact, book: Book, budget: Budget) -> int:
    """How many runs an artifact takes: grid points at the seeds that choose, the chosen at others.

    A row with a single point tries nothing.
    """
    sizes = Counter((p.variant, p.row) for p in points(artifact.spec, book, budget))
    each = len(choosing_seeds(artifact.spec, budget))
    tried = sum(each * size for size in sizes.values() if size > 1)
    return tried + sum(len(seeds(artifact, budget, [row])) for _, row in sizes)


def make_plan(
    artifact: Artifact,
    book: Book,
    budget: Budget,
    root: Path,
    names: Names,
    recorded: Mapping[str, Run] = MappingProxyType({}),
    read: Callable[[RunFolder], dict[str, Any] | None] = RunFolder.summary,
) -> Plan:
    """The plan with the runs that are there now.

    recorded: runs of a record by their names, which stand for those that are not under `root`.
    read: gives the summary of a run that has ended, or else None. Raises BadSetting if a row's
    settings are refused, or if a row that keeps the best iterate has its runs from another row, and
    what `read` raises.
    """
    spec = artifact.spec
    grids: dict[tuple[Variant, str], list[Point]] = {}
    for point in points(spec, book, budget):
        grids.setdefault((point.variant, point.row), []).append(point)
    searched = {key: own for key, own in grids.items() if len(own) > 1}
    judged = {key: seeds(artifact, budget, [key[1]]) for key in grids}
    pairs = {
        key: [(p, seed) for p in own for seed in choosing_seeds(spec, budget)]
        for key, own in searched.items()
    }
    names.ensure([pair for own in pairs.values() for pair in own], artifact.file)

    def run(point: Point, seed: int) -> Run:
        return keep_best(find_run(point, seed), spec.rows[point.row].keep)

    def find_run(point: Point, seed: int) -> Run:
        name = names.get(point, seed)
        assert name is not None
        folder = RunFolder(root, name)
        summary = read(folder)
        job = PlannedRun(point, seed, name)
        kept = replace(recorded[name], planned=job) if name in recorded else None
        if summary is None:
            return kept or Run(job, folder, None)
        shared = (summary.get("process", {}).get("earlier_runs") or 0) > 0
        if (summary.get("amortised") and needs_times(spec, budget)) or (
            shared and measures_memory(spec)
        ):
            return kept or Run(replace(job, again=True), folder, None)
        if summary.get("amortised"):
            last = drop_times(summary["last"]) | {"amortised_seconds": summary["last"]["seconds"]}
            return Run(job, folder, {**summary, "last": last})
        return Run(job, folder, summary)

    tried = {key: tuple(run(*pair) for pair in own) for key, own in pairs.items()}
    chosen = {
        key: choose_point(tried[key], spec.select) if key in tried else own[0]
        for key, own in grids.items()
    }
    names.ensure([(p, s) for key, p in chosen.items() if p for s in judged[key]], artifact.file)
    rows = []
    for key, p in chosen.items():
        runs = tuple(run(p, seed) for seed in judged[key]) if p else ()
        rows.append(PlannedRow(*key, tried.get(key, ()), p, runs))
    check_kept(rows, artifact)
    later = sum(len(judged[key]) for key, p in chosen.items() if p is None)
    return Plan(artifact, budget, tuple(rows), later)


def check_kept(rows: Iterable[PlannedRow], artifact: Artifact) -> None:
    """Raise BadSetting if two rows share a run and do not show the same iterate of it."""
    shown: dict[str, str] = {}  # run -> the first row that has it
    for row in rows:
        for run in (*row.tried, *row.runs):
            other = shown.setdefault(run.planned.name, row.name)
            if artifact.spec.rows[other].keep != artifact.spec.rows[row.name].keep:
                raise BadSetting(
                    f"{artifact.file}: rows.{row.name}.keep: {other} has the same runs and shows "
                    "another iterate of them: give one of them another run.every"
                )


def choose_point(tried: tuple[Run, ...], select: Select | None) -> Point | None:
    """The grid point whose runs did best; None while one of the runs has not ended.

    If runs of all points failed it is the first point, so that the row shows why.
    """
    if any(run.summary is None for run in tried) or select is None:
        return None
    values = [
        (dict(run.planned.point.chosen), run_status(run), run.last(select.metric)) for run in tried
    ]
    best = best_point(tried_points(values), select)
    own = (run.planned.point for run in tried)
    return next(point for point in own if dict(point.chosen) == best.settings)


def run_status(run: Run) -> str:
    """The status in the run's summary, such as done or diverged; missing if it has not ended."""
    return run.summary["status"] if run.summary is not None else "missing"
