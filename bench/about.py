"""The version and commit of this Bilevel Bench, found without importing any slow module."""

import json
import os
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

NAME = "bilevel-bench"
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
    # Git sets these for its hooks, where they name the repository of the hook.
    named = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")
    variables = {key: value for key, value in os.environ.items() if key not in named}

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=variables)
        return done.stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")).resolve() != folder.resolve():
            return None
        git("ls-files", "--error-unmatch", "bench/about.py")
        changed = git("status", "--porcelain", "--", ".", ":(exclude)results")
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(changed)}
    except (OSError, subprocess.CalledProcessError):
        return None  # there is no repository, or git is not installed


def commit_of_build(file: Path) -> dict[str, Any] | None:
    """What scripts/commit_hook.py wrote into the wheel; None if there is no such file."""
    return json.loads(file.read_text()) if file.is_file() else None


def version_line() -> str:
    """The line that `--version` prints."""
    found = commit()
    if found is None:
        return f"{NAME} {version()}"
    return f"{NAME} {version()} ({found['commit'][:10]}{', changed' if found['dirty'] else ''})"
