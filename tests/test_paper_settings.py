"""What the papers use for hyper-cleaning and learnable regularisation, as their texts have it.

BOME's section 6.1 and A.4: an inner step of .01, the outer step from {10, ..., 1000}, momentum from
{0, .9}; A.5: both steps from grids whose best for BOME is 100. The rest is the released code's.
"""

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from bench.core.draw import generator
from bench.core.loop import run
from bench.core.settings import build
from bench.core.task import Context
from bench.runs.launch import complete
from tests.composed import composed

CONF = Path(__file__).parent.parent / "conf"


def settings_of(*overrides: str) -> dict[str, Any]:
    """All settings of a run by their paths: algorithm.outer_lr and the like."""
    cfg = composed(*overrides)
    found: dict[str, Any] = {}

    def enter(node: Any, path: str) -> None:
        for key, value in node.items():
            if isinstance(value, dict):
                enter(value, f"{path}{key}.")
            else:
                found[path + key] = value

    enter(complete(OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)), "")
    return found


MOMENTUM = {"outer.rule": "momentum", "outer_lr": 100.0, "outer.momentum": 0.9}
INNER = {"inner_lr": 0.01, "inner_momentum": 0.9}
CLEANING: dict[str, dict[str, Any]] = {
    "aid_cg": INNER | MOMENTUM,
    "aid_fp": INNER | MOMENTUM,
    "aid_neumann": INNER | MOMENTUM | {"eta": 0.1},
    "bome": MOMENTUM | {
        "lower.rule": "momentum", "lower_lr": 0.01, "lower.momentum": 0.9, "inner_lr": 0.01,
        "inner_momentum": 0.0, "eta": 0.5, "T": 10, "barrier": "norm",
    },
    "bsg1": INNER | MOMENTUM,
    "bvfsm": MOMENTUM | {"lower_lr": 0.01, "inner_momentum": 0.9, "l2": 0.01, "log": 1.0},
    "itd": INNER | MOMENTUM,
    "penalty": INNER | MOMENTUM | {"lam": 0.01},
    "reverse": INNER | MOMENTUM,
    "upper_only": {"lower.rule": "momentum", "lower_lr": 0.01, "lower.momentum": 0.9, "l2": 0.0},
}  # fmt: skip
PLAIN = {"outer.rule": "gd", "outer_lr": 100.0, "inner_lr": 100.0}
NEWSGROUPS: dict[str, dict[str, Any]] = {
    "aid_cg": PLAIN | {"outer_lr": 1.0},
    "aid_fp": PLAIN,
    "bome": PLAIN | {
        "lower.rule": "gd", "lower_lr": 100.0, "eta": 0.5, "T": 10, "barrier": "norm",
        "inner_momentum": 0.0,
    },
    "bsg1": PLAIN,
    "bvfsm": {"outer.rule": "gd", "outer_lr": 100.0, "lower_lr": 100.0, "l2": 1e-6, "log": 0.01},
    "hoag": {"outer_lr": 100.0, "inner_lr": 100.0, "T": 10, "Q": 10},
    "itd": PLAIN,
    "penalty": PLAIN | {"lam": 0.01},
    "reverse": PLAIN,
    "stocbio": PLAIN | {"batch": 1000, "eta": 100.0},
    "upper_only": {"lower.rule": "momentum", "lower_lr": 100.0, "lower.momentum": 0.9},
}  # fmt: skip
TABLES = {"hyper_cleaning": CLEANING, "newsgroups": NEWSGROUPS}
RUNS = {
    "hyper_cleaning": {"steps": 500, "every": 10},
    "newsgroups": {"steps": 500, "every": 10},
    "hyper_cleaning/upper_only": {"steps": 5000, "every": 50},
    "newsgroups/upper_only": {"steps": 300, "every": 10},
}


def test_every_tuned_pair_is_in_the_tables() -> None:
    for task, table in TABLES.items():
        files = {path.stem.removeprefix(f"{task}_") for path in CONF.glob(f"tuned/{task}_*.yaml")}
        assert files == set(table)


@pytest.mark.parametrize(
    ("task", "method"), [(task, name) for task, table in TABLES.items() for name in table]
)
def test_tuned_settings(task: str, method: str) -> None:
    found = settings_of(f"task={task}", f"algorithm={method}")
    expected = {f"algorithm.{key}": value for key, value in TABLES[task][method].items()}
    length = RUNS.get(f"{task}/{method}", RUNS[task])
    expected |= {f"run.{key}": value for key, value in length.items()}
    assert {key: found.get(key) for key in expected} == expected


DIGITS = {"name": "digits", "train": 1000, "val": 100, "val2": 200, "test": 497}
LINE = {"references": False, "pretraining.steps": 0, "data.name": "digits", "variant": "paper"}
EXPERIMENTS: dict[str, dict[str, dict[str, Any]]] = {
    "hyper_cleaning_code_bome": {
        "task": {
            "variant": "code", "protocol": "bome", "data.name": "mnist", "upper_data": "validation",
            "pretraining.steps": 5000, "pretraining.with_validation": True,
            "pretraining.best": True, "pretraining.lr": 0.01, "pretraining.momentum": 0.9,
            "pretraining.l2": 0.001, "pretraining.start": "uniform", "corruption": 0.5,
            "redraw": "any", "c": 0.001,
        },
        "algorithm": MOMENTUM | {
            "lower.rule": "momentum", "lower_lr": 0.01, "lower.momentum": 0.9, "inner_lr": 0.01,
            "barrier": "value", "inner_momentum": 0.0, "eps": 1e-8, "eta": 0.5, "T": 10,
        },
        "run": {"steps": 5000, "every": 50},
    },
    "hyper_cleaning_line_clean": {
        "task": LINE | {"upper_data": "clean"},
        "algorithm": {"lower_lr": 0.01, "lower.momentum": 0.9, "l2": 0.0},
        "run": {"steps": 5000, "every": 50},
    },
    "hyper_cleaning_line_noisy": {
        "task": LINE | {"upper_data": "noisy"},
        "algorithm": {"lower_lr": 0.01, "lower.momentum": 0.9, "l2": 0.001},
        "run": {"steps": 5000, "every": 50},
    },
    "hyper_cleaning_line_validation": {
        "task": LINE | {"upper_data": "validation"},
        "algorithm": {"lower_lr": 0.01, "lower.momentum": 0.9, "l2": 0.0},
        "run": {"steps": 5000, "every": 50},
    },
    "newsgroups_code_bome": {
        "task": {
            "variant": "code", "protocol": "bome", "source": "newsgroups",
            "pretraining.steps": 500, "pretraining.lr": 100.0, "pretraining.best": True,
        },
        "algorithm": {
            "outer.rule": "momentum", "outer_lr": 100.0, "outer.momentum": 0.9,
            "lower.rule": "momentum", "lower_lr": 100.0, "lower.momentum": 0.9, "inner_lr": 100.0,
            "barrier": "value", "eta": 1e-4, "inner_momentum": 0.9, "keep_velocity": True,
            "eps": 1e-8, "T": 10,
        },
        "run": {"steps": 1000, "every": 10},
    },
}  # fmt: skip


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiments(name: str) -> None:
    """The released codes' grids at their middle, and the lines that methods are held against."""
    found = settings_of(f"experiment={name}")
    method = "upper_only" if "line" in name else "bome"
    assert found["algorithm._target_"].endswith(f".{method}")
    for group, expected in EXPERIMENTS[name].items():
        assert {k: found.get(f"{group}.{k}") for k in expected} == expected


def test_every_experiment_of_these_tasks_is_in_the_table() -> None:
    files = {path.stem for task in TABLES for path in CONF.glob(f"experiment/{task}_*.yaml")}
    assert files == set(EXPERIMENTS)


def test_data_sets_have_the_papers_sizes() -> None:
    """A.4: 50,000 train, 5,000 validate, 5,000 choose, 10,000 test."""
    for name in ("digits", "mnist", "fashion_mnist"):
        found = settings_of(f"task/data={name}")
        sizes = [found[f"task.data.{part}"] for part in ("train", "val", "val2", "test")]
        whole = DIGITS["train"], DIGITS["val"], DIGITS["val2"], DIGITS["test"]
        assert sizes == ([*whole] if name == "digits" else [50_000, 5_000, 5_000, 10_000])
        assert found["task.data.name"] == name


def test_what_a_task_is_unless_told_otherwise() -> None:
    """BOME's text: half of the labels redrawn from all classes, c = .001, theta_0 pretrained on
    the corrupted data; on 20 Newsgroups without regularisation."""
    found = settings_of("task=hyper_cleaning")
    expected: dict[str, Any] = {
        "protocol": "bome", "variant": "paper", "corruption": 0.5, "redraw": "any", "c": 0.001,
        "upper_data": "validation", "recorrupt": 0.0, "frozen": False, "references": True,
        "pretraining.start": "uniform", "pretraining.steps": 500, "pretraining.lr": 0.01,
        "pretraining.momentum": 0.9, "pretraining.l2": 0.001, "pretraining.best": False,
        "pretraining.with_validation": False,
    }  # fmt: skip
    open_ones = ("weighting", "coupling", "start", "clamp", "bias", "standardise", "resplit")
    expected |= dict.fromkeys(open_ones)
    assert {k: found[f"task.{k}"] for k in expected} == expected
    found = settings_of("task=newsgroups")
    expected = {
        "source": "newsgroups", "protocol": "bome", "variant": "paper", "references": True,
        "upper_data": "validation", "headers": None, "regulariser": None, "start": None,
        "resplit": None, "pretraining.start": "normal", "pretraining.steps": 500,
        "pretraining.lr": 100.0, "pretraining.momentum": 0.9, "pretraining.best": True,
    }  # fmt: skip
    assert {k: found[f"task.{k}"] for k in expected} == expected


def test_a_run_on_newsgroups_stand_in() -> None:
    """From the configuration to measured rows: ten inner steps and one more gradient a step."""
    settings = ("task=newsgroups", "task.source=digits", "task.pretraining.steps=3")
    cfg = composed(*settings, "algorithm.outer_lr=1", "algorithm.lower_lr=1")
    config = complete(OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True))
    task, rows = build(config["task"], Context()), []  # type: ignore[var-annotated]
    assert task.init(generator())[1].shape == (64, 10)
    run(task, build(config["algorithm"]), seed=0, steps=2, every=2, on_row=rows.append)
    assert rows[-1]["calls/grad_g"] == 2 * 11
    assert {"test_accuracy", "val2_loss", "val_loss", "train_loss"} <= set(rows[-1])
