"""The data sets that the tasks read: where each lies below a data root, and whether it is whole."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.core.settings import BadSetting
from tasks.data.binary import ijcnn1
from tasks.data.checksums import CHECKSUMS, DERIVED, SOURCES, sha256
from tasks.data.fetching import one_at_a_time
from tasks.data.newsgroups import PICKLE


@dataclass(frozen=True)
class DataSet:
    """A data set of files.

    target: its file or folder below the data root. check(path of the target) raises BadSetting if
    the target is not whole. fetch(data root) brings the data set from where its authors keep it;
    None: it is not there in the form that the tasks read.
    """

    target: str
    check: Callable[[Path], None]
    fetch: Callable[[Path], None] | None


@dataclass(frozen=True)
class DataState:
    """What is below the data root of a data set.

    word: "whole", "absent", or "damaged: ..."; an absence may have its reason. damaged: whether
    something went wrong. advice: how to get the data set.
    """

    name: str
    word: str
    damaged: bool
    advice: str


def states(names: list[str], root: Path, download: bool) -> Iterator[DataState]:
    """The state of each of these data sets; of all, if no names are given. download: what is absent
    is fetched first. Raises BadSetting for a name that does not exist."""
    for name in names:
        if name not in CATALOGUE:
            raise BadSetting(f"{name}: no such data set; there is {', '.join(CATALOGUE)}")
    return (state(name, root, download) for name in names or CATALOGUE)


def state(name: str, root: Path, download: bool) -> DataState:
    """The state of one data set; download: it is fetched first if it is absent."""
    kept = CATALOGUE[name]
    target = root / kept.target
    with one_at_a_time(root, download):
        if not target.exists() and download and kept.fetch is not None:
            try:
                kept.fetch(root)
            except (RuntimeError, OSError) as error:
                reason = " ".join(str(error).split())[:80]
                return DataState(
                    name, f"absent: it did not come ({reason})", True, _advice(kept, False)
                )
    if not target.exists():
        return DataState(name, "absent", False, _advice(kept, not download))
    if is_packed(target):
        return DataState(name, "absent: its archives are not unpacked", False, _advice(kept, False))
    try:
        kept.check(target)
    except (BadSetting, OSError, ValueError) as error:
        return DataState(name, f"damaged: {error}", True, f"delete {target}; {_advice(kept, True)}")
    return DataState(name, "whole", False, "")


def is_packed(target: Path) -> bool:
    """Whether a folder has archives and no folder that came out of one."""
    inside = list(target.iterdir()) if target.is_dir() else []
    return any(".tar" in path.suffixes for path in inside) and not any(p.is_dir() for p in inside)


def _advice(kept: DataSet, may_download: bool) -> str:
    ways = ["--download"] if may_download and kept.fetch else []
    return " or ".join([*ways, "scripts/import_data.py FROM"])


def published_files(prefix: str) -> tuple[str, ...]:
    """The files of a data set that is read as published."""
    return tuple(name for name in CHECKSUMS if name.startswith(f"{prefix}/"))


def check_published(prefix: str) -> Callable[[Path], None]:
    """The check of a data set that is read as published: each file has its published SHA-256."""

    def check(target: Path) -> None:
        for name in published_files(prefix):
            expect(target / Path(name).relative_to(prefix), CHECKSUMS[name])

    return check


def expect(path: Path, checksum: str) -> None:
    """Raises BadSetting unless the file is there with this SHA-256."""
    if not path.is_file() or sha256(path) != checksum:
        raise BadSetting(f"{path} is not the published file: SHA-256 is not {checksum[:12]}...")


def check_cifar(target: Path) -> None:
    """Raises BadSetting unless this is CIFAR-100 as torchvision downloads it, or as
    scripts/import_data.py made it from files that it had checked."""
    if not (target / "imported.json").is_file():
        from torchvision.datasets import CIFAR100

        for name, md5 in [*CIFAR100.train_list, *CIFAR100.test_list]:
            path = target / name
            if not path.is_file() or hashlib.md5(path.read_bytes()).hexdigest() != md5:
                raise BadSetting(f"{path} is not the published file")
        return
    for name in ("meta", "classes.json"):
        expect(target / name, SOURCES[f"cifar-100/{name}"])
    for split, checksum in imported_sums(target / "imported.json").items():
        expect(target / split, checksum)


def imported_sums(path: Path) -> dict[str, str]:
    """The SHA-256 of the files that scripts/import_data.py made, by their names; raises BadSetting
    if they cannot be read."""
    try:
        sums = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        sums = None
    whole = isinstance(sums, dict) and set(sums) == {"train", "test"}
    if not whole or not all(isinstance(checksum, str) for checksum in sums.values()):
        raise BadSetting(f"{path} does not have the SHA-256 of train and of test")
    return dict(sums)


def check_omniglot(target: Path) -> None:
    """Raises BadSetting unless these are Omniglot's published drawings and division."""
    expect(target / "splits_vinyals.json", SOURCES["omniglot-py/splits_vinyals.json"])
    for part in ("background", "evaluation"):
        folder = target / f"images_{part}"
        drawings = sorted(folder.rglob("*.png"), key=lambda path: path.relative_to(folder).parts)
        pieces = (
            piece
            for path in drawings
            for piece in (path.relative_to(folder).as_posix().encode(), path.read_bytes())
        )
        check_derived(f"omniglot {part}", pieces, folder)


def check_newsgroups(target: Path) -> None:
    """Raises BadSetting unless this is the archive that scikit-learn makes of 20 Newsgroups. Other
    data sets of scikit-learn may lie in the same folder."""
    expect(target, CHECKSUMS[str(PICKLE)])


def check_ijcnn1(target: Path) -> None:
    """Raises BadSetting unless these are IJCNN1's rows, by their numbers, features and labels: no
    checksum of theirs is published."""
    ijcnn1(target)


def check_derived(name: str, pieces: Iterable[bytes], path: Path) -> None:
    """Raises BadSetting unless these bytes, which were made of published files, have the SHA-256
    that they should. path: for the message."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    if digest.hexdigest() != DERIVED[name]:
        raise BadSetting(f"{path} is not what the published files give ({digest.hexdigest()})")


def _torchvision(name: str) -> Callable[[Path], None]:
    def fetch(root: Path) -> None:
        from torchvision import datasets

        getattr(datasets, name)(str(root), download=True)

    return fetch


def _newsgroups(root: Path) -> None:
    from sklearn.datasets import fetch_20newsgroups

    fetch_20newsgroups(data_home=str(root / "scikit_learn_data"), subset="all")


CATALOGUE = {
    "MNIST": DataSet("MNIST", check_published("MNIST"), _torchvision("MNIST")),
    "FashionMNIST": DataSet(
        "FashionMNIST", check_published("FashionMNIST"), _torchvision("FashionMNIST")
    ),
    "20news": DataSet(str(PICKLE), check_newsgroups, _newsgroups),
    "CIFAR100": DataSet("cifar-100-python", check_cifar, _torchvision("CIFAR100")),
    "Omniglot": DataSet("omniglot-py", check_omniglot, None),
    "IJCNN1": DataSet("ijcnn1", check_ijcnn1, None),
}
