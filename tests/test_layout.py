"""Who may import whom, what stands where, and what no committed file says."""

import ast
import gzip
import subprocess
from pathlib import Path

import pytest

import tasks
from tests.conftest import ROOT

MAY = {"bench": {"bench"}, "tasks": {"bench", "tasks"}, "algorithms": {"bench"}}
SOURCES = [path for part in MAY for path in sorted((ROOT / part).rglob("*.py"))]


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_one_way(path: Path) -> None:
    """Tasks and algorithms know bench and not each other; bench knows neither."""
    names = {
        node.module or "" if isinstance(node, ast.ImportFrom) else alias.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    ours = {name.split(".")[0] for name in names} & set(MAY)
    assert ours <= MAY[path.relative_to(ROOT).parts[0]]


def test_slow_packages_are_imported_where_they_are_used() -> None:
    """`bench --help` and a run need no Weights & Biases and draw nothing."""
    for path in SOURCES:
        top = [node for node in ast.parse(path.read_text()).body if hasattr(node, "names")]
        names = {alias.name for node in top for alias in node.names}
        names |= {str(node.module) for node in top if isinstance(node, ast.ImportFrom)}
        slow = {name.partition(".")[0] for name in names} & {"wandb", "plotly", "matplotlib"}
        assert not slow, f"{path}: {slow}"


def test_tasks_is_ours() -> None:
    """A common name: another package of that name must not be in front."""
    assert Path(str(tasks.__file__)).parent == ROOT / "tasks"


def test_algorithm_files_are_short() -> None:
    """About 60 lines of code for a method: docstrings, comments and imports aside."""
    for path in sorted((ROOT / "algorithms").rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef):
                docstring = ast.get_docstring(node) or ""
                assert node.end_lineno is not None
                lines = node.end_lineno - node.lineno + 1 - len(docstring.splitlines())
                assert lines <= 75, f"{path.name}: {node.name}"


def test_no_committed_file_names_a_registry_or_this_machine() -> None:
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True, check=True
    ).stdout.split("\0")
    assert "uv.lock" not in listed
    split = ["pypi .org", "python hosted", "registry. npmjs", "/wo rk/", "/ro ot/"]
    words = [word.replace(" ", "") for word in split]  # so that this file does not name them
    for name in filter(None, listed):
        path = ROOT / name
        if path.suffix in (".png", ".pt") or not path.is_file():
            continue
        text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        assert not [word for word in words if word.encode() in text], name
