"""Lanes: each as its single run, whatever becomes of the others."""

import copy
import json
import math
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from bench.compiled import batched
from bench.compiled.batched import Apart, Lane, Side
from bench.compiled.symbols import NoGraph
from bench.core.loop import Standing, advance, first
from bench.core.settings import build
from bench.core.task import Context, Task
from bench.reproduce import plan as plans
from bench.reproduce import runner
from bench.reproduce.points import Point
from bench.runs import lanes, recording, stop
from bench.runs.exit_codes import FAILED
from bench.runs.files import read_json
from bench.runs.folder import RunFolder
from bench.runs.history import read_rows
from bench.runs.logger import About, Logger
from bench.runs.opening import OpenRun
from tasks import newsgroups
from tasks.common import sparse
from tasks.data.images import Images
from tasks.hyper_cleaning import Pretraining, hyper_cleaning
from tasks.online_quadratic import online_quadratic
from tasks.quadratic import quadratic
from tests.test_compile import close, small_stream
from tests.test_hostile import Main, main  # noqa: F401  (a fixture)

GD = {"_target_": "bench.numerics.descent.descent"}
ADAM = {"_target_": "bench.numerics.descent.descent", "rule": "adam"}
OUTER = {"outer": GD, "outer_lr": 0.05}
METHODS: dict[str, dict[str, Any]] = {
    "bilevel.bome.bome": {
        "outer": ADAM,
        "lower": GD,
        "outer_lr": 0.05,
        "lower_lr": 0.05,
        "inner_lr": 0.2,
        "T": 3,
    },
    "bilevel.soba.soba": {
        "outer": GD,
        "outer_lr": 0.05,
        "inner_lr": 0.2,
        "system_lr": 0.2,
        "decay": 0.5,
    },
    "bilevel.penalty.penalty": {**OUTER, "inner_lr": 0.2, "T": 2},
    "bilevel.pzobo.pzobo": {
        "outer": GD,
        "outer_lr": 0.05,
        "inner_lr": 0.2,
        "T": 2,
        "directions": 2,
    },
    "bilevel.aid.aid_cg": {"outer": ADAM, "outer_lr": 0.05, "inner_lr": 0.2, "T": 2, "K": 3},
    "online.f2obo.f2obo": {"inner_lr": 0.2, "outer_lr": 0.05, "tau": 0.5, "K": 2},
}


def side_by_side(
    task_of: Any, method: str, settings: dict[str, Any], seeds: int, lrs: tuple[float, ...]
) -> tuple[Side, list[Standing]]:
    """Seeds times step sizes of the inner steps and, where there is one, of the outer rule."""
    node = {"_target_": f"algorithms.{method}", **settings}
    own = []
    for seed in range(seeds):
        task: Task = task_of(seed)
        for lr in lrs:
            mine, chosen = copy.deepcopy(node), {"inner_lr": lr}
            mine["inner_lr"] = lr
            if "outer" in mine:
                mine["outer_lr"] = chosen["outer_lr"] = lr / 4
            own.append(Lane(task, build(mine), seed, chosen))
    with torch.no_grad():
        return Side(own, node), [first(lane.task, lane.algorithm, lane.seed) for lane in own]


def check(side: Side, starts: list[Standing], steps: int) -> None:
    with torch.no_grad():
        found = side(side(starts, 1), steps - 1)
        for lane, s, other in zip(side.lanes, starts, found, strict=True):
            for _ in range(steps):
                s = advance(lane.task, lane.algorithm, lane.seed, s)
            close(other, s, 1e-10)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("batch", [None, 8])
def test_lanes_are_single_runs(method: str, batch: int | None, context: Context) -> None:
    settings = METHODS[method] | {"batch": batch}
    task_of = online_quadratic if method.startswith("online") else quadratic
    task = task_of(context, noise=0.3)
    check(*side_by_side(lambda seed: task, method, settings, 2, (0.2, 0.1)), 4)


@pytest.mark.parametrize("done", [10, 11])
def test_lanes_go_on_in_the_last_steps_of_a_stream(done: int) -> None:
    task, node = small_stream(), {"_target_": "algorithms.continual.er.single"}
    own = [
        Lane(task, build({**node, "lr": lr}), seed, {"lr": lr})
        for seed in range(2)
        for lr in (0.03, 0.1)
    ]
    starts = []
    with torch.no_grad():
        for lane in own:
            s = first(lane.task, lane.algorithm, lane.seed)
            for _ in range(done):
                s = advance(lane.task, lane.algorithm, lane.seed, s)
            starts.append(s)
        found = Side(own, {**node, "lr": 0.03})(starts, 12 - done)
        for lane, s, other in zip(own, starts, found, strict=True):
            for _ in range(12 - done):
                s = advance(lane.task, lane.algorithm, lane.seed, s)
            close(other, s, 1e-12)


def test_compiled_lanes(context: Context) -> None:
    task, method = quadratic(context, noise=0.3), "bilevel.soba.soba"
    side, starts = side_by_side(lambda seed: task, method, METHODS[method], 1, (0.2, 0.1, 0.05))
    side.compile = True
    check(side, starts, 6)


def digits(seed: int, dtype: torch.dtype = torch.float64, train: int = 500) -> Task:
    images = Images("digits", train=train, val=100, val2=100, test=100)
    context = Context(dtype=dtype, seed=seed)
    return hyper_cleaning(context, images, Pretraining(), references=False)


@pytest.mark.parametrize("batch", [None, 20])
def test_labels_and_images_of_their_own(batch: int | None) -> None:
    method = "bilevel.bome.bome"
    settings = METHODS[method] | {"batch": batch}
    check(*side_by_side(digits, method, settings, 2, (0.1, 0.02)), 3)


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.parametrize("by_csr", [False, True])
def test_sparse_documents_in_lanes(
    by_csr: bool, compile: bool, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the products of a CPU, and with those that a GPU takes."""

    def product(a: sparse.Csr, dense: torch.Tensor) -> torch.Tensor:
        return torch.ops.bench.sparse_product(*a, dense, by_csr)

    monkeypatch.setattr(sparse, "product", product)
    task = newsgroups.newsgroups(context, newsgroups.Pretraining(steps=5), source="digits")
    method = "bilevel.bome.bome"
    side, starts = side_by_side(lambda seed: task, method, METHODS[method], 2, (0.2, 0.1))
    side.compile = compile
    check(side, starts, 3)


def test_data_that_are_the_same_are_there_once() -> None:
    """The same images in tensors of their own, the labels of each seed's corruption."""
    from dataclasses import replace

    tasks = [digits(0), digits(0)]
    one = tasks[1]
    rows = one.data.draw_lower(torch.Generator(), 0, None)
    other = rows._replace(labels=(rows.labels + 1) % 10)
    tasks[1] = replace(one, data=replace(one.data, draw_lower=lambda rng, step, size: other))
    method = "bilevel.bome.bome"
    side, starts = side_by_side(tasks.__getitem__, method, METHODS[method], 2, (0.1,))
    check(side, starts, 3)
    shapes = sorted(tuple(t.shape) for t in side.lane_steps[0].constants)
    assert shapes == [(2, 500), (100,), (100, 65), (500, 65)]  # 64 pixels and the bias


def test_large_data_of_their_own_are_not_stacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batched, "LARGE", 1000)
    method = "bilevel.bome.bome"
    side, starts = side_by_side(digits, method, METHODS[method], 2, (0.1,))
    with pytest.raises(Apart):
        side.prepare(starts)


@pytest.mark.data
def test_lanes_of_mnist(data_root: Path) -> None:
    """Seeds with the same images are lanes; splits of their own are too large to be stacked."""

    def task_of(seed: int, resplit: Literal["labels", True] = "labels") -> Task:
        images = Images("mnist", train=5100, val=100, val2=100, test=100)
        context = Context(dtype=torch.float64, seed=seed, data_root=data_root)
        return hyper_cleaning(context, images, Pretraining(), resplit=resplit, references=False)

    method = "bilevel.bome.bome"
    check(*side_by_side(task_of, method, METHODS[method], 2, (0.1, 0.02)), 3)
    side, starts = side_by_side(lambda s: task_of(s, True), method, METHODS[method], 2, (0.1,))
    with pytest.raises(Apart, match="large"), torch.no_grad():
        side.prepare(starts)


def test_what_decides_by_a_number_is_named(context: Context) -> None:
    node = {
        "_target_": "algorithms.bilevel.bome.bome",
        **METHODS["bilevel.bome.bome"],
        "inner_momentum": 0.0,
    }
    own = []
    for momentum in (0.0, 0.5):
        chosen = {"inner_momentum": momentum}
        own.append(Lane(quadratic(context), build(node | chosen), 0, chosen))
    with pytest.raises(NoGraph, match=r"do not agree on what to do, by eq\(inner_momentum, 0\)"):
        Side(own, node).prepare([first(lane.task, lane.algorithm, 0) for lane in own])


TOY = (
    "-m",
    "hydra/launcher=here",
    "task=toy_minimax",
    "run.threads=1",
    "run.dtype=float64",
    "run.every=5",
)
GRID = ("algorithm.lower_lr=.1,.2", "algorithm.outer_lr=.01,.02")  # inner_lr follows lower_lr
LANES = "vectorize=[algorithm.lower_lr,algorithm.outer_lr]"


def rows_of(root: Path) -> dict[str, list[dict[str, Any]]]:
    found = {}
    for path in root.glob("*/*/*/history.jsonl"):
        rows = read_rows(path)
        for row in rows:
            del row["seconds"], row["cpu_seconds"]
            row.update({key: math.nan for key, number in row.items() if number is None})
        found[str(path.parent.relative_to(root))] = rows
    return found


def same(a: dict[str, list[dict[str, Any]]], b: dict[str, list[dict[str, Any]]]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        for one, other in zip(a[name], b[name], strict=True):
            assert one == pytest.approx(other, rel=1e-9, abs=1e-12, nan_ok=True)


def test_a_sweep_side_by_side(main: Main, tmp_path: Path) -> None:  # noqa: F811
    command = (*TOY, *GRID, "algorithm=bome", "run.steps=20")
    single, side = f"run.root={tmp_path}/single", f"run.root={tmp_path}/side"
    assert main(*command, single).code == 0
    made = main(*command, side, LANES)
    assert made.code == 0
    assert "4 runs: 4 done" in made.out
    same(rows_of(tmp_path / "single"), rows_of(tmp_path / "side"))
    for path in (tmp_path / "side").glob("*/*/*/summary.json"):
        summary = read_json(path)
        assert summary["amortised"] is True
        assert len(read_json(path.with_name("environment.json"))["lanes"]) == 4
    again = main(*command, side, LANES)
    assert "4 runs: 4 skipped" in again.out


def test_what_is_faster_side_by_side_goes_so_unasked(main: Main, tmp_path: Path) -> None:  # noqa: F811
    """A sweep of 20 seeds makes the runs that each seed makes by itself. One of a method without a
    graph makes them one by one."""
    command = ("-m", "hydra/launcher=here", "task=toy_degenerate", "run.threads=1", "run.every=150",
               "run.steps=300", "run.dtype=float64", "seed=range(20)")  # fmt: skip
    single, side = f"run.root={tmp_path}/single", f"run.root={tmp_path}/side"
    said = main(*command, "algorithm=bome", side)
    assert (said.code, "20 runs: 20 done" in said.out) == (0, True)
    assert said.out.startswith("where it is faster, runs go side by side")
    assert main(*command, "algorithm=bome", single, "vectorize=[]").code == 0
    same(rows_of(tmp_path / "single"), rows_of(tmp_path / "side"))
    ends = [read_json(path) for path in (tmp_path / "side").glob("*/*/*/summary.json")]
    assert [end["amortised"] for end in ends] == [True] * 20
    said = main(*command, "algorithm=af2obo", f"run.root={tmp_path}/none")
    assert (said.code, "20 runs: 20 done" in said.out) == (0, True)
    assert "refused" not in said.out + said.err


def test_a_lane_that_diverges_ends_alone(main: Main, tmp_path: Path) -> None:  # noqa: F811
    command = (*TOY, "algorithm=gda", "algorithm.outer_lr=.1,1e200,.2", "run.steps=20")
    single, side = f"run.root={tmp_path}/single", f"run.root={tmp_path}/side"
    assert (
        main(*command, single).code
        == main(*command, side, "vectorize=[algorithm.outer_lr]").code
        == 1
    )
    assert "2 done, 1 diverged" in main(
        *command, side, "vectorize=[algorithm.outer_lr]"
    ).out.replace("skipped", "done")
    same(rows_of(tmp_path / "single"), rows_of(tmp_path / "side"))


def test_lanes_go_on(
    main: Main,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command = (*TOY, *GRID, "algorithm=bome", "run.steps=40", "run.checkpoint=0", LANES)
    whole, parts = f"run.root={tmp_path}/whole", f"run.root={tmp_path}/parts"
    assert main(*command, whole).code == 0
    calls = [0]
    check = stop.raise_if_asked

    def stopping() -> None:
        calls[0] += 1
        if calls[0] == 6:
            raise stop.Preempted(15)
        check()

    monkeypatch.setattr(stop, "raise_if_asked", stopping)
    assert main(*command, parts).code == 75
    notes = [read_json(p) for p in (tmp_path / "parts").glob("*/*/*/status.json")]
    assert [note["status"] for note in notes] == ["preempted"] * 4
    assert len({note["step"] for note in notes}) == 1
    assert main(*command, parts).code == 0
    same(rows_of(tmp_path / "whole"), rows_of(tmp_path / "parts"))


@pytest.mark.parametrize("stops", [True, False])
def test_lanes_are_all_saved_before_a_logger_is_closed(
    stops: bool,
    main: Main,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A logger may wait a minute for a silent host, and a job that ends is killed before that."""
    there, codes, plain = list[int](), list[int](), recording.build
    file = "status.json" if stops else "summary.json"

    def close(code: int) -> None:
        there.append(len(list(tmp_path.glob(f"*/*/*/{file}"))))
        codes.append(code)

    def begin(node: dict[str, Any], *given: Any) -> Any:
        if "loggers" not in node["_target_"]:
            return plain(node, *given)
        return Logger(lambda row: None, close)

    def stopping() -> None:
        if stops and list(tmp_path.glob("*/*/*/checkpoint.pt")):
            raise stop.Preempted(15)

    monkeypatch.setattr(recording, "build", begin)
    monkeypatch.setattr(stop, "raise_if_asked", stopping)
    command = (*TOY, *GRID, "algorithm=bome", "run.steps=20", "run.checkpoint=0", LANES)
    code = 75 if stops else 0
    assert main(*command, f"run.root={tmp_path}").code == code
    assert there == [4] * 4
    assert codes == [code] * 4


def test_lanes_take_their_steps_with_the_threads_of_their_runs(
    main: Main,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Some runs of a group may have been begun with other threads; the one that was opened last
    does not decide for all."""
    seen: list[tuple[set[int], int]] = []

    def drive(going: dict[int, OpenRun], *rest: Any, **more: Any) -> None:
        seen.append(({run.config["seed"] for run in going.values()}, torch.get_num_threads()))

    monkeypatch.setattr(lanes, "drive_lanes", drive)
    threads = property(lambda run: 1 + run.config["seed"] % 2)
    monkeypatch.setattr(OpenRun, "threads", threads)
    command = (*TOY, "seed=0,1,2,3", "run.steps=2", "run.every=2", "vectorize=[seed]")
    main(*command, f"run.root={tmp_path}")
    assert seen == [({0, 2}, 1), ({1, 3}, 2)]


def test_loggers_are_closed_where_one_cannot_begin(
    main: Main,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A lane's W&B run that nobody closes would go on until the process ends."""
    said: list[str] = []

    def begin(config: dict[str, Any], about: About) -> Logger:
        if said:
            raise RuntimeError("the second has no room")
        said.append("begun")
        return Logger(
            row=lambda row: said.append("row"),
            close=lambda code: said.append(f"closed with {code}"),
            end=lambda summary: said.append(summary["reason"]),
        )

    monkeypatch.setattr(recording, "build", begin)
    command = (*TOY, *GRID, "algorithm=bome", "run.steps=20", f"run.root={tmp_path}", LANES)
    assert main(*command).code == 1
    assert said[0] == "begun"
    assert said[1] == "another lane could not begin"
    assert said[2:] == [f"closed with {FAILED}"]
    assert not list(tmp_path.rglob("status.json"))  # the first has not failed


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("-m", "vectorize=[run.steps]", "run.steps=2,4"), "settings of the algorithm or task"),
        (("-m", "vectorize=[algorithm.nope]", "seed=0,1"), "there is no such setting"),
        (("vectorize=[seed]",), "for sweeps"),
        (("-m", "vectorize=seed", "seed=0,1"), "vectorize"),
        (("-m", "vectorize=[seed]", "seed=0,1", "run.seconds=1"), "lanes share their time"),
        (("-m", "vectorize=[seed]", "seed=0,1", "algorithm=af2obo"), "steps are no graph"),
    ],
)
def test_refused(arguments: tuple[str, ...], word: str, main: Main, tmp_path: Path) -> None:  # noqa: F811
    here = ("hydra/launcher=here",) if "-m" in arguments else ()
    said = main(*arguments, *here, "task=toy_minimax", "run.threads=1")
    assert said.code == 2
    assert word in said.err
    assert not list((tmp_path / "runs").glob("*/*/*/history.jsonl"))


@pytest.mark.parametrize(
    ("task", "varied"),
    [
        (("task=online_newsgroups", "task.source=digits", "algorithm=f2obo"), "seed=0,1"),  # sparse
        (("task=quadratic", "algorithm=bome"), "task.q=3,5"),  # another y
    ],
)
def test_what_differs_in_shape_is_refused(
    task: tuple[str, ...],
    varied: str,
    main: Main,  # noqa: F811
    tmp_path: Path,
) -> None:
    key = varied.partition("=")[0]
    fixed = ("-m", "hydra/launcher=here", *task, "run.threads=1", "run.steps=4", varied)
    said = main(*fixed, f"vectorize=[{key}]")
    assert said.code == 2
    assert "states or batches of different shapes; write vectorize=[]" in said.err
    assert "Traceback" not in said.err
    assert not list((tmp_path / "runs").glob("*/*/*/history.jsonl"))


def test_who_goes_with_whom() -> None:
    def config(seed: int, **algorithm: Any) -> dict[str, Any]:
        keys = ["seed", "algorithm.lr"]
        parts = {"task": {}, "run": {}, "algorithm": algorithm, "seed": seed}
        return {**parts, "vectorize": keys}

    runs = [
        config(0, lr=0.1, beta=None, T=1),
        config(1, lr=0.2, beta=None, T=1),
        config(1, lr=0.2, beta=0.3, T=1),  # a number in place of none
        config(1, lr=0.2, beta=None, T=2),  # a count
        config(2, lr=0.2, beta=None, T=1),  # another choice that is not to vectorise
    ]
    assert lanes.group_lanes(runs, [()] * 4 + [("algorithm.eta=1",)]) == [[0, 1], [2], [3], [4]]


def test_memory_is_shared_out(
    main: Main,  # noqa: F811
    tmp_path: Path,
) -> None:
    """If there is next to no memory each lane is alone, and no time is shared."""
    made = main(
        *TOY,
        "algorithm=gda",
        "algorithm.outer_lr=.1,.2",
        "run.steps=5",
        "run.lanes_gb=1e-9",
        "vectorize=[algorithm.outer_lr]",
    )
    assert made.code == 0
    for path in (tmp_path / "runs").glob("*/*/*/summary.json"):
        assert "amortised" not in json.loads(path.read_text())


def point(**chosen: Any) -> Point:
    pairs = tuple((f"algorithm.{key}", value) for key, value in chosen.items())
    return Point("paper", "row", (("task", "toy_minimax"),), pairs)


def test_grid_points_go_side_by_side() -> None:
    def jobs(*points: Point) -> list[plans.PlannedRun]:
        return [plans.PlannedRun(p, 0, f"task/algorithm/{k}") for k, p in enumerate(points)]

    grid = jobs(*(point(lr=lr, eta=eta) for lr in (0.1, 2) for eta in (0.5, 1.0)))
    assert runner.group_bundles(grid) == [tuple(grid)]
    counts = jobs(point(T=1), point(T=10))
    assert runner.group_bundles(counts) == [(job,) for job in counts]
    part = grid[:3]  # no product, which is all that a sweep can be
    assert runner.group_bundles(part) == [(job,) for job in part]


def test_times_of_lanes_are_no_times(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "a/b/c")
    folder.path.mkdir(parents=True)
    (folder.path / "history.jsonl").write_text('{"step": 0, "seconds": 1.0, "loss": 2.0}\n')
    summary = {"status": "done", "last": {"loss": 2.0}, "amortised": True}
    run = plans.Run(plans.PlannedRun(point(), 0, "a/b/c"), folder, summary)
    assert run.history == [{"step": 0, "loss": 2.0}]
    assert run.last("seconds") is None
    assert run.last("loss") == 2.0
