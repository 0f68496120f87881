"""Files that are written whole or not at all."""

import json
import os
from collections.abc import Set
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from bench.core.settings import BadSetting


def write_whole(path: Path, content: str | memoryview) -> None:
    """All of the file or nothing: written beside it, then renamed."""
    new = path.with_name(path.name + ".new")
    try:
        with new.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except OSError as error:
        with suppress(OSError):  # of a full disk give back what there is
            new.unlink()
        error.filename = error.filename or str(path)
        raise


def write_json(path: Path, values: Any) -> None:
    write_whole(path, json.dumps(values, indent=1) + "\n")


def read_json(path: Path, keys: Set[str] = frozenset()) -> Any:
    """The file's content, an object with these keys at least; raises BadSetting if it is damaged
    or not there."""
    try:
        found = json.loads(path.read_text())
        if not isinstance(found, dict) or not keys <= set(found):
            raise ValueError
        return found
    except (ValueError, FileNotFoundError, RecursionError):
        raise BadSetting(f"{path} is damaged: write run.force=true to start again") from None


def write_yaml(path: Path, values: Any) -> None:
    write_whole(path, yaml.safe_dump(values, sort_keys=False))
