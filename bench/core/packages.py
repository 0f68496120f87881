"""Packages of your own: installed packages that bring tasks, methods and specs to this suite.

Only the user's environment lists them: distributions with an entry point of the group
`bilevel_bench`, and the variable BENCH_PACKAGES. A package is found without being imported. Its
modules are imported when a run uses a function that its conf/ names (bench.core.settings.locate).
"""

import os
import re
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import metadata
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

PACKAGES = ("tasks", "algorithms", "bench")  # of this project: its own conf/ names their functions
TAKEN = (*PACKAGES, "conf", "hydra_plugins", "scripts", "tests")
GROUP, VARIABLE = "bilevel_bench", "BENCH_PACKAGES"
# this project's lists and settings, which are extended or its own, and so are no choices
EXTENDED = ("paper/metrics", "paper/methods", "paper/data_sets")
TARGET = re.compile(r"^_target_: *([\w.]+)", re.M)


class Package(NamedTuple):
    """An importable package outside of this project, with a folder conf/ like this project's.

    folder: that of the package. listed_by: what in the environment lists it. version: of its
    distribution; None if no distribution is known.
    """

    name: str
    folder: Path
    listed_by: str
    version: str | None

    @property
    def conf(self) -> Path:
        """Give the folder of the package's yaml files."""
        return self.folder / "conf"

    @property
    def shown(self) -> str:
        """The package as refusals name it."""
        return f"package {self.name} ({self.listed_by})"


class Listing(NamedTuple):
    """What the environment lists. left_out: a line for each package that cannot be used."""

    packages: tuple[Package, ...] = ()
    left_out: tuple[str, ...] = ()

    def with_line(self, shown: str, reason: str) -> "Listing":
        """The listing with a package left out for a reason."""
        line = f"{shown} is left out: {reason}"
        return self._replace(left_out=(*self.left_out, line))


class Unusable(Exception):
    """Why a package cannot be used, and what to do."""


def listed() -> Listing:
    """The packages that the environment of this process lists, none of which is imported."""
    return _listed(os.environ.get(VARIABLE, ""), tuple(sys.path))


def package_of(target: str) -> Package | None:
    """The listed package in which a function is, by the function's path; None if it is in none."""
    name = target.partition(".")[0]
    return next((package for package in listed().packages if package.name == name), None)


def results_of(artifact: str, given: Path, default: Path) -> Path:
    """The folder with the records of an artifact, which is known by its id, paper/name.

    It is the folder `given`, unless that is the default and a listed package has specs of the
    paper: then it is `results` in the package.
    """
    paper = artifact.partition("/")[0]
    for package in listed().packages if given == default else ():
        if (package.conf / "paper" / paper).is_dir():
            return package.folder / "results"
    return given


@cache
def _listed(variable: str, path: tuple[str, ...]) -> Listing:
    """What these values of BENCH_PACKAGES and sys.path list."""
    found = Listing()
    names: set[str] = set()
    for name, listed_by, version in candidates(variable):
        if name in names:
            continue
        names.add(name)
        shown = f"package {name} ({listed_by})"
        try:
            package = Package(name, folder_of(name), listed_by, version)
            refuse_clashes(package, found.packages)
        except Unusable as reason:
            found = found.with_line(shown, str(reason))
        except OSError as error:
            found = found.with_line(shown, f"cannot read {error.filename}: {error.strerror}")
        else:
            found = found._replace(packages=(*found.packages, package))
    return found


def candidates(variable: str) -> Iterator[tuple[str, str, str | None]]:
    """(package, what lists it, version) for each name that the environment lists."""
    for name in filter(None, map(str.strip, variable.split(","))):
        yield name, VARIABLE, version_of_distribution(name)
    points = metadata.entry_points(group=GROUP)
    for point in sorted(points, key=lambda point: (point.value, point.name)):
        kept = point.dist
        version = None if kept is None else kept.version
        by = point.name if kept is None else f"{kept.name} {version}"
        yield point.value, f"entry point of {by}", version


def version_of_distribution(name: str) -> str | None:
    """The version of the distribution that is called like a package; None if there is none."""
    try:
        return metadata.version(name)
    except (metadata.PackageNotFoundError, ValueError):
        return None


def folder_of(name: str) -> Path:
    """The folder of a package that can be used; raises Unusable. The package is not imported."""
    if not name.isidentifier():
        raise Unusable("write the name of a package as `import` has it, without dots and colons")
    if name in TAKEN:
        raise Unusable(f"this suite has a package {name}: rename yours")
    try:
        spec = find_spec(name)
    except (ValueError, ImportError):
        spec = None
    if spec is None:
        raise Unusable("Python finds no such package: install it, or set PYTHONPATH to its folder")
    if spec.origin is None or Path(spec.origin).name != "__init__.py":
        raise Unusable("it is no folder with an __init__.py: add that file")
    folder = Path(spec.origin).parent
    conf = folder / "conf"
    if next(conf.rglob("*.yaml"), None) is None:
        raise Unusable(f"there is no yaml below {conf}: add one, or have the build include them")
    if (conf / "hydra").exists():
        raise Unusable(f"{conf / 'hydra'}: a package has no settings of Hydra: remove that folder")
    return folder


def refuse_clashes(package: Package, others: Sequence[Package]) -> None:
    """Raise Unusable if a package names something that this suite or another package names, or two
    functions of tasks or of methods alike, as run folders are called by their names."""
    own = named_by(package.conf, (package.name,))
    alike = sorted(names for names in functions_of(package).values() if len(names) > 1)
    if alike:
        raise Unusable(f"{' and '.join(sorted(alike[0]))} have one name: rename one of them")
    there = [("this suite", named_by(Path(str(files("conf"))), PACKAGES))]
    there += [(other.shown, named_by(other.conf, (other.name,))) for other in others]
    for shown, names in there:
        same = sorted(own & names)
        if same:
            raise Unusable(f"{shown} has {same[0]} too: rename it in {package.name}")


def functions_of(package: Package) -> dict[tuple[str, str], set[str]]:
    """The functions of a package that its tasks and algorithms name, with their modules, by group
    and name."""
    found: dict[tuple[str, str], set[str]] = {}
    for group in ("task", "algorithm"):
        for file in (package.conf / group).glob("*.yaml"):
            target = TARGET.search(file.read_text(errors="replace"))
            if target is not None and target[1].partition(".")[0] == package.name:
                found.setdefault((group, target[1].rpartition(".")[2]), set()).add(target[1])
    return found


@cache
def named_by(conf: Path, packages: tuple[str, ...]) -> frozenset[str]:
    """What a folder of configurations names and no other may: choices, papers, and the functions of
    tasks and methods that are in these packages, by which run folders are called."""
    found = set()
    for file in conf.rglob("*.yaml"):
        path = file.relative_to(conf).with_suffix("")
        group, choice = path.parent.as_posix(), path.name
        if group.startswith("paper/"):
            found.add(f"the paper {path.parts[1]}")
        elif path.as_posix() not in EXTENDED:
            found.add(f"{group}={choice}" if group != "." else f"conf/{choice}.yaml")
        text = file.read_text(errors="replace") if group in ("task", "algorithm") else ""
        target = TARGET.search(text)
        if target is not None and target[1].partition(".")[0] in packages:
            found.add(f"the {group} function {target[1].rpartition('.')[2]}")
    return frozenset(found)
