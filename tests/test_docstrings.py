"""Every public name says what its reader must know, as far as a test can tell.

What is checked: a docstring is there; it ends a sentence; a function that raises names the
exception; one that takes or gives tensors of a shape that matters says so; a method's module names
its paper. Whether the words are true is for the reader.
"""

import ast
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import bench
from bench.core.settings import locate, parameters
from tests.conftest import ROOT
from tests.test_conf import stems

ROOMS = ("bench/core", "bench/numerics")
# what says that a tensor has any shape, or which one it has
SHAPE = re.compile(r"\[[\w+, *.\-()]+\]|shape|scalar|vector|matri|R\^|coordinate", re.IGNORECASE)
YEAR = re.compile(r"\b(19|20)\d\d\b")


class Public(NamedTuple):
    """A public function or class, the module in which it stands, and what is said around it.

    around: the docstrings of its module and its class.
    """

    module: str
    name: str
    node: ast.FunctionDef | ast.ClassDef
    around: str

    @property
    def id(self) -> str:
        return f"{self.module}.{self.name}"

    @property
    def text(self) -> str:
        return " ".join((ast.get_docstring(self.node) or "").split())


def modules() -> list[Path]:
    found = [path for room in ROOMS for path in sorted((ROOT / room).glob("**/*.py"))]
    return [path for path in found if not path.stem.startswith("_") or path.stem == "__init__"]


def public(path: Path) -> Iterator[Public]:
    """The public functions and classes of a module, and the public methods of these."""
    module = path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
    tree = ast.parse(path.read_text())
    around = ast.get_docstring(tree) or ""
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name.startswith("_"):
            continue
        yield Public(module, node.name, node, around)
        of_class = f"{around} {ast.get_docstring(node)}"
        for inner in node.body if isinstance(node, ast.ClassDef) else []:
            if not isinstance(inner, ast.FunctionDef) or inner.name.startswith("_"):
                continue
            if not any(ast.unparse(one).endswith(".setter") for one in inner.decorator_list):
                yield Public(module, f"{node.name}.{inner.name}", inner, of_class)


NAMES = [name for path in modules() for name in public(path)]


def raised(node: ast.FunctionDef) -> set[str]:
    """The exceptions that a function raises itself, by name."""
    found = set()
    for inner in ast.walk(node):
        if isinstance(inner, ast.Raise) and inner.exc is not None:
            called = inner.exc.func if isinstance(inner.exc, ast.Call) else inner.exc
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if name[:1].isupper():
                found.add(name)
    return found


def takes_tensors(node: ast.FunctionDef) -> bool:
    """Whether an argument of a function is a tensor."""
    arguments = [*node.args.args, *node.args.kwonlyargs]
    return any(ast.unparse(a.annotation) == "Tensor" for a in arguments if a.annotation)


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_every_module_says_what_it_is_for(path: Path) -> None:
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    assert text.partition("\n\n")[0].rstrip().endswith((".", ":", "?")), path.name


@pytest.mark.parametrize("name", NAMES, ids=lambda n: n.id)
def test_every_public_name_has_a_docstring(name: Public) -> None:
    assert name.text, f"{name.id} has no docstring"
    assert name.text[-1] in ".)", f"{name.id}: {name.text[-20:]!r} ends no sentence"


@pytest.mark.parametrize(
    "name",
    [n for n in NAMES if isinstance(n.node, ast.FunctionDef) and raised(n.node)],
    ids=lambda n: n.id,
)
def test_what_is_raised_is_named(name: Public) -> None:
    assert isinstance(name.node, ast.FunctionDef)
    missing = {one for one in raised(name.node) if one not in name.text}
    assert not missing, f"{name.id} raises {missing} and does not say so"


@pytest.mark.parametrize(
    "name",
    [n for n in NAMES if isinstance(n.node, ast.FunctionDef) and takes_tensors(n.node)],
    ids=lambda n: n.id,
)
def test_tensors_have_a_shape_in_words(name: Public) -> None:
    assert SHAPE.search(f"{name.text} {name.around}"), f"{name.id}: which shapes have its tensors?"


def test_what_bench_exports_has_a_docstring() -> None:
    """Classes and functions; names of types, such as Positive, are explained in their module."""
    for name in getattr(bench, "__dir__", list)():
        thing: Any = getattr(bench, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert inspect.getdoc(thing), name
            assert not (thing.__doc__ or "").startswith(f"{name}("), f"{name} has only a signature"


YAMLS = {name: (ROOT / f"conf/algorithm/{name}.yaml").read_text() for name in stems("algorithm")}
TARGETS = {name: re.findall(r"_target_: (\S+)", text)[0] for name, text in YAMLS.items()}
METHODS = sorted({target.rpartition(".")[0] for target in TARGETS.values()})
OF_OUR_OWN = {"algorithms.bilevel.upper_only"}  # reference lines, of no paper but BOME's


@pytest.mark.parametrize("module", METHODS)
def test_a_methods_module_names_its_paper_and_its_symbols(module: str) -> None:
    text = inspect.getdoc(import_module(module)) or ""
    assert YEAR.search(text) or module in OF_OUR_OWN, f"{module} names no paper with its year"
    formulas = ["\n# formula: " in one for one in YAMLS.values() if f"_target_: {module}." in one]
    place = re.search(r"Algorithm|[Ss]ection|equation|Proposition|appendix|figure", text)
    assert place or all(formulas), f"{module} names no algorithm, section or equation"


@pytest.mark.parametrize("method", stems("algorithm"))
def test_every_setting_of_a_method_is_explained(method: str) -> None:
    """In its function's docstring, its module's, or that of the method whose it says they are."""
    function = locate(TARGETS[method], "algorithm")
    text = f"{inspect.getdoc(function)} {inspect.getdoc(import_module(function.__module__))}"
    if as_for := re.search(r"as for `(\w+)`|those of `(\w+)`", text):
        text += str(inspect.getdoc(locate(TARGETS[as_for[1] or as_for[2]], "algorithm")))
    missing = [p.name for p in parameters(function) if not re.search(rf"\b{p.name}\b", text)]
    assert not missing, f"{method}: {missing}"
