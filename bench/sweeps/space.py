"""The search space of `hydra/sweeper=optuna`, in the words that Hydra has for it.

A space is written as a value of the command line or of hydra.sweeper.params: interval(1e-3, 1),
tag(log, interval(1e-3, 1)), int(interval(1, 20)), choice(norm, value), range(1, 10, 2).
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, Override, RangeSweep
from hydra.errors import HydraException

from bench.core.settings import BadSetting

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution  # optuna is an extra, and slow to import

PARAMS = "hydra.sweeper.params"
FORMS = (
    "interval(a, b), int(interval(a, b)), tag(log, interval(a, b)), choice(a, b, ...) and "
    "range(a, b, step)"
)


@dataclass(frozen=True)
class Choice:
    """Some values, in no order."""

    texts: tuple[str, ...]

    def distribution(self) -> "BaseDistribution":
        """The space as optuna has it."""
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution(self.texts)

    def text(self, value: Any) -> str:
        """A value that optuna has chosen, as it is written on a command line."""
        return str(value)

    def corners(self) -> tuple[str, ...]:
        """Values that are refused if any value of the space is, as far as a look can tell."""
        return self.texts


@dataclass(frozen=True)
class Range:
    """Evenly spaced values."""

    texts: tuple[str, ...]

    def distribution(self) -> "BaseDistribution":
        """The space as optuna has it."""
        from optuna.distributions import IntDistribution

        return IntDistribution(0, len(self.texts) - 1)

    def text(self, value: Any) -> str:
        """The value whose place in the range optuna has chosen."""
        return self.texts[int(value)]

    def corners(self) -> tuple[str, ...]:
        """Give the lowest and the highest value."""
        return self.texts[0], self.texts[-1]


@dataclass(frozen=True)
class Interval:
    """All numbers, or all integers, between two."""

    low: float
    high: float
    log: bool
    whole: bool

    def distribution(self) -> "BaseDistribution":
        """The space as optuna has it."""
        from optuna.distributions import FloatDistribution, IntDistribution

        if self.whole:
            return IntDistribution(int(self.low), int(self.high), log=self.log)
        return FloatDistribution(self.low, self.high, log=self.log)

    def text(self, value: Any) -> str:
        """A value that optuna has chosen; of a float six digits are kept, for people to read."""
        if self.whole:
            return str(int(value))
        return repr(min(max(float(f"{value:.6g}"), self.low), self.high))

    def corners(self) -> tuple[str, ...]:
        """Give the ends; between those of floats one that is not whole, which a count refuses."""
        between = () if self.whole else (self.text(self.low + (self.high - self.low) / math.pi),)
        return self.text(self.low), *between, self.text(self.high)


Part = Choice | Range | Interval


@dataclass(frozen=True)
class Space:
    """The settings that are searched, by their keys, and the others of the command line."""

    parts: Mapping[str, Part]
    fixed: tuple[str, ...]

    def overrides(self, texts: Mapping[str, str]) -> list[str]:
        """The overrides of a run; texts: the value of each setting that is searched."""
        return [*self.fixed, *(f"{key}={text}" for key, text in texts.items())]

    def texts(self, params: Mapping[str, Any]) -> dict[str, str]:
        """The values of a trial as they are written; params: as optuna has them."""
        return {key: part.text(params[key]) for key, part in self.parts.items()}

    def corners(self) -> Iterator[dict[str, str]]:
        """Points of the space that together have every choice and every end once at least."""
        ends = {key: part.corners() for key, part in self.parts.items()}
        for k in range(max(map(len, ends.values()))):
            yield {key: texts[min(k, len(texts) - 1)] for key, texts in ends.items()}


def read_space(
    overrides: Sequence[Override], params: Any, parse: Callable[[str], Override]
) -> Space:
    """The space that a command line and hydra.sweeper.params describe; the command line wins.

    parse: makes an override of its text. Raises BadSetting for a space that is not known, and if
    there is none.
    """
    given = [*read_params(params, parse), *overrides]
    last = {override.key_or_group: override for override in given}
    parts: dict[str, Part] = {}
    fixed: list[str] = []
    for name, override in last.items():
        key = override.get_key_element()
        if not override.is_sweep_override():
            fixed.append(f"{key}={override.get_value_element_as_str()}")
        elif name == "seed":
            raise BadSetting(
                f"{override.input_line}: the seed is not searched; write hydra.sweeper.seeds=3 for "
                "the mean of three seeds"
            )
        else:
            parts[key] = part_of(override)
    if not parts:
        raise BadSetting(
            "hydra/sweeper=optuna: there is nothing to search; write for example "
            f"'algorithm.outer_lr=tag(log, interval(1e-3, 1))'; there is {FORMS}"
        )
    return Space(parts, tuple(fixed))


def read_params(params: Any, parse: Callable[[str], Override]) -> list[Override]:
    """The overrides of hydra.sweeper.params, whose keys may be nested. Raises BadSetting."""
    if params is not None and not isinstance(params, dict):
        raise BadSetting(f"{PARAMS}={params}: write settings and their spaces, as a table")
    found = []
    for key, text in flat(params or {}):
        try:
            found.append(parse(f"{key}={text}"))
        except HydraException:
            raise BadSetting(f"{PARAMS}.{key}={text}: no such space; there is {FORMS}") from None
    return found


def flat(node: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Each value of a nested table with its path."""
    for key, value in node.items():
        if isinstance(value, dict):
            yield from flat(value, f"{before}{key}.")
        else:
            yield before + str(key), value


def part_of(override: Override) -> Part:
    """The space of one setting; raises BadSetting for one that is not known."""
    value, line = override.value(), override.input_line
    tags = set(getattr(value, "tags", ()))
    if isinstance(value, IntervalSweep):
        return interval_of(value, tags, str(line))
    if tags:
        raise BadSetting(f"{line}: a tag is for interval(a, b); there is {FORMS}")
    if getattr(value, "shuffle", False):
        raise BadSetting(f"{line}: an order is of no use here; there is {FORMS}")
    texts = tuple(dict.fromkeys(override.sweep_string_iterator()))
    if not texts:
        raise BadSetting(f"{line}: the space is empty; there is {FORMS}")
    if isinstance(value, RangeSweep):
        return Range(texts)
    if isinstance(value, ChoiceSweep) or override.is_discrete_sweep():
        return Choice(texts)
    raise BadSetting(f"{line}: no such space; there is {FORMS}")


def interval_of(value: IntervalSweep, tags: set[str], line: str) -> Interval:
    """The interval that Hydra has read; raises BadSetting."""
    assert value.start is not None
    assert value.end is not None
    low, high = value.start, value.end
    if tags - {"log"}:
        raise BadSetting(f"{line}: the only tag is log: write tag(log, interval(a, b))")
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise BadSetting(f"{line}: write interval(a, b) with finite numbers a < b")
    if tags and low <= 0:
        raise BadSetting(f"{line}: tag(log, ...) is for numbers above 0; write a larger first one")
    return Interval(low, high, bool(tags), isinstance(low, int) and isinstance(high, int))


def parser(loader: Any) -> Callable[[str], Override]:
    """A function that makes an override of its text; loader: Hydra's, for glob(*)."""
    parse = OverridesParser.create(config_loader=loader).parse_overrides

    def one(text: str) -> Override:
        (override,) = parse([text])
        return override

    return one
