"""20 Newsgroups, by date, as word counts; digits as a small stand-in that is always there.

The words are those of scikit-learn's fetch_20newsgroups_vectorized, as in the papers' codes:
130,107 of them with headers, footers and quotes kept, 101,631 without. Counting them takes a while,
so the counts are kept under data.root/derived, and held against a checksum whenever they are read.
"""

import hashlib
import os
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from bench.core.settings import BadSetting
from bench.core.task import Context
from tasks.data.checksums import CHECKSUMS, DERIVED, sha256
from tasks.data.fetching import one_at_a_time
from tasks.data.pickles import load_plain, remove_empty, unpack

Source = Literal["newsgroups", "digits"]
Headers = Literal["keep", "remove"]
Array = npt.NDArray[np.generic]


class WordCounts(NamedTuple):
    """How often each of n documents has each word: a sparse matrix by rows (offsets [n + 1], words
    and counts [nnz]). classes [n]: the documents' newsgroups."""

    offsets: Array
    words: Array
    counts: Array
    classes: Array


class Corpus(NamedTuple):
    """The documents in the published division by date. words: the number of different words.
    sources: data -> SHA-256."""

    train: WordCounts
    test: WordCounts
    words: int
    sources: dict[str, str]


PARTS = ("train", "test")
PICKLE = Path("scikit_learn_data/20news-bydate_py3.pkz")  # scikit-learn loads it
MOST_BYTES = 100_000_000  # of the pickle, unpacked; the published one has 40,767,912
NAMES = [f"{part}_{k}" for part in PARTS for k in WordCounts._fields]


def corpus(source: Source, headers: Headers, context: Context) -> Corpus:
    """The word counts; raises BadSetting. headers: "remove" removes footers and quotes too."""
    if source == "digits":
        return _digits()
    name = f"20news {headers}"
    path = context.data_root / "derived" / f"newsgroups-{headers}.npz"
    arrays = _read(path)
    if arrays is None or checksum_of(arrays) != DERIVED[name]:  # absent or damaged
        arrays = _count_words(headers, context)
        if checksum_of(arrays) != DERIVED[name]:
            raise BadSetting(
                f"task.headers={headers}: data.root={context.data_root} and this scikit-learn "
                "do not give the published word counts; delete scikit_learn_data there and fetch "
                "or import it again"
            )
        _write(path, arrays)
    train, test = (
        WordCounts(*(arrays[f"{part}_{k}"] for k in WordCounts._fields)) for part in PARTS
    )
    return Corpus(train, test, int(train.words.max()) + 1, {name: DERIVED[name]})


def reduced(found: Corpus, groups: int | None, words: int | None) -> Corpus:
    """The documents of the first `groups` newsgroups, with the `words` words that most training
    documents of these have; None: all of them.

    The words keep their order, and of words that equally many documents have the first are kept.
    Raises BadSetting if there are not so many.
    """
    if groups is None and words is None:
        return found
    all_groups = int(found.train.classes.max()) + 1
    if groups is not None and not 2 <= groups <= all_groups:
        raise BadSetting(f"task.groups={groups}: write 2 to {all_groups}, or null for all of them")
    if words is not None and words > found.words:
        raise BadSetting(f"task.words={words}: write at most {found.words}, or null for all")
    first = groups or all_groups
    train, train_classes = of_groups(found.train, first, found.words)
    test, test_classes = of_groups(found.test, first, found.words)
    documents = np.bincount(train.indices, minlength=found.words)  # that have each word
    kept = np.sort(np.argsort(-documents, kind="stable")[: words or found.words])
    return Corpus(
        with_words(train, kept, train_classes),
        with_words(test, kept, test_classes),
        len(kept),
        found.sources,
    )


def of_groups(part: WordCounts, first: int, words: int) -> tuple[Any, npt.NDArray[np.int64]]:
    """The documents of the first groups: their counts [n, words] as SciPy has them, and classes."""
    from scipy.sparse import csr_array

    classes = part.classes.astype(np.int64)
    arrays: Any = (part.counts, part.words, part.offsets)
    counts = csr_array(arrays, shape=(len(classes), words))
    return counts[classes < first], classes[classes < first]


def with_words(counts: Any, kept: Array, classes: Array) -> WordCounts:
    """The counts of these words alone, renumbered from 0."""
    few = counts[:, kept]
    few.sort_indices()
    return WordCounts(few.indptr, few.indices, few.data, classes)


def checksum_of(arrays: dict[str, Array]) -> str:
    """The SHA-256 of the arrays in the order of NAMES."""
    digest = hashlib.sha256()
    for name in NAMES:
        digest.update(np.ascontiguousarray(arrays[name]).data)
    return digest.hexdigest()


def _count_words(headers: str, context: Context) -> dict[str, Array]:
    from sklearn.datasets import fetch_20newsgroups
    from sklearn.feature_extraction.text import CountVectorizer

    home = context.data_root / "scikit_learn_data"
    refuse_harmful(home / PICKLE.name)
    try:
        with one_at_a_time(context.data_root, context.download):
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
        remove_empty(home)
        raise BadSetting(
            f"data.root={context.data_root}: 20 Newsgroups is not in scikit_learn_data "
            f"({error}); write data.download=true, or data.root=... (scripts/import_data.py fills "
            "one from a local folder), or task.source=digits"
        ) from None
    vectorizer = CountVectorizer(dtype=np.int16)
    counted = {
        "train": vectorizer.fit_transform(messages["train"].data),
        "test": vectorizer.transform(messages["test"].data),
    }
    arrays: dict[str, Array] = {}
    for part in PARTS:
        found = counted[part].tocsr()
        found.sort_indices()
        arrays |= {
            f"{part}_offsets": found.indptr.astype(np.int32),
            f"{part}_words": found.indices.astype(np.int32),
            f"{part}_counts": found.data,
            f"{part}_classes": messages[part].target.astype(np.int64),
        }
    return arrays


def refuse_harmful(file: Path) -> None:
    """Raises BadSetting unless the file that scikit-learn is about to unpickle is the published
    one, or names nothing but plain data."""
    if not file.exists() or (file.is_file() and sha256(file) == CHECKSUMS[str(PICKLE)]):
        return
    try:
        load_plain(b"".join(unpack(file, MOST_BYTES)))
    except Exception as error:  # a damaged pickle may raise anything
        raise BadSetting(
            f"data.root: {file} is not the published file, nor 20 Newsgroups as scikit-learn keeps "
            f"it ({error}): delete it and fetch or import it again"
        ) from None


def _read(path: Path) -> dict[str, Array] | None:
    """The arrays that `_write` wrote; None if the file is absent or not whole."""
    try:
        with path.open("rb") as file, np.load(file) as found:
            return {name: found[name] for name in NAMES}
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile):
        return None


def _write(path: Path, arrays: dict[str, Array]) -> None:
    new = path.with_name(f".{os.getpid()}.{path.name}")  # another run may write the same file
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(new, **arrays)  # type: ignore[arg-type]
        new.replace(path)
    except OSError:  # where data.root cannot be written to, the next run counts again
        with suppress(OSError):
            new.unlink()


def _digits() -> Corpus:
    """The stand-in: an image is a document of 64 words, and has each word as often as its pixel is
    dark. 7 in 10 images are for training."""
    from scipy.sparse import csr_array
    from sklearn.datasets import load_digits

    digits = load_digits()
    cut = len(digits.target) * 7 // 10

    def documents(rows: slice) -> WordCounts:
        found = csr_array(digits.data[rows])
        return WordCounts(found.indptr, found.indices, found.data, digits.target[rows])

    sum_of_all = hashlib.sha256(digits.data.tobytes() + digits.target.tobytes()).hexdigest()
    sources = {"sklearn.datasets.load_digits": sum_of_all}
    return Corpus(documents(slice(cut)), documents(slice(cut, None)), 64, sources)
