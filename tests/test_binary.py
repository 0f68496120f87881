"""Data of two classes: IJCNN1's files are read as they are written or refused in one line; breast
cancer is scikit-learn's."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
import sklearn.datasets
import torch

from bench.core.settings import BadSetting
from bench.core.task import Context
from tasks.data import binary as data
from tasks.data.binary import binary, read_libsvm
from tasks.data.catalogue import CATALOGUE
from tests.test_import_data import SCRIPT

LINES = "-1 1:0.5 3:-2\n+1 2:1.25 \n1.0 1:-1 2:4 3:7.5e-1\n"
FEATURES = [[0.5, 0.0, -2.0], [0.0, 1.25, 0.0], [-1.0, 4.0, 0.75]]


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data root whose IJCNN1 has three training rows and one validation row of 3 features."""
    monkeypatch.setattr(data, "IJCNN1", {"ijcnn1": 3, "ijcnn1.t": 1})
    monkeypatch.setattr(data, "FEATURES", 3)
    (tmp_path / "ijcnn1").mkdir()
    (tmp_path / "ijcnn1/ijcnn1").write_text(LINES)
    (tmp_path / "ijcnn1/ijcnn1.t").write_text("-1 2:3\n")
    return tmp_path


def test_ijcnn1_has_the_published_numbers_of_rows() -> None:
    assert data.IJCNN1 == {"ijcnn1": 49_990, "ijcnn1.t": 91_701}
    assert data.FEATURES == 22


def test_ijcnn1s_files_are_training_and_validation(small: Path) -> None:
    found = binary("ijcnn1", 5, Context(data_root=small))
    assert found.train.features.tolist() == FEATURES
    assert found.train.labels.tolist() == [-1, 1, 1]
    assert found.val.features.tolist() == [[0, 3, 0]]
    assert found.val.labels.tolist() == [-1]
    assert found.train.features.dtype == found.train.labels.dtype == torch.float64
    assert found.sources == {
        name: hashlib.sha256(text.encode()).hexdigest()
        for name, text in (("ijcnn1", LINES), ("ijcnn1.t", "-1 2:3\n"))
    }


# what stands in the training file, and what is said of it
REFUSED = {
    "a word": ("-1 1:0.5\n+1 x\n1 1:1\n", ""),
    "a value that is none": ("-1 1:0.5\n+1 1:x\n1 1:1\n", "could not convert"),
    "a label 0": ("-1 1:0.5\n1 1:1\n0 1:1\n", "it has the label 0, and not only -1 and 1"),
    "a label that is none": ("-1 1:0.5\n1 1:1\nnan 1:1\n", "it has the label nan"),
    "no label": ("-1 1:0.5\n\n1 1:1\n", "it has 2 rows, not 3"),
    "a feature 0": ("-1 0:0.5\n1 1:1\n1 1:1\n", "Invalid index 0"),
    "a feature too many": ("-1 4:0.5\n1 1:1\n1 1:1\n", "contains 4 features"),
    "a feature twice": ("-1 1:1 1:2\n1 1:1\n1 1:1\n", "should be sorted and unique"),
    "not a number": ("-1 1:nan\n1 1:1\n1 1:1\n", "it has values that are not finite"),
    "infinite": ("-1 1:1\n1 1:-inf\n1 1:1\n", "it has values that are not finite"),
    "too few rows": ("-1 1:1\n1 1:1\n", "it has 2 rows, not 3"),
    "no rows": ("", "it has 0 rows, not 3"),
    "too many rows": (LINES + "1 1:1\n", "it has 4 rows, not 3"),
    "other characters": ("-1 1:1\n\xe9\n", "could not convert"),
    "too many bytes": (f"-1 {'1:1 ' * 3000}\n", "bytes, which is more than 3 rows take"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_ijcnn1_is_refused_in_one_line(case: str, small: Path) -> None:
    """With file, setting, and what to do."""
    text, said = REFUSED[case]
    file = small / "ijcnn1/ijcnn1"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(BadSetting) as error:
        binary("ijcnn1", 0, Context(data_root=small))
    told = str(error.value)
    assert told.startswith(f"task.source=ijcnn1: {file}: ")
    assert said in told
    assert told.endswith(
        "; unpack the LIBSVM collection's ijcnn1.bz2 there, or write task.source=breast_cancer"
    )
    assert "\n" not in told


def test_a_file_that_is_absent_is_named(small: Path) -> None:
    (small / "ijcnn1/ijcnn1.t").unlink()
    with pytest.raises(BadSetting, match=r"ijcnn1\.t: No such file or directory; unpack .*t\.bz2"):
        binary("ijcnn1", 0, Context(data_root=small))


def test_a_line_of_a_label_alone_is_a_row_of_zeros() -> None:
    assert read_libsvm(b"-1\n", 1, 3).features.tolist() == [[0.0, 0.0, 0.0]]


def test_the_catalogue_checks_ijcnn1_by_its_rows(small: Path) -> None:
    CATALOGUE["IJCNN1"].check(small / "ijcnn1")
    (small / "ijcnn1/ijcnn1.t").write_text("2 1:1\n")
    with pytest.raises(BadSetting, match="the label 2"):
        CATALOGUE["IJCNN1"].check(small / "ijcnn1")


def test_ijcnn1_is_imported_if_its_rows_are_right(small: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    assert SCRIPT.bring("IJCNN1", small, root) == "imported"
    assert (root / "ijcnn1/ijcnn1").read_text() == LINES
    assert SCRIPT.bring("IJCNN1", small, root) == "already there, verified"
    (small / "ijcnn1/ijcnn1").write_text("1\n")
    with pytest.raises(BadSetting, match="it has 1 rows"):
        SCRIPT.bring("IJCNN1", small, tmp_path / "other")
    assert not (tmp_path / "other/ijcnn1").exists()


def test_breast_cancer_is_scikit_learns_divided_and_standardised(tmp_path: Path) -> None:
    """The training rows have mean 0 and mean square length 1; what is scaled back is the data."""
    raw = sklearn.datasets.load_breast_cancer()
    found = binary("breast_cancer", 3, Context(data_root=tmp_path))
    assert (len(found.train.labels), len(found.val.labels)) == (284, 285)
    train = found.train.features
    torch.testing.assert_close(train.mean(0), torch.zeros(30).double(), rtol=0, atol=1e-14)
    variances = train.square().mean(0)
    torch.testing.assert_close(
        variances, torch.full((30,), 1 / 30, dtype=torch.float64), rtol=1e-12, atol=0
    )
    # the scaling is affine in each feature: two rows give it, and every row must follow it
    both = torch.cat([train, found.val.features]).numpy()
    labels = torch.cat([found.train.labels, found.val.labels]).numpy()
    order = np.lexsort(both.T[::-1])
    ranked = np.lexsort(raw.data.T[::-1])
    for k in range(30):
        slope, shift = np.polyfit(both[order, k], raw.data[ranked, k], 1)
        np.testing.assert_allclose(slope * both[order, k] + shift, raw.data[ranked, k], atol=1e-8)
    assert (labels[order] == 2 * raw.target[ranked] - 1).all()
    checksum = hashlib.sha256(raw.data.tobytes() + raw.target.tobytes()).hexdigest()
    assert found.sources == {"sklearn.datasets.load_breast_cancer": checksum}


def test_the_instance_divides_breast_cancer(tmp_path: Path) -> None:
    a, b, c = (binary("breast_cancer", k, Context(seed=s)).train.labels for k, s in
               ((0, 0), (0, 1), (1, 0)))  # fmt: skip
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
