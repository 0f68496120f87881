"""Finds the runs that `reproduce compare` is asked for: folders, sweeps, globs, and settings."""

import difflib
import glob
import math
import operator
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.core.settings import BadSetting
from bench.reproduce.reading import leave_out_damaged
from bench.runs.folder import RunFolder, folders_below, runs_of_sweep
from bench.runs.name import ALWAYS, OPTIONAL

PARTS = ("task", "algorithm", "run")  # the parts of a configuration that are compared
RUN_SETTINGS = {*ALWAYS, *OPTIONAL}  # others of `run` change no result
COMPARISON = re.compile(r"\s*([^\s=<>!]+)\s*(<=|>=|!=|=|<|>)\s*(.*?)\s*")
ORDERS: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True)
class FoundRun:
    """A run folder with its settings by dotted path, those that cannot change a result left out."""

    folder: RunFolder
    task: str
    algorithm: str
    key: str
    seed: int
    settings: Mapping[str, Any]

    def setting(self, key: str) -> Any:
        """The value of a setting, or of the run's `task`, `algorithm` or `seed`; None if it has
        none."""
        if key in ("task", "algorithm", "seed"):
            return getattr(self, key)
        return self.settings.get(key)


@dataclass(frozen=True)
class Condition:
    """What `--where` asks of a run's setting.

    sign: "=", "!=", "<", "<=", ">" or ">=". wanted: one value, or for "=" and "!=" several.
    """

    text: str
    key: str
    sign: str
    wanted: tuple[str, ...]

    def fits(self, run: FoundRun) -> bool:
        """Whether the run is asked for."""
        value = run.setting(self.key)
        if self.sign in ORDERS:
            number = isinstance(value, int | float) and not isinstance(value, bool)
            return number and ORDERS[self.sign](value, float(self.wanted[0]))
        same = any(is_written(value, text) for text in self.wanted)
        return same == (self.sign == "=")


def parse_condition(text: str) -> Condition:
    """A condition such as algorithm.T=10, algorithm.T=1,10 or run.steps>=500; raises BadSetting."""
    match = COMPARISON.fullmatch(text)
    if match is None:
        raise BadSetting(f"--where {text}: write a setting and a value, such as algorithm.T=10")
    key, sign, value = match.groups()
    if sign in ORDERS and math.isnan(as_number(value)):
        raise BadSetting(f"--where {text}: {value!r} is no number: write {key}{sign}10, or {key}=")
    several = sign not in ORDERS and not value.startswith("[")
    return Condition(text, key, sign, tuple(value.split(",")) if several else (value,))


def as_number(text: str) -> float:
    """The number that a text stands for; nan if it stands for none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def is_written(value: Any, text: str) -> bool:
    """Whether a text is how a value is written on the command line; 10, 10.0 and 1e1 are alike."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return as_number(text) == value
    return as_written(value) == text.strip().replace(" ", "")


def as_written(value: Any) -> str:
    """A value of a setting as the command line takes it, without spaces."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(map(as_written, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value).replace(" ", "")


def find_runs(places: Sequence[Path | str], where: Iterable[str] = ()) -> list[FoundRun]:
    """The runs at the given places that fit all conditions.

    A run whose settings are damaged has a line on standard error. Raises BadSetting if a place is
    not there or has no run, if no run has the setting of a condition, or if no run fits.
    """
    conditions = [parse_condition(text) for text in where]
    found = [run for folder in find_run_folders(places) if (run := try_run(folder))]
    if not found:
        raise BadSetting(f"{', '.join(map(str, places))}: there is no run folder in it")
    for condition in conditions:
        known = {key for run in found for key in run.settings} | {"task", "algorithm", "seed"}
        if condition.key not in known:
            close = difflib.get_close_matches(condition.key, sorted(known), n=1)
            hint = f"write {close[0]}" if close else f"there is {', '.join(sorted(known))}"
            raise BadSetting(f"--where {condition.text}: no run has this setting; {hint}")
    some = [run for run in found if all(condition.fits(run) for condition in conditions)]
    if not some:
        texts = " and ".join(condition.text for condition in conditions)
        raise BadSetting(f"--where {texts}: none of the {len(found):,} runs is so")
    return some


def find_run_folders(places: Iterable[Path | str]) -> Iterator[RunFolder]:
    """Every run folder at or below the given places, once; raises BadSetting.

    A place is a folder, the folder of a sweep, which stands for the sweep's runs, or a glob.
    """
    seen = set()
    for place in places:
        for path in expand(place):
            for folder in runs_of_sweep(path) or folders_below(path):
                known = folder.path.absolute()
                if known not in seen:
                    seen.add(known)
                    yield folder


def expand(place: Path | str) -> list[Path]:
    """The folder that is given, or those that fit a glob; raises BadSetting if there is none."""
    path = Path(place).expanduser()
    if path.is_dir():
        return [path]
    if glob.has_magic(str(path)):
        some = [Path(text) for text in sorted(glob.glob(str(path), recursive=True))]
        folders = [found for found in some if found.is_dir()]
        if folders:
            return folders
    raise BadSetting(f"{place}: there is no such folder")


def try_run(folder: RunFolder) -> FoundRun | None:
    """The run in a folder; None, with a line on standard error, if its settings are damaged."""
    with leave_out_damaged():
        if not folder.name.isprintable():
            raise BadSetting(f"{folder.path}: this is no name of a run")
        config = folder.config({*PARTS, "seed"})
        flat = dict(list_leaves({part: config[part] for part in PARTS}))
        settings = {
            sys.intern(key): plain_target(key, value)  # thousands of runs have the same keys
            for key, value in flat.items()
            if not key.startswith("run.") or key.removeprefix("run.") in RUN_SETTINGS
        }
        task, algorithm, key = folder.name.split("/")
        return FoundRun(folder, task, algorithm, key, config["seed"], settings)
    return None


def plain_target(key: str, value: Any) -> Any:
    """The value of a setting; of a function its name, without the module, which may have moved."""
    if key.rpartition(".")[2] == "_target_" and isinstance(value, str):
        return value.rpartition(".")[2]
    return value


def list_leaves(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted path, value) of every leaf of nested dictionaries."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield from list_leaves(value, f"{path}.{key}" if path else str(key))
    else:
        yield path, writable(node)


def writable(value: Any) -> Any:
    """The value, with numbers that are not finite as texts, because JSON has no word for them."""
    if isinstance(value, list):
        return [writable(inner) for inner in value]
    if isinstance(value, dict):
        return {key: writable(inner) for key, inner in value.items()}
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
