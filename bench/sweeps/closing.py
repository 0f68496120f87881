"""The table with which a sweep ends: what each setting came to over its seeds, the best first."""

import math
import shlex
import statistics
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from bench.core.settings import BadSetting
from bench.runs.better import Way, better
from bench.runs.folder import RunFolder

MOST = 30  # settings that are listed
SEED = "seed"
OLD = "*"  # beside the number of a row's runs


class Made(NamedTuple):
    """A run of the sweep that was to be made, or was there.

    settings: what the command line says of it in particular, its seed among them. changed: it was
    there, and its code or its data have changed since.
    """

    settings: dict[str, str]
    folder: RunFolder
    changed: bool = False

    @property
    def setting(self) -> dict[str, str]:
        """The settings but for the seed: runs of one setting are compared with those of others."""
        return {key: value for key, value in self.settings.items() if key != SEED}

    @property
    def task(self) -> str:
        """The name of the task's function."""
        return self.folder.name.partition("/")[0]


class Row(NamedTuple):
    """What the runs of one setting came to. The means are over those that are done.

    changed: whether the code or the data of one of them have changed since it was made.
    """

    settings: dict[str, str]
    runs: int
    values: tuple[float, ...]  # of the metric, one for each run that is done
    seconds: float
    calls: float
    samples: float
    changed: bool = False

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)


class Kind(NamedTuple):
    """Runs that may stand in one table: they have the same task and metric."""

    task: str
    metric: str
    good: Way


def varied_settings(overrides: Sequence[Sequence[str]]) -> list[dict[str, str]]:
    """For each run the settings in which the runs of a sweep differ, by what the overrides say.

    overrides: those of each run, which have the same keys in the same order.
    """
    first = overrides[0] if overrides else []
    varied = [k for k in range(len(first)) if len({own[k] for own in overrides}) > 1]
    split = [[own[k].partition("=") for k in varied] for own in overrides]
    return [{key: value for key, _, value in parts} for parts in split]


def short_keys(keys: Iterable[str]) -> dict[str, str]:
    """Each setting's last word, or the whole of it where two settings have the same last word."""
    last = {key: key.replace("/", ".").rpartition(".")[2] for key in keys}
    words = list(last.values())
    return {key: word if words.count(word) == 1 else key for key, word in last.items()}


def labels_of(settings: Mapping[str, str]) -> dict[str, str]:
    """Settings by their short words, without the seed: they tell runs of a sweep from others."""
    words = short_keys(key for key in settings if key != SEED)
    return {word: settings[key] for key, word in words.items()}


def gather(made: Sequence[Made], asked: tuple[str, Way] | None = None) -> dict[Kind, list[Row]]:
    """The rows of each table, those whose runs are all done first, and the best of these first.

    asked: the metric, and which of its values are good; by default the one that the task watches.
    """
    ends: dict[Path, Mapping[str, Any]] = {}
    metrics: dict[str, str] = {}  # of each task
    for each in made:
        summary = summary_of(each.folder)
        if summary is not None:
            ends[each.folder.path] = summary
            metrics.setdefault(each.task, asked[0] if asked else metric_of(summary))
    if len({bool(end.get("amortised")) for end in ends.values()}) > 1:
        ends = {path: without_shared_seconds(end) for path, end in ends.items()}
    groups: dict[Kind, dict[tuple[str, ...], dict[Path, Made]]] = {}  # a run counts once
    for each in made:
        end = ends.get(each.folder.path)
        metric = metrics.get(each.task) if end is None or asked else metric_of(end)
        if metric is not None:  # some run of the task has ended
            setting = tuple(f"{key}={value}" for key, value in each.setting.items())
            kind = Kind(each.task, metric, asked[1] if asked else better(each.task, metric))
            groups.setdefault(kind, {}).setdefault(setting, {})[each.folder.path] = each
    found = {}
    for kind, settings in groups.items():
        rows = [row_of(list(own.values()), ends, kind.metric) for own in settings.values()]
        sign = {"higher": -1.0, "lower": 1.0, "neither": 0.0}[kind.good]
        found[kind] = sorted(rows, key=partial(rank, sign=sign))
    return found


def rank(row: Row, sign: float) -> tuple[bool, float]:
    """What rows are sorted by; sign: -1 where higher values are better, 0 where none is."""
    return len(row.values) < row.runs, sign * row.mean if row.values else math.inf


def summary_of(folder: RunFolder) -> dict[str, Any] | None:
    """The summary of a run that has ended; None of any other, and of one that is damaged."""
    try:
        return folder.summary()
    except BadSetting:
        return None


def metric_of(summary: Mapping[str, Any]) -> str:
    """The metric to watch of a run that has ended; a foreign summary may lack it."""
    return str(summary.get("metric", "step"))


def without_shared_seconds(summary: Mapping[str, Any]) -> Mapping[str, Any]:
    """A summary without its seconds if the run shared them with other runs: they cannot stand
    beside the seconds of runs that had theirs alone."""
    if not summary.get("amortised"):
        return summary
    return {**summary, "last": {k: v for k, v in summary["last"].items() if k != "seconds"}}


def row_of(own: Sequence[Made], ends: Mapping[Path, Mapping[str, Any]], metric: str) -> Row:
    """The runs of one setting as a row."""
    done = [
        end["last"]
        for each in own
        if (end := ends.get(each.folder.path)) is not None
        and end["status"] == "done"
        and end["last"].get(metric) is not None
    ]
    return Row(
        own[0].setting,
        len(own),
        tuple(last[metric] for last in done),
        mean_of([last.get("seconds", math.nan) for last in done]),
        mean_of([total_of(last, "calls") for last in done]),
        mean_of([total_of(last, "samples") for last in done]),
        any(each.changed for each in own),
    )


def mean_of(values: Sequence[float]) -> float:
    """The mean; NaN of nothing."""
    return statistics.fmean(values) if values else math.nan


def total_of(row: Mapping[str, Any], counts: str) -> int:
    """All calls of the oracle together, or all samples of these calls."""
    return sum(value for key, value in row.items() if key.startswith(f"{counts}/"))


def mean_and_deviation(values: Sequence[float]) -> str:
    """The mean, with the standard deviation where there are two values or more."""
    if not values:
        return "-"
    mean = f"{statistics.fmean(values):.4g}"
    return f"{mean} ± {statistics.stdev(values):.2g}" if len(values) > 1 else mean


def count_cell(count: float) -> str:
    """A mean count, or a dash where there is none."""
    return "-" if math.isnan(count) else f"{count:,.0f}"


def print_closing(
    made: Sequence[Made],
    folder: Path,
    most: int = MOST,
    asked: tuple[str, Way] | None = None,
) -> None:
    """Print a table for each task and metric, and the command that shows the curves.

    folder: the sweep's own. Prints nothing if no run has ended. most: rows of a table. asked: as
    for `gather`.
    """
    tables = gather(made, asked)
    console = Console(soft_wrap=True, markup=False, highlight=False)
    for kind, rows in tables.items():
        console.print(table_of(kind, rows[:most]))
        if seeds_change_nothing(rows):
            console.print(
                "all seeds came to the same values: where a seed changes nothing, runs are no "
                "repetitions"
            )
        if any(row.changed for row in rows[:most]):
            console.print(
                f"{OLD} with runs from before their code or data changed: run.force=true makes "
                "them anew"
            )
        if len(rows) > most:
            console.print(f"... and {len(rows) - most} more")
    if tables:
        console.print(f"curves with bands: reproduce compare {shlex.quote(str(folder))}")


def seeds_change_nothing(rows: Sequence[Row]) -> bool:
    """Whether rows have several runs, and those of each row came to the very same value."""
    repeated = [row.values for row in rows if len(row.values) > 1]
    return bool(repeated) and all(len(set(values)) == 1 for values in repeated)


def table_of(kind: Kind, rows: Sequence[Row]) -> Table:
    """A table of some rows."""
    metric = kind.metric.replace("_", " ")
    order = "" if kind.good == "neither" else f", {kind.good} is better, best first"
    spread = "mean ± sd over seeds" if any(len(row.values) > 1 for row in rows) else "one run each"
    table = Table(title=f"{kind.task}: {metric}{order}; {spread}", title_justify="left", box=None)
    keys = short_keys(dict.fromkeys(key for row in rows for key in row.settings))
    for word in keys.values():
        table.add_column(word)
    # without data each call counts as a sample, which would say the same twice
    sampled = any(row.samples not in (row.calls, 0) for row in rows if row.values)
    for word in ("runs", metric, "seconds", "calls", *(["samples"] if sampled else [])):
        table.add_column(word, justify="right")
    for row in rows:
        done = len(row.values)
        table.add_row(
            *(row.settings.get(key, "") for key in keys),
            (str(done) if done == row.runs else f"{done} of {row.runs}") + OLD * row.changed,
            mean_and_deviation(row.values),
            "-" if math.isnan(row.seconds) else f"{row.seconds:.3g}",
            *(count_cell(n) for n in ([row.calls, row.samples] if sampled else [row.calls])),
        )
    return table
