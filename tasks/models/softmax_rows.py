"""softmax_rows.c, which reads each row of features once: compiled on first use, as operators.

A gradient by torch's own products, or by JAX's, passes over the features twice; here it is once. A
C compiler makes a library of the file in half a second, which is kept in a folder of the user's
cache that holds no data; without a compiler `linear.py` does the same in torch.

torch.func.vmap over weights stacks the lanes' columns, so that rows that all lanes share are read
once for all of them. torch.compile takes the operators as they are.
"""

import ctypes
import hashlib
import logging
import os
import platform
import stat
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.core.compiler import c_compiler

SOURCE = Path(__file__).with_suffix(".c")
PASSES = ("gradient", "curvature", "scores", "combine")
TYPES = {  # real numbers, and the functions of C's library for them
    torch.float32: ("-DREAL=float", "-DEXP=expf", "-DLOG=logf"),
    torch.float64: ("-DREAL=double", "-DEXP=exp", "-DLOG=log"),
}
# What is not finite stays so, which -ffast-math would not promise.
FLAGS = ("-std=gnu11", "-O3", "-fPIC", "-shared", "-fno-math-errno", "-fno-trapping-math",
         "-fno-signed-zeros", "-fassociative-math")  # fmt: skip
INSTRUCTIONS = {
    "AVX512": ("-mavx512f", "-mavx512dq", "-mavx512vl", "-mfma"),
    "AVX2": ("-mavx2", "-mfma"),
}
log = logging.getLogger(__name__)


def reads_rows_once(features: Tensor) -> bool:
    """Whether the operators of this module take these features [n, d]."""
    return features.device.type == "cpu" and features.dtype in TYPES and library() is not None


@cache
def library() -> dict[torch.dtype, Callable[..., int]] | None:
    """softmax_rows.c's function `over_rows` for each type of number; None without a compiler."""
    compiler = c_compiler()
    if not compiler:
        log.warning("No C compiler is installed: softmax regression takes longer without one.")
        return None
    try:
        return load_all(compiler.split())
    except (OSError, subprocess.CalledProcessError) as error:
        log.warning("The C compiler %s fails: softmax regression takes longer. %s", compiler, error)
        return None


def load_all(compiler: list[str]) -> dict[torch.dtype, Callable[..., int]]:
    """`over_rows` for each type of number, on one thread where the compiler knows no OpenMP.

    Raises OSError, or CalledProcessError if the compiler fails.
    """
    try:
        return {dtype: load([*compiler, "-fopenmp", *names]) for dtype, names in TYPES.items()}
    except subprocess.CalledProcessError:
        return {dtype: load([*compiler, *names]) for dtype, names in TYPES.items()}


def load(compiler: list[str]) -> Callable[..., int]:
    """`over_rows` by this command, compiled unless the user's cache has it; raises as load_all."""
    able = INSTRUCTIONS.get(torch.backends.cpu.get_cpu_capability(), ())
    command = [*compiler, *FLAGS, *able, str(SOURCE), "-lm"]
    made_of = repr([platform.machine(), *command]).encode() + SOURCE.read_bytes()
    key = hashlib.blake2b(made_of, digest_size=10).hexdigest()
    try:
        folder = own_folder()
    except (OSError, RuntimeError):  # no home, or no room: it is made for this process alone
        with tempfile.TemporaryDirectory() as own:
            return function_of(build(command, Path(own) / f"{key}.so"))
    path = folder / f"softmax_rows-{key}.so"
    return function_of(path if path.is_file() else build(command, path))


def own_folder() -> Path:
    """The folder of the libraries, which nobody else may write, as what it holds is run. Data sets,
    which people pass on, are elsewhere. Raises OSError, or RuntimeError where there is no home."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(cache) / "bilevel-bench-compiled"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    found = folder.lstat()
    strange = found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode)
    if strange or found.st_mode & 0o022 or not os.access(folder, os.W_OK):
        raise PermissionError(folder)
    return folder


def build(command: list[str], path: Path) -> Path:
    """Make the library by this command, at once or not at all: others may be making it too."""
    new = path.with_name(f"{path.name}.{os.getpid()}")
    subprocess.run([*command, "-o", str(new)], check=True, capture_output=True)
    new.replace(path)
    return path


def function_of(path: Path) -> Callable[..., int]:
    """The library's function with its types."""
    function = ctypes.CDLL(str(path)).over_rows
    function.argtypes = [ctypes.c_int] * 2 + [ctypes.c_long] * 8 + [ctypes.c_void_p] * 9
    function.restype = ctypes.c_int
    return function


def over_rows(
    name: str,
    features: Tensor,
    shape: tuple[int, int, int],
    wanted: tuple[bool, bool, bool],
    y: Tensor | None = None,
    picked: Tensor | None = None,
    labels: Tensor | None = None,
    weights: Tensor | None = None,
    given: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """One of PASSES: (G [lanes, c, d], out [lanes, c, n], losses [lanes, n]), or none of the lanes
    where it is not wanted.

    shape: (lanes, c, n). features [_, d]. y: weights [lanes, c, d]. picked [groups, n] int64: the
    rows, where lanes / groups lanes at a time have the same; None: all rows. labels int64, weights:
    [lanes, n] or [1, n]. given: [lanes, c, n].

    Raises MemoryError, IndexError for a label or the number of a row that is out of range, and
    TypeError for numbers of another type than these: C would read past the end of their memory.
    """
    for t, dtype in (
        (y, features.dtype), (weights, features.dtype), (given, features.dtype),
        (picked, torch.int64), (labels, torch.int64),
    ):  # fmt: skip
        if t is not None and t.dtype != dtype:
            raise TypeError(f"softmax regression: {t.dtype} where {dtype} is read")
    lanes, c, n = shape
    length, d = features.shape
    groups = 1 if picked is None else picked.shape[0]  # len() of a tensor takes a microsecond
    sums, out, losses = wanted
    made = (
        features.new_empty(lanes if sums else 0, c, d),
        features.new_empty(lanes if out else 0, c, n),
        features.new_empty(lanes if losses else 0, n),
    )
    inputs = [
        None if t is None else t.contiguous()
        for t in (features, picked, labels, weights, y, given)
    ]  # fmt: skip
    steps = [0 if t is None or t.shape[0] == 1 else n for t in (labels, weights)]
    places = [None if t is None else t.data_ptr() for t in inputs]
    found = library()
    assert found is not None
    failed = found[features.dtype](
        PASSES.index(name), torch.get_num_threads(), groups, lanes // groups, c, n, d, *steps,
        length, *places, *(t.data_ptr() if want else None for t, want in zip(made, wanted)),
    )  # fmt: skip
    if failed == 1:
        raise MemoryError("softmax regression: no memory is left for its sums")
    if failed:
        raise IndexError("softmax regression: a label or the number of a row is out of range")
    return made


# custom_op of torch.library would take 4 us more a call, which is a seventh of a minibatch's.
_ABOUT_ROWS = "Tensor features, Tensor? picked, Tensor labels, Tensor? weights"
_SCHEMAS = {
    "scores": "(Tensor y, Tensor features) -> Tensor",
    "combine_rows": "(Tensor r, Tensor features) -> Tensor",
    "loss_gradients": f"(Tensor y, {_ABOUT_ROWS}) -> (Tensor, Tensor, Tensor)",
    "curvatures": f"(Tensor v, Tensor p, {_ABOUT_ROWS}) -> (Tensor, Tensor)",
}
for _name, _schema in _SCHEMAS.items():
    torch.library.define(f"bench::{_name}", _schema)
scores = torch.ops.bench.scores.default
combine_rows = torch.ops.bench.combine_rows.default
loss_gradients = torch.ops.bench.loss_gradients.default
curvatures = torch.ops.bench.curvatures.default


@torch.library.impl("bench::scores", "CPU")
def _scores(y: Tensor, features: Tensor) -> Tensor:
    """y features^T, [c, n]."""
    shape = (1, len(y), len(features))
    return over_rows("scores", features, shape, (False, True, False), y)[1][0]


@torch.library.impl("bench::combine_rows", "CPU")
def _combine_rows(r: Tensor, features: Tensor) -> Tensor:
    """r features, [c, d], for r [c, n]."""
    shape = (1, len(r), len(features))
    return over_rows("combine", features, shape, (True, False, False), given=r)[0][0]


@torch.library.impl("bench::loss_gradients", "CPU")
def _loss_gradients(
    y: Tensor, features: Tensor, picked: Tensor | None, labels: Tensor, weights: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """(sum_i weights_i dCE_i/dy [lanes, c, d], softmax [lanes, c, n], CE [lanes, n]) at the weights
    y [lanes, c, d]; the others as in `over_rows`. Without weights the first has no lanes."""
    shape, wanted = (*y.shape[:2], labels.shape[1]), (weights is not None, True, True)
    return over_rows("gradient", features, shape, wanted, y, picked, labels, weights)


@torch.library.impl("bench::curvatures", "CPU")
def _curvatures(
    v: Tensor,
    p: Tensor,
    features: Tensor,
    picked: Tensor | None,
    labels: Tensor,
    weights: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """The derivatives along v [lanes, c, d] of `loss_gradients`'s first result, [lanes, c, d], and
    of the losses, [lanes, n], where the softmax is p [lanes, c, n]. Without weights the first has
    no lanes."""
    (lanes, c, n), wanted = p.shape, (weights is not None, False, True)
    own = v, picked, labels, weights, p
    change, _, along = over_rows("curvature", features, (lanes, c, n), wanted, *own)
    return change, along


@torch.library.register_fake("bench::scores")
def _(y: Tensor, features: Tensor) -> Tensor:
    return y.new_empty(len(y), len(features))


@torch.library.register_fake("bench::combine_rows")
def _(r: Tensor, features: Tensor) -> Tensor:
    return r.new_empty(len(r), features.shape[1])


@torch.library.register_fake("bench::loss_gradients")
def _(
    y: Tensor, features: Tensor, picked: Tensor | None, labels: Tensor, weights: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    (lanes, c, d), n = y.shape, labels.shape[1]
    summed = 0 if weights is None else lanes
    return y.new_empty(summed, c, d), y.new_empty(lanes, c, n), y.new_empty(lanes, n)


@torch.library.register_fake("bench::curvatures")
def _(
    v: Tensor,
    p: Tensor,
    features: Tensor,
    picked: Tensor | None,
    labels: Tensor,
    weights: Tensor | None,
) -> tuple[Tensor, Tensor]:
    lanes, c, d = v.shape
    return v.new_empty(0 if weights is None else lanes, c, d), p.new_empty(lanes, p.shape[2])


@torch.library.register_vmap("bench::scores")
def _(info: Any, dims: tuple[int | None, int | None], y: Tensor, features: Tensor) -> Any:
    y, features = lanes_first(y, dims[0]), lanes_first(features, dims[1])
    if dims[1] is not None:
        return y @ features.mT, 0
    return scores(y.flatten(0, 1), features).unflatten(0, y.shape[:2]), 0


@torch.library.register_vmap("bench::combine_rows")
def _(info: Any, dims: tuple[int | None, int | None], r: Tensor, features: Tensor) -> Any:
    r, features = lanes_first(r, dims[0]), lanes_first(features, dims[1])
    if dims[1] is not None:
        return r @ features, 0
    return combine_rows(r.flatten(0, 1), features).unflatten(0, r.shape[:2]), 0


@torch.library.register_vmap("bench::loss_gradients")
def _(info: Any, dims: tuple[int | None, ...], *inputs: Tensor | None) -> Any:
    return in_lanes(loss_gradients, info.batch_size, dims, inputs, own=(0,), features=1)


@torch.library.register_vmap("bench::curvatures")
def _(info: Any, dims: tuple[int | None, ...], *inputs: Tensor | None) -> Any:
    return in_lanes(curvatures, info.batch_size, dims, inputs, own=(0, 1), features=2)


def in_lanes(
    operator: Callable[..., tuple[Tensor, ...]],
    many: int,
    dims: tuple[int | None, ...],
    inputs: tuple[Tensor | None, ...],
    own: tuple[int, ...],
    features: int,
) -> Any:
    """An operator with lanes for `many` times as many, as torch.func.vmap asks of it.

    own: the places of the inputs that each lane has; features: that of the features.
    """
    moved = [None if t is None else lanes_first(t, d) for t, d in zip(inputs, dims, strict=True)]
    alone = [d is None for d in dims]
    if not alone[features]:  # rows of their own: nothing is shared
        each = [
            operator(*(t if t is None or same else t[k] for t, same in zip(moved, alone)))
            for k in range(many)
        ]
        return tuple(torch.stack(part) for part in zip(*each)), (0,) * len(each[0])
    lanes = inputs[own[0]].shape[0] if alone[own[0]] else moved[own[0]].shape[1]  # type: ignore
    flat = []
    for k, t in enumerate(moved):
        if t is None or k == features or (alone[k] and len(t) == 1 and k not in own):
            flat.append(t)
        else:
            t = t.expand(many, *t.shape) if alone[k] else t
            flat.append(t.expand(many, lanes, *t.shape[2:]).flatten(0, 1))
    found = operator(*flat)
    # what is not wanted has no lanes
    apart = [t.unflatten(0, (many, lanes if len(t) else 0)) for t in found]
    return tuple(apart), (0,) * len(found)


def lanes_first(t: Tensor, dim: int | None) -> Tensor:
    """A tensor with the dimension of the lanes as its first; None: it has none."""
    return t if dim is None else t.movedim(dim, 0)


def _save(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _scores_back(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
    y, features = ctx.saved_tensors
    for_y, for_features = ctx.needs_input_grad
    return (
        combine_rows(gradient, features) if for_y else None,
        gradient.T @ y if for_features else None,
    )


def _combine_rows_back(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
    r, features = ctx.saved_tensors
    for_r, for_features = ctx.needs_input_grad
    return (
        scores(gradient, features) if for_r else None,
        r.T @ gradient if for_features else None,
    )


torch.library.register_autograd("bench::scores", _scores_back, setup_context=_save)
torch.library.register_autograd("bench::combine_rows", _combine_rows_back, setup_context=_save)
