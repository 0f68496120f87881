"""What was really run, kept as a small file: results/<paper>/<artifact>/<budget>.json."""

import datetime
from collections.abc import Iterable, Sequence, Sized
from dataclasses import replace
from functools import partial
from operator import not_
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from bench.core.packages import results_of
from bench.core.settings import BadSetting
from bench.reproduce import claims
from bench.reproduce.book import format_path
from bench.reproduce.circumstances import (
    circumstances,
    commit,
    distinct_values,
    hardware,
    join_known,
    stages,
)
from bench.reproduce.claim_kinds import AnyClaim
from bench.reproduce.claim_records import ClaimRecord, Verdicts, with_numbers
from bench.reproduce.claims_at import claim_at_budget, claims_at
from bench.reproduce.histories import (
    History,
    histories_path,
    keep_histories,
    read_histories,
    replace_histories,
)
from bench.reproduce.places import RESULTS, readable
from bench.reproduce.plan import LARGEST, Plan, Run, run_status, seeds
from bench.reproduce.points import Point, ends_by_clock, points
from bench.reproduce.schema import Budget
from bench.reproduce.slopes import RunsOfRows
from bench.reproduce.specs import PEAK_MEMORY, Artifact, Book, Select, Settings, final_metrics
from bench.reproduce.spending import Seconds, spent_seconds
from bench.reproduce.statistics import as_recorded
from bench.reproduce.timing import pace
from bench.reproduce.tries import keep_try
from bench.runs.files import is_number, read_small, write_whole

MOST_BYTES = 20_000_000  # of a record
# the fields of a claim that change nothing else; older records have failing in place of why
WORDING = ("text", "by", "source", "why", "failing")

# the lists of a row that have an entry for each run; older records lack all but the first two
LISTS = (
    "status", "reasons", "undisturbed", "paces", "devices", "commits", "sources", "threads",
    "instructions",
)  # fmt: skip


class FrozenModel(BaseModel):
    """A part of a record: no unknown field, no change later; infinity and nan are kept as text."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class RowRecord(FrozenModel):
    """One row of one variant, with its chosen grid point's runs.

    Lists have one entry for each run, in the order of `seeds`; null stands for a value that is not
    finite or not there. commits: the code's commit. sources: a digest of the code itself.
    instructions: the CPU's instruction set. devices: the GPU, or else the CPU. A run that was
    resumed under other conditions has all of them, such as "AVX2, AVX512". undisturbed: hardly any
    other work was done beside the run. paces: the milliseconds that a fixed piece of work took
    where the run was made. Records that are older than these lists have empty ones.
    keep: which iterate the values are of; None: the last. outdated: these are not the runs that the
    spec asks for today.
    """

    method: str
    chosen: Settings  # the grid point
    tried: int  # the number of grid points
    # what `keep_try` says of each run that tried a grid point; older records have less of it
    tries: list[dict[str, Any]]
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
    undisturbed: list[bool] = []
    paces: list[float | None] = []
    keep: Select | None = Field(default=None, exclude_if=not_)
    outdated: bool = False
    pending: str | None = None

    @model_validator(mode="after")
    def check_lengths(self) -> Self:
        """Raise ValueError unless every list has an entry for each run."""
        n = len(self.seeds)
        lists: dict[str, Sized] = {name: getattr(self, name) for name in ("runs", *LISTS)}
        for name, values in (lists | self.finals).items():
            may_lack = name in LISTS[2:5] or (name in LISTS[5:] and not self.devices)
            if len(values) != n and (values or not may_lack):
                raise ValueError(f"{name}: {len(values)} entries for {n} seeds")
        if not all(seed.bit_length() <= 64 for seed in self.seeds):
            raise ValueError("seeds: one has more than 64 bits")
        for entry in self.tries:
            settings = entry.get("settings")
            if not isinstance(settings, dict) or set(settings) != set(self.tries[0]["settings"]):
                raise ValueError("tries: settings of another kind")
            if not (isinstance(entry.get("status"), str) and is_number(entry.get("value"))):
                raise ValueError("tries: a status or value of another kind")
        return self


class Record(FrozenModel):
    """What was measured of an artifact at a budget.

    deterministic: only in older records, of artifacts that were held to have no randomness.
    complete: every run of the plan has ended. looks: the numbers of seeds with which claims about
    these runs have been judged, in this record and in those that it took runs over from; several if
    seeds were added after verdicts had been seen. Times are sums over all runs, in seconds:
    run_seconds of steps, process_seconds the CPU time of the runs' processes with start-up,
    startup_seconds the part of it that is not of steps; None if a run did not keep it. histories:
    what is kept of every run's history, by the run's name, in a file of its own beside the record;
    older records have none. histories_digest: only in the record's file, the digest of that file.
    """

    artifact: str
    title: str
    source: str
    budget: Budget
    deterministic: bool | None = None
    date: str
    complete: bool
    looks: list[int] = []
    hardware: list[str]
    software: list[dict[str, str]]
    commits: list[str]
    run_seconds: float
    process_seconds: float | None = None
    startup_seconds: float | None = None
    rows: dict[str, dict[str, RowRecord]]  # variant -> name of the row -> its record
    claims: Verdicts
    histories: dict[str, History] = Field(default={}, exclude=True)
    histories_digest: str = Field(default="", exclude_if=not_)

    @property
    def has_verdicts(self) -> bool:
        """Whether a claim was judged, also where its runs were too few to say."""
        found = [one for group in self.claims.values() for one in group.values()]
        return any(one.verdict.word != "not run" for one in found)


def make_record(plan: Plan, book: Book, old: Record | None = None) -> Record:
    """A record of those runs of a plan that have ended.

    old: the record from which some of them come, if any. Its machines count too, and so does the
    share of its times that these runs have among its own.
    """
    artifact, spec = plan.artifact, plan.artifact.spec
    ended = [run for run in plan.runs if run.summary is not None]
    fresh = [run for run in ended if run.recorded is None]
    before = old if old is not None and len(fresh) < len(ended) else None
    spent = (
        Seconds(before.run_seconds, before.process_seconds, before.startup_seconds)
        if before
        else None
    )
    reused = (len(ended) - len(fresh)) / recorded_run_count(before) if before else 0.0
    environments = [stage for run in fresh for stage in stages(run.folder.environment())]
    judged = old.claims if old is not None and shares_runs(plan, old) else {}
    verdicts = with_numbers(judge_claims(plan, book), judged)
    rows: dict[str, dict[str, RowRecord]] = {v: {} for v in spec.variants}
    for row in plan.rows:
        own = row.runs or ()
        made = [circumstances(run) for run in own]
        rows[row.variant][row.name] = RowRecord(
            method=spec.rows[row.name].method,
            keep=spec.rows[row.name].keep,
            chosen=dict(row.chosen.chosen) if row.chosen else {},
            tried=max(1, len({run.planned.point for run in row.tried})),
            tries=[keep_try(run, spec.select.metric) for run in row.tried if spec.select],
            seeds=[run.planned.seed for run in own],
            runs=[run.planned.name for run in own],
            status=[run_status(run) for run in own],
            reasons=[(run.summary or {}).get("reason") for run in own],
            finals=final_values(own, final_metrics(spec)),
            commits=[join_known(c.commit for c in some) for some in made],
            sources=[join_known(c.source for c in some) for some in made],
            threads=[join_known(c.threads for c in some) for some in made],
            instructions=[join_known(c.instructions for c in some) for some in made],
            devices=[join_known(c.device for c in some) for some in made],
            undisturbed=[run.undisturbed for run in own],
            paces=[pace(run) for run in own],
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
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        complete=not plan.missing and plan.later == 0,
        looks=count_looks(plan, old, verdicts),
        hardware=distinct_values(
            [*(before.hardware if before else []), *map(hardware, environments)]
        ),
        software=distinct_values(
            [
                *(before.software if before else []),
                *({"python": e["python"], **e["packages"]} for e in environments),
            ]
        ),
        commits=distinct_values([*(before.commits if before else []), *map(commit, environments)]),
        **spent_seconds(fresh, spent, reused)._asdict(),
        rows=rows,
        claims=verdicts,
        histories=keep_histories(plan.rows, spec),
    )


def recorded_run_count(found: Record) -> int:
    """The number of a record's runs that had ended, and whose times it therefore has.

    A run that several rows share counts once. Records of before tries had names count each.
    """
    rows = [row for group in found.rows.values() for row in group.values()]
    ended: set[object] = set()
    for row in rows:
        ended |= {name for name, word in zip(row.runs, row.status) if word != "missing"}
        tries = [t for t in row.tries if t["status"] != "missing"]
        ended |= {t.get("name", (id(row), k)) for k, t in enumerate(tries)}
    return len(ended)


def count_looks(plan: Plan, old: Record | None, found: Verdicts) -> list[int]:
    """The numbers of seeds with which claims about the plan's runs have been judged so far.

    old: the record that is replaced. Its judgements count if it has one of these runs. found: the
    verdicts now. A claim whose runs are missing has none, and one run decides nothing.
    """
    before = old.looks if old and shares_runs(plan, old) else []
    spec = plan.artifact.spec
    scale = spec.budgets[plan.budget]
    now = {scale.seeds, *scale.more_seeds.values()}
    if plan.missing or plan.later:
        pairs = (pair for group in found.values() for pair in group.items())
        judged = {key for key, entry in pairs if entry.verdict.word != "not run"}
        now = {scale.seeds_of(spec.claims[key].needed_rows) for key in judged}
    return sorted({*before, *(n for n in now if n > 1)})


def shares_runs(plan: Plan, old: Record) -> bool:
    """Whether a record has a run that the plan has too."""
    names = {run.planned.name for run in plan.runs}
    known = [row.runs for group in old.rows.values() for row in group.values()]
    return any(names.intersection(runs) for runs in known)


def judge_claims(plan: Plan, book: Book) -> Verdicts:
    """The verdicts on every claim that is judged at the plan's budget."""
    spec = plan.artifact.spec
    found: Verdicts = {}
    for variant in spec.variants:
        runs = {row.name: row.runs for row in plan.rows if row.variant == variant}
        found[variant] = {}
        for key, claim in claims_at(spec, variant, plan.budget).items():
            parts = parts_at_budget(claim, plan.artifact, plan.budget, book, variant, runs)
            found[variant][key] = ClaimRecord(
                claim=claim.model_dump(mode="json"),
                parts=parts,
                verdict=claims.judge_parts(parts),
            )
    return found


def parts_at_budget(
    claim: AnyClaim,
    artifact: Artifact,
    budget: Budget,
    book: Book,
    variant: str,
    runs: RunsOfRows,
) -> list[claims.ClaimPart]:
    """A claim's parts at a budget, from the seeds that all of its rows have.

    runs: the variant's.
    """
    spec, judged = artifact.spec, seeds(artifact, budget, claim.needed_rows)
    every = [p for p in points(spec, book, budget) if p.variant == variant]
    today = {p.row: p for p in every if p.row in claim.needed_rows}
    of_rows = {
        row: [placed(run, point) for run in runs.get(row, ()) if run.planned.seed in judged]
        for row, point in today.items()
    }
    by_clock = any(map(ends_by_clock, today.values()))
    goals = {row: goal for row, p in today.items() if (goal := goal_of(p)) is not None}
    parts = claims.claim_parts(
        claim_at_budget(claim, spec, budget),
        of_rows,
        len(judged),
        partial(book.metric, spec.task),
        {name: row.published for name, row in spec.rows.items()},
        by_clock,
        goals,
    )
    if by_clock or goals:  # the settings do not fix how many steps a run takes
        return [part.model_copy(update={"counts": False}) for part in parts]
    return parts


def placed(run: Run, point: Point) -> Run:
    """A run with the settings that its row has today, which a recorded one does not name."""
    own = run.planned
    return run if own.point.row else replace(run, planned=replace(own, point=point))


def goal_of(point: Point) -> tuple[str, float] | None:
    """The metric and the value at which a point's runs end; None if they end by their steps."""
    settings = dict(point.settings)
    until = settings.get("run.until")
    return None if until is None else (str(until), float(str(settings.get("run.target", "nan"))))


def record_path(artifact: str, budget: str, results: Path = RESULTS) -> Path:
    """The file of an artifact's record at a budget: a package's own, unless `results` is given."""
    return results_of(artifact, results, RESULTS) / artifact / f"{budget}.json"


def write_record(found: Record, results: Path = RESULTS) -> Path:
    """Write the record's file and that of its histories, and give the record's path.

    A process that is killed meanwhile leaves the old record or the new one, with its own histories.
    """
    file = record_path(found.artifact, found.budget, results)
    file.parent.mkdir(parents=True, exist_ok=True)
    with replace_histories(histories_path(file), found.histories) as digest:
        whole = found.model_copy(update={"histories_digest": digest})
        write_whole(file, whole.model_dump_json(indent=1) + "\n")
    return file


def read_record(
    artifact: str, budget: str, results: Path = RESULTS, with_histories: bool = True
) -> Record | None:
    """The record, or None if there is none; raises BadSetting if it is damaged.

    with_histories: whether to read the histories of its runs, which takes most of the time.
    """
    file = readable(f"{artifact}/{budget}.json", results_of(artifact, results, RESULTS))
    if not file.is_file():
        return None
    try:
        found = Record.model_validate_json(read_small(file, MOST_BYTES))
        histories = {}
        if with_histories:
            histories = read_histories(histories_path(file), found.histories_digest)
        return found.model_copy(update={"histories": histories, "histories_digest": ""})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        why = " ".join(ascii(f"{where}: {first['msg']}")[1:-1].split())
    except ValueError as error:
        why = str(error)
    raise BadSetting(
        f"{format_path(file)}: {why}: write reproduce report {artifact} --budget {budget} --record "
        "--force to make it again"
    )


def final_values(runs: Sequence[Run], read: Iterable[str] = ()) -> dict[str, list[float | None]]:
    """Every metric that was measured -> the last value of each run, to nine digits.

    read: the metrics that the artifact reads; the peak memory is kept only if it is one of them.
    """
    lasts = [run.end for run in runs]
    if PEAK_MEMORY in read:  # the summary has it, but no row of the history
        for run, last in zip(runs, lasts):
            last |= {PEAK_MEMORY: run.last(PEAK_MEMORY)} if run.summary else {}
    names = dict.fromkeys(name for last in lasts for name in last if name != "amortised_seconds")
    return {name: [round_final(last.get(name)) for last in lasts] for name in names}


def round_final(value: float | None) -> float | None:
    """The value to nine significant digits, which is how a record keeps it."""
    return None if value is None or abs(value) > LARGEST else as_recorded(value)
