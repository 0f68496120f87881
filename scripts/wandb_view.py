"""Build the W&B workspace that shows an artifact's runs as `reproduce report` does.

    uv run --extra workspaces python scripts/wandb_view.py bome/fig2_mnist --budget short

`reproduce run ID --budget B logger=wandb` puts an artifact's runs into one W&B group. This script
saves a workspace of the project with a panel for each metric and axis of the artifact's figure;
runs are coloured and grouped by row and variant. It needs a key, as it writes to the server.
"""

import argparse
import sys
from typing import Any

from bench.core.settings import BadSetting
from bench.reproduce.book import find_artifacts, load_book
from bench.reproduce.schema import BUDGETS
from bench.reproduce.specs import Artifact, Book
from bench.runs.loggers import has_key, one_line, ready_wandb
from bench.runs.wandb_run import CALLS

AXES = {"step": "Step", "calls": CALLS}  # W&B's names of those that it calls otherwise


def workspace(
    artifact: Artifact, book: Book, budget: str, entity: str, project: str, group: str | None
) -> Any:
    """The workspace, not yet saved: a section for each axis, with a line plot for each metric.

    group: that of the runs; None: the artifact's own.
    """
    import wandb_workspaces.reports.v2 as wr
    import wandb_workspaces.workspaces as ws

    spec = artifact.spec

    def label(name: str) -> str:
        return book.metric(spec.task, name).label

    sections = [
        ws.Section(
            name=f"against {label(axis)}",
            panels=[
                wr.LinePlot(  # type: ignore[attr-defined]
                    title=label(metric),
                    x=AXES.get(axis, axis),
                    y=[metric],
                    log_y=metric in spec.figure.log or None,
                    groupby="label",
                    aggregate=True,
                )
                for metric in spec.figure.metrics
            ],
            is_open=i == 0,
        )
        for i, axis in enumerate(spec.figure.axes)
    ]
    paper, name = artifact.id.split("/")
    runset = ws.RunsetSettings(
        filters=[ws.Metric("Group") == (group or f"{paper}-{name}-{budget}")]
    )
    return ws.Workspace(
        entity=entity,
        project=project,
        name=f"{spec.title} ({budget})",
        sections=sections,
        runset_settings=runset,
    )


def main() -> int:
    """The exit code: 0, or 2 where something is refused."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("artifact", metavar="ID", help="as `reproduce list` shows it")
    parser.add_argument("--budget", default="short", choices=BUDGETS)
    parser.add_argument("--project", default="bilevel-bench")
    parser.add_argument("--entity", help="the account; default: that of the key")
    parser.add_argument("--group", help="logger.group of the runs; default: the artifact's")
    arguments = parser.parse_args()
    try:
        book = load_book()
        artifact = find_artifacts(book, [arguments.artifact])[0]
        if arguments.budget not in artifact.spec.budgets:
            raise BadSetting(f"--budget {arguments.budget}: {artifact.id} does not have it")
        library = ready_wandb()
        host = library.setup().settings.base_url
        if not has_key(host):
            raise BadSetting(
                f"there is no key for {host}: a workspace lives on that server; write "
                "WANDB_API_KEY=... before the command, or call `wandb login` once, or use "
                "`reproduce report`, which needs none"
            )
        try:
            entity: Any = arguments.entity or library.Api().default_entity
            made = workspace(
                artifact, book, arguments.budget, entity, arguments.project, arguments.group
            )
            made.save()
        except (library.Error, ValueError, OSError) as error:  # such as an unknown project
            raise BadSetting(f"W&B refuses it: {one_line(error)}") from None
        print(made.url)
    except BadSetting as error:
        print(f"wandb_view: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
