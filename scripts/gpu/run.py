"""Spends some minutes of a lent machine on a list of work, and has at any second what it made.

    python3 PACK/start.py PACK --out OUT --minutes 8

PACK is what scripts.gpu.pack made. This unpacks it below --work, which may keep parts of data
between calls, installs its wheels there, and lets scripts.gpu.work go through the list. Meanwhile,
and in the end, it writes what was made into OUT (scripts.gpu.state), from where scripts.gpu.collect
takes it. When the time is nearly over it tells the work to stop, which saves checkpoints. Only the
standard library is imported.

The exit code is that of the work: 0 if all is done, 75 if there is more to do, 1 if a check failed.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

if __package__:
    from scripts.gpu.state import Broken, Saver, collect, digest_of, put, read_archive
else:  # beside state.py, in a folder that was packed
    from state import (  # type: ignore[import-not-found,no-redef]
        Broken,
        Saver,
        collect,
        digest_of,
        put,
        read_archive,
    )

PATIENCE = 40.0  # seconds before the end at which the work is told to stop


def unpack(pack: Path, work: Path) -> tuple[list[str], set[str], bool]:
    """Put the pack in its places, but over no result that was made here in an earlier call.

    Gives the names of runs that have ended before, what `brought_by` does, and whether the pack is
    to be worked on: the first parts of a data set wait for the last one.
    """
    code, site, runs = work / "code", work / "site", work / "runs"
    shutil.rmtree(code, ignore_errors=True)
    code.mkdir(parents=True)
    with tarfile.open(pack / "code.tar.gz") as tar:
        tar.extractall(code, filter="data")
    wheels = [str(wheel) for wheel in sorted((pack / "wheels").glob("*.whl"))]
    if wheels and not site.exists():
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps"]
        command += ["--no-compile", "--no-cache-dir", "--target", str(site), *wheels]
        subprocess.run(command, check=True)
    for name in ("incoming", "derived"):
        to = work / "data" / name if name == "derived" else work / name
        if (pack / name).is_dir():
            shutil.copytree(pack / name, to, dirs_exist_ok=True)
    runs.mkdir(parents=True, exist_ok=True)
    parts = work / "parts"
    parts.mkdir(exist_ok=True)
    shutil.copyfile(pack / "runs.tar.gz", parts / "done-0.tar.gz")
    brought, results = brought_by(pack, work), work / "results"
    own = {
        path
        for path in results.rglob("*")
        if path.is_file() and digest_of(path.read_bytes()) not in brought
    }
    collect(parts, {"runs": runs, "results": results, "derived": work / "data/derived"}, own)
    if (pack / "names.json").is_file():
        (runs / ".reproduce").mkdir(exist_ok=True)
        shutil.copyfile(pack / "names.json", runs / ".reproduce" / "names.json")
    shutil.copyfile(pack / "list.json", work / "list.json")
    listed = json.loads((pack / "list.json").read_text())
    return listed["known"], brought, listed["whole"]


def brought_by(pack: Path, work: Path) -> set[str]:
    """The digests of results and derived data that this pack has, or one before it had.

    They are kept below `work`: a result that no pack has had was made here, in whichever call.
    """
    kept, found = work / "brought.json", set[str]()
    if kept.is_file():
        found |= set(json.loads(kept.read_text()))
    content = read_archive(pack / "runs.tar.gz")
    found |= {digest_of(m.content) for name, m in content.items() if name.startswith("results/")}
    found |= {digest_of(path.read_bytes()) for path in (pack / "derived").glob("*.pt")}
    put(kept, json.dumps(sorted(found)).encode())
    return found


def start(work: Path, seconds: float, more: list[str]) -> "subprocess.Popen[bytes]":
    """The work, in a session of its own, so that it can be ended with all its workers."""
    places = [str(work / "code"), str(work / "site")]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([*places, os.environ.get("PYTHONPATH", "")]).rstrip(
            os.pathsep
        ),
        "PYTHONUNBUFFERED": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "BENCH_DATA": str(work / "data"),
    }
    command = [
        sys.executable, "-m", "scripts.gpu.work", "--minutes", f"{seconds / 60:.3f}",
        "--root", str(work / "runs"), "--data", str(work / "data"),
        "--results", str(work / "results"), "--incoming", str(work / "incoming"),
        "--list", str(work / "list.json"), *more,
    ]  # fmt: skip
    return subprocess.Popen(command, cwd=work / "code", env=environment, start_new_session=True)


def end(process: "subprocess.Popen[bytes]", patience: float) -> int:
    """Tell the work to stop, wait, and then end it with its workers; gives its exit code."""
    process.terminate()
    try:
        return process.wait(patience)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.wait()


def main() -> int:
    """The exit code."""
    began = time.monotonic()
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("pack", type=Path, metavar="PACK")
    parser.add_argument("--out", type=Path, required=True, help="a folder that comes back")
    parser.add_argument(
        "--minutes", type=float, default=8.0, help="this call's time, packing included"
    )
    parser.add_argument(
        "--work", type=Path, default=Path(tempfile.gettempdir()) / "bench-gpu",
        help="where to unpack",
    )  # fmt: skip
    parser.add_argument("--every", type=float, default=15.0, help="seconds between writes of OUT")
    parser.epilog = "what stands after -- are options of scripts.gpu.work"
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    given = parser.parse_args(words[:cut])
    work = given.work.absolute()
    try:
        known, brought, whole = unpack(given.pack.absolute(), work)
    except (OSError, EOFError, Broken, tarfile.TarError, subprocess.CalledProcessError) as reason:
        print(f"gpu.run: {given.pack}: {reason}", file=sys.stderr)
        return 2
    ends = began + 60 * given.minutes
    more = {"results": work / "results", "derived": work / "data" / "derived"}
    saver = Saver(given.out.absolute(), work / "runs", more, known, brought)
    print(f"unpacked in {time.monotonic() - began:.0f} s", flush=True)
    if not whole:
        print("this pack is one of several parts, and the work comes with the last one")
        return 0
    process = start(work, ends - time.monotonic() - PATIENCE, words[cut + 1 :])
    code = None
    while code is None and time.monotonic() < ends - PATIENCE:
        try:
            code = process.wait(min(given.every, max(0.1, ends - PATIENCE - time.monotonic())))
        except subprocess.TimeoutExpired:
            saver.save()
    if code is None:
        code = end(process, PATIENCE / 2)
    sizes = saver.save()
    if saver.left_out:
        print(f"{len(saver.left_out)} runs that have ended find no room in what comes back")
    print(json.dumps({"exit": code, "seconds": round(time.monotonic() - began), "files": sizes}))
    return code


if __name__ == "__main__":
    sys.exit(main())
