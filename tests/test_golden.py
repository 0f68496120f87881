"""The numbers of every method and task are those that were recorded; see tests/golden.py."""

import copy
from typing import Any

import pytest

from tests import golden

ADVICE = (
    "raise the version of what computes these numbers (bench.core.settings.version), so that its "
    "runs get new names, then: uv run python -m tests.golden --renew"
)


def test_every_configuration_has_its_numbers() -> None:
    assert set(golden.recorded()) == set(golden.names())


@pytest.mark.parametrize("case", golden.recorded())
def test_numbers_have_not_moved(case: str) -> None:
    assert not golden.moved(case, {case: golden.numbers(case)}, golden.recorded()), ADVICE


CASE: dict[str, Any] = {"last": {"loss": 0.5}, "x": [1.0, 2.0], "versions": {"bome": 1}}


def changed(**changes: Any) -> dict[str, Any]:
    return copy.deepcopy(CASE) | changes


def test_a_moved_number_asks_for_a_raised_version() -> None:
    assert not golden.same_version(CASE, CASE)
    assert golden.same_version(changed(x=[1.0, 2.5]), CASE) == ["/x[1]: 2.5, recorded 2.0"]
    assert golden.same_version(changed(last={"loss": 1.0}), CASE)
    assert golden.same_version({"last": {"loss": 0.5}, "versions": {"bome": 1}}, CASE)
    assert not golden.same_version(changed(x=[1.0, 2.5], versions={"bome": 2}), CASE)


def test_a_changed_default_asks_for_a_raised_version_and_a_new_one_does_not() -> None:
    kept = {"bome": {"eta": "0.5", "versions": 1}, "gda": {"lr": "0.1", "versions": 1}}
    assert golden.same_version({**kept, "bome": {"eta": "0.6", "versions": 1}}, kept) == [
        "/bome/eta: '0.6', recorded '0.5'"
    ]
    assert not golden.same_version({**kept, "bome": {"eta": "0.6", "versions": 2}}, kept)
    assert not golden.same_version({**kept, "bome": {**kept["bome"], "new": "1"}}, kept)
    assert not golden.same_version({**kept, "new": {"lr": "0.1", "versions": 1}}, kept)


def test_moving_a_module_moves_no_number() -> None:
    node = {"_target_": "a.b.f", "group": {"_target_": "c.g", "n": 1}, "list": [1]}
    assert golden.unplaced(node) == {"_target_": "f", "group": {"_target_": "g", "n": 1},
                                     "list": [1]}  # fmt: skip
