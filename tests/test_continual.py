"""Continual learning: the ledger of a run, GEM's programme by another solver, CTN against its
released update on its own network, and what every method keeps to. Its steps by hand are in
tests/steps, its data in test_marked_streams.py, its networks in test_networks.py."""

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from omegaconf import OmegaConf
from scipy.optimize import minimize
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves

from algorithms.bilevel.itd import fo_itd
from algorithms.bilevel.saba import saba
from algorithms.bilevel.stocbio import stocbio
from algorithms.continual.ctn import ctn
from algorithms.continual.er import er, single
from algorithms.continual.gem import project_gradient
from algorithms.online.implicit import oagd
from bench.contract.algorithms import stepped
from bench.core.algorithm import Algorithm
from bench.core.draw import Draw, generator
from bench.core.loop import Standing, advance, first, run
from bench.core.oracle import Oracle
from bench.core.settings import BadSetting, build, check_settings
from bench.core.stream import Samples
from bench.core.task import Context, Place, Task
from bench.core.together import differentiate, loss_at
from bench.core.view import heatmap
from bench.numerics.descent import clamped
from bench.reproduce import pictures
from bench.reproduce.book import load_book
from bench.runs import checkpoint
from tasks.continual import permuted_mnist, read, split_cifar
from tasks.data.images import Images
from tasks.models.film import Mlp, Resnet
from tasks.quadratic import quadratic
from tests.composed import composed
from tests.conftest import ROOT
from tests.steps import streams as at
from tests.test_networks import ReleasedMlp

CONTEXT = Context(dtype=torch.float64)
DIGITS = Images("digits", 200, 10, 10, 60)
NAMES = sorted(
    path.stem
    for path in (ROOT / "conf" / "algorithm").glob("*.yaml")
    if "continual" in path.read_text()
)
TASKS, STEPS = 3, 4  # of the stream below, 4 steps of 5 images each
SMALL: dict[str, Any] = {"memory": 6, "replay": 6, "episodic": 6, "semantic": 3}


def streamed(context: Context = CONTEXT, **settings: Any) -> Task:
    small = {"tasks": TASKS, "images": 20, "batch": 5, "hidden": 6, "embedding": 3} | settings
    return permuted_mnist(context, DIGITS, **small)


def made(name: str, **settings: Any) -> Algorithm:
    cfg = composed(f"algorithm={name}", "task=permuted_mnist")
    node: Any = OmegaConf.to_container(cfg.algorithm, resolve=True)
    if "method" in node:
        node["method"]["T"] = 2
    small = {key: SMALL[key] for key in SMALL.keys() & node.keys()}
    return build(check_settings(node | small | settings, "algorithm", Algorithm))


# measures


def test_the_ledger_is_the_accuracy_at_task_ends_whatever_is_measured() -> None:
    task, algorithm = streamed(), made("er")
    assert task.ledger is not None
    rows: list[dict[str, Any]] = []
    end = run(task, algorithm, seed=0, steps=12, every=5, on_row=rows.append)
    assert [row["step"] for row in rows] == [0, 5, 10, 12]
    assert end.table is not None
    for s in range(TASKS):
        at = stepped(task, algorithm, (s + 1) * STEPS).state
        alone = task.ledger.enter(task.ledger.empty, at.x, at.y, (s + 1) * STEPS)
        torch.testing.assert_close(end.table[s], alone[s], rtol=0, atol=0, equal_nan=True)
        assert not end.table[s, : s + 1].isnan().any()
        assert end.table[s, s + 1 :].isnan().all()
    assert rows[-1]["ACC"] == float(end.table[-1].mean())
    assert math.isnan(rows[0]["ACC"])
    assert rows[1]["ACC"] == float(end.table[0, 0])  # the first task's, though it is the second's


# memories


@pytest.mark.parametrize("name", NAMES)
def test_nothing_comes_again_but_what_is_remembered(name: str) -> None:
    """A step sees only past numbers that its state held, and no number that is still to come."""
    task, algorithm, asked = at.stream(), made(name), []
    assert task.stream is not None
    original = task.stream.recall

    def recall(numbers: Tensor) -> Any:
        asked.extend(numbers.tolist())
        return original(numbers)

    standing = first(task, algorithm, 0)
    watched = replace(task, stream=task.stream._replace(recall=recall))
    with torch.no_grad():
        for k in range(12):
            leaves = [z for z in tree_leaves(standing.state) if z.dtype == torch.int64]
            before = {i for leaf in leaves for i in leaf.flatten().tolist()}
            asked.clear()
            standing = advance(watched, algorithm, 0, standing)
            assert set(asked) <= before | set(range(at.BATCH * k, at.BATCH * (k + 1)))
            assert all(i < at.BATCH * (k + 1) for i in asked)


# GEM


def closest(slope: Tensor, G: Tensor) -> Tensor:
    """min |z - slope|^2 with G z >= 0, by SLSQP on the primal problem."""
    found = minimize(
        lambda z: 0.5 * ((z - slope.numpy()) ** 2).sum(),
        slope.numpy(),
        jac=lambda z: z - slope.numpy(),
        constraints={"type": "ineq", "fun": lambda z: G.numpy() @ z, "jac": lambda z: G.numpy()},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    return torch.from_numpy(found.x)


@pytest.mark.parametrize("seed", range(6))
def test_gems_projection_keeps_its_constraints_and_is_the_closest(seed: int) -> None:
    rng = generator("gem", seed)
    G = torch.randn(5, 12, generator=rng, dtype=torch.float64)
    slope = torch.randn(12, generator=rng, dtype=torch.float64) - G.sum(0)
    alone = G
    if seed == 5:  # of lower rank: two tasks pull in one direction, one not at all
        G[1], G[2] = 2 * G[0], 0
        alone = G[[0, 3, 4]]  # the same constraints; SLSQP wants them independent
    z, _ = project_gradient(slope, G)
    assert (G @ z).min() > -1e-9
    # SLSQP ends at about the square root of its ftol
    torch.testing.assert_close(z, closest(slope, alone), rtol=0, atol=1e-6)
    torch.testing.assert_close(project_gradient(z, G)[0], z, rtol=0, atol=1e-9)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_gem_leaves_a_gradient_that_is_not_finite(value: float) -> None:
    """The run ends as diverged, and not with an error of the programme's solver."""
    slope = torch.tensor([value, 1.0], dtype=torch.float64)
    z, violated = project_gradient(slope, torch.eye(2, dtype=torch.float64))
    torch.testing.assert_close(z, slope, equal_nan=True)
    assert violated == 0


# CTN


def batches(task: Task, algorithm: Algorithm, step: int) -> tuple[Any, list[tuple[Any, Any]]]:
    """(the state after `step` steps, the pairs of batches that the next one hands its method)."""
    state, seen = stepped(task, algorithm, step).state, []

    class Spy(Draw):
        def with_batches(self, xi: Any, zeta: Any) -> Draw:
            seen.append((xi, zeta))
            return super().with_batches(xi, zeta)

    with torch.no_grad():
        algorithm.step(Oracle(task), state, Spy(task, 0, step))
    return state, seen


@pytest.mark.parametrize("T", [1, 2])
def test_the_first_order_form_is_the_released_update(T: int) -> None:
    """The released loop is written with torch's modules: parameters are copied in place after
    each inner step, and SGD follows the gradient of the controller, divided by the number of outer
    steps and then clamped; here half the step is taken, and the clamp is twice as far away. There
    the loss of the stream's batch is computed once before the inner loop, and its second backward
    pass mixes old activations with new weights. Here it is computed in each inner step, which is
    the same in the first one."""
    inner_lr, outer_lr, strength, temperature = 0.05, 3.0, 100.0, 5.0
    task = streamed(strength=strength, temperature=temperature)
    algorithm = ctn(fo_itd(clamped(2 * 0.01), outer_lr / 2, inner_lr, T), 2, 6, 3, 6)
    state, seen = batches(task, algorithm, 6)
    with torch.no_grad():
        new = algorithm.step(Oracle(task), state, Draw(task, 0, 6))[0]

    net = ReleasedMlp(state.x.clone(), state.y.clone(), Mlp(64, 6, 2, 10, TASKS, 3))
    assert len(seen) == 2
    for xi, zeta in seen:
        fresh, old = slice(0, 5), slice(5, None)
        for _ in range(T):
            pred = net(zeta.images, zeta.tasks)
            loss = F.cross_entropy(pred[fresh], zeta.labels[fresh])
            loss = loss + F.cross_entropy(pred[old], zeta.labels[old])
            answers = F.log_softmax(pred[old] / temperature, 1)
            loss = loss + strength * F.kl_div(answers, zeta.teacher[old], reduction="none").mean()
            slopes = torch.autograd.grad(loss, list(net.layers.parameters()))
            for parameter, slope in zip(net.layers.parameters(), slopes):
                parameter.data.copy_(parameter.data - inner_lr * slope)
        outer = F.cross_entropy(net(xi.images, xi.tasks), xi.labels)
        cut = False
        for parameter, slope in zip(net.context(), torch.autograd.grad(outer, net.context())):
            cut |= bool(((slope / 2).abs() > 0.01).any())
            parameter.data -= outer_lr * (slope / 2).clamp(-0.01, 0.01)
        assert cut  # else the clamp is not seen
    x = nn.utils.parameters_to_vector(net.context()).detach()
    y = nn.utils.parameters_to_vector(net.layers.parameters()).detach()
    # the same formula in another order of summation
    torch.testing.assert_close(new.x, x, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(new.y, y, rtol=1e-10, atol=1e-12)


# contracts


@pytest.mark.parametrize("name", NAMES)
def test_state_keeps_its_form_and_a_step_leaves_its_input_alone(name: str) -> None:
    task, algorithm = at.stream(), made(name)
    before, after = (stepped(task, algorithm, n).state for n in (0, 8))
    assert tree_flatten(before)[1] == tree_flatten(after)[1]
    for a, b in zip(tree_leaves(before), tree_leaves(after), strict=True):
        assert (a.shape, a.dtype, a.requires_grad) == (b.shape, b.dtype, False)
    copy = [leaf.clone() for leaf in tree_leaves(after)]
    with torch.no_grad():
        algorithm.step(Oracle(task), after, Draw(task, 0, 8))  # a task begins
    assert all(torch.equal(a, b) for a, b in zip(copy, tree_leaves(after), strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_going_on_in_mid_stream_changes_nothing(name: str, tmp_path: Path) -> None:
    task = streamed() if name in ("er", "ctn_bome") else at.stream()  # with a ledger, or small
    algorithm, path = made(name), tmp_path / "c.pt"
    rows: list[dict[str, Any]] = []
    again: list[dict[str, Any]] = []
    kept: list[Standing] = []
    budget: dict[str, Any] = {"seed": 1, "steps": 12, "every": 3}
    whole = run(task, algorithm, **budget, on_row=rows.append, on_pause=kept.append)
    middle = next(s for s in kept if s.step >= 6)  # in the second task
    checkpoint.save(path, "n", middle)
    start = checkpoint.load(path, "n", first(task, algorithm, 1))
    parts = run(task, algorithm, **budget, start=start, on_row=again.append)
    pairs = zip(tree_leaves(whole.state), tree_leaves(parts.state), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert (whole.calls, whole.samples) == (parts.calls, parts.samples)
    for row in rows + again:
        del row["seconds"], row["cpu_seconds"]
    assert repr(rows[-len(again) :]) == repr(again)  # nan and all


@pytest.mark.parametrize("name", ["er", "mer", "ctn_itd", "ctn_penalty"])
def test_methods_of_each_order_learn_a_split_of_classes(name: str) -> None:
    """Steps on images and across a task's end, where normalisation and masks come in."""
    task = split_cifar(CONTEXT, tasks=2, filters=2, embedding=3, watched=10, statistics=20)
    settings = {"length": 2, "group": 5} if name == "mer" else {}  # one image has no moments
    state = stepped(task, made(name, **settings), 7).state
    assert state.y.isfinite().all()
    assert state.x.isfinite().all()
    assert 0 <= float(task.evaluate(state.x, state.y, 7)["task_accuracy"]) <= 1


def test_replay_forgets_less_than_none() -> None:
    task = streamed(images=200, hidden=32, embedding=0)
    assert task.ledger is not None
    found = {}
    for name, algorithm in (("single", single(0.1)), ("er", er(0.1, 40, 40))):
        end = run(task, algorithm, seed=0, steps=120, every=120)
        assert end.table is not None
        found[name] = {key: float(value) for key, value in read(end.table).items()}
    assert found["er"]["NBT"] < found["single"]["NBT"]
    assert found["er"]["ACC"] > found["single"]["ACC"]


def test_the_report_draws_a_matrix_for_each_row(tmp_path: Path) -> None:
    table = torch.tensor([[0.5, math.nan], [0.25, 0.75]])
    seen = asdict(heatmap("Accuracy", "test on task", "after task", table, 0.0, 1.0))
    assert seen["matrix"] == [[0.5, None], [0.25, 0.75]]
    json.dumps(seen, allow_nan=False)
    (tmp_path / "bome").mkdir()
    artifact = load_book().artifacts["bome/table1"]
    ((label, file),) = pictures.draw_views(
        artifact, {"paper": [("A row", seen), ("B", seen)]}, tmp_path
    )
    assert label == "Accuracy, first seed, paper variant"
    drawn = (tmp_path / "bome" / file).read_text()
    assert "A row" in drawn
    assert "after task" in drawn


@pytest.mark.parametrize(
    ("method", "why"),
    [
        (saba(0.1, 0.1, blocks=1), "into blocks"),
        (stocbio(clamped(), 0.1, 0.1, 0.1, batches="fixed"), "into blocks"),
        (oagd(0.1, 0.1), "past batches"),
    ],
)
def test_ctn_refuses_methods_that_do_not_see_its_batches(method: Algorithm, why: str) -> None:
    """Their first step does, in one line; they would learn from other samples than CTN's."""
    task = streamed()
    with pytest.raises(BadSetting, match=rf"^algorithm\.method: .* {why}, .*; write a method"):
        stepped(task, ctn(method), 1)


def test_refusals(context: Context) -> None:
    with pytest.raises(BadSetting, match=r"learns a stream of tasks; write task=permuted_mnist"):
        first(quadratic(context), er(), 0)
    with pytest.raises(BadSetting, match=r"task\.embedding=0: .* write task\.embedding=16"):
        first(streamed(embedding=0), made("ctn_itd"), 0)
    with pytest.raises(BadSetting, match=r"task\.batch=3: write a divisor of a task's 20 images"):
        streamed(batch=3)
    with pytest.raises(BadSetting, match=r"task\.images=500: write at most task\.data\.train=200"):
        streamed(images=500)
    with pytest.raises(BadSetting, match=r"algorithm\.batch=7: a step has task\.batch=5 images"):
        streamed().data.draw_lower(generator("x"), 0, 7)


@pytest.mark.parametrize("embedding", [0, 3])
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("taught", [False, True])
def test_losses_of_images_together_are_those_one_by_one(
    embedding: int, upper: bool, taught: bool
) -> None:
    """Each of its own x, network, images, tasks, weights and teacher, and differentiated too."""
    task = split_cifar(CONTEXT, tasks=3, batch=20, filters=2, embedding=embedding)
    assert task.stream is not None
    (x, y), rng, recall = task.init(generator("init")), generator("places"), task.stream.recall

    def some(count: int, with_teacher: bool) -> Samples:
        s = recall(torch.randint(180, (count,), generator=rng))
        answers = torch.rand(count, 5, generator=rng, dtype=torch.float64).softmax(1)
        weights = torch.rand(count, generator=rng, dtype=torch.float64)
        return s._replace(weights=weights, teacher=answers if with_teacher else None)

    def place(s: Samples) -> Place:
        a, b = (t + 0.1 * torch.randn(t.shape, generator=rng, dtype=torch.float64) for t in (x, y))
        return Place(upper, a, b, s)

    places = [place(some(7, taught)) for _ in range(3)]
    assert task.together is not None
    found = task.together(places)
    assert found is not None
    own = torch.stack([loss_at(task, p) for p in places])
    torch.testing.assert_close(found, own, rtol=1e-11, atol=1e-11)
    each = differentiate(task, places, ["xy"] * 3)
    for p, partials in zip(places, each, strict=True):
        right = differentiate(task, [p], ["xy"])[0]
        torch.testing.assert_close(partials, right, rtol=1e-9, atol=1e-11)

    assert task.together([places[0], place(some(8, taught))]) is None
    other = task.together([places[0], place(some(7, not taught))])
    assert (other is None) is not upper  # f does not look at a teacher


def test_a_network_without_normalisation_takes_losses_one_by_one() -> None:
    assert streamed().together is None


def test_tests_are_normalised_by_images_that_were_seen(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After three batches of the stream every image of the statistics is among these."""
    task = split_cifar(context, tasks=2, filters=2, embedding=0, watched=5, statistics=20)
    assert task.stream is not None
    x, y = task.init(generator())
    seen: list[Tensor] = []
    plain = Resnet.moments

    def moments(self: Resnet, y: Tensor, images: Tensor) -> Any:
        seen.append(images)
        return plain(self, y, images)

    monkeypatch.setattr(Resnet, "moments", moments)
    task.evaluate(x, y, 3)
    there = task.stream.recall(torch.arange(3 * task.stream.batch)).images
    assert len(seen[0])
    assert all((there == image).flatten(1).all(1).any() for image in seen[0])
