"""Refuses configurations that would have Hydra do anything but compose and sweep.

Hydra acts on its own node, `hydra`, before this suite sees the configuration: it sets environment
variables, opens log files, makes folders, calls callbacks. Every file of a configuration folder may
change that node. So the node must be what this project's own files make of it, but for the few
settings below. Tasks, algorithms, loggers and launchers are checked by bench.core.settings.locate.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial, wraps
from importlib.resources import files
from operator import itemgetter
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from omegaconf.resolvers import oc

from bench.core.resolvers import VARIABLES, leaves, refusal
from bench.hydra_parts import ConfigLoaderImpl

FREE = ("launcher", "verbose", "job.name")  # what a configuration may choose
FILLED = (  # by Hydra
    "overrides",
    "mode",
    "runtime.choices",
    "runtime.config_sources",
    "runtime.cwd",
    "job.config_name",
    "job.override_dirname",
)
OF_PLACES = "write run.root=... for where run folders go"
ADVICE = {
    "run": OF_PLACES,
    "sweep": OF_PLACES,
    "output_subdir": OF_PLACES,
    "sweeper": "hydra/sweeper=optuna is the one that has settings",
}

# Hydra first composes to learn the mode, and then writes one itself, whatever was raised there
_wrong_mode: list[HydraException] = []
_defaults: dict[bool, dict[str, Any]] = {}  # of Hydra's node: with our configuration, without


def install() -> None:
    """Check every configuration that Hydra composes from now on in this process."""
    _wrong_mode.clear()
    compose = ConfigLoaderImpl.load_configuration
    if hasattr(compose, "__wrapped__"):
        return

    @wraps(compose)
    def load_and_check(self: ConfigLoaderImpl, *arguments: Any, **named: Any) -> DictConfig:
        try:
            if named.get("run_mode") is RunMode.MULTIRUN:
                cfg = compose_sweep(partial(compose, self, *arguments, **named), named["overrides"])
            else:
                cfg = compose(self, *arguments, **named)
            with_ours = named.get("config_name", *arguments[:1]) is not None
            if with_ours not in _defaults:
                _defaults[with_ours] = own_node(compose, self, with_ours)
        except OmegaConfBaseException:  # some are ValueErrors too, but bench.main explains all
            raise
        except RecursionError:
            raise HydraException("the configuration: a value contains itself") from None
        except KeyError as error:  # Hydra copies variables for hydra.job.env_copy while it composes
            raise HydraException(f"the configuration: there is no {error}") from None
        except (yaml.YAMLError, ValueError, TypeError, AttributeError) as error:
            raise HydraException(f"the configuration: {' '.join(str(error).split())}") from None
        refuse_foreign(cfg, _defaults[with_ours])
        refuse_mode(cfg, [*named.get("overrides", []), *(arguments[1] if arguments[1:] else [])])
        return cfg

    def stay(self: ConfigLoaderImpl, *arguments: Any) -> None:
        """Leave hydra.searchpath alone, which may import any package."""

    ConfigLoaderImpl.load_configuration = load_and_check  # type: ignore[method-assign]
    ConfigLoaderImpl._process_config_searchpath = stay  # type: ignore[method-assign,assignment]
    # a list of defaults is resolved while Hydra composes, before anything can be looked at
    OmegaConf.register_new_resolver("oc.env", own_variable, replace=True)


def compose_sweep(compose: Callable[..., DictConfig], overrides: Sequence[str]) -> DictConfig:
    """The configuration of a sweep itself, which says where and how its runs are made.

    Hydra composes it with the default choice of a group that is swept, as by algorithm=aid_cg,itd,
    and would refuse the settings that the default has not. They are left to the runs, each of which
    is composed with all overrides.
    """
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    for each in parsed:
        if getattr(each.value(), "step", None) == 0:  # of a range
            raise HydraException(
                f"{each.input_line}: a step of 0 comes nowhere; write another step"
            )
    swept = tuple(place_of(each) for each in parsed if each.is_sweep_override())
    everything = "experiment" in swept  # its files choose other groups
    shared = [
        each.input_line or ""
        for each in parsed
        if each.is_sweep_override()
        or each.is_hydra_override()
        or place_of(each) == "run.root"  # where the sweep's own folder is
        or not (everything or within(place_of(each), swept))
    ]
    cfg = compose(overrides=shared)
    cfg.hydra.overrides.task = [each.input_line for each in parsed if not each.is_hydra_override()]
    return cfg


def place_of(override: Override) -> str:
    """Where in a configuration an override of a value or a choice of a group has its effect."""
    return override.package or override.key_or_group.replace("/", ".")


def own_variable(name: str, *default: Any) -> Any:
    """The resolver oc.env for the variables of this project; raises ValueError for others."""
    if name not in VARIABLES:
        raise ValueError(f"oc.env of {name}: only of {' or '.join(VARIABLES)}")
    return oc.env(name, *default)


def own_node(compose: Any, loader: ConfigLoaderImpl, with_ours: bool) -> dict[str, Any]:
    """Hydra's node as this project's own files make it; without them, as Hydra's own files do.

    compose: Hydra's function, which is called without a configuration, as that takes half the time.
    """
    choices, settings = [], {}
    if with_ours:
        own = yaml.safe_load(files("conf").joinpath("config.yaml").read_text())
        lines = [
            pair for entry in own["defaults"] if isinstance(entry, dict) for pair in entry.items()
        ]
        words = [(key.rpartition(" "), value) for key, value in lines]
        choices = [f"{group}={value}" for (kind, _, group), value in words if kind == "override"]
        settings = own["hydra"]
    node = OmegaConf.merge(compose(loader, None, choices, RunMode.RUN).hydra, settings)
    found = OmegaConf.to_container(node, resolve=False)
    assert isinstance(found, dict)
    return {str(key): value for key, value in found.items()}


def refuse_foreign(cfg: DictConfig, own: dict[str, Any]) -> None:
    """Raise HydraException, in one line, for a setting of Hydra's that is not what `own` has, and
    for an interpolation that is not one of ours."""
    found = OmegaConf.to_container(cfg, resolve=False)
    assert isinstance(found, dict)
    node = found.pop("hydra")
    wrong = refusal(found)
    if wrong is not None:
        raise HydraException(wrong)
    own, free = with_search(node, own)
    for path, value in differing(node, own):
        # Hydra would call what a _target_ names, also within the settings of its sweeper
        special = path.startswith("sweeper.") and "._" in path
        if special or not within(path, free + FILLED):
            advice = ADVICE.get(path.partition(".")[0], "leave it out")
            raise HydraException(f"hydra.{path}={value}: a configuration cannot set this; {advice}")
        if not within(path, FILLED[1:]) and (wrong := refusal(value, f"hydra.{path}")) is not None:
            raise HydraException(wrong)
    verbose = node["verbose"]
    names = verbose if isinstance(verbose, list) else [verbose]
    if not all(isinstance(name, bool | str) for name in names):
        raise HydraException(f"hydra.verbose={verbose}: write true, or a list of names")


def with_search(
    node: dict[str, Any], own: dict[str, Any]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """What Hydra's node has to be, and what a configuration may choose in it.

    A sweeper's settings are free only if it is the search by optuna, hydra/sweeper=optuna.
    """
    search = own_search()
    sweeper = node.get("sweeper")
    if not isinstance(sweeper, dict) or sweeper.get("_target_") != search["_target_"]:
        return own, FREE
    more = tuple(f"sweeper.{key}" for key in search if key != "_target_")
    return {**own, "sweeper": search}, FREE + more


@cache
def own_search() -> dict[str, Any]:
    """The search by optuna as this project's own file has it."""
    text = files("conf").joinpath("hydra", "sweeper", "optuna.yaml").read_text()
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def refuse_mode(cfg: DictConfig, overrides: Sequence[str]) -> None:
    """Raise HydraException if a file says whether this is a run or a sweep.

    overrides: what the command line, or Hydra itself, has overridden.
    """
    mode = OmegaConf.select(cfg, "hydra.mode")
    if mode is not None and not any(word.startswith("hydra.mode=") for word in overrides):
        advice = "a configuration cannot set this; write bench -m for a sweep"
        _wrong_mode.append(HydraException(f"hydra.mode={mode.name}: {advice}"))
    if _wrong_mode:
        raise _wrong_mode[0]


def differing(node: dict[str, Any], own: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The values of a node, by their paths, that `own` does not have there, or has otherwise."""
    there, ours = sorted(leaves(node), key=itemgetter(0)), dict(leaves(own))
    for path, value in there:  # sorted: env_copy comes before the values that it copies
        if path not in ours or value != ours[path]:
            yield path, value
    for path in sorted(ours.keys() - {path for path, _ in there}):
        yield path, None


def within(path: str, some: tuple[str, ...]) -> bool:
    """Whether a path is one of some paths, or below one."""
    return any(path == other or path.startswith(f"{other}.") for other in some)
