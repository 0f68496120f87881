"""The three kinds of disturbance, and what is counted of each."""

import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from bench.core.settings import BadSetting
from bench.reproduce.histories import histories_path
from bench.runs import folder as folders
from bench.runs.checkpoint import read_content
from scripts.faults import processes
from scripts.faults.compare import outcomes
from scripts.faults.kinds import KINDS, Kind

SEEDS = 4  # of undisturbed runs of each kind
BLOCK = 4096  # bytes, of a file system
DISK_MB = 32
KILLS = ("runs", "kills", "half written", "lost", "differ", "unreadable")
DISKS = ("runs", "full", "with checkpoint", "unclear", "lost", "differ", "unreadable")
FLIPS = ("flips", "of ended runs", "noticed", "mended", "harmless", "unnoticed")
BAD = ("lost", "differ", "unreadable", "unclear", "unnoticed")  # counts that have to be 0


class Whole(NamedTuple):
    """An undisturbed command: its folder, what is in it, and how long it took.

    kept: what is at every moment as before the command, or as after it.
    """

    root: Path
    left: str
    kept: tuple[str, str]
    seconds: float


class Campaign:
    """Disturbs commands of all kinds, and compares them with undisturbed ones."""

    def __init__(self, folder: Path, seed: int | str):
        self.folder, self.rng = folder, random.Random(seed)
        self.shared, self.log = folder / "shared", folder / "log"
        self.whole: dict[tuple[str, int], Whole] = {}
        self.shared.mkdir(parents=True, exist_ok=True)

    def seed(self, kind: str, number: int) -> int:
        """The seed of a kind's command of this number."""
        return number % SEEDS if KINDS[kind].single else 0

    def begin(self, kind: str, root: Path) -> Path:
        """Make the folder of a command, with what the command finds there."""
        root.mkdir(parents=True)
        KINDS[kind].begin(root, self.shared)
        return root

    def start(self, kind: str, seed: int, root: Path) -> int:
        """Start a command; gives the number of its process."""
        return processes.start(lambda: KINDS[kind].make(seed, root, self.shared), self.log)

    def left(self, kind: str, root: Path) -> str:
        """What a command has left; raises BadSetting or ValueError if it cannot be read."""
        return outcomes(root) + repr(KINDS[kind].left(root))

    def undisturbed(self, kind: str, seed: int) -> Whole:
        """The undisturbed command, made once; exits with its output if it fails."""
        if (kind, seed) not in self.whole:
            own, root = KINDS[kind], self.folder / "whole" / kind / str(seed)
            self.end_well(processes.start(lambda: self.prepare(own, seed), self.log))
            own.prepare(seed, self.shared)  # which now only keeps in memory what it needs
            if kind == "compiled":  # the compiler's cache is filled by the first one
                self.end_well(self.start(kind, seed, self.begin(kind, root)))
                shutil.rmtree(root)
            before = repr(own.kept(self.begin(kind, root)))
            begin = time.monotonic()
            self.end_well(self.start(kind, seed, root))
            seconds = time.monotonic() - begin
            kept = (before, repr(own.kept(root)))
            self.whole[kind, seed] = Whole(root, self.left(kind, root), kept, seconds)
        return self.whole[kind, seed]

    def prepare(self, own: Kind, seed: int) -> int:
        """Make what commands of a kind need; gives the exit code."""
        own.prepare(seed, self.shared)
        return 0

    def end_well(self, process: int) -> None:
        """Wait for a process that nobody disturbs; exits with its output if it fails."""
        if processes.wait_for_exit(process):
            sys.exit(self.log.read_text())

    def finish(self, kind: str, seed: int, root: Path) -> Counter[str]:
        """Let a command that was disturbed end, and count how it does."""
        code = processes.wait_for_exit(self.start(kind, seed, root))
        if code:
            self.tell(f"{kind}: {root}: exit code {code}")
            return Counter({"unreadable" if code == 2 else "lost": 1})
        try:
            same = self.left(kind, root) == self.undisturbed(kind, seed).left
        except (BadSetting, ValueError) as error:
            self.tell(f"{kind}: {root}: {error}")
            return Counter(unreadable=1)
        if not same:
            self.tell(f"{kind}: {root}: another result")
        return Counter(differ=int(not same))

    def tell(self, what: str) -> None:
        """Print what went wrong, with the output of the last command."""
        print(f"{what}\n{self.log.read_text()}", file=sys.stderr, flush=True)

    def tidy(self, root: Path, counts: Counter[str]) -> None:
        """Remove the folder of a command of which nothing went wrong."""
        if not any(counts[word] for word in BAD):
            shutil.rmtree(root)

    def kill(self, kind: str, number: int) -> Counter[str]:
        """Make one command that is killed up to four times; gives what is counted of it."""
        seed, counts = self.seed(kind, number), Counter(runs=1)
        usual = self.undisturbed(kind, seed).seconds
        root = self.begin(kind, self.folder / "killed" / kind / str(number))
        most = self.rng.randint(1, 4)
        for _ in range(most):
            process = self.start(kind, seed, root)
            aimed = self.rng.random() < 1 / 3
            self.wait(process, root, self.rng.uniform(0, 1.1 * usual / most), aimed)
            half = has_half_written(root)
            code = processes.kill(process)
            if code != -signal.SIGKILL:
                counts["lost"] += code != 0
                break
            counts.update({"kills": 1, "half written": int(half)})
            counts += self.check_kept(kind, seed, root)
        counts += self.finish(kind, seed, root)
        self.tidy(root, counts)
        return counts

    def check_kept(self, kind: str, seed: int, root: Path) -> Counter[str]:
        """Count a record that is neither the one before the command nor the one after it."""
        try:
            whole = repr(KINDS[kind].kept(root)) in self.undisturbed(kind, seed).kept
        except BadSetting as error:
            self.tell(f"{kind}: {root}: {error}")
            return Counter(unreadable=1)
        if not whole:
            self.tell(f"{kind}: {root}: a mixture of two records")
        return Counter(differ=int(not whole))

    def wait(self, process: int, root: Path, seconds: float, aimed: bool) -> None:
        """Wait so many seconds; if aimed, then on until a file is half written, 1 s at most.

        An aimed wait ends when the process does.
        """
        time.sleep(seconds)
        last = time.monotonic() + 1
        while aimed and time.monotonic() < last and not has_half_written(root):
            if processes.has_ended(process):
                return
            time.sleep(0.0005)

    def fill_disk(self, kind: str, number: int, disk: Path) -> Counter[str]:
        """Make one command on a disk with little room, and again when there is room.

        Gives what is counted of it.
        """
        seed, counts = self.seed(kind, number), Counter(runs=1)
        whole = self.undisturbed(kind, seed)
        root = self.begin(kind, disk / "runs")
        needs = blocks(whole.root) - blocks(root) + 2
        room = os.statvfs(disk)
        ballast = max(0, room.f_bavail - self.rng.randrange(needs)) * room.f_frsize
        (disk / "ballast").write_bytes(bytes(ballast))
        code = processes.wait_for_exit(self.start(kind, seed, root))
        if code:
            said = self.log.read_text()
            lines = said.splitlines()
            clear = "No space left" in said and "Traceback" not in said
            if KINDS[kind].single:
                clear = clear and len(lines) == 1
            counts.update({"full": 1, "unclear": int(not clear)})
            if not clear:
                self.tell(f"{kind}: {root}: exit code {code}")
            checkpoints = list(root.rglob(folders.CHECKPOINT))
            counts["with checkpoint"] += bool(checkpoints)
            for file in checkpoints:
                read_content(file)
        counts += self.check_kept(kind, seed, root)
        (disk / "ballast").unlink()
        counts += self.finish(kind, seed, root)
        shutil.rmtree(root)
        return counts

    def flip(self, kind: str, number: int) -> Counter[str]:
        """Flip a bit of what a command that was stopped, or has ended, has left, and give it again.

        Gives what is counted of it.
        """
        seed, own = self.seed(kind, number), KINDS[kind]
        whole = self.undisturbed(kind, seed)
        root = self.begin(kind, self.folder / "flipped" / kind / str(number))
        while not (files := self.stop_command(kind, seed, root, whole.seconds)):
            pass  # it was stopped before it wrote anything
        ended = own.single is None or own.single(seed, root).summary() is not None
        before = self.read(kind, seed, root) if ended else whole.left
        file = self.rng.choice([f for f in files if not ended or f.name != folders.CHECKPOINT])
        damaged = flip_bit(file, self.rng)
        if own.single:
            code = processes.wait_for_exit(self.start(kind, seed, root))
        else:
            code = processes.wait_for_exit(processes.start(lambda: self.look(kind, root), self.log))
        word = self.judge(kind, seed, root, file, before, code, ended)
        if word == "mended" and file.is_file() and file.read_bytes() == damaged:
            word = "harmless"
        counts = Counter({"flips": 1, "of ended runs": int(ended), word: 1})
        if word == "unnoticed":
            self.tell(f"{kind}: {file}, of which a bit is flipped: exit code {code}")
        self.tidy(root, counts)
        return counts

    def stop_command(self, kind: str, seed: int, root: Path, usual: float) -> list[Path]:
        """Make a command that may be killed or told to stop; gives the files that may be damaged.

        Of a command that is no single run, which is left to end, these are packed histories.
        """
        own, process = KINDS[kind], self.start(kind, seed, root)
        if own.single is None:
            self.end_well(process)
            return list(root.rglob(histories_path(Path("*.json")).name))
        if self.rng.random() < 3 / 4:
            time.sleep(self.rng.uniform(0, usual))
            with suppress(ProcessLookupError):
                os.kill(process, self.rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]))
        processes.wait_for_exit(process)
        path = own.single(seed, root).path
        files = (path / name for name in folders.FILES)
        return [file for file in files if file.is_file() and file.stat().st_size]

    def read(self, kind: str, seed: int, root: Path) -> str:
        """All that is read of a command that has ended; raises BadSetting."""
        own = KINDS[kind]
        if own.single is None:
            return repr(own.kept(root))
        run = own.single(seed, root)
        parts = [run.shown_summary(), run.history(), run.view(), run.environment(), run.config()]
        return repr(parts)

    def look(self, kind: str, root: Path) -> int:
        """Read what a command has left; raises BadSetting."""
        KINDS[kind].kept(root)
        return 0

    def judge(
        self, kind: str, seed: int, root: Path, file: Path, before: str, code: int, ended: bool
    ) -> str:
        """Whether a flipped bit was noticed, mended or not noticed.

        before: what was there before the bit was flipped, or is there after an undisturbed run.
        """
        said = self.log.read_text()
        if code == 0:
            try:
                now = self.read(kind, seed, root) if ended else self.left(kind, root)
            except BadSetting as error:
                said, code = f"{error}", 2
            else:
                return "mended" if now == before else "unnoticed"
        one_line = len(said.splitlines()) == 1 and file.name in said
        return "noticed" if code == 2 and one_line else "unnoticed"


def flip_bit(file: Path, rng: random.Random) -> bytes:
    """Flip one bit of a file; gives its new content."""
    content = bytearray(file.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    file.write_bytes(content)
    return bytes(content)


def has_half_written(root: Path) -> bool:
    """Whether a file below a folder is being written."""
    return next(root.rglob("*.new"), None) is not None


def blocks(root: Path) -> int:
    """How many blocks of a disk the files below a folder take."""
    return sum(1 + (f.stat().st_size // BLOCK if f.is_file() else 0) for f in root.rglob("*"))
