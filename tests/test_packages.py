"""A package outside of the repository is installed, and is then like a part of this project."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra.core.global_hydra import GlobalHydra

import algorithms
from bench.core import packages, settings
from bench.core.settings import BadSetting, locate
from bench.reproduce import book, cli, records
from bench.reproduce.book import load_book
from bench.reproduce.run_names import fingerprint
from bench.runs import source
from bench.runs.better import better, read
from bench.runs.folder import RunFolder
from bench.runs.name import describe_node
from bench.solving.methods import chosen, methods
from tests.conftest import ROOT
from tests.test_faults import at_step  # noqa: F401  (a fixture)
from tests.test_hostile import Main, Said, main  # noqa: F401  (a fixture)

RUN = ("experiment=ridge_quick",)
SPEC = "ridge/weights"
QUICK = ("run.steps=2", "run.every=2", "run.threads=1")


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the package of tests/outside is installed, by its wheel."""
    place = tmp_path_factory.mktemp("outside")
    shutil.copytree(ROOT / "tests" / "outside", place / "source")
    install = ["uv", "pip", "install", "--quiet", "--offline", "--no-deps", "--no-build-isolation"]
    where = ["--python", sys.executable, "--target", str(place / "target")]
    subprocess.run([*install, *where, str(place / "source")], check=True)
    return place / "target"


@pytest.fixture
def installed(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the installed package, on the path of this process and of those that it starts."""
    target = tmp_path / "site"
    shutil.copytree(wheel, target)
    monkeypatch.syspath_prepend(target)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(target)]))
    yield target / "ridge_bench"
    for name in [name for name in sys.modules if name.partition(".")[0] == "ridge_bench"]:
        del sys.modules[name]
    source.contents.cache_clear()


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Writes packages that BENCH_PACKAGES lists, each of files; an import of one leaves a mark."""
    place = tmp_path / "packages"
    place.mkdir()
    monkeypatch.syspath_prepend(place)

    def write(listed: str = "", /, **files: dict[str, str]) -> Path:
        for name, content in files.items():
            mark = f"open({str(tmp_path / 'imported')!r}, 'a').write(__name__)\n"
            for file, text in {"__init__.py": mark, **content}.items():
                (place / name / file).parent.mkdir(parents=True, exist_ok=True)
                (place / name / file).write_text(text)
        monkeypatch.setenv(packages.VARIABLE, listed)
        return place

    return write


Reproduce = Callable[..., int]


@pytest.fixture
def few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one spec of ours, which stands for all: to read all takes seconds."""
    import bench.reproduce.data_sets  # it has the function itself, which must not be this one
    import bench.reproduce.highlights  # noqa: F401

    few, there = tmp_path / "few", book.own_specs()
    (few / "bome").mkdir(parents=True)
    for file in ("metrics.yaml", "methods.yaml", "bome/fig1_minimax.yaml"):
        shutil.copy(there / file, few / file)
    monkeypatch.setattr(book, "own_specs", lambda: few)
    return few


@pytest.fixture
def reproduce(few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reproduce:
    """`reproduce` in this process, in tmp_path; gives its exit code."""
    monkeypatch.setenv("BENCH_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("PYTHONSAFEPATH", "1")  # as `reproduce` sets it

    def call(*arguments: str) -> int:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["reproduce", *arguments])
        GlobalHydra.instance().clear()
        with pytest.raises(SystemExit) as end:
            cli.main()
        return int(end.value.code or 0)

    return call


def run_folder(tmp_path: Path) -> Path:
    (summary,) = (tmp_path / "runs").rglob("summary.json")
    return summary.parent


def one_line(said: Said, *words: str) -> None:
    """Exit code 2, and one line with these words."""
    assert said.code == 2, said
    (line,) = said.err.splitlines()
    for word in words:
        assert word in line


def test_the_command_finds_it_by_its_entry_point(installed: Path, tmp_path: Path) -> None:
    """In a process of its own, without importing it for --help."""
    mark = tmp_path / "imported"
    (installed / "__init__.py").write_text(f"open({str(mark)!r}, 'w')")
    command = [sys.executable, "-m", "bench", "--help"]
    told = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True)
    assert "one_step, optimistic_gd" in told.stdout
    assert "ridge_quick" in told.stdout
    assert told.stderr == ""
    assert not mark.exists()


def test_a_run_says_which_package_made_it_and_when_its_code_has_changed(
    installed: Path,
    main: Main,  # noqa: F811
    tmp_path: Path,
) -> None:
    assert main(*RUN).code == 0
    run = run_folder(tmp_path)
    assert run.parent.relative_to(tmp_path / "runs").as_posix() == "ridge/one_step"
    kept = json.loads((run / "environment.json").read_text())
    assert kept["packages"]["ridge_bench"] == "0.1"
    own = {file for file in kept["source"]["files"] if file.startswith("ridge_bench/")}
    assert own == {f"ridge_bench/{n}.py" for n in ("__init__", "methods", "problems", "steps")}
    assert kept["named_by"]["algorithm"]["package"] == "ridge_bench"
    assert "nothing to do" in main(*RUN).out

    steps = installed / "steps.py"
    steps.write_text(steps.read_text() + "# changed\n")
    source.contents.cache_clear()
    assert "its code has changed since: ridge_bench/steps.py; run.force=true" in main(*RUN).out
    (run / "summary.json").unlink()
    RunFolder(tmp_path / "runs", run.relative_to(tmp_path / "runs").as_posix()).leave("failed", "x")
    said = "failed: x; its code has changed since: ridge_bench/steps.py; run.retry_failed=true"
    assert said in main(*RUN).err


def test_an_interrupted_run_goes_on_to_the_same_bits(
    installed: Path,
    main: Main,  # noqa: F811
    at_step: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    whole, long = tmp_path / "whole", (*RUN, "run.steps=40", "run.every=10")
    assert main(*long, f"run.root={whole}").code == 0
    at_step(23, lambda step: os.kill(os.getpid(), signal.SIGTERM))
    assert main(*long).code == 75
    assert not list((tmp_path / "runs").rglob("summary.json"))
    assert main(*long).code == 0
    rows = [
        [json.loads(line)["objective"] for line in file.read_text().splitlines()]
        for root in (whole, tmp_path / "runs")
        for file in root.rglob("history.jsonl")
    ]
    assert rows[0] == rows[1]
    assert len(rows[0]) == 5


def test_a_sweep_makes_its_runs_in_other_processes(
    installed: Path,
    main: Main,  # noqa: F811
    tmp_path: Path,
) -> None:
    """Those of joblib here; `reproduce run` below has the suite's own."""
    said = main("-m", *RUN, "seed=0,1", "hydra/launcher=joblib", "hydra.launcher.workers=2")
    assert said.code == 0, said
    assert "2 runs: 2 done" in said.out
    assert len(list((tmp_path / "runs").rglob("summary.json"))) == 2


def test_its_artifact_is_made_judged_reported_and_compared(
    installed: Path,
    reproduce: Reproduce,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    at = (SPEC, "--budget", "smoke")
    assert reproduce("list", "ridge") == 0
    assert SPEC in capsys.readouterr().out
    assert reproduce("plan", *at) == 0
    assert "bench task=ridge algorithm=one_step" in capsys.readouterr().out
    assert reproduce("run", *at, "--jobs", "1") == 0
    assert reproduce("check", *at) == 0
    assert "finite" in capsys.readouterr().out
    assert reproduce("report", *at, "--record") == 0
    assert (installed / "results" / SPEC / "smoke.json").is_file()
    assert not (tmp_path / "results").exists()
    page = (tmp_path / "report" / "ridge" / "weights.html").read_text()
    assert "validation loss" in page
    assert reproduce("report", *at, "--record", "--results", "mine") == 0
    assert (tmp_path / "mine" / SPEC / "smoke.json").is_file()
    shutil.rmtree(tmp_path / "runs")
    capsys.readouterr()
    assert reproduce("check", *at) == 0  # from the package's own record
    assert "(recorded)" in capsys.readouterr().out


def test_which_of_its_values_are_better_is_known_to_bench(
    installed: Path,
    main: Main,  # noqa: F811
) -> None:
    said = main(*RUN, *QUICK)
    assert said.code == 0, said.err
    (line,) = (line for line in said.out.splitlines() if line.startswith(" objective"))
    assert line.split()[-1] == "lower", said.out
    (installed / "conf/paper/metrics.yaml").write_text("ridge: [")
    read.cache_clear()
    assert better("ridge", "objective") == "neither"
    read.cache_clear()


def test_its_runs_are_compared_and_what_is_left_is_listed(
    installed: Path,
    main: Main,  # noqa: F811
    reproduce: Reproduce,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(*RUN).code == 0
    assert main("task=ridge", "algorithm=bome", *QUICK).code == 0
    assert reproduce("compare", str(tmp_path / "runs")) == 0
    assert "2 runs)" in capsys.readouterr().out
    page = (tmp_path / "comparison" / "index.html").read_text()
    assert '"validation loss"' in page  # its metrics.yaml
    assert "#d55e00" in page  # its methods.yaml
    assert reproduce("todo", "ridge") == 0
    assert SPEC in capsys.readouterr().out
    assert reproduce("data", "--root", str(tmp_path)) == 0
    told = capsys.readouterr().out
    assert "MNIST" in told
    assert "ridge_rows" in told
    assert reproduce("data", "ridge_rows", "--root", str(tmp_path)) == 0
    assert "MNIST" not in capsys.readouterr().out
    assert reproduce("data", "rows_of_nobody") == 2
    assert "rows_of_nobody: no such data set" in capsys.readouterr().err


def test_a_change_of_a_package_is_a_change_of_what_names_depend_on(installed: Path) -> None:
    before = fingerprint()
    file = installed / "methods.py"
    file.write_text(file.read_text().replace("T: Count = 5", "T: Count = 6"))
    assert fingerprint() != before


def test_the_projects_own_pages_know_of_no_package(installed: Path, few: Path) -> None:
    assert SPEC in load_book().artifacts
    own = load_book(outside=False)
    assert SPEC not in own.artifacts
    assert "one_step" not in own.methods


@pytest.mark.parametrize(
    "argument",
    ["algorithm=one_step", "task=ridge", "experiment=ridge_quick",
     "algorithm._target_=ridge_bench.methods.one_step"],
)  # fmt: skip
def test_without_being_installed_it_is_refused_in_one_line(
    argument: str,
    main: Main,  # noqa: F811
    tmp_path: Path,
) -> None:
    one_line(main(argument), argument)
    assert list(tmp_path.iterdir()) == []


TASK = "_target_: mine.code.problem\n"
CODE = """
from bench.core.task import Context, Task
from tasks.toy import toy_minimax
def problem(context: Context) -> Task:
    return toy_minimax(context)
"""
BROKEN: dict[str, tuple[str, dict[str, dict[str, str]], str]] = {
    "nobody's": ("nobody", {}, "Python finds no such package"),
    "a path": ("../x", {}, "write the name of a package"),
    "a module": ("os.path", {}, "write the name of a package"),
    "one of ours": ("tasks", {}, "this suite has a package tasks"),
    "nothing in it": ("mine", {"mine": {}}, "there is no yaml below"),
    "no yaml": ("mine", {"mine": {"conf/task/readme.md": ""}}, "there is no yaml below"),
    "no package": ("json", {}, "there is no yaml below"),
    "settings of Hydra": (
        "mine",
        {"mine": {"conf/hydra/launcher/x.yaml": "", "conf/task/x.yaml": TASK}},
        "a package has no settings of Hydra",
    ),
    "a configuration": (
        "mine", {"mine": {"conf/config.yaml": ""}}, "this suite has conf/config.yaml too",
    ),
    "a task of ours": (
        "mine", {"mine": {"conf/task/trees.yaml": TASK}}, "this suite has task=trees too",
    ),
    "a data set of ours": (
        "mine", {"mine": {"conf/task/data/mnist.yaml": TASK}}, "this suite has task/data=mnist too",
    ),
    "a function of ours": (
        "mine",
        {"mine": {"conf/algorithm/best.yaml": "_target_: mine.code.bome"}},
        "this suite has the algorithm function bome too",
    ),
    "a paper of ours": (
        "mine",
        {"mine": {"conf/paper/bome/mine.yaml": ""}},
        "this suite has the paper bome too",
    ),
    "two functions of one name": (
        "mine",
        {"mine": {"conf/task/x.yaml": TASK, "conf/task/z.yaml": TASK.replace("code", "more")}},
        "mine.code.problem and mine.more.problem have one name: rename one of them",
    ),
    "a task of another": (
        "mine,other",
        {"mine": {"conf/task/x.yaml": TASK}, "other": {"conf/task/x.yaml": TASK}},
        "package mine (BENCH_PACKAGES) has task=x too: rename it in other",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_what_cannot_be_used_has_one_line(
    case: str, write: Callable[..., Path], tmp_path: Path
) -> None:
    variable, files, why = BROKEN[case]
    write(variable, **files)
    name = variable.rpartition(",")[2]
    (line,) = packages.listed().left_out
    assert line.startswith(f"package {name} (BENCH_PACKAGES) is left out: ")
    assert why in line
    assert name not in [package.name for package in packages.listed().packages]
    assert not (tmp_path / "imported").exists()


def test_commands_that_do_not_use_what_is_left_out_go_on(
    main: Main,  # noqa: F811
    write: Callable[..., Path],
    reproduce: Reproduce,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write("nobody")
    said = main("task=toy_minimax", *QUICK)
    assert said.code == 0
    why = "is left out: Python finds no such package: install it, or set PYTHONPATH to its folder"
    assert said.err == f"bench: package nobody (BENCH_PACKAGES) {why}\n"
    assert reproduce("list") == 0
    assert capsys.readouterr().err == f"reproduce: package nobody (BENCH_PACKAGES) {why}\n"


PAPERS: dict[str, tuple[dict[str, str], str]] = {
    "a metric of ours": (
        {"metrics.yaml": "trees: {objective: {label: f}}"}, "trees is another's too",
    ),
    "a method of ours": (
        {"methods.yaml": "bome: {label: x, colour: '#000000'}"}, "bome is another's too",
    ),
    "a list of metrics": ({"metrics.yaml": "[1]"}, "it has to be a table of names"),
    "a metric that is none": ({"metrics.yaml": "x: 3"}, "x: it has to be a table of metrics"),
    "a spec that is none": ({"my_paper/fig1.yaml": "title: x"}, "source: is missing"),
}  # fmt: skip


@pytest.mark.parametrize("case", PAPERS)
def test_specs_that_are_wrong_have_one_line_and_ours_are_read(
    case: str, write: Callable[..., Path], few: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files, why = PAPERS[case]
    conf = {f"conf/paper/{file}": text for file, text in files.items()}
    write("mine", mine={"conf/task/x.yaml": TASK, **conf})
    assert load_book().artifacts.keys() == load_book(outside=False).artifacts.keys()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("reproduce: package mine (BENCH_PACKAGES) is left out: ")
    assert why in line


WRONG = {
    "a module that is not": ("", "No module named 'mine.code'"),
    "an import that fails": ("import nobodys_module", "No module named 'nobodys_module'"),
    "a function that is not": ("x = 1", "has no attribute 'problem'"),
    "a module that ends Python": ("raise SystemExit(0)", "SystemExit"),
    "code that is none": ("def", "SyntaxError"),
    "a type that is not": ("def problem(x: 'Nobody'): ...", "NameError"),
}


@pytest.mark.parametrize("case", WRONG)
def test_broken_code_is_refused_where_it_is_used_and_nowhere_else(
    case: str,
    main: Main,  # noqa: F811
    write: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code, why = WRONG[case]
    files = {"code.py": code} if code else {}
    write("mine", mine={"__init__.py": "", "conf/task/x.yaml": TASK, **files})
    try:
        one_line(main("task=x"), "task._target_=mine.code.problem: package mine", why, "repair it")
        assert main("task=toy_minimax", *QUICK).code == 0
    finally:
        for name in ("mine", "mine.code"):
            sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("def", "SyntaxError: invalid syntax (unwritten.py, line 1)"),
        ("import nobodys_module", "ModuleNotFoundError: No module named 'nobodys_module'"),
    ],
)
def test_a_method_of_this_repository_that_cannot_be_imported_is_refused(
    code: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a sweep tells it as the reason of one run, and makes the others."""
    (tmp_path / "unwritten.py").write_text(code)
    monkeypatch.setattr(algorithms, "__path__", [*algorithms.__path__, str(tmp_path)])
    target = "algorithms.unwritten.method"
    monkeypatch.setattr(settings, "named_in_conf", lambda: frozenset({target}))
    told = f"algorithm._target_={target}: algorithms.unwritten cannot be imported: {why}; repair it"
    with pytest.raises(BadSetting, match=f"^{re.escape(told)}$"):
        locate(target, "algorithm")


def test_a_method_whose_code_is_broken_hides_no_other(write: Callable[..., Path]) -> None:
    yaml_of_it = {"conf/algorithm/mine.yaml": "_target_: mine.code.method\n"}
    write("mine", mine={"__init__.py": "", "code.py": "import nothing_such", **yaml_of_it})
    methods.cache_clear()
    try:
        assert methods()["mine"].help.startswith("mine\n\nNot here: ")
        assert "repair it" in methods()["mine"].help
        assert methods()["bome"].kind == "bilevel"
    finally:
        methods.cache_clear()
        for name in ("mine", "mine.code"):
            sys.modules.pop(name, None)


@pytest.mark.parametrize(
    "text",
    ["_target_: mine.code.method\n# r\xe9gularisation", "_target_: mine.code.method\n\ta: 1"],
)
def test_a_file_that_is_no_yaml_hides_no_other(
    text: str,
    main: Main,  # noqa: F811
    write: Callable[..., Path],
) -> None:
    place = write("mine", mine={"__init__.py": "", "code.py": "", "conf/task/x.yaml": TASK})
    for group in ("task", "algorithm"):
        (place / "mine" / "conf" / group).mkdir(exist_ok=True)
        (place / "mine" / "conf" / group / "own.yaml").write_text(text, encoding="latin-1")
    (place / "mine" / "conf" / "paper").mkdir(exist_ok=True)
    (place / "mine" / "conf" / "paper" / "metrics.yaml").write_text(text, encoding="latin-1")
    methods.cache_clear()
    try:
        assert "own" not in methods()
        assert methods()["bome"].kind == "bilevel"
        with pytest.raises(BadSetting, match=r"^method=own: cannot be read: "):
            chosen("own", {}, 5)
        assert main("task=toy_minimax", *QUICK).code == 0
    finally:
        methods.cache_clear()


def test_nothing_is_imported_because_a_configuration_names_it(
    main: Main,  # noqa: F811
    write: Callable[..., Path],
    tmp_path: Path,
) -> None:
    """Neither a package that is there and not listed, nor what no file of a listed one names."""
    there = {"code.py": "open('x', 'w')", "conf/task/x.yaml": TASK}
    write("", mine=there)
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    evil = tmp_path / "conf" / "experiment" / "evil.yaml"
    targets = ("mine.code.problem", "mine.code.other", "mine.problem", "mine", "other.code.problem")
    for listed in ("", "mine"):
        write(listed)
        for target in targets[1:] if listed else targets:
            evil.write_text(f"# @package _global_\ntask: {{_target_: {target}}}")
            one_line(main(f"--config-dir={tmp_path}/conf", "experiment=evil"), target, "only func")
            with pytest.raises(BadSetting, match="only functions"):
                locate(target, "task")
    evil.write_text("# @package _global_\nhydra: {searchpath: ['pkg://mine.conf']}")
    one_line(main(f"--config-dir={tmp_path}/conf", "experiment=evil"), "hydra.searchpath")
    write("mine")
    assert main("--help").code == 0
    assert main("task=toy_minimax", *QUICK).code == 0
    assert not (tmp_path / "imported").exists()
    assert not {"mine", "other"} & set(sys.modules)


def test_a_run_folder_imports_nothing(
    main: Main,  # noqa: F811
    write: Callable[..., Path],
    reproduce: Reproduce,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One that names a package which is there, and which the environment does not list."""
    write("", mine={"code.py": CODE, "conf/task/x.yaml": TASK})
    assert main("task=toy_minimax", *QUICK).code == 0
    run = run_folder(tmp_path)
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["task"] = {"_target_": "mine.code.problem"}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    assert reproduce("compare", str(tmp_path / "runs")) == 0
    assert reproduce("rename") == 1
    assert "only functions that a file of conf/ names" in capsys.readouterr().out
    assert not (tmp_path / "imported").exists()
    assert "mine" not in sys.modules


def test_a_name_has_the_package_and_not_the_module(write: Callable[..., Path]) -> None:
    """So that functions of two packages that are called alike have runs of different names."""
    write(
        "mine,other",
        mine={"__init__.py": "", "code.py": CODE, "conf/task/x.yaml": TASK},
        other={"__init__.py": "", "conf/logger/y.yaml": "# _target_: mine.code.problem"},
    )
    try:
        assert describe_node({"_target_": "mine.code.problem"}) == {
            "name": "problem", "version": 1, "settings": {}, "package": "mine",
        }  # fmt: skip
    finally:
        for name in ("mine", "mine.code"):
            sys.modules.pop(name, None)


def test_relative_imports_count_as_source(write: Callable[..., Path]) -> None:
    place = write(
        "mine",
        mine={
            "conf/task/x.yaml": TASK,
            "code.py": "from . import near\nfrom .deep import far\nimport numpy",
            "near.py": "",
            "deep/__init__.py": "from ..up import x",
            "deep/far.py": "from .. import over",
            "up.py": "",
            "over.py": "",
            "unused.py": "",
        },
    )
    files = source.contents(("mine.code",), ("mine",))
    assert set(files) == {
        f"mine/{file.relative_to(place / 'mine').as_posix()}"
        for file in (place / "mine").rglob("*.py")
        if file.name != "unused.py"
    }


def test_records_are_the_packages_own_unless_a_folder_is_given(installed: Path) -> None:
    assert records.record_path(SPEC, "full") == installed / "results" / SPEC / "full.json"
    assert records.record_path(SPEC, "full", Path("x")) == Path("x") / SPEC / "full.json"
    assert records.record_path("bome/table1", "full") == Path("results/bome/table1/full.json")
