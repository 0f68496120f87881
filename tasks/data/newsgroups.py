"""20 Newsgroups, by date, as word counts; digits as a small stand-in that is always there.

The words are those of scikit-learn's fetch_20newsgroups_vectorized, as in the papers' codes:
130,107 of them with headers, footers and quotes kept, 101,631 without. Counting them takes a
while; what is counted is kept under data.root/derived and held against a checksum whenever it is
read.
"""

import hashlib
import os
import zipfile
import zlib
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from bench.core.settings import BadSetting
from bench.core.task import Context
from tasks.data.checksums import CHECKSUMS, DERIVED, sha256
from tasks.data.pickles import pickled

Source = Literal["newsgroups", "digits"]
Headers = Literal["keep", "remove"]
Array = npt.NDArray[np.generic]


class Documents(NamedTuple):
    """Word counts by rows (offsets [n + 1], words and counts [nnz]) and classes [n]."""

    offsets: Array
    words: Array
    counts: Array
    classes: Array


class Corpus(NamedTuple):
    """train, test: as published by date; words: how many there are; sources -> SHA-256."""

    train: Documents
    test: Documents
    words: int
    sources: dict[str, str]


PARTS = ("train", "test")
KEPT = Path("scikit_learn_data/20news-bydate_py3.pkz")  # a pickle, which scikit-learn just loads
NAMES = [f"{part}_{k}" for part in PARTS for k in Documents._fields]


def corpus(source: Source, headers: Headers, context: Context) -> Corpus:
    """The counts; raises BadSetting. headers "remove": footers and quotes too."""
    if source == "digits":
        return _digits()
    name = f"20news {headers}"
    path = context.data_root / "derived" / f"newsgroups-{headers}.npz"
    arrays = _read(path)
    if arrays is None or checksum(arrays) != DERIVED[name]:  # absent or damaged: counted anew
        arrays = _counted(headers, context)
        if checksum(arrays) != DERIVED[name]:
            raise BadSetting(
                f"task.headers={headers}: data.root={context.data_root} and this scikit-learn "
                "do not give the published word counts; delete scikit_learn_data there and fetch "
                "or import it again"
            )
        _write(path, arrays)
    train, test = (Documents(*(arrays[f"{part}_{k}"] for k in Documents._fields)) for part in PARTS)
    return Corpus(train, test, int(train.words.max()) + 1, {name: DERIVED[name]})


def checksum(arrays: dict[str, Array]) -> str:
    """SHA-256 of the arrays in order."""
    digest = hashlib.sha256()
    for name in NAMES:
        digest.update(np.ascontiguousarray(arrays[name]).data)
    return digest.hexdigest()


def _counted(headers: str, context: Context) -> dict[str, Array]:
    from sklearn.datasets import fetch_20newsgroups
    from sklearn.feature_extraction.text import CountVectorizer

    home = context.data_root / "scikit_learn_data"
    harmless(home / KEPT.name)
    try:
        messages = {
            part: fetch_20newsgroups(
                data_home=str(home),
                subset=part,
                shuffle=True,
                random_state=12,  # the order of fetch_20newsgroups_vectorized
                remove=("headers", "footers", "quotes") if headers == "remove" else (),
                download_if_missing=context.download,
            )
            for part in PARTS
        }
    except OSError as error:
        raise BadSetting(
            f"data.root={context.data_root}: 20 Newsgroups is not in scikit_learn_data "
            f"({error}); write data.download=true, or data.root=... (scripts/import_data.py fills "
            "one from a local folder), or task.source=digits"
        ) from None
    vectorizer = CountVectorizer(dtype=np.int16)
    vectorizer.fit(messages["train"].data)
    arrays: dict[str, Array] = {}
    for part in PARTS:
        found = vectorizer.transform(messages[part].data).tocsr()
        found.sort_indices()
        arrays |= {
            f"{part}_offsets": found.indptr.astype(np.int32),
            f"{part}_words": found.indices.astype(np.int32),
            f"{part}_counts": found.data,
            f"{part}_classes": messages[part].target.astype(np.int64),
        }
    return arrays


def harmless(file: Path) -> None:
    """Raises BadSetting if what scikit-learn is about to unpickle is not the published file and
    not plain data either."""
    if not file.is_file() or sha256(file) == CHECKSUMS[str(KEPT)]:
        return
    try:
        pickled(zlib.decompress(file.read_bytes()))
    except Exception as error:  # a damaged pickle may raise anything
        raise BadSetting(
            f"data.root: {file} is not the published file, nor 20 Newsgroups as scikit-learn keeps "
            f"it ({error}): delete it and fetch or import it again"
        ) from None


def _read(path: Path) -> dict[str, Array] | None:
    """What `_write` wrote; None if it is not there or not whole."""
    try:
        with path.open("rb") as file, np.load(file) as found:
            return {name: found[name] for name in NAMES}
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile):
        return None


def _write(path: Path, arrays: dict[str, Array]) -> None:
    new = path.with_name(f".{os.getpid()}.{path.name}")  # another run may write the same
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(new, **arrays)  # type: ignore[arg-type]
        new.replace(path)
    except OSError:
        pass  # a data root that cannot be written to costs time, nothing else


def _digits() -> Corpus:
    """An image is a document of 64 words, each as often as its pixel is dark; 7 in 10 to train."""
    from scipy.sparse import csr_array
    from sklearn.datasets import load_digits

    digits = load_digits()
    cut = len(digits.target) * 7 // 10

    def documents(rows: slice) -> Documents:
        found = csr_array(digits.data[rows])
        return Documents(found.indptr, found.indices, found.data, digits.target[rows])

    sum_of_all = hashlib.sha256(digits.data.tobytes() + digits.target.tobytes()).hexdigest()
    sources = {"sklearn.datasets.load_digits": sum_of_all}
    return Corpus(documents(slice(cut)), documents(slice(cut, None)), 64, sources)
