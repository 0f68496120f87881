"""The page that compares any runs: it filters, sorts, overlays curves and shows settings."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bench.core.settings import BadSetting
from bench.reproduce.curves import round_coordinate
from bench.reproduce.histories import thin_rows
from bench.reproduce.report import copy_assets, load_templates
from bench.reproduce.specs import Book
from bench.runs.files import write_whole
from bench.runs.folder import RunFolder, folders_below

POINTS = 60  # each run's curve has at most so many
PARTS = ("task", "algorithm", "run")  # the parts of a configuration that the page compares
IGNORED = {"run.root", "run.force", "run.checkpoint", "run.device", "run.threads"}


def write_comparison(
    folders: Iterable[Path], book: Book, out: Path, metric: str | None
) -> tuple[Path, int]:
    """Write index.html into `out`, and give its path and the number of runs in it.

    metric: what is drawn at first; None: the first run's own. Raises BadSetting if a folder is not
    there, if there are no runs, or if no run has the metric.
    """
    runs = [entry for folder in find_run_folders(folders) if (entry := run_entry(folder))]
    if not runs:
        raise BadSetting(f"{', '.join(map(str, folders))}: there is no run folder in it")
    metrics = list(dict.fromkeys(name for run in runs for name in run["last"]))
    if metric is not None and metric not in metrics:
        raise BadSetting(f"--metric {metric}: the runs have {', '.join(metrics)}")
    differing = [
        key
        for key in dict.fromkeys(key for run in runs for key in run["settings"])
        if len({json.dumps(run["settings"].get(key)) for run in runs}) > 1
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


def run_entry(folder: RunFolder) -> dict[str, Any] | None:
    """What the page needs of a run; None if the run has not measured anything yet."""
    rows = folder.history()
    if not rows:
        return None
    config = folder.config()
    summary = folder.summary() or {}
    flat = dict(list_leaves({part: config[part] for part in PARTS}))
    names = [key for key in rows[-1] if not key.startswith(("samples/", "info/"))]
    kept = thin_rows(rows, POINTS)
    task, algorithm, key = folder.name.split("/")
    return {
        "task": task,
        "algorithm": algorithm,
        "key": key,
        "seed": config["seed"],
        "state": summary.get("status", "not finished"),
        "metric": summary.get("metric", names[2] if len(names) > 2 else "step"),
        "settings": {k: v for k, v in flat.items() if k not in IGNORED},
        "last": {name: round_known(rows[-1].get(name)) for name in names},
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
        yield path, node
