"""What a sweep says when it ends: each setting over its seeds, the best first."""

import math
from pathlib import Path
from typing import Any

import pytest

from bench.runs.better import better
from bench.runs.folder import RunFolder
from bench.sweeps import sweep
from bench.sweeps.closing import (
    Kind,
    Made,
    gather,
    mean_and_deviation,
    print_closing,
    short_keys,
    varied_settings,
)
from tests.test_hostile import Main, main  # noqa: F401  (a fixture)


def made(root: Path, value: float | None, status: str = "done", **settings: Any) -> Made:
    """A run of these settings that ended with a value; without one it never ended."""
    task = settings.pop("task", "quadratic")
    words = {key: str(each) for key, each in settings.items()}
    folder = RunFolder(root, f"{task}/m/{'_'.join(words.values())}")
    folder.path.mkdir(parents=True)
    metric = {"quadratic": "objective", "hyper_cleaning": "test_accuracy"}.get(task, "odd")
    last = {metric: value, "seconds": 2.0, "calls/grad_f": 10, "calls/grad_g": 20}
    if value is not None:
        folder.end({"status": status, "reason": None, "last": last, "metric": metric}, None)
    return Made(words, folder)


@pytest.mark.parametrize(
    ("task", "metric", "expected"),
    [
        ("hyper_cleaning", "test_accuracy", "higher"),
        ("quadratic", "objective", "lower"),
        ("quadratic", "seconds", "lower"),
        ("toy_coreset", "theta_1", "neither"),
        ("one_of_my_own", "odd", "neither"),
    ],
)
def test_which_values_are_good(task: str, metric: str, expected: str) -> None:
    assert better(task, metric) == expected


def test_what_varies_and_its_short_words() -> None:
    overrides = [
        ("task=t", f"algorithm.outer.lr={lr}", f"seed={seed}") for lr in "12" for seed in "01"
    ]
    assert varied_settings(overrides)[1] == {"algorithm.outer.lr": "1", "seed": "1"}
    assert varied_settings(overrides[:1]) == [{}]
    assert varied_settings([]) == []
    keys = ("task/data", "algorithm.a.lr", "algorithm.b.lr", "algorithm")
    assert list(short_keys(keys).values()) == ["data", *keys[1:]]


def test_settings_over_their_seeds_the_best_first(tmp_path: Path) -> None:
    """Those of which a run did not end well come last: the others may have ended well by chance."""
    runs = [
        made(tmp_path, 3.0, lr="a", seed=0),
        made(tmp_path, 5.0, lr="a", seed=1),
        made(tmp_path, 1.0, lr="b", seed=0),
        made(tmp_path, 0.1, "diverged", lr="b", seed=1),
        made(tmp_path, 2.0, lr="c", seed=0),
        made(tmp_path, None, lr="d", seed=0),
        made(tmp_path, 0.5, task="hyper_cleaning", lr="a"),
        made(tmp_path, 0.75, task="hyper_cleaning", lr="b"),
        made(tmp_path, None, task="toy_minimax"),
    ]
    tables = gather(runs)
    objective = Kind("quadratic", "objective", "lower")
    accuracy = Kind("hyper_cleaning", "test_accuracy", "higher")
    assert list(tables) == [objective, accuracy]
    rows = tables[objective]
    assert [(row.settings["lr"], row.values, row.runs) for row in rows] == [
        ("c", (2.0,), 1), ("a", (3.0, 5.0), 2), ("b", (1.0,), 2), ("d", (), 1),
    ]  # fmt: skip
    assert (rows[1].seconds, rows[1].calls) == (2.0, 30)
    assert [row.settings["lr"] for row in tables[accuracy]] == ["b", "a"]
    (seconds,) = gather(runs[:5], ("seconds", "neither")).values()
    assert [row.settings["lr"] for row in seconds] == ["a", "c", "b"]  # in the sweep's order


def test_shared_seconds_do_not_stand_beside_own_ones(tmp_path: Path) -> None:
    """A sweep that was interrupted may have made some of its runs side by side."""
    runs = [made(tmp_path, 3.0, lr="a", seed=0), made(tmp_path, 5.0, lr="b", seed=0)]
    shared = RunFolder(tmp_path, runs[1].folder.name)
    summary = shared.summary()
    assert summary is not None
    shared.end(summary | {"amortised": True}, None)
    ((first, second),) = gather(runs).values()
    assert (first.seconds, first.values, second.values) == (2.0, (3.0,), (5.0,))
    assert math.isnan(second.seconds)
    ((alone,),) = gather(runs[1:]).values()
    assert alone.seconds == 2.0  # all of a sweep may be so, and it says so


def test_a_run_that_two_trials_share_counts_once(tmp_path: Path) -> None:
    """A search over few values comes back to some: one run is no two seeds."""
    run = made(tmp_path, 3.0, lr="a", seed=0)
    ((row,),) = gather([run, run._replace(), run._replace()]).values()
    assert (row.runs, row.values) == (1, (3.0,))


@pytest.mark.parametrize(
    ("values", "shown"),
    [((), "-"), ((0.123456,), "0.1235"), ((1.0, 3.0), "2 ± 1.4"), ((2.0, 2.0), "2 ± 0")],
)
def test_a_mean_and_its_deviation(values: tuple[float, ...], shown: str) -> None:
    assert mean_and_deviation(values) == shown


def test_a_table_that_is_long_or_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [made(tmp_path, float(k), lr=k) for k in range(3)]
    print_closing(runs, tmp_path / "[s] t", most=2)
    title, heads, *rows, more, how = capsys.readouterr().out.splitlines()
    assert title.strip() == "quadratic: objective, lower is better, best first; one run each"
    assert heads.split() == ["lr", "runs", "objective", "seconds", "calls"]
    assert [row.split() for row in rows] == [["0", "1", "0", "2", "30"], ["1", "1", "1", "2", "30"]]
    assert more == "... and 1 more"
    assert how == f"curves with bands: reproduce compare '{tmp_path / '[s] t'}'"  # for a shell
    print_closing([made(tmp_path / "other", None, lr=0)], tmp_path)
    assert capsys.readouterr().out == ""


def test_samples_are_told_where_calls_have_more_than_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [made(tmp_path, 3.0, lr="a"), made(tmp_path, None, lr="b")]
    for samples, told in ((30, ["30"]), (64, ["30", "64"]), (6400, ["30", "6,400"])):
        summary = runs[0].folder.summary()
        assert summary is not None
        last = {**summary["last"], "samples/grad_f": samples}
        runs[0].folder.end({**summary, "last": last}, None)
        print_closing(runs, tmp_path)
        _, heads, first, second, _ = capsys.readouterr().out.splitlines()
        assert heads.split()[4:] == ["calls", "samples"][: len(told)]
        assert first.split()[4:] == told
        assert second.split()[-2 - len(told) :] == ["-"] * (2 + len(told))


@pytest.mark.parametrize(
    ("values", "same"),
    [
        ({"a": [3.0, 3.0], "b": [2.0, 2.0]}, True),
        ({"a": [3.0, 3.0], "b": [2.0]}, True),
        ({"a": [3.0, 3.0], "b": [2.0, 2.1]}, False),
        ({"a": [3.0], "b": [3.0]}, False),
    ],
)
def test_seeds_that_change_nothing_are_told(
    values: dict[str, list[float]], same: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [
        made(tmp_path, value, lr=lr, seed=seed)
        for lr, own in values.items()
        for seed, value in enumerate(own)
    ]
    print_closing(runs, tmp_path)
    said = capsys.readouterr().out
    assert ("all seeds came to the same values" in said) == same


def test_nine_runs_end_in_a_table_and_a_command(main: Main, tmp_path: Path) -> None:  # noqa: F811
    said = main(
        "-m", "hydra/launcher=here", "task=quadratic", "algorithm=itd,bome,aid_cg", "seed=0,1,2",
        "run.steps=4", "run.every=2", "run.threads=1",
    )  # fmt: skip
    assert said.code == 0, said.err
    *lines, total, title, heads, first, second, third, same, how = said.out.splitlines()
    assert same.startswith("all seeds came to the same values")  # instance=0: one problem
    assert [line.partition(",")[0] for line in lines] == [
        *(f"run {k} of 9" for k in range(1, 9)), lines[8],
    ]  # fmt: skip
    assert lines[8].startswith("run 9 of 9: ")
    assert total == "9 runs: 9 done"
    assert title.startswith("quadratic: hypergradient norm, lower is better, best first; mean ± sd")
    assert heads.split()[:4] == ["algorithm", "runs", "hypergradient", "norm"]
    assert heads.split()[4:] == ["seconds", "calls", "samples"]
    cells = [row.split() for row in (first, second, third)]
    assert {row[0] for row in cells} == {"itd", "bome", "aid_cg"}
    assert [row[1] for row in cells] == ["3", "3", "3"]
    assert all(row[3] == "±" for row in cells)
    assert [float(row[2]) for row in cells] == sorted(float(row[2]) for row in cells)
    (folder,) = (tmp_path / "runs" / ".sweeps").iterdir()
    assert how == f"curves with bands: reproduce compare {folder}"


def test_runs_of_older_code_are_marked(
    main: Main,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They stand beside those that are made now, which may be of another method."""
    sizes = ("task=quadratic", "run.steps=4", "run.every=2", "run.threads=1", "vectorize=[]")
    assert main("-m", "hydra/launcher=here", *sizes, "algorithm=itd", "seed=0,1").code == 0

    def changed(config: Any, folder: RunFolder) -> str | None:
        return "its code has changed" if config["seed"] == 1 else None

    monkeypatch.setattr(sweep, "describe_change", changed)
    said = main("-m", "hydra/launcher=here", *sizes, "algorithm=itd,bome", "seed=0,1")
    assert said.code == 0, said.err
    *_, first, second, _, old, _ = said.out.splitlines()
    runs = dict(row.split()[:2] for row in (first, second))
    assert runs == {"itd": "2*", "bome": "2"}
    assert old.startswith("* with runs from before their code or data changed: run.force=true")


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.4, "0 s"), (99.0, "99 s"), (120.0, "2 min"), (9000.0, "2.5 h")]
)
def test_a_time_in_one_unit(seconds: float, shown: str) -> None:
    assert sweep.rough_time(seconds) == shown


def test_runs_that_end_together_share_the_time_that_they_took(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ten lanes of 60 s: of two times ten runs, the last ten take 60 s more."""
    now = 0.0
    monkeypatch.setattr(sweep.time, "monotonic", lambda: now)
    progress = sweep.Overall(25, 5)
    assert progress.lines([]) == []
    now = 60.0
    told = progress.lines([f"lane {k}" for k in range(10)])
    assert told == [f"run {6 + k} of 25, 60 s left: lane {k}" for k in range(10)]
    now = 150.0
    assert progress.lines(["alone"]) == ["run 16 of 25, 2 min left: alone"]  # 9 of 150 / 11 s
    assert progress.lines([str(k) for k in range(9)])[-1] == "run 25 of 25: 8"
