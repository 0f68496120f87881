"""Lanes as runs of their own: times shared out, ends apart, folders, and who goes with whom.

What takes the steps is a stand-in with a clock that is made up; tests/test_vectorize.py has the
batched steps themselves.
"""

import copy
import json
import os
import resource
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_module
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import bench.core.loop
from bench.compiled import batched
from bench.compiled.batched import Apart, Lane, TooLarge
from bench.compiled.symbols import At, NoGraph, Notes, Number
from bench.core.loop import Standing, advance
from bench.core.settings import BadSetting, build
from bench.core.task import Context
from bench.runs import driver, lanes, launch, lock, machine, opening, recording, stop
from bench.sweeps import bundling, jobs

Config = dict[str, Any]
RATES = (0.3, 0.1, 1e200, 0.05)  # ends early, goes on, diverges, goes on


class Clock:
    """Wall and CPU time, which only move where it is said."""

    wall, cpu = 50.0, 20.0


class Stand:
    """A stand-in for `batched.Side`: a call takes 12 s and 24 CPU s for each step, whatever it
    holds."""

    made: list["Stand"]
    clock: Clock
    refuses: Callable[[Sequence[Lane]], None]
    recording_at: tuple[int, ...]  # steps whose form is new: 6 s and 9 CPU s, none of the steps'
    breaks: Callable[[int], None]

    def __init__(
        self,
        own: Sequence[Lane],
        algorithm: Any,
        compile: bool = False,
        most: float = 0.0,
        against: int = 0,
    ):
        self.against = against
        self.lanes, self.compile, self.most, self.off = list(own), compile, most, (0.0, 0.0)
        self.algorithm = algorithm
        self.calls: list[tuple[int, int]] = []
        self.made.append(self)

    def prepare(self, standings: Sequence[Standing]) -> None:
        assert len(standings) == len(self.lanes)
        Stand.refuses(self.lanes)

    def __call__(self, standings: Sequence[Standing], many: int) -> list[Standing]:
        assert len({s.step for s in standings}) == 1
        step = standings[0].step
        self.calls.append((step, many))
        Stand.breaks(step)
        if step in self.recording_at:
            self.off = (self.off[0] + 6, self.off[1] + 9)
            self.clock.wall += 6
            self.clock.cpu += 9
        self.clock.wall += 12 * many
        self.clock.cpu += 24 * many
        found = []
        for lane, s in zip(self.lanes, standings, strict=True):
            for _ in range(many):
                s = advance(lane.task, lane.algorithm, lane.seed, s)
            found.append(s)
        return found


@pytest.fixture
def stand(monkeypatch: pytest.MonkeyPatch) -> type[Stand]:
    clock = Clock()
    monkeypatch.setattr(Stand, "made", [], raising=False)
    monkeypatch.setattr(Stand, "clock", clock, raising=False)
    monkeypatch.setattr(Stand, "refuses", lambda own: None, raising=False)
    monkeypatch.setattr(Stand, "breaks", lambda step: None, raising=False)
    monkeypatch.setattr(Stand, "recording_at", (), raising=False)
    monkeypatch.setattr(lanes, "Side", Stand)
    monkeypatch.setattr(machine, "clock", lambda device: lambda: clock.wall)
    monkeypatch.setattr(driver, "record_first_step", lambda *arguments: None)
    monkeypatch.setattr(bench.core.loop.time, "process_time", lambda: clock.cpu)
    return Stand


@pytest.fixture(scope="module")
def composed() -> Config:
    settings = (
        "task=toy_minimax", "algorithm=optimistic_gd", "run.steps=20", "run.every=5",
        "run.threads=1", "run.dtype=float64", "run.checkpoint=0", "run.until=distance",
        "run.target=4", "vectorize=[algorithm.outer_lr]",
    )  # fmt: skip
    with initialize_config_module("conf", version_base="1.3"):
        return launch.resolve(compose("config", list(settings)))


Configs = Callable[..., list[Config]]


@pytest.fixture
def configs(composed: Config, tmp_path: Path) -> Configs:
    """A configuration for each rate; `run` changes its part run."""

    def made(*rates: float, root: str = "runs", **run: Any) -> list[Config]:
        found = []
        for rate in rates or RATES:
            config = copy.deepcopy(composed)
            config["algorithm"]["outer_lr"] = rate
            config["run"] |= {"root": str(tmp_path / root), **run}
            found.append(config)
        return found

    return made


Said = list[tuple[int, str, str]]


def performed(configs: Sequence[Config]) -> Said:
    said: Said = []
    lanes.perform_lanes(configs, lambda *what: said.append(what))
    return sorted(said)


def rows(config: Config) -> list[dict[str, Any]]:
    return launch.place(config).history()


def summary(config: Config) -> dict[str, Any]:
    found = launch.place(config).summary()
    assert found is not None
    return found


def checkpoint_of(config: Config) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(launch.place(config).checkpoint, weights_only=True)
    return found


def without_times(config: Config) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if "seconds" not in k} for row in rows(config)]


def test_lanes_that_end_apart(stand: type[Stand], configs: Configs) -> None:
    """The first reaches its target at step 10, the third diverges by step 5; the others go on."""
    stand.recording_at = (7,)
    ours = configs()
    assert performed(ours) == [(k, "", "") for k in range(4)]
    # 12 s of a step are shared by four, from step 5 by three, from step 10 by two
    expected = {
        0: [(0, 0, 0), (5, 15, 30), (10, 35, 70)],
        1: [(0, 0, 0), (5, 15, 30), (10, 35, 70), (15, 65, 130), (20, 95, 190)],
        2: [(0, 0, 0), (5, 15, 30)],
    }
    expected[3] = expected[1]
    for k, times in expected.items():
        found = rows(ours[k])
        assert [row["step"] for row in found] == [step for step, _, _ in times]
        assert [row["seconds"] for row in found] == pytest.approx([wall for _, wall, _ in times])
        assert [row["cpu_seconds"] for row in found] == pytest.approx([cpu for *_, cpu in times])
    ends = [summary(config)["status"] for config in ours]
    assert ends == ["done", "done", "diverged", "done"]
    assert summary(ours[2])["reason"] == "x or y is not finite at step 5 (x and y)"
    assert summary(ours[0])["reason"] is None
    assert all(summary(config)["amortised"] is True for config in ours)
    assert all(summary(config)["process"]["pace_ms"] is None for config in ours)
    assert all("compile_seconds" not in summary(config) for config in ours)
    # half of them have ended: the others go on by themselves
    assert [[lane.chosen["outer_lr"] for lane in side.lanes] for side in stand.made] == [
        list(RATES), [0.1, 0.05],
    ]  # fmt: skip
    assert stand.made[0].calls == [(k, 1) for k in range(10)]
    assert stand.made[1].calls == [(k, 1) for k in range(10, 20)]
    assert {side.most for side in stand.made} == {4 * 2**30}
    assert {side.compile for side in stand.made} == {False}


def test_each_lane_is_its_single_run(stand: type[Stand], configs: Configs) -> None:
    """Rows, counts, samples and the last state."""
    ours, single = configs(), configs(root="single")
    performed(ours)
    for one, other in zip(ours, single, strict=True):
        code = launch.perform(other, quiet=True)
        assert code == (summary(one)["status"] != "done")
        assert without_times(one) == without_times(other)
        if summary(one)["status"] == "done":
            mine, alone = checkpoint_of(one), checkpoint_of(other)
            torch.testing.assert_close(mine["leaves"], alone["leaves"], rtol=0, atol=0)
            for key in ("step", "calls", "samples", "name"):
                assert mine[key] == alone[key]
            last = rows(one)[-1]
            assert [mine[k] for k in ("step", "seconds")] == [last[k] for k in ("step", "seconds")]
        mine, alone = summary(one), summary(other)
        assert set(mine) - set(alone) == {"amortised"}
        assert (mine["name"], mine["metric"]) == (alone["name"], alone["metric"])


def test_a_lane_that_diverges_in_its_first_step(stand: type[Stand], configs: Configs) -> None:
    """The lane has not paused before, so that only its rows are kept; the others go on together."""
    ours = configs(0.1, 1e200, 0.05, every=1, steps=2, dtype="float32")
    performed(ours)
    ends = [(summary(config)["status"], len(rows(config))) for config in ours]
    assert ends == [("done", 3), ("diverged", 2), ("done", 3)]
    assert len(stand.made) == 1


def test_an_environment_names_the_lanes(stand: type[Stand], configs: Configs) -> None:
    ours = configs(0.1, 0.05)
    performed(ours)
    names = [launch.place(config).name for config in ours]
    for config in ours:
        folder = launch.place(config)
        assert folder.environment()["lanes"] == names
        assert not (folder.path / lock.NAME).exists()
    alone = configs(0.2)
    performed(alone)
    assert launch.place(alone[0]).environment()["lanes"] == []
    assert "amortised" not in summary(alone[0])


def test_what_compiling_took_is_told(stand: type[Stand], configs: Configs) -> None:
    """A lane that ends sooner tells what compiling had taken until then. Here the first one ends
    at step 10, and the other goes on by itself, which compiles another form."""
    stand.recording_at = (7, 12)
    ours = configs(0.3, 0.1, compile=True)
    performed(ours)
    assert [side.compile for side in stand.made] == [True, True]
    assert [(side.calls[0], side.off) for side in stand.made] == [
        ((0, 1), (6, 9)),
        ((10, 1), (6, 9)),
    ]
    assert 6 <= summary(ours[0])["compile_seconds"] < 7
    assert 12 <= summary(ours[1])["compile_seconds"] < 13


def test_the_steps_of_lanes_are_those_of_the_ones_that_go_on(
    stand: type[Stand], configs: Configs
) -> None:
    """If one of three lanes has ended it may stay among them, and nobody reads what becomes of
    it. When half of the lanes have ended, the others go on in a side of their own, from where
    they are."""
    runs = [
        opening.build_run(config, launch.place(config), torch.device("cpu"), {})
        for config in configs(0.1, 0.05, 0.2)
    ]
    steps = lanes.Shrinking(runs)
    with torch.no_grad():
        all_three = steps({k: run.start for k, run in enumerate(runs)}, 2)
        assert sorted(all_three.standings) == [0, 1, 2]
        two = steps({k: all_three.standings[k] for k in (0, 2)}, 1)
        assert sorted(two.standings) == [0, 2]
        assert {s.step for s in two.standings.values()} == {3}
        one = steps({2: two.standings[2]}, 3)
    assert [len(side.lanes) for side in stand.made] == [3, 1]
    assert [side.calls for side in stand.made] == [[(0, 2), (2, 1)], [(3, 3)]]
    alone = runs[2].start
    with torch.no_grad():
        for _ in range(6):
            alone = advance(runs[2].task, runs[2].algorithm, 0, alone)
    assert sorted(one.standings) == [2]
    assert torch.equal(one.standings[2].state.x, alone.state.x)
    assert (one.standings[2].step, one.standings[2].calls) == (6, alone.calls)


def test_times_of_recording_are_none_of_the_steps(stand: type[Stand], configs: Configs) -> None:
    """Each call tells of its own only."""
    stand.recording_at = (1, 3)
    runs = [
        opening.build_run(config, launch.place(config), torch.device("cpu"), {})
        for config in configs(0.1, 0.05)
    ]
    steps, standings = lanes.Shrinking(runs), {k: run.start for k, run in enumerate(runs)}
    off = []
    with torch.no_grad():
        for _ in range(5):
            taken = steps(standings, 1)
            standings = taken.standings
            off.append((taken.seconds, taken.cpu_seconds))
    assert off == [(0, 0), (6, 9), (0, 0), (6, 9), (0, 0)]
    assert 12 <= steps.compile_seconds < 13


def test_lanes_go_on_from_where_each_stands(stand: type[Stand], configs: Configs) -> None:
    """Stopped at step 7, they go on together; one that is at its start goes on as a run alone, and
    its seconds are its own."""

    def stopping(step: int) -> None:
        if step == 7:
            raise stop.Preempted(15)

    ours, whole = configs(0.1, 0.05, 0.3), configs(0.1, 0.05, 0.3, root="whole")
    stand.breaks = stopping
    with pytest.raises(stop.Preempted):
        performed(ours[:2])
    for config in ours[:2]:
        status = launch.place(config).status_note()
        assert (status["status"], status["step"]) == ("preempted", 7)
        assert status["reason"] == "stopped by SIGTERM"
        assert checkpoint_of(config)["step"] == 7
    stand.breaks = lambda step: None
    stand.made.clear()
    assert performed(ours) == [(k, "", "") for k in range(3)]
    assert [(len(side.lanes), side.calls[0]) for side in stand.made] == [(2, (7, 1))]
    lanes_of = [launch.place(config).environment()["lanes"] for config in ours]
    assert [len(names) for names in lanes_of] == [2, 2, 0]
    performed(whole)
    for one, other in zip(ours, whole, strict=True):
        assert without_times(one) == without_times(other)
        assert summary(one)["status"] == "done"


def test_a_second_signal_keeps_no_lane_from_being_saved(
    stand: type[Stand], configs: Configs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopping(step: int) -> None:
        if step == 7:
            stopped.append(step)
            raise stop.Preempted(15)

    def save(*given: Any) -> None:
        if stopped:
            os.kill(os.getpid(), signal.SIGTERM)
        saved(*given)

    stopped: list[int] = []

    saved, before = recording.checkpoint.save, signal.signal(signal.SIGTERM, lambda *given: None)
    monkeypatch.setattr(recording.checkpoint, "save", save)
    stand.breaks = stopping
    ours = configs(0.1, 0.05)
    try:
        with pytest.raises(stop.Preempted):
            performed(ours)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert [checkpoint_of(config)["step"] for config in ours] == [7, 7]
    assert {launch.place(config).status_note()["status"] for config in ours} == {"preempted"}


def test_two_lanes_are_tried_first_where_their_data_are_stacked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[Any] = []
    runs: Any = [SimpleNamespace(task=object(), start=SimpleNamespace(step=0)) for _ in range(2)]
    monkeypatch.setattr(lanes, "Shrinking", tried.append)
    for joined in (True, False):
        monkeypatch.setattr(lanes, "are_joined", lambda runs, joined=joined: joined)
        lanes.try_two(runs)
    assert tried == [runs]


def test_lanes_that_have_only_to_be_told_as_ended_take_no_step(
    stand: type[Stand], configs: Configs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were killed between their last checkpoint and their summary. A step after the last one
    has no batch where a stream ends."""

    def refusing(*arguments: Any) -> None:
        raise BadSetting("run.steps: the stream ends")

    ours = configs(0.1, 0.05, until=None, target=None)
    performed(ours)
    before = [summary(config) for config in ours]
    for config in ours:
        launch.place(config).summary_file.unlink()
    stand.refuses = refusing
    monkeypatch.setattr(driver, "record_first_step", refusing)
    assert performed(ours) == [(0, "", ""), (1, "", "")]
    for config, old in zip(ours, before, strict=True):
        assert summary(config)["last"] == old["last"]
        assert summary(config)["status"] == "done"


def test_a_failure_is_noted_in_every_lane_that_was_going(
    stand: type[Stand], configs: Configs
) -> None:
    def breaking(step: int) -> None:
        if step == 12:
            raise ArithmeticError("bad luck")

    stand.breaks = breaking
    ours = configs()
    with pytest.raises(ArithmeticError):
        performed(ours)
    for k in (1, 3):
        status = launch.place(ours[k]).status_note()
        assert (status["status"], status["reason"]) == ("failed", "ArithmeticError: bad luck")
        assert "in breaking" in status["traceback"]
    assert summary(ours[0])["status"] == "done"
    assert summary(ours[2])["status"] == "diverged"


def test_a_failure_at_the_end_of_a_lane_is_its_own(
    stand: type[Stand], configs: Configs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others go on to their ends, and the error is raised then."""
    ours = configs()
    names = [launch.place(config).name for config in ours]
    ends, whole = list[str](), recording.Recording.end

    def ending(self: Any, *arguments: Any) -> Any:
        ends.append(self.run.folder.name)
        if self.run.folder.name == names[0]:
            raise ValueError("the picture fails")
        return whole(self, *arguments)

    monkeypatch.setattr(recording.Recording, "end", ending)
    with pytest.raises(ValueError, match="the picture fails"):
        performed(ours)
    assert sorted(ends) == sorted(names)
    assert ends.index(names[0]) < ends.index(names[1])  # one ended behind it
    status = launch.place(ours[0]).status_note()
    assert (status["status"], status["reason"]) == ("failed", "ValueError: the picture fails")
    assert launch.place(ours[0]).summary() is None
    for k in (1, 2, 3):
        assert summary(ours[k])["status"] in ("done", "diverged")
        assert not launch.place(ours[k]).status_note()


def test_a_lane_that_has_lost_rows_is_refused_alone(stand: type[Stand], configs: Configs) -> None:
    def interrupting(step: int) -> None:
        if step == 10:
            raise KeyboardInterrupt

    stand.breaks = interrupting
    ours = configs(0.1, 0.05, 0.07)
    with pytest.raises(KeyboardInterrupt):
        performed(ours)
    stand.breaks = lambda step: None  # type: ignore[assignment]
    file = launch.place(ours[1]).path / "history.jsonl"
    first, _, *rest = file.read_text().splitlines(keepends=True)
    file.write_text("".join([first, *rest]))
    said = performed(ours)
    assert [(k, status) for k, status, _ in said] == [(0, ""), (1, "refused"), (2, "")]
    assert "history.jsonl" in said[1][2]
    assert file.read_text() == "".join([first, *rest])
    assert [summary(ours[k])["status"] for k in (0, 2)] == ["done", "done"]


def test_lanes_that_have_no_graph_from_some_step_on_have_not_failed(
    stand: type[Stand], configs: Configs
) -> None:
    """Two have ended by then; the others are refused, and go on by themselves."""

    def breaking(step: int) -> None:
        if step == 12:
            raise NoGraph("it looks")

    stand.breaks = breaking
    ours = configs()
    line = "vectorize=[algorithm.outer_lr]: it looks; write vectorize=[]"
    assert performed(ours) == [
        (0, "", ""), (1, "refused", line), (2, "", ""), (3, "refused", line),
    ]  # fmt: skip
    assert [launch.place(config).status_note() for config in ours] == [{}] * 4
    for config in (ours[1], ours[3]):
        assert launch.perform({**config, "vectorize": []}, quiet=True) == 0
        (entry,) = launch.place(config).environment()["continued"]
        assert entry["step"] == 10


def test_lanes_that_become_too_large_are_halved_without_those_that_have_ended(
    stand: type[Stand], configs: Configs
) -> None:
    def breaking(step: int) -> None:
        if step == 12 and len(stand.made) == 2:
            raise TooLarge("much")

    stand.breaks = breaking
    ours = configs()
    assert performed(ours) == [(k, "", "") for k in range(4)]
    own = [[lane.chosen.get("outer_lr") for lane in side.lanes] for side in stand.made]
    assert own == [list(RATES), [0.1, 0.05]]  # a half of one is a run alone
    assert [side.calls[0][0] for side in stand.made if side.calls] == [0, 10]  # checkpoints
    assert [rows(config)[-1]["step"] for config in ours] == [10, 20, 5, 20]


def test_lanes_that_nobody_asked_for_fail_without_their_runs(
    stand: type[Stand], configs: Configs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What broke may be of the lanes alone: each run that has not ended is made by itself."""

    def breaking(step: int) -> None:
        if step == 12:
            raise ArithmeticError("bad luck")

    stand.breaks = breaking
    own = [
        jobs.Job(config, launch.place(config), tmp_path / f"{k}.json", if_faster=True)
        for k, config in enumerate(configs())
    ]
    together = own[0]._replace(others=tuple(own[1:]))
    jobs.make_job(together)
    assert "ArithmeticError: bad luck" in capsys.readouterr().err
    assert [job.state().status for job in own] == ["done", "refused", "diverged", "refused"]
    apart = bundling.take_apart(together)
    assert [job.folder for job in apart] == [own[1].folder, own[3].folder]
    for job in apart:
        jobs.make_job(job)
        assert job.state().status == "done"


def test_an_interrupt_saves_what_was_going(stand: type[Stand], configs: Configs) -> None:
    def interrupting(step: int) -> None:
        if step == 7:
            raise KeyboardInterrupt

    stand.breaks = interrupting
    ours = configs(0.1, 0.05)
    with pytest.raises(KeyboardInterrupt):
        performed(ours)
    for config in ours:
        status = launch.place(config).status_note()
        assert (status["status"], status["reason"], status["step"]) == ("interrupted", "stopped", 7)


def test_lanes_may_have_more_files_open_than_a_process_has_at_first(
    stand: type[Stand], configs: Configs
) -> None:
    """Each has its lock and its history open; 1,024 in all are usual."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    there = {int(name) for name in os.listdir("/proc/self/fd")}
    free = [number for number in range(1024) if number not in there]
    many = [0.01 + 0.001 * k for k in range(20)]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (free[30], before[1]))
        assert performed(configs(*many, steps=5)) == [(k, "", "") for k in range(20)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize(
    ("soft", "hard", "expected"),
    [(64, 4096, 4096), (4096, 4096, None), (256, -1, 10_240), (20_000, -1, None), (-1, -1, None)],
)
def test_the_soft_limit_of_open_files_becomes_the_hard_one(
    soft: int, hard: int, expected: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is no hard one, macOS still has one of its own."""
    assert resource.RLIM_INFINITY == -1
    said: list[Any] = []
    monkeypatch.setattr(machine.resource, "getrlimit", lambda what: (soft, hard))
    monkeypatch.setattr(machine.resource, "setrlimit", lambda what, to: said.append((what, to)))
    machine.allow_open_files()
    assert said == ([(resource.RLIMIT_NOFILE, (expected, hard))] if expected else [])


def test_some_are_made_while_others_cannot_be(stand: type[Stand], configs: Configs) -> None:
    """Busy, done before, and refused: each is told, and the rest is made."""
    ours = configs(0.1, 0.05, 0.3, 0.2)
    performed(ours[1:2])
    ours[2]["run"]["seconds"] = 1.0
    stand.made.clear()
    with launch.place(ours[0]).lock():
        said = performed(ours)
    assert [(k, status) for k, status, _ in said] == [(0, "busy"), (1, ""), (2, "refused"), (3, "")]
    assert "is being written by process" in said[0][2]
    assert said[2][2].startswith("run.seconds=1.0: lanes share their time")
    assert stand.made == []  # what is left is one run
    assert summary(ours[3])["status"] == "done"
    assert not launch.place(ours[2]).path.exists()


def asking(settings: Config, context: Context) -> Any:
    """`build` for a task that asks for its seed."""
    assert context.seed in (0, 1)
    return build(settings, context)


def test_lanes_whose_data_are_apart_go_in_groups_of_one_task(
    stand: type[Stand], configs: Configs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(own: Sequence[Lane]) -> None:
        if len({id(lane.task) for lane in own}) > 1:
            raise Apart("different")

    stand.refuses = refuse  # type: ignore[assignment]
    ours = configs(0.1, 0.2, 0.1, 0.2)
    for config, seed in zip(ours, (0, 0, 1, 1), strict=True):
        config["seed"] = seed
    monkeypatch.setattr(lanes, "build", asking)
    assert performed(ours) == [(k, "", "") for k in range(4)]
    groups = [[lane.seed for lane in side.lanes] for side in stand.made if side.calls]
    assert groups == [[0, 0], [1, 1]]
    tasks = [{id(lane.task) for lane in side.lanes} for side in stand.made]
    assert [len(found) for found in tasks] == [2, 1, 1]  # of one seed there is one task


def test_lanes_that_are_too_large_are_halved(stand: type[Stand], configs: Configs) -> None:
    def refuse(own: Sequence[Lane]) -> None:
        if len(own) > 2:
            raise TooLarge("much")

    stand.refuses = refuse  # type: ignore[assignment]
    ours = configs(0.1, 0.2, 0.15, 0.05, 0.25)
    assert performed(ours) == [(k, "", "") for k in range(5)]
    begun = [side for side in stand.made if side.calls and side.calls[0] == (0, 1)]
    groups = [[lane.chosen.get("outer_lr") for lane in side.lanes] for side in begun]
    assert groups == [[0.1, 0.2], [0.05, 0.25]]
    assert all(len(rows(config)) > 1 for config in ours)


def test_seeds_share_a_task_that_does_not_ask_for_them(
    stand: type[Stand], configs: Configs
) -> None:
    ours = configs(0.1, 0.1)
    ours[1]["seed"] = 1
    assert performed(ours) == [(0, "", ""), (1, "", "")]
    (side,) = stand.made
    assert side.lanes[0].task is side.lanes[1].task
    assert [lane.seed for lane in side.lanes] == [0, 1]


def test_a_shared_task_that_asks_for_the_seed_too_late_is_found_out() -> None:
    kept: list[Context] = []

    def late(settings: Config, context: Context) -> Any:
        kept.append(context)
        return object()

    tasks, here = lanes.SharedTasks(), Context(seed=3, data_root=Path("d"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lanes, "build", late)
        assert tasks({"a": 1}, here) is tasks({"a": 1}, Context(seed=4))
        assert tasks({"a": 2}, here) is not tasks({"a": 1}, here)
    assert len(kept) == 2
    assert (kept[0].data_root, kept[0].dtype) == (here.data_root, here.dtype)
    with pytest.raises(NoGraph, match="only after it is built"):
        assert kept[0].seed


def test_a_run_whose_opening_finds_that_there_are_no_lanes_is_told_so_too(
    stand: type[Stand], configs: Configs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(*_: Any) -> Any:
        raise NoGraph("its task asks too late")

    monkeypatch.setattr(lanes, "open_lane", late)
    asked = performed(configs(0.1, 0.2))
    assert asked == [(k, "refused", "its task asks too late") for k in (0, 1)]


def test_lanes_that_single_runs_outrun_are_refused(
    stand: type[Stand], configs: Configs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are compared with as many processes as the cores allow at a run's threads."""
    monkeypatch.setattr("joblib.cpu_count", lambda: 6)
    said: Said = []
    lanes.perform_lanes(
        configs(0.1, 0.2, threads=2), lambda *what: said.append(what), if_faster=True
    )
    assert [side.against for side in stand.made] == [3]
    assert sorted(said) == [(0, "", ""), (1, "", "")]
    assert performed(configs(0.1, 0.2, root="asked")) == [(0, "", ""), (1, "", "")]
    assert stand.made[-1].against == 0


def test_two_runs_tell_whether_the_tasks_of_the_others_are_to_be_built(
    stand: type[Stand], configs: Configs, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[int] = []

    def counted(settings: Config, context: Context) -> Any:
        built.append(context.seed)
        return build(settings, context)

    def refuse(own: Sequence[Lane]) -> None:
        raise Apart("large")

    stand.refuses = refuse  # type: ignore[assignment]
    monkeypatch.setattr(lanes, "build", counted)
    ours = configs(*[0.1] * 4)
    for seed, config in enumerate(ours):
        config["seed"] = seed
    said: Said = []
    lanes.perform_lanes(ours, lambda *what: said.append(what), if_faster=True)
    assert sorted(said) == [(k, "refused", "large") for k in range(4)]
    assert built == [0, 1]
    assert not any(launch.place(config).path.exists() for config in ours)


def test_halves_whose_data_are_apart_lose_nobody(
    stand: type[Stand], configs: Configs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(own: Sequence[Lane]) -> None:
        if len(own) > 2:
            raise TooLarge("much")
        if len({id(lane.task) for lane in own}) > 1:
            raise Apart("different")

    stand.refuses = refuse  # type: ignore[assignment]
    ours = configs(0.1, 0.2, 0.15, 0.05)
    for config, seed in zip(ours, (0, 1, 0, 1), strict=True):
        config["seed"] = seed
    monkeypatch.setattr(lanes, "build", asking)
    assert performed(ours) == [(k, "", "") for k in range(4)]
    assert not any(side.calls for side in stand.made)  # each goes on as a run alone
    assert [launch.place(config).environment()["lanes"] for config in ours] == [[]] * 4


def test_what_is_no_graph_is_refused_with_its_reason(stand: type[Stand], configs: Configs) -> None:
    def refuse(own: Sequence[Lane]) -> None:
        raise NoGraph("it looks")

    stand.refuses = refuse  # type: ignore[assignment]
    said = performed(configs(0.1, 0.2))
    line = "vectorize=[algorithm.outer_lr]: it looks; write vectorize=[]"
    assert said == [(0, "refused", line), (1, "refused", line)]
    assert not any(launch.place(config).path.exists() for config in configs(0.1, 0.2))


def test_a_first_step_that_is_no_graph_refuses_its_group(
    stand: type[Stand], configs: Configs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(task: Any, algorithm: Any, seed: int, s: Any, setting: str, instead: str) -> None:
        raise BadSetting(f"{setting}, {instead}, {seed}, {s.step}")

    monkeypatch.setattr(driver, "record_first_step", refused)
    line = "vectorize=[algorithm.outer_lr], [], 0, 0"
    assert performed(configs(0.1, 0.2)) == [(0, "refused", line), (1, "refused", line)]
    assert stand.made == []


# a pair of configurations, and whether they go side by side under vectorize=KEYS
KEYS = ["seed", "algorithm.lr", "task.noise", "algorithm.outer.lr"]
BASE: Config = {
    "seed": 0,
    "vectorize": KEYS,
    "task": {"_target_": "t", "noise": 1, "n": 4},
    "algorithm": {"_target_": "a", "lr": 0.1, "T": 1, "outer": {"_target_": "o", "lr": 0.1}},
    "run": {"steps": 4, "threads": 1},
}
PAIRS: list[tuple[dict[str, Any], bool]] = [
    ({}, True),
    ({"seed": 5}, True),
    ({"task.noise": 7}, True),  # of the task whatever is to vectorise
    ({"task.n": 5}, False),
    ({"algorithm.lr": 0.7}, True),
    ({"algorithm.outer.lr": 0.7}, True),
    ({"algorithm.lr": None}, False),
    ({"algorithm.lr": 1}, False),  # a count
    ({"algorithm.T": 2}, False),
    ({"algorithm.outer._target_": "p"}, False),
    ({"run.steps": 5}, False),
]


def changed(base: Config, values: dict[str, Any]) -> Config:
    found = copy.deepcopy(base)
    for path, value in values.items():
        *parents, last = path.split(".")
        node = found
        for parent in parents:
            node = node[parent]
        node[last] = value
    return found


@pytest.mark.parametrize(("values", "together"), PAIRS, ids=str)
def test_who_goes_with_whom(values: dict[str, Any], together: bool) -> None:
    pair = [BASE, changed(BASE, values)]
    before = copy.deepcopy(pair)
    assert lanes.group_lanes(pair, [(), ()]) == ([[0, 1]] if together else [[0], [1]])
    assert lanes.group_lanes(pair, [("a=1",), ("a=2",)]) == [[0], [1]]
    assert pair == before  # nothing is written into them


def test_groups_keep_their_order() -> None:
    other = changed(BASE, {"algorithm.T": 2})
    assert lanes.group_lanes([BASE, other, BASE, other], [()] * 4) == [[0, 2], [1, 3]]
    none = [changed(BASE, {"vectorize": []})] * 2
    assert lanes.group_lanes(none, [(), ()]) == [[0], [1]]  # nothing is to vectorise
    seeds = [changed(BASE, {"vectorize": ["seed"], "algorithm.lr": lr}) for lr in (0.1, 0.2)]
    assert lanes.group_lanes(seeds, [(), ()]) == [[0], [1]]


@pytest.mark.parametrize(
    ("key", "word"),
    [
        ("algorithm.nope", "there is no such setting"),
        ("algorithm.lr.x", "there is no such setting"),
        ("nope", "there is no such setting"),
        ("run.steps", "settings of the algorithm or task"),
        ("task", "settings of the algorithm or task"),
        ("algorithm._target_", "settings of the algorithm or task"),
        ("vectorize", "settings of the algorithm or task"),
    ],
)
def test_settings_that_cannot_be_vectorised_are_named(key: str, word: str) -> None:
    with pytest.raises(BadSetting, match=f"vectorize={key}: .*{word}"):
        lanes.node_of(BASE, key)


def test_the_place_of_a_setting() -> None:
    assert lanes.node_of(BASE, "seed") == (BASE, "seed")
    assert lanes.node_of(BASE, "algorithm.outer.lr") == (BASE["algorithm"]["outer"], "lr")
    assert lanes.node_of(BASE, "task.noise") == (BASE["task"], "noise")


def test_the_numbers_of_a_method() -> None:
    node = {"a": 0.5, "T": 3, "b": True, "c": None, "outer": {"lr": 0.1, "in": {"x": 2.0}}}
    assert lanes.numbers_of(node) == {"a": 0.5, "outer.lr": 0.1, "outer.in.x": 2.0}
    assert lanes.without_numbers(node) == {
        "a": "a number", "T": 3, "b": True, "c": None,
        "outer": {"lr": "a number", "in": {"x": "a number"}},
    }  # fmt: skip
    assert node["a"] == 0.5


def test_numbers_take_the_place_of_settings() -> None:
    notes = Notes()
    notes.at = At(0, {"a": 0.25, "outer.lr": 0.5})
    node = {"a": 9.0, "b": 8.0, "outer": {"lr": 7.0, "T": 2}}
    found = batched.with_numbers(node, ["a", "outer.lr"], notes)
    assert (found["b"], found["outer"]["T"]) == (8.0, 2)
    for number, key, value in ((found["a"], "a", 0.25), (found["outer"]["lr"], "outer.lr", 0.5)):
        assert type(number) is Number
        assert (number.key, number.of(notes.at), number.notes) == (key, value, notes)
    assert node == {"a": 9.0, "b": 8.0, "outer": {"lr": 7.0, "T": 2}}


def test_lanes_differ_in_what_they_have_chosen(configs: Configs, tmp_path: Path) -> None:
    """A number that is the same in all is none."""
    runs = []
    for config in configs(0.1, 0.2):
        runs.append(opening.build_run(config, launch.place(config), torch.device("cpu"), {}))
    found = lanes.lanes_of(runs)
    assert [lane.chosen for lane in found] == [{"outer_lr": 0.1}, {"outer_lr": 0.2}]
    assert [(lane.task, lane.algorithm, lane.seed) for lane in found] == [
        (run.task, run.algorithm, 0) for run in runs
    ]
    assert [lane.chosen for lane in lanes.lanes_of(runs[:1])] == [{}]


def graph_of(function: Callable[..., Any], *inputs: Tensor) -> torch.fx.GraphModule:
    return make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(*inputs)


def test_graphs_that_are_alike() -> None:
    x, y = torch.ones(3), torch.ones(3)
    a = graph_of(lambda x, y: [x * 2 + y], x, y)
    assert batched.compute_alike(a, graph_of(lambda u, v: [u * 2 + v], x, y))
    for other in (
        lambda x, y: [x * 3 + y],  # another constant
        lambda x, y: [x * 2 - y],  # another operation
        lambda x, y: [y * 2 + x],  # other arguments
        lambda x, y: [(x * 2 + y) * 1.5],  # one more
        lambda x, y: [torch.add(x * 2, y, alpha=2)],  # another by name
    ):
        assert not batched.compute_alike(a, graph_of(other, x, y))


def test_what_a_graph_holds_becomes_an_input() -> None:
    data, other = torch.arange(3.0), torch.tensor([5.0, 7.0, 9.0])
    graph = graph_of(lambda x, y: [x * data + other + data, y], torch.ones(3), torch.zeros(2))
    found, constants = batched.lift_constants(graph)
    assert [t.tolist() for t in constants] == [data.tolist(), other.tolist()]  # each once
    assert not any(node.op == "get_attr" for node in found.graph.nodes)
    assert any(node.op == "get_attr" for node in graph.graph.nodes)  # as it was
    x, y = torch.tensor([2.0, 3.0, 4.0]), torch.ones(2)
    for a, b in ((data, other), (other, data)):
        out = found(x, y, a, b)
        assert out[0].tolist() == (x * a + b + a).tolist()
        assert out[1].tolist() == [1, 1]


def test_tensors_are_told_apart_by_what_they_are() -> None:
    a, b = torch.ones(2), torch.ones(2)
    found = batched.distinct([a, b, a])
    assert [t is u for t, u in zip(found, (a, b), strict=True)] == [True, True]


def test_a_steps_memory_is_what_is_alive_at_once() -> None:
    """Each tensor has 1,000 numbers of 4 bytes; one that is not used any more takes nothing."""

    def chain(x: Tensor) -> list[Tensor]:
        a = x + 1
        b = a * 2  # x, a and b
        return [b - x]  # x, b and the result

    assert batched.peak_bytes(graph_of(chain, torch.ones(1000))) == 12_000
    wide = graph_of(lambda x: [x.double() + 1.0], torch.ones(1000))  # two of 8 bytes in the end
    assert batched.peak_bytes(wide) == 16_000
    start = graph_of(lambda x: [torch.cat([x, x, x]).sum()], torch.ones(1000))
    assert batched.peak_bytes(start) == 16_000


def test_a_side_of_one_method_knows_what_it_varies(configs: Configs) -> None:
    """The algorithm of all lanes is made of numbers, where they have chosen others."""
    own = []
    for rate in (0.1, 0.2):
        (config,) = configs(rate)
        task = build(config["task"], opening.context_of(config, torch.device("cpu")))
        own.append(Lane(task, build(config["algorithm"]), 0, {"outer_lr": rate}))
    side = batched.Side(own, configs(0.7)[0]["algorithm"])
    assert side.notes.at == At(0, {"outer_lr": 0.1})
    assert (side.off, side.lane_steps, side.compile, side.most) == (
        (0.0, 0.0),
        [],
        False,
        float("inf"),
    )
    assert json.dumps(configs(0.7)[0]["algorithm"])  # untouched by the numbers
