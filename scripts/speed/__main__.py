"""Compare speeds: uv run python -m scripts.speed COMPARISON [options]

Contenders are first held against each other: they must compute the same. Then each takes its turn,
after one turn that warms up. The ratio is theirs / ours, above 1 where ours is faster: the
geometric mean over the turns with Student's 95% interval. With --json the lines are written as a
record; those in results/speed/ are docs/speed.md's tables.
"""

import argparse
import importlib
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

BUSY = 0.5  # of the machine's load: from here on times are not trusted
# as bench.main sets OpenMP where nobody else wants the cores
WAITING = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "20000"}


class Entry(NamedTuple):
    """A comparison in the list of --help.

    variables: the environment that it wants from the start, before torch is imported.
    """

    about: str
    variables: Mapping[str, str] = {}


COMPARISONS = {
    "gradient": Entry("one gradient, and those of six lanes at once, against autograd"),
    "hyper_cleaning": Entry("outer steps against TorchOpt, higher, BOAT and a plain loop"),
    "stochastic": Entry(
        "stochastic steps against JAX", WAITING | {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
    ),
    "parts": Entry("where the time of a compiled stochastic step goes", WAITING),
    "scaling": Entry("gradient descent by rows, features, classes, T, lanes, threads, and JAX"),
    "newsgroups": Entry("sparse closed forms against autograd through COO matrices, and TorchOpt"),
    "continual": Entry("experience replay against a plain loop and Avalanche"),
    "few_shot": Entry("episodes together against one after the other; peak memory"),
    # a second compilation must not find the first one's result
    "compile": Entry(
        "compiled steps against plain ones", WAITING | {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
    ),
    "lanes": Entry(
        "runs as lanes of one computation against one run after the other",
        WAITING | {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"},
    ),
    "replayed": Entry("steps on a GPU with replayed answers against plain ones"),
    "oracle": Entry("linear minimisation over a nuclear-norm ball against full decompositions"),
    "report": Entry("pages over a thousand run folders: seconds and memory"),
    "sweep": Entry("what a sweep of a thousand runs costs beyond their steps"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0; 1 where contenders disagree; 2 where an option is refused."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(
        prog="python -m scripts.speed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parts = parser.add_subparsers(dest="comparison", metavar="COMPARISON", required=True)
    for name, entry in COMPARISONS.items():
        if given[:1] != [name]:
            parts.add_parser(name, help=entry.about)
    if not given or given[0] not in COMPARISONS:
        parser.parse_args(given)  # this ends with the help, or with what is wrong
    name = given[0]
    os.environ.update(COMPARISONS[name].variables)

    # slow imports: only what this comparison needs, and now that the environment is as it wants
    from bench.runs.importing import import_torch

    import_torch()
    import torch
    from threadpoolctl import threadpool_limits

    from bench.core.settings import BadSetting
    from scripts.speed.harness import Comparison, Disagreement, positive
    from scripts.speed.output import print_timing, write_record

    module = importlib.import_module(f"scripts.speed.{name}")
    comparison: Comparison = module.COMPARISON
    part = parts.add_parser(
        name,
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    part.add_argument(
        "--repeats", type=positive, default=comparison.repeats, help="timed turns (%(default)s)"
    )
    part.add_argument("--threads", type=positive, default=2, help="threads (%(default)s)")
    part.add_argument("--json", type=Path, metavar="FILE", help="write the lines here as well")
    part.add_argument("--smoke", action="store_true", help="smallest sizes, one turn: a trial")
    comparison.add_options(part)
    options = parser.parse_args(given)
    if options.smoke:
        part.set_defaults(repeats=1, **comparison.smoke)
        options = parser.parse_args(given)

    torch.set_num_threads(options.threads)
    threadpool_limits(options.threads)  # numpy has threads of its own
    load = os.getloadavg()[0]
    print(
        f"{name}: {options.threads} threads, torch {torch.__version__}, {platform.machine()},"
        f" load {load:.1f}"
    )
    if load > BUSY:
        print("the machine was busy just now: if it still is, times can be several fold too long")
    try:
        timing = comparison.compare(options)
    except BadSetting as reason:
        print(f"speed: {reason}", file=sys.stderr)
        return 2
    except Disagreement as reason:
        print(f"speed: {reason}", file=sys.stderr)
        return 1
    print_timing(timing)
    if options.json:
        write_record(
            options.json,
            timing,
            packages=comparison.packages,
            threads=options.threads,
            load=load,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
