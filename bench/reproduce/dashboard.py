"""The page that compares any runs: it filters, sorts, overlays curves and shows settings."""

import math
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bench.core.settings import BadSetting
from bench.reproduce.curves import round_coordinate
from bench.reproduce.reading import leave_out_damaged
from bench.reproduce.report import copy_assets, load_templates
from bench.reproduce.specs import Book
from bench.runs.files import write_whole
from bench.runs.folder import RunFolder, folders_below

POINTS = 60  # each run's curve has at most so many
ALL_POINTS = 100_000  # and all runs' curves of a metric have about so many, for the page's size
LEAST_POINTS = 12
PARTS = ("task", "algorithm", "run")  # the parts of a configuration that the page compares
IGNORED = {"run.root", "run.force", "run.checkpoint", "run.device", "run.threads"}


def write_comparison(
    folders: Iterable[Path], book: Book, out: Path, metric: str | None
) -> tuple[Path, int]:
    """Write index.html into `out`, and give its path and the number of runs in it.

    metric: what is drawn at first; None: the first run's own. Raises BadSetting if a folder is not
    there, if there are no runs, or if no run has the metric.
    """
    there = list(find_run_folders(folders))
    points = max(LEAST_POINTS, min(POINTS, ALL_POINTS // max(1, len(there))))
    runs = [entry for folder in there if (entry := try_entry(folder, points))]
    if not runs:
        raise BadSetting(f"{', '.join(map(str, folders))}: there is no run folder in it")
    metrics = list(dict.fromkeys(name for run in runs for name in run["last"]))
    if metric is not None and metric not in metrics:
        raise BadSetting(f"--metric {metric}: the runs have {', '.join(metrics)}")
    differing = [
        key
        for key in dict.fromkeys(key for run in runs for key in run["settings"])
        if differ(run["settings"].get(key) for run in runs)
    ]
    common = {k: v for k, v in runs[0]["settings"].items() if k not in differing}
    for run in runs:
        run["settings"] = {k: v for k, v in run["settings"].items() if k in differing}
    data = {
        "runs": runs,
        "metrics": {
            name: metric_label(name, {run["task"] for run in runs}, book) for name in metrics
        },
        "first": metric or runs[0]["metric"],
        "settings": differing,
        "styles": {n: [m.colour, m.dash] for n, m in book.methods.items()},
    }
    copy_assets(out)
    page = (
        load_templates()
        .get_template("compare.html")
        .render(data=data, common=common, root="", title=f"{len(runs)} runs")
    )
    write_whole(out / "index.html", page)
    return out / "index.html", len(runs)


def differ(values: Iterable[Any]) -> bool:
    """Whether values differ; 1 and 1.0 do."""
    each = iter(values)
    first = next(each)
    return any(value != first or type(value) is not type(first) for value in each)


def metric_label(name: str, tasks: set[str], book: Book) -> str:
    """The metric's label if the tasks agree on it, or else its plain name."""
    labels = {book.metric(task, name).label for task in tasks if name in book.metrics.get(task, {})}
    labels |= {book.metrics["any"][name].label} if name in book.metrics["any"] else set()
    return labels.pop() if len(labels) == 1 else name.replace("_", " ")


def find_run_folders(places: Iterable[Path]) -> Iterator[RunFolder]:
    """Every run folder at or below the given places, once; raises BadSetting."""
    seen = set()
    for place in places:
        if not place.is_dir():
            raise BadSetting(f"{place}: there is no such folder")
        for folder in folders_below(place):
            if folder.path not in seen:
                seen.add(folder.path)
                yield folder


def try_entry(folder: RunFolder, points: int) -> dict[str, Any] | None:
    """What the page needs of a run; None, with a line on standard error, if a file is damaged."""
    with leave_out_damaged():
        return run_entry(folder, points)
    return None


def run_entry(folder: RunFolder, points: int = POINTS) -> dict[str, Any] | None:
    """What the page needs of a run; None if the run has not measured anything yet.

    points: each curve has at most so many. Raises BadSetting or OSError if a file is damaged.
    """
    if not folder.name.isprintable():
        raise BadSetting(f"{folder.path}: this is no name of a run")
    kept = folder.history_sample(points)
    if not kept:
        return None
    config = folder.config({*PARTS, "seed"})
    summary = folder.summary() or {}
    flat = {
        sys.intern(key): value  # thousands of runs have the same keys
        for key, value in list_leaves({part: config[part] for part in PARTS})
    }
    last = kept[-1]
    names = [sys.intern(key) for key in last if not key.startswith(("samples/", "info/"))]
    task, algorithm, key = folder.name.split("/")
    return {
        "task": task,
        "algorithm": algorithm,
        "key": key,
        "seed": config["seed"],
        "state": summary.get("status", "not finished"),
        "metric": summary.get("metric", names[2] if len(names) > 2 else "step"),
        "settings": {k: v for k, v in flat.items() if k not in IGNORED},
        "last": {name: round_known(last.get(name)) for name in names},
        "curves": {name: [round_known(row.get(name)) for row in kept] for name in names},
    }


def round_known(x: float | None) -> float | None:
    """A number to six significant digits; None if it is None or not finite."""
    return None if x is None else round_coordinate(x)


def list_leaves(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted path, value) of every leaf of nested dictionaries."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield from list_leaves(value, f"{path}.{key}" if path else str(key))
    else:
        finite = not isinstance(node, float) or math.isfinite(node)
        yield path, node if finite else str(node)  # JSON has no word for it
