"""The numbers of every method and task are those that were recorded; see tests/golden.py."""

import pytest

from tests import golden


def test_every_configuration_has_its_numbers() -> None:
    assert set(golden.recorded()) == set(golden.names())


@pytest.mark.parametrize("case", golden.recorded())
def test_numbers_have_not_moved(case: str) -> None:
    assert not list(golden.differences(golden.numbers(case), golden.recorded()[case]))
