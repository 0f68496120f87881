"""What a command leaves in its folder, without what the clock says."""

import json
import re
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from bench.reproduce.records import read_record
from bench.runs.checkpoint import read_content
from bench.runs.folder import SWEEP_SUMMARY, RunFolder, folders_below

TIMES = ("seconds", "cpu_seconds", "amortised_seconds")
ALIKE = ("status", "reason", "name", "seed", "metric", "references", "amortised")  # of a summary
SETTLED = ("device", "threads", "data", "compile", "named_by")  # of an environment
DATE = re.compile(r"\d{4}-\d\d-\d\d")


def without_times(row: dict[str, Any]) -> dict[str, Any]:
    """A row of a history without its clocks."""
    return {key: value for key, value in row.items() if key not in TIMES}


def outcome(folder: RunFolder) -> Any:
    """What a run has left: rows, final state, sums and counts, summary, picture and conditions.

    Raises BadSetting or ValueError if a file cannot be read.
    """
    summary, environment = folder.shown_summary(), folder.environment()
    content = without_times(read_content(folder.checkpoint)) if folder.has_checkpoint() else {}
    leaves = tree_leaves((content.pop("leaves", None), content.pop("best", None)))
    config = folder.config()
    return [
        [without_times(row) for row in folder.history()],
        [leaf.tolist() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves],
        content,
        summary and [without_times(summary["last"]), *(summary.get(key) for key in ALIKE)],
        folder.view(),
        [environment.get(key) for key in SETTLED],
        [config["seed"], config["task"], config["algorithm"]],
    ]


def outcomes(root: Path) -> str:
    """What all runs below a folder have left, as a text: that of a nan is equal to another's."""
    return repr({folder.name: outcome(folder) for folder in folders_below(root)})


def sweep_table(root: Path) -> Any:
    """The runs of the last sweep below a folder; one that is skipped was done before."""
    last = max((root / ".sweeps").glob(f"*/{SWEEP_SUMMARY}"), key=lambda file: file.stat().st_mtime)
    runs = json.loads(last.read_text())["runs"]
    good = {"done": "ended", "skipped": "ended"}
    return [[r["number"], r["words"], r["name"], good.get(r["status"], r["status"])] for r in runs]


def record_and_histories(artifact: str, budget: str, results: Path) -> Any:
    """A record with its histories, without its date; raises BadSetting if it is damaged."""
    found = read_record(artifact, budget, results)
    return found and [found.model_dump(exclude={"date"}), found.histories]


def pages(folder: Path) -> dict[str, str]:
    """The texts of a report, without dates."""
    texts = (
        file
        for file in sorted(folder.rglob("*"))
        if file.suffix in (".html", ".md", ".tex", ".svg")
    )
    return {str(file.relative_to(folder)): DATE.sub("", file.read_text()) for file in texts}
