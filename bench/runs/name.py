"""Names runs: task/algorithm/hash, where the hash is of everything that determines the result.

A function is known by its own name, not by the module that it is in; one outside of this project is
known by its package too. A setting counts where it differs from the default in its function's
signature. So a file may move, and a setting with a default be added, and every run keeps its name.
Whoever changes what a function computes raises its version (`bench.core.settings.version`), which
renames its runs.
"""

import json
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any

from bench.core.packages import package_of
from bench.core.settings import Setting, as_node, locate, parameters, version_of

Version = Callable[[Callable[..., Any]], int]
# The settings of the group `run` that determine the result: those that always do, and those that do
# where they are not null.
ALWAYS = ("steps", "every", "dtype")
OPTIONAL = ("seconds", "cpu_seconds", "calls", "samples", "until", "target")


def name(config: Mapping[str, Any], version: Version = version_of) -> str:
    """The name of the run that a complete configuration (bench.runs.launch.complete) describes.

    version: gives the version of a function, by default that of today's code.
    """
    meaning = meaning_of(config, version)
    return f"{meaning['task']['name']}/{meaning['algorithm']['name']}/{hash_of(meaning)}"


def hash_of(meaning: Mapping[str, Any]) -> str:
    """A hash of what a name means, as ten hexadecimal digits."""
    return blake2b(json.dumps(meaning, sort_keys=True).encode(), digest_size=5).hexdigest()


def meaning_of(config: Mapping[str, Any], version: Version = version_of) -> dict[str, Any]:
    """Everything that a run's name stands for, as values that JSON can hold.

    The name has the hash of it. The run's environment has all of it, for people to read.
    """
    run = {key: config["run"][key] for key in ALWAYS}
    run |= {key: config["run"][key] for key in OPTIONAL if config["run"][key] is not None}
    return {
        "task": describe_node(config["task"], version),
        "algorithm": describe_node(config["algorithm"], version),
        "seed": config["seed"],
        "run": run,
    }


def describe_node(node: Mapping[str, Any], version: Version = version_of) -> dict[str, Any]:
    """A checked group of settings as the hash has it: without its module and its defaults.

    Gives the `name` and `version` of the group's function, and as `settings` the values that differ
    from the defaults; of a function outside of this project also its `package`. A group within it,
    such as a method's descent rule, is described likewise.
    """
    function = locate(node["_target_"], "")
    package = package_of(node["_target_"])
    outside = {} if package is None else {"package": package.name}
    settings = {}
    for setting in parameters(function):
        if setting.name in node and not is_default(node[setting.name], setting, version):
            settings[setting.name] = describe_value(node[setting.name], version)
    own = {"name": function.__name__, "version": version(function), "settings": settings}
    return own | outside


def describe_value(value: Any, version: Version) -> Any:
    """The value of a setting as the hash has it: a group is described, other values stay."""
    is_group = isinstance(value, dict) and "_target_" in value
    return describe_node(value, version) if is_group else value


def is_default(value: Any, setting: Setting, version: Version) -> bool:
    """Whether a setting has its default. The default of a group may be given as a dataclass."""
    if setting.required:
        return False
    group = as_node(setting.default)
    default = setting.default if group is None else describe_node(group, version)
    return bool(describe_value(value, version) == default)
