"""Learnable regularisation: sparse products and closed forms against dense autograd, runs.

tests/test_newsgroups_data.py has its data and settings, test_newsgroups_corpus.py the corpus.
"""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from torch import Tensor

from algorithms.bilevel.stocbio import stocbio
from bench.core.draw import Draw, generator
from bench.core.oracle import Oracle
from bench.core.settings import BadSetting
from bench.core.task import Context, Task
from bench.numerics.descent import gd
from tasks import newsgroups as module
from tasks.common.sparse import Csr, Dense, Sparse, pick_rows, product, sparse
from tasks.data.newsgroups import Corpus, WordCounts, corpus
from tasks.newsgroups import DocumentBatch, Pretraining, newsgroups
from tests.conftest import Cli

NONE = Pretraining(steps=0)


def counted(rng: np.random.Generator, n: int, p: int, classes: int = 20) -> WordCounts:
    """Counts of which one in a hundred is not 0, and one document that is empty."""
    counts = rng.poisson(3, (n, p)) * (rng.random((n, p)) < 0.01)
    counts[n // 2] = 0
    where = [np.flatnonzero(row) for row in counts]
    offsets = np.cumsum([0, *map(len, where)]).astype(np.int32)
    words = np.concatenate(where).astype(np.int32)
    return WordCounts(
        offsets, words, counts[counts > 0].astype(np.int16), rng.permutation(np.arange(n) % classes)
    )


def slice_of(found: WordCounts, rows: int, words: int) -> WordCounts:
    """The first documents with their most frequent words."""
    whole = csr_array((found.counts, found.words, found.offsets))
    frequent = np.argsort(-np.bincount(found.words, minlength=whole.shape[1]))[:words]
    part = csr_array(whole[:rows][:, np.sort(frequent)])
    part.sort_indices()
    return WordCounts(part.indptr, part.indices, part.data, found.classes[:rows])


def given(monkeypatch: pytest.MonkeyPatch, train: WordCounts, test: WordCounts, words: int) -> None:
    monkeypatch.setattr(module, "corpus", lambda *_: Corpus(train, test, words, {}))


def on_a_slice(monkeypatch: pytest.MonkeyPatch, context: Context, **settings: Any) -> Task:
    rng = np.random.default_rng(0)
    given(monkeypatch, counted(rng, 600, 2000), counted(rng, 80, 2000), 2000)
    return newsgroups(context, NONE, **settings)


# Products


def random_matrix(n: int, p: int) -> tuple[Csr, Tensor]:
    """A matrix with empty rows and columns, as sparse rows and as a dense one, in float64."""
    rng = generator("sparse", n, p)
    dense = torch.randn(n, p, generator=rng, dtype=torch.float64)
    dense[torch.rand(n, p, generator=rng) < 0.7] = 0
    dense[1], dense[:, 2] = 0, 0
    plain = csr_array(dense.numpy())
    parts = (torch.from_numpy(part) for part in (plain.indptr, plain.indices, plain.data))
    return Csr(*parts), dense


def test_sparse_products_are_the_dense_ones() -> None:
    rows, dense = random_matrix(7, 9)
    a, b, r = sparse(rows, 9), torch.randn(9, 4).double(), torch.randn(7, 4).double()
    torch.testing.assert_close(a.times(b), dense @ b)
    torch.testing.assert_close(a.transpose().times(r), dense.T @ r)
    numbers = torch.tensor([3, 1, 3, 6])
    torch.testing.assert_close(product(pick_rows(rows, numbers), b), dense[numbers] @ b)


def test_a_product_is_differentiable_twice() -> None:
    a = sparse(random_matrix(5, 6)[0], 6)
    b = torch.randn(6, 3).double().requires_grad_()
    assert torch.autograd.gradcheck(a.times, b)
    assert torch.autograd.gradgradcheck(lambda y: a.times(y).square(), b)


# Derivatives


def dense_losses(
    train: Tensor, val: Tensor, labels: tuple[Tensor, Tensor], k: float, s: float
) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    def ce(y: Tensor, features: Tensor, labels: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(features @ y, labels)

    def lower(x: Tensor, y: Tensor, i: Tensor) -> Tensor:
        return ce(y, train[i], labels[0][i]) + s * (torch.exp(k * x)[:, None] * y**2).sum()

    return lambda y, i: ce(y, val[i], labels[1][i]), lower


def dense_part(part: module.Documents) -> Tensor:
    return part.features.transposed_times(torch.eye(len(part.labels)).double()).T


def same_as_dense_autograd(task: Task, regulariser: str, size: int | None) -> None:
    """f_y, g_x, g_y, H v, J v and both values to 1e-10 of their size."""
    draw, rng, o = Draw(task, 0, 0), generator("news", regulariser), Oracle(task)
    xi, zeta = draw.f(size), draw.g(size)
    train, val = dense_part(zeta.part), dense_part(xi.part)
    p = train.shape[1]
    k, s = {"paper": (2, 1.0), "code": (1, 0.5 / (20 * p)), "stocbio": (1, 1 / (20 * p))}[
        regulariser
    ]
    upper, lower = dense_losses(train, val, (zeta.part.labels, xi.part.labels), k, s)
    i, j = (
        torch.arange(task.data.count(b)) if b.numbers is None else b.numbers for b in (zeta, xi)
    )
    x_0 = float(task.init(generator())[0][0])
    x = (x_0 + torch.randn(p, generator=rng, dtype=torch.float64)).requires_grad_()
    y = torch.randn(p, 20, generator=rng, dtype=torch.float64).requires_grad_()
    v = torch.randn(p, 20, generator=rng, dtype=torch.float64)

    g = lower(x, y, i)
    g_x, g_y = torch.autograd.grad(g, (x, y), create_graph=True)
    mixed, curved = torch.autograd.grad((g_y * v).sum(), (x, y))
    f = upper(y, j)
    (f_y,) = torch.autograd.grad(f, y)
    x, y = x.detach(), y.detach()
    products = o.products(x, y, zeta)
    pairs = {
        "f": (o.f(x, y, xi), f), "g": (o.g(x, y, zeta), g),
        "f_x": (o.f_x(x, y, xi), torch.zeros_like(x)), "f_y": (o.f_y(x, y, xi), f_y),
        "g_x": (o.g_x(x, y, zeta), g_x), "g_y": (o.g_y(x, y, zeta), g_y),
        "H v": (products.yy(v), curved), "J v": (products.xy(v), mixed),
        "slope": (o.linearise_g_y(x, y, zeta)[0], g_y),
        "both x": (products.both(v)[0], mixed), "both y": (products.both(v)[1], curved),
    }  # fmt: skip
    for name, (found, expected) in pairs.items():
        torch.testing.assert_close(
            found,
            expected.detach(),
            rtol=1e-10,
            atol=1e-14,
            msg=lambda m, name=name: f"{name}: {m}",
        )


@pytest.mark.parametrize(
    ("regulariser", "storage"),
    [("paper", "sparse"), ("code", "sparse"), ("stocbio", "sparse"), ("code", "dense")],
)
@pytest.mark.parametrize("size", [None, 30, 400])  # some documents come twice
def test_derivatives_are_those_of_dense_autograd(
    regulariser: str,
    storage: str,
    size: int | None,
    context: Context,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """300 training documents of 2,000 words; 30 of them are few, whose rows are picked."""
    task = on_a_slice(monkeypatch, context, regulariser=regulariser, storage=storage)
    of = Dense if storage == "dense" else Sparse
    assert isinstance(Draw(task, 0, 0).g(None).part.features, of)
    assert task.data.count(Draw(task, 0, 0).g(None)) == 300
    same_as_dense_autograd(task, regulariser, size)


@pytest.mark.parametrize("size", [None, 30, 400])
def test_the_losses_own_autograd_gives_the_same(
    size: int | None, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = on_a_slice(monkeypatch, context)
    plain = Oracle(replace(task, upper_derivatives=None, lower_derivatives=None))
    fast, draw = Oracle(task), Draw(task, 0, 0)
    x, y = task.init(generator())
    xi, zeta, v = draw.f(size), draw.g(size), torch.randn_like(y)
    for a, b in zip(fast.grad_f(x, y, xi), plain.grad_f(x, y, xi), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-14)
    for a, b in zip(fast.grad_g(x, y, zeta), plain.grad_g(x, y, zeta), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-14)
    for a, b in zip(
        fast.products(x, y, zeta).both(v), plain.products(x, y, zeta).both(v), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-14)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("size", [None, 30, 400])
def test_on_cuda_it_is_the_same(
    size: int | None, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = on_a_slice(monkeypatch, context)
    there = on_a_slice(monkeypatch, replace(context, device=torch.device("cuda")))
    x, y = here.init(generator())
    v = torch.randn_like(y)
    found = []
    for task in (here, there):
        o, draw = Oracle(task), Draw(task, 0, 0)
        to = task.init(generator())[0].device
        zeta = draw.g(size)
        both = o.products(x.to(to), y.to(to), zeta).both(v.to(to))
        found.append([t.cpu() for t in (*o.grad_g(x.to(to), y.to(to), zeta), *both)])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-14)


def test_dense_documents_that_would_fill_the_memory_are_refused(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """600 and 80 documents of 2,000 words in float64 are 10.9 MB."""
    monkeypatch.setattr(module, "MOST_DENSE", 10_880_000)
    on_a_slice(monkeypatch, context, storage="dense")
    monkeypatch.setattr(module, "MOST_DENSE", 10_879_999)
    on_a_slice(monkeypatch, context)
    with pytest.raises(BadSetting, match=r"^task\.storage=dense: .* 0\.0 GB; write task\.storage="):
        on_a_slice(monkeypatch, context, storage="dense")


# The problem


def test_fixed_batches_are_the_same_at_every_step_and_of_validation_for_products(
    context: Context,
) -> None:
    """x stays, y too, so that two steps see the same; by hand from the parts."""
    task = newsgroups(context, NONE, "digits", protocol="stocbio", variant="code")
    x, y = task.init(generator())
    y = torch.randn(y.shape, generator=generator("y"), dtype=y.dtype)
    algorithm = stocbio(gd(), 1.0, 1e-300, 0.5, T=3, Q=2, batches="fixed", batch=100)
    oracles = [Oracle(task), Oracle(task)]
    states = [
        algorithm.step(oracle, algorithm.init(x, y), Draw(task, 0, k))[0]
        for oracle, k in zip(oracles, (0, 7), strict=True)
    ]
    assert torch.equal(states[0].x, states[1].x)
    assert algorithm.cost is not None
    declared = {key: calls for key, calls in algorithm.cost.calls.items() if calls}
    assert dict(oracles[0].calls) == declared
    for key, calls in declared.items():  # a part has at most `batch` documents
        assert 50 * calls < oracles[0].samples[key] <= 100 * calls
    o, draw = Oracle(task), Draw(task, 0, 0)
    n = task.data.count(draw.f())
    parts = [n * b // (n // 100 + 1) for b in range(4)]
    D = [DocumentBatch(draw.f().part, torch.arange(a, b)) for a, b in pairwise(parts)]
    r = [o.f_y(x, y, D[0])]
    for _ in range(2):
        r.append(r[-1] - 0.5 * o.g_yy(x, y, D[1])(r[-1]))
    expected = o.g_xy(x, y, D[2])(0.5 * sum(r))  # type: ignore[arg-type]
    torch.testing.assert_close(states[0].x - x, expected, rtol=1e-10, atol=1e-18)
    with pytest.raises(BadSetting, match=r"algorithm\.batches=fixed"):
        stocbio(gd(), 1.0, 0.1, 0.5, batches="fixed", inner_batch=3)


# The data


def test_absent_data_are_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match=r"20 Newsgroups is not in .*task\.source=digits") as error:
        newsgroups(Context(data_root=tmp_path), NONE)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())  # scikit-learn makes a folder there


@pytest.mark.data
def test_counts_classes_and_splits_are_the_published_ones(
    data_root: Path, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """130,107 and 101,631 words; nonzeros as shared/data states them from scikit-learn's loader."""
    here = Context(data_root=data_root)
    nonzeros = {"keep": (1_787_565, 1_107_956), "remove": (1_103_627, 665_738)}
    classes = {
        "train": "480 584 591 590 578 593 585 594 598 597 600 595 591 594 593 599 546 564 465 377",
        "test": "319 389 394 392 385 395 390 396 398 397 399 396 393 396 394 398 364 376 310 251",
    }
    for headers, words in {"keep": 130_107, "remove": 101_631}.items():
        found = corpus("newsgroups", headers, here)  # type: ignore[arg-type]
        assert found.words == words
        assert (len(found.train.counts), len(found.test.counts)) == nonzeros[headers]
        for part in ("train", "test"):
            counted = np.bincount(getattr(found, part).classes)
            assert " ".join(map(str, counted)) == classes[part]

    task = newsgroups(here, NONE)
    x, y = task.init(generator())
    assert (x.shape, y.shape) == ((130_107,), (130_107, 20))
    split = module.divide_corpus(*corpus("newsgroups", "keep", here)[:2], 130_107, True, 0, here)
    assert split.val2 is not None
    sizes = [len(part.labels) for part in (split.train, split.val, split.test, split.val2)]
    assert sizes == [5657, 5657, 3766, 3766]
    stocbios = newsgroups(here, NONE, protocol="stocbio")
    assert stocbios.data.count(Draw(stocbios, 0, 0).g()) == 5657

    whole = corpus("newsgroups", "keep", here)  # the acceptance slice: 300 x 2000
    given(monkeypatch, slice_of(whole.train, 600, 2000), slice_of(whole.test, 400, 2000), 2000)
    on_slice = newsgroups(context, NONE, regulariser="code")
    assert on_slice.data.count(Draw(on_slice, 0, 0).g()) == 300
    same_as_dense_autograd(on_slice, "code", None)


@pytest.mark.data
def test_bome_at_full_size(cli: Cli, tmp_path: Path, data_root: Path) -> None:
    """Two steps: what they count, and the memory."""
    done = cli(
        "task=newsgroups", f"data.root={data_root}", "run.steps=2", "run.every=2",
        "task.pretraining.steps=0", "task.references=false",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (found,) = (tmp_path / "runs").rglob("summary.json")
    summary = json.loads(found.read_text())
    assert summary["last"]["samples/grad_g"] == 2 * 11 * 5657
    assert summary["peak_memory_mb"]["process"] < 2500
    assert os.listdir(data_root / "derived")
