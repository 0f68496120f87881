"""Pickles of data sets, read so that nothing runs: arrays in plain containers."""

import io
import pickle
from pathlib import Path
from typing import Any

ALLOWED = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),  # as numpy 1 calls its parts
    ("numpy.core.multiarray", "scalar"),
    ("numpy.core.numeric", "_frombuffer"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "scalar"),
    ("numpy._core.numeric", "_frombuffer"),
    ("_codecs", "encode"),  # bytes in the pickles of Python 2
    ("collections", "OrderedDict"),
    ("sklearn.utils", "Bunch"),
    ("sklearn.utils._bunch", "Bunch"),
}


class Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it names {module}.{name}, and only arrays are read")
        return super().find_class(module, name)


def pickled(file: Path | bytes) -> Any:
    """The content; of a pickle that would call anything, UnpicklingError."""
    content = file if isinstance(file, bytes) else file.read_bytes()
    return Plain(io.BytesIO(content), encoding="latin1").load()
