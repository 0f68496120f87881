"""Sweeps on a real SLURM, such as scripts/slurm_local.sh starts: pytest -m slurm."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import ROOT, Cli
from tests.test_cli import history, state

pytestmark = pytest.mark.slurm

QUICK = ("task=toy_minimax", "run.steps=20", "run.every=10", "run.threads=1")
# Compiled, which long runs are by themselves, these would end before a test could stop them.
LONG = (
    "task=toy_coreset",
    "run.every=500",
    "run.threads=1",
    "run.checkpoint=2",
    "run.compile=false",
)
SLURM = ("-m", "hydra/launcher=slurm", "hydra.launcher.cpus=1", "hydra.launcher.minutes=5")


@pytest.fixture(autouse=True)
def cluster() -> None:
    """Skipped without one, except where BENCH_SLURM promises it."""
    there = shutil.which("sinfo") and subprocess.run(["sinfo"], capture_output=True).returncode == 0
    if not there:
        assert not os.environ.get("BENCH_SLURM"), "there is no SLURM"
        pytest.skip("there is no SLURM: scripts/slurm_local.sh starts one")


Sweep = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def sweep(tmp_path: Path) -> Iterator[Sweep]:
    """`bench -m` by SLURM, going on while the test does something to its jobs."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str) -> subprocess.Popen[bytes]:
        with (tmp_path / "output").open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "bench", *SLURM, *arguments], cwd=ROOT,
                env=os.environ | {"BENCH_RUNS": str(tmp_path / "runs")},
                stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.terminate()
            process.wait(60)


def wait(until: Callable[..., Any], what: str, seconds: float = 400) -> None:
    deadline = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


def running() -> list[str]:
    listed = subprocess.run(
        ["squeue", "-h", "-r", "-t", "running", "-n", "bench", "-o", "%i"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return listed.stdout.split()


def rows(root: Path) -> int:
    return sum(len(file.read_text().splitlines()) for file in root.rglob("history.jsonl"))


def summary(root: Path) -> dict[str, Any]:
    """The summary of the newest sweep."""
    newest = max((root / ".sweeps").glob("*/sweep.summary.json"), key=lambda f: f.stat().st_mtime)
    found: dict[str, Any] = json.loads(newest.read_text())
    return found


def assert_as_undisturbed(cli: Cli, tmp_path: Path, *arguments: str) -> None:
    done = cli(*arguments, f"run.root={tmp_path}/whole")
    assert done.returncode == 0, done.stderr
    (mine,) = (tmp_path / "runs").rglob("summary.json")
    (other,) = (tmp_path / "whole").rglob("summary.json")
    assert history(mine.parent) == history(other.parent)
    pairs = zip(state(mine.parent), state(other.parent), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def steps_of(seconds: float, cli: Cli, tmp_path: Path, *arguments: str) -> int:
    """How many steps take about this long here: a number that is right for one machine's speed
    ends too early on a faster one."""
    some = 10_000
    done = cli(*arguments, f"run.steps={some}", f"run.root={tmp_path}/paced")
    assert done.returncode == 0, done.stderr
    (file,) = (tmp_path / "paced").rglob("summary.json")
    taken: float = json.loads(file.read_text())["last"]["seconds"]
    return round(some * seconds / taken)


def test_a_cancelled_sweep_is_finished_by_the_same_command(sweep: Sweep, tmp_path: Path) -> None:
    """Twelve runs in six jobs, two of them at a time."""
    root, most = tmp_path / "runs", 0
    command = (
        *QUICK,
        "seed=range(12)",
        "hydra.launcher.at_once=2",
        "hydra.launcher.runs_per_job=2",
    )
    process = sweep(*command)

    def some() -> bool:
        nonlocal most
        most = max(most, len(running()))
        return len(list(root.rglob("summary.json"))) >= 2

    wait(some, "no run has ended")
    subprocess.run(["scancel", "-n", "bench"], check=True)
    assert process.wait(500) in (1, 75), (tmp_path / "output").read_text()
    first = summary(root)
    done = {file: file.stat().st_mtime_ns for file in root.rglob("summary.json")}
    assert 2 <= len(done) < 12
    assert first["counts"]["done"] == len(done)

    again = sweep(*command)
    wait(lambda: some() and again.poll() is not None, "the sweep does not end")
    assert again.wait(500) == 0, (tmp_path / "output").read_text()
    assert summary(root)["counts"] == {"done": 12 - len(done), "skipped": len(done)}
    assert {file: file.stat().st_mtime_ns for file in done} == done
    assert len(list(root.rglob("summary.json"))) == 12
    assert most == 2


def test_a_cancelled_sweep_ends_where_accounting_knows_nothing_of_it(
    sweep: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only squeue tells then what became of its jobs."""
    silent = tmp_path / "bin" / "sacct"
    silent.parent.mkdir()
    silent.write_text("#!/bin/sh\n")
    silent.chmod(0o755)
    monkeypatch.setenv("PATH", f"{silent.parent}{os.pathsep}{os.environ['PATH']}")
    root = tmp_path / "runs"
    process = sweep(*LONG, "run.steps=100000", "seed=range(4)", "hydra.launcher.at_once=2")
    wait(lambda: rows(root) > 0, "the jobs make no progress")
    subprocess.run(["scancel", "-n", "bench"], check=True)
    assert process.wait(200) in (1, 75), (tmp_path / "output").read_text()
    assert summary(root)["counts"].get("done", 0) == 0


def test_a_job_signalled_twice_is_requeued_and_ends_with_the_same_bits(
    sweep: Sweep, cli: Cli, tmp_path: Path
) -> None:
    root, seen = tmp_path / "runs", 0
    process = sweep(*LONG, "run.steps=30000")
    for _ in range(2):
        wait(lambda before=seen: rows(root) > before and running(), "the job makes no progress")
        subprocess.run(["scancel", "-s", "USR2", *running()], check=True)
        wait(lambda: list(root.rglob("status.json")), "the run was not preempted")
        (status,) = root.rglob("status.json")
        assert json.loads(status.read_text())["status"] == "preempted"
        seen = rows(root)
        wait(lambda: not list(root.rglob("status.json")), "the job was not requeued")
    assert process.wait(500) == 0, (tmp_path / "output").read_text()
    (environment,) = root.rglob("environment.json")
    assert len(json.loads(environment.read_text())["continued"]) == 2
    assert_as_undisturbed(cli, tmp_path, *LONG, "run.steps=30000")


def test_a_job_that_hits_its_limit_goes_on_in_the_next(
    sweep: Sweep, cli: Cli, tmp_path: Path
) -> None:
    """SLURM counts limits in minutes and may signal up to a minute early."""
    arguments = (*LONG, "run.every=2500")
    arguments = (*arguments, f"run.steps={steps_of(75, cli, tmp_path, *arguments)}")
    limit = ("hydra.launcher.minutes=1", "hydra.launcher.signal=25")
    process = sweep(*arguments, *limit)
    assert process.wait(1500) == 0, (tmp_path / "output").read_text()
    (environment,) = (tmp_path / "runs").rglob("environment.json")
    assert json.loads(environment.read_text())["continued"]
    assert_as_undisturbed(cli, tmp_path, *arguments)


def test_jobs_find_packages_of_ones_own_and_nothing_in_the_current_folder(tmp_path: Path) -> None:
    """Though that folder has packages that are called like ours."""
    there, mark = tmp_path / "there", tmp_path / "executed"
    for package in ("tasks", "conf", "submitit"):
        (there / package).mkdir(parents=True)
        (there / package / "__init__.py").write_text(f"open({str(mark)!r}, 'w')")
    outside = ROOT / "tests" / "outside" / "src"
    variables = os.environ | {
        "BENCH_RUNS": str(tmp_path / "runs"),
        "BENCH_PACKAGES": "ridge_bench",
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, outside))),
    }
    command = [sys.executable, "-m", "bench", *SLURM, "experiment=ridge_quick", "seed=0,1"]
    done = subprocess.run(command, cwd=there, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 runs: 2 done" in done.stdout
    assert not mark.exists()
