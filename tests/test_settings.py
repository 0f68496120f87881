"""Settings: what is refused, with which words, and what is filled in."""

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import pytest

from bench.core import settings as module
from bench.core.settings import (
    BadSetting,
    Count,
    Finite,
    Fraction,
    Natural,
    NonNegative,
    Positive,
    Rate,
    Seed,
    Share,
    build,
    check_settings,
    locate,
    named_in_conf,
    unknown_setting,
    validate,
)
from bench.runs.launch import resolve
from tests.composed import composed

HERE = "tasks.made_up"
NAMED = {f"{HERE}.{name}" for name in ("Inner", "thing", "bare", "silent", "absent_here")}


@dataclass(frozen=True)
class Inner:
    """A part with settings of its own."""

    size: Positive
    times: Count = 2


@dataclass(frozen=True)
class Thing:
    """What `thing` gives: its arguments."""

    given: tuple[Any, ...]


class Opaque:
    """What no yaml has."""


def thing(
    seed: int, inner: Inner, rate: Rate, kind: Literal["a", "b"] = "a", many: tuple[int, ...] = ()
) -> Thing:
    return Thing((seed, inner, rate, kind, many))


def bare(value=3) -> Thing:  # type: ignore[no-untyped-def]
    return Thing((value,))


def silent():  # type: ignore[no-untyped-def]
    return Thing(1.0)


def _hidden() -> Thing:
    return Thing(())


@pytest.fixture(autouse=True)
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of this project that has the functions above."""
    made = ModuleType(HERE)
    for part in (Inner, thing, bare, silent, _hidden):
        monkeypatch.setattr(part, "__module__", HERE)
        setattr(made, part.__name__, part)
    made.number = 5  # type: ignore[attr-defined]
    made.borrowed = re.compile  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, HERE, made)
    monkeypatch.setattr(module, "named_in_conf", lambda: named_in_conf() | NAMED)
    for name, value in (("Any", Any), ("Thing", Thing)):
        setattr(made, name, value)


def node(name: str = "thing", **values: Any) -> dict[str, Any]:
    return {"_target_": f"{HERE}.{name}"} | values


INNER = node("Inner", size=1)


def refusal(given: Any, wants: Any = None, path: str = "task") -> str:
    with pytest.raises(BadSetting) as error:
        check_settings(given, path, wants, given=("seed",))
    assert "\n" not in str(error.value)
    return str(error.value)


# Types and their ends


@pytest.mark.parametrize(
    ("kind", "allowed", "refused"),
    [
        (Positive, [1e-300, 1, 5.5, 1e300], [0, 0.0, -1e-300, float("inf"), float("nan")]),
        (NonNegative, [0, 0.0, 1e300], [-1e-300, float("inf"), float("nan")]),
        (Fraction, [0, 0.5, 1], [-1e-9, 1.000001, float("nan"), float("inf")]),
        (Share, [1e-9, 1], [0, -1e-9, 1.000001, float("nan")]),
        (Rate, [0, 0.999999], [1, 1.0, -1e-9, float("nan")]),
        (Finite, [-1e300, 0, 2], [float("inf"), -float("inf"), float("nan")]),
        (Count, [1, 2, 2**53], [0, -1, 2**53 + 1, 1.5, True, "1"]),
        (Natural, [0, 1, 2**53], [-1, 2**53 + 1, 0.5, False]),
        (Seed, [0, -(2**53), 2**53], [-(2**53) - 1, 2**53 + 1, 0.5]),
        (float, [1, 2.5], ["2.5", None, True, [1]]),
        (bool, [True, False], [1, 0, "true"]),
        (str, ["x"], [1, None]),
        (Literal["a", 3], ["a", 3], ["b", "3", None]),
        (int | None, [None, 4], ["4", 4.5]),
        (tuple[int, ...], [[], [1, 2]], [1, ["a"], [1.5]]),
    ],
)
def test_values_that_a_type_allows(kind: Any, allowed: list[Any], refused: list[Any]) -> None:
    """Nothing is converted but whole numbers to floats and lists to tuples."""
    for value in allowed:
        found = validate({"v": (kind, ...)}, {"v": value}, "p")["v"]
        assert found == (tuple(value) if isinstance(value, list) else value)
        assert kind is not Positive or isinstance(found, float)
    for value in refused:
        with pytest.raises(BadSetting, match=r"^p\.v"):
            validate({"v": (kind, ...)}, {"v": value}, "p")


def test_several_values_at_once() -> None:
    """Each is held against its own type, the defaults are filled in as they stand."""
    fields = {"a": (Count, ...), "b": (Positive, 0.5), "c": (bool, False), "d": (Any, None)}
    assert validate(fields, {"a": 3}, "p") == {"a": 3, "b": 0.5, "c": False, "d": None}
    assert validate(fields, {"a": 1, "c": True, "b": 2}, "p") == {
        "a": 1, "b": 2.0, "c": True, "d": None,
    }  # fmt: skip
    other = {"a": (Count, ...), "b": (Positive, 0.25)}
    assert validate(other, {"a": 3}, "p") == {"a": 3, "b": 0.25}
    assert validate(fields, {"a": 3}, "p")["b"] == 0.5
    assert validate({}, {}, "p") == {}


def test_defaults_are_not_held_against_their_types() -> None:
    """They are the signature's own; a value for what no yaml can have is refused in one line."""
    fields = {"a": (Positive, -1.0), "b": (Thing, None), "c": (Opaque, None)}
    assert validate(fields, {}, "p") == {"a": -1.0, "b": None, "c": None}
    with pytest.raises(BadSetting, match=r"^p\.c=3: "):
        validate(fields, {"c": 3}, "p")


def test_an_average_of_nothing_new_is_refused() -> None:
    """SOBA's x would stay where it is."""
    with pytest.raises(BadSetting, match=r"algorithm\.average=0"):
        resolve(composed("task=quadratic", "algorithm=soba", "algorithm.average=0"))


def test_words_of_a_refusal() -> None:
    """The setting, its value, and what is wrong, from small letters on."""
    fields = {"a": (Count, ...), "b": (tuple[int, ...], ()), "c": (Positive, 1.0)}
    for values, path, said in (
        ({}, "p", "p.a is not set: write p.a=..."),
        ({}, "", "a is not set: write a=..."),
        ({"a": 0}, "p.q", "p.q.a=0: input should be greater than or equal to 1"),
        ({"a": "x"}, "", "a=x: input should be a valid integer"),
        ({"a": 1, "b": [1, "y"]}, "p", "p.b.1=y: input should be a valid integer"),
        ({"a": 1, "b": "y"}, "p", "p.b=y: it is a list: write p.b=[y]"),
        ({"a": 1, "c": None}, "p", "p.c=null: input should be a valid number"),
        ({"a": 1, "aa": 2}, "p", "p.aa=2: no such setting; did you mean a? there is a, b, c"),
        ({"a": 1, "zz": 2}, "", "zz=2: no such setting; there is a, b, c"),
    ):
        with pytest.raises(BadSetting) as error:
            validate(fields, values, path)
        assert str(error.value) == said
    with pytest.raises(BadSetting, match=r"^p\.zz=2: no such setting; there is a, b, c, extra$"):
        validate(fields, {"zz": 2}, "p", extra=("extra",))


def test_words_of_a_name_that_does_not_exist() -> None:
    for known, key, said in (
        (["steps", "every"], "step", "run.step=3: no such setting; did you mean steps? there is "
         "every, steps"),
        (("b", "a"), "zzz", "run.zzz=3: no such setting; there is a, b"),
        ([], "zzz", "run.zzz=3: no such setting; there is nothing"),
        ({"lr", "l2", "lx"}, "l2_", "run.l2_=3: no such setting; did you mean l2? there is l2, lr,"
         " lx"),
    ):  # fmt: skip
        error = unknown_setting(f"run.{key}", 3, known, key)
        assert isinstance(error, BadSetting)
        assert str(error) == said


# Whole nodes


def test_a_node_is_filled_in_inside_out() -> None:
    """The settings of a part inside are checked too; those that the caller gives are left out."""
    found = check_settings(node(inner=INNER, rate=0), "task", Thing, given=("seed",))
    assert found == {
        "_target_": f"{HERE}.thing",
        "inner": {"_target_": f"{HERE}.Inner", "size": 1.0, "times": 2},
        "rate": 0.0, "kind": "a", "many": (),
    }  # fmt: skip
    assert list(found) == ["_target_", "rate", "kind", "many", "inner"]
    whole = node(seed=4, inner=node("Inner", size=2, times=9), rate=0.5, kind="b", many=[1, 2])
    found = check_settings(whole, "task")
    assert (found["seed"], found["kind"], found["many"]) == (4, "b", (1, 2))
    assert found["inner"]["times"] == 9
    assert whole["many"] == [1, 2]
    assert check_settings(INNER, "x", Inner)["times"] == 2
    assert check_settings(node("bare", value=[1]), "x", Thing) == node("bare", value=[1])
    assert check_settings(node("bare"), "x") == node("bare", value=3)


def test_nodes_that_are_refused() -> None:
    whole = node(inner=INNER, rate=0)
    for given, said in (
        (None, "task=None: expected a group with _target_, as in conf/"),
        ({"rate": 0}, "task={'rate': 0}: expected a group with _target_, as in conf/"),
        (node(rate=0), "task.inner is not set: write task.inner=..."),
        (node(inner=INNER), "task.rate is not set: write task.rate=..."),
        (whole | {"rate": 1}, "task.rate=1: input should be less than 1"),
        (whole | {"seed": 1}, "task.seed=1: no such setting; there is inner, kind, many, rate"),
        (whole | {"inner": node("Inner")}, "task.inner.size is not set: write task.inner.size=..."),
        (
            whole | {"inner": node("bare")},
            f"task.inner._target_={HERE}.bare: does not give an Inner",
        ),
        (
            whole | {"kind": INNER},
            f"task.kind._target_={HERE}.Inner: does not give a Literal",
        ),
        (
            whole | {"other": INNER},
            f"task.other={INNER}: no such setting; there is inner, kind, many, rate",
        ),
        (
            whole | {"rats": 1},
            "task.rats=1: no such setting; did you mean rate? there is inner, kind, many, rate",
        ),
        (
            whole | {"inn": 1},
            "task.inn=1: no such setting; did you mean inner? there is inner, kind, many, rate",
        ),
        (whole | {"inner": 3}, "task.inner=3: it is a group of settings"),
    ):  # fmt: skip
        assert refusal(given).startswith(said), said


def test_what_a_target_must_give() -> None:
    assert refusal(node(inner=INNER, rate=0), Inner) == (
        f"task._target_={HERE}.thing: does not give an Inner"
    )
    assert refusal(INNER, Thing, "a.b") == f"a.b._target_={HERE}.Inner: does not give a Thing"
    assert refusal(node("silent"), Thing) == (
        f"task._target_={HERE}.silent: does not give a Thing; write -> Thing behind its arguments"
    )


def test_a_function_that_a_file_names_and_that_is_not_there() -> None:
    with pytest.raises(BadSetting, match=f"{HERE} has no function absent_here; write"):
        locate(f"{HERE}.absent_here", "x")


def test_functions_that_yaml_names_in_its_several_ways(tmp_path: Path) -> None:
    lines = ["a.b.plain", "a.b.noted  # mine", "'a.b.quoted'", '"a.b.twice" # so', "c.d.other"]
    for k, line in enumerate([*lines, "'a.b.open"]):
        (tmp_path / f"{k}.yaml").write_text(f"_target_: {line}\nrate: 1\n")
    (tmp_path / "note.yaml").write_text("# _target_: a.b.note\nname: {_target_: a.b.inner}\n")
    names = {"plain", "noted", "quoted", "twice"}
    assert module.named_below(tmp_path, ("a",)) == {f"a.b.{name}" for name in names}


@pytest.mark.parametrize(
    "target",
    [
        "os.system",
        "tasksother.x",
        f"{HERE}._hidden",
        None,
        [],
        {"a": 1},
        f"{HERE}.absent",
        "tasks.no_such_module.x",
        "tasks",
        "tasks.",
        "bench",
        f"{HERE}.number",
        f"{HERE}.borrowed",
        "bench.core.settings.build",
        "bench.runs.folder.RunFolder",
        "hydra_plugins.bilevel_bench.Sweep",
    ],
    ids=str,
)
def test_targets_that_are_refused(target: Any) -> None:
    with pytest.raises(BadSetting) as error:
        locate(target, "task")
    said = f"task._target_={target}: only functions that a file of conf/ names may be called"
    package = str(target).partition(".")[0]
    if package in ("os", "tasksother"):
        said += (
            f"; {package} is not installed as a package of the bench, nor listed in BENCH_PACKAGES"
        )
    assert str(error.value) == said


def test_every_function_that_conf_names_is_there() -> None:
    for target in named_in_conf() - NAMED:
        function = locate(target, "x")
        assert f"{function.__module__}.{function.__name__}" == target


def test_targets_are_functions_and_classes_of_this_project() -> None:
    assert locate(f"{HERE}.thing", "x") is thing
    assert locate(f"{HERE}.Inner", "x") is Inner
    for package in (
        "tasks.quadratic.quadratic",
        "algorithms.bilevel.bome.bome",
        "bench.numerics.descent.clamped",
    ):
        assert locate(package, "x").__module__ == package.rpartition(".")[0]


def test_a_node_is_built_innermost_first() -> None:
    """What the caller gives comes before the settings."""
    found = build(check_settings(node(inner=INNER, rate=0), "task", Thing, given=("seed",)), 7)
    assert found == Thing((7, Inner(1.0, 2), 0.0, "a", ()))
    whole = check_settings(node(seed=1, inner=INNER, rate=0.5, kind="b", many=[4]), "task")
    assert build(whole) == Thing((1, Inner(1.0, 2), 0.5, "b", (4,)))
    assert build({"_target_": f"{HERE}.bare", "value": {"a": 1}}) == Thing(({"a": 1},))
    assert build(INNER | {"times": 5}) == Inner(1, 5)


def test_a_signature_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan validates hundreds of configurations against few signatures."""
    made: list[str] = []
    create = module.create_model
    monkeypatch.setattr(
        module, "create_model", lambda *a, **k: made.append(a[0]) or create(*a, **k)
    )
    fields = {"only_here": (Count, 1), "and_there": (Positive, 2.0)}
    for value in range(1, 5):
        assert validate(fields, {"only_here": value}, "p")["only_here"] == value
    assert len(made) == 1


def test_a_whole_number_may_be_written_as_a_power() -> None:
    """Hydra reads 1e3 as a float; it is as good as 1000, and gives the same value."""
    for kind in (Count, Natural, Seed, Count | None):
        found = validate({"v": (kind, ...)}, {"v": 1e3}, "p")["v"]
        assert type(found) is int
        assert found == 1000
    with pytest.raises(BadSetting, match=r"run\.steps=1\.5: input should be a valid integer"):
        validate({"steps": (Count, ...)}, {"steps": 1.5}, "run")
    with pytest.raises(BadSetting, match=r"less than or equal to 9007199254740992"):
        validate({"steps": (Count, ...)}, {"steps": 1e300}, "run")


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        (Literal["auto"] | bool, "maybe", "run.x=maybe: input should be 'auto' or a valid boolean"),
        (Count | None, "y", "run.x=y: input should be a valid integer"),
        (dict[str, int], {"a": "b"}, "run.x.a=b: input should be a valid integer"),
        (dict[str, int], "y", "run.x=y: it is a group of settings: write run.x.NAME="),
    ],
)
def test_a_value_of_no_type_is_told_by_the_settings_name(kind: Any, value: Any, said: str) -> None:
    """The types of a union are in one line, and are no part of the name."""
    with pytest.raises(BadSetting) as raised:
        validate({"x": (kind, ...)}, {"x": value}, "run")
    assert str(raised.value).startswith(said)
