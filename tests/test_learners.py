"""Few-shot losses and their derivatives in closed form, against sums over single images and
autograd; which images each loss sees; and what an evaluation measures, on marked data."""

import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import tasks.few_shot
from bench.core.draw import Draw, generator
from bench.core.oracle import Oracle
from bench.core.settings import BadSetting
from bench.core.task import Best, Context, Task
from tasks.common.episodes import Deck
from tasks.data import classes
from tasks.few_shot import few_shot, interval
from tasks.models.conv4 import Conv4

WAYS, SHOTS, QUERIES, FILTERS, EPISODES = 3, 2, 4, 2, 3
NET = Conv4(1, 16, FILTERS)
BODY, SUPPORT, ALL = sum(NET.sizes), WAYS * SHOTS, WAYS * (SHOTS + QUERIES)
HEAD = WAYS * (NET.width + 1)
CONTEXT = Context(seed=2, dtype=torch.float64)
TINY: dict[str, Any] = {
    "ways": WAYS, "shots": SHOTS, "queries": QUERIES, "filters": FILTERS, "episodes": EPISODES,
}  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "head": {},
    "head, support statistics": {"norm": "support", "l2": 0.3},
    "head, two at a time": {"chunk": 2},
    "head, code": {"variant": "code"},
    "network": {"adapt": "network"},
    "network, support statistics": {"adapt": "network", "norm": "support", "l2": 0.02},
    "network, code": {"adapt": "network", "variant": "code"},
    "network, not divided": {"adapt": "network", "variant": "code", "divide": False},
    "network, together": {"adapt": "network", "chunk": 3, "divide": True},
}
L2 = {"head": 0.01, "head, support statistics": 0.3, "head, two at a time": 0.01}
L2 |= {"network, support statistics": 0.02}  # the others: 0


def features(theta: Tensor, images: Tensor, known: int | None) -> Tensor:
    """[n, width + 1] with a 1 for the bias, by torch's functions; normalised by the first known."""
    parts = theta.split(NET.sizes)
    h = images
    for block in range(4):
        weights, scale, shift = parts[3 * block : 3 * block + 3]
        h = F.conv2d(h, weights.view(FILTERS, -1, 3, 3), padding=1)
        mean = h[:known].mean((0, 2, 3), keepdim=True)
        variance = (h[:known] - mean).square().mean((0, 2, 3), keepdim=True)
        h = (h - mean) / (variance + 1e-5).sqrt() * scale[:, None, None] + shift[:, None, None]
        h = F.max_pool2d(F.relu(h), 2)
    return torch.cat([h.flatten(1), torch.ones(len(h), 1).double()], 1)


def loss_of(kind: str, x: Tensor, y: Tensor, images: Tensor, query: bool) -> Tensor:
    """L of one episode: the mean cross-entropy of its query or its support images, class by class,
    of a head on x's features, or of a network of its own."""
    settings, whole = KINDS[kind], kind.startswith("network")
    theta, head = (y[:BODY], y[BODY:]) if whole else (x[:BODY], y)
    support = settings.get("norm") == "support"
    if whole and not support:  # each side is normalised by itself
        z = features(theta, images[SUPPORT:] if query else images[:SUPPORT], None)
    else:
        z = features(theta, images, SUPPORT if support else None)
        z = z[SUPPORT:] if query else z[:SUPPORT]
    each = QUERIES if query else SHOTS
    scores = z @ head.view(WAYS, -1).T
    losses = [torch.logsumexp(scores[i], 0) - scores[i, i // each] for i in range(WAYS * each)]
    total = torch.stack(losses).sum() / len(losses)
    divided = kind in ("network, code", "network, together")
    return total / len(losses) if divided else total


def f_of(kind: str, x: Tensor, y: Tensor, images: Tensor) -> Tensor:
    """Equation (10) of stocBiO: the mean over the episodes."""
    each = [loss_of(kind, x, y[i], images[i], True) for i in range(EPISODES)]
    return sum(each, torch.zeros(()).double()) / EPISODES


def g_of(kind: str, x: Tensor, y: Tensor, images: Tensor) -> Tensor:
    """The sum over the episodes, and l2 |y|^2."""
    each = [loss_of(kind, x, y[i], images[i], False) for i in range(EPISODES)]
    return sum(each, torch.zeros(()).double()) + L2.get(kind, 0.0) * y.square().sum()


def point(task: Task, turn: int = 0) -> tuple[Tensor, Tensor]:
    """Away from where everything is zero or alike."""
    rng = generator("few-shot", turn)
    x, y = task.init(rng)
    return (
        x + 0.1 * torch.randn(x.shape, generator=rng, dtype=x.dtype),
        y + 0.3 * torch.randn(y.shape, generator=rng, dtype=y.dtype),
    )


@pytest.mark.parametrize("kind", KINDS)
def test_losses_and_derivatives_are_those_of_sums_over_single_images(kind: str) -> None:
    """At two points and on two batches, so that what is kept of one is not taken for the other; all
    products at once and each by itself."""
    task = few_shot(CONTEXT, **TINY, **KINDS[kind])
    o, rng = Oracle(task), generator("directions")
    assert task.lower is not None
    points = [point(task, turn) for turn in (0, 1)]
    batches = [(Draw(task, 0, k).f(), Draw(task, 0, k).g()) for k in (0, 1)]
    for turn, k in ((0, 0), (1, 0), (1, 1)):
        (x, y), (xi, zeta) = points[turn], batches[k]
        v = torch.randn(y.shape, generator=rng, dtype=torch.float64)
        p, q = x.clone().requires_grad_(), y.clone().requires_grad_()
        f, g = f_of(kind, p, q, xi.images), g_of(kind, p, q, zeta.images)
        wanted: dict[str, Any] = {"retain_graph": True, "allow_unused": True}
        f_x, f_y = torch.autograd.grad(f, (p, q), materialize_grads=True, **wanted)
        g_x, g_y = torch.autograd.grad(
            g, (p, q), create_graph=True, allow_unused=True, materialize_grads=True
        )
        mixed, curved = torch.autograd.grad(
            (g_y * v).sum(), (p, q), materialize_grads=True, allow_unused=True
        )

        def same(found: Tensor, expected: Tensor) -> None:
            assert found.shape == expected.shape  # before a deferred gradient is worked out
            torch.testing.assert_close(found + 0, expected.detach(), rtol=1e-8, atol=1e-11)

        with torch.no_grad():
            same(task.upper(x, y, xi), f)
            same(task.lower(x, y, zeta), g)
            for found, expected in zip(o.grad_f(x, y, xi), (f_x, f_y), strict=True):
                same(found, expected)
            for found, expected in zip(o.grad_g(x, y, zeta), (g_x, g_y), strict=True):
                same(found, expected)
            same(o.f_x(x, y, xi), f_x)
            same(o.f_y(x, y, xi), f_y)
            same(o.g_x(x, y, zeta), g_x)
            same(o.g_y(x, y, zeta), g_y)
            slope, products = o.linearise_g_y(x, y, zeta)
            same(slope, g_y)
            for found, expected in zip(products.both(v), (mixed, curved), strict=True):
                same(found, expected)
            same(products.xy(v), mixed)
            same(products.yy(v), curved)


def test_a_prepared_batch_has_the_features_that_x_decides() -> None:
    """learn2learn differentiates by itself: through features that are computed once."""
    for kind in ("head", "network"):
        task = few_shot(CONTEXT, **TINY, **KINDS[kind])
        (x, y), xi, zeta = point(task), Draw(task, 0, 0).f(), Draw(task, 0, 0).g()
        x.requires_grad_()
        queries, supports = task.inner.prepare(x, xi, zeta)
        assert task.lower is not None
        torch.testing.assert_close(task.upper(x, y, queries), task.upper(x, y, xi))
        torch.testing.assert_close(task.lower(x, y, supports), task.lower(x, y, zeta))
        if kind == "network":
            assert queries.features is None
            continue
        assert queries.features is supports.features
        first = supports.part(1, 2)
        torch.testing.assert_close(first.features, features(x[:BODY], zeta.images[1], None)[None])
        (g_x,) = torch.autograd.grad(task.upper(x, y, queries), x)
        torch.testing.assert_close(g_x, torch.autograd.grad(task.upper(x, y, xi), x)[0])


def test_a_batch_is_counted_by_the_images_of_its_loss() -> None:
    task = few_shot(CONTEXT, **TINY)
    xi, zeta = Draw(task, 0, 0).f(), Draw(task, 0, 0).g()
    assert task.data.count(xi) == EPISODES * WAYS * QUERIES
    assert task.data.count(zeta) == EPISODES * WAYS * SHOTS
    assert task.data.rows is not None
    part = task.data.rows(xi, 1, 3)
    assert torch.equal(part.images, xi.images[1:3])
    assert (list(part.numbers), part.rows) == ([1, 2], xi.rows)
    assert task.data.count(part) == 2 * WAYS * QUERIES
    assert not task.inner.carries


@pytest.mark.parametrize("kind", KINDS)
def test_some_episodes_beside_all_heads_or_networks_are_refused(kind: str) -> None:
    """Blocks are counted in images, so that one may have two of three episodes, or none. Those of
    networks would be taken for the first two networks'."""
    task = few_shot(CONTEXT, **TINY, **KINDS[kind])
    assert task.lower is not None
    assert task.data.rows is not None
    (x, y), o = point(task), Oracle(task)
    asked: list[tuple[Any, Any]] = [(task.upper, "f"), (o.grad_f, "f")]
    asked += [(loss, "g") for loss in (task.lower, o.grad_g, o.g_y, o.linearise_g_y)]
    for ask, side in asked:
        for first, end in ((0, 2), (1, 3), (7, 9)):
            some = task.data.rows(getattr(Draw(task, 0, 0), side)(), first, end)
            with pytest.raises(BadSetting, match="a step's 3 episodes cannot be cut") as refused:
                ask(x, y, some)
            assert "write algorithm.blocks=1" in str(refused.value)
    part = task.data.rows(Draw(task, 0, 0).g(), 1, 3)
    assert task.lower(x, y[1:], part).isfinite()


# where heads and networks begin


def drawn(*name: Any) -> Tensor:
    """A head as torch.nn.Linear's: uniform to 1 / sqrt(features)."""
    uniform = torch.rand(HEAD, generator=generator("head", 2, *name), dtype=torch.float64)
    return (2 * uniform - 1) / math.sqrt(NET.width)


STARTS: dict[str, tuple[dict[str, Any], bool, bool]] = {  # settings; is x's head drawn; y fresh
    "paper": ({}, False, False),
    "code": ({"variant": "code"}, True, False),
    "code, zero": ({"variant": "code", "heads": "zero"}, False, False),
    "drawn": ({"heads": "drawn"}, True, False),
    "fresh": ({"heads": "fresh"}, True, True),
    "network": ({"adapt": "network"}, True, False),
    "network, zero": ({"adapt": "network", "heads": "zero"}, False, False),
}


@pytest.mark.parametrize("name", STARTS)
def test_where_x_and_y_begin(name: str) -> None:
    settings, is_drawn, is_fresh = STARTS[name]
    task = few_shot(CONTEXT, **TINY, **settings)
    x, y = task.init(generator("any"))
    net = NET.init(generator("network", 2))
    head = drawn() if is_drawn else torch.zeros(HEAD).double()
    assert torch.equal(x[:BODY], net)
    torch.testing.assert_close(x[BODY:], head, rtol=1e-14, atol=0)
    begun = x if settings.get("adapt") == "network" else x[BODY:]
    assert y.shape == (EPISODES, len(begun))
    assert all(torch.equal(one, begun) for one in y)
    zeta = Draw(task, 0, 1).g()
    start = task.inner.start(y + 1, zeta)
    if is_fresh:
        expected = torch.stack([drawn("train", n) for n in (3, 4, 5)])
        torch.testing.assert_close(start, expected, rtol=1e-14, atol=0)
    else:
        assert torch.equal(start, y)
    assert torch.equal(task.inner.start(y + 1, None), y)
    other = x + 1
    assert task.inner.origin is not None
    expected = other if settings.get("adapt") == "network" else other[BODY:]
    assert torch.equal(task.inner.origin(other, y), expected.expand(y.shape))


# what an evaluation sees, on parts that are told apart


def parts(seed: int = 0) -> classes.Classes:
    """Training classes are easy, validation ones hard, test ones between them."""
    rng, found = generator("parts", seed), {}
    for part, noise, count in (("train", 0.5, 7), ("val", 6.0, 5), ("test", 2.5, 6)):
        own = torch.randn(count, 1, 1, 16, 16, generator=rng)
        images = own + noise * torch.randn(count, 9, 1, 16, 16, generator=rng)
        found[part] = (30 * images + 128).clamp(0, 255).byte()
    return classes.Classes(found, {"parts": "made up"})


@pytest.fixture
def told_apart(monkeypatch: pytest.MonkeyPatch) -> dict[str, Tensor]:
    made = parts()
    monkeypatch.setattr(tasks.few_shot.classes, "load", lambda data, context: made)
    return made.parts


def measured(kind: str, made: dict[str, Tensor], x: Tensor, part: str, count: int) -> Tensor:
    """The accuracies on the query images of episodes -count to -1 of this part, after 2 inner steps
    of .4 on their support images, one after the other; l2 is .3."""
    deck, found, whole = Deck(made, WAYS, SHOTS, QUERIES, 2, torch.float64), [], kind == "network"
    for number in range(-count, 0):
        images = deck.draw(part, [number]).images[0]
        y = {"head": x[BODY:], "network": x, "fresh": drawn(part, number)}[kind]
        for _ in range(2):
            y = y.detach().requires_grad_()
            g = loss_of("network" if whole else "head", x, y, images, False)
            g = g + 0.3 * y.square().sum()
            y = (y - 0.4 * torch.autograd.grad(g, y)[0]).detach()
        theta, head = (y[:BODY], y[BODY:]) if whole else (x[:BODY], y)
        z = features(theta, images[SUPPORT:] if whole else images, None)[-WAYS * QUERIES :]
        scores = z @ head.view(WAYS, -1).T
        right = [int(scores[i].argmax()) == i // QUERIES for i in range(WAYS * QUERIES)]
        found.append(sum(right) / len(right))
    return torch.tensor(found, dtype=torch.float64)


def spread(accuracies: Tensor) -> float:
    """1.96 standard errors of the mean, by hand."""
    n, mean = len(accuracies), float(accuracies.mean())
    variance = sum((a - mean) ** 2 for a in accuracies.tolist()) / (n - 1)
    return 1.96 * math.sqrt(variance / n)


FORMS: dict[str, dict[str, Any]] = {
    "head": {"l2": 0.3, "heads": "drawn"},
    "fresh": {"l2": 0.3, "heads": "fresh"},
    "network": {"adapt": "network", "l2": 0.3},
}


@pytest.mark.parametrize("kind", FORMS)
def test_an_evaluation_is_of_each_part_by_itself(
    kind: str, told_apart: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Accuracies on the query images, after inner steps on the support ones; more episodes than go
    together. Training episodes have numbers from 0 on, so that none of these is among them."""
    monkeypatch.setattr(tasks.few_shot, "BLOCK", 2)
    settings: dict[str, Any] = {"test_steps": 2, "test_lr": 0.4, "watched": 5, "final": 3}
    task = few_shot(CONTEXT, **TINY, **FORMS[kind], **settings)
    x = point(task)[0]
    with torch.no_grad():
        found = {key: float(value) for key, value in task.evaluate(x, x, 3).items()}
        again = {key: float(value) for key, value in task.evaluate(x, x, 900).items()}
    assert found == again  # the same episodes at every measurement
    expected = {part: measured(kind, told_apart, x, part, 5) for part in classes.PARTS}
    assert len({float(of.mean()) for of in expected.values()}) == 3
    assert found == pytest.approx(
        {f"{part}_accuracy": float(of.mean()) for part, of in expected.items()}
        | {f"{part}_interval": spread(expected[part]) for part in ("val", "test")}
    )
    assert task.metric == "val_accuracy"
    assert task.selection is not None
    assert task.selection.metric == "val_accuracy"
    best, last = Best(0.75, 40, x, x), {"val_accuracy": 0.5, "test_accuracy": 0.9}
    with torch.no_grad():
        closing = task.selection.measure(best, last)
    final = measured(kind, told_apart, x, "test", 3)
    assert {key: float(value) for key, value in closing.items()} == pytest.approx(
        {
            "selected_accuracy": float(final.mean()),
            "selected_interval": spread(final),
            "selected_val_accuracy": 0.75,
            "selected_step": 40,
            "drop": 0.25,
        }
    )


def test_a_step_has_its_own_training_episodes(told_apart: dict[str, Tensor]) -> None:
    """Both losses have the same images, f those of the queries, g those of the support."""
    task = few_shot(CONTEXT, **TINY)
    deck = Deck(told_apart, WAYS, SHOTS, QUERIES, 2, torch.float64)
    for step in (0, 1, 7, 1):
        expected = deck.draw("train", range(3 * step, 3 * step + 3))
        xi, zeta = Draw(task, 5, step).f(), Draw(task, 6, step).g()
        assert torch.equal(xi.images, expected.images)
        assert zeta.images is xi.images
        assert list(xi.numbers) == list(zeta.numbers) == [3 * step, 3 * step + 1, 3 * step + 2]
        assert (xi.rows, zeta.rows) == ((SUPPORT, ALL), (0, SUPPORT))
    assert task.data.draw_lower(generator("x"), 0, EPISODES).images.shape[0] == EPISODES
    with pytest.raises(BadSetting, match=r"batch=4: a step has task\.episodes=3 .*batch=null"):
        task.data.draw_upper(generator("x"), 0, 4)


def test_intervals() -> None:
    values = torch.tensor([0.2, 0.4, 0.9], dtype=torch.float64)
    assert float(interval(values)) == pytest.approx(spread(values), rel=1e-12)
    assert float(interval(values[:2])) == pytest.approx(1.96 * 0.1, rel=1e-12)
    assert interval(values[:1]).isnan()


# what the settings make


class Made(Exception):
    """Ends a task's making where its learner is made."""


def asked(monkeypatch: pytest.MonkeyPatch, data: Any = "patterns", **settings: Any) -> Any:
    """(head or network, what the learner is made of, whether characters are turned)."""
    found: list[Any] = []

    def making(kind: str) -> Any:
        def learner(*arguments: Any) -> Any:
            found.append((kind, *arguments))
            raise Made

        return learner

    side = {"omniglot": 28, "mini_imagenet": 84, "patterns": 16}.get(data, 32)
    shape = (20, 20, 1 if data in ("omniglot", "patterns") else 3, side, side)
    empty = {part: torch.zeros(shape, dtype=torch.uint8) for part in classes.PARTS}
    with monkeypatch.context() as patch:
        patch.setattr(tasks.few_shot.classes, "load", lambda d, c: classes.Classes(empty, {d: "s"}))
        patch.setattr(tasks.few_shot, "head_learner", making("head"))
        patch.setattr(tasks.few_shot, "network_learner", making("network"))
        with pytest.raises(Made):
            few_shot(CONTEXT, data, **settings)
    return found[0]


SIZES: dict[str, tuple[dict[str, Any], int]] = {  # settings -> filters of a convolution
    "patterns": ({}, 16),
    "omniglot": ({}, 64),
    "fc100": ({}, 64),
    "cifar_fs": ({}, 64),
    "mini_imagenet": ({}, 32),
    "mini_imagenet, code": ({"variant": "code"}, 64),
    "mini_imagenet, code, network": ({"variant": "code", "adapt": "network"}, 32),
    "fc100, code": ({"variant": "code"}, 64),
    "patterns, code": ({"variant": "code"}, 16),
    "patterns, 5": ({"filters": 5}, 5),
    "mini_imagenet, code, 5": ({"variant": "code", "filters": 5}, 5),
}


@pytest.mark.parametrize("name", SIZES)
def test_the_size_of_the_network(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """64 filters, of miniImageNet 32 (stocBiO, appendix A); Omniglot's is not pooled, and its
    characters are other ones when they are turned."""
    (settings, filters), data = SIZES[name], name.split(",")[0]
    made = asked(monkeypatch, data, **settings)
    net, deck = made[1], made[2]
    channels, side = {"omniglot": (1, 28), "patterns": (1, 16), "mini_imagenet": (3, 84)}.get(
        data, (3, 32)
    )
    pooled = data != "omniglot"
    assert net == Conv4(channels, side, filters, pooled)
    assert deck.turned == (not pooled)
    assert (deck.ways, deck.shots, deck.queries, deck.seed) == (5, 5, 5, 2)
    assert deck.dtype == torch.float64


LEARNERS: dict[str, tuple[dict[str, Any], list[Any]]] = {  # l2, known, at once, divided
    "paper": ({}, ["head", 0.01, None, 1]),
    "code": ({"variant": "code"}, ["head", 0.0, None, 1]),
    "l2": ({"variant": "code", "l2": 0.7}, ["head", 0.7, None, 1]),
    "l2 of zero": ({"l2": 0.0}, ["head", 0.0, None, 1]),
    "support": ({"norm": "support", "shots": 3}, ["head", 0.01, 15, 1]),
    "chunk": ({"chunk": 7}, ["head", 0.01, None, 7]),
    "network": ({"adapt": "network"}, ["network", 0.0, None, 1, False]),
    "network, code": (
        {"adapt": "network", "variant": "code"}, ["network", 0.0, None, 1, True],
    ),
    "network, divided": (
        {"adapt": "network", "divide": True, "l2": 0.2}, ["network", 0.2, None, 1, True],
    ),
    "network, not divided": (
        {"adapt": "network", "variant": "code", "divide": False}, ["network", 0.0, None, 1, False],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LEARNERS)
def test_what_is_adapted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, (kind, *expected) = LEARNERS[name]
    made = asked(monkeypatch, **settings)
    assert (made[0], list(made[3:])) == (kind, expected)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"divide": True}, r"task\.divide=true: only MAML has it; write task\.adapt=network"),
        (
            {"heads": "fresh", "adapt": "network"},
            r"task\.heads=fresh: .* begin at x; write task\.heads=drawn",
        ),
        ({"ways": 6}, r"task\.ways=6 .*patterns has 5 classes of 9 images for val; write less"),
        ({"shots": 4, "queries": 6}, r"task\.shots=4 task\.queries=6: .* for train"),
    ],
)
def test_refusals(settings: dict[str, Any], words: str, told_apart: Mapping[str, Any]) -> None:
    with pytest.raises(BadSetting, match=words) as error:
        few_shot(CONTEXT, **TINY | settings)
    assert "\n" not in str(error.value)


def test_as_many_classes_and_images_as_there_are(told_apart: Mapping[str, Any]) -> None:
    task = few_shot(CONTEXT, **TINY | {"ways": 5, "shots": 3, "queries": 6, "watched": 1})
    assert task.report.sources == {"parts": "made up"}
    x, y = task.init(generator("x"))
    assert task.evaluate(x, y, 0)["val_interval"].isnan()
