"""Settings are the arguments of functions: a function's signature is the schema of its yaml.

`check_settings` holds a configuration against the signatures of the functions that it names, before
any work, and fills in the defaults; `build` then calls the functions. A wrong setting is refused in
one line.
"""

import difflib
import importlib
import inspect
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import fields as fields_of
from dataclasses import is_dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, create_model

from bench.core.packages import PACKAGES, TAKEN, VARIABLE, Package, listed, package_of

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Share = Annotated[float, Field(gt=0, le=1)]
Rate = Annotated[float, Field(ge=0, lt=1)]  # a momentum or a decay
Finite = Annotated[float, Field(allow_inf_nan=False)]
TUNING = "tuning"  # what a method's yaml says of its search space; no argument of its function
MOST = 2**53  # what JSON and float64 carry exactly, and int64 with room to spare


def whole(value: Any) -> Any:
    """A float without a fraction as an integer, and any other value as it is: 1e3 is 1000."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = BeforeValidator(whole)
Count = Annotated[int, Whole, Field(ge=1, le=MOST)]
Natural = Annotated[int, Whole, Field(ge=0, le=MOST)]
Seed = Annotated[int, Whole, Field(ge=-MOST, le=MOST)]

_models: dict[Any, tuple[type[BaseModel], dict[str, Any]]] = {}


class BadSetting(Exception):
    """One line that names the setting, its value, and what to write instead."""

    def __init__(self, line: str):
        """line: a character that is not printable, such as a line break, is told by its code."""
        shown = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
        super().__init__("".join(shown))


def check_settings(
    node: Any, path: str, wants: Any = None, given: tuple[str, ...] = ()
) -> dict[str, Any]:
    """`node` with every default filled in and every value of its declared type.

    path: where the node stands in the configuration, for messages. wants: the type that the node's
    `_target_` must return. given: parameters that the caller of `build` supplies itself. A method's
    search space, under the key `tuning`, is left out: it decides no run. Raises BadSetting.
    """
    if not isinstance(node, dict) or "_target_" not in node:
        raise BadSetting(f"{path}={node}: expected a group with _target_, as in conf/")
    target = node["_target_"]
    function = locate(target, path)
    hints = hints_of(function)
    returns = function if inspect.isclass(function) else hints.get("return")
    if wants is not None and returns is not wants:
        kind = str(getattr(wants, "__name__", wants))
        article = "an" if kind[0] in "AEIOU" else "a"
        repair = "" if returns is not None else f"; write -> {kind} behind its arguments"
        raise BadSetting(f"{path}._target_={target}: does not give {article} {kind}{repair}")
    values = {key: value for key, value in node.items() if key not in ("_target_", TUNING)}
    nested: dict[str, Any] = {}
    fields: dict[str, Any] = {}
    for name, default in parameters(function):
        if name in given:
            continue
        hint = hints.get(name, Any)
        if name not in values and (group := as_node(default)) is not None:
            values[name] = group
        if isinstance(values.get(name), dict) and "_target_" in values[name]:
            nested[name] = check_settings(values.pop(name), f"{path}.{name}", hint)
            continue
        fields[name] = (hint, ... if default is inspect.Parameter.empty else default)
    plain = validate(fields, values, path, extra=tuple(nested))
    return {"_target_": target, **{k: nested.get(k, plain.get(k)) for k in [*fields, *nested]}}


class Setting(NamedTuple):
    """A parameter of a function that a configuration names."""

    name: str
    default: Any  # inspect.Parameter.empty: the setting has to be given

    @property
    def required(self) -> bool:
        """Whether the setting has no default."""
        return self.default is inspect.Parameter.empty


@cache
def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The types of a function's parameters and of what it returns."""
    return get_type_hints(function, include_extras=True)


@cache
def parameters(function: Callable[..., Any]) -> list[Setting]:
    """The parameters of a function, or the fields of a dataclass, in their order."""
    return [Setting(name, p.default) for name, p in inspect.signature(function).parameters.items()]


def as_node(default: Any) -> dict[str, Any] | None:
    """The configuration that would build a default, if the default is a dataclass; None for any
    other default."""
    if not is_dataclass(default) or isinstance(default, type):
        return None
    kind = type(default)
    values = {field.name: getattr(default, field.name) for field in fields_of(default)}
    return {"_target_": f"{kind.__module__}.{kind.__qualname__}", **values}


Named = TypeVar("Named", bound=Callable[..., Any])


def expand(path: str, setting: str) -> Path:
    """The path, with a folder in place of ~; raises BadSetting where nobody knows which."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise BadSetting(f"{setting}={path}: {error}; write {setting}=... without ~") from None


def version(number: int) -> Callable[[Named], Named]:
    """A decorator for a function that configurations name: `number` goes into its runs' names.

    A function without the decorator has version 1. Whoever changes what a function computes raises
    its number, so that earlier results are not taken for results of the new code; tests/golden.py
    asks for that.
    """

    def give_version(function: Named) -> Named:
        setattr(function, "version", number)  # noqa: B010  (mypy knows no such attribute)
        return function

    return give_version


def version_of(function: Callable[..., Any]) -> int:
    """The number that `version` gave to a function; 1 for a function without one."""
    return int(getattr(function, "version", 1))


def validate(
    fields: dict[str, Any], values: dict[str, Any], path: str, extra: tuple[str, ...] = ()
) -> dict[str, Any]:
    """`values` with defaults, each of the type that `fields` (name -> (type, default)) asks for.

    path: where the values stand in the configuration, for messages. extra: further names to offer
    where a name is unknown. Raises BadSetting.
    """
    if not isinstance(values, dict):
        raise BadSetting(
            f"{path or 'the configuration'}={values}: it has to be a group of settings"
        )
    for key in values:
        if key not in fields:
            raise unknown_setting(f"{path}.{key}".lstrip("."), values[key], [*fields, *extra], key)
    config = ConfigDict(strict=True, arbitrary_types_allowed=True, validate_default=False)
    try:
        # A sweep validates thousands of configurations against few signatures, whose types have no
        # hash. The fields are kept with their model, so that no other object takes their ids.
        ids = tuple((name, id(kind), id(default)) for name, (kind, default) in fields.items())
        if ids not in _models:
            _models[ids] = (create_model("Settings", __config__=config, **fields), fields)
        model, _ = _models[ids]
        # through JSON, where lists may be tuples and nothing else is converted
        return model.model_validate_json(json.dumps(values)).model_dump()
    except ValidationError as error:
        first, *others = error.errors()
        loc, message = first["loc"], first["msg"][0].lower() + first["msg"][1:]
        if len(loc) == 2 and isinstance(loc[1], str) and not isinstance(values[str(loc[0])], dict):
            # one of several types, each of which has an error of its own
            also = [
                e["msg"].removeprefix("Input should be ") for e in others if e["loc"][0] == loc[0]
            ]
            loc, message = loc[:1], " or ".join([message, *also])
        where = ".".join([path, *map(str, loc)]).lstrip(".")
        if message.endswith(("an object", "a dictionary", "a valid dictionary")):
            message = f"it is a group of settings: write {where}.NAME=..., as in its file of conf/"
        if first["type"] == "missing":
            raise BadSetting(f"{where} is not set: write {where}=...") from None
        if first["type"] in ("tuple_type", "list_type") and isinstance(first["input"], str):
            message = f"it is a list: write {where}=[{first['input']}]"
        value = json.dumps(first["input"]).strip('"')
        raise BadSetting(f"{where}={value}: {message}") from None


def unknown_setting(where: str, value: Any, known: Iterable[str], key: str) -> BadSetting:
    """The refusal of a setting whose name does not exist. It lists the `known` names, and offers
    the one closest to `key`."""
    known = sorted(known)
    offer = closest(key, known)
    if (today := current_spelling(where, known)) is not None:
        offer = f"write {today}; "
    names = ", ".join(known) if known else "nothing"
    return BadSetting(f"{where}={value}: no such setting; {offer}there is {names}")


def closest(name: str, known: Iterable[str]) -> str:
    """The question whether the known name that is most like this one was meant; "" if none is."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {close[0]}? " if close else ""


def current_spelling(path: str, known: Iterable[str] = ("outer_lr",)) -> str | None:
    """How a step size is called today that had another name before 2026-11-22; None for others.

    known: the settings beside it. `outer.lr` and `lower.lr` became `outer_lr` and `lower_lr`, and
    a bare `lr` that was the step size of x became `outer_lr`.
    """
    group, _, last = path.rpartition(".")
    if last == "lr" and group.endswith((".outer", ".lower")):
        return f"{group}_lr"
    if last == "lr" and "outer_lr" in known:
        return f"{group}.outer_lr".lstrip(".")
    return None


def locate(target: Any, path: str) -> Callable[..., Any]:
    """The function or dataclass named `package.module.name`, if a file of conf/ names it.

    Nothing else is ever imported or called because a configuration says so: a file of this
    project's conf/, or of that of a package which the user's environment lists, makes a function a
    choice. `check_settings` sees to it that it is a choice of the right group.
    path: where the name stands in the configuration, for messages. Raises BadSetting.
    """
    module_name, _, name = str(target).rpartition(".")
    here = f"{path}._target_={target}"
    if not isinstance(target, str) or target not in named_in_conf():
        raise BadSetting(
            f"{here}: only functions that a file of conf/ names may be called{hint(target)}"
        )
    package = package_of(target)
    if package is not None:
        return import_outside(package, module_name, name, here)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # of a method that someone is writing: a sweep's others go on
        raise BadSetting(
            f"{here}: {module_name} cannot be imported: {reason_of(error)}; repair it"
        ) from error
    function: Callable[..., Any] | None = getattr(module, name, None)
    if function is None:
        raise BadSetting(f"{here}: {module_name} has no function {name}; write its name here")
    return function


def import_outside(package: Package, module_name: str, name: str, here: str) -> Callable[..., Any]:
    """A function of a package of the user's own; raises BadSetting if the package is broken."""
    try:
        function: Callable[..., Any] = getattr(importlib.import_module(module_name), name)
        hints_of(function)
    except (Exception, SystemExit) as error:
        raise BadSetting(
            f"{here}: {package.shown} cannot be used: {reason_of(error)}; "
            f"repair it in {package.folder}"
        ) from error
    return function


def reason_of(error: BaseException) -> str:
    """The kind of an error and its text, on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")


def hint(target: Any) -> str:
    """What to do about a function of a package that the environment does not list, if it is one."""
    package = str(target).partition(".")[0]
    if not isinstance(target, str) or not package.isidentifier() or package in TAKEN:
        return ""
    if package_of(target) is not None:
        return f"; no file of {package}'s conf/ names this one"
    return f"; {package} is not installed as a package of the bench, nor listed in {VARIABLE}"


def named_in_conf() -> frozenset[str]:
    """The path of each function that a configuration may name.

    These are functions of this project that a file of its own conf/ names, and those of each
    listed package that a file of that package's conf/ names.
    """
    return _named_in_conf(listed().packages)


@cache
def _named_in_conf(outside: tuple[Package, ...]) -> frozenset[str]:
    """The paths of this project and of these packages."""
    found = named_below(Path(str(files("conf"))), PACKAGES)
    return found.union(*(named_below(package.conf, (package.name,)) for package in outside))


def named_below(conf: Path, packages: tuple[str, ...]) -> frozenset[str]:
    """The path of each function of these packages that a file below a folder names."""
    name = rf"(?:{'|'.join(packages)})[.][\w.]+"
    named = re.compile(rf"^ *_target_: +([\"']?)({name})\1(?: +#.*)? *$", re.M)
    texts = [file.read_text(errors="replace") for file in conf.rglob("*.yaml")]
    return frozenset(target for text in texts for _, target in named.findall(text))


def build(node: dict[str, Any], *given: Any) -> Any:
    """Call what a node that `check_settings` returned names, innermost first. The arguments `given`
    come before the node's settings."""
    settings = {
        key: build(value) if isinstance(value, dict) and "_target_" in value else value
        for key, value in node.items()
        if key != "_target_"
    }
    return locate(node["_target_"], "")(*given, **settings)
