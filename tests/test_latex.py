"""Tables in LaTeX: columns, signs, captions; and a document of them that compiles."""

import shutil
import subprocess
from pathlib import Path

import pytest

from bench.reproduce import latex
from bench.reproduce.tables import CellTable
from tests import planned

TABLE = CellTable(
    "Measured",
    ["method", "θ₁ ↑", "n", "remarks"],
    [["50% & more_1", "−2.5 ± 1 [−2, ∞]", "3", "of q̂"], ["b", "3", "–", ""]],
    "Mean ± error [Student's 95% interval] over n.",
    frozenset({(1, 1)}),
)
CLAIMS = CellTable(
    "Claims",
    ["verdict", "claim", "by", "statistic"],
    [
        ["holds", "it is so, " + "and so " * 6, "us", "p = 1"],
        ["not enough runs (n=2)", "a", "", ""],
    ],
)


def test_numbers_are_aligned_at_their_errors() -> None:
    """The value is set to the right, the error to the left, and the interval left out."""
    lines = latex.to_latex(TABLE, "p/a_1", "A & B").splitlines()
    assert r"\begin{tabular}{lr@{\,}lr@{\,}l}" in lines
    head = r"method & \multicolumn{2}{c}{$\theta$$_1$ $\uparrow$} & \multicolumn{2}{c}{n} \\"
    assert head in lines
    assert r"50\% \& more\_1 & $-$2.5 & $\pm$ 1 & 3 &  \\" in lines
    assert r"b & \textbf{3} &  & -- &  \\" in lines


def test_a_table_has_caption_label_and_notes() -> None:
    text = latex.to_latex(TABLE, "p/a_1", "A & B")
    assert r"\caption{A \& B. Measured.}" in text
    assert r"\label{tab:p:a_1:measured}" in text
    assert r"\raggedright Mean $\pm$ error over n." in text
    assert r"\raggedright 50\% \& more\_1: of $\hat q$." in text
    assert "remarks" not in text


def test_verdicts_are_signs_that_the_caption_explains() -> None:
    text = latex.to_latex(CLAIMS, "p/a", "T")
    assert r"{lp{.5\linewidth}}" in text
    assert "$\\checkmark$ & it is so" in text
    assert "? (n=2) & a" in text
    caption = next(line for line in text.splitlines() if "caption" in line)
    assert r"$\checkmark$ holds, $\times$ fails, ? not enough runs" in caption
    assert "statistic" not in text


def test_several_verdicts_in_one_cell() -> None:
    assert latex.escape_verdict("holds, fails (n=1)") == r"$\checkmark$, $\times$ (n=1)"
    assert latex.escape_verdict("not judged at this budget") == "not judged at this budget"


def test_every_symbol_that_is_known_becomes_plain_text() -> None:
    every = "".join(latex.TEX)
    assert latex.escape_tex(every).isascii()
    assert latex.escape_tex("T^(2/3) and ε^−2.5") == (
        r"T\textsuperscript{2/3} and $\epsilon$\textsuperscript{$-$2.5}"
    )
    assert latex.escape_tex("\\{~^}") == (
        r"\textbackslash{}\{\textasciitilde{}\textasciicircum{}\}"
    )


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_the_document_compiles(tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    artifact = planned.artifact()
    file = (tmp_path / artifact.id).with_suffix(".tex")
    file.parent.mkdir()
    tables = (latex.to_latex(table, artifact.id, "T") for table in (TABLE, CLAIMS))
    file.write_text("\n".join(tables))
    Figure(figsize=(2, 2)).savefig(file.with_name("x-f.pdf"))
    figures = [(artifact.id, f"{Path(artifact.id).parent}/x-f")]
    (tmp_path / "example.tex").write_text(latex.example_document([artifact], figures))
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "example.tex"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:]
    assert (tmp_path / "example.pdf").stat().st_size > 10_000
