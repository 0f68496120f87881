"""What happens to a run when something else happens: signals, locks, errors, disks, lost files."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_module
from torch import Tensor

import bench.core.loop
from bench.core.loop import Standing
from bench.core.settings import BadSetting
from bench.main import report_error
from bench.reproduce import cli
from bench.runs import checkpoint, lock, stop
from bench.runs.files import read_json, write_json
from bench.runs.folder import FILES
from bench.runs.launch import perform, place, resolve
from bench.runs.loggers import mirror
from scripts.faults.campaign import BAD, SEEDS, Campaign
from scripts.faults.compare import outcomes
from scripts.faults.kinds import KINDS
from tests.conftest import ROOT
from tests.test_cli import history, state

Config = dict[str, Any]
Step = Callable[[int], Any]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """A short run with a checkpoint at every measurement."""
    settings = ("run.steps=40", "run.every=5", "run.checkpoint=0", "run.threads=1")
    with initialize_config_module("conf", version_base="1.3"):
        cfg = compose("config", ["task=toy_coreset", *settings, f"run.root={tmp_path}/runs"])
    return resolve(cfg)


@pytest.fixture
def at_step(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Step], None]:
    """Something that happens once, after a step is taken: what it returns is the new state."""

    def at(step: int, happens: Step) -> None:
        original, left = bench.core.loop.advance, [step]

        def advance(*arguments: Any) -> Standing:
            s = original(*arguments)
            if s.step in left:
                left.remove(s.step)
                changed = happens(s.step)
                s = s if changed is None else changed(s)
            return s

        monkeypatch.setattr(bench.core.loop, "advance", advance)

    return at


def elsewhere(config: Config, root: Path) -> Config:
    return {**config, "run": {**config["run"], "root": str(root)}}


def whole(config: Config, tmp_path: Path) -> Path:
    """The same run undisturbed."""
    same = elsewhere(config, tmp_path / "whole")
    assert perform(same) == 0
    return place(same).path


def assert_same(run: Path, other: Path) -> None:
    assert history(run) == history(other)
    assert all(torch.equal(a, b) for a, b in zip(state(run), state(other), strict=True))


def files(run: Path) -> set[str]:
    return {file.name for file in run.iterdir()}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_a_signalled_run_finishes_its_step_and_goes_on_to_the_same_bits(
    number: signal.Signals, config: Config, at_step: Any, tmp_path: Path
) -> None:
    run = place(config).path
    heard: list[int] = []

    def requeue(number: int, frame: Any) -> None:  # as submitit, which was there before
        assert (run / "checkpoint.pt").is_file()
        heard.append(number)

    old = signal.signal(number, requeue)
    try:
        for step in (13, 27):
            at_step(step, lambda step: os.kill(os.getpid(), number))
            with pytest.raises(stop.Preempted):
                perform(config)
            status = read_json(run / "status.json")
            assert status["status"] == "preempted"
            assert step <= status["step"] < 40
            assert torch.load(run / "checkpoint.pt", weights_only=True)["step"] == status["step"]
            assert not (run / lock.NAME).exists()
        assert heard == [number, number]
        assert signal.getsignal(number) is requeue
    finally:
        signal.signal(number, old)
    assert perform(config) == 0
    assert "status.json" not in files(run)
    assert_same(run, whole(config, tmp_path))


def test_a_run_that_raises_says_where_and_is_tried_again_only_when_asked(
    config: Config, at_step: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = place(config).path

    def bad(step: int) -> None:
        raise RuntimeError("no such\nluck")

    at_step(23, bad)
    with pytest.raises(RuntimeError):
        perform(config)
    status = read_json(run / "status.json")
    assert (status["status"], status["reason"]) == ("failed", "RuntimeError: no such luck")
    assert "in bad" in status["traceback"]
    assert perform(config) == 1
    assert "run.retry_failed=true tries it again" in capsys.readouterr().err
    config["run"]["retry_failed"] = True
    assert perform(config) == 0
    assert_same(run, whole(config, tmp_path))


@pytest.mark.parametrize("part", ["x", "y"])
def test_a_diverging_run_names_what_is_lost_and_keeps_its_last_good_checkpoint(
    part: str, config: Config, at_step: Any, tmp_path: Path
) -> None:
    def lose(step: int) -> Callable[[Standing], Standing]:
        def changed(s: Standing) -> Standing:
            lost: Tensor = getattr(s.state, part) * torch.nan
            return s._replace(state=s.state._replace(**{part: lost}))

        return changed

    config["run"]["checkpoint"] = 1e-9  # between any two chunks of steps, measured or not
    at_step(23, lose)
    assert perform(config) == 1
    run = place(config).path
    summary = read_json(run / "summary.json")
    assert summary["status"] == "diverged"
    assert f"at step 25 ({part}" in summary["reason"] or "(x and y)" in summary["reason"]
    assert torch.load(run / "checkpoint.pt", weights_only=True)["step"] < 23
    assert perform(config) == 1
    config["run"]["retry_failed"] = True  # it happens but once
    assert perform(config) == 0
    assert_same(run, whole(config, tmp_path))


@pytest.mark.parametrize("broken", ["checkpoint.pt", "history.jsonl"])
def test_a_full_disk_is_told_and_the_earlier_checkpoint_stays(
    broken: str, config: Config, at_step: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Simulated here; scripts/faults fills a real one."""
    run, sync = place(config).path, os.fsync

    def full(number: int) -> None:
        if broken in os.readlink(f"/proc/self/fd/{number}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(number)

    at_step(23, lambda step: monkeypatch.setattr(os, "fsync", full))
    with pytest.raises(OSError, match="No space left") as told:
        perform(config)
    assert broken in str(told.value.filename)
    assert torch.load(run / "checkpoint.pt", weights_only=True)["step"] == 20
    assert not list(run.glob("*.new"))
    monkeypatch.setattr(os, "fsync", sync)
    assert perform(config) == 0
    assert_same(run, whole(config, tmp_path))


def test_a_full_disk_is_told_in_one_line_whatever_file_it_was(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error of a file that is open names no file."""
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert report_error(full) == 1

    def fails(standalone_mode: bool) -> None:
        raise full

    monkeypatch.setattr(cli, "app", fails)
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert ["a file: No space left" in line for line in lines] == [True, True]
    with pytest.raises(OSError, match="Broken pipe"):
        report_error(OSError(errno.EPIPE, os.strerror(errno.EPIPE)))


def test_a_lock_is_held_though_its_note_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(number: int, content: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with lock.hold(tmp_path):
        assert lock.holder(tmp_path) == "another process"
    assert not list(tmp_path.iterdir())


def interrupted(config: Config, at_step: Any) -> Path:
    """A folder as kill -9 leaves it, but without a lock and without anything half written."""
    at_step(23, lambda step: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(stop.Preempted):
        perform(config)
    return place(config).path


def test_what_a_kill_leaves_half_written_is_cleared_away(
    config: Config, at_step: Any, tmp_path: Path
) -> None:
    run = interrupted(config, at_step)
    (run / "checkpoint.pt.new").write_bytes(b"half")
    (run / "summary.json.new").write_text("{")
    (run / lock.NAME).write_text('{"host": "gone", "proc')  # nobody holds it
    assert perform(config) == 0
    assert files(run) == {*FILES} - {"status.json", "view.json"}
    assert_same(run, whole(config, tmp_path))


def test_rows_that_are_gone_are_not_made_up(config: Config, at_step: Any) -> None:
    run = interrupted(config, at_step)
    lines = (run / "history.jsonl").read_text().splitlines(keepends=True)
    (run / "history.jsonl").write_text("".join(lines[:2]))
    before = {file: file.read_bytes() for file in run.iterdir()}
    with pytest.raises(BadSetting, match=r"lost rows, that of step 10 first.*run.force=true"):
        perform(config)
    assert {file: file.read_bytes() for file in run.iterdir()} == before


def test_other_data_than_at_the_start_are_refused(config: Config, at_step: Any) -> None:
    run = interrupted(config, at_step)
    environment = read_json(run / "environment.json")
    write_json(run / "environment.json", {**environment, "data": {"a.csv": "0123456789abc"}})
    with pytest.raises(BadSetting, match=r"a\.csv has changed since .* 0123456789ab\.\.\."):
        perform(config)


def test_a_clock_that_jumps_changes_nothing(
    config: Config, at_step: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_step(7, lambda step: monkeypatch.setattr(time, "time", lambda: 0.0))
    assert perform(config) == 0
    assert_same(place(config).path, whole(config, tmp_path))


def test_starting_again_removes_first_what_says_that_the_run_has_ended() -> None:
    assert FILES[:3] == ("summary.json", "status.json", "checkpoint.pt")


def test_a_lock_has_one_owner_and_goes_with_its_process(tmp_path: Path) -> None:
    folder = tmp_path / "task" / "algorithm" / "run"
    code = (
        "import sys, time, pathlib, bench.runs.lock as l\n"
        "with l.hold(pathlib.Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", code, str(folder)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        owner = f"process {other.pid} on "
        assert owner in str(lock.holder(folder))
        with pytest.raises(lock.Busy, match=owner), lock.hold(folder):
            pass
        other.kill()
    assert (folder / lock.NAME).is_file()
    assert lock.holder(folder) is None
    with lock.hold(folder), pytest.raises(lock.Busy), lock.hold(folder):
        pass
    assert not (folder / lock.NAME).exists()


def test_of_a_refused_run_no_folder_stays(config: Config, tmp_path: Path) -> None:
    config["run"]["device"] = "cuda"
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(BadSetting):
        perform(config)
    assert not (tmp_path / "runs").exists()


def test_a_run_that_another_process_makes_is_left_alone(config: Config) -> None:
    run = place(config).path
    with lock.hold(run):
        with pytest.raises(lock.Busy, match="is being written by process"):
            perform(config)
        assert files(run) == {lock.NAME}


def test_a_vanished_folder_is_an_error_with_its_name(config: Config, at_step: Any) -> None:
    run = place(config).path

    def vanish(step: int) -> None:
        for file in run.iterdir():
            file.unlink()
        run.rmdir()

    at_step(23, vanish)
    with pytest.raises(FileNotFoundError) as told:
        perform(config)
    assert str(run) in str(told.value.filename)
    assert perform(config) == 0


def test_a_checkpoint_cannot_run_anything(config: Config, at_step: Any, tmp_path: Path) -> None:
    run = interrupted(config, at_step)

    class Payload:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "executed"),)

    content = torch.load(run / "checkpoint.pt", weights_only=True)
    torch.save(content | {"step": Payload()}, run / "checkpoint.pt")
    with pytest.raises(BadSetting, match=r"checkpoint\.pt cannot be read"):
        perform(config)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(("key", "value"), [("step", -1), ("step", 2.0), ("seconds", "long")])
def test_a_checkpoint_with_numbers_of_another_kind_is_refused(
    key: str, value: Any, config: Config, at_step: Any
) -> None:
    run = interrupted(config, at_step)
    content = torch.load(run / "checkpoint.pt", weights_only=True)
    torch.save(content | {key: value}, run / "checkpoint.pt")
    with pytest.raises(BadSetting, match="cannot be read"):
        checkpoint.load(run / "checkpoint.pt", place(config).name, _like(content))


def _like(content: dict[str, Any]) -> Standing:
    from collections import Counter

    return Standing(0, content["leaves"], Counter(), Counter(), 0.0, 0.0, {})


def test_wandb_that_fails_or_hangs_is_told_once_and_ends_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fails(row: dict[str, Any]) -> None:
        raise OSError("no network")

    logger = mirror(fails, lambda code: time.sleep(30), within=0.05)
    logger.row({"step": 1})
    logger.row({"step": 2})
    logger.close(0)
    (line,) = capsys.readouterr().err.splitlines()
    assert "no network" in line
    assert "wandb_sync" in line


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    """A campaign of scripts/faults, whose commands are processes forked from this one."""
    return Campaign(tmp_path_factory.mktemp("faults"), seed=0)


@pytest.mark.parametrize("kind", ["quadratic", "online oscillation"])
def test_runs_that_are_killed_end_as_undisturbed_ones(kind: str, campaign: Campaign) -> None:
    for number in (0, SEEDS):  # of the same seed
        counts = campaign.kill(kind, number)
        assert counts["runs"] == 1
        assert not any(counts[word] for word in BAD), counts


def test_flipped_bits_are_noticed_or_mended(campaign: Campaign) -> None:
    for number in range(0, 3 * SEEDS, SEEDS):
        counts = campaign.flip("quadratic", number)
        assert counts["noticed"] + counts["mended"] + counts["harmless"] == counts["flips"] == 1
        assert not any(counts[word] for word in BAD), counts


def test_a_result_that_differs_is_told(campaign: Campaign, tmp_path: Path) -> None:
    """What is compared with is not taken for equal whatever it is."""
    whole = campaign.undisturbed("quadratic", 0)
    shutil.copytree(whole.root, tmp_path / "other")
    assert outcomes(tmp_path / "other") + repr(None) == whole.left
    run = next((tmp_path / "other").rglob("checkpoint.pt"))
    content = checkpoint.read_content(run)
    content["leaves"][0][0] = torch.nextafter(content["leaves"][0][0], torch.tensor(9.0))
    checkpoint.write_content(run, content)
    assert outcomes(tmp_path / "other") + repr(None) != whole.left


@pytest.mark.parametrize(
    ("code", "said", "word"),
    [
        (0, "", "mended"),
        (2, "bench: a/history.jsonl: row 3 was changed", "noticed"),
        (2, "bench: something else", "unnoticed"),
        (2, "bench: a/history.jsonl: row 3\nand a line more", "unnoticed"),
        (1, "bench: a/history.jsonl failed", "unnoticed"),
        (70, "Traceback: a/history.jsonl", "unnoticed"),
    ],
)
def test_what_counts_as_noticed(code: int, said: str, word: str, campaign: Campaign) -> None:
    whole = campaign.undisturbed("quadratic", 0)
    campaign.log.write_text(said)
    file = Path("a/history.jsonl")
    assert campaign.judge("quadratic", 0, whole.root, file, whole.left, code, False) == word
    if code == 0:
        assert campaign.judge("quadratic", 0, whole.root, file, "", 0, False) == "unnoticed"


def test_there_is_a_kind_of_every_family_of_tasks() -> None:
    """And of all ways to make runs."""
    words = {name: kind.words for name, kind in KINDS.items()}
    tasks = {w.removeprefix("task=") for some in words.values() for w in some if w[:5] == "task="}
    assert tasks == {path.stem for path in (ROOT / "conf" / "task").glob("*.yaml")}
    others = {"compiled", "lanes", "sweep", "reproduce run", "report --record"}
    assert others <= set(words)
    assert len(words) >= 16
