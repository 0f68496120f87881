"""Making an artifact's runs, next to another `reproduce run` that makes the same ones."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bench.reproduce import making, records
from bench.reproduce.plan import Run
from bench.reproduce.points import Point
from bench.runs.folder import RunFolder
from bench.sweeps import jobs as job_layer
from bench.sweeps.launchers import Launcher, ReportEnd
from tests import planned
from tests.test_records import ended

ONE_RUN: dict[str, Any] = {
    "grid": None, "select": None, "variants": {"paper": {}}, "rows": {"A": {"method": "bome"}},
}  # fmt: skip


class Named(planned.Known):
    """Names and configurations that take no composing."""

    def config(self, point: Point, seed: int) -> dict[str, Any]:
        return {"seed": seed, "vectorize": [], "run": {"force": False, "threads": 1}}


def starts_again(root: Path, monkeypatch: pytest.MonkeyPatch, other_begins: bool) -> list[bool]:
    """Whether `--anew` starts a finished run of older code again, for each job that it hands over.

    other_begins: another process begins the run after the plan was read and before the launch.
    """
    planned.finish(root, "paper/A/-0", 1.0)
    found: list[bool] = []

    def code_changes(run: Run) -> list[str]:
        if other_begins and not found:
            run.folder.describe({})
        return ["algorithms/bome.py"]

    def launch(jobs: Sequence[job_layer.Job], folder: Path, ended: ReportEnd) -> None:
        for job in jobs:
            found.append(job_layer.config_to_start(job)["run"]["force"])
            job.note.write_text("{}")
            ended(job)

    monkeypatch.setattr(making, "Names", lambda root, extra: Named())
    monkeypatch.setattr(making, "code_changes", code_changes)
    artifact = planned.artifact(**ONE_RUN)
    making.make_runs(artifact, planned.BOOK, "smoke", root, [], Launcher(launch), anew=True)
    return found


def test_a_run_of_older_code_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert starts_again(tmp_path, monkeypatch, other_begins=False) == [True]


def test_a_run_that_another_process_has_just_begun_is_not_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two `reproduce run --anew` at once make it once: the second one takes what the first made."""
    assert starts_again(tmp_path, monkeypatch, other_begins=True) == [False]


def no_changes(run: Run) -> list[str]:
    """What `making.code_changes` says of a run of today's code."""
    return []


def test_the_same_reason_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such as a data set that is not there, which each run would say in three lines."""

    def refuse(jobs: Sequence[job_layer.Job], folder: Path, report: ReportEnd) -> None:
        for job in jobs:
            reason = "no data" if job.folder.name.endswith(("-1", "-2")) else "another"
            job.write_note("refused", reason)
            report(job)

    monkeypatch.setattr(making, "Names", lambda root, extra: Named())
    artifact = planned.artifact(**ONE_RUN)
    monkeypatch.setattr(
        "bench.reproduce.runner.group_bundles", lambda wanted: [(w,) for w in wanted]
    )
    extra = ["data.root=a b"]
    making.make_runs(artifact, planned.BOOK, "short", tmp_path, extra, Launcher(refuse))
    said = capsys.readouterr().err
    ends = [line.rpartition(": ")[2] for line in said.splitlines() if ", seed " in line]
    assert sorted(ends) == ["another", "as above", "no data"]
    assert said.count("its output") == 2
    assert said.count("'data.root=a b'") == 2  # the command that is shown fails in the same way


def test_disturbed_runs_are_made_again_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only runs of rows whose times a claim reads, and a record's among them; they are told."""
    less = {
        "kind": "below", "by": "us", "text": "A takes less time", "rows": ["A"], "than": ["L"],
        "metric": "cpu_seconds",
    }  # fmt: skip
    rows = {"A": {"method": "bome"}, "L": {"method": "bome", "line": True},
            "B": {"method": "itd"}}  # fmt: skip
    spec = ONE_RUN | {"rows": rows, "claims": {"less": less}}
    for row in rows:
        for seed, others in enumerate((0.1, 0.3, None)):
            where = f"paper/{row}/-{seed}"
            ended(tmp_path, where, 1.0, process={"others_cores": others})
    artifact = planned.artifact(**spec)
    old = records.make_record(planned.made(tmp_path, **spec), planned.BOOK)
    shutil.rmtree(tmp_path / "paper/A")
    started: list[str] = []

    def launch(jobs: Sequence[job_layer.Job], folder: Path, report: ReportEnd) -> None:
        for job in jobs:
            assert job_layer.config_to_start(job)["run"]["force"]
            started.append(job.folder.name)
            job.note.write_text("{}")
            report(job)

    monkeypatch.setattr(making, "Names", lambda root, extra: Named())
    both = ["paper/A/-1", "paper/A/-2", "paper/L/-1", "paper/L/-2"]
    for disturbed in (True, False):
        launcher = Launcher(launch)
        plan = making.make_runs(
            artifact, planned.BOOK, "short", tmp_path, [], launcher, old=old, disturbed=disturbed
        )
        assert sorted(started) == both
    monkeypatch.setattr(making, "code_changes", no_changes)
    making.print_outcome(plan)
    said = " ".join(capsys.readouterr().out.split())
    assert "4 finished runs had other work beside them" in said
    assert "--disturbed" in said


@pytest.mark.parametrize("metric", ["cpu_seconds", "loss"])
def test_runs_of_a_slower_machine_are_made_again_until_all_are_of_one(
    metric: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runs that are not like the newest come first, and then the newest, because this machine
    is as fast as neither of the two before it. A clock ends the runs."""
    less = {
        "kind": "below", "by": "us", "text": "A has less", "rows": ["A"], "than": ["L"],
        "metric": metric,
    }  # fmt: skip
    rows = {"A": {"method": "bome"}, "L": {"method": "bome", "line": True}}
    spec = ONE_RUN | {"rows": rows, "claims": {"less": less}, "set": {"run.cpu_seconds": 9.0}}
    for i, (row, pace) in enumerate({"A": 1.0, "L": 3.0}.items()):
        for seed in range(3):
            process = {"others_cores": 0.1, "pace_ms": pace if seed == 1 else 1.0}
            ended(tmp_path, f"paper/{row}/-{seed}", 1.0, process=process)
            os.utime(tmp_path / f"paper/{row}/-{seed}/summary.json", (i, i))
    started: list[str] = []

    def launch(jobs: Sequence[job_layer.Job], folder: Path, report: ReportEnd) -> None:
        for job in jobs:
            started.append(job.folder.name)
            shutil.rmtree(tmp_path / job.folder.name)
            process = {"others_cores": 0.0, "pace_ms": 9.0}
            ended(tmp_path, job.folder.name, 1.0, process=process)
            report(job)

    monkeypatch.setattr(making, "Names", lambda root, extra: Named())
    artifact = planned.artifact(**spec)
    making.make_runs(
        artifact, planned.BOOK, "short", tmp_path, [], Launcher(launch), disturbed=True
    )
    assert started == ["paper/A/-1", "paper/L/-1"]


def test_runs_that_are_compared_are_made_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where times matter: first all points of grids, then every row at one seed before the next."""
    rows = {"A": {"method": "bome"}, "L": {"method": "bome", "line": True}}
    budgets = {"short": {"minutes": 1.0, "seeds": 2}}
    started: list[str] = []

    def launch(jobs: Sequence[job_layer.Job], folder: Path, report: ReportEnd) -> None:
        for job in jobs:
            started.append(job.folder.name.removeprefix("paper/"))
            planned.finish(tmp_path, job.folder.name, 1.0)
            report(job)

    def order(**changes: Any) -> list[str]:
        started.clear()
        shutil.rmtree(tmp_path / "paper", ignore_errors=True)
        spec = {"variants": {"paper": {}}, "rows": rows, "budgets": budgets, **changes}
        making.make_runs(
            planned.artifact(**spec), planned.BOOK, "short", tmp_path, [], Launcher(launch)
        )
        return started

    monkeypatch.setattr(making, "Names", lambda root, extra: Named())
    tries = [f"A/{point}-0" for point in (0.1, 0.2, 0.3)]
    timed = {"set": {"run.cpu_seconds": 9.0}}
    assert order(**timed) == [*tries, "A/0.1-1", "L/-1", "A/0.1-2", "L/-2"]
    no_grid = order(**timed, grid=None, select=None)
    assert no_grid == ["A/-0", "L/-0", "A/-1", "L/-1"]


def test_the_time_of_files(tmp_path: Path) -> None:
    """A folder that is made later is not older, and asking leaves no file behind."""
    from bench.reproduce.runner import file_time

    root = tmp_path / "runs"
    since = file_time(root)
    run = RunFolder(root, "t/a/x")
    run.path.mkdir(parents=True)
    run.describe({})
    assert run.was_begun_since(since)
    assert list((root / ".reproduce").iterdir()) == []
    (tmp_path / "file").write_text("")
    assert file_time(tmp_path / "file") >= since  # nothing can be written there
