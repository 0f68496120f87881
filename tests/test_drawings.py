"""What figures look like, read from matplotlib's own objects and from the files."""

import itertools
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from bench.reproduce import dots, drawings
from bench.reproduce.records import Record
from bench.reproduce.specs import Book, Metric
from tests import planned
from tests.test_report_tables import row


def line(name: str, values: list[float | None], **more: Any) -> dict[str, Any]:
    """A curve over the steps 0, 1, ..., as `curves.curves` gives it."""
    return {
        "row": name, "colour": "#0072b2", "dash": "solid", "n": 1, "line": False, "published": {},
        "x": {"step": list(range(len(values)))}, "y": {"loss": [(v, 0.0) for v in values]}, **more,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("heights", "expected"),
    [
        ([], []),
        ([0.1, 0.5], [0.1, 0.5]),
        ([0.5, 0.5], [0.45, 0.55]),
        ([0.0, 0.05, 0.1], [-0.05, 0.05, 0.15]),
        ([0.2, 0.5, 0.52, 0.9], [0.2, 0.46, 0.56, 0.9]),
        ([0.3, 0.5, 0.5, 0.5], [0.3, 0.4, 0.5, 0.6]),
    ],
)
def test_labels_are_moved_apart(heights: list[float], expected: list[float]) -> None:
    assert drawings.spread(heights, 0.1) == pytest.approx(expected)


def test_labels_that_touch_after_a_move_are_moved_too() -> None:
    found = drawings.spread([0.30, 0.36, 0.50, 0.50], 0.1)
    assert all(b - a >= 0.1 - 1e-12 for a, b in itertools.pairwise(found))
    assert sum(found) == pytest.approx(0.30 + 0.36 + 0.50 + 0.50)  # around their own mean


def test_curves_end_with_the_data_and_lower_ones_are_wider() -> None:
    panel = Figure().add_subplot()
    lines = [line("a", [1.0, 2.0, 3.0]), line("b", [None, 2.0, 4.0], published={"loss": 5.0})]
    drawings.draw_curves(panel, lines, "step", "loss", False)
    first, second, published = panel.lines
    assert first.get_linewidth() == drawings.WIDEST
    assert second.get_linewidth() == drawings.NARROWEST
    assert [list(map(float, xy)) for xy in second.get_xydata()] == [[1.0, 2.0], [2.0, 4.0]]
    assert panel.get_xlim() == (0.0, 2.0)
    assert published.get_marker() == "D"
    assert list(published.get_xydata()[0]) == [2.0, 5.0]


def test_ends_are_labelled_in_the_order_of_their_heights() -> None:
    panel = Figure().add_subplot()
    lines = [line("high", [1.0, 9.0]), line("low", [1.0, 2.0]), line("near", [1.0, 2.1])]
    drawings.draw_curves(panel, lines, "step", "loss", False)
    drawings.label_ends(panel, [*lines, line("empty", [None, None])], "step", "loss")
    heights = {text.get_text(): text.get_position()[1] for text in panel.texts}
    assert list(heights) == ["low", "near", "high"]
    assert heights["near"] - heights["low"] == pytest.approx(drawings.LABEL_GAP)


def test_a_figure_is_laid_out_as_matplotlib_does_it(tmp_path: Path) -> None:
    """To the byte, by one layout in place of two drawings for each file."""
    artifact, plt = planned.artifact(), drawings.pyplot()
    figures = []
    with plt.rc_context(drawings.figure_style(artifact)):
        for _ in range(2):
            figure, panels = plt.subplots(1, 2, layout="constrained")
            for panel in panels:
                drawings.draw_curves(panel, [line("a", [1.0, 20.0])], "step", "loss", True)
                panel.set_ylabel("a label that needs its place")
            drawings.add_legend(figure)
            figures.append(figure)
        ours, plain = figures
        (tmp_path / "p").mkdir()
        name = tmp_path / "p" / drawings.save_figure(ours, artifact, tmp_path, "plain")
        for kind, date in {"svg": "Date", "pdf": "CreationDate"}.items():
            plain.savefig(tmp_path / f"plain.{kind}", metadata={date: None})
            plain.set_layout_engine("none")
            found = name.with_suffix(f".{kind}").read_bytes()
            assert found == (tmp_path / f"plain.{kind}").read_bytes()
        plt.close(plain)


def recorded(**rows: Any) -> Record:
    return Record.model_validate(
        {
            "artifact": "p/a", "title": "t", "source": "s", "budget": "short",
            "date": "2020-01-01", "complete": True, "hardware": [], "software": [],
            "commits": [], "run_seconds": 1.0, "rows": {"paper": rows}, "claims": {},
        }
    )  # fmt: skip


def test_every_record_with_values_has_a_figure(tmp_path: Path) -> None:
    """It needs no history: the last values are enough, with what the paper prints."""
    printed = {"method": "bome", "published": {"loss": {"mean": 0.5}}}
    artifact = planned.artifact(rows={"A": printed, "B": {"method": "itd"}})
    both = recorded(
        A=row("done done", finals={"loss": [1.0, 3.0]}), B=row("done", finals={"loss": [2.0]})
    )
    (tmp_path / "p").mkdir()
    ((label, file),) = dots.draw_results(artifact, both, planned.BOOK, tmp_path)
    assert label == "Last values, mean ± standard error"
    text = (tmp_path / "p" / file).read_text()
    assert all(word in text for word in ("loss", "published", "paper variant", ">A<", ">B<"))
    assert (tmp_path / "p" / file).with_suffix(".pdf").is_file()
    small = dots.draw_thumbnail(artifact, both, {}, planned.BOOK, tmp_path)
    assert small == "a-small.svg"
    assert (tmp_path / "p" / small).stat().st_size < 20_000


@pytest.mark.parametrize(("largest", "scale"), [(3.0, "linear"), (30.0, "log")])
def test_an_axis_is_logarithmic_where_its_ends_are_far_apart(largest: float, scale: str) -> None:
    """Between 1 and 3 a logarithmic axis has labels that lie on each other."""
    artifact = planned.artifact(figure={"metrics": ["loss"], "log": ["loss"]})
    found = recorded(
        A=row("done", finals={"loss": [1.0]}), B=row("done", finals={"loss": [largest]})
    )
    panel = Figure().subplots()
    dots.draw_metric(panel, artifact, found, planned.BOOK, "loss", ["A", "B"])
    assert panel.get_xscale() == scale
    if scale == "linear":
        assert len(panel.get_xticks()) <= dots.MOST_TICKS + 3  # some of them outside of the panel


def test_a_record_without_values_has_none(tmp_path: Path) -> None:
    empty = recorded(A=row("missing"))
    artifact = planned.artifact()
    assert dots.draw_results(artifact, empty, planned.BOOK, tmp_path) == []
    assert dots.draw_thumbnail(artifact, empty, {}, planned.BOOK, tmp_path) is None


def test_outdated_rows_are_pale() -> None:
    assert dots.opacity(row("done", outdated=True)) == dots.FADED
    assert dots.opacity(row("done")) == 1.0


def test_errors_are_in_per_cent_as_means_are() -> None:
    """Of .5 and .7 the mean is .6 and the standard error .1."""
    percent = Metric(label="a", better="higher", percent=True)
    book = Book({}, {"any": {}, "toy": {"loss": percent}}, planned.BOOK.methods)
    found = recorded(A=row("done done", finals={"loss": [0.5, 0.7]}))
    panel = Figure().subplots()
    dots.draw_metric(panel, planned.artifact(), found, book, "loss", ["A"])
    ((left, _), (right, _)) = panel.containers[0][2][0].get_segments()[0]
    assert (left, right) == (pytest.approx(50.0), pytest.approx(70.0))
