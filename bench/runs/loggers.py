"""Loggers, which get a run's rows besides its own history; one of them is Weights & Biases."""

import configparser
import netrc
import os
import shlex
import shutil
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from bench.core.settings import BadSetting
from bench.runs.logger import About, Logger, forget
from bench.runs.wandb_run import (
    Mirrored,
    Project,
    Shown,
    Tag,
    all_parts,
    is_sent,
    open_wandb,
)


def local(about: About) -> Logger:
    """A logger that does nothing: the rows are in the run folder only."""
    return Logger(lambda row: None, lambda code: None)


def wandb(
    about: About,
    project: Project = "bilevel-bench",
    entity: str | None = None,
    mode: Literal["auto", "online", "offline"] = "auto",
    group: str | None = None,
    tags: tuple[Tag, ...] = (),
    labels: dict[str, str] | None = None,
) -> Logger:
    """Weights & Biases: job type = algorithm, id = the run's hash, group = the task by default.

    labels: what tells the run from others of its group, such as its row and variant in an artifact;
    with the seed they are its name and, as row=BOME, tags. A sweep and `reproduce run` set them.

    Because of the id, a run that goes on is the same W&B run. It sends all rows again that W&B
    lacks, since a killed process loses its last ones. With run.force=true it is a new W&B run.

    mode: "auto" is what W&B's own switches say (WANDB_MODE, WANDB_DISABLED, its settings), and
    without any it is online if there is a key, in WANDB_API_KEY or from `wandb login`, and the host
    answers within two seconds (W&B itself would wait for minutes), otherwise offline. Files go to
    <run folder>/wandb. If the network fails later, the run goes on: scripts/wandb_sync.py sends
    from the run folder what W&B lacks. Raises BadSetting where `ready_wandb` does, and where W&B
    cannot write its files either.
    """
    library = ready_wandb()
    chosen = choose_mode(library) if mode == "auto" else mode
    if chosen == "disabled":
        return local(about)
    shown = Shown(project, entity, group, tags, labels or {})
    older = unsent_parts(about.folder)

    def begin(mode: Literal["online", "offline"]) -> Any:
        return open_wandb(library, about, shown, mode, about.folder)

    try:
        run = begin(chosen)
    except ValueError as error:
        raise refused_by_wandb(error) from None
    except library.Error as error:  # an unknown entity, a wrong key, a host that is silent
        if chosen == "offline":
            raise refused_by_wandb(error) from None
        print(f"bench: W&B is not to be had ({error}); offline now", file=sys.stderr)
        chosen = "offline"
        try:
            run = begin(chosen)
        except library.Error as again:  # its service may hold on to the run that it has refused
            print(f"bench: nor offline ({again}); the run folder has all rows", file=sys.stderr)
            return local(about)
    mirrored = Mirrored(run, about, chosen == "online")
    for part in older:  # this one has their rows too
        shutil.rmtree(part, ignore_errors=True)

    def finish(code: int) -> None:
        run.finish(exit_code=code)
        if chosen == "offline" and about.alone:
            tell_offline([about.folder])

    return mirror(mirrored.log, finish, mirrored.end)


def ready_wandb() -> Any:
    """The module `wandb`, after all that can be known to be wrong before a run has begun.

    Raises BadSetting if it cannot be imported, if W&B refuses the variables or the user's own
    settings, or if `refuse_local_settings` refuses those of the current folder.
    """
    try:
        import wandb as library
    except Exception as error:  # a package that is damaged, or does not suit the others
        raise BadSetting(
            f"logger=wandb: the package wandb cannot be imported ({one_line(error)}): install it "
            "again, or write logger=local"
        ) from None
    refuse_local_settings(Path())
    try:
        library.setup()
    except (ValueError, library.Error) as error:
        raise refused_by_wandb(error) from None
    return library


def refused_by_wandb(error: Exception) -> BadSetting:
    """The refusal of what W&B does not take, in W&B's own words."""
    return BadSetting(
        f"logger=wandb: W&B refuses to begin ({one_line(error)}): mend that among logger.* or the "
        "variables WANDB_*, or write logger=local"
    )


def check_ready(node: Mapping[str, Any]) -> None:
    """Raise BadSetting, before anything of a run is written, if its logger cannot begin.

    node: the settings of the logger.
    """
    if is_wandb(node):
        ready_wandb()


def is_wandb(node: Mapping[str, Any]) -> bool:
    """Whether these are the settings of W&B as a logger."""
    return node.get("_target_") == f"{__name__}.{wandb.__name__}"


def choose_mode(library: Any) -> Literal["online", "offline", "disabled"]:
    """How a run is sent whose mode is "auto"; see `wandb`."""
    settings = library.setup().settings  # those of the variables and of the user's own file
    off = os.environ.get("WANDB_DISABLED", "").lower() not in ("", "0", "false", "no", "off")
    if off or settings.mode == "disabled":
        return "disabled"
    if settings.mode in ("offline", "dryrun"):
        return "offline"
    host = settings.base_url
    return "online" if has_key(host) and answers(host) else "offline"


def unsent_parts(folder: Path) -> list[Path]:
    """The folders below a run's own that W&B wrote offline, and that were not sent since."""
    parts = all_parts(folder)
    return [p for p in parts if p.name.startswith("offline-") and not is_sent(p)]


def tell_offline(folders: Sequence[Path]) -> None:
    """Print where the files of runs are that W&B does not have, and what sends them, if any are."""
    there = [folder for folder in folders if unsent_parts(folder)]
    if there:
        where = f"{there[0]}/wandb" if len(there) == 1 else f"{len(there)} run folders, in wandb/"
        how = how_to_send(there[0])
        print(f"bench: W&B is offline: its files are in {where}; {how}", file=sys.stderr)


def tell_unknown(folders: Sequence[Path]) -> None:
    """Print how many of these runs ended before and are not known to W&B, if any are."""
    there = [f for f in folders if (f / "summary.json").is_file() and not all_parts(f)]
    if there:
        runs = "this run" if len(there) == 1 else f"{len(there)} of these runs"
        how = how_to_send(there[0], " --all --project=...")
        print(f"bench: W&B has nothing of {runs}, which ended without it; {how}", file=sys.stderr)


def how_to_send(folder: Path, more: str = "") -> str:
    """The command that sends the runs of a root to W&B. folder: of one of them. more: options."""
    root = shlex.quote(str(folder.parents[2]))
    return f"WANDB_API_KEY=... uv run python scripts/wandb_sync.py {root}{more} sends them"


def set_labels(config: dict[str, Any], labels: Mapping[str, str], group: str | None) -> None:
    """Name a run for W&B within a group, if W&B is its logger; what the settings say wins."""
    node = config.get("logger", {})
    if is_wandb(node):
        node["labels"] = node["labels"] or dict(labels)
        node["group"] = node["group"] or group


def mirror(
    log: Callable[[dict[str, Any]], None],
    finish: Callable[[int], None],
    end: Callable[[Mapping[str, Any]], None] = forget,
    within: float = 60.0,
) -> Logger:
    """A logger that prints its first failure and goes on.

    within: seconds to wait for `finish`, which sends what is left.
    """
    told: list[str] = []

    def tell(why: object) -> None:
        if not told:
            print(f"bench: W&B: {why}; scripts/wandb_sync.py sends the rest", file=sys.stderr)
        told.append(str(why))

    def row(values: dict[str, Any]) -> None:
        try:
            log(values)
        except Exception as error:
            tell(error)

    def keep(summary: Mapping[str, Any]) -> None:
        try:
            end(summary)
        except Exception as error:
            tell(error)

    def close(code: int) -> None:
        try:
            send_within(within, lambda: finish(code))
        except Exception as error:
            tell(error)

    return Logger(row, close, keep)


def send_within(seconds: float, send: Callable[[], None]) -> None:
    """Call `send`, which cannot be interrupted, and wait so many seconds for it.

    Raises TimeoutError where it goes on longer, and what `send` raises.
    """
    errors: list[Exception] = []

    def call() -> None:
        try:
            send()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TimeoutError(f"not all was sent within {seconds:g} s")
    if errors:
        raise errors[0]


def close_all(endings: Sequence[tuple[Logger, int]]) -> None:
    """Close loggers, each with its exit code, at the same time: so that many that wait for a silent
    host wait no longer than one."""
    threads = [
        threading.Thread(target=logger.close, args=(code,), daemon=True) for logger, code in endings
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def one_line(error: Exception) -> str:
    """What an error says, without line breaks."""
    return " ".join(str(error).split()) or type(error).__name__


def refuse_local_settings(place: Path) -> None:
    """Raise BadSetting if W&B's settings in the folder `place`, which may have come with what a
    stranger wrote, name more than an entity and a project: a host would get the user's key."""
    for file in (place / "wandb" / "settings", place / ".wandb" / "settings"):
        found = configparser.ConfigParser(interpolation=None)
        try:
            found.read(file)
            keys = sorted({key for part in found for key in found[part]} - {"entity", "project"})
        except (configparser.Error, UnicodeDecodeError):
            keys = ["what is not understood"]
        if keys:
            raise BadSetting(
                f"logger=wandb: {file} sets {keys[0]}, and this folder may be a stranger's: remove "
                "that line, and write it into ~/.config/wandb/settings if it is yours"
            )


def proxy_of(url: str) -> str | None:
    """The proxy by which W&B reaches a host, as HTTPS_PROXY, HTTP_PROXY and NO_PROXY say."""
    from urllib.request import getproxies, proxy_bypass  # slow to import

    parts = urlsplit(url)
    found = getproxies().get(parts.scheme)
    if not found or proxy_bypass(parts.netloc):
        return None
    return found if "//" in found else f"http://{found}"


def has_key(url: str) -> bool:
    """Whether W&B has a key for this host: in WANDB_API_KEY, or in ~/.netrc from `wandb login`."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        file = Path(os.environ.get("NETRC") or "~/.netrc").expanduser()
        found = netrc.netrc(file).authenticators(urlsplit(url).netloc)
    except (OSError, RuntimeError, ValueError, netrc.NetrcParseError):
        return False
    return found is not None and bool(found[2])


def answers(url: str, within: float = 2.0) -> bool:
    """Whether the host of `url`, or the proxy before it, accepts a connection.

    within: seconds, name look-up included.
    """
    parts = urlsplit(proxy_of(url) or url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    reached = threading.Event()

    def probe() -> None:
        try:
            socket.create_connection((parts.hostname or "", port), timeout=within).close()
            reached.set()
        except OSError:
            pass

    thread = threading.Thread(target=probe, daemon=True)  # since a look-up cannot be interrupted
    thread.start()
    thread.join(within)
    return reached.is_set()
