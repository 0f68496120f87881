"""Shows a run to a person at a terminal: a bar while it goes on, and a table when it ends."""

import sys
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

COSTS = {
    "value_f": "values of f",
    "value_g": "values of g",
    "grad_f": "gradients of f",
    "grad_g": "gradients of g",
    "hvp_g": "Hessian-vector products",
    "jvp_g": "Jacobian-vector products",
    "lmo": "linear minimisations",
    "project": "projections",
}


def can_show_bar(console: Console) -> bool:
    """Whether a bar can move there: in a terminal, or in a notebook that has widgets."""
    if console.is_jupyter:
        return find_spec("ipywidgets") is not None  # without them rich warns, and shows nothing
    return sys.stderr.isatty()


class Screen:
    """A progress bar on standard error or in a notebook.

    shown: None: where a bar can move, and nothing elsewhere.
    """

    def __init__(self, name: str, steps: int, done: int, metric: str, shown: bool | None = None):
        self.metric = metric
        console = Console(stderr=True)
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("steps, left"),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[seen]}"),
            console=console,
            disable=not (can_show_bar(console) if shown is None else shown),
        )
        title = " ".join(name.split("/")[:2])
        self.task = self.bar.add_task(title, total=steps, completed=done, seen="")

    def __enter__(self) -> None:
        self.bar.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.bar.stop()

    def show_step(self, step: int) -> None:
        """Move the bar to a step."""
        self.bar.update(self.task, completed=step)

    def show_row(self, row: dict[str, Any]) -> None:
        """Show the metric of a new row beside the bar."""
        self.bar.update(self.task, seen=f"{self.metric} {row[self.metric]:.4g}")


def show_summary(summary: dict[str, Any], folder: Path, remark: str = "") -> None:
    """Print the end of a run as a table on standard output.

    remark: a line that is printed below the table.
    """
    last = summary["last"]
    table = Table(title=summary["name"], title_justify="left", show_header=False, box=None)
    table.add_column(style="bold")
    table.add_column(justify="right")
    if summary["status"] != "done":
        table.add_row(summary["status"], summary["reason"])
    for key, value in last.items():
        if "/" not in key and key not in ("step", "seconds", "cpu_seconds"):
            table.add_row(key.replace("_", " "), "not finite" if value is None else f"{value:.4g}")
    for key, value in summary["references"].items():
        table.add_row(key.replace("_", " "), f"{value:.4g}", style="dim")
    table.add_section()
    for key, label in COSTS.items():
        if f"calls/{key}" in last:
            samples = last.get(f"samples/{key}", 0)
            over = f" over {samples:,} samples" if samples > last[f"calls/{key}"] else ""
            table.add_row(label, f"{last[f'calls/{key}']:,}{over}")
    table.add_row("steps", f"{last['step']:,}")
    table.add_row("seconds of steps", f"{last['seconds']:.3g}")
    table.add_row("peak memory", f"{summary['peak_memory_mb']['process']:,.0f} MB")
    console = Console(soft_wrap=True, markup=False)
    console.print(table)
    console.print(f"{folder}", highlight=False)
    if remark:
        console.print(remark, highlight=False)


def summary_line(summary: dict[str, Any]) -> str:
    """The end of a run in one line: its name, with the metric's last value or why it diverged."""
    metric = summary.get("metric", "step")  # a foreign summary may lack it
    value = summary["last"].get(metric)
    end = summary["reason"] or (
        f"{metric.replace('_', ' ')} {'not finite' if value is None else f'{value:.4g}'}"
    )
    return f"{summary['name']}: {end}"
