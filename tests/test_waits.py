"""No step of the methods that a GPU is meant for makes the host wait for the device.

The steps are taken on a CPU, where a look into a tensor is free, under a mode that counts looks.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from scripts.gpu import counting
from scripts.gpu.counting import ARTIFACTS, Counting, count_steps

CASES = {
    f"{artifact} {label}": settings
    for artifact in ARTIFACTS
    if artifact != "bome/table1"  # its methods are those of table 2
    for label, settings in counting.rows(artifact)
    if artifact != "bome/table2" or label.startswith("paper ")  # code: other sizes and step sizes
}
HOSTED = "GEM"  # its quadratic programme is solved by SciPy, for which the host reads it once
# Their inner loops end at a tolerance: the host looks after 4 gradients, 8 more, and so on.
ADAPTIVE = ("AOBO", "AF2OBO")


@pytest.mark.parametrize("case", CASES)
def test_a_step_waits_for_nothing(case: str) -> None:
    """Over a task's end where there is a stream, and with batches, embeddings and draws."""
    method = case.split(" ", 2)[2].partition(",")[0]
    more = ["algorithm.cap=7"] if method in ADAPTIVE else []
    for counted in count_steps(CASES[case] + more, 4):
        assert counted.operations > 10
        if method in ADAPTIVE:
            assert set(counted.waits) == {"tolist"}
            assert counted.waits["tolist"] <= 2  # of at most 8 gradients, in all loops at once
        elif method == HOSTED:
            assert counted.waits in ({}, {"tolist": 1})  # none in the first task
        else:
            assert counted.waits == {}


LOOKS: dict[str, Callable[[torch.Tensor], Any]] = {
    "_local_scalar_dense": lambda t: bool(t[0] > 0),
    "tolist": lambda t: t.tolist(),
    "cpu": lambda t: t.cpu(),
    "numpy": lambda t: t.numpy(),
    "to": lambda t: t.to(torch.device("cpu")),
    "new_tensor": lambda t: t.new_tensor(1.0),
    "tensor": lambda t: torch.tensor([1.0]),
    "as_tensor": lambda t: torch.as_tensor(2.0),
    "nonzero": lambda t: t.nonzero(),
    "index": lambda t: t[t > 0],
    "repeat_interleave": lambda t: torch.repeat_interleave(t, torch.ones(3, dtype=torch.int64)),
    "equal": lambda t: torch.equal(t, t + 1),
}


@pytest.mark.parametrize("name", LOOKS)
def test_what_waits_is_counted(name: str) -> None:
    one = torch.ones(3)
    with Counting() as counting:
        LOOKS[name](one)
    assert counting.waits[name] == 1


def test_what_does_not_wait_is_not_counted() -> None:
    """Views are no operations either."""
    one, numbers = torch.ones(3), torch.tensor([0, 1])
    with Counting() as counting:
        (one.view(3, 1) + 1).to(torch.float64)
        one.to(torch.device("cpu"), non_blocking=True)
        one[numbers]
        one.new_full((), 2.0)
        torch.from_numpy(np.zeros(2))  # on the host: what waits is a copy of it to the device
    assert counting.waits == {}
    assert counting.operations == 4
