"""The command `reproduce` as a user starts it: real runs, a kill, a divergence, records."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from bench.core.settings import BadSetting
from bench.reproduce import checking, cli, making
from bench.reproduce import plan as plans
from bench.reproduce.book import load_book
from bench.reproduce.run_names import Names
from bench.runs.launch import launch
from tests.composed import composed
from tests.conftest import ROOT

pytestmark = pytest.mark.usefixtures("warm_workers")

Reproduce = Callable[..., subprocess.CompletedProcess[str]]
MAIN = [sys.executable, "-m", "bench.reproduce"]

TOY: dict[str, Any] = {
    "title": "Two methods on the toy coreset", "source": "a test", "task": "toy_coreset",
    "set": {"run.steps": 40, "run.every": 10, "task.spread": 0.001},
    "variants": {"paper": {}, "code": {"set": {"task.variant": "code"}}},
    "budgets": {"smoke": {"minutes": 0.1, "seeds": 2}},
    "columns": ["distance", "gap"],
    "figure": {"metrics": ["distance"]},
    "rows": {f"BOME {s}": {"method": "bome", "set": {"task.start": s}} for s in (1, 2, 3)}
    | {f"BSG-1 {s}": {"method": "bsg1", "set": {"task.start": s}} for s in (1, 2, 3)},
    "claims": {
        "moves": {"kind": "converges", "by": "us", "text": "BOME comes closer", "rows": ["BOME 1"],
                  "metric": "distance", "within": 2.5, "budgets": ["smoke"]},
        "far": {"kind": "converges", "by": "paper", "source": "in the title",
                "text": "BOME is there at once", "rows": ["BOME 1"],
                "metric": "distance", "within": 1e-9, "budgets": ["smoke"],
                "variants": ["code"],
                "why": {"code": {"text": "Its steps are short.", "tested": False}}},
    },
}  # fmt: skip

DIGITS: dict[str, Any] = {
    "title": "Hyper-cleaning of digits", "source": "a test", "task": "hyper_cleaning",
    "set": {"run.steps": 10, "run.every": 5, "task.pretraining.steps": 200,
            "task.references": False},
    "grid": {"algorithm.outer_lr": [10, 100]},
    "variants": {"paper": {}, "code": {"set": {"task.variant": "code", "task.resplit": True}}},
    "budgets": {"smoke": {"minutes": 0.1, "seeds": 3}},
    "select": {"metric": "val2_accuracy", "best": "highest"},
    "columns": ["test_accuracy"],
    "figure": {"metrics": ["test_accuracy", "test_loss"]},
    "rows": {
        "BOME": {"method": "bome", "published": {"test_accuracy": {"mean": 0.9, "se": 0.01}}},
        "ITD": {"method": "itd", "pending": "not built yet"},
    },
    "claims": {
        "same": {"kind": "within_published", "by": "us", "text": "As published", "rows": ["BOME"],
                 "metric": "test_accuracy", "tolerance": 0.5, "budgets": ["smoke"]},
        "best": {"kind": "above", "by": "us", "text": "BOME is best", "rows": ["BOME"],
                 "than": ["ITD"],
                 "metric": "test_accuracy", "budgets": ["smoke"]},
    },
}  # fmt: skip


@pytest.fixture
def specs(tmp_path: Path) -> Path:
    folder = tmp_path / "specs" / "mine"
    folder.mkdir(parents=True)
    for name, content in {"toy": TOY, "digits": DIGITS}.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    return tmp_path / "specs"


@pytest.fixture
def reproduce(
    tmp_path: Path,
    specs: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Reproduce:
    """`reproduce` in this process, with specs, runs and records below tmp_path; the runs that it
    makes are processes."""
    monkeypatch.chdir(ROOT)
    for name, value in environment(tmp_path, specs).items():
        monkeypatch.setenv(name, value)

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(sys, "argv", ["reproduce", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        code = ended.value.code
        assert isinstance(code, int)
        return subprocess.CompletedProcess(arguments, code, said.out, said.err)

    return call


def environment(tmp_path: Path, specs: Path) -> dict[str, str]:
    return os.environ | {"BENCH_RUNS": str(tmp_path / "runs"), "BENCH_SPECS": str(specs)}


def made(artifact: str, specs: Path, root: Path) -> None:
    """Make every run of the artifact in this process, as `reproduce run` does in processes of
    its own."""
    book = load_book(specs)
    entry = book.artifacts[artifact]
    while True:
        plan = plans.make_plan(entry, book, "smoke", root, Names(root))
        if not plan.missing:
            return
        for run in plan.missing:
            launch(composed(*run.planned.overrides, f"run.root={root}", "run.threads=1"))


def finals(root: Path) -> dict[str, Any]:
    """The last values of every run, without times."""
    return {
        str(file.parent.relative_to(root)): {
            key: value
            for key, value in json.loads(file.read_text())["last"].items()
            if key not in ("seconds", "cpu_seconds")
        }
        for file in root.rglob("summary.json")
    }


def finished(root: Path) -> int:
    """How many runs have ended. Folders come and go meanwhile, which `os.walk` passes over."""
    return sum("summary.json" in files for _, _, files in os.walk(root))


def test_killed_in_the_middle_it_finishes_only_what_is_missing(
    reproduce: Reproduce, tmp_path: Path, specs: Path
) -> None:
    command = [*MAIN, "run", "mine/toy", "--budget", "smoke", "--jobs", "2"]
    root = tmp_path / "runs"
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment(tmp_path, specs),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    until = time.monotonic() + 120
    while finished(root) < 4 and time.monotonic() < until:
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    time.sleep(0.5)
    before = {file: file.stat().st_mtime_ns for file in root.rglob("summary.json")}
    assert 4 <= len(before) < 24
    time.sleep(1.5)  # its runs died with it: nothing goes on
    assert len(list(root.rglob("summary.json"))) == len(before)

    done = reproduce("run", "mine/toy", "--budget", "smoke", "--jobs", "2")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(": done") == 24 - len(before)
    assert {f: f.stat().st_mtime_ns for f in before} == before
    again = reproduce("run", "mine/toy", "--budget", "smoke")
    assert (again.returncode, again.stderr) == (0, "")

    made("mine/toy", specs, tmp_path / "undisturbed")
    assert finals(root) == finals(tmp_path / "undisturbed")


def test_a_run_that_diverges_is_shown_and_the_others_are_complete(
    reproduce: Reproduce, specs: Path, tmp_path: Path
) -> None:
    content = {**TOY, "variants": {"paper": {}}, "claims": {}}
    rows = {k: v for k, v in TOY["rows"].items() if k.endswith("1")}
    rows["BOME with step 1e6"] = {"method": "bome", "set": {"algorithm.outer_lr": 1e6,
                                                            "algorithm.lower_lr": 1e6}}  # fmt: skip
    (specs / "mine" / "toy.yaml").write_text(yaml.safe_dump({**content, "rows": rows}))
    done = reproduce("run", "mine/toy", "--budget", "smoke")
    assert done.returncode == 1
    assert "failed: x or y is not finite at step 10" in done.stdout
    assert done.stdout.count("2 done") == 2
    assert "(paper, BOME with step 1e6, seed 0): x or y is not finite at step 10" in done.stderr
    shown = reproduce("report", "mine/toy", "--out", str(tmp_path / "report"))
    assert shown.returncode == 0, shown.stderr
    page = (tmp_path / "report" / "mine" / "toy.html").read_text()
    assert "FAILED, 2 of 2 runs diverged: x or y is not finite at step 10" in page


def test_a_run_that_crashes_is_named_with_its_log_and_stops_nothing(
    reproduce: Reproduce, specs: Path, tmp_path: Path
) -> None:
    rows = {k: v for k, v in TOY["rows"].items() if k.endswith("1")}
    content = {**TOY, "variants": {"paper": {}}, "claims": {}, "rows": rows}
    (specs / "mine" / "toy.yaml").write_text(yaml.safe_dump(content))
    book = load_book(specs)
    entry = book.artifacts["mine/toy"]
    plan = plans.make_plan(entry, book, "smoke", tmp_path / "runs", Names(tmp_path / "runs"))
    first = plan.runs[0]
    first.folder.path.parent.mkdir(parents=True)
    first.folder.path.write_text("a file where the folder should be")
    done = reproduce("run", "mine/toy", "--budget", "smoke")
    assert done.returncode == 1
    assert "cannot write" in done.stderr
    assert str(tmp_path / "runs" / ".reproduce" / "logs") in done.stderr
    assert "not finished" in done.stdout
    assert "1 missing, 1 done" in done.stdout
    assert "2 done" in done.stdout


def test_check_report_record_and_findings(
    reproduce: Reproduce, specs: Path, tmp_path: Path
) -> None:
    results, root = ["--results", str(tmp_path / "results")], tmp_path / "runs"
    nothing = reproduce("check", "mine/toy", *results)
    assert nothing.returncode == 3
    assert nothing.stdout.count("not run") == 5  # three claims, and two sums
    made("mine/toy", specs, root)
    made("mine/digits", specs, root)

    checked = reproduce("check", "mine/toy", *results)
    assert checked.returncode == 1
    lines = checked.stdout.splitlines()
    place = [line.startswith("fails                 mine/toy smoke code far: ") for line in lines]
    assert lines[place.index(True)].count("BOME is there at once") == 1
    assert lines[-1] == "1 fails; ours: 2 holds"
    said = " ".join(checked.stdout.split())
    assert "conjecture: Its steps are short. claimed by paper: " in said
    assert "holds mine/toy smoke paper moves [ours]: BOME comes closer" in said
    assert "grid edge" not in said
    assert reproduce("check", "mine/toy", "--variant", "paper", *results).returncode == 0
    edge = "grid edge mine/digits smoke paper BOME: outer_lr"
    assert edge in " ".join(reproduce("check", "mine/digits", *results).stdout.split())

    report = ["report", "--out", str(tmp_path / "report"), *results]
    done = reproduce(*report, "--record")
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "results/mine/digits/smoke.json").read_text())
    bome = record["rows"]["paper"]["BOME"]
    assert bome["seeds"] == [1, 2, 3]
    assert bome["tried"] == 2
    chosen = max(bome["tries"], key=lambda point: point["value"])
    assert bome["chosen"] == chosen["settings"]
    assert len(set(bome["finals"]["test_accuracy"])) == 3
    verdicts = {k: v["verdict"]["word"] for k, v in record["claims"]["paper"].items()}
    assert verdicts == {"same": "holds", "best": "not run"}
    assert record["commits"]
    assert record["hardware"]

    # the record alone is enough: for checks, for a report without curves, for the README
    shutil.rmtree(root)
    recorded = reproduce("check", "mine/toy", *results)
    assert recorded.returncode == 1
    assert "(recorded) far" in recorded.stdout
    kept = reproduce("check", "mine/digits", "--variant", "paper", *results).stdout
    assert edge in " ".join(kept.split())
    listed = " ".join(reproduce("list", *results).stdout.split())
    assert "mine/digits (paper, code) smoke smaller 10" in listed
    assert "1 fail; ours: 2 hold" in listed
    assert "At a smaller scale, of the papers' claims 1 fail; of our own checks" in listed
    same = reproduce("check", "--against-record", *results)
    assert same.returncode == 0, same.stdout
    assert reproduce(*report).returncode == 0
    assert (
        "neither the runs nor their histories are here"
        not in (tmp_path / "report/mine/digits.html").read_text()
    )
    begin = "<!-- findings: written by `reproduce findings` -->"
    findings = ["findings", "--top", str(tmp_path), *results]
    shown = reproduce(*findings)  # there is no page to write into
    assert shown.returncode == 0
    assert "1 fail" in shown.stdout
    assert reproduce(*findings, "--check").returncode == 2
    page = tmp_path / "docs" / "findings.md"
    page.parent.mkdir()
    page.write_text(f"above\n{begin}\n<!-- end of findings -->\nbelow\n")
    assert reproduce(*findings, "--check").returncode == 2
    assert reproduce(*findings).returncode == 0
    assert reproduce(*findings, "--check").returncode == 0
    where = "| `mine/toy` | smoke, 2 | smaller |"
    row = f"{where} BOME is there at once | paper: in the title | · | **fails** |"
    assert row in (tmp_path / "results/README.md").read_text()
    assert "**1 fail**" in page.read_text()
    assert page.read_text().startswith("above\n")
    assert page.read_text().endswith("below\n")

    # a claim that is worded anew is the same claim, and is shown as the spec words it now
    spec = specs / "mine" / "toy.yaml"
    spec.write_text(spec.read_text().replace("BOME comes closer", "BOME moves"))
    reworded = reproduce("check", "mine/toy", "--against-record", *results)
    assert reworded.returncode == 0
    assert "(recorded) moves [ours]: BOME moves" in reworded.stdout

    # a verdict that is no longer the recorded one, and a claim that has changed since
    file = tmp_path / "results/mine/toy/smoke.json"
    file.write_text(file.read_text().replace('"word": "fails"', '"word": "holds"'))
    different = reproduce("check", "mine/toy", "--against-record", *results)
    assert different.returncode == 1
    assert "recorded: holds" in different.stdout
    spec.write_text(spec.read_text().replace("within: 2.5", "within: 2.25"))
    stale = reproduce("check", "mine/toy", "--against-record", *results)
    assert stale.returncode == 1
    assert "mine/toy smoke paper claim moves: another claim by the spec" in stale.stdout
    assert reproduce("rejudge", "mine/toy", *results).returncode == 0
    assert reproduce("check", "mine/toy", "--against-record", *results).returncode == 0

    # runs that are no longer those which the spec asks for
    spec.write_text(spec.read_text().replace("steps: 40", "steps: 60"))
    for how, code in (([], 3), (["--against-record"], 1)):
        other = reproduce("check", "mine/toy", *how, *results)
        assert other.returncode == code
        assert "outdated              mine/toy smoke paper (recorded) moves" in other.stdout
    assert reproduce("rejudge", "mine/toy", *results).returncode == 0
    assert reproduce("check", "mine/toy", "--against-record", *results).returncode == 0
    assert "ours: 2 outdated" in " ".join(reproduce("list", "mine/toy", *results).stdout.split())


def test_rows_are_added_to_a_record(reproduce: Reproduce, specs: Path, tmp_path: Path) -> None:
    results, budget = ["--results", str(tmp_path / "results")], ["--budget", "smoke"]
    rows = {"BOME": {"method": "bome"}, "ITD": {"method": "itd"}}
    content = {**TOY, "variants": {"paper": {}}, "claims": {}, "rows": rows}
    (specs / "mine" / "toy.yaml").write_text(yaml.safe_dump(content))
    report = ["report", "mine/toy", "--record", "--out", str(tmp_path / "report"), *results]
    one = reproduce("run", "mine/toy", *budget, "--rows", "BO*")
    assert one.returncode == 0, one.stderr
    assert "ITD" not in one.stdout
    assert reproduce(*report).returncode == 0
    file = tmp_path / "results/mine/toy/smoke.json"
    first = json.loads(file.read_text())
    assert not first["complete"]
    check = reproduce("check", "mine/toy", *budget, "--against-record", *results)
    assert check.returncode == 0, check.stderr
    assert check.stdout.startswith("no claims;")
    shutil.rmtree(tmp_path / "runs")

    # the row that is recorded is not made again, and its curve is drawn beside the other
    other = reproduce("run", "mine/toy", *budget, *results, "--unrecorded")
    assert other.returncode == 0, other.stderr
    assert not list((tmp_path / "runs/toy_minimax").glob("bome/*"))
    assert reproduce(*report).returncode == 0
    second = json.loads(file.read_text())
    assert second["complete"]
    assert second["rows"]["paper"]["BOME"] == first["rows"]["paper"]["BOME"]
    assert len(second["rows"]["paper"]["ITD"]["runs"]) == len(
        first["rows"]["paper"]["BOME"]["runs"]
    )
    page = (tmp_path / "report/mine/toy.html").read_text()
    assert page.count('"row":"BOME"') == page.count('"row":"ITD"') > 0
    shutil.rmtree(tmp_path / "runs")
    assert reproduce("report", "mine/toy", *report[3:]).returncode == 0
    alone = (tmp_path / "report/mine/toy.html").read_text()
    assert alone.count('"row":"BOME"') == page.count('"row":"BOME"')

    wrong = reproduce("run", "mine/toy", *budget, "--rows", "BOMEE")
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
    assert "--rows BOMEE: mine/toy has BOME, ITD" in wrong.stderr
    wrong = reproduce("run", "mine/toy", *budget, "--disturbed", "--jobs", "2")
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
    assert "write --jobs 1 with --disturbed" in wrong.stderr


def test_a_campaign_makes_and_records_what_is_to_do(
    reproduce: Reproduce, specs: Path, tmp_path: Path
) -> None:
    content = {**TOY, "variants": {"paper": {}}, "claims": {}, "rows": {"BOME": {"method": "bome"}},
               "budgets": {"short": {"minutes": 0.1, "seeds": 2}}}  # fmt: skip
    (specs / "mine" / "toy.yaml").write_text(yaml.safe_dump(content))
    results = ["--results", str(tmp_path / "results")]
    lines = reproduce("todo", "mine/toy", *results).stdout.splitlines()
    assert lines[1].split() == ["mine/toy", "short", "none", "2", "~", "6", "s"]
    done = reproduce("campaign", "mine/toy", "--hours", "0.1", "--jobs", "1", *results)
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "results/mine/toy/short.json").read_text())
    assert record["complete"]
    shutil.rmtree(tmp_path / "runs")
    assert "mine/toy" not in reproduce("todo", "mine/toy", *results).stdout


def test_a_time_limit_stops_and_the_same_command_goes_on(
    reproduce: Reproduce, specs: Path, tmp_path: Path
) -> None:
    settings = {**TOY["set"], "run.steps": 1_000_000, "run.every": 1000}
    content = {**TOY, "variants": {"paper": {}}, "claims": {}, "rows": {"BOME": {"method": "bome"}},
               "set": settings}  # fmt: skip
    (specs / "mine" / "toy.yaml").write_text(yaml.safe_dump(content))
    stopped = reproduce("run", "mine/toy", "--budget", "smoke", "--hours", "0.001")
    assert stopped.returncode == 130
    assert stopped.stderr.splitlines()[-1] == "reproduce: stopped; the same command goes on"
    assert not list((tmp_path / "runs").rglob("summary.json"))


def test_with_wandb_an_artifacts_runs_are_one_group(
    reproduce: Reproduce, specs: Path, tmp_path: Path
) -> None:
    content = {**TOY, "variants": {"paper": {}}, "claims": {}, "rows": {"BOME": {"method": "bome"}},
               "budgets": {"smoke": {"minutes": 0.1}}}  # fmt: skip
    (specs / "mine" / "toy.yaml").write_text(yaml.safe_dump(content))
    done = reproduce("run", "mine/toy", "logger=wandb", "logger.mode=offline", "--budget", "smoke")
    assert done.returncode == 0, done.stderr
    (file,) = (tmp_path / "runs").rglob("*.wandb")
    reader = [str(Path(sys.executable).with_name("wandb")), "leet", "inspect", "--json", str(file)]
    printed = subprocess.run(reader, capture_output=True, text=True, check=True, cwd=tmp_path)
    lines = [json.loads(line) for line in printed.stdout.splitlines()]
    (about,) = (line["run"] for line in lines if line["type"] == "run")
    assert about["run_group"] == "mine-toy-smoke"
    seed = about["config"]["update"]["seed"]
    assert set(about["tags"]) == {
        "mine", "toy", "smoke", "row=BOME", "variant=paper", f"seed={seed}",
    }  # fmt: skip
    assert about["display_name"] == f"BOME paper seed {seed}"
    assert "scripts/wandb_sync.py" in done.stderr


def test_a_group_and_tags_of_ones_own_win(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The last one of several overrides of a setting counts."""
    kept: list[str] = []

    class Seen(Names):
        def __init__(self, root: Path, extra: Sequence[str] = ()):
            kept.extend(extra)
            raise BadSetting("seen")

    monkeypatch.setattr(making, "Names", Seen)
    artifact: Any = SimpleNamespace(id="mine/toy")
    own = ["logger=wandb", "logger.group=own", "logger.tags=[x]"]
    nothing: Any = None
    with pytest.raises(BadSetting, match="seen"):
        making.make_runs(artifact, nothing, "smoke", tmp_path, own, nothing)
    assert dict(word.split("=", 1) for word in kept) == {
        "logger": "wandb", "logger.group": "own", "logger.tags": "[x]",
    }  # fmt: skip
    assert "logger.group=mine-toy-smoke" in kept


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "mine/toy", "--budget", "full"], "--budget full: mine/toy has smoke"),
        (
            ["run", "mine/toy", "--budget", "huge"],
            "'huge' is not one of 'smoke', 'short', 'medium', 'gpu', 'full'",
        ),
        (["run", "mine/toy"], "Missing option '--budget'"),
        (["run", "run.device=cpu", "--budget", "smoke"], "run: write which artifact, such as"),
        (["run", "mine/toys", "--budget", "smoke"], "mine/toys: no such artifact; did you mean"),
        (
            ["run", "mine/toy", "algorithm.T=3", "--budget", "smoke"],
            "algorithm.T=3: an artifact's settings are its spec's; what may be added is",
        ),
        (["compare", "nowhere"], "nowhere: there is no such folder"),
        (["report", "mine/toy", "--record"], "--record: mine/toy smoke has no finished run"),
        (["list", "--specs", "nowhere"], "--specs nowhere: there is no such folder"),
        *(
            ([*command, "--results", "nowhere"], "--results nowhere: there is no such folder")
            for command in (["rejudge"], ["league", "report"])
        ),
        (["list", "--results", __file__], "test_reproduce.py: this is no folder"),
        (["data", "mnist"], "mnist: no such data set; there is MNIST"),
        (["check", "mine/toy", "--against-record"], "mine/toy: there is no such record"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    arguments: list[str], message: str, reproduce: Reproduce, tmp_path: Path
) -> None:
    done = reproduce(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not [p for p in (tmp_path / "runs").rglob("*") if "summary" in p.name]


@pytest.mark.parametrize("arguments", [(), ("league",)])
def test_without_arguments_there_is_help_and_no_empty_line(
    arguments: tuple[str, ...], reproduce: Reproduce
) -> None:
    done = reproduce(*arguments)
    assert (done.returncode, done.stderr) == (2, "")
    assert "Usage" in done.stdout


def test_list_needs_no_torch_and_plan_shows_command_lines(reproduce: Reproduce) -> None:
    script = (
        "import sys; from bench.reproduce import cli; cli.app(['list'], standalone_mode=False); "
        "assert not {'torch', 'hydra', 'scipy.stats', 'plotly'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT, capture_output=True)
    plan = reproduce("plan", "mine/toy", "--budget", "smoke")
    assert plan.returncode == 0
    assert plan.stdout.count("missing  bench task=toy_coreset algorithm=") == 24
    assert "mine/toy smoke: 24 runs (24 missing); cost ~ 6 s" in plan.stdout
    listed = reproduce("list")
    assert "mine/toy" in listed.stdout


def test_list_with_costs_says_what_a_step_of_each_row_calls(reproduce: Reproduce) -> None:
    done = reproduce("list", "mine/toy", "--costs")
    assert done.returncode == 0
    heads, *lines = done.stdout.partition("\nCalls of")[0].splitlines()
    columns = ["value_f", "grad_f", "value_g", "grad_g", "jvp_g", "hvp_g", "lmo", "project"]
    assert heads.split() == ["artifact", "variant", "row", *columns, "batch"]
    found = {tuple(line.split()[-3:]) for line in lines if "BOME" in line}
    assert found == {("1", "11", "all")}, lines  # T = 10: gradients of f, and T + 1 of g


def test_data_says_what_is_there(reproduce: Reproduce, tmp_path: Path) -> None:
    done = reproduce("data", "--root", str(tmp_path))
    assert done.returncode == 0
    assert done.stdout.count("absent") == 6
    (tmp_path / "MNIST" / "raw").mkdir(parents=True)
    damaged = reproduce("data", "MNIST", "--root", str(tmp_path))
    assert damaged.returncode == 1
    assert "damaged" in damaged.stdout


def test_names_are_refused_with_the_specs_file(tmp_path: Path, specs: Path) -> None:
    """A setting that no task or algorithm has is found when the plan is made."""
    wrong = {**TOY, "set": {"run.steps": 40, "algorithm.TT": 3}}
    (specs / "mine" / "toy.yaml").write_text(yaml.safe_dump(wrong))
    book = load_book(specs)
    entry = book.artifacts["mine/toy"]
    with pytest.raises(BadSetting, match=r"mine/toy\.yaml: rows\.BOME 1: .*TT"):
        plans.make_plan(entry, book, "smoke", tmp_path, Names(tmp_path))


def test_a_check_of_some_runs_says_that_a_record_may_have_more(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    ended, waiting = SimpleNamespace(summary={}), SimpleNamespace(summary=None)
    for runs, missing, later, told in (
        ([ended, waiting], [waiting], 0, True),
        ([ended], [], 3, True),
        ([ended], [], 0, False),
        ([waiting], [waiting], 0, False),
    ):
        plan: Any = SimpleNamespace(runs=runs, missing=missing, later=later, count=4)
        checking.tell_partial(plan, "bome/x short", tmp_path)
        said = " ".join(capsys.readouterr().err.split())
        assert (f"judged by the runs in {tmp_path}, 1 of 4, not by" in said) == told
        assert ("reproduce report bome/x --budget short takes the others" in said) == told
