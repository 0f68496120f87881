"""The C compiler by which a task may make its loops faster (tasks/models/softmax_rows.py)."""

import os
import shutil


def c_compiler() -> str | None:
    """The command of this machine's C compiler: that of the variable CC, or cc, or gcc; None if
    there is none."""
    return os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
