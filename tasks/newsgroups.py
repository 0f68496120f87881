"""Learnable regularisation: a weight of its own for every word, so that the model trained with them
is best on a validation set.

    f(x, y) = mean CE on validation,   g(x, y) = mean CE on training + s sum_j exp(k x_j) |y_j|^2,

with x in R^p one log weight per word and y in R^{p x 20} a linear softmax model. y_j are word j's
20 coefficients, which lie together in memory as the sparse products need them. BOME (Ye et al.
2022, sections 6.1 and A.5) and stocBiO (Ji et al. 2021, section 6.1 and appendix B) both use this
problem, on 20 Newsgroups. The setting `regulariser` says what k and s are, for c classes:

    paper    BOME's text: k = 2, s = 1, W = diag(exp x)
    code     both released codes: k = 1, s = 1 / (2 c p), .5 times a mean over all coefficients
    stocbio  stocBiO's text: k = 1, s = 1 / (c p)

CE is a mean, as stocBiO prints it and both codes take it; BOME prints a loss and says no more. x
starts at 0, except with `paper`. At x = 0 that regulariser is five million times as strong as
`code`, and no inner step size of section A.5 is stable for plain gradient descent. So x starts at
-log(2 c p) / 2 there, where the two are the same.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from bench.core.draw import bring, generator
from bench.core.settings import BadSetting, Count, Finite, Natural, Positive, Rate
from bench.core.task import Batch, Context, Data, Derivatives, Partials, Report, Task, Wrt
from tasks.common.pretraining import descend, train_or_load
from tasks.common.sparse import Csr, Dense, Sparse, sparse
from tasks.data.newsgroups import Headers, Source, WordCounts, corpus, reduced
from tasks.models.linear import add_at_labels, residual, residual_change, sample_losses, softmax

Protocol = Literal["bome", "stocbio"]
Variant = Literal["paper", "code"]
MOST_DENSE = 2e9  # bytes of all documents together
LONG = 1e8  # steps times entries of the documents, from which on a pretraining is kept on disk


@dataclass(frozen=True)
class Pretraining:
    """Where theta_0 comes from: heavy-ball descent on the mean CE of the training set.

    start: where the descent begins, which is theta_0 itself if steps = 0: "normal" with deviation
    sqrt(2 / classes), as released, or "zero". best: theta_0 is the iterate of least loss on val2,
    and not the last one.
    """

    start: Literal["normal", "zero"] = "normal"
    steps: Natural = 500
    lr: Positive = 100.0
    momentum: Rate = 0.9
    best: bool = True


class Documents(NamedTuple):
    """Documents of unit length [n, p] and their labels [n] int64."""

    features: Sparse | Dense
    labels: Tensor


class DocumentBatch(NamedTuple):
    """Documents of a part by their numbers [m] int64; None: all of them."""

    part: Documents
    numbers: Tensor | None


class DocumentSplit(NamedTuple):
    """The parts of a corpus. val2: the set for choosing hyperparameters, if the protocol has it."""

    train: Documents
    val: Documents
    val2: Documents | None
    test: Documents


# the regulariser that a protocol uses in a variant
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
    groups: Count | None = None,
    words: Count | None = None,
    storage: Literal["sparse", "dense"] = "sparse",
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

    source: "digits" is a small stand-in, whose pixels are the words. groups, words: only the first
    groups in the order of their names, and only the words that most training documents of these
    have; None: all of them. storage: of the documents; "dense" is faster where they have most of
    the words, as with "digits". headers: "remove" removes footers and quotes too; None: remove in
    the paper variant of stocbio, else keep.

    protocol: both divide the training half of the corpus into a training and a validation set, each
    class by halves. bome divides the published test set in the same way, into a test set and val2,
    the set for choosing hyperparameters; stocbio has no val2.

    regulariser: None is "code" in the variant code; in the variant paper it is "paper" with bome
    and "stocbio" with stocbio. start: every x_j at first. resplit: whether the split and theta_0
    follow the run's seed; None: in the variant paper. Both released codes have one of each; bome's
    is that of seed 0 here.

    upper_data: what f is the loss of; "training" is for reference lines without regularisation.
    references: a line of training without regularisation is computed too (500 steps, the best of
    them on val2), with bome only. Raises BadSetting.
    """
    bome, code = protocol == "bome", variant == "code"
    follows_seed = (not code) if resplit is None else resplit
    seed = context.seed if follows_seed else 0
    kept_headers = headers or ("keep" if bome or code else "remove")

    found = reduced(corpus(source, kept_headers, context), groups, words)
    p, c = found.words, int(found.train.classes.max()) + 1
    chosen = regulariser or OWN[protocol, variant]
    k, s = strength(chosen, c, p)
    at_first = -math.log(2 * c * p) / 2 if chosen == "paper" else 0.0
    x_0 = at_first if start is None else start
    split = divide_corpus(found.train, found.test, p, bome, seed, context)
    if storage == "dense":
        split = with_dense_features(split, p)
    if pretraining.best and pretraining.steps and split.val2 is None:
        raise BadSetting(
            "task.pretraining.best=true: stocbio's protocol has no val2; write "
            "task.pretraining.best=false"
        )
    upper_part = split.val if upper_data == "validation" else split.train

    def upper(x: Tensor, y: Tensor, batch: DocumentBatch) -> Tensor:
        return mean_loss(y, batch)

    def lower(x: Tensor, y: Tensor, batch: DocumentBatch) -> Tensor:
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
            "val_loss": mean_loss(y, DocumentBatch(split.val, None)),
            "train_loss": mean_loss(y, DocumentBatch(split.train, None)),
        }

    def theta(how: Pretraining) -> Tensor:
        return train_weights(first_weights(how.start, p, c, seed, context), split, how, context)

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
        data=Data(
            sampler(upper_part),
            sampler(split.train),
            count=lambda batch: len(batch.part.labels if batch.numbers is None else batch.numbers),
            rows=cut,
        ),
        upper_derivatives=Derivatives(upper_grad),
        lower_derivatives=lower_derivatives(k, s),
        report=Report(found.sources, reference_lines if references and bome else None),
    )


def cut(batch: DocumentBatch, a: int, b: int) -> DocumentBatch:
    """The documents number a to b of a whole part."""
    return DocumentBatch(batch.part, torch.arange(a, b, device=batch.part.labels.device))


def strength(regulariser: str, c: int, p: int) -> tuple[float, float]:
    """(k, s) of s sum_j exp(k x_j) |y_j|^2, for c classes and p words."""
    return {"paper": (2.0, 1.0), "code": (1.0, 0.5 / (c * p)), "stocbio": (1.0, 1 / (c * p))}[
        regulariser
    ]


def divide_corpus(
    train: WordCounts, test: WordCounts, p: int, bome: bool, seed: int, context: Context
) -> DocumentSplit:
    """`train` is divided into train and val, each class by halves; with bome `test` is divided into
    test and val2 in the same way.

    scikit-learn's train_test_split does it under numpy's seed + 1, so that seed 0 is the split of
    the released BOME. numpy has seeds below 2^32; larger ones begin at 0 again.
    """
    from sklearn.model_selection import train_test_split

    state = np.random.RandomState((seed + 1) % 2**32)

    def halves(documents: WordCounts) -> list[Documents]:
        numbers = np.arange(len(documents.classes))
        both = train_test_split(
            numbers, stratify=documents.classes, test_size=0.5, random_state=state
        )
        return [unit_vectors(documents, half, p, context) for half in both]

    train_part, val = halves(train)
    test_part, val2 = halves(test) if bome else (unit_vectors(test, slice(None), p, context), None)
    return DocumentSplit(train_part, val, val2, test_part)


def unit_vectors(documents: WordCounts, numbers: Any, p: int, context: Context) -> Documents:
    """The documents of these numbers, each document's counts divided by their length |counts|; an
    empty document stays 0. p: the number of words."""
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
    return Documents(
        sparse(rows, p), torch.from_numpy(documents.classes[numbers]).long().to(device)
    )


def with_dense_features(split: DocumentSplit, p: int) -> DocumentSplit:
    """The same documents, whose features are dense; p: the number of words. Raises BadSetting where
    that is more than `MOST_DENSE` bytes."""
    rows = sum(len(part.labels) for part in split if part is not None)
    size = rows * p * split.train.features.tensors()[-1].element_size()
    if size > MOST_DENSE:
        raise BadSetting(
            f"task.storage=dense: the documents would take {size / 1e9:.1f} GB; write "
            "task.storage=sparse, or fewer task.words"
        )

    def dense(part: Documents) -> Documents:
        offsets, columns, values = part.features.tensors()
        row_of = torch.repeat_interleave(offsets.diff())
        matrix = values.new_zeros(len(part.labels), p)
        matrix.index_put_((row_of, columns.long()), values, accumulate=True)
        return Documents(Dense(matrix), part.labels)

    val2 = None if split.val2 is None else dense(split.val2)
    return DocumentSplit(dense(split.train), dense(split.val), val2, dense(split.test))


def sampler(part: Documents) -> Callable[[Generator, int, int | None], Batch]:
    """The sampler of all documents, or of `size` of them with replacement."""
    everything, n = DocumentBatch(part, None), len(part.labels)

    def draw(rng: Generator, step: int, size: int | None) -> Batch:
        if size is None:
            return everything
        numbers = torch.randint(n, (size,), generator=rng)
        return DocumentBatch(part, bring(numbers, part.labels.device))

    return draw


class Chosen:
    """The documents of a batch: products with their features, and their labels.

    Dense features are those of the batch. On the CPU sparse ones of a batch of less than half of
    the part are picked, each document's once, so that the batch costs less than all documents. That
    reads the numbers: on a GPU the step would wait for them, and a step that reads its tensors is
    neither compiled nor vectorised.
    """

    def __init__(self, batch: DocumentBatch):
        self.features, self.at = batch.part.features, batch.numbers
        self.rows = len(batch.part.labels)
        self.labels = batch.part.labels
        if batch.numbers is None:
            return
        self.labels = self.labels[batch.numbers]
        if isinstance(self.features, Dense):
            self.features, self.at = self.features.picked(batch.numbers), None
        elif batch.numbers.device.type == "cpu" and 2 * len(batch.numbers) < self.rows:
            documents, self.at = torch.unique(batch.numbers, return_inverse=True)
            self.features, self.rows = self.features.picked(documents), len(documents)

    def __len__(self) -> int:
        return len(self.labels)

    def logits(self, y: Tensor) -> Tensor:
        """The scores [m, c]."""
        z = self.features.times(y)
        return z if self.at is None else z[self.at]

    def transposed_product(self, r: Tensor) -> Tensor:
        """The transposed features of the batch times r [m, c]: [p, c]."""
        if self.at is not None:
            r = r.new_zeros(self.rows, r.shape[1]).index_add_(0, self.at, r)
        return self.features.transposed_times(r)


def mean_loss(y: Tensor, batch: DocumentBatch) -> Tensor:
    """The mean CE over the batch."""
    chosen = Chosen(batch)
    return sample_losses(chosen.logits(y), chosen.labels).mean()


def upper_grad(x: Tensor, y: Tensor, batch: DocumentBatch, wrt: Wrt) -> Partials:
    f_x = torch.zeros_like(x) if "x" in wrt else None  # f does not see the regularisation
    return f_x, (loss_grad(y, batch) if "y" in wrt else None)


def loss_grad(y: Tensor, batch: DocumentBatch) -> Tensor:
    """The gradient of `mean_loss` in y, [p, c]."""
    chosen = Chosen(batch)
    r = residual(chosen.logits(y), chosen.labels).div_(len(chosen))
    return chosen.transposed_product(r)


def lower_derivatives(k: float, s: float) -> Derivatives:
    """The derivatives of mean CE + s sum_j exp(k x_j) |y_j|^2; tasks/models/linear.py has the
    formulas of CE.

    Besides its products with the data, each partial derivative costs one pass over y.
    """

    def grad(x: Tensor, y: Tensor, batch: DocumentBatch, wrt: Wrt) -> Partials:
        weights = s * torch.exp(k * x)
        g_x = k * weights * torch.linalg.vecdot(y, y) if "x" in wrt else None
        if "y" not in wrt:
            return g_x, None
        return g_x, loss_grad(y, batch).addcmul_(y, weights[:, None], value=2)

    def linearise(x: Tensor, y: Tensor, batch: DocumentBatch) -> Any:
        weights, chosen = s * torch.exp(k * x), Chosen(batch)
        p = softmax(chosen.logits(y))

        def gradient() -> Tensor:
            r = add_at_labels(p, chosen.labels[:, None], -1)
            g = chosen.transposed_product(r.div_(len(chosen)))
            return g.addcmul_(y, weights[:, None], value=2)

        def product_with(v: Tensor, wrt: Wrt) -> Partials:
            mixed = 2 * k * weights * torch.linalg.vecdot(y, v) if "x" in wrt else None
            if "y" not in wrt:
                return mixed, None
            r = residual_change(p, chosen.logits(v)).div_(len(chosen))
            return mixed, chosen.transposed_product(r).addcmul_(v, weights[:, None], value=2)

        return gradient, product_with

    return Derivatives(grad, linearise)


def first_weights(kind: str, p: int, c: int, seed: int, context: Context) -> Tensor:
    """The weights [p, c] that `Pretraining.start` names."""
    y = torch.zeros(p, c, dtype=context.dtype)
    if kind == "normal":
        y.normal_(std=math.sqrt(2 / c), generator=generator("model", seed))
    return y.to(context.device)


def train_weights(
    start: Tensor, split: DocumentSplit, how: Pretraining, context: Context
) -> Tensor:
    """theta_0: the weights after `how.steps` heavy-ball steps on the mean CE of the training set,
    or the best of them on val2."""

    def push(y: Tensor, velocity: Tensor) -> Tensor:
        return loss_grad(y, DocumentBatch(split.train, None)).add_(velocity, alpha=how.momentum)

    def score(y: Tensor) -> Tensor:
        assert split.val2 is not None
        return mean_loss(y, DocumentBatch(split.val2, None))

    def train() -> Tensor:
        return descend(start, push, how.lr, how.steps, score if how.best else None)

    if how.steps * split.train.features.tensors()[-1].numel() < LONG:
        return train()
    parts = [split.train] + ([split.val2] if split.val2 is not None and how.best else [])
    data = [tensor for part in parts for tensor in (*part.features.tensors(), part.labels)]
    return train_or_load("newsgroups", context, asdict(how), (start, *data), train)
