"""Tables for LaTeX, with the packages booktabs, graphicx and amssymb, and a file with all."""

import re
from collections.abc import Iterable, Sequence

from bench.reproduce.specs import Artifact
from bench.reproduce.tables import INTERVAL_NOTE, CellTable

TEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "±": r"$\pm$", "−": "$-$", "–": "--", "↑": r"$\uparrow$", "↓": r"$\downarrow$", "→": r"$\to$",
    "θ": r"$\theta$", "φ": r"$\phi$", "η": r"$\eta$", "α": r"$\alpha$", "ξ": r"$\xi$",
    "β": r"$\beta$", "ε": r"$\epsilon$", "κ": r"$\kappa$", "λ": r"$\lambda$", "Φ": r"$\Phi$",
    "γ": r"$\gamma$", "τ": r"$\tau$",
    "∇": r"$\nabla$", "≤": r"$\le$", "≥": r"$\ge$", "×": r"$\times$", "…": r"\ldots{}",
    "²": "$^2$", "q̂": r"$\hat q$", "₁": "$_1$", "₂": "$_2$", "₀": "$_0$", "∞": r"$\infty$",
    "<": "$<$", ">": "$>$", "|": r"\textbar{}",
}  # fmt: skip


# a power, as in T^(2/3) and in ε^−2.5
POWER = re.compile(r"\^(?:\(([^()]+)\)|([−-]?[\d./]*\d))")


def escape_tex(text: str) -> str:
    """The text for LaTeX: special characters escaped, symbols as mathematics, for pdflatex."""
    parts = POWER.split(text.replace("q̂", "\0"))  # text, a power in brackets or a plain one, text
    found = []
    for k, part in enumerate(parts):
        if part:
            escaped = "".join(TEX.get(c, c) for c in part).replace("\0", TEX["q̂"])
            found.append(escaped if k % 3 == 0 else rf"\textsuperscript{{{escaped}}}")
    return "".join(found)


VERDICTS = {
    "holds": r"$\checkmark$",
    "fails": r"$\times$",
    "not enough runs": "?",
    "outdated": r"$\circlearrowleft$",
    "not run": "--",
}
LEGEND = ", ".join(f"{sign} {word}" for word, sign in VERDICTS.items())
NUMBER = re.compile(r"(?P<value>[−\d.,e+∞]+|nan|–|·)(?: ± (?P<error>\S+))?(?: \[.*\])?")
LEFT_OUT = ("remarks", "by", "statistic", "why")  # columns too long for a printed page
LONG = 30  # characters; a column with a longer cell has lines that break


def escape_verdict(cell: str) -> str:
    """A cell of verdicts, each as a sign with its n."""
    signs = []
    for text in cell.split(", "):
        word, _, rest = text.partition(" (")
        sign = VERDICTS.get(word, escape_tex(word))
        signs.append(f"{sign} ({escape_tex(rest)}" if rest else sign)
    return ", ".join(signs)


def column_kind(head: str, cells: Sequence[str]) -> str:
    """How a column is set: as "number", "verdict", "long" text or short "text"."""
    if head == "verdict":
        return "verdict"
    if cells and all(NUMBER.fullmatch(cell) for cell in cells):
        return "number"
    return "long" if any(len(cell) > LONG for cell in cells) else "text"


def number_cells(cell: str, bold: bool) -> str:
    """A number's two cells: the value, which is set to the right, and its error."""
    found = NUMBER.fullmatch(cell)
    assert found is not None
    value, error = escape_tex(found["value"]), found["error"]
    if bold:
        value = rf"\textbf{{{value}}}"
    return f"{value} & " + (rf"$\pm$ {escape_tex(error)}" if error else "")


def to_latex(table: CellTable, artifact: str, title: str) -> str:
    """The table in LaTeX, with a caption and a label.

    Means are aligned to the right and standard errors to the left; intervals are left out, and of
    claims their statistics and causes. A column of remarks becomes notes below the table. Verdicts
    are signs, which the caption explains.

    artifact: the artifact's id, of which the label is made. title: of the artifact.
    """
    kept = [j for j, head in enumerate(table.head) if head not in LEFT_OUT]
    kinds = {j: column_kind(table.head[j], [row[j] for row in table.rows]) for j in kept}
    forms = {"number": r"r@{\,}l", "verdict": "l", "text": "l", "long": r"p{.5\linewidth}"}

    def cell(i: int, j: int) -> str:
        text, bold = table.rows[i][j], (i, j) in table.best
        match kinds[j]:
            case "number":
                return number_cells(text, bold)
            case "verdict":
                return escape_verdict(text)
        return rf"\textbf{{{escape_tex(text)}}}" if bold else escape_tex(text)

    def heading(j: int) -> str:
        text = escape_tex(table.head[j])
        return rf"\multicolumn{{2}}{{c}}{{{text}}}" if kinds[j] == "number" else text

    caption = [f"{title}. {table.title}."]
    if "verdict" in kinds.values():
        caption.append(f"\0{LEGEND}.")
    told, _, legend = " ".join(caption).partition("\0")
    slug = re.sub(r"[^a-z]+", "-", table.title.lower()).strip("-")
    lines = [
        r"\begin{table}[htbp]",
        r"\centering",
        rf"\caption{{{escape_tex(told)}{legend}}}",
        rf"\label{{tab:{artifact.replace('/', ':')}:{slug}}}",
        r"\small",
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        r"\begin{tabular}{" + "".join(forms[kinds[j]] for j in kept) + "}",
        r"\toprule",
        " & ".join(map(heading, kept)) + r" \\",
        r"\midrule",
        *(" & ".join(cell(i, j) for j in kept) + r" \\" for i in range(len(table.rows))),
        r"\bottomrule",
        r"\end{tabular}}",
        *table_notes(table),
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def table_notes(table: CellTable) -> list[str]:
    """The lines below a table: what it says of itself, then the remarks on its rows."""
    notes = [table.note.replace(INTERVAL_NOTE, "")] if table.note else []
    if "remarks" in table.head:
        at = table.head.index("remarks")
        notes += [f"{row[0]}: {row[at]}." for row in table.rows if row[at]]
    return [rf"\par\footnotesize\raggedright {escape_tex(note)}" for note in notes]


def example_document(artifacts: Iterable[Artifact], figures: Sequence[tuple[str, str]]) -> str:
    """A document that shows every artifact's tables, and its first figure, as papers include them.

    figures: the id of an artifact and the path of its figure in PDF, without the suffix.
    """
    first = dict(reversed(figures))
    body = []
    for artifact in artifacts:
        body += [rf"\section{{{escape_tex(artifact.spec.title)}}}"]
        if artifact.id in first:
            label = artifact.id.replace("/", ":")
            body += [
                r"\begin{figure}[htbp]",
                r"\centering",
                rf"\includegraphics[width=\linewidth]{{{first[artifact.id]}}}",
                rf"\caption{{{escape_tex(artifact.spec.title)}.}}",
                rf"\label{{fig:{label}}}",
                r"\end{figure}",
            ]
        body += [rf"\input{{{artifact.id}}}", r"\clearpage"]
    return "\n".join(
        [
            r"\documentclass{article}",
            r"\usepackage[T1]{fontenc}",
            r"\usepackage{amssymb,booktabs,graphicx}",
            r"\usepackage[margin=2cm]{geometry}",
            r"\begin{document}",
            *body,
            r"\end{document}",
            "",
        ]
    )
