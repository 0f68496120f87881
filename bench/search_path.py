"""Keeps the current folder off the path on which Python looks for modules.

`python -m bench` puts it first. A folder with a package `conf` or `tasks` of its own, or with files
that somebody else wrote, would then take the place of this project's packages.
"""

import os
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent  # has this project's packages


def leave_current_folder() -> None:
    """Drop the folder that `python -m` put on the path, unless this project itself is in it."""
    if not safe_path() and Path(sys.path[0]).resolve() != TOP:
        del sys.path[0]


def safe_path() -> bool:
    """Whether Python was told to put no folder first (python -P, or PYTHONSAFEPATH)."""
    return sys.flags.safe_path


def keep_children_out() -> None:
    """Have the processes that this one starts look for no module in their current folder.

    These are workers, those of joblib and of torch's compiler, and SLURM jobs.
    """
    os.environ["PYTHONSAFEPATH"] = "1"
