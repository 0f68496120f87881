"""Run folders that were named otherwise get the names of today, and go on from where they were."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hydra import compose, initialize_config_module

from bench.core.loop import Standing
from bench.runs import renaming
from bench.runs.folder import RunFolder, folders_below
from bench.runs.launch import complete, perform, place, resolve
from bench.runs.name import meaning_of, name
from bench.runs.renaming import Renaming
from tests.conftest import ROOT

Config = dict[str, Any]
GAMES = "algorithms.games.gradient"


@pytest.fixture
def config(tmp_path: Path) -> Config:
    settings = ("task=toy_coreset", "run.steps=20", "run.every=5", "run.threads=1",
                "run.checkpoint=0", f"run.root={tmp_path}/runs")  # fmt: skip
    with initialize_config_module("conf", version_base="1.3"):
        return resolve(compose("config", list(settings)))


def as_before(folder: RunFolder) -> RunFolder:
    """The folder as the code of before had it: another name, in each file that has names."""
    digest = hashlib.blake2b(folder.name.encode(), digest_size=5).hexdigest()
    old = RunFolder(folder.root, f"{folder.name.rpartition('/')[0]}/{digest}")
    environment = folder.environment()
    del environment["named_by"], environment["source"]
    folder.describe(environment)
    content = torch.load(folder.checkpoint, weights_only=True)
    torch.save({**content, "name": old.name}, folder.checkpoint)
    folder.move_to(old, folder.config())
    return old


def stopped_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    import bench.core.loop

    original = bench.core.loop.advance

    def advance(*arguments: Any) -> Standing:
        s = original(*arguments)
        if s.step == step:
            raise KeyboardInterrupt
        return s

    monkeypatch.setattr(bench.core.loop, "advance", advance)


def test_a_finished_and_a_begun_run_are_renamed(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The finished one is found again; the other goes on to what it would have come to."""
    other = {**config, "seed": 1}
    whole = {**other, "run": {**other["run"], "root": other["run"]["root"] + "2"}}
    assert perform(config, quiet=True) == perform(whole, quiet=True) == 0
    with monkeypatch.context() as patch:
        stopped_at(12, patch)
        with pytest.raises(KeyboardInterrupt):
            perform(other, quiet=True)
    folders = [place(config), place(other)]
    rows = folders[0].history()
    names = {as_before(folder).name: folder.name for folder in folders}
    found = list(renaming.rename(folders[0].root))
    assert {entry.old: entry.new for entry in found} == names
    assert [entry.left for entry in found] == [None, None]
    assert {folder.name for folder in folders_below(folders[0].root)} == set(names.values())
    assert folders[0].history() == rows
    summary = folders[0].summary()
    assert summary is not None
    assert summary["name"] == folders[0].name
    assert not list(folders[0].root.rglob("lock"))

    steps = folders[1].history()[-1]["step"]
    assert 0 < steps < 20
    assert perform(other, quiet=True) == 0
    ends = [place(made).history() for made in (other, whole)]
    clocks = ("seconds", "cpu_seconds")
    plain = [[{k: v for k, v in row.items() if k not in clocks} for row in end] for end in ends]
    assert plain[0] == plain[1]
    assert list(renaming.rename(folders[0].root)) == []


def test_a_name_of_before_is_of_first_versions(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose code has been changed since keeps its results apart from the new ones."""
    assert perform(config, quiet=True) == 0
    folder = place(config)
    old = as_before(folder)
    monkeypatch.setattr("bench.runs.name.version_of", lambda function: 2)
    monkeypatch.setattr(name, "__defaults__", (lambda function: 2,))
    assert name(config) != folder.name
    assert list(renaming.rename(folder.root)) == [Renaming(old.name, folder.name)]


def test_what_cannot_be_renamed_is_told_and_stays(config: Config) -> None:
    """A run that is there already, one that is being written, settings that nobody knows."""
    assert perform(config, quiet=True) == 0
    folder = place(config)
    old = as_before(folder)
    folder.path.mkdir()
    assert list(renaming.rename(folder.root)) == [
        Renaming(old.name, folder.name, "this run is there already")
    ]
    folder.path.rmdir()
    with old.lock():
        (entry,) = renaming.rename(folder.root)
        assert "is being written by process" in str(entry.left)
    settings = old.config()
    settings["algorithm"]["nobody"] = 1
    (old.path / "config.yaml").write_text(yaml.safe_dump(settings))
    (entry,) = renaming.rename(folder.root)
    assert entry.new == "?"
    assert str(entry.left).startswith("algorithm.nobody=1: no such setting")
    assert old.summary() is not None


def test_step_sizes_are_found_under_their_former_names(config: Config) -> None:
    """A folder whose configuration has outer.lr and lower.lr keeps its rows and is found again."""
    assert perform(config, quiet=True) == 0
    folder = place(config)
    rows, settings = folder.history(), folder.config()
    old = as_before(folder)
    former = old.config()
    for side in ("outer", "lower"):
        former["algorithm"][side]["lr"] = former["algorithm"].pop(f"{side}_lr")
    (old.path / "config.yaml").write_text(yaml.safe_dump(former))
    assert list(renaming.rename(folder.root)) == [Renaming(old.name, folder.name)]
    assert (folder.config(), folder.history()) == (settings, rows)
    assert list(renaming.rename(folder.root)) == []


@pytest.mark.parametrize(
    ("former", "today"),
    [
        ({"_target_": f"{GAMES}.gda", "lr": 0.1}, {"_target_": f"{GAMES}.gda", "outer_lr": 0.1}),
        ({"_target_": "algorithms.continual.er.er", "lr": 0.1}, None),  # a step size of y
        (
            {"_target_": "algorithms.bilevel.bome.bome", "barrier": "slope"},
            {"_target_": "algorithms.bilevel.bome.bome", "barrier": "unsquared"},
        ),
    ],
)
def test_former_spellings(former: Config, today: Config | None) -> None:
    assert renaming.update(former) == (former if today is None else today)


def test_a_run_keeps_the_versions_that_it_was_made_with(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that says its versions is not taken for a run of today's code."""
    assert perform(config, quiet=True) == 0
    folder = place(config)
    monkeypatch.setattr("bench.runs.name.version_of", lambda function: 2)
    monkeypatch.setattr(name, "__defaults__", (lambda function: 2,))
    assert list(renaming.rename(folder.root)) == []


def test_functions_are_found_where_they_are_today(config: Config) -> None:
    moved = json.loads(json.dumps(config))
    moved["algorithm"]["_target_"] = "algorithms.gone.bome"
    moved["algorithm"]["outer"]["_target_"] = "bench.gone.descent"
    assert meaning_of(complete(renaming.update(moved))) == meaning_of(config)
    moved["algorithm"]["_target_"] = "algorithms.gone.nothing"
    assert renaming.update(moved)["algorithm"]["_target_"] == "algorithms.gone.nothing"


def test_the_command(config: Config) -> None:
    assert perform(config, quiet=True) == 0
    folder = place(config)
    old = as_before(folder)
    command = [sys.executable, "-m", "bench.reproduce", "rename", "--runs", str(folder.root)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.splitlines() == [f"{old.name} -> {folder.name}", "1 renamed, 0 left"]
    assert done.returncode == 0


def test_a_place_may_be_told_by_its_parents(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From within a run's folder, and from that of another method of its task."""
    assert perform(config, quiet=True) == 0
    folder = place(config)
    other = folder.path.parents[1] / "other"
    other.mkdir()
    for here, there in [(folder.path, ".."), (folder.path, "../../.."), (other, "../quadratic")]:
        monkeypatch.chdir(here)
        below = folder.path.parent.name if there.startswith("../q") else ""
        asked = Path("..") / below if below else Path(there)
        assert [found.name for found in folders_below(asked)] == [folder.name]
        assert list(renaming.rename(asked)) == []
    assert folder.summary() is not None


def test_a_damaged_run_does_not_keep_others_from_their_names(config: Config) -> None:
    """Nothing of it is changed."""
    for seed in (0, 1):
        assert perform({**config, "seed": seed}, quiet=True) == 0
    folders = [place({**config, "seed": seed}) for seed in (0, 1)]
    olds = sorted((as_before(folder) for folder in folders), key=lambda old: old.path)
    olds[0].checkpoint.write_bytes(b"x")
    settings = (olds[0].path / "config.yaml").read_bytes()
    one, two = renaming.rename(folders[0].root)
    assert "checkpoint.pt cannot be read" in str(one.left)
    assert two.left is None
    assert (olds[0].path / "config.yaml").read_bytes() == settings
    assert not olds[1].path.exists()
