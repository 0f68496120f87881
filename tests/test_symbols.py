"""Numbers that a recording must not take for constants: arithmetic, decisions, and graphs.

Each expression is worked out with Numbers at steps other than the one that it was recorded at, and
held against Python's own.
"""

import math
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

from bench.compiled.calls import loop_steps
from bench.compiled.symbols import (
    MOST_NUMBERS,
    At,
    Decision,
    NoGraph,
    Notes,
    Number,
    Watching,
    apply,
)
from bench.compiled.traced import largest_gap, standing_after
from bench.core.loop import Standing


def numbers() -> tuple[Notes, Number, Number]:
    """The step's number, and a setting that a lane has chosen."""
    notes = Notes()
    notes.begin(At(3, {"lr": 0.5}), torch.zeros(MOST_NUMBERS, dtype=torch.float64))
    step = Number(notes, "step", lambda at: at.step)
    return notes, step, Number(notes, "lr", lambda at: at.chosen["lr"])


Plain = Callable[[Any, Any], Any]
ARITHMETIC: list[Plain] = [
    lambda k, lr: k + 2,
    lambda k, lr: 2 + k,
    lambda k, lr: k - 2,
    lambda k, lr: 2 - k,
    lambda k, lr: k * lr,
    lambda k, lr: lr / (k + 1),
    lambda k, lr: 7 / k,
    lambda k, lr: k // 2,
    lambda k, lr: 17 // k,
    lambda k, lr: k % 3,
    lambda k, lr: 17 % k,
    lambda k, lr: k**2,
    lambda k, lr: lr**k,
    lambda k, lr: 0.9**k,
    lambda k, lr: -lr * (k - lr) ** -0.5,
    lambda k, lr: math.ceil(k * lr) - math.floor(k * lr) * 10,
]


@pytest.mark.parametrize("expression", ARITHMETIC)
def test_arithmetic_holds_at_every_step(expression: Plain) -> None:
    notes, k, lr = numbers()
    found = expression(k, lr)
    assert type(found) is Number
    assert found.notes is notes
    for step, rate in ((3, 0.5), (5, 0.25), (8, 3.0)):
        assert found.of(At(step, {"lr": rate})) == expression(step, rate)
    assert notes.decisions == []  # nothing was decided by a value


COMPARISONS: dict[str, Plain] = {
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
}


@pytest.mark.parametrize("name", COMPARISONS)
@pytest.mark.parametrize("other", [2, 3, 4])
def test_a_comparison_is_decided_and_noted(name: str, other: int) -> None:
    notes, k, _ = numbers()
    compare = COMPARISONS[name]
    assert compare(k, other) is compare(3, other)
    assert compare(other, k) is compare(other, 3)
    first, second = notes.decisions
    assert first.key == f"{name}(step, {other})"
    assert first.value is compare(3, other)
    for step in (1, 2, 3, 4, 5):
        assert first.holds(At(step)) == (compare(step, other) == compare(3, other))
        assert second.holds(At(step)) == (compare(other, step) == compare(other, 3))


def test_lengths_and_words_are_decided_and_noted() -> None:
    notes, k, lr = numbers()
    assert list(range(k - 1)) == [0, 1]  # type: ignore[call-overload]
    assert (int(k), float(lr), bool(k), bool(k - 3)) == (3, 0.5, True, False)
    assert [d.value for d in notes.decisions] == [2, 3, 0.5, True, False]
    keys = ["sub(step, 1)", "step", "lr", "step", "sub(step, 3)"]
    assert [d.key for d in notes.decisions] == keys
    at = At(4, {"lr": 0.5})
    assert [d.holds(at) for d in notes.decisions] == [False, False, True, True, False]


def test_what_was_decided_when_the_method_was_made_stays() -> None:
    notes, k, _ = numbers()
    assert k > 2
    notes.keep_decisions()
    notes.begin(At(3), None)
    assert k > 1
    assert [d.key for d in notes.decisions] == ["gt(step, 2)", "gt(step, 1)"]
    notes.begin(At(5), None)
    assert [d.key for d in notes.decisions] == ["gt(step, 2)"]
    assert (notes.at, notes.slots, notes.numbers) == (At(5), {}, [])


def test_a_fraction_that_varies_is_not_cut_to_whole_numbers() -> None:
    """In torch .5 of [2, 3] is [1, 1.5], but the graph's input would have the integers' type."""
    _, step, lr = numbers()
    with pytest.raises(NoGraph, match="a fraction that varies and a tensor of integers"):
        lr.tensor(torch.tensor([2, 3]))
    assert step.tensor(torch.tensor([2, 3])).dtype == torch.int64


def test_what_takes_a_batch_to_know_is_marked() -> None:
    notes, k, _ = numbers()
    given = Number(notes, "given 0", lambda at: at.given[0], drawn=True)
    notes.begin(At(3, given=[-5.0]), None)
    assert not k + given > 0
    assert [d.drawn for d in notes.decisions] == [True]
    assert (k * 2).drawn is False
    assert (given * 2).drawn is (given + k).drawn is (k + given).drawn is True


def test_a_decision_holds_where_its_value_is_the_same() -> None:
    decision = Decision("k", lambda at: at.step % 2, 1, False)
    assert [decision.holds(At(step)) for step in range(4)] == [False, True, False, True]


def test_numbers_are_neither_keys_nor_mixed_with_words() -> None:
    _, k, _ = numbers()
    with pytest.raises(TypeError):
        hash(k)
    with pytest.raises(TypeError):
        k + "x"
    assert apply(lambda a, b: a, k, "x") is NotImplemented


def test_with_a_tensor_a_number_is_an_input_of_the_graph() -> None:
    """The first number met has the first place, and a number met again has its own."""
    notes, k, lr = numbers()
    assert notes.tensor is not None
    notes.tensor[0], notes.tensor[1] = 10.0, 20.0
    x = torch.ones(2)
    assert (x * k).tolist() == [10, 10]
    assert (lr - x).tolist() == [19, 19]
    assert (k + x).tolist() == [11, 11]
    assert (x * k).dtype == torch.float32
    assert notes.slots == {"step": 0, "lr": 1}
    assert [of(At(4, {"lr": 0.25})) for of in notes.numbers] == [4, 0.25]
    assert notes.decisions == []


def test_functions_of_torch_take_numbers() -> None:
    notes, k, lr = numbers()
    assert notes.tensor is not None
    notes.tensor[:4] = torch.tensor([3.0, 0.5, 6.0, 1.0])
    x = torch.tensor([1.0, 4.0])
    assert torch.clamp(x, max=k).tolist() == [1, 3]
    with Watching():
        assert torch.where(x > 2, x, lr).tolist() == [0.5, 4]
        assert x.new_tensor(k).item() == 3
        assert torch.add(x, x, alpha=2).tolist() == [3, 12]  # without a number as ever
        found = torch.add(x, torch.ones(2), alpha=lr)
    assert found.tolist() == [1.5, 4.5]
    with pytest.raises(NoGraph, match="makes a tensor of a number that varies"):
        torch.add(torch.arange(2), k)


def test_the_places_for_numbers_end() -> None:
    notes, k, _ = numbers()
    x = torch.ones(1)
    for power in range(MOST_NUMBERS):
        x * k**power
    with pytest.raises(NoGraph, match=f"more than {MOST_NUMBERS} numbers that vary"):
        x * k**MOST_NUMBERS
    x * k**3  # which has its place
    notes.begin(At(0), None)
    with pytest.raises(NoGraph, match="before its first step"):
        x * k


def test_a_step_is_repeated_with_the_numbers_of_each() -> None:
    """x = k x + c for k = 2, 3, 5, the constant c as it was given."""

    def step(x: Tensor, k: Tensor, c: Tensor) -> list[Tensor]:
        return [k * x + c, x]

    rows = torch.tensor([2.0, 3.0, 5.0])
    inputs = [torch.tensor(1.0), torch.tensor(10.0)]
    out = loop_steps(step, 1)(inputs, rows, 3)
    assert [float(t) for t in out] == [(((2 + 10) * 3) + 10) * 5 + 10, (2 + 10) * 3 + 10]
    same = loop_steps(step, 1)(inputs, rows[:1], 2)  # one row stands for all
    assert float(same[0]) == (2 + 10) * 2 + 10
    assert inputs[0] == 1


def test_steps_taken_at_once_count_each() -> None:
    state, info = (torch.ones(2), torch.zeros(1)), {"seen": torch.ones(())}
    leaves, shape = tree_flatten((state, info))
    calls, samples = Counter(grad_f=2), Counter(grad_f=16)
    form: Any = SimpleNamespace(shape=shape, calls=calls, samples=samples)
    s = Standing(4, state, Counter(grad_f=1, lmo=1), Counter(grad_f=5), 1.5, 2.5, {})
    found = standing_after(s, 3, form, [leaf + 1 for leaf in leaves])
    assert found.step == 7
    assert found.calls == {"grad_f": 7, "lmo": 1}
    assert found.samples == {"grad_f": 53}
    assert [t.tolist() for t in found.state] == [[2, 2], [1]]
    assert found.info == {"seen": 2}
    assert (found.seconds, found.cpu_seconds) == (1.5, 2.5)


ONE = torch.ones(3, dtype=torch.float64)


@pytest.mark.parametrize(
    ("plain", "other", "far"),
    [
        (ONE, ONE, False),
        (ONE, ONE * (1 + 1e-13), False),
        (ONE, ONE * (1 + 1e-3), True),
        (ONE, ONE * (1 - 1e-3), True),
        (ONE, torch.tensor([1.0, 1.0, math.nan]).double(), True),
        (torch.tensor([1.0, math.inf, 1.0]).double(), ONE, True),
        (ONE * math.nan, ONE * math.nan, False),
        (torch.arange(3), torch.arange(3), False),
        (torch.arange(3), torch.arange(3) + 1, True),
        (ONE[:0], ONE[:0], False),
    ],
)
def test_how_far_two_states_are_apart(plain: Tensor, other: Tensor, far: bool) -> None:
    still = ONE.clone(), plain
    assert (largest_gap((ONE, plain), (ONE, plain), (ONE, other)) > 1) == far
    assert (largest_gap((plain, ONE), still[::-1], (other, ONE)) > 1) == far


def test_a_step_that_moves_far_may_round_more() -> None:
    """The unit is eps^.4 of how far the step went, 1000 eps of the state, and 10 eps."""
    eps = torch.finfo(torch.float64).eps
    before, after = 0 * ONE, 2 * ONE
    unit = eps**0.4 * 2 + 1000 * eps * 2 + 10 * eps
    found = largest_gap((before,), (after,), (after + torch.tensor([0, 0, 3 * unit]).double(),))
    assert found == pytest.approx(3, rel=1e-6)
    still = 10 * eps + 1000 * eps
    found = largest_gap((ONE,), (ONE,), (ONE + 100 * still,))
    assert found == pytest.approx(100, rel=1e-2)
    zero = largest_gap((before,), (before,), (before + 20 * eps,))
    assert zero == pytest.approx(2)
