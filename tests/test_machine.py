"""How busy a machine was beside a run: from /proc/stat by hand, and beside a busy process."""

import json
import multiprocessing
import time
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_module

from bench.runs import machine, stop
from bench.runs.launch import launch
from bench.runs.machine import Usage


def test_busy_ticks_are_all_but_those_of_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """user, nice, system, idle, iowait, irq, softirq, steal; guests are part of user and nice."""
    file = tmp_path / "stat"
    file.write_text("cpu  100 20 3 9999 7777 400 50 6 1000 1000\ncpu0 1 1 1 1 1 1 1 1 1 1\n")
    monkeypatch.setattr(machine, "PROC_STAT", file)
    monkeypatch.setattr(machine.os, "sysconf", {"SC_CLK_TCK": 100}.__getitem__)
    assert machine.busy_seconds() == pytest.approx(5.79)
    assert machine.usage().busy == pytest.approx(5.79)
    monkeypatch.setattr(machine, "PROC_STAT", tmp_path / "none")
    assert machine.busy_seconds() is None
    assert machine.usage().busy is None


@pytest.mark.parametrize(
    ("wall", "own", "busy", "others"),
    [
        (10.0, 8.0, 8.0, 0.0),
        (10.0, 8.0, 18.0, 1.0),
        (10.0, 0.0, 15.0, 1.5),
        (10.0, 8.0, 7.0, 0.0),  # ticks miss some work
        (10.0, 8.0, 6.0, None),  # they miss even this process: they say nothing
        (10.0, 8.0, 0.0, None),
        (0.24, 0.2, 0.2, None),  # too short for ticks
        (0.25, 0.2, 0.2, 0.0),
        (0.25, 0.1, 0.0, None),  # a short run too has to be seen itself
        (10.0, 8.0, None, None),
    ],
)
def test_how_many_cores_others_kept_busy(
    wall: float, own: float, busy: float | None, others: float | None
) -> None:
    since, now = Usage(5.0, 3.0, 100.0), Usage(5.0 + wall, 3.0 + own, busy and 100.0 + busy)
    if busy == 0.0:
        now = now._replace(busy=100.0)
    assert machine.others_cores(since, now) == pytest.approx(others)
    assert machine.others_cores(since._replace(busy=None), now) is None


def test_a_run_in_one_part_says_how_busy_the_machine_was_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that was stopped does not: nobody knows of the time before it went on."""
    spans = []
    paces = iter([1.5, 1.75, 2.75, 2.5, 3.5])  # before and after the seeds 0 and 1, before seed 2

    def others(since: Usage, now: Usage) -> float:
        spans.append(now.wall - since.wall)
        return 0.125

    def begin(seed: int) -> None:
        with initialize_config_module("conf", version_base="1.3"):
            launch(
                compose(
                    "config",
                    ["task=toy_coreset", "algorithm=bome", "run.steps=40", "run.every=10",
                     f"seed={seed}", f"run.root={tmp_path}", "run.threads=1"],
                )
            )  # fmt: skip

    def said(key: str = "others_cores") -> dict[int, Any]:
        found = [json.loads(file.read_text()) for file in tmp_path.rglob("summary.json")]
        return {summary["seed"]: summary["process"][key] for summary in found}

    monkeypatch.setattr(machine, "others_cores", others)
    monkeypatch.setattr(machine, "pace", paces.__next__)
    begin(0)
    assert said() == {0: 0.125}
    assert 0 < spans[0] < 60
    begin(1)
    asked = iter([False, False, False, True])

    def interrupt() -> None:
        if next(asked):
            raise KeyboardInterrupt

    with monkeypatch.context() as stopping:
        stopping.setattr(stop, "raise_if_asked", interrupt)
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            begin(2)
    assert said() == {0: 0.125, 1: 0.125}
    begin(2)
    assert said() == {0: 0.125, 1: 0.125, 2: None}
    assert said("pace_ms") == {0: 1.5, 1: 2.5, 2: None}
    assert next(paces, None) is None


def test_the_pace_is_the_least_of_ten_tries_in_milliseconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A try that other work delays is longer, never shorter."""
    spans = [0.5, 0.4, 0.3, 0.002, 0.3, 0.3, 0.3, 0.3, 0.3, 0.2]
    moments = iter(accumulate(chain.from_iterable((1.0, span) for span in spans)))
    monkeypatch.setattr(machine.time, "perf_counter", moments.__next__)
    assert machine.pace() == pytest.approx(2.0)
    assert next(moments, None) is None


def spin(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_a_busy_process_is_seen() -> None:
    """Whatever else the machine does, half a core of work beside this process shows."""
    if machine.busy_seconds() is None:
        pytest.skip("there is no /proc/stat")
    before: Any = machine.usage()
    busy = multiprocessing.get_context("fork").Process(target=spin, args=(1.0,))
    busy.start()
    busy.join()
    time.sleep(max(0.0, 1.1 - (time.perf_counter() - before.wall)))
    now = machine.usage()
    found = machine.others_cores(before, now)
    assert found is not None
    assert found * (now.wall - before.wall) > 0.8


def test_each_run_has_its_own_share_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([1.0, 3.0, 7.0])
    monkeypatch.setattr(machine, "_ends", [])
    monkeypatch.setattr(machine.time, "process_time", lambda: next(times))
    found = [machine.process_of_run() for _ in range(3)]
    assert [one["cpu_seconds"] for one in found] == [1.0, 2.0, 4.0]
    assert [one["earlier_runs"] for one in found] == [0, 1, 2]
