"""Draws last values: what was measured and what the paper prints, row by row, and thumbnails.

These figures need nothing but a record's last values, so that every record has one.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.reproduce.drawings import (
    DASHES,
    add_legend,
    figure_style,
    line_points,
    pyplot,
    save_figure,
    write_figure,
)
from bench.reproduce.records import Record, RowRecord
from bench.reproduce.schema import Variant
from bench.reproduce.specs import Artifact, Book
from bench.reproduce.statistics import standard_error
from bench.reproduce.tables import done_values

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_METRICS = 3  # as many panels
MANY_TIMES = 10.0  # a logarithmic axis is worth it from this ratio of its ends on
MOST_TICKS = 5
MARKS: dict[str, str] = {"paper": "o", "code": "s"}
FADED = 0.35  # the opacity of rows that are outdated
THUMBNAIL_POINTS = 40  # of a curve


def drawn_metrics(artifact: Artifact, record: Record) -> list[str]:
    """The first columns of the table of which at least two rows have a finite value."""
    rows = [row for group in record.rows.values() for row in group.values()]
    found = [
        name for name in artifact.spec.columns if sum(bool(done_values(r, name)) for r in rows) > 1
    ]
    return found[:MOST_METRICS]


def draw_results(
    artifact: Artifact, record: Record, book: Book, out: Path
) -> list[tuple[str, str]]:
    """Write one figure of last values, with a panel for each metric; none if there are no values.

    Circles are the paper's variant and squares the released code's, with the standard error of the
    mean; diamonds are what the paper prints. Rows that are outdated are pale. Gives (label, name of
    the SVG file).
    """
    metrics = drawn_metrics(artifact, record)
    if not metrics:
        return []
    spec, plt = artifact.spec, pyplot()
    names = [n for n in spec.rows if any(n in group for group in record.rows.values())]
    height = 1.1 + 0.27 * len(names)
    with plt.rc_context(figure_style(artifact)):
        figure, axes = plt.subplots(
            1, len(metrics), figsize=(1.6 + 3.1 * len(metrics), height), squeeze=False,
            layout="constrained", sharey=True,
        )  # fmt: skip
        for name, panel in zip(metrics, axes[0]):
            draw_metric(panel, artifact, record, book, name, names)
        axes[0][0].set_yticks(range(len(names)), names)
        axes[0][0].set_ylim(len(names) - 0.5, -0.5)
        add_legend(figure, columns=3)
        file = save_figure(figure, artifact, out, "results")
    return [("Last values, mean ± standard error", file)]


def draw_metric(
    panel: "Axes", artifact: Artifact, record: Record, book: Book, name: str, names: list[str]
) -> None:
    """Draw one metric's values of every row."""
    spec, metric = artifact.spec, book.metric(artifact.spec.task, name)
    factor = 100 if metric.percent else 1
    several = len(record.rows) > 1
    lowest = []
    for k, (variant, group) in enumerate(record.rows.items()):
        for at, row_name in enumerate(names):
            row = group.get(row_name)
            values = done_values(row, name) if row is not None else []
            if row is None or not values:
                continue
            mean, error = mean_and_error(values)
            lowest.append(mean)
            colour = book.methods[spec.rows[row_name].method].colour
            panel.errorbar(
                factor * mean, at + (k - 0.5) * 0.24 * several, xerr=factor * error,
                fmt=MARKS[variant], color=colour, ms=5, lw=1.2, alpha=opacity(row),
            )  # fmt: skip
        panel.plot([], [], MARKS[variant], color="#555555", ls="none", label=f"{variant} variant")
    for at, row_name in enumerate(names):
        printed = spec.rows[row_name].published.get(name)
        if printed is not None:
            lowest.append(printed.mean)
            panel.plot(
                factor * printed.mean, at, "D", mfc="none", mec="black", ms=6, label="published"
            )
    if name in spec.figure.log and lowest and 0 < MANY_TIMES * min(lowest) < max(lowest):
        panel.set_xscale("log")
    else:
        panel.locator_params(axis="x", nbins=MOST_TICKS)
    panel.set_xlabel(f"{metric.label}{' (%)' if metric.percent else ''}")
    panel.grid(axis="y", color="#eeeeee")


def mean_and_error(values: list[float]) -> tuple[float, float]:
    """The mean, and its standard error; 0 for one value."""
    return sum(values) / len(values), standard_error(values)[0] if len(values) > 1 else 0.0


def opacity(row: RowRecord) -> float:
    """How a row is drawn: pale if it is outdated."""
    return FADED if row.outdated else 1.0


def draw_thumbnail(
    artifact: Artifact,
    record: Record,
    drawn: dict[Variant, list[dict[str, Any]]],
    book: Book,
    out: Path,
) -> str | None:
    """Write the artifact's small picture for the index, without words; gives the file's name.

    It shows the first metric's curves of one variant, or else last values; None if the record has
    neither. drawn: from `curves.curves`.
    """
    spec, plt = artifact.spec, pyplot()
    metric, axis = spec.figure.metrics[0], spec.figure.axes[0]
    lines = next((some for some in drawn.values() if some), [])
    shown = [(line, points) for line in lines if (points := line_points(line, axis, metric))]
    columns = drawn_metrics(artifact, record)
    if not shown and not columns:
        return None
    with plt.rc_context({**figure_style(artifact), "axes.grid": False}):
        figure, panel = plt.subplots(figsize=(2.4, 1.35), layout="constrained")
        if shown:
            for line, points in shown:
                every = max(1, len(points) // THUMBNAIL_POINTS)
                x, y, _ = zip(*points[::every])
                panel.plot(x, y, color=line["colour"], ls=DASHES[line["dash"]], lw=1.5)
            if metric in spec.figure.log:
                panel.set_yscale("log", nonpositive="clip")
        else:
            draw_metric(panel, artifact, record, book, columns[0], list(spec.rows))
            panel.set_xlabel("")
            panel.set_ylim(len(spec.rows) - 0.5, -0.5)
        panel.set_xticks([])
        panel.set_yticks([])
        panel.minorticks_off()
        stem = out / artifact.id
        file = stem.with_name(f"{stem.name}-small.svg")
        write_figure(figure, file, {"Date": None})
        plt.close(figure)
    return file.name
