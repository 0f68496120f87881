"""Version and commit of a checkout, of what is built from one, and of neither."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from bench import about
from tests.conftest import ROOT

Git = Callable[..., str]
PARTS = ("bench", "tasks", "algorithms", "conf", "hydra_plugins", "scripts")


def git_in(folder: Path) -> Git:
    def git(*arguments: str) -> str:
        author = ["-c", "user.name=a", "-c", "user.email=a@localhost"]
        command = ["git", "-C", str(folder), *author, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    return git


def committed(folder: Path) -> Git:
    """Everything in this folder as the one commit of a repository."""
    git = git_in(folder)
    git("init", "-q")
    git("add", "-A", "-f")
    git("commit", "-qm", "one")
    return git


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Git:
    """A repository with nothing in it but bench/about.py."""
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "about.py").write_text("one")
    return committed(tmp_path)


@pytest.mark.parametrize("change", [None, "bench/about.py", "bench/new.py", "staged"])
def test_a_commit_with_changes_is_said_to_have_them(
    change: str | None, repository: Git, tmp_path: Path
) -> None:
    if change is not None:
        (tmp_path / change).write_text("two")
    if change == "staged":
        repository("add", "-A")
    commit = repository("rev-parse", "HEAD")
    assert len(commit) == 40
    assert about.commit_of_checkout(tmp_path) == {"commit": commit, "dirty": change is not None}


def test_new_records_are_no_changes(repository: Git, tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "a.json").write_text("{}")
    found = about.commit_of_checkout(tmp_path)
    assert found is not None
    assert not found["dirty"]


def test_a_checkout_is_known_by_a_link_and_within_a_hook_of_another(
    repository: Git, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, link, other = repository("rev-parse", "HEAD"), tmp_path / "link", tmp_path / "other"
    link.symlink_to(tmp_path)
    other.mkdir()
    (other / "a").touch()
    committed(other)
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    found = about.commit_of_checkout(link)
    assert found is not None
    assert found["commit"] == commit


PROGRAMS = {  # settings of a repository that would have `git status` run MARK
    "a monitor of files": "[core]\n\tfsmonitor = MARK\n",
    "a hook": "[core]\n\thooksPath = HOOKS\n",
    "a filter": '[filter "a.b"]\n\tclean = MARK\n\trequired = true\n',
    "a filter that stays": '[filter "x"]\n\tprocess = MARK\n\trequired = true\n',
    "a filter elsewhere": "[include]\n\tpath = more\n",
}


@pytest.mark.parametrize("case", PROGRAMS)
def test_what_a_repository_asks_for_is_not_run(case: str, repository: Git, tmp_path: Path) -> None:
    mark, program = tmp_path.parent / f"{tmp_path.name}-executed", tmp_path / ".git" / "program"
    program.write_text(f"#!/bin/sh\ntouch {mark}\ncat\n")
    program.chmod(0o755)
    (tmp_path / ".git" / "hooks2").mkdir()
    shutil.copy(program, tmp_path / ".git" / "hooks2" / "post-index-change")
    text = PROGRAMS[case].replace("MARK", str(program))
    text = text.replace("HOOKS", str(tmp_path / ".git" / "hooks2"))
    with (tmp_path / ".git" / "config").open("a") as config:
        config.write(text)
    (tmp_path / ".git" / "more").write_text(f'[filter "x"]\n\tclean = {program}\n')
    name = "a.b" if case == "a filter" else "x"
    (tmp_path / ".git" / "info" / "attributes").write_text(f"*.py filter={name}\n")
    os.utime(tmp_path / "bench" / "about.py", (1, 1))  # so that git reads it again
    found = about.commit_of_checkout(tmp_path)
    assert found is not None
    assert not found["dirty"]
    assert not mark.exists()
    os.utime(tmp_path / "bench" / "about.py", (2, 2))
    subprocess.run(["git", "-C", tmp_path, "status"], capture_output=True)
    assert mark.exists(), "git itself would not have run it: the test tests nothing"


def test_variables_of_git_run_nothing(
    repository: Git, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path.parent / f"{tmp_path.name}-executed"
    variables = {"COUNT": "1", "KEY_0": "core.fsmonitor", "VALUE_0": f"touch {mark} #"}
    for name, value in variables.items():
        monkeypatch.setenv(f"GIT_CONFIG_{name}", value)
    found = about.commit_of_checkout(tmp_path)
    assert found is not None
    assert not found["dirty"]
    assert not mark.exists()


def test_a_repository_around_a_copy_is_not_its_own(repository: Git, tmp_path: Path) -> None:
    """An environment lies in it, or its top itself is where somebody has put the copy."""
    inside = tmp_path / "env" / "site-packages"
    shutil.copytree(tmp_path / "bench", inside / "bench")
    repository("add", "-A")
    repository("commit", "-qm", "two")
    assert about.commit_of_checkout(inside) is None
    repository("rm", "-q", "--cached", "bench/about.py")
    assert about.commit_of_checkout(tmp_path) is None


def test_without_git_or_repository_there_is_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert about.commit_of_checkout(tmp_path) is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert about.commit_of_checkout(ROOT) is None
    assert about.commit_of_build(tmp_path / "commit.json") is None


@pytest.mark.parametrize(
    ("commit", "shown"),
    [
        (None, ""),
        ({"commit": "0123456789abcdef", "dirty": False}, " (0123456789)"),
        ({"commit": "0123456789abcdef", "dirty": True}, " (0123456789, changed)"),
    ],
)
def test_the_line(
    commit: dict[str, object] | None, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(about, "commit", lambda: commit)
    monkeypatch.setattr(about, "version", lambda: "1.2.3")
    assert about.version_line() == f"bilevel-bench 1.2.3{shown}"


def test_a_checkout_that_nobody_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(about, "NAME", "no-such-package")
    assert about.version() == "unknown"


@pytest.mark.parametrize("command", ["bench", "bench.reproduce"])
def test_both_commands_tell_this_checkout(command: str) -> None:
    """They do so in one line, and quickly: torch is not imported."""
    told = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", command, "--version"],
        capture_output=True, text=True, cwd=ROOT, check=True,
    )  # fmt: skip
    assert told.stdout == about.version_line() + "\n"
    assert git_in(ROOT)("rev-parse", "HEAD")[:10] in told.stdout
    assert about.commit() == about.commit_of_checkout(ROOT)
    assert "hydra" in told.stderr or "typer" in told.stderr
    assert "torch" not in told.stderr


def uv(*arguments: str | Path) -> None:
    """A build takes hatchling from the index of packages: without one it is skipped, but for CI."""
    done = subprocess.run(["uv", "--quiet", *arguments], cwd=ROOT, capture_output=True, text=True)
    if done.returncode and "requirements from `build-system.requires`" in done.stderr:
        assert not os.environ.get("CI"), done.stderr
        pytest.skip("there is no hatchling, and no index to fetch it from")
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(shutil.which("uv") is None, reason="uv builds packages")
def test_a_copy_without_git_and_a_clone_without_tags_have_a_version(tmp_path: Path) -> None:
    for name in ("bench", "scripts"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, tmp_path)
    for folder in ("tasks", "algorithms", "conf", "hydra_plugins", "results"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "one.py").touch()
    uv("build", "--wheel", "--out-dir", tmp_path / "copy", tmp_path)
    (wheel,) = (tmp_path / "copy").glob("*.whl")
    assert wheel.name.split("-")[1] == "0.1.0"
    shutil.rmtree(tmp_path / "copy")
    committed(tmp_path)
    uv("build", "--wheel", "--out-dir", tmp_path / "clone", tmp_path)
    (wheel,) = (tmp_path / "clone").glob("*.whl")
    assert wheel.name.split("-")[1].startswith("0.1.1.dev1+g")


def told_by(wheel: Path, place: Path, module: str) -> str:
    """What --version prints where this wheel is unpacked."""
    with zipfile.ZipFile(wheel) as file:
        file.extractall(place)
    command = [sys.executable, "-m", module, "--version"]
    variables = os.environ | {"PYTHONPATH": str(place)}
    done = subprocess.run(
        command, cwd=place, env=variables, capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.mark.skipif(shutil.which("uv") is None, reason="uv builds packages")
def test_what_is_built_knows_its_commit(tmp_path: Path) -> None:
    """A wheel from an sdist, and one from a checkout with changes, both unpacked in a repository
    of something else."""
    source, out, other = tmp_path / "source", tmp_path / "out", tmp_path / "other"
    for part in PARTS:
        shutil.copytree(ROOT / part, source / part, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, source)
    record = source / "results" / "p" / "a" / "short.json"
    record.parent.mkdir(parents=True)
    record.write_text("{}")
    git = committed(source)
    git("tag", "v9.8")
    commit = git("rev-parse", "HEAD")
    other.mkdir()
    (other / "a").touch()
    committed(other)

    uv("build", "--out-dir", out, source)  # the sdist, and from it the wheel
    with tarfile.open(out / "bilevel_bench-9.8.tar.gz") as sdist:
        written = sdist.extractfile("bilevel_bench-9.8/bench/commit.json")
        assert written is not None
        assert json.load(written) == {"commit": commit, "dirty": False}
    (wheel,) = out.glob("*.whl")
    for module in ("bench", "bench.reproduce"):
        told = told_by(wheel, other / "env" / module, module)
        assert told == f"bilevel-bench 9.8 ({commit[:10]})\n"
    # the build leaves nothing but the bytecode that Python keeps of its hook, unless told not to
    left = git("status", "--porcelain", "--ignored").splitlines()
    assert [line for line in left if "__pycache__" not in line] == []
    assert "bench/recorded_results/p/a/short.json" in zipfile.ZipFile(wheel).namelist()

    (source / "README.md").write_text("changed")
    uv("build", "--wheel", "--out-dir", out, source)
    told = told_by(max(out.glob("*.whl")), other / "changed", "bench")
    assert told.startswith("bilevel-bench 9.9.dev0+")  # what comes after the tag
    assert told.endswith(f" ({commit[:10]}, changed)\n")

    into = other / "editable"
    options = ("--no-deps", "--python", sys.executable, "--target", into)
    uv("pip", "install", *options, "--editable", source)
    assert list(into.glob("bilevel_bench-9.9.dev0*.dist-info"))
    assert not (into / "bench").exists()  # it is the checkout's
