"""Warm worker processes: who gets which run, what a kill costs, and that nobody stays behind.

At first with threads in place of processes, whose ends are said by the test; then with processes.
"""

import copy
import multiprocessing
import multiprocessing.context
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from hydra import compose, initialize_config_module

from bench.compiled.calls import Captured
from bench.reproduce.runner import interrupt_on_terminate
from bench.runs import launch, lock, machine
from bench.runs.folder import RunFolder, RunState, folders_below
from bench.sweeps import workers
from bench.sweeps.jobs import Job
from bench.sweeps.launchers import local
from bench.sweeps.workers import TRIES, Worker, make_with_workers
from tests.conftest import ROOT

Config = dict[str, Any]
LONG = 600.0  # seconds until a test gives up

# what a process does with a run
DONE, FAILS, DIES, DIES_AT_ONCE, STOPPED, DIES_AFTER, LACKS, WORN = (
    "is done", "fails", "dies", "dies before it begins", "is stopped", "dies after it",
    "finds no memory on the GPU", "is done, in a process that can capture nothing more",
)  # fmt: skip


class Stage:
    """What happens to the runs, in order of their tries, and what was seen."""

    def __init__(self) -> None:
        self.deeds: dict[str, deque[str]] = {}
        self.going: set[str] = set()
        self.beside: list[tuple[str, int]] = []  # of each try, how many others were going
        self.where: dict[str, list[int]] = {}  # of each run, the processes that it was in
        self.made: list[Acting] = []
        self.guard = threading.Lock()

    def begin(self, name: str, who: int) -> str:
        with self.guard:
            self.beside.append((name, len(self.going)))
            self.going.add(name)
            self.where.setdefault(name, []).append(who)
            deeds = self.deeds.get(name)
            return deeds.popleft() if deeds else DONE

    def end(self, name: str) -> None:
        with self.guard:
            self.going.remove(name)


class Acting(Worker):
    """A thread in place of a process. It dies by closing its line."""

    stage: Stage

    def __init__(self) -> None:
        self.line, theirs = multiprocessing.Pipe()
        self.number = len(self.stage.made)
        self.stage.made.append(self)
        self.terminated = False
        self.thread = threading.Thread(target=self.act, args=[theirs], daemon=True)
        self.thread.start()
        self.process: Any = SimpleNamespace(
            join=self.thread.join, is_alive=self.thread.is_alive, terminate=self.terminate
        )
        self.job, self.used = None, False

    def terminate(self) -> None:
        self.terminated = True
        self.line.close()

    def act(self, line: Connection) -> None:
        while True:
            try:
                job: Job = line.recv()
            except (EOFError, OSError):
                return
            name = job.folder.name
            deed = self.stage.begin(name, self.number)
            if deed != DIES_AT_ONCE:
                job.note.write_text("")
                job.folder.path.mkdir(parents=True, exist_ok=True)
            if deed in (DONE, DIES_AFTER, WORN):
                job.folder.end({"status": "done", "reason": None, "last": {}}, None)
                job.note.write_text("{}")
            elif deed == FAILS:
                job.write_note("failed", "bad luck")
            elif deed == LACKS:
                job.write_note("failed", "OutOfMemoryError: CUDA out of memory")
            elif deed == STOPPED:
                job.folder.leave("preempted", "stopped by SIGTERM")
            time.sleep(0.01)
            self.stage.end(name)
            if deed in (DONE, DIES_AFTER, FAILS, LACKS, WORN):
                with suppress(OSError):  # it has been terminated
                    line.send({LACKS: workers.LACKED, WORN: workers.LAST}.get(deed, workers.OVER))
            if deed not in (DONE, FAILS):
                line.close()
                return


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    found = Stage()
    monkeypatch.setattr(Acting, "stage", found, raising=False)
    monkeypatch.setattr(workers, "Worker", Acting)
    return found


def jobs_of(tmp_path: Path, names: str, **more: Any) -> list[Job]:
    return [
        Job(
            {"run": {"threads": 1, "force": False}},
            RunFolder(tmp_path / "runs", f"t/a/{name}"),
            tmp_path / f"{name}.json",
            **more,
        )
        for name in names
    ]


def ends_of(jobs: Sequence[Job], count: int) -> dict[str, RunState]:
    """What is told of each: once."""
    told: list[tuple[str, RunState]] = []
    make_with_workers(jobs, count, lambda job: told.append((job.folder.name[-1], job.state())))
    assert len(dict(told)) == len(told) == len(jobs)
    return dict(told)


GOOD = RunState("done")
LOST = RunState("lost", "its process ended without a word")


@pytest.mark.parametrize("count", [1, 2, 3])
def test_each_process_makes_one_run_after_the_other(
    count: int, stage: Stage, tmp_path: Path
) -> None:
    """All of them are made once, as many at a time as may be; what fails stops no other."""
    stage.deeds["t/a/c"] = deque([FAILS])
    ends = ends_of(jobs_of(tmp_path, "abcdefgh"), count)
    assert ends == dict.fromkeys("abdefgh", GOOD) | {"c": RunState("failed", "bad luck")}
    assert len(stage.made) == count
    assert max(others for _, others in stage.beside) == count - 1
    assert {name for name, _ in stage.beside[:count]} == {f"t/a/{name}" for name in "abc"[:count]}
    assert set(map(len, stage.where.values())) == {1}
    assert not any(worker.thread.is_alive() for worker in stage.made)
    assert not any(worker.terminated for worker in stage.made)


@pytest.mark.parametrize("dies", [DIES, DIES_AT_ONCE])
def test_a_process_that_is_killed_costs_its_own_run_another_try(
    dies: str, stage: Stage, tmp_path: Path
) -> None:
    """The run is tried again when all others have ended, because the process may have been
    killed for want of memory."""
    stage.deeds["t/a/b"] = deque([dies])
    stage.deeds["t/a/c"] = deque([dies])
    assert ends_of(jobs_of(tmp_path, "abcdefgh"), 3) == dict.fromkeys("abcdefgh", GOOD)
    assert sorted(stage.beside[-2:]) == [("t/a/b", 0), ("t/a/c", 0)]
    tries = Counter(name[-1] for name, _ in stage.beside)
    assert tries == Counter("abcdefghbc")
    assert len({*stage.where["t/a/b"]}) == 2  # that process is gone


@pytest.mark.parametrize("times", [1, 9])
def test_a_run_that_finds_no_memory_on_the_gpu_has_it_to_itself_in_the_end(
    times: int, stage: Stage, tmp_path: Path
) -> None:
    """Once: what does not fit then never will."""
    stage.deeds["t/a/b"] = deque([LACKS] * times)
    ends = ends_of(jobs_of(tmp_path, "abcdefgh"), 3)
    lacking = RunState("failed", "OutOfMemoryError: CUDA out of memory")
    assert ends == dict.fromkeys("acdefgh", GOOD) | {"b": GOOD if times == 1 else lacking}
    assert stage.beside[-1] == ("t/a/b", 0)
    assert len({*stage.where["t/a/b"]}) == 2  # that process is gone, with the memory that it held


def test_a_process_that_can_capture_nothing_more_makes_room_for_another(
    stage: Stage, tmp_path: Path
) -> None:
    """Its run is over: it has only taken longer."""
    stage.deeds["t/a/b"] = deque([WORN])
    assert ends_of(jobs_of(tmp_path, "abcd"), 1) == dict.fromkeys("abcd", GOOD)
    assert len(stage.made) == 2
    assert len(stage.beside) == 4
    assert stage.where["t/a/a"] == stage.where["t/a/b"] != stage.where["t/a/c"]


def test_what_a_worker_says_of_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (job,) = jobs_of(tmp_path, "a")
    job.write_note("failed", "OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB")
    assert workers.last_word(job) == workers.LACKED
    job.write_note("failed", "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling x")
    assert workers.last_word(job) == workers.LACKED
    job.write_note("failed", "ValueError: no OutOfMemoryError")
    monkeypatch.setattr(Captured, "failed", False)
    assert workers.last_word(job) == workers.OVER
    job.note.unlink()
    assert workers.last_word(job) == workers.OVER
    monkeypatch.setattr(Captured, "failed", True)
    assert workers.last_word(job) == workers.LAST


@pytest.mark.parametrize("dies", [DIES, DIES_AT_ONCE])
def test_a_run_whose_process_is_killed_every_time_is_given_up(
    dies: str, stage: Stage, tmp_path: Path
) -> None:
    stage.deeds["t/a/b"] = deque([dies] * 9)
    ends = ends_of(jobs_of(tmp_path, "abcd"), 2)
    expected = LOST if dies == DIES else RunState("interrupted", "not begun")
    assert ends == {"a": GOOD, "b": expected, "c": GOOD, "d": GOOD}
    assert len(stage.where["t/a/b"]) == TRIES == 3


def test_a_run_that_was_stopped_in_good_order_is_not_tried_again(
    stage: Stage, tmp_path: Path
) -> None:
    """Somebody has sent its process a signal, and knows why; the other process goes on."""
    stage.deeds["t/a/a"] = deque([STOPPED])
    ends = ends_of(jobs_of(tmp_path, "abc"), 2)
    assert ends == {"a": RunState("preempted", "stopped by SIGTERM"), "b": GOOD, "c": GOOD}
    assert len(stage.where["t/a/a"]) == 1


def test_a_process_that_dies_after_its_run_takes_no_other_with_it(
    stage: Stage, tmp_path: Path
) -> None:
    stage.deeds["t/a/a"] = deque([DIES_AFTER])
    stage.deeds["t/a/b"] = deque([DIES_AFTER])
    assert ends_of(jobs_of(tmp_path, "abc"), 1) == dict.fromkeys("abc", GOOD)
    assert stage.where["t/a/a"] == [0]
    assert len(stage.where["t/a/b"]) == len(stage.where["t/a/c"]) == 1


def test_a_run_with_a_process_of_its_own_is_the_first_in_it(stage: Stage, tmp_path: Path) -> None:
    own = jobs_of(tmp_path, "cd", own_process=True)
    jobs = [*jobs_of(tmp_path, "ab"), *own, *jobs_of(tmp_path, "e")]
    assert ends_of(jobs, 2) == dict.fromkeys("abcde", GOOD)
    first = {}
    for name, (who,) in stage.where.items():
        first.setdefault(who, name)
    assert {"t/a/c", "t/a/d"} < set(first.values())
    assert max(others for _, others in stage.beside) <= 1
    assert not any(worker.thread.is_alive() for worker in stage.made)  # nor one that was dismissed


def test_whatever_ends_it_ends_the_processes(stage: Stage, tmp_path: Path) -> None:
    def interrupt(job: Job) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_with_workers(jobs_of(tmp_path, "abcdef"), 3, interrupt)
    assert len(stage.made) == 3
    assert all(worker.terminated for worker in stage.made)
    for worker in stage.made:
        worker.thread.join()


@pytest.mark.parametrize("seconds", [0, 3, 19, 10**9])
def test_runs_that_are_told_to_stop_have_twenty_seconds(
    seconds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them together, from when they were told; then they are killed, and waited for."""
    now = [100.0]
    said: list[str] = []

    class Process:
        def __init__(self, name: str, ends: float):
            self.name, self.ends = name, ends

        def is_alive(self) -> bool:
            return now[0] < self.ends

        def terminate(self) -> None:
            said.append(f"{self.name} is told")

        def join(self, wait: float | None = None) -> None:
            now[0] = self.ends if wait is None else min(max(now[0], self.ends), now[0] + wait)

        def kill(self) -> None:
            said.append(f"{self.name} is killed at {now[0] - 100:g}")
            self.ends = now[0]

    monkeypatch.setattr(workers.time, "monotonic", lambda: now[0])
    two = [Process("a", 100 + seconds), Process("b", 100 + seconds), Process("gone", 0)]
    workers.stop_workers([SimpleNamespace(process=process) for process in two])  # type: ignore[misc]
    told = ["a is told", "b is told"] if seconds else []
    killed = ["a is killed at 20", "b is killed at 20"] if seconds > 20 else []
    assert said == told + killed
    assert not any(process.is_alive() for process in two)


@pytest.mark.parametrize(
    ("workers_", "cores", "threads", "runs", "expected"),
    [
        (None, 8, [2, 2, 2, 2, 2, 2], 6, 4),  # as many as there are cores for
        (None, 8, [2, 4], 2, 2),
        (None, 8, [2, 8, 2], 3, 1),
        (None, 2, [4, 4], 2, 1),
        (3, 2, [4] * 5, 5, 3),  # or as many as are asked for
        (3, 2, [1] * 2, 2, 2),  # and none without a run
    ],
)
def test_how_many_processes_there_are(
    workers_: int | None,
    cores: int,
    threads: list[int],
    runs: int,
    expected: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr("joblib.cpu_count", lambda: cores)
    monkeypatch.setattr(
        "bench.sweeps.launchers.make_with_workers", lambda *given: seen.append(given)
    )
    jobs = jobs_of(tmp_path, "abcdefgh"[:runs])
    for job, number in zip(jobs, threads, strict=True):
        job.config["run"]["threads"] = number
    launcher = local(workers_)
    launcher.launch(jobs, tmp_path, print)
    assert seen == [(jobs, expected, print)]
    assert launcher.workers == (workers_ or 1)


@pytest.fixture(scope="module")
def composed() -> Config:
    settings = ("task=toy_minimax", "run.steps=3", "run.every=1", "run.threads=1")
    with initialize_config_module("conf", version_base="1.3"):
        return launch.resolve(compose("config", list(settings)))


Real = Callable[..., Job]


@pytest.fixture
def real(composed: Config, tmp_path: Path) -> Real:
    """A job that a process can make: of this seed, with these settings of its part run."""
    (tmp_path / "notes").mkdir()

    def made(seed: int, own_process: bool = False, **run: Any) -> Job:
        config = {**copy.deepcopy(composed), "seed": seed}
        config["run"] |= {"root": str(tmp_path / "runs"), **run}
        log, note = tmp_path / "log", tmp_path / "notes" / f"{seed}.json"
        return Job(config, launch.place(config), note, log=log, own_process=own_process)

    return made


def until(holds: Callable[[], Any]) -> None:
    """Wait for it."""
    end = time.monotonic() + LONG
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def writer(folder: RunFolder) -> int | None:
    """The number of the process that writes the run now."""
    words = (lock.holder(folder.path) or "").split()
    return int(words[1]) if words[:1] == ["process"] else None


def there(number: int) -> bool:
    """Whether a process is there, and not only its number until someone asks how it ended."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def earlier(job: Job) -> int:
    """How many runs there were before it in its process."""
    summary = job.folder.summary()
    assert summary is not None
    return int(summary["process"]["earlier_runs"])


def children() -> list[Any]:
    """The processes that workers are; those of joblib, which other tests leave, are not."""
    spawned = multiprocessing.context.SpawnProcess
    return [each for each in multiprocessing.active_children() if isinstance(each, spawned)]


@pytest.fixture
def nobody_stays() -> Iterator[None]:
    """No process that was started is there after the test."""
    yield
    assert children() == []


@pytest.mark.usefixtures("nobody_stays")
def test_processes_make_runs(real: Real, tmp_path: Path, capfd: Any) -> None:
    """Two of them five runs, and a third one the run that is to have its own; one that raises and
    one that is refused stop no other. What they print is in the log."""
    runs = [real(seed) for seed in range(5)]
    raises, refused, own = real(5), real(6, until="nope", target=1.0), real(7, own_process=True)
    raises.config["algorithm"]["lower"]["lr"] = "no number"
    told: list[Job] = []
    make_with_workers([*runs, raises, refused, own], 2, told.append)
    assert sorted(job.config["seed"] for job in told) == list(range(8))
    assert [job.state() for job in (*runs, own)] == [GOOD] * 6
    assert earlier(own) == 0
    counts = Counter(map(earlier, runs))
    assert counts[0] == 2  # each process has a first run, and
    assert all(counts[k] <= counts[k - 1] for k in range(1, 5))  # each later one comes after it
    assert raises.state().status == "failed"
    assert refused.state().status == "refused"
    log = (tmp_path / "log").read_text()
    assert "Traceback" in log
    assert "bench: run.until=nope" in log
    assert tuple(capfd.readouterr()) == ("", "")


@pytest.mark.usefixtures("nobody_stays")
def test_a_process_that_is_killed_loses_its_own_run_only(real: Real) -> None:
    """One process is killed once, and its run ends when it is made again, alone. Another one is
    killed each time, and its run is given up."""
    quick = [real(seed) for seed in range(3)]
    once, always = real(3, cpu_seconds=3.0, steps=10**9), real(4, steps=10**9)
    others: dict[int, list[int]] = {3: [], 4: []}  # going on beside it, at each of its kills

    def kill(job: Job, times: int) -> None:
        killed: set[int | None] = {None}
        for _ in range(times):
            until(lambda: writer(job.folder) not in killed and job.folder.history())
            number = writer(job.folder)
            assert number is not None
            going = [writer(each.folder) for each in (*quick, once, always)]
            others[job.config["seed"]].append(len({*going} - {None, number}))
            killed.add(number)
            os.kill(number, signal.SIGKILL)

    threads = [
        threading.Thread(target=kill, args=victim, daemon=True)
        for victim in ((once, 1), (always, TRIES))
    ]
    for thread in threads:
        thread.start()
    ends: dict[int, RunState] = {}
    make_with_workers(
        [always, once, *quick], 2, lambda job: ends.update({job.config["seed"]: job.state()})
    )
    for thread in threads:
        thread.join()
    assert ends == dict.fromkeys((0, 1, 2, 3), GOOD) | {4: LOST}
    assert others[4][1:] == [0, 0]  # whatever was killed is made again alone
    rows = once.folder.history()
    assert [row["step"] for row in rows] == list(range(len(rows)))


@pytest.mark.usefixtures("nobody_stays")
def test_runs_save_when_the_process_of_all_is_told_to_stop(real: Real, capfd: Any) -> None:
    """SIGTERM to `reproduce run` does this, and so does Ctrl-C, which a terminal sends to the
    workers too, though it is not meant for them. One of the workers is making a run, the other
    one is idle."""
    long, quick = real(0, steps=10**9), real(1)
    numbers: list[int] = []
    told: list[Job] = []

    def stop() -> None:
        until(lambda: long.folder.history() and told)
        numbers.extend(process.pid or 0 for process in children())
        for number in numbers:
            os.kill(number, signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=stop, daemon=True)
    thread.start()
    with pytest.raises(KeyboardInterrupt), interrupt_on_terminate():
        make_with_workers([long, quick], 2, told.append)
    thread.join()
    assert told == [quick]
    assert long.state() == RunState("preempted", "stopped by SIGTERM")
    assert long.folder.has_checkpoint()
    assert len(numbers) == 2
    assert not any(map(there, numbers))
    assert tuple(capfd.readouterr()) == ("", "")  # it is no failure


def test_a_worker_that_has_lost_its_gpu_makes_room_for_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After such an error every call of CUDA fails in that process; its run is over, and told."""

    def lost() -> None:
        raise RuntimeError("CUDA error: an illegal memory access")

    assert not machine.has_lost_device()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert not machine.has_lost_device()
    monkeypatch.setattr(torch.cuda, "synchronize", lost)
    assert machine.has_lost_device()

    codes: list[int] = []
    line, theirs = multiprocessing.Pipe()
    line.send("a job")
    line.close()  # a word that it is idle would find nobody
    monkeypatch.setattr(workers, "make_job", lambda job: None)
    monkeypatch.setattr(workers, "die_with", lambda parent: None)
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    monkeypatch.setattr(signal, "pthread_sigmask", lambda how, numbers: set())

    def leave(code: int) -> None:
        codes.append(code)
        raise SystemExit(code)

    monkeypatch.setattr(os, "_exit", leave)
    with pytest.raises(SystemExit):
        workers.work(theirs, 0)
    assert codes == [1]


def bench_of(tmp_path: Path, specs: Path | None = None) -> dict[str, str]:
    more = {"BENCH_SPECS": str(specs)} if specs else {}
    return os.environ | {"BENCH_RUNS": str(tmp_path / "runs"), **more}


def test_no_process_stays_behind_one_that_is_killed(tmp_path: Path) -> None:
    """The same command, given once more, must not find a run that is still being written.

    The command asks for no lanes: as lanes the two runs would share a process wherever that is
    measured to be faster.
    """
    words = ("-m", "task=toy_minimax", "seed=0,1", "run.steps=1000000000", "run.threads=1",
             "vectorize=[]")  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "bench", *words, "hydra.launcher.workers=2"],
        cwd=ROOT, env=bench_of(tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    root = tmp_path / "runs"
    until(lambda: len([f for f in folders_below(root) if f.history()]) == 2)
    folders = list(folders_below(root))
    numbers = {writer(folder) or 0 for folder in folders}
    assert len(numbers - {0, process.pid}) == 2
    process.kill()
    process.wait()
    try:
        until(lambda: not any(map(there, numbers)))
        until(lambda: not any(map(writer, folders)))  # threads of a process may end after it
    finally:
        for number in filter(there, numbers):
            os.kill(number, signal.SIGKILL)
    # its locks go with the last of a process's threads
    until(lambda: [folder.state() for folder in folders] == [LOST, LOST])


SPEC: dict[str, Any] = {
    "title": "Four methods on the toy coreset", "source": "a test", "task": "toy_coreset",
    "set": {"run.steps": 400, "run.every": 20},
    "variants": {"paper": {}},
    "budgets": {"smoke": {"minutes": 0.1}},
    "columns": ["distance"],
    "figure": {"metrics": ["distance"]},
    "rows": {f"{method} {s}": {"method": method, "set": {"task.start": s}}
             for method in ("bome", "bsg1") for s in (1, 2, 3)},
    "claims": {},
}  # fmt: skip


def test_commands_that_make_the_same_runs_at_once_make_each_once(tmp_path: Path) -> None:
    """Two `reproduce run` of an artifact, and a `bench -m` of its runs: who comes second to a run
    waits for it or puts it off. A run that was made a second time would go on from the end of the
    first, which its environment says, or write its rows twice."""
    specs, root = tmp_path / "specs", tmp_path / "runs"
    (specs / "mine").mkdir(parents=True)
    (specs / "mine" / "toy.yaml").write_text(yaml.safe_dump(SPEC, sort_keys=False))
    reproduce = ["-m", "bench.reproduce", "run", "mine/toy", "--budget", "smoke", "--jobs", "1"]
    sweep = [
        "-m", "bench", "-m", "task=toy_coreset", "algorithm=bome,bsg1", "task.start=1,2,3",
        "run.steps=400", "run.every=20", "hydra/launcher=here",
    ]  # fmt: skip
    processes = [
        subprocess.Popen(
            [sys.executable, *words], cwd=ROOT, env=bench_of(tmp_path, specs), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        for words in (reproduce, reproduce, sweep)
    ]  # fmt: skip
    first: dict[Path, tuple[int, int]] = {}  # file and time of each summary as it appeared

    def ended() -> bool:
        for folder in folders_below(root):
            if (file := folder.path / "summary.json").is_file():
                about = file.stat()
                first.setdefault(file, (about.st_ino, about.st_mtime_ns))
        return all(process.poll() is not None for process in processes)

    until(ended)
    said = [process.communicate()[0] for process in processes]
    codes = [process.returncode for process in processes]
    assert codes[:2] == [0, 0], said
    assert codes[2] in (0, 75), said  # it puts off what another is at
    folders = list(folders_below(root))
    assert len(folders) == 6  # the sweep's runs are the artifact's
    for folder in folders:
        assert folder.state() == GOOD
        about = (folder.path / "summary.json").stat()
        assert first[folder.path / "summary.json"] == (about.st_ino, about.st_mtime_ns)
        assert "continued" not in folder.environment()
        assert [row["step"] for row in folder.history()] == list(range(0, 401, 20))
        assert folder.owner() is None
    assert not list((root / ".reproduce").glob("jobs-*/notes"))
