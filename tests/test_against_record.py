"""`reproduce check --against-record` on runs written by hand: every difference fails."""

import json
import math
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from bench.reproduce import cli, comparison, records, standing
from bench.reproduce.plan import Plan
from bench.reproduce.specs import Metric
from bench.runs.files import write_json
from tests.planned import BOOK, Known, artifact, finish, made
from tests.test_records import MACHINE

LOSSES = {"A": [0.25, 0.375, 0.5], "B": [1.0, 1.5, 1.25]}
CLAIMS: dict[str, Any] = {
    "less": {"kind": "below", "by": "paper", "text": "A has less", "rows": ["A"], "than": ["B"],
             "metric": "loss"},
    "small": {"kind": "between", "by": "paper", "text": "A is small", "rows": ["A"],
              "metric": "accuracy", "at_most": 1.0},
    "grows": {"kind": "diverges", "by": "paper", "text": "A grows", "rows": ["A"], "metric": "loss",
              "growth": 10.0},
}  # fmt: skip
CHANGES: dict[str, Any] = {
    "grid": None, "select": None, "variants": {"paper": {}}, "claims": CLAIMS,
    "rows": {"A": {"method": "bome"}, "B": {"method": "itd"}},
}  # fmt: skip
TOY = {"loss": Metric(label="loss", better="lower"), "accuracy": Metric(label="accuracy")}


class Said(NamedTuple):
    code: int
    lines: list[str]

    @property
    def differing(self) -> list[str]:
        return [line.strip() for line in self.lines if line.startswith("    ")]

    @property
    def last(self) -> str:
        return self.lines[-1]


class Bench(NamedTuple):
    """An artifact of this spec below a folder, and the command on it."""

    root: Path
    results: Path
    call: Callable[..., Said]

    def plan(self, **changes: Any) -> Plan:
        return made(self.root, **{**CHANGES, **changes})

    def record(self, **changes: Any) -> None:
        book = replace(BOOK, metrics={"any": {}, "toy": TOY})
        records.write_record(records.make_record(self.plan(**changes), book), self.results)

    def check(self, *arguments: str, **changes: Any) -> Said:
        return self.call(*arguments, **changes)

    def last(self, where: str, **values: Any) -> None:
        """Change the last values of a run."""
        file = self.root / where / "summary.json"
        content = json.loads(file.read_text())
        write_json(file, {**content, "last": content["last"] | values})

    def scaled(self, where: str, factor: float) -> None:
        file = self.root / where / "summary.json"
        self.last(where, loss=json.loads(file.read_text())["last"]["loss"] * factor)

    def machine(self, where: str, **values: Any) -> None:
        """Make a run one of another machine."""
        file = self.root / where / "environment.json"
        write_json(file, json.loads(file.read_text()) | values)

    def rerecorded(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Change every row of the record in the same way."""
        file = self.results / "p/a/short.json"
        content = json.loads(file.read_text())
        for row in content["rows"]["paper"].values():
            change(row)
        file.write_text(json.dumps(content))


def run(root: Path, where: str, loss: float | None, status: str = "done", **more: Any) -> None:
    accuracy = 0.5 + 0.001 * int(where[-1])
    last = {"step": 5, "loss": loss, "accuracy": accuracy, "seconds": 8.0, "cpu_seconds": 9.0,
            "calls/grad_g": 50, "samples/grad_g": 5_000_000_001, "info/slope": 3.0}  # fmt: skip
    finish(root, where, loss, status, last={**last, **more})
    write_json(root / where / "environment.json", MACHINE)


@pytest.fixture
def bench(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Bench:
    """All runs, and their record."""
    root, results = tmp_path / "runs", tmp_path / "results"
    monkeypatch.setattr(standing, "Names", known)
    monkeypatch.setattr(cli, "Names", known)

    def call(*arguments: str, **changes: Any) -> Said:
        entry = artifact(**{**CHANGES, **changes})
        book = replace(BOOK, artifacts={"p/a": entry}, metrics={"any": {}, "toy": TOY})
        monkeypatch.setattr(cli, "load_book", partial_book(book))
        where = ["--runs", str(root), "--results", str(results)]
        line = ["reproduce", "check", "--against-record", *where, *arguments]
        monkeypatch.setattr(sys, "argv", line)
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        assert said.err == ""
        assert isinstance(ended.value.code, int)
        return Said(ended.value.code, said.out.splitlines())

    found = Bench(root, results, call)
    for row, losses in LOSSES.items():
        for seed, loss in enumerate(losses):
            run(root, f"paper/{row}/-{seed}", loss)
    found.record()
    return found


def known(root: Path) -> Known:
    return Known()


def partial_book(book: Any) -> Callable[[Any], Any]:
    def load(folder: Any) -> Any:
        return book

    return load


def times(factor: float) -> Callable[[dict[str, Any]], None]:
    """Every last value of a row, counts aside, multiplied by a factor."""

    def change(row: dict[str, Any]) -> None:
        for name in ("loss", "accuracy"):
            row["finals"][name] = [value * factor for value in row["finals"][name]]

    return change


def before(row: dict[str, Any]) -> None:
    """A record as it was before records said under which conditions runs were made."""
    for name in ("commits", "sources", "threads", "instructions", "devices"):
        del row[name]


def test_equal_runs_pass(bench: Bench) -> None:
    """Six runs have loss, accuracy, step, calls and samples; two claims have three values each."""
    said = bench.check()
    assert (said.code, said.differing) == (0, [])
    assert said.last == (
        "2 holds, 1 not enough runs; 39 values compared, differing: none; "
        "not compared: parts of claims whose histories the record lacks (1)"
    )


def test_a_record_alone_is_held_against_itself(bench: Bench) -> None:
    shutil.rmtree(bench.root)
    said = bench.check()
    assert said.code == 0
    assert said.last.startswith(
        "2 holds, 1 not enough runs; 6 values compared, differing: none; not compared: "
    )


@pytest.mark.parametrize("with_runs", [False, True])
@pytest.mark.parametrize("factor", [1.5, 1 + 1e-5])
def test_a_record_with_other_finals_fails(bench: Bench, with_runs: bool, factor: float) -> None:
    bench.rerecorded(times(factor))
    if not with_runs:
        shutil.rmtree(bench.root)
    said = bench.check()
    assert said.code == 1
    assert len(said.differing) == (11 if with_runs else 6)
    assert said.differing[0].startswith(
        "p/a short paper claim less: loss: A − B, value 1, from the record's finals: "
    )
    assert said.differing[0].endswith(", recorded -0.75")
    if with_runs:
        assert said.differing[6].startswith("p/a short paper A, seed 0: loss: 0.25, recorded ")
        assert said.differing[-1] == "... and 8 more"
    assert f"differing: {18 if with_runs else 6}" in said.last


@pytest.mark.parametrize("name", ["low", "high", "extra_se", "values", "parts"])
def test_a_record_with_other_claims_fails(bench: Bench, name: str) -> None:
    """The verdict alone would not show the difference."""
    file = bench.results / "p/a/short.json"
    content = json.loads(file.read_text())
    entry = content["claims"]["paper"]["small"]
    if name == "parts":
        entry["parts"] *= 2
    elif name == "values":
        entry["parts"][0]["values"] = entry["parts"][0]["values"][:2] * 2
    else:
        entry["parts"][0][name] = {"low": -9.0, "high": 1.0625, "extra_se": 0.0625}[name]
    file.write_text(json.dumps(content))
    said = bench.check()
    assert said.code == 1
    (line,) = said.differing
    assert line.startswith("p/a short paper claim small")
    words = {"low": "low: -inf by the spec, recorded -9", "high": "high: 1 by the spec, recorded",
             "extra_se": "extra_se: 0 by the spec", "values": "3 values, recorded 4",
             "parts": "1 parts, recorded 2"}  # fmt: skip
    assert words[name] in line


def test_a_claims_values_may_differ_by_what_nine_digits_hide(bench: Bench) -> None:
    """A − B is a millionth of A: a millionth of A − B is less than a last digit of A."""
    for seed, (a, b) in enumerate([(1 / 3, 1 / 3 + 1e-6 / 7), (2 / 3, 2 / 3 + 1e-7), (1.0, 1.1)]):
        bench.last(f"paper/A/-{seed}", loss=a)
        bench.last(f"paper/B/-{seed}", loss=b)
    bench.record()
    shutil.rmtree(bench.root)
    assert bench.check().code == 0

    def change(row: dict[str, Any]) -> None:
        if row["method"] == "bome":
            row["finals"]["loss"][0] += 2e-8

    bench.rerecorded(change)
    said = bench.check()
    assert said.code == 1
    (line,) = said.differing
    assert "loss: A − B, value 1" in line


def recorded(*losses: float | None) -> records.RowRecord:
    """A recorded row with these losses, the last of which is that of a run that diverged."""
    n = len(losses)
    return records.RowRecord(
        method="bome", chosen={}, tried=1, tries=[], seeds=list(range(n)), runs=["r"] * n,
        status=["done"] * (n - 1) + ["diverged"], reasons=[None] * n,
        finals={"loss": list(losses)},
    )  # fmt: skip


@pytest.mark.parametrize(("count", "end"), [(10, "9: 1, recorded 2"), (11, "... and 1 more")])
def test_ten_values_that_differ_are_shown(count: int, end: str) -> None:
    values = [comparison.compare_values("same", 1.0, 1.0, 0.0)]
    values += [comparison.compare_values(f"{i}", 1.0, 2.0, 0.5) for i in range(count)]
    shown = comparison.difference_lines(values)
    assert shown[0] == "0: 1, recorded 2"
    assert shown[9] == "9: 1, recorded 2"
    assert (len(shown), shown[-1]) == (count, end)


def test_what_nine_digits_hide() -> None:
    """Half a unit of the ninth digit of 1.00000000 is 5e-9 of it. For a slope this is the worst
    case for a line through log 1, log 4 and log 16."""
    rows = [recorded(2.0, -3.0, None, 9e9), recorded(None, 4.0, 9e9), recorded(None, 9e9)]
    claim = {"kind": "below", "by": "us", "text": "c", "rows": ["A"], "than": ["B"],
             "metric": "loss"}  # fmt: skip
    of = {factor: artifact(claims={"c": {**claim, "factor": factor}}).spec.claims["c"]
          for factor in (0.5, 1.0, 3.0)}  # fmt: skip
    hidden = {f: comparison.rounding_error(claim, "loss", rows) for f, claim in of.items()}
    assert hidden == pytest.approx({0.5: 3.5e-8, 1.0: 3.5e-8, 3.0: 1.05e-7})
    above = artifact(claims={"c": {**claim, "kind": "above"}}).spec.claims["c"]
    assert comparison.rounding_error(above, "loss", rows) == pytest.approx(3.5e-8)
    assert comparison.rounding_error(of[1.0], "loss", rows[2:]) == 0.0
    slope = {"kind": "slope", "by": "paper", "text": "c", "rows": ["A"], "metric": "loss",
             "against": "k",
             "points": {"A": 1.0, "B": 4.0, "C": 16.0}, "at_most": 1.0}  # fmt: skip
    points = artifact(claims={"c": slope}).spec.claims["c"]
    spread = math.log(4) * math.sqrt(2 / 3)
    assert comparison.rounding_error(points, "loss", rows) == pytest.approx(2 * 5e-9 / spread)
    flat = artifact(claims={"c": {**slope, "points": {"A": 2.0, "B": 2.0}}}).spec.claims["c"]
    assert comparison.rounding_error(flat, "loss", rows) == 0.0


def test_a_count_that_a_run_does_not_have_is_nought(bench: Bench) -> None:
    """A null in place of a count is not infinite, as a null in place of a value is."""
    calls = {
        "kind": "between",
        "by": "paper",
        "text": "c",
        "rows": ["A"],
        "metric": "calls",
        "at_most": 60.0,
    }
    some: dict[str, Any] = {"claims": {"c": calls, "d": {**calls, "metric": "calls/hvp_g"}}}
    bench.last("paper/A/-1", **{"calls/hvp_g": 2})
    bench.record(**some)
    shutil.rmtree(bench.root)
    said = bench.check(**some)
    assert (said.code, said.differing) == (0, [])
    assert said.last.startswith("2 holds; 6 values compared")


def test_a_slope_is_computed_from_finals(bench: Bench) -> None:
    slope = {"kind": "slope", "by": "paper", "text": "s", "rows": ["A"], "metric": "loss",
             "against": "k",
             "points": {"A": 1.0, "B": 2.0, "C": 4.0}, "at_most": 9.0}  # fmt: skip
    rows = {**CHANGES["rows"], "C": {"method": "itd"}}
    some: dict[str, Any] = {"rows": rows, "claims": {"s": slope}}
    for seed in range(3):
        run(bench.root, f"paper/C/-{seed}", 7.0 / 3)
    bench.record(**some)
    shutil.rmtree(bench.root)
    assert bench.check(**some).code == 0

    def change(row: dict[str, Any]) -> None:
        row["finals"]["loss"] = [loss**1.00001 for loss in row["finals"]["loss"]]

    bench.rerecorded(change)
    said = bench.check(**some)
    assert said.code == 1
    assert "claim s: slope of log loss against log k, value 1, from the record" in said.differing[0]
    until = {**some, "claims": {"s": {**slope, "until": "loss", "target": 0.5}}}
    for row in "ABC":
        for seed in range(3):
            run(bench.root, f"paper/{row}/-{seed}", 1.0)
    bench.record(**until)
    said = bench.check(**until)
    assert said.code == 0
    assert said.last.endswith("not compared: parts of claims whose histories the record lacks (1)")


def test_a_failed_run_counts_in_the_claims_as_it_does_for_runs(bench: Bench) -> None:
    shutil.rmtree(bench.root / "paper/A/-1")
    run(bench.root, "paper/A/-1", None, "diverged")
    bench.record()
    shutil.rmtree(bench.root)
    assert bench.check().code == 0
    bench.rerecorded(lambda row: row.update(status=["done"] * 3))
    said = bench.check()
    assert said.code == 1
    lines = [line for line in said.differing if "claim small: accuracy of A, value 2" in line]
    (line,) = lines  # a null is infinite as well, but the accuracy is there
    assert line.endswith(": 0.501, recorded nan")


@pytest.mark.parametrize(("change", "code"), [(1e-9, 0), (0.9e-6, 0), (1.1e-6, 1)])
def test_last_bits_pass_on_the_same_machine(bench: Bench, change: float, code: int) -> None:
    bench.scaled("paper/A/-0", 1 - change)
    assert bench.check().code == code


def elsewhere(bench: Bench, how: str) -> None:
    """The run was made on another machine, or nobody knows where the recorded one was made."""
    ways: Mapping[str, dict[str, Any]] = {
        "instructions": {"cpu_capability": "AVX512"},
        "threads": {"threads": 4},
        "device": {"gpu": "A GPU"},
        "unknown": {"cpu_capability": None},
        "went on": {"continued": [{"step": 1, "changed": {"cpu_capability": ["AVX2", "NO"]}}]},
    }
    if how == "before":
        bench.rerecorded(before)
    elif how == "both unknown":
        bench.machine("paper/A/-0", cpu_capability=None)
        bench.rerecorded(lambda row: row.update(instructions=[None] * 3))
    elif how == "lane":
        file = bench.root / "paper/A/-0/summary.json"
        write_json(file, json.loads(file.read_text()) | {"amortised": True})
    elif how != "same":
        bench.machine("paper/A/-0", **ways[how])


ELSEWHERE = [
    "instructions", "threads", "device", "unknown", "went on", "before", "both unknown", "lane",
]  # fmt: skip


@pytest.mark.parametrize("how", ["same", *ELSEWHERE])
def test_a_thousandth_is_a_difference_on_the_same_machine_alone(bench: Bench, how: str) -> None:
    elsewhere(bench, how)
    bench.scaled("paper/A/-0", 1.001)
    said = bench.check()
    assert said.code == (1 if how == "same" else 0)
    line = "p/a short paper A, seed 0: loss: 0.25025, recorded 0.25"
    assert said.differing == ([line] if how == "same" else [])


@pytest.mark.parametrize("how", ["instructions", "before"])
def test_elsewhere_a_value_is_as_close_as_the_seeds_are_to_each_other(
    bench: Bench, how: str
) -> None:
    """The values of A's seeds are .25, .375 and .5."""
    elsewhere(bench, how)
    bench.last("paper/A/-0", loss=0.25 + 0.25)
    assert bench.check().code == 0
    bench.last("paper/A/-0", loss=0.25 - 0.251)
    said = bench.check()
    assert said.code == 1
    assert said.differing == ["p/a short paper A, seed 0: loss: -0.001, recorded 0.25"]


def test_lanes_are_alike(bench: Bench) -> None:
    for row in ("A", "B"):
        for seed in range(3):
            file = bench.root / f"paper/{row}/-{seed}/summary.json"
            write_json(file, json.loads(file.read_text()) | {"amortised": True})
    bench.record()
    bench.scaled("paper/A/-0", 1.001)
    assert bench.check().code == 1


def test_the_spread_is_of_runs_that_are_done(bench: Bench) -> None:
    shutil.rmtree(bench.root / "paper/A/-2")
    run(bench.root, "paper/A/-2", 1e9, "diverged")
    bench.record()
    elsewhere(bench, "instructions")
    bench.last("paper/A/-0", loss=0.25 + 0.126)
    assert bench.check().code == 1


def test_one_seed_has_no_spread(bench: Bench) -> None:
    """Counts are compared although values are not."""
    one: dict[str, Any] = {"budgets": {"short": {"minutes": 1.0}}}
    bench.record(**one)
    elsewhere(bench, "instructions")
    bench.last("paper/A/-0", loss=7.0)
    said = bench.check(**one)
    assert (said.code, said.differing) == (0, [])  # one run decides nothing
    assert "10 values compared, differing: none" in said.last
    assert "values of which the seeds do not say what is close (2)" in said.last
    bench.last("paper/A/-0", step=6)
    assert "p/a short paper A, seed 0: step: 6, recorded 5" in bench.check(**one).differing


def test_a_claim_that_is_not_the_recorded_one_fails(bench: Bench) -> None:
    """So does one that only one side has. Other words are the same claim."""
    changed = {**CLAIMS, "less": {**CLAIMS["less"], "margin": 0.125}}
    new = {**CLAIMS, "more": CLAIMS["less"]}
    gone = {key: claim for key, claim in CLAIMS.items() if key != "less"}
    for claims, key in ((changed, "less"), (new, "more"), (gone, "less")):
        said = bench.check(claims=claims)
        assert said.code == 1
        line = f"p/a short paper claim {key}: another claim by the spec, recorded as it was"
        assert line in said.differing
    said = bench.check(claims=new)
    assert "recorded: not there" in said.differing
    reworded = {**CLAIMS, "less": {**CLAIMS["less"], "text": "A is less"}}
    assert bench.check(claims=reworded).code == 0


def test_the_seed_that_chose_is_not_compared_in_claims(bench: Bench) -> None:
    """A record of all seeds, judged with those that are not the tuning seed."""
    some: dict[str, Any] = {"select": {"metric": "loss", "best": "lowest"}}
    shutil.rmtree(bench.root)
    said = bench.check(**some)
    assert said.code == 1
    assert "p/a short paper claim less: loss: A − B: 2 values, recorded 3" in said.differing


@pytest.mark.parametrize("how", ["same", *ELSEWHERE])
@pytest.mark.parametrize(
    "change", [{"step": 6}, {"calls/grad_g": 51}, {"calls/hvp_g": 1}, {"samples/grad_g": 5e9 + 9}]
)
def test_a_changed_count_fails_everywhere(bench: Bench, how: str, change: dict[str, float]) -> None:
    """A count that the record does not have counts as zero."""
    elsewhere(bench, how)
    bench.last("paper/A/-0", **change)
    said = bench.check()
    assert said.code == 1
    (line,) = said.differing
    (name,) = change
    assert line.startswith(f"p/a short paper A, seed 0: {name}: ")


def test_a_count_that_is_gone_fails(bench: Bench) -> None:
    file = bench.root / "paper/A/-0/summary.json"
    content = json.loads(file.read_text())
    del content["last"]["calls/grad_g"]
    write_json(file, content)
    said = bench.check()
    assert said.differing == ["p/a short paper A, seed 0: calls/grad_g: 0, recorded 50"]


@pytest.mark.parametrize(
    ("setting", "how", "code"),
    [
        ("run.seconds", "same", 0),
        ("run.cpu_seconds", "same", 0),
        ("run.seconds", "before", 0),
        ("run.until", "same", 1),
        ("run.until", "before", 0),
        ("run.steps", "same", 1),
        ("run.steps", "before", 1),
    ],
)
def test_counts_of_runs_that_the_clock_or_a_value_ends(
    bench: Bench, setting: str, how: str, code: int
) -> None:
    """A clock ends a run at another step each time, and a target does so on another machine. The
    step may then be as far from the recorded one as the seeds' steps are from each other, and so
    may the values."""
    some: dict[str, Any] = {"set": {setting: "loss" if setting == "run.until" else 5}}
    for seed, step in enumerate([5, 7, 9]):
        bench.last(f"paper/A/-{seed}", step=step)
    bench.record(**some)
    elsewhere(bench, how)
    bench.last("paper/A/-0", step=9)
    assert bench.check(**some).code == code
    bench.last("paper/A/-0", step=10)
    assert bench.check(**some).code == 1
    if "seconds" in setting:
        bench.last("paper/A/-0", step=5, loss=0.5)
        assert bench.check(**some).code == 0


def test_how_far_below_its_target_a_run_stands_is_compared_on_the_same_machine(
    bench: Bench,
) -> None:
    some: dict[str, Any] = {"set": {"run.until": "accuracy"}}
    bench.last("paper/A/-0", accuracy=0.25)
    assert bench.check(**some).code == 1
    elsewhere(bench, "threads")
    said = bench.check(**some)
    assert said.code == 0
    assert said.last.endswith(", values of which the seeds do not say what is close (1)")


@pytest.mark.parametrize("how", ["same", "before"])
def test_a_run_that_diverged_where_the_record_has_done_fails(bench: Bench, how: str) -> None:
    elsewhere(bench, how)
    shutil.rmtree(bench.root / "paper/B/-1")
    run(bench.root, "paper/B/-1", None, "diverged")
    said = bench.check()
    assert said.code == 1
    assert said.differing == [
        "recorded: holds (loss: A − B = −0.875 [−1.413, −0.3372], asked < 0, p = 0.02, n = 3)",
        "p/a short paper B, seed 1: status: diverged, recorded done",
    ]


def test_a_run_that_diverged_on_another_machine_diverged_somewhere_else(bench: Bench) -> None:
    shutil.rmtree(bench.root / "paper/B/-1")
    run(bench.root, "paper/B/-1", 7.0, "diverged")
    bench.record()
    assert bench.check().code == 0
    bench.last("paper/B/-1", loss=8.0, step=4)
    assert len(bench.check().differing) == 2
    bench.machine("paper/B/-1", cpu_capability="AVX512")
    said = bench.check()
    assert said.code == 0
    assert "values of which the seeds do not say what is close (5)" in said.last


def test_what_is_not_finite_equals_only_itself(bench: Bench) -> None:
    elsewhere(bench, "instructions")
    bench.last("paper/A/-0", accuracy=None)
    line = "p/a short paper A, seed 0: accuracy: not finite or not there, recorded 0.5"
    assert line in bench.check().differing
    bench.record()
    assert bench.check().code == 0


def test_times_memory_and_the_last_steps_info_are_of_the_machine(bench: Bench) -> None:
    some: dict[str, Any] = {"columns": ["loss", "peak_memory_mb"]}
    for row in "AB":
        for seed in range(3):
            file = bench.root / f"paper/{row}/-{seed}/summary.json"
            content = json.loads(file.read_text())
            write_json(file, content | {"peak_memory_mb": {"process": 9.0 + seed}})
    bench.record(**some)
    bench.last("paper/A/-0", seconds=80.0, cpu_seconds=90.0, amortised_seconds=1.0)
    bench.last("paper/A/-1", **{"info/slope": 9.0, "info/other": 9.0})
    for file in bench.root.rglob("summary.json"):
        file.write_text(file.read_text().replace('"process": 9.0', '"process": 99.0'))
    assert bench.check(**some).code == 0


def test_info_that_a_claim_is_about_is_compared(bench: Bench) -> None:
    slope = {"kind": "between", "by": "us", "text": "s", "rows": ["A"], "metric": "info/slope",
             "at_most": 5.0}  # fmt: skip
    some: dict[str, Any] = {"claims": {**CLAIMS, "slope": slope}}
    bench.record(**some)
    assert bench.check(**some).code == 0
    bench.last("paper/A/-1", **{"info/slope": 3.1})
    said = bench.check(**some)
    assert said.code == 1
    assert any("info/slope: 3.1, recorded 3" in line for line in said.differing)


@pytest.mark.parametrize("metric", ["loss", "cpu_seconds"])
def test_the_way_of_runs_is_compared_where_a_claim_is_about_it(bench: Bench, metric: str) -> None:
    """Their ends may be the same. Times differ each time, and are not compared."""
    slope = {"kind": "slope", "by": "us", "text": "s", "rows": ["A"], "metric": metric,
             "against": "step", "at_most": 5.0}  # fmt: skip
    some: dict[str, Any] = {"claims": {"slope": slope}}

    def write(seed: int, power: float) -> None:
        rows = [{"step": k, "loss": k**power, "cpu_seconds": k**power} for k in range(1, 13)]
        text = "".join(f"{json.dumps(row)}\n" for row in [*rows, {**rows[-1], "step": 13}])
        (bench.root / f"paper/A/-{seed}/history.jsonl").write_text(text)

    for seed in range(3):
        write(seed, 1 + seed)
    bench.record(**some)
    assert bench.check(**some).code == 0
    write(1, 2.1)
    said = bench.check(**some)
    assert said.code == (metric == "loss")
    assert any("from runs' histories" in line for line in said.differing) == (metric == "loss")


def test_the_values_that_chose_a_grid_point_are_compared(bench: Bench) -> None:
    grid: dict[str, Any] = {
        "grid": {"algorithm.lr": [0.1, 0.2]}, "rows": {"A": {"method": "bome"}}, "claims": {},
        "select": {"metric": "loss", "best": "lowest"},
    }  # fmt: skip
    for lr, loss in ((0.1, 0.5), (0.2, 0.25)):
        run(bench.root, f"paper/A/{lr}-0", loss)
    for seed in (1, 2, 3):
        run(bench.root, f"paper/A/0.2-{seed}", 0.25 + 0.01 * seed)
    bench.record(**grid)
    assert bench.check(**grid).code == 0
    bench.scaled("paper/A/0.1-0", 1.01)  # by less than the seeds differ: .005 of .02
    assert bench.check(**grid).code == 0
    bench.scaled("paper/A/0.1-0", 1.1)
    said = bench.check(**grid)
    assert said.code == 1
    assert any("tried {'algorithm.lr': 0.1}: loss" in line for line in said.differing)


def test_part_of_the_runs_is_compared_and_told_in_the_last_line(bench: Bench) -> None:
    """The verdicts are then those of the record."""
    for seed in range(3):
        shutil.rmtree(bench.root / f"paper/B/-{seed}")
    shutil.rmtree(bench.root / "paper/A/-2")
    said = bench.check()
    assert said.code == 0
    assert "p/a short paper (recorded) less: A has less" in said.lines[0]
    assert "16 values compared" in said.last
    assert said.last.endswith("; 1 artifact with part of their runs only: p/a short (2 of 6)")
    bench.scaled("paper/A/-1", 1.001)
    assert bench.check().code == 1
    shutil.rmtree(bench.root / "paper/A")
    assert "part of" not in bench.check().last


def test_a_seed_or_row_that_the_record_does_not_have_is_not_compared(bench: Bench) -> None:
    shutil.rmtree(bench.root / "paper/A/-2")
    bench.record()
    run(bench.root, "paper/A/-2", 0.5)
    more = {"budgets": {"short": {"minutes": 1.0, "seeds": 4}}}
    run(bench.root, "paper/A/-3", 0.5)
    rows = {**CHANGES["rows"], "C": {"method": "itd"}}
    run(bench.root, "paper/C/-0", 0.5)
    said = bench.check(rows=rows, **more)
    assert "29 values compared" in said.last  # 5 runs of 5 values, 2 claims of 2
    assert "(8 of 12)" in said.last


def test_runs_are_held_against_the_row_and_seed_whatever_their_name(bench: Bench) -> None:
    bench.rerecorded(lambda row: row.update(runs=["x/y/0", "x/y/1", "x/y/2"]))
    assert "39 values compared, differing: none" in bench.check().last
    bench.scaled("paper/A/-0", 1.001)
    assert bench.check().code == 1


def test_the_seed_that_tries_points_is_compared_with_older_records(bench: Bench) -> None:
    """They have it among the seeds of the row. What chose is compared with every point's value."""
    grid: dict[str, Any] = {
        "grid": {"algorithm.lr": [0.1, 0.2]}, "rows": {"A": {"method": "bome"}}, "claims": {},
        "select": {"metric": "loss", "best": "lowest"},
    }  # fmt: skip
    run(bench.root, "paper/A/0.1-0", 0.5)
    run(bench.root, "paper/A/0.2-0", 0.25)
    run(bench.root, "paper/A/0.2-1", 0.25, accuracy=0.5)
    bench.record(**grid)
    assert bench.check(**grid).last == (
        "no claims; 5 values compared, differing: none; not compared: values of which the seeds do "
        "not say what is close (2); 1 artifact with part of their runs only: p/a short (3 of 5)"
    )
    bench.rerecorded(lambda row: row.update(seeds=[0, 1, 2]))
    shutil.rmtree(bench.root / "paper/A/0.1-0")  # the point is chosen no more
    said = bench.check(**grid)
    assert (said.code, said.last) == (
        0, "no claims; 5 values compared, differing: none; not compared: values of which the seeds "
        "do not say what is close (1); 1 artifact with part of their runs only: p/a short (1 of 5)",
    )  # fmt: skip
    bench.scaled("paper/A/0.2-0", 1.001)
    assert bench.check(**grid).code == 1


def test_a_record_from_before_is_read_and_says_what_it_lacks(bench: Bench) -> None:
    memory = {"kind": "above", "by": "paper", "text": "m", "rows": ["A"], "than": ["B"],
              "margin": -1.0,
              "metric": "peak_memory_mb"}  # fmt: skip
    calls = {**memory, "metric": "calls"}
    some: dict[str, Any] = {"claims": {**CLAIMS, "memory": memory, "calls": calls}}
    for file in bench.root.rglob("summary.json"):
        write_json(file, json.loads(file.read_text()) | {"peak_memory_mb": {"process": 9.0}})
    bench.record(**some)
    assert "45 values compared, differing: none" in bench.check(**some).last

    def old(row: dict[str, Any]) -> None:
        before(row)
        if row["method"] == "bome":
            del row["finals"]["peak_memory_mb"]

    kept = (bench.results / "p/a/short.json").read_text()
    bench.rerecorded(old)
    said = bench.check(**some)
    assert said.code == 0
    assert said.last.endswith(
        "39 values compared, differing: none; not compared: "
        "parts of claims whose histories the record lacks (1), "
        "parts whose metric the record lacks (1)"
    )  # fmt: skip
    (bench.results / "p/a/short.json").write_text(kept)
    bench.rerecorded(lambda row: row["finals"].pop("peak_memory_mb"))
    said = bench.check(**some)
    assert said.code == 1
    assert all("claim memory: peak memory mb: A − B" in line for line in said.differing)


def test_a_variant_is_checked_alone(bench: Bench) -> None:
    both: dict[str, Any] = {"variants": {"paper": {}, "code": {}}}
    for row, losses in LOSSES.items():
        for seed, loss in enumerate(losses):
            run(bench.root, f"code/{row}/-{seed}", loss)
    bench.record(**both)
    bench.scaled("code/A/-0", 1.001)
    assert bench.check("--variant", "code", **both).code == 1
    said = bench.check("--variant", "paper", **both)
    assert said.code == 0
    assert "39 values compared" in said.last
    shutil.rmtree(bench.results)
    bench.record()
    assert bench.check("--variant", "code").last.startswith("no claims; 0 values compared")


def test_only_runs_that_are_done_can_lack_a_metric() -> None:
    """Only an older record can lack it: newer ones keep every metric that the claims read."""
    old = recorded(1.0, 2.0)
    assert comparison.lacks_metric(old, "accuracy")
    assert not comparison.lacks_metric(old, "loss")
    assert not comparison.lacks_metric(old, "calls/grad_g")
    assert not comparison.lacks_metric(recorded(2.0), "accuracy")
    assert not comparison.lacks_metric(
        old.model_copy(update={"devices": ["A CPU"] * 2}), "accuracy"
    )
