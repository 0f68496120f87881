"""What every method and every task promises, as checks for tests of your own.

    from bench.contract import check_algorithm, check_task

    def test_mine() -> None:
        check_algorithm(mine, inner_lr=0.5)

A check that fails raises Broken, an AssertionError, which says what is broken and where to look.
"""

from bench.contract.algorithms import check_algorithm
from bench.contract.broken import Broken
from bench.contract.problems import on_a_ball, quadratic, zero_sum
from bench.contract.tasks import check_task

__all__ = ["Broken", "check_algorithm", "check_task", "on_a_ball", "quadratic", "zero_sum"]
