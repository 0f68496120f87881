"""The current folder, which anybody may have filled, is no place from which modules come."""

import os
import subprocess
import sys
from pathlib import Path
from pkgutil import resolve_name

import pytest
import torch
from joblib import Parallel, delayed
from joblib.externals.loky import get_reusable_executor

from bench import BadSetting, search_path, solve
from bench.sweeps import slurm
from bench.sweeps.workers import Worker
from tests.conftest import ROOT


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A folder with packages and modules that tell of it if they are imported."""
    told = f"open({str(tmp_path / 'executed')!r}, 'w')"
    for package in ("conf", "tasks", "algorithms", "hydra_plugins"):
        (tmp_path / "there" / package).mkdir(parents=True)
        (tmp_path / "there" / package / "__init__.py").write_text(told)
    for module in ("multiprocessing", "yaml", "hydra", "signal", "typer", "joblib"):
        (tmp_path / "there" / f"{module}.py").write_text(told)
    return tmp_path / "there"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("bench", "--cfg", "job", "task=toy_minimax"), "_target_: tasks.toy.toy_minimax"),
        (("bench.reproduce", "list", "bome/fig3_starts"), "bome/fig3_starts"),
    ],
)
def test_both_commands_use_this_project_from_any_folder(
    command: tuple[str, ...], said: str, foreign: Path, tmp_path: Path
) -> None:
    variables = os.environ | {"PYTHONPATH": str(ROOT), "BENCH_RUNS": str(tmp_path / "runs")}
    variables.pop("PYTHONSAFEPATH", None)
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=foreign, env=variables, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert said in done.stdout
    assert not (tmp_path / "executed").exists()


def test_a_worker_looks_for_nothing_in_the_current_folder(
    foreign: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(foreign)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    monkeypatch.setenv("PYTHONSAFEPATH", "")
    search_path.keep_children_out()
    worker = Worker()
    worker.dismiss()
    assert worker.process.exitcode == 0
    assert not (tmp_path / "executed").exists()


def test_a_process_of_joblib_looks_for_nothing_there_and_has_our_compiler(
    foreign: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(foreign)
    monkeypatch.setenv("PYTHONSAFEPATH", "")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("CC", "our compiler")
    search_path.keep_children_out()
    get_reusable_executor().shutdown(kill_workers=True)  # those of an earlier test
    try:
        found = Parallel(2, backend="loky")(
            [
                delayed(search_path.safe_path)(),
                delayed(os.getenv)("CC"),
                delayed(resolve_name)("tasks:__file__"),
                delayed(resolve_name)("conf:__file__"),
            ]
        )
    finally:
        get_reusable_executor().shutdown(kill_workers=True)
    ours = [str(ROOT / package / "__init__.py") for package in ("tasks", "conf")]
    assert found == [True, "our compiler", *ours]
    assert not (tmp_path / "executed").exists()


def test_a_job_of_slurm_looks_for_nothing_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever SLURM is configured to do with variables, of which its script sets none."""
    for command in ("srun", "sbatch"):
        (tmp_path / command).write_text("")
        (tmp_path / command).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("CC", "a compiler")
    executor = slurm.slurm_executor(tmp_path / "slurm", 1)
    executor.update_parameters(time=3, additional_parameters={"account": "a"})
    text = executor._make_submission_file_text(executor._submitit_command_str, "x")
    assert f"{sys.executable} -P -u -m submitit.core._submit" in text
    assert "#SBATCH --account=a" in text
    assert "a compiler" not in text


@pytest.mark.parametrize(
    ("first", "safe", "dropped"),
    [("there", False, True), ("", False, True), (str(ROOT), False, False), ("there", True, False)],
)
def test_the_folder_that_python_put_first_is_dropped(
    first: str, safe: bool, dropped: bool, foreign: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless this project is in it, or Python was told to put none there."""
    monkeypatch.chdir(foreign)
    monkeypatch.setattr(sys, "path", [first, "rest"])
    monkeypatch.setattr(search_path, "safe_path", lambda: safe)
    search_path.leave_current_folder()
    assert sys.path == (["rest"] if dropped else [first, "rest"])


def test_a_package_of_another_project_is_told_in_one_line(
    foreign: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a notebook's folder, or by PYTHONPATH; nothing of it is imported."""
    assert search_path.find_clash() is None
    monkeypatch.syspath_prepend(foreign)
    for name in search_path.PACKAGES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    line = search_path.find_clash()
    assert line is not None
    assert line.startswith(f"{foreign / 'conf'}: Python finds it in place of this project's")
    assert "\n" not in line
    with pytest.raises(BadSetting, match="in place of this project's package conf"):
        solve(torch.add, torch.add, torch.zeros(1), torch.zeros(1), steps=1)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("command", ["bench", "bench.reproduce"])
def test_both_commands_refuse_a_clash(command: str, foreign: Path, tmp_path: Path) -> None:
    variables = os.environ | {"PYTHONPATH": f"{foreign}{os.pathsep}{ROOT}"}
    for module in ("multiprocessing", "yaml", "hydra", "signal", "typer", "joblib"):
        (foreign / f"{module}.py").unlink()  # what comes first there is code of the user's own
    words = [sys.executable, "-m", command, *(["list"] if command != "bench" else [])]
    done = subprocess.run(words, env=variables, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "in place of this project's package conf" in done.stderr
    assert not (tmp_path / "executed").exists()
