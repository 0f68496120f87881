"""Where a run's rows go besides its own history: nowhere, or to Weights & Biases."""

import os
import socket
import sys
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
    seconds (W&B itself would wait for minutes). Files go to <run folder>/wandb. A network that
    goes away later ends nothing: what is not sent is on disk, for scripts/wandb_sync.sh.
    """
    import wandb as library

    task, algorithm, key = about.name.split("/")
    host = library.Settings().base_url
    if mode == "auto":
        online = bool(os.environ.get("WANDB_API_KEY")) and answers(host)
        chosen: Literal["online", "offline"] = "online" if online else "offline"
    else:
        chosen = mode

    def begin(mode: Literal["online", "offline"]) -> library.Run:
        return library.init(
            project=project,
            entity=entity,
            id=key,
            name=f"{task}-{algorithm}-{key}",
            group=group or task,
            job_type=algorithm,
            tags=list(tags),
            config=about.config,
            dir=str(about.folder),
            mode=mode,
            resume="allow" if mode == "online" else None,
            settings=library.Settings(silent=True, console="off", init_timeout=20),
        )

    try:
        run = begin(chosen)
    except library.Error as error:  # no such entity, a key that is refused, a host gone silent
        if chosen == "offline":
            raise
        print(f"bench: W&B is not to be had ({error}); offline now", file=sys.stderr)
        run = begin("offline")
    return mirror(
        lambda row: run.log(row, step=row["step"]), lambda code: run.finish(exit_code=code)
    )


def mirror(
    log: Callable[[dict[str, Any]], None], finish: Callable[[int], None], within: float = 60.0
) -> Logger:
    """A logger whose failures are told once, and whose end is waited for so many seconds."""
    told: list[str] = []

    def tell(why: object) -> None:
        if not told:
            print(f"bench: W&B: {why}; scripts/wandb_sync.sh sends the rest", file=sys.stderr)
        told.append(str(why))

    def row(values: dict[str, Any]) -> None:
        try:
            log(values)
        except Exception as error:
            tell(error)

    def close(code: int) -> None:
        def end() -> None:
            try:
                finish(code)
            except Exception as error:
                tell(error)

        thread = threading.Thread(target=end, daemon=True)  # sending cannot be interrupted
        thread.start()
        thread.join(within)
        if thread.is_alive():
            tell(f"not all was sent within {within:g} s")

    return Logger(row, close)


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
