"""The pictures of docs/league.md: performance profiles, and how many trials are good.

The files are written without a drawing library, so that the same records give the same bytes on
every machine, and `reproduce findings --check` can tell whether they are today's.
"""

import math
from collections.abc import Iterator
from html import escape

import numpy as np

from bench.reproduce.league import scores
from bench.reproduce.league.page import Board
from bench.reproduce.league.phrases import WORDS
from bench.reproduce.svg import PALE, head

DRAWN = 8  # methods
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#555555", "#000000")
WIDTH, HEIGHT, LEFT, TOP = 760, 400, 56, 60  # pixels
RIGHT, BOTTOM = WIDTH - 190, HEIGHT - 52
FACTORS = np.geomspace(1.0, scores.WIDEST, 121)


def across(factor: float) -> float:
    """Give the place of a factor of the least work."""
    return LEFT + (RIGHT - LEFT) * math.log(factor) / math.log(scores.WIDEST)


def upward(share: float) -> float:
    """Give the place of a share of problems."""
    return BOTTOM - (BOTTOM - TOP) * share


def draw_profiles(board: Board) -> str:
    """The profiles of a track's best methods, as the text of an SVG file."""
    unit = board.track.scored
    best = [place.method for place in board.places(unit)[:DRAWN]]
    curves = scores.profile(board.work(unit), FACTORS.tolist())
    title = f"{board.track.title}: the share of problems solved within a factor of the least work"
    parts = [
        *head(title, WIDTH, HEIGHT),
        *grid(),
    ]
    for k, method in enumerate(best):
        curve = curves[board.names.index(method)]
        points = " ".join(
            f"{across(factor):.1f},{upward(share):.1f}"
            for factor, share in zip(FACTORS.tolist(), curve.tolist())
        )
        colour, y = COLOURS[k], TOP + 12 + 20 * k
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
        )
        parts.append(
            f'<line x1="{RIGHT + 16}" y1="{y - 4}" x2="{RIGHT + 40}" y2="{y - 4}" '
            f'stroke="{colour}" stroke-width="2"/>'
        )
        parts.append(f'<text x="{RIGHT + 46}" y="{y}">{escape(method)}</text>')
    middle = (LEFT + RIGHT) / 2
    label = f"{WORDS[unit]} over the least of all methods"
    parts.append(f'<text x="{middle}" y="{HEIGHT - 12}" text-anchor="middle">{label}</text>')
    return "\n".join([*parts, "</svg>", ""])


def grid() -> Iterator[str]:
    """Lines and numbers of both axes."""
    factor = 1.0
    while factor <= scores.WIDEST:
        x = f"{across(factor):.1f}"
        yield f'<line x1="{x}" y1="{TOP}" x2="{x}" y2="{BOTTOM}" stroke="{PALE}"/>'
        yield f'<text x="{x}" y="{BOTTOM + 18}" text-anchor="middle">{factor:g}</text>'
        factor *= 2
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = upward(share)
        yield f'<line x1="{LEFT}" y1="{y:.1f}" x2="{RIGHT}" y2="{y:.1f}" stroke="{PALE}"/>'
        yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{100 * share:.0f}%</text>'


def draw_sensitivity(board: Board) -> str:
    """How many trials of each method are good, with intervals over tasks, as an SVG file's text."""
    found = []
    for place in board.places(board.track.scored):
        tasks = board.entries[place.method].values()
        good = scores.mean_interval([scores.sensitivity(task) for task in tasks])
        found.append((place.method, good))
    height = TOP + 22 * len(found) + 44
    bottom = TOP + 22 * len(found) - 8
    most = max(0.1, *(good.high for _, good in found))
    title = f"{board.track.title}: the share of trials within 10% of a method's best"

    def place_of(share: float) -> float:
        return 180 + (WIDTH - 220) * share / most

    parts = head(title, WIDTH, height)
    for k in range(5):
        x = f"{place_of(k * most / 4):.1f}"
        parts.append(f'<line x1="{x}" y1="{TOP - 14}" x2="{x}" y2="{bottom}" stroke="{PALE}"/>')
        parts.append(
            f'<text x="{x}" y="{bottom + 18}" text-anchor="middle">{25 * k * most:.0f}%</text>'
        )
    for k, (method, good) in enumerate(found):
        y = TOP + 22 * k
        low, middle, high = (f"{place_of(v):.1f}" for v in (good.low, good.value, good.high))
        parts.append(f'<text x="168" y="{y + 4}" text-anchor="end">{escape(method)}</text>')
        parts.append(
            f'<line x1="{low}" y1="{y}" x2="{high}" y2="{y}" stroke="{COLOURS[0]}" '
            'stroke-width="1.5"/>'
        )
        parts.append(f'<circle cx="{middle}" cy="{y}" r="4" fill="{COLOURS[0]}"/>')
    return "\n".join([*parts, "</svg>", ""])
