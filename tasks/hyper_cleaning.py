"""Data hyper-cleaning: weigh each training sample, some of them mislabelled, so that the model
trained on the weighted set is best on a clean validation set.

    f(x, y) = mean CE on validation,   g(x, y) = (1/n) sum_i sigma(x_i) CE_i(y) + c |y|^2,

with x in R^n one weight per training sample and y in R^{10 x d} a linear softmax model. BOME
(Ye et al. 2022, section 6.1 and A.4) and stocBiO (Ji et al. 2021, section 6.1) both use this
problem. BOME prints a sum over i in g and stocBiO the mean; both released codes take a mean, and
only a mean suits BOME's step sizes.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Generator, Tensor

from bench.core.draw import RowSampler, bring, generator
from bench.core.settings import Finite, Fraction, Natural, NonNegative, Positive, Rate, version
from bench.core.task import Batch, Context, Data, Derivatives, Partials, Report, Set, Task, Wrt
from bench.core.view import Histogram, histogram
from bench.numerics.sets import box
from tasks.common.pretraining import descend, train_or_load
from tasks.data.images import Images, ImageSplit, LabelledImages, load
from tasks.models.linear import (
    LossGradient,
    Rows,
    curvature,
    logits,
    loss_gradient,
    mean_loss,
    pick,
    sample_losses,
)
from tasks.models.softmax_rows import reads_rows_once

Protocol = Literal["bome", "stocbio"]
Variant = Literal["paper", "code"]


@dataclass(frozen=True)
class Pretraining:
    """Where theta_0 comes from: heavy-ball descent on the corrupted training set, without weights.

    start: where the descent begins, which is theta_0 itself if steps = 0: "uniform" in +-1/sqrt(d)
    as torch's linear layers, "normal" with deviation sqrt(2/10) as the released stocBiO, or "zero".
    with_validation: the clean validation set is added to the training set. l2: l2 |y|^2 is added to
    the loss. best: theta_0 is the iterate of least loss on val2, and not the last one.
    """

    start: Literal["uniform", "normal", "zero"] = "uniform"
    steps: Natural = 0
    lr: Positive = 0.01
    momentum: Rate = 0.9
    l2: NonNegative = 0.001
    with_validation: bool = False
    best: bool = False


@dataclass(frozen=True)
class Choices:
    """What a paper, or its released code, does where a setting of `hyper_cleaning` is None."""

    weighting: Literal["clip", "sigmoid"]
    coupling: Literal["weighted", "means"]
    clamp: bool
    bias: Literal["none", "column", "aliased"]
    standardise: Literal["none", "scalar", "pixels"]
    resplit: bool


PROTOCOLS = {
    ("bome", "paper"): Choices("clip", "weighted", False, "column", "scalar", True),
    ("bome", "code"): Choices("clip", "weighted", True, "aliased", "scalar", False),
    ("stocbio", "paper"): Choices("sigmoid", "weighted", False, "none", "none", True),
    ("stocbio", "code"): Choices("sigmoid", "means", False, "column", "scalar", True),
}
LONG = 1e9  # steps times numbers of all images, from which on a pretraining is kept on disk
STARTS = {"clip": 0.5, "sigmoid": 0.0}  # every x_i at first, by the weighting


@version(2)
def hyper_cleaning(
    context: Context,
    data: Images,
    pretraining: Pretraining,
    protocol: Protocol = "bome",
    variant: Variant = "paper",
    corruption: Fraction = 0.5,
    redraw: Literal["any", "other"] = "any",
    weighting: Literal["clip", "sigmoid"] | None = None,
    coupling: Literal["weighted", "means"] | None = None,
    start: Finite | None = None,
    clamp: bool | None = None,
    bias: Literal["none", "column", "aliased"] | None = None,
    standardise: Literal["none", "scalar", "pixels"] | None = None,
    resplit: bool | Literal["labels"] | None = None,
    c: NonNegative = 0.001,
    upper_data: Literal["validation", "second", "noisy", "clean", "restored"] = "validation",
    recorrupt: NonNegative = 0.0,
    frozen: bool = False,
    references: bool = True,
) -> Task:
    """Hyper-cleaning; a setting left at None is that of the protocol and variant (PROTOCOLS).

    corruption: the fraction of training labels that are redrawn, from all 10 classes (redraw "any",
    by which a tenth of them come out right) or from the 9 wrong ones ("other").

    weighting: sigma, which is "clip" to [0, 1] or "sigmoid". coupling: "means" multiplies the mean
    CE by the mean sigma, as the released stocBiO does. start: every x_i at first; None is .5 with
    "clip", else 0. clamp: x is projected onto [0, 1] after each step.

    bias: "column" appends a constant feature; "aliased" has the last pixel's weight serve as the
    bias too. standardise: the training images' mean is subtracted, and the result is divided by
    their deviation. "scalar" takes both over all pixels, and "pixels" for each pixel by itself; a
    pixel that never changes becomes 0.

    resplit: whether split, corruption and theta_0 follow the run's seed; the released BOME has one
    of each in files. "labels": corruption and theta_0 follow the seed, and the split does not, so
    that several seeds, as lanes of one computation, read the same images.

    upper_data: what f is the loss of. "second" is val2; the released stocBiO gives it to some of
    its methods. The others are for reference lines: "noisy", the training and validation sets as
    they are; "clean", the validation set and the correctly labelled training samples; "restored",
    the validation set and the training set with all labels put right, which is what the released
    BOME's clean line uses.

    recorrupt: how often an outer step visits each training label. A visit redraws the label in
    place with probability `corruption`, as in the released stocBiO; no label is wrong at first.
    Where all inner steps see all data, recorrupt is the number of inner steps, and where they see
    batches, that number times batch / n. The released code redraws a batch's labels before it
    trains on them: each label that a step trains on has had a visit in that step.

    frozen: x stays where it starts; the released stocBiO loses every update of x. references: the
    line of training on the validation set alone is computed too (2,000 steps, the best of them on
    val2).
    """
    papers = PROTOCOLS[protocol, variant]
    sigma = weighting or papers.weighting
    coupled = coupling or papers.coupling
    x_0 = STARTS[sigma] if start is None else start
    clamped = papers.clamp if clamp is None else clamp
    with_bias = bias or papers.bias
    scaled = standardise or papers.standardise
    follows_seed = papers.resplit if resplit is None else resplit
    seed = context.seed if follows_seed else 0

    split = load(data, context, "hyper_cleaning", 0 if resplit == "labels" else seed)
    truth, n = split.train.labels, len(split.train.labels)
    once = corrupt(truth, corruption, redraw, generator("corruption", seed))
    walk = Recorruption(truth, corruption, redraw, recorrupt, seed) if recorrupt else None

    def labels_at(step: int) -> Tensor:
        return walk.at(step) if walk else once

    labels = labels_at(0)
    features = _standardise(split, with_bias, scaled, context)
    train = LabelledImages(features["train"], labels.to(context.device))
    val, val2, test = (
        LabelledImages(features[k], getattr(split, k).labels.to(context.device))
        for k in ("val", "val2", "test")
    )
    match upper_data:
        case "validation":
            upper_part = val
        case "second":
            upper_part = val2
        case "noisy":
            upper_part = _concatenate(train, val)
        case "clean":
            upper_part = _concatenate(_rows(train, labels == truth), val)
        case "restored":
            upper_part = _concatenate(LabelledImages(train.features, truth.to(context.device)), val)

    def weights(x: Tensor) -> Tensor:
        return clip_to_unit(x) if sigma == "clip" else torch.sigmoid(x)

    def weights_gradient(x: Tensor) -> Tensor:
        if sigma == "clip":
            return ((x >= 0) & (x <= 1)).to(x)
        s = torch.sigmoid(x)
        return s * (1 - s)

    def upper(x: Tensor, y: Tensor, batch: Rows) -> Tensor:
        return mean_loss(logits(y, batch.features, batch.picked), batch.labels)

    def lower(x: Tensor, y: Tensor, batch: Rows) -> Tensor:
        z = logits(y, batch.features, batch.picked)
        w = weights(x if batch.numbers is None else x.index_select(0, batch.numbers))
        if coupled == "means":
            return mean_loss(z, batch.labels) * w.mean() + c * y.square().sum()
        return (w * sample_losses(z, batch.labels)).mean() + c * y.square().sum()

    def evaluate(x: Tensor, y: Tensor, step: int) -> dict[str, Tensor]:
        z = {name: logits(y, p.features) for name, p in {"test": test, "val2": val2}.items()}
        kept, right = weights(x) > 0.5, (labels_at(step) == truth).to(x.device)
        hit = (kept & right).sum().to(y)
        return {
            "test_accuracy": (z["test"].argmax(1) == test.labels).to(y).mean(),
            "test_loss": mean_loss(z["test"], test.labels),
            "val2_accuracy": (z["val2"].argmax(1) == val2.labels).to(y).mean(),
            "val2_loss": mean_loss(z["val2"], val2.labels),
            "val_loss": upper(x, y, Rows(*val, None)),
            "cleaning_f1": 2 * hit / (kept.sum() + right.sum()).clamp(min=1),
            "cleaning_precision": hit / kept.sum().clamp(min=1),
            "cleaning_recall": hit / right.sum().clamp(min=1),
        }

    def view(x: Tensor, y: Tensor, step: int) -> Histogram:
        right = (labels_at(step) == truth).to(x.device)
        groups = {"right label": weights(x[right]), "wrong label": weights(x[~right])}
        return histogram("weights of the training samples", "weight", groups, 0.0, 1.0)

    def init(rng: Generator) -> tuple[Tensor, Tensor]:
        on = _concatenate(train, val) if pretraining.with_validation else train
        start = _start(pretraining.start, train, seed, context)
        theta_0 = _train(start, on, val2, pretraining, context)
        return torch.full((n,), x_0, dtype=context.dtype, device=context.device), theta_0

    def reference_lines() -> dict[str, float]:
        line = Pretraining(steps=2000, l2=0.0, best=True)
        y = _train(_start("uniform", val, seed, context), val, val2, line, context)
        return {"test_accuracy of validation only": float(_accuracy(y, test))}

    return Task(
        upper=upper,
        lower=lower,
        init=init,
        evaluate=evaluate,
        metric="test_accuracy",
        data=Data(
            _sampler(upper_part),
            _sampler(train, (lambda k: bring(walk.at(k), context.device)) if walk else None),
            count=lambda batch: batch.labels.shape[0],
            rows=_cut,
        ),
        feasible=_feasible(x_0 if frozen else None, clamped),
        upper_derivatives=Derivatives(_upper_grad),
        lower_derivatives=_lower_derivatives(weights, weights_gradient, c)
        if coupled == "weighted"
        else None,
        report=Report(split.sources, reference_lines if references else None, view),
    )


def clip_to_unit(x: Tensor) -> Tensor:
    """x clipped to [0, 1], with derivative 1 on the borders too.

    torch.clamp had this derivative when the papers' codes ran; newer versions have 0 there, with
    which a weight could not come back from the border.
    """
    return torch.where((x >= 0) & (x <= 1), x, x.detach().clamp(0, 1))


class Recorruption:
    """Labels that are redrawn in place at every visit. They are a function of the step, in whatever
    order steps are asked for.

    rate: the probability that a visit redraws a label, from all classes (redraw "any") or from the
    9 others ("other"). visits: how often an outer step visits each label. The m-th visits of all
    labels are drawn at once, under the name m. Labels are visited at different phases, so that with
    a tenth of a visit per step, each step visits a tenth of the labels. A visit redraws a label
    before the step trains on it: with less than one visit per step, a step's labels are those that
    a visit in this step would leave behind.
    """

    def __init__(self, truth: Tensor, rate: float, redraw: str, visits: float, seed: int):
        self.truth, self.rate, self.redraw = truth, rate, redraw
        self.visits, self.seed = visits, seed
        self.phase = torch.rand(len(truth), generator=generator("recorruption", seed))
        self.reached = 0, truth  # the last visits and their labels, to go on from

    def at(self, step: int) -> Tensor:
        """The labels [n] that step number `step` trains on, each as this step's visit leaves it, or
        the last of them where there are several."""
        exact = self.visits * step + max(self.visits, 1.0)
        whole = math.floor(exact)
        labels = self._after(whole)
        later = self.phase < exact - whole
        return torch.where(later, self._visit(labels, whole + 1), labels)

    def _after(self, visits: int) -> Tensor:
        m, labels = self.reached if self.reached[0] <= visits else (0, self.truth)
        for change in range(m + 1, visits + 1):
            labels = self._visit(labels, change)
        self.reached = visits, labels
        return labels

    def _visit(self, labels: Tensor, change: int) -> Tensor:
        rng = generator("recorruption", self.seed, change)
        hit = torch.rand(len(labels), generator=rng) < self.rate
        if self.redraw == "any":
            return torch.where(hit, torch.randint(10, labels.shape, generator=rng), labels)
        shift = torch.randint(1, 10, labels.shape, generator=rng)
        return torch.where(hit, (labels + shift) % 10, labels)


def corrupt(truth: Tensor, rate: float, redraw: str, rng: Generator) -> Tensor:
    """The labels, with round(rate n) of them redrawn from all 10 classes (redraw "any") or from the
    9 wrong ones."""
    chosen = torch.randperm(len(truth), generator=rng)[: round(rate * len(truth))]
    labels = truth.clone()
    if redraw == "any":
        labels[chosen] = torch.randint(10, (len(chosen),), generator=rng)
    else:
        shift = torch.randint(1, 10, (len(chosen),), generator=rng)
        labels[chosen] = (truth[chosen] + shift) % 10
    return labels


def _standardise(split: ImageSplit, bias: str, scaled: str, context: Context) -> dict[str, Tensor]:
    pixels = split.train.features
    mean: float | Tensor = 0.0
    deviation: float | Tensor = 1.0
    if scaled == "scalar":
        mean, deviation = float(pixels.mean()), float(pixels.std()) + 1e-4
    elif scaled == "pixels":
        mean, deviation = pixels.mean(0), pixels.std(0, unbiased=False)
        deviation = torch.where(deviation > 0, deviation, 1.0)
    ready = {}
    for name in ("train", "val", "val2", "test"):
        z = ((getattr(split, name).features - mean) / deviation).to(context.device, context.dtype)
        if bias == "column":
            z = torch.cat([z, torch.ones_like(z[:, :1])], 1)
        elif bias == "aliased":  # y_last (z_last + 1) = y_last z_last + y_last
            z[:, -1] += 1
        ready[name] = z.contiguous()
    return ready


def _concatenate(a: LabelledImages, b: LabelledImages) -> LabelledImages:
    return LabelledImages(torch.cat([a.features, b.features]), torch.cat([a.labels, b.labels]))


def _rows(part: LabelledImages, which: Tensor) -> LabelledImages:
    which = which.to(part.labels.device)
    return LabelledImages(part.features[which], part.labels[which])


def _sampler(
    part: LabelledImages, labels_at: Callable[[int], Tensor] | None = None
) -> Callable[[Generator, int, int | None], Batch]:
    """The sampler of all rows, or of `size` of them with replacement. labels_at: the labels of a
    step, where they change."""
    reads_rows_once(part.features)  # compiles the operator here: a draw is on the run's clock

    def rows_with(labels: Tensor) -> RowSampler:
        def rows(i: Tensor | None) -> Rows:
            if i is None:
                return Rows(part.features, labels, None)
            return pick(part.features, labels, i)

        return RowSampler(len(labels), labels.device, rows)

    if labels_at is None:
        return rows_with(part.labels)
    return lambda rng, step, size: rows_with(labels_at(step))(rng, step, size)


def _cut(batch: Rows, a: int, b: int) -> Rows:
    """The rows number a to b of a batch of all rows."""
    numbers = torch.arange(a, b, device=batch.labels.device)
    return Rows(batch.features[a:b], batch.labels[a:b], numbers)


def _upper_grad(x: Tensor, y: Tensor, batch: Rows, wrt: Wrt) -> Partials:
    f_x = torch.zeros_like(x) if "x" in wrt else None  # f does not see the weights
    if "y" not in wrt:
        return f_x, None
    return f_x, loss_gradient(y, batch, _equal(batch)).gradient


def _equal(part: Rows | LabelledImages) -> Tensor:
    """The weights of a mean over the part's rows, [n]."""
    n = len(part.labels)
    return part.features.new_full((n,), 1 / n)


def _lower_derivatives(
    weights: Callable[[Tensor], Tensor], weights_gradient: Callable[[Tensor], Tensor], c: float
) -> Derivatives:
    """The derivatives of (1/n) sum_i w(x_i) CE_i(y) + c |y|^2; tasks/models/linear.py has the
    formulas of CE."""

    def over_batch(x: Tensor, values: Tensor, batch: Rows) -> Tensor:
        """A vector shaped as x: at x_i, the sum of w'(x_i) values_i / n over the batch's rows with
        the number i."""
        if batch.numbers is None:
            return weights_gradient(x) * values / len(values)
        part = weights_gradient(x.index_select(0, batch.numbers)) * values / len(values)
        return torch.zeros_like(x).scatter_add(0, batch.numbers, part)

    def scaled_weights(x: Tensor, batch: Rows) -> Tensor:
        w = weights(x if batch.numbers is None else x.index_select(0, batch.numbers))
        return w / len(batch.labels)

    def grad(x: Tensor, y: Tensor, batch: Rows, wrt: Wrt) -> Partials:
        found = loss_gradient(y, batch, scaled_weights(x, batch) if "y" in wrt else None)
        g_x = over_batch(x, found.losses, batch) if "x" in wrt else None
        return g_x, found.gradient.add(y, alpha=2 * c) if "y" in wrt else None

    def linearise(x: Tensor, y: Tensor, batch: Rows) -> Any:
        w = scaled_weights(x, batch)
        passes: list[LossGradient] = []  # at y, as soon as one is needed

        def gradient() -> Tensor:
            passes[:] = [loss_gradient(y, batch, w)]
            return passes[0].gradient.add(y, alpha=2 * c)

        def product(v: Tensor, wrt: Wrt) -> Partials:
            if not passes:  # without the gradient a pass takes half the time
                passes.append(loss_gradient(y, batch, None))
            change, along = curvature(v, passes[0].p, batch, w if "y" in wrt else None)
            mixed = over_batch(x, along, batch) if "x" in wrt else None
            return mixed, change.add(v, alpha=2 * c) if "y" in wrt else None

        return gradient, product

    return Derivatives(grad, linearise)


def _start(kind: str, part: LabelledImages, seed: int, context: Context) -> Tensor:
    """The weights [10, d] that `Pretraining.start` names."""
    rng, d = generator("model", seed), part.features.shape[1]
    if kind == "normal":
        y = math.sqrt(2 / 10) * torch.randn(10, d, generator=rng, dtype=torch.float64)
    elif kind == "zero":
        y = torch.zeros(10, d)
    else:
        y = (2 * torch.rand(10, d, generator=rng, dtype=torch.float64) - 1) / math.sqrt(d)
    return y.to(context.device, context.dtype)


def _accuracy(y: Tensor, part: LabelledImages) -> Tensor:
    return (logits(y, part.features).argmax(1) == part.labels).to(y).mean()


def _train(
    start: Tensor, on: LabelledImages, val2: LabelledImages, how: Pretraining, context: Context
) -> Tensor:
    """theta_0: the weights after `how.steps` heavy-ball steps on the mean CE of `on`, or the best
    of them on val2."""

    def score(y: Tensor) -> Tensor:
        return mean_loss(logits(y, val2.features), val2.labels)

    def train() -> Tensor:
        rows, equal = Rows(*on, None), _equal(on)

        def push(y: Tensor, velocity: Tensor) -> Tensor:
            grad = loss_gradient(y, rows, equal).gradient
            return how.momentum * velocity + grad + 2 * how.l2 * y

        return descend(start, push, how.lr, how.steps, score if how.best else None)

    if how.steps * on.features.numel() < LONG:
        return train()
    return train_or_load("hyper_cleaning", context, asdict(how), (start, *on, *val2), train)


def _feasible(fixed: float | None, clamped: bool) -> Set:
    """The feasible set of x: one point, the unit box, or everything. fixed: the value that x keeps;
    None: x moves."""
    if fixed is not None:
        return Set(project=lambda x: torch.full_like(x, fixed))
    return box(0.0, 1.0) if clamped else Set()
