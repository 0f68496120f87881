"""Runs that report the iterate of the best measurement: kept, measured once, resumed exactly."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from algorithms.bilevel.itd import itd
from bench.core.limits import Limits
from bench.core.loop import Standing, first, run
from bench.core.task import Best, Selection, Task
from bench.numerics.descent import gd
from bench.runs import checkpoint

SCORES = [0.1, 0.4, float("nan"), 0.7, 0.7, 0.2]  # at steps 0, 2, ..., 10
ALGORITHM = itd(gd(), 0.1, 0.5, 2)


@pytest.fixture
def measured() -> list[Best]:
    return []


@pytest.fixture
def selecting(task: Task, measured: list[Best]) -> Task:
    def close(best: Best, row: Any) -> dict[str, torch.Tensor]:
        measured.append(best)
        return {"kept": best.x.sum(), "fall": torch.tensor(best.value - row["score"])}

    return replace(
        task,
        evaluate=lambda x, y, step: {"score": torch.tensor(SCORES[step // 2]), "seen": x.sum()},
        metric="seen",
        selection=Selection("score", close),
    )


def test_the_first_best_iterate_is_measured_at_the_end_and_only_there(
    selecting: Task, measured: list[Best]
) -> None:
    rows: list[dict[str, Any]] = []
    paused: list[Standing] = []
    run(selecting, ALGORITHM, seed=0, steps=10, every=2, on_row=rows.append, on_pause=paused.append)
    at = next(s for s in paused if s.step == 6)
    assert [best.step for best in measured] == [6]
    assert torch.equal(measured[0].x, at.state.x)
    assert torch.equal(measured[0].y, at.state.y)
    assert [("kept" in row) for row in rows] == [False] * 5 + [True]
    assert rows[-1]["fall"] == pytest.approx(0.5)


@pytest.mark.parametrize("seconds", [1e-9, None])
def test_whatever_ends_a_run(seconds: float | None, selecting: Task, measured: list[Best]) -> None:
    """Time, or a target that is met at once."""
    rows: list[dict[str, Any]] = []
    until = None if seconds else ("score", 0.1)
    run(
        selecting, ALGORITHM, seed=0, steps=10, every=2, limits=Limits(seconds=seconds),
        until=until, on_row=rows.append,
    )  # fmt: skip
    assert "kept" in rows[-1]
    assert len(measured) == 1


def test_going_on_from_a_checkpoint_selects_the_same(
    selecting: Task, measured: list[Best], tmp_path: Path
) -> None:
    paused: list[Standing] = []
    run(selecting, ALGORITHM, seed=0, steps=10, every=2, on_pause=paused.append)
    middle = next(s for s in paused if s.step == 8)
    checkpoint.save(tmp_path / "c.pt", "name", middle)
    back = checkpoint.load(tmp_path / "c.pt", "name", first(selecting, ALGORITHM, 0))
    run(selecting, ALGORITHM, seed=0, steps=10, every=2, start=back)
    assert [best.step for best in measured] == [6, 6]
    assert torch.equal(measured[0].x, measured[1].x)


def test_a_task_without_a_choice_keeps_nothing(task: Task) -> None:
    assert run(task, ALGORITHM, seed=0, steps=2, every=1).best is None
