"""The machine that a run is made on: device, threads, memory, clocks."""

import ctypes
import os
import re
import resource
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from threadpoolctl import threadpool_limits

from bench.core.settings import BadSetting

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
PROC_STAT, STATUS = Path("/proc/stat"), Path("/proc/self/status")
TRIES = 10  # of the piece of work that tells a machine's pace, of which each takes a millisecond
SHORTEST = 0.25  # seconds, over which two ticks of a hundredth are less than a tenth of a core
KEPT = {M_TRIM_THRESHOLD: 2**28, M_MMAP_THRESHOLD: 2**25}  # bytes kept in all, and of one tensor
MOST_FILES = 10_240  # open at once, on macOS, whose kernel has a limit where it names none

# errors of a GPU, which tell nothing of the run that met them: the next command makes it
OF_DEVICE = (torch.AcceleratorError, torch.OutOfMemoryError)
OF_LIBRARY = re.compile(r"(CUDA|cuDNN|cuBLAS|cuFFT|cusparse|cusolver) error", re.I)

_ends: list[float] = []  # the CPU time of this process at the end of each of its runs


def choose_device(wanted: str) -> torch.device:
    """The device for run.device, here `wanted`: "auto" is cuda where there is one, otherwise cpu.

    Raises BadSetting if cuda is wanted and there is none.
    """
    there = torch.cuda.is_available()
    if wanted == "cuda" and not there:
        built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
        raise BadSetting(
            f"run.device=cuda: torch ({built}) finds no CUDA device here; write auto or cpu"
        )
    return torch.device("cuda" if there and wanted != "cpu" else "cpu")


def settle(device: torch.device, threads: int) -> None:
    """Set this process up for a run, so that the same run twice has the same last bits."""
    torch.set_num_threads(threads)
    threadpool_limits(threads)  # numpy has threads of its own
    keep_freed_memory()
    if device.type == "cuda":
        settle_cuda()


def settle_cuda() -> None:
    """Have CUDA give the same last bits each time, in the precision that a run's dtype says.

    Products with sparse matrices are cuSPARSE's, of which torch knows no deterministic form: their
    last bits may differ from run to run.

    cuBLAS reads its variable when it is first used, and torch asks it of deterministic runs. TF32
    would leave float32 ten bits. Filling new memory with NaN, which deterministic algorithms do by
    default, finds reads of what was never written, and costs a kernel for each tensor.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    # torch 2.11 warns unless the checks of sparse tensors are on or off; the tests switch them on
    torch.sparse.check_sparse_tensor_invariants.disable()
    warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")


def keep_freed_memory() -> None:
    """Let glibc, where it is the allocator, keep freed memory for the next allocation (mallopt(3)).

    By default glibc gives tensors of some MB back to the system, which has to map the memory of the
    next one again: that took a quarter of the time of SF2OBO on 20 Newsgroups. Tensors above 32 MB
    are still given back, as they would leave holes.
    """
    if sys.platform == "linux" and (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)):
        for parameter, size in KEPT.items():
            mallopt(parameter, size)


def allow_open_files() -> None:
    """Let this process have as many files open as the system lets it: each lane has two or more.

    The soft limit of 1,024, which is usual, is for programs that still use select().
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_FILES if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def clock(device: torch.device) -> Callable[[], float]:
    """A clock in seconds that first waits until the device has done all its work."""

    def now() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    return now


def peak_memory_mb(device: torch.device) -> dict[str, float]:
    """The peak of memory so far in MB: `process` of this process, and `gpu` where one is used."""
    peak = {"process": peak_of_process_kb() / 1024}
    if device.type == "cuda":
        peak["gpu"] = torch.cuda.max_memory_allocated(device) / 2**20
    return peak


def peak_of_process_kb() -> float:
    """The most kB of memory that this process had.

    Linux's own word for it, because getrusage also counts what the process was before it became
    this program: a copy of the one that started it. Elsewhere getrusage tells, in bytes on macOS.
    """
    try:
        found = re.search(r"^VmHWM:\s*(\d+) kB$", STATUS.read_text(), re.MULTILINE)
    except OSError:
        found = None
    if found:
        return float(found[1])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1024 if sys.platform == "darwin" else float(peak)


class Usage(NamedTuple):
    """What had been used of the machine at some moment, in seconds."""

    wall: float
    own: float  # CPU time of this process
    busy: float | None  # CPU time of all processes since the machine started; None if not known


def usage() -> Usage:
    """What has been used of the machine until now."""
    return Usage(time.perf_counter(), time.process_time(), busy_seconds())


def busy_seconds() -> float | None:
    """The CPU time that this machine's cores have worked since it started (man 5 proc).

    Time that a virtual machine's host gave to others is part of it. None where there is no
    /proc/stat.
    """
    try:
        first = PROC_STAT.read_text().split("\n", 1)[0]
    except OSError:
        return None
    user, nice, system, _, _, interrupts, soft, stolen = map(int, first.split()[1:9])
    ticks = user + nice + system + interrupts + soft + stolen
    return ticks / os.sysconf("SC_CLK_TCK")


def others_cores(since: Usage, now: Usage) -> float | None:
    """How many cores were busy with other processes between two moments, on average.

    None where this is not known: without /proc/stat, over a time that its ticks cannot resolve, or
    where it does not even show the work of this process, as in some containers.
    """
    wall, own = now.wall - since.wall, now.own - since.own
    if since.busy is None or now.busy is None or wall < SHORTEST:
        return None
    busy = now.busy - since.busy
    if busy < 0.8 * own - 0.02:
        return None
    return max(0.0, busy - own) / wall


def pace() -> float:
    """How many milliseconds a fixed piece of work takes here: the least of several tries.

    The work is a product of matrices, bound by arithmetic, and an exponential of many numbers,
    bound by memory, on the CPU with this process's threads. Machines of one name may differ by
    several times in this, such as virtual ones.
    """
    square = torch.full((256, 256), 0.5, dtype=torch.float32, device="cpu")
    line = torch.full((2**19,), 0.5, dtype=torch.float32, device="cpu")
    took = []
    for _ in range(TRIES):
        began = time.perf_counter()
        torch.mm(square, square)
        torch.exp(line)
        took.append(time.perf_counter() - began)
    return 1e3 * min(took)


def process_of_run() -> dict[str, float]:
    """What a run that ends now has used of its process, for the summary of the run.

    cpu_seconds: the CPU time since the previous run in this process ended; for the first run, since
    the process began, imports included. earlier_runs: how many runs the process made before. The
    peak of its memory may be from one of those.
    """
    now = time.process_time()
    found = {"cpu_seconds": now - (_ends[-1] if _ends else 0.0), "earlier_runs": len(_ends)}
    _ends.append(now)
    return found


def is_of_device(error: BaseException) -> bool:
    """Whether an error is one of a GPU; CUDA's libraries raise theirs as plain RuntimeErrors."""
    of_library = isinstance(error, RuntimeError) and OF_LIBRARY.match(str(error)) is not None
    return isinstance(error, OF_DEVICE) or of_library


def has_lost_device() -> bool:
    """Whether this process can use its GPU no more: after some errors of CUDA every call fails."""
    if not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False
