"""Records that several commands write: none is lost, and one that cannot be written stops none."""

import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer

from bench.core.settings import BadSetting
from bench.reproduce import (
    campaign_commands,
    cli,
    judge_commands,
    locking,
    records,
    rejudging,
    replacing,
    report,
    standing,
)
from bench.reproduce.options import FAILED, OK, BudgetName
from bench.reproduce.records import Record
from bench.reproduce.specs import Artifact, Book
from tests.planned import BOOK, Known, artifact
from tests.test_records import ended

SEEDS = {"budgets": {"short": {"minutes": 1.0, "seeds": 2}}}
PLAIN: dict[str, Any] = {
    "select": None, "grid": None, "variants": {"paper": {}}, **SEEDS,
    "rows": {"A": {"method": "bome"}, "L": {"method": "bome", "line": True}},
}  # fmt: skip
MORE = {"budgets": {"short": {"minutes": 1.0, "seeds": 3}}}
OTHER = {"budgets": {"short": {"minutes": 99.0, "seeds": 2}}, "rows": {"B": {"method": "itd"}}}


def other(**changes: Any) -> Artifact:
    return replace(artifact(**PLAIN | OTHER | changes), id="p/b")


def make_row(root: Path, row: str, seeds: Any = (0, 1)) -> None:
    for seed in seeds:
        ended(root, f"paper/{row}/-{seed}", 0.1 + seed)


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Book]:
    """Lets the commands find these artifacts, whose runs' names take no composing."""

    def use(*artifacts: Artifact) -> Book:
        book = Book({each.id: each for each in artifacts}, BOOK.metrics, BOOK.methods)
        for module in (cli, campaign_commands, judge_commands):
            monkeypatch.setattr(module, "load_book", lambda specs: book)
        for room in (standing, campaign_commands, judge_commands):
            monkeypatch.setattr(room, "Names", lambda root: Known())
        return book

    return use


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return tmp_path / "results"


def read(results: Path, name: str = "p/a") -> Record:
    found = records.read_record(name, "short", results)
    assert found is not None
    return found


def there(found: Record) -> dict[str, list[str]]:
    return {name: row.status for name, row in found.rows["paper"].items()}


# what was recorded meanwhile


def test_what_was_recorded_while_pages_were_drawn_stays(
    use: Callable[..., Book], results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = artifact(**PLAIN)
    book = use(spec)
    make_row(tmp_path / "one", "A")
    make_row(tmp_path / "two", "L")

    def draw(*given: Any) -> Path:
        """A campaign records the other row, from runs of its own, while pages are drawn."""
        replacing.record_runs(spec, book, "short", tmp_path / "two", results)
        assert there(read(results)) == {"A": ["missing"] * 2, "L": ["done"] * 2}
        return tmp_path / "index.html"

    monkeypatch.setattr(report, "write_report", draw)
    where = {"runs": tmp_path / "one", "results": results, "out_": tmp_path / "pages"}
    cli.report(["p/a"], budget=BudgetName.short, record=True, **where)  # type: ignore[arg-type]
    found = read(results)
    assert there(found) == {"A": ["done"] * 2, "L": ["done"] * 2}
    assert found.complete


def test_a_record_that_was_completed_meanwhile_is_not_replaced_by_an_incomplete_one(
    use: Callable[..., Book], results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its runs are of other settings, so that they do not stand for the missing ones."""
    spec = artifact(**PLAIN)
    book = use(spec)
    make_row(tmp_path / "one", "A")
    for row in "AL":
        make_row(tmp_path / "all", row)

    def draw(*given: Any) -> Path:
        replacing.record_runs(spec, book, "short", tmp_path / "all", results)
        rows = read(results).rows["paper"]
        rows["L"] = rows["L"].model_copy(update={"runs": ["a/b/c", "a/b/d"]})
        records.write_record(read(results).model_copy(update={"rows": {"paper": rows}}), results)
        return tmp_path / "index.html"

    monkeypatch.setattr(report, "write_report", draw)
    where = {"runs": tmp_path / "one", "results": results, "out_": tmp_path / "pages"}
    with pytest.raises(BadSetting, match="p/a short: its record is complete"):
        cli.report(["p/a"], budget=BudgetName.short, record=True, **where)  # type: ignore[arg-type]
    assert read(results).complete
    cli.report(["p/a"], budget=BudgetName.short, record=True, force=True, **where)  # type: ignore[arg-type]
    assert not read(results).complete


# the lock


def is_locked(folder: Path) -> bool:
    place = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(place)
    return False


def test_one_waits_for_another_and_says_so(
    use: Callable[..., Book], results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second one reads the record when the first one has written it."""
    spec = artifact(**PLAIN)
    book = use(spec)
    make_row(tmp_path / "one", "A")
    make_row(tmp_path / "two", "L")
    replacing.record_runs(spec, book, "short", tmp_path / "none", results)
    second = threading.Thread(
        target=replacing.record_runs, args=(spec, book, "short", tmp_path / "two", results)
    )
    with replacing.replaced("p/a", "short", results) as old:
        second.start()
        second.join(0.5)
        assert second.is_alive()
        plan = standing.current_plan(spec, book, "short", tmp_path / "one", old)
        records.write_record(records.make_record(plan, book, old), results)
    second.join(60)
    assert there(read(results)) == {"A": ["done"] * 2, "L": ["done"] * 2}
    waits = f"reproduce: another process writes in {results}: waiting for it\n"
    assert capsys.readouterr().err == waits


def test_records_are_judged_again_by_one_process_at_a_time(
    use: Callable[..., Book], results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = artifact(**PLAIN)
    make_row(tmp_path / "one", "A")
    replacing.record_runs(spec, use(spec), "short", tmp_path / "one", results)
    seen: list[bool] = []

    def rejudge(*given: Any) -> Any:
        seen.append(is_locked(results))
        return {"paper": {}}

    monkeypatch.setattr(rejudging, "rejudge", rejudge)
    judge_commands.rejudge(["p/a"], runs=tmp_path / "one", results=results)
    assert seen == [True]
    assert not is_locked(results)


def test_a_lock_leaves_no_file_and_needs_no_folder(results: Path) -> None:
    with replacing.replaced("p/a", "short", results) as old:
        assert old is None
    assert not results.exists()
    results.mkdir()
    with replacing.replaced("p/a", "short", results):
        assert is_locked(results)
        assert list(results.iterdir()) == []
    assert not is_locked(results)


def test_a_file_system_without_locks_is_told(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*given: Any) -> None:
        raise OSError(locking.NO_LOCKS[0], "no locks")

    results.mkdir()
    monkeypatch.setattr(locking.fcntl, "flock", refuse)
    with locking.locked(results):
        pass
    (line,) = capsys.readouterr().err.splitlines()
    advice = "write there with one process at a time"
    assert line == f"reproduce: the file system of {results} has no locks: {advice}"


def test_pages_are_written_by_one_process_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two that wrote one folder's scripts at once took each other's half-written files away."""
    out = tmp_path / "report"
    with report.writing_pages(out):
        assert (out / "assets" / "report.css").is_file()
        second = threading.Thread(target=report.write_report, args=([], BOOK, out))
        second.start()
        second.join(0.5)
        assert second.is_alive()
        assert not (out / "index.html").exists()
    second.join(60)
    assert (out / "index.html").is_file()
    waits = f"reproduce: another process writes in {out}: waiting for it\n"
    assert capsys.readouterr().err == waits


# a campaign


@pytest.fixture
def campaign(
    use: Callable[..., Book], results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], int]]:
    """A campaign for p/a, whose complete record lacks a seed that was added since, and p/b, which
    is dearer and has no record. Its runs are made, but for those of p/a."""
    spec, dearer, root = artifact(**PLAIN), other(), tmp_path / "runs"
    for row in "AL":
        make_row(root, row)
    replacing.record_runs(spec, use(spec), "short", root, results)
    assert read(results).complete
    use(artifact(**PLAIN | MORE), dearer)

    def make_runs(made: Artifact, *given: Any, **more: Any) -> None:
        if made.id == "p/b":
            make_row(root, "B")

    monkeypatch.setattr(campaign_commands, "make_runs", make_runs)

    def run() -> int:
        with pytest.raises(typer.Exit) as ended:
            campaign_commands.campaign(1.0, runs=root, results=results)
        return ended.value.exit_code

    return run


def test_a_campaign_goes_on_behind_an_artifact_that_cannot_be_recorded(
    campaign: Callable[[], int], results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = read(results)
    assert campaign() == FAILED
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in said] == ["p/a short", "reproduce", "p/b short"]
    assert "p/a short is left out: " in said[1]
    assert "its record is complete, and not all of its runs are there now" in said[1]
    assert read(results) == before
    assert there(read(results, "p/b")) == {"B": ["done"] * 2}


def test_a_campaign_that_records_everything_ends_well(
    campaign: Callable[[], int], results: Path, tmp_path: Path
) -> None:
    for row in "AL":
        make_row(tmp_path / "runs", row, [2])
    assert campaign() == OK
    assert read(results, "p/b").complete
