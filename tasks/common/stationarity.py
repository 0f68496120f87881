"""How far a feasible point is from stationary."""

import torch
from torch import Tensor

from bench.core.task import Set


def gradient_mapping(feasible: Set, x: Tensor, slope: Tensor, gamma: float) -> Tensor:
    """(x - P(x - gamma slope)) / gamma (NCGS, section 2.3; F2OBO, eq. (3)); the slope itself where
    all is feasible."""
    if feasible.project is None:
        return slope
    return (x - feasible.project(x - gamma * slope)) / gamma


def stationarity(feasible: Set, x: Tensor, slope: Tensor, gamma: float) -> dict[str, Tensor]:
    """For single-level problems on a set: the squared gradient mapping, where the set has a
    projection, and the Frank-Wolfe gap max <slope, x - s>, where it has an oracle."""
    found = {}
    if feasible.project is not None:
        found["mapping_sq"] = gradient_mapping(feasible, x, slope, gamma).square().sum()
    if feasible.lmo is not None:
        found["fw_gap"] = (slope * (x - feasible.lmo(slope, 0.0))).sum()
    return found


def spectrum(x: Tensor) -> dict[str, Tensor]:
    """The nuclear norm and the number of singular values above 1e-6 of the largest."""
    values = torch.linalg.svdvals(x)
    rank = (values > 1e-6 * values[0]).sum() if values[0] > 0 else values.new_zeros(())
    return {"nuclear_norm": values.sum(), "rank": rank.to(x)}
