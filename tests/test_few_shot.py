"""Few-shot learning: derivatives against finite differences and autograd, episodes together against
one by one, MAML and ANIL against learn2learn, memory, data, and what a run selects."""

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from omegaconf import OmegaConf
from torch import Tensor

from algorithms.bilevel.aid_bio import aid_bio
from algorithms.bilevel.itd import itd
from algorithms.meta.learn2learn import learn2learn
from algorithms.meta.maml import maml
from bench.core.algorithm import Algorithm
from bench.core.draw import Draw, generator
from bench.core.fit import check_kind
from bench.core.loop import advance, first, run
from bench.core.oracle import Oracle
from bench.core.settings import BadSetting, build
from bench.core.task import Best, Context, Task
from bench.numerics.descent import adam, gd
from bench.reproduce.book import load_book
from bench.reproduce.points import format_override, points
from bench.runs.launch import complete
from tasks.few_shot import few_shot
from tasks.models.conv4 import Conv4
from tasks.quadratic import quadratic
from tests.composed import composed

TINY: dict[str, Any] = {"ways": 3, "shots": 2, "queries": 2, "episodes": 2, "filters": 3}
OUTER = (gd(), 1.0)


def tiny(context: Context, **settings: Any) -> Task:
    return few_shot(context, **TINY | settings)


def point(task: Task) -> tuple[Tensor, Tensor]:
    """Away from where everything is zero or alike."""
    rng = generator("few-shot")
    x, y = task.init(rng)
    return tuple(t + 0.1 * torch.randn(t.shape, generator=rng, dtype=t.dtype) for t in (x, y))  # type: ignore[return-value]


def slope(f: Callable[[Tensor], Tensor], p: Tensor, v: Tensor, h: float = 1e-7) -> float:
    """Central difference along v. The kinks of ReLU and pooling ask for a short step of length h;
    rounding leaves 1e-16 / h = 1e-9 of f."""
    u = h * v / v.norm()
    return float((f(p + u) - f(p - u)) / (2 * h) * v.norm())


def near(a: Tensor | float, b: Tensor | float) -> None:
    assert float(a) == pytest.approx(float(b), rel=1e-5, abs=1e-9)


def end(task: Task, x: Tensor, y: Tensor, lr: float, steps: int) -> Tensor:
    """y after so many steps of gradient descent, by plain autograd."""
    lower, zeta = task.lower, Draw(task, 0, 0).g()
    assert lower is not None
    with torch.enable_grad():
        for _ in range(steps):
            y = y if y.requires_grad else y.detach().requires_grad_()
            (g_y,) = torch.autograd.grad(lower(x, y, zeta), y, create_graph=True)
            y = y - lr * g_y
    return y


def hypergradient(task: Task, algorithm: Algorithm, x: Tensor) -> Tensor:
    """What a step with step size 1 subtracts from x."""
    y = task.init(generator())[1]
    with torch.no_grad():
        state, _ = algorithm.step(Oracle(task), algorithm.init(x, y), Draw(task, 0, 0))
    return x - state.x


def test_itd_is_the_finite_difference_of_what_its_inner_loop_gives(context: Context) -> None:
    task = tiny(context)
    x, xi = point(task)[0], Draw(task, 0, 0).f()
    found, u = hypergradient(task, itd(*OUTER, 0.5, 6), x), torch.randn_like(x)

    def value(p: Tensor) -> Tensor:
        return task.upper(p, end(task, p, task.init(generator())[1], 0.5, 6).detach(), xi)

    near((found * u).sum(), slope(value, x, u))


def test_aid_is_the_finite_difference_at_the_solution(context: Context) -> None:
    """The lower level solved: with l2 = .1 and steps of .5 an error falls at least as .9^k."""
    task = tiny(context, l2=0.1)
    x, xi = point(task)[0], Draw(task, 0, 0).f()
    found, u = hypergradient(task, aid_bio(*OUTER, 0.5, T=250, N=30), x), torch.randn_like(x)
    zeta = Draw(task, 0, 0).g()

    def value(p: Tensor) -> Tensor:
        o, y = Oracle(task), task.init(generator())[1]
        for _ in range(250):
            y = y - 0.5 * o.g_y(p, y, zeta)
        return task.upper(p, y, xi)

    near((found * u).sum(), slope(value, x, u))


@pytest.mark.parametrize("adapt", ["head", "network"])
def test_maml_and_anil_are_autograd_through_the_loop_and_its_beginning(
    adapt: str, context: Context
) -> None:
    task = tiny(context, adapt=adapt, heads="drawn", l2=0.0)
    origin, xi = task.inner.origin, Draw(task, 0, 0).f()
    assert origin is not None
    x, y = task.init(generator())
    leaf = x.clone().requires_grad_()
    through = task.upper(leaf, end(task, leaf, origin(leaf, y), 0.3, 3), xi)
    (expected,) = torch.autograd.grad(through, leaf)
    found = hypergradient(task, maml(*OUTER, 0.3, 3), x)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("adapt", ["head", "network"])
@pytest.mark.parametrize("chunk", [None, 1, 2, 3])
def test_episodes_together_are_the_loop_over_them(
    adapt: str, chunk: int | None, context: Context
) -> None:
    """Slopes, both products and an adaptation, of all episodes and of one after the other."""
    settings = {"episodes": 3, "adapt": adapt, "heads": "drawn"}
    together, alone = tiny(context, **settings, chunk=chunk), tiny(context, **settings)
    x, y = point(together)
    zeta, v = Draw(together, 0, 0).g(), torch.randn_like(y)

    def adapted(task: Task, y: Tensor, zeta: Any) -> tuple[Tensor, Tensor, Tensor]:
        o = Oracle(task)
        with torch.no_grad():
            for _ in range(4):
                slope, products = o.linearise_g_y(x, y, zeta)
                y = y - 0.3 * slope
            mixed, curved = products.both(v[: len(y)] if len(y) > 1 else v[rows])
            return y, mixed + 0, curved

    rows = slice(0, 3)
    all_y, all_mixed, all_curved = adapted(together, y, zeta)
    sums = torch.zeros_like(x)
    for i in range(3):
        rows = slice(i, i + 1)
        one_y, one_mixed, one_curved = adapted(alone, y[rows], zeta.part(i, i + 1))
        sums = sums + one_mixed
        torch.testing.assert_close(all_y[rows], one_y, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(all_curved[rows], one_curved, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(all_mixed, sums, rtol=1e-10, atol=1e-12)


def test_one_pass_through_the_network_and_one_back_serve_all_products(context: Context) -> None:
    task, passes = tiny(context), []
    x = task.init(generator())[0]
    real = torch.autograd.grad

    def counted(*arguments: Any, **options: Any) -> Any:
        passes.append(isinstance(arguments[0], Tensor) and arguments[0].ndim == 3)  # of features
        return real(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.autograd, "grad", counted)
        for algorithm in (
            itd(adam(), 0.1, 0.1, 7),
            maml(adam(), 0.1, 0.1, 7),
            aid_bio(*OUTER, 0.1),
        ):
            passes.clear()
            hypergradient(task, algorithm, x)
            assert sum(passes) == 1


def peak(work: Callable[[], Any]) -> int:
    """The most bytes of tensors alive during the work, beyond those before it."""
    cpu = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=cpu, profile_memory=True, acc_events=True) as profile:
        work()
    results = profile.profiler.kineto_results  # type: ignore[union-attr]
    events = [(e.start_ns(), e.nbytes()) for e in results.events() if e.name() == "[memory]"]
    return int(np.cumsum([size for _, size in sorted(events)]).max())


def test_memory_of_itd_grows_with_its_graph_and_of_aid_not_at_all(context: Context) -> None:
    task = few_shot(context, episodes=8, filters=8)
    state = task.init(generator())

    def needed(algorithm: Algorithm) -> int:
        def work() -> None:
            with torch.no_grad():
                algorithm.step(Oracle(task), algorithm.init(*state), Draw(task, 0, 0))

        work()  # what is drawn or remembered is there already
        return peak(work)

    implicit = {T: needed(aid_bio(*OUTER, 0.1, T, N=5)) for T in (1, 20)}
    unrolled = {T: needed(itd(*OUTER, 0.1, T)) for T in (1, 20)}
    assert implicit[20] <= 1.01 * implicit[1]
    graph = 20 * 3 * state[1].numel() * 8  # of each inner step a y, a slope and a velocity
    assert unrolled[20] <= 1.3 * (implicit[20] + graph)
    assert unrolled[1] < unrolled[20]


@pytest.mark.parametrize("adapt", ["head", "network"])
def test_maml_and_anil_are_those_of_learn2learn(adapt: str) -> None:
    """learn2learn's own recipe takes its own modules, in single precision, over the same
    episodes."""
    l2l = pytest.importorskip("learn2learn")
    task = few_shot(Context(), episodes=2, filters=8, adapt=adapt, heads="drawn", l2=0.0)  # type: ignore[arg-type]
    x, y = task.init(generator())
    batch, net = Draw(task, 0, 0).g(), Conv4(1, 16, 8)

    features = l2l.vision.models.cnn4.ConvBase(hidden=8, channels=1, max_pool=True)
    head, parts = torch.nn.Linear(net.width, 5), x.split([*net.sizes, 5 * (net.width + 1)])
    with torch.no_grad():
        for block, (weights, scale, shift) in zip(features, zip(*[iter(parts[:-1])] * 3)):
            block.conv.weight.copy_(weights.view_as(block.conv.weight))
            block.conv.bias.zero_()
            block.normalize.weight.copy_(scale)
            block.normalize.bias.copy_(shift)
        both = parts[-1].view(5, -1)
        head.weight.copy_(both[:, :-1])
        head.bias.copy_(both[:, -1])
    labels = torch.arange(5).repeat_interleave(5)
    body = torch.nn.Sequential(features, torch.nn.Flatten())
    adapted = head if adapt == "head" else torch.nn.Sequential(body, head)
    wrapped = l2l.algorithms.MAML(adapted, lr=0.1)
    for images in batch.images:
        learner, seen = wrapped.clone(), body(images) if adapt == "head" else images
        for _ in range(5):
            learner.adapt(F.cross_entropy(learner(seen[:25]), labels))
        (F.cross_entropy(learner(seen[25:]), labels) / 2).backward()
    grads = []
    for block in features:
        grads += [block.conv.weight.grad, block.normalize.weight.grad, block.normalize.bias.grad]
    in_head = torch.cat([head.weight.grad, head.bias.grad[:, None]], 1)
    expected = x - 0.1 * torch.cat([g.flatten() for g in [*grads, in_head]])

    for algorithm in (maml(gd(), 0.1, 0.1, 5), learn2learn(gd(), 0.1, 0.1, 5)):
        o = Oracle(task)
        with torch.no_grad():
            state, _ = algorithm.step(o, algorithm.init(x, y), Draw(task, 0, 0))
        torch.testing.assert_close(state.x, expected, rtol=0, atol=1e-6)
        assert o.samples == {"grad_g": 250, "grad_f": 50, "jvp_g": 250, "hvp_g": 250}


# episodes and data


def test_episodes_are_named_and_the_same_whoever_asks(context: Context) -> None:
    tasks = [tiny(context, adapt=adapt, norm=norm) for adapt, norm in
             (("head", "transductive"), ("network", "support"))]  # fmt: skip
    draws = [Draw(task, 0, 3) for task in tasks]
    first_seen, second = draws[0].f(), draws[1].g()
    assert torch.equal(first_seen.images, second.images)
    assert list(first_seen.numbers) == [6, 7]
    assert draws[0].g().images is first_seen.images  # and the losses share them
    other = few_shot(replace(context, seed=1), **TINY)
    assert not torch.equal(Draw(other, 1, 3).f().images, first_seen.images)
    with pytest.raises(BadSetting, match=r"algorithm\.batch=4: a step has task\.episodes=2"):
        draws[0].g(4)


def mini_folder(root: Path, side: int = 84) -> Path:
    """Files as learn2learn's loader has them, with a few classes of a few images."""
    rng = np.random.default_rng(0)
    for word, count in (("train", 6), ("validation", 5), ("test", 5)):
        content = {
            "image_data": rng.integers(0, 256, (10 * count, side, side, 3), dtype=np.uint8),
            "class_dict": {f"n{k}": list(range(10 * k, 10 * k + 10)) for k in range(count)},
        }
        (root / f"mini-imagenet-cache-{word}.pkl").write_bytes(pickle.dumps(content))
    return root


def test_mini_imagenet_is_read_from_learn2learns_files(tmp_path: Path) -> None:
    context = Context(data_root=mini_folder(tmp_path))
    task = few_shot(context, "mini_imagenet", episodes=1, watched=1, final=2)
    y = task.init(generator())[1]
    assert y.shape == (1, 5 * (32 * 5 * 5 + 1))
    code = few_shot(context, "mini_imagenet", "code", episodes=1)
    assert code.init(generator())[1].shape == (1, 5 * (64 * 5 * 5 + 1))
    (tmp_path / "mini-imagenet-cache-test.pkl").write_bytes(b"no pickle")
    with pytest.raises(BadSetting, match=r"mini-imagenet-cache-test\.pkl: not as expected"):
        few_shot(context, "mini_imagenet")


def test_every_row_of_the_mini_imagenet_spec_runs_on_smaller_images(tmp_path: Path) -> None:
    book, root = load_book(), mini_folder(tmp_path, 16)
    spec = book.artifacts["stocbio/fig2_miniimagenet"].spec
    for point in points(spec, book, "smoke"):
        cfg = composed(*(format_override(*pair) for pair in (*point.settings, *point.chosen)))
        config = complete(OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True))
        task: Task = build(config["task"], Context(data_root=root))
        rows: list[dict[str, Any]] = []
        run(task, build(config["algorithm"]), seed=0, steps=1, every=1, on_row=rows.append)
        assert np.isfinite(rows[-1]["selected_accuracy"]), point.row


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data": "mini_imagenet"}, "mini-imagenet-cache-train.pkl: No such file"),
        ({"data": "omniglot"}, r"omniglot-py is not there; write data\.root"),
        ({"data": "fc100"}, r"cifar-100-python is not there; write data\.download=true or"),
        ({"ways": 16}, r"task\.ways=16 .* patterns has 15 classes of 20 images for val"),
        ({"shots": 20}, r"task\.shots=20"),
        ({"divide": True}, r"task\.divide=true: only MAML has it; write task\.adapt=network"),
    ],
)
def test_refusals(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match=message) as error:
        few_shot(Context(data_root=tmp_path), **settings)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("adapt", ["head", "network"])
def test_a_run_reports_the_iterate_of_the_best_validation(adapt: str) -> None:
    whole = adapt == "network"
    task = few_shot(
        Context(), adapt=adapt, episodes=2, filters=4 if whole else 8, watched=2 if whole else 10,  # type: ignore[arg-type]
        final=3 if whole else 30, test_steps=1 if whole else 5, test_lr=0.5,
    )  # fmt: skip
    algorithm = maml(adam(), 0.01, 0.5, 1) if whole else itd(adam(), 0.01, 0.5, 5)
    rows: list[dict[str, Any]] = []
    run(
        task,
        algorithm,
        seed=0,
        steps=4 if whole else 30,
        every=2 if whole else 10,
        on_row=rows.append,
    )
    assert all("selected_accuracy" not in row for row in rows[:-1])
    best = max(rows, key=lambda row: row["val_accuracy"])
    assert rows[-1]["selected_step"] == best["step"]
    assert rows[-1]["selected_val_accuracy"] == best["val_accuracy"]
    assert rows[-1]["drop"] == pytest.approx(best["val_accuracy"] - rows[-1]["val_accuracy"])
    if not whole:  # the patterns are learned: an untrained embedding gets less
        assert rows[-1]["selected_accuracy"] > rows[0]["test_accuracy"] + 0.1
        assert 0 < rows[-1]["selected_interval"] < 0.1


def test_aid_starts_its_linear_system_from_zero_where_episodes_are_new(context: Context) -> None:
    task, algorithm = tiny(context), aid_bio(gd(), 1e-300, 0.1, T=3, N=2)
    with torch.no_grad():
        two = advance(task, algorithm, 0, advance(task, algorithm, 0, first(task, algorithm, 0)))
        state = algorithm.init(*task.init(generator()))
        alone, _ = algorithm.step(Oracle(task), state, Draw(task, 0, 1))
    assert torch.equal(two.state.v, alone.v)


def test_a_method_of_episodes_is_refused_on_other_tasks(context: Context) -> None:
    of_episodes = itd(gd(), 0.1, 0.1)._replace(kind="episodes")
    task = tiny(context)
    check_kind(task, of_episodes, *task.init(generator()))
    other = quadratic(context)
    with pytest.raises(BadSetting, match=r"for tasks of episodes, .* or task=few_shot$"):
        check_kind(other, of_episodes, *other.init(generator()))


def test_how_far_the_last_iterate_has_dropped(context: Context) -> None:
    task = tiny(context)
    assert task.selection is not None
    best = Best(0.75, 3, *task.init(generator()))
    found = task.selection.measure(best, {"val_accuracy": 0.5})
    assert float(found["drop"]) == 0.25
