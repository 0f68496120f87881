"""`bench -m`: what is made, skipped, tried again; the table, the summary file and the exit code."""

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

import bench.core.loop
from bench.runs import lock
from bench.runs.files import read_json
from bench.runs.folder import RunFolder, RunState
from bench.runs.launch import place, resolve
from bench.runs.name import name
from bench.sweeps import bundling, launchers
from bench.sweeps.jobs import Job, make_job, make_one
from bench.sweeps.sweep import Outcome, SweepRun, exit_code_of_sweep, share_threads
from tests.test_hostile import Main, main  # noqa: F401  (a fixture)

QUICK = (
    "-m",
    "hydra/launcher=here",
    "task=toy_minimax",
    "run.steps=4",
    "run.every=2",
    "run.threads=1",
)


def told(tmp_path: Path) -> list[tuple[str, str | None]]:
    """(status, reason) of each run of the newest sweep."""
    folder = max((tmp_path / "runs" / ".sweeps").iterdir(), key=lambda f: f.stat().st_mtime_ns)
    summary = read_json(folder / "sweep.summary.json")
    assert not (folder / "notes").exists()
    assert sum(summary["counts"].values()) == len(summary["runs"])
    return [(run["status"], run["reason"]) for run in summary["runs"]]


def statuses(tmp_path: Path) -> list[str]:
    return [status for status, _ in told(tmp_path)]


@pytest.fixture
def bad_seeds(monkeypatch: pytest.MonkeyPatch) -> dict[int, Callable[[], Any]]:
    """seed -> what its second step does instead."""
    bad: dict[int, Callable[[], Any]] = {}
    original = bench.core.loop.advance

    def advance(task: Any, algorithm: Any, seed: int, s: Any) -> Any:
        if s.step == 1 and seed in bad:
            bad[seed]()
        return original(task, algorithm, seed, s)

    monkeypatch.setattr(bench.core.loop, "advance", advance)
    return bad


def test_what_fails_stops_no_other_and_the_same_command_makes_only_the_rest(
    main: Main,  # noqa: F811
    tmp_path: Path,
    bad_seeds: dict[int, Callable[[], Any]],
) -> None:
    def fail() -> None:
        raise ArithmeticError("bad luck")

    command = (*QUICK, "seed=0,1,x,2,1")
    bad_seeds[1] = fail
    first = main(*command)
    assert first.code == 1
    assert "5 runs: 2 done, 1 failed, 1 refused, 1 skipped" in first.out
    assert "ArithmeticError: bad luck" in first.out
    assert statuses(tmp_path) == ["done", "failed", "refused", "done", "skipped"]
    assert told(tmp_path)[4] == ("skipped", "the same run as #1")
    bad_seeds.clear()
    ended = {f: f.stat().st_mtime_ns for f in (tmp_path / "runs").rglob("summary.json")}
    again = main(*command)
    assert again.code == 1  # not tried again, and told again
    assert statuses(tmp_path) == ["skipped", "failed", "refused", "skipped", "failed"]
    retried = main(*QUICK, "seed=0,1,2", "run.retry_failed=true")
    assert retried.code == 0
    assert statuses(tmp_path) == ["skipped", "done", "skipped"]
    assert {f: f.stat().st_mtime_ns for f in ended} == ended


def test_a_run_that_ends_its_process_has_failed(
    main: Main,  # noqa: F811
    bad_seeds: dict[int, Callable[[], Any]],
    tmp_path: Path,
) -> None:
    """Otherwise neither the folder nor the exit code would say that there is no result."""
    bad_seeds[1] = lambda: sys.exit(0)
    said = main(*QUICK, "seed=1,0")
    assert said.code == 1
    why = "RuntimeError: code of the run raised SystemExit: 0"
    assert told(tmp_path) == [("failed", why), ("done", None)]
    alone = main(*QUICK[2:], "seed=1")
    assert alone.code == 1
    assert f"failed: {why}; run.retry_failed=true tries it again" in alone.err


def test_a_signal_ends_a_sweep_after_saving_and_the_rest_is_made_later(
    main: Main,  # noqa: F811
    tmp_path: Path,
    bad_seeds: dict[int, Callable[[], Any]],
) -> None:
    bad_seeds[1] = lambda: os.kill(os.getpid(), signal.SIGTERM)
    stopped = main(*QUICK, "seed=0,1,2")
    assert stopped.code == 75
    assert statuses(tmp_path) == ["done", "preempted", "interrupted"]
    bad_seeds.clear()
    assert main(*QUICK, "seed=0,1,2").code == 0
    assert statuses(tmp_path) == ["skipped", "done", "done"]


def test_a_run_that_another_process_makes_is_put_off(
    main: Main,  # noqa: F811
    tmp_path: Path,
) -> None:
    main(*QUICK, "seed=0,1")
    (first, _) = (tmp_path / "runs").rglob("summary.json")
    first.unlink()
    with lock.hold(first.parent):
        said = main(*QUICK, "seed=0,1")
    assert said.code == 75
    assert sorted(statuses(tmp_path)) == ["busy", "skipped"]
    assert main(*QUICK, "seed=0,1").code == 0


def test_lanes_that_are_killed_unasked_become_single_runs(
    main: Main,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As for the memory that they take together."""
    made: list[int] = []

    def killed(job: Job) -> None:
        made.append(len(job.all))
        if not job.others:
            make_job(job)
            return
        for each in job.all:  # what is there when a process is killed after it has begun
            each.note.write_text("")
            each.folder.path.mkdir(parents=True)
            each.folder.prepare(each.config, -1)
            each.folder.describe({"lanes": [one.folder.name for one in job.all]})
            assert each.state().status == "lost"

    monkeypatch.setattr(bundling, "WORTH", 12)
    monkeypatch.setattr(launchers, "make_job", killed)
    said = main(*QUICK, "seed=0,1,2")
    assert said.code == 0, said
    assert made == [3, 1, 1, 1]
    assert statuses(tmp_path) == ["done"] * 3


@pytest.mark.usefixtures("warm_workers")
def test_a_sweep_composes_as_a_run_does(main: Main, tmp_path: Path) -> None:  # noqa: F811
    choices = (
        "experiment=toy_coreset_code_bvfsm",
        "algorithm.l2=0.2",
        "run.steps=2",
        "run.every=1",
    )
    assert main("-m", *choices, "seed=3,4", "algorithm.log=0.1,0.3").code == 0
    names = {str(f.parent.relative_to(tmp_path / "runs")) for f in _summaries(tmp_path)}
    expected = set()
    for seed in (3, 4):
        for value in (0.1, 0.3):
            with initialize_config_module("conf", version_base="1.3"):
                cfg = compose("config", [*choices, f"seed={seed}", f"algorithm.log={value}"])
            expected.add(name(resolve(cfg)))
    assert names == expected


def _summaries(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "runs").rglob("summary.json"))


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        (["done", "skipped"], 0),
        (["done", "diverged"], 1),
        (["done", "refused"], 1),
        (["refused", "refused"], 2),
        (["done", "lost", "busy"], 1),
        (["done", "preempted", "busy"], 75),
    ],
)
def test_the_exit_code_says_the_worst(ends: list[str], expected: int) -> None:
    assert (
        exit_code_of_sweep([Outcome(k, "", None, status, None) for k, status in enumerate(ends)])
        == expected
    )


def test_workers_share_the_cores_unless_told_otherwise() -> None:
    cores = len(os.sched_getaffinity(0))
    for overrides, workers, expected in (
        ([], 1, 64),
        ([], cores, 1),
        (["run.threads=64"], cores, 64),
    ):
        run = SweepRun(0, "", {"run": {"threads": 64}})
        share_threads([run], overrides, workers)
        assert run.config is not None
        assert run.config["run"]["threads"] == (expected if workers > 1 else 64)


def test_a_killed_worker_costs_no_other_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real processes; what they do stands for a run: one dies the first time, one every time."""
    word = json.dumps({"status": "done", "reason": None})

    def stand_in(job: Job) -> None:
        import os
        import time

        first = not job.note.exists()
        job.note.touch()
        if job.config["dies"] == "always" or (job.config["dies"] == "once" and first):
            os._exit(9)
        time.sleep(0.01)
        job.note.write_text(word)

    monkeypatch.setattr(launchers, "make_job", stand_in)
    dies = ["no", "always", "no", "once", *["no"] * 6]
    jobs = [
        Job({"dies": word}, RunFolder(tmp_path, f"t/a/{k}"), tmp_path / f"{k}.json")
        for k, word in enumerate(dies)
    ]
    over: list[Job] = []
    launchers.joblib(workers=2).launch(jobs, tmp_path, over.append)
    assert over == jobs
    lost = RunState("lost", "its process ended without a word")
    done = RunState("done")
    assert [job.state() for job in jobs] == [done if d != "always" else lost for d in dies]


def test_one_run_of_a_sweep_outside_the_main_thread(main: Main, tmp_path: Path) -> None:  # noqa: F811
    """Signals cannot be heeded there; all else goes on."""
    with initialize_config_module("conf", version_base="1.3"):
        cfg = compose("config", [*QUICK[2:], f"run.root={tmp_path}/runs"])
    config = resolve(cfg)
    thread = threading.Thread(
        target=make_one, args=[Job(config, place(config), tmp_path / "note.json")]
    )
    thread.start()
    thread.join()
    assert json.loads((place(config).path / "summary.json").read_text())["status"] == "done"
    assert (tmp_path / "note.json").read_text() == ""


def test_a_refused_setting_of_a_sweep_is_named_once(main: Main) -> None:  # noqa: F811
    said = main(*QUICK, "algorithm.outer_lr=-1,-2")
    assert said.code == 2
    assert said.err.startswith("bench: algorithm.outer_lr=-1: input should be greater than 0\n")


def test_a_sweep_of_methods_takes_settings_that_the_default_method_has_not(
    main: Main,  # noqa: F811
    tmp_path: Path,
) -> None:
    """bome, the default, has no K; the runs get all overrides, and multirun.yaml has them."""
    few = [word for word in QUICK if not word.startswith("task=")]
    given = ["task=toy_coreset", "algorithm=aid_cg,aid_fp", "algorithm.K=3"]
    assert main(*few, *given).code == 0
    runs = sorted((tmp_path / "runs" / "toy_coreset").glob("*/*/config.yaml"))
    configs = [OmegaConf.load(run) for run in runs]
    assert [run.parent.parent.name for run in runs] == ["aid_cg", "aid_fp"]
    assert [cfg.algorithm.K for cfg in configs] == [3, 3]
    (kept,) = (tmp_path / "runs" / ".sweeps").glob("*/multirun.yaml")
    assert set(given) < set(OmegaConf.load(kept).hydra.overrides.task)


def test_only_the_methods_that_lack_a_setting_are_refused(
    main: Main,  # noqa: F811
    tmp_path: Path,
) -> None:
    said = main(*QUICK, "task=toy_coreset", "algorithm=itd,bome", "algorithm.eta=0.5,0.9")
    assert said.code == 1
    lacks = "algorithm.eta=0.5: no such setting; there is T, batch, "
    assert said.err.startswith(f"bench: algorithm=itd algorithm.eta=0.5: {lacks}")
    assert statuses(tmp_path) == ["refused", "refused", "done", "done"]
    assert told(tmp_path)[0][1] is not None
    said = main(*QUICK, "task=toy_coreset", "algorithm=itd,bome", "algorithm.outr.x=1")
    assert said.code == 2
    assert said.err.count("algorithm.outr.x=1: no such setting; did you mean outer?") == 2
    said = main(*QUICK, "task=toy_coreset", "algorithm=itd,bome", "run.evry=1")
    assert said.code == 2
    assert said.err.startswith("bench: run.evry=1: no such setting; did you mean every?")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            "hydra.sweeper.n_trials=3",
            "hydra/sweeper=bench has no settings; write hydra/sweeper=optuna for this one",
        ),
        (
            "hydra.launcher.partition=gpu",
            "hydra/launcher=local has workers; write hydra/launcher=slurm for this one",
        ),
        (
            "hydra.launcher.workers=2 hydra/launcher=here",
            "hydra/launcher=here has no settings; write hydra/launcher=joblib or local for this "
            "one",
        ),
        (
            "hydra.launcher.wrokers=2",
            "no such setting; did you mean workers? hydra/launcher=local has workers",
        ),
        (
            "hydra.sweeper.ntrials=3 hydra/sweeper=optuna",
            "no such setting; did you mean n_trials? hydra/sweeper=optuna has direction, metric, "
            "n_jobs, n_trials, params, pruner, sampler, seed, seeds",
        ),
        (
            "hydra.sweeper.ntrials=3",
            "no such setting; did you mean n_trials? hydra/sweeper=bench has no settings",
        ),
    ],
)
def test_a_setting_that_the_launcher_or_sweeper_lacks_is_told_its_place(
    words: str,
    expected: str,
    main: Main,  # noqa: F811
) -> None:
    said = main("-m", "task=toy_minimax", "seed=0,1", *words.split())
    assert (said.code, said.out) == (2, "")
    assert said.err == f"bench: {words.split()[0]}: {expected}\n"


def test_a_setting_within_one_of_the_launcher_is_explained_by_hydra(main: Main) -> None:  # noqa: F811
    said = main("-m", "hydra/launcher=slurm", "hydra.launcher.options.account=ABC")
    assert said.code == 2
    assert said.err.endswith("use +hydra.launcher.options.account=ABC\n")


def test_methods_at_one_cost(main: Main, tmp_path: Path) -> None:  # noqa: F811
    """Each ends at its first step behind which there are so many samples; a second call makes
    nothing, and a budget makes another name."""
    few = [word for word in QUICK if not word.startswith(("task=", "run.steps="))]
    given = [*few, "task=quadratic", "algorithm=itd,stocbio", "run.steps=1000", "run.samples=9000"]
    assert main(*given).code == 0
    ends = {}
    for file in (tmp_path / "runs" / "quadratic").glob("*/*/summary.json"):
        last = json.loads(file.read_text())["last"]
        samples = sum(value for key, value in last.items() if key.startswith("samples/"))
        assert samples - samples / last["step"] < 9000 <= samples  # each step costs the same
        ends[file.parent.parent.name] = last["step"]
    assert ends["itd"] != ends["stocbio"]
    assert main(*given).code == 0
    assert statuses(tmp_path) == ["skipped", "skipped"]
    assert main(*given[:-1], "run.samples=1").code == 0
    assert statuses(tmp_path) == ["done", "done"]


def test_a_sweep_of_experiments_has_its_folder_beside_its_runs(
    main: Main,  # noqa: F811
    tmp_path: Path,
) -> None:
    """Of all settings only the root is the sweep's own; the files choose groups."""
    names = ("toy_minimax_code_bome", "toy_minimax_code_penalty")
    root = tmp_path / "own"
    given = ("hydra/launcher=here", f"experiment={','.join(names)}", f"run.root={root}")
    assert main("-m", *given, "run.steps=2", "run.every=2", "algorithm.T=3").code == 0
    assert {path.name for path in root.iterdir()} == {".sweeps", "toy_minimax"}
    assert len(list(root.glob("toy_minimax/*/*/summary.json"))) == 2
    assert not (tmp_path / "runs").exists()


def test_a_forced_run_that_died_is_lost_though_an_older_one_is_done(
    main: Main,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither the closing line nor the exit code takes the older run for it."""
    assert main(*QUICK).code == 0

    def die(job: Job) -> None:
        """In place of making a job: its process is killed before its folder has a word of it."""
        job.note.write_text("")

    monkeypatch.setattr(launchers, "make_job", die)
    said = main(*QUICK, "run.force=true")
    assert said.code == 1
    assert "1 lost" in said.out
    assert "done" not in said.out


def test_what_is_to_start_again_does_so_once(tmp_path: Path) -> None:
    """A requeued job does all of its runs again: those that it has begun go on."""
    with initialize_config_module("conf", version_base="1.3"):
        cfg = compose("config", [*QUICK[2:], f"run.root={tmp_path}/runs", "run.force=true"])
    config = resolve(cfg)
    summary = place(config).path / "summary.json"

    def job() -> Job:
        (tmp_path / "multirun.yaml").touch()
        since = (tmp_path / "multirun.yaml").stat().st_mtime_ns
        return Job(config, place(config), tmp_path / "note.json", since=since)

    make_job(job())
    first = summary.stat().st_mtime_ns
    requeued = job()  # whose note is there: it was begun, and killed before anything else
    make_job(requeued)
    second = summary.stat().st_mtime_ns
    assert second > first
    make_job(requeued)
    assert summary.stat().st_mtime_ns == second
