"""The methods of the suite by their names: what each is, what it costs, and its settings."""

import inspect
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from hydra import compose
from omegaconf import DictConfig, OmegaConf
from yaml import YAMLError

from bench.core.algorithm import Algorithm, Cost, Kind, Moment
from bench.core.settings import (
    BadSetting,
    build,
    check_settings,
    closest,
    hints_of,
    locate,
    parameters,
    unknown_setting,
    validate,
)
from bench.hydra_parts import own_configurations
from bench.search_path import find_clash

GROUP = "algorithm"
LATER = 50  # steps of which the first may differ in what it calls
UNREADABLE = (YAMLError, UnicodeDecodeError)  # what reading a yaml raises that is none


@dataclass(frozen=True)
class Method:
    """A method of the suite.

    paper: where it is from. summary: what it does, in a sentence. settings: its keyword arguments
    with their defaults, a nested dict for a rule of descent. cost: what the first step with the
    defaults calls, which of some methods calls less than a later one; None: unknown. kind: for
    which problems it is. caveat: why it may end away from the solution, as the paragraph "Caveat:
    ..." of its docstring says; empty: no reason is known. help: all of this and what each setting
    means, to be printed.
    """

    name: str
    paper: str
    summary: str
    settings: Mapping[str, Any]
    cost: Cost | None
    kind: Kind | None
    on_stream: bool
    first_order: bool
    caveat: str
    help: str


def composed(wanted: Sequence[str] | None = None) -> dict[str, Any]:
    """The configurations of these methods, or of all, with nothing in them resolved.

    They are composed together, because Hydra takes a tenth of a second for each time it is asked.
    Raises BadSetting, in one line, for a method that does not exist, and where another project's
    package stands before one of this project's. Of all methods those are left out whose files
    cannot be read.
    """
    if clash := find_clash():
        raise BadSetting(clash)
    with own_configurations() as configurations:
        there = configurations.get_group_options(GROUP)
        for name in wanted or ():
            if name not in there:
                hint, known = closest(name, there), ", ".join(there)
                raise BadSetting(f"method={name}: no such method; {hint}there is {known}")
        names = [*(there if wanted is None else wanted)]
        try:
            found = compose_methods(names)
        except UNREADABLE as error:
            if wanted is not None:
                said = " ".join(str(error).split())
                raise BadSetting(f"method={', '.join(names)}: cannot be read: {said}") from None
            names = [name for name in names if is_readable(name)]
            found = compose_methods(names)
    return {name: OmegaConf.to_container(found[name]) for name in names}


def compose_methods(names: Sequence[str]) -> DictConfig:
    """The configurations of these methods by their names, within Hydra's initialisation; raises
    `UNREADABLE` where a file is broken."""
    return compose(overrides=[f"+{GROUP}@{name}={name}" for name in names])


def is_readable(name: str) -> bool:
    """Whether a method's file can be read: one of this project, or of a package if it is a yaml."""
    if files("conf").joinpath(GROUP, f"{name}.yaml").is_file():
        return True
    try:
        compose_methods([name])
    except UNREADABLE:
        return False
    return True


def filled(node: Any, given: Mapping[str, Any], steps: int) -> dict[str, Any]:
    """The configuration of a method with these settings, every default filled in.

    Raises BadSetting, in one line, for a setting that does not exist, and for a value that the
    method's signature refuses.
    """
    plain = dict(node)
    named: dict[str, str] = {}  # a setting of the method -> the keyword that gave it
    for key, value in given.items():
        if not is_plain(value):
            kind = type(value).__name__
            raise BadSetting(f"{key}: {kind} is no setting; write a number or a text")
        stem = key.removesuffix("_rule")
        word = key
        if isinstance(plain.get(stem), dict):
            key = stem
        if key in named:
            raise BadSetting(f"{word}: {named[key]} gives the same rule; write one of the two")
        named[key] = word
        inside = plain.get(key)
        if isinstance(inside, dict) and isinstance(value, str):  # outer_rule="adam"
            value = {"rule": value}
        if isinstance(inside, dict) and isinstance(value, dict):
            value = rule_with(value, inside) | value
        plain[key] = value
    whole: Any = OmegaConf.create({GROUP: plain, "run": {"steps": steps}})
    resolved: Any = OmegaConf.to_container(whole, resolve=True)
    return check_settings(resolved[GROUP], "", Algorithm)


def rule_with(keys: Iterable[str], own: Mapping[str, Any]) -> dict[str, Any]:
    """The rule of descent that has the settings of these names, such as `decay`.

    This is the method's own rule if it has them all, or else the first of conf/descent/ that does,
    with the values of the own rule for the settings that both have. If no rule has them it is the
    own one, so that the caller's check refuses the setting. Raises BadSetting where each of them
    belongs to a rule, and no rule has them all.
    """
    wanted = set(keys)
    if wanted <= own.keys():
        return dict(own)
    with own_configurations() as configurations:
        names = configurations.get_group_options("descent")
        found = compose(overrides=[f"+descent@{name}={name}" for name in names])
    plain: Any = {str(name): OmegaConf.to_container(found[name]) for name in names}
    rules: dict[str, dict[str, Any]] = plain
    for rule in rules.values():
        if wanted <= rule.keys():
            kept = {key: own[key] for key in rule.keys() & own.keys() - {"_target_"}}
            return rule | kept
    if wanted <= set().union(own, *rules.values()):
        each = "; ".join(
            f"{name} has {', '.join(sorted(rule.keys() - {'_target_'}))}"
            for name, rule in rules.items()
        )
        raise BadSetting(f"{', '.join(sorted(wanted))}: no rule of descent has them all: {each}")
    return dict(own)


def made(node: dict[str, Any]) -> Algorithm:
    """The method of a configuration that `filled` returned; raises BadSetting."""
    try:
        algorithm: Algorithm = build(node)
    except BadSetting as error:  # of settings that do not go together
        line = str(error).replace(f"{GROUP}=", "method=").replace(f"{GROUP}.", "")
        raise BadSetting(line) from None
    return algorithm


class Chosen(NamedTuple):
    """The method of a call, its name and its settings."""

    name: str
    algorithm: Algorithm
    settings: Mapping[str, Any]


def chosen(method: Any, given: Mapping[str, Any], steps: int) -> Chosen:
    """The method by its name, or by a function of the caller's that returns an Algorithm.

    Raises BadSetting.
    """
    if isinstance(method, str):
        node = filled(composed([method])[method], given, steps)
        return Chosen(method, made(node), settings_of(node))
    if not callable(method) or isinstance(method, Algorithm):
        raise BadSetting("method: write a name, or a function that returns an Algorithm")
    hints, fields = hints_of(method), {}
    known = {setting.name: setting for setting in parameters(method)}
    # such as a rule of descent, which no text could stand for
    objects = {key: value for key, value in given.items() if not is_plain(value)}
    for key in objects:
        if key not in known:
            raise unknown_setting(key, objects[key], known, key)
    for name, setting in known.items():
        if name not in objects:
            default = ... if setting.required else setting.default
            fields[name] = (hints.get(name, Any), default)
    plain = {key: value for key, value in given.items() if key not in objects}
    settings = validate(fields, plain, "", extra=tuple(objects))
    algorithm = method(**{key: settings[key] for key in plain}, **objects)
    if not isinstance(algorithm, Algorithm):
        raise BadSetting(f"method: gives {type(algorithm).__name__}, not an Algorithm")
    return Chosen(getattr(method, "__name__", "method"), algorithm, settings)


def is_plain(value: Any) -> bool:
    """Whether a setting is a number, a text, or a list or dict of them."""
    try:
        json.dumps(value)
    except TypeError:
        return False
    return True


def settings_of(node: Any) -> Any:
    """The settings of a configuration, without the names of functions."""
    if not isinstance(node, dict):
        return node
    return {key: settings_of(value) for key, value in node.items() if key != "_target_"}


@cache
def methods() -> Mapping[str, Method]:
    """Every method of the suite by its name, with its paper, cost and settings.

    `print(bench.methods()["bome"].help)` says what a method does and what its settings mean.
    """
    return {name: described(name, node) for name, node in composed().items()}


def described(name: str, node: Any) -> Method:
    """What there is to say about a method, by its configuration as it was composed."""
    try:
        node = filled(node, {}, steps=500)
        function = locate(node["_target_"], "")
    except BadSetting as error:  # of a package whose code cannot be imported
        return Method(
            name, "", "", settings_of(node), None, None, False, False, "",
            f"{name}\n\nNot here: {error}",
        )  # fmt: skip
    module = inspect.getmodule(function)
    paper = first_paragraph(inspect.getdoc(module))
    text = inspect.getdoc(function) or ""
    settings = settings_of(node)
    try:
        algorithm = made(node)
    except BadSetting as error:  # what it needs is not installed
        return Method(
            name, paper, first_paragraph(text), settings, None, None, False, False,
            caveat_of(text),
            f"{name}: {paper}\n\n{text}\n\nNot here: {error}",
        )  # fmt: skip
    cost = algorithm.cost_at(Moment())
    lines = [f"{name}: {paper}", text, f"For: {problems_of(algorithm)}."]
    if cost is not None:
        later = any(algorithm.cost_at(Moment(k)) != cost for k in range(1, LATER))
        what = "The first step, from which others differ," if later else "A step"
        lines.append(f"{what} calls: {cost_text(cost)}.")
    lines.append("Settings: " + ", ".join(f"{k}={v!r}" for k, v in settings.items()))
    return Method(
        name,
        paper,
        first_paragraph(text),
        settings,
        cost,
        algorithm.kind,
        algorithm.on_stream,
        algorithm.first_order,
        caveat_of(text),
        "\n\n".join(lines),
    )


def first_paragraph(text: str | None) -> str:
    """The first paragraph of a docstring in one line."""
    return " ".join((text or "").partition("\n\n")[0].split())


def caveat_of(text: str) -> str:
    """The paragraph of a docstring that begins with "Caveat:", without that word; "" if none."""
    for paragraph in text.split("\n\n"):
        if paragraph.startswith("Caveat:"):
            return first_paragraph(paragraph.removeprefix("Caveat:"))
    return ""


def problems_of(algorithm: Algorithm) -> str:
    """Say which problems a method is for."""
    if algorithm.on_stream:
        return "streams of tasks only"
    return {
        "bilevel": "bilevel problems",
        "minimax": "minimax problems, which have no lower loss of their own",
        "single-level": "problems of a single level on a set",
        "episodes": "tasks of episodes only",
    }[algorithm.kind]


def cost_text(cost: Cost) -> str:
    """The calls of a step in words, such as "grad_g 11, grad_f 1"."""
    most = "at most " if any(part.at_most for part in cost.parts) else ""
    return most + (", ".join(f"{key} {n}" for key, n in cost.calls.items() if n) or "nothing")


def suiting(kind: Kind) -> Iterable[str]:
    """The names of the methods for problems of a kind."""
    return [m.name for m in methods().values() if m.kind == kind and not m.on_stream]
