"""Makes the folder that travels to a lent machine, which has Python, torch and no network.

    uv run python -m scripts.gpu.pack OUT [--root runs-gpu] [--sets MNIST newsgroups]
    uv run python -m scripts.gpu.pack OUT --sets CIFAR100 --part 0   # then, in the same lease, 1, 2

OUT gets wheels of what the machine lacks, the code, compressed data, what was derived of data, the
runs below --root as far as they are, and list.json: the artifacts whose spec has the budget gpu and
whose data are here, by claims per minute. It travels beside this checkout, and both together are at
most --most MiB. CIFAR-100 is larger, and goes in three parts: `scripts.gpu.run` keeps the first two
on the machine, and imports when the last comes. There `python3 OUT/start.py` is `scripts.gpu.run`.
"""

import argparse
import gzip
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from bench import about
from bench.core.settings import BadSetting
from bench.reproduce.book import load_book
from bench.reproduce.claim_kinds import AnyClaim
from bench.reproduce.making import Choice
from bench.reproduce.plan import TIMES, Plan
from bench.reproduce.records import read_record
from bench.reproduce.schema import Budget
from bench.reproduce.specs import Artifact, Book
from scripts.gpu.listed import plan_with_record
from scripts.gpu.state import DERIVED, ENDED, GOING, archive, files_of, run_folders
from scripts.import_data import DATA_SETS

ROOT = Path(__file__).parent.parent.parent
CODE = ("bench", "tasks", "algorithms", "conf", "hydra_plugins", "scripts", "pyproject.toml")
MOST = 63.0  # MiB; a lent machine takes 64
# what a run imports and the machine lacks; the versions are those that are installed here
PACKAGES = (
    "hydra-core", "omegaconf", "antlr4-python3-runtime", "pydantic", "pydantic-core",
    "annotated-types", "typing-inspection", "typing-extensions",
)  # fmt: skip
PLATFORMS = ("manylinux2014_x86_64", "manylinux_2_17_x86_64", "manylinux_2_28_x86_64")
SETS = ("MNIST", "FashionMNIST", "newsgroups", "Omniglot", "CIFAR100", "IJCNN1")
PARTS, PIECES = 3, 18  # in which CIFAR-100 goes, and those of one file in all of them
# rows that are made together, in this order: each bundle of lanes keeps one core busy, and those
# that take longest come last, because few checkpoints can be carried back
GROUPS = {
    "bome/table2": (
        ("Offline", "single", "ER-Ring", "GEM", "MER", "CTN+ITD", "CTN first order", "CTN+BOME",
         "CTN+BOME printed"),
        ("CTN+BVFSM", "CTN+Penalty"),
    ),
}  # fmt: skip
# the data that a spec needs, by what its settings name, and under which keys they name it
KEYS = ("task/data", "task.data", "task.source")
NAMED = {
    "mnist": "MNIST", "fashion_mnist": "FashionMNIST", "omniglot": "Omniglot",
    "fc100": "CIFAR100", "cifar_fs": "CIFAR100", "cifar100": "CIFAR100",
    "ijcnn1": "IJCNN1",
}  # fmt: skip


def needs(artifact: Artifact) -> set[str]:
    """The data sets that an artifact's runs read."""
    settings = [artifact.spec.set, *(row.set for row in artifact.spec.rows.values())]
    given = (each.get(key) for each in settings for key in KEYS)
    found = {NAMED[str(name)] for name in given if name in NAMED}
    return found | ({"newsgroups"} if "newsgroups" in artifact.spec.task else set())


def reads_times(claim: AnyClaim) -> bool:
    """Whether a claim is about times, which runs that are made side by side do not tell."""
    return any(f'"{word}"' in claim.model_dump_json() for word in TIMES)


def is_judged(artifact: Artifact, results: Path, budget: Budget) -> bool:
    """Whether a complete record of another budget judges the claims at the paper's scale."""
    others = [
        read_record(artifact.id, other, results, with_histories=False)
        for other in artifact.spec.budgets
        if other != budget and artifact.spec.scale(other) == "paper"
    ]
    return any(record is not None and record.complete for record in others)


def work_list(
    book: Book,
    sets: Sequence[str],
    root: Path,
    budget: Budget = "gpu",
    only: Sequence[str] = (),
    results: Path = Path("results"),
) -> list[dict[str, Any]]:
    """The artifacts that are not complete below the root, by claims per minute; claims that a
    record judges at the paper's scale do not count.

    Raises BadSetting if a name in `only` is no artifact with the budget, or reads data that are not
    among the sets.
    """
    there = {id: a for id, a in book.artifacts.items() if budget in a.spec.budgets}
    if unknown := set(only) - set(there):
        raise BadSetting(f"--only {unknown.pop()}: write one of {', '.join(there)}")
    for id in only:
        if lacking := needs(there[id]) - set(sets):
            raise BadSetting(
                f"--only {id}: add {', '.join(sorted(lacking))} to --sets, which it reads"
            )
    items: list[tuple[float, list[dict[str, Any]]]] = []
    for id, artifact in there.items():
        if (only and id not in only) or not needs(artifact) <= set(sets):
            continue
        plan = plan_with_record(artifact, book, budget, root, results)
        if not plan.missing and not plan.later:
            continue
        claims = sum(
            len(set(claim.variants) & set(artifact.spec.variants))
            for claim in artifact.spec.claims.values()
            if budget in claim.budgets and not reads_times(claim)
        )
        claims = 0 if is_judged(artifact, results, budget) else claims
        runs = len(plan.missing)
        minutes = artifact.spec.budgets[budget].minutes * runs / plan.count
        item = {
            "name": id, "id": id, "budget": budget, "claims": claims, "runs": runs,
            "minutes": minutes,
        }  # fmt: skip
        items.append((minutes / max(claims, 0.1), in_groups(item, plan)))
    items.sort(key=itemgetter(0))
    return [entry for _, entries in items for entry in entries]


def in_groups(item: dict[str, Any], plan: Plan) -> list[dict[str, Any]]:
    """This entry of the list, or one for each group of its rows that has runs to make; all have the
    claims of the whole."""
    found = []
    for k, rows in enumerate(GROUPS.get(item["id"], ()), 1):
        runs = sum(run.summary is None for run in Choice(rows).runs(plan))
        minutes = item["minutes"] * runs / item["runs"]
        own = {"name": f"{item['id']}:{k}", "rows": rows, "runs": runs, "minutes": minutes}
        found += [item | own] if runs else []
    return found or [item]


def pack_wheels(out: Path, ready: Path | None) -> None:
    """Fetch the wheels, or take those of a folder; one that is published as source is built."""
    out.mkdir()
    if ready is not None:
        for wheel in sorted(ready.glob("*.whl")):
            shutil.copyfile(wheel, out / wheel.name)
        return
    pip = [sys.executable, "-m", "pip"] if has_pip() else ["pip"]
    names = [f"{name}=={importlib.metadata.version(name)}" for name in PACKAGES]
    target = ["--python-version", "3.12", "--implementation", "cp", "--only-binary=:all:"]
    target += [word for platform in PLATFORMS for word in ("--platform", platform)]
    for name in names:
        got = [*pip, "download", "-q", "--no-deps", "-d", str(out), *target, name]
        if subprocess.run(got, capture_output=True).returncode:
            subprocess.run([*pip, "wheel", "-q", "--no-deps", "-w", str(out), name], check=True)


def has_pip() -> bool:
    """Whether this Python has pip, which environments of uv do not."""
    return not subprocess.run(
        [sys.executable, "-m", "pip", "--version"], capture_output=True
    ).returncode


def tracked(*places: str) -> list[str]:
    """The names of this checkout's tracked files, in some places or everywhere."""
    listed = ["git", "-C", str(ROOT), "ls-files", "-z", "--", *places]
    names = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split("\0")
    return [name for name in names if name]


def pack_code(out: Path) -> None:
    """The tracked files of the code, as they are here, and the commit that they are of."""
    pairs = [(ROOT / name, name) for name in tracked(*CODE)]
    with TemporaryDirectory() as folder:
        if (commit := about.commit()) is not None:
            made = Path(folder, "commit.json")
            made.write_text(json.dumps(commit))
            pairs.append((made, "bench/commit.json"))
        out.write_bytes(archive(pairs))


def pack_data(out: Path, sets: Sequence[str], source: Path, data: Path, part: int | None) -> None:
    """The data sets as scripts/import_data.py takes them, and word counts as they are derived.

    Raises BadSetting for one that is not there.
    """
    for name in sets:
        if name == "newsgroups":
            counts = data / "derived" / "newsgroups-keep.npz"
            if not counts.is_file():
                raise BadSetting(
                    f"--sets newsgroups: {counts} is not there: make one run of task=newsgroups "
                    "with this data.root, which counts the words"
                )
            to = out / "derived" / counts.name
            to.parent.mkdir(parents=True, exist_ok=True)
            with np.load(counts) as found:
                np.savez_compressed(to, **found)
            continue
        for file in DATA_SETS[name].sources:
            path, to = source / file, out / "incoming" / file
            if not path.is_file():
                raise BadSetting(f"--from {source}: {file} is not there")
            to.parent.mkdir(parents=True, exist_ok=True)
            if part is not None and name == "CIFAR100":
                pack_part(path, to, part)
            elif path.suffix in (".zip", ".xz", ".json") or path.stat().st_size < 2**20:
                shutil.copyfile(path, to)
            else:
                to.with_name(f"{to.name}.gz").write_bytes(
                    gzip.compress(path.read_bytes(), 6, mtime=0)
                )


def pack_part(path: Path, to: Path, part: int) -> None:
    """One part of a file, in pieces; a small file goes with the last part as a whole."""
    content = path.read_bytes()
    if len(content) < 2**20:
        if part == PARTS - 1:
            to.write_bytes(content)
        return
    each = -(-len(content) // PIECES)
    for k in range(PIECES):
        if k // (PIECES // PARTS) == part:
            to.with_name(f"{to.name}.part{k}").write_bytes(content[k * each : (k + 1) * each])


def pack_state(
    out: Path, root: Path, results: Path, items: Sequence[dict[str, Any]], whole: bool = True
) -> None:
    """The runs below the root, of one that has ended only that it has, and the records so far:
    of checks, and of the artifacts on the list, whose runs are not made again. whole: whether the
    pack is to be worked on, and not only unpacked for another one that comes after it."""
    folders = list(run_folders(root)) if root.is_dir() else []
    pairs, known = [], []
    for folder in folders:
        ended = (folder / "summary.json").is_file()
        pairs += files_of(folder, root, ENDED[:3] if ended else GOING)
        known += [folder.relative_to(root).as_posix()] if ended else []
    for kind in ("gpu/*.json", "speed/gpu_*.json"):  # by which scripts.gpu.work knows what is done
        checks = sorted(results.glob(kind))
        pairs += [(path, f"results/{path.relative_to(results).as_posix()}") for path in checks]
    for item in items:
        kept = sorted((results / item["id"]).glob(f"{item['budget']}.*"))
        pairs += [(path, f"results/{path.relative_to(results).as_posix()}") for path in kept]
    names = root / ".reproduce" / "names.json"
    (out / "runs.tar.gz").write_bytes(archive(pairs))
    if names.is_file():
        shutil.copyfile(names, out / "names.json")
    listed = {"items": list(items), "known": known, "whole": whole}
    (out / "list.json").write_text(json.dumps(listed, indent=1))


def pack_derived(out: Path, data: Path) -> None:
    """The pretrainings of the data root that may come from a GPU; a larger one never came back."""
    for file in sorted((data / "derived").glob("*.pt")):
        if file.stat().st_size <= DERIVED:
            (out / "derived").mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, out / "derived" / file.name)


def begin_anew(out: Path) -> None:
    """Put the two scripts into the empty folder of the pack, which may replace an earlier one.

    Raises BadSetting if the folder has files and is no pack.
    """
    scripts = {"start.py": "run.py", "state.py": "state.py"}
    is_pack = all((out / name).is_file() for name in [*scripts, "list.json"])
    if out.is_dir() and any(out.iterdir()) and not is_pack:
        raise BadSetting(f"{out} has files, and is no pack: write the name of a new folder")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    for name, script in scripts.items():
        shutil.copyfile(Path(__file__).with_name(script), out / name)


def size_of(folder: Path) -> int:
    """The bytes of all files of a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def size_of_checkout() -> int:
    """The bytes of this checkout's tracked files."""
    files = [ROOT / name for name in tracked()]
    return sum(file.lstat().st_size for file in files if file.exists())


def main() -> int:
    """The exit code: 0, or 2 where something is refused."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path, metavar="OUT", help="the folder to make; it is replaced")
    parser.add_argument("--root", type=Path, default=Path("runs-gpu"), help="run folders")
    data = os.environ.get("BENCH_DATA", "~/.cache/bilevel-bench")
    parser.add_argument("--data", type=Path, default=Path(data), help="data root, for derived data")
    source = os.environ.get("BENCH_DATA_FROM", ".")
    parser.add_argument("--from", dest="source", type=Path, default=Path(source))
    parser.add_argument("--results", type=Path, default=Path("results"), help="checks so far")
    parser.add_argument("--sets", nargs="*", choices=SETS, default=["MNIST"])
    parser.add_argument("--part", type=int, choices=range(PARTS), help="which part of CIFAR-100")
    parser.add_argument(
        "--most", type=float, default=MOST, metavar="MIB", help="the size with this checkout"
    )
    parser.add_argument("--only", nargs="*", default=[], metavar="ARTIFACT")
    parser.add_argument("--budget", default="gpu", choices=("gpu", "smoke"))
    parser.add_argument("--wheels", type=Path, help="a folder with wheels, in place of pip's")
    given = parser.parse_args()
    out, root = given.out, given.root.expanduser().absolute()
    try:
        items = work_list(load_book(), given.sets, root, given.budget, given.only, given.results)
        whole = given.part not in range(PARTS - 1)
        items = items if whole else []  # the data come with the last part
        about.commit()  # which is kept: the pack itself is no change of the code
        begin_anew(out)
    except BadSetting as reason:
        print(f"gpu.pack: {reason}", file=sys.stderr)
        return 2
    try:
        pack_data(out, given.sets, given.source, given.data.expanduser(), given.part)
        pack_derived(out, given.data.expanduser())
        pack_wheels(out / "wheels", given.wheels)
        pack_code(out / "code.tar.gz")
        pack_state(out, root, given.results, items, whole)
    except (BadSetting, subprocess.CalledProcessError) as reason:
        print(f"gpu.pack: {reason}", file=sys.stderr)
        shutil.rmtree(out, ignore_errors=True)
        return 2
    size, beside = size_of(out) / 2**20, size_of_checkout() / 2**20
    parts = ", ".join(
        f"{p.name} {size_of(p) if p.is_dir() else p.stat().st_size:,}"
        for p in sorted(out.iterdir())
    )
    print(f"{out}: {size:.1f} MiB ({parts}), beside a checkout of {beside:.1f}")
    for item in items:
        print(
            f"  {item['name']}: {item['runs']} runs, {item['claims']} claims,"
            f" {item['minutes']:.1f} minutes"
        )
    if size + beside > given.most:
        print(
            f"gpu.pack: {size:.1f} MiB and a checkout of {beside:.1f} are more than --most "
            f"{given.most:g}: write fewer --sets, or --part",
            file=sys.stderr,
        )
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
