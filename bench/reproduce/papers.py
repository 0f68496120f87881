"""The papers that artifacts come from, as pages cite them: papers.yaml beside the specs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import Field

from bench.reproduce.book import own_specs, read_yaml, validate
from bench.reproduce.schema import StrictModel


class Paper(StrictModel):
    """A paper: its title, its authors by full name, where it appeared, and when."""

    title: str
    authors: Annotated[list[str], Field(min_length=1)]
    venue: str
    year: int

    @property
    def text(self) -> str:
        """The paper in one line."""
        return f"{', '.join(self.authors)}. {self.title}. {self.venue}, {self.year}."

    def bibtex(self, key: str) -> str:
        """The paper's entry for BibTeX."""
        return (
            f"@inproceedings{{{key}{self.year},\n"
            f"  title     = {{{{{self.title}}}}},\n"
            f"  author    = {{{' and '.join(self.authors)}}},\n"
            f"  booktitle = {{{self.venue}}},\n"
            f"  year      = {{{self.year}}},\n"
            "}"
        )


def load_papers(specs: Path | None) -> dict[str, Paper]:
    """The papers by the names of their folders; raises BadSetting for a field that is wrong.

    specs: a folder of specs, which may have no papers.yaml of its own; None is this project's.
    """
    found: dict[str, Paper] = {}
    for folder in dict.fromkeys([own_specs(), specs or own_specs()]):
        path = folder / "papers.yaml"
        if path.is_file():
            found |= {
                key: validate(Paper, value, path, key) for key, value in read_yaml(path).items()
            }
    return found


def paper_of(artifact_id: str, papers: Mapping[str, Paper]) -> Paper | None:
    """The paper of an artifact, or None if papers.yaml does not have it."""
    return papers.get(artifact_id.split("/")[0])
