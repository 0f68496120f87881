"""What is undecided and what would decide it: seeds from measured deviations, runs from plans."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.reproduce import campaign_commands, records, statistics, todo
from bench.reproduce.claims import ClaimPart, Verdict
from bench.reproduce.records import ClaimRecord
from bench.reproduce.specs import Book
from tests.planned import BOOK, Known, artifact, made
from tests.test_records import ended

INF = math.inf
LESS = {"kind": "below", "by": "us", "text": "A has less", "rows": ["A"], "than": ["L"],
        "metric": "loss"}  # fmt: skip
PLAIN: dict[str, Any] = {
    "select": None, "grid": None, "claims": {"less": LESS}, "variants": {"paper": {}},
    "rows": {"A": {"method": "bome"}, "L": {"method": "bome", "line": True}},
}  # fmt: skip


# seeds


@pytest.mark.parametrize(
    ("shift", "n", "low", "high"),
    [(1.0, 8, 0.0, INF), (-0.7, 20, 0.0, INF), (0.5, 12, -INF, 1.0), (1.5, 10, 0.0, 2.0)],
)
def test_the_power_of_a_decision_is_that_of_simulated_seeds(
    shift: float, n: int, low: float, high: float
) -> None:
    """10,000 draws have an error of .005; the nearest bound stands for both."""
    values = shift + np.array([-1.0, 0.0, 1.0])  # mean `shift`, deviation 1
    drawn = np.random.default_rng(0).normal(shift, 1.0, (10_000, n))
    nearest = low if abs(shift - low) <= abs(high - shift) else high
    bounds = (nearest, INF) if nearest == low else (-INF, nearest)
    decided = np.mean(
        [statistics.judge_values(d.tolist(), *bounds).answer != "open" for d in drawn]
    )
    assert statistics.decision_power(values.tolist(), low, high, n) == pytest.approx(
        decided, abs=0.02
    )


def test_the_seeds_that_a_decision_takes_are_the_least_with_that_power() -> None:
    values = [0.0, 1.0, 2.0]
    needed = statistics.seeds_to_decide(values, 0.0, INF)
    assert needed == 10  # scipy and G*Power: a one-sided t-test at .025, effect 1, power .8
    assert (statistics.decision_power(values, 0.0, INF, needed) or 0) >= 0.8
    assert (statistics.decision_power(values, 0.0, INF, needed - 1) or 0) < 0.8
    assert statistics.seeds_to_decide(values, 0.99, INF) is None  # beyond a thousand
    assert statistics.seeds_to_decide([2.0, 2.0], 0.0, INF) == statistics.FEWEST_SIGNS
    assert statistics.seeds_to_decide([INF, 2.0], 0.0, 3.0) is None
    assert statistics.seeds_to_decide([INF, INF], 0.0, INF) == statistics.FEWEST_SIGNS
    assert statistics.decision_power([1.0], 0.0, INF, 9) is None
    assert statistics.decision_power(values, -INF, INF, 9) is None
    assert statistics.decision_power(values, 0.0, INF, 1) == 0.0


def claim(*values: list[float]) -> ClaimRecord:
    parts = [ClaimPart(what="w", values=v, low=0.0, high=INF, expected=len(v)) for v in values]
    verdict = Verdict(word="not enough runs", n=3, statistic="s", details=[])
    return ClaimRecord(claim={"kind": "above"}, parts=parts, verdict=verdict)


def test_a_claim_takes_the_seeds_of_its_dearest_part() -> None:
    assert todo.seeds_of_claim(claim([0.0, 1.0, 2.0], [9.0, 10.0, 11.0]), 3)[0] == 10
    assert todo.seeds_of_claim(claim([0.0, 1.0, 2.0], [INF, -1.0]), 3) == (None, None)
    assert todo.seeds_of_claim(claim([]), 3) == (None, None)


# runs


def lacking(root: Path, old: records.Record | None) -> todo.MissingRuns | None:
    names: Any = Known()
    return todo.missing_runs(artifact(**PLAIN), BOOK, "short", old, root, names)[1]


def test_runs_that_neither_folder_nor_record_has(tmp_path: Path) -> None:
    found = lacking(tmp_path / "none", None)
    assert found is not None
    assert (found.count, dict(found.claims), found.seconds) == (6, {"not run": 1}, 60.0)
    for seed in range(3):
        ended(tmp_path, f"paper/A/-{seed}", 0.5, process={"cpu_seconds": 4.0})
    half = records.make_record(made(tmp_path, **PLAIN), BOOK)
    found = lacking(tmp_path / "none", half)
    assert found is not None
    assert (found.count, found.seconds) == (3, 6.0)  # six rows' runs have taken 12 seconds
    for seed in range(3):
        ended(tmp_path, f"paper/L/-{seed}", 0.6, process={"cpu_seconds": 4.0})
    assert lacking(tmp_path, half) is None


def test_the_cheapest_for_each_claim_comes_first() -> None:
    def item(seconds: float, claims: int) -> todo.MissingRuns:
        words: Any = {"not run": claims} if claims else {}
        return todo.MissingRuns(artifact(), "short", todo.Counter(words), 1, seconds)

    some = [item(9.0, 0), item(8.0, 1), item(20.0, 4), item(3.0, 0)]
    assert [i.seconds for i in sorted(some, key=todo.cost_of_a_claim)] == [20.0, 8.0, 3.0, 9.0]


def test_an_open_claim_says_what_its_seeds_cost(tmp_path: Path) -> None:
    for seed, value in enumerate((0.0, 1.0, 2.0)):
        ended(tmp_path, f"paper/A/-{seed}", 0.0, process={"cpu_seconds": 4.0})
        ended(tmp_path, f"paper/L/-{seed}", value, process={"cpu_seconds": 4.0})
    plan = made(tmp_path, **PLAIN)
    old = records.make_record(plan, BOOK)
    (found,) = todo.open_claims(artifact(**PLAIN), BOOK, "short", old, plan)
    assert (found.variant, found.key, found.have, found.needed) == ("paper", "less", 3, 10)
    assert found.chance == pytest.approx(0.2, abs=0.05)
    assert found.seconds == 7 * 2 * 4.0  # seven seeds of two rows


def test_budgets_to_do(tmp_path: Path) -> None:
    record = records.make_record(made(tmp_path, **PLAIN), BOOK)
    spec = artifact(budgets={b: {"minutes": 1.0} for b in ("smoke", "short", "full")})
    assert todo.budgets_to_do(spec, {}) == ["short"]
    assert todo.budgets_to_do(spec, {("p/a", "full"): record}) == ["full"]
    both: Any = {("p/a", b): record for b in ("smoke", "short", "full")}
    assert todo.budgets_to_do(spec, both) == ["short", "full"]


def test_the_tables_have_a_row_for_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed, value in enumerate((0.0, 1.0, 2.0)):
        ended(tmp_path, f"paper/A/-{seed}", 0.0)
        ended(tmp_path, f"paper/L/-{seed}", value)
    records.write_record(records.make_record(made(tmp_path, **PLAIN), BOOK), tmp_path / "results")
    book = Book({"p/a": artifact(**PLAIN)}, BOOK.metrics, BOOK.methods)
    known: Any = Known
    monkeypatch.setattr(campaign_commands, "Names", lambda root: known())
    none, (only,) = campaign_commands.what_is_left([], book, tmp_path / "no", tmp_path / "results")
    assert none == []
    table = todo.table_of_claims([only])
    cells = [next(iter(column.cells)) for column in table.columns]
    assert cells[:4] == ["p/a", "short", "paper less", "3"]
    assert cells[5] == "10"
    lost, _ = campaign_commands.what_is_left([], book, tmp_path / "no", tmp_path / "no")
    cells = [next(iter(column.cells)) for column in todo.table_of_runs(lost).columns]
    assert cells == ["p/a", "short", "1 not run", "6", "~ 60 s"]
