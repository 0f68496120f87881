"""Has several processes share a GPU by NVIDIA's Multi-Process Service.

Without the service their kernels take turns, however few of the GPU's processors each one uses. On
an H200 sixteen processes that each train a small network took 2.3 times as many steps a second with
it (read once, 2026-11-27).
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

CONTROL = "nvidia-cuda-mps-control"
NAMES = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")
LONG = 40.0  # seconds that a service may take to answer
TRY = "import torch; torch.ones(1, device='cuda').sum().item()"


@contextmanager
def shared(device: torch.device) -> Iterator[None]:
    """The service for this process and those that are started within.

    Where it is not there, or no process gets on with it, they take turns. The GPU's settings stay:
    the service is a process of the user's, which ends with the block.
    """
    control = shutil.which(CONTROL)
    if device.type != "cuda" or control is None:
        yield
        return
    place = Path(tempfile.gettempdir()) / "bench-mps"
    place.mkdir(exist_ok=True)
    before = {name: os.environ.get(name) for name in NAMES}
    os.environ |= dict.fromkeys(NAMES, str(place))
    begun = succeeds([control, "-d"])  # not where an earlier call has left one, which may do
    works = succeeds([sys.executable, "-c", TRY])
    if not works:
        end(control)
    used = works and has_server(control)
    print("processes share the GPU" if used else "processes take turns on the GPU", flush=True)
    try:
        yield
    finally:
        if begun and works:
            end(control)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def apart() -> dict[str, str]:
    """The environment of a process that takes no part in the service."""
    return {name: value for name, value in os.environ.items() if name not in NAMES}


def succeeds(command: list[str], given: bytes | None = None) -> bool:
    """Whether the command comes to a good end within `LONG`."""
    try:
        return not subprocess.run(
            command, input=given, capture_output=True, timeout=LONG
        ).returncode
    except subprocess.TimeoutExpired:
        return False


def has_server(control: str) -> bool:
    """Whether a process that used the GPU did so by the service, which has a server since then;
    without the service it had worked as well."""
    try:
        found = subprocess.run(
            [control], input=b"get_server_list\n", capture_output=True, timeout=LONG
        )
    except subprocess.TimeoutExpired:
        return False
    return any(word.isdigit() for word in found.stdout.decode(errors="replace").split())


def end(control: str) -> None:
    """End the service, if it runs; without it CUDA does as if there were none."""
    succeeds([control], b"quit -t 5\n")
