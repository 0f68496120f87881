"""Keeps the current folder off the path on which Python looks for modules.

`python -m bench` puts it first. A folder with a package `conf` or `tasks` of its own, or with files
that somebody else wrote, would then take the place of this project's packages.
"""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent  # has this project's packages
PACKAGES = ("conf", "tasks", "algorithms")  # common names, of other packages and folders too


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


def find_clash() -> str | None:
    """A line that says which package of another project stands before one of this project's.

    None: each is this project's own. It happens where a script or a notebook is started in a folder
    that has such a package, by PYTHONPATH, and by packages that are installed with such a name.
    """
    for name in PACKAGES:
        spec = find_spec(name)
        if spec is None:
            return f"{name}: this project's package {name} is not beside {TOP / 'bench'}"
        places = [Path(place).resolve() for place in spec.submodule_search_locations or ()]
        if TOP / name not in places:
            found = places[0] if places else Path(str(spec.origin))
            return (
                f"{found}: Python finds it in place of this project's package {name}; rename it, "
                "take its folder out of PYTHONPATH, or start elsewhere"
            )
    return None
