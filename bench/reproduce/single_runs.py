"""The curves of single runs, in scripts that the page of `reproduce compare` loads when needed."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

from bench.reproduce.bands import MeasuredRun
from bench.reproduce.statistics import Array

FILE_CHARACTERS = 1_000_000  # of a script


class Pool:
    """Columns of numbers, each of which is kept once: all runs of a group have the same steps."""

    def __init__(self) -> None:
        self.columns: list[list[float | None]] = []
        self.numbers: dict[bytes, int] = {}

    def add(self, values: Array) -> int:
        """The number of a column."""
        key = values.tobytes()
        if key not in self.numbers:
            self.numbers[key] = len(self.columns)
            self.columns.append(
                [float(f"{v:.5g}") if math.isfinite(v) else None for v in values.tolist()]
            )
        return self.numbers[key]


def thin(values: Array, most: int) -> Array:
    """At most `most` of the values, evenly spread, the first and last among them."""
    n = len(values)
    return values if n <= most else values[[round(i * (n - 1) / (most - 1)) for i in range(most)]]


def write_single_runs(
    groups: Sequence[Sequence[MeasuredRun]], folder: Path
) -> tuple[list[list[int]], int]:
    """Write every run's own curves into scripts beside the page.

    Gives for each script the numbers of the groups that it has, and how many characters all have
    together. Those of an earlier page are removed.
    """
    for old in folder.glob("runs-*.js"):
        old.unlink()
    files: list[list[int]] = [[]]
    texts: list[str] = []
    size = total = number = 0
    for i, group in enumerate(groups):
        pool = Pool()
        runs = {
            number + k: {name: pool.add(values) for name, values in run.columns.items()}
            for k, run in enumerate(group)
        }
        number += len(group)
        text = json.dumps({"columns": pool.columns, "runs": runs}, separators=(",", ":"))
        if size and size + len(text) > FILE_CHARACTERS:
            write_script(folder, len(files) - 1, texts)
            files.append([])
            texts, size = [], 0
        files[-1].append(i)
        texts.append(text)
        size, total = size + len(text), total + len(text)
    write_script(folder, len(files) - 1, texts)
    return files, total


def write_script(folder: Path, number: int, texts: Sequence[str]) -> None:
    """Write a script that hands groups of single runs to the page."""
    calls = "".join(f"takeRuns({text});\n" for text in texts)
    (folder / f"runs-{number}.js").write_text(calls)
