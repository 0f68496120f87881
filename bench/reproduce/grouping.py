"""Groups runs that differ in their seeds only, and says in words in what the groups differ."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

from bench.reproduce.chosen_runs import FoundRun
from bench.reproduce.reading import leave_out_damaged
from bench.reproduce.specs import Book

# Okabe and Ito's palette, and the dashes of those groups whose method has no style to itself
PALETTE = (
    "#0072b2", "#d55e00", "#009e73", "#e69f00", "#cc79a7", "#56b4e9", "#555555", "#000000",
)  # fmt: skip
DASHES = ("solid", "dash", "dot", "dashdot")
DIGITS, MOST_DIGITS = 6, 17  # of a setting in a name; the most tell any two numbers apart


class Style(NamedTuple):
    """How a method's curve is drawn."""

    colour: str
    dash: str


@dataclass(frozen=True)
class Group:
    """Runs of the same settings, one for each seed.

    problem, method: what is solved and what solves it, in words; the settings among these are those
    in which the groups differ.
    """

    problem: str
    method: str
    task: str
    algorithm: str
    settings: Mapping[str, Any]
    runs: Sequence[FoundRun]


@dataclass(frozen=True)
class Grouping:
    """The groups, how many runs were there twice, and the settings in which groups differ."""

    groups: Sequence[Group]
    repeated: int
    differing: Sequence[str]


def group_runs(runs: Iterable[FoundRun], book: Book) -> Grouping:
    """Put runs of equal settings together; of several with the same seed one counts (`best_copy`).

    A method is named by those of its settings that differ on some problem, so that it is the same
    method on every problem, whatever it is tuned to there.
    """
    found: dict[Any, dict[int, list[FoundRun]]] = {}
    repeated = 0
    for run in runs:
        settings = tuple(sorted((k, freeze(v)) for k, v in run.settings.items() if v is not None))
        seeds = found.setdefault((run.task, run.algorithm, settings), {})
        repeated += run.seed in seeds
        seeds.setdefault(run.seed, []).append(run)
    groups = [sorted(map(best_copy, seeds.values()), key=seed_of) for seeds in found.values()]
    tasks = Naming(split_by(groups, task_of), "task")
    on_problems = split_by(groups, lambda run: (task_of(run), tasks.values(run), run.algorithm))
    methods: dict[str, Naming] = {}
    for algorithm in dict.fromkeys(group[0].algorithm for group in groups):
        same = [some for key, some in on_problems.items() if key[2] == algorithm]
        methods[algorithm] = Naming(dict(enumerate(same)), "algorithm", "run")
    named = []
    for group in groups:
        first = group[0]
        known = book.methods.get(first.algorithm)
        label = known.label if known else first.algorithm.replace("_", " ")
        named.append(
            Group(
                ", ".join([first.task.replace("_", " "), *tasks.words(first)]),
                ", ".join([label, *methods[first.algorithm].words(first)]),
                first.task,
                first.algorithm,
                first.settings,
                group,
            )
        )
    firsts = [group[0] for group in groups]
    return Grouping(named, repeated, differing_settings(firsts, ("task", "algorithm", "run")))


def best_copy(copies: Sequence[FoundRun]) -> FoundRun:
    """Of the copies of a run the first that is done, or else that diverged, or else the first."""
    return copies[0] if len(copies) == 1 else min(copies, key=lack_of_end)


def lack_of_end(run: FoundRun) -> int:
    """0 of a run that is done, 1 of one that ended otherwise, 2 of one that has not ended, and 3,
    with a line on standard error, if its summary is damaged."""
    with leave_out_damaged():
        summary = run.folder.summary()
        if summary is None:
            return 2
        return 0 if summary["status"] == "done" else 1
    return 3


def seed_of(run: FoundRun) -> int:
    return run.seed


def task_of(run: FoundRun) -> str:
    return run.task


def freeze(value: Any) -> Any:
    """The value of a setting, such that it can be a key; 1 and 1.0 are alike, 1 and true not."""
    if isinstance(value, list):
        return tuple(map(freeze, value))
    return value if isinstance(value, int | float) and not isinstance(value, bool) else repr(value)


def split_by(groups: Iterable[Sequence[FoundRun]], key: Any) -> dict[Any, list[FoundRun]]:
    """The first run of each group, by a key of it."""
    found: dict[Any, list[FoundRun]] = {}
    for group in groups:
        found.setdefault(key(group[0]), []).append(group[0])
    return found


def differing_settings(runs: Sequence[FoundRun], parts: Sequence[str]) -> list[str]:
    """The settings of these parts of the configuration that are not the same in all runs.

    What is null in one run and absent in another is the same.
    """
    keys = dict.fromkeys(key for run in runs for key in run.settings)
    return [
        key
        for key in keys
        if key.partition(".")[0] in parts
        and len({freeze(run.settings.get(key)) for run in runs}) > 1
    ]


class Naming:
    """Names runs by the settings in which some of those that it was made for differ."""

    def __init__(self, alike: Mapping[Any, Sequence[FoundRun]], *parts: str):
        """alike: lists of runs that are to be told apart; parts: of the configuration."""
        keys = (key for some in alike.values() for key in differing_settings(some, parts))
        self.keys = list(dict.fromkeys(keys))
        self.labels = shorten(self.keys)
        runs = [run for some in alike.values() for run in some]
        self.digits = [digits_apart(run.settings.get(key) for run in runs) for key in self.keys]

    def values(self, run: FoundRun) -> tuple[Any, ...]:
        """The values of these settings, such that they can be a key."""
        return tuple(freeze(run.settings.get(key)) for key in self.keys)

    def words(self, run: FoundRun) -> Iterator[str]:
        """Each of these settings that the run has, with its value."""
        for key, label, digits in zip(self.keys, self.labels, self.digits):
            if key in run.settings:
                yield f"{label} {say_value(run.settings[key], digits)}"


def shorten(keys: Sequence[str]) -> list[str]:
    """Each dotted path without the parts that are not needed to tell it from the others."""
    found = []
    for key in keys:
        parts = key.removesuffix("._target_").split(".")
        many = 1
        while many < len(parts) and any(
            other != key and f".{other}".endswith("." + ".".join(parts[-many:])) for other in keys
        ):
            many += 1
        found.append(" ".join(parts[-many:]).replace("_", " "))
    return found


def digits_apart(values: Iterable[Any]) -> int:
    """The fewest digits, six or more, by which all those values differ in words that differ by any.

    With fewer, methods whose settings differ would have one name.
    """
    different = list({freeze(value): value for value in values}.values())
    tried = range(DIGITS, MOST_DIGITS + 1)
    told = [len({say_value(value, digits) for value in different}) for digits in tried]
    return tried[told.index(max(told))]


def say_value(value: Any, digits: int = DIGITS) -> str:
    """The value of a setting in words, with so many significant digits."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:.{digits}g}"
    if isinstance(value, list):
        return f"[{', '.join(say_value(inner, digits) for inner in value)}]"
    return str(value).replace("_", " ")


def method_styles(groups: Sequence[Group], book: Book) -> dict[str, Style]:
    """The colour and dash of each method: those of the book, where it is alone in having them."""
    methods = {group.method: group.algorithm for group in groups}
    many = Counter(methods.values())
    found: dict[str, Style] = {}
    for method, algorithm in methods.items():
        known = book.methods.get(algorithm)
        if known and many[algorithm] == 1:
            style = Style(known.colour, known.dash)
            if style not in found.values():
                found[method] = style
    free = [Style(c, d) for d, c in product(DASHES, PALETTE) if Style(c, d) not in found.values()]
    others = [method for method in methods if method not in found]
    # with more methods than styles, styles come again
    every = free or [Style(c, d) for d, c in product(DASHES, PALETTE)]
    found |= {method: every[i % len(every)] for i, method in enumerate(others)}
    return found
