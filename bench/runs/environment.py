"""A run's environment: packages, processor, threads and data, which may change its last bits."""

import platform
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from bench import about
from bench.core.compiler import c_compiler

if TYPE_CHECKING:
    import torch  # slow to import, and needed only to describe a run

# The versions of these may decide results. The last two need not be installed.
PACKAGES = (
    "torch", "torchvision", "numpy", "scikit-learn", "hydra-core", "omegaconf", "scipy", "optuna",
    "learn2learn",
)  # fmt: skip


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
        "c_compiler": c_compiler() is not None,
        "gpu": gpu,
        "cuda": torch.version.cuda if gpu else None,
        "device": device.type,
        "threads": threads,
        "data": dict(sources),
    }


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The keys in which two environments differ, each with [old value, new value].

    Packages that the old one does not list are not compared, as older environments list fewer.
    """
    keys: Iterable[str] = [*old, *(key for key in new if key not in old)]
    pairs = {key: [old.get(key), new.get(key)] for key in keys}
    return {key: pair for key, pair in pairs.items() if differs(key, *pair)}


def differs(key: str, old: Any, new: Any) -> bool:
    """Whether the values of a key of two environments say that something has changed."""
    if key == "packages" and old and new:
        new = {package: number for package, number in new.items() if package in old}
    return bool(old != new)


def shares_time(environment: Mapping[str, Any]) -> bool:
    """Whether some seconds of a run are its equal share of the time that lanes took together."""
    changes = (entry["changed"] for entry in environment.get("continued", []))
    return bool(environment.get("lanes")) or any(
        changed.get("lanes", [[], []])[1] for changed in changes
    )


@cache  # all runs of a process ask for it
def _packages() -> tuple[tuple[str, str], ...]:
    found = []
    for package in PACKAGES:
        with suppress(PackageNotFoundError):  # one that is not installed is left out
            found.append((package, version(package)))
    return tuple(found)


def cores() -> int:
    """How many cores this process may use, by its affinity and by a container's quota."""
    from joblib import cpu_count

    return int(cpu_count())


@cache
def processor() -> str:
    """The processor's name, as the system knows it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
