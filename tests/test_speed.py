"""The tables of docs/speed.md, and the comparisons that write their records."""

import importlib
import json
import math
import os
import subprocess
import sys
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock
from xml.etree import ElementTree

import pytest
import torch

from bench.core.settings import BadSetting
from bench.reproduce import speed
from bench.reproduce.scaling_picture import Series, draw_scaling, panels_of
from scripts.speed.__main__ import COMPARISONS, main
from scripts.speed.harness import (
    CPU,
    Contender,
    Result,
    check_against_first,
    device_for_timing,
    exclude,
    in_process,
    positive,
    take_turns,
)  # fmt: skip
from scripts.speed.peers import Unavailable, serving
from tests.conftest import ROOT
from tests.test_captured import cuda  # noqa: F401  (a fixture)


def made_up(**changes: object) -> dict[str, object]:
    return {
        "title": "Steps", "command": "uv run python -m scripts.speed gradient",
        "date": "2020-01-01", "device": "cpu", "hardware": ["A CPU"], "threads": 2,
        "software": [{"torch": "2.0"}],
        "lines": [
            {"method": "M", "name": "ours", "seconds": [0.5, 0.5, 0.5]},
            {"method": "M", "name": "peer", "seconds": [1.0, 2.0, 4.0]},
            {"method": "M", "name": "other", "seconds": [], "note": "disagrees, not timed"},
            {"method": "N", "name": "ours", "seconds": [2.0, 2.0]},
            {"method": "N", "name": "peer", "seconds": [1.0, 1.0]},
        ],
    } | changes  # fmt: skip


def test_the_table_has_medians_and_ratios_with_intervals(tmp_path: Path) -> None:
    """log2 of the ratios is 1, 2, 3: mean 2, standard error 1/sqrt 3, t quantile 4.303."""
    assert "No speed is recorded yet" in speed.speed_tables(tmp_path)
    (tmp_path / "speed").mkdir()
    (tmp_path / "speed" / "a.json").write_text(json.dumps(made_up()))
    half = 4.302653 / math.sqrt(3)
    low, high = 2 ** (2 - half), 2 ** (2 + half)
    found = speed.speed_tables(tmp_path)
    assert "**Steps** (A CPU, 2 threads, torch 2.0, 2020-01-01): `uv run python" in found
    assert f"| M | peer | 500 ms | 2 s | 4.00 [{low:.2f}, {high:.2f}] |" in found
    assert "| M | other | 500 ms | · | disagrees, not timed |" in found
    assert "| N | peer | 2 s | 1 s | 0.50 |" in found  # two turns give no interval


def test_a_ratio_is_of_the_turns() -> None:
    """The ratio is the geometric mean of theirs over ours, turn by turn; an interval takes three
    turns."""
    assert speed.speed_ratio([1.0, 2.0], [4.0, 2.0]) == (pytest.approx(2.0), None, None)
    assert speed.speed_ratio([2.0], [1.0]) == (0.5, None, None)
    value, low, high = speed.speed_ratio([1.0, 2.0, 1.0], [2.0, 8.0, 8.0])
    half = 4.302653 / math.sqrt(3)
    assert (value, low, high) == pytest.approx((4.0, 2 ** (2 - half), 2 ** (2 + half)))
    assert speed.speed_ratio([1.0] * 3, [2.0] * 3).text == "2.00 [2.00, 2.00]"
    assert speed.SpeedRatio(0.123, None, None).text == "0.12"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        ([], "·"), ([1.0], "1 s"), ([0.99951], "1e+03 ms"), ([0.5, 0.25, 0.75], "500 ms"),
        ([1234.5], "1.23e+03 s"), ([0.0123456], "12.3 ms"),
    ],
)  # fmt: skip
def test_times_are_medians(seconds: list[float], shown: str) -> None:
    line = speed.SpeedLine(method="M", name="ours", seconds=seconds)
    assert speed._time(line) == shown


def test_a_section_for_every_record_in_order(tmp_path: Path) -> None:
    """The records are of several machines and problems. A note takes the place of a ratio, and
    ours is never compared with itself."""
    (tmp_path / "speed").mkdir()
    ours = {"method": "M", "name": "ours", "seconds": [], "note": "too long"}
    lines = [ours, {"method": "M", "name": "a|b", "seconds": [1.0], "note": "n"}]
    b = made_up(title="Second", threads=1, software=[{"python": "3.11", "torch": "2.0"}, {}])
    for name, content in {"b": b, "a": made_up(title="First", lines=lines)}.items():
        (tmp_path / "speed" / f"{name}.json").write_text(json.dumps(content))
    first, second = speed.speed_tables(tmp_path).split("**Second**")
    assert first == (
        "\n**First** (A CPU, 2 threads, torch 2.0, 2020-01-01): "
        "`uv run python -m scripts.speed gradient`\n\n"
        "| method | against | ours | theirs | ratio |\n|---|---|---|---|---|\n"
        "| M | a\\|b | · | 1 s | n |\n\n"
    )
    assert second.startswith(" (A CPU, 1 thread, python 3.11, torch 2.0, 2020-01-01): ")
    assert second.endswith("| N | peer | 2 s | 1 s | 0.50 |\n")


def test_what_else_a_script_tells_is_kept(tmp_path: Path) -> None:
    (tmp_path / "speed").mkdir()
    line = {"method": "M", "name": "ours", "seconds": [1.0], "passes": 2}
    content = made_up(lines=[line], rows=6000)
    (tmp_path / "speed" / "a.json").write_text(json.dumps(content))
    (record,) = speed.read_speed(tmp_path)
    assert record.model_extra == {"rows": 6000}
    assert record.lines[0].model_extra == {"passes": 2}


def test_the_picture_of_scaling_has_a_panel_for_each_size() -> None:
    """Medians, on logarithmic axes; whoever could not be timed is left out."""
    lines = [
        {
            "method": f"{axis} = {value}",
            "name": name,
            "seconds": seconds,
            "axis": axis,
            "value": value,
        }
        for axis, values in {"rows": [10, 1000], "T": [1]}.items()
        for value in values
        for name, seconds in (("ours", [1e-3, value * 1e-3, 9.0]), ("JAX", [1e-2]), ("none", []))
    ]
    record = speed.SpeedRecord.model_validate(made_up(lines=lines, title="By <size>"))
    panels = panels_of(record.lines)
    assert panels == {
        "rows": [Series("ours", [(10.0, 1e-2), (1000.0, 1.0)]),
                 Series("JAX", [(10.0, 1e-2), (1000.0, 1e-2)])],
        "T": [Series("ours", [(1.0, 1e-3)]), Series("JAX", [(1.0, 1e-2)])],
    }  # fmt: skip
    root = ElementTree.fromstring(draw_scaling(record))
    lined = [e.attrib["points"] for e in root.iter() if e.tag.endswith("polyline")]
    places = [[tuple(map(float, p.split(","))) for p in each.split()] for each in lined]
    (one, two), (three, four) = places[:2]
    assert one == three  # the same time at the same size
    assert two[1] < one[1] == four[1]  # slower is higher up
    words = [e.text for e in root.iter() if e.tag.endswith("text")]
    assert {"By <size>", "ours", "JAX", "rows", "T", "10", "1k", "1 ms", "10 ms", "1 s"} <= {*words}
    assert "none" not in words
    assert draw_scaling(speed.SpeedRecord.model_validate(made_up())) == ""


@pytest.mark.parametrize("field", ["hardware", "software", "lines"])
def test_a_record_says_on_what_it_was_measured(field: str, tmp_path: Path) -> None:
    (tmp_path / "speed").mkdir()
    (tmp_path / "speed" / "a.json").write_text(json.dumps(made_up(**{field: []})))
    with pytest.raises(BadSetting, match=field):
        speed.read_speed(tmp_path)


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    (tmp_path / "speed").mkdir()
    file = tmp_path / "speed" / "a.json"
    for content in ("{", json.dumps(made_up(lines=[{"method": "M"}])), "[]"):
        file.write_text(content)
        with pytest.raises(BadSetting, match=r"a\.json is no record of speed"):
            speed.speed_tables(tmp_path)


def call_speed(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "scripts.speed", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


@pytest.fixture
def speed_here(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., int]]:
    """`python -m scripts.speed` in this process; gives its exit code."""

    def call(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", [main.__code__.co_filename, *arguments])
        return main(arguments)

    with mock.patch.dict(os.environ):  # it sets variables
        yield call


def test_the_gradient_writes_such_a_record(tmp_path: Path) -> None:
    """The gradient's four contenders agree, and what is written is what docs/speed.md shows."""
    file = tmp_path / "speed" / "gradient.json"
    done = call_speed("gradient", "--smoke", "--data", str(tmp_path), "--json", str(file))
    assert done.returncode == 0, done.stderr
    (record,) = speed.read_speed(tmp_path)
    assert [(line.method, line.name) for line in record.lines] == [
        ("1 lane", "ours"), ("1 lane", "autograd"), ("6 lanes", "ours"), ("6 lanes", "autograd"),
    ]  # fmt: skip
    passes = [line.model_extra["passes"] for line in record.lines if line.model_extra]
    assert passes == [1, 2, 1, 12]  # there and back at once, for all lanes
    assert all(len(line.seconds) == 1 for line in record.lines)
    # the command does not name the folder of this machine's data
    assert record.command.startswith("uv run python -m scripts.speed gradient --smoke --json")
    assert "6000 x 784 x 10" in record.title
    assert "| 6 lanes | autograd (6 grad_g, one after the other) |" in speed.speed_tables(tmp_path)


@pytest.mark.parametrize("wanted", ["cpu", "cuda"])
def test_times_on_a_gpu_are_taken_with_the_settings_of_runs(wanted: str) -> None:
    there = mock.patch.object(torch.cuda, "is_available", return_value=True)
    with there, mock.patch("scripts.speed.harness.settle_cuda") as settled:
        assert device_for_timing(wanted).type == wanted
    assert settled.called == (wanted == "cuda")


@pytest.mark.parametrize("name", ["oracle", "continual", "lanes", "report", "few_shot"])
def test_a_comparison_ends_at_smoke_size(
    name: str, tmp_path: Path, speed_here: Callable[..., int]
) -> None:
    """Of the others, those that take seconds and need neither peers nor real data."""
    file = tmp_path / "speed" / "record.json"
    assert speed_here(name, "--smoke", "--threads", "1", "--json", str(file)) == 0
    (record,) = speed.read_speed(tmp_path)
    assert all(len(line.seconds) == 1 for line in record.lines), record.lines
    assert record.command.startswith(f"uv run python -m scripts.speed {name} --smoke")


@pytest.mark.usefixtures("cuda")
def test_replayed_steps_are_held_against_plain_ones(
    tmp_path: Path, speed_here: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of a lent machine is in no record."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("scripts.speed.replayed.device_for_timing", lambda wanted: CPU)
    file = tmp_path / "results" / "speed" / "gpu_replayed.json"
    assert speed_here("replayed", "--smoke", "--threads", "1", "--json", str(file)) == 0
    (record,) = speed.read_speed(file.parent.parent)
    assert [line.name for line in record.lines] == ["replayed", "plain"]
    assert all(len(line.seconds) == 1 for line in record.lines), record.lines
    assert record.command.endswith("--json results/speed/gpu_replayed.json")


def test_replayed_steps_need_a_gpu(
    speed_here: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert speed_here("replayed") == 2
    said = "speed: replayed: only CUDA has such graphs, and torch finds no GPU here\n"
    assert capsys.readouterr().err == said


def test_every_comparison_has_its_file_and_its_options() -> None:
    """Its smoke values are values of its own options."""
    for name in COMPARISONS:
        comparison = importlib.import_module(f"scripts.speed.{name}").COMPARISON
        parser = ArgumentParser()
        comparison.add_options(parser)
        assert set(comparison.smoke) <= set(vars(parser.parse_args([]))), name


def test_an_option_that_is_refused_is_named(
    speed_here: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert speed_here("sweep", "--runs", "5") == 2
    assert capsys.readouterr().err == "speed: --few 20: write fewer than --runs 5\n"
    with pytest.raises(SystemExit) as ended:
        speed_here("other")
    assert ended.value.code == 2
    assert "invalid choice: 'other'" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "many", ""])
def test_a_number_of_things_is_at_least_one(text: str) -> None:
    assert positive("12") == 12
    with pytest.raises(ArgumentTypeError, match="write a whole number, at least 1"):
        positive(text)


def value_of(*numbers: float) -> Result:
    return Result(torch.tensor(numbers), {"passes": len(numbers)})


def contender(name: str, *results: Result | Exception | float) -> Contender:
    """Its first result is what it computes; the others are its turns."""
    left = list(results)

    def take() -> Any:
        result = left.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    return Contender(name, take, take, "a note")


def test_contenders_are_held_against_the_first() -> None:
    ours, same, other, broken = check_against_first(
        [
            contender("ours", value_of(3.0, 4.0)),
            contender("same", value_of(3.0, 4.0 + 1e-5)),
            contender("other", value_of(0.0, 4.0)),
            contender("broken", ValueError("no\n  such thing")),
        ],
        1e-4,
    )
    assert ours.facts == {"error": 0.0, "passes": 2}
    assert not ours.excluded
    assert same.facts["error"] == pytest.approx(2e-6, rel=0.1)
    assert (same.note, same.excluded) == ("a note", False)
    assert other.facts["error"] == pytest.approx(0.6)
    assert (other.note, other.excluded) == ("disagrees, not timed; a note", True)
    assert (broken.note, broken.excluded) == ("failed, ValueError: no such thing", True)
    with pytest.raises(ValueError, match="ours"):
        check_against_first([contender("ours", ValueError("ours"))], 1.0)


def test_a_result_that_is_no_number_disagrees() -> None:
    (_, other) = check_against_first(
        [contender("ours", value_of(1.0)), contender("other", value_of(math.nan))], 1e-4
    )
    assert other.excluded


def test_contenders_take_turns() -> None:
    """The turn that warms up is not kept; a contender that fails has no times."""
    ours = contender("ours", 9.0, 1.0, 2.0)
    peer = contender("peer", 9.0, 2.0, 8.0)
    broken = contender("broken", 9.0, 1.0, RuntimeError("late"))
    out = exclude(contender("out"), "why")
    lines = take_turns("M", [ours, peer, broken, out], 2)
    assert [line.seconds for line in lines] == [[1.0, 2.0], [2.0, 8.0], [], []]
    assert [line.note for line in lines] == [
        "a note",
        "a note",
        "failed, RuntimeError: late",
        "why",
    ]
    ratios = [line.model_extra["ratio"] for line in lines if line.model_extra]
    assert ratios == [1.0, pytest.approx(8**0.5), None, None]
    assert take_turns("M", [contender("ours", 3.0)], 1, warm_up=False)[0].seconds == [3.0]
    with pytest.raises(RuntimeError, match="ours"):
        take_turns("M", [contender("ours", RuntimeError("ours"))], 1)


def test_turns_alternate() -> None:
    order: list[str] = []

    def work(name: str) -> Contender:
        return in_process(name, lambda: order.append(name))

    lines = take_turns("M", [work("a"), work("b")], 2)
    assert order == ["a", "b"] * 3
    assert all(seconds > 0 for line in lines for seconds in line.seconds)


def test_a_peers_process_answers_until_it_ends(tmp_path: Path) -> None:
    """It has our number of threads; what it prints is no answer; its last words are passed on."""
    (tmp_path / "server.py").write_text(
        "import os, sys, torch\n"
        f"sys.path.append({str(ROOT)!r})\n"
        "from scripts.speed.peers import answer_requests\n"
        "def answer(request):\n"
        "    print('as it goes')\n"
        "    if request['ask'] == 'die':\n"
        "        raise SystemExit('out of memory')\n"
        "    return {'said': request['ask'], 'threads': torch.get_num_threads()}\n"
        "answer_requests(answer)\n"
    )
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {tmp_path / "server.py"} "$3"\n')
    python.chmod(0o755)
    with serving("Peer", python, "server", tmp_path) as ask:
        found = ask({"ask": "this"})
        assert found == {"said": "this", "threads": torch.get_num_threads()}
        with pytest.raises(Unavailable, match="Peer's process ended: out of memory"):
            ask({"ask": "die"})
