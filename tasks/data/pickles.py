"""Pickles of data sets, read so that nothing runs: arrays in plain containers."""

import io
import pickle
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

ALLOWED = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),  # these three are numpy 1's names of its parts
    ("numpy.core.multiarray", "scalar"),
    ("numpy.core.numeric", "_frombuffer"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "scalar"),
    ("numpy._core.numeric", "_frombuffer"),
    ("_codecs", "encode"),  # in bytes that Python 2 pickled
    ("collections", "OrderedDict"),
    ("sklearn.utils", "Bunch"),
    ("sklearn.utils._bunch", "Bunch"),
}


class ArrayUnpickler(pickle.Unpickler):
    """An unpickler that finds the ALLOWED names only."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it names {module}.{name}, and only arrays are read")
        return super().find_class(module, name)


def load_plain(file: Path | bytes) -> Any:
    """The content of a pickle. Raises UnpicklingError if the pickle names anything else than what
    ALLOWED lists, before anything of it is called."""
    content = file if isinstance(file, bytes) else file.read_bytes()
    return ArrayUnpickler(io.BytesIO(content), encoding="latin1").load()


def unpack(file: Path, most: int) -> Iterator[bytes]:
    """The content of a file that is packed by zlib, in parts.

    Raises ValueError if the file is larger than `most` bytes, packed or not, or cut short, OSError,
    and zlib.error.
    """
    if not file.is_file() or file.stat().st_size > most:
        raise ValueError(f"it is no file of at most {most:,} bytes")
    unpacker, size = zlib.decompressobj(), 0
    with file.open("rb") as packed:
        while not unpacker.eof:
            given = unpacker.unconsumed_tail or packed.read(1 << 20)
            part = unpacker.decompress(given, 1 << 24)
            size += len(part)
            if size > most:
                raise ValueError(f"it has more than {most:,} bytes when it is unpacked")
            if not (given or part):
                raise ValueError("it is cut short")
            yield part


def remove_empty(folder: Path) -> None:
    """Remove a folder with nothing in it: scikit-learn makes one before it looks for data there."""
    with suppress(OSError):
        folder.rmdir()
