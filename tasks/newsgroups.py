"""Learnable regularisation: a weight of its own for every word, so that the model trained with them
is best on a validation set.

    f(x, y) = mean CE on validation,   g(x, y) = mean CE on training + s sum_j exp(k x_j) |y_j|^2,

with x in R^p one log weight per word and y in R^{p x 20} a linear softmax model; y_j are word j's
20 coefficients, which lie together in memory as the sparse products want them. BOME (Ye et al.
2022, sections 6.2 and A.5) and stocBiO (Ji et al. 2021, section 5.1 and appendix B) both use it,
on 20 Newsgroups. The regulariser is `regulariser`:

    paper    BOME's text: k = 2, s = 1, W = diag(exp x)
    code     both released codes: k = 1, s = 1 / (2 c p), .5 times a mean over all coefficients
    stocbio  stocBiO's text: k = 1, s = 1 / (c p)

CE is a mean, as stocBiO prints it and both codes take it; BOME prints a loss without more. x starts
at 0, but for `paper`, which there is five million times as strong as `code`: no inner step of
section A.5 is stable. It starts at -log(2 c p) / 2, where the two are the same.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from bench.core.draw import generator
from bench.core.settings import BadSetting, Finite, Natural, Positive, Rate
from bench.core.task import Batch, Context, Derivatives, Partials, Task, Wrt
from tasks.common.pretraining import descended, kept
from tasks.common.sparse import Csr, Sparse, picked, product, sparse
from tasks.data.newsgroups import Documents, Headers, Source, corpus
from tasks.models.linear import curved, residual, sample_losses

Protocol = Literal["bome", "stocbio"]
Variant = Literal["paper", "code"]
LONG = 1e8  # steps times nonzeros of a pretraining that is kept on disk


@dataclass(frozen=True)
class Pretraining:
    """Where theta_0 comes from: heavy-ball descent on the mean CE of the training set.

    start: "normal" with deviation sqrt(2 / classes), as released, or "zero". best: keep the iterate
    of least loss on val2, else the last. steps = 0: theta_0 is the start itself.
    """

    start: Literal["normal", "zero"] = "normal"
    steps: Natural = 500
    lr: Positive = 100.0
    momentum: Rate = 0.9
    best: bool = True


class Part(NamedTuple):
    """Documents of unit length [n, p] and their labels [n] int64."""

    features: Sparse
    labels: Tensor


class Rows(NamedTuple):
    """Documents of a part by their numbers [m]; None: all."""

    part: Part
    numbers: Tensor | None


class Split(NamedTuple):
    train: Part
    val: Part
    val2: Part | None
    test: Part


# the regulariser that a protocol has in a variant
OWN: dict[tuple[str, str], Literal["paper", "stocbio", "code"]] = {
    ("bome", "paper"): "paper",
    ("stocbio", "paper"): "stocbio",
    ("bome", "code"): "code",
    ("stocbio", "code"): "code",
}


def newsgroups(
    context: Context,
    pretraining: Pretraining,
    source: Source = "newsgroups",
    headers: Headers | None = None,
    protocol: Protocol = "bome",
    variant: Variant = "paper",
    regulariser: Literal["paper", "code", "stocbio"] | None = None,
    start: Finite | None = None,
    resplit: bool | None = None,
    upper_data: Literal["validation", "training"] = "validation",
    references: bool = True,
) -> Task:
    """Learnable regularisation; a setting left at None is that of the protocol and variant.

    source: "digits" is a small stand-in, its pixels for words. headers: "remove" removes footers
    and quotes too (stocbio, paper). protocol: the training half of the corpus is divided into
    training and validation set, each class by halves; bome divides the published test set into
    test set and val2, the set for choosing hyperparameters, in the same way; stocbio has no val2.
    regulariser: "paper", in stocbio's protocol "stocbio", in the variant code of both "code".
    start: every x_j at first. resplit: the split and theta_0 follow the run's seed; both released
    codes have one of each (bome's is that of seed 0 here).
    upper_data: what f is the loss of; "training": without any regularisation, for reference lines.
    references: train without regularisation too (500 steps, the best of them on val2; bome).
    Raises BadSetting.
    """
    bome, code = protocol == "bome", variant == "code"
    follows_seed = (not code) if resplit is None else resplit
    seed = context.seed if follows_seed else 0
    kept_headers = headers or ("keep" if bome or code else "remove")

    found = corpus(source, kept_headers, context)
    p, c = found.words, int(found.train.classes.max()) + 1
    k, s = strength(regulariser or OWN[protocol, variant], c, p)
    at_first = -math.log(2 * c * p) / 2 if (k, s) == (2, 1) else 0.0
    x_0 = at_first if start is None else start
    split = divided(found.train, found.test, p, bome, seed, context)
    if pretraining.best and pretraining.steps and split.val2 is None:
        raise BadSetting(
            "task.pretraining.best=true: stocbio's protocol has no val2; write "
            "task.pretraining.best=false"
        )
    upper_part = split.val if upper_data == "validation" else split.train

    def upper(x: Tensor, y: Tensor, batch: Rows) -> Tensor:
        return mean_loss(y, batch)

    def lower(x: Tensor, y: Tensor, batch: Rows) -> Tensor:
        weights = s * torch.exp(k * x)
        return mean_loss(y, batch) + (weights * torch.linalg.vecdot(y, y)).sum()

    def evaluate(x: Tensor, y: Tensor, step: int) -> dict[str, Tensor]:
        values = {}
        for name, part in {"test": split.test, "val2": split.val2}.items():
            if part is not None:
                z = part.features.times(y)
                values[f"{name}_accuracy"] = (z.argmax(1) == part.labels).to(y).mean()
                values[f"{name}_loss"] = F.cross_entropy(z, part.labels)
        return values | {
            "val_loss": mean_loss(y, Rows(split.val, None)),
            "train_loss": mean_loss(y, Rows(split.train, None)),
        }

    def theta(how: Pretraining) -> Tensor:
        return trained(started(how.start, p, c, seed, context), split, how, context)

    def init(rng: Generator) -> tuple[Tensor, Tensor]:
        x = torch.full((p,), x_0, dtype=context.dtype, device=context.device)
        return x, theta(pretraining)

    def reference_lines() -> dict[str, float]:
        y = theta(Pretraining())
        z = split.test.features.times(y)
        accuracy = (z.argmax(1) == split.test.labels).to(y).mean()
        return {"test_accuracy of no regularisation": float(accuracy)}

    return Task(
        upper=upper,
        lower=lower,
        init=init,
        evaluate=evaluate,
        metric="test_accuracy",
        draw_upper=sampler(upper_part),
        draw_lower=sampler(split.train),
        count=lambda batch: len(batch.part.labels if batch.numbers is None else batch.numbers),
        rows=lambda batch, a, b: Rows(batch.part, torch.arange(a, b, device=context.device)),
        upper_derivatives=Derivatives(upper_grad),
        lower_derivatives=lower_derivatives(k, s),
        sources=found.sources,
        references=reference_lines if references and bome else None,
    )


def strength(regulariser: str, c: int, p: int) -> tuple[float, float]:
    """(k, s) of s sum_j exp(k x_j) |y_j|^2."""
    return {"paper": (2.0, 1.0), "code": (1.0, 0.5 / (c * p)), "stocbio": (1.0, 1 / (c * p))}[
        regulariser
    ]


def divided(
    train: Documents, test: Documents, p: int, bome: bool, seed: int, context: Context
) -> Split:
    """Both by halves of every class, as scikit-learn's train_test_split under numpy's seed + 1:
    seed 0 is the split of the released BOME."""
    from sklearn.model_selection import train_test_split

    state = np.random.RandomState(seed + 1)

    def halves(documents: Documents) -> list[Part]:
        numbers = np.arange(len(documents.classes))
        both = train_test_split(
            numbers, stratify=documents.classes, test_size=0.5, random_state=state
        )
        return [made(documents, half, p, context) for half in both]

    train_part, val = halves(train)
    test_part, val2 = halves(test) if bome else (made(test, slice(None), p, context), None)
    return Split(train_part, val, val2, test_part)


def made(documents: Documents, numbers: Any, p: int, context: Context) -> Part:
    """These documents' counts divided by their length |counts|, where they are not empty."""
    from scipy.sparse import csr_array
    from sklearn.preprocessing import normalize

    n = len(documents.classes)
    counts = documents.counts.astype(np.float64)
    found: Any = csr_array((counts, documents.words, documents.offsets), shape=(n, p))
    unit = normalize(found)[numbers]
    device = context.device
    rows = Csr(
        torch.from_numpy(unit.indptr).int().to(device),
        torch.from_numpy(unit.indices).int().to(device),
        torch.from_numpy(unit.data).to(device, context.dtype),
    )
    return Part(sparse(rows, p), torch.from_numpy(documents.classes[numbers]).long().to(device))


def sampler(part: Part) -> Callable[[Generator, int, int | None], Batch]:
    """All documents, or `size` of them drawn with replacement."""
    everything, n = Rows(part, None), len(part.labels)

    def draw(rng: Generator, step: int, size: int | None) -> Batch:
        if size is None:
            return everything
        return Rows(part, torch.randint(n, (size,), generator=rng).to(part.labels.device))

    return draw


class Chosen:
    """The documents of a batch: products with their features, and their labels."""

    def __init__(self, batch: Rows):
        self.features, self.numbers = batch.part.features, batch.numbers
        labels = batch.part.labels
        self.all = len(labels)
        self.labels = labels if batch.numbers is None else labels[batch.numbers]
        self.rows = None
        if batch.numbers is not None and 8 * len(batch.numbers) < self.all:
            self.rows = picked(self.features.rows, batch.numbers)

    def __len__(self) -> int:
        return len(self.labels)

    def logits(self, y: Tensor) -> Tensor:
        """[m, c]. Picking rows costs more than the product unless they are few."""
        if self.rows is not None and not y.requires_grad:
            return product(self.rows, y)
        z = self.features.times(y)
        return z if self.numbers is None else z[self.numbers]

    def transposed_product(self, r: Tensor) -> Tensor:
        """features^T r, [p, c]: of all rows, those not in the batch 0."""
        if self.numbers is not None:
            r = r.new_zeros(self.all, r.shape[1]).index_add_(0, self.numbers, r)
        return product(self.features.columns, r)


def mean_loss(y: Tensor, batch: Rows) -> Tensor:
    """Mean CE."""
    chosen = Chosen(batch)
    return sample_losses(chosen.logits(y), chosen.labels).mean()


def upper_grad(x: Tensor, y: Tensor, batch: Rows, wrt: Wrt) -> Partials:
    f_x = torch.zeros_like(x) if "x" in wrt else None  # f does not see the regularisation
    return f_x, (loss_grad(y, batch) if "y" in wrt else None)


def loss_grad(y: Tensor, batch: Rows) -> Tensor:
    """Of the mean CE."""
    chosen = Chosen(batch)
    r = residual(chosen.logits(y), chosen.labels).div_(len(chosen))
    return chosen.transposed_product(r)


def lower_derivatives(k: float, s: float) -> Derivatives:
    """Those of mean CE + s sum_j exp(k x_j) |y_j|^2; tasks/models/linear.py has the formulas of CE.

    What a partial derivative costs besides its products with the data is one pass over y.
    """

    def grad(x: Tensor, y: Tensor, batch: Rows, wrt: Wrt) -> Partials:
        weights = s * torch.exp(k * x)
        g_x = k * weights * torch.linalg.vecdot(y, y) if "x" in wrt else None
        if "y" not in wrt:
            return g_x, None
        return g_x, loss_grad(y, batch).addcmul_(y, weights[:, None], value=2)

    def linearise(x: Tensor, y: Tensor, batch: Rows) -> Any:
        weights, chosen = s * torch.exp(k * x), Chosen(batch)
        p = torch.softmax(chosen.logits(y), 1)

        def slope() -> Tensor:
            r = p.scatter_add(1, chosen.labels[:, None], -torch.ones_like(p[:, :1]))
            g = chosen.transposed_product(r.div_(len(chosen)))
            return g.addcmul_(y, weights[:, None], value=2)

        def curved_by(v: Tensor, wrt: Wrt) -> Partials:
            mixed = 2 * k * weights * torch.linalg.vecdot(y, v) if "x" in wrt else None
            if "y" not in wrt:
                return mixed, None
            r = curved(p, chosen.logits(v)).div_(len(chosen))
            return mixed, chosen.transposed_product(r).addcmul_(v, weights[:, None], value=2)

        return slope, curved_by

    return Derivatives(grad, linearise)


def started(kind: str, p: int, c: int, seed: int, context: Context) -> Tensor:
    """`Pretraining` has the kinds; [p, c]."""
    y = torch.zeros(p, c, dtype=context.dtype)
    if kind == "normal":
        y.normal_(std=math.sqrt(2 / c), generator=generator("model", seed))
    return y.to(context.device)


def trained(start: Tensor, split: Split, how: Pretraining, context: Context) -> Tensor:
    """`how.steps` heavy-ball steps on the mean CE of the training set."""

    def push(y: Tensor, velocity: Tensor) -> Tensor:
        return loss_grad(y, Rows(split.train, None)).add_(velocity, alpha=how.momentum)

    def score(y: Tensor) -> Tensor:
        assert split.val2 is not None
        return mean_loss(y, Rows(split.val2, None))

    def train() -> Tensor:
        return descended(start, push, how.lr, how.steps, score if how.best else None)

    if how.steps * split.train.features.rows.values.numel() < LONG:
        return train()
    parts = [split.train] + ([split.val2] if split.val2 is not None and how.best else [])
    data = [tensor for part in parts for tensor in (*part.features.rows, part.labels)]
    return kept("newsgroups", context, asdict(how), (start, *data), train)
