"""Softmax regression's blocked products: against plain ones, as operators, in lanes, on small data.

Sums of up to 50,037 terms in another order: 1e-12 relative in float64.
"""

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
from tasks.models.linear import (
    MANY,
    Trimmed,
    add_at_labels,
    add_at_labels_,
    blocks_of,
    combine_rows,
    lift_gradient,
    logits,
    loss_gradient,
    loss_gradients,
    one_hot,
    residual,
    sample_losses,
    scores,
    softmax,
    transposed_product,
    trim,
)

CLASSES, WIDTH = 10, 12
RULES = ("test_schema", "test_faketensor", "test_autograd_registration")
SIZES = [MANY - 1, MANY, MANY + 37, 7013]  # below the limit; whole blocks; with rows left over
ALONE = 10 * MANY + 37  # a lane alone has finer blocks


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=generator("linear", *shape), dtype=torch.float64)


def margin(n: int, odd: int) -> Tensor:
    """Five of the WIDTH columns are constant, in all rows but the first `odd`."""
    X = drawn(n, WIDTH)
    X[:, 2:7] = torch.tensor([0.0, -0.4, -3.0, 1.0, 0.0]).double()
    X[:odd, 2:7] += drawn(odd, 5).abs() * (torch.arange(5) == torch.arange(odd)[:, None] % 5)
    return X


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("n", [*SIZES, ALONE])
def test_products_are_the_plain_ones(n: int) -> None:
    X, y, r = drawn(n, WIDTH), drawn(CLASSES, WIDTH), drawn(n, CLASSES)
    close(logits(y, X), X @ y.T)
    close(transposed_product(r, X), r.T @ X)
    labels = torch.arange(n) % CLASSES
    z = logits(y, X)
    close(softmax(z), torch.softmax(X @ y.T, 1))
    close(residual(z, labels), torch.softmax(X @ y.T, 1) - F.one_hot(labels, CLASSES))
    close(sample_losses(z, labels), F.cross_entropy(X @ y.T, labels, reduction="none"))
    w, leaf = drawn(1, n)[0], y.clone().requires_grad_()
    loss = (w * F.cross_entropy(X @ leaf.T, labels, reduction="none")).sum()
    close(loss_gradient(y, X, labels, w), torch.autograd.grad(loss, leaf)[0])


def test_few_rows_have_the_bits_of_the_plain_products() -> None:
    X, y, r = drawn(MANY - 1, WIDTH), drawn(CLASSES, WIDTH), drawn(MANY - 1, CLASSES)
    assert torch.equal(logits(y, X), (y @ X.T).T)
    assert torch.equal(transposed_product(r, X), r.T @ X)
    assert torch.equal(softmax(X @ y.T), torch.softmax(X @ y.T, 1))


@pytest.mark.parametrize("odd", [0, 1, 23])
def test_a_margins_columns_are_taken_out(odd: int) -> None:
    """Even rows have them as one constant, odd rows go whole: nothing is lost, to the bit."""
    X = margin(MANY + 37, odd)[torch.randperm(MANY + 37, generator=generator("order"))]
    t = trim(X)
    assert t is not None
    assert t.left.tolist() == [2, 3, 4, 5, 6]
    assert len(t.odd) == odd
    back = lift_gradient(t.features, t)
    back[t.odd] = t.whole
    assert torch.equal(back, X)
    assert torch.equal((t.even == 0).nonzero()[:, 0], t.odd)


def least_work(X: Tensor) -> tuple[list[int], list[int], float]:
    """(the columns, the rows that are odd without them, the share of work left), by trying: the
    rarest columns go first; an even row costs a product with each column kept and with the
    constant, an odd row two with all of them."""
    n, d = X.shape
    away = X.min(0).values != X
    rarest = sorted(range(d), key=away.sum(0).tolist().__getitem__)
    costs = []
    for taken in range(d + 1):
        odd = away[:, rarest[:taken]].any(1)
        costs.append((n * (d - taken + 1) + 2 * d * int(odd.sum()), taken))
    work, taken = min(costs)
    odd = away[:, rarest[:taken]].any(1)
    return sorted(rarest[:taken]), odd.nonzero()[:, 0].tolist(), work / (n * d)


@pytest.mark.parametrize("step", [*range(4, 80, 7), 500])
def test_the_columns_taken_out_leave_the_least_work(step: int) -> None:
    """Columns are away from their least value in 0, step, 2 step, ... rows, in another order."""
    n = MANY + 3
    X = torch.full((n, WIDTH), -0.5).double() - torch.arange(WIDTH)
    order = torch.randperm(WIDTH, generator=generator("columns", step)).tolist()
    for j in range(WIDTH):
        rows = torch.randperm(n, generator=generator("away", step, j))[: j * step]
        X[rows, order[j]] += 1 + drawn(n)[rows].abs()
    left, odd, share = least_work(X)
    t = trim(X)
    if share > 0.9:
        assert t is None
        return
    assert t is not None
    kept = [c for c in range(WIDTH) if c not in left]
    assert (t.left.tolist(), t.kept.tolist(), t.odd.tolist()) == (left, kept, odd)
    assert torch.equal(t.features, torch.cat([X[:, kept], torch.ones(n, 1).double()], 1))
    assert torch.equal(t.whole, X[odd])
    assert t.ground.tolist() == [-0.5 - c for c in left]
    assert torch.tensor(kept + left)[t.places].tolist() == list(range(WIDTH))
    assert (t.even == 0).nonzero()[:, 0].tolist() == odd
    assert set(t.even.tolist()) <= {0.0, 1.0}


@pytest.mark.parametrize("n", [1, 99, 100, 101, 250])
def test_the_operators_on_few_rows(n: int) -> None:
    """Fewer than there are blocks, as many, and some left over."""
    X, y, r = drawn(n, WIDTH), drawn(CLASSES, WIDTH), drawn(CLASSES, n)
    close(scores(y, X), y @ X.T)
    close(combine_rows(r, X), r @ X)


def test_blocks_are_by_the_problem_alone() -> None:
    """Records' bits hang on their number: 1,000 for at most 16 columns of 50,000 rows or more."""
    found = [blocks_of(n, c) for n, c in ((50_000, 16), (49_999, 16), (50_000, 17), (5_000, 1))]
    assert found == [1000, 100, 100, 100]


def test_columns_stay_where_taking_them_out_is_not_worth_it() -> None:
    assert trim(margin(MANY - 1, 0)) is None
    assert trim(drawn(MANY, WIDTH)) is None
    assert trim(margin(MANY, 2000)) is None


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("odd", [0, 23])
def test_trimmed_products_are_the_plain_ones(odd: int, lanes: int) -> None:
    n = MANY + 37
    X, y, r, w = margin(n, odd), drawn(lanes, CLASSES, WIDTH), drawn(lanes, n, CLASSES), drawn(n)
    t, labels = trim(X), torch.randint(CLASSES, (n,), generator=generator("labels"))
    assert t is not None

    def both(of: Trimmed | None) -> tuple[Tensor, ...]:
        def lane(y: Tensor, r: Tensor) -> tuple[Tensor, ...]:
            return (
                logits(y, X, of),
                transposed_product(r, X, of),
                loss_gradient(y, X, labels, w, of),
            )

        return torch.func.vmap(lane)(y, r)

    for found, expected in zip(both(t), both(None), strict=True):
        close(found, expected)


@pytest.mark.parametrize("operator", [scores, combine_rows])
def test_operators_keep_torchs_rules(operator: torch.library.CustomOpDef) -> None:
    """Nothing aliased, shapes known without data, autograd registered, and right twice."""
    X = drawn(103, WIDTH)
    a = drawn(CLASSES, WIDTH if operator is scores else 103)
    for inputs in ((a, X), (a.clone().requires_grad_(), X.clone().requires_grad_())):
        torch.library.opcheck(operator, inputs, test_utils=RULES)
    small = (a[:2].clone().requires_grad_(), X.clone().requires_grad_())
    assert torch.autograd.gradcheck(operator, small)
    assert torch.autograd.gradgradcheck(operator, small)


@pytest.mark.parametrize("lanes", [2, 5])
def test_the_gradients_operator_keeps_torchs_rules(lanes: int) -> None:
    X, y = drawn(103, WIDTH), drawn(lanes, CLASSES, WIDTH)
    labels, w = torch.arange(103)[None] % CLASSES, drawn(lanes, 103)
    torch.library.opcheck(loss_gradients, (y, X, labels, w), test_utils=RULES)


@pytest.mark.parametrize("dims", [(0, None, None), (None, 0, None), (0, 0, 0), (None, None, 0)])
def test_gradients_in_lanes(dims: tuple[int | None, ...]) -> None:
    """Weights, labels and sample weights of each lane, or the same for all; vmap in vmap too."""
    n, lanes = MANY + 37, 3
    X, y = drawn(n, WIDTH), drawn(2, lanes, CLASSES, WIDTH)
    labels = torch.randint(CLASSES, (2, lanes, n), generator=generator("labels"))
    w = drawn(2, lanes, n)

    def gradient(*own: Tensor) -> Tensor:
        return loss_gradient(own[0], X, *own[1:])

    chosen = [t if d == 0 else t[0, 0] for t, d in zip((y, labels, w), dims, strict=True)]
    found = torch.func.vmap(torch.func.vmap(gradient, dims), dims)(*chosen)
    for i in range(2):
        for j in range(lanes):
            own = [t[i, j] if d == 0 else t for t, d in zip(chosen, dims, strict=True)]
            close(found[i, j], gradient(*own))


@pytest.mark.parametrize("features", [None, 0])
@pytest.mark.parametrize("n", SIZES[::2])
def test_lanes_are_their_single_products(n: int, features: int | None) -> None:
    """Weights, sample weights and labels of their own; features shared or their own."""
    lanes = 3
    X = drawn(n, WIDTH) if features is None else drawn(lanes, n, WIDTH)
    y, w = drawn(lanes, CLASSES, WIDTH), drawn(lanes, n)
    labels = torch.randint(CLASSES, (lanes, n), generator=generator("labels"))

    def gradient(y: Tensor, w: Tensor, labels: Tensor, X: Tensor) -> Tensor:
        return transposed_product(residual(logits(y, X), labels) * w[:, None], X)

    found = torch.func.vmap(gradient, (0, 0, 0, features))(y, w, labels, X)
    alone = torch.func.vmap(loss_gradient, (0, features, 0, 0))(y, X, labels, w)
    for lane in range(lanes):
        own = X if features is None else X[lane]
        close(found[lane], gradient(y[lane], w[lane], labels[lane], own))
        close(alone[lane], found[lane])


def test_lanes_read_the_features_once() -> None:
    """Stacked columns: one operator on all of them, with the features as they are."""
    X, y = drawn(MANY, WIDTH), drawn(4, CLASSES, WIDTH)
    traced = make_fx(torch.func.vmap(lambda y: transposed_product(logits(y, X), X)))(y)
    called = [node for node in traced.graph.nodes if "bench" in str(node.target)]
    assert [node.meta["val"].shape[0] for node in called] == [4 * CLASSES, 4 * CLASSES]
    close(traced(y), torch.stack([transposed_product(logits(v, X), X) for v in y]))


@pytest.fixture(params=["full", "trimmed"])
def many(context: Context, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Task:
    """Hyper-cleaning with more rows than MANY, some left over; with a margin or without."""
    n, m = MANY + 37, 60
    X = drawn(n, WIDTH) if request.param == "full" else margin(n, 23)
    part = LabelledImages(X, torch.arange(n) % CLASSES)
    few = LabelledImages(drawn(m, WIDTH), torch.arange(m) % CLASSES)
    split = ImageSplit(part, few, few, few, {})
    monkeypatch.setattr("tasks.hyper_cleaning.load", lambda *_: split)
    images = Images("mnist", n, m, m, m)
    task = hyper_cleaning(context, images, Pretraining(), "stocbio", references=False)
    assert (Draw(task, 0, 0).g().trimmed is None) == (request.param == "full")
    return task


def test_derivatives_of_many_rows_are_autograds(many: Task) -> None:
    """Plain autograd of F.cross_entropy over X y^T is the reference."""
    n = MANY + 37
    x, y = drawn(n).requires_grad_(), (0.3 * drawn(CLASSES, WIDTH)).requires_grad_()
    v = drawn(1, CLASSES, WIDTH)[0]
    o, zeta = Oracle(many), Draw(many, 0, 0).g()
    losses = F.cross_entropy(zeta.features @ y.T, zeta.labels, reduction="none")
    g = (torch.sigmoid(x) * losses).mean() + 0.001 * y.square().sum()
    g_x, g_y = torch.autograd.grad(g, (x, y), create_graph=True)
    mixed, curved = torch.autograd.grad((g_y * v).sum(), (x, y))
    x, y = x.detach(), y.detach()
    at, products = o.linearise_g_y(x, y, zeta)
    pairs = {
        "g": (o.g(x, y, zeta), g),
        "g_x": (o.grad_g(x, y, zeta)[0], g_x),
        "g_y": (o.grad_g(x, y, zeta)[1], g_y),
        "g_y alone": (o.g_y(x, y, zeta), g_y),
        "slope": (at, g_y),
        "mixed": (products.xy(v), mixed),
        "hessian": (products.yy(v), curved),
    }
    for name, (found, expected) in pairs.items():
        error = (found - expected).norm() / expected.norm()
        assert error < 1e-12, name


def test_the_losses_own_autograd_goes_through_the_operators(many: Task) -> None:
    """Twice: who differentiates the losses by himself gets the closed forms' values."""
    x, y = drawn(MANY + 37).requires_grad_(), drawn(CLASSES, WIDTH).requires_grad_()
    v = drawn(1, CLASSES, WIDTH)[0]
    zeta = Draw(many, 0, 0).g()
    assert many.lower is not None
    g_x, g_y = torch.autograd.grad(many.lower(x, y, zeta), (x, y), create_graph=True)
    mixed, curved = torch.autograd.grad((g_y * v).sum(), (x, y))
    o = Oracle(many)
    found = (*o.grad_g(x.detach(), y.detach(), zeta), *o.products(x, y, zeta).both(v))
    for a, b in zip(found, (g_x, g_y, mixed, curved)):
        close(a.detach(), b.detach())


def test_a_whole_gradient_in_lanes(many: Task) -> None:
    """The task's closed forms under vmap: x and y of every lane, the data shared."""
    x, y, v = drawn(2, MANY + 37), drawn(2, CLASSES, WIDTH), drawn(3, CLASSES, WIDTH)[:2]
    zeta = Draw(many, 0, 0).g()

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
