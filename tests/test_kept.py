"""What is made of data sets and kept in files."""

import errno
from pathlib import Path

import pytest
import torch
from torch import Tensor

from bench.core.task import Context
from tasks.data.kept import made_or_kept
from tests.test_hostile import Payload


def given(context: Context, value: float) -> Tensor:
    """What is there or is made now, which has this value."""
    return made_or_kept("a", context, lambda: torch.tensor([value]))


def test_what_was_made_is_read_again(tmp_path: Path) -> None:
    context = Context(data_root=tmp_path / "new")
    assert given(context, 1.0).tolist() == given(context, 2.0).tolist() == [1.0]
    assert [file.name for file in (tmp_path / "new/derived").iterdir()] == ["a.pt"]


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04 cut"])
def test_a_damaged_file_is_made_again(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "derived/a.pt"
    file.parent.mkdir()
    file.write_bytes(content)
    context = Context(data_root=tmp_path)
    assert given(context, 1.0).tolist() == given(context, 2.0).tolist() == [1.0]


def test_a_kept_file_cannot_run_anything(tmp_path: Path) -> None:
    file = tmp_path / "derived/a.pt"
    file.parent.mkdir()
    torch.save(Payload(tmp_path / "executed"), file)
    assert given(Context(data_root=tmp_path), 1.0).tolist() == [1.0]
    assert not (tmp_path / "executed").exists()


def test_a_full_disk_costs_time_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing half-written stays."""

    def full(self: Path, content: bytes) -> int:
        self.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    for value in (1.0, 2.0):
        assert given(Context(data_root=tmp_path), value).tolist() == [value]
    assert list((tmp_path / "derived").iterdir()) == []


def test_a_data_root_that_cannot_be_written_to_costs_time_only(tmp_path: Path) -> None:
    (tmp_path / "derived").write_text("a file where the folder should be")
    for value in (1.0, 2.0):
        assert given(Context(data_root=tmp_path), value).tolist() == [value]
