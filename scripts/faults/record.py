"""What a campaign has found: tables, and results/faults/campaign.json."""

import fcntl
import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from bench.runs.environment import environment_of
from bench.runs.files import read_small, write_whole
from scripts.faults.campaign import BAD, DISKS, FLIPS, KILLS
from scripts.faults.kinds import KINDS

PARTS = {"kills": KILLS, "disks": DISKS, "flips": FLIPS}
TITLES = {
    "kills": "killed with SIGKILL, then resumed",
    "disks": "on a full disk, then given room",
    "flips": "with a bit flipped, then resumed or read",
}


@dataclass
class Found:
    """What was counted, by part of the campaign and kind of run, and how long it took."""

    counts: dict[str, dict[str, Counter[str]]] = field(
        default_factory=lambda: {part: {} for part in PARTS}
    )
    seconds: float = 0.0
    commits: list[str] = field(default_factory=list)

    def has(self, part: str, kind: str) -> bool:
        """Whether this has been counted before."""
        return kind in self.counts[part]

    def is_bad(self) -> bool:
        """Whether something went wrong."""
        every = (count for part in self.counts.values() for count in part.values())
        return any(count[word] for count in every for word in BAD)


def read(file: Path) -> Found:
    """What the record has; nothing if there is none."""
    if not file.is_file():
        return Found()
    kept = json.loads(read_small(file))
    counts = {
        part: {kind: Counter(count) for kind, count in kept.get(part, {}).items()} for part in PARTS
    }
    return Found(counts, kept["seconds"], kept["commits"])


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """A context in which no other process is that locks this folder."""
    number = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(number, fcntl.LOCK_EX)
        yield
    finally:
        os.close(number)


def add(file: Path, part: str, kind: str, count: Counter[str], seconds: float, words: str) -> Found:
    """Add what was counted to the record, which several processes may do; gives all of it.

    words: the options of the command.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with lock(file.parent):
        found = read(file)
        found.counts[part][kind] = count
        found.seconds += seconds
        about = environment_of(torch.device("cpu"), 1, {})
        commit = about["git"]["commit"] if about["git"] else None
        found.commits += [commit] if commit and commit not in found.commits else []
        content: dict[str, Any] = {
            "title": "Runs that are killed, whose disk is full, or of whose files a bit is flipped",
            "command": f"python -m scripts.faults {words}",
            "date": datetime.now(UTC).date().isoformat(),
            "hardware": [about["cpu"]],
            "software": [{"python": about["python"], **about["packages"]}],
            "commits": found.commits,
            "seconds": round(found.seconds),
            "totals": {part: total(found, part) for part in PARTS},
        }
        for name, columns in PARTS.items():
            kinds = sorted(found.counts[name], key=list(KINDS).index)
            content[name] = {k: {c: found.counts[name][k][c] for c in columns} for k in kinds}
        write_whole(file, json.dumps(content, indent=1) + "\n")
    return found


def total(found: Found, part: str) -> dict[str, int]:
    """The counts of all kinds together."""
    every = sum(found.counts[part].values(), Counter[str]())
    return {column: every[column] for column in PARTS[part]}


def print_tables(found: Found) -> None:
    """Print a table for each part, with a row for each kind and one for all."""
    console = Console(width=120)
    for part, columns in PARTS.items():
        table = Table(title=TITLES[part], title_justify="left", box=None)
        for column in ("", *columns):
            table.add_column(column, justify="right")
        rows = {**found.counts[part], "all": Counter(total(found, part))}
        for kind, count in rows.items():
            table.add_row(kind, *(str(count[column]) for column in columns))
        console.print(table)
    console.print(f"{found.seconds:.0f} s")
