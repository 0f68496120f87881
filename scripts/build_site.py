"""Build the site: docs/, the README as its first page, and the API from the docstrings.

    uv run --group docs python -m scripts.build_site --out site [--report]

With --report the pages of all records are made as well, in site/report, and linked.

Every warning is an error, so that a link which leads nowhere fails. Links between files, as they
are written for a reader of the repository, are turned into links between pages.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

TOP = Path(__file__).resolve().parent.parent
# files outside docs/ that are pages of the site -> the page
PAGES = {
    "README.md": "index.md", "results/README.md": "claims.md", "SECURITY.md": "security.md",
    "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md",
    "CODE_OF_CONDUCT.md": "code_of_conduct.md",
}  # fmt: skip
# the pages of the menu, by heading
MENU = {
    "Start": ["install", "solve", "packages"],
    "Use": ["running", "terminal", "sweeps", "optuna", "wandb", "run_folder",
            "tables", "gpu"],
    "What there is": ["methods", "problems", "settings", "method_settings", "problem_settings"],
    "What was found": ["findings", "league", "claims", "speed"],
    "Carry on": ["adding", "architecture", "testing", "lent_gpu", "contributing", "changelog",
                 "security", "code_of_conduct"],
    "API": [],
}  # fmt: skip
MODULES = {  # the API's pages
    "bench": ["bench"],
    "bench.core": ["task", "algorithm", "oracle", "draw", "loop", "settings", "stream", "view"],
    "bench.numerics": ["descent", "solve", "sets", "inner", "packing"],
}
LINKING = ("findings.md", "claims.md", "index.md")  # the pages that link to the pages of records
REPORT_LINE = (
    '\n<p><a href="report/index.html">Every table and figure as a page</a>: '
    "its verdicts, figures, measured and published values.</p>\n"
)
LINK = re.compile(r"(!?\[[^\]]*\])\(([^)\s]+)\)")


class BrokenLink(Exception):
    """A link to a file that is not there."""


def rewrite(text: str, file: Path, top: Path = TOP) -> str:
    """The text of a page with links to pages of the site in place of links to files.

    A link to a file that is no page becomes plain text. Raises BrokenLink.
    """

    def replace(found: re.Match[str]) -> str:
        label, target = found.groups()
        path, _, anchor = target.partition("#")
        if not path or re.match(r"\w+:", target):
            return found[0]
        there = (file.parent / path).resolve()
        if not there.is_relative_to(top) or not there.exists():
            raise BrokenLink(f"{file.relative_to(top)}: [{label}]({target}): there is no such file")
        name = there.relative_to(top).as_posix()
        page = PAGES.get(name) or (name.removeprefix("docs/") if name.startswith("docs/") else None)
        if label.startswith("!"):
            return f"{label}({there.name})"
        if page is None:
            return label[1:-1]
        return f"{label}({page}{'#' + anchor if anchor else ''})"

    return LINK.sub(replace, text)


def link_report(text: str) -> str:
    """The text of a page with a link to the pages of all records below its heading."""
    heading, _, rest = text.partition("\n")
    return f"{heading}\n{REPORT_LINE}{rest}"


def stage(folder: Path, report: bool) -> None:
    """Write everything that Sphinx reads into the folder.

    report: the site has the pages of all records, to which some pages link.
    """
    sources = {file: file.name for file in sorted((TOP / "docs").glob("*.md"))}
    sources |= {TOP / name: page for name, page in PAGES.items()}
    for file, page in sources.items():
        text = rewrite(file.read_text(), file)
        if report and page in LINKING:
            text = link_report(text)
        (folder / page).write_text(text + menu() if page == "index.md" else text)
    for picture in [*(TOP / "docs").glob("*.svg"), TOP / "results" / "coreset.png"]:
        shutil.copy(picture, folder)
    shutil.copy(TOP / "docs" / "conf.py", folder)
    for package, modules in MODULES.items():
        names = modules if package == "bench" else [f"{package}.{name}" for name in modules]
        (folder / f"{package}.md").write_text(api_page(package, names))


def menu() -> str:
    """The site's menu, at the end of the first page."""
    parts = []
    for heading, pages in MENU.items():
        lines = "\n".join(pages or MODULES)
        parts.append(f"```{{toctree}}\n:hidden:\n:caption: {heading}\n\n{lines}\n```")
    return "\n\n" + "\n\n".join(parts) + "\n"


def api_page(package: str, modules: list[str]) -> str:
    """A page with the docstrings of a package's public names."""
    parts = [f"# {package}"]
    for module in modules:
        title = f"## {module}\n\n" if module != package else ""
        imported = "   :imported-members:\n" if module == "bench" else ""
        parts.append(
            f"{title}```{{eval-rst}}\n.. automodule:: {module}\n   :members:\n{imported}```"
        )
    return "\n\n".join(parts) + "\n"


def build(out: Path, report: bool = False) -> int:
    """Build the site into `out`, and give the exit code of what failed, or 0.

    report: the pages of all records, which take a minute, are made too.
    """
    if report:
        words = [sys.executable, "-m", "bench.reproduce", "report", "--site", str(out / "report")]
        if code := subprocess.run(words, cwd=TOP).returncode:
            return code
    with TemporaryDirectory(prefix="bilevel-bench-site-") as folder:
        stage(Path(folder), report)
        command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet"]
        variables = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(TOP), *filter(None, [os.environ.get("PYTHONPATH")])])
        }
        done = subprocess.run([*command, "-b", "html", folder, str(out)], env=variables)
    return done.returncode


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("site"), help="folder of the site")
    parser.add_argument("--report", action="store_true", help="with the pages of all records")
    given = parser.parse_args()
    try:
        sys.exit(build(given.out.absolute(), given.report))
    except BrokenLink as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
