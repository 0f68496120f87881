"""20 Newsgroups as word counts: what is read, counted, kept and refused, on made-up messages."""

import hashlib
import io
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from bench.core.settings import BadSetting
from bench.core.task import Context
from tasks.data import newsgroups as data
from tasks.data.newsgroups import Corpus, WordCounts, corpus, reduced

MESSAGES = {
    "train": (["The cat saw the dog.", "a B a I", "Dog dog DOG cat x9 x9"], [2, 0, 1]),
    "test": (["the zebra saw a cat", "zebra"], [1, 1]),
}
# words of two letters or figures and more, of the training messages alone, in alphabetical order
WORDS = ["cat", "dog", "saw", "the", "x9"]
COUNTS = {"train": [[1, 1, 1, 2, 0], [0] * 5, [1, 3, 0, 0, 2]], "test": [[1, 0, 1, 1, 0], [0] * 5]}


def arrays() -> list[np.ndarray[Any, Any]]:
    """Offsets, words, counts and classes of both halves."""
    found: list[np.ndarray[Any, Any]] = []
    for part in ("train", "test"):
        offsets, words, counts = [0], [], []
        for row in COUNTS[part]:
            words += [j for j, c in enumerate(row) if c]
            counts += [c for c in row if c]
            offsets.append(len(words))
        found += [
            np.array(offsets, np.int32), np.array(words, np.int32), np.array(counts, np.int16),
            np.array(MESSAGES[part][1], np.int64),
        ]  # fmt: skip
    return found


def digest() -> str:
    return hashlib.sha256(b"".join(a.tobytes() for a in arrays())).hexdigest()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """scikit-learn has the messages above, and they are the published ones; what it was asked."""
    found: list[dict[str, Any]] = []

    def fetch(**settings: Any) -> Any:
        found.append(settings)
        messages, classes = MESSAGES[settings["subset"]]
        return SimpleNamespace(data=messages, target=np.array(classes))

    monkeypatch.setattr("sklearn.datasets.fetch_20newsgroups", fetch)
    for headers in ("keep", "remove"):
        monkeypatch.setitem(data.DERIVED, f"20news {headers}", digest())
    return found


@pytest.mark.parametrize("download", [True, False])
@pytest.mark.parametrize("headers", ["keep", "remove"])
def test_messages_are_asked_for_as_scikit_learn_vectorises_them(
    headers: Any, download: bool, tmp_path: Path, asked: list[dict[str, Any]]
) -> None:
    """fetch_20newsgroups_vectorized: in the order of its seed 12, with or without headers, footers
    and quotes."""
    corpus("newsgroups", headers, Context(data_root=tmp_path, download=download))
    removed = ("headers", "footers", "quotes") if headers == "remove" else ()
    assert asked == [
        {
            "data_home": str(tmp_path / "scikit_learn_data"), "subset": part, "shuffle": True,
            "random_state": 12, "remove": removed, "download_if_missing": download,
        }
        for part in ("train", "test")
    ]  # fmt: skip


def test_words_are_those_of_the_training_half(tmp_path: Path, asked: list[dict[str, Any]]) -> None:
    """Counted at first, read from disk the second time: the same arrays, of the same types."""
    for _ in range(2):
        found = corpus("newsgroups", "keep", Context(data_root=tmp_path / "new"))
        assert found.words == len(WORDS)
        assert found.sources == {"20news keep": digest()}
        for have, want in zip([*found.train, *found.test], arrays(), strict=True):
            assert have.dtype == want.dtype
            assert have.tolist() == want.tolist()
    assert len(asked) == 2
    assert [p.name for p in (tmp_path / "new/derived").iterdir()] == ["newsgroups-keep.npz"]
    corpus("newsgroups", "remove", Context(data_root=tmp_path / "new"))
    assert len(asked) == 4


def test_the_checksum_is_of_all_arrays_in_their_order(tmp_path: Path) -> None:
    given = dict(zip(data.NAMES, arrays(), strict=True))
    assert data.checksum_of(given) == digest()
    for name in data.NAMES:
        assert data.checksum_of(given | {name: given[name] + 1}) != digest()
    strided = {name: np.repeat(values, 2)[::2] for name, values in given.items()}
    assert data.checksum_of(strided) == digest()


def test_counts_that_are_not_the_published_ones_are_refused(
    tmp_path: Path, asked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(data.DERIVED, "20news keep", "0" * 64)
    with pytest.raises(BadSetting, match=r"^task\.headers=keep: .* published word counts"):
        corpus("newsgroups", "keep", Context(data_root=tmp_path))
    assert not (tmp_path / "derived").exists()


def test_kept_counts_that_are_damaged_are_counted_anew(
    tmp_path: Path, asked: list[dict[str, Any]]
) -> None:
    """Cut short, empty, without an array, or with other numbers in a file that is whole."""
    here = Context(data_root=tmp_path)
    corpus("newsgroups", "keep", here)
    (kept,) = (tmp_path / "derived").iterdir()
    whole, given = kept.read_bytes(), dict(zip(data.NAMES, arrays(), strict=True))
    other, less = io.BytesIO(), io.BytesIO()
    np.savez(other, **(given | {"test_classes": np.zeros(2, np.int64)}))  # type: ignore[arg-type]
    np.savez(less, train_offsets=given["train_offsets"])
    for damaged in (whole[:100], b"", other.getvalue(), less.getvalue()):
        kept.write_bytes(damaged)
        asked.clear()
        assert corpus("newsgroups", "keep", here).test.classes.tolist() == [1, 1]
        assert len(asked) == 2
        corpus("newsgroups", "keep", here)
        assert len(asked) == 2


def test_a_data_root_that_cannot_be_written_to_costs_time_only(
    tmp_path: Path, asked: list[dict[str, Any]]
) -> None:
    (tmp_path / "derived").write_text("a file where the folder should be")
    for turn in (2, 4):
        assert corpus("newsgroups", "keep", Context(data_root=tmp_path)).words == 5
        assert len(asked) == turn


def test_nothing_is_left_beside_what_is_kept(
    tmp_path: Path, asked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file is written under another name first, so that a reader never finds half of it."""
    seen: list[str] = []
    save = np.savez
    monkeypatch.setattr(np, "savez", lambda to, **a: seen.append(to.name) or save(to, **a))
    corpus("newsgroups", "keep", Context(data_root=tmp_path))
    assert seen[0] != "newsgroups-keep.npz"
    assert seen[0].endswith("newsgroups-keep.npz")


def test_a_strange_archive_is_not_handed_to_scikit_learn(
    tmp_path: Path, asked: list[dict[str, Any]]
) -> None:
    file = tmp_path / data.PICKLE
    file.parent.mkdir()
    file.write_bytes(zlib.compress(b"cos\nsystem\n(S'true'\ntR."))
    with pytest.raises(BadSetting, match=r"it names (os|posix)\.system"):
        corpus("newsgroups", "keep", Context(data_root=tmp_path))
    assert asked == []


def test_the_published_archive_and_plain_data_may_be_unpickled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The published file is known by its checksum alone; another one must hold plain data."""
    file = tmp_path / "archive"
    data.refuse_harmful(file)
    file.write_bytes(zlib.compress(b"(lp0\nI1\na."))
    data.refuse_harmful(file)
    file.write_bytes(b"anything")
    with pytest.raises(BadSetting, match="not the published file"):
        data.refuse_harmful(file)
    monkeypatch.setitem(data.CHECKSUMS, str(data.PICKLE), hashlib.sha256(b"anything").hexdigest())
    data.refuse_harmful(file)


def test_digits_stand_in(tmp_path: Path) -> None:
    """An image is a document of 64 words; the first seven in ten train, nothing is read."""
    found, digits = corpus("digits", "keep", Context(data_root=tmp_path)), load_digits()
    assert found.words == 64
    first = 0
    for part, n in ((found.train, 1257), (found.test, 540)):
        dense = np.zeros((n, 64))
        for i in range(n):
            here = slice(part.offsets[i], part.offsets[i + 1])
            dense[i, part.words[here]] = part.counts[here]
        assert np.array_equal(dense, digits.data[first : first + n])
        assert np.array_equal(part.classes, digits.target[first : first + n])
        first += n
    whole = hashlib.sha256(digits.data.tobytes() + digits.target.tobytes()).hexdigest()
    assert found.sources == {"sklearn.datasets.load_digits": whole}
    assert list(tmp_path.iterdir()) == []


def small() -> Corpus:
    """The messages above, as they are read."""
    train, test = (WordCounts(*arrays()[k : k + 4]) for k in (0, 4))
    return Corpus(train, test, len(WORDS), {"messages": "digest"})


def dense(part: WordCounts, words: int) -> list[list[int]]:
    rows = [[0] * words for _ in part.classes]
    for k, row in enumerate(rows):
        for j in range(part.offsets[k], part.offsets[k + 1]):
            row[int(part.words[j])] = int(part.counts[j])
    return rows


def test_a_part_of_the_corpus_has_the_first_groups_and_their_commonest_words() -> None:
    """One training message of the groups 0 and 1 has words: cat, dog and x9."""
    found = reduced(small(), 2, 2)
    assert found.words == 2
    assert found.sources == {"messages": "digest"}
    assert found.train.classes.tolist() == [0, 1]
    assert dense(found.train, 2) == [[0, 0], [1, 3]]  # cat and dog, the first of three
    assert found.test.classes.tolist() == [1, 1]
    assert dense(found.test, 2) == [[1, 0], [0, 0]]


def test_words_are_common_by_messages_and_not_by_how_often_they_are_said() -> None:
    """Cat and dog are in two messages; "the" is in one, twice."""
    found = reduced(small(), None, 2)
    assert found.train.classes.tolist() == [2, 0, 1]
    assert dense(found.train, 2) == [[1, 1], [0, 0], [1, 3]]
    whole = reduced(small(), 3, None)
    assert dense(whole.train, 5) == COUNTS["train"]


@pytest.mark.parametrize(("groups", "words"), [(1, None), (4, None), (None, 6)])
def test_a_part_that_the_corpus_does_not_have_is_refused(
    groups: int | None, words: int | None
) -> None:
    with pytest.raises(
        BadSetting, match=r"task\.(groups=\d: write 2 to 3|words=6: write at most 5)"
    ):
        reduced(small(), groups, words)
