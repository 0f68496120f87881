"""The closed forms that the steps by hand stand on are the derivatives of the problem's losses."""

import pytest
import torch

from bench.core.draw import generator
from tests.steps import problem as at


@pytest.mark.parametrize("rows", [[3, 3, 17, 60, 2], range(at.ROWS)])
def test_closed_forms_are_autograds(rows: list[int]) -> None:
    rng, i = generator("point"), torch.tensor(list(rows))
    x = torch.randn(at.P, generator=rng, dtype=torch.float64).requires_grad_()
    y = torch.randn(at.Q, generator=rng, dtype=torch.float64).requires_grad_()
    f_x, f_y = torch.autograd.grad(at.upper(x, y, i), (x, y))
    g_x, g_y = torch.autograd.grad(at.lower(x, y, i), (x, y), create_graph=True)
    columns = [torch.autograd.grad(part, (x, y), retain_graph=True) for part in g_y]
    g_xy = torch.stack([mixed for mixed, _ in columns], 1)
    g_yy = torch.stack([curved for _, curved in columns], 1)
    with torch.no_grad():
        for name, expected in [
            ("f_x", f_x), ("f_y", f_y), ("g_x", g_x), ("g_y", g_y), ("g_xy", g_xy), ("g_yy", g_yy),
        ]:  # fmt: skip
            found = getattr(at, name)(x, y, i)
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14, msg=name)
