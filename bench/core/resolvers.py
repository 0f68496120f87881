"""What a configuration may interpolate: its other values, and the resolvers that conf/ uses.

Any other resolver could carry what a configuration has no business with, such as a password in an
environment variable, into config.yaml or to Weights & Biases.
"""

import re
from collections.abc import Iterator
from typing import Any

VARIABLES = ("BENCH_RUNS", "BENCH_DATA")  # all that conf/config.yaml asks the environment for
START = re.compile(r"\$\{")
OURS = re.compile(rf"\$\{{(?:[^${{}}:]*\}}|oc\.select:|oc\.env:(?:{'|'.join(VARIABLES)})[,}}])")
ADVICE = (
    f"only other settings, oc.select and oc.env of {' or '.join(VARIABLES)} may be interpolated; "
    "write the value itself"
)


def refusal(node: Any, path: str = "") -> str | None:
    """Why a configuration, with nothing in it resolved, may not be resolved; None if it may.

    path: where the node stands in the configuration.
    """
    for where, value in leaves(node, path):
        text = str(value)
        if any(not OURS.match(text, start.start()) for start in START.finditer(text)):
            return f"{where}={value}: {ADVICE}"
    return None


def leaves(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value in a node, as (its path, the value); an empty group or list is a value too."""
    if not isinstance(node, dict | list) or not node:
        yield path, node
        return
    for key, value in node.items() if isinstance(node, dict) else enumerate(node):
        yield from leaves(value, f"{path}.{key}".lstrip("."))
