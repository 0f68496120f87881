"""The league: every method under one tuning budget, kills survived, failures told, honest ranks."""

import json
import math
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import yaml
from omegaconf import OmegaConf
from torch import Tensor
from typer.testing import CliRunner

from algorithms.bilevel.soba import soba
from bench.core import packages
from bench.core.algorithm import Algorithm
from bench.core.draw import Draw, generator
from bench.core.exact import measured_exactly
from bench.core.oracle import Oracle
from bench.core.settings import TUNING, BadSetting
from bench.core.task import Context, Task
from bench.core.work import Goal, work_to_goal
from bench.reproduce import league_commands
from bench.reproduce.league import (
    digests,
    entries,
    page,
    phrases,
    pictures,
    rules,
    running,
    scores,
    space,
    targets,
    trials,
)
from bench.reproduce.league.rules import Entrant
from bench.reproduce.league.running import League
from bench.reproduce.league.targets import TaskTargets
from bench.reproduce.league.trials import Case, Row, Trial
from bench.reproduce.places import RESULTS
from bench.runs import exit_codes, lock, source
from bench.solving.methods import composed, filled
from tests.conftest import ROOT

TINY = {
    "title": "Tiny", "about": "A test.", "unit": "calls", "most": 600, "trials": 4, "seeds": 4,
    "methods": ["soba", "bome"],
    "tasks": {
        "easy": {
            "about": "little to do", "task": "quadratic", "set": {"instance": "${seed}"},
            "metric": "objective", "within": 0.5, "reference": {"optimum": True},
            "steps": {"x": 0.1},
        },
        "hard": {
            "about": "much to do", "task": "logistic", "set": {"curvature": 0.01},
            "metric": "objective", "within": 0.1, "steps": {"x": 10.0},
            "reference": {
                "method": "aid_cg", "set": {"outer_lr": 10.0, "inner_lr": 1.0}, "rounds": 20,
            },
        },
    },
}  # fmt: skip
METHODS = '''
import os, signal, time
from typing import NamedTuple
from torch import Tensor
from bench import Algorithm, Count, Draw, Oracle, Positive

class State(NamedTuple):
    x: Tensor
    y: Tensor

def method(outer_lr: Positive = 0.1, how: str = "well", T: Count = 3) -> Algorithm:
    """A method that takes the route `how`."""
    def step(o: Oracle, s: State, draw: Draw) -> tuple[State, dict[str, Tensor]]:
        if how == "raises":
            raise RuntimeError("no such luck")
        if how == "memory":
            raise MemoryError("too much")
        if how == "exits":
            raise SystemExit(0)
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "slow":
            time.sleep(0.3)
        y = s.y
        for _ in range(T):
            y = y - o.g_y(s.x, y, draw.g())
        v = o.f_y(s.x, y, draw.f())
        x = s.x - outer_lr * (o.f_x(s.x, y, draw.f()) - o.g_xy(s.x, y, draw.g())(v))
        return State(1e300 * x.exp() if how == "diverges" else x, y), {}
    return Algorithm(State, step)
'''
YAML = """# a method of somebody's own
_target_: league_guest.methods.method
outer_lr: 0.1
how: {how}
T: 3
tuning:
  outer_lr: {{log: [0.1, 10], of: x}}
"""
HOWS = ("well", "raises", "memory", "diverges", "exits", "killed", "slow")
EASY = TINY["tasks"]["easy"]  # type: ignore[index]


@pytest.fixture(scope="module")
def guests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A package outside of the repository with a method for each way in which one can end."""
    place = tmp_path_factory.mktemp("guests")
    folder = place / "league_guest"
    (folder / "conf/algorithm").mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "methods.py").write_text(METHODS)
    for how in HOWS:
        (folder / f"conf/algorithm/guest_{how}.yaml").write_text(YAML.format(how=how))
    (folder / "conf/algorithm/guest_silent.yaml").write_text(YAML.split("tuning")[0].format(how=""))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(packages.VARIABLE, "league_guest")
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(place)]))
        patch.syspath_prepend(place)
        yield place


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the track `tiny`."""
    place = tmp_path_factory.mktemp("tracks")
    (place / "tiny.yaml").write_text(yaml.safe_dump(TINY))
    return place


@pytest.fixture(scope="module")
def league(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> League:
    """The track with its targets; runs are made in this process."""
    place = tmp_path_factory.mktemp("league")
    track = rules.read_track("tiny", folder)
    found = targets.make_targets(track, "tiny", place)
    targets.write_targets(found, place / "results")
    told: list[str] = []
    where = (place / "runs", place / "results", place)
    return League("tiny", track, folder, found, *where, apart=False, tell=told.append)


@pytest.fixture(scope="module")
def entered(league: League, guests: Path) -> League:
    """The track after some methods have entered."""
    for method in ("soba", "guest_well", "guest_raises", "guest_memory", "guest_diverges"):
        running.enter(league, method)
    return league


def board_of(league: League) -> page.Board:
    return page.read_boards(league.folder, league.results, ["tiny"])[0]


def entry_of(league: League, method: str) -> entries.Entry:
    found = {entry.method: entry for entry in entries.read_entries("tiny", league.results)}
    return found[method]


@pytest.mark.parametrize("own", ["PACKAGED", "CLONED"])
def test_the_projects_entries_are_read_where_there_are_none(
    own: str, entered: League, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = entries.read_entries("tiny", entered.results)
    monkeypatch.chdir(tmp_path)
    assert entries.read_entries("tiny", entries.RESULTS) == []
    monkeypatch.setattr(entries, own, entered.results)
    assert entries.read_entries("tiny", entries.RESULTS) == found != []
    first, *others = found
    newer = first.model_copy(update={"made": "today"})
    mine = first.model_copy(update={"method": "zz_mine"})
    for entry in (newer, mine):
        entries.write_entry(entry, entries.RESULTS)
    assert entries.read_entries("tiny", entries.RESULTS) == [newer, *others, mine]
    assert entries.read_entries("tiny", entries.RESULTS.absolute()) == [newer, mine]


def test_a_target_is_a_share_of_the_way_from_the_start_to_the_reference(league: League) -> None:
    found = league.targets.tasks["easy"].seeds["0"]
    assert found.best is not None
    assert found.start is not None
    assert found.target == pytest.approx(found.best + 0.5 * (found.start - found.best))
    seeds = [str(seed) for seed in (rules.TRIED, *range(4))]
    assert list(league.targets.tasks["easy"].seeds) == seeds
    assert len({t.best for t in league.targets.tasks["easy"].seeds.values()}) == 5  # instances


def test_targets_of_todays_rules_are_kept(league: League, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "make_target", None)  # is not called
    assert targets.make_targets(league.track, "tiny", league.data, league.targets) == league.targets


def test_old_targets_are_refused(league: League) -> None:
    about = league.track.tasks["easy"].model_copy(update={"within": 0.25})
    track = league.track.model_copy(update={"tasks": {**league.track.tasks, "easy": about}})
    command = f"league targets --track tiny --results {league.results} --tracks {league.folder}"
    with pytest.raises(BadSetting, match=rf"targets of easy are not .* reproduce {command}$"):
        running.check_targets(replace(league, track=track))
    running.check_targets(league)


def test_trials_fill_the_space_in_the_tasks_units(league: League) -> None:
    found = rules.entrant(league.track, "tiny", "easy", "soba")
    points = [rules.trial_settings(found, k) for k in range(32)]
    assert points == [rules.trial_settings(found, k) for k in range(32)]
    steps = np.log([point["outer_lr"] for point in points])
    low, high = np.log(0.1 * 0.01), np.log(0.1 * 10)  # the space is in units of .1
    assert low <= steps.min() < low + 0.1 * (high - low)
    assert high >= steps.max() > high - 0.1 * (high - low)
    counts, _ = np.histogram(steps, bins=8, range=(low, high))
    assert counts.min() >= 3
    assert {point["average"] for point in points} == {0.3, 1.0}


def test_a_choice_may_be_bounded_by_that_of_another_setting(league: League) -> None:
    found = rules.entrant(league.track, "tiny", "easy", "reverse")
    points = [rules.trial_settings(found, k) for k in range(64)]
    pairs = {(point["T"], point["K"]) for point in points}
    assert pairs == {(T, K) for T in (1, 3, 10, 30) for K in (1, 3, 10, 30) if K <= T}


@pytest.mark.parametrize("name", ["deterministic", "stochastic"])
def test_the_unit_of_steps_on_y_is_one_over_the_largest_curvature(name: str) -> None:
    """That of the lower loss at the start, so that methods may try what gradient descent can take:
    twice as much."""
    track = rules.read_track(name, rules.own_tracks())
    for task, about in track.tasks.items():
        config = rules.configured(targets.reference_of(track, name, task), rules.TRIED, {})["task"]
        built = targets.task_of(about, config, rules.TRIED, ROOT)
        with torch.no_grad():
            x, y = built.init(generator(rules.TRIED, "init"))
            zeta = built.data.draw_lower(generator("zeta"), 0, None)
            product, v = Oracle(built).g_yy(x, y, zeta), torch.randn_like(y)
            for _ in range(50):  # power iterations
                v = product(v / v.norm())
        assert about.steps.y * float(v.norm()) == pytest.approx(1, abs=0.15), task


def test_minibatches_are_searched_only_where_the_track_says(league: League) -> None:
    noisy = league.track.model_copy(update={"batches": (4, 8)})
    assert "batch" not in rules.entrant(league.track, "tiny", "easy", "soba").space
    found = rules.entrant(noisy, "tiny", "easy", "soba")
    assert {rules.trial_settings(found, k)["batch"] for k in range(8)} == {4, 8}
    reference = rules.entrant(noisy, "tiny", "easy", "soba", tuned=False)
    assert reference.space == {}


def test_a_task_may_have_sizes_of_minibatches_of_its_own(league: League) -> None:
    """A task whose batches have one size has none to search, and other rules than one that has."""
    noisy = league.track.model_copy(update={"batches": (4, 8)})
    about = noisy.tasks["easy"].model_copy(update={"batches": ()})
    own = noisy.model_copy(update={"tasks": {**noisy.tasks, "easy": about}})
    found = rules.entrant(own, "tiny", "easy", "soba")
    assert "batch" not in found.space
    assert rules.configured(found, 0, {})["algorithm"]["batch"] is None
    assert "batch" in rules.entrant(own, "tiny", "hard", "soba").space
    before = digests.rules_of(rules.entrant(noisy, "tiny", "easy", "soba"))
    assert digests.rules_of(found) != before


@pytest.mark.parametrize(
    ("of_the_track", "of_the_task", "other"),
    [
        ({"title": "Other"}, {"about": "others"}, False),
        ({"methods": ("soba",)}, {}, False),
        ({"unit": "samples"}, {}, True),
        ({"by": "value"}, {}, True),
        ({"most": 17}, {}, True),
        ({"cpu_seconds": 17.0}, {}, True),
        ({"memory_gb": 17.0}, {}, True),
        ({"memory_gb": 4.0}, {}, False),  # as records have it that were made before
        ({"trials": 17}, {}, True),
        ({"seeds": 17}, {}, True),
        ({"tuning_seeds": 17}, {}, True),
        ({"tuning_seeds": 1}, {}, False),  # as records have it that were made before
        ({"whole": True}, {}, False),
        ({}, {"metric": "other"}, True),
        ({}, {"within": 0.17}, True),
        ({}, {"most": 17}, True),
        ({}, {"higher": True}, True),
        ({}, {"dtype": "float32"}, True),
        ({}, {"solved": rules.Solved()}, True),
    ],
)
def test_the_digest_of_the_rules_is_of_all_that_decides(
    of_the_track: dict[str, Any], of_the_task: dict[str, Any], other: bool, league: League
) -> None:
    about = league.track.tasks["easy"].model_copy(update=of_the_task)
    track = league.track.model_copy(update={**of_the_track, "tasks": {"easy": about}})
    before = digests.rules_of(league.entrant("easy", "soba"))
    assert (digests.rules_of(rules.entrant(track, "tiny", "easy", "soba")) != before) == other


def test_the_digest_of_the_rules_is_of_how_a_lower_level_is_solved(league: League) -> None:
    ways: list[dict[str, Any]] = [
        {}, {"tolerance": 0.1}, {"scaled": True}, {"pairs": 11}, {"scaled": True, "pairs": 11}
    ]  # fmt: skip
    found = set()
    for way in ways:
        about = league.track.tasks["easy"].model_copy(update={"solved": rules.Solved(**way)})
        track = league.track.model_copy(update={"tasks": {"easy": about}})
        found.add(digests.rules_of(rules.entrant(track, "tiny", "easy", "soba")))
    assert len(found) == len(ways)


def test_a_target_of_a_share_is_of_one_minus_it(league: League, tmp_path: Path) -> None:
    """What is compared is one minus the metric, at the start as at the target."""
    about = league.track.tasks["easy"].model_copy(update={"higher": True})
    track = league.track.model_copy(update={"tasks": {"easy": about}})
    with pytest.raises(BadSetting, match="the reference ends at"):  # the objective falls
        targets.make_target(targets.reference_of(track, "tiny", "easy"), 0, tmp_path)
    falls = league.targets.tasks["easy"].seeds["0"]
    assert falls.start is not None
    assert falls.best is not None
    rises = about.model_copy(update={"reference": rules.Reference(value=1 - 2 * falls.start)})
    other = league.track.model_copy(update={"tasks": {"easy": rises}})
    found = targets.make_target(rules.entrant(other, "tiny", "easy", "soba"), 0, tmp_path)
    assert found.start == pytest.approx(1 - falls.start)
    assert found.target == pytest.approx(1 - 1.5 * falls.start)


def test_a_task_without_an_objective_is_measured_by_solving_its_lower_level(
    league: League, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AID-CG brings the objective of hyper-cleaning down. Training on f alone does not, although it
    brings down the loss of its own y."""
    small = {"data.train": 60, "data.val": 60, "data.val2": 20, "data.test": 20}
    cleaning = rules.TrackTask.model_validate(
        {
            "about": "wrong labels", "task": "hyper_cleaning", "metric": "objective",
            "solved": {"tolerance": 0.002, "scaled": True, "pairs": 20}, "within": 0.5,
            "steps": {"x": 100},
            "set": {"weighting": "sigmoid", "pretraining.start": "zero", **small},
            "reference": {
                "method": "aid_cg", "set": {"outer_lr": 100.0, "inner_lr": 1.0, "T": 10},
                "rounds": 50,
            },
        }
    )  # fmt: skip
    track = league.track.model_copy(update={"tasks": {"cleaning": cleaning}})
    target = targets.make_target(targets.reference_of(track, "t", "cleaning"), 0, tmp_path)
    assert target.best < target.target < target.start  # type: ignore[operator]
    all_of = TaskTargets(rules="", seeds={"0": target})
    measured: list[bool] = []

    def spied(*args: Any, **settings: Any) -> Any:
        measured.append(settings["dear"])
        return work_to_goal(*args, **settings)

    monkeypatch.setattr(trials, "work_to_goal", spied)
    solved: list[Any] = []

    def seen(task: Task, **how: Any) -> Task:
        solved.append(how)
        return measured_exactly(task, **how)

    monkeypatch.setattr(targets, "measured_exactly", seen)
    found = {}
    for method, settings in {
        "aid_cg": {"outer_lr": 300.0, "inner_lr": 1.0},
        "upper_only": {"lower_lr": 0.5},
    }.items():
        entered = rules.entrant(track, "t", "cleaning", method, tuned=False)
        case = trials.case_of(entered, all_of, 0, dict(settings))
        found[method] = trials.make_run(entered, all_of, case, tmp_path)
    assert found["aid_cg"].status == "reached"
    assert found["upper_only"].status == "limit"
    assert found["upper_only"].value == pytest.approx(target.start, rel=1e-5)
    assert measured == [True, True]
    assert solved == [{"tolerance": 0.002, "scaled": True, "pairs": 20}] * len(solved) != []


def row(number: int, status: str, calls: int = 0, value: float | None = 1.0) -> Row:
    found = {"key": str(number), "seed": 0, "settings": {}, "status": status}
    return Row.model_validate({**found, "value": value, "calls": {"grad_f": calls}})


def trial(*rows: Row) -> Trial:
    return Trial({}, list(rows), None)


def test_the_best_trial_took_the_least_work_or_came_closest(league: League) -> None:
    slow, fast = trial(row(0, "reached", 20)), trial(row(1, "reached", 10))
    near, far, gone = (
        trial(row(*of))
        for of in ((2, "limit", 5, 0.1), (3, "limit", 5, 0.2), (4, "diverged", 1, 0))
    )
    failed = trial(row(5, "failed", value=None))
    assert trials.best_trial([far, slow, near, fast, gone], league.track) == fast
    assert trials.best_trial([gone, far, near, failed], league.track) == near


def test_the_best_trial_is_the_best_on_all_tuning_seeds(league: League) -> None:
    """The geometric mean counts; where none came there on all of them, how many it were."""
    track = league.track.model_copy(update={"tuning_seeds": 2})
    first, steady, second = (
        trial(*(row(k, "reached", work) for work in works))
        for k, works in enumerate([(1, 1000), (30, 30), (10, 100)])
    )
    assert steady.work(track) == pytest.approx(30)
    assert first.work(track) == second.work(track) == pytest.approx(1000**0.5)
    once = trial(row(3, "reached", 1), row(4, "limit", 5, 0.3))
    nearer = trial(row(5, "reached", 9), row(6, "limit", 5, 0.2))
    gone = trial(row(7, "reached", 1), row(8, "diverged", 1, 0.0))
    never = trial(row(9, "limit", 5, 0.1))
    assert trials.best_trial([never, once, first, steady, gone, nearer], track) == steady
    assert trials.best_trial([never, once, gone, nearer], track) == nearer
    assert trials.best_trial([never, gone], track) == gone
    assert [each.work(track) for each in (once, never)] == [math.inf, math.inf]


def test_settings_are_tried_on_the_next_seed_as_long_as_they_come_there(
    league: League, tmp_path: Path
) -> None:
    track = league.track.model_copy(update={"tuning_seeds": 3, "most": 300})
    about = track.tasks["easy"].model_copy(update={"steps": space.Steps(x=0.3)})
    track = track.model_copy(update={"trials": 6, "tasks": {"easy": about}})
    goal = targets.make_targets(track, "tiny", tmp_path).tasks["easy"]
    assert set(goal.seeds) == {"1000", "1001", "1002", "0", "1", "2", "3"}
    entered, rows = rules.entrant(track, "tiny", "easy", "soba"), dict[str, Row]()
    while cases := [t.waiting for t in trials.trials_of(entered, goal, rows) if t.waiting]:
        rows |= {case.key: trials.make_run(entered, goal, case, tmp_path) for case in cases}
    tried, scored = trials.cases(entered, goal, rows)
    assert {len(each.rows) for each in tried} > {1}
    for each in tried:
        assert [made.seed for made in each.rows] == [1000, 1001, 1002][: len(each.rows)]
        assert {made.status for made in each.rows[:-1]} <= {"reached"}
        assert len(each.rows) == 3 or each.last.status != "reached"
    assert [case.seed for case in scored] == [0, 1, 2, 3]
    assert scored[0].settings == trials.best_trial(tried, track).settings
    counts = entries.count_runs(entered, goal, trials.Progress(rows, None))
    assert counts == (6 * 3, 6 * 3 + 4)  # a trial that has ended is made
    some = {key: made for key, made in rows.items() if made.seed == 1000}
    waiting = sum(each.waiting is not None for each in trials.trials_of(entered, goal, some))
    assert waiting
    assert entries.count_runs(entered, goal, trials.Progress(some, None)).done == 18 - 2 * waiting
    record = entries.Trials(
        status=[each.last.status for each in tried], work=[each.work(track) for each in tried],
        reasons=[],
    )  # fmt: skip
    rows |= {case.key: trials.make_run(entered, goal, case, tmp_path) for case in scored}
    found = entries.task_entry(entered, goal, trials.Progress(rows, None))
    assert found.trials.status == record.status
    assert [work is None for work in found.trials.work] == [math.isinf(w or 0) for w in record.work]
    assert tried[found.chosen].settings == found.runs[0].settings
    number, held = next((k, each) for k, each in enumerate(tried) if len(each.rows) == 3)
    assert found.trials.status[number] == "reached"
    missed = held.last.model_copy(update={"status": "limit"})
    fewer = rows | {missed.key: missed}
    _, again = trials.cases(entered, goal, fewer)
    fewer |= {case.key: trials.make_run(entered, goal, case, tmp_path) for case in again}
    found = entries.task_entry(entered, goal, trials.Progress(fewer, None))
    assert (found.trials.status[number], found.trials.work[number]) == ("limit", None)


def test_an_entry_has_every_trial_and_seed_and_what_they_took(entered: League) -> None:
    found = entry_of(entered, "soba")
    where = f"--tracks {entered.folder}"
    assert found.command == f"reproduce league run --track tiny --method soba {where}"
    for task, measured in found.tasks.items():
        assert len(measured.trials.status) == 4
        assert [run.seed for run in measured.runs] == [0, 1, 2, 3]
        chosen = rules.trial_settings(entered.entrant(task, "soba"), measured.chosen)
        assert all(run.settings == chosen for run in measured.runs)
        for run in measured.runs:
            assert run.status in ("reached", "limit")
            assert run.total_calls == 4 * run.steps > 0
            target = entered.targets.tasks[task].seeds[str(run.seed)].target
            assert run.value is not None
            assert target is not None
            assert (run.value <= target * (1 + 1e-5)) == (run.status == "reached")
    assert found.tasks["easy"].trials.work.count(None) < 4


def test_the_chosen_trial_is_the_best(entered: League) -> None:
    found = entry_of(entered, "soba").tasks["easy"]
    best = min(work for work in found.trials.work if work is not None)
    assert found.trials.work[found.chosen] == best


def test_failures_are_rows_with_their_reasons(entered: League) -> None:
    for how, reason in (("raises", "no such luck"), ("memory", "MemoryError: too much")):
        found = entry_of(entered, f"guest_{how}").tasks["easy"]
        assert {run.status for run in found.runs} == {"failed"}
        assert all(reason in str(run.reason) for run in found.runs)
        assert set(found.trials.status) == {"failed"}
    found = entry_of(entered, "guest_diverges").tasks["easy"]
    assert {run.status for run in found.runs} == {"diverged"}
    assert "not finite" in str(found.runs[0].reason)
    text = page.league_text([board_of(entered)])
    assert "`guest_raises` on `easy`: 8 runs: RuntimeError: no such luck" in text


def test_a_method_of_an_outside_package_enters_and_is_shown_beside_the_others(
    entered: League,
) -> None:
    found = entry_of(entered, "guest_well")
    assert found.package == "league_guest"
    assert "reached" in found.tasks["easy"].trials.status
    text = page.method_text(board_of(entered), "guest_well")
    assert "| `easy` | `guest_well` (" in text
    assert "--method guest_well" in text


def test_it_is_told_how_many_runs_failed_and_why(
    entered: League, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where all runs were there already, and on the page of the method."""
    lines: list[str] = []
    track = entered.track.model_copy(update={"tasks": {"easy": entered.track.tasks["easy"]}})
    moved = replace(entered, track=track, results=tmp_path, tell=lines.append)
    running.enter(moved, "guest_raises")
    came, failed = "0 of 4 trials and 0 of 4 scored runs came there", "RuntimeError: no such luck"
    assert lines == [f"tiny guest_raises easy: {came}; 8 raised or were killed: {failed}"]
    monkeypatch.setattr(running, "failures_of", lambda found: entries.Failures(1, "oops"))
    running.tell_end(moved, "easy", "guest_raises")
    assert lines[-1].endswith("came there; 1 raised or was killed: oops")
    monkeypatch.setattr(running, "failures_of", lambda found: entries.Failures(0, ""))
    running.tell_end(moved, "easy", "guest_raises")
    assert lines[-1].endswith("came there")
    board = board_of(entered)
    said = "\n\nRuns that raised or were killed:\n\n- `guest_raises` on `easy`: 8 runs: " + failed
    assert said in page.method_text(board, "guest_raises")
    assert "raised" not in page.method_text(board, "soba")


def test_a_step_that_exits_is_a_run_that_failed(league: League, guests: Path) -> None:
    goal, method = league.targets.tasks["easy"], league.entrant("easy", "guest_exits")
    made = trials.make_run(method, goal, trials.case_of(method, goal, 0, {}), league.data)
    assert (made.status, made.reason) == ("failed", "SystemExit: 0")


def test_edited_code_of_a_package_is_outdated_and_run_anew(
    entered: League, guests: Path, tmp_path: Path
) -> None:
    found = [entry_of(entered, method) for method in ("guest_well", "soba")]
    both = [entered.entrant("easy", entry.method) for entry in found]
    goal = entered.targets.tasks["easy"]

    def keys() -> list[str]:
        return [trials.case_of(method, goal, 0, {}).key for method in both]

    before, file = keys(), guests / "league_guest/methods.py"
    work = entered.work("easy", "guest_well")._replace(file=tmp_path / "rows")
    assert entries.outdated_methods(found, "tiny", entered.track) == set()
    try:
        file.write_text(METHODS.replace("y - o.g_y", "y - 0.5 * o.g_y"))
        source.contents.cache_clear()
        assert entries.outdated_methods(found, "tiny", entered.track) == {"guest_well"}
        mine, own = keys()
        with pytest.raises(BadSetting, match="has changed since the command began"):
            trials.make_missing(work)
    finally:
        file.write_text(METHODS)
        source.contents.cache_clear()
    assert mine != before[0]
    assert own == before[1]
    assert keys() == before


def test_a_methods_code_is_that_of_its_package_wherever_its_files_are(
    entered: League, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another version of this suite makes no entry outdated by its files."""
    found = entered.entrant("easy", "guest_well")

    def digest(**used: str) -> str:
        files = {file.replace("_", "/"): content for file, content in used.items()}
        monkeypatch.setattr(digests, "source", lambda config: {"files": files})
        return digests.method_digest(found)

    before = digest(guest_a="1", guest_b="2", bench_core="3")
    assert digest(guest_c="1", guest_b="2", bench_core="4", tasks_a="5") == before
    assert digest(guest_a="1", guest_b="3", bench_core="3") != before
    assert digest(guest_a="1", bench_core="3") != before


def test_a_cut_line_and_missing_runs_are_made_again_and_no_other(
    entered: League, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a kill leaves them: some rows are there, and the last one is cut short."""
    again = replace(entered, root=tmp_path / "runs", results=tmp_path)
    old, file = entered.file("easy", "soba"), again.file("easy", "soba")
    lines = old.read_text().splitlines(keepends=True)
    assert len(lines) == 8
    file.parent.mkdir(parents=True)
    file.write_text("".join(lines[:5]) + lines[5][:30])
    made: list[int] = []
    make = trials.make_run

    def make_run(entered: Entrant, goal: TaskTargets, case: Case, data: Path) -> Row:
        made.append(case.seed)
        return make(entered, goal, case, data)

    monkeypatch.setattr(trials, "make_run", make_run)
    trials.make_missing(again.work("easy", "soba"))
    assert made == [1, 2, 3]

    def plain(text: str) -> list[dict[str, object]]:
        rows = [json.loads(line) for line in text.splitlines()]
        return [{k: v for k, v in row.items() if k != "cpu_seconds"} for row in rows]

    assert plain(file.read_text()) == plain(old.read_text())


def test_memory_is_noted_before_each_row_if_it_has_grown(
    entered: League, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that it is known of a process that is killed, and the file has few lines of it."""
    again = replace(entered, root=tmp_path / "runs", results=tmp_path)
    work = again.work("easy", "soba")
    peaks = iter([300, 300, 500, 500, 400, 400, 500, 600])
    monkeypatch.setattr(trials.machine, "peak_of_process_kb", lambda: 1024 * next(peaks))
    trials.make_missing(work, 1024 * 100.0)
    found = [json.loads(line).get("memory_mb") for line in work.file.read_text().splitlines()]
    assert found == [200.0, None, None, 400.0, *[None] * 5, 500.0, None]
    assert trials.read_progress(work.file).memory_mb == 500.0


def test_the_run_that_a_kill_ended_is_the_one_that_was_going_on(
    league: League, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although trials before it wait for their next seed by then."""
    track = league.track.model_copy(update={"tuning_seeds": 3, "trials": 4})
    moved = replace(league, track=track, root=tmp_path)
    found = targets.make_targets(track, "tiny", tmp_path)
    moved = replace(moved, targets=found)
    goal, file = found.tasks["easy"], moved.file("easy", "soba")
    entered = moved.entrant("easy", "soba")
    for number, case in enumerate(trials.missing(entered, goal, file)):
        if case.seed == rules.TRIED + 1 and number > 4:  # in the second pass
            break
        made = Row(**case._asdict(), status="reached", value=0.0, calls={"grad_f": 1})
        trials.add_line(file, made.model_dump_json())
    assert running.note_end(moved, "easy", "soba", -9)
    killed = [each for each in trials.read_progress(file).rows.values() if each.status == "killed"]
    assert [(each.seed, each.settings) for each in killed] == [(case.seed, case.settings)]
    assert len(trials.read_progress(file).rows) == 6


def test_a_process_that_is_killed_after_its_last_row_adds_none(entered: League) -> None:
    file = entered.file("easy", "soba")
    before = file.read_text()
    assert not running.note_end(entered, "easy", "soba", -9)
    assert not running.note_end(entered, "easy", "soba", 0)
    assert file.read_text() == before


@pytest.mark.parametrize("code", [0, 3])
def test_a_method_that_ends_its_process_is_a_row(
    code: int, entered: League, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by os._exit: the process is begun again until there is a row of each run."""
    track = entered.track.model_copy(update={"trials": 1, "seeds": 1})
    lines: list[str] = []
    moved = replace(entered, track=track, root=tmp_path, tell=lines.append)

    class Exited:
        """Stands in for a process that the method has ended at once."""

        exitcode, sentinel = code, None

        def __init__(self, **settings: Any) -> None:
            pass

        def start(self) -> None:
            pass

        join = set_forkserver_preload = is_alive = lambda *_: None

    Exited.Process = Exited  # type: ignore[attr-defined]
    monkeypatch.setattr(running, "get_context", lambda kind: Exited())
    monkeypatch.setattr(running.connection, "wait", lambda waiting: None)
    running.make_together(moved, ["easy"], "soba", 1)
    rows = moved.progress("easy", "soba").rows.values()
    assert [each.seed for each in rows] == [rules.TRIED, 0]
    assert {each.status for each in rows} == {"killed"}
    reason = f"it ended its process with exit code {code}"
    assert {each.reason for each in rows} == {reason}
    assert lines == [
        "tiny soba easy: 0 of 1 trials and 0 of 1 scored runs came there; 2 raised or were killed: "
        + reason
    ]


def test_a_process_that_gave_up_has_said_why(entered: League) -> None:
    with pytest.raises(BadSetting, match="soba on easy: its process gave up, and said why above"):
        running.note_end(entered, "easy", "soba", running.GAVE_UP)


@pytest.mark.parametrize("damaged", [b"{]", b'{"key": "\xff"}', b"[1]"])
def test_a_damaged_line_is_told_in_one_line(damaged: bytes, tmp_path: Path) -> None:
    line = row(1, "limit").model_dump_json().encode()
    (tmp_path / "rows").write_bytes(line + b"\n" + damaged + b"\n")
    with pytest.raises(BadSetting, match="rows: line 2 is damaged: remove that line"):
        trials.read_progress(tmp_path / "rows")


def test_a_metric_that_the_task_does_not_have_is_told(league: League) -> None:
    about = league.track.tasks["easy"].model_copy(update={"metric": "objectiv"})
    track = league.track.model_copy(update={"tasks": {"easy": about}})
    with pytest.raises(BadSetting, match=r"easy.metric=objectiv: .* did you mean objective"):
        targets.make_targets(track, "tiny", league.data)


def test_a_changed_setting_is_another_run(entered: League) -> None:
    found, goal = entered.entrant("easy", "soba"), entered.targets.tasks["easy"]
    one, same, other = (
        trials.case_of(found, goal, 0, {"outer_lr": step}).key for step in (0.1, 0.1, 0.2)
    )
    assert one == same != other
    nearer = goal.seeds["0"].model_copy(update={"target": 0.0})
    moved = goal.model_copy(update={"seeds": {**goal.seeds, "0": nearer}})
    assert trials.case_of(found, moved, 0, {"outer_lr": 0.1}).key != one


def test_an_entry_by_other_rules_is_left_out_and_named(entered: League, tmp_path: Path) -> None:
    found = entry_of(entered, "soba")
    old = {**found.tasks, "hard": found.tasks["hard"].model_copy(update={"rules": "old"})}
    board = page.make_board(
        "tiny", entered.track, entered.targets, [found.model_copy(update={"tasks": old})]
    )
    assert board.names == []
    assert board.left_out == [f"soba: not by today's rules: hard; `{found.command}`"]
    goal = entered.targets.tasks["easy"]
    nearer = goal.seeds["0"].model_copy(update={"target": 0.0})
    moved = goal.model_copy(update={"seeds": {**goal.seeds, "0": nearer}})
    new = entered.targets.model_copy(update={"tasks": {**entered.targets.tasks, "easy": moved}})
    assert list(entries.todays(found, entered.track, entered.targets)) == ["easy", "hard"]
    assert list(entries.todays(found, entered.track, new)) == ["hard"]


def test_a_record_that_lacks_a_task_is_completed(entered: League, tmp_path: Path) -> None:
    """On another machine, where none of its runs are; one that lacks nothing is made again."""
    found = entry_of(entered, "soba")
    moved = replace(entered, root=tmp_path / "runs", results=tmp_path / "results")
    easy = {"easy": found.tasks["easy"]}
    lacking = found.model_copy(update={"tasks": easy, "processor": "Another, Third"})
    entries.write_entry(lacking, moved.results)
    running.enter(moved, "soba")
    assert entry_of(moved, "soba").tasks["easy"] == found.tasks["easy"]  # to the last second
    assert entry_of(moved, "soba").processor == f"Another, Third, {found.processor}"
    assert [file.stem for file in (moved.root / ".league/tiny/soba").glob("*.jsonl")] == ["hard"]
    running.enter(moved, "soba")
    assert (moved.root / ".league/tiny/soba/easy.jsonl").is_file()
    assert entry_of(moved, "soba").processor == found.processor


def test_an_entry_of_another_version_of_its_method_is_made_again(
    entered: League, tmp_path: Path
) -> None:
    moved = replace(entered, root=tmp_path / "runs", results=tmp_path / "results")
    entries.write_entry(entry_of(entered, "soba"), moved.results)
    entries.write_entry(entry_of(entered, "guest_well"), moved.results)
    assert running.recorded(moved) == {"soba", "guest_well"}
    old = entry_of(entered, "soba").model_copy(update={"digest": "old"})
    entries.write_entry(old, moved.results)
    assert running.recorded(moved) == {"guest_well"}
    easy = {"easy": old.tasks["easy"]}
    entries.write_entry(old.model_copy(update={"tasks": easy}), moved.results)
    assert running.lacking(moved, "soba") is None


def test_a_package_that_is_not_installed_is_taken_at_its_word(
    entered: League, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = entry_of(entered, "guest_well").model_copy(update={"digest": "old"})
    assert entries.outdated_methods([found], "tiny", entered.track) == {"guest_well"}
    monkeypatch.delenv(packages.VARIABLE)
    assert entries.outdated_methods([found], "tiny", entered.track) == set()
    gone = found.model_copy(update={"package": None})
    assert entries.outdated_methods([gone], "tiny", entered.track) == {"guest_well"}


def test_methods_that_are_composed_together_have_the_digests_that_they_have_alone(
    entered: League, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of which there is none, or which have no search space, have no digest."""
    names = ["soba", "bome", "guest_well", "guest_silent", "nobody"]
    found = digests.method_digests(entered.track, "tiny", names)
    alone = {name: digests.method_digest(entered.entrant("easy", name)) for name in names[:3]}
    assert found == alone
    monkeypatch.setattr(soba, "version", 99, raising=False)
    changed = digests.method_digests(entered.track, "tiny", names)
    assert {name for name in found if changed[name] != found[name]} == {"soba"}


def test_a_yaml_that_cannot_be_composed_is_told_in_one_line(league: League, guests: Path) -> None:
    file = guests / "league_guest/conf/algorithm/guest_torn.yaml"
    file.write_text("defaults: [/nowhere: none]\n")
    with pytest.raises(BadSetting, match=r"nowhere") as refused:
        digests.method_digests(league.track, "tiny", ["guest_torn"])
    file.unlink()
    assert "\n" not in str(refused.value)


def outdated_board(entered: League, *outdated: str) -> page.Board:
    """The board, with entries of these methods that are of another version of them."""
    every = [
        entry.model_copy(update={"digest": "old"}) if entry.method in outdated else entry
        for entry in entries.read_entries("tiny", entered.results)
    ]
    return page.make_board("tiny", entered.track, entered.targets, every)


def test_an_outdated_entry_is_marked_and_not_advised(entered: League) -> None:
    best = page.advice_text(board_of(entered)).partition("in their order: `")[2].partition("`")[0]
    board = outdated_board(entered, best)
    assert board.outdated == {best}
    text = page.league_text([board])
    (row,) = (line for line in text.splitlines() if f"| `{best}` outdated |" in line)
    assert row in page.places_table(board, board.names)
    assert text.count(" outdated |") == 1
    assert text.count("An outdated method has changed since its entry was made") == 1
    assert f"in their order: `{best}`" not in text
    assert f"then `{best}`" not in text
    said = page.findings_text([board])
    assert f"Outdated, and so not among them: `{best}`." in said
    assert said.count(f"`{best}`") == 1
    assert "among all 4 methods" in said
    assert "An outdated method has" in page.method_text(board, best)
    other = next(name for name in board.names if name != best)
    assert "An outdated method has" not in page.method_text(board, other)


def test_entries_that_are_all_of_today_are_not_marked(entered: League) -> None:
    board = board_of(entered)
    assert board.outdated == set()
    assert "utdated" not in page.league_text([board]) + page.findings_text([board])


def test_a_track_whose_entries_are_outdated_advises_nothing(entered: League) -> None:
    board = outdated_board(entered, *board_of(entered).names)
    assert "which method for which problem" not in page.league_text([board])
    assert page.findings_text([board]) == (
        "\n**Tiny.** All of its entries but one at most are outdated.\n"
    )


def test_the_digest_of_a_method_is_of_its_code_settings_and_space(
    league: League, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = league.entrant("easy", "soba")
    digest = digests.method_digest(found)
    assert digests.method_digest(league.entrant("hard", "soba")) == digest
    for key, value in (("inner_lr", 0.123), ("tuning.outer_lr.log", [0.5, 1.0])):
        changed = found.configuration.copy()
        OmegaConf.update(changed, f"algorithm.{key}", value)
        assert digests.method_digest(found._replace(configuration=changed)) != digest
    monkeypatch.setattr(soba, "version", 99, raising=False)
    assert digests.method_digest(found) != digest


def test_a_method_that_no_track_lists_is_another_when_its_file_has_changed(
    league: League, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody has written it into the repository, and need not have given it a version."""
    listed = league.entrant("easy", "soba")
    own = listed._replace(track=listed.track.model_copy(update={"methods": ["itd"]}))

    def found(entered: Entrant, **used: str) -> str:
        files = {file.replace("_", "/"): content for file, content in used.items()}
        monkeypatch.setattr(digests, "source", lambda config: {"files": files})
        return digests.method_digest(entered)

    assert found(listed, algorithms_a="1") == found(listed, algorithms_a="2")
    before = found(own, algorithms_a="1", bench_core="1")
    assert found(own, algorithms_a="1", bench_core="2") == before
    assert found(own, algorithms_a="2", bench_core="1") != before


def test_own_entries_are_of_todays_methods_and_rules(tmp_path: Path) -> None:
    for name in rules.track_names(rules.own_tracks()):
        track, found = (
            rules.read_track(name, rules.own_tracks()),
            targets.read_targets(name, RESULTS),
        )
        assert found is not None
        own = League(name, track, rules.own_tracks(), found, tmp_path, RESULTS, tmp_path)
        running.check_targets(own)
        assert running.recorded(own) >= set(track.methods), f"reproduce league plan --track {name}"


def test_what_another_process_has_completed_meanwhile_is_not_made_again(
    league: League, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    complete: set[str] = set()

    def enter(league: League, method: str, jobs: int) -> Path:
        """Makes an entry, while another process makes that of bome."""
        made.append(method)
        complete.add("bome")
        return Path(method)

    monkeypatch.setattr(running, "enter", enter)
    monkeypatch.setattr(running, "recorded", lambda league: complete)
    assert list(running.enter_all(league)) == [Path("soba")]
    assert list(running.enter_all(league, ["soba", "bome"])) == [Path("soba"), Path("bome")]
    assert made == ["soba", "soba", "bome"]


def test_two_processes_do_not_make_one_entry(
    entered: League, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--tracks", str(folder), "--results", str(entered.results)]
    where += ["--runs", str(entered.root), "--track", "tiny"]
    with lock.hold(entered.root / running.ROWS / "tiny" / "soba"):
        asked = ["run", *where, "--method", "soba"]
        code = league_commands.app(asked, standalone_mode=False)
    assert code == exit_codes.PUT_OFF
    assert "is being written by process" in " ".join(capsys.readouterr().err.split())


def test_a_place_for_runs_that_cannot_be_written_is_refused_by_its_option(
    league: League, folder: Path
) -> None:
    moved = replace(league, root=folder / "tiny.yaml")
    with pytest.raises(BadSetting, match=r"--runs: cannot write .*; write --runs \.\.\. for"):
        running.enter(moved, "soba")


@pytest.mark.parametrize(
    ("gives", "said"),
    [
        (lambda _: None, "its function returns NoneType, not Algorithm: end it so"),
        (lambda _: [][0], "its function raises IndexError: list index out of range: repair it"),
        (lambda _: sys.exit(3), "its function raises SystemExit: 3: repair it"),
        (lambda _: refuse("algorithm.T=1: write 2"), "algorithm.T=1: write 2"),
    ],
)
def test_a_function_that_gives_no_algorithm_is_refused_before_any_run(
    gives: Callable[[Any], object],
    said: str,
    league: League,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(running, "build", gives)
    moved = replace(league, root=tmp_path / "runs")
    with pytest.raises(BadSetting, match=f"^--method soba: {said}$"):
        running.enter(moved, "soba")
    assert not moved.root.exists()


def refuse(line: str) -> None:
    raise BadSetting(line)


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("guest_silent", r"conf/algorithm/guest_silent.yaml: tuning: .* write for example tuning"),
        ("nobody", "--method nobody: no such method; there is .*bome"),
    ],
)
def test_a_method_that_cannot_enter_is_told_in_one_line(
    league: League, guests: Path, method: str, said: str
) -> None:
    with pytest.raises(BadSetting, match=said):
        running.enter(league, method)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"outer_lr: 0.1", "^conf/algorithm/guest_odd.yaml: it names no function: write _target_"),
        (b"- outer_lr", "^conf/algorithm/guest_odd.yaml: it names no function: write _target_"),
        (b"_target_: 3", "^conf/algorithm/guest_odd.yaml: it names no function: write _target_"),
        (b"a: \xff", "^--method guest_odd, task quadratic: 'utf-8' codec can't decode byte 0xff"),
    ],
)
def test_a_yaml_that_is_no_methods_is_told_in_one_line(
    content: bytes, said: str, league: League, guests: Path
) -> None:
    file = guests / "league_guest/conf/algorithm/guest_odd.yaml"
    file.write_bytes(content)
    with pytest.raises(BadSetting, match=said):
        league.entrant("easy", "guest_odd")
    file.unlink()


def test_minibatches_are_refused_where_every_call_sees_all_the_data(league: League) -> None:
    """Those that a method searches, and those that its own settings ask for."""
    whole = league.track.model_copy(update={"whole": True})
    goal = league.targets.tasks["easy"]
    said = "algorithm.batch=[0-9]+: every call of this track sees all the data: leave batch out of"
    with pytest.raises(BadSetting, match=f"--method sfw, tuning: {said} tuning"):
        trials.refuse(rules.entrant(whole, "tiny", "easy", "sfw"), goal)
    trials.refuse(rules.entrant(league.track, "tiny", "easy", "sfw"), goal)
    with pytest.raises(BadSetting, match=said):
        rules.configured(rules.entrant(whole, "tiny", "easy", "soba"), 0, {"batch": 4})
    trials.refuse(rules.entrant(whole, "tiny", "easy", "soba"), goal)
    own = rules.own_tracks()
    assert [name for name in rules.track_names(own) if rules.read_track(name, own).whole] == [
        "deterministic"
    ]


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        (3, r"(?<!: ): Input should be an object; write \{log"),
        ({"outer_lr": {"log": [0, 1]}}, "outer_lr: write log"),
        ({"nothing": {"choice": [1]}}, "nothing: the method has no such setting"),
        ({"outer_lr": {"choice": []}}, "outer_lr"),
        ({"outer_lr": [1, 2]}, r"write \{log"),
        (
            {"T": {"choice": [1], "at_most": "outer_lr"}, "outer_lr": {"log": [1, 2]}},
            "T.at_most=outer_lr: write a setting with a choice of numbers",
        ),
        ({"T": {"choice": [1], "at_most": "K"}}, "T.at_most=K: write a setting with a choice"),
        ({"T": {"choice": [1], "at_most": "T"}}, "T.at_most=T: write a setting with a choice"),
        (
            {"T": {"choice": [3, 9], "at_most": "K"}, "K": {"choice": [1, 9]}},
            "T.at_most=K: add 1 to the choice, or less",
        ),
    ],
)
def test_a_wrong_space_is_told_in_one_line(declared: object, said: str) -> None:
    with pytest.raises(BadSetting, match=f"conf/algorithm/mine.yaml: tuning.*{said}"):
        space.read_space("mine", {"outer_lr": 0.1, "T": 1, "K": 1, "tuning": declared})


def test_a_space_whose_value_the_method_refuses_is_told(league: League) -> None:
    found = rules.entrant(league.track, "tiny", "easy", "soba")
    wrong = found._replace(space={"average": space.Chosen(choice=(3.0,))})
    with pytest.raises(BadSetting, match=r"--method soba, tuning: algorithm.average=3"):
        trials.refuse(wrong, league.targets.tasks["easy"])


def test_every_space_is_one_that_its_method_takes() -> None:
    """And each method of a track has one."""
    nodes = {name: node for name, node in composed().items() if TUNING in node}
    for name in rules.track_names(rules.own_tracks()):
        assert set(rules.read_track(name, rules.own_tracks()).methods) <= set(nodes)
    for method, node in nodes.items():
        for key, part in space.read_space(method, node).items():
            for share in (0.0, 0.999):
                value = space.value_at(part, share, space.Steps())
                plain = {k: v for k, v in node.items() if k != TUNING}
                assert filled(plain, {key: value}, 10)[key] == value


def test_scores_by_hand() -> None:
    """Two methods, one task, two seeds: twice the work of the best at one, never at the other."""
    work = np.array([[[10.0, 10.0]], [[20.0, math.inf]]])
    assert scores.ratios(work).tolist() == [[[1.0, 1.0]], [[2.0, math.inf]]]
    assert scores.profile(work, [1.0, 2.0, 32.0]).tolist() == [[1.0, 1.0, 1.0], [0.0, 0.5, 0.5]]
    credit = scores.credits(work)
    assert credit[0].tolist() == [[1.0, 1.0]]
    assert credit[1].tolist() == [[pytest.approx(1 - 1 / 5), 0.0]]  # log 2 / log 32 is 1 / 5
    first, second = scores.places(["a", "b"], work)
    assert (first.method, first.rank.value, first.group) == ("a", 1.0, 1)
    assert (second.method, second.rank.value, second.group) == ("b", 2.0, 1)  # of two seeds
    assert second.area.value == pytest.approx(0.4)
    assert (second.area.low, second.area.high) == (pytest.approx(0.0), pytest.approx(0.8))
    assert second.reached.value == 0.5


def test_a_start_at_the_target_is_the_best_and_nothing_else_comes_near() -> None:
    work = np.array([[[0.0]], [[0.0]], [[5.0]], [[math.inf]]])
    assert scores.ratios(work).ravel().tolist() == [1.0, 1.0, math.inf, math.inf]


def test_a_track_may_compare_values(league: League, tmp_path: Path) -> None:
    """The smallest value is the best, or the largest share; a run that was cut short has none."""
    about = league.track.tasks["easy"].model_copy(update={"metric": "distance", "higher": True})
    track = league.track.model_copy(update={"by": "value", "unit": "rounds", "most": 5})
    track = track.model_copy(update={"trials": 2, "tasks": {"easy": about}})
    found = targets.make_targets(track, "tiny", tmp_path)
    assert found.tasks["easy"].seeds["0"].target is None
    goal, method = found.tasks["easy"], rules.entrant(track, "tiny", "easy", "soba")
    made = trials.make_run(method, goal, trials.case_of(method, goal, 0, {}), tmp_path)
    lower = about.model_copy(update={"higher": False})
    other = rules.entrant(track.model_copy(update={"tasks": {"easy": lower}}), "t", "easy", "soba")
    plain = trials.make_run(other, goal, trials.case_of(other, goal, 0, {}), tmp_path)
    assert (made.status, made.steps) == ("limit", 5)
    assert made.value is not None
    assert plain.value is not None
    assert made.value == pytest.approx(1 - plain.value, rel=1e-4)
    assert made.work("value") == made.value
    assert made.model_copy(update={"reason": "60 CPU seconds"}).work("value") == math.inf
    worse, better = (trial(row(k, "limit", value=2.0 - k)) for k in range(2))
    assert trials.best_trial([worse, better], track) == better
    twice = track.model_copy(update={"tuning_seeds": 2})
    assert trial(row(0, "limit", value=2.0), row(1, "limit", value=-1.0)).work(twice) == 0.5


def test_a_problem_that_nobody_solves_is_nobodys_credit() -> None:
    work = np.full((2, 1, 3), math.inf)
    assert scores.credits(work).tolist() == [[[0.0] * 3]] * 2
    assert [place.rank.value for place in scores.places(["a", "b"], work)] == [1.5, 1.5]


def test_methods_that_are_alike_share_a_group_and_a_worse_one_does_not() -> None:
    rng = np.random.default_rng(1)
    work = rng.uniform(10, 20, size=(3, 8, 10))
    work[2] *= 10
    found = scores.places(["a", "b", "c"], work)
    assert [place.group for place in found] == [1, 1, 2]
    assert found[0].rank.high == 2.0
    assert [place.behind for place in found] == [False, False, True]


def test_the_bootstrap_draws_tasks_and_seeds() -> None:
    """A method that is best on every seed of half of the tasks: only the tasks can move it."""
    credit = np.zeros((1, 10, 5))
    credit[0, :5] = 1.0
    drawn = scores.draw_areas(credit)[:, 0]
    assert drawn.std() == pytest.approx(math.sqrt(0.25 / 10), rel=0.1)
    seeds = np.zeros((1, 1, 10))
    seeds[0, 0, :5] = 1.0
    assert scores.draw_areas(seeds)[:, 0].std() == pytest.approx(math.sqrt(0.25 / 10), rel=0.1)


def test_what_a_method_took_is_told_with_its_spread() -> None:
    work = np.array([12345.0, math.inf, 20.0, 3.14159])
    said = "`soba` (20 calls [3.14, 12,345], 3 of 4 seeds)"
    assert phrases.task_phrase("soba", work, "calls") == said
    assert phrases.task_phrase("soba", np.array([math.inf]), "calls") == "`soba` never"
    assert phrases.task_phrase("soba", work, "calls", 7.0) == said
    valued = phrases.task_phrase("soba", work, "the final value", 7654.0)
    assert valued == "`soba` (20 [3.14, 12,345], 7,654 calls, 3 of 4 seeds)"


def test_methods_that_did_the_same_everywhere_stand_together(entered: League) -> None:
    some = [row(0, "reached", 5, 0.1), row(1, "limit", 9, 0.2)]
    more = [some[0], row(1, "limit", 8, 0.2)]
    longer = [some[0], some[1].model_copy(update={"steps": 7})]
    other = [some[0], row(1, "limit", 9, 0.3)]
    gone = [row(2, "failed", value=None)]
    told = page.twins(list("abcdefg"), [some, more, some, longer, other, gone, gone])
    assert told == [["a", "c"], ["b"], ["d"], ["e"], ["f"], ["g"]]
    board = board_of(entered)
    best = page.advice_text(board).partition("in their order: `")[2].partition("`")[0]
    assert not any("one method" in line for line in page.remarks(board))
    both = board._replace(
        entries={**board.entries, "other": board.entries[best]},
        records={**board.records, "other": board.records[best]},
    )
    assert f"in their order: `{best}` or `other` (" in page.advice_text(both)
    (line,) = (line for line in page.remarks(both) if "one method" in line)
    assert line.startswith(f"`{best}` and `other` did the same everywhere")


def test_a_shared_place_lies_in_its_interval() -> None:
    assert phrases.rank_text(scores.Interval(1.5, 1.5, 6.0)) == "1.5 [1.5, 6]"
    assert phrases.rank_text(scores.Interval(3.0, 1.99, 11.51)) == "3 [2, 11.5]"


def test_an_interval_without_a_width_is_not_shown() -> None:
    """As that of a number of one task, or of seeds that are all the same."""
    assert phrases.shown(scores.mean_interval([0.25])) == "0.25"
    assert phrases.shown(scores.mean_interval([0.25, 0.25])) == "0.25"
    assert phrases.shown(scores.mean_interval([0.0, 1.0])) == "0.50 [0.00, 1.00]"
    assert phrases.shown(scores.Interval(0.001, 0.0, 0.004)) == "0.00"
    assert phrases.shown(scores.Interval(0.5, 0.25, 0.25)) == "0.50 [0.25, 0.25]"
    assert phrases.rank_text(scores.Interval(1.0, 1.0, 1.0)) == "1"
    assert phrases.rank_text(scores.Interval(2.0, 1.5, 1.5)) == "2 [1.5, 1.5]"


def test_sensitivity_is_the_share_of_trials_near_the_best() -> None:
    tried = entries.Trials(
        status=["reached", "reached", "reached", "limit"], work=[10.0, 11.0, 12.0, None], reasons=[]
    )
    found = entries.TaskEntry(rules="", trials=tried, chosen=0, runs=[], memory_mb=None)
    assert scores.sensitivity(found) == 0.5


def test_other_trials_draw_the_same_points_on_all_tasks() -> None:
    """Of two trials the first is good, on all of fifty tasks: a draw of two lacks it on all of them
    in a quarter of cases. Points drawn for each task would lack it on a quarter of tasks always."""
    tried = np.full((2, 50, 2), math.inf)
    tried[0, :, 0] = 1.0
    tried[1] = 16.0
    assert scores.trial_ranks(tried) == [(1.0, 2.0), (1.0, 2.0)]
    tried[0, :, 1] = 1.0
    assert scores.trial_ranks(tried) == [(1.0, 1.0), (2.0, 2.0)]
    assert phrases.range_text(1.0, 14.52) == "1 to 14.5"


def test_the_trials_of_a_board_are_those_of_its_records(entered: League) -> None:
    board = board_of(entered)
    tried = board.trials()
    for m, tasks in enumerate(board.entries.values()):
        for k, found in enumerate(tasks.values()):
            want = [math.inf if work is None else work for work in found.trials.work]
            assert tried[m, k].tolist() == want
    (low, high) = scores.trial_ranks(tried)[0]
    (row,) = (x for x in page.places_table(board, board.names[:1]).splitlines() if "`" in x)
    assert f"| {phrases.range_text(low, high)} |" in row


def test_the_page_has_every_method_with_intervals_and_advice(entered: League) -> None:
    board = board_of(entered)
    text = page.league_text([board])
    assert "### Tiny: which method for which problem" in text
    said = "4 seeds decide nothing; in their order: `"
    assert f"- If your problem has little to do (`easy`), {said}" in text
    for method in board.names:
        (line,) = (
            one for one in text.splitlines() if one.startswith("| ") and f"`{method}`" in one
        )
        place = next(p for p in board.places("calls") if p.method == method)
        assert line.startswith(f"| {phrases.rank_text(place.rank)} | {phrases.group_text(place)} |")
        assert f"`{method}` | {phrases.shown(place.area)} |" in line
    assert "What separates these 5 most is" in page.findings_text([board])
    for picture in (pictures.draw_profiles(board), pictures.draw_sensitivity(board)):
        assert picture.startswith("<svg")
        assert ">guest_well</text>" in picture
    middle = (pictures.LEFT + pictures.RIGHT) / 2
    below = f'<text x="{middle}" y="{pictures.HEIGHT - 12}" text-anchor="middle">'
    assert below in pictures.draw_profiles(board)


def test_the_numbers_of_the_axis_stand_below_all_methods(entered: League) -> None:
    picture = pictures.draw_sensitivity(board_of(entered))
    (height,) = map(float, re.findall(r'<rect width="[0-9]+" height="([0-9]+)"', picture))
    texts = re.findall(r'<text [^>]*y="([0-9]+)"[^>]*>([^<]+)</text>', picture)
    lowest, text = max((float(y), text) for y, text in texts)
    assert lowest < height
    assert text.endswith("%")


def test_a_planned_command_says_where_all_is(
    league: League, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As given it finds the track, the targets and the runs. Targets of a task that the track has
    no longer are of no account."""
    shorter = {**TINY, "tasks": {"easy": EASY}}
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(shorter))
    where = ["--tracks", str(tmp_path), "--results", str(league.results)]
    asked = ["plan", "--track", "tiny", "--method", "aid_fp", *where]
    league_commands.app(asked, standalone_mode=False)
    (line,) = capsys.readouterr().out.splitlines()
    command, _, done = line.partition("  # ")
    assert command.split() == [
        "reproduce", "league", "run", "--track", "tiny", "--method", "aid_fp",
        "--results", str(league.results), "--tracks", str(tmp_path),
    ]  # fmt: skip
    assert done.startswith("0 of ")


def test_a_killed_command_goes_on_and_a_killed_method_is_a_row(
    guests: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command as a user gives it, with processes of its own."""
    only = {**TINY, "most": 60, "trials": 2, "seeds": 1, "tasks": {"easy": EASY}}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(only))
    results, rows = tmp_path / "results", tmp_path / "runs/.league/small/guest_slow/easy.jsonl"
    track = rules.read_track("small", tmp_path)
    targets.write_targets(targets.make_targets(track, "small", tmp_path), results)
    monkeypatch.setenv("BENCH_RUNS", str(tmp_path / "runs"))
    command = [
        sys.executable, "-m", "bench.reproduce", "league", "run", "--track", "small",
        "--tracks", str(tmp_path), "--results", str(results), "--method", "guest_slow",
    ]  # fmt: skip
    first = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL)
    while not (rows.is_file() and "key" in rows.read_text()):
        assert first.poll() is None
        time.sleep(0.05)
    first.kill()
    first.wait()
    time.sleep(0.5)  # by then its process has ended too
    before = rows.read_text()
    time.sleep(1.0)  # a run takes .3 s or more
    assert rows.read_text() == before
    assert before.count("key") < 3
    assert trials.read_progress(rows).memory_mb is not None
    again = [*command, "--method", "guest_killed"]
    done = subprocess.run(again, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    assert rows.read_text().startswith(before[: before.rfind("\n") + 1])
    assert rows.read_text().count("key") == 3
    found = {entry.method: entry for entry in entries.read_entries("small", results)}
    killed = found["guest_killed"].tasks["easy"]
    assert {run.status for run in killed.runs} == {"killed"}
    assert "signal 9" in str(killed.runs[0].reason)
    memory = found["guest_slow"].tasks["easy"].memory_mb
    assert memory is not None
    assert 0 < memory < 1000


def test_a_track_without_targets_is_told(folder: Path, tmp_path: Path) -> None:
    where = (tmp_path, tmp_path, tmp_path / "two words", folder)
    with pytest.raises(BadSetting, match=r"--track tiny: it has no targets in .*: write ") as said:
        league_commands.leagues(["tiny"], *where)
    command = f"league targets --track tiny --results '{where[2]}' --tracks {folder}"
    assert str(said.value).endswith(f" write reproduce {command}")
    own = targets.command_of("online", rules.own_tracks(), RESULTS)
    assert own == "reproduce league targets --track online"


@pytest.mark.parametrize("command", ["targets", "plan", "run", "report"])
def test_a_folder_without_tracks_is_refused(command: str, tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match=f"^--tracks {tmp_path}: it has no tracks: write a folder"):
        league_commands.app([command, "--tracks", str(tmp_path)], standalone_mode=False)


@pytest.mark.parametrize(
    "content", [b"- a", b"a: 2020-01-01", b"a: 2024-02-30", b"a: \xff", b"a: [", b"a: &b [*b]"]
)
def test_a_yaml_that_is_no_track_is_told_in_one_line(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "odd.yaml").write_bytes(content)
    with pytest.raises(BadSetting, match=r"conf/league/odd.yaml: [^:]"):
        rules.read_track("odd", tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("  easy:", "  ../../easy:", r"tasks\.\.\./\.\./easy.*pattern"),
        ("  easy:", "  /tmp/easy:", "tasks./tmp/easy.*pattern"),
        ("title: ", "title: ${oc.env:HOME} ", r"title=\$\{oc.env:HOME\}.*may be interpolated"),
    ],
)
def test_a_strangers_track_writes_nowhere_else_and_reads_no_secret(
    old: str, new: str, said: str, folder: Path, tmp_path: Path
) -> None:
    text = (folder / "tiny.yaml").read_text()
    assert old in text
    (tmp_path / "odd.yaml").write_text(text.replace(old, new, 1))
    with pytest.raises(BadSetting, match=rf"^conf/league/odd.yaml: {said}"):
        rules.read_track("odd", tmp_path)


def test_a_record_with_fewer_runs_than_the_track_asks_for_is_not_complete(
    entered: League,
) -> None:
    found = entry_of(entered, "soba")
    easy = found.tasks["easy"]
    tried = easy.trials
    for less in (
        {"runs": easy.runs[1:]},
        {"chosen": entered.track.trials},
        {"trials": tried.model_copy(update={"work": tried.work[1:]})},
        {"trials": tried.model_copy(update={"status": tried.status[1:]})},
    ):
        other = {**found.tasks, "easy": easy.model_copy(update=less)}
        short = found.model_copy(update={"tasks": other})
        assert list(entries.todays(short, entered.track, entered.targets)) == ["hard"]


def test_the_code_of_a_packages_task_decides_its_rules_and_runs(
    entered: League, monkeypatch: pytest.MonkeyPatch
) -> None:
    soba, goal = entered.entrant("easy", "soba"), entered.targets.tasks["easy"]
    marks = ["a"]

    def outside(config: dict[str, Any]) -> str | None:
        return marks[-1] if config["task"] else None

    def both() -> tuple[str, str]:
        return digests.rules_of(soba), trials.case_of(soba, goal, 0, {}).key

    own = both()
    monkeypatch.setattr(digests, "outside_code", outside)
    first = both()
    marks.append("b")
    second = both()
    assert len({own[0], first[0], second[0]}) == len({own[1], first[1], second[1]}) == 3
    monkeypatch.undo()
    target = {"_target_": "league_guest.methods.method"}
    assert digests.outside_code({"task": target, "algorithm": {}})
    assert digests.outside_code({"task": {"_target_": "tasks.x.f"}, "algorithm": {}}) is None


def test_several_tracks_are_asked_for_at_once(
    entered: League, folder: Path, tmp_path: Path
) -> None:
    """The tracks tiny and, under another title, other."""
    tracks, results = tmp_path / "tracks", tmp_path / "results"
    shutil.copytree(entered.results, results)
    shutil.copytree(results / "league" / "tiny", results / "league" / "other")
    tracks.mkdir()
    for name, title in (("tiny", "Tiny"), ("other", "Other"), ("third", "Third")):
        (tracks / f"{name}.yaml").write_text(yaml.safe_dump({**TINY, "title": title}))
    asked = ["--tracks", str(tracks), "--results", str(results), "--track", "other"]
    said = CliRunner().invoke(league_commands.app, ["report", *asked, "--track", "third"])
    assert "--track third: nothing is recorded" in str(said.exception)
    found = league_commands.leagues(["other", "tiny"], tmp_path, tmp_path, results, tracks)
    assert [league.name for league in found] == ["other", "tiny"]


def test_own_tracks_are_right() -> None:
    names = rules.track_names(rules.own_tracks())
    assert {"deterministic", "stochastic"} <= set(names)
    with pytest.raises(BadSetting, match="--track x: no such track; there is continual, deter"):
        rules.read_track("x", rules.own_tracks())


def test_targets_of_other_rules_are_made_again(
    league: League, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[str, int]] = []

    def make_target(entered: rules.Entrant, seed: int, data: Path) -> targets.Target:
        made.append((entered.task, seed))
        return targets.Target(start=1.0, best=0.0, target=0.5)

    monkeypatch.setattr(targets, "make_target", make_target)
    first, *others = league.targets.tasks
    old = league.targets.tasks[first].model_copy(update={"rules": "other"})
    before = league.targets.model_copy(update={"tasks": {**league.targets.tasks, first: old}})
    found = targets.make_targets(league.track, "tiny", league.data, before)
    assert made == [(first, seed) for seed in (rules.TRIED, *range(4))]
    assert found.tasks[first].rules == league.targets.tasks[first].rules
    assert [found.tasks[task] for task in others] == [league.targets.tasks[t] for t in others]


def test_the_units_of_step_sizes() -> None:
    """10 is the middle of [1, 100] in logarithm, and the ratio of the units is .1 / 20."""
    units = space.Steps(x=0.1, y=20.0)
    found = [units.of(scale) for scale in (None, "x", "y", "x/y")]
    assert found == pytest.approx([1.0, 0.1, 20.0, 0.005])
    for scale, value in (("x", 1.0), ("y", 200.0), ("x/y", 0.05)):
        part = space.Logarithmic.model_validate({"log": (1.0, 100.0), "of": scale})
        assert space.value_at(part, 0.5, units) == pytest.approx(value)


def test_trials_are_multiples_of_the_powers_of_roberts_number(league: League) -> None:
    """.5 + n / phi and n / phi^2 modulo 1, from n = 1 on: phi is the golden ratio for one setting
    and the plastic number 1.3247 for two, which are in the order of their names."""
    found, line = (
        rules.entrant(league.track, "tiny", "easy", "soba"),
        space.Chosen(choice=tuple(range(1000))),
    )
    one = found._replace(space={"a": line})
    assert [rules.trial_settings(one, k)["a"] for k in range(4)] == [118, 736, 354, 972]
    two = found._replace(space={"b": line, "a": line})
    points = [rules.trial_settings(two, k) for k in range(3)]
    assert [(p["a"], p["b"]) for p in points] == [(254, 69), (9, 639), (764, 209)]


class Walking(NamedTuple):
    x: Tensor
    y: Tensor


def test_the_reference_is_the_least_that_its_run_was_seen_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """x is 0, 1, ..., 10, and the metric (x - 3)^2: 0 where each round is looked at, 1 where every
    second is, and 49 at the end."""

    def step(o: Oracle, s: Walking, draw: Draw) -> tuple[Walking, dict[str, Tensor]]:
        return Walking(s.x + 1, s.y), {}

    task = Task(
        upper=lambda x, y, xi: x.sum(),
        lower=lambda x, y, zeta: y.square().sum(),
        init=lambda rng: (torch.zeros(1).double(), torch.zeros(1).double()),
        evaluate=lambda x, y, k: {"m": (x - 3).square().sum()},
        metric="m",
    )
    monkeypatch.setattr(targets, "build", lambda node: Algorithm(Walking, step))
    reference = rules.Reference(method="soba", rounds=10)
    for looks, least in ((200, 0.0), (10, 0.0), (5, 1.0)):
        found = targets.least(task, {"algorithm": {}}, reference, Goal("m", None), 0, looks)
        assert found == least


def test_a_reference_is_seldom_looked_at_where_a_look_solves_a_lower_level(
    league: League, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def least(task: Task, config: Any, reference: Any, goal: Any, seed: int, looks: int) -> float:
        seen.append(looks)
        return -1e9

    monkeypatch.setattr(targets, "least", least)
    about = league.track.tasks["hard"]
    for solved in (None, rules.Solved()):
        changed = about.model_copy(update={"solved": solved})
        track = league.track.model_copy(update={"tasks": {"hard": changed}})
        targets.make_target(targets.reference_of(track, "tiny", "hard"), 0, tmp_path)
    assert seen == [200, 20]


def test_a_tracks_task_has_the_precision_that_it_asks_for(league: League, tmp_path: Path) -> None:
    about = league.track.tasks["easy"]
    assert targets.context_of(about, 3, tmp_path) == Context(
        seed=3, dtype=torch.float64, data_root=tmp_path
    )
    single = about.model_copy(update={"dtype": "float32"})
    assert targets.context_of(single, 3, tmp_path).dtype == torch.float32
    track = league.track.model_copy(update={"tasks": {"easy": single}})
    config = rules.configured(targets.reference_of(track, "tiny", "easy"), 0, {})["task"]
    x, y = targets.task_of(single, config, 0, tmp_path).init(generator("start"))
    assert (x.dtype, y.dtype) == (torch.float32, torch.float32)


def test_what_a_run_took_is_told_in_each_unit() -> None:
    found = row(0, "reached").model_copy(
        update={"calls": {"grad_f": 3, "hvp_g": 2}, "samples": 40, "cpu_seconds": 0.5, "steps": 7}
    )
    took = {unit: found.work(unit) for unit in ("calls", "samples", "cpu_seconds", "rounds")}
    assert took == {"calls": 5.0, "samples": 40.0, "cpu_seconds": 0.5, "rounds": 7.0}
    missed = found.model_copy(update={"status": "limit"})
    assert {missed.work(unit) for unit in took} == {math.inf}


def test_how_much_of_a_settings_range_the_trials_see(league: League) -> None:
    """As the page says: half of the sixteenths at least, and all or nearly all of them with one."""
    line = space.Chosen(choice=tuple(range(16)))
    soba = rules.entrant(league.track, "tiny", "easy", "soba")
    least = {}
    for many in range(1, 7):
        found = soba._replace(space={f"s{k}": line for k in range(many)})
        points = [rules.trial_settings(found, k) for k in range(32)]
        least[many] = min(len({point[name] for point in points}) for name in points[0])
    assert least == {1: 16, 2: 11, 3: 9, 4: 8, 5: 12, 6: 15}
