"""Sphinx's settings for the site, which `python -m scripts.build_site` builds.

Nothing is fetched from the network, neither by the build nor by the pages: no fonts, no scripts, no
inventories of other projects.
"""

import re

from bench import about

project = "Bilevel Bench"
author = "The Bilevel Bench authors"
release = about.version()
extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_heading_anchors = 3  # links to headings, as on other renderers of Markdown
html_theme = "furo"
html_title = "Bilevel Bench"
html_show_sourcelink = False
html_copy_source = False
pygments_style = "friendly"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80
toc_object_entries_show_parents = "hide"


def plain_to_rst(lines: list[str]) -> list[str]:
    """A docstring in plain English as reStructuredText that looks the same.

    What stands between backticks is code, and what is indented below a blank line is a formula.
    """
    out: list[str] = []
    for i, line in enumerate(lines):
        begins = line.startswith("    ") and (i == 0 or not lines[i - 1])
        if begins and not _inside_formula(lines, i):
            out += ["::", ""]
        if line.startswith("    "):
            out.append(line)
            continue
        parts = line.split("`")
        parts[::2] = [re.sub(r"([*|\\]|_(?=\W|$))", r"\\\1", part) for part in parts[::2]]
        out.append("``".join(parts))
    return out


def _inside_formula(lines: list[str], i: int) -> bool:
    """Whether the last line before `i` that is not blank belongs to a formula too."""
    before = [line for line in lines[:i] if line]
    return bool(before) and before[-1].startswith("    ")


def convert(app: object, what: str, name: str, thing: object, options: object, lines: list[str]):
    """Autodoc calls this with every docstring."""
    lines[:] = plain_to_rst(lines)


def leave_out(app, what: str, name: str, thing: object, skip: bool, options: object) -> bool | None:
    """Autodoc asks this about every member: fields of a NamedTuple have no words of their own."""
    return True if str(thing.__doc__).startswith("Alias for field number") else None


def setup(app):
    """Sphinx calls this first."""
    app.connect("autodoc-process-docstring", convert)
    app.connect("autodoc-skip-member", leave_out)
