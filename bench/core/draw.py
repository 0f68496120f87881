"""Randomness by name: the i-th lower batch of step k depends on nothing but its name."""

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal, NamedTuple

import torch
from torch import Generator, Tensor, rand, randint, randn

from bench.core.settings import BadSetting
from bench.core.stream import Stream
from bench.core.task import Batch, Sampler, Task


def generator(*name: int | str) -> Generator:
    """A CPU generator seeded by the name: the same on every device and in every order."""
    digest = blake2b(repr(name).encode(), digest_size=8).digest()
    return Generator().manual_seed(int.from_bytes(digest, "big") >> 1)


def bring(numbers: Tensor, device: torch.device) -> Tensor:
    """Numbers of any shape, drawn on the CPU, on the device, without waiting for its earlier work.

    The copy to a GPU has read the numbers when this returns, as they are in pageable memory.
    """
    return numbers if device.type == "cpu" else numbers.to(device, non_blocking=True)


@dataclass(frozen=True)
class RowSampler:
    """A sampler of `size` of n rows with replacement, or of all of them.

    pick(numbers) is the batch of the rows of these numbers, [size] int64 on `device`, or of all
    rows where it gets None. A compiled step draws the numbers alone and picks inside its graph, so
    that pick must consist of operations on tensors.
    """

    n: int
    device: torch.device
    pick: Callable[[Tensor | None], Batch]

    def __call__(self, rng: Generator, step: int, size: int | None) -> Batch:
        return self.pick(None if size is None else self.numbers(rng, size))

    def numbers(self, rng: Generator, size: int) -> Tensor:
        """The numbers of the rows of a batch, [size] int64."""
        return bring(randint(self.n, (size,), generator=rng), self.device)


class Request(NamedTuple):
    """What a step asks for by name. Steps of the same form make the same requests.

    size: samples of a batch; None: all that there are. like: shape, dtype and device of random
    numbers; None: the request is for a batch. ago: so many steps before the present one.
    """

    kind: Literal["upper", "lower", "normal", "uniform"]
    turn: int | str
    size: int | None = None
    like: tuple[tuple[int, ...], torch.dtype, torch.device] | None = None
    ago: int = 0


def serve(task: Task, seed: int, step: int, request: Request) -> Any:
    """The batch, or the random numbers, that step number `step` asks for."""
    k, sampler = step - request.ago, sampler_of(task, request)
    rng = generator(seed, request.kind, k, request.turn)
    if sampler is not None:
        return sampler(rng, k, request.size)
    assert request.like is not None
    shape, dtype, device = request.like
    make = randn if request.kind == "normal" else rand
    return bring(make(shape, generator=rng, dtype=dtype), device)


def sampler_of(task: Task, request: Request) -> Sampler | None:
    """The task's function that draws what is asked for; None for random numbers."""
    if request.like is not None:
        return None
    return task.data.draw_upper if request.kind == "upper" else task.data.draw_lower


def row_sampler(task: Task, request: Request) -> RowSampler | None:
    """The sampler of a request for so many rows of a data set; None for any other request."""
    sampler = sampler_of(task, request)
    return sampler if request.size and isinstance(sampler, RowSampler) else None


class Draw:
    """The batches of one step, drawn when asked for.

    The i-th upper (lower) batch of step k under seed s is named (s, "upper", k, i). size=None asks
    for all the data there is at this step.
    """

    def __init__(self, task: Task, seed: int, step: int):
        self.task, self.seed, self.step = task, seed, step
        self.turns = {"upper": 0, "lower": 0, "integer": 0, "normal": 0, "uniform": 0}

    def f(self, size: int | None = None) -> Batch:
        """A batch for the upper loss."""
        return self._draw("upper", size)

    def g(self, size: int | None = None) -> Batch:
        """A batch for the lower loss."""
        return self._draw("lower", size)

    def ago(self, steps: int) -> "Draw":
        """The batches that an earlier step drew, from its first on: for methods that come back to
        past losses."""
        return Draw(self.task, self.seed, self.step - steps)

    @property
    def stream(self) -> Stream:
        """The stream that the task is; a TypeError where it is none."""
        if self.task.stream is None:
            raise TypeError("this task is no stream")
        return self.task.stream

    def some(self, numbers: Tensor, size: int) -> Tensor:
        """A vector of at most `size` of these numbers, which are drawn without replacement."""
        like = torch.empty(numbers.numel(), device=numbers.device)
        return numbers.flatten()[self.uniform(like).argsort()[:size]]

    def with_batches(self, xi: Batch, zeta: Batch) -> "Draw":
        """A draw for a method that is a part of another: its batches are these two, whatever it
        asks for, and its other randomness goes on where this draw is."""
        return FixedDraw(self, xi, zeta)

    def blocks(self, side: Literal["upper", "lower"], count: int) -> "Blocks":
        """All the data of this side in `count` blocks of rows, as equal as can be.

        Raises BadSetting if there are fewer rows, or if the task's batches cannot be cut.
        """
        everything = self._hand(Request(side, "all"))
        n = self.task.data.count(everything)
        setting = f"algorithm.blocks={count}"
        if side == "upper":
            setting += " (or algorithm.upper_blocks, where that is set)"
        if count > 1 and self.task.data.rows is None:
            raise BadSetting(
                f"{setting}: the {side} level of this task cannot be cut; write another task, or a "
                "method without blocks"
            )
        if count > n:
            raise BadSetting(f"{setting}: the {side} level has {n} rows to cut; write at most {n}")
        return Blocks(self.task, everything, n, count)

    def normal(self, like: Tensor) -> Tensor:
        """Standard normal, shaped as `like`: for methods that perturb a variable."""
        return self._random("normal", like)

    def uniform(self, like: Tensor) -> Tensor:
        """Uniform on [0, 1), shaped as `like`."""
        return self._random("uniform", like)

    def integer(self, below: int) -> int:
        """Uniform on {0, ..., below - 1}: for methods that cut a series at random."""
        turn = self._turn("integer")
        return int(randint(below, (), generator=generator(self.seed, "integer", self.step, turn)))

    def _turn(self, kind: str) -> int:
        turn = self.turns[kind]
        self.turns[kind] += 1
        return turn

    def _draw(self, side: Literal["upper", "lower"], size: int | None) -> Batch:
        return self._hand(Request(side, self._turn(side), size))

    def _random(self, kind: Literal["normal", "uniform"], like: Tensor) -> Tensor:
        form = (tuple(like.shape), like.dtype, like.device)
        found: Tensor = self._hand(Request(kind, self._turn(kind), like=form))
        return found

    def _hand(self, request: Request) -> Any:
        return serve(self.task, self.seed, self.step, request)


class FixedDraw(Draw):
    """A draw whose batches are given, and which has no others; see Draw.with_batches."""

    def __init__(self, draw: Draw, xi: Batch, zeta: Batch):
        self.task, self.seed, self.step, self.turns = draw.task, draw.seed, draw.step, draw.turns
        self.given = {"upper": xi, "lower": zeta}

    def _draw(self, side: Literal["upper", "lower"], size: int | None) -> Batch:
        return self.given[side]

    def blocks(self, side: Literal["upper", "lower"], count: int) -> "Blocks":
        """Raises BadSetting: a block would be of all the data."""
        raise BadSetting(
            "algorithm.method: this method cuts all the data into blocks, and here it is handed "
            "batches; write a method that draws batches, such as that of algorithm=ctn_itd"
        )

    def ago(self, steps: int) -> Draw:
        """Raises BadSetting: what an earlier step was given is not kept."""
        raise BadSetting(
            "algorithm.method: this method comes back to past batches, and here it is handed "
            "batches; write a method that draws batches, such as that of algorithm=ctn_itd"
        )


class Blocks:
    """A data set in `count` blocks of rows; a block is cut when asked for."""

    def __init__(self, task: Task, everything: Batch, n: int, count: int):
        self.task, self.everything, self.n, self.count = task, everything, n, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, b: int) -> Batch:
        """Block number b, as a batch."""
        if self.count == 1 or self.task.data.rows is None:
            return self.everything
        return self.task.data.rows(self.everything, *self._ends(b))

    def share(self, b: int) -> float:
        """The fraction of all rows that is in block number b."""
        a, end = self._ends(b)
        return (end - a) / self.n

    def _ends(self, b: int) -> tuple[int, int]:
        return self.n * b // self.count, self.n * (b + 1) // self.count
