"""What a configuration may ask of Hydra: no more than what this project's own files ask of it."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from hydra import compose, initialize_config_module
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from omegaconf.resolvers import oc

from bench import guard
from bench.core import resolvers

OWN: dict[str, Any] = {
    "run": {"dir": "."}, "job": {"name": "app", "env_set": {}, "num": "???"}, "callbacks": {},
    "launcher": {"_target_": "l", "workers": None}, "sweeper": {"_target_": "s"}, "verbose": False,
    "overrides": {"task": []}, "runtime": {"cwd": "/a", "version": "1", "choices": {}},
    "mode": None, "searchpath": [], "output_subdir": None, "job_logging": {"root": None},
}  # fmt: skip


def refused(path: str, value: Any) -> str:
    """What is told of Hydra's node with this value at this path; nothing if it is let through."""
    cfg = OmegaConf.create({"hydra": copy.deepcopy(OWN)})
    OmegaConf.update(cfg, f"hydra.{path}", value)
    try:
        guard.refuse_foreign(cfg, OWN)
    except HydraException as error:
        return str(error)
    return ""


LET_THROUGH: list[tuple[str, Any]] = [
    ("run.dir", "."),
    ("callbacks", {}),
    ("launcher", {"_target_": "other", "cpus": 3, "options": {"account": "x"}}),
    ("launcher.workers", 2),
    ("launcher.workers", "${run.threads}"),
    ("verbose", True),
    ("verbose", "hydra"),
    ("verbose", ["a", "b"]),
    ("job.name", "mine"),
    ("job.config_name", "mine"),
    ("job.override_dirname", "a=1"),
    ("overrides.task", ["task._target_=os.system"]),
    ("runtime.cwd", "/b"),
    ("runtime.choices.task", "x"),
    ("mode", "RUN"),
]


@pytest.mark.parametrize(("path", "value"), LET_THROUGH, ids=str)
def test_what_a_configuration_may_choose_is_let_through(path: str, value: Any) -> None:
    assert refused(path, value) == ""


REFUSED: list[tuple[str, Any, str]] = [
    ("callbacks.x", {"_target_": "os.mkdir"}, "callbacks.x._target_=os.mkdir"),
    ("callbacks", None, "callbacks=None"),
    ("callbacks", "${x}", "callbacks=${x}"),
    ("job.env_set.CC", "sh", "job.env_set.CC=sh"),
    ("job.num", 3, "job.num=3"),
    ("job.new", 3, "job.new=3"),
    ("job_logging.root", {}, "job_logging.root={}"),
    ("job_logging.handlers", {"x": {"class": "y"}}, "job_logging.handlers.x.class=y"),
    ("sweeper._target_", "os.mkdir", "sweeper._target_=os.mkdir"),
    ("sweeper.params", {"x": 1}, "sweeper.params.x=1"),
    ("sweeper", "${x}", "sweeper=${x}"),
    ("searchpath", ["pkg://x"], "searchpath.0=pkg://x"),
    ("runtime.version", "2", "runtime.version=2"),
    ("runtime.choices_of_mine", "2", "runtime.choices_of_mine=2"),
    ("launchers", "x", "launchers=x"),
    ("env", {"x": 1}, "env.x=1"),
]


@pytest.mark.parametrize(("path", "value", "where"), REFUSED, ids=str)
def test_everything_else_is_refused_by_its_name(path: str, value: Any, where: str) -> None:
    advice = guard.ADVICE["sweeper"] if path.startswith("sweeper") else "leave it out"
    assert refused(path, value) == f"hydra.{where}: a configuration cannot set this; {advice}"


@pytest.mark.parametrize(
    ("key", "value", "where"),
    [
        ("n_trials", 3, ""),
        ("metric", "objective", ""),
        ("params", {"algorithm": {"outer_lr": "interval(0, 1)"}, "a.b": "choice(1, 2)"}, ""),
        ("nothing", 3, "nothing=3"),
        ("params", {"a": {"_target_": "os.mkdir"}}, "params.a._target_=os.mkdir"),
        ("params", {"a": [{"_target_": "os.mkdir"}]}, "params.a.0._target_=os.mkdir"),
        ("params", {"_args_": [1]}, "params._args_.0=1"),
        ("max_batch_size", 3, "max_batch_size=3"),
    ],
)
def test_the_search_has_settings_of_ours_and_calls_nothing(
    key: str, value: Any, where: str
) -> None:
    said = refused("sweeper", {**guard.own_search(), key: value})
    assert (said.partition(": a conf")[0] if said else "") == (where and f"hydra.sweeper.{where}")
    secret = refused("sweeper", {**guard.own_search(), "params": {"a": "${oc.env:HOME}"}})
    assert "may be interpolated" in secret


def test_what_is_left_out_is_a_change_too() -> None:
    less = {key: value for key, value in OWN.items() if key != "run"}
    with pytest.raises(HydraException, match=r"hydra\.run\.dir=None: a configuration cannot"):
        guard.refuse_foreign(OmegaConf.create({"hydra": less}), OWN)


def test_a_key_with_a_dot_hides_nothing() -> None:
    node = {**copy.deepcopy(OWN), "run": {"dir": "x"}, "run.dir": "."}
    assert list(guard.differing(node, OWN)) == [("run.dir", "x")]


@pytest.mark.parametrize("path", ["run.dir", "sweep.dir", "output_subdir"])
def test_for_a_place_the_word_of_ours_is_told(path: str) -> None:
    assert refused(path, "x") == (
        f"hydra.{path}=x: a configuration cannot set this; "
        "write run.root=... for where run folders go"
    )


@pytest.mark.parametrize("value", [3, None, [1], {"a": 1}], ids=str)
def test_what_is_no_name_of_a_log_is_refused(value: Any) -> None:
    assert "hydra.verbose=" in refused("verbose", value)


FINE = ["x", "${a}", "${.a}", "${a.b}_${c}", "${oc.select:a,1}", "${oc.env:BENCH_RUNS}", 3, None,
        "${oc.env:BENCH_DATA,'~/x'}"]  # fmt: skip
FOREIGN = ["${oc.env:HOME}", "x${oc.env:HOME,}", "${ oc.env:HOME}", "${oc.env:BENCH_RUNS2}",
           "${oc.env:BENCH_RUNS,${oc.env:HOME}}", "${oc.${a}:HOME}", "${oc.decode:x}",
           "${hydra:runtime.cwd}", "${now:%Y}", "${oc.select:${oc.env:HOME}}", "${${a}}", "${",
           "${oc.env:'HOME'}", "${a:b}", "${oc.create:[]}", "${oc.env:\nHOME}"]  # fmt: skip


@pytest.mark.parametrize("value", FINE, ids=str)
def test_other_settings_may_be_interpolated(value: Any) -> None:
    assert resolvers.refusal({"a": {"b": [0, value]}}) is None


@pytest.mark.parametrize("value", FOREIGN, ids=str)
@pytest.mark.parametrize("within", ["launcher.workers", "job.name", "verbose", "overrides.task"])
def test_no_other_resolver_is_asked_for(value: str, within: str) -> None:
    told = resolvers.refusal({"a": {"b": [0, value]}})
    assert told is not None
    assert told.startswith(f"a.b.1={value}: only other settings, ")
    own = copy.deepcopy(OWN)
    parent, _, last = within.rpartition(".")
    (own[parent] if parent else own)[last] = value
    try:
        cfg = OmegaConf.create({"hydra": own})
    except OmegaConfBaseException:  # OmegaConf itself does not take it for an interpolation
        return
    with pytest.raises(HydraException, match="only other settings"):
        guard.refuse_foreign(cfg, OWN)


class Loader:
    """Stands in for Hydra's: composes what it is told, or raises."""

    def __init__(self, gives: Any):
        self.gives = gives

    def load_configuration(self, *arguments: Any, **named: Any) -> Any:
        if isinstance(self.gives, Exception):
            raise self.gives
        return OmegaConf.create({"hydra": self.gives, "seen": [list(map(str, arguments)), named]})


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Hydra's own loader with the guard on it."""
    monkeypatch.setattr(ConfigLoaderImpl, "load_configuration", Loader.load_configuration)
    follow = ConfigLoaderImpl._process_config_searchpath
    monkeypatch.setattr(ConfigLoaderImpl, "_process_config_searchpath", follow)
    monkeypatch.setattr(guard, "_defaults", {False: {}, True: {"a": 1}})
    guard.install()
    yield ConfigLoaderImpl.load_configuration
    OmegaConf.register_new_resolver("oc.env", oc.env, replace=True)


def test_whatever_hydra_composes_is_looked_at(installed: Any) -> None:
    cfg = installed(Loader({"a": 1, "verbose": False}), "config", three=4)
    assert OmegaConf.to_container(cfg)["seen"] == [["config"], {"three": 4}]  # type: ignore[call-overload,index]
    for given, named in ((("config",), {}), ((), {"config_name": "config"})):
        with pytest.raises(HydraException, match=r"hydra\.a=2: a configuration"):
            installed(Loader({"a": 2, "verbose": False}), *given, **named)
    with pytest.raises(HydraException, match=r"hydra\.a=1: a configuration"):
        installed(Loader({"a": 1, "verbose": False}), None)


def test_it_is_installed_once(installed: Any) -> None:
    guard.install()
    assert ConfigLoaderImpl.load_configuration is installed
    assert installed.__wrapped__ is Loader.load_configuration


def test_a_list_of_defaults_reads_no_other_variable(
    installed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCH_RUNS", "here")
    monkeypatch.delenv("BENCH_DATA", raising=False)
    asked = {"a": "${oc.env:BENCH_RUNS}", "b": "${oc.env:BENCH_DATA,x}", "c": "${oc.env:HOME}"}
    cfg = OmegaConf.create(asked)
    assert (cfg.a, cfg.b) == ("here", "x")
    with pytest.raises(OmegaConfBaseException, match=r"oc\.env of HOME: only of BENCH_RUNS"):
        _ = cfg.c


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RecursionError("x"), "the configuration: a value contains itself"),
        (yaml.YAMLError("two\n  lines"), "the configuration: two lines"),
        (ValueError("a\tvalue"), "the configuration: a value"),
        (TypeError("a type"), "the configuration: a type"),
        (AttributeError("no"), "the configuration: no"),
        (KeyError("HOME"), "the configuration: there is no 'HOME'"),
    ],
)
def test_what_cannot_be_composed_is_told_in_one_line(
    error: Exception, said: str, installed: Any
) -> None:
    with pytest.raises(HydraException) as told:
        installed(Loader(error), "config")
    assert str(told.value) == said


def test_omegaconfs_own_errors_are_told_elsewhere(installed: Any) -> None:
    error = OmegaConfBaseException("x")
    with pytest.raises(OmegaConfBaseException) as told:
        installed(Loader(error), "config")
    assert told.value is error


@pytest.mark.parametrize("with_ours", [False, True])
def test_the_node_of_ours_is_what_hydra_composes(with_ours: bool) -> None:
    with initialize_config_module("conf", version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        own = guard.own_node(ConfigLoaderImpl.load_configuration, loader, with_ours)
        if with_ours:
            cfg = compose("config", ["task=toy_minimax"], return_hydra_config=True)
        else:
            cfg = loader.load_configuration(None, [], RunMode.RUN)
    guard.refuse_foreign(cfg, own)
    assert own["output_subdir"] == (None if with_ours else ".hydra")
