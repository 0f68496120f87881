"""The whole round trip of a lent machine on this one, in an environment like that machine's.

    uv run python -m scripts.gpu.rehearse ENV [--from FOLDER] [--artifact f2obo/fig1]

ENV is a virtual environment; one that is not there is made, with Python 3.12, torch 2.11 and what a
lent machine has beside it, and without this project. Without a network, where `unshare` is allowed,
two slices are made of the checks and of an artifact at the budget smoke. The first is killed with
all its processes after --kill seconds, or later, when an ended run has come back; the second goes
on from what came back. The rehearsal holds that every run ended, that what had ended in the first
slice was not made again, and that all of it took at most ten minutes.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from scripts.gpu.state import run_folders

PYTHON = "3.12"
INSTALLED = (
    "torch==2.11.*", "torchvision==0.26.*", "numpy", "scipy", "scikit-learn", "typer", "rich",
    "joblib", "threadpoolctl", "pyyaml", "jinja2", "pillow", "matplotlib", "pip",
)  # fmt: skip
MOST = 600.0  # seconds


class Wrong(Exception):
    """What the rehearsal found, in one line."""


def make_environment(place: Path) -> Path:
    """The environment's Python; the environment is made if it is not there."""
    python = place / "bin" / "python"
    if not python.exists():
        subprocess.run(["uv", "venv", "-q", "--python", PYTHON, str(place)], check=True)
        subprocess.run(
            ["uv", "pip", "install", "-q", "--python", str(python.absolute()), *INSTALLED],
            cwd=tempfile.gettempdir(),  # in this project's folder its own pins would hold
            check=True,
        )
    return python


def offline() -> list[str]:
    """What a command begins with so that it has no network; nothing if that is not allowed."""
    command = ["unshare", "--net", "--map-root-user"]
    try:
        allowed = subprocess.run([*command, "true"], capture_output=True).returncode == 0
    except OSError:
        allowed = False
    if not allowed:
        print("no network namespace is allowed here: the slices have the network")
    return command if allowed else []


def pack(place: Path, artifact: str, source: Path, wheels: Path | None) -> None:
    """Make the pack of the next slice."""
    command = [
        sys.executable, "-m", "scripts.gpu.pack", str(place / "pack"), "--budget", "smoke",
        "--only", artifact, "--root", str(place / "root"), "--results", str(place / "results"),
        "--data", str(place / "data"), "--from", str(source), "--sets", "MNIST",
        *(["--wheels", str(wheels)] if wheels else []),
    ]  # fmt: skip
    subprocess.run(command, check=True)


def slice_of_work(
    python: Path, place: Path, artifact: str, seconds: float, kill: float | None
) -> int | None:
    """One slice on a machine that is bare, and what came back put in its places.

    kill: it is killed after so many seconds, or later, when an ended run has come back. Gives the
    exit code; None if it was killed.
    """
    for name in ("work", "out"):
        shutil.rmtree(place / name, ignore_errors=True)
    keep = ("PATH", "HOME", "LANG", "TMPDIR")
    command = [
        *offline(), str(python), str(place / "pack" / "start.py"), str(place / "pack"),
        "--out", str(place / "out"), "--minutes", f"{seconds / 60}", "--work", str(place / "work"),
        "--every", "5", "--", "--device", "cpu", "--smoke", "--workers", "2",
        "--only", "tasks", "algorithms", artifact,
    ]  # fmt: skip
    environment = {name: os.environ[name] for name in keep if name in os.environ}
    process = subprocess.Popen(command, env=environment)
    began, code, killed = time.monotonic(), None, False
    while code is None and not killed:
        try:
            code = process.wait(1)
        except subprocess.TimeoutExpired:
            due = kill is not None and time.monotonic() - began >= kill
            if due and any((place / "out").glob("done-*.tar.gz")):
                kill_with_children(process.pid)
                process.wait()
                killed = True
    collect = [
        sys.executable, "-m", "scripts.gpu.collect", str(place / "out"),
        "--root", str(place / "root"), "--results", str(place / "results"),
        "--data", str(place / "data"),
    ]  # fmt: skip
    done = subprocess.run(collect, check=False).returncode
    if done == 1 or (done == 2 and code is not None):
        raise Wrong("what came back cannot be collected")
    return code


def kill_with_children(pid: int) -> None:
    """End a process of this script's, and all that came from it, at once."""
    listed = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True
    )
    with suppress(ProcessLookupError):  # it may end by itself after it was listed
        os.kill(pid, signal.SIGKILL)
    for child in listed.stdout.split():
        kill_with_children(int(child))


def ended(root: Path) -> dict[str, int]:
    """The runs that have ended, with the time at which each did."""
    folders = (
        [f for f in run_folders(root) if (f / "summary.json").is_file()] if root.is_dir() else []
    )
    return {str(f.relative_to(root)): (f / "summary.json").stat().st_mtime_ns for f in folders}


def main() -> int:
    """The exit code: 0, or 1 if the rehearsal found something."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("environment", type=Path, metavar="ENV")
    source = os.environ.get("BENCH_DATA_FROM", ".")
    parser.add_argument("--from", dest="source", type=Path, default=Path(source))
    parser.add_argument("--artifact", default="f2obo/fig1")
    parser.add_argument("--kill", type=float, default=20.0, help="least seconds of the first slice")
    parser.add_argument("--wheels", type=Path, help="a folder with wheels, in place of pip's")
    given = parser.parse_args()
    python = make_environment(given.environment.absolute())
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bench-rehearsal-") as folder:
        place = Path(folder)
        try:
            pack(place, given.artifact, given.source.absolute(), given.wheels)
            if slice_of_work(python, place, given.artifact, MOST, given.kill) is not None:
                raise Wrong(
                    "the first slice ended before it was killed: write a smaller --kill, or "
                    "an --artifact with more runs"
                )
            first = ended(place / "root")
            print(f"the first slice was killed: {len(first)} runs had ended and come back")
            pack(place, given.artifact, given.source.absolute(), given.wheels)
            left = MOST - (time.monotonic() - began)
            code = slice_of_work(python, place, given.artifact, left, None)
            last = ended(place / "root")
            if code != 0:
                raise Wrong(f"the second slice ended with {code}, with {len(last)} runs")
            if first.items() - last.items():
                raise Wrong("a run that had ended was made again")
        except (Wrong, subprocess.CalledProcessError) as reason:
            print(f"gpu.rehearse: {reason}", file=sys.stderr)
            return 1
    print(f"{len(last)} runs in {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
