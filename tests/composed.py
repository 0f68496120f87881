"""Configurations for tests, composed in a tenth of the time that Hydra takes.

tests/test_sweep_parts.py holds the composer against Hydra itself.
"""

from functools import cache

from omegaconf import DictConfig

from bench.sweeps.composing import Composer, own_composer


@cache
def composer() -> Composer:
    """This process's composer, which knows the environment's variables as they are at first."""
    return own_composer()


def composed(*overrides: str) -> DictConfig:
    """The configuration of a run with these overrides."""
    return composer().own(overrides)
