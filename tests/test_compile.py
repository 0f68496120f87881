"""Compiled runs: the same states, counts and rows as plain ones, or a refusal in one line."""

import json
import os
import shutil
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.utils._pytree import tree_leaves

from algorithms.bilevel.bome import bome
from algorithms.bilevel.soba import soba
from algorithms.continual.er import single
from bench.compiled import traced
from bench.compiled.calls import Call, compile_by_torch, compile_graph, compiler_knows, loop_steps
from bench.compiled.symbols import At, CannotCompile, NoGraph
from bench.compiled.traced import Compiled, record
from bench.contract import on_a_ball
from bench.core.algorithm import Algorithm
from bench.core.draw import Draw
from bench.core.limits import Limits
from bench.core.loop import Standing, Taken, advance, first, run, take_plainly
from bench.core.oracle import Oracle
from bench.core.settings import BadSetting
from bench.core.task import Context, Task
from bench.numerics.descent import adam, gd
from bench.runs import checkpoint, exit_codes, opening
from bench.runs.folder import RunFolder
from tasks.continual import permuted_mnist
from tasks.data.images import Images
from tasks.hyper_cleaning import Pretraining, hyper_cleaning
from tasks.online_oscillation import online_oscillation
from tasks.quadratic import quadratic
from tasks.toy import toy_coreset, toy_degenerate
from tests.test_algorithms import made, name, problem  # noqa: F401
from tests.test_hostile import Main, main  # noqa: F401

LOOKS = "depends on what its tensors hold"
DRAWS = "drawn at random"
REFUSED = {
    **dict.fromkeys(("af2obo", "aobo", "hoag", "ncgs", "ncgs_vr", "fw", "sfw", "svfw"), LOOKS),
    **dict.fromkeys(("bsa", "ttsa", "sustain", "saba", "sagafw", "optuna_tpe"), DRAWS),
    **dict.fromkeys(("spaba", "sffba", "mseba"), DRAWS),
}
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")


def recorded(graph: GraphModule, states: int, inputs: Sequence[Tensor]) -> Call:
    """The graph as it was recorded: what a compiler starts from."""
    return loop_steps(graph, states)


def plain(task: Task, algorithm: Algorithm, steps: int) -> Standing:
    s = first(task, algorithm, 0)
    with torch.no_grad():
        for _ in range(steps):
            s = advance(task, algorithm, 0, s)
    return s


def taken(task: Task, algorithm: Algorithm, steps: int, make: Any = None) -> Standing:
    with torch.no_grad():
        found = Compiled(task, algorithm, 0, make)(first(task, algorithm, 0), steps)
    return found.standing


def close(a: Standing, b: Standing, within: float) -> None:
    assert (a.step, a.calls, a.samples) == (b.step, b.calls, b.samples)
    torch.testing.assert_close(a.state, b.state, rtol=within, atol=within)
    assert set(a.info) == set(b.info)
    for key in a.info:
        assert float(a.info[key]) == pytest.approx(float(b.info[key]), rel=100 * within, abs=within)


def test_every_algorithm_has_a_graph_or_says_why_not(problem: Task, name: str) -> None:  # noqa: F811
    algorithm = made(name, batch=8)
    if name in REFUSED:
        with pytest.raises(NoGraph, match=REFUSED[name]):
            taken(problem, algorithm, 1, recorded)
        return
    close(taken(problem, algorithm, 3, recorded), plain(problem, algorithm, 3), 1e-10)


@needs_compiler
@pytest.mark.parametrize("which", ["soba", "svrg"])
def test_compiled_steps_are_the_plain_ones(which: str, context: Context) -> None:
    """SVRG's iterate and snapshot begin as one tensor, which must not hold for good."""
    task = quadratic(context, noise=0.3)
    task = on_a_ball() if which == "svrg" else task
    for batch in (None, 8):
        algorithm = made(which, batch=batch)
        close(taken(task, algorithm, 12), plain(task, algorithm, 12), 1e-10)


@needs_compiler
@pytest.mark.parametrize(
    ("toy", "dtype"), [(toy_coreset, torch.float32), (toy_degenerate, torch.float64)]
)
def test_toys(toy: Any, dtype: torch.dtype) -> None:
    """Descent is plain and in float32. Adam's first steps there consist of rounding: two plain
    runs, in float32 and float64, are 1e-3 apart after 200 steps."""
    task = toy(Context(dtype=dtype), variant="code")
    exact = dtype is torch.float64
    outer, within = (adam(), 1e-10) if exact else (gd(), 1e-5)
    algorithm = bome(outer, gd(), 0.01, 0.01, 0.1, T=3, inner_momentum=0.5)
    close(taken(task, algorithm, 200), plain(task, algorithm, 200), within)


def test_numbers_in_batches(context: Context) -> None:
    """A round's loss depends on its sign, which is a plain number."""
    task = online_oscillation(context)
    algorithm = made("f2obo", tau=0.5)
    close(taken(task, algorithm, 9, recorded), plain(task, algorithm, 9), 1e-10)


def test_a_graph_picks_its_rows_itself() -> None:
    """All that a step takes for its two batches is the numbers of their rows."""
    images = Images("digits", train=200, val=100, val2=100, test=100)
    task = hyper_cleaning(Context(dtype=torch.float64), images, Pretraining(), references=False)
    algorithm = soba(gd(), 0.1, 0.1, 0.1, batch=20)
    close(taken(task, algorithm, 5, recorded), plain(task, algorithm, 5), 1e-12)
    form = record(task, algorithm, 0, first(task, algorithm, 0).state, At(0))
    assert form.looks == ((torch.Size([20]), torch.int64),) * 2
    (numbers, _), _ = form.inputs(task, 3, At(7)) or pytest.fail("a step of another form")
    assert torch.equal(numbers, Draw(task, 3, 7).f(20).numbers)


@needs_compiler
def test_what_the_compiler_knows_is_asked_without_compiling() -> None:
    for flags, known in (("", True), ("-O1 -DA", True), ("-mno-such-thing", False)):
        asked = SimpleNamespace(build_arch_flags=lambda flags=flags: flags)
        assert compiler_knows(asked, "this is not C++") == known


@needs_compiler
def test_a_long_lower_loop_is_not_written_into_one_expression(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """torch would look at the first iterate once for every way from it to the last: 2^20 ways."""
    from torch._inductor import config, ir  # slow to import

    seen, make_loader = [0], ir.Buffer.make_loader

    def counted(buffer: Any) -> Any:
        load = make_loader(buffer)

        def look(index: Any) -> Any:
            seen[0] += 1
            if seen[0] > 20_000:
                raise ValueError("too many looks")
            return load(index)

        return look

    def steps(x: Tensor, y: Tensor, n: Tensor) -> list[Tensor]:
        for _ in range(20):  # gradient steps on g = (y - n x)^2 / 2, whose step size is 1
            y = y - 1.0 * (1.0 * (y - n * x))
        return [y]

    monkeypatch.setattr(ir.Buffer, "make_loader", counted)
    x, y, n = (torch.rand(10, 1, dtype=torch.float64) for _ in range(3))
    with config.patch(force_disable_caches=True):  # torch looks only when it compiles anew
        compiled = compile_by_torch(torch.fx.symbolic_trace(steps), [x, y, n])
    assert seen[0] > 0
    torch.testing.assert_close(compiled(x, y, n)[0], steps(x, y, n)[0], rtol=0, atol=1e-15)


def test_torch_asks_so_while_it_compiles_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch._inductor  # slow to import
    from torch._inductor import cpu_vec_isa

    before, during = cpu_vec_isa.VecISA.check_build, []

    def fails(*args: Any, **kwargs: Any) -> None:
        during.append(cpu_vec_isa.VecISA.check_build)
        raise ValueError("enough")

    monkeypatch.setattr(torch._inductor, "standalone_compile", fails)
    with pytest.raises(CannotCompile, match=r"torch cannot compile it \(enough\)"):
        compile_graph(torch.fx.symbolic_trace(torch.nn.Identity()), 1, [torch.zeros(2)])
    assert during == [compiler_knows]
    assert cpu_vec_isa.VecISA.check_build is before


@needs_compiler
def test_a_run_is_the_same_in_whatever_chunks(context: Context) -> None:
    task = toy_coreset(context)
    algorithm = bome(gd(), gd(), 0.01, 0.01, 0.1)
    budget: dict[str, Any] = {"seed": 0, "steps": 50, "every": 7}
    rows: dict[str, list[dict[str, Any]]] = {"plain": [], "compiled": [], "going on": []}
    kept: list[Standing] = []
    run(task, algorithm, **budget, on_row=rows["plain"].append)
    compiled = Compiled(task, algorithm, 0)
    end = run(
        task,
        algorithm,
        **budget,
        on_row=rows["compiled"].append,
        on_pause=kept.append,
        take=compiled,
    )
    assert compiled.seconds > 0
    assert len(compiled.forms) == 1
    middle = next(s for s in kept if 20 <= s.step < 50)._replace(info={})
    again = run(
        task, algorithm, **budget, start=middle, on_row=rows["going on"].append, take=compiled
    )
    assert all(map(torch.equal, tree_leaves(end.state), tree_leaves(again.state)))
    for all_rows in rows.values():
        for row in all_rows:
            del row["seconds"], row["cpu_seconds"]
    assert rows["compiled"][-len(rows["going on"]) :] == rows["going on"]
    for a, b in zip(rows["plain"], rows["compiled"], strict=True):
        assert a == pytest.approx(b, rel=1e-9, abs=1e-12)


def small_stream() -> Task:
    """12 steps of 5 images each."""
    images = Images("digits", 200, 10, 10, 60)
    context = Context(dtype=torch.float64)
    return permuted_mnist(context, images, tasks=3, images=20, batch=5, hidden=6)


@pytest.mark.parametrize("done", [9, 10, 11])
def test_a_run_goes_on_in_the_last_steps_of_a_stream(done: int) -> None:
    """To record a step and to compare it takes batches of others, which there are none of."""
    task, algorithm = small_stream(), single(steps=2)
    start, end = plain(task, algorithm, done), plain(task, algorithm, 12)
    with torch.no_grad():
        found = Compiled(task, algorithm, 0, recorded)(start, 12 - done).standing
        close(found, end, 1e-12)
        with pytest.raises(BadSetting, match="the stream ends"):
            Compiled(task, algorithm, 0, recorded)(start, 13 - done)


@needs_compiler
def test_a_compiled_run_on_a_stream_that_was_stopped_before_its_last_step_goes_on(
    main: Main,  # noqa: F811
    tmp_path: Path,
) -> None:
    command = (
        "task=permuted_mnist", "algorithm=single", "task.tasks=2", "task.images=20", "task.batch=5",
        "task.hidden=6", "run.steps=8", "run.every=1", "run.checkpoint=0", "run.compile=true",
        "run.dtype=float64",
    )  # fmt: skip
    assert main(*command).code == 0
    (run,) = (file.parent for file in (tmp_path / "runs").rglob("summary.json"))
    whole = json.loads((run / "summary.json").read_text())["last"]
    state = torch.load(run / "checkpoint.pt", weights_only=True)["leaves"]
    shutil.rmtree(run)
    save = checkpoint.save

    def stopping(path: Path, key: str, s: Standing) -> None:
        save(path, key, s)
        if s.step == 7:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "save", stopping)
        assert main(*command).code == exit_codes.PUT_OFF
    assert torch.load(run / "checkpoint.pt", weights_only=True)["step"] == 7
    said = main(*command)
    assert said.code == 0, said.err
    last = json.loads((run / "summary.json").read_text())["last"]
    assert {k: v for k, v in last.items() if "seconds" not in k} == pytest.approx(
        {k: v for k, v in whole.items() if "seconds" not in k}, rel=1e-9
    )
    after = torch.load(run / "checkpoint.pt", weights_only=True)["leaves"]
    torch.testing.assert_close(after, state, rtol=1e-12, atol=1e-12)


def test_what_all_steps_draw_is_no_input_of_a_graph(context: Context) -> None:
    """Where the data end after the step, the step before it tells."""
    task = quadratic(context, noise=0.3)
    everything = task.data.draw_lower(None, 0, None)  # type: ignore[arg-type]

    def until(end: int) -> Task:
        def draw(rng: Any, step: int, size: int | None) -> Tensor:
            if step >= end:
                raise BadSetting("the data end")
            assert step >= 0
            return everything

        return replace(task, data=replace(task.data, draw_upper=draw, draw_lower=draw))

    algorithm = made("soba", batch=None)
    state = first(task, algorithm, 0).state
    for end, step in ((9, 3), (4, 3), (1, 0)):
        form = record(until(end), algorithm, 0, state, At(step))
        assert (form.looks, len(form.fixed)) == ((), 2)
        assert form.inputs(until(end), 0, At(step)) is not None


class State(NamedTuple):
    x: Tensor
    y: Tensor


def sliding(factor: Any) -> Algorithm:
    """x falls by what `factor` makes of the step's number."""

    def step(o: Oracle, s: State, draw: Draw) -> tuple[State, dict[str, Tensor]]:
        return State(s.x - factor(draw.step, s.x), s.y + 1), {}

    return Algorithm(State, step)


def test_numbers_that_change_are_never_built_in(context: Context) -> None:
    task = toy_coreset(context)
    for factor in (
        lambda k, x: 0.1 * (k + 1) ** -0.5,
        lambda k, x: x.new_tensor(2 / (k + 2)),
        lambda k, x: x * (1.0 if k % 3 == 0 else 0.5),
        lambda k, x: min(0.3, (k + 1) / 20) + 0.9**k,
        lambda k, x: torch.clamp(x + 1, max=k / 10),
        lambda k, x: torch.add(x, x, alpha=1 / (k + 1)),
        lambda k, x: sum(x * 0.01 for _ in range(k // 4)) + x * 0,
    ):
        found = taken(task, sliding(factor), 9, recorded)
        close(found, plain(task, sliding(factor), 9), 1e-12)


def test_what_cannot_be_known_is_refused(context: Context) -> None:
    task, seen = toy_coreset(context), [0]

    def hidden(k: int, x: Tensor) -> float:
        seen[0] += 1
        return 0.1 * seen[0]

    for factor, why in (
        (lambda k, x: float(x.sum()), LOOKS),
        (lambda k, x: x.detach().numpy().sum(), "torch cannot record it"),
        (lambda k, x: float(k), "more than 16 forms"),
        (hidden, "differs from the plain one"),
    ):
        with pytest.raises(NoGraph, match=why):
            taken(task, sliding(factor), 30, recorded)


@needs_compiler
def test_a_first_state_of_another_layout(context: Context) -> None:
    """Every second element of a tensor at first, a tensor of its own from then on."""
    task = toy_coreset(context)
    step = sliding(lambda k, x: 0.1 * x).step
    spread = Algorithm(lambda x, y: State(torch.stack((x, x), -1)[..., 0], y), step)
    close(taken(task, spread, 5), plain(task, spread, 5), 1e-12)


def test_without_a_compiler(main: Main) -> None:  # noqa: F811
    """As if the variable CXX had named one that is not there when torch was imported."""
    from torch._inductor import config  # slow to import

    toy = ["task=toy_coreset", "run.steps=2", "run.every=1", "run.compile=true"]
    lacking = {"cpp.cxx": (None, "no-such-compiler"), "force_disable_caches": True}
    with config.patch(lacking):
        done = main(*toy)
    assert done.code == 2
    said = done.err.splitlines()[-1]  # torch may complain before of what it misses
    assert "torch cannot compile it (InvalidCxxCompiler: " in said
    assert "write run.compile=false" in said


@needs_compiler
def test_command_line(main: Main, tmp_path: Path) -> None:  # noqa: F811
    toy = ["task=toy_coreset", "run.steps=30", "run.every=10", "run.dtype=float64"]
    assert main(*toy, "run.compile=true").code == 0
    (folder,) = (tmp_path / "runs" / "toy_coreset" / "bome").iterdir()
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["compile_seconds"] > summary["last"]["seconds"]
    assert json.loads((folder / "environment.json").read_text())["compile"] is True
    assert "nothing to do" in main(*toy).out  # the same run

    refused = main("task=online_quadratic", "algorithm=af2obo", "run.compile=true")
    assert refused.code == 2
    assert refused.err.count("\n") == 1
    assert "run.compile=true: this algorithm's steps are no graph" in refused.err
    assert not (tmp_path / "runs" / "online_quadratic").exists()


@pytest.mark.parametrize(
    ("settings", "compiled"),
    [
        ({"compile": "auto", "steps": opening.LONG}, True),
        ({"compile": "auto", "steps": opening.LONG - 1}, False),
        ({"compile": "auto", "steps": opening.LONG, "cpu_seconds": 1.0}, False),
        ({"compile": "auto", "steps": opening.LONG, "samples": 1}, False),
        ({"compile": "auto", "steps": opening.LONG, "until": "objective"}, False),
        ({"compile": False, "steps": opening.LONG}, False),
        ({"compile": True, "steps": 1}, True),
    ],
)
def test_long_runs_are_compiled_by_themselves(settings: dict[str, Any], compiled: bool) -> None:
    limits = dict.fromkeys((*Limits._fields, "until"))
    assert opening.is_compiled(limits | settings) is compiled


class Uncompiled(Compiled):
    """In place of compiled steps: plain ones, and none from step `most` on."""

    most = 10
    why: BaseException = NoGraph("its steps are strange")

    def __call__(self, s: Standing, many: int) -> Taken:
        if s.step >= self.most:
            raise self.why
        return take_plainly(self.task, self.algorithm, self.seed)(s, many)


def test_a_long_run_tells_that_it_is_compiled(
    main: Main,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(opening, "LONG", 20)
    monkeypatch.setattr(traced, "Compiled", Uncompiled)
    monkeypatch.setattr(Uncompiled, "most", 20)
    assert (
        "20 steps are worth compiling; run.compile=false"
        in main("task=toy_coreset", "run.steps=20").out
    )
    (folder,) = (tmp_path / "runs" / "toy_coreset" / "bome").iterdir()
    assert json.loads((folder / "environment.json").read_text())["compile"] is True


def test_a_long_run_without_a_graph_takes_plain_steps(
    main: Main,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whether that is found out before the first step or after some."""
    monkeypatch.setattr(opening, "LONG", 20)
    assert main("task=online_quadratic", "algorithm=af2obo", "run.steps=20").code == 0
    monkeypatch.setattr(traced, "Compiled", Uncompiled)
    assert main("task=toy_coreset", "run.steps=20", "run.every=5").code == 0
    for task, method in (("online_quadratic", "af2obo"), ("toy_coreset", "bome")):
        (folder,) = (tmp_path / "runs" / task / method).iterdir()
        assert json.loads((folder / "environment.json").read_text())["compile"] is False
        assert json.loads((folder / "summary.json").read_text())["last"]["step"] == 20
    assert len((folder / "history.jsonl").read_text().splitlines()) == 5  # each row once


def test_a_run_whose_graphs_end_is_not_said_to_have_failed(
    main: Main,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A kill before the plain steps would leave the note, and the same command would stop there."""
    left: list[Any] = []
    monkeypatch.setattr(RunFolder, "leave", lambda *what, **more: left.append(what))
    monkeypatch.setattr(opening, "LONG", 20)
    monkeypatch.setattr(traced, "Compiled", Uncompiled)
    assert main("task=toy_coreset", "run.steps=20", "run.every=5").code == 0
    assert left == []


def test_a_run_that_was_begun_compiled_is_kept_where_torch_cannot_compile(
    main: Main,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The steps that it has taken are good ones, and it goes on with them where torch can."""
    toy = ("task=toy_coreset", "run.steps=20", "run.every=5", "run.checkpoint=0")
    monkeypatch.setattr(opening, "LONG", 20)
    monkeypatch.setattr(traced, "Compiled", Uncompiled)
    monkeypatch.setattr(Uncompiled, "why", KeyboardInterrupt())
    assert main(*toy).code == exit_codes.INTERRUPTED
    (folder,) = (tmp_path / "runs" / "toy_coreset" / "bome").iterdir()
    kept = {file: (folder / file).read_bytes() for file in ("checkpoint.pt", "history.jsonl")}
    monkeypatch.setattr(Uncompiled, "why", CannotCompile("torch cannot compile it (no compiler)"))
    for more in ((), ("run.compile=true",)):
        said = main(*toy, *more)
        assert (said.code, said.err.count("begun compiled")) == (exit_codes.REFUSED, 1)
        assert "and here torch cannot compile it (no compiler): the same command" in said.err
        assert {file: (folder / file).read_bytes() for file in kept} == kept
        assert not (folder / "status.json").exists()
    monkeypatch.setattr(Uncompiled, "most", 20)
    assert main(*toy).code == 0
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["compile"] is True
    assert [entry["step"] for entry in environment["continued"]] == [10, 10, 10]
