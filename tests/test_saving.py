"""What a run leaves on disk: whole or not at all, in a safe order, under its name, read back."""

import errno
import json
import math
import os
import platform
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from operator import methodcaller
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from bench import about
from bench.core.loop import Standing
from bench.core.settings import BadSetting
from bench.core.task import Best
from bench.reproduce.histories import thin_rows
from bench.runs import checkpoint, environment
from bench.runs.environment import differences, environment_of, processor, shares_time
from bench.runs.files import (
    read_json,
    read_yaml,
    write_json,
    write_sealed_json,
    write_sealed_yaml,
    write_whole,
)
from bench.runs.folder import RunFolder
from bench.runs.history import (
    History,
    as_line,
    count_rows,
    read_rows,
    replace_nonfinite,
    rows_at,
    rows_to_keep,
    spread,
)


def keep_rows(path: Path, upto: int, every: int) -> None:
    """As a run folder does it when its run goes on."""
    write_whole(path, rows_to_keep(path, upto, every))


class Disk:
    """Notes what is made to last, and what is renamed, in order: ("fsync", name, bytes there) and
    ("replace", from, to)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.said: list[tuple[Any, ...]] = []
        sync, replace = os.fsync, os.replace

        def synced(number: int) -> None:
            path = Path(os.readlink(f"/proc/self/fd/{number}"))
            self.said.append(("fsync", path.name, path.stat().st_size))
            sync(number)

        def replaced(source: Any, target: Any) -> None:
            self.said.append(("replace", Path(source).name, Path(target).name))
            replace(source, target)

        monkeypatch.setattr(os, "fsync", synced)
        monkeypatch.setattr(os, "replace", replaced)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.mark.parametrize("content", ["grüß\n", memoryview(b"ab\x00cd")])
def test_a_file_lasts_before_it_has_its_name(
    content: str | memoryview, disk: Disk, tmp_path: Path
) -> None:
    """All of its bytes are there when they are made to last: after a power cut the name stands for
    the old content or for the new, never for a part."""
    path, expected = tmp_path / "a.json", content.encode() if isinstance(content, str) else content
    path.write_text("old")
    write_whole(path, content)
    assert disk.said == [
        ("fsync", "a.json.new", len(expected)),
        ("replace", "a.json.new", "a.json"),
        ("fsync", tmp_path.name, tmp_path.stat().st_size),
    ]
    assert path.read_bytes() == bytes(expected)
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize("broken", ["fsync", "replace"])
def test_a_file_that_cannot_be_written_leaves_the_old_one(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "a.json"
    path.write_text("old")
    monkeypatch.setattr(os, broken, full)
    with pytest.raises(OSError, match="No space left") as told:
        write_whole(path, "new")
    assert told.value.filename == str(path)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize("planted", ["link", "link to nothing", "hard link", "pipe"])
def test_nothing_is_written_into_what_has_the_name_of_a_half_written_file(
    planted: str, tmp_path: Path
) -> None:
    """A stranger's folder may have anything there, such as a link to one's ~/.bashrc."""
    mine, new = tmp_path / "mine", tmp_path / "a.json.new"
    if planted != "link to nothing":
        mine.write_text("mine")
    if planted == "pipe":
        os.mkfifo(new)
    elif planted == "hard link":
        os.link(mine, new)
    else:
        new.symlink_to(mine)
    before = {path: path.read_text() for path in (mine,) if path.exists()}
    write_whole(tmp_path / "a.json", "x")
    assert {path: path.read_text() for path in (mine,) if path.exists()} == before
    assert (tmp_path / "a.json").read_text() == "x"
    assert not (tmp_path / "a.json").is_symlink()
    assert not os.path.lexists(new)


def test_two_processes_that_write_one_file_make_room_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a file system has no locks nothing keeps them apart."""
    path, opened, others = tmp_path / "a.json", os.open, [2]

    def also_opened(name: Any, flags: int, *mode: int) -> int:
        if flags & os.O_EXCL and others[0]:
            others[0] -= 1
            Path(name).write_text("theirs")  # between our look and ours
        return opened(name, flags, *mode)

    monkeypatch.setattr(os, "open", also_opened)
    write_whole(path, "ours")
    assert path.read_text() == "ours"
    others[0] = 99
    with pytest.raises(FileExistsError) as told:
        write_whole(path, "again")
    assert told.value.filename == str(tmp_path / "a.json.new")
    assert path.read_text() == "ours"


def test_an_error_that_names_its_file_keeps_the_name(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as told:
        write_whole(tmp_path / "no" / "a.json", "x")
    assert told.value.filename == str(tmp_path / "no" / "a.json.new")


def test_json_and_yaml_are_read_back(tmp_path: Path, disk: Disk) -> None:
    values = {"b": 1, "a": [1.5, None, "x"]}
    write_json(tmp_path / "a.json", values)
    assert (tmp_path / "a.json").read_text() == json.dumps(values, indent=1) + "\n"
    write_sealed_yaml(tmp_path / "a.yaml", values)
    text = (tmp_path / "a.yaml").read_text()
    assert text.startswith("b: 1\na:\n- 1.5\n- null\n- x\n# digest ")  # order is kept
    assert [said[0] for said in disk.said] == ["fsync", "replace", "fsync"] * 2
    assert read_json(tmp_path / "a.json") == values
    assert read_json(tmp_path / "a.json", {"a"}) == values
    assert read_json(tmp_path / "a.json", {"a", "b"}) == values


@pytest.mark.parametrize("content", [None, "", "{", "[1]", "3", '{"a": 1}', "[" * 100_000])
def test_damaged_json_is_refused(content: str | None, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(BadSetting, match=r"a\.json is damaged \(.+\): write run\.force=true"):
        read_json(path, {"a", "b"})


SEALED: dict[str, tuple[Callable[[Path, Any], None], Callable[[Path], Any]]] = {
    "a.json": (write_sealed_json, read_json),
    "a.yaml": (write_sealed_yaml, read_yaml),
}


@pytest.mark.parametrize("name", SEALED)
def test_every_flipped_bit_of_a_small_file_is_noticed(name: str, tmp_path: Path) -> None:
    """Also one of the digest, and of what says that it is one."""
    (write, read), values = SEALED[name], {"b": 1, "a": [1.5, None, "x"], "c": {"digest": "y"}}
    path = tmp_path / name
    write(path, values)
    assert read(path) == values
    whole = path.read_bytes()
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with pytest.raises(BadSetting):
            read(path)


def test_small_files_without_a_digest_are_read(tmp_path: Path) -> None:
    """Older ones have none, and what others write."""
    write_json(tmp_path / "a.json", {"a": 1})
    assert read_json(tmp_path / "a.json") == {"a": 1}
    (tmp_path / "a.yaml").write_text("a: 1\n")
    assert read_yaml(tmp_path / "a.yaml") == {"a": 1}
    write_sealed_json(tmp_path / "b.json", {})
    assert read_json(tmp_path / "b.json") == {}


def test_the_last_row_of_a_run_that_has_ended_is_not_cut(tmp_path: Path) -> None:
    """The summary is written when all rows are there: who cuts one short is no kill."""
    folder = RunFolder(tmp_path, "t/a/k")
    folder.path.mkdir(parents=True)
    path = folder.path / "history.jsonl"
    lines = chained(path, 3)
    path.write_bytes(b"".join(lines)[:-1] + b"\x0b")  # a bit of the end of the last line
    assert len(folder.history()) == 2
    folder.end({"status": "done", "reason": None, "last": {"step": 2}}, None)
    with pytest.raises(BadSetting, match=r"history\.jsonl: row 3 cannot be read"):
        folder.history()


def rows(*steps: int) -> str:
    return "".join(as_line({"step": step, "loss": step / 2}) for step in steps)


def test_rows_past_a_checkpoint_are_dropped(tmp_path: Path, disk: Disk) -> None:
    """The last row of a run, which is no multiple, is dropped too."""
    path = tmp_path / "history.jsonl"
    path.write_text(rows(0, 2, 4, 6, 7))
    keep_rows(path, 5, 2)
    assert read_rows(path) == [{"step": step, "loss": step / 2} for step in (0, 2, 4)]
    assert [said[0] for said in disk.said] == ["fsync", "replace", "fsync"]
    chained = path.read_text()
    keep_rows(path, 4, 2)
    assert path.read_text() == chained
    keep_rows(path, -1, 2)
    assert path.read_text() == ""


@pytest.mark.parametrize(
    ("there", "upto", "gone"),
    [((0, 2), 4, 4), ((2, 4), 5, 0), ((0, 4), 5, 2), ((), 0, 0), ((0, 2, 4), 6, 6)],
)
def test_rows_that_are_gone_are_told(
    there: tuple[int, ...], upto: int, gone: int, tmp_path: Path
) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text(rows(*there))
    with pytest.raises(BadSetting, match=f"that of step {gone} first, .* is of step {upto}: "):
        keep_rows(path, upto, 2)
    assert path.read_text() == rows(*there)


@pytest.mark.parametrize(
    "end", ['{"step": 4, "lo', "[4]", '{"loss": 1}', '{"step": 4.0}', '{"step": true}', "[" * 9999]
)
def test_a_history_without_digests_is_read_up_to_a_last_line_that_is_no_row(
    end: str, tmp_path: Path
) -> None:
    path = tmp_path / "history.jsonl"
    assert read_rows(path) == []
    for last in (end, end + "\n"):
        path.write_text(rows(0, 2) + last)
        assert read_rows(path) == [{"step": 0, "loss": 0.0}, {"step": 2, "loss": 1.0}]
    path.write_text(rows(0, 2) + end + "\n" + rows(6))
    with pytest.raises(BadSetting, match=r"row 3 cannot be read: write run\.force=true"):
        read_rows(path)


def chained(path: Path, count: int) -> list[bytes]:
    """The lines of a history of so many rows with digests, which is now at `path`."""
    path.unlink(missing_ok=True)
    history = History(path)
    for step in range(count):
        history.add({"step": step, "loss": step / 2})
    history.close()
    return path.read_bytes().splitlines(keepends=True)


def test_rows_are_chained_over_resumes_and_stay_readable(tmp_path: Path) -> None:
    path, whole = tmp_path / "history.jsonl", tmp_path / "whole.jsonl"
    lines = chained(whole, 6)
    assert all(json.loads(line)["loss"] == i / 2 for i, line in enumerate(lines))
    path.write_bytes(b"".join(lines[:5])[:-9])  # a kill cut the fifth row
    assert len(read_rows(path)) == 4
    keep_rows(path, 2, 1)
    history = History(path)
    for step in (3, 4, 5):
        history.add({"step": step, "loss": step / 2})
    history.close()
    assert path.read_bytes() == b"".join(lines)


CHANGES: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "another value": lambda ls: [*ls[:2], ls[2].replace(b"1.0", b"1.5"), *ls[3:]],
    "doubled": lambda ls: [*ls[:3], ls[2], *ls[3:]],
    "taken out": lambda ls: [*ls[:2], *ls[3:]],
    "swapped": lambda ls: [*ls[:2], ls[3], ls[2], *ls[4:]],
    "a value without a digest": lambda ls: [*ls[:2], b'{"step": 2, "loss": 1.0}\n', *ls[3:]],
    "the first without a digest": lambda ls: [b'{"step": 0, "loss": 0.0}\n', *ls[1:]],
    "the first taken out": lambda ls: ls[1:],
    "another order of digits": lambda ls: [*ls[:4], ls[4].replace(b'"}', b'0"}')],
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_row_is_named(change: str, tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    content = b"".join(CHANGES[change](chained(path, 5)))
    path.write_bytes(content)
    for read in (read_rows, partial(keep_rows, upto=4, every=1)):
        with pytest.raises(BadSetting, match=r"history\.jsonl: row \d .*: write run\.force=true"):
            read(path)
    assert path.read_bytes() == content


def test_every_flipped_bit_of_a_history_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    whole = b"".join(chained(path, 3))
    kept = 0
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        try:
            keep_rows(path, 2, 1)
        except BadSetting:
            continue
        kept += 1
        assert path.read_bytes() == whole  # only the end of the last line can be mended
    assert kept <= 8


def test_a_row_after_the_checkpoint_is_measured_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "history.jsonl"
    lines = chained(path, 5)
    path.write_bytes(b"".join([*lines[:3], b"\0" * 40 + b"\n", lines[4]]))
    keep_rows(path, 2, 1)
    assert path.read_bytes() == b"".join(lines[:3])
    assert capsys.readouterr().err.endswith("row 4 cannot be read: it is measured again\n")


def test_a_sample_has_the_ends_and_evenly_spread_rows(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"

    def sample(most: int) -> list[dict[str, Any]]:
        return rows_at(path, spread(count_rows(path), most))

    assert sample(5) == []
    chained(path, 1000)
    rows = read_rows(path)
    assert sample(5) == thin_rows(rows, 5)
    assert sample(2000) == rows
    path.write_bytes(path.read_bytes()[:-3])
    assert sample(5) == thin_rows(rows[:-1], 5)


def test_a_row_that_a_kill_cut_is_not_there(tmp_path: Path) -> None:
    """Whoever asks for the rows of a longer run asks for it too; a changed one is refused."""
    path = tmp_path / "history.jsonl"
    chained(path, 3)
    rows, whole = read_rows(path), path.read_bytes()
    lines = whole.splitlines(keepends=True)
    path.write_bytes(whole[:-3])
    for wanted in ({0, 2}, {0, 2, 5}):
        assert rows_at(path, wanted) == [rows[0]]
    path.write_bytes(b"".join(lines[:2]) + lines[2].replace(b"}", b" }", 1))
    with pytest.raises(BadSetting, match="row 3 was changed"):
        rows_at(path, {0, 2, 5})
    path.write_text('{"step": 0}\n{"st')  # without digests
    assert rows_at(path, {0, 1}) == [{"step": 0}]


def test_every_flipped_bit_of_a_checkpoint_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "c.pt"
    checkpoint.save(path, "n", STANDING)
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << place % 8
        path.write_bytes(flipped)
        with pytest.raises(BadSetting, match=r"c\.pt cannot be read \(.*\): write run\.force=true"):
            checkpoint.load(path, "n", STANDING)
    archive = whole.rindex(b"\nblake2b")  # cut there, the file is as older ones are
    for place in {*range(archive - 20, len(whole))} - {archive}:
        path.write_bytes(whole[:place])
        with pytest.raises(BadSetting, match="cut short"):
            checkpoint.load(path, "n", STANDING)
    path.write_bytes(whole)
    checkpoint.load(path, "n", STANDING)


def test_a_checkpoint_without_a_digest_is_read(tmp_path: Path) -> None:
    """Older ones are like this."""
    path = tmp_path / "c.pt"
    checkpoint.save(path, "n", STANDING)
    torch.save(torch.load(path, weights_only=True), path)
    assert checkpoint.load(path, "n", STANDING).step == 7


def test_a_packed_checkpoint_is_refused(tmp_path: Path) -> None:
    """Its parts might be of any size."""
    path, packed = tmp_path / "c.pt", tmp_path / "packed.pt"
    checkpoint.save(path, "n", STANDING)
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new:
        for part in old.infolist():
            new.writestr(part.filename, old.read(part))
    with pytest.raises(BadSetting, match="packed"):
        checkpoint.load(packed, "n", STANDING)


def test_what_is_not_finite_is_null() -> None:
    row = {"step": 1, "a": math.nan, "b": math.inf, "c": -math.inf, "d": 2.5, "e": 2**60, "f": "x"}
    assert replace_nonfinite(row) == {**row, "a": None, "b": None, "c": None}
    assert as_line({"a": math.nan, "b": 1}) == '{"a": null, "b": 1}\n'


def test_an_environment_names_all_that_the_bits_hang_on() -> None:
    found = environment_of(torch.device("cpu"), 3, {"a.csv": "0123"})
    assert found == {
        "python": platform.python_version(),
        "packages": {
            name: version(name)
            for name in (
                "torch", "torchvision", "numpy", "scikit-learn", "hydra-core", "omegaconf", "scipy",
                *(name for name in ("optuna", "learn2learn") if find_spec(name)),
            )
        },
        "version": version("bilevel-bench"),
        "git": about.commit(),
        "cpu": processor(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "c_compiler": True,  # which these tests need
        "gpu": None,
        "cuda": None,
        "device": "cpu",
        "threads": 3,
        "data": {"a.csv": "0123"},
    }  # fmt: skip


def test_a_package_that_is_not_installed_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "PACKAGES", ("numpy", "no-such-package", "torch"))
    found = environment._packages.__wrapped__()
    assert found == (("numpy", version("numpy")), ("torch", version("torch")))


def test_an_environment_with_a_gpu_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"a GPU, {device}")
    monkeypatch.setattr(torch.version, "cuda", "99.1")
    found = environment_of(torch.device("cuda"), 1, {})
    assert (found["gpu"], found["cuda"], found["device"]) == ("a GPU, cuda", "99.1", "cuda")


def test_the_processor_has_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "processor\t: 0\nmodel name\t: Some CPU: 3 GHz \nmodel name\t: Another\n"
    monkeypatch.setattr(Path, "read_text", lambda self: lines)
    assert processor.__wrapped__() == "Some CPU: 3 GHz"
    monkeypatch.setattr(Path, "read_text", lambda self: "processor: 0\n")
    monkeypatch.setattr(platform, "processor", lambda: "a processor")
    assert processor.__wrapped__() == "a processor"
    monkeypatch.setattr(platform, "processor", lambda: "")
    assert processor.__wrapped__() == platform.machine() != ""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity")
def test_cores_are_those_that_the_process_may_use() -> None:
    """A process that is kept to one core has one, however many the machine has."""
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); "
        "from bench.runs.environment import cores; print(cores())"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "1\n"


def test_what_changed_between_two_environments() -> None:
    old, new = {"a": 1, "b": 2, "gone": 3}, {"a": 1, "b": 4, "come": 5}
    assert differences(old, new) == {"b": [2, 4], "gone": [3, None], "come": [None, 5]}
    assert list(differences(old, new)) == ["b", "gone", "come"]
    assert differences(old, old) == {}


def test_packages_that_an_older_environment_does_not_list_have_not_changed() -> None:
    old = {"packages": {"torch": "2", "numpy": "1"}}
    for packages, changed in (
        ({"torch": "2", "numpy": "1", "scipy": "1"}, False),
        ({"torch": "2", "numpy": "2", "scipy": "1"}, True),
        ({"torch": "2", "scipy": "1"}, True),  # one that is gone
        (None, True),
    ):
        new = {"packages": packages}
        expected = {"packages": [old["packages"], packages]} if changed else {}
        assert differences(old, new) == expected
    assert differences({}, old) == {"packages": [None, old["packages"]]}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, False),
        ({"lanes": []}, False),
        ({"lanes": ["a", "b"]}, True),
        ({"lanes": [], "continued": [{"changed": {}}]}, False),
        ({"lanes": [], "continued": [{"changed": {"lanes": [[], ["a", "b"]]}}]}, True),
        ({"lanes": [], "continued": [{"changed": {"lanes": [["a"], []]}}]}, False),
        (
            {"continued": [{"changed": {"git": [1, 2]}}, {"changed": {"lanes": [[], ["a"]]}}]},
            True,
        ),
    ],
)
def test_times_that_lanes_shared_are_said_to_be_shares(
    environment: dict[str, Any], expected: bool
) -> None:
    assert shares_time(environment) is expected


class State(NamedTuple):
    x: Tensor
    y: Tensor
    memory: tuple[Tensor, Tensor]


def state(shift: float) -> State:
    """A state of tensors of several types and shapes."""
    memory = torch.arange(3), torch.tensor(float(shift))
    return State(torch.ones(2, 3).double() + shift, torch.zeros(0), memory)


STANDING = Standing(
    7, state(0.5), Counter(grad_f=3, lmo=1), Counter(grad_f=24), 1.5, 2.5, {"seen": torch.ones(())},
    {"regret": 0.25}, Best(0.75, 4, torch.ones(2, 3), torch.zeros(0)), torch.eye(2),
)  # fmt: skip


def test_a_checkpoint_is_read_back_but_for_what_was_seen(tmp_path: Path, disk: Disk) -> None:
    path = tmp_path / "checkpoint.pt"
    checkpoint.save(path, "a/b/c", STANDING)
    assert [said[:2] for said in disk.said] == [
        ("fsync", "checkpoint.pt.new"), ("replace", "checkpoint.pt.new"), ("fsync", tmp_path.name),
    ]  # fmt: skip
    assert disk.said[0][2] == path.stat().st_size
    back = checkpoint.load(path, "a/b/c", STANDING._replace(step=0, state=state(0)))
    torch.testing.assert_close(back.state, STANDING.state, rtol=0, atol=0)
    assert type(back.state) is State
    assert back[:1] + back[2:6] == STANDING[:1] + STANDING[2:6]
    assert (type(back.calls), type(back.samples)) == (Counter, Counter)
    assert back.info == {}
    assert back.totals == {"regret": 0.25}
    assert back.best is not None
    assert back.best[:2] == (0.75, 4)
    assert (back.best.x.tolist(), back.best.y.tolist()) == ([[1, 1, 1]] * 2, [])
    assert back.table is not None
    assert torch.equal(back.table, torch.eye(2))


def test_a_checkpoint_goes_to_the_device_of_the_run(tmp_path: Path) -> None:
    """All but the table, which is the host's on every machine."""
    path, device = tmp_path / "c.pt", torch.device("meta")
    checkpoint.save(path, "n", STANDING)
    there = tree_map(methodcaller("to", device), STANDING.state)
    back = checkpoint.load(path, "n", STANDING._replace(state=there))
    assert back.best is not None
    assert back.table is not None
    assert {t.device for t in (*tree_leaves(back.state), back.best.x, back.best.y)} == {device}
    assert torch.equal(back.table, torch.eye(2))


def test_a_checkpoint_of_a_gpu_is_read_and_renamed_without_one(tmp_path: Path) -> None:
    path = tmp_path / "c.pt"
    with mock.patch.object(torch.serialization, "location_tag", return_value="cuda:0"):
        checkpoint.save(path, "before", STANDING)
    with mock.patch.object(torch.cuda, "is_available", return_value=False):
        with pytest.raises(RuntimeError, match="CUDA device"):
            torch.load(path, weights_only=True)
        checkpoint.rename(path, "n")
        back = checkpoint.load(path, "n", STANDING)
    torch.testing.assert_close(back.state, STANDING.state, rtol=0, atol=0)


def test_a_checkpoint_without_a_best_or_a_table(tmp_path: Path) -> None:
    """Older checkpoints are like this."""
    path, plain = tmp_path / "c.pt", STANDING._replace(best=None, table=None, totals={})
    checkpoint.save(path, "n", plain)
    content = torch.load(path, weights_only=True)
    assert list(content) == [
        "name", "step", "seconds", "cpu_seconds", "calls", "samples", "totals", "leaves", "best",
        "table",
    ]  # fmt: skip
    del content["table"]
    torch.save(content, path)
    back = checkpoint.load(path, "n", plain)
    assert (back.best, back.table, back.totals) == (None, None, {})


@pytest.mark.parametrize(
    ("name", "like"),
    [
        ("other", state(0)),
        ("n", state(0)._replace(x=torch.ones(3, 2).double())),  # another shape
        ("n", state(0)._replace(x=torch.ones(2, 3))),  # another type
        ("n", (torch.ones(2, 3).double(),)),  # other parts
    ],
)
def test_a_checkpoint_of_another_run_is_refused(name: str, like: Any, tmp_path: Path) -> None:
    path = tmp_path / "c.pt"
    checkpoint.save(path, "n", STANDING)
    checkpoint.load(path, "n", STANDING)
    with pytest.raises(BadSetting, match=r"c\.pt is not of this run: write run\.force=true"):
        checkpoint.load(path, name, STANDING._replace(state=like))


@pytest.mark.parametrize(
    "damage",
    [
        {"step": -1}, {"step": 2.0}, {"step": True}, {"calls": {"lmo": -1}},
        {"calls": {"lmo": 1.0}},
        {"samples": {"grad_f": -1}}, {"samples": {"grad_f": "1"}}, {"seconds": 1},
        {"cpu_seconds": 1}, {"seconds": None}, {"totals": {"regret": 1}}, {"leaves": 3},
        {"best": (1.0,)}, {"totals": {}}, {"table": torch.ones(1)}, {"table": None},
        {"best": (1.0, 0, torch.ones(7), torch.ones(2))},
    ],
    ids=str,
)  # fmt: skip
def test_a_checkpoint_with_other_kinds_of_numbers_is_refused(
    damage: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "c.pt"
    checkpoint.save(path, "n", STANDING)
    content = torch.load(path, weights_only=True)
    torch.save(content | damage, path)
    with pytest.raises(BadSetting, match=r"c\.pt cannot be read \([\w ]+\): write run\.force=true"):
        checkpoint.load(path, "n", STANDING)


def test_a_checkpoint_at_the_very_start_is_sound(tmp_path: Path) -> None:
    path = tmp_path / "c.pt"
    start = Standing(0, state(0), Counter(lmo=0), Counter(lmo=0), 0.0, 0.0, {})
    checkpoint.save(path, "n", start)
    assert checkpoint.load(path, "n", start).step == 0


def test_a_view_is_saved_without_the_rest_of_its_storage() -> None:
    """A lane's gradient may be a row of what all lanes have."""
    every = torch.arange(12.0).view(3, 4)
    row = checkpoint.without_more(every[1])
    assert row.tolist() == [4.0, 5.0, 6.0, 7.0]
    assert row.untyped_storage().nbytes() == 16
    assert checkpoint.without_more(every) is every
    one = torch.zeros(()).expand(5)
    assert checkpoint.without_more(one) is one
