"""Chosen grid points at an edge of their grid, from records and from plans."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from bench.reproduce import edges, records
from bench.reproduce.choosing import TriedPoint
from bench.runs.files import write_json
from tests.planned import BOOK, artifact, finish, made
from tests.test_records import MACHINE


def tries(status: str = "done", **grid: list[Any]) -> list[TriedPoint]:
    """Every point of a grid, all runs with the same status."""
    points = [dict(zip(grid, values)) for values in product(*grid.values())]
    return [TriedPoint(point, status, None) for point in points]


@pytest.mark.parametrize(
    ("grid", "chosen", "ends", "expected"),
    [
        ({"lr": [1, 10, 100]}, {"lr": 10}, {}, []),
        ({"lr": [1, 10, 100]}, {"lr": 1}, {}, ["lr 1 is the lowest of 1, 10, 100"]),
        ({"lr": [10, 100, 1]}, {"lr": 100}, {}, ["lr 100 is the highest of 1, 10, 100"]),
        ({"lr": [0.1, 1]}, {"lr": 0.1}, {}, ["lr 0.1 is the lowest of 0.1, 1"]),
        ({"lr": [1]}, {"lr": 1}, {}, []),
        ({"lr": [1, 10]}, {"lr": 1}, {"lr": "low"}, []),
        ({"lr": [1, 10]}, {"lr": 1}, {"lr": "both"}, []),
        ({"lr": [1, 10]}, {"lr": 1}, {"lr": "high"}, ["lr 1 is the lowest of 1, 10"]),
        ({"lr": [1, 10]}, {"lr": 10}, {"lr": "high", "T": "low"}, []),
        ({"rule": ["adam", "gd"]}, {"rule": "adam"}, {}, []),
        ({"decay": [True, False]}, {"decay": True}, {}, []),
        ({"cap": [None, 3]}, {"cap": 3}, {}, []),
        ({"of": [[1, 2], [3, 4]]}, {"of": [1, 2]}, {}, []),
        (
            {"lr": [1, 10], "T": [5, 6, 7]}, {"lr": 10, "T": 5}, {},
            ["lr 10 is the highest of 1, 10", "T 5 is the lowest of 5, 6, 7"],
        ),
    ],
)  # fmt: skip
def test_which_chosen_points_lie_at_an_edge(
    grid: dict[str, list[Any]], chosen: Any, ends: Any, expected: list[str]
) -> None:
    assert edges.describe_edges(tries(**grid), chosen, ends) == expected


def test_a_point_is_at_no_edge_if_its_run_failed_or_if_there_is_no_grid() -> None:
    """If all runs failed, the first point is shown, which nobody chose for its value."""
    assert edges.describe_edges(tries("diverged", lr=[1, 10]), {"lr": 1}, {}) == []
    assert edges.describe_edges([], {}, {}) == []


def test_a_plan_and_its_record_have_the_same_edges(tmp_path: Path) -> None:
    """Row A of the paper has its best run at .3, the highest of .1, .2 and .3."""
    for lr, loss in (("0.1", 3.0), ("0.2", 2.0), ("0.3", 1.0)):
        finish(tmp_path, f"paper/A/{lr}-0", loss)
        write_json(tmp_path / f"paper/A/{lr}-0/environment.json", MACHINE)
    plan = made(tmp_path)
    spec = plan.artifact.spec
    expected = [("A", ["lr 0.3 is the highest of 0.1, 0.2, 0.3"])]
    assert list(edges.plan_edges(plan.rows, spec, "paper")) == expected
    assert list(edges.plan_edges(plan.rows, spec, "code")) == []
    found = records.make_record(plan, BOOK)
    assert list(edges.record_edges(found, spec, "paper")) == expected
    assert list(edges.record_edges(found, spec, "code")) == []
    assert list(edges.record_edges(found, spec, "another")) == []
    closed = artifact(ends={"algorithm.lr": "high"}).spec
    assert list(edges.plan_edges(plan.rows, closed, "paper")) == []
    assert list(edges.record_edges(found, closed, "paper")) == []


def test_a_value_whose_run_failed_is_a_value_of_the_grid_too() -> None:
    """Beyond 10 there was 100, which diverged; 1 is still the lowest."""
    tried = [*tries(lr=[1, 10]), *tries("diverged", lr=[100])]
    assert edges.describe_edges(tried, {"lr": 10}, {}) == []
    assert edges.describe_edges(tried, {"lr": 1}, {}) == ["lr 1 is the lowest of 1, 10, 100"]
    left = [*tries(lr=[1]), *tries("diverged", lr=[10, 100])]
    assert edges.describe_edges(left, {"lr": 1}, {}) == ["lr 1 is the lowest of 1, 10, 100"]
