"""Seconds per outer step: ours and peers', one run, the same data.

    uv run --group peers python scripts/speed.py [--boat]
    uv run --group peers python scripts/speed.py --problem newsgroups
    uv run python scripts/speed.py --problem gradient [--images mnist]
    uv run python scripts/speed.py --few-shot      (see speed_few_shot.py)
    uv run python scripts/speed.py --continual     (see speed_continual.py)

Softmax regression, full batch, float32, 2 threads, T = 10 inner steps, K = 10 products for the
linear system. Before a pair is timed its hypergradients (for BOME: both directions of the step)
must agree; then repeats are interleaved and the median is printed.

hyper_cleaning: made-up images of MNIST's shape, ink everywhere, or with --images MNIST's or
Fashion-MNIST's own; the peers differentiate `lower_loss` and `upper_loss` below, ours is the task
of tasks/hyper_cleaning.py. BOAT wants an older numpy: with --boat it gets an environment of its
own.
newsgroups: the real 20 Newsgroups, 5,657 x 130,107 for training, and the task of
tasks/newsgroups.py; its peers differentiate losses of COO matrices, as both released codes do.
gradient: the gradient of hyper_cleaning's g in y alone, of one lane and of LANES of them, each with
weights x and y of its own: ours under torch.func.vmap against plain autograd, one after the other.

With --json the lines are written as a record; those in results/speed/ are the README's table.
"""

# This file also runs inside BOAT's environment (--worker), which has torch but neither bench nor
# the other peers: those are imported where they are used.
import argparse
import gc
import importlib.metadata
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal
from unittest import mock

import torch
import torch.nn.functional as F
from peer_environment import Unavailable, environment
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

CLASSES, PIXELS = 10, 784
THREADS = 2
T = 10  # inner steps
K = 10  # iterations of CG, terms of the Neumann series after the first
INNER_LR = 0.05  # also the Neumann series' eta: BOAT's is the inner step size
NEWS_LR = 1.0  # the same on 20 Newsgroups
OUTER_LR = 100.0
LOWER_LR = 0.01  # BOME's on y
ETA = 0.5  # BOME's
C = 0.01  # g has c |y|^2: well conditioned, so that float32 can agree to TOLERANCE
LANES = 6
TOLERANCE = 1e-4  # of |a - b| / |b|
BOME_LOOP = f"1 grad_f, {T + 2} grad_g: the first inner step's gradient again for q"
BOAT = "boat-torch==1.1.*"
PRODUCTS = dict.fromkeys(("mm", "bmm", "addmm", "baddbmm", "linear", "scores", "gathered"), 1)
PRODUCTS["slopes"] = 2  # there and back
PEERS = "uv run --group peers python scripts/speed.py"


@dataclass(frozen=True)
class Rows:
    """features [n, 784] float32, labels [n] int64."""

    features: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Problem:
    """The data and the point (x [n], y [10, 784]) that every outer step starts from."""

    train: Rows
    val: Rows
    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class Trial:
    """One outer step: its direction (hypergradient, or BOME's two, flat), its length in seconds.

    passes: matrix products with the training features, the unit of cost here; None: not counted.
    """

    direction: Tensor
    seconds: float
    passes: int | None = None


@dataclass(frozen=True)
class Contender:
    """run(count) makes one outer step from the problem's point; count: count its passes too."""

    method: str
    name: str
    run: Callable[[bool], Trial]
    note: str


@dataclass(frozen=True)
class Line:
    """A line of the table; times in seconds, ratio = median / ours, error relative to ours."""

    method: str
    name: str
    error: float | None
    passes: int | None
    seconds: list[float]
    ratio: float | None
    note: str


Loss = Callable[[Tensor, Tensor], Tensor]  # (x, y) -> scalar, with the data inside


def lower_loss(x: Tensor, y: Tensor, train: Rows) -> Tensor:
    """g(x, y), a scalar, as tasks/hyper_cleaning.py has it."""
    losses = F.cross_entropy(train.features @ y.T, train.labels, reduction="none")
    return (torch.sigmoid(x) * losses).mean() + C * y.square().sum()


def upper_loss(y: Tensor, val: Rows) -> Tensor:
    """f(x, y), a scalar; it does not depend on x."""
    return F.cross_entropy(val.features @ y.T, val.labels)


def image_problem(
    name: Literal["made-up", "mnist", "fashion_mnist"], rows: int, root: Path, device: str = "cpu"
) -> Problem:
    """So many training images and a tenth as many for f, half of the training labels redrawn.

    made-up: sparse pixels in [0, 1], labels of a random linear model. Raises BadSetting.
    """
    rng = torch.Generator().manual_seed(0)
    sizes = rows, max(rows // 10, CLASSES)
    if name == "made-up":
        teacher = torch.randn(CLASSES, PIXELS, generator=rng)

        def part(n: int) -> Rows:
            pixels = torch.rand(n, PIXELS, generator=rng)
            pixels = (pixels - 0.8).clamp(min=0) * 5  # a fifth is not black, as in MNIST
            labels = ((pixels - pixels.mean()) @ teacher.T).argmax(1)
            return Rows(pixels.to(device), labels.to(device))

        train, val = (part(n) for n in sizes)
    else:
        from bench.core.task import Context
        from tasks.data.images import Images, load

        split = load(Images(name, *sizes, 1, 1), Context(data_root=root), "hyper_cleaning", 0)
        train, val = (Rows(p.features.to(device), p.labels.to(device)) for p in split[:2])
    noisy = torch.rand(rows, generator=rng) < 0.5
    redrawn = torch.randint(CLASSES, (rows,), generator=rng)
    return Problem(
        Rows(train.features, torch.where(noisy.to(device), redrawn.to(device), train.labels)),
        val,
        torch.randn(rows, generator=rng).to(device),
        (torch.randn(CLASSES, PIXELS, generator=rng) / PIXELS**0.5).to(device),
    )


class Passes(TorchDispatchMode):
    """Counts matrix products one factor of which is as large as the training features."""

    def __init__(self, problem: Problem):
        super().__init__()
        self.count, self.least = 0, 0.6 * problem.train.features.numel()  # ours may be trimmed

    def __torch_dispatch__(
        self, op: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(isinstance(t, Tensor) and t.numel() >= self.least for t in args):
            self.count += PRODUCTS.get(op.overloadpacket.__name__, 0)
        return op(*args, **(kwargs or {}))


def now(x: Tensor) -> float:
    """Seconds, when all that x's device was asked for is done."""
    if x.is_cuda:
        torch.cuda.synchronize(x.device)
    return time.perf_counter()


def here(p: Problem, step: Callable[[], Tensor]) -> Callable[[bool], Trial]:
    """A step in this process as Contender.run wants it. Counting is slow: it is not for timing."""

    def run(count: bool) -> Trial:
        with ExitStack() as stack:
            mode = stack.enter_context(Passes(p)) if count else None
            start = now(p.x)
            direction = step()
            seconds = now(p.x) - start
        return Trial(direction.detach().cpu(), seconds, mode.count if mode else None)

    return run


# Ours


def our_task(p: Problem) -> Any:
    """tasks/hyper_cleaning.py on these rows in place of a data set's."""
    from bench.core.task import Context
    from tasks.data.images import Images, Part, Split
    from tasks.hyper_cleaning import Pretraining, hyper_cleaning

    train, val = (Part(r.features.cpu(), r.labels.cpu()) for r in (p.train, p.val))
    images = Images("mnist", len(train.labels), len(val.labels), len(val.labels), len(val.labels))
    with mock.patch("tasks.hyper_cleaning.load", return_value=Split(train, val, val, val, {})):
        context = Context(device=p.x.device)
        return hyper_cleaning(context, images, Pretraining(), "stocbio", corruption=0.0, c=C)


def our_contenders(p: Problem) -> list[Contender]:
    """The algorithms of this repository on its own task, through the oracle."""
    from algorithms.bilevel.aid import aid_cg, aid_neumann
    from algorithms.bilevel.bome import bome
    from algorithms.bilevel.itd import itd

    task = our_task(p)
    outer = remembering(OUTER_LR)
    algorithms = {
        "AID-CG": aid_cg(outer, INNER_LR, T, K),
        "AID-Neumann": aid_neumann(outer, INNER_LR, INNER_LR, T, K),
        "ITD": itd(outer, INNER_LR, T),
        "BOME": bome(outer, remembering(LOWER_LR), INNER_LR, T, ETA),
    }
    return [
        Contender(method, "ours", here(p, step), note)
        for method, algorithm in algorithms.items()
        for step, note in [our_step(task, algorithm, p.x, p.y)]
    ]


def remembering(lr: float) -> Any:
    """Gradient descent whose memory is the last direction: what the pairs are compared by."""
    from bench.numerics.descent import Descent

    return Descent(torch.zeros_like, lambda p, d, m: (p - lr * d, d))


def our_step(task: Any, algorithm: Any, x: Tensor, y: Tensor) -> tuple[Callable[[], Tensor], str]:
    """A step of this algorithm from (x, y), and what it counts."""
    from bench.core.draw import Draw
    from bench.core.oracle import Oracle

    state = algorithm.init(x, y)

    def step() -> Tensor:
        new, _ = algorithm.step(Oracle(task), state, Draw(task, 0, 0))
        two = hasattr(new, "lower")  # BOME steps on y as well
        return torch.cat([new.outer, new.lower.flatten()]) if two else new.outer

    oracle = Oracle(task)
    algorithm.step(oracle, state, Draw(task, 0, 0))
    return step, ", ".join(f"{n} {what}" for what, n in sorted(oracle.calls.items()))


def gradient_contenders(p: Problem) -> list[Contender]:
    """g_y of one lane and of LANES: ours, and plain autograd lane after lane."""
    from bench.core.draw import Draw
    from bench.core.oracle import Oracle

    task = our_task(p)
    zeta = Draw(task, 0, 0).g()
    rng = torch.Generator().manual_seed(1)
    xs = torch.randn(LANES, len(p.x), generator=rng).to(p.x)
    ys = (torch.randn(LANES, *p.y.shape, generator=rng) / PIXELS**0.5).to(p.y)

    def one(x: Tensor, y: Tensor) -> Tensor:
        return Oracle(task).g_y(x, y, zeta)

    def plain(x: Tensor, y: Tensor) -> Tensor:
        y = y.clone().requires_grad_()
        return torch.autograd.grad(lower_loss(x, y, p.train), y)[0]

    def loop() -> Tensor:
        return torch.stack([plain(x, y) for x, y in zip(xs, ys)])

    lanes, each = f"{LANES} lanes", f"{LANES} grad_g"
    return [
        Contender("1 lane", "ours", here(p, lambda: one(xs[0], ys[0])), "1 grad_g"),
        Contender("1 lane", "autograd", here(p, lambda: plain(xs[0], ys[0])), "1 grad_g"),
        Contender(lanes, "ours", here(p, lambda: torch.func.vmap(one)(xs, ys)), f"{each} at once"),
        Contender(lanes, "autograd", here(p, loop), f"{each}, one after the other"),
    ]


# Peers in this process


def bome_loop(
    x_0: Tensor, y_0: Tensor, lower: Loss, upper: Loss, inner_lr: float
) -> Callable[[], Tensor]:
    """A step of BOME written down directly with torch.autograd and torch.optim."""

    def step() -> Tensor:
        x, y, y_T = (t.clone().requires_grad_() for t in (x_0, y_0, y_0))
        inner = torch.optim.SGD([y_T], lr=inner_lr)
        outer = torch.optim.SGD([{"params": [x], "lr": OUTER_LR}, {"params": [y], "lr": LOWER_LR}])
        for _ in range(T):
            inner.zero_grad()
            lower(x_0, y_T).backward()  # x_0: no gradient in x is asked for
            inner.step()
        f = upper(x, y)
        f_x, f_y = torch.autograd.grad(f, (x, y), allow_unused=True, materialize_grads=True)
        q = lower(x, y) - lower(x, y_T.detach())
        q_x, q_y = torch.autograd.grad(q, (x, y))
        with torch.no_grad():
            fq, qq = (f_x * q_x).sum() + (f_y * q_y).sum(), q_x.square().sum() + q_y.square().sum()
            lam = (ETA - fq / qq).clamp(min=0)
            x.grad, y.grad = f_x + lam * q_x, f_y + lam * q_y
        outer.step()
        return torch.cat([x.grad, y.grad.flatten()])

    return step


def loop_contenders(p: Problem) -> list[Contender]:
    """BOME's loop on the losses of this problem."""
    step = bome_loop(
        p.x,
        p.y,
        lambda x, y: lower_loss(x, y, p.train),
        lambda x, y: upper_loss(y, p.val),
        INNER_LR,
    )
    return [Contender("BOME", "torch.autograd loop", here(p, step), BOME_LOOP)]


def torchopt_implicit(
    x_0: Tensor, y_0: Tensor, lower: Loss, upper: Loss, inner_lr: float, linear_solver: Any
) -> Callable[[], Tensor]:
    """A step by TorchOpt's implicit differentiation."""
    import torchopt

    warnings.filterwarnings("ignore", "We've integrated functorch", FutureWarning)

    def g(y: Tensor, x: Tensor) -> Tensor:
        return lower(x, y)

    @torchopt.diff.implicit.custom_root(
        torch.func.grad(g), argnums=1, has_aux=False, solve=linear_solver
    )
    def solution(y: Tensor, x: Tensor) -> Tensor:
        y = y.clone().requires_grad_()
        inner = torch.optim.SGD([y], lr=inner_lr)
        for _ in range(T):
            with torch.enable_grad():
                (y.grad,) = torch.autograd.grad(g(y, x), y)
            inner.step()
        return y.detach()

    def step() -> Tensor:
        x = x_0.clone().requires_grad_()
        outer = torch.optim.SGD([x], lr=OUTER_LR)
        upper(x, solution(y_0, x)).backward()
        outer.step()
        return x.grad

    return step


def torchopt_contenders(p: Problem) -> list[Contender]:
    """TorchOpt: implicit differentiation and, for ITD, its differentiable SGD."""
    import torchopt

    def implicit(linear_solver: Any) -> Callable[[], Tensor]:
        return torchopt_implicit(
            p.x,
            p.y,
            lambda x, y: lower_loss(x, y, p.train),
            lambda x, y: upper_loss(y, p.val),
            INNER_LR,
            linear_solver,
        )

    def unrolled() -> Tensor:
        x = p.x.clone().requires_grad_()
        model, outer = Linear(p.y), torch.optim.SGD([x], lr=OUTER_LR)
        inner = torchopt.MetaSGD(model, lr=INNER_LR)
        for _ in range(T):
            inner.step(lower_loss(x, model.y, p.train))
        upper_loss(model.y, p.val).backward(inputs=[x])
        outer.step()
        return x.grad

    name = f"TorchOpt {version('torchopt')}"
    cg = torchopt.linear_solve.solve_cg(maxiter=K, rtol=0.0)  # rtol 0: all K iterations
    series = torchopt.linear_solve.solve_inv(ns=True, maxiter=K, alpha=INNER_LR)
    linearised = "linearises twice, each a grad_g more"
    return [
        Contender(
            "AID-CG",
            name,
            here(p, implicit(cg)),
            f"1 grad_f, {T} grad_g, {K + 1} hvp_g (one with zero), 1 jvp_g; {linearised}",
        ),
        Contender(
            "AID-Neumann",
            name,
            here(p, implicit(series)),
            f"1 grad_f, {T} grad_g, {K} hvp_g, 1 jvp_g; {linearised}",
        ),
        Contender(
            "ITD",
            f"{name} MetaSGD",
            here(p, unrolled),
            f"1 grad_f, {T} grad_g, {T - 1} hvp_g, {T} jvp_g",
        ),
    ]


def higher_contenders(p: Problem) -> list[Contender]:
    """higher: ITD through its differentiable SGD."""
    import higher

    def step() -> Tensor:
        x = p.x.clone().requires_grad_()
        model, outer = Linear(p.y), torch.optim.SGD([x], lr=OUTER_LR)
        inner = torch.optim.SGD(model.parameters(), lr=INNER_LR)
        with higher.innerloop_ctx(model, inner) as (functional, differentiable):
            for _ in range(T):
                differentiable.step(lower_loss(x, functional.y, p.train))
            (x.grad,) = torch.autograd.grad(upper_loss(functional.y, p.val), x)
        outer.step()
        return x.grad

    note = f"1 grad_f, {T} grad_g, {T - 1} hvp_g, {T} jvp_g"
    return [Contender("ITD", f"higher {version('higher')}", here(p, step), note)]


class Linear(nn.Module):
    """A tensor as a module's one parameter, which is how the peers want their variables."""

    def __init__(self, y: Tensor):
        super().__init__()
        self.y = nn.Parameter(y.clone())


def version(package: str) -> str:
    return importlib.metadata.version(package)


# 20 Newsgroups, in COO matrices


@dataclass(frozen=True)
class News:
    """The task, its data as COO matrices with labels, and the point of every step."""

    task: Any
    train: tuple[Tensor, Tensor]
    val: tuple[Tensor, Tensor]
    x: Tensor
    y: Tensor

    def lower(self, x: Tensor, y: Tensor) -> Tensor:
        """g(x, y) as hpo/l2reg.py and l2reg_on_twentynews.py have it."""
        loss = F.cross_entropy(self.train[0] @ y, self.train[1])
        return loss + 0.5 * (y.square() * x[:, None].exp()).mean()

    def upper(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.val[0] @ y, self.val[1])


def news(root: Path) -> News:
    """Regularised as strongly as C |y|^2, for the same reason. Raises BadSetting."""
    from bench.core.draw import Draw, generator
    from bench.core.task import Context
    from tasks.newsgroups import Pretraining, newsgroups

    start = math.log(2 * C * 20 * 130_107)
    task = newsgroups(
        Context(data_root=root), Pretraining(steps=0), regulariser="code", start=start
    )
    draw = Draw(task, 0, 0)

    def coo(batch: Any) -> tuple[Tensor, Tensor]:
        offsets, columns, values = batch.part.features.rows
        n, p = len(offsets) - 1, len(batch.part.features.columns.offsets) - 1
        rows = torch.repeat_interleave(torch.arange(n), offsets.diff())
        places = torch.stack([rows, columns.long()])
        matrix = torch.sparse_coo_tensor(places, values, (n, p), check_invariants=False)
        return matrix.coalesce(), batch.part.labels

    return News(task, coo(draw.g()), coo(draw.f()), *task.init(generator()))


def timed(step: Callable[[], Tensor]) -> Callable[[bool], Trial]:
    """As `here`, without counting passes."""

    def run(count: bool) -> Trial:
        start = time.perf_counter()
        direction = step()
        return Trial(direction.detach(), time.perf_counter() - start)

    return run


def news_contenders(p: News) -> list[Contender]:
    """A gradient of g, a step of BOME, one of AID-CG: ours and in COO matrices."""
    from algorithms.bilevel.aid import aid_cg
    from algorithms.bilevel.bome import bome
    from bench.core.draw import Draw
    from bench.core.oracle import Oracle
    from bench.numerics.solve import cg

    draw = Draw(p.task, 0, 0)

    def gradient() -> Tensor:
        y = p.y.clone().requires_grad_()
        return torch.autograd.grad(p.lower(p.x, y), y)[0]

    def implicit() -> Tensor:
        x, y = p.x.clone().requires_grad_(), p.y
        for _ in range(T):
            y = y.detach().requires_grad_()
            y = y - NEWS_LR * torch.autograd.grad(p.lower(p.x, y), y)[0]
        y = y.detach().requires_grad_()
        (f_y,) = torch.autograd.grad(p.upper(x, y), y)
        (g_y,) = torch.autograd.grad(p.lower(x, y), y, create_graph=True)
        v = cg(lambda v: torch.autograd.grad(g_y, y, v, retain_graph=True)[0], f_y, K)
        return -torch.autograd.grad(g_y, x, v)[0]

    outer = remembering(OUTER_LR)
    own = {
        "BOME": bome(outer, remembering(LOWER_LR), NEWS_LR, T, ETA),
        "AID-CG": aid_cg(outer, NEWS_LR, T, K),
    }
    found = [
        Contender(
            "grad g", "ours", timed(lambda: Oracle(p.task).g_y(p.x, p.y, draw.g())), "1 grad_g"
        ),
        Contender("grad g", "COO autograd", timed(gradient), "1 grad_g"),
    ]
    for method, algorithm in own.items():
        step, note = our_step(p.task, algorithm, p.x, p.y)
        found.append(Contender(method, "ours", timed(step), note))
    loop = bome_loop(p.x, p.y, p.lower, p.upper, NEWS_LR)
    note = f"1 grad_f, {T} grad_g, {K} hvp_g, 1 jvp_g; linearises once, a grad_g more"
    return [
        *found,
        Contender("BOME", "COO autograd", timed(loop), BOME_LOOP),
        Contender("AID-CG", "COO autograd", timed(implicit), note),
    ]


def news_torchopt(p: News) -> list[Contender]:
    """TorchOpt's AID-CG on the COO losses."""
    import torchopt

    solver = torchopt.linear_solve.solve_cg(maxiter=K, rtol=0.0)
    step = torchopt_implicit(p.x, p.y, p.lower, p.upper, NEWS_LR, solver)
    note = f"1 grad_f, {T} grad_g, {K + 1} hvp_g (one with zero), 1 jvp_g; linearises twice"
    return [Contender("AID-CG", f"TorchOpt {version('torchopt')}", timed(step), note)]


# BOAT, in a process of its own


@contextmanager
def boat_contenders(p: Problem) -> Iterator[list[Contender]]:
    """BOAT's contenders; a worker process in BOAT's environment runs their steps one by one."""
    python = environment("BOAT", BOAT, "numpy <= 1.26")
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "problem.pt"
        torch.save([p.train.features, p.train.labels, p.val.features, p.val.labels, p.x, p.y], data)
        with (
            (Path(folder) / "stderr").open("w+") as stderr,
            subprocess.Popen(
                [python, __file__, "--worker", folder],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            ) as worker,
        ):

            def hang_up() -> None:
                assert worker.stdin is not None
                with suppress(OSError):
                    worker.stdin.close()  # the worker's loop ends with its input
                worker.wait()

            def ask(method: str, count: bool) -> dict[str, Any]:
                assert worker.stdin is not None
                assert worker.stdout is not None
                try:
                    print(json.dumps([method, count]), file=worker.stdin, flush=True)
                    return json.loads(worker.stdout.readline())
                except (OSError, ValueError):  # it has died: its last words say why
                    hang_up()
                    stderr.seek(0)
                    said = stderr.read().strip().splitlines() or ["nothing said"]
                    raise Unavailable(f"BOAT's process ended: {said[-1]}") from None

            def contender(method: str, note: str) -> Contender:
                def run(count: bool) -> Trial:
                    answer = ask(method, count)
                    return Trial(
                        torch.tensor(answer["direction"]), answer["seconds"], answer["passes"]
                    )

                return Contender(method, name, run, note)

            try:
                name = f"BOAT {ask('version', False)['version']}"
                common = f"1 grad_f, {T} grad_g"
                log = "values of f and g for its log"
                once = f"{K} hvp_g, 1 jvp_g; linearises once, a grad_g more; {log}"
                yield [
                    contender("AID-CG", f"{common}, {once}"),
                    contender("AID-Neumann", f"{common}, {once}"),
                    contender("ITD", f"{common}, {T - 1} hvp_g, {T} jvp_g; {log}"),
                ]
            finally:
                hang_up()


def worker(folder: Path) -> None:
    """Answers [method, count] lines on stdin with the trial as a line of JSON on stdout."""
    # BOAT prints and torch warns: the answers get a stream of their own
    answers, sys.stdout = sys.stdout, sys.stderr
    train_z, train_l, val_z, val_l, x, y = torch.load(folder / "problem.pt", weights_only=True)
    p = Problem(Rows(train_z, train_l), Rows(val_z, val_l), x, y)
    problems: dict[str, Callable[[bool], Trial]] = {}
    for line in sys.stdin:
        method, count = json.loads(line)
        if method == "version":
            print(json.dumps({"version": version("boat-torch")}), file=answers, flush=True)
            continue
        if method not in problems:
            problems[method] = boat_problem(p, method, folder)
        gc.collect()
        trial = problems[method](count)
        # without counting only the time is wanted
        answer = asdict(trial) | {"direction": trial.direction.tolist() if count else []}
        print(json.dumps(answer), file=answers, flush=True)


def boat_problem(p: Problem, method: str, folder: Path) -> Callable[[bool], Trial]:
    """BOAT's solver of this method: naive gradient descent and CG, Neumann, reverse mode."""
    import boat_torch

    weights, model = Linear(p.x), Linear(p.y)
    config = {
        "fo_op": None,
        "gm_op": ["NGD"],
        "na_op": [{"AID-CG": "CG", "AID-Neumann": "NS", "ITD": "RAD"}[method]],
        "lower_iters": T,
        "CG": {"k": K, "tolerance": 0.0},  # for NS too; 0: all K of them
        "RGT": {"truncate_iter": 0},
        "GDA": {"alpha_init": 0.0, "alpha_decay": 1.0},
        "lower_level_model": model,
        "upper_level_model": weights,
        "lower_level_var": list(model.parameters()),
        "upper_level_var": list(weights.parameters()),
        "lower_level_opt": torch.optim.SGD(model.parameters(), lr=INNER_LR),
        "upper_level_opt": torch.optim.SGD(weights.parameters(), lr=OUTER_LR),
        "accumulate_grad": False,
        "copy_last_param": True,
        "return_grad": False,
        "device": "cpu",
        "loss_log_path": str(folder / f"{method}.json"),
    }
    losses = {
        "lower_level_loss": {"function": f"{__name__}.boat_lower"},
        "upper_level_loss": {"function": f"{__name__}.boat_upper"},
    }
    problem = boat_torch.Problem(config, losses)
    problem.build_ll_solver()
    problem.build_ul_solver()

    def run(count: bool) -> Trial:
        with torch.no_grad():
            weights.y.copy_(p.x)
            model.y.copy_(p.y)
        config["return_grad"] = count  # then it returns the hypergradient in place of stepping
        found: list[Any] = []

        def step() -> Tensor:
            found[:] = problem.run_iter({"rows": p.train}, {"rows": p.val}, current_iter=0)
            return found[0][0] if count else torch.empty(0)

        trial = here(p, step)(count)
        trial = Trial(trial.direction.clone(), trial.seconds, trial.passes)
        weights.zero_grad()
        model.zero_grad()
        return trial

    return run


def boat_lower(
    feed: dict[str, Rows], weights: Linear, model: Linear, params: list[Tensor] | None = None
) -> Tensor:
    """`lower_loss` with the arguments BOAT calls a loss with."""
    return lower_loss(weights.y, params[0] if params else model.y, feed["rows"])


def boat_upper(
    feed: dict[str, Rows], weights: Linear, model: Linear, params: list[Tensor] | None = None
) -> Tensor:
    """`upper_loss` likewise."""
    return upper_loss(params[0] if params else model.y, feed["rows"])


# The comparison


def compared(contenders: list[Contender], repeats: int) -> list[Line]:
    """One method's lines, ours first: checked against ours, then timed turn by turn."""
    first = contenders[0].run(True)
    reference = first.direction.double()
    notes = {c.name: c.note for c in contenders}
    errors: dict[str, float] = {}
    passes: dict[str, int | None] = {}
    times: dict[str, list[float]] = {}

    def tried(c: Contender, count: bool) -> Trial | None:
        try:
            return c.run(count)
        except Exception as error:  # a peer's failure is a line of the table
            reason = " ".join(str(error).split())[:200]
            notes[c.name] = f"failed, {type(error).__name__}: {reason}"
            times.pop(c.name, None)
            return None

    for c in contenders:
        trial = first if c is contenders[0] else tried(c, True)
        if trial is None:
            continue
        apart = trial.direction.double() - reference
        errors[c.name] = float(apart.norm() / reference.norm())
        passes[c.name] = trial.passes
        if errors[c.name] <= TOLERANCE:
            times[c.name] = []
        else:
            notes[c.name] = f"disagrees, not timed; {c.note}"
    for turn in range(1 + repeats):
        for c in [c for c in contenders if c.name in times]:
            gc.collect()  # nobody pays for another's garbage
            trial = tried(c, False)
            if trial is not None and turn > 0:  # the first turn warms up
                times[c.name].append(trial.seconds)

    base = median(times[contenders[0].name])
    lines = []
    for c in contenders:
        taken = times.get(c.name, [])
        ratio = median(taken) / base if taken else None
        error, count = errors.get(c.name), passes.get(c.name)
        lines.append(Line(c.method, c.name, error, count, taken, ratio, notes[c.name]))
    return lines


def show(lines: list[Line]) -> None:
    """The table, in plain text."""
    print(
        f"{'method':<12} {'implementation':<24} {'s/step':>7} {'(min-max)':>15} {'ratio':>6}"
        f" {'passes':>6} {'error':>8}  note"
    )
    for line in lines:
        middle, spread, ratio = "-", "", "-"
        if line.seconds:
            middle = f"{median(line.seconds):.3f}"
            spread = f"({min(line.seconds):.3f}-{max(line.seconds):.3f})"
            ratio = f"{line.ratio:.2f}"
        passes = "-" if line.passes is None else str(line.passes)
        error = "-" if line.error is None else f"{line.error:.1e}"
        print(
            f"{line.method:<12} {line.name:<24} {middle:>7} {spread:>15} {ratio:>6}"
            f" {passes:>6} {error:>8}  {line.note}"
        )
    print("ratio: time / ours (> 1: ours is faster); passes: products with the training features;")
    print(f"error: |direction - ours| / |ours|, at most {TOLERANCE:g} for a pair to be timed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    problems = ("hyper_cleaning", "newsgroups", "gradient")
    parser.add_argument("--problem", choices=problems, default=problems[0])
    parser.add_argument("--repeats", type=int, default=7, help="timed steps each")
    parser.add_argument("--rows", type=int, default=50_000, help="training rows (hyper_cleaning)")
    default = os.environ.get("BENCH_DATA", "~/.cache/bilevel-bench")
    parser.add_argument("--data", default=default, help="data root (newsgroups, --images)")
    parser.add_argument(
        "--images",
        choices=("made-up", "mnist", "fashion_mnist"),
        default="made-up",
        help="hyper_cleaning, gradient",
    )
    parser.add_argument(
        "--boat",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="compare with BOAT as well; downloads it, and a torch, into the user's cache",
    )
    parser.add_argument(
        "--few-shot",
        action="store_true",
        help="episodes together or in a loop; memory",
    )
    parser.add_argument(
        "--continual",
        action="store_true",
        help="experience replay on a stream of tasks",
    )
    parser.add_argument(
        "--avalanche",
        action="store_true",
        help="with --continual: compare with Avalanche as well; downloads it likewise",
    )
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="hyper_cleaning, gradient"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the lines here as well")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(THREADS)
    if arguments.worker is not None:
        worker(arguments.worker)
        return
    if arguments.repeats < 1 or arguments.rows < 1:
        parser.error("--repeats and --rows: write at least 1")
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch finds no CUDA device here; write cpu")
    if arguments.device == "cuda" and (arguments.boat or arguments.problem == "newsgroups"):
        parser.error("--device cuda: for hyper_cleaning and gradient, without BOAT")
    if arguments.few_shot:
        import speed_few_shot

        speed_few_shot.report(arguments.repeats, arguments.json)
        return
    if arguments.continual:
        import speed_continual

        speed_continual.report(arguments.repeats, arguments.json, arguments.avalanche)
        return

    from bench.core.settings import BadSetting

    load, root = os.getloadavg()[0], Path(arguments.data).expanduser()
    try:
        problem: Any = (
            news(root)
            if arguments.problem == "newsgroups"
            else image_problem(arguments.images, arguments.rows, root, arguments.device)
        )
    except BadSetting as reason:
        parser.exit(2, f"speed: {reason}\n")
    if arguments.problem == "newsgroups":
        rows, words = problem.train[0].shape
        what, peers = f"{rows} x {words}", [news_torchopt]
        contenders = news_contenders(problem)
    elif arguments.problem == "gradient":
        what, peers = f"{arguments.images}, {arguments.rows} x {PIXELS} x {CLASSES}", []
        contenders = gradient_contenders(problem)
    else:
        what = f"{arguments.images}, {arguments.rows} x {PIXELS}"
        peers = [torchopt_contenders, higher_contenders]
        contenders = our_contenders(problem) + loop_contenders(problem)
    print(
        f"{arguments.problem}, {what} training rows, float32, {arguments.device},"
        f" {THREADS} threads, T={T}, K={K}; torch {torch.__version__}, {platform.machine()},"
        f" load {load:.1f}"
    )
    if load > 0.5:
        print("the machine was busy just now: if it still is, times can be several fold too long")
    for peer in peers:
        try:
            contenders += peer(problem)
        except ImportError as error:
            print(f"without a peer, {error}: {PEERS}")
    with ExitStack() as stack:
        if arguments.boat and arguments.problem == "hyper_cleaning":
            try:
                contenders += stack.enter_context(boat_contenders(problem))
            except Unavailable as reason:
                print(f"without BOAT: {reason}")
        elif arguments.problem == "hyper_cleaning":
            print(f"without BOAT, which needs an environment of its own: {PEERS} --boat")
        methods = dict.fromkeys(c.method for c in contenders)
        lines: list[Line] = []
        for method in methods:
            lines += compared([c for c in contenders if c.method == method], arguments.repeats)
    show(lines)
    if arguments.json:
        import speed_record

        titles = {
            "hyper_cleaning": "Outer steps on hyper-cleaning",
            "newsgroups": "Outer steps on 20 Newsgroups",
            "gradient": "The gradient of hyper-cleaning's lower loss",
        }
        speed_record.write(
            arguments.json,
            f"{titles[arguments.problem]}, {what}, float32",
            [asdict(line) for line in lines],
            device=arguments.device,
            packages="--group peers" if peers else "",
            load=load,
        )


if __name__ == "__main__":
    main()
