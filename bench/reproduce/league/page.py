"""What the records of the league say, in Markdown: docs/league.md, docs/findings.md, one method."""

from collections.abc import Collection, Hashable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bench.core.settings import BadSetting
from bench.reproduce.league import scores
from bench.reproduce.league.entries import (
    Entry,
    TaskEntry,
    failures_of,
    is_complete,
    outdated_methods,
    read_entries,
    todays,
)
from bench.reproduce.league.phrases import (
    WORDS,
    advice,
    group_text,
    range_text,
    rank_text,
    shown,
    task_phrase,
)
from bench.reproduce.league.rules import Track, read_track, track_names
from bench.reproduce.league.scores import Array, Place
from bench.reproduce.league.targets import Targets, read_targets
from bench.reproduce.league.trials import Row
from bench.reproduce.readme import markdown_table

SHOWN = 5  # methods of a track in docs/findings.md
NEXT = 3  # methods for a problem
OFTEN = 0.8  # the share of seeds at which a method that is advised has to come there
OUTDATED = (
    "An outdated method has changed since its entry was made, in its code, its settings or what is "
    "searched: its numbers are of the version before, and nothing is advised by them."
)


class Board(NamedTuple):
    """A track with the entries that are complete by today's rules.

    entries: method -> task -> what was measured. records: the whole entries. left_out: a line for
    each entry that is not complete. outdated: the methods that have changed since their entries
    were made (entries.outdated_methods).
    """

    name: str
    track: Track
    entries: dict[str, dict[str, TaskEntry]]
    records: dict[str, Entry]
    left_out: list[str]
    outdated: set[str]

    @property
    def names(self) -> list[str]:
        """The methods, by name."""
        return list(self.entries)

    def work(self, unit: str) -> Array:
        """The work that each method took [methods, tasks, seeds]."""
        return scores.work_table(self.entries, unit)

    def trials(self) -> Array:
        """The work of each method's trials [methods, tasks, trials]."""
        return scores.trial_table(self.entries)

    def calls(self) -> Array:
        """The median number of calls of each method's runs, whatever came of them [methods,
        tasks]."""
        return np.array(
            [
                [np.median([run.total_calls for run in found.runs]) for found in tasks.values()]
                for tasks in self.entries.values()
            ]
        )

    def runs(self, method: str) -> list[Row]:
        """The scored runs of a method on all tasks."""
        return [run for found in self.entries[method].values() for run in found.runs]

    def places(self, unit: str) -> list[Place]:
        """The place of each method, the best first."""
        return scores.places(self.names, self.work(unit))

    @property
    def few_units(self) -> str:
        """By what methods are compared if it is too few for good intervals, such as "3 tasks" or
        "3 seeds of one task"; else empty."""
        tasks, seeds = len(self.track.tasks), self.track.seeds
        if tasks > 1:
            return f"{tasks} tasks" if tasks < scores.FEWEST else ""
        return f"{seeds} seeds of one task" if seeds < scores.FEWEST else ""

    def only(self, wanted: Sequence[str]) -> "Board":
        """The board with these methods alone."""
        chosen = {name: self.entries[name] for name in wanted}
        return self._replace(entries=chosen)

    @property
    def today(self) -> "Board":
        """The board of the methods that are not outdated: only they are advised."""
        return self.only([name for name in self.names if name not in self.outdated])

    @property
    def first_order(self) -> "Board":
        """The board of the methods that promise to take no second derivative."""
        chosen = [name for name in self.names if self.records[name].first_order]
        return self.only(chosen)._replace(left_out=[])


def make_board(name: str, track: Track, targets: Targets, entries: Sequence[Entry]) -> Board:
    """The board of a track."""
    complete, records, left_out = {}, {}, []
    for entry in entries:
        found = todays(entry, track, targets)
        if is_complete(entry, track, targets):
            complete[entry.method] = {task: found[task] for task in track.tasks}
            records[entry.method] = entry
        else:
            missing = ", ".join(task for task in track.tasks if task not in found)
            left_out.append(f"{entry.method}: not by today's rules: {missing}; `{entry.command}`")
    outdated = outdated_methods(list(records.values()), name, track)
    return Board(name, track, complete, records, left_out, outdated)


def read_boards(folder: Path, results: Path, wanted: Sequence[str] | None = None) -> list[Board]:
    """The board of each track that has targets, or of those that are wanted.

    Raises BadSetting if one of these has none, or if a record is damaged.
    """
    found = []
    for name in wanted or track_names(folder):
        track, targets = read_track(name, folder), read_targets(name, results)
        if targets is not None:
            found.append(make_board(name, track, targets, read_entries(name, results)))
        elif wanted:
            raise BadSetting(f"--track {name}: nothing is recorded in {results}")
    return found


def league_text(boards: Sequence[Board]) -> str:
    """The marked part of docs/league.md."""
    parts = [text for board in boards if len(board.entries) > 1 for text in board_parts(board)]
    return "\n" + "\n".join(parts or ["Nothing is recorded yet.", ""])


def board_parts(board: Board) -> Iterator[str]:
    """Everything about a track: picture, table, what separates the methods, advice, failures."""
    track = board.track
    tasks = "1 task" if len(track.tasks) == 1 else f"{len(track.tasks)} tasks"
    count = f"{len(board.entries)} methods, {tasks}, {track.seeds} scored seeds"
    yield f"## {track.title}\n\n{track.about} {count}.\n"
    alt = f"Performance profiles of the best methods of the track {board.name}"
    yield f"![{alt}](league_{board.name}.svg)\n"
    yield places_table(board, board.names)
    yield from (f"{line}\n" for line in remarks(board))
    yield f"![The share of good trials in {board.name}](league_{board.name}_tuning.svg)\n"
    few = board.first_order
    if 1 < len(few.entries) < len(board.entries):
        yield f"### {track.title}, without second derivatives\n"
        yield "The same runs, of the methods that promise to take none, against each other.\n"
        yield places_table(few, few.names)
    if board.today.entries:
        yield f"### {track.title}: which method for which problem\n"
        yield advice_text(board.today)
    yield failures_text(board)


def places_table(board: Board, wanted: Collection[str]) -> str:
    """A row for each of these methods: its place among all, its areas, how it is tuned, memory and
    failures."""
    unit = board.track.scored
    others = scores.UNITS if board.track.by == "work" else ()
    units = [unit, *(other for other in others if other != unit)]
    areas = {
        other: {place.method: place.area for place in board.places(other)} for other in units[1:]
    }
    again = dict(zip(board.names, scores.trial_ranks(board.trials()), strict=True))
    rows = []
    for place in [place for place in board.places(unit) if place.method in wanted]:
        tasks = board.entries[place.method]
        tuned = scores.mean_interval([scores.sensitivity(found) for found in tasks.values()])
        rows.append(
            [
                rank_text(place.rank),
                group_text(place),
                f"`{place.method}`{' outdated' if place.method in board.outdated else ''}",
                shown(place.area),
                *(shown(areas[other][place.method]) for other in units[1:]),
                shown(place.reached),
                shown(tuned),
                range_text(*again[place.method]),
                memory_text(tasks),
                str(count_failed(tasks)),
            ]
        )
    head = [
        "rank", "group", "method", *(f"area over {WORDS[other]}" for other in units),
        "came there", "good trials", "rank, other trials", "memory, MB", "failed",
    ]  # fmt: skip
    return markdown_table(head, rows)


def twins(names: Sequence[str], runs: Sequence[Sequence[Row]]) -> list[list[str]]:
    """The methods in their order, those together all of whose runs had the same steps and calls and
    came to the same value: on such tasks they are one method. Methods without a value are alone."""
    found: dict[Hashable, list[str]] = {}
    for name, own in zip(names, runs, strict=True):
        known = any(run.value is not None for run in own)
        did = tuple((run.steps, tuple(sorted(run.calls.items())), run.value) for run in own)
        found.setdefault(did if known else name, []).append(name)
    return list(found.values())


def remarks(board: Board) -> list[str]:
    """What has to be known of a track's table: which methods are one and the same there, whether
    its intervals are rough, and what its word "outdated" says, if it stands there."""
    said = [
        f"{' and '.join(f'`{name}`' for name in alike)} did the same everywhere: on these tasks "
        "they are one method."
        for alike in twins(board.names, [board.runs(name) for name in board.names])
        if len(alike) > 1
    ]
    if board.few_units:
        said.append(
            f"Intervals are rough, and mostly too narrow, because they are of {board.few_units}: "
            "what can be told apart is in the column group."
        )
    if board.outdated.intersection(board.names):
        said.append(OUTDATED)
    return said


def memory_text(tasks: dict[str, TaskEntry]) -> str:
    """The least and the most memory of a task's runs."""
    known = [found.memory_mb for found in tasks.values() if found.memory_mb is not None]
    return f"{min(known):.0f} to {max(known):.0f}" if known else "·"


def count_failed(tasks: dict[str, TaskEntry]) -> int:
    """How many runs, trials included, raised an exception, diverged or were killed."""
    bad = ("failed", "diverged", "killed")
    return sum(
        status in bad
        for found in tasks.values()
        for status in [*found.trials.status, *(row.status for row in found.runs)]
    )


def advice_text(board: Board) -> str:
    """For each task the methods that reached its target with the least work, of those that reached
    it at `OFTEN` of the seeds: one that explodes elsewhere is no advice. Methods that did the same
    stand together, and so do those that the seeds do not tell apart from the first."""
    unit, work = board.track.scored, board.work(board.track.scored)
    calls = board.calls()  # of methods that are as good the cheapest stands first
    credit, lines = scores.credits(work), []
    for k, (task, about) in enumerate(board.track.tasks.items()):
        order = np.lexsort((calls[:, k], -credit[:, k].mean(axis=1)))
        best = [m for m in order if np.isfinite(work[m, k]).mean() >= OFTEN]
        names = [board.names[m] for m in best]
        alike = twins(names, [board.entries[name][task].runs for name in names])[:NEXT]
        firsts = [board.names.index(some[0]) for some in alike]
        said = [
            task_phrase("` or `".join(some), work[m, k], WORDS[unit], calls[m, k])
            for some, m in zip(alike, firsts)
        ]
        rarely = f"no method came there at {OFTEN:.0%} of the seeds"
        what = advice(said, credit[firsts, k]) if said else rarely
        lines.append(f"- If your problem has {about.about} (`{task}`), {what}.")
    return "\n".join(lines) + "\n"


def failures_text(board: Board) -> str:
    """A line for each method with runs that failed, and why; and the entries that are left out."""
    lines = [line for method in board.names for line in failure_lines(board, method)]
    lines += [f"- {line}" for line in board.left_out]
    if not lines:
        return ""
    return "Runs that raised or were killed, and entries left out:\n\n" + "\n".join(lines) + "\n"


def failure_lines(board: Board, method: str) -> list[str]:
    """A line for each task on which runs of a method failed, and why."""
    found = {task: failures_of(entry) for task, entry in board.entries[method].items()}
    return [
        f"- `{method}` on `{task}`: {failures.number} runs: {failures.reasons}"
        for task, failures in found.items()
        if failures.number
    ]


def findings_text(boards: Sequence[Board]) -> str:
    """The marked part of docs/findings.md: the best of each track, and what separates them."""
    parts = [findings_part(board) for board in boards if len(board.entries) > 1]
    return "\n" + "\n".join(parts or ["Nothing is recorded yet.", ""])


def findings_part(whole: Board) -> str:
    """The best methods of a track, from the scores of all that are not outdated."""
    board = whole.today
    if len(board.entries) < 2:
        return f"**{whole.track.title}.** All of its entries but one at most are outdated.\n"
    best = [place.method for place in board.places(board.track.scored)[:SHOWN]]
    said = [f"Groups, ranks and areas are among all {len(board.entries)} methods."]
    if others := [f"`{name}`" for name in whole.names if name in whole.outdated]:
        said.append(f"Outdated, and so not among them: {', '.join(others)}.")
    said += remarks(board)
    said.append("*Repeat it.* " + ", ".join(f"`{board.records[name].command}`" for name in best))
    return (
        f"**{board.track.title}.** {separation(board, best)}\n\n{places_table(board, best)}\n"
        f"{' '.join(said)}.\n"
    )


def separation(board: Board, best: Sequence[str]) -> str:
    """In words, which methods cannot be told apart from the first, and where the best differ."""
    unit = board.track.scored
    places = {place.method: place for place in board.places(unit)}
    first = places[best[0]]
    said = (
        f"Of {len(board.entries)} methods `{first.method}` has the largest area over "
        f"{WORDS[unit]}, {shown(first.area)}"
    )
    alike = [name for name in places if not places[name].behind][1:]
    listed = ", ".join(f"`{name}`" for name in alike if name in best)
    more = len(alike) - sum(name in best for name in alike)
    listed += f" and {more} more" if more else ""
    said += f"; {listed} cannot be told apart from it. " if alike else ". "
    credit = scores.credits(board.work(unit)).mean(axis=2)
    numbers = [board.names.index(name) for name in best]
    spread = np.ptp(credit[numbers], axis=0)
    k = int(spread.argmax())
    task = list(board.track.tasks)[k]
    high, low = (best[int(f(credit[numbers, k]))] for f in (np.argmax, np.argmin))
    work = board.work(unit)
    phrases = [
        task_phrase(name, work[board.names.index(name), k], WORDS[unit]) for name in (high, low)
    ]
    most = f"What separates these {len(best)} most is `{task}`"
    return f"{said}{most}: {phrases[0]} against {phrases[1]}."


def method_text(board: Board, method: str) -> str:
    """One method against all others; raises BadSetting if it has no complete entry."""
    if method not in board.entries:
        known = ", ".join(board.names) or "none"
        raise BadSetting(f"--method {method}: no complete entry in {board.name}; there is {known}")
    unit, work = board.track.scored, board.work(board.track.scored)
    own = work[board.names.index(method)]
    place = next(place for place in board.places(unit) if place.method == method)
    rows = []
    for k, task in enumerate(board.track.tasks):
        credit = scores.credits(work)[:, k].mean(axis=1)
        best = int(credit.argmax())
        found = board.entries[method][task]
        good, tried = scores.count_good(found), len(found.trials.status)
        settings = ", ".join(f"{key}={value}" for key, value in found.runs[0].settings.items())
        rows.append(
            [
                f"`{task}`",
                task_phrase(method, own[k], WORDS[unit]),
                task_phrase(board.names[best], work[best, k], WORDS[unit]),
                f"{good} of {tried}",
                settings,
            ]
        )
    head = ["task", "work to the target", "least of all", "good trials", "chosen settings"]
    remark = f" {OUTDATED}" if method in board.outdated else ""
    failed = failure_lines(board, method)
    last = "\n".join(["\nRuns that raised or were killed:\n", *failed, ""]) if failed else ""
    return (
        f"# {method} in {board.name}\n\nRank {rank_text(place.rank)} of {len(board.entries)}, "
        f"area over {WORDS[unit]} {shown(place.area)}. "
        f"Repeat it: `{board.records[method].command}`.{remark}\n\n"
        f"{markdown_table(head, rows)}{last}"
    )
