"""The rules of a spec in memory: what is refused, what is assumed, which points there are."""

import copy
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pydantic import ValidationError

from bench.core.settings import BadSetting
from bench.reproduce import book as books
from bench.reproduce import claim_kinds
from bench.reproduce import points as points_of
from bench.reproduce.points import Point, points
from bench.reproduce.spec_checks import check_causes, check_spec
from bench.reproduce.specs import Artifact, Book, Method, Metric, Scale, Spec, grid_paths

METRICS = {
    "any": {"calls": Metric(label="oracle calls", better="lower")},
    "toy": {
        "loss": Metric(label="test loss", better="lower"), "x": Metric(label="x"),
        "share": Metric(label="share", better="higher", percent=True),
        "calls/grad_f": Metric(label="own gradients"),
    },
}  # fmt: skip
METHODS = {
    "bome": Method(label="BOME", colour="#000000"),
    "bome_T1": Method(label="BOME (T=1)", colour="#000000", algorithm="bome"),
}
BOOK = Book({}, METRICS, METHODS)
FILE = Path("p/a.yaml")
GOOD: dict[str, Any] = {
    "title": "t", "source": "s", "task": "toy", "variants": {"paper": {}, "code": {}},
    "budgets": {"short": {"minutes": 1.0, "seeds": 2}}, "columns": ["loss"],
    "figure": {"metrics": ["loss"]},
    "rows": {"A": {"method": "bome"}, "B": {"method": "bome_T1"}}, "claims": {},
}  # fmt: skip
Change = Callable[[dict[str, Any]], Any]


def spec(**changes: Any) -> Spec:
    found: Spec = books.validate(Spec, {**GOOD, **changes}, FILE, "")
    check_spec(found, METRICS, METHODS, books.format_path(FILE))
    return found


def claim(kind: str, **more: Any) -> dict[str, Any]:
    """The claims of a spec that has one, of this kind."""
    return {"claims": {"c": {"kind": kind, "by": "us", "text": "t", "rows": ["A"], **more}}}


def slope(**more: Any) -> dict[str, Any]:
    """The claims and the rows of a spec that has one on a slope."""
    changes: dict[str, Any] = {**SLOPE, **more}
    return {"rows": {**GOOD["rows"], "C": {"method": "bome"}}, **claim("slope", **changes)}


def because(**cause: Any) -> dict[str, Any]:
    """The claims of a spec that has one, which fails in the variant paper for this cause."""
    return claim("converges", metric="loss", within=1.0, why={"paper": cause})


GRID = {"grid": {"a.lr": [1, 2]}, "select": {"metric": "loss", "best": "lowest"}}
SLOPE = {"metric": "loss", "against": "kappa", "points": {"A": 1.0, "B": 2.0, "C": 3.0},
         "at_most": 1.0}  # fmt: skip

CANNOT_FAIL: list[dict[str, Any]] = [
    {"kind": "above", "metric": "share", "than": ["B"], "margin": -1.0},
    {"kind": "order", "metric": "share", "rows": ["A", "B"], "margin": -1.5},
    {"kind": "below", "metric": "share", "than": ["B"], "margin": -1.0},
    {"kind": "below", "metric": "share", "than": ["B"], "factor": 0.5, "margin": -1.0},
    {"kind": "between", "metric": "share", "at_least": 0.0},
    {"kind": "between", "metric": "share", "at_least": -1.0, "at_most": 1.0},
    {"kind": "between", "metric": "calls/grad_f", "at_least": 0.0},
    {"kind": "between", "metric": "cpu_seconds", "at_least": -1.0},
    {"kind": "between", "metric": "peak_memory_mb", "at_least": 0.0},
    {"kind": "close", "every": ["share"], "rows": ["A", "B"], "within": 1.0},
    {"kind": "converges", "metric": "share", "within": 0.75, "to": 0.25},
    {"kind": "does_not_converge", "metric": "share", "beyond": 0.5, "to": 1.5},
    {"kind": "does_not_converge", "metric": "calls/grad_f", "beyond": 0.5, "to": -0.5},
]  # fmt: skip
CAN_FAIL: list[dict[str, Any]] = [
    {"kind": "above", "metric": "share", "than": ["B"], "margin": -0.99},
    {"kind": "above", "metric": "share", "than": ["B"], "margin": -1.0, "log": True},
    {"kind": "above", "metric": "loss", "than": ["B"], "margin": -9.0},
    {"kind": "order", "metric": "share", "rows": ["A", "B"], "margin": -0.99},
    {"kind": "below", "metric": "share", "than": ["B"], "margin": -0.99},
    {"kind": "below", "metric": "share", "than": ["B"], "margin": -1.0, "log": True},
    {"kind": "between", "metric": "share", "at_least": 0.01},
    {"kind": "between", "metric": "share", "at_least": 0.0, "at_most": 0.99},
    {"kind": "between", "metric": "info/cosine", "at_least": 0.0},
    {"kind": "between", "metric": "x", "at_least": 0.0},
    {"kind": "close", "every": ["share", "loss"], "rows": ["A", "B"], "within": 1.0},
    {"kind": "close", "every": ["share"], "rows": ["A", "B"], "within": 0.99},
    {"kind": "converges", "metric": "share", "within": 0.74, "to": 0.25},
    {"kind": "does_not_converge", "metric": "share", "beyond": 0.51, "to": 1.5},
    {"kind": "diverges", "metric": "calls/grad_f", "growth": 0.1},
]  # fmt: skip

RIGHT: list[dict[str, Any]] = [
    *(claim(**changes) for changes in CAN_FAIL),
    {**claim("converges", metric="loss", within=1.0, budgets=["full"]),
     "budgets": {"short": {"minutes": 1.0}, "full": {"minutes": 1.0, "seeds": 2}}},
    {**claim("converges", metric="loss", within=1.0, median=True),
     "budgets": {"short": {"minutes": 1.0, "seeds": 6}}},
    {**claim("converges", metric="loss", within=1.0),
     "budgets": {"short": {"minutes": 1.0, "more_seeds": {"A": 2}}}},
    {"columns": ["loss", "step", "seconds", "cpu_seconds", "calls", "peak_memory_mb"]},
    {"columns": ["calls/grad_f", "calls/anything", "samples/lmo", "info/cosine"]},
    {"figure": {"metrics": ["loss", "step"], "axes": ["calls/grad_f", "seconds"]}},
    {"grid": {"algorithm.lr": [0.1]}, "select": {"metric": "x", "best": "lowest"}},
    {"rows": {"A": {"method": "bome", "grid": {}}}},
    claim("between", metric="loss", at_least=0.0),
    claim("between", metric="loss", at_most=0.0),
    claim("first", metric="loss", on="calls", than=["B"], value=0.0),
    claim("first", metric="loss", on="calls", than=["B"], gain=0.5),
    claim("slope", metric="loss", against="step", at_least=0.0),
    slope(),  # what it is held against is no metric
    slope(until="x", target=1.0),
    slope(until="x", targets={"A": 1.0, "B": 2.0, "C": 3.0}),
    slope(until="x", target=3.0, targets={"A": 1.0}),
    slope(over={"A": "B", "B": "A", "C": "A"}),
    slope(points={}, against="step", until="x", target=1.0),
    {"rows": {"A": {"method": "bome"}, "B": {"method": "bome", "only": ["code"]}},
     **claim("above", metric="loss", than=["B"], variants=["code"])},
    {"variants": {"paper": {}},
     "rows": {"A": {"method": "bome"}, "B": {"method": "bome", "only": ["paper"]}},
     **claim("above", metric="loss", than=["B"])},
    {"rows": {"A": {"method": "bome", "published": {"loss": {"mean": 1.0}}}},
     **claim("within_published", metric="loss", tolerance=0.5)},
]  # fmt: skip


@pytest.mark.parametrize("changes", RIGHT)
def test_what_is_right(changes: dict[str, Any]) -> None:
    spec(**changes)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"task": "any"}, "task: any: no such task in metrics.yaml; there is toy"),
    ({"task": "toys"}, "task: toys: no such task in metrics.yaml; did you mean toy? there is toy"),
    ({"columns": ["loss", "lost"]}, "columns.1: lost: no such metric of toy; did you mean loss? "
                                    "there is calls/grad_f, loss, share, x"),
    ({"columns": ["memory/grad_f"]}, "columns.0: memory/grad_f: no such metric"),
    ({"columns": ["calls/grad f"]}, "columns.0: calls/grad f: no such metric"),
    ({"figure": {"metrics": ["loss", "y"]}}, "figure.metrics.1: y: no such metric"),
    ({"figure": {"metrics": ["loss"], "axes": ["step", "y"]}}, "figure.axes.1: y: no such metric"),
    ({"figure": {"metrics": ["peak_memory_mb"]}}, "figure.metrics.0: peak_memory_mb: no such"),
    ({"figure": {"metrics": ["loss"], "axes": ["peak_memory_mb"]}}, "figure.axes.0: peak_memory"),
    ({"select": {"metric": "y", "best": "lowest"}}, "select.metric: y: no such metric"),
    ({"rows": {"A": {"method": "bom"}}}, "rows.A.method: bom: no such method in methods.yaml; did "
                                         "you mean bome? there is bome, bome_T1"),
    ({"rows": {"A": {"method": "bome", "published": {"y": {"mean": 1.0}}}}},
     "rows.A.published: y: no such metric"),
    ({"grid": {"a": [1]}}, "select: rows.A has a grid: say which metric picks its point"),
    ({"budgets": {"smoke": {"minutes": 1.0, "choosing_seeds": 2}}},
     "budgets.smoke.choosing_seeds: nothing is chosen: write select:, or leave this out"),
    ({"rows": {"B": {"method": "bome"}, "A": {"method": "bome", "grid": {"a": [1]}}}},
     "select: rows.A has a grid"),
    ({"rows": {"A": {"method": "bome", "paper": {"grid": {"a": [1]}}}}}, "select: rows.A has a"),
    ({"rows": {"A": {"method": "bome", "code": {"grid": {"a": [1]}}}}}, "select: rows.A has a"),
    (claim("converges", metric="y", within=1.0), "claims.c.metric: y: no such metric"),
    (claim("first", metric="loss", on="y", than=["B"], value=1.0), "claims.c.on: y: no such"),
    (claim("converges", metric="x", within=1.0, rows=["A", "C"]), "claims.c.rows: C: no such row"),
    (claim("above", metric="x", than=["B", "C"]), "claims.c.rows: C: no such row; there is A, B"),
    (slope(points={"D": 1.0}), "claims.c.rows: D: no such row"),
    (slope(over={"A": "D", "B": "A", "C": "A"}), "claims.c.rows: D: no such row"),
    ({"rows": {"A": {"method": "bome"}, "B": {"method": "bome", "only": ["code"]}},
      **claim("above", metric="loss", than=["B"])},
     "claims.c.variants: B is not in the variant paper; write variants: for the claim"),
    ({"rows": {"A": {"method": "bome", "published": {"x": {"mean": 1.0}}}},
      **claim("within_published", metric="loss", tolerance=0.5)},
     "claims.c.rows: A has no published value of loss"),
    (slope(until="x"), "claims.c.target: when is x reached? ['A', 'B', 'C']"),
    (slope(until="x", targets={"A": 1.0}), "claims.c.target: when is x reached? ['B', 'C']"),
    ({**slope(until="x", over=dict.fromkeys("ABC", "D"), targets=dict.fromkeys("ABC", 1.0)),
      "rows": {name: {"method": "bome"} for name in "ABCD"}},
     "claims.c.target: when is x reached? ['D']"),
    (slope(points={}, against="step", until="x"), "claims.c.target: when is x reached?"),
    (slope(until="y", target=1.0), "claims.c.on: y: no such metric"),
    (slope(points={}), "claims.c.on: kappa: no such metric"),
    (slope(points={"A": 1.0, "B": 2.0}),
     "claims.c.points: short has 2 of the 3 different points that a slope takes"),
    (slope(over={"A": "B"}), "claims.c.over: write one row for each of points:"),
    (slope(at_most=None), "claims.c: write at_least:, at_most: or both"),
    (claim("between", metric="loss"), "claims.c: write at_least:, at_most: or both"),
    (claim("first", metric="loss", on="calls", than=["B"]), "claims.c: write either value: or"),
    (claim("first", metric="loss", on="calls", than=["B"], value=1.0, gain=0.5),
     "claims.c: write either value: or gain:"),
    # what no runs could decide
    (claim("below", metric="seconds", than=["B"]),
     "claims.c.metric: seconds tell of other work as well: write cpu_seconds or calls"),
    (claim("first", metric="loss", on="seconds", than=["B"], value=1.0),
     "claims.c.on: seconds tell of other work as well: write cpu_seconds or calls"),
    (claim("slope", metric="loss", against="seconds", at_most=1.0), "claims.c.metric: seconds"),
    *((claim(**changes), "claims.c: it cannot fail, as no value lies outside its bounds: write")
      for changes in CANNOT_FAIL),
    ({**claim("converges", metric="loss", within=1.0), "budgets": {"short": {"minutes": 1.0}}},
     "claims.c.budgets: short has 1 of the 2 seeds that a verdict takes at least: leave short out, "
     "or raise its seeds"),
    ({**claim("above", metric="calls", than=["B"]), "budgets": {"short": {"minutes": 1.0}}},
     "claims.c.budgets: short has 1 of the 2 seeds"),
    ({**claim("converges", metric="loss", within=1.0, median=True),
      "budgets": {"full": {"minutes": 1.0, "seeds": 5}}},
     "claims.c.budgets: full has 5 of the 6 seeds that a verdict takes at least: leave full out"),
    # what the schema refuses
    (claim("above", metric="loss", than=[]), "claims.c.than: list should have at least 1 item"),
    (claim("below", metric="loss", than=[]), "claims.c.than: list should have at least 1 item"),
    (claim("first", metric="loss", on="x", than=[], value=1.0), "claims.c.than: list should have"),
    (claim("order", metric="loss"), "claims.c.rows: list should have at least 2 items"),
    (claim("close", every=["loss"], within=1.0), "claims.c.rows: list should have at least 2"),
    (claim("close", every=[], within=1.0, rows=["A", "B"]), "claims.c.every: list should have"),
    (claim("converges", metric="loss", within=1.0, rows=[]), "claims.c.rows: list should have"),
    (claim("converges", metric="loss", within=1.0, variants=[]), "claims.c.variants: list should"),
    (claim("converges", metric="loss", within=1.0, budgets=[]), "claims.c.budgets: list should"),
    ({"claims": {"c": {"kind": "converges", "text": "t", "rows": ["A"], "metric": "loss",
                       "within": 1.0}}}, "claims.c.by: is missing"),
    (claim("converges", metric="loss", within=1.0, by="you"), "claims.c.by=you: input should be"),
    (claim("converges", metric="loss", within=1.0, by="paper"),
     "claims.c.source: write where the paper says it: a sentence, a table, a figure"),
    (claim("converges", metric="loss", within=1.0, by="paper", source=""),
     "claims.c.source: write where the paper says it"),
    (claim("converges", metric="loss", within=1.0, source="table 1"),
     "claims.c.source: a claim by us has none; if it is the paper's: by: paper"),
    (because(text="t"), "claims.c.why.paper.tested: is missing"),
    (because(tested=False), "claims.c.why.paper.text: is missing"),
    (because(text="t", tested="yes"), "claims.c.why.paper.tested=yes: input should be a valid"),
    (because(text="t", tested=True),
     "claims.c.why.paper.by: write the artifact or the command that tested it"),
    (because(text="t", tested=False, by="p/a"),
     "claims.c.why.paper.by: a cause that is not tested has none"),
    (claim("converges", metric="loss", within=1.0, why={"all": {"text": "t", "tested": False}}),
     "claims.c.why.all"),
    (claim("converges", metric="loss", within=1.0, failing={"paper": "t"}),
     "claims.c.failing: extra inputs"),
    ({"ends": {"a.lr": "low"}}, "ends: a.lr: no such setting in a grid of the spec"),
    ({**GRID, "ends": {"a.rl": "low"}},
     "ends: a.rl: no such setting in a grid of the spec; did you mean a.lr?"),
    ({**GRID, "ends": {"a.lr": "left"}}, "ends.a.lr=left: input should be 'low', 'high' or 'both'"),
    ({"budgets": {"short": {"minutes": 1.0, "scale": "large"}}},
     "budgets.short.scale=large: input should be 'paper' or 'smaller'"),
    (claim("converges", metric="loss", within=0.0), "claims.c.within=0.0: input should be greater"),
    (claim("slope", **SLOPE, after=1.0), "claims.c.after=1.0: input should be less than 1"),
    (claim("slope", **SLOPE, after=-0.5), "claims.c.after=-0.5: input should be greater than or"),
    ({"budgets": {"short": {"minutes": 1.0, "drawn": ["a.rl"]}}, **GRID},
     "budgets.short.drawn: a.rl: no such setting in a grid of the spec; did you mean a.lr?"),
    ({"budgets": {"short": {"minutes": 1.0, "seeds": 2, "more_seeds": {"C": 3}}}},
     "budgets.short.more_seeds: C: no such row; there is A, B"),
    ({"budgets": {"short": {"minutes": 1.0, "seeds": 2, "more_seeds": {"A": 2}}}},
     "budgets.short.more_seeds.A: every row has 2 seeds: write more"),
    ({"columns": []}, "columns: list should have at least 1 item"),
    ({"figure": {"metrics": []}}, "figure.metrics: list should have at least 1 item"),
    ({"figure": {"metrics": ["x"], "axes": []}}, "figure.axes: list should have at least 1 item"),
    ({"rows": {}}, "rows: dictionary should have at least 1 item"),
    ({"variants": {}}, "variants: dictionary should have at least 1 item"),
    ({"budgets": {}}, "budgets: dictionary should have at least 1 item"),
    ({"grid": {"a": []}}, "grid.a: list should have at least 1 item"),
    ({"rows": {"A": {"method": "bome", "only": []}}}, "rows.A.only: list should have at least 1"),
    ({"rows": {"A": {"method": "bome", "at": []}}}, "rows.A.at: list should have at least 1 item"),
    ({"deterministic": True}, "deterministic=True: extra inputs are not permitted"),
    ({"budgets": {"short": {"minutes": 0.0}}}, "budgets.short.minutes=0.0: input should be great"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), WRONG)
def test_what_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadSetting) as error:
        spec(**changes)
    assert str(error.value).startswith(f"p/a.yaml: {message}")


@pytest.mark.parametrize(("mean", "refused"), [(0.5, True), (0.4, False)])
def test_a_published_fraction_leaves_room_to_fail(mean: float, refused: bool) -> None:
    """All values lie within .5 of .5, but not of .4."""
    rows = {"A": {"method": "bome", "published": {"share": {"mean": mean}}}}
    near = {"rows": rows, **claim("within_published", metric="share", tolerance=0.5)}
    if not refused:
        spec(**near)
        return
    with pytest.raises(BadSetting, match=r"claims\.c: it cannot fail"):
        spec(**near)


def test_a_method_has_a_colour_and_a_spec_does_not_change() -> None:
    with pytest.raises(BadSetting, match=r"bome\.colour=red: string should match pattern"):
        books.validate(Method, {"label": "l", "colour": "red"}, FILE, "bome")
    with pytest.raises(BadSetting, match=r"^p/a\.yaml: bome\.colour: is missing$"):
        books.validate(Method, {"label": "l"}, FILE, "bome")
    with pytest.raises(ValidationError):
        spec().title = "another"


def test_what_is_assumed() -> None:
    found = spec(**claim("converges", metric="loss", within=1.0))
    row, scale, one = found.rows["A"], found.budgets["short"], found.claims["c"]
    assert (found.note, found.set, found.grid) == ("", {}, None)
    assert found.select is None
    assert (row.only, row.at) == (["paper", "code"], ["smoke", "short", "medium", "gpu", "full"])
    assert (row.line, row.pending, row.published, row.set, row.grid) == (False, None, {}, {}, None)
    assert (scale.seeds, scale.set, scale.grid) == (2, {}, None)
    assert Scale(minutes=1.0).seeds == 1
    assert found.figure.axes == ["step", "seconds", "calls"]
    assert (found.figure.log, found.figure.trajectory) == ([], None)
    assert (one.variants, one.budgets) == (["paper", "code"], ["short", "medium", "gpu", "full"])
    assert (one.source, one.why, found.ends) == (None, {}, {})
    assert METHODS["bome"].dash == "solid"
    assert (METRICS["toy"]["x"].better, METRICS["toy"]["x"].percent) == ("neither", False)

    def dumped(kind: str, **more: Any) -> dict[str, Any]:
        return spec(**claim(kind, metric="loss", **more)).claims["c"].model_dump()

    assert dumped("above", than=["B"])["margin"] == 0.0
    below = dumped("below", than=["B"])
    assert (below["factor"], below["margin"]) == (1.0, 0.0)
    assert dumped("order", rows=["A", "B"])["margin"] == 0.0
    assert dumped("converges", within=1.0)["to"] == 0.0
    assert dumped("does_not_converge", beyond=1.0)["to"] == 0.0
    assert dumped("first", on="calls", than=["B"], value=1.0)["factor"] == 1.0
    assert dumped("slope", against="step", at_most=1.0)["after"] == 0.5


def test_who_makes_a_claim_and_why_it_fails() -> None:
    stated = spec(**claim("converges", metric="loss", within=1.0, by="paper", source="table 1"))
    one = stated.claims["c"]
    assert (one.by, one.source) == ("paper", "table 1")
    assert claim_kinds.describe_author(one.model_dump()) == "paper: table 1"
    tested = spec(**because(text="It is.", tested=True, by="p/a")).claims["c"]
    assert claim_kinds.describe_author(tested.model_dump()) == "us"
    assert claim_kinds.describe_cause(tested.model_dump(), "paper") == "It is. (Tested: p/a.)"
    assert claim_kinds.describe_cause(tested.model_dump(), "code") == ""
    guessed = spec(**because(text="It is.", tested=False)).claims["c"]
    assert claim_kinds.describe_cause(guessed.model_dump(), "paper") == "conjecture: It is."


def test_what_tested_a_cause_is_an_artifact_or_a_command() -> None:
    """Ids are known once all specs are read."""

    def check(by: str) -> None:
        content = spec(**because(text="t", tested=True, by=by))
        check_causes(content, ["p/a", "p/fig1"], books.format_path(FILE))

    for by in ("p/a", "p/fig1", "bench task=toy", "uv run python scripts/speed.py"):
        check(by)
    with pytest.raises(BadSetting) as error:
        check("p/fig2")
    assert str(error.value) == (
        "p/a.yaml: claims.c.why.paper.by: p/fig2: no such artifact; did you mean p/fig1? "
        "a command begins with bench, reproduce, python, uv run"
    )


def test_the_scale_of_a_budget() -> None:
    """Without a word, full is the paper's scale and the others are smaller."""
    budgets = {name: {"minutes": 1.0} for name in ("smoke", "short", "full")}
    found = spec(budgets=budgets)
    assert [found.scale(b) for b in found.budgets] == ["smaller", "smaller", "paper"]
    assert list(spec(budgets=dict(reversed(budgets.items()))).budgets) == list(budgets)
    said = {
        "short": {"minutes": 1.0, "scale": "paper"},
        "full": {"minutes": 1.0, "scale": "smaller"},
    }
    assert [spec(budgets=said).scale(b) for b in ("short", "full")] == ["paper", "smaller"]


def test_the_settings_that_have_a_grid() -> None:
    """Grids of the spec, a variant, a row and a row's variant; an end is one of one of these."""
    rows = {"A": {"method": "bome", "grid": {"c": [1]}, "paper": {"grid": {"d": [1]}},
                  "code": {"grid": {"e": [1]}}}}  # fmt: skip
    variants = {"paper": {"grid": {"b": [1]}}, "code": {}}
    found = spec(**{**GRID, "rows": rows, "variants": variants, "ends": {"e": "low"}})
    assert grid_paths(found) == ["a.lr", "b", "c", "d", "e"]
    assert found.ends == {"e": "low"}


def test_the_names_that_a_claim_needs() -> None:
    def needs(kind: str, **more: Any) -> tuple[list[str], list[str]]:
        rows = {**GOOD["rows"], "C": {"method": "bome"}}
        one = spec(**claim(kind, **more), rows=rows).claims["c"]
        return one.needed_rows, one.metrics

    assert needs("converges", metric="loss", within=1.0) == (["A"], ["loss"])
    assert needs("above", metric="loss", than=["B"]) == (["A", "B"], ["loss"])
    close = needs("close", every=["loss", "x"], within=1.0, rows=["A", "B"])
    assert close == (["A", "B"], ["loss", "x"])
    first = needs("first", metric="loss", on="calls", than=["B"], value=1.0)
    assert first == (["A", "B"], ["loss", "calls"])
    over = {"A": "B", "B": "A", "C": "A"}
    assert needs("slope", **SLOPE, over=over) == (["A", "B", "C"], ["loss"])
    assert needs("slope", **SLOPE, until="x", target=1.0)[1] == ["loss", "x"]
    alone = {"metric": "loss", "against": "step", "at_most": 1.0}
    assert needs("slope", **alone) == (["A"], ["loss", "step"])


def test_a_metrics_name() -> None:
    """The task's own metric comes first, then one that every run has, then the name itself."""
    assert BOOK.metric("toy", "loss").label == "test loss"
    assert BOOK.metric("toy", "calls/grad_f").label == "own gradients"
    assert BOOK.metric("other", "calls") == METRICS["any"]["calls"]
    assert BOOK.metric("toy", "calls").better == "lower"
    assert BOOK.metric("toy", "samples/hvp_g") == Metric(label="samples hvp g")


def test_which_artifacts_are_asked_for() -> None:
    """Ids and papers give artifacts in the order in which they are asked for; none gives all."""
    every = {key: Artifact(key, spec(), FILE) for key in ("p/fig1", "p/fig2", "q/fig1")}
    book = Book(every, METRICS, METHODS)

    def asked(*names: str) -> list[str]:
        return [artifact.id for artifact in books.find_artifacts(book, names)]

    assert asked() == ["p/fig1", "p/fig2", "q/fig1"]
    assert asked("q", "p/fig2") == ["q/fig1", "p/fig2"]
    assert asked("p") == ["p/fig1", "p/fig2"]
    there = "there is p/fig1, p/fig2, q/fig1"
    hints = {"q/fg1": "did you mean q/fig1? ", "zzz": "there is", "p/fig": "did you mean p/fig"}
    for name, hint in hints.items():
        with pytest.raises(BadSetting) as error:
            asked("p", name)
        assert str(error.value).startswith(f"{name}: no such artifact; {hint}")
        assert str(error.value).endswith(there)


def test_a_row_in_place_of_an_artifact_is_told_its_option() -> None:
    """`--rows A B` gives a row to `--rows` and leaves B, which reads like an artifact."""
    book = Book({"p/fig1": Artifact("p/fig1", spec(), FILE)}, METRICS, METHODS)
    row = next(iter(book.artifacts["p/fig1"].spec.rows))
    with pytest.raises(BadSetting, match=f"{row}: is a row of p/fig1; .* takes it as --rows {row}"):
        books.find_artifacts(book, ["p/fig1", row])


def test_a_key_given_twice_is_refused_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("a: 1\nb:\n  c: 1\n  c: 2\n")
    with pytest.raises(BadSetting, match=r"a\.yaml: line 4: c is there twice$"):
        books.read_yaml(file)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "null"), (True, "true"), (False, "false"), ([], "[]"), ([1, 2.5, "x"], "[1,2.5,x]"),
        (1e-4, "0.0001"), (3, "3"), ("a b", "a b"),
    ],
)  # fmt: skip
def test_an_override_is_in_hydras_grammar(value: Any, said: str) -> None:
    assert points_of.format_override("a.b", value) == f"a.b={said}"


# grid points


def chosen(found: list[Point]) -> list[dict[str, Any]]:
    return [dict(point.chosen) for point in found]


def test_later_settings_count() -> None:
    """The order is spec, variant, row, the row's variant, budget, the row's budget."""
    keys = "abcdef"
    layers = [dict.fromkeys(keys[i:], i) for i in range(6)]
    row = {
        "method": "bome_T1", "set": layers[2], "paper": {"set": layers[3]},
        "code": {"set": {"z": 9}}, "budgets": {"short": layers[5], "full": {"a": 99}},
    }  # fmt: skip
    found = spec(
        set=layers[0],
        variants={"paper": {"set": layers[1]}, "code": {}},
        budgets={"short": {"minutes": 1.0, "set": layers[4]}, "full": {"minutes": 1.0}},
        rows={"A": row},
    )
    paper, code = points(found, BOOK, "short")
    task = {"task": "toy", "algorithm": "bome", "run.threads": 1}
    assert dict(paper.settings) == task | dict(zip(keys, range(6)))
    assert dict(code.settings) == task | {"a": 0, "b": 0, "c": 2, "d": 2, "e": 4, "f": 5, "z": 9}
    assert (paper.variant, paper.row, paper.chosen) == ("paper", "A", ())
    full = next(points(found, BOOK, "full"))
    assert dict(full.settings) == task | {"a": 99, "b": 1, "c": 2, "d": 3, "e": 3, "f": 3}
    plain = spec(rows={"A": {"method": "bome", "set": {"algorithm": "other"}}})
    assert dict(next(points(plain, BOOK, "short")).settings)["algorithm"] == "other"
    threads = spec(threads=3, rows={"A": {"method": "bome"}})
    assert dict(next(points(threads, BOOK, "short")).settings)["run.threads"] == 3


SELECT = {"metric": "loss", "best": "lowest"}


@pytest.mark.parametrize(
    ("row", "variant", "expected"),
    [
        ({}, {}, 1),
        ({}, {"grid": {"g": [2]}}, 2),
        ({"grid": {"g": [3]}}, {"grid": {"g": [2]}}, 3),
        ({"grid": {"g": [3]}, "paper": {"grid": {"g": [4]}}}, {"grid": {"g": [2]}}, 4),
        ({"code": {"grid": {"g": [4]}}}, {}, 1),
        ({"grid": {}}, {}, None),  # an empty grid is one
        ({"line": True}, {"grid": {"g": [2]}}, None),  # a reference line is not tuned
        ({"line": True, "grid": {"g": [3]}}, {}, 3),  # but by its own
    ],
)
def test_which_grid_counts(row: Any, variant: Any, expected: int | None) -> None:
    found = spec(
        grid={"g": [1]}, select=SELECT, variants={"paper": variant},
        rows={"A": {"method": "bome", **row}},
    )  # fmt: skip
    wanted: list[dict[str, Any]] = [{} if expected is None else {"g": expected}]
    assert chosen(list(points(found, BOOK, "short"))) == wanted


def test_every_point_of_a_grid_and_a_budgets_part_of_it() -> None:
    budgets = {
        "smoke": {"minutes": 1.0, "grid": {"b": [9], "other": [1]}},
        "short": {"minutes": 1.0},
        "full": {"minutes": 1.0, "grid": {}},
    }
    found = spec(
        grid={"a": [1, 2], "b": [3, 4]}, select=SELECT, budgets=budgets, variants={"paper": {}},
        rows={"A": {"method": "bome"}},
    )  # fmt: skip
    pairs = [{"a": a, "b": b} for a in (1, 2) for b in (3, 4)]
    assert chosen(list(points(found, BOOK, "short"))) == pairs
    assert chosen(list(points(found, BOOK, "smoke"))) == [{"b": 9}]
    assert chosen(list(points(found, BOOK, "full"))) == [{}]


def test_each_point_of_the_rest_is_tried_with_own_and_with_drawn_values() -> None:
    """The same ones for every row; a row whose grid lacks a drawn setting goes without."""
    drawn = {"T": [1, 10, 100, 1000], "eta": [0.25, 0.5, 1.0]}
    grid = {"lr": [float(i) for i in range(40)], **drawn}
    found = spec(
        select=SELECT, variants={"paper": {}},
        budgets={"short": {"minutes": 1.0, "drawn": ["T", "eta"]}, "full": {"minutes": 1.0}},
        rows={
            "A": {"method": "bome", "set": {"T": 10, "eta": 0.5}, "grid": grid},
            "B": {"method": "bome", "set": {"T": 7, "eta": 0.5}, "grid": grid},
            "C": {"method": "bome", "set": {"T": 7}, "grid": {"lr": [1.0]}},
        },
    )  # fmt: skip
    some = [p for p in points(found, BOOK, "short") if p.row == "A"]
    own, other = {"T": 10, "eta": 0.5}, []
    for rate in grid["lr"]:
        tried = [p for p in chosen(some) if p["lr"] == rate]
        assert tried[0] == {"lr": rate, **own}
        other += tried[1:]
        assert all(p["T"] in drawn["T"] and p["eta"] in drawn["eta"] for p in tried)
        assert len(tried) == 2 or tried == tried[:1]
    assert len({(p["T"], p["eta"]) for p in other}) == 11  # all pairs but the row's own
    assert 40 > len(other) > 30  # one in twelve draws the row's own
    beside = chosen([p for p in points(found, BOOK, "short") if p.row == "B"])
    assert [p for p in beside if p["T"] != 7 and (p["T"], p["eta"]) != (10, 0.5)] == other
    assert chosen([p for p in points(found, BOOK, "short") if p.row == "C"]) == [{"lr": 1.0}]
    whole = [p for p in points(found, BOOK, "full") if p.row == "A"]
    assert len(whole) == 40 * 4 * 3
    without = found.model_copy(
        update={"rows": {"B": found.rows["B"].model_copy(update={"set": {}})}}
    )
    with pytest.raises(BadSetting, match=r"rows\.B: T is drawn, .* write set: {T: \.\.\.}"):
        list(points(without, BOOK, "short"))


def test_which_rows_run() -> None:
    rows = {
        "all": {}, "code": {"only": ["code"]}, "short": {"at": ["short"]},
        "full": {"at": ["full", "smoke"]}, "later": {"pending": "not built"},
    }  # fmt: skip
    found = spec(
        rows={name: {"method": "bome", **row} for name, row in rows.items()},
        budgets={"short": {"minutes": 1.0}, "full": {"minutes": 1.0}},
    )
    assert [(p.variant, p.row) for p in points(found, BOOK, "short")] == [
        ("paper", "all"), ("paper", "short"), ("code", "all"), ("code", "code"), ("code", "short"),
    ]  # fmt: skip
    assert [(p.variant, p.row) for p in points(found, BOOK, "full")] == [
        ("paper", "all"), ("paper", "full"), ("code", "all"), ("code", "code"), ("code", "full"),
    ]  # fmt: skip


# files


def test_a_spec_over_a_spec_joins_mappings_and_replaces_all_else(tmp_path: Path) -> None:
    (tmp_path / "_deep.yaml").write_text("{a: 1, b: {c: 2, d: [1, 2], g: {h: 1}}, z: 0}")
    (tmp_path / "_base.yaml").write_text("{extends: _deep, b: {c: 3, e: 4}, x: null}")
    top = tmp_path / "top.yaml"
    top.write_text("{extends: _base, b: {d: [5], g: 6}, a: {k: 1}, y: 2}")
    assert books._read_extended(top) == {
        "a": {"k": 1}, "b": {"c": 3, "d": [5], "g": 6, "e": 4}, "z": 0, "x": None, "y": 2,
    }  # fmt: skip
    assert list(books._read_extended(top)) == ["a", "b", "z", "x", "y"]  # the order of the base


@pytest.mark.parametrize("content", ["{extends: top}", "{extends: _other}"])
def test_specs_that_extend_one_another_are_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "_other.yaml").write_text("{extends: top}")
    top = tmp_path / "top.yaml"
    top.write_text(content)
    with pytest.raises(BadSetting, match=r"\.yaml: extends: top extends this file"):
        books._read_extended(top)


def test_lists_that_are_pairs_and_files_that_are_not_there(tmp_path: Path) -> None:
    content = {"x_range": [1, 2], "a": [{"goal": [0, 1]}, {"goal": None}], "b": [3, 4]}
    assert books._with_tuples(content) == {
        "x_range": (1, 2), "a": [{"goal": (0, 1)}, {"goal": None}], "b": [3, 4],
    }  # fmt: skip
    with pytest.raises(BadSetting, match=r"none\.yaml: No such file"):
        books.read_yaml(tmp_path / "none.yaml")
    assert books.format_path(Path.cwd() / "a" / "b.yaml") == "a/b.yaml"
    assert books.format_path(tmp_path / "b.yaml") == str(tmp_path / "b.yaml")


def test_books_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match=r"there is no <paper>/<artifact>\.yaml in it"):
        books.load_book(tmp_path)
    with pytest.raises(BadSetting, match="nowhere: there is no such folder"):
        books.load_book(tmp_path / "nowhere")


def test_a_folder_may_have_names_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "metrics.yaml").write_text("{any: {}, toy: {loss: {label: l}}}")
    (tmp_path / "methods.yaml").write_text('{bome: {label: B, colour: "#000000"}}')
    (tmp_path / "p").mkdir()
    content = copy.deepcopy(GOOD) | {"rows": {"A": {"method": "bome"}}}
    (tmp_path / "p" / "a.yaml").write_text(str(content))
    (tmp_path / "p" / "_b.yaml").write_text("{}")
    book = books.load_book(tmp_path)
    assert list(book.artifacts) == ["p/a"]
    assert book.artifacts["p/a"].id == "p/a"
    assert book.artifacts["p/a"].file == tmp_path / "p" / "a.yaml"
    assert (book.metrics["toy"]["loss"].label, book.methods["bome"].label) == ("l", "B")
    (tmp_path / "methods.yaml").write_text("{bome: {label: B}}")
    with pytest.raises(BadSetting, match=r"methods\.yaml: bome\.colour: is missing"):
        books.load_book(tmp_path)
    (tmp_path / "metrics.yaml").write_text("{any: {}, toy: {loss: {label: 3}}}")
    with pytest.raises(BadSetting, match=r"metrics\.yaml: toy\.loss\.label=3: input should be"):
        books.load_book(tmp_path)


def test_the_number_of_a_combination_draws_its_values() -> None:
    """In the order in which the budget names them: recorded searches have these points."""
    grid = {"lr": [1.0, 2.0, 3.0], "T": [1, 10, 100, 1000], "eta": [0.25, 0.5, 1.0]}
    own = {"T": 7, "eta": 0.5}
    found = spec(
        select=SELECT, variants={"paper": {}},
        budgets={"short": {"minutes": 1.0, "drawn": ["T", "eta"]}},
        rows={"A": {"method": "bome", "set": own, "grid": grid}},
    )  # fmt: skip
    expected = []
    for k, (T, eta) in enumerate([(1000, 0.5), (10, 1.0), (1, 0.25)]):
        numbers = Random(k)
        assert (numbers.choice(grid["T"]), numbers.choice(grid["eta"])) == (T, eta)
        expected += [{"lr": k + 1.0, **own}, {"lr": k + 1.0, "T": T, "eta": eta}]
    assert chosen(list(points(found, BOOK, "short"))) == expected
