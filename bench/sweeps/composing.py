"""Composes many configurations by Hydra, of which it keeps the parts that they share."""

import pickle
import re
from collections.abc import Iterable, Sequence
from importlib.resources import files
from itertools import chain
from typing import Any

import yaml
from hydra import initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType, QuotedString
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from bench.core.settings import BadSetting, closest, unknown_setting
from bench.hydra_parts import put_in

ENVIRONMENT_VALUE = re.compile(r"\$\{oc\.env:[^${}]*\}")


class Composer:
    """Composes configurations faster than Hydra, which takes 0.1 s for each.

    Hydra composes each choice of groups only once. Single values are then written into a copy, by
    the function with which Hydra writes them (bench.hydra_parts).
    """

    def __init__(self, loader: Any, name: str | None, hydra: Sequence[str] = ()):
        """loader: Hydra's. name: the configuration's, such as config. hydra: overrides of Hydra's
        own settings."""
        self.loader, self.name, self.hydra = loader, name, list(hydra)
        self.parser = OverridesParser.create(config_loader=loader)
        self.parsed: dict[str, Override] = {}
        self.groups: dict[str, bool] = {}  # whether a key is a group
        self.bases: dict[tuple[str, ...], bytes] = {}  # pickles, of which copies are made fastest
        # the last configuration, if only plain values were written into it, with their keys
        self.last: tuple[Any, DictConfig] | None = None

    @property
    def has_own_folder(self) -> bool:
        """Whether --config-dir was given, so that a choice may be a file of one's own."""
        path = self.loader.get_search_path().get_path()
        return any(part.provider == "command-line" for part in path)

    def __call__(self, overrides: Sequence[str]) -> DictConfig:
        """The configuration of a run; a later call may change it, so it must be used at once, or
        `own` be called.

        Raises BadSetting for a value of a setting that is not there, as a method has not what
        another has, and what Hydra raises for other overrides that cannot be composed.
        """
        groups = tuple(o for o in overrides if self._is_group(o))
        values = [self._parse(o) for o in overrides if o not in groups]
        plain = all(v.type is OverrideType.CHANGE and is_plain(v.value()) for v in values)
        key = (groups, tuple(v.get_key_element() for v in values))
        if plain and self.last is not None and self.last[0] == key:
            cfg = self.last[1]  # all its values are written anew, which is faster than a copy
        else:
            cfg = pickle.loads(self._base(groups))
            self.last = (key, cfg) if plain else None
        try:
            put_in(values, cfg)
        except HydraException:
            for value in values:
                if value.type is OverrideType.CHANGE:
                    check_is_there(cfg, value.key_or_group, value.get_value_string())
            raise
        return cfg

    def own(self, overrides: Sequence[str]) -> DictConfig:
        """The configuration of a run, which no later call changes; raises as `__call__` does."""
        cfg = self(overrides)
        self.last = None
        return cfg

    def _base(self, groups: tuple[str, ...]) -> bytes:
        """The configuration with these choices of groups, as Hydra composes it, as a pickle."""
        if groups not in self.bases:
            try:
                base = self.loader.load_configuration(
                    self.name, [*self.hydra, *groups], run_mode=RunMode.RUN
                )
            except HydraException as error:
                lacks = re.search(r"Could not override '([^']+)'\.\s+No match in the", str(error))
                if lacks is None:
                    raise
                word = next((o for o in groups if o.startswith(lacks[1])), lacks[1])
                raise BadSetting(
                    f"{word}: the other choices have no group {lacks[1]}; leave it out"
                ) from None
            OmegaConf.set_struct(base, False)
            del base["hydra"]
            for part, key in (("run", "root"), ("data", "root")):
                raw = OmegaConf.to_container(base[part], resolve=False)
                if isinstance(raw, dict) and ENVIRONMENT_VALUE.fullmatch(str(raw.get(key))):
                    base[part][key] = base[part][key]  # resolve it once, as all runs have the same
            OmegaConf.set_struct(base, True)
            self.bases[groups] = pickle.dumps(base)
        return self.bases[groups]

    def _is_group(self, override: str) -> bool:
        """Whether an override chooses a file of a group of conf/, and sets no single value."""
        key = self._parse(override).key_or_group
        if key not in self.groups:
            self.groups[key] = bool(self.loader.repository.group_exists(key))
        return self.groups[key]

    def _parse(self, override: str) -> Override:
        if override not in self.parsed:
            (self.parsed[override],) = self.parser.parse_overrides([override])
        return self.parsed[override]


def check_is_there(cfg: DictConfig, key: str, value: Any) -> None:
    """Raise BadSetting, which lists those that there are, if this configuration lacks a setting."""
    parent, _, last = key.rpartition(".")
    while parent and OmegaConf.select(cfg, parent) is None:
        parent, _, last = parent.rpartition(".")
    inside = OmegaConf.select(cfg, parent) if parent else cfg
    if isinstance(inside, DictConfig) and last not in inside:
        settings = [str(name) for name in inside if name not in ("_target_", "tuning")]
        raise unknown_setting(key, value, settings, last)


def check_place(cfg: DictConfig, key: str, value: Any) -> None:
    """Raise BadSetting, which says where the setting belongs, if the chosen launcher or sweeper
    lacks a setting such as hydra.launcher.workers.

    cfg: a configuration that has Hydra's own node too.
    """
    part, _, name = key.removeprefix("hydra.").partition(".")
    choices = {
        file.name.removesuffix(".yaml"): settings_of(yaml.safe_load(file.read_text()))
        for file in sorted(files("conf").joinpath("hydra", part).iterdir(), key=str)
    }
    own = settings_of(cfg.hydra[part])
    if name.partition(".")[0] in own:
        return
    chosen = f"hydra/{part}={cfg.hydra.runtime.choices[f'hydra/{part}']}"
    there = f"{chosen} has {', '.join(own) or 'no settings'}"
    others = [choice for choice, settings in choices.items() if name in settings]
    if others:
        write = f"write hydra/{part}={' or '.join(others)} for this one"
        raise BadSetting(f"{key}={value}: {there}; {write}")
    offer = closest(name, own or chain(*choices.values()))
    raise BadSetting(f"{key}={value}: no such setting; {offer}{there}")


def settings_of(node: Iterable[Any]) -> list[str]:
    """What may be set in the node of a launcher or sweeper."""
    return sorted(str(name) for name in node if name not in ("_target_", "max_batch_size"))


def own_composer() -> Composer:
    """A composer of this project's configuration, where Hydra's command line is not there."""
    with initialize_config_module("conf", version_base="1.3"):
        return Composer(GlobalHydra.instance().config_loader(), "config")


def is_plain(value: Any) -> bool:
    """Whether a value replaces the one before, into which Hydra would merge a mapping."""
    return value is None or isinstance(value, str | int | float | QuotedString)
