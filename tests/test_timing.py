"""Which runs' times may be compared, and which are made again before they may."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.reproduce import timing
from bench.reproduce.plan import Circumstances, PlannedRun, RecordedPart, Run
from bench.reproduce.points import Point
from bench.runs.files import write_json
from bench.runs.folder import RunFolder
from tests.test_claims import claimed, run
from tests.test_records import MACHINE


def recorded(
    pace: float | None,
    others: float | None = 0.0,
    device: str | None = "A CPU",
    commit: str = "c",
    instructions: str = "AVX2",
    threads: str = "1",
) -> Run:
    """A run that a record has, of a machine of this pace, beside which others kept cores busy."""
    job = PlannedRun(Point("paper", "A", (), ()), 1, "paper/A/-1")
    summary = {"status": "done", "process": {"others_cores": others, "pace_ms": pace}}
    part = RecordedPart((), Circumstances(commit, "s", threads, instructions, device))
    return Run(job, RunFolder(Path(), job.name), summary, part)


def in_folder(root: Path, when: int, pace: float | None, device: str = "A CPU") -> Run:
    """A run with a folder that ended at this time, in ns."""
    job = PlannedRun(Point("paper", "A", (), ()), 1, f"paper/A/{when}")
    folder, process = RunFolder(root, job.name), {"others_cores": 0.0, "pace_ms": pace}
    folder.path.mkdir(parents=True)
    summary: dict[str, Any] = {"status": "done", "reason": None, "last": {}, "process": process}
    write_json(folder.path / "environment.json", MACHINE | {"cpu": device, "threads": 1})
    write_json(folder.summary_file, summary)
    os.utime(folder.summary_file, ns=(when, when))
    return Run(job, folder, summary)


@pytest.mark.parametrize(
    ("some", "expected"),
    [
        ([recorded(1.0)], True),
        ([recorded(1.0), recorded(1.5), recorded(1.2)], True),
        ([recorded(1.0), recorded(1.51)], False),
        ([recorded(1.51), recorded(1.0)], False),
        ([recorded(1.2), recorded(1.7), recorded(1.0)], False),
        ([recorded(None), recorded(None)], True),  # as those of older records
        ([recorded(None), recorded(None, commit="d")], False),
        ([recorded(None), recorded(None, instructions="AVX512")], False),
        ([recorded(1.0), recorded(1.2, commit="d")], True),
        ([recorded(1.0), recorded(1.0, instructions="AVX512")], False),
        ([recorded(None), recorded(1.0)], False),
        ([recorded(1.0), recorded(1.0, device="Another CPU")], False),
        ([recorded(None), recorded(None, device=None)], False),
        ([recorded(1.0), recorded(1.0, threads="2")], False),
        ([recorded(1.0, threads="2"), recorded(1.0, threads="2")], True),
        ([recorded(1.0), recorded(1.0, others=0.3)], False),
        ([recorded(1.0, others=None)], False),
    ],
)
def test_whether_times_may_be_compared(some: list[Run], expected: bool) -> None:
    assert timing.can_compare(some) is expected


def test_a_run_that_failed_needs_no_time() -> None:
    """It never comes to a target, however long it took; as short a run is not seen alone."""
    claim = {"kind": "first", "metric": "loss", "rows": ["A"], "than": ["B"], "value": 0.5}
    first = claimed({**claim, "on": "cpu_seconds"})
    runs = {"A": [run(1)], "B": [run(1, "diverged", others=None, pace=9.0)]}
    busy = {"A": [run(1)], "B": [run(1, others=None)]}
    assert timing.unlike_seeds(first, runs, by_clock=False) == set()
    assert timing.unlike_seeds(first, busy, by_clock=False) == {1}
    assert list(timing.by_seed([*runs["A"], *runs["B"]])) == [1]
    assert timing.by_seed(runs["B"]) == {}


def test_the_device_is_that_of_the_runs_folder(tmp_path: Path) -> None:
    one = in_folder(tmp_path, 1, 1.0)
    assert timing.can_compare([one, in_folder(tmp_path, 2, 1.2)])
    assert timing.can_compare([one, recorded(1.2)])
    assert not timing.can_compare([one, in_folder(tmp_path, 3, 1.2, device="Another CPU")])


def test_disturbed_runs_are_repeated_first() -> None:
    fast, slow, busy = recorded(1.0), recorded(3.0), recorded(1.0, others=0.3)
    assert timing.runs_to_repeat([fast, slow, busy]) == [busy]
    assert timing.runs_to_repeat([fast, fast]) == []


def test_runs_that_are_not_like_the_newest_are_repeated(tmp_path: Path) -> None:
    """A run that was made again is the newest, so that it is kept when the command goes on."""
    old, older = in_folder(tmp_path, 5, 1.0), in_folder(tmp_path, 4, 1.1)
    new, kept = in_folder(tmp_path, 9, 3.0), recorded(3.1)
    assert timing.runs_to_repeat([old, new, older, kept]) == [old, older]
    assert timing.runs_to_repeat([old, older, kept]) == [kept]
    assert timing.runs_to_repeat([new, kept]) == []


def test_runs_that_are_like_the_newest_and_not_like_each_other_are_repeated(tmp_path: Path) -> None:
    """Otherwise nothing would be made again, and the seed would stay left out."""
    slow, fast, between = (
        in_folder(tmp_path, age, pace) for age, pace in ((1, 1.9), (2, 1.0), (3, 1.3))
    )
    assert not timing.can_compare([slow, fast, between])
    assert timing.runs_to_repeat([slow, fast, between]) == [slow]
    assert timing.runs_to_repeat([recorded(1.9), fast, between]) == [recorded(1.9)]


def test_what_worked_beside_runs_is_no_matter_for_their_speed(tmp_path: Path) -> None:
    busy = recorded(1.0, others=2.0)
    assert timing.runs_of_other_speed([recorded(1.2), busy]) == []
    old, new = in_folder(tmp_path, 5, 1.0), in_folder(tmp_path, 9, 3.0)
    assert timing.runs_of_other_speed([old, busy, new]) == [old, busy]


def test_all_are_repeated_where_none_has_a_folder() -> None:
    fast, slow = recorded(1.0), recorded(3.0)
    assert timing.runs_to_repeat([fast, slow]) == [fast, slow]


def clocked(seed: int, steps: int, pace: float | None = 1.0, others: float = 0.0) -> Run:
    """A run of ten CPU seconds."""
    found = run(seed, others=others, pace=pace, loss=[0.5])
    return replace(found, summary={**found.summary, "last": {"step": steps, "cpu_seconds": 10.0}})


def test_work_beside_a_run_shows_in_what_it_got_done() -> None:
    """A run that was made alone counts whatever it did, and a slow machine is no other work."""
    slowed = clocked(3, 50, others=1.0)
    row = [
        clocked(0, 100), clocked(1, 40), clocked(2, 70, others=1.0), slowed,
        clocked(4, 34, pace=3.0, others=1.0), clocked(5, 9, pace=None, others=1.0),
    ]  # fmt: skip
    assert timing.slowed_runs(row) == [slowed]
    assert timing.slowed_runs([slowed]) == timing.slowed_runs([]) == []


def test_a_seed_with_a_slowed_run_compares_no_ends_that_a_clock_sets() -> None:
    above = claimed({"kind": "above", "metric": "loss", "rows": ["A"], "than": ["B"]})
    runs = {
        "A": [clocked(0, 100), clocked(1, 50, others=1.0), clocked(2, 90, others=1.0)],
        "B": [clocked(seed, 30) for seed in range(3)],
    }
    assert timing.unlike_seeds(above, runs, by_clock=True) == {1}
    assert timing.unlike_seeds(above, runs, by_clock=False) == set()
