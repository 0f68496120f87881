"""What a run's files have to look like, so that whoever reads them need not ask again.

A function raises ValueError, in a few words, if what was read from a file is of another shape. A
key that is absent, as in older files, is not missed here.
"""

import re
from collections.abc import Callable, Mapping, Set
from typing import Any

from bench.runs.files import is_finite, is_number

Fits = Callable[[Any], bool]


def check_fields(found: Mapping[str, Any], fields: Mapping[str, Fits]) -> None:
    """Raise ValueError, which names the key, if one of the values does not fit."""
    for key, fits in fields.items():
        if key in found and not fits(found[key]):
            raise ValueError(f"its {key} is {found[key]!r:.40}".rstrip())


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def is_device(value: Any) -> bool:
    """Whether a value names a kind of device on which runs are made."""
    return value in ("cpu", "cuda")


def is_optional_text(value: Any) -> bool:
    return value is None or isinstance(value, str)


def is_number_of_threads(value: Any) -> bool:
    """Whether torch would take a value for a number of threads."""
    return is_count(value) and 1 <= value < 2**15


def is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(is_text, value))


def is_text_table(value: Any) -> bool:
    return isinstance(value, dict) and all(map(is_text, value.values()))


def is_table(value: Any) -> bool:
    return isinstance(value, dict)


def is_number_table(value: Any) -> bool:
    return isinstance(value, dict) and all(map(is_number, value.values()))


def is_finite_table(value: Any) -> bool:
    return isinstance(value, dict) and all(map(is_finite, value.values()))


def is_memory(value: Any) -> bool:
    return is_finite_table(value) and "process" in value


def is_replayed(value: Any) -> bool:
    """Whether a value is the number of a run's captures, and of those that were refused by why."""
    return (
        isinstance(value, dict)
        and is_count(value.get("captured"))
        and isinstance(value.get("refused"), dict)
        and all(map(is_count, value["refused"].values()))
    )


def is_commit(value: Any) -> bool:
    return value is None or (
        isinstance(value, dict)
        and is_text(value.get("commit"))
        and isinstance(value.get("dirty"), int)
    )


def is_source(value: Any) -> bool:
    return value is None or (
        isinstance(value, dict)
        and is_optional_text(value.get("digest"))
        and is_text_table(value.get("files", {}))
    )


def is_changes(value: Any) -> bool:
    """Whether a value is the list of what differed each time that a run went on."""
    return isinstance(value, list) and all(map(is_change, value))


def is_change(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("changed"), dict):
        return False
    changed = value["changed"]
    if not all(isinstance(pair, list) and len(pair) == 2 for pair in changed.values()):
        return False
    later = {key: new for key, (_, new) in changed.items()}
    return all(fits(later[key]) for key, fits in ENVIRONMENT.items() if key in later)


def is_rows_of_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(row, list) and all(map(is_number, row)) for row in value
    )


def is_shares(value: Any) -> bool:
    return isinstance(value, dict) and is_rows_of_numbers(list(value.values()))


SUMMARY: dict[str, Fits] = {
    "status": is_text,
    "reason": is_optional_text,
    "name": is_text,
    "seed": is_count,
    "metric": is_text,
    "last": is_number_table,
    "references": is_finite_table,
    "peak_memory_mb": is_memory,
    "process": is_number_table,
    "amortised": is_flag,
    "compile_seconds": is_finite,
    "replayed": is_replayed,
}
STATUS: dict[str, Fits] = {"status": is_text, "reason": is_text}
ENVIRONMENT: dict[str, Fits] = {
    "python": is_text,
    "packages": is_text_table,
    "version": is_text,
    "git": is_commit,
    "cpu": is_optional_text,
    "cpu_capability": is_optional_text,
    "c_compiler": is_flag,
    "gpu": is_optional_text,
    "device": is_device,
    "threads": is_number_of_threads,
    "data": is_text_table,
    "compile": is_flag,
    "lanes": is_texts,
    "metric": is_text,
    "source": is_source,
    "continued": is_changes,
}
VIEW: dict[str, Fits] = {
    "title": is_text,
    "label": is_text,
    "x": is_text,
    "y": is_text,
    "low": is_finite,
    "high": is_finite,
    "shares": is_shares,
    "sizes": is_finite_table,
    "matrix": is_rows_of_numbers,
}
CONFIG: dict[str, Fits] = {
    "seed": is_count,
    "run": is_table,
    "task": is_table,
    "algorithm": is_table,
}
HISTOGRAM = {"title", "label", "low", "high", "shares", "sizes"}
HEATMAP = {"title", "x", "y", "low", "high", "matrix"}


SHOWN = {"name", "metric", "references", "peak_memory_mb"}


def check_shown(summary: Mapping[str, Any]) -> None:
    """Raise ValueError unless a summary has all that is shown of a run that has ended."""
    for key in sorted(SHOWN - set(summary)):
        raise ValueError(f"it has no {key}")
    last = summary["last"]
    for key in ("step", "seconds", summary["metric"]):
        if key not in last:
            raise ValueError(f"its last has no {key}")
    counts = (value for key, value in last.items() if "/" in key and not key.startswith("info/"))
    if not all(map(is_finite, (last["step"], last["seconds"], *counts))):
        raise ValueError("a count in its last is not finite")


def check_view(found: Mapping[str, Any]) -> None:
    """Raise ValueError unless this is a picture of bench.core.view."""
    check_fields(found, VIEW)
    if not (set(found) >= HISTOGRAM or set(found) >= HEATMAP):
        raise ValueError("it is neither a histogram nor a heatmap")
    rows = [*found.get("shares", {}).values(), *found.get("matrix", [])]
    if not rows or not all(rows) or len({len(row) for row in found.get("matrix", [])}) > 1:
        raise ValueError("rows of different lengths, or of none")
    if not found["low"] < found["high"]:
        raise ValueError("low is not below high")


def check_config(found: Any, keys: Set[str] = frozenset()) -> None:
    """Raise ValueError unless this is the configuration of a run; keys: what it has to have."""
    if not isinstance(found, dict):
        raise ValueError("no table of settings")
    for key in sorted(keys - set(found)):
        raise ValueError(f"it has no {key}")
    check_fields(found, CONFIG)


def check_names(kept: dict[str, Any]) -> None:
    """Raise ValueError unless all that is kept are names of runs, by fingerprint and by run."""
    for names in kept.values():
        if not (isinstance(names, dict) and all(map(is_run_name, names.values()))):
            raise ValueError("it has what is no name of a run")


def is_run_name(value: Any) -> bool:
    """Whether a value is a run's name: task/algorithm/hash."""
    return isinstance(value, str) and re.fullmatch(r"\w+/\w+/[0-9a-f]{10}", value) is not None
