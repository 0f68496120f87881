"""Made-up data folders in the layouts that the tasks read, a few kilobytes each."""

import hashlib
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.data import catalogue, checksums
from tasks.data import images as images_module

MNIST_FILES = {
    "train-images-idx3-ubyte": (12, 28, 28), "train-labels-idx1-ubyte": (12,),
    "t10k-images-idx3-ubyte": (6, 28, 28), "t10k-labels-idx1-ubyte": (6,),
}  # fmt: skip


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def idx(values: np.ndarray[Any, Any]) -> bytes:
    """The format of Yann LeCun's files: a magic number, the sizes, the bytes."""
    sizes = struct.pack(f">{values.ndim}i", *values.shape)
    return bytes([0, 0, 8, values.ndim]) + sizes + values.astype(np.uint8).tobytes()


def mnist_arrays() -> dict[str, np.ndarray[Any, Any]]:
    """Image i of both halves has i in its first pixel and random others; its label is 3 i + 1 (mod
    10), of the test half 7 i."""
    rng, found = np.random.default_rng(0), {}
    for name, shape in MNIST_FILES.items():
        n = np.arange(shape[0])
        if "images" in name:
            found[name] = rng.integers(0, 256, shape)
            found[name][:, 0, 0] = n
        else:
            found[name] = (3 * n + 1 if "train" in name else 7 * n) % 10
    return found


def write_mnist(folder: Path) -> None:
    """The four files of MNIST in folder/raw."""
    (folder / "raw").mkdir(parents=True, exist_ok=True)
    for name, values in mnist_arrays().items():
        (folder / "raw" / name).write_bytes(idx(values))


def mnist_sums(prefix: str) -> dict[str, str]:
    return {f"{prefix}/raw/{name}": sha256(idx(v)) for name, v in mnist_arrays().items()}


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> None:
    """The made-up files are the published ones of MNIST and Fashion-MNIST."""
    for module in (catalogue, checksums, images_module):
        assert module.CHECKSUMS is checksums.CHECKSUMS
    for prefix in ("MNIST", "FashionMNIST"):
        for name, value in mnist_sums(prefix).items():
            assert name in checksums.CHECKSUMS
            monkeypatch.setitem(checksums.CHECKSUMS, name, value)
