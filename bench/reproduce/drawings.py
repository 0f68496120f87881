"""The figures of a report as SVG, by matplotlib."""

from pathlib import Path
from typing import Any

from bench.reproduce.specs import Artifact, Book, Variant

DASHES: dict[str, Any] = {
    "solid": "-", "dash": (0, (5, 2)), "dot": (0, (1, 1.5)), "dashdot": (0, (5, 1.5, 1, 1.5)),
}  # fmt: skip


def write(
    artifact: Artifact,
    drawn: dict[Variant, list[dict[str, Any]]],
    planes: dict[Variant, dict[str, Any]],
    book: Book,
    out: Path,
) -> list[tuple[str, str]]:
    """One file per metric, over the first axis, and one of the paths; (label, file) of each."""
    if not any(drawn.values()):
        return []
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot as plt
    from matplotlib.figure import Figure

    style: Any = {
        "svg.fonttype": "none",  # text stays text
        "svg.hashsalt": artifact.id,  # the same file from the same data
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.color": "#dddddd",
        "font.family": "sans-serif",
    }
    spec, files = artifact.spec, []
    stem = out / artifact.id
    variants = [v for v in spec.variants if drawn.get(v)]
    axis = spec.figure.axes[0]

    def save(figure: Figure, name: str, label: str) -> None:
        handles: dict[str, Any] = {}
        for panel in figure.axes:
            for handle, text in zip(*panel.get_legend_handles_labels()):
                handles.setdefault(text, handle)
        figure.legend(
            handles.values(), handles.keys(), loc="outside lower center", ncols=4, frameon=False
        )
        file = stem.with_name(f"{stem.name}-{name}.svg")
        figure.savefig(file, metadata={"Date": None})
        plt.close(figure)
        files.append((label, file.name))

    def panels(width: float, height: float) -> tuple[Figure, list[Any]]:
        figure, axes = plt.subplots(
            1, len(variants), figsize=(width * len(variants), height), squeeze=False,
            layout="constrained",
        )  # fmt: skip
        return figure, list(axes[0])

    with plt.rc_context(style):
        for metric in spec.figure.metrics:
            figure, axes = panels(4.6, 3.6)
            for variant, panel in zip(variants, axes):
                for line in drawn[variant]:
                    points = [
                        (x, m, s or 0.0)
                        for x, (m, s) in zip(line["x"][axis], line["y"][metric])
                        if x is not None and m is not None
                    ]
                    if not points:
                        continue
                    x, m, s = zip(*points)
                    panel.plot(
                        x, m, color=line["colour"], ls=DASHES[line["dash"]], lw=1.4,
                        label=line["row"],
                    )  # fmt: skip
                    if line["n"] == 1:
                        continue
                    low, high = zip(*[(a - b, a + b) for a, b in zip(m, s)])
                    panel.fill_between(x, low, high, color=line["colour"], alpha=0.15, lw=0)
                if metric in spec.figure.log:
                    panel.set_yscale("log", nonpositive="clip")
                panel.set_title(f"{variant} variant")
                panel.set_xlabel(book.metric(spec.task, axis).label)
            label = book.metric(spec.task, metric).label
            axes[0].set_ylabel(label)
            save(figure, metric.replace("/", "_"), label)
        if planes:
            figure, axes = panels(4.6, 4.6)
            for variant, panel in zip(variants, axes):
                plane(panel, planes[variant], variant)
            save(figure, "trajectory", "trajectories")
    return files


def plane(panel: Any, data: dict[str, Any], variant: str) -> None:
    """Paths over contours: open circles are starts, filled ones ends, the star is the optimum."""
    x_grid, y_grid = data["grid"]
    if data["z"] is not None:
        panel.contour(x_grid, y_grid, data["z"], levels=14, colors="#bbbbbb", linewidths=0.6)
    panel.set_xlim(*data["ranges"][0])
    panel.set_ylim(*data["ranges"][1])
    for line in data["lines"]:
        points = [(x, y) for x, y in zip(line["x"], line["y"]) if x is not None and y is not None]
        if not points:
            continue
        x, y = zip(*points)
        panel.plot(x, y, color=line["colour"], ls=DASHES[line["dash"]], lw=1.4, label=line["row"])
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
