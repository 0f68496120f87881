"""The commands `reproduce league ...`: set targets, enter methods, say what came of it."""

import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from bench.core.settings import BadSetting
from bench.reproduce.making import time_limit
from bench.reproduce.options import OK, RUNS, KnownResults, Results, Runs
from bench.reproduce.places import RESULTS
from bench.reproduce.terminal import err, out
from bench.runs.exit_codes import PUT_OFF
from bench.runs.importing import import_torch

if TYPE_CHECKING:
    from bench.reproduce.league.running import League

app = typer.Typer(
    no_args_is_help=True,
    help="The methods of a track on the same tasks under one tuning budget: docs/league.md",
)
TrackNames = Annotated[
    list[str] | None,
    typer.Option("--track", help="may be given again; default: all tracks"),
]
Methods = Annotated[
    list[str] | None,
    typer.Option("--method", help="by its yaml; may be given again; default: the track's"),
]
DataRoot = Annotated[Path, typer.Option("--data", help="where data sets are", envvar="BENCH_DATA")]
Tracks = Annotated[Path | None, typer.Option("--tracks", help="another folder of tracks")]
DATA = Path("~/.cache/bilevel-bench")


@app.command()
def targets(
    track: TrackNames = None,
    data: DataRoot = DATA,
    results: Results = RESULTS,
    tracks: Tracks = None,
) -> None:
    """Set the targets of a track, by closed forms and reference runs, before anybody enters it."""
    import_torch()
    from bench.reproduce.league import rules
    from bench.reproduce.league import targets as setting

    folder = tracks or rules.own_tracks()
    for name in track or rules.track_names(folder):
        found = setting.make_targets(
            rules.read_track(name, folder),
            name,
            data.expanduser(),
            setting.read_targets(name, results),
            keep=partial(setting.write_targets, results=results),
        )
        out.print(f"{setting.write_targets(found, results)}")


@app.command()
def plan(
    track: TrackNames = None,
    method: Methods = None,
    data: DataRoot = DATA,
    runs: Runs = RUNS,
    results: Results = RESULTS,
    tracks: Tracks = None,
) -> None:
    """Print one command for each entry that is not complete: each can be a job of its own."""
    import_torch()
    from bench.reproduce.league.running import check_targets, recorded, standing

    places = {"--data": (data, DATA), "--runs": (runs, RUNS), "--results": (results, RESULTS)}
    given = {name: place for name, (place, usual) in places.items() if place != usual}
    given |= {"--tracks": tracks} if tracks else {}
    rest = "".join(f" {name} {shlex.quote(str(place))}" for name, place in given.items())
    for league in leagues(track, data, runs, results, tracks):
        check_targets(league)
        complete = recorded(league)
        for name in [n for n in method or league.track.methods if n not in complete]:
            there = standing(league, name)
            command = f"reproduce league run --track {league.name} --method {name}{rest}"
            out.print(f"{command}  # {there.done} of {there.asked} runs are there")


@app.command()
def run(
    track: TrackNames = None,
    method: Methods = None,
    hours: Annotated[
        float | None,
        typer.Option(
            min=0.001, help="stop after so long, with exit code 130; the same command goes on"
        ),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="tasks at a time, a core each")] = 1,
    data: DataRoot = DATA,
    runs: Runs = RUNS,
    results: Results = RESULTS,
    tracks: Tracks = None,
) -> None:
    """Enter methods in a track: tune, score and record them. A killed one goes on where it was.

    A method of a package of your own enters in the same way; its record is kept beside the others,
    none of which is run again. An entry that another process is making is left to that one: then
    the exit code is 75.
    """
    import_torch()
    from bench.reproduce.league.running import check_targets, enter_all

    code = OK
    with time_limit(hours):
        for league in leagues(track, data, runs, results, tracks):
            check_targets(league)
            for file in enter_all(league, method, jobs):
                if file is None:
                    code = PUT_OFF
                else:
                    out.print(f"{file}")
    raise typer.Exit(code)


@app.command()
def report(
    track: TrackNames = None,
    method: Annotated[str | None, typer.Option("--method", help="this one against all")] = None,
    results: KnownResults = RESULTS,
    tracks: Tracks = None,
) -> None:
    """Say what the records hold: places, advice and failures, or one method against all others."""
    from bench.reproduce.league import page, rules

    boards = page.read_boards(tracks or rules.own_tracks(), results, track)
    if method is None:
        out.print(Text(page.league_text(boards)))
        return
    entered = [board for board in boards if track or method in board.entries]
    if not entered:
        raise BadSetting(f"--method {method}: it has no complete entry in any track")
    for board in entered:
        out.print(Text(page.method_text(board, method)))


def leagues(
    track: list[str] | None, data: Path, runs: Path, results: Path, tracks: Path | None
) -> "list[League]":
    """The tracks that are asked for, with their targets; raises BadSetting."""
    from bench.reproduce.league import rules
    from bench.reproduce.league.running import League
    from bench.reproduce.league.targets import command_of, read_targets

    folder = tracks or rules.own_tracks()
    found = []
    for name in track or rules.track_names(folder):
        rule = rules.read_track(name, folder)
        known = read_targets(name, results)
        if known is None:
            raise BadSetting(
                f"--track {name}: it has no targets in {results}: write "
                f"{command_of(name, folder, results)}"
            )
        places = (runs.expanduser(), results, data.expanduser())
        found.append(
            League(name, rule, folder, known, *places, tell=lambda line: err.print(Text(line)))
        )
    return found
