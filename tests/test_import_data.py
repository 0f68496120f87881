"""Data sets from a local folder: checked before and after, whole or not at all; made-up files."""

import gzip
import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torchvision.datasets import MNIST

from bench.core.settings import BadSetting
from tasks.data import catalogue
from tasks.data.newsgroups import PICKLE
from tasks.data.pickles import load_plain
from tests import folders
from tests.conftest import ROOT
from tests.folders import published, sha256


def script() -> ModuleType:
    """scripts/import_data.py as a module."""
    spec = importlib.util.spec_from_file_location("import_data", ROOT / "scripts/import_data.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["import_data"] = module
    spec.loader.exec_module(module)
    return module


SCRIPT = script()


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """The script in this process: (exit code, standard output, standard error)."""

    def run(*arguments: Any) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["import_data", *map(str, arguments)])
        code = SCRIPT.main()
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


@pytest.fixture
def source(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A folder with MNIST and Fashion-MNIST."""
    request.getfixturevalue(published.__name__)
    for name in ("MNIST", "FashionMNIST"):
        folders.write_mnist(tmp_path / "from" / name)
    return tmp_path / "from"


def files(root: Path) -> dict[str, bytes]:
    found = sorted(path for path in root.rglob("*") if path.is_file())
    return {str(path.relative_to(root)): path.read_bytes() for path in found}


def test_sets_are_copied_and_found_again(source: Path, call: Any, tmp_path: Path) -> None:
    """All that FROM holds, told one by one; the second time they are checked and left alone."""
    root = tmp_path / "root"
    code, out, err = call(source, "--root", root)
    assert (code, err) == (0, "")
    assert out == (
        "MNIST: imported\nFashionMNIST: imported\n20news: not in FROM\nCIFAR100: not in FROM\n"
        "Omniglot: not in FROM\nIJCNN1: not in FROM\n"
    )
    assert files(root) == files(source)
    assert len(MNIST(str(root), train=True)) == 12
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    code, out, _ = call(source, "--root", root, "--only", "MNIST", "FashionMNIST")
    assert (code, out.count("already there, verified\n"), len(out.splitlines())) == (0, 2, 2)
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before


def test_only_what_is_named_is_imported(source: Path, call: Any, tmp_path: Path) -> None:
    code, out, _ = call(source, "--root", tmp_path / "root", "--only", "FashionMNIST")
    assert (code, out) == (0, "FashionMNIST: imported\n")
    assert [path.name for path in (tmp_path / "root").iterdir()] == ["FashionMNIST"]


@pytest.mark.parametrize("other", [None, "covertype"])
def test_newsgroups_goes_into_a_folder_that_is_there(
    other: str | None, call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As scikit-learn leaves an empty one, and keeps other data sets in the same."""
    source, root = tmp_path / "from", tmp_path / "root"
    for folder in (source, root):
        (folder / "scikit_learn_data").mkdir(parents=True)
    (source / PICKLE).write_bytes(b"archive")
    if other:
        (root / "scikit_learn_data" / other).mkdir()
    command = (source, "--root", root, "--only", "20news")
    code, _, err = call(*command)
    assert (code, "20news-bydate_py3.pkz is not the published file" in err) == (2, True)
    monkeypatch.setitem(catalogue.CHECKSUMS, str(PICKLE), sha256(b"archive"))
    assert call(*command)[:2] == (0, "20news: imported\n")
    assert call(*command)[:2] == (0, "20news: already there, verified\n")
    kept = sorted(path.name for path in (root / "scikit_learn_data").iterdir())
    assert kept == sorted(filter(None, ["20news-bydate_py3.pkz", other]))


def test_nothing_to_import_is_refused(source: Path, call: Any, tmp_path: Path) -> None:
    code, out, err = call(source, "--root", tmp_path / "root", "--only", "20news", "Omniglot")
    assert (code, out) == (2, "")
    assert err == f"import_data: {source} holds none of 20news, Omniglot\n"
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize("damage", ["changed", "absent"])
def test_a_damaged_source_is_refused_and_leaves_nothing(
    damage: str, source: Path, call: Any, tmp_path: Path
) -> None:
    """What came before stays; of the damaged set nothing does."""
    file = source / "FashionMNIST/raw/t10k-labels-idx1-ubyte"
    if damage == "absent":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes() + b"x")
    code, out, err = call(source, "--root", tmp_path / "root")
    assert (code, out) == (2, "MNIST: imported\n")
    assert err.startswith(f"import_data: {file} is not the published file")
    assert [path.name for path in (tmp_path / "root").iterdir()] == ["MNIST"]


def test_a_damaged_target_is_refused_and_kept(source: Path, call: Any, tmp_path: Path) -> None:
    root = tmp_path / "root"
    call(source, "--root", root, "--only", "MNIST")
    file = root / "MNIST/raw/train-labels-idx1-ubyte"
    file.write_bytes(b"other")
    code, out, err = call(source, "--root", root, "--only", "MNIST")
    assert (code, out) == (2, "")
    assert "train-labels-idx1-ubyte is not the published file" in err
    assert file.read_bytes() == b"other"


def test_what_was_made_wrong_is_not_put_in_place(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target is made beside its place and checked there, and goes if that fails."""
    root, seen = tmp_path / "root", []

    def copy(a: Path, b: Path) -> None:
        seen.append(b)
        Path(b).write_bytes(b"half")

    monkeypatch.setattr(shutil, "copyfile", copy)
    with pytest.raises(BadSetting, match="is not the published file"):
        SCRIPT.bring("MNIST", source, root)
    assert len(seen) == 4
    assert all(root / f".MNIST.{os.getpid()}" in path.parents for path in seen)
    assert list(root.iterdir()) == []


def test_places_are_those_of_the_user_unless_told_otherwise(
    source: Path, call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("BENCH_DATA", raising=False)
    assert call("~/from", "--only", "MNIST")[0] == 0
    assert files(tmp_path / ".cache/bilevel-bench/MNIST") == files(source / "MNIST")
    monkeypatch.setenv("BENCH_DATA", "~/elsewhere")
    assert call("~/from", "--only", "MNIST")[0] == 0
    assert files(tmp_path / "elsewhere/MNIST") == files(source / "MNIST")
    assert call("~/from", "--root", "~/third", "--only", "MNIST")[0] == 0
    assert files(tmp_path / "third/MNIST") == files(source / "MNIST")


def test_each_set_has_its_sources() -> None:
    assert {name: len(made.sources) for name, made in SCRIPT.DATA_SETS.items()} == {
        "MNIST": 4, "FashionMNIST": 4, "20news": 1, "CIFAR100": 4, "Omniglot": 3,
        "IJCNN1": 2,
    }  # fmt: skip
    assert set(SCRIPT.DATA_SETS) == set(catalogue.CATALOGUE)


def strips(images: np.ndarray[Any, Any]) -> bytes:
    """A zip of one lossless strip per class, of its images one below the other, and a note."""
    found = io.BytesIO()
    with zipfile.ZipFile(found, "w") as archive:
        archive.writestr("notes.txt", "no strip")
        for k in reversed(range(100)):
            strip, content = images[k].reshape(-1, 32, 3), io.BytesIO()
            Image.fromarray(strip).save(content, "webp", lossless=True, method=0)
            archive.writestr(f"{k:02}.webp", content.getvalue())
    return found.getvalue()


@pytest.fixture
def cifar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, np.ndarray[Any, Any]]:
    """FROM has a CIFAR-100 of one training and two test images per class: [100, n, 32, 32, 3]."""
    rng, folder = np.random.default_rng(0), tmp_path / "from/cifar-100"
    folder.mkdir(parents=True)
    coarse = [(7 * k) % 20 for k in range(100)]
    images = {
        split: np.repeat(rng.integers(0, 256, (100, n, 8, 32, 3), dtype=np.uint8), 4, axis=2)
        for split, n in (("train", 1), ("test", 2))
    }
    content = {
        "classes.json": json.dumps({"fine_to_coarse": coarse}).encode(), "meta": b"names",
        "train_webp.zip": strips(images["train"]), "test_webp.zip": strips(images["test"]),
    }  # fmt: skip
    for name, value in content.items():
        (folder / name).write_bytes(value)
        for sums in (catalogue.SOURCES, SCRIPT.SOURCES):
            monkeypatch.setitem(sums, f"cifar-100/{name}", sha256(value))
    for split, values in images.items():
        n = values.shape[1]
        fine = bytes(k for k in range(100) for _ in range(n))
        pixels = values.transpose(0, 1, 4, 2, 3).tobytes()
        made = sha256(pixels + fine + bytes(coarse[k] for k in fine))
        monkeypatch.setitem(catalogue.DERIVED, f"cifar-100 {split}", made)
    return images


def test_cifar_is_converted(cifar: dict[str, Any], tmp_path: Path) -> None:
    """It becomes the pickles of cifar-100-python: rows of 3,072 numbers, all reds first, classes
    in order."""
    root = tmp_path / "root"
    assert SCRIPT.bring("CIFAR100", tmp_path / "from", root) == "imported"
    target = root / "cifar-100-python"
    assert sorted(path.name for path in target.iterdir()) == [
        "classes.json", "imported.json", "meta", "test", "train",
    ]  # fmt: skip
    assert (target / "meta").read_bytes() == b"names"
    for split, n in (("train", 1), ("test", 2)):
        found = load_plain(target / split)
        assert found["fine_labels"] == [k for k in range(100) for _ in range(n)]
        assert found["coarse_labels"] == [(7 * k) % 20 for k in found["fine_labels"]]
        assert found["data"].shape == (100 * n, 3072)
        for channel in range(3):
            plane = cifar[split].reshape(-1, 32, 32, 3)[:, :, :, channel].reshape(-1, 1024)
            assert np.array_equal(found["data"][:, 1024 * channel : 1024 * (channel + 1)], plane)
    assert SCRIPT.bring("CIFAR100", tmp_path / "from", root) == "already there, verified"


def test_cifar_of_other_pixels_is_refused(
    cifar: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(catalogue.DERIVED, "cifar-100 test", "0")
    with pytest.raises(BadSetting, match=r"test_webp\.zip is not what the published files give"):
        SCRIPT.bring("CIFAR100", tmp_path / "from", tmp_path / "root")
    assert list((tmp_path / "root").iterdir()) == []


def test_omniglot_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "from/omniglot-py"
    folder.mkdir(parents=True)
    content = {"splits_vinyals.json": b"{}"}
    for part in ("background", "evaluation"):
        name, drawing = f"images_{part}/A/c/1.png", f"a drawing of the {part}".encode()
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w:xz") as tar:
            entry = tarfile.TarInfo(name)
            entry.size = len(drawing)
            tar.addfile(entry, io.BytesIO(drawing))
        content[f"images_{part}.tar.xz"] = archive.getvalue()
        monkeypatch.setitem(catalogue.DERIVED, f"omniglot {part}", sha256(b"A/c/1.png" + drawing))
    for name, value in content.items():
        (folder / name).write_bytes(value)
        monkeypatch.setitem(catalogue.SOURCES, f"omniglot-py/{name}", sha256(value))
    root = tmp_path / "root"
    assert SCRIPT.bring("Omniglot", tmp_path / "from", root) == "imported"
    assert sorted(files(root)) == [
        "omniglot-py/images_background/A/c/1.png", "omniglot-py/images_evaluation/A/c/1.png",
        "omniglot-py/splits_vinyals.json",
    ]  # fmt: skip


@pytest.mark.data
def test_mnist_is_as_torchvision_reads_it_and_a_second_run_leaves_it(data_root: Path) -> None:
    assert len(MNIST(str(data_root), train=True)) == 60_000
    assert MNIST(str(data_root), train=False).targets[:4].tolist() == [7, 2, 1, 0]
    command = [sys.executable, str(ROOT / "scripts/import_data.py"), str(data_root)]
    done = subprocess.run(  # its layout is a source's too
        [*command, "--root", str(data_root), "--only", "MNIST"],
        capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "MNIST: already there, verified\n")


def test_files_may_be_compressed_or_in_pieces(source: Path, call: Any, tmp_path: Path) -> None:
    """They are put together before they are checked, and nothing of that stays."""
    before, root = files(source), tmp_path / "root"
    for k, path in enumerate(sorted((source / "MNIST/raw").iterdir())):
        content = path.read_bytes()
        if k == 0:
            continue  # one stays as it is
        path.unlink()
        if k == 1:
            for i in range(0, len(content), 5):  # more than ten pieces
                path.with_name(f"{path.name}.part{i // 5}").write_bytes(content[i : i + 5])
        else:
            path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(content))
    code, out, err = call(source, "--root", root)
    assert (code, err) == (0, "")
    assert out.startswith("MNIST: imported\nFashionMNIST: imported\n")
    assert files(root) == before

    (source / "FashionMNIST/raw/t10k-labels-idx1-ubyte").unlink()
    cut = source / "FashionMNIST/raw/t10k-labels-idx1-ubyte.gz"
    cut.write_bytes(gzip.compress(b"labels")[:-6])
    code, out, err = call(source, "--root", tmp_path / "other", "--only", "FashionMNIST")
    assert (code, out) == (2, "")
    assert f"{cut} is no whole compressed file" in err
    assert not list((tmp_path / "other").iterdir())
    cut.write_bytes(gzip.compress(b"labels"))
    code, out, err = call(source, "--root", tmp_path / "other", "--only", "FashionMNIST")
    assert (code, out) == (2, "")
    assert "is not the published file" in err


def test_a_piece_that_has_not_come_is_missed(source: Path, call: Any, tmp_path: Path) -> None:
    path = source / "MNIST/raw/train-images-idx3-ubyte"
    content = path.read_bytes()
    path.unlink()
    path.with_name(f"{path.name}.part0").write_bytes(content[:50])
    path.with_name(f"{path.name}.part1.tmp").write_bytes(content[50:])  # half a download
    code, _, err = call(source, "--root", tmp_path / "root", "--only", "MNIST")
    assert code == 2
    assert "train-images-idx3-ubyte is not the published file" in err
    path.with_name(f"{path.name}.part1").write_bytes(content[50:])
    assert call(source, "--root", tmp_path / "root", "--only", "MNIST")[0] == 0
