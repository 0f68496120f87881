"""A sweep's parts, each by itself: what is planned, what became of a run, what is told of all."""

import copy
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hydra import initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

import bench.sweeps.sweep as sweep
from bench.core.settings import BadSetting
from bench.runs import exit_codes, lanes
from bench.runs.files import read_json
from bench.runs.folder import RunFolder, RunState
from bench.runs.source import source
from bench.sweeps import bundling, launchers
from bench.sweeps.composing import Composer
from bench.sweeps.jobs import Job, is_lost, is_preempted
from bench.sweeps.sweep import Outcome, SweepRun

Config = dict[str, Any]


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return made(RunFolder(tmp_path / "runs", "t/a/k"))


def made(folder: RunFolder) -> RunFolder:
    folder.path.mkdir(parents=True)
    return folder


def config(**run: Any) -> Config:
    logger = {"_target_": "bench.runs.loggers.local"}
    return {
        "seed": 0, "vectorize": [], "logger": logger, "run": {"force": False, "threads": 8, **run},
    }  # fmt: skip


def end(folder: RunFolder, status: str, reason: str | None = None) -> None:
    folder.end({"status": status, "reason": reason, "last": {"d": 0.5}, "metric": "d"}, None)


def planned(number: int, name: str, **more: Any) -> SweepRun:
    return SweepRun(number, f"w{number}", folder=RunFolder(Path(), name), **more)


ABOUT = (3, "seed=3", "t/a/k")


def test_what_became_of_a_run(folder: RunFolder, tmp_path: Path) -> None:
    """Its job says so, under the run's number, words and name."""
    run = SweepRun(3, "seed=3", config(), folder)
    job = Job(config(), folder, tmp_path / "note.json")
    assert sweep.outcome_of(run, job) == Outcome(*ABOUT, "interrupted", "not begun")
    job.note.write_text("")
    assert sweep.outcome_of(run, job) == Outcome(*ABOUT, "lost", "its process ended without a word")
    end(folder, "diverged", "x is not finite")
    assert sweep.outcome_of(run, job) == Outcome(*ABOUT, "diverged", "x is not finite")
    job.write_note("refused", "no such setting")
    assert sweep.outcome_of(run, job) == Outcome(*ABOUT, "refused", "no such setting")


@pytest.mark.parametrize("content", ["{", "[]", "", None])
def test_a_summary_that_is_damaged_meanwhile_is_told_in_a_line(
    content: str | None, folder: RunFolder, tmp_path: Path
) -> None:
    """None: a link to itself, for which there is no file. No other run of the sweep is lost."""
    run, job = SweepRun(3, "seed=3", config(), folder), Job(config(), folder, tmp_path / "note")
    job.note.write_text("{}")
    file = folder.path / "summary.json"
    if content is None:
        file.symlink_to(file)
    else:
        file.write_text(content)
    outcome = sweep.outcome_of(run, job)
    assert outcome[:4] == (*ABOUT, "failed")
    assert str(file) in str(outcome.reason)
    assert sweep.outcome_line(job).startswith("t/a/k: failed: ")
    assert not is_lost(job)
    assert not is_preempted(job)
    before = sweep.earlier_outcome(run)
    assert before is not None
    assert before[:4] == (*ABOUT, "refused")
    assert str(file) in str(before.reason)


def test_a_line_for_each_run_that_is_over(folder: RunFolder, tmp_path: Path) -> None:
    """The line has the metric of a run that is done, and the reason of any other."""
    job = Job(config(), folder, tmp_path / "note.json")
    assert sweep.outcome_line(job) == "t/a/k: interrupted: not begun"
    job.write_note("busy", "being written by x")
    assert sweep.outcome_line(job) == "t/a/k: busy: being written by x"
    job.note.write_text("{}")
    folder.end(
        {"status": "done", "reason": None, "last": {"val_loss": 0.123456}, "metric": "val_loss",
         "name": "t/a/k"}, None,
    )  # fmt: skip
    assert sweep.outcome_line(job) == "t/a/k: val loss 0.1235"
    folder.end(
        {"status": "diverged", "reason": "x is not finite", "last": {"val_loss": None},
         "metric": "val_loss", "name": "t/a/k"}, None,
    )  # fmt: skip
    assert sweep.outcome_line(job) == "t/a/k: x is not finite"


def test_what_is_known_before(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    run = SweepRun(3, "seed=3", config(), folder)
    ended: Any = None
    changed: str | None = None
    monkeypatch.setattr(sweep, "earlier_end", lambda config, folder: ended)
    monkeypatch.setattr(sweep, "describe_change", lambda config, folder: changed)
    assert sweep.earlier_outcome(run) is None
    ended = print
    end(folder, "done")
    assert sweep.earlier_outcome(run) == Outcome(*ABOUT, "skipped", None)
    changed = "its code has changed since"
    assert sweep.earlier_outcome(run) == Outcome(*ABOUT, "skipped", changed)
    end(folder, "diverged", "x")
    assert sweep.earlier_outcome(run) == Outcome(*ABOUT, "diverged", "x")
    refused = SweepRun(4, "seed=x", refused="seed=x: no number")
    assert sweep.earlier_outcome(refused) == Outcome(
        4, "seed=x", None, "refused", "seed=x: no number"
    )
    (folder.path / "summary.json").write_text("{")
    outcome = sweep.earlier_outcome(run)
    assert outcome is not None
    assert (outcome[:4], "is damaged" in str(outcome.reason)) == ((*ABOUT, "refused"), True)

    def damaged(config: Config, folder: RunFolder) -> None:
        raise BadSetting("summary.json is damaged")

    monkeypatch.setattr(sweep, "earlier_end", damaged)
    assert sweep.earlier_outcome(run) == Outcome(*ABOUT, "refused", "summary.json is damaged")


def test_a_run_that_is_skipped_says_what_has_changed_in_its_code(folder: RunFolder) -> None:
    """Which files: as digests in its environment tell; nothing of one that does not know."""
    node = {"_target_": "tasks.toy.toy_minimax"}
    method = {"_target_": "algorithms.games.gradient.optimistic_gd"}
    run = SweepRun(
        3, "seed=3",
        {**config(), "task": node, "algorithm": method, "run": {"force": False, "retry_failed": 0}},
        folder,
    )  # fmt: skip
    assert run.config is not None
    end(folder, "done")
    now = source(run.config)["files"]
    for old, remark in (
        (None, None),
        (now, None),
        ({**now, "bench/core/loop.py": "0" * 10}, "bench/core/loop.py"),
    ):
        about = {"device": "cpu", "threads": 1, "data": {}}
        folder.describe(about | ({} if old is None else {"source": {"files": old}}))
        outcome = sweep.earlier_outcome(run)
        assert outcome is not None
        assert outcome.status == "skipped"
        if remark is None:
            assert outcome.reason is None
        else:
            assert outcome.reason == (
                f"this run is finished, but its code has changed since: {remark}; "
                "run.force=true makes it anew"
            )


def test_a_run_that_is_there_twice_is_made_once() -> None:
    """The first is made; one that is known already has no twin."""
    runs = [planned(k, name, config={}) for k, name in enumerate("abacab")]
    runs.append(SweepRun(6, "w6", refused="bad"))
    known = Outcome(1, "w1", "b", "skipped", None)
    refused = Outcome(6, "w6", None, "refused", "bad")
    told: dict[int, Outcome | None] = dict.fromkeys(range(7)) | {1: known, 6: refused}
    sweep.skip_repeated(runs, told)
    assert told[0] is told[3] is told[5] is None
    assert told[1] == known
    assert told[2] == Outcome(2, "w2", "a", "skipped", "the same run as #0")
    assert told[4] == Outcome(4, "w4", "a", "skipped", "the same run as #0")


def test_a_run_is_named_by_what_varies(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is named by all its words if nothing varies; a setting that is refused concerns only
    its own run."""

    def resolved(own: Sequence[str]) -> Config:
        if "seed=x" in own:
            raise BadSetting("seed=x: no number")
        return {"own": list(own)}

    monkeypatch.setattr(sweep, "resolve", resolved)
    monkeypatch.setattr(sweep, "place", lambda config: RunFolder(Path("f"), config["own"][-1]))

    def planned(*overrides: Sequence[str]) -> list[SweepRun]:
        return sweep.plan_runs(lambda own: own, overrides)  # type: ignore[arg-type, return-value]

    grid = [("task=t", f"seed={s}", f"algorithm.lr={lr}") for s in ("1", "x") for lr in ("2", "3")]
    runs = planned(*grid)
    assert [run.words for run in runs] == [
        "seed=1 algorithm.lr=2", "seed=1 algorithm.lr=3", "seed=x algorithm.lr=2",
        "seed=x algorithm.lr=3",
    ]  # fmt: skip
    assert [run.number for run in runs] == [0, 1, 2, 3]
    there = RunFolder(Path("f"), "algorithm.lr=3")
    assert runs[1] == SweepRun(1, runs[1].words, {"own": list(grid[1])}, there)
    assert [run.name for run in runs] == [
        "algorithm.lr=2",
        "algorithm.lr=3",
        None,
        None,
    ]
    assert runs[2] == SweepRun(2, runs[2].words, refused="seed=x: no number")
    assert [run.words for run in planned(("task=t", "seed=1"))] == ["task=t seed=1"]
    assert planned() == []


@pytest.mark.parametrize(
    ("workers", "cores", "threads", "expected"),
    [(1, 8, 64, 64), (2, 8, 64, 4), (3, 8, 64, 2), (9, 8, 64, 1), (2, 8, 3, 3), (4, 8, 2, 2)],
)
def test_workers_share_the_cores(
    workers: int, cores: int, threads: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("joblib.cpu_count", lambda: cores)
    run = SweepRun(0, "", config(threads=threads))
    sweep.share_threads([SweepRun(1, "", refused="x"), run], ["seed=1"], workers)
    assert run.config is not None
    assert run.config["run"]["threads"] == expected
    asked = SweepRun(0, "", config(threads=threads))
    sweep.share_threads([asked], ["seed=1", f"run.threads={threads}"], workers)
    assert asked.config is not None
    assert asked.config["run"]["threads"] == threads


def of_method(seed: int = 0, **settings: Any) -> Config:
    run = {"steps": 2500, "seconds": None, "cpu_seconds": None}
    return {
        "seed": seed, "vectorize": None, "run": run | settings.pop("run", {}),
        "algorithm": {"_target_": "m", "lr": 0.1, "T": 3, "outer": {"lr": 1.0}} | settings,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("configs", "keys"),
    [
        ([of_method(), of_method(1)], ["seed"]),
        ([of_method(), of_method(1, lr=0.2)], ["seed", "algorithm.lr"]),
        ([of_method(), of_method(outer={"lr": 2.0})], ["algorithm.outer.lr"]),
        ([of_method(outer={"b": 0.5}), of_method(1)], ["seed"]),  # another rule of descent
        ([of_method(), of_method(T=4)], []),  # a count
        ([of_method(), of_method(1, _target_="n")], []),  # their times are compared
        ([of_method(), of_method(1, run={"steps": 2499})], []),  # over before it pays
        ([of_method(), of_method(1, run={"cpu_seconds": 3.0})], []),
        ([of_method(), of_method(1, run={"seconds": 3.0})], []),
        ([of_method(run={"steps": 5000})], []),
    ],
)
def test_what_goes_side_by_side_unasked(configs: list[Config], keys: list[str]) -> None:
    """Seeds and step sizes of a single method, on one machine, where there are steps enough."""
    for one_machine in (False, True):
        ours = copy.deepcopy(configs)
        expected = keys if one_machine else []
        assert bundling.choose_lanes(ours, one_machine) is bool(expected)
        assert [config["vectorize"] for config in ours] == [expected] * len(ours)


def test_runs_that_have_ended_decide_with_the_others() -> None:
    """A sweep over two methods that was interrupted, or that a method was added to, still compares
    their times: what is left of it is not made side by side."""
    ours = [of_method(), of_method(1)]
    ended = [of_method(0, _target_="n")]
    assert bundling.choose_lanes(ours, True, ended) is False
    assert [config["vectorize"] for config in ours] == [[], []]
    assert bundling.choose_lanes([of_method(), of_method(1)], True, [of_method(2)]) is True


def test_what_was_asked_for_stays() -> None:
    ours = [of_method() | {"vectorize": []}, of_method(1) | {"vectorize": ["seed"]}]
    assert bundling.choose_lanes(ours, True) is False
    assert [config["vectorize"] for config in ours] == [[], ["seed"]]


def test_lanes_that_have_not_ended_become_runs_of_their_own(tmp_path: Path) -> None:
    jobs = [
        Job({"vectorize": ["seed"], "run": {"force": False}}, RunFolder(tmp_path, f"t/a/{k}"),
            tmp_path / f"{k}.json", if_faster=True)
        for k in range(6)
    ]  # fmt: skip
    for each, status in zip(jobs, ("refused", "busy", "refused", "lost"), strict=False):
        each.write_note(status, "why")
    for each in jobs[4:]:
        each.note.write_text("")
        each.folder.path.mkdir(parents=True)
        each.folder.describe({"threads": 1})  # it was begun, and nothing says how it ended
    jobs[5].folder.end({"status": "diverged", "reason": "x", "last": {}}, None)
    apart = bundling.take_apart(jobs[0]._replace(others=tuple(jobs[1:])))
    assert [each.folder.name for each in apart] == ["t/a/0", "t/a/2", "t/a/3", "t/a/4"]
    assert all(not each.others and not each.if_faster for each in apart)
    assert all(each.config["vectorize"] == [] for each in apart)
    assert all(not each.has_begun for each in apart)  # nobody asked for what was refused
    assert apart[0].state() == RunState("interrupted", "not begun")
    assert jobs[0].config["vectorize"] == ["seed"]


def test_runs_side_by_side_are_one_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [
        Job(
            {"vectorize": ["seed"] if k else [], "k": k},
            RunFolder(tmp_path, f"t/a/{k}"),
            tmp_path / str(k),
            (f"a={k}",),
        )
        for k in range(4)
    ]
    seen: list[Any] = []

    def together(configs: Sequence[Config], apart: Sequence[Any]) -> list[list[int]]:
        seen.append(([config["k"] for config in configs], list(apart)))
        return [[0], [1, 3], [2]]

    monkeypatch.setattr(lanes, "group_lanes", together)
    found = bundling.bundle_lanes(jobs)
    assert seen == [([0, 1, 2, 3], [(f"a={k}",) for k in range(4)])]
    assert found == [jobs[0], jobs[1]._replace(others=(jobs[3],)), jobs[2]]
    assert bundling.bundle_lanes(jobs[:1]) == jobs[:1]
    assert len(seen) == 1  # without a setting to vectorise nobody is asked


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ([], 0),
        (["done"], 0),
        (["skipped", "done"], 0),
        (["refused"], 2),
        (["refused", "skipped"], 1),
        (["failed", "done"], 1),
        (["diverged", "preempted"], 1),
        (["lost", "skipped"], 1),
        (["preempted"], 75),
        (["done", "interrupted"], 75),
        (["busy", "skipped"], 75),
    ],
)
def test_the_exit_code_of_a_sweep(ends: list[str], expected: int) -> None:
    assert (
        sweep.exit_code_of_sweep([Outcome(k, "", None, end, None) for k, end in enumerate(ends)])
        == expected
    )


def shown(ends: list[Outcome], folder: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    folder.mkdir(exist_ok=True)
    sweep.print_table(ends, folder, most=3)
    return capsys.readouterr().out.splitlines()


def test_a_table_of_few_shows_all_that_is_to_be_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ends = [
        Outcome(0, "seed=0", "n0", "skipped", "its code has changed"),
        Outcome(1, "seed=1", "n1", "diverged", "x is [gone]"),
        Outcome(2, "seed=2", None, "refused", "no number"),
    ]
    title, heads, *rows, counted, hint = shown(ends, tmp_path / "s", capsys)
    assert title.strip() == str(tmp_path / "s")
    assert heads.split() == ["#", "run", "status", "reason"]
    assert [row.split(maxsplit=3) for row in rows] == [
        ["0", "seed=0", "skipped", rows[0].split(maxsplit=3)[3]],
        ["1", "seed=1", "diverged", rows[1].split(maxsplit=3)[3]],
        ["2", "seed=2", "refused", rows[2].split(maxsplit=3)[3]],
    ]  # fmt: skip
    assert "x is [gone]" in rows[1]
    assert counted == "3 runs: 1 skipped, 1 diverged, 1 refused"
    assert hint == "run.retry_failed=true tries failed and diverged ones again"
    assert read_json(tmp_path / "s" / "sweep.summary.json") == {
        "counts": {"skipped": 1, "diverged": 1, "refused": 1},
        "code": 1,
        "runs": [end._asdict() for end in ends],
    }
    well = [Outcome(0, "seed=0", "n0", "done", None), Outcome(1, "seed=1", "n1", "skipped", None)]
    assert shown(well, tmp_path / "s", capsys) == ["2 runs: 1 done, 1 skipped"]


def test_words_below_a_table_are_plain_on_a_terminal_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    *_, counted = shown([Outcome(0, "seed=0", "n0", "done", None)], tmp_path / "s", capsys)
    assert counted == "1 runs: 1 done"


def test_a_table_of_many_counts_what_its_skipped_runs_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They have no rows of their own: that the code of some has changed would be lost."""
    why = ["its code has changed", None, "its code has changed", "the same run as #0", None]
    ends = [Outcome(k, f"seed={k}", "n", "skipped", reason) for k, reason in enumerate(why)]
    assert shown(ends, tmp_path / "s", capsys) == [
        "2 skipped: its code has changed",
        "1 skipped: the same run as #0",
        "5 runs: 5 skipped",
    ]
    few = shown(ends[:3], tmp_path / "s", capsys)  # whose rows have it
    assert not any("skipped:" in line for line in few)
    assert few[2].split(maxsplit=3)[3].strip() == "its code has changed"


def test_a_table_of_many_shows_what_is_not_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["done", "skipped", "busy", "lost", "preempted", "interrupted", "done"]
    well = ("done", "skipped")
    ends = [
        Outcome(k, f"seed={k}", "n", word, None if word in well else word)
        for k, word in enumerate(words)
    ]
    lines = shown(ends, tmp_path / "s", capsys)
    assert [line.split()[0] for line in lines[2:5]] == ["2", "3", "4"]
    assert lines[5] == f"... and 1 more in {tmp_path / 's' / 'sweep.summary.json'}"
    assert lines[6:] == [
        "7 runs: 2 done, 1 skipped, 1 busy, 1 lost, 1 preempted, 1 interrupted",
    ]  # and nothing to try again
    failed = [Outcome(0, "", "n", "failed", "x")]
    assert shown(failed, tmp_path / "s", capsys)[-1].startswith("run.retry_failed=true")
    ends = [Outcome(k, f"seed={k}", "n", "done", None) for k in range(4)]
    assert shown(ends, tmp_path / "s", capsys) == ["4 runs: 4 done"]


class Sweep:
    """`run_sweep` without Hydra: five runs of seeds, of which 1 is refused, 2 has ended and 4 is 0
    once more."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int = 1):
        self.tmp_path, self.folder = tmp_path, tmp_path / "sweep"
        self.started: list[Job] = []
        self.happens: Callable[[Job], None] = self.well
        names = ["n0", None, "n2", "n3", "n0"]
        self.runs = [
            SweepRun(k, f"seed={k}", config(), RunFolder(tmp_path, f"t/a/{name}"))
            if name
            else SweepRun(k, f"seed={k}", refused="seed=1: bad")
            for k, name in enumerate(names)
        ]
        for run in self.runs:
            if run.config is not None:
                run.config["seed"], run.config["vectorize"] = run.number % 4, ["algorithm.lr"]
        end(made(RunFolder(tmp_path, "t/a/n2")), "done")
        monkeypatch.setattr(
            sweep, "plan_runs", lambda compose, overrides: self.runs[: len(overrides)]
        )
        monkeypatch.setattr(
            sweep, "earlier_end", lambda config, folder: print if folder.path.exists() else None
        )
        monkeypatch.setattr(lanes, "group_lanes", self.together)
        monkeypatch.setattr("joblib.cpu_count", lambda: 4)
        launcher = launchers.Launcher(self.carried, workers)
        monkeypatch.setattr(sweep, "build", lambda node: launcher)

    def together(self, configs: Sequence[Config], apart: Sequence[Any]) -> list[list[int]]:
        self.apart = list(apart)
        return [[k] for k in range(len(configs))]

    def carried(self, jobs: Sequence[Job], folder: Path, ended: launchers.ReportEnd) -> None:
        assert folder == self.folder
        assert OmegaConf.load(folder / "multirun.yaml").hydra.sweep.dir == str(self.folder)
        for each in jobs:
            self.started.append(each)
            self.happens(each)
            ended(each)

    def well(self, each: Job) -> None:
        each.note.write_text("{}")
        each.folder.path.mkdir(parents=True)
        each.folder.end(
            {"status": "done", "reason": None, "last": {"d": each.config["seed"]}, "metric": "d",
             "name": each.folder.name}, None,
        )  # fmt: skip

    def __call__(self, runs: int = 5) -> int:
        folder = self.tmp_path / "sweep"
        master = OmegaConf.create(
            {
                "hydra": {
                    "launcher": {"_target_": "bench.sweeps.launchers.here"},
                    "sweep": {"dir": str(folder)},
                    "overrides": {"task": ["seed=range(5)"]},
                }
            }
        )
        assert isinstance(master, DictConfig)
        overrides = [(f"seed={k}", "algorithm.lr=0.1") for k in range(runs)]
        return sweep.run_sweep(lambda own: own, overrides, master)  # type: ignore[arg-type]

    @property
    def ends(self) -> list[str]:
        told = read_json(self.folder / "sweep.summary.json")
        return [run["status"] for run in told["runs"]]


def test_a_sweep_makes_what_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = Sweep(tmp_path, monkeypatch)
    assert whole() == exit_codes.FAILED  # for the one that is refused
    assert whole.ends == ["done", "refused", "skipped", "done", "skipped"]
    assert [each.config["seed"] for each in whole.started] == [0, 3]
    notes = whole.folder / "notes"
    assert [each.note for each in whole.started] == [notes / "0.json", notes / "3.json"]
    assert whole.apart == [("seed=0",), ("seed=3",)]  # not what is to vectorise
    since = (whole.folder / "multirun.yaml").stat().st_mtime_ns
    assert {each.since for each in whole.started} == {since}
    assert {each.config["run"]["threads"] for each in whole.started} == {8}  # one worker
    assert not notes.exists()
    told = capsys.readouterr()
    assert told.err == "bench: seed=1: bad\n"
    first, second = told.out.splitlines()[:2]  # a line as each is over, with its place among all
    assert re.fullmatch(r"run 4 of 5, \d+ s left: t/a/n0: d 0", first)
    assert second == "run 5 of 5: t/a/n3: d 3"


def test_workers_of_a_sweep_share_the_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Sweep(tmp_path, monkeypatch, workers=2)
    whole()
    assert {each.config["run"]["threads"] for each in whole.started} == {2}


def test_a_sweep_that_is_stopped_tells_what_became_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Sweep(tmp_path, monkeypatch)

    def interrupted(each: Job) -> None:
        each.note.write_text("")
        raise KeyboardInterrupt

    whole.happens = interrupted
    with pytest.raises(KeyboardInterrupt):
        whole()
    assert whole.ends == ["lost", "refused", "skipped", "interrupted", "skipped"]
    assert not (whole.folder / "notes").exists()


def test_a_sweep_with_nothing_to_do_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Sweep(tmp_path, monkeypatch)
    whole.runs = [whole.runs[2]._replace(number=0)]
    assert whole(1) == exit_codes.DONE
    assert (whole.started, whole.ends) == ([], ["skipped"])


def test_a_sweep_whose_every_run_is_refused_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Sweep(tmp_path, monkeypatch)
    whole.runs = [whole.runs[1]._replace(number=0)]
    assert whole(1) == exit_codes.REFUSED
    assert not whole.folder.exists()


def test_a_sweep_of_no_run_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadSetting, match=r"the sweep is empty: seed=range\(5\) names no run"):
        Sweep(tmp_path, monkeypatch)(0)


def test_two_sweeps_of_one_second_have_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Sweep(tmp_path, monkeypatch)
    whole.folder.mkdir()
    whole.folder = tmp_path / f"sweep-{os.getpid()}"
    monkeypatch.setattr(sweep.OmegaConf, "save", lambda master, path: path.write_text(""))
    whole.carried = lambda jobs, folder, ended: None  # type: ignore[method-assign]
    monkeypatch.setattr(sweep, "build", lambda node: launchers.Launcher(whole.carried))
    whole()
    assert whole.ends == ["interrupted", "refused", "skipped", "interrupted", "skipped"]


def test_a_sweep_that_cannot_be_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Sweep(tmp_path, monkeypatch)
    whole.tmp_path = tmp_path / "file"
    whole.tmp_path.touch()
    with pytest.raises(BadSetting, match=r"run\.root: cannot write .*file.* for another place"):
        whole()
    assert whole.started == []


def test_lanes_that_are_over_have_a_line_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = Sweep(tmp_path, monkeypatch)
    monkeypatch.setattr(lanes, "group_lanes", lambda configs, apart: [[0, 1]])

    def both(each: Job) -> None:
        assert [other.config["seed"] for other in each.others] == [3]
        for one in each.all:
            whole.well(one)

    whole.happens = both
    assert whole() == exit_codes.FAILED
    said = capsys.readouterr().out.splitlines()[:2]
    assert [line.partition(": ")[2] for line in said] == ["t/a/n0: d 0", "t/a/n3: d 3"]


@pytest.fixture
def composer() -> Iterator[Callable[[], Composer]]:
    """Composers that know nothing yet."""
    with initialize_config_module("conf", version_base="1.3"):
        yield lambda: Composer(GlobalHydra.instance().config_loader(), "config")


TOY = ("task=toy_minimax", "algorithm=optimistic_gd")
SWEEPS: dict[str, list[tuple[str, ...]]] = {
    "values": [
        (*TOY, f"seed={k}", f"algorithm.outer_lr={lr}") for k in (1, 2) for lr in (0.1, 0.2)
    ],
    "fewer values": [
        (*TOY, "seed=3", "algorithm.outer_lr=0.3"), (*TOY, "seed=4"), (*TOY,),
        (*TOY, "algorithm.outer_lr=0.5"), (*TOY, "run.steps=3"),
    ],
    "other words for one value": [
        (*TOY, "algorithm.batch=8"), (*TOY, "algorithm.batch=null"), (*TOY, "algorithm.batch=16"),
        (*TOY, "algorithm.batch='a b'"), (*TOY, "algorithm.batch=${seed}"),
        (*TOY, "algorithm.batch=true"),
    ],
    "lists": [(*TOY, f"task.start={start}") for start in ("[1.0,2.0]", "[3.0]", "7", "[1.0,2.0]")],
    "mappings": [
        ("algorithm=bome", "algorithm.outer={eps:0.5}"),
        ("algorithm=bome", "algorithm.outer={momentum:0.25}"),
        ("algorithm=bome", "algorithm.outer_lr=0.75"),
        ("algorithm=bome", "algorithm.outer={eps:0.5,momentum:0.25}"),
    ],
    "plain after a mapping": [
        ("algorithm=bome", "run.until={a:1}"), ("algorithm=bome", "run.until=b"),
        ("algorithm=bome", "run.until={c:2}"), ("algorithm=bome", "run.until=null"),
    ],
    "deletions": [
        (*TOY, "~run.dtype"), (*TOY, "run.dtype=float64"), (*TOY,), (*TOY, "~algorithm.stale"),
        (*TOY, "algorithm.stale=3"), (*TOY, "~algorithm.stale=10"), (*TOY, "algorithm.stale=4"),
    ],
    "additions": [
        (*TOY, "+run.more=1"), (*TOY, "+run.other=2"), (*TOY, "++run.more=3"), (*TOY,),
        (*TOY, "+run.more={a:1}"), (*TOY, "+run.more={b:1}"), (*TOY, "seed=1"),
    ],
    "groups": [
        (f"task={task}", f"algorithm={algorithm}", f"seed={seed}")
        for task in ("toy_minimax", "toy_coreset")
        for algorithm in ("optimistic_gd", "bome")
        for seed in (1, 2)
    ],
    "groups of a part": [
        ("algorithm=bome", f"descent@algorithm.outer={rule}", "algorithm.outer_lr=0.5")
        for rule in ("default", "clamped", "default")
    ],
}  # fmt: skip


@pytest.mark.parametrize("sweeps", SWEEPS.values(), ids=SWEEPS)
def test_a_configuration_that_is_used_again_is_as_a_fresh_one(
    sweeps: list[tuple[str, ...]], composer: Callable[[], Composer]
) -> None:
    """Nothing of the run before is left in it: it is what Hydra composes from the same words."""
    compose, loader = composer(), GlobalHydra.instance().config_loader()
    expected = {}
    for overrides in sweeps:
        whole = loader.load_configuration("config", list(overrides), run_mode=RunMode.RUN)
        OmegaConf.set_struct(whole, False)
        del whole["hydra"]
        expected[overrides] = OmegaConf.to_container(whole, resolve=True)
    for overrides in (*sweeps, *reversed(sweeps)):
        assert OmegaConf.to_container(compose(overrides), resolve=True) == expected[overrides]


def test_only_values_that_replace_another_are_put_into_one_configuration(
    composer: Callable[[], Composer],
) -> None:
    """A copy for each of thousands of runs would take longer than all else of their planning."""
    compose = composer()
    first = compose((*TOY, "seed=1", "algorithm.outer_lr=0.1"))
    assert compose((*TOY, "seed=2", "algorithm.outer_lr=0.2")) is first
    assert compose((*TOY, "seed=2")) is not first
    added = compose((*TOY, "+run.more=1"))
    assert compose((*TOY, "+run.more=1")) is not added
    assert len(compose.bases) == 1


def test_a_configuration_of_ones_own_stays_as_it_is(composer: Callable[[], Composer]) -> None:
    compose = composer()
    kept = compose.own((*TOY, "seed=1"))
    assert compose((*TOY, "seed=2")).seed == 2
    assert compose.own((*TOY, "seed=3")) is not kept
    assert kept.seed == 1


def test_a_word_that_is_no_setting_is_refused_by_a_used_configuration_too(
    composer: Callable[[], Composer],
) -> None:
    compose = composer()
    compose((*TOY, "seed=1"))
    for _ in range(2):
        with pytest.raises(BadSetting, match=r"run\.nope=1: no such setting; there is "):
            compose((*TOY, "run.nope=1"))
    assert compose((*TOY, "seed=2")).seed == 2


def test_a_group_that_a_choice_has_not_is_refused_for_it_alone(
    composer: Callable[[], Composer],
) -> None:
    compose = composer()
    with pytest.raises(BadSetting, match=r"^task/data=digits: the other choices have no group"):
        compose((*TOY, "task/data=digits"))
    assert compose(("task=hyper_cleaning", "algorithm=itd", "task/data=digits")).task.data


def test_the_folder_of_runs_is_the_environments(
    composer: Callable[[], Composer], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The environment is read once; a word of the command line counts more."""
    monkeypatch.setenv("BENCH_RUNS", str(tmp_path))
    compose = composer()
    assert compose((*TOY, "seed=1")).run.root == str(tmp_path)
    monkeypatch.setenv("BENCH_RUNS", "elsewhere")
    assert compose((*TOY, "seed=2")).run.root == str(tmp_path)
    assert compose((*TOY, "seed=2", "run.root=mine")).run.root == "mine"
    assert compose((*TOY, "seed=2")).run.root == str(tmp_path)


@pytest.mark.parametrize("clock", ["seconds", "cpu_seconds"])
def test_runs_that_a_clock_ended_are_not_continued_by_lanes(clock: str) -> None:
    ours = [of_method(), of_method(1)]
    assert bundling.choose_lanes(ours, True, [of_method(2, run={clock: 3.0})]) is False
    assert [config["vectorize"] for config in ours] == [[], []]
