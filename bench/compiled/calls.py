"""Traces a function as a graph of tensor operations, and makes a graph callable."""

import logging
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar
from unittest import mock

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from bench.compiled.symbols import CannotCompile, NoGraph
from bench.core.settings import BadSetting

# Takes n steps: call(leaves of state and batches, numbers, n) gives the leaves of state and info.
# numbers has the shape [n, so many numbers], or [1, so many numbers] if all steps have the same.
Call = Callable[[Sequence[Tensor], Tensor, int], list[Tensor]]

# The first steps of a graph are compared with plain ones: torch need not look at the shape of every
# tensor at every step. A loop is divided among threads only if each has so many numbers, as torch's
# own loops are: for fewer, waking a second thread takes as long as the work. A lower level of K
# steps uses each iterate several times in the next: torch writes these uses into each other, in a
# time that doubles with every step, until an expression has so many operations. Its own bounds are
# 30 on a GPU and, in newer versions, 50 on a CPU, where 20 steps take hours (pytorch issue 192498).
OPTIONS = {
    "config_patches": {
        "size_asserts": False, "alignment_asserts": False, "cpp.min_chunk_size": 2**15,
        "realize_opcount_threshold": 16,
    }
}  # fmt: skip


def compile_graph(graph: GraphModule, states: int, inputs: Sequence[Tensor]) -> Call:
    """A graph (*state, numbers, *batches) -> (*state, *info) as a call, by torch's own compiler.

    On a GPU it becomes a CUDA graph instead. states: how many inputs are leaves of the state.
    inputs: an example of all. Raises NoGraph, and CannotCompile if it is a graph that torch cannot
    compile here.
    """
    # Two inputs may share their storage, such as a first iterate that is its own average. torch
    # would then take them for one input at every later call.
    own = [t.clone(memory_format=torch.contiguous_format) for t in inputs]
    pure = trace(torch.func.functionalize(graph), own)
    compiler = Captured if own[0].is_cuda else compile_by_torch
    try:
        step = compiler(pure, own)
    except Exception as error:  # compilers' refusals have no common type
        reason = " ".join(str(error).split())[:120]
        raise CannotCompile(f"torch cannot compile it ({reason})") from error
    return loop_steps(step, states)


def compile_by_torch(
    graph: GraphModule, inputs: Sequence[Tensor]
) -> Callable[..., Sequence[Tensor]]:
    """The graph by torch's compiler, for inputs of any strides.

    What torch compiles holds only for the strides of the example: every input is made contiguous.
    """
    # torch's tools for extensions would warn on a machine without a GPU, and its compiler where the
    # user has switched its cache off
    for name in ("utils.cpp_extension", "_inductor.standalone_compile"):
        logging.getLogger(f"torch.{name}").setLevel(logging.ERROR)
    from torch._inductor import cpu_vec_isa, standalone_compile  # slow to import

    with mock.patch.object(cpu_vec_isa.VecISA, "check_build", compiler_knows):
        function: Callable[..., Sequence[Tensor]] = standalone_compile(
            graph, list(inputs), dynamic_shapes="from_example_inputs", options=OPTIONS
        )

    def call(*inputs: Tensor) -> Sequence[Tensor]:
        return function(*(t.contiguous() for t in inputs))

    return call


def compiler_knows(instructions: Any, code: str) -> bool:
    """Whether the compiler takes the flags of these vector instructions, which the processor has.

    torch would find out by compiling `code` with all of its headers, and by loading it in another
    process: for three to six sets of instructions, which takes longer than compiling a step.
    """
    from torch._inductor.cpp_builder import get_cpp_compiler

    flags = instructions.build_arch_flags().split()
    command = [get_cpp_compiler(), *flags, "-fsyntax-only", "-x", "c++", os.devnull]
    return subprocess.run(command, capture_output=True).returncode == 0


def loop_steps(step: Callable[..., Sequence[Tensor]], states: int) -> Call:
    """A function that takes one step, as a call that takes many; states: leaves of the state."""

    def call(inputs: Sequence[Tensor], numbers: Tensor, n: int) -> list[Tensor]:
        out, rest = list(inputs[:states]), inputs[states:]
        for k in range(n):
            out = list(step(*out[:states], numbers[k % len(numbers)], *rest))
        return out

    return call


class Captured:
    """Operations on tensors as a CUDA graph, which a call fills with inputs and launches at once.

    A capture that fails may leave its memory and its random numbers to the process. Once one has
    failed, every further one of the process raises CannotCompile.
    """

    failed: ClassVar[bool] = False
    side: ClassVar[torch.cuda.Stream | None] = None  # of all captures: each new one keeps memory

    def __init__(
        self, work: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor], pool: Any = None
    ):
        """pool: see `capture`."""
        self.inputs = Inputs(inputs)
        self.graph, self.outputs = capture(lambda: work(*self.inputs.own), pool)

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        self.inputs.fill(inputs)
        self.graph.replay()
        return [out.clone() for out in self.outputs]


class Inputs:
    """The tensors that a capture reads, which are filled before each replay."""

    def __init__(self, examples: Sequence[Tensor]):
        self.own = [t.clone() for t in examples]
        # for autograd they stay as they are, where a capture keeps what it will differentiate
        self.writable = [t.data for t in self.own]
        # the tensor, and its version, from which each was filled last
        self.filled = [(t, t._version) for t in self.own]

    def fill(self, inputs: Sequence[Tensor]) -> None:
        """Copy these tensors, of the examples' shapes; data of all steps are copied once."""
        late: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
        for i, (own, new) in enumerate(zip(self.writable, inputs, strict=True)):
            known, version = self.filled[i]
            if known is not new or version != new._version:
                owns, news = late.setdefault(own.dtype, ([], []))
                owns.append(own)
                news.append(new)
                self.filled[i] = new, new._version
        for owns, news in late.values():  # a launch for all of a dtype, and not for each
            torch._foreach_copy_(owns, news)


def capture(work: Callable[[], Any], pool: Any = None) -> tuple[torch.cuda.CUDAGraph, Any]:
    """What `work` does on the GPU as a CUDA graph, and what it gave, where a replay writes anew.

    pool: of another graph's memory; graphs that share it are replayed one after the other. Raises
    CannotCompile if an earlier capture has failed, and what CUDA says if this one does.
    """
    if Captured.failed:
        raise CannotCompile("an earlier capture of this process has failed")
    side = Captured.side = Captured.side or torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):  # so that what libraries set up at first use is not captured
            work()
        with no_waits():  # a capture in which the host waits would be the process's last
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    try:
        # torch.cuda.graph stays on its own stream where the end of the capture raises
        with torch.cuda.stream(torch.cuda.current_stream()), torch.cuda.graph(graph, pool, side):
            found = work()
    except Exception:
        Captured.failed = True
        raise
    return graph, found


@contextmanager
def no_waits() -> Iterator[None]:
    """A block in which most of what makes the host wait for the GPU raises RuntimeError."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def trace(function: Callable[..., Any], inputs: Sequence[Tensor]) -> GraphModule:
    """A function of tensors as a graph, recorded with these inputs; raises NoGraph."""
    inputs = [t.detach() for t in inputs]  # a tensor that is given twice would become one input
    try:
        # CUDA's part of a backward pass has a thread of its own, in which nothing is recorded
        with torch.autograd.set_multithreading_enabled(False):
            graph = make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(*inputs)
    except (NoGraph, BadSetting):
        raise
    except Exception as error:  # torch's refusals have no common type
        raise NoGraph(reason_of_error(error)) from error
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


def reason_of_error(error: Exception) -> str:
    """Why torch cannot record a step, in words that follow the method's name."""
    text = " ".join(str(error).split())
    # the last one is what torch 2.11 says of a comparison of values
    looked = ("data-dependent", "_local_scalar_dense", "nonzero", "aten.equal", "BooleanAtom")
    if type(error).__name__.startswith("DataDependent") or any(word in text for word in looked):
        return "what it computes depends on what its tensors hold"
    return f"torch cannot record it ({type(error).__name__}: {text[:120]})"
