"""Continual learning: images a second of experience replay on a stream of permuted images.

    uv run python scripts/speed.py --continual [--avalanche]

Random images of MNIST's form, 20 tasks in batches of 10 with 50 replayed of 50 remembered of each
task, an MLP of two layers of 256, float32. Ours is algorithms/continual/er.py as `bench` runs it,
the counted oracle and the draws by name included, tests at task ends not; `usual` is a loop as it
is usually written: torch's modules, SGD and DataLoader, and a memory of images. Before they are
timed both must end at the same parameters, with the same replays, in float64: in float32 rounding
can turn a ReLU, and from there on they part. Avalanche's is its Naive strategy with its replay
plugin, 50 places for each task, without loggers, in an environment and a process of its own; it
draws its replays by itself, so what must agree is how much it learns: how many images are right.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

TASKS, IMAGES, BATCH, MEMORY, HIDDEN, LR = 20, 200, 10, 50, 256, 0.03
TOLERANCE = 1e-9  # of |usual - ours| / |ours| in float64, over 400 steps
LEARNED = 0.15  # of |Avalanche's accuracy - ours|: replays by chance alone can make it .1
THREADS = (1, 2)
AVALANCHE = "avalanche-lib==0.6.*"


class Trial(NamedTuple):
    seconds: float  # of a run through the whole stream
    end: Tensor  # its parameters


Work = Callable[[], Trial]


def stream(dtype: torch.dtype = torch.float32) -> Any:
    """The task itself, on made-up images of ten classes in place of MNIST."""
    from bench.core.task import Context
    from tasks.continual import permuted_mnist
    from tasks.data.images import Images, Part, Split

    rng = torch.Generator().manual_seed(0)
    labels = torch.randint(10, (2 * IMAGES,), generator=rng)
    means = torch.rand(10, 784, generator=rng)
    features = (means[labels] + 0.5 * torch.randn(len(labels), 784, generator=rng)).clamp(0, 1)
    part = Part(features, labels)
    with mock.patch("tasks.continual.load", return_value=Split(part, part, part, part, {})):
        sizes = Images("mnist", len(labels), 1, 1, len(labels))
        task = permuted_mnist(Context(dtype=dtype), sizes, TASKS, IMAGES, BATCH, hidden=HIDDEN)
    return replace(task, ledger=None, evaluate=lambda x, y, step: {"ACC": torch.zeros(())})


def network(y: Tensor) -> nn.Sequential:
    layers = [nn.Linear(784, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU()]
    net = nn.Sequential(*layers, nn.Linear(HIDDEN, 10)).to(y.dtype)
    nn.utils.vector_to_parameters(y.clone(), net.parameters())
    return net


def ours(task: Any) -> Callable[[], Tensor]:
    from algorithms.continual.er import er
    from bench.core.loop import run

    def work() -> Tensor:
        steps = TASKS * IMAGES // BATCH
        end = run(task, er(LR, MEMORY, MEMORY), seed=0, steps=steps, every=steps)
        y: Tensor = end.state.y
        return y

    return work


def usual(task: Any, places: Callable[[int, int], Tensor]) -> Callable[[], Tensor]:
    """places(n, step): which of the n remembered images are replayed."""
    from bench.core.draw import generator

    every = task.stream.recalled(torch.arange(TASKS * IMAGES))

    def work() -> Tensor:
        net = network(task.init(generator(0, "init"))[1])
        optimizer = torch.optim.SGD(net.parameters(), LR)
        memory = torch.zeros(TASKS, MEMORY, 784, dtype=every.images.dtype)
        answers = torch.zeros(TASKS, MEMORY, dtype=torch.int64)
        for t in range(TASKS):
            rows = slice(t * IMAGES, (t + 1) * IMAGES)
            loader = DataLoader(TensorDataset(every.images[rows], every.labels[rows]), BATCH)
            for k, (images, labels) in enumerate(loader):
                round_ = torch.arange(k * BATCH, (k + 1) * BATCH) % MEMORY
                memory[t, round_], answers[t, round_] = images, labels
                loss = F.cross_entropy(net(images), labels)
                if t > 0:
                    drawn = places(t * MEMORY, t * (IMAGES // BATCH) + k)
                    old = net(memory[:t].flatten(0, 1)[drawn])
                    loss = loss + F.cross_entropy(old, answers[:t].flatten()[drawn])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        return nn.utils.parameters_to_vector(net.parameters()).detach()

    return work


def as_ours(task: Any) -> Callable[[int, int], Tensor]:
    """The places that algorithms/continual/er.py draws."""
    from bench.core.draw import Draw

    return lambda n, step: Draw(task, 0, step).some(torch.arange(n), MEMORY)


@contextmanager
def avalanche(task: Any) -> Iterator[tuple[str, Work]]:
    """(name and version, its work), which a process in Avalanche's environment does; raises
    Unavailable."""
    from peer_environment import environment

    from bench.core.draw import generator

    python = environment("Avalanche", AVALANCHE, "its own dependencies")
    every = task.stream.recalled(torch.arange(TASKS * IMAGES))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        start = task.init(generator(0, "init"))[1]
        torch.save([every.images, every.labels, start], folder / "stream.pt")
        with (
            (folder / "stderr").open("w+") as stderr,
            subprocess.Popen(
                [python, __file__, folder],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True,
            ) as worker,
        ):  # fmt: skip
            told, said = worker.stdin, worker.stdout
            assert told is not None
            assert said is not None

            def work() -> Trial:
                print(torch.get_num_threads(), file=told, flush=True)
                answer = said.readline()
                if not answer:
                    stderr.seek(0)
                    raise SystemExit(f"Avalanche's process has ended: {stderr.read()[-300:]}")
                return Trial(float(answer), torch.load(folder / "end.pt"))

            yield said.readline().strip(), work
            told.close()  # the worker's loop ends with its input


def as_avalanche(folder: Path) -> None:
    """For each line on stdin, a number of threads: the stream learned, and its seconds on stdout.

    Replays begin with the second task, 50 at random of 50 of each task before, as ours.
    """
    import avalanche
    from avalanche.benchmarks import benchmark_from_datasets
    from avalanche.benchmarks.utils import as_classification_dataset
    from avalanche.training.plugins import EvaluationPlugin, ReplayPlugin
    from avalanche.training.storage_policy import ExperienceBalancedBuffer
    from avalanche.training.supervised import Naive

    class Images(Dataset[tuple[Tensor, int]]):
        def __init__(self, images: Tensor, labels: Tensor):
            self.images, self.targets = images, labels.tolist()

        def __len__(self) -> int:
            return len(self.targets)

        def __getitem__(self, k: int) -> tuple[Tensor, int]:
            return self.images[k], self.targets[k]

    def both(z: Tensor, labels: Tensor) -> Tensor:
        """The mean over the new images, which come first, plus that over the old."""
        losses = F.cross_entropy(z, labels, reduction="none")
        parts = (losses[:BATCH], losses[BATCH:])
        return torch.stack([part.mean() for part in parts if len(part)]).sum()

    answers, sys.stdout = sys.stdout, sys.stderr  # it prints how far it is
    images, labels, start = torch.load(folder / "stream.pt")
    tasks = [Images(*part) for part in zip(images.split(IMAGES), labels.split(IMAGES))]
    print(f"Avalanche {avalanche.__version__}", file=answers, flush=True)
    for line in sys.stdin:
        torch.set_num_threads(int(line))
        stream = benchmark_from_datasets(train=[as_classification_dataset(t) for t in tasks])
        net = network(start)
        places = TASKS * MEMORY
        memory = ExperienceBalancedBuffer(places, adaptive_size=False, num_experiences=TASKS)
        strategy = Naive(
            model=net,
            optimizer=torch.optim.SGD(net.parameters(), LR),
            criterion=both,
            train_mb_size=BATCH,
            plugins=[ReplayPlugin(places, BATCH, MEMORY, storage_policy=memory)],
            evaluator=EvaluationPlugin(),
        )
        begin = time.perf_counter()
        for experience in stream.train_stream:
            strategy.train(experience)
        seconds = time.perf_counter() - begin
        torch.save(nn.utils.parameters_to_vector(net.parameters()).detach(), folder / "end.pt")
        print(seconds, file=answers, flush=True)


def learned(task: Any, y: Tensor) -> float:
    every = task.stream.recalled(torch.arange(TASKS * IMAGES))
    x = task.init(torch.Generator())[0]
    right = task.stream.logits(x, y, every).argmax(1) == every.labels
    return float(right.float().mean())


def timed(work: Callable[[], Tensor]) -> Work:
    def run() -> Trial:
        begin = time.perf_counter()
        end = work()
        return Trial(time.perf_counter() - begin, end)

    return run


def report(repeats: int, file: Path | None = None, with_avalanche: bool = False) -> None:
    """Prints a line for each peer and number of threads; writes the times into the file."""
    from peer_environment import Unavailable

    task = stream()
    fine = stream(torch.float64)
    end, other = ours(fine)(), usual(fine, as_ours(fine))()
    error = float((end - other).norm() / end.norm())
    assert error <= TOLERANCE, f"they disagree: {error:.1e}"
    print(f"ER-Ring, {TASKS} tasks of {IMAGES} images, MLP {HIDDEN} x 2; torch {torch.__version__}")
    print(f"ours and the usual loop end at the same parameters to {error:.1e}")
    ways = {
        "ours": timed(ours(task)),
        "usual": timed(usual(task, lambda n, step: torch.randperm(n)[:MEMORY])),
    }
    with ExitStack() as stack:
        if with_avalanche:
            try:
                name, work = stack.enter_context(avalanche(task))
            except Unavailable as reason:
                print(f"without Avalanche: {reason}")
            else:
                ways[name] = work
                mine, its = (learned(task, y) for y in (ways["ours"]().end, work().end))
                print(f"right of all images at the end: ours {mine:.2f}, {name} {its:.2f}")
                assert abs(its - mine) <= LEARNED, "they do not learn the same"
        else:
            print("without Avalanche, which needs an environment of its own: --avalanche")
        print(f"{'threads':>7} {'':<18} {'images/s':>9} {'ours / it':>10}")
        lines: list[dict[str, Any]] = []
        for threads in THREADS:
            torch.set_num_threads(threads)
            times: dict[str, list[float]] = {name: [] for name in ways}
            for _ in range(repeats):
                for name, work in ways.items():
                    times[name].append(work().seconds)
            method = f"ER-Ring, {threads} thread{'s' * (threads != 1)}"
            lines += [{"method": method, "name": name, "seconds": s} for name, s in times.items()]
            middle = {name: median(spent) for name, spent in times.items()}
            for name, spent in middle.items():
                rate, ratio = TASKS * IMAGES / spent, spent / middle["ours"]
                print(f"{threads:>7} {name:<18} {rate:>9.0f} {ratio:>10.2f}")
    if file is not None:
        import speed_record

        title = f"Experience replay, {TASKS} tasks of {IMAGES} permuted images, float32"
        speed_record.write(file, title, lines)


if __name__ == "__main__":  # Avalanche's process
    as_avalanche(Path(sys.argv[1]))
