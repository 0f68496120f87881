"""Digests of what decides the runs of the league, by which a record is known to be of today."""

import json
from collections.abc import Callable, Collection
from contextlib import suppress
from hashlib import blake2b
from typing import Any

from hydra import initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import OmegaConf

from bench.core import exact
from bench.core.packages import PACKAGES, package_of
from bench.core.settings import BadSetting
from bench.core.work import FOURFOLD, HELD, LEAST
from bench.reproduce.league.rules import (
    MEMORY_GB,
    TRIED,
    Entrant,
    Track,
    compose_on,
    configured,
    entrant_of,
)
from bench.reproduce.league.space import dumped, read_space
from bench.runs.name import describe_node, hash_of
from bench.runs.source import source, targets_of
from bench.solving.methods import GROUP, composed


def method_digest(entered: Entrant) -> str:
    """A digest of all that decides an entry beside the rules: the method's settings, its code, and
    what is searched."""
    node: Any = OmegaConf.to_container(entered.configuration.algorithm, resolve=False)
    space = read_space(entered.method, node)
    algorithm = configured(entered, TRIED, {})["algorithm"]
    meaning = {
        **describe_method(entered, algorithm),
        "space": {key: dumped(part) for key, part in space.items()},
    }
    text = json.dumps(meaning, sort_keys=True, default=str)
    return blake2b(text.encode(), digest_size=6).hexdigest()


def describe_method(entered: Entrant, algorithm: dict[str, Any]) -> dict[str, Any]:
    """What a method with these checked settings is, as digests have it: its settings, and its code.

    The functions of this suite that a track lists have versions that say when their code has
    changed. Those of other packages, and those that somebody has written into this one, need not
    have any, and so the content of each of their files is looked at.
    """
    config = {"task": {}, "algorithm": algorithm}
    code = outside_code(config)
    if code is None and entered.method not in entered.track.methods:
        code = files_digest(config, lambda top: top == "algorithms")
    return {"algorithm": describe_node(algorithm), **({"code": code} if code else {})}


def describe_task(task: dict[str, Any]) -> dict[str, Any]:
    """What a task with these checked settings is, as `describe_method` does it of a method."""
    code = outside_code({"task": task, "algorithm": {}})
    return {"task": describe_node(task), **({"task_code": code} if code else {})}


def outside_code(config: dict[str, Any]) -> str | None:
    """A digest of the files of other packages that a task and a method use; None: they use none."""
    if all(package_of(target) is None for target in targets_of(config)):
        return None
    return files_digest(config, lambda top: top not in PACKAGES)


def files_digest(config: dict[str, Any], counts: Callable[[str], bool]) -> str:
    """A digest of the files that a task and a method use, of the packages that count."""
    used = source(config)["files"]
    return hash_of(
        {"files": sorted(digest for file, digest in used.items() if counts(file.split("/")[0]))}
    )


def method_digests(track: Track, name: str, methods: Collection[str]) -> dict[str, str]:
    """The digests of those of these methods that there are, and whose settings are not refused.

    They are composed together, because Hydra takes a tenth of a second for each time it is asked.
    Raises BadSetting if the track's task or a method's yaml cannot be composed.
    """
    task = next(iter(track.tasks))
    with initialize_config_module("conf", version_base="1.3"):
        there = GlobalHydra.instance().config_loader().get_group_options(GROUP)
    try:
        nodes = composed([method for method in there if method in methods])
    except HydraException as error:
        raise BadSetting(" ".join(str(error).split())) from None
    alone, found = compose_on(track, task, None), dict[str, str]()
    for method, node in nodes.items():
        both = alone.copy()
        both.algorithm = node
        with suppress(BadSetting):
            found[method] = method_digest(entrant_of(both, track, name, task, method))
    return found


def rules_of(entered: Entrant) -> str:
    """A digest of all that decides what is asked of any method on this task.

    A record whose digest is another one was made by other rules.
    """
    track = entered.track
    about = track.tasks[entered.task]
    task = configured(entered, TRIED, {})["task"]
    meaning = {
        **describe_task(task),
        "metric": about.metric,
        "target": [about.within, about.reference.model_dump()],
        "steps": about.steps.model_dump(),
        "limit": [track.unit, track.limit_of(entered.task), track.cpu_seconds],
        "batches": track.batches_of(entered.task),
        "dtype": about.dtype,
        "trials": track.trials,
        "seeds": track.seeds,
    }
    if track.by == "value" or about.higher:
        meaning["higher"] = about.higher
    if track.by == "work":  # in the others nothing has to be reached
        meaning["lasts"] = [HELD, LEAST]
    if track.tuning_seeds != 1:  # records were made before it was part of the digest
        meaning["tuning_seeds"] = track.tuning_seeds
    if about.solved is not None:  # records were made before it was part of the digest
        scaled = [exact.PROBES] if about.solved.scaled else []
        meaning["solved"] = [about.solved.tolerance, exact.MOST, *scaled]
        if FOURFOLD != 4.0:  # records were made before it was part of the digest
            meaning["fourfold"] = FOURFOLD
        if about.solved.pairs != 10:  # records were made before it was part of the digest
            meaning["pairs"] = about.solved.pairs
    if track.memory_gb != MEMORY_GB:  # records were made before it was part of the digest
        meaning["memory_gb"] = track.memory_gb
    text = json.dumps(meaning, sort_keys=True, default=str)
    return blake2b(text.encode(), digest_size=6).hexdigest()
