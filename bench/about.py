"""The version and commit of this Bilevel Bench, found without importing any slow module."""

import json
import os
import re
import subprocess
from collections.abc import Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

NAME = "bilevel-bench"
# what would run a program, against a repository whose own configuration asks for it
NO_PROGRAMS = ("core.fsmonitor=false", "core.hooksPath=/dev/null", "protocol.allow=never")
FILTER = re.compile(r"filter\..*\.(clean|process|required)", re.DOTALL)
BUILT = Path(__file__).with_name("commit.json")  # scripts/commit_hook.py writes it into a wheel


def version() -> str:
    """The version of the installed package; "unknown" if it is not installed."""
    try:
        return metadata.version(NAME)
    except metadata.PackageNotFoundError:
        return "unknown"


@cache  # all runs of a process ask for it
def commit() -> dict[str, Any] | None:
    """The `commit` of this code, and as `dirty` whether files differ from it.

    A checkout asks git. A wheel has a file with what was true when it was built. None: unknown.
    """
    return commit_of_checkout(Path(__file__).parent.parent) or commit_of_build(BUILT)


def commit_of_checkout(folder: Path) -> dict[str, Any] | None:
    """What git says of a folder; None if the folder is not the top of this project's repository.

    Records in results/ do not count as changes: what is written there changes no run.
    A wheel may be installed in an environment that lies within the repository of another project,
    whose commit would be wrong here. scripts/commit_hook.py calls this function too.
    """
    # Git's own variables name other repositories, within its hooks, and can name programs to run.
    variables = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    variables |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1"}  # it only looks

    def git(*arguments: str, off: Sequence[str] = NO_PROGRAMS) -> str:
        command = ["git", "-C", str(folder), *options(off), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=variables)
        return done.stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")).resolve() != folder.resolve():
            return None
        git("ls-files", "--error-unmatch", "bench/about.py")
        # `git status` runs the filters of changed files, whose names are anybody's
        keys = git("config", "--name-only", "--list").splitlines()
        filters = [f"{key}=" for key in {*keys} if FILTER.fullmatch(key)]
        changed = git(
            "status", "--porcelain", "--ignore-submodules=all", "--", ".", ":(exclude)results",
            off=(*NO_PROGRAMS, *filters),
        )  # fmt: skip
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(changed)}
    except (OSError, subprocess.CalledProcessError):
        return None  # there is no repository, or git is not installed


def options(settings: Sequence[str]) -> list[str]:
    """Options of git for settings that hold against those of every file."""
    return [word for setting in settings for word in ("-c", setting)]


def commit_of_build(file: Path) -> dict[str, Any] | None:
    """What scripts/commit_hook.py wrote into the wheel; None if there is no such file."""
    return json.loads(file.read_text()) if file.is_file() else None


def version_line() -> str:
    """The line that `--version` prints."""
    found = commit()
    if found is None:
        return f"{NAME} {version()}"
    return f"{NAME} {version()} ({found['commit'][:10]}{', changed' if found['dirty'] else ''})"
