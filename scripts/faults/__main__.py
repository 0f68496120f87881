"""The command `python -m scripts.faults`."""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

os.environ["OMP_WAIT_POLICY"] = "PASSIVE"

import torch

from scripts.faults import __doc__ as about
from scripts.faults import processes
from scripts.faults.campaign import DISK_MB, Campaign
from scripts.faults.kinds import KINDS, import_early, needs_mnist
from scripts.faults.record import Found, add, print_tables, read

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("BENCH_DATA_FROM", ROOT.parent / "shared" / "data"))


def main() -> None:
    assert about
    parser = argparse.ArgumentParser(description=about.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=1000, help="at least so many in all")
    parser.add_argument("--disks", type=int, default=200, help="so many on full disks; 0: none")
    parser.add_argument("--flips", type=int, default=150, help="so many flipped bits")
    parser.add_argument("--kinds", help="only these, separated by semicolons")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--resume", action="store_true", help="keep what the record has of a kind")
    parser.add_argument("--work", type=Path, help="a folder for the runs; what went wrong stays")
    options = parser.parse_args()
    torch.set_num_threads(1)
    processes.adopt_orphans()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the disk is unmounted
    import_early()
    kinds = options.kinds.split(";") if options.kinds else list(KINDS)
    words = f"--kills {options.kills} --disks {options.disks} --flips {options.flips}"
    words += f" --seed {options.seed}"
    if options.record and not options.resume:
        options.record.unlink(missing_ok=True)
    found = read(options.record) if options.record else Found()
    with tempfile.TemporaryDirectory() as name:
        place = options.work or Path(name)
        there = import_mnist(place / "shared" / "data")
        for kind in kinds:
            if needs_mnist(kind) and not there:
                print(f"{kind}: left out: no MNIST in {DATA}", file=sys.stderr)
                continue
            campaign = Campaign(place, f"{options.seed} {kind}")
            for part, count_all in disturb(campaign, kind, options):
                if options.record:  # to which another process may have added something
                    found = read(options.record)
                if found.has(part, kind):
                    continue
                begin = time.monotonic()
                count = count_all()
                seconds = time.monotonic() - begin
                found.counts[part][kind] = count
                found.seconds += seconds
                print(f"{kind}, {part}: {dict(count)}", flush=True)
                if options.record:
                    add(options.record, part, kind, count, seconds, words)
    if options.record:
        found = read(options.record)
    print_tables(found)
    sys.exit(found.is_bad())


def disturb(
    campaign: Campaign, kind: str, options: argparse.Namespace
) -> Iterator[tuple[str, Callable[[], Counter[str]]]]:
    """Each part of the campaign with the function that makes it for a kind."""
    share = KINDS[kind].share / sum(own.share for own in KINDS.values())

    def kills() -> Counter[str]:
        found, number = Counter[str](), 0
        while found["kills"] < share * options.kills:
            found += campaign.kill(kind, number)
            number += 1
        return found

    def disks() -> Counter[str]:
        with small_disk(campaign.folder / "disk") as disk:
            runs = range(round(share * options.disks + 0.5))
            return sum((campaign.fill_disk(kind, k, disk) for k in runs), Counter[str]())

    def flips() -> Counter[str]:
        runs = range(round(share * options.flips + 0.5))
        return sum((campaign.flip(kind, k) for k in runs), Counter[str]())

    yield "kills", kills
    yield "disks", disks
    if KINDS[kind].has_flips:
        yield "flips", flips


@contextmanager
def small_disk(place: Path) -> Iterator[Path]:
    """A context with a tmpfs, which takes root to mount."""
    place.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", str(place)]
    subprocess.run(command, check=True)
    try:
        yield place
    finally:
        processes.end_all()
        subprocess.run(["umount", str(place)], check=True)


def import_mnist(root: Path) -> bool:
    """Put MNIST where tasks look for it; False if it is not to be had."""
    if not DATA.is_dir():
        return False
    script = [sys.executable, str(ROOT / "scripts" / "import_data.py"), str(DATA)]
    subprocess.run([*script, "--root", str(root), "--only", "MNIST"], check=True)
    return True


if __name__ == "__main__":
    main()
