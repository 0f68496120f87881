"""What Weights & Biases gets of a run: its rows, its summary, and what they are shown under."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from bench.runs.better import Best, better_values, keep_best
from bench.runs.logger import About

CALLS = "calls_total"  # of the oracle, whatever they were for
SAMPLES = "samples_total"  # of these calls
AGAINST = {"seconds": "against_seconds/", CALLS: "against_calls/", SAMPLES: "against_samples/"}
ENVIRONMENT = {  # the summary's name of each part of a run's environment
    "version": "version",
    "threads": "threads",
    "device": "device",
    "gpu": "gpu",
    "cpu": "cpu",
    "instruction_set": "cpu_capability",
}
MOST_TAG, MOST_PROJECT = 64, 128  # characters that W&B takes
NOT_IN_PROJECT = r"/\#?%:"
SYNCED = ".synced"  # the end of the name of W&B's own mark of a part that has been sent


def check_project(value: str) -> str:
    """The name of a project, if W&B takes it; W&B itself would refuse it when the run begins."""
    if not 0 < len(value) <= MOST_PROJECT or set(NOT_IN_PROJECT) & set(value):
        raise PydanticCustomError(
            "project",
            f"a project's name has 1 to {MOST_PROJECT} characters, and none of {NOT_IN_PROJECT}; "
            "write logger.project=bilevel-bench, for example",
        )
    return value


def check_tag(value: str) -> str:
    """A tag, if W&B takes it."""
    if not 0 < len(value) <= MOST_TAG:
        raise PydanticCustomError(
            "tag",
            f"a tag has 1 to {MOST_TAG} characters; write logger.tags=[mine], for example",
        )
    return value


Project = Annotated[str, AfterValidator(check_project)]
Tag = Annotated[str, AfterValidator(check_tag)]


@dataclass(frozen=True)
class Shown:
    """What W&B shows a run under; see `bench.runs.loggers.wandb` for the fields."""

    project: str
    entity: str | None
    group: str | None
    tags: tuple[str, ...]
    labels: Mapping[str, str]


def all_parts(folder: Path) -> list[Path]:
    """The folders below a run's own that W&B wrote, one for each process, the newest last."""
    found = [p for pattern in ("run-*", "offline-run-*") for p in (folder / "wandb").glob(pattern)]
    return sorted(found, key=lambda part: part.name.removeprefix("offline-"))


def is_sent(part: Path) -> bool:
    """Whether W&B has all of a part, by the mark that `mark_sent` or `wandb sync` has left."""
    return any(part.glob(f"*{SYNCED}"))


def mark_sent(part: Path) -> None:
    """Leave the mark by which `wandb sync` too knows that W&B has all of a part."""
    names = [file.name for file in part.glob("run-*.wandb")] or ["run.wandb"]
    (part / f"{names[0]}{SYNCED}").touch()


def run_id(about: About) -> str:
    """The id of the W&B run that a run folder belongs to, which W&B's own files there tell.

    It is the run's hash, with something random behind it for a run that is made anew: W&B keeps the
    rows that it has under an id, and would take no others of their steps.
    """
    key = about.name.split("/")[-1]
    if about.anew:
        return f"{key}-{secrets.token_hex(4)}"
    files = [file for part in all_parts(about.folder) for file in part.glob("run-*.wandb")]
    return files[-1].stem.removeprefix("run-") if files else key


def open_wandb(
    library: Any,
    about: About,
    shown: Shown,
    mode: Literal["online", "offline"],
    place: Path,
    **settings: Any,
) -> Any:
    """Open the W&B run that a run folder belongs to; raises W&B's own errors.

    place: the folder in which W&B writes. settings: more settings of W&B.
    """
    task, algorithm, key = about.name.split("/")
    seed, named = about.config["seed"], shown.labels
    label = " ".join(named.values()) or f"{task} {algorithm}"
    marks = [f"{name}={value}"[:MOST_TAG] for name, value in {**named, "seed": seed}.items()]
    return library.init(
        project=shown.project,
        entity=shown.entity,
        id=run_id(about),
        name=f"{label} seed {seed}" if named else f"{task}-{algorithm}-{key}-seed{seed}",
        group=shown.group or task,
        job_type=algorithm,
        tags=list(dict.fromkeys([*shown.tags, *marks])),
        config={**about.config, "label": label},
        dir=str(place),
        mode=mode,
        resume="allow" if mode == "online" else None,
        settings=library.Settings(
            silent=True,
            console="off",
            init_timeout=20,
            reinit="create_new",  # lanes have one run each, open at the same time
            **settings,
        ),
    )


class Mirrored:
    """An open W&B run, which gets the rows and the summary of one of ours."""

    def __init__(self, run: Any, about: About, online: bool):
        """Send those rows of `about` that W&B lacks, of which only a server can have some.

        A server has the first rows of a run, since W&B sends them in their order.
        """
        self.run, self.metric = run, about.metric
        self.ways = better_values(about.name.split("/")[0])
        self.best: dict[str, Best] = {}
        define_axes(run)
        run.summary.update(flat_environment(about.environment))
        known = run.starting_step if online and run.resumed else 0
        for row in about.rows:
            if row["step"] >= known:
                self.log(row)
            else:
                keep_best(self.best, row, self.ways)

    def log(self, row: Mapping[str, Any]) -> None:
        """Send a row."""
        keep_best(self.best, row, self.ways)
        self.run.log(with_axes(row, self.metric), step=row["step"])

    def end(self, summary: Mapping[str, Any]) -> None:
        """Send the summary."""
        reached = {f"best/{metric}": there.value for metric, there in self.best.items()}
        self.run.summary.update({**reached, **flat_summary(summary)})


def define_axes(run: Any) -> None:
    """Let W&B draw the watched metric against seconds, and against all calls of the oracle and
    their samples too."""
    for axis in ("step", "cpu_seconds", *AGAINST):
        run.define_metric(axis)
    for axis, prefix in AGAINST.items():
        run.define_metric(f"{prefix}*", step_metric=axis)


def with_axes(row: Mapping[str, Any], metric: str) -> dict[str, Any]:
    """A row as W&B gets it: with the sums of calls and samples, and the watched metric for each
    axis."""
    found = {key: value for key, value in row.items() if value is not None}
    for total, counts in ((CALLS, "calls/"), (SAMPLES, "samples/")):
        found[total] = sum(value for key, value in row.items() if key.startswith(counts))
    if metric in found:
        found |= {f"{prefix}{metric}": found[metric] for prefix in AGAINST.values()}
    return found


def flat_environment(environment: Mapping[str, Any]) -> dict[str, Any]:
    """What of a run's environment may explain a difference: code, threads, processor and data."""
    found = {name: environment.get(key) for name, key in ENVIRONMENT.items()}
    git, data = environment.get("git") or {}, environment.get("data") or {}
    found |= {"commit": git.get("commit"), "commit_changed": git.get("dirty")}
    found |= {f"data/{file}": checksum for file, checksum in data.items()}
    return {key: value for key, value in found.items() if value is not None}


def flat_summary(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The summary of a run, with its last row, as values that W&B can sort by."""
    # a run that stopped and went on must not keep the reason of its stop there
    found = {"status": summary.get("status"), "reason": summary.get("reason") or ""}
    for part, before in (("last", "last/"), ("references", "reference/")):
        found |= {f"{before}{key}": value for key, value in summary.get(part, {}).items()}
    memory = summary.get("peak_memory_mb") or {}
    found |= {f"peak_memory_mb/{kind}": value for kind, value in memory.items()}
    return {key: value for key, value in found.items() if value is not None}
