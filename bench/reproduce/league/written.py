"""The files that `reproduce findings` writes from the records of the league."""

from pathlib import Path

from bench.reproduce.league.page import Board, findings_text, league_text, read_boards
from bench.reproduce.league.pictures import draw_profiles, draw_sensitivity
from bench.reproduce.league.rules import own_tracks
from bench.reproduce.readme import replace_parts


def own_boards(results: Path) -> list[Board]:
    """The boards of this project's tracks, of the methods of this project."""
    return [
        board.only([name for name in board.names if board.records[name].package is None])
        for board in read_boards(own_tracks(), results)
    ]


def league_findings(results: Path) -> str:
    """The marked part of docs/findings.md; raises BadSetting if a record is damaged."""
    return findings_text(own_boards(results))


def league_files(page: Path, results: Path) -> dict[Path, str]:
    """The new contents of the league's page and of the pictures beside it, by their paths.

    Raises BadSetting if a record is damaged, or if the page lacks its marked part.
    """
    boards = [board for board in own_boards(results) if len(board.entries) > 1]
    fresh = {page: replace_parts(page, {"league": league_text(boards)})}
    for board in boards:
        fresh[page.parent / f"league_{board.name}.svg"] = draw_profiles(board)
        fresh[page.parent / f"league_{board.name}_tuning.svg"] = draw_sensitivity(board)
    return fresh
