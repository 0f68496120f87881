"""The pages of all records, made from the repository alone, in a real browser."""

import re
from pathlib import Path

import pytest

from bench.core.settings import BadSetting
from bench.reproduce import headlines, papers, site
from bench.reproduce.book import find_artifacts, load_book
from bench.reproduce.cli import app
from bench.reproduce.specs import Book
from tests.test_pages import Open, browser, opened, settle

__all__ = ["browser", "opened"]
RESULTS = Path(__file__).parents[1] / "results"
CURVES, TABLE = "bome/fig1_minimax", "f2obo/table2"  # which has no histories
SHOWN = (CURVES, TABLE, "stocbio/fig2_miniimagenet")  # the last may have no record


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Book]:
    folder, book = tmp_path_factory.mktemp("site"), load_book()
    site.write_site(find_artifacts(book, SHOWN), book, RESULTS, folder, None)
    return folder, book


def test_every_record_has_a_page_with_a_figure(made: tuple[Path, Book]) -> None:
    folder, book = made
    index = (folder / "index.html").read_text()
    for key in SHOWN:
        found = site.largest_record(book.artifacts[key], RESULTS)
        page = (folder / key).with_suffix(".html")
        assert page.is_file() == (found is not None)
        if found is None:
            assert f"reproduce run {key} --budget short" in index
            continue
        text = page.read_text()
        assert re.search(rf'src="{key.split("/")[1]}-[\w-]+\.svg"', text)
        assert (folder / f"{key}-small.svg").is_file()
        assert text.index('id="headline"') < text.index("<h2>Claims</h2>")
        assert f"reproduce run {key} --budget {found.budget}" in text
    assert len(index) < 500_000
    assert "plotly.min.js" not in index
    assert (folder / "example.tex").read_text().count(r"\input") == index.count('class="card"')


@pytest.mark.parametrize("width", [1400, 800, 400])
def test_pages_fit_every_width(width: int, opened: Open, made: tuple[Path, Book]) -> None:
    """The fixture fails if a page writes to its console or a request fails."""
    folder, _ = made
    for name in ("index", CURVES, TABLE):
        page = opened(folder / f"{name}.html", width)
        if name == CURVES:
            settle(page, 4)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        for image in page.locator("img").all():
            image.scroll_into_view_if_needed()
            page.wait_for_function(
                "i => i.complete && i.naturalWidth > 0", arg=image.element_handle()
            )


def test_the_command_needs_no_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = app(
        ["report", TABLE, "--site", f"{tmp_path}", "--results", f"{RESULTS}"],
        standalone_mode=False,
    )
    assert not code
    assert capsys.readouterr().out.strip() == f"{tmp_path / 'index.html'}"
    for option in (["--record"], ["--budget", "short"]):
        with pytest.raises(BadSetting, match=f"^--site: .* leave out {option[0]}$"):
            app(["report", "--site", f"{tmp_path}", *option], standalone_mode=False)


def test_headlines() -> None:
    assert headlines.count_phrase(["holds", "fails", "holds"]) == "2 hold and 1 fails"
    assert headlines.count_phrase(["holds"]) == "1 holds"
    mixed = headlines.count_phrase(["holds", "outdated", "not run", "not run"])
    assert mixed == "1 holds, 1 waits for new runs and 2 are not run"
    assert headlines.phrase_all(["holds"]) == "claim holds"
    assert headlines.phrase_all(["fails", "fails"]) == "2 claims fail"


def test_papers_are_cited() -> None:
    found = papers.load_papers(None)
    book = load_book()
    assert {key.split("/")[0] for key in book.artifacts} <= set(found)
    entry = papers.Paper(title="A \u03b2", authors=["Ann Ab", "Bo C"], venue="V", year=2020)
    assert entry.text == "Ann Ab, Bo C. A \u03b2. V, 2020."
    assert "author    = {Ann Ab and Bo C}," in entry.bibtex("k")
    assert papers.paper_of("k/fig1", {"k": entry}) is entry
    assert papers.paper_of("other/fig1", {"k": entry}) is None


def test_a_wrong_paper_is_refused(tmp_path: Path) -> None:
    (tmp_path / "papers.yaml").write_text("mine: {title: t, authors: [], venue: v, year: 1}\n")
    with pytest.raises(BadSetting, match=r"papers.yaml: mine.authors"):
        papers.load_papers(tmp_path)
