"""The page that compares any runs: means and bands over seeds, ranks, and methods by problems."""

import csv
import importlib.resources
import io
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.core.settings import BadSetting
from bench.reproduce import bands, grouping
from bench.reproduce.bands import Band, MeasuredRun
from bench.reproduce.chosen_runs import find_runs
from bench.reproduce.grouping import Group, Grouping
from bench.reproduce.report import load_templates, writing_pages
from bench.reproduce.single_runs import Pool, thin, write_single_runs
from bench.reproduce.specs import TOTALS, Book, find_metric
from bench.runs.files import write_whole

SCRIPTS = ("compare.js", "compare_plot.js", "compare_table.js", "compare.css")
MOST_ROWS, ALL_ROWS, LEAST_ROWS = 200, 120_000, 12  # that are read: of a run, of all, of a run
MOST_NUMBERS = 400_000  # in the page, of the groups' curves
LOADED_AT_ONCE = 3_000_000  # characters of single runs that the page loads without being asked


@dataclass(frozen=True)
class Measured:
    """A group, its runs with what they measured, those that count, and their curves.

    rowless: how many more of its runs have begun, and have no row yet.
    """

    group: Group
    runs: Sequence[MeasuredRun]
    counted: Sequence[MeasuredRun]
    band: Band
    rowless: int

    @property
    def states(self) -> Counter[str]:
        """How many of all its runs ended in which way."""
        return bands.count_states(self.runs) + Counter({bands.NOT_FINISHED: self.rowless})

    def has(self, name: str) -> bool:
        """Whether some of its runs measured a metric."""
        return any(name in run.last for run in self.runs)


@dataclass(frozen=True)
class Comparison:
    """What is compared: the groups, their metrics by label, and which values of these are better.

    metric: the one that is shown at first. about, times: what is to be known of the runs, and of
    their seconds; empty if nothing is. differing: the settings in which the groups differ.
    """

    groups: Sequence[Measured]
    metrics: Mapping[str, str]
    better: Mapping[str, str]
    metric: str
    about: str
    times: str
    differing: Sequence[str]

    @property
    def count(self) -> int:
        """The number of runs."""
        return sum(len(one.runs) for one in self.groups)

    @property
    def problems(self) -> list[str]:
        """What is solved, in words, each once."""
        return list(dict.fromkeys(one.group.problem for one in self.groups))

    @property
    def methods(self) -> list[str]:
        """What solves it, in words, each once."""
        return list(dict.fromkeys(one.group.method for one in self.groups))

    def by_problem(self) -> dict[str, list[Measured]]:
        """The groups of each problem."""
        found: dict[str, list[Measured]] = {}
        for one in self.groups:
            found.setdefault(one.group.problem, []).append(one)
        return found

    @property
    def title(self) -> str:
        """What is compared, in words."""
        said = [say_count(len(self.methods), "method"), say_count(len(self.problems), "problem")]
        return f"{' on '.join(said)}, {say_count(self.count, 'run')}"


def compare(
    places: Sequence[Path | str], book: Book, metric: str | None = None, where: Iterable[str] = ()
) -> Comparison:
    """Read the runs at these places, and group those that differ in their seeds only.

    metric: what is shown at first; None: the task's own. A damaged run has a line on standard
    error. Raises BadSetting if a place is not there, if there are no runs, if none has a row that
    can be read, or if none has the metric.
    """
    found = find_runs(places, where)
    points = max(LEAST_ROWS, min(MOST_ROWS, ALL_ROWS // len(found)))
    split: Grouping = grouping.group_runs(found, book)
    measured = [(group, *bands.measure_group(group, points)) for group in split.groups]
    every = [run for _, runs, _ in measured for run in runs]
    shared = sum(run.shared for run in every)
    mixed = 0 < shared < len(every)
    groups = []
    for group, own, rowless in measured:
        runs = [bands.without_times(run) if mixed and run.shared else run for run in own]
        if runs:
            some = bands.counted(runs)
            groups.append(Measured(group, runs, some, bands.make_band(some), rowless))
    if not groups:
        raise BadSetting(f"{', '.join(map(str, places))}: no run there has a row that can be read")
    names = list(dict.fromkeys(name for one in groups for run in one.runs for name in run.last))
    if metric is not None and metric not in names:
        raise BadSetting(f"--metric {metric}: the runs have {', '.join(names)}")
    tasks = {name: tasks_with(groups, name) for name in names}
    return Comparison(
        groups,
        {name: metric_label(name, tasks[name], book) for name in names},
        {n: bands.direction(n, tasks[n], book) for n in names},
        metric or bands.own_metric(first_problem(groups)),
        about_runs(split.repeated, sum(rowless for _, _, rowless in measured)),
        about_times(shared, len(every)),
        split.differing,
    )


def first_problem(groups: Sequence[Measured]) -> list[MeasuredRun]:
    """The runs on the problem that comes first."""
    first = groups[0].group.problem
    return [run for one in groups if one.group.problem == first for run in one.runs]


def say_count(many: int, word: str) -> str:
    """A number with what is counted."""
    return f"{many:,} {word}{'s' * (many != 1)}"


def about_runs(repeated: int, rowless: int) -> str:
    """What is said of runs that are there twice, and of those that have no row yet."""
    said = []
    if repeated:
        verbs = "was there twice, and counts" if repeated == 1 else "were there twice, and count"
        said.append(f"{say_count(repeated, 'run')} {verbs} once")
    if rowless:
        verb = "has" if rowless == 1 else "have"
        said.append(f"{say_count(rowless, 'run')} {verb} begun and {verb} no row yet")
    return "; ".join(said)


def about_times(shared: int, every: int) -> str:
    """What is said of the seconds of runs that shared their time with others."""
    if shared == 0:
        return ""
    if shared == every:
        return "Seconds are shares of what lanes took together."
    return (
        f"Left out are the seconds of {say_count(shared, 'run')} that shared their time with other "
        "lanes, as other runs had theirs alone."
    )


def tasks_with(groups: Iterable[Measured], name: str) -> set[str]:
    """The tasks that measure a metric."""
    return {one.group.task for one in groups if one.has(name)}


def metric_label(name: str, tasks: set[str], book: Book) -> str:
    """The metric's label if the tasks agree on it, or else its plain name."""
    labels = {find_metric(book.metrics, task, name).label for task in tasks}
    return labels.pop() if len(labels) == 1 else name.replace("/", " ").replace("_", " ")


def write_comparison(
    places: Sequence[Path | str],
    book: Book,
    out: Path,
    metric: str | None = None,
    where: Iterable[str] = (),
) -> tuple[Path, Comparison]:
    """Write index.html into `out`, and give its path and what is compared; raises BadSetting.

    Single runs are in files beside it, which the page loads when it needs them.
    """
    found = compare(places, book, metric, where)
    with writing_pages(out):
        for name in SCRIPTS:
            source = importlib.resources.files("bench.reproduce") / "assets" / name
            write_whole(out / "assets" / name, source.read_bytes())
        files, size = write_single_runs([one.runs for one in found.groups], out / "assets")
        data = page_data(found, book) | {"files": files, "atOnce": size <= LOADED_AT_ONCE}
        page = load_templates().get_template("compare.html").render(
            data=data, shared=shared_settings(found), root="", title=found.title
        )  # fmt: skip
        write_whole(out / "index.html", page)
    return out / "index.html", found


def shared_settings(found: Comparison) -> dict[str, Any]:
    """The settings that are the same in all groups."""
    first = found.groups[0].group.settings
    return {k: v for k, v in first.items() if k not in found.differing}


def page_data(found: Comparison, book: Book) -> dict[str, Any]:
    """All that the page shows at first, as values that JSON can hold."""
    columns = sum(len(one.band.mean) + len(one.band.reach) for one in found.groups)
    points = max(2, MOST_NUMBERS // max(1, columns))
    problems = {name: i for i, name in enumerate(found.problems)}
    methods = {name: i for i, name in enumerate(found.methods)}
    styles = grouping.method_styles([one.group for one in found.groups], book)
    pool = Pool()
    groups = [
        {
            "problem": problems[one.group.problem],
            "method": methods[one.group.method],
            "n": len(one.counted),
            "states": dict(one.states),
            "settings": {k: v for k, v in one.group.settings.items() if k in found.differing},
            "mean": {k: pool.add(thin(v, points)) for k, v in one.band.mean.items()},
            "reach": {k: pool.add(thin(v, points)) for k, v in one.band.reach.items()},
        }
        for one in found.groups
    ]
    return {
        "problems": [describe_problem(name, some) for name, some in found.by_problem().items()],
        "methods": [{"label": name, **styles[name]._asdict()} for name in methods],
        "groups": groups,
        "columns": pool.columns,
        "metrics": {
            name: {
                "label": label,
                "better": found.better[name],
                "percent": is_percent(name, found, book),
            }
            for name, label in found.metrics.items()
        },
        "metric": found.metric,
        "axes": [name for name in found.metrics if is_axis(name)],
        "ends": {name: judge_ends(found, name) for name in found.metrics},
        "runs": list_runs(found),
        "differing": list(found.differing),
        "about": found.about,
        "times": found.times,
    }  # fmt: skip


def is_axis(name: str) -> bool:
    """Whether curves can be drawn against a metric: it grows with every step."""
    return name in ("step", "seconds", "cpu_seconds", *TOTALS) or bands.is_count(name)


def is_percent(name: str, found: Comparison, book: Book) -> bool:
    """Whether a metric is a fraction that is shown in per cent."""
    tasks = tasks_with(found.groups, name)
    return all(find_metric(book.metrics, task, name).percent for task in tasks)


def describe_problem(name: str, groups: Iterable[Measured]) -> dict[str, Any]:
    """A problem with its own metric and its reference lines, such as a method without tuning."""
    runs = [run for one in groups for run in one.runs]
    lines: dict[str, list[float]] = {}
    for run in runs:
        for label, value in run.references.items():
            lines.setdefault(label, []).append(value)
    return {
        "label": name,
        "metric": bands.own_metric(runs),
        "references": {label: round_number(sum(v) / len(v)) for label, v in lines.items()},
    }


def judge_ends(found: Comparison, name: str) -> dict[str, Any]:
    """The last values of a metric in each group, and their differences to the best of a problem.

    "ranks" has the numbers of the groups of each problem, best first; it is empty where nothing
    says what is better. "places" has the place of each group in its problem (`find_places`).
    """
    ends = [bands.find_end(one.counted, name) for one in found.groups]
    differences: list[Any] = [None] * len(ends)
    ranks, places = [], list[int | None]([None] * len(ends))
    numbers = {id(one): i for i, one in enumerate(found.groups)}
    for some in found.by_problem().values() if found.better[name] != "neither" else []:
        inside = [numbers[id(one)] for one in some]
        own = [ends[i] for i in inside]
        tiers = [bands.tier(one.states) for one in some]
        measured = [ends[i] is not None or found.groups[i].has(name) for i in inside]
        order = bands.rank(own, tiers, found.better[name])
        ranks.append([inside[k] for k in order])
        for i, place in zip(inside, bands.find_places(order, own, tiers, measured)):
            places[i] = place
        ended = [some[k] for k in order if tiers[k] != bands.NONE_DONE]
        for one in ended[1:]:
            told = bands.difference(one.counted, ended[0].counted, name)
            differences[numbers[id(one)]] = round_all(told)
    return {
        "ends": [round_all(end) for end in ends], "differences": differences, "ranks": ranks,
        "places": places,
    }  # fmt: skip


def round_all(found: Sequence[float | None] | None) -> list[Any] | None:
    """The numbers, rounded; None if there is none."""
    return None if found is None else [round_number(value) for value in found]


def round_number(value: float | None) -> float | int | None:
    """A number with six significant digits; None if it is None or not finite."""
    if value is None or not math.isfinite(value):
        return None
    short = float(f"{value:.6g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short  # shorter in JSON


def list_runs(found: Comparison) -> dict[str, Any]:
    """Every run in columns: its group, folder's name, seed, state and last values."""
    runs = [(i, run) for i, one in enumerate(found.groups) for run in one.runs]
    return {
        "group": [i for i, _ in runs],
        "key": [run.run.key for _, run in runs],
        "seed": [run.run.seed for _, run in runs],
        "state": [run.state for _, run in runs],
        "last": {
            name: [round_number(run.last.get(name)) for _, run in runs] for name in found.metrics
        },
    }


def write_csv(found: Comparison, file: Path) -> None:
    """Write a line for each group and metric, as programs read it; raises BadSetting."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([
        "problem", "method", *found.differing, "metric", "n", "runs", "mean", "sd", "low", "high",
        "rank", "difference", "difference_low", "difference_high", "pairs", "done", "diverged",
        "not_finished",
    ])  # fmt: skip
    for name in found.metrics:
        told = judge_ends(found, name)
        for i, one in enumerate(found.groups):
            mean, sd, low, high, n = told["ends"][i] or [None] * 4 + [0]
            values = [one.group.settings.get(key) for key in found.differing]
            states = one.states
            writer.writerow([
                as_cell(one.group.problem), as_cell(one.group.method), *map(as_cell, values),
                as_cell(name), n, states.total(), mean, sd, low, high, told["places"][i],
                *(told["differences"][i] or [None] * 4),
                *(states[name] for name in ("done", "diverged", bands.NOT_FINISHED)),
            ])  # fmt: skip
    try:
        write_whole(file, text.getvalue())
    except OSError as error:
        raise BadSetting(f"--csv {file}: cannot write: {error.strerror}") from None


def as_cell(value: Any) -> Any:
    """A value for a table; a text that a spreadsheet would compute gets a quote before it."""
    if isinstance(value, list):
        return json.dumps(value)
    return f"'{value}" if isinstance(value, str) and value[:1] in "=+-@" and value else value
