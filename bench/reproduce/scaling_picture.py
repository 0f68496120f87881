"""How seconds grow with a problem's sizes, drawn from a record of `scripts.speed scaling`.

One panel for each size that changes, both axes logarithmic. As the README's picture, the file is
written without a drawing library, so that a record gives the same bytes everywhere.
"""

import math
from collections.abc import Iterator, Sequence
from html import escape
from statistics import median
from typing import NamedTuple

from bench.reproduce.speed import SpeedLine, SpeedRecord
from bench.reproduce.svg import PALE, head

ACROSS, WIDE, HIGH = 3, 250, 190  # panels in a row; pixels of a panel
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 26, 26  # a panel's margins
HEAD = 58
COLOURS = ("#0072b2", "#d55e00", "#6e7781")  # ours, a peer, the floor


class Series(NamedTuple):
    """An implementation's points (size, seconds) in one panel."""

    name: str
    points: list[tuple[float, float]]


def panels_of(lines: Sequence[SpeedLine]) -> dict[str, list[Series]]:
    """The series of each size that changes; none if the record is not by size."""
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for line in lines:
        more = line.model_extra or {}
        if "axis" in more and line.seconds:
            series = found.setdefault(more["axis"], {}).setdefault(line.name, [])
            series.append((float(more["value"]), median(line.seconds)))
    return {axis: [Series(*each) for each in named.items()] for axis, named in found.items()}


def draw_scaling(record: SpeedRecord) -> str:
    """The picture as the text of an SVG file; empty if the record is not by size."""
    panels = panels_of(record.lines)
    if not panels:
        return ""
    width, height = ACROSS * WIDE, HEAD + math.ceil(len(panels) / ACROSS) * HIGH
    names = list(dict.fromkeys(s.name for each in panels.values() for s in each))
    seconds = [t for each in panels.values() for s in each for _, t in s.points]
    low, high = math.log10(min(seconds)) - 0.1, math.log10(max(seconds)) + 0.1
    parts = head(record.title, width, height, letters=11, title_letters=14, place=(12, 20))
    for k, name in enumerate(names):
        x = 12 + 130 * k
        parts.append(f'<circle cx="{x + 5}" cy="38" r="4" fill="{COLOURS[k % len(COLOURS)]}"/>')
        parts.append(f'<text x="{x + 14}" y="42">{escape(name)}</text>')
    for k, (axis, series) in enumerate(panels.items()):
        parts.append(f'<g transform="translate({k % ACROSS * WIDE},{HEAD + k // ACROSS * HIGH})">')
        parts += _panel(axis, series, names, (low, high))
        parts.append("</g>")
    return "\n".join([*parts, "</svg>", ""])


def _panel(
    axis: str, series: list[Series], names: list[str], between: tuple[float, float]
) -> Iterator[str]:
    """A panel's lines; between: the decimal logarithms of the seconds at its ends."""
    values = sorted({value for s in series for value, _ in s.points})
    first, last = math.log10(values[0]), math.log10(values[-1])
    right, bottom = WIDE - RIGHT, HIGH - BOTTOM

    def across(value: float) -> float:
        share = (math.log10(value) - first) / (last - first) if last > first else 0.5
        return LEFT + 8 + (right - LEFT - 16) * share

    def down(log_seconds: float) -> float:
        return bottom - (bottom - TOP) * (log_seconds - between[0]) / (between[1] - between[0])

    yield f'<text x="{LEFT}" y="{TOP - 10}" font-weight="bold">{escape(axis)}</text>'
    for power in range(math.ceil(between[0]), math.floor(between[1]) + 1):
        level = f"{down(power):.1f}"
        yield f'<line x1="{LEFT}" y1="{level}" x2="{right}" y2="{level}" stroke="{PALE}"/>'
        place = f'x="{LEFT - 5}" y="{down(power) + 4:.1f}"'
        yield f'<text {place} text-anchor="end">{_time(power)}</text>'
    for value in values:
        place = f'x="{across(value):.1f}" y="{bottom + 15}"'
        yield f'<text {place} text-anchor="middle">{_number(value)}</text>'
    for each in series:
        colour = COLOURS[names.index(each.name) % len(COLOURS)]
        places = [(across(value), down(math.log10(t))) for value, t in sorted(each.points)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>'
        for x, y in places:
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" fill="{colour}"/>'


def _time(power: int) -> str:
    """10^power seconds in a unit that needs no point."""
    for least, unit in ((0, "s"), (-3, "ms"), (-6, "us")):
        if power >= least:
            return f"{10 ** (power - least)} {unit}"
    return f"1e{power} s"


def _number(value: float) -> str:
    return f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"
