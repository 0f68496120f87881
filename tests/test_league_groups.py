"""What the league tells apart: clearly different methods, and equal ones in 5% of cases at most."""

import re

import numpy as np
import pytest
from scipy import stats

from bench.reproduce.league import page, phrases, scores
from bench.reproduce.league.entries import Entry, TaskEntry, Trials
from bench.reproduce.league.page import Board
from bench.reproduce.league.rules import Track, own_tracks, read_track, track_names
from bench.reproduce.league.scores import Array
from bench.reproduce.league.trials import Row

Design = tuple[int, int, int]  # methods, tasks, seeds


def design(name: str) -> Design:
    track = read_track(name, own_tracks())
    return len(track.methods), len(track.tasks), track.seeds


DESIGNS = {name: design(name) for name in track_names(own_tracks())}


def draw_work(rng: np.random.Generator, of: Design, noise: float = 1.0) -> Array:
    """The work of methods none of which is better than another: each has its own luck on a task,
    if there are several, and at each seed; in logarithm both deviate by `noise`."""
    luck = rng.normal(size=(*of[:2], 1)) * (of[1] > 1)
    return np.asarray(np.exp(noise * (luck + rng.normal(size=of))))


def grouped(work: Array) -> list[int]:
    """The group of each method, in their order by area."""
    return [place.group for place in scores.places([str(m) for m in range(len(work))], work)]


def apart(work: Array) -> scores.Flags:
    return scores.told_apart(scores.unit_areas(scores.credits(work)))


# the test


@pytest.mark.parametrize("of", [*DESIGNS.values(), (2, 1, 3), (2, 10, 10)], ids=str)
def test_equal_methods_are_hardly_ever_told_apart(of: Design) -> None:
    """In 5% of draws at most any two are, and so is there more than one group. With two methods
    there is nothing to correct, and it is 5%."""
    rng, draws = np.random.default_rng(0), 2000 if of[0] < 20 else 600
    share = np.mean([apart(draw_work(rng, of)).any() for _ in range(draws)])
    error = 3 * np.sqrt(0.05 * 0.95 / draws)
    assert share <= 0.05 + error
    if of[0] == 2:
        assert share >= 0.05 - error


def test_equal_methods_are_not_told_apart_beside_bad_ones() -> None:
    """Half of the methods are far behind, which must not make it easier to split the others."""
    rng, draws, split, lost = np.random.default_rng(0), 300, 0, 0
    for _ in range(draws):
        work = draw_work(rng, DESIGNS["deterministic"])
        work[13:] *= 1000
        found = apart(work)
        split += found[:13, :13].any()
        lost += not found[:13, 13:].any(axis=0).all()
    assert split / draws <= 0.05 + 0.025
    assert lost / draws <= 0.05


def test_a_method_that_takes_ten_times_the_work_is_told_apart() -> None:
    """From every other one, in every draw; the others are still equal, and hardly ever split. This
    takes as many tasks as the deterministic track has: the few of the stochastic one do not tell it
    apart from all."""
    rng, draws, split = np.random.default_rng(0), 60, 0
    for _ in range(draws):
        work = draw_work(rng, DESIGNS["deterministic"], noise=0.3)
        work[7] *= 10
        found = apart(work)
        assert found[7].sum() == len(work) - 1
        split += found.sum() > 2 * (len(work) - 1)
    assert split / draws <= 0.15


def test_three_seeds_tell_apart_what_hardly_varies() -> None:
    rng = np.random.default_rng(0)
    for _ in range(60):
        work = draw_work(rng, DESIGNS["continual"], noise=0.02)
        work[3] *= 10
        assert apart(work)[3].tolist() == [True, True, True, False]


def test_a_p_value_is_that_of_students_paired_test() -> None:
    one, other = np.random.default_rng(0).normal(size=(2, 5, 7))
    expected = [stats.ttest_rel(a, b).pvalue for a, b in zip(one, other)]
    assert scores.paired_p(one - other).tolist() == pytest.approx(expected)


def test_equal_differences_leave_it_to_their_signs() -> None:
    """Of three seeds that is one in four: being the best at all of them is not certainty."""
    p = scores.paired_p(np.array([[1.0, 1.0, 1.0], [0.0, 0.0, 0.0], [-0.1, 0.2 - 0.3, -0.1]]))
    assert p.tolist() == [0.25, 1.0, 0.25]
    assert scores.paired_p(np.array([[5.0]])).tolist() == [1.0]
    work = np.array([[[1.0, 1.0, 1.0]], [[99.0, 99.0, 99.0]]])
    assert grouped(work) == [1, 1]


def test_holm_by_hand() -> None:
    """The smallest of four is held against .05 / 4, the next against .05 / 3, until one is not."""
    assert scores.holm(np.array([0.016, 0.9, 0.012, 0.026])).tolist() == [True, False, True, False]
    assert scores.holm(np.array([0.013, 0.001, 0.04, 0.03])).tolist() == [True, True, False, False]
    assert scores.holm(np.array([0.02, 0.02])).tolist() == [True, True]
    assert scores.holm(np.array([0.03, 0.03])).tolist() == [False, False]


def test_methods_are_compared_over_tasks_or_over_the_seeds_of_one() -> None:
    credit = np.arange(24.0).reshape(2, 3, 4)
    assert scores.unit_areas(credit).tolist() == credit.mean(axis=2).tolist()
    assert scores.unit_areas(credit[:, :1]).tolist() == credit[:, 0].tolist()


def test_a_group_is_of_those_that_cannot_be_told_apart_from_its_first() -> None:
    found = np.zeros((4, 4), dtype=bool)
    found[2, 0] = found[0, 2] = found[1, 3] = found[3, 1] = True
    assert scores.groups([0, 1, 2, 3], found) == [1, 1, 2, 2]
    assert scores.groups([1, 0, 3, 2], found) == [1, 1, 2, 2]


# the pages


def board_of(work: Array, seeds: int | None = None) -> Board:
    """A board of methods m00, m01, ... that took this work [methods, tasks, seeds]."""
    methods, tasks, there = work.shape
    names = [f"m{m:02}" for m in range(methods)]
    about = {"about": "nothing", "task": "t", "metric": "m"}
    track = Track.model_validate(
        {"title": "Made", "about": "Up.", "unit": "calls", "most": 99, "seeds": seeds or there,
         "methods": tuple(names), "tasks": {f"task_{t}": about for t in range(tasks)}}
    )  # fmt: skip
    entries = {
        name: {f"task_{t}": entry(work[m, t]) for t in range(tasks)} for m, name in enumerate(names)
    }
    records = {name: record(name) for name in names}
    return Board("made", track, entries, records, [], set())


def entry(work: Array) -> TaskEntry:
    runs = [
        Row(key="", seed=s, settings={}, status="reached", calls={"grad_f": int(calls)})
        if np.isfinite(calls)
        else Row(key="", seed=s, settings={}, status="limit", calls={"grad_f": 99})
        for s, calls in enumerate(work)
    ]
    trials = Trials(status=["reached"], work=[1.0], reasons=[])
    return TaskEntry(rules="", trials=trials, chosen=0, runs=runs, memory_mb=None)


def record(name: str) -> Entry:
    return Entry(
        track="made", method=name, digest="", package=None, first_order=False,
        command=f"make {name}", made="", commit=None, torch="", processor="", tasks={},
    )  # fmt: skip


@pytest.fixture
def many() -> Board:
    """Nine methods on eight tasks, of which the last takes thirty times the work of the others."""
    work = 1000 * draw_work(np.random.default_rng(3), (9, 8, 4), noise=0.3)
    work[8] *= 30
    return board_of(work)


def rows(text: str) -> list[str]:
    return re.findall(r"^\| [0-9].*", text, re.MULTILINE)


def test_the_findings_have_the_rows_of_the_leagues_table(many: Board) -> None:
    every = rows(page.league_text([many]))
    found = rows(page.findings_text([many]))
    assert len(every) == 9
    assert found == every[: page.SHOWN]
    assert "Groups, ranks and areas are among all 9 methods." in page.findings_text([many])


def test_what_cannot_be_told_apart_is_of_the_first_group_and_all_of_it(many: Board) -> None:
    places = many.places("calls")
    assert [place.group for place in places] == [1] * 8 + [2]
    first, *others = (place.method for place in places[: page.SHOWN])
    listed = ", ".join(f"`{name}`" for name in others)
    said = page.findings_text([many])
    assert f"Of 9 methods `{first}` has the largest area over calls, " in said
    assert f"; {listed} and 3 more cannot be told apart from it. " in said


def test_what_can_be_told_apart_is_not_listed() -> None:
    work = 1000 * draw_work(np.random.default_rng(3), (3, 8, 4), noise=0.1)
    work[0] *= 10
    said = page.findings_text([board_of(work)])
    (name,) = re.findall("; (.*) cannot be told apart from it", said)
    assert name in ("`m01`", "`m02`")
    work[1] *= 100
    assert "cannot be told apart" not in page.findings_text([board_of(work)])


@pytest.mark.parametrize(
    ("tasks", "seeds", "few"),
    [
        (1, 3, "3 seeds of one task"),
        (1, 5, "5 seeds of one task"),
        (1, 6, ""),
        (3, 10, "3 tasks"),
        (5, 3, "5 tasks"),
        (6, 1, ""),
    ],
)
def test_rough_intervals_are_called_so(tasks: int, seeds: int, few: str) -> None:
    board = board_of(1000 * draw_work(np.random.default_rng(0), (3, tasks, seeds)))
    assert board.few_units == few
    for text in (page.league_text([board]), page.findings_text([board])):
        said = f"Intervals are rough, and mostly too narrow, because they are of {few}: "
        assert text.count("Intervals are rough") == bool(few)
        assert (said in text) == bool(few)


def test_methods_that_seldom_come_there_are_no_advice() -> None:
    """Not even where they are the fastest; 8 of 10 seeds are enough. Nobody came to the last."""
    work = np.full((3, 3, 10), 50.0)
    work[0] = 10.0
    work[0, 0, 8:] = work[0, 1, 7:] = work[:, 2, 7:] = np.inf
    work[1, 1, 0] = 60.0
    first, second, third = page.advice_text(board_of(work)).splitlines()
    assert "take `m00` (10 calls [10, 10], 8 of 10 seeds) or `m0" in first
    assert "m00" not in second
    assert "take `m02`" in second
    assert "no method came there at 80% of the seeds." in third


def test_a_track_of_one_task_shows_no_interval_of_its_good_trials() -> None:
    board = board_of(1000 * draw_work(np.random.default_rng(0), (3, 1, 3)))
    for row in rows(page.league_text([board])):
        _, _, _, _, _, _, came, good, *_ = row.strip("| ").split(" | ")
        assert (came, good) == ("1.00", "1.00")


def test_a_later_group_is_marked_where_it_is_not_told_apart_from_the_first() -> None:
    """m01 takes twice the work everywhere, m02 none more than m00 but on two tasks of eight."""
    work = np.ones((3, 8, 4))
    work[1], work[2, :2] = 2.0, 32.0
    board = board_of(work)
    places = board.places("calls")
    assert [place.method for place in places] == ["m00", "m01", "m02"]
    assert [place.group for place in places] == [1, 2, 2]
    assert [place.behind for place in places] == [False, True, False]
    assert [phrases.group_text(place) for place in places] == ["1", "2", "2 ~"]
    assert "| 2 ~ | `m02` |" in page.places_table(board, board.names)
    said = page.findings_text([board])
    assert "; `m02` cannot be told apart from it. " in said


def test_advice_joins_what_the_seeds_do_not_tell_apart() -> None:
    """On the first task m01 is worse at each of six seeds, on the second by chance."""
    work = np.ones((2, 2, 6))
    work[1, 0] = 2.0
    work[1, 1, 0] = 1.5
    first, second = page.advice_text(board_of(10 * work)).splitlines()
    assert "take `m00` (10 calls [10, 10], 6 of 6 seeds); then `m01` (20 calls" in first
    assert "take `m00` (10 calls [10, 10], 6 of 6 seeds) or `m01` (10 calls" in second


def test_as_good_as_the_first_is_what_the_seeds_do_not_tell_apart_from_it() -> None:
    credit = np.array([[1.0] * 8, [0.5] * 8, [1.0] * 8])
    assert scores.as_good(credit).tolist() == [True, False, True]
    assert scores.as_good(credit[:1]).tolist() == [True]
    assert phrases.in_order(["a", "b", "c"], credit) == "a or c; then b"


def test_of_methods_that_are_as_good_the_cheapest_is_named_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert board_of(np.array([[[1.0, 2.0, 9.0]]])).calls().tolist() == [[2.0]]
    board, calls = board_of(np.full((2, 1, 3), 10.0)), np.array([[7000.0], [1.0]])
    valued = board._replace(track=board.track.model_copy(update={"by": "value"}))
    monkeypatch.setattr(Board, "work", lambda self, unit: np.full((2, 1, 3), 0.5))
    monkeypatch.setattr(Board, "calls", lambda self: calls)
    said = page.advice_text(valued)
    order = "`m01` (0.5 [0.5, 0.5], 1 calls, 3 of 3 seeds), then `m00` ("
    assert f"3 seeds decide nothing; in their order: {order}" in said


def test_six_seeds_are_advice_and_five_are_an_order() -> None:
    credit = np.array([[1.0] * 6, [0.5] * 6])
    assert phrases.advice(["a", "b"], credit) == "take a; then b"
    assert phrases.advice(["a", "b"], credit[:, :5]) == (
        "5 seeds decide nothing; in their order: a, then b"
    )


def test_a_place_has_the_numbers_of_its_own_method() -> None:
    """a never comes there, b is the best and c takes twice as much: log 2 / log 32 is 1 / 5."""
    work = np.ones((3, 8, 4))
    work[0], work[2] = np.inf, 2.0
    found = scores.places(["a", "b", "c"], work)
    assert [place.method for place in found] == ["b", "c", "a"]
    assert [place.area.value for place in found] == pytest.approx([1.0, 0.8, 0.0])
    assert [place.area.low for place in found] == pytest.approx([1.0, 0.8, 0.0])
    assert [place.rank for place in found] == [(k, k, k) for k in (1.0, 2.0, 3.0)]
    assert [place.group for place in found] == [1, 2, 3]
    assert [place.behind for place in found] == [False, True, True]
    assert [place.reached.value for place in found] == [1.0, 1.0, 0.0]


def test_an_interval_leaves_out_a_fortieth_at_each_end() -> None:
    found = scores.interval(0.3, np.linspace(0.0, 1.0, 1001))
    assert found == pytest.approx((0.3, 0.025, 0.975))


def test_the_interval_of_a_rank_leaves_out_a_fortieth_at_each_end() -> None:
    """Two of the first method's three trials are good: three draws lack them in 1 of 27 cases,
    which is more than a fortieth and less than a twentieth. Then the second method is the first."""
    tried = np.full((2, 1, 3), 16.0)
    tried[0, 0] = 1.0, 1.0, np.inf
    assert scores.trial_ranks(tried, draws=20_000) == [(1.0, 2.0), (1.0, 2.0)]


def test_methods_without_second_derivatives_have_a_table_of_their_own() -> None:
    board = board_of(1000 * draw_work(np.random.default_rng(3), (3, 8, 4), noise=0.3))
    assert "without second derivatives" not in page.league_text([board])
    promise = {
        name: board.records[name].model_copy(update={"first_order": True})
        for name in ("m01", "m02")
    }
    board = board._replace(records=board.records | promise)
    assert board.first_order.names == ["m01", "m02"]
    _, found, own = page.league_text([board]).partition("### Made, without second derivatives\n")
    assert found
    assert len(rows(own)) == 2
    assert "`m00`" not in "".join(rows(own))


def test_a_method_stands_beside_the_best_of_each_task() -> None:
    work = np.array([[[10.0] * 3, [40.0] * 3], [[20.0] * 3, [5.0] * 3]])
    found = page.method_text(board_of(work), "m00")
    first = "`m00` (10 calls [10, 10], 3 of 3 seeds)"
    assert f"| `task_0` | {first} | {first} | 1 of 1 |" in found
    own, other = (f"`m0{m}` ({n} calls [{n}, {n}], 3 of 3 seeds)" for m, n in ((0, 40), (1, 5)))
    assert f"| `task_1` | {own} | {other} | 1 of 1 |" in found


def test_the_best_are_separated_by_the_task_where_their_areas_differ_most() -> None:
    """m01 takes twice as much on the first task, and m00 sixteen times as much on the second."""
    work = np.array([[[10.0] * 3, [160.0] * 3], [[20.0] * 3, [10.0] * 3]])
    assert (
        "What separates these 2 most is `task_1`: `m01` (10 calls [10, 10], 3 of 3 seeds) against "
        "`m00` (160 calls [160, 160], 3 of 3 seeds)."
    ) in page.findings_text([board_of(work)])
