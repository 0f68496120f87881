"""The list of GPU checks, tried on the CPU at smoke size, and the floors of kernels."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from algorithms.continual.gem import gem
from bench.compiled import joined
from bench.compiled.calls import Captured
from bench.compiled.replayed_lanes import LaneReplays
from bench.core.loop import advance, first
from bench.core.task import Context
from bench.reproduce import speed
from bench.runs import stop
from scripts.gpu import listed, sharing, work
from tasks.quadratic import quadratic
from tests import planned
from tests.conftest import ROOT
from tests.steps import streams
from tests.test_algorithms import made
from tests.test_captured import cuda  # noqa: F401  (a fixture)
from tests.test_joined import of


def call_script(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, f"scripts/{script}", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)


def call_work(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "scripts.gpu.work", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)


def test_checks_are_written_and_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def record(folder: str, *arguments: str) -> tuple[int, str]:
        """The exit code, and what is printed."""
        place = ["--root", str(tmp_path / folder / "runs"), "--results", str(tmp_path / folder)]
        command = [
            "work", "--device", "cpu", "--smoke", *place, "--data", str(tmp_path / "data"),
            "--here", "--only", "tasks", "algorithms", *arguments,
        ]  # fmt: skip
        monkeypatch.setattr(sys, "argv", command)
        code = work.main()
        return code, capsys.readouterr().out

    code, said = record("here", "--minutes", "14")
    assert code == 0, said
    for name in ("tasks", "algorithms"):
        found = json.loads((tmp_path / "here" / "gpu" / f"{name}.smoke.json").read_text())
        assert len(found["entries"]) == 3
        for entry in found["entries"].values():
            assert entry["agrees"]
            assert entry["float64"] == entry["float32"] == 0  # the CPU against itself

    code, said = record("here", "--minutes", "0")  # no time left, and all is known to be done
    assert code == 0, said
    assert said.count("done before") == 2
    code, said = record("elsewhere", "--minutes", "0")  # there is more to do
    assert code == 75
    assert said.count("another time") == 2


def test_what_did_not_agree_is_tried_again_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A task raises and the next one loses the device: the third waits for the next call, where it
    is first; the methods wait too, and an item that is a process of its own does not."""
    tasks = [*work.pairs("tasks")][: work.FEW]
    faults: dict[str, Exception] = {
        f"task={tasks[0]}": ValueError("a fault"),
        f"task={tasks[1]}": torch.AcceleratorError("an illegal memory access"),
    }
    tried: list[str] = []

    def take_steps(overrides: list[str], *rest: object) -> tuple[None, None]:
        if not tried or tried[-1] != overrides[0]:
            tried.append(overrides[0])
        if overrides[0] in faults:
            raise faults[overrides[0]]
        return None, None

    monkeypatch.setattr(work, "compose", lambda name, overrides: overrides)
    monkeypatch.setattr(work, "resolve", lambda overrides: overrides)
    monkeypatch.setattr(work, "start_point", lambda config, data: None)
    monkeypatch.setattr(work, "take_steps", take_steps)
    monkeypatch.setattr(work, "point_of", lambda s: torch.ones(1))
    alone = work.Item("alone", "a process of its own", lambda s: False, lambda s: True)
    device = torch.device("cpu")
    settings = work.Settings(device, tmp_path, tmp_path, tmp_path, True, 1, time.monotonic() + 1e3)

    def called() -> tuple[int, str]:
        tried.clear()
        items = [work.check("tasks"), work.check("algorithms"), alone]
        return work.go_through(settings, items), capsys.readouterr().out

    beside = settings._replace(call="one", results=tmp_path / "beside")
    assert work.go_through(beside, [work.check("tasks")]) == work.FAULT  # another process goes on
    assert work.go_through(beside, [work.check("tasks")]) == work.FAILED
    assert list(dict.fromkeys(tried)) == [f"task={name}" for name in tasks]
    capsys.readouterr()

    code, said = called()
    assert code == work.FAILED
    assert tried == [f"task={name}" for name in tasks[:2]]
    assert "tasks: " + tasks[1] + " has lost the device" in said
    assert "algorithms: another time" in said
    assert "alone: done" in said
    faults.pop(f"task={tasks[1]}")  # mended
    code, said = called()
    assert code == work.FAILED
    assert tried[:3] == [f"task={name}" for name in (tasks[2], tasks[0], tasks[1])]
    assert f"tasks: differ from the CPU, see {tmp_path}/gpu/tasks.smoke.json: {tasks[0]}" in said
    assert "algorithms: done" in said
    faults.clear()
    assert called()[0] == work.DONE
    assert tried == [f"task={tasks[0]}"]


def test_a_process_that_can_capture_nothing_more_leaves_the_rest_to_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The entry with which that happened is known, and not made again."""
    monkeypatch.setattr(Captured, "failed", False)

    def hold(overrides: list[str], s: work.Settings) -> dict[str, object]:
        Captured.failed = overrides == [*work.pairs("tasks").values()][1]
        worn = {"worn": True} if Captured.failed else {}
        return {"settings": overrides, "agrees": True, "replayed": {}, **worn}

    monkeypatch.setattr(work, "hold_against_cpu", hold)
    device = torch.device("cpu")
    settings = work.Settings(device, tmp_path, tmp_path, tmp_path, True, 1, time.monotonic() + 1e3)
    items = [work.check("tasks"), work.check("algorithms")]
    assert work.go_through(settings, items) == work.AGAIN
    assert list(work.entries("tasks", settings)) == [*work.pairs("tasks")][:2]
    assert "a capture has failed; the others in another process" in capsys.readouterr().out
    assert work.go_through(settings, items) == work.DONE
    assert work.entries("tasks", settings)[[*work.pairs("tasks")][1]]["worn"]


def test_what_raised_at_a_capture_is_tried_once_in_a_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each further process of the call would end with it. The next call tries it again."""
    monkeypatch.setattr(Captured, "failed", False)
    every = [*work.pairs("tasks").values()][: work.FEW]
    tried: list[int] = []

    def hold(overrides: list[str], s: work.Settings) -> dict[str, object]:
        tried.append(every.index(overrides) if overrides in every else -1)
        worn = {"worn": True} if tried[-1] == 1 else {}
        return {"settings": overrides, "agrees": not worn, "raised": "a fault", **worn}

    monkeypatch.setattr(work, "hold_against_cpu", hold)
    device = torch.device("cpu")
    settings = work.Settings(device, tmp_path, tmp_path, tmp_path, True, 1, time.monotonic() + 1e3)
    codes = []
    for call in ("one", "one", "one", "two", "two", ""):
        codes.append(work.go_through(settings._replace(call=call), [work.check("tasks")]))
    assert tried == [0, 1, 2, 1, 1]
    assert codes == [76, 1, 1, 76, 1, 76]


@pytest.mark.parametrize(
    ("ends", "artifact", "code"),
    [
        ([0], True, work.DONE), ([76, 76, 0], True, work.DONE), ([75], True, work.MORE),
        ([0], False, work.MORE), ([1], False, work.FAILED), ([2], True, work.REFUSED),
        ([-9, 0], True, work.DONE), ([-6] * (work.FAULTS + 1), True, work.MORE),
        ([77, 76, 0], True, work.DONE), ([77] * (work.FAULTS + 1), True, work.MORE),
    ],
)  # fmt: skip
def test_checks_go_beside_the_artifacts_and_before_what_is_timed(
    ends: list[int], artifact: bool, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process of the checks, which ends with these codes, is begun anew where a capture has
    failed in it, or a fault has ended it."""
    left, order = list(ends), list[str]()

    def command(self: work.Beside) -> list[str]:
        assert self.names == ["tasks"]
        end = left.pop(0)
        how = f"sys.exit({end})" if end >= 0 else f"os.kill(os.getpid(), {-end})"
        return [sys.executable, "-c", f"import os, sys; {how}"]

    def item(name: str, complete: bool, done: bool = False) -> work.Item:
        def go_on(s: work.Settings) -> bool:
            assert name not in work.CHECKS
            order.append(name)
            return complete

        return work.Item(name, "", lambda s: done, go_on)

    monkeypatch.setattr(work.Beside, "_command", command)
    device = torch.device("cpu")
    settings = work.Settings(device, tmp_path, tmp_path, tmp_path, True, 1, time.monotonic() + 1e3)
    items = [
        item("tasks", True), item("algorithms", True, done=True), item("bome/table2", artifact),
        item("lanes", True),
    ]  # fmt: skip
    assert work.go_through_beside(settings, items) == code
    assert order == ["bome/table2", "lanes"]
    assert not left


def test_checks_take_no_part_in_what_shares_the_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault of one that does ends all others that do."""
    for name in sharing.NAMES:
        monkeypatch.setenv(name, str(tmp_path))
    there = "import os, sys; sys.exit(any('CUDA_MPS' in name for name in os.environ))"
    monkeypatch.setattr(work.Beside, "_command", lambda self: [sys.executable, "-c", there])
    device = torch.device("cpu")
    settings = work.Settings(device, tmp_path, tmp_path, tmp_path, True, 1, time.monotonic() + 1e3)
    assert work.Beside(["tasks"], settings).result() == work.DONE


def test_processes_of_a_call_know_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By which they know what another one of them has tried."""
    settings = work.Settings(torch.device("cpu"), tmp_path, tmp_path, tmp_path, True, 1, 0.0)
    monkeypatch.setattr(work.subprocess, "Popen", lambda command: command)
    monkeypatch.setattr(work.Beside, "_work", lambda self: None)
    calls = []
    for _ in range(2):
        beside = work.Beside(["tasks"], settings)
        commands = [beside._command(), beside._command()]
        names = {command[command.index("--call") + 1] for command in commands}
        assert len(names) == 1
        calls.append(names.pop())
    assert len(set(calls)) == 2
    assert "" not in calls


def test_the_name_of_an_artifact_is_that_of_all_its_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = {"id": "bome/table2", "budget": "gpu", "claims": 1, "minutes": 1.0}
    items = [{**entry, "name": f"bome/table2:{k}"} for k in (1, 2)]
    (tmp_path / "list.json").write_text(json.dumps({"items": items}))
    for only, shown in (("bome/table2", 2), ("bome/table2:2", 1)):
        options = ["--list", str(tmp_path / "list.json"), "--show", "--root", str(tmp_path)]
        monkeypatch.setattr(sys, "argv", ["work", *options, "--only", only])
        assert work.main() == 0
        assert len(capsys.readouterr().out.splitlines()) == shown


def test_checks_end_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        work.Beside, "_command", lambda self: [sys.executable, "-c", "import time; time.sleep(600)"]
    )

    def fail(s: work.Settings) -> bool:
        raise ZeroDivisionError

    device = torch.device("cpu")
    settings = work.Settings(device, tmp_path, tmp_path, tmp_path, True, 1, time.monotonic() + 1e3)
    items = [
        work.Item("tasks", "", lambda s: False, lambda s: True),
        work.Item("bome/table2", "", lambda s: False, fail),
    ]
    begun: list[work.Beside] = []

    class Known(work.Beside):
        def __init__(self, names: Sequence[str], s: work.Settings):
            begun.append(self)
            super().__init__(names, s)

    monkeypatch.setattr(work, "Beside", Known)
    with pytest.raises(ZeroDivisionError):
        work.go_through_beside(settings, items)
    assert [each.process.returncode for each in begun if each.process] == [-signal.SIGTERM]


def test_checks_try_second_derivatives_of_batch_normalisation() -> None:
    """Which CTN+ITD and CTN+Penalty take on CIFAR, and no method by which a task is tried."""
    assert {"ctn_itd on split_cifar", "ctn_penalty on split_cifar"} <= set(work.pairs("algorithms"))


def test_the_list_comes_after_the_checks(tmp_path: Path) -> None:
    entries = [
        {"name": name, "id": name, "budget": "gpu", "claims": 2, "minutes": 3.5}
        for name in ("bome/table1", "f2obo/fig1")
    ]
    items = work.items_of(entries)
    assert [item.name for item in items[:4]] == ["tasks", "algorithms", "bome/table1", "f2obo/fig1"]
    assert items[2].about == "bome/table1 at gpu: 2 claims, 3.5 minutes"


def test_an_artifact_is_done_when_each_of_its_runs_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`reproduce run` exits 1 where a run has diverged, and where one raised and has not ended."""
    rows = {"A": {"method": "bome"}, "B": {"method": "itd"}}
    made = planned.artifact(grid=None, select=None, variants={"paper": {}}, rows=rows)
    monkeypatch.setattr(work, "load_book", lambda: replace(planned.BOOK, artifacts={"p/a": made}))
    monkeypatch.setattr(listed, "Names", lambda root: planned.Known())
    monkeypatch.setattr(work, "python", lambda *rest: [sys.executable, "-c", "exit(1)"])
    device = torch.device("cpu")
    settings = work.Settings(device, tmp_path, tmp_path, tmp_path, True, 1, time.monotonic() + 1e3)
    entry = {"name": "p/a", "id": "p/a", "budget": "smoke", "claims": 1, "minutes": 1.0}
    whole, part = work.artifact(entry), work.artifact({**entry, "name": "p/a A", "rows": ["A"]})

    def complete() -> list[bool]:
        """Whether each is, after it was worked on; the next call is told the same."""
        found = [item.work(settings) for item in (whole, part)]
        assert [item.done(settings) for item in (whole, part)] == found
        return found

    assert complete() == [False, False]
    planned.finish(tmp_path, "paper/A/-0", None, "diverged")
    assert complete() == [False, True]
    planned.finish(tmp_path, "paper/B/-0", 1.0)
    assert complete() == [True, True]
    again = work.artifact({**entry, "budget": "short"})
    assert not again.done(settings)  # another list asks for other runs under the same name


def test_every_kernel_has_a_floor(tmp_path: Path) -> None:
    file = tmp_path / "roofline.json"
    options = ["--device", "cpu", "--threads", "1", "--scale", ".005", "--repeats", "1"]
    done = call_script("roofline.py", *options, "--json", str(file))
    assert done.returncode == 0, done.stderr
    found = json.loads(file.read_text())
    assert found["bandwidth"] > 0
    assert set(found["rates"]) == {"float32", "float64"}
    assert len(found["kernels"]) == 7
    for kernel in found["kernels"]:
        moving = kernel["bytes"] / found["bandwidth"]
        assert kernel["floor_seconds"] >= moving
        assert len(kernel["seconds"]) == 1
        assert kernel["fraction"] > 0
    one, six = (kernel["operations"] for kernel in found["kernels"][:2])
    assert six == 6 * one


def test_a_comparison_of_speed_is_recorded_once(tmp_path: Path) -> None:
    place = ["--root", str(tmp_path / "runs"), "--results", str(tmp_path), "--smoke"]
    options = ["--device", "cpu", "--minutes", "9", "--only", "speed_gradient"]
    done = call_work(*place, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "speed" / "gpu_gradient.smoke.json").read_text())
    assert found["title"].startswith("The gradient of hyper-cleaning's lower loss")
    (record,) = speed.read_speed(tmp_path)
    assert record.command.startswith("uv run python -m scripts.speed gradient")
    listed = call_work(*place, "--show").stdout
    assert re.search(r"^speed_gradient +done ", listed, re.M), listed
    assert re.search(r"^speed_few_shot +to do ", listed, re.M), listed


@pytest.mark.parametrize(
    ("works", "server", "said"),
    [
        (True, "echo 4711", "processes share the GPU\n"),
        (True, "echo nobody", "processes take turns on the GPU\n"),
        (True, "sleep 60", "processes take turns on the GPU\n"),
        (False, "echo 4711", "processes take turns on the GPU\n"),
    ],
)
def test_processes_share_a_gpu_where_they_can(
    works: bool,
    server: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The service is begun, tried, and ended whatever happens; at once if it does not work. They
    are said to share the GPU if the service has a server: CUDA works without one too."""
    log = tmp_path / "log"
    control = tmp_path / sharing.CONTROL
    control.write_text(
        f'#!/bin/sh\nif [ "$1" ]; then echo $1 >> {log}; exit; fi\nread line\n'
        f'echo "$line" >> {log}\nif [ "$line" = get_server_list ]; then {server}; fi\n'
    )
    monkeypatch.setattr(sharing, "LONG", 2.0)
    control.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "")
    monkeypatch.setenv("CUDA_MPS_LOG_DIRECTORY", "")
    monkeypatch.setattr(sharing, "TRY", f"raise SystemExit({int(not works)})")
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))

    def fail_within() -> None:
        with sharing.shared(torch.device("cuda")):
            assert os.environ["CUDA_MPS_PIPE_DIRECTORY"] == str(tmp_path / "bench-mps")
            assert log.read_text() == f"-d\n{'get_server_list' if works else 'quit -t 5'}\n"
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_within()
    assert log.read_text().endswith("quit -t 5\n")
    assert capsys.readouterr().out == said
    assert os.environ["CUDA_MPS_PIPE_DIRECTORY"] == ""


def test_a_service_that_is_there_is_not_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is another call's, or one that was killed has left it."""
    control, log = tmp_path / sharing.CONTROL, tmp_path / "log"
    control.write_text(f"#!/bin/sh\necho $1 >> {log}\nexit 1\n")
    control.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(sharing, "TRY", "")
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    with sharing.shared(torch.device("cuda")):
        assert "CUDA_MPS_PIPE_DIRECTORY" in os.environ
    assert log.read_text().split() == ["-d"]
    assert "CUDA_MPS_PIPE_DIRECTORY" not in os.environ


def test_a_service_that_answers_nobody_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that was killed has left it, and every worker would wait for it."""
    control, log = tmp_path / sharing.CONTROL, tmp_path / "log"
    control.write_text(f'#!/bin/sh\n[ "$1" ] && exit 1\ncat >> {log}\n')
    control.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(sharing, "TRY", "import time; time.sleep(600)")
    monkeypatch.setattr(sharing, "LONG", 1.0)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    with sharing.shared(torch.device("cuda")):
        assert log.read_text() == "quit -t 5\n"
    assert log.read_text() == "quit -t 5\n"


def test_nothing_is_shared_on_a_cpu_or_without_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    for device in ("cpu", "cuda"):
        with sharing.shared(torch.device(device)):
            assert "CUDA_MPS_PIPE_DIRECTORY" not in os.environ


def test_an_entry_that_raised_says_too_that_a_capture_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raises(*given: object) -> None:
        raise ValueError("a fault")

    monkeypatch.setattr(work, "start_point", raises)
    overrides = work.pairs("tasks")["toy_coreset"]
    settings = work.Settings(torch.device("cpu"), tmp_path, tmp_path, tmp_path, True, 1, 0.0)
    for failed in (False, True):
        monkeypatch.setattr(Captured, "failed", failed)
        found = work.hold_against_cpu(overrides, settings)
        assert found["raised"] == "ValueError: a fault"
        assert found.get("worn", False) == failed


@torch.no_grad()
@pytest.mark.usefixtures("cuda")
def test_replayed_steps_are_held_against_plain_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    task, algorithm = quadratic(Context(dtype=torch.float64), noise=0.3), made("bome")
    start = end = first(task, algorithm, 0)
    for _ in range(work.STEPS):
        end = advance(task, algorithm, 0, end)
    found = work.replays(task, algorithm, start, end)
    assert found["same"] is True
    assert found["captured"] > 0
    assert found["refused"] == 0
    other = end._replace(state=end.state._replace(y=end.state.y + 1e-15))
    assert work.replays(task, algorithm, start, end)["same"] is True
    monkeypatch.setattr(work, "plain_steps", lambda *given: other)  # plain steps come there too
    assert work.replays(task, algorithm, start, other)["same"] is False
    assert (
        work.replays(task, algorithm, start, end._replace(calls=end.calls + end.calls))["same"]
        is None
    )
    monkeypatch.setattr(Captured, "failed", True)
    found = work.replays(task, algorithm, start, end)
    assert (found["same"], found["captured"]) == (True, 0)
    assert found["refused"] > 0


@torch.no_grad()
@pytest.mark.usefixtures("cuda")
def test_replayed_lanes_are_held_against_lanes_by_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    task, algorithm = of(streams.stream()), gem(0.3, memory=3)
    start = first(task, algorithm, 0)
    end = work.plain_steps(task, algorithm, start)
    assert work.replays(task, algorithm, start, end)["lanes"] is True
    right = LaneReplays.__call__

    def wrong(self: LaneReplays, what: Any, asked: Any) -> Any:
        found = right(self, what, asked)
        if what is not joined.gradients:
            return found
        return [[(x, None if y is None else 2 * y) for x, y in own] for own in found]

    monkeypatch.setattr(LaneReplays, "__call__", wrong)
    assert work.replays(task, algorithm, start, end)["lanes"] is False
    alone = quadratic(Context(dtype=torch.float64))
    begin = first(alone, made("bome"), 0)
    assert "lanes" not in work.replays(alone, made("bome"), begin, begin)


def test_checks_from_before_answers_were_replayed_are_made_again() -> None:
    assert work.is_to_make({}, ["a"])
    assert work.is_to_make({"settings": ["a"], "agrees": True}, ["a"])
    assert work.is_to_make({"settings": ["b"], "agrees": True, "replayed": True}, ["a"])
    assert not work.is_to_make({"settings": ["a"], "agrees": True, "replayed": True}, ["a"])
    assert not work.is_to_make({"settings": ["a"], "skipped": "no package"}, ["a"])


def test_what_another_device_has_said_is_made_again_on_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trial on a CPU is no check of a GPU; nor does a CPU write over a GPU's."""
    entry = {"settings": ["a"], "agrees": True, "replayed": True}
    for old, gpu, to_make in (
        ("A", "A", False), ("A", "B", True), (None, "A", True), ("A", None, False),
    ):  # fmt: skip
        assert work.is_to_make(entry | {"gpu": old}, ["a"], gpu) is to_make
    cpu, gpu_here, file = torch.device("cpu"), torch.device("cuda"), tmp_path / "lanes.json"
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "A")
    assert not work.is_made(file, cpu)
    for record, there in (
        ({"environment": {"gpu": "A"}}, True), ({"environment": {"gpu": None}}, False),
        ({"hardware": ["A"]}, True), ({"hardware": ["some CPU"]}, False),
    ):  # fmt: skip
        file.write_text(json.dumps(record))
        assert work.is_made(file, gpu_here) is there
        assert work.is_made(file, cpu)


def test_lanes_of_before_answers_were_replayed_are_measured_again(tmp_path: Path) -> None:
    here = work.Settings(
        torch.device("cpu"), tmp_path, tmp_path, tmp_path, False, 1, time.monotonic() + 1e3
    )
    item = next(item for item in work.ITEMS if item.name == "lanes")
    assert not item.done(here)
    for record, done in (({"ratio": 4.9}, False), ({"ratio": 4.9, "replayed": True}, True)):
        work.check_file("lanes", here).parent.mkdir(parents=True, exist_ok=True)
        work.check_file("lanes", here).write_text(json.dumps(record))
        assert item.done(here) is done


def test_an_entry_that_ends_its_process_is_known_to_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried once in a call, and the entries after it are made; one at which the call was told
    to stop is as it was."""
    device, wanted = torch.device("cpu"), {"one": ["1"], "two": ["2"]}
    settings = work.Settings(
        device, tmp_path, tmp_path, tmp_path, True, 1, time.monotonic() + 1e3, "this call"
    )
    monkeypatch.setattr(work, "settle", lambda device, threads: None)
    monkeypatch.setattr(work, "wanted", lambda name, s: wanted)
    tried, at_the_fault = list[str](), dict[str, bytes]()

    def hold(overrides: list[str], s: work.Settings) -> dict[str, object]:
        tried.append(overrides[0])
        if overrides == ["1"]:
            at_the_fault["file"] = work.check_file("tasks", s).read_bytes()
            raise stop.Preempted(15)
        return {"settings": overrides, "agrees": True, "replayed": {}}

    monkeypatch.setattr(work, "hold_against_cpu", hold)
    with pytest.raises(stop.Preempted):
        work.check("tasks").work(settings)
    assert work.entries("tasks", settings) == {}
    work.check_file("tasks", settings).write_bytes(at_the_fault["file"])
    assert work.entries("tasks", settings)["one"]["raised"] == work.ENDED
    with pytest.raises(work.Failed, match=r"differ from the CPU, see .*: one$"):
        work.check("tasks").work(settings)
    assert tried == ["1", "2"]
    assert list(work.entries("tasks", settings)) == ["one", "two"]
    with pytest.raises(stop.Preempted):
        work.check("tasks").work(settings._replace(call="another call"))
    assert tried == ["1", "2", "1"]
