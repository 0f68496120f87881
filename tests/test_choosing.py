"""Which point of a grid is chosen, and which are as good, from tries written down here."""

import math

import pytest

from bench.reproduce.choosing import TriedPoint, Try, best_point, equal_points, tried_points
from bench.reproduce.specs import Select, Settings

A: Settings = {"lr": 0.1}
B: Settings = {"lr": 0.2}
C: Settings = {"lr": 0.3}
HIGHEST = Select(metric="loss", best="highest")
LOWEST = Select(metric="loss", best="lowest")


@pytest.mark.parametrize(
    ("tries", "expected"),
    [
        ([(A, "done", 1.0), (A, "done", 4.0)], TriedPoint(A, "done", 2.5)),
        ([(A, "done", 1.0), (A, "diverged", 4.0)], TriedPoint(A, "diverged", None)),
        ([(A, "failed", None), (A, "diverged", 4.0)], TriedPoint(A, "failed", None)),
        ([(A, "done", 1.0), (A, "done", None)], TriedPoint(A, "done", None)),
        ([(A, "done", 1.0), (A, "done", math.inf)], TriedPoint(A, "done", None)),
    ],
)
def test_a_point_has_the_mean_of_its_seeds_if_all_have_ended_well(
    tries: list[Try], expected: TriedPoint
) -> None:
    assert tried_points(tries) == [expected]


def test_points_stand_in_the_order_of_their_first_runs() -> None:
    """Settings that are written in another order are the same point."""
    of_both: list[Try] = [
        ({"lr": 1, "T": 2}, "done", 1.0),
        (A, "done", 9.0),
        ({"T": 2, "lr": 1}, "done", 3.0),
    ]
    assert tried_points(of_both) == [
        TriedPoint({"lr": 1, "T": 2}, "done", 2.0), TriedPoint(A, "done", 9.0),
    ]  # fmt: skip


def test_the_best_point_is_the_first_of_equal_ones() -> None:
    found = [
        TriedPoint(A, "diverged", None), TriedPoint(B, "done", 2.0), TriedPoint(C, "done", 3.0),
        TriedPoint({"lr": 0.4}, "done", 2.0), TriedPoint({"lr": 0.5}, "done", 3.0),
    ]  # fmt: skip
    assert best_point(found, LOWEST).settings == B
    assert best_point(found, HIGHEST).settings == C
    assert best_point(found[:1], LOWEST).settings == A  # none has a value


def test_equal_points_are_those_of_exactly_the_chosen_value() -> None:
    found = [TriedPoint(A, "done", 2.0), TriedPoint(B, "done", 2.0), TriedPoint(C, "done", 2.1)]
    assert equal_points(found, A) == [B]
    assert equal_points(found, C) == []
    assert equal_points(found, {"lr": 7.0}) == []  # a point of another grid


def test_no_point_equals_one_without_a_value() -> None:
    """Where all runs failed, the first point is shown, which nobody chose for its value."""
    found = [TriedPoint(A, "diverged", None), TriedPoint(B, "diverged", None)]
    assert equal_points(found, A) == []
