"""Tabular data: every file's numbers come as they are written, under its checksum."""

import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import sklearn.datasets
import torch

from bench.core.settings import BadSetting
from bench.core.task import Context
from tasks.data.tables import table

LINES = "3 1:0.5 3:-2\n1 2:1.25\n12 1:-1 2:4 3:0.75\n"
FEATURES = [[0.5, 0.0, -2.0], [0.0, 1.25, 0.0], [-1.0, 4.0, 0.75]]
FILES = {"aloi": "aloi.scale", "sensorless": "Sensorless.scale"}


@pytest.mark.parametrize("name", FILES)
def test_a_libsvm_file(name: Any, tmp_path: Path) -> None:
    """Lines "class column:value ..." with columns from 1."""
    (tmp_path / "libsvm").mkdir()
    file = tmp_path / "libsvm" / FILES[name]
    file.write_text(LINES)
    features, classes, sources = table(name, Context(data_root=tmp_path))
    assert features.tolist() == FEATURES
    assert classes.tolist() == [3, 1, 12]
    assert (features.dtype, classes.dtype) == (torch.float32, torch.int64)
    assert sources == {f"libsvm/{FILES[name]}": hashlib.sha256(LINES.encode()).hexdigest()}
    file.write_text("not a file of that kind\n")
    with pytest.raises(BadSetting, match=rf"task\.source={name}: .*{FILES[name]}"):
        table(name, Context(data_root=tmp_path))


def test_digits_are_scikit_learns(tmp_path: Path) -> None:
    features, classes, sources = table("digits", Context(data_root=tmp_path))
    digits = sklearn.datasets.load_digits()
    assert np.array_equal(features.numpy(), digits.data)
    assert np.array_equal(classes.numpy(), digits.target)
    assert (features.dtype, classes.dtype) == (torch.float32, torch.int64)
    checksum = hashlib.sha256(digits.data.tobytes() + digits.target.tobytes()).hexdigest()
    assert sources == {"sklearn.datasets.load_digits": checksum}


@pytest.mark.parametrize("download", [False, True])
def test_covertype_is_where_scikit_learn_keeps_it(
    download: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below data.root, fetched only on the user's word."""
    asked: dict[str, Any] = {}
    data, target = np.array(FEATURES), np.array([7, 1, 2], dtype=np.int32)

    def fetch(**settings: Any) -> SimpleNamespace:
        asked.update(settings)
        return SimpleNamespace(data=data, target=target)

    monkeypatch.setattr(sklearn.datasets, "fetch_covtype", fetch)
    context = Context(data_root=tmp_path, download=download)
    features, classes, sources = table("covertype", context)
    home = str(tmp_path / "scikit_learn_data")
    assert asked == {"data_home": home, "download_if_missing": download}
    assert features.tolist() == FEATURES
    assert (features.dtype, classes.dtype) == (torch.float32, torch.int64)
    assert classes.tolist() == [7, 1, 2]
    checksum = hashlib.sha256(data.tobytes() + target.tobytes()).hexdigest()
    assert sources == {"sklearn.datasets.fetch_covtype": checksum}


@pytest.mark.parametrize("name", [*FILES, "covertype"])
def test_an_absent_data_set_is_named(name: Any, tmp_path: Path) -> None:
    """What else to write is said: a download only where there is one."""
    with pytest.raises(BadSetting) as refused:
        table(name, Context(data_root=tmp_path))
    said = str(refused.value)
    place = "scikit_learn_data" if name == "covertype" else f"libsvm/{FILES[name]}: No such file"
    assert f"task.source={name}: {tmp_path}/{place}" in said
    assert "put the file there, or write task.source=digits" in said
    assert said.endswith("or data.download=true") == (name == "covertype")
    assert not list(tmp_path.iterdir())  # scikit-learn makes a folder there
