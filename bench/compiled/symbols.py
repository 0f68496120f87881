"""Numbers that a graph must not take for constants: those of the step, a lane, or a batch.

A graph of tensor operations is recorded once and run at many steps, for many lanes. Recording would
turn a Python number, such as the number of the step, into a constant. A `Number` in its place
becomes an input of the graph.
"""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

MOST_NUMBERS = 128  # how many numbers a graph may have as inputs


class NoGraph(Exception):
    """A step cannot be recorded as a graph; the words follow the method's name."""


class CannotCompile(NoGraph):
    """A recorded step cannot be compiled here; another machine, or this one later, may do so."""


class At(NamedTuple):
    """What the numbers of a step are computed from."""

    step: int
    chosen: Mapping[str, float] = {}  # the settings in which lanes differ, of this lane
    given: Sequence[float] = ()  # the plain numbers in the step's batches


Of = Callable[[At], Any]  # how a number is computed


class Decision(NamedTuple):
    """A value that steered Python while a step was recorded.

    The graph holds for every step at which all such values are the same.
    """

    key: str  # the computation, in words
    of: Of
    value: Any  # at the step that was recorded
    drawn: bool  # whether it depends on the batches

    def holds(self, at: At) -> bool:
        """Whether the value at another step is the recorded one."""
        return bool(self.of(at) == self.value)


class Notes:
    """What a recording finds out about numbers: its decisions, and which numbers are inputs."""

    def __init__(self) -> None:
        self.at = At(0)
        self.before: list[Decision] = []  # decisions of the time when the method was built
        self.decisions: list[Decision] = []
        self.slots: dict[str, int] = {}  # the place of each number in the input, by its key
        self.numbers: list[Of] = []
        self.tensor: Tensor | None = None  # the graph's input of numbers, [MOST_NUMBERS] float64

    def keep_decisions(self) -> None:
        """Keep the decisions so far, under which the method was built, for all recordings."""
        self.before = self.decisions

    def begin(self, at: At, tensor: Tensor | None) -> None:
        """Begin a recording, of the step `at`, with its input of numbers."""
        self.at, self.tensor = at, tensor
        self.decisions, self.slots, self.numbers = list(self.before), {}, []

    def decide(self, number: "Number", of: Of) -> Any:
        """The value that `of` has at the recorded step, of which a decision is noted."""
        value = of(self.at)
        self.decisions.append(Decision(number.key, of, value, number.drawn))
        return value

    def input(self, number: "Number", like: Tensor) -> Tensor:
        """The number as a tensor of shape [] and of the type of `like`; raises NoGraph."""
        if self.tensor is None:
            raise NoGraph("it puts a number that varies into a tensor before its first step")
        if not like.is_floating_point() and isinstance(number.of(self.at), float):
            raise NoGraph("it computes with a fraction that varies and a tensor of integers")
        if number.key not in self.slots:
            if len(self.numbers) == MOST_NUMBERS:
                raise NoGraph(f"it works with more than {MOST_NUMBERS} numbers that vary")
            self.slots[number.key] = len(self.numbers)
            self.numbers.append(number.of)
        return self.tensor[self.slots[number.key]].to(like.dtype)


class Number:
    """A number that may differ between the steps, or lanes, for which a graph is run.

    Arithmetic of it with numbers gives a Number, and with a tensor a tensor, for which the number
    becomes an input of the graph. Where Python needs its value, in a comparison or for a length, it
    gets the value at the recorded step, and this decision is noted.
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, notes: Notes, key: str, of: Of, drawn: bool = False):
        self.notes, self.key, self.of, self.drawn = notes, key, of, drawn

    def tensor(self, like: Tensor) -> Tensor:
        """The number as a tensor of shape [] and of the type of `like`; raises NoGraph."""
        return self.notes.input(self, like)

    def __bool__(self) -> bool:
        of = self.of
        return bool(self.notes.decide(self, lambda at: bool(of(at))))

    def __index__(self) -> int:
        return operator.index(self.notes.decide(self, self.of))

    def __int__(self) -> int:
        return int(self.notes.decide(self, self.of))

    def __float__(self) -> float:
        return float(self.notes.decide(self, self.of))

    def __neg__(self) -> "Number":
        return apply(operator.neg, self)

    def __ceil__(self) -> "Number":
        return apply(math.ceil, self)

    def __floor__(self) -> "Number":
        return apply(math.floor, self)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return call_with_tensors(func, args, kwargs or {})


def apply(function: Callable[..., Any], *values: Any) -> Any:
    """function(*values), where at least one value is a Number.

    With a tensor among the values this is a tensor, otherwise a Number.
    """
    like = next((v for v in values if isinstance(v, Tensor)), None)
    if like is not None:
        return function(*(v.tensor(like) if isinstance(v, Number) else v for v in values))
    if not all(isinstance(v, Number | int | float) for v in values):
        return NotImplemented
    numbers = [v for v in values if isinstance(v, Number)]
    ofs = [v.of if isinstance(v, Number) else (lambda at, v=v: v) for v in values]
    keys = [v.key if isinstance(v, Number) else repr(v) for v in values]
    key = f"{function.__name__}({', '.join(keys)})"
    drawn = any(n.drawn for n in numbers)
    return Number(numbers[0].notes, key, lambda at: function(*(of(at) for of in ofs)), drawn)


def compare(function: Callable[..., Any], *values: Any) -> Any:
    """A comparison with a Number, which with other numbers Python decides."""
    found = apply(function, *values)
    return bool(found) if isinstance(found, Number) else found


def call_with_tensors(func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """Call a function of torch that was given Numbers, with tensors instead; raises NoGraph."""
    if isinstance(alpha := kwargs.get("alpha"), Number):  # torch takes no tensor as alpha
        kwargs = {key: value for key, value in kwargs.items() if key != "alpha"}
        args = (args[0], alpha * args[1], *args[2:])
    tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
    like = next((t for t in tensors if t.is_floating_point()), None)
    if like is None:
        raise NoGraph("it makes a tensor of a number that varies")
    if func is Tensor.new_tensor:
        return args[1].tensor(like)
    args, kwargs = tree_map_only(Number, lambda n: n.tensor(like), (args, dict(kwargs)))
    return func(*args, **kwargs)


class Watching(TorchFunctionMode):
    """Catches Numbers that are given to functions of torch that take any object (new_tensor)."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if any(isinstance(v, Number) for v in (*args, *kwargs.values())):
            return call_with_tensors(func, args, kwargs)
        return func(*args, **kwargs)


def _give_operators() -> None:
    """Give Number the operators of arithmetic and comparison."""
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
        plain = getattr(operator, name)
        setattr(Number, f"__{name}__", lambda a, b, plain=plain: apply(plain, a, b))
        setattr(Number, f"__r{name}__", lambda a, b, plain=plain: apply(plain, b, a))
    for name in ("lt", "le", "gt", "ge", "eq", "ne"):
        plain = getattr(operator, name)
        setattr(Number, f"__{name}__", lambda a, b, plain=plain: compare(plain, a, b))


_give_operators()
