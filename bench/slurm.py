"""SLURM, by way of submitit."""

from pathlib import Path
from typing import Any

from bench.settings import BadSetting


def slurm_executor(folder: Path, requeues: int) -> Any:
    """Raises BadSetting without submitit or SLURM."""
    try:
        import submitit
    except ImportError:
        raise BadSetting("SLURM needs submitit: write uv sync --extra slurm") from None
    try:
        return submitit.SlurmExecutor(folder=folder, max_num_timeout=requeues)
    except RuntimeError:
        raise BadSetting("SLURM: there is no sbatch on this machine") from None
