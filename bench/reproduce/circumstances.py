"""Under which conditions a run was made: commit, code, threads, instruction set, device."""

from collections.abc import Iterable, Mapping
from typing import Any

from bench.reproduce.plan import Circumstances, Run


def circumstances(run: Run) -> list[Circumstances]:
    """The conditions that a run was made in, in turn; an empty list if it has not ended."""
    if run.summary is None:
        return []
    if run.recorded is not None:
        return [run.recorded.circumstances]
    return [describe_stage(stage) for stage in stages(run.folder.environment())]


def describe_stage(e: Mapping[str, Any]) -> Circumstances:
    """The conditions of one environment, as a run's folder keeps it."""
    return Circumstances(
        commit=commit(e),
        source=e["source"].get("digest") if e.get("source") else None,
        threads=str(e["threads"]),
        instructions=e.get("cpu_capability"),
        device=str(e["gpu"] or e["cpu"]),
    )


def join_known(values: Iterable[str | None]) -> str | None:
    """The distinct values as one text, "unknown" for a None among them; None if all are None."""
    found = distinct_values(values)
    known = [value for value in found if value is not None]
    if not known:
        return None
    return ", ".join([*known, *(["unknown"] if None in found else [])])


def stages(e: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The environment that a run began in, then each one in which it was resumed.

    e: the run's environment as its folder keeps it, with the later changes in `continued`.
    """
    first = {key: value for key, value in e.items() if key != "continued"}
    changes = [entry["changed"] for entry in e.get("continued", [])]
    return [first, *(first | {key: new for key, (_, new) in c.items()} for c in changes)]


def hardware(e: Mapping[str, Any]) -> str:
    """The GPU, or else the CPU and the number of threads."""
    return e["gpu"] or f"{e['cpu']}, {e['threads']} threads"


def commit(e: Mapping[str, Any]) -> str:
    """The commit's first ten digits, and whether files differed from it."""
    if not e["git"]:
        return "unknown"
    return e["git"]["commit"][:10] + (" and changes" if e["git"]["dirty"] else "")


def distinct_values(values: Iterable[Any]) -> list[Any]:
    """Each value once, in the order of its first appearance; values need no hash."""
    found = []
    for v in values:
        if v not in found:
            found.append(v)
    return found
