"""Draw the picture of docs/findings.md: trajectories on BOME's toy coreset, from run folders.

    uv run python scripts/draw_coreset.py --out results/coreset.png

Runs what is missing of the named configurations (a minute or two), then draws theta_k over the
contours of f for every method and start, as BOME's figure 3 does for the released problem.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

METHODS = {"bome": "BOME", "bsg1": "BSG-1", "bvfsm": "BVFSM", "penalty": "Penalty"}
COLOURS = ("#0072B2", "#009E73", "#E69F00", "#D55E00")  # Okabe and Ito: safe for colour-blind eyes
CORNERS = np.array(
    [(1, 3), (3, 1), (-3, -2), (-2, 2), (1, 3)], float
)  # of the convex hull, in order


def trajectory(method: str, start: int, root: Path) -> np.ndarray:
    """theta at every measurement of a run, [rows, 2]; the run is made if it is not there."""
    overrides = [
        f"experiment=toy_coreset_code_{method}",
        f"task.start={start}",
        "run.every=20",
        f"run.root={root}/start{start}",
    ]
    subprocess.run([sys.executable, "-m", "bench", *overrides], check=True, capture_output=True)
    (history,) = (root / f"start{start}" / "toy_coreset" / method).glob("*/history.jsonl")
    rows = [json.loads(line) for line in history.read_text().splitlines()]
    return np.array([(row["theta_1"], row["theta_2"]) for row in rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("results/coreset.png"))
    parser.add_argument("--root", type=Path, default=Path("runs/draw_coreset"))
    arguments = parser.parse_args()

    figure, axes = plt.subplots(1, 4, figsize=(12, 3.4), sharex=True, sharey=True)
    grid = np.meshgrid(np.linspace(-4, 4, 200), np.linspace(-3, 4, 200))
    f = 0.1 * ((grid[0] - 3) ** 2 + (grid[1] + 2) ** 2)
    for ax, (method, label), colour in zip(axes, METHODS.items(), COLOURS, strict=True):
        ax.contour(*grid, f, levels=12, colors="0.85", linewidths=0.8)
        ax.fill(*CORNERS.T, color="0.92", zorder=0)
        for start in (1, 2, 3):
            path = trajectory(method, start, arguments.root)
            ax.plot(*path.T, color=colour, linewidth=1.5)
            ax.plot(*path[0], "o", color="white", markeredgecolor=colour, markersize=6)
            ax.plot(*path[-1], "o", color=colour, markersize=6)
        ax.plot(1.8, 0.4, "*", color="black", markersize=12, zorder=5)
        ax.set_title(label)
        ax.set_xlabel(r"$\theta_1$")
        ax.set_aspect("equal")
    axes[0].set_ylabel(r"$\theta_2$")
    figure.tight_layout()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(arguments.out, dpi=110)


if __name__ == "__main__":
    main()
