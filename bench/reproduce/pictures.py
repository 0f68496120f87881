"""Draws what is not a curve: costs against a number, histograms and matrices of a run's end."""

from pathlib import Path
from typing import Any

from bench.reproduce.drawings import DASHES, figure_style, pyplot, save_figure
from bench.reproduce.schema import Variant
from bench.reproduce.specs import Artifact


def draw_scalings(
    artifact: Artifact, found: dict[Variant, list[dict[str, Any]]], out: Path
) -> list[tuple[str, str]]:
    """Write one file for each variant, and give (label, file's name) of each.

    A file has a panel for every cost and what it grows with, both on logarithmic axes. A thin line
    of the stated order goes through each method's first point. found: from `curves.scalings`.
    """
    plt = pyplot()

    files = []
    for variant, lines in found.items():
        kinds = list(dict.fromkeys((line["against"], line["metric"]) for line in lines))
        across = min(4, len(kinds))
        down = -(-len(kinds) // across)
        with plt.rc_context(figure_style(artifact)):
            figure, axes = plt.subplots(
                down, across, figsize=(2.9 * across, 2.7 * down), squeeze=False,
                layout="constrained",
            )  # fmt: skip
            for panel in axes.flat[len(kinds) :]:
                panel.set_axis_off()
            handles: dict[str, Any] = {}
            for panel, kind in zip(axes.flat, kinds):
                for line in (one for one in lines if (one["against"], one["metric"]) == kind):
                    method, (x, y) = line["method"], zip(*line["points"])
                    (handles[method.label],) = panel.loglog(
                        x, y, marker="o", color=method.colour, ls=DASHES[method.dash], ms=4, lw=1.4
                    )
                    if line["order"] is not None:
                        bound = [y[0] * (at / x[0]) ** line["order"] for at in x]
                        panel.loglog(x, bound, color=method.colour, ls=DASHES[method.dash], lw=0.5)
                panel.set_xlabel(kind[0])
                panel.set_title(kind[1])
            figure.legend(
                handles.values(), handles.keys(), loc="outside lower center", ncols=4, frameon=False
            )
            name = save_figure(figure, artifact, out, f"{variant}-scaling")
        files.append((f"Cost of reaching the target (thin: stated order), {variant}", name))
    return files


def draw_views(
    artifact: Artifact, found: dict[Variant, list[tuple[str, dict[str, Any]]]], out: Path
) -> list[tuple[str, str]]:
    """Write one file for each variant, and give (label, file's name) of each.

    A file has a histogram or a matrix for each row. found: from `curves.views`.
    """
    plt = pyplot()

    files = []
    for variant, rows in found.items():
        if not rows:
            continue
        if "matrix" in rows[0][1]:
            files.append(draw_matrices(artifact, variant, rows, out))
            continue
        across = min(3, len(rows))
        down = -(-len(rows) // across)
        with plt.rc_context(figure_style(artifact)):
            figure, axes = plt.subplots(
                down, across, figsize=(3.2 * across, 2.2 * down), squeeze=False,
                layout="constrained", sharex=True,
            )  # fmt: skip
            for panel in axes.flat[len(rows) :]:
                panel.set_axis_off()
            for panel, (row, view) in zip(axes.flat, rows):
                for (group, shares), colour, hatch in zip(
                    view["shares"].items(), ("#0072b2", "#d55e00"), ("", "////")
                ):
                    width = (view["high"] - view["low"]) / len(shares)
                    edges = [view["low"] + i * width for i in range(len(shares) + 1)]
                    panel.stairs(
                        shares, edges, fill=True, color=colour, alpha=0.45, hatch=hatch,
                        label=f"{group}s",
                    )  # fmt: skip
                    panel.stairs(shares, edges, color=colour)
                panel.set_yscale("symlog", linthresh=0.01)
                panel.set_ylim(0, 1)
                panel.set_yticks([0, 0.01, 0.1, 1], ["0", ".01", ".1", "1"])
                panel.set_title(row)
            for panel in axes[-1]:
                panel.set_xlabel(rows[0][1]["label"])
            axes[0][0].set_ylabel("share")
            handles, labels = axes[0][0].get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
            name = save_figure(figure, artifact, out, f"{variant}-view")
        title = rows[0][1]["title"]
        files.append(
            (f"{title} at the end, first seed (logarithmic above .01), {variant} variant", name)
        )
    return files


def draw_matrices(
    artifact: Artifact, variant: Variant, rows: list[tuple[str, dict[str, Any]]], out: Path
) -> tuple[str, str]:
    """Write one file with a heat map for each row, on one scale; gives (label, file's name)."""
    plt = pyplot()
    across = min(4, len(rows))
    down = -(-len(rows) // across)
    plain = {"axes.grid": False, "axes.spines.top": True, "axes.spines.right": True}
    with plt.rc_context(figure_style(artifact) | plain):
        figure, axes = plt.subplots(
            down, across, figsize=(2.4 * across, 2.5 * down), squeeze=False, layout="constrained"
        )
        for panel in axes.flat[len(rows) :]:
            panel.set_axis_off()
        for panel, (row, view) in zip(axes.flat, rows):
            values = [[float("nan") if v is None else v for v in line] for line in view["matrix"]]
            n = len(values)
            image = panel.imshow(
                values, vmin=view["low"], vmax=view["high"], cmap="viridis",
                extent=(0.5, n + 0.5, n + 0.5, 0.5), interpolation="nearest",
            )  # fmt: skip
            panel.set_title(row)
            panel.set_xlabel(view["x"])
            panel.set_ylabel(view["y"])
        title = rows[0][1]["title"]
        figure.colorbar(image, ax=axes, label=title.lower(), shrink=0.8)
        name = save_figure(figure, artifact, out, f"{variant}-view")
    return f"{title}, first seed, {variant} variant", name
