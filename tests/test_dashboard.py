"""What the page that compares runs shows of runs whose files are written by hand."""

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from bench.core.settings import BadSetting
from bench.reproduce import (
    bands,
    chosen_runs,
    cli,
    dashboard,
    grouping,
    single_runs,
    statistics,
)
from bench.reproduce.dashboard import Comparison
from bench.reproduce.specs import Book, Method, Metric
from bench.runs.folder import SWEEP_SUMMARY, folder_at
from tests.test_replacing import is_locked

LOSS = Metric(label="test loss", better="lower")
BOOK = Book(
    {},
    {
        "any": {"seconds": Metric(label="seconds of steps")},
        "toy": {"loss": LOSS, "gap": Metric(label="g − min g")},
        "other": {"loss": LOSS, "gap": Metric(label="the gap")},
    },
    {"bome": Method(label="BOME", colour="#0072b2", dash="dot")},
)  # fmt: skip
Row = dict[str, Any]


def made(
    folder: Path, rows: list[Row], summary: Any = None, seed: int = 3, **settings: Any
) -> Path:
    """A run folder with these rows and settings."""
    folder.mkdir(parents=True)
    lines = [json.dumps({"step": 10 * i, "seconds": 1.0 * i} | r) for i, r in enumerate(rows)]
    (folder / "history.jsonl").write_text("".join(f"{line}\n" for line in lines))
    config = {
        "seed": seed, "task": {"_target_": "tasks.a.toy"},
        "algorithm": {"T": 2, "outer": {"lr": 0.5}},
        "run": {"steps": 20, "root": str(folder), "threads": seed}, "data": {"root": "x"},
    }  # fmt: skip
    (folder / "config.yaml").write_text(yaml.safe_dump(config | settings, sort_keys=False))
    if summary is not None:
        done = {"status": "done", "reason": None, "metric": "loss", "last": rows[-1]}
        (folder / "summary.json").write_text(json.dumps(done | summary))
    return folder


def losses(*values: float | None) -> list[Row]:
    return [{"loss": value} for value in values]


def suite(root: Path) -> Path:
    """Two methods, one of them with two settings, on two problems, three seeds of each.

    The loss of a seed is 1, 2 or 4 more than the method's, which is 0, 10 (T 1) or 20 (T 9), so
    that differences over pairs of seeds are exact.
    """
    for task in ("toy", "other"):
        for algorithm, T in (("bome", 1), ("bome", 9), ("itd", 5)):
            for seed, more in enumerate((1.0, 2.0, 4.0)):
                end = more + {"itd": 0.0, "bome": 10.0 + 10 * (T == 9)}[algorithm]
                rows: list[Row] = [{"loss": 100.0}, {"loss": end, "calls/grad_f": 7}]
                made(
                    root / task / algorithm / f"{T}{seed}", rows, {"metric": "loss"}, seed,
                    task={"_target_": f"tasks.b.{task}"},
                    algorithm={"_target_": f"x.{algorithm}", "T": T, "lr": len(task)},
                )  # fmt: skip
    return root


def compared(root: Path, *where: str) -> Comparison:
    return dashboard.compare([root], BOOK, where=where)


def page_data(file: Path) -> Any:
    """The data that stands in the page."""
    text = file.read_text()
    return json.JSONDecoder().raw_decode(text[text.index('{"problems":') :])[0]


# --- which runs


def test_run_folders_are_found_once_and_in_order(tmp_path: Path) -> None:
    b, a = (made(tmp_path / f"toy/bome/{name}", losses(1)) for name in "ba")
    (tmp_path / "toy/bome/c").mkdir()
    (tmp_path / "toy/bome/c/history.jsonl").write_text("")  # no run without its config
    assert [run.path for run in chosen_runs.find_run_folders([tmp_path, a])] == [a, b]
    assert [run.path for run in chosen_runs.find_run_folders([b, tmp_path])] == [b, a]
    assert [run.path for run in chosen_runs.find_run_folders([f"{tmp_path}/t*/*/b"])] == [b]
    for place in (tmp_path / "nowhere", f"{tmp_path}/t*/itd"):
        with pytest.raises(BadSetting, match="there is no such folder"):
            list(chosen_runs.find_run_folders([place]))


def test_the_folder_of_a_sweep_stands_for_its_runs(tmp_path: Path) -> None:
    b, _ = (made(tmp_path / f"toy/bome/{name}", losses(1)) for name in "ba")
    sweep = tmp_path / ".sweeps" / "2026-11-23_01-06-27"
    sweep.mkdir(parents=True)
    with pytest.raises(BadSetting, match=f"has not ended: write {tmp_path} for all runs"):
        list(chosen_runs.find_run_folders([sweep]))
    names = ["toy/bome/b", None, "toy/bome/lost"]
    (sweep / SWEEP_SUMMARY).write_text(json.dumps({"runs": [{"name": n} for n in names]}))
    assert [run.path for run in chosen_runs.find_run_folders([sweep])] == [b]
    for runs in ([{"name": "../../etc"}], [{"name": "toy/bome"}], [{}], 3, [None]):
        (sweep / SWEEP_SUMMARY).write_text(json.dumps({"runs": runs}))
        with pytest.raises(BadSetting, match=r"sweep\.summary\.json is damaged"):
            list(chosen_runs.find_run_folders([sweep]))


@pytest.mark.parametrize(
    ("where", "keys"),
    [
        (["algorithm.T=2"], "a"),
        (["algorithm.T=2.0"], "a"),
        (["algorithm.T=2,3"], "ab"),
        (["algorithm.T!=2"], "bc"),
        (["algorithm.T>=3", "algorithm.T<10"], "b"),
        (["algorithm.on=true"], "a"),
        (["algorithm.on=null"], "bc"),
        (["algorithm.sizes=[1,2]"], "c"),
        (["algorithm.rule=a b"], "c"),
        (["seed=0"], "abc"),
        (["algorithm=bome", "task=toy"], "abc"),
    ],
)
def test_runs_of_which_something_is_asked(where: list[str], keys: str, tmp_path: Path) -> None:
    settings: list[Row] = [
        {"T": 2, "on": True}, {"T": 3}, {"T": 10, "sizes": [1, 2], "rule": "a b"},
    ]  # fmt: skip
    for key, algorithm in zip("abc", settings):
        made(tmp_path / f"toy/bome/{key}", losses(1), seed=0, algorithm=algorithm)
    assert "".join(run.key for run in chosen_runs.find_runs([tmp_path], where)) == keys


@pytest.mark.parametrize(
    ("where", "line"),
    [
        ("algorithm.T", "--where algorithm.T: write a setting and a value, such as algorithm.T=10"),
        ("algorithm.T>x", "--where algorithm.T>x: 'x' is no number: write algorithm.T>10"),
        ("algorithm.t=2", "no run has this setting; write algorithm.T"),
        ("algorithm.T=7", "--where algorithm.T=7: none of the 1 runs is so"),
    ],
)
def test_what_cannot_be_asked_is_refused(where: str, line: str, tmp_path: Path) -> None:
    made(tmp_path / "toy/bome/a", losses(1))
    with pytest.raises(BadSetting) as refusal:
        chosen_runs.find_runs([tmp_path], [where])
    assert line in str(refusal.value)


def test_settings_that_change_no_result_are_left_out(tmp_path: Path) -> None:
    run = chosen_runs.try_run(folder_at(made(tmp_path / "toy/bome/a", losses(1), algorithm={
        "lr": math.nan, "sizes": [math.inf, 1], "rule": {"_target_": "moved.to.adam"}
    })))  # fmt: skip
    assert run is not None
    assert run.settings == {
        "task._target_": "toy", "algorithm.lr": "nan", "algorithm.sizes": ["inf", 1],
        "algorithm.rule._target_": "adam", "run.steps": 20,
    }  # fmt: skip


# --- groups


def test_runs_that_differ_in_their_seeds_are_a_group(tmp_path: Path) -> None:
    found = compared(suite(tmp_path))
    assert found.title == "3 methods on 2 problems, 18 runs"
    assert found.methods == ["BOME, T 1", "BOME, T 9", "itd"]
    assert found.problems == ["other", "toy"]
    assert [len(one.counted) for one in found.groups] == [3] * 6
    # lr is tuned for each problem, and differs on none of them
    assert found.differing == ["task._target_", "algorithm._target_", "algorithm.T", "algorithm.lr"]


def test_a_run_that_is_there_twice_counts_once(tmp_path: Path) -> None:
    made(tmp_path / "a/toy/bome/x", losses(1), {})
    made(tmp_path / "b/toy/bome/x", losses(1), {})
    found = compared(tmp_path)
    assert (found.count, found.about) == (1, "1 run was there twice, and counts once")
    assert dashboard.about_runs(2, 1) == (
        "2 runs were there twice, and count once; 1 run has begun and has no row yet"
    )


@pytest.mark.parametrize(
    ("states", "counts"),
    [
        ([None, "done"], "b"), (["diverged", None, "done", "done"], "c"), ([None, "diverged"], "b"),
        (["damaged", None], "b"), ([None, None], "a"),
    ],
)  # fmt: skip
def test_of_two_copies_the_one_that_is_done_counts(
    states: list[str | None], counts: str, tmp_path: Path
) -> None:
    for place, state in zip("abcd", states):
        folder = made(
            tmp_path / place / "toy/bome/x", losses(1), None if state is None else {"status": state}
        )
        if state == "damaged":
            (folder / "summary.json").write_text("{")
    (one,) = compared(tmp_path).groups
    assert one.runs[0].run.folder.path.relative_to(tmp_path).parts[0] == counts


def test_names_have_what_tells_settings_apart(tmp_path: Path) -> None:
    for i, (outer, inner) in enumerate([(0.5, 1), (0.25, 1), (0.25, True)]):
        made(
            tmp_path / f"toy/my_own/{i}", losses(1), {},
            algorithm={"outer": {"lr": outer}, "inner": {"lr": inner}, "same": [1]},
        )  # fmt: skip
    assert compared(tmp_path).methods == [
        "my own, outer lr 0.5, inner lr 1",
        "my own, outer lr 0.25, inner lr 1",
        "my own, outer lr 0.25, inner lr on",
    ]
    for lr in (0.1234561, 0.1234562):
        made(tmp_path / f"close/toy/itd/{lr}", losses(1), {}, algorithm={"lr": lr, "on": lr > 0})
    for sizes in ([0.5, 2.00000001], [0.5, 2.00000002]):
        made(tmp_path / f"close/toy/soba/{sizes[1]}", losses(1), {}, algorithm={"sizes": sizes})
    assert compared(tmp_path / "close").methods == [
        "itd, lr 0.1234561", "itd, lr 0.1234562",
        "soba, sizes [0.5, 2.00000001]", "soba, sizes [0.5, 2.00000002]",
    ]  # fmt: skip
    # what no digit tells apart asks for none
    assert grouping.digits_apart([0.1, True, "on"]) == 6
    assert grouping.shorten(["algorithm.T", "run.steps", "algorithm.a_b"]) == ["T", "steps", "a b"]


def test_a_method_has_its_own_style_where_it_is_alone(tmp_path: Path) -> None:
    groups = [one.group for one in compared(suite(tmp_path)).groups]
    styles = grouping.method_styles(groups, BOOK)
    assert len({*styles.values()}) == 3
    alone = [group for group in groups if group.method != "BOME, T 9"]
    assert grouping.method_styles(alone, BOOK)["BOME, T 1"] == ("#0072b2", "dot")
    many = [
        grouping.Group("p", f"m{i}", "t", "a", {}, []) for i in range(40)
    ]  # more than there are styles
    assert len(set(grouping.method_styles(many, BOOK).values())) == 32


# --- means and intervals


def test_a_curve_is_the_mean_with_its_interval_as_far_as_all_runs_go(tmp_path: Path) -> None:
    runs = {"a": losses(4, 2, 1), "b": losses(6, 4), "c": losses(8, 0)}
    for seed, (key, rows) in enumerate(runs.items()):
        made(tmp_path / f"toy/bome/{key}", rows, {}, seed)
    (one,) = compared(tmp_path).groups
    assert one.band.mean["step"].tolist() == [0, 10]
    assert one.band.mean["loss"].tolist() == [6, 2]
    for i, values in enumerate(([4.0, 6.0, 8.0], [2.0, 4.0, 0.0])):
        low, high = statistics.student_interval(values, statistics.LEVEL)
        assert one.band.reach["loss"][i] == pytest.approx((high - low) / 2)
    end = bands.find_end(one.counted, "loss")
    assert end is not None
    assert (end.mean, end.n) == (pytest.approx(5 / 3), 3)
    assert (end.low, end.high) == pytest.approx(statistics.student_interval([1, 4, 0], 0.95))


def test_equal_values_have_no_deviation(tmp_path: Path) -> None:
    """NumPy's of three times .1 is not 0."""
    for seed in range(3):
        made(tmp_path / f"toy/bome/{seed}", losses(0.1), {}, seed)
    (one,) = compared(tmp_path).groups
    end = bands.find_end(one.counted, "loss")
    assert end is not None
    assert (end.sd, end.n) == (0.0, 3)


def test_means_are_over_runs_that_are_done(tmp_path: Path) -> None:
    made(tmp_path / "toy/bome/a", losses(4, 2), {}, 0)
    made(tmp_path / "toy/bome/b", losses(4, None), {"status": "diverged"}, 1)
    made(tmp_path / "toy/bome/c", losses(4), None, 2)
    (one,) = compared(tmp_path).groups
    assert [run.run.key for run in one.counted] == ["a"]
    assert bands.count_states(one.runs) == {"done": 1, "diverged": 1, "not finished": 1}
    assert [run.run.key for run in bands.counted(one.runs[1:])] == ["b"]
    assert [run.run.key for run in bands.counted(one.runs[2:])] == ["c"]
    assert one.runs[2].metric is None


def test_the_metric_is_what_a_summary_says(tmp_path: Path) -> None:
    rows: list[Row] = [{"gap": 1.0, "loss": 2.0, "calls/a": 3}]
    made(tmp_path / "other/bome/a", rows, {"metric": "gap"}, task={"_target_": "tasks.a.other"})
    made(tmp_path / "toy/bome/a", rows, None, 0)
    made(tmp_path / "toy/itd/b", rows, {"metric": "loss"}, 0)
    found = dashboard.compare([tmp_path / "toy", tmp_path / "other"], BOOK)
    assert found.metric == "loss"
    problems = dashboard.page_data(found, BOOK)["problems"]
    assert [one["metric"] for one in problems] == ["loss", "gap"]
    # without a summary it is the first that is measured, if one is, whatever another problem has
    itd = made(tmp_path / "other/itd/a", rows, {}, task={"_target_": "tasks.a.other"})
    assert dashboard.compare([tmp_path / "toy/bome", itd], BOOK).metric == "gap"
    assert compared(tmp_path / "toy/bome").metric == "gap"
    made(tmp_path / "bare/toy/bome/a", [{"calls/a": 3}])
    assert compared(tmp_path / "bare").metric == "step"


def test_a_run_without_a_row_is_told_as_not_finished(tmp_path: Path) -> None:
    made(tmp_path / "toy/bome/a", losses(4, 2), {}, 0)
    made(tmp_path / "toy/bome/b", [], None, 1)
    made(tmp_path / "toy/itd/c", [], None, 1)
    found = compared(tmp_path)
    (one,) = found.groups
    assert dict(one.states) == {"done": 1, "not finished": 1}
    assert found.about == "2 runs have begun and have no row yet"
    assert dashboard.page_data(found, BOOK)["groups"][0]["states"] == dict(one.states)


# --- seconds that lanes shared


def test_shared_seconds_do_not_stand_beside_those_of_runs_alone(tmp_path: Path) -> None:
    rows: list[Row] = [{"loss": 1.0, "cpu_seconds": 1.0}, {"loss": 2.0, "cpu_seconds": 1.0}]
    made(tmp_path / "toy/bome/0", rows, {"amortised": True}, 0)
    lane = made(tmp_path / "toy/bome/1", rows, None, 1)
    (lane / "environment.json").write_text(json.dumps({"lanes": ["toy/bome/0", "toy/bome/1"]}))
    found = compared(tmp_path)
    assert found.times == "Seconds are shares of what lanes took together."
    assert bands.find_end(found.groups[0].runs, "cpu_seconds") is not None
    made(tmp_path / "toy/bome/2", rows, {}, 2)
    found = compared(tmp_path)
    assert found.times.startswith("Left out are the seconds of 2 runs that shared their time")
    assert dashboard.page_data(found, BOOK)["times"] == found.times
    (one,) = found.groups
    assert [run.shared for run in one.runs] == [True, True, False]
    for name in ("seconds", "cpu_seconds"):
        assert [name in run.last for run in one.runs] == [False, False, True]
        assert [name in run.columns for run in one.runs] == [False, False, True]
        assert name not in one.band.mean
    assert "loss" in one.band.mean
    made(tmp_path / "alone/toy/bome/0", rows, {}, 0)
    assert compared(tmp_path / "alone").times == ""


def test_a_method_of_which_a_run_diverged_comes_last(tmp_path: Path) -> None:
    for seed in (0, 1):
        made(tmp_path / f"toy/bome/{seed}", losses(1), {}, seed)
        made(tmp_path / f"toy/itd/{seed}", losses(2), {}, seed)
    made(tmp_path / "toy/bome/2", losses(1), {"status": "diverged"}, 2)
    assert dashboard.judge_ends(compared(tmp_path), "loss")["ranks"] == [[1, 0]]


def test_methods_with_the_same_mean_share_a_place(tmp_path: Path) -> None:
    values = {"aid_cg": 2, "bome": 1, "itd": 1, "penalty": 3, "soba": 3, "stocbio": 4}
    for method, value in values.items():
        made(tmp_path / f"toy/{method}/0", losses(value), {}, 0)
    made(tmp_path / "toy/soba/1", losses(3), {"status": "diverged"}, 1)
    made(tmp_path / "toy/stocbio/1", losses(3), {"status": "diverged"}, 1)
    told = dashboard.judge_ends(compared(tmp_path), "loss")
    assert told["ranks"] == [[1, 2, 0, 3, 4, 5]]
    assert told["places"] == [3, 1, 1, 4, 5, 6]


def test_methods_without_a_run_that_is_done_have_the_last_place(tmp_path: Path) -> None:
    """Whatever they came to, so that it is no use to diverge; the first have other metrics."""
    made(tmp_path / "toy/aid_cg/0", [{"own": 1.0}], {}, 0)
    made(tmp_path / "toy/aid_fp/0", [{"own": 1.0}], {"status": "diverged"}, 0)
    made(tmp_path / "toy/bome/0", losses(5), {}, 0)
    made(tmp_path / "toy/bome/1", losses(5), {"status": "diverged"}, 1)
    made(tmp_path / "toy/itd/0", losses(None), {"status": "diverged"}, 0)
    made(tmp_path / "toy/penalty/0", losses(1), {"status": "diverged"}, 0)
    made(tmp_path / "toy/soba/0", losses(7), {}, 0)
    made(tmp_path / "toy/stocbio/0", losses(0), None, 0)
    made(tmp_path / "toy/sobow/0", losses(None), {}, 0)
    found = compared(tmp_path)
    told = dashboard.judge_ends(found, "loss")
    assert told["ranks"] == [[5, 2, 7, 4]]
    names = [one.group.algorithm for one in found.groups]
    assert dict(zip(names, told["places"])) == {
        "aid_cg": None, "aid_fp": None, "bome": 2, "itd": 6, "penalty": 6, "soba": 1, "sobow": 6,
        "stocbio": 6,
    }  # fmt: skip
    assert [i for i, one in enumerate(told["differences"]) if one] == [2]
    alone = dashboard.judge_ends(compared(tmp_path / "toy/stocbio"), "loss")
    assert (alone["places"], alone["differences"]) == ([1], [None])


def test_differences_to_the_best_are_paired_over_seeds(tmp_path: Path) -> None:
    found = compared(suite(tmp_path))
    told = dashboard.judge_ends(found, "loss")
    assert told["ranks"] == [[2, 0, 1], [5, 3, 4]]
    assert told["places"] == [2, 3, 1, 2, 3, 1]
    assert told["differences"] == [
        [10, 10, 10, 3], [20, 20, 20, 3], None, [10, 10, 10, 3], [20, 20, 20, 3], None,
    ]  # fmt: skip
    assert told["ends"][2][0] == pytest.approx(7 / 3, abs=1e-5)
    assert told["ends"][2][4] == 3


def test_a_curve_is_of_what_all_runs_measured_where_they_did(tmp_path: Path) -> None:
    made(tmp_path / "toy/bome/0", [{"loss": 1.0, "own": 1.0}, {"loss": 2.0, "own": 1.0}], {}, 0)
    made(tmp_path / "toy/bome/1", [{"loss": 3.0}, {"loss": 5.0}, {"loss": 9.0}], {}, 1)
    (group,) = compared(tmp_path).groups
    assert "own" not in group.band.mean
    assert group.band.mean["step"].tolist() == [0.0, 10.0]
    assert group.band.mean["loss"].tolist() == [2.0, 3.5]


def test_two_seeds_in_common_are_paired(tmp_path: Path) -> None:
    for seed, (a, b) in enumerate([(1.0, 2.0), (4.0, 7.0)]):
        made(tmp_path / f"toy/bome/{seed}", losses(a), {}, seed)
        made(tmp_path / f"toy/itd/{seed}", losses(b), {}, seed)
    first, second = compared(tmp_path).groups
    found = bands.difference(second.counted, first.counted, "loss")
    assert found is not None
    assert (found.mean, found.pairs) == (2.0, 2)
    # Student's t of one degree of freedom, whose 97.5% quantile is tan(.475 pi); the standard error
    # of 1 and 3 is 1
    assert found.high == pytest.approx(2 + math.tan(0.475 * math.pi))


def test_without_seeds_in_common_the_interval_is_welchs(tmp_path: Path) -> None:
    a, b = [1.0, 2.0, 4.0], [3.0, 5.0]
    for seed, value in enumerate(a):
        made(tmp_path / f"toy/bome/{seed}", losses(value), {}, seed)
    for seed, value in enumerate(b, 2):
        made(tmp_path / f"toy/itd/{seed}", losses(value), {}, seed)
    first, second = compared(tmp_path).groups
    found = bands.difference(second.counted, first.counted, "loss")
    assert found is not None
    assert (found.low, found.high) == pytest.approx(statistics.welch_interval(b, a))
    assert (found.mean, found.pairs) == (pytest.approx(4 - 7 / 3), 0)
    one = bands.difference(second.counted[1:], first.counted, "loss")
    assert one is not None
    assert (one.low, one.high) == (None, None)
    assert bands.difference(second.counted, first.counted, "gap") is None


def test_calls_are_counted_together_and_those_not_made_are_none(tmp_path: Path) -> None:
    counts = {"calls/a": 2, "calls/b": 3, "samples/a": 20, "samples/b": 30}
    rows: list[Row] = [{"loss": 1}, {"loss": 1, **counts}]
    made(tmp_path / "toy/bome/a", rows, {}, 0)
    (one,) = compared(tmp_path).groups
    assert one.band.mean["calls"].tolist() == [0, 5]
    assert one.band.mean["samples"].tolist() == [0, 50]
    assert one.runs[0].last["samples"] == 50
    assert bands.last_value(one.runs[0], "samples/c") == 0
    assert bands.last_value(one.runs[0], "calls/c") == 0
    assert one.runs[0].last["calls"] == 5


def test_which_values_are_better_is_the_books_or_not_known(tmp_path: Path) -> None:
    made(
        tmp_path / "toy/bome/a", [{"loss": 1, "gap": 1, "own": 1}, {"loss": 2, "gap": 2, "own": 2}]
    )
    found = compared(tmp_path)
    assert found.better["loss"] == "lower"
    assert found.better["gap"] == "neither"
    assert found.better["own"] == "neither"  # whichever way its curve goes
    assert dashboard.judge_ends(found, "gap")["ranks"] == []
    assert dashboard.judge_ends(found, "gap")["places"] == [None]


def test_a_metric_has_the_label_that_its_tasks_agree_on() -> None:
    assert dashboard.metric_label("loss", {"toy", "other"}, BOOK) == "test loss"
    assert dashboard.metric_label("gap", {"toy"}, BOOK) == "g − min g"
    assert dashboard.metric_label("gap", {"toy", "other"}, BOOK) == "gap"
    assert dashboard.metric_label("seconds", {"toy"}, BOOK) == "seconds of steps"
    assert dashboard.metric_label("val_loss", {"toy", "unknown"}, BOOK) == "val loss"


# --- files


def test_the_page_has_means_and_single_runs_are_beside_it(tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "assets").mkdir(parents=True)
    (out / "assets" / "runs-7.js").write_text("of an earlier page")
    file, found = dashboard.write_comparison([suite(tmp_path / "runs")], BOOK, out)
    assert (file, found.count) == (out / "index.html", 18)
    data = page_data(file)
    assert data["metric"] == "loss"
    assert data["files"] == [[0, 1, 2, 3, 4, 5]]
    assert data["atOnce"]
    group = data["groups"][0]
    assert data["columns"][group["mean"]["loss"]] == [100, pytest.approx(37 / 3, abs=1e-3)]
    assert data["runs"]["seed"][:3] == [0, 1, 2]
    assert data["runs"]["last"]["loss"][:3] == [11, 12, 14]
    assert [path.name for path in (out / "assets").glob("runs-*.js")] == ["runs-0.js"]
    first = (out / "assets" / "runs-0.js").read_text().splitlines()[0]
    runs = json.loads(first.removeprefix("takeRuns(").removesuffix(");"))
    assert set(runs["runs"]) == {"0", "1", "2"}
    assert runs["columns"][runs["runs"]["1"]["loss"]] == [100, 12]
    dashboard.write_comparison([tmp_path / "runs"], BOOK, out, "seconds")
    assert page_data(file)["metric"] == "seconds"


def test_no_other_process_writes_into_the_folder_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def write_single_runs(found: Any, assets: Path) -> tuple[list[list[int]], int]:
        seen.append(is_locked(assets.parent))
        return [], 0

    monkeypatch.setattr(dashboard, "write_single_runs", write_single_runs)
    dashboard.write_comparison([suite(tmp_path / "runs")], BOOK, tmp_path / "out")
    assert seen == [True]
    assert not is_locked(tmp_path / "out")


def test_thousands_of_curves_are_thinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path / "runs/toy/bome/a", losses(*range(100)), {})
    monkeypatch.setattr(dashboard, "MOST_NUMBERS", 15)
    monkeypatch.setattr(single_runs, "FILE_CHARACTERS", 10)
    made(tmp_path / "runs/toy/itd/a", losses(*range(50)), {})
    file, _ = dashboard.write_comparison([tmp_path / "runs"], BOOK, tmp_path / "out")
    data = page_data(file)
    assert data["columns"][data["groups"][0]["mean"]["loss"]] == [0, 99]
    assert data["files"] == [[0], [1]]
    assert single_runs.thin(np.arange(10.0), 4).tolist() == [0, 3, 6, 9]


def test_the_table_as_a_file(tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    dashboard.write_csv(compared(suite(tmp_path / "runs"), "task=toy"), file)
    lines = file.read_text().splitlines()
    rows = [row for row in csv.DictReader(lines) if row["metric"] == "loss"]
    assert [(r["method"], r["n"], r["rank"], r["difference"]) for r in rows] == [
        ("BOME, T 1", "3", "2", "10"), ("BOME, T 9", "3", "3", "20"), ("itd", "3", "1", ""),
    ]  # fmt: skip
    assert rows[0]["algorithm.T"] == "1"
    made(tmp_path / "ends/toy/bome/a", losses(None), {"status": "diverged"}, 0)
    made(tmp_path / "ends/toy/bome/b", losses(1), {"status": "diverged"}, 1)
    made(tmp_path / "ends/toy/bome/c", [{"step": 0, "=1+1": 2.0}], None, 2)
    dashboard.write_csv(compared(tmp_path / "ends"), file)
    names = {r["metric"] for r in csv.DictReader(file.read_text().splitlines())}
    assert "'=1+1" in names
    assert "=1+1" not in names
    (row,) = [r for r in csv.DictReader(file.read_text().splitlines()) if r["metric"] == "loss"]
    states = [row[name] for name in ("n", "runs", "done", "diverged", "not_finished")]
    assert states == ["1", "3", "0", "2", "1"]
    assert dashboard.as_cell("=1+1") == "'=1+1"
    assert dashboard.as_cell([1, 2]) == "[1, 2]"
    with pytest.raises(BadSetting, match=r"--csv .*: cannot write"):
        dashboard.write_csv(compared(tmp_path / "runs"), tmp_path / "no" / "file")


def test_a_page_without_runs_or_without_the_metric_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="there is no run folder in it"):
        dashboard.write_comparison([tmp_path], BOOK, tmp_path / "out")
    made(tmp_path / "toy/bome/b", [])
    with pytest.raises(BadSetting, match="no run there has a row that can be read"):
        compared(tmp_path)
    made(tmp_path / "toy/bome/a", losses(1))
    with pytest.raises(BadSetting, match="--metric gap: the runs have step, seconds, loss"):
        dashboard.compare([tmp_path], BOOK, "gap")
    assert not (tmp_path / "out").exists()


def test_numbers_are_rounded_or_none() -> None:
    assert dashboard.round_number(None) is None
    assert dashboard.round_number(math.inf) is None
    assert dashboard.round_number(1 / 3) == 0.333333
    assert str(dashboard.round_number(3.0)) == "3"
    assert dashboard.round_number(1e300) == 1e300


def test_the_command_says_what_it_compares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    suite(tmp_path / "runs")
    made(
        tmp_path / "runs/toy/itd/begun", [], None, 9,
        task={"_target_": "tasks.b.toy"}, algorithm={"_target_": "x.itd", "T": 5, "lr": 3},
    )  # fmt: skip
    monkeypatch.chdir(tmp_path)
    words = ["compare", "runs/t*", "--where", "algorithm.T=1,5", "--csv", "a.csv"]
    monkeypatch.setattr("sys.argv", ["reproduce", *words])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 0
    said = capsys.readouterr().out.splitlines()
    assert said == [
        "a.csv", "comparison/index.html (2 methods on 1 problem, 6 runs)",
        "1 run has begun and has no row yet",
    ]  # fmt: skip
    assert (tmp_path / "a.csv").is_file()


def test_a_setting_that_is_null_is_as_one_that_is_not_there(tmp_path: Path) -> None:
    made(tmp_path / "toy/bome/0", losses(1), {}, seed=0, algorithm={"T": 2})
    made(tmp_path / "toy/bome/1", losses(3), {}, seed=1, algorithm={"T": 2, "batch": None})
    found = compared(tmp_path)
    assert [len(one.counted) for one in found.groups] == [2]
    assert found.differing == []


def test_a_task_may_have_a_metric_of_the_name_of_a_total() -> None:
    rows = [{"step": 0, "calls": 5.0}, {"step": 1, "calls": 4.0, "calls/grad_f": 2}]
    found = bands.columns_of(rows, ["step", "calls", "calls/grad_f"])
    assert found["calls"].tolist() == [5.0, 4.0]
