"""Damage configurations, run folders, records, specs and data in many ways: python -m scripts.fuzz

Every case is read or refused in one line; the first that ends otherwise is made as small as
possible and shown. The kinds of damage are those of tests/fuzzing.py.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from tests.fuzzing import TARGETS


def try_cases(kind: str, count: int, number: int) -> None:
    """Try so many cases of a kind; raises what a reader should not have raised.

    number: the seed of the cases.
    """
    with tempfile.TemporaryDirectory() as folder:

        @seed(number)
        @settings(
            max_examples=count,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(st.data())
        def cases(data: st.DataObject) -> None:
            TARGETS[kind](data, Path(folder))

        cases()


def main() -> None:
    """Try all kinds, and print how many cases there were."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=10_000, help="of all kinds together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the counts there too")
    given_ = parser.parse_args()
    each = -(-given_.cases // len(TARGETS))
    found = {}
    for kind in TARGETS:
        start = time.monotonic()
        try_cases(kind, each, given_.seed)
        found[kind] = each
        print(f"{kind}: {each} cases read or refused, {time.monotonic() - start:.0f} s", flush=True)
    if given_.json:
        given_.json.parent.mkdir(parents=True, exist_ok=True)
        given_.json.write_text(json.dumps({"seed": given_.seed, "cases": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
