"""Send to Weights & Biases what it lacks of runs with `logger=wandb`.

    WANDB_API_KEY=... uv run python scripts/wandb_sync.py [RUNS] [--all --project P]

These runs were offline, or were killed, or their host fell silent. The script sends those rows
of the run folder that the host does not have, and the summary, then asks the host whether it has
all, and only then marks the run as sent. `wandb sync` would append every row that it finds in W&B's
own files, also to those that the host has already. A run that was online is asked for once.

With --all finished runs are sent too that were made without W&B; the host is asked for these each
time.

The exit code is 0, 1 if a run was not sent, and 2 where something is refused.
"""

import argparse
import os
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from bench.core.settings import BadSetting, check_settings
from bench.runs.exit_codes import FAILED, INTERRUPTED, PUT_OFF
from bench.runs.folder import LOST, RunFolder, folder_of, folders_below
from bench.runs.logger import About, Logger
from bench.runs.loggers import answers, has_key, is_wandb, one_line, ready_wandb, send_within
from bench.runs.recording import exit_code
from bench.runs.wandb_run import Mirrored, Shown, all_parts, is_sent, mark_sent, open_wandb

LIMIT = 300.0  # seconds to wait for the host, for each run
CODES = {"interrupted": INTERRUPTED, "preempted": PUT_OFF}


def has_unsent(folder: RunFolder, everything: bool) -> bool:
    """Whether W&B may lack something of a run: some part is not marked as sent.

    everything: runs that were made without W&B count too, if they have ended.
    """
    parts = all_parts(folder.path)
    if everything and not parts:
        return folder.summary_file.is_file()
    return not all(map(is_sent, parts))


def shown_under(config: dict[str, Any], otherwise: Shown | None) -> Shown:
    """What W&B shows a run under, by the run's configuration.

    otherwise: for a run whose configuration does not say so. Raises BadSetting if it is None then.
    """
    node = config["logger"]
    if not isinstance(node, dict) or not is_wandb(node):
        if otherwise is not None:
            return otherwise
        raise BadSetting(
            "its last process had another logger, so that config.yaml names no project; "
            "`wandb sync FOLDER/wandb/offline-run-*` sends what is offline"
        )
    found = check_settings(node, "logger", Logger, given=("about",))
    return Shown(
        found["project"],
        found["entity"],
        found["group"],
        tuple(found["tags"]),
        found["labels"] or {},
    )


def ending(folder: RunFolder) -> tuple[dict[str, Any], int]:
    """The summary of a run and its exit code; if it has not ended, the summary says why."""
    summary = folder.summary()
    if summary is not None:
        return summary, exit_code(summary)
    left = folder.status_note() or LOST._asdict()  # `state` would say that this process has it
    status = left["status"]
    return {"status": status, "reason": left["reason"]}, CODES.get(status, FAILED)


def send(library: Any, folder: RunFolder, otherwise: Shown | None = None) -> bool:
    """Send what W&B lacks of a run, which nobody makes now; whether there was anything.

    otherwise: see `shown_under`. Raises BadSetting, the errors of W&B, and RuntimeError if the host
    does not have it afterwards: W&B raises nothing where a host that took the run refuses its rows.
    """
    config = folder.config({"logger", "seed"})
    shown = shown_under(config, otherwise)
    environment = folder.environment()
    older = (folder.summary() or {}).get("metric", "")  # than the environment's entry
    metric = environment.get("metric", older)
    about = About(folder.name, config, folder.path, metric, folder.each_row(), environment)
    last = max((row["step"] for row in about.rows), default=-1)
    for again in (False, True):
        summary, code = ending(folder)
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
            # what W&B tells of the machine and the command would be of this one
            more = {"x_disable_meta": True, "x_disable_stats": True}
            run = open_wandb(library, about, shown, "online", Path(place), **more)
            known = run.starting_step if run.resumed else 0
            there = run.summary.get("status"), run.summary.get("reason")
            whole = known > last and there == (summary["status"], summary["reason"] or "")
            if not whole and not again:
                Mirrored(run, about, online=True).end(summary)
            send_within(LIMIT, partial(run.finish, exit_code=code))
        if whole:
            return again
    raise RuntimeError(f"W&B has its rows before step {known} only")


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    where = os.environ.get("BENCH_RUNS", "runs")
    parser.add_argument("runs", nargs="?", default=where, help="the folder of runs (default: runs)")
    parser.add_argument(
        "--all", action="store_true", help="also finished runs that were made without W&B"
    )
    parser.add_argument("--project", default="bilevel-bench", help="where these go")
    parser.add_argument("--entity", help="whose that project is (default: the key's)")
    parser.add_argument("--group", help="of these runs (default: the task of each)")
    given = parser.parse_args()
    otherwise = Shown(given.project, given.entity, given.group, (), {}) if given.all else None
    root = Path(given.runs)
    if not root.is_dir():
        print(f"wandb_sync: {root} is not there: write wandb_sync.py RUNS", file=sys.stderr)
        return 2
    waiting = [folder for folder in folders_below(root.resolve()) if has_unsent(folder, given.all)]
    if not waiting:
        print(f"wandb_sync: nothing to send below {root}")
        return 0
    try:
        library = ready_wandb()
    except BadSetting as error:
        print(f"wandb_sync: {error}", file=sys.stderr)
        return 2
    host, failed = library.setup().settings.base_url, 0
    if not has_key(host):
        print(
            f"wandb_sync: there is no key for {host}: write WANDB_API_KEY=... before the command, "
            "or call `wandb login` once",
            file=sys.stderr,
        )
        return 2
    if not answers(host, within=10.0):
        print(f"wandb_sync: {host} does not answer; nothing was sent", file=sys.stderr)
        return 1
    for found in waiting:
        try:
            folder = folder_of(str(found.root), found.name)  # refuses links
            with folder.lock():
                news = send(library, folder, otherwise)
                for part in all_parts(folder.path):
                    mark_sent(part)
            print(f"{folder.path}: {'sent' if news else 'W&B had all'}")
        except Exception as error:  # of one run, after which the others are sent
            print(f"wandb_sync: {found.path} was not sent: {one_line(error)}", file=sys.stderr)
            failed += 1
    if failed:
        print(f"wandb_sync: {failed} of {len(waiting)} runs were not sent", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
