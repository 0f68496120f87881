"""Writes the report: a folder of pages that a browser opens from disk, without a network.

Every link is relative, so that the folder may also stand below any path of a web host.
"""

import importlib.resources
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, get_args

import jinja2
from markupsafe import Markup, escape

from bench.core.settings import BadSetting
from bench.reproduce import (
    curves,
    dots,
    drawings,
    durations,
    headlines,
    latex,
    pictures,
    tables,
)
from bench.reproduce import totals as counted
from bench.reproduce.claim_kinds import describe_author, describe_cause
from bench.reproduce.claims import VerdictWord
from bench.reproduce.locking import locked
from bench.reproduce.papers import Paper, paper_of
from bench.reproduce.plan import Plan
from bench.reproduce.points import format_override, points
from bench.reproduce.power import claim_seeds, describe_statistic
from bench.reproduce.records import Record
from bench.reproduce.schema import Budget, Variant
from bench.reproduce.specs import Artifact, Book, ScaleName
from bench.reproduce.terminal import err
from bench.runs.environment import cores
from bench.runs.files import write_whole

ASSETS = ("report.css", "report.js", "compare.js")
SCALE_WORDS: dict[ScaleName, str] = {
    "paper": "the paper's scale",
    "smaller": "smaller than the paper's scale",
}
FEWEST_SHARED, MOST_WORKERS = 8, 8  # pages from which on, and processes among which, work is shared
MARKS = {"holds": "✓", "fails": "✗", "not enough runs": "?", "outdated": "↺", "not run": "–"}


@dataclass(frozen=True)
class ReportEntry:
    """What a page is made of. plan: None if only the record is there; then there are no curves."""

    artifact: Artifact
    record: Record
    plan: Plan | None

    @property
    def scale(self) -> ScaleName:
        """Whether the runs are of the paper's scale or smaller."""
        return self.artifact.spec.scale(self.record.budget)


@dataclass(frozen=True)
class Waiting:
    """An artifact without a record, and the smallest budget at which its claims are judged."""

    artifact: Artifact
    budget: Budget


def count_claims(entry: ReportEntry) -> counted.Counts:
    """How many of the page's claims have each verdict, those of each author apart."""
    return counted.count_verdicts(
        e for group in entry.record.claims.values() for e in group.values()
    )


@cache
def load_templates() -> jinja2.Environment:
    """The pages' templates with the filters that they use."""
    loader = jinja2.PackageLoader("bench.reproduce", "assets")
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True)
    environment.filters["embed"] = embed
    environment.filters["mark"] = lambda word: MARKS.get(word.split(" (")[0], "")
    environment.filters["kind"] = lambda word: word.split(" (")[0].replace(" ", "-")
    environment.filters["author"] = describe_author
    environment.filters["cause"] = describe_cause
    environment.filters["scale"] = SCALE_WORDS.__getitem__
    environment.filters["duration"] = durations.format_duration
    environment.filters["paths"] = with_pdf
    environment.filters["powers"] = raise_powers
    return environment


def embed(data: Any) -> str:
    """The data as JSON that cannot end the script element that it stands in."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    return Markup(text.replace("<", "\\u003c"))


def raise_powers(text: str) -> str:
    """The text with its powers raised, as in T^(2/3) and ε^−2.5, for a page."""
    return Markup(latex.POWER.sub(r"<sup>\1\2</sup>", str(escape(text))))


@contextmanager
def writing_pages(out: Path) -> Iterator[None]:
    """A context with a folder of pages, into which no other report or comparison writes meanwhile.

    Style, scripts and plotly's script are in its assets then. Raises BadSetting for a folder that
    cannot be made.
    """
    try:
        (out / "assets").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadSetting(f"--out {out}: cannot write: {error.strerror}") from None
    with locked(out):
        copy_assets(out)
        yield


def copy_assets(out: Path) -> None:
    """Copy style, scripts and plotly's script into `out`/assets."""
    import plotly

    folder = out / "assets"
    script = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
    write_whole(folder / "plotly.min.js", script.read_bytes())
    for name in ASSETS:
        source = importlib.resources.files("bench.reproduce") / "assets" / name
        write_whole(folder / name, source.read_bytes())


def with_pdf(files: Sequence[tuple[str, str]]) -> list[tuple[str, str, str]]:
    """The figures (label, SVG file) with the PDF file of each."""
    return [(label, file, str(Path(file).with_suffix(".pdf"))) for label, file in files]


def write_report(
    entries: Sequence[ReportEntry],
    book: Book,
    out: Path,
    papers: Mapping[str, Paper] | None = None,
    waiting: Sequence[Waiting] = (),
) -> Path:
    """Write index.html and the files of every artifact into `out`; gives the path of index.html.

    The index is written first, so that it can be opened while the pages are drawn. papers: by the
    name of their folders; an artifact of another one has no citation. waiting: artifacts that the
    index lists without a page.
    """
    with writing_pages(out):
        for entry in entries:
            (out / entry.artifact.id.split("/")[0]).mkdir(parents=True, exist_ok=True)
        write_index(entries, out, papers or {}, waiting)
        figures = draw_pages(entries, book, out, papers or {})
        document = latex.example_document([entry.artifact for entry in entries], figures)
        write_whole(out / "example.tex", document)
    return out / "index.html"


def draw_pages(
    entries: Sequence[ReportEntry], book: Book, out: Path, papers: Mapping[str, Paper]
) -> list[tuple[str, str]]:
    """Write the page of every entry, with a bar if there are several; gives the artifacts that have
    a figure, each with the path of its first one below `out`, without a suffix."""
    from rich.progress import track

    write = partial(write_page, book=book, out=out, papers=papers)
    quiet = len(entries) < 2 or not err.is_terminal
    firsts = track(
        write_pages(write, entries), "pages", len(entries), console=err, transient=True,
        disable=quiet,
    )  # fmt: skip
    return [(entry.artifact.id, first) for entry, first in zip(entries, firsts) if first]


def write_pages(
    write: "partial[str | None]", entries: Sequence[ReportEntry]
) -> Iterator[str | None]:
    """Call `write` for every entry, several at a time if there are many; gives what it gives."""
    workers = min(cores(), MOST_WORKERS)
    if len(entries) < FEWEST_SHARED or workers < 2:
        yield from map(write, entries)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        yield from pool.map(write, entries)


def write_index(
    entries: Sequence[ReportEntry],
    out: Path,
    papers: Mapping[str, Paper],
    waiting: Sequence[Waiting],
) -> None:
    """Write the index: for each paper a card of every artifact, then those that wait."""
    listed = [*(e.artifact for e in entries), *(w.artifact for w in waiting)]
    folders = dict.fromkeys(artifact.id.split("/")[0] for artifact in listed)
    keys = [k for k in papers if k in folders] + [k for k in folders if k not in papers]
    sections = [
        {
            "key": key,
            "paper": papers.get(key),
            "cards": [index_card(e) for e in entries if e.artifact.id.startswith(f"{key}/")],
            "waiting": [w for w in waiting if w.artifact.id.startswith(f"{key}/")],
        }
        for key in keys
    ]
    html = (
        load_templates()
        .get_template("index.html")
        .render(
            sections=sections,
            sentences=counted.total_sentences(
                ((e.scale, count_claims(e)) for e in entries), counted.SHORT
            ),
            root="",
            title="Bilevel Bench",
        )
    )
    write_whole(out / "index.html", html)


def index_card(entry: ReportEntry) -> dict[str, Any]:
    """What the index shows of an artifact."""
    artifact = entry.artifact
    counts = count_claims(entry)
    return {
        "id": artifact.id,
        "title": artifact.spec.title,
        "source": artifact.spec.source,
        "budget": entry.record.budget,
        "scale": entry.scale,
        "complete": entry.record.complete,
        "headline": headlines.headline(entry.record.claims),
        "counts": {
            word: (counts["paper"][word], counts["us"][word])
            for word in get_args(VerdictWord)
            if counts["paper"][word] or counts["us"][word]
        },
    }


def write_page(
    entry: ReportEntry, book: Book, out: Path, papers: Mapping[str, Paper]
) -> str | None:
    """Write an artifact's page, its tables in Markdown and LaTeX, and its figures.

    Gives the path of its first figure below `out`, without a suffix; None if it has none.
    """
    artifact, record, plan = entry.artifact, entry.record, entry.plan
    spec, paper = artifact.spec, paper_of(artifact.id, papers)
    every = tables.artifact_tables(artifact, record, book)
    drawn = curves.curves(plan, book) if plan else {}
    plane = curves.paths(plan, book) if plan else {}
    svgs = drawings.draw_figures(artifact, drawn, plane, book, out)
    results = dots.draw_results(artifact, record, book, out)
    dots.draw_thumbnail(artifact, record, drawn, book, out)
    more = []
    if plan:
        more += pictures.draw_scalings(artifact, curves.scalings(plan, book), out)
        more += pictures.draw_views(artifact, curves.views(plan), out)
    html = (
        load_templates()
        .get_template("artifact.html")
        .render(
            artifact=artifact,
            spec=spec,
            record=record,
            headline=headlines.headline(record.claims),
            outdated=headlines.outdated_rows(record),
            claims=claim_entries(record, artifact),
            tables={t.title: t for t in every if t.title != "Claims"},
            note=every[0].note if every[0].title == "Claims" else "",
            figure=figure_data(entry, book, drawn, plane),
            planes=plane,
            svgs=svgs,
            results=results,
            pictures=more,
            drawn=any(drawn.values()),
            shares=curves.shares_drawn(plan) if plan else [],
            budget=spec.budgets[record.budget],
            settings=row_settings(entry, book),
            paper=paper,
            bibtex=paper.bibtex(artifact.id.split("/")[0]) if paper else "",
            scale=entry.scale,
            root="../",
            title=spec.title,
        )
    )
    stem = out / artifact.id
    write_whole(stem.with_suffix(".html"), html)
    head = (
        f"## {spec.title}\n\n{spec.source}; budget {record.budget}, {SCALE_WORDS[entry.scale]}\n\n"
        f"{headlines.headline(record.claims)}\n\n{spec.note.strip()}\n\n"
    )
    images = "".join(f"![{label}]({file})\n" for label, file in [*svgs, *results, *more])
    write_whole(
        stem.with_suffix(".md"), head + "\n".join(map(tables.to_markdown, every)) + "\n" + images
    )
    parts = (latex.to_latex(table, artifact.id, spec.title) for table in every)
    write_whole(stem.with_suffix(".tex"), "\n".join(parts))
    first = next(iter([*svgs, *results, *more]), None)
    return str(Path(artifact.id).parent / Path(first[1]).stem) if first else None


def figure_data(
    entry: ReportEntry,
    book: Book,
    drawn: dict[Variant, list[dict[str, Any]]],
    plane: dict[Variant, dict[str, Any]],
) -> dict[str, Any]:
    """What the page's script draws, as JSON."""
    spec = entry.artifact.spec
    return {
        "metrics": [
            {"name": m, "label": book.metric(spec.task, m).label, "log": m in spec.figure.log}
            for m in spec.figure.metrics
        ],
        "axes": [
            {"name": a, "label": book.metric(spec.task, a).label}
            for a in (curves.axes(entry.plan) if entry.plan else spec.figure.axes)
        ],
        "variants": drawn,
        "planes": plane,
        "band": "mean ± standard error over the seeds that are done",
    }


def row_settings(entry: ReportEntry, book: Book) -> dict[str, list[tuple[str, str]]]:
    """For each variant every row's settings, as `bench` takes them, with its grid point."""
    found: dict[str, dict[str, str]] = {v: {} for v in entry.record.rows}
    for point in points(entry.artifact.spec, book, entry.record.budget):
        row = entry.record.rows.get(point.variant, {}).get(point.row)
        if row is None:
            continue
        chosen = {k: v for k, v in row.chosen.items() if k in dict(point.chosen)}
        settings = {**dict(point.settings), **chosen}
        words = " ".join(format_override(path, value) for path, value in settings.items())
        found[point.variant].setdefault(point.row, words)
    return {variant: list(rows.items()) for variant, rows in found.items()}


def claim_entries(record: Record, artifact: Artifact) -> list[dict[str, Any]]:
    """For each claim its text and author, and for each variant verdict, power and why it fails."""
    keys = dict.fromkeys(key for group in record.claims.values() for key in group)
    found = []
    for key in keys:
        entries = {v: group[key] for v, group in record.claims.items() if key in group}
        claim = next(iter(entries.values())).claim
        n = claim_seeds(artifact, record.budget, key)
        found.append(
            {
                "text": claim["text"],
                "author": describe_author(claim),
                "verdicts": {variant: entry.verdict for variant, entry in entries.items()},
                "statistics": {v: describe_statistic(entry, n) for v, entry in entries.items()},
                "why": {variant: describe_cause(claim, variant) for variant in entries},
            }
        )
    return found
