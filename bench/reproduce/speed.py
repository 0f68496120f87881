"""The tables of docs/speed.md, from results/speed/*.json.

Each of these files is about one comparison on one machine; `python -m scripts.speed` writes them
with --json.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bench.core.settings import BadSetting
from bench.reproduce.statistics import LEVEL, student_interval


class SpeedLine(BaseModel):
    """An implementation of a method; the first line of a method is this project's own.

    seconds: one time for each turn, as all implementations of a method are timed in turn. The list
    is empty if the implementation could not be timed, and the note then says why.
    """

    model_config = ConfigDict(extra="allow")
    method: str
    name: str
    seconds: list[float]
    note: str = ""


class SpeedRecord(BaseModel):
    """One measurement on one machine. command: what repeats it."""

    model_config = ConfigDict(extra="allow")
    title: str
    command: str
    date: str
    device: str
    hardware: list[str] = Field(min_length=1)
    software: list[dict[str, str]] = Field(min_length=1)
    threads: int
    lines: list[SpeedLine] = Field(min_length=1)


class SpeedRatio(NamedTuple):
    """Their time over ours: the geometric mean of the turns' ratios, and its interval.

    low, high: Student's interval at 95%; None for fewer than three turns.
    """

    value: float
    low: float | None
    high: float | None

    @property
    def text(self) -> str:
        """The ratio and its interval with two digits after the point."""
        interval = "" if self.low is None else f" [{self.low:.2f}, {self.high:.2f}]"
        return f"{self.value:.2f}{interval}"


def speed_ratio(ours: list[float], theirs: list[float]) -> SpeedRatio:
    """The ratio of two lists of seconds that were measured in turn."""
    logs = [math.log(b / a) for a, b in zip(ours, theirs)]
    value = math.exp(sum(logs) / len(logs))
    if len(logs) < 3:
        return SpeedRatio(value, None, None)
    low, high = student_interval(logs, LEVEL)
    return SpeedRatio(value, math.exp(low), math.exp(high))


def read_speed(results: Path) -> list[SpeedRecord]:
    """Every record of speed, in the order of the files' names; raises BadSetting."""
    found = []
    for file in sorted((results / "speed").glob("*.json")):
        try:
            found.append(SpeedRecord.model_validate(json.loads(file.read_text())))
        except (ValueError, ValidationError) as error:
            said = " ".join(str(error).split())[:200]
            raise BadSetting(f"{file} is no record of speed: {said}") from None
    return found


def speed_tables(results: Path) -> str:
    """A table for each record, with the machine, the versions and the command that repeats it."""
    found = read_speed(results)
    if not found:
        return "\nNo speed is recorded yet: `results/speed/` is empty.\n\n"
    return "\n" + "\n".join(_section(record) for record in found)


def _section(record: SpeedRecord) -> str:
    software = record.software[0]
    about = [
        ", ".join(record.hardware),
        f"{record.threads} thread{'s' * (record.threads != 1)}",
        *(
            f"{package} {software[package]}"
            for package in ("python", "torch")
            if package in software
        ),
        record.date,
    ]
    lines = [
        f"**{record.title}** ({', '.join(about)}): `{record.command}`",
        "",
        "| method | against | ours | theirs | ratio |",
        "|---|---|---|---|---|",
    ]
    return "\n".join([*lines, *_rows(record.lines), ""])


def _rows(lines: list[SpeedLine]) -> Iterator[str]:
    for method in dict.fromkeys(line.method for line in lines):
        ours, *others = [line for line in lines if line.method == method]
        for other in others:
            timed = ours.seconds and other.seconds
            about = f"{other.name} ({other.note})" if timed and other.note else other.name
            cells: list[Any] = [method, about, *map(_time, (ours, other))]
            cells.append(speed_ratio(ours.seconds, other.seconds).text if timed else other.note)
            yield "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def _time(line: SpeedLine) -> str:
    if not line.seconds:
        return "·"
    seconds = median(line.seconds)
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"
