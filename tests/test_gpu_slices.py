"""What a lent machine carries back: whole at any second, and put where the next slice goes on.

The work is a stand-in without torch. It writes a run folder as a run does: rows, then a checkpoint,
and in the end the summary.
"""

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from scripts.gpu import pack, run, state
from scripts.gpu.state import Broken, Saver, collect, progress
from tests.conftest import ROOT

CONFIG = "seed: 0\nrun:\n  device: auto\n  steps: 10\n  every: 1\n"


def going(root: Path, name: str, steps: int, size: int = 10) -> Path:
    """A run that has taken some of its 10 steps; its checkpoint has a random content."""
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(CONFIG)
    (folder / "environment.json").write_text("{}")
    rows = "".join(json.dumps({"step": k}) + "\n" for k in range(steps + 1))
    (folder / "history.jsonl").write_text(rows)
    (folder / "checkpoint.pt").write_bytes(os.urandom(size))
    (folder / "lock").write_text("somebody")
    return folder


def ended(root: Path, name: str, size: int = 10) -> Path:
    folder = going(root, name, 10)
    (folder / "view.json").write_bytes(os.urandom(size))
    (folder / "summary.json").write_text('{"status": "done"}')
    return folder


def places(where: Path) -> dict[str, Path]:
    return {base: where / base for base in state.BASES}


def saver(where: Path, known: tuple[str, ...] = ()) -> Saver:
    more = {"results": where / "results", "derived": where / "derived"}
    return Saver(where / "out", where / "runs", more, known)


def names(file: Path) -> set[str]:
    with tarfile.open(file) as tar:
        return set(tar.getnames())


def test_runs_go_there_and_back(tmp_path: Path) -> None:
    """Ended runs without checkpoint, others with it, none with its lock; known ones not at all."""
    runs = tmp_path / "runs"
    ended(runs, "a/b/01")
    ended(runs, "a/b/02")
    going(runs, "a/c/03", 4)
    (runs / ".reproduce").mkdir()
    for file in ("results/gpu/tasks.json", "derived/start.pt"):
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text(file)
    (tmp_path / "derived/counts.npz").write_text("went there in the pack")
    saver(tmp_path, ("a/b/02",)).save()
    out = tmp_path / "out"
    assert sorted(p.name for p in out.iterdir()) == [
        "done-0.tar.gz",
        "going-0.tar.gz",
        "more.tar.gz",
    ]
    assert names(out / "done-0.tar.gz") == {f"runs/a/b/01/{file}" for file in state.ENDED}
    assert "runs/a/c/03/checkpoint.pt" in names(out / "going-0.tar.gz")

    counts = collect(out, places(tmp_path / "home"))
    assert counts == {"ended": 1, "going": 1, "files": 2}
    home = tmp_path / "home/runs"
    for name in ("a/b/01/view.json", "a/c/03/checkpoint.pt", "a/c/03/history.jsonl"):
        assert (home / name).read_bytes() == (runs / name).read_bytes()
    assert not list(home.rglob("lock"))
    assert (tmp_path / "home/results/gpu/tasks.json").read_text() == "results/gpu/tasks.json"


def test_what_is_at_home_is_kept_if_it_is_better(tmp_path: Path) -> None:
    runs, home = tmp_path / "runs", tmp_path / "home/runs"
    for name, there, here in (("01", 4, 6), ("02", 6, 4)):
        going(runs, f"a/b/{name}", there)
        going(home, f"a/b/{name}", here)
    going(runs, "a/b/03", 9)
    kept = ended(home, "a/b/03")
    ended(runs, "a/b/04")
    going(home, "a/b/04", 9)
    before = (kept / "view.json").read_bytes()
    saver(tmp_path).save()
    assert collect(tmp_path / "out", places(tmp_path / "home")) == {
        "ended": 1,
        "going": 1,
        "files": 0,
    }
    steps = [(home / f"a/b/0{k}/history.jsonl").read_text().count("\n") - 1 for k in (1, 2)]
    assert steps == [6, 6]
    assert (kept / "view.json").read_bytes() == before
    assert (home / "a/b/04/summary.json").is_file()
    assert not (home / "a/b/04/checkpoint.pt").exists()


def test_archives_have_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full archive is followed by another; a run stays in the one where it is; of runs that go on
    those nearest their end come first."""
    monkeypatch.setattr(state, "MOST_BYTES", 10_000)
    monkeypatch.setattr(state, "MOST_IN_ALL", 40_000)
    runs, out, made = tmp_path / "runs", tmp_path / "out", saver(tmp_path)
    for k in range(3):
        ended(runs, f"a/b/0{k}", 3000)
    made.save()
    first = names(out / "done-0.tar.gz")
    for k in range(3, 7):
        ended(runs, f"a/b/0{k}", 3000)
    made.save()
    assert first <= names(out / "done-0.tar.gz")
    sizes = [p.stat().st_size for p in out.glob("done-*")]
    assert len(sizes) in (3, 4)
    assert max(sizes) <= 10_000
    assert collect(out, places(tmp_path / "home"))["ended"] == 7
    for k in range(10):
        going(runs, f"a/c/{k:02}", k, 3000)
    made.save()
    carried = {name.split("/")[3] for name in names(out / "going-0.tar.gz")}
    assert carried == {"07", "08", "09"}
    carried = {name.split("/")[3] for name in names(out / "going-1.tar.gz")}
    assert carried == {"05", "06"}  # the room is for all files together
    assert len(list(out.iterdir())) <= state.MOST_FILES
    assert progress(runs / "a/c/07") == 0.7


def test_lanes_go_back_from_one_step_all_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They go on together only from the same step; what there is no room for is another time's."""
    monkeypatch.setattr(state, "MOST_BYTES", 10_000)
    runs, out, made = tmp_path / "runs", tmp_path / "out", saver(tmp_path)
    monkeypatch.setattr(state, "MOST_IN_ALL", 20_000)
    names_of = {"a": [f"a{k}" for k in range(3)], "b": [f"b{k}" for k in range(3)]}
    for row, steps in (("a", 5), ("b", 4)):
        for k, name in enumerate(names_of[row]):
            folder = going(runs, f"t/m/{name}", steps + k, 2800)
            (folder / "environment.json").write_text(json.dumps({"lanes": names_of[row]}))
    going(runs, "t/m/c0", 3, 500)

    def carried() -> list[set[str]]:
        files = sorted(out.glob("going-*"))
        return [{name.split("/")[3] for name in names(file)} for file in files]

    made.save()
    assert carried() == [{"a0", "a1", "a2"}, {"b0", "b1", "b2", "c0"}]
    monkeypatch.setattr(state, "MOST_IN_ALL", 14_000)
    made.save()
    assert carried() == [{"a0", "a1", "a2", "c0"}]
    monkeypatch.setattr(state, "MOST_BYTES", 8_000)  # a group that is too large for one file
    made.save()
    assert carried() == [{"a2", "a1"}, {"a0", "c0"}]
    monkeypatch.setattr(state, "MOST_IN_ALL", 20_000)
    made.save()
    assert carried() == [{"a2", "a1"}, {"a0"}, {"b2", "b1"}, {"b0", "c0"}]
    monkeypatch.setattr(state, "MOST_FILES", 3)
    made.save()
    assert carried() == [{"a2", "a1"}, {"a0", "c0"}]
    monkeypatch.setattr(state, "MOST_BYTES", 2_000)  # less than a run of the group
    made.save()
    assert carried() == [{"c0"}]


def test_all_is_read_before_anything_is_compressed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that saves a checkpoint meanwhile has its earlier one beside those of other lanes, in
    another file too."""
    runs, before = tmp_path / "runs", {}
    monkeypatch.setattr(state, "MOST_BYTES", 2_000)
    for k in range(3):
        before[k] = going(runs, f"t/m/a{k}", 5).joinpath("checkpoint.pt").read_bytes()
    plain = tarfile.open

    def later(*given: Any, **more: Any) -> Any:
        for k in range(3):
            (runs / f"t/m/a{k}/checkpoint.pt").write_bytes(b"a later step")
        return plain(*given, **more)

    with monkeypatch.context() as patch:
        patch.setattr(tarfile, "open", later)
        saver(tmp_path).save()
    collect(tmp_path / "out", places(tmp_path / "home"))
    home = tmp_path / "home/runs"
    assert {k: (home / f"t/m/a{k}/checkpoint.pt").read_bytes() for k in range(3)} == before


@pytest.mark.parametrize("later", [True, False])
def test_of_as_many_rows_the_later_checkpoint_is_kept(later: bool, tmp_path: Path) -> None:
    """A slice may end before a run's next row, as table 2 writes one every 250 steps."""
    there, here = (going(tmp_path / root, "a/b/01", 4) for root in ("runs", "home/runs"))
    os.utime(here / "checkpoint.pt", (1_000, 1_000))
    os.utime(there / "checkpoint.pt", (2_000, 2_000) if later else (1_000, 1_000))
    kept = (here / "checkpoint.pt").read_bytes()
    new = (there / "checkpoint.pt").read_bytes()
    saver(tmp_path).save()
    for _ in range(2):
        counts = collect(tmp_path / "out", places(tmp_path / "home"))
        assert (here / "checkpoint.pt").read_bytes() == (new if later else kept)
    assert counts["going"] == 0
    (there / "checkpoint.pt").write_bytes(b"of a third slice")
    os.utime(there / "checkpoint.pt", (3_000, 3_000))  # what was put here is from before that
    saver(tmp_path).save()
    assert collect(tmp_path / "out", places(tmp_path / "home"))["going"] == 1
    assert (here / "checkpoint.pt").read_bytes() == b"of a third slice"


def test_what_has_shrunk_makes_room_for_what_has_grown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "MOST_BYTES", 10_000)
    monkeypatch.setattr(state, "MOST_IN_ALL", 18_000)
    runs, made = tmp_path / "runs", saver(tmp_path)
    first, second = going(runs, "t/m/a0", 9, 8000), going(runs, "t/m/b0", 4, 8000)
    made.save()
    grown = os.urandom(9200)
    (first / "checkpoint.pt").write_bytes(grown)
    (second / "checkpoint.pt").write_bytes(os.urandom(4000))
    made.save()
    collect(tmp_path / "out", places(tmp_path / "home"))
    assert (tmp_path / "home/runs/t/m/a0/checkpoint.pt").read_bytes() == grown


def test_runs_that_have_ended_go_before_those_that_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When as many files go back as may, the last one of runs that go on makes room."""
    monkeypatch.setattr(state, "MOST_BYTES", 10_000)
    monkeypatch.setattr(state, "MOST_IN_ALL", 80_000)
    runs, out, made = tmp_path / "runs", tmp_path / "out", saver(tmp_path)
    for k in range(10):
        going(runs, f"a/c/0{k}", k, 8000)
    made.save()
    assert {p.name for p in out.iterdir()} == {f"going-{k}.tar.gz" for k in range(8)}
    (tmp_path / "results").mkdir()
    (tmp_path / "results/check.json").write_text("{}")
    for k in range(4):
        ended(runs, f"a/b/0{k}", 6000)
    made.save()
    there = {p.name: names(p) for p in out.iterdir()}
    assert set(made.sizes) == set(there)
    assert len(there) == state.MOST_FILES
    assert collect(out, places(tmp_path / "home")) == {"ended": 4, "going": 3, "files": 1}
    for k in range(5):
        (runs / f"a/c/0{k}/summary.json").write_text('{"status": "done"}')
    going(runs, "a/c/09", 9, 8000)
    made.save()
    assert {name.split("/")[3] for file in out.glob("done*") for name in names(file)} >= {
        f"0{k}" for k in range(5)
    }
    assert len(list(out.iterdir())) <= state.MOST_FILES
    for k in range(10):
        (runs / f"a/c/0{k}/summary.json").write_text('{"status": "done"}')
    made.save()
    assert [p.name for p in out.glob("going*")] == []  # nothing goes on any more
    assert set(made.sizes) == {p.name for p in out.iterdir()}


def test_runs_for_which_there_is_no_room_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs that are larger than a file may be, and those after the last file, or the last byte."""
    monkeypatch.setattr(state, "MOST_BYTES", 10_000)
    monkeypatch.setattr(state, "MOST_IN_ALL", 60_000)
    monkeypatch.setattr(state, "MOST_FILES", 5)
    runs, out, made = tmp_path / "runs", tmp_path / "out", saver(tmp_path)
    ended(runs, "a/b/00", 20_000)
    for k in range(1, 8):
        ended(runs, f"a/b/0{k}", 8000)
    for _ in range(2):
        made.save()
        assert [f.name for f in made.left_out] == ["00", "06", "07"]
        assert len(list(out.iterdir())) == 5
    ended(runs, "a/b/08", 100)  # there is room for a small one in the last file
    made.save()
    assert "08" not in [f.name for f in made.left_out]
    assert collect(out, places(tmp_path / "home"))["ended"] == 6
    monkeypatch.setattr(state, "MOST_FILES", 8)
    monkeypatch.setattr(state, "MOST_IN_ALL", 46_000)
    ended(runs, "a/b/09", 8000)
    made.save()
    assert [f.name for f in made.left_out] == ["00", "06", "07", "09"]
    assert sum(p.stat().st_size for p in out.iterdir()) <= 46_000


def test_parts_of_data_are_unpacked_and_the_work_waits_for_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = packed(tmp_path / "pack", tmp_path / "runs")
    said = json.loads((made / "list.json").read_text())
    (made / "list.json").write_text(json.dumps({**said, "whole": False}))
    (made / "incoming").mkdir(exist_ok=True)
    (made / "incoming/piece").write_text("a piece")
    options = ["--out", str(tmp_path / "out"), "--work", str(tmp_path / "work")]
    monkeypatch.setattr(sys, "argv", ["run", str(made), *options])
    monkeypatch.setattr(run, "start", None)
    assert run.main() == 0
    assert "the work comes with the last one" in capsys.readouterr().out
    assert (tmp_path / "work/incoming/piece").read_text() == "a piece"


@pytest.mark.parametrize(
    "name",
    [
        "runs/../x",
        "/etc/x",
        "other/x",
        "runs/a/b/01/../../x",
        "runs/a/b/01/run.py",
        "results/../../x",
    ],
)
def test_an_archive_that_names_other_places_is_refused(name: str, tmp_path: Path) -> None:
    """The others are put in place, and nothing of this one is."""
    ended(tmp_path / "runs", "a/b/01")
    saver(tmp_path).save()
    with tarfile.open(tmp_path / "out/going-0.tar.gz", "w:gz") as tar:
        for each in ("runs/a/b/02/config.yaml", name):
            entry = tarfile.TarInfo(each)
            entry.size = 1
            tar.addfile(entry, io.BytesIO(b"x"))
    with pytest.raises(Broken, match=r"going-0\.tar\.gz"):
        collect(tmp_path / "out", places(tmp_path / "home"))
    found = {p.relative_to(tmp_path / "home").parts[:4] for p in (tmp_path / "home").rglob("*.*")}
    assert {parts[3] for parts in found} == {"01"}


def test_nothing_came_back(tmp_path: Path) -> None:
    with pytest.raises(Broken, match="there is no done-0"):
        collect(tmp_path, places(tmp_path / "home"))


def test_a_file_that_has_just_gone_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a run that goes on removes the note of why it stopped."""
    going(tmp_path / "runs", "a/b/01", 4)
    status = tmp_path / "runs/a/b/01/status.json"
    status.write_text("{}")
    kept, read = tmp_path / "kept", Path.read_bytes
    kept.write_text("kept")

    def read_and_remove(path: Path) -> bytes:
        content = read(path)
        status.unlink(missing_ok=True)
        return content

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", read_and_remove)
        content = state.archive([(status, "runs/a/b/01/status.json"), (kept, "results/kept")])
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        assert tar.getnames() == ["results/kept"]
    with monkeypatch.context() as patch:
        patch.setattr(state, "files_of", lambda *rest: [(status, "runs/a/b/01/status.json")])
        saver(tmp_path).save()
    assert not (tmp_path / "out/going-0.tar.gz").exists()


WORK = """
import json, pathlib, sys, time, os
runs = pathlib.Path(sys.argv[sys.argv.index("--root") + 1])
for run in range(6):
    folder = runs / "a" / "b" / f"{run:02}"
    if (folder / "summary.json").exists():
        continue
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text("run:\\n  steps: 10\\n")
    (folder / "environment.json").write_text("{}")
    at = folder / "checkpoint.pt"
    begun = int(at.read_text()) if at.exists() else 0
    for step in range(begun + 1, 11):
        time.sleep(0.02)
        with (folder / "history.jsonl").open("a") as file:
            file.write(json.dumps({"step": step, "process": os.getpid()}) + "\\n")
        (folder / "new").write_text(str(step))
        (folder / "new").replace(at)
    (folder / "summary.json").write_text(json.dumps({"process": os.getpid()}))
"""


def packed(where: Path, root: Path, results: Path | None = None) -> Path:
    """A pack whose work is the stand-in, with the checks of these results."""
    where.mkdir()
    stub = where / "work.py"
    stub.write_text(WORK)
    names = {"scripts/gpu/work.py": stub}
    for name in ("scripts/__init__.py", "scripts/gpu/__init__.py"):
        names[name] = ROOT / name
    (where / "code.tar.gz").write_bytes(state.archive((path, name) for name, path in names.items()))
    pack.pack_state(where, root, results or root, [])
    for name, to in (("run.py", "start.py"), ("state.py", "state.py")):
        (where / to).write_text((ROOT / "scripts/gpu" / name).read_text())
    return where


def test_only_results_that_were_made_there_go_back(tmp_path: Path) -> None:
    """Two calls with one pack, and one with the next: a result that a pack has brought does not go
    back over a newer one; one that was made there does with each call, and no pack replaces it."""
    root, results, work = tmp_path / "home/runs", tmp_path / "home/results", tmp_path / "work"
    there, derived = work / "results/gpu", work / "data/derived"
    root.mkdir(parents=True)
    (results / "gpu").mkdir(parents=True)
    for name in ("operations", "tasks"):
        (results / f"gpu/{name}.json").write_text(f"old {name}")

    def called(pack_: Path, out: Path) -> Saver:
        known, brought, _ = run.unpack(pack_, work)
        more = {"results": work / "results", "derived": derived}
        return Saver(out, work / "runs", more, known, brought)

    first = packed(tmp_path / "pack", root, results)
    (first / "derived").mkdir()
    (first / "derived/start.pt").write_text("derived at home")
    (results / "gpu/operations.json").write_text("made at home meanwhile")
    made = called(first, tmp_path / "one")
    made.save()
    assert not (tmp_path / "one/more.tar.gz").exists()
    (there / "tasks.json").write_text("old tasks and more")
    (derived / "other.pt").write_text("derived there")
    made.save()
    called(first, tmp_path / "two").save()
    for out in ("one", "two"):
        back = names(tmp_path / out / "more.tar.gz")
        assert back == {"results/gpu/tasks.json", "derived/other.pt"}
    collect(tmp_path / "two", places(tmp_path / "home"))
    assert (results / "gpu/operations.json").read_text() == "made at home meanwhile"
    assert (results / "gpu/tasks.json").read_text() == "old tasks and more"
    called(packed(tmp_path / "next", root, results), tmp_path / "three").save()
    assert (there / "operations.json").read_text() == "made at home meanwhile"
    assert names(tmp_path / "three/more.tar.gz") == {"derived/other.pt"}


def test_a_pack_that_was_cut_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended(tmp_path / "runs", "a/b/01")
    made = packed(tmp_path / "pack", tmp_path / "runs")
    content = (made / "runs.tar.gz").read_bytes()
    (made / "runs.tar.gz").write_bytes(content[: len(content) // 2])
    options = ["--out", str(tmp_path / "out"), "--work", str(tmp_path / "work")]
    monkeypatch.setattr(sys, "argv", ["run", str(made), *options])
    assert run.main() == 2
    assert capsys.readouterr().err.startswith(f"gpu.run: {made}: ")


def start(where: Path, made: Path) -> "subprocess.Popen[bytes]":
    command = [
        sys.executable, str(made / "start.py"), str(made), "--out", str(where / "out"),
        "--work", str(where / "work"), "--minutes", "5", "--every", "0.05",
    ]  # fmt: skip
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)


def kill(process: "subprocess.Popen[bytes]") -> None:
    """At once, with its work."""
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True)
    process.kill()
    process.wait()
    for child in listed.stdout.split():
        with suppress(ProcessLookupError):  # a child may end by itself after it was listed
            os.kill(int(child), signal.SIGKILL)


def test_a_slice_that_is_killed_at_any_second_loses_at_most_its_last_checkpoint(
    tmp_path: Path,
) -> None:
    """Slices are killed until all runs have ended. A run that had come back is not made again, and
    one that goes on does so from a step that it had come back with."""
    root = tmp_path / "home/runs"
    root.mkdir(parents=True)
    ends: dict[str, str] = {}
    steps: dict[str, int] = {}
    for number in range(30):
        where = tmp_path / f"machine{number}"
        where.mkdir()
        process = start(where, packed(where / "pack", root))
        file, limit = where / "out" / "going-0.tar.gz", time.monotonic() + 300
        while process.poll() is None and time.monotonic() < limit:
            if file.exists():  # work has begun: some time later the power goes
                time.sleep(0.05 + 0.07 * (number % 6))
                break
            time.sleep(0.01)
        if process.poll() is None:
            kill(process)
        collect(where / "out", places(tmp_path / "home"))
        for folder in state.run_folders(root):
            name = folder.name
            if (folder / "summary.json").is_file():
                summary = (folder / "summary.json").read_text()
                assert ends.setdefault(name, summary) == summary
            else:
                step = int((folder / "checkpoint.pt").read_text())
                assert step >= steps.get(name, 0)
                steps[name] = step
                rows = (folder / "history.jsonl").read_text().splitlines()
                assert len(rows) >= step - 1
        if len(ends) == 6:
            break
    assert len(ends) == 6
    assert number > 0
