"""Whether a record still holds: its values against each other, and against runs.

A record keeps the last values of its runs (the finals) and the parts of its claims. The parts are
computed from the finals again, and where run folders are there, their last values are compared
with the finals.
"""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass

from bench.reproduce import claims, records
from bench.reproduce.circumstances import circumstances
from bench.reproduce.claim_kinds import AnyClaim, Below, Slope
from bench.reproduce.claims_at import claim_at_budget, claims_at
from bench.reproduce.plan import TIMES, Plan, PlannedRow, Run, run_status
from bench.reproduce.points import CLOCKS, ends_by_clock
from bench.reproduce.records import Record, RowRecord
from bench.reproduce.rejudging import can_measure, is_same_claim, judged_runs
from bench.reproduce.specs import PEAK_MEMORY, Artifact, Book
from bench.reproduce.statements import is_count, part_sources
from bench.reproduce.statistics import if_finite
from bench.reproduce.timing import reads_times

RELATIVE = 1e-6  # the difference of equal values: sums in another order give other last bits
ROUNDING = 5e-9  # the fraction of a final that is lost, at most, by keeping nine digits of it
OF_HISTORIES = 1e-5  # logarithms and slopes of the seven digits that are kept differ by so much
OF_THE_MACHINE = (*TIMES, "amortised_seconds", PEAK_MEMORY)  # these differ on every machine
LINES = 10  # how many values that differ are shown for an artifact

# outcomes of a value, in the words of the last line that is printed
SAME, DIFFERS = "same", "differs"
HISTORIES = "parts of claims whose histories the record lacks"
LACKING = "parts whose metric the record lacks"
NO_SPREAD = "values of which the seeds do not say what is close"
NOT_COMPARED = (HISTORIES, LACKING, NO_SPREAD)


@dataclass(frozen=True)
class ComparedValue:
    """A value and the recorded one in words, and the outcome.

    outcome: same, differs, or why the two were not compared.
    """

    where: str
    new: str
    old: str
    outcome: str

    @property
    def line(self) -> str:
        """Both values in one line."""
        return f"{self.where}: {self.new}, recorded {self.old}"


def compare_values(
    where: str, new: float | None, old: float | None, within: float
) -> ComparedValue:
    """Compare two values, which are the same if they differ by at most `within`.

    An infinite value is the same only as itself; nan and None are the same.
    """
    a, b = (math.nan if value is None else value for value in (new, old))
    same = a == b or (math.isnan(a) and math.isnan(b))
    if math.isfinite(a) and math.isfinite(b):
        same = same or abs(a - b) <= within
    return ComparedValue(where, format_final(new), format_final(old), SAME if same else DIFFERS)


def format_final(value: float | None) -> str:
    """The value with all nine digits that a record keeps, or in words if it is None."""
    return "not finite or not there" if value is None else f"{value:.9g}"


def compare_claims(
    old: Record, artifact: Artifact, book: Book, variants: Iterable[str]
) -> Iterator[ComparedValue]:
    """Compare the parts of a record's claims with what its own finals give.

    Claims and bounds have to be the spec's. Values are the same if they differ by at most 1e-6 of
    themselves, or by what may have been lost by keeping nine digits of the finals. The values of
    parts that take histories are compared if the record has these; they are logarithms and slopes,
    which may differ by 1e-5.
    """
    for variant in variants:
        rows, runs = old.rows.get(variant, {}), judged_runs(old, artifact, variant)
        kept = old.claims.get(variant, {})
        today = claims_at(artifact.spec, variant, old.budget)
        for key in {**today, **kept}:
            where = f"{artifact.id} {old.budget} {variant} claim {key}"
            entry, claim = kept.get(key), today.get(key)
            if entry is None or claim is None or not is_same_claim(claim, entry.claim):
                yield ComparedValue(where, "another claim by the spec", "as it was", DIFFERS)
                continue
            claim = claim_at_budget(claim, artifact.spec, old.budget)
            made_of = part_sources(claim)
            known = can_measure(claim, runs)
            parts = records.parts_at_budget(
                claim, artifact, old.budget, book, variant, runs if known else {}
            )
            if len(parts) != len(entry.parts):
                yield ComparedValue(where, f"{len(parts)} parts", str(len(entry.parts)), DIFFERS)
            for i, (new, recorded) in enumerate(zip(parts, entry.parts)):
                yield from compare_bounds(f"{where}: {new.what}", new, recorded)
                if not known:
                    yield ComparedValue(where, "", "", HISTORIES)
                    continue
                if not made_of:
                    yield from compare_part_values(
                        f"{where}: {new.what}", new, recorded, OF_HISTORIES
                    )
                    continue
                metric, names = made_of[i]
                some = [rows[name] for name in names if name in rows]
                if any(lacks_metric(row, metric) for row in some):
                    yield ComparedValue(where, "", "", LACKING)
                else:
                    floor = rounding_error(claim, metric, some)
                    yield from compare_part_values(f"{where}: {new.what}", new, recorded, floor)


def compare_bounds(
    where: str, new: claims.ClaimPart, kept: claims.ClaimPart
) -> Iterator[ComparedValue]:
    """The recorded part's bounds, as far as they are not those that the spec asks for."""
    for name in ("low", "high", "extra_se"):
        a, b = getattr(new, name), getattr(kept, name)
        rounded = name == "extra_se" and math.isclose(a, b, rel_tol=RELATIVE)  # of nine digits
        if a != b and not rounded:
            yield ComparedValue(
                f"{where}: {name}", f"{format_final(a)} by the spec", format_final(b), DIFFERS
            )


def compare_part_values(
    where: str,
    new: claims.ClaimPart,
    kept: claims.ClaimPart,
    floor: float,
    origin: str = "the record's finals",
) -> Iterator[ComparedValue]:
    """Compare a part's values, which may differ by `floor` or by 1e-6 of themselves.

    origin: what the new values come from, in words.
    """
    if len(new.values) != len(kept.values):
        yield ComparedValue(where, f"{len(new.values)} values", str(len(kept.values)), DIFFERS)
        return
    for i, (a, b) in enumerate(zip(new.values, kept.values), 1):
        named = f"{where}, value {i}, from {origin}"
        yield compare_values(named, a, b, max(RELATIVE * abs(b), floor))


def lacks_circumstances(row: RowRecord) -> bool:
    """Whether the row is older than the fields that say under which conditions runs were made."""
    return not row.devices


def lacks_metric(row: RowRecord, metric: str) -> bool:
    """Whether the row has no finals of the metric although it has runs that are done.

    Only older rows can lack it: now the finals of all metrics that claims read are kept.
    """
    there = metric in row.finals or is_count(metric)
    return lacks_circumstances(row) and "done" in row.status and not there


def rounding_error(claim: AnyClaim, metric: str, rows: Sequence[RowRecord]) -> float:
    """By how much a part's value can change because its finals are kept to nine digits.

    A part may be a small difference of large finals, so that the fraction ROUNDING of the largest
    final of each row counts. A difference of two logarithms changes by twice that fraction, and a
    slope of logarithms by at most that over the spread of the logarithms.
    """
    if isinstance(claim, Slope):
        spread = statistics.pstdev(map(math.log, claim.points.values()))
        return 2 * ROUNDING / spread if spread else 0.0
    if getattr(claim, "log", False):
        return 2 * ROUNDING
    factor = claim.factor if isinstance(claim, Below) else 1.0
    return ROUNDING * max(1.0, factor) * sum(max(map(abs, done_finals(row, metric)), default=0.0)
                                             for row in rows)  # fmt: skip


def done_finals(row: RowRecord, metric: str) -> list[float]:
    """The metric's finals of the runs that are done, as far as they are finite."""
    pairs = zip(row.finals.get(metric, []), row.status)
    return [value for value, word in pairs if word == "done" and value is not None]


def compare_runs(old: Record, plan: Plan, variants: Iterable[str]) -> Iterator[ComparedValue]:
    """Compare every run that is there with the recorded one of the same row and seed.

    Both have to have ended in the same way and with the same last values, for which
    `allowed_difference` says how close these have to be. Times and peak memory are not compared,
    because they differ on every machine, nor is info/* that no claim is about, which only tells of
    the last step. The values by which grid points were chosen are compared too.
    """
    judged = {name for claim in plan.artifact.spec.claims.values() for name in claim.metrics}
    for row in plan.rows:
        kept = old.rows.get(row.variant, {}).get(row.name)
        if kept is None or row.variant not in variants:
            continue
        for run in runs_to_compare(row, kept):
            if run.planned.seed in kept.seeds:
                i = kept.seeds.index(run.planned.seed)
                where = (
                    f"{old.artifact} {old.budget} {row.variant} {row.name}, seed {kept.seeds[i]}"
                )
                yield from compare_run(where, run, kept, i, judged)
        where = f"{old.artifact} {old.budget} {row.variant} {row.name}"
        for run in row.tried:
            yield from compare_try(where, run, kept)


def compare_ways(
    old: Record, plan: Plan, book: Book, variants: Iterable[str]
) -> Iterator[ComparedValue]:
    """Compare the claims about the way of runs, of which last values do not tell.

    Where all runs of a claim are there, and each was made as the recorded one was, its parts have
    to have the recorded values. Claims that read times, and runs that a clock ends, are left out.
    """
    artifact = plan.artifact
    for variant in variants:
        rows = {row.name: row for row in plan.rows if row.variant == variant}
        for key, claim in claims_at(artifact.spec, variant, old.budget).items():
            entry = old.claims.get(variant, {}).get(key)
            if part_sources(claim) or reads_times(claim) or entry is None:
                continue
            needed = [rows[name] for name in claim.needed_rows if name in rows]
            if len(needed) < len(set(claim.needed_rows)) or not is_same_claim(claim, entry.claim):
                continue
            if not all(
                is_made_alike(row, old.rows.get(variant, {}).get(row.name)) for row in needed
            ):
                continue
            runs = {row.name: row.runs for row in needed}
            parts = records.parts_at_budget(claim, artifact, old.budget, book, variant, runs)
            for new, kept in zip(parts, entry.parts):
                where = f"{artifact.id} {old.budget} {variant} claim {key}: {new.what}"
                yield from compare_part_values(where, new, kept, OF_HISTORIES, "runs' histories")


def is_made_alike(row: PlannedRow, kept: RowRecord | None) -> bool:
    """Whether all recorded runs of a row are there, made anew and under the same conditions."""
    if kept is None or [run.planned.seed for run in row.runs] != kept.seeds or not kept.seeds:
        return False
    return all(
        run.summary is not None
        and run.recorded is None
        and not ends_by_clock(run.planned.point)
        and ran_alike(run, kept, i)
        for i, run in enumerate(row.runs)
    )


def runs_to_compare(row: PlannedRow, kept: RowRecord) -> list[Run]:
    """The runs of a row that have ended, and the one that tried the record's grid point.

    The seed that tries grid points is compared with records that are older than its being apart.
    """
    tried = [run for run in row.tried if dict(run.planned.point.chosen) == kept.chosen]
    return [run for run in (*tried, *row.runs) if run.summary is not None]


def compare_try(where: str, run: Run, kept: RowRecord) -> Iterator[ComparedValue]:
    """Compare the run that tried a grid point with the recorded one, by its name.

    A record does not say on which machine a point was tried, so that the value by which points are
    chosen may differ as much as those of the row's seeds.
    """
    found = next((t for t in kept.tries if t.get("name") == run.planned.name), None)
    if run.summary is None or found is None or found["status"] == "missing":
        return
    named = f"{where}, tried {found['settings']}"
    if found["status"] != run_status(run):
        yield ComparedValue(f"{named}: status", run_status(run), found["status"], DIFFERS)
        return
    metric, old = found.get("metric"), found.get("value")
    if metric is None:
        return
    within = allowed_difference(metric, old, run, kept, alike=False)
    if within is None:
        yield ComparedValue(named, "", "", NO_SPREAD)
    else:
        now = if_finite(run.last(metric))
        yield compare_values(f"{named}: {metric}", now, old, within)


def compare_run(
    where: str, run: Run, kept: RowRecord, i: int, judged: Set[str]
) -> Iterator[ComparedValue]:
    """Compare the status and the last values of a run with those of the i-th recorded one.

    judged: the metrics that claims are about.
    """
    before, now = kept.status[i], run_status(run)
    if before == "missing":
        return
    if before != now:
        yield ComparedValue(f"{where}: status", now, before, DIFFERS)
        return
    alike = ran_alike(run, kept, i)
    finals = {name: found for name, (found,) in records.final_values([run]).items()}
    for name in dict.fromkeys([*kept.finals, *filter(is_count, finals)]):
        if name in OF_THE_MACHINE or (name.startswith("info/") and name not in judged):
            continue
        new, old = finals.get(name), kept.finals[name][i] if name in kept.finals else None
        if is_count(name):
            new, old = new or 0.0, old or 0.0
        within = allowed_difference(name, old, run, kept, alike)
        named = f"{where}: {name}"
        if within is None:
            yield ComparedValue(named, format_final(new), format_final(old), NO_SPREAD)
        else:
            yield compare_values(named, new, old, within)


def ran_alike(run: Run, kept: RowRecord, i: int) -> bool:
    """Whether a run and the i-th recorded one were made under the same conditions throughout.

    The conditions are instruction set, threads and device, and whether the run was made alone or
    as one of several lanes. Such runs are equal but for last bits. A condition that is not known
    is not the same.
    """
    if lacks_circumstances(kept):
        return False
    assert run.summary is not None
    alone = "seconds" in run.summary["last"]  # a lane has none of its own
    recorded_alone = "seconds" in kept.finals and kept.finals["seconds"][i] is not None
    stages = circumstances(run)
    kinds = (
        (kept.instructions, {stage.instructions for stage in stages}),
        (kept.threads, {stage.threads for stage in stages}),
        (kept.devices, {stage.device for stage in stages}),
    )
    same = all({recorded[i]} == found != {None} for recorded, found in kinds)
    return same and alone == recorded_alone


def allowed_difference(
    name: str, old: float | None, run: Run, kept: RowRecord, alike: bool
) -> float | None:
    """By how much a last value may differ from the recorded one; None if nothing can say so.

    If both runs were made alike, counts (step, calls, samples) have to be equal, and other values
    may differ by 1e-6 of themselves. This cannot be asked of a run that the clock ends, which
    takes another number of steps each time. Nor can it be asked of a run that was made under other
    conditions: its roundings are others, and they also change the step at which it diverges or
    reaches its target (`run.until`). The value of such a run may lie as far from the recorded one
    as the largest of the recorded seeds lies from the smallest. Nothing says what is close if
    there are fewer than two of them, or for a run that failed, or for the metric of the target.
    """
    settings = {**dict(run.planned.point.settings), **dict(run.planned.point.chosen)}
    clock = any(settings.get(name) is not None for name in CLOCKS)
    until = settings.get("run.until")
    if is_count(name) and not clock and (alike or not (run.failed or until)):
        return 0.0
    close = RELATIVE * abs(old or 0.0)
    if alike and not clock:
        return close
    seeds = done_finals(kept, name)
    if run.failed or name == until or len(seeds) < 2:
        return None
    return max(close, max(seeds) - min(seeds))


def difference_lines(found: Iterable[ComparedValue]) -> list[str]:
    """One line for each value that differs, up to ten, and how many more there are."""
    every = [one.line for one in found if one.outcome == DIFFERS]
    more = len(every) - LINES
    return every[:LINES] + ([f"... and {more} more"] if more > 0 else [])


def describe_partial_runs(plan: Plan) -> list[str]:
    """The artifact and how many of its runs are there; an empty list if all are or none is."""
    ended = len(plan.runs) - len(plan.missing)
    if ended in (0, plan.count):
        return []
    return [f"{plan.artifact.id} {plan.budget} ({ended} of {plan.count})"]


def summarise(outcomes: Counter[str], partly: Sequence[str]) -> str:
    """The last line that is printed: how many values were compared, and which were not.

    partly: the artifacts of which only some runs are there, from `describe_partial_runs`.
    """
    differ = outcomes[DIFFERS]
    said = [f"{outcomes[SAME] + differ} values compared, differing: {differ or 'none'}"]
    left = [f"{word} ({outcomes[word]})" for word in NOT_COMPARED if outcomes[word]]
    if left:
        said.append(f"not compared: {', '.join(left)}")
    if partly:
        some = "1 artifact" if len(partly) == 1 else f"{len(partly)} artifacts"
        said.append(f"{some} with part of their runs only: {', '.join(partly)}")
    return "; ".join(said)
