"""What a record keeps of its runs' histories: a packed file beside it, a line for each run.

Curves are drawn from these columns, and claims about the way of a run are judged from them, so that
both can be had without the runs' folders.
"""

import gzip
import io
import json
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar

from bench.core.settings import BadSetting
from bench.reproduce.book import format_path
from bench.reproduce.plan import PlannedRow, Run, is_count, kept_value, metric_value
from bench.reproduce.specs import Spec
from bench.reproduce.statements import part_sources
from bench.runs.files import check_text, is_number, read_small, sync_folder, write_whole

MOST_PACKED, MOST_BYTES = 20_000_000, 50_000_000  # of a file, packed and unpacked
MOST_ROWS = 200  # of a run of whose way no claim tells
PATH_ROWS = 1001  # of a run whose path is drawn, so that a spiral is round
ADVICE = "get the file again, or remove it"
ABSENT = "-"  # stands where a row of a history does not have the metric
Column = list[float | str | None]  # None: the value was not finite
History = dict[str, Column]  # metric -> its value in each row
Row = TypeVar("Row")


def kept_metrics(spec: Spec) -> list[str]:
    """The metrics whose histories a record keeps: those of its curves, and of claims on them."""
    plane = spec.figure.trajectory
    drawn = [
        "step",
        *spec.figure.metrics,
        *spec.figure.axes,
        *([plane.x, plane.y] if plane else []),
    ]
    judged = [
        name for claim in spec.claims.values() if not part_sources(claim) for name in claim.metrics
    ]
    return list(dict.fromkeys([*drawn, *judged]))


def needs_histories(row: str, spec: Spec) -> bool:
    """Whether a claim rests on the histories of a row's runs, not on their last values alone."""
    return any(
        not part_sources(claim) and row in claim.needed_rows for claim in spec.claims.values()
    )


def first_ended(row: PlannedRow) -> Run | None:
    """The first of a row's runs that has ended, and that no damaged file leaves out."""
    return next((run for run in row.runs if run.summary is not None), None)


def keep_histories(rows: Iterable[PlannedRow], spec: Spec) -> dict[str, History]:
    """What a record keeps of all runs that have ended, by their names.

    Two rows may share a run. Its longer history is then kept, as a claim about one of them may
    need all of it.
    """
    found: dict[str, History] = {}
    for row in rows:
        for run in row.runs:
            if run.summary is not None and run.history:
                own = keep_history(run, spec, drawn=run is first_ended(row))
                if count_kept(own) > count_kept(found.get(run.planned.name, {})):
                    found[run.planned.name] = own
    return found


def count_kept(kept: History) -> int:
    """How many rows are kept of a run."""
    return max(map(len, kept.values()), default=0)


def keep_history(run: Run, spec: Spec, drawn: bool = False) -> History:
    """The columns that a record keeps of a run.

    drawn: the run's path in the plane is drawn. Every row is kept if a claim is about the run's
    history, and where the path is drawn up to `PATH_ROWS` of them, or else at most `MOST_ROWS`,
    evenly spread. A metric that no row has is left out.
    """
    told = needs_histories(run.planned.point.row, spec)
    whole = told or (drawn and spec.figure.trajectory and len(run.history) <= PATH_ROWS)
    rows = run.history if whole else thin_rows(run.history, MOST_ROWS)
    columns = {
        name: [round_value(metric_value(row, name)) for row in rows] for name in kept_metrics(spec)
    }
    return {name: column for name, column in columns.items() if any(v != ABSENT for v in column)}


def round_value(value: float | None) -> float | str | None:
    """A value of `metric_value` as a record keeps it."""
    if value is None:
        return ABSENT
    if not math.isfinite(value):
        return None
    return int(value) if is_count(value) else kept_value(value)


def history_rows(kept: Mapping[str, Column]) -> list[dict[str, Any]]:
    """The rows of a kept history, as a run's folder would have them."""
    names, columns = list(kept), list(kept.values())
    return [
        {name: value for name, value in zip(names, values) if value != ABSENT}
        for values in zip(*columns, strict=True)
    ]


def thin_rows(rows: Sequence[Row], most: int) -> list[Row]:
    """At most `most` of the rows, evenly spread, the first and last among them."""
    if len(rows) <= most:
        return list(rows)
    return [rows[round(i * (len(rows) - 1) / (most - 1))] for i in range(most)]


def histories_path(record: Path) -> Path:
    """The file of the histories beside a record's file."""
    return record.with_suffix(".histories.jsonl.gz")


def next_path(file: Path) -> Path:
    """Where the histories of a record wait until the record itself is written."""
    return file.with_name(f"{file.name}.next")


@contextmanager
def replace_histories(file: Path, kept: Mapping[str, History]) -> Iterator[str]:
    """A context in which a record is written with a digest, and its histories get their place.

    The digest is empty, and nothing is written, where there are no histories. Raises OSError, and
    BadSetting if they are larger than what is read.
    """
    if not kept:
        yield ""
        return
    packed, waiting = pack_histories(kept), next_path(file)
    write_whole(waiting, packed)
    try:
        yield digest_of(packed)
    except OSError:
        with suppress(OSError):  # on a full disk it would only take room
            waiting.unlink()
        raise
    waiting.replace(file)
    sync_folder(file.parent)


def pack_histories(kept: Mapping[str, History]) -> bytes:
    """The content of a file of histories: one line for each run, by its name.

    Raises BadSetting if the file would be larger than one that is read.
    """
    lines = (
        json.dumps({"run": name, "columns": columns}, separators=(",", ":"), allow_nan=False)
        for name, columns in kept.items()
    )
    whole = "".join(f"{line}\n" for line in lines).encode()
    packed = gzip.compress(whole, mtime=0)
    if len(whole) > MOST_BYTES or len(packed) > MOST_PACKED:
        raise BadSetting(
            f"the runs' histories have {len(whole):,} bytes, packed {len(packed):,}, and a record "
            f"takes {MOST_BYTES:,}, packed {MOST_PACKED:,}: write a larger run.every in the spec"
        )
    return packed


def digest_of(packed: bytes) -> str:
    """The digest of a file of histories, by which a record knows its own."""
    return blake2b(packed, digest_size=16).hexdigest()


def read_histories(file: Path, digest: str = "") -> dict[str, History]:
    """The kept histories by the names of their runs; none if there is no such file.

    digest: that of the record's own file, which may still wait for its place because the process
    that wrote both was killed; an older record has none. Raises BadSetting, which names the line,
    if the file is damaged, or is of another record.
    """
    places = [place for place in (file, next_path(file)) if place.is_file()]
    if not digest:
        return unpack_histories(file, read_packed(file)) if file in places else {}
    for place in places:
        packed = read_packed(place)
        if digest_of(packed) == digest:
            return unpack_histories(place, packed)
    if places:
        raise BadSetting(f"{format_path(file)}: it was changed, or is of another record: {ADVICE}")
    return {}


def read_packed(file: Path) -> bytes:
    """A file of histories, still packed; raises BadSetting."""
    try:
        return read_small(file, MOST_PACKED)
    except (OSError, ValueError):
        raise BadSetting(f"{format_path(file)}: it is damaged: {ADVICE}") from None


def unpack_histories(file: Path, packed: bytes) -> dict[str, History]:
    """What a file of histories says; raises BadSetting, which names the file, if it is damaged."""
    try:
        with gzip.open(io.BytesIO(packed)) as content:
            text = content.read(MOST_BYTES + 1)
    except (OSError, EOFError, ValueError, zlib.error):
        raise BadSetting(f"{format_path(file)}: it is damaged: {ADVICE}") from None
    if len(text) > MOST_BYTES:
        raise BadSetting(f"{format_path(file)}: it has more than {MOST_BYTES:,} bytes: {ADVICE}")
    found: dict[str, History] = {}
    for number, line in enumerate(text.splitlines(), 1):
        try:
            entry = json.loads(line)
            check_text(entry["run"])
            found[entry["run"]] = check_columns(entry["columns"])
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise BadSetting(
                f"{format_path(file)}: line {number} is not a run's history: {ADVICE}"
            ) from None
    return found


def check_columns(found: Any) -> History:
    """The columns, if they are lists of numbers of one length; raises ValueError or TypeError."""
    columns: dict[str, list[Any]] = dict(found)
    for name in columns:
        check_text(name)
    if len({len(column) for column in columns.values()}) > 1:
        raise ValueError("columns of different lengths")
    for column in columns.values():
        others = [value for value in column if type(value) is not float]  # most of them are floats
        if not all(is_number(value) or value == ABSENT for value in others):
            raise TypeError("not a number")
    return columns
