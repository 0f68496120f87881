"""What travels to a lent machine: data, whole again there, code with its commit, work in order."""

import io
import json
import os
import subprocess
import sys
import tarfile
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

from bench import about
from bench.core.settings import BadSetting
from bench.reproduce.book import load_book
from bench.reproduce.points import points
from bench.reproduce.records import read_record, write_record
from scripts.gpu import pack, run, work
from scripts.gpu.listed import plan_with_record
from scripts.import_data import DATA_SETS, put_together
from tests.conftest import ROOT

BOOK = load_book()
GPU = [artifact for artifact in BOOK.artifacts.values() if "gpu" in artifact.spec.budgets]


@pytest.mark.parametrize("artifact", GPU, ids=[artifact.id for artifact in GPU])
def test_the_budget_gpu_is_the_papers_scale_without_its_grids(artifact: Any) -> None:
    """As full, but for seeds and grids: five seeds, and at most two points of a row."""
    spec = artifact.spec
    assert spec.scale("gpu") == "paper"
    assert spec.budgets["gpu"].seeds == 5
    assert spec.budgets["gpu"].set == spec.budgets["full"].set
    each = Counter((p.variant, p.row) for p in points(spec, BOOK, "gpu"))
    assert max(each.values()) <= 2
    full = {(p.variant, p.row): p for p in points(spec, BOOK, "full")}
    grids: dict[tuple[str, str], list[Any]] = {}
    for p in points(spec, BOOK, "full"):
        grids.setdefault((p.variant, p.row), []).append(dict(p.chosen))
    for p in points(spec, BOOK, "gpu"):
        assert p.settings == full[p.variant, p.row].settings
        kept = dict(p.chosen)
        assert any(kept.items() <= whole.items() for whole in grids[p.variant, p.row])


def test_the_parts_of_a_file_are_the_file(tmp_path: Path) -> None:
    """No part has what another has, and a small file goes once."""
    source, name = tmp_path / "strips.zip", "cifar/strips.zip"
    content = os.urandom(2**20 + 12345)
    source.write_bytes(content)
    small = tmp_path / "meta"
    small.write_bytes(b"names")
    sizes = []
    for part in range(pack.PARTS):
        out = tmp_path / f"part{part}" / name
        out.parent.mkdir(parents=True)
        pack.pack_part(source, out, part)
        pack.pack_part(small, out.with_name("meta"), part)
        sizes.append(pack.size_of(out.parent))
        for file in out.parent.iterdir():
            to = tmp_path / "kept" / "cifar" / file.name
            to.parent.mkdir(parents=True, exist_ok=True)
            assert not to.exists()
            to.write_bytes(file.read_bytes())
    assert max(sizes) - min(sizes) < 40
    put_together(tmp_path / "kept" / name, tmp_path / "whole")
    assert (tmp_path / "whole").read_bytes() == content
    assert (tmp_path / "kept/cifar/meta").read_bytes() == b"names"


def test_what_is_derived_travels_where_it_came_back(tmp_path: Path) -> None:
    """A file that a GPU's machine would not have sent back was made here, for another device."""
    pack.pack_derived(tmp_path / "none", tmp_path / "no data")
    assert not (tmp_path / "none").exists()
    (tmp_path / "derived").mkdir()
    for name, size in (("cleaning-1.pt", 2**20), ("newsgroups-2.pt", 2**20 + 1), ("counts.npz", 1)):
        (tmp_path / "derived" / name).write_bytes(bytes(size))
    pack.pack_derived(tmp_path / "out", tmp_path)
    assert [file.name for file in (tmp_path / "out/derived").iterdir()] == ["cleaning-1.pt"]


def packed(*arguments: str) -> int:
    """The exit code of scripts.gpu.pack."""
    with mock.patch.object(sys, "argv", ["pack", *arguments]):
        return pack.main()


def test_a_pack_and_the_checkout_it_travels_beside_have_a_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lender counts both. The checkout's size is that of git's own archive."""
    (tmp_path / "wheels").mkdir()
    source, files = tmp_path / "source", DATA_SETS["MNIST"].sources
    for file in files:
        (source / file).parent.mkdir(parents=True, exist_ok=True)
        (source / file).write_bytes(os.urandom(1000))
    given = [f"{tmp_path / 'out'}", "--from", f"{source}", "--data", f"{tmp_path}"]
    given += ["--root", f"{tmp_path / 'runs'}", "--wheels", f"{tmp_path / 'wheels'}"]
    monkeypatch.setattr(pack, "work_list", lambda *_: [])
    beside = pack.size_of_checkout() / 2**20
    tracked = subprocess.run(
        ["git", "-C", str(ROOT), "archive", "HEAD"], capture_output=True, check=True
    )
    with tarfile.open(fileobj=io.BytesIO(tracked.stdout)) as tar:
        at_head = sum(entry.size for entry in tar.getmembers()) / 2**20
    assert beside == pytest.approx(at_head, rel=0.1)  # files may have changed since
    assert packed(*given, "--most", f"{beside + 10}") == 0
    size = pack.size_of(tmp_path / "out") / 2**20
    capsys.readouterr()
    assert packed(*given, "--most", f"{beside + size - 0.01}") == 2
    said = capsys.readouterr().err
    assert f"gpu.pack: {size:.1f} MiB and a checkout of {beside:.1f} are more than --most" in said
    assert "write fewer --sets, or --part" in said


@pytest.mark.parametrize(("part", "whole"), [(None, True), ("0", False), ("1", False), ("2", True)])
def test_the_work_goes_with_the_last_part(
    part: str | None, whole: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wheels").mkdir()
    monkeypatch.setattr(pack, "work_list", lambda *_: [{"id": "a/b", "budget": "gpu"} | MADE])
    given = [f"{tmp_path / 'out'}", "--data", f"{tmp_path}", "--root", f"{tmp_path / 'runs'}"]
    given += ["--wheels", f"{tmp_path / 'wheels'}", "--sets", *(["--part", part] if part else [])]
    assert packed(*given) == 0
    said = json.loads((tmp_path / "out" / "list.json").read_text())
    assert (said["whole"], len(said["items"])) == (whole, whole)


def test_a_folder_that_is_no_pack_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pack is, and stays as it was where something is refused before a new one is begun."""
    (tmp_path / "wheels").mkdir()
    monkeypatch.setattr(pack, "work_list", lambda *_: [])
    (tmp_path / "thesis.tex").write_text("years")
    rest = ["--data", f"{tmp_path}", "--root", f"{tmp_path / 'runs'}", "--sets"]
    rest += ["--wheels", f"{tmp_path / 'wheels'}"]
    assert packed(f"{tmp_path}", *rest) == 2
    assert "has files, and is no pack" in capsys.readouterr().err
    assert (tmp_path / "thesis.tex").read_text() == "years"
    for name in ("state.py", "start.py"):  # as other folders have them too
        (tmp_path / name).write_text("mine")
        assert packed(f"{tmp_path}", *rest) == 2
    assert (tmp_path / "thesis.tex").read_text() == "years"
    out = tmp_path / "out"
    assert packed(f"{out}", *rest) == packed(f"{out}", *rest) == 0

    def refuse(*_: object) -> None:
        raise BadSetting("--only: no such artifact")

    monkeypatch.setattr(pack, "work_list", refuse)
    assert packed(f"{out}", *rest) == 2
    assert (out / "list.json").is_file()


MADE = {"name": "a/b", "runs": 1, "claims": 1, "minutes": 1.0}


def test_the_code_that_travels_knows_its_commit(tmp_path: Path) -> None:
    pack.pack_code(tmp_path / "code.tar.gz")
    with tarfile.open(tmp_path / "code.tar.gz") as tar:
        names = set(tar.getnames())
        told = tar.extractfile("bench/commit.json")
        assert told is not None
        assert json.loads(told.read()) == about.commit()
    assert {"bench/main.py", "conf/config.yaml", "scripts/gpu/work.py", "tasks/toy.py"} <= names
    assert not any(name.startswith(("tests/", "results/")) for name in names)


def test_what_has_a_record_at_home_is_not_made_again(tmp_path: Path) -> None:
    """Every item of the work that is a script has its record in the pack, and no record of a CPU
    travels."""
    results, there = tmp_path / "home", tmp_path / "work" / "results"

    def settings(at: Path) -> work.Settings:
        return work.Settings(torch.device("cpu"), at, at, at, False, 1, time.monotonic() + 1e3)

    records = (
        "gpu/roofline",
        "gpu/lanes",
        "speed/gpu_gradient",
        "speed/gpu_replayed",
        "speed/gpu_few_shot",
    )
    for name in (*records, "speed/cpu_gradient", "speed/gpu_hyper_cleaning"):
        (results / f"{name}.json").parent.mkdir(parents=True, exist_ok=True)
        (results / f"{name}.json").write_text('{"replayed": true}')
    items = [item for item in work.ITEMS if item.name not in work.CHECKS]
    assert all(item.done(settings(results)) for item in items)
    pack_ = tmp_path / "pack"
    pack_.mkdir()
    pack.pack_state(pack_, tmp_path / "runs", results, [])
    with tarfile.open(pack_ / "code.tar.gz", "w:gz"):
        pass
    run.unpack(pack_, tmp_path / "work")
    assert [item.name for item in items if not item.done(settings(there))] == []
    assert not (there / "speed" / "cpu_gradient.json").exists()


def test_work_is_in_the_order_of_claims_per_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without what lacks its data, or is complete; an artifact that is half done takes half."""
    missing = {"bome/table1": 100, "f2obo/fig1": 20, "bome/fig2_mnist": 0}
    missing |= {f"bome/ablation_{name}": 0 for name in ("T", "alpha", "barrier", "eta")}

    def plan(artifact: Any, *rest: Any) -> Any:
        runs = missing.get(artifact.id, 5)
        return SimpleNamespace(missing=[None] * runs, later=0, count=40 if runs == 20 else 100)

    monkeypatch.setattr(pack, "plan_with_record", plan)
    items = pack.work_list(BOOK, ["MNIST"], tmp_path)
    assert {item["id"] for item in items} == {"bome/table1", "f2obo/fig1"}
    assert {item["id"]: item["minutes"] for item in items} == {"bome/table1": 5, "f2obo/fig1": 6}
    worth = [item["claims"] / item["minutes"] for item in items]
    assert worth == sorted(worth, reverse=True)
    assert [i["id"] for i in pack.work_list(BOOK, ["MNIST"], tmp_path, "gpu", ["f2obo/fig1"])] == [
        "f2obo/fig1"
    ]
    # table 1 has a record of all 20 tasks, made on a CPU, and figure 1 one of a smaller network
    claims = [
        {
            item["id"]: item["claims"]
            for item in pack.work_list(BOOK, ["MNIST"], tmp_path, results=r)
        }
        for r in (tmp_path, ROOT / "results")
    ]
    assert claims[0]["bome/table1"] > claims[1]["bome/table1"] == 0
    assert claims[0]["f2obo/fig1"] == claims[1]["f2obo/fig1"] > 0
    with pytest.raises(BadSetting, match="--only bome/table9: write one of bome/"):
        pack.work_list(BOOK, ["MNIST"], tmp_path, "gpu", ["bome/table9"])
    with pytest.raises(
        BadSetting, match="--only bome/table2: add CIFAR100 to --sets, which it reads"
    ):
        pack.work_list(BOOK, ["MNIST"], tmp_path, "gpu", ["bome/table2"])


def test_a_record_that_lacks_runs_judges_nothing(tmp_path: Path) -> None:
    artifact = BOOK.artifacts["bome/table1"]
    whole = read_record("bome/table1", "short", ROOT / "results")
    assert whole is not None
    assert not pack.is_judged(artifact, tmp_path, "gpu")
    for complete in (False, True):
        write_record(whole.model_copy(update={"complete": complete}), tmp_path)
        assert pack.is_judged(artifact, tmp_path, "gpu") == complete
    assert not pack.is_judged(artifact, tmp_path, "short")


def test_runs_that_a_record_has_are_not_made_again(tmp_path: Path) -> None:
    """The record travels, and there as here it stands for its runs, whose folders are gone."""
    results = ROOT / "results"
    items, all_of = (
        pack.work_list(BOOK, ["CIFAR100"], tmp_path, "gpu", ["bome/table2"], there)
        for there in (results, tmp_path)
    )
    left, anew = (sum(item["runs"] for item in each) for each in (items, all_of))
    record = read_record("bome/table2", "gpu", results)
    assert record is not None
    rows = [row for own in record.rows.values() for row in own.values() if not row.outdated]
    known = {run for row in rows for run, is_ in zip(row.runs, row.status) if is_ == "done"}
    assert anew - left == len(known) > 0
    (tmp_path / "pack").mkdir()
    pack.pack_state(tmp_path / "pack", tmp_path / "none", results, items)
    with tarfile.open(tmp_path / "pack/code.tar.gz", "w:gz"):
        pass
    run.unpack(tmp_path / "pack", tmp_path / "work")
    there = plan_with_record(
        BOOK.artifacts["bome/table2"],
        BOOK,
        "gpu",
        tmp_path / "work/runs",
        tmp_path / "work/results",
    )
    assert len(there.missing) == left


def test_the_groups_of_an_artifact_are_all_of_its_rows(tmp_path: Path) -> None:
    """Each is an entry, with its part of the time, until its runs are made; the whole's name stands
    for all of them."""
    for id, groups in pack.GROUPS.items():
        artifact = BOOK.artifacts[id]
        assert sorted(name for group in groups for name in group) == sorted(artifact.spec.rows)
        items = pack.work_list(BOOK, pack.SETS, tmp_path, "gpu", [id], tmp_path)
        assert [item["name"] for item in items] == [f"{id}:{k + 1}" for k in range(len(groups))]
        assert {work.whole_name(item["name"]) for item in items} == {id}
        minutes = sum(item["minutes"] for item in items)
        assert minutes == pytest.approx(artifact.spec.budgets["gpu"].minutes)
    plan = plan_with_record(artifact, BOOK, "gpu", tmp_path, tmp_path)
    last = [row for row in plan.rows if row.name in groups[-1]]
    others = [row for row in plan.rows if row.name not in groups[-1]]
    for run_ in {run_.planned.name: run_ for row in others for run_ in row.runs}.values():
        object.__setattr__(run_, "summary", {})
    (item,) = pack.in_groups({"id": id, "minutes": 3.0, "runs": 30, "claims": 1}, plan)
    assert item["rows"] == groups[-1]
    assert item["runs"] == len({run_.planned.name for row in last for run_ in row.runs})
    assert item["minutes"] == 3.0 * item["runs"] / 30


def test_claims_about_times_are_no_reason_to_go_first() -> None:
    claims = BOOK.artifacts["bome/fig2_mnist"].spec.claims
    timed = {name for name, claim in claims.items() if pack.reads_times(claim)}
    assert timed == {
        name + T
        for name in ("first_in_time", "before_second_order", "before_bvfsm")
        for T in ("", "_T20")
    }


@pytest.mark.parametrize(
    ("artifact", "sets"),
    [
        ("bome/fig2_mnist", {"MNIST"}),  # named for all rows
        ("stocbio/fig3", {"CIFAR100"}),  # by a row
        ("peers/ijcnn1", {"IJCNN1"}),  # as the task's source
        ("bome/fig2_newsgroups", {"newsgroups"}),
    ],
)
def test_an_artifact_travels_with_the_data_that_it_reads(artifact: str, sets: set[str]) -> None:
    assert sets <= pack.needs(BOOK.artifacts[artifact])


def test_data_that_are_not_here_are_named(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match=r"MNIST/raw/.* is not there"):
        pack.pack_data(tmp_path / "out", ["MNIST"], tmp_path, tmp_path, None)
    with pytest.raises(BadSetting, match="make one run of task=newsgroups"):
        pack.pack_data(tmp_path / "out", ["newsgroups"], tmp_path, tmp_path, None)
    assert not (tmp_path / "out").exists()
