"""Options that several commands of `reproduce` have, and its exit codes."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from bench.core.settings import BadSetting
from bench.reproduce.places import RESULTS

OK, FAILED, REFUSED, UNJUDGED, INTERRUPTED = 0, 1, 2, 3, 130  # exit codes


class BudgetName(StrEnum):
    smoke = "smoke"
    short = "short"
    medium = "medium"
    gpu = "gpu"
    full = "full"


class VariantName(StrEnum):
    paper = "paper"
    code = "code"


class LauncherName(StrEnum):
    local = "local"
    slurm = "slurm"


def complete_id(start: str) -> list[str]:
    """The artifacts of this project, and its papers, that begin so, for the shell's completion."""
    from bench.reproduce.book import own_specs

    files = sorted(own_specs().glob("*/[!_]*.yaml"))
    ids = [f"{file.parent.name}/{file.stem}" for file in files]
    papers = dict.fromkeys(file.parent.name for file in files)
    return [name for name in [*papers, *ids] if name.startswith(start)]


Ids = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[ID]...",
        help="artifacts or papers; default: all",
        autocompletion=complete_id,
    ),
]


def possible_folder(results: Path) -> Path:
    """This folder of records, which may have none yet; raises BadSetting if it is a file."""
    if results.exists() and not results.is_dir():
        raise BadSetting(f"--results {results}: this is no folder")
    return results


def known_folder(results: Path) -> Path:
    """This folder of records; raises BadSetting if it is not there, unless it is the default."""
    if results != RESULTS and not results.is_dir():
        raise BadSetting(f"--results {results}: there is no such folder")
    return results


Runs = Annotated[Path, typer.Option(help="where run folders are", envvar="BENCH_RUNS")]
Specs = Annotated[Path | None, typer.Option(help="another folder of specs", envvar="BENCH_SPECS")]
Results = Annotated[
    Path, typer.Option(help="where records are, and then in the package", callback=possible_folder)
]
KnownResults = Annotated[  # of commands that need records
    Path, typer.Option(help="where records are, and then in the package", callback=known_folder)
]
AtBudget = Annotated[BudgetName, typer.Option("--budget", help="the scale of the runs")]
MaybeBudget = Annotated[
    BudgetName | None,
    typer.Option("--budget", help="default: the largest that has finished runs or verdicts"),
]
MaybeVariant = Annotated[VariantName | None, typer.Option("--variant", help="default: both")]
RUNS = Path("runs")
