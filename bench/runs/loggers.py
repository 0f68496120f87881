"""Loggers, which get a run's rows besides its own history; one of them is Weights & Biases."""

import configparser
import netrc
import os
import shlex
import shutil
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

from bench.core.settings import BadSetting
from bench.runs.better import Best, better_values, keep_best

CALLS = "calls_total"  # of the oracle, whatever they were for
SAMPLES = "samples_total"  # of these calls
AGAINST = {"seconds": "against_seconds/", CALLS: "against_calls/", SAMPLES: "against_samples/"}
MOST_TAG = 64  # characters that W&B takes
ENVIRONMENT = {  # the summary's name of each part of a run's environment
    "version": "version",
    "threads": "threads",
    "device": "device",
    "gpu": "gpu",
    "cpu": "cpu",
    "instruction_set": "cpu_capability",
}


class About(NamedTuple):
    """What a logger knows of its run.

    rows: those that are there already, of a run that goes on; they are read from the disk one by
    one. alone: whether the run is made by itself, and its logger may print; a sweep tells of all
    its runs together.
    """

    name: str  # task/algorithm/hash
    config: dict[str, Any]
    folder: Path
    metric: str = ""  # the one that the task watches
    rows: Iterable[Mapping[str, Any]] = ()
    environment: Mapping[str, Any] = MappingProxyType({})
    alone: bool = True


def forget(summary: Mapping[str, Any]) -> None:
    """What a logger that keeps no summary does with it."""


class Logger(NamedTuple):
    """row gets each row of the run; end gets the summary, or at least the status and the reason,
    when the run ends or stops; close, which comes last, gets the exit code."""

    row: Callable[[dict[str, Any]], None]
    close: Callable[[int], None]
    end: Callable[[Mapping[str, Any]], None] = forget


def local(about: About) -> Logger:
    """A logger that does nothing: the rows are in the run folder only."""
    return Logger(lambda row: None, lambda code: None)


def wandb(
    about: About,
    project: str = "bilevel-bench",
    entity: str | None = None,
    mode: Literal["auto", "online", "offline"] = "auto",
    group: str | None = None,
    tags: tuple[str, ...] = (),
    labels: dict[str, str] | None = None,
) -> Logger:
    """Weights & Biases: job type = algorithm, id = the run's hash, group = the task by default.

    labels: what tells the run from others of its group, such as its row and variant in an artifact;
    with the seed they are its name and, as row=BOME, tags. A sweep and `reproduce run` set them.

    Because of the id, a run that goes on is the same W&B run. It sends all rows again that W&B
    lacks, since a killed process loses its last ones.

    mode: "auto" is online if there is a key, in WANDB_API_KEY or from `wandb login`, and the host
    answers within two seconds (W&B itself would wait for minutes), otherwise offline. Files go to
    <run folder>/wandb. If the network fails later, the run goes on: scripts/wandb_sync.sh sends
    from the disk what was not sent. Raises BadSetting where `refuse_local_settings` does.
    """
    import wandb as library

    refuse_local_settings(Path())
    task, algorithm, key = about.name.split("/")
    if mode == "auto":
        host = library.setup().settings.base_url  # that of WANDB_BASE_URL or the user's settings
        online = has_key(host) and answers(host)
        chosen: Literal["online", "offline"] = "online" if online else "offline"
    else:
        chosen = mode
    seed = about.config["seed"]
    named = labels or {}
    plain = f"{task}-{algorithm}-{key}"
    label = " ".join(named.values()) or f"{task} {algorithm}"
    marks = [f"{name}={value}"[:MOST_TAG] for name, value in {**named, "seed": seed}.items()]
    older = unsent_parts(about.folder)

    def begin(mode: Literal["online", "offline"]) -> library.Run:
        return library.init(
            project=project,
            entity=entity,
            id=key,
            name=f"{label} seed {seed}" if named else f"{plain}-seed{seed}",
            group=group or task,
            job_type=algorithm,
            tags=list(dict.fromkeys([*tags, *marks])),
            config={**about.config, "label": label},
            dir=str(about.folder),
            mode=mode,
            resume="allow" if mode == "online" else None,
            settings=library.Settings(
                silent=True,
                console="off",
                init_timeout=20,
                reinit="create_new",  # lanes have one run each, open at the same time
            ),
        )

    try:
        run = begin(chosen)
    except library.Error as error:  # an unknown entity, a wrong key, a host that is silent
        if chosen == "offline":
            raise
        print(f"bench: W&B is not to be had ({error}); offline now", file=sys.stderr)
        chosen = "offline"
        try:
            run = begin(chosen)
        except library.Error as again:  # its service may hold on to the run that it has refused
            print(f"bench: nor offline ({again}); the run folder has all rows", file=sys.stderr)
            return local(about)
    ways = better_values(task)
    best: dict[str, Best] = {}

    def log(row: Mapping[str, Any]) -> None:
        keep_best(best, row, ways)
        run.log(with_axes(row, about.metric), step=row["step"])

    def end(summary: Mapping[str, Any]) -> None:
        reached = {f"best/{metric}": there.value for metric, there in best.items()}
        run.summary.update({**reached, **flat_summary(summary)})

    def finish(code: int) -> None:
        run.finish(exit_code=code)
        if chosen == "offline" and about.alone:
            tell_offline([about.folder])

    define_axes(run)
    run.summary.update(flat_environment(about.environment))
    known = run.starting_step if chosen == "online" and run.resumed else 0
    for row in about.rows:
        if row["step"] >= known:
            log(row)
        else:
            keep_best(best, row, ways)
    for part in older:  # this one has their rows too
        shutil.rmtree(part, ignore_errors=True)
    return mirror(log, finish, end)


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
    found = {key: summary.get(key) for key in ("status", "reason")}
    for part, before in (("last", "last/"), ("references", "reference/")):
        found |= {f"{before}{key}": value for key, value in summary.get(part, {}).items()}
    memory = summary.get("peak_memory_mb") or {}
    found |= {f"peak_memory_mb/{kind}": value for kind, value in memory.items()}
    return {key: value for key, value in found.items() if value is not None}


def unsent_parts(folder: Path) -> list[Path]:
    """The folders below a run's own that W&B wrote offline, and that were not sent since."""
    parts = sorted((folder / "wandb").glob("offline-run-*"))
    return [part for part in parts if not any(part.glob("*.synced"))]


def tell_offline(folders: Sequence[Path]) -> None:
    """Print where the files of runs are that W&B does not have, and what sends them, if any are."""
    there = [folder for folder in folders if unsent_parts(folder)]
    if there:
        where = f"{there[0]}/wandb" if len(there) == 1 else f"{len(there)} run folders, in wandb/"
        root = shlex.quote(str(there[0].parents[2]))
        print(
            f"bench: W&B is offline: its files are in {where}; WANDB_API_KEY=... "
            f"bash scripts/wandb_sync.sh {root} sends them",
            file=sys.stderr,
        )


def set_labels(config: dict[str, Any], labels: Mapping[str, str], group: str | None) -> None:
    """Name a run for W&B within a group, if W&B is its logger; what the settings say wins."""
    node = config.get("logger", {})
    if node.get("_target_") == f"{__name__}.{wandb.__name__}":
        node["labels"] = node["labels"] or dict(labels)
        node["group"] = node["group"] or group


def mirror(
    log: Callable[[dict[str, Any]], None],
    finish: Callable[[int], None],
    end: Callable[[Mapping[str, Any]], None] = forget,
    within: float = 60.0,
) -> Logger:
    """A logger that prints its first failure and goes on.

    within: seconds to wait for `finish`, which sends what is left.
    """
    told: list[str] = []

    def tell(why: object) -> None:
        if not told:
            print(f"bench: W&B: {why}; scripts/wandb_sync.sh sends the rest", file=sys.stderr)
        told.append(str(why))

    def row(values: dict[str, Any]) -> None:
        try:
            log(values)
        except Exception as error:
            tell(error)

    def keep(summary: Mapping[str, Any]) -> None:
        try:
            end(summary)
        except Exception as error:
            tell(error)

    def close(code: int) -> None:
        def finish_now() -> None:
            try:
                finish(code)
            except Exception as error:
                tell(error)

        thread = threading.Thread(
            target=finish_now, daemon=True
        )  # since sending cannot be interrupted
        thread.start()
        thread.join(within)
        if thread.is_alive():
            tell(f"not all was sent within {within:g} s")

    return Logger(row, close, keep)


def refuse_local_settings(place: Path) -> None:
    """Raise BadSetting if W&B's settings in the folder `place`, which may have come with what a
    stranger wrote, name more than an entity and a project: a host would get the user's key."""
    for file in (place / "wandb" / "settings", place / ".wandb" / "settings"):
        found = configparser.ConfigParser(interpolation=None)
        try:
            found.read(file)
            keys = sorted({key for part in found for key in found[part]} - {"entity", "project"})
        except (configparser.Error, UnicodeDecodeError):
            keys = ["what is not understood"]
        if keys:
            raise BadSetting(
                f"logger=wandb: {file} sets {keys[0]}, and this folder may be a stranger's: remove "
                "that line, and write it into ~/.config/wandb/settings if it is yours"
            )


def has_key(url: str) -> bool:
    """Whether W&B has a key for this host: in WANDB_API_KEY, or in ~/.netrc from `wandb login`."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        file = Path(os.environ.get("NETRC") or "~/.netrc").expanduser()
        found = netrc.netrc(file).authenticators(urlsplit(url).netloc)
    except (OSError, RuntimeError, ValueError, netrc.NetrcParseError):
        return False
    return found is not None and bool(found[2])


def answers(url: str, within: float = 2.0) -> bool:
    """Whether the host of `url` accepts a connection; within: seconds, name look-up included."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    reached = threading.Event()

    def probe() -> None:
        try:
            socket.create_connection((parts.hostname or "", port), timeout=within).close()
            reached.set()
        except OSError:
            pass

    thread = threading.Thread(target=probe, daemon=True)  # since a look-up cannot be interrupted
    thread.start()
    thread.join(within)
    return reached.is_set()
