"""What this suite needs of Hydra beyond what Hydra promises to keep, in one place.

tests/test_private.py says which part is gone in which version; pyproject.toml bounds the version.
"""

from collections.abc import Sequence

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig

__all__ = ["ConfigLoaderImpl", "put_in"]


def put_in(overrides: Sequence[Override], cfg: DictConfig) -> None:
    """Put values into a composed configuration, as Hydra itself does."""
    ConfigLoaderImpl._apply_overrides_to_config(list(overrides), cfg)
