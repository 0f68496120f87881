"""Reads the specs of all tables and figures, and checks each against the schema and the names."""

import shlex
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import ValidationError
from rich.text import Text

from bench.core.packages import listed
from bench.core.settings import BadSetting, closest
from bench.reproduce.spec_checks import check_causes, check_spec
from bench.reproduce.specs import Artifact, Book, Method, Metric, Spec
from bench.reproduce.terminal import err
from bench.runs.files import shallow_events


class UniqueKeys(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML that refuses a key given twice, which YAML's own loader takes in silence.

    It is the loader in C, which is many times as fast, where there is one.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen:
                line = key.start_mark.line + 1
                raise yaml.YAMLError(f"line {line}: {key.value} is there twice")
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def own_specs() -> Path:
    """The folder of this project's specs."""
    return Path(str(files("conf"))) / "paper"


def load_book(folder: Path | None = None, outside: bool = True) -> Book:
    """Every spec under `folder` (default: this project's and those of listed packages), checked.

    metrics.yaml and methods.yaml come from the folder if it has them, or else from this project's;
    those of listed packages are added. outside: whether listed packages count at all. A package
    with a wrong file has a line on standard error, and is left out. Raises BadSetting with file and
    field.
    """
    return _load(folder, outside, specs=True)


def load_names(folder: Path | None = None) -> Book:
    """A book without any spec: the names of metrics and methods alone, which are read sooner.

    Raises BadSetting as `load_book` does.
    """
    return _load(folder, outside=True, specs=False)


def _load(folder: Path | None, outside: bool, specs: bool) -> Book:
    """What `load_book` gives, without specs if these are not asked for."""
    if folder is not None and not folder.is_dir():
        raise BadSetting(f"--specs {folder}: there is no such folder")
    names = read_names(folder or own_specs(), own_specs())
    artifacts = read_artifacts(folder or own_specs(), names) if specs else {}
    if specs and not artifacts:
        raise BadSetting(f"--specs {folder}: there is no <paper>/<artifact>.yaml in it")
    for package in listed().packages if outside else ():
        own = package.conf / "paper"
        try:
            joined = names.joined(read_names(own), package.name)
            more = read_artifacts(own, joined) if specs and folder is None else {}
        except BadSetting as error:
            err.print(Text(f"reproduce: {package.shown} is left out: {error}"))
        else:
            names, artifacts = joined, artifacts | more
    return Book(artifacts, names.metrics, names.methods)


class Names(NamedTuple):
    """What metrics.yaml and methods.yaml say: task -> name -> metric, and method by its key."""

    metrics: dict[str, dict[str, Metric]]
    methods: dict[str, Method]

    def joined(self, more: "Names", package: str) -> "Names":
        """These and those of a package; raises BadSetting for a name that is in both."""
        for file, there, new in (
            ("metrics", self.metrics, more.metrics),
            ("methods", self.methods, more.methods),
        ):
            same = sorted(there.keys() & new.keys())
            if same:
                raise BadSetting(
                    f"conf/paper/{file}.yaml: {same[0]} is another's too: rename it in {package}"
                )
        return Names(self.metrics | more.metrics, self.methods | more.methods)


def read_names(folder: Path, instead: Path | None = None) -> Names:
    """What metrics.yaml and methods.yaml of a folder of specs say; raises BadSetting.

    instead: the folder whose file is read where this one has none; None: no name is then known.
    """

    def content(file: str) -> tuple[Path, dict[str, Any]]:
        path = folder / file
        if not path.is_file():
            if instead is None:
                return path, {}
            path = instead / file
        found = read_yaml(path)
        if not isinstance(found, dict):
            raise BadSetting(f"{format_path(path)}: it has to be a table of names")
        return path, found

    path, tasks = content("metrics.yaml")
    for task, group in tasks.items():
        if not isinstance(group, dict):
            raise BadSetting(f"{format_path(path)}: {task}: it has to be a table of metrics")
    metrics = {
        task: {
            name: validate(Metric, value, path, f"{task}.{name}") for name, value in group.items()
        }
        for task, group in tasks.items()
    }
    path, methods = content("methods.yaml")
    return Names(
        metrics, {name: validate(Method, value, path, name) for name, value in methods.items()}
    )


def read_artifacts(folder: Path, names: Names) -> dict[str, Artifact]:
    """Every spec below a folder, by its id, checked; raises BadSetting with file and field."""
    found = {}
    for path in sorted(folder.glob("*/[!_]*.yaml")):
        spec = validate(Spec, _read_extended(path), path, "")
        check_spec(spec, names.metrics, names.methods, format_path(path))
        key = f"{path.parent.name}/{path.stem}"
        found[key] = Artifact(key, spec, path)
    for artifact in found.values():
        check_causes(artifact.spec, found, format_path(artifact.file))
    return found


def find_artifacts(book: Book, wanted: Iterable[str]) -> list[Artifact]:
    """The artifacts with these ids; all artifacts if no id is given.

    A paper's name stands for all artifacts of the paper. Raises BadSetting for an unknown name.
    """
    found: list[Artifact] = []
    for name in wanted:
        some = [a for key, a in book.artifacts.items() if key == name or key.startswith(f"{name}/")]
        owner = next((a.id for a in found if name in a.spec.rows), None)
        if not some and owner:
            row = shlex.quote(name)
            raise BadSetting(f"{name}: is a row of {owner}; reproduce run takes it as --rows {row}")
        if not some:
            hint, there = closest(name, book.artifacts), ", ".join(book.artifacts)
            raise BadSetting(f"{name}: no such artifact; {hint}there is {there}")
        found += some
    return found or list(book.artifacts.values())


def read_yaml(file: Path) -> Any:
    """The content of a YAML file; raises BadSetting."""
    try:
        text = file.read_text()
        for _ in shallow_events(text):  # the loader in C dies of deep nesting
            pass
        return yaml.load(text, UniqueKeys)
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise BadSetting(f"{format_path(file)}: {' '.join(str(error).split())}") from None
    except OSError as error:
        raise BadSetting(f"{format_path(file)}: {error.strerror}") from None


def _read_extended(file: Path, above: tuple[Path, ...] = ()) -> Any:
    """The file's content, laid over that of the file that its `extends` names, if it has one.

    above: the files that extend this one, directly or not. Raises BadSetting for a circle.
    """
    content = read_yaml(file)
    if not isinstance(content, dict) or "extends" not in content:
        return content
    base = file.with_name(f"{content.pop('extends')}.yaml")
    if base in (file, *above):
        raise BadSetting(f"{format_path(file)}: extends: {base.stem} extends this file")
    if not base.is_file():
        raise BadSetting(
            f"{format_path(file)}: extends: {base.stem}: there is no {format_path(base)}"
        )
    return _merge(_read_extended(base, (file, *above)), content)


def _merge(base: Any, own: Any) -> Any:
    """`own` laid over `base`: mappings are merged key by key, anything else is replaced."""
    if not isinstance(base, dict) or not isinstance(own, dict):
        return own
    joined = {key: _merge(base[key], own[key]) if key in own else base[key] for key in base}
    return joined | {key: value for key, value in own.items() if key not in base}


def validate(kind: Any, content: Any, file: Path, where: str) -> Any:
    """The content as a model of this kind; `where` is its path in the file. Raises BadSetting."""
    try:
        return kind.model_validate(_with_tuples(content))
    except ValidationError as error:
        first = error.errors()[0]
        names = [str(part) for part in first["loc"] if part not in KINDS]
        field = ".".join([where, *names]).strip(".")
        message = first["msg"][0].lower() + first["msg"][1:]
        if first["type"] == "missing":
            message = "is missing"
        value = first["input"]
        plain = isinstance(value, str | int | float | bool) and first["type"] != "missing"
        raise BadSetting(
            f"{format_path(file)}: {field}{f'={value}' if plain else ''}: {message}"
        ) from None


# kinds of claims, which pydantic puts into the path of an error
KINDS = {
    "above", "below", "order", "between", "within_published", "close", "converges",
    "does_not_converge", "diverges", "first", "slope",
}  # fmt: skip
PAIRS = ("x_range", "y_range", "goal")  # fields of a trajectory


def _with_tuples(content: Any) -> Any:
    """The content with tuples where models want them: YAML has only lists."""
    if isinstance(content, dict):
        return {
            key: tuple(value) if key in PAIRS and value else _with_tuples(value)
            for key, value in content.items()
        }
    return [_with_tuples(value) for value in content] if isinstance(content, list) else content


def format_path(file: Path) -> str:
    """The path, relative to the working folder if it lies below that."""
    try:
        return str(file.relative_to(Path.cwd()))
    except ValueError:
        return str(file)
