"""`hydra/sweeper=optuna`: its space, what it finds, that it goes on after a kill, its refusals."""

import errno
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from algorithms.bilevel.aid import aid_cg
from bench.core.loop import run
from bench.core.settings import BadSetting
from bench.core.task import Context
from bench.numerics.descent import descent
from bench.runs import checkpoint, exit_codes, launch, lock, opening, stop
from bench.runs.files import read_json, write_whole
from bench.runs.folder import RunFolder
from bench.sweeps import launchers, pruning, search, sweep, tuning
from bench.sweeps.jobs import Job, make_job
from bench.sweeps.space import Choice, Interval, Range, Space, parser, read_space
from bench.sweeps.workers import make_with_workers
from tasks.quadratic import quadratic
from tests.conftest import ROOT
from tests.test_hostile import Main, main  # noqa: F401  (a fixture)

optuna = pytest.importorskip("optuna")
parse = parser(None)


def space(*overrides: str, params: Any = None) -> Space:
    return read_space([parse(text) for text in overrides], params, parse)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("interval(1e-3,1)", Interval(0.001, 1.0, log=False, whole=False)),
        ("tag(log,interval(1e-3,1))", Interval(0.001, 1.0, log=True, whole=False)),
        ("int(interval(1,9))", Interval(1, 9, log=False, whole=True)),
        ("tag(log,int(interval(1,9)))", Interval(1, 9, log=True, whole=True)),
        ("choice(1,b,b)", Choice(("1", "b"))),
        ("1,b", Choice(("1", "b"))),
        ("range(1,6,2)", Range(("1", "3", "5"))),
        ("range(0,1,.5)", Range(("0.0", "0.5"))),
    ],
)
def test_a_space_in_hydras_words(text: str, part: Any) -> None:
    found = space(f"a.b={text}", "task=t")
    assert found == Space({"a.b": part}, ("task=t",))
    assert space(params={"a.b": text, "task": "t"}) == found
    assert space(params={"a": {"b": text}, "task": "t"}) == found
    box = part.distribution()
    for k in range(5):
        sampler = optuna.samplers.RandomSampler(k)
        value = optuna.create_study(sampler=sampler).ask({"a.b": box}).params["a.b"]
        written = part.text(value)
        if isinstance(part, Interval):
            assert part.low <= float(written) <= part.high
            assert len(written) < 12
        else:
            assert written in part.texts


def test_the_command_line_wins_over_params() -> None:
    params = {"a": "interval(0,1)", "b": "choice(1,2)"}
    found = space("a=3", "b=choice(4,5)", params=params)
    assert found == Space({"b": Choice(("4", "5"))}, ("a=3",))
    assert found.overrides({"b": "5"}) == ["a=3", "b=5"]


def test_corners_have_every_choice_and_every_end() -> None:
    found = space("a=choice(x,y,z)", "b=interval(0,1)")
    assert list(found.corners()) == [
        {"a": "x", "b": "0.0"}, {"a": "y", "b": "0.31831"}, {"a": "z", "b": "1.0"},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("overrides", "params", "said"),
    [
        (["a=1"], None, "there is nothing to search; write for example"),
        (["a=tag(foo,interval(0,1))"], None, "a=tag(foo,interval(0,1)): the only tag is log"),
        (["a=tag(log,interval(0,1))"], None, "for numbers above 0"),
        (["a=interval(1,0)"], None, "finite numbers a < b"),
        (["a=interval(0,inf)"], None, "finite numbers a < b"),
        (["a=tag(log,choice(1,2))"], None, "a tag is for interval(a, b); there is interval"),
        (["a=shuffle(range(3))"], None, "an order is of no use"),
        (["a=range(3,1)"], None, "the space is empty"),
        (["seed=0,1"], None, "seed=0,1: the seed is not searched; write hydra.sweeper.seeds=3"),
        ([], {"a": "uniform(0,1)"}, "hydra.sweeper.params.a=uniform(0,1): no such space; there is"),
        ([], ["a"], "hydra.sweeper.params=['a']: write settings and their spaces"),
    ],
)
def test_a_space_that_is_not_known_is_refused(overrides: list[str], params: Any, said: str) -> None:
    with pytest.raises(BadSetting) as told:
        space(*overrides, params=params)
    assert said in str(told.value)


def test_a_pruner_needs_runs_that_end_by_their_steps(main: Main) -> None:  # noqa: F811
    command = (*SEARCH, "run.samples=9", "algorithm.outer_lr=interval(0.01,0.1)")
    said = main(*command, "hydra.sweeper.n_trials=2", "hydra.sweeper.pruner=median")
    assert said.code == 2
    assert (
        "hydra.sweeper.pruner=median: looks at shares of run.steps, before which run.sa" in said.err
    )


QUADRATIC = (
    "task=quadratic", "algorithm=aid_cg", "algorithm.inner_lr=1.0", "algorithm.T=40",
    "run.threads=1", "run.steps=20",
)  # fmt: skip
SEARCH = ("-m", "hydra/sweeper=optuna", "hydra/launcher=here", *QUADRATIC)
STEP = "algorithm.outer_lr=tag(log,interval(0.05,1))"


def best_step() -> float:
    """The step with which 20 steps of AID-CG lead to the smallest hypergradient."""
    task = quadratic(Context(dtype=torch.float32))
    found = []
    for lr in np.linspace(0.28, 0.34, 25):
        rows: list[dict[str, Any]] = []
        method = aid_cg(descent(), outer_lr=float(lr), inner_lr=1.0, T=40)
        run(task, method, seed=0, steps=20, every=20, on_row=rows.append, now=time.perf_counter)
        found.append((rows[-1]["hypergradient_norm"], float(lr)))
    return min(found)[1]


def folder(root: Path) -> Path:
    (found,) = (root / ".sweeps").iterdir()
    return found


def ends(root: Path) -> dict[str, str]:
    """What became of each run of the only search."""
    return {r["words"]: r["status"] for r in read_json(folder(root) / "sweep.summary.json")["runs"]}


def test_it_finds_the_best_step_of_the_quadratic(main: Main, tmp_path: Path) -> None:  # noqa: F811
    said = main(*SEARCH, "run.every=20", STEP, "hydra.sweeper.n_trials=30")
    assert said.code == 0, said.err
    best = float(said.out.splitlines()[-1].rpartition("=")[2])
    assert best == pytest.approx(best_step(), rel=0.05)
    assert "30 trials: 30 done" in said.out
    assert f"reproduce compare {folder(tmp_path / 'runs')}" in said.out
    again = main(*SEARCH, "run.every=20", STEP, "hydra.sweeper.n_trials=30")
    assert again.out.splitlines()[-1] == said.out.splitlines()[-1]
    assert set(ends(tmp_path / "runs").values()) == {"skipped"}


def test_it_goes_on_after_a_kill_as_if_nothing_had_been(
    main: Main,  # noqa: F811
    tmp_path: Path,
) -> None:
    """Killed in the middle of a trial, with a last line of the journal cut short."""
    step = "algorithm.outer_lr=tag(log,interval(0.01,0.1))"
    command = (*SEARCH, "run.every=20", step, "hydra.sweeper.n_trials=8", "run.steps=200")
    killed = tmp_path / "runs"
    environment = os.environ | {"BENCH_RUNS": str(killed)}
    process = subprocess.Popen(
        [sys.executable, "-m", "bench", *command], env=environment, cwd=ROOT,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    until = time.monotonic() + 120
    while len(list(killed.rglob("summary.json"))) < 3 and time.monotonic() < until:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    made = {file: file.stat().st_mtime_ns for file in killed.rglob("summary.json")}
    assert 3 <= len(made) < 8
    journal = folder(killed) / "optuna.journal"
    with journal.open("ab") as file:
        file.write(b'{"op_code":5,"wor')
    said = main(*command)
    assert said.code == 0, said.err
    assert "8 trials: 8 done" in said.out
    assert {file: file.stat().st_mtime_ns for file in made} == made
    names = {file.parent.name for file in killed.rglob("summary.json")}
    assert len(names) == 8
    killed.rename(tmp_path / "killed")
    main(*command)
    assert {file.parent.name for file in killed.rglob("summary.json")} == names


def lines_of(journal: list[bytes], number: int) -> dict[str, int]:
    """The kinds of lines that optuna's journal has of a trial, each with the last one's number."""
    kinds = {4: "trial", 5: "value", 6: "end", 7: "row", 9: "rung"}
    found, created = {}, -1
    for k, line in enumerate(map(json.loads, journal)):
        kind = kinds.get(line["op_code"], "")
        created += kind == "trial"
        if (created if kind == "trial" else line.get("trial_id")) == number:
            found[kind] = k
    return found


def trials_of(root: Path) -> list[Any]:
    """What optuna knows of the trials of the only search."""
    storage = pruning.storage_of(folder(root) / "optuna.journal")
    study = optuna.load_study(study_name=pruning.STUDY, storage=storage)
    return [
        (t.state, t.params, t.values, t.intermediate_values, t.system_attrs) for t in study.trials
    ]


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder where the runs of a whole search are kept, by its pruner, once it was made."""
    return tmp_path_factory.mktemp("searched")


@pytest.mark.parametrize(
    ("pruner", "number", "kind"),
    [
        ("none", 2, "trial"),
        ("none", 2, "value"),
        ("halving", 2, "trial"),
        ("halving", 2, "row"),
        ("halving", 2, "rung"),
        ("hyperband", 2, "trial"),
        ("hyperband", 3, "value"),
        ("hyperband", 3, "row"),
        ("hyperband", 3, "rung"),
        ("hyperband", 4, "rung"),
    ],
)
def test_cut_at_any_line_of_the_journal_it_makes_the_same_trials(
    pruner: str,
    number: int,
    kind: str,
    main: Main,  # noqa: F811
    searched: Path,
    tmp_path: Path,
) -> None:
    """As a kill leaves it: no line after the given trial's last one of a kind; no later run."""
    command = (
        *SEARCH, "run.every=2", "algorithm.outer_lr=interval(0.01,0.1)", "algorithm.T=20,30,40",
        "hydra.sweeper.n_trials=12", f"hydra.sweeper.pruner={pruner}",
    )  # fmt: skip
    runs, whole = tmp_path / "runs", searched / pruner
    if not whole.exists():
        assert main(*command).code == 0
        shutil.copytree(runs, whole)
    else:
        shutil.copytree(whole, runs)
    found, known = read_json(folder(runs) / "sweep.summary.json")["runs"], trials_of(runs)
    if kind == "rung":  # the pruner has decided, in one case each
        assert found[number]["status"] == {2: "pruned", 3: "pruned", 4: "done"}[number]
    file = folder(runs) / "optuna.journal"
    journal = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(journal[: lines_of(journal, number)[kind] + 1]))
    for later in found[number + 1 :]:
        shutil.rmtree(runs / later["name"])
    again = main(*command)
    assert again.code == 0, again.err
    ended = {"done": "done", "skipped": "done", "pruned": "pruned"}
    there = read_json(folder(runs) / "sweep.summary.json")["runs"]
    assert [(r["name"], ended[r["status"]]) for r in there] == [
        (r["name"], r["status"]) for r in found
    ]
    assert trials_of(runs) == known


@pytest.mark.parametrize("status", ["failed", "lost"])
@pytest.mark.parametrize("at_once", [1, 2])
def test_a_trial_that_the_machine_ended_goes_on(
    status: str,
    at_once: int,
    main: Main,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a full disk at its end, or by a kill, as for lack of memory.

    One after the other, the next trials wait for a disk, but not for what may be killed again.
    """
    command = (
        *SEARCH, "run.every=20", "algorithm.outer_lr=interval(0.01,0.1)",
        "hydra.sweeper.n_trials=5", f"hydra.sweeper.n_jobs={at_once}",
    )  # fmt: skip
    runs, begun = tmp_path / "runs", list[Path]()
    assert main(*command).code == 0
    known = trials_of(runs)
    runs.rename(tmp_path / "whole")

    def full(path: Path, content: str | bytes) -> None:
        begun.append(path)
        if len(begun) == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_whole(path, content)

    def killed(job: Job) -> None:
        begun.append(job.note)
        if len(begun) == 3:
            job.note.write_text("")
        else:
            make_job(job)

    with monkeypatch.context() as patch:
        if status == "failed":
            patch.setattr(checkpoint, "write_whole", full)
        else:
            patch.setattr(launchers, "make_job", killed)
        said = main(*command)
    assert said.code == exit_codes.FAILED
    assert said.err.endswith("; the same command goes on with it\n")
    after = 0 if (status, at_once) == ("failed", 1) else 2
    assert [*ends(runs).values()] == ["done"] * 2 + [status] + ["done"] * after
    assert main(*command).code == 0
    assert trials_of(runs) == known


def test_trials_that_failed_are_tried_again_if_asked(
    main: Main,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As after an error in a method, which is mended then."""
    command = (*SEARCH, "run.every=20", STEP, "hydra.sweeper.n_trials=3")
    assert main(*command).code == 0
    known = trials_of(tmp_path / "runs")
    (tmp_path / "runs").rename(tmp_path / "whole")

    def breaks(*given: Any) -> int:
        raise RuntimeError("an error of the method")

    with monkeypatch.context() as patch:
        patch.setattr(launch, "begin", breaks)
        first = main(*command)
    assert first.code == exit_codes.FAILED
    how = "run.retry_failed=true tries failed ones again"
    assert first.out.splitlines()[3:] == ["3 trials: 3 failed", how]  # each has a line above
    assert [*ends(tmp_path / "runs").values()] == ["failed"] * 3
    known_to_fail = main(*command)
    assert known_to_fail.code == exit_codes.FAILED
    why = "3 failed: RuntimeError: an error of the method"
    assert known_to_fail.out.splitlines() == ["3 trials: 3 failed", why, how]
    again = main(*command, "run.retry_failed=true")
    assert again.code == 0, again.err
    assert [*ends(tmp_path / "runs").values()] == ["done"] * 3
    assert len(trials_of(tmp_path / "runs")) == len(known) == 3
    assert main(*command).code == 0


def test_a_search_says_that_code_behind_its_values_has_changed(
    main: Main,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command = (*SEARCH, "run.every=20", STEP)
    assert "changed" not in main(*command, "hydra.sweeper.n_trials=2").out
    monkeypatch.setattr(launch, "changed_files", lambda *_: ["my_lab/my_method.py"])
    said = main(*command, "hydra.sweeper.n_trials=3")
    assert said.code == 0, said.err
    assert said.out.splitlines()[1:3] == [
        "3 trials: 3 done",
        "2 skipped: this run is finished, but its code has changed since: my_lab/my_method.py; "
        "run.force=true makes it anew",
    ]


def test_a_search_whose_runs_are_gone_says_what_starts_it_again(
    main: Main,  # noqa: F811
    tmp_path: Path,
) -> None:
    command = (*SEARCH, "run.every=20", STEP, "hydra.sweeper.n_trials=1")
    assert "run.force" not in main(*command).out
    shutil.rmtree(tmp_path / "runs" / "quadratic")
    said = main(*command)
    assert said.code == exit_codes.FAILED
    assert said.out.splitlines()[:2] == [
        "1 trials: 1 missing",
        "not all runs of the search are there any more; run.force=true starts the search again",
    ]
    assert main(*command, "run.force=true").code == 0
    assert [*ends(tmp_path / "runs").values()] == ["done"]


def test_what_a_search_remarks_at_its_end(tmp_path: Path) -> None:
    """Nothing of what its trials' lines have said, or of ends that are what a search is for."""

    def trial(status: str, was_over: bool) -> search.Trial:
        run = sweep.SweepRun(0, "", {}, RunFolder(tmp_path, "t/a/run"))
        end = sweep.Outcome(0, "", run.name, status, "why")
        return search.Trial(0, 0, {}, [run], [end], was_over)

    def said(*statuses: str, was_over: bool = True) -> list[str]:
        return search.remarks([trial(status, was_over) for status in statuses])

    assert said("diverged", "pruned") == []
    assert said("skipped", "busy", "skipped") == ["2 skipped: why", "1 busy: why"]
    assert said("busy", "refused", "lost", was_over=False) == []
    assert said("skipped", was_over=False) == ["1 skipped: why"]
    assert said("failed") == ["1 failed: why"]  # by the machine: the same command goes on


def test_code_that_ends_the_process_is_an_error_before_a_search_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may be code of the task, which is built to see what it measures."""
    monkeypatch.setattr(opening, "open_run", lambda *_: sys.exit(0))
    monkeypatch.setattr(tuning, "place", lambda config: None)
    with pytest.raises(RuntimeError, match=r"^code of the run raised SystemExit: 0$"):
        tuning.aim_of({}, {"run": {}})


def test_who_goes_on_later_is_said_by_the_folder(tmp_path: Path) -> None:
    """A run that has not ended and did not fail; refused, it has to have a checkpoint."""

    def later(name: str, *statuses: str) -> list[bool]:
        run = sweep.SweepRun(0, "", {}, RunFolder(tmp_path, f"t/a/{name}"))
        ends = (sweep.Outcome(0, "", run.name, status, None) for status in statuses)
        return [search.goes_on_later(run, end) for end in ends]

    every = ("failed", "lost", "refused", "preempted", "pruned", "done")
    assert later("missing", *every) == [True, True, False, True, False, False]
    begun = RunFolder(tmp_path, "t/a/begun")
    begun.path.mkdir(parents=True)
    begun.describe({"device": "cpu"})
    assert later("begun", *every) == [True, True, False, True, False, False]
    begun.checkpoint.touch()
    assert later("begun", *every) == [True, True, True, True, False, False]
    begun.leave("preempted", "why")
    assert later("begun", *every) == [True, True, True, True, False, False]
    begun.leave("failed", "why")
    assert later("begun", *every[:3]) == [False, False, False]
    refused = sweep.Outcome(0, "", None, "refused", "why")
    assert not search.goes_on_later(sweep.SweepRun(0, "", refused="why"), refused)


def test_the_order_of_a_command_line_is_of_no_account(
    main: Main,  # noqa: F811
    tmp_path: Path,
) -> None:
    """Both orders are the same search, and so they have the same trials."""
    fixed = [word for word in SEARCH if not word.startswith("algorithm.")]
    space, found = ("algorithm.inner_lr=interval(0.1,1)", STEP), []
    for own in (space, space[::-1]):
        assert main(*fixed, "run.every=20", *own, "hydra.sweeper.n_trials=3").code == 0
        found.append((folder(tmp_path / "runs").name, trials_of(tmp_path / "runs")))
        shutil.rmtree(tmp_path / "runs")
    assert found[0] == found[1]


def test_a_journal_that_someone_has_open_is_not_written_anew(
    main: Main,  # noqa: F811
    tmp_path: Path,
) -> None:
    """A job of SLURM may still make a run of a search that was killed."""
    command = (
        *SEARCH, "run.every=2", "algorithm.outer_lr=interval(0.01,0.1)",
        "hydra.sweeper.n_trials=3", "hydra.sweeper.pruner=hyperband",
    )  # fmt: skip
    assert main(*command).code == 0
    runs = tmp_path / "runs"
    file = folder(runs) / "optuna.journal"
    journal = file.read_bytes().splitlines(keepends=True)
    cut = b"".join(journal[: lines_of(journal, 2)["row"] + 1])
    file.write_bytes(cut)
    last = runs / read_json(folder(runs) / "sweep.summary.json")["runs"][2]["name"]
    (last / "summary.json").unlink()
    with lock.hold(last):
        assert main(*command).code == exit_codes.PUT_OFF
    assert file.read_bytes().startswith(cut)
    assert main(*command).code == 0
    assert not file.read_bytes().startswith(cut)


def by_step(words: str) -> float:
    return float(words.rpartition("=")[2])


def test_worse_trials_stop_early_and_their_runs_may_go_on(
    main: Main,  # noqa: F811
    tmp_path: Path,
) -> None:
    """By rows of the run alone; a trial that was stopped is a run that was stopped."""
    command = (
        *SEARCH, "run.every=2", "algorithm.outer_lr=interval(0.01,0.1)",
        "hydra.sweeper.n_trials=6", "hydra.sweeper.pruner=halving", "hydra.sweeper.sampler=random",
    )  # fmt: skip
    said = main(*command)
    assert said.code == 0, said.err
    found = ends(tmp_path / "runs")
    assert set(found.values()) == {"done", "pruned"}
    stopped = [words for words, status in found.items() if status == "pruned"]
    best = said.out.splitlines()[-1].split()[-1]  # larger steps are better here
    assert best == max(found, key=by_step)
    assert "pruned at step" in said.out
    assert said.err == ""
    alone = main(*QUADRATIC, "run.every=2", stopped[0])
    assert alone.code == 0, alone.err


def test_a_trial_of_several_seeds_and_a_step_that_diverges(
    main: Main,  # noqa: F811
    tmp_path: Path,
) -> None:
    command = (
        *SEARCH, "run.every=20", "algorithm.outer_lr=choice(0.1,1e30)", "hydra.sweeper.n_trials=5",
        "hydra.sweeper.seeds=2", "hydra.sweeper.n_jobs=2", "hydra.sweeper.metric=objective",
        "seed=7",
    )  # fmt: skip
    said = main(*command)
    assert said.code == 0, said.err
    found = ends(tmp_path / "runs")
    assert found["algorithm.outer_lr=1e+30 seed=7"] == "diverged"
    assert {key for key in found if "=0.1 " in key} == {
        "algorithm.outer_lr=0.1 seed=7", "algorithm.outer_lr=0.1 seed=8",
    }  # fmt: skip
    assert "quadratic: objective, lower is better, best first; mean ± sd over seeds" in said.out
    again = main(*command)
    assert again.code == 0, again.err
    assert ends(tmp_path / "runs") == found | {
        key: "skipped" for key, end in found.items() if end == "done"
    }
    more = main(*command[:-1], "seed=7", "hydra.sweeper.n_trials=6")
    assert more.code == 0, more.err
    assert "trial 6 of 6: algorithm" in more.out
    assert "trial 5 of" not in more.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("algorithm.outer_lr=uniform(0,1)",), "uniform"),
        (("algorithm.outer_lr=tag(foo,interval(0,1))",), "the only tag is log"),
        (("algorithm.nothing=interval(0,1)",), "algorithm.nothing"),
        (("algorithm.T=interval(1,5)",), "algorithm.T=2.27324"),
        (("algorithm.outer_lr=interval(-1,1)",), "algorithm.outer_lr=-1.0"),
        (("algorithm=choice(aid_cg,nothing)",), "algorithm=nothing"),
        ((STEP, "hydra.sweeper.metric=nothing"), "hydra.sweeper.metric=nothing: no such setting"),
        ((STEP, "hydra.sweeper.n_trials=0"), "hydra.sweeper.n_trials=0"),
        ((STEP, "hydra.sweeper.sampler=x"), "hydra.sweeper.sampler=x"),
        ((STEP, "+hydra.sweeper.nothing=1"), "hydra.sweeper.nothing=1: a configuration cannot"),
        ((STEP, "vectorize=[seed]"), "vectorize=['seed']: a search makes one run"),
        (
            ("task=toy_coreset", STEP, "hydra.sweeper.metric=theta_1"),
            "hydra.sweeper.direction: nothing says which values of theta_1",
        ),
        (
            (STEP, "+hydra.sweeper.params={x: {_target_: os.mkdir, path: x}}"),
            "hydra.sweeper.params.x._target_=os.mkdir: a configuration cannot set this",
        ),
        ((STEP, "hydra.sweeper._target_=os.mkdir"), "hydra.sweeper._target_"),
    ],
)
def test_what_is_not_known_is_refused_in_one_line(
    arguments: tuple[str, ...],
    said: str,
    main: Main,  # noqa: F811
    tmp_path: Path,
) -> None:
    told = main(*SEARCH, *arguments)
    assert (told.code, told.err.count("\n"), told.out) == (2, 1, "")
    assert said in told.err
    assert not (tmp_path / "runs").exists()


def test_an_interval_without_a_search_names_the_search(main: Main) -> None:  # noqa: F811
    told = main("-m", *QUADRATIC, STEP)
    assert told.code == 2
    assert told.err == f"bench: {STEP}: write hydra/sweeper=optuna to search an interval, or " + (
        "values with commas between them to try all\n"
    )


def test_without_optuna_it_says_how_to_get_it(
    main: Main,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    told = main(*SEARCH, STEP)
    assert told.code == 2
    assert told.err.startswith(
        "bench: hydra/sweeper=optuna: optuna is not installed; write uv sync"
    )


def test_a_space_from_a_file(main: Main, tmp_path: Path) -> None:  # noqa: F811
    """As templates of the field have it: an experiment of one's own with its sweeper."""
    own = tmp_path / "own" / "experiment"
    own.mkdir(parents=True)
    (own / "mine.yaml").write_text(
        "# @package _global_\n"
        "hydra: {sweeper: {n_trials: 2, params: {algorithm.outer_lr: 'interval(0.1, 0.2)'}}}\n"
    )
    place = f"--config-dir={tmp_path / 'own'}"
    said = main(SEARCH[0], place, *SEARCH[1:], "experiment=mine", "run.every=20")
    assert said.code == 0, said.err
    assert "2 trials: 2 done" in said.out
    alone = main("-m", place, "experiment=mine", *QUADRATIC)
    assert "cannot set this; hydra/sweeper=optuna is the one that has settings" in alone.err
    params = "+hydra.sweeper.params={algorithm.outer_lr: 'interval(0.1, 0.2)'}"
    again = main(*SEARCH, params, "run.every=20", "hydra.sweeper.n_trials=2")
    best = again.out.splitlines()[-1]
    assert best.startswith("the best again: bench ")
    # bench alone would refuse the file, as it is that of a search
    assert said.out.splitlines()[-1] == f"the best settings: {best.split()[-1]}"


def test_a_damaged_journal_is_refused_and_kept(tmp_path: Path) -> None:
    journal = tmp_path / "optuna.journal"
    journal.write_text("nothing\n{}\n")
    with pytest.raises(BadSetting, match=r"optuna\.journal is damaged"):
        pruning.storage_of(journal)
    assert journal.read_text() == "nothing\n{}\n"
    # optuna alone would first write behind such a line
    journal.write_text("xx\n")
    with pytest.raises(BadSetting, match=r"optuna\.journal is damaged"):
        pruning.storage_of(journal)
    assert journal.read_text() == "xx\n"
    journal.write_text("whole\ncut")
    pruning.mend(journal)
    assert journal.read_text() == "whole\n"
    pruning.mend(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize("opened", [pruning.mend, pruning.storage_of])
def test_a_journal_that_is_a_link_is_not_followed(
    opened: Callable[[Path], object], tmp_path: Path
) -> None:
    """Another's search may come with a link to a file of one's own; a cut line would be taken off
    it."""
    mine, journal = tmp_path / "mine", tmp_path / "optuna.journal"
    journal.symlink_to(mine)
    with pytest.raises(BadSetting, match=r"optuna\.journal is a link, which is not followed"):
        opened(journal)
    assert not mine.exists()
    mine.write_text("a line without an end")
    with pytest.raises(BadSetting, match="is a link"):
        opened(journal)
    assert mine.read_text() == "a line without an end"


def test_a_run_that_nobody_wants_stops_as_if_by_a_signal() -> None:
    with stop.watched(lambda: None):
        stop.raise_if_asked()
    with stop.watched(lambda: "the pruner"), pytest.raises(stop.Preempted) as why:
        stop.raise_if_asked()
    assert why.value.name == "the pruner"
    stop.raise_if_asked()


@pytest.mark.parametrize(
    ("watched", "there", "expected"),
    [
        ("test_accuracy", ["test_accuracy", "val2_accuracy", "val_accuracy"], "val2_accuracy"),
        ("test_accuracy", ["test_accuracy", "val_accuracy", "val2_loss"], "val_accuracy"),
        ("test_accuracy", ["test_accuracy", "test_loss"], "test_accuracy"),
        ("objective", ["objective", "val2_objective"], "objective"),
    ],
)
def test_test_data_choose_nothing_where_there_are_others(
    watched: str, there: list[str], expected: str
) -> None:
    assert tuning.metric_to_choose_by(watched, there) == expected


def test_a_search_of_which_all_diverges_has_failed() -> None:
    def code(*statuses: str) -> int:
        outcome = search.sweep.Outcome
        return search.exit_code([outcome(0, "", "", status, None) for status in statuses])

    assert code("done", "pruned", "diverged") == 0
    assert code("diverged", "diverged", "pruned") == 1
    assert code("done", "failed") == 1
    assert code("done", "preempted") == 75
    assert code("refused") == 2


def test_workers_may_stay_for_the_next_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    from bench.sweeps import workers

    class Fake:
        dismissed, job = 0, None

        def dismiss(self) -> None:
            Fake.dismissed += 1

    with workers.keep_workers():
        workers._kept[-1].append(Fake())  # type: ignore[arg-type]
        make_with_workers([], 1, lambda job: None)
        assert Fake.dismissed == 0
    assert Fake.dismissed == 1
    assert workers._kept == []


def test_a_run_that_diverged_is_the_worst_whatever_it_measured_last() -> None:
    made = object.__new__(search.Search)
    made.aim = SimpleNamespace(metric="loss", worst=math.inf)  # type: ignore[assignment]

    def run(status: str) -> Any:
        summary = {"status": status, "last": {"loss": 1.0}}
        return SimpleNamespace(folder=SimpleNamespace(summary=lambda: summary))

    assert made.value(run("done")) == 1.0
    assert made.value(run("diverged")) == math.inf


def test_searches_of_two_seeds_share_no_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    optuna = pytest.importorskip("optuna")
    seen: list[int] = []
    monkeypatch.setattr(optuna.samplers, "RandomSampler", seen.append)
    for seed in range(3):
        for number in range(50):
            search.sampler_of("random", seed, number)
    assert len(set(seen)) == len(seen) == 150


def test_an_interval_of_numbers_is_refused_for_a_count(main: Main, tmp_path: Path) -> None:  # noqa: F811
    """Before any trial, also where a third of the way lies a whole number."""
    done = main("-m", "hydra/sweeper=optuna", "task=quadratic", "algorithm.T=interval(1, 10)")
    assert done.code == 2
    assert "algorithm.T=3.86" in done.err
    assert "valid integer" in done.err
    assert not list(tmp_path.rglob("summary.json"))


def test_a_row_that_is_not_whole_yet_is_read_at_the_next_look(tmp_path: Path) -> None:
    made = RunFolder(tmp_path, "t/a/k")
    made.path.mkdir(parents=True)
    watch = pruning.Watch(tmp_path / "journal", 0, "loss", pruning.Pruning("median", 1, 9))
    first, second = b'{"step": 0, "loss": 1.0}\n', b'{"step": 2, "loss": 0.5}\n'
    made.history_file.write_bytes(first + second[:9])
    assert [row["step"] for row in watch.new_rows(made)] == [0]
    made.history_file.write_bytes(first + second)
    assert [row["step"] for row in watch.new_rows(made)] == [2]
    assert watch.new_rows(made) == []


def test_a_pruner_is_asked_once_of_a_row_and_neither_of_the_first_nor_of_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that goes on is told of by another watch, which reads its rows from the first on."""
    made = RunFolder(tmp_path, "t/a/k")
    made.path.mkdir(parents=True)
    rows = [{"step": step, "loss": 1.0} for step in (0, 2, 4, 6)]
    lines = [f"{json.dumps(row)}\n" for row in rows]
    how = pruning.Pruning("median", 1, 6)
    study = pruning.open_study(pruning.storage_of(tmp_path / "journal"), how, "minimize")
    trial = study.ask()
    asked: list[int | None] = []

    def prune(self: Any, study: Any, trial: Any) -> bool:
        asked.append(trial.last_step)
        return False

    monkeypatch.setattr(optuna.pruners.MedianPruner, "prune", prune)
    for many in (2, 4):
        made.history_file.write_text("".join(lines[:many]))
        watch = pruning.Watch(tmp_path / "journal", trial._trial_id, "loss", how)
        assert watch(made) is None
    assert asked == [2, 4]


def test_six_digits_of_a_number_lie_in_its_interval() -> None:
    """The ends have more digits than six, and lie inside of what they are rounded to."""
    part = Interval(0.12345649, 0.98765451, log=False, whole=False)
    assert part.text(0.12345649) == "0.12345649"  # .123456 lies below
    assert part.text(0.98765451) == "0.98765451"  # .987655 lies above
    assert part.text(0.5000001) == "0.5"
