"""Softmax regression's passes: against plain autograd, by C and by torch, as operators, in lanes.

Sums of up to 5,037 terms in another order: 1e-12 relative in float64.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from bench.core.draw import Draw, generator
from bench.core.oracle import Oracle
from bench.core.task import Context, Task
from tasks.data.images import Images, ImageSplit, LabelledImages
from tasks.hyper_cleaning import Pretraining, hyper_cleaning
from tasks.models import linear, softmax_rows
from tasks.models.linear import (
    Rows,
    add_at_labels,
    add_at_labels_,
    curvature,
    logits,
    loss_gradient,
    one_hot,
    pick,
    residual,
    sample_losses,
    softmax,
    transposed_product,
)
from tasks.models.softmax_rows import combine_rows, curvatures, loss_gradients, scores

CLASSES, WIDTH = 10, 19
RULES = ("test_schema", "test_faketensor", "test_autograd_registration")
# one row; a block and its neighbours; chunks that threads share, the last one short
SIZES = [1, 3, 63, 64, 65, 2047, 2048, 5037]
MANY = 2085  # rows for which there are two chunks


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=generator("linear", *shape), dtype=torch.float64)


def labels_of(*shape: int, classes: int = CLASSES) -> Tensor:
    return torch.randint(classes, shape, generator=generator("labels", *shape))


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.fixture(params=["C", "torch"])
def how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """By softmax_rows.c, and as without a compiler."""
    if request.param == "torch":
        monkeypatch.setattr(linear, "reads_rows_once", lambda features: False)
    else:
        assert softmax_rows.library() is not None, "these tests want a C compiler"
    return str(request.param)


def plain_losses(y: Tensor, X: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(X @ y.T, labels, reduction="none")


def check(X: Tensor, rows: Rows, w: Tensor, y: Tensor, v: Tensor) -> None:
    """Everything that is known of these rows, which are X, by autograd of plain torch."""
    leaf = y.clone().requires_grad_()
    losses = plain_losses(leaf, X, rows.labels)
    (g,) = torch.autograd.grad((w * losses).sum(), leaf, create_graph=True)
    (change,) = torch.autograd.grad((g * v).sum(), leaf, retain_graph=True)
    u = torch.ones_like(w, requires_grad=True)
    (turned,) = torch.autograd.grad((u * losses).sum(), leaf, create_graph=True)
    (along,) = torch.autograd.grad((turned * v).sum(), u)
    at = loss_gradient(y, rows, w)
    close(at.gradient, g.detach())
    close(at.p, torch.softmax(X @ y.T, 1))
    close(at.losses, losses.detach())
    for found, expected in zip(curvature(v, at.p, rows, w), (change, along), strict=True):
        close(found, expected)
    losses_alone, slopes_alone = loss_gradient(y, rows, None), curvature(v, at.p, rows, None)
    close(losses_alone.losses, losses.detach())
    close(slopes_alone[1], along)
    assert losses_alone.gradient.numel() == slopes_alone[0].numel() == 0
    close(logits(y, rows.features, rows.picked), X @ y.T)


@pytest.mark.parametrize("classes", [2, 3, 10, 11])
@pytest.mark.parametrize("width", [1, 7, 8, 32, 33, 99])
@pytest.mark.parametrize("n", [1, 5, 67])
def test_all_shapes(how: str, n: int, width: int, classes: int) -> None:
    """Rows, classes and features that fill the tiles of a block, and that do not."""
    X, y, v = drawn(n, width), drawn(classes, width), drawn(2, classes, width)[1]
    check(X, Rows(X, labels_of(n, classes=classes), None), drawn(1, n)[0], y, v)


@pytest.mark.parametrize("n", SIZES)
def test_all_numbers_of_rows(how: str, n: int) -> None:
    X, y, v = drawn(n, WIDTH), drawn(CLASSES, WIDTH), drawn(2, CLASSES, WIDTH)[1]
    check(X, Rows(X, labels_of(n), None), drawn(1, n)[0], y, v)
    r = drawn(n, CLASSES)
    close(transposed_product(r, X), r.T @ X)
    z, labels = logits(y, X), labels_of(n)
    close(softmax(z), torch.softmax(X @ y.T, 1))
    close(residual(z, labels), torch.softmax(X @ y.T, 1) - F.one_hot(labels, CLASSES))
    close(sample_losses(z, labels), plain_losses(y, X, labels))


@pytest.mark.parametrize("size", [1, 64, 5037])
def test_picked_rows(how: str, size: int) -> None:
    """Rows picked out of many, some of them more than once; copied where torch does it."""
    X, y, v = drawn(300, WIDTH), drawn(CLASSES, WIDTH), drawn(2, CLASSES, WIDTH)[1]
    i = torch.randint(300, (size,), generator=generator("picked"))
    rows = pick(X, labels_of(300), i)
    assert torch.equal(rows.labels, labels_of(300)[i])
    assert (rows.features is X) == (how == "C")
    check(X[i], rows, drawn(1, size)[0], y, v)


def test_single_precision(how: str) -> None:
    """Against float64: 5,037 terms in blocks of 64, with 6e-8 each."""
    X, y, w = drawn(5037, WIDTH), drawn(CLASSES, WIDTH), drawn(1, 5037)[0]
    v, rows = drawn(2, CLASSES, WIDTH)[1], Rows(X, labels_of(5037), None)
    at = loss_gradient(y, rows, w)
    single = rows._replace(features=X.float())
    rough = loss_gradient(y.float(), single, w.float())
    for found, exact in (
        (rough.gradient, at.gradient),
        (curvature(v.float(), rough.p, single, w.float())[0], curvature(v, at.p, rows, w)[0]),
    ):
        assert found.dtype == torch.float32
        assert (found - exact).norm() < 2e-6 * exact.norm()


def test_scores_beyond_what_exp_can_hold(how: str) -> None:
    """Softmax is shifted by the row's largest score, as torch's is."""
    X, y = drawn(9, WIDTH), 1e4 * drawn(CLASSES, WIDTH)
    at = loss_gradient(y, Rows(X, labels_of(9), None), torch.ones(9).double())
    torch.testing.assert_close(at.losses, plain_losses(y, X, labels_of(9)), rtol=1e-12, atol=1e-9)
    assert torch.equal(at.p.sum(1), torch.ones(9).double())


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_so(how: str, bad: float) -> None:
    """A run that diverges must show it: one such weight of class 2 spoils every row's softmax."""
    X, y = drawn(9, WIDTH).abs(), drawn(CLASSES, WIDTH)
    y[2, 3] = bad
    at = loss_gradient(y, Rows(X, torch.zeros(9).long(), None), torch.ones(9).double())
    assert not at.losses.isfinite().any()
    assert at.gradient.isnan().any()
    change, _ = curvature(y, torch.full((9, CLASSES), 0.1).double(), Rows(X, labels_of(9), None),
                          torch.ones(9).double())  # fmt: skip
    assert not change.isfinite().all()


@pytest.mark.parametrize("bad", [-1, 10])
def test_what_is_out_of_range_is_refused(bad: int) -> None:
    """A label and the number of a row, before anything is read."""
    X, y, w = drawn(10, WIDTH), drawn(CLASSES, WIDTH), torch.ones(3).double()
    for labels, picked in (([0, 1, bad], [0, 1, 2]), ([0, 1, 2], [0, bad, 2])):
        rows = Rows(X, torch.tensor(labels), None, torch.tensor(picked))
        with pytest.raises(IndexError, match="out of range"):
            loss_gradient(y, rows, w)
        with pytest.raises(IndexError, match="out of range"):
            curvature(y, torch.full((3, CLASSES), 0.1).double(), rows, w)


def test_numbers_of_another_type_are_refused() -> None:
    """C would read them as what they are not, and past the end of their memory."""
    X, y, w, labels = drawn(3, WIDTH), drawn(CLASSES, WIDTH), torch.ones(3).double(), labels_of(3)
    p = torch.full((3, CLASSES), 0.1).double()
    rows = Rows(X, labels, None)
    loss_gradient(y, rows, w)
    for wrong in (
        lambda: loss_gradient(y.float(), rows, w),
        lambda: loss_gradient(y, rows, w.float()),
        lambda: loss_gradient(y, Rows(X.float(), labels, None), w),
        lambda: loss_gradient(y, Rows(X, labels.int(), None), w),
        lambda: loss_gradient(y, Rows(X, labels, None, torch.arange(3).int()), w),
        lambda: curvature(y, p.float(), rows, w),
    ):
        with pytest.raises(TypeError, match=r"regression: torch\.\w+ where torch\.\w+ is read"):
            wrong()


def test_no_bit_depends_on_the_threads() -> None:
    X, y, w = drawn(5037, WIDTH).float(), drawn(CLASSES, WIDTH).float(), drawn(1, 5037)[0].float()
    rows, before = Rows(X.repeat(10, 1), labels_of(5037).repeat(10), None), torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3, 7):
            torch.set_num_threads(threads)
            at = loss_gradient(y, rows, w.repeat(10))
            found.append((at.gradient, curvature(y, at.p, rows, w.repeat(10))[0]))
    finally:
        torch.set_num_threads(before)
    for pair in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(pair, found[0]))


@pytest.mark.parametrize(("n", "width"), [(64, 784), (50, 999), (5, 9001), (1, 42_001)])
def test_small_batches_of_five_lanes(n: int, width: int) -> None:
    """Batches that threads share by halves: to the last bit what one thread makes of each lane."""
    X, y, w = (drawn(*shape).float() for shape in ((80, width), (5, CLASSES, width), (5, n)))
    picked, labels = labels_of(5, n, classes=80), labels_of(5, n)
    v, before = y.flip(0), torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        together = loss_gradients(y, X, picked, labels, w)
        together += curvatures(v, together[1], X, picked, labels, w)
        without = loss_gradients(y, X, picked, labels, None)
        torch.set_num_threads(1)
        for k in range(5):
            own = X, picked[k : k + 1], labels[k : k + 1], w[k : k + 1]
            alone = loss_gradients(y[k : k + 1], *own)
            alone += curvatures(v[k : k + 1], alone[1], *own)
            assert all(torch.equal(a[k], b[0]) for a, b in zip(together, alone, strict=True))
            assert torch.equal(without[2][k], alone[2][0])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("operator", [scores, combine_rows])
def test_products_keep_torchs_rules(operator: torch.library.CustomOpDef) -> None:
    """Nothing aliased, shapes known without data, autograd registered, and right twice."""
    X = drawn(103, WIDTH)
    a = drawn(CLASSES, WIDTH if operator is scores else 103)
    for inputs in ((a, X), (a.clone().requires_grad_(), X.clone().requires_grad_())):
        torch.library.opcheck(operator, inputs, test_utils=RULES)
    small = (a[:2].clone().requires_grad_(), X.clone().requires_grad_())
    assert torch.autograd.gradcheck(operator, small)
    assert torch.autograd.gradgradcheck(operator, small)


@pytest.mark.parametrize("groups", [None, 1, 3])
def test_passes_keep_torchs_rules(groups: int | None) -> None:
    X, y = drawn(103, WIDTH), drawn(3, CLASSES, WIDTH)
    picked = None if groups is None else labels_of(groups, 103, classes=103)
    p = torch.softmax(drawn(3, CLASSES, 103), 1)
    for weights in (drawn(3, 103), None):
        own = (X, picked, labels_of(1, 103), weights)
        torch.library.opcheck(loss_gradients, (y, *own), test_utils=RULES)
        torch.library.opcheck(curvatures, (y, p, *own), test_utils=RULES)


KINDS = {  # which of y, features, picked, labels, weights each lane has for itself
    "weights of the model": (0, None, None, None, None),
    "labels": (None, None, None, 0, None),
    "batches": (0, None, 0, 0, 0),
    "sample weights": (None, None, None, None, 0),
    "features": (0, 0, None, 0, 0),
    "everything": (0, 0, 0, 0, 0),
}


@pytest.mark.parametrize("n", [57, MANY])
@pytest.mark.parametrize("kind", KINDS)
def test_lanes(how: str, kind: str, n: int) -> None:
    """vmap, and vmap in vmap, give every lane what it gets alone."""
    many, dims = 3, KINDS[kind]
    whole = (
        drawn(2, many, CLASSES, WIDTH), drawn(2, many, 80, WIDTH),
        labels_of(2, many, n, classes=80), labels_of(2, many, n), drawn(2, many, n),
    )  # fmt: skip

    def lane(y: Tensor, X: Tensor, i: Tensor, labels: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        rows = Rows(X, labels, i, i) if how == "C" else Rows(X[i], labels, i)
        at = loss_gradient(y, rows, w)
        alone = loss_gradient(y, rows, None).losses, curvature(y, at.p, rows, None)[1]
        return *at, *curvature(y.flip(0), at.p, rows, w), *alone

    chosen = [t if d == 0 else t[0, 0] for t, d in zip(whole, dims, strict=True)]
    once = torch.func.vmap(lane, dims)
    together = torch.func.vmap(once, dims)(*chosen)
    for a in range(2):
        outer = [t[a] if d == 0 else t for t, d in zip(chosen, dims, strict=True)]
        for found, expected in zip(together, once(*outer), strict=True):
            close(found[a], expected)
        for b in range(many):
            own = [t[b] if d == 0 else t for t, d in zip(outer, dims, strict=True)]
            for found, expected in zip(together, lane(*own), strict=True):
                close(found[a, b], expected)


def test_lanes_of_products_that_share_nothing(how: str) -> None:
    X, y, r = drawn(3, 57, WIDTH), drawn(3, CLASSES, WIDTH), drawn(3, 57, CLASSES)
    close(torch.func.vmap(logits)(y, X), X @ y.mT)
    close(torch.func.vmap(transposed_product)(r, X), r.mT @ X)


def test_lanes_read_the_features_once() -> None:
    """Stacked columns: one operator on all of them, with the features as they are."""
    X, y = drawn(MANY, WIDTH), drawn(4, CLASSES, WIDTH)
    rows, w = Rows(X, labels_of(MANY), None), drawn(1, MANY)[0]

    def lane(y: Tensor) -> tuple[Tensor, Tensor]:
        return transposed_product(logits(y, X), X), loss_gradient(y, rows, w).gradient

    traced = make_fx(torch.func.vmap(lane))(y)
    called = [node for node in traced.graph.nodes if "bench" in str(node.target)]
    shapes = [[t.shape[0] for t in torch.utils._pytree.tree_leaves(n.meta["val"])] for n in called]
    assert shapes == [[4 * CLASSES], [4 * CLASSES], [4, 4, 4]]
    for found, expected in zip(traced(y), zip(*(lane(v) for v in y)), strict=True):
        close(found, torch.stack(expected))


@pytest.mark.parametrize(
    ("compiler", "said"),
    [("no-such-compiler", "fails"), ("false", "fails"), ("", "No C compiler is installed")],
)
def test_without_a_compiler_there_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any, compiler: str, said: str
) -> None:
    """And nothing is left behind."""
    monkeypatch.setenv("CC", compiler)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if not compiler:
        monkeypatch.setenv("PATH", "")
    assert softmax_rows.library.__wrapped__() is None
    (line,) = caplog.messages
    assert said in line
    assert not list(tmp_path.rglob("*.so*"))


def test_a_compiler_without_openmp_makes_it_for_one_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """As that of macOS."""
    compiler = tmp_path / "compiler"
    compiler.write_text('#!/bin/sh\ncase "$*" in *-fopenmp*) exit 1;; esac\nexec cc "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = softmax_rows.library.__wrapped__()
    monkeypatch.setattr(softmax_rows, "library", lambda: found)
    X, y = drawn(5037, WIDTH), drawn(CLASSES, WIDTH)
    close(scores(y, X), y @ X.T)
    assert not caplog.messages


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_a_library_that_others_may_have_put_there_is_not_run(
    mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is made anew, for this process alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    softmax_rows.library.__wrapped__()
    for file in tmp_path.rglob("*.so"):
        file.write_bytes(b"a stranger's")
    (tmp_path / "bilevel-bench-compiled").chmod(mode)
    assert softmax_rows.library.__wrapped__() is not None
    assert {file.read_bytes() for file in tmp_path.rglob("*.so")} == {b"a stranger's"}


def test_the_library_is_kept_in_the_users_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """And made for one process alone where the cache cannot be written to."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert softmax_rows.library.__wrapped__() is not None
    made = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    assert len(made) == len(softmax_rows.TYPES)
    assert {path.suffix for path in made} == {".so"}
    assert {path.parent.name for path in made} == {"bilevel-bench-compiled"}
    assert softmax_rows.library.__wrapped__() is not None
    assert {path: path.stat().st_mtime_ns for path in made} == made
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert softmax_rows.library.__wrapped__() is not None

    def nobody() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(softmax_rows.Path, "home", nobody)
    found = softmax_rows.library.__wrapped__()
    assert found is not None
    monkeypatch.setattr(softmax_rows, "library", lambda: found)
    X, y = drawn(9, WIDTH), drawn(CLASSES, WIDTH)
    close(scores(y, X), y @ X.T)
    assert not caplog.messages


@pytest.fixture
def many(context: Context, monkeypatch: pytest.MonkeyPatch, how: str) -> Task:
    """Hyper-cleaning with rows enough for two threads."""
    n, m = MANY, 60
    part = LabelledImages(drawn(n, WIDTH), torch.arange(n) % CLASSES)
    few = LabelledImages(drawn(m, WIDTH), torch.arange(m) % CLASSES)
    split = ImageSplit(part, few, few, few, {})
    monkeypatch.setattr("tasks.hyper_cleaning.load", lambda *_: split)
    images = Images("mnist", n, m, m, m)
    return hyper_cleaning(context, images, Pretraining(), "stocbio", references=False)


def rows_of(task: Task, size: int | None) -> tuple[Any, Tensor, Tensor]:
    """A batch of the lower level, its features and which they are."""
    zeta = Draw(task, 0, 0).g(size)
    which = torch.arange(MANY) if zeta.numbers is None else zeta.numbers
    return zeta, zeta.features if zeta.picked is None else zeta.features[zeta.picked], which


@pytest.mark.parametrize("size", [None, 64])
def test_a_tasks_derivatives_are_autograds(many: Task, size: int | None) -> None:
    """Plain autograd of F.cross_entropy over X y^T is the reference."""
    x, y = drawn(MANY).requires_grad_(), (0.3 * drawn(CLASSES, WIDTH)).requires_grad_()
    v = drawn(1, CLASSES, WIDTH)[0]
    o = Oracle(many)
    zeta, X, which = rows_of(many, size)
    losses = plain_losses(y, X, zeta.labels)
    g = (torch.sigmoid(x[which]) * losses).mean() + 0.001 * y.square().sum()
    g_x, g_y = torch.autograd.grad(g, (x, y), create_graph=True)
    mixed, curved = torch.autograd.grad((g_y * v).sum(), (x, y))
    x, y = x.detach(), y.detach()
    at, products = o.linearise_g_y(x, y, zeta)
    both = products.both(v)
    pairs = {
        "g": (o.g(x, y, zeta), g),
        "g_x": (o.grad_g(x, y, zeta)[0], g_x),
        "g_x alone": (o.g_x(x, y, zeta), g_x),
        "g_y": (o.grad_g(x, y, zeta)[1], g_y),
        "g_y alone": (o.g_y(x, y, zeta), g_y),
        "slope": (at, g_y),
        "mixed": (products.xy(v), mixed),
        "hessian": (products.yy(v), curved),
        "mixed of both": (both[0], mixed),
        "hessian of both": (both[1], curved),
    }
    for name, (found, expected) in pairs.items():
        error = (found - expected).norm() / expected.norm()
        assert error < 1e-12, name


@pytest.mark.parametrize("size", [None, 64])
def test_the_losses_own_autograd_goes_through_the_operators(many: Task, size: int | None) -> None:
    """Twice: who differentiates the losses by himself gets the closed forms' values."""
    x, y = drawn(MANY).requires_grad_(), drawn(CLASSES, WIDTH).requires_grad_()
    v = drawn(1, CLASSES, WIDTH)[0]
    zeta = Draw(many, 0, 0).g(size)
    assert many.lower is not None
    g_x, g_y = torch.autograd.grad(many.lower(x, y, zeta), (x, y), create_graph=True)
    mixed, curved = torch.autograd.grad((g_y * v).sum(), (x, y))
    o = Oracle(many)
    found = (*o.grad_g(x.detach(), y.detach(), zeta), *o.products(x, y, zeta).both(v))
    for a, b in zip(found, (g_x, g_y, mixed, curved)):
        close(a.detach(), b.detach())


@pytest.mark.parametrize("size", [None, 64])
def test_a_whole_gradient_in_lanes(many: Task, size: int | None) -> None:
    """The task's closed forms under vmap: x and y of every lane, the data shared."""
    x, y, v = drawn(2, MANY), drawn(2, CLASSES, WIDTH), drawn(3, CLASSES, WIDTH)[:2]
    zeta = Draw(many, 0, 0).g(size)

    def lane(x: Tensor, y: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        o = Oracle(many)
        both = *o.products(x, y, zeta).both(v), *o.grad_f(x, y, zeta)
        return *o.grad_g(x, y, zeta), o.g_y(x, y, zeta), *both

    together = torch.func.vmap(lane)(x, y, v)
    for i in range(2):
        for found, expected in zip(together, lane(x[i], y[i], v[i])):
            close(found[i], expected)


@pytest.mark.parametrize("value", [-1, 1])
@pytest.mark.parametrize(("shape", "dim"), [((6, 4), 1), ((2, 3, 4, 5), 2)])
def test_what_a_gpu_adds_at_labels_is_what_a_cpu_scatters(
    shape: tuple[int, ...], dim: int, value: int
) -> None:
    """To the bit, as a zero changes no number."""
    rng = generator("labels", *shape)
    r = torch.softmax(torch.randn(shape, generator=rng), dim)
    labels = torch.randint(shape[dim], r.select(dim, 0).unsqueeze(dim).shape, generator=rng)
    on_gpu = torch.add(r, one_hot(labels, shape[dim], dim), alpha=value)
    assert torch.equal(on_gpu, add_at_labels(r, labels, value, dim))
    assert torch.equal(on_gpu, r.clone().add_(one_hot(labels, shape[dim], dim), alpha=value))
    assert torch.equal(on_gpu, add_at_labels_(r.clone(), labels, value, dim))


@pytest.mark.parametrize("n", [2049, 3074])
def test_rows_that_are_a_few_more_than_whole_chunks(n: int) -> None:
    """Two chunks of 1,024 rows and one row, three and two."""
    X, y, v = drawn(n, WIDTH), drawn(CLASSES, WIDTH), drawn(2, CLASSES, WIDTH)[1]
    check(X, Rows(X, labels_of(n), None), drawn(1, n)[0], y, v)
    close(transposed_product(drawn(n, CLASSES), X), drawn(n, CLASSES).T @ X)


@pytest.mark.parametrize("bad", [-1, 10])
def test_what_is_out_of_range_in_a_later_lane_is_refused(bad: int) -> None:
    X, y, w = drawn(10, WIDTH), drawn(2, CLASSES, WIDTH), torch.ones(2, 3).double()
    right, wrong = torch.tensor([[0, 1, 2], [2, 1, 0]]), torch.tensor([[0, 1, 2], [2, bad, 0]])
    p = torch.full((2, CLASSES, 3), 0.1).double()
    for picked, labels in ((wrong, right), (right, wrong)):
        with pytest.raises(IndexError, match="out of range"):
            loss_gradients(y, X, picked, labels, w)
        with pytest.raises(IndexError, match="out of range"):
            curvatures(y, p, X, picked, labels, w)
