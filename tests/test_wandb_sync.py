"""What scripts/wandb_sync.py sends of runs, to a stand-in for W&B and its host."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from bench.runs import loggers
from bench.runs.folder import RunFolder
from bench.runs.logger import About
from scripts import wandb_sync

STEPS = (0, 5, 10)
LOGGER = {"_target_": "bench.runs.loggers.wandb", "mode": "offline", "tags": ["mine"]}


class Refused(Exception):
    """W&B's own error."""


class Host:
    """A stand-in for the module wandb and for its host, which appends the rows that it gets to
    those that it has, as the true one does."""

    Error = Refused

    def __init__(self) -> None:
        self.rows: dict[str, list[int]] = {}
        self.summaries: dict[str, dict[str, Any]] = {}
        self.begun: list[dict[str, Any]] = []
        self.refuses: set[str] = set()  # the ids of runs that cannot begin
        self.sent: list[dict[str, Any]] = []
        self.loses = 10**9  # rows from this step on get lost, and W&B says nothing

    def Settings(self, **settings: Any) -> Any:
        return SimpleNamespace(base_url="https://a.example", mode="online", **settings)

    def setup(self) -> Any:
        return SimpleNamespace(settings=self.Settings())

    def init(self, **given: Any) -> Any:
        self.begun.append(given)
        key, online = given["id"], given["mode"] == "online"
        if key in self.refuses:
            raise Refused("no such\nproject")
        kind = "run" if online else "offline-run"
        part = Path(given["dir"]) / "wandb" / f"{kind}-20260101_00000{len(self.begun)}-{key}"
        part.mkdir(parents=True)
        (part / f"run-{key}.wandb").touch()
        there = self.rows.get(key, []) if online else []
        rows, summary = list(there), dict(self.summaries.get(key, {}) if online else {})

        def finish(exit_code: int) -> None:
            if online and (not rows or rows[-1] < self.loses):
                self.rows[key], self.summaries[key] = rows, summary | {"exit": exit_code}

        return SimpleNamespace(
            log=lambda row, step: (rows.append(step), self.sent.append(row)),
            finish=finish,
            define_metric=lambda *names, **axes: None,
            summary=summary,
            resumed=bool(there),
            starting_step=there[-1] + 1 if there else 0,
        )


class Sync(NamedTuple):
    """How the script ended."""

    code: int
    out: list[str]
    err: list[str]


Call = Callable[..., Sync]


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    made = Host()
    monkeypatch.setitem(sys.modules, "wandb", made)  # type: ignore[arg-type]
    monkeypatch.setenv("WANDB_API_KEY", "k")
    monkeypatch.setattr(wandb_sync, "answers", lambda url, within: True)
    return made


@pytest.fixture
def sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Call:
    def call(root: Path = tmp_path / "runs", *more: str) -> Sync:
        monkeypatch.setattr(sys, "argv", ["wandb_sync.py", str(root), *more])
        capsys.readouterr()
        code = wandb_sync.main()
        said = capsys.readouterr()
        return Sync(code, said.out.splitlines(), said.err.splitlines())

    return call


def make(
    root: Path,
    key: str = "key",
    mode: str = "offline",
    upto: int = 2,
    done: bool = True,
    logger: dict[str, Any] = LOGGER,
    anew: bool = False,
) -> RunFolder:
    """A run that has the rows before number `upto`, and went on from what was there, or was made
    anew."""
    folder = RunFolder(root / "runs", f"hyper_cleaning/bome/{key}")
    folder.path.mkdir(parents=True, exist_ok=True)
    force = {"run": {"force": anew, "every": 5}, "seed": 1, "logger": logger}
    before = [] if anew or not folder.history_file.exists() else folder.history()
    folder.prepare(
        {**force, "task": {}, "algorithm": {}, "data": {}}, before[-1]["step"] if before else -1
    )
    folder.describe({"threads": 1, "device": "cpu", "data": {}, "metric": "test_loss"})
    about = About(
        folder.name, {"seed": 1}, folder.path, "test_loss", before, alone=False, anew=anew
    )
    made = loggers.wandb(about, mode=mode)  # type: ignore[arg-type]
    history = folder.rows()
    for step in STEPS[len(before) : upto]:
        row = {"step": step, "seconds": 1.0, "test_loss": float(step)}
        history.add(row)
        made.row(row)
    history.close()
    if done:
        end = {"status": "done", "reason": None, "last": row, "metric": "test_loss"}
        made.end(end)
        folder.end(end, None)
    else:
        folder.leave("preempted", "stopped by SIGTERM")
    made.close(0)
    return folder


def test_an_offline_run_is_sent_once(tmp_path: Path, host: Host, sync: Call) -> None:
    folder = make(tmp_path)
    assert host.rows == {}
    assert sync() == (0, [f"{folder.path.resolve()}: sent"], [])
    assert host.rows == {"key": [0, 5]}
    assert host.summaries["key"]["best/test_loss"] == 0.0
    assert (host.summaries["key"]["status"], host.summaries["key"]["exit"]) == ("done", 0)
    first = host.begun[1]
    assert (first["group"], first["tags"]) == ("hyper_cleaning", ["mine", "seed=1"])
    assert first["settings"].x_disable_meta  # this machine's would be told for the run's
    assert not first["dir"].startswith(str(tmp_path))
    many = len(host.begun)
    root = tmp_path / "runs"
    assert sync() == (0, [f"wandb_sync: nothing to send below {root}"], [])
    assert len(host.begun) == many
    loggers.tell_offline([folder.path])  # nothing is waiting


def test_runs_that_were_made_without_wandb_are_sent_if_all_are_asked_for(
    tmp_path: Path, host: Host, sync: Call
) -> None:
    folder = make(tmp_path, logger={"_target_": "bench.runs.loggers.local"})
    shutil.rmtree(folder.path / "wandb")
    host.begun.clear()
    root = tmp_path / "runs"
    assert sync().out == [f"wandb_sync: nothing to send below {root}"]
    found = sync(root, "--all", "--project", "mine", "--group", "g")
    assert found.out == [f"{folder.path.resolve()}: sent"]
    assert host.rows == {"key": [0, 5]}
    (begun, _) = host.begun
    assert (begun["project"], begun["group"]) == ("mine", "g")
    assert sync(root, "--all", "--project", "mine").out == [f"{folder.path.resolve()}: W&B had all"]


def test_a_run_that_went_on_has_each_row_once(tmp_path: Path, host: Host, sync: Call) -> None:
    """Stopped offline, sent, continued offline and sent again: W&B's own sync would have sent the
    rows of the second part after those of the first."""
    make(tmp_path, upto=2, done=False)
    assert sync().code == 0
    assert host.summaries["key"]["status"] == "preempted"
    assert host.summaries["key"]["exit"] == 75
    assert host.sent[-1]["against_seconds/test_loss"] == 5.0
    make(tmp_path, upto=3)
    assert sync().code == 0
    assert host.rows == {"key": [0, 5, 10]}
    assert (host.summaries["key"]["status"], host.summaries["key"]["reason"]) == ("done", "")


def test_a_run_that_was_online_is_asked_for_once(tmp_path: Path, host: Host, sync: Call) -> None:
    folder = make(tmp_path, mode="online")
    assert sync().out == [f"{folder.path.resolve()}: W&B had all"]
    assert host.rows == {"key": [0, 5]}
    assert len(host.begun) == 2
    assert "nothing to send" in sync().out[0]


def test_a_killed_run_is_sent_though_it_has_not_ended(
    tmp_path: Path, host: Host, sync: Call
) -> None:
    folder = make(tmp_path, mode="online", done=False)
    (folder.path / "status.json").unlink()
    host.rows["key"] = [0]  # W&B's process died with the others
    assert sync().code == 0
    assert host.rows == {"key": [0, 5]}
    assert host.summaries["key"]["status"] == "lost"


def test_a_run_that_is_made_anew_is_another_one(tmp_path: Path, host: Host, sync: Call) -> None:
    make(tmp_path, mode="online")
    make(tmp_path, anew=True, done=False)
    new = host.begun[-1]["id"]
    assert new.startswith("key-")
    make(tmp_path, upto=3)  # which goes on
    assert host.begun[-1]["id"] == new
    assert sync().code == 0
    assert host.rows == {"key": [0, 5], new: [0, 5, 10]}


def test_rows_that_a_host_drops_without_a_word_are_told(
    tmp_path: Path, host: Host, sync: Call
) -> None:
    folder = make(tmp_path)
    host.loses = 5
    said = sync()
    assert (said.code, said.out) == (1, [])
    assert said.err == [
        f"wandb_sync: {folder.path.resolve()} was not sent: W&B has its rows before step 0 only",
        "wandb_sync: 1 of 1 runs were not sent",
    ]
    host.loses = 10**9
    assert sync().code == 0  # it was not marked
    assert host.rows == {"key": [0, 5]}


def test_a_summary_that_a_host_lacks_is_sent(tmp_path: Path, host: Host, sync: Call) -> None:
    folder = make(tmp_path, mode="online")
    host.summaries["key"] = {"status": "preempted"}
    assert sync().out == [f"{folder.path.resolve()}: sent"]
    assert host.summaries["key"]["status"] == "done"
    assert host.rows == {"key": [0, 5]}


def test_runs_that_cannot_be_sent_are_in_nobodys_way(
    tmp_path: Path, host: Host, sync: Call
) -> None:
    """One line for each, and the others are sent."""
    damaged, refused, other, linked, busy, good = (make(tmp_path, key) for key in "abcdef")
    (damaged.path / "config.yaml").write_text("[")
    host.refuses = {"b"}
    (other.path / "config.yaml").unlink()
    local = {"_target_": "bench.runs.loggers.local"}
    other.prepare(
        {
            "run": {"force": False, "every": 5},
            "seed": 1,
            "logger": local,
            "task": {},
            "algorithm": {},
            "data": {},
        },
        5,
    )
    (linked.path / "wandb").rename(tmp_path / "elsewhere")
    (linked.path / "wandb").symlink_to(tmp_path / "elsewhere")
    with busy.lock():
        said = sync()
    assert (said.code, said.out) == (1, [f"{good.path.resolve()}: sent"])
    words = ("is damaged", "no such project", "had another logger", "is a link", "process")
    assert len(said.err) == len(words) + 1
    folders = (damaged, refused, other, linked, busy)
    for line, folder, word in zip(said.err, folders, words, strict=False):
        assert line.startswith(f"wandb_sync: {folder.path.resolve()} was not sent: ")
        assert word in line
    assert said.err[-1] == "wandb_sync: 5 of 6 runs were not sent"
    assert not list((tmp_path / "elsewhere").rglob("*.synced"))


@pytest.mark.parametrize("to", ["runs", "runs/hyper_cleaning/bome/key"])
def test_a_link_to_the_runs_is_followed(to: str, tmp_path: Path, host: Host, sync: Call) -> None:
    make(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / to)
    assert sync(tmp_path / "link").code == 0
    assert host.rows == {"key": [0, 5]}


def test_rows_that_a_host_lacks_are_sent_though_it_has_the_summary(
    tmp_path: Path, host: Host, sync: Call
) -> None:
    folder = make(tmp_path, mode="online")
    host.rows["key"] = [0]
    assert sync().out == [f"{folder.path.resolve()}: sent"]
    assert host.rows == {"key": [0, 5]}


def test_what_keeps_the_script_from_beginning(
    tmp_path: Path, host: Host, sync: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = sync(tmp_path / "no")
    assert missing == (2, [], [f"wandb_sync: {tmp_path}/no is not there: write wandb_sync.py RUNS"])
    make(tmp_path)
    monkeypatch.setattr(wandb_sync, "answers", lambda url, within: False)
    silent = "wandb_sync: https://a.example does not answer; nothing was sent"
    assert sync() == (1, [], [silent])
    monkeypatch.setenv("WANDB_API_KEY", "")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert "there is no key for https://a.example: write WANDB_API_KEY=..." in sync().err[0]
    assert sync().code == 2
    monkeypatch.setitem(sys.modules, "wandb", None)  # type: ignore[arg-type]
    assert sync().code == 2
    assert "cannot be imported" in sync().err[0]
    assert len(host.begun) == 1
