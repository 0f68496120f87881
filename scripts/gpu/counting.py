"""Counts what a step of a method asks of a GPU, without one: operations, and waits of the host.

    uv run python -m scripts.gpu.counting [ARTIFACT ...] [--json FILE]

Where seeds go as lanes that share their passes (bench.compiled.joined), it counts a step of five of
them too, as operations a run.

An operation is one call of torch that computes, which is one kernel or a few; views are none. A
wait is whatever makes the host read a tensor, or copy to the device in the way that waits for it:
`item`, `bool`, `tolist`, `cpu`, `numpy`, a blocking `to`, tensors made of Python's numbers, and
operations whose result has a size that depends on values.

The steps are those of each row's first grid point at the budget smoke, on data that need no files:
operations do not depend on sizes, but for the blocks of evaluations, and inner loops are as long as
the spec has them. On a GPU the residual of a softmax takes two operations more than here, and an
embedding's episodes run together, as here.
"""

import argparse
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bench.compiled import joined
from bench.compiled.batched import Lane
from bench.core.loop import advance, first
from bench.core.settings import BadSetting, build
from bench.core.task import Context, Task
from bench.numerics import inner
from bench.reproduce.book import find_artifacts, load_book
from bench.reproduce.points import format_override, points
from bench.reproduce.specs import Book
from bench.runs.files import write_json
from bench.runs.launch import resolve
from bench.sweeps.composing import Composer, own_composer
from tasks.models import linear

ARTIFACTS = ("bome/fig2_mnist", "bome/table1", "bome/table2", "stocbio/fig2_fc100", "f2obo/fig1")
STEPS = 6  # which are more than a task of the streams below has
READING = {"_local_scalar_dense", "equal", "is_nonzero"}  # what looks at values
SIZED = {  # what has a size that depends on values
    "nonzero", "masked_select", "unique_consecutive", "_unique2", "unique_dim", "bincount",
}  # fmt: skip
# settings that keep the steps small and need no files
SMALL = {
    "hyper_cleaning": [
        "task/data=digits", "task.data.train=60", "task.data.val=30", "task.data.val2=30",
        "task.data.test=30", "task.pretraining.steps=0",
    ],
    "permuted_mnist": [
        "task/data=digits", "task.tasks=3", "task.images=40", "task.hidden=8", "task.batch=10",
    ],
    "split_cifar": ["task.data=patterns", "task.tasks=2", "task.filters=2", "task.batch=20"],
    "few_shot": [
        "task.data=patterns", "task.episodes=2", "task.filters=4", "task.chunk=100",
        "task.watched=1", "task.final=1",
    ],
    "online_imbalance": [
        "task/data=digits", "task.data.train=100", "task.data.val=60", "task.data.test=40",
        "task.channels=2", "task.phase=2", "task.solved.every=0", "task.round=8",
    ],
}  # fmt: skip
LANES = 5  # the seeds of the budget gpu
NOT_INSTALLED = "learn2learn"  # whose own loop is not this suite's


class Counted(NamedTuple):
    """What a step asks for: how many operations, and the waits by what makes them."""

    operations: int
    waits: dict[str, int]


class Lanes(TorchDispatchMode):
    """Has the operations of a lane's thread counted with all others'."""

    def __init__(self, counting: "Counting"):
        super().__init__()
        self.counting = counting

    def __torch_dispatch__(self, *called: Any) -> Any:
        return self.counting.__torch_dispatch__(*called)


class Counting(TorchDispatchMode):
    """Counts operations and waits while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0
        self.waits: Counter[str] = Counter()
        self.within, self.turn = ExitStack(), threading.Lock()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func._schema.name.partition("::")[2]
        with self.turn:
            if name in READING | SIZED or looks_into(name, args):
                self.waits[name] += 1
            elif not is_view(func):
                self.operations += 1
        return func(*args, **(kwargs or {}))

    def __enter__(self) -> "Counting":
        for name in ("tolist", "cpu", "numpy", "new_tensor"):
            self.within.enter_context(self._noting(torch.Tensor, name))
        for name in ("tensor", "as_tensor"):
            self.within.enter_context(self._noting(torch, name))
        self.within.enter_context(self._noting(torch.Tensor, "to", is_blocking_copy))
        # softmax regression goes by torch there, and loops to a tolerance go in blocks of steps
        self.within.enter_context(mock.patch.object(linear, "reads_rows_once", is_never))
        self.within.enter_context(mock.patch.object(inner, "waits_for", is_always))
        self.within.enter_context(mock.patch.object(joined, "in_a_lane", partial(Lanes, self)))
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.within.close()

    def _noting(
        self, owner: Any, name: str, counts: Callable[..., bool] = lambda *a, **k: True
    ) -> Any:
        plain = getattr(owner, name)

        def noted(*args: Any, **kwargs: Any) -> Any:
            if counts(*args, **kwargs):
                self.waits[name] += 1
            return plain(*args, **kwargs)

        return mock.patch.object(owner, name, noted)


def is_never(*arguments: Any) -> bool:
    """What does not happen on a GPU."""
    return False


def is_always(*arguments: Any) -> bool:
    """What happens on a GPU whatever comes."""
    return True


def is_view(func: Any) -> bool:
    """Whether an operation gives another view of its argument, and computes nothing."""
    returned = func._schema.returns
    return bool(returned) and all(r.alias_info and not r.alias_info.is_write for r in returned)


def looks_into(name: str, args: tuple[Any, ...]) -> bool:
    """Whether the operation's result has a size that depends on values of its arguments."""
    if name == "index":
        return any(t is not None and t.dtype in (torch.bool, torch.uint8) for t in args[1])
    return name == "repeat_interleave" and isinstance(args[-1], torch.Tensor)


def is_blocking_copy(tensor: Any, *args: Any, **kwargs: Any) -> bool:
    """Whether `to` has a device, and waits for the copy."""
    given = [*args, *kwargs.values()]
    return any(isinstance(g, torch.device) for g in given) and not kwargs.get("non_blocking")


@cache
def composer() -> Composer:
    """It composes the rows of an artifact and the seeds of a row from what they share."""
    return own_composer()


def made(overrides: list[str], seed: int = 0) -> Lane:
    """Task and algorithm of a configuration; raises BadSetting."""
    config = resolve(composer()(overrides))
    task: Task = build(config["task"], Context(seed=seed))
    return Lane(task, build(config["algorithm"]), seed, {})


def count_steps(overrides: list[str], steps: int = STEPS) -> list[Counted]:
    """What each of the first steps of a configuration asks for; raises BadSetting."""
    task, algorithm, seed, _ = made(overrides)
    found = []
    with torch.no_grad():
        s = first(task, algorithm, seed)
        for _ in range(steps):
            with Counting() as counting:
                s = advance(task, algorithm, seed, s)
            found.append(Counted(counting.operations, dict(counting.waits)))
    return found


def count_lanes(overrides: list[str], steps: int = STEPS) -> float | None:
    """How many operations a run takes in the last of so many steps of five seeds as lanes; None
    where they do not share their passes."""
    lanes = [made(overrides, seed) for seed in range(LANES)]
    if not joined.can_join(lanes[0].task):
        return None
    take = joined.Joined(lanes)
    standings = [first(lane.task, lane.algorithm, lane.seed) for lane in lanes]
    standings = take(standings, steps - 1)
    with Counting() as counting:
        take(standings, 1)
    return counting.operations / LANES


@cache
def own_book() -> Book:
    """This project's specs, which take a while to read."""
    return load_book()


def rows(artifact_id: str) -> Iterator[tuple[str, list[str]]]:
    """Each row of an artifact that can run here, as "variant row", with its small settings."""
    book = own_book()
    (artifact,) = find_artifacts(book, [artifact_id])
    seen = set()
    for point in points(artifact.spec, book, "smoke"):
        label = f"{point.variant} {point.row}"
        if label in seen or NOT_INSTALLED in point.row:
            continue
        seen.add(label)
        pairs = [*point.settings, *point.chosen]
        merged = {format_override(path, value) for path, value in dict(pairs).items()}
        task = artifact.spec.task
        small = SMALL[task]
        names = {override.partition("=")[0] for override in small}
        kept = sorted(o for o in merged if o.partition("=")[0] not in names)
        yield label, [*kept, *small]


@contextmanager
def quiet_threads() -> Iterator[None]:
    """One thread, as the steps are tiny."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def main() -> int:
    """The exit code: 0, or 2 where a setting is refused."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("artifacts", nargs="*", metavar="ARTIFACT", default=ARTIFACTS)
    parser.add_argument("--json", type=Path, metavar="FILE", help="record the counts there")
    arguments = parser.parse_args()
    found: dict[str, Any] = {}
    try:
        with quiet_threads():
            for artifact in arguments.artifacts:
                if artifact not in ARTIFACTS:
                    raise BadSetting(f"{artifact}: write one of {', '.join(ARTIFACTS)}")
                for label, overrides in rows(artifact):
                    last, lanes = count_steps(overrides)[-1], count_lanes(overrides)
                    row = last._asdict() | ({} if lanes is None else {"as_lanes": lanes})
                    found.setdefault(artifact, {})[label] = row
                    waits = ", ".join(f"{n} {name}" for name, n in last.waits.items())
                    told = "" if lanes is None else f"{lanes:.0f} as lanes"
                    print(f"{artifact:20} {label:34} {last.operations:6} {told:>14}  {waits}")
    except BadSetting as error:
        print(f"counting: {error}", file=sys.stderr)
        return 2
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        write_json(
            arguments.json,
            {"step": STEPS, "lanes": LANES, "torch": torch.__version__, "rows": found},
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
