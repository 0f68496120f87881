"""Write docs' pages of methods, problems and settings from the code.

    uv run python -m scripts.reference            # write them
    uv run python -m scripts.reference --check    # say whether they are up to date

What a method or a problem is comes from the docstring of its module and function, what it is called
and set to from its yaml in conf/, one step in formulas from the line `# formula:` there, and what a
step costs from the method itself (`Algorithm.cost`).
"""

import argparse
import inspect
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple, get_args, get_origin

import annotated_types
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from bench.core.algorithm import KEYS, Algorithm
from bench.core.settings import build, check_settings, hints_of, locate
from bench.reproduce.book import load_book
from bench.reproduce.readme import markdown_table
from bench.reproduce.specs import Metric
from bench.reproduce.step_costs import format_calls, moments

TOP = Path(__file__).resolve().parent.parent
FAMILIES = ("bilevel", "online", "meta", "continual", "games", "projection_free")
STEPS = 500  # of a run whose steps are looked at; of a stream, 20 tasks of 25 steps
EXTRAS = {"learn2learn": "meta"}  # methods that cannot be built where tests run
COMMAND = "python -m scripts.reference"
ARROWS = {"higher": " ↑", "lower": " ↓", "neither": ""}


class Choice(NamedTuple):
    """A choice of a group of conf/: its name, first comment, formula, function and settings."""

    name: str
    what: str
    formula: str
    target: str
    node: dict[str, Any]

    @property
    def function(self) -> Any:
        return locate(self.target, self.name)

    @property
    def module(self) -> str:
        return self.target.rpartition(".")[0]


def comments(file: Path) -> tuple[str, str]:
    """A yaml's first comment, and what its line `# formula:` says; empty if it has none."""
    lines = file.read_text().splitlines()
    formula = next((one for one in lines if one.startswith("# formula: ")), "")
    return lines[0].removeprefix("# "), formula.removeprefix("# formula: ")


def read_choices(group: str) -> list[Choice]:
    """Every choice of the group, by name, with the settings of its yaml and every default.

    They are composed together, because Hydra takes a tenth of a second for each time it is asked,
    and with a problem for which conf/tuned/ has nothing.
    """
    files = sorted((TOP / "conf" / group).glob("*.yaml"))
    with initialize_config_module("conf", version_base="1.3"):
        parts = [f"+{group}@all.{file.stem}={file.stem}" for file in files]
        cfg = compose("config", ["task=quadratic", *parts])
    found = []
    for file in files:
        node = OmegaConf.to_container(cfg["all"][file.stem], resolve=True)
        given = ("context",) if group == "task" else ()
        node = check_settings(node, group, given=given)
        found.append(Choice(file.stem, *comments(file), node["_target_"], node))
    return found


def escape(text: str) -> str:
    """Plain text as Markdown that looks the same; what stands between backticks stays as it is."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"([*<])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


def as_markdown(docstring: str) -> str:
    """A docstring as Markdown: its indented lines are formulas, and stay as they are."""
    out: list[str] = []
    formula: list[str] = []
    for line in [*inspect.cleandoc(docstring).splitlines(), "end"]:
        if line.startswith("    "):
            formula.append(line[4:])
            continue
        if formula and line:
            while not formula[-1]:
                formula.pop()
            out += ["", "```text", *formula, "```", ""]
            formula = []
        if formula:
            formula.append("")
        else:
            out.append(escape(line))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(out[:-1])).strip()


def calls(choice: Choice) -> str:
    """What a step calls at the settings of conf/, such as "11 grad_g, 1 grad_f"."""
    if choice.name in EXTRAS:
        return f"needs the extra `{EXTRAS[choice.name]}`"
    algorithm: Algorithm = build(choice.node)
    at = {"run": {"steps": STEPS}, "task": {"tasks": 20, "batch": 10}}
    costs = Counter(algorithm.cost_at(moment) for moment in moments(at, algorithm.on_stream))
    known = {cost: steps for cost, steps in costs.items() if cost is not None}
    said = [(format_calls(known, key), key) for key in KEYS]
    return ", ".join(f"{number} {key}" for number, key in said if number).replace("<=", "≤")


def methods_text(choices: list[Choice]) -> str:
    """A section for each family, and in it one for each module, with a table of its methods."""
    parts = []
    for family in FAMILIES:
        package = f"algorithms.{family}"
        mine = [choice for choice in choices if choice.module.startswith(f"{package}.")]
        parts.append(f"## {family.replace('_', '-').capitalize()}\n\n{module_text(package)}")
        for module in sorted({choice.module for choice in mine}):
            rows = [
                [f"`{one.name}`", escape(one.what), escape(one.formula), calls(one)]
                for one in mine
                if one.module == module
            ]
            title = ", ".join(choice.name for choice in mine if choice.module == module)
            table = markdown_table(["`algorithm=`", "", "one step", "it calls"], rows)
            parts.append(f"### {title}\n\n{module_text(module)}\n\n{table.strip()}")
    return "\n\n".join(parts)


def problems_text(choices: list[Choice]) -> str:
    """A section for each module of tasks, with what its docstring says, and what is measured."""
    metrics = load_book(outside=False).metrics
    parts = []
    for module in dict.fromkeys(choice.module for choice in choices):
        mine = [choice for choice in choices if choice.module == module]
        title = ", ".join(choice.name for choice in mine)
        rows = [[f"`{choice.name}`", escape(choice.what)] for choice in mine]
        table = markdown_table(["`task=`", ""], rows).strip()
        measured = "\n\n".join(measured_text(choice.name, metrics) for choice in mine)
        parts.append(f"## {title}\n\n{module_text(module)}\n\n{table}\n\n{measured}")
    return "\n\n".join(parts)


def measured_text(task: str, metrics: Mapping[str, Mapping[str, Metric]]) -> str:
    """What a task measures, by name: an arrow to the better values, and what it is."""
    found = [
        f"`{name}`{ARROWS[metric.better]} ({escape(metric.label)})"
        for name, metric in metrics[task].items()
    ]
    return fill(f"`{task}` measures {', '.join(found)}.", 110)


def settings_text(group: str, choices: list[Choice]) -> str:
    """A section for each choice: its settings as conf/ has them, and what its function says."""
    parts = []
    for choice in choices:
        node = choice.node
        rows = [
            [f"`{group}.{key}`", escape(show(node[key])), escape(allowed(kind))]
            for key, kind in hints_of(choice.function).items()
            if key in node
        ]
        table = markdown_table(["setting", "in conf/", "allowed"], rows).strip() if rows else ""
        text = as_markdown(choice.function.__doc__ or "")
        parts.append(f"## {choice.name}\n\n{text}\n\n{table}")
    return "\n\n".join(parts)


def run_text() -> str:
    """The settings of seed, run and data, with the comments of conf/config.yaml."""
    rows, above = [], ""
    text = (TOP / "conf" / "config.yaml").read_text()
    for line in text[text.index("\nseed:") : text.index("\nhydra:")].splitlines():
        found = re.match(r"( *)(\w+):\s*(.*?)\s*(?:#\s*(.*))?$", line)
        if found is None:
            continue
        indent, key, value, comment = found.groups()
        if not value:
            above = f"{key}."
            continue
        name = f"{above}{key}" if indent else key
        rows.append([f"`{name}`", f"`{value}`", escape(comment or "")])
    return markdown_table(["setting", "default", ""], rows).strip()


def module_text(module: str) -> str:
    """The docstring of a module, as Markdown."""
    return as_markdown(inspect.getdoc(__import__(module, fromlist=["_"])) or "")


def show(value: Any) -> str:
    """A setting's value as it stands in a yaml; a group by its function."""
    if isinstance(value, dict):
        return f"{value['_target_'].rpartition('.')[2]}(...)" if "_target_" in value else "{...}"
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def allowed(kind: Any) -> str:
    """The values that an annotation allows, in words."""
    options = [option for option in get_args(kind) if option is not type(None)]
    if type(None) in get_args(kind):
        inner = [allowed(option) for option in options]
        return " | ".join([*inner, "null"])
    if str(get_origin(kind)) == "typing.Literal":
        return " | ".join(map(show, options))
    if hasattr(kind, "__metadata__"):
        bounds = [bound for field in kind.__metadata__ for bound in getattr(field, "metadata", ())]
        said = [phrase for bound in bounds if (phrase := bound_text(bound))]
        base = "integer" if kind.__origin__ is int else "number"
        return " ".join([base, ", ".join(said)]).strip()
    names = {bool: "true | false", int: "integer", float: "number", str: "text"}
    return names.get(kind, getattr(kind, "__name__", str(kind)))


def bound_text(bound: Any) -> str:
    """A bound of a number, such as "> 0"; empty for one that needs no words."""
    words = {annotated_types.Gt: ("gt", ">"), annotated_types.Ge: ("ge", "≥"),
             annotated_types.Lt: ("lt", "<"), annotated_types.Le: ("le", "≤")}  # fmt: skip
    name, sign = words.get(type(bound), ("", ""))
    value = getattr(bound, name, None) if name else None
    return "" if value is None or abs(value) >= 2**53 else f"{sign} {value:g}"


def pages() -> Iterator[tuple[Path, str, str]]:
    """(file, name of its marked part, its content) of every page."""
    algorithms, tasks = read_choices("algorithm"), read_choices("task")
    docs = TOP / "docs"
    yield docs / "methods.md", "methods", methods_text(algorithms)
    yield docs / "problems.md", "problems", problems_text(tasks)
    yield docs / "settings.md", "settings", run_text()
    yield docs / "method_settings.md", "settings", settings_text("algorithm", algorithms)
    yield docs / "problem_settings.md", "settings", settings_text("task", tasks)


def updated(text: str, name: str, content: str) -> str:
    """The text with its marked part renewed; raises SystemExit if it has no such part."""
    begin, end = f"<!-- {name}: written by `{COMMAND}` -->", f"<!-- end of {name} -->"
    found = re.search(f"{re.escape(begin)}.*?{re.escape(end)}", text, re.DOTALL)
    if found is None:
        raise SystemExit(f"there is no line {begin}, and after it {end}")
    return text[: found.start()] + f"{begin}\n\n{content}\n\n{end}" + text[found.end() :]


def outdated_pages() -> Iterable[tuple[Path, str]]:
    """The pages that are not what the code says, with what they should be."""
    for file, name, content in pages():
        old = file.read_text()
        new = updated(old, name, content)
        if new != old:
            yield file, new


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1")
    check = parser.parse_args().check
    for file, text in outdated_pages():
        if check:
            sys.exit(f"{file.relative_to(TOP)}: it is not what the code says: write {COMMAND}")
        file.write_text(text)
        print(file.relative_to(TOP))


if __name__ == "__main__":
    main()
