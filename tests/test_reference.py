"""The pages of methods, problems and settings are what the code says."""

from typing import Annotated, Literal

import pytest
from pydantic import Field

from bench.core.settings import Count, Finite, Fraction, Positive, Rate, Seed
from bench.numerics.descent import Descent
from scripts import reference
from tests.test_conf import stems


def test_the_pages_are_todays() -> None:
    stale = [str(file) for file, _ in reference.outdated_pages()]
    assert not stale, f"write {reference.COMMAND}"


def test_every_choice_is_on_its_pages() -> None:
    for group, pages in (("algorithm", "method"), ("task", "problem")):
        table = (reference.TOP / "docs" / f"{pages}s.md").read_text()
        settings = (reference.TOP / "docs" / f"{pages}_settings.md").read_text()
        for name in stems(group):
            assert f"| `{name}` |" in table
            assert f"\n## {name}\n" in settings


def test_a_docstring_looks_the_same_as_markdown() -> None:
    docstring = """The sum of y*(x), `a*b` and <g, v>.

        f(x) = |x|^2

        g(x) = 2

    And so on.
    """
    assert reference.as_markdown(docstring) == (
        "The sum of y\\*(x), `a*b` and \\<g, v>.\n\n"
        "```text\nf(x) = |x|^2\n\ng(x) = 2\n```\n\nAnd so on."
    )


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Positive, "number > 0"),
        (Rate, "number ≥ 0, < 1"),
        (Fraction, "number ≥ 0, ≤ 1"),
        (Finite, "number"),
        (Count, "integer ≥ 1"),
        (Seed, "integer"),
        (Count | None, "integer ≥ 1 | null"),
        (Literal["paper", "code"], "paper | code"),
        (bool, "true | false"),
        (Descent, "Descent"),
        (Annotated[int, Field(gt=2)], "integer > 2"),
    ],
)
def test_types_in_words(kind: object, said: str) -> None:
    assert reference.allowed(kind) == said


@pytest.mark.parametrize(
    ("value", "said"),
    [(None, "null"), (True, "true"), (0.5, "0.5"), ({"_target_": "a.b", "c": 1}, "b(...)")],
)
def test_values_as_in_a_yaml(value: object, said: str) -> None:
    assert reference.show(value) == said


def test_a_page_without_marks_is_refused() -> None:
    text = f"a\n<!-- x: written by `{reference.COMMAND}` -->\nold\n<!-- end of x -->\nb"
    assert "\n\nnew\n\n<!-- end" in reference.updated(text, "x", "new")
    with pytest.raises(SystemExit, match="there is no line <!-- y"):
        reference.updated(text, "y", "new")
