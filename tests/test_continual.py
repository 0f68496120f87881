"""Continual learning: memories, GEM's programme, CTN against its released update and against finite
differences, the measures of an accuracy matrix, streams, networks, and going on in mid-stream."""

import itertools
import json
import math
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
from scipy.optimize import minimize
from scipy.stats import chi2
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves

from algorithms.bilevel.itd import fo_itd, itd
from algorithms.continual.ctn import ctn
from algorithms.continual.er import er, single
from algorithms.continual.gem import dual, projected
from bench import checkpoint
from bench.algorithm import Algorithm
from bench.descent import clamped, gd
from bench.oracle import Oracle
from bench.reproduce import drawings
from bench.reproduce.specs import load_book
from bench.rng import Draw, generator
from bench.run import Standing, advance, first, run
from bench.settings import BadSetting, build, checked
from bench.stream import joined, reservoir, ring
from bench.task import Context, Task
from bench.view import heatmap
from tasks.batch_norm import batch_norm
from tasks.continual import permuted_mnist, read, split_cifar
from tasks.data.images import Images
from tasks.film import Mlp, Resnet
from tasks.quadratic import quadratic
from tests.conftest import ROOT

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


def test_the_released_size_of_each_method_is_one_setting() -> None:
    """100 units twice for GEM, 128 three times for experience replay (the released main.py)."""
    lengths = []
    for name, capacity in (("er", "matched"), ("er", "released"), ("gem", "released")):
        with initialize_config_module("conf", version_base="1.3"):
            asked = ["task=permuted_mnist", f"algorithm={name}", f"task.capacity={capacity}"]
            cfg = compose("config", [*asked, "task.tasks=2", "task.images=20"])
        node: Any = OmegaConf.to_container(cfg.task, resolve=True)
        task = build(checked(node, "task", Task, given=("context",)), CONTEXT)
        lengths.append(len(task.init(generator(0))[1]))
    sizes = ((256, 2), (128, 3), (100, 2))
    widths = [[64, *[hidden] * layers, 10] for hidden, layers in sizes]
    assert lengths == [sum(b * (a + 1) for a, b in itertools.pairwise(w)) for w in widths]


def made(name: str, **settings: Any) -> Algorithm:
    with initialize_config_module("conf", version_base="1.3"):
        cfg = compose("config", [f"algorithm={name}", "task=permuted_mnist"])
    node: Any = OmegaConf.to_container(cfg.algorithm, resolve=True)
    if "method" in node:
        node["method"]["T"] = 2
    small = {key: SMALL[key] for key in SMALL.keys() & node.keys()}
    return build(checked(node | small | settings, "algorithm", Algorithm))


def stepped(task: Task, algorithm: Algorithm, steps: int, seed: int = 0) -> Standing:
    standing = first(task, algorithm, seed)
    with torch.no_grad():
        for _ in range(steps):
            standing = advance(task, algorithm, seed, standing)
    return standing


# measures


def test_the_measures_are_those_of_their_definitions() -> None:
    a = torch.tensor(
        [[0.9, math.nan, math.nan], [0.7, 0.8, math.nan], [0.75, 0.5, 0.6]], dtype=torch.float64
    )
    found = {key: float(value) for key, value in read(a).items()}
    assert found["ACC"] == pytest.approx((0.75 + 0.5 + 0.6) / 3)
    assert found["NBT"] == pytest.approx((0.15 + 0.3 + 0) / 3)
    assert found["FT"] == pytest.approx((0.9 + 0.8 + 0.6) / 3)
    assert found["FT"] == pytest.approx(found["ACC"] + found["NBT"])
    assert found["FM"] == pytest.approx((0.15 + 0.3) / 2)
    assert found["learning_accuracy"] == 0.6
    later = torch.tensor(
        [[0.5, math.nan, math.nan], [0.8, 0.7, math.nan], [0.6, 0.7, 0.9]]
    ).double()
    assert float(read(later)["FM"]) == pytest.approx((0.2 + 0) / 2)  # from the best, not the first
    assert float(read(later)["NBT"]) == pytest.approx((-0.1 + 0 + 0) / 3)


def test_measures_of_a_matrix_that_is_being_filled() -> None:
    empty = torch.full((3, 3), math.nan).double()
    assert all(value.isnan() for value in read(empty).values())
    one = empty.clone()
    one[0, 0] = 0.4
    found = read(one)
    assert (float(found["ACC"]), float(found["NBT"]), float(found["FT"])) == (0.4, 0.0, 0.4)
    assert found["FM"].isnan()
    offline = empty.clone()
    offline[2] = torch.tensor([0.1, 0.2, 0.6])
    assert list(read(offline)) == ["ACC"]
    assert float(read(offline)["ACC"]) == pytest.approx(0.3)


def test_the_ledger_is_the_accuracy_at_task_ends_whatever_is_measured() -> None:
    task, algorithm = streamed(), made("er")
    assert task.ledger is not None
    rows: list[dict[str, Any]] = []
    end = run(task, algorithm, seed=0, steps=12, every=5, measured=rows.append)
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


def test_a_ring_holds_the_last_samples_of_its_task() -> None:
    memory = torch.zeros(2, 4, dtype=torch.int64)
    for k, expected in enumerate(([0, 1, 2, 0], [4, 5, 2, 3], [8, 5, 6, 7])):
        memory = ring(memory, 1, torch.arange(3 * k, 3 * k + 3), 3 * k)
        assert memory.tolist() == [[0, 0, 0, 0], expected]
    assert ring(memory, 0, torch.arange(10, 21), 0)[0].tolist() == [18, 19, 20, 17]
    assert memory[1].tolist() == [8, 5, 6, 7]  # the one that went in stays as it is


def test_a_ring_holds_nothing_that_was_not_seen() -> None:
    memory = ring(torch.zeros(3, 5, dtype=torch.int64), 2, torch.tensor([70, 71]), 0)
    assert memory[2].tolist() == [70, 71, 70, 70, 70]


def test_a_reservoir_is_a_uniform_sample() -> None:
    """Of 30 numbers 6 are kept; how often each is, over 1500 trials: chi-square at 1e-4."""
    kept = torch.zeros(30)
    for trial in range(1500):
        rng, memory = generator("reservoir", trial), torch.zeros(6, dtype=torch.int64)
        for a in range(0, 30, 10):
            uniform = torch.rand(10, generator=rng)
            memory = reservoir(memory, torch.arange(a, a + 10), a, uniform)
            assert memory.max() < a + 10
        assert len(set(memory.tolist())) == 6
        kept[memory] += 1
    # without replacement the counts vary less than a multinomial's: by the factor 1 - 6/30
    statistic = float((kept - 300).square().sum() / (300 * (1 - 6 / 30)) * 29 / 30)
    assert chi2.ppf(1e-4, 29) < statistic < chi2.ppf(1 - 1e-4, 29)


def test_a_reservoir_fills_in_order_first() -> None:
    memory = reservoir(torch.zeros(4, dtype=torch.int64), torch.tensor([7, 8, 9]), 0, torch.rand(3))
    assert memory.tolist() == [7, 8, 9, 0]


@pytest.mark.parametrize("name", NAMES)
def test_nothing_comes_again_but_what_is_remembered(name: str) -> None:
    """Of the past a step sees numbers that its state held, and as many as memory has room for."""
    task, algorithm = streamed(), made(name)
    assert task.stream is not None
    original, asked = task.stream.recalled, []

    def recalled(numbers: Tensor) -> Any:
        asked.append(set(numbers.tolist()))
        return original(numbers)

    standing = first(task, algorithm, 0)
    watched = replace(task, stream=task.stream._replace(recalled=recalled))
    with torch.no_grad():
        for k in range(12):
            before = {
                i
                for leaf in tree_leaves(standing.state)
                if leaf.dtype == torch.int64
                for i in leaf.flatten().tolist()
            }
            asked.clear()
            standing = advance(watched, algorithm, 0, standing)
            present = set(range(5 * k, 5 * k + 5))
            assert set().union(*asked) <= before | present
            assert all(i < 5 * k + 5 for leaf in asked for i in leaf)


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
    z = projected(slope, G)
    assert (G @ z).min() > -1e-9
    # SLSQP ends at about the square root of its ftol
    torch.testing.assert_close(z, closest(slope, alone), rtol=0, atol=1e-6)
    torch.testing.assert_close(projected(z, G), z, rtol=0, atol=1e-9)


def test_gems_margin_is_a_bound_of_the_dual() -> None:
    rng = generator("margin")
    G = torch.randn(4, 9, generator=rng, dtype=torch.float64)
    q, P = torch.randn(4, generator=rng, dtype=torch.float64) * 3, G @ G.T
    v = dual(P.numpy(), q.numpy(), 0.5)
    found = minimize(
        lambda u: 0.5 * u @ P.numpy() @ u + q.numpy() @ u,
        v * 0 + 1.0,
        jac=lambda u: P.numpy() @ u + q.numpy(),
        bounds=[(0.5, None)] * 4,
        method="SLSQP",
        options={"ftol": 1e-14},
    )
    torch.testing.assert_close(torch.from_numpy(v), torch.from_numpy(found.x), rtol=0, atol=1e-6)
    assert v.min() >= 0.5


# CTN


class ReleasedMlp(nn.Module):
    """The network of the released code, by torch's modules; of our x and y."""

    def __init__(self, x: Tensor, y: Tensor, net: Mlp):
        super().__init__()
        self.emb = nn.Embedding(net.tasks, net.embedding).double()
        self.film = nn.ModuleList([nn.Linear(net.embedding, 2 * net.hidden) for _ in range(2)])
        pairs = zip(net.widths, net.widths[1:])
        self.layers = nn.ModuleList([nn.Linear(a, b) for a, b in pairs])
        self.double()
        nn.utils.vector_to_parameters(x, [*self.emb.parameters(), *self.film.parameters()])
        nn.utils.vector_to_parameters(y, self.layers.parameters())

    def context(self) -> list[nn.Parameter]:
        return [*self.emb.parameters(), *self.film.parameters()]

    def forward(self, images: Tensor, tasks: Tensor) -> Tensor:
        e, h = self.emb(tasks), images
        for layer, film in zip(self.layers, self.film):
            h = layer(h)
            gamma, beta = film(e).chunk(2, 1)
            gamma, beta = (
                gamma / gamma.norm(dim=1, keepdim=True),
                beta / beta.norm(dim=1, keepdim=True),
            )
            h = F.relu(h) + F.relu(gamma * h + beta)
        return self.layers[-1](h)


def test_the_mlp_is_that_of_torchs_modules() -> None:
    net = Mlp(7, 5, 2, 4, 3, 2)
    x, y = net.init(generator("mlp"))
    images, tasks = torch.rand(6, 7).double(), torch.tensor([0, 1, 2, 2, 1, 0])
    module = ReleasedMlp(x, y, net)
    torch.testing.assert_close(net.logits(x, y, images, tasks), module(images, tasks))
    plain = replace(net, embedding=0)
    _, y = plain.init(generator("mlp"))
    ws = [p.view(s) for p, s in zip(y.split([math.prod(s) for s in plain.shapes]), plain.shapes)]
    h = F.relu(F.linear(F.relu(F.linear(images, *ws[:2])), *ws[2:4]))
    torch.testing.assert_close(plain.logits(y[:0], y, images, tasks), F.linear(h, *ws[4:]))


def batches(task: Task, algorithm: Algorithm, step: int) -> tuple[Any, list[tuple[Any, Any]]]:
    """(the state after `step` steps, the pairs of batches that the next one hands its method)."""
    state, seen = stepped(task, algorithm, step).state, []

    class Spy(Draw):
        def handing(self, xi: Any, zeta: Any) -> Draw:
            seen.append((xi, zeta))
            return super().handing(xi, zeta)

    with torch.no_grad():
        algorithm.step(Oracle(task), state, Spy(task, 0, step))
    return state, seen


@pytest.mark.parametrize("T", [1, 2])
def test_the_first_order_form_is_the_released_update(T: int) -> None:
    """Its loop by torch's modules: parameters copied in place after each inner step, SGD on the
    clamped gradient of the controller. There the loss of the stream's batch is computed once before
    the inner loop, and its second backward pass mixes old activations with new weights; here it is
    computed anew, which is the same in the first inner step."""
    inner_lr, outer_lr, strength, temperature = 0.05, 3.0, 100.0, 5.0
    task = streamed(strength=strength, temperature=temperature)
    algorithm = ctn(fo_itd(clamped(outer_lr, 0.01), inner_lr, T), 2, 6, 3, 6)
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
            cut |= bool((slope.abs() > 0.01).any())
            parameter.data -= outer_lr * slope.clamp(-0.01, 0.01)
        assert cut  # else the clamp is not seen
    x = nn.utils.parameters_to_vector(net.context()).detach()
    y = nn.utils.parameters_to_vector(net.layers.parameters()).detach()
    # the same formula in another order of summation
    torch.testing.assert_close(new.x, x, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(new.y, y, rtol=1e-10, atol=1e-12)


def test_itd_adds_the_unrolled_term_which_finite_differences_confirm() -> None:
    lr, T, step = 0.05, 2, 6
    task = streamed()
    forms = [ctn(of(gd(1.0), lr, T), 1, 6, 3, 6) for of in (itd, fo_itd)]
    state, seen = batches(task, forms[0], step)
    (xi, zeta), start = seen[0], state.y

    def end(x: Tensor) -> Tensor:
        y, o = start, Oracle(task)
        for _ in range(T):
            y = y - lr * o.g_y(x, y, zeta)
        return y

    with torch.no_grad():
        after = [form.step(Oracle(task), state, Draw(task, 0, step))[0] for form in forms]
        unrolled, direct = (state.x - new.x for new in after)  # the outer step size is 1
        torch.testing.assert_close(after[0].y, after[1].y)
        torch.testing.assert_close(direct, Oracle(task).f_x(state.x, end(state.x), xi))
        for i in range(3):
            v = torch.randn(len(state.x), generator=generator("v", i), dtype=torch.float64)
            h = 1e-6  # ReLU's kinks are not within reach of it here; error h^2
            f = [task.upper(state.x + s * h * v, end(state.x + s * h * v), xi) for s in (1, -1)]
            whole = float((f[0] - f[1]) / (2 * h))
            assert float(unrolled @ v) == pytest.approx(whole, rel=1e-5, abs=1e-9)
            f = [task.upper(state.x, end(state.x + s * h * v), xi) for s in (1, -1)]
            term = float((f[0] - f[1]) / (2 * h))
            assert float((unrolled - direct) @ v) == pytest.approx(term, rel=1e-5, abs=1e-9)
            assert abs(term) > 1e-5  # there is something to miss


def test_answers_are_remembered_at_task_ends_and_replayed_with_their_samples() -> None:
    task, algorithm = streamed(), made("ctn_fo")
    old, (state, seen) = stepped(task, algorithm, STEPS).state, batches(task, algorithm, STEPS + 1)
    assert task.stream is not None
    samples = task.stream.recalled(old.episodic[0])
    expected = torch.softmax(task.stream.logits(old.x, old.y, samples) / 5.0, 1)
    torch.testing.assert_close(state.teacher[0], expected)
    assert (state.teacher[1:] == 0).all()
    _, zeta = seen[0]
    assert zeta.teacher is not None
    assert (zeta.teacher[:5] == 0).all()
    for number, answer in zip(zeta.numbers[5:].tolist(), zeta.teacher[5:]):
        rows = (old.episodic[0] == number).nonzero()[:, 0]
        assert any(torch.equal(answer, state.teacher[0, row]) for row in rows)


def test_an_image_is_held_for_the_controller_and_comes_back_later() -> None:
    task, algorithm = streamed(), ctn(fo_itd(gd(0.1), 0.1, 1), 1, 6, 3, 6, past="all")
    numbers, upper = [], []
    for k in range(STEPS):
        _, seen = batches(task, algorithm, k)
        numbers.append(seen[0][1].numbers.tolist())
        upper.append(seen[0][0].numbers.tolist())
    assert numbers == [
        [1, 2, 3, 4], [6, 7, 8, 9, 0], [11, 12, 13, 14, 5], [16, 17, 18, 19, 10],
    ]  # fmt: skip
    assert upper == [[0, 0, 0], [0, 5, 0], [0, 5, 10], [15, 5, 10]]
    _, seen = batches(task, algorithm, STEPS)
    assert seen[0][0].tasks.tolist() == [0, 0, 0, 1, 1, 1]
    _, before = batches(task, ctn(fo_itd(gd(0.1), 0.1, 1), 1, 6, 3, 6), STEPS + 1)
    assert set(before[0][1].tasks[5:].tolist()) == {0}
    many = [batches(task, algorithm, STEPS + k)[1][0][1].tasks[5:].tolist() for k in (1, 2, 3)]
    assert {t for tasks in many for t in tasks} == {0, 1}


def test_the_loss_is_cross_entropy_and_distillation_as_torch_has_them() -> None:
    task = streamed(strength=7.0, temperature=3.0)
    assert task.stream is not None
    assert task.lower is not None
    x, y = task.init(generator("init"))
    new, old = (task.stream.recalled(torch.tensor(n)) for n in ([0, 1, 2], [25, 45]))
    teacher = torch.softmax(torch.randn(2, 10, generator=generator("t")).double(), 1)
    batch = joined(new, old._replace(teacher=teacher))
    z_new, z_old = (task.stream.logits(x, y, samples) for samples in (new, old))
    expected = F.cross_entropy(z_new, new.labels) + F.cross_entropy(z_old, old.labels)
    torch.testing.assert_close(task.upper(x, y, batch), expected)
    kl = F.kl_div(F.log_softmax(z_old / 3.0, 1), teacher, reduction="none").mean()
    torch.testing.assert_close(task.lower(x, y, batch), expected + 7.0 * kl)


# streams and networks


def test_a_stream_is_one_pass_and_a_shuffled_one_epochs() -> None:
    task = streamed()
    seen = [task.draw_lower(generator("x"), k, None) for k in range(12)]
    assert torch.cat([s.numbers for s in seen]).tolist() == list(range(60))
    assert torch.cat([s.tasks for s in seen]).tolist() == [t for t in range(3) for _ in range(20)]
    torch.testing.assert_close(seen[5].images, task.draw_upper(generator("y"), 5, None).images)
    with pytest.raises(BadSetting, match=r"the stream ends; write run\.steps=12"):
        task.draw_lower(generator("x"), 12, None)
    shuffled = streamed(order="shuffled")
    epochs = [shuffled.draw_lower(generator("x"), k, None).numbers for k in range(24)]
    for a in (0, 12):
        assert sorted(torch.cat(epochs[a : a + 12]).tolist()) == list(range(60))
    assert torch.cat(epochs[:12]).tolist() != torch.cat(epochs[12:]).tolist()


def test_tasks_are_the_same_digits_in_other_orders_of_their_pixels() -> None:
    task, other = streamed(), streamed(Context(dtype=torch.float64, seed=1))
    s, again = (t.draw_lower(generator("x"), 0, None) for t in (task, other))
    assert not torch.equal(s.images, again.images)  # the seed draws images, not permutations
    assert task.stream is not None
    every = task.stream.recalled(torch.arange(60))
    columns = [every.images[every.tasks == t].mean(0) for t in range(3)]
    assert not torch.allclose(columns[0], columns[1], atol=0.05)
    spread = [c.sort().values for c in columns]
    torch.testing.assert_close(spread[0], spread[1], rtol=0, atol=0.25)  # other images of them


def test_each_split_task_has_classes_of_its_own() -> None:
    for part, tasks in (("tuning", 3), ("reported", 4)):
        task = split_cifar(CONTEXT, part=part, tasks=tasks, filters=2, embedding=3)  # type: ignore[arg-type]
        assert task.stream is not None
        every = task.stream.recalled(torch.arange(tasks * 60))
        assert every.images.shape[1:] == (1, 16, 16)
        for t in range(tasks):
            assert torch.bincount(every.labels[every.tasks == t]).tolist() == [12] * 5
        x, y = task.init(generator("init"))
        assert task.stream.logits(x, y, every).shape == (tasks * 60, 5)
    with pytest.raises(BadSetting, match=r"task\.tasks=12: there are 11 of 5 classes"):
        split_cifar(CONTEXT, tasks=12)


@pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last])
def test_batch_normalisations_derivatives(format: torch.memory_format) -> None:
    """Values are torch's own, both derivatives those of finite differences."""
    rng = generator("norm")
    h, scale, shift = (
        torch.randn(shape, generator=rng, dtype=torch.float64) for shape in ((3, 4, 2, 5), 4, 4)
    )
    given = [t.requires_grad_() for t in (h.contiguous(memory_format=format), scale, shift)]
    expected = F.batch_norm(h, None, None, scale, shift, training=True)
    torch.testing.assert_close(batch_norm(*given), expected, rtol=1e-12, atol=1e-12)
    assert torch.autograd.gradcheck(batch_norm, given)
    assert torch.autograd.gradgradcheck(batch_norm, given)


@pytest.mark.parametrize("embedding", [0, 3])
def test_the_resnet_is_that_of_torchs_modules(embedding: int) -> None:
    net = Resnet(3, 2, 5, 2, embedding)
    x, y = net.init(generator("resnet"))
    parts = iter(
        [p.view(s) for p, s in zip(y.split([math.prod(s) for s in net.shapes]), net.shapes)]
    )

    def layer(stride: int) -> Callable[[Tensor], Tensor]:
        kernel, scale, shift = next(parts), next(parts), next(parts)
        conv = nn.Conv2d(
            *reversed(kernel.shape[:2]), kernel.shape[2], stride, kernel.shape[2] // 2, bias=False
        )
        norm = nn.BatchNorm2d(len(scale))
        module = nn.Sequential(conv, norm).double()
        with torch.no_grad():
            conv.weight.copy_(kernel), norm.weight.copy_(scale), norm.bias.copy_(shift)
        return module

    images, tasks = (
        torch.rand(4, 3, 32, 32, generator=generator("i")).double(),
        torch.tensor([0, 1, 1, 0]),
    )
    h = nn.MaxPool2d(3, 2, 1)(F.relu(layer(1)(images)))
    for width, stride in zip((2, 2, 4, 4, 8, 8, 16, 16), (1, 1, 2, 1, 2, 1, 2, 1)):
        one, two = layer(stride), layer(1)
        z = two(F.relu(one(h)))
        assert z.shape[1] == width
        h = z + (layer(stride)(h) if stride == 2 else h)
        h = h if embedding else F.relu(h)
    if embedding:
        emb, W, b = (p.view(s) for p, s in zip(x.split([6, 96, 32]), net.controller))
        gamma, beta = F.linear(emb, W, b).chunk(2, 1)
        gamma, beta = (F.normalize(u, dim=1)[tasks][:, :, None, None] for u in (gamma, beta))
        h = F.relu(h) + F.relu(gamma * h + beta)
    every = F.linear(h.mean((2, 3)), next(parts), next(parts)).view(4, 2, 5)
    torch.testing.assert_close(net.logits(x, y, images, tasks), every[torch.arange(4), tasks])
    known = net.moments(y, images)
    torch.testing.assert_close(
        net.logits(x, y, images, tasks, known), every[torch.arange(4), tasks]
    )
    one = net.logits(x, y, images[:1], tasks[:1], known)
    torch.testing.assert_close(one[0], every[0, 0])  # not by its own moments


# contracts


@pytest.mark.parametrize("name", NAMES)
def test_state_keeps_its_form_and_a_step_leaves_its_input_alone(name: str) -> None:
    task, algorithm = streamed(), made(name)
    before, after = (stepped(task, algorithm, n).state for n in (0, 6))
    assert tree_flatten(before)[1] == tree_flatten(after)[1]
    for a, b in zip(tree_leaves(before), tree_leaves(after), strict=True):
        assert (a.shape, a.dtype, a.requires_grad) == (b.shape, b.dtype, False)
    copy = [leaf.clone() for leaf in tree_leaves(after)]
    with torch.no_grad():
        algorithm.step(Oracle(task), after, Draw(task, 0, 6))
    assert all(torch.equal(a, b) for a, b in zip(copy, tree_leaves(after), strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_going_on_in_mid_stream_changes_nothing(name: str, tmp_path: Path) -> None:
    task, algorithm, path = streamed(), made(name), tmp_path / "c.pt"
    rows: list[dict[str, Any]] = []
    again: list[dict[str, Any]] = []
    kept: list[Standing] = []
    budget: dict[str, Any] = {"seed": 1, "steps": 12, "every": 3}
    whole = run(task, algorithm, **budget, measured=rows.append, paused=kept.append)
    middle = next(s for s in kept if s.step >= 6)  # in the second task
    checkpoint.save(path, "n", middle)
    start = checkpoint.load(path, "n", first(task, algorithm, 1))
    parts = run(task, algorithm, **budget, start=start, measured=again.append)
    pairs = zip(tree_leaves(whole.state), tree_leaves(parts.state), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert (whole.calls, whole.samples) == (parts.calls, parts.samples)
    for row in rows + again:
        del row["seconds"], row["cpu_seconds"]
    assert repr(rows[-len(again) :]) == repr(again)  # nan and all


COUNTS: dict[str, tuple[dict[str, Any], dict[str, int]]] = {  # of a step in the third task
    "er": ({"steps": 2}, {"grad_g": 2}),
    "single": ({}, {"grad_g": 1}),
    "gem": ({}, {"grad_g": 3}),
    "mer": ({"batches": 2, "length": 3}, {"grad_g": 30}),
    "ctn_itd": ({}, {"grad_g": 4, "grad_f": 2, "jvp_g": 4, "hvp_g": 2}),
    "ctn_fo": ({}, {"grad_g": 4, "grad_f": 2}),
    "ctn_bvfsm": ({}, {"grad_g": 12, "grad_f": 6, "value_g": 2}),
    "ctn_penalty": ({}, {"grad_g": 6, "grad_f": 6, "hvp_g": 4, "jvp_g": 2}),
    "ctn_bome": ({}, {"grad_g": 6, "grad_f": 2}),
}


@pytest.mark.parametrize("name", NAMES)
def test_counts_are_those_of_its_docstring(name: str) -> None:
    settings, expected = COUNTS[name]
    task, algorithm = streamed(), made(name, **settings)
    with torch.no_grad():
        for step, more in ((2 * STEPS + 1, 0), (2 * STEPS, 1)):  # and at the end of a task
            o, state = Oracle(task), stepped(task, algorithm, step).state
            algorithm.step(o, state, Draw(task, 0, step))
            teaching = {"value_g": expected.get("value_g", 0) + more} if "ctn" in name else {}
            assert +o.calls == {k: v for k, v in (expected | teaching).items() if v}


@pytest.mark.parametrize("name", NAMES)
def test_every_method_learns_a_split_of_classes(name: str) -> None:
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
    ((label, file),) = drawings.views(artifact, {"paper": [("A row", seen), ("B", seen)]}, tmp_path)
    assert label == "Accuracy, first seed, paper variant"
    drawn = (tmp_path / "bome" / file).read_text()
    assert "A row" in drawn
    assert "after task" in drawn


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
        streamed().draw_lower(generator("x"), 0, 7)
