"""Answers of an oracle that are replayed: those of the code to the last bit, or the code's own.

A CUDA graph is that of tests/test_captured.py here. That CUDA takes what is captured, and that its
kernels give the same bits again, only a GPU can tell: scripts/gpu/work.py asks one.
"""

import gc
import json
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from algorithms.bilevel.bome import bome
from algorithms.bilevel.itd import itd
from algorithms.bilevel.penalty import penalty
from algorithms.continual.ctn import ctn
from algorithms.continual.gem import gem
from algorithms.continual.mer import mer
from bench.compiled import joined, replayed
from bench.compiled.calls import Captured
from bench.compiled.joined import Joined
from bench.compiled.replayed import OFTEN, Joint, Question, Replayed, ReplayingOracle, Replays
from bench.compiled.replayed_lanes import LaneReplays
from bench.core.algorithm import Algorithm
from bench.core.draw import Draw
from bench.core.loop import Standing, advance, first
from bench.core.oracle import Oracle
from bench.core.settings import build
from bench.core.task import Context, Place, Task
from bench.numerics.descent import gd
from bench.runs import driver, lanes, opening
from bench.runs.launch import changed_files, resolve
from tasks.quadratic import quadratic
from tests.composed import composed
from tests.steps import streams
from tests.test_algorithms import made
from tests.test_captured import cuda  # noqa: F401  (a fixture)
from tests.test_hostile import Main, main  # noqa: F401
from tests.test_joined import begun, of

pytestmark = pytest.mark.usefixtures("cuda")

OUTER: dict[str, Any] = {"outer": gd(), "outer_lr": 0.05, "inner_lr": 0.1, "T": 2}
STREAMS: dict[str, Callable[[], Algorithm]] = {
    "gem": lambda: gem(0.3, memory=3),
    "mer": lambda: mer(0.1, memory=3, length=3),
    "ctn_itd": lambda: ctn(itd(**OUTER), 2, 3, 2, 4),
    "ctn_penalty": lambda: ctn(penalty(**OUTER), 2, 3, 2, 4),
    "ctn_bome": lambda: ctn(bome(gd(), gd(), 0.05, 0.05, 0.1, T=2, barrier="value"), 2, 3, 2, 4),
}


def plain(task: Task, algorithm: Algorithm, steps: int) -> Standing:
    s = first(task, algorithm, 0)
    with torch.no_grad():
        for _ in range(steps):
            s = advance(task, algorithm, 0, s)
    return s


def assert_replayed(task: Task, algorithm: Algorithm, steps: int) -> Replays:
    """The steps are the plain ones, to the last bit, and so are their counts."""
    take = Replayed(task, algorithm, 0)
    with torch.no_grad():
        s = take(take(first(task, algorithm, 0), 1).standing, steps - 1).standing
    right = plain(task, algorithm, steps)
    assert (s.step, s.calls, s.samples) == (right.step, right.calls, right.samples)
    for name in ("x", "y"):
        assert torch.equal(getattr(s.state, name), getattr(right.state, name))
    assert not take.replays.refused
    assert not Captured.failed
    return take.replays


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream(name: str) -> None:
    """Batches grow from task to task, and each size is a form of its own."""
    replays = assert_replayed(streams.stream(), STREAMS[name](), 10)
    assert replays.captured


@pytest.mark.parametrize("name", ["bome", "penalty", "aid_cg", "itd", "stocbio", "ttsa", "hoag"])
@pytest.mark.parametrize("batch", [None, 8])
def test_a_method(name: str, batch: int | None, context: Context) -> None:
    """An unrolled method asks for the products of several gradients at a time."""
    settings = {} if batch is None or name == "hoag" else {"batch": batch}
    replays = assert_replayed(quadratic(context, noise=0.3), made(name, **settings), 9)
    assert replays.captured or replays.free


@pytest.mark.parametrize("name", ["f2obo", "sobow"])
def test_an_online_method(name: str, context: Context) -> None:
    """Gradients that are asked for together are one capture."""
    cfg = composed("task=online_imbalance", "task.channels=2", f"algorithm={name}")
    config = resolve(cfg)
    replays = assert_replayed(build(config["task"], context), build(config["algorithm"]), 9)
    assert replays.captured


@torch.no_grad()
@pytest.mark.parametrize("name", ["online_imbalance", "online_newsgroups"])
def test_measured_rounds(name: str, context: Context) -> None:
    """What a task asks itself, outside of the steps, is replayed as well."""
    small = {"online_imbalance": ["task.channels=2"], "online_newsgroups": ["task.source=digits"]}
    solved = ["task.solved.every=2", "task.solved.steps=5", "task.solved.system=3"]
    config = resolve(composed(f"task={name}", *small[name], *solved))
    replays = Replays()

    def make(task: Task) -> Oracle:
        return ReplayingOracle(task, False, replays)

    plainly = build(config["task"], context)
    replaying = build(config["task"], replace(context, oracle=make))
    x, y = plainly.init(torch.Generator().manual_seed(0))
    for step in range(7):
        found, right = (task.tally.adds(x, y, step) for task in (replaying, plainly))
        assert all(torch.equal(found[key], right[key]) for key in right)
        x, y = 1.01 * x, 0.99 * y
    assert bool(replays.captured) == (name == "online_imbalance")  # the other's data are sparse
    assert replays.step == 4
    assert not replays.refused


def test_oracles_share_their_captures(task: Task, point: Any) -> None:
    make = replayed.oracles(often=1)
    with torch.no_grad():
        for k in range(3):
            one: Any = make(task)
            assert torch.equal(one.g_y(*point), Oracle(task).g_y(*point))
            assert len(one.replays.captured) == (k > 0)
    assert one.task is task
    one.products(*point)  # a second derivative is no breach of a promise


@pytest.fixture
def task(context: Context) -> Task:
    return quadratic(context, noise=0.3)


@pytest.fixture
def point(task: Task) -> tuple[Tensor, Tensor, Any]:
    x, y = task.init(torch.Generator().manual_seed(0))
    return x, y + 1, Draw(task, 0, 0).g()


def asked(task: Task, replays: Replays) -> Oracle:
    return ReplayingOracle(task, False, replays)


REFUSAL = "operation not permitted when stream is capturing"


def refuse(*given: object) -> None:
    """In place of torch.cuda.graph."""
    raise torch.AcceleratorError(REFUSAL)


@torch.no_grad()
def test_a_form_is_captured_when_it_has_been_asked_for_often(task: Task, point: Any) -> None:
    replays = Replays()
    for k in range(OFTEN + 2):
        found = asked(task, replays).g_y(*point)
        assert len(replays.captured) == (k >= OFTEN)
        assert torch.equal(found, Oracle(task).g_y(*point))
    asked(task, replays).g_x(*point)
    assert len(replays.captured) == 1
    assert replays.wall > 0


@torch.no_grad()
def test_products_stay_those_of_their_place(
    task: Task, point: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those of other places that are asked for before them, until the step is over."""
    x, y, zeta = point
    replays, kept = Replays(0), list[tuple[Tensor, Tensor]]()
    for _ in range(3):
        x, o = x + 1, asked(task, replays)
        gradients, products = zip(*(o.linearise_g_y(k * x, k * y, zeta) for k in (1.0, 2.0, 3.0)))
        for k, gradient, product in zip((1.0, 2.0, 3.0), gradients, products, strict=True):
            right, own = Oracle(task).linearise_g_y(k * x, k * y, zeta)
            kept.append((gradient, right))
            assert torch.equal(product.yy(y), own.yy(y))
            assert torch.equal(product.xy(2 * y), own.xy(2 * y))
            assert all(map(torch.equal, product.both(y), own.both(y)))
        del products, product
    assert all(torch.equal(*pair) for pair in kept)
    assert [len(made) for made in replays.free.values()] == [3]


@torch.no_grad()
def test_forms_that_were_not_used_for_longest_are_given_up(
    task: Task, point: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products of theirs that somebody still asks for stay right."""
    monkeypatch.setattr(replayed, "KEPT", 2)
    x, y, _ = point
    replays = Replays(0)

    def forms() -> list[int]:
        return [form[3][-1][0][0] for form in replays.free]  # type: ignore[index]

    def ask(*sizes: int) -> None:
        for oracle in (asked(task, replays), Oracle(task)):
            found = [oracle.products(x, y, Draw(task, 0, 0).g(size)) for size in sizes]
            products.append([each.yy(y) for each in found])
        assert all(map(torch.equal, *products[-2:]))

    products: list[list[Tensor]] = []
    for size in range(4, 10):
        ask(size)
    assert not replays.free  # each was asked for in one step
    ask(4)
    ask(5)
    ask(4)
    ask(6)
    assert forms() == [4, 6]
    ask(7, 8, 9)
    assert forms() == [8, 9]
    assert replays.tries == 3 * 6  # a gradient and a product in either variable each


@torch.no_grad()
@pytest.mark.parametrize("by_size", [False, True])
def test_no_more_than_so_many_are_held(
    by_size: bool, task: Task, point: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code answers for the others; those that nobody has any more are taken again."""
    x, y, zeta = point
    if by_size:  # there is room for the copies of two, and for a part of a third's
        question = Question.of("linearise", Place(False, x, y, zeta))
        assert question is not None
        size = sum(t.numel() * t.element_size() for t in question.tensors)
        monkeypatch.setattr(replayed, "HELD_BYTES", 3 * size - 1)
    else:
        monkeypatch.setattr(replayed, "HELD", 2)
    replays = Replays(0)
    asked(task, replays).products(x, y, zeta)
    for _ in range(3):
        found = [asked(task, replays).products(k * x, y, zeta) for k in range(4)]
        right = [Oracle(task).products(k * x, y, zeta) for k in range(4)]
        for own, other in zip(found, right, strict=True):
            assert torch.equal(own.xy(y), other.xy(y))
        assert [len(free) for free in replays.free.values()] == [0]
        del found, own
        assert [len(free) for free in replays.free.values()] == [2]
    assert replays.tries == 2 * 3  # a gradient and both kinds of products each


@torch.no_grad()
def test_an_answer_of_other_bits_is_the_codes(task: Task, point: Any) -> None:
    """Here the code gives something else each time."""
    replays, many = Replays(), iter(range(100))

    def work(place: Place) -> list[Tensor]:
        return [place.x + next(many)]

    for k in range(OFTEN):
        replays.step += 1
        assert torch.equal(replays.answer("a", Place(True, *point), work)[0], point[0] + k)
    replays.answer("a", Place(True, *point), work)
    assert not replays.captured
    assert len(replays.refused) == 1
    assert replays.told() == {"captured": 0, "refused": {replayed.OTHER_BITS: 1}}
    before = next(many)
    assert torch.equal(replays.answer("a", Place(True, *point), work)[0], point[0] + before + 1)


@pytest.mark.parametrize("within", [torch.no_grad, torch.enable_grad])
def test_what_holds_more_than_tensors_is_answered_by_the_code(within: Any) -> None:
    """So is what is part of a derivative that somebody else takes."""
    replays = Replays()
    given = (torch.ones(2), range(3)) if within is torch.no_grad else (torch.ones(2), 3)
    with within():
        for _ in range(OFTEN + 3):
            replays.step += 1
            assert replays.answer("a", given, lambda a: [2 * a[0]])[0].tolist() == [2, 2]
    assert not replays.captured
    assert not replays.asked


@torch.no_grad()
def test_plain_values_are_part_of_a_form() -> None:
    """A loss may depend on the round's number."""
    replays = Replays()

    def work(a: Any) -> list[Tensor]:
        return [a[0] * a[1]]

    for _ in range(OFTEN + 2):
        replays.step += 1
        for k in (1, 2, True, 1.0):
            assert torch.equal(replays.answer("a", (torch.ones(2), k), work)[0], torch.ones(2) * k)
    assert len(replays.captured) == 4


@torch.no_grad()
def test_products_that_cannot_be_captured_are_the_codes(
    task: Task, point: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a gradient that is captured, wherever it has moved."""
    x, y, zeta = point
    replays = Replays(0)
    for _ in range(2):
        asked(task, replays).products(x, y, zeta)
    monkeypatch.setattr(torch.cuda, "graph", refuse)
    (made_,) = next(iter(replays.free.values()))
    made_.products.clear()
    for k in (1.0, 2.0):
        found = asked(task, replays).products(k * x, k * y, zeta)
        right = Oracle(task).products(k * x, k * y, zeta)
        assert torch.equal(found.xy(y), right.xy(y))
        assert torch.equal(found.yy(y), right.yy(y))
        del found
    assert Captured.failed
    assert [len(free) for free in replays.free.values()] == [1]


@torch.no_grad()
@pytest.mark.parametrize("what", ["g_y", "products"])
def test_after_a_capture_has_failed_the_code_answers(
    what: str, task: Task, point: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "graph", refuse)
    replays = Replays()
    y = point[1]
    for _ in range(OFTEN + 3):
        o = asked(task, replays)
        found = o.g_y(*point) if what == "g_y" else o.products(*point).yy(y)
        own = Oracle(task)
        assert torch.equal(found, own.g_y(*point) if what == "g_y" else own.products(*point).yy(y))
    assert Captured.failed
    assert replays.tries == 1
    assert replays.told() == {"captured": 0, "refused": {REFUSAL: 1}}


@torch.no_grad()
def test_a_lost_device_is_no_refusal(task: Task, point: Any, monkeypatch: Any) -> None:
    """Its errors are of the same kind; it answers nothing afterwards either."""
    replays = Replays()
    for _ in range(OFTEN):
        asked(task, replays).g_y(*point)
    calls = iter(range(2))

    def synchronize() -> None:
        if next(calls):
            raise torch.AcceleratorError("an illegal memory access")

    monkeypatch.setattr(torch.cuda, "graph", refuse)
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    with pytest.raises(torch.AcceleratorError, match="an illegal memory access"):
        asked(task, replays).g_y(*point)


@torch.no_grad()
def test_forms_that_do_not_come_again_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replayed, "MOST", 10)
    replays = Replays()
    for k in range(100):
        replays.answer("a", (torch.ones(2), k), lambda a: [a[0]])
    assert len(replays.asked) <= 11
    assert len(replays.first) <= 11


@pytest.mark.parametrize(
    ("device", "setting", "compiled", "kind"),
    [
        ("cpu", "auto", False, "NoneType"),
        ("cuda", "auto", False, "Replayed"),
        ("cuda", False, False, "NoneType"),
        ("cuda", "auto", True, "Compiled"),
        ("cpu", "auto", True, "Compiled"),
    ],
)
def test_who_takes_the_steps(
    task: Task, device: str, setting: Any, compiled: bool, kind: str
) -> None:
    run: Any = SimpleNamespace(
        config={"seed": 0, "run": {"compile": setting}}, task=task, algorithm=made("bome"),
        device=torch.device(device), compile=compiled,
    )  # fmt: skip
    assert type(driver.compiled_steps(run)).__name__ == kind
    steps = driver.OneByOne(run)
    assert steps.compile_seconds == 0.0
    assert steps.replayed == ({"captured": 0, "refused": {}} if kind == "Replayed" else None)


@pytest.mark.parametrize(
    ("device", "setting", "steps", "answered"),
    [
        ("cuda", "auto", 10, True),
        ("cuda", False, 10, False),
        ("cuda", True, 10, False),
        ("cuda", "auto", opening.LONG, False),
        ("cpu", "auto", 10, False),
    ],
)
def test_who_answers_a_task(device: str, setting: Any, steps: int, answered: bool) -> None:
    """Nobody does where the user wants no captures, and where steps are graphs of their own."""
    config = resolve(composed("task=quadratic", "algorithm=bome", f"run.steps={steps}"))
    config["run"]["compile"] = setting
    compiles = opening.is_compiled(config["run"])
    made_of = opening.context_of(config, torch.device(device), compiles)
    assert (made_of.oracle is not None) == answered


def test_the_time_of_captures_is_none_of_the_steps(task: Task) -> None:
    task = replace(task, together=None)
    take = Replayed(task, made("bome"), 0)
    with torch.no_grad():
        taken = take(first(task, take.algorithm, 0), 12)
    assert take.seconds == taken.seconds > 0
    assert taken.cpu_seconds == take.replays.cpu > 0
    with torch.no_grad():
        assert take(taken.standing, 1).seconds == 0


@torch.no_grad()
@pytest.mark.parametrize("name", STREAMS)
def test_lanes_of_a_stream(name: str) -> None:
    """What they ask together is captured, and each lane is what it is by the code."""
    own, standings = begun(of(streams.stream()), STREAMS[name]())
    answer = LaneReplays(own[0].task)
    side = Joined(own, answer=answer)
    found = side(side(standings, 1), 9)
    assert answer.replays.captured or answer.replays.free
    assert not answer.replays.refused
    assert side.off == (answer.replays.wall, answer.replays.cpu)
    assert side.off[0] > 0
    by_code = Joined(own)
    right = by_code(by_code(standings, 1), 9)
    assert by_code.off == (0.0, 0.0)
    for a, b in zip(found, right, strict=True):
        assert (a.calls, a.samples) == (b.calls, b.samples)
        assert torch.equal(a.state.x, b.state.x)
        assert torch.equal(a.state.y, b.state.y)


@torch.no_grad()
def test_lanes_that_ask_for_different_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """In x and in y, of two linearisations, by one lane alone, and with one of the code."""
    task = of(streams.stream())
    x, y = task.init(torch.Generator().manual_seed(0))
    places = [Place(False, k * x, k * y, Draw(task, 0, 0).g()) for k in (1.0, 2.0, 3.0)]
    answer = LaneReplays(task, 0)
    for _ in range(2):
        answer.begin_step(0)
        first_, second = (answer(joined.linearise, part) for part in (places, places[1:]))
    own = joined.linearise(task, places)
    assert all(torch.equal(a.gradient, b.gradient) for a, b in zip(first_, own, strict=True))
    assert len(answer.replays.free) == 2
    for asked_, right in (
        ([(lin, y, "y") for lin in first_], [(lin, y, "y") for lin in own]),
        ([(lin, y, w) for lin, w in zip(first_, ("x", "y", "xy"))],
         [(lin, y, w) for lin, w in zip(own, ("x", "y", "xy"))]),
        ([(first_[2], y, "y")], [(own[2], y, "y")]),
        ([(first_[0], y, "y"), (second[0], y, "x"), (second[1], y, "y")],
         [(own[0], y, "y"), (own[1], y, "x"), (own[2], y, "y")]),
        ([(second[0], y, "y"), (first_[0], y, "y")], [(own[1], y, "y"), (own[0], y, "y")]),
        ([(second[0], y, "y"), (own[2], y, "y")], [(own[1], y, "y"), (own[2], y, "y")]),
        ([(first_[0], y, "y"), (own[1], y, "y")], [(own[0], y, "y"), (own[1], y, "y")]),
    ):  # fmt: skip
        found, expected = answer(joined.products, asked_), joined.products(task, right)  # type: ignore[arg-type]
        wrts: Any = [wrt for _, _, wrt in asked_]
        pairs = zip(replayed.flat(found, wrts), replayed.flat(expected, wrts), strict=True)
        for a, b in pairs:
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


@torch.no_grad()
def test_lanes_that_ask_for_different_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    task = of(streams.stream())
    x, y = task.init(torch.Generator().manual_seed(0))
    place = Place(False, x, y, Draw(task, 0, 0).g())
    wrts: list[list[Any]] = [["x", "y"], ["xy"], ["y"]]
    given = [([place._replace(x=(k + j) * x) for j in range(len(own))], own)
             for k, own in enumerate(wrts)]  # fmt: skip
    answer = LaneReplays(task, 0)
    for _ in range(2):
        answer.begin_step(0)
        found, right = answer(joined.gradients, given), joined.gradients(task, given)
    assert len(answer.replays.captured) == 1
    for own_found, own_right in zip(found, right, strict=True):
        for pair, other in zip(own_found, own_right, strict=True):
            assert [part is None for part in pair] == [part is None for part in other]
            assert all(
                map(torch.equal, replayed.flat([pair], ["xy"]), replayed.flat([other], ["xy"]))
            )


@pytest.mark.parametrize(
    ("device", "setting", "replay"),
    [("cpu", "auto", False), ("cuda", "auto", True), ("cuda", False, False)],
)
def test_lanes_on_a_gpu_have_their_answers_replayed(
    device: str, setting: Any, replay: bool
) -> None:
    task = of(streams.stream())
    runs: Any = [
        SimpleNamespace(
            config={
                "seed": seed, "task": {}, "algorithm": {},
                "run": {"lanes_gb": 1, "steps": 0, "compile": setting},
            },
            task=task, algorithm=STREAMS["gem"](), device=torch.device(device), compile=False,
            start=first(task, STREAMS["gem"](), seed),
        )
        for seed in range(2)
    ]  # fmt: skip
    side = lanes.Shrinking(runs).side
    assert isinstance(side, Joined)
    assert isinstance(side.answer, LaneReplays) == replay
    told = {"captured": 0, "refused": {}} if replay else None
    assert lanes.Shrinking(runs).replayed == told


CLOSED = [
    (task, name)
    for task in ("toy_coreset", "toy_degenerate", "toy_minimax", "hyper_cleaning", "logistic")
    for name in ("bome", "f2sa", "aid_cg", "itd")
]


@pytest.mark.parametrize(("task_name", "name"), CLOSED)
def test_closed_forms_that_give_more_than_was_asked(
    task_name: str, name: str, context: Context
) -> None:
    settings = ["task.references=false"] if task_name == "hyper_cleaning" else []
    config = resolve(composed(f"task={task_name}", f"algorithm={name}", *settings))
    assert_replayed(build(config["task"], context), build(config["algorithm"]), 9)


@torch.no_grad()
def test_a_capture_that_holds_what_it_was_made_with_is_refused() -> None:
    """Its answer to the question that it was made for is right: the code keeps what it found for
    the same tensor."""
    replays, kept = Replays(0), dict[int, Tensor]()

    def work(asked: Any) -> list[Tensor]:
        if id(asked[0]) not in kept:
            kept[id(asked[0])] = 2 * asked[0]
            alive.append(asked[0])
        return [kept[id(asked[0])] + asked[1]]

    alive: list[Tensor] = []
    for k in range(4):
        replays.step += 1
        x, y = torch.full((2,), k + 1.0), torch.full((2,), 10.0 * k)
        assert replays.answer("a", (x, y), work)[0].tolist() == [12 * k + 2, 12 * k + 2]
    assert not replays.captured
    assert len(replays.refused) == 1


@torch.no_grad()
def test_a_form_of_one_step_is_not_captured(task: Task, point: Any) -> None:
    """A loop on a round's data asks often, and never again."""
    replays = Replays()
    o = asked(task, replays)
    for _ in range(3 * OFTEN):
        o.g_y(*point)
    assert not replays.captured
    asked(task, replays).g_y(*point)
    assert len(replays.captured) == 1


@torch.no_grad()
def test_answers_that_were_not_used_for_longest_are_given_up(
    task: Task, point: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replayed, "ANSWERS", 2)
    (x, y, _), replays = point, Replays(0)
    for size in (4, 4, 5, 5, 4, 6, 6):
        asked(task, replays).g_y(x, y, Draw(task, 0, 0).g(size))
    assert [form[3][-1][0][0] for form in replays.captured] == [4, 6]  # type: ignore[index]


@torch.no_grad()
def test_tensors_of_two_devices_are_no_question() -> None:
    assert Question.of("a", (torch.ones(2), torch.ones((), device="meta"))) is None
    assert Question.of("a", (torch.ones(2), torch.ones(()))) is not None


@torch.no_grad()
def test_the_memory_of_captures_ends_with_their_run(task: Task, point: Any) -> None:
    """There is no circle, which only a collection of garbage would find."""
    gc.disable()
    try:
        replays = Replays(0)
        for _ in range(3):
            asked(task, replays).products(*point).yy(point[1])
        (made_,) = next(iter(replays.free.values()))
        of_replays, of_made = weakref.ref(replays), weakref.ref(made_)
        del replays, made_
        assert of_replays() is None
        assert of_made() is None
    finally:
        gc.enable()


@torch.no_grad()
def test_products_of_other_bits_are_the_codes() -> None:
    """Here those in both variables, which are something else each time."""
    replays, many = Replays(0), iter(range(100))

    def work(x: Tensor) -> Joint:
        def multiply(vs: Any, wrts: Any) -> Any:
            both = wrts[0] == "xy"
            by_x = x * vs[0] + (next(many) if both else 0)
            return [(by_x if "x" in wrts[0] else None, 2 * vs[0] if "y" in wrts[0] else None)]

        return Joint([2 * x], multiply)

    x = torch.ones(2)
    for _ in range(2):
        replays.step += 1
        found = replays.linearise(x, work)
    assert found is not None
    loan = found[1]
    assert torch.equal(loan.multiply([x], ["y"])[0][1], 2 * x)  # type: ignore[arg-type]
    before = loan.multiply([x], ["xy"])[0][0]
    after = loan.multiply([x], ["xy"])[0][0]
    assert before is not None
    assert torch.equal(after, before + 1)  # type: ignore[arg-type]
    assert loan.made.products[("xy",)] is None


@pytest.mark.parametrize("lanes_beside", [False, True])
def test_a_run_knows_that_its_answers_were_replayed(
    lanes_beside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its source has the files of it, and they count as changed only when they have."""
    described: list[dict[str, Any]] = []
    folder = mock.Mock(describe=described.append, environment=lambda: described[0])
    config = resolve(composed("task=quadratic", "algorithm=bome"))
    run: Any = SimpleNamespace(
        config=config, folder=folder, fresh=True, start=SimpleNamespace(step=0), old={},
        task=quadratic(Context()), device=torch.device("cuda"), compile=False,
    )  # fmt: skip
    monkeypatch.setattr(driver, "environment_of", lambda *given: {})
    driver.prepare_folder(run, ["a", "b"] if lanes_beside else [])
    files = described[0]["source"]["files"]
    assert "bench/compiled/replayed.py" in files
    assert ("bench/compiled/replayed_lanes.py" in files) == lanes_beside
    assert changed_files(config, folder) == []
    files["bench/compiled/replayed.py"] = "0000000000"
    assert changed_files(config, folder) == ["bench/compiled/replayed.py"]


def test_the_summary_says_what_was_captured(
    main: Main,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of captures that CUDA refuses, which only cost time, nothing else would tell."""
    monkeypatch.setattr(driver, "is_replayed", lambda run: True)
    toy = ["task=quadratic", "run.steps=12", "run.every=4"]
    assert main(*toy, "seed=0").code == 0
    monkeypatch.setattr(torch.cuda, "graph", refuse)
    assert main(*toy, "seed=1").code == 0
    found = {}
    for folder in (tmp_path / "runs" / "quadratic" / "bome").iterdir():
        summary = json.loads((folder / "summary.json").read_text())
        found[summary["seed"]] = summary["replayed"]
    assert found[0]["captured"] > 0
    assert found[0]["refused"] == {}
    assert found[1]["captured"] == 0
    assert REFUSAL in found[1]["refused"]


@torch.no_grad()
def test_questions_under_vmap_are_the_codes(task: Task, point: Any) -> None:
    """Though the form without a batch is captured."""
    x, y, zeta = point
    replays = Replays(0)
    for _ in range(3):
        asked(task, replays).g_y(x, y, zeta)
    assert replays.captured
    xs = torch.stack([x, 2 * x])
    found = torch.func.vmap(lambda x: asked(task, replays).g_y(x, y, zeta))(xs)
    right = torch.stack([Oracle(task).g_y(each, y, zeta) for each in xs])
    torch.testing.assert_close(found, right)
    assert not replays.refused
