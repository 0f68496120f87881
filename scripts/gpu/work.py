"""Works through a list of checks and paper-scale runs, for a machine that is lent for minutes.

    uv run python -m scripts.gpu.work --minutes 9 [--data FOLDER] [--root runs] [--list FILE]
    uv run python -m scripts.gpu.work --show

This goes through the checks below, and then through the artifacts of --list, which scripts.gpu.pack
writes in the order of claims per minute, and stops before its time is over. What is on disk tells
what is done, so the same command goes on where it stopped: checks are in results/gpu/*.json, entry
by entry; artifacts are in their run folders, which go on from their checkpoints. The exit code is 0
if all is done; 75 if there is more to do, by the same command; 1 if a check has failed; 2 if an
option is refused. scripts.gpu.run calls this on a lent machine, and carries back what it made.

Nothing is downloaded. --data names a data root; --incoming a folder from which what is missing
there is imported first, as scripts/import_data.py does. An item whose data are not there says so
and is passed over.

--device cpu tries the whole on the CPU; --smoke makes every item tiny; --dry prints what would be
done; --only names items.

The device agrees with the CPU if after STEPS steps |device - CPU| <= tolerance |CPU| over x and y
together. Sums over n terms in another order differ by some sqrt(n) roundings of 1e-16 (1e-7 in
float32), and a step amplifies its input's error by some tens: tolerances of 1e-8 and 1e-4 leave two
orders of magnitude for both. With TF32, which has 10 bits, float32 would be at 1e-3. All begin
where the CPU is after AHEAD steps in float64, because some methods amplify more in the first one:
F2OBO, whose hypergradient is a difference that begins at 0, and CTN, whose first batch is one image
several times, so that normalised features of it are 0 but for rounding, where a ReLU has its kink.
"""

import argparse
import json
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
import yaml
from hydra import compose, initialize_config_module
from torch import Tensor
from torch.utils._pytree import tree_map_only

from bench.compiled.batched import Lane
from bench.compiled.calls import Captured
from bench.compiled.joined import Joined, can_join
from bench.compiled.replayed import Replayed
from bench.compiled.replayed_lanes import LaneReplays
from bench.core.algorithm import Algorithm
from bench.core.loop import Standing, advance, first
from bench.core.settings import BadSetting, build
from bench.core.task import Context, Task
from bench.reproduce.book import load_book
from bench.reproduce.making import Choice
from bench.runs import stop
from bench.runs.environment import environment_of
from bench.runs.files import read_json, write_json
from bench.runs.folder import folders_below
from bench.runs.launch import resolve
from bench.runs.machine import choose_device, settle
from scripts import import_data
from scripts.gpu.listed import plan_with_record
from scripts.gpu.sharing import apart, shared

CONF = Path(__file__).parent.parent.parent / "conf"
DONE, FAILED, REFUSED, MORE = 0, 1, 2, 75
AGAIN, FAULT = 76, 77  # in another process; FAULT: as this one has lost the device
AHEAD, STEPS = 3, 2
TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-4}
PATIENCE = 45.0  # seconds for an item to stop when it is told to, and for packing
LEAST = 30.0  # seconds left: with fewer no item is begun
ENDED = "its process ended"
FAULTS = 5  # so often does a call begin its checks again after a fault has ended their process
FEW = 3  # a check has so many entries at smoke size
# the algorithm that a task is tried with, where that is not bome
ALGORITHM = {
    "completion": "ncgs", "multitask": "ncgs", "trees": "ncgs", "few_shot": "aid_bio",
    "online_imbalance": "f2obo", "online_newsgroups": "f2obo", "online_oscillation": "f2obo",
    "online_quadratic": "f2obo", "permuted_mnist": "er", "split_cifar": "er",
}  # fmt: skip
# the task that the algorithms of a package are tried with, where that is not quadratic
TASK = {
    "meta": "few_shot", "online": "online_quadratic", "continual": "permuted_mnist",
    "games": "toy_minimax", "projection_free": "completion",
}  # fmt: skip
SMALL = {  # settings with which the CPU takes a task's steps in seconds, and needs no downloads
    "completion": ["task.rows=40", "task.columns=40"],
    "few_shot": ["task.episodes=4"],
    "hyper_cleaning": ["task.references=false"],
    "multitask": ["task.groups=10", "task.samples=200", "task.features=40"],
    "newsgroups": ["task.source=digits", "task.references=false"],
    "online_newsgroups": ["task.source=digits"],
}
# the same for an algorithm
CAPPED = {"ncgs": ["algorithm.cap=3"], "ncgs_vr": ["algorithm.cap=3"]}
# entries of their own: methods whose second derivatives of batch normalisation no other one asks
SECOND = {
    f"{name} on split_cifar": ["task=split_cifar", f"algorithm={name}", "task.filters=4"]
    for name in ("ctn_itd", "ctn_penalty")
}
WORKERS = max(8, os.cpu_count() or 1)  # runs at a time: each is short of launches, not of the GPU
SEEDS, LRS = 5, (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)  # of BOME's outer step: 55 lanes


class Settings(NamedTuple):
    """What the command line says: the device, the folders, the size, and when to stop."""

    device: torch.device
    root: Path
    data: Path
    results: Path
    smoke: bool
    workers: int
    ends: float  # the reading of time.monotonic at which to be done
    call: str = ""  # the call's name, by which its processes know what was tried in it

    @property
    def left(self) -> float:
        """Seconds until then."""
        return self.ends - time.monotonic()


class Item(NamedTuple):
    """A part of the list, which may take several calls.

    work(settings) goes on with it and returns whether it is complete. done(settings) tells from
    the disk whether it was complete before.
    """

    name: str
    about: str
    done: Callable[[Settings], bool]
    work: Callable[[Settings], bool]


class Failed(Exception):
    """One line: a check that does not hold, or an item that cannot be done."""


class Lost(Failed):
    """The device answers this process no more: what a kernel of it did wrong stands until its end.

    Items that are processes of their own go on.
    """


class Worn(Failed):
    """No more answers can be captured in this process, so that no further one would be checked."""


# Checks


def stems(group: str) -> list[str]:
    """The names of a group of configurations."""
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def pairs(check: str) -> dict[str, list[str]]:
    """The entries of a check, "tasks" or "algorithms", each with the settings of its run."""

    def settings(task: str, algorithm: str) -> list[str]:
        more = SMALL.get(task, []) + CAPPED.get(algorithm, [])
        return [f"task={task}", f"algorithm={algorithm}", *more]

    if check == "tasks":
        return {task: settings(task, ALGORITHM.get(task, "bome")) for task in stems("task")}
    found = {}
    for name in stems("algorithm"):
        target = yaml.safe_load((CONF / "algorithm" / f"{name}.yaml").read_text())["_target_"]
        task = "hyper_cleaning" if name == "upper_only" else TASK.get(target.split(".")[1])
        found[name] = settings(task or "quadratic", name)
    return found | SECOND


def start_point(config: dict[str, Any], data: Path) -> Standing:
    """Where the CPU is after the first AHEAD steps, in float64."""
    task = build(config["task"], Context(dtype=torch.float64, data_root=data))
    algorithm = build(config["algorithm"])
    with torch.no_grad():
        s = first(task, algorithm, 0)
        for _ in range(AHEAD):
            s = advance(task, algorithm, 0, s)
    return s


def take_steps(
    config: dict[str, Any], s: Standing, device: torch.device, dtype: torch.dtype, data: Path
) -> tuple[Standing, dict[str, Any] | None]:
    """Where STEPS steps from there end, and, on a GPU, what `replays` says of replayed ones."""

    def bring(t: Tensor) -> Tensor:
        return t.to(device, dtype if t.is_floating_point() else t.dtype)

    task = build(config["task"], Context(device=device, dtype=dtype, data_root=data))
    algorithm = build(config["algorithm"])
    start = s._replace(state=tree_map_only(Tensor, bring, s.state))
    with torch.no_grad():
        end = plain_steps(task, algorithm, start)
        return end, replays(task, algorithm, start, end) if device.type == "cuda" else None


def plain_steps(task: Task, algorithm: Algorithm, s: Standing) -> Standing:
    """Where STEPS steps from there end."""
    for _ in range(STEPS):
        s = advance(task, algorithm, 0, s)
    return s


def replays(task: Task, algorithm: Algorithm, start: Standing, end: Standing) -> dict[str, Any]:
    """Whether replayed steps from `start` come to `end`, to the last bit and with its counts, and
    how many forms were captured and refused for it, and why.

    "same" is None where plain steps do not come to the same bits twice either, as cuSPARSE's need
    not.
    """
    take = Replayed(task, algorithm, 0, often=0)
    take(start, STEPS)  # in which each form is captured
    same: bool | None = are_same(take(start, STEPS).standing, end)
    if not same and not are_same(plain_steps(task, algorithm, start), end):
        same = None
    made = take.replays
    captured = len(made.captured) + made.held.total()
    why = dict(made.reasons)
    found = {"same": same, "captured": captured, "refused": len(made.refused), "why": why}
    return found | ({"lanes": lanes_replay(task, algorithm, start)} if can_join(task) else {})


def lanes_replay(task: Task, algorithm: Algorithm, start: Standing) -> bool | None:
    """Whether replayed steps of two lanes from `start` are those of lanes by the code, to the last
    bit; None where these do not come to the same bits twice either."""
    lanes, begin = [Lane(task, algorithm, seed, {}) for seed in (0, 1)], [start, start]
    by_code = Joined(lanes)
    right = by_code(begin, STEPS)
    side = Joined(lanes, answer=LaneReplays(task, 0))
    side(begin, STEPS)  # in which each form is captured
    if all(map(are_same, side(begin, STEPS), right)):
        return True
    return False if all(map(are_same, by_code(begin, STEPS), right)) else None


def are_same(a: Standing, b: Standing) -> bool:
    """Whether two standings have the same counts and, to the last bit, the same x and y."""
    pairs = [(getattr(s.state, name) for s in (a, b)) for name in ("x", "y")]
    counted = (a.calls, a.samples) == (b.calls, b.samples)
    return counted and all(torch.equal(*pair) for pair in pairs)


def point_of(s: Standing) -> Tensor:
    """x and y in one vector on the CPU in float64."""
    return torch.cat([t.detach().cpu().double().flatten() for t in (s.state.x, s.state.y)])


def hold_against_cpu(overrides: list[str], s: Settings) -> dict[str, Any]:
    """The entry of these settings: relative differences by dtype, what `replays` says, and whether
    all agree.

    If they could not be run, the entry says why. "worn": a capture has failed, after which this
    process can make no other.
    """
    found: dict[str, Any] = {"settings": overrides, "gpu": gpu_name(s.device), "ahead": AHEAD}
    agrees, replayed = True, {}
    try:
        with initialize_config_module("conf", version_base="1.3"):
            config = resolve(compose("config", overrides))
        start = start_point(config, s.data)
        for dtype, tolerance in TOLERANCE.items():
            here, _ = take_steps(config, start, torch.device("cpu"), dtype, s.data)
            there, said = take_steps(config, start, s.device, dtype, s.data)
            right = point_of(here)
            error = float((point_of(there) - right).norm() / right.norm().clamp(min=1e-300))
            found[str(dtype)[6:]], replayed[str(dtype)[6:]] = error, said
            wrong = [key for key in ("same", "lanes") if (said or {}).get(key) is False]
            agrees &= error <= tolerance and not wrong
    except (BadSetting, ImportError) as error:  # an extra that is not installed
        return found | {"skipped": str(error)}
    except Exception as error:
        lost = {"lost": True} if isinstance(error, torch.AcceleratorError) else {}
        raised = f"{type(error).__name__}: {error}"[:300]
        return found | {"agrees": False, "raised": raised} | lost | worn()
    return found | {"replayed": replayed, "agrees": agrees} | worn()


def worn() -> dict[str, bool]:
    """The mark of an entry in whose process a capture has failed."""
    return {"worn": True} if Captured.failed else {}


def gpu_name(device: torch.device) -> str | None:
    """The GPU's name; entries of one check may be of several."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else None


def check_file(name: str, s: Settings) -> Path:
    """Where a check is written."""
    return s.results / "gpu" / f"{name}{'.smoke' if s.smoke else ''}.json"


def entries(name: str, s: Settings) -> dict[str, Any]:
    """What was written of a check so far."""
    file = check_file(name, s)
    found: dict[str, Any] = read_json(file)["entries"] if file.is_file() else {}
    return found


def wanted(name: str, s: Settings) -> dict[str, list[str]]:
    """The entries that a check must have, each with its settings; at smoke size a few."""
    every = pairs(name)
    return dict(list(every.items())[:FEW]) if s.smoke else every


def save(name: str, s: Settings, **content: Any) -> None:
    """Writes a check, with the machine it was made on."""
    file = check_file(name, s)
    file.parent.mkdir(parents=True, exist_ok=True)
    about = environment_of(s.device, torch.get_num_threads(), {})
    write_json(file, {"environment": about, **content})


def is_to_make(old: Mapping[str, Any], settings: list[str], gpu: str | None = None) -> bool:
    """Whether an entry is not there yet, is of other settings or, if this machine has a GPU, of
    another device than that, or is from before answers were replayed."""
    elsewhere = gpu is not None and old.get("gpu") != gpu
    told = {"replayed", "skipped", "raised"} & set(old)
    return elsewhere or old.get("settings") != settings or not told


def is_made(file: Path, device: torch.device) -> bool:
    """Whether a record is there and, if this machine has a GPU, of this kind of GPU."""
    if not file.is_file():
        return False
    record = read_json(file)
    gpus = [record.get("environment", {}).get("gpu"), *record.get("hardware", [])]
    return device.type == "cpu" or gpu_name(device) in gpus


def check(name: str) -> Item:
    """Every task, or every algorithm: a few steps on the device and on the CPU.

    Each entry is written when it is known. One whose settings have changed is made again, and in
    the end those that did not agree are, as the code may have been mended since; once in a call.
    """

    def missing(s: Settings, tried: str = "") -> dict[str, list[str]]:
        """Those to be made, but for those that the call `tried` has made."""
        old, every, gpu = entries(name, s), wanted(name, s), gpu_name(s.device)
        new = {key for key, own in every.items() if is_to_make(old.get(key, {}), own, gpu)}
        wrong = {key for key in every if old.get(key, {}).get("agrees") is False}
        wrong -= {key for key in wrong if tried and old[key].get("call") == tried}
        return {key: every[key] for group in (new, wrong - new) for key in every if key in group}

    def work(s: Settings) -> bool:
        settle(s.device, 2)
        found = entries(name, s)
        tolerance = {str(dtype)[6:]: value for dtype, value in TOLERANCE.items()}

        def write(made: dict[str, Any]) -> None:
            save(name, s, steps=STEPS, tolerance=tolerance, entries=made)

        gpu, of_call = gpu_name(s.device), {"call": s.call} if s.call else {}
        for key, settings in missing(s, s.call).items():
            stop.raise_if_asked()
            if s.left < LEAST:
                return False
            # it stays if a fault ends this process: the next one goes on with the others
            cut = {"settings": settings, "gpu": gpu, "agrees": False, "raised": ENDED} | of_call
            write({**found, key: cut})
            try:
                entry = hold_against_cpu(settings, s)
            except BaseException:  # this call is told to stop, and the entry is as it was
                write(found)
                raise
            found[key] = entry | (of_call if entry.get("agrees") is False else {})
            print(f"  {key}: {found[key]}", flush=True)
            write(found)
            if found[key].get("worn"):
                raise Worn(f"{key}: a capture has failed")
            if found[key].get("lost"):
                raise Lost(f"{key} has lost the device, see {check_file(name, s)}")
        wrong = [key for key, entry in found.items() if entry.get("agrees") is False]
        if wrong:
            raise Failed(f"differ from the CPU, see {check_file(name, s)}: {', '.join(wrong)}")
        return True

    about = f"every {name[:-1]}: {STEPS} steps on the device and on the CPU"
    return Item(name, about, lambda s: not missing(s), work)


# Items that are other commands


def run_within(command: list[str], s: Settings, fine: tuple[int, ...] = (0,)) -> bool:
    """Runs the command and returns whether it came to its end.

    When the time is nearly over, the command is told to stop and waited for. Raises Failed for an
    exit code that is not fine.
    """
    print("$", " ".join(command[1:]), flush=True)
    process = subprocess.Popen(command)
    try:
        code = process.wait(max(1.0, s.left - PATIENCE))
    except (subprocess.TimeoutExpired, stop.Preempted) as error:
        process.terminate()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if isinstance(error, stop.Preempted):
            raise
        return False
    if code == MORE:
        return False
    if code not in fine:
        raise Failed(f"exit code {code} of: {' '.join(command[1:])}")
    return True


def python(*arguments: str) -> list[str]:
    """The command that runs this Python with these arguments."""
    return [sys.executable, *arguments]


def script(name: str, about: str, file: str, *command: str, smoke: tuple[str, ...]) -> Item:
    """A Python command that writes its record, `file` below the results, with --json.

    An option --device gets this machine's device; `smoke` are options for smoke size.
    """

    def target(s: Settings) -> Path:
        return s.results / file.replace(".json", ".smoke.json" if s.smoke else ".json")

    def work(s: Settings) -> bool:
        given = [*command, *(smoke if s.smoke else ())]
        if "--device" in given:
            given[given.index("--device") + 1] = s.device.type
        return run_within(python(*given, "--json", str(target(s))), s)

    return Item(name, about, lambda s: is_made(target(s), s.device), work)


def seconds_of(folders: Path) -> list[float]:
    """The seconds of all steps, of each run below the folder that has ended well."""
    ends = [summary for run in folders_below(folders) if (summary := run.summary())]
    return [float(e["last"]["seconds"]) for e in ends if e["status"] == "done"]


def lanes() -> Item:
    """55 runs of BOME on MNIST as lanes of one computation, by `vectorize`, against one run."""

    def work(s: Settings) -> bool:
        if "vectorize" not in (CONF / "config.yaml").read_text():
            raise Failed("this version of bench has no vectorize")
        data = "digits" if s.smoke else "mnist"
        lrs, seeds = (LRS[:2], 2) if s.smoke else (LRS, SEEDS)
        steps = 5 if s.smoke else 200
        fixed = [
            "-m", "task=hyper_cleaning", f"task/data={data}", "task.references=false",
            "task.pretraining.steps=0", "algorithm=bome", f"run.steps={steps}",
            f"run.every={steps}", f"run.device={s.device.type}", f"data.root={s.data}",
        ]  # fmt: skip
        one, all_ = (s.root / "lanes" / data / part for part in ("one", "all"))
        sweep = [
            f"seed=range({seeds})", f"algorithm.outer_lr={','.join(map(str, lrs))}",
            "vectorize=[seed,algorithm.outer_lr]",
        ]  # fmt: skip
        bench = python("-m", "bench", *fixed)
        for more in ([f"run.root={one}"], [*sweep, f"run.root={all_}"]):
            if not run_within([*bench, *more], s):
                return False
        single, amortised = seconds_of(one), seconds_of(all_)
        ratio = sum(amortised) / sum(single)
        save(
            "lanes", s, replayed=True, lanes=len(amortised), seconds_of_one=sum(single),
            seconds_of_all=sum(amortised), ratio=ratio,
        )  # fmt: skip
        print(f"{len(amortised)} lanes take {ratio:.2f} times the time of one")
        return True

    about = f"{SEEDS * len(LRS)} lanes of BOME on MNIST against one"

    def done(s: Settings) -> bool:  # a file from before answers were replayed says nothing of today
        file = check_file("lanes", s)
        return is_made(file, s.device) and "replayed" in read_json(file)

    return Item("lanes", about, done, work)


def has_runs_left(entry: Mapping[str, Any], s: Settings) -> bool:
    """Whether a run that an entry of the list asks for has not ended, well or not."""
    book, choice = load_book(), Choice(tuple(entry.get("rows", ())))
    plan = plan_with_record(book.artifacts[entry["id"]], book, entry["budget"], s.root, s.results)
    ended = [run for run in choice.runs(plan) if run.summary is not None]
    return len(ended) < choice.count(plan)


def artifact(entry: Mapping[str, Any]) -> Item:
    """The runs of an artifact, or of some of its rows, as an entry of the list says."""
    name, budget = entry["name"], entry["budget"]

    about_it = blake2b(json.dumps(entry, sort_keys=True).encode(), digest_size=4).hexdigest()

    def marker(s: Settings) -> Path:  # of this very entry: a later list may ask for more
        return s.root / ".gpu" / f"{name.replace('/', '.').replace(':', '.')}-{about_it}.done"

    def work(s: Settings) -> bool:
        rows = [word for row in entry.get("rows", []) for word in ("--rows", row)]
        run = python(
            "-m", "bench.reproduce", "run", entry["id"], "--budget", budget, *rows,
            "--jobs", str(s.workers), "--runs", str(s.root), "--unrecorded",
            "--results", str(s.results), f"run.device={s.device.type}",
            f"data.root={s.data}", *entry.get("settings", []),
        )  # fmt: skip
        # 1 is a run that has diverged, whose folder tells so, or one that raised and has not ended
        complete = run_within(run, s, fine=(0, 1)) and not has_runs_left(entry, s)
        if complete:
            marker(s).parent.mkdir(parents=True, exist_ok=True)
            marker(s).touch()
        return complete

    about = f"{entry['id']} at {budget}: {entry['claims']} claims, {entry['minutes']:g} minutes"
    about += "".join(f", {row}" for row in entry.get("rows", []))
    return Item(name, about, lambda s: marker(s).is_file(), work)


ITEMS = [
    check("tasks"),
    check("algorithms"),
    script(
        "roofline", "kernels against the device's floor", "gpu/roofline.json",
        "scripts/roofline.py", "--device", "", smoke=("--scale", ".01", "--repeats", "1"),
    ),
    lanes(),
    *(
        [script(
            "speed", "outer steps against peers", "speed/gpu_hyper_cleaning.json",
            "-m", "scripts.speed", "hyper_cleaning", "--device", "", smoke=("--smoke",),
        )]
        if find_spec("torchopt")  # a lent machine has no peers
        else []
    ),
    script(
        "speed_gradient", "one gradient and six lanes of it", "speed/gpu_gradient.json",
        "-m", "scripts.speed", "gradient", "--device", "", smoke=("--smoke",),
    ),
    script(
        "speed_replayed", "steps with replayed answers and plain ones", "speed/gpu_replayed.json",
        "-m", "scripts.speed", "replayed", "--device", "", smoke=("--smoke",),
    ),
    script(
        "speed_few_shot", "episodes together and in a loop", "speed/gpu_few_shot.json",
        "-m", "scripts.speed", "few_shot", "--device", "", smoke=("--smoke",),
    ),
]  # fmt: skip
CHECKS = ("tasks", "algorithms")  # the items that a slice begins with; the others come last


def items_of(entries: Sequence[Mapping[str, Any]]) -> list[Item]:
    """All items in their order, with those of a list of artifacts."""
    head = [item for item in ITEMS if item.name in CHECKS]
    return [*head, *map(artifact, entries), *(item for item in ITEMS if item not in head)]


def whole_name(name: str) -> str:
    """The name of the artifact, of an entry of some of its rows such as bome/table2:1."""
    return name.partition(":")[0]


def bring_data(incoming: Path, root: Path) -> None:
    """Import what the folder `incoming` holds and the data root lacks; says what is wrong."""
    for name, made in import_data.DATA_SETS.items():
        if any(import_data.is_there(incoming / file) for file in made.sources):
            try:
                print(f"{name}: {import_data.bring(name, incoming, root)}", flush=True)
            except (BadSetting, OSError) as reason:  # a part of it comes with another slice
                print(f"{name}: {reason}", flush=True)


# The command


def go_through(s: Settings, items: Sequence[Item]) -> int:
    """Works on the items until they are complete or the time is over; returns the exit code.

    AGAIN, FAULT: the same call in another process goes on.
    """
    code, lost = DONE, False
    for item in items:
        if item.done(s):
            print(f"{item.name}: done before")
        elif s.left < LEAST + PATIENCE or (lost and item.name in CHECKS):
            print(f"{item.name}: another time")
            code = code or MORE
        else:
            begin = time.monotonic()
            try:
                complete = item.work(s)
            except Worn as reason:
                print(f"{item.name}: {reason}; the others in another process", flush=True)
                return AGAIN
            except Failed as reason:
                print(f"{item.name}: {reason}", flush=True)
                if s.call and isinstance(reason, Lost):
                    return FAULT
                code, lost = FAILED, lost or isinstance(reason, Lost)
                continue
            spent = time.monotonic() - begin
            print(f"{item.name}: {'done' if complete else 'to go on'}, {spent:.0f} s", flush=True)
            code = code if complete else code or MORE
    return code


class Beside:
    """The checks in processes of their own, while this one has the artifacts made.

    A process in which a capture has failed gives way to another, and so does one that a fault has
    ended, at most FAULTS times.
    """

    def __init__(self, names: Sequence[str], s: Settings):
        self.names, self.s, self.code = names, s, MORE if names else DONE  # until they have ended
        self.call = secrets.token_hex(4)
        self.process: subprocess.Popen[bytes] | None = None
        self.guard, self.stopped = threading.Lock(), False
        self.thread = threading.Thread(target=self._work)
        self.thread.start()

    def _work(self) -> None:
        faults = 0
        while faults <= FAULTS:
            with self.guard:
                if self.stopped or not self.names:
                    return
                # a fault of theirs would end all processes that share the GPU by its service
                self.process = subprocess.Popen(self._command(), env=apart())
            self.code = self.process.wait()
            if self.code >= 0 and self.code not in (AGAIN, FAULT):
                return
            # a process that a signal has ended has a code below 0
            faults += self.code < 0 or self.code == FAULT

    def _command(self) -> list[str]:
        s = self.s
        return python(
            "-m", "scripts.gpu.work", "--here", "--only", *self.names, "--device", s.device.type,
            "--minutes", f"{max(0.0, s.left - PATIENCE) / 60:.3f}", "--root", str(s.root),
            "--data", str(s.data), "--results", str(s.results), "--call", self.call,
            *(["--smoke"] if s.smoke else []),
        )  # fmt: skip

    def result(self) -> int:
        """Wait until the checks have ended, and give their exit code."""
        while self.thread.is_alive():
            stop.raise_if_asked()
            self.thread.join(0.5)
        return self.code if self.code in (DONE, FAILED, REFUSED) else MORE

    def stop(self) -> None:
        """Have them end; what they have written stays."""
        with self.guard:
            self.stopped = True
            if self.process is not None:
                self.process.terminate()
        self.thread.join()


def go_through_beside(s: Settings, items: Sequence[Item]) -> int:
    """As `go_through`, with the checks beside the artifacts; the other items measure times, and
    come when nothing else is made."""
    checks = [item.name for item in items if item.name in CHECKS and not item.done(s)]
    own = [item.name for item in ITEMS]
    beside = Beside(checks, s)
    try:
        codes = [go_through(s, [item for item in items if item.name not in own])]
        codes.append(beside.result())
    finally:
        beside.stop()
    timed = [item for item in items if item.name in own and item.name not in checks]
    codes.append(go_through(s, timed))
    return next((code for code in (FAILED, MORE) if code in codes), max(codes))


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=9.0, help="this call's time")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--root", type=Path, default=Path("runs"), help="run folders")
    parser.add_argument("--results", type=Path, default=Path("results"))
    default = os.environ.get("BENCH_DATA", "~/.cache/bilevel-bench")
    parser.add_argument("--data", type=Path, default=Path(default), help="data root")
    parser.add_argument("--list", type=Path, help="a list of artifacts, as scripts.gpu.pack has it")
    parser.add_argument("--incoming", type=Path, help="a folder from which data are imported first")
    parser.add_argument("--workers", type=int, default=WORKERS, help="runs at a time")
    parser.add_argument("--only", nargs="+", metavar="ITEM", help="only these items")
    parser.add_argument(
        "--here",
        action="store_true",
        help="all in this process, the checks too; this script calls itself so",
    )
    parser.add_argument("--call", default="", help="by which its processes know what it has tried")
    parser.add_argument("--show", action="store_true", help="print the items, and which are done")
    parser.add_argument(
        "--dry", action="store_true", help="print what would be done, entry by entry"
    )
    parser.add_argument("--smoke", action="store_true", help="make every item tiny")
    arguments = parser.parse_args()
    looking = arguments.show or arguments.dry
    try:
        there = not looking or torch.cuda.is_available()
        device = choose_device(arguments.device if there else "cpu")
        items = items_of(read_json(arguments.list)["items"] if arguments.list else [])
        names = [item.name for item in items]
        known = {*names, *map(whole_name, names)}
        if unknown := set(arguments.only or names) - known:
            raise BadSetting(f"--only {unknown.pop()}: write one of {', '.join(names)}")
    except BadSetting as reason:
        print(f"gpu.work: {reason}", file=sys.stderr)
        return REFUSED
    s = Settings(
        device, arguments.root.expanduser().absolute(), arguments.data.expanduser().absolute(),
        arguments.results.expanduser().absolute(), arguments.smoke, arguments.workers,
        time.monotonic() + 60 * arguments.minutes, arguments.call,
    )  # fmt: skip
    only = set(arguments.only or names)
    wanted_items = [item for item in items if {item.name, whole_name(item.name)} & only]
    if looking:
        for item in wanted_items:
            print(f"{item.name:20} {'done' if item.done(s) else 'to do':6} {item.about}")
            if arguments.dry and item.name in CHECKS:
                for key, settings in wanted(item.name, s).items():
                    print(f"  {key}: {' '.join(settings)}")
        return DONE
    try:
        if arguments.here:
            with stop.heed():
                return go_through(s, wanted_items)
        with stop.heed(), shared(device):
            if arguments.incoming:
                bring_data(arguments.incoming, s.data)
            return go_through_beside(s, wanted_items)
    except stop.Preempted as signalled:
        print(f"stopped by {signalled.name}: the same command goes on")
        return MORE


if __name__ == "__main__":
    sys.exit(main())
