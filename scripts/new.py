"""Writes a method or a task that works, its yaml and its test: the beginning of your own.

    uv run python scripts/new.py algorithm NAME
    uv run python scripts/new.py task NAME
    uv run python scripts/new.py algorithm NAME --package DIR

The files go into this repository, or into the package of your own below DIR, which is made if it is
not there. Nothing that exists is written over. What a new task measures is added to the table of
metrics, conf/paper/metrics.yaml, so that runs and pages know which values are better.
"""

import argparse
import keyword
import re
import sys
import tomllib
from collections.abc import Mapping
from importlib.metadata import packages_distributions
from pathlib import Path
from shlex import quote
from typing import NamedTuple, NoReturn

import yaml

ROOT = Path(__file__).resolve().parent.parent
TEMPLATES = Path(__file__).resolve().parent / "templates"
sys.path.insert(0, str(ROOT))

from bench.core.packages import GROUP, PACKAGES, TAKEN, listed, named_by  # noqa: E402
from bench.runs.files import write_whole  # noqa: E402

KINDS = ("algorithm", "task")


class Refused(Exception):
    """One line that says why nothing was written, and what to write instead."""


class Place(NamedTuple):
    """Where the files go. project: the folder with tests/. code, conf: those of the module and of
    the yaml. module: the name by which the module is imported."""

    project: Path
    code: Path
    conf: Path
    module: str


class Parser(argparse.ArgumentParser):
    """Refuses wrong arguments in one line."""

    def error(self, message: str) -> NoReturn:
        print(f"new: {message}", file=sys.stderr)
        sys.exit(2)


def folder(text: str) -> Path:
    """The folder that is written so; raises ArgumentTypeError for an empty text."""
    if not text:
        raise argparse.ArgumentTypeError("write the folder of the package, such as ../my-lab")
    return Path(text)


def main(arguments: list[str] | None = None) -> int:
    """Write the files, and print what to do next; gives the exit code."""
    parser = Parser(prog="new", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--package", metavar="DIR", type=folder, help="a package of your own")
    given = parser.parse_args(arguments)
    try:
        check_name(given.kind, given.name)
        if given.package is None:
            place = place_here(given.kind, given.name)
            files = files_of(given.kind, given.name, place)
        else:
            place, first = place_outside(given.package.expanduser(), given.name)
            files = first | files_of(given.kind, given.name, place)
        added = {} if given.kind == "algorithm" else longer_table(given.name, place)
        write_all(files)
        for table, text in added.items():
            table.parent.mkdir(parents=True, exist_ok=True)
            write_whole(table, text)  # every command reads it
    except Refused as refused:
        parser.error(str(refused))
    except OSError as error:
        parser.error(f"cannot write {error.filename}: {error.strerror}")
    for file in files | added:
        print(file)
    print(next_steps(given.kind, given.name, given.package, place))
    return 0


def check_name(kind: str, name: str) -> None:
    """Raise Refused unless this can be the name of a new module, function and choice."""
    taken = name in ("conf", "any")  # a folder, and what the table of metrics has of every task
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name) or taken:
        raise Refused(f"{name}: write small letters, digits and underscores, as in my_method")
    there = [("this suite", named_by(ROOT / "conf", PACKAGES))]
    there += [(other.shown, named_by(other.conf, (other.name,))) for other in listed().packages]
    for shown, names in there:
        if {f"{kind}={name}", f"the {kind} function {name}"} & names:
            raise Refused(f"{name}: {shown} has {kind}={name}: choose another name")


def place_here(kind: str, name: str) -> Place:
    """The place of a new file in this repository."""
    package = "algorithms.bilevel" if kind == "algorithm" else "tasks"
    code = ROOT.joinpath(*package.split("."))
    return Place(ROOT, code, ROOT / "conf", f"{package}.{name}")


def place_outside(project: Path, name: str) -> tuple[Place, dict[Path, str]]:
    """The place of a new file in a package, and the files that the package still lacks, by path.

    Raises Refused if there is a project that is none of this suite's.
    """
    about = project / "pyproject.toml"
    if about.is_file():
        package = listed_package(about)
        folders = [project / "src" / package, project / package]
        code = next((folder for folder in folders if folder.is_dir()), None)
        if code is None:
            raise Refused(f"{about} lists {package}: make the folder {folders[0]} first")
        return Place(project, code, code / "conf", f"{package}.{name}"), {}
    package = re.sub(r"[-.\s]", "_", project.resolve().name)
    if not package.isidentifier() or keyword.iskeyword(package) or package != package.lower():
        raise Refused(f"--package {project}: the folder's name is no name of a package: rename it")
    if package in {*TAKEN, *sys.stdlib_module_names, *packages_distributions()}:
        raise Refused(f"--package {project}: there is a package {package} already: rename it")
    code = project / "src" / package
    words = {"PACKAGE": package, "PROJECT": package.replace("_", "-"), "GROUP": GROUP}
    first = {
        about: filled("pyproject.toml", words),
        code / "__init__.py": f'"""Methods and tasks of {package}, for the Bilevel Bench."""\n',
    }
    return Place(project, code, code / "conf", f"{package}.{name}"), first


def listed_package(about: Path) -> str:
    """The package that a pyproject.toml has as an entry point of this suite; raises Refused."""
    try:
        points = tomllib.loads(about.read_text())["project"]["entry-points"][GROUP]
        return str(next(iter(points.values())))
    except (KeyError, AttributeError, StopIteration):
        table = f"[project.entry-points.{GROUP}]"
        raise Refused(f"{about} lists no package for the bench: add {table} NAME = NAME") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Refused(f"{about}: {error}") from None


def files_of(kind: str, name: str, place: Place) -> dict[Path, str]:
    """The contents of the module, its yaml and its test, by their paths."""
    words = {"NAME": name, "MODULE": place.module}
    return {
        place.code / f"{name}.py": filled(f"{kind}.py", words),
        place.conf / kind / f"{name}.yaml": filled(f"{kind}.yaml", words),
        place.project / "tests" / f"test_{name}.py": filled(f"test_{kind}.py", words),
    }


def filled(template: str, words: Mapping[str, str]) -> str:
    """A template in which each of these words stands for its value."""
    text = (TEMPLATES / f"{template}.txt").read_text(encoding="utf-8")
    for word, value in words.items():
        text = re.sub(rf"\b{word}\b", value, text)
    return re.sub(r"(^from .*\n)+", sort_lines, text, flags=re.M)


def sort_lines(found: re.Match[str]) -> str:
    """Lines of imports, in the order of their modules."""
    return "".join(sorted(found[0].splitlines(keepends=True), key=str.lower))


def write_all(files: Mapping[Path, str]) -> None:
    """Write the files; raises Refused, before anything is written, if one of them exists."""
    for file in files:
        if file.exists():
            raise Refused(f"{file} is there already: remove it, or choose another name")
    for file, text in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


def longer_table(name: str, place: Place) -> dict[Path, str]:
    """The table of metrics, which need not be there yet, with what a task measures at its end.

    Empty where the table has the task already, as one that was removed. Raises Refused if it is no
    table.
    """
    table = place.conf / "paper" / "metrics.yaml"
    try:
        before = table.read_text(encoding="utf-8") if table.is_file() else ""
        there = yaml.safe_load(before) or {}
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise Refused(f"{table}: {' '.join(str(error).split())}") from None
    if name in there:
        return {}
    if before and not before.endswith("\n"):
        before += "\n"
    return {table: before + filled("metrics.yaml", {"NAME": name})}


def next_steps(kind: str, name: str, project: Path | None, place: Place) -> str:
    """What to do with the new files."""
    other = "task=quadratic" if kind == "algorithm" else "algorithm=itd"
    lines = [] if project is None else [f"uv pip install -e {quote(str(project))}"]
    lines += [
        f"uv run pytest {quote(str(place.project / 'tests' / f'test_{name}.py'))}",
        f"uv run bench {kind}={name} {other}",
    ]
    return "\n".join(["next:", *(f"  {line}" for line in lines)])


if __name__ == "__main__":
    sys.exit(main())
