"""Episodes and the data they are drawn from, on images that say their part, class and number."""

import hashlib
import json
import pickle
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

import tasks.data.images
from bench.core.draw import generator
from bench.core.settings import BadSetting
from bench.core.task import Context
from tasks.common.episodes import Deck, Episodes
from tasks.data import classes
from tasks.data.catalogue import CATALOGUE
from tasks.data.images import Images, load
from tasks.data.splits import CIFAR_FS, FC100

# episodes

WAYS, SHOTS, QUERIES = 3, 2, 4
COUNT = {"train": 9, "val": 5, "test": 6}  # classes, of 8 images [2, 3, 3] each


def marked() -> dict[str, Tensor]:
    """The corner of channel 0 says the class, that of channel 1 the image; the part is added."""
    found = {}
    for k, (part, count) in enumerate(COUNT.items()):
        images = torch.zeros(count, 8, 2, 3, 3, dtype=torch.uint8)
        images[:, :, 0, 0, 0] = 20 * k + torch.arange(count, dtype=torch.uint8)[:, None]
        images[:, :, 1, 0, 0] = 100 + torch.arange(8, dtype=torch.uint8)
        found[part] = images
    return found


def deck(**settings: Any) -> Deck:
    return Deck(**{
        "parts": marked(), "ways": WAYS, "shots": SHOTS, "queries": QUERIES, "seed": 3,
        "dtype": torch.float64,
    } | settings)  # fmt: skip


def read(images: Tensor) -> list[tuple[int, int]]:
    """(class, image) of each; a class is 20 times its part and more."""
    bytes_ = (255 * images).round().long()
    return [(int(z[0].max()), int(z[1].max()) - 100) for z in bytes_]


@pytest.mark.parametrize("part", COUNT)
def test_an_episode_is_its_name(part: str) -> None:
    """First the support images, class by class, then the query ones; by the seed, the part and the
    number, whatever else is drawn."""
    of = deck()
    assert (of.support, of.query) == ((0, 6), (6, 18))
    assert of.labels(of.support).tolist() == [0, 0, 1, 1, 2, 2]
    assert of.labels(of.query).tolist() == [0] * 4 + [1] * 4 + [2] * 4
    drawn = of.draw(part, [7, -2])
    assert drawn.images.shape == (2, 18, 2, 3, 3)
    assert drawn.images.dtype == torch.float64
    assert (drawn.numbers, drawn.rows, drawn.features) == ([7, -2], (0, 6), None)
    for number, images in zip([7, -2], drawn.images, strict=True):
        rng = generator("episode", part, 3, number)
        kinds = torch.randperm(COUNT[part], generator=rng)[:WAYS].tolist()
        which = [torch.randperm(8, generator=rng)[:6].tolist() for _ in range(WAYS)]
        first = 20 * list(COUNT).index(part)
        support = [(first + k, i) for k, own in zip(kinds, which, strict=True) for i in own[:2]]
        query = [(first + k, i) for k, own in zip(kinds, which, strict=True) for i in own[2:]]
        assert read(images) == support + query
        assert len(set(support + query)) == 18
    assert torch.equal(of.draw(part, [-2]).images[0], drawn.images[1])
    assert not torch.equal(deck(seed=4).draw(part, [7]).images[0], drawn.images[0])


def test_pixels_are_between_zero_and_one() -> None:
    parts = {"train": torch.full((3, 6, 1, 2, 2), 51, dtype=torch.uint8)}
    drawn = deck(parts=parts, dtype=torch.float32).draw("train", [0])
    assert drawn.images.dtype == torch.float32
    torch.testing.assert_close(drawn.images, torch.full((1, 18, 1, 2, 2), 0.2))
    assert drawn.images[0].is_contiguous(memory_format=torch.channels_last)


def test_some_classes_are_turned_each_as_one() -> None:
    """Classes are turned by 0, 1, 2 or 3 quarters, by a draw that is named after the images."""
    of, plain = deck(turned=True), deck()
    seen = set()
    for number in range(6):
        turned, upright = (d.draw("train", [number]).images[0] for d in (of, plain))
        rng = generator("episode", "train", 3, number)
        torch.randperm(9, generator=rng)
        for _ in range(WAYS):
            torch.randperm(8, generator=rng)
        quarters = torch.randint(4, (WAYS,), generator=rng).tolist()
        labels = [0, 0, 1, 1, 2, 2] + [0] * 4 + [1] * 4 + [2] * 4
        for image, other, label in zip(turned, upright, labels, strict=True):
            expected = np.rot90(other.numpy(), quarters[label], (1, 2))
            assert np.array_equal(image.numpy(), expected)
        seen |= set(quarters)
    assert seen == {0, 1, 2, 3}


def test_a_part_of_episodes_is_its_rows() -> None:
    whole = Episodes(torch.arange(12).view(4, 3), [5, 6, 7, 8], (1, 3))
    part = whole.part(1, 3)
    assert part.images.tolist() == [[3, 4, 5], [6, 7, 8]]
    assert (part.numbers, part.rows, part.features) == ([6, 7], (1, 3), None)
    known = whole._replace(features=torch.arange(4)).part(1, 3).features
    assert known is not None
    assert known.tolist() == [1, 2]


# the made-up set


def test_patterns_are_smooth_shifted_and_noisy() -> None:
    """A 5 x 5 table of normal numbers is drawn out to 16 x 16, corners onto corners; each image is
    rolled by up to 3 pixels each way; noise of .7; 64 of 255 to a unit, around 128."""
    found, rng = classes.load("patterns", Context()), generator("patterns")
    for part, count in (("train", 40), ("val", 15), ("test", 15)):
        table = torch.randn(count, 1, 5, 5, generator=rng).double()
        across = torch.zeros(16, 5).double()  # rows of the interpolation
        for i in range(16):
            at = i * 4 / 15
            low = min(int(at), 3)
            across[i, low], across[i, low + 1] = 1 - (at - low), at - low
        smooth = across @ table @ across.T
        shifts = torch.randint(-3, 4, (count, 20, 2), generator=rng)
        noise = 0.7 * torch.randn(count, 20, 1, 16, 16, generator=rng).double()
        images = found.parts[part]
        assert images.shape == (count, 20, 1, 16, 16)
        assert images.dtype == torch.uint8
        for k, i in ((0, 0), (3, 19), (count - 1, 7)):
            down, right = shifts[k, i].tolist()
            moved = np.roll(smooth[k].numpy(), (down, right), (1, 2)) + noise[k, i].numpy()
            expected = np.clip(64 * moved + 128, 0, 255)
            # a byte is cut, not rounded, and single precision may cut it one lower
            assert np.abs(images[k, i].numpy() + 0.5 - expected).max() <= 0.501
    assert found.sources == {"patterns": classes.digest(found.parts)}


def test_a_digest_is_of_all_parts_in_order() -> None:
    parts = {part: torch.full((2, 1), k, dtype=torch.uint8) for k, part in enumerate(classes.PARTS)}
    turned = dict(reversed(parts.items()))
    expected = hashlib.sha256(bytes([0, 0, 1, 1, 2, 2])).hexdigest()
    assert classes.digest(parts) == classes.digest(turned) == expected


def test_halves_of_patterns_are_twelve_and_eight_images_of_each_class() -> None:
    train, test, sources = classes.halves("patterns", Context())
    made = classes.patterns()
    every = torch.cat([made.parts[part] for part in ("train", "val", "test")])
    assert torch.equal(train, every[:, :12])
    assert torch.equal(test, every[:, 12:])
    assert (train.shape[:2], test.shape[:2], sources) == ((70, 12), (70, 8), made.sources)


# CIFAR-100, of which 2 training images and 1 test image of each class are made up


def cifar_folder(root: Path, order: NDArray[Any]) -> NDArray[np.uint8]:
    """Writes the pickles, their images in this order; the images: the first pixel says the class,
    the last the half."""
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True)
    listed = [*CIFAR_FS["val"], *CIFAR_FS["test"]]
    fine = [*(f"other {k}" for k in range(64)), *listed]
    groups = [*(f"group {k}" for k in range(12)), *FC100["val"], *FC100["test"]]
    meta = {"fine_label_names": fine, "coarse_label_names": groups}
    (folder / "meta").write_bytes(pickle.dumps(meta))
    pixels = np.random.default_rng(0).integers(0, 256, (300, 3072), dtype=np.uint8)
    for part, rows in (("train", order[order < 200]), ("test", order[order >= 200])):
        labels = rows % 100
        data = pixels[rows]
        data[:, 0], data[:, -1] = labels, part == "test"
        content = {
            "data": data,
            "fine_labels": labels.tolist(),
            "coarse_labels": ((labels + 5) % 100 // 5).tolist(),
        }
        (folder / part).write_bytes(pickle.dumps(content))
    return pixels


@pytest.fixture
def cifar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Context]:
    """Two data roots with the same images in another order."""
    monkeypatch.setitem(
        CATALOGUE, "CIFAR100", replace(CATALOGUE["CIFAR100"], check=lambda target: None)
    )
    cifar_folder(tmp_path / "a", np.arange(300))
    cifar_folder(tmp_path / "b", np.random.default_rng(1).permutation(300))
    return [Context(data_root=tmp_path / name) for name in "ab"]


def test_cifar_fs_is_divided_by_class_whatever_the_order_of_the_file(cifar: list[Context]) -> None:
    a, b = (classes.load("cifar_fs", context) for context in cifar)
    for part, kinds in (("train", range(64)), ("val", range(64, 80)), ("test", range(80, 100))):
        assert a.parts[part].shape == (len(kinds), 3, 3, 32, 32)
        assert a.parts[part][:, 0, 0, 0, 0].tolist() == list(kinds)
        assert (a.parts[part][:, :, 0, 0, 0] == torch.tensor(kinds)[:, None]).all()
        assert sorted(a.parts[part][0, :, 2, 31, 31].tolist()) == [0, 0, 1]  # both halves
        assert torch.equal(a.parts[part], b.parts[part])
    assert a.sources == b.sources == {"CIFAR-100 as cifar_fs": classes.digest(a.parts)}


def test_fc100_is_divided_by_group_whatever_the_order_of_the_file(cifar: list[Context]) -> None:
    a, b = (classes.load("fc100", context) for context in cifar)
    groups = {"train": range(12), "val": range(12, 16), "test": range(16, 20)}
    for part, own in groups.items():
        kinds = [k for k in range(100) if (k + 5) % 100 // 5 in own]
        assert a.parts[part][:, 0, 0, 0, 0].tolist() == kinds
        assert torch.equal(a.parts[part], b.parts[part])
    assert a.sources == b.sources == {"CIFAR-100 as fc100": classes.digest(a.parts)}


def test_the_halves_of_cifar_are_its_own(cifar: list[Context]) -> None:
    both = [classes.halves("cifar100", context) for context in cifar]
    train, test, sources = both[0]
    assert (train.shape, test.shape) == ((100, 2, 3, 32, 32), (100, 1, 3, 32, 32))
    for half, mark in ((train, 0), (test, 1)):
        assert (half[:, :, 0, 0, 0] == torch.arange(100)[:, None]).all()
        assert (half[:, :, 2, 31, 31] == mark).all()
    assert torch.equal(both[1][0], train)
    assert torch.equal(both[1][1], test)
    whole = hashlib.sha256(train.numpy().tobytes() + test.numpy().tobytes()).hexdigest()
    assert sources == both[1][2] == {"CIFAR-100": whole}


def test_images_of_a_class_are_in_the_order_of_their_content() -> None:
    """Images of a class are sorted by a BLAKE2b sum of their bytes."""
    rng = np.random.default_rng(5)
    data = rng.integers(0, 256, (300, 3072), dtype=np.uint8)
    fine = rng.permutation(np.repeat(np.arange(100), 3))
    parts = [
        {"data": data[rows], "fine_labels": fine[rows]} for rows in (slice(120), slice(120, 300))
    ]
    found = classes.by_class(parts).numpy()
    for k in (0, 41, 99):
        own = sorted(data[fine == k], key=lambda z: hashlib.blake2b(z, digest_size=16).digest())
        assert np.array_equal(found[k].reshape(3, -1), np.stack(own))


# Omniglot, of which 2 alphabets of 2 characters with 2 drawings are made up for each part


def omniglot_folder(root: Path) -> None:
    """Each drawing is black on its first so many rows."""
    folder, division = root / CATALOGUE["Omniglot"].target, {}
    for k, part in enumerate(classes.PARTS):
        halves: dict[str, dict[str, list[str]]] = {"background": {}, "evaluation": {}}
        for half in halves:
            alphabet = f"{'zy'[half == 'evaluation']}{k}"
            halves[half] = {alphabet: ["character02", "character01"]}
            for j, character in enumerate(("character01", "character02")):
                place = folder / f"images_{half}" / alphabet / character
                place.mkdir(parents=True)
                for i in range(2):
                    rows = 28 * (4 * k + 2 * (half == "evaluation") + j) // 12 + i
                    pixels = np.full((28, 28), 255, dtype=np.uint8)
                    pixels[:rows] = 0
                    Image.fromarray(pixels).save(place / f"{i}.png")
        division[part] = halves
    (folder / "splits_vinyals.json").write_text(json.dumps(division))


def test_omniglot_is_read_by_its_division_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        CATALOGUE, "Omniglot", replace(CATALOGUE["Omniglot"], check=lambda target: None)
    )
    omniglot_folder(tmp_path)
    (tmp_path / "derived").mkdir()  # other data may be kept there already
    context = Context(data_root=tmp_path)
    found = classes.load("omniglot", context)
    for k, part in enumerate(classes.PARTS):
        images = found.parts[part]
        assert images.shape == (4, 2, 1, 28, 28)
        assert images.dtype == torch.uint8
        inked = (images == 255).all(-1).sum((-1, -2)).tolist()  # ink is 255: rows of it
        assert inked == [[28 * (4 * k + c) // 12 + i for i in range(2)] for c in range(4)]
        assert set(images.unique().tolist()) <= {0, 255}
    assert set(found.sources) == {"omniglot background", "omniglot evaluation"}
    (kept,) = (tmp_path / "derived").iterdir()
    short = "-".join(sum_[:8] for sum_ in found.sources.values())
    assert kept.name == f"omniglot-28-{short}.pt"
    torch.save({"train": torch.ones(1)}, kept)  # from now on it is read from there
    again = classes.load("omniglot", context)
    assert torch.equal(again.parts["train"], torch.ones(1))
    assert again.sources == found.sources


def test_a_drawing_is_resized_and_its_ink_is_255(tmp_path: Path) -> None:
    pixels = np.full((105, 105), 255, dtype=np.uint8)
    pixels[:, :60] = 0
    Image.fromarray(pixels).convert("1").save(tmp_path / "a.png")
    found = classes.drawing(tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as image:
        gray = image.convert("L").resize((28, 28), Image.Resampling.LANCZOS)
    assert np.array_equal(found, 255 - np.asarray(gray))
    assert (found[:, :12] == 255).all()
    assert (found[:, 20:] == 0).all()


# miniImageNet, of which a few classes are made up


def mini_folder(root: Path) -> None:
    """A pixel says the class, its neighbour the image, a channel the part; class names are not in
    the order of their rows."""
    for k, (word, count) in enumerate((("train", 3), ("validation", 2), ("test", 4))):
        images = np.zeros((2 * count, 84, 84, 3), dtype=np.uint8)
        for row in range(2 * count):
            images[row, 0, 1] = (row // 2, row % 2, k)
        rows = {f"n{count - c}": [2 * c + 1, 2 * c] for c in range(count)}
        content = {"image_data": images, "class_dict": rows}
        (root / f"mini-imagenet-cache-{word}.pkl").write_bytes(pickle.dumps(content))


def test_mini_imagenet_is_of_the_three_files(tmp_path: Path) -> None:
    mini_folder(tmp_path)
    found = classes.load("mini_imagenet", Context(data_root=tmp_path))
    for k, (part, count) in enumerate((("train", 3), ("val", 2), ("test", 4))):
        images = found.parts[part]
        assert images.shape == (count, 2, 3, 84, 84)
        assert images.dtype == torch.uint8
        expected = [[[count - 1 - c, 1 - i, k] for i in range(2)] for c in range(count)]
        assert images[:, :, :, 0, 1].tolist() == expected
    for word in ("train", "validation", "test"):
        name = f"mini-imagenet-cache-{word}.pkl"
        expected_sum = hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()
        assert found.sources[name] == expected_sum
    (tmp_path / "mini-imagenet-cache-test.pkl").write_bytes(b"no pickle")
    with pytest.raises(BadSetting, match=r"cache-test\.pkl: not as expected"):
        classes.load("mini_imagenet", Context(data_root=tmp_path))
    (tmp_path / "mini-imagenet-cache-validation.pkl").unlink()
    with pytest.raises(BadSetting, match=r"cache-validation\.pkl: No such file .* task\.data$"):
        classes.load("mini_imagenet", Context(data_root=tmp_path))


# what is absent


def test_a_set_is_fetched_only_where_that_is_wished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[Path] = []
    checked: list[Path] = []

    def fetch(root: Path) -> None:
        fetched.append(root)
        (root / CATALOGUE["CIFAR100"].target).mkdir()

    monkeypatch.setitem(
        CATALOGUE, "CIFAR100", replace(CATALOGUE["CIFAR100"], check=checked.append, fetch=fetch)
    )
    with pytest.raises(
        BadSetting, match=r"^here: .* is not there; write data\.download=true or data\.root=\.\.\. "
    ):
        classes.present("CIFAR100", "here", Context(data_root=tmp_path))
    assert (fetched, checked) == ([], [])
    context, folder = (
        Context(data_root=tmp_path, download=True),
        tmp_path / CATALOGUE["CIFAR100"].target,
    )
    assert classes.present("CIFAR100", "here", context) == folder
    assert classes.present("CIFAR100", "here", context) == folder  # it is there already
    assert (fetched, checked) == ([tmp_path], [folder, folder])


def test_what_does_not_come_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(root: Path) -> None:
        raise OSError("no network")

    monkeypatch.setitem(CATALOGUE, "CIFAR100", replace(CATALOGUE["CIFAR100"], fetch=failing))
    context = Context(data_root=tmp_path, download=True)
    with pytest.raises(BadSetting, match="CIFAR100 did not come: no network"):
        classes.present("CIFAR100", "here", context)
    monkeypatch.setitem(CATALOGUE, "CIFAR100", replace(CATALOGUE["CIFAR100"], fetch=None))
    with pytest.raises(BadSetting, match=r"is not there; write data\.root=\.\.\. \("):
        classes.present("CIFAR100", "here", context)


def test_published_divisions_have_their_sizes() -> None:
    assert [len(set(FC100[part])) for part in ("val", "test")] == [4, 4]
    assert [len(set(CIFAR_FS[part])) for part in ("val", "test")] == [16, 20]
    for lists in (FC100, CIFAR_FS):
        assert not set(lists["val"]) & set(lists["test"])


# digits, MNIST and Fashion-MNIST


def test_digits_are_divided_by_the_name_of_the_split() -> None:
    """Every part has its images in the order of one permutation, and none twice."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = Images("digits", 30, 20, 10, 15)
    found = load(images, Context(seed=9), "a name", 4)
    order = torch.randperm(1797, generator=generator("split", "a name", 4)).tolist()
    begin = 0
    for part, size in zip(found[:4], (30, 20, 10, 15), strict=True):
        rows = order[begin : begin + size]
        assert np.array_equal(part.features.numpy(), digits.data[rows].astype(np.float32) / 16)
        assert part.labels.tolist() == digits.target[rows].tolist()
        assert part.features.dtype == torch.float32
        begin += size
    assert list(found.sources) == ["sklearn.datasets.load_digits"]
    both = digits.data.tobytes() + digits.target.tobytes()
    assert found.sources["sklearn.datasets.load_digits"] == hashlib.sha256(both).hexdigest()
    load(Images("digits", 1797 - 30, 10, 10, 10), Context())  # all that there are
    with pytest.raises(BadSetting, match=r"asks for more images than digits has: 1,797$"):
        load(Images("digits", 1797 - 29, 10, 10, 10), Context())


def mnist_folder(root: Path, kind: str, images: NDArray[np.uint8], halves: tuple[int, int]) -> None:
    """The four files in torchvision's layout; an image's label is its number modulo 10."""
    folder = root / kind / "raw"
    folder.mkdir(parents=True)
    begin = 0
    for name, n in zip(("train", "t10k"), halves, strict=True):
        own = images[begin : begin + n]
        (folder / f"{name}-images-idx3-ubyte").write_bytes(
            struct.pack(">IIII", 2051, n, 28, 28) + own.tobytes()
        )
        labels = bytes((begin + i) % 10 for i in range(n))
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, n) + labels)
        begin += n


@pytest.mark.parametrize(("name", "kind"), [("mnist", "MNIST"), ("fashion_mnist", "FashionMNIST")])
def test_mnists_test_images_are_its_own(
    name: Any, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of its 10,000 here 8 test images; the other parts are drawn from the others."""
    images = np.random.default_rng(0).integers(0, 256, (28, 28, 28), dtype=np.uint8)
    mnist_folder(tmp_path, kind, images, (20, 8))
    asked: list[tuple[Path, str]] = []

    def verified(root: Path, file: str) -> str:
        asked.append((root, file))
        return f"sum of {file}"

    monkeypatch.setattr(tasks.data.images, "verify", verified)
    files = [file for file in tasks.data.images.CHECKSUMS if file.startswith(f"{kind}/")]
    for file in files:
        (tmp_path / file).touch()
    context = Context(data_root=tmp_path)
    found = load(Images(name, 10, 6, 4, 5), context, "m")
    order = torch.randperm(20, generator=generator("split", "m")).tolist()
    for part, rows in zip(
        found[:4], (order[:10], order[10:16], order[16:], range(20, 25)), strict=True
    ):
        expected = images[list(rows)].reshape(len(rows), 784).astype(np.float32) / 255
        assert np.array_equal(part.features.numpy(), expected)
        assert part.labels.tolist() == [i % 10 for i in rows]
    assert found.sources == {file: f"sum of {file}" for file in files}
    assert asked == [(tmp_path, file) for file in files]
    load(Images(name, 10, 6, 4, 8), context)
    for sizes in ((10, 6, 4, 9), (11, 6, 4, 5)):
        with pytest.raises(BadSetting, match=f"{name} has: 20 and 8 for test"):
            load(Images(name, *sizes), context)


def test_mnist_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torchvision.datasets

    class Absent:
        def __init__(self, root: str, download: bool = False, train: bool = True):
            assert (root, download) == (str(tmp_path), True)
            raise RuntimeError("no network")

    Absent.__name__ = "MNIST"
    images = Images("mnist", 1, 1, 1, 1)
    with pytest.raises(BadSetting, match=r"MNIST/raw/\S+ is not there; write data\.download=true"):
        load(images, Context(data_root=tmp_path))
    monkeypatch.setattr(torchvision.datasets, "MNIST", Absent)
    with pytest.raises(BadSetting, match=r"data\.download=true: MNIST did not come: no network"):
        load(images, Context(data_root=tmp_path, download=True))
