"""Reads and writes small files; a file is written whole or not at all, even if the process dies.

What is read may come from a stranger: only regular files are opened, up to a size, and what is in
them has to be plain values of bounded depth and number.
"""

import errno
import json
import math
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO

import yaml

from bench.core.settings import BadSetting

MOST_BYTES = 4_000_000  # of a small file
MOST_YAML = 200_000  # bytes of a file of settings, which is slower to read
MOST_DEPTH = 40  # of dictionaries and lists in each other
MOST_BITS = 1000  # of an integer: more have no float
NEW = ".new"  # ends the name of a file that is half written
DIGEST = "digest"  # the last key of a sealed object
DIGITS = 16  # of a digest
Seal = tuple[bytes, bytes]  # what stands before and after the digest at the end of a file
SEAL_OF_JSON: Seal = (b',\n "digest": "', b'"\n}\n')
SEAL_OF_YAML: Seal = (b"# digest ", b"\n")
MOST_CHANGED = 2  # characters of a seal that has still to be one
ADVICE = "write run.force=true to start again, or remove the folder"


def write_whole(path: Path, content: str | bytes) -> None:
    """Replace a file by one that was written beside it.

    Raises OSError, which names the file; unless only the folder could not be made to last, what
    stood there before is then still there.
    """
    new = path.with_name(path.name + NEW)
    try:
        with create_anew(new) as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):  # on a full disk the half-written file would only take room
            new.unlink()
        error.filename = error.filename or str(path)
        raise


def create_anew(path: Path) -> BinaryIO:
    """A new file, open to be written, in the place of what has its name; raises OSError.

    A link of this name, which a stranger may have put there, is removed and never followed.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    tries = 5  # a second process, where nothing keeps two apart, may make one in between
    while True:
        path.unlink(missing_ok=True)
        try:
            return os.fdopen(os.open(str(path), flags, 0o666), "wb")
        except FileExistsError:
            tries -= 1
            if not tries:
                raise


def append_to(path: Path) -> BinaryIO:
    """The file, made with its folder if it is not there, open to be read and to be added to.

    Raises OSError, and BadSetting for a link: what is added would go into another's file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    refuse_links(path)
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, 0o666), "a+b")


def refuse_links(*paths: Path) -> None:
    """Raise BadSetting if one of these is a link, by which files would be written elsewhere."""
    for path in paths:
        if path.is_symlink():
            raise BadSetting(
                f"{path} is a link, and what a run writes stays below run.root: remove it"
            )


def sync_folder(folder: Path) -> None:
    """Wait until the names of a folder's files are on disk."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems cannot do it
            raise
    finally:
        os.close(number)


def write_json(path: Path, values: Any) -> None:
    """Write values as JSON; raises OSError as write_whole does."""
    write_whole(path, json.dumps(values, indent=1) + "\n")


def write_sealed_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write an object as JSON with a digest, by which `read_json` notices that it was changed.

    Raises OSError as write_whole does.
    """
    text = json.dumps(dict(values), indent=1)
    if values:
        text = f'{text[:-2]},\n "{DIGEST}": "{digest_of(text.encode())}"\n}}'
    write_whole(path, text + "\n")


def digest_of(content: bytes) -> str:
    """The digest that seals a file's content."""
    return blake2b(content, digest_size=8).hexdigest()


def check_seal(content: bytes, seal: Seal, end: bytes) -> None:
    """Raise ValueError if a file has a digest that is not that of its content.

    seal: what stands around the digest. end: what stands in its place in the content that it is of.
    A file without a digest, which is older or made by others, is not checked. A seal of which one
    or two characters were changed is one still.
    """
    before, after = seal
    start = len(content) - len(before) - DIGITS - len(after)
    digest = content[start + len(before) : len(content) - len(after)]
    around = content[start : start + len(before)] + content[len(content) - len(after) :]
    changed = sum(a != b for a, b in zip(around, before + after))
    if start < 0 or changed > MOST_CHANGED:
        return
    if changed or digest_of(content[:start] + end).encode() != digest:
        raise ValueError("it was changed")


def open_regular(path: Path, most: int) -> BinaryIO:
    """A regular file of at most `most` bytes, open to be read.

    Opening never waits, as it would for a pipe. Raises ValueError with the reason, or OSError.
    """
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        file = os.fdopen(number, "rb")
    except OSError:  # a folder
        os.close(number)
        raise
    about = os.fstat(file.fileno())
    if not stat.S_ISREG(about.st_mode) or about.st_size > most:
        file.close()
        regular = stat.S_ISREG(about.st_mode)
        raise ValueError(f"more than {most:,} bytes" if regular else "not a regular file")
    return file


def read_small(path: Path, most: int = MOST_BYTES) -> bytes:
    """The content of a regular file of at most `most` bytes; raises ValueError or OSError."""
    with open_regular(path, most) as file:
        content = file.read(most + 1)
    if len(content) > most:  # it has grown, or its size is not told, as below /proc
        raise ValueError(f"more than {most:,} bytes")
    return content


def read_json(
    path: Path, keys: Set[str] = frozenset(), check: Callable[[dict[str, Any]], None] | None = None
) -> Any:
    """The object in a JSON file, without the digest that seals it.

    Raises BadSetting if the file is missing, damaged or changed. keys: a file that lacks one of
    them counts as damaged. check: raises ValueError for an object that counts as damaged.
    """
    try:
        content = read_small(path)
        check_seal(content, SEAL_OF_JSON, b"\n}")
        found = json.loads(content)
        check_plain(found)
        if not isinstance(found, dict):
            raise ValueError("no object")
        found.pop(DIGEST, None)
        for key in sorted(keys - set(found)):
            raise ValueError(f"it has no {key}")
        if check is not None:
            check(found)
        return found
    except (ValueError, FileNotFoundError, IsADirectoryError, RecursionError) as error:
        raise damaged(path, error) from None


def damaged(path: Path, error: Exception) -> BadSetting:
    """The refusal of a file of a run folder that cannot be read."""
    named = isinstance(error, OSError | json.JSONDecodeError | UnicodeDecodeError | RecursionError)
    why = type(error).__name__ if named else str(error)
    return BadSetting(f"{path} is damaged ({why}): {ADVICE}")


def write_sealed_yaml(path: Path, values: Any) -> None:
    """Write values as YAML, in their order, with a digest in a comment at the end.

    Raises OSError as write_whole does.
    """
    text = yaml.dump(values, Dumper=PlainDumper, sort_keys=False)
    write_whole(path, f"{text}# digest {digest_of(text.encode())}\n")


def read_yaml(path: Path) -> Any:
    """The plain values in a YAML file.

    Raises BadSetting if the file is missing, damaged or changed.
    """
    try:
        content = read_small(path, MOST_YAML)
        check_seal(content, SEAL_OF_YAML, b"")
        text = content.decode()
        check_events(text)
        found = yaml.load(text, PlainLoader)
        check_plain(found)
        return found
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None) or type(error).__name__
        raise damaged(path, ValueError(" ".join(str(problem).split()))) from None
    except (ValueError, FileNotFoundError, IsADirectoryError, RecursionError) as error:
        raise damaged(path, error) from None


class PlainDumper(yaml.SafeDumper):
    """A dumper that writes a value as often as it stands there, which `read_yaml` wants."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


class PlainLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The loader in C, which is ten times as fast, where there is one; it merges nothing."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Leave `<<` as it is, a key of no known type: merges of merges would grow without end."""


def check_events(text: str) -> None:
    """Raise ValueError if YAML has an alias, or is too deep for the loader in C.

    That loader dies of deep nesting; the stream of events has none.
    """
    for event in shallow_events(text):
        if isinstance(event, yaml.AliasEvent):
            raise ValueError(f"an alias, *{event.anchor}")


def shallow_events(text: str) -> Iterator[yaml.Event]:
    """The events of YAML; raises ValueError if it is too deep for the loader in C."""
    depth = 0
    for event in yaml.parse(text, PlainLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MOST_DEPTH:
                raise ValueError("nested too deeply")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        yield event


def check_plain(found: Any) -> None:
    """Raise ValueError unless a value is made of numbers, texts, lists and dictionaries by text.

    Integers have to have a float and texts to be Unicode that can be written; depth is
    bounded.
    """
    level = [found]
    for _ in range(MOST_DEPTH):
        below: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                for key in value:
                    check_text(key)
                below.extend(value.values())
            elif isinstance(value, list):
                below.extend(value)
            else:
                check_leaf(value)
        if not below:
            return
        level = below
    raise ValueError("nested too deeply")


def check_leaf(value: Any) -> None:
    """Raise ValueError unless a value is None, a number that has a float, or a text."""
    if isinstance(value, str):
        check_text(value)
    elif isinstance(value, int):
        if value.bit_length() > MOST_BITS:
            raise ValueError(f"an integer of {value.bit_length():,} bits")
    elif value is not None and not isinstance(value, float):
        raise ValueError(f"a value of type {type(value).__name__}")


def check_text(value: Any) -> None:
    """Raise ValueError unless a value is a text that can be written."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r:.40} stands for a text")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError(f"{value!a:.40} is no text") from None


def is_number(value: Any) -> bool:
    """Whether a value is a number, or None, which stands for one that is not finite."""
    if type(value) is int:
        return value.bit_length() <= MOST_BITS
    return value is None or type(value) is float


def is_finite(value: Any) -> bool:
    """Whether a value is a finite number."""
    return value is not None and is_number(value) and math.isfinite(value)
