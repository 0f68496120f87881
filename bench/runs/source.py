"""Finds the source files that a run's numbers come from, and takes a digest of each.

The digests are kept in the run's environment and are no part of its name. So a run whose code has
changed since keeps its name, and `bench` can say which files have changed.
"""

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench.core.packages import PACKAGES, listed, package_of

# what only compiled runs use, what only lanes use, and what other runs use on a GPU
COMPILED_MODULES = (
    "bench.compiled.traced", "bench.compiled.batched", "bench.compiled.joined",
    "bench.compiled.replayed", "bench.compiled.replayed_lanes",
)  # fmt: skip
LOOP = "bench.core.loop"  # every run uses it, and what it imports: the oracle, the draws


def source(config: Mapping[str, Any], *more: str) -> dict[str, Any]:
    """The files that a run uses: those of the functions that its configuration names, of
    bench.core.loop, and all that these import of this project and of the listed packages.

    more: further modules that the run uses. Gives as `files` the digest of each file by its path
    from the project's top (or from the folder that a package is in), and as `digest` one of them
    all; a digest has ten hexadecimal digits.
    """
    modules = {target.rpartition(".")[0] for target in targets_of_run(config)}
    outside = tuple(package.name for package in listed().packages)
    files = contents((LOOP, *more, *sorted(modules)), outside)
    return {"digest": digest_of("".join(sorted(files.values())).encode()), "files": dict(files)}


def outside_versions(config: Mapping[str, Any]) -> dict[str, str]:
    """The version of each package outside of this project that a run's configuration names.

    A package that belongs to no installed distribution has the version "unknown".
    """
    named = (package_of(target) for target in targets_of_run(config))
    return {package.name: package.version or "unknown" for package in named if package is not None}


def targets_of_run(config: Mapping[str, Any]) -> list[str]:
    """The path of every function that the task and the method of a configuration name."""
    return [*targets_of(config["task"]), *targets_of(config["algorithm"])]


def differing_files(old: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The paths in `old` and `now` (path -> digest) whose content the other one does not have.

    So a file that was moved and not changed is not among them.
    """
    new = [path for path, digest in now.items() if digest not in old.values()]
    gone = [path for path, digest in old.items() if digest not in now.values()]
    return sorted({*new, *gone})


def targets_of(node: Any) -> Iterator[str]:
    """The path of every function that a part of a configuration names."""
    if isinstance(node, dict):
        if "_target_" in node:
            yield node["_target_"]
        for value in node.values():
            yield from targets_of(value)


@cache  # all runs of a process ask for it
def contents(modules: tuple[str, ...], outside: tuple[str, ...] = ()) -> Mapping[str, str]:
    """The digests, by path, of the files of these modules and of all that they import.

    outside: the packages that count beside those of this project.
    """
    found: dict[str, str] = {}
    waiting, met = list(modules), set(modules)
    while waiting:
        module = waiting.pop()
        file = file_of(module)
        if file is None:
            continue
        content = file.read_bytes()
        is_package = file.name == "__init__.py"
        top = file.parents[module.count(".") + is_package]
        found[file.relative_to(top).as_posix()] = digest_of(content)
        in_c = file.with_suffix(".c")  # which the module compiles
        if in_c.is_file():
            found[in_c.relative_to(top).as_posix()] = digest_of(in_c.read_bytes())
        others = [*imports_of(content, module if is_package else module.rpartition(".")[0])]
        if module.partition(".")[0] in outside:
            others.append(module.rpartition(".")[0])  # the packages around it are imported too
        for other in others:
            if other not in met and other.partition(".")[0] in (*PACKAGES, *outside):
                met.add(other)
                waiting.append(other)
    return dict(sorted(found.items()))


def file_of(module: str) -> Path | None:
    """The file of a module, found without importing it; None if there is no such module."""
    package, *rest = module.split(".")
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return None
    place = Path(spec.origin).parent.joinpath(*rest)
    for file in (place.with_suffix(".py"), place / "__init__.py"):
        if file.is_file():
            return file
    return None


def imports_of(content: bytes, package: str) -> Iterator[str]:
    """The modules that a file imports, at its top or within a function.

    A name that is imported from a package may be a module, and is given too. package: that of the
    file, from which relative imports count.
    """
    for node in ast.walk(ast.parse(content)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - node.level]
            origin = ".".join(filter(None, [*(above if node.level else []), node.module]))
            yield from (origin, *(f"{origin}.{alias.name}" for alias in node.names))


def digest_of(content: bytes) -> str:
    """Ten hexadecimal digits that stand for the content of a file."""
    return blake2b(content, digest_size=5).hexdigest()
