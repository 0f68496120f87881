"""Where records are read: in results/ of the current folder, or else where a wheel has its own."""

from pathlib import Path

RESULTS = Path("results")  # also where they are written
PACKAGED = Path(__file__).resolve().parent.parent / "recorded_results"  # there in a wheel only


def readable(name: str, results: Path) -> Path:
    """The file of this name below `results`.

    Where that is the default and has no such file, it is the wheel's own, if that has one.
    """
    file, packaged = results / name, PACKAGED / name
    return packaged if results == RESULTS and not file.exists() and packaged.exists() else file
