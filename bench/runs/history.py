"""Reads and writes a run's history: a row, as a line of JSON, for each measurement.

A line ends with a digest over its row and the digest of the line before. A row that was changed,
doubled or taken out breaks this chain, while a last line that a kill cut short does not. Histories
that are older than the digests have none.
"""

import json
import math
import os
import re
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from bench.core.settings import BadSetting
from bench.runs.files import ADVICE, check_text, damaged, is_number, open_regular

MOST_BYTES = 2_000_000_000  # of a history
MOST_LINE = 1_000_000  # bytes of a row
MOST_ROWS = 300_000  # that are read whole; a sample is taken of more
CHANGED = "was changed, or one before it is gone"
DIGEST = re.compile(rb', "digest": "([0-9a-f]{16})"\}$')


class Line(NamedTuple):
    """A line of a history.

    row: None if the line is damaged. text: the row alone, without digest. cut: whether the line has
    no end, so that a kill may have cut it short.
    """

    row: dict[str, Any] | None
    text: bytes
    digest: str | None
    cut: bool


def read_rows(path: Path, ended: bool = False) -> list[dict[str, Any]]:
    """The rows of a history, without a last one that was cut short by a kill.

    ended: the run has ended, after it had written all rows, so that none may be cut short. Raises
    BadSetting, which names the first bad row, if the file was changed.
    """
    rows: list[dict[str, Any]] = []
    for row in checked_rows(path, ended):
        rows.append(row)
        if len(rows) > MOST_ROWS:
            raise BadSetting(f"{path} has more than {MOST_ROWS:,} rows: {ADVICE}")
    return rows


def checked_rows(path: Path, ended: bool = False) -> Iterator[dict[str, Any]]:
    """The rows of `read_rows`, one after the other; raises BadSetting at the first bad one."""
    for line in checked_lines(path, ended):
        yield line.row or {}


@dataclass(frozen=True)
class EachRow:
    """The rows of a history, each time from the file, one after the other."""

    path: Path

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return checked_rows(self.path)


def count_rows(path: Path) -> int:
    """The number of rows, without a last one that was cut short; only that is parsed.

    Raises BadSetting.
    """
    count, last = 0, b""
    for text in raw_lines(path):
        count, last = count + 1, text
    if count and parse_line(last).row is None:
        count -= 1  # cut short by a kill
    return count


def spread(count: int, most: int) -> set[int]:
    """At most `most` of the numbers below `count`, evenly spread, the first and last among them."""
    if count <= most:
        return set(range(count))
    return {round(i * (count - 1) / (most - 1)) for i in range(most)}


def rows_at(path: Path, wanted: Set[int]) -> list[dict[str, Any]]:
    """The rows with these numbers, from 0, as far as they are there; only these are parsed. A last
    one that was cut short by a kill is not there.

    Raises BadSetting, which names the row, if one of them cannot be read, or at the first up to the
    last of them whose digest is not that of the row and those before it.
    """
    rows: list[dict[str, Any]] = []
    before, chained = "", False
    for i, text in enumerate(raw_lines(path)):
        if len(rows) == len(wanted):
            break
        own, digest, cut = take_apart(text)
        chained = digest is not None if i == 0 else chained
        if chained:
            before = chain(before, own)
            if digest != before:
                if cut:
                    break
                raise bad_row(path, i + 1, CHANGED)
        if i in wanted:
            row = parse_line(text).row
            if row is None and cut:
                break
            if row is None:
                raise bad_row(path, i + 1, "cannot be read")
            rows.append(row)
    return rows


def checked_lines(path: Path, ended: bool = False) -> Iterator[Line]:
    """The lines of a history, but for a last one that was cut short.

    ended: a last line that was cut short is refused too. Raises BadSetting, which names the row, at
    the first that cannot be read, that is not of a later step than the one before, or whose digest
    is not that of the row and those before it.
    """
    before, step, chained = "", -1, False
    lines = enumerate(raw_lines(path), 1)
    for number, text in lines:
        line = parse_line(text)
        if number == 1:
            chained = line.digest is not None
        expected = chain(before, line.text) if chained else None
        if line.row is None or line.digest != expected:
            may_be_cut = line.cut or (not chained and next(lines, None) is None)
            if may_be_cut and not ended:
                return
            raise bad_row(path, number, "cannot be read" if line.row is None else CHANGED)
        if line.row["step"] <= step:
            raise bad_row(path, number, "is not of a later step than the one before")
        before, step = expected or "", line.row["step"]
        yield line


def raw_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file, none if there is no such file; raises BadSetting."""
    try:
        with open_regular(path, MOST_BYTES) as file:
            while text := file.readline(MOST_LINE + 1):
                if len(text) > MOST_LINE:
                    raise ValueError(f"a line of more than {MOST_LINE:,} bytes")
                yield text
    except FileNotFoundError:
        if path.is_symlink():
            raise damaged(path, ValueError("a link to nothing")) from None
    except (ValueError, IsADirectoryError) as error:
        raise damaged(path, error) from None


def bad_row(path: Path, number: int, word: str) -> BadSetting:
    """The refusal of a row."""
    return BadSetting(f"{path}: row {number} {word}: {ADVICE}")


def take_apart(text: bytes) -> tuple[bytes, str | None, bool]:
    """The row's own text in a line of the file, its digest, and whether the line has no end."""
    cut = not text.endswith(b"\n")
    text = text.rstrip(b"\r\n")
    found = DIGEST.search(text)
    if found is None:
        return text, None, cut
    return text[: found.start()] + b"}", found[1].decode(), cut


def parse_line(text: bytes) -> Line:
    """A line of the file, taken apart, and its row."""
    text, digest, cut = take_apart(text)
    try:
        row = json.loads(text)
        good = isinstance(row, dict) and type(row.get("step")) is int and row["step"] >= 0
        if not (good and all(map(is_number, row.values()))):
            raise ValueError
        if b"\\" in text or not text.isascii():
            for key in row:
                check_text(key)
    except (ValueError, RecursionError):
        row = None
    return Line(row, text, digest, cut)


def chain(before: str, text: bytes) -> str:
    """The digest of a row after a row with the digest `before`, which is empty for the first."""
    return blake2b(before.encode() + text, digest_size=8).hexdigest()


def chained_line(digest: str, text: bytes) -> bytes:
    """A row's line with its digest."""
    return text[:-1] + b', "digest": "' + digest.encode() + b'"}\n'


def rows_to_keep(path: Path, upto: int, every: int, tell: bool = True) -> bytes:
    """The file without the rows of steps after `upto`, which were measured after a checkpoint.

    every: steps between rows. Rows without digests get theirs. Raises BadSetting if an earlier row
    was changed or is missing: rows are on disk before the checkpoint is, so that somebody must have
    changed the file. A damaged row after `upto` has a line on standard error (`tell`), and is
    measured again like all of these.
    """
    kept, digest, there = bytearray(), "", set[int]()
    wanted = range(0, upto + 1, every)
    try:
        for line in checked_lines(path):
            step = (line.row or {})["step"]
            if step > upto:
                break
            there.add(step)
            digest = chain(digest, line.text)
            kept += chained_line(digest, line.text)
    except BadSetting as error:
        if not there.issuperset(wanted):
            raise
        if tell:
            print(f"bench: {str(error).removesuffix(ADVICE)}it is measured again", file=sys.stderr)
    gone = next((step for step in wanted if step not in there), None)
    if gone is not None:
        raise BadSetting(
            f"{path} has lost rows, that of step {gone} first, and its checkpoint is of step "
            f"{upto}: {ADVICE}"
        )
    return bytes(kept)


class History:
    """A history, open to add rows. Its methods raise OSError with the file's name."""

    def __init__(self, path: Path):
        self.path = path
        last = deque(raw_lines(path), maxlen=1)
        self.digest = take_apart(last[0])[1] or "" if last else ""
        self.file = path.open("ab", buffering=0)

    def add(self, values: dict[str, Any]) -> None:
        """Write a row; no part of the row stays in a buffer of this process."""
        text = as_line(values).encode()[:-1]
        self.digest = chain(self.digest, text)
        row = memoryview(chained_line(self.digest, text))
        with self.name_in_errors():
            while row:
                row = row[self.file.write(row) :]

    def sync(self) -> None:
        """Wait until the rows are on disk."""
        with self.name_in_errors():
            os.fsync(self.file.fileno())

    @contextmanager
    def name_in_errors(self) -> Iterator[None]:
        """Put the file's name into an OSError: those of an open file have none."""
        try:
            yield
        except OSError as error:
            error.filename = str(self.path)
            raise

    def close(self) -> None:
        self.file.close()


def replace_nonfinite(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with None for every float that is not finite: JSON has no word for it."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in row.items()
    }


def as_line(row: Mapping[str, Any]) -> str:
    """A row as a line, without digest."""
    return json.dumps(replace_nonfinite(row)) + "\n"
