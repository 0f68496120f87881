"""The oracle against finite differences and autograd, in double precision."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor

from bench.core.algorithm import Algorithm
from bench.core.draw import Draw, generator
from bench.core.loop import first
from bench.core.oracle import Oracle
from bench.core.settings import BadSetting, build, check_settings
from bench.core.task import Context, Set, Task
from bench.numerics.sets import l2_ball
from tasks.data.images import Images
from tasks.hyper_cleaning import Pretraining, hyper_cleaning
from tasks.quadratic import quadratic
from tasks.toy import toy_coreset
from tests.composed import composed

DIGITS = Images("digits", train=300, val=80, val2=40, test=40)


def slope(f: Callable[[Tensor], Tensor], p: Tensor, v: Tensor, h: float = 1e-5) -> Tensor:
    """Central difference: error h^2 / 6 times the third derivative plus 1e-16 / h."""
    return (f(p + h * v) - f(p - h * v)) / (2 * h)


def close(a: Tensor, b: Tensor, tolerance: float = 1e-8) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def problems(context: Context) -> dict[str, Task]:
    return {
        "quadratic": quadratic(context, noise=0.3),
        "coreset": toy_coreset(context),
        "clip": hyper_cleaning(context, DIGITS, Pretraining()),
        "sigmoid": hyper_cleaning(context, DIGITS, Pretraining(), protocol="stocbio"),
        "means": hyper_cleaning(context, DIGITS, Pretraining(), "stocbio", "code"),
        "aliased": hyper_cleaning(context, DIGITS, Pretraining(), "bome", "code"),
    }


@pytest.mark.parametrize("name", ["quadratic", "coreset", "clip", "sigmoid", "means", "aliased"])
@pytest.mark.parametrize("size", [None, 16])
def test_derivatives_are_those_of_the_losses(name: str, size: int | None, context: Context) -> None:
    task, rng = problems(context)[name], generator("oracle", name)
    x, y = (torch.rand(t.shape, generator=rng, dtype=t.dtype) for t in task.init(rng))
    u, v, w = (torch.randn(t.shape, generator=rng, dtype=t.dtype) for t in (x, y, y))
    draw = Draw(task, 0, 0)
    xi, zeta, o = draw.f(size), draw.g(size), Oracle(task)
    lower = task.lower
    assert lower is not None

    f_x, f_y = o.grad_f(x, y, xi)
    close((f_x * u).sum(), slope(lambda p: task.upper(p, y, xi), x, u))
    close((f_y * v).sum(), slope(lambda p: task.upper(x, p, xi), y, v))
    g_x, g_y = o.grad_g(x, y, zeta)
    close((g_x * u).sum(), slope(lambda p: lower(p, y, zeta), x, u))
    close((g_y * v).sum(), slope(lambda p: lower(x, p, zeta), y, v))
    for a, b in [(f_x, o.f_x(x, y, xi)), (f_y, o.f_y(x, y, xi))]:
        close(a, b, 1e-13)
    for a, b in [(g_x, o.g_x(x, y, zeta)), (g_y, o.g_y(x, y, zeta))]:
        close(a, b, 1e-13)

    Hv, Jv = o.g_yy(x, y, zeta)(v), o.g_xy(x, y, zeta)(v)
    close(Hv, slope(lambda p: o.g_y(x, p, zeta), y, v))
    close((Jv * u).sum(), (slope(lambda p: o.g_y(p, y, zeta), x, u) * v).sum())
    close((Hv * w).sum(), (o.g_yy(x, y, zeta)(w) * v).sum(), 1e-12)  # symmetry
    at, products = o.linearise_g_y(x, y, zeta)
    close(at, g_y, 1e-13)
    for a, b in zip(products.both(v), (Jv, Hv), strict=True):
        close(a, b, 1e-13)


@pytest.mark.parametrize("protocol", ["bome", "stocbio"])
@pytest.mark.parametrize("size", [None, 700])  # 700 draws of 300 rows: some rows come twice
def test_closed_forms_equal_autograd(protocol: str, size: int | None, context: Context) -> None:
    task = hyper_cleaning(context, DIGITS, Pretraining(), protocol=protocol)  # type: ignore[arg-type]
    plain = Oracle(replace(task, upper_derivatives=None, lower_derivatives=None))
    fast, rng = Oracle(task), generator("closed")
    x0, y0 = task.init(rng)
    x = 3 * torch.rand(x0.shape, generator=rng, dtype=x0.dtype) - 1  # beyond [0, 1] on both sides
    y, v = (torch.randn(y0.shape, generator=rng, dtype=y0.dtype) for _ in range(2))
    draw = Draw(task, 0, 0)
    xi, zeta = draw.f(size), draw.g(size)
    for a, b in zip(fast.grad_f(x, y, xi), plain.grad_f(x, y, xi), strict=True):
        close(a, b, 1e-12)
    for a, b in zip(fast.grad_g(x, y, zeta), plain.grad_g(x, y, zeta), strict=True):
        close(a, b, 1e-12)
    for a, b in zip(
        fast.products(x, y, zeta).both(v), plain.products(x, y, zeta).both(v), strict=True
    ):
        close(a, b, 1e-12)


def test_every_question_counts_once_and_weighs_its_batch(task: Task) -> None:
    o, draw = Oracle(task), Draw(task, 0, 0)
    x, y = task.init(generator())
    xi, zeta = draw.f(8), draw.g(None)
    o.f(x, y, xi), o.g(x, y, zeta), o.grad_f(x, y, xi), o.f_x(x, y, xi), o.f_y(x, y, xi)
    o.grad_g(x, y, zeta), o.g_x(x, y, zeta), o.g_y(x, y, zeta)
    products = o.products(x, y, zeta)
    products.yy(y), products.yy(y), products.xy(y), products.both(y)
    o.linearise_g_y(x, y, zeta), o.project(x)
    expected = {"value_f": 1, "value_g": 1, "grad_f": 3, "grad_g": 4, "hvp_g": 3, "jvp_g": 2}
    assert o.calls == expected  # and no projection: everything is feasible
    weight = {key: 8 if key.endswith("_f") else 64 for key in expected}
    assert o.samples == {key: weight[key] * n for key, n in expected.items()}


def test_what_a_task_lacks_is_said(context: Context) -> None:
    task = replace(quadratic(context), lower=None)
    x, y = task.init(generator())
    with pytest.raises(TypeError, match="single level"):
        Oracle(task).g_y(x, y, Draw(task, 0, 0).g())
    with pytest.raises(TypeError, match="single level"):
        Oracle(task).g_yy(x, y, Draw(task, 0, 0).g())
    with pytest.raises(TypeError, match="linear minimisation"):
        Oracle(task).lmo(x)


def test_a_set_without_a_projection_is_not_all_the_space(context: Context) -> None:
    """x would leave it without a word."""
    vertices = Set(lmo=l2_ball(1.0).lmo)
    task = replace(quadratic(context), feasible=vertices, lower_feasible=vertices)
    x, y = task.init(generator())
    o = Oracle(task)
    for project, point in ((o.project, x), (o.project_y, y)):
        with pytest.raises(TypeError, match="no projection"):
            project(point)
    assert not o.calls


@pytest.mark.parametrize(
    ("loss", "line"),
    [
        (lambda x, y, batch: y**2, "returns a tensor of shape (2,), and a loss is one number"),
        (lambda x, y, batch: 3.0, "returns float, of which there is no gradient"),
        (lambda x, y, batch: None, "returns NoneType, of which there is no gradient"),
    ],
)
@pytest.mark.parametrize("level", ["upper", "lower"])
def test_a_loss_that_is_no_number_is_refused(level: str, loss: Any, line: str) -> None:
    x, y = torch.ones(1), torch.ones(2)
    good = Task(
        lambda x, y, batch: (x * y).sum(), lambda rng: (x, y), lambda x, y, step: {"a": x}, "a",
        lambda x, y, batch: (x * y).square().sum(),
    )  # fmt: skip
    o, draw = Oracle(replace(good, **{level: loss})), Draw(good, 0, 0)
    asked = {"upper": (o.f, o.f_y), "lower": (o.g, o.g_y, o.products)}[level]
    for ask in asked:
        with pytest.raises(BadSetting, match=f"^task: {level} {re.escape(line)}"):
            ask(x, y, draw.f())


@pytest.mark.parametrize(
    ("settings", "projects"),
    [
        (("fw",), False),
        (("sfw",), False),
        (("svfw",), False),
        (("sagafw",), False),
        (("ncgs",), False),
        (("ncgs_vr",), False),
        (("projected_gradient",), True),
        (("svrg",), True),
        (("ncgs", "algorithm.prox=exact"), True),
        (("ncgs_vr", "algorithm.prox=exact"), True),
    ],
)
def test_what_projects_does_not_fit_a_set_of_vertices(
    settings: tuple[str, ...], projects: bool, context: Context
) -> None:
    """From the yaml on: on the trees, whose set has a linear minimisation oracle alone."""
    method, *others = settings
    cfg = composed("task=trees", "task.nodes=12", f"algorithm={method}", *others, "logger=local")
    node: Any = OmegaConf.to_container(cfg, resolve=True)
    task = build(check_settings(node["task"], "task", Task, given=("context",)), context)
    algorithm = build(check_settings(node["algorithm"], "algorithm", Algorithm))
    if projects:
        with pytest.raises(BadSetting, match=r"projects, and the set .* has no projection; write"):
            first(task, algorithm, 0)
    else:
        assert first(task, algorithm, 0).step == 0
