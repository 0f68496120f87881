"""Training a lower variable before a run starts from it, and keeping the result on disk."""

import hashlib
import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from bench.core.settings import locate, version_of
from bench.core.task import Context
from tasks.data.kept import made_or_kept
from tasks.models.softmax_rows import library


def descend(
    y: Tensor,
    push: Callable[[Tensor, Tensor], Tensor],
    lr: float,
    steps: int,
    score: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """y after `steps` steps of velocity = push(y, velocity), y = y - lr velocity, from velocity 0.

    score: a loss; the y of least score is returned in place of the last one.
    """
    velocity, best, least = torch.zeros_like(y), y, y.new_full((), math.inf)
    for _ in range(steps):
        velocity = push(y, velocity)
        y = y - lr * velocity
        if score is not None:  # the losses are compared where they are, so that nobody waits
            loss = score(y)
            better = loss <= least
            best, least = torch.where(better, y, best), torch.where(better, loss, least)
    return y if score is None else best


def train_or_load(
    name: str,
    context: Context,
    settings: object,
    data: Iterable[Tensor],
    train: Callable[[], Tensor],
) -> Tensor:
    """What train() returns, read from data.root/derived if an earlier call has kept it there.

    name: of the task, whose function is tasks.<name>.<name>. The file is named by all that the
    result depends on: the task and its version, which is raised with a change of what is trained,
    settings, data, number type, and what `circumstances` has.
    """
    version = version_of(locate(f"tasks.{name}.{name}", "task"))
    depends_on = [settings, version, context.dtype, *circumstances(context.device)]
    digest = hashlib.blake2b(" ".join(map(str, depends_on)).encode(), digest_size=10)
    for part in data:
        digest.update(part.cpu().numpy().data)

    def trained() -> Tensor:
        return train().cpu()

    return made_or_kept(f"{name}-{digest.hexdigest()}", context, trained).to(context.device)


def circumstances(device: torch.device) -> list[object]:
    """What decides the last bits beside the code: torch, the kind of device and the number of
    threads; on a CPU also its instructions, and whether softmax_rows.c is compiled."""
    found: list[object] = [torch.__version__, device.type, torch.get_num_threads()]
    if device.type == "cpu":
        found += [torch.backends.cpu.get_cpu_capability(), library() is not None]
    return found
