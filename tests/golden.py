"""Golden runs: the numbers of every method and task over five small steps, as they were recorded.

A change of a number fails tests/test_golden.py until the version of what computes it is raised
(`bench.core.settings.version`), which renames its runs, and the number is recorded anew, on
purpose:

    uv run python -m tests.golden                  # what has changed
    uv run python -m tests.golden --renew          # record it, where a version was raised
    uv run python -m tests.golden --renew --cases  # record it: the cases have changed, not the code

They say nothing of what is right: that is for the other tests. They say that nothing moved.
"""

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import torch
import yaml
from omegaconf import OmegaConf
from torch import Tensor

from bench.core.algorithm import Algorithm
from bench.core.loop import run
from bench.core.settings import (
    TUNING,
    BadSetting,
    build,
    check_settings,
    locate,
    parameters,
    version_of,
)
from bench.core.task import Context, Task
from bench.numerics.descent import gd
from bench.numerics.sets import l2_ball
from bench.runs.source import targets_of
from tests.composed import composed
from tests.steps import problem as small

ROOT = Path(__file__).parent.parent
FILE = Path(__file__).with_suffix(".json")
# Other instruction sets sum in another order. A case whose numbers follow that further than these
# tolerances (a linear system that is far from solved, a barrier near its edge) has settings that
# calm it, since its numbers would say nothing; .ci/run tries two instruction sets.
RTOL, ATOL = 1e-9, 1e-11
SINGLE = 1e-6  # where data are products made in float32
ROUGH = {"task/multitask": SINGLE}
STEPS = 5
CONTEXT = Context(seed=1, dtype=torch.float64)

STREAM = ["task=permuted_mnist", "task.tasks=3", "task.images=20", "task.hidden=8"]
FEW_SHOT = ["task=few_shot", "task.ways=3", "task.shots=2", "task.queries=2", "task.episodes=2",
            "task.filters=4", "task.watched=2", "task.final=2", "algorithm.T=2"]  # fmt: skip
# settings that keep a task's five steps short, and a method that suits it
TASKS: dict[str, list[str]] = {
    "completion": ["task.rows=20", "task.columns=15", "task.rank=2", "algorithm=fw"],
    "few_shot": ["algorithm=itd", *FEW_SHOT[1:]],
    "hyper_cleaning": ["task.data.train=40", "task.data.val=20", "task.data.val2=20",
                       "task.data.test=30", "task.pretraining.steps=5"],
    "logistic": ["algorithm=aid_cg"],
    "multitask": ["task.groups=4", "task.similar=2", "task.samples=20", "task.features=6",
                  "algorithm=ncgs", "algorithm.L=10", "algorithm.N=10"],
    "newsgroups": ["task.source=digits", "task.pretraining.steps=5", "algorithm=itd",
                   "algorithm.T=3", "algorithm.inner_lr=0.1", "algorithm.outer_lr=0.01"],
    "online_imbalance": ["algorithm=f2obo", "task.channels=4", "task.statistics=16",
                         "task.phase=2", "task.round=8", "algorithm.K=2", "task.data.train=60",
                         "task.data.val=40", "task.data.test=40", "task.solved.every=2",
                         "task.solved.steps=5", "task.solved.system=2"],
    "online_newsgroups": ["algorithm=sf2obo", "task.source=digits", "task.round=16",
                          "task.noise=[0.1,0.2]", "task.at=[2,4]", "algorithm.K=2",
                          "task.solved.every=2", "task.solved.steps=5",
                          "task.solved.system=2"],
    "online_oscillation": ["algorithm=f2obo"],
    "online_quadratic": ["algorithm=obbo"],
    "permuted_mnist": ["algorithm=ctn_itd", *STREAM[1:]],
    "quadratic": ["algorithm=stocbio", "task.noise=0.3", "task.curving=0.1", "algorithm.batch=8"],
    "regularised_logistic": ["algorithm=soba", "algorithm.batch=8"],
    "sampled_quadratic": ["algorithm=saba", "task.p=4", "task.q=6", "task.n=40", "task.m=24",
                          "algorithm.blocks=8"],
    "split_cifar": ["algorithm=er", "task.tasks=2", "task.filters=2", "task.watched=10",
                    "task.statistics=10"],
    "toy_coreset": [],
    "toy_degenerate": [],
    "toy_minimax": [],
    "trees": ["algorithm=fw", "algorithm.rule=decreasing"],
}  # fmt: skip
SHORT = {"cap": 10, "N": 5}  # of methods' inner loops, where they have such a setting
SHORTER = {"hoag": {"T": 20}, "bvfsm": {"eps": 0.1}}
NEEDS = {("hoag", "outer_rule"): {"outer_lr": 0.05}}  # what a choice is refused without
ELSEWHERE = {
    "learn2learn",  # an extra package, held against ours in test_few_shot.py
    "optuna_tpe",  # its sampler's numbers are those of the version installed
}


def stems(group: str) -> list[str]:
    return sorted(path.stem for path in (ROOT / "conf" / group).glob("*.yaml"))


def plain(*overrides: str) -> dict[str, Any]:
    """The plain configuration that these overrides make."""
    cfg = composed(*overrides, "logger=local", "data.root=nowhere")
    node: Any = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    return dict(node)


def variants(node: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """(setting, value) for each choice of a word, or of yes and no, that is not made."""
    function = locate(node["_target_"], "")
    for name, hint in get_type_hints(function, include_extras=True).items():
        if name in ("return", "data", "source"):  # which needs files that a clone does not have
            continue
        words: list[Any] = []
        for part in (hint, *get_args(hint)):
            if get_origin(part) is Literal:
                words += get_args(part)
            if part is bool:
                words += [True, False]
        for word in words:
            if word != node.get(name):
                yield name, word


def finite(value: float) -> float | str:
    """JSON has no word for what is not finite."""
    return value if abs(value) < float("inf") else str(value)


def rows_of(task: Task, algorithm: Algorithm) -> dict[str, Any]:
    """The first and the last row of five steps, without clocks, and x and y at the end."""
    rows: list[dict[str, Any]] = []
    end = run(task, algorithm, seed=1, steps=STEPS, every=STEPS, on_row=rows.append)
    found: dict[str, Any] = {}
    for name, row in (("first", rows[0]), ("last", rows[-1])):
        clocks = ("seconds", "cpu_seconds", "step")
        found[name] = {k: finite(v) for k, v in row.items() if k not in clocks}
    for name in "xy":
        value: Tensor = getattr(end.state, name).double().flatten()
        along = torch.linspace(1, 2, len(value), dtype=torch.float64)
        found[name] = value.tolist() if len(value) < 10 else [
            float(value.norm()), float(value @ along)
        ]  # fmt: skip
    return found


def held(algorithm: str, target: str) -> Task:
    """The small problem on which a method of this kind can work, its constraints active."""
    ball = l2_ball(0.9 * float(small.X0.norm()))
    if "projection_free" in target:
        return small.single_level(ball)
    if "games" in target:
        task = small.problem()
        return replace(task, lower=negative)
    return small.CASES["held"]()


def negative(x: Tensor, y: Tensor, i: Any) -> Tensor:
    """The lower loss of a game."""
    return -small.upper(x, y, i)


def of_method(name: str, setting: str = "", value: Any = None) -> dict[str, Any]:
    """A method's five steps of batches of 8, as its yaml has it but for one setting."""
    node = plain(f"algorithm={name}")["algorithm"]
    target = node["_target_"]
    if "continual" in target:
        config = plain(*STREAM, f"algorithm={name}")
        node, task = config["algorithm"], build(
            check_settings(config["task"], "task", Task, given=("context",)), CONTEXT
        )  # fmt: skip
    else:
        task = held(name, target)
        if "batch" in node:
            node["batch"] = 8
        if "blocks" in node:
            node["blocks"] = 8
        node |= {key: value for key, value in SHORT.items() if key in node}
        node |= SHORTER.get(name, {})
    if setting:
        node |= {setting: value, **NEEDS.get((name, setting), {})}
    found = rows_of(task, build(check_settings(node, "algorithm", Algorithm)))
    return found | {"versions": versions(node)}


def of_task(name: str, setting: str = "", value: Any = None) -> dict[str, Any]:
    """Five steps on a small form of a task, and its lines of reference."""
    config = plain(f"task={name}", *TASKS[name])
    if setting:
        config["task"][setting] = value
    task: Task = build(check_settings(config["task"], "task", Task, given=("context",)), CONTEXT)
    found = rows_of(task, build(check_settings(config["algorithm"], "algorithm", Algorithm)))
    if task.report.references is not None:
        found["references"] = task.report.references()
    return found | {"versions": versions(config["task"], config["algorithm"])}


def of_descent(rule: str) -> dict[str, Any]:
    """Five steps of a rule of descent along fixed directions."""
    node = plain("algorithm=itd")["algorithm"]["outer"]
    made = build(node | {"rule": rule}) if rule != "gd alone" else gd()
    point = small.X0
    memory = made.init(point)
    for k in range(STEPS):
        point, memory = made.step(point, small.W[k], 0.1, memory)
    return {"x": point.tolist(), "versions": versions(node)}


def written(*groups: str) -> dict[str, Any]:
    """What each yaml of these groups of conf/ says, by its path."""
    conf = ROOT / "conf"
    paths = [path for group in groups for path in sorted((conf / group).glob("*.yaml"))]
    return {str(p.relative_to(conf)): yaml.safe_load(p.read_text()) for p in paths}


def targets() -> dict[str, str]:
    """Every function that a yaml of a task or a method names, by its own name."""
    nodes = written("algorithm", "task", "task/data", "descent").values()
    every = sorted({target for node in nodes for target in targets_of(node)})
    names = Counter(target.rpartition(".")[2] for target in every)
    # Two records of settings have one name, and are known by their modules' names.
    return {".".join(t.split(".")[-1 if names[t.split(".")[-1]] == 1 else -2 :]): t for t in every}


def defaults() -> dict[str, Any]:
    """The defaults in the signature of each of these functions, with its version: a run's name has
    only what differs from them."""
    found: dict[str, Any] = {}
    for name, target in targets().items():
        function = locate(target, "")
        given = {s.name: repr(s.default) for s in parameters(function) if not s.required}
        found[name] = {"defaults": given, "versions": version_of(function)}
    return found


def settings() -> dict[str, str]:
    """A digest of what each yaml of a task, a method, a pair or an experiment says, but for the
    modules of its functions and a method's search space, which decides no run."""
    groups = ("algorithm", "task", "task/data", "descent", "tuned", "experiment")
    return {
        name: hashlib.sha256(json.dumps(unplaced(node), sort_keys=True).encode()).hexdigest()[:16]
        for name, node in written(*groups).items()
    }


def unplaced(node: Any) -> Any:
    """A configuration whose functions have no modules, without a search space."""
    if not isinstance(node, dict):
        return node
    found = {key: unplaced(value) for key, value in node.items() if key != TUNING}
    if "_target_" in found:
        found["_target_"] = found["_target_"].rpartition(".")[2]
    return found


def versions(*nodes: Any) -> dict[str, int]:
    """The version of every function that these parts of a configuration name."""
    named = {t.rpartition(".")[2]: t for node in nodes for t in targets_of(node)}
    return {name: version_of(locate(target, "")) for name, target in sorted(named.items())}


def names() -> list[str]:
    """Every case there is: `kind/stem`, or `kind/stem/setting=value` with one other choice."""
    found = [f"descent/{rule}" for rule in ("gd", "momentum", "adam")] + ["defaults", "settings"]
    for kind in ("algorithm", "task"):
        for stem in stems(kind):
            if stem in ELSEWHERE:
                continue
            overrides = TASKS[stem] if kind == "task" else []
            node = plain(f"{kind}={stem}", *overrides)[kind]
            found += [f"{kind}/{stem}", *(f"{kind}/{stem}/{s}={v}" for s, v in variants(node))]
    return found


def numbers(case: str) -> dict[str, Any]:
    """What a case gives, as JSON keeps it; a refusal is a result too."""
    kind, _, rest = case.partition("/")
    stem, _, choice = rest.partition("/")
    setting, _, word = choice.partition("=")
    value = yaml.safe_load(word) if word else None
    try:
        if kind == "descent":
            found = of_descent(stem)
        elif kind == "defaults":
            found = defaults()
        elif kind == "settings":
            found = settings()
        elif kind == "algorithm":
            found = of_method(stem, setting, value)
        else:
            found = of_task(stem, setting, value)
    except BadSetting as refusal:
        found = {"refused": str(refusal)}
    return dict(json.loads(json.dumps(found)))


def differences(found: Any, kept: Any, where: str = "", rtol: float = RTOL) -> Iterator[str]:
    """A line for each number or word that is not as recorded."""
    if isinstance(found, dict) and isinstance(kept, dict):
        for key in sorted({*found, *kept}):
            if key not in found or key not in kept:
                yield f"{where}/{key}: {'new' if key not in kept else 'gone'}"
            else:
                yield from differences(found[key], kept[key], f"{where}/{key}", rtol)
    elif isinstance(found, list) and isinstance(kept, list) and len(found) == len(kept):
        for i, (a, b) in enumerate(zip(found, kept)):
            yield from differences(a, b, f"{where}[{i}]", rtol)
    elif isinstance(found, float) and isinstance(kept, float):
        if abs(found - kept) > ATOL + rtol * abs(kept):
            yield f"{where}: {found!r}, recorded {kept!r}"
    elif found != kept:
        yield f"{where}: {found!r}, recorded {kept!r}"


def moved(case: str, found: dict[str, Any], kept: dict[str, Any]) -> list[str]:
    """What differs between two records of a case."""
    if case not in found or case not in kept:
        return [f"{case}: {'new' if case not in kept else 'gone'}"]
    return list(differences(found[case], kept[case], case, ROUGH.get(case, RTOL)))


def same_version(found: Any, kept: Any, rtol: float = RTOL) -> list[str]:
    """What has moved where no version was raised; new entries are not among it."""
    if found == kept or not isinstance(found, dict) or not isinstance(kept, dict):
        return []
    if "versions" in found or "versions" in kept:
        raised = found.get("versions") != kept.get("versions")
        return (
            []
            if raised
            else [line for line in differences(found, kept, "", rtol) if not line.endswith(": new")]
        )
    return [
        f"/{key}{line}" for key in kept for line in same_version(found.get(key), kept[key], rtol)
    ]


def recorded() -> dict[str, Any]:
    """What the file holds."""
    return dict(json.loads(FILE.read_text())) if FILE.exists() else {}


def main() -> int:
    """Compare, or record anew with --renew; the exit code says whether anything differs, or may not
    be recorded."""
    torch.set_num_threads(1)
    found, kept = {name: numbers(name) for name in names()}, recorded()
    lines = [line for name in sorted({*found, *kept}) for line in moved(name, found, kept)]
    print(*lines, f"{len(lines)} differences in {len(found)} cases", sep="\n")
    if "--renew" not in sys.argv[1:]:
        return bool(lines)
    unraised = {
        name: same_version(found[name], kept[name], ROUGH.get(name, RTOL))
        for name in found if name in kept
    }  # fmt: skip
    if any(unraised.values()) and "--cases" not in sys.argv[1:]:
        print("Not recorded: raise the version of what computes these numbers first:")
        print(*(name for name, moved in unraised.items() if moved), sep="\n")
        return 1
    FILE.write_text(json.dumps(found, indent=0, sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
