"""What is undecided and what would decide it: seeds from measured deviations, runs from plans."""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.reproduce import campaign_commands, chances, records, statistics, todo
from bench.reproduce.claim_records import ClaimRecord
from bench.reproduce.claims import ClaimPart, Verdict
from bench.reproduce.disturbance import disturbed_runs
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
    ("shift", "n", "low", "high", "reference"),
    [
        (1.0, 8, 0.0, INF, statistics.EXACT),
        (-0.7, 20, 0.0, INF, statistics.EXACT),
        (0.5, 12, -INF, 1.0, statistics.EXACT),
        (1.5, 10, 0.0, 2.0, statistics.EXACT),  # inside, near one of two bounds
        (1.0, 12, 0.0, 2.0, statistics.EXACT),  # right between them
        (-0.7, 16, 0.0, 2.0, statistics.EXACT),  # outside of two: "fails" is asked at half the rate
        (1.5, 12, 0.0, INF, statistics.Reference(0.5)),  # a published number that is not certain
        (1.9, 12, 0.0, INF, statistics.Reference(0.5, 5)),
        (0.9, 12, 0.0, INF, statistics.Reference(0.5)),  # nearer than the number's error allows
    ],
)
def test_the_power_of_a_decision_is_that_of_simulated_seeds(
    shift: float, n: int, low: float, high: float, reference: statistics.Reference
) -> None:
    """4,000 draws have an error of .008. All of them are compared with one published number, for
    whose error the test allows."""
    values = shift + np.array([-1.0, 0.0, 1.0])  # mean `shift`, deviation 1
    drawn = np.random.default_rng(0).normal(shift, 1.0, (4_000, n))
    answers = [
        statistics.judge_values(d.tolist(), low, high, reference=reference).answer for d in drawn
    ]
    decided = np.mean([answer != "open" for answer in answers])
    found = chances.part_chances(values.tolist(), low, high, n, reference=reference)
    assert found is not None
    assert sum(found) == pytest.approx(decided, abs=0.02)


@pytest.mark.parametrize(
    ("beyond", "n", "of", "median"),
    [(0.9, 12, 1, False), (0.2, 16, 1, True), (0.2, 16, 3, True), (0.1, 12, 3, False)],
)
def test_the_power_of_the_sign_test_is_that_of_simulated_seeds(
    beyond: float, n: int, of: int, median: bool
) -> None:
    """A share of the values is beyond the bound; an infinite one leaves them to the sign test."""
    far = 1.0 if median else INF
    values = [far] * round(10 * beyond) + [-far] * round(10 * (1 - beyond))
    drawn = np.where(np.random.default_rng(0).random((4_000, n)) < beyond, far, -far)
    answers = [statistics.judge_values(d.tolist(), 0, INF, of=of, median=median) for d in drawn]
    shares = [np.mean([a.answer == word for a in answers]) for word in ("holds", "fails")]
    found = chances.part_chances(values, 0.0, INF, n, of=of, median=median)
    assert found == pytest.approx(shares, abs=0.02)


def test_the_power_of_the_sign_test_allows_for_the_error_of_what_is_compared() -> None:
    """z(1 - .025 / 4) = 2.4977: an error of .02 reaches .05 beyond one of two bounds."""
    for value, expected in ((0.022, 1.0), (0.0599, 1.0), (0.06, 1.0)):
        exact = chances.part_chances([value] * 7 + [INF], -0.01, 0.01, 99)
        assert exact == (0.0, pytest.approx(expected))
    for value, expected in ((0.022, 0.0), (0.0599, 0.0), (0.06, 1.0)):
        reference = statistics.Reference(0.02)
        found = chances.part_chances([value] * 7 + [INF], -0.01, 0.01, 99, reference=reference)
        assert found == (0.0, pytest.approx(expected, abs=1e-9))


def exact_sign_power(n: int, share: float) -> float:
    """The power of the one-sided sign test at .025, with binomial coefficients."""
    tail, found = 0, 0.0
    for k in range(n, 0, -1):
        tail += math.comb(n, k)
        if 40 * tail > 2**n:
            break
        found += math.comb(n, k) * share**k * (1 - share) ** (n - k)
    return found


def test_the_least_seeds_of_a_sign_test_are_found_though_its_power_has_teeth() -> None:
    """Of 6, 7 and 8 signs all have to agree, which is .97^n: enough with 6 and 7, and not with 8.
    Nine need eight of them. With the last share a thousand seeds are not enough, and 999 are."""
    powers = [exact_sign_power(n, 0.97) for n in range(5, 10)]
    assert powers == pytest.approx([0.0, 0.97**6, 0.97**7, 0.97**8, 0.97185], abs=1e-5)
    for share, expected in ((0.97, 6), (0.9, 12), (0.75, 30), (0.5443, 999), (0.54, None)):

        def chance(n: int, share: float = share) -> float:
            return chances.sign_power(share, n, statistics.RATE)

        for n in (5, 6, 8, 9, 29, 30, 999, 1000):
            assert chance(n) == pytest.approx(exact_sign_power(n, share), rel=1e-9)
        assert chances.least_seeds(chance, 0.8, rises=False) == expected
        least = (n for n in range(2, 40) if exact_sign_power(n, share) >= 0.8)
        assert next(least, None) == (expected if expected and expected < 40 else None)
    values = [1.0] * 97 + [-INF] * 3  # the claim's own way to the same number
    assert todo.seeds_of_claim(claim(values), 8) == (6, pytest.approx(0.97**8, abs=1e-4))
    by_median = ClaimPart(what="w", values=[1.0] * 97 + [-1.0, -2.0, -3.0], low=0.0, high=INF,
                          expected=100, median=True)  # fmt: skip
    entry = claim([]).model_copy(update={"parts": [by_median]})
    assert todo.seeds_of_claim(entry, 8)[0] == 6


def claim(*values: list[float]) -> ClaimRecord:
    parts = [ClaimPart(what="w", values=v, low=0.0, high=INF, expected=len(v)) for v in values]
    verdict = Verdict(word="not enough runs", n=3, statistic="s", details=[])
    return ClaimRecord(claim={"kind": "above"}, parts=parts, verdict=verdict)


def test_the_seeds_that_a_decision_takes_are_the_least_with_that_power() -> None:
    some = claim([0.0, 1.0, 2.0])
    # scipy and G*Power: a one-sided t-test at .025, effect 1, power .8
    assert todo.seeds_of_claim(some, 3)[0] == 10
    assert (todo.claim_chance(some, 10) or 0) >= 0.8
    assert (todo.claim_chance(some, 9) or 0) < 0.8
    assert todo.claim_chance(some, 1) == 0.0
    needed, chance = todo.seeds_of_claim(claim([-0.99, 0.0, 1.0]), 3)
    assert needed is None  # beyond a thousand
    # the mean is nearly at its bound: each of the two answers has the level of its test
    assert chance == pytest.approx(0.05, abs=0.01)
    for values in ([2.0, 2.0], [INF, INF], [-INF, -INF]):  # left to the sign test
        assert todo.seeds_of_claim(claim(values), 3)[0] == statistics.FEWEST_SIGNS
    assert todo.seeds_of_claim(claim([INF, -1.0]), 3)[0] is None


def test_values_that_say_nothing_give_no_power() -> None:
    nothing_said = [math.nan] * 6  # neither of two runs reached the target, at any seed
    for values in (nothing_said, [INF, math.nan], [1.0], []):
        assert todo.seeds_of_claim(claim(values), 3) == (None, None)
    assert chances.part_chances([0.0, 1.0, 2.0], -INF, INF, 9) is None


def test_a_claim_holds_with_the_seeds_of_its_dearest_part_and_fails_with_one() -> None:
    assert todo.seeds_of_claim(claim([0.0, 1.0, 2.0], [9.0, 10.0, 11.0]), 3)[0] == 10
    one_fails = claim([-2.0, -1.0, 0.0], [9.0, 10.0, 11.0])
    assert todo.seeds_of_claim(one_fails, 3)[0] == 13  # scipy: the same t-test at .0125
    near_and_far = claim([-0.99, 0.0, 1.0], [-11.0, -10.0, -9.0])  # the first would take thousands
    assert todo.seeds_of_claim(near_and_far, 3)[0] == 3
    half_known = claim([math.nan, 1.0, 2.0], [-2.0, -1.0, 0.0])  # it cannot be seen to hold
    assert todo.seeds_of_claim(half_known, 3)[0] == 13
    half_known = claim([math.nan, 1.0, 2.0], [0.0, 1.0, 2.0])
    assert todo.seeds_of_claim(half_known, 3)[0] is None


def test_a_mean_near_its_bound_takes_more_seeds_than_one_between_bounds() -> None:
    """What is asked is the power where the mean is measured, for claims of closeness too."""

    def needed(values: list[float], extra_se: float = 0.0) -> int | None:
        part = ClaimPart(what="w", values=values, low=-3.0, high=3.0, expected=3, extra_se=extra_se)
        entry = claim([]).model_copy(update={"claim": {"kind": "close"}, "parts": [part]})
        return todo.seeds_of_claim(entry, 3)[0]

    between, near = needed([-1.0, 0.0, 1.0]), needed([1.5, 2.5, 3.5])
    assert between is not None
    assert between < 6
    assert near == 34  # scipy and G*Power: a one-sided t-test at .025, effect .5, power .8
    assert (needed([-1.0, 0.0, 1.0], 0.5) or 0) > between
    assert needed([1.5, 2.5, 3.5], 0.5) is None  # the published number's own error is too large


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
    assert (found.count, found.seconds) == (3, 12.0)  # the three that have ended took 12 seconds
    for seed in range(3):
        ended(tmp_path, f"paper/L/-{seed}", 0.6, process={"cpu_seconds": 4.0})
    assert lacking(tmp_path, half) is None


def test_runs_that_wait_for_data_say_so_until_there_is_a_record(tmp_path: Path) -> None:
    spec = artifact(**PLAIN, waits_for="a GPU")
    names: Any = Known()
    for seed in range(3):
        ended(tmp_path, f"paper/A/-{seed}", 0.5)
    old = records.make_record(made(tmp_path, **PLAIN), BOOK)
    for record, said in ((None, "a GPU"), (old, "")):
        _, found = todo.missing_runs(spec, BOOK, "short", record, tmp_path / "none", names)
        assert found is not None
        assert found.waits_for == said


def test_the_cheapest_for_each_claim_comes_first() -> None:
    def item(seconds: float, claims: int, waits_for: str = "") -> todo.MissingRuns:
        words: Any = {"not run": claims} if claims else {}
        return todo.MissingRuns(artifact(), "short", Counter(words), 1, seconds, waits_for)

    some = [item(9.0, 0), item(8.0, 1), item(20.0, 4), item(3.0, 0), item(1.0, 9, "data")]
    found = [i.seconds for i in sorted(some, key=todo.cost_of_a_claim)]
    assert found == [20.0, 8.0, 3.0, 9.0, 1.0]


def test_an_open_claim_says_what_its_seeds_cost(tmp_path: Path) -> None:
    for seed, value in enumerate((0.0, 1.0, 2.0)):
        ended(tmp_path, f"paper/A/-{seed}", 0.0, process={"cpu_seconds": 4.0})
        ended(tmp_path, f"paper/L/-{seed}", value, process={"cpu_seconds": 4.0})
    plan = made(tmp_path, **PLAIN)
    old = records.make_record(plan, BOOK)
    (found,) = todo.open_claims(artifact(**PLAIN), BOOK, "short", {("p/a", "short"): old}, plan)
    assert (found.variant, found.key, found.have, found.needed) == ("paper", "less", 3, 10)
    assert found.chance == pytest.approx(0.2, abs=0.05)
    assert found.seconds == 7 * 2 * 4.0  # seven seeds of two rows
    assert found.disturbed == 0  # the claim reads no times
    assert not found.waits_for_gpu


def test_a_row_that_has_more_seeds_lacks_fewer(tmp_path: Path) -> None:
    for seed in range(5):
        value = float(seed % 3)
        ended(tmp_path, f"paper/A/-{seed}", 0.0, process={"cpu_seconds": 4.0})
        ended(tmp_path, f"paper/L/-{seed}", value, process={"cpu_seconds": 4.0})
    budgets = {"short": {"minutes": 1.0, "seeds": 3, "more_seeds": {"L": 5}}}
    spec = PLAIN | {"budgets": budgets}
    plan = made(tmp_path, **spec)
    old = records.make_record(plan, BOOK)
    (found,) = todo.open_claims(artifact(**spec), BOOK, "short", {("p/a", "short"): old}, plan)
    assert (found.have, found.needed) == (3, 10)
    assert found.seconds == (7 + 5) * 4.0
    spec |= {
        "variants": {"paper": {}, "code": {}},
        "claims": {"less": LESS | {"variants": ["paper"]}},
    }
    both = made(tmp_path, **spec)
    (found,) = todo.open_claims(artifact(**spec), BOOK, "short", {("p/a", "short"): old}, both)
    assert found.seconds == 2 * (7 + 5) * 4.0  # the code's rows have as many seeds


def test_seeds_cost_what_those_of_their_rows_took(tmp_path: Path) -> None:
    """A's steps take 2 s and L's 10 s, beside a start-up of 3 s; seeds of L alone are lacking."""
    for seed in range(5):
        steps = {"A": 2.0, "L": 10.0}
        values = {"A": 0.0, "L": float(seed % 3)}
        for row in "AL"[seed >= 3 :]:
            last = {"step": 5, "loss": values[row], "cpu_seconds": steps[row]}
            process = {"cpu_seconds": steps[row] + 3.0}
            ended(tmp_path, f"paper/{row}/-{seed}", 0.0, last=last, process=process)
    budgets = {"short": {"minutes": 1.0, "seeds": 3, "more_seeds": {"L": 5}}}
    spec = PLAIN | {"budgets": budgets}
    plan = made(tmp_path, **spec)
    old = records.make_record(plan, BOOK)
    (found,) = todo.open_claims(artifact(**spec), BOOK, "short", {("p/a", "short"): old}, plan)
    assert found.needed == 10
    assert found.seconds == 7 * 5.0 + 5 * 13.0


def test_an_open_claim_waits_for_the_budget_gpu_until_that_has_a_record(tmp_path: Path) -> None:
    for seed, value in enumerate((0.0, 1.0, 2.0)):
        ended(tmp_path, f"paper/A/-{seed}", 0.0)
        ended(tmp_path, f"paper/L/-{seed}", value)
    budgets = {"short": {"minutes": 1.0, "seeds": 3}, "gpu": {"minutes": 1.0}}

    def waits(*more: str, **changes: Any) -> bool:
        spec = PLAIN | {"budgets": budgets, "claims": {"less": LESS | changes}}
        plan = made(tmp_path, **spec)
        old: Any = records.make_record(plan, BOOK)
        recorded: Any = {("p/a", budget): old for budget in ("short", *more)}
        (found,) = todo.open_claims(artifact(**spec), BOOK, "short", recorded, plan)
        return found.waits_for_gpu

    assert waits()
    assert not waits("gpu")
    assert not waits(budgets=["short"])


def test_an_open_claim_about_times_says_how_many_of_them_tell_nothing(tmp_path: Path) -> None:
    less = LESS | {"metric": "cpu_seconds"}
    for seed in range(3):
        alone = {"cpu_seconds": 4.0, "others_cores": 0.1 if seed else 0.3}
        ended(tmp_path, f"paper/A/-{seed}", 0.0, process=alone)
        ended(tmp_path, f"paper/L/-{seed}", 0.0, process=alone)
    spec = PLAIN | {"claims": {"less": less}}
    plan = made(tmp_path, **spec)
    old = records.make_record(plan, BOOK)
    (found,) = todo.open_claims(artifact(**spec), BOOK, "short", {("p/a", "short"): old}, plan)
    assert (found.key, found.disturbed, found.needed) == ("less", 2, None)
    assert found.have == 2  # at the seed 0 no times can be compared


def test_a_disturbed_run_counts_only_at_a_seed_that_the_claim_judges(tmp_path: Path) -> None:
    busy = {"cpu_seconds": 4.0, "others_cores": 0.3}
    for seed in range(5):
        ended(tmp_path, f"paper/A/-{seed}", 0.0, process=busy)
        ended(tmp_path, f"paper/L/-{seed}", 0.0, process=busy)
    budgets = {"short": {"minutes": 1.0, "seeds": 3, "more_seeds": {"L": 5}}}
    both = LESS | {"metric": "cpu_seconds"}
    alone = {"kind": "between", "by": "us", "text": "L is fast", "rows": ["L"], "at_most": 9.0}
    claims = {"both": both, "alone": alone | {"metric": "cpu_seconds"}}
    plan = made(tmp_path, **PLAIN | {"budgets": budgets, "claims": claims})
    counts = [len(disturbed_runs(c, plan, "paper")) for c in plan.artifact.spec.claims.values()]
    assert counts == [3 + 3, 5]


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
    assert cells[:5] == ["p/a", "short", "paper less", "", "3"]
    assert [cells[k] for k in (5, 7)] == ["", "10"]
    lost, _ = campaign_commands.what_is_left([], book, tmp_path / "no", tmp_path / "no")
    cells = [next(iter(column.cells)) for column in todo.table_of_runs(lost).columns]
    assert cells == ["p/a", "short", "1 not run", "6", "~ 60 s", ""]


def test_without_a_record_the_specs_estimate_is_of_all_runs_with_those_of_points_to_be_chosen(
    tmp_path: Path,
) -> None:
    """A minute for all: in each variant three tries of A and its three seeds, and three of L."""
    names: Any = Known()
    spec = artifact(rows={"A": {"method": "bome"}, "L": {"method": "bome", "line": True}})
    _, found = todo.missing_runs(spec, BOOK, "short", None, tmp_path / "none", names)
    assert found is not None
    assert (found.count, found.seconds) == (18, pytest.approx(60.0))


def test_a_run_that_other_work_has_slowed_is_made_again(tmp_path: Path) -> None:
    """A clock ends the runs, and the claim compares their ends. A takes 100 steps and 40 beside
    other work; L always takes 20, so that the work beside its last run has not slowed it."""
    for seed in range(3):
        for row, steps, busy in (("A", 40 if seed == 1 else 100, 1), ("L", 20, 2)):
            others = 1.0 if seed == busy else 0.0
            ended(
                tmp_path, f"paper/{row}/-{seed}", 0.5,
                last={"step": steps, "loss": 0.5, "cpu_seconds": 9.0},
                process={"others_cores": others, "pace_ms": 1.0},
            )  # fmt: skip
    plan = made(tmp_path, **PLAIN | {"set": {"run.cpu_seconds": 9.0}})
    (claim_,) = plan.artifact.spec.claims.values()
    again = [run.planned.name for run in disturbed_runs(claim_, plan, "paper")]
    assert again == ["paper/A/-1"]
