"""What was really run, as a small file: results/<paper>/<artifact>/<budget>.json."""

import datetime
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from bench.core.settings import BadSetting
from bench.reproduce import claims
from bench.reproduce.book import shown
from bench.reproduce.circumstances import (
    circumstances,
    commit,
    device,
    hardware,
    instructions,
    joined,
    source,
    threads,
    unique,
)
from bench.reproduce.plan import Plan, Run, seeds, status
from bench.reproduce.specs import (
    AT_THE_END,
    AnyClaim,
    Artifact,
    Book,
    Budget,
    Settings,
    Slope,
    Spec,
    asked,
)
from bench.runs.files import write_whole

RESULTS = Path("results")


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class RowRecord(Frozen):
    """One row of one variant. Lists are in the order of `seeds`; null: not finite or not there.

    Of each run: commits, the code's commit; sources, a digest of the code itself; threads;
    instructions, the CPU's instruction set; devices, the GPU or else the CPU. A run that went on
    under other conditions has all that there were, such as "AVX2, AVX512". Records from before
    these were kept have empty lists.
    """

    method: str
    chosen: Settings  # the grid point
    tried: int  # grid points
    tries: list[dict[str, Any]]  # each grid point: settings, status, value of the select metric
    seeds: list[int]
    runs: list[str]
    status: list[str]
    reasons: list[str | None]
    finals: dict[str, list[float | None]]
    commits: list[str | None] = []
    sources: list[str | None] = []
    threads: list[str | None] = []
    instructions: list[str | None] = []
    devices: list[str | None] = []
    pending: str | None = None


class ClaimRecord(Frozen):
    claim: dict[str, Any]  # as the spec had it
    parts: list[claims.Part]
    verdict: claims.Verdict


class Record(Frozen):
    """An artifact at a budget as measured. complete: every run of the plan has ended."""

    artifact: str
    title: str
    source: str
    budget: Budget
    deterministic: bool
    date: str
    complete: bool
    hardware: list[str]
    software: list[dict[str, str]]
    commits: list[str]
    run_seconds: float  # steps of all runs together
    process_seconds: float | None = None  # CPU time of all runs' processes, start-up included
    startup_seconds: float | None = None  # the part of it that is none of the steps'
    rows: dict[str, dict[str, RowRecord]]  # variant -> row -> ...
    claims: dict[str, dict[str, ClaimRecord]]  # variant -> claim -> ...


def measure(plan: Plan, book: Book) -> Record:
    """A record of what there is of the plan's runs."""
    artifact, spec = plan.artifact, plan.artifact.spec
    ended = [run for run in plan.runs if run.summary is not None]
    environments = [stage for run in ended for stage in circumstances(run)]
    rows: dict[str, dict[str, RowRecord]] = {v: {} for v in spec.variants}
    for row in plan.rows:
        own = row.runs or ()
        made = [circumstances(run) for run in own]
        rows[row.variant][row.name] = RowRecord(
            method=spec.rows[row.name].method,
            chosen=dict(row.chosen.chosen) if row.chosen else {},
            tried=len(row.tried),
            tries=[
                {
                    "settings": dict(run.job.point.chosen),
                    "status": status(run),
                    "value": (run.summary or {}).get("last", {}).get(spec.select.metric),
                }
                for run in row.tried
                if spec.select and len(row.tried) > 1
            ],
            seeds=[run.job.seed for run in own],
            runs=[run.job.name for run in own],
            status=[status(run) for run in own],
            reasons=[(run.summary or {}).get("reason") for run in own],
            finals=finals(own, asked(spec)),
            commits=[joined(map(commit, some)) for some in made],
            sources=[joined(map(source, some)) for some in made],
            threads=[joined(map(threads, some)) for some in made],
            instructions=[joined(map(instructions, some)) for some in made],
            devices=[joined(map(device, some)) for some in made],
        )
    for variant in spec.variants:
        for name, entry in spec.rows.items():
            if variant in entry.only and entry.pending:
                rows[variant][name] = RowRecord(
                    method=entry.method, chosen={}, tried=0, tries=[], seeds=[], runs=[],
                    status=[], reasons=[], finals={}, pending=entry.pending,
                )  # fmt: skip
        rows[variant] = {n: rows[variant][n] for n in spec.rows if n in rows[variant]}
    return Record(
        artifact=artifact.id,
        title=spec.title,
        source=spec.source,
        budget=plan.budget,
        deterministic=spec.deterministic,
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        complete=not plan.missing and plan.later == 0,
        hardware=unique(hardware(e) for e in environments),
        software=unique({"python": e["python"], **e["packages"]} for e in environments),
        commits=unique(commit(e) for e in environments),
        run_seconds=round(sum(map(seconds_of, ended)), 2),
        process_seconds=summed(map(process_seconds, ended)),
        startup_seconds=summed(map(startup_seconds, ended)),
        rows=rows,
        claims=judge(plan, book),
    )


def seconds_of(run: Run) -> float:
    """What its steps took, alone or as its share."""
    last = run.summary["last"] if run.summary else {}
    return float(last.get("seconds", last.get("amortised_seconds", 0.0)))


def process_seconds(run: Run) -> float | None:
    """The CPU time of the run's process; None if the run did not keep it."""
    found: float | None = (run.summary or {}).get("process", {}).get("cpu_seconds")
    return found


def startup_seconds(run: Run) -> float | None:
    """The part of its process's CPU time that its steps did not take: imports, building the task,
    measuring, files. None if the run did not keep it, or shared its steps' time with others."""
    whole, steps = process_seconds(run), (run.summary or {}).get("last", {}).get("cpu_seconds")
    return None if whole is None or steps is None else whole - steps


def summed(values: Iterable[float | None]) -> float | None:
    """The sum; None if one of them is not known."""
    found = list(values)
    return None if None in found else round(sum(filter(None, found)), 2)


def judge(plan: Plan, book: Book) -> dict[str, dict[str, ClaimRecord]]:
    """Every claim that is judged at this budget, for each variant."""
    spec = plan.artifact.spec
    found: dict[str, dict[str, ClaimRecord]] = {}
    for variant in spec.variants:
        runs = {row.name: row.runs for row in plan.rows if row.variant == variant}
        found[variant] = {}
        for key, claim in spec.claims.items():
            if variant not in claim.variants or plan.budget not in claim.budgets:
                continue
            parts = parts_of(claim, plan.artifact, plan.budget, book, runs)
            found[variant][key] = ClaimRecord(
                claim=claim.model_dump(mode="json"),
                parts=parts,
                verdict=claims.judged(parts, spec.deterministic),
            )
    return found


def parts_of(
    claim: AnyClaim, artifact: Artifact, budget: Budget, book: Book, runs: claims.Runs
) -> list[claims.Part]:
    """A claim's parts at a budget, from one variant's runs."""
    spec = artifact.spec
    return claims.measured(
        at_budget(claim, spec, budget),
        runs,
        len(seeds(artifact, budget)),
        partial(book.metric, spec.task),
        {name: row.published for name, row in spec.rows.items()},
    )


def at_budget(claim: AnyClaim, spec: Spec, budget: Budget) -> AnyClaim:
    """A slope over the rows that this budget has; any other claim as it is."""
    if not isinstance(claim, Slope):
        return claim
    points = {row: at for row, at in claim.points.items() if budget in spec.rows[row].at}
    over = {row: other for row, other in claim.over.items() if row in points}
    return claim.model_copy(update={"points": points, "over": over})


def again(old: Record, spec: Spec) -> dict[str, dict[str, ClaimRecord]]:
    """The record's own values judged anew; raises BadSetting if the spec's claims have changed."""
    found: dict[str, dict[str, ClaimRecord]] = {}
    for variant in spec.variants:
        asked = {
            key: claim
            for key, claim in spec.claims.items()
            if variant in claim.variants and old.budget in claim.budgets
        }
        dumped = {key: claim.model_dump(mode="json") for key, claim in asked.items()}
        kept = old.claims.get(variant, {})
        for key in {**asked, **kept}:
            if (
                key not in kept
                or key not in asked
                or terms(defaults(asked[key]) | kept[key].claim) != terms(dumped[key])
            ):
                raise BadSetting(
                    f"{shown(path(old.artifact, old.budget))}: claims.{key} ({variant}) is not the "
                    f"spec's: write reproduce report {old.artifact} --budget {old.budget} --record"
                )
        found[variant] = {
            key: ClaimRecord(  # worded as the spec has it now
                claim=dumped[key],
                parts=entry.parts,
                verdict=claims.judged(entry.parts, old.deterministic),
            )
            for key, entry in kept.items()
        }
    return found


def terms(claim: Mapping[str, Any]) -> dict[str, Any]:
    """What is judged: not how it is worded."""
    return {key: value for key, value in claim.items() if key not in ("text", "failing")}


def defaults(claim: AnyClaim) -> dict[str, Any]:
    """What a record from before a field was there says without it."""
    fields = type(claim).model_fields.items()
    return {
        name: field.get_default(call_default_factory=True)
        for name, field in fields
        if not field.is_required()
    }


def path(artifact: str, budget: str, results: Path = RESULTS) -> Path:
    return results / artifact / f"{budget}.json"


def write(found: Record, results: Path = RESULTS) -> Path:
    file = path(found.artifact, found.budget, results)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, found.model_dump_json(indent=1) + "\n")
    return file


def read(artifact: str, budget: str, results: Path = RESULTS) -> Record | None:
    """The record, or None if there is none; raises BadSetting if it is damaged."""
    file = path(artifact, budget, results)
    if not file.is_file():
        return None
    try:
        return Record.model_validate_json(file.read_text())
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise BadSetting(
            f"{shown(file)}: {where}: {first['msg']}: write reproduce report {artifact} "
            f"--budget {budget} --record to make it again"
        ) from None


def verdicts(found: Mapping[str, Mapping[str, ClaimRecord]]) -> Counter[str]:
    return Counter(e.verdict.word for group in found.values() for e in group.values())


def tally(found: Record | None) -> str:
    """How the claims stand, in words."""
    if found is None:
        return "-"
    counts = verdicts(found.claims)
    order: tuple[claims.Word, ...] = ("holds", "fails", "not enough runs", "not run")
    return ", ".join(f"{counts[word]} {word}" for word in order if counts[word]) or "none judged"


def cost(artifact: Artifact, budget: Budget, found: Record | None, startup: float) -> str:
    """CPU time with start-up: measured by an earlier run of it, or of steps and a start-up for each
    run, or else the spec's estimate.

    startup: CPU seconds that a run costs beside its steps, from `startup_of`.
    """
    if found is None or not found.complete:
        return f"~ {duration(60 * artifact.spec.budgets[budget].minutes)}"
    if found.process_seconds is not None:
        return f"{duration(found.process_seconds)} (measured)"
    return f"~ {duration(found.run_seconds + startup * runs_of(found))}"


def runs_of(found: Record) -> int:
    """How many runs a record is of."""
    rows = [row for group in found.rows.values() for row in group.values()]
    grids = sum(row.tried - bool(row.runs) for row in rows)  # the chosen point is among the runs
    return grids + sum(len(row.runs) for row in rows)


def startup_of(found: Iterable[Record]) -> float:
    """What a run costs beside its steps, in CPU seconds: the mean over the records that say."""
    known = [r for r in found if r.startup_seconds is not None]
    spent = sum(r.startup_seconds or 0.0 for r in known)
    return spent / max(1, sum(map(runs_of, known)))


def duration(seconds: float) -> str:
    for unit, size in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


def finals(runs: Sequence[Run], read: Iterable[str] = ()) -> dict[str, list[float | None]]:
    """Every measured name -> the last value of each run, and the peak memory where it is read."""
    lasts = [dict(run.summary["last"]) if run.summary else {} for run in runs]
    if AT_THE_END in read:  # in the summary, but in no row
        for run, last in zip(runs, lasts):
            last |= {AT_THE_END: run.last(AT_THE_END)} if run.summary else {}
    names = dict.fromkeys(name for last in lasts for name in last if name != "amortised_seconds")
    return {name: [rounded(last.get(name)) for last in lasts] for name in names}


def rounded(value: float | None) -> float | None:
    """To nine digits."""
    return None if value is None else float(f"{value:.9g}")
