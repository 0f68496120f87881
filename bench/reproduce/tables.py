"""A record's tables as rows of cells, which pages, Markdown and LaTeX print alike."""

from dataclasses import dataclass

from bench.reproduce.claim_kinds import describe_author, describe_cause
from bench.reproduce.edges import row_edges
from bench.reproduce.plan import seeds
from bench.reproduce.power import describe_statistic
from bench.reproduce.records import Record, RowRecord
from bench.reproduce.specs import Artifact, Book, Metric, Published, Spec, format_number
from bench.reproduce.statistics import estimate, welch_interval
from bench.runs.screen import COSTS


@dataclass(frozen=True)
class CellTable:
    """A table of text: `head` and each of `rows` have one cell for each column."""

    title: str
    head: list[str]
    rows: list[list[str]]
    note: str = ""


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
    """A metric's last values of the runs that are done; "calls" is the sum of all oracle calls."""
    if name == "calls":
        parts = [done_values(row, key) for key in row.finals if key.startswith("calls/")]
        return [sum(values) for values in zip(*parts)]
    values = row.finals.get(name, [])
    return [v for v, s in zip(values, row.status) if s == "done" and v is not None]


def measured_cell(row: RowRecord, name: str, metric: Metric) -> str:
    """The cell of a measured metric: mean ± standard error [bootstrap interval]."""
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
    bad = [(s, r) for s, r in zip(row.status, row.reasons) if s not in ("done", "missing")]
    if bad:
        notes.append(f"FAILED, {len(bad)} of {len(row.status)} runs {bad[0][0]}: {bad[0][1]}")
    missing = row.status.count("missing")
    if missing or (not row.status and not row.pending):
        notes.append(f"{missing or 'all'} runs missing")
    if row.chosen and row.tried > 1:
        settings = ", ".join(f"{k.split('.', 1)[-1]} {v}" for k, v in row.chosen.items())
        lost = sum(t["status"] not in ("done", "missing") for t in row.tries)
        notes.append(f"{settings} of {row.tried} points" + (f", {lost} diverged" if lost else ""))
    notes += [f"AT AN EDGE: {edge}" for edge in row_edges(row, spec)]
    return "; ".join(notes)


def results_table(artifact: Artifact, record: Record, variant: str, book: Book) -> CellTable:
    """The artifact's own table: the last values that a variant's runs measured."""
    spec = artifact.spec
    columns = [(name, book.metric(spec.task, name)) for name in spec.columns]
    rows = []
    for name, row in record.rows[variant].items():
        n = row.status.count("done")
        cells = [measured_cell(row, key, metric) for key, metric in columns]
        rows.append([name, *cells, str(n), remark(row, spec)])
    note = "Mean ± standard error of the mean [95% bootstrap interval] over n seeds."
    if all(len(row.status) <= 1 for row in record.rows[variant].values()):
        note = "One run of each row, whose deviation over seeds is not known."
    return CellTable(
        f"Measured, {variant} variant",
        ["method", *(column_head(metric) for _, metric in columns), "n", "remarks"],
        rows,
        note,
    )


def published_table(
    artifact: Artifact, record: Record, variant: str, book: Book
) -> CellTable | None:
    """Published and measured values side by side, with verdicts; None if none is published."""
    spec = artifact.spec
    rows = []
    for name, row in record.rows[variant].items():
        for key, value in spec.rows[name].published.items():
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
    """What a run of each row spent: steps, oracle calls and seconds of steps, mean over seeds."""
    kept = [
        (key, label)
        for key, label in COSTS.items()
        if any(f"calls/{key}" in row.finals for row in record.rows[variant].values())
    ]
    rows = []
    for name, row in record.rows[variant].items():
        if not done_values(row, "seconds"):
            continue
        cells = []
        for key in ["step", *(f"calls/{key}" for key, _ in kept)]:
            values = done_values(row, key)
            cells.append(f"{sum(values) / len(values):,.0f}" if values else "0")
        cells.append(format_number(estimate(done_values(row, "seconds")).mean))
        rows.append([name, *cells])
    return CellTable(
        f"Cost of a run, {variant} variant",
        ["method", "steps", *(label for _, label in kept), "seconds of steps"],
        rows,
    )


def differences_table(artifact: Artifact, record: Record, book: Book) -> CellTable | None:
    """The two variants row by row, and how far apart they are; None if there is only one."""
    spec = artifact.spec
    if not {"paper", "code"} <= set(record.rows):
        return None
    rows = []
    for name in spec.rows:
        a, b = (record.rows[v].get(name) for v in ("paper", "code"))
        if a is None or b is None:
            continue
        for key in spec.columns:
            x, y = done_values(a, key), done_values(b, key)
            if not x or not y:
                continue
            metric = book.metric(spec.task, key)
            apart = estimate(y).mean - estimate(x).mean
            interval = welch_interval(y, x)
            text = format_value(apart, metric)
            if interval:
                text += (
                    f" [{format_value(interval[0], metric)}, {format_value(interval[1], metric)}]"
                )
            means = [format_value(estimate(v).mean, metric) for v in (x, y)]
            rows.append([name, column_head(metric), *means, text])
    return CellTable(
        "Paper against released code",
        ["method", "metric", "paper", "code", "code − paper"],
        rows,
        "Interval: Welch, 95%.",
    )


def claims_table(record: Record, n: int) -> CellTable:
    """Every claim of every variant: verdict, author, the deciding statistic, why it fails.

    n: the number of seeds that the spec has at the record's budget.
    """
    rows = [
        [
            entry.verdict.text,
            str(entry.claim["text"]),
            describe_author(entry.claim),
            variant,
            describe_statistic(entry, n),
            describe_cause(entry.claim, variant) if entry.verdict.word == "fails" else "",
        ]
        for key in dict.fromkeys(k for group in record.claims.values() for k in group)
        for variant, group in record.claims.items()
        if (entry := group.get(key))
    ]
    note = (
        "A claim holds if a one-sided test says at 2.5% that the values, paired over seeds, lie "
        "inside what is asked, and fails if one says that they lie outside (Bonferroni for one of "
        "many). The test is Student's, or the sign test where values are equal or not finite."
    )
    head = ["verdict", "claim", "by", "variant", "statistic", "why"]
    return CellTable("Claims", head, rows, note)


def artifact_tables(artifact: Artifact, record: Record, book: Book) -> list[CellTable]:
    """All tables of an artifact that have rows, in the order of its page."""
    n = len(seeds(artifact, record.budget))
    found: list[CellTable | None] = [claims_table(record, n)]
    for variant in record.rows:
        found.append(results_table(artifact, record, variant, book))
        found.append(published_table(artifact, record, variant, book))
        found.append(costs_table(record, variant))
    found.append(differences_table(artifact, record, book))
    return [table for table in found if table is not None and table.rows]


def to_markdown(table: CellTable) -> str:
    """The table in Markdown, below its title as a heading."""

    def line(cells: list[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    body = [line(table.head), "|" + "---|" * len(table.head), *map(line, table.rows)]
    note = [f"\n{table.note}"] if table.note else []
    return "\n".join([f"### {table.title}\n", *body, *note, ""])


TEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "±": r"$\pm$", "−": "$-$", "–": "--", "↑": r"$\uparrow$", "↓": r"$\downarrow$",
    "θ": r"$\theta$", "φ": r"$\phi$", "η": r"$\eta$", "α": r"$\alpha$", "ξ": r"$\xi$",
    "β": r"$\beta$", "ε": r"$\epsilon$", "κ": r"$\kappa$", "λ": r"$\lambda$", "Φ": r"$\Phi$",
    "γ": r"$\gamma$", "τ": r"$\tau$",
    "∇": r"$\nabla$", "≤": r"$\le$", "≥": r"$\ge$", "×": r"$\times$", "…": r"\ldots{}",
    "²": "$^2$", "q̂": r"$\hat q$", "₁": "$_1$", "₂": "$_2$", "₀": "$_0$", "∞": r"$\infty$",
    "<": "$<$", ">": "$>$", "|": r"\textbar{}",
}  # fmt: skip


def escape_tex(text: str) -> str:
    """The text for LaTeX: special characters escaped, symbols as mathematics, for pdflatex."""
    text = text.replace("q̂", "\0")
    return "".join(TEX.get(c, c) for c in text).replace("\0", TEX["q̂"])


def to_latex(table: CellTable) -> str:
    """The table in LaTeX: a tabular with the rules of the package booktabs."""
    lines = [
        f"% {table.title}",
        r"\begin{tabular}{" + "l" * len(table.head) + "}",
        r"\toprule",
        " & ".join(map(escape_tex, table.head)) + r" \\",
        r"\midrule",
        *(" & ".join(map(escape_tex, row)) + r" \\" for row in table.rows),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"
