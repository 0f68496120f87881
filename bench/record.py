"""Files that are written whole or not at all; and what a run is made in."""

import json
import math
import os
import platform
from collections.abc import Iterable, Mapping, Set
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from bench import about
from bench.settings import BadSetting

if TYPE_CHECKING:
    import torch  # slow to import: here only where a run is described

PACKAGES = ("torch", "torchvision", "numpy", "scikit-learn", "hydra-core", "omegaconf")


def write(path: Path, content: str | memoryview) -> None:
    """All of the file or nothing: written beside it, then renamed."""
    new = path.with_name(path.name + ".new")
    try:
        with new.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except OSError as error:
        with suppress(OSError):  # of a full disk give back what there is
            new.unlink()
        error.filename = error.filename or str(path)
        raise


def write_json(path: Path, values: Any) -> None:
    write(path, json.dumps(values, indent=1) + "\n")


def read_json(path: Path, keys: Set[str] = frozenset()) -> Any:
    """The file's content, an object with these keys at least; raises BadSetting if it is damaged
    or not there."""
    try:
        found = json.loads(path.read_text())
        if not isinstance(found, dict) or not keys <= set(found):
            raise ValueError
        return found
    except (ValueError, FileNotFoundError, RecursionError):
        raise BadSetting(f"{path} is damaged: write run.force=true to start again") from None


def write_yaml(path: Path, values: Any) -> None:
    write(path, yaml.safe_dump(values, sort_keys=False))


def read_history(path: Path) -> list[dict[str, Any]]:
    """The rows of a history; a last line that a kill cut short is left out."""
    rows = []
    for line in path.read_bytes().splitlines() if path.exists() else []:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            break
        if not (isinstance(row, dict) and type(row.get("step")) is int):
            break
        rows.append(row)
    return rows


def keep_rows(path: Path, upto: int, every: int) -> None:
    """Drop the rows of steps after `upto`: an interrupted run measured them past its checkpoint.

    Raises BadSetting if rows before it are gone, which no kill can do.
    """
    rows = [row for row in read_history(path) if row["step"] <= upto]
    there = {row["step"] for row in rows}
    gone = next((step for step in range(0, upto + 1, every) if step not in there), None)
    if gone is not None:
        raise BadSetting(
            f"{path} has lost rows, that of step {gone} first, and its checkpoint is of step "
            f"{upto}: write run.force=true to start again"
        )
    write(path, "".join(line(row) for row in rows))


def finite(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with null for what is not finite: JSON has no word for it."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in row.items()
    }


def line(row: Mapping[str, Any]) -> str:
    """A row as a line of a history."""
    return json.dumps(finite(row)) + "\n"


def environment(device: "torch.device", threads: int, sources: Mapping[str, str]) -> dict[str, Any]:
    """What the run's bits may depend on beyond its configuration."""
    import torch

    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return {
        "python": platform.python_version(),
        "packages": dict(_packages()),
        "version": about.version(),
        "git": about.commit(),
        "cpu": _cpu(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "gpu": gpu,
        "cuda": torch.version.cuda if gpu else None,
        "device": device.type,
        "threads": threads,
        "data": dict(sources),
    }


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, list[Any]]:
    """What changed between two environments: key -> [old, new]."""
    keys: Iterable[str] = [*old, *(key for key in new if key not in old)]
    return {key: [old.get(key), new.get(key)] for key in keys if old.get(key) != new.get(key)}


def amortised(environment: Mapping[str, Any]) -> bool:
    """Whether seconds of a run are its share of what lanes took together."""
    changes = (entry["changed"] for entry in environment.get("continued", []))
    return bool(environment.get("lanes")) or any(
        changed.get("lanes", [[], []])[1] for changed in changes
    )


@cache  # a sweep's runs share a process
def _packages() -> tuple[tuple[str, str], ...]:
    return tuple((package, version(package)) for package in PACKAGES)


@cache
def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
