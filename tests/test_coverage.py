"""The simulations that measure how often verdicts are wrong, and the command that prints them."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.reproduce import cli, coverage
from bench.reproduce.coverage import CASES, Case, Rates
from bench.reproduce.statistics import RATE


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind}: {case.about}")
def test_a_promised_rate_stands(case: Case) -> None:
    """With three and with ten seeds; where none is promised, it would be broken."""
    draws = 200 if case.law is coverage.common_targets else 1000
    found = [coverage.simulate(case, n, draws) for n in (3, 10)]
    assert all(rates.stands for rates in found) is case.promised
    assert [(rates.n, rates.draws) for rates in found] == [(3, draws), (10, draws)]


def test_every_kind_of_claim_has_a_case() -> None:
    kinds = {kind for case in CASES for kind in case.kind.split(", ")}
    assert kinds == {
        "above", "below", "order", "between", "within_published", "close", "converges",
        "does_not_converge", "diverges", "first", "slope",
    }  # fmt: skip


def test_the_truth_lies_on_the_bound() -> None:
    """The mean of each law is 0, or its median where the case is about medians.

    Where one method stops earlier, fewer of its runs come to the target, so that the mean of the
    finite values is not 0. As many values lie above 0 as below.
    """
    rng = np.random.default_rng(3)
    for case in CASES:
        n = 60 if case.law is coverage.common_targets else 20_000
        values = case.law(rng, n)
        if case.law is coverage.stopped_earlier:
            above, below = np.sum(values > 0), np.sum(values < 0)
            assert abs(above - below) < 4.5 * np.sqrt(above + below)
            assert above + below < 0.7 * n  # the others are not known
            continue
        finite = values[np.isfinite(values)]
        centre = np.median(values) if case.median else finite.mean()
        error = finite.std() / np.sqrt(len(finite))
        assert abs(centre) < 4.5 * error, case
        assert 0.0 in (case.low, case.high)


def all_right(rng: Any, n: int) -> Any:
    return rng.normal(1000.0, 1.0, size=n)


def test_a_judge_that_errs_is_found() -> None:
    """A clear case is always found, and the other answer never."""
    clear = Case("between", "clear", all_right)
    found = coverage.simulate(clear, 3, 50)
    assert (found.holds, found.fails) == (1.0, 0.0)
    assert not found.stands
    assert coverage.simulate(clear._replace(parts=3), 3, 20).holds == 1.0
    missed = coverage.simulate(clear._replace(low=5000.0, high=6000.0), 5, 20)
    assert (missed.holds, missed.fails) == (0.0, 1.0)


def test_rates_stand_up_to_three_standard_errors() -> None:
    """With 10,000 draws the standard error of .025 is .00156."""
    for holds, fails, stands in (
        (0.0296, 0.0, True), (0.0298, 0.0, False), (0.0, 0.0298, False), (0.0, 0.0, True),
    ):  # fmt: skip
        assert Rates(CASES[0], 3, 10_000, holds, fails).stands is stands


def test_the_same_draws_give_the_same_rates() -> None:
    case = CASES[0]
    assert coverage.simulate(case, 3, 200) == coverage.simulate(case, 3, 200)
    assert coverage.simulate(case, 3, 200) != coverage.simulate(case, 3, 200, seed=1)


@dataclass
class Said:
    code: int
    out: str


def call(monkeypatch: pytest.MonkeyPatch, capsys: Any, *arguments: str) -> Said:
    monkeypatch.setattr(sys, "argv", ["reproduce", "coverage", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert isinstance(ended.value.code, int)
    return Said(ended.value.code, " ".join(capsys.readouterr().out.split()))


def test_the_command_prints_rates_and_writes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It fails if a rate is above the one that is promised, and only then."""
    clear = Case("between", "clear", all_right)
    file = tmp_path / "new" / "rates.json"
    monkeypatch.setattr(coverage, "CASES", (CASES[0], clear._replace(promised=False)))
    monkeypatch.setattr(coverage, "SEEDS", (3, 5))
    said = call(monkeypatch, capsys, "--draws", "300", "--json", str(file))
    assert said.code == 0
    assert "normal 3 0.0" in said.out
    assert said.out.count("not promised") == 2
    assert "verdicts were wrong (kind above, below, order; normal; " in said.out
    content = json.loads(file.read_text())
    assert content["rate"] == RATE
    assert [(row["kind"], row["n"], row["promised"]) for row in content["cases"]] == [
        ("above, below, order", 3, True), ("above, below, order", 5, True),
        ("between", 3, False), ("between", 5, False),
    ]  # fmt: skip
    assert content["cases"][2] == {
        "kind": "between", "law": "clear", "n": 3, "holds": 1.0, "fails": 0.0, "promised": False,
        "draws": 300,
    }  # fmt: skip
    assert coverage.coverage_sentence(content) in said.out
    monkeypatch.setattr(coverage, "CASES", (clear,))
    said = call(monkeypatch, capsys, "--draws", "10")
    assert said.code == 1
    assert said.out.count("too often") == 2
