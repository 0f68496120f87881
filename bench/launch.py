"""From a composed configuration to a finished run folder."""

import ctypes
import os
import re
import resource
import shutil
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import torch
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import Field
from threadpoolctl import threadpool_limits

from bench import checkpoint, lock, record, stop
from bench.algorithm import Algorithm
from bench.codes import DONE, FAILED, INTERRUPTED, PUT_OFF
from bench.loggers import About, Logger
from bench.run import Diverged, Standing, first, row
from bench.run import run as steps_of
from bench.screen import Screen, show, told
from bench.settings import (
    BadSetting,
    Count,
    Finite,
    NonNegative,
    Positive,
    Seed,
    build,
    checked,
    unknown,
    validated,
)
from bench.symbols import At, NoGraph
from bench.task import Context, Task
from bench.view import Heatmap, Histogram

if TYPE_CHECKING:
    from bench.traced import Form

RUN: dict[str, Any] = {
    "steps": (Count, ...),
    "every": (Count, ...),
    "seconds": (Positive | None, None),
    "cpu_seconds": (Positive | None, None),
    "until": (str | None, None),
    "target": (Finite | None, None),
    "device": (Literal["auto", "cpu", "cuda"], "auto"),
    "dtype": (Literal["float32", "float64"], "float32"),
    "threads": (Count, 2),
    "compile": (bool, False),
    "lanes_gb": (Positive, 4.0),
    "checkpoint": (NonNegative, 10.0),
    "force": (bool, False),
    "retry_failed": (bool, False),
    "root": (Annotated[str, Field(min_length=1)], "runs"),
}
DATA: dict[str, Any] = {
    "root": (Annotated[str, Field(min_length=1)], ...),
    "download": (bool, False),
}
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
KEPT = {M_TRIM_THRESHOLD: 2**28, M_MMAP_THRESHOLD: 2**25}  # bytes: in all, and of a tensor
# In the order in which a run that starts again removes them: killed between two, it has not ended
FILES = (
    "summary.json",
    "status.json",
    "checkpoint.pt",
    "view.json",
    "history.jsonl",
    "environment.json",
    "config.yaml",
)


def launch(cfg: DictConfig) -> int:
    """Run, continue or show what `cfg` names; the exit code. Raises BadSetting before any work."""
    config = resolved(cfg)
    if config["vectorize"]:
        raise BadSetting(f"vectorize={config['vectorize']}: for sweeps: write bench -m ...")
    return perform(config)


def resolved(cfg: DictConfig) -> dict[str, Any]:
    """A composed configuration as `perform` wants it; raises BadSetting."""
    try:
        return complete(OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True))
    except (OmegaConfBaseException, RecursionError) as error:
        raise BadSetting(" ".join(str(error).split())) from None


def place(config: dict[str, Any]) -> tuple[str, Path]:
    """A run's name and folder; raises BadSetting if something there is a link to elsewhere."""
    name, root = record.name(config), config["run"]["root"]
    try:
        folder = Path(root).expanduser() / name
        files = (folder / file for file in (*FILES, lock.NAME))
        links = [p for p in (*folder.parents[:2], folder, *files) if p.is_symlink()]
    except (RuntimeError, ValueError, OSError) as error:  # no such home, a null byte, too long
        why = getattr(error, "strerror", None) or error
        raise BadSetting(
            f"run.root={root!r}: {why}; write run.root=... for another place"
        ) from None
    if links:
        raise BadSetting(
            f"run.root: {links[0]} is a link, and runs are written below run.root only: remove it, "
            "or write run.root=... for another place"
        )
    return name, folder


def perform(config: dict[str, Any], brief: bool = False) -> int:
    """Run, continue or show what a complete configuration names; the exit code.

    brief: told in one line. Raises BadSetting before any work, stop.Preempted when all is saved.
    A run that raises leaves status.json with the traceback in its folder.
    """
    name, folder = place(config)
    before = ended_before(config, folder)
    if before is not None:
        return before(brief)
    with stop.heeded(), lock.held(folder):
        before = ended_before(config, folder)  # another process may have just ended it
        if before is not None:
            return before(brief)
        try:
            return begin(config, name, folder, brief)
        except (BadSetting, OSError):
            raise  # of a setting or the machine: nothing that the run itself did
        except Exception as error:
            note(folder, "failed", reason_of(error), traceback=traceback.format_exc())
            raise


def ended_before(config: dict[str, Any], folder: Path) -> Callable[[bool], int] | None:
    """What to say of a run that has ended before and is not to go on; None if it is to."""
    if config["run"]["force"]:
        return None
    if (folder / "summary.json").is_file():
        summary = record.read_json(folder / "summary.json", {"status", "reason", "last"})
        if summary["status"] != "done" and config["run"]["retry_failed"]:
            return None

        def finished(brief: bool) -> int:
            if not brief:
                remark = "nothing to do: this run is finished (run.force=true does it again)"
                show(summary, folder, remark)
            return exit_code(summary)

        return finished
    status = status_of(folder)
    if status.get("status") != "failed" or config["run"]["retry_failed"]:
        return None

    def failed(brief: bool) -> int:
        again = f"{folder} failed: {status['reason']}; run.retry_failed=true tries it again"
        print(f"bench: {again}", file=sys.stderr)
        return FAILED

    return failed


def status_of(folder: Path) -> dict[str, Any]:
    """status.json: what became of a run that has not ended; empty if there is none."""
    try:
        found = record.read_json(folder / "status.json")
    except (BadSetting, OSError):
        return {}
    return found if {"status", "reason"} <= set(found) else {}


def note(folder: Path, status: str, reason: str, **more: Any) -> None:
    """status.json; of a disk that takes nothing more there is nothing to say."""
    about = {"status": status, "reason": reason, "host": socket.gethostname(), **more}
    with suppress(OSError):
        record.write_json(folder / "status.json", about)


def reason_of(error: Exception) -> str:
    """One line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")


class Opened(NamedTuple):
    """A run whose folder is ready, about to take steps."""

    config: dict[str, Any]
    name: str
    folder: Path
    task: Task
    algorithm: Algorithm
    start: Standing  # before the first step, or at the checkpoint
    fresh: bool  # no step is taken yet
    until: tuple[str, float] | None
    device: torch.device
    compile: bool


def begin(config: dict[str, Any], name: str, folder: Path, brief: bool) -> int:
    """Run or continue in a folder that is one's own; the exit code."""
    old = beginnings(config, folder)
    device = settled(config, folder, old)
    run = built(config, name, folder, device, old)
    if run.compile and run.fresh:
        tried(run.task, run.algorithm, config["seed"], run.start, "run.compile=true", "false")
    made_ready(run, old)
    return carry_out(run, brief)


def beginnings(config: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The environment.json of a run that is to go on; empty if it starts."""
    if config["run"]["force"] or not (folder / "checkpoint.pt").is_file():
        return {}
    old: dict[str, Any] = record.read_json(
        folder / "environment.json", {"device", "threads", "data"}
    )
    return old


def settled(config: dict[str, Any], folder: Path, old: dict[str, Any]) -> torch.device:
    """The device; this process is set up as the run asks for, or as it was begun."""
    device = chosen_device(config["run"]["device"])
    if old and old["device"] != device.type:
        raise BadSetting(
            f"run.device={config['run']['device']}: {folder} was begun on {old['device']}: "
            f"write run.device={old['device']}, or run.force=true to start again"
        )
    # another number of threads would change the last bits
    settle(device, int(old["threads"]) if old else config["run"]["threads"])
    return device


def context_of(config: dict[str, Any], device: torch.device) -> Context:
    return Context(
        seed=config["seed"],
        device=device,
        dtype=getattr(torch, config["run"]["dtype"]),
        data_root=Path(config["data"]["root"]).expanduser(),
        download=config["data"]["download"],
    )


def built(
    config: dict[str, Any],
    name: str,
    folder: Path,
    device: torch.device,
    old: dict[str, Any],
    task: Task | None = None,
) -> Opened:
    """The run at its start or checkpoint; nothing is written. task: where it is there already."""
    try:
        task = task or build(config["task"], context_of(config, device))
        algorithm: Algorithm = build(config["algorithm"])
        start = first(task, algorithm, config["seed"])
    except (MemoryError, OverflowError, RuntimeError) as error:
        if not isinstance(error, RuntimeError) or re.search("memory|overflow", str(error)):
            raise BadSetting(f"task, algorithm: too large for this machine: {error}") from None
        raise
    until = goal(config["run"], task, start)
    compiles = config["run"]["compile"]
    if old:
        compiles = bool(old.get("compile", False))  # the other way would change the last bits
        same_data(folder, old, task)
        start = checkpoint.load(folder / "checkpoint.pt", name, start)
    return Opened(config, name, folder, task, algorithm, start, not old, until, device, compiles)


def made_ready(run: Opened, old: dict[str, Any], lanes: Sequence[str] = ()) -> None:
    """The run's folder, up to its first row. lanes: the names of the runs it goes side by side
    with."""
    fresh, every = run.config["run"]["force"], run.config["run"]["every"]
    if not fresh:  # refuses what it cannot mend, before anything is changed
        record.keep_rows(run.folder / "history.jsonl", run.start.step if old else -1, every)
    open_folder(run.folder, fresh)
    environment = record.environment(run.device, torch.get_num_threads(), run.task.sources)
    environment |= {"compile": run.compile, "lanes": list(lanes)}
    record.write_yaml(run.folder / "config.yaml", run.config)
    if old:
        before = {"compile": False, "lanes": [], **old}  # in no file before they were there
        environment = continued(run.folder, before, environment, run.start.step)
    record.write_json(run.folder / "environment.json", environment)


def tried(
    task: Task, algorithm: Algorithm, seed: int, start: Standing, setting: str, instead: str
) -> "Form":
    """The first step as a graph; raises BadSetting if there is none."""
    from bench.traced import record as recorded  # slow to import

    with torch.no_grad():
        try:
            return recorded(task, algorithm, seed, start.state, At(start.step))
        except NoGraph as error:
            key = setting.partition("=")[0]
            raise BadSetting(
                f"{setting}: this algorithm's steps are no graph: {error}; write {key}={instead}"
            ) from None


def same_data(folder: Path, old: dict[str, Any], task: Task) -> None:
    """Raises BadSetting if a data file is not the one that the run was begun with."""
    for file, checksum in old["data"].items():
        now = task.sources.get(file)
        if now != checksum:
            raise BadSetting(
                f"data.root: {file} has changed since {folder} was begun (SHA-256 "
                f"{str(checksum)[:12]}..., now {str(now)[:12]}...): restore it, or write "
                "run.force=true to start again"
            )


def goal(settings: dict[str, Any], task: Task, start: Standing) -> tuple[str, float] | None:
    """The metric and value at which the run ends early; raises BadSetting."""
    until, target = settings["until"], settings["target"]
    if (until is None) != (target is None):
        raise BadSetting(f"run.until={until} run.target={target}: write both, or neither")
    if until is None:
        return None
    with torch.no_grad():
        there = row(task, start)
    if until not in there:
        raise unknown("run.until", until, there, until)
    return until, target


def complete(config: Any) -> dict[str, Any]:
    """Every setting there is, typed and with its default; raises BadSetting."""
    parts = {"seed", "run", "data", "task", "algorithm", "logger"}
    top = dict.fromkeys(sorted(parts), (Any, ...))
    given = validated({**top, "seed": (Seed, ...), "vectorize": (tuple[str, ...], ())}, config, "")
    return {
        "seed": config["seed"],
        "vectorize": list(given["vectorize"]),
        "run": validated(RUN, config["run"], "run"),
        "data": validated(DATA, config["data"], "data"),
        "task": checked(config["task"], "task", Task, given=("context",)),
        "algorithm": checked(config["algorithm"], "algorithm", Algorithm),
        "logger": checked(config["logger"], "logger", Logger, given=("about",)),
    }


def chosen_device(wanted: str) -> torch.device:
    """cpu, or cuda where there is one; raises BadSetting."""
    there = torch.cuda.is_available()
    if wanted == "cuda" and not there:
        raise BadSetting("run.device=cuda: torch finds no CUDA device here; write auto or cpu")
    return torch.device("cuda" if there and wanted != "cpu" else "cpu")


def settle(device: torch.device, threads: int) -> None:
    """What makes two runs of the same configuration the same to the last bit; and fast ones."""
    torch.set_num_threads(threads)
    threadpool_limits(threads)  # numpy has threads of its own
    keep_freed_memory()
    if device.type == "cuda":
        torch.use_deterministic_algorithms(True, warn_only=True)


def keep_freed_memory() -> None:
    """Let glibc, where it is the allocator, keep what is freed for the next allocation: handed back
    to the system, each new tensor of some MB is faulted in anew, which cost SF2OBO on
    20 Newsgroups a quarter of its time (mallopt(3)). Larger tensors, which would leave holes, are
    still handed back."""
    if sys.platform == "linux" and (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)):
        for parameter, size in KEPT.items():
            mallopt(parameter, size)


def open_folder(folder: Path, fresh: bool) -> None:
    """Without what a kill left half written; emptied of an earlier result if that is to go."""
    gone = FILES if fresh else FILES[:2]
    for file in (*gone, *(f"{file}.new" for file in FILES)):
        (folder / file).unlink(missing_ok=True)
    if fresh:
        shutil.rmtree(folder / "wandb", ignore_errors=True)


def continued(
    folder: Path, old: dict[str, Any], environment: dict[str, Any], step: int
) -> dict[str, Any]:
    """The first environment, with what has changed since then added to its list."""
    first = {key: value for key, value in old.items() if key != "continued"}
    changed = record.differences(first, environment)
    if changed:
        names = ", ".join(changed)
        print(f"bench: {folder} goes on under another {names}; noted there", file=sys.stderr)
    return {**first, "continued": [*old.get("continued", []), {"step": step, "changed": changed}]}


class Recording:
    """The files of a run as it goes."""

    def __init__(self, run: Opened, alone: bool = True):
        self.run, self.settings = run, run.config["run"]
        self.history = History(run.folder / "history.jsonl")
        self.logger: Logger = build(run.config["logger"], About(run.name, run.config, run.folder))
        done = 0 if run.fresh else run.start.step
        metric = run.task.metric
        self.screen = Screen(run.name, self.settings["steps"], done, metric) if alone else None
        self.last: dict[str, Any] = {}
        self.standing = None if run.fresh else run.start
        self.saved = time.monotonic()
        self.compile_seconds = 0.0

    def measured(self, values: dict[str, Any]) -> None:
        self.last = values
        self.history.add(values)
        self.logger.row(values)
        if self.screen:
            self.screen.measured(values)

    def save(self, s: Standing | None) -> None:
        """Unless it is lost already: the last good checkpoint stays."""
        if s is not None and bool(s.state.x.isfinite().all() and s.state.y.isfinite().all()):
            self.history.sync()  # before the checkpoint that counts on its rows
            checkpoint.save(self.run.folder / "checkpoint.pt", self.run.name, s)
        self.saved = time.monotonic()

    def paused(self, s: Standing) -> None:
        self.standing = s
        if self.screen:
            self.screen.at(s.step)
        at_row = s.step % self.settings["every"] == 0 or s.step == self.settings["steps"]
        wait = self.settings["checkpoint"]
        if (wait == 0 and at_row) or (wait > 0 and time.monotonic() - self.saved >= wait):
            self.save(s)

    def left(self, status: str, reason: str, code: int) -> None:
        """Saved, to go on later."""
        self.save(self.standing)
        where = self.standing.step if self.standing else 0
        note(self.run.folder, status, reason, step=where)
        self.logger.close(code)
        print(f"bench: {reason} at step {where}; the same command goes on", file=sys.stderr)

    def ended(self, status: str, reason: str | None, brief: bool) -> int:
        """The closing files; the exit code."""
        run, task = self.run, self.run.task
        rows = run.folder / "history.jsonl"
        environment = record.read_json(run.folder / "environment.json")
        summary = {
            "status": status,
            "reason": reason,
            "name": run.name,
            "seed": run.config["seed"],
            "metric": task.metric,
            "last": record.finite(self.last) if self.last else record.read_history(rows)[-1],
            "references": task.references() if task.references and status == "done" else {},
            "peak_memory_mb": peak_memory_mb(run.device),
        }
        if environment.get("compile"):
            summary["compile_seconds"] = self.compile_seconds
        if record.amortised(environment):
            summary["amortised"] = True
        with stop.patient():
            return closed(task, self.standing, summary, run.folder, self.logger, brief)


def clock(device: torch.device) -> Callable[[], float]:
    """Waits for the device."""

    def now() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    return now


def carry_out(run: Opened, brief: bool) -> int:
    """Run to the end, recording; the exit code."""
    recording, settings = Recording(run), run.config["run"]
    seed, status, reason, take = run.config["seed"], "done", None, None
    if run.compile:
        from bench.traced import Compiled  # slow to import

        take = Compiled(run.task, run.algorithm, seed)

    def paused(s: Standing) -> None:
        recording.paused(s)
        if s.step < settings["steps"]:
            stop.check()

    assert recording.screen is not None
    try:
        with stop.patient(), recording.screen:
            stop.check()
            recording.standing = steps_of(
                run.task,
                run.algorithm,
                seed=seed,
                steps=settings["steps"],
                every=settings["every"],
                seconds=settings["seconds"],
                cpu_seconds=settings["cpu_seconds"],
                until=run.until,
                start=None if run.fresh else run.start,
                measured=recording.measured,
                paused=paused,
                now=clock(run.device),
                take=take,
            )
            recording.save(recording.standing)
    except Diverged as error:
        status, reason = "diverged", str(error)
    except KeyboardInterrupt:
        recording.left("interrupted", "stopped", INTERRUPTED)
        raise
    except stop.Preempted as signal:
        recording.left("preempted", f"stopped by {signal.name}", PUT_OFF)
        raise
    except NoGraph as error:
        recording.logger.close(FAILED)
        note(run.folder, "failed", f"run.compile=true: {error}")
        raise BadSetting(
            f"run.compile=true: this algorithm's steps are no graph: {error}; write "
            "run.compile=false run.force=true"
        ) from None
    except BaseException:
        recording.logger.close(FAILED)
        raise
    finally:
        recording.history.close()
    recording.compile_seconds = take.seconds if take else 0.0
    return recording.ended(status, reason, brief)


def closed(
    task: Task,
    standing: Standing | None,
    summary: dict[str, Any],
    folder: Path,
    logger: Logger,
    brief: bool,
) -> int:
    """The closing files of a run; the exit code."""
    ended = standing if summary["status"] == "done" else None
    if ended is not None and (seen := view(task, ended)) is not None:
        record.write_json(folder / "view.json", asdict(seen))
    record.write_json(folder / "summary.json", summary)
    code = exit_code(summary)
    logger.close(code)
    if brief:
        told(summary)
    else:
        show(summary, folder)
    return code


class History:
    """history.jsonl, open for more rows. Its errors name it."""

    def __init__(self, path: Path):
        self.path = path
        self.file = path.open("ab", buffering=0)

    def add(self, values: dict[str, Any]) -> None:
        row = memoryview(record.line(values).encode())
        with self.named():
            while row:
                row = row[self.file.write(row) :]

    def sync(self) -> None:
        with self.named():
            os.fsync(self.file.fileno())

    @contextmanager
    def named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            error.filename = str(self.path)
            raise

    def close(self) -> None:
        self.file.close()


def view(task: Task, s: Standing) -> Histogram | Heatmap | None:
    """The picture of a run's end, where the task has one."""
    if task.ledger is not None and s.table is not None:
        return task.ledger.view(s.table)
    return task.view(s.state.x, s.state.y, s.step) if task.view else None


def exit_code(summary: dict[str, Any]) -> int:
    return DONE if summary["status"] == "done" else FAILED


def peak_memory_mb(device: torch.device) -> dict[str, float]:
    """Of this process so far, and of the GPU where one is used."""
    peak = {"process": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}
    if device.type == "cuda":
        peak["gpu"] = torch.cuda.max_memory_allocated(device) / 2**20
    return peak
