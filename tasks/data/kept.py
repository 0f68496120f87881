"""What takes a while to make of the data sets, kept in files under data.root/derived."""

import io
import os
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import torch

from bench.core.task import Context

T = TypeVar("T")  # a tensor, or a dictionary of tensors


def made_or_kept(name: str, context: Context, make: Callable[[], T]) -> T:
    """What `make` returns, which is on the host, read from the file of this name under
    data.root/derived if an earlier call has kept it there.

    A file that is damaged is made again. A data root that cannot be written to keeps nothing.
    """
    path = context.data_root / "derived" / f"{name}.pt"
    with suppress(Exception):  # torch's refusals of a damaged file have no common type
        kept: T = torch.load(path, "cpu", weights_only=True)
        return kept
    made = make()
    content = io.BytesIO()
    torch.save(made, content)
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f"{path.name}.{os.getpid()}")  # another run may write the same file
        try:
            new.write_bytes(content.getvalue())
            new.replace(path)
        finally:
            new.unlink(missing_ok=True)
    return made
