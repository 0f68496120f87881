"""What the speed scripts write with --json: the records of the README's table of speed."""

import shlex
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from bench.runs.environment import environment_of
from bench.runs.files import write_json


def command(packages: str = "") -> str:
    """What repeats this very call; packages: options of `uv run`."""
    arguments = [Path(sys.argv[0]).name, *sys.argv[1:]]
    return " ".join(
        filter(None, ["uv run", packages, f"python scripts/{shlex.join(arguments)}"])
    ).strip()


def write(
    file: Path,
    title: str,
    lines: Sequence[dict[str, Any]],
    *,
    device: str = "cpu",
    threads: int | None = None,
    packages: str = "",
    **more: Any,
) -> None:
    """lines: method, name, seconds turn by turn, note, and whatever else the script has of each; of
    a method the first line is ours."""
    about = environment_of(torch.device(device), threads or torch.get_num_threads(), {})
    content = {
        "title": title,
        "command": command(packages),
        "date": datetime.now(UTC).date().isoformat(),
        "device": device,
        "hardware": [about["gpu"] or about["cpu"]],
        "threads": about["threads"],
        "software": [{"python": about["python"], **about["packages"]}],
        "commits": [about["git"]["commit"]] if about["git"] else [],
        **more,
        "lines": list(lines),
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, content)
