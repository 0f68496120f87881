"""A benchmark of bilevel optimisation, and its methods for problems of your own.

`from bench import solve` solves a problem that is given as Python functions. What a file of an
algorithm or a task needs comes from here too:
`from bench import Algorithm, Cost, Count, Draw, Oracle, Positive`.

Names are imported when they are first used, because most of them need torch, which is slow to
import.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench.core.algorithm import Algorithm as Algorithm
    from bench.core.algorithm import Cost as Cost
    from bench.core.algorithm import Moment as Moment
    from bench.core.draw import Draw as Draw
    from bench.core.draw import RowSampler as RowSampler
    from bench.core.draw import generator as generator
    from bench.core.loop import Diverged as Diverged
    from bench.core.oracle import Oracle as Oracle
    from bench.core.settings import BadSetting as BadSetting
    from bench.core.settings import Count as Count
    from bench.core.settings import Finite as Finite
    from bench.core.settings import Fraction as Fraction
    from bench.core.settings import Natural as Natural
    from bench.core.settings import NonNegative as NonNegative
    from bench.core.settings import Positive as Positive
    from bench.core.settings import Rate as Rate
    from bench.core.settings import version as version
    from bench.core.stream import Samples as Samples
    from bench.core.stream import Stream as Stream
    from bench.core.task import Batch as Batch
    from bench.core.task import Context as Context
    from bench.core.task import Data as Data
    from bench.core.task import Derivatives as Derivatives
    from bench.core.task import InnerLoop as InnerLoop
    from bench.core.task import Ledger as Ledger
    from bench.core.task import Partials as Partials
    from bench.core.task import Report as Report
    from bench.core.task import Selection as Selection
    from bench.core.task import Set as Set
    from bench.core.task import Tally as Tally
    from bench.core.task import Task as Task
    from bench.core.task import Wrt as Wrt
    from bench.core.view import heatmap as heatmap
    from bench.core.view import histogram as histogram
    from bench.numerics.descent import Descent as Descent
    from bench.numerics.descent import heavy_ball as heavy_ball
    from bench.numerics.packing import Functional as Functional
    from bench.numerics.sets import box as box
    from bench.numerics.sets import l1_ball as l1_ball
    from bench.numerics.sets import l2_ball as l2_ball
    from bench.numerics.sets import nuclear_ball as nuclear_ball
    from bench.numerics.sets import simplex as simplex
    from bench.numerics.sets import spanning_trees as spanning_trees
    from bench.numerics.solve import cg as cg
    from bench.numerics.solve import neumann as neumann
    from bench.solving.call import solve as solve
    from bench.solving.methods import Method as Method
    from bench.solving.methods import methods as methods
    from bench.solving.solution import Interrupted as Interrupted
    from bench.solving.solution import Solution as Solution

# where each name above is; tests/test_names.py holds the two lists against each other
MODULES = {
    "bench.core.algorithm": ("Algorithm", "Cost", "Moment"),
    "bench.core.draw": ("Draw", "RowSampler", "generator"),
    "bench.core.loop": ("Diverged",),
    "bench.core.oracle": ("Oracle",),
    "bench.core.settings": (
        "BadSetting", "Count", "Finite", "Fraction", "Natural", "NonNegative", "Positive", "Rate",
        "version",
    ),
    "bench.core.stream": ("Samples", "Stream"),
    "bench.core.task": (
        "Batch", "Context", "Data", "Derivatives", "InnerLoop", "Ledger", "Partials", "Report",
        "Selection", "Set", "Tally", "Task", "Wrt",
    ),
    "bench.core.view": ("heatmap", "histogram"),
    "bench.numerics.descent": ("Descent", "heavy_ball"),
    "bench.numerics.packing": ("Functional",),
    "bench.numerics.sets": (
        "box", "l1_ball", "l2_ball", "nuclear_ball", "simplex", "spanning_trees",
    ),
    "bench.numerics.solve": ("cg", "neumann"),
    "bench.solving.call": ("solve",),
    "bench.solving.methods": ("Method", "methods"),
    "bench.solving.solution": ("Interrupted", "Solution"),
}  # fmt: skip
WHERE = {name: module for module, names in MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """A public name, imported from where it is; raises AttributeError for any other."""
    if name not in WHERE:
        raise AttributeError(f"module 'bench' has no attribute {name!r}")
    value = getattr(import_module(WHERE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names."""
    return sorted(WHERE)
