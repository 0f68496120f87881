"""Every configuration composes, names real settings, and is complete."""

import inspect
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from bench.core.settings import TUNING, BadSetting, check_settings, locate
from bench.runs.launch import complete
from bench.runs.name import name

CONF = Path(__file__).parent.parent / "conf"


def stems(group: str) -> list[str]:
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def composed(*overrides: str) -> dict[str, Any]:
    with initialize_config_module("conf", version_base="1.3"):
        cfg = compose("config", list(overrides))
    return complete(OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True))


# a task is composed with every method where its yaml reads the method's settings, or tunes them
PAIRS = {
    (task, algorithm)
    for task, algorithm in product(stems("task"), stems("algorithm"))
    if algorithm == "bome"
    or task == "quadratic"
    or "${oc.select:algorithm." in (CONF / "task" / f"{task}.yaml").read_text()
    or f"{task}_{algorithm}" in stems("tuned")
}


@pytest.mark.parametrize(("task", "algorithm"), sorted(PAIRS))
def test_a_pair_composes_to_a_complete_configuration(task: str, algorithm: str) -> None:
    composed(f"task={task}", f"algorithm={algorithm}")


@pytest.mark.parametrize("experiment", stems("experiment"))
def test_every_experiment_composes_and_differs_from_the_default(experiment: str) -> None:
    config = composed(f"experiment={experiment}")
    assert config["algorithm"]["_target_"].rpartition(".")[2] in experiment or "line" in experiment
    assert name(config) != name(composed())


@pytest.mark.parametrize(("group", "choice"), [*product(["logger"], stems("logger"))])
def test_other_groups_compose(group: str, choice: str) -> None:
    composed(f"{group}={choice}")


@pytest.mark.parametrize("data", stems("task/data"))
def test_every_data_set_composes(data: str) -> None:
    composed(f"task/data={data}")


@pytest.mark.parametrize("pair", stems("tuned"))
def test_tuned_settings_are_for_a_pair_that_exists(pair: str) -> None:
    assert pair in {f"{t}_{a}" for t, a in product(stems("task"), stems("algorithm"))}


@pytest.mark.parametrize("group", ["task", "algorithm", "descent", "task/data"])
def test_a_yaml_lists_every_argument_of_its_function(group: str) -> None:
    """Every argument can then be overridden without a plus sign, and is seen in --help."""
    for stem in stems(group):
        with initialize_config_module("conf", version_base="1.3"):
            node: Any = compose(f"{group}/{stem}")
        for part in group.split("/"):
            node = node[part]
        names = set(inspect.signature(locate(node["_target_"], stem)).parameters) - {"context"}
        assert set(node) - {"_target_", TUNING} == names, stem


def test_the_name_is_of_what_is_computed_not_of_how() -> None:
    first = name(composed("task=toy_coreset"))
    for same in ("run.threads=1", "run.device=cpu", "run.root=x", "logger=wandb", "data.root=x"):
        assert name(composed("task=toy_coreset", same)) == first
    for other in ("seed=1", "run.steps=7", "run.dtype=float64", "algorithm.T=3", "task.start=2"):
        assert name(composed("task=toy_coreset", other)) != first


def test_settings_left_out_are_the_defaults() -> None:
    full = check_settings({"_target_": "bench.numerics.descent.descent", "b1": 0}, "x")
    assert full == {
        "_target_": "bench.numerics.descent.descent", "rule": "gd", "momentum": 0.9, "b1": 0.0,
        "b2": 0.999, "eps": 1e-8,
    }  # fmt: skip
    with pytest.raises(BadSetting, match=r"x\.outer_lr is not set: write x\.outer_lr=\.\.\."):
        check_settings({"_target_": "algorithms.games.gradient.gda"}, "x")
