"""The private parts of Hydra that this suite uses, all in one place.

Hydra does not promise to keep them. pyproject.toml bounds its version, and tests/test_private.py
says which part a new version lacks.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import RLock

from hydra import initialize_config_module
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override
from hydra.version import VersionBase
from omegaconf import DictConfig

__all__ = ["ConfigLoaderImpl", "own_configurations", "put_in"]

ONE_AT_A_TIME = RLock()


@contextmanager
def own_configurations() -> Iterator[ConfigLoader]:
    """Within it `hydra.compose` composes from this project's `conf`.

    Hydra keeps in one place of the process what it composes from, and for which version it does. A
    program that calls this one may be a Hydra app itself, and may call it from several threads: so
    one thread at a time is within it, and behind it the program has its own things again.
    """
    with ONE_AT_A_TIME:
        of_program, base = GlobalHydra.instance(), VersionBase.instance()
        hydra, version = of_program.hydra, base.version_base
        of_program.clear()
        try:
            with initialize_config_module("conf", version_base="1.3"):
                yield GlobalHydra.instance().config_loader()
        finally:
            of_program.hydra, base.version_base = hydra, version
            GlobalHydra.set_instance(of_program)


def put_in(overrides: Sequence[Override], cfg: DictConfig) -> None:
    """Write the values of overrides into a composed configuration, by Hydra's own function."""
    ConfigLoaderImpl._apply_overrides_to_config(list(overrides), cfg)
