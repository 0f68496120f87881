"""Names of runs: what is in them, what is not, and that they survive moves of the code."""

import inspect
import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.core.algorithm import Algorithm
from bench.core.settings import (
    as_node,
    check_settings,
    hints_of,
    locate,
    parameters,
    version,
    version_of,
)
from bench.core.task import Task
from bench.runs.name import describe_node, meaning_of, name
from bench.runs.source import targets_of

ROOT = Path(__file__).parent.parent


def config(**changed: Any) -> dict[str, Any]:
    """A complete one; `changed` is of its part run, or seed, task and algorithm."""
    run = {
        "steps": 10, "every": 2, "seconds": None, "cpu_seconds": None, "calls": None,
        "samples": None, "until": None,
        "target": None, "dtype": "float32", "device": "cpu", "threads": 2, "compile": False,
        "lanes_gb": 4.0, "checkpoint": 10.0, "force": False, "retry_failed": False, "root": "runs",
    }  # fmt: skip
    whole = {
        "seed": 0,
        "vectorize": [],
        "run": run,
        "data": {"root": "data", "download": False},
        "task": {"_target_": "tasks.toy.toy_coreset", "variant": "code"},
        "algorithm": {"_target_": "algorithms.bilevel.bome.bome", "T": 10, "eta": 0.25},
        "logger": {"_target_": "bench.runs.loggers.local"},
    }
    for key, value in changed.items():
        place = run if key in run else whole
        place[key] = value
    return whole


def test_a_name_is_of_what_determines_the_result() -> None:
    """Worked out here once more; and pinned, because folders and records are found by it."""
    what = {
        "algorithm": {"name": "bome", "version": 1, "settings": {"eta": 0.25}},
        "run": {"dtype": "float32", "every": 2, "steps": 10},
        "seed": 0,
        "task": {"name": "toy_coreset", "version": 1, "settings": {"variant": "code"}},
    }
    assert meaning_of(config()) == what
    key = blake2b(json.dumps(what, sort_keys=True).encode(), digest_size=5).hexdigest()
    assert name(config()) == f"toy_coreset/bome/{key}" == "toy_coreset/bome/9d408d3bf8"


TASK, BOME = "tasks.toy.toy_coreset", "algorithms.bilevel.bome.bome"
OTHER: list[dict[str, Any]] = [
    {"steps": 11}, {"every": 3}, {"seconds": 1.0}, {"cpu_seconds": 1.0},
    {"calls": 7}, {"samples": 7}, {"until": "loss"}, {"target": 0.5}, {"dtype": "float64"},
    {"seed": 1},
    {"task": {"_target_": TASK, "variant": "paper"}},
    {"algorithm": {"_target_": BOME, "eta": 0.5}},
    {"algorithm": {"_target_": BOME, "eta": 0.25, "T": 1}},
    {"algorithm": {"_target_": "algorithms.bilevel.penalty.penalty", "T": 10}},
]  # fmt: skip
SAME: list[dict[str, Any]] = [
    {"device": "cuda"}, {"threads": 1}, {"compile": True}, {"lanes_gb": 1.0}, {"checkpoint": 1.0},
    {"force": True}, {"retry_failed": True}, {"root": "elsewhere"}, {"vectorize": ["seed"]},
    {"data": {"root": "x", "download": True}}, {"logger": {"_target_": "bench.runs.loggers.wandb"}},
    {"algorithm": {"eta": 0.25, "_target_": BOME}},  # a default left out, and another order
    {"task": {"_target_": TASK, "variant": "code", "start": 1, "scale": None}},
]  # fmt: skip


@pytest.mark.parametrize("changed", OTHER, ids=str)
def test_another_result_has_another_name(changed: dict[str, Any]) -> None:
    names = {name(config(**other)) for other in OTHER}
    assert len(names) == len(OTHER)
    assert name(config(**changed)) != name(config())


@pytest.mark.parametrize("changed", SAME, ids=str)
def test_where_and_how_it_is_computed_is_not_in_a_name(changed: dict[str, Any]) -> None:
    assert name(config(**changed)) == name(config())


def test_two_methods_of_one_name_would_share_names() -> None:
    """What conf/ names as a task or as a method has a name of its own, whatever its module."""
    for group, kind in (("task", Task), ("algorithm", Algorithm)):
        nodes = [yaml.safe_load(f.read_text()) for f in (ROOT / "conf" / group).glob("*.yaml")]
        found = {node["_target_"] for node in nodes}
        assert all(hints_of(locate(target, ""))["return"] is kind for target in found)
        names = Counter(target.rpartition(".")[2] for target in found)
        assert [name for name, count in names.items() if count > 1] == []


@dataclass(frozen=True)
class Inner:
    n: int = 2
    rule: str = "gd"


def outer(lr: float, T: int = 10, inner: Inner = Inner(rule="adam"), at: tuple[int, ...] = (1, 2)):
    """A function with settings of every kind."""


HERE = "bench.example"


@pytest.fixture
def located(monkeypatch: pytest.MonkeyPatch) -> None:
    """The functions above, as if they were the project's."""
    found: dict[str, Callable[..., Any]] = {f"{HERE}.outer": outer, f"{__name__}.Inner": Inner}
    monkeypatch.setattr("bench.runs.name.locate", lambda target, path: found[target])


def node(**settings: Any) -> dict[str, Any]:
    return {"_target_": f"{HERE}.outer", "lr": 0.1, **settings}


def inner(**settings: Any) -> dict[str, Any]:
    return {"_target_": f"{__name__}.Inner", **settings}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {}),
        ({"T": 10, "at": (1, 2)}, {}),
        ({"T": 11}, {"T": 11}),
        ({"at": (1, 3)}, {"at": (1, 3)}),
        ({"inner": inner(rule="adam")}, {}),
        ({"inner": inner(rule="adam", n=2)}, {}),
        ({"inner": inner()}, {"inner": {"name": "Inner", "version": 1, "settings": {}}}),
        (
            {"inner": inner(rule="adam", n=3)},
            {"inner": {"name": "Inner", "version": 1, "settings": {"n": 3, "rule": "adam"}}},
        ),
    ],
    ids=str,
)
@pytest.mark.usefixtures("located")
def test_a_name_has_what_differs_from_defaults(
    settings: dict[str, Any], expected: dict[str, Any]
) -> None:
    """A setting without a default is always in it, here lr; a group is compared as a whole."""
    assert describe_node(node(**settings)) == {
        "name": "outer", "version": 1, "settings": {"lr": 0.1, **expected},
    }  # fmt: skip


def test_a_version_is_a_number_on_a_function() -> None:
    @version(3)
    def f(a: int) -> int:
        return a + 1

    assert (version_of(f), f(1), version_of(outer)) == (3, 2, 1)


def test_a_default_that_is_a_record_is_a_group_of_settings() -> None:
    assert as_node(Inner(3)) == {"_target_": f"{__name__}.Inner", "n": 3, "rule": "gd"}
    assert as_node(Inner) is as_node(3) is as_node(None) is as_node(inspect.Parameter.empty) is None
    node = {"_target_": "tasks.continual.permuted_mnist", "data": {
        "_target_": "tasks.data.images.Images", "name": "digits", "train": 1, "val": 1, "val2": 1,
        "test": 1}}  # fmt: skip
    filled = check_settings(node, "task", Task, given=("context",))
    defaults = {s.name: s.default for s in parameters(locate(node["_target_"], ""))}
    assert filled["released"] == as_node(defaults["released"])
    assert set(targets_of(filled)) > {"tasks.continual.Size"}


NAMES = """
import sys
from hydra import compose, initialize_config_module
from bench.runs.launch import resolve
from bench.runs.name import name
with initialize_config_module("conf", version_base="1.3"):
    for line in sys.argv[1:]:
        print(name(resolve(compose("config", line.split()))))
"""
LINES = [
    "task=toy_coreset algorithm=bome",
    "task=toy_coreset algorithm=bome task.variant=code algorithm.eta=0.3 seed=4",
    "task=quadratic algorithm=bome",
    "task=toy_coreset algorithm=itd",
]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the project's code."""
    for package in ("bench", "tasks", "algorithms", "conf", "hydra_plugins"):
        shutil.copytree(ROOT / package, tmp_path / package)
    return tmp_path


def names(project: Path) -> list[str]:
    """The names that the project, or a copy of it, gives to the runs of LINES."""
    command = [sys.executable, "-c", NAMES, *LINES]
    made = subprocess.run(command, cwd=project, env={"PYTHONPATH": str(project), "PATH": ""},
                          capture_output=True, text=True)  # fmt: skip
    assert made.returncode == 0, made.stderr
    return made.stdout.split()


@pytest.fixture(scope="module")
def before() -> list[str]:
    """Their names in the project as it is."""
    return names(ROOT)


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_moving_a_method_and_adding_a_setting_change_no_name(
    project: Path, before: list[str]
) -> None:
    (project / "algorithms" / "bilevel" / "bome.py").rename(project / "algorithms" / "moved.py")
    for file in [*project.rglob("*.py"), *project.rglob("*.yaml")]:
        text = file.read_text()
        if "algorithms.bilevel.bome" in text:
            file.write_text(text.replace("algorithms.bilevel.bome", "algorithms.moved"))
    third = "    third_start: Point | None = None,\n"
    edit(project / "tasks" / "toy.py", third, f"{third}    mine: float = 0.5,\n")
    assert (project / "conf" / "algorithm" / "bome.yaml").read_text().count("algorithms.moved") == 1
    assert names(project) == before
    assert len(set(before)) == len(LINES)


def test_raising_a_version_changes_names(project: Path, before: list[str]) -> None:
    place = project / "algorithms" / "bilevel" / "bome.py"
    edit(place, "def bome(", "@version(2)\ndef bome(")
    edit(place, "from bench.core.settings import ", "from bench.core.settings import version, ")
    after = names(project)
    changed = [a.rpartition("/")[0] == b.rpartition("/")[0] and a != b
               for a, b in zip(before, after, strict=True)]  # fmt: skip
    assert changed == [True, True, True, False]
    assert after[3] == before[3]
