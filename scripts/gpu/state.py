"""What a lent machine has made, as files that can be carried back, and into a root of run folders.

At most MOST_FILES files of MOST_BYTES each come back from such a machine, and what it has when it
is cut is what they say at that moment. So each file is an archive of its own, of whole run folders,
and is replaced as a whole:

    done-0.tar.gz, ...  runs that have ended; a folder stays in its archive once it is there
    going-0.tar.gz ...  runs that go on: settings, rows and checkpoint
    more.tar.gz         checks, and what was derived of data, but for what a pack had brought

Only the standard library is imported, because this runs before anything is unpacked.
"""

import io
import json
import os
import re
import shutil
import tarfile
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

MOST_FILES, MOST_BYTES, MOST_IN_ALL = 8, 15 * 2**20, 60 * 2**20
DERIVED = 2**20  # a larger file of derived data is made again
# the files of a run folder that travel; a checkpoint is read first, as rows after it do no harm
ENDED = ("summary.json", "config.yaml", "environment.json", "history.jsonl", "view.json")
GOING = ("checkpoint.pt", "config.yaml", "environment.json", "history.jsonl", "status.json")
NAME = re.compile(r"\w+/\w+/[0-9a-f]+")
BASES = ("runs", "results", "derived")


class Broken(Exception):
    """An archive that cannot be read, or that names what it should not; one line."""


def run_folders(root: Path) -> Iterator[Path]:
    """The run folders below a root: task/algorithm/hash."""
    for path in sorted(root.glob("*/*/*")):
        if NAME.fullmatch(path.relative_to(root).as_posix()) and (path / "config.yaml").is_file():
            yield path


Read = list[tuple[tarfile.TarInfo, bytes]]  # files as an archive has them


def read_files(files: Iterable[tuple[Path, str]]) -> Read:
    """The files, each under its name; one that has gone is left out."""
    read = []
    for path, name in files:
        try:
            content, made = path.read_bytes(), int(path.stat().st_mtime)
        except OSError:
            continue
        entry = tarfile.TarInfo(name)
        entry.size, entry.mtime = len(content), made
        read.append((entry, content))
    return read


def compressed(read: Read) -> bytes:
    """An archive of these files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=6) as tar:
        for entry, content in read:
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def archive(files: Iterable[tuple[Path, str]]) -> bytes:
    """The files, each under its name, as a compressed archive; one that has gone is left out."""
    return compressed(read_files(files))


def files_of(folder: Path, root: Path, names: Iterable[str]) -> list[tuple[Path, str]]:
    """The files of a run folder that travel, with their names in an archive."""
    place = f"runs/{folder.relative_to(root).as_posix()}"
    return [(folder / name, f"{place}/{name}") for name in names if (folder / name).is_file()]


def progress(folder: Path) -> float:
    """The fraction of its steps that a run which goes on has taken, by its last row."""
    try:
        rows = (folder / "history.jsonl").read_text().splitlines()
        steps = re.search(r"^run:\n(?:  .*\n)*?  steps: (\d+)", _config(folder), re.M)
        return float(json.loads(rows[-1])["step"]) / float(steps[1]) if steps else 0.0
    except (OSError, ValueError, KeyError, IndexError):
        return 0.0


def lanes_of(folder: Path) -> tuple[str, ...]:
    """The names of the runs that go side by side with a run, itself included."""
    try:
        names = json.loads((folder / "environment.json").read_text()).get("lanes", [])
        return tuple(map(str, names)) or (folder.name,)
    except (OSError, ValueError, AttributeError, TypeError):
        return (folder.name,)


def side_by_side(folders: Iterable[Path]) -> list[list[Path]]:
    """These runs in their order, lanes as one group."""
    groups: dict[tuple[str, ...], list[Path]] = {}
    for folder in folders:
        groups.setdefault(lanes_of(folder), []).append(folder)
    return list(groups.values())


def spread(group: Iterable[Path], sizes: Mapping[Path, int]) -> list[list[Path]]:
    """These runs, in their order, in as many files as they need."""
    found: list[list[Path]] = []
    spent = MOST_BYTES
    for folder in group:
        if spent + sizes[folder] > MOST_BYTES:
            found.append([])
            spent = 0
        found[-1].append(folder)
        spent += sizes[folder]
    return found


def _config(folder: Path) -> str:
    return (folder / "config.yaml").read_text()


class Saver:
    """Writes the files again and again while runs are made."""

    def __init__(
        self,
        out: Path,
        runs: Path,
        more: Mapping[str, Path],
        known: Iterable[str] = (),
        brought: Container[str] = frozenset(),
    ):
        """out: where the files go. runs: the root. more: "results" and "derived" -> their folders.
        known: names of runs that had ended before, which stay where they are. brought: digests of
        the files of `more` that packs had brought; one that is still so does not go back, where a
        newer one may have been made meanwhile."""
        self.out, self.runs, self.more, self.brought = out, runs, more, brought
        self.packed: list[list[Path]] = [[]]
        self.seen = {runs / name for name in known}
        self.left_out: list[Path] = []  # runs that have ended and for which there was no room
        self.sizes: dict[str, int] = {}
        out.mkdir(parents=True, exist_ok=True)

    def save(self) -> dict[str, int]:
        """Bring the files up to date; gives their sizes."""
        folders = list(run_folders(self.runs))
        ended = [f for f in folders if (f / "summary.json").is_file()]
        fresh = [f for f in ended if f not in self.seen and f not in self.left_out]
        if fresh:
            self._add(fresh)
        self._write_more()
        self._write_going([f for f in folders if f not in ended])
        return dict(self.sizes)

    def _add(self, fresh: list[Path]) -> None:
        last = self.packed[-1] + fresh
        content = self._archive_of(last)
        if len(content) <= MOST_BYTES or not self.packed[-1]:
            self.packed[-1] = last
        else:
            self.packed.append(fresh)
            content = self._archive_of(fresh)
        if len(content) > MOST_BYTES and len(fresh) > 1:  # by halves, until each part is small
            self.packed[-1] = [f for f in self.packed[-1] if f not in fresh]
            if not self.packed[-1] and len(self.packed) > 1:
                self.packed.pop()
            half = len(fresh) // 2
            self._add(fresh[:half])
            self._add(fresh[half:])
            return
        if self._write(f"done-{len(self.packed) - 1}.tar.gz", content):
            self.seen |= set(fresh)
        else:
            self.packed[-1] = [f for f in self.packed[-1] if f not in fresh]
            if not self.packed[-1] and len(self.packed) > 1:
                self.packed.pop()
            self.left_out += fresh

    def _archive_of(self, folders: list[Path]) -> bytes:
        return archive(pair for f in folders for pair in files_of(f, self.runs, ENDED))

    def _write_more(self) -> None:
        files = []
        for base, folder in self.more.items():
            for path in sorted(p for p in folder.rglob("*") if p.is_file()):
                if self._goes_back(base, path):
                    files.append((path, f"{base}/{path.relative_to(folder).as_posix()}"))
        if files:
            self._write("more.tar.gz", archive(files))

    def _goes_back(self, base: str, path: Path) -> bool:
        """Whether a file was made here, and is small if it is derived; False for one that has just
        gone."""
        try:
            if base == "derived" and (path.suffix != ".pt" or path.stat().st_size > DERIVED):
                return False
            return digest_of(path.read_bytes()) not in self.brought
        except OSError:
            return False

    def _write_going(self, folders: list[Path]) -> None:
        """Those that are nearest their end, as many as there is room for; of lanes all or none, as
        they go on together only from the same step.

        All are read before the first is compressed, which takes longer than reading: checkpoints of
        lanes are then of one step, but for one that is written in this very moment.
        """
        parts = self._parts(folders)
        read = [
            read_files(pair for f in part for pair in files_of(f, self.runs, GOING))
            for part in parts
        ]
        new = {f"going-{k}.tar.gz": compressed(files) for k, files in enumerate(read) if files}
        for path in self.out.glob("going-*.tar.gz"):
            if path.name not in new:
                self._remove(path.name)
        failed = [name for name, content in new.items() if not self._write(name, content)]
        for name in failed:  # an earlier state of a later file may have had its room
            self._write(name, new[name])

    def _parts(self, folders: list[Path]) -> list[list[Path]]:
        """Which runs that go on are in which file."""
        others = {name: size for name, size in self.sizes.items() if not name.startswith("going")}
        room, files = MOST_IN_ALL - sum(others.values()), MOST_FILES - len(others)
        sizes = self._sizes(folders)
        parts: list[list[Path]] = []
        spent = MOST_BYTES  # of the last file
        for group in side_by_side(sizes):
            size = sum(sizes[folder] for folder in group)
            into_last = spent + size <= MOST_BYTES
            own = [] if into_last else spread(group, sizes)
            too_large = max(sizes[folder] for folder in group) > MOST_BYTES
            if too_large or size > room or len(parts) + len(own) > files:
                continue
            room -= size
            if into_last:
                parts[-1] += group
                spent += size
            else:
                parts += own
                spent = sum(sizes[folder] for folder in own[-1])
        return parts

    def _sizes(self, folders: list[Path]) -> dict[Path, int]:
        """The bytes of each run that has a checkpoint, those nearest their end first."""
        found = {}
        for folder in sorted(folders, key=progress, reverse=True):
            with suppress(OSError):  # one file has just gone: this run is another time's
                size = sum(path.stat().st_size for path, _ in files_of(folder, self.runs, GOING))
                if (folder / "checkpoint.pt").is_file():
                    found[folder] = size
        return found

    def _write(self, name: str, content: bytes) -> bool:
        """Replace a file as a whole, whenever this process is killed; gives whether it may come
        back. Where there are as many files as may come back, or as many bytes, the last one of runs
        that go on makes room for others."""
        while not self._has_room(name, len(content)):
            going = sorted(other for other in self.sizes if other.startswith("going"))
            if not going or name.startswith("going") or len(content) > MOST_BYTES:
                return False
            self._remove(going[-1])
        new = self.out / f".{name}"
        new.write_bytes(content)
        os.replace(new, self.out / name)
        self.sizes[name] = len(content)
        return True

    def _has_room(self, name: str, size: int) -> bool:
        others = [other for key, other in self.sizes.items() if key != name]
        return size <= MOST_BYTES and len(others) < MOST_FILES and sum(others, size) <= MOST_IN_ALL

    def _remove(self, name: str) -> None:
        (self.out / name).unlink(missing_ok=True)
        self.sizes.pop(name, None)


def collect(
    parts: Path, places: Mapping[str, Path], keep: Container[Path] = frozenset()
) -> dict[str, int]:
    """Put what came back into its places, "runs", "results" and "derived".

    A run that has ended here stays as it is, and so does one that has come further here, and each
    file of `keep`. Gives how many runs had ended, how many go on, and how many other files there
    were. Raises Broken for a file that is no such archive, after what the others hold is in place.
    """
    counts = {"ended": 0, "going": 0, "files": 0}
    broken: list[str] = []
    order = {"done": 0, "more": 1, "going": 2}  # a run may be in two if the machine was cut
    found = [p for p in parts.glob("*.tar.gz") if p.name.partition(".")[0].split("-")[0] in order]
    if not found:
        raise Broken(f"{parts}: there is no done-0.tar.gz, more.tar.gz or going-0.tar.gz")
    for path in sorted(found, key=lambda p: (order[p.name.partition(".")[0].split("-")[0]], p)):
        try:
            content = read_archive(path)
        except (OSError, EOFError, tarfile.TarError) as error:
            broken.append(f"{path.name} ({error})")
            continue
        folders: dict[str, dict[str, Member]] = {}
        for name, member in content.items():
            base, _, rest = name.partition("/")
            if base == "runs":
                run, _, file = rest.rpartition("/")
                folders.setdefault(run, {})[file] = member
            elif places[base] / rest not in keep:
                put(places[base] / rest, member.content)
                counts["files"] += 1
        for run, files in folders.items():
            if put_run(places["runs"] / run, files):
                counts["ended" if "summary.json" in files else "going"] += 1
    if broken:
        raise Broken(f"cannot be read: {', '.join(broken)}")
    return counts


class Member(NamedTuple):
    """A file of an archive, and the second at which it was written."""

    content: bytes
    made: int


def read_archive(path: Path) -> dict[str, Member]:
    """The files of an archive by name; raises tarfile.TarError if one is none of ours."""
    found = {}
    with tarfile.open(path) as tar:
        for entry in tar.getmembers():
            base, _, rest = entry.name.partition("/")
            run, _, file = rest.rpartition("/")
            safe = base in BASES and ".." not in rest.split("/") and not rest.startswith("/")
            whole = base != "runs" or (NAME.fullmatch(run) and file in {*ENDED, *GOING})
            stream = tar.extractfile(entry) if entry.isfile() and safe and whole else None
            if stream is None:
                raise tarfile.TarError(f"it has {entry.name}")
            found[entry.name] = Member(stream.read(), int(entry.mtime))
    return found


def digest_of(content: bytes) -> str:
    """A digest by which a file that has changed is known."""
    return blake2b(content, digest_size=10).hexdigest()


def put(path: Path, content: bytes, made: int | None = None) -> None:
    """Write a file as a whole, as one that was written at the second `made`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.write_bytes(content)
    if made is not None:
        os.utime(new, (made, made))
    os.replace(new, path)


def put_run(folder: Path, files: Mapping[str, Member]) -> bool:
    """Put a run folder in place; gives whether it was, as what is there may be better.

    Of two that go on, the one with more rows is better, and among as many the later checkpoint.
    """
    if (folder / "summary.json").is_file() or not {"summary.json", "checkpoint.pt"} & set(files):
        return False
    rows, checkpoint = folder / "history.jsonl", folder / "checkpoint.pt"
    if "summary.json" not in files and rows.is_file() and checkpoint.is_file():
        here = (rows.read_bytes().count(b"\n"), int(checkpoint.stat().st_mtime))
        new_rows = files["history.jsonl"].content if "history.jsonl" in files else b""
        if here >= (new_rows.count(b"\n"), files["checkpoint.pt"].made):
            return False
    new = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(new, ignore_errors=True)
    for name, member in files.items():
        put(new / name, member.content, member.made)
    shutil.rmtree(folder, ignore_errors=True)
    new.rename(folder)
    return True
