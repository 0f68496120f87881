"""Records of runs whose files are written by hand: every field, and every sentence about a
record."""

import datetime
import json
import math
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from bench.core.settings import BadSetting
from bench.reproduce import circumstances, durations, records, rejudging, specs, spending
from bench.reproduce.claims_at import claim_at_budget, claims_at
from bench.reproduce.plan import PlannedRun, Run
from bench.reproduce.points import Point
from bench.reproduce.specs import Artifact
from bench.runs.files import write_json
from tests.planned import BOOK, artifact, finish, made

MACHINE: dict[str, Any] = {
    "python": "3.11", "packages": {"torch": "2.0"}, "cpu": "A CPU", "threads": 2, "gpu": None,
    "git": {"commit": "0123456789abcdef", "dirty": False}, "cpu_capability": "AVX2",
    "source": {"digest": "c0de", "files": {"a.py": "f11e"}},
}  # fmt: skip
UNMADE = {
    "commits": [], "sources": [], "threads": [], "instructions": [], "devices": [],
    "undisturbed": [], "paces": [], "outdated": False,
}  # fmt: skip
LESS = {
    "kind": "below",
    "by": "paper",
    "text": "A has less",
    "rows": ["A"],
    "than": ["L"],
    "metric": "loss",
}
CLAIMS: dict[str, Any] = {
    "less": LESS,
    "paper only": {**LESS, "text": "in the paper", "variants": ["paper"], "margin": 0.125},
    "smoke only": {**LESS, "budgets": ["smoke"]},
}


def ended(root: Path, where: str, loss: float | None, status: str = "done", **more: Any) -> None:
    """A run of this name that has ended with this status, on MACHINE unless `machine` says what
    differs."""
    machine = MACHINE | more.pop("machine", {})
    finish(root, where, loss, status, **more)
    write_json(root / where / "environment.json", machine)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """In the paper variant A's chosen point is .2, with two of three seeds; the second seed of L
    has failed and the third is missing. In the code variant one of A's three points is there."""
    ended(tmp_path, "paper/A/0.1-0", 0.5)
    ended(tmp_path, "paper/A/0.2-0", 0.25)
    ended(tmp_path, "paper/A/0.3-0", None, "diverged", reason="x is not finite")
    ended(tmp_path, "paper/A/0.2-1", 0.25, process={"others_cores": 0.125, "pace_ms": 1.5})
    ended(tmp_path, "paper/A/0.2-3", 1 / 3, machine={"git": {"commit": "0123456789x", "dirty": 1}})
    ended(tmp_path, "paper/L/-1", 0.75, machine={"gpu": "A GPU", "git": None})
    ended(tmp_path, "paper/L/-2", 0.125, "diverged", reason="y is not finite",
          machine={"packages": {"torch": "2.1"}, "threads": 4})  # fmt: skip
    ended(tmp_path, "code/A/0.1-0", 0.625)
    return tmp_path


@pytest.fixture
def measured(root: Path) -> records.Record:
    return records.make_record(made(root, claims=CLAIMS), BOOK)


def test_what_a_record_says_of_an_artifact(measured: records.Record) -> None:
    found = measured.model_dump(exclude={"rows", "claims"})
    today = datetime.datetime.now(datetime.UTC).date()
    assert datetime.date.fromisoformat(found.pop("date")) in (
        today, today - datetime.timedelta(days=1),
    )  # fmt: skip
    assert found == {
        "artifact": "p/a", "title": "t", "source": "s", "budget": "short", "deterministic": None,
        "complete": False, "looks": [],
        "hardware": ["A CPU, 2 threads", "A GPU", "A CPU, 4 threads"],
        "software": [{"python": "3.11", "torch": "2.0"}, {"python": "3.11", "torch": "2.1"}],
        "commits": ["0123456789", "0123456789 and changes", "unknown"],
        "run_seconds": 8 * 8.0, "process_seconds": None, "startup_seconds": None,
    }  # fmt: skip


MADE = {
    "cut": False, "commit": "0123456789", "source": "c0de", "threads": "2", "instructions": "AVX2",
    "device": "A CPU", "pace": None, "undisturbed": False,
}  # fmt: skip


def test_what_a_record_says_of_a_row(measured: records.Record) -> None:
    """Lists are in the order of the seeds; a value that is missing or not finite is null."""
    assert {variant: list(rows) for variant, rows in measured.rows.items()} == {
        "paper": ["A", "L", "B", "P"], "code": ["A", "L", "P"],
    }  # fmt: skip
    paper = measured.rows["paper"]
    assert paper["A"].model_dump() == {
        "method": "bome",
        "chosen": {"algorithm.lr": 0.2},
        "tried": 3,
        "tries": [
            {
                "name": "paper/A/0.1-0",
                "settings": {"algorithm.lr": 0.1},
                "status": "done",
                "metric": "loss",
                "value": 0.5,
                "step": 5.0,
                **MADE,
            },
            {
                "name": "paper/A/0.2-0",
                "settings": {"algorithm.lr": 0.2},
                "status": "done",
                "metric": "loss",
                "value": 0.25,
                "step": 5.0,
                **MADE,
            },
            {
                "name": "paper/A/0.3-0",
                "settings": {"algorithm.lr": 0.3},
                "status": "diverged",
                "metric": "loss",
                "value": None,
                "step": 5.0,
                **MADE,
            },
        ],
        "seeds": [1, 2, 3],
        "runs": ["paper/A/0.2-1", "paper/A/0.2-2", "paper/A/0.2-3"],
        "status": ["done", "missing", "done"],
        "reasons": [None, None, None],
        "finals": {
            "step": [5.0, None, 5.0],
            "loss": [0.25, None, 0.333333333],
            "seconds": [8.0, None, 8.0],
            "cpu_seconds": [9.0, None, 9.0],
        },
        "commits": ["0123456789", None, "0123456789 and changes"],
        "sources": ["c0de", None, "c0de"],
        "threads": ["2", None, "2"],
        "instructions": ["AVX2", None, "AVX2"],
        "devices": ["A CPU", None, "A CPU"],
        "undisturbed": [True, False, False],
        "paces": [1.5, None, None],
        "outdated": False,
        "pending": None,
    }
    line = paper["L"].model_dump(include={"chosen", "tried", "tries", "status", "reasons"})
    assert line == {
        "chosen": {}, "tried": 1, "tries": [], "status": ["done", "diverged", "missing"],
        "reasons": [None, "y is not finite", None],
    }  # fmt: skip
    assert paper["L"].finals["loss"] == [0.75, 0.125, None]
    assert paper["B"].method == "itd"
    tries = paper["B"].tries
    assert [t["status"] for t in tries] == ["missing"] * 3
    assert [t["value"] for t in tries] == [None] * 3
    open_row = measured.rows["code"]["A"].model_dump(exclude={"tries"})
    assert open_row == {
        "method": "bome", "chosen": {}, "tried": 3, "seeds": [], "runs": [], "status": [],
        "reasons": [], "finals": {}, **UNMADE, "pending": None,
    }  # fmt: skip
    for variant in ("paper", "code"):
        assert measured.rows[variant]["P"].model_dump() == {
            "method": "itd", "chosen": {}, "tried": 0, "tries": [], "seeds": [], "runs": [],
            "status": [], "reasons": [], "finals": {}, **UNMADE, "pending": "not built",
        }  # fmt: skip


def test_rows_stand_in_the_specs_order_and_a_pending_one_in_its_own_variants(
    tmp_path: Path,
) -> None:
    rows = {
        "P": {"method": "itd", "pending": "not built"},
        "Q": {"method": "itd", "pending": "not built", "only": ["code"]},
        "A": {"method": "bome"},
    }
    found = records.make_record(made(tmp_path, rows=rows), BOOK)
    assert {variant: list(rows) for variant, rows in found.rows.items()} == {
        "paper": ["P", "A"], "code": ["P", "Q", "A"],
    }  # fmt: skip


def test_what_a_record_says_of_claims(measured: records.Record) -> None:
    """Seed 1: .25 - .75; of seed 2 A is missing; seed 3 has failed, or rather is missing, in L."""
    assert {variant: list(group) for variant, group in measured.claims.items()} == {
        "paper": ["less", "paper only"], "code": ["less"],
    }  # fmt: skip
    entry = measured.claims["paper"]["paper only"]
    assert entry.claim == {
        "text": "in the paper", "by": "paper", "source": None, "why": {},
        "variants": ["paper"], "budgets": ["short", "medium", "gpu", "full"],
        "rows": ["A"], "kind": "below", "metric": "loss", "than": ["L"], "factor": 1.0,
        "margin": 0.125, "log": False, "median": False,
    }  # fmt: skip
    (part,) = entry.parts
    assert (part.values, part.low, part.high, part.expected) == ([-0.5], -math.inf, -0.125, 3)
    assert entry.verdict.word == "not run"
    assert measured.claims["code"]["less"].parts[0].values == []


def test_a_failed_run_is_in_the_claims_of_its_row(root: Path) -> None:
    ended(root, "paper/A/0.2-2", 0.25)
    ended(root, "paper/L/-3", 0.75)
    found = records.make_record(made(root, claims=CLAIMS), BOOK).claims["paper"]["less"]
    assert found.parts[0].values == pytest.approx([-0.5, -math.inf, 1 / 3 - 0.75])
    assert found.verdict.word == "not enough runs"  # three signs


def test_published_values_and_labels_reach_the_judge(root: Path) -> None:
    rows = {"L": {"method": "bome", "line": True, "published": {"loss": {"mean": 0.5, "se": 0.25}}}}
    claim = {"kind": "within_published", "by": "paper", "text": "c", "rows": ["L"],
             "metric": "loss",
             "tolerance": 0.125}  # fmt: skip
    found = records.judge_claims(made(root, rows=rows, claims={"near": claim}), BOOK)
    (part,) = found["paper"]["near"].parts
    assert (part.what, part.extra_se) == ("loss of L − published 0.5", 0.25)
    assert part.values == [0.25, math.inf]


def test_a_record_says_with_how_many_seeds_its_claims_have_been_judged(tmp_path: Path) -> None:
    rows = {"A": {"method": "bome"}}

    def recorded(count: int, old: records.Record | None = None) -> records.Record:
        budgets = {"short": {"minutes": 1.0, "seeds": count}}
        spec: dict[str, Any] = {"rows": rows, "variants": {"paper": {}}, "budgets": budgets}
        return records.make_record(made(tmp_path, **spec, grid=None, select=None), BOOK, old)

    def end_run(seed: int) -> None:
        ended(tmp_path, f"paper/A/-{seed}", 0.5)

    end_run(0)
    alone = recorded(1)
    assert (alone.complete, alone.looks) == (True, [])  # one run decides nothing
    end_run(1)
    end_run(2)
    first = recorded(3, alone)
    assert first.looks == [3]
    assert recorded(3, first).looks == [3]
    half = recorded(5, first)
    assert (half.complete, half.looks) == (False, [3])
    end_run(3)
    end_run(4)
    more = recorded(5, half)
    assert more.looks == [3, 5]
    other = [row.model_copy(update={"runs": ["x"] * 5}) for row in more.rows["paper"].values()]
    others = more.model_copy(update={"rows": {"paper": dict(zip(rows, other))}})
    assert recorded(5, others).looks == [5]  # no run of that record is one of these


def test_an_incomplete_record_counts_the_judgements_of_claims_whose_runs_are_there(
    tmp_path: Path,
) -> None:
    """A's and L's runs are there, and the claim on them fails; B has none, or too few."""
    low = {"kind": "between", "by": "us", "text": "B is low", "rows": ["B"], "metric": "loss",
           "at_most": 1.0}  # fmt: skip

    def recorded(count: int, old: records.Record | None = None) -> records.Record:
        budgets = {"short": {"minutes": 1.0, "seeds": 2, "more_seeds": {"A": count, "L": count}}}
        spec = {"variants": {"paper": {}}, "grid": None, "select": None, "budgets": budgets}
        plan = made(tmp_path, **spec, claims={"less": LESS, "low": low})
        return records.make_record(plan, BOOK, old)

    def end_runs(*seeds: int) -> None:
        for seed in seeds:
            ended(tmp_path, f"paper/A/-{seed}", 0.75 + 0.01 * seed)
            ended(tmp_path, f"paper/L/-{seed}", 0.25)

    end_runs(0, 1, 2)
    first = recorded(3)
    words = {key: entry.verdict.word for key, entry in first.claims["paper"].items()}
    assert (first.complete, words) == (False, {"less": "fails", "low": "not run"})
    assert first.looks == [3]
    waiting = recorded(5, first)  # nothing is judged with the five seeds of which two are missing
    assert (waiting.complete, waiting.looks) == (False, [3])
    end_runs(3, 4)
    assert recorded(5, waiting).looks == [3, 5]
    ended(tmp_path, "paper/B/-0", 0.5)
    ended(tmp_path, "paper/B/-1", 0.5)
    whole = recorded(5, waiting)
    assert (whole.complete, whole.looks) == (True, [2, 3, 5])
    judged = {key: entry.judged for key, entry in whole.claims["paper"].items()}
    assert judged == {"less": [3, 5], "low": [2]}
    assert "judged" not in first.claims["paper"]["low"].model_dump(mode="json")
    less = first.claims["paper"]["less"].model_copy(update={"judged": []})
    older = first.model_copy(update={"claims": {"paper": first.claims["paper"] | {"less": less}}})
    assert recorded(5, older).claims["paper"]["less"].judged == [3, 5]  # of before it was kept
    other = {
        variant: {
            name: row.model_copy(update={"runs": ["x"] * len(row.runs)})
            for name, row in rows.items()
        }
        for variant, rows in first.rows.items()
    }
    anew = recorded(5, first.model_copy(update={"rows": other}))  # no run of these is one of those
    assert anew.claims["paper"]["less"].judged == [5]


def test_a_claim_is_judged_with_the_seeds_that_all_of_its_rows_have(tmp_path: Path) -> None:
    low = {"kind": "between", "by": "us", "text": "L is low", "rows": ["L"], "metric": "loss",
           "at_most": 1.0}  # fmt: skip
    spec: dict[str, Any] = {
        "budgets": {"short": {"minutes": 1.0, "seeds": 3, "more_seeds": {"L": 5}}},
        "claims": {"less": LESS, "low": low, "both": {**low, "rows": ["A", "L"]}},
        "variants": {"paper": {}}, "grid": None, "select": None,
    }  # fmt: skip
    for seed in range(5):
        ended(tmp_path, f"paper/A/-{seed}", 0.25)
        ended(tmp_path, f"paper/L/-{seed}", 0.75)
        ended(tmp_path, f"paper/B/-{seed}", 0.5)
    found = records.make_record(made(tmp_path, **spec), BOOK)
    judged = found.claims["paper"]
    assert [(p.expected, len(p.values)) for p in judged["less"].parts] == [(3, 3)]
    assert [(p.expected, len(p.values)) for p in judged["low"].parts] == [(5, 5)]
    assert [(p.expected, len(p.values)) for p in judged["both"].parts] == [(3, 3)] * 2
    assert [len(row.seeds) for row in found.rows["paper"].values()] == [3, 5, 3, 0]
    assert (found.complete, found.looks) == (True, [3, 5])
    assert rejudging.rejudge(found, artifact(**spec), BOOK)["paper"] == judged


def test_a_record_is_complete_when_every_run_has_ended(tmp_path: Path) -> None:
    """A run that failed has ended; a point that is still to be chosen has runs to come."""
    rows = {"A": {"method": "bome"}}
    some: dict[str, Any] = {"rows": rows, "variants": {"paper": {}}}
    for i, lr in enumerate((0.1, 0.2, 0.3)):
        assert not records.make_record(made(tmp_path, **some), BOOK).complete
        ended(tmp_path, f"paper/A/{lr}-0", 0.5, "diverged" if i else "done", reason="r")
    ended(tmp_path, "paper/A/0.1-1", 0.5)
    ended(tmp_path, "paper/A/0.1-2", 0.5)
    assert not records.make_record(made(tmp_path, **some), BOOK).complete
    ended(tmp_path, "paper/A/0.1-3", 0.5)
    assert records.make_record(made(tmp_path, **some), BOOK).complete


def test_no_tries_are_listed_where_there_is_nothing_to_choose(tmp_path: Path) -> None:
    single = {"grid": {"algorithm.lr": [0.1]}, "variants": {"paper": {}}}
    found = records.make_record(made(tmp_path, **single), BOOK).rows["paper"]["A"]
    assert (found.tried, found.tries, found.chosen) == (1, [], {"algorithm.lr": 0.1})
    double = {**single, "grid": {"algorithm.lr": [0.1, 0.2]}}
    assert len(records.make_record(made(tmp_path, **double), BOOK).rows["paper"]["A"].tries) == 2


def test_the_seconds_of_all_runs_are_summed_to_two_digits(tmp_path: Path) -> None:
    for seed in (1, 2):
        ended(tmp_path, f"paper/L/-{seed}", 0.5)
        file = tmp_path / f"paper/L/-{seed}" / "summary.json"
        file.write_text(file.read_text().replace("8.0", "1.0629"))
    assert records.make_record(made(tmp_path), BOOK).run_seconds == 2.13


@pytest.mark.parametrize(
    ("last", "seconds"),
    [
        ({"seconds": 2, "amortised_seconds": 9.0}, 2.0),
        ({"amortised_seconds": 9.0}, 9.0),
        ({}, 0.0),
        (None, 0.0),
    ],
)
def test_the_time_of_a_run_is_its_own_or_its_share(last: Any, seconds: float) -> None:
    job = PlannedRun(Point("paper", "A", (), ()), 0, "n")
    one = Run(job, Path(), None if last is None else {"last": last})
    assert spending.step_seconds(one) == seconds


def test_finals_are_every_name_of_any_run_to_nine_digits() -> None:
    job = PlannedRun(Point("paper", "A", (), ()), 0, "n")
    lasts: list[Any] = [
        {"step": 5, "loss": 0.12345678949, "amortised_seconds": 3.0},
        None,
        {"step": 10, "gap": 123456789.49, "loss": None},
    ]
    runs = [Run(job, Path(), None if last is None else {"last": last}) for last in lasts]
    assert records.final_values(runs) == {
        "step": [5.0, None, 10.0],
        "loss": [0.123456789, None, None],
        "gap": [None, None, 123456789.0],
    }
    assert records.final_values([]) == {}


def test_peak_memory_is_a_final_where_the_spec_reads_it(tmp_path: Path) -> None:
    """The summary has the peak memory, but no row does; for a run on a GPU it is the GPU's."""
    column = {"rows": {"A": {"method": "bome"}}, "grid": None, "variants": {"paper": {}}}
    ended(tmp_path, "paper/A/-1", 0.5, peak_memory_mb={"process": 300.0})
    ended(tmp_path, "paper/A/-2", 0.5, peak_memory_mb={"process": 300.0, "gpu": 1234.5678949})
    found = records.make_record(made(tmp_path, **column), BOOK).rows["paper"]["A"].finals
    assert list(found) == ["step", "loss", "seconds", "cpu_seconds"]
    memory = {**column, "columns": ["loss", "peak_memory_mb"]}
    found = records.make_record(made(tmp_path, **memory), BOOK).rows["paper"]["A"].finals
    assert found["peak_memory_mb"] == [300.0, 1234.56789, None]
    claim = {**LESS, "than": ["A"], "metric": "peak_memory_mb"}
    found = records.make_record(made(tmp_path, **column, claims={"c": claim}), BOOK).rows["paper"][
        "A"
    ]
    assert found.finals["peak_memory_mb"][0] == 300.0


def test_what_a_spec_reads_of_a_run() -> None:
    rows = {"A": {"method": "bome", "published": {"p": {"mean": 1.0}}}, "B": {"method": "itd"}}
    asked = {
        "close": {"kind": "close", "by": "paper", "text": "c", "rows": ["A", "B"], "every": ["c1",
                  "c2"],
                  "within": 1.0},
        "first": {"kind": "first", "by": "paper", "text": "c", "rows": ["A"], "than": ["B"],
                  "metric": "m",
                  "on": "calls", "value": 1.0},
        "until": {"kind": "slope", "by": "paper", "text": "c", "rows": ["A"], "metric": "c1",
                  "against": "k",
                  "points": {"A": 1.0}, "until": "u", "target": 1.0, "at_most": 1.0},
    }  # fmt: skip
    spec = artifact(rows=rows, claims=asked, columns=["a", "f"], figure={"metrics": ["f"]},
                    select={"metric": "s", "best": "lowest"}).spec  # fmt: skip
    assert specs.final_metrics(spec) == ["a", "f", "s", "p", "c1", "c2", "m", "calls", "u"]


def test_a_run_that_went_on_elsewhere_says_all_that_there_was(tmp_path: Path) -> None:
    """Each change is one from the first environment; a value that nobody knows is "unknown"."""
    later = [
        {"step": 3, "changed": {"cpu_capability": ["AVX2", "AVX512"], "threads": [2, 4],
                                "gpu": [None, "A GPU"]}},
        {"step": 4, "changed": {"git": [MACHINE["git"], None], "threads": [2, 4]}},
        {"step": 5, "changed": {"source": [MACHINE["source"], None]}},
    ]  # fmt: skip
    ended(tmp_path, "paper/L/-1", 0.5, machine={"continued": later})
    before = {
        key: value for key, value in MACHINE.items() if key not in ("source", "cpu_capability")
    }
    ended(tmp_path, "paper/L/-2", 0.5)
    write_json(tmp_path / "paper/L/-2/environment.json", before)
    found = records.make_record(made(tmp_path), BOOK)
    row = found.rows["paper"]["L"]
    assert row.commits == ["0123456789, unknown", "0123456789", None]
    assert row.sources == ["c0de, unknown", None, None]
    assert row.threads == ["2, 4", "2", None]
    assert row.instructions == ["AVX2, AVX512", None, None]
    assert row.devices == ["A CPU, A GPU", "A CPU", None]
    assert found.commits == ["0123456789", "unknown"]
    assert found.hardware == ["A CPU, 2 threads", "A GPU", "A CPU, 4 threads"]


def test_the_machine_and_the_code_of_a_run() -> None:
    assert circumstances.hardware(MACHINE) == "A CPU, 2 threads"
    assert circumstances.hardware({**MACHINE, "gpu": "A GPU"}) == "A GPU"
    clean = {"commit": "0123456789abcdef", "dirty": False}
    assert circumstances.commit({"git": clean}) == "0123456789"
    assert circumstances.commit({"git": {**clean, "dirty": True}}) == "0123456789 and changes"
    assert circumstances.commit({"git": None}) == "unknown"
    assert circumstances.distinct_values([2, 1, 2, {"a": 1}, 1, {"a": 1}]) == [2, 1, {"a": 1}]


def test_a_slope_is_over_the_rows_of_its_budget() -> None:
    budgets = {"a": ["smoke", "short"], "b": ["short"], "c": ["smoke", "short"],
               "x": ["smoke", "short"], "y": ["short"], "z": ["short"]}  # fmt: skip
    rows = {row: {"method": "bome", "at": at} for row, at in budgets.items()}
    slope = {
        "kind": "slope", "by": "paper", "text": "c", "rows": ["a"], "metric": "loss",
        "against": "k",
        "points": {"a": 1.0, "b": 2.0, "c": 3.0}, "over": {"a": "x", "b": "y", "c": "z"},
        "at_most": 1.0,
    }  # fmt: skip
    spec = artifact(rows=rows, claims={"s": slope, "less": {**LESS, "rows": ["a"]}}).spec
    smoke: Any = claim_at_budget(spec.claims["s"], spec, "smoke")
    assert (smoke.points, smoke.over) == ({"a": 1.0}, {"a": "x"})
    short: Any = claim_at_budget(spec.claims["s"], spec, "short")
    assert short == spec.claims["s"]
    assert claim_at_budget(spec.claims["less"], spec, "smoke") is spec.claims["less"]


def test_a_claim_about_a_row_that_the_budget_lacks_is_not_judged_there() -> None:
    about_b = {**LESS, "text": "B has less", "rows": ["B"]}  # B is at short only
    both = {key: {**claim, "budgets": ["smoke", "short"]}
            for key, claim in {"a": LESS, "b": about_b}.items()}  # fmt: skip
    spec = artifact(claims=both).spec
    assert list(claims_at(spec, "paper", "smoke")) == ["a"]
    assert list(claims_at(spec, "paper", "short")) == ["a", "b"]


def test_a_budget_without_all_rows_is_judged_on_those_it_has(tmp_path: Path) -> None:
    rows = {"A": {"method": "bome", "at": ["smoke"]}, "B": {"method": "bome", "at": ["short"]}}
    slope = {"kind": "slope", "by": "paper", "text": "c", "rows": ["A"], "metric": "loss",
             "against": "k",
             "points": {"A": 1.0, "B": 2.0}, "at_most": 1.0, "budgets": ["short"]}  # fmt: skip
    some = {"rows": rows, "grid": None, "variants": {"paper": {}}, "claims": {"s": slope}}
    ended(tmp_path, "paper/B/-1", 0.5)
    (part,) = records.judge_claims(made(tmp_path, **some), BOOK)["paper"]["s"].parts
    assert len(part.values) == 1  # row A is not asked for


def test_a_record_comes_back_as_it_was_written(measured: records.Record, tmp_path: Path) -> None:
    """Infinite bounds and values come back too."""
    entry = measured.claims["paper"]["less"].parts[0]
    entry.values.append(math.inf)
    assert entry.low == -math.inf
    file = records.write_record(measured, tmp_path / "results")
    assert (
        file
        == tmp_path / "results/p/a/short.json"
        == records.record_path("p/a", "short", tmp_path / "results")
    )
    assert file.read_text().startswith('{\n "artifact": "p/a",\n')
    assert file.read_text().endswith("}\n")
    records.write_record(measured, tmp_path / "results")  # the folder may be there
    assert records.read_record("p/a", "short", tmp_path / "results") == measured
    assert records.read_record("p/a", "full", tmp_path / "results") is None
    assert records.read_record("p/b", "short", tmp_path / "results") is None
    assert records.record_path("p/a", "full") == Path("results/p/a/full.json")


def test_a_record_from_before_runs_said_what_they_were_made_in_is_read(
    measured: records.Record, tmp_path: Path
) -> None:
    file = records.write_record(measured, tmp_path)
    content = json.loads(file.read_text())
    for group in content["rows"].values():
        for row in group.values():
            for name in UNMADE:
                del row[name]
    file.write_text(json.dumps(content))
    found = records.read_record("p/a", "short", tmp_path)
    assert found is not None
    row = found.rows["paper"]["A"].model_dump()
    assert row == measured.rows["paper"]["A"].model_dump() | UNMADE


def test_a_record_does_not_change(measured: records.Record) -> None:
    with pytest.raises(ValidationError):
        measured.title = "another"
    with pytest.raises(ValidationError):
        measured.rows["paper"]["A"].tried = 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"complete": "who knows"}, "complete: Input should be a valid boolean"),
        ({"extra": 1}, "extra: Extra inputs are not permitted"),
        ({"rows": {"paper": {"A": 3}}}, r"rows\.paper\.A: "),
    ],
)
def test_a_damaged_record_is_named_with_its_field(
    change: dict[str, Any], message: str, measured: records.Record, tmp_path: Path
) -> None:
    file = records.write_record(measured, tmp_path)
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(BadSetting, match=rf"a/short\.json: {message}") as error:
        records.read_record("p/a", "short", tmp_path)
    assert str(error.value).endswith(
        ": write reproduce report p/a --budget short --record --force to make it again"
    )


@pytest.mark.parametrize("field", ["runs", "status", "reasons"])
def test_a_row_has_an_entry_for_each_of_its_runs(field: str, measured: records.Record) -> None:
    row = measured.rows["paper"]["A"].model_dump()
    with pytest.raises(ValidationError, match=f"{field}: 0 entries for {len(row['seeds'])} seeds"):
        records.RowRecord.model_validate(row | {field: []})


def test_what_it_costs_is_measured_or_estimated(measured: records.Record) -> None:
    """run_seconds is 64 for 8 ended runs; the spec says four minutes, or half a minute."""
    entry: Artifact = artifact(budgets={"short": {"minutes": 4.0}, "smoke": {"minutes": 0.5}})
    whole = measured.model_copy(
        update={"complete": True, "process_seconds": 70.0, "startup_seconds": 16.0}
    )
    assert durations.describe_cost(entry, "short", whole, 2.0) == "70 s (measured)"
    before = whole.model_copy(update={"process_seconds": None, "startup_seconds": None})
    assert records.recorded_run_count(before) == 8
    assert durations.describe_cost(entry, "short", before, 2.0) == "~ 80 s"
    assert durations.describe_cost(entry, "short", measured, 2.0) == "~ 4 min"
    assert durations.describe_cost(entry, "short", None, 2.0) == "~ 4 min"
    assert durations.describe_cost(entry, "smoke", None, 2.0) == "~ 30 s"
    assert durations.mean_startup([whole, before]) == 2.0
    assert durations.mean_startup([before]) == 0.0


def test_the_processes_of_all_runs_are_summed_where_all_are_known(root: Path) -> None:
    made_of = made(root, claims=CLAIMS)
    measured = records.make_record(made_of, BOOK)
    assert measured.process_seconds is measured.startup_seconds is None
    for run in made_of.runs:
        if run.summary is not None:
            run.summary["process"] = {"cpu_seconds": 10.25, "earlier_runs": 0}
    measured = records.make_record(made_of, BOOK)
    assert (measured.process_seconds, measured.startup_seconds) == (8 * 10.25, 8 * 1.25)
    # one that went on has in its summary what its last process took
    file = next(run.folder.path for run in made_of.runs if run.summary) / "environment.json"
    about = json.loads(file.read_text()) | {"continued": [{"step": 3, "changed": {}}]}
    file.write_text(json.dumps(about))
    measured = records.make_record(made_of, BOOK)
    assert measured.process_seconds is measured.startup_seconds is None


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.0, "0 s"), (1.23456, "1.23 s"), (89.9, "89.9 s"), (90.0, "1.5 min"),
        (5399.0, "90 min"), (5400.0, "1.5 h"), (129599.0, "36 h"), (129600.0, "1.5 days"),
        (864000.0, "10 days"),
    ],
)  # fmt: skip
def test_durations(seconds: float, expected: str) -> None:
    assert durations.format_duration(seconds) == expected


def test_counts_of_runs_that_a_target_or_a_clock_ends_are_no_settings() -> None:
    """Where all counts are the same there is nothing to test only if the settings fix them."""
    claim = {"kind": "below", "by": "us", "text": "t", "rows": ["A"], "than": ["L"]}

    def counts(metric: str, variant: str = "paper", **setting: Any) -> bool:
        entry = artifact(claims={"fewer": {**claim, "metric": metric}}, **setting)
        fewer = entry.spec.claims["fewer"]
        (part,) = records.parts_at_budget(fewer, entry, "short", BOOK, variant, {})
        return part.counts

    assert counts("calls")
    assert not counts("loss")
    for early in ({"run.until": "loss"}, {"run.cpu_seconds": 1.0}, {"run.seconds": 1.0}):
        assert not counts("calls", set=early)
    assert counts("calls", set={"run.cpu_seconds": None, "run.steps": 3})
    timed: Any = {"variants": {"paper": {}, "code": {"set": {"run.cpu_seconds": 1.0}}}}
    assert counts("calls", **timed)  # the other variant's clock ends none of these runs
    assert not counts("calls", "code", **timed)


def test_a_record_compares_ends_that_a_clock_sets_only_of_machines_of_one_speed(
    tmp_path: Path,
) -> None:
    less = {"kind": "below", "metric": "loss", "by": "us", "text": "t", "rows": ["A"],
            "than": ["L"]}  # fmt: skip
    rows = {"A": {"method": "bome"}, "L": {"method": "bome", "line": True}}
    plain = {"grid": None, "select": None, "variants": {"paper": {}}, "rows": rows}
    for row, pace in {"A": 3.0, "L": 1.0}.items():
        for seed in range(3):
            process = {"others_cores": 0.0, "pace_ms": pace if seed == 1 else 1.0}
            ended(tmp_path, f"paper/{row}/-{seed}", 1.0 + seed * (row == "L"), process=process)

    def seeds_judged(setting: dict[str, Any]) -> int:
        spec = {**plain, "set": setting, "claims": {"less": less}}
        found = records.make_record(made(tmp_path, **spec), BOOK)
        again = rejudging.rejudge(found, artifact(**spec), BOOK)
        assert again == found.claims
        return found.claims["paper"]["less"].verdict.n

    assert seeds_judged({}) == 3
    assert seeds_judged({"run.steps": 9}) == 3
    assert seeds_judged({"run.cpu_seconds": 1.0}) == 2
    assert seeds_judged({"run.seconds": 1.0}) == 2


def test_tries_of_an_older_record_that_have_no_names_count_in_each_row(
    measured: records.Record,
) -> None:
    """Three of the paper's A and one of the code's, whose numbers in their rows are the same."""
    content = measured.model_dump()
    for variant in ("paper", "code"):
        for tried in content["rows"][variant]["A"]["tries"]:
            del tried["name"]
    assert records.recorded_run_count(records.Record.model_validate(content)) == 8


@pytest.mark.parametrize("clocked", ["A", "L"])
def test_counts_are_not_fixed_where_a_clock_ends_the_runs_of_one_row(clocked: str) -> None:
    claim = {"kind": "below", "by": "us", "text": "t", "rows": ["A"], "than": ["L"],
             "metric": "calls"}  # fmt: skip
    rows: dict[str, Any] = {"A": {"method": "bome"}, "L": {"method": "bome", "line": True}}
    rows[clocked]["set"] = {"run.cpu_seconds": 1.0}
    entry = artifact(claims={"fewer": claim}, rows=rows)
    fewer = entry.spec.claims["fewer"]
    (part,) = records.parts_at_budget(fewer, entry, "short", BOOK, "paper", {})
    assert not part.counts


def test_a_run_that_ends_above_its_target_has_no_cost_in_a_record(tmp_path: Path) -> None:
    """The first of A's runs ends at .75, and was to end at .5, which the second just reaches."""
    settings = {"run.until": "loss", "run.target": 0.5}
    assert records.goal_of(Point("paper", "A", tuple(settings.items()), ())) == ("loss", 0.5)
    assert records.goal_of(Point("paper", "A", (("run.steps", 5),), ())) is None
    spec: dict[str, Any] = {
        "select": None, "grid": None, "variants": {"paper": {}}, "set": settings,
        "claims": {"fewer": {**LESS, "metric": "step"}},
    }  # fmt: skip
    for seed, loss in enumerate((0.75, 0.5, 0.25)):
        ended(tmp_path, f"paper/A/-{seed}", loss)
        ended(tmp_path, f"paper/L/-{seed}", 0.25)
    found = records.make_record(made(tmp_path, **spec), BOOK)
    (part,) = found.claims["paper"]["fewer"].parts
    assert part.values == pytest.approx([math.nan, 0.0, 0.0], nan_ok=True)
