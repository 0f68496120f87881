"""Inputs that mean harm, or nothing: refused in one line, nothing executed, nothing lost."""

import gzip
import json
import os
import pickle
import shutil
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import yaml
from hydra import compose, initialize_config_module
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf
from omegaconf.resolvers import oc

import bench.main
from bench.core.settings import BadSetting
from bench.core.task import Context
from bench.reproduce import cli
from bench.runs import loggers
from bench.runs.folder import RunFolder
from bench.runs.launch import perform, place, resolve
from bench.runs.opening import open_run
from bench.sweeps import launchers, slurm
from tasks.completion import _entries
from tasks.data import classes, newsgroups, tables
from tasks.data.pickles import load_plain


class Said(NamedTuple):
    code: int
    out: str
    err: str


Main = Callable[..., Said]
PASSWORD = "hunter2"  # in the environment variable SECRET
CANNOT = "a configuration cannot set this"
INTERPOLATED = "may be interpolated"
QUICK = ("task=toy_minimax", "run.steps=2", "run.every=2", "run.threads=1")


@pytest.fixture
def main(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Main]:
    """`bench` in this process, its runs in tmp_path/runs; its guard on Hydra goes with the test."""
    for guarded in ("load_configuration", "_process_config_searchpath"):
        monkeypatch.setattr(ConfigLoaderImpl, guarded, getattr(ConfigLoaderImpl, guarded))
    monkeypatch.setenv("PYTHONSAFEPATH", "1")  # as `bench` sets it
    monkeypatch.setenv("SECRET", PASSWORD)

    def call(*arguments: str) -> Said:
        monkeypatch.setenv("BENCH_RUNS", str(tmp_path / "runs"))
        monkeypatch.setattr(sys, "argv", ["bench", *arguments])
        bench.main.run_codes.clear()
        GlobalHydra.instance().clear()
        with pytest.raises(SystemExit) as end:
            bench.main.main()
        said = capsys.readouterr()
        return Said(int(end.value.code or 0), said.out, said.err)

    yield call
    OmegaConf.register_new_resolver("oc.env", oc.env, replace=True)


# what is written, and a word of the refusal; MARK is a folder that os.mkdir would make
ARGUMENTS: dict[str, tuple[tuple[str, ...], str]] = {
    "a command for an algorithm": (("algorithm._target_=os.system",), "only functions"),
    "code for a task": (("task._target_=builtins.exec",), "only functions"),
    "a process for a logger": (("logger._target_=subprocess.run",), "only functions"),
    "a folder for a part": (("algorithm.outer._target_=os.mkdir",), "only functions"),
    "a private function": (("task._target_=tasks.completion._entries",), "only functions"),
    "a module's module": (("task._target_=tasks.completion.np.loadtxt",), "only functions"),
    "an imported function": (("task._target_=tasks.completion.checked",), "only functions"),
    "what is of ours, but no task": (
        ("task._target_=bench.runs.files.write_json",),
        "only functions",
    ),
    "a callback": (
        ("+hydra.callbacks.x={_target_: os.mkdir, path: MARK}",),
        CANNOT,
    ),
    "a handler of logs": (
        ("+hydra.job_logging.handlers={x: {class: os.mkdir, path: MARK}}",),
        CANNOT,
    ),
    "a foreign sweeper": (
        ("-m", *QUICK, "hydra.sweeper._target_=os.system"),
        CANNOT,
    ),
    "a command for the sweeper": (
        ("-m", *QUICK, "+hydra.sweeper.params={x: {_target_: os.mkdir, path: MARK}}"),
        CANNOT,
    ),
    "a foreign launcher": (
        ("-m", *QUICK, "hydra.launcher._target_=os.system"),
        "only functions",
    ),
    "a path for a task": (("task=../../../../../../etc/passwd",), "etc/passwd"),
    "a path for an experiment": (("experiment=../../../../tmp/x",), "tmp/x"),
    "a file that is no data": (
        ("task=completion", "task.file=/etc/passwd"),
        "task.file=passwd",
    ),
    "a seed beyond all bounds": (("seed=99999999999999999999999999",), "seed="),
    "steps beyond all bounds": (("run.steps=18446744073709551616",), "run.steps="),
    "infinite steps": (("run.steps=1e400",), "run.steps="),
    "a size that no memory has": (
        ("task=quadratic", "algorithm=itd", "task.p=9007199254740992"),
        "too large for this machine",
    ),
    "a step of infinite size": (("algorithm.outer_lr=inf",), "finite"),
    "a NaN time": (("run.seconds=nan",), "run.seconds"),
    "a digit of another script": (("algorithm.eta=\u0661",), "algorithm.eta"),
    "a name in another script": (("task=t\u00f6y_coreset\u202e",), "in quotes"),
    "a list for a number": (("algorithm.T=[1]",), "algorithm.T"),
    "code for a number": (('algorithm.eta=\'__import__("os").mkdir("MARK")\'',), "algorithm.eta"),
    "an environment variable for a number": (("algorithm.eta=${oc.env:PATH}",), "algorithm.eta"),
    "a resolver that is not": (("algorithm.eta=${eval:1}",), "eval"),
    "a loop": (("algorithm.eta=${algorithm.eta}",), ""),
    "a root with too long a name": ((f"run.root={'x' * 5000}",), "run.root"),
    "a root of nobody": (("run.root='~nobody-of-that-name/runs'",), "run.root"),
    "another type of numbers": (("run.dtype=float16",), "run.dtype"),
    "no configuration": (("--config-name=nothing",), "--config-name=nothing: no such"),
    "a path for a configuration": (("--config-name=../../../etc/passwd",), "--config-name="),
    "a pickle": (("--experimental-rerun=MARK",), "--experimental-rerun"),
    "a pickle by a shorter name": (("--exp", "MARK"), "--experimental-rerun"),
    "a folder for hydra": (("hydra.run.dir=MARK",), "run.root"),
    "a folder for a sweep": (("-m", *QUICK, "hydra.sweep.dir=MARK"), "run.root"),
    "a folder within a sweep": (("-m", *QUICK, "hydra.sweep.subdir=MARK"), "run.root"),
    "hydra's own log files": (("hydra/job_logging=default",), "hydra.job_logging"),
    "a variable": (("+hydra.job.env_set={CC: 'touch MARK'}",), "hydra.job.env_set.CC"),
    "another place to look": (("hydra.searchpath=[pkg://antigravity]",), "hydra.searchpath"),
    "another place for help": (("--help", "hydra.searchpath=[pkg://antigravity]"), "searchpath"),
    "a log for help": (("--hydra-help", "hydra.output_subdir=MARK"), "hydra.output_subdir"),
    "a secret to look at": (("--cfg", "job", "--resolve", "seed=${oc.env:SECRET}"), INTERPOLATED),
    "secrets of a sweep": (("-m", *QUICK, "seed=${oc.env:SECRET},1"), INTERPOLATED),
    "a line for SLURM": (
        ("-m", *QUICK, "hydra/launcher=slurm", 'hydra.launcher.partition="x\ntouch MARK"'),
        "hydra.launcher.partition",
    ),
    "a compiler for SLURM": (
        ("-m", *QUICK, "hydra/launcher=slurm", "+hydra.launcher.options.export='CC=MARK'"),
        "hydra.launcher.options",
    ),
    "a compiler for joblib": (
        ("-m", *QUICK, "hydra/launcher=joblib", "+hydra.launcher.env={CC: MARK}"),
        "hydra.launcher.env",
    ),
    "a package of one's own": (("task._target_=ridge_bench.problems.ridge",), "not installed"),
    "packages of one's own": (("seed=${oc.env:BENCH_PACKAGES}",), INTERPOLATED),
    "no shell to complete": (("--shell-completion",), "--shell-completion: write"),
    "a shell that is none": (("-sc", "install=MARK"), "--shell-completion: write"),
    "nothing to complete": (("--shell", "query=bash"), "--shell-completion: write"),
    "a file for SLURM": (
        ("-m", *QUICK, "hydra/launcher=slurm", "+hydra.launcher.options.output=MARK"),
        "hydra.launcher.options",
    ),
    "a package": (("task._target_=bench",), "only functions"),
    "no table of settings": (("algorithm=null",), "algorithm"),
    "two levels where there is one": (("task=trees", "algorithm=stocbio"), "lower level"),
    "the lower level alone where there is one": (("task=trees", "algorithm=gda"), "lower level"),
    "vertices of a set that has none": (
        ("task=quadratic", "algorithm=fw"),
        "write task=completion, task=multitask or task=trees",
    ),
    "a projection onto a set that has none": (
        ("task=trees", "algorithm=projected_gradient"),
        "this method projects, and the set of this task has no projection; write algorithm=fw",
    ),
    "a projection onto it after a gradient of all the data": (
        ("task=trees", "algorithm=svrg", "algorithm.batch=8"),
        "has no projection",
    ),
    "exact prox steps on it": (
        ("task=trees", "algorithm=ncgs", "algorithm.prox=exact"),
        "algorithm.prox=condg for NCGS",
    ),
    "exact prox steps on it, in batches": (
        ("task=trees", "algorithm=ncgs_vr", "algorithm.prox=exact", "algorithm.batch=8"),
        "has no projection",
    ),
    "a regulariser that begins at infinity": (
        ("task=toy_coreset", "algorithm=bvfsm", "algorithm.rate=1"),
        "algorithm.rate=1.0: ",
    ),
    "a barrier that begins at its pole": (
        ("task=toy_coreset", "algorithm=bvfsm", "algorithm.eps=0", "algorithm.l2=0"),
        "algorithm.eps=0: ",
    ),
    "blocks of what cannot be cut": (
        ("task=online_newsgroups", "task.source=digits", "algorithm=saba", "algorithm.blocks=2"),
        "cannot be cut",
    ),
    "more blocks than rows": (
        ("task=sampled_quadratic", "algorithm=mseba", "algorithm.blocks=9000"),
        "rows to cut; write at most",
    ),
    "a part of a step's episodes": (
        ("task=few_shot", "task.data=patterns", "algorithm=ttsa"),
        "write algorithm.batch=null",
    ),
    "a part of the episodes, after a step with all": (
        ("task=few_shot", "task.data=patterns", "algorithm=srba", "algorithm.batch=7"),
        "write algorithm.batch=null",
    ),
    "more blocks than rows, at a single level": (
        ("task=trees", "algorithm=sagafw", "algorithm.blocks=9000"),
        "the upper level has",
    ),
    "more blocks than rows, by the setting of the upper level": (
        ("task=sampled_quadratic", "algorithm=saba", "algorithm.upper_blocks=900000"),
        "algorithm.upper_blocks",
    ),
    "a group for a number": (("run.steps={a: 1}",), "run.steps"),
}


@pytest.mark.parametrize("case", ARGUMENTS)
def test_an_argument_is_refused_in_one_line_and_nothing_runs(
    case: str, main: Main, tmp_path: Path
) -> None:
    arguments, word = ARGUMENTS[case]
    mark = tmp_path / "executed"
    said = main(*(argument.replace("MARK", str(mark)) for argument in arguments))
    assert said.code == 2, said
    assert len(said.err.splitlines()) == 1, said.err
    assert word in said.err
    assert said.out == ""
    assert list(tmp_path.iterdir()) == []


# what a file of a configuration asks of Hydra -> a word of the refusal
HYDRA: dict[str, str] = {
    '{job: {env_set: {GIT_CONFIG_COUNT: "1", GIT_CONFIG_KEY_0: core.fsmonitor, '
    'GIT_CONFIG_VALUE_0: "touch MARK #"}}}': "hydra.job.env_set.GIT_CONFIG_COUNT",
    '{job: {env_set: {CC: "touch MARK #"}}}': "hydra.job.env_set.CC",
    '{job: {env_set: {CXX: "touch MARK #"}}}': "hydra.job.env_set.CXX",
    '{job: {env_set: {WANDB_BASE_URL: "http://localhost:1"}}}': "hydra.job.env_set.WANDB_BASE_URL",
    "{job: {env_set: {LD_PRELOAD: MARK}}}": "hydra.job.env_set.LD_PRELOAD",
    "{job: {env_set: {PATH: MARK}}}": "hydra.job.env_set.PATH",
    "{job: {env_set: {HYDRA_FULL_ERROR: '0'}}}": "hydra.job.env_set.HYDRA_FULL_ERROR",
    "{job: {env_copy: [SECRET]}}": "hydra.job.env_copy.0=SECRET",
    "{job: {env_copy: [NO_SUCH_VARIABLE]}}": "NO_SUCH_VARIABLE",
    "{job: {chdir: true}}": "hydra.job.chdir=True",
    "{job: {num: 3}}": "hydra.job.num=3",
    "{job: {config: {override_dirname: {kv_sep: /}}}}": "hydra.job.config.override_dirname.kv_sep",
    "{hydra_logging: {root: {handlers: [h]}, handlers: {h: {class: logging.FileHandler, filename: "
    "MARK, mode: w}}}}": "hydra.hydra_logging.handlers.h.class",
    "{job_logging: {root: {handlers: [h]}, handlers: {h: {class: logging.FileHandler, filename: "
    "MARK, mode: w}}}}": "hydra.job_logging.handlers.h.class",
    "{job_logging: {root: {level: INFO}}}": "hydra.job_logging.root.level",
    "{job_logging: {disable_existing_loggers: true}}": "disable_existing_loggers",
    "{hydra_logging: {formatters: {f: {(): os.mkdir, path: MARK}}}}": "hydra_logging.formatters.f",
    "{hydra_logging: {filters: {f: {(): os.mkdir, name: MARK}}}}": "hydra_logging.filters.f",
    "{run: {dir: MARK}}": "run.root",
    "{run: {dir: '${oc.env:SECRET}'}}": "run.root",
    "{sweep: {dir: MARK}}": "run.root",
    "{sweep: {subdir: MARK}}": "run.root",
    "{output_subdir: MARK}": "run.root",
    "{callbacks: {x: {_target_: hydra.experimental.callbacks.LogJobReturnCallback}}}": "callbacks",
    "{callbacks: {x: {_target_: hydra.experimental.pickle_job_info_callback."
    "PickleJobInfoCallback}}}": "hydra.callbacks.x._target_",
    "{searchpath: ['file:///tmp']}": "hydra.searchpath",
    "{searchpath: ['pkg://this']}": "hydra.searchpath",
    "{sweeper: {_target_: subprocess.Popen, args: [touch, MARK]}}": "hydra.sweeper._target_",
    "{sweeper: {_target_: hydra._internal.core_plugins.basic_sweeper.BasicSweeper}}": "sweeper",
    "{sweeper: {params: {seed: '0,1'}}}": "hydra.sweeper.params",
    "{sweeper: {max_batch_size: 3}}": "hydra.sweeper.max_batch_size",
    "{help: {template: x}}": "hydra.help.template",
    "{help: {app_name: x}}": "hydra.help.app_name",
    "{env: {x: 1}}": "hydra.env",
    "{runtime: {output_dir: MARK}}": "hydra.runtime.output_dir",
    "{verbose: 3}": "hydra.verbose=3",
    "{verbose: [[a]]}": "hydra.verbose",
    "{verbose: {a: b}}": "hydra.verbose",
    "{mode: x}": "",
    "{mode: MULTIRUN}": "hydra.mode=MULTIRUN",
    "{mode: RUN}": "hydra.mode=RUN",
    "{mode: MULTIRUN, overrides: {hydra: [hydra.mode=MULTIRUN]}}": "hydra.mode=MULTIRUN",
    "{job: {env_set: {BENCH_PACKAGES: MARK}}}": "hydra.job.env_set.BENCH_PACKAGES",
    "{unknown: 3}": "unknown",
    "{job: {name: '${oc.env:SECRET}'}}": "hydra.job.name",
    "{verbose: '${oc.env:SECRET}'}": "hydra.verbose",
    "{launcher: {workers: '${oc.env:SECRET}'}}": "hydra.launcher.workers",
    "{overrides: {task: ['seed=${oc.env:SECRET}']}}": "hydra.overrides",
    "null": "",
    "[1]": "",
}
# settings that ask a resolver for what a configuration has no business with
SECRETS = [
    "seed: '${oc.env:SECRET}'",
    "logger: {tags: ['${oc.env:SECRET}']}",
    "logger: {_target_: bench.runs.loggers.wandb, tags: ['x${oc.env:SECRET}y']}",
    "logger: {_target_: bench.runs.loggers.wandb, project: '${oc.env:SECRET}'}",
    "run: {root: '${oc.env:SECRET}'}",
    "run: {root: '${oc.env:BENCH_RUNS,${oc.env:SECRET}}'}",
    "data: {root: '${oc.env:BENCH_DATA,${oc.env:SECRET}}'}",
    "run: {until: '${oc.decode:${oc.env:SECRET}}'}",
    "run: {until: '${oc.${x}:SECRET}', x: env}",
    "run: {until: '${ oc.env:SECRET}'}",
    "run: {until: '${oc.env:\"SECRET\"}'}",
    "run: {until: '${oc.select:${oc.env:SECRET}}'}",
    "run: {until: '${oc.create:[1]}'}",
    "run: {until: '${oc.dict.keys:run}'}",
    "run: {until: '${oc.dict.values:run}'}",
    "run: {until: '${oc.deprecated:seed}'}",
    "run: {until: '${hydra:runtime.cwd}'}",
    "run: {until: '${now:%Y}'}",
    "run: {until: '${python_version:}'}",
    "run: {until: '${${a}}'}",
    "algorithm: {eta: '${oc.env:SECRET,3}'}",
    "vectorize: ['${oc.env:SECRET}']",
]
# what is named instead of a function of ours -> a word of the refusal
TARGETS: dict[str, str] = {
    "task: {_target_: subprocess.Popen, args: [touch, MARK]}": "only functions",
    "task: {_target_: bench.core.settings.build, node: {}}": "only functions",
    "task: {_target_: bench.runs.folder.RunFolder, root: MARK, name: x}": "only functions",
    "task: {_target_: bench.sweeps.workers.Worker}": "only functions",
    "task: {_target_: bench.runs.files.write_whole, path: MARK}": "only functions",
    "task: {_target_: bench.main.main}": "only functions",
    "task: {_target_: bench}": "only functions",
    "task: {_target_: ''}": "only functions",
    "task: {_target_: .}": "only functions",
    "task: {_target_: tasks.}": "only functions",
    "task: {_target_: tasks..toy}": "only functions",
    "task: {_target_: [tasks.toy.toy_minimax]}": "only functions",
    "task: {_target_: {a: b}}": "only functions",
    "task: {_target_: 3}": "only functions",
    "task: {_target_: null}": "only functions",
    "task: {_target_: 'tasks.toy.toy_minimax '}": "only functions",
    'task: {_target_: "tasks.toy.toy_minimax\\n"}': "only functions",
    "task: {_target_: hydra_plugins.bilevel_bench.Sweep}": "only functions",
    "task: {_target_: tasks.data.catalogue.states, root: MARK}": "does not give a Task",
    "task: {_target_: bench.runs.loggers.local}": "does not give a Task",
    "algorithm: {_target_: bench.sweeps.launchers.slurm}": "does not give an Algorithm",
    "algorithm: {outer: {_target_: tasks.toy.toy_minimax}}": "does not give a Descent",
    "algorithm: {outer: {_target_: bench.numerics.descent.Descent}}": "only functions",
    "logger: {_target_: tasks.toy.toy_minimax}": "does not give a Logger",
    "logger: {_target_: wandb.init}": "only functions",
}
FILES: dict[str, tuple[str, str]] = {
    **{
        f"hydra: {text}": (f"# @package _global_\nhydra: {text}", word)
        for text, word in HYDRA.items()
    },
    "a secret": ("# @package _global_\nseed: '${oc.env:SECRET}'", INTERPOLATED),
    "a secret for a choice": (
        "# @package _global_\ndefaults: [optional /tuned@_global_: '${oc.env:SECRET}']",
        "resolving interpolation",
    ),
    "a callback": (
        "# @package _global_\nhydra: {callbacks: {x: {_target_: os.mkdir, path: MARK}}}",
        CANNOT,
    ),
    "an interpolated callback": (
        "# @package _global_\nx: {y: {_target_: os.mkdir, path: MARK}}\nhydra: {callbacks: '${x}'}",
        "callbacks",
    ),
    "a target": ("# @package _global_\nalgorithm: {_target_: os.mkdir, path: MARK}", "os.mkdir"),
    "a tag that calls": (
        "# @package _global_\nseed: !!python/object/apply:os.mkdir [MARK]",
        "could not determine a constructor",
    ),
    "half a list": ("# @package _global_\nseed: [1, 2", "expected ',' or ']'"),
    "no text": ("# @package _global_\nseed: \x01", "special characters"),
    "a list at the top": ("- 1\n- 2", ""),
    "a snake that bites itself": ("# @package _global_\nrun: &a {steps: *a}", "contains itself"),
}


@pytest.mark.parametrize("case", FILES)
def test_a_configuration_file_is_refused_in_one_line_and_nothing_runs(
    case: str, main: Main, tmp_path: Path
) -> None:
    text, word = FILES[case]
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    file = tmp_path / "conf" / "experiment" / "evil.yaml"
    file.write_text(text.replace("MARK", str(tmp_path / "executed")))
    said = main(f"--config-dir={tmp_path}/conf", "experiment=evil")
    assert said.code == 2, said
    assert len(said.err.splitlines()) == 1, said.err
    assert word in said.err
    assert PASSWORD not in said.err
    assert [entry.name for entry in tmp_path.iterdir()] == ["conf"]


@pytest.fixture(scope="module")
def composed() -> DictConfig:
    with initialize_config_module("conf", version_base="1.3"):
        cfg = compose("config", ["task=toy_minimax"])
    OmegaConf.set_struct(cfg, False)
    return cfg


@pytest.mark.parametrize(
    ("text", "word"), [*TARGETS.items(), *((text, INTERPOLATED) for text in SECRETS)]
)
def test_a_setting_is_refused_before_anything_is_called_or_resolved(
    text: str, word: str, composed: DictConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", PASSWORD)
    given = OmegaConf.create(yaml.safe_load(text.replace("MARK", str(tmp_path / "executed"))))
    with pytest.raises(BadSetting, match=word) as refused:
        resolve(OmegaConf.merge(composed, given))  # type: ignore[arg-type]
    assert len(str(refused.value).splitlines()) == 1
    assert PASSWORD not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def run_once(composed: DictConfig, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The configuration of a run that has been made, as QUICK has it."""
    root = tmp_path_factory.mktemp("runs")
    settings = {"steps": 2, "every": 2, "threads": 1, "root": str(root)}
    config = resolve(OmegaConf.merge(composed, {"run": settings}))  # type: ignore[arg-type]
    assert perform(config, quiet=True) == 0
    return config


@pytest.fixture
def made(run_once: dict[str, Any], tmp_path: Path) -> tuple[dict[str, Any], RunFolder]:
    """The same run, with a folder below tmp_path of its own."""
    shutil.copytree(run_once["run"]["root"], tmp_path / "runs")
    config = {**run_once, "run": {**run_once["run"], "root": str(tmp_path / "runs")}}
    return config, place(config)


def edit(file: Path, change: dict[str, Any]) -> None:
    """Change values of a file of JSON; None takes one out."""
    content = json.loads(file.read_text()) | change
    gone = {key for key, value in change.items() if value is None}
    file.write_text(json.dumps({k: v for k, v in content.items() if k not in gone}))


@pytest.mark.parametrize("adapt", ["head", "network"])
def test_blocks_of_episodes_are_refused_in_the_first_step(adapt: str, main: Main) -> None:
    small = ("task.episodes=2", "task.filters=2", "task.watched=1", "task.final=1", "run.threads=1")
    blocks = ("algorithm=saba", "algorithm.blocks=4")
    said = main("task=few_shot", f"task.adapt={adapt}", *small, *blocks)
    assert said.code == 2, said
    (line,) = said.err.splitlines()
    assert "a step's 2 episodes cannot be cut" in line
    assert "write algorithm.blocks=1" in line


@pytest.mark.parametrize("place", ["task", "run", "checkpoint.pt", "history.jsonl"])
def test_a_linked_place_is_refused_and_what_it_points_to_is_whole(
    place: str, main: Main, tmp_path: Path
) -> None:
    assert main(*QUICK).code == 0
    (run,) = (p.parent for p in (tmp_path / "runs").rglob("summary.json"))
    at = {"task": run.parent.parent, "run": run}.get(place, run / place)
    elsewhere = tmp_path / "elsewhere"
    at.rename(elsewhere)
    at.symlink_to(elsewhere)
    found = elsewhere if elsewhere.is_dir() else tmp_path
    before = {file: file.read_bytes() for file in found.rglob("*") if file.is_file()}
    said = main(*QUICK, "run.force=true")
    assert said.code == 2
    assert "is a link" in said.err
    assert {file: file.read_bytes() for file in before} == before


@pytest.mark.parametrize(
    "name", ["history.jsonl.new", "status.json.new", "config.yaml.new", "checkpoint.pt.new"]
)
def test_a_link_planted_where_a_file_is_half_written_is_refused(
    name: str, main: Main, tmp_path: Path
) -> None:
    assert main(*QUICK).code == 0
    (summary,) = (tmp_path / "runs").rglob("summary.json")
    summary.unlink()
    mine = tmp_path / ".bashrc"
    mine.write_text("mine")
    (summary.parent / name).symlink_to(mine)
    said = main(*QUICK)
    assert said.code == 2
    assert f"{summary.parent / name} is a link" in said.err
    assert len(said.err.splitlines()) == 1
    assert mine.read_text() == "mine"


@pytest.mark.parametrize("name", ["wandb", ".wandb"])
def test_what_a_linked_folder_of_wandb_holds_stays(name: str, main: Main, tmp_path: Path) -> None:
    """Parts that were not sent are removed once a later one has their rows."""
    assert main(*QUICK).code == 0
    (summary,) = (tmp_path / "runs").rglob("summary.json")
    summary.unlink()
    mine = tmp_path / "mine" / "offline-run-1" / "file"
    mine.parent.mkdir(parents=True)
    mine.touch()
    (summary.parent / name).symlink_to(tmp_path / "mine")
    said = main(*QUICK, "logger=wandb", "logger.mode=offline")
    assert said.code == 2
    assert f"{summary.parent / name} is a link" in said.err
    assert [p for p in (tmp_path / "mine").rglob("*") if p.is_file()] == [mine]


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("logger.project=a/b", "logger.project=a/b: a project's name has 1 to 128 characters"),
        (f"logger.project={'x' * 129}", "write logger.project=bilevel-bench"),
        ("logger.tags=['']", "logger.tags.0=: a tag has 1 to 64 characters"),
        (f"logger.tags=[mine,{'x' * 65}]", "write logger.tags=[mine]"),
    ],
)
def test_what_wandb_does_not_take_is_refused(
    setting: str, words: str, main: Main, tmp_path: Path
) -> None:
    said = main(*QUICK, "logger=wandb", "logger.mode=offline", setting)
    assert said.code == 2
    assert words in said.err
    assert len(said.err.splitlines()) == 1
    assert not list(tmp_path.glob("runs/**/*.*"))


def test_a_run_whose_logger_cannot_begin_leaves_all_as_it_was(
    main: Main, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The logger is no part of the run's name: a run cannot have failed by it, or be lost."""
    wandb = (*QUICK, "logger=wandb", "logger.mode=offline")
    monkeypatch.setitem(sys.modules, "wandb", None)  # type: ignore[arg-type]
    said = main(*wandb)
    assert (said.code, len(said.err.splitlines())) == (2, 1)
    assert "logger=wandb: the package wandb cannot be imported" in said.err
    assert not list(tmp_path.glob("runs/*"))
    assert main(*QUICK).code == 0
    before = {file: file.read_bytes() for file in tmp_path.glob("runs/*/*/*/*")}
    assert before
    assert main(*wandb, "run.force=true").code == 2
    assert before == {file: file.read_bytes() for file in tmp_path.glob("runs/*/*/*/*")}


def test_a_run_of_which_wandb_cannot_write_leaves_nothing(
    main: Main, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It refuses only when the run's own files are there."""

    def refuse(*given: Any, **more: Any) -> None:
        raise ValueError("no room\nhere")

    monkeypatch.setattr(loggers, "open_wandb", refuse)
    said = main(*QUICK, "logger=wandb", "logger.mode=offline")
    assert (said.code, len(said.err.splitlines())) == (2, 1)
    assert "logger=wandb: W&B refuses to begin (no room here): mend that" in said.err
    assert not list(tmp_path.glob("runs/*"))


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("environment.json", "[]"),
        ("environment.json", "{"),
        ("environment.json", "{}"),
        ("environment.json", "[" * 100_000),
        ("checkpoint.pt", ""),
        ("history.jsonl", "5\n"),
        ("history.jsonl", "\x00\xff"),
    ],
)
def test_a_damaged_file_of_a_run_is_refused_and_kept(
    file: str, content: str, main: Main, tmp_path: Path
) -> None:
    main(*QUICK)
    (summary,) = (tmp_path / "runs").rglob("summary.json")
    summary.unlink()
    (summary.parent / file).write_text(content)
    before = {f: f.read_bytes() for f in summary.parent.iterdir()}
    said = main(*QUICK)
    assert said.code == 2, said
    assert len(said.err.splitlines()) == 1, said.err
    assert "run.force=true" in said.err
    assert {f: f.read_bytes() for f in summary.parent.iterdir()} == before


@pytest.mark.parametrize(
    "change",
    [
        {"threads": "x"},
        {"threads": 0},
        {"threads": 10**30},
        {"threads": True},
        {"device": ["cpu"]},
        {"device": {}},
        {"data": ["a"]},
        {"data": "x"},
        {"compile": "yes"},
        {"device": "$(touch x)"},
        {"continued": 5},
        {"continued": [5]},
        {"continued": [{"changed": 1, "more": 2}]},
    ],
    ids=str,
)
def test_an_environment_that_no_run_wrote_is_refused(
    change: dict[str, Any], made: tuple[dict[str, Any], RunFolder]
) -> None:
    config, folder = made
    edit(folder.path / "environment.json", change)
    with pytest.raises(BadSetting, match=r"run\.force=true") as refused:
        open_run(config, folder)
    assert f"environment.json is damaged (its {next(iter(change))} is" in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"name": None},
        {"last": []},
        {"last": {}},
        {"last": {"step": "x", "seconds": 1}},
        {"last": {"step": 1, "seconds": "x"}},
        {"references": 3},
        {"references": {"a": "x"}},
        {"peak_memory_mb": {}},
        {"peak_memory_mb": {"process": "x"}},
    ],
    ids=str,
)
def test_a_summary_that_no_run_wrote_is_refused(
    change: dict[str, Any], made: tuple[dict[str, Any], RunFolder]
) -> None:
    config, folder = made
    edit(folder.path / "summary.json", change)
    with pytest.raises(BadSetting, match=r"summary\.json .* run\.force=true") as refused:
        perform(config)
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize("source", [[1], 5, {"files": 5}, {"files": ["a"]}, {"no": 1}], ids=str)
def test_sources_that_no_run_wrote_are_not_compared(
    source: Any, made: tuple[dict[str, Any], RunFolder], capsys: pytest.CaptureFixture[str]
) -> None:
    config, folder = made
    edit(folder.path / "environment.json", {"source": source})
    assert perform(config) == 0
    assert "nothing to do" in capsys.readouterr().out


def test_a_place_to_look_for_configurations_is_not_imported(
    main: Main, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused like any other setting, but Hydra would have imported it by then."""
    (tmp_path / "evil_package").mkdir()
    (tmp_path / "evil_package" / "__init__.py").write_text("")
    (tmp_path / "mine.yaml").write_text(
        "defaults: [config, _self_]\nhydra: {searchpath: ['pkg://evil_package']}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    said = main(f"--config-dir={tmp_path}", "--config-name=mine")
    assert said.code == 2, said
    assert len(said.err.splitlines()) == 1, said.err
    assert "hydra.searchpath" in said.err
    assert "evil_package" not in sys.modules


LINES = ["x\n#SBATCH --wrap=touch", "x\ntouch MARK", "a b", "", "$(id)", "`id`", "a;b", "a'b",
         'a"b', "\x00", "x\r", "\u2028", "é"]  # fmt: skip


@pytest.mark.parametrize("text", LINES)
@pytest.mark.parametrize("option", ["partition", "account", "qos", "constraint", "mail-user"])
def test_a_word_for_slurm_is_one_word(option: str, text: str) -> None:
    place = {"partition": text} if option == "partition" else {"options": {option: text}}
    with pytest.raises(BadSetting, match="write one word") as refused:
        launchers.slurm(**place)  # type: ignore[arg-type]
    assert option in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


OPTIONS = ["output", "error", "wrap", "export", "chdir", "prolog", "input", "task_prolog", "bcast",
           "x\ntouch", "", "qos\n", "get-user-env"]  # fmt: skip


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_of_slurm_that_is_not_of_ours_is_refused(option: str) -> None:
    with pytest.raises(BadSetting, match="no such option; there is account") as refused:
        launchers.slurm(options={option: "x"})
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize("value", ["other", None])
def test_another_cluster_is_refused(value: str | None) -> None:
    """squeue lists the jobs of this one, and what it does not list counts as ended."""
    with pytest.raises(BadSetting, match=r"options\.clusters: start the sweep on a machine of"):
        launchers.slurm(options={"clusters": value})


def test_a_list_for_an_option_of_slurm_is_refused() -> None:
    for value in (["a"], {"a": 1}):
        with pytest.raises(BadSetting, match="write one word"):
            launchers.slurm(options={"qos": value})
    launchers.slurm(partition="gpu_4,fat-1", options={"account": "a.b:c", "nice": 3, "tmp": None})


def test_a_folder_for_slurm_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match=r"run\.root=.*cannot name this folder"):
        slurm.slurm_executor(tmp_path / "a\ntouch b", 1)


SPEC: dict[str, Any] = {
    "title": "One method", "source": "a test", "task": "toy_minimax",
    "set": {"run.steps": 2, "run.every": 2}, "variants": {"paper": {}},
    "budgets": {"smoke": {"minutes": 0.1, "seeds": 2}}, "columns": ["distance"],
    "figure": {"metrics": ["distance"], "trajectory": {
        "x": "v", "y": "theta", "x_range": [-1, 1], "y_range": [-1, 1]}},
    "rows": {"BOME": {"method": "bome"}},
    "claims": {"near": {"kind": "converges", "by": "us", "text": "It comes close",
                        "rows": ["BOME"], "metric": "distance", "within": 9, "budgets": ["smoke"]}},
}  # fmt: skip


@pytest.fixture
def reproduce(
    made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Main:
    """`reproduce` in this process, beside the first run of an artifact mine/toy."""
    (tmp_path / "specs" / "mine").mkdir(parents=True)
    (tmp_path / "specs" / "mine" / "toy.yaml").write_text(yaml.safe_dump(SPEC))
    monkeypatch.setenv("BENCH_SPECS", str(tmp_path / "specs"))
    monkeypatch.setenv("PYTHONSAFEPATH", "1")  # as `reproduce` sets it

    def call(*arguments: str) -> Said:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["reproduce", *arguments])
        with pytest.raises(SystemExit) as end:
            cli.main()
        said = capsys.readouterr()
        return Said(int(end.value.code or 0), said.out, said.err)

    return call


FOREIGN_TASKS = {
    "{_target_: subprocess.Popen, args: [touch, MARK]}": "only functions",
    "{_target_: bench.runs.folder.RunFolder, name: x}": "only functions",
    "{_target_: bench.sweeps.workers.Worker}": "only functions",
    "{_target_: bench.runs.loggers.wandb, project: x}": "does not give a Task",
    "{_target_: tasks.toy.toy_minimax, start: {_target_: os.mkdir, path: MARK}}": "task.start",
    "{_target_: tasks.toy.toy_minimax, size: 3}": "task.size",
    "{_target_: 5}": "only functions",
    "[1]": "its task is",
    "null": "its task is",
}


@pytest.mark.parametrize("task", FOREIGN_TASKS)
def test_the_task_of_a_foreign_folder_is_checked_before_it_is_built(
    task: str, reproduce: Main, tmp_path: Path
) -> None:
    (file,) = (tmp_path / "runs").rglob("config.yaml")
    marked = task.replace("MARK", str(tmp_path / "executed"))
    config = yaml.safe_load(file.read_text()) | {"task": yaml.safe_load(marked)}
    file.write_text(yaml.safe_dump(config))
    said = reproduce("report", "mine/toy", "--budget", "smoke", "--runs", "runs")
    assert said.code == 0, said
    assert len(said.err.splitlines()) == 1, said.err
    assert said.err.startswith("reproduce: left out: runs/")
    assert FOREIGN_TASKS[task] in said.err
    assert reproduce("compare", "runs").code in (0, 2)
    assert not (tmp_path / "executed").exists()


SPECS: dict[str, tuple[str, Any, str]] = {
    "a secret": ("task.x", "${oc.env:SECRET}", "task.x"),
    "a secret of a run": ("run.until", "${oc.env:SECRET}", INTERPOLATED),
    "a package": ("hydra.searchpath", ["pkg://evil_package"], "Hydra's settings"),
    "a package more": ("+hydra.searchpath", ["pkg://evil_package"], "Hydra's settings"),
    "a package in force": ("++hydra.searchpath", ["pkg://evil_package"], "Hydra's settings"),
    "a variable": ("+hydra.job.env_set.CC", "touch MARK", "Hydra's settings"),
    "a place": ("hydra.run.dir", "MARK", "Hydra's settings"),
    "a launcher": ("hydra/launcher", "slurm", "Hydra's settings"),
    "a target": ("task._target_", "os.mkdir", "only functions"),
    "a part": ("algorithm.outer._target_", "os.mkdir", "only functions"),
    "a logger": ("logger._target_", "os.mkdir", "only functions"),
    "a path": ("experiment", "../../x", "x"),
    "two lines": ("run.until", "a\nb", ""),
}


@pytest.mark.parametrize("case", SPECS)
def test_a_foreign_spec_is_refused_in_one_line(
    case: str, reproduce: Main, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, value, word = SPECS[case]
    (tmp_path / "evil_package").mkdir()
    (tmp_path / "evil_package" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("SECRET", PASSWORD)
    spec = {**SPEC, "set": {**SPEC["set"], path: value}}
    (tmp_path / "specs" / "mine" / "toy.yaml").write_text(yaml.safe_dump(spec))
    said = reproduce("plan", "mine/toy", "--budget", "smoke")
    assert said.code == 2, said
    assert len(said.err.splitlines()) == 1, said.err
    assert word in said.err
    assert PASSWORD not in said.err
    assert "evil_package" not in sys.modules


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("data.root='~nosuch/x'", "run.steps=1"), "data.root=~nosuch/x: "),
        (("-m", "run.root='~nosuch/x'", "seed=0,1", "run.steps=1"), "run.root"),
        (("task=split_cifar", "algorithm=er"), "run.steps: the stream ends; write run.steps=36"),
    ],
)
def test_what_cannot_be_is_refused_before_any_step(
    arguments: tuple[str, ...], word: str, main: Main, tmp_path: Path
) -> None:
    said = main(*arguments)
    assert said.code == 2, said
    assert len(said.err.splitlines()) == 1, said.err
    assert word in said.err
    assert not list((tmp_path / "runs").rglob("history.jsonl"))


def test_a_partition_is_one_word_for_reproduce_too(reproduce: Main) -> None:
    slurm = ("--launcher", "slurm", "--partition", "x\ntouch y")
    said = reproduce("run", "mine/toy", "--budget", "smoke", *slurm)
    assert said.code == 2, said
    assert len(said.err.splitlines()) == 1, said.err
    assert "partition=x" in said.err


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--launcher", "slurm", "--sbatch", "account"), "write OPTION=VALUE, such as account=ABC"),
        (("--launcher", "slurm", "--sbatch", "=ABC"), "write OPTION=VALUE"),
        (
            ("--launcher", "slurm", "--sbatch", "acount=ABC"),
            "--sbatch acount: no such option; there",
        ),
        (("--launcher", "slurm", *2 * ("--sbatch", "qos=a")), "qos has a already: write it once"),
        (("--launcher", "slurm", "--sbatch", "qos=x\ntouch y"), "write one word"),
        (("--gpus", "1"), "write --launcher slurm with them"),
        (("--sbatch", "account=ABC"), "write --launcher slurm with them"),
        (("--partition", "gpu"), "write --launcher slurm with them"),
        (("--minutes", "30"), "write --launcher slurm with them"),
    ],
)
def test_what_slurm_does_not_take_is_refused_for_reproduce_too(
    options: tuple[str, ...], word: str, reproduce: Main
) -> None:
    said = reproduce("run", "mine/toy", "--budget", "smoke", *options)
    assert said.code == 2, said
    assert len(said.err.splitlines()) == 1, said.err
    assert word in said.err


def test_reproduce_asks_slurm_for_what_it_is_told(
    reproduce: Main, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def slurm_with(**settings: Any) -> launchers.Launcher:
        asked.update(settings)
        return launchers.here()

    monkeypatch.setattr(launchers, "slurm", slurm_with)
    options = ("--partition", "p", "--gpus", "2", "--sbatch", "account=A", "--sbatch", "nice=3")
    said = reproduce("run", "mine/toy", "--budget", "smoke", "--launcher", "slurm", *options)
    assert said.code == 0, said
    expected = {"minutes": 240, "at_once": 64, "options": {"account": "A", "nice": "3"}}
    assert asked == {"partition": "p", "gpus": 2, **expected}


class Payload:
    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


def mini(root: Path, content: Any) -> None:
    for word in ("train", "validation", "test"):
        (root / f"mini-imagenet-cache-{word}.pkl").write_bytes(pickle.dumps(content))


def test_a_pickled_data_set_cannot_run_anything(tmp_path: Path) -> None:
    mini(tmp_path, {"image_data": Payload(tmp_path / "executed"), "class_dict": {}})
    with pytest.raises(BadSetting, match=r"not as expected: it names posix\.mkdir"):
        classes.load("mini_imagenet", Context(data_root=tmp_path))
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("protocol", range(6))
def test_arrays_are_read_from_pickles_of_every_protocol(protocol: int) -> None:
    content = {"a": np.arange(6, dtype=np.uint8).reshape(2, 3), "b": ["x"], "c": np.float64(2)}
    found = load_plain(pickle.dumps(content, protocol))
    assert np.array_equal(found["a"], content["a"])
    assert (found["b"], found["c"]) == (["x"], 2.0)


def test_data_of_another_type_are_refused(tmp_path: Path) -> None:
    images = np.array([["a", "b"]] * 20)
    mini(tmp_path, {"image_data": images, "class_dict": {"n": list(range(20))}})
    with pytest.raises(BadSetting, match="not as expected"):
        classes.load("mini_imagenet", Context(data_root=tmp_path))


@pytest.mark.parametrize("harm", ["payload", "cut short", "no archive"])
def test_newsgroups_that_would_run_something_are_not_unpickled(harm: str, tmp_path: Path) -> None:
    whole = zlib.compress(pickle.dumps({"train": Payload(tmp_path / "executed")}))
    (tmp_path / newsgroups.PICKLE).parent.mkdir()
    content = {"payload": whole, "cut short": whole[:-8], "no archive": gzip.compress(whole)[:9]}
    (tmp_path / newsgroups.PICKLE).write_bytes(content[harm])
    with pytest.raises(BadSetting, match="not the published file"):
        newsgroups.refuse_harmful(tmp_path / newsgroups.PICKLE)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    "text",
    [
        "0 0 nan\n",
        "0 0 inf\n",
        "0 1e300 1\n",
        "0 0 1e308\n",
        "0 0 -1e31\n",
        "0 99999999999999999999 1\n",
        "0 0 \u0661x\n",
        "\x00",
    ],
)
def test_entries_that_are_no_numbers_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "entries.csv").write_text(text)
    with pytest.raises(BadSetting, match=r"task\.file=entries\.csv"):
        _entries(tmp_path / "entries.csv", "entries.csv")


def test_a_table_cut_short_is_refused(tmp_path: Path) -> None:
    (tmp_path / "libsvm").mkdir()
    (tmp_path / "libsvm" / "aloi.scale").write_text("1 1:0.5 2:0.\n2 3:")
    with pytest.raises(BadSetting, match="aloi"):
        tables.table("aloi", Context(data_root=tmp_path))


def test_a_status_that_is_no_status_does_not_count(main: Main, tmp_path: Path) -> None:
    main(*QUICK)
    (summary,) = (tmp_path / "runs").rglob("summary.json")
    summary.unlink()
    (summary.parent / "status.json").write_text(json.dumps(["failed"]))
    assert main(*QUICK).code == 0
    assert summary.is_file()
