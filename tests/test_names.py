"""The names that come from `bench`: all are there, and importing it imports nothing slow."""

import ast
import subprocess
import sys
from importlib import import_module

import pytest

import bench
from tests.conftest import ROOT


def test_the_two_lists_of_names_are_one() -> None:
    """Type checkers read imports, and Python reads MODULES."""
    tree = ast.parse((ROOT / "bench" / "__init__.py").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imported = [
        (alias.name, node.module)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    assert dict(imported) == bench.WHERE
    assert len(imported) == len(bench.WHERE)


def test_each_name_is_where_it_is_said_to_be() -> None:
    for name, module in bench.WHERE.items():
        assert getattr(bench, name) is getattr(import_module(module), name)
    assert set(bench.WHERE) <= set(dir(bench))
    with pytest.raises(AttributeError, match="no attribute 'solver'"):
        bench.solver  # noqa: B018


def test_importing_the_package_imports_nothing_slow() -> None:
    code = (
        "import sys, bench; print(sorted({'torch', 'hydra', 'pydantic', 'rich'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"
