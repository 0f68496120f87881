"""A record's tables, cell by cell, from rows of a record that are written by hand."""

import math
from typing import Any

import pytest

from bench.reproduce import tables
from bench.reproduce.records import Record, RowRecord
from bench.reproduce.specs import Book, Metric, Published, format_number
from tests import planned

ACCURACY = Metric(label="test accuracy", better="higher", percent=True)
LOSS = Metric(label="test loss", better="lower")
SIZE = Metric(label="size")


def row(status: str = "done done done", **more: Any) -> RowRecord:
    """A recorded row whose runs have these statuses; finals are given as lists."""
    words = status.split()
    return RowRecord.model_validate(
        {
            "method": "bome", "chosen": {}, "tried": 1, "tries": [],
            "seeds": list(range(len(words))), "runs": [f"r{i}" for i in range(len(words))],
            "status": words, "reasons": [None if w == "done" else f"{w} so" for w in words],
            "finals": {}, **more,
        }
    )  # fmt: skip


def test_numbers_and_fractions() -> None:
    assert tables.format_value(0.98765, ACCURACY) == "98.77"
    assert tables.format_value(0.98765, LOSS) == "0.9877"
    assert tables.format_error(0.01234, ACCURACY) == "1.23"
    assert tables.format_error(0.01234, LOSS) == "0.012"
    heads = [tables.column_head(metric) for metric in (ACCURACY, LOSS, SIZE)]
    assert heads == ["test accuracy (%) ↑", "test loss ↓", "size"]


def test_only_runs_that_are_done_have_final_values() -> None:
    finals = {
        "loss": [1.0, 2.0, None, 4.0],
        "calls/grad_f": [1.0, 20.0, 3.0, 4.0],
        "calls/grad_g": [10.0, 200.0, 30.0, 40.0],
        "samples/grad_g": [9.0, 9.0, 9.0, 9.0],
        "samples/value_f": [5.0, 6.0, 7.0, 8.0],
    }
    some = row("done diverged done missing", finals=finals)
    assert tables.done_values(some, "loss") == [1.0]
    assert tables.done_values(some, "calls/grad_f") == [1.0, 3.0]
    assert tables.done_values(some, "calls") == [11.0, 33.0]
    assert tables.done_values(some, "samples") == [14.0, 16.0]
    lacking = {"calls/grad_f": [1.0, None, 3.0], "calls/grad_g": [10.0, 20.0, 30.0]}
    assert tables.done_values(row("done done done", finals=lacking), "calls") == [11.0, 33.0]
    assert tables.done_values(some, "other") == []
    assert tables.done_values(row(), "calls") == []


@pytest.mark.parametrize(
    ("values", "metric", "expected"),
    [
        ([0.25], LOSS, "0.25"),
        ([1.0, 3.0], LOSS, "2 ± 1 [−10.71, 14.71]"),  # Student's quantiles: 12.71, then 4.303
        ([0.0, 0.0, 3.0], LOSS, "1 ± 1 [−3.303, 5.303]"),
        ([2.0, 2.0, 2.0], LOSS, "2 ± 0"),
        ([0.0, 0.0, 0.3], ACCURACY, "10.00 ± 10.00 [-33.03, 53.03]"),
        ([], LOSS, "–"),
    ],
)
def test_a_cell_is_mean_error_and_interval(
    values: list[float], metric: Metric, expected: str
) -> None:
    some = row(" ".join(["done"] * len(values)), finals={"m": values})
    assert tables.measured_cell(some, "m", metric) == expected


def test_published_values_are_shown_as_printed() -> None:
    whole = Published(mean=0.807, se=0.0026, n=5)
    assert tables.published_cell(whole, ACCURACY) == "80.70 ± 0.26 (n=5)"
    assert tables.published_cell(Published(mean=0.3152), LOSS) == "0.3152"
    assert tables.published_cell(Published(mean=0.3152, n=3), LOSS) == "0.3152 (n=3)"
    assert tables.published_cell(Published(mean=0.3, se=0.0), LOSS) == "0.3 ± 0"
    assert tables.published_cell(None, LOSS) == "–"


ENDS = ("done", "diverged", "missing", "diverged")
POINTS = [{"settings": {"T": k}, "status": status} for k, status in enumerate(ENDS)]
TWICE = [{"settings": {"T": k // 2}, "status": status} for k, status in enumerate(ENDS)]


@pytest.mark.parametrize(
    ("some", "expected"),
    [
        (row(), ""),
        (row("done diverged done"), "FAILED, 1 of 3 runs diverged: diverged so"),
        (row("done diverged killed"), "FAILED, 2 of 3 runs diverged: diverged so"),
        (row("done missing missing"), "2 runs missing"),
        (row("missing diverged"), "FAILED, 1 of 2 runs diverged: diverged so; 1 runs missing"),
        (row(""), "all runs missing"),
        (row("", pending="not built"), "not built"),
        (row(chosen={"a.lr": 1}, tried=1), ""),
        (row(chosen={"a.b.lr": 1, "T": 2}, tried=3, tries=POINTS[:1]), "b.lr 1, T 2 of 3 points"),
        (row(chosen={"a.lr": 1}, tried=4, tries=POINTS), "lr 1 of 4 points, 2 diverged"),
        (row(chosen={"T": 3}, tried=2, tries=TWICE), "T 3 of 2 points at 2 seeds, 1 diverged"),
        (row("missing", chosen={"a.lr": 1}, tried=2), "1 runs missing; lr 1 of 2 points"),
    ],
)
def test_remarks(some: RowRecord, expected: str) -> None:
    assert tables.remark(some, planned.artifact().spec) == expected


def test_a_chosen_point_at_an_edge_is_remarked() -> None:
    tries = [{"settings": {"a.lr": lr}, "status": "done"} for lr in (1, 10, 100)]
    some = row(chosen={"a.lr": 100}, tried=3, tries=tries)
    flagged = "lr 100 of 3 points; AT AN EDGE: lr 100 is the highest of 1, 10, 100"
    assert tables.remark(some, planned.artifact().spec) == flagged
    ends = planned.artifact(ends={"a.lr": "high"}).spec
    assert tables.remark(some, ends) == "lr 100 of 3 points"


def test_points_that_are_exactly_as_good_are_remarked() -> None:
    """The first of them is chosen, and nothing but the order of the grid says so."""
    tries = [
        {"settings": {"a.lr": lr, "T": T}, "status": "done", "value": value}
        for (lr, T), value in {(1, 2): 0.5, (10, 2): 0.5, (1, 3): 0.5, (10, 3): 0.75}.items()
    ]
    some = row(chosen={"a.lr": 1, "T": 2}, tried=4, tries=tries)
    said = tables.remark(some, planned.artifact(ends={"a.lr": "both", "T": "both"}).spec)
    assert said == "lr 1, T 2 of 4 points; AS GOOD, but later in the grid: lr 10; T 3"
    same = [{"settings": {"a.lr": lr}, "status": "done", "value": 0.5} for lr in range(1, 7)]
    long = tables.remark(row(chosen={"a.lr": 1}, tried=6, tries=same), planned.artifact().spec)
    assert "later in the grid: lr 2; lr 3; lr 4; 2 more" in long


HERE = {"device": "A CPU", "threads": "1", "instructions": "AVX2", "commit": "c", "source": "s"}


def cut_row(tries: list[dict[str, Any]], status: str = "done done", **own: Any) -> RowRecord:
    """A row of two runs made here at pace 1, chosen from points that a clock ended."""
    kept = [
        {"settings": {"a.lr": k}, "status": "done", "cut": True, "pace": 1.0, "undisturbed": True}
        | HERE
        | tried
        for k, tried in enumerate(tries)
    ]
    made: dict[str, Any] = {name.rstrip("s") + "s": [v, v] for name, v in HERE.items()}
    made |= {"paces": [1.0, 1.4], "undisturbed": [True, True]}
    return row(status, tries=kept, **(made | own))


@pytest.mark.parametrize(
    ("some", "expected"),
    [
        (cut_row([{}, {"pace": 1.4}]), None),
        (cut_row([{}, {"instructions": "AVX512", "status": "missing"}]), None),
        (cut_row([{}, {"instructions": "AVX512"}]), "on machines of unlike speed"),
        (cut_row([{}, {"pace": 1.6}]), "on machines of unlike speed"),
        (cut_row([{}, {"device": None}]), "on a machine that is not known"),
        (cut_row([{}, {"undisturbed": False}]), "beside other work"),
        (cut_row([{}, {"undisturbed": False, "status": "missing"}]), None),
        (cut_row([{}, {"pace": 0.8}]), "on a machine of another speed than that of the runs"),
        (
            cut_row([{}, {}], instructions=["AVX2", "AVX512"]),
            "on a machine of another speed than that of the runs",
        ),
        (cut_row([{}, {}], "done missing", instructions=["AVX2", "AVX512"]), None),
        (cut_row([{"cut": False}, {"cut": False, "pace": 9.0}]), None),
        (row("done", tries=POINTS[:1]), None),
    ],
)
def test_machines_that_may_have_chosen_a_point_are_remarked(
    some: RowRecord, expected: str | None
) -> None:
    found = tables.note_on_machines(some)
    assert found == (f"CHOSEN UNDER A CLOCK, {expected}" if expected else None)
    if found:
        assert tables.remark(some, planned.artifact().spec).endswith(found)


# whole tables

METRICS = {
    "any": {"seconds": Metric(label="seconds"), "calls": Metric(label="calls", better="lower")},
    "toy": {"loss": LOSS, "accuracy": ACCURACY},
}
LOSSES = "2 ± 1 [−10.71, 14.71]"  # of 1 and 3
ACCURACIES = "50.00 ± 25.00 [-267.66, 367.66]"  # of .25 and .75
BOOK = Book({}, METRICS, planned.BOOK.methods)
COLUMNS = ["loss", "accuracy"]
PUBLISHED = {"loss": {"mean": 0.5}, "accuracy": {"mean": 0.75, "se": 0.125, "n": 4}}
ROWS = {"A": {"method": "bome", "published": PUBLISHED}, "B": {"method": "itd"}}
ARTIFACT = planned.artifact(columns=COLUMNS, rows=ROWS)


def verdict(word: str, **claim: Any) -> dict[str, Any]:
    """A claim's entry in a record."""
    said = {"word": word, "n": 2, "statistic": f"{word}!", "details": []}
    text = {"text": f"it {word}", "kind": "between", "metric": "loss", "rows": ["A"]}
    text |= {"by": "us", "source": None, "why": {}}
    return {"claim": text | claim, "parts": [], "verdict": said}


def recorded(rows: Any, found: Any = None) -> Record:
    return Record.model_validate(
        {
            "artifact": "p/a", "title": "t", "source": "s", "budget": "short",
            "date": "2020-01-01", "complete": True, "hardware": [],
            "software": [], "commits": [], "run_seconds": 1.0, "rows": rows, "claims": found or {},
        }
    )  # fmt: skip


MEASURED = {
    "A": row("done done", finals={"loss": [1.0, 3.0], "accuracy": [0.25, 0.75]}),
    "B": row("done diverged", finals={"loss": [2.0, 9.0], "accuracy": [0.5, None]}),
}


def test_the_table_of_what_was_measured() -> None:
    """Both variants stand side by side. A row with a failed run is never the best of its column,
    and a column with one value that could be has no best."""
    found = tables.results_table(ARTIFACT, recorded({"paper": MEASURED}), BOOK)
    assert found.title == "Measured"
    assert found.head == ["method", "test loss ↓", "test accuracy (%) ↑", "n", "remarks"]
    assert found.rows == [
        ["A", LOSSES, ACCURACIES, "2", ""],
        ["B", "2", "50.00", "1", "FAILED, 1 of 2 runs diverged: diverged so"],
    ]
    assert found.best == frozenset()
    said = "Mean ± standard error of the mean [Student's 95% interval] over n seeds"
    assert found.note.startswith(said)
    single = recorded({"paper": {"A": row("done", finals={"loss": [1.0]}), "B": row("")}})
    assert tables.results_table(ARTIFACT, single, BOOK).note.startswith("One run of each row")


def test_only_rows_of_one_problem_are_compared() -> None:
    """C has a lower loss than A and B, on a problem of its own."""
    own = {"task.scale": 2}
    rows = ROWS | {
        "C": {"method": "bome", "set": own},
        "D": {"method": "itd", "paper": {"set": own}},
    }
    artifact = planned.artifact(columns=["loss"], rows=rows)
    ends = {"A": 3.0, "B": 2.0, "C": 1.0, "D": 1.5}
    measured = {name: row("done", finals={"loss": [end]}) for name, end in ends.items()}
    measured["B"] = row("done done", finals={"loss": [2.0, 2.0]})
    found = tables.results_table(artifact, recorded({"paper": measured}), BOOK)
    assert found.best == {(1, 1), (2, 1)}
    assert found.note.endswith("the best mean of a column is marked, among rows of one problem.")


def test_variants_side_by_side_with_the_best_marked() -> None:
    code = {
        "A": row("done", finals={"loss": [7.0], "accuracy": [0.5]}),
        "B": row("done", finals={"loss": [5.0], "accuracy": [0.25]}),
    }
    paper = {"A": MEASURED["A"], "B": row("done", finals={"loss": [1.0]}), "old": row("done")}
    found = tables.results_table(ARTIFACT, recorded({"paper": paper, "code": code}), BOOK)
    assert found.head[1:5] == [
        "test loss ↓, paper", "test loss ↓, code",
        "test accuracy (%) ↑, paper", "test accuracy (%) ↑, code",
    ]  # fmt: skip
    assert found.rows == [
        ["A", LOSSES, "7", ACCURACIES, "50.00", "paper: 2; code: 1", ""],
        ["B", "1", "5", "–", "25.00", "1", ""],
        ["old", "–", "·", "–", "·", "1", ""],
    ]
    assert found.best == {(1, 1), (1, 2), (0, 4)}
    outdated = {"A": code["A"], "B": code["B"].model_copy(update={"outdated": True})}
    found = tables.results_table(ARTIFACT, recorded({"code": outdated}), BOOK)
    assert found.best == frozenset()
    assert "| **1** |" in tables.to_markdown(
        tables.CellTable("T", ["a"], [["1"]], "", frozenset({(0, 0)}))
    )


def test_published_beside_measured() -> None:
    """The verdicts are those of the claims about just this row and this metric."""
    within = {"kind": "within_published"}
    group = {
        "a": verdict("holds", **within),
        "b": verdict("fails", **within, metric="accuracy"),
        "c": verdict("not enough runs", **within, rows=["B", "A"]),
        "d": verdict("not run", **within, rows=["B"]),
        "e": verdict("not run"),
    }
    found = tables.published_table(
        ARTIFACT, recorded({"paper": MEASURED}, {"paper": group}), "paper", BOOK
    )
    assert found is not None
    assert found.title == "Published and measured, paper variant"
    assert found.head == ["method", "metric", "published", "measured", "n", "verdict"]
    assert found.rows == [
        ["A", "test loss ↓", "0.5", LOSSES, "2", "holds, not enough runs (n=2)"],
        ["A", "test accuracy (%) ↑", "75.00 ± 12.50 (n=4)", ACCURACIES, "2", "fails"],
    ]
    none = tables.published_table(ARTIFACT, recorded({"code": MEASURED}), "code", BOOK)
    assert none is not None
    assert [cells[-1] for cells in none.rows] == ["not judged at this budget"] * 2
    without = recorded({"paper": {"B": MEASURED["B"]}})
    assert tables.published_table(ARTIFACT, without, "paper", BOOK) is None


def test_what_a_run_costs() -> None:
    """Costs are means over the runs that are done. A row without such a run is left out, and so is
    the column of a call that nobody makes; runs that shared their time have no seconds."""
    spent = {
        "step": [1000.0, 2000.0], "seconds": [2.0, 4.0], "calls/grad_g": [5000.0, 6001.0],
        "calls/lmo": [1.0, 2.0],
    }  # fmt: skip
    rows = {
        "A": row("done done", finals=spent),
        "B": row("done diverged", finals={"step": [10.0, 1.0], "seconds": [0.5, 9.0]}),
        "C": row("diverged", finals={"step": [10.0], "seconds": [0.5]}),
        "D": row("done", finals={"step": [30.0], "calls/grad_g": [60.0]}),
    }
    found = tables.costs_table(recorded({"code": rows}), "code")
    assert found.title == "Cost of a run, code variant"
    assert found.head == [
        "method", "steps", "gradients of g", "linear minimisations", "seconds of steps",
    ]  # fmt: skip
    assert found.rows == [
        ["A", "1,500", "5,500", "2", "3"], ["B", "10", "0", "0", "0.5"],
        ["D", "30", "60", "0", "–"],
    ]  # fmt: skip


def test_the_paper_against_the_code() -> None:
    """The difference is code - paper, with Welch's interval: the errors are 1 and 1, or .25 and
    none."""
    code = {
        "A": row("done done", finals={"loss": [6.0, 8.0], "accuracy": [0.5, 0.5]}),
        "B": row("done", finals={"loss": [5.0]}),
    }
    record = recorded({"paper": MEASURED, "code": code})
    found = tables.differences_table(ARTIFACT, record, BOOK)
    assert found is not None
    half = 4.302653 * math.sqrt(2)  # t(.975; 2) and the errors' root of squares
    loss = f"5 [{format_number(5 - half)}, {format_number(5 + half)}]"
    wide = 12.706205 * 25  # one degree of freedom
    accuracy = f"0.00 [{-wide:.2f}, {wide:.2f}]"
    assert found.title == "Released code minus paper"
    assert found.head == ["method", "test loss ↓", "test accuracy (%) ↑"]
    assert found.rows == [["A", loss, accuracy], ["B", "3", "–"]]
    assert found.note == "Difference of the means [Welch's 95% interval]."
    assert tables.differences_table(ARTIFACT, recorded({"paper": MEASURED}), BOOK) is None
    lost = {"A": row("diverged", finals={"loss": [1.0]})}
    for paper, released in ((lost, code), (code, lost)):
        none = tables.differences_table(
            ARTIFACT, recorded({"paper": paper, "code": released}), BOOK
        )
        assert none is not None
        assert none.rows == []
    partly = recorded({"paper": MEASURED, "code": {"B": code["B"]}})
    rest = tables.differences_table(ARTIFACT, partly, BOOK)
    assert rest is not None
    assert [cells[0] for cells in rest.rows] == ["B"]


WHY = {
    "paper": {"text": "Never shown.", "tested": True, "by": "p/a"},
    "code": {"text": "It is slow.", "tested": False, "by": None},
}
STATED = {"by": "paper", "source": "table 1"}
GROUPS = {
    "paper": {"a": verdict("holds"), "b": verdict("not enough runs", why=WHY)},
    "code": {"b": verdict("fails", why=WHY, **STATED), "c": verdict("not run")},
}


def test_the_table_of_claims() -> None:
    """The table goes claim by claim, and has the variants of each below one another."""
    found = tables.claims_table(ARTIFACT, recorded({}, GROUPS))
    assert found.title == "Claims"
    assert found.head == ["verdict", "claim", "by", "variant", "statistic", "why"]
    assert found.rows == [
        ["holds", "it holds", "us", "paper", "holds!", ""],
        ["not enough runs (n=2)", "it not enough runs", "us", "paper", "not enough runs!", ""],
        ["fails", "it fails", "paper: table 1", "code", "fails!", "conjecture: It is slow."],
        ["not run", "it not run", "us", "code", "not run!", ""],
    ]
    assert found.note.startswith("A claim holds if a one-sided test says at 2.5% that the mean")


def test_the_power_stands_beside_the_statistic() -> None:
    """It is that of the seeds which the spec has, here 3, then 2."""
    part = {"what": "w", "values": [0.0, 1.0, 2.0], "low": -3.0, "high": 3.0, "expected": 3}
    entry = verdict("not enough runs", kind="within_published") | {"parts": [part]}
    found = tables.claims_table(ARTIFACT, recorded({}, {"paper": {"a": entry}}))
    assert found.rows[0][-2].startswith("not enough runs!; power ")
    assert found.rows[0][-2].endswith(" at n = 3, were the mean midway; 80% takes 4 seeds")
    two = planned.artifact(budgets={"short": {"minutes": 1.0, "seeds": 2}})
    found = tables.claims_table(two, recorded({}, {"paper": {"a": entry}}))
    assert " at n = 2, " in found.rows[0][-2]


def test_every_table_that_has_rows_in_the_order_of_the_page() -> None:
    spent = {"seconds": [1.0, 2.0], "loss": [1.0, 2.0]}
    rows = {"A": row("done done", finals=spent)}
    whole = recorded({"paper": rows, "code": rows}, GROUPS)
    assert [table.title for table in tables.artifact_tables(ARTIFACT, whole, BOOK)] == [
        "Claims",
        "Measured",
        "Published and measured, paper variant", "Published and measured, code variant",
        "Released code minus paper",
        "Cost of a run, paper variant", "Cost of a run, code variant",
    ]  # fmt: skip
    bare = recorded({"paper": {"B": row("missing")}})
    titles = [table.title for table in tables.artifact_tables(ARTIFACT, bare, BOOK)]
    assert titles == ["Measured"]


def test_a_row_that_the_spec_no_longer_has_is_shown_without_published_values() -> None:
    rows = {"A": MEASURED["A"], "renamed": MEASURED["B"]}
    found = tables.published_table(ARTIFACT, recorded({"paper": rows}), "paper", BOOK)
    assert found is not None
    assert {cells[0] for cells in found.rows} == {"A"}
    measured = tables.results_table(ARTIFACT, recorded({"paper": rows}), BOOK)
    assert [cells[0] for cells in measured.rows] == ["A", "renamed"]


# how they are printed

TABLE = tables.CellTable(
    "T", ["a|b", "θ₁ ↑"], [["50% & more_1", "q̂ ± 1 [−2, ∞]"], ["2", "3"]], "note"
)


def test_markdown() -> None:
    assert tables.to_markdown(TABLE) == (
        "### T\n\n| a\\|b | θ₁ ↑ |\n|---|---|\n"
        "| 50% & more_1 | q̂ ± 1 [−2, ∞] |\n| 2 | 3 |\n\nnote\n"
    )
    assert tables.to_markdown(tables.CellTable("T", ["a"], [["1"]])).endswith("| 1 |\n")


def test_numbers_have_a_true_minus_and_no_negative_zero() -> None:
    values = (-0.0, 0.0, -1.5, 1e-7, math.inf, -math.inf, math.nan, 12345.6, 0.12345)
    assert [format_number(v) for v in values] == [
        "0", "0", "−1.5", "1e−07", "∞", "−∞", "nan", "1.235e+04", "0.1235",
    ]  # fmt: skip
