"""Which runs an artifact takes, what they are called, and which of them there are."""

import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from importlib.resources import files
from pathlib import Path
from typing import Any

from bench import record
from bench.reproduce.specs import (
    Artifact,
    Book,
    Budget,
    Point,
    Select,
    Spec,
    Value,
    Variant,
    override,
    points,
)
from bench.settings import BadSetting

TIMES = ("seconds", "cpu_seconds")  # of a run's rows


@dataclass(frozen=True)
class Job:
    """One run of an artifact."""

    point: Point
    seed: int
    name: str  # of the run: task/algorithm/hash
    again: bool = False  # it is there, made in lanes: its times, which are asked for, are shares

    @property
    def overrides(self) -> tuple[str, ...]:
        pairs = [*self.point.settings, *self.point.chosen, ("seed", self.seed)]
        merged: dict[str, Value] = dict(pairs)
        return tuple(override(path, value) for path, value in merged.items())

    @property
    def line(self) -> str:
        return shlex.join(["bench", *self.overrides])


@dataclass(frozen=True)
class Run:
    """What is there of a job."""

    job: Job
    folder: Path
    summary: dict[str, Any] | None  # None: not finished; times of lanes are left out

    @property
    def done(self) -> bool:
        return self.summary is not None and self.summary["status"] == "done"

    @property
    def failed(self) -> bool:
        return self.summary is not None and not self.done

    @cached_property
    def history(self) -> list[dict[str, Any]]:
        rows = record.read_history(self.folder / "history.jsonl")
        amortised = self.summary is not None and self.summary.get("amortised")
        return [untimed(row) for row in rows] if amortised else rows

    def last(self, metric: str) -> float | None:
        """The last measured value; infinite if it was not finite, None if there is none."""
        if self.summary is None:
            return None
        if metric == "peak_memory_mb":  # where the run's tensors were
            peak = self.summary[metric]
            return float(peak.get("gpu", peak["process"]))
        return value(self.summary["last"], metric)


def untimed(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of a run that shared its time with others, without it."""
    return {key: found for key, found in row.items() if key not in TIMES}


def timed(spec: Spec) -> bool:
    """Whether an artifact asks for times: beyond an axis that its page can be switched to."""
    asked = json.dumps(spec.model_dump(mode="json", exclude={"figure": {"axes"}}))
    words = (*TIMES, *(f"run.{name}" for name in TIMES))
    return spec.figure.axes[0] in TIMES or any(f'"{word}"' in asked for word in words)


def value(row: Mapping[str, Any], metric: str) -> float | None:
    """A measured value. "calls" is all oracle calls together; null was not finite."""
    if metric == "calls":
        return float(sum(v for key, v in row.items() if key.startswith("calls/")))
    if metric not in row:
        return 0.0 if metric.startswith(("calls/", "samples/")) else None
    return float("inf") if row[metric] is None else float(row[metric])


class Names:
    """The names of runs. Composing a configuration takes torch and a second, so what is known of
    this very code and these very configs is kept under the runs' root."""

    def __init__(self, root: Path):
        self.file = root / ".reproduce" / "names.json"
        self.fingerprint = fingerprint()
        try:
            kept = json.loads(self.file.read_text())
        except (OSError, ValueError):
            kept = {}
        self.known: dict[str, str] = kept.get(self.fingerprint, {})

    def get(self, point: Point, seed: int) -> str | None:
        return self.known.get(self._key(point, seed))

    def ensure(self, wanted: Iterable[tuple[Point, int]], file: Path) -> None:
        """Compose what is not known; raises BadSetting that names the spec's file."""
        missing = [pair for pair in wanted if self.get(*pair) is None]
        alike: dict[str, list[tuple[Point, int]]] = {}  # by settings, which may hold lists
        for pair in missing:
            alike.setdefault(json.dumps(pair[0].settings), []).append(pair)
        for pairs in alike.values():
            settings = pairs[0][0].settings
            try:
                names = composed_names(settings, [(p.chosen, seed) for p, seed in pairs])
            except BadSetting as error:
                row = pairs[0][0].row
                raise BadSetting(f"{file}: rows.{row}: {error}") from None
            for pair, name in zip(pairs, names):
                self.known[self._key(*pair)] = name
        if missing:
            try:
                self.file.parent.mkdir(parents=True, exist_ok=True)
                record.write_json(self.file, {self.fingerprint: self.known})
            except OSError:
                pass  # a root that cannot be written can still be read

    @staticmethod
    def _key(point: Point, seed: int) -> str:
        return json.dumps([point.settings, point.chosen, seed])


def fingerprint() -> str:
    """Of everything that a run's name depends on: configs, signatures, and the naming itself."""
    here = Path(__file__).parent.parent
    top = [here, here.parent / "tasks", here.parent / "algorithms", Path(str(files("conf")))]
    digest = blake2b(digest_size=8)
    for folder in top:
        for path in sorted([*folder.rglob("*.py"), *folder.rglob("*.yaml")]):
            if not {"reproduce", "paper"} & set(path.relative_to(folder).parts):
                digest.update(path.read_bytes())
    return digest.hexdigest()


def composed_names(
    settings: tuple[tuple[str, Value], ...],
    wanted: list[tuple[tuple[tuple[str, Value], ...], int]],
) -> list[str]:
    """The runs' names: the configuration is composed once, grid and seed are put in after."""
    from hydra import compose, initialize_config_module
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from bench.launch import complete

    names = []
    try:
        with initialize_config_module("conf", version_base="1.3"):
            base = compose("config", [override(*pair) for pair in settings])
        before: tuple[str, ...] | None = None
        for chosen, seed in wanted:
            paths = tuple(path for path, _ in chosen)
            if paths != before:  # else all that was put in is put in anew; a copy takes long
                cfg, before = base.copy(), paths
            for path, value in (*chosen, ("seed", seed)):
                OmegaConf.update(cfg, path, value)
            names.append(
                record.name(
                    complete(OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True))
                )
            )
    except (HydraException, OmegaConfBaseException) as error:
        text = str(error) or str(error.__cause__)
        raise BadSetting(" ".join(text.split())) from None
    return names


@dataclass(frozen=True)
class Row:
    """A row of one variant: its grid points and, once they are measured, the chosen one's runs."""

    variant: Variant
    name: str
    tried: tuple[Run, ...]  # each grid point at the first seed
    chosen: Point | None  # None: not known yet
    runs: tuple[Run, ...]  # of the chosen point, every seed; empty if not known


@dataclass(frozen=True)
class Plan:
    """An artifact at a budget: all its runs, as far as they can be known now."""

    artifact: Artifact
    budget: Budget
    rows: tuple[Row, ...]
    later: int  # runs of points still to be chosen

    @property
    def runs(self) -> list[Run]:
        unique = {run.job.name: run for row in self.rows for run in (*row.tried, *row.runs)}
        return list(unique.values())

    @property
    def missing(self) -> list[Run]:
        return [run for run in self.runs if run.summary is None]

    @property
    def count(self) -> int:
        return len(self.runs) + self.later


def seeds(artifact: Artifact, budget: Budget) -> range:
    return range(1 if artifact.spec.deterministic else artifact.spec.budgets[budget].seeds)


def total(artifact: Artifact, book: Book, budget: Budget) -> int:
    """How many runs there are in all: every grid point once, the chosen ones at every seed."""
    every = {(p.variant, p.row) for p in points(artifact.spec, book, budget)}
    tried = sum(1 for _ in points(artifact.spec, book, budget))
    return tried + len(every) * (len(seeds(artifact, budget)) - 1)


def make(
    artifact: Artifact, book: Book, budget: Budget, root: Path, names: Names, compose: bool = True
) -> Plan | None:
    """The plan as of now; None if a name is not known and is not to be composed."""
    spec = artifact.spec
    every = list(points(spec, book, budget))
    wanted = [(point, seed) for point in every for seed in seeds(artifact, budget)]
    if compose:
        names.ensure(wanted, artifact.file)
    elif any(names.get(*pair) is None for pair in wanted):
        return None

    def run(point: Point, seed: int) -> Run:
        name = names.get(point, seed)
        assert name is not None
        folder = root / name
        file = folder / "summary.json"
        summary = record.read_json(file) if file.is_file() else None
        if summary is None or not summary.get("amortised"):
            return Run(Job(point, seed, name), folder, summary)
        if timed(spec):
            return Run(Job(point, seed, name, again=True), folder, None)
        last = untimed(summary["last"]) | {"amortised_seconds": summary["last"]["seconds"]}
        return Run(Job(point, seed, name), folder, {**summary, "last": last})

    rows, later = [], 0
    for variant, name in dict.fromkeys((p.variant, p.row) for p in every):
        own = [p for p in every if (p.variant, p.row) == (variant, name)]
        first, *others = seeds(artifact, budget)
        tried = tuple(run(p, first) for p in own)
        chosen = pick(tried, spec.select)
        rest = [run(chosen, seed) for seed in others] if chosen else []
        runs = [*(r for r in tried if r.job.point == chosen), *rest]
        later += 0 if chosen else len(others)
        rows.append(Row(variant, name, tried, chosen, tuple(runs)))
    return Plan(artifact, budget, tuple(rows), later)


def pick(tried: tuple[Run, ...], select: Select | None) -> Point | None:
    """The grid point whose run did best; None while one is not finished. If all diverged: the
    first, so that the row shows why."""
    if len(tried) == 1:
        return tried[0].job.point
    if any(run.summary is None for run in tried) or select is None:
        return None
    done = [(run.last(select.metric), run) for run in tried if run.done]
    values = [(found, run) for found, run in done if found is not None]
    if not values:
        return tried[0].job.point
    sign = -1 if select.best == "highest" else 1
    return min(values, key=lambda pair: sign * pair[0])[1].job.point


def status(run: Run) -> str:
    """missing, done, or why it is not: diverged."""
    return run.summary["status"] if run.summary is not None else "missing"
