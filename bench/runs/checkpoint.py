"""A run's standing on disk, as tensors and numbers only, so that loading it runs no code.

The file is an archive of torch.save and, after it, a line with the archive's digest: any bit that
changes is noticed. Files that are older than the digest end with the archive.
"""

import io
import zipfile
from collections import Counter
from hashlib import blake2b
from operator import methodcaller
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from bench.core.loop import Standing
from bench.core.settings import BadSetting
from bench.core.task import Best
from bench.runs.files import ADVICE, open_regular, write_whole

MARK = b"\nblake2b "  # stands between the archive and its digest
DIGEST_SIZE = 16
MOST_BYTES = 1 << 40
END = b"PK\x05\x06"  # begins the last record of an archive
END_SIZE = 22


def save(path: Path, name: str, s: Standing) -> None:
    """Write the standing of the run `name`: the whole file, or nothing if that fails."""
    leaves, _ = tree_flatten(s.state)
    content = {
        "name": name,
        "step": s.step,
        "seconds": s.seconds,
        "cpu_seconds": s.cpu_seconds,
        "calls": dict(s.calls),
        "samples": dict(s.samples),
        "totals": {key: float(value) for key, value in s.totals.items()},
        "leaves": [without_more(leaf) for leaf in leaves],
        "best": None if s.best is None else tuple(s.best),
        "table": s.table,
    }
    write_content(path, content)


def without_more(leaf: Tensor) -> Tensor:
    """The tensor without what else its storage holds, such as the same of other lanes, which
    torch.save would write too."""
    return leaf.clone() if leaf.untyped_storage().nbytes() > leaf.nbytes else leaf


def write_content(path: Path, content: dict[str, Any]) -> None:
    """Write a checkpoint whole; raises OSError."""
    whole = io.BytesIO()  # torch.save to a file raises no OSError on a full disk
    torch.save(content, whole)
    # getvalue gives the bytes themselves; a view of them would outlive the object where this fails
    digest = blake2b(whole.getvalue(), digest_size=DIGEST_SIZE).hexdigest()
    whole.write(MARK + digest.encode())
    write_whole(path, whole.getvalue())


def read_content(path: Path) -> dict[str, Any]:
    """The content of a checkpoint, on the host, as it may be from a machine with another device.

    Raises ValueError if it was changed, or torch.load's errors.
    """
    with open_regular(path, MOST_BYTES) as file:
        check_digest(file)
        with zipfile.ZipFile(file) as parts:
            if any(part.compress_type != zipfile.ZIP_STORED for part in parts.infolist()):
                raise ValueError("it is packed, so that it may be of any size")
        file.seek(0)
        content: dict[str, Any] = torch.load(file, "cpu", weights_only=True)
    return content


def check_digest(file: BinaryIO) -> None:
    """Raise ValueError if the archive is cut, or is not that of the digest after it."""
    size = file.seek(0, io.SEEK_END)
    tail = len(MARK) + 2 * DIGEST_SIZE
    file.seek(max(0, size - tail))
    mark, _, noted = file.read().rpartition(MARK)
    marked = not mark and len(noted) == tail - len(MARK)
    size -= tail if marked else 0
    file.seek(max(0, size - END_SIZE))
    if file.read(len(END)) != END:
        raise ValueError("it is cut short or changed")
    if marked:
        file.seek(0)
        digest = blake2b(digest_size=DIGEST_SIZE)
        while size > 0 and (part := file.read(min(size, 1 << 20))):
            digest.update(part)
            size -= len(part)
        if digest.hexdigest().encode() != noted:
            raise ValueError("it was changed")


def rename(path: Path, name: str) -> None:
    """Make a checkpoint, if there is one, that of the run `name`; raises BadSetting."""
    if path.is_file():
        try:
            content = read_content(path)
        except Exception as error:  # torch.load's failures on damaged files have no common type
            raise BadSetting(f"{path} cannot be read ({describe(error)})") from None
        write_content(path, {**content, "name": name})


def load(path: Path, name: str, like: Standing) -> Standing:
    """The saved standing, with the tree of `like`'s state, on its device; the table is the host's.

    Raises BadSetting if the file is damaged, is of another run than `name`, or has tensors of other
    shapes than `like`.
    """
    leaves, shape = tree_flatten(like.state)
    try:
        content = read_content(path)
        found = [(leaf.shape, leaf.dtype) for leaf in content["leaves"]]
        check_numbers(content)
        fits = content["name"] == name and found == [(leaf.shape, leaf.dtype) for leaf in leaves]
        if fits:
            check_parts(content, like)
        to_device = methodcaller("to", leaves[0].device)
        moved, best = tree_map_only(Tensor, to_device, (content["leaves"], content["best"]))
        standing = Standing(
            content["step"],
            tree_unflatten(moved, shape) if fits else None,
            Counter(content["calls"]),
            Counter(content["samples"]),
            content["seconds"],
            content["cpu_seconds"],
            {},
            content["totals"],
            Best(*best) if best else None,
            content.get("table"),  # older checkpoints have no such key
        )
    except Exception as error:  # torch.load's failures on damaged files have no common type
        raise BadSetting(f"{path} cannot be read ({describe(error)}): {ADVICE}") from None
    if not fits:
        raise BadSetting(f"{path} is not of this run: write run.force=true to start again")
    return standing


def check_parts(content: dict[str, Any], like: Standing) -> None:
    """Raise ValueError unless the sums, the best iterate and the table are such as `like` has, and
    as its task measures."""
    best, table = content["best"], content.get("table")
    if content["totals"].keys() != like.totals.keys():
        raise ValueError("it has other sums than the task")
    if best and not (len(best) == 4 and type(best[0]) is float and type(best[1]) is int
                     and best[2].shape == like.state.x.shape
                     and best[3].shape == like.state.y.shape):  # fmt: skip
        raise ValueError("its best iterate has another form")
    shapes = [None if t is None else (t.shape, t.dtype) for t in (table, like.table)]
    if shapes[0] != shapes[1]:
        raise ValueError("its table has another form")


def describe(error: Exception) -> str:
    """A few words for what is wrong with a checkpoint."""
    own = type(error) is ValueError
    return " ".join(str(error).split()) if own else type(error).__name__


def check_numbers(content: dict[str, Any]) -> None:
    """Raise ValueError unless counts are integers from 0 on, and times and totals are floats."""
    counts = [content["step"], *content["calls"].values(), *content["samples"].values()]
    sums = [content["seconds"], content["cpu_seconds"], *content["totals"].values()]
    if not (all(type(n) is int and n >= 0 for n in counts) and all(type(s) is float for s in sums)):
        raise ValueError("numbers of another kind")
