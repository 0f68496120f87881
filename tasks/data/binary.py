"""Real data of two classes, labelled -1 and 1: IJCNN1 from `data.root`, and Wisconsin's breast
cancer, which scikit-learn brings along."""

import hashlib
from io import BytesIO
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bench.core.draw import generator
from bench.core.settings import BadSetting
from bench.core.task import Context

BinaryName = Literal["breast_cancer", "ijcnn1"]
IJCNN1 = {"ijcnn1": 49_990, "ijcnn1.t": 91_701}  # the rows of its files, below data.root/ijcnn1
FEATURES = 22  # of IJCNN1
WORD = 40  # bytes of a label, or of a feature and its number, at most


class Rows(NamedTuple):
    """Features [n, d] float64, and labels [n] of -1 and 1, float64."""

    features: Tensor
    labels: Tensor


class Binary(NamedTuple):
    """Training and validation rows, and the SHA-256 of each file that they come from."""

    train: Rows
    val: Rows
    sources: dict[str, str]


def binary(name: BinaryName, instance: int, context: Context) -> Binary:
    """The data set of this name; raises BadSetting.

    IJCNN1's two published files are the training and the validation set, as they are. Breast cancer
    is divided at random by the number `instance`, half and half; its features are standardised by
    the training rows and divided by the root of their number, so that a row's mean square length is
    1.
    """
    if name == "ijcnn1":
        return ijcnn1(context.data_root / "ijcnn1")
    return breast_cancer(instance)


def breast_cancer(instance: int) -> Binary:
    """Wisconsin's breast cancer, 284 training and 285 validation rows of 30 features."""
    from sklearn.datasets import load_breast_cancer

    found = load_breast_cancer()
    features = torch.from_numpy(found.data).double()
    labels = 2.0 * torch.from_numpy(found.target).double() - 1
    order = torch.randperm(len(labels), generator=generator("breast_cancer", instance))
    train, val = order[: len(order) // 2], order[len(order) // 2 :]
    mean, deviation = features[train].mean(0), features[train].std(0, correction=0)
    scaled = (features - mean) / deviation / features.shape[1] ** 0.5
    checksum = hashlib.sha256(found.data.tobytes() + found.target.tobytes()).hexdigest()
    sources = {"sklearn.datasets.load_breast_cancer": checksum}
    return Binary(Rows(scaled[train], labels[train]), Rows(scaled[val], labels[val]), sources)


def ijcnn1(folder: Path) -> Binary:
    """IJCNN1 as the LIBSVM collection has it; raises BadSetting for anything else."""
    found, sources = [], {}
    for name, n in IJCNN1.items():
        file = folder / name
        try:
            content = file.read_bytes()
            found.append(read_libsvm(content, n, FEATURES))
            sources[name] = hashlib.sha256(content).hexdigest()
        except OSError as error:
            raise refusal(file, error.strerror or "cannot be read") from None
        except ValueError as error:
            raise refusal(file, str(error)) from None
    train, val = found
    return Binary(train, val, sources)


def refusal(file: Path, why: str) -> BadSetting:
    """What is said of a file that is not IJCNN1's."""
    return BadSetting(
        f"task.source=ijcnn1: {file}: {why}; unpack the LIBSVM collection's {file.name}.bz2 "
        "there, or write task.source=breast_cancer"
    )


def read_libsvm(content: bytes, n: int, d: int) -> Rows:
    """The n rows of d features in a text of LIBSVM's form: a label, then pairs index:value.

    Raises ValueError for a text of another form, a label that is not -1 or 1, a number that is not
    finite, or another number of rows.
    """
    from sklearn.datasets import load_svmlight_file

    if len(content) > n * (d + 1) * WORD:
        raise ValueError(f"it has {len(content):,} bytes, which is more than {n} rows take")
    sparse, labels = load_svmlight_file(
        BytesIO(content), n_features=d, dtype=np.float64, zero_based=False
    )
    if len(labels) != n:
        raise ValueError(f"it has {len(labels)} rows, not {n}")
    wrong = sorted({*labels.tolist()} - {-1.0, 1.0})
    if wrong:
        raise ValueError(f"it has the label {wrong[0]:g}, and not only -1 and 1")
    if not np.isfinite(sparse.data).all():
        raise ValueError("it has values that are not finite")
    return Rows(torch.from_numpy(sparse.toarray()), torch.from_numpy(labels))
