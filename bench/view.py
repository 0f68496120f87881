"""What a task shows of a run's end that no number says: a picture's data, drawn by the report."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Histogram:
    """Shares of each group's values in equal bins from low to high; sizes: values in the group."""

    title: str
    label: str  # of the axis
    low: float
    high: float
    shares: dict[str, list[float]]
    sizes: dict[str, int]


def histogram(
    title: str, label: str, groups: Mapping[str, Tensor], low: float, high: float, bins: int = 40
) -> Histogram:
    """Values outside [low, high] are in the outermost bins; an empty group has shares 0."""
    shares, sizes = {}, {}
    for name, values in groups.items():
        found = values.detach().cpu().double().clamp(low, high)
        counts = torch.histc(found, bins, low, high)
        shares[name] = (counts / max(1, len(found))).tolist()
        sizes[name] = len(found)
    return Histogram(title, label, low, high, shares, sizes)
