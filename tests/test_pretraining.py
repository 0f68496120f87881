"""A start that was trained before: descent by hand, and what is kept of it on disk."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from bench.core.task import Context
from tasks.common import pretraining
from tasks.common.pretraining import descend, train_or_load
from tasks.hyper_cleaning import hyper_cleaning


def test_descent_with_a_velocity() -> None:
    """v = push(y, v), y = y - lr v; by hand for push = y + v / 2 from y = 1: v = 1, .9 + .5, ..."""
    y, v = 1.0, 0.0
    for steps in range(5):
        found = descend(torch.tensor([1.0]).double(), lambda y, v: y + v / 2, 0.1, steps)
        assert float(found) == pytest.approx(y, rel=1e-14)
        v = y + v / 2
        y = y - 0.1 * v


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([3.0, 1.0, 2.0], 2),
        ([3.0, 2.0, 1.0], 3),
        ([1.0, 2.0, 3.0], 1),
        ([2.0, 1.0, 1.0], 3),
        ([math.nan, 5.0, math.nan], 2),
        ([math.inf, math.nan, math.nan], 1),
        ([], 0),
    ],
)
def test_the_iterate_of_least_score(scores: list[float], expected: int) -> None:
    """The first step is a candidate, the start is none unless there is no step; of equal ones the
    latest; NaN never."""
    told = iter(scores)
    found = descend(
        torch.zeros(2),
        lambda y, v: -torch.ones(2),
        1.0,
        len(scores),
        lambda y: torch.tensor(next(told)),
    )
    assert found.tolist() == [expected, expected]


def ready(
    context: Context, name: str = "hyper_cleaning", settings: Any = "s", data: Any = None
) -> list[str]:
    """What is asked for is trained or read; the names of what lies on disk then."""
    given = [torch.arange(3.0)] if data is None else data
    found = train_or_load(name, context, settings, given, lambda: torch.tensor([1.0, 2.0]))
    assert found.tolist() == [1.0, 2.0]
    return sorted(path.name for path in (context.data_root / "derived").iterdir())


def test_what_was_trained_is_read_again(tmp_path: Path) -> None:
    context = Context(data_root=tmp_path / "new")
    (file,) = ready(context)
    assert file.startswith("hyper_cleaning-")
    assert file.endswith(".pt")

    def not_again() -> Tensor:
        raise AssertionError

    found = train_or_load("hyper_cleaning", context, "s", [torch.arange(3.0)], not_again)
    assert torch.equal(found, torch.tensor([1.0, 2.0]))


def test_its_name_has_all_it_depends_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another task, setting, type or tensor is another file; so is another version of the task or
    of torch, and what else a CPU's last bits depend on."""
    context = Context(data_root=tmp_path)
    count = len(ready(context))
    assert len(ready(context)) == count == 1
    for change in (
        {"name": "newsgroups"},
        {"settings": "t"},
        {"context": replace(context, dtype=torch.float64)},
        {"data": [torch.arange(3.0) + 1]},
        {"data": [torch.arange(3.0), torch.arange(2)]},
    ):
        count += 1
        assert len(ready(**({"context": context} | change))) == count, change  # type: ignore[arg-type]
    for place, name, value in (
        (hyper_cleaning, "version", 99),
        (torch, "__version__", "99.0"),
        (torch, "get_num_threads", lambda: 77),
        (torch.backends.cpu, "get_cpu_capability", lambda: "NEWER"),
        (pretraining, "library", lambda: None),
    ):
        count += 1
        monkeypatch.setattr(place, name, value)
        assert len(ready(context)) == count, name


def test_a_gpus_bits_do_not_depend_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that what one lent machine trained is read on the next, whose CPU may be another."""
    device = torch.device("cuda")
    before = pretraining.circumstances(device)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "NEWER")
    monkeypatch.setattr(pretraining, "library", lambda: None)
    assert pretraining.circumstances(device) == before
