"""Imports torch without the garbage collector, which takes a sixth of the import's time."""

import gc
import sys


def import_torch() -> None:
    """Import torch, and have the collector pass over what is there by then.

    Importing makes a million objects that stay and no garbage, and the collector would look through
    all of them again and again, also later in the run.
    """
    if "torch" in sys.modules:
        return
    before = gc.isenabled()
    gc.disable()
    try:
        import torch  # noqa: F401
    finally:
        gc.freeze()
        if before:
            gc.enable()
