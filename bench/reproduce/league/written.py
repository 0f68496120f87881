"""The files that `reproduce findings` writes from the records of the league."""

from collections.abc import Iterable
from pathlib import Path

from bench.reproduce.league.page import Board, league_text, read_boards
from bench.reproduce.league.pictures import draw_profiles, draw_sensitivity
from bench.reproduce.league.rules import own_tracks
from bench.reproduce.readme import replace_parts


def own_boards(results: Path) -> list[Board]:
    """The boards of this project's tracks, of the methods of this project.

    Raises BadSetting if a record is damaged.
    """
    return [
        board.only([name for name in board.names if board.records[name].package is None])
        for board in read_boards(own_tracks(), results)
    ]


def league_files(page: Path, boards: Iterable[Board]) -> dict[Path, str]:
    """The new contents of the league's page and of the pictures beside it, by their paths.

    Raises BadSetting if the page lacks its marked part.
    """
    boards = [board for board in boards if len(board.entries) > 1]
    fresh = {page: replace_parts(page, {"league": league_text(boards)})}
    for board in boards:
        fresh[page.parent / f"league_{board.name}.svg"] = draw_profiles(board)
        fresh[page.parent / f"league_{board.name}_tuning.svg"] = draw_sensitivity(board)
    return fresh
