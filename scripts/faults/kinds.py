"""The commands that are disturbed, each small enough to take a second or two."""

import gc
import importlib
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import yaml
from hydra import compose, initialize_config_module

import bench.main
from bench.reproduce import cli
from bench.runs.environment import environment_of
from bench.runs.folder import RunFolder
from bench.runs.launch import perform, place, resolve
from bench.runs.source import source
from scripts.faults.compare import pages, record_and_histories, sweep_table

EARLY = (  # what commands import when they need it; a process that is forked has it then
    "bench.compiled.traced", "bench.reproduce.report", "bench.reproduce.runner", "bench.runs.lanes",
    "bench.sweeps.launchers", "bench.sweeps.sweep", "scipy.linalg", "sklearn.datasets",
    "torch._inductor.compile_fx",
)  # fmt: skip
ARTIFACT = "mine/toy"
SPEC: dict[str, Any] = {
    "title": "A method on a toy game", "source": "made up", "task": "toy_minimax",
    "set": {"run.steps": 100, "run.every": 5, "task.spread": 0.01},
    "variants": {"paper": {}},
    "budgets": {"smoke": {"minutes": 0.1, "seeds": 2}},
    "columns": ["distance"],
    "figure": {"metrics": ["distance"]},
    "rows": {"BOME": {"method": "bome"}, "GDA": {"method": "gda"}},
    "claims": {"ends": {"kind": "converges", "by": "us", "text": "it ends near", "rows": ["BOME"],
                        "metric": "distance", "within": 2.5, "budgets": ["smoke"]},
               "goes": {"kind": "diverges", "by": "us", "text": "it goes away", "rows": ["BOME"],
                        "metric": "distance", "growth": 10.0, "budgets": ["smoke"]}},
}  # fmt: skip


def import_early() -> None:
    """Import and find out what commands would in their first second."""
    for module in EARLY:
        importlib.import_module(module)
    environment_of(torch.device("cpu"), 1, {})
    gc.collect()
    gc.freeze()  # a process that is forked then shares these objects' pages with this one


def nothing(*arguments: Any) -> None:
    """Does nothing."""


@dataclass(frozen=True)
class Kind:
    """A command to disturb.

    Functions get the seed, the folder of the command, and one that all commands have in common.
    make: makes what the seed says, and gives the exit code. prepare: makes what has to be in the
    common folder. begin: fills the folder before the command's first start. left: what the command
    leaves beside run folders. kept: what is at every moment as before the command, or as after it.
    single: the folder of a command that is one run. words: its arguments, if it is `bench`. share:
    how often it is disturbed, against a plain run.
    """

    make: Callable[[int, Path, Path], int]
    prepare: Callable[[int, Path], None]
    begin: Callable[[Path, Path], None] = nothing
    left: Callable[[Path], Any] = nothing
    kept: Callable[[Path], Any] = nothing
    single: Callable[[int, Path], RunFolder] | None = None
    words: tuple[str, ...] = ()
    share: float = 1.0

    @property
    def has_flips(self) -> bool:
        """Whether bits of its files are flipped: those of a run, or of a record's histories."""
        return self.single is not None or self.kept is not nothing


@cache
def composed(words: tuple[str, ...], seed: int) -> dict[str, Any]:
    """The configuration that these words of a command line make."""
    settings = (f"seed={seed}", "run.threads=1", "run.checkpoint=0")
    with initialize_config_module("conf", version_base="1.3"):
        return resolve(compose("config", [*words, *settings]))


def config(words: tuple[str, ...], seed: int, root: Path, shared: Path) -> dict[str, Any]:
    """The configuration of a run below this folder."""
    found = composed(words, seed)
    data = {**found["data"], "root": str(shared / "data")}
    return {**found, "data": data, "run": {**found["run"], "root": str(root)}}


def one_run(*words: str, share: float = 1.0) -> Kind:
    """A single run, with a checkpoint at every measurement."""

    def make(seed: int, root: Path, shared: Path) -> int:
        return perform(config(words, seed, root, shared))

    def prepare(seed: int, shared: Path) -> None:
        source(composed(words, seed))  # which keeps what it has read of the code

    def single(seed: int, root: Path) -> RunFolder:
        return place(config(words, seed, root, root))

    return Kind(make, prepare, single=single, words=words, share=share)


def bench_command(*words: str, share: float = 1.0) -> Kind:
    """A sweep, as `bench -m` makes it."""

    def make(seed: int, root: Path, shared: Path) -> int:
        sys.argv = ["bench", "-m", *words, "run.checkpoint=0", f"run.root={root}"]
        bench.main.main()
        raise AssertionError

    return Kind(make, nothing, left=sweep_table, words=words, share=share)


def reproduce(*words: str) -> int:
    """The exit code of `reproduce`."""
    sys.argv = ["reproduce", *words]
    try:
        cli.main()
    except SystemExit as end:
        return int(end.code or 0)
    raise AssertionError


def write_spec(folder: Path, **changes: Any) -> str:
    """Write the spec of an artifact, and give the folder of specs."""
    (folder / "mine").mkdir(parents=True, exist_ok=True)
    (folder / "mine" / "toy.yaml").write_text(yaml.safe_dump({**SPEC, **changes}, sort_keys=False))
    return str(folder)


def run_of_an_artifact(share: float) -> Kind:
    """`reproduce run`, whose worker makes four runs."""

    def prepare(seed: int, shared: Path) -> None:
        write_spec(shared / "specs")

    def make(seed: int, root: Path, shared: Path) -> int:
        where = ["--runs", str(root), "--specs", str(shared / "specs")]
        return reproduce(
            "run", ARTIFACT, "--budget", "smoke", "--jobs", "1", *where, "run.checkpoint=0"
        )

    return Kind(make, prepare, share=share)


def report_of_an_artifact(share: float) -> Kind:
    """`reproduce report --record`, where the record of other runs is to be replaced."""

    def prepare(seed: int, shared: Path) -> None:
        runs, results = shared / "recorded", shared / "results"
        if runs.exists():
            return
        shorter = {**SPEC["set"], "run.steps": 60}
        old, new = write_spec(shared / "old", set=shorter), write_spec(shared / "specs")
        for specs in (old, new):
            where = ["--runs", str(runs), "--specs", specs]
            assert reproduce("run", ARTIFACT, "--budget", "smoke", "--jobs", "2", *where) == 0
        where = ["--runs", str(runs), "--specs", old, "--results", str(results)]
        assert reproduce("report", ARTIFACT, "--record", "--out", str(shared / "page"), *where) == 0

    def begin(root: Path, shared: Path) -> None:
        shutil.copytree(shared / "results", root / "results")

    def make(seed: int, root: Path, shared: Path) -> int:
        where = ["--runs", str(shared / "recorded"), "--specs", str(shared / "specs")]
        mine = ["--results", str(root / "results"), "--out", str(root / "report")]
        return reproduce("report", ARTIFACT, "--budget", "smoke", "--record", *where, *mine)

    def left(root: Path) -> Any:
        return [kept(root), pages(root / "report")]

    def kept(root: Path) -> Any:
        return record_and_histories(ARTIFACT, "smoke", root / "results")

    return Kind(make, prepare, begin, left, kept, share=share)


SLOW = 0.2  # the share of commands that start processes, which have to import torch
FEW_SHOT = (
    "task=few_shot", "algorithm=itd", "task.ways=3", "task.shots=2", "task.queries=2",
    "task.episodes=2", "task.filters=4", "task.watched=2", "task.final=2", "algorithm.T=2",
)  # fmt: skip
TINY = ("task.data.train=200", "task.data.val=50", "task.data.test=100")
KINDS: dict[str, Kind] = {
    "toy coreset": one_run("task=toy_coreset", "run.steps=150", "run.every=5"),
    "toy minimax": one_run("task=toy_minimax", "run.steps=150", "run.every=5"),
    "degenerate lower level": one_run("task=toy_degenerate", "run.steps=150", "run.every=5"),
    "quadratic": one_run(
        "task=quadratic", "algorithm=saba", "task.noise=0.3", "run.steps=150", "run.every=5"
    ),
    "logistic": one_run("task=logistic", "algorithm=aid_cg", "run.steps=12", "run.every=1"),
    "regularised logistic": one_run(
        "task=regularised_logistic", "algorithm=soba", "algorithm.batch=16", "run.steps=150",
        "run.every=5",
    ),
    "sampled quadratic": one_run(
        "task=sampled_quadratic", "algorithm=mseba", "algorithm.batch=16", "run.steps=150",
        "run.every=5",
    ),
    "hyper-cleaning": one_run(
        "task=hyper_cleaning", "run.steps=24", "run.every=2", "task.references=false",
        "task.pretraining.steps=10",
    ),
    "hyper-cleaning, MNIST": one_run(
        "task=hyper_cleaning", "task/data=mnist", "run.steps=20", "run.every=2", *TINY,
        "task.data.val2=50", "task.references=false", "task.pretraining.steps=10",
    ),
    "newsgroups": one_run(
        "task=newsgroups", "task.source=digits", "algorithm=itd", "algorithm.T=3",
        "algorithm.inner_lr=0.1", "algorithm.outer_lr=0.01", "task.references=false",
        "task.pretraining.steps=5", "run.steps=24", "run.every=2",
    ),
    "few-shot": one_run(*FEW_SHOT, "run.steps=12", "run.every=1"),
    "permuted images": one_run(
        "task=permuted_mnist", "algorithm=ctn_itd", "task.tasks=3", "task.images=40",
        "task.hidden=8", "run.steps=12", "run.every=1",
    ),
    "split classes": one_run(
        "task=split_cifar", "algorithm=er", "task.tasks=2", "task.filters=2", "task.watched=10",
        "task.statistics=10", "run.steps=12", "run.every=1",
    ),
    "online imbalance": one_run(
        "task=online_imbalance", "algorithm=f2obo", "task.channels=4", "task.statistics=16",
        "task.phase=5", "task.round=8", "algorithm.K=2", *TINY, "run.steps=20", "run.every=2",
    ),
    "online newsgroups": one_run(
        "task=online_newsgroups", "algorithm=sf2obo", "task.source=digits", "task.round=16",
        "task.noise=[0.1,0.2]", "task.at=[20,40]", "algorithm.K=2", "run.steps=48", "run.every=3",
    ),
    "online oscillation": one_run(
        "task=online_oscillation", "algorithm=f2obo", "run.steps=150", "run.every=5"
    ),
    "online quadratic": one_run(
        "task=online_quadratic", "algorithm=f2obo", "run.steps=150", "run.every=5"
    ),
    "completion": one_run(
        "task=completion", "algorithm=sfw", "task.rows=40", "task.columns=30", "run.steps=30",
        "run.every=1",
    ),
    "multitask": one_run(
        "task=multitask", "algorithm=ncgs", "algorithm.L=10", "algorithm.N=40", "task.groups=4",
        "task.similar=2", "task.samples=20", "task.features=6", "run.steps=40", "run.every=2",
    ),
    "trees": one_run(
        "task=trees", "algorithm=fw", "algorithm.rule=decreasing", "run.steps=30", "run.every=1"
    ),
    "compiled": one_run(
        "task=toy_coreset", "run.compile=true", "run.steps=600", "run.every=20", share=SLOW
    ),
    "lanes": bench_command(
        "task=toy_coreset", "algorithm=bome", "seed=0,1,2", "vectorize=[seed]", "run.threads=1",
        "task.spread=0.01", "run.steps=100", "run.every=5", "hydra/launcher=here", share=0.5,
    ),
    "sweep": bench_command(
        "task=toy_minimax", "algorithm=bome,gda", "seed=0,1,2", "task.spread=0.01", "run.threads=1",
        "run.steps=100", "run.every=5", "hydra.launcher.workers=2", share=SLOW,
    ),
    "reproduce run": run_of_an_artifact(share=SLOW),
    "report --record": report_of_an_artifact(share=SLOW),
}  # fmt: skip


def needs_mnist(kind: str) -> bool:
    """Whether a kind of run needs the real MNIST."""
    return kind.endswith("MNIST")
