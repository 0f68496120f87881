"""From a spec to settings: every grid point of every row, and what a point's runs are given."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from random import Random

from bench.core.settings import BadSetting
from bench.reproduce.schema import Budget, Variant
from bench.reproduce.specs import Book, Grid, Settings, Spec, Value, VariantPart

CLOCKS = ("run.seconds", "run.cpu_seconds")  # the settings that end a run after some time


@dataclass(frozen=True)
class Point:
    """One grid point of one row of one variant: all settings of its runs but the seed."""

    variant: Variant
    row: str
    settings: tuple[tuple[str, Value], ...]  # (path, value) of what every point of the row has
    chosen: tuple[tuple[str, Value], ...]  # (path, value) of what makes this point of the grid


def points(spec: Spec, book: Book, budget: Budget) -> Iterator[Point]:
    """Every grid point of every row that can run at this budget, in the order of the spec.

    A row without a grid has one point. Where two places give a setting, the later of these
    counts: spec, variant, row, the row's variant, and then what the budget says for all, for the
    variant, for the row, and for the row's variant. A grid is the first that is given by the row's
    variant, the row, the variant or the spec; a reference line takes only the first two. A budget's
    own grid keeps fewer values of the settings that it names, and leaves the others at their
    defaults. Where a budget names settings as drawn, each point of the rest of the grid is tried
    twice: with the row's own values of these settings, and with values drawn from the grid.
    Raises BadSetting for a row without a value of its own.
    """
    scale = spec.budgets[budget]
    for variant, part in spec.variants.items():
        for name, row in spec.rows.items():
            if variant not in row.only or budget not in row.at or row.pending:
                continue
            own: VariantPart = getattr(row, variant)
            method = book.methods[row.method]
            settings: Settings = {
                "task": spec.task,
                "algorithm": method.algorithm or row.method,
                "run.threads": spec.threads,
                **spec.set,
                **part.set,
                **row.set,
                **own.set,
                **scale.set,
                **part.budgets.get(budget, {}),
                **row.budgets.get(budget, {}),
                **own.budgets.get(budget, {}),
            }
            given = [own.grid, row.grid, *([] if row.line else [part.grid, spec.grid])]
            grid = next((g for g in given if g is not None), {})
            of_budget = row.grids.get(budget, scale.grid)
            if of_budget is not None:
                grid = {path: of_budget[path] for path in grid if path in of_budget}
            for path in scale.drawn:
                if path in grid and path not in settings:
                    raise BadSetting(
                        f"rows.{name}: {path} is drawn, and the row has no value of its own: write "
                        f"set: {{{path}: ...}}"
                    )
            for chosen in combinations(grid, settings, scale.drawn):
                yield Point(variant, name, tuple(settings.items()), tuple(chosen.items()))


def combinations(grid: Grid, settings: Settings, drawn: Sequence[str]) -> Iterator[Settings]:
    """Every combination of a grid's values, but for the settings that are drawn.

    settings: has the row's own values of the drawn settings. The values that the k-th combination
    of the others is tried with are drawn by a generator with seed k, so that all rows with the same
    grid get the same.
    """
    asked = {path: grid[path] for path in drawn if path in grid}
    rest = {path: values for path, values in grid.items() if path not in asked}
    for k, values in enumerate(product(*rest.values())):
        chosen = dict(zip(rest, values))
        own = {path: settings[path] for path in asked}
        yield chosen | own
        random = Random(k)
        drawn_values = {path: random.choice(values) for path, values in asked.items()}
        if drawn_values != own:
            yield chosen | drawn_values


def ends_by_clock(point: Point) -> bool:
    """Whether a point's runs end after some time, and not after some number of steps."""
    settings = dict(point.settings)
    return any(settings.get(name) is not None for name in CLOCKS)


def format_override(path: str, value: Value) -> str:
    """The setting as an argument of `bench`, in the grammar of Hydra's overrides."""
    if value is None:
        text = "null"
    elif isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, list):
        text = "[" + ",".join(map(str, value)) + "]"
    else:
        text = str(value)
    return f"{path}={text}"
