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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import Field
from threadpoolctl import threadpool_limits

from bench import checkpoint, lock, record, stop
from bench.algorithm import Algorithm
from bench.codes import DONE, FAILED, INTERRUPTED, PUT_OFF
from bench.loggers import About, Logger
from bench.run import Diverged, Standing, first, row, run
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
from bench.task import Context, Task
from bench.view import Heatmap, Histogram

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
    return perform(resolved(cfg))


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


def begin(config: dict[str, Any], name: str, folder: Path, brief: bool) -> int:
    """Run or continue in a folder that is one's own; the exit code."""
    device = chosen_device(config["run"]["device"])
    fresh = config["run"]["force"]
    going_on = not fresh and (folder / "checkpoint.pt").is_file()
    threads = config["run"]["threads"]
    old: dict[str, Any] = {}
    if going_on:
        old = record.read_json(folder / "environment.json", {"device", "threads", "data"})
        if old["device"] != device.type:
            raise BadSetting(
                f"run.device={config['run']['device']}: {folder} was begun on {old['device']}: "
                f"write run.device={old['device']}, or run.force=true to start again"
            )
        threads = int(old["threads"])  # another number would change the last bits
    settle(device, threads)

    context = Context(
        seed=config["seed"],
        device=device,
        dtype=getattr(torch, config["run"]["dtype"]),
        data_root=Path(config["data"]["root"]).expanduser(),
        download=config["data"]["download"],
    )
    try:
        task: Task = build(config["task"], context)
        algorithm: Algorithm = build(config["algorithm"])
        start = first(task, algorithm, config["seed"])
    except (MemoryError, OverflowError, RuntimeError) as error:
        if not isinstance(error, RuntimeError) or re.search("memory|overflow", str(error)):
            raise BadSetting(f"task, algorithm: too large for this machine: {error}") from None
        raise
    until = goal(config["run"], task, start)
    if going_on:
        same_data(folder, old, task)
        start = checkpoint.load(folder / "checkpoint.pt", name, start)

    every = config["run"]["every"]
    if not fresh:  # refuses what it cannot mend, before anything is changed
        record.keep_rows(folder / "history.jsonl", start.step if going_on else -1, every)
    open_folder(folder, fresh)
    environment = record.environment(device, threads, task.sources)
    record.write_yaml(folder / "config.yaml", config)
    if going_on:
        environment = continued(folder, old, environment, start.step)
    record.write_json(folder / "environment.json", environment)
    start_at = start if going_on else None
    return carry_out(config, name, folder, task, algorithm, start_at, until, device, brief)


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
    validated({**top, "seed": (Seed, ...)}, config, "")
    return {
        "seed": config["seed"],
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


def carry_out(
    config: dict[str, Any],
    name: str,
    folder: Path,
    task: Task,
    algorithm: Algorithm,
    start: Standing | None,
    until: tuple[str, float] | None,
    device: torch.device,
    brief: bool,
) -> int:
    """Run to the end, recording; the exit code."""
    settings, saved = config["run"], time.monotonic()
    history = History(folder / "history.jsonl")
    logger: Logger = build(config["logger"], About(name, config, folder))
    screen = Screen(name, settings["steps"], start.step if start else 0, task.metric)
    last: dict[str, Any] = {}
    standing = start

    def measured(values: dict[str, Any]) -> None:
        nonlocal last
        last = values
        history.add(values)
        logger.row(values)
        screen.measured(values)

    def save(s: Standing | None) -> None:
        """Unless it is lost already: the last good checkpoint stays."""
        nonlocal saved
        if s is not None and bool(s.state.x.isfinite().all() and s.state.y.isfinite().all()):
            history.sync()  # before the checkpoint that counts on its rows
            checkpoint.save(folder / "checkpoint.pt", name, s)
        saved = time.monotonic()

    def paused(s: Standing) -> None:
        nonlocal standing
        standing = s
        screen.at(s.step)
        at_row = s.step % settings["every"] == 0 or s.step == settings["steps"]
        wait = settings["checkpoint"]
        if (wait == 0 and at_row) or (wait > 0 and time.monotonic() - saved >= wait):
            save(s)
        if s.step < settings["steps"]:
            stop.check()

    def now() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    def left(status: str, reason: str, code: int) -> None:
        """Saved, to go on later."""
        save(standing)
        where = standing.step if standing else 0
        note(folder, status, reason, step=where)
        logger.close(code)
        print(f"bench: {reason} at step {where}; the same command goes on", file=sys.stderr)

    status, reason = "done", None
    try:
        with stop.patient(), screen:
            stop.check()
            standing = run(
                task,
                algorithm,
                seed=config["seed"],
                steps=settings["steps"],
                every=settings["every"],
                seconds=settings["seconds"],
                cpu_seconds=settings["cpu_seconds"],
                until=until,
                start=start,
                measured=measured,
                paused=paused,
                now=now,
            )
            save(standing)
    except Diverged as error:
        status, reason = "diverged", str(error)
    except KeyboardInterrupt:
        left("interrupted", "stopped", INTERRUPTED)
        raise
    except stop.Preempted as signal:
        left("preempted", f"stopped by {signal.name}", PUT_OFF)
        raise
    except BaseException:
        logger.close(FAILED)
        raise
    finally:
        history.close()

    summary = {
        "status": status,
        "reason": reason,
        "name": name,
        "seed": config["seed"],
        "metric": task.metric,
        "last": record.finite(last) if last else record.read_history(folder / "history.jsonl")[-1],
        "references": task.references() if task.references and status == "done" else {},
        "peak_memory_mb": peak_memory_mb(device),
    }
    with stop.patient():
        return closed(task, standing, summary, folder, logger, brief)


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
