"""Which runs share a process, which jobs they become, and how they end. No process starts."""

import itertools
import os
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_module

from bench.core.settings import BadSetting
from bench.reproduce import runner
from bench.reproduce.plan import PlannedRun
from bench.reproduce.points import Point
from bench.reproduce.run_names import Names
from bench.runs import launch
from bench.runs.folder import RunFolder, RunState
from bench.sweeps import jobs as job_layer
from bench.sweeps.launchers import Launcher, ReportEnd


def job(chosen: dict[str, Any], seed: int = 0, again: bool = False, **settings: Any) -> PlannedRun:
    point = Point("paper", "A", tuple({"task": "t", **settings}.items()), tuple(chosen.items()))
    values = "-".join(map(str, [*settings.values(), *chosen.values()]))
    return PlannedRun(point, seed, f"t/a/{values}-{seed}", again)


def grid(**axes: list[Any]) -> list[PlannedRun]:
    names = [f"algorithm.{name}" for name in axes]
    return [job(dict(zip(names, values))) for values in itertools.product(*axes.values())]


def shapes(jobs: list[PlannedRun]) -> list[list[str]]:
    return [[j.name for j in bundle] for bundle in runner.group_bundles(jobs)]


def together(jobs: list[PlannedRun]) -> list[list[str]]:
    return [[j.name for j in jobs]]


def apart(jobs: list[PlannedRun]) -> list[list[str]]:
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
    ],
)
def test_what_is_no_grid_of_step_sizes_runs_one_by_one(jobs: list[PlannedRun]) -> None:
    assert shapes(jobs) == apart(jobs)


def test_the_seeds_of_a_point_share_a_process(play: "Playing") -> None:
    point = {"algorithm.lr": 0.1}
    whole, other = [job(point, seed=k) for k in range(3)], job(point, seed=1, x=1)
    found = runner.group_bundles([whole[0], other, *whole[1:], job({})])
    assert found == [tuple(whole), (other,), (job({}),)]
    assert play(found) == []
    seeds, alone, _ = play.calls[0]
    assert [each.config["vectorize"] for each in seeds.all] == [["seed"]] * 3
    assert (seeds.if_faster, alone.if_faster) == (True, False)
    assert alone.config["vectorize"] == []


def test_only_points_that_share_all_else_share_a_process() -> None:
    """Runs with other settings, another seed or another axis are in another process."""
    a, b = grid(lr=[0.1, 0.2])
    c, d = (job({"algorithm.lr": v}, seed=1) for v in (0.1, 0.2))
    e, f = (job({"algorithm.lr": v}, x=1) for v in (0.1, 0.2))
    g, h = grid(eta=[0.5, 0.6])
    plain = job({})
    found = runner.group_bundles([a, c, e, g, plain, b, d, f, h])
    assert found == [(a, b), (c, d), (e, f), (g, h), (plain,)]


@pytest.mark.parametrize(
    "setting",
    ["run.device=cuda", "run.threads=1", "run.checkpoint=3", "run.retry_failed=true", "data.root=x",
     "data.download=true", "logger=wandb", "logger.mode=offline", "logger.tags=[a=b]"],
)  # fmt: skip
def test_what_may_be_added_to_every_run(setting: str) -> None:
    assert runner.check_extra([setting]) == [setting]


@pytest.mark.parametrize(
    "setting",
    ["algorithm.T=3", "run.steps=3", "run.devices=cuda", "run.device", "loggers=x", "data=x",
     "seed=1", "run.root=x"],
)  # fmt: skip
def test_what_may_not_be_added(setting: str) -> None:
    with pytest.raises(BadSetting, match="an artifact's settings are its spec's"):
        runner.check_extra(["run.device=cuda", setting])


class Known:
    """Configurations that take no composing."""

    def __init__(self) -> None:
        self.asked: list[tuple[Point, int]] = []

    def config(self, point: Point, seed: int) -> dict[str, Any]:
        self.asked.append((point, seed))
        return {"seed": seed, "vectorize": [], "run": {"force": False, "threads": 2}}


class Playing:
    """A launcher whose jobs end at once, each as `happens` does it; by default they are done."""

    def __init__(self, root: Path, happens: Callable[[job_layer.Job], None] | None = None):
        self.root, self.happens = root, happens or done
        self.calls: list[list[job_layer.Job]] = []
        self.ends: list[tuple[str, RunState, Path]] = []
        self.since = runner.file_time(root)

    def carried(self, jobs: Sequence[job_layer.Job], folder: Path, ended: ReportEnd) -> None:
        assert folder == self.root / ".reproduce" / f"jobs-{socket.gethostname()}-{os.getpid()}"
        self.calls.append(list(jobs))
        for each in jobs:
            for one in each.all:
                assert one.note.parent.is_dir()
                assert not one.has_begun
                self.happens(one)
            ended(each)

    def ended(self, one: PlannedRun, state: RunState, log: Path) -> None:
        self.ends.append((one.name, state, log))

    def __call__(
        self, bundles: Sequence[runner.Bundle], own_process: bool = False
    ) -> list[runner.Bundle]:
        self.names: Any = Known()
        launcher = Launcher(self.carried)
        return runner.make_bundles(
            bundles, launcher, self.names, self.root, self.ended, self.since, own_process
        )

    @property
    def made(self) -> list[list[list[str]]]:
        """The names that were handed over: a list for each call, in it a list for each job."""
        return [[[one.folder.name for one in each.all] for each in call] for call in self.calls]

    @property
    def told(self) -> list[tuple[str, str]]:
        return [(name, state.status) for name, state, _ in self.ends]

    @property
    def notes(self) -> Path:
        return self.root / ".reproduce" / f"jobs-{socket.gethostname()}-{os.getpid()}" / "notes"


def done(each: job_layer.Job, status: str = "done", reason: str | None = None) -> None:
    each.note.write_text("{}")
    each.folder.path.mkdir(parents=True, exist_ok=True)
    each.folder.end({"status": status, "reason": reason, "last": {}}, None)


def alone(jobs: Sequence[PlannedRun]) -> list[runner.Bundle]:
    return [(one,) for one in jobs]


@pytest.fixture
def play(tmp_path: Path) -> Playing:
    return Playing(tmp_path / "runs")


def test_runs_are_handed_over_in_order_and_each_is_told_once(play: Playing) -> None:
    jobs = [job({}, seed=seed) for seed in range(5)]

    def happens(each: job_layer.Job) -> None:
        seed = each.config["seed"]
        if seed == 3:
            each.write_note("refused", "no such setting")
        elif seed == 4:
            each.note.write_text("")  # and its process is killed
        else:
            done(each, *(("diverged", "x is not finite") if seed == 1 else ()))

    play.happens = happens
    assert play(alone(jobs)) == []
    names = [one.name for one in jobs]
    assert play.made == [[[name] for name in names]]
    logs = play.root / ".reproduce" / "logs"
    ends = [
        RunState("done"), RunState("diverged", "x is not finite"), RunState("done"),
        RunState("refused", "no such setting"),
        RunState("lost", "its process ended without a word"),
    ]  # fmt: skip
    assert play.ends == [
        (name, end, logs / f"t_a_-{seed}.log") for seed, (name, end) in enumerate(zip(names, ends))
    ]
    assert not play.notes.parent.exists()


def test_what_a_launcher_leaves_is_kept(play: Playing) -> None:
    """A launcher may leave scripts and the output of SLURM jobs; the notes are removed."""

    def happens(each: job_layer.Job) -> None:
        (play.notes.parent / "slurm").mkdir()
        done(each)

    play.happens = happens
    play(alone([job({})]))
    assert [file.name for file in play.notes.parent.iterdir()] == ["slurm"]


def test_what_a_job_is_given(play: Playing) -> None:
    """A job has its configuration, folder and log, and starts again a run that is there but has
    to be made again."""
    one, over = job({"algorithm.lr": 0.1}, seed=3), job({"algorithm.lr": 0.2}, seed=3, again=True)
    seen: list[int] = []

    def happens(each: job_layer.Job) -> None:
        seen.append(play.notes.stat().st_mtime_ns)
        assert each.since <= seen[0]
        done(each)
        assert each.folder.was_begun_since(each.since) is False
        each.folder.describe({})
        assert each.folder.was_begun_since(each.since) is True

    play.happens = happens
    play([(one,), (over,)])
    (call,) = play.calls
    assert play.names.asked == [(one.point, 3), (over.point, 3)]
    for each, plan in zip(call, (one, over), strict=True):
        assert each.config == {
            "seed": 3, "vectorize": [], "run": {"force": plan.again, "threads": 2},
        }  # fmt: skip
        assert each.folder == RunFolder(play.root, plan.name)
        log = f"{plan.name.replace('/', '_')}.log"
        assert each.log == play.root / ".reproduce" / "logs" / log
        assert (each.others, each.own_process) == ((), False)
    assert len({each.note for each in call}) == 2
    assert {each.note.parent for each in call} == {play.notes}
    assert len({each.since for each in call}) == 1


def test_a_grid_is_one_job_whose_lanes_vary_what_its_points_do(play: Playing) -> None:
    points = grid(lr=[0.1, 0.2], b=[0.5, 0.6])
    assert play([tuple(points)]) == []
    ((whole,),) = play.calls
    assert [each.folder.name for each in whole.all] == [one.name for one in points]
    keys = ["algorithm.lr", "algorithm.b"]
    assert [each.config["vectorize"] for each in whole.all] == [keys] * 4
    assert len({each.note for each in whole.all}) == 4
    assert play.told == [(one.name, "done") for one in points]
    play.calls.clear()
    play(alone(points[:1]))
    assert play.calls[0][0].config["vectorize"] == []  # a point by itself is no lane


def test_where_memory_is_measured_each_run_has_a_process(play: Playing) -> None:
    play(alone([job({}), job({}, seed=1)]), own_process=True)
    assert [each.own_process for each in play.calls[0]] == [True, True]


def test_points_that_were_no_lanes_are_given_back(play: Playing) -> None:
    """The first of four lanes has ended, and this is told. The other three are given back to the
    caller, which begins them again; nothing is told of them yet."""
    points = grid(lr=[0.1, 0.2, 0.3, 0.4])
    happens: list[Callable[[job_layer.Job], None]] = [
        done,
        lambda each: each.write_note("refused", "no graph"),
        lambda each: each.write_note("busy", "being written by x"),
        lambda each: each.note.write_text(""),
    ]
    ways = iter(happens)
    other = job({}, seed=1)
    play.happens = lambda each: next(ways, done)(each)
    assert play([tuple(points), (other,)]) == [tuple(points[1:])]
    assert play.told == [(points[0].name, "done"), (other.name, "done")]
    assert len(play.calls) == 1


def test_a_run_that_another_process_is_at_is_waited_for(
    play: Playing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Free runs are made meanwhile; lanes wait as long as one of them is not free."""
    points = grid(lr=[0.1, 0.2])
    first, second = job({}, seed=5), job({}, seed=6)
    held = ExitStack()
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        assert len(play.calls) == 1
        waited.append(seconds)
        if len(waited) == 2:
            held.close()

    monkeypatch.setattr(runner.time, "sleep", sleep)
    held.enter_context(RunFolder(play.root, first.name).lock())
    held.enter_context(RunFolder(play.root, points[1].name).lock())
    assert play([(first,), tuple(points), (second,)]) == []
    assert waited == [runner.WAIT, runner.WAIT]
    assert play.made == [[[second.name]], [[first.name], [one.name for one in points]]]
    assert play.told == [
        (second.name, "done"), (first.name, "done"), *((one.name, "done") for one in points),
    ]  # fmt: skip


def test_a_run_that_turns_out_to_be_anothers_is_tried_again(
    play: Playing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process was quicker by a moment: nothing is told of the run until it is over."""
    monkeypatch.setattr(runner.time, "sleep", lambda seconds: pytest.fail("nobody holds it"))
    one, other = job({}), job({}, seed=1)
    answers = iter(["busy", "done", "busy", "done"])

    def happens(each: job_layer.Job) -> None:
        answer = next(answers)
        if answer == "busy":
            each.write_note("busy", "being written by x")
        else:
            done(each)

    play.happens = happens
    play(alone([one, other]))
    assert play.made == [[[one.name], [other.name]], [[one.name]], [[one.name]]]
    assert play.told == [(other.name, "done"), (one.name, "done")]
    notes = [each.note for call in play.calls for each in call]
    assert len(set(notes)) == len(notes)  # what the first try said is no word of the second


def test_whoever_stops_it_finds_no_notes_left(play: Playing) -> None:
    def happens(each: job_layer.Job) -> None:
        each.note.write_text("")
        raise KeyboardInterrupt

    play.happens = happens
    with pytest.raises(KeyboardInterrupt):
        play(alone([job({}), job({}, seed=1)]))
    assert not play.notes.exists()
    assert play.told == []


def test_notes_of_a_process_that_was_killed_are_none_of_this_one(play: Playing) -> None:
    """The killed process had the same number."""
    play.notes.mkdir(parents=True)
    (play.notes / "0.json").write_text('{"status": "refused", "reason": "long ago"}')
    play(alone([job({})]))
    assert play.told == [(job({}).name, "done")]


def test_sigterm_is_an_interrupt(play: Playing) -> None:
    """The interrupt lets a launcher save its runs; afterwards the signal does what it did
    before."""
    before = signal.getsignal(signal.SIGTERM)
    inside: list[Any] = []

    def happens(each: job_layer.Job) -> None:
        inside.append(signal.getsignal(signal.SIGTERM))
        os.kill(os.getpid(), signal.SIGTERM)

    play.happens = happens
    with pytest.raises(KeyboardInterrupt):
        play(alone([job({})]))
    assert inside != [before]
    assert signal.getsignal(signal.SIGTERM) == before
    assert not play.notes.exists()


def test_a_job_is_configured_as_its_line_composes(tmp_path: Path) -> None:
    """The configuration has the settings that are added to all runs, and the root that is given.
    The same names compose one point of a grid after the other, so that none may see another's
    values."""
    settings = (("task", "toy_coreset"), ("algorithm", "bome"), ("run.steps", 40))
    extra = ["run.threads=1", "run.checkpoint=3"]
    names = Names(tmp_path, extra)
    for chosen in ((), (("algorithm.outer_lr", 0.1),), (("algorithm.outer_lr", 0.2),), ()):
        for seed in (0, 3):
            one = PlannedRun(Point("paper", "A", settings, chosen), seed, "t/a/k")
            with initialize_config_module("conf", version_base="1.3"):
                cfg = compose("config", [*one.overrides, *extra, f"run.root={tmp_path}"])
            assert names.config(one.point, seed) == launch.resolve(cfg)
            assert one.line == " ".join(["bench", *one.overrides])
