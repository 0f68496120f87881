"""Few-shot meta-learning: on an embedding, a few gradient steps learn to tell new classes apart.

With a meta-batch of m episodes, S_i and D_i the support and query images of episode i,

    f(x, y) = (1/m) sum_i L_{D_i}(x, y_i),   g(x, y) = sum_i L_{S_i}(x, y_i) + l2 |y_i|^2,

where L is the mean cross-entropy (Ji, Yang, Liang, ICML 2021, equation (10)), x the embedding
network, and y the stack of the episodes' linear heads. The paper prints g as a mean over i. The
minimiser is the same, but on the sum an inner step is a step of every episode by itself, which is
what the paper's step sizes suit. With adapt=network y is a stack of whole networks, which MAML
adapts, and x is only the point where they begin.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Generator, Tensor

from bench.core.draw import bring, generator
from bench.core.settings import BadSetting, Count, NonNegative, Positive
from bench.core.task import (
    Batch,
    Best,
    Context,
    Data,
    InnerLoop,
    Report,
    Sampler,
    Selection,
    Task,
)
from tasks.common.episodes import Deck, Episodes, RowRange
from tasks.data import classes
from tasks.models.conv4 import Conv4
from tasks.models.learners import heads as head_learner
from tasks.models.learners import networks as network_learner

FILTERS = {"patterns": 16, "omniglot": 64, "fc100": 64, "cifar_fs": 64, "mini_imagenet": 32}
BLOCK = 20  # episodes that an evaluation has in memory at a time
NORMAL = 1.96  # half the width of a 95% interval, in standard errors


def few_shot(
    context: Context,
    data: classes.Name = "patterns",
    variant: Literal["paper", "code"] = "paper",
    adapt: Literal["head", "network"] = "head",
    ways: Count = 5,
    shots: Count = 5,
    queries: Count = 5,
    episodes: Count = 32,
    filters: Count | None = None,
    norm: Literal["transductive", "support"] = "transductive",
    l2: NonNegative | None = None,
    heads: Literal["zero", "drawn", "fresh"] | None = None,
    divide: bool | None = None,
    test_steps: Count = 10,
    test_lr: Positive = 0.1,
    watched: Count = 100,
    final: Count = 600,
    chunk: Count | None = None,
) -> Task:
    """Few-shot learning; a setting left at None is that of the variant.

    ways, shots, queries: classes of an episode, and the support and query images of each.
    episodes: of a step.

    filters: of each convolution; None is 64, for miniImageNet 32 and for patterns 16. The released
    code has 64 for miniImageNet too, except with adapt=network.

    norm: whose statistics batch normalisation uses. "transductive", as released: those of all
    images that a network sees together, which for an embedding are support and query images, and
    for an adapted network one of the two. "support": those of the support images.

    l2: strength of the strongly convex regulariser, which the paper does not give; None is .01, and
    0 in the variant code and with adapt=network.

    heads: they begin at zero, at one head drawn as torch.nn.Linear draws it, which a method may
    learn ("drawn"), or each at a head of its own that is drawn for its episode ("fresh"), in an
    evaluation too, which then tests the embedding alone. None is zero, and drawn in the variant
    code and with adapt=network, where a network begins at x and its head cannot be fresh.

    divide: both losses are divided once more by the number of images, as in the released MAML
    (maml.py, lines 46 and 52); None: in the variant code.

    test_steps, test_lr: the inner steps of an evaluation. watched: episodes of each part at a
    measurement. final: test episodes at the end of a run, for the iterate of the highest validation
    accuracy.

    chunk: networks that run together; None: all on a GPU, and one on a CPU, where that is about
    three times as fast because a network's maps then fit the caches. Raises BadSetting.
    """
    found = classes.load(data, context)
    code, whole, size = variant == "code", adapt == "network", found.parts["train"].shape
    if divide and not whole:
        raise BadSetting("task.divide=true: only MAML has it; write task.adapt=network")
    if heads == "fresh" and whole:
        raise BadSetting(
            "task.heads=fresh: with task.adapt=network all networks begin at x; write "
            "task.heads=drawn"
        )
    for part, images in found.parts.items():
        if images.shape[0] < ways or images.shape[1] < shots + queries:
            raise BadSetting(
                f"task.ways={ways} task.shots={shots} task.queries={queries}: {data} has "
                f"{images.shape[0]} classes of {images.shape[1]} images for {part}; write less"
            )
    parts = {part: images.to(context.device) for part, images in found.parts.items()}
    turned = data == "omniglot"  # there a turned character is another class, as in learn2learn
    deck = Deck(parts, ways, shots, queries, context.seed, context.dtype, turned)
    width = 64 if code and data == "mini_imagenet" and not whole else FILTERS[data]
    net = Conv4(size[2], size[3], filters or width, pooled=data != "omniglot")
    papers_l2 = 0.0 if code or whole else 0.01
    strength = papers_l2 if l2 is None else l2
    begin = heads or ("drawn" if code or whole else "zero")
    known = deck.support[1] if norm == "support" else None
    at_once = chunk or (1 if context.device.type == "cpu" else None)
    divided = divide if divide is not None else code
    learner = (
        network_learner(net, deck, strength, known, at_once, divided)
        if whole
        else head_learner(net, deck, strength, known, at_once)
    )

    def draw_head(*name: int | str) -> Tensor:
        rng, bound = generator("head", context.seed, *name), 1 / math.sqrt(net.width)
        uniform = torch.rand(ways * (net.width + 1), generator=rng, dtype=torch.float64)
        return bound * (2 * uniform - 1)

    def own_heads(part: str, numbers: Sequence[int]) -> Tensor:
        drawn = torch.stack([draw_head(part, n) for n in numbers])
        return bring(drawn.to(context.dtype), context.device)

    head = draw_head() if begin != "zero" else torch.zeros_like(draw_head())
    x_0 = torch.cat([net.init(generator("network", context.seed)), head])
    x_0 = x_0.to(context.device, context.dtype)
    stack = x_0.new_empty(episodes, learner.size)

    def upper(x: Tensor, y: Tensor, xi: Episodes) -> Tensor:
        return learner.losses(x, y, xi).mean()

    def lower(x: Tensor, y: Tensor, zeta: Episodes) -> Tensor:
        return learner.losses(x, y, zeta).sum() + strength * y.square().sum()

    last: list[tuple[int, Episodes]] = []

    def sampler(rows: RowRange) -> Sampler:
        def draw(rng: Generator, step: int, size: int | None) -> Batch:
            """The episodes k m to (k + 1) m of step k, whoever asks and for whichever loss."""
            if size not in (None, episodes):
                raise BadSetting(
                    f"algorithm.batch={size}: a step has task.episodes={episodes} episodes; "
                    "write algorithm.batch=null"
                )
            if not last or last[0][0] != step:
                numbers = range(step * episodes, (step + 1) * episodes)
                last[:] = [(step, deck.draw("train", numbers))]
            return last[0][1]._replace(rows=rows)

        return draw

    def prepare(x: Tensor, xi: Episodes, zeta: Episodes) -> tuple[Episodes, Episodes]:
        features = learner.embed(x, xi).features  # both batches have the same images
        return xi._replace(features=features), zeta._replace(features=features)

    def start(y: Tensor, zeta: Episodes | None) -> Tensor:
        if begin == "fresh" and zeta is not None:
            return own_heads("train", zeta.numbers)
        return learner.origin(x_0, y)

    def accuracies(x: Tensor, part: str, count: int) -> Tensor:
        """The accuracies on the query images of `count` episodes of a part, after inner steps."""
        each, every = [], range(-count, 0)  # no step has episodes with these numbers
        for a in range(0, count, BLOCK):
            numbers = every[a : a + BLOCK]
            zeta = learner.embed(x, deck.draw(part, numbers))
            y = learner.origin(x, stack.new_empty(len(numbers), learner.size))
            if begin == "fresh":
                y = own_heads(part, numbers)
            for _ in range(test_steps):
                y = y - test_lr * learner.lower_gradient(x, y, zeta)
            answers = learner.logits(x, y, zeta._replace(rows=deck.query)).argmax(-1)
            each.append((answers == deck.labels(deck.query)).to(x).mean(1))
        return torch.cat(each)

    def evaluate(x: Tensor, y: Tensor, step: int) -> dict[str, Tensor]:
        of = {part: accuracies(x, part, watched) for part in classes.PARTS}
        return {
            **{f"{part}_accuracy": of[part].mean() for part in of},
            **{f"{part}_interval": interval(of[part]) for part in ("val", "test")},
        }

    def close(best: Best, row: Mapping[str, Any]) -> dict[str, Tensor]:
        of = accuracies(best.x, "test", final)
        return {
            "selected_accuracy": of.mean(),
            "selected_interval": interval(of),
            "selected_val_accuracy": torch.tensor(best.value),
            "selected_step": torch.tensor(best.step),
            "drop": torch.tensor(best.value - row["val_accuracy"]),
        }

    return Task(
        upper=upper,
        lower=lower,
        init=lambda rng: (x_0.clone(), learner.origin(x_0, stack).clone()),
        evaluate=evaluate,
        metric="val_accuracy",
        data=Data(
            sampler(deck.query),
            sampler(deck.support),
            count=lambda batch: len(batch.images) * (batch.rows[1] - batch.rows[0]),
            rows=lambda batch, a, b: batch.part(a, b),
        ),
        upper_derivatives=learner.upper_derivatives,
        lower_derivatives=learner.lower_derivatives,
        inner=InnerLoop(start, learner.origin, carries=False, prepare=prepare),
        report=Report(sources=found.sources),
        selection=Selection("val_accuracy", close),
    )


def interval(accuracies: Tensor) -> Tensor:
    """Half the width of the 95% interval of the accuracies' mean; NaN of fewer than two."""
    if len(accuracies) < 2:
        return accuracies.new_tensor(math.nan)
    return NORMAL * accuracies.std() / math.sqrt(len(accuracies))
