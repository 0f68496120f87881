"""Graphs of CUDA without a GPU: a graph here is the operations that were called while it was made.

What is tested is what surrounds a capture; that CUDA takes the operations, only a GPU can tell.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bench.compiled.calls import Call, Captured, loop_steps, trace
from bench.compiled.symbols import CannotCompile
from bench.core.task import Context
from tasks.quadratic import quadratic
from tests.test_algorithms import made
from tests.test_compile import close, plain, taken


class Graph(TorchDispatchMode):
    """Operations, which a replay does again from the tensors they had into those they gave."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Callable[[], Any]] = []
        self.found: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def call() -> Any:
            return func(*args, **(kwargs or {}))

        self.calls.append(call)
        self.found.append(call())
        return self.found[-1]

    def replay(self) -> None:
        for call, found in zip(self.calls, self.found, strict=True):
            for old, new in zip(tree_leaves(found), tree_leaves(call()), strict=True):
                if not isinstance(old, Tensor):
                    continue
                # autograd knows nothing of what a replay writes
                with torch.autograd.grad_mode._unsafe_preserve_version_counter((old,)):
                    old.copy_(new.reshape(old.shape))  # squeeze_ has changed it since

    def pool(self) -> None:
        """There is no memory of its own here."""


class Cuda:
    """What a capture needs of torch.cuda: streams, of which one is the current one, and graphs."""

    CUDAGraph = Graph

    def __init__(self) -> None:
        self.current = self.Stream()

    @staticmethod
    def Stream() -> mock.Mock:
        return mock.Mock()

    waits = 0  # 2: what waits for the GPU raises

    def get_sync_debug_mode(self) -> int:
        return self.waits

    def set_sync_debug_mode(self, mode: int | str) -> None:
        self.waits = 2 if mode == "error" else int(mode)

    def current_stream(self) -> mock.Mock:
        return self.current

    @contextmanager
    def stream(self, new: mock.Mock) -> Iterator[None]:
        before, self.current = self.current, new
        try:
            yield
        finally:
            self.current = before

    @contextmanager
    def graph(self, graph: Graph, pool: object, side: object) -> Iterator[None]:
        """Like torch's own, it leaves its stream in place if the end of the capture raises."""
        before, self.current = self.current, self.Stream()
        with graph:
            yield
        self.current = before


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    made_up = Cuda()
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(Captured, "side", None)
    for name in (
        "CUDAGraph", "Stream", "current_stream", "stream", "graph", "get_sync_debug_mode",
        "set_sync_debug_mode",
    ):  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, getattr(made_up, name))
    monkeypatch.setattr(Captured, "failed", False)
    return made_up


def captured(graph: GraphModule, states: int, inputs: Sequence[Tensor]) -> Call:
    """As compile_graph has it on a GPU."""
    pure = trace(torch.func.functionalize(graph), inputs)
    return loop_steps(Captured(pure, inputs), states)


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize("batch", [None, 8])
def test_replayed_steps_are_the_plain_ones(batch: int | None, context: Context) -> None:
    task, algorithm = quadratic(context, noise=0.3), made("soba", batch=batch)
    close(taken(task, algorithm, 12, captured), plain(task, algorithm, 12), 1e-12)


@pytest.mark.usefixtures("cuda")
def test_what_a_call_returns_stays_as_it_is() -> None:
    def double(x: Tensor) -> list[Tensor]:
        return [2 * x]

    step = Captured(trace(double, [torch.ones(2)]), [torch.ones(2)])
    (first,) = step(torch.ones(2))
    step(torch.full((2,), 3.0))
    assert first.tolist() == [2, 2]


@pytest.mark.usefixtures("cuda")
def test_an_input_is_copied_when_it_is_another_or_has_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All inputs of a dtype that are to be copied go at once."""

    def product(x: Tensor, data: Tensor) -> list[Tensor]:
        return [x * data]

    x, data = torch.ones(2), torch.full((2,), 2.0)
    step = Captured(trace(product, [x, data]), [x, data])
    copy = mock.Mock(wraps=torch._foreach_copy_)
    monkeypatch.setattr(torch, "_foreach_copy_", copy)

    def copied() -> list[int]:
        """How often each input was copied since the last look, by one call at most."""
        assert copy.call_count <= 1
        into = [own for (owns, _), _ in copy.call_args_list for own in owns]
        copy.reset_mock()
        return [sum(own is one for one in into) for own in step.inputs.writable]

    assert step(x, data)[0].tolist() == [2, 2]
    assert copied() == [1, 1]
    assert step(x + 1, data)[0].tolist() == [4, 4]
    assert copied() == [1, 0]
    data += 1
    assert step(x, data)[0].tolist() == [3, 3]
    assert copied() == [1, 1]
    assert step(x, data.clone())[0].tolist() == [3, 3]
    assert copied() == [0, 1]


def test_after_a_failed_capture_the_process_tries_no_other(cuda: Cuda) -> None:
    """The stream is that of before, on which plain steps go on."""
    before, calls = cuda.current, []

    def refused(*inputs: Tensor) -> list[Tensor]:
        calls.append(cuda.current)
        if len(calls) == 4:  # after those that warm up
            raise RuntimeError("operation not permitted when stream is capturing")
        return list(inputs)

    inputs = [torch.ones(2)]
    with pytest.raises(RuntimeError, match="not permitted"):
        Captured(refused, inputs)
    assert cuda.current is before
    assert before not in calls
    with pytest.raises(CannotCompile, match="an earlier capture of this process has failed"):
        Captured(refused, inputs)
    assert len(calls) == 4


def test_what_waits_for_the_gpu_is_refused_before_it_is_captured(cuda: Cuda) -> None:
    """The process can go on capturing other work."""

    def waits(*inputs: Tensor) -> list[Tensor]:
        if cuda.waits == 2:
            raise RuntimeError("called a synchronizing CUDA operation")
        return list(inputs)

    def doubled(*inputs: Tensor) -> list[Tensor]:
        return [2 * t for t in inputs]

    cuda.waits = 1
    with pytest.raises(RuntimeError, match="synchronizing"):
        Captured(waits, [torch.ones(2)])
    assert cuda.waits == 1
    assert Captured(doubled, [torch.ones(2)])(torch.ones(2))[0].tolist() == [2, 2]
    assert cuda.waits == 1


def test_a_backward_pass_is_traced_in_this_thread() -> None:
    """On a GPU it would have a thread of its own, which knows nothing of the trace."""
    seen = []

    def doubled(x: Tensor) -> Tensor:
        seen.append(torch._C._is_multithreading_enabled())
        return 2 * x

    assert torch._C._is_multithreading_enabled()
    trace(doubled, [torch.ones(2)])
    assert seen == [False]
    assert torch._C._is_multithreading_enabled()
