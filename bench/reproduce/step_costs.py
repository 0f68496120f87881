"""The table of `reproduce list --costs`: what a step of each row's method calls."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rich.table import Table

from bench.core.algorithm import KEYS, Algorithm, Cost, Moment
from bench.core.settings import BadSetting, build
from bench.reproduce.points import points
from bench.reproduce.run_names import Names
from bench.reproduce.specs import Artifact, Book

MOST = 10_000  # steps of a run that are looked at
LEGEND = (
    "\nCalls of one outer step, at the settings of the artifact's largest budget; of a grid, each "
    "point that differs.\nvalue, grad: values and gradients of f and g. jvp_g, hvp_g: products "
    "with g_xy and g_yy. lmo: linear minimisations.\nproject: projections of projection-free "
    "methods and their rivals.\n<=: at most so many, as it is random or depends on a tolerance. "
    f"6.33 (6 to 7): mean, fewest and most of the run's steps (its first {MOST}).\n"
    "batch: samples that a call sees; all: all the data; all/8: an eighth of them."
)


def list_costs(artifacts: Iterable[Artifact], book: Book, names: Names) -> Table:
    """A line for each row of each variant, and further ones where grid points differ in cost."""
    table = Table(box=None, pad_edge=False)
    for column in ("artifact", "variant", "row"):
        table.add_column(column, no_wrap=True)
    for key in KEYS:
        table.add_column(key, justify="right", no_wrap=True)
    table.add_column("batch", no_wrap=True)
    for artifact in artifacts:
        for i, line in enumerate(_lines(artifact, book, names)):
            table.add_row(artifact.id if i == 0 else "", *line)
    return table


def _lines(artifact: Artifact, book: Book, names: Names) -> Iterator[tuple[str, ...]]:
    """(variant, row, a cell for each key, batch) for every row, without repetitions."""
    budget = list(artifact.spec.budgets)[-1]
    seen = set()
    for point in points(artifact.spec, book, budget):
        line = (point.variant, point.row, *_cells(names.config(point, 0)))
        if line not in seen:
            seen.add(line)
            yield line


def _cells(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The cells of a configuration; those of a method that cannot be built say so."""
    try:
        algorithm: Algorithm = build(config["algorithm"])
    except BadSetting as error:
        return (*[""] * len(KEYS), str(error))
    costs = Counter(algorithm.cost_at(at) for at in moments(config, algorithm.on_stream))
    known = {cost: steps for cost, steps in costs.items() if cost is not None}
    if not known:
        return (*[""] * len(KEYS), "its method does not say what a step costs")
    return (*(format_calls(known, key) for key in KEYS), format_batches(known))


def moments(config: Mapping[str, Any], on_stream: bool) -> Iterator[Moment]:
    """Where a run of this configuration stands before each of its first steps.

    A task of episodes has a setting `episodes`, and a stream has `tasks`, which have equally many
    steps, and `batch`.
    """
    steps, task = config["run"]["steps"], config["task"]
    for k in range(min(steps, MOST)):
        if on_stream:
            each = max(1, steps // task["tasks"])
            over = min(k // each, task["tasks"] - 1)
            yield Moment(k, samples=task["batch"], task=over, task_step=k - over * each)
        else:
            yield Moment(k, task.get("episodes", 1))


def format_calls(costs: Mapping[Cost, int], key: str) -> str:
    """The calls of this key over a run's steps; an empty text if there are none.

    costs: how many of the steps have each cost.
    """
    numbers = {cost: cost.calls[key] for cost in costs}
    least, most = min(numbers.values()), max(numbers.values())
    if most == 0:
        return ""
    text = f"{least}"
    if least != most:
        mean = sum(n * costs[cost] for cost, n in numbers.items()) / sum(costs.values())
        text = f"{round(mean, 2)} ({least} to {most})"
    bound = any(part.at_most and part.calls[key] for cost in costs for part in cost.parts)
    return f"<= {text}" if bound else text


def format_batches(costs: Iterable[Cost]) -> str:
    """The sizes of the batches of all calls, `all` for all the data, and `all/8` for an eighth."""
    sizes: set[int] = set()
    words: set[str] = set()
    for part in (part for cost in costs for part in cost.parts):
        if not any(n for key, n in part.calls.items() if key not in ("lmo", "project")):
            continue
        if part.batch is not None and part.blocks == 1:
            sizes.add(part.batch)
        else:
            whole = "all" if part.batch is None else f"{part.batch}"
            words.add(whole if part.blocks == 1 else f"{whole}/{part.blocks}")
    numbers = [f"{size}" for size in sorted(sizes)]
    if len(numbers) > 3:
        numbers = [f"{min(sizes)} to {max(sizes)}"]
    return ", ".join([*numbers, *sorted(words)])
