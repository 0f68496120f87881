"""Writes the report: a folder of pages that a browser opens from disk, without a network."""

import importlib.resources
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from bench.core.settings import BadSetting
from bench.reproduce import curves, drawings, records, tables, totals
from bench.reproduce.claim_kinds import describe_author, describe_cause
from bench.reproduce.plan import Plan, seeds
from bench.reproduce.power import describe_statistic
from bench.reproduce.records import Record
from bench.reproduce.specs import Artifact, Book, ScaleName
from bench.runs.files import write_whole

ASSETS = ("report.css", "report.js", "compare.js")
SCALE_WORDS: dict[ScaleName, str] = {
    "paper": "the paper's scale",
    "smaller": "smaller than the paper's scale",
}
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


def count_claims(entry: ReportEntry) -> totals.Counts:
    """How many of the page's claims have each verdict, those of each author apart."""
    return totals.count_verdicts(
        e for group in entry.record.claims.values() for e in group.values()
    )


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
    environment.filters["duration"] = records.format_duration
    return environment


def embed(data: Any) -> str:
    """The data as JSON that cannot end the script element that it stands in."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    return Markup(text.replace("<", "\\u003c"))


def copy_assets(out: Path) -> None:
    """Copy style, scripts and plotly's script into `out`/assets; raises BadSetting."""
    import plotly

    folder = out / "assets"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadSetting(f"--out {out}: cannot write: {error.strerror}") from None
    script = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
    shutil.copyfile(script, folder / "plotly.min.js")
    for name in ASSETS:
        source = importlib.resources.files("bench.reproduce") / "assets" / name
        (folder / name).write_bytes(source.read_bytes())


def write_report(entries: list[ReportEntry], book: Book, out: Path) -> Path:
    """Write index.html and the files of every artifact into `out`; gives the path of index.html."""
    copy_assets(out)
    environment = load_templates()
    for entry in entries:
        folder = out / entry.artifact.id.split("/")[0]
        folder.mkdir(parents=True, exist_ok=True)
        write_page(entry, book, out, environment)
    index = environment.get_template("index.html").render(
        entries=[(entry, entry.scale, count_claims(entry)) for entry in entries],
        sentences=totals.total_sentences((e.scale, count_claims(e)) for e in entries),
        root="",
        title="Bilevel Bench",
    )
    write_whole(out / "index.html", index)
    return out / "index.html"


def write_page(entry: ReportEntry, book: Book, out: Path, environment: jinja2.Environment) -> None:
    """Write an artifact's page, its tables in Markdown and LaTeX, and its figures in SVG."""
    artifact, record, plan = entry.artifact, entry.record, entry.plan
    spec = artifact.spec
    every = tables.artifact_tables(artifact, record, book)
    drawn = curves.curves(plan, book) if plan else {}
    plane = curves.paths(plan, book) if plan else {}
    svgs = drawings.draw_figures(artifact, drawn, plane, book, out)
    pictures = []
    if plan:
        pictures += drawings.draw_scalings(artifact, curves.scalings(plan, book), out)
        pictures += drawings.draw_views(artifact, curves.views(plan), out)
    figure = {
        "metrics": [
            {"name": m, "label": book.metric(spec.task, m).label, "log": m in spec.figure.log}
            for m in spec.figure.metrics
        ],
        "axes": [
            {"name": a, "label": book.metric(spec.task, a).label}
            for a in (curves.axes(plan) if plan else spec.figure.axes)
        ],
        "variants": drawn,
        "planes": plane,
        "band": "mean ± standard error over seeds",
    }
    html = environment.get_template("artifact.html").render(
        artifact=artifact,
        spec=spec,
        record=record,
        claims=claim_entries(record, len(seeds(artifact, record.budget))),
        tables=[t for t in every if t.title != "Claims"],
        note=every[0].note if every[0].title == "Claims" else "",
        figure=figure,
        planes=plane,
        svgs=svgs,
        pictures=pictures,
        drawn=any(drawn.values()),
        budget=spec.budgets[record.budget],
        scale=entry.scale,
        root="../",
        title=spec.title,
    )
    stem = out / artifact.id
    write_whole(stem.with_suffix(".html"), html)
    head = (
        f"## {spec.title}\n\n{spec.source}; budget {record.budget}, {SCALE_WORDS[entry.scale]}\n\n"
        f"{spec.note.strip()}\n\n"
    )
    images = "".join(f"![{label}]({file})\n" for label, file in [*svgs, *pictures])
    write_whole(
        stem.with_suffix(".md"), head + "\n".join(map(tables.to_markdown, every)) + "\n" + images
    )
    write_whole(stem.with_suffix(".tex"), "\n".join(map(tables.to_latex, every)))


def claim_entries(record: Record, n: int) -> list[dict[str, Any]]:
    """For each claim its text and author, and for each variant verdict, power and why it fails.

    n: the number of seeds that the spec has at the record's budget.
    """
    keys = dict.fromkeys(key for group in record.claims.values() for key in group)
    found = []
    for key in keys:
        entries = {v: group[key] for v, group in record.claims.items() if key in group}
        claim = next(iter(entries.values())).claim
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
