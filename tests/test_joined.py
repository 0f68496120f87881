"""Lanes that share passes: each as its single run, whatever its oracle is asked for."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from algorithms.bilevel.bome import bome
from algorithms.bilevel.bvfsm import bvfsm
from algorithms.bilevel.itd import itd
from algorithms.bilevel.penalty import penalty
from algorithms.continual.ctn import ctn
from algorithms.continual.er import er
from algorithms.continual.gem import gem
from algorithms.continual.mer import mer
from algorithms.online.f2obo import af2obo
from algorithms.online.implicit import sobow
from bench.compiled import joined
from bench.compiled.batched import Lane, Slower
from bench.compiled.joined import Joined, Meeting
from bench.compiled.symbols import NoGraph
from bench.core.algorithm import Algorithm
from bench.core.draw import Draw
from bench.core.loop import Standing, advance, first
from bench.core.oracle import Oracle
from bench.core.task import Derivatives, Place, Task
from bench.numerics.descent import gd
from bench.reproduce.book import find_artifacts
from bench.reproduce.plan import needs_times
from bench.runs import lanes, launch
from bench.runs.files import read_json
from bench.runs.history import read_rows
from bench.runs.opening import OpenRun
from scripts.gpu import counting
from tests.composed import composed
from tests.steps import drifting, problem, streams
from tests.test_hostile import Main, main  # noqa: F401  (a fixture)

OUTER = {"outer": gd(), "outer_lr": 0.05, "inner_lr": 0.1, "T": 2}


def of(task: Task) -> Task:
    """The task, with losses that are worked out together; places of other sizes cannot."""

    def together(places: Sequence[Place]) -> Tensor | None:
        if len({task.data.count(p.batch) for p in places}) > 1:
            return None
        passes.append(len(places))
        assert task.lower is not None
        return torch.stack([(task.upper if p.upper else task.lower)(*p[1:]) for p in places])

    return replace(task, together=together)


passes: list[int] = []  # how many places went together, each time
STREAMS: dict[str, Callable[[], Algorithm]] = {
    "er": lambda: er(0.1, memory=3, replay=3),
    "gem": lambda: gem(0.3, memory=3),
    "mer": lambda: mer(0.1, memory=3, length=3),
    "ctn_itd": lambda: ctn(itd(**OUTER), 2, 3, 2, 4),
    "ctn_bvfsm": lambda: ctn(bvfsm(**OUTER, lower_lr=0.1), 2, 3, 2, 4),
    "ctn_penalty": lambda: ctn(penalty(**OUTER), 2, 3, 2, 4),
    "ctn_bome": lambda: ctn(bome(gd(), gd(), 0.05, 0.05, 0.1, T=2, barrier="value"), 2, 3, 2, 4),
}


def begun(task: Task, method: Algorithm, seeds: int = 3) -> tuple[list[Lane], list[Standing]]:
    own = [Lane(task, method, seed, {}) for seed in range(seeds)]
    return own, [first(task, method, lane.seed) for lane in own]


def alone(lane: Lane, s: Standing, steps: int) -> Standing:
    with torch.no_grad():
        for _ in range(steps):
            s = advance(lane.task, lane.algorithm, lane.seed, s)
    return s


def assert_same(found: Standing, right: Standing) -> None:
    assert found.step == right.step
    assert (found.calls, found.samples) == (right.calls, right.samples)
    torch.testing.assert_close(found.state, right.state, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(found.info, right.info, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", STREAMS)
def test_lanes_of_a_stream_are_its_single_runs(name: str) -> None:
    """Over the ends of two tasks, by steps of one and of many."""
    own, standings = begun(of(streams.stream()), STREAMS[name]())
    passes.clear()
    found = Joined(own)(Joined(own)(standings, 1), 9)
    assert 3 in passes
    for lane, s, end in zip(own, standings, found, strict=True):
        assert_same(end, alone(lane, s, 10))


@pytest.mark.parametrize("method", [af2obo(0.3, 0.05, cap=20), sobow(0.3, 0.05, Q=2)])
def test_lanes_may_end_their_loops_apart(method: Algorithm) -> None:
    """A lane whose loop goes on waits for nobody who has left."""
    own, standings = begun(of(drifting.problem()), method)
    standings[1] = standings[1]._replace(state=standings[1].state._replace(y=3.0 * problem.Y0))
    for lane, s, end in zip(own, standings, Joined(own)(standings, 3), strict=True):
        assert_same(end, alone(lane, s, 3))


def test_an_error_of_one_lane_ends_all() -> None:
    """It is raised where the lanes are taken, and nobody waits for ever."""
    task = of(streams.stream())

    def step(o: Oracle, s: Any, draw: Draw) -> Any:
        found = method.step(o, s, draw)
        if draw.seed == 1:
            raise ZeroDivisionError("of lane 1")
        return found

    method = er(0.1, memory=3, replay=3)
    own, standings = begun(task, method._replace(step=step))
    with pytest.raises(ZeroDivisionError, match="of lane 1"):
        Joined(own)(standings, 3)


@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit])
def test_an_error_in_a_pass_is_every_lanes(error: type[BaseException]) -> None:
    """Nobody waits for ever either where the code of a task would end the process."""

    def together(places: Sequence[Place]) -> Tensor:
        raise error("in a pass")

    task = replace(streams.stream(), together=together)
    own, standings = begun(task, er(0.1, memory=3, replay=3))
    with pytest.raises(error, match="in a pass"):
        Joined(own)(standings, 3)


def wrong_until(step: int) -> Task:
    """Lanes of this task have losses that are 1% too large before this step."""
    task, passes = of(streams.stream()), [0]

    def wrong(places: Sequence[Place]) -> Tensor:
        assert task.together is not None
        found = task.together(places)
        assert found is not None
        passes[0] += len(places) > 1  # one of all lanes in a step of ER
        return 1.01 * found if passes[0] <= step else found

    return replace(task, together=wrong)


METHOD = er(0.1, memory=3, replay=3)


def test_lanes_that_differ_from_a_single_run_are_refused() -> None:
    own, standings = begun(wrong_until(10**6), METHOD)
    with torch.no_grad(), pytest.raises(NoGraph, match="steps 0 to 5 of a lane differ"):
        Joined(own).prepare(standings)
    own, standings = begun(of(streams.stream()), METHOD)
    with torch.no_grad():
        Joined(own).prepare(standings)
        with pytest.raises(Slower):
            Joined(own, against=10**6).prepare(standings)


@pytest.mark.parametrize(
    ("wall", "cpu", "on_gpu", "slower"),
    [
        (0.9, 0.4, True, False), (1.1, 0.4, True, True), (1.1, 0.4, False, False),
        (0.9, 0.6, True, True), (0.9, 0.6, False, True),
    ],
)  # fmt: skip
def test_lanes_are_held_against_processes_on_the_host_and_turns_on_a_gpu(
    wall: float, cpu: float, on_gpu: bool, slower: bool
) -> None:
    """Five lanes against two processes, whose steps take .2 seconds, and as much of a CPU."""
    singles = [joined.Seconds(0.2, 0.2), joined.Seconds(0.1, 0.1)]
    assert joined.are_slower(joined.Seconds(wall, cpu), singles, 5, 2, on_gpu) == slower


def test_one_step_that_is_a_single_runs_is_enough() -> None:
    """A right step of the lanes differs where the point is within rounding of a kink."""
    own, standings = begun(wrong_until(2), METHOD)
    with torch.no_grad():
        Joined(own).prepare(standings)
        own, standings = begun(wrong_until(6), METHOD)
        with pytest.raises(NoGraph, match="steps 0 to 5"):
            Joined(own).prepare(standings)


def test_no_step_past_the_end_is_compared() -> None:
    own, standings = begun(wrong_until(2), METHOD)
    with torch.no_grad(), pytest.raises(NoGraph, match="steps 0 to 1 of a lane differ"):
        Joined(own, end=2).prepare(standings)


@pytest.mark.parametrize("what", ["calls", "samples"])
def test_lanes_that_count_other_calls_are_refused(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Miscounting(joined.LaneOracle):
        """Each gradient counts once too often."""

        def g_y(self, x: Tensor, y: Tensor, zeta: Any) -> Tensor:
            getattr(self, what)["grad_g"] += 1
            return super().g_y(x, y, zeta)

    monkeypatch.setattr(joined, "LaneOracle", Miscounting)
    own, standings = begun(of(streams.stream()), METHOD)
    with torch.no_grad(), pytest.raises(NoGraph, match="step 0 of a lane counts other calls"):
        Joined(own).prepare(standings)


def test_a_first_order_method_stays_so() -> None:
    task = of(streams.stream())
    method = STREAMS["ctn_itd"]()._replace(first_order=True)
    own, standings = begun(task, method)
    with pytest.raises(TypeError, match="first order"):
        Joined(own)(standings, 1)


def test_lanes_are_answered_in_their_order() -> None:
    """Whoever asks first, so that a pass gives the same bits each time."""
    seen: list[list[float]] = []

    def together(places: Sequence[Place]) -> Tensor:
        seen.append([float(p.x) for p in places])
        return torch.stack([10 * p.x for p in places])

    task = replace(streams.stream(), together=together)
    meeting, answers = Meeting(2, joined.ByCode(task)), {}

    def ask(lane: int) -> None:
        x = torch.tensor(float(lane))
        answers[lane] = float(meeting.ask(lane, joined.values, Place(True, x, x, None)))

    early = threading.Thread(target=ask, args=(1,))
    early.start()
    while not meeting.asked:
        time.sleep(0.001)
    ask(0)
    early.join()
    assert seen == [[0.0, 1.0]]
    assert answers == {0: 0.0, 1: 10.0}


def test_which_tasks_can_be_joined() -> None:
    task = streams.stream()
    assert joined.can_join(of(task))
    assert not joined.can_join(task)
    closed = Derivatives(lambda x, y, batch, wrt: (x, y))
    assert not joined.can_join(replace(of(task), lower_derivatives=closed))
    assert not joined.can_join(replace(of(task), upper_derivatives=closed))


SMALL = [
    "task=split_cifar", "task.data=patterns", "task.tasks=2", "task.filters=2", "task.batch=30",
    "task.statistics=20", "task.watched=10", "run.steps=4", "run.every=2", "run.dtype=float64",
    "run.threads=1",
]  # fmt: skip


def test_a_sweep_over_seeds_shares_its_passes(
    main: Main,  # noqa: F811
    tmp_path: Path,
) -> None:
    """ER on images, whose data are each seed's own: the histories of single runs."""
    sweep = ("-m", *SMALL, "algorithm=er", "seed=0,1,2")
    said = main(*sweep, "vectorize=[seed]")
    assert said.code == 0, said.err
    together = histories(tmp_path / "runs")
    beside = [read_json(tmp_path / "runs" / name / "environment.json") for name in together]
    assert [len(environment["lanes"]) for environment in beside] == [3, 3, 3]
    (tmp_path / "runs").rename(tmp_path / "joined")
    assert main(*sweep).code == 0
    apart = histories(tmp_path / "runs")
    assert together.keys() == apart.keys()
    for name, rows in together.items():
        assert len(rows) == len(apart[name]) == 3
        for one, other in zip(rows, apart[name], strict=True):
            assert one == pytest.approx(other, rel=1e-6, nan_ok=True)


def histories(root: Path) -> dict[str, list[dict[str, Any]]]:
    """The rows of each run without its times."""
    return {
        str(file.parent.relative_to(root)): [
            {k: v for k, v in row.items() if "seconds" not in k and v is not None}
            for row in read_rows(file)
        ]
        for file in root.rglob("history.jsonl")
    }


def test_only_runs_of_one_task_are_joined(tmp_path: Path) -> None:
    """Not those whose losses differ, nor compiled ones."""

    def opened(*settings: str) -> OpenRun:
        config = launch.resolve(composed(*SMALL, "algorithm=er", *settings))
        config["run"]["root"] = str(tmp_path)
        return lanes.open_lane(config, launch.place(config), lanes.SharedTasks())

    plain = opened("seed=0")
    assert lanes.are_joined([plain, opened("seed=1")])
    assert not lanes.are_joined([plain, opened("task.strength=3")])
    assert not lanes.are_joined([opened("run.compile=true"), opened("run.compile=true")])


def test_a_gpu_is_shared_by_processes(tmp_path: Path) -> None:
    """So that lanes there are held against one of them, and against none where nobody asks."""
    config = launch.resolve(composed(*SMALL, "algorithm=er"))
    config["run"]["root"] = str(tmp_path)
    run = lanes.open_lane(config, launch.place(config), lanes.SharedTasks())
    gpu = run._replace(device=torch.device("cuda"))
    assert [lanes.rivals(run, cores) for cores in (0, 1, 16)] == [0, 1, 16]
    assert [lanes.rivals(gpu, cores) for cores in (0, 1, 16)] == [0, 1, 1]


@pytest.mark.parametrize("artifact", ["bome/table2", "f2obo/fig1"])
def test_seeds_of_the_budget_gpu_may_be_lanes(artifact: str) -> None:
    (found,) = find_artifacts(counting.own_book(), [artifact])
    assert not needs_times(found.spec, "gpu")
    assert needs_times(found.spec, "full")


def test_five_lanes_take_the_operations_of_one_and_a_half() -> None:
    """What goes through the network is done once for all; drawing is each lane's own."""
    rows = dict(counting.rows("bome/table2"))
    for label, most in (("code single", 0.35), ("code ER-Ring", 0.45), ("code CTN+BOME", 0.4)):
        single = counting.count_steps(rows[label])[-1].operations
        as_lanes = counting.count_lanes(rows[label])
        assert as_lanes is not None
        assert 1 < as_lanes <= most * single
    assert counting.count_lanes(dict(counting.rows("bome/table1"))["code single"]) is None
