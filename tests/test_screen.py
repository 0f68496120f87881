"""What is told of a run: on a terminal, on standard output, and to Weights & Biases."""

import io
import json
import math
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from bench.core.settings import BadSetting
from bench.runs import loggers
from bench.runs.better import Best, Better, better_values, improves
from bench.runs.folder import RunFolder
from bench.runs.logger import About
from bench.runs.loggers import answers, mirror
from bench.runs.screen import Screen, show_summary, summary_line

Summary = dict[str, Any]


def summary(**changed: Any) -> Summary:
    found: Summary = {
        "name": "task/algorithm/key",
        "status": "done",
        "reason": None,
        "metric": "test_loss",
        "last": {
            "step": 12345,
            "seconds": 1.23456,
            "cpu_seconds": 2.0,
            "test_loss": 0.123456,
            "gap": None,
            "calls/grad_f": 1234,
            "calls/grad_g": 10,
            "calls/lmo": 3,
            "samples/grad_f": 56789,
            "samples/grad_g": 10,
            "info/seen": 7.0,
        },
        "references": {"no_cleaning": 0.98765},
        "peak_memory_mb": {"process": 1234.5},
    }
    return found | changed


def lines(capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    """The words of each line, in columns."""
    out = capsys.readouterr().out
    return [[part.strip() for part in line.split("  ") if part.strip()] for line in out.split("\n")]


def test_the_end_of_a_run_as_a_table(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Metrics, references, counts with samples where they are more than calls, and costs."""
    show_summary(summary(), tmp_path / "[red]", "a remark [sic]")
    found = [line for line in lines(capsys) if line]
    assert found == [
        ["task/algorithm/key"],
        ["test loss", "0.1235"],
        ["gap", "not finite"],
        ["no cleaning", "0.9877"],
        ["gradients of f", "1,234 over 56,789 samples"],
        ["gradients of g", "10"],
        ["linear minimisations", "3"],
        ["steps", "12,345"],
        ["seconds of steps", "1.23"],
        ["peak memory", "1,234 MB"],
        [str(tmp_path / "[red]")],
        ["a remark [sic]"],
    ]


def test_a_run_that_did_not_end_well_says_why(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    show_summary(summary(status="diverged", reason="x[0] is [gone]"), tmp_path)
    found = [line for line in lines(capsys) if line]
    assert found[1] == ["diverged", "x[0] is [gone]"]
    assert found[-1] == [str(tmp_path)]


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({}, "task/algorithm/key: test loss 0.1235"),
        ({"metric": "gap"}, "task/algorithm/key: gap not finite"),
        ({"reason": "x is not finite"}, "task/algorithm/key: x is not finite"),
    ],
)
def test_the_end_of_a_run_as_a_line(changed: Summary, line: str) -> None:
    assert summary_line(summary(**changed)) == line


def test_a_bar_knows_how_far_a_run_is() -> None:
    screen = Screen("task/algorithm/key", 50, 20, "loss")
    bar = screen.bar.tasks[0]
    assert (bar.description, bar.total, bar.completed) == ("task algorithm", 50, 20)
    assert bar.fields["seen"] == ""
    with screen:
        screen.show_step(30)
        screen.show_row({"loss": 0.123456, "other": 1.0})
        assert (bar.completed, bar.fields["seen"]) == (30, "loss     0.1235")
    assert screen.bar.console.stderr
    assert screen.bar.disable == (not sys.stderr.isatty())


@pytest.mark.parametrize("terminal", [True, False])
def test_a_bar_is_for_terminals_only(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(isatty=lambda: terminal))
    assert Screen("a/b/c", 1, 0, "loss").bar.disable is not terminal


def test_a_local_run_tells_nobody() -> None:
    logger = loggers.local(About("a/b/c", {}, Path()))
    assert logger.row({"step": 1}) is None  # type: ignore[func-returns-value]
    assert logger.close(0) is None  # type: ignore[func-returns-value]


def test_a_mirror_hands_on_rows_and_the_code() -> None:
    heard: list[Any] = []
    logger = mirror(heard.append, heard.append)
    logger.row({"step": 1})
    logger.row({"step": 2})
    logger.close(3)
    assert heard == [{"step": 1}, {"step": 2}, 3]


def test_a_mirror_tells_its_first_failure_only(capsys: pytest.CaptureFixture[str]) -> None:
    tries: list[Any] = []

    def fails(value: Any) -> None:
        tries.append(value)
        raise OSError(f"no {value}")

    logger = mirror(fails, fails)
    logger.row({"step": 1})
    logger.row({"step": 2})
    logger.close(0)
    assert tries == [{"step": 1}, {"step": 2}, 0]
    said = capsys.readouterr().err
    assert said == "bench: W&B: no {'step': 1}; scripts/wandb_sync.py sends the rest\n"
    mirror(lambda row: None, fails).close(7)
    assert "no 7" in capsys.readouterr().err


def test_a_mirror_that_does_not_end_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    release = threading.Event()
    begin = time.monotonic()
    mirror(lambda row: None, lambda code: release.wait(60) and None, within=0.02).close(0)
    assert time.monotonic() - begin < 30
    assert "not all was sent within 0.02 s" in capsys.readouterr().err
    release.set()
    mirror(lambda row: None, lambda code: None, within=60).close(0)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("https://a.example", ("a.example", 443)),
        ("http://a.example", ("a.example", 80)),
        ("http://a.example:8080/x", ("a.example", 8080)),
    ],
)
@pytest.mark.parametrize("there", [True, False])
def test_whether_a_host_answers(
    url: str, place: tuple[str, int], there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def connect(where: tuple[str, int], timeout: float) -> Any:
        asked.append((where, timeout))
        if not there:
            raise OSError
        return SimpleNamespace(close=lambda: asked.append("closed"))

    monkeypatch.setattr(loggers.socket, "create_connection", connect)
    for variable in ("https_proxy", "http_proxy", "HTTPS_PROXY", "HTTP_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    assert answers(url) is there
    assert asked == [(place, 2.0), *(["closed"] if there else [])]


@pytest.mark.parametrize(
    ("proxy", "none", "place"),
    [
        ("http://proxy.example:3128", "", ("proxy.example", 3128)),
        ("proxy.example:3128", "", ("proxy.example", 3128)),
        ("http://proxy.example:3128", "a.example", ("a.example", 443)),
    ],
)
def test_a_host_behind_a_proxy_is_asked_for_by_it(
    proxy: str, none: str, place: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def connect(where: tuple[str, int], timeout: float) -> Any:
        asked.append(where)
        return SimpleNamespace(close=list)

    monkeypatch.setattr(loggers.socket, "create_connection", connect)
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    monkeypatch.delenv("https_proxy", raising=False)
    monkeypatch.setenv("NO_PROXY", none)
    monkeypatch.setenv("no_proxy", none)
    assert answers("https://a.example")
    assert asked == [place]


class Library:
    """A stand-in for wandb: it notes how it was begun, and fails online if it is told to."""

    Error, Run = ArithmeticError, object

    def __init__(self, fails: bool = False):
        self.begun: list[dict[str, Any]] = []
        self.axes: list[Any] = []
        self.summary: dict[str, Any] = {}
        self.starting_step = 0  # of a run that the server knows
        self.heard: list[Any] = []
        self.fails = fails
        self.mode = "online"  # as WANDB_MODE and the user's own settings have it
        self.wrong = ""  # what W&B says of these

    def Settings(self, **settings: Any) -> Any:
        return SimpleNamespace(base_url="https://a.example", mode=self.mode, **settings)

    def setup(self) -> Any:
        if self.wrong:
            raise ValueError(self.wrong)
        return SimpleNamespace(settings=self.Settings())

    def init(self, **given: Any) -> Any:
        self.begun.append(given)
        if self.fails:
            raise ArithmeticError("refused")
        return SimpleNamespace(
            log=lambda row, step: self.heard.append((row, step)),
            finish=lambda exit_code: self.heard.append(exit_code),
            define_metric=lambda name, step_metric=None: self.axes.append((name, step_metric)),
            summary=self.summary,
            resumed=self.starting_step > 0,
            starting_step=self.starting_step,
        )


ABOUT = About("task/algorithm/key", {"seed": 1}, Path("folder"))


def begun(library: Library, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> loggers.Logger:
    monkeypatch.setitem(sys.modules, "wandb", library)  # type: ignore[arg-type]
    return loggers.wandb(ABOUT, **settings)


@pytest.mark.parametrize(
    ("mode", "key", "there", "expected"),
    [
        ("auto", "k", True, "online"),
        ("auto", "k", False, "offline"),
        ("auto", "", True, "offline"),
        ("offline", "k", True, "offline"),
        ("online", "", False, "online"),
    ],
)
def test_when_a_run_is_sent_at_once(
    mode: str, key: str, there: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def found(url: str) -> bool:
        asked.append(url)
        return there

    monkeypatch.setattr(loggers, "answers", found)
    monkeypatch.setenv("WANDB_API_KEY", key)
    library = Library()
    logger = begun(library, monkeypatch, mode=mode, tags=("a", "b"), project="p", entity="e")
    (given,) = library.begun
    assert given.pop("settings").silent
    assert given == {
        "project": "p", "entity": "e", "id": "key", "name": "task-algorithm-key-seed1",
        "group": "task", "job_type": "algorithm", "tags": ["a", "b", "seed=1"], "dir": "folder",
        "config": {"seed": 1, "label": "task algorithm"},
        "mode": expected, "resume": "allow" if expected == "online" else None,
    }  # fmt: skip
    assert asked == (["https://a.example"] if mode == "auto" and key else [])
    logger.row({"step": 4, "loss": 1.0})
    logger.close(1)
    assert library.heard == [({"step": 4, "loss": 1.0, "calls_total": 0, "samples_total": 0}, 4), 1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("machine a.example login user password k", True),
        ("machine b.example login user password k", False),
        ("machine a.example", False),
        ("machines", False),  # damaged
        (b"\xff", False),
        ("default login user password k", True),
        (None, False),
    ],
)
def test_who_has_logged_in_has_a_key(
    text: str | bytes | None, expected: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`wandb login` keeps the key in .netrc, and sets no variable."""
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    if text is not None:
        (tmp_path / "netrc").write_bytes(text if isinstance(text, bytes) else text.encode())
        (tmp_path / "netrc").chmod(0o644)  # W&B does not mind
    assert loggers.has_key("https://a.example") == expected
    monkeypatch.setenv("WANDB_API_KEY", "k")
    assert loggers.has_key("https://b.example")


def test_a_run_that_is_refused_online_goes_on_offline(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    library = Library(fails=True)
    plain = library.init

    def init(**given: Any) -> Any:
        library.fails = given["mode"] == "online"
        return plain(**given)

    monkeypatch.setattr(library, "init", init)
    begun(library, monkeypatch, mode="online", group="mine")
    assert [(given["mode"], given["group"]) for given in library.begun] == [
        ("online", "mine"), ("offline", "mine"),
    ]  # fmt: skip
    assert "W&B is not to be had (refused); offline now" in capsys.readouterr().err
    begun(Library(fails=True), monkeypatch, mode="online")
    assert "nor offline (refused); the run folder has all rows" in capsys.readouterr().err
    with pytest.raises(BadSetting, match=r"^logger=wandb: W&B refuses to begin \(refused\): "):
        begun(Library(fails=True), monkeypatch, mode="offline")


@pytest.mark.parametrize(
    ("switch", "variable", "expected"),
    [
        ("offline", "", "offline"),
        ("dryrun", "", "offline"),
        ("disabled", "", None),
        ("online", "true", None),
        ("online", "1", None),
        ("online", "False", "online"),
        ("run", "", "online"),
    ],
)
def test_the_users_own_switches_of_wandb_hold(
    switch: str, variable: str, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """WANDB_MODE and WANDB_DISABLED; logger.mode is stronger."""
    monkeypatch.setattr(loggers, "answers", lambda url: True)
    monkeypatch.setenv("WANDB_API_KEY", "k")
    monkeypatch.setenv("WANDB_DISABLED", variable)
    library = Library()
    library.mode = switch
    logger = begun(library, monkeypatch)
    assert [given["mode"] for given in library.begun] == ([expected] if expected else [])
    logger.row({"step": 1})
    logger.end({})
    logger.close(0)
    begun(library, monkeypatch, mode="online")
    assert library.begun[-1]["mode"] == "online"


def test_what_wandb_refuses_is_known_before_a_run_has_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    local: dict[str, Any] = {"_target_": "bench.runs.loggers.local"}
    node = {"_target_": "bench.runs.loggers.wandb"}
    library = Library()
    monkeypatch.setitem(sys.modules, "wandb", library)  # type: ignore[arg-type]
    loggers.check_ready(node)
    library.wrong = "mode\n  input should be 'online'"
    with pytest.raises(BadSetting, match=r"\(mode input should be 'online'\): mend .*WANDB_\*"):
        loggers.check_ready(node)
    monkeypatch.setitem(sys.modules, "wandb", None)  # type: ignore[arg-type]
    with pytest.raises(BadSetting, match=r"^logger=wandb: the package wandb cannot be imported"):
        loggers.check_ready(node)
    loggers.check_ready(local)
    assert not library.begun


def test_wandb_may_refuse_what_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library()

    def init(**given: Any) -> Any:
        raise ValueError("run_group\n  is odd")

    monkeypatch.setattr(library, "init", init)
    for mode in ("online", "offline"):
        with pytest.raises(BadSetting, match=r"refuses to begin \(run_group is odd\)"):
            begun(library, monkeypatch, mode=mode)


def test_loggers_that_wait_for_a_host_wait_together() -> None:
    """Each of the two goes on only when the other waits too."""
    meeting, codes = threading.Barrier(2), list[int]()

    def close(code: int) -> None:
        meeting.wait(60)
        codes.append(code)

    loggers.close_all([(loggers.Logger(lambda row: None, close), code) for code in (1, 2)])
    assert sorted(codes) == [1, 2]


@pytest.mark.parametrize("name", ["wandb", ".wandb"])
def test_a_strangers_folder_names_no_host_of_wandb(name: str, tmp_path: Path) -> None:
    """W&B reads the settings of the current folder, and would send the user's key there."""
    loggers.refuse_local_settings(tmp_path)
    file = tmp_path / name / "settings"
    file.parent.mkdir()
    file.write_text("[default]\nentity = me\nproject = mine\n")
    loggers.refuse_local_settings(tmp_path)
    file.write_text("[default]\nentity = me\nbase_url = http://127.0.0.1:8765\n")
    with pytest.raises(BadSetting, match=r"^logger=wandb: .*/settings sets base_url, .* remove"):
        loggers.refuse_local_settings(tmp_path)
    file.write_text("base_url = http://127.0.0.1:8765\n")
    with pytest.raises(BadSetting, match="sets what is not understood"):
        loggers.refuse_local_settings(tmp_path)


def rendered(screen: Screen) -> str:
    """The bar's line in a terminal of as many columns as $COLUMNS has."""
    console = Console(file=io.StringIO(), force_terminal=True, color_system=None)
    console.print(screen.bar.get_renderable())
    return console.file.getvalue().rstrip("\n")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "metric", "better", "best"),
    [
        ("toy_minimax/bome/key", "distance", "lower", True),
        ("hyper_cleaning/bome/key", "test_accuracy", "higher", True),
        ("permuted_mnist/optimistic_gd/key", "a_metric_with_a_very_long_name", "lower", False),
        ("toy/bome/key", "loss", None, False),
    ],
)
def test_the_parts_of_a_bar_keep_their_widths(
    name: str, metric: str, better: Better | None, best: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    screen = Screen(name, 12345, 0, metric, better=better)
    steps = screen.bar.columns[2]
    ends = set()
    for step, value in ((0, 1.0), (7, -1.234567e-5), (12000, None), (12345, 0.5)):
        screen.show_step(step)
        screen.show_row({metric: value, "step": step})
        line = rendered(screen)
        assert len(line) <= 80
        assert ("best" in line) == best
        ends.add(line.index(str(steps.render(screen.bar.tasks[0]))))
        assert metric.replace("_", " ")[:20] in line
    assert len(ends) == 1


def test_a_bar_knows_the_best_value_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    screen = Screen("task/algorithm/key", 50, 20, "loss", better="lower", best=Best(0.5, 10))
    for value, best in ((0.7, 0.5), (0.4, 0.4), (None, 0.4), (0.9, 0.4)):
        screen.show_row({"loss": value, "step": 30})
        assert screen.bar.tasks[0].fields["seen"].endswith(f", best {best:>10}")
    assert screen.best == Best(0.4, 30)


def test_metrics_stand_beside_the_best_so_far_and_over_their_references(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    last = {"step": 9, "seconds": 1.0, "test_accuracy": 0.9256, "own": 2.0}
    references = {"test_accuracy of validation only": 0.9074, "other": 1.0}
    show_summary(
        summary(last=last, references=references), tmp_path, "",
        {"test_accuracy": "higher"}, {"test_accuracy": Best(0.9301, 1480)},
    )  # fmt: skip
    found = [line for line in lines(capsys) if line]
    assert found[1:6] == [
        ["at the end", "best so far", "at step", "better is"],
        ["test accuracy", "0.9256", "0.9301", "1,480", "higher"],
        ["test accuracy of validation only", "0.9074"],
        ["own", "2"],
        ["other", "1"],
    ]


def test_the_best_of_a_history(tmp_path: Path) -> None:
    rows = [
        {"step": i, "a": a, "b": b} for i, (a, b) in enumerate([(1, 5), (3, None), (3, 2), (2, 4)])
    ]
    folder = RunFolder(tmp_path, "t/a/k")
    folder.path.mkdir(parents=True)
    better: dict[str, Better] = {"a": "higher", "b": "lower", "c": "lower"}
    assert folder.best(better) == {}
    file = folder.path / "history.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows) + '{"step": 4, "a": 9')
    assert folder.best(better) == {"a": Best(3, 1), "b": Best(2, 2)}
    file.unlink()
    file.mkdir()
    with pytest.raises(BadSetting, match="is damaged"):
        folder.best(better)


def test_which_values_are_better_is_what_the_metrics_say() -> None:
    assert better_values("hyper_cleaning")["test_accuracy"] == "higher"
    assert better_values("toy_coreset")["distance"] == "lower"
    assert "theta_1" not in better_values("toy_coreset")
    assert better_values("my own") == {}


def test_runs_of_a_group_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two variants of a row have the same job type: their names and tags tell them apart."""
    library, labels = Library(), {"row": "BOME", "variant": "code"}
    begun(library, monkeypatch, mode="offline", labels=labels, tags=("bome", "seed=1"))
    (given,) = library.begun
    assert given["name"] == "BOME code seed 1"
    assert given["tags"] == ["bome", "seed=1", "row=BOME", "variant=code"]
    assert given["config"]["label"] == "BOME code"
    begun(library, monkeypatch, mode="offline", labels={"row": "x" * 80})
    assert max(map(len, library.begun[1]["tags"])) == 64  # W&B takes no more


def test_the_summary_has_what_runs_are_compared_by(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library()
    monkeypatch.setitem(sys.modules, "wandb", library)  # type: ignore[arg-type]
    environment = {
        "git": {"commit": "abc", "dirty": False}, "threads": 2, "cpu_capability": "AVX2",
        "gpu": None, "data": {"a.gz": "123"}, "packages": {"torch": "2"},
    }  # fmt: skip
    about = About(
        "hyper_cleaning/bome/key", {"seed": 1}, Path("folder"), "test_accuracy", (), environment
    )
    logger = loggers.wandb(about, mode="offline")
    assert library.summary == {
        "threads": 2, "instruction_set": "AVX2", "commit": "abc", "commit_changed": False,
        "data/a.gz": "123",
    }  # fmt: skip
    for step, accuracy, loss in ((0, 0.5, 3.0), (2, 0.75, 2.0), (4, 0.625, float("nan"))):
        logger.row({
            "step": step, "test_accuracy": accuracy, "test_loss": loss, "odd": 1.0,
            "calls/grad_f": step, "calls/grad_g": 2 * step, "samples/grad_f": 64 * step,
        })  # fmt: skip
    logger.end(summary(status="diverged", reason="x", last={"step": 4, "test_accuracy": 0.625}))
    found = library.summary
    assert (found["best/test_accuracy"], found["last/test_accuracy"]) == (0.75, 0.625)
    assert found["best/test_loss"] == 2.0
    assert "best/odd" not in found  # nothing says which of its values are good
    assert (found["status"], found["reason"]) == ("diverged", "x")
    assert (found["reference/no_cleaning"], found["peak_memory_mb/process"]) == (0.98765, 1234.5)
    row, step = library.heard[1]
    assert (step, row["calls_total"], row["samples_total"]) == (2, 6, 128)
    for axis in ("seconds", "calls", "samples"):
        assert row[f"against_{axis}/test_accuracy"] == 0.75
    assert ("against_calls/*", "calls_total") in library.axes
    assert ("against_samples/*", "samples_total") in library.axes
    assert ("against_seconds/*", "seconds") in library.axes


@pytest.mark.parametrize(
    ("mode", "there", "sent"),
    [("offline", 0, [0, 2, 4]), ("online", 0, [0, 2, 4]), ("online", 3, [4])],
)
def test_a_run_that_goes_on_sends_the_rows_that_are_not_there(
    mode: str, there: int, sent: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Those of an earlier process, which was killed, may be lost; its unsent files have no more."""
    library = Library()
    library.starting_step = there
    monkeypatch.setitem(sys.modules, "wandb", library)  # type: ignore[arg-type]
    old, known = (tmp_path / "wandb" / f"offline-run-{k}-key" for k in range(2))
    for part in (old, known):
        part.mkdir(parents=True)
    (known / "run-key.wandb.synced").touch()
    rows = [{"step": step, "test_loss": float(step)} for step in (0, 2, 4)]
    about = About("hyper_cleaning/a/key", {"seed": 1}, tmp_path, "test_loss", rows)
    logger = loggers.wandb(about, mode=mode)  # type: ignore[arg-type]
    assert [step for _, step in library.heard] == sent
    assert (old.exists(), known.exists()) == (False, True)
    logger.end({"status": "done", "reason": None})
    assert library.summary["best/test_loss"] == 0.0  # of all rows
    assert library.summary["reason"] == ""  # an earlier process may have left one there


def test_offline_it_says_where_the_files_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", Library())  # type: ignore[arg-type]
    folders = [tmp_path / "my runs" / "t" / "a" / key for key in "kl"]
    about = About("t/a/k", {"seed": 1}, folders[0])
    logger = loggers.wandb(about, mode="offline")
    (folders[0] / "wandb" / "offline-run-1-k").mkdir(parents=True)
    logger.close(0)
    script = "WANDB_API_KEY=... uv run python scripts/wandb_sync.py"
    how = f"{script} '{tmp_path / 'my runs'}' sends them\n"
    said = capsys.readouterr().err
    assert said == f"bench: W&B is offline: its files are in {folders[0]}/wandb; {how}"
    loggers.wandb(about._replace(alone=False), mode="offline").close(0)
    assert capsys.readouterr().err == ""  # the sweep says it once
    loggers.tell_offline(folders[1:])
    assert capsys.readouterr().err == ""
    for folder in folders:
        (folder / "wandb" / "offline-run-2").mkdir(parents=True, exist_ok=True)
    loggers.tell_offline(folders)
    assert "its files are in 2 run folders, in wandb/" in capsys.readouterr().err
    loggers.tell_unknown([*folders, tmp_path / "my runs" / "t" / "a" / "not made"])
    assert capsys.readouterr().err == ""
    local = [tmp_path / "my runs" / "t" / "a" / key for key in "mn"]
    for folder in local:
        folder.mkdir()
        (folder / "summary.json").touch()
    loggers.tell_unknown([*folders, *local])
    said = capsys.readouterr().err
    assert said.startswith("bench: W&B has nothing of 2 of these runs, which ended without it; ")
    assert said.endswith(f"wandb_sync.py '{tmp_path / 'my runs'}' --all --project=... sends them\n")


def test_labels_are_for_wandb_and_what_is_set_wins() -> None:
    plain: dict[str, Any] = {"logger": {"_target_": "bench.runs.loggers.local"}}
    loggers.set_labels(plain, {"row": "a"}, "g")
    assert plain == {"logger": {"_target_": "bench.runs.loggers.local"}}
    node: dict[str, Any] = {
        "_target_": "bench.runs.loggers.wandb", "labels": None, "group": "mine",
    }  # fmt: skip
    loggers.set_labels({"logger": node}, {"row": "a"}, "g")
    assert (node["labels"], node["group"]) == ({"row": "a"}, "mine")


def test_an_infinite_value_is_no_best() -> None:
    assert not improves(math.inf, None, "higher")
    assert not improves(-math.inf, None, "lower")
    assert not improves(math.nan, None, "lower")
    assert improves(1.0, None, "lower")
