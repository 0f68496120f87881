"""Few-shot learning: episodes together against one after the other, and memory against inner steps.

    uv run python scripts/speed.py --few-shot

Random images of FC100's form, 5-way 5-shot, 32 episodes, float32, 2 threads (or a GPU, where there
is one). First the adaptation of y by inner steps: all episodes by torch.func.vmap, and a loop
over them with the very same functions; both must agree. Then the most memory that one outer step
has in use, by the number T of inner steps, its inputs aside.
"""

import gc
import time
from collections.abc import Callable
from functools import partial
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import torch
from torch import Tensor

EPISODES, FILTERS = 32, 32
T = {"head": 10, "network": 3}  # inner steps: ANIL's and MAML's
# of |together - loop| / |loop|: in float32 rounding decides which way a ReLU at its kink goes;
# tests/test_few_shot.py has 1e-10 in float64
TOLERANCE = 1e-3
MEMORY_T = (1, 5, 10, 20, 50)


def task_of(adapt: str, chunk: int | None, device: torch.device) -> Any:
    """The task itself, on random images in place of a data set's."""
    from bench.core.task import Context
    from tasks.data.classes import Classes
    from tasks.few_shot import few_shot

    rng = torch.Generator().manual_seed(0)
    parts = {
        part: torch.randint(0, 256, (10, 20, 3, 32, 32), generator=rng, dtype=torch.uint8)
        for part in ("train", "val", "test")
    }
    with mock.patch("tasks.data.classes.load", return_value=Classes(parts, {})):
        settings: Any = {"adapt": adapt, "chunk": chunk, "filters": FILTERS, "episodes": EPISODES}
        return few_shot(Context(device=device), heads="drawn", **settings)


def adaptations(adapt: str, device: torch.device) -> dict[str, Callable[[], Tensor]]:
    """T inner steps of all episodes: together, and in a loop."""
    from bench.core.draw import Draw, generator
    from bench.core.oracle import Oracle

    together = task_of(adapt, EPISODES, device)
    x, y_0 = together.init(generator())
    batch = Draw(together, 0, 0).g()
    o = Oracle(together)
    each = [batch.part(i, i + 1) for i in range(EPISODES)]
    if adapt == "head":  # what is compared is the adaptation: every image is embedded before
        with torch.no_grad():
            features = o.prepared(x, batch, batch)[1].features
        each = [e._replace(features=features[i : i + 1]) for i, e in enumerate(each)]
        batch = batch._replace(features=features)

    def adapted(y: Tensor, batch: Any) -> Tensor:
        for _ in range(T[adapt]):
            y = y - 0.1 * torch.func.grad(lambda y: together.lower(x, y, batch))(y)
        return y

    def loop() -> Tensor:
        return torch.cat([adapted(y_0[i : i + 1], each[i]) for i in range(EPISODES)])

    return {"together": partial(adapted, y_0, batch), "loop": loop}


def seconds(work: Callable[[], Any], device: torch.device) -> float:
    gc.collect()
    start = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def peak_mb(work: Callable[[], Any], device: torch.device) -> float:
    """The most bytes in use during the work beyond those before it."""
    work()  # what only a first time allocates
    gc.collect()
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        work()
        return (torch.cuda.max_memory_allocated(device) - before) / 2**20
    cpu = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=cpu, profile_memory=True) as profile:
        work()
    results: Any = profile.profiler
    events = results.kineto_results.events()
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    return max(accumulate(size for _, size in changes)) / 2**20


def report(repeats: int, file: Path | None = None) -> None:
    """Prints both tables; writes the times into the file."""
    from algorithms.bilevel.aid_bio import aid_bio
    from algorithms.bilevel.itd import itd
    from algorithms.meta.maml import maml
    from bench.core.draw import Draw, generator
    from bench.core.oracle import Oracle
    from bench.numerics.descent import gd

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(
        f"{EPISODES} episodes, 5-way 5-shot, {FILTERS} filters; {device.type}, "
        f"{torch.get_num_threads()} threads, torch {torch.__version__}"
    )
    print(f"{'adapted':<9} {'T':>2} {'together s':>10} {'loop s':>8} {'ratio':>6}", end="")
    print(f" {'MB':>8} {'MB loop':>8} {'error':>8}")
    lines: list[dict[str, Any]] = []
    for adapt in ("head", "network"):
        ways = adaptations(adapt, device)
        with torch.no_grad():
            together, loop = ways["together"](), ways["loop"]()
            error = float((together - loop).norm() / loop.norm())
            assert error <= TOLERANCE, f"they disagree: {error:.1e}"
            times: dict[str, list[float]] = {name: [] for name in ways}
            for _ in range(repeats):
                for name, work in ways.items():
                    times[name].append(seconds(work, device))
            memory = {name: peak_mb(work, device) for name, work in ways.items()}
        method = f"adapting the {adapt}, T={T[adapt]}"
        lines += [{"method": method, "name": name, "seconds": s} for name, s in times.items()]
        both = {name: median(found) for name, found in times.items()}
        print(
            f"{adapt:<9} {T[adapt]:>2} {both['together']:>10.4f} {both['loop']:>8.4f} "
            f"{both['loop'] / both['together']:>6.2f} "
            f"{memory['together']:>8.1f} {memory['loop']:>8.1f} {error:>8.1e}"
        )

    print(f"\npeak MB of an outer step by T\n{'method':<9}", *(f"{n:>8}" for n in MEMORY_T))
    task = task_of("head", None, device)
    methods: dict[str, Callable[[int], Any]] = {
        "AID-BiO": partial(aid_bio, gd(1e-3), 0.1, N=5),
        "ITD-BiO": partial(itd, gd(1e-3), 0.1),
        "ANIL": partial(maml, gd(1e-3), 0.1),
    }
    for name, make in methods.items():
        found = []
        for steps in MEMORY_T:
            algorithm = make(steps)
            state = algorithm.init(*task.init(generator()))
            draw = Draw(task, 0, steps)

            def step(algorithm: Any = algorithm, state: Any = state, draw: Any = draw) -> None:
                with torch.no_grad():
                    algorithm.step(Oracle(task), state, draw)

            found.append(peak_mb(step, device))
        print(f"{name:<9}", *(f"{mb:>8.1f}" for mb in found))
    if file is not None:
        import speed_record

        title = f"Few-shot learning, {EPISODES} episodes of FC100's form, float32"
        speed_record.write(file, title, lines, device=device.type)
