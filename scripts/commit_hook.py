"""A hook of hatchling, named in pyproject.toml: what sdist and wheel have beside the packages."""

import json
import runpy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CommitHook(BuildHookInterface):
    """Adds bench/commit.json to what is built, and to a wheel the records of results/.

    bench/reproduce/places.py reads them where the current folder has none. commit.json is written
    to a temporary folder, so that a build leaves nothing in the checkout. A build from an sdist
    finds no git; it takes the file that the sdist has.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Hatchling calls this before a build; an editable one needs no file."""
        if version == "editable":
            return
        root = Path(self.root)
        if self.target_name == "wheel" and (root / "results").is_dir():
            build_data["force_include"][str(root / "results")] = "bench/recorded_results"
        # a build's environment cannot import bench, but about.py alone imports nothing of it
        found = runpy.run_path(str(root / "bench" / "about.py"))["commit_of_checkout"](root)
        if found is None:
            return
        self.folder = TemporaryDirectory(prefix="bilevel-bench-")
        file = Path(self.folder.name) / "commit.json"
        file.write_text(json.dumps(found) + "\n")
        build_data["force_include"][str(file)] = "bench/commit.json"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Hatchling calls this after the build."""
        if hasattr(self, "folder"):
            self.folder.cleanup()
