"""Where a lower variable starts that was trained before, kept on disk where that takes long."""

import hashlib
import math
import os
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from bench.core.task import Context


def descended(
    y: Tensor,
    push: Callable[[Tensor, Tensor], Tensor],
    lr: float,
    steps: int,
    score: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """`steps` times velocity = push(y, velocity), y = y - lr velocity, from velocity 0.

    The last y, or the one of least score.
    """
    velocity, best, least = torch.zeros_like(y), y, math.inf
    for _ in range(steps):
        velocity = push(y, velocity)
        y = y - lr * velocity
        if score is not None and (loss := float(score(y))) <= least:
            best, least = y, loss
    return y if score is None else best


def kept(
    name: str,
    context: Context,
    settings: object,
    data: Iterable[Tensor],
    train: Callable[[], Tensor],
) -> Tensor:
    """What `train` gives, kept under data.root/derived, named by all it depends on."""
    described = f"{settings} {context.dtype} {context.device.type} {torch.get_num_threads()}"
    digest = hashlib.blake2b(described.encode(), digest_size=10)
    for part in data:
        digest.update(part.cpu().numpy().data)
    path = context.data_root / "derived" / f"{name}-{digest.hexdigest()}.pt"
    if path.is_file():
        found: Tensor = torch.load(path, weights_only=True, map_location=context.device)
        return found
    y = train()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f"{path.name}.{os.getpid()}")  # another run may write the same
        torch.save(y.cpu(), new)
        new.replace(path)
    except OSError:
        pass  # a data root that cannot be written to costs time, nothing else
    return y
