"""The command line: Hydra composes a configuration, bench.launch runs it.

Nothing heavy is imported before there is something to run, so that --help is quick.
"""

import contextlib
import os
import re
import shutil
import sys
import traceback
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, MissingConfigException
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException


def alone() -> bool:
    """Whether a core is left beside this thread and the others that want one (proc(5), loadavg)."""
    try:
        wanting = Path("/proc/loadavg").read_text().split()[3].split("/")[0]
    except OSError:
        return False
    return int(wanting) < (os.cpu_count() or 1)


# Idle OpenMP threads sleep: spinning ones, the default, make a run on a busy machine 50 times
# slower. Where nobody else wants the core they spin for a moment first, so that they are awake
# for a next operation at once: a third off a step of SF2OBO on 20 Newsgroups. libgomp reads this
# when torch is imported, which has not happened yet.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "20000" if alone() else "0")

REFUSED, FAILED, INTERRUPTED = 2, 1, 130  # exit codes; 0: every run is done

codes: list[int] = []  # of the runs of this process
sweep_folder: list[Path] = []


class SweepFolder(Callback):
    """Named in conf/config.yaml: Hydra tells it where a sweep keeps its notes."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        sweep_folder[:] = [Path(config.hydra.sweep.dir)]


@hydra.main(version_base="1.3", config_path="pkg://conf", config_name="config")
def app(cfg: DictConfig) -> int:
    """One run. In a sweep a run that fails does not stop the others."""
    from bench.launch import launch
    from bench.settings import BadSetting

    sweep = HydraConfig.get().mode == RunMode.MULTIRUN
    try:
        codes.append(launch(cfg))
    except BadSetting as error:
        refuse(str(error))
        codes.append(REFUSED)
    except Exception:
        if not sweep:
            raise
        traceback.print_exc()
        codes.append(FAILED)
    return codes[-1]


def main() -> None:
    """The console script `bench`."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # composition errors come here, to be told in one line
    arguments = sys.argv[1:]
    try:
        app()
    except (HydraException, OmegaConfBaseException) as error:
        refuse(explained(error, [a for a in arguments if not a.startswith("-")]))
        codes.append(REFUSED)
    except KeyboardInterrupt:
        codes.append(INTERRUPTED)
    except OSError as error:
        if error.filename is None:
            raise
        refuse(f"run.root: cannot write {error.filename}: {error.strerror}")
        codes.append(REFUSED)
    if not codes and sweep_folder:
        refuse(f"the sweep is empty: {' '.join(a for a in arguments if '=' in a)} names no run")
        codes.append(REFUSED)
    if sweep_folder and all(code == REFUSED for code in codes):
        shutil.rmtree(sweep_folder[0], ignore_errors=True)
        with contextlib.suppress(OSError):  # also .sweeps and the root, if nothing else is there
            sweep_folder[0].parent.rmdir()
            sweep_folder[0].parent.parent.rmdir()
    sys.exit(max(codes, default=0))


def refuse(line: str) -> None:
    print(f"bench: {line}", file=sys.stderr)


def explained(error: Exception, overrides: list[str]) -> str:
    """A composition error as one line: the setting, its value, what to write instead."""
    from bench.settings import unknown

    text = " ".join((str(error) or str(error.__cause__)).split())
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, choice = str(error.missing_cfg_file).rpartition("/")
        return f"{group}={choice}: no such {group}; there is {', '.join(error.options or [])}"
    if match := re.search(r"Could not override '([^']+)'", text):
        key = match[1].lstrip("+~")
        value = next((o.partition("=")[2] for o in overrides if o.startswith(f"{key}=")), "")
        parent, _, last = key.rpartition(".")
        others = [o for o in overrides if o.partition("=")[0].lstrip("+~") != key]
        try:
            with hydra.initialize_config_module("conf", version_base="1.3"):
                cfg = hydra.compose("config", others)
            inside = OmegaConf.select(cfg, parent) if parent else cfg
        except (HydraException, OmegaConfBaseException):
            inside = None
        if isinstance(inside, DictConfig):
            return str(unknown(key, value, map(str, inside), last))
    return re.sub(r" See https?://\S+.*", "", text)
