"""An artifact's verdict in one sentence, made from the words of its claims."""

from collections.abc import Sequence

from bench.reproduce.claim_records import Verdicts
from bench.reproduce.claims import VerdictWord
from bench.reproduce.records import Record
from bench.reproduce.schema import Variant

SETTINGS: dict[Variant, str] = {
    "paper": "as the paper describes it",
    "code": "as the released code runs it",
}
VERBS: dict[VerdictWord, tuple[str, str]] = {
    "holds": ("holds", "hold"),
    "fails": ("fails", "fail"),
    "not enough runs": ("is open", "are open"),
    "outdated": ("waits for new runs", "wait for new runs"),
    "not run": ("is not run", "are not run"),
}


def list_words(parts: Sequence[str]) -> str:
    """The parts as a list in a sentence."""
    *some, last = parts
    return f"{', '.join(some)} and {last}" if some else last


def count_phrase(words: Sequence[VerdictWord]) -> str:
    """How many claims have each verdict, such as "3 hold and 1 fails"."""
    parts = []
    for word, (one, many) in VERBS.items():
        n = words.count(word)
        if n:
            parts.append(f"{n} {one if n == 1 else many}")
    return list_words(parts)


def phrase_all(words: Sequence[VerdictWord]) -> str:
    """Claims that all have the same verdict, such as "4 claims hold" and "claim holds"."""
    one, many = VERBS[words[0]]
    return f"claim {one}" if len(words) == 1 else f"{len(words)} claims {many}"


def headline(verdicts: Verdicts) -> str:
    """The verdicts on the paper's own claims in a sentence for each variant.

    Our own checks are told if the paper makes no claim that is judged.
    """
    said = []
    for author, whose in (("paper", "the paper's"), ("us", "our own")):
        for variant, group in verdicts.items():
            words = [e.verdict.word for e in group.values() if e.claim["by"] == author]
            if not words:
                continue
            setting = SETTINGS[variant]  # type: ignore[index]
            if len(set(words)) == 1:
                number = f"{'all ' if len(words) > 2 else ''}{whose} {phrase_all(words)}"
            else:
                number = f"of {whose} {len(words)} claims {count_phrase(words)}"
            said.append(f"Run {setting}, {number}.")
        if said:
            return " ".join(said)
    return "No claim is judged at this budget."


def outdated_rows(record: Record) -> int:
    """How many rows have runs that are not those which the spec asks for today."""
    return sum(row.outdated for group in record.rows.values() for row in group.values())
