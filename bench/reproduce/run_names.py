"""The names of an artifact's runs, which follow from their configurations."""

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache
from hashlib import blake2b
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.core.packages import listed
from bench.core.settings import BadSetting
from bench.reproduce.points import Point, format_override
from bench.runs import name as naming
from bench.runs import shapes
from bench.runs.files import read_json, refuse_links, write_sealed_json

if TYPE_CHECKING:
    from bench.sweeps.composing import Composer

OWN = ".reproduce"  # the folder below the runs of what `reproduce run` writes itself


class Names:
    """The names of runs, and their configurations.

    Composing one takes long and imports torch. The names that were found with this very code and
    these very configs are therefore kept under the runs' root.
    """

    def __init__(self, root: Path, extra: Sequence[str] = ()):
        """extra: overrides for all runs; a run's name must not depend on them."""
        self.root, self.extra = root, extra
        self.file = root / OWN / "names.json"
        self.fingerprint = own_fingerprint()
        self.compose: Composer | None = None
        self.composed: dict[str, Any] = {}
        self.known: dict[str, str] = {}
        if not self.file.parent.is_symlink():
            with suppress(OSError, BadSetting):  # what is not there, or damaged, is found again
                kept = read_json(self.file, check=shapes.check_names)
                self.known = kept.get(self.fingerprint, {})

    def get(self, point: Point, seed: int) -> str | None:
        """The run's name: task/algorithm/hash; None if it has not been composed yet."""
        return self.known.get(self._key(point, seed))

    def ensure(self, wanted: Iterable[tuple[Point, int]], file: Path) -> None:
        """Compose the runs whose names are not known; raises BadSetting with the spec's file."""
        missing = [pair for pair in wanted if self.get(*pair) is None]
        for point, seed in missing:
            try:
                config = self.config(point, seed)
            except BadSetting as error:
                raise BadSetting(f"{file}: rows.{point.row}: {error}") from None
            self.known[self._key(point, seed)] = naming.name(config)
        if missing and fingerprint() == self.fingerprint:  # nobody has edited the code meanwhile
            with suppress(OSError):  # a root that cannot be written can still be read
                refuse_links(self.file.parent)
                self.file.parent.mkdir(parents=True, exist_ok=True)
                write_sealed_json(self.file, {self.fingerprint: self.known})

    def config(self, point: Point, seed: int) -> dict[str, Any]:
        """The complete configuration of a run; raises BadSetting."""
        from hydra.errors import HydraException
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException

        from bench.runs.launch import resolve

        try:
            cfg = self._compose(point)
            for path, value in (*point.chosen, ("seed", seed), ("run.root", str(self.root))):
                OmegaConf.update(cfg, path, value)
            return resolve(cfg)
        except (HydraException, OmegaConfBaseException) as error:
            text = str(error) or str(error.__cause__)
            raise BadSetting(" ".join(text.split())) from None

    def _compose(self, point: Point) -> Any:
        """What Hydra composes for a point; the caller sets the grid's settings and the seed in it.

        A copy is kept for every set of the grid's paths: no value stays for another grid.
        """
        from bench.sweeps.composing import own_composer  # imports Hydra

        for path, value in point.settings:
            if "hydra" in path:  # it would compose from other folders
                raise BadSetting(f"{path}={value}: Hydra's settings are not those of a run")
        key = json.dumps([point.settings, [path for path, _ in point.chosen]])
        if key not in self.composed:
            self.compose = self.compose or own_composer()
            overrides = [format_override(*pair) for pair in point.settings]
            self.composed[key] = self.compose.own([*overrides, *self.extra])
        return self.composed[key]

    @staticmethod
    def _key(point: Point, seed: int) -> str:
        whole = json.dumps([point.settings, point.chosen, seed])
        return blake2b(whole.encode(), digest_size=12).hexdigest()  # short: one file has all names


@cache
def own_fingerprint() -> str:
    """The fingerprint of the code that this process runs: of the files when first asked."""
    return fingerprint()


def fingerprint() -> str:
    """A digest of all that a name depends on: configs, signatures and the naming, as of now."""
    here = Path(__file__).parent.parent
    top = [here, here.parent / "tasks", here.parent / "algorithms", Path(str(files("conf")))]
    top += [package.folder for package in listed().packages]
    digest = blake2b(digest_size=8)
    for folder in top:
        for path in sorted([*folder.rglob("*.py"), *folder.rglob("*.yaml")]):
            if not {"reproduce", "paper"} & set(path.relative_to(folder).parts):
                digest.update(path.read_bytes())
    return digest.hexdigest()
