"""The README's picture: published and measured values of one table, drawn from its record.

The file is written without a drawing library, so that the same record gives the same bytes on every
machine, and `reproduce findings --check` can tell whether the committed file is today's.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from html import escape
from typing import NamedTuple

from bench.core.settings import BadSetting
from bench.reproduce.schema import Budget, StrictModel, Variant
from bench.reproduce.specs import Artifact, Metric
from bench.reproduce.statistics import LEVEL, student_interval
from bench.reproduce.svg import INK, PALE, head

WIDTH, LEFT, TOP, LINE = 760, 270, 78, 30  # pixels; LINE: from one row to the next
RIGHT = WIDTH - 30
MARK = "#0072b2"


class Picture(StrictModel):
    """What is drawn: a metric of some rows of an artifact. rows: name in the spec -> label."""

    artifact: str
    budget: Budget
    variant: Variant = "paper"
    metric: str
    title: str
    rows: Mapping[str, str]


class Line(NamedTuple):
    """A row of the picture: its label, what the paper prints, and the measured values."""

    label: str
    published: float
    values: list[float]


def picture_lines(
    picture: Picture, artifact: Artifact, finals: Mapping[str, list[float]]
) -> list[Line]:
    """The rows to draw. finals: row -> its measured values.

    Raises BadSetting for a row without a published value, or with fewer than two measured ones.
    """
    lines = []
    for name, label in picture.rows.items():
        row = artifact.spec.rows.get(name)
        if row is None or picture.metric not in row.published:
            raise BadSetting(f"readme.yaml: picture: {name} of {artifact.id} has nothing published")
        if len(finals.get(name, [])) < 2:
            raise BadSetting(f"readme.yaml: picture: {name} of {artifact.id} has fewer than 2 runs")
        lines.append(Line(label, row.published[picture.metric].mean, finals[name]))
    return lines


def draw(picture: Picture, metric: Metric, lines: list[Line]) -> str:
    """The picture as the text of an SVG file."""
    ends = [end for line in lines for end in student_interval(line.values, LEVEL)]
    numbers = [line.published for line in lines] + ends
    low, high = min(numbers), max(numbers)
    margin = 0.06 * (high - low) or 0.5
    low, high = low - margin, high + margin

    def across(value: float) -> float:
        return LEFT + (RIGHT - LEFT) * (value - low) / (high - low)

    def shown(value: float) -> str:
        return f"{100 * value:.0f}%" if metric.percent else f"{value:g}"

    height = TOP + LINE * len(lines) + 46
    bottom = TOP + LINE * len(lines) - 8
    parts = [*head(picture.title, WIDTH, height, title_letters=16), *_legend()]
    for tick in _ticks(low, high):
        x = f"{across(tick):.1f}"
        parts.append(f'<line x1="{x}" y1="{TOP - 14}" x2="{x}" y2="{bottom}" stroke="{PALE}"/>')
        parts.append(f'<text x="{x}" y="{bottom + 18}" text-anchor="middle">{shown(tick)}</text>')
    for i, line in enumerate(lines):
        parts += _row(line, TOP + LINE * i, across)
    source = f"reproduce report {picture.artifact} --budget {picture.budget}"
    parts.append(f'<text x="16" y="{height - 10}" font-size="11">{escape(source)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _legend() -> Iterator[str]:
    y = 50
    yield f'<circle cx="{LEFT}" cy="{y - 4}" r="5" fill="white" stroke="{INK}" stroke-width="1.5"/>'
    yield f'<text x="{LEFT + 12}" y="{y}">published</text>'
    yield f'<circle cx="{LEFT + 110}" cy="{y - 4}" r="5" fill="{MARK}"/>'
    yield f'<text x="{LEFT + 122}" y="{y}">measured, with its 95% interval</text>'


def _row(line: Line, y: float, across: Callable[[float], float]) -> Iterator[str]:
    mean = sum(line.values) / len(line.values)
    start, end = student_interval(line.values, LEVEL)
    old, new = f"{across(line.published):.1f}", f"{across(mean):.1f}"
    ends = f'x1="{across(start):.1f}" y1="{y}" x2="{across(end):.1f}" y2="{y}"'
    yield f'<text x="{LEFT - 16}" y="{y + 4}" text-anchor="end">{escape(line.label)}</text>'
    yield f'<line x1="{old}" y1="{y}" x2="{new}" y2="{y}" stroke="{PALE}" stroke-width="3"/>'
    yield f'<line {ends} stroke="{MARK}" stroke-width="1.5"/>'
    yield f'<circle cx="{old}" cy="{y}" r="5" fill="white" stroke="{INK}" stroke-width="1.5"/>'
    yield f'<circle cx="{new}" cy="{y}" r="5" fill="{MARK}"/>'


def _ticks(low: float, high: float) -> Iterator[float]:
    """Round numbers between the two, from four to nine of them."""
    size = 10.0 ** (math.floor(math.log10(high - low)) - 1)
    step = next(s * size for s in (1, 2, 5, 10, 20, 50) if high - low <= 9 * s * size)
    for k in range(math.floor(low / step) + 1, math.ceil(high / step)):
        yield round(k * step, 10)
