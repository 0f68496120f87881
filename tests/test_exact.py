"""The exact objective against closed forms and scikit-learn, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from bench.core import exact
from bench.core.draw import generator
from bench.core.exact import TOLERANCE, measured_exactly, scale_of, solve_lower_level
from bench.core.settings import BadSetting
from bench.core.task import Context, InnerLoop, Selection, Set, Task
from tasks import newsgroups
from tasks.data.images import Images
from tasks.hyper_cleaning import Pretraining, hyper_cleaning
from tasks.logistic import logistic
from tasks.online_quadratic import online_quadratic
from tasks.quadratic import quadratic
from tasks.regularised_logistic import regularised_logistic

DOUBLE = Context(dtype=torch.float64)


@pytest.mark.parametrize(
    ("task", "spread"),
    [
        (quadratic(DOUBLE, p=5, q=10, condition=10.0), 1.0),
        (quadratic(DOUBLE, p=5, q=10, condition=1000.0), 0.01),
        (logistic(DOUBLE, condition=1000.0, curvature=0.001), 3.0),
        (regularised_logistic(DOUBLE), 1.5),
    ],
    ids=["quadratic", "far from round", "logistic", "regularised"],
)
def test_the_objective_is_that_of_closed_forms_and_newton(task: Task, spread: float) -> None:
    """Both forget the y that they are given. The gradient is a thousandth of what it was, which the
    condition number may make a larger share of the objective."""
    exact = measured_exactly(task)
    x, y = task.init(generator("start"))
    for number in range(3):
        x = x + spread * torch.randn(x.shape, generator=generator(number), dtype=x.dtype)
        truth = task.evaluate(x, y, 0)["objective"]
        found = exact.evaluate(x, torch.full_like(y, 7.0), 0)
        assert found.keys() == {"objective"} == {exact.metric}
        torch.testing.assert_close(found["objective"], truth, rtol=0.02, atol=0)
        best = solve_lower_level(task, x, torch.zeros_like(y), whole(task), TOLERANCE, False)
        assert slope(task, x, best) <= TOLERANCE * slope(task, x, torch.zeros_like(y))


def whole(task: Task) -> object:
    return task.data.draw_lower(generator("whole"), 0, None)


def slope(task: Task, x: Tensor, y: Tensor) -> float:
    """The largest entry of the lower loss's gradient in y, by autograd."""
    assert task.lower is not None
    y = y.detach().requires_grad_()
    loss = task.lower(x, y, whole(task))
    return float(torch.autograd.grad(loss, y)[0].abs().max())


def test_hyper_cleaning_is_solved_as_scikit_learn_solves_it() -> None:
    """scikit-learn has sum_i w_i CE_i + |y|^2 / (2 C), which is ours times n with C = 1 / (2 n c).
    Ours stops at a thousandth of the first gradient, theirs at a millionth."""
    images = Images("digits", train=200, val=100, val2=50, test=50)
    task = hyper_cleaning(DOUBLE, images, Pretraining(), weighting="sigmoid", c=1e-4)
    x = 4 * torch.randn(200, generator=generator("x"), dtype=torch.float64)
    rows, val = (
        draw(generator("rows"), 0, None) for draw in (task.data.draw_lower, task.data.draw_upper)
    )
    model = LogisticRegression(C=1 / (2 * 200 * 1e-4), fit_intercept=False, tol=1e-6, max_iter=9999)
    model.fit(rows.features.numpy(), rows.labels.numpy(), sample_weight=torch.sigmoid(x).numpy())
    p = model.predict_proba(val.features.numpy())[np.arange(100), val.labels.numpy()]
    y = torch.zeros(10, rows.features.shape[1], dtype=torch.float64)
    found = measured_exactly(task).evaluate(x, y, 0)["objective"]
    assert float(found) == pytest.approx(-np.log(p).mean(), rel=0.005)
    x_0 = torch.zeros_like(x)
    assert float(found) != pytest.approx(
        float(measured_exactly(task).evaluate(x_0, y, 0)["objective"]), rel=0.05
    )


def ridge() -> Task:
    """A regularisation weight for each pixel of digits, as the league has it."""
    untrained = newsgroups.Pretraining(steps=0, start="zero", best=False)
    return newsgroups.newsgroups(
        DOUBLE, untrained, source="digits", regulariser="code", references=False
    )


@pytest.mark.parametrize(("middle", "spread"), [(-10.0, 0.0), (0.0, 3.0)])
def test_a_weight_for_each_pixel_is_solved_as_scikit_learn_solves_it(
    middle: float, spread: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """mean CE + sum_j w_j |y_j|^2 is 1 / n of scikit-learn's sum CE + |z|^2 / 2, for z_j = y_j
    sqrt(2 n w_j) and pixels divided by that. Where the weights lie apart by a factor of e^12 the
    search ends only if it is scaled."""
    monkeypatch.setattr(exact, "MOST", 600)
    task = ridge()
    x = middle + spread * torch.randn(64, generator=generator("x"), dtype=torch.float64)
    _, y = task.init(generator("start"))
    train, val = (
        draw(generator("rows"), 0, None).part
        for draw in (task.data.draw_lower, task.data.draw_upper)
    )
    features, held = (part.features.times(torch.eye(64).double()).numpy() for part in (train, val))
    root = torch.sqrt(2 * len(features) * torch.exp(x) / (2 * 10 * 64)).numpy()
    model = LogisticRegression(C=1, fit_intercept=False, tol=1e-9, max_iter=999, solver="newton-cg")
    model.fit(features / root, train.labels.numpy())
    chance = model.predict_proba(held / root)[np.arange(len(held)), val.labels.numpy()]
    found = measured_exactly(task, 1e-5, scaled=True).evaluate(x, y, 0)["objective"]
    assert float(found) == pytest.approx(-np.log(chance).mean(), rel=0.005)
    plain = measured_exactly(task, 1e-5).evaluate(x, y, 0)["objective"]
    assert plain.isnan() == (spread == 3)


def test_more_pairs_save_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """318 gradients in place of 217."""
    monkeypatch.setattr(exact, "MOST", 260)
    task = ridge()
    x = 3 * torch.randn(64, generator=generator("x"), dtype=torch.float64)
    _, y = task.init(generator("start"))
    few, more = (
        measured_exactly(task, 1e-5, scaled=True, pairs=pairs).evaluate(x, y, 0)["objective"]
        for pairs in (exact.PAIRS, 40)
    )
    assert few.isnan()
    assert more.isfinite()


def test_the_scale_is_the_root_of_the_diagonal_or_of_its_median() -> None:
    """Signs cancel in a diagonal Hessian, so that the estimate is exact there; a quarter of the
    entries are below the median."""
    curvatures = torch.tensor([[1e-4, 2.0], [5.0, 1e6], [3.0, 3.0]], dtype=torch.float64)
    task = replace(quadratic(DOUBLE), lower=lambda x, y, zeta: (curvatures * y * y).sum() / 2)
    task = replace(task, lower_derivatives=None)
    found = scale_of(task, torch.zeros(2), torch.ones(3, 2, dtype=torch.float64), [0])
    torch.testing.assert_close(found, curvatures.clamp(min=3).rsqrt())


def test_what_cannot_be_solved_is_not_a_number() -> None:
    task = regularised_logistic(DOUBLE)
    x, y = task.init(generator("start"))
    exact = measured_exactly(task)
    assert exact.evaluate(x, y, 0)["objective"].isfinite()
    assert exact.evaluate(x + 1000, y, 0)["objective"].isnan()  # exp(x) overflows
    assert exact.evaluate(x * torch.nan, y, 0)["objective"].isnan()


def test_a_lower_level_that_is_solved_at_the_start_stays_there() -> None:
    task = replace(quadratic(DOUBLE), lower=lambda x, y, zeta: y.square().sum())
    task = replace(task, lower_derivatives=None)
    x, y = task.init(generator("start"))
    best = solve_lower_level(task, x, torch.zeros_like(y), None, TOLERANCE, False)
    assert torch.equal(best, torch.zeros_like(y))


@pytest.mark.parametrize(
    "change",
    [
        {"lower": None},
        {"inner": InnerLoop(carries=False)},
        {"lower_feasible": Set(project=torch.relu)},
        {"lower_feasible": Set(lmo=lambda gradient, accuracy: gradient)},
        {"tally": online_quadratic(DOUBLE).tally},
        {"ledger": object()},
        {"stream": object()},
    ],
    ids=[
        "one level",
        "new problems",
        "a projection",
        "a linear oracle",
        "online",
        "a ledger",
        "a stream",
    ],
)
def test_tasks_whose_lower_level_is_another_are_refused(change: dict[str, object]) -> None:
    measured_exactly(quadratic(DOUBLE))
    with pytest.raises(BadSetting, match="one lower problem for all steps"):
        measured_exactly(replace(quadratic(DOUBLE), **change))  # type: ignore[arg-type]


def test_labels_are_those_of_the_step_and_no_iterate_is_selected() -> None:
    """Labels that are redrawn at each step make another F; a selection reads metrics that are
    gone."""
    images = Images("digits", train=100, val=50, val2=20, test=20)
    task = hyper_cleaning(DOUBLE, images, Pretraining(), weighting="sigmoid", recorrupt=1.0)
    task = replace(task, selection=Selection("test_accuracy", lambda best, row: {}))
    exact = measured_exactly(task)
    x, y = task.init(generator("start"))
    early, late, again = (float(exact.evaluate(x, y, step)["objective"]) for step in (0, 5, 0))
    assert early == again != late
    assert exact.selection is None


def test_an_estimate_below_nought_counts_as_the_median() -> None:
    """What lies beside the diagonal makes such estimates; -9 says nothing of a curvature of 9."""
    curvatures = torch.tensor([1.0, 4.0, -9.0, 2.0, 16.0], dtype=torch.float64)
    task = replace(quadratic(DOUBLE), lower=lambda x, y, zeta: (curvatures * y * y).sum() / 2)
    task = replace(task, lower_derivatives=None)
    found = scale_of(task, torch.zeros(2), torch.ones(5, dtype=torch.float64), [0])
    expected = torch.tensor([4.0, 4.0, 4.0, 4.0, 16.0], dtype=torch.float64).rsqrt()
    torch.testing.assert_close(found, expected)
