"""Environments of their own for peers that cannot share ours: made once, in the user's cache."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import torch


class Unavailable(Exception):
    """One line: why a peer takes no part."""


def environment(name: str, requirement: str, why: str) -> Path:
    """The Python of an environment with this requirement and our torch; raises Unavailable."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bilevel-bench"
    release = torch.__version__.split("+")[0]
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    folder = cache / f"{name.lower()}-py{version}-{release}"
    python = folder / "bin" / "python"
    if (folder / "complete").is_file():
        return python
    uv = os.environ.get("UV") or shutil.which("uv")
    if uv is None:
        raise Unavailable(f"{name} needs uv for an environment of its own")
    cache.mkdir(parents=True, exist_ok=True)
    print(f"making {name}'s environment ({why}, torch {release}) in the user's cache ...")
    for command in (
        [uv, "venv", "--clear", "--python", sys.executable, str(folder)],
        [uv, "pip", "install", "--python", str(python), requirement, f"torch=={release}"],
    ):
        # cwd: away from this repository, whose constraints are not the peer's
        done = subprocess.run(command, cwd=cache, capture_output=True, text=True)
        if done.returncode:
            said = " ".join(done.stderr.split())
            raise Unavailable(f"{name} could not be installed: {said[:300]}")
    (folder / "complete").touch()
    return python
