"""The README and docs/: every link leads somewhere, and every block of code runs.

A block that needs what a test does not have stands below a comment `<!-- parsed only: why -->`: its
commands exist then, and take the options that are written.
"""

import argparse
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer
import yaml

from bench.core.draw import Draw, generator
from bench.core.oracle import Oracle
from bench.core.task import Context
from bench.reproduce import cli
from bench.reproduce.book import load_book, own_specs
from bench.search_path import TOP
from scripts import build_site
from scripts.build_site import BrokenLink, link_report, rewrite
from tasks.quadratic import quadratic
from tests.conftest import ROOT
from tests.test_conf import composed
from tests.test_hostile import Main, main  # noqa: F401  (a fixture)

ROOT_PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "CODE_OF_CONDUCT.md", "SECURITY.md")
PAGES = [*(ROOT / name for name in ROOT_PAGES), *sorted((ROOT / "docs").glob("*.md"))]
LANGUAGES = ("bash", "python", "yaml", "toml", "text")
FENCE = re.compile(
    r"(?:<!-- parsed only: (?P<why>[^\n]*) -->\n+)?^```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
MARKERS = PROJECT["tool"]["pytest"]["ini_options"]["markers"]
# a run of these would fetch or make too much for a test: their settings are checked, no step taken
UNTAKEN = ("=mnist", "=slurm", "run.compile=true", "vectorize=")
SMALL = ("run.steps=2", "run.every=2", "run.threads=1", "task.references=false",
         "task.pretraining.steps=2")  # fmt: skip


SEEN: set[str] = set()  # commands of `reproduce` that have run: each does so once


class Block(NamedTuple):
    """A block of code of a page. why: the reason for which it is only parsed; empty: it runs."""

    page: Path
    line: int
    language: str
    text: str
    why: str

    @property
    def id(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for found in FENCE.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        yield Block(page, line, found["language"], found["text"], found["why"] or "")


def named(*languages: str) -> list[Block]:
    return [block for page in PAGES for block in blocks(page) if block.language in languages]


def ids(block: Any) -> str | None:
    return block.id if isinstance(block, Block) else None


# ------------------------------------------------------------------------------------- the pages
def test_the_readme_is_short() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 150
    assert "solve(" in text
    assert text.index("docs/published.svg") < text.index("## ")  # the picture stands on top


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_stands_in_fences_with_a_language(page: Path) -> None:
    text = page.read_text()
    assert {block.language for block in blocks(page)} <= set(LANGUAGES)
    assert text.count("```") == 2 * len(list(blocks(page)))
    outside = FENCE.sub("", text)
    assert not re.search(r"(?m)(?<=\n\n)    \S", outside), "code that is only indented is not run"


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as renderers of Markdown make them."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "results/README.md"], ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page.read_text())):
        if re.match(r"\w+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = page.parent / path if path else page
        assert there.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in anchors(there), f"{page.name}: {target}"


def test_every_page_is_reached_from_the_readme() -> None:
    reached, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
            if not re.match(r"\w+:", target) and (page.parent / target).exists():
                waiting.append((page.parent / target).resolve())
    assert set(PAGES) <= reached


# ------------------------------------------------------------------------------------- the site
def test_links_between_files_become_links_between_pages(tmp_path: Path) -> None:
    for name in ("README.md", "docs/a.md", "docs/b.md", "conf/c.yaml", "results/README.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    text = (
        "[a](docs/a.md#x) [over\ntwo lines](docs/b.md) [every](results/README.md) "
        "[yaml](conf/c.yaml) [out](https://x.y/z) ![p](docs/b.md) [here](#x)"
    )
    assert rewrite(text, tmp_path / "README.md", tmp_path) == (
        "[a](a.md#x) [over\ntwo lines](b.md) [every](claims.md) "
        "yaml [out](https://x.y/z) ![p](b.md) [here](#x)"
    )
    assert rewrite("[up](../README.md)", tmp_path / "docs/a.md", tmp_path) == "[up](index.md)"
    for lost in ("gone.md", "../../etc/hosts"):
        with pytest.raises(BrokenLink, match="there is no such file"):
            rewrite(f"[x]({lost})", tmp_path / "docs/a.md", tmp_path)


# ---------------------------------------------------------------------------------- bash blocks
def commands(text: str) -> Iterator[list[str]]:
    """The words of every command of a block."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        while words:
            end = words.index("&&") if "&&" in words else len(words)
            yield words[:end]
            words = words[end + 1 :]


@pytest.fixture
def terminal(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    main: Main,  # noqa: F811
) -> "Terminal":
    monkeypatch.setenv("BENCH_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("COLUMNS", "200")
    return Terminal(tmp_path, main, monkeypatch)


class Parsed(Exception):
    """A script's options were accepted."""


class Terminal:
    """Runs the commands of a block in this process, with small settings; `only` parses them."""

    def __init__(self, place: Path, bench: Main, patch: pytest.MonkeyPatch):
        self.place, self.bench_main, self.patch = place, bench, patch

    def run(self, words: list[str], only: bool) -> None:
        first, *rest = words
        if first in ("uv", "pip"):
            self.uv(words, only)
        elif first == "bash":
            script = (ROOT / rest[0]).read_text()
            assert re.search(rf"\b{rest[1]}\)", script), words
        elif first == "eval":
            self.run(shlex.split(rest[0].removeprefix("$(").removesuffix(")")), only)
        else:
            self.tool([Path(first).name, *rest], only)

    def uv(self, words: list[str], only: bool) -> None:
        match words:
            case ["pip", "install", "uv" | "."]:
                return
            case ["uv", "venv", *rest]:
                self.uv_takes(["venv"], rest)
            case ["uv", "sync", "--extra", extra]:
                assert extra in PROJECT["project"]["optional-dependencies"]
            case ["uv", "sync", "--group", group]:
                assert group in PROJECT["dependency-groups"]
            case ["uv", "run", "--group", group, *rest]:
                assert group in PROJECT["dependency-groups"]
                self.tool(rest, only)
            case ["uv", "run", "--with", _, *rest] | ["uv", "run", *rest]:
                self.tool(rest, only)
            case ["uv", "pip", "install", *rest]:
                self.uv_takes(["pip", "install"], rest)
            case ["uv", "build", *rest]:
                self.uv_takes(["build"], rest)
            case _:
                pytest.fail(f"what is {words}?")

    def uv_takes(self, command: list[str], rest: list[str]) -> None:
        """A command of uv that a test does not run: whether it has these options."""
        if shutil.which("uv"):
            help_ = subprocess.run(["uv", *command, "--help"], capture_output=True, text=True)
            assert all(word in help_.stdout for word in rest if word.startswith("--"))

    def tool(self, words: list[str], only: bool) -> None:
        match words:
            case ["bench", *rest]:
                self.bench(rest, only)
            case ["reproduce", *rest]:
                self.reproduce(rest, only)
            case ["pytest", *rest]:
                if "-m" in rest:
                    marker = rest[rest.index("-m") + 1].removeprefix("not ")
                    assert any(m.startswith(f"{marker}:") for m in MARKERS)
            case ["pre-commit", "install"]:
                assert "pre-commit" in str(PROJECT["dependency-groups"]["dev"])
            case ["python", "-m", module, *rest]:
                self.script(module, rest)
            case ["python", script, *rest] if script.endswith(".py"):
                self.script(script.removesuffix(".py").replace("/", "."), rest)
            case _:
                pytest.fail(f"what is {words}?")

    def bench(self, words: list[str], only: bool) -> None:
        sweep = "-m" in words
        overrides = [w.replace("range(100)", "range(2)") for w in words if w != "-m"]
        if only or any(end in word for word in overrides for end in UNTAKEN):
            plain = [w for w in overrides if "," not in w and "(" not in w and "hydra" not in w]
            composed(*plain)
            return
        launcher = ["-m", "hydra/launcher=here"] if sweep else []
        pretrained = not any(w.startswith("task=") for w in overrides)
        small = SMALL if pretrained else SMALL[:3]
        said = self.bench_main(*launcher, *overrides, *small)
        assert said.code == 0, said.err

    def reproduce(self, words: list[str], only: bool) -> None:
        if " ".join(words) in SEEN:
            return
        SEEN.add(" ".join(words))
        group = typer.main.get_command(cli.app)
        command = group.commands[words[0]]  # type: ignore[attr-defined]
        command.make_context(words[0], list(words[1:]))  # raises for an option that is not there
        if only or words[0] in ("run", "campaign", "findings", "report"):  # tested elsewhere
            return
        more = ["--out", str(self.place / "report")] if words[0] == "report" else []
        self.patch.chdir(TOP)
        assert cli.app([*words, *more], standalone_mode=False) in (None, 0, 1)  # 1: a claim fails

    def script(self, module: str, words: list[str]) -> None:
        """The module's own parser reads the words; nothing else of it runs.

        A module without a parser, as tests/golden.py, must at least name the words.
        """
        spec = find_spec(module)
        assert spec is not None
        assert spec.origin is not None
        file = Path(spec.origin)
        file = file.with_name("__main__.py") if file.name == "__init__.py" else file
        if "ArgumentParser" not in file.read_text():
            assert all(f'"{word}"' in file.read_text() for word in words)
            return
        parse = argparse.ArgumentParser.parse_args

        def parse_and_stop(parser: argparse.ArgumentParser, *given: Any) -> None:
            parse(parser, *given)
            raise Parsed

        self.patch.setattr(argparse.ArgumentParser, "parse_args", parse_and_stop)
        self.patch.setattr(sys, "argv", [module, *words])
        self.patch.delitem(sys.modules, module, raising=False)  # it runs as a script, once more
        with pytest.raises(Parsed):
            runpy.run_module(module, run_name="__main__")


@pytest.mark.parametrize("block", named("bash"), ids=ids)
def test_a_block_of_commands_runs(block: Block, terminal: Terminal) -> None:
    for words in commands(block.text):
        terminal.run(words, bool(block.why))


def test_a_command_that_does_not_exist_is_noticed(terminal: Terminal) -> None:
    wrong = ("uv run benhc", "uv sync --extra nothing", "uv run bench task=nothing",
             "uv run reproduce list --nothing", "uv run python -m scripts.nothing",
             "uv run python -m scripts.reference --nothing", "uv build --nothing",
             "bash scripts/slurm_local.sh nothing", "uv run pytest -m nothing")  # fmt: skip
    for line in wrong:
        with pytest.raises(BaseException):  # noqa: B017, PT011  (an exit, a failure, any error)
            terminal.run(shlex.split(line), False)


# ------------------------------------------------------------------------------ other languages
@pytest.mark.parametrize(
    "page",
    [p for p in PAGES if any(b.language == "python" for b in blocks(p))],
    ids=lambda p: p.name,
)
def test_the_python_of_a_page_runs_in_order(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page):
        if block.language == "python":
            code = compile("\n" * block.line + block.text, str(page), "exec")
            if not block.why:
                exec(code, names)


@pytest.mark.parametrize("block", named("yaml", "toml"), ids=ids)
def test_a_block_of_settings_is_read(block: Block) -> None:
    read = yaml.safe_load if block.language == "yaml" else tomllib.loads
    assert read(block.text)


def test_the_method_of_the_page_learns_and_is_what_its_yaml_says(tmp_path: Path) -> None:
    """docs/adding.md's one-step differentiation, on the quadratic with a known optimum."""
    page = list(blocks(ROOT / "docs" / "adding.md"))
    names: dict[str, Any] = {}
    exec(next(block.text for block in page if block.language == "python"), names)
    first, second = (yaml.safe_load(block.text) for block in page if block.language == "yaml")
    assert first.pop("_target_") == "algorithms.bilevel.mine.mine"
    algorithm = names["mine"](**first)
    task = quadratic(Context())
    state = algorithm.init(*task.init(generator(0)))
    start = task.evaluate(state.x, state.y, 0)[task.metric]
    for step in range(50):
        oracle = Oracle(task)
        state, _ = algorithm.step(oracle, state, Draw(task, 0, step))
    assert task.evaluate(state.x, state.y, 50)[task.metric] < 0.9 * start

    specs = tmp_path / "mine"
    specs.mkdir()
    (specs / "ridge.yaml").write_text(yaml.safe_dump(second))
    methods = (own_specs() / "methods.yaml").read_text()
    (tmp_path / "methods.yaml").write_text(methods + "\n" + METHOD)
    assert "mine/ridge" in load_book(tmp_path).artifacts


METHOD = "mine: {label: Mine, colour: '#000000', algorithm: bome}\n"


def test_pages_link_to_the_pages_of_records_below_their_heading() -> None:
    """These pages exist: a name that is none would have no link, without a word."""
    text = link_report("# Findings\n\nWhat was found.\n")
    assert text.startswith('# Findings\n\n<p><a href="report/index.html">')
    assert text.endswith("</p>\n\nWhat was found.\n")
    docs = {file.name for file in (ROOT / "docs").glob("*.md")}
    assert set(build_site.LINKING) <= docs | set(build_site.PAGES.values())
