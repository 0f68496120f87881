"""Build the W&B workspace that shows an artifact's runs as `reproduce report` does.

    uv run --extra workspaces python scripts/wandb_view.py bome/fig2_mnist --budget short

`reproduce run ID --budget B logger=wandb` puts an artifact's runs into one W&B group. This script
saves a workspace of the project with a panel for each metric and axis of the artifact's figure;
runs are coloured and grouped by row and variant. It needs WANDB_API_KEY, as it writes to the
server.
"""

import argparse
import os
import sys
from typing import Any

from bench.core.settings import BadSetting
from bench.reproduce.book import find_artifacts, load_book
from bench.reproduce.schema import BUDGETS
from bench.reproduce.specs import Artifact, Book
from bench.runs.wandb_run import CALLS

AXES = {"step": "Step", "calls": CALLS}  # W&B's names of those that it calls otherwise


def workspace(artifact: Artifact, book: Book, budget: str, entity: str, project: str) -> Any:
    """The workspace, not yet saved: a section for each axis, with a line plot for each metric."""
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
    runset = ws.RunsetSettings(filters=[ws.Metric("Group") == f"{paper}-{name}-{budget}"])
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
    arguments = parser.parse_args()
    try:
        book = load_book()
        artifact = find_artifacts(book, [arguments.artifact])[0]
        if arguments.budget not in artifact.spec.budgets:
            raise BadSetting(f"--budget {arguments.budget}: {artifact.id} does not have it")
        if not os.environ.get("WANDB_API_KEY"):
            raise BadSetting(
                "WANDB_API_KEY is not set: a workspace lives on the W&B server; write "
                "WANDB_API_KEY=... before the command, or use `reproduce report`, which needs none"
            )
        import wandb

        entity: Any = arguments.entity or wandb.Api().default_entity
        made = workspace(artifact, book, arguments.budget, entity, arguments.project)
        made.save()
        print(made.url)
    except BadSetting as error:
        print(f"wandb_view: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
