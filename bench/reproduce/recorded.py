"""Runs as a record keeps them: their last values and histories, without folders."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from bench.core.settings import BadSetting
from bench.reproduce.choosing import choosing_seeds
from bench.reproduce.histories import MOST_ROWS, history_rows, needs_histories
from bench.reproduce.plan import (
    Circumstances,
    Plan,
    PlannedRow,
    PlannedRun,
    RecordedPart,
    Run,
)
from bench.reproduce.points import Point, points
from bench.reproduce.records import Record, RowRecord, read_record
from bench.reproduce.run_names import Names
from bench.reproduce.specs import PEAK_MEMORY, Artifact, Book
from bench.reproduce.statements import is_count
from bench.reproduce.tries import try_circumstances
from bench.runs.folder import RunFolder

UNKNOWN = Circumstances(None, None, None, None, None)


def recorded_runs(found: Record, row: RowRecord) -> list[Run]:
    """The runs of a recorded row."""
    return [recorded_run(found, row, i) for i in range(len(row.seeds))]


def recorded_run(found: Record, row: RowRecord, i: int) -> Run:
    """The i-th run of a recorded row."""
    job = PlannedRun(Point("paper", "", (), ()), row.seeds[i], row.runs[i])
    if row.status[i] == "missing":
        return Run(job, RunFolder(Path(), job.name), None)
    last = {name: some[i] for name, some in row.finals.items()}
    # a count is never infinite: where the record has null, the run does not have it
    last = {name: v for name, v in last.items() if v is not None or not is_count(name)}
    peak = {"process": last.pop(PEAK_MEMORY, None) or math.nan}
    alone = bool(row.undisturbed) and row.undisturbed[i]
    summary = {
        "status": row.status[i],
        "reason": row.reasons[i],
        "last": last,
        PEAK_MEMORY: peak,
        "process": {
            "others_cores": 0.0 if alone else None,
            "pace_ms": row.paces[i] if row.paces else None,
        },
    }
    history = history_rows(found.histories.get(job.name, {}))
    part = RecordedPart(history, recorded_circumstances(row, i))
    return Run(job, RunFolder(Path(), job.name), summary, part)


def recorded_circumstances(row: RowRecord, i: int) -> Circumstances:
    """The conditions that a row's i-th run was made in; unknown in older records."""
    if not row.devices:
        return UNKNOWN
    return Circumstances(
        row.commits[i], row.sources[i], row.threads[i], row.instructions[i], row.devices[i]
    )


def recorded_plan(found: Record, artifact: Artifact, book: Book) -> Plan:
    """Those rows of the record that the spec has too, as a plan of which curves can be drawn."""
    rows = []
    today = {(p.variant, p.row): p for p in points(artifact.spec, book, found.budget)}
    for (variant, name), point in today.items():
        row = found.rows.get(variant, {}).get(name)
        if row is not None:
            runs = tuple(
                replace(run, planned=replace(run.planned, point=point))
                for run in recorded_runs(found, row)
            )
            rows.append(PlannedRow(variant, name, (), point, runs))
    return Plan(artifact, found.budget, tuple(rows), 0)


def reusable_runs(
    found: Record | None, artifact: Artifact, book: Book, names: Names
) -> dict[str, Run]:
    """Those recorded runs that a spec asks for today, by their names; none without a record.

    They stand for runs that are not there, so that rows and seeds can be added to a record without
    making the others again. Runs whose histories the record is too old to have are not among them
    where a claim needs those. Raises BadSetting if a row's settings are refused.
    """
    kept: dict[str, Run] = {}
    if found is None:
        return kept
    rows = []  # each point of today's grids with its row of the record
    for point in points(artifact.spec, book, found.budget):
        row = found.rows.get(point.variant, {}).get(point.row)
        if row is not None and row.keep == artifact.spec.rows[point.row].keep:
            rows.append((point, row))
    # Names are asked for together, because each call of `ensure` reads all code and writes a file.
    firsts = [(point, row.seeds[0]) for point, row in rows if row.runs]
    choosing = choosing_seeds(artifact.spec, found.budget)
    tries = [(point, seed) for point, row in rows if row.tries for seed in choosing]
    names.ensure([*firsts, *tries], artifact.file)
    chosen = [
        (point, row)
        for point, row in rows
        if row.runs and names.get(point, row.seeds[0]) == row.runs[0]
    ]
    names.ensure([(point, s) for point, row in chosen for s in row.seeds], artifact.file)
    for (point, row), seed in product(rows, choosing):
        tried = tried_run(row, point, seed, artifact, names)
        if tried is not None:
            kept.setdefault(tried.planned.name, tried)
    for point, row in chosen:
        own = [recorded_run(found, row, i) for i in range(len(row.seeds))]
        if have_histories(own) or not needs_histories(point.row, artifact.spec):
            today = {names.get(point, seed) for seed in row.seeds}
            kept |= {
                run.planned.name: run
                for run in own
                if run.summary is not None and run.planned.name in today
            }
    return kept


def tried_run(
    row: RowRecord, point: Point, seed: int, artifact: Artifact, names: Names
) -> Run | None:
    """The run that tried a grid point at a seed, with the value that chooses, or None.

    It is None if no such run can be reused. The name of the run, which `names` has to know, finds
    it, whatever else the grid had.
    """
    select = artifact.spec.select
    if select is None or not row.tries:
        return None
    name = names.get(point, seed)
    assert name is not None
    found = next((t for t in row.tries if t.get("name") == name), None)
    if found is None or found["status"] == "missing":
        return None
    if found.get("metric", select.metric) != select.metric:
        return None
    value = found.get("value")
    last = {select.metric: value}
    if found.get("step") is not None:
        last["step"] = found["step"]
    summary: dict[str, Any] = {
        "status": found["status"],
        "reason": None,
        "last": last,
        "process": {
            "others_cores": 0.0 if found.get("undisturbed") else None,
            "pace_ms": found.get("pace"),
        },
    }
    if select.metric == PEAK_MEMORY:
        summary |= {PEAK_MEMORY: {"process": value or math.nan}}
    job = PlannedRun(point, seed, name)
    return Run(job, RunFolder(Path(), name), summary, RecordedPart((), try_circumstances(found)))


def have_histories(some: Sequence[Run]) -> bool:
    """Whether every run that has ended has its history, from which a claim can be judged.

    A record keeps at most `MOST_ROWS` rows of a run whose history no claim needed. A recorded
    history of just so many rows may therefore be a part of the run's own.
    """
    return all(
        run.history and not (run.recorded and len(run.history) == MOST_ROWS)
        for run in some
        if run.summary is not None
    )


def read_replaced(artifact: str, budget: str, results: Path, force: bool) -> Record | None:
    """The record that another is to replace, or None; raises BadSetting if it is damaged.

    force: a damaged record counts as none.
    """
    try:
        return read_record(artifact, budget, results)
    except BadSetting:
        if force:
            return None
        raise


def refuse_loss(old: Record | None, new: Record) -> None:
    """Raise BadSetting if a complete record would be replaced by an incomplete one."""
    if old is not None and old.complete and not new.complete:
        raise BadSetting(
            f"--record: {new.artifact} {new.budget}: its record is complete, and not all of its "
            f"runs are there now: write reproduce run {new.artifact} --budget {new.budget} first, "
            f"or reproduce report {new.artifact} --budget {new.budget} --record --force"
        )
