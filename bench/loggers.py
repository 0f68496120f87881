"""Where a run's rows go besides its own history: nowhere, or to Weights & Biases."""

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit


class About(NamedTuple):
    """The run that a logger is told of."""

    name: str  # task/algorithm/hash
    config: dict[str, Any]
    folder: Path


class Logger(NamedTuple):
    row: Callable[[dict[str, Any]], None]
    close: Callable[[int], None]  # with the exit code


def local(about: About) -> Logger:
    """The run folder only."""
    return Logger(lambda row: None, lambda code: None)


def wandb(
    about: About,
    project: str = "bilevel-bench",
    entity: str | None = None,
    mode: Literal["auto", "online", "offline"] = "auto",
    group: str | None = None,
    tags: tuple[str, ...] = (),
) -> Logger:
    """Weights & Biases: job type = algorithm, id = the run's hash, group = the task by default.

    The id makes a resumed run the same W&B run; steps are explicit, so that parts merge when
    they are synced. "auto" is online with WANDB_API_KEY set and a host that answers within two
    seconds (W&B itself would wait for minutes). Files go to <run folder>/wandb.
    """
    import wandb as library

    task, algorithm, key = about.name.split("/")
    host = library.Settings().base_url
    if mode == "auto":
        online = bool(os.environ.get("WANDB_API_KEY")) and answers(host)
        chosen: Literal["online", "offline"] = "online" if online else "offline"
    else:
        chosen = mode
    run = library.init(
        project=project,
        entity=entity,
        id=key,
        name=f"{task}-{algorithm}-{key}",
        group=group or task,
        job_type=algorithm,
        tags=list(tags),
        config=about.config,
        dir=str(about.folder),
        mode=chosen,
        resume="allow" if chosen == "online" else None,
        settings=library.Settings(silent=True, console="off"),
    )

    def log(row: dict[str, Any]) -> None:
        run.log(row, step=row["step"])

    return Logger(log, lambda code: run.finish(exit_code=code))


def answers(url: str, within: float = 2.0) -> bool:
    """Whether the host of `url` accepts a connection in time, name look-up included."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    reached = threading.Event()

    def probe() -> None:
        try:
            socket.create_connection((parts.hostname or "", port), timeout=within).close()
            reached.set()
        except OSError:
            pass

    thread = threading.Thread(target=probe, daemon=True)  # a look-up cannot be interrupted
    thread.start()
    thread.join(within)
    return reached.is_set()
