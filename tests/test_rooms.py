"""The rooms of the code: who may import whom, without circles; docs/architecture.md has them."""

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.conftest import ROOT

# each may import those before it
ROOMS = ("core", "numerics", "compiled", "runs", "solving", "contract", "sweeps", "reproduce")
TOP = ("bench", "tests", "scripts")
PACKAGES = ("bench", "tasks", "algorithms")
# what tasks and methods may import of bench; `bench` itself is what it offers to packages
AUTHORS = {"bench", "bench.core", "bench.numerics"}
LEAVES = {"bench.about", "bench.hydra_parts", "bench.search_path"}
# they import nothing of ours; anyone may import them


def files() -> list[Path]:
    return sorted(f for package in PACKAGES for f in (ROOT / package).rglob("*.py"))


def module(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module(file): file for file in files()}


def imported(file: Path) -> Iterator[str]:
    """The project's modules that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(file.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            parts = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [part if part in MODULES else node.module for part in parts]
        yield from (name for name in names if name.partition(".")[0] in PACKAGES)


def room(name: str) -> str:
    """bench.core of bench.core.task; the package itself of what is in no room."""
    parts = name.split(".")
    return ".".join(parts[:2]) if parts[0] == "bench" and len(parts) > 2 else parts[0]


def allowed(name: str) -> set[str]:
    """The rooms from which a module may import."""
    own = room(name)
    if own in ("tasks", "algorithms"):
        return {own, *AUTHORS}
    if own == "bench":  # the command line
        return {"bench", *(f"bench.{r}" for r in ROOMS)}
    upto = ROOMS.index(own.partition(".")[2])
    return {f"bench.{r}" for r in ROOMS[: upto + 1]}


@pytest.mark.parametrize("name", MODULES)
def test_imports_go_down_only(name: str) -> None:
    found = {other for other in imported(MODULES[name]) if other not in LEAVES}
    assert {other for other in found if room(other) not in allowed(name)} == set()


@pytest.mark.parametrize("name", [n for n in MODULES if room(n).startswith("bench")])
def test_bench_names_no_task_or_method(name: str) -> None:
    """Not even a string does, by which one could be imported: only conf/ names them."""
    found = [node.value for node in ast.walk(ast.parse(MODULES[name].read_text()))
             if isinstance(node, ast.Constant) and isinstance(node.value, str)]  # fmt: skip
    assert [s for s in found if re.match(r"(tasks|algorithms)\.\w", s)] == []


def test_there_is_no_circle() -> None:
    """There is none even if imports inside of functions are counted."""
    graph = {name: {o for o in imported(file) if o in MODULES} for name, file in MODULES.items()}
    assert list(TopologicalSorter(graph).static_order())


def test_a_module_below_the_top_is_in_a_room() -> None:
    top = {name for name in MODULES if name.count(".") == 1 and name.startswith("bench.")}
    assert top == {f"bench.{r}" for r in ROOMS} | {
        "bench.__main__", "bench.about", "bench.guard", "bench.hydra_parts", "bench.main",
        "bench.search_path",
    }  # fmt: skip


def test_the_architecture_page_names_what_there_is() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    folders = set(re.findall(r"`((?:bench|tasks|algorithms|conf|scripts|tests)/(?:\w+/)*)`", text))
    assert folders >= {f"bench/{r}/" for r in ROOMS} | {"algorithms/", "tasks/"}
    missing = [f for f in folders if not (ROOT / f).is_dir()]
    named = set(re.findall(rf"`((?:{'|'.join([*ROOMS, *TOP])})/\w+\.py)`", text))
    for file in named:
        inside = file if file.partition("/")[0] in TOP else f"bench/{file}"
        missing += [] if (ROOT / inside).is_file() else [file]
    assert missing == []
    assert len(named) > 15


def test_no_file_of_bench_is_long() -> None:
    lengths = {name: len(file.read_text().splitlines()) for name, file in MODULES.items()}
    assert {n: k for n, k in lengths.items() if n.startswith("bench.") and k > 400} == {}


@pytest.mark.parametrize("folder", ["bench", "tasks", "algorithms", "scripts"])
def test_choices_are_read_without_decoding(folder: str) -> None:
    """No conditional expression within another, and no lambda in a dictionary."""
    found = []
    for file in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            where = f"{file.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.IfExp):
                inside = (node.body, node.orelse, node.test)
                found += [where] * any(isinstance(part, ast.IfExp) for part in inside)
            if isinstance(node, ast.Dict):
                found += [where] * any(isinstance(value, ast.Lambda) for value in node.values)
    assert found == []
