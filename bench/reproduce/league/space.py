"""What is searched of a method: the spaces that yamls declare under `tuning`, and their values."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from bench.core.settings import TUNING, BadSetting
from bench.reproduce.schema import StrictModel

Scalar = bool | int | float | str
# what a step size is told in: the task's unit for x, that for y, or their ratio
Scale = Literal["x", "y", "x/y"]


class Logarithmic(StrictModel):
    """Numbers between two, evenly spread in logarithm; of: the unit of the task they are in."""

    log: tuple[float, float]
    of: Scale | None = None


class Chosen(StrictModel):
    """One of some values; at_most: of those that are not above the value of this setting."""

    choice: Annotated[tuple[Scalar, ...], Field(min_length=1)]
    at_most: str | None = None


Space = Mapping[str, Logarithmic | Chosen]
SPACE: TypeAdapter[dict[str, Logarithmic | Chosen]] = TypeAdapter(dict[str, Logarithmic | Chosen])


class Steps(StrictModel):
    """In which order of magnitude step sizes on x and on y lie."""

    x: Annotated[float, Field(gt=0)] = 1.0
    y: Annotated[float, Field(gt=0)] = 1.0

    def of(self, scale: Scale | None) -> float:
        """The factor of a step size that is told in this unit."""
        return {None: 1.0, "x": self.x, "y": self.y, "x/y": self.x / self.y}[scale]


def first_line(error: Exception) -> str:
    """What is wrong with a yaml, in one line."""
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return ": ".join(filter(None, [".".join(map(str, first["loc"])), first["msg"]]))
    return " ".join(str(error).split())


def read_space(method: str, node: Mapping[str, Any]) -> Space:
    """The search space that a method's yaml declares; raises BadSetting."""
    where = f"conf/algorithm/{method}.yaml: {TUNING}"
    declared = node.get(TUNING)
    if not declared:
        raise BadSetting(
            f"{where}: it says nothing of what is searched: write for example "
            f"{TUNING}: {{outer_lr: {{log: [0.01, 10], of: x}}, T: {{choice: [1, 10]}}}}"
        )
    try:
        space = SPACE.validate_json(json.dumps(declared), strict=True)
    except ValidationError as error:
        wrong = first_line(error)
        raise BadSetting(f"{where}: {wrong}; write {{log: [a, b]}} or {{choice: [..]}}") from None
    for key, part in space.items():
        if key not in node:
            raise BadSetting(f"{where}.{key}: the method has no such setting")
        if isinstance(part, Logarithmic) and not 0 < part.log[0] < part.log[1]:
            raise BadSetting(f"{where}.{key}: write log: [a, b] with 0 < a < b")
        if isinstance(part, Chosen) and part.at_most is not None:
            check_bound(f"{where}.{key}.at_most", part, space)
    return space


def check_bound(where: str, part: Chosen, space: Space) -> None:
    """Raise BadSetting unless `at_most` is another choice of numbers, none of them too small."""
    assert part.at_most is not None
    bound = space.get(part.at_most)
    others = bound.choice if isinstance(bound, Chosen) and bound.at_most is None else ()
    numbers = [value for value in (*others, *part.choice) if isinstance(value, int | float)]
    if not others or len(numbers) < len(others) + len(part.choice):
        raise BadSetting(f"{where}={part.at_most}: write a setting with a choice of numbers")
    if min(numbers) not in part.choice:
        raise BadSetting(f"{where}={part.at_most}: add {min(numbers)} to the choice, or less")


def bounded(part: Chosen, most: Scalar) -> Chosen:
    """The same choice without what is above `most`."""
    return Chosen(choice=tuple(value for value in part.choice if value <= most))  # type: ignore[operator]


def value_at(part: Logarithmic | Chosen, share: float, units: Steps) -> Scalar:
    """The value of a setting so far along its space; share: in [0, 1)."""
    if isinstance(part, Chosen):
        return part.choice[int(share * len(part.choice))]
    low, high = part.log
    return float(f"{low * (high / low) ** share * units.of(part.of):.4g}")


def dumped(part: Logarithmic | Chosen) -> dict[str, Any]:
    """A part of a space as it is in a digest: records were made before `at_most` was."""
    found = part.model_dump()
    if found.get("at_most", "") is None:
        del found["at_most"]
    return found
