"""Data that several processes want to fetch at once (a thread has a lock of its own here too)."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bench.core.settings import BadSetting
from bench.core.task import Context
from tasks.data import classes
from tasks.data.catalogue import CATALOGUE, DataSet, state
from tasks.data.fetching import NAME, one_at_a_time

FETCHED: list[int] = []


def fetch(root: Path) -> None:
    """It takes a while until all is there."""
    FETCHED.append(threading.get_ident())
    (root / "made").mkdir()
    time.sleep(0.2)
    (root / "made" / "whole").touch()


def check(folder: Path) -> None:
    if not (folder / "whole").exists():
        raise BadSetting(f"{folder} is damaged")


@pytest.fixture(autouse=True)
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    FETCHED.clear()
    monkeypatch.setitem(CATALOGUE, "made", DataSet("made", check, fetch))


@pytest.mark.parametrize("by", ["state", "present"])
def test_one_fetches_and_the_others_find_all(by: str, tmp_path: Path) -> None:
    context = Context(data_root=tmp_path / "data", download=True)

    def look(number: int) -> bool:
        if by == "state":
            return state("made", context.data_root, True).word == "whole"
        return classes.present("made", "task.data=made", context).is_dir()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(look, range(4))) == [True] * 4
    assert len(FETCHED) == 1


def test_who_fetches_nothing_writes_nothing(tmp_path: Path) -> None:
    with one_at_a_time(tmp_path / "none", False):
        pass
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with one_at_a_time(tmp_path / "file" / "below", True):  # where no folder can be
        pass


def test_a_block_that_raises_is_left(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(OSError, match="no network"), one_at_a_time(tmp_path, True):
            raise OSError("no network")
    assert [file.name for file in tmp_path.iterdir()] == [NAME]
