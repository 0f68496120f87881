"""SLURM, by way of submitit."""

import shlex
import sys
from pathlib import Path
from typing import Any

from bench.settings import BadSetting

# Before submitit is imported and listens, its signal would end the process, and its job with it
DEAF = """sh -c 'trap "" USR2; exec "$0" "$@"'"""


def slurm_executor(folder: Path, requeues: int) -> Any:
    """Raises BadSetting without submitit or SLURM."""
    try:
        import submitit
    except ImportError:
        raise BadSetting("SLURM needs submitit: write uv sync --extra slurm") from None
    try:
        python = f"{DEAF} {shlex.quote(sys.executable)}"
        return submitit.SlurmExecutor(folder=folder, max_num_timeout=requeues, python=python)
    except RuntimeError:
        raise BadSetting("SLURM: there is no sbatch on this machine") from None
