"""scripts/new.py: what it writes works, and what is there is never written over."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from scripts import new
from tests.conftest import ROOT
from tests.test_hostile import Main, main  # noqa: F401  (a fixture)


def pytest_passes(project: Path, path: Path) -> None:
    """Run the tests of a project, in a process of its own that finds `path` first."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts="]
    command += ["--import-mode=importlib", *map(str, (project / "tests").glob("test_my_*.py"))]
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (path, ROOT)))}
    done = subprocess.run(command, cwd=project, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert re.search("(9|11) passed", done.stdout)  # two of them need bench.contract


def is_clean(project: Path) -> None:
    """Whether ruff has nothing to say of the files, by this repository's rules."""
    for command in (["check"], ["format", "--check"]):
        rules = [
            "--config",
            str(ROOT / "pyproject.toml"),
            "--config",
            f"src=['{project}/src', '.']",
        ]
        files = [str(file) for file in project.rglob("*my_*.py")]
        ruff = [sys.executable, "-m", "ruff", *command, "--no-cache", "-q", *rules, *files]
        done = subprocess.run(ruff, cwd=project, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of this repository's code, into which scripts.new writes."""
    skipped = shutil.ignore_patterns("__pycache__")
    for folder in ("bench", "tasks", "algorithms", "conf"):
        shutil.copytree(ROOT / folder, tmp_path / "copy" / folder, ignore=skipped)
    monkeypatch.setattr(new, "ROOT", tmp_path / "copy")
    return tmp_path / "copy"


def test_a_method_and_a_task_in_this_repository(copy: Path) -> None:
    assert new.main(["algorithm", "my_method"]) == 0
    assert new.main(["task", "my_task"]) == 0
    assert (copy / "algorithms" / "bilevel" / "my_method.py").is_file()
    assert (copy / "conf" / "task" / "my_task.yaml").is_file()
    ours = (ROOT / "conf" / "paper" / "metrics.yaml").read_text()
    table = (copy / "conf" / "paper" / "metrics.yaml").read_text()
    assert table.startswith(ours)
    assert set(yaml.safe_load(table)) - set(yaml.safe_load(ours)) == {"my_task"}
    is_clean(copy)
    pytest_passes(copy, copy)


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package of its own, made on the spot, which the environment lists."""
    project = tmp_path / "my-lab"
    assert new.main(["algorithm", "my_method", "--package", str(project)]) == 0
    assert new.main(["task", "my_task", "--package", str(project)]) == 0
    monkeypatch.syspath_prepend(project / "src")
    monkeypatch.setenv("BENCH_PACKAGES", "my_lab")
    yield project
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_lab"]:
        del sys.modules[name]


def test_a_method_and_a_task_in_a_package(
    lab: Path,
    main: Main,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest_passes(lab, lab / "src")
    assert 'my_lab = "my_lab"' in (lab / "pyproject.toml").read_text()
    said = main("task=my_task", "algorithm=my_method", "run.steps=20", "run.every=10")
    assert said.code == 0, said
    assert "my_task/my_method/" in said.out
    assert re.search(r"^ objective .* lower *$", said.out, re.M)
    assert new.main(["task", "my_other_task", "--package", str(lab)]) == 0
    table = (lab / "src" / "my_lab" / "conf" / "paper" / "metrics.yaml").read_text()
    assert list(yaml.safe_load(table)) == ["my_task", "my_other_task"]
    for file in list(lab.rglob("*my_other_task*")):
        file.unlink()
    assert new.main(["task", "my_other_task", "--package", str(lab)]) == 0
    assert (lab / "src" / "my_lab" / "conf" / "paper" / "metrics.yaml").read_text() == table
    with pytest.raises(SystemExit):
        new.main(["task", "my_task", "--package", str(lab.parent / "another")])
    assert "package my_lab (BENCH_PACKAGES) has task=my_task" in capsys.readouterr().err


REFUSED = {
    "a kind that is not": (["method", "x"], "invalid choice"),
    "no name": (["task"], "NAME"),
    "a capital": (["task", "Mine"], "write small letters"),
    "a dash": (["task", "my-task"], "write small letters"),
    "a path": (["task", "../x"], "write small letters"),
    "a keyword": (["algorithm", "lambda"], "write small letters"),
    "what every task has": (["task", "any"], "write small letters"),
    "the folder of yamls": (["algorithm", "conf"], "write small letters"),
    "a task of ours": (["task", "trees"], "this suite has task=trees"),
    "a method of ours": (["algorithm", "bome"], "this suite has algorithm=bome"),
    "a module of ours": (["task", "toy"], "toy.py is there already"),
    "a package of ours": (["task", "x", "--package", "tasks"], "there is a package tasks already"),
    "a package of Python": (["task", "x", "--package", "json"], "there is a package json already"),
    "a package that is installed": (
        ["task", "x", "--package", "numpy"],
        "there is a package numpy already",
    ),
    "no package": (["task", "x", "--package", ""], "write the folder of the package"),
    "a package that is none": (["task", "x", "--package", "3x"], "is no name of a package"),
    "another project": (["task", "x", "--package", "other"], "add [project.entry-points.bilevel"),
    "a broken project": (["task", "x", "--package", "broken"], "pyproject.toml: "),
    "a project without its code": (["task", "x", "--package", "empty"], "make the folder"),
    "a file for a folder": (["task", "x", "--package", "file"], "cannot write"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_written_is_refused_in_one_line(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, why = REFUSED[case]
    monkeypatch.chdir(tmp_path)
    listed = '[project.entry-points.bilevel_bench]\nmine = "mine"\n'
    texts = {"other": "[project]\nname = 'other'\n", "broken": "[", "empty": listed}
    for project, text in texts.items():
        (tmp_path / project).mkdir()
        (tmp_path / project / "pyproject.toml").write_text(text)
    (tmp_path / "file").write_text("")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SystemExit) as end:
        new.main(arguments)
    assert end.value.code == 2
    said = capsys.readouterr()
    (line,) = said.err.splitlines()
    assert line.startswith("new: ")
    assert why in line
    assert said.out == ""
    assert sorted(tmp_path.rglob("*")) == before


def test_nothing_is_written_over(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also if only one of the files is there, of which nothing is then written."""
    (lab / "src" / "my_lab" / "later.py").write_text("# mine")
    before = {file: file.read_bytes() for file in lab.rglob("*") if file.is_file()}
    with pytest.raises(SystemExit):
        new.main(["algorithm", "later", "--package", str(lab)])
    assert "later.py is there already" in capsys.readouterr().err
    assert {file: file.read_bytes() for file in lab.rglob("*") if file.is_file()} == before
