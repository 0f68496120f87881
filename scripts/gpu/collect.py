"""Puts what came back from a lent machine into the root of its runs, from where the next goes on.

    uv run python -m scripts.gpu.collect FOLDER [--root runs-gpu] [--results results]

FOLDER is what scripts.gpu.run called OUT. A run that has ended below the root, or has come further
there, stays as it is. Then `reproduce report ID --budget gpu --runs runs-gpu --record` makes the
record of an artifact, complete or not.
"""

import argparse
import os
import sys
from pathlib import Path

from scripts.gpu.state import Broken, collect


def main() -> int:
    """The exit code: 0, 1 where some file is damaged, or 2 where there is nothing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--root", type=Path, default=Path("runs-gpu"), help="run folders")
    parser.add_argument("--results", type=Path, default=Path("results"))
    data = os.environ.get("BENCH_DATA", "~/.cache/bilevel-bench")
    parser.add_argument("--data", type=Path, default=Path(data), help="data root, for derived data")
    given = parser.parse_args()
    places = {
        "runs": given.root.expanduser(),
        "results": given.results,
        "derived": given.data.expanduser() / "derived",
    }
    try:
        counts = collect(given.folder, places)
    except Broken as reason:
        print(f"gpu.collect: {reason}", file=sys.stderr)
        return 1 if any(given.folder.glob("*.tar.gz")) else 2
    print(", ".join(f"{count} {what}" for what, count in counts.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
