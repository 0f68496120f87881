"""500 cases of damage; `python -m scripts.fuzz` tries 10,000."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzzing import TARGETS


@pytest.mark.parametrize("kind", TARGETS)
def test_damage_is_read_or_refused(kind: str, tmp_path: Path) -> None:
    @settings(
        max_examples=100, deadline=None, derandomize=True, database=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.data())
    def cases(data: st.DataObject) -> None:
        TARGETS[kind](data, tmp_path)

    cases()
