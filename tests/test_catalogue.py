"""The data sets' states, checks and fetches, on made-up folders."""

import hashlib
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from torchvision.datasets import CIFAR100

from bench.core.settings import BadSetting
from bench.core.task import Context
from tasks.data import catalogue, classes
from tasks.data.catalogue import CATALOGUE, DataSet, DataState, check_derived, expect, state, states
from tasks.data.pickles import ALLOWED, load_plain
from tests import folders
from tests.folders import published, sha256


def broken(target: Path) -> None:
    raise BadSetting(f"{target.name} is broken")


def whole(target: Path) -> None:
    assert target.exists()


def fetching(root: Path) -> None:
    (root / "place").mkdir(parents=True)


def failing(root: Path) -> None:
    raise OSError("no\nnetwork " + "x" * 200)


IMPORT = "scripts/import_data.py FROM"


@pytest.mark.parametrize(
    ("there", "check", "fetch", "download", "word", "damaged", "advice"),
    [
        (True, whole, None, False, "whole", False, ""),
        (True, whole, failing, True, "whole", False, ""),
        (True, broken, None, True, "damaged: place is broken", True, f"delete PLACE; {IMPORT}"),
        (True, broken, fetching, False, "damaged: place is broken", True,
         f"delete PLACE; --download or {IMPORT}"),
        (False, whole, None, False, "absent", False, IMPORT),
        (False, whole, None, True, "absent", False, IMPORT),
        (False, whole, fetching, False, "absent", False, f"--download or {IMPORT}"),
        (False, whole, fetching, True, "whole", False, ""),
        (False, broken, fetching, True, "damaged: place is broken", True,
         f"delete PLACE; --download or {IMPORT}"),
        (False, whole, lambda root: None, True, "absent", False, IMPORT),
        (False, whole, failing, True, f"absent: it did not come ({'no network ' + 'x' * 69})", True,
         IMPORT),
    ],
)  # fmt: skip
def test_states(
    there: bool, check: Any, fetch: Any, download: bool, word: str, damaged: bool, advice: str,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A set is whole, absent or damaged, and the state says what to do. Only an absent set is
    fetched, and it is checked then too."""
    monkeypatch.setitem(CATALOGUE, "X", DataSet("place", check, fetch))
    if there:
        (tmp_path / "place").mkdir()
    advice = advice.replace("PLACE", str(tmp_path / "place"))
    assert state("X", tmp_path, download) == DataState("X", word, damaged, advice)


def test_archives_that_nobody_has_unpacked_are_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are what scripts/import_data.py begins with: nothing is to be deleted."""
    monkeypatch.setitem(CATALOGUE, "X", DataSet("place", broken, None))
    (tmp_path / "place").mkdir()
    (tmp_path / "place" / "images.tar.xz").touch()
    packed = DataState("X", "absent: its archives are not unpacked", False, IMPORT)
    assert state("X", tmp_path, False) == packed
    (tmp_path / "place" / "images").mkdir()
    assert state("X", tmp_path, False).damaged


@pytest.mark.parametrize("error", [BadSetting("x"), OSError("x"), ValueError("x")])
def test_whatever_a_check_finds_is_told(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(target: Path) -> None:
        raise error

    monkeypatch.setitem(CATALOGUE, "X", DataSet("", check, None))
    assert state("X", tmp_path, False).word == "damaged: x"


def test_states_are_of_the_named_sets_or_of_all(tmp_path: Path) -> None:
    sets = ["MNIST", "FashionMNIST", "20news", "CIFAR100", "Omniglot", "IJCNN1"]
    assert [found.name for found in states([], tmp_path, False)] == sets
    assert [found.name for found in states(["Omniglot", "MNIST"], tmp_path, False)] == [
        "Omniglot", "MNIST",
    ]  # fmt: skip
    with pytest.raises(BadSetting) as error:
        states(["MNIST", "mnist"], tmp_path, False)
    assert str(error.value) == f"mnist: no such data set; there is {', '.join(sets)}"


def test_each_set_is_fetched_by_its_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    for name in ("MNIST", "FashionMNIST", "CIFAR100"):
        monkeypatch.setattr(
            f"torchvision.datasets.{name}",
            lambda *a, name=name, **k: asked.append((name, a, k)),
        )
    monkeypatch.setattr(
        "sklearn.datasets.fetch_20newsgroups", lambda **k: asked.append(("20news", (), k))
    )
    targets = {
        "MNIST": "MNIST", "FashionMNIST": "FashionMNIST",
        "20news": "scikit_learn_data/20news-bydate_py3.pkz",
        "CIFAR100": "cifar-100-python", "Omniglot": "omniglot-py", "IJCNN1": "ijcnn1",
    }  # fmt: skip
    assert {name: kept.target for name, kept in CATALOGUE.items()} == targets
    for name, kept in CATALOGUE.items():
        if name in ("Omniglot", "IJCNN1"):
            assert kept.fetch is None
            continue
        assert kept.fetch is not None
        kept.fetch(tmp_path)
        got, arguments, named = asked.pop()
        assert got == name
        if name == "20news":
            home = str(tmp_path / "scikit_learn_data")
            assert named == {"data_home": home, "subset": "all"}
        else:
            assert (arguments, named) == ((str(tmp_path),), {"download": True})


@pytest.mark.usefixtures(published.__name__)
@pytest.mark.parametrize("name", ["MNIST", "FashionMNIST"])
def test_published_files_are_checked_one_by_one(name: str, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    folders.write_mnist(target)
    CATALOGUE[name].check(target)
    assert catalogue.published_files(name) == tuple(sorted(folders.mnist_sums(name)))
    for file in (target / "raw").iterdir():
        for damage in (lambda f: f.write_bytes(b"x"), lambda f: f.unlink()):
            damage(file)
            with pytest.raises(BadSetting, match=f"{file.name} is not the published file"):
                CATALOGUE[name].check(target)
            folders.write_mnist(target)
    CATALOGUE[name].check(target)


def test_the_newsgroups_archive_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = "scikit_learn_data/20news-bydate_py3.pkz"
    file = tmp_path / "20news-bydate_py3.pkz"
    file.write_bytes(b"archive")
    with pytest.raises(BadSetting, match="not the published file"):
        CATALOGUE["20news"].check(file)
    monkeypatch.setitem(catalogue.CHECKSUMS, key, sha256(b"archive"))
    CATALOGUE["20news"].check(file)


def test_a_file_is_expected_with_its_checksum(tmp_path: Path) -> None:
    file = tmp_path / "x"
    for there in (False, True):
        if there:
            file.write_bytes(b"1")
        with pytest.raises(BadSetting) as error:
            expect(file, sha256(b"2"))
        assert str(error.value) == (
            f"{file} is not the published file: SHA-256 is not {sha256(b'2')[:12]}..."
        )
    expect(file, sha256(b"1"))


def test_what_was_made_is_held_against_what_it_should_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(catalogue.DERIVED, "x", sha256(b"abc"))
    check_derived("x", [b"a", b"bc"], Path("p"))
    for pieces in ([b"ab"], [b"bc", b"a"], []):
        with pytest.raises(BadSetting) as error:
            check_derived("x", pieces, Path("p"))
        found = sha256(b"".join(pieces))
        assert str(error.value) == f"p is not what the published files give ({found})"


def test_cifar_as_torchvision_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file is held against the MD5 that torchvision has."""
    names = ("train", "test", "more")
    sums = [[name, hashlib.md5(name.encode()).hexdigest()] for name in names]
    monkeypatch.setattr(CIFAR100, "train_list", sums[:1])
    monkeypatch.setattr(CIFAR100, "test_list", sums[1:])
    for name in names:
        (tmp_path / name).write_text(name)
    CATALOGUE["CIFAR100"].check(tmp_path)
    for name in names:
        for damage in (lambda f: f.write_text("x"), lambda f: f.unlink()):
            damage(tmp_path / name)
            with pytest.raises(BadSetting, match=f"{name} is not the published file$"):
                CATALOGUE["CIFAR100"].check(tmp_path)
            (tmp_path / name).write_text(name)


def test_cifar_as_it_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names and classes are the published ones, arrays those that were made."""
    for name in ("meta", "classes.json"):
        monkeypatch.setitem(catalogue.SOURCES, f"cifar-100/{name}", sha256(name.encode()))
    names = ("meta", "classes.json", "train", "test")
    for name in names:
        (tmp_path / name).write_text(name)
    sums = {name: sha256(name.encode()) for name in ("train", "test")}
    (tmp_path / "imported.json").write_text(json.dumps(sums))
    CATALOGUE["CIFAR100"].check(tmp_path)
    for name in names:
        (tmp_path / name).write_text("x")
        with pytest.raises(BadSetting, match=f"{name} is not the published file"):
            CATALOGUE["CIFAR100"].check(tmp_path)
        (tmp_path / name).write_text(name)


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "5", "{}", '{"train": "x"}', '{"train": "x", "test": 5}', "[" * 100_000, "\x00",
     '{"train": "x", "test": "x", "../more": "x"}'],
    ids=lambda content: content[:20],
)  # fmt: skip
def test_damaged_sums_of_imported_files_are_told_in_one_line(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both by the command that looks at the data and in a run, which says what to do too."""
    folder = tmp_path / CATALOGUE["CIFAR100"].target
    folder.mkdir()
    for name in ("meta", "classes.json"):
        monkeypatch.setitem(catalogue.SOURCES, f"cifar-100/{name}", sha256(name.encode()))
        (folder / name).write_text(name)
    (folder / "imported.json").write_text(content)
    words = f"{folder / 'imported.json'} does not have the SHA-256 of train and of test"
    assert state("CIFAR100", tmp_path, False).word == f"damaged: {words}"
    with pytest.raises(BadSetting) as refused:
        classes.halves("cifar100", Context(data_root=tmp_path))
    said = str(refused.value)
    assert said.startswith(
        f"task.data=cifar100: {words}; delete {folder}, and write data.download=true"
    )


def test_omniglots_drawings_are_checked_with_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are checked in the order of the folders' names, part by part: A comes before A.b,
    which a plain sort of the paths would turn round."""
    (tmp_path / "splits_vinyals.json").write_text("{}")
    monkeypatch.setitem(catalogue.SOURCES, "omniglot-py/splits_vinyals.json", sha256(b"{}"))
    names = ["A/c1/1.png", "A/c1/2.png", "A.b/c1/1.png"]
    for part in ("background", "evaluation"):
        pieces = []
        for name in names:
            file = tmp_path / f"images_{part}" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{part} {name}")
            pieces += [name, f"{part} {name}"]
        (tmp_path / f"images_{part}" / "notes.txt").write_text("not a drawing")
        monkeypatch.setitem(catalogue.DERIVED, f"omniglot {part}", sha256("".join(pieces).encode()))
    check = CATALOGUE["Omniglot"].check
    check(tmp_path)
    for part in ("background", "evaluation"):
        file = tmp_path / f"images_{part}" / names[1]
        content = file.read_text()
        file.write_text("x")
        with pytest.raises(BadSetting, match=f"images_{part} is not what the published files give"):
            check(tmp_path)
        file.write_text(content)
        file.rename(file.with_name("3.png"))
        with pytest.raises(BadSetting, match=f"images_{part}"):
            check(tmp_path)
        file.with_name("3.png").rename(file)
    check(tmp_path)
    (tmp_path / "splits_vinyals.json").write_text("[]")
    with pytest.raises(BadSetting, match="splits_vinyals"):
        check(tmp_path)


def test_pickles_of_python_2_are_read() -> None:
    """Strings of bytes come as latin-1, which numpy's old arrays need."""
    assert load_plain(b"(dp0\nS'data'\np1\nS'\\xe9'\np2\ns.") == {"data": "\xe9"}


def test_a_pickle_is_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(pickle.dumps([1, {"a": "b"}]))
    assert load_plain(tmp_path / "x") == [1, {"a": "b"}]


@pytest.mark.parametrize(
    "named",
    [("os", "system"), ("builtins", "eval"), ("numpy", "load"), ("collections", "Counter"),
     ("sklearn.utils", "check_array"), ("_codecs", "lookup")],
)  # fmt: skip
def test_what_is_not_an_arrays_part_is_not_named(named: tuple[str, str]) -> None:
    module, name = named
    assert named not in ALLOWED
    with pytest.raises(pickle.UnpicklingError) as error:
        load_plain(f"c{module}\n{name}\n.".encode())
    assert str(error.value) == f"it names {module}.{name}, and only arrays are read"
