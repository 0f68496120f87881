"""A record's tables as rows of cells, which pages, Markdown and LaTeX print alike."""

from collections.abc import Sequence
from dataclasses import dataclass

from bench.reproduce.choosing import equal_points, recorded_points
from bench.reproduce.claim_kinds import describe_author, describe_cause
from bench.reproduce.edges import row_edges
from bench.reproduce.power import claim_seeds, describe_statistic
from bench.reproduce.recorded import recorded_circumstances
from bench.reproduce.records import Record, RowRecord
from bench.reproduce.specs import (
    TOTALS,
    Artifact,
    Book,
    Metric,
    Published,
    Settings,
    Spec,
    format_number,
)
from bench.reproduce.statistics import estimate, welch_interval
from bench.reproduce.timing import are_of_one_speed
from bench.reproduce.tries import try_circumstances
from bench.runs.screen import COSTS

MOST_EQUAL = 3  # of the points that are as good as the chosen one, how many a remark names
INTERVAL_NOTE = " [Student's 95% interval]"  # what a note says of the intervals in its table


@dataclass(frozen=True)
class CellTable:
    """A table of text: `head` and each of `rows` have one cell for each column.

    best: the places (row, column) of the cells that are marked as the best.
    """

    title: str
    head: list[str]
    rows: list[list[str]]
    note: str = ""
    best: frozenset[tuple[int, int]] = frozenset()


def format_value(x: float, metric: Metric) -> str:
    """The value to four digits; in per cent, to two after the point, if it is a fraction."""
    return f"{100 * x:.2f}" if metric.percent else format_number(x)


def format_error(x: float, metric: Metric) -> str:
    """A standard error to two digits; in per cent if the metric is a fraction."""
    return f"{100 * x:.2f}" if metric.percent else f"{x:.2g}"


def column_head(metric: Metric) -> str:
    """The metric's label, its unit if that is per cent, and an arrow to where it is better."""
    arrow = {"higher": " ↑", "lower": " ↓", "neither": ""}[metric.better]
    return f"{metric.label}{' (%)' if metric.percent else ''}{arrow}"


def done_values(row: RowRecord, name: str) -> list[float]:
    """A metric's last values of the runs that are done.

    "calls" is the sum of all oracle calls, and "samples" that of all their samples.
    """
    columns = [row.finals[key] for key in row.finals if key.startswith(f"{name}/")]
    values: Sequence[float | None] = row.finals.get(name, [])
    if name in TOTALS:
        values = [None if None in calls else sum(calls) for calls in zip(*columns)]
    return [v for v, s in zip(values, row.status) if s == "done" and v is not None]


def measured_cell(row: RowRecord, name: str, metric: Metric) -> str:
    """The cell of a measured metric: mean ± standard error [Student's interval]."""
    values = done_values(row, name)
    if not values:
        return "–"
    e = estimate(values)
    text = format_value(e.mean, metric)
    if e.se is not None:
        text += f" ± {format_error(e.se, metric)}"
    if e.low is not None and e.high is not None and e.low != e.high:
        text += f" [{format_value(e.low, metric)}, {format_value(e.high, metric)}]"
    return text


def published_cell(value: Published | None, metric: Metric) -> str:
    """The cell of a value that the paper prints; a dash if it prints none."""
    if value is None:
        return "–"
    text = format_value(value.mean, metric)
    if value.se is not None:
        text += f" ± {format_error(value.se, metric)}"
    return text + (f" (n={value.n})" if value.n else "")


def remark(row: RowRecord, spec: Spec) -> str:
    """Why a row lacks values or is outdated, its grid point, and whether that is at an edge."""
    notes = []
    if row.pending:
        notes.append(row.pending)
    if row.outdated:
        notes.append("OUTDATED: of older code or settings")
    if row.keep:
        notes.append(f"at the {row.keep.best} {row.keep.metric} of each run")
    bad = [(s, r) for s, r in zip(row.status, row.reasons) if s not in ("done", "missing")]
    if bad:
        notes.append(f"FAILED, {len(bad)} of {len(row.status)} runs {bad[0][0]}: {bad[0][1]}")
    missing = row.status.count("missing")
    if missing or (not row.status and not row.pending):
        notes.append(f"{missing or 'all'} runs missing")
    points = recorded_points(row.tries)
    if row.chosen and row.tried > 1:
        settings = settings_phrase(row.chosen)
        lost = sum(p.status not in ("done", "missing") for p in points)
        seeds = len(row.tries) // row.tried
        each = f" at {seeds} seeds" if seeds > 1 else ""
        diverged = f", {lost} diverged" if lost else ""
        notes.append(f"{settings} of {row.tried} points{each}{diverged}")
    if equal := equal_points(points, row.chosen):
        others = [settings_phrase(point, row.chosen) for point in equal[:MOST_EQUAL]]
        if len(equal) > MOST_EQUAL:
            others.append(f"{len(equal) - MOST_EQUAL} more")
        notes.append(f"AS GOOD, but later in the grid: {'; '.join(others)}")
    notes += [f"AT AN EDGE: {edge}" for edge in row_edges(row, spec)]
    if note := note_on_machines(row):
        notes.append(note)
    return "; ".join(notes)


def settings_phrase(point: Settings, beside: Settings | None = None) -> str:
    """The settings of a grid point in words; only those that differ from another point's."""
    own = {k: v for k, v in point.items() if beside is None or v != beside.get(k)}
    return ", ".join(f"{k.split('.', 1)[-1]} {v}" for k, v in own.items())


def note_on_machines(row: RowRecord) -> str | None:
    """A warning that the machines may have changed which grid point was chosen.

    None if no clock ended a run that tried a point. None, too, if these runs were made alone, and
    on machines of the same speed as the row's other runs. Older records do not say where points
    were tried, and get no warning.
    """
    tries = [kept for kept in row.tries if kept["status"] != "missing"]
    if not any(kept.get("cut") for kept in tries):
        return None
    stages, paces = [try_circumstances(kept) for kept in tries], [kept["pace"] for kept in tries]
    if any(stage.device is None for stage in stages):
        return "CHOSEN UNDER A CLOCK, on a machine that is not known"
    if not are_of_one_speed(stages, paces):
        return "CHOSEN UNDER A CLOCK, on machines of unlike speed"
    if not all(kept["undisturbed"] for kept in tries):
        return "CHOSEN UNDER A CLOCK, beside other work"
    made = [i for i, status in enumerate(row.status) if status != "missing"]
    stages += [recorded_circumstances(row, i) for i in made]
    paces += [row.paces[i] if row.paces else None for i in made]
    if not are_of_one_speed(stages, paces):
        return "CHOSEN UNDER A CLOCK, on a machine of another speed than that of the runs"
    return None


def results_table(artifact: Artifact, record: Record, book: Book) -> CellTable:
    """The artifact's own table: the last values of both variants, side by side for each metric.

    The best mean of each column is marked where the metric has a better direction, and among the
    rows of each problem. Rows that are outdated, or of which a run failed, are never the best.
    """
    spec = artifact.spec
    variants = list(record.rows)
    columns = [(v, name, book.metric(spec.task, name)) for name in spec.columns for v in variants]
    head = [
        column_head(metric) + (f", {variant}" if len(variants) > 1 else "")
        for variant, _, metric in columns
    ]
    recorded = {name for group in record.rows.values() for name in group}
    names = [n for n in spec.rows if n in recorded] + sorted(recorded - set(spec.rows))
    rows, means = [], []
    for name in names:
        own = {v: record.rows[v][name] for v in variants if name in record.rows[v]}
        cells = [measured_cell(own[v], key, m) if v in own else "·" for v, key, m in columns]
        means.append([comparable_mean(own.get(v), key) for v, key, _ in columns])
        rows.append([name, *cells, joined({v: count_done(r) for v, r in own.items()}),
                     joined({v: remark(r, spec) for v, r in own.items()})])  # fmt: skip
    best, several = set(), False
    for j, (variant, _, metric) in enumerate(columns):
        problems = [own_problem(spec, name, variant) for name in names]
        several = several or len(set(problems)) > 1
        for problem in set(problems):
            column = [line[j] if own == problem else None for line, own in zip(means, problems)]
            best |= {(i, j + 1) for i in best_rows(column, metric)}
    note = (
        f"Mean ± standard error of the mean{INTERVAL_NOTE} over n seeds; the best mean of a column "
        f"is marked{', among rows of one problem' if several else ''}."
    )
    if all(len(row.status) <= 1 for group in record.rows.values() for row in group.values()):
        note = "One run of each row, whose deviation over seeds is not known."
    return CellTable("Measured", ["method", *head, "n", "remarks"], rows, note, frozenset(best))


def own_problem(spec: Spec, name: str, variant: str) -> frozenset[tuple[str, str]]:
    """The settings of the task that a row has for itself: rows with other ones are of another
    problem, and none of them is better than this one."""
    row = spec.rows.get(name)
    if row is None:
        return frozenset()
    own = {**row.set, **getattr(row, variant).set}
    return frozenset((key, str(value)) for key, value in own.items() if key.startswith("task"))


def count_done(row: RowRecord) -> str:
    """How many of a row's runs are done."""
    return str(row.status.count("done"))


def joined(texts: dict[str, str]) -> str:
    """One text for both variants if they have the same, or else each after its variant's name."""
    if len(set(texts.values())) == 1:
        return next(iter(texts.values()))
    return "; ".join(f"{variant}: {text}" for variant, text in texts.items() if text)


def comparable_mean(row: RowRecord | None, name: str) -> float | None:
    """The mean of a metric if every run of the row is done and the row is not outdated."""
    if row is None or row.outdated or not row.status or set(row.status) != {"done"}:
        return None
    values = done_values(row, name)
    return estimate(values).mean if values else None


def best_rows(means: list[float | None], metric: Metric) -> list[int]:
    """The places of the best of at least two means; none if no direction is better."""
    known = [m for m in means if m is not None]
    if metric.better == "neither" or len(known) < 2:
        return []
    top = max(known) if metric.better == "higher" else min(known)
    return [i for i, m in enumerate(means) if m == top]


def published_table(
    artifact: Artifact, record: Record, variant: str, book: Book
) -> CellTable | None:
    """Published and measured values side by side, with verdicts; None if none is published."""
    spec = artifact.spec
    rows = []
    for name, row in record.rows[variant].items():
        published = spec.rows[name].published if name in spec.rows else {}
        for key, value in published.items():
            metric = book.metric(spec.task, key)
            verdicts = [
                entry.verdict.text
                for entry in record.claims.get(variant, {}).values()
                if entry.claim["kind"] == "within_published"
                and entry.claim["metric"] == key
                and name in entry.claim["rows"]
            ]
            rows.append(
                [
                    name,
                    column_head(metric),
                    published_cell(value, metric),
                    measured_cell(row, key, metric),
                    str(row.status.count("done")),
                    ", ".join(verdicts) or "not judged at this budget",
                ]
            )
    if not rows:
        return None
    return CellTable(
        f"Published and measured, {variant} variant",
        ["method", "metric", "published", "measured", "n", "verdict"],
        rows,
    )


def costs_table(record: Record, variant: str) -> CellTable:
    """What a run of each row spent: steps, oracle calls and seconds of steps, mean over seeds.

    Runs that shared their time with others have no seconds, and count for the rest.
    """
    kept = [
        (key, label)
        for key, label in COSTS.items()
        if any(f"calls/{key}" in row.finals for row in record.rows[variant].values())
    ]
    rows = []
    for name, row in record.rows[variant].items():
        if "done" not in row.status:
            continue
        cells = []
        for key in ["step", *(f"calls/{key}" for key, _ in kept)]:
            values = done_values(row, key)
            cells.append(f"{sum(values) / len(values):,.0f}" if values else "0")
        seconds = done_values(row, "seconds")
        cells.append(format_number(estimate(seconds).mean) if seconds else "–")
        rows.append([name, *cells])
    return CellTable(
        f"Cost of a run, {variant} variant",
        ["method", "steps", *(label for _, label in kept), "seconds of steps"],
        rows,
    )


def differences_table(artifact: Artifact, record: Record, book: Book) -> CellTable | None:
    """How far the released code's means lie from the paper's; None if there is one variant.

    A row for each method, a column for each metric.
    """
    spec = artifact.spec
    if not {"paper", "code"} <= set(record.rows):
        return None
    rows = []
    for name in spec.rows:
        a, b = (record.rows[v].get(name) for v in ("paper", "code"))
        if a is None or b is None:
            continue
        cells = [
            difference_cell(done_values(a, key), done_values(b, key), book.metric(spec.task, key))
            for key in spec.columns
        ]
        if set(cells) != {"–"}:
            rows.append([name, *cells])
    return CellTable(
        "Released code minus paper",
        ["method", *(column_head(book.metric(spec.task, key)) for key in spec.columns)],
        rows,
        "Difference of the means [Welch's 95% interval].",
    )


def difference_cell(paper: list[float], code: list[float], metric: Metric) -> str:
    """The difference of two means, with its interval if both have several values."""
    if not paper or not code:
        return "–"
    text = format_value(estimate(code).mean - estimate(paper).mean, metric)
    interval = welch_interval(code, paper)
    if interval:
        text += f" [{format_value(interval[0], metric)}, {format_value(interval[1], metric)}]"
    return text


def claims_table(artifact: Artifact, record: Record) -> CellTable:
    """Every claim of every variant: verdict, author, the deciding statistic, why it fails."""
    rows = [
        [
            entry.verdict.text,
            str(entry.claim["text"]),
            describe_author(entry.claim),
            variant,
            describe_statistic(entry, claim_seeds(artifact, record.budget, key)),
            describe_cause(entry.claim, variant) if entry.verdict.word == "fails" else "",
        ]
        for key in dict.fromkeys(k for group in record.claims.values() for k in group)
        for variant, group in record.claims.items()
        if (entry := group.get(key))
    ]
    note = (
        "A claim holds if a one-sided test says at 2.5% that the mean of the values, paired over "
        "seeds, lies inside what is asked, and fails if one says that it lies outside (Bonferroni "
        "for one of many). The test is Student's; where values are equal or not finite, and where "
        "the claim is about the median, it is the sign test. Counts that the settings fix, and "
        "that are the same at all seeds, need no test."
    )
    head = ["verdict", "claim", "by", "variant", "statistic", "why"]
    return CellTable("Claims", head, rows, note)


def artifact_tables(artifact: Artifact, record: Record, book: Book) -> list[CellTable]:
    """All tables of an artifact that have rows, in the order of its page."""
    found: list[CellTable | None] = [claims_table(artifact, record)]
    found.append(results_table(artifact, record, book))
    found += [published_table(artifact, record, variant, book) for variant in record.rows]
    found.append(differences_table(artifact, record, book))
    found += [costs_table(record, variant) for variant in record.rows]
    return [table for table in found if table is not None and table.rows]


def to_markdown(table: CellTable) -> str:
    """The table in Markdown, below its title as a heading."""

    def line(cells: list[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    rows = [
        [f"**{cell}**" if (i, j) in table.best else cell for j, cell in enumerate(row)]
        for i, row in enumerate(table.rows)
    ]
    body = [line(table.head), "|" + "---|" * len(table.head), *map(line, rows)]
    note = [f"\n{table.note}"] if table.note else []
    return "\n".join([f"### {table.title}\n", *body, *note, ""])
