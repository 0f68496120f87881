"""How many claims hold, fail or are open: the papers' claims and our own checks apart."""

from collections import Counter
from collections.abc import Iterable, Mapping

from bench.reproduce.claim_kinds import AUTHORS, Author
from bench.reproduce.claim_records import ClaimRecord
from bench.reproduce.claims import VerdictWord
from bench.reproduce.records import Record
from bench.reproduce.specs import SCALES, ScaleName, Spec

Counts = Mapping[Author, Counter[VerdictWord]]  # how many claims of each author have each verdict
Forms = Mapping[VerdictWord, str]  # how a number of claims with a verdict is said
PLAIN: Forms = {
    "holds": "{} holds",
    "fails": "{} fails",
    "not enough runs": "{} not enough runs",
    "outdated": "{} outdated",
    "not run": "{} not run",
}
MARKDOWN: Forms = {
    "holds": "{} hold",
    "fails": "**{} fail**",
    "not enough runs": "{} open",
    "outdated": "{} outdated",
    "not run": "{} not run",
}
SHORT: Forms = {
    "holds": "{} hold",
    "fails": "{} fail",
    "not enough runs": "{} open",
    "outdated": "{} outdated",
    "not run": "{} not run",
}
AUTHOR_PHRASES: Mapping[Author, str] = {
    "paper": "of the papers' claims",
    "us": "of our own checks",
}
SCALE_PHRASES: Mapping[ScaleName, str] = {
    "paper": "At the papers' scale",
    "smaller": "At a smaller scale",
}


def count_verdicts(entries: Iterable[ClaimRecord]) -> Counts:
    """How many claims of each author have each verdict; each claim says who makes it."""
    found: dict[Author, Counter[VerdictWord]] = {author: Counter() for author in AUTHORS}
    for entry in entries:
        found[entry.claim["by"]][entry.verdict.word] += 1
    return found


def add_counts(some: Iterable[Counts]) -> Counts:
    """The sum of several counts."""
    listed = list(some)
    return {author: sum((c[author] for c in listed), Counter()) for author in AUTHORS}


def phrase_counts(counts: Counter[VerdictWord], forms: Forms = PLAIN) -> str:
    """One author's counts, such as "3 holds, 1 fails"; empty if there is nothing to count."""
    return ", ".join(form.format(counts[word]) for word, form in forms.items() if counts[word])


def phrase_authors(found: Counts, forms: Forms = PLAIN) -> str:
    """The papers' counts and then ours, such as "3 holds; ours: 1 fails"; empty without claims."""
    paper, ours = (phrase_counts(found[author], forms) for author in AUTHORS)
    return "; ".join(filter(None, [paper, ours and f"ours: {ours}"]))


def total_sentences(some: Iterable[tuple[ScaleName, Counts]], forms: Forms = PLAIN) -> list[str]:
    """A sentence for each scale at which there are claims, with the counts of each author."""
    listed = list(some)
    said = []
    for scale in SCALES:
        found = add_counts(counts for at, counts in listed if at == scale)
        parts = [
            f"{AUTHOR_PHRASES[author]} {phrase}"
            for author in AUTHORS
            if (phrase := phrase_counts(found[author], forms))
        ]
        if parts:
            said.append(f"{SCALE_PHRASES[scale]}, {'; '.join(parts)}.")
    return said


def recorded_counts(found: Record, spec: Spec) -> Counts:
    """The counts of a record's claims as they were judged when it was written.

    Who makes a claim is taken from the spec, as the record may be older than that field. A claim
    that the spec no longer has is not counted.
    """
    return count_verdicts(
        entry.model_copy(update={"claim": {**entry.claim, "by": spec.claims[key].by}})
        for group in found.claims.values()
        for key, entry in group.items()
        if key in spec.claims
    )


def describe_verdicts(found: Record | None, spec: Spec) -> str:
    """How many of a record's claims have each verdict, in a few words."""
    if found is None:
        return "-"
    return phrase_authors(recorded_counts(found, spec), SHORT) or "none judged"
