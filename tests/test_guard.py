"""What a configuration may make Hydra call: every way in, and everything that is let through."""

from typing import Any

import pytest
import yaml
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from bench import guard

BASIC = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"
OURS = "hydra_plugins.bilevel_bench.Sweep"


def refused(hydra: dict[str, Any]) -> str:
    """What is told; nothing if it is let through."""
    try:
        guard.refuse_foreign(OmegaConf.create({"hydra": hydra}))
    except HydraException as error:
        return str(error)
    return ""


LET_THROUGH: list[dict[str, Any]] = [
    {},
    {"run": {"dir": "${x}/runs"}, "job": {"name": "x", "chdir": False}, "mode": None},
    {"callbacks": {}},
    {"callbacks": []},
    {"sweeper": {"_target_": OURS}},
    {"sweeper": {"_target_": BASIC, "max_batch_size": None}},
    {"sweeper": {"_target_": OURS, "params": None}},
    {"sweeper": {"_target_": OURS, "params": {}}},
    {"launcher": {"_target_": "bench.sweeps.launchers.Local", "jobs": 2}},
    {"job_logging": {"handlers": {"console": {"class": "logging.StreamHandler"}}}},
    {"job_logging": {"handlers": {"f": {"class": "logging.FileHandler", "filename": "x.log"}}}},
    {"job_logging": {"formatters": {"f": {"class": "logging.Formatter", "format": "[%(name)s]"}}}},
    {"hydra_logging": {"handlers": {"c": {"stream": "ext://sys.stdout"}}}},
    {"hydra_logging": {"handlers": {"c": {"stream": "ext://sys.stderr"}}, "version": 1}},
    {"hydra_logging": {"handlers": {}, "root": {"handlers": []}}},
    {"help": {"class": "os.mkdir", "()": "os.mkdir", "text": "ext://os.mkdir ${x}"}},
    {"overrides": {"task": ["task._target_=os.system"]}},
]


@pytest.mark.parametrize("hydra", LET_THROUGH, ids=str)
def test_what_this_project_brings_is_let_through(hydra: dict[str, Any]) -> None:
    assert refused(hydra) == ""


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"callbacks": {"x": {"_target_": "os.mkdir"}}}, "callbacks.x._target_=os.mkdir"),
    ({"callbacks": {"x": {"path": 3}}}, "callbacks.x.path=3"),
    ({"callbacks": None}, "callbacks=None"),
    ({"callbacks": "${x}"}, "callbacks=${x}"),
    ({"callbacks": [1]}, "callbacks.0=1"),
    ({"run": {"_target_": "os.mkdir"}}, "run._target_=os.mkdir"),
    ({"job_logging": {"_target_": "os.mkdir"}}, "job_logging._target_=os.mkdir"),
    ({"launcher": {"_target_": "x"}, "sweeper": {"_target_": "y"}}, "sweeper._target_=y"),
    ({"sweeper": {"_target_": OURS, "params": {"x": 1}}}, "sweeper.params.x=1"),
    ({"sweeper": {"_target_": OURS, "max_jobs": "${x}"}}, "sweeper.max_jobs=${x}"),
    ({"sweeper": {"_target_": "${x}"}}, "sweeper._target_=${x}"),
    ({"sweeper": "${x}"}, "sweeper=${x}"),
    ({"job_logging": {"handlers": {"x": {"()": "logging.FileHandler"}}}},
     "job_logging.handlers.x.()=logging.FileHandler"),
    ({"job_logging": {"handlers": {"x": {"class": "os.mkdir"}}}},
     "job_logging.handlers.x.class=os.mkdir"),
    ({"job_logging": {"handlers": {"x": {"class": None}}}}, "job_logging.handlers.x.class=None"),
    ({"hydra_logging": {"handlers": {"x": {"stream": "ext://os.environ"}}}},
     "hydra_logging.handlers.x.stream=ext://os.environ"),
    ({"hydra_logging": {"handlers": {"x": {"stream": "ext://sys.stdout.x"}}}},
     "hydra_logging.handlers.x.stream=ext://sys.stdout.x"),
    ({"hydra_logging": {"root": {"handlers": ["console", "${x}"]}}},
     "hydra_logging.root.handlers.1=${x}"),
]  # fmt: skip


@pytest.mark.parametrize(("hydra", "where"), REFUSED, ids=str)
def test_everything_else_that_would_be_called_is_refused(hydra: dict[str, Any], where: str) -> None:
    assert refused(hydra) == f"hydra.{where}: only what this project brings may be called"


def test_leaves_are_all_values_and_empty_lists_none() -> None:
    node = {"a": {"b": [1, {"c": None}], "d": {}}, "e": [], "f": "x"}
    assert list(guard.leaves(node, "p")) == [
        ("p.a.b.0", "0", 1), ("p.a.b.1.c", "c", None), ("p.f", "f", "x"),
    ]  # fmt: skip


class Loader:
    """Stands in for Hydra's: composes what it is told, or raises."""

    def __init__(self, gives: Any):
        self.gives = gives

    def load_configuration(self, *arguments: Any, **named: Any) -> Any:
        if isinstance(self.gives, Exception):
            raise self.gives
        return OmegaConf.create({"hydra": self.gives, "seen": [list(arguments), named]})


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Hydra's own loader with the guard on it."""
    monkeypatch.setattr(ConfigLoaderImpl, "load_configuration", Loader.load_configuration)
    guard.install()
    return ConfigLoaderImpl.load_configuration


def test_whatever_hydra_composes_is_looked_at(installed: Any) -> None:
    cfg = installed(Loader({}), 1, 2, three=4)
    assert OmegaConf.to_container(cfg)["seen"] == [[1, 2], {"three": 4}]  # type: ignore[call-overload,index]
    with pytest.raises(HydraException, match=r"hydra\.run\._target_=x: only what"):
        installed(Loader({"run": {"_target_": "x"}}))


def test_it_is_installed_once(installed: Any) -> None:
    guard.install()
    assert ConfigLoaderImpl.load_configuration is installed
    assert installed.__wrapped__ is Loader.load_configuration


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RecursionError("x"), "the configuration: a value contains itself"),
        (yaml.YAMLError("two\n  lines"), "the configuration: two lines"),
        (ValueError("a\tvalue"), "the configuration: a value"),
        (TypeError("a type"), "the configuration: a type"),
    ],
)
def test_what_cannot_be_composed_is_told_in_one_line(
    error: Exception, said: str, installed: Any
) -> None:
    with pytest.raises(HydraException) as told:
        installed(Loader(error))
    assert str(told.value) == said


def test_omegaconfs_own_errors_are_told_elsewhere(installed: Any) -> None:
    for error in (OmegaConfBaseException("x"), KeyError("y")):
        with pytest.raises(type(error)) as told:
            installed(Loader(error))
        assert told.value is error
