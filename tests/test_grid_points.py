"""No grid point of any budget is one that its method refuses."""

from collections.abc import Iterator
from importlib.util import find_spec

import pytest
from omegaconf import OmegaConf

from bench.core.settings import BadSetting, build, check_settings
from bench.reproduce.book import load_book
from bench.reproduce.points import format_override, points
from bench.reproduce.records import read_record
from bench.reproduce.specs import Value
from tests.composed import composer
from tests.conftest import ROOT

Own = tuple[tuple[str, Value], ...]


def is_whole_step(name: str, value: Value) -> bool:
    """Whether this is a step size that is a whole number above 0."""
    return name.endswith("_lr") and isinstance(value, int) and value > 0


def settings_of_methods() -> Iterator[tuple[str, str, Own]]:
    """Every artifact and budget with a method and a point's own settings, each of these once.

    Fractions are left out, and every step size that is a whole number is 1, so that there are few
    enough: what methods refuse of several settings together is about counts, such as K > T.
    """
    book, seen = load_book(None), set()
    for artifact in book.artifacts.values():
        for budget in artifact.spec.budgets:
            for point in points(artifact.spec, book, budget):
                every = {**dict(point.settings), **dict(point.chosen)}
                if isinstance(every.get("algorithm.outer_lr"), float):
                    every["algorithm.outer_lr"] = 1  # whichever it is: Adam refuses a word
                own = tuple(
                    sorted(
                        (name, 1 if is_whole_step(name, value) else value)
                        for name, value in every.items()
                        if name.startswith("algorithm.") and isinstance(value, int | str)
                    )
                )
                if (every["algorithm"], own) not in seen:
                    seen.add((every["algorithm"], own))
                    yield f"{artifact.id} {budget}", str(every["algorithm"]), own


def test_every_method_takes_every_point_of_its_grids() -> None:
    """K = 10 at T = 1 was refused at four points, and the row had no run."""
    refused = []
    for where, method, own in settings_of_methods():
        if method == "learn2learn" and find_spec("learn2learn") is None:
            continue  # an extra, whose points are those of `maml`
        settings = [format_override(name, value) for name, value in own]
        # the next call writes into the same configuration, so this one is used before it
        config = composer()([f"algorithm={method}", *settings])
        try:
            node = OmegaConf.to_container(config.algorithm, resolve=True)
            build(check_settings(node, "algorithm"))
        except BadSetting as error:
            refused.append(f"{where}: {method}: {error}")
    assert refused == []


@pytest.mark.parametrize(
    ("artifact", "more_images"),  # ten times the images ask for ten times the outer step
    [("bome/fig2_mnist", 10), ("bome/fig5_fashion", 10), ("bome/fig2_newsgroups", 1)],
)
def test_on_a_gpu_a_row_has_the_settings_that_a_smaller_budget_chose(
    artifact: str, more_images: int
) -> None:
    """Penalty had T = 10 there, where the search at the budget short had found T = 1."""
    book = load_book(None)
    record = read_record(artifact, "short", ROOT / "results")
    assert record is not None
    tried: dict[tuple[str, str], list[dict[str, Value]]] = {}
    for point in points(book.artifacts[artifact].spec, book, "gpu"):
        settings = {**dict(point.settings), **dict(point.chosen)}
        tried.setdefault((point.variant, point.row), []).append(settings)
    missing = []
    for (variant, row), there in tried.items():
        chosen = dict(record.rows[variant][row].chosen)
        step = chosen.get("algorithm.outer_lr")
        if isinstance(step, int | float):  # A.4's and A.5's searches end at 1,000
            chosen["algorithm.outer_lr"] = min(more_images * step, 1000)
        if "algorithm.lower_lr" in chosen or "algorithm.inner_lr" in chosen:
            default = {"algorithm.lower_lr": 100, "algorithm.inner_lr": 100}  # of conf/tuned
            there = [{**default, **settings} for settings in there]
        if not any(chosen.items() <= settings.items() for settings in there):
            missing.append(f"{variant}, {row}: {chosen}")
    assert tried
    assert missing == []
