"""Made-up damage to configurations, run folders, records, specs and data: read, or refused.

`TARGETS` has a function for each kind of input. It takes what Hypothesis has drawn and a folder,
and raises nothing, because every reader refuses by BadSetting. scripts/fuzz.py tries many cases of
each, tests/test_fuzz.py some.
"""

import copy
import gzip
import json
import pickle
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from hypothesis import strategies as st

from bench.core.settings import BadSetting
from bench.reproduce import dashboard, records, rejudging
from bench.reproduce.book import load_book
from bench.reproduce.points import points
from bench.reproduce.reading import summary_if_whole
from bench.reproduce.run_names import Names
from bench.reproduce.specs import Book
from bench.runs import name as naming
from bench.runs.folder import RunFolder
from bench.runs.launch import complete
from tasks.data import newsgroups
from tests.test_damaged import SPEC, make_run

NAME = "toy_minimax/bome/0123456789"
NO_BOOK = Book({}, {"any": {}}, {})
WORDS = st.sampled_from(
    ["", "nan", "-inf", "${oc.env:HOME}", "${.seed}", "a\nb", "\x00", "../..", "1e400", "é", "null",
     "bench.main.main", "subprocess.call", "tasks.toy.toy_coreset", "yes", "[", "{", "&a", "*a"]
)  # fmt: skip
LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | WORDS
    | st.sampled_from([10**400, -(2**63), 1e308, -1e308, 5e-324])
)  # fmt: skip
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)
# what is done to a tree: which place (as a fraction of all), how, and with which value
CHANGES = st.lists(
    st.tuples(st.floats(0, 1), st.sampled_from(["put", "take", "add", "double"]), VALUES),
    min_size=1, max_size=3,
)  # fmt: skip
# what is done to bytes: where (as a fraction), how, and with which bytes
CUTS = st.lists(
    st.tuples(st.floats(0, 1), st.sampled_from(["flip", "take", "add", "cut"]),
              st.binary(min_size=1, max_size=9)),
    min_size=1, max_size=3,
)  # fmt: skip


def places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Every entry of nested dictionaries and lists, as (what holds it, its key)."""
    keys = list(tree) if isinstance(tree, dict) else range(len(tree))
    for key in keys:
        yield tree, key
        if isinstance(tree[key], dict | list):
            yield from places(tree[key])


def change_tree(tree: Any, changes: list[tuple[float, str, Any]]) -> Any:
    """A copy of the tree with these changes."""
    tree = copy.deepcopy(tree)
    for where, how, value in changes:
        every = list(places(tree))
        if not every:
            break
        inside, key = every[min(int(where * len(every)), len(every) - 1)]
        if how == "put":
            inside[key] = value
        elif how == "take":
            del inside[key]
        elif how == "double" and isinstance(inside, list):
            inside.insert(key, copy.deepcopy(inside[key]))
        elif isinstance(inside, dict):
            inside[value if isinstance(value, str) else "more"] = copy.deepcopy(inside[key])
    return tree


def change_bytes(content: bytes, changes: list[tuple[float, str, bytes]]) -> bytes:
    """The content with these changes."""
    for where, how, given in changes:
        i = int(where * max(0, len(content) - 1))
        if how == "flip" and content:
            content = content[:i] + bytes([content[i] ^ (given[0] or 1)]) + content[i + 1 :]
        elif how == "take":
            content = content[:i] + content[i + len(given) :]
        elif how == "add":
            content = content[:i] + given + content[i:]
        elif how == "cut":
            content = content[:i]
    return content


def write_tree(file: Path, tree: Any) -> None:
    """As JSON, or as YAML where the file's name says so; what cannot be written is left out."""
    with suppress(ValueError, yaml.YAMLError, UnicodeEncodeError):
        text = yaml.safe_dump(tree) if file.suffix == ".yaml" else json.dumps(tree)
        file.write_text(text)


@cache
def whole_config() -> dict[str, Any]:
    """A configuration that nothing is wrong with."""
    book_point = next(points(example_book().artifacts["mine/toy"].spec, example_book(), "smoke"))
    return Names(Path("runs")).config(book_point, 0)


@cache
def example_book() -> Any:
    """A book of one artifact; its metrics and methods are the project's."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "mine").mkdir()
        (Path(folder) / "mine" / "toy.yaml").write_text(yaml.safe_dump(SPEC))
        return load_book(Path(folder))


def configuration(data: st.DataObject, folder: Path) -> None:
    """A composed configuration, before a run is made of it."""
    with suppress(BadSetting):
        naming.name(complete(change_tree(whole_config(), data.draw(CHANGES))))


def run_folder(data: st.DataObject, folder: Path) -> None:
    """The folder of a run that has ended, as `compare` and `report` read it."""
    shutil.rmtree(folder, ignore_errors=True)
    run = RunFolder(folder, NAME)
    make_run(run, 0)
    file = run.path / data.draw(
        st.sampled_from(["config.yaml", "environment.json", "history.jsonl", "summary.json"])
    )
    if file.suffix != ".jsonl" and data.draw(st.booleans()):
        load = yaml.safe_load if file.suffix == ".yaml" else json.loads
        write_tree(file, change_tree(load(file.read_text()), data.draw(CHANGES)))
    else:
        file.write_bytes(change_bytes(file.read_bytes(), data.draw(CUTS)))
    with suppress(BadSetting):
        found = dashboard.compare([folder], NO_BOOK)
        json.dumps(dashboard.page_data(found, NO_BOOK), allow_nan=False)
        dashboard.write_csv(found, folder / "table.csv")
    summary_if_whole(run)


@cache
def whole_record() -> str:
    """The text of a record of the example's run, without the digest of its histories, which is not
    asked of records."""
    import tempfile

    from bench.reproduce.standing import current_plan

    with tempfile.TemporaryDirectory() as folder:
        book, root = example_book(), Path(folder)
        artifact = book.artifacts["mine/toy"]
        names = Names(root)
        point = next(points(artifact.spec, book, "smoke"))
        names.ensure([(point, 0)], artifact.file)
        name = names.get(point, 0)
        assert name is not None
        make_run(RunFolder(root, name), 0)
        found = records.make_record(current_plan(artifact, book, "smoke", root), book)
        file = records.write_record(found, root / "results")
        content = json.loads(file.read_text())
        del content["histories_digest"]
        return json.dumps(content, indent=1) + "\n"


def record(data: st.DataObject, folder: Path) -> None:
    """A record, as all commands read and judge it."""
    file = folder / "mine/toy/smoke.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    if data.draw(st.booleans()):
        file.write_text(whole_record())
        write_tree(file, change_tree(json.loads(whole_record()), data.draw(CHANGES)))
    else:
        file.write_bytes(change_bytes(whole_record().encode(), data.draw(CUTS)))
    book = example_book()
    with suppress(BadSetting):
        found = records.read_record("mine/toy", "smoke", folder)
        if found is not None:
            rejudging.rejudge(found, book.artifacts["mine/toy"], book)


def spec(data: st.DataObject, folder: Path) -> None:
    """A spec of an artifact."""
    file = folder / "mine/toy.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump(SPEC))
    if data.draw(st.booleans()):
        write_tree(file, change_tree(SPEC, data.draw(CHANGES)))
    else:
        file.write_bytes(change_bytes(file.read_bytes(), data.draw(CUTS)))
    with suppress(BadSetting):
        load_book(folder)


def data_file(data: st.DataObject, folder: Path) -> None:
    """Word counts as this project keeps them, a pickle of arrays, and histories beside a record."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {name: np.arange(6.0) for name in newsgroups.NAMES}
    kept = folder / "counts.npz"
    np.savez(kept, **arrays)  # type: ignore[arg-type]
    kept.write_bytes(change_bytes(kept.read_bytes(), data.draw(CUTS)))
    newsgroups._read(kept)
    foreign = folder / "20news-bydate_py3.pkz"
    foreign.write_bytes(change_bytes(pickle.dumps(arrays), data.draw(CUTS)))
    with suppress(BadSetting):
        newsgroups.refuse_harmful(foreign)
    beside = folder / "mine/toy/smoke.histories.jsonl.gz"
    beside.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps({"run": NAME, "columns": {"step": [0, 1], "distance": [1.0, None]}}).encode()
    if data.draw(st.booleans()):
        beside.write_bytes(gzip.compress(change_bytes(line + b"\n", data.draw(CUTS)), mtime=0))
    else:
        beside.write_bytes(change_bytes(gzip.compress(line, mtime=0), data.draw(CUTS)))
    (folder / "mine/toy/smoke.json").write_text(whole_record())
    with suppress(BadSetting):
        records.read_record("mine/toy", "smoke", folder)


TARGETS: dict[str, Callable[[st.DataObject, Path], None]] = {
    "configurations": configuration,
    "run folders": run_folder,
    "records": record,
    "specs": spec,
    "data": data_file,
}
