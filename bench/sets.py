"""Feasible sets."""

import torch

from bench.task import Set


def box(low: float, high: float) -> Set:
    """Points whose every coordinate lies in [low, high]."""
    return Set(
        project=lambda u: u.clamp(low, high),
        lmo=lambda s: torch.where(s > 0, low, high).to(s),
    )
