"""Parts of libraries that are not promised to stay: each is there, and one module has it."""

import importlib
import re
from importlib.metadata import version

import pytest

from tests.conftest import ROOT

PARTS = {  # what is needed -> the package that has it, and the one module of ours that may name it
    "hydra._internal.config_loader_impl:ConfigLoaderImpl.load_configuration":
        ("hydra-core", "bench/hydra_parts.py"),
    "hydra._internal.config_loader_impl:ConfigLoaderImpl._apply_overrides_to_config":
        ("hydra-core", "bench/hydra_parts.py"),
    "hydra._internal.config_loader_impl:ConfigLoaderImpl._process_config_searchpath":
        ("hydra-core", "bench/hydra_parts.py"),
    "hydra._internal.core_plugins.basic_sweeper:BasicSweeper.split_arguments":
        ("hydra-core", "hydra_plugins/bilevel_bench.py"),
    "torch._inductor:compile": ("torch", "bench/compiled/calls.py"),
    "torch.fx.experimental.proxy_tensor:make_fx": ("torch", "bench/compiled/calls.py"),
}  # fmt: skip


@pytest.mark.parametrize("part", PARTS)
def test_a_private_part_is_there(part: str) -> None:
    """If not, this says which version of which package broke it."""
    package, place = PARTS[part]
    module, _, path = part.partition(":")
    broke = f"{package} {version(package)} has no {part}, which {place} needs"
    try:
        found = importlib.import_module(module)
    except ImportError:
        pytest.fail(broke)
    for name in path.split("."):
        assert hasattr(found, name), broke
        found = getattr(found, name)


@pytest.mark.parametrize("part", PARTS)
def test_one_module_has_it(part: str) -> None:
    module, place = part.partition(":")[0], PARTS[part][1]
    packages = ("bench", "tasks", "algorithms", "hydra_plugins", "scripts")
    files = [file for package in packages for file in (ROOT / package).rglob("*.py")]
    imports = re.compile(rf"^ *(?:from|import) {re.escape(module)}\b", re.M)
    assert [str(f.relative_to(ROOT)) for f in files if imports.search(f.read_text())] == [place]


def test_the_versions_are_bounded() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert re.search(r'"hydra-core>=[\d.]+,<[\d.]+"', text)
    assert re.search(r'"torch>=[\d.]+,<[\d.]+"', text)
