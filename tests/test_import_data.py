"""Data sets from a local folder: the real files, checked, whole or not at all."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from torchvision.datasets import MNIST

from tests.conftest import ROOT


def imported(source: Path, root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    script = [sys.executable, str(ROOT / "scripts" / "import_data.py"), str(source)]
    return subprocess.run(
        [*script, "--root", str(root), *arguments], capture_output=True, text=True, cwd=ROOT
    )


@pytest.mark.data
def test_mnist_is_as_torchvision_reads_it_and_a_second_run_leaves_it(data_root: Path) -> None:
    assert len(MNIST(str(data_root), train=True)) == 60_000
    assert MNIST(str(data_root), train=False).targets[:4].tolist() == [7, 2, 1, 0]
    done = imported(data_root, data_root, "--only", "MNIST")  # its layout is a source's too
    assert (done.returncode, done.stdout) == (0, "MNIST: already there, verified\n")


@pytest.mark.data
def test_a_damaged_source_is_refused_and_leaves_nothing(data_root: Path, tmp_path: Path) -> None:
    shutil.copytree(data_root / "MNIST", tmp_path / "from" / "MNIST")
    with (tmp_path / "from/MNIST/raw/t10k-labels-idx1-ubyte").open("ab") as file:
        file.write(b"x")
    done = imported(tmp_path / "from", tmp_path / "root", "--only", "MNIST")
    assert done.returncode == 2
    assert "t10k-labels-idx1-ubyte is not the published file" in done.stderr
    assert not (tmp_path / "root").exists()


def test_a_folder_without_data_sets_is_refused(tmp_path: Path) -> None:
    done = imported(tmp_path, tmp_path / "root")
    assert done.returncode == 2
    assert "holds none of MNIST" in done.stderr
    assert not (tmp_path / "root").exists()
