"""Makes planned runs with the launchers that `bench -m` has too."""

import json
import math
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bench.core.settings import BadSetting
from bench.reproduce.plan import PlannedRun
from bench.reproduce.run_names import OWN, Names
from bench.runs.files import refuse_links
from bench.runs.folder import RunFolder, RunState
from bench.runs.loggers import set_labels
from bench.sweeps import jobs as job_layer
from bench.sweeps.launchers import Launcher

# settings on which a run's name does not depend, so that they may be given for all runs
OUTSIDE = (
    "run.device",
    "run.threads",
    "run.checkpoint",
    "run.compile",
    "run.lanes_gb",
    "run.retry_failed",
    "data.root",
    "data.download",
    "logger",
)
WAIT = 0.5  # seconds between looks at runs that another process is making


def check_extra(extra: Sequence[str]) -> list[str]:
    """The overrides for all runs, after a check that no run's name depends on them.

    Raises BadSetting for any other setting.
    """
    for setting in extra:
        key, equals, _ = setting.partition("=")
        if not equals or not any(key == k or key.startswith(f"{k}.") for k in OUTSIDE):
            raise BadSetting(
                f"{setting}: an artifact's settings are its spec's; what may be added is "
                f"{', '.join(OUTSIDE)}; --runs FOLDER says where runs go"
            )
    return list(extra)


Bundle = tuple[PlannedRun, ...]  # what one process makes: a run, or a grid's points or seeds


def group_bundles(wanted: Sequence[PlannedRun]) -> list[Bundle]:
    """The runs in bundles that may be lanes: the points of a grid together, or a point's seeds."""
    found: dict[str, Bundle] = {}
    for bundle in group_points(wanted):
        point, name = bundle[0].point, bundle[0].name
        key = name if len(bundle) > 1 else json.dumps([point.settings, point.chosen])
        found[key] = found.get(key, ()) + bundle
    return list(found.values())


def group_points(wanted: Sequence[PlannedRun]) -> list[Bundle]:
    """The runs in bundles: the points of a grid together if lanes can vary its settings.

    These are settings of the method whose values are numbers, not all of them integers, because
    integers may be counts. The points have to be a full grid and share all else, the seed too. Any
    other run is a bundle of its own.
    """
    alike: dict[str, list[PlannedRun]] = {}
    for planned in wanted:
        chosen = dict(planned.point.chosen)
        lanes = all(
            k.startswith("algorithm.") and type(v) in (int, float) for k, v in chosen.items()
        )
        shared = [planned.point.settings, planned.seed, list(chosen)]
        key = shared if lanes and chosen else planned.name
        alike.setdefault(json.dumps(key), []).append(planned)
    found: list[Bundle] = []
    for group in alike.values():
        columns = list(zip(*(dict(planned.point.chosen).values() for planned in group)))
        numbers = all(float in map(type, values) for values in columns)
        full = math.prod(len(set(values)) for values in columns)
        whole = numbers and len(group) == full
        found += [tuple(group)] if whole else [(planned,) for planned in group]
    return found


def own_folder(root: Path) -> Path:
    """The folder below `root` of what `reproduce run` writes itself: names, notes and logs.

    Raises BadSetting if it is a link, or its folder of logs is.
    """
    folder = root / OWN
    refuse_links(folder, folder / "logs")
    return folder


def file_time(root: Path) -> int:
    """The time now, in ns, by the clock that stamps files under `root`.

    On a network file system this clock may differ from the machine's own, which is asked only
    where nothing can be written, and so no run can be made.
    """
    folder = own_folder(root)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as fresh:
            return os.fstat(fresh.fileno()).st_mtime_ns
    except OSError:
        return time.time_ns()


def make_bundles(
    bundles: Sequence[Bundle],
    launcher: Launcher,
    names: Names,
    root: Path,
    on_end: Callable[[PlannedRun, RunState, Path], None],
    since: int,
    own_process: bool = False,
) -> list[Bundle]:
    """Make all runs of the bundles, and give those bundles that lanes could not make.

    What is given back has to be made one by one; it is without the runs that have ended. Runs that
    another process is making, such as a second `reproduce run`, are waited for.

    on_end: called with each run that is over, what became of it, and the log of its process.
    since: the `file_time` at which the runs were planned. A run that has been begun since then,
    here or by another process, is not started again. own_process: each run needs a process of its
    own, because its memory is measured.
    """
    own = own_folder(root)
    place = own / f"jobs-{socket.gethostname()}-{os.getpid()}"
    notes = place / "notes"
    shutil.rmtree(notes, ignore_errors=True)
    notes.mkdir(parents=True)
    runs_of_notes: dict[Path, PlannedRun] = {}
    refused: list[Bundle] = []
    waiting = list(bundles)

    def make_job(planned: PlannedRun, vectorize: Sequence[str]) -> job_layer.Job:
        note = notes / f"{len(runs_of_notes)}.json"
        runs_of_notes[note] = planned
        config = names.config(planned.point, planned.seed)
        config["run"]["force"] |= planned.again
        point = planned.point
        set_labels(config, {"row": point.row, "variant": point.variant}, None)
        return job_layer.Job(
            {**config, "vectorize": list(vectorize)},
            RunFolder(root, planned.name),
            note,
            since=since,
            log=own / "logs" / f"{planned.name.replace('/', '_')}.log",
            own_process=own_process,
        )

    def join_jobs(bundle: Bundle) -> job_layer.Job:
        first, *others = (make_job(planned, varied(bundle)) for planned in bundle)
        return first._replace(others=tuple(others), if_faster=bool(others))

    def tell_end(made: job_layer.Job) -> None:
        states = [(each, each.state()) for each in made.all]
        if made.others and not all(state.has_ended for _, state in states):
            refused.append(
                tuple(runs_of_notes[each.note] for each, state in states if not state.has_ended)
            )
            states = [pair for pair in states if pair[1].has_ended]
        for each, state in states:
            if state.status == "busy":
                waiting.append((runs_of_notes[each.note],))
            else:
                assert each.log is not None
                on_end(runs_of_notes[each.note], state, each.log)

    try:
        with interrupt_on_terminate():
            while waiting:
                free = [bundle for bundle in waiting if not has_writer(bundle, root)]
                if not free:
                    time.sleep(WAIT)
                    continue
                waiting = [bundle for bundle in waiting if bundle not in free]
                launcher.launch([join_jobs(bundle) for bundle in free], place, tell_end)
    finally:
        shutil.rmtree(notes, ignore_errors=True)
        with suppress(OSError):  # the launcher has left files there
            place.rmdir()
    return refused


def varied(bundle: Bundle) -> list[str]:
    """The settings in which the runs of a bundle differ."""
    if len({planned.seed for planned in bundle}) > 1:
        return ["seed"]
    return [path for path, _ in bundle[0].point.chosen] if len(bundle) > 1 else []


def has_writer(bundle: Bundle, root: Path) -> bool:
    """Whether a process writes the folder of one of these runs."""
    return any(RunFolder(root, planned.name).owner() is not None for planned in bundle)


@contextmanager
def interrupt_on_terminate() -> Iterator[None]:
    """A block in which SIGTERM raises KeyboardInterrupt, so that launchers stop their runs."""

    def stop(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    old = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, old)
