"""What a comparison leaves: a table on the terminal and, with --json, a record for the docs."""

import os
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from bench.reproduce.speed import SpeedLine, SpeedRecord, speed_ratio
from bench.runs.environment import environment_of
from bench.runs.files import write_json
from scripts.speed.harness import Timing

WIDTH = 150  # characters of the table


def print_timing(timing: Timing) -> None:
    """The table, and below it the facts that belong to no line."""
    columns = list(dict.fromkeys(key for line in timing.lines for key in facts_of(line)))
    table = Table(title=timing.title, title_justify="left", box=None)
    for column in ("method", "implementation"):
        table.add_column(column)
    for column in ("s", "(min to max)", "theirs / ours", *columns):
        table.add_column(column, justify="right")
    table.add_column("note")
    before = ""
    for line in timing.lines:
        ours = next(other for other in timing.lines if other.method == line.method)
        table.add_row(
            line.method if line.method != before else "",
            line.name,
            *format_times(ours, line),
            *(format_fact(facts_of(line).get(column)) for column in columns),
            line.note,
        )
        before = line.method
    Console(width=WIDTH).print(table)
    for key, value in timing.facts.items():
        print(f"{key:45}{format_fact(value):>10}")


def facts_of(line: SpeedLine) -> dict[str, Any]:
    """What the comparison's file tells of a line, by column."""
    return {key: value for key, value in (line.model_extra or {}).items() if key != "ratio"}


def format_times(ours: SpeedLine, line: SpeedLine) -> tuple[str, str, str]:
    """The median of the seconds, their range, and how often ours goes into them."""
    if not line.seconds:
        return "-", "", "-"
    spread = f"({min(line.seconds):.3g} to {max(line.seconds):.3g})"
    against = "" if line is ours else speed_ratio(ours.seconds, line.seconds).text
    return f"{median(line.seconds):.3g}", spread, against


def format_fact(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def write_record(file: Path, timing: Timing, *, packages: str, threads: int, load: float) -> None:
    """Writes what bench/reproduce/speed.py reads: the lines, and on what they were measured.

    load: the machine's before the first turn.
    """
    about = environment_of(torch.device(timing.device), threads, {})
    more: dict[str, Any] = {
        "commits": [about["git"]["commit"]] if about["git"] else [],
        "load": load,
        **timing.facts,
    }
    record = SpeedRecord(
        title=timing.title,
        command=command(packages),
        date=datetime.now(UTC).date().isoformat(),
        device=timing.device,
        hardware=[about["gpu"] or about["cpu"]],
        threads=threads,
        software=[{"python": about["python"], **about["packages"]}],
        lines=timing.lines,
        **more,
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, record.model_dump())


def command(packages: str) -> str:
    """The command line that repeats this call; packages: options of `uv run`."""
    words = [
        "uv run",
        packages,
        "python -m scripts.speed",
        shlex.join(without_places(sys.argv[1:])),
    ]
    return " ".join(filter(None, words))


def without_places(given: list[str]) -> list[str]:
    """The arguments without `--data FOLDER`: where data are is told by BENCH_DATA elsewhere; and
    with a file below a folder `results` as it is below a checkout's."""
    kept: list[str] = []
    for word in given:
        after = kept[-1:] == ["--data"]
        if after and os.sep in word:
            kept.pop()
        elif kept[-1:] == ["--json"] and "results" in Path(word).parts:
            parts = Path(word).parts
            kept.append(str(Path(*parts[parts.index("results") :])))
        elif not (word.startswith("--data=") and os.sep in word):
            kept.append(word)
    return kept
