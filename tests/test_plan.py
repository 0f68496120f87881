"""Which runs an artifact takes, which are there, and which grid point a row shows, by hand."""

from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from bench.core.settings import BadSetting
from bench.reproduce import plan as plans
from bench.reproduce import run_names
from bench.reproduce.plan import Plan, PlannedRow, PlannedRun, Run
from bench.reproduce.points import Point, points
from bench.reproduce.run_names import Names
from bench.reproduce.specs import Select
from bench.runs import name as naming
from bench.runs.folder import RunFolder
from bench.runs.history import as_line
from bench.runs.launch import complete
from tests.planned import BOOK, Known, artifact, finish, made

POINT = Point("paper", "A", (("task", "t"), ("run.steps", 5)), (("algorithm.lr", 0.1),))


def run(summary: dict[str, Any] | None, root: Path = Path(), seed: int = 0) -> Run:
    name = f"t/a/{seed}"
    return Run(PlannedRun(POINT, seed, name), RunFolder(root, name), summary)


def test_a_jobs_command_line() -> None:
    """Settings that come later count; the grid's come after the others, and the seed comes last."""
    settings = (("task", "t"), ("seed", 9), ("task.words", [1, 2]), ("a.lr", 0.5))
    job = PlannedRun(Point("paper", "A", settings, (("a.lr", 0.25), ("b", None))), 3, "t/a/x")
    assert job.overrides == ("task=t", "seed=3", "task.words=[1,2]", "a.lr=0.25", "b=null")
    assert job.line == "bench task=t seed=3 'task.words=[1,2]' a.lr=0.25 b=null"
    assert job.again is False


PLACES = (
    "spec",
    "variant",
    "row",
    "own",
    "budget",
    "variant's budget",
    "row's budget",
    "own budget",
)


@pytest.mark.parametrize("last", range(len(PLACES)))
def test_of_the_places_that_give_a_setting_the_later_counts(last: int) -> None:
    """The places up to one of them give it, each its number; "own" is of the row's variant."""

    def number(place: str) -> dict[str, Any]:
        n = PLACES.index(place)
        return {"task.n": n} if n <= last else {}

    def part(here: str, budget: str) -> dict[str, Any]:
        return {"set": number(here), "budgets": {"short": number(budget)}}

    row = {"method": "bome", "set": number("row"), "budgets": {"short": number("row's budget")}}
    spec = artifact(
        set=number("spec"),
        grid=None,
        variants={"paper": {}, "code": part("variant", "variant's budget")},
        rows={"A": {**row, "code": part("own", "own budget")}},
        budgets={"short": {"minutes": 1.0, "set": number("budget")}},
    ).spec
    paper, code = points(spec, BOOK, "short")
    assert dict(code.settings)["task.n"] == last
    others = [PLACES.index(place) for place in ("spec", "row", "budget", "row's budget")]
    assert dict(paper.settings)["task.n"] == max(n for n in others if n <= last)


def test_done_failed_or_missing() -> None:
    states = {None: "missing", "done": "done", "diverged": "diverged"}
    for status, word in states.items():
        one = run(None if status is None else {"status": status})
        assert plans.run_status(one) == word
        assert (one.done, one.failed) == (word == "done", word == "diverged")


def test_the_last_value_of_a_metric() -> None:
    last = {"loss": 0.5, "gap": None, "calls/grad_f": 3, "calls/grad_g": 4, "samples/grad_g": 64}
    one = run({"status": "done", "last": last})
    found = [one.last(name) for name in ("loss", "gap", "other", "calls", "calls/lmo")]
    assert found == [0.5, float("inf"), None, 7.0, 0.0]
    assert run(None).last("loss") is None
    assert run(None).last("calls") is None


def test_peak_memory_is_where_the_tensors_were() -> None:
    one = run({"last": {}, "peak_memory_mb": {"process": 900}})
    assert one.last("peak_memory_mb") == 900.0
    two = run({"last": {}, "peak_memory_mb": {"process": 900, "gpu": 70}})
    assert two.last("peak_memory_mb") == 70.0


@pytest.mark.parametrize(
    ("row", "metric", "expected"),
    [
        ({"loss": 2}, "loss", 2.0),
        ({"loss": None}, "loss", float("inf")),
        ({}, "loss", None),
        ({}, "calls/grad_f", 0.0),  # what is not counted was never asked for
        ({}, "samples/grad_f", 0.0),
        ({}, "info/cosine", None),
        ({"calls/grad_f": 2, "calls/grad_g": 3, "samples/grad_f": 50, "step": 9}, "calls", 5.0),
        ({"step": 9}, "calls", 0.0),
        ({"calls/grad_f": 2}, "calls/grad_f", 2.0),
    ],
)
def test_a_measured_value(row: dict[str, Any], metric: str, expected: float | None) -> None:
    assert plans.metric_value(row, metric) == expected


def test_histories_of_lanes_have_no_times(tmp_path: Path) -> None:
    """The seconds of a run that shared its process are only shares; those of any other run are
    its own."""
    rows = [{"step": i, "seconds": 1.5 * i, "cpu_seconds": 2.0 * i, "loss": 0.5} for i in (0, 1)]
    (tmp_path / "t/a/0").mkdir(parents=True)
    (tmp_path / "t/a/0" / "history.jsonl").write_text("".join(map(as_line, rows)))
    bare = [{"step": i, "loss": 0.5} for i in (0, 1)]
    assert run(None, tmp_path).history == rows
    assert run({"status": "done"}, tmp_path).history == rows
    assert run({"status": "done", "amortised": False}, tmp_path).history == rows
    assert run({"status": "done", "amortised": True}, tmp_path).history == bare


# plans


def names_of(runs: Iterable[Run]) -> list[str]:
    return [one.planned.name for one in runs]


def test_the_seed_that_chooses_is_not_judged() -> None:
    """Where nothing is chosen, no seed is kept for that."""
    assert list(plans.seeds(artifact(), "short")) == [1, 2, 3]
    assert list(plans.seeds(artifact(), "smoke")) == [1]
    plain = artifact(select=None, grid=None)
    assert list(plans.seeds(plain, "short")) == [0, 1, 2]
    assert names_of(made(Path()).rows[0].tried) == [f"paper/A/{lr}-0" for lr in (0.1, 0.2, 0.3)]


TWICE = {"short": {"minutes": 1.0, "seeds": 3, "choosing_seeds": 2}}


def test_several_seeds_that_choose_are_not_judged(tmp_path: Path) -> None:
    """Every point is tried at each of them; a row without a choice has the same seeds."""
    more = artifact(budgets=TWICE)
    assert list(plans.seeds(more, "short")) == [2, 3, 4]
    assert plans.count_runs(more, BOOK, "short") == 2 * (2 * 3 + 3 + 3) + 2 * 3 + 3
    found = made(tmp_path, budgets=TWICE)
    tried = [f"paper/A/{lr}-{seed}" for lr in (0.1, 0.2, 0.3) for seed in (0, 1)]
    assert names_of(found.rows[0].tried) == tried
    assert names_of(found.rows[1].runs) == [f"paper/L/-{seed}" for seed in (2, 3, 4)]
    assert found.count == plans.count_runs(more, BOOK, "short")


def test_the_mean_over_the_seeds_that_choose_decides(tmp_path: Path) -> None:
    """Of the paper's points .1 has the best value, .3 the least bad one, and .2 the best mean. Of
    the code's .1 has the best mean, and diverges once."""
    ends = {"0.1": (0.0, 9.0), "0.2": (2.0, 5.0), "0.3": (4.0, 4.0)}
    for rate, losses in ends.items():
        for seed, loss in enumerate(losses):
            finish(tmp_path, f"paper/A/{rate}-{seed}", loss)
            bad = "diverged" if (rate, seed) == ("0.1", 1) else "done"
            finish(tmp_path, f"code/A/{rate}-{seed}", min(loss, 5.0), bad)
    found = {row.variant: row for row in made(tmp_path, budgets=TWICE).rows if row.name == "A"}
    for row in found.values():
        assert row.chosen is not None
        assert dict(row.chosen.chosen) == {"algorithm.lr": 0.2}
    assert names_of(found["paper"].runs) == [f"paper/A/0.2-{seed}" for seed in (2, 3, 4)]
    (tmp_path / "code/A/0.3-1/summary.json").unlink()
    (row,) = (r for r in made(tmp_path, budgets=TWICE).rows if (r.variant, r.name) == ("code", "A"))
    assert row.chosen is None


MORE = {"short": {"minutes": 1.0, "seeds": 3, "more_seeds": {"L": 5}}}


def test_a_row_may_have_more_seeds_than_the_others(tmp_path: Path) -> None:
    """Several rows are judged with those that all of them have."""
    more = artifact(budgets=MORE)
    counts = [len(plans.seeds(more, "short", rows)) for rows in ((), "A", "L", "AL", "LL")]
    assert counts == [3, 3, 5, 3, 5]
    assert plans.count_runs(more, BOOK, "short") == 2 * (3 + 3 + 5) + 3 + 3
    rows = {row.name: names_of(row.runs) for row in made(tmp_path, budgets=MORE).rows[:3]}
    assert rows["L"] == [f"paper/L/-{seed}" for seed in range(1, 6)]
    unknown = {"short": {"minutes": 1.0, "seeds": 3, "more_seeds": {"A": 5}}}
    assert made(tmp_path, budgets=unknown).later == 5 + 5 + 3  # of A in two variants, and of B


def test_how_many_runs_there_are_in_all() -> None:
    """At short A tries 3 points and has 3 seeds, and L has 3, in both variants; B has 3 + 3 in
    one."""
    assert plans.count_runs(artifact(), BOOK, "short") == 2 * (3 + 3 + 3) + 3 + 3
    assert plans.count_runs(artifact(), BOOK, "smoke") == 2 * (3 + 1 + 1)
    assert plans.count_runs(artifact(select=None, grid=None), BOOK, "short") == 5 * 3


def test_before_anything_is_measured(tmp_path: Path) -> None:
    """Every grid point is planned at the seed that chooses, and a row with nothing to choose at
    all others."""
    found = made(tmp_path)
    assert [(row.variant, row.name) for row in found.rows] == [
        ("paper", "A"), ("paper", "L"), ("paper", "B"), ("code", "A"), ("code", "L"),
    ]  # fmt: skip
    first, line = found.rows[:2]
    assert names_of(first.tried) == [f"paper/A/{lr}-0" for lr in (0.1, 0.2, 0.3)]
    assert (first.chosen, first.runs) == (None, ())
    assert line.tried == ()
    assert names_of(line.runs) == ["paper/L/-1", "paper/L/-2", "paper/L/-3"]
    assert line.chosen == line.runs[0].planned.point
    assert found.rows[3].tried[1].folder == RunFolder(tmp_path, "code/A/0.2-0")
    assert found.later == 9  # three rows with three seeds each
    assert len(found.runs) == len(found.missing) == 3 * 3 + 2 * 3
    assert found.count == plans.count_runs(artifact(), BOOK, "short") == 24
    assert (found.budget, found.artifact.id) == ("short", "p/a")


def test_the_chosen_point_is_made_at_the_other_seeds(tmp_path: Path) -> None:
    """Its run at the seed that chose it is not among the runs of the row."""
    for lr, loss in {0.1: 0.5, 0.2: 0.25, 0.3: 0.75}.items():
        finish(tmp_path, f"paper/A/{lr}-0", loss)
    finish(tmp_path, "paper/A/0.2-2", 0.9)
    found = made(tmp_path)
    row = found.rows[0]
    assert row.chosen is not None
    assert dict(row.chosen.chosen) == {"algorithm.lr": 0.2}
    assert names_of(row.runs) == [f"paper/A/0.2-{seed}" for seed in (1, 2, 3)]
    assert [one.planned.seed for one in row.runs] == [1, 2, 3]
    assert [plans.run_status(one) for one in row.runs] == ["missing", "done", "missing"]
    assert row.runs[1].last("loss") == 0.9
    assert found.later == 6
    assert (len(found.runs), len(found.missing), found.count) == (18, 14, 24)


@pytest.mark.parametrize(
    ("process", "undisturbed"),
    [
        ({"others_cores": 0.0}, True),
        ({"others_cores": 0.25}, True),
        ({"others_cores": 0.251}, False),
        ({"others_cores": 3.0}, False),
        ({"others_cores": None}, False),
        ({}, False),
        (None, False),
    ],
)
def test_whether_a_runs_times_tell_something(process: Any, undisturbed: bool) -> None:
    one = run({"status": "done", **({} if process is None else {"process": process})})
    assert one.undisturbed is undisturbed
    assert not run(None).undisturbed


def test_a_plan_asks_for_the_names_of_the_runs_that_it_has(tmp_path: Path) -> None:
    """A grid of three at the seed that chooses, then its best point at the others."""
    names: Any = Known(known=False)
    plans.make_plan(artifact(), BOOK, "short", tmp_path, names)
    assert names.file == Path("p/a.yaml")
    tried = [f"{row}/{lr}-0" for row in ("paper/A", "paper/B", "code/A") for lr in (0.1, 0.2, 0.3)]
    lines = [f"{variant}/L/-{seed}" for variant in ("paper", "code") for seed in (1, 2, 3)]
    assert sorted(names.asked) == sorted(tried + lines)
    for lr, loss in ((0.1, 0.5), (0.2, 0.3), (0.3, 0.4)):
        finish(tmp_path, f"paper/A/{lr}-0", loss)
    later: Any = Known(known=False)
    plans.make_plan(artifact(), BOOK, "short", tmp_path, later)
    best = [f"paper/A/0.2-{seed}" for seed in (1, 2, 3)]
    assert sorted(later.asked) == sorted(tried + lines + best)


LANE = {"amortised": True}


def test_a_run_made_in_lanes_counts_without_its_times(tmp_path: Path) -> None:
    finish(tmp_path, "paper/L/-1", 0.5, **LANE)
    finish(tmp_path, "paper/L/-2", 0.5, amortised=False)
    first, second, _ = made(tmp_path).rows[1].runs
    assert first.summary is not None
    assert first.summary["last"] == {"step": 5, "loss": 0.5, "amortised_seconds": 8.0}
    assert (first.summary["status"], first.summary["amortised"]) == ("done", True)
    assert (first.planned.again, first.planned.name, first.planned.seed) == (False, "paper/L/-1", 1)
    assert first.folder == RunFolder(tmp_path, "paper/L/-1")
    assert second.summary is not None
    assert second.summary["last"]["seconds"] == 8.0


def test_a_run_made_in_lanes_is_made_again_where_times_are_asked_for(tmp_path: Path) -> None:
    finish(tmp_path, "paper/L/-1", 0.5, **LANE)
    finish(tmp_path, "paper/L/-2", 0.5)
    found = made(tmp_path, columns=["loss", "seconds"])
    first, second, third = found.rows[1].runs
    assert [one.planned.again for one in (first, second, third)] == [True, False, False]
    assert first.summary is None
    assert (first.planned.name, first.planned.seed) == ("paper/L/-1", 1)
    assert first.folder == RunFolder(tmp_path, "paper/L/-1")
    assert second.done


def test_a_lanes_folder_does_not_hide_the_run_of_a_record(tmp_path: Path) -> None:
    """Another artifact, which reads no times, may have made it in lanes below the same root."""
    names: Any = Known()
    finish(tmp_path, "paper/L/-1", 0.5)
    known = made(tmp_path, columns=["loss", "seconds"]).rows[1].runs[0]
    finish(tmp_path / "other", "paper/L/-1", 0.5, **LANE)
    timed = artifact(columns=["loss", "seconds"])
    found = plans.make_plan(
        timed, BOOK, "short", tmp_path / "other", names, recorded={"paper/L/-1": known}
    )
    assert found.rows[1].runs[0].summary == known.summary


def test_a_run_beside_others_is_made_again_where_memory_is_asked_for(tmp_path: Path) -> None:
    """The peak memory of its process may be that of an earlier run."""
    for seed, earlier in ((1, 0), (2, 2)):
        finish(tmp_path, f"paper/L/-{seed}", 0.5, process={"earlier_runs": earlier})
    finish(tmp_path, "paper/L/-3", 0.5)  # of before this was kept: it had its own process
    assert [one.planned.again for one in made(tmp_path).rows[1].runs] == [False] * 3
    found = made(tmp_path, columns=["loss", "peak_memory_mb"])
    assert [one.planned.again for one in found.rows[1].runs] == [False, True, False]
    assert [one.done for one in found.rows[1].runs] == [True, False, True]


CLAIM = {
    "kind": "below",
    "by": "paper",
    "text": "c",
    "rows": ["A"],
    "than": ["B"],
    "metric": "loss",
}


@pytest.mark.parametrize(
    ("changes", "timed"),
    [
        ({}, False),
        ({"figure": {"metrics": ["loss"], "axes": ["step", "seconds", "cpu_seconds"]}}, False),
        ({"figure": {"metrics": ["loss"], "axes": ["seconds", "step"]}}, True),
        ({"figure": {"metrics": ["loss"], "axes": ["cpu_seconds"]}}, True),
        ({"figure": {"metrics": ["seconds"]}}, True),
        ({"columns": ["loss", "cpu_seconds"]}, True),
        (
            {"columns": ["loss", "seconds"], "budgets": {"smoke": {"minutes": 1, "lanes": True}}},
            False,
        ),
        (
            {
                "figure": {"metrics": ["seconds"]},
                "budgets": {"smoke": {"minutes": 1, "lanes": True}},
            },
            True,
        ),
        ({"set": {"run.seconds": 3}}, True),
        ({"set": {"run.cpu_seconds": 3}}, True),
        ({"set": {"run.steps": 3}}, False),
        ({"claims": {"c": {**CLAIM, "metric": "seconds"}}}, True),
        ({"claims": {"c": CLAIM}}, False),
        ({"note": "times in seconds"}, False),
    ],
)
def test_whether_times_are_asked_for(changes: dict[str, Any], timed: bool) -> None:
    assert plans.needs_times(artifact(**changes).spec, "smoke") is timed


@pytest.mark.parametrize(
    ("best", "ends", "chosen"),
    [
        ("lowest", [0.5, 0.25, 0.75], 1),
        ("highest", [0.5, 0.25, 0.75], 2),
        ("lowest", [-0.5, 0.25, 0.75], 0),
        ("highest", [-0.5, -0.75, -0.25], 2),
        ("lowest", [0.5, 0.25, 0.25], 1),  # of equals the first
        ("highest", [0.75, 0.25, 0.75], 0),
        # a run that diverged wins with no value, whatever it has last
        ("lowest", [0.5, "diverged", 0.75], 0),
        ("highest", ["diverged", 0.25, 0.5], 2),
        ("lowest", ["diverged", "diverged", 9.0], 2),
        ("highest", ["diverged", "diverged", -9.0], 2),
        ("lowest", ["diverged"] * 3, 0),  # then the first, so that the row shows why
        ("lowest", [None, 0.5, 0.75], 1),  # not finite
        ("highest", [None, 0.5, 0.75], 2),
        ("lowest", ["without", 0.5, 0.25], 2),
        ("lowest", ["without"] * 3, 0),
        ("lowest", [0.5, "missing", 0.75], None),
        ("highest", ["missing", 0.5, 0.75], None),
        ("lowest", ["missing"], None),
        ("lowest", ["diverged"], 0),
    ],
)
def test_which_grid_point_a_row_shows(best: Any, ends: list[Any], chosen: int | None) -> None:
    """The metric that the spec selects by decides, here the validation loss and not the test
    loss."""
    tried = []
    for i, end in enumerate(ends):
        point = Point("paper", "A", (), (("lr", i),))
        value = {"diverged": -99.0 if best == "lowest" else 99.0}.get(end, end)
        last = {"test": 10.0 - i} | ({} if end == "without" else {"validation": value})
        status = "diverged" if end == "diverged" else "done"
        summary = None if end == "missing" else {"status": status, "last": last}
        tried.append(Run(PlannedRun(point, 0, str(i)), RunFolder(Path(), str(i)), summary))
    found = plans.choose_point(tuple(tried), Select(metric="validation", best=best))
    assert found == (None if chosen is None else tried[chosen].planned.point)


def test_without_a_rule_nothing_is_picked_from_many() -> None:
    one = run({"status": "done", "last": {"loss": 1.0}})
    assert plans.choose_point((one, one), None) is None


def test_a_run_that_two_rows_share_is_one_run() -> None:
    shared, own = run({"status": "done"}), run(None, seed=1)
    rows = [PlannedRow("paper", n, (shared,), POINT, (shared, *more)) for n, more in
            {"A": (), "B": (own,)}.items()]  # fmt: skip
    found = Plan(artifact(), "short", tuple(rows), 4)
    assert (found.runs, found.missing, found.count) == ([shared, own], [own], 6)


# names


def called(config: Any) -> str:
    """A name of a run by its configuration, whatever that is."""
    return f"task/method/{blake2b(repr(config).encode(), digest_size=5).hexdigest()}"


@pytest.fixture
def composed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The runs that had to be composed. A quick function stands in for composing, and the code's
    fingerprint is "now"."""
    calls: list[Any] = []

    def stand_in(self: Names, point: Point, seed: int) -> tuple[Any, ...]:
        calls.append((point.settings, point.chosen, seed))
        if dict(point.settings).get("run.steps") == -1:
            raise BadSetting("run.steps=-1: is too few")
        return calls[-1]

    monkeypatch.setattr(Names, "config", stand_in)
    monkeypatch.setattr(run_names.naming, "name", called)
    for name in ("fingerprint", "own_fingerprint"):
        monkeypatch.setattr(run_names, name, lambda: "now")
    return calls


OTHER = Point("code", "B", (("task", ["u"]),), ())


def test_names_are_composed_once_and_kept(composed: list[Any], tmp_path: Path) -> None:
    root = tmp_path / "not" / "yet"
    names = Names(root)
    assert names.get(POINT, 0) is None
    names.ensure([(POINT, 0), (OTHER, 5), (POINT, 1)], Path("f.yaml"))
    assert composed == [
        (POINT.settings, POINT.chosen, 0),
        (OTHER.settings, (), 5),
        (POINT.settings, POINT.chosen, 1),
    ]
    for known in (names, Names(root)):
        assert known.get(POINT, 0) == called((POINT.settings, POINT.chosen, 0))
        assert known.get(POINT, 1) == called((POINT.settings, POINT.chosen, 1))
        assert known.get(OTHER, 5) == called((OTHER.settings, (), 5))
        assert known.get(POINT, 5) is None
    composed.clear()
    again = Names(root)
    again.ensure([(POINT, 0), (OTHER, 5)], Path("f.yaml"))
    assert composed == []
    again.ensure([(POINT, 0), (OTHER, 6)], Path("f.yaml"))
    assert composed == [(OTHER.settings, (), 6)]
    assert Names(root).get(POINT, 1) is not None
    assert Names(root).get(OTHER, 6) is not None


def test_a_variants_or_a_rows_word_is_no_part_of_a_name(
    composed: list[Any], tmp_path: Path
) -> None:
    names = Names(tmp_path)
    names.ensure([(POINT, 0)], Path("f.yaml"))
    twin = Point("code", "Z", POINT.settings, POINT.chosen)
    assert names.get(twin, 0) == names.get(POINT, 0) is not None
    assert names.get(Point("paper", "A", (), POINT.chosen), 0) is None
    assert names.get(Point("paper", "A", POINT.settings, ()), 0) is None


def test_names_of_other_code_and_damaged_ones_are_forgotten(
    composed: list[Any], tmp_path: Path
) -> None:
    names = Names(tmp_path)
    names.ensure([(POINT, 0)], Path("f.yaml"))
    content = names.file.read_text()
    assert names.file == tmp_path / ".reproduce" / "names.json"
    names.file.write_text(content.replace('"now"', '"before"'))
    assert Names(tmp_path).get(POINT, 0) is None
    for damage in (content[:-5], "[]", '{"now": []}', content.replace("task/method", "../method")):
        names.file.write_text(damage)
        assert Names(tmp_path).get(POINT, 0) is None
    (name,) = names.known.values()
    names.file.write_text(content.replace(name[-1:] + '"', ("1" if name[-1] == "0" else "0") + '"'))
    assert Names(tmp_path).get(POINT, 0) is None
    names.file.write_text(content)
    assert Names(tmp_path).get(POINT, 0) is not None


def test_names_are_not_kept_as_those_of_code_that_was_edited_meanwhile(
    composed: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This process composes them by what it had imported before."""
    names = Names(tmp_path)
    monkeypatch.setattr(run_names, "fingerprint", lambda: "edited")
    names.ensure([(POINT, 0)], Path("f.yaml"))
    assert names.get(POINT, 0) is not None
    assert not names.file.exists()
    assert Names(tmp_path).fingerprint == "now"


def test_the_names_of_all_artifacts_are_kept_in_one_file(
    composed: list[Any], tmp_path: Path
) -> None:
    """There are some 20,000 for all budgets but the full one, each with hundreds of letters of
    settings; a file of a run folder may have 4 MB."""
    names, long = Names(tmp_path), (("task.name", "x" * 500),)
    wanted = [(Point("code", "A", long, ()), seed) for seed in range(25_000)]
    names.ensure(wanted, Path("f.yaml"))
    assert Names(tmp_path).get(*wanted[-1]) == names.get(*wanted[-1]) is not None


def test_names_go_through_no_link(composed: list[Any], tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / ".reproduce").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BadSetting, match=r"\.reproduce is a link"):
        Names(tmp_path).ensure([(POINT, 0)], Path("f.yaml"))
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_where_nothing_can_be_written_names_are_known_all_the_same(
    composed: list[Any], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    names = Names(tmp_path / "file")
    names.ensure([(POINT, 0)], Path("f.yaml"))
    assert names.get(POINT, 0) is not None


def test_nothing_is_written_where_nothing_is_new(composed: list[Any], tmp_path: Path) -> None:
    names = Names(tmp_path)
    names.ensure([], Path("f.yaml"))
    assert not names.file.exists()


def test_a_setting_that_is_refused_is_named_with_file_and_row(
    composed: list[Any], tmp_path: Path
) -> None:
    wrong = Point("paper", "Row 1", (("run.steps", -1),), ())
    with pytest.raises(BadSetting, match=r"^f\.yaml: rows\.Row 1: run\.steps=-1: is too few$"):
        Names(tmp_path).ensure([(wrong, 0)], Path("f.yaml"))


def test_the_fingerprint_is_of_all_code_and_configs_that_a_name_depends_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def write(name: str, content: str = "1") -> str:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
        return run_names.fingerprint()

    monkeypatch.setattr(run_names, "__file__", str(tmp_path / "bench" / "reproduce" / "plan.py"))
    monkeypatch.setattr(run_names, "files", lambda package: tmp_path / package)
    seen = [run_names.fingerprint()]
    counted = ["bench/a.py", "bench/deep/b.py", "tasks/c.py", "algorithms/d.py", "conf/e.yaml"]
    for name in counted:
        seen += [write(name), write(name, "2")]
    assert len(set(seen)) == len(seen)
    assert {len(mark) for mark in seen} == {16}
    for name in ("bench/reproduce/f.py", "conf/paper/g.yaml", "bench/h.txt", "other/i.py"):
        assert write(name) == seen[-1]


def test_configurations_are_those_of_bench(tmp_path: Path) -> None:
    """The grid's settings are put into a composed configuration, whether the paths are new or
    not; `bench` composes all settings at once."""
    settings: tuple[tuple[str, Any], ...] = (
        ("task", "toy_coreset"), ("algorithm", "bome"), ("run.steps", 40),
    )  # fmt: skip
    wanted: list[Any] = [
        ((("algorithm.T", 3), ("algorithm.outer_lr", 0.5)), 0),
        ((("algorithm.T", 4), ("algorithm.outer_lr", 0.25)), 1),
        ((("algorithm.outer_lr", 0.25),), 1),
        ((), 2),
    ]
    expected = []
    for chosen, seed in wanted:
        job = PlannedRun(Point("paper", "A", settings, chosen), seed, "")
        with initialize_config_module("conf", version_base="1.3"):
            cfg = compose("config", list(job.overrides))
        whole = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
        expected.append(complete(whole))
        expected[-1]["run"] |= {"root": str(tmp_path), "checkpoint": 3.0}
    names = Names(tmp_path, ["run.checkpoint=3"])
    found = [names.config(Point("paper", "A", settings, chosen), seed) for chosen, seed in wanted]
    assert found == expected
    assert len({naming.name(config) for config in found}) == 4


@pytest.mark.parametrize(
    ("settings", "chosen", "message"),
    [
        ((("task", "toy_nothing"), ("algorithm", "bome")), (), "toy_nothing"),
        ((("task", "toy_coreset"), ("algorithm", "bome"), ("algorithm.TT", 3)), (), "TT"),
        ((("task", "toy_coreset"), ("algorithm", "bome")), (("algorithm.T.x", 3),), "x"),
        ((("task", "toy_coreset"), ("algorithm", "bome")), (("algorithm.T", "x"),), "T=x"),
        ((("task", "toy_coreset"), ("algorithm", "bome")), (("algorithm.T", "???"),), "Missing"),
    ],
)
def test_what_cannot_be_composed_is_refused_in_one_line(
    settings: Any, chosen: Any, message: str
) -> None:
    with pytest.raises(BadSetting, match=message) as error:
        Names(Path()).config(Point("paper", "A", settings, chosen), 0)
    assert "\n" not in str(error.value)
