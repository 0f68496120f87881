"""Numerical tests run in double precision on one thread: no tolerance hides rounding."""

import gc
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.plugins import Plugins

os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # as bench.main sets it, before torch is imported
os.environ["NETRC"] = os.devnull  # who has logged in to W&B sends no test there

import torch

from bench.core.task import Context, Task
from tasks.quadratic import quadratic
from tests.warm import warm_workers

__all__ = ["warm_workers"]

ROOT = Path(__file__).parent.parent
torch.set_num_threads(1)


def pytest_configure() -> None:
    """All that is imported and collected stays: it is no garbage."""
    gc.disable()


def pytest_collection_finish() -> None:
    """To look through all of that for garbage takes 0.4 s each time, so nobody does."""
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """At the end all may go: nanobind would call what stays a leak."""
    gc.unfreeze()


@pytest.fixture(autouse=True, scope="module")
def kept() -> Iterator[None]:
    """What a module's tests leave, such as a compiler's code, stays too. Each run of a sweep ends
    with a look for garbage, which would otherwise go through all of that."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def read_once() -> Iterator[None]:
    """Hydra reads each file of conf/, and of its own, once in a process: to read them all takes a
    quarter of each composing. Every configuration is composed of fresh copies."""
    Plugins.instance()  # which knows of the kind of source that a package is
    source: Any = SourcesRegistry.instance().types["pkg"]
    read, pickles = source.load_config, dict[tuple[str, str], bytes]()

    def load(self: Any, config_path: str) -> Any:
        if self.path not in ("conf", "hydra.conf"):
            return read(self, config_path)
        key = self.path, config_path
        if key not in pickles:
            pickles[key] = pickle.dumps(read(self, config_path))
        return pickle.loads(pickles[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "load_config", load)
        yield


@pytest.fixture(autouse=True)
def as_if_first() -> None:
    """A command that ran in this process may have left another number of threads behind, and so
    other bits, a variable with which processes import nothing from their script's folder, and the
    fingerprint of other packages."""
    torch.set_num_threads(1)
    os.environ.pop("PYTHONSAFEPATH", None)
    if names := sys.modules.get("bench.reproduce.run_names"):
        names.own_fingerprint.cache_clear()


@pytest.fixture
def context() -> Context:
    return Context(dtype=torch.float64)


@pytest.fixture
def task(context: Context) -> Task:
    """Noisy samples whose mean is noiseless, so minibatches differ and the optimum is known."""
    return quadratic(context, noise=0.3)


Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """`bench` as a user starts it, its runs in tmp_path/runs."""

    def call(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"BENCH_RUNS": str(tmp_path / "runs"), **variables}
        command = [sys.executable, "-m", "bench", *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=300
        )

    return call


@pytest.fixture(autouse=True)
def own_path() -> Iterator[None]:
    """What a command of this process tells its children of their path is not for the next test."""
    before = os.environ.get("PYTHONSAFEPATH")
    yield
    os.environ.pop("PYTHONSAFEPATH", None)
    if before is not None:
        os.environ["PYTHONSAFEPATH"] = before


@pytest.fixture(scope="session")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data root with the real MNIST and 20 Newsgroups, from the folder BENCH_DATA_FROM names.

    Without that folder the tests that need it are skipped, except in CI.
    """
    source = Path(os.environ.get("BENCH_DATA_FROM", ROOT.parent / "shared" / "data"))
    if not source.is_dir() and not os.environ.get("CI"):
        pytest.skip(f"{source} is not there: BENCH_DATA_FROM names a folder with the data sets")
    root = tmp_path_factory.mktemp("data")
    script = [sys.executable, str(ROOT / "scripts" / "import_data.py"), str(source)]
    subprocess.run([*script, "--root", str(root), "--only", "MNIST", "20news"], check=True)
    return root
