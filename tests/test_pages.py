"""The pages in a real browser, from disk and without a network, as wide as a desk and a phone.

tests/screens has a picture of each of five pages that a person has looked at: the darkest of each
16 x 16 pixels, in grey. That is so coarse that fonts and measured seconds hardly show, and so fine
that a figure, a table or a heading does which is missing, has moved or lies on another one. With
the variable BENCH_SCREENS=new the test writes the pictures anew, and beside them the pages at their
full size, *-full.png, to be looked at before a commit.
"""

import io
import os
import re
import shutil
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
import yaml
from PIL import Image, ImageChops
from playwright.sync_api import Browser, Page, expect, sync_playwright

from bench.reproduce import dashboard, records, report
from bench.reproduce import plan as plans
from bench.reproduce.book import load_book
from bench.reproduce.run_names import Names
from bench.reproduce.specs import Book
from tests.test_dashboard import BOOK, losses, suite
from tests.test_dashboard import made as made_by_hand
from tests.test_reproduce import DIGITS, TOY, made

Open = Callable[[Path, int], Page]
SCREENS = Path(__file__).parent / "screens"
COARSE = 16  # pixels of a page to one of its picture, in both directions
FAR = 60  # of 255: two pixels this far apart show different things
FEW = 0.01  # the share of pixels that may be far apart, as other browsers draw text differently
FONT = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"  # on every machine


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        if os.environ.get("CI"):
            pytest.fail("chromium is not installed")
        pytest.skip("chromium is not installed")
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def opened(browser: Browser) -> Iterator[Open]:
    """A function that opens a page without a network; the page must have printed nothing to its
    console."""
    contexts, complaints = [], []

    def call(file: Path, width: int) -> Page:
        context = browser.new_context(viewport={"width": width, "height": 900}, offline=True)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("requestfailed", lambda request: complaints.append(request.url))
        page.goto(file.as_uri())
        return page

    yield call
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Book]:
    """A report over two artifacts, its runs, and the specs."""
    folder = tmp_path_factory.mktemp("pages")
    (folder / "specs" / "mine").mkdir(parents=True)
    plane = {"x": "theta_1", "y": "theta_2", "x_range": [-4, 4], "y_range": [-3, 4]}
    rows = {k: v for k, v in TOY["rows"].items() if k.endswith(("1", "2"))}
    figure = {"metrics": ["distance", "gap"], "log": ["gap"], "trajectory": plane}
    toy = {**TOY, "figure": figure, "rows": rows}
    for name, content in {"toy": toy, "digits": DIGITS}.items():
        file = folder / "specs" / "mine" / f"{name}.yaml"
        file.write_text(yaml.safe_dump(content, sort_keys=False))
    book, root = load_book(folder / "specs"), folder / "runs"
    entries = []
    for artifact in book.artifacts.values():
        made(artifact.id, folder / "specs", root)
        plan = plans.make_plan(artifact, book, "smoke", root, Names(root))
        entries.append(report.ReportEntry(artifact, records.make_record(plan, book), plan))
    report.write_report(entries, book, folder / "report")
    return folder / "report", root, book


def colours(page: Page) -> set[tuple[int, ...]]:
    """The colours of the pixels of a screenshot of the whole page."""
    image = Image.open(io.BytesIO(page.screenshot(full_page=True))).convert("RGB")
    counts: Any = image.getcolors(2**24)
    return {colour for many, colour in counts if many >= 20}


def rgb(colour: str) -> tuple[int, ...]:
    return tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5))


def settle(page: Page, plots: int) -> None:
    """Wait until the plots are drawn."""
    page.wait_for_function(f"document.querySelectorAll('.plot .main-svg').length >= {plots}")
    page.wait_for_timeout(200)


@pytest.mark.parametrize("width", [1400, 400])
@pytest.mark.parametrize("name", ["toy", "digits"])
def test_an_artifacts_page(
    name: str, width: int, opened: Open, pages: tuple[Path, Path, Book]
) -> None:
    folder, _, book = pages
    page = opened(folder / "mine" / f"{name}.html", width)
    settle(page, 2)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    drawn = page.evaluate(
        "[...document.querySelectorAll('.plot')].map(p => [p.getBoundingClientRect().right,"
        " p.querySelector('.main-svg').getBoundingClientRect().right,"
        " p.querySelectorAll('.scatterlayer .trace path.js-line').length])"
    )
    assert len(drawn) == (4 if name == "toy" else 2)
    for right, inside, lines in drawn:
        assert inside <= right + 1 <= width + 1
        assert lines >= 1
    assert rgb(book.methods["bome"].colour) in colours(page)  # a method's line in its colour
    text = page.inner_text("body")
    for part in ("Claims", "holds", "Measured", "Cost of a run, code variant", "To repeat it"):
        assert part in text
    if name == "toy":
        assert "optimum of the problem: paper (3.0, 1.0), code (1.8, 0.4)" in " ".join(text.split())
        assert "fails" in text
        assert "by paper: in the title" in text
        assert "by us" in text
        assert "conjecture: Its steps are short." in text
        assert "budget smoke, smaller than the paper's scale" in text
    else:
        page.evaluate(  # those far down the page are not loaded before somebody comes there
            "Promise.all([...document.images].map(i => (i.loading = 'eager', i.decode())))"
        )
        pictures = page.evaluate(
            "[...document.querySelectorAll('figure img')].map(i => [i.naturalWidth, i.alt])"
        )
        last, *views = [words for wide, words in pictures if wide > 100]
        assert last.startswith("Last values")
        assert len(views) == 2  # one per variant
        assert all("weights of the training samples" in words for words in views)
        assert "not built yet" in text
        assert re.search(r"AT AN EDGE: outer_lr \d+ is the (lowest|highest) of 10, 100", text)
        assert "Published and measured" in text


def test_headings_and_plots_do_not_overlap(opened: Open, pages: tuple[Path, Path, Book]) -> None:
    for width in (1400, 400):
        page = opened(pages[0] / "mine" / "toy.html", width)
        settle(page, 4)
        boxes = page.evaluate(
            "[...document.querySelectorAll('h1, h2, h3, header p, .plot, main > section > p')]"
            ".map(e => e.getBoundingClientRect()).map(b => [b.left, b.top, b.right, b.bottom])"
        )
        for i, a in enumerate(boxes):
            for b in boxes[i + 1 :]:
                apart = a[2] <= b[0] + 1 or b[2] <= a[0] + 1 or a[3] <= b[1] + 1 or b[3] <= a[1] + 1
                assert apart, (a, b)
        titles = page.evaluate(
            "[...document.querySelectorAll('.plot')].map(p => ["
            "p.querySelector('.xtitle').getBoundingClientRect().bottom,"
            "p.getBoundingClientRect().bottom])"
        )
        assert all(title <= bottom for title, bottom in titles)


def test_metric_axis_and_scale_can_be_chosen(opened: Open, pages: tuple[Path, Path, Book]) -> None:
    page = opened(pages[0] / "mine" / "toy.html", 1400)
    settle(page, 4)
    assert not page.is_checked("#log")
    page.select_option("#metric", "gap")
    assert page.is_checked("#log")
    page.select_option("#axis", "calls")
    titles = page.locator("#curves .xtitle").all_text_contents()
    assert titles == ["oracle calls", "oracle calls"]
    assert page.locator("#curves .ytitle").first.text_content() == "g − min g"
    before = page.locator("#planes .scatterlayer .trace").count()
    page.locator("#legend button", has_text="BSG-1 1").click()
    assert page.locator("#legend button[aria-pressed=false]").count() == 1
    assert (
        page.locator("#planes .scatterlayer .trace").count() == before - 4
    )  # path and ends, twice


def test_index_links_to_every_page(opened: Open, pages: tuple[Path, Path, Book]) -> None:
    folder, _, book = pages
    page = opened(folder / "index.html", 400)
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    totals = "At a smaller scale, of the papers' claims 1 fail; of our own checks "
    assert page.inner_text("#totals").startswith(totals)
    assert "smaller than the paper's scale" in page.inner_text("body")
    links = page.evaluate("[...document.querySelectorAll('a')].map(a => a.getAttribute('href'))")
    assert set(links) == {f"{artifact}.html" for artifact in book.artifacts}
    assert all((folder / link).is_file() for link in links)


def test_files_beside_a_page(pages: tuple[Path, Path, Book]) -> None:
    folder, _, book = pages
    for name in ("toy", "digits"):
        markdown = (folder / "mine" / f"{name}.md").read_text()
        assert "### Claims" in markdown
        assert "| method |" in markdown
        tex = (folder / "mine" / f"{name}.tex").read_text()
        assert tex.count(r"\begin{tabular}") == tex.count(r"\end{tabular}") > 2
        assert tex.isascii()
    for svg in (folder / "mine").glob("*.svg"):
        assert svg.read_text().startswith("<?xml")
        pdf = svg.with_suffix(".pdf")
        assert svg.stem.endswith("-small") or pdf.read_bytes().startswith(b"%PDF")
    assert (folder / "mine" / "toy-trajectory.svg").read_text().count("optimum") >= 2
    assert book.methods["bome"].colour in (folder / "mine" / "digits-test_accuracy.svg").read_text()
    everything = "".join(file.read_text() for file in folder.rglob("*.html"))
    assert 'src="http' not in everything
    assert 'href="http' not in everything


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page over three methods on two problems, three seeds of each, of which one diverged."""
    folder = tmp_path_factory.mktemp("compared")
    suite(folder / "runs")
    made_by_hand(
        folder / "runs/toy/itd/bad", losses(100.0, None), {"status": "diverged"}, 9,
        task={"_target_": "tasks.b.toy"}, algorithm={"_target_": "x.itd", "T": 5, "lr": 3},
    )  # fmt: skip
    return dashboard.write_comparison([folder / "runs"], BOOK, folder / "page")[0]


def too_wide(page: Page) -> list[Any]:
    """The tables that are wider than their places, and the page itself if it is."""
    found: list[Any] = page.evaluate(
        "[...document.querySelectorAll('html, table.fit')].filter(e => e.scrollWidth > "
        "(e.parentElement ?? {clientWidth: innerWidth}).clientWidth).map(e => e.id || e.tagName)"
    )
    return found


@pytest.mark.parametrize("width", [1400, 800, 400])
def test_the_comparison_draws_bands_and_its_tables_fit(
    width: int, opened: Open, compared: Path
) -> None:
    page = opened(compared, width)
    settle(page, 1)
    assert too_wide(page) == []
    assert page.inner_text("h1") == "3 methods on 2 problems, 19 runs"
    # for each method two edges of its band and its mean
    assert page.locator("#plot .scatterlayer .trace").count() == 9
    assert page.locator("#plot .scatterlayer .js-fill").count() == 3
    assert "95% interval of the mean (Student's)" in page.inner_text("#what")
    names = page.locator("#methods td.name").all_inner_texts()
    assert names == ["itd", "BOME, T 1", "BOME, T 9"]
    page.select_option("#problem", label="toy")
    assert page.locator("#methods td.name").all_inner_texts() == ["BOME, T 1", "BOME, T 9", "itd"]
    cells = page.locator("#methods tbody tr").nth(2).locator("td").all_inner_texts()
    assert "2.3 ± 1.5" in cells
    assert "3, 1 diverged" in cells
    assert "1 diverged comes after" not in page.inner_text("#notes")
    assert page.locator("#matrix").is_visible()
    matrix = page.locator("#matrix tbody tr").all_inner_texts()
    assert len(matrix) == 3
    assert "+10 [10, 10]" in " ".join(" ".join(matrix).split())
    page.select_option("#problem", label="all together")
    page.click("#runs summary")
    expect(page.locator("#runs tbody tr")).to_have_count(19)
    assert too_wide(page) == []


def test_what_is_compared_can_be_chosen(opened: Open, compared: Path) -> None:
    page = opened(compared, 1400)
    settle(page, 1)
    page.wait_for_function("single.size === 19")  # few runs are loaded without being asked for
    page.fill("#target", "14.5")
    reached = page.locator("#methods td:last-child").all_inner_texts()
    assert reached == ["3 of 3", "3 of 3", "0 of 3"]
    seconds = page.locator("#methods tbody tr").first.locator("td").all_inner_texts()
    assert "1 ± 0" in seconds
    page.select_option("#axis", "calls")
    assert page.locator("#plot .xtitle").text_content() == "calls"
    page.fill("#smoothing", "0.5")
    assert page.locator("#plot .ytitle").text_content() == "test loss, smoothed 0.5"
    page.check("#single")
    assert page.locator("#plot .scatterlayer .trace").count() == 9 + 9
    page.uncheck("#single")
    page.fill("#having", "t 9")
    assert page.locator("#methods td.name").all_inner_texts() == ["BOME, T 9"]
    assert "All seeds came to the same values" not in page.inner_text("#notes")
    page.fill("#having", "")
    page.locator("#legend button", has_text="itd").click()
    assert page.locator("#legend button[aria-pressed=false]").count() == 1
    assert page.locator("#plot .scatterlayer .trace").count() == 6
    page.click("#runs summary")
    page.fill("#seed", "2")
    expect(page.locator("#runs tbody tr")).to_have_count(3)
    page.locator("#runs tbody input").first.check()
    assert page.locator("#plot .scatterlayer .trace").count() == 7
    heading = page.locator("#runs th.sortable", has_text="test loss")
    heading.click()
    losses = page.locator("#runs tbody td:nth-child(7)").all_inner_texts()
    assert losses == ["4", "14", "24"]
    page.click("#difference summary")
    assert "algorithm.T" in page.inner_text("#difference")


def test_seeds_that_change_nothing_are_told(opened: Open, tmp_path: Path) -> None:
    """Of the metric that is compared, and not where it is what a run costs."""
    for method, end in {"itd": 2.0, "bome": 1.0}.items():
        for seed in (0, 1):
            folder = tmp_path / f"runs/toy/{method}/{seed}"
            made_by_hand(folder, losses(end), {"amortised": True}, seed)
    page = opened(dashboard.write_comparison([tmp_path / "runs"], BOOK, tmp_path / "page")[0], 800)
    settle(page, 1)
    assert "All seeds came to the same values" in page.inner_text("#notes")
    assert "Seconds are shares of what lanes took together." in page.inner_text("#notes")
    page.select_option("#metric", "step")
    assert "All seeds came to the same values" not in page.inner_text("#notes")


def cells_of(page: Page, table: str, column: str) -> list[str]:
    """A column of a table, its lines put together."""
    found = page.locator(f'{table} td[data-label="{column}"]').all_inner_texts()
    return [" ".join(text.split()) for text in found]


def test_what_did_not_end_is_told(opened: Open, tmp_path: Path) -> None:
    """A method of which no run is done comes last, and one that was not run is no better."""
    for task, method, seed, end, summary in [
        ("other", "itd", 0, 5.0, {}), ("other", "itd", 1, 6.0, {}),
        ("other", "penalty", 0, 1.0, None), ("toy", "itd", 0, 3.0, {}),
        ("toy", "itd", 1, 5.0, {}), ("toy", "itd", 2, 5.0, {}),
        ("toy", "itd", 3, None, {}), ("toy", "penalty", 0, 0.5, {"status": "diverged"}),
        ("toy", "penalty", 1, None, {"status": "diverged"}), ("toy", "penalty", 2, 9.0, None),
        ("toy", "soba", 0, 1.0, {}), ("toy", "soba", 1, 2.0, {}), ("third", "bsa", 0, 0.5, None),
    ]:  # fmt: skip
        made_by_hand(
            tmp_path / f"runs/{task}/{method}/{seed}", losses(1.0, end), summary, seed,
            task={"_target_": f"tasks.b.{task}"},
        )  # fmt: skip
    made_by_hand(tmp_path / "runs/toy/soba/9", [], None, 9)
    page = opened(dashboard.write_comparison([tmp_path / "runs"], BOOK, tmp_path / "page")[0], 1400)
    settle(page, 1)
    assert page.inner_text("#about") == "1 run has begun and has no row yet"
    # no run on the first problem ends below its start, which is no target
    assert page.input_value("#target") == ""
    assert cells_of(page, "#methods", "n") == ["2", "1, none done: 1 not finished"]
    assert cells_of(page, "#methods", "to the best") == ["best", "–"]
    assert "Where none is done they are over the runs that diverged" in page.inner_text("#notes")
    page.select_option("#problem", label="third")
    assert cells_of(page, "#methods", "to the best") == ["–"]
    page.select_option("#problem", label="toy")
    assert page.locator("#methods td.name").all_inner_texts() == ["soba", "itd", "penalty"]
    assert cells_of(page, "#methods", "rank") == ["1", "2", "3"]
    assert cells_of(page, "#methods", "n") == [
        "2, 1 not finished", "3, 1 without a value", "1, none done: 2 diverged, 1 not finished",
    ]  # fmt: skip
    pairs = cells_of(page, "#methods", "to the best")[1]
    assert pairs.startswith("+2.5 [")
    assert pairs.endswith("] (2 pairs)")
    assert page.locator("#matrix td.name").all_inner_texts() == ["itd", "penalty", "bsa", "soba"]
    ranks = cells_of(page, "#matrix", "mean rank")
    told = ["1.5 over 2", "2.5 over 2", "1 over 1", "1 over 1"]
    assert ranks == [f"{rank} of 3 problems" for rank in told]
    assert cells_of(page, "#matrix", "other")[1:] == ["not finished", "–", "–"]
    toy = cells_of(page, "#matrix", "toy")
    assert toy[0].endswith("(2 pairs)")
    assert toy[1:] == ["2 diverged, 1 not finished", "–", "1.50 ± 0.71 best"]


def test_what_is_shown_is_saved(opened: Open, compared: Path) -> None:
    page = opened(compared, 1400)
    settle(page, 1)
    saved = {}
    for button in ("csv", "svg"):
        with page.expect_download() as download:
            page.click(f"#{button}")
        saved[button] = Path(download.value.path()).read_text()
    lines = saved["csv"].splitlines()
    assert lines[0].startswith('"rank","method","test loss, mean ± sd"')
    assert lines[1].startswith('"1","itd","2.3 ± 1.5"')
    assert saved["svg"].startswith("<svg")
    assert "BOME, T 9" in saved["svg"]


def test_the_comparison_of_real_runs(
    opened: Open, pages: tuple[Path, Path, Book], tmp_path: Path
) -> None:
    _, root, book = pages
    file, found = dashboard.write_comparison([root], book, tmp_path / "comparison")
    for width in (1400, 800, 400):
        page = opened(file, width)
        settle(page, 1)
        assert too_wide(page) == []
        page.select_option("#problem", label="all together")
        page.select_option("#metric", "distance")
        assert page.locator("#methods tbody tr").count() == len(found.groups)
        assert page.locator("#plot .scatterlayer .js-line").count() > 2
        assert too_wide(page) == []


def coarse(shot: bytes) -> Image.Image:
    """A screenshot in grey, with the darkest of every COARSE x COARSE pixels."""
    pixels = np.asarray(Image.open(io.BytesIO(shot)).convert("L"))
    rows, columns = (size // COARSE for size in pixels.shape)
    whole = pixels[: rows * COARSE, : columns * COARSE]
    return Image.fromarray(whole.reshape(rows, COARSE, columns, COARSE).min((1, 3)))


def share_apart(a: Image.Image, b: Image.Image) -> float:
    """The share of pixels that show different things, in as many rows as both pictures have; 1
    where one is more than a tenth longer."""
    rows = min(a.height, b.height)
    if max(a.height, b.height) > 1.1 * rows or a.width != b.width:
        return 1.0
    cut = (0, 0, a.width, rows)
    counts = ImageChops.difference(a.crop(cut), b.crop(cut)).histogram()
    return sum(counts[FAR:]) / (rows * a.width)


@pytest.mark.parametrize("name", ["index", "toy", "digits", "comparison", "real_runs"])
def test_pages_look_as_they_did(
    name: str,
    opened: Open,
    pages: tuple[Path, Path, Book],
    compared: Path,
    tmp_path: Path,
) -> None:
    folder, root, book = pages
    if name == "comparison":
        file, plots = compared, 1
    elif name == "real_runs":
        file, plots = dashboard.write_comparison([root], book, tmp_path / "page")[0], 1
    elif name == "index":
        file, plots = folder / "index.html", 0
    else:
        file, plots = folder / "mine" / f"{name}.html", 2
    page = opened(file, 1008)
    font = b64encode(FONT.read_bytes()).decode()
    page.add_style_tag(
        content=f"@font-face {{font-family: 'Fixed'; src: url(data:font/ttf;base64,{font})}}"
        "* {font-family: 'Fixed' !important}"
    )
    page.evaluate("document.fonts.load('12px Fixed')")
    settle(page, plots)
    shot = page.screenshot(full_page=True)
    kept = SCREENS / f"{name}.png"
    if os.environ.get("BENCH_SCREENS") == "new":
        coarse(shot).save(kept)
        kept.with_name(f"{name}-full.png").write_bytes(shot)
    apart = share_apart(coarse(shot), Image.open(kept))
    assert apart <= FEW, f"{apart:.1%} of {kept.name} differ: BENCH_SCREENS=new makes it anew"


def test_a_page_that_looks_different_is_noticed() -> None:
    """A figure that is missing is; a digit that is another one is not."""
    kept = Image.open(SCREENS / "toy.png")
    without = kept.copy()
    without.paste(255, (0, 25, kept.width, 50))
    assert share_apart(without, kept) > FEW
    digit = kept.copy()
    digit.paste(128, (5, 5, 7, 6))
    assert share_apart(digit, kept) < FEW
    moved = ImageChops.offset(kept, 0, 4)
    assert share_apart(moved, kept) > FEW
    assert share_apart(kept.crop((0, 0, kept.width, kept.height // 2)), kept) == 1.0
