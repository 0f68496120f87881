"""Outer steps on hyper-cleaning: ours against a plain loop, TorchOpt, higher, BOAT and JAX.

    uv run --group peers python -m scripts.speed hyper_cleaning [--boat] [--jax] [--images mnist]

Softmax regression, full batch, float32, T = 10 inner steps, K = 10 products for the linear system.
The images are made up in MNIST's shape, with ink everywhere, or with --images MNIST's or
Fashion-MNIST's own. Ours is the task of tasks/hyper_cleaning.py; the peers differentiate the losses
of softmax.py. Before a method is timed, the hypergradients (for BOME: both directions of the step)
must agree to 1e-4; `passes` counts the products with the training features. BOAT wants an older
numpy, and JAX is another framework: with --boat and --jax they get environments of their own, and
their steps are taken there.
"""

import tempfile
from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
from torch import Tensor

from algorithms.bilevel.aid import aid_cg, aid_neumann
from algorithms.bilevel.bome import bome
from algorithms.bilevel.itd import itd
from bench.core.settings import BadSetting
from scripts.speed.harness import (
    Comparison,
    Contender,
    Result,
    Timing,
    check_against_first,
    take_turns,
)
from scripts.speed.images import add_image_options, contender_on, image_problem, our_task
from scripts.speed.jax_peer import add_jax_option, jax_contender, jax_process
from scripts.speed.our_steps import REMEMBERING, our_step
from scripts.speed.peer_steps import (
    BOME_LOOP,
    CG_STEP,
    PEERS,
    SERIES_STEP,
    UNROLLED,
    bome_loop,
    higher_unrolled,
    torchopt_cg,
    torchopt_implicit,
    torchopt_series,
    torchopt_unrolled,
    version,
)  # fmt: skip
from scripts.speed.peers import Unavailable, environment, serving
from scripts.speed.softmax import (
    ETA,
    INNER_LR,
    LOWER_LR,
    OUTER_LR,
    PIXELS,
    TOLERANCE,
    K,
    SoftmaxProblem,
    T,
    lower_loss,
    upper_loss,
)  # fmt: skip

BOAT = "boat-torch==1.1.*"
Entry = tuple[str, Contender]  # the method, and who takes part in it


def our_entries(p: SoftmaxProblem) -> list[Entry]:
    """The algorithms of this repository on its own task, through the oracle."""
    task = our_task(p)
    algorithms = {
        "AID-CG": aid_cg(REMEMBERING, OUTER_LR, INNER_LR, T, K),
        "AID-Neumann": aid_neumann(REMEMBERING, OUTER_LR, INNER_LR, INNER_LR, T, K),
        "ITD": itd(REMEMBERING, OUTER_LR, INNER_LR, T),
        "BOME": bome(REMEMBERING, REMEMBERING, OUTER_LR, LOWER_LR, INNER_LR, T, ETA),
    }
    entries = []
    for method, algorithm in algorithms.items():
        step, note = our_step(task, algorithm, p.x, p.y)
        entries.append((method, contender_on(p, "ours", step, note)))
    return entries


def loop_entries(p: SoftmaxProblem) -> list[Entry]:
    """BOME's loop on the losses of this problem."""

    def lower(x: Tensor, y: Tensor) -> Tensor:
        return lower_loss(x, y, p.train)

    def upper(x: Tensor, y: Tensor) -> Tensor:
        return upper_loss(y, p.val)

    step = bome_loop(p.x, p.y, lower, upper, INNER_LR)
    return [("BOME", contender_on(p, "torch.autograd loop", step, BOME_LOOP))]


def torchopt_entries(p: SoftmaxProblem) -> list[Entry]:
    """TorchOpt's implicit differentiation and, for ITD, its differentiable SGD.

    Raises ImportError where it is not installed.
    """

    def lower(x: Tensor, y: Tensor) -> Tensor:
        return lower_loss(x, y, p.train)

    def upper(x: Tensor, y: Tensor) -> Tensor:
        return upper_loss(y, p.val)

    by_cg = torchopt_implicit(p.x, p.y, lower, upper, INNER_LR, torchopt_cg())
    by_series = torchopt_implicit(p.x, p.y, lower, upper, INNER_LR, torchopt_series())
    name, twice = f"TorchOpt {version('torchopt')}", "linearises twice, each a grad_g more"
    return [
        ("AID-CG", contender_on(p, name, by_cg, f"{CG_STEP}; {twice}")),
        ("AID-Neumann", contender_on(p, name, by_series, f"{SERIES_STEP}; {twice}")),
        ("ITD", contender_on(p, f"{name} MetaSGD", torchopt_unrolled(p), UNROLLED)),
    ]


def higher_entries(p: SoftmaxProblem) -> list[Entry]:
    """ITD through higher; raises ImportError where it is not installed."""
    name = f"higher {version('higher')}"
    return [("ITD", contender_on(p, name, higher_unrolled(p), UNROLLED))]


@contextmanager
def boat_entries(p: SoftmaxProblem) -> Iterator[list[Entry]]:
    """BOAT's solvers, whose steps a process in BOAT's environment takes; raises Unavailable."""
    python = environment("BOAT", BOAT, "numpy <= 1.26")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tensors = [p.train.features, p.train.labels, p.val.features, p.val.labels, p.x, p.y]
        torch.save(tensors, folder / "problem.pt")
        with serving("BOAT", python, "scripts.speed.boat_server", folder) as ask:
            release = ask({"ask": "version"})["version"]

            def entry(method: str, note: str) -> Entry:
                def take_turn() -> float:
                    return float(ask({"ask": "time", "method": method})["seconds"])

                def compute() -> Result:
                    answer = ask({"ask": "direction", "method": method})
                    value = torch.tensor(answer["direction"])
                    return Result(value, {"passes": answer["passes"]})

                return method, Contender(f"BOAT {release}", take_turn, compute, note)

            log = "values of f and g for its log"
            once = f"{SERIES_STEP}; linearises once, a grad_g more; {log}"
            yield [
                entry("AID-CG", once),
                entry("AID-Neumann", once),
                entry("ITD", f"{UNROLLED}; {log}"),
            ]


@contextmanager
def jax_entries(p: SoftmaxProblem) -> Iterator[list[Entry]]:
    """JAX's directions, of a process in an environment of its own; raises Unavailable."""
    with jax_process(p) as (ask, folder):
        methods = ("AID-CG", "AID-Neumann", "ITD", "BOME")
        yield [(method, jax_contender(ask, folder, {"work": method})) for method in methods]


def compare(options: Namespace) -> Timing:
    """A step of AID-CG, AID-Neumann, ITD and BOME; raises BadSetting for data that are missing."""
    if (options.boat or options.jax) and options.device != "cpu":
        raise BadSetting("--boat, --jax: their steps are taken on the CPU only; write --device cpu")
    root = Path(options.data).expanduser()
    p = image_problem(options.images, options.rows, root, options.device)
    entries = our_entries(p) + loop_entries(p)
    for peer in (torchopt_entries, higher_entries):
        try:
            entries += peer(p)
        except ImportError as error:  # of which "package not found" is one too
            print(f"without a peer, {error}: {PEERS} hyper_cleaning")
    lines = []
    with ExitStack() as stack:
        if options.boat:
            try:
                entries += stack.enter_context(boat_entries(p))
            except Unavailable as reason:
                print(f"without BOAT: {reason}")
        else:
            print(
                f"without BOAT, which has an environment of its own: {PEERS} hyper_cleaning --boat"
            )
        if options.jax:
            try:
                entries += stack.enter_context(jax_entries(p))
            except Unavailable as reason:
                print(f"without JAX: {reason}")
        for method in dict.fromkeys(method for method, _ in entries):
            contenders = [contender for of, contender in entries if of == method]
            checked = check_against_first(contenders, TOLERANCE)
            lines += take_turns(method, checked, options.repeats)
    images = "" if options.images == "made-up" else f"{options.images}, "
    title = f"Outer steps on hyper-cleaning, {images}{options.rows} x {PIXELS}, float32"
    return Timing(title, lines, options.device)


def add_options(parser: ArgumentParser) -> None:
    add_image_options(parser)
    parser.add_argument(
        "--boat",
        action=BooleanOptionalAction,
        default=False,
        help="compare with BOAT as well; downloads it, and a torch, into the user's cache",
    )
    add_jax_option(parser)


COMPARISON = Comparison(compare, add_options, smoke={"rows": 2000}, packages="--group peers")
