"""The source files that a run depends on: found without importing, told when they have changed."""

import hashlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.core.packages import PACKAGES
from bench.runs import launch
from bench.runs import source as sources
from bench.runs.folder import RunFolder

Config = dict[str, Any]
CONFIG: Config = {
    "task": {"_target_": "tasks.mine.problem", "data": {"_target_": "tasks.data.set_.Images"}},
    "algorithm": {"_target_": "algorithms.deep.method.step"},
}
FILES = {
    "bench/__init__.py": "",
    "bench/core/loop.py": "from bench.core.oracle import Oracle\n",
    "bench/core/oracle.py": "import torch\n",
    "bench/unused.py": "",
    "bench/compiled/traced.py": "",
    "bench/compiled/batched.py": "",
    "tasks/__init__.py": "",
    "tasks/mine.py": "from tasks import shared\n\ndef f():\n    from bench import oracle\n",
    "tasks/shared.py": "import tasks.mine\n",
    "tasks/data/__init__.py": "from tasks.data import sums\n",
    "tasks/data/set_.py": "import tasks.data\n",
    "tasks/data/sums.py": "",
    "algorithms/__init__.py": "",
    "algorithms/deep/__init__.py": "",
    "algorithms/deep/method.py": "import os, bench.core.oracle as o\nfrom numpy import bench\n",
}
UNUSED = {
    "bench/unused.py", "bench/compiled/traced.py", "bench/compiled/batched.py",
    "algorithms/__init__.py", "algorithms/deep/__init__.py",
}  # fmt: skip


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project of small files, in place of this one."""
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)

    class Spec:
        def __init__(self, package: str):
            self.origin = str(tmp_path / package / "__init__.py")

    monkeypatch.setattr(sources, "find_spec", lambda package: Spec(package))
    sources.contents.cache_clear()
    yield tmp_path
    sources.contents.cache_clear()


def seen(*more: str) -> Config:
    sources.contents.cache_clear()
    return sources.source(CONFIG, *more)


def test_all_that_is_imported_counts_and_nothing_else(project: Path) -> None:
    """Also what a function imports when it is called, and packages of which a module is taken."""
    assert set(seen()["files"]) == {*FILES} - UNUSED
    assert set(seen("bench.compiled.traced")["files"]) - set(seen()["files"]) == {
        "bench/compiled/traced.py"
    }


@pytest.mark.parametrize("file", ["tasks/mine.py", "tasks/data/sums.py", "bench/core/oracle.py"])
def test_a_changed_file_changes_the_digest(file: str, project: Path) -> None:
    before = seen()
    (project / "bench" / "unused.py").write_text("x = 1\n")
    assert seen() == before
    (project / file).write_text((project / file).read_text() + "x = 1\n")
    after = seen()
    assert after["digest"] != before["digest"]
    assert sources.differing_files(before["files"], after["files"]) == [file]


def test_a_file_that_was_moved_has_not_changed() -> None:
    old = {"a.py": "1", "b.py": "2", "c.py": "3"}
    assert sources.differing_files(old, {"z.py": "1", "b.py": "2", "c.py": "3"}) == []
    assert sources.differing_files(old, {"a.py": "1", "b.py": "9", "d.py": "4"}) == [
        "b.py",
        "c.py",
        "d.py",
    ]


def test_real_files_are_found_without_importing_them() -> None:
    sources.contents.cache_clear()
    there = set(sys.modules)
    found = sources.source(
        {"task": {"_target_": "tasks.trees.trees"}, "algorithm": {"_target_": "algorithms.x.f"}}
    )["files"]
    assert {
        "tasks/trees.py",
        "bench/core/loop.py",
        "bench/core/oracle.py",
        "bench/core/draw.py",
    } <= set(found)
    assert {name.partition("/")[0] for name in found} <= set(PACKAGES)
    assert not any(name.startswith("bench/reproduce") for name in found)
    assert set(sys.modules) == there


def test_what_a_module_compiles_counts_too() -> None:
    found = sources.contents(("tasks.models.softmax_rows",))
    file = Path(sources.__file__).parents[2] / "tasks/models/softmax_rows.c"
    assert found["tasks/models/softmax_rows.c"] == sources.digest_of(file.read_bytes())


def test_a_finished_run_whose_code_has_changed_says_so(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says so in one line, with the files and how to make the run again. A run that is older
    than this record of its code does not say so."""
    folder = RunFolder(tmp_path / "runs", "t/a/k")
    folder.path.mkdir(parents=True)
    last = {"step": 1, "seconds": 1.0, "distance": 2.0}
    folder.end(
        {"status": "done", "reason": None, "last": last, "name": "t/a/k", "references": {},
         "metric": "distance", "peak_memory_mb": {"process": 1.0}}, None,
    )  # fmt: skip
    config = {**CONFIG, "run": {"force": False, "retry_failed": False}}

    def said() -> str:
        capsys.readouterr()
        again = launch.earlier_end(config, folder)
        assert again is not None
        assert again(False) == 0
        return capsys.readouterr().out.splitlines()[-1]

    nothing = "nothing to do: this run is finished (run.force=true does it again)"
    folder.describe({})
    assert said() == nothing
    folder.describe({"source": seen("bench.compiled.traced")})
    assert said() == nothing
    (project / "tasks" / "mine.py").write_text("x = 1\n")
    (project / "bench" / "compiled" / "traced.py").write_text("x = 1\n")
    (project / "bench" / "compiled" / "batched.py").write_text(
        "x = 1\n"
    )  # which this run did not use
    sources.contents.cache_clear()
    files = "bench/compiled/traced.py, tasks/mine.py, tasks/shared.py"
    assert said() == (
        f"this run is finished, but its code has changed since: {files}; "
        "run.force=true makes it anew"
    )

    data = project / "data" / "own"
    data.mkdir(parents=True)
    (data / "entries.csv").write_text("0 0 1\n")
    checksum = hashlib.sha256(b"0 0 1\n").hexdigest()
    folder.describe({"data": {"own/entries.csv": checksum, "own/gone.csv": "0", "sklearn": "1"}})
    config["data"] = {"root": str(project / "data")}
    assert said() == nothing
    (data / "entries.csv").write_text("0 0 22\n")
    assert said() == (
        "this run is finished, but its data has changed since: own/entries.csv; "
        "run.force=true makes it anew"
    )


def test_a_file_of_the_same_size_may_have_changed(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"one")
    before = launch.digest_of_file(file)
    file.write_bytes(b"two")
    os.utime(file, ns=(1, 1))
    assert launch.digest_of_file(file) != before
