"""Makes a search, `bench -m hydra/sweeper=optuna`: optuna says which runs are to be made next.

What optuna knows is in a journal in the folder of the search, which is named by what is searched:
the same command goes on with it.
"""

from collections.abc import Iterable
from typing import Any

from omegaconf import DictConfig, OmegaConf

from bench.core.settings import (
    BadSetting,
    Count,
    Seed,
    build,
    check_settings,
    expand,
    unknown_setting,
    validate,
)
from bench.runs import lock, stop
from bench.runs.better import better
from bench.runs.files import refuse_links, write_whole
from bench.runs.launch import place, resolve
from bench.runs.name import hash_of, meaning_of
from bench.sweeps.composing import Composer
from bench.sweeps.launchers import Launcher
from bench.sweeps.pruning import Direction, Pruner
from bench.sweeps.search import JOURNAL, Aim, Sampler, Search
from bench.sweeps.space import Space

SETTINGS: dict[str, Any] = {
    "n_trials": (Count, 20),
    "n_jobs": (Count, 1),
    "seeds": (Count, 1),
    "metric": (str | None, None),
    "direction": (Direction | None, None),
    "sampler": (Sampler, "tpe"),
    "pruner": (Pruner, "none"),
    "seed": (Seed, 0),
    "params": (Any, None),
}


def run_search(compose: Composer, space: Space, master: DictConfig) -> int:
    """Make a search, and give the exit code; raises BadSetting.

    master: the configuration of the sweep itself.
    """
    node = OmegaConf.to_container(master.hydra.sweeper, resolve=True)
    assert isinstance(node, dict)
    given = {str(key): value for key, value in node.items() if key != "_target_"}
    settings = validate(SETTINGS, given, "hydra.sweeper")
    try:
        import optuna  # noqa: F401
    except ImportError:
        raise BadSetting(
            "hydra/sweeper=optuna: optuna is not installed; write uv sync --extra optuna, or "
            "pip install bilevel-bench[optuna]"
        ) from None
    launcher_node = OmegaConf.to_container(master.hydra.launcher, resolve=True)
    launcher: Launcher = build(check_settings(launcher_node, "hydra.launcher", Launcher))
    corners = [resolve(compose(space.overrides(texts))) for texts in space.corners()]
    if corners[0]["vectorize"]:
        raise BadSetting(
            f"vectorize={corners[0]['vectorize']}: a search makes one run after the other; write "
            "vectorize=[]"
        )
    counted = [f"run.{key}" for key in ("calls", "samples") if corners[0]["run"][key] is not None]
    if counted and settings["pruner"] != "none":
        raise BadSetting(
            f"hydra.sweeper.pruner={settings['pruner']}: looks at shares of run.steps, before "
            f"which {counted[0]} ends a run; write hydra.sweeper.pruner=none"
        )
    aim = aim_of(settings, corners[0])
    searched = {key: repr(part) for key, part in space.parts.items()}
    rest = {key: settings[key] for key in ("seeds", "sampler", "pruner", "seed")}
    meaning = [[meaning_of(config) for config in corners], searched, rest, aim]
    top = expand(str(master.hydra.sweep.dir), "run.root").parent
    folder = top / f"optuna-{hash_of({'search': meaning})}"
    refuse_links(top, folder, folder / "notes")
    with lock.hold(folder):
        if corners[0]["run"]["force"]:
            (folder / JOURNAL).unlink(missing_ok=True)
        write_whole(folder / "multirun.yaml", OmegaConf.to_yaml(master))
        search = Search(compose, space, settings, launcher, folder, aim, corners[0])
        search.begun = (folder / "multirun.yaml").stat().st_mtime_ns
        search.open()
        try:
            search.make()
        finally:
            code = search.close()
    return code


def aim_of(settings: dict[str, Any], config: dict[str, Any]) -> Aim:
    """The metric and the direction, by the settings or else by what the task watches.

    The task is built once to see which metrics there are: anew and on the CPU, as a machine that
    only sends jobs has no GPU. Raises BadSetting.
    """
    import torch

    from bench.core.loop import row
    from bench.runs.opening import open_run

    with stop.no_exit():
        own = {**config["run"], "device": "cpu", "force": True}
        run = open_run({**config, "run": own}, place(config))
        with torch.no_grad():
            there = row(run.task, run.start)
    metric = settings["metric"] or metric_to_choose_by(run.task.metric, there)
    if metric not in there:
        raise unknown_setting("hydra.sweeper.metric", metric, there, metric)
    good = better(place(config).name.partition("/")[0], metric)
    direction = settings["direction"]
    if direction is None and good == "neither":
        raise BadSetting(
            f"hydra.sweeper.direction: nothing says which values of {metric} are good; write "
            "hydra.sweeper.direction=minimize, or maximize"
        )
    return Aim(metric, direction or ("maximize" if good == "higher" else "minimize"))


def metric_to_choose_by(watched: str, there: Iterable[str]) -> str:
    """The metric by which a search chooses: the one that the task watches, of validation data.

    Test data must not choose a setting. Where they are watched, the metric of the same kind on the
    second validation set takes their place, or else that on the first; without either it stays.
    """
    kind = watched.removeprefix("test_")
    if kind == watched:
        return watched
    found = [f"{part}_{kind}" for part in ("val2", "val") if f"{part}_{kind}" in there]
    return found[0] if found else watched
