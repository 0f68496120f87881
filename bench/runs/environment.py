"""A run's environment: packages, processor, threads and data, which may change its last bits."""

import os
import platform
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from bench import about

if TYPE_CHECKING:
    import torch  # slow to import, and needed only to describe a run

PACKAGES = ("torch", "torchvision", "numpy", "scikit-learn", "hydra-core", "omegaconf")


def environment_of(
    device: "torch.device",
    threads: int,
    sources: Mapping[str, str],
    outside: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """The environment of this process, for environment.json.

    sources: the SHA-256 of each data file that the task has read, by the file's name. outside: the
    versions of the packages outside of this project in which the task and the method are.
    """
    import torch

    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return {
        "python": platform.python_version(),
        "packages": {**dict(_packages()), **outside},
        "version": about.version(),
        "git": about.commit(),
        "cpu": processor(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "gpu": gpu,
        "cuda": torch.version.cuda if gpu else None,
        "device": device.type,
        "threads": threads,
        "data": dict(sources),
    }


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The keys in which two environments differ, each with [old value, new value]."""
    keys: Iterable[str] = [*old, *(key for key in new if key not in old)]
    return {key: [old.get(key), new.get(key)] for key in keys if old.get(key) != new.get(key)}


def shares_time(environment: Mapping[str, Any]) -> bool:
    """Whether some seconds of a run are its equal share of the time that lanes took together."""
    changes = (entry["changed"] for entry in environment.get("continued", []))
    return bool(environment.get("lanes")) or any(
        changed.get("lanes", [[], []])[1] for changed in changes
    )


@cache  # all runs of a process ask for it
def _packages() -> tuple[tuple[str, str], ...]:
    return tuple((package, version(package)) for package in PACKAGES)


def cores() -> int:
    """How many cores this process may use; on macOS, which does not say, how many there are."""
    allowed = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed else os.cpu_count() or 1


@cache
def processor() -> str:
    """The processor's name, as the system knows it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
