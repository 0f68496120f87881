"""Renames run folders from before the naming or a setting's spelling changed by the rules of today.

Until 2026-11-22 the hash of a name was over module paths and every default, and the step size of x
was spelled `outer.lr`, `outer_lr` or `lr`. A renamed run keeps the versions of its functions, which
are the first ones where its folder does not say.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bench.core.settings import BadSetting, locate, named_in_conf, parameters
from bench.runs import checkpoint
from bench.runs.folder import RunFolder, folders_below
from bench.runs.launch import complete
from bench.runs.name import Version, name


class Renaming(NamedTuple):
    """A run folder whose name by today's rules is another one.

    left: why the folder keeps its old name; None if it was renamed.
    """

    old: str
    new: str
    left: str | None = None


def rename(root: Path) -> Iterator[Renaming]:
    """Rename every run folder below `root` that still has a name by the earlier rules.

    Gives each of them as it is done; other folders are neither changed nor given.
    """
    for folder in list(folders_below(root)):
        try:
            config = update(folder.config())
            version = version_when_made(folder.environment())
            new = RunFolder(folder.root, name(complete(config), version))
        except (BadSetting, OSError) as error:
            yield Renaming(folder.name, "?", " ".join(str(error).split()))
            continue
        if new.name == folder.name:
            continue
        if new.path.exists():
            yield Renaming(folder.name, new.name, "this run is there already")
            continue
        try:
            with folder.lock():
                checkpoint.rename(folder.checkpoint, new.name)
                folder.move_to(new, config)
        except (BadSetting, OSError) as error:
            yield Renaming(folder.name, new.name, " ".join(str(error).split()))
            continue
        yield Renaming(folder.name, new.name)


def version_when_made(environment: Mapping[str, Any]) -> Version:
    """The version that each function had when a run was made, as the run's environment says."""
    recorded = versions_in(environment.get("named_by"))

    def version(function: Callable[..., Any]) -> int:
        return recorded.get(function.__name__, 1)

    return version


def versions_in(meaning: Any) -> dict[str, int]:
    """The versions in what a name says (bench.runs.name.meaning_of), by the function's name."""
    if not isinstance(meaning, dict):
        return {}
    found: dict[str, int] = {}
    for value in meaning.values():
        found |= versions_in(value)
    if "version" in meaning and "name" in meaning:
        found[meaning["name"]] = meaning["version"]
    return found


def update(node: Any) -> Any:
    """A configuration whose functions are named where they are today, with today's settings."""
    if not isinstance(node, dict):
        return node
    found = {key: update(value) for key, value in node.items()}
    target = found.get("_target_")
    if target is None:
        return found
    try:
        function = locate(target, "")
    except BadSetting:
        found["_target_"] = current_targets().get(str(target).rpartition(".")[2], target)
        try:
            function = locate(found["_target_"], "")
        except BadSetting:
            return found
    return respell(found, {setting.name for setting in parameters(function)})


def respell(node: dict[str, Any], known: set[str]) -> dict[str, Any]:
    """The settings of a function that has the parameters `known`, spelled as they are today."""
    found = dict(node)
    for side in ("outer", "lower"):
        rule = found.get(side)
        if f"{side}_lr" in known and isinstance(rule, dict) and "lr" in rule:
            found[side] = {key: value for key, value in rule.items() if key != "lr"}
            found[f"{side}_lr"] = rule["lr"]
    if "outer_lr" in known and "lr" in found and "lr" not in known:
        found["outer_lr"] = found.pop("lr")
    if found.get("barrier") == "slope":
        found["barrier"] = "unsquared"
    return found


def current_targets() -> dict[str, str]:
    """The path of each function that a file of conf/ names, by the function's own name."""
    return {target.rpartition(".")[2]: target for target in sorted(named_in_conf())}
