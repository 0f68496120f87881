"""The sweepers of `bench -m`, and where Hydra looks for configurations besides conf/.

Hydra finds them here, because it looks for plugins in this package.
"""

import sys
from typing import TYPE_CHECKING, Any

# Hydra imports its own plugins a second time: an import at the top of this file, which Hydra reads
# at that moment, gets the class that Hydra compares with; one in another module would not.
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from bench.core.packages import listed
from bench.runs.importing import import_torch

if TYPE_CHECKING:
    from bench.sweeps.composing import Composer

MANY = 100  # from so many runs on, planning takes long enough to announce it


class Sweep(BasicSweeper):
    """Hydra's sweeper in all but how runs are made, which bench.sweeps.sweep does.

    The choices of the command line are multiplied as by Hydra. Each configuration is composed
    once, runs that have ended are not started, and what became of a run is read from its folder.
    """

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        self.hydra_context = hydra_context
        self.config = config

    def sweep(self, arguments: list[str]) -> Any:
        from bench.main import run_codes

        parsed = self.parse(arguments)
        for override in parsed:
            if override.is_interval_sweep():
                raise HydraException(
                    f"{override.input_line}: write hydra/sweeper=optuna to search an interval, or "
                    "values with commas between them to try all"
                )
        (overrides,) = self.split_arguments(parsed, None)
        if len(overrides) >= MANY:
            print(f"bench: planning {len(overrides):,} runs", file=sys.stderr)
        import_torch()
        from bench.sweeps.sweep import run_sweep  # slow to import

        compose = self.composer()
        assert self.config is not None
        run_codes.append(run_sweep(compose, overrides, self.config))

    def parse(self, arguments: list[str]) -> list[Override]:
        """The overrides that the command line has."""
        assert self.hydra_context is not None
        loader = self.hydra_context.config_loader
        return OverridesParser.create(config_loader=loader).parse_overrides(arguments)

    def composer(self) -> "Composer":
        """What composes the configuration of each run."""
        from bench.sweeps.composing import Composer

        assert self.hydra_context is not None
        assert self.config is not None
        node = self.config.hydra
        loader = self.hydra_context.config_loader
        return Composer(loader, node.job.config_name, node.overrides.hydra)


class OptunaSweep(Sweep):
    """The sweeper `optuna`: a search, which bench.sweeps.tuning makes."""

    def __init__(self, **settings: Any):
        """settings: as conf/hydra/sweeper/optuna.yaml has them; read where they are used."""
        super().__init__(max_batch_size=None)

    def sweep(self, arguments: list[str]) -> Any:
        from bench.main import run_codes

        import_torch()
        from bench.sweeps.space import parser, read_space
        from bench.sweeps.tuning import run_search  # slow to import

        compose = self.composer()
        assert self.config is not None
        params = OmegaConf.to_container(self.config.hydra.sweeper.params)
        space = read_space(self.parse(arguments), params, parser(compose.loader))
        run_codes.append(run_search(compose, space, self.config))


class Packages(SearchPathPlugin):
    """Adds the configurations of the packages that the user's environment lists, after our own."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for package in listed().packages:  # a folder, as a module would be imported for it
            search_path.append(f"package {package.name}", f"file://{package.conf}")
