"""Shows a run to a person at a terminal: a bar while it goes on, and a table when it ends."""

import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

from bench.runs.better import Best, Better, improves

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

TIME, VALUE = 7, 10  # characters of a time that is left, and of a metric's value
LEAST_BAR, MOST_BAR = 10, 40


def can_show_bar(console: Console) -> bool:
    """Whether a bar can move there: in a terminal, or in a notebook that has widgets."""
    if console.is_jupyter:
        return find_spec("ipywidgets") is not None  # without them rich warns, and shows nothing
    return sys.stderr.isatty()


class Screen:
    """A progress bar on standard error or in a notebook, whose parts keep their widths."""

    def __init__(
        self,
        name: str,
        steps: int,
        done: int,
        metric: str,
        shown: bool | None = None,
        better: Better | None = None,
        best: Best | None = None,
    ):
        """shown: None: where a bar can move, and nothing elsewhere. better: which values of the
        metric are, if this is known. best: the best one so far."""
        self.metric, self.better, self.best = metric, better, best
        console = Console(stderr=True)
        parts = name.split("/")[:2]
        self.with_best = better is not None
        title, self.label = " ".join(parts), metric.replace("_", " ")
        room = console.width - 2 * len(str(steps)) - TIME - 6 - LEAST_BAR  # for title and metric
        if len(title) + len(self.seen(0.0)) > room:
            title = parts[-1]
        if len(title) + len(self.seen(0.0)) > room:
            self.with_best = False
        if len(title) + len(self.seen(0.0)) > room:
            self.label = self.label[: max(4, room - len(title) - VALUE - 1)]
        wide = len(self.seen(0.0))
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(min(MOST_BAR, LEAST_BAR + max(0, room - len(title) - wide))),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True, table_column=Column(width=TIME, justify="right")),
            TextColumn("{task.fields[seen]}", table_column=Column(width=wide, no_wrap=True)),
            console=console,
            disable=not (can_show_bar(console) if shown is None else shown),
        )
        self.task = self.bar.add_task(title, total=steps, completed=done, seen="")

    def seen(self, value: float | None) -> str:
        """The metric's last value, and the best one so far, in as many characters each time."""
        best = self.best.value if self.best else value
        words = f"{self.label} {show_value(value):>{VALUE}}"
        return f"{words}, best {show_value(best):>{VALUE}}" if self.with_best else words

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
        value = row[self.metric]
        if self.better and improves(value, self.best, self.better):
            self.best = Best(value, row["step"])
        self.bar.update(self.task, seen=self.seen(value))


def show_value(value: float | None) -> str:
    """A value of a metric with four digits."""
    return "not finite" if value is None else f"{value:.4g}"


def show_summary(
    summary: dict[str, Any],
    folder: Path,
    remark: str = "",
    better: Mapping[str, Better] | None = None,
    best: Mapping[str, Best] | None = None,
) -> None:
    """Print the end of a run as a table on standard output.

    remark: a line that is printed below the table. better: for each metric whether higher or lower
    values are, where this is known. best: the best value of a metric so far.
    """
    console = Console(soft_wrap=True, markup=False)
    console.print(Text(summary["name"], style="italic"))
    if summary["status"] != "done":
        console.print(Text(f" {summary['status']}  {summary['reason']}", style="bold"))
    console.print(metrics_table(summary, better or {}, best or {}))
    console.print(costs_table(summary))
    console.print(f"{folder}", highlight=False)
    if remark:
        console.print(remark, highlight=False)


def metrics_table(
    summary: dict[str, Any], better: Mapping[str, Better], best: Mapping[str, Best]
) -> Table:
    """The last values of a run, each with the lines that it is held against below it."""
    last, references = summary["last"], dict(summary["references"])
    names = [n for n in last if "/" not in n and n not in ("step", "seconds", "cpu_seconds")]
    told = any(name in better for name in names)
    table = Table(show_header=told, box=None, header_style="dim")
    table.add_column(style="bold")
    table.add_column("at the end", justify="right")
    if told:
        for heading in ("best so far", "at step", "better is"):
            table.add_column(heading, justify="right")
    for name in names:
        cells = [name.replace("_", " "), show_value(last[name])]
        if name in best:
            cells += [show_value(best[name].value), f"{best[name].step:,}"]
        if name in better:
            cells += [""] * (4 - len(cells)) + [better[name]]
        table.add_row(*cells)
        for line in [line for line in references if line.startswith(f"{name} of ")]:
            table.add_row(line.replace("_", " "), show_value(references.pop(line)), style="dim")
    for line, value in references.items():
        table.add_row(line.replace("_", " "), show_value(value), style="dim")
    return table


def costs_table(summary: dict[str, Any]) -> Table:
    """What a run spent."""
    last = summary["last"]
    table = Table(show_header=False, box=None)
    table.add_column(style="bold")
    table.add_column(justify="right")
    for key, label in COSTS.items():
        if f"calls/{key}" in last:
            samples = last.get(f"samples/{key}", 0)
            over = f" over {samples:,} samples" if samples > last[f"calls/{key}"] else ""
            table.add_row(label, f"{last[f'calls/{key}']:,}{over}")
    table.add_row("steps", f"{last['step']:,}")
    table.add_row("seconds of steps", f"{last['seconds']:.3g}")
    table.add_row("peak memory", f"{summary['peak_memory_mb']['process']:,.0f} MB")
    return table


def summary_line(summary: dict[str, Any]) -> str:
    """The end of a run in one line: its name, with the metric's last value or why it diverged."""
    metric = summary.get("metric", "step")  # a foreign summary may lack it
    value = summary["last"].get(metric)
    end = summary["reason"] or f"{metric.replace('_', ' ')} {show_value(value)}"
    return f"{summary['name']}: {end}"
