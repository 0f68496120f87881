"""Which runs share a process, and with which command lines; how they end. No process starts."""

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.codes import DONE, FAILED
from bench.reproduce import runner
from bench.reproduce.plan import Job
from bench.reproduce.runner import Ended
from bench.reproduce.specs import Point
from bench.settings import BadSetting

BENCH = [sys.executable, "-m", "bench"]


def job(chosen: dict[str, Any], seed: int = 0, again: bool = False, **settings: Any) -> Job:
    point = Point("paper", "A", tuple({"task": "t", **settings}.items()), tuple(chosen.items()))
    values = "-".join(map(str, [*settings.values(), *chosen.values()]))
    return Job(point, seed, f"t/a/{values}-{seed}", again)


def grid(**axes: list[Any]) -> list[Job]:
    names = [f"algorithm.{name}" for name in axes]
    return [job(dict(zip(names, values))) for values in itertools.product(*axes.values())]


def shapes(jobs: list[Job]) -> list[list[str]]:
    return [[j.name for j in bundle] for bundle in runner.bundles(jobs)]


def together(jobs: list[Job]) -> list[list[str]]:
    return [[j.name for j in jobs]]


def apart(jobs: list[Job]) -> list[list[str]]:
    return [[j.name] for j in jobs]


def test_a_grid_of_step_sizes_is_one_process() -> None:
    for whole in (grid(lr=[0.1, 0.2]), grid(lr=[0.1, 1], b=[0.5, 2.0, 3.0]), grid(lr=[0.1])):
        assert shapes(whole) == together(whole)


@pytest.mark.parametrize(
    "jobs",
    [
        grid(T=[1, 2]),  # these may be counts
        grid(lr=[0.1, 0.2], T=[1, 2]),
        grid(lr=[0.1, 0.2], adam=[True, False]),
        grid(lr=[0.1, "x"]),
        grid(lr=[0.1, None]),
        [job({"task.c": 0.1}), job({"task.c": 0.2})],
        [
            job({"algorithm.lr": 0.1, "run.steps": 2.5}),
            job({"algorithm.lr": 0.2, "run.steps": 2.5}),
        ],
        grid(lr=[0.1, 0.2], b=[0.5, 0.6])[:3],  # a grid with a hole
        [job({}), job({}, seed=1)],  # nothing to tell them apart
    ],
)
def test_what_is_no_grid_of_step_sizes_runs_one_by_one(jobs: list[Job]) -> None:
    assert shapes(jobs) == apart(jobs)


def test_only_points_that_share_all_else_share_a_process() -> None:
    """Other settings, another seed, another axis are another process."""
    a, b = grid(lr=[0.1, 0.2])
    c, d = (job({"algorithm.lr": v}, seed=1) for v in (0.1, 0.2))
    e, f = (job({"algorithm.lr": v}, x=1) for v in (0.1, 0.2))
    g, h = grid(eta=[0.5, 0.6])
    plain = job({})
    found = runner.bundles([a, c, e, g, plain, b, d, f, h])
    assert found == [(a, b), (c, d), (e, f), (g, h), (plain,)]


def test_a_commands_line() -> None:
    root, extra = Path("runs"), ["run.threads=2"]
    one = job({"algorithm.lr": 0.1}, seed=3, **{"run.steps": 5})
    line = [*BENCH, "task=t", "run.steps=5", "algorithm.lr=0.1", "seed=3", "run.root=runs"]
    assert runner.command((one,), root, extra) == [*line, "run.threads=2"]
    over = job({"algorithm.lr": 0.1}, seed=3, again=True, **{"run.steps": 5})
    assert runner.command((over,), root, extra) == [*line, "run.threads=2", "run.force=true"]
    assert runner.command((one,), root, []) == line


def test_the_command_line_of_a_grid() -> None:
    """Each value once, in the order of the spec, as lanes."""
    jobs = tuple(grid(lr=[0.1, 0.2], b=[0.5, 0.6]))
    assert runner.command(jobs, Path("runs"), ["run.threads=2"]) == [
        *BENCH, "-m", "task=t", "seed=0", "algorithm.lr=0.1,0.2", "algorithm.b=0.5,0.6",
        "vectorize=[algorithm.lr,algorithm.b]", "run.root=runs", "run.threads=2",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "setting",
    ["run.device=cuda", "run.threads=1", "run.checkpoint=3", "run.retry_failed=true", "data.root=x",
     "data.download=true", "logger=wandb", "logger.mode=offline", "logger.tags=[a=b]"],
)  # fmt: skip
def test_what_may_be_added_to_every_run(setting: str) -> None:
    assert runner.checked_extra([setting]) == [setting]


@pytest.mark.parametrize(
    "setting",
    ["algorithm.T=3", "run.steps=3", "run.devices=cuda", "run.device", "loggers=x", "data=x",
     "seed=1", "run.root=x"],
)  # fmt: skip
def test_what_may_not_be_added(setting: str) -> None:
    with pytest.raises(BadSetting, match="an artifact's settings are its spec's"):
        runner.checked_extra(["run.device=cuda", setting])


def test_why_a_run_ended(tmp_path: Path) -> None:
    one, log = job({}), tmp_path / "log"
    ended = {code: Ended(one, code, log) for code in (0, 1, -9)}
    assert ended[1].reason(tmp_path) == "exit code 1"
    log.write_text("\n")
    assert ended[1].reason(tmp_path) == "exit code 1"
    log.write_text("first\nbench: task=x: no such task\n  \n")
    assert ended[1].reason(tmp_path) == "task=x: no such task"
    assert ended[0].reason(tmp_path) == "task=x: no such task"
    assert ended[-9].reason(tmp_path) == "killed by signal 9"
    for reason, said in {None: "done", "x is not finite": "x is not finite"}.items():
        summary = tmp_path / one.name / "summary.json"
        summary.parent.mkdir(parents=True, exist_ok=True)
        summary.write_text(json.dumps({"reason": reason}))
        assert ended[-9].reason(tmp_path) == said


class Playing:
    """Processes that end at once, unless told; what a bundle leaves is told by its first name."""

    def __init__(self, root: Path, leaves: Any = lambda jobs: jobs, code: int = 0):
        self.root, self.leaves, self.code = root, leaves, code
        self.lines: list[list[str]] = []
        self.going = self.most = 0
        self.terminated = 0
        self.polls = 0

    def start(self, one: Job, line: list[str], log: Path) -> "Playing":
        self.lines.append(line)
        self.going += 1
        self.most = max(self.most, self.going)
        return self

    def poll(self) -> int | None:
        self.polls += 1
        if self.polls % 2:
            return None
        self.going -= 1
        return self.code

    def terminate(self) -> None:
        self.terminated += 1


def summary(root: Path, one: Job, status: str = "done") -> None:
    (root / one.name).mkdir(parents=True)
    (root / one.name / "summary.json").write_text(json.dumps({"status": status}))


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner.time, "sleep", lambda seconds: None)


def test_runs_are_started_in_order_and_not_more_than_may_go_at_once(tmp_path: Path) -> None:
    jobs = [job({}, seed=seed) for seed in range(5)]
    for at_once in (1, 2):
        play, begun = Playing(tmp_path, code=3), list[Job]()
        ends = list(runner.carry_out(jobs, play.start, tmp_path, ["e"], at_once, begun.append))
        assert begun == jobs
        assert sorted(end.job.seed for end in ends) == [0, 1, 2, 3, 4]
        assert {end.code for end in ends} == {3}
        assert play.most == at_once
        assert play.lines == [runner.command((one,), tmp_path, ["e"]) for one in jobs]
        assert (play.going, play.terminated) == (0, 0)
    logs = tmp_path / ".reproduce" / "logs"
    assert [end.log for end in sorted(ends, key=lambda end: end.job.seed)] == [
        logs / f"t_a_-{seed}.log" for seed in range(5)
    ]
    assert logs.is_dir()


def test_a_grid_side_by_side_only_where_that_is_asked_for(tmp_path: Path) -> None:
    jobs = grid(lr=[0.1, 0.2])
    play = Playing(tmp_path)
    assert len(list(runner.carry_out(jobs, play.start, tmp_path, [], 1))) == 2
    assert len(play.lines) == 2
    for one, status in zip(jobs, ("done", "diverged")):
        summary(tmp_path, one, status)
    play = Playing(tmp_path, code=7)
    ends = list(runner.carry_out(jobs, play.start, tmp_path, [], 1, side_by_side=True))
    assert play.lines == [runner.command(tuple(jobs), tmp_path, [])]
    assert [(end.job, end.code) for end in ends] == [(jobs[0], DONE), (jobs[1], FAILED)]


def test_points_that_were_no_lanes_run_one_by_one(tmp_path: Path) -> None:
    """Of three lanes the first has ended: the others are told of, and begin anew in order."""
    jobs = grid(lr=[0.1, 0.2, 0.3])
    summary(tmp_path, jobs[0])
    play, told = Playing(tmp_path, code=5), list[Any]()
    ends = list(
        runner.carry_out(
            jobs, play.start, tmp_path, [], 1, side_by_side=True,
            parted=lambda count, ended: told.append((count, ended.job, ended.code)),
        )
    )  # fmt: skip
    assert play.lines == [
        runner.command(bundle, tmp_path, []) for bundle in (tuple(jobs), jobs[1:2], jobs[2:])
    ]
    assert told == [(2, jobs[1], 5)]
    assert [(end.job, end.code) for end in ends] == [(jobs[0], DONE), (jobs[1], 5), (jobs[2], 5)]


def test_whoever_stops_it_stops_what_is_going(tmp_path: Path) -> None:
    """Closing the iterator after the first end terminates the one that still runs."""
    play = Playing(tmp_path)
    ends = runner.carry_out([job({}, seed=s) for s in range(3)], play.start, tmp_path, [], 2)
    next(ends)
    ends.close()
    assert play.terminated == 1


def test_a_run_that_does_not_stop_is_waited_for_twenty_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock goes on by a second whenever it is read."""

    class Deaf(Playing):
        def poll(self) -> int | None:
            self.polls += 1
            if self.polls > 100:
                return 0
            if self.polls == 1:
                raise KeyboardInterrupt
            return None

    clock = itertools.count(5.0)
    monkeypatch.setattr(runner.time, "monotonic", lambda: next(clock))
    play = Deaf(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        list(runner.carry_out([job({})], play.start, tmp_path, [], 1))
    assert play.terminated == 1
    assert play.polls - 1 == runner.PATIENCE == 20
