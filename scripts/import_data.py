"""Fill a data root from a local folder, on a machine without a network.

    uv run python scripts/import_data.py FROM [--root DIR] [--only NAME ...]

The tasks read data sets only in the layouts of torchvision and scikit-learn. This script copies or
converts what FROM holds into these layouts. It checks every file before it uses it, checks what it
has made, and writes each data set whole or not at all. A data set that is there already is checked
and left alone.

A file may be there compressed, with .gz after its name, or in pieces, with .part0, .part1 and so on
after its name: it is then put together in the folder that is made, checked, and used from there.
"""

import argparse
import gzip
import io
import json
import os
import pickle
import shutil
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.core.settings import BadSetting
from tasks.data.binary import IJCNN1
from tasks.data.catalogue import CATALOGUE, check_derived, expect, published_files
from tasks.data.checksums import CHECKSUMS, SOURCES, sha256
from tasks.data.newsgroups import PICKLE


@dataclass(frozen=True)
class ImportedData:
    """How a data set is made.

    sources: its files, below FROM. make(FROM, new) makes the file or folder `new` in the layout
    that tasks/data/catalogue.py keeps.
    """

    sources: tuple[str, ...]
    make: Callable[[Path, Path], None]


def copy_of(prefix: str, *known: str) -> ImportedData:
    """A data set whose files, all below the prefix, are taken as they are.

    known: their paths, if no checksum of theirs is published; the check of what was made is then
    all that is asked of them.
    """
    names = known or published_files(prefix)

    def make(source: Path, new: Path) -> None:
        for name in names:
            to = new / Path(name).relative_to(prefix)
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / name, to)

    return ImportedData(names, make)


def copy_newsgroups(source: Path, new: Path) -> None:
    """Takes scikit-learn's archive as it is; what else is in its folder stays where it is."""
    shutil.copyfile(source / PICKLE, new)


def make_cifar(source: Path, new: Path) -> None:
    """Makes the pickles of cifar-100-python of lossless WebP strips, one strip per class.

    The images are in the order of the classes.
    """
    import numpy as np
    from PIL import Image

    folder = source / "cifar-100"
    coarse = json.loads((folder / "classes.json").read_text())["fine_to_coarse"]
    new.mkdir(parents=True)
    for name in ("meta", "classes.json"):
        shutil.copyfile(folder / name, new / name)
    for split in ("train", "test"):
        with zipfile.ZipFile(folder / f"{split}_webp.zip") as strips:
            names = sorted(name for name in strips.namelist() if name.endswith(".webp"))
            images = [np.asarray(Image.open(io.BytesIO(strips.read(name)))) for name in names]
        pixels = np.concatenate([strip.reshape(-1, 32, 32, 3) for strip in images])
        fine = np.repeat(np.arange(100), len(pixels) // 100).tolist()
        content: dict[str, Any] = {
            "fine_labels": fine,
            "coarse_labels": [coarse[label] for label in fine],
            "data": pixels.transpose(0, 3, 1, 2).reshape(-1, 3072),
        }
        made = (content["data"].tobytes(), bytes(fine), bytes(content["coarse_labels"]))
        check_derived(f"cifar-100 {split}", made, folder / f"{split}_webp.zip")
        with (new / split).open("wb") as file:
            pickle.dump(content, file, protocol=4)
    # a pickle's bytes depend on numpy's version: later checks take these sums, not published ones
    sums = {split: sha256(new / split) for split in ("train", "test")}
    (new / "imported.json").write_text(json.dumps(sums))


def make_omniglot(source: Path, new: Path) -> None:
    """Unpacks the two archives, and puts the few-shot split of Vinyals et al. beside them."""
    new.mkdir(parents=True)
    for part in ("background", "evaluation"):
        with tarfile.open(source / "omniglot-py" / f"images_{part}.tar.xz") as archive:
            archive.extractall(new, filter="data")
    shutil.copyfile(source / "omniglot-py/splits_vinyals.json", new / "splits_vinyals.json")


DATA_SETS = {
    "MNIST": copy_of("MNIST"),
    "FashionMNIST": copy_of("FashionMNIST"),
    "20news": ImportedData((str(PICKLE),), copy_newsgroups),
    "CIFAR100": ImportedData(
        tuple(name for name in SOURCES if name.startswith("cifar-100/")),
        make_cifar,
    ),
    "Omniglot": ImportedData(
        tuple(name for name in SOURCES if name.startswith("omniglot-py/")),
        make_omniglot,
    ),
    "IJCNN1": copy_of("ijcnn1", *(f"ijcnn1/{name}" for name in IJCNN1)),
}


def bring(name: str, source: Path, root: Path) -> str:
    """Imports one data set; returns what happened.

    Raises BadSetting for a file that is missing or wrong, OSError for one that cannot be written.
    """
    data, kept = DATA_SETS[name], CATALOGUE[name]
    target = root / kept.target
    if target.exists():
        kept.check(target)
        return "already there, verified"
    if not any(is_there(source / file) for file in data.sources):
        return "not in FROM"
    with beside(target) as new, beside(target.with_name(f"{target.name}.whole")) as whole:
        if any(is_packed(source / file) for file in data.sources):
            for file in data.sources:
                put_together(source / file, whole / file)
            source = whole
        for file in data.sources:
            if file in CHECKSUMS | SOURCES:
                expect(source / file, (CHECKSUMS | SOURCES)[file])
        data.make(source, new)
        kept.check(new)
        new.rename(target)
    return "imported"


def pieces_of(path: Path) -> list[Path]:
    """The pieces in which a file is there, in their order."""
    found = {
        piece.name.rpartition(".part")[2]: piece for piece in path.parent.glob(f"{path.name}.part*")
    }
    return [found[number] for number in sorted(filter(str.isdigit, found), key=int)]


def is_packed(path: Path) -> bool:
    """Whether a file is there compressed or in pieces."""
    return path.with_name(f"{path.name}.gz").exists() or bool(pieces_of(path))


def is_there(path: Path) -> bool:
    """Whether a file is there, whole, compressed or in pieces."""
    return path.exists() or is_packed(path)


def put_together(path: Path, to: Path) -> None:
    """Write the file as it was published to another place; raises BadSetting if it is damaged.

    A file that is not there is not written either.
    """
    packed, pieces = path.with_name(f"{path.name}.gz"), pieces_of(path)
    to.parent.mkdir(parents=True, exist_ok=True)
    try:
        if path.exists():
            shutil.copyfile(path, to)
        elif packed.exists():
            with gzip.open(packed) as content, to.open("wb") as out:
                shutil.copyfileobj(content, out)
        elif pieces:
            with to.open("wb") as out:
                for piece in pieces:
                    out.write(piece.read_bytes())
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise BadSetting(f"{packed} is no whole compressed file ({error})") from None


@contextmanager
def beside(target: Path) -> Iterator[Path]:
    """A path next to the target; what is left there in the end is deleted."""
    new = target.with_name(f".{target.name}.{os.getpid()}")
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield new
    finally:
        if new.is_dir():
            shutil.rmtree(new, ignore_errors=True)
        else:
            new.unlink(missing_ok=True)


def main() -> int:
    """The exit code: 0, or 2 where something is refused."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("source", metavar="FROM", type=Path, help="a folder with data sets")
    default = os.environ.get("BENCH_DATA", "~/.cache/bilevel-bench")
    parser.add_argument(
        "--root",
        type=Path,
        default=Path(default),
        help=f"the data root to fill (default {default})",
    )
    parser.add_argument("--only", nargs="+", choices=DATA_SETS, default=list(DATA_SETS))
    arguments = parser.parse_args()
    root, source = arguments.root.expanduser(), arguments.source.expanduser()
    found = [n for n in arguments.only if any(is_there(source / f) for f in DATA_SETS[n].sources)]
    try:
        if not found:
            raise BadSetting(f"{source} holds none of {', '.join(arguments.only)}")
        for name in arguments.only:
            print(f"{name}: {bring(name, source, root)}", flush=True)
    except (BadSetting, OSError) as error:
        print(f"import_data: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
