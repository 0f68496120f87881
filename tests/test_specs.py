"""This project's own specs are right, and a wrong one is refused with file and field."""

import copy
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from bench.core.draw import generator
from bench.core.settings import BadSetting, build
from bench.core.task import Best, Context
from bench.reproduce import latex, tables
from bench.reproduce import plan as plans
from bench.reproduce.book import find_artifacts, load_book
from bench.reproduce.highlights import read_highlights
from bench.reproduce.points import points
from bench.reproduce.run_names import Names
from bench.reproduce.schema import BUDGETS, VARIANTS, Budget
from bench.runs.launch import complete
from tests.composed import composed, composer
from tests.conftest import ROOT

BOOK = load_book()

GOOD: dict[str, Any] = {
    "title": "t", "source": "s", "task": "toy_minimax",
    "grid": {"algorithm.T": [1, 2]},
    "select": {"metric": "distance", "best": "lowest"},
    "variants": {"paper": {}, "code": {"set": {"task.variant": "code"}}},
    "budgets": {"smoke": {"minutes": 1}},
    "columns": ["distance"],
    "figure": {"metrics": ["distance"]},
    "rows": {
        "BOME": {"method": "bome", "published": {"distance": {"mean": 0.1, "se": 0.01, "n": 5}}},
        "GDA": {"method": "gda", "grid": {}, "only": ["paper"]},
    },
    "claims": {
        "near": {
            "kind": "converges", "by": "us", "text": "c", "rows": ["BOME"], "metric": "distance",
            "within": 1.0,
        },
    },
}  # fmt: skip

Change = Callable[[dict[str, Any]], Any]
WRONG: dict[str, tuple[Change, str]] = {
    "unknown metric": (lambda s: s["columns"].append("acuracy"), "columns.1: acuracy: no such"),
    "unknown metric of a claim": (
        lambda s: s["claims"]["near"].update(metric="distanse"),
        "claims.near.metric: distanse: no such metric of toy_minimax; did you mean distance?",
    ),
    "claim on a missing row": (
        lambda s: s["claims"]["near"].update(rows=["Bome"]),
        "claims.near.rows: Bome: no such row; there is BOME, GDA",
    ),
    "claim on a row that the variant lacks": (
        lambda s: s["claims"]["near"].update(rows=["GDA"]),
        "claims.near.variants: GDA is not in the variant code",
    ),
    "published value is no number": (
        lambda s: s["rows"]["BOME"]["published"]["distance"].update(mean="0.1x"),
        "rows.BOME.published.distance.mean=0.1x: input should be a valid number",
    ),
    "published error is negative": (
        lambda s: s["rows"]["BOME"]["published"]["distance"].update(se=-1.0),
        "rows.BOME.published.distance.se=-1.0: input should be greater than or equal to 0",
    ),
    "published value of an unknown metric": (
        lambda s: s["rows"]["BOME"]["published"].update(dist={"mean": 1.0}),
        "rows.BOME.published: dist: no such metric",
    ),
    "within what is not published": (
        lambda s: s["claims"].update(
            w={"kind": "within_published", "by": "us", "text": "c", "rows": ["BOME"], "metric": "v",
               "tolerance": 1.0}
        ),
        "claims.w.rows: BOME has no published value of v",
    ),
    "unknown kind of claim": (
        lambda s: s["claims"]["near"].update(kind="converge"),
        "claims.near: input tag 'converge'",
    ),
    "unknown field": (lambda s: s["rows"]["BOME"].update(methd="x"), "rows.BOME.methd=x: extra"),
    "missing field": (lambda s: s.pop("title"), "title: is missing"),
    "unknown method": (lambda s: s["rows"]["BOME"].update(method="boem"), "rows.BOME.method: boem"),
    "unknown task": (lambda s: s.update(task="toy_minmax"), "task: toy_minmax: no such task"),
    "unknown budget": (lambda s: s["budgets"].update(big={"minutes": 1}), "budgets"),
    "no seeds": (lambda s: s["budgets"]["smoke"].update(seeds=0), "budgets.smoke.seeds=0"),
    "a grid without a rule": (lambda s: s.pop("select"), "select: rows.BOME has a grid"),
    "first without a target": (
        lambda s: s["claims"].update(
            f={"kind": "first", "by": "us", "text": "c", "rows": ["BOME"], "than": ["BOME"],
               "metric": "distance", "on": "calls"}
        ),
        "claims.f: write either value: or gain:",
    ),
}  # fmt: skip


def written(folder: Path, content: dict[str, Any] | str, name: str = "fig1") -> Path:
    file = folder / "mine" / f"{name}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(
        content if isinstance(content, str) else yaml.safe_dump(content, sort_keys=False)
    )
    return folder


def test_the_example_is_right(tmp_path: Path) -> None:
    book = load_book(written(tmp_path, GOOD))
    every = list(points(book.artifacts["mine/fig1"].spec, book, "smoke"))
    assert [(p.variant, p.row, dict(p.chosen)) for p in every] == [
        ("paper", "BOME", {"algorithm.T": 1}),
        ("paper", "BOME", {"algorithm.T": 2}),
        ("paper", "GDA", {}),
        ("code", "BOME", {"algorithm.T": 1}),
        ("code", "BOME", {"algorithm.T": 2}),
    ]
    assert dict(every[3].settings)["task.variant"] == "code"


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_spec_is_refused_with_file_and_field(case: str, tmp_path: Path) -> None:
    change, message = WRONG[case]
    content = copy.deepcopy(GOOD)
    change(content)
    with pytest.raises(BadSetting) as error:
        load_book(written(tmp_path, content))
    assert str(error.value).startswith(f"{tmp_path}/mine/fig1.yaml: {message}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("title: a\ntitle: b\n", "line 2: title is there twice"),
        ("rows:\n  A: {method: bome}\n  A: {method: bome}\n", "line 3: A is there twice"),
        ("title: [\n", "while parsing"),
        ("title: " + "[" * 100_000, "nest(ed too deeply|ing depth)"),
    ],
    ids=["a key", "a row", "broken", "deep"],
)
def test_a_key_given_twice_and_broken_yaml_are_refused(
    text: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(BadSetting, match=message):
        load_book(written(tmp_path, text))


def test_a_spec_can_be_laid_over_another(tmp_path: Path) -> None:
    written(tmp_path, GOOD, "_base")
    book = load_book(
        written(tmp_path, {"extends": "_base", "title": "other", "rows": {"GDA": {"line": True}}})
    )
    (only,) = book.artifacts.values()  # _base is none
    assert only.spec.title == "other"
    assert only.spec.rows["GDA"].line
    assert only.spec.rows["GDA"].method == "gda"
    for name in ("fig1", "_none"):
        with pytest.raises(BadSetting, match=r"mine/fig1\.yaml: extends: "):
            load_book(written(tmp_path, {"extends": name}))


def test_list_refuses_a_wrong_spec_in_one_line(tmp_path: Path) -> None:
    content = copy.deepcopy(GOOD)
    content["columns"] = ["acuracy"]
    command = [sys.executable, "-m", "bench.reproduce", "list", "--specs"]
    done = subprocess.run(
        [*command, str(written(tmp_path, content))], capture_output=True, text=True, cwd=ROOT
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "mine/fig1.yaml: columns.0: acuracy: no such metric of toy_minimax" in done.stderr


def test_an_unknown_artifact_is_refused_and_a_paper_is_all_of_its_own() -> None:
    with pytest.raises(BadSetting, match="did you mean bome/fig1_coreset"):
        find_artifacts(BOOK, ["bome/fig1_corset"])
    assert {a.id.split("/")[0] for a in find_artifacts(BOOK, ["bome"])} == {"bome"}
    assert len(find_artifacts(BOOK, [])) == len(BOOK.artifacts)


ONE = {  # theory, or no code was released
    "f2obo/example42",
    "f2obo/fig1",
    "f2obo/table1",
    "f2obo/table2",
    "f2obo/table3",
    "f2obo/table3_choices",
    "ncgs/fig1",
    "ncgs/fig2",
    "ncgs/fig3",
    "ncgs/table1",
    "ncgs/table2",
    "ncgs/table3",
    "peers/breast_cancer",
    "peers/hyper_cleaning",
    "peers/ijcnn1",
    "peers/quadratic",
    "stocbio/memory",
    "stocbio/omniglot",
    "bome/tuning_cifar",
    "bome/tuning_pmnist",
    "stocbio/table1",
    "stocbio/table1_logistic",
    "stocbio/table2",
}
RELEASED = {"stocbio/mnist_released"}  # settings that only the code has


@pytest.mark.parametrize("artifact", BOOK.artifacts)
def test_every_spec_has_its_variants_and_every_point_of_a_row_is_another_run(
    artifact: str, tmp_path: Path
) -> None:
    entry = BOOK.artifacts[artifact]
    variants = {**dict.fromkeys(ONE, ("paper",)), **dict.fromkeys(RELEASED, ("code",))}
    assert tuple(entry.spec.variants) == variants.get(artifact, VARIANTS)
    names = Names(tmp_path)
    names.compose = composer()  # it keeps what Hydra has composed for other artifacts
    for budget in entry.spec.budgets:
        rows: dict[tuple[str, str], list[plans.Point]] = {}
        for point in points(entry.spec, BOOK, budget):
            rows.setdefault((point.variant, point.row), []).append(point)
        for own in rows.values():
            assert len({str(point.chosen) for point in own}) == len(own)
        ends = [(p, 0) for own in rows.values() for p in (own[0], own[-1])[: len(own)]]
        names.ensure(ends, entry.file)
        for row in rows:
            named = [names.get(p, seed) for p, seed in ends if (p.variant, p.row) == row]
            assert len(set(named)) == len(named) > 0


@pytest.mark.parametrize("task", [t for t in BOOK.metrics if t != "any"])
def test_the_named_metrics_are_those_that_the_task_measures(task: str) -> None:
    small = {
        "hyper_cleaning": ["task.data.train=20", "task.pretraining.steps=0"],
        "newsgroups": ["task.source=digits", "task.pretraining.steps=0"],
        "online_newsgroups": ["task.source=digits"],
        "few_shot": ["task.episodes=1", "task.filters=2", "task.watched=1", "task.final=1"],
    }.get(task, [])
    cfg = composed(f"task={task}", *small)
    config = complete(OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True))
    built = build(config["task"], Context())
    start = built.init(generator(0, "init"))
    measured = built.evaluate(*start, 0)
    if built.selection:
        row = {key: float(value) for key, value in measured.items()}
        measured |= built.selection.measure(Best(0.0, 0, *start), row)
    totals = built.tally.names if built.tally else ()
    entries = built.ledger.read(built.ledger.empty) if built.ledger else {}
    assert set(BOOK.metrics[task]) == {*measured, *totals, *entries}


def test_methods_are_told_apart_by_colour_and_dash_and_name_real_algorithms() -> None:
    pending = {r.method for a in BOOK.artifacts.values() for r in a.spec.rows.values() if r.pending}
    for name, method in BOOK.methods.items():
        file = ROOT / "conf" / "algorithm" / f"{method.algorithm or name}.yaml"
        assert file.is_file() or name in pending
    for artifact in BOOK.artifacts.values():
        styles = {
            row.method: (BOOK.methods[row.method].colour, BOOK.methods[row.method].dash)
            for row in artifact.spec.rows.values()
        }
        assert len(set(styles.values())) == len(styles), artifact.id


def test_every_word_of_the_specs_can_stand_in_a_latex_table() -> None:
    """The words are labels, rows, claims, and the symbols that a statistic is written with."""
    words = ["log₁₀ |a| − 2 × b ≤ 0.5 … ∞ ± –"]
    for group in BOOK.metrics.values():
        words += [tables.column_head(metric) for metric in group.values()]
    for artifact in BOOK.artifacts.values():
        words += artifact.spec.rows
        for claim in artifact.spec.claims.values():
            words += [claim.text, claim.source or "", *(cause.text for cause in claim.why.values())]
    assert [word for word in words if not latex.escape_tex(word).isascii()] == []


def test_budgets_stand_in_order() -> None:
    for artifact in BOOK.artifacts.values():
        order: list[Budget] = [b for b in BUDGETS if b in artifact.spec.budgets]
        assert list(artifact.spec.budgets) == order


SEEDS = re.compile(
    r"\b(one|two|three|four|five|six|seven|eight|nine|ten|\w+een|\d+) (seed|start)s?\b"
)


def test_no_cause_and_no_finding_says_how_many_seeds_there_were() -> None:
    """The record beside it says that, and seeds are added to records."""
    assert SEEDS.search("at seven seeds it is not")
    found = read_highlights(None)
    words = [h.finding for h in found] + [h.why.text for h in found if h.why]
    for artifact in BOOK.artifacts.values():
        words += [c.text for claim in artifact.spec.claims.values() for c in claim.why.values()]
    assert [text for text in words if SEEDS.search(text)] == []
