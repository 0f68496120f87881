"""Where records are read: in results/ of the current folder, or else those of this project.

A wheel has them within its package, a clone in its results/.
"""

from pathlib import Path

RESULTS = Path("results")  # also where they are written
BENCH = Path(__file__).resolve().parent.parent
CLONED = BENCH.parent / "results"
PACKAGED = BENCH / "recorded_results"  # there in a wheel only


def readable(name: str, results: Path) -> Path:
    """The file of this name below `results`.

    Where that is the default and has no such file, it is the project's own, if that has one.
    """
    file = results / name
    if results == RESULTS and not file.exists():
        return next((own / name for own in (PACKAGED, CLONED) if (own / name).exists()), file)
    return file
