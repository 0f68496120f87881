"""Draws the curves and paths of a report with matplotlib, each figure as SVG and as PDF."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.reproduce.schema import Variant
from bench.reproduce.specs import Artifact, Book
from bench.runs.files import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DASHES: dict[str, Any] = {
    "solid": "-", "dash": (0, (5, 2)), "dot": (0, (1, 1.5)), "dashdot": (0, (5, 1.5, 1, 1.5)),
}  # fmt: skip
MOST_LABELS = 9  # more curves than this have a legend in place of labels at their ends
LABEL_GAP = 0.062  # between two labels, as a share of the panel's height
WIDEST, NARROWEST = 3.2, 1.3  # points; a curve below others is wider, so that it is seen


def pyplot() -> Any:
    """matplotlib's pyplot, which draws without a screen."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot as plt

    return plt


def figure_style(artifact: Artifact) -> Any:
    """matplotlib's parameters for all figures of an artifact."""
    return {
        "svg.fonttype": "none",  # text stays text
        "svg.hashsalt": artifact.id,  # the same file from the same data
        "pdf.fonttype": 42,  # what journals take
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.color": "#dddddd",
        "axes.axisbelow": True,
        "font.family": "sans-serif",
    }


def save_figure(figure: "Figure", artifact: Artifact, out: Path, name: str) -> str:
    """Write <artifact>-<name> as SVG and as PDF, close the figure, and give the SVG's file name."""
    stem = out / artifact.id
    file = stem.with_name(f"{stem.name}-{name}.svg")
    write_figure(figure, file, {"Date": None})
    write_figure(figure, file.with_suffix(".pdf"), {"CreationDate": None})
    pyplot().close(figure)
    return file.name


def write_figure(figure: "Figure", file: Path, metadata: dict[str, None]) -> None:
    """Write a figure, whole or not at all; raises OSError, which names the file.

    Its layout is computed once and kept: matplotlib would draw it twice for each file.
    """
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
        figure.set_layout_engine(None)
    content = io.BytesIO()
    figure.savefig(content, format=file.suffix[1:], metadata=metadata)
    write_whole(file, content.getvalue())


def draw_figures(
    artifact: Artifact,
    drawn: dict[Variant, list[dict[str, Any]]],
    planes: dict[Variant, dict[str, Any]],
    book: Book,
    out: Path,
) -> list[tuple[str, str]]:
    """Write a figure for each metric, over the first axis, and one for the paths if there are any.

    A figure has a panel for each variant. drawn, planes: from `curves.curves` and `curves.paths`.
    Gives (label, name of the SVG file) of each.
    """
    spec, files = artifact.spec, []
    variants = [v for v in spec.variants if drawn.get(v)]
    if not variants:
        return []
    plt, axis = pyplot(), spec.figure.axes[0]

    def panels(width: float, height: float) -> tuple["Figure", list["Axes"]]:
        figure, axes = plt.subplots(
            1, len(variants), figsize=(width * len(variants), height), squeeze=False,
            layout="constrained",
        )  # fmt: skip
        return figure, list(axes[0])

    with plt.rc_context(figure_style(artifact)):
        for metric in spec.figure.metrics:
            if not any(has_points(line, axis, metric) for v in variants for line in drawn[v]):
                continue
            figure, axes = panels(5.2, 3.6)
            log = metric in spec.figure.log
            labelled = all(len(drawn[v]) <= MOST_LABELS for v in variants)
            for variant, panel in zip(variants, axes):
                draw_curves(panel, drawn[variant], axis, metric, log)
                if labelled:
                    label_ends(panel, drawn[variant], axis, metric)
                panel.set_title(f"{variant} variant")
                panel.set_xlabel(book.metric(spec.task, axis).label)
            label = book.metric(spec.task, metric).label
            axes[0].set_ylabel(label)
            if not labelled:
                add_legend(figure)
            files.append((label, save_figure(figure, artifact, out, metric.replace("/", "_"))))
        if planes:
            figure, axes = panels(4.6, 4.6)
            for variant, panel in zip(variants, axes):
                if variant in planes:
                    draw_plane(panel, planes[variant], variant)
            add_legend(figure)
            files.append(("trajectories", save_figure(figure, artifact, out, "trajectory")))
    return files


def has_points(line: dict[str, Any], axis: str, metric: str) -> bool:
    """Whether a curve has any point."""
    return bool(line_points(line, axis, metric))


def line_points(line: dict[str, Any], axis: str, metric: str) -> list[tuple[float, float, float]]:
    """A curve's (x, mean, standard error), without its gaps."""
    return [
        (x, m, s or 0.0)
        for x, (m, s) in zip(line["x"][axis], line["y"][metric])
        if x is not None and m is not None
    ]


def draw_curves(
    panel: "Axes", lines: Sequence[dict[str, Any]], axis: str, metric: str, log: bool
) -> None:
    """Draw the curves of a variant with their bands, and what the paper prints as diamonds.

    The first curves are the widest, so that one that lies below another is still seen. The x axis
    ends where the data end.
    """
    step = (WIDEST - NARROWEST) / max(1, len(lines) - 1)
    ends = []
    for i, line in enumerate(lines):
        points = line_points(line, axis, metric)
        if not points:
            continue
        x, m, s = zip(*points)
        ends += [x[0], x[-1]]
        panel.plot(
            x, m, color=line["colour"], ls=DASHES[line["dash"]], lw=WIDEST - i * step,
            label=line["row"], solid_capstyle="butt",
        )  # fmt: skip
        if line["n"] > 1:
            low, high = zip(*[(a - b, a + b) for a, b in zip(m, s)])
            panel.fill_between(x, low, high, color=line["colour"], alpha=0.15, lw=0)
        if metric in line["published"]:
            panel.plot(
                x[-1], line["published"][metric], "D", mfc="white", mec=line["colour"], ms=5,
                clip_on=False, zorder=5,
            )  # fmt: skip
    if log:
        panel.set_yscale("log", nonpositive="clip")
    if ends and min(ends) < max(ends):
        panel.set_xlim(min(ends), max(ends))


def label_ends(panel: "Axes", lines: Sequence[dict[str, Any]], axis: str, metric: str) -> None:
    """Write each curve's name to the right of its end, moved apart where ends are close."""
    ends = []
    for line in lines:
        points = line_points(line, axis, metric)
        if points:
            ends.append((line, points[-1]))
    to_share = panel.transLimits.transform
    scale = panel.transScale.transform
    placed = []
    for line, (x, m, _) in ends:
        across, height = to_share(scale((x, m)))
        if not 0 <= height <= 1:  # also where it is nan
            height = min(1.0, max(0.0, height)) if height == height else 0.0
        placed.append((line, float(across), float(height)))
    placed.sort(key=lambda entry: entry[2])
    heights = spread([height for _, _, height in placed], LABEL_GAP)
    for (line, across, height), at in zip(placed, heights):
        panel.annotate(
            line["row"], (across, height), (1.06, at), xycoords="axes fraction",
            textcoords="axes fraction", va="center", ha="left", fontsize=8, annotation_clip=False,
            arrowprops={
                "arrowstyle": "-", "color": line["colour"], "lw": 1.0,
                "ls": DASHES[line["dash"]], "shrinkA": 1, "shrinkB": 0,
            },
        )  # fmt: skip


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """The sorted heights moved apart, so that neighbours have at least the gap.

    They stay as near to their places as their groups allow: neighbours that would touch form a
    group, which lies around the mean of its places.
    """
    groups: list[list[float]] = []  # of each the places that its members would have alone
    for height in heights:
        groups.append([height])
        while len(groups) > 1 and bottom(groups[-1], gap) < top(groups[-2], gap) + gap:
            last = groups.pop()
            groups[-1] += last
    return [bottom(group, gap) + i * gap for group in groups for i in range(len(group))]


def bottom(group: Sequence[float], gap: float) -> float:
    """The height of a group's lowest member."""
    return sum(group) / len(group) - gap * (len(group) - 1) / 2


def top(group: Sequence[float], gap: float) -> float:
    """The height of a group's highest member."""
    return bottom(group, gap) + gap * (len(group) - 1)


def add_legend(figure: "Figure", columns: int = 4) -> None:
    """Write one legend below all panels, each name once."""
    handles: dict[str, Any] = {}
    for panel in figure.axes:
        for handle, text in zip(*panel.get_legend_handles_labels()):
            handles.setdefault(text, handle)
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=columns, frameon=False
    )


def draw_plane(panel: "Axes", data: dict[str, Any], variant: str) -> None:
    """Draw a variant's paths over contours.

    Open circles are starts, filled ones ends; a star is the optimum, a cross the goal.
    """
    x_grid, y_grid = data["grid"]
    if data["z"] is not None:
        panel.contour(x_grid, y_grid, data["z"], levels=14, colors="#bbbbbb", linewidths=0.6)
    panel.set_xlim(*data["ranges"][0])
    panel.set_ylim(*data["ranges"][1])
    step = (WIDEST - NARROWEST) / max(1, len(data["lines"]) - 1)
    for i, line in enumerate(data["lines"]):
        points = [(x, y) for x, y in zip(line["x"], line["y"]) if x is not None and y is not None]
        if not points:
            continue
        x, y = zip(*points)
        panel.plot(
            x, y, color=line["colour"], ls=DASHES[line["dash"]], lw=WIDEST - i * step,
            label=line["row"],
        )  # fmt: skip
        panel.plot(x[0], y[0], "o", color=line["colour"], mfc="white", ms=5)
        panel.plot(x[-1], y[-1], "o", color=line["colour"], ms=5)
    if data["optimum"]:
        panel.plot(*data["optimum"], "*", color="black", ms=13, label="optimum", ls="none")
        shown = ", ".join(f"{v:.3g}" for v in data["optimum"])
        panel.set_title(f"{variant} variant, optimum ({shown})")
    if data["goal"]:
        panel.plot(*data["goal"], "x", color="black", ms=8, label="goal of f", ls="none")
    panel.set_xlabel(data["labels"][0])
    panel.set_ylabel(data["labels"][1])
