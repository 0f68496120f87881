"""Tabular data sets with classes, from `data.root`, and digits, which scikit-learn brings along."""

import hashlib
import zlib
from io import BytesIO
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from bench.core.settings import BadSetting
from bench.core.task import Context
from tasks.data.fetching import one_at_a_time
from tasks.data.pickles import remove_empty, unpack

TableName = Literal["digits", "covertype", "aloi", "sensorless"]
COVERTYPE = 581_012, 54  # rows and columns
HEADER = 10_000  # bytes that a pickled array may have beside its values
LIBSVM = {"aloi": "aloi.scale", "sensorless": "Sensorless.scale"}  # below data.root/libsvm


def table(name: TableName, context: Context) -> tuple[Tensor, Tensor, dict[str, str]]:
    """(features [n, d] float32, classes [n] int64, source -> SHA-256); raises BadSetting.

    Aloi and Sensorless are read in the format of the LIBSVM collection, which is where the paper
    has them from, and Covertype as scikit-learn keeps it.
    """
    from sklearn.datasets import fetch_covtype, load_digits, load_svmlight_file

    if name == "digits":
        digits = load_digits()
        checksum = hashlib.sha256(digits.data.tobytes() + digits.target.tobytes()).hexdigest()
        features, classes = digits.data, digits.target
        sources = {"sklearn.datasets.load_digits": checksum}
    elif name == "covertype":
        home = context.data_root / "scikit_learn_data"
        refuse_large(home / "covertype")
        try:
            with one_at_a_time(context.data_root, context.download):
                found = fetch_covtype(data_home=str(home), download_if_missing=context.download)
        except OSError as error:
            remove_empty(home)
            raise _absent(name, home, str(error)) from None
        features, classes = found.data, found.target
        checksum = hashlib.sha256(features.tobytes() + classes.tobytes()).hexdigest()
        sources = {"sklearn.datasets.fetch_covtype": checksum}
    else:
        file = context.data_root / "libsvm" / LIBSVM[name]
        try:
            content = file.read_bytes()
        except OSError as error:
            raise _absent(name, file, error.strerror or "cannot be read") from None
        try:
            sparse, classes = load_svmlight_file(BytesIO(content))
        except ValueError as error:
            raise BadSetting(f"task.source={name}: {file}: {error}") from None
        features = sparse.toarray()
        sources = {f"libsvm/{file.name}": hashlib.sha256(content).hexdigest()}
    return torch.from_numpy(features).float(), torch.from_numpy(classes).long(), sources


def refuse_large(folder: Path) -> None:
    """Raises BadSetting if a file that scikit-learn keeps Covertype in is larger than it can be.

    scikit-learn unpickles these files, whose bytes depend on the versions that wrote them: no
    checksum of theirs is published, and a foreign one can run code. SECURITY.md says so.
    """
    n, d = COVERTYPE
    for name, size in (("samples_py3", 8 * n * d), ("targets_py3", 4 * n)):
        file = folder / name
        try:
            for _ in unpack(file, size + HEADER) if file.exists() else ():
                pass
        except (ValueError, OSError, zlib.error) as error:
            raise BadSetting(
                f"task.source=covertype: {file} is not as scikit-learn keeps it ({error}): delete "
                "it and write data.download=true"
            ) from None


def _absent(name: str, place: Path, why: str) -> BadSetting:
    return BadSetting(
        f"task.source={name}: {place}: {why}; put the file there, or write task.source=digits"
        + (" or data.download=true" if name == "covertype" else "")
    )
