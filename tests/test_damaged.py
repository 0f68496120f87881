"""Run folders, records and data that are damaged or mean harm: at most one line each, which names
the file, and whatever is whole beside them is read."""

import errno
import gzip
import json
import os
import re
import shutil
import signal
import sys
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from bench.core.settings import BadSetting
from bench.core.task import Context
from bench.reproduce import bands, chosen_runs, cli, dashboard, grouping, records
from bench.reproduce.book import load_book
from bench.reproduce.points import points
from bench.reproduce.run_names import Names
from bench.reproduce.specs import Book
from bench.reproduce.standing import current_plan
from bench.runs.folder import RunFolder, folder_at, folders_below, has_ended_run
from bench.runs.history import MOST_LINE, History, raw_lines
from bench.runs.launch import earlier_end
from tasks.data import newsgroups, pickles, tables

HUGE = "7" * 400  # digits of an integer that no float is as large as
SPEC: dict[str, Any] = {
    "title": "One method", "source": "a test", "task": "toy_minimax",
    "set": {"run.steps": 40, "run.every": 10},
    "variants": {"paper": {}},
    "budgets": {"smoke": {"minutes": 0.1, "seeds": 3}},
    "columns": ["distance"],
    "figure": {"metrics": ["distance"]},
    "rows": {"BOME": {"method": "bome"}},
    "claims": {"ends": {"kind": "converges", "by": "us", "text": "it ends near", "rows": ["BOME"],
                        "metric": "distance", "within": 2.5, "budgets": ["smoke"]},
               "goes": {"kind": "diverges", "by": "us", "text": "it goes away", "rows": ["BOME"],
                        "metric": "distance", "growth": 10.0, "budgets": ["smoke"]}},
}  # fmt: skip
ENVIRONMENT: dict[str, Any] = {
    "python": "3.11", "packages": {"torch": "2"}, "git": {"commit": "0123456789a", "dirty": False},
    "cpu": "a CPU", "cpu_capability": "AVX2", "gpu": None, "threads": 1, "device": "cpu",
    "data": {}, "compile": False, "lanes": [], "source": {"digest": "ab", "files": {}},
}  # fmt: skip


@pytest.fixture(autouse=True)
def no_hang() -> Iterator[None]:
    """What waits for ever, as for a pipe, ends the test."""
    signal.alarm(60)
    yield
    signal.alarm(0)


def make_run(folder: RunFolder, seed: int, distance: float = 1.0) -> None:
    """A run that has ended, in files written by hand."""
    folder.path.mkdir(parents=True)
    history = History(folder.path / "history.jsonl")
    for step in range(0, 50, 10):
        last = {"step": step, "seconds": 0.1 * step, "cpu_seconds": 0.1 * step,
                "distance": distance, "calls/grad_f": step}  # fmt: skip
        history.add(last)
    history.close()
    config = {
        "seed": seed, "run": {"steps": 40, "every": 10}, "algorithm": {"T": 2},
        "task": {"_target_": "tasks.toy.toy_minimax"},
    }  # fmt: skip
    summary = {
        "status": "done", "reason": None, "name": folder.name, "metric": "distance", "last": last,
        "references": {}, "peak_memory_mb": {"process": 1.0},
        "process": {"cpu_seconds": 1.0, "earlier_runs": 0, "others_cores": None},
    }  # fmt: skip
    (folder.path / "config.yaml").write_text(yaml.safe_dump(config))
    (folder.path / "environment.json").write_text(json.dumps(ENVIRONMENT))
    (folder.path / "summary.json").write_text(json.dumps(summary))


def put(text: str | bytes) -> Callable[[Path], None]:
    """Replace the file's content."""

    def damage(file: Path) -> None:
        file.write_bytes(text.encode() if isinstance(text, str) else text)

    return damage


def change(**fields: Any) -> Callable[[Path], None]:
    """Change fields of the JSON in the file; None takes them out."""

    def damage(file: Path) -> None:
        content = json.loads(file.read_text()) | fields
        gone = {key for key in fields if fields[key] is None}
        file.write_text(json.dumps({k: v for k, v in content.items() if k not in gone}))

    return damage


def replace(old: str, new: str) -> Callable[[Path], None]:
    """Replace a text in the file."""

    def damage(file: Path) -> None:
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new, 1))

    return damage


def double_row(file: Path) -> None:
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join([*lines[:3], lines[2], *lines[3:]]))


def take_row(file: Path) -> None:
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join([*lines[:2], *lines[3:]]))


def make_pipe(file: Path) -> None:
    file.unlink(missing_ok=True)
    os.mkfifo(file)


def make_folder(file: Path) -> None:
    file.unlink(missing_ok=True)
    file.mkdir()


def link_to_zeros(file: Path) -> None:
    file.unlink(missing_ok=True)
    file.symlink_to("/dev/zero")


def link_to_itself(file: Path) -> None:
    file.unlink(missing_ok=True)
    file.symlink_to(file)


def make_large(file: Path) -> None:
    """Sparse: it takes no room."""
    os.truncate(file, 5_000_000_000)


def bomb(merge: str) -> str:
    """Aliases of aliases, 2^60 values in all."""
    lines = ["a0: &a0 {x: 1}"]
    lines += [f"a{i}: &a{i} {{{merge}: [*a{i - 1}, *a{i - 1}]}}" for i in range(1, 60)]
    return "\n".join(lines)


class Damage(NamedTuple):
    """file: which one. do: damages it. compared: whether `compare` has a line for it. checked:
    whether `check` and `report` have."""

    file: str
    do: Callable[[Path], None]
    compared: bool
    checked: bool


def in_summary(do: Callable[[Path], None]) -> Damage:
    return Damage("summary.json", do, True, True)


def in_config(do: Callable[[Path], None]) -> Damage:
    return Damage("config.yaml", do, True, False)


def in_history(do: Callable[[Path], None]) -> Damage:
    return Damage("history.jsonl", do, True, True)


def in_environment(do: Callable[[Path], None]) -> Damage:
    return Damage("environment.json", do, False, True)


def in_view(do: Callable[[Path], None]) -> Damage:
    return Damage("view.json", do, False, True)


CASES: dict[str, Damage] = {
    "a summary that is empty": in_summary(put("")),
    "a summary that is cut": in_summary(put('{"status": "do')),
    "a summary that is a list": in_summary(put("[]")),
    "a summary that is deep": in_summary(put("[" * 100_000)),
    "a summary that is no text": in_summary(put(b"\xff\xfe\x00")),
    "a summary without a status": in_summary(change(status=None)),
    "a summary whose status is a list": in_summary(change(status=["done"])),
    "a summary whose last is a list": in_summary(change(last=[1, 2])),
    "a summary with a list for a metric": in_summary(change(last={"distance": [1]})),
    "a summary with a text for a metric": in_summary(change(last={"distance": "1"})),
    "a summary with a huge integer": in_summary(
        put(f'{{"status": "done", "reason": null, "last": {{"distance": {HUGE}}}}}')
    ),
    "a summary with half a character": in_summary(
        put('{"status": "\\ud800", "reason": null, "last": {}}')
    ),
    "a summary with times that are none": in_summary(change(process=["x"])),
    "a summary without its memory": in_summary(change(peak_memory_mb={"gpu": None})),
    "a summary that is a pipe": in_summary(make_pipe),
    "a summary that is a folder": in_summary(make_folder),
    "a summary that is endless": in_summary(link_to_zeros),
    "a summary that is its own link": in_summary(link_to_itself),
    "a summary that is large": in_summary(make_large),
    "settings that are empty": in_config(put("")),
    "settings that are broken": in_config(put("a: [1\nb: }")),
    "settings that are a list": in_config(put("[1, 2]")),
    "settings without a task": in_config(put("seed: 1\nrun: {}\nalgorithm: {}\n")),
    "settings with a text for a table": in_config(replace("run:\n", "run: x\nran:\n")),
    "settings that refer to themselves": in_config(put("task: &a {x: *a}\n")),
    "settings with aliases of aliases": in_config(put(bomb("x"))),
    "settings with merges of merges": in_config(put(bomb("<<"))),
    "settings that are deep": in_config(put("task: " + "[" * 100_000)),
    "settings that are deep by lines": in_config(put("task:\n" + "- " * 90_000 + "x")),
    "settings that would run code": in_config(put("task: !!python/object/apply:os.mkdir [x]")),
    "settings with a date": in_config(replace("T: 2", "T: 2001-01-01")),
    "settings with bytes": in_config(replace("T: 2", "T: !!binary aGk=")),
    "settings with a huge integer": in_config(replace("T: 2", f"T: {HUGE}")),
    "settings with half a character": in_config(replace("T: 2", 'T: "\\ud800"')),
    "settings with a number for a key": in_config(replace("T: 2", "3: 2")),
    "settings with a huge seed": in_config(replace("seed: 0", f"seed: {HUGE}")),
    "settings that are large": in_config(put("a: " + "x" * 10_000_000)),
    "settings that are a pipe": in_config(make_pipe),
    "settings that are endless": in_config(link_to_zeros),
    "a row with a list": in_history(put('{"step": 0, "distance": [1]}\n{"step": 1}\n')),
    "a row with a table": in_history(put('{"step": 0, "a": {"b": 1}}\n{"step": 1}\n')),
    "a row with a huge integer": in_history(put(f'{{"step": 0, "a": {HUGE}}}\n{{"step": 1}}\n')),
    "a row with half a character": in_history(put('{"step": 0, "\\ud800": 1}\n{"step": 1}\n')),
    "a row that has no step": in_history(put('{"distance": 1.0}\n{"step": 1}\n')),
    "a row that is deep": in_history(put("[" * 100_000 + '\n{"step": 1}\n')),
    "a row that is long": in_history(put('{"step": 0, "a": ' + "1" * 2_000_000 + "}\n")),
    "a row that was changed": in_history(replace('"distance": 1.0', '"distance": 0.5')),
    "a row that is there twice": in_history(double_row),
    "a row that is gone": in_history(take_row),
    "a history that is a pipe": in_history(make_pipe),
    "a history that is a folder": in_history(make_folder),
    "a history that is endless": in_history(link_to_zeros),
    "a history that is large": in_history(make_large),
    "an environment with x threads": in_environment(change(threads="x")),
    "an environment without packages": in_environment(change(packages=None)),
    "an environment with a list for a commit": in_environment(change(git=["a"])),
    "an environment with a text for its source": in_environment(change(source="x")),
    "an environment that went on with x": in_environment(change(continued=[{"changed": "x"}])),
    "an environment that went on without packages": in_environment(
        change(continued=[{"step": 1, "changed": {"packages": [{}, None]}}])
    ),
    "an environment that is a pipe": in_environment(make_pipe),
    "a picture of nothing": in_view(put('{"of": 1}')),
    "a picture of texts": in_view(
        put('{"title": "", "x": "", "y": "", "low": 0, "high": 1, "matrix": [["a"]]}')
    ),
    "a picture that is endless": in_view(link_to_zeros),
}


class World(NamedTuple):
    """specs: a folder with one artifact. root: its three runs."""

    specs: Path
    root: Path
    runs: list[RunFolder]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> World:
    """The artifact and its runs, all of them whole; their names are known."""
    place = tmp_path_factory.mktemp("made")
    (place / "specs" / "mine").mkdir(parents=True)
    (place / "specs" / "mine" / "toy.yaml").write_text(yaml.safe_dump(SPEC))
    book, root = load_book(place / "specs"), place / "runs"
    names, artifact = Names(root), book.artifacts["mine/toy"]
    (point,) = points(artifact.spec, book, "smoke")
    names.ensure([(point, seed) for seed in range(3)], artifact.file)
    for seed in range(3):
        make_run(RunFolder(root, str(names.get(point, seed))), seed)
    return World(place / "specs", root, list(folders_below(root)))


@pytest.fixture
def world(made: World, tmp_path: Path) -> World:
    """A copy of what was made, to be damaged."""
    root = tmp_path / "runs"
    shutil.copytree(made.root, root)
    return World(made.specs, root, list(folders_below(root)))


Reproduce = Callable[..., int]


def called(folder: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit code of `reproduce`, which is called in this process, from a folder."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["reproduce", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return int(end.value.code or 0)


@pytest.fixture
def reproduce(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reproduce:
    """`reproduce` in this process; gives its exit code."""
    return partial(called, tmp_path, monkeypatch)


EMPTY = Book({}, {"any": {}}, {})


@pytest.mark.parametrize("case", CASES)
def test_a_damaged_folder_has_one_line_and_the_others_are_compared(
    case: str, world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage, bad = CASES[case], world.runs[0]
    damage.do(bad.path / damage.file)
    count = dashboard.compare([world.root], EMPTY).count
    said = capsys.readouterr().err.splitlines()
    assert len(said) == damage.compared, said
    assert count == 3 - damage.compared
    for line in said:
        assert line.startswith(f"reproduce: left out: {bad.path}")
        assert len(line) < 400


def replace_in(file: str, old: str, new: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        text = (folder / file).read_text()
        assert old in text
        (folder / file).write_text(text.replace(old, new, 1))

    return damage


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "a value of a row": (
        replace_in("history.jsonl", '"step": 20, "seconds": 2.0', '"step": 20, "seconds": 1.0'),
        "history.jsonl: row 3 was changed, or one before it is gone",
    ),
    "half a row": (
        replace_in("history.jsonl", '"step": 20, ', '"step": 2'),
        "history.jsonl: row 3 cannot be read",
    ),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_the_end_of_a_run_whose_files_were_changed_is_not_shown(case: str, tmp_path: Path) -> None:
    """`bench` would else print a best value that nobody measured."""
    damage, words = DAMAGES[case]
    folder = RunFolder(tmp_path, "toy_minimax/bome/0123456789")
    make_run(folder, 0)
    config = yaml.safe_load((folder.path / "config.yaml").read_text())
    config["run"] |= {"force": False, "retry_failed": False, "root": str(tmp_path)}
    config["data"] = {"root": str(tmp_path)}
    show = earlier_end(config, folder)
    assert show is not None
    show(False)
    damage(folder.path)
    with pytest.raises(BadSetting, match=re.escape(words)):
        show(False)


def test_rows_that_are_picked_out_have_their_place_in_the_chain(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "toy_minimax/bome/0123456789")
    make_run(folder, 0)
    assert [row["step"] for row in folder.history_at({1, 3})] == [10, 30]
    replace_in("history.jsonl", '"step": 20, "seconds": 2.0', '"step": 20, "seconds": 1.0')(
        folder.path
    )
    assert [row["step"] for row in folder.history_at({0, 1})] == [0, 10]  # before what was changed
    with pytest.raises(BadSetting, match="row 3 was changed"):
        folder.history_at({1, 3})


@pytest.mark.parametrize("case", CASES)
def test_a_damaged_folder_has_one_line_and_the_others_are_judged(
    case: str, world: World, reproduce: Reproduce, capsys: pytest.CaptureFixture[str]
) -> None:
    damage, bad = CASES[case], world.runs[0]
    damage.do(bad.path / damage.file)
    code = reproduce("check", "--runs", str(world.root), "--specs", str(world.specs))
    assert code in (0, 1, 3)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == damage.checked, said
    for line in said:
        assert line.startswith(f"reproduce: left out: {bad.path}")
        assert len(line) < 400
    book = load_book(world.specs)
    plan = current_plan(book.artifacts["mine/toy"], book, "smoke", world.root)
    record = records.make_record(plan, book)
    assert record.complete is not damage.checked
    assert capsys.readouterr().err == ""  # it was said once


@pytest.mark.parametrize("case", [case for case in CASES if CASES[case].file == "summary.json"])
def test_a_damaged_summary_has_one_line_and_the_others_are_planned(
    case: str, world: World, reproduce: Reproduce, capsys: pytest.CaptureFixture[str]
) -> None:
    damage, bad = CASES[case], world.runs[0]
    damage.do(bad.path / damage.file)
    where = ("--runs", str(world.root), "--specs", str(world.specs))
    assert reproduce("plan", "mine/toy", "--budget", "smoke", *where) == 0
    told = capsys.readouterr()
    (line,) = told.err.splitlines()
    assert line.startswith(f"reproduce: left out: {bad.path}")
    assert len(line) < 400
    assert "mine/toy smoke: 3 runs (" in told.out
    assert "1 missing" in told.out


@pytest.mark.parametrize("value", [1e308, -1e308, 5e-324, None])
def test_values_at_the_end_of_floats_are_judged_and_drawn(
    value: float | None, made: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    reproduce: Reproduce, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    root = tmp_path / "large"
    for k, run in enumerate(made.runs):
        make_run(RunFolder(root, run.name), k, value if value is None or k else -value)  # type: ignore[arg-type]
    shutil.copytree(made.root / ".reproduce", root / ".reproduce")
    where = ["--runs", str(root), "--specs", str(made.specs)]
    assert reproduce("check", *where) in (0, 1, 3)
    assert reproduce("report", *where, "--record") == 0
    assert capsys.readouterr().err == ""
    assert (tmp_path / "results/mine/toy/smoke.json").is_file()
    assert reproduce("check", *where, "--against-record") == 0
    assert reproduce("compare", str(root), "--specs", str(made.specs)) == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"name": None}, {"metric": None}, {"metric": "other"}, {"references": None},
        {"references": {"a": "x"}}, {"peak_memory_mb": None}, {"last": {"distance": 1.0}},
        {"last": {"step": 1, "seconds": 1.0, "distance": 1.0, "calls/grad_f": float("nan")}},
    ],
    ids=str,
)  # fmt: skip
def test_a_summary_that_cannot_be_shown_is_refused(fields: dict[str, Any], world: World) -> None:
    run = world.runs[0]
    config = {"run": {"force": False, "retry_failed": False}}
    change(source=None)(run.path / "environment.json")
    show = earlier_end(config, run)
    assert show is not None
    assert show(False) == 0
    change(**fields)(run.path / "summary.json")
    with pytest.raises(BadSetting, match=r"summary\.json is damaged \(.*\): write run\.force=true"):
        (earlier_end(config, run) or show)(False)


def test_names_that_are_no_names(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = world.runs[0].path
    os.rename(bad, os.fsencode(bad.parent) + b"/a\nb\xff")
    count = dashboard.compare([world.root], EMPTY).count
    (line,) = capsys.readouterr().err.splitlines()
    assert count == 2
    assert "a\\nb\\udcff: this is no name of a run" in line


def test_links_to_folders_and_deep_folders_are_not_walked(world: World, tmp_path: Path) -> None:
    (world.root / "loop").symlink_to(world.root)
    deep = world.root.joinpath(*"abcdefghijklm")  # thirteen folders below; twelve are walked
    deep.mkdir(parents=True)
    (deep / "history.jsonl").touch()
    (deep / "config.yaml").touch()
    assert list(folders_below(world.root)) == world.runs
    shutil.move(deep, deep.parent.parent / "m")
    assert len(list(folders_below(world.root))) == len(world.runs) + 1


def test_a_folder_that_goes_while_it_is_looked_through(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another command's scratch folder may be listed and be gone before anyone looks into it."""
    scratch = world.root / ".reproduce" / "scratch"
    look = os.scandir

    def seen(path: Path) -> Any:
        if Path(path) == scratch:
            scratch.rmdir()
        return look(path)

    monkeypatch.setattr(os, "scandir", seen)
    for asked in (has_ended_run, lambda root: list(folders_below(root)) == world.runs):
        scratch.mkdir(parents=True)
        assert asked(world.root)
    for run in world.runs:
        (run.path / "summary.json").unlink()
    assert not has_ended_run(world.root)


def test_a_lock_that_is_a_pipe_is_no_lock(world: World) -> None:
    make_pipe(world.runs[0].path / "lock")
    assert world.runs[0].owner() is None


def test_a_line_of_a_history_has_at_most_so_many_bytes(tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    file.write_bytes(b'{"step": 0}\n' + b" " * (MOST_LINE - 1) + b"\n")
    assert len(list(raw_lines(file))) == 2
    file.write_bytes(b'{"step": 0}\n' + b" " * MOST_LINE + b"\n")
    with pytest.raises(BadSetting, match="a line of more than 1,000,000 bytes"):
        list(raw_lines(file))


def test_a_long_history_is_thinned(tmp_path: Path) -> None:
    run = tmp_path / "t/a/k"
    make_run(folder_at(run), 0)
    rows = (json.dumps({"step": i, "distance": 1.0 / (i + 1)}) for i in range(20_001))
    (run / "history.jsonl").write_text("".join(f"{row}\n" for row in rows))
    found = chosen_runs.try_run(folder_at(run))
    assert found is not None
    (one,), _ = bands.measure_group(grouping.group_runs([found], EMPTY).groups[0], 11)
    assert one.columns["step"].tolist() == [2000.0 * i for i in range(11)]


def test_thousands_of_runs_have_shorter_curves(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dashboard, "ALL_ROWS", 9)
    monkeypatch.setattr(dashboard, "LEAST_ROWS", 2)
    dashboard.write_comparison([world.root], EMPTY, tmp_path / "out")
    assert "[0.0,20.0,40.0]" in (tmp_path / "out/assets/runs-0.js").read_text()


# --- records

REPORT = ("report", "--record")


@pytest.fixture(scope="module")
def reported(made: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the report of the runs, and their record."""
    folder = tmp_path_factory.mktemp("reported")
    shutil.copytree(made.root, folder / "runs")
    where = ("--runs", str(folder / "runs"), "--specs", str(made.specs))
    with pytest.MonkeyPatch.context() as monkeypatch:
        assert called(folder, monkeypatch, *REPORT, *where) == 0
    shutil.rmtree(folder / "runs")
    return folder


@pytest.fixture
def recorded(reported: Path, world: World, tmp_path: Path) -> Path:
    """The file of a complete record, a copy to be damaged."""
    shutil.copytree(reported, tmp_path, dirs_exist_ok=True)
    return tmp_path / "results/mine/toy/smoke.json"


def test_a_complete_record_is_replaced_by_a_complete_one_only(
    recorded: Path, world: World, reproduce: Reproduce, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--runs", str(world.root), "--specs", str(world.specs))
    # other settings than the record's, so that its runs do not stand for the one that is gone
    content = json.loads(recorded.read_text())
    content["rows"]["paper"]["BOME"]["runs"] = ["a/b/c", "a/b/d", "a/b/e"]
    recorded.write_text(json.dumps(content))
    shutil.rmtree(world.runs[0].path)
    before, pages = recorded.read_bytes(), recorded.parents[3] / "pages"
    capsys.readouterr()
    assert reproduce(*REPORT, *where, "--out", str(pages)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "mine/toy smoke: its record is complete" in line
    assert "--force" in line
    assert recorded.read_bytes() == before
    assert not pages.exists()
    assert reproduce(*REPORT, *where, "--out", str(pages), "--force") == 0
    assert not json.loads(recorded.read_text())["complete"]
    assert reproduce(*REPORT, *where, "--out", str(pages)) == 0  # one incomplete by another


TRAJECTORY = {"x": "theta_x", "y": "theta_y", "x_range": [-1, 1], "y_range": [-1, 1],
              "upper_in": "xy"}  # fmt: skip


@pytest.mark.parametrize(
    ("file", "do", "word"),
    [
        ("config.yaml", put("{"), "is damaged"),
        ("config.yaml", replace("seed: 0", "seed: -1"), "its seed is -1"),
        ("config.yaml", replace("tasks.toy.toy_minimax", "os.getcwd"), "os.getcwd"),
        ("history.jsonl", double_row, "row 4"),
        ("view.json", put('{"of": 1}'), "is damaged"),
    ],
)
def test_a_report_with_paths_leaves_out_a_run_that_is_damaged(
    file: str, do: Callable[[Path], None], word: str, world: World, reproduce: Reproduce,
    tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """The first run's task is what paths are drawn over; the next one's takes its place."""
    specs = tmp_path / "specs" / "mine"
    specs.mkdir(parents=True)
    drawn = {**SPEC, "figure": {**SPEC["figure"], "trajectory": TRAJECTORY}}
    (specs / "toy.yaml").write_text(yaml.safe_dump(drawn))
    bad = next(run for run in world.runs if run.config()["seed"] == 0)
    do(bad.path / file)
    where = ("--runs", str(world.root), "--specs", str(specs.parent))
    assert reproduce("report", *where, "--record") == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"reproduce: left out: {bad.path}/{file}")
    assert word in line
    record = json.loads((tmp_path / "results/mine/toy/smoke.json").read_text())
    assert sorted(record["rows"]["paper"]["BOME"]["status"]) == ["done", "done", "missing"]


def test_a_record_is_written_after_its_pages(
    world: World, reproduce: Reproduce, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pages").write_text("a file, where a folder has to go")
    where = ("--runs", str(world.root), "--specs", str(world.specs))
    assert reproduce(*REPORT, *where, "--out", str(tmp_path / "pages")) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    "file",
    [
        "plotly.min.js",
        "report.css",
        "toy-distance.svg",
        "toy.html",
        "smoke.histories",
        "smoke.json",
    ],
)
def test_a_full_disk_is_told_in_one_line_and_the_record_stays(
    file: str, recorded: Path, world: World, reproduce: Reproduce,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    before = {each: each.read_bytes() for each in recorded.parent.iterdir()}
    sync = os.fsync

    def full(number: int) -> None:
        if file in os.readlink(f"/proc/self/fd/{number}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(number)

    capsys.readouterr()
    monkeypatch.setattr(os, "fsync", full)
    assert reproduce(*REPORT, "--runs", str(world.root), "--specs", str(world.specs)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert file in line
    assert "No space left" in line
    assert {each: each.read_bytes() for each in recorded.parent.iterdir()} == before


RECORDS: dict[str, Callable[[Path], None]] = {
    "empty": put(""),
    "cut": put('{"artifact": "mi'),
    "a list": put("[]"),
    "deep": put("[" * 100_000),
    "no text": put(b"\xff\xfe"),
    "large": make_large,
    "other seeds": replace('"seeds": [\n     0,', '"seeds": ['),
    "a text for a value": replace('"distance": [\n      1.0', '"distance": [\n      "x"'),
    "a huge seed": replace('"seeds": [\n     0', f'"seeds": [\n     {HUGE}'),
    "half a character": replace('"title": "One method"', '"title": "\\ud800"'),
}


@pytest.mark.parametrize("case", RECORDS)
def test_a_damaged_record_is_refused_in_one_line(
    case: str, recorded: Path, world: World, reproduce: Reproduce,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    RECORDS[case](recorded)
    capsys.readouterr()
    for command in ("list", "check", "report"):
        where = ("--runs", str(world.root / "none"), "--specs", str(world.specs))
        code = reproduce(command, *where)
        (line,) = capsys.readouterr().err.splitlines()
        assert code == 2
        assert "results/mine/toy/smoke.json: " in line
        assert len(line) < 500
    again = ("--runs", str(world.root), "--specs", str(world.specs), "--force")
    assert reproduce(*REPORT, *again) == 0  # the way out
    assert json.loads(recorded.read_text())["complete"]


HISTORIES: dict[str, bytes] = {
    "zeros without end": gzip.compress(bytes(60_000_000)),
    "many empty parts": gzip.compress(b"") * 1_100_000,
    "deep": gzip.compress(b"[" * 100_000),
    "a huge integer": gzip.compress(f'{{"run": "a", "columns": {{"x": [{HUGE}]}}}}'.encode()),
    "half a character": gzip.compress(b'{"run": "\\ud800", "columns": {}}'),
}


@pytest.mark.parametrize("case", HISTORIES)
def test_damaged_histories_beside_a_record_are_refused_in_one_line(
    case: str, recorded: Path, tmp_path: Path
) -> None:
    change(histories_digest=None)(recorded)  # a record need not have it
    recorded.with_suffix(".histories.jsonl.gz").write_bytes(HISTORIES[case])
    with pytest.raises(BadSetting, match=r"smoke\.histories\.jsonl\.gz: ") as told:
        records.read_record("mine/toy", "smoke", tmp_path / "results")
    assert "\n" not in str(told.value)


# --- data


def test_newsgroups_that_unpack_without_end_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / newsgroups.PICKLE.name
    file.write_bytes(zlib.compress(bytes(200_000_000), 1))
    with pytest.raises(BadSetting, match="more than 100,000,000 bytes when it is unpacked"):
        newsgroups.refuse_harmful(file)
    make_pipe(file)
    with pytest.raises(BadSetting, match="it is no file"):
        newsgroups.refuse_harmful(file)


def test_what_is_packed_comes_back_in_parts(tmp_path: Path) -> None:
    content = os.urandom(3_000_000) + bytes(3_000_000)
    (tmp_path / "a").write_bytes(zlib.compress(content))
    assert b"".join(pickles.unpack(tmp_path / "a", 6_000_000)) == content
    with pytest.raises(ValueError, match="5,999,999 bytes when it is unpacked"):
        list(pickles.unpack(tmp_path / "a", 5_999_999))
    (tmp_path / "a").write_bytes(zlib.compress(content)[:-10])
    with pytest.raises(ValueError, match="cut short"):
        list(pickles.unpack(tmp_path / "a", 6_000_000))


@pytest.mark.parametrize("case", ["large", "no archive", "a pipe"])
def test_covertype_is_not_read_if_it_cannot_be_covertype(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "COVERTYPE", (10, 54))
    folder = tmp_path / "scikit_learn_data" / "covertype"
    folder.mkdir(parents=True)
    (folder / "samples_py3").write_bytes(zlib.compress(bytes(10 * 54 * 8 + 300)))
    (folder / "targets_py3").write_bytes(zlib.compress(bytes(10 * 4 + 200)))
    tables.refuse_large(folder)
    if case == "a pipe":
        make_pipe(folder / "samples_py3")
    else:
        packed = zlib.compress(bytes(1_000_000))
        (folder / "samples_py3").write_bytes(packed if case == "large" else b"\x80\x04K\x01.")
    with pytest.raises(BadSetting, match=r"samples_py3 is not as scikit-learn keeps it"):
        tables.table("covertype", Context(data_root=tmp_path))
