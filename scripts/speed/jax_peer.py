"""JAX as a contender: its process (jax_server.py), and its turns at work on all the data."""

import tempfile
from argparse import ArgumentParser, BooleanOptionalAction
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from scripts.speed.harness import Contender, Result
from scripts.speed.peers import Ask, environment, serving
from scripts.speed.softmax import SoftmaxProblem

JAX = "jax==0.10.*"


@contextmanager
def jax_process(p: SoftmaxProblem | None = None) -> Iterator[tuple[Ask, Path]]:
    """JAX's process, which knows the problem, and the folder for what it reads; may raise
    Unavailable."""
    python = environment("JAX", JAX, "a framework of its own", with_torch=False)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if p is not None:
            arrays: dict[str, Any] = {
                "train": p.train.features, "train_labels": p.train.labels, "val": p.val.features,
                "val_labels": p.val.labels, "x": p.x, "y": p.y,
            }  # fmt: skip
            np.savez(folder / "problem.npz", **arrays)
        with serving("JAX", python, "scripts.speed.jax_server", folder) as ask:
            yield ask, folder


def add_jax_option(parser: ArgumentParser) -> None:
    """--jax."""
    parser.add_argument(
        "--jax",
        action=BooleanOptionalAction,
        default=False,
        help="compare with JAX as well; downloads it into the user's cache",
    )


def jax_contender(
    ask: Ask, folder: Path, work: dict[str, Any], compared: dict[str, Any] | None = None
) -> Contender:
    """JAX at this work, which is compiled here, before anything is timed; may raise Unavailable.

    work: what jax_server.py takes besides "ask". compared: the work whose value is held against
    the others', where that is not the timed one.
    """
    compiling = ask({"ask": "turn", **work})["compiling"]
    ask({"ask": "value", **(compared or work)})
    value = torch.from_numpy(np.load(folder / "value.npy"))

    def take_turn() -> float:
        return float(ask({"ask": "turn", **work})["seconds"])

    def result() -> Result:
        return Result(value, {})

    name = f"JAX {ask({'ask': 'version'})['version']}"
    return Contender(name, take_turn, result, f"jitted, {compiling:.1f} s to compile")
